//! The instances of this node: their life from the launch to the removal, and the frames that report it.
//!
//! ```text
//!            START, RESTART      launched              STOP, DELETE, EVACUATE
//!  (nothing) ─────────▶ Launching ─────▶ Active ──────────────▶ Terminating
//!      ▲ ▲                  │ ▲            │ ended by itself         │ ended; killed when
//!      │ └── launch failed ─┘ └ by policy ┐▼                         │ the grace is over
//!      │                                Stopped ◀────────────────────┤ to be kept
//!      │         DELETE, or retention over │                         │ to be removed
//!      └── Removing ◀──────────────────────┴─────────────────────────┘
//! ```
//!
//! It owns every instance and its record. It never knows whether the node is in service or has room: the
//! state machine asks that before it starts an instance.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::{info, warn};
use ssntp::proto::Command;
use ssntp_cluster::refusal::{Reason, Refused};
use ssntp_payload::{CommandSubject, Restart, StartPayload};
use ssntp_transport::excerpt;
use uuid::Uuid;

use super::capacity::Promised;
use super::events::{Action, Job, Settings, StreamOrder, VolumeOp};
use super::instance::{Cause, Instance, LaunchParts, Life, Next};
use super::outputs::{Outputs, subject};
use super::{restarts, retention};
use crate::driver::{Driver, Ended, Health, Measurable, RunId, Usage};
use crate::store::RecordAfter;

/// The pause before the agent tries again to remove an instance whose retention is over, if its
/// directory could not be removed.
const REMOVED_AGAIN: Duration = Duration::from_secs(60);
/// Up to this many instances whose retention is over are not counted in `max_instances` while they are
/// being deleted.
const RETIRING: usize = 256;

/// The maximum number of records that are saved again at a time. More would delay the other jobs of the
/// workers.
const SAVED_AGAIN: usize = 128;

/// The instances of a node.
#[derive(Debug)]
pub(super) struct Instances {
    settings: Arc<Settings>,
    /// The user that CONFIGURE names for instances; empty for none.
    child_user: String,
    all: BTreeMap<Uuid, Instance>,
    /// The instances whose records could not be saved, in the order in which they are saved again.
    unsaved: VecDeque<Uuid>,
    /// The number of instances that were started by START.
    starts: u64,
    /// The number of restarts by the restart policy of an instance.
    restarts: u64,
}

/// The subjects of a measurement, with their driver.
type Subjects = (Arc<dyn Driver>, Vec<Measurable>);

impl Instances {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        Self {
            settings,
            child_user: String::new(),
            all: BTreeMap::new(),
            unsaved: VecDeque::new(),
            starts: 0,
            restarts: 0,
        }
    }

    pub(super) fn get(&self, id: Uuid) -> Option<&Instance> {
        self.all.get(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Uuid, &Instance)> {
        self.all.iter()
    }

    #[cfg(test)]
    pub(super) fn all(&mut self) -> &mut BTreeMap<Uuid, Instance> {
        &mut self.all
    }

    /// The numbers of instances that were started, of restarts by policy, and of records that are not saved.
    pub(super) fn counted(&self) -> (u64, u64, usize) {
        (self.starts, self.restarts, self.unsaved.len())
    }

    /// What the instances were promised. Retained instances do not count for the limit of instances,
    /// because they have a limit of their own. Instances that are being deleted after their retention
    /// count only beyond [`RETIRING`], which a slow disk can cause.
    pub(super) fn promised(&self) -> Promised {
        let mut promised = Promised::default();
        let mut retiring = 0usize;
        for instance in self.all.values() {
            let needs = instance.needs();
            if instance.is_running() {
                promised.mem.add(needs.mem_mb, instance.usage.memory_mb);
            }
            // An ended instance keeps its disk until it is deleted.
            promised.disk.add(needs.disk_mb, instance.usage.disk_mb);
            if instance.is_retiring() {
                retiring += 1;
            } else if instance.kept_until().is_none() {
                promised.places += 1;
            }
        }
        promised.places += retiring.saturating_sub(RETIRING);
        promised
    }

    /// The time of the next [`handle_tick`](Self::handle_tick).
    pub(super) fn next_deadline(&self, may_restart: bool) -> Option<Instant> {
        let deadlines = self.all.values();
        deadlines
            .filter_map(|instance| instance.next_deadline(may_restart))
            .min()
    }

    /// The memory that an instance uses whose present run is `handle`; `None` for any other run, whose
    /// end may be reported late.
    pub(super) fn ends(&self, ended: &Ended) -> Option<&Instance> {
        let instance = self.all.get(&ended.instance)?;
        (instance.is_run(&ended.handle) && instance.is_running()).then_some(instance)
    }

    /// The instances whose restart is due.
    pub(super) fn due_restarts(&self, now: Instant) -> Vec<Uuid> {
        let is_due =
            |instance: &Instance| matches!(instance.life, Life::Stopped(Next::StartAgain(at)) if now >= at);
        let due = self.all.iter().filter(|(_, instance)| is_due(instance));
        due.map(|(id, _)| *id).collect()
    }

    /// From now on, instances are launched as this user; empty for that of the policy.
    pub(super) fn handle_child_user(&mut self, user: &str) {
        user.clone_into(&mut self.child_user);
    }

    /// Adds an instance of a START, and launches it.
    pub(super) fn handle_start(
        &mut self,
        id: Uuid,
        instance: Instance,
        launch: LaunchParts,
        out: &mut Outputs,
    ) {
        instance.launch(launch, &self.child_user, out);
        self.all.insert(id, instance);
    }

    /// Adds an instance of a former agent.
    pub(super) fn handle_adopted(&mut self, id: Uuid, instance: Instance) {
        self.all.insert(id, instance);
    }

    /// Launches an instance again by a RESTART. `changes` are those to its START.
    pub(super) fn handle_restart(
        &mut self,
        id: Uuid,
        command_id: String,
        payload: Arc<StartPayload>,
        changes: Option<Box<Restart>>,
        out: &mut Outputs,
    ) {
        if let Some(instance) = self.all.get_mut(&id) {
            // The last STATS said `exited`. If the instance ends before the next STATS, STATS are sent
            // first.
            instance.restart_unreported = true;
            instance.command_id = command_id;
            // This run was commanded, so its restarts are counted from the beginning.
            instance.record.restarts_in_row = 0;
            instance.launch_again(Cause::Restart, payload, changes, &self.child_user, out);
        }
    }

    /// Launches an instance again by its restart policy.
    pub(super) fn handle_restart_due(&mut self, id: Uuid, payload: Arc<StartPayload>, out: &mut Outputs) {
        if let Some(instance) = self.all.get_mut(&id) {
            // Counted before the launch, because a launch that fails costs the node as much.
            instance.record.restarts = instance.record.restarts.saturating_add(1);
            self.restarts += 1;
            instance.launch_again(Cause::Policy, payload, None, &self.child_user, out);
        }
    }

    /// The restart of an instance is due, and it lacks its START or its driver. It can't be started
    /// again, so no restart is tried.
    pub(super) fn handle_no_restart(&mut self, id: Uuid, out: &mut Outputs) {
        if let Some(instance) = self.all.get_mut(&id) {
            instance.life = Life::Stopped(Next::Stay);
            instance.save(out);
        }
    }

    /// Schedules another try for an instance that could not be started again.
    pub(super) fn handle_restart_refused(&mut self, id: Uuid, why: &str, out: &mut Outputs) {
        if let Some(instance) = self.all.get_mut(&id) {
            instance.handle_restart_refused(why, &self.settings, out);
        }
    }

    /// Continues the restart or the retention of an instance that ended `age` ago, under a former
    /// agent.
    pub(super) fn take_up(&mut self, now: Instant, id: Uuid, age: Duration) {
        let Some(instance) = self.all.get_mut(&id) else {
            return;
        };
        if instance.record.restart_due {
            let wait = restarts::counted_wait(&instance.record);
            instance.life = Life::Stopped(Next::StartAgain(now + wait));
        } else {
            instance.keep(now, &self.settings, age);
        }
    }

    /// The instance runs, since the time `began` in milliseconds since 1970.
    pub(super) fn handle_launched(&mut self, id: Uuid, handle: &RunId, began: u64, out: &mut Outputs) {
        let Some(instance) = self.all.get_mut(&id) else {
            return;
        };
        info!("{}: instance {id} runs (process {})", out.node(), handle.pid);
        // A command to end the instance may have arrived during the launch. `running` clears it from
        // the record, and `end` below restores it.
        let after = instance.record.after;
        instance.record = instance.record.running(handle, began);
        self.starts += u64::from(instance.life == Life::Launching(Cause::Start));
        instance.life = Life::Active;
        instance.since = out.now();
        if after != RecordAfter::Nothing {
            instance.end(after, self.settings.grace, &self.settings, out);
        }
        instance.next_volume_op(out);
    }

    /// A run has this health, which may be told before its launch is over.
    pub(super) fn handle_health(&mut self, id: Uuid, run: RunId, health: Health, out: &mut Outputs) {
        let Some(instance) = self.all.get_mut(&id) else {
            return;
        };
        let before = instance.health.as_ref().map(|(run, health)| (run, &health.state));
        if before != Some((&run, &health.state)) {
            out.wish_stats();
        }
        instance.health = Some((run, health));
    }

    /// The launch of an instance has failed. `is_evacuated` is true if the node is.
    pub(super) fn handle_not_launched(
        &mut self,
        id: Uuid,
        error: Refused,
        is_evacuated: bool,
        out: &mut Outputs,
    ) {
        let Some(instance) = self.all.get_mut(&id) else {
            return;
        };
        let why = format_args!("instance {id} does not start: {error}");
        out.complain("not launched", why);
        let after = std::mem::take(&mut instance.record.after);
        let Life::Launching(cause) = instance.life else {
            return;
        };
        out.act(Action::Stream(StreamOrder::Ended(id)));
        let subject = CommandSubject {
            command_id: std::mem::take(&mut instance.command_id),
            ..subject(id)
        };
        match cause {
            Cause::Policy => {
                // `end` below expects a stopped instance; `handle_restart_refused` sets the time of the
                // next try.
                instance.life = Life::Stopped(Next::StartAgain(out.now()));
                if after == RecordAfter::Nothing {
                    instance.handle_restart_refused(&error.why, &self.settings, out);
                } else {
                    instance.end(after, self.settings.grace, &self.settings, out);
                }
            }
            Cause::Restart => {
                // The record keeps the end of the last run.
                instance.record.detail = format!("it was not started again: {}", excerpt(&error.why));
                instance.keep(out.now(), &self.settings, Duration::ZERO);
                instance.save(out);
                out.fail(Command::RESTART, subject, &error);
                if after.removes() {
                    instance.end(after, self.settings.grace, &self.settings, out);
                }
            }
            Cause::Start => {
                // If an evacuation has cancelled the launch, the scheduler may start the instance on
                // another node.
                let is_moved = is_evacuated && matches!(after, RecordAfter::Evacuate | RecordAfter::Release);
                let (after, refused) = if is_moved {
                    (RecordAfter::Nothing, Reason::NodeMaintenance.into())
                } else {
                    (after, error)
                };
                let restart = instance.start.as_ref().is_some_and(|start| start.start.restart);
                let subject = CommandSubject { restart, ..subject };
                out.fail(Command::START, subject, &refused);
                // The instance is gone, which also answers a command to end it that arrived during
                // the launch.
                instance.report(after, out);
                self.all.remove(&id);
            }
        }
        if let Some(instance) = self.all.get_mut(&id) {
            instance.next_volume_op(out);
        }
        out.wish_status(true);
    }

    /// Handles the end of an instance, which its driver has reported. Call it only for the present run
    /// ([`ends`](Self::ends)).
    pub(super) fn handle_ended(&mut self, ended: Ended, out: &mut Outputs) {
        let id = ended.instance;
        let Some(instance) = self.all.get_mut(&id) else {
            return;
        };
        let (exit, after) = instance.handle_ended(ended.exit);
        info!("{}: instance {id} ended: {exit}", out.node());
        out.act(Action::Stream(StreamOrder::Ended(id)));
        // The job is given before one that launches the instance again, which makes a new interface.
        if self.settings.network.is_some() {
            out.job(Job::Detach(id));
        }
        if after.removes() {
            instance.remove(out);
        } else {
            instance.life = Life::Stopped(Next::Stay);
            instance.record.after = RecordAfter::Nothing;
            if after == RecordAfter::Nothing {
                if out.now().saturating_duration_since(instance.since) >= restarts::HEALTHY {
                    instance.record.restarts_in_row = 0;
                }
                let start = instance.start.as_ref().map(|start| &start.start);
                if restarts::is_wanted(start, &exit) {
                    instance.schedule_restart(&self.settings, out);
                } else {
                    instance.keep(out.now(), &self.settings, Duration::ZERO);
                }
            }
            instance.save(out);
            // A volume command under way goes on, and the next one begins when it is done.
            instance.report(after, out);
        }
        out.wish_status(false);
    }

    /// Ends an instance, if it runs, and then takes the step `after`.
    pub(super) fn end(&mut self, id: Uuid, after: RecordAfter, out: &mut Outputs) {
        if let Some(instance) = self.all.get_mut(&id) {
            instance.end(after, self.settings.grace, &self.settings, out);
        }
    }

    /// Asks all instances to end, and kills those that have not ended within this time.
    pub(super) fn handle_evacuate(&mut self, within: Duration, out: &mut Outputs) {
        for instance in self.all.values_mut().filter(|instance| instance.can_be_stopped()) {
            let after = if instance.is_persistent() {
                RecordAfter::Evacuate
            } else {
                RecordAfter::Release
            };
            instance.end(after, within, &self.settings, out);
        }
    }

    /// Begins the time limit after a worker has sent the signal that asks or kills an instance.
    pub(super) fn handle_signalled(&mut self, now: Instant, id: Uuid) {
        if let Some(instance) = self.all.get_mut(&id) {
            instance.handle_signalled(now);
        }
    }

    /// Kills the instance, because it breaks a rule of its node. Its end keeps this reason.
    pub(super) fn handle_condemned(&mut self, id: Uuid, handle: &RunId, why: &str, out: &mut Outputs) {
        let instance = self.all.get_mut(&id);
        // The reason is not for a later run, which may have begun meanwhile.
        let instance = instance.filter(|it| it.is_up() && it.is_run(handle));
        if let Some(instance) = instance {
            warn!("{}: instance {id}: {why}: it is killed", out.node());
            instance.record.detail = excerpt(why).to_string();
            instance.kill(out);
        }
    }

    /// The record of an instance could not be saved.
    pub(super) fn handle_unsaved(&mut self, id: Uuid, why: &str, out: &mut Outputs) {
        if !self.unsaved.contains(&id) {
            self.unsaved.push_back(id);
        }
        let why = format_args!("instance {id}: its record can't be saved: {why}");
        out.complain("record not saved", why);
    }

    /// A measurement is done: keeps the usages, and saves the records again that could not be saved. A
    /// launch and a removal under way write or remove the record themselves, and a record that is
    /// saved after them would be an older one.
    pub(super) fn handle_measured(&mut self, usages: Vec<(Uuid, Option<RunId>, Usage)>, out: &mut Outputs) {
        for (id, run, usage) in usages {
            // A run that has ended meanwhile uses nothing any more.
            let instance = self.all.get_mut(&id);
            if let Some(instance) = instance.filter(|it| it.record.handle() == run) {
                instance.usage = usage;
            }
        }
        let again = self.unsaved.len().min(SAVED_AGAIN);
        let again: Vec<_> = self.unsaved.drain(..again).collect();
        for instance in again.iter().filter_map(|id| self.all.get(id)) {
            if !matches!(instance.life, Life::Launching(_) | Life::Removing(_)) {
                instance.save(out);
            }
        }
    }

    /// The subjects of a measurement, by driver.
    pub(super) fn begin_measurement(&mut self) -> Vec<Subjects> {
        let mut by_driver = BTreeMap::new();
        for instance in self.all.values_mut() {
            if let Some(driver) = instance.driver.clone()
                && let Some(subject) = instance.begin_measurement()
            {
                let of_driver = by_driver.entry(driver.name());
                let (_, subjects) = of_driver.or_insert_with(|| (driver, Vec::new()));
                subjects.push(subject);
            }
        }
        by_driver.into_values().collect()
    }

    /// STATS were sent with the present states.
    pub(super) fn handle_reported(&mut self) {
        for instance in self.all.values_mut() {
            instance.restart_unreported = false;
        }
    }

    /// A worker has removed an instance, or could not.
    pub(super) fn handle_removed(&mut self, id: Uuid, result: Result<(), String>, out: &mut Outputs) {
        if let Err(why) = &result {
            warn!("{}: instance {id} can't be removed: {why}", out.node());
        }
        // An instance of a former agent that never ran is removed without an entry, and a second START
        // may have made an entry since.
        let Some(instance) = self.all.get_mut(&id) else {
            return;
        };
        let Life::Removing(next) = instance.life else {
            return;
        };
        let after = instance.record.after;
        match result {
            Ok(()) => {
                instance.report(after, out);
                self.all.remove(&id);
            }
            Err(why) => {
                instance.life = Life::Stopped(match after {
                    // No command asked for this removal, so no command would try it again.
                    RecordAfter::Retire => Next::Delete(out.now() + REMOVED_AGAIN),
                    _ => next,
                });
                instance.record.after = RecordAfter::Nothing;
                // The record on the disk has the command that is refused now, and the next agent would continue it.
                instance.save(out);
                if after == RecordAfter::Delete {
                    // Of the protocol's three reasons, `invalid_data` is the only one that does not
                    // claim that the instance is gone.
                    out.fail(Command::DELETE, subject(id), &Refused::invalid(why));
                } else if after != RecordAfter::Retire {
                    // The instance was not removed, but it has stopped.
                    instance.report(after, out);
                }
            }
        }
        out.wish_status(false);
    }

    /// Adds a volume command. The caller has checked the state of the instance.
    ///
    /// # Errors
    /// The volume is attached already, or is not, or too many commands wait.
    pub(super) fn handle_volume(&mut self, id: Uuid, op: VolumeOp, out: &mut Outputs) -> Result<(), Refused> {
        let instance = self.all.get_mut(&id).ok_or(Reason::NoInstance)?;
        // If others wait before it, `handle_volume_done` begins it.
        if instance.volumes.handle_op(op)? {
            instance.next_volume_op(out);
        }
        Ok(())
    }

    /// A worker has done a volume command, or could not.
    pub(super) fn handle_volume_done(
        &mut self,
        id: Uuid,
        op: VolumeOp,
        result: Result<(), Refused>,
        out: &mut Outputs,
    ) {
        if let Err(e) = &result {
            op.refuse(id, e, out);
        }
        if let Some(instance) = self.all.get_mut(&id) {
            instance.volumes.handle_done(op, result.is_ok());
            instance.next_volume_op(out);
        }
    }

    /// Kills instances whose grace period is over, and deletes those whose retention is.
    pub(super) fn handle_tick(&mut self, out: &mut Outputs) {
        for (id, instance) in &mut self.all {
            let Some(event) = instance.handle_tick(out.now()) else {
                continue;
            };
            warn!("{}: instance {id} {event}", out.node());
            instance.kill(out);
        }
        let kept = |(id, instance): (&Uuid, &Instance)| Some((instance.kept_until()?, *id));
        let kept = self.all.iter().filter_map(kept);
        for id in retention::over(out.now(), kept, self.settings.policy.retention_count) {
            info!(
                "{}: the retention of instance {id} is over, and it is deleted",
                out.node()
            );
            if let Some(instance) = self.all.get_mut(&id) {
                // `handle_removed` reads this field: it sends InstanceDeleted, or tries again after an
                // error.
                instance.record.after = RecordAfter::Retire;
                instance.remove(out);
            }
            out.wish_stats();
        }
    }
}
