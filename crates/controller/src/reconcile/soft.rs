//! The state of the reconciler that is not stored. A new process begins without it; the only effect
//! is that some pauses and graces begin again.

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use super::{Answer, Now, Seen, Status};
use crate::model::{Instance, InstanceState, State};

/// The pause of a slot after its first failure. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// The time after which the failure of an instance counts as the first one again.
const LONG_ENOUGH: Duration = Duration::from_secs(60);

/// The time for which another controller counts as the master before this one tries again.
const BACKUP: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Soft {
    session: u64,
    pub(super) answers: Vec<(Uuid, Answer)>,
    /// The STARTs and queries without an answer, by their instances.
    pub(super) unanswered: BTreeMap<Uuid, Unanswered>,
    /// The nodes of known instances that are away, and the times since which they are.
    pub(super) away: BTreeMap<Uuid, Duration>,
    /// The times since which instances have been alive in the view.
    pub(super) alive: BTreeMap<Uuid, Duration>,
    /// The DELETEs that were sent: the time at which the next one is due, and their number.
    pub(super) deletes: BTreeMap<Uuid, (Duration, u32)>,
    pub(super) health: BTreeMap<Uuid, Health>,
    /// The `since` of each instance, and the time at which this process first met that value.
    known: BTreeMap<Uuid, (i64, Duration)>,
    pub(super) slots: BTreeMap<(String, u32), Slot>,
    pub(super) progress: BTreeMap<String, Progress>,
    pub(super) problems: BTreeMap<String, String>,
    pub(super) status: BTreeMap<String, Status>,
    /// The time until which another controller counts as the master.
    pub(super) backup_until: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Unanswered {
    pub(super) session: u64,
    pub(super) at: Duration,
    /// True for a query: if the scheduler does not have the instance, no start has failed.
    pub(super) is_query: bool,
}

/// The outcome of the health checks of an instance.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Health {
    pub(super) has_passed: bool,
    failures: u32,
    pub(super) is_bad: bool,
}

/// A slot whose instance has failed: the number of failures in a row, and the time at which the slot
/// may be filled again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub(super) attempt: u32,
    pub(super) not_before: Duration,
}

/// The progress of the roll-out of a version: the number of available instances, and the time since
/// which it has not grown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) version: u64,
    pub(super) available: usize,
    pub(super) since: Duration,
}

impl Soft {
    /// Drops what the present view, the time or the stored state makes obsolete.
    pub(super) fn begin(&mut self, state: &State, seen: &Seen, now: Now) {
        let is_new = self.session != seen.session;
        if is_new {
            self.session = seen.session;
            // Agents reconnect one after the other, so the grace of each begins again.
            self.away.clear();
            self.deletes.clear();
        }
        // A plan that could not be written leaves the STARTs of its new instances here.
        self.unanswered
            .retain(|uuid, _| state.instances.contains_key(uuid));
        self.away.retain(|node, _| !seen.nodes.contains(node));
        let is_alive = |uuid: &Uuid| seen.instances.get(uuid).is_some_and(|i| i.ended.is_none());
        self.alive.retain(|uuid, _| is_alive(uuid));
        // The checks of an instance begin anew when its node returns.
        let is_on_node = |uuid: &Uuid| {
            let instance = seen.instances.get(uuid);
            instance.is_some_and(|instance| seen.nodes.contains(&instance.node))
        };
        self.health.retain(|uuid, _| is_on_node(uuid));
        let was_backup = self.backup_until.is_some_and(|until| now.elapsed >= until);
        if was_backup {
            self.backup_until = None;
        }
        // No roll-out can advance without a session or while this controller is a backup, so that
        // time does not count for the deadline of a step.
        if is_new || was_backup {
            for progress in self.progress.values_mut() {
                progress.since = now.elapsed;
            }
        }
    }

    pub(super) fn follow_master(&mut self, now: Now) {
        self.backup_until = Some(now.elapsed + BACKUP);
    }

    pub(super) fn checked(&mut self, instance: Uuid, is_healthy: bool, limit: u32) {
        let health = self.health.entry(instance).or_default();
        match is_healthy {
            true => {
                health.has_passed = true;
                health.failures = 0;
            }
            false => health.failures = health.failures.saturating_add(1),
        }
        health.is_bad = health.failures >= limit;
    }

    /// Begins a pause for the slot of an instance that has failed.
    pub(super) fn failed(&mut self, instance: &Instance, why: &str, now: Now) {
        let alive = self.alive.get(&instance.uuid);
        let was_long = alive.is_some_and(|since| now.elapsed.saturating_sub(*since) >= LONG_ENOUGH);
        let before = if was_long { 0 } else { instance.attempt };
        // The shift is bounded, because 2 to the power of 9 seconds exceed the longest pause.
        let pause = FIRST_PAUSE.saturating_mul(1 << before.min(9)).min(LONGEST_PAUSE);
        let slot = Slot {
            attempt: before.saturating_add(1),
            not_before: now.elapsed + pause,
        };
        self.slots
            .insert((instance.workload.clone(), instance.slot), slot);
        self.problems.insert(instance.workload.clone(), why.to_owned());
    }

    /// The time for which an instance has been alive in the view.
    pub(super) fn alive_for(&mut self, instance: &Instance, now: Now) -> Duration {
        debug_assert_eq!(instance.state, InstanceState::Running);
        let since = self.alive.entry(instance.uuid).or_insert(now.elapsed);
        now.elapsed.saturating_sub(*since)
    }

    /// The time for which an instance has been in its state, as far as this process knows. The stored
    /// `since` is not used, because the clock of the time of day may jump.
    pub(super) fn age(&mut self, instance: &Instance, now: Now) -> Duration {
        let present = (instance.since, now.elapsed);
        let known = self.known.entry(instance.uuid).or_insert(present);
        if known.0 != instance.since {
            *known = present;
        }
        now.elapsed.saturating_sub(known.1)
    }

    pub(super) fn forget(&mut self, instance: Uuid) {
        self.known.remove(&instance);
        self.unanswered.remove(&instance);
        self.alive.remove(&instance);
        self.deletes.remove(&instance);
        self.health.remove(&instance);
    }

    pub(super) fn forget_failures(&mut self, workload: &str) {
        self.slots.retain(|(of, _), _| of != workload);
        self.problems.remove(workload);
    }

    pub(super) fn forget_workload(&mut self, name: &str) {
        self.forget_failures(name);
        self.progress.remove(name);
        self.status.remove(name);
    }
}
