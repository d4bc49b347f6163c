//! Fills slots, and rolls versions out.
//!
//! Each slot has at most one wanted instance. An instance that is no longer wanted blocks its slot
//! until it is gone, or until its node has been away for longer than the grace. So an instance and
//! its replacement never run at the same time, as far as the controller can know.

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use super::observe::{failed, is_over};
use super::plan::{Command, Draft};
use super::soft::{Soft, Status};
use crate::model::{Instance, InstanceState, Rollout, RolloutState, Workload, Write};

/// The maximum number of instances that are started at a time, because the scheduler holds a bounded number.
const MOST_STARTING: usize = 256;
/// The maximum number of instances of one workload that are started at a time, so that a workload with slow
/// images does not block the others.
const MOST_STARTING_OF_ONE: usize = 64;
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
    /// The slot has no running instance.
    Empty,
}

impl<'a> SlotStatus<'a> {
    /// The instance, if the slot has all that its workload wants of it.
    fn available(&self) -> Option<&'a Instance> {
        match self {
            Self::Healthy(instance) | Self::Done(instance) => Some(instance),
            Self::Running(_) | Self::Empty => None,
        }
    }
}

/// Adds the commands and changes that bring the cluster one step closer to the desired state.
pub(super) fn decide(draft: &mut Draft<'_>, soft: &mut Soft, uuids: &mut dyn FnMut() -> Uuid) {
    Decider { draft, soft }.decide(uuids);
}

struct Decider<'d, 'a> {
    draft: &'d mut Draft<'a>,
    soft: &'d mut Soft,
}

impl Decider<'_, '_> {
    fn decide(&mut self, uuids: &mut dyn FnMut() -> Uuid) {
        let (state, none) = (self.draft.state(), BTreeMap::new());
        let mut of_workloads: BTreeMap<&str, Slots<'_>> = BTreeMap::new();
        let mut starting = 0;
        for instance in state.instances.values() {
            let slots = of_workloads.entry(&instance.workload).or_default();
            slots.entry(instance.slot).or_default().push(instance);
            starting += usize::from(instance.state == InstanceState::Starting);
            self.clear(instance);
        }
        let mut room = MOST_STARTING.saturating_sub(starting);
        for workload in state.workloads.values() {
            let slots = of_workloads.get(workload.name.as_str()).unwrap_or(&none);
            if workload.deleting {
                self.take_down(workload, slots);
            } else if !self.goes_back(workload) {
                self.keep_up(workload, slots, &mut room, uuids);
            }
        }
    }

    /// Deletes an instance that is not wanted, or queries a starting instance that no node lists.
    fn clear(&mut self, instance: &Instance) {
        let (now, uuid) = (self.draft.now(), instance.uuid);
        if let Some(seen) = self.draft.seen().instances.get(&uuid) {
            let is_wanted = instance.wanted && self.draft.workload_of(instance).is_some();
            let node = seen.node;
            if !is_wanted && self.draft.is_current(node) && self.soft.delete(uuid, now) {
                self.draft.send(Command::Delete { instance: uuid, node });
            }
        } else if instance.state == InstanceState::Starting && !self.soft.is_awaited(instance, now) {
            self.soft.sent(uuid, true, now);
            self.draft.send(Command::Ask(uuid));
        }
    }

    /// Deletes the instances of a deleted workload, and the workload once none of them is reachable.
    fn take_down(&mut self, workload: &Workload, slots: &Slots<'_>) {
        let mut is_over = true;
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
            self.draft.workload_event("deleted", &workload.name, text);
            self.draft.write(Write::WorkloadGone(workload.name.clone()));
        }
    }

    /// Goes back to the last stable version if the new one fails. Returns true if it does.
    fn goes_back(&mut self, workload: &Workload) -> bool {
        let Rollout { state, failures, why } = &workload.rollout;
        let update = &workload.spec.update;
        let stable = workload.stable.filter(|stable| *stable != workload.version);
        let Some(stable) = stable.filter(|stable| workload.version_of(*stable).is_some()) else {
            return false;
        };
        let limit = Duration::from_secs(update.deadline_s.into());
        let stuck = self
            .soft
            .stuck_for(&workload.name, workload.version, self.draft.now());
        let is_late = stuck.is_some_and(|stuck| stuck >= limit);
        let reason = match () {
            () if *state != RolloutState::Rolling => return false,
            () if *failures >= update.max_failures => {
                format!("{failures} instances failed, the last one: {why}")
            }
            () if is_late => format!(
                "no further instance became healthy within {} s",
                update.deadline_s
            ),
            () => return false,
        };
        let from = workload.version;
        let text = format!(
            "version {from} of {} goes back to version {stable}: {reason}",
            workload.name
        );
        self.draft.workload_event("rollout", &workload.name, text);
        let touched = self.draft.touch(workload);
        touched.version = stable;
        touched.rollout = Rollout {
            state: RolloutState::Back,
            failures: 0,
            why: format!("version {from}: {reason}"),
        };
        true
    }

    /// Fills the slots of a workload, and takes the next step of its roll-out.
    fn keep_up(
        &mut self,
        workload: &Workload,
        slots: &Slots<'_>,
        room: &mut usize,
        uuids: &mut dyn FnMut() -> Uuid,
    ) {
        let count = workload.spec.count;
        for instance in slots
            .iter()
            .filter(|(slot, _)| **slot > count)
            .flat_map(|(_, of_slot)| of_slot)
        {
            if instance.wanted {
                self.draft
                    .mark_unwanted(instance, "ended", "is not needed any more");
            }
        }
        let all = slots.values().flatten();
        let starting = all
            .filter(|instance| instance.state == InstanceState::Starting)
            .count();
        let mut room_here = MOST_STARTING_OF_ONE.saturating_sub(starting).min(*room);
        let at_first = room_here;
        let mut statuses = Vec::new();
        let mut empty = 0;
        for slot in 1..=count {
            let of_slot = slots.get(&slot).map_or(&[][..], Vec::as_slice);
            let status = self.slot_status(workload, of_slot);
            let is_free = !of_slot
                .iter()
                .any(|instance| instance.wanted || self.blocks(workload, instance));
            if is_free && room_here > 0 && self.fill(workload, slot, uuids) {
                room_here -= 1;
                empty += 1;
            }
            statuses.push(status);
        }
        *room -= at_first - room_here;
        self.roll(workload, &statuses);
        let status = self.status(workload, &statuses, starting + empty);
        self.soft.set_status(&workload.name, status);
    }

    /// The status of a slot. Marks an instance that has failed as no longer wanted.
    fn slot_status<'b>(&mut self, workload: &Workload, of_slot: &[&'b Instance]) -> SlotStatus<'b> {
        let Some(instance) = of_slot.iter().find(|instance| instance.wanted).copied() else {
            return SlotStatus::Empty;
        };
        let is_outdated = instance.version != workload.version;
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
            _ => self.replace(instance, &instance.ending),
        }
        SlotStatus::Empty
    }

    fn status_of_running<'b>(&mut self, workload: &Workload, instance: &'b Instance) -> SlotStatus<'b> {
        let seen = self.draft.seen().instances.get(&instance.uuid);
        if !seen.is_some_and(|seen| seen.ended.is_none() && self.draft.is_current(seen.node)) {
            return SlotStatus::Empty;
        }
        let alive = self.soft.alive_for(instance, self.draft.now());
        let health = self.soft.health(instance.uuid);
        if health.is_bad && workload.spec.health.is_some() {
            self.replace(instance, "its health check fails");
            return SlotStatus::Empty;
        }
        // During a roll-out, an instance of the new version has to be healthy for a while first.
        let is_available = workload.rollout.state == RolloutState::Steady
            || instance.version != workload.version
            || alive >= Duration::from_secs(workload.spec.update.healthy_s.into())
                && (workload.spec.health.is_none() || health.has_passed);
        if is_available {
            SlotStatus::Healthy(instance)
        } else {
            SlotStatus::Running(instance)
        }
    }

    fn replace(&mut self, instance: &Instance, why: &str) {
        let why = if why.is_empty() { "it has ended" } else { why };
        failed(self.draft, self.soft, instance, why, true);
        self.draft
            .mark_unwanted(instance, "failed", &format!("is replaced: {why}"));
    }

    /// True if an instance that is not wanted may still run.
    fn blocks(&mut self, workload: &Workload, instance: &Instance) -> bool {
        if instance.state == InstanceState::Lost {
            return false;
        }
        let Some(node) = instance.node else {
            // No node has listed the instance. Its query is under way.
            return self.soft.may_start(instance, self.draft.now());
        };
        let grace = Duration::from_secs(workload.spec.reschedule.grace_s.into());
        !self.soft.is_away(node, grace, self.draft.now())
    }

    /// Starts an instance in a free slot, unless the slot is in a pause. Returns true if it does.
    fn fill(&mut self, workload: &Workload, slot: u32, uuids: &mut dyn FnMut() -> Uuid) -> bool {
        let now = self.draft.now();
        let attempt = self.soft.attempt(&workload.name, slot, now);
        let (Some(attempt), Some(version)) = (attempt, workload.version_of(workload.version)) else {
            return false;
        };
        let instance = Instance {
            uuid: uuids(),
            workload: workload.name.clone(),
            slot,
            version: workload.version,
            state: InstanceState::Starting,
            wanted: true,
            attempt,
            since: now.unix_ms,
            ..Instance::default()
        };
        let payload = version.template.payload(&workload.name, slot, instance.uuid);
        self.soft.sent(instance.uuid, false, now);
        let what = format!("is started with version {}", workload.version);
        self.draft.change(instance, "starting", &what);
        self.draft.send(Command::Start(Box::new(payload)));
        true
    }

    fn roll(&mut self, workload: &Workload, statuses: &[SlotStatus<'_>]) {
        let (name, version) = (&workload.name, workload.version);
        let is_new = |instance: &Instance| instance.version == version;
        let available = statuses.iter().filter_map(SlotStatus::available);
        let available = available.filter(|instance| is_new(instance)).count();
        // The deadline of a step begins again with each further instance that is available.
        let is_under_way = workload.rollout.state == RolloutState::Rolling;
        let now = self.draft.now();
        self.soft.progress(name, version, available, !is_under_way, now);
        if available == statuses.len() {
            self.soft.recovered(name);
            if workload.rollout.state != RolloutState::Steady {
                self.draft.workload_event(
                    "rollout",
                    name,
                    format!("version {version} of {name} runs everywhere"),
                );
                let touched = self.draft.touch(workload);
                // A workload with a count of 0 shows nothing about its version.
                if available > 0 {
                    touched.stable = Some(version);
                }
                touched.rollout.state = RolloutState::Steady;
                touched.rollout.failures = 0;
            }
        }
        if workload.rollout.state == RolloutState::Paused {
            return;
        }
        let mut missing = statuses
            .iter()
            .filter(|status| status.available().is_none())
            .count();
        // An old instance is removed only while fewer than the allowed number are missing; the free
        // slot is filled in a later step.
        for status in statuses {
            if let Some(instance) = status.available()
                && !is_new(instance)
                && missing < workload.spec.update.max_unavailable as usize
            {
                missing += 1;
                self.draft
                    .mark_unwanted(instance, "rollout", &format!("makes room for version {version}"));
            }
        }
    }

    fn status(&self, workload: &Workload, statuses: &[SlotStatus<'_>], starting: usize) -> Status {
        let counted = |which: &dyn Fn(&SlotStatus<'_>) -> bool| {
            u32::try_from(statuses.iter().filter(|status| which(status)).count()).unwrap_or(u32::MAX)
        };
        let [healthy, unproven, done] = [
            counted(&|status| matches!(status, SlotStatus::Healthy(_))),
            counted(&|status| matches!(status, SlotStatus::Running(_))),
            counted(&|status| matches!(status, SlotStatus::Done(_))),
        ];
        Status {
            wanted: workload.spec.count,
            running: healthy + unproven,
            healthy,
            done,
            outdated: counted(&|status| match status {
                SlotStatus::Healthy(instance)
                | SlotStatus::Done(instance)
                | SlotStatus::Running(instance) => instance.version != workload.version,
                SlotStatus::Empty => false,
            }),
            starting: u32::try_from(starting).unwrap_or(u32::MAX),
            problem: (healthy + done < workload.spec.count)
                .then(|| self.soft.problem(&workload.name))
                .flatten(),
        }
    }
}
