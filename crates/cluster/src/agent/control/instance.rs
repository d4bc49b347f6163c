//! An instance as the state machine holds it, and how far it has come.
//!
//! ```text
//!  Launching(why) ─▶ Active ─▶ Terminating(how far) ─▶ Stopped(what comes next) ─▶ Removing
//! ```
//!
//! The state machine alone changes it. Its record is what the next agent finds on the disk.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ssntp::payload::{Persistence, StartPayload};
use uuid::Uuid;

use super::VolumeOp;
use crate::agent::driver::{Cancel, Driver, InstanceDir, Running, Usage};
use crate::agent::store::Record;

/// An instance of this node, until it is removed.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) place: InstanceDir,
    /// `None` if it needs a driver that this agent doesn't have.
    pub(super) driver: Option<Arc<dyn Driver>>,
    /// `None` if it was lost: then the instance can't be started again.
    pub(super) start: Option<Arc<StartPayload>>,
    /// Its runs so far. [`Instance::record`] adds the field that follows from `life`.
    pub(super) record: Record,
    pub(super) life: Life,
    pub(super) volumes: BTreeSet<Uuid>,
    /// Volume commands in the order in which they came; a worker does the first one.
    pub(super) volume_ops: VecDeque<VolumeOp>,
    pub(super) usage: Usage,
    /// A RESTART starts it again, and the last STATS said that it had ended.
    pub(super) restart_untold: bool,
    /// When its run began, or was found.
    pub(super) since: Instant,
    /// The disk that it uses was measured after its end, and needs no second look.
    pub(super) is_measured: bool,
    /// Set to cancel the launch that is under way.
    pub(super) cancel: Cancel,
}

/// How far an instance has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Launching(Cause),
    Active,
    Terminating(Ending),
    Stopped(Next),
    /// It is being removed. If that fails, it is stopped again, with this next step.
    Removing(Next),
}

/// How far the end of an instance has come. Each time limit begins when the signal before it
/// was sent, because a worker may send thousands of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// A worker has the job to ask it to end. If it has not ended this long after it was asked,
    /// it is killed.
    Asking(Duration),
    /// It was asked to end. At that time it is killed.
    Asked(Instant),
    /// A worker has the job to kill it.
    Killing,
    /// It was killed, and counts as hung from that time on.
    Killed(Instant),
    Hung,
}

/// Why an instance is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Start,
    Restart,
    /// Its restart policy.
    Policy,
}

/// What the agent does next with an instance that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It stays until a command comes.
    Stay,
    /// It is started again at that time, by its restart policy.
    StartAgain(Instant),
    /// It is deleted at that time, because it is not persistent.
    Delete(Instant),
}

impl Instance {
    pub(super) fn new(place: InstanceDir, record: Record, life: Life, now: Instant) -> Self {
        Self {
            place,
            driver: None,
            start: None,
            record,
            life,
            volumes: BTreeSet::new(),
            volume_ops: VecDeque::new(),
            usage: Usage::default(),
            restart_untold: false,
            since: now,
            is_measured: false,
            cancel: Cancel::default(),
        }
    }

    /// Its record as it is written down.
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

    /// Whether it uses memory and CPUs.
    pub(super) fn is_running(&self) -> bool {
        !matches!(self.life, Life::Stopped(_) | Life::Removing(_))
    }

    /// Whether it runs, or will be started again by itself: STOP and EVACUATE end that.
    pub(super) fn can_be_stopped(&self) -> bool {
        self.is_running() || matches!(self.life, Life::Stopped(Next::StartAgain(_)))
    }

    pub(super) fn is_persistent(&self) -> bool {
        // If the START was lost, the instance counts as persistent: deleting it could destroy
        // data that its owner wants to keep.
        let persistence = self.start.as_ref().map(|start| &start.start.persistence);
        persistence != Some(&Persistence::Unset)
    }

    /// Whether it may run, and this agent has no driver to tell or to end it.
    pub(super) fn is_out_of_reach(&self) -> bool {
        self.driver.is_none() && self.record.handle().is_some()
    }

    pub(super) fn running(&self) -> Option<(Arc<dyn Driver>, Running)> {
        let handle = self.record.handle()?;
        let place = self.place.clone();
        Some((Arc::clone(self.driver.as_ref()?), Running { place, handle }))
    }
}
