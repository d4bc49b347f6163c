//! The inputs and outputs of the state machine, and the settings that do not change.

#![expect(
    missing_docs,
    reason = "the crate exports these hidden, and fields say what they are"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ssntp::Role;
use ssntp::proto::Frame;
use ssntp_cluster::machine::Facts;
use ssntp_payload::{NextState, OpenStream, Restart, StartPayload, StreamCredit, TunnelStats};
use uuid::Uuid;

use crate::driver::{Cancel, Driver, InstanceDir, Measurable, News, Refused, RunId, Running, Usage};
use crate::network::Network;
use crate::policy::Policy;
use crate::store::{NodeRecord, Record};

/// The settings of an agent.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub node: Uuid,
    pub role: Role,
    /// The first driver of this list that accepts a START runs it. Empty if the agent only
    /// reports.
    pub drivers: Vec<Arc<dyn Driver>>,
    /// Shared with the workers. Only the workers look up users in the system, because that can
    /// block.
    pub policy: Arc<Policy>,
    /// The state directory.
    pub state: Option<PathBuf>,
    pub has_volumes: bool,
    pub mem_mb: Option<i64>,
    pub disk_mb: Option<i64>,
    pub max_instances: usize,
    pub labels: BTreeMap<String, String>,
    pub interval: Duration,
    pub grace: Duration,
    /// Tenants' networks; `None` if instances use the host's network.
    pub network: Option<Arc<dyn Network>>,
}

/// An input of the state machine.
#[derive(Debug)]
pub enum Input {
    /// A session was established.
    Connected { configuration: Option<Bytes> },
    /// The session has ended.
    Disconnected,
    /// A frame of the scheduler.
    Frame(Frame),
    /// Frames could not be sent, in this order: there is no session, or no room in the client's queue.
    Unsent(Vec<Frame>),
    /// The outcome of a job.
    Done(Done),
    /// The news of a run.
    News(News),
    /// The agent's owner takes the node out of service, or back into service.
    ToggleOffline,
    /// Time has passed. It does no harm if the deadline has not been reached yet.
    Tick,
}

/// The outcome of a job.
#[derive(Debug)]
pub enum Done {
    /// The instance has to be killed, because it breaks a rule of its node.
    Condemned {
        instance: Uuid,
        handle: RunId,
        why: String,
    },
    /// The launch is over. On success, the number is the time at which the run began, in
    /// milliseconds since 1970.
    Launched {
        instance: Uuid,
        result: Result<(RunId, u64), Refused>,
    },
    /// The instance was sent the signal to end, or was killed.
    Signalled { instance: Uuid },
    Removed {
        instance: Uuid,
        result: Result<(), String>,
    },
    Volume {
        instance: Uuid,
        op: VolumeOp,
        result: Result<(), Refused>,
    },
    /// The record of the instance could not be saved.
    Unsaved { instance: Uuid, why: String },
    /// The node's record could not be saved.
    NodeUnsaved { why: String },
    /// The evacuation was recorded on disk.
    Evacuated(NextState),
    Measured {
        facts: Facts,
        /// Of each instance, the run that was measured, if one ran.
        usages: Vec<(Uuid, Option<RunId>, Usage)>,
        /// The tunnels of tenants' networks.
        tunnels: Vec<TunnelStats>,
    },
}

/// An output of the state machine.
#[derive(Debug)]
pub enum Action {
    Send(Frame),
    Job(Job),
    Stream(StreamOrder),
    /// Report to the agent's owner that the node is evacuated, with the next state of the machine.
    Evacuated(NextState),
}

/// Work that can block. A worker does it.
#[derive(Debug)]
pub enum Job {
    Launch(Box<LaunchJob>),
    /// Write an instance's record. The outcome is [`Done::Unsaved`] if that fails; otherwise there is
    /// none.
    Save {
        instance: Uuid,
        record: Record,
    },
    Terminate(Arc<dyn Driver>, Running),
    Kill(Arc<dyn Driver>, Running),
    /// Remove the network of an instance that has ended. This job has no outcome.
    Detach(Uuid),
    Remove {
        instance: Uuid,
        driver: Option<Arc<dyn Driver>>,
        /// The volumes that are deleted with the instance.
        ephemeral: Vec<Uuid>,
    },
    Volume {
        instance: Uuid,
        driver: Arc<dyn Driver>,
        handle: Option<RunId>,
        op: VolumeOp,
    },
    /// Watch an instance of a former agent that was found running.
    Watch(Arc<dyn Driver>, Running),
    /// Measure the node, the tunnels of tenants' networks, and the instances of each driver.
    Measure(Vec<(Arc<dyn Driver>, Vec<Measurable>)>),
    /// Write the node's record. With a next state of the machine, the outcome is
    /// [`Done::Evacuated`]; without one, this job has no outcome. If it fails, the outcome is
    /// [`Done::NodeUnsaved`].
    SaveNode(NodeRecord, Option<NextState>),
}

#[derive(Debug)]
pub struct LaunchJob {
    pub instance: Uuid,
    pub driver: Arc<dyn Driver>,
    pub payload: Arc<StartPayload>,
    pub record: Record,
    pub origin: Origin,
    pub user: String,
    /// The volumes to attach before the instance starts. The flag is true if the volume is made
    /// when it does not exist.
    pub volumes: Vec<(Uuid, bool)>,
    pub cancel: Cancel,
}

/// The command of a launch, as it is written to disk.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A START, as it was received. If the launch fails, the files of the instance are removed.
    Start(Bytes),
    /// A further run of an instance that is on the disk, with the changes of a RESTART if there are
    /// any.
    Again(Option<Box<Restart>>),
}

/// A volume to attach or detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeOp {
    pub volume: Uuid,
    pub attach: bool,
}

/// An order to the thread that reads logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamOrder {
    /// Begin a stream of the instance in the directory `place`.
    Open {
        open: OpenStream,
        place: InstanceDir,
        runs: bool,
    },
    Credit(StreamCredit),
    Close(Uuid),
    /// Close all streams, because the session has ended.
    CloseAll,
    /// An instance has ended, and all of its output is on disk.
    Ended(Uuid),
}
