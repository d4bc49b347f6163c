//! The life of an instance from its launch to its removal, and the frames that report it.

use std::time::Duration;

use log::{info, warn};
use uuid::Uuid;

use super::{Action, Cause, Control, Ending, Failed, Job, Life, MAX_FAILED, Mode, Next, REPEATED, ephemeral};
use crate::agent::driver::{Ended, Exit, LaunchError, RunId, Usage};
use crate::agent::store::{Record, RecordAfter, RecordPhase};
use crate::refusal::Refused;
use ssntp::payload::{CommandSubject, Id, InstanceDeleted, InstanceEnd, InstanceStopped};
use ssntp::proto::{Command, Frame};
use ssntp_transport::excerpt;

const SIGKILL: i32 = 9;
/// After how long a killed instance that is still there counts as hung.
pub(super) const HUNG: Duration = Duration::from_secs(5);
/// How long the agent waits before it tries again to remove an instance whose retention is
/// over, if its directory could not be removed.
const REMOVED_AGAIN: Duration = Duration::from_secs(60);

impl Control {
    pub(super) fn launched(&mut self, id: Uuid, handle: &RunId, began: u64) {
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        info!(
            "{}: instance {id} runs (process {})",
            self.settings.node, handle.pid
        );
        // A command may have come during the launch. `running` clears it from the record, and
        // `end` below puts it back.
        let after = instance.record.after;
        instance.record = instance.record.running(handle, began);
        self.tally.starts += u64::from(instance.life == Life::Launching(Cause::Start));
        instance.life = Life::Active;
        instance.since = self.now;
        if after != RecordAfter::Nothing {
            self.end(id, after);
        }
        self.next_volume_op(id);
    }

    pub(super) fn not_launched(&mut self, id: Uuid, error: LaunchError) {
        if self.instances.contains_key(&id) {
            let why = format_args!("instance {id} does not start: {error}");
            self.complain("not launched", why);
        }
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        let after = std::mem::take(&mut instance.record.after);
        let Life::Launching(cause) = instance.life else {
            return;
        };
        match cause {
            Cause::Policy => {
                // `end` below needs a stopped instance; `restart_later` sets the time of the
                // next try.
                instance.life = Life::Stopped(Next::StartAgain(self.now));
                match after {
                    RecordAfter::Nothing => self.restart_later(id, &error.why),
                    after => self.end(id, after),
                }
            }
            Cause::Restart => {
                // How and when its last run ended stays in the record.
                instance.record.detail = format!("it was not started again: {}", excerpt(&error));
                self.keep_for_now(id);
                self.save(id);
                self.fail(Command::RESTART, subject(id), &error.into());
                if removes(after) {
                    self.end(id, after);
                }
            }
            Cause::Start => {
                // An evacuation has cancelled it: the scheduler may start it on another node.
                let is_evacuated = self.mode != Mode::Normal
                    && matches!(after, RecordAfter::Evacuate | RecordAfter::Release);
                let (after, refused) = match is_evacuated {
                    true => (RecordAfter::Nothing, "node_maintenance".into()),
                    false => (after, error.into()),
                };
                let restart = instance.start.as_ref().is_some_and(|start| start.start.restart);
                let record = instance.record.clone();
                self.instances.remove(&id);
                let subject = CommandSubject {
                    restart,
                    ..subject(id)
                };
                self.fail(Command::START, subject, &refused);
                // A command to end it that came during the launch is answered, too: the
                // instance is gone.
                self.tell_after(id, after, record);
            }
        }
        self.next_volume_op(id);
        self.announce(true);
    }

    /// Counts a failed START, and remembers its failure: if a new session begins soon, it is
    /// reported again, because the last frames of a session can be lost with it.
    pub(super) fn start_failed(&mut self, instance: Id, word: &'static str, failure: Frame) {
        *self.tally.failures.entry(word).or_default() += 1;
        if self.connected {
            // The oldest is dropped, because its session is most likely to have delivered it.
            if self.failed.len() >= MAX_FAILED {
                self.failed.pop_front();
            }
            let at = self.now;
            self.failed.push_back(Failed {
                at,
                instance,
                failure,
            });
        }
    }

    /// Reports the recent failures of STARTs again. STATS report the instances that run.
    pub(super) fn repeat_failures(&mut self) {
        let now = self.now;
        self.failed
            .retain(|failed| now.saturating_duration_since(failed.at) < REPEATED);
        let again = self.failed.iter().map(|failed| failed.failure.clone());
        self.actions.extend(again.map(Action::Send));
    }

    /// Takes in the end of an instance, which its driver has reported.
    pub(super) fn ended(&mut self, ended: Ended) {
        let id = ended.instance;
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        // The end of an earlier run can be told late; only the present run counts.
        if instance.record.handle().as_ref() != Some(&ended.handle) || !instance.is_running() {
            return;
        }
        let exit = match instance.life {
            // Its supervisor was killed too and left no exit code, but the signal is known.
            Life::Terminating(Ending::Killing | Ending::Killed(_) | Ending::Hung)
                if ended.exit.code.is_none() =>
            {
                Exit {
                    signal: Some(SIGKILL),
                    ..Exit::code(128 + SIGKILL)
                }
            }
            _ => ended.exit,
        };
        info!("{}: instance {id} ended: {exit}", self.settings.node);
        // STATS say `exited` before the restart and after this end. Without these STATS
        // between them, a controller would not see that it ran again.
        if instance.restart_untold {
            self.send_stats();
        }
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        let after = instance.record.after;
        instance.record = instance.record.stopped(exit);
        // Before a job that launches it again.
        if let Some(network) = self.settings.network.clone() {
            self.actions.push(Action::Job(Job::Detach(network, id)));
        }
        // Its memory is free again; its files still use the disk.
        // Otherwise the next START would be refused until the next measurement.
        if self.facts.mem_available_mb >= 0 {
            self.facts.mem_available_mb += instance.usage.memory_mb.max(0);
        }
        instance.usage = Usage {
            disk_mb: instance.usage.disk_mb,
            ..Usage::default()
        };
        // Its disk is measured once more, since it may have written until its end.
        instance.is_measured = false;
        if removes(after) {
            self.remove(id);
        } else {
            instance.life = Life::Stopped(Next::Stay);
            instance.record.after = RecordAfter::Nothing;
            let record = instance.record.clone();
            if after == RecordAfter::Nothing {
                self.restart_or_keep(id, exit);
            }
            self.save(id);
            self.tell_after(id, after, record);
            self.next_volume_op(id);
        }
        self.announce(false);
    }

    /// Ends an instance, if it runs, and then does what `after` says.
    pub(super) fn end(&mut self, id: Uuid, after: RecordAfter) {
        self.end_within(id, after, self.settings.grace);
    }

    /// As [`end`](Self::end); it is killed when it has not ended within `grace`.
    pub(super) fn end_within(&mut self, id: Uuid, after: RecordAfter, grace: Duration) {
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        if let Life::Stopped(Next::StartAgain(_)) = instance.life {
            instance.life = Life::Stopped(Next::Stay);
            if !removes(after) {
                // STATS say `exited` before and after, so only an event can tell.
                let record = instance.record.clone();
                self.save(id);
                self.keep_for_now(id);
                self.tell_after(id, RecordAfter::Evacuate, record);
                return self.stats_soon();
            }
        }
        let before = instance.record.after;
        // A later STOP neither cancels a removal nor the report that EVACUATE wants.
        if removes(after) || (!removes(before) && before != RecordAfter::Evacuate) {
            instance.record.after = after;
        }
        match &mut instance.life {
            Life::Active => {
                // The grace period begins when the worker has asked it: see `signalled`.
                instance.life = Life::Terminating(Ending::Asking(grace));
                // The record is written before the instance is asked to end: the next agent
                // goes on with the command if this one ends in between.
                let running = instance.running();
                self.save(id);
                if let Some((driver, running)) = running {
                    self.job(Job::Terminate(driver, running));
                }
            }
            Life::Terminating(ending) => {
                match ending {
                    // A later command may shorten the grace period, but not extend it.
                    Ending::Asking(before) => *before = grace.min(*before),
                    Ending::Asked(at) => *at = (self.now + grace).min(*at),
                    Ending::Killing | Ending::Killed(_) | Ending::Hung => {}
                }
                self.save(id);
            }
            // Nothing has to end first.
            Life::Stopped(_) if removes(after) => self.remove(id),
            // An evacuation does not wait for images to be copied.
            Life::Launching(_) if removes(after) || after == RecordAfter::Evacuate => {
                instance.cancel.cancel();
            }
            Life::Launching(_) | Life::Stopped(_) | Life::Removing(_) => {}
        }
        self.stats_soon();
    }

    /// Takes in that a worker has sent an instance the signal to end, or to be killed.
    pub(super) fn signalled(&mut self, id: Uuid) {
        if let Some(instance) = self.instances.get_mut(&id)
            && let Life::Terminating(ending) = &mut instance.life
        {
            *ending = match *ending {
                Ending::Asking(grace) => Ending::Asked(self.now + grace),
                Ending::Killing => Ending::Killed(self.now + HUNG),
                ending => ending,
            };
        }
    }

    pub(super) fn save(&mut self, id: Uuid) {
        if let Some(instance) = self.instances.get(&id) {
            let record = instance.record();
            self.job(Job::Save { instance: id, record });
        }
    }

    pub(super) fn remove(&mut self, id: Uuid) {
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.life = Life::Removing(match instance.life {
                Life::Stopped(next) => next,
                _ => Next::Stay,
            });
            let driver = instance.driver.clone();
            let start = instance.start.as_ref();
            let ephemeral = start.map(|start| ephemeral(&start.start)).unwrap_or_default();
            self.job(Job::Remove {
                instance: id,
                driver,
                ephemeral,
            });
        }
    }

    pub(super) fn removed(&mut self, id: Uuid, result: Result<(), String>) {
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        let record = instance.record.clone();
        let after = record.after;
        match result {
            Ok(()) => {
                self.instances.remove(&id);
                self.tell_after(id, after, record);
            }
            Err(why) => {
                warn!("{}: instance {id} can't be removed: {why}", self.settings.node);
                instance.life = Life::Stopped(match instance.life {
                    // No command asked for this, so nobody else would try again.
                    _ if after == RecordAfter::Retire => Next::Delete(self.now + REMOVED_AGAIN),
                    Life::Removing(next) => next,
                    _ => Next::Stay,
                });
                instance.record.after = RecordAfter::Nothing;
                if after == RecordAfter::Delete {
                    // Of the protocol's three reasons this is the only one that does not
                    // claim that the instance is not here.
                    self.fail(Command::DELETE, subject(id), &Refused::invalid(why));
                } else if after != RecordAfter::Retire {
                    // It is stopped at least.
                    self.tell_after(id, after, record);
                }
            }
        }
        self.announce(false);
    }

    /// Sends the event that belongs to a command, with how the last run ended: STATS may never
    /// list the instance as ended.
    fn tell_after(&mut self, id: Uuid, after: RecordAfter, record: Record) {
        let (instance_uuid, end) = (id.into(), end_of(record));
        match after {
            RecordAfter::Nothing | RecordAfter::Keep => {}
            RecordAfter::Delete | RecordAfter::Retire => {
                self.tell(Frame::of(&InstanceDeleted { instance_uuid, end }));
            }
            RecordAfter::Evacuate | RecordAfter::Release => {
                self.tell(Frame::of(&InstanceStopped { instance_uuid, end }));
            }
        }
    }

    /// Does everything that is due.
    pub(super) fn tick(&mut self) {
        let mut kill = Vec::new();
        for (id, instance) in &mut self.instances {
            let Life::Terminating(ending) = &mut instance.life else {
                continue;
            };
            let what = match *ending {
                Ending::Asked(at) if self.now >= at => {
                    *ending = Ending::Killing;
                    instance.record.detail = "it did not end when it was asked to, and was killed".into();
                    "has not ended in time, and is killed"
                }
                Ending::Killed(at) if self.now >= at => {
                    *ending = Ending::Hung;
                    "was killed and does not end: it counts as hung"
                }
                _ => continue,
            };
            warn!("{}: instance {id} {what}", self.settings.node);
            // Collected first, because `job` needs all of `self`.
            kill.extend(instance.running());
        }
        for (driver, running) in kill {
            self.job(Job::Kill(driver, running));
        }
        self.restart_due();
        self.retire();
        self.check_evacuated();
        self.stats_tick();
        if self.has_unsent() && self.now >= self.retry_due {
            if self.announced.is_none() {
                self.announce(true);
            }
            self.send_held();
        }
    }
}

pub(super) fn subject(instance: Uuid) -> CommandSubject {
    CommandSubject {
        instance_uuid: instance.into(),
        ..CommandSubject::default()
    }
}

fn end_of(record: Record) -> InstanceEnd {
    match record.phase {
        RecordPhase::Stopped => InstanceEnd {
            exit_code: record.exit_code.into(),
            exit_signal: record.exit_signal.into(),
            out_of_memory: record.out_of_memory,
            detail: record.detail,
        },
        // It never ran, or nobody saw its end.
        RecordPhase::Starting | RecordPhase::Running => InstanceEnd::default(),
    }
}

fn removes(after: RecordAfter) -> bool {
    matches!(
        after,
        RecordAfter::Delete | RecordAfter::Release | RecordAfter::Retire
    )
}
