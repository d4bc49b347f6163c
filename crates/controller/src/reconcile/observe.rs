//! Updates the stored instances from answers and from the view, and adopts unknown instances.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use uuid::Uuid;

use super::input::{Answer, Labels, SeenInstance};
use super::plan::Draft;
use super::soft::Soft;
use crate::model::{Instance, InstanceState, ReschedulePolicy, Workload};

/// The time for which a lost instance, which no node lists, stays stored. A node that has it is expected to reconnect
/// within this time.
const LOST_RETENTION: Duration = Duration::from_secs(3600);
/// The retention of an unwanted instance whose node is away, by the time of day, which continues
/// while this process does not run. Because that clock may jump, [`LOST_RETENTION`] by the clock of this
/// process has to pass as well.
const REMEMBERED_MS: u64 = 7 * 86_400_000;

/// An instance that is not stored, with the labels of a workload, on a node that is current.
pub(super) struct Stranger<'a> {
    pub(super) uuid: Uuid,
    pub(super) seen: &'a SeenInstance,
    labels: &'a Labels,
    pub(super) workload: &'a Workload,
    /// True if its slot exists and is empty. Otherwise the instance is deleted. It is not stored for that: a node
    /// may list any number, and each would have rows in the history.
    pub(super) has_slot: bool,
}

/// Adds the changes that the answers and the view cause. Returns the strangers.
pub(super) fn observe<'a>(draft: &mut Draft<'a>, soft: &mut Soft) -> Vec<Stranger<'a>> {
    Observer { draft, soft }.observe();
    let strangers = strangers(draft);
    Observer { draft, soft }.adopt(&strangers);
    strangers
}

fn strangers<'a>(draft: &Draft<'a>) -> Vec<Stranger<'a>> {
    let (state, seen) = (draft.state, draft.seen);
    let stranger = |(uuid, seen): (&Uuid, &'a SeenInstance)| {
        let labels = seen.labels.as_ref()?;
        let workload = &**state.workloads.get(&labels.workload)?;
        let is_known = state.instances.contains_key(uuid);
        let is_there = !seen.is_pending && draft.is_current(seen.node);
        (is_there && !is_known).then(|| Stranger {
            uuid: *uuid,
            seen,
            labels,
            workload,
            has_slot: !workload.deleting && (1..=workload.spec.slots()).contains(&labels.slot),
        })
    };
    let mut strangers: Vec<_> = seen.instances.iter().filter_map(stranger).collect();
    if !strangers.is_empty() {
        let wanted = state.instances.values().filter(|instance| instance.wanted);
        let taken: BTreeSet<_> = wanted.map(|one| (one.workload.as_str(), one.slot)).collect();
        for stranger in &mut strangers {
            stranger.has_slot &= !taken.contains(&(stranger.workload.name.as_str(), stranger.labels.slot));
        }
    }
    strangers
}

struct Observer<'d, 'a> {
    draft: &'d mut Draft<'a>,
    soft: &'d mut Soft,
}

impl Observer<'_, '_> {
    fn observe(&mut self) {
        let dropped = self.take_answers();
        for instance in self.draft.state.instances.values() {
            if !dropped.contains(&instance.uuid) {
                match self.draft.seen.instances.get(&instance.uuid) {
                    Some(seen) => self.update_listed(instance, seen),
                    None => self.update_unlisted(instance),
                }
            }
        }
    }

    /// Handles the answers to STARTs. Returns the instances that have no further changes in this step.
    fn take_answers(&mut self) -> BTreeSet<Uuid> {
        let mut dropped = BTreeSet::new();
        for (uuid, answer) in self.soft.take_answers() {
            if answer == Answer::NotMaster {
                self.soft.follow_master(self.draft.now);
            }
            // If a node has listed the instance since, the view is newer than the answer.
            let starting = self.draft.state.instances.get(&uuid).filter(|instance| {
                instance.state == InstanceState::Starting
                    && self
                        .draft
                        .seen
                        .instances
                        .get(&uuid)
                        .is_none_or(|seen| seen.is_pending)
                    && !dropped.contains(&uuid)
            });
            let Some(instance) = starting else { continue };
            let was_query = self.soft.was_query(uuid);
            if matches!(answer, Answer::There | Answer::Lost) || (was_query && answer == Answer::NotMaster) {
                self.soft.settled(uuid);
                // If no node lists the instance in time, it is queried again. That a backup may not ask says
                // nothing about the instance, which may be starting.
                if answer != Answer::Lost {
                    self.soft.sent(uuid, true, self.draft.now);
                }
                continue;
            }
            // An answer with an effect counts again if that cannot be written.
            self.soft.answer(uuid, answer.clone());
            match answer {
                Answer::There | Answer::Lost => {}
                Answer::NotMaster => {
                    let what = "was not started: another controller is the master";
                    self.draft.gone(instance, "failed", what);
                }
                // A scheduler that was restarted does not know the instances of a node that is still
                // away. So the instance counts as lost, and its node may list it later.
                Answer::NotStarted { .. } if was_query => {
                    let lost = Instance {
                        state: InstanceState::Lost,
                        wanted: false,
                        since: self.draft.now.unix_ms,
                        ..(**instance).clone()
                    };
                    self.draft
                        .change(lost, "lost", "was not started, as far as is known");
                }
                Answer::NotStarted { why, is_its_fault } => {
                    failed(self.draft, self.soft, instance, &why, is_its_fault);
                    self.draft
                        .gone(instance, "failed", &format!("was not started: {why}"));
                }
                Answer::Gone => {
                    let why = "it ended at once and was deleted";
                    failed(self.draft, self.soft, instance, why, true);
                    self.draft.gone(instance, "gone", "was started, and is gone");
                }
            }
            dropped.insert(uuid);
        }
        dropped
    }

    /// Updates an instance that a node lists.
    fn update_listed(&mut self, instance: &Instance, seen: &SeenInstance) {
        let is_current = self.draft.is_current(seen.node);
        // The start may still fail; the answer to the START decides. If the answer was lost and the
        // node is away, the instance is given up with its node.
        if seen.is_pending && instance.state == InstanceState::Starting {
            if !is_current && instance.node != Some(seen.node) {
                let changed = Instance {
                    node: Some(seen.node),
                    ..instance.clone()
                };
                let what = format!("waits for node {}, which starts it and is away", seen.node);
                self.draft.change(changed.clone(), "starting", &what);
                return self.give_up(&changed, seen.node);
            }
            return self.give_up(instance, seen.node);
        }
        let was_unseen = matches!(instance.state, InstanceState::Starting | InstanceState::Lost);
        // While a node is away, its last report is old. So only a node that is current ends an
        // instance.
        let is_new = was_unseen || instance.node != Some(seen.node);
        // An instance that the node will restart counts as running.
        let ended = seen.ended.as_ref().filter(|_| is_current && !seen.is_restart_due);
        let state = match ended {
            Some(end) if end.is_success => InstanceState::Done,
            Some(_) => InstanceState::Failed,
            None if is_new || (is_current && seen.ended.is_none()) => InstanceState::Running,
            None => instance.state,
        };
        let ending = ended.map_or_else(String::new, |end| end.how.clone());
        if state != instance.state || is_new {
            let (kind, what) = match ended {
                Some(end) => ("ended", format!("has ended: {}", end.how)),
                None => ("running", format!("runs on node {}", seen.node)),
            };
            let changed = Instance {
                node: Some(seen.node),
                state,
                ending,
                since: self.draft.now.unix_ms,
                ..instance.clone()
            };
            self.draft.change(changed.clone(), kind, &what);
            return self.give_up(&changed, seen.node);
        }
        self.give_up(instance, seen.node);
    }

    /// Updates an instance that no node lists.
    fn update_unlisted(&mut self, instance: &Instance) {
        let Some(node) = instance.node else {
            if instance.state == InstanceState::Lost
                && self.soft.age(instance, self.draft.now) > LOST_RETENTION
            {
                self.draft.gone(instance, "gone", "is forgotten");
            }
            return;
        };
        if !self.draft.is_current(node) {
            return self.give_up(instance, node);
        }
        let workload = self.draft.workload_of(instance);
        // An instance that is over stays stored when its node drops it, so that it is not replaced.
        if instance.wanted && workload.is_some_and(|workload| is_over(workload, instance)) {
            return;
        }
        // A user may have deleted the instance on its node, so the workload is not to blame.
        if instance.wanted && instance.state == InstanceState::Running {
            failed(self.draft, self.soft, instance, "it is gone from its node", false);
        }
        self.draft
            .gone(instance, "gone", &format!("is gone from node {node}"));
    }

    /// Gives an instance up if its node has been away for longer than the grace.
    fn give_up(&mut self, instance: &Instance, node: Uuid) {
        if self.draft.is_current(node) {
            return;
        }
        let away = self.soft.away_for(node, self.draft.now);
        let workload = self.draft.workload_of(instance);
        let is_lost = workload.is_none_or(|workload| {
            let reschedule = &workload.spec.reschedule;
            let grace = Duration::from_secs(reschedule.grace_s.into());
            away >= grace && reschedule.policy != ReschedulePolicy::Never && !is_over(workload, instance)
        });
        if instance.wanted && is_lost {
            self.draft
                .mark_unwanted(instance, "lost", &format!("is lost: node {node} is away"));
        } else if !instance.wanted
            && self.soft.age(instance, self.draft.now) > LOST_RETENTION
            && self.draft.now.unix_ms.abs_diff(instance.since) > REMEMBERED_MS
        {
            self.draft
                .gone(instance, "gone", &format!("is forgotten with node {node}"));
        }
    }

    /// Adopts the strangers that have a slot: the database was lost, or restored from a backup.
    fn adopt(&mut self, strangers: &[Stranger<'_>]) {
        let (mut taken, mut numbers) = (BTreeSet::new(), BTreeMap::new());
        for stranger in strangers.iter().filter(|stranger| stranger.has_slot) {
            let Stranger {
                uuid, seen, labels, ..
            } = *stranger;
            let workload = stranger.workload;
            // A slot that has failed stays empty. Otherwise a node could list another instance for it all the time.
            let attempt = self.soft.attempt(&workload.name, labels.slot, self.draft.now);
            let Some(attempt) = attempt.filter(|_| taken.insert((&workload.name, labels.slot))) else {
                continue;
            };
            let numbers = numbers.entry(&workload.name).or_insert_with(|| {
                let versions = workload.versions.iter();
                let numbers = versions.map(|version| (version.template.digest(), version.number));
                numbers.collect::<BTreeMap<_, _>>()
            });
            let instance = Instance {
                uuid,
                workload: workload.name.clone(),
                slot: labels.slot,
                version: numbers.get(&labels.digest).copied().unwrap_or_default(),
                node: Some(seen.node),
                state: InstanceState::Running,
                wanted: true,
                attempt,
                since: self.draft.now.unix_ms,
                ..Instance::default()
            };
            self.draft
                .change(instance, "adopted", "was found, and is taken over");
        }
    }
}

/// True if an instance has ended and will not be replaced.
pub(super) fn is_over(workload: &Workload, instance: &Instance) -> bool {
    match instance.state {
        InstanceState::Starting | InstanceState::Running | InstanceState::Lost => false,
        InstanceState::Failed => workload.spec.reschedule.policy == ReschedulePolicy::Never,
        InstanceState::Done => workload.spec.reschedule.policy != ReschedulePolicy::Always,
    }
}

/// Counts the failure of an instance: its slot stays empty for a pause, and its roll-out may go
/// back.
pub(super) fn failed(
    draft: &mut Draft<'_>,
    soft: &mut Soft,
    instance: &Instance,
    why: &str,
    is_its_fault: bool,
) {
    soft.failed(instance, why, is_its_fault, draft.now);
    if let Some(workload) = draft.workload_of(instance)
        && is_its_fault
        && workload.version == instance.version
        // Only failures of the version that is rolled out can make the roll-out go back.
        && workload.is_under_way()
    {
        let rollout = &mut draft.touch(workload).rollout;
        rollout.failures = rollout.failures.saturating_add(1);
        why.clone_into(&mut rollout.why);
    }
}
