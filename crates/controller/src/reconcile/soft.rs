//! The state of the reconciler that is not stored. A new process begins without it; the only effect
//! is that some pauses and graces begin again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use uuid::Uuid;

use super::input::{Answer, Now, Seen};
use crate::model::{Instance, InstanceState, State};

/// The pause of a slot after its first failure. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// The longest pause if the cluster had no place, because others may leave theirs at any time.
const LONGEST_WITHOUT_PLACE: Duration = Duration::from_secs(60);
/// The pause after the first DELETE of an instance. Each further pause is twice as long.
const DELETE_AGAIN: Duration = Duration::from_secs(10);
/// The time after which a query without an answer is repeated.
const QUERY: Duration = Duration::from_secs(30);
/// The time after which an instance is queried if its START has no answer and no node lists it. A
/// scheduler parks a START for at most a minute, and the node has another minute to list it. An
/// instance that its node lists as pending has no such limit.
const START: Duration = Duration::from_secs(180);
/// The time after which the failure of an instance counts as the first one again.
const LONG_ENOUGH: Duration = Duration::from_secs(60);

/// The time for which another controller counts as the master before this one tries again.
const BACKUP: Duration = Duration::from_secs(30);

/// The status of a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The number of instances that the workload should have.
    pub wanted: u32,
    /// The number of slots whose instance runs.
    pub running: u32,
    /// The number of slots whose instance runs and is healthy.
    pub healthy: u32,
    /// The number of slots whose instance has succeeded and is not replaced.
    pub done: u32,
    /// The number of instances that run beyond the count, while others are replaced.
    pub surge: u32,
    /// The number of instances of another version than the present one.
    pub outdated: u32,
    /// The number of instances that are being started.
    pub starting: u32,
    /// The last failure, while an instance is missing.
    pub problem: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Soft {
    session: u64,
    answers: Vec<(Uuid, Answer)>,
    /// The STARTs and queries without an answer, by their instances.
    unanswered: BTreeMap<Uuid, Unanswered>,
    /// The nodes of known instances that are away, and the times since which they are.
    away: BTreeMap<Uuid, Duration>,
    /// The times since which instances have been alive in the view, or were until they ended, and whether they were
    /// healthy at some time.
    alive: BTreeMap<Uuid, (Duration, bool)>,
    deletes: BTreeMap<Uuid, Deletes>,
    /// The `since` of each instance, and the time at which this process first met that value.
    known: BTreeMap<Uuid, (i64, Duration)>,
    slots: BTreeMap<(String, u32), Slot>,
    /// The nodes that took instances at the last step.
    in_service: BTreeSet<Uuid>,
    progress: BTreeMap<String, Progress>,
    problems: BTreeMap<String, String>,
    status: BTreeMap<String, Status>,
    /// The time until which another controller counts as the master.
    backup_until: Option<Duration>,
}

/// A START or a query that was sent.
#[derive(Clone, Copy, Debug)]
struct Unanswered {
    session: u64,
    at: Duration,
    /// True for a query: if the scheduler does not have the instance, no start has failed.
    is_query: bool,
}

/// The DELETEs of an instance that were sent in this session.
#[derive(Clone, Copy, Debug)]
struct Deletes {
    first: Duration,
    next: Duration,
    sent: u32,
}

/// A slot whose instance has failed: the number of failures in a row, and the time at which the slot
/// may be filled again.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    attempt: u32,
    not_before: Duration,
    /// True if the workload caused the failure, false if the cluster had no place for the instance.
    is_its_fault: bool,
    /// True if the START was refused for that, false if an instance is gone from its node.
    had_no_place: bool,
}

/// The progress of the roll-out of a version: the number of available instances, and the time since
/// which it has not grown.
#[derive(Clone, Copy, Debug)]
struct Progress {
    version: u64,
    available: usize,
    since: Duration,
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
        // An instance that is not stored is deleted as well.
        let is_known = |uuid: &Uuid| seen.instances.contains_key(uuid) || state.instances.contains_key(uuid);
        self.deletes.retain(|uuid, _| is_known(uuid));
        // Also if it has ended, so that its failure is known as that of one that ran for long.
        self.alive.retain(|uuid, _| {
            let restarts = seen.instances.get(uuid).is_some_and(|one| one.is_restart_due);
            state.instances.contains_key(uuid) && !restarts
        });
        let in_service: BTreeSet<_> = seen.nodes.difference(&seen.in_maintenance).copied().collect();
        if !in_service.is_subset(&self.in_service) {
            // A further node may have the place that others had not.
            for slot in self.slots.values_mut().filter(|slot| !slot.is_its_fault) {
                slot.not_before = Duration::ZERO;
            }
        }
        self.in_service = in_service;
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

    /// The status of each workload, by its name.
    pub(super) fn status(&self) -> &BTreeMap<String, Status> {
        &self.status
    }

    pub(super) fn set_status(&mut self, workload: &str, status: Status) {
        self.status.insert(workload.to_owned(), status);
    }

    /// The last failure of a workload.
    pub(super) fn problem(&self, workload: &str) -> Option<String> {
        self.problems.get(workload).cloned()
    }

    /// True if another controller was the master within the last 30 s.
    pub(super) fn is_backup(&self, now: Now) -> bool {
        self.backup_until.is_some_and(|until| now.elapsed < until)
    }

    /// Stores an answer for the next plan.
    pub(super) fn answer(&mut self, instance: Uuid, answer: Answer) {
        self.answers.push((instance, answer));
    }

    /// The answers since the last plan.
    pub(super) fn take_answers(&mut self) -> Vec<(Uuid, Answer)> {
        std::mem::take(&mut self.answers)
    }

    /// A START or a query of an instance is sent.
    pub(super) fn sent(&mut self, instance: Uuid, is_query: bool, now: Now) {
        let (session, at) = (self.session, now.elapsed);
        let sent = Unanswered {
            session,
            at,
            is_query,
        };
        self.unanswered.insert(instance, sent);
    }

    /// True if a query of an instance was sent last, or nothing is known of it.
    pub(super) fn was_query(&self, instance: Uuid) -> bool {
        self.unanswered.get(&instance).is_none_or(|sent| sent.is_query)
    }

    /// The START or query of an instance is answered, and what follows from the answer is stored.
    pub(super) fn settled(&mut self, instance: Uuid) {
        self.unanswered.remove(&instance);
        self.answers.retain(|(of, _)| *of != instance);
    }

    /// True if the answer to the START or query of an instance may still arrive.
    pub(super) fn is_awaited(&self, instance: &Instance, now: Now) -> bool {
        self.unanswered.get(&instance.uuid).is_some_and(|sent| {
            // An instance that is no longer wanted only blocks its slot, so it is queried early.
            let is_patient = instance.wanted && !sent.is_query;
            let limit = if is_patient { START } else { QUERY };
            sent.session == self.session && now.elapsed.saturating_sub(sent.at) < limit
        })
    }

    /// True if an instance that no node has listed may still be starting.
    pub(super) fn may_start(&mut self, instance: &Instance, now: Now) -> bool {
        self.age(instance, now) < START
    }

    /// The time for which a node has been away. The first call for a node begins it.
    pub(super) fn away_for(&mut self, node: Uuid, now: Now) -> Duration {
        let since = *self.away.entry(node).or_insert(now.elapsed);
        now.elapsed.saturating_sub(since)
    }

    /// True if a node is known to have been away for as long as a grace.
    pub(super) fn is_away(&self, node: Uuid, grace: Duration, now: Now) -> bool {
        let since = self.away.get(&node);
        since.is_some_and(|since| now.elapsed.saturating_sub(*since) >= grace)
    }

    /// True if a DELETE of an instance is due; then it counts as sent.
    pub(super) fn delete(&mut self, instance: Uuid, now: Now) -> bool {
        let deletes = self.deletes.entry(instance).or_insert(Deletes {
            first: now.elapsed,
            next: now.elapsed,
            sent: 0,
        });
        if deletes.next > now.elapsed {
            return false;
        }
        let pause = DELETE_AGAIN
            .saturating_mul(1 << deletes.sent.min(6))
            .min(LONGEST_PAUSE);
        deletes.next = now.elapsed + pause;
        deletes.sent = deletes.sent.saturating_add(1);
        // If the DELETE overtakes the end of the START, the START may never be answered. So the
        // instance is queried as soon as no node lists it.
        self.unanswered.remove(&instance);
        true
    }

    /// The time since the first DELETE of an instance.
    pub(super) fn ending_for(&self, instance: Uuid, now: Now) -> Duration {
        let deletes = self.deletes.get(&instance);
        deletes.map_or(Duration::ZERO, |deletes| {
            now.elapsed.saturating_sub(deletes.first)
        })
    }

    /// The number of failures in a row of a slot; `None` while the slot is in a pause.
    pub(super) fn attempt(&self, workload: &str, slot: u32, now: Now) -> Option<u32> {
        let failed = self.slots.get(&(workload.to_owned(), slot));
        let failed = failed.copied().unwrap_or_default();
        (failed.not_before <= now.elapsed).then_some(failed.attempt)
    }

    /// The slots, each with the name of its workload, for whose last instance the cluster had no place.
    pub(super) fn without_place(&self) -> impl Iterator<Item = (&str, u32)> {
        let slots = self.slots.iter().filter(|(_, failed)| failed.had_no_place);
        slots.map(|((workload, slot), _)| (workload.as_str(), *slot))
    }

    /// A node has the instance of a slot.
    pub(super) fn has_place(&mut self, instance: &Instance) {
        let slot = self.slots.get_mut(&(instance.workload.clone(), instance.slot));
        if let Some(slot) = slot {
            slot.had_no_place = false;
        }
    }

    /// The time since which the roll-out of a version has made no progress.
    pub(super) fn stuck_for(&self, workload: &str, version: u64, now: Now) -> Option<Duration> {
        let progress = self.progress.get(workload)?;
        (progress.version == version).then(|| now.elapsed.saturating_sub(progress.since))
    }

    /// The number of available instances of a version. Progress is a further one, and `is_new` begins
    /// the time anew in any case.
    pub(super) fn progress(
        &mut self,
        workload: &str,
        version: u64,
        available: usize,
        is_new: bool,
        now: Now,
    ) {
        let known = self.progress.get(workload);
        let is_further = known.is_none_or(|known| known.version != version || known.available < available);
        if is_new || is_further {
            let since = now.elapsed;
            let progress = Progress {
                version,
                available,
                since,
            };
            self.progress.insert(workload.to_owned(), progress);
        }
    }

    /// All instances of a workload are available, so its last failure is over.
    pub(super) fn recovered(&mut self, workload: &str) {
        self.problems.remove(workload);
    }

    pub(super) fn follow_master(&mut self, now: Now) {
        self.backup_until = Some(now.elapsed + BACKUP);
    }

    /// Begins a pause for the slot of an instance that has failed.
    pub(super) fn failed(&mut self, instance: &Instance, why: &str, is_its_fault: bool, now: Now) {
        let alive = self.alive.get(&instance.uuid);
        // An instance that was never healthy has failed at once, however long it ran.
        let was_long = alive.is_some_and(|(since, was_healthy)| {
            *was_healthy && now.elapsed.saturating_sub(*since) >= LONG_ENOUGH
        });
        let before = if was_long { 0 } else { instance.attempt };
        // The shift is bounded, because 2 to the power of 9 seconds exceed the longest pause.
        let longest = if is_its_fault {
            LONGEST_PAUSE
        } else {
            LONGEST_WITHOUT_PLACE
        };
        let pause = FIRST_PAUSE.saturating_mul(1 << before.min(9)).min(longest);
        let slot = Slot {
            attempt: before.saturating_add(1),
            not_before: now.elapsed + pause,
            is_its_fault,
            had_no_place: !is_its_fault && instance.state == InstanceState::Starting,
        };
        self.slots
            .insert((instance.workload.clone(), instance.slot), slot);
        self.problems.insert(instance.workload.clone(), why.to_owned());
    }

    /// The time for which an instance has been alive in the view. Notes whether it is healthy now.
    pub(super) fn alive_for(&mut self, instance: &Instance, is_healthy: bool, now: Now) -> Duration {
        debug_assert_eq!(instance.state, InstanceState::Running);
        let (since, was_healthy) = self.alive.entry(instance.uuid).or_insert((now.elapsed, false));
        *was_healthy |= is_healthy;
        now.elapsed.saturating_sub(*since)
    }

    /// True if an instance has been alive in the view for this time.
    pub(super) fn has_lived(&self, instance: Uuid, time: Duration, now: Now) -> bool {
        let since = self.alive.get(&instance);
        since.is_some_and(|(since, _)| now.elapsed.saturating_sub(*since) >= time)
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
        self.settled(instance);
        self.alive.remove(&instance);
        self.deletes.remove(&instance);
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
