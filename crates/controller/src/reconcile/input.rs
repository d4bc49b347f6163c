//! What the reconciler is told: the time, the view of the cluster, and the answers to its commands.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ssntp_payload::HealthState;
use uuid::Uuid;

/// The present time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// The time since this process began, by a clock that never goes back.
    pub elapsed: Duration,
    /// The time of day: milliseconds since 1970, UTC. Its clock may jump, so it is stored for
    /// readers, and only the retention of instances of absent nodes depends on it.
    pub unix_ms: i64,
}

/// The view of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The number of the session with the scheduler.
    pub session: u64,
    /// True once the scheduler has reported all that it knew when the session began.
    pub told: bool,
    /// The nodes that are connected and report.
    pub nodes: BTreeSet<Uuid>,
    /// Those of them that are in maintenance, or are being emptied for it.
    pub in_maintenance: BTreeSet<Uuid>,
    /// The instances that nodes have listed.
    pub instances: BTreeMap<Uuid, SeenInstance>,
}

/// An instance as its node listed it last.
#[derive(Clone, Debug)]
pub struct SeenInstance {
    /// The node.
    pub node: Uuid,
    /// True while the node is starting the instance. The start may still fail.
    pub is_pending: bool,
    /// The end of the instance; `None` while it has not ended.
    pub ended: Option<SeenEnd>,
    /// True if the instance has ended and the node will restart it.
    pub is_restart_due: bool,
    /// The health that the node told, by the check of the START.
    pub health: HealthState,
    /// The reason why the last check failed; empty if it has passed, or none was made.
    pub health_detail: String,
    /// The labels that a controller gave to the instance, if it has them.
    pub labels: Option<Labels>,
}

/// The end of an instance.
#[derive(Clone, Debug)]
pub struct SeenEnd {
    /// True if the instance succeeded.
    pub is_success: bool,
    /// The reason and the last lines of its standard error, as text.
    pub how: String,
}

/// The labels of an instance that a controller has started.
#[derive(Clone, Debug)]
pub struct Labels {
    /// The name of the workload.
    pub workload: String,
    /// The slot.
    pub slot: u32,
    /// The digest of the template.
    pub digest: String,
}

/// The scheduler's answer to a START.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The scheduler has the instance, or is starting it.
    There,
    /// The instance was started and has been deleted since.
    Gone,
    /// The scheduler does not have the instance and is not starting it.
    NotStarted {
        /// The reason, as text.
        why: String,
        /// True if the workload causes the failure, false if the state of the cluster does.
        is_its_fault: bool,
    },
    /// The answer was lost, so the outcome of the START is unknown.
    Lost,
    /// Another controller is the master, so the scheduler ignored the START.
    NotMaster,
}
