//! An instance as the state machine holds it, and its state.
//!
//! ```text
//!  Launching(cause) ─▶ Active ─▶ Terminating(stage) ─▶ Stopped(next step) ─▶ Removing
//! ```
//!
//! Only the state machine changes an instance. The next agent finds the instance's record on the
//! disk.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ssntp_payload::{Persistence, StartPayload};
use uuid::Uuid;

use super::VolumeOp;
use crate::driver::{Cancel, Driver, InstanceDir, Running, Usage};
use crate::store::Record;

/// An instance of this node, until it is removed.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) place: InstanceDir,
    /// The driver that runs the instance. `None` if this agent does not have it.
    pub(super) driver: Option<Arc<dyn Driver>>,
    /// The START of the instance. `None` if it was lost; the instance can't be started again then.
    pub(super) start: Option<Arc<StartPayload>>,
    /// The id of the last START or RESTART, which its failure repeats; empty if an earlier agent received it.
    pub(super) command_id: String,
    /// The record of the runs. [`Instance::record`] adds the field that follows from `life`.
    pub(super) record: Record,
    pub(super) life: Life,
    /// The volumes that are attached.
    pub(super) volumes: BTreeSet<Uuid>,
    /// Volume commands in the order of their arrival. A worker does the first one.
    pub(super) volume_ops: VecDeque<VolumeOp>,
    pub(super) usage: Usage,
    /// True after a RESTART, as long as the last STATS report the instance as ended.
    pub(super) restart_unreported: bool,
    /// The time at which the present run began, or was found by this agent.
    pub(super) since: Instant,
    /// True if the disk use was measured after the end of the last run. It does not change any
    /// more, so it is not measured again.
    pub(super) is_measured: bool,
    /// Cancels the launch that is under way.
    pub(super) cancel: Cancel,
}

/// The state of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Launching(Cause),
    Active,
    Terminating(Ending),
    Stopped(Next),
    /// A worker removes the instance. If that fails, the instance is stopped again, with this next
    /// step.
    Removing(Next),
}

/// The stage of an instance that is being terminated. A time limit begins only when the worker has
/// sent the signal, because the worker may have thousands of signals to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// A worker has the job to ask the instance to end. The duration is the grace period, which
    /// begins when the instance was asked.
    Asking(Duration),
    /// The instance was asked to end. At that time it is killed.
    Asked(Instant),
    /// A worker has the job to kill the instance.
    Killing,
    /// The instance was killed. If it is still there at that time, it counts as hung.
    Killed(Instant),
    Hung,
}

/// The cause of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Start,
    Restart,
    /// The restart policy of the instance.
    Policy,
}

/// The next step of the agent with an instance that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The instance stays until a command for it arrives.
    Stay,
    /// The instance is started again at that time, by its restart policy.
    StartAgain(Instant),
    /// The instance is deleted at that time, because it is not persistent.
    Delete(Instant),
}

impl Instance {
    pub(super) fn new(place: InstanceDir, record: Record, life: Life, now: Instant) -> Self {
        Self {
            place,
            driver: None,
            start: None,
            command_id: String::new(),
            record,
            life,
            volumes: BTreeSet::new(),
            volume_ops: VecDeque::new(),
            usage: Usage::default(),
            restart_unreported: false,
            since: now,
            is_measured: false,
            cancel: Cancel::default(),
        }
    }

    /// The record as it is written to disk.
    pub(super) fn record(&self) -> Record {
        let restart_due = matches!(
            self.life,
            Life::Stopped(Next::StartAgain(_)) | Life::Launching(Cause::Policy)
        );
        Record {
            restart_due,
            ..self.record.clone()
        }
    }

    /// True if the instance may use memory and CPUs.
    pub(super) fn is_running(&self) -> bool {
        !matches!(self.life, Life::Stopped(_) | Life::Removing(_))
    }

    /// True if STOP and EVACUATE have an effect: the instance runs, or its restart policy is about
    /// to start it again.
    pub(super) fn can_be_stopped(&self) -> bool {
        self.is_running() || matches!(self.life, Life::Stopped(Next::StartAgain(_)))
    }

    pub(super) fn is_persistent(&self) -> bool {
        // If the START was lost, the instance counts as persistent, because deleting it could
        // destroy data that its owner needs.
        let persistence = self.start.as_ref().map(|start| &start.start.persistence);
        persistence != Some(&Persistence::Unset)
    }

    /// True if the instance may run and this agent lacks the driver that could find out, or end it.
    pub(super) fn is_out_of_reach(&self) -> bool {
        self.driver.is_none() && self.record.handle().is_some()
    }

    pub(super) fn running(&self) -> Option<(Arc<dyn Driver>, Running)> {
        let handle = self.record.handle()?;
        let place = self.place.clone();
        Some((Arc::clone(self.driver.as_ref()?), Running { place, handle }))
    }
}
