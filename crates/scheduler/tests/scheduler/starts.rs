//! Placement, held STARTs, and STARTs that are lost with their node.

use std::time::Duration;

use ssntp::Role;
use ssntp::proto::{Command, ErrorCode, Event, Frame, Status, Trace};
use ssntp::transport::Limits;
use ssntp_payload::{
    Evacuate, InstanceState, Maintenance, Ready, Reason, Start, StartFailure, Stats, Storage,
};
use ssntp_scheduler::SchedulerConfig;
use ssntp_scheduler::placement::Policy;
use uuid::Uuid;

use super::{Cluster, expect_failure, expect_start, ready, refused, send_ready, start, start_on, stats};
use crate::client::Client;

/// The time for which a node may be disconnected in these tests.
const SOON: Duration = Duration::from_millis(10);

/// STATS that confirm a START.
fn runs(node: Uuid, instance: Uuid) -> Stats {
    let mut stats = stats(node, &[instance]);
    stats.instances[0].state = InstanceState::Active;
    stats
}

#[test]
fn a_start_without_a_node_of_its_type_fails_with_no_cn_or_no_net_cn() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut network = start(1);
    network.requirements.network_node = true;
    refused(&mut controller, &start(1), Reason::NoCn);
    refused(&mut controller, &network, Reason::NoNetCn);
    let _net = cluster.agent(Role::NETAGENT, &mut [&mut controller]);
    refused(&mut controller, &start(1), Reason::NoCn);
    let _cn = cluster.agent(Role::AGENT, &mut [&mut controller]);
    let _cnci = cluster.connect(Role::CNCIAGENT);
}

#[test]
fn a_start_that_fits_no_node_fails_with_full_cloud() {
    let cluster = Cluster::opportunistic();
    let mut controller = cluster.controller();
    let node = cluster.node(1000, &mut [&mut controller]);
    let with = |change: &dyn Fn(&mut Start)| {
        let mut start = start(1);
        change(&mut start);
        start
    };
    let disk = Storage {
        local: true,
        size: 200,
        ..Storage::default()
    };
    for start in [
        with(&|s| s.requirements.mem_mb = 1001),
        with(&|s| s.requirements.vcpus = 9),
        with(&|s| s.storage = vec![disk.clone()]),
        with(&|s| s.requirements.hostname = "elsewhere".into()),
        with(&|s| s.requirements.node_id = Uuid::from_u128(1).into()),
        with(&|s| s.requirements.node_id = "rack1".into()),
        with(&|s| s.requirements.node_id = controller_uuid()),
    ] {
        refused(&mut controller, &start, Reason::FullCloud);
    }
    drop(node);
}

#[test]
fn a_misspelt_node_is_named_in_the_failure() {
    let cluster = Cluster::opportunistic();
    let mut controller = cluster.controller();
    let _node = cluster.node(1000, &mut [&mut controller]);
    let changes: [fn(&mut Start); 4] = [
        |start| start.requirements.labels = [("zone".to_owned(), "c".to_owned())].into(),
        |start| start.requirements.node_id = "rack1".into(),
        |start| start.requirements.hostname = "elsewhere".into(),
        |start| start.requirements.mem_mb = 1001,
    ];
    let details = [
        "no connected node has the label zone=c",
        "no node rack1 is connected",
        "no connected node has the host name elsewhere",
        "",
    ];
    for (change, detail) in changes.into_iter().zip(details) {
        let mut start = start(1);
        change(&mut start);
        controller.send_payload(&start);
        let failure = expect_failure(&mut controller, &start, Reason::FullCloud);
        assert_eq!(failure.detail, detail);
    }
}

#[test]
fn a_start_runs_on_a_node_that_has_the_labels_that_it_requires() {
    let cluster = Cluster::opportunistic();
    let mut controller = cluster.controller();
    let mut plain = cluster.node(1000, &mut [&mut controller]);
    let mut labelled = cluster.node(1000, &mut [&mut controller]);
    let zone = |zone: &str| [("zone".to_owned(), zone.to_owned())].into();
    let of_a = Ready {
        labels: zone("a"),
        ..ready(labelled.uuid, 1000)
    };
    labelled.send_payload(&of_a);
    labelled.expect_nothing();
    let wanted = || {
        let mut start = start(1);
        start.requirements.labels = zone("a");
        start
    };
    for _ in 0..3 {
        start_on(&mut controller, &mut labelled, &wanted());
    }
    plain.expect_nothing();
    // Its label is known also in maintenance, so the failure does not blame the label.
    labelled.send_payload(&Maintenance { ready: Some(of_a) });
    labelled.expect_nothing();
    let start = wanted();
    controller.send_payload(&start);
    assert_eq!(
        expect_failure(&mut controller, &start, Reason::FullCloud).detail,
        ""
    );
    labelled.send_payload(&Maintenance {
        ready: Some(ready(labelled.uuid, 1000)),
    });
    labelled.expect_nothing();
    let start = wanted();
    controller.send_payload(&start);
    let failure = expect_failure(&mut controller, &start, Reason::FullCloud);
    assert_eq!(failure.detail, "no connected node has the label zone=a");
}

fn controller_uuid() -> ssntp::payload::Id {
    Uuid::from_u128(0xc0).into()
}

#[test]
fn a_start_failure_names_the_instance_and_repeats_restart() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut start = start(1);
    start.restart = true;
    controller.send_payload(&start);
    let failure = expect_failure(&mut controller, &start, Reason::NoCn);
    assert!(failure.restart && failure.node_uuid.is_empty());
}

#[test]
fn every_controller_receives_failures_of_the_scheduler() {
    let cluster = Cluster::strict();
    let mut one = cluster.controller();
    let mut two = cluster.controller();
    let start = start(1);
    one.send_payload(&start);
    expect_failure(&mut one, &start, Reason::NoCn);
    expect_failure(&mut two, &start, Reason::NoCn);
}

#[test]
fn a_start_arrives_byte_for_byte_held_or_not() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let [first, held] = [1, 2].map(|instance| {
        let payload = format!(
            "# kept\nstart:\n  instance_uuid: {}\n  unknown: [1, 2]\n---\n#cloud-config\n\n---\n{{\"a\": 1}}\n",
            Uuid::from_u128(instance)
        );
        Frame::with_payload(Command::START, payload)
    });
    controller.send(&first);
    assert_eq!(node.recv(), first);
    controller.send(&held);
    controller.expect_nothing();
    node.send_payload(&super::ready(node.uuid, 1000));
    assert_eq!(node.recv(), held);
}

#[test]
fn load_spreads_over_the_nodes_in_turn() {
    let cluster = Cluster::opportunistic();
    let mut controller = cluster.controller();
    let mut nodes = [(); 3].map(|()| cluster.node(1000, &mut [&mut controller]));
    let starts: Vec<_> = (0..6).map(|_| start(100)).collect();
    for start in &starts {
        controller.send_payload(start);
    }
    controller.expect_nothing();
    for node in &mut nodes {
        assert_eq!(node.drain().len(), 2);
    }
}

/// STARTs of a workload of two instances, as a controller sends them.
fn pair() -> [Start; 2] {
    let (first, mut second) = (start(1), start(1));
    second.apart_from = vec![first.instance_uuid.into()];
    [first, second]
}

#[test]
fn siblings_run_on_different_nodes_if_others_have_room() {
    for strict in [true, false] {
        let cluster = if strict {
            Cluster::strict()
        } else {
            Cluster::opportunistic()
        };
        let mut controller = cluster.controller();
        let mut nodes = [(); 2].map(|()| cluster.node(1000, &mut [&mut controller]));
        let pairs: Vec<_> = (0..12).map(|_| pair()).collect();
        for start in pairs.iter().flatten() {
            controller.send_payload(start);
        }
        controller.expect_nothing();
        // The first node is far quicker than the second one.
        let mut on_first = Vec::new();
        for turn in 0..80 {
            let node = &mut nodes[usize::from(turn % 5 == 4)];
            let given = node.drain();
            for frame in &given {
                let start: Start = frame.payload().unwrap();
                if turn % 5 != 4 {
                    on_first.push(start.instance_uuid);
                }
            }
            if strict && !given.is_empty() {
                node.send_payload(&ready(node.uuid, 1000));
            }
        }
        for [first, second] in &pairs {
            let both = [first, second].map(|start| on_first.contains(&start.instance_uuid));
            assert!(both[0] != both[1], "strict: {strict}");
        }
    }
}

#[test]
fn siblings_share_a_node_if_no_other_has_room() {
    let cluster = Cluster::new(SchedulerConfig::new().held(1, 1 << 20, Duration::from_millis(50)));
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let [first, mut second] = pair();
    start_on(&mut controller, &mut node, &first);
    send_ready(&mut node, 1000);
    start_on(&mut controller, &mut node, &second);
    send_ready(&mut node, 1000);
    // A node without siblings that is not ready is waited for, and not longer than any START waits.
    let mut other = cluster.agent(Role::AGENT, &mut [&mut controller]);
    second.instance_uuid = Uuid::new_v4();
    controller.send_payload(&second);
    expect_start(&mut node, &second);
    send_ready(&mut node, 1000);
    // It does not wait if there is no place in the queue.
    let mut bound = start(1);
    bound.requirements.node_id = other.uuid.into();
    controller.send_payload(&bound);
    second.instance_uuid = Uuid::new_v4();
    controller.send_payload(&second);
    expect_start(&mut node, &second);
    other.drain();
}

#[test]
fn a_node_that_is_drained_gets_no_start_and_keeps_its_instances() {
    let cluster = Cluster::opportunistic();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    start_on(&mut controller, &mut node, &start(1));
    controller.send_payload(&Evacuate {
        workload_agent_uuid: node.uuid.into(),
        drain: true,
        ..Evacuate::default()
    });
    assert!(node.expect_payload::<Evacuate>().drain);
    // This READY is from before it received EVACUATE.
    send_ready(&mut node, 1000);
    node.expect_nothing();
    refused(&mut controller, &start(1), Reason::FullCloud);
    node.expect_nothing();
}

#[test]
fn requirements_choose_the_node() {
    let cluster = Cluster::opportunistic();
    let mut controller = cluster.controller();
    let mut nodes = [(); 3].map(|()| cluster.node(1000, &mut [&mut controller]));
    let mut network = cluster.agent(Role::NETAGENT, &mut [&mut controller]);
    send_ready(&mut network, 1000);
    for node in &mut nodes {
        let mut by_uuid = start(100);
        by_uuid.requirements.node_id = node.uuid.into();
        start_on(&mut controller, node, &by_uuid);
        let mut by_name = start(100);
        by_name.requirements.hostname = format!("host-{}", node.uuid);
        start_on(&mut controller, node, &by_name);
    }
    let mut on_network = start(100);
    on_network.requirements.network_node = true;
    start_on(&mut controller, &mut network, &on_network);
    // This node has the wrong type.
    let mut wrong = start(100);
    wrong.requirements.node_id = network.uuid.into();
    refused(&mut controller, &wrong, Reason::FullCloud);
}

#[test]
fn full_offline_and_maintenance_nodes_get_no_start_until_ready() {
    for status in [Status::FULL, Status::OFFLINE, Status::MAINTENANCE] {
        let cluster = Cluster::strict();
        let mut controller = cluster.controller();
        let mut node = cluster.node(1000, &mut [&mut controller]);
        node.send(&Frame::new(status));
        node.expect_nothing();
        controller.drain();
        refused(&mut controller, &start(1), Reason::FullCloud);
        send_ready(&mut node, 1000);
        start_on(&mut controller, &mut node, &start(1));
    }
}

#[test]
fn strict_holds_a_start_until_the_next_ready() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let [first, second, third] = [500, 400, 300].map(start);
    start_on(&mut controller, &mut node, &first);
    controller.send_payload(&second);
    controller.send_payload(&third);
    refused(&mut controller, &start(1001), Reason::FullCloud);
    node.expect_nothing();
    node.send_payload(&super::ready(node.uuid, 500));
    expect_start(&mut node, &second);
    node.expect_nothing();
    // A START that no longer fits then is answered.
    node.send_payload(&super::ready(node.uuid, 100));
    expect_failure(&mut controller, &third, Reason::FullCloud);
    node.expect_nothing();
}

#[test]
fn the_oldest_held_start_that_fits_goes_first() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut large = cluster.node(1000, &mut [&mut controller]);
    start_on(&mut controller, &mut large, &start(1));
    let mut small = cluster.node(100, &mut [&mut controller]);
    start_on(&mut controller, &mut small, &start(1));
    let [big, little] = [500, 50].map(start);
    controller.send_payload(&big);
    controller.send_payload(&little);
    controller.expect_nothing();
    small.send_payload(&super::ready(small.uuid, 100));
    expect_start(&mut small, &little);
    large.send_payload(&super::ready(large.uuid, 1000));
    expect_start(&mut large, &big);
}

#[test]
fn the_queue_of_held_starts_is_bounded() {
    let cluster = Cluster::new(SchedulerConfig::new().held(2, 1 << 20, Duration::from_secs(3600)));
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    start_on(&mut controller, &mut node, &start(1));
    let held = [start(1), start(1)];
    for start in &held {
        controller.send_payload(start);
    }
    refused(&mut controller, &start(1), Reason::FullCloud);
    for start in &held {
        node.send_payload(&super::ready(node.uuid, 1000));
        expect_start(&mut node, start);
    }
}

#[test]
fn no_time_limit_is_too_long() {
    let (config, max) = (SchedulerConfig::new(), Duration::MAX);
    let config = config.held(2, 1 << 20, max).start_time(max, max);
    let cluster = Cluster::new(config.absence(max).stats_interval(max));
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let [first, second] = [1, 1].map(start);
    start_on(&mut controller, &mut node, &first);
    node.send_payload(&stats(node.uuid, &[first.instance_uuid]));
    controller.expect(Command::STATS);
    controller.send_payload(&second);
    controller.expect_nothing();
    node.send_payload(&ready(node.uuid, 1000));
    expect_start(&mut node, &second);
    drop(node);
    controller.expect(Event::NODE_DISCONNECTED);
    controller.expect_nothing();
}

#[test]
fn a_start_that_is_held_too_long_is_answered() {
    let cluster = Cluster::new(SchedulerConfig::new().held(8, 1 << 20, Duration::from_millis(20)));
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    start_on(&mut controller, &mut node, &start(1));
    let held = [start(1), start(2)];
    for start in &held {
        controller.send_payload(start);
    }
    for start in &held {
        expect_failure(&mut controller, start, Reason::FullCloud);
    }
}

#[test]
fn a_held_start_is_answered_when_its_node_disconnects() {
    let cluster = Cluster::new(SchedulerConfig::new().absence(SOON));
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let [first, second] = [1, 1].map(start);
    start_on(&mut controller, &mut node, &first);
    controller.send_payload(&second);
    controller.expect_nothing();
    drop(node);
    controller.expect(Event::NODE_DISCONNECTED);
    expect_failure(&mut controller, &second, Reason::NoCn);
    expect_failure(&mut controller, &first, Reason::LaunchFailure);
}

#[test]
fn starts_wait_for_a_node_that_ended_its_session_in_order() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let node = cluster.node(1000, &mut [&mut controller]);
    let uuid = node.uuid;
    node.close();
    controller.expect(Event::NODE_DISCONNECTED);
    let [early, late] = [1, 1].map(start);
    controller.send_payload(&early);
    controller.expect_nothing();
    let mut node = cluster.agent_as(uuid);
    controller.expect(Event::NODE_CONNECTED);
    send_ready_to(&mut node, &early);
    // This time the node does not reconnect.
    node.close();
    controller.expect(Event::NODE_DISCONNECTED);
    controller.send_payload(&late);
    expect_failure(&mut controller, &late, Reason::NoCn);
}

#[test]
fn a_held_start_waits_for_a_node_whose_next_session_takes_the_place_of_its_present_one() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let [first, held] = [1, 1].map(start);
    start_on(&mut controller, &mut node, &first);
    controller.send_payload(&held);
    controller.expect_nothing();
    let mut back = cluster.agent_as(node.uuid);
    controller.expect(Event::NODE_DISCONNECTED);
    controller.expect(Event::NODE_CONNECTED);
    send_ready_to(&mut back, &held);
}

/// Sends READY, and receives the START that was held for it.
#[track_caller]
fn send_ready_to(node: &mut Client, held: &Start) {
    node.send_payload(&ready(node.uuid, 1000));
    let given: Start = node.expect_payload();
    assert_eq!(given.instance_uuid, held.instance_uuid);
}

#[test]
fn a_held_start_waits_for_another_node_when_there_is_one() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut one = cluster.node(1000, &mut [&mut controller]);
    let mut two = cluster.node(1000, &mut [&mut controller]);
    controller.send_payload(&start(1));
    controller.send_payload(&start(1));
    one.expect(Command::START);
    two.expect(Command::START);
    let held = start(1);
    controller.send_payload(&held);
    controller.expect_nothing();
    one.send(&Frame::new(Status::FULL));
    one.expect_nothing();
    controller.expect_nothing();
    two.send(&Frame::new(Status::FULL));
    two.expect_nothing();
    expect_failure(&mut controller, &held, Reason::FullCloud);
}

#[test]
fn a_start_is_held_for_a_node_that_just_connected() {
    for cluster in [Cluster::strict(), Cluster::opportunistic()] {
        let mut controller = cluster.controller();
        let mut node = cluster.agent(Role::AGENT, &mut [&mut controller]);
        let start = start(1);
        controller.send_payload(&start);
        controller.expect_nothing();
        node.expect_nothing();
        node.send_payload(&super::ready(node.uuid, 1000));
        expect_start(&mut node, &start);
    }
}

#[test]
fn opportunistic_policy_subtracts_placed_starts() {
    let cluster = Cluster::opportunistic();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    start_on(&mut controller, &mut node, &start(600));
    start_on(&mut controller, &mut node, &start(400));
    refused(&mut controller, &start(1), Reason::FullCloud);
    send_ready(&mut node, 300);
    start_on(&mut controller, &mut node, &start(300));
}

#[test]
fn a_failed_start_uses_no_room_of_its_node() {
    for cluster in [Cluster::strict(), Cluster::opportunistic()] {
        let mut controller = cluster.controller();
        let mut node = cluster.node(1000, &mut [&mut controller]);
        let [first, second] = [1000, 1000].map(start);
        start_on(&mut controller, &mut node, &first);
        fail(&mut node, &first, Reason::ImageFailure);
        controller.expect(ErrorCode::START_FAILURE);
        start_on(&mut controller, &mut node, &second);
        // This failure shows that the node has less room than in its READY.
        fail(&mut node, &second, Reason::FullCn);
        controller.expect(ErrorCode::START_FAILURE);
        let third = start(1000);
        controller.send_payload(&third);
        controller.drain();
        node.expect_nothing();
    }
}

fn fail(node: &mut Client, start: &Start, reason: Reason) {
    let failure = StartFailure {
        node_uuid: node.uuid.into(),
        instance_uuid: start.instance_uuid.into(),
        reason,
        restart: start.restart,
        ..StartFailure::default()
    };
    node.send_payload(&failure);
}

#[test]
fn starts_of_an_agent_that_vanishes_are_answered_unless_confirmed() {
    let cluster = Cluster::new(SchedulerConfig::new().policy(Policy::Opportunistic).absence(SOON));
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let mut starts = [(); 5].map(|()| start(1));
    starts[4].restart = true;
    for start in &starts {
        start_on(&mut controller, &mut node, start);
    }
    let [listed, failed, deleted, lost, restarted] = &starts;
    node.send_payload(&runs(node.uuid, listed.instance_uuid));
    fail(&mut node, failed, Reason::ImageFailure);
    let event = format!("instance_deleted: {{instance_uuid: {}}}\n", deleted.instance_uuid);
    node.send_text(Event::INSTANCE_DELETED, &event);
    node.expect_nothing();
    assert_eq!(controller.drain().len(), 3);
    let uuid = node.uuid;
    drop(node);
    controller.expect(Event::NODE_DISCONNECTED);
    let mut answered: Vec<StartFailure> = (0..2).map(|_| controller.expect_payload()).collect();
    answered.sort_by_key(|failure| failure.restart);
    for (failure, start) in answered.iter().zip([lost, restarted]) {
        assert_eq!(failure.instance_uuid, start.instance_uuid);
        assert_eq!(
            (&failure.reason, failure.restart),
            (&Reason::LaunchFailure, start.restart)
        );
        assert_eq!(failure.node_uuid, uuid);
    }
    controller.expect_nothing();
}

#[test]
fn a_start_beyond_the_limit_in_flight_is_refused() {
    let config = SchedulerConfig::new().policy(Policy::Opportunistic).in_flight(2);
    let cluster = Cluster::new(config);
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let [first, second, third] = [1, 1, 1].map(start);
    start_on(&mut controller, &mut node, &first);
    start_on(&mut controller, &mut node, &second);
    refused(&mut controller, &third, Reason::FullCloud);
    // Only STATS of the node settle a START and make room.
    node.send_payload(&runs(node.uuid, first.instance_uuid));
    controller.expect(Command::STATS);
    start_on(&mut controller, &mut node, &third);
}

#[test]
fn stats_of_another_node_do_not_confirm_a_start() {
    let cluster = Cluster::new(SchedulerConfig::new().absence(SOON));
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let mut liar = cluster.agent(Role::AGENT, &mut [&mut controller]);
    let start = start(1);
    start_on(&mut controller, &mut node, &start);
    liar.send_payload(&runs(liar.uuid, start.instance_uuid));
    fail(&mut liar, &start, Reason::ImageFailure);
    assert_eq!(liar.drain().len(), 0);
    controller.drain();
    drop(node);
    controller.expect(Event::NODE_DISCONNECTED);
    expect_failure(&mut controller, &start, Reason::LaunchFailure);
}

#[test]
fn starts_for_a_node_that_does_not_read_are_answered() {
    let limits = Limits {
        frames: 1 << 18,
        bytes: 1 << 20,
    };
    let config = SchedulerConfig::new().policy(Policy::Opportunistic).absence(SOON);
    let cluster = Cluster::with(config, |server| server.queue(limits));
    let mut controller = cluster.controller();
    let _node = cluster.node(1000, &mut [&mut controller]);
    let padding = "x".repeat(300_000);
    for _ in 0..6 {
        let payload = format!("start:\n  instance_uuid: {}\n---\n{padding}\n", Uuid::new_v4());
        controller.send_text(Command::START, &payload);
    }
    let mut frames = controller.drain();
    while frames.len() < 7 {
        frames.push(controller.recv());
    }
    let answered = frames
        .iter()
        .filter(|frame| frame.kind() == ErrorCode::START_FAILURE);
    assert_eq!(answered.count(), 6);
    controller.expect_nothing();
}

#[test]
fn a_traced_start_keeps_its_trace_held_or_not() {
    let cluster = Cluster::strict();
    let mut controller = Client::connect_traced(&cluster.listener, Role::CONTROLLER);
    let mut node = Client::connect_traced(&cluster.listener, Role::AGENT);
    controller.expect(Event::NODE_CONNECTED);
    let starts = [1, 2].map(start);
    for start in &starts {
        controller.send(&Frame::of(start).traced(Trace::new("one START")));
    }
    for start in &starts {
        controller.expect_nothing();
        node.send_payload(&super::ready(node.uuid, 1000));
        let frame = node.recv();
        assert_eq!(
            frame.payload::<Start>().unwrap().instance_uuid,
            start.instance_uuid
        );
        let trace = frame.trace().unwrap();
        assert_eq!(trace.label(), "one START");
        let hop = trace.nodes()[0];
        assert_eq!(hop.role, Role::SCHEDULER);
        assert!(0 < hop.received_at && hop.received_at <= hop.sent_at);
    }
}
