//! Which instance is where, and how far it has come: a table without clock or
//! I/O, fed by what agents say.
//!
//! ```text
//!             START                    STATS: it runs, or has ended
//!  (nobody's) ─────▶ Held ─▶ Starting ─────────────────▶ Running ◀─▶ Ended
//!      ▲               │       │   │ no word in time                   │
//!      │ full_cloud    │       │   └─────────▶ GivenUp ── DELETE ──┐   │
//!      └───────────────┴───────┴─────────────────────┴─────────────┴───┘
//!                        StartFailure     STATS no longer list it, InstanceDeleted
//! ```
//!
//! An instance belongs to the node that was given its START, or that was the
//! first to list it. Another node that lists it is not believed.
//!
//! A START is done once its node lists the instance as anything but `pending`.
//! It has a deadline, which each `pending` moves: that is the sign that the node
//! is at work on it, copying an image perhaps. But it has no more than
//! [`StartLimits::most`] in all. One that nobody has answered by then is *given up*:
//! answered with `launch_failure`, and deleted as soon as its node says that it
//! has it, so that the answer is true. Until then its UUID is not free.
//!
//! What belongs to a node that has left stays its own for [`AWAY`], since
//! instances outlive agents and connections. A START that it had been given is
//! answered after [`StartLimits::absence`], unless the node comes back; its first
//! STATS then tell what became of each.
//!
//! Memory is bounded by the sessions: a node owns what its last STATS list, which
//! are of a bounded length, and what it was given since; those that are away own
//! [`MOST_AWAY`] together.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::figures::InstanceFigures;
use super::placement::Allocation;
use super::starts::Waiting;
use ssntp::payload::{InstanceState, StartFailureReason};

/// How long an instance stays that of a node that is away: a machine boots in
/// that time.
const AWAY: Duration = Duration::from_secs(600);
/// How many instances of nodes that are away are remembered, at some 200 bytes
/// each. When there are more, those of the node that left first are forgotten.
const MOST_AWAY: usize = 65_536;
/// How many STARTs that failed are remembered, so that what an agent says again
/// is not passed on again: more than one agent repeats.
const MOST_ANSWERED: usize = 4096;

/// How long a START may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartLimits {
    /// Without a sign of its node.
    pub(super) quiet: Duration,
    /// In all.
    pub(super) most: Duration,
    /// When its node has left.
    pub(super) absence: Duration,
}

/// A START that a node was pending.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingStart {
    pub(super) allocation: Allocation,
    pub(super) restart: bool,
    /// When the START came.
    pub(super) received: Instant,
    deadline: Instant,
    /// Its node has listed it, or has to with its next STATS.
    expected: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Its START waits for a node.
    Held,
    Starting(PendingStart),
    /// Its node says that it is starting, as it says after RESTART, or to a
    /// scheduler that was started anew.
    Pending,
    /// It runs, or is about to end.
    Running,
    /// It has ended, and its node keeps it.
    Ended,
    /// Its START was answered with a failure, and its node has not said yet that
    /// it is not there.
    GivenUp,
}

#[derive(Debug)]
struct Entry {
    /// None while it is held.
    node: Option<Uuid>,
    state: State,
    since: Instant,
}

/// What is there of a node.
#[derive(Debug, Default)]
struct OfNode {
    instances: HashSet<Uuid>,
    away_until: Option<Instant>,
}

/// What STATS have told beyond what was known.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Instances that belong to others.
    pub(super) foreign: HashSet<Uuid>,
    /// When the STARTs came that are done.
    pub(super) started: Vec<Instant>,
    /// STARTs that have come to nothing without a word.
    pub(super) lost: Vec<(Uuid, PendingStart)>,
    /// Instances that are there though their START was answered with a failure.
    pub(super) unwanted: Vec<Uuid>,
}

/// What a StartFailure is.
#[derive(Debug)]
pub(super) enum StartFailed {
    /// The answer to this START.
    Answer(PendingStart),
    /// Of a START that nobody here knows, as after a restart of the scheduler.
    Unknown,
    /// An answer that was given before.
    Repeated,
    /// About an instance of another node.
    Foreign,
}

#[derive(Debug)]
pub(super) struct Instances {
    by_uuid: HashMap<Uuid, Entry>,
    by_node: HashMap<Uuid, OfNode>,
    /// The deadline of each START that a node was pending.
    due: BTreeSet<(Instant, Uuid)>,
    max_starting: usize,
    patience: StartLimits,
    /// Who is away, the longest first, some of them back already; and how many
    /// instances they have.
    away: VecDeque<(Instant, Uuid)>,
    away_instances: usize,
    /// Instances and nodes of STARTs that failed, the latest last.
    answered: VecDeque<(Uuid, Uuid)>,
}

impl Instances {
    pub(super) fn new(max_starting: usize, patience: StartLimits) -> Self {
        Self {
            by_uuid: HashMap::new(),
            by_node: HashMap::new(),
            due: BTreeSet::new(),
            max_starting,
            patience,
            away: VecDeque::new(),
            away_instances: 0,
            answered: VecDeque::new(),
        }
    }

    /// Why an instance cannot be started, and the node that has it.
    pub(super) fn taken(&self, instance: Uuid) -> Option<(StartFailureReason, Option<Uuid>)> {
        let entry = self.by_uuid.get(&instance)?;
        let reason = match entry.state {
            State::Ended => StartFailureReason::InstanceExists,
            _ => StartFailureReason::AlreadyRunning,
        };
        Some((reason, entry.node))
    }

    /// Whether so many wait for an answer that no node should get another.
    pub(super) fn is_full(&self) -> bool {
        self.due.len() >= self.max_starting
    }

    /// What a node has, is starting, or was given; and whether that has ended.
    pub(super) fn of(&self, node: Uuid) -> Vec<(Uuid, bool)> {
        let own = self.by_node.get(&node).into_iter();
        let own = own.flat_map(|of_node| &of_node.instances);
        own.filter_map(|instance| match self.by_uuid.get(instance)?.state {
            State::Held | State::GivenUp => None,
            State::Ended => Some((*instance, true)),
            State::Starting(_) | State::Pending | State::Running => Some((*instance, false)),
        })
        .collect()
    }

    /// The node that an instance belongs to.
    pub(super) fn node_of(&self, instance: Uuid) -> Option<Uuid> {
        self.by_uuid.get(&instance)?.node
    }

    /// Whether somebody else than `node` has an instance, or is to get it.
    pub(super) fn is_foreign(&self, instance: Uuid, node: Uuid) -> bool {
        self.by_uuid
            .get(&instance)
            .is_some_and(|entry| entry.node != Some(node))
    }

    /// The START of an instance waits for a node.
    pub(super) fn hold(&mut self, instance: Uuid, now: Instant) {
        let held = Entry {
            node: None,
            state: State::Held,
            since: now,
        };
        self.by_uuid.entry(instance).or_insert(held);
    }

    /// A START that was held, or has just come, is answered.
    pub(super) fn refused(&mut self, instance: Uuid) {
        let is_held = |entry: &&Entry| matches!(entry.state, State::Held);
        if self.by_uuid.get(&instance).filter(is_held).is_some() {
            self.by_uuid.remove(&instance);
        }
    }

    /// A node was given a START. It tells of itself every `interval`.
    pub(super) fn give(&mut self, start: &Waiting, allocation: Allocation, interval: Duration, now: Instant) {
        let instance = start.instance;
        let pending = PendingStart {
            allocation,
            restart: start.restart,
            received: start.received,
            deadline: self.patience.deadline(now, interval, now),
            expected: false,
        };
        self.due.insert((pending.deadline, instance));
        let node = allocation.node;
        self.by_node.entry(node).or_default().instances.insert(instance);
        let starting = Entry {
            node: Some(node),
            state: State::Starting(pending),
            since: now,
        };
        self.by_uuid.insert(instance, starting);
    }

    /// STATS of a node, which list these instances.
    pub(super) fn report(
        &mut self,
        node: Uuid,
        listed: &[(Uuid, InstanceState)],
        interval: Duration,
        now: Instant,
    ) -> Report {
        let mut report = Report::default();
        let mut own = HashSet::with_capacity(listed.len());
        for (instance, told) in listed {
            let state = match told {
                InstanceState::Pending => State::Pending,
                InstanceState::Exited | InstanceState::Missing | InstanceState::Deleted => State::Ended,
                _ => State::Running,
            };
            let fresh = Entry {
                node: Some(node),
                state,
                since: now,
            };
            let entry = self.by_uuid.entry(*instance).or_insert(fresh);
            if entry.node != Some(node) {
                report.foreign.insert(*instance);
                continue;
            }
            if !own.insert(*instance) {
                continue;
            }
            match &mut entry.state {
                State::Starting(pending) => {
                    self.due.remove(&(pending.deadline, *instance));
                    if *told == InstanceState::Pending {
                        pending.expected = true;
                        pending.deadline = self.patience.deadline(entry.since, interval, now);
                        self.due.insert((pending.deadline, *instance));
                    } else {
                        report.started.push(pending.received);
                        (entry.state, entry.since) = (state, now);
                    }
                }
                State::GivenUp if *told != InstanceState::Stopping => report.unwanted.push(*instance),
                State::GivenUp | State::Held => {}
                State::Pending | State::Running | State::Ended => {
                    if std::mem::discriminant(&entry.state) != std::mem::discriminant(&state) {
                        (entry.state, entry.since) = (state, now);
                    }
                }
            }
        }
        let of_node = self.by_node.entry(node).or_default();
        for instance in std::mem::replace(&mut of_node.instances, own) {
            if of_node.instances.contains(&instance) {
                continue;
            }
            // It crossed the START, unless the node has said that it had come.
            let starting = self.by_uuid.get(&instance).map(|entry| entry.state);
            if let Some(State::Starting(pending)) = starting {
                if !pending.expected {
                    of_node.instances.insert(instance);
                    continue;
                }
                report.lost.push((instance, pending));
            } else {
                self.by_uuid.remove(&instance);
            }
        }
        for (instance, pending) in &report.lost {
            self.answered(*instance, pending);
        }
        report
    }

    /// InstanceDeleted or InstanceStopped of the node that it belongs to, which
    /// keeps it or does not. It was there, so that its START is done: when that
    /// had come, where it is done by this.
    pub(super) fn over(&mut self, instance: Uuid, is_kept: bool, now: Instant) -> Option<Instant> {
        let entry = self.by_uuid.get_mut(&instance)?;
        let mut started = None;
        if let State::Starting(pending) = entry.state {
            self.due.remove(&(pending.deadline, instance));
            started = Some(pending.received);
        }
        if is_kept && !matches!(entry.state, State::GivenUp) {
            (entry.state, entry.since) = (State::Ended, now);
        } else if !is_kept {
            self.forget(instance);
        }
        started
    }

    /// How many are in each state.
    pub(super) fn figures(&self) -> InstanceFigures {
        let mut figures = InstanceFigures::default();
        for entry in self.by_uuid.values() {
            *match entry.state {
                State::Held => &mut figures.held,
                State::Starting(_) => &mut figures.starting,
                State::Pending => &mut figures.pending,
                State::Running => &mut figures.running,
                State::Ended => &mut figures.ended,
                State::GivenUp => &mut figures.given_up,
            } += 1;
        }
        figures
    }

    /// STARTs that wait for the answer of their node, and the most of them.
    pub(super) fn in_flight(&self) -> (usize, usize) {
        (self.due.len(), self.max_starting)
    }

    /// A StartFailure that a node has said.
    pub(super) fn failed(
        &mut self,
        instance: Uuid,
        node: Uuid,
        reason: &StartFailureReason,
        now: Instant,
    ) -> StartFailed {
        let Some(entry) = self.by_uuid.get_mut(&instance) else {
            if self.answered.contains(&(instance, node)) {
                return StartFailed::Repeated;
            }
            self.remember(instance, node);
            return StartFailed::Unknown;
        };
        if entry.node != Some(node) {
            return StartFailed::Foreign;
        }
        match entry.state {
            State::Starting(pending) => {
                self.answered(instance, &pending);
                if reason.instance_is_there() {
                    // Which of the two, its next STATS tell.
                    let entry = Entry {
                        node: Some(node),
                        state: State::Running,
                        since: now,
                    };
                    self.by_uuid.insert(instance, entry);
                    self.by_node.entry(node).or_default().instances.insert(instance);
                }
                StartFailed::Answer(pending)
            }
            State::GivenUp => {
                self.forget(instance);
                StartFailed::Repeated
            }
            State::Pending => {
                self.forget(instance);
                self.remember(instance, node);
                StartFailed::Unknown
            }
            _ if reason.instance_is_there() => StartFailed::Unknown,
            _ => StartFailed::Repeated,
        }
    }

    /// A node has left.
    pub(super) fn left(&mut self, node: Uuid, now: Instant) {
        let Some(of_node) = self.by_node.get_mut(&node) else {
            return;
        };
        if of_node.instances.is_empty() {
            self.by_node.remove(&node);
            return;
        }
        let until = now + AWAY;
        of_node.away_until = Some(until);
        self.away.push_back((until, node));
        self.away_instances += of_node.instances.len();
        for instance in &of_node.instances {
            if let Some(entry) = self.by_uuid.get_mut(instance)
                && let State::Starting(pending) = &mut entry.state
            {
                self.due.remove(&(pending.deadline, *instance));
                pending.expected = true;
                pending.deadline = pending.deadline.min(now + self.patience.absence);
                self.due.insert((pending.deadline, *instance));
            }
        }
        while self.away_instances > MOST_AWAY && self.forget_longest_away() {}
    }

    /// A node is there, perhaps again.
    pub(super) fn returned(&mut self, node: Uuid) {
        if let Some(of_node) = self.by_node.get_mut(&node)
            && of_node.away_until.take().is_some()
        {
            self.away_instances -= of_node.instances.len();
            self.away.retain(|(_, away)| *away != node);
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let start = self.due.first().map(|(at, _)| *at);
        let away = self.away.front().map(|(at, _)| *at);
        [start, away].into_iter().flatten().min()
    }

    /// STARTs that nobody has answered in time; they are given up.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<(Uuid, PendingStart)> {
        let mut given_up = Vec::new();
        while let Some((at, instance)) = self.due.first().copied()
            && at <= now
        {
            self.due.pop_first();
            if let Some(entry) = self.by_uuid.get_mut(&instance)
                && let State::Starting(pending) = entry.state
            {
                (entry.state, entry.since) = (State::GivenUp, now);
                given_up.push((instance, pending));
            }
        }
        for (instance, pending) in &given_up {
            let node = pending.allocation.node;
            self.remember(*instance, node);
            // Its node was forgotten before.
            if !self.by_node.contains_key(&node) {
                self.by_uuid.remove(instance);
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
            // A START that is still open is answered at its time.
            for instance in of_node.instances {
                if let Some(entry) = self.by_uuid.get(&instance)
                    && !matches!(entry.state, State::Starting(_))
                {
                    self.by_uuid.remove(&instance);
                }
            }
        }
        true
    }

    /// Whether a node does not have an instance whose START was given up, as it
    /// says: then its UUID is free.
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
        self.remember(instance, pending.allocation.node);
        self.forget(instance);
    }

    fn remember(&mut self, instance: Uuid, node: Uuid) {
        if self.answered.len() >= MOST_ANSWERED {
            self.answered.pop_front();
        }
        self.answered.push_back((instance, node));
    }

    fn forget(&mut self, instance: Uuid) {
        if let Some(node) = self.by_uuid.remove(&instance).and_then(|entry| entry.node)
            && let Some(of_node) = self.by_node.get_mut(&node)
            && of_node.instances.remove(&instance)
            && of_node.away_until.is_some()
        {
            self.away_instances -= 1;
        }
    }
}

impl StartLimits {
    /// Of a START that was given at `since`, by a sign that came now from a node
    /// that tells of itself every `interval`: it may miss two.
    fn deadline(&self, since: Instant, interval: Duration, now: Instant) -> Instant {
        (now + self.quiet.max(interval * 3)).min(since + self.most)
    }
}

#[cfg(test)]
mod tests {
    use InstanceState::{Active, Exited, Pending, Stopping};

    use super::*;
    use crate::scheduler::placement::{Needs, Placement, Policy, Verdict};
    use ssntp::payload::Ready;
    use ssntp::proto::{Command, Frame};

    const NODE: Uuid = Uuid::from_u128(0xa);
    const OTHER: Uuid = Uuid::from_u128(0xb);
    const ONE: Uuid = Uuid::from_u128(1);
    const TWO: Uuid = Uuid::from_u128(2);
    const SECOND: Duration = Duration::from_secs(1);
    const INTERVAL: Duration = Duration::from_secs(30);

    /// A table, its clock, and a node that takes STARTs.
    struct Stage {
        table: Instances,
        now: Instant,
    }

    impl Stage {
        fn new() -> Self {
            let patience = StartLimits {
                quiet: SECOND * 60,
                most: SECOND * 900,
                absence: SECOND * 15,
            };
            #[expect(clippy::disallowed_methods, reason = "any time will do")]
            let now = Instant::now();
            let table = Instances::new(3, patience);
            Self { table, now }
        }

        fn give(&mut self, instance: Uuid, node: Uuid) {
            let mut placement = Placement::new(Policy::Strict);
            placement.connect(node, ssntp::Role::AGENT);
            placement.ready(node, &Ready::default());
            let Verdict::Placed(allocation) = placement.place(&Needs::default(), None) else {
                panic!("it has room");
            };
            let start = Waiting {
                frame: Frame::new(Command::START),
                needs: Needs::default(),
                instance,
                restart: false,
                from: Uuid::nil(),
                received: self.now,
                stays: None,
                restarts: false,
            };
            self.table.give(&start, allocation, INTERVAL, self.now);
        }

        fn says(&mut self, node: Uuid, listed: &[(Uuid, InstanceState)]) -> Report {
            self.table.report(node, listed, INTERVAL, self.now)
        }

        fn pass(&mut self, time: Duration) -> Vec<Uuid> {
            self.now += time;
            let given_up = self.table.expire(self.now);
            given_up.into_iter().map(|(instance, _)| instance).collect()
        }

        fn lost(report: &Report) -> Vec<Uuid> {
            report.lost.iter().map(|(instance, _)| *instance).collect()
        }

        /// Nothing is remembered of anybody.
        fn is_empty(&self) -> bool {
            let Instances {
                by_uuid,
                by_node,
                due,
                away,
                away_instances,
                ..
            } = &self.table;
            by_node.values().all(|of_node| of_node.instances.is_empty())
                && by_uuid.is_empty()
                && due.is_empty()
                && away.is_empty()
                && *away_instances == 0
        }
    }

    #[test]
    fn each_sign_moves_the_deadline_of_a_start_but_not_for_ever() {
        let mut stage = Stage::new();
        stage.give(ONE, NODE);
        // Three intervals are longer than a minute.
        assert!(stage.pass(SECOND * 89).is_empty());
        for _ in 0..9 {
            stage.says(NODE, &[(ONE, Pending)]);
            assert!(stage.pass(SECOND * 89).is_empty(), "it is at work");
        }
        stage.says(NODE, &[(ONE, Pending)]);
        assert_eq!(stage.pass(SECOND * 10), [ONE], "fifteen minutes are over");
        assert_eq!(stage.table.next_due(), None);
    }

    #[test]
    fn a_start_that_was_given_up_is_deleted_when_it_turns_up_and_its_uuid_is_free_then() {
        let mut stage = Stage::new();
        stage.give(ONE, NODE);
        assert_eq!(stage.pass(SECOND * 90), [ONE]);
        let taken = (StartFailureReason::AlreadyRunning, Some(NODE));
        assert_eq!(stage.table.taken(ONE), Some(taken.clone()));
        for state in [Pending, Active, Exited] {
            assert_eq!(stage.says(NODE, &[(ONE, state)]).unwanted, [ONE]);
        }
        assert!(stage.says(NODE, &[(ONE, Stopping)]).unwanted.is_empty());
        assert_eq!(stage.table.taken(ONE), Some(taken));
        stage.says(NODE, &[]);
        assert_eq!(stage.table.taken(ONE), None);
        let again = stage
            .table
            .failed(ONE, NODE, &StartFailureReason::LaunchFailure, stage.now);
        assert!(matches!(again, StartFailed::Repeated), "it was answered");
        assert!(stage.is_empty());
    }

    #[test]
    fn stats_that_cross_a_start_say_nothing_of_it() {
        let mut stage = Stage::new();
        stage.give(ONE, NODE);
        assert!(stage.says(NODE, &[]).lost.is_empty());
        stage.says(NODE, &[(ONE, Pending)]);
        assert_eq!(Stage::lost(&stage.says(NODE, &[])), [ONE], "it was there");
        assert!(stage.is_empty());
    }

    #[test]
    fn a_node_that_left_has_a_moment_to_come_back_with_its_starts() {
        let mut stage = Stage::new();
        stage.give(ONE, NODE);
        stage.give(TWO, NODE);
        stage.table.left(NODE, stage.now);
        assert!(stage.pass(SECOND * 14).is_empty());
        stage.table.returned(NODE);
        assert_eq!(Stage::lost(&stage.says(NODE, &[(ONE, Active)])), [TWO]);
        assert!(stage.pass(SECOND * 3600).is_empty());

        stage.give(TWO, NODE);
        stage.table.left(NODE, stage.now);
        assert_eq!(stage.pass(SECOND * 15), [TWO]);
        // Both stay its own for as long as it may take to boot.
        assert!(stage.table.taken(ONE).is_some() && stage.table.taken(TWO).is_some());
        assert!(stage.table.is_foreign(ONE, OTHER));
        stage.pass(AWAY);
        assert!(stage.is_empty());
    }

    #[test]
    fn instances_of_nodes_that_are_away_are_bounded_and_starts_are_answered_all_the_same() {
        let mut stage = Stage::new();
        stage.give(ONE, NODE);
        stage.table.left(NODE, stage.now);
        let crowd: Vec<_> = (10..).take(MOST_AWAY / 4).map(Uuid::from_u128).collect();
        for round in 0..20 {
            let node = Uuid::from_u128(1 << 100 | round);
            let listed: Vec<_> = crowd
                .iter()
                .map(|uuid| (Uuid::from_u128(uuid.as_u128() | round << 64), Active))
                .collect();
            stage.says(node, &listed);
            stage.table.left(node, stage.now);
            assert!(stage.table.away_instances <= MOST_AWAY);
            assert!(stage.table.by_uuid.len() <= MOST_AWAY + 1);
        }
        assert_eq!(stage.pass(SECOND * 15), [ONE]);
        stage.pass(AWAY);
        assert!(stage.is_empty());
    }

    #[test]
    fn who_comes_and_goes_with_nothing_leaves_nothing() {
        let mut stage = Stage::new();
        for node in 0..100 {
            let node = Uuid::from_u128(node);
            stage.says(node, &[]);
            stage.table.left(node, stage.now);
        }
        assert!(stage.table.by_node.is_empty() && stage.table.away.is_empty());
    }

    #[test]
    fn what_another_node_lists_or_fails_is_not_its_own() {
        let mut stage = Stage::new();
        stage.says(NODE, &[(ONE, Active)]);
        stage.give(TWO, NODE);
        let report = stage.says(OTHER, &[(ONE, Exited), (TWO, Active)]);
        assert_eq!(report.foreign, HashSet::from([ONE, TWO]));
        let reason = StartFailureReason::ImageFailure;
        for instance in [ONE, TWO] {
            let failed = stage.table.failed(instance, OTHER, &reason, stage.now);
            assert!(matches!(failed, StartFailed::Foreign));
        }
        let failed = stage.table.failed(TWO, NODE, &reason, stage.now);
        assert!(matches!(failed, StartFailed::Answer(_)));
        let failed = stage.table.failed(TWO, NODE, &reason, stage.now);
        assert!(matches!(failed, StartFailed::Repeated));
        // It is free for the other one now.
        assert!(stage.says(OTHER, &[(TWO, Active)]).foreign.is_empty());
    }

    #[test]
    fn a_scheduler_that_was_started_anew_passes_on_how_a_start_ended() {
        let mut stage = Stage::new();
        stage.says(NODE, &[(ONE, Pending), (TWO, Pending)]);
        stage.says(NODE, &[(ONE, Active), (TWO, Pending)]);
        let reason = StartFailureReason::ImageFailure;
        let failed = stage.table.failed(TWO, NODE, &reason, stage.now);
        assert!(matches!(failed, StartFailed::Unknown), "it is the answer");
        let failed = stage.table.failed(ONE, NODE, &reason, stage.now);
        assert!(
            matches!(failed, StartFailed::Repeated),
            "it runs: that was another one"
        );
        assert_eq!(stage.table.taken(TWO), None);
    }

    #[test]
    fn the_starts_that_wait_for_an_answer_are_counted() {
        let mut stage = Stage::new();
        for instance in 0..3 {
            assert!(!stage.table.is_full());
            stage.give(Uuid::from_u128(instance), NODE);
        }
        assert!(stage.table.is_full());
        stage.says(NODE, &[(ONE, Exited)]);
        assert!(!stage.table.is_full());
        assert_eq!(
            stage.table.taken(ONE),
            Some((StartFailureReason::InstanceExists, Some(NODE)))
        );
        stage.table.over(ONE, false, stage.now);
        assert_eq!(stage.table.taken(ONE), None);
    }
}
