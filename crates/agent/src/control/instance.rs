//! An instance as the state machine holds it, and its state.
//!
//! ```text
//!  Launching(cause) ─▶ Active ─▶ Terminating(stage) ─▶ Stopped(next step) ─▶ Removing
//! ```
//!
//! Only `instances` changes an instance. The next agent finds the instance's record on the disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ssntp_cluster::Needs;
use ssntp_payload::{Persistence, StartPayload};

use super::volumes::Volumes;
use crate::driver::{Cancel, Driver, Exit, Health, InstanceDir, Measurable, RunId, Running, Usage};
use crate::store::{Record, RecordAfter};

const SIGKILL: i32 = 9;
/// The time after which a killed instance that has not ended counts as hung.
pub(super) const HUNG: Duration = Duration::from_secs(5);

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
    pub(super) volumes: Volumes,
    pub(super) usage: Usage,
    /// The latest health, with the run that it belongs to.
    pub(super) health: Option<(RunId, Health)>,
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
            volumes: Volumes::default(),
            usage: Usage::default(),
            health: None,
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
            restarting: self.life == Life::Launching(Cause::Restart),
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

    /// True if this is the last run of the instance.
    pub(super) fn is_run(&self, handle: &RunId) -> bool {
        self.record.handle().as_ref() == Some(handle)
    }

    /// The health of the present run.
    pub(super) fn health(&self) -> Option<&Health> {
        let (run, health) = self.health.as_ref().filter(|_| self.is_up())?;
        self.is_run(run).then_some(health)
    }

    /// What the START requires. It was checked when the START arrived, so the default never occurs.
    pub(super) fn needs(&self) -> Needs {
        let start = self.start.as_ref();
        start
            .and_then(|start| Needs::of(&start.start).ok())
            .unwrap_or_default()
    }

    /// The time at which the retention of the instance is over. `None` if the instance has not
    /// ended, or is not deleted by retention.
    pub(super) fn kept_until(&self) -> Option<Instant> {
        match self.life {
            Life::Stopped(Next::Delete(at)) => Some(at),
            _ => None,
        }
    }

    /// True if the instance is being deleted because its retention is over.
    pub(super) fn is_retiring(&self) -> bool {
        matches!(self.life, Life::Removing(_)) && self.record.after == RecordAfter::Retire
    }

    /// True if the instance runs and has a network.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.life, Life::Active | Life::Terminating(_))
    }

    /// True if an evacuation has to wait for the instance. Hung instances do not count, because they
    /// may never end.
    pub(super) fn is_busy(&self) -> bool {
        match self.life {
            Life::Terminating(ending) => ending != Ending::Hung,
            _ => self.is_running() || matches!(self.life, Life::Removing(_)),
        }
    }

    /// The time of the next step with the instance. While restarts are not allowed, an overdue restart
    /// does not count: the agent would wake up again and again without doing anything.
    pub(super) fn next_deadline(&self, may_restart: bool) -> Option<Instant> {
        match self.life {
            Life::Terminating(Ending::Asked(at) | Ending::Killed(at)) => Some(at),
            Life::Stopped(Next::StartAgain(at)) => Some(at).filter(|_| may_restart),
            Life::Stopped(Next::Delete(at)) => Some(at),
            _ => None,
        }
    }

    /// The state of the instance in the agent's figures.
    pub(super) fn state(&self) -> &'static str {
        match self.life {
            Life::Launching(_) => "launching",
            Life::Active => "active",
            Life::Terminating(Ending::Hung) => "hung",
            Life::Terminating(_) => "terminating",
            Life::Stopped(_) => "exited",
            Life::Removing(_) => "removing",
        }
    }

    /// Begins the time limit after a worker has sent the signal that asks or kills the instance.
    pub(super) fn handle_signalled(&mut self, now: Instant) {
        if let Life::Terminating(ending) = &mut self.life {
            *ending = match *ending {
                Ending::Asking(grace) => Ending::Asked(now + grace),
                Ending::Killing => Ending::Killed(now + HUNG),
                ending => ending,
            };
        }
    }

    /// If the time limit of its end is over, returns what is to be logged: the instance must be killed then.
    pub(super) fn handle_tick(&mut self, now: Instant) -> Option<&'static str> {
        match self.life {
            Life::Terminating(Ending::Asked(at)) if now >= at => {
                self.life = Life::Terminating(Ending::Killing);
                self.record.detail = "it did not end when it was asked to, and was killed".into();
                Some("has not ended within the grace period, and is killed")
            }
            Life::Terminating(Ending::Killed(at)) if now >= at => {
                self.life = Life::Terminating(Ending::Hung);
                Some("was killed and has not ended: it counts as hung")
            }
            _ => None,
        }
    }

    /// The present run has ended. Returns how, and the next step.
    pub(super) fn handle_ended(&mut self, exit: Exit) -> (Exit, RecordAfter) {
        let was_killed = matches!(
            self.life,
            Life::Terminating(Ending::Killing | Ending::Killed(_) | Ending::Hung)
        );
        let exit = if was_killed && exit.code.is_none() {
            // The supervisor was killed as well and wrote no exit code, but the signal is known.
            Exit {
                signal: Some(SIGKILL),
                ..Exit::code(128 + SIGKILL)
            }
        } else {
            exit
        };
        let after = self.record.after;
        self.record = self.record.stopped(exit.clone());
        // Its files still use the disk, which is measured once more, because the instance may have
        // written until its end.
        self.usage = Usage {
            disk_mb: self.usage.disk_mb,
            ..Usage::default()
        };
        self.is_measured = false;
        (exit, after)
    }

    /// What is measured of the instance. `None` if it was measured after its end, because its figures do not
    /// change any more.
    pub(super) fn begin_measurement(&mut self) -> Option<Measurable> {
        let is_running = self.is_running();
        if std::mem::replace(&mut self.is_measured, !is_running) && !is_running {
            return None;
        }
        let needs = self.needs();
        Some(Measurable {
            place: self.place.clone(),
            handle: self.record.handle(),
            vcpus: needs.vcpus,
            mem_mb: needs.mem_mb,
        })
    }

    /// Begins the retention of an instance that ended `age` ago. A persistent instance is kept until its
    /// owner deletes it.
    pub(super) fn keep(&mut self, now: Instant, retention: Duration, age: Duration) {
        self.life = Life::Stopped(if self.is_persistent() {
            Next::Stay
        } else {
            Next::Delete(now + retention.saturating_sub(age))
        });
    }
}
