//! Which instance belongs to which node, and how far it has come: a table without clock or
//! I/O, fed by what agents say.
//!
//! ```text
//!            START                    STATS: it runs, or has ended
//!  (free) ─────────▶ Held ─▶ Starting ─────────────────▶ Known(Running) ◀─▶ Known(Ended)
//!      ▲               │       │   │ no word in time                           │
//!      │ full_cloud    │       │   └─────────▶ GivenUp ── DELETE ──┐           │
//!      └───────────────┴───────┴─────────────────────┴─────────────┴───────────┘
//!                        StartFailure     STATS no longer list it, InstanceDeleted
//! ```
//!
//! An instance belongs to the node that was given its START, or that was the first to list
//! it. Another node that lists it is not believed.
//!
//! A START is done once its node lists the instance in any state but `pending`. It has a
//! deadline, which each `pending` moves: the node is at work on it, and may be copying an
//! image. But it has no more than [`StartLimits::most`] in all. A START without an answer by
//! then is *given up*: it is answered with `launch_failure`, and the instance is deleted as
//! soon as its node lists it, so that the answer is true. Until then its UUID is not free.
//!
//! Instances of a node that has left stay its own for [`AWAY`], because instances outlive
//! agents and connections. A START that the node had been given is answered after
//! [`StartLimits::absence`], unless the node comes back; its first STATS then tell what
//! became of each.
//!
//! Memory is bounded by the sessions: a node owns what its last STATS list, which are of a
//! bounded length, and what it was given since. Nodes that are away own [`MOST_AWAY`]
//! instances together.

mod handover;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use uuid::Uuid;

pub(super) use self::handover::MOST_TOLD;
use super::figures::tally;
use super::ledger::Ledger;
use super::placement::Allocation;
use super::told::{Fate, Intent};
use super::waiting::Waiting;
use crate::phase::Phase;
use ssntp::payload::{CommandSubject, InstanceState, StartFailureReason};

/// How long instances stay those of a node that is away: a machine boots in that time.
const AWAY: Duration = Duration::from_secs(600);
/// The most instances of nodes that are away, at some 200 bytes each. If there are more,
/// those of the node that left first are forgotten.
const MOST_AWAY: usize = 65_536;
/// The most answered STARTs that are remembered, so that a failure that an agent repeats is
/// not passed on again. It covers the STARTs in flight of several agents that reconnect.
const MOST_ANSWERED: usize = 4096;

/// The time limits of a START.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartLimits {
    /// How long its node may send no sign of it.
    pub(super) quiet: Duration,
    /// How long it may take in all.
    pub(super) most: Duration,
    /// How long after its node has left it is answered.
    pub(super) absence: Duration,
}

impl StartLimits {
    /// The deadline of a START that was given at `given`, after a sign at `now` of a node
    /// that sends STATS every `interval`. Two STATS may be missed.
    fn deadline(&self, given: Instant, interval: Duration, now: Instant) -> Instant {
        (now + self.quiet.max(interval * 3)).min(given + self.most)
    }
}

/// A START that a node was given, and that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingStart {
    pub(super) allocation: Allocation,
    pub(super) restart: bool,
    /// When the START came from its controller.
    pub(super) received: Instant,
    /// How many nodes were given it, with this one.
    pub(super) nodes: u8,
    /// When this node was given it.
    given: Instant,
    deadline: Instant,
    /// STATS without the instance mean that the START came to nothing: the node has listed
    /// it before, or was away since. Otherwise they may have crossed the START.
    expected: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Its START waits for a node.
    Held,
    /// Its node was given the START.
    Starting(PendingStart),
    /// Its node has listed it like this. `Pending` follows a RESTART, or was listed to a
    /// scheduler that had just started.
    Known(Phase),
    /// Its START was answered with a failure, but its node has not said yet that the
    /// instance is not there.
    GivenUp,
}

#[derive(Debug)]
struct Entry {
    /// None while it is held.
    node: Option<Uuid>,
    state: State,
}

/// The instances of a node.
#[derive(Debug, Default)]
struct OfNode {
    instances: HashSet<Uuid>,
    /// Those that its last STATS list although they belong to another node.
    foreign: HashSet<Uuid>,
    is_away: bool,
}

/// A START that was answered with a failure, remembered because agents repeat failures.
#[derive(Debug)]
struct Answered {
    instance: Uuid,
    node: Uuid,
    /// Whether the instance was known to belong to that node.
    is_owner: bool,
}

/// The news in STATS of a node.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Instances that belong to other nodes.
    pub(super) foreign: HashSet<Uuid>,
    /// For each START that is done: when it came.
    pub(super) started: Vec<Instant>,
    /// STARTs that have come to nothing without a StartFailure.
    pub(super) lost: Vec<(Uuid, PendingStart)>,
    /// Instances that are there though their START was answered with a failure.
    pub(super) unwanted: Vec<Uuid>,
}

/// How a StartFailure of a node is to be taken.
#[derive(Debug)]
pub(super) enum StartFailed {
    /// It answers this START.
    Answer(PendingStart),
    /// It answers a START of an earlier scheduler.
    Unknown,
    /// The START was answered before.
    Repeated,
    /// The instance belongs to another node.
    Foreign,
}

#[derive(Debug)]
pub(super) struct Instances {
    by_uuid: HashMap<Uuid, Entry>,
    by_node: HashMap<Uuid, OfNode>,
    /// The deadline of each pending START.
    due: BTreeSet<(Instant, Uuid)>,
    max_starting: usize,
    limits: StartLimits,
    /// The nodes that are away and until when their instances are kept, the longest first.
    away: VecDeque<(Instant, Uuid)>,
    /// The number of their instances.
    away_instances: usize,
    /// In the order of the answers, so that the oldest is forgotten first.
    answered: VecDeque<Answered>,
    /// The file in which the next scheduler finds the owners; none if they are not kept.
    ledger: Option<Ledger>,
    /// The changes that the other schedulers have not been told yet; `None` in a scheduler that is
    /// the only one.
    untold: Option<Vec<Intent>>,
}

impl Instances {
    pub(super) fn new(max_starting: usize, limits: StartLimits) -> Self {
        Self {
            by_uuid: HashMap::new(),
            by_node: HashMap::new(),
            due: BTreeSet::new(),
            max_starting,
            limits,
            away: VecDeque::new(),
            away_instances: 0,
            answered: VecDeque::new(),
            ledger: None,
            untold: None,
        }
    }

    fn insert(&mut self, instance: Uuid, entry: Entry) {
        let node = entry.node;
        let before = self.by_uuid.insert(instance, entry).and_then(|entry| entry.node);
        // The ledger is a file, so only a change of the owner is written.
        if before != node {
            self.keep(instance, node);
        }
    }

    fn remove(&mut self, instance: Uuid) -> Option<Entry> {
        let entry = self.by_uuid.remove(&instance)?;
        if entry.node.is_some() {
            self.keep(instance, None);
        }
        Some(entry)
    }

    fn keep(&mut self, instance: Uuid, node: Option<Uuid>) {
        if let Some(ledger) = &mut self.ledger {
            ledger.keep(instance, node);
        }
        self.tell(instance, node, Fate::Answered);
    }

    /// Why an instance cannot be started, and the node that has it.
    pub(super) fn taken(&self, instance: Uuid) -> Option<(StartFailureReason, Option<Uuid>)> {
        let entry = self.by_uuid.get(&instance)?;
        let reason = match entry.state {
            State::Known(Phase::Ended) => StartFailureReason::InstanceExists,
            // A START that is held or given up counts, too: its UUID is not free yet.
            _ => StartFailureReason::AlreadyRunning,
        };
        Some((reason, entry.node))
    }

    /// Whether the most STARTs are in flight.
    pub(super) fn is_full(&self) -> bool {
        self.due.len() >= self.max_starting
    }

    /// The instances that a node has or is starting, and whether each has ended.
    pub(super) fn of(&self, node: Uuid) -> Vec<(Uuid, bool)> {
        let own = self.by_node.get(&node).into_iter();
        let own = own.flat_map(|of_node| &of_node.instances);
        own.filter_map(|instance| match self.by_uuid.get(instance)?.state {
            // Neither is an instance of the node: the one has no node, the other was answered
            // with a failure.
            State::Held | State::GivenUp => None,
            State::Known(phase) => Some((*instance, phase == Phase::Ended)),
            State::Starting(_) => Some((*instance, false)),
        })
        .collect()
    }

    /// The node that an instance belongs to.
    pub(super) fn node_of(&self, instance: Uuid) -> Option<Uuid> {
        self.by_uuid.get(&instance)?.node
    }

    /// Whether its node has said that it has ended.
    pub(super) fn has_ended(&self, instance: Uuid) -> bool {
        let entry = self.by_uuid.get(&instance);
        entry.is_some_and(|entry| matches!(entry.state, State::Known(Phase::Ended)))
    }

    /// Whether a node was given its START, and has not said yet what became of it.
    pub(super) fn is_starting(&self, instance: Uuid) -> bool {
        let entry = self.by_uuid.get(&instance);
        entry.is_some_and(|entry| matches!(entry.state, State::Starting(_)))
    }

    /// Whether an instance is known, and does not belong to `node`.
    pub(super) fn is_foreign(&self, instance: Uuid, node: Uuid) -> bool {
        let entry = self.by_uuid.get(&instance);
        // An instance that nobody knows is not foreign: its first node is believed.
        entry.is_some_and(|entry| entry.node != Some(node))
    }

    /// Whether a node lists an instance that belongs to another one.
    pub(super) fn is_also_on(&self, instance: Uuid, node: Uuid) -> bool {
        let of_node = self.by_node.get(&node);
        of_node.is_some_and(|of_node| of_node.foreign.contains(&instance))
    }

    /// The START of an instance waits for a node.
    pub(super) fn hold(&mut self, instance: Uuid) {
        let (node, state) = (None, State::Held);
        self.by_uuid.entry(instance).or_insert(Entry { node, state });
    }

    /// A START that was held, or has just come, is answered.
    pub(super) fn refused(&mut self, instance: Uuid) {
        let entry = self.by_uuid.get(&instance);
        // A START that has just come has no entry yet.
        if entry.is_some_and(|entry| matches!(entry.state, State::Held)) {
            self.remove(instance);
        }
    }

    /// A node, which sends STATS every `interval`, was given a START.
    pub(super) fn give(&mut self, start: &Waiting, allocation: Allocation, interval: Duration, now: Instant) {
        let pending = PendingStart {
            allocation,
            restart: start.restart,
            received: start.received,
            // The count bounds how often a refused START is placed again.
            nodes: start.nodes.saturating_add(1),
            given: now,
            deadline: self.limits.deadline(now, interval, now),
            expected: false,
        };
        self.due.insert((pending.deadline, start.instance));
        self.own(start.instance, allocation.node, State::Starting(pending));
        if self.untold.is_some() {
            let fate = Fate::Given {
                restart: start.restart,
                command_id: CommandSubject::of(&start.frame).command_id,
            };
            self.tell(start.instance, Some(allocation.node), fate);
        }
    }

    /// A START was not given to its node after all.
    pub(super) fn take_back(&mut self, instance: Uuid) {
        if let Some(State::Starting(pending)) = self.by_uuid.get(&instance).map(|entry| entry.state) {
            self.due.remove(&(pending.deadline, instance));
            self.forget(instance);
        }
    }

    fn own(&mut self, instance: Uuid, node: Uuid, state: State) {
        let node_instances = &mut self.by_node.entry(node).or_default().instances;
        node_instances.insert(instance);
        let node = Some(node);
        self.insert(instance, Entry { node, state });
    }

    /// Takes in STATS of a node, which list these instances.
    pub(super) fn report(
        &mut self,
        node: Uuid,
        listed: &[(Uuid, InstanceState)],
        interval: Duration,
        now: Instant,
    ) -> Report {
        let mut report = Report::default();
        let mut settled = Vec::new();
        let mut own = HashSet::with_capacity(listed.len());
        for (instance, told) in listed {
            let phase = Phase::of(told);
            if !self.by_uuid.contains_key(instance) {
                let (node, state) = (Some(node), State::Known(phase));
                self.insert(*instance, Entry { node, state });
            }
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
                    self.due.remove(&(pending.deadline, *instance));
                    if phase == Phase::Pending {
                        // From now on, STATS without it mean that it came to nothing.
                        pending.expected = true;
                        pending.deadline = self.limits.deadline(pending.given, interval, now);
                        self.due.insert((pending.deadline, *instance));
                    } else {
                        // Even an ended state counts: the instance ran, so its START is done.
                        report.started.push(pending.received);
                        entry.state = State::Known(phase);
                        settled.push(*instance);
                    }
                }
                State::Known(known) => *known = phase,
                // If it is stopping, it was sent DELETE before.
                State::GivenUp if *told != InstanceState::Stopping => report.unwanted.push(*instance),
                State::GivenUp | State::Held => {}
            }
        }
        for instance in settled {
            self.tell(instance, Some(node), Fate::Answered);
        }
        // What the node had before and does not list any more is gone from it.
        let before = std::mem::take(&mut self.by_node.entry(node).or_default().instances);
        for instance in before {
            if own.contains(&instance) {
                continue;
            }
            match self.by_uuid.get(&instance).map(|entry| entry.state) {
                Some(State::Starting(pending)) if pending.expected => report.lost.push((instance, pending)),
                // These STATS crossed the START.
                Some(State::Starting(_)) => drop(own.insert(instance)),
                _ => drop(self.remove(instance)),
            }
        }
        let of_node = self.by_node.entry(node).or_default();
        of_node.instances = own;
        of_node.foreign.clone_from(&report.foreign);
        // After the loop, which borrows the instances of the node.
        for (instance, pending) in &report.lost {
            self.answered(*instance, pending);
        }
        report
    }

    /// Takes in InstanceStopped (`is_kept`) or InstanceDeleted of the node that an instance
    /// belongs to. The instance was there, so its START is done: gives when the START came
    /// if it is done by this.
    pub(super) fn over(&mut self, instance: Uuid, is_kept: bool) -> Option<Instant> {
        let entry = self.by_uuid.get_mut(&instance)?;
        let mut started = None;
        if let State::Starting(pending) = entry.state {
            self.due.remove(&(pending.deadline, instance));
            // A short run can begin and end between two STATS; then this event is the first
            // sign of it.
            started = Some(pending.received);
            let node = entry.node;
            self.tell(instance, node, Fate::Answered);
        }
        if !is_kept {
            self.forget(instance);
        // A START that was given up stays so: the instance is still to be deleted.
        } else if let Some(entry) = self.by_uuid.get_mut(&instance)
            && !matches!(entry.state, State::GivenUp)
        {
            entry.state = State::Known(Phase::Ended);
        }
        started
    }

    /// The number of instances in each state.
    pub(super) fn figures(&self) -> BTreeMap<&'static str, usize> {
        let words = ["held", "starting", "pending", "running", "ended", "given_up"];
        let word = |entry: &Entry| match entry.state {
            State::Held => "held",
            State::Starting(_) => "starting",
            State::Known(Phase::Pending) => "pending",
            State::Known(Phase::Running) => "running",
            State::Known(Phase::Ended) => "ended",
            State::GivenUp => "given_up",
        };
        tally(words, self.by_uuid.values().map(word))
    }

    /// The number of STARTs in flight, and the most of them.
    pub(super) fn in_flight(&self) -> (usize, usize) {
        (self.due.len(), self.max_starting)
    }

    /// Takes in a StartFailure of a node.
    pub(super) fn failed(&mut self, instance: Uuid, node: Uuid, reason: &StartFailureReason) -> StartFailed {
        let Some(entry) = self.by_uuid.get(&instance) else {
            let mut answers = self.answered.iter().filter(|known| known.instance == instance);
            if answers.clone().any(|known| known.node == node) {
                return StartFailed::Repeated;
            }
            // The instance was another node's, whose failure is the answer.
            if answers.any(|known| known.is_owner) {
                return StartFailed::Foreign;
            }
            self.remember(instance, node, false);
            return StartFailed::Unknown;
        };
        if entry.node != Some(node) {
            return StartFailed::Foreign;
        }
        match entry.state {
            State::Starting(pending) => {
                self.answered(instance, &pending);
                // `already_running` and `instance_exists` refuse the START, but show that the
                // node has it.
                if reason.instance_is_there() {
                    // Its next STATS tell whether it runs or has ended.
                    self.own(instance, node, State::Known(Phase::Running));
                }
                StartFailed::Answer(pending)
            }
            State::GivenUp => {
                self.forget(instance);
                StartFailed::Repeated
            }
            // No START of this scheduler waits for it: the failure answers a START of an
            // earlier one.
            State::Known(Phase::Pending) => {
                self.forget(instance);
                self.remember(instance, node, true);
                StartFailed::Unknown
            }
            // It answers a START of an earlier scheduler: the instance is there, as the reason
            // says.
            _ if reason.instance_is_there() => StartFailed::Unknown,
            // It runs or has ended, so its START was done before.
            _ => StartFailed::Repeated,
        }
    }

    /// A node has left.
    pub(super) fn left(&mut self, node: Uuid, now: Instant) {
        let Some(of_node) = self.by_node.get_mut(&node) else {
            return;
        };
        // A node without instances needs no entry, so that departed nodes take up no memory.
        if of_node.instances.is_empty() {
            self.by_node.remove(&node);
            return;
        }
        of_node.is_away = true;
        of_node.foreign = HashSet::new();
        // The time is the same for all nodes, so the queue stays in the order of the deadlines.
        self.away.push_back((now + AWAY, node));
        self.away_instances += of_node.instances.len();
        for instance in &of_node.instances {
            if let Some(entry) = self.by_uuid.get_mut(instance)
                && let State::Starting(pending) = &mut entry.state
            {
                self.due.remove(&(pending.deadline, *instance));
                pending.expected = true;
                pending.deadline = pending.deadline.min(now + self.limits.absence);
                self.due.insert((pending.deadline, *instance));
            }
        }
        // Whole nodes are forgotten, the one that left first in front.
        while self.away_instances > MOST_AWAY && self.forget_longest_away() {}
    }

    /// A node has connected, perhaps again. `is_new` is whether its next STATS are newer than its
    /// session: another scheduler repeats those that it had.
    pub(super) fn returned(&mut self, node: Uuid, is_new: bool) {
        if let Some(of_node) = self.by_node.get_mut(&node)
            && std::mem::take(&mut of_node.is_away)
        {
            self.away_instances -= of_node.instances.len();
            for instance in of_node.instances.iter().filter(|_| !is_new) {
                if let Some(entry) = self.by_uuid.get_mut(instance)
                    && let State::Starting(pending) = &mut entry.state
                {
                    pending.expected = false;
                }
            }
            // A node that leaves again is to get the whole time again, at the end of the queue.
            self.away.retain(|(_, away)| *away != node);
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let start = self.due.first().map(|(at, _)| *at);
        let away = self.away.front().map(|(at, _)| *at);
        [start, away].into_iter().flatten().min()
    }

    /// Gives up the STARTs whose deadline has passed, and forgets nodes that have been away
    /// for too long.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<(Uuid, PendingStart)> {
        let mut given_up = Vec::new();
        // The entry stays as `GivenUp`: while its node may still start it, the UUID is not
        // free.
        while let Some((at, instance)) = self.due.first().copied()
            && at <= now
        {
            self.due.pop_first();
            if let Some(entry) = self.by_uuid.get_mut(&instance)
                && let State::Starting(pending) = entry.state
            {
                entry.state = State::GivenUp;
                given_up.push((instance, pending));
            }
        }
        for (instance, pending) in &given_up {
            let node = pending.allocation.node;
            self.remember(*instance, node, true);
            self.tell(*instance, Some(node), Fate::GivenUp);
            // If its node was forgotten before, no STATS can free the UUID.
            if !self.by_node.contains_key(&node) {
                self.remove(*instance);
            }
        }
        while self.away.front().is_some_and(|(at, _)| *at <= now) {
            self.forget_longest_away();
        }
        given_up
    }

    fn forget_longest_away(&mut self) -> bool {
        let Some((_, node)) = self.away.pop_front() else {
            return false;
        };
        if let Some(of_node) = self.by_node.remove(&node) {
            self.away_instances -= of_node.instances.len();
            for instance in of_node.instances {
                let entry = self.by_uuid.get(&instance);
                // A START in flight is answered at its deadline.
                if entry.is_some_and(|entry| !matches!(entry.state, State::Starting(_))) {
                    self.remove(instance);
                }
            }
        }
        true
    }

    /// A node says that it does not have an instance. If its START was given up, its UUID is
    /// free now: gives whether it was.
    pub(super) fn is_absent(&mut self, instance: Uuid) -> bool {
        let entry = self.by_uuid.get(&instance);
        let given_up = entry.is_some_and(|entry| matches!(entry.state, State::GivenUp));
        if given_up {
            self.forget(instance);
        }
        given_up
    }

    /// A START has come to nothing.
    fn answered(&mut self, instance: Uuid, pending: &PendingStart) {
        self.due.remove(&(pending.deadline, instance));
        self.remember(instance, pending.allocation.node, true);
        self.forget(instance);
    }

    fn remember(&mut self, instance: Uuid, node: Uuid, is_owner: bool) {
        if self.answered.len() >= MOST_ANSWERED {
            self.answered.pop_front();
        }
        self.answered.push_back(Answered {
            instance,
            node,
            is_owner,
        });
    }

    fn forget(&mut self, instance: Uuid) {
        if let Some(node) = self.remove(instance).and_then(|entry| entry.node)
            && let Some(of_node) = self.by_node.get_mut(&node)
            && of_node.instances.remove(&instance)
            && of_node.is_away
        {
            self.away_instances -= 1;
        }
    }
}
