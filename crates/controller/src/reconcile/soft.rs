//! What the reconciler remembers until its process ends. A new process begins without it, and
//! only waits a little longer here and there.

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use super::{Answer, Now, Seen, Status};
use crate::model::{Instance, InstanceState};

/// The pause after the first failure of a slot. Each further one is twice as long, up to the
/// longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// An instance that has run for this time is no failed attempt when it ends.
const LONG_ENOUGH: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Soft {
    session: u64,
    pub(super) answers: Vec<(Uuid, Answer)>,
    /// The STARTs and questions that are not answered.
    pub(super) asked: BTreeMap<Uuid, Asked>,
    /// Since when the nodes of known instances are away.
    pub(super) away: BTreeMap<Uuid, Duration>,
    /// Since when instances have been seen alive.
    pub(super) alive: BTreeMap<Uuid, Duration>,
    /// The DELETEs that were sent: when the next one is due, and how many there were.
    pub(super) deletes: BTreeMap<Uuid, (Duration, u32)>,
    pub(super) health: BTreeMap<Uuid, Health>,
    /// Since when instances have been known as they are, with the time that they say themselves.
    known: BTreeMap<Uuid, (i64, Duration)>,
    pub(super) slots: BTreeMap<(String, u32), Slot>,
    pub(super) progress: BTreeMap<String, Progress>,
    pub(super) problems: BTreeMap<String, String>,
    pub(super) status: BTreeMap<String, Status>,
    /// Until when another controller counts as the master.
    pub(super) backup_until: Option<Duration>,
}

/// A START or a question without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) session: u64,
    pub(super) at: Duration,
    /// Whether it was only a question: then nothing failed if the instance is not there.
    pub(super) is_question: bool,
}

/// What checks have found out about an instance.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Health {
    pub(super) has_passed: bool,
    failures: u32,
    pub(super) is_bad: bool,
}

/// A slot whose instance has failed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub(super) attempt: u32,
    pub(super) not_before: Duration,
}

/// How far the roll-out of a version has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) version: u64,
    pub(super) available: usize,
    pub(super) since: Duration,
}

impl Soft {
    /// Takes in what is seen before a step.
    pub(super) fn begin(&mut self, seen: &Seen, now: Now) {
        if self.session != seen.session {
            self.session = seen.session;
            // Agents reconnect at their own pace, so each gets its grace anew.
            self.away.clear();
            self.deletes.clear();
        }
        self.away.retain(|node, _| !seen.nodes.contains(node));
        let is_alive = |uuid: &Uuid| seen.instances.get(uuid).is_some_and(|i| i.ended.is_none());
        self.alive.retain(|uuid, _| is_alive(uuid));
        if self.backup_until.is_some_and(|until| now.elapsed >= until) {
            self.backup_until = None;
        }
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

    /// The slot of an instance that has failed waits before it is filled again.
    pub(super) fn failed(&mut self, instance: &Instance, why: &str, now: Now) {
        let alive = self.alive.get(&instance.uuid);
        let was_long = alive.is_some_and(|since| now.elapsed.saturating_sub(*since) >= LONG_ENOUGH);
        let before = if was_long { 0 } else { instance.attempt };
        let pause = FIRST_PAUSE.saturating_mul(1 << before.min(9)).min(LONGEST_PAUSE);
        let slot = Slot {
            attempt: before.saturating_add(1),
            not_before: now.elapsed + pause,
        };
        self.slots
            .insert((instance.workload.clone(), instance.slot), slot);
        self.problems.insert(instance.workload.clone(), why.to_owned());
    }

    /// For how long an instance has been seen alive.
    pub(super) fn alive_for(&mut self, instance: &Instance, now: Now) -> Duration {
        debug_assert_eq!(instance.state, InstanceState::Running);
        let since = self.alive.entry(instance.uuid).or_insert(now.elapsed);
        now.elapsed.saturating_sub(*since)
    }

    /// For how long this process has known an instance as it is. The time of day is not asked,
    /// because its clock may jump.
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
        self.asked.remove(&instance);
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
