//! The table of instances. The test sets the clock.

use InstanceState::{Active, Exited, Pending, Stopping};

use super::*;
use crate::config::SchedulerConfig;
use crate::messages::Message;
use crate::placement::{Placement, Policy, Siblings, Verdict};
use crate::starts::Starts;
use crate::starts::ledger::{Change, Ledger};
use crate::term::Term;
use ssntp::proto::{Command, Frame};
use ssntp_cluster::Needs;
use ssntp_engine::Acting;
use ssntp_payload::Ready;
use ssntp_transport::threads;

const NODE: Uuid = Uuid::from_u128(0xa);
const OTHER: Uuid = Uuid::from_u128(0xb);
const ONE: Uuid = Uuid::from_u128(1);
const TWO: Uuid = Uuid::from_u128(2);
const SECOND: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_secs(30);

/// A table and its clock.
struct Stage {
    table: Instances,
    now: Instant,
    /// The instances that have addresses.
    leased: HashSet<Uuid>,
}

impl Stage {
    fn new() -> Self {
        let limits = StartLimits {
            quiet: SECOND * 60,
            most: SECOND * 900,
            absence: SECOND * 15,
            interval: INTERVAL,
        };
        #[expect(clippy::disallowed_methods, reason = "any time will do")]
        let now = Instant::now();
        let table = Instances::new(3, limits);
        let leased = HashSet::new();
        Self { table, now, leased }
    }

    fn give(&mut self, instance: Uuid, node: Uuid) {
        let mut placement = Placement::new(Policy::Strict);
        placement.connect(node, ssntp::Role::AGENT);
        placement.ready(node, &Ready::default());
        let Verdict::Placed(allocation) = placement.place(&Needs::default(), None, &Siblings::new()) else {
            panic!("the table has room");
        };
        let start = UnplacedStart {
            frame: Frame::new(Command::START),
            needs: Needs::default(),
            instance,
            restart: false,
            from: Uuid::nil(),
            received: self.now,
            immovable: None,
            nodes: 0,
            lacks_address: false,
            restarts: false,
        };
        self.table.assign(&start, allocation, self.now);
    }

    fn report(&mut self, node: Uuid, listed: &[(Uuid, InstanceState)]) -> Report {
        self.table.report(node, listed, INTERVAL, self.now)
    }

    fn pass(&mut self, time: Duration) -> Vec<Uuid> {
        self.now += time;
        let leased = &self.leased;
        let given_up = self.table.expire(|instance| leased.contains(&instance), self.now);
        given_up.into_iter().map(|(instance, _)| instance).collect()
    }

    fn leave(&mut self, node: Uuid) {
        let leased = &self.leased;
        self.table
            .node_left(node, |instance| leased.contains(&instance), self.now);
    }

    fn lost(report: &Report) -> Vec<Uuid> {
        report.failed.iter().map(|(instance, _)| *instance).collect()
    }

    /// True if the table keeps no state of any instance or node.
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
            && due.count() == 0
            && away.is_empty()
            && *away_instances == 0
    }
}

#[test]
fn each_report_of_a_node_moves_the_deadline_of_a_start_up_to_a_limit() {
    let mut stage = Stage::new();
    stage.give(ONE, NODE);
    // Three intervals are longer than a minute.
    assert!(stage.pass(SECOND * 89).is_empty());
    for _ in 0..9 {
        stage.report(NODE, &[(ONE, Pending)]);
        assert!(
            stage.pass(SECOND * 89).is_empty(),
            "the node is starting the instance"
        );
    }
    stage.report(NODE, &[(ONE, Pending)]);
    assert_eq!(stage.pass(SECOND * 10), [ONE], "fifteen minutes are over");
    assert_eq!(stage.table.next_deadline(), None);
}

#[test]
fn an_instance_whose_start_timed_out_is_deleted_when_reported_and_frees_its_uuid() {
    let mut stage = Stage::new();
    stage.give(ONE, NODE);
    assert_eq!(stage.pass(SECOND * 90), [ONE]);
    let taken = (Reason::AlreadyRunning, Some(NODE));
    assert_eq!(stage.table.taken(ONE), Some(taken.clone()));
    for state in [Pending, Active, Exited] {
        assert_eq!(stage.report(NODE, &[(ONE, state)]).unwanted, [ONE]);
    }
    assert!(stage.report(NODE, &[(ONE, Stopping)]).unwanted.is_empty());
    assert_eq!(stage.table.taken(ONE), Some(taken));
    stage.report(NODE, &[]);
    assert_eq!(stage.table.taken(ONE), None);
    let again = stage.table.failed(ONE, NODE, &Reason::LaunchFailure);
    assert!(
        matches!(again, StartFailed::Repeated),
        "the START was answered before"
    );
    assert!(stage.is_empty());
}

#[test]
fn stats_that_cross_a_start_do_not_answer_it() {
    let mut stage = Stage::new();
    stage.give(ONE, NODE);
    assert!(stage.report(NODE, &[]).failed.is_empty());
    stage.report(NODE, &[(ONE, Pending)]);
    assert_eq!(
        Stage::lost(&stage.report(NODE, &[])),
        [ONE],
        "the node had the instance"
    );
    assert!(stage.is_empty());
}

#[test]
fn starts_of_a_node_that_is_away_wait_for_its_return() {
    let mut stage = Stage::new();
    stage.give(ONE, NODE);
    stage.give(TWO, NODE);
    stage.leave(NODE);
    assert!(stage.pass(SECOND * 14).is_empty());
    stage.table.node_returned(NODE, true);
    assert_eq!(Stage::lost(&stage.report(NODE, &[(ONE, Active)])), [TWO]);
    assert!(stage.pass(SECOND * 3600).is_empty());

    stage.give(TWO, NODE);
    stage.leave(NODE);
    assert_eq!(stage.pass(SECOND * 15), [TWO]);
    // The node keeps both instances for the time that a machine may take to boot.
    assert!(stage.table.taken(ONE).is_some() && stage.table.taken(TWO).is_some());
    assert!(stage.table.is_foreign(ONE, OTHER));
    stage.pass(AWAY_TIME);
    assert!(stage.is_empty());
}

/// The node may use the address for as long as it likes, also while nobody sees it.
#[test]
fn an_instance_with_an_address_is_known_until_its_node_reports_its_end_or_is_lost() {
    let mut stage = Stage::new();
    stage.leased = [ONE, TWO].into();
    let (three, forgotten) = (Uuid::from_u128(3), Uuid::from_u128(4));
    stage.report(NODE, &[(ONE, Active), (TWO, Exited), (forgotten, Active)]);
    stage.leave(NODE);
    for days in 0..100 {
        stage.pass(SECOND * 86_400);
        assert!(
            stage.table.is_unknown(ONE) && stage.table.is_unknown(TWO),
            "{days}"
        );
        assert_eq!(stage.table.taken(forgotten), None);
    }
    assert_eq!(stage.table.figures()["unknown"], 2);
    assert_eq!(
        (stage.table.away_instances, stage.table.next_deadline()),
        (0, None)
    );
    // Another node cannot have it, and a move does not begin.
    assert!(stage.table.is_foreign(ONE, OTHER));
    stage.table.node_returned(NODE, true);
    assert!(!stage.table.is_unknown(ONE));
    assert_eq!(stage.report(NODE, &[(ONE, Active)]).gone, [TWO]);
    // A START in flight whose node is lost fails.
    stage.leased = [ONE, three].into();
    stage.give(three, NODE);
    stage.leave(NODE);
    let mut away = stage.table.of_away(NODE);
    away.sort();
    assert_eq!(away, [ONE, three]);
    assert!(stage.table.end_with_node(three).is_some());
    stage.pass(AWAY_TIME);
    assert_eq!(stage.table.of_away(NODE), [ONE]);
    assert!(stage.table.end_with_node(ONE).is_none());
    assert!(stage.is_empty() && stage.table.by_node.is_empty());
}

/// The table of the next scheduler, which the former one has sent its intents.
fn next(stage: &Stage) -> Stage {
    let (mut next, now) = (Stage::new(), stage.now);
    let (sent, mut term) = (stage.table.intents(|_| String::new()), Term::default());
    for bytes in Message::of(&sent) {
        match Message::decode(&bytes) {
            Some(Message::Intents(intents)) => term.store_intents(intents),
            other => panic!("{other:?}"),
        }
    }
    let intents = term.begin(Acting { token: 1, until: now }, now);
    next.table.adopt(intents, |_| false, |_| false, now);
    next
}

#[test]
fn an_instance_that_an_earlier_build_has_written_as_lost_is_lost() {
    let mut stage = Stage::new();
    let lost = Intent {
        instance: ONE,
        node: Some(Uuid::nil()),
        state: StartState::Answered,
    };
    stage.table.adopt([lost], |_| false, |_| false, stage.now);
    assert_eq!(stage.table.taken(ONE), None);
    assert_eq!(stage.report(NODE, &[(ONE, Active)]).unwanted, [ONE]);
}

#[test]
fn an_instance_that_ended_with_its_node_is_unwanted_wherever_it_is_listed() {
    let mut stage = Stage::new();
    stage.report(NODE, &[(ONE, Active)]);
    stage.leave(NODE);
    assert!(stage.table.end_with_node(ONE).is_none());
    assert_eq!(stage.table.taken(ONE), None);
    // The other schedulers do not take it for gone, once its address is free.
    let told = stage.table.take_gone();
    assert_eq!(
        told.iter().map(|intent| intent.node).collect::<Vec<_>>(),
        [Some(LOST)]
    );
    // Listed and not deleted yet, it is not one of its node for the next scheduler.
    assert_eq!(stage.report(OTHER, &[(ONE, Active)]).unwanted, [ONE]);
    stage = next(&stage);
    assert!(stage.table.taken(ONE).is_none() && stage.table.next_deadline().is_none());
    for node in [OTHER, NODE] {
        assert_eq!(stage.report(node, &[(ONE, Active)]).unwanted, [ONE]);
        assert_eq!(stage.report(node, &[]).gone, [ONE], "its UUID is free");
    }
}

#[test]
fn an_instance_that_is_started_again_is_not_the_one_that_ended_with_its_node() {
    let mut stage = Stage::new();
    stage.table.end_with_node(TWO);
    // A START that fails does not make the former instance wanted.
    stage.give(TWO, OTHER);
    let failed = stage.table.failed(TWO, OTHER, &Reason::ImageFailure);
    assert!(matches!(failed, StartFailed::Answer(_)));
    assert_eq!(next(&stage).report(NODE, &[(TWO, Active)]).unwanted, [TWO]);
    stage.give(TWO, OTHER);
    for _ in 0..2 {
        let intents = stage.table.intents(|_| String::new());
        assert_eq!((intents.len(), intents[0].node), (1, Some(OTHER)));
        let mut next = next(&stage);
        assert_eq!(next.table.node_of(TWO), Some(OTHER));
        assert!(next.report(OTHER, &[(TWO, Active)]).unwanted.is_empty());
        assert!(stage.report(OTHER, &[(TWO, Active)]).unwanted.is_empty());
    }
    stage.report(OTHER, &[]);
    assert!(stage.report(OTHER, &[(TWO, Active)]).unwanted.is_empty());
}

#[test]
fn an_instance_that_ended_with_its_node_stays_so_for_the_others_if_its_start_finds_it_there() {
    let (mut stage, mut next) = (Stage::new(), Stage::new());
    stage.table.handover.record_intents();
    stage.table.end_with_node(ONE);
    stage.give(ONE, OTHER);
    // The machine has joined again.
    let failed = stage.table.failed(ONE, OTHER, &Reason::AlreadyRunning);
    assert!(matches!(failed, StartFailed::Answer(_)));
    let mut term = Term::default();
    term.store_intents(stage.table.handover.take_intents());
    term.store_intents(stage.table.take_gone());
    let (token, until) = (1, next.now);
    let intents = term.begin(Acting { token, until }, next.now);
    next.table.adopt(intents, |_| true, |_| false, next.now);
    for mut stage in [stage, next] {
        assert_eq!(stage.report(OTHER, &[(ONE, Active)]).unwanted, [ONE]);
    }
}

#[test]
fn instances_that_come_or_leave_are_told_with_their_node() {
    let mut stage = Stage::new();
    stage.report(NODE, &[(ONE, Active), (TWO, Active)]);
    let mut moved = stage.table.take_moved();
    moved.sort();
    assert_eq!(moved, [(ONE, NODE), (TWO, NODE)]);
    stage.report(NODE, &[(ONE, Exited)]);
    assert_eq!(stage.table.take_moved(), [(TWO, NODE)]);
    stage.report(OTHER, &[(ONE, Active)]);
    stage.report(NODE, &[(ONE, Active)]);
    assert_eq!(stage.table.take_moved(), []);
}

#[test]
fn the_instances_of_a_node_that_has_left_twice_count_once() {
    let mut stage = Stage::new();
    stage.report(NODE, &[(ONE, Active)]);
    // It has left, and later the server whose link to the leader was lost ends.
    stage.leave(NODE);
    stage.now += SECOND;
    stage.leave(NODE);
    stage.table.node_returned(NODE, true);
    stage.report(NODE, &[]);
    assert!(stage.is_empty());
}

#[test]
fn instances_of_nodes_that_are_away_are_bounded_and_their_starts_are_answered() {
    let mut stage = Stage::new();
    stage.give(ONE, NODE);
    stage.leave(NODE);
    let crowd: Vec<_> = (10..).take(MAX_AWAY / 4).map(Uuid::from_u128).collect();
    for round in 0..20 {
        let node = Uuid::from_u128(1 << 100 | round);
        let listed: Vec<_> = crowd
            .iter()
            .map(|uuid| (Uuid::from_u128(uuid.as_u128() | round << 64), Active))
            .collect();
        stage.report(node, &listed);
        stage.leave(node);
        assert!(stage.table.away_instances <= MAX_AWAY);
        assert!(stage.table.by_uuid.len() <= MAX_AWAY + 1);
    }
    assert_eq!(stage.pass(SECOND * 15), [ONE]);
    stage.pass(AWAY_TIME);
    assert!(stage.is_empty());
}

#[test]
fn a_start_of_a_node_of_which_only_addresses_are_known_frees_its_uuid() {
    let mut stage = Stage::new();
    stage.leased = [TWO].into();
    stage.report(NODE, &[(TWO, Active)]);
    stage.give(ONE, NODE);
    stage.leave(NODE);
    let crowd: Vec<_> = (10..).take(MAX_AWAY).map(Uuid::from_u128).collect();
    let crowd: Vec<_> = crowd.into_iter().map(|uuid| (uuid, Active)).collect();
    stage.report(OTHER, &crowd);
    stage.leave(OTHER);
    assert_eq!(stage.pass(SECOND * 15), [ONE]);
    assert_eq!(stage.table.taken(ONE), None);
    assert!(stage.table.is_unknown(TWO));
}

#[test]
fn nodes_without_instances_leave_no_state() {
    let mut stage = Stage::new();
    for node in 0..100 {
        let node = Uuid::from_u128(node);
        stage.report(node, &[]);
        stage.leave(node);
    }
    assert!(stage.table.by_node.is_empty() && stage.table.away.is_empty());
}

#[test]
fn reports_of_another_node_do_not_change_an_instance() {
    let mut stage = Stage::new();
    stage.report(NODE, &[(ONE, Active)]);
    stage.give(TWO, NODE);
    let report = stage.report(OTHER, &[(ONE, Exited), (TWO, Active)]);
    assert_eq!(report.foreign, HashSet::from([ONE, TWO]));
    let reason = Reason::ImageFailure;
    for instance in [ONE, TWO] {
        let failed = stage.table.failed(instance, OTHER, &reason);
        assert!(matches!(failed, StartFailed::Foreign));
    }
    let failed = stage.table.failed(TWO, NODE, &reason);
    assert!(matches!(failed, StartFailed::Answer(_)));
    let failed = stage.table.failed(TWO, NODE, &reason);
    assert!(matches!(failed, StartFailed::Repeated));
    // The owner has answered, so another node's failure is still not the answer.
    for _ in 0..2 {
        let failed = stage.table.failed(TWO, OTHER, &reason);
        assert!(matches!(failed, StartFailed::Foreign));
    }
    // Its UUID is free for the other node now.
    assert!(stage.report(OTHER, &[(TWO, Active)]).foreign.is_empty());
}

#[test]
fn a_restarted_scheduler_forwards_the_failure_of_an_unknown_start() {
    let mut stage = Stage::new();
    stage.report(NODE, &[(ONE, Pending), (TWO, Pending)]);
    stage.report(NODE, &[(ONE, Active), (TWO, Pending)]);
    let reason = Reason::ImageFailure;
    let failed = stage.table.failed(TWO, NODE, &reason);
    assert!(
        matches!(failed, StartFailed::Unknown),
        "the failure answers the START"
    );
    let failed = stage.table.failed(ONE, NODE, &reason);
    assert!(
        matches!(failed, StartFailed::Repeated),
        "the instance runs, so this failure is of another START"
    );
    assert_eq!(stage.table.taken(TWO), None);
    // If no owner is known, both failures are forwarded, because either may be the owner's.
    let unknown = Uuid::from_u128(3);
    for node in [NODE, OTHER] {
        let failed = stage.table.failed(unknown, node, &reason);
        assert!(matches!(failed, StartFailed::Unknown));
    }
}

#[test]
fn the_starts_that_wait_for_an_answer_are_counted() {
    let mut stage = Stage::new();
    for instance in 0..3 {
        assert!(!stage.table.is_full());
        stage.give(Uuid::from_u128(instance), NODE);
    }
    assert!(stage.table.is_full());
    stage.report(NODE, &[(ONE, Exited)]);
    assert!(!stage.table.is_full());
    assert_eq!(stage.table.taken(ONE), Some((Reason::InstanceExists, Some(NODE))));
    stage.table.ended(ONE, false);
    assert_eq!(stage.table.taken(ONE), None);
}

#[test]
fn a_ledger_that_has_dropped_changes_gets_the_whole_table() {
    let (mut stage, (mut ledger, given)) = (Stage::new(), Ledger::unwritten());
    ledger.fall_behind();
    stage.table.handover.keep_in(ledger);
    stage.give(ONE, NODE);
    stage.table.end_with_node(TWO);
    stage.table.catch_up(false);
    given.try_iter().for_each(drop);
    stage.table.catch_up(false);
    stage.give(Uuid::from_u128(3), NODE);
    stage.table.catch_up(false);
    let all = HashMap::from([(ONE, NODE), (TWO, LOST)]);
    let next = Change::One(Uuid::from_u128(3), Some(NODE));
    assert_eq!(given.try_iter().collect::<Vec<_>>(), [Change::All(all), next]);
}

#[test]
fn a_ledger_that_has_dropped_changes_gets_the_whole_table_when_the_scheduler_ends() {
    let (mut stage, (mut ledger, given)) = (Stage::new(), Ledger::unwritten());
    ledger.fall_behind();
    stage.table.handover.keep_in(ledger);
    stage.give(ONE, NODE);
    let mut starts = Starts::new(&SchedulerConfig::new());
    starts.instances = stage.table;
    let disk = threads::spawn("disk", move || given.into_iter().last()).unwrap();
    drop(starts);
    let all = HashMap::from([(ONE, NODE)]);
    assert_eq!(disk.join().unwrap(), Some(Change::All(all)));
}
