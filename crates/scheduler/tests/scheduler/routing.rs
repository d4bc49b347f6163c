//! The frames that each role may send, and their receivers.

use ssntp::Role;
use ssntp::payload::{InvalidFrameType, InvalidFrameTypeReason};
use ssntp::proto::{Command, ErrorCode, Event, Frame, FrameKind, Status};
use uuid::Uuid;

use super::{Cluster, command};

#[test]
fn commands_go_to_the_agent_that_they_name_unchanged() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut agent = cluster.agent(Role::AGENT, &mut [&mut controller]);
    let mut network = cluster.agent(Role::NETAGENT, &mut [&mut controller]);
    let commands = [
        (Command::STOP, "stop"),
        (Command::DELETE, "delete"),
        (Command::RESTART, "restart"),
        (Command::EVACUATE, "evacuate"),
        (Command::RESTORE, "restore"),
        (Command::ATTACH_VOLUME, "attach_volume"),
        (Command::DETACH_VOLUME, "detach_volume"),
    ];
    for (kind, root) in commands {
        for to in [&mut agent, &mut network] {
            let frame = command(kind, root, to.uuid, Uuid::from_u128(1));
            controller.send(&frame);
            assert_eq!(to.recv(), frame);
        }
    }
    for client in [&mut controller, &mut agent, &mut network] {
        client.expect_nothing();
    }
}

#[test]
fn public_ips_and_refreshes_go_to_the_cnci_that_they_name() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut cnci = cluster.connect(Role::CNCIAGENT);
    let mut other = cluster.connect(Role::CNCIAGENT);
    for (kind, root, key) in [
        (Command::ASSIGN_PUBLIC_IP, "assign_public_ip", "concentrator_uuid"),
        (
            Command::RELEASE_PUBLIC_IP,
            "release_public_ip",
            "concentrator_uuid",
        ),
        (Command::REFRESH_CNCI, "cnci_refresh", "cnci_uuid"),
    ] {
        let frame = Frame::with_payload(kind, format!("{root}: {{{key}: {}}}\n", cnci.uuid));
        controller.send(&frame);
        assert_eq!(cnci.recv(), frame);
    }
    controller.expect_nothing();
    other.expect_nothing();
}

#[test]
fn tenant_events_go_to_the_cnci_that_they_name() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut agent = cluster.agent(Role::AGENT, &mut [&mut controller]);
    let mut cnci = cluster.connect(Role::CNCIAGENT);
    for (kind, root) in [
        (Event::TENANT_ADDED, "tenant_added"),
        (Event::TENANT_REMOVED, "tenant_removed"),
    ] {
        let frame = Frame::with_payload(kind, format!("{root}:\n  concentrator_uuid: {}\n", cnci.uuid));
        agent.send(&frame);
        assert_eq!(cnci.recv(), frame);
        // No such client is connected, or it is not a CNCI. An event has no answer.
        for nobody in [Uuid::from_u128(9), controller.uuid] {
            agent.send_text(kind, &format!("{root}:\n  concentrator_uuid: {nobody}\n"));
            agent.expect_nothing();
        }
    }
    controller.expect_nothing();
}

#[test]
fn reports_go_unchanged_to_controllers_only() {
    let cluster = Cluster::strict();
    let mut one = cluster.controller();
    let mut two = cluster.controller();
    let mut agent = cluster.agent(Role::AGENT, &mut [&mut one, &mut two]);
    let mut network = cluster.agent(Role::NETAGENT, &mut [&mut one, &mut two]);
    let mut cnci = cluster.connect(Role::CNCIAGENT);
    let of_nodes = "STATS OFFLINE InstanceDeleted InstanceStopped StartFailure TraceReport";
    let of_network = format!("{of_nodes} ConcentratorInstanceAdded");
    let of_cnci = "PublicIPAssigned PublicIPUnassigned AssignPublicIPFailure UnassignPublicIPFailure \
                   ConcentratorInstanceAdded TraceReport";
    for (sender, names) in [
        (&mut agent, of_nodes),
        (&mut network, &of_network),
        (&mut cnci, of_cnci),
    ] {
        for name in names.split_whitespace() {
            // Only STATS must name their node.
            let payload = match name {
                "STATS" => format!("node_uuid: {}\nwhat: STATS", sender.uuid),
                _ => format!("what: {{name: {name}}}"),
            };
            let frame = Frame::with_payload(name.parse::<FrameKind>().unwrap(), payload);
            sender.send(&frame);
            assert_eq!(one.recv(), frame);
            assert_eq!(two.recv(), frame);
        }
    }
    for client in [&mut one, &mut two, &mut agent, &mut network, &mut cnci] {
        client.expect_nothing();
    }
}

#[test]
fn ready_full_and_maintenance_stay_with_the_scheduler() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut agent = cluster.node(1000, &mut [&mut controller]);
    agent.send(&Frame::new(Status::FULL));
    agent.send(&Frame::new(Status::MAINTENANCE));
    agent.send_text(Status::MAINTENANCE, "node_uuid: x\n");
    agent.send_text(ErrorCode::INVALID_FRAME_TYPE, "type: 0\noperand: 1\n");
    agent.expect_nothing();
    controller.expect_nothing();
}

#[test]
fn frames_that_a_role_may_not_send_are_rejected() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut agent = cluster.agent(Role::AGENT, &mut [&mut controller]);
    let mut cnci = cluster.connect(Role::CNCIAGENT);
    for (client, kinds) in [
        (&mut controller, "STATS READY NodeConnected"),
        (&mut agent, "START PublicIPAssigned NodeDisconnected"),
        (&mut cnci, "TenantAdded InstanceDeleted CONFIGURE"),
    ] {
        for kind in kinds.split(' ') {
            let kind: FrameKind = kind.parse().unwrap();
            client.send(&Frame::new(kind));
            let answer: InvalidFrameType = client.expect_payload();
            assert_eq!(answer.refused(), kind);
            assert_eq!(answer.reason, InvalidFrameTypeReason::RoleNotAllowed);
        }
    }
    // An ERROR frame is never answered.
    agent.send(&Frame::new(ErrorCode::ASSIGN_PUBLIC_IP_FAILURE));
    agent.expect_nothing();
    controller.expect_nothing();
}

#[test]
fn a_frame_never_returns_to_its_sender() {
    let cluster = Cluster::strict();
    let mut other = cluster.controller();
    let mut both = cluster.agent(Role::CONTROLLER | Role::AGENT, &mut [&mut other]);
    // The agent does not get its own frames. NodeConnected about itself comes from the scheduler.
    assert_eq!(both.drain().len(), 1);
    let stats = Frame::with_payload(Command::STATS, format!("node_uuid: {}\n", both.uuid));
    both.send(&stats);
    assert_eq!(other.recv(), stats);
    let own = command(Command::STOP, "stop", both.uuid, Uuid::from_u128(1));
    both.send(&own);
    other.expect(ErrorCode::STOP_FAILURE);
    both.expect(ErrorCode::STOP_FAILURE);
    // The sender gets its CONFIGURE back once, as the confirmation.
    both.send_text(Command::CONFIGURE, "configure: {}\n");
    both.expect(Command::CONFIGURE);
    both.expect_nothing();
}
