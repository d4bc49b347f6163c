//! The life of an instance from its launch to its removal, and the frames that report it.

use std::ops::Bound;
use std::time::Duration;

use log::{info, warn};
use uuid::Uuid;

use super::{Action, Cause, Control, Ending, Failed, Job, Life, MAX_FAILED, Mode, Next, REPEATED, ephemeral};
use crate::driver::{Ended, Exit, LaunchError, RunId, Usage};
use crate::store::{Record, RecordAfter, RecordPhase};
use ssntp::payload::Id;
use ssntp::proto::{Command, Frame};
use ssntp_cluster::refusal::Refused;
use ssntp_payload::{CommandSubject, InstanceDeleted, InstanceEnd, InstanceStopped};
use ssntp_transport::excerpt;

const SIGKILL: i32 = 9;
/// The time after which a killed instance that has not ended counts as hung.
pub(super) const HUNG: Duration = Duration::from_secs(5);
/// The pause before the agent tries again to remove an instance whose retention is over, if its
/// directory could not be removed.
const REMOVED_AGAIN: Duration = Duration::from_secs(60);
/// The maximum number of records that are saved again at a time. More would delay the other jobs of the
/// workers.
const SAVED_AGAIN: usize = 128;

impl Control {
    pub(super) fn launched(&mut self, id: Uuid, handle: &RunId, began: u64) {
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        info!(
            "{}: instance {id} runs (process {})",
            self.settings.node, handle.pid
        );
        // A command to end the instance may have arrived during the launch. `running` clears it from
        // the record, and `end` below restores it.
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
                // `end` below expects a stopped instance; `restart_later` sets the time of the next
                // try.
                instance.life = Life::Stopped(Next::StartAgain(self.now));
                match after {
                    RecordAfter::Nothing => self.restart_later(id, &error.why),
                    after => self.end(id, after),
                }
            }
            Cause::Restart => {
                // The record keeps the end of the last run.
                instance.record.detail = format!("it was not started again: {}", excerpt(&error));
                let subject = CommandSubject {
                    command_id: std::mem::take(&mut instance.command_id),
                    ..subject(id)
                };
                self.keep_for_now(id);
                self.save(id);
                self.fail(Command::RESTART, subject, &error.into());
                if removes(after) {
                    self.end(id, after);
                }
            }
            Cause::Start => {
                // If an evacuation has cancelled the launch, the scheduler may start the instance on
                // another node.
                let is_evacuated = self.mode != Mode::Normal
                    && matches!(after, RecordAfter::Evacuate | RecordAfter::Release);
                let (after, refused) = match is_evacuated {
                    true => (RecordAfter::Nothing, "node_maintenance".into()),
                    false => (after, error.into()),
                };
                let restart = instance.start.as_ref().is_some_and(|start| start.start.restart);
                let record = instance.record.clone();
                let command_id = std::mem::take(&mut instance.command_id);
                self.instances.remove(&id);
                let subject = CommandSubject {
                    restart,
                    command_id,
                    ..subject(id)
                };
                self.fail(Command::START, subject, &refused);
                // The instance is gone, which also answers a command to end it that arrived during
                // the launch.
                self.report_after(id, after, record);
            }
        }
        self.next_volume_op(id);
        self.announce(true);
    }

    /// Counts a failed START, and keeps its failure for a new session that begins soon, because the
    /// last frames of a session can be lost with it.
    pub(super) fn start_failed(&mut self, instance: Id, word: &'static str, failure: Frame) {
        *self.tally.failures.entry(word).or_default() += 1;
        if self.connected {
            // The oldest failure is dropped, because it is the most likely to have been delivered.
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

    /// Reports recent failures of STARTs again. STATS report the STARTs that succeeded.
    pub(super) fn repeat_failures(&mut self) {
        let now = self.now;
        self.failed
            .retain(|failed| now.saturating_duration_since(failed.at) < REPEATED);
        let again = self.failed.iter().map(|failed| failed.failure.clone());
        self.actions.extend(again.map(Action::Send));
    }

    /// Handles the end of an instance, which its driver has reported.
    pub(super) fn ended(&mut self, ended: Ended) {
        let id = ended.instance;
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        // The end of an earlier run can be reported late. Only the end of the present run counts.
        if instance.record.handle().as_ref() != Some(&ended.handle) || !instance.is_running() {
            return;
        }
        let exit = match instance.life {
            // The supervisor was killed as well and wrote no exit code, but the signal is known.
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
        // STATS report `exited` before the restart and after this end. Without STATS in between, a
        // controller would not see that the instance ran again.
        if instance.restart_unreported {
            self.send_stats();
        }
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        let after = instance.record.after;
        instance.record = instance.record.stopped(exit);
        // The job is given before one that launches the instance again, which makes a new interface.
        if let Some(network) = self.settings.network.clone() {
            self.actions.push(Action::Job(Job::Detach(network, id)));
        }
        // Its memory is free again, while its files still use the disk. If the memory were counted
        // only by the next measurement, STARTs would be refused until then.
        if self.facts.mem_available_mb >= 0 {
            self.facts.mem_available_mb += instance.usage.memory_mb.max(0);
        }
        instance.usage = Usage {
            disk_mb: instance.usage.disk_mb,
            ..Usage::default()
        };
        // The disk is measured once more, because the instance may have written until its end.
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
            self.report_after(id, after, record);
            self.next_volume_op(id);
        }
        self.announce(false);
    }

    /// Ends an instance, if it runs, and then takes the step `after`.
    pub(super) fn end(&mut self, id: Uuid, after: RecordAfter) {
        self.end_within(id, after, self.settings.grace);
    }

    /// Like [`end`](Self::end), with its own grace period, after which the instance is killed.
    pub(super) fn end_within(&mut self, id: Uuid, after: RecordAfter, grace: Duration) {
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        if let Life::Stopped(Next::StartAgain(_)) = instance.life {
            instance.life = Life::Stopped(Next::Stay);
            if !removes(after) {
                // STATS report `exited` before and after, so only an event shows the change.
                let record = instance.record.clone();
                self.save(id);
                self.keep_for_now(id);
                self.report_after(id, RecordAfter::Evacuate, record);
                return self.stats_soon();
            }
        }
        let before = instance.record.after;
        // A later STOP cancels neither a removal nor the InstanceStopped of an EVACUATE.
        if removes(after) || (!removes(before) && before != RecordAfter::Evacuate) {
            instance.record.after = after;
        }
        match &mut instance.life {
            Life::Active => {
                // The grace period begins when the worker has sent the signal: see `signalled`.
                instance.life = Life::Terminating(Ending::Asking(grace));
                // The record is written before the instance is asked to end, so that the next agent
                // continues the command if this agent ends in between.
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
            Life::Stopped(_) if removes(after) => self.remove(id),
            // An evacuation does not wait until an image is copied.
            Life::Launching(_) if removes(after) || after == RecordAfter::Evacuate => {
                instance.cancel.cancel();
            }
            Life::Launching(_) | Life::Stopped(_) | Life::Removing(_) => {}
        }
        self.stats_soon();
    }

    /// Begins the time limit after a worker has sent the signal that asks or kills an instance.
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

    /// Saves the records again that could not be saved, for example because the disk was full. A
    /// launch and a removal under way write or remove the record themselves, and a record that is
    /// saved after them would be an older one.
    pub(super) fn save_again(&mut self) {
        if self.settings.state.is_none() {
            return;
        }
        // Those after the last one come first, because records that fail each time would otherwise keep
        // all later ones from being saved.
        let last = self.saved_again;
        let later = self.unsaved.range((Bound::Excluded(last), Bound::Unbounded));
        let ids = later.chain(self.unsaved.range(..=last));
        let ids: Vec<_> = ids.take(SAVED_AGAIN).copied().collect();
        for id in ids {
            self.unsaved.remove(&id);
            self.saved_again = id;
            let life = self.instances.get(&id).map(|instance| instance.life);
            if !matches!(life, Some(Life::Launching(_) | Life::Removing(_))) {
                self.save(id);
            }
        }
        if std::mem::take(&mut self.unsaved_node) {
            self.save_node();
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
        if let Err(why) = &result {
            warn!("{}: instance {id} can't be removed: {why}", self.settings.node);
        }
        // An instance of a former agent that never ran is removed without an entry, and a second START
        // may have made an entry since.
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        let Life::Removing(next) = instance.life else {
            return;
        };
        let record = instance.record.clone();
        let after = record.after;
        match result {
            Ok(()) => {
                self.instances.remove(&id);
                self.report_after(id, after, record);
            }
            Err(why) => {
                instance.life = Life::Stopped(match after {
                    // No command asked for this removal, so no command would try it again.
                    RecordAfter::Retire => Next::Delete(self.now + REMOVED_AGAIN),
                    _ => next,
                });
                instance.record.after = RecordAfter::Nothing;
                if after == RecordAfter::Delete {
                    // Of the protocol's three reasons, `invalid_data` is the only one that does not
                    // claim that the instance is gone.
                    self.fail(Command::DELETE, subject(id), &Refused::invalid(why));
                } else if after != RecordAfter::Retire {
                    // The instance was not removed, but it has stopped.
                    self.report_after(id, after, record);
                }
            }
        }
        self.announce(false);
    }

    /// Sends the event that belongs to the step `after`. The event has the end of the last run,
    /// because the instance may be removed before STATS list it as ended.
    fn report_after(&mut self, id: Uuid, after: RecordAfter, record: Record) {
        let (instance_uuid, end) = (id.into(), end_of(record));
        match after {
            RecordAfter::Nothing | RecordAfter::Keep => {}
            RecordAfter::Delete | RecordAfter::Retire => {
                self.report(Frame::of(&InstanceDeleted { instance_uuid, end }));
            }
            RecordAfter::Evacuate | RecordAfter::Release => {
                self.report(Frame::of(&InstanceStopped { instance_uuid, end }));
            }
        }
    }

    /// Performs all actions whose time has come.
    pub(super) fn tick(&mut self) {
        let mut kill = Vec::new();
        for (id, instance) in &mut self.instances {
            let Life::Terminating(ending) = &mut instance.life else {
                continue;
            };
            let event = match *ending {
                Ending::Asked(at) if self.now >= at => {
                    *ending = Ending::Killing;
                    instance.record.detail = "it did not end when it was asked to, and was killed".into();
                    "has not ended within the grace period, and is killed"
                }
                Ending::Killed(at) if self.now >= at => {
                    *ending = Ending::Hung;
                    "was killed and has not ended: it counts as hung"
                }
                _ => continue,
            };
            warn!("{}: instance {id} {event}", self.settings.node);
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
        // The instance never ran, or its end is unknown.
        RecordPhase::Starting | RecordPhase::Running => InstanceEnd::default(),
    }
}

fn removes(after: RecordAfter) -> bool {
    matches!(
        after,
        RecordAfter::Delete | RecordAfter::Release | RecordAfter::Retire
    )
}
