//! The node and the state of each instance: a table without clock or I/O, which is kept up to
//! date by the reports of agents.
//!
//! ```text
//!            START                    STATS: it runs, or has ended
//!  (free) ───────▶ Parked ─▶ Starting ─────────────────▶ Known(Running) ◀─▶ Known(Ended)
//!      ▲               │       │   │ no sign in time                           │
//!      │ full_cloud    │       │   └─────────▶ GivenUp ── DELETE ──┐           │
//!      └───────────────┴───────┴─────────────────────┴─────────────┴───────────┘
//!                        StartFailure     STATS no longer list it, InstanceDeleted
//! ```
//!
//! An instance belongs to the node to which its START was sent, or to the first node that lists
//! it. If another node lists it, that entry is ignored.
//!
//! A START is done once its node lists the instance in any state but `pending`. It has a
//! deadline, which each `pending` moves: the node is working on it, and may be copying an
//! image. But a START never has more than [`StartLimits::most`] in all. A START without an answer
//! by its deadline is *given up*: it is answered with `launch_failure`, and the instance is
//! deleted as soon as its node lists it, so that the answer stays true. Until then its UUID
//! cannot be used again.
//!
//! The instances of a node that has disconnected still belong to it for [`AWAY_TIME`], because
//! instances outlive agents and connections. Those with an address in a tenant's network belong to it until
//! it reports their end, or an operator says that the node is lost. Its STARTs in flight are answered after
//! [`StartLimits::absence`], unless the node reconnects; then its first STATS show the outcome of
//! each.
//!
//! The sessions bound the memory: a node owns the instances of its last STATS, whose length is
//! bounded, and those of the STARTs that were sent to it since. All nodes that are away own at
//! most [`MAX_AWAY`] instances together, beside those with addresses, which the table of tenants bounds.

mod answered;
mod handover;
mod lost;
mod pending;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use uuid::Uuid;

use self::answered::AnsweredStarts;
use self::handover::Handover;
use self::lost::Lost;
pub(crate) use self::pending::PendingStart;
use super::unplaced::UnplacedStart;
use crate::config::StartLimits;
use crate::figures::tally;
use crate::messages::{Intent, LOST, MAX_INTENTS, StartState};
use crate::placement::{Allocation, Siblings};
use ssntp_cluster::phase::Phase;
use ssntp_payload::{CommandSubject, InstanceState, Reason};
use ssntp_transport::Deadlines;

/// The time for which the instances of a node that is away still belong to it. A machine boots in that time.
const AWAY_TIME: Duration = Duration::from_secs(600);
/// The maximum number of instances of nodes that are away, at some 200 bytes each. Beyond that, the instances
/// of the node that disconnected first are forgotten.
const MAX_AWAY: usize = 65_536;
/// The maximum number of instances that have moved since the last question, which waits while the table of tenants cannot
/// be read. No event moves so many.
const MAX_MOVED: usize = 1 << 18;

#[derive(Clone, Copy, Debug)]
enum State {
    /// Its START waits for a node, or for the disk.
    Parked,
    /// Its START was sent to its node.
    Starting(PendingStart),
    /// The phase in which its node has last listed it. `Pending` follows a RESTART, or was listed
    /// to a scheduler that had just started.
    Known(Phase),
    /// Its START was answered with a failure, but its node has not yet reported that the
    /// instance does not exist.
    GivenUp,
}

#[derive(Debug)]
struct Entry {
    /// `None` while the instance is parked.
    node: Option<Uuid>,
    state: State,
}

/// The instances of a node.
#[derive(Debug, Default)]
struct OfNode {
    instances: HashSet<Uuid>,
    /// The instances in its last STATS that belong to another node.
    foreign: HashSet<Uuid>,
    /// The interval between its STATS, since its first STATS.
    interval: Option<Duration>,
    presence: Presence,
}

/// Whether a node may report on its instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Presence {
    #[default]
    Here,
    /// It has disconnected, and all its instances are known.
    Away,
    /// It is away for so long that only its instances with addresses are known.
    Missing,
}

/// The news in STATS of a node.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Instances that belong to other nodes.
    pub(crate) foreign: HashSet<Uuid>,
    /// Instances that run although their START is parked.
    pub(super) parked: Vec<Uuid>,
    /// The arrival time of each START that is done.
    pub(super) started: Vec<Instant>,
    /// STARTs that failed without a StartFailure.
    pub(super) failed: Vec<(Uuid, PendingStart)>,
    /// Other instances that the node had and does not list any more.
    pub(super) gone: Vec<Uuid>,
    /// Instances that exist although their START was answered with a failure.
    pub(super) unwanted: Vec<Uuid>,
}

/// The meaning of a StartFailure of a node.
#[derive(Debug)]
pub(super) enum StartFailed {
    /// It answers this START.
    Answer(PendingStart),
    /// It answers a START of an earlier scheduler.
    Unknown,
    /// The START was given up, so it was answered before. The instance is no longer known.
    GivenUp,
    /// The START was answered before.
    Repeated,
    /// The instance belongs to another node.
    Foreign,
}

#[derive(Debug, Default)]
pub(crate) struct Instances {
    by_uuid: HashMap<Uuid, Entry>,
    by_node: HashMap<Uuid, OfNode>,
    /// The deadline of each pending START.
    due: Deadlines<Uuid>,
    max_starting: usize,
    limits: StartLimits,
    /// The nodes that are away, with the time until which their instances are kept. The node that
    /// disconnected first is in front.
    away: VecDeque<(Instant, Uuid)>,
    /// The number of the instances of all nodes in that queue.
    away_instances: usize,
    answered: AnsweredStarts,
    lost: Lost,
    /// What the next scheduler gets.
    pub(crate) handover: Handover,
    /// The instances that have come to a node or left one since the last question.
    moved: Vec<(Uuid, Uuid)>,
}

impl Instances {
    pub(super) fn new(max_starting: usize, limits: StartLimits) -> Self {
        Self {
            max_starting,
            limits,
            ..Self::default()
        }
    }

    /// Adopts the instances of a former scheduler. A node that is not connected counts as away
    /// from now on. The first STATS of each node then show the outcome of its STARTs.
    pub(super) fn adopt(
        &mut self,
        intents: impl IntoIterator<Item = Intent>,
        is_connected: impl Fn(Uuid) -> bool,
        has_address: impl Fn(Uuid) -> bool,
        now: Instant,
    ) {
        for intent in intents {
            let (instance, Some(node)) = (intent.instance, intent.node) else {
                continue;
            };
            // Earlier builds have written a nil UUID to the ledger's file.
            if node == LOST || node.is_nil() {
                self.remember_lost(instance);
                continue;
            }
            let state = match intent.state {
                // The START may be answered or not. With `Pending` a StartFailure is accepted.
                StartState::Answered => State::Known(Phase::Pending),
                StartState::GivenUp => State::GivenUp,
                // The time of the last progress is unknown, so the deadline starts again.
                StartState::InFlight { restart, .. } => {
                    self.due.set(instance, now + self.limits.quiet);
                    State::Starting(PendingStart {
                        allocation: Allocation::earlier(node),
                        restart,
                        received: now,
                        // The payload is unknown, so the START cannot be sent to another node.
                        nodes: u8::MAX,
                        sent: now,
                        expected: false,
                    })
                }
            };
            self.own(instance, node, state);
        }
        let nodes = self.by_node.keys().copied();
        let away: Vec<_> = nodes.filter(|node| !is_connected(*node)).collect();
        away.into_iter()
            .for_each(|node| self.node_left(node, &has_address, now));
    }

    /// The intents for the instances that are gone since the last call and have no node again, and for those that
    /// ended with their node.
    pub(super) fn take_gone(&mut self) -> Vec<Intent> {
        let gone = self.handover.take_gone().into_iter();
        let gone = gone.map(|instance| Intent {
            node: self.told_node(instance),
            ..Intent::gone(instance)
        });
        gone.filter(|intent| intent.node.is_none_or(|node| node == LOST))
            .collect()
    }

    /// The node of an instance as the next scheduler has to know it, and [`LOST`] for one that ended with its node;
    /// `None` if no node has the instance.
    fn told_node(&self, instance: Uuid) -> Option<Uuid> {
        let is_lost = self.lost.contains(instance);
        // The next scheduler deletes it as well if a node lists it.
        let is_listed = is_lost && matches!(self.state(instance), Some(State::GivenUp));
        let node = self.node_of(instance).filter(|_| !is_listed);
        node.or(is_lost.then_some(LOST))
    }

    /// All instances that have a node for the next scheduler, each with that node.
    fn told(&self) -> impl Iterator<Item = (Uuid, Uuid)> {
        let known = self.by_uuid.keys().copied();
        let lost = self.lost.iter();
        let all = known.chain(lost.filter(|instance| !self.by_uuid.contains_key(instance)));
        all.filter_map(|instance| Some((instance, self.told_node(instance)?)))
    }

    /// Hands the whole table over to the ledger if that has dropped changes: once it has room again, or when the
    /// scheduler ends.
    pub(super) fn catch_up(&mut self, ends: bool) {
        if self.handover.can_catch_up(ends) {
            self.handover.catch_up(self.told().collect());
        }
    }

    /// All intents, at most [`MAX_INTENTS`], one for each instance. `command_id` returns the id of an instance's
    /// START.
    pub(super) fn intents(&self, command_id: impl Fn(Uuid) -> String) -> Vec<Intent> {
        let intent = |(instance, node)| Intent {
            instance,
            node: Some(node),
            state: match self.state(instance) {
                None | Some(State::Parked | State::Known(_)) => StartState::Answered,
                Some(State::GivenUp) => StartState::GivenUp,
                Some(State::Starting(pending)) => StartState::InFlight {
                    restart: pending.restart,
                    command_id: command_id(instance),
                },
            },
        };
        self.told().map(intent).take(MAX_INTENTS).collect()
    }

    fn state(&self, instance: Uuid) -> Option<State> {
        self.by_uuid.get(&instance).map(|entry| entry.state)
    }

    fn insert(&mut self, instance: Uuid, entry: Entry) {
        let (node, told_before) = (entry.node, self.told_node(instance));
        let before = self.by_uuid.insert(instance, entry).and_then(|entry| entry.node);
        // The ledger is a file, so only a change of the node is written.
        let told = self.told_node(instance);
        if told_before != told {
            self.handover.keep(instance, told);
        }
        if before != node {
            let nodes = before.into_iter().chain(node);
            nodes.for_each(|node| self.note_moved(instance, node));
        }
    }

    fn note_moved(&mut self, instance: Uuid, node: Uuid) {
        if self.moved.len() < MAX_MOVED {
            self.moved.push((instance, node));
        }
    }

    fn remove(&mut self, instance: Uuid) -> Option<Entry> {
        let entry = self.by_uuid.remove(&instance)?;
        if let Some(node) = entry.node {
            self.handover.keep(instance, self.told_node(instance));
            self.note_moved(instance, node);
        }
        Some(entry)
    }

    /// The instances that have come to a node or left one since the last call, each with that node.
    pub(crate) fn take_moved(&mut self) -> Vec<(Uuid, Uuid)> {
        std::mem::take(&mut self.moved)
    }

    /// The reason why an instance cannot be started, and its node; `None` if its UUID is free.
    pub(crate) fn taken(&self, instance: Uuid) -> Option<(Reason, Option<Uuid>)> {
        let entry = self.by_uuid.get(&instance)?;
        let reason = match entry.state {
            State::Known(Phase::Ended) => Reason::InstanceExists,
            // The UUID of a START that is parked or given up is not free yet either.
            _ => Reason::AlreadyRunning,
        };
        Some((reason, entry.node))
    }

    pub(super) fn is_full(&self) -> bool {
        self.in_flight() >= self.max_starting
    }

    /// The instances that a node has or is starting, each with true if it has ended.
    pub(super) fn of(&self, node: Uuid) -> Vec<(Uuid, bool)> {
        let own = self.by_node.get(&node).into_iter();
        let own = own.flat_map(|of_node| &of_node.instances);
        own.filter_map(|instance| match self.by_uuid.get(instance)?.state {
            // A parked instance has no node, and a given-up one was answered with a failure.
            State::Parked | State::GivenUp => None,
            State::Known(phase) => Some((*instance, phase == Phase::Ended)),
            State::Starting(_) => Some((*instance, false)),
        })
        .collect()
    }

    /// The instances of a node that is away.
    pub(crate) fn of_away(&self, node: Uuid) -> Vec<Uuid> {
        let of_node = self.by_node.get(&node);
        let away = of_node.filter(|of_node| of_node.presence != Presence::Here);
        away.into_iter()
            .flat_map(|of_node| of_node.instances.iter().copied())
            .collect()
    }

    /// True if the node of an instance is away, so that its state is unknown.
    pub(crate) fn is_unknown(&self, instance: Uuid) -> bool {
        let entry = self.by_uuid.get(&instance);
        entry.is_some_and(|entry| self.is_of_away(entry))
    }

    fn is_of_away(&self, entry: &Entry) -> bool {
        let of_node = entry.node.and_then(|node| self.by_node.get(&node));
        of_node.is_some_and(|of_node| of_node.presence != Presence::Here)
    }

    /// The nodes to which these instances belong, each with their number.
    pub(super) fn siblings(&self, instances: &[Uuid]) -> Siblings {
        let mut siblings = Siblings::new();
        for node in instances.iter().filter_map(|instance| self.node_of(*instance)) {
            *siblings.entry(node).or_default() += 1;
        }
        siblings
    }

    /// The node to which an instance belongs.
    pub(crate) fn node_of(&self, instance: Uuid) -> Option<Uuid> {
        self.by_uuid.get(&instance)?.node
    }

    /// True if its node has reported that it has ended; `None` if no node has it.
    pub(crate) fn has_ended(&self, instance: Uuid) -> Option<bool> {
        self.node_of(instance)?;
        Some(matches!(self.state(instance)?, State::Known(Phase::Ended)))
    }

    /// True if its START is in flight.
    pub(crate) fn is_starting(&self, instance: Uuid) -> bool {
        matches!(self.state(instance), Some(State::Starting(_)))
    }

    /// True if an instance is known and does not belong to `node`. An unknown instance is not
    /// foreign, because it belongs to the first node that lists it.
    pub(crate) fn is_foreign(&self, instance: Uuid, node: Uuid) -> bool {
        let entry = self.by_uuid.get(&instance);
        entry.is_some_and(|entry| entry.node != Some(node))
    }

    /// True if the last STATS of a node list an instance that belongs to another node.
    pub(crate) fn lists_foreign(&self, instance: Uuid, node: Uuid) -> bool {
        let of_node = self.by_node.get(&node);
        of_node.is_some_and(|of_node| of_node.foreign.contains(&instance))
    }

    pub(crate) fn park(&mut self, instance: Uuid) {
        let (node, state) = (None, State::Parked);
        self.by_uuid.entry(instance).or_insert(Entry { node, state });
    }

    /// Removes an instance whose START no longer waits: it is placed or refused now. A START that did not
    /// wait has no entry.
    pub(super) fn unpark(&mut self, instance: Uuid) {
        if matches!(self.state(instance), Some(State::Parked)) {
            self.by_uuid.remove(&instance);
        }
    }

    /// Enters a START that is sent to a node.
    pub(super) fn assign(&mut self, start: &UnplacedStart, allocation: Allocation, now: Instant) {
        // The deadline depends on how often this node reports.
        let announced = self
            .by_node
            .get(&allocation.node)
            .and_then(|of_node| of_node.interval);
        let interval = announced.unwrap_or(self.limits.interval);
        let pending = PendingStart {
            allocation,
            restart: start.restart,
            received: start.received,
            // This count bounds how often a refused START is placed again.
            nodes: start.nodes.saturating_add(1),
            sent: now,
            expected: false,
        };
        self.due
            .set(start.instance, self.limits.deadline(now, interval, now));
        self.own(start.instance, allocation.node, State::Starting(pending));
        // Reading the id takes longer than all the rest.
        if self.handover.records_intents() {
            let state = StartState::InFlight {
                restart: start.restart,
                command_id: CommandSubject::of(&start.frame).command_id,
            };
            self.handover.record(start.instance, Some(allocation.node), state);
        }
    }

    /// Removes a START that could not be sent to its node.
    pub(super) fn unassign(&mut self, instance: Uuid) {
        if self.is_starting(instance) {
            self.due.clear(&instance);
            self.forget(instance);
        }
    }

    /// The state of an instance that a node has without a START of this scheduler.
    fn found(&self, instance: Uuid, phase: Phase) -> State {
        if self.lost.contains(instance) {
            State::GivenUp
        } else {
            State::Known(phase)
        }
    }

    fn own(&mut self, instance: Uuid, node: Uuid, state: State) {
        let node_instances = &mut self.by_node.entry(node).or_default().instances;
        node_instances.insert(instance);
        let node = Some(node);
        self.insert(instance, Entry { node, state });
    }

    /// Handles STATS of a node, which list these instances and are sent every `interval`. The caller forwards the
    /// STATS before it handles the news, because failures follow the STATS that explain them.
    pub(crate) fn report(
        &mut self,
        node: Uuid,
        listed: &[(Uuid, InstanceState)],
        interval: Duration,
        now: Instant,
    ) -> Report {
        let mut report = Report::default();
        let mut settled = Vec::new();
        let mut own = HashSet::with_capacity(listed.len());
        for (instance, state) in listed {
            let phase = Phase::of(state);
            // The START of an instance that runs already must not be placed.
            let is_parked = matches!(self.state(*instance), Some(State::Parked)) && phase != Phase::Ended;
            if is_parked || !self.by_uuid.contains_key(instance) {
                let (node, state) = (Some(node), self.found(*instance, phase));
                self.insert(*instance, Entry { node, state });
            }
            report.parked.extend(is_parked.then_some(*instance));
            let Some(entry) = self.by_uuid.get_mut(instance) else {
                continue;
            };
            if entry.node != Some(node) {
                report.foreign.insert(*instance);
                continue;
            }
            // If STATS list an instance twice, the first entry counts.
            if !own.insert(*instance) {
                continue;
            }
            match &mut entry.state {
                State::Starting(pending) => {
                    if phase == Phase::Pending {
                        // From now on, STATS without the instance mean that the START failed.
                        pending.expected = true;
                        let deadline = self.limits.deadline(pending.sent, interval, now);
                        self.due.set(*instance, deadline);
                    } else {
                        self.due.clear(instance);
                        // Even an ended state counts: the instance ran, so its START is done.
                        report.started.push(pending.received);
                        entry.state = State::Known(phase);
                        settled.push(*instance);
                    }
                }
                State::Known(known) => *known = phase,
                // An instance that is stopping has been sent DELETE before.
                State::GivenUp if *state != InstanceState::Stopping => report.unwanted.push(*instance),
                State::GivenUp | State::Parked => {}
            }
        }
        for instance in settled {
            self.lost.remove(instance);
            self.handover.record(instance, Some(node), StartState::Answered);
        }
        // Instances that the node had before and does not list any more are gone from it.
        let before = std::mem::take(&mut self.by_node.entry(node).or_default().instances);
        for instance in before {
            if own.contains(&instance) {
                continue;
            }
            match self.state(instance) {
                Some(State::Starting(pending)) if pending.expected => report.failed.push((instance, pending)),
                // These STATS crossed the START.
                Some(State::Starting(_)) => drop(own.insert(instance)),
                _ => {
                    self.remove(instance);
                    report.gone.push(instance);
                }
            }
        }
        let of_node = self.by_node.entry(node).or_default();
        of_node.instances = own;
        of_node.interval = Some(interval);
        of_node.foreign.clone_from(&report.foreign);
        // After the loop, which borrows the instances of the node.
        for (instance, pending) in &report.failed {
            self.answered(*instance, pending);
        }
        report
    }

    /// Handles InstanceStopped (`is_kept`) or InstanceDeleted of the node to which an instance
    /// belongs. If its START was in flight, the START is done: returns the START's arrival time.
    pub(super) fn ended(&mut self, instance: Uuid, is_kept: bool) -> Option<Instant> {
        let entry = self.by_uuid.get_mut(&instance)?;
        let mut started = None;
        if let State::Starting(pending) = entry.state {
            self.due.clear(&instance);
            // If a run begins and ends between two STATS, this event is the first sign of it.
            started = Some(pending.received);
            let node = entry.node;
            self.lost.remove(instance);
            self.handover.record(instance, node, StartState::Answered);
        }
        if !is_kept {
            self.forget(instance);
        // A START that was given up remains so: its instance must still be deleted.
        } else if let Some(entry) = self.by_uuid.get_mut(&instance)
            && !matches!(entry.state, State::GivenUp)
        {
            entry.state = State::Known(Phase::Ended);
        }
        started
    }

    /// The number of instances in each state.
    pub(crate) fn figures(&self) -> BTreeMap<&'static str, usize> {
        let words = [
            "held", "starting", "pending", "running", "ended", "given_up", "unknown",
        ];
        let word = |entry: &Entry| match entry.state {
            State::Known(_) if self.is_of_away(entry) => "unknown",
            State::Parked => "held",
            State::Starting(_) => "starting",
            State::Known(Phase::Pending) => "pending",
            State::Known(Phase::Running) => "running",
            State::Known(Phase::Ended) => "ended",
            State::GivenUp => "given_up",
        };
        tally(words, self.by_uuid.values().map(word))
    }

    /// The number of STARTs in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.due.count()
    }

    /// Handles a StartFailure of a node.
    pub(super) fn failed(&mut self, instance: Uuid, node: Uuid, reason: &Reason) -> StartFailed {
        let Some(entry) = self.by_uuid.get(&instance) else {
            let meaning = self.answered.meaning_of(instance, node);
            if matches!(meaning, StartFailed::Unknown) {
                self.answered.remember(instance, node, false);
            }
            return meaning;
        };
        if entry.node != Some(node) {
            return StartFailed::Foreign;
        }
        match entry.state {
            State::Starting(pending) => {
                self.answered(instance, &pending);
                // `already_running` and `instance_exists` refuse the START, but show that the
                // node has the instance.
                if reason.node_has_instance() {
                    // The next STATS show whether it runs or has ended.
                    self.own(instance, node, self.found(instance, Phase::Running));
                }
                StartFailed::Answer(pending)
            }
            State::GivenUp => {
                self.forget(instance);
                StartFailed::GivenUp
            }
            // No START of this scheduler is in flight for it, so the failure answers a START of
            // an earlier scheduler.
            State::Known(Phase::Pending) => {
                self.forget(instance);
                self.answered.remember(instance, node, true);
                StartFailed::Unknown
            }
            // The reason agrees with the state, so it may answer a START of an earlier scheduler.
            _ if reason.node_has_instance() => StartFailed::Unknown,
            // The instance runs or has ended, so its START was done before.
            _ => StartFailed::Repeated,
        }
    }

    /// Marks a node as away: it has disconnected. A node that is away already stays so. `has_address` is true
    /// for the instances that have an address in a tenant's network.
    pub(crate) fn node_left(&mut self, node: Uuid, has_address: impl Fn(Uuid) -> bool, now: Instant) {
        let is_here = |of_node: &&mut OfNode| of_node.presence == Presence::Here;
        let Some(of_node) = self.by_node.get_mut(&node).filter(is_here) else {
            return;
        };
        // A node without instances needs no entry, so disconnected nodes take up no memory.
        if of_node.instances.is_empty() {
            self.by_node.remove(&node);
            return;
        }
        of_node.presence = Presence::Away;
        of_node.foreign = HashSet::new();
        // The time is the same for all nodes, so the queue stays in the order of the deadlines.
        self.away.push_back((now + AWAY_TIME, node));
        self.away_instances += of_node.instances.len();
        for instance in &of_node.instances {
            if let Some(entry) = self.by_uuid.get_mut(instance)
                && let State::Starting(pending) = &mut entry.state
            {
                pending.expected = true;
                let absent = now + self.limits.absence;
                let deadline = self.due.of(instance).map_or(absent, |before| before.min(absent));
                self.due.set(*instance, deadline);
            }
        }
        while self.away_instances > MAX_AWAY && self.forget_longest_away(&has_address) {}
    }

    /// A node has connected, perhaps not for the first time. `sends_new_stats` is false if its
    /// next STATS may be older than its session, because another scheduler transfers those that
    /// it has kept.
    pub(super) fn node_returned(&mut self, node: Uuid, sends_new_stats: bool) {
        if let Some(of_node) = self.by_node.get_mut(&node)
            && let before @ (Presence::Away | Presence::Missing) = std::mem::take(&mut of_node.presence)
        {
            if before == Presence::Away {
                self.away_instances -= of_node.instances.len();
            }
            for instance in of_node.instances.iter().filter(|_| !sends_new_stats) {
                if let Some(entry) = self.by_uuid.get_mut(instance)
                    && let State::Starting(pending) = &mut entry.state
                {
                    pending.expected = false;
                }
            }
            // If the node disconnects again, it enters the queue again, at the end.
            self.away.retain(|(_, away)| *away != node);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let away = self.away.front().map(|(at, _)| *at);
        [self.due.next(), away].into_iter().flatten().min()
    }

    /// Gives up the STARTs whose deadline has passed and returns them. Forgets the nodes that have
    /// been away for [`AWAY_TIME`], but not their instances that have addresses.
    pub(super) fn expire(
        &mut self,
        has_address: impl Fn(Uuid) -> bool,
        now: Instant,
    ) -> Vec<(Uuid, PendingStart)> {
        let mut given_up = Vec::new();
        // The entry remains as `GivenUp`, because the node may still start the instance.
        while let Some(instance) = self.due.pop(now) {
            if let Some(entry) = self.by_uuid.get_mut(&instance)
                && let State::Starting(pending) = entry.state
            {
                entry.state = State::GivenUp;
                given_up.push((instance, pending));
            }
        }
        for (instance, pending) in &given_up {
            let node = pending.allocation.node;
            self.answered.remember(*instance, node, true);
            self.handover.record(*instance, Some(node), StartState::GivenUp);
            // If the node was forgotten before, or all but its instances with addresses, no STATS can free the UUID.
            let of_node = self.by_node.get(&node);
            if !of_node.is_some_and(|of_node| of_node.instances.contains(instance)) {
                self.remove(*instance);
            }
        }
        while self.away.front().is_some_and(|(at, _)| *at <= now) {
            self.forget_longest_away(&has_address);
        }
        given_up
    }

    fn forget_longest_away(&mut self, has_address: impl Fn(Uuid) -> bool) -> bool {
        let Some((_, node)) = self.away.pop_front() else {
            return false;
        };
        if let Some(mut of_node) = self.by_node.remove(&node) {
            self.away_instances -= of_node.instances.len();
            // The node may still use their addresses, so no other instance may get them.
            let (kept, forgotten): (HashSet<_>, HashSet<_>) = of_node
                .instances
                .into_iter()
                .partition(|instance| has_address(*instance));
            for instance in forgotten {
                // A START in flight is answered at its deadline.
                if !self.is_starting(instance) {
                    self.remove(instance);
                }
            }
            if !kept.is_empty() {
                (of_node.instances, of_node.presence) = (kept, Presence::Missing);
                self.by_node.insert(node, of_node);
            }
        }
        true
    }

    /// Removes an instance whose node is lost for good. Returns its START, if that is in flight.
    pub(super) fn end_with_node(&mut self, instance: Uuid) -> Option<PendingStart> {
        self.remember_lost(instance);
        if self.node_of(instance).is_none() {
            self.handover.keep(instance, Some(LOST));
        }
        match self.state(instance) {
            Some(State::Starting(pending)) => {
                self.answered(instance, &pending);
                Some(pending)
            }
            _ => {
                self.forget(instance);
                None
            }
        }
    }

    fn remember_lost(&mut self, instance: Uuid) {
        if let Some(oldest) = self.lost.add(instance)
            && self.node_of(oldest).is_none()
        {
            self.handover.keep(oldest, None);
        }
    }

    /// Removes an instance that its node does not have, if its START was given up; returns true if
    /// it was.
    pub(super) fn free_given_up(&mut self, instance: Uuid) -> bool {
        let given_up = matches!(self.state(instance), Some(State::GivenUp));
        if given_up {
            self.forget(instance);
        }
        given_up
    }

    /// Removes a START that has failed, and remembers that it was answered.
    fn answered(&mut self, instance: Uuid, pending: &PendingStart) {
        self.due.clear(&instance);
        self.answered.remember(instance, pending.allocation.node, true);
        self.forget(instance);
    }

    fn forget(&mut self, instance: Uuid) {
        if let Some(node) = self.remove(instance).and_then(|entry| entry.node)
            && let Some(of_node) = self.by_node.get_mut(&node)
            && of_node.instances.remove(&instance)
        {
            match of_node.presence {
                Presence::Here => {}
                Presence::Away => self.away_instances -= 1,
                Presence::Missing if of_node.instances.is_empty() => drop(self.by_node.remove(&node)),
                Presence::Missing => {}
            }
        }
    }
}
