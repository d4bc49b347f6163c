//! Fills slots, and rolls versions out.
//!
//! Each slot has at most one wanted instance. An instance that is no longer wanted blocks its slot
//! until it is gone, or until its node has been away for longer than the grace. So an instance and
//! its replacement never run at the same time, as far as the controller can know.
//!
//! The slots of the *surge* follow those of the count. Each is filled while an instance of the count waits
//! to be replaced, and emptied when enough others are available without it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ssntp::payload::Id;
use ssntp_payload::HealthState;
use uuid::Uuid;

use super::input::Seen;
use super::observe::{Stranger, failed, is_over};
use super::plan::{Command, Draft};
use super::soft::{Soft, Status};
use crate::model::{
    Event, Instance, InstanceState, Rollout, RolloutState, Spread, Workload, Write, tenant_of,
};

/// The maximum number of instances that are started at a time, because the scheduler holds a bounded number.
const MOST_STARTING: usize = 256;
/// The maximum number of instances of one workload that are started at a time, so that a workload with slow
/// images does not block the others.
const MOST_STARTING_OF_ONE: usize = 64;
/// The number of failed instances of a slot that stay on their nodes, and the time for which they do.
const EVIDENCE: usize = 3;
const EVIDENCE_MS: i64 = 7 * 86_400_000;
/// The maximum number of siblings from which a new instance is kept apart. A scheduler heeds no more.
const MOST_SIBLINGS: usize = 64;
/// The time after the first DELETE after which an instance that its node still lists counts as one that
/// hangs. Then the roll-out goes on without its slot.
const STUCK: Duration = Duration::from_secs(60);

/// The time within which a node that makes checks has told the health of an instance that runs.
const TOLD: Duration = Duration::from_secs(30);

type Slots<'a> = BTreeMap<u32, Vec<&'a Instance>>;

/// The status of a slot, after this step.
#[derive(Clone, Copy)]
enum SlotStatus<'a> {
    /// The instance is healthy.
    Healthy(&'a Instance),
    /// The instance has succeeded, and is not replaced.
    Done(&'a Instance),
    /// The instance runs, but has not been healthy for long enough.
    Running(&'a Instance),
    /// The instance runs. It may be healthy or not, and nothing waits for it: its node makes no checks, or
    /// the roll-out replaces it.
    Unproven(&'a Instance),
    /// The instance runs, and its health check fails.
    Unhealthy(&'a Instance),
    /// The slot has no running instance.
    Empty,
    /// The former instance of the slot does not end.
    Stuck(&'a Instance),
}

impl<'a> SlotStatus<'a> {
    /// The instance, if its health check fails.
    fn unhealthy(&self) -> Option<&'a Instance> {
        match self {
            Self::Unhealthy(instance) => Some(instance),
            _ => None,
        }
    }

    /// The instance, if nothing waits for the slot.
    fn available(&self) -> Option<&'a Instance> {
        match self {
            Self::Healthy(instance) | Self::Done(instance) | Self::Unproven(instance) => Some(instance),
            _ => None,
        }
    }
}

/// Adds the commands and changes that bring the cluster one step closer to the desired state.
pub(super) fn decide(
    draft: &mut Draft<'_>,
    soft: &mut Soft,
    strangers: &[Stranger<'_>],
    uuids: &mut dyn FnMut() -> Uuid,
) {
    Decider { draft, soft, uuids }.decide(strangers);
}

struct Decider<'d, 'a> {
    draft: &'d mut Draft<'a>,
    soft: &'d mut Soft,
    uuids: &'d mut dyn FnMut() -> Uuid,
}

impl Decider<'_, '_> {
    fn decide(&mut self, strangers: &[Stranger<'_>]) {
        let (state, none) = (self.draft.state, BTreeMap::new());
        let mut of_workloads: BTreeMap<&str, Slots<'_>> = BTreeMap::new();
        let mut starting = 0;
        for instance in state.instances.values() {
            let slots = of_workloads.entry(&instance.workload).or_default();
            slots.entry(instance.slot).or_default().push(instance);
            starting += usize::from(instance.state == InstanceState::Starting);
        }
        let evidence = self.evidence(&of_workloads);
        for instance in state.instances.values() {
            if !evidence.contains(&instance.uuid) {
                self.clear(instance);
            }
        }
        for Stranger { uuid, seen, .. } in strangers.iter().filter(|stranger| !stranger.has_slot) {
            self.delete(*uuid, seen.node);
        }
        let of_strangers: BTreeSet<_> = strangers.iter().map(|one| one.workload.name.as_str()).collect();
        let mut room = MOST_STARTING.saturating_sub(starting);
        for workload in state.workloads.values() {
            let slots = of_workloads.get(workload.name.as_str()).unwrap_or(&none);
            if workload.deleting {
                self.take_down(workload, slots, !of_strangers.contains(workload.name.as_str()));
            } else if !self.goes_back(workload) {
                self.keep_up(workload, slots, &mut room);
            }
        }
    }

    /// The last failed instances of each slot. They stay on their nodes, with their output, so that a
    /// user can see why they failed. An instance with volumes or an address of its own is not kept, because its
    /// successor needs them. Those of a tenant hold addresses of its network, so none is kept while an instance
    /// of the tenant has no place.
    fn evidence(&self, of_workloads: &BTreeMap<&str, Slots<'_>>) -> BTreeSet<Uuid> {
        let mut evidence = BTreeSet::new();
        let tenants = self.tenants_without_place(of_workloads);
        let is_held_back = |workload: &Workload| {
            let tenant = tenant_of(&workload.spec.start);
            tenant.is_some_and(|tenant| tenants.contains(&tenant))
        };
        let workloads = self.draft.state.workloads.values();
        for workload in workloads.filter(|workload| !workload.deleting && !is_held_back(workload)) {
            let slots = of_workloads.get(workload.name.as_str()).into_iter().flatten();
            for (_, of_slot) in slots.filter(|(slot, _)| **slot <= workload.spec.slots()) {
                let is_failed = |instance: &&&Instance| {
                    let age = self.draft.now.unix_ms.saturating_sub(instance.since);
                    !instance.wanted && holds_nothing(workload, instance) && age < EVIDENCE_MS
                };
                let mut failed: Vec<_> = of_slot.iter().filter(is_failed).collect();
                failed.sort_by_key(|instance| std::cmp::Reverse((instance.since, instance.uuid)));
                evidence.extend(failed.iter().take(EVIDENCE).map(|instance| instance.uuid));
            }
        }
        evidence
    }

    /// The tenants with a slot that is empty because the cluster had no place for its instance.
    fn tenants_without_place(&self, of_workloads: &BTreeMap<&str, Slots<'_>>) -> BTreeSet<String> {
        let is_empty = |(workload, slot): &(&str, u32)| {
            let of_slot = of_workloads.get(workload).and_then(|slots| slots.get(slot));
            !of_slot.is_some_and(|of_slot| of_slot.iter().any(|instance| instance.wanted))
        };
        let workloads = &self.draft.state.workloads;
        let empty = self.soft.without_place().filter(is_empty);
        let empty = empty.filter_map(|(name, slot)| {
            let workload = workloads.get(name)?;
            (slot <= workload.spec.slots()).then(|| tenant_of(&workload.spec.start))?
        });
        empty.collect()
    }

    /// Deletes an instance that is not wanted, or queries a starting instance that no node lists.
    fn clear(&mut self, instance: &Instance) {
        let (now, uuid) = (self.draft.now, instance.uuid);
        if let Some(seen) = self.draft.seen.instances.get(&uuid) {
            let is_wanted = instance.wanted && self.draft.workload_of(instance).is_some();
            let node = seen.node;
            if !is_wanted && self.draft.is_current(node) {
                self.delete(uuid, node);
            }
        } else if instance.state == InstanceState::Starting && !self.soft.is_awaited(instance, now) {
            self.soft.sent(uuid, true, now);
            self.draft.send(Command::Ask(uuid));
        }
    }

    /// Sends the DELETE of an instance, if one is due.
    fn delete(&mut self, instance: Uuid, node: Uuid) {
        if self.soft.delete(instance, self.draft.now) {
            self.draft.send(Command::Delete { instance, node });
        }
    }

    /// Deletes the instances of a deleted workload, and the workload once none of them is reachable. `is_over` is
    /// false while nodes list others with its labels.
    fn take_down(&mut self, workload: &Workload, slots: &Slots<'_>, mut is_over: bool) {
        for instance in slots.values().flatten() {
            if instance.wanted {
                self.draft
                    .mark_unwanted(instance, "ended", "is deleted with its workload");
            }
            let is_away = instance.node.is_some_and(|node| !self.draft.is_current(node));
            is_over &= (is_away || instance.state == InstanceState::Lost) && !instance.wanted;
        }
        if is_over {
            let text = format!("workload {} is gone", workload.name);
            self.draft.write(Event::of_workload("deleted", workload, text));
            self.draft.write(Write::WorkloadGone(workload.name.clone()));
        }
    }

    /// Goes back to the last stable version if the new one fails. Returns true if it does.
    fn goes_back(&mut self, workload: &Workload) -> bool {
        let Rollout { failures, why, .. } = &workload.rollout;
        let update = &workload.spec.update;
        let stable = workload.stable.filter(|stable| *stable != workload.version);
        let stable =
            stable.filter(|stable| workload.is_under_way() && workload.version_of(*stable).is_some());
        let Some(stable) = stable else {
            return false;
        };
        let limit = Duration::from_secs(update.deadline_s.into());
        let stuck = self
            .soft
            .stuck_for(&workload.name, workload.version, self.draft.now);
        let is_late = stuck.is_some_and(|stuck| stuck >= limit);
        let reason = if *failures >= update.max_failures {
            format!("{failures} instances failed, the last one: {why}")
        } else if is_late {
            format!(
                "no further instance became healthy within {} s",
                update.deadline_s
            )
        } else {
            return false;
        };
        let from = workload.version;
        let text = format!(
            "version {from} of {} goes back to version {stable}: {reason}",
            workload.name
        );
        self.draft.write(Event::of_workload("rollout", workload, text));
        let touched = self.draft.touch(workload);
        touched.go_back(stable, format!("version {from}: {reason}"));
        true
    }

    /// Fills the slots of a workload, and takes the next step of its roll-out.
    fn keep_up(&mut self, workload: &Workload, slots: &Slots<'_>, room: &mut usize) {
        let (count, with_surge) = (workload.spec.count, workload.spec.slots());
        let beyond = slots.range(with_surge + 1..).flat_map(|(_, of_slot)| of_slot);
        for instance in beyond.filter(|instance| instance.wanted) {
            self.not_needed(instance);
        }
        let all = slots.values().flatten();
        let starting = all
            .filter(|instance| instance.state == InstanceState::Starting)
            .count();
        let mut room_here = MOST_STARTING_OF_ONE.saturating_sub(starting).min(*room);
        let at_first = room_here;
        let mut statuses = Vec::new();
        let wanted = slots.values().flatten().filter(|instance| instance.wanted);
        let mut siblings: Vec<_> = wanted.map(|instance| instance.uuid).collect();
        let mut waiting = 0;
        for slot in 1..=with_surge {
            if slot == count + 1 {
                waiting = self.waiting(workload, &statuses);
            }
            let of_slot = slots.get(&slot).map_or(&[][..], Vec::as_slice);
            let mut status = self.slot_status(workload, slot, of_slot);
            let blocking = of_slot
                .iter()
                .find(|instance| !instance.wanted && self.blocks(workload, instance));
            let is_free = blocking.is_none() && !of_slot.iter().any(|instance| instance.wanted);
            if let Some(instance) = blocking.filter(|instance| self.hangs(instance)) {
                status = SlotStatus::Stuck(instance);
            }
            if is_free
                && is_needed(workload, slot, waiting)
                && room_here > 0
                && self.fill(workload, slot, &mut siblings)
            {
                room_here -= 1;
            }
            statuses.push(status);
        }
        let filled = at_first - room_here;
        *room -= filled;
        self.roll(workload, &statuses);
        let status = self.status(workload, &statuses, starting + filled);
        self.soft.set_status(&workload.name, status);
    }

    /// The status of a slot. Marks an instance that has failed as no longer wanted.
    fn slot_status<'b>(
        &mut self,
        workload: &Workload,
        slot: u32,
        of_slot: &[&'b Instance],
    ) -> SlotStatus<'b> {
        let Some(instance) = of_slot.iter().find(|instance| instance.wanted).copied() else {
            return SlotStatus::Empty;
        };
        let is_outdated = instance.version != workload.version_for(slot);
        match instance.state {
            InstanceState::Running => return self.status_of_running(workload, instance),
            InstanceState::Done if is_over(workload, instance) => return SlotStatus::Done(instance),
            // The instance has a former version, so it is not worth waiting for.
            InstanceState::Starting | InstanceState::Failed if is_outdated => {
                self.draft
                    .mark_unwanted(instance, "ended", "has a former version");
            }
            InstanceState::Starting => {}
            _ if is_over(workload, instance) => {}
            // The node may have ended it, which is no failure.
            _ if self.is_to_leave(instance) => self.leave(instance),
            _ => self.replace(instance, &instance.ending),
        }
        SlotStatus::Empty
    }

    fn status_of_running<'b>(&mut self, workload: &Workload, instance: &'b Instance) -> SlotStatus<'b> {
        let seen = self.draft.seen.instances.get(&instance.uuid);
        let Some(seen) = seen.filter(|seen| seen.ended.is_none() && self.draft.is_current(seen.node)) else {
            // Its node does not start it again during maintenance.
            if self.is_to_leave(instance) {
                self.leave(instance);
            }
            return SlotStatus::Empty;
        };
        let is_former = instance.version != workload.version;
        let is_steady = workload.rollout.state == RolloutState::Steady;
        let health = if has_check(workload, instance) {
            &seen.health
        } else {
            &HealthState::Healthy
        };
        // A node that has told nothing for so long makes no checks.
        let is_unchecked =
            *health == HealthState::Unset && self.soft.has_lived(instance.uuid, TOLD, self.draft.now);
        let is_healthy = *health == HealthState::Healthy || is_unchecked;
        let alive = self.soft.alive_for(instance, is_healthy, self.draft.now);
        let is_long = alive >= Duration::from_secs(workload.spec.update.healthy_s.into());
        match health {
            HealthState::Unhealthy => SlotStatus::Unhealthy(instance),
            // During a roll-out, an instance of the new version has to be healthy for a while first.
            HealthState::Healthy if is_steady || is_former || is_long => SlotStatus::Healthy(instance),
            // A steady workload waits for an instance that is starting, and not for one that no node checks.
            HealthState::Starting if is_steady => SlotStatus::Running(instance),
            _ if is_steady || is_former => SlotStatus::Unproven(instance),
            _ => SlotStatus::Running(instance),
        }
    }

    /// True if the node of an instance is being emptied, and another node is in service.
    fn is_to_leave(&self, instance: &Instance) -> bool {
        let Seen {
            nodes,
            in_maintenance,
            ..
        } = self.draft.seen;
        let is_emptied = instance.node.is_some_and(|node| in_maintenance.contains(&node));
        is_emptied && in_maintenance.len() < nodes.len()
    }

    /// The number of instances of the count that wait to be replaced.
    fn waiting(&self, workload: &Workload, of_count: &[SlotStatus<'_>]) -> usize {
        let is_paused = workload.rollout.state == RolloutState::Paused;
        let waits = |status: &&SlotStatus<'_>| match status.available() {
            Some(instance) => {
                (instance.version != workload.version && !is_paused)
                    || (instance.state == InstanceState::Running && self.is_to_leave(instance))
            }
            None => status.unhealthy().is_some(),
        };
        of_count.iter().filter(waits).count()
    }

    fn not_needed(&mut self, instance: &Instance) {
        self.draft
            .mark_unwanted(instance, "ended", "is not needed any more");
    }

    fn leave(&mut self, instance: &Instance) {
        self.draft
            .mark_unwanted(instance, "moved", "leaves its node, which is in maintenance");
    }

    /// The reason why the last check of an instance failed.
    fn unhealthy_because(&self, instance: &Instance) -> &str {
        let seen = self.draft.seen.instances.get(&instance.uuid);
        seen.map(|seen| seen.health_detail.as_str())
            .filter(|why| !why.is_empty())
            .unwrap_or("its health check fails")
    }

    fn replace(&mut self, instance: &Instance, why: &str) {
        let why = if why.is_empty() { "it has ended" } else { why };
        failed(self.draft, self.soft, instance, why, true);
        self.draft
            .mark_unwanted(instance, "failed", &format!("is replaced: {why}"));
    }

    /// True if an instance that is not wanted may still run, or holds what its successor needs.
    fn blocks(&mut self, workload: &Workload, instance: &Instance) -> bool {
        if instance.state == InstanceState::Lost || holds_nothing(workload, instance) {
            return false;
        }
        // A node that is starting it lists it, and the instance is not yet known to be there.
        let seen = self.draft.seen.instances.get(&instance.uuid);
        let Some(node) = instance.node.or(seen.map(|seen| seen.node)) else {
            // No node has listed the instance. Its query is under way.
            return self.soft.may_start(instance, self.draft.now);
        };
        let grace = Duration::from_secs(workload.spec.reschedule.grace_s.into());
        !self.soft.is_away(node, grace, self.draft.now)
    }

    /// True if an instance that is to end does not.
    fn hangs(&self, instance: &Instance) -> bool {
        let seen = self.draft.seen.instances.get(&instance.uuid);
        let is_listed = seen.is_some_and(|seen| self.draft.is_current(seen.node));
        is_listed && self.soft.ending_for(instance.uuid, self.draft.now) >= STUCK
    }

    /// Starts an instance in a free slot, unless the slot is in a pause. Returns true if it does.
    fn fill(&mut self, workload: &Workload, slot: u32, siblings: &mut Vec<Uuid>) -> bool {
        let now = self.draft.now;
        let attempt = self.soft.attempt(&workload.name, slot, now);
        let version = workload.version_of(workload.version_for(slot));
        let (Some(attempt), Some(version)) = (attempt, version) else {
            return false;
        };
        let instance = Instance {
            uuid: (self.uuids)(),
            workload: workload.name.clone(),
            slot,
            version: version.number,
            state: InstanceState::Starting,
            wanted: true,
            attempt,
            since: now.unix_ms,
            ..Instance::default()
        };
        let mut payload = version.template.payload(&workload.name, slot, instance.uuid);
        if workload.spec.spread == Spread::Node {
            // The last ones, because no node has listed them yet.
            let last = siblings.iter().rev().take(MOST_SIBLINGS);
            payload.start.apart_from = last.map(|sibling| Id::from(*sibling)).collect();
            siblings.push(instance.uuid);
        }
        self.soft.sent(instance.uuid, false, now);
        let what = format!("is started with version {}", version.number);
        self.draft.change(instance, "starting", &what);
        self.draft.send(Command::Start(Box::new(payload)));
        true
    }

    fn roll(&mut self, workload: &Workload, statuses: &[SlotStatus<'_>]) {
        let (name, version) = (&workload.name, workload.version);
        let is_new = |instance: &Instance| instance.version == version;
        let is_available = |status: &SlotStatus<'_>| status.available().is_some_and(is_new);
        let mut available = statuses.iter().filter(|status| is_available(status)).count();
        let count = workload.spec.count as usize;
        let (of_count, of_surge) = statuses.split_at(count);
        // The deadline of a step begins again with each further instance that is available, and does not
        // count while all that is left to do waits for instances that hang.
        let is_held = of_count
            .iter()
            .all(|status| matches!(status, SlotStatus::Stuck(_)) || is_available(status));
        let begins_anew = is_held || !workload.is_under_way();
        let now = self.draft.now;
        self.soft.progress(name, version, available, begins_anew, now);
        if of_count.iter().all(is_available) {
            self.soft.recovered(name);
            if workload.rollout.state != RolloutState::Steady {
                let text = format!("version {version} of {name} runs everywhere");
                self.draft.write(Event::of_workload("rollout", workload, text));
                let touched = self.draft.touch(workload);
                // A workload with a count of 0 shows nothing about its version.
                if count > 0 {
                    touched.completed();
                }
                touched.rollout.state = RolloutState::Steady;
                touched.rollout.failures = 0;
            }
        }
        let is_stuck = |status: &&SlotStatus<'_>| matches!(status, SlotStatus::Stuck(_));
        let is_missing = |status: &&SlotStatus<'_>| {
            matches!(
                status,
                SlotStatus::Running(_) | SlotStatus::Empty | SlotStatus::Stuck(_)
            )
        };
        // Each instance of the surge makes up for one that is missing.
        let runs = of_surge.iter().filter(|status| !is_missing(status)).count();
        let limit = workload.spec.update.max_unavailable as usize + runs;
        // Slots that hang do not block the others: one more of these may be missing beside them, if any may be.
        let stuck = of_count.iter().filter(is_stuck).count();
        let beside = limit.max(stuck + limit.min(1));
        let limit_of = |slot| {
            if slot <= workload.spec.count {
                beside
            } else {
                limit
            }
        };
        let mut missing = of_count.iter().filter(is_missing).count();
        let waiting = self.waiting(workload, of_count);
        let mut unhealthy: Vec<_> = statuses.iter().filter_map(SlotStatus::unhealthy).collect();
        // The instances of a slot that failed less often come first.
        unhealthy.sort_by_key(|instance| instance.attempt);
        for instance in unhealthy {
            if missing < limit_of(instance.slot) {
                missing += 1;
                let why = format!("it is unhealthy: {}", self.unhealthy_because(instance));
                self.replace(instance, &why);
            }
        }
        // An old instance, or one whose node is being emptied, is removed only while fewer than the allowed
        // number are missing; the free slot is filled in a later step.
        let is_paused = workload.rollout.state == RolloutState::Paused;
        for (slot, status) in (1..).zip(statuses) {
            let is_surplus = !is_needed(workload, slot, waiting);
            // Nothing counts on an instance that is not available yet.
            if let SlotStatus::Running(instance) = status
                && is_surplus
                && missing <= limit
            {
                self.not_needed(instance);
            }
            let Some(instance) = status.available().filter(|_| missing < limit_of(slot)) else {
                continue;
            };
            if is_surplus {
                self.not_needed(instance);
            } else if !is_new(instance) && !is_paused && slot <= workload.spec.count {
                self.draft
                    .mark_unwanted(instance, "rollout", &format!("makes room for version {version}"));
            } else if instance.state == InstanceState::Running && self.is_to_leave(instance) {
                self.leave(instance);
                // The deadline of a step is for failures, and this is none.
                available -= usize::from(is_new(instance));
                self.soft.progress(name, version, available, true, now);
            } else {
                continue;
            }
            missing += 1;
        }
    }

    fn status(&self, workload: &Workload, statuses: &[SlotStatus<'_>], starting: usize) -> Status {
        let count = |slots: &[SlotStatus<'_>], which: &dyn Fn(&SlotStatus<'_>) -> bool| {
            u32::try_from(slots.iter().filter(|status| which(status)).count()).unwrap_or(u32::MAX)
        };
        let (of_count, of_surge) = statuses.split_at(workload.spec.count as usize);
        let counted = |which: &dyn Fn(&SlotStatus<'_>) -> bool| count(of_count, which);
        let is_unknown = |instance: &Instance| {
            let seen = self.draft.seen.instances.get(&instance.uuid);
            has_check(workload, instance)
                && seen.is_some_and(|seen| seen.health == HealthState::Unset)
                && self.soft.has_lived(instance.uuid, TOLD, self.draft.now)
        };
        let [healthy, unproven, unknown, unhealthy, done] = [
            counted(&|status| matches!(status, SlotStatus::Healthy(_))),
            counted(&|status| matches!(status, SlotStatus::Running(_) | SlotStatus::Unproven(_))),
            counted(&|status| match status {
                SlotStatus::Running(i) | SlotStatus::Unproven(i) => is_unknown(i),
                _ => false,
            }),
            counted(&|status| status.unhealthy().is_some()),
            counted(&|status| matches!(status, SlotStatus::Done(_))),
        ];
        let stuck = statuses.iter().find_map(|status| match status {
            SlotStatus::Stuck(instance) => Some(instance),
            _ => None,
        });
        let problem = if let Some(instance) = stuck {
            Some(format!("{} does not end, and blocks its slot", instance.called()))
        } else if let Some(instance) = statuses.iter().find_map(SlotStatus::unhealthy)
            && healthy + unproven == 0
        {
            let why = self.unhealthy_because(instance);
            Some(format!("all {unhealthy} instances that run are unhealthy: {why}"))
        } else if unknown > 0 {
            Some(format!(
                "the health of {unknown} instances is unknown: their nodes make no checks"
            ))
        } else {
            self.soft.problem(&workload.name)
        };
        Status {
            wanted: workload.spec.count,
            running: healthy + unproven + unhealthy,
            healthy,
            done,
            surge: count(of_surge, &|status| {
                !matches!(status, SlotStatus::Empty | SlotStatus::Stuck(_))
            }),
            outdated: count(statuses, &|status| match status {
                SlotStatus::Healthy(i)
                | SlotStatus::Done(i)
                | SlotStatus::Running(i)
                | SlotStatus::Unproven(i)
                | SlotStatus::Unhealthy(i) => i.version != workload.version,
                SlotStatus::Empty | SlotStatus::Stuck(_) => false,
            }),
            starting: u32::try_from(starting).unwrap_or(u32::MAX),
            problem: problem.filter(|_| healthy + done < workload.spec.count),
        }
    }
}

/// True if a slot is one of the count, or one of the surge that is needed: an instance waits to be replaced, or
/// the slot had the new version when the roll-out was paused.
fn is_needed(workload: &Workload, slot: u32, waiting: usize) -> bool {
    let Rollout { state, slots, .. } = &workload.rollout;
    slot as usize <= workload.spec.count as usize + waiting
        || (*state == RolloutState::Paused && slots.contains(&slot))
}

/// True if an instance has failed and has neither a volume nor an address of its own, which its successor would need.
fn holds_nothing(workload: &Workload, instance: &Instance) -> bool {
    let version = workload.version_of(instance.version);
    instance.state == InstanceState::Failed
        && version.is_some_and(|version| {
            let start = &version.template.start;
            start.storage.is_empty() && start.networking.private_ip.is_empty()
        })
}

/// True if the version of an instance has a health check.
fn has_check(workload: &Workload, instance: &Instance) -> bool {
    let version = workload.version_of(instance.version);
    version.is_some_and(|version| version.template.health.is_some())
}
