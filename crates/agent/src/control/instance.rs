//! An instance as the state machine holds it, and its state.
//!
//! ```text
//!  Launching(cause) ─▶ Active ─▶ Terminating(stage) ─▶ Stopped(next step) ─▶ Removing
//! ```
//!
//! Only `instances` owns one. The next agent finds the instance's record on the disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use log::info;
use ssntp::proto::Frame;
use ssntp_cluster::Needs;
use ssntp_cluster::refusal::{Reason, Refused};
use ssntp_payload::{InstanceDeleted, InstanceStopped, Persistence, Restart, StartPayload};
use ssntp_transport::excerpt;
use uuid::Uuid;

use super::events::{Job, LaunchJob, Origin, Settings};
use super::outputs::Outputs;
use super::restarts;
use super::volumes::{Volumes, ephemeral};
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

/// The command of a launch, and the volumes to attach before it. The flag is true if the volume may be made.
pub(super) type LaunchParts = (Origin, Vec<(Uuid, bool)>);

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
    pub(super) fn keep(&mut self, now: Instant, settings: &Settings, age: Duration) {
        let retention = Duration::from_secs(settings.policy.retention_s.into());
        self.life = Life::Stopped(if self.is_persistent() {
            Next::Stay
        } else {
            Next::Delete(now + retention.saturating_sub(age))
        });
    }

    pub(super) fn launch_again(
        &mut self,
        cause: Cause,
        payload: Arc<StartPayload>,
        changes: Option<Box<Restart>>,
        user: &str,
        out: &mut Outputs,
    ) {
        self.life = Life::Launching(cause);
        self.start = Some(payload);
        // The flag of an earlier launch may be set, and must not cancel this one.
        self.cancel = Cancel::default();
        self.launch((Origin::Again(changes), Vec::new()), user, out);
        // The launch reduces the free memory, and may change the status of the node.
        out.wish_status(false);
    }

    /// Gives the workers the job that launches the instance. Its state is `Launching` already.
    pub(super) fn launch(&self, (origin, volumes): LaunchParts, user: &str, out: &mut Outputs) {
        if let (Some(driver), Some(payload)) = (self.driver.clone(), self.start.clone()) {
            out.job(Job::Launch(Box::new(LaunchJob {
                instance: self.place.instance(),
                driver,
                payload,
                record: self.record(),
                origin,
                user: user.to_owned(),
                volumes,
                cancel: self.cancel.clone(),
            })));
        }
    }

    /// Schedules another try to start it again.
    pub(super) fn handle_restart_refused(&mut self, why: &str, settings: &Settings, out: &mut Outputs) {
        self.record.detail = excerpt(format_args!("it was not started again: {why}")).to_string();
        self.schedule_restart(settings, out);
        self.save(out);
    }

    pub(super) fn schedule_restart(&mut self, settings: &Settings, out: &Outputs) {
        let (node, id, now) = (out.node(), self.place.instance(), out.now());
        let start = self.start.as_ref().map(|start| &start.start);
        match restarts::next_wait(&mut self.record, start) {
            Some(wait) => {
                self.life = Life::Stopped(Next::StartAgain(now + wait));
                info!("{node}: instance {id} is started again in {} s", wait.as_secs());
            }
            None => {
                info!("{node}: instance {id}: {}", self.record.detail);
                self.keep(now, settings, Duration::ZERO);
            }
        }
    }

    /// Ends the instance, if it runs, and then takes the step `after`. When the grace period is over, it is killed.
    pub(super) fn end(
        &mut self,
        after: RecordAfter,
        grace: Duration,
        settings: &Settings,
        out: &mut Outputs,
    ) {
        out.wish_stats();
        if let Life::Stopped(Next::StartAgain(_)) = self.life {
            self.life = Life::Stopped(Next::Stay);
            if !after.removes() {
                // STATS report `exited` before and after, so only an event shows the change.
                self.save(out);
                self.keep(out.now(), settings, Duration::ZERO);
                return self.report(RecordAfter::Evacuate, out);
            }
        }
        let before = self.record.after;
        // A later STOP cancels neither a removal nor the InstanceStopped of an EVACUATE.
        if after.removes() || (!before.removes() && before != RecordAfter::Evacuate) {
            self.record.after = after;
        }
        match &mut self.life {
            Life::Active => {
                // The grace period begins when the worker has sent the signal: see `handle_signalled`.
                self.life = Life::Terminating(Ending::Asking(grace));
                // The record is written before the instance is asked to end, so that the next agent
                // continues the command if this agent ends in between.
                self.save(out);
                if let Some((driver, running)) = self.running() {
                    out.job(Job::Terminate(driver, running));
                }
            }
            Life::Terminating(ending) => {
                match ending {
                    // A later command may shorten the grace period, but not extend it.
                    Ending::Asking(before) => *before = grace.min(*before),
                    Ending::Asked(at) => *at = (out.now() + grace).min(*at),
                    Ending::Killing | Ending::Killed(_) | Ending::Hung => {}
                }
                self.save(out);
            }
            Life::Stopped(_) if after.removes() => self.remove(out),
            // An evacuation does not wait until an image is copied.
            Life::Launching(_) if after.removes() || after == RecordAfter::Evacuate => {
                self.cancel.cancel();
            }
            Life::Launching(_) | Life::Stopped(_) | Life::Removing(_) => {}
        }
    }

    pub(super) fn kill(&self, out: &mut Outputs) {
        if let Some((driver, running)) = self.running() {
            out.job(Job::Kill(driver, running));
        }
    }

    pub(super) fn remove(&mut self, out: &mut Outputs) {
        self.life = Life::Removing(match self.life {
            Life::Stopped(next) => next,
            _ => Next::Stay,
        });
        let start = self.start.as_ref();
        out.job(Job::Remove {
            instance: self.place.instance(),
            driver: self.driver.clone(),
            ephemeral: start.map(|start| ephemeral(&start.start)).unwrap_or_default(),
        });
    }

    pub(super) fn save(&self, out: &mut Outputs) {
        let (instance, record) = (self.place.instance(), self.record());
        out.job(Job::Save { instance, record });
    }

    /// Sends the event that belongs to the step `after`. The event has the end of the last run,
    /// because the instance may be removed before STATS list it as ended.
    pub(super) fn report(&self, after: RecordAfter, out: &mut Outputs) {
        let (instance_uuid, end) = (self.place.instance().into(), self.record.clone().end());
        match after {
            RecordAfter::Nothing | RecordAfter::Keep => {}
            RecordAfter::Delete | RecordAfter::Retire => {
                out.report(Frame::of(&InstanceDeleted { instance_uuid, end }));
            }
            RecordAfter::Evacuate | RecordAfter::Release => {
                out.report(Frame::of(&InstanceStopped { instance_uuid, end }));
            }
        }
    }

    /// Begins the first volume command, unless it has to wait for the launch. If the instance is ending, all are
    /// refused.
    pub(super) fn next_volume_op(&mut self, out: &mut Outputs) {
        let instance = self.place.instance();
        while let Some(op) = self.volumes.next() {
            match (self.life, self.driver.clone()) {
                (Life::Active | Life::Stopped(_), Some(driver)) => {
                    let handle = self.record.handle();
                    return out.job(Job::Volume {
                        instance,
                        driver,
                        handle,
                        op,
                    });
                }
                // It begins once the launch is over.
                (Life::Launching(_), _) => return,
                _ => {
                    let error = Refused::new(Reason::InstanceFailure, "the instance is ending");
                    op.refuse(instance, &error, out);
                    self.volumes.handle_done(op, false);
                }
            }
        }
    }
}
