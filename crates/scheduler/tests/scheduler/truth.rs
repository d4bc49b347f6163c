//! Reports about instances are true: the peers that may send them, the time at which a START counts
//! as carried out, and the one answer of each START.

use std::time::Duration;

use ssntp::Role;
use ssntp::proto::{Command, ErrorCode, Event, Frame, FrameKind};
use ssntp_payload::{
    Delete, DeleteFailure, InstanceDeleted, InstanceEnd, InstanceState, InstanceStats, InstanceStopped,
    NodeStatus, PublicIpAssigned, Reason, Start, StartFailure, Stats, Stop, StopFailure, TenantAdded,
};
use ssntp_scheduler::SchedulerConfig;
use ssntp_scheduler::placement::Policy;
use uuid::Uuid;

use super::client::Client;
use super::{Cluster, expect_failure, expect_no_frames, expect_start, refused, start, start_on, stats};

/// STATS in which each instance is in this state.
fn in_state(node: Uuid, state: &InstanceState, instances: &[Uuid]) -> Stats {
    let mut stats = stats(node, instances);
    for instance in &mut stats.instances {
        instance.state = state.clone();
    }
    stats
}

fn failed(node: Uuid, start: &Start, reason: Reason) -> StartFailure {
    StartFailure {
        node_uuid: node.into(),
        instance_uuid: start.instance_uuid.into(),
        reason,
        ..StartFailure::default()
    }
}

fn several() -> SchedulerConfig {
    SchedulerConfig::new().policy(Policy::Opportunistic)
}

fn two_nodes(cluster: &Cluster) -> (Client, Client, Client) {
    let mut controller = cluster.controller();
    let one = cluster.node(1000, &mut [&mut controller]);
    let two = cluster.node(1000, &mut [&mut controller]);
    (controller, one, two)
}

#[test]
fn pending_does_not_confirm_a_start() {
    let cluster = Cluster::new(several().absence(Duration::from_millis(10)));
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let [pending, runs, ended] = [1, 1, 1].map(start);
    for start in [&pending, &runs, &ended] {
        start_on(&mut controller, &mut node, start);
    }
    let mut report = stats(
        node.uuid,
        &[pending.instance_uuid, runs.instance_uuid, ended.instance_uuid],
    );
    report.instances[1].state = InstanceState::Active;
    report.instances[2].state = InstanceState::Exited;
    node.send_payload(&report);
    controller.expect(Command::STATS);
    drop(node);
    controller.expect(Event::NODE_DISCONNECTED);
    expect_failure(&mut controller, &pending, Reason::LaunchFailure);
    controller.expect_nothing();
}

#[test]
fn a_running_uuid_is_not_started_twice_by_any_controller() {
    let cluster = Cluster::new(several());
    let (mut controller, mut one, mut two) = two_nodes(&cluster);
    let mut other = cluster.controller();
    other.drain();
    let (runs, stopped) = (start(1), start(1));
    let mut report = in_state(
        one.uuid,
        &InstanceState::Active,
        &[runs.instance_uuid, stopped.instance_uuid],
    );
    report.instances[1].state = InstanceState::Exited;
    one.send_payload(&report);
    controller.expect(Command::STATS);
    other.expect(Command::STATS);
    for (start, reason) in [
        (&runs, Reason::AlreadyRunning),
        (&stopped, Reason::InstanceExists),
    ] {
        other.send_payload(start);
        let failure = expect_failure(&mut other, start, reason);
        assert_eq!(failure.node_uuid, one.uuid, "the failure names the node");
    }
    // Only the sender gets it, so it does not settle an order of another controller.
    controller.expect_nothing();
    one.expect_nothing();
    two.expect_nothing();
}

#[test]
fn a_uuid_that_is_being_started_or_held_is_not_started_twice() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let mut other = cluster.controller();
    other.drain();
    let [given, held] = [1, 1].map(start);
    start_on(&mut controller, &mut node, &given);
    controller.send_payload(&held);
    controller.expect_nothing();
    for start in [&given, &held] {
        other.send_payload(start);
        expect_failure(&mut other, start, Reason::AlreadyRunning);
    }
    controller.expect_nothing();
    node.expect_nothing();
}

#[test]
fn a_held_start_is_refused_once_a_node_reports_that_it_runs_the_instance() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut waiting = cluster.agent(Role::AGENT, &mut [&mut controller]);
    let start = start(1);
    controller.send_payload(&start);
    controller.expect_nothing();
    // This node was away when the scheduler started.
    let mut owner = cluster.agent(Role::AGENT, &mut [&mut controller]);
    owner.send_payload(&in_state(
        owner.uuid,
        &InstanceState::Exited,
        &[start.instance_uuid],
    ));
    let passed: Stats = controller.expect_payload();
    assert!(
        passed.instances.is_empty(),
        "the START is placed: the instance does not run"
    );
    owner.send_payload(&in_state(
        owner.uuid,
        &InstanceState::Active,
        &[start.instance_uuid],
    ));
    let passed: Stats = controller.expect_payload();
    assert_eq!(passed.instances.len(), 1);
    let failure = expect_failure(&mut controller, &start, Reason::AlreadyRunning);
    assert_eq!(failure.node_uuid, owner.uuid);
    super::send_ready(&mut waiting, 1000);
    refused(&mut controller, &start, Reason::AlreadyRunning);
}

#[test]
fn a_node_that_is_away_keeps_its_instances() {
    let cluster = Cluster::new(several());
    let (mut controller, mut one, mut two) = two_nodes(&cluster);
    let runs = start(1);
    one.send_payload(&in_state(one.uuid, &InstanceState::Active, &[runs.instance_uuid]));
    controller.expect(Command::STATS);
    drop(one);
    controller.expect(Event::NODE_DISCONNECTED);
    controller.send_payload(&runs);
    expect_failure(&mut controller, &runs, Reason::AlreadyRunning);
    two.expect_nothing();
}

#[test]
fn stats_in_the_name_of_another_node_are_dropped() {
    let cluster = Cluster::new(several());
    let (mut controller, one, mut two) = two_nodes(&cluster);
    for name in [one.uuid, Uuid::new_v4(), Uuid::nil()] {
        two.send_payload(&stats(name, &[Uuid::from_u128(1)]));
    }
    two.send_text(Command::STATS, "node_uuid: rack1\n");
    two.send_text(Command::STATS, "node_uuid: [");
    expect_no_frames(&mut two, &mut [&mut controller]);
    // The snapshot of a later controller does not have these STATS either.
    let mut later = cluster.controller();
    later.expect(Event::NODE_CONNECTED);
    later.expect(Event::NODE_CONNECTED);
    later.expect_nothing();
}

#[test]
fn an_instance_on_two_nodes_is_shown_and_can_be_deleted_on_the_second() {
    let cluster = Cluster::new(several());
    let (mut controller, mut owner, mut second) = two_nodes(&cluster);
    let third = cluster.node(1000, &mut [&mut controller]);
    let twice = Uuid::new_v4();
    for (node, instances, foreign) in [(&mut owner, 1, vec![]), (&mut second, 0, vec![twice.into()])] {
        let report = in_state(node.uuid, &InstanceState::Active, &[twice]);
        node.send_payload(&report);
        let passed: Stats = controller.expect_payload();
        assert_eq!((passed.instances.len(), passed.foreign), (instances, foreign));
    }
    let delete = |node: Uuid| Delete {
        instance_uuid: twice.into(),
        workload_agent_uuid: node.into(),
        stop: false,
    };
    controller.send_payload(&delete(third.uuid));
    controller.expect_payload::<DeleteFailure>();
    controller.send_payload(&delete(second.uuid));
    assert_eq!(second.expect_payload::<Delete>(), delete(second.uuid));
    // Events of this node would free the UUID, which still belongs to the owner.
    second.send_payload(&InstanceDeleted {
        instance_uuid: twice.into(),
        ..Default::default()
    });
    second.send_payload(&stats(second.uuid, &[]));
    let passed: Stats = controller.expect_payload();
    assert!(passed.foreign.is_empty());
    expect_no_frames(&mut second, &mut [&mut controller]);
    controller.send_payload(&delete(second.uuid));
    controller.expect_payload::<DeleteFailure>();
    controller.send_payload(&delete(owner.uuid));
    assert_eq!(owner.expect_payload::<Delete>(), delete(owner.uuid));
}

#[test]
fn reports_about_instances_of_other_nodes_are_dropped() {
    let cluster = Cluster::new(several());
    let (mut controller, mut liar, mut honest) = two_nodes(&cluster);
    let runs = start(1);
    honest.send_payload(&in_state(
        honest.uuid,
        &InstanceState::Active,
        &[runs.instance_uuid],
    ));
    controller.expect(Command::STATS);
    let mut given = start(1);
    given.requirements.node_id = honest.uuid.into();
    start_on(&mut controller, &mut honest, &given);
    for start in [&runs, &given] {
        let instance_uuid = start.instance_uuid.into();
        liar.send_payload(&failed(liar.uuid, start, Reason::ImageFailure));
        liar.send_payload(&failed(honest.uuid, start, Reason::ImageFailure));
        liar.send_payload(&StopFailure {
            node_uuid: honest.uuid.into(),
            instance_uuid: start.instance_uuid.into(),
            ..StopFailure::default()
        });
        liar.send_payload(&InstanceStopped {
            instance_uuid,
            ..Default::default()
        });
        let instance_uuid = start.instance_uuid.into();
        liar.send_payload(&InstanceDeleted {
            instance_uuid,
            ..Default::default()
        });
        // A key that receivers ignore does not hide the key that they read.
        let hidden = format!(
            "a: {{}}\ninstance_deleted: {{instance_uuid: {}}}\n",
            start.instance_uuid
        );
        liar.send_text(Event::INSTANCE_DELETED, &hidden);
    }
    expect_no_frames(&mut liar, &mut [&mut controller]);
    // The node's own part of the report is forwarded.
    let own = Uuid::new_v4();
    let claim = in_state(
        liar.uuid,
        &InstanceState::Exited,
        &[runs.instance_uuid, own, given.instance_uuid],
    );
    liar.send_payload(&claim);
    let passed: Stats = controller.expect_payload();
    let listed: Vec<_> = passed.instances.iter().map(|i| i.instance_uuid.clone()).collect();
    assert_eq!(listed, [ssntp::payload::Id::from(own)]);
    assert_eq!(
        (passed.node_uuid, passed.hostname),
        (claim.node_uuid, claim.hostname)
    );
    // Only the node of the START can answer it.
    honest.send_payload(&failed(honest.uuid, &given, Reason::ImageFailure));
    expect_failure(&mut controller, &given, Reason::ImageFailure);
}

#[test]
fn a_concentrator_reports_only_on_itself() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut cnci = cluster.connect(Role::CNCIAGENT);
    let mut liar = cluster.connect(Role::CNCIAGENT);
    let assigned = PublicIpAssigned {
        concentrator_uuid: cnci.uuid.into(),
        public_ip: "198.51.100.20".into(),
        ..PublicIpAssigned::default()
    };
    liar.send_payload(&assigned);
    expect_no_frames(&mut liar, &mut [&mut controller]);
    cnci.send_payload(&assigned);
    assert_eq!(controller.expect_payload::<PublicIpAssigned>(), assigned);
}

#[test]
fn a_start_has_one_answer_even_if_its_agent_repeats_the_failure() {
    let cluster = Cluster::new(several());
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let start = start(1);
    start_on(&mut controller, &mut node, &start);
    let failure = failed(node.uuid, &start, Reason::ImageFailure);
    node.send_payload(&failure);
    expect_failure(&mut controller, &start, Reason::ImageFailure);
    // An agent repeats the failure after it has connected again.
    let mut again = Client::connect_as(&cluster.listener, Role::AGENT, node.uuid);
    controller.expect(Event::NODE_DISCONNECTED);
    controller.expect(Event::NODE_CONNECTED);
    again.send_payload(&failure);
    expect_no_frames(&mut again, &mut [&mut controller]);
    drop(node);
}

#[test]
fn a_repeated_failure_of_an_earlier_start_does_not_answer_a_later_one_of_the_instance() {
    let cluster = Cluster::new(several());
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let start = start(1);
    let [first, second] = ["first", "second"].map(|id| StartFailure {
        command_id: id.into(),
        ..failed(node.uuid, &start, Reason::ImageFailure)
    });
    for failure in [&first, &second] {
        let text = String::from_utf8(Frame::of(&start).payload_bytes().to_vec()).unwrap();
        let id = format!("start:\n  command_id: {}\n", failure.command_id);
        controller.send_text(Command::START, &text.replacen("start:\n", &id, 1));
        expect_start(&mut node, &start);
        if *failure == second {
            // As an agent that has connected again.
            node.send_payload(&first);
            expect_no_frames(&mut node, &mut [&mut controller]);
        }
        node.send_payload(failure);
        let answer = expect_failure(&mut controller, &start, Reason::ImageFailure);
        assert_eq!(answer.command_id, failure.command_id);
    }
}

#[test]
fn a_restarted_scheduler_forwards_repeated_failures() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let start = start(1);
    node.send_payload(&failed(node.uuid, &start, Reason::ImageFailure));
    expect_failure(&mut controller, &start, Reason::ImageFailure);
}

#[test]
fn after_a_kill_the_next_scheduler_learns_the_instances_and_each_start_has_one_answer() {
    let before = Cluster::new(several());
    let mut controller = before.controller();
    let mut node = before.node(1000, &mut [&mut controller]);
    let [runs, ended, pending] = [1, 1, 1].map(start);
    for start in [&runs, &ended, &pending] {
        start_on(&mut controller, &mut node, start);
    }
    // The next scheduler has no state.
    let after = Cluster::new(several());
    let mut controller = after.controller();
    let mut again = Client::connect_as(&after.listener, Role::AGENT, node.uuid);
    controller.expect(Event::NODE_CONNECTED);
    let mut other = after.node(1000, &mut [&mut controller]);
    let all = [&runs, &ended, &pending].map(|start| start.instance_uuid);
    let mut report = stats(again.uuid, &all);
    report.instances[0].state = InstanceState::Active;
    report.instances[1].state = InstanceState::Exited;
    again.send_payload(&report);
    controller.expect(Command::STATS);
    refused(&mut controller, &runs, Reason::AlreadyRunning);
    refused(&mut controller, &ended, Reason::InstanceExists);
    refused(&mut controller, &pending, Reason::AlreadyRunning);
    // Reports of another node do not count, before and after the answer of the owner.
    let of_other = failed(other.uuid, &pending, Reason::ImageFailure);
    other.send_payload(&of_other);
    expect_no_frames(&mut other, &mut [&mut controller]);

    let failure = failed(again.uuid, &pending, Reason::ImageFailure);
    again.send_payload(&failure);
    expect_failure(&mut controller, &pending, Reason::ImageFailure);
    again.send_payload(&failure);
    expect_no_frames(&mut again, &mut [&mut controller]);
    other.send_payload(&of_other);
    expect_no_frames(&mut other, &mut [&mut controller]);
    start_on(&mut controller, &mut other, &pending);
}

#[test]
fn a_start_is_answered_by_the_first_stats_of_a_returning_agent() {
    let cluster = Cluster::new(several());
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let [runs, pending, failed_there, lost] = [1, 1, 1, 1].map(start);
    for start in [&runs, &pending, &failed_there, &lost] {
        start_on(&mut controller, &mut node, start);
    }
    let mut again = Client::connect_as(&cluster.listener, Role::AGENT, node.uuid);
    controller.expect(Event::NODE_DISCONNECTED);
    controller.expect(Event::NODE_CONNECTED);
    controller.expect_nothing();
    again.send_payload(&failed(again.uuid, &failed_there, Reason::ImageFailure));
    expect_failure(&mut controller, &failed_there, Reason::ImageFailure);
    let mut report = stats(again.uuid, &[runs.instance_uuid, pending.instance_uuid]);
    report.instances[0].state = InstanceState::Active;
    again.send_payload(&report);
    controller.expect(Command::STATS);
    expect_failure(&mut controller, &lost, Reason::LaunchFailure);
    // An instance that was being launched and is not listed any more has failed as well.
    again.send_payload(&in_state(
        again.uuid,
        &InstanceState::Active,
        &[runs.instance_uuid],
    ));
    controller.expect(Command::STATS);
    expect_failure(&mut controller, &pending, Reason::LaunchFailure);
    controller.expect_nothing();
    drop(node);
}

#[test]
fn a_start_without_an_answer_fails_and_does_not_run_later() {
    let cluster = Cluster::new(several().start_time(Duration::from_secs(60), Duration::from_millis(20)));
    let mut controller = cluster.controller();
    let mut frozen = cluster.node(1000, &mut [&mut controller]);
    let start = start(1);
    start_on(&mut controller, &mut frozen, &start);
    let failure = expect_failure(&mut controller, &start, Reason::LaunchFailure);
    assert_eq!(failure.node_uuid, frozen.uuid);
    // The instance may be starting on its node, so it is not started on another one.
    controller.send_payload(&start);
    expect_failure(&mut controller, &start, Reason::AlreadyRunning);
    // An instance whose START was answered with a failure is deleted.
    let delete: ssntp_payload::Delete = frozen.expect_payload();
    assert_eq!(delete.instance_uuid, start.instance_uuid);
    frozen.send_payload(&failed(frozen.uuid, &start, Reason::LaunchFailure));
    frozen.send_payload(&InstanceDeleted {
        instance_uuid: start.instance_uuid.into(),
        ..Default::default()
    });
    controller.expect(Event::INSTANCE_DELETED);
    controller.expect_nothing();
    start_on(&mut controller, &mut frozen, &start);
    // The START never arrived, so the node has no instance to delete. No controller sent the DELETE.
    expect_failure(&mut controller, &start, Reason::LaunchFailure);
    frozen.expect(Command::DELETE);
    frozen.send_payload(&ssntp_payload::DeleteFailure {
        node_uuid: frozen.uuid.into(),
        instance_uuid: start.instance_uuid.into(),
        reason: ssntp_payload::Reason::NoInstance,
        ..ssntp_payload::DeleteFailure::default()
    });
    expect_no_frames(&mut frozen, &mut [&mut controller]);
    start_on(&mut controller, &mut frozen, &start);
}

#[test]
fn held_starts_are_answered_when_the_scheduler_stops() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    start_on(&mut controller, &mut node, &start(1));
    let held = [start(1), start(1)];
    for start in &held {
        controller.send_payload(start);
    }
    controller.expect_nothing();
    cluster.stop();
    for start in &held {
        expect_failure(&mut controller, start, Reason::FullCloud);
    }
}

#[test]
fn a_node_without_stats_is_stale_until_it_reports_again() {
    let cluster = Cluster::new(several().stats_interval(Duration::from_millis(10)));
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let instance = Uuid::from_u128(1);
    let mut report = in_state(node.uuid, &InstanceState::Active, &[instance]);
    report.status = NodeStatus::Ready;
    report.hostname = "n1".into();
    node.send_payload(&report);
    let stale = loop {
        let stats: Stats = controller.expect_payload();
        if stats.status == NodeStatus::Stale && !stats.instances.is_empty() {
            break stats;
        }
    };
    assert_eq!(
        (stale.node_uuid, stale.hostname.as_str()),
        (node.uuid.into(), "n1")
    );
    assert_eq!(stale.instances, report.instances);
    controller.send_payload(&start(1));
    controller.expect(ErrorCode::START_FAILURE);
    node.expect_nothing();
    node.send_payload(&InstanceStopped {
        instance_uuid: instance.into(),
        end: InstanceEnd::default(),
    });
    controller.expect(Event::INSTANCE_STOPPED);
    // A new controller receives the same, and the event after it.
    let mut later = cluster.controller();
    later.expect(Event::NODE_CONNECTED);
    assert_eq!(later.expect_payload::<Stats>().status, NodeStatus::Stale);
    later.expect(Event::INSTANCE_STOPPED);
    // The node states its own interval, which is long.
    let mut again = Frame::of(&report).payload_bytes().to_vec();
    again.extend(b"interval: 1000\n");
    node.send(&Frame::with_payload(Command::STATS, again));
    assert_eq!(controller.expect_payload::<Stats>().status, NodeStatus::Ready);
    start_on(&mut controller, &mut node, &start(1));
}

#[test]
fn a_concentrator_that_reconnects_receives_the_tenants_that_it_missed() {
    let cluster = Cluster::strict();
    let mut agent = cluster.connect(Role::AGENT);
    let cnci = Uuid::new_v4();
    let own = agent_uuid(&agent);
    let added = |tenant: &str| TenantAdded {
        agent_uuid: own.clone(),
        tenant_uuid: tenant.into(),
        tenant_subnet: "172.16.0.0/24".into(),
        concentrator_uuid: cnci.into(),
        ..TenantAdded::default()
    };
    // A report that cannot be forwarded is not kept.
    for subnet in ["", "everywhere"] {
        agent.send_payload(&TenantAdded {
            tenant_subnet: subnet.into(),
            ..added("lost")
        });
    }
    agent.send_payload(&added(&"x".repeat(3000)));
    let (stays, goes) = (added("stays"), added("goes"));
    agent.send_payload(&stays);
    agent.send_payload(&goes);
    agent.expect_nothing();
    let mut back = Client::connect_as(&cluster.listener, Role::CNCIAGENT, cnci);
    let mut events: Vec<TenantAdded> = (0..2).map(|_| back.expect_payload()).collect();
    events.sort_by_key(|tenant| tenant.tenant_uuid.clone());
    assert_eq!(events, [goes.clone(), stays.clone()]);
    // A removal while it is away is sent as well.
    drop(back);
    let removed = format!(
        "tenant_removed:\n  agent_uuid: {}\n  tenant_uuid: goes\n  tenant_subnet: 172.16.0.9/24\n  concentrator_uuid: {cnci}\n",
        agent.uuid
    );
    cluster.wait_disconnected(cnci);
    agent.send_text(Event::TENANT_REMOVED, &removed);
    agent.expect_nothing();
    let mut back = Client::connect_as(&cluster.listener, Role::CNCIAGENT, cnci);
    let mut kinds = [back.recv().kind(), back.recv().kind()];
    kinds.sort_by_key(|kind| kind.operand);
    assert_eq!(
        kinds,
        [Event::TENANT_ADDED, Event::TENANT_REMOVED].map(FrameKind::from)
    );
    back.expect_nothing();
}

/// One certificate may open many sessions.
#[test]
fn reports_about_tenants_are_bounded_for_each_agent_and_in_all() {
    let cluster = Cluster::strict();
    let cnci = Uuid::new_v4();
    let mut agent = cluster.connect(Role::AGENT);
    for n in 0..4100 {
        agent.send_payload(&TenantAdded {
            tenant_uuid: format!("{n}").as_str().into(),
            tenant_subnet: "172.16.0.0/24".into(),
            concentrator_uuid: cnci.into(),
            ..TenantAdded::default()
        });
    }
    agent.expect_nothing();
    let mut back = Client::connect_as(&cluster.listener, Role::CNCIAGENT, cnci);
    for _ in 0..4096 {
        back.expect(Event::TENANT_ADDED);
    }
    back.expect_nothing();
}

fn agent_uuid(agent: &Client) -> ssntp::payload::Id {
    agent.uuid.into()
}

#[test]
fn commands_for_an_instance_of_another_node_are_answered() {
    let cluster = Cluster::new(several());
    let (mut controller, mut one, mut two) = two_nodes(&cluster);
    let runs = Uuid::new_v4();
    one.send_payload(&in_state(one.uuid, &InstanceState::Active, &[runs]));
    controller.expect(Command::STATS);
    controller.send_payload(&Stop {
        instance_uuid: runs.into(),
        workload_agent_uuid: two.uuid.into(),
        stop: false,
    });
    let failure: StopFailure = controller.expect_payload();
    assert_eq!(failure.instance_uuid, runs);
    two.expect_nothing();
}

#[test]
fn the_sender_of_configure_gets_it_back_as_confirmation() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut other = cluster.controller();
    let yaml = "configure:\n  launcher:\n    child_user: first\n";
    for _ in 0..2 {
        controller.send_text(Command::CONFIGURE, yaml);
        assert_eq!(controller.expect(Command::CONFIGURE).payload_bytes(), yaml);
    }
    controller.expect_nothing();
    other.expect_nothing();
}

#[test]
fn oversized_reports_are_dropped() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut agent = cluster.node(1000, &mut [&mut controller]);
    let long = "x".repeat(1 << 16);
    let about = Uuid::new_v4();
    agent.send_text(
        ErrorCode::START_FAILURE,
        &format!("instance_uuid: {about}\nreason: {long}\n"),
    );
    agent.send_text(
        Event::INSTANCE_DELETED,
        &format!("instance_deleted: {{instance_uuid: {about}, x: {long}}}\n"),
    );
    let long = long.repeat(8);
    agent.send_text(Event::TRACE_REPORT, &format!("frames: [{{label: {long}}}]\n"));
    expect_no_frames(&mut agent, &mut [&mut controller]);
}

#[test]
fn an_instance_without_a_uuid_belongs_to_no_node() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut agent = cluster.node(1000, &mut [&mut controller]);
    let mut report = stats(agent.uuid, &[]);
    report.instances = vec![InstanceStats::default(); 2];
    agent.send_payload(&report);
    assert_eq!(controller.expect_payload::<Stats>().instances.len(), 2);
}

/// Its node is away while the scheduler is started again.
#[test]
fn an_instance_is_not_started_a_second_time_after_a_restart_of_the_scheduler() {
    let dir = tempfile::tempdir().unwrap();
    let config = || several().state(dir.path());
    let (runs, ended) = (start(1), start(1));
    let node = {
        let cluster = Cluster::new(config());
        let mut controller = cluster.controller();
        let mut node = cluster.node(1000, &mut [&mut controller]);
        for start in [&runs, &ended] {
            start_on(&mut controller, &mut node, start);
        }
        node.send_payload(&in_state(
            node.uuid,
            &InstanceState::Active,
            &[runs.instance_uuid, ended.instance_uuid],
        ));
        controller.expect(Command::STATS);
        let uuid = node.uuid;
        cluster.stop();
        uuid
    };
    let cluster = Cluster::new(config());
    let mut controller = cluster.controller();
    let mut other = cluster.node(1000, &mut [&mut controller]);
    controller.send_payload(&runs);
    let failure = expect_failure(&mut controller, &runs, Reason::AlreadyRunning);
    assert_eq!(failure.node_uuid, node);
    other.expect_nothing();

    // The node has reconnected, and one of the two instances has ended.
    let mut back = cluster.agent_as(node);
    controller.expect(Event::NODE_CONNECTED);
    back.send_payload(&in_state(node, &InstanceState::Active, &[runs.instance_uuid]));
    controller.expect(Command::STATS);
    refused(&mut controller, &runs, Reason::AlreadyRunning);
    start_on(&mut controller, &mut other, &ended);
}
