//! EVACUATE with `move`: a movable instance is started on another node once it has ended.

use ssntp::proto::{Command, Frame, Status};
use ssntp_payload::*;
use uuid::Uuid;

use crate::client::Client;
use crate::{Cluster, expect_no_frames, expect_start, ready, send_ready, start, start_on};

/// A node that has these instances, all of which run.
fn runs(controller: &mut Client, node: &mut Client, starts: &[&Start]) {
    for start in starts {
        start_on(controller, node, start);
        send_ready(node, 1000);
    }
    let running = starts
        .iter()
        .map(|start| (start.instance_uuid, InstanceState::Active));
    reports(controller, node, &running.collect::<Vec<_>>());
}

fn evacuate(controller: &mut Client, node: &mut Client) {
    controller.send_payload(&Evacuate {
        workload_agent_uuid: node.uuid.into(),
        moves: true,
        ..Evacuate::default()
    });
    let sent: Evacuate = node.expect_payload();
    assert!(sent.moves);
}

fn stopped(controller: &mut Client, node: &mut Client, instance: Uuid) {
    node.send_payload(&InstanceStopped {
        instance_uuid: instance.into(),
        ..Default::default()
    });
    let event: InstanceStopped = controller.expect_payload();
    assert_eq!(event.instance_uuid, instance);
}

#[test]
fn a_movable_instance_is_started_elsewhere_once_it_has_ended() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    // The START is byte for byte the same, with its unknown keys.
    let movable = start(10);
    let text = format!(
        "start: {{instance_uuid: {}, colour: blue, requirements: {{mem_mb: 10}}}}\n---\n#cloud-config\n---\n{{}}\n",
        movable.instance_uuid
    );
    controller.send_text(Command::START, &text);
    node.expect_payload::<Start>();
    send_ready(&mut node, 1000);
    let persistent = Start {
        persistence: Persistence::Host,
        ..start(10)
    };
    let volume = Storage {
        id: Uuid::new_v4().into(),
        ..Storage::default()
    };
    let stored = Start {
        storage: vec![volume],
        ..start(10)
    };
    let mut bound = start(10);
    bound.requirements.node_id = node.uuid.into();
    for start in [&persistent, &stored, &bound] {
        start_on(&mut controller, &mut node, start);
        send_ready(&mut node, 1000);
    }
    let unknown = start(10);
    let instances = [&movable, &persistent, &stored, &bound, &unknown].map(|start| InstanceStats {
        instance_uuid: start.instance_uuid.into(),
        state: InstanceState::Active,
        ..InstanceStats::default()
    });
    node.send_payload(&Stats {
        node_uuid: node.uuid.into(),
        instances: instances.to_vec(),
        ..Stats::default()
    });
    controller.expect_payload::<Stats>();
    let mut other = cluster.node(1000, &mut [&mut controller]);

    evacuate(&mut controller, &mut node);
    let mut failures: Vec<_> = (0..4)
        .map(|_| {
            let failure: StartFailure = controller.expect_payload();
            assert_eq!(failure.node_uuid, node.uuid);
            (failure.instance_uuid.to_string(), failure.reason.to_string())
        })
        .collect();
    let mut expected = [
        (&persistent, "not_moved_persistent"),
        (&stored, "not_moved_storage"),
        (&bound, "not_moved_bound"),
        (&unknown, "not_moved_unknown"),
    ]
    .map(|(start, reason)| (start.instance_uuid.to_string(), reason.to_owned()));
    failures.sort();
    expected.sort();
    assert_eq!(failures, expected);
    other.expect_nothing();

    // The node may have sent a READY before it received the command.
    node.send_payload(&ready(node.uuid, 100_000));
    stopped(&mut controller, &mut node, persistent.instance_uuid);
    other.expect_nothing();
    stopped(&mut controller, &mut node, movable.instance_uuid);
    let frame = other.expect(Command::START);
    assert_eq!(frame.payload_bytes(), text.as_bytes());
    node.expect_nothing();

    // Its outcome is reported like that of any START.
    other.send_payload(&StartFailure {
        node_uuid: other.uuid.into(),
        instance_uuid: movable.instance_uuid.into(),
        reason: Reason::ImageFailure,
        restart: false,
        ..StartFailure::default()
    });
    let failure: StartFailure = controller.expect_payload();
    assert_eq!(failure.instance_uuid, movable.instance_uuid);
}

#[test]
fn deleted_instances_are_not_moved_and_restore_ends_all_moves() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let (one, two) = (start(10), start(10));
    runs(&mut controller, &mut node, &[&one, &two]);
    let mut other = cluster.node(1000, &mut [&mut controller]);
    evacuate(&mut controller, &mut node);
    controller.send_payload(&Delete {
        instance_uuid: one.instance_uuid.into(),
        workload_agent_uuid: node.uuid.into(),
        stop: true,
    });
    node.expect_payload::<Delete>();
    stopped(&mut controller, &mut node, one.instance_uuid);
    other.expect_nothing();

    controller.send_payload(&Restore {
        workload_agent_uuid: node.uuid.into(),
    });
    node.expect_payload::<Restore>();
    stopped(&mut controller, &mut node, two.instance_uuid);
    other.expect_nothing();
}

#[test]
fn a_command_that_is_refused_cancels_no_move() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let movable = start(10);
    runs(&mut controller, &mut node, &[&movable]);
    let mut other = cluster.node(1000, &mut [&mut controller]);
    evacuate(&mut controller, &mut node);
    let uuid = node.uuid;
    node.close();
    controller.expect_payload::<NodeDisconnected>();
    controller.send_payload(&Stop {
        instance_uuid: movable.instance_uuid.into(),
        workload_agent_uuid: uuid.into(),
        ..Stop::default()
    });
    let failure: StopFailure = controller.expect_payload();
    assert_eq!(failure.instance_uuid, movable.instance_uuid);
    let mut node = cluster.agent_as(uuid);
    controller.expect_payload::<NodeConnected>();
    stopped(&mut controller, &mut node, movable.instance_uuid);
    expect_start(&mut other, &movable);
}

fn refuses(node: &mut Client, instance: Uuid, reason: Reason) {
    node.send_payload(&StartFailure {
        node_uuid: node.uuid.into(),
        instance_uuid: instance.into(),
        reason,
        ..StartFailure::default()
    });
}

/// The node is evacuated with and without `move`.
#[test]
fn an_evacuating_node_gets_no_start_and_a_start_that_it_refuses_is_placed_again() {
    for moves in [false, true] {
        let cluster = Cluster::opportunistic();
        let mut controller = cluster.controller();
        let mut node = cluster.node(1000, &mut [&mut controller]);
        let persistent = Start {
            persistence: Persistence::Host,
            ..start(10)
        };
        let crossed = [start(10), persistent];
        for start in &crossed {
            start_on(&mut controller, &mut node, start);
        }
        let mut other = cluster.node(1000, &mut [&mut controller]);
        controller.send_payload(&Evacuate {
            workload_agent_uuid: node.uuid.into(),
            moves,
            ..Evacuate::default()
        });
        node.expect_payload::<Evacuate>();
        for _ in 0..3 {
            start_on(&mut controller, &mut other, &start(10));
        }
        for start in &crossed {
            refuses(&mut node, start.instance_uuid, Reason::NodeMaintenance);
            let again: Start = other.expect_payload();
            assert_eq!(again.instance_uuid, start.instance_uuid);
        }
        node.expect_nothing();
        controller.expect_nothing();
    }
}

#[test]
fn a_start_that_a_full_node_refuses_goes_to_another_one_and_is_answered_once() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let (one, two) = (start(10), start(10));
    start_on(&mut controller, &mut node, &one);
    let mut other = cluster.node(1000, &mut [&mut controller]);
    refuses(&mut node, one.instance_uuid, Reason::FullCn);
    let again: Start = other.expect_payload();
    assert_eq!(again.instance_uuid, one.instance_uuid);
    controller.expect_nothing();

    // If no other node accepts the START, the refusal is its answer.
    node.send(&Frame::new(Status::FULL));
    node.expect_nothing();
    refuses(&mut other, one.instance_uuid, Reason::FullCn);
    let failure: StartFailure = controller.expect_payload();
    assert_eq!(
        (failure.instance_uuid, failure.reason),
        (one.instance_uuid.into(), Reason::FullCn)
    );

    // A START whose instance a controller has deleted is not placed again.
    send_ready(&mut node, 1000);
    start_on(&mut controller, &mut node, &two);
    send_ready(&mut other, 1000);
    controller.send_payload(&Delete {
        instance_uuid: two.instance_uuid.into(),
        workload_agent_uuid: node.uuid.into(),
        stop: true,
    });
    node.expect_payload::<Delete>();
    refuses(&mut node, two.instance_uuid, Reason::NodeMaintenance);
    let failure: StartFailure = controller.expect_payload();
    assert_eq!(failure.reason, Reason::NodeMaintenance);
    other.expect_nothing();
}

fn reports(controller: &mut Client, node: &mut Client, instances: &[(Uuid, InstanceState)]) {
    let instances = instances.iter().map(|(instance, state)| InstanceStats {
        instance_uuid: (*instance).into(),
        state: state.clone(),
        ..InstanceStats::default()
    });
    node.send_payload(&Stats {
        node_uuid: node.uuid.into(),
        instances: instances.collect(),
        ..Stats::default()
    });
    controller.expect_payload::<Stats>();
}

/// The event of its end may be lost, so STATS without the instance are the sign of its end.
#[test]
fn an_instance_that_its_user_ends_before_the_evacuation_is_not_started_elsewhere() {
    for command in [
        "STOP",
        "DELETE",
        "DELETE, already reported",
        "STOP, already listed",
    ] {
        let cluster = Cluster::strict();
        let mut controller = cluster.controller();
        let mut node = cluster.node(1000, &mut [&mut controller]);
        let one = Start {
            restart_policy: RestartPolicy::Always,
            ..start(10)
        };
        let instance = one.instance_uuid;
        runs(&mut controller, &mut node, &[&one]);
        let mut other = cluster.node(1000, &mut [&mut controller]);
        if command.starts_with("STOP") {
            controller.send_payload(&Stop {
                instance_uuid: instance.into(),
                workload_agent_uuid: node.uuid.into(),
                ..Stop::default()
            });
            node.expect_payload::<Stop>();
        } else {
            controller.send_payload(&Delete {
                instance_uuid: instance.into(),
                workload_agent_uuid: node.uuid.into(),
                stop: true,
            });
            node.expect_payload::<Delete>();
        }
        match command {
            "DELETE, already reported" => stopped(&mut controller, &mut node, instance),
            "STOP, already listed" => {
                reports(&mut controller, &mut node, &[(instance, InstanceState::Exited)])
            }
            _ => reports(&mut controller, &mut node, &[(instance, InstanceState::Stopping)]),
        }
        evacuate(&mut controller, &mut node);
        reports(&mut controller, &mut node, &[]);
        expect_no_frames(&mut node, &mut [&mut other, &mut controller]);
    }
}
