//! NodeConnected, NodeDisconnected, and the snapshot of a new controller.

use std::collections::HashSet;

use ssntp::Role;
use ssntp::proto::{Command, ErrorCode, Event, Frame};
use ssntp_payload::{
    AssignPublicIp, AssignPublicIpFailure, ConcentratorInstanceAdded, InstanceDeleted, NodeConnected,
    NodeDisconnected, NodeType, PublicIpAssigned, PublicIpUnassigned, SnapshotComplete,
};
use uuid::Uuid;

use super::{Cluster, stats};
use crate::client::Client;

#[test]
fn every_controller_learns_of_nodes_that_connect_and_disconnect() {
    let cluster = Cluster::strict();
    let mut one = cluster.controller();
    let mut two = cluster.controller();
    for (role, node_type) in [
        (Role::AGENT, NodeType::ComputeNode),
        (Role::NETAGENT, NodeType::NetworkNode),
    ] {
        let node = cluster.connect(role);
        let node_uuid = node.uuid;
        for controller in [&mut one, &mut two] {
            let connected: NodeConnected = controller.expect_payload();
            assert_eq!(connected.node_uuid, node_uuid);
            assert_eq!(connected.node_type, node_type);
        }
        drop(node);
        for controller in [&mut one, &mut two] {
            let event: NodeDisconnected = controller.expect_payload();
            assert_eq!(
                (event.node_uuid, event.node_type),
                (node_uuid.into(), node_type.clone())
            );
        }
    }
    // Neither a CNCI nor a controller is a node.
    drop(cluster.connect(Role::CNCIAGENT));
    drop(cluster.controller());
    one.expect_nothing();
}

#[test]
fn an_agent_of_both_types_is_announced_as_both() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let node = cluster.connect(Role::AGENT | Role::NETAGENT);
    let types = |frames: [Frame; 2]| frames.map(|f| String::from_utf8_lossy(f.payload_bytes()).into_owned());
    let came = types([controller.recv(), controller.recv()]);
    assert!(came[0].contains("compute_node") && came[1].contains("network_node"));
    drop(node);
    let went = types([controller.recv(), controller.recv()]);
    assert!(went[0].contains("compute_node") && went[1].contains("network_node"));
}

#[test]
fn an_agent_that_reconnects_is_disconnected_first() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let old = cluster.agent(Role::AGENT, &mut [&mut controller]);
    let new = Client::connect_as(&cluster.listener, Role::AGENT, old.uuid);
    let event: NodeDisconnected = controller.expect_payload();
    let back: NodeConnected = controller.expect_payload();
    assert_eq!(
        (event.node_uuid, back.node_uuid),
        (new.uuid.into(), new.uuid.into())
    );
    drop((old, new));
    controller.expect(Event::NODE_DISCONNECTED);
    controller.expect_nothing();
}

#[test]
fn a_new_controller_receives_every_node_and_its_last_stats() {
    let cluster = Cluster::strict();
    let mut first = cluster.controller();
    let mut nodes = Vec::new();
    for count in 0..4 {
        let mut node = cluster.agent(Role::AGENT, &mut [&mut first]);
        // The last node has sent no STATS yet.
        for older in 0..count {
            node.send_payload(&stats(node.uuid, &[Uuid::from_u128(older)]));
            first.expect(Command::STATS);
        }
        nodes.push(node);
    }
    let disconnected = nodes.pop().unwrap();
    drop(disconnected);
    first.expect(Event::NODE_DISCONNECTED);

    let snapshot = cluster.controller().drain();
    let expected: HashSet<_> = nodes.iter().map(|node| node.uuid.to_string()).collect();
    let (connected, reported) = snapshot.split_at(3);
    let connected: HashSet<_> = connected
        .iter()
        .map(|frame| frame.payload::<NodeConnected>().unwrap().node_uuid.to_string())
        .collect();
    assert_eq!(connected, expected);
    let mut reported: Vec<_> = reported.iter().map(|f| f.payload_bytes().clone()).collect();
    reported.sort();
    let last = |(node, older): (&Client, u128)| {
        Frame::of(&stats(node.uuid, &[Uuid::from_u128(older)]))
            .payload_bytes()
            .clone()
    };
    let mut wanted: Vec<_> = nodes[1..].iter().zip(0..).map(last).collect();
    wanted.sort();
    assert_eq!(reported, wanted);
}

#[test]
fn a_controller_receives_snapshot_complete_once() {
    let cluster = Cluster::strict();
    let mut first = cluster.controller();
    let complete: SnapshotComplete = first.recv_any().payload().unwrap();
    let expected = SnapshotComplete {
        constraints: true,
        ..SnapshotComplete::default()
    };
    assert_eq!(complete, expected);
    let mut one = cluster.agent(Role::AGENT, &mut [&mut first]);
    let mut other = cluster.agent(Role::AGENT, &mut [&mut first]);
    let _silent = cluster.agent(Role::AGENT, &mut [&mut first]);
    let [a, b, c] = [1, 2, 3].map(Uuid::from_u128);
    for (node, instances) in [(&mut one, &[a, b][..]), (&mut other, &[c, a])] {
        let report = stats(node.uuid, instances);
        node.send_payload(&report);
        first.expect(Command::STATS);
    }
    one.send_payload(&InstanceDeleted {
        instance_uuid: b.into(),
        ..Default::default()
    });
    first.expect(Event::INSTANCE_DELETED);

    let mut second = cluster.controller();
    let mut before = 0;
    let complete: SnapshotComplete = loop {
        match second.recv_any() {
            frame if frame.kind() == Event::SNAPSHOT_COMPLETE => break frame.payload().unwrap(),
            _ => before += 1,
        }
    };
    assert_eq!(before, 3 + 2 + 1, "NodeConnected, STATS and the later event");
    // The instance `a` belongs to the first node, so STATS of the other node are forwarded without it.
    assert_eq!(
        (complete.nodes, complete.reporting, complete.instances),
        (3, 2, 3)
    );
    second.expect_nothing();
    first.expect_nothing();
}

#[test]
fn a_new_controller_receives_connected_concentrators_and_their_addresses() {
    let cluster = Cluster::strict();
    let mut first = cluster.controller();
    // Both sessions end. The second event shows that the first one was handled.
    let mut cnci = cluster.agent(Role::AGENT | Role::CNCIAGENT, &mut [&mut first]);
    let added = ConcentratorInstanceAdded {
        instance_uuid: cnci.uuid.into(),
        concentrator_ip: "10.0.0.33".into(),
        ..ConcentratorInstanceAdded::default()
    };
    let assigned = |public_ip: &str| PublicIpAssigned {
        concentrator_uuid: cnci.uuid.into(),
        public_ip: public_ip.into(),
        ..PublicIpAssigned::default()
    };
    let (kept, released) = (assigned("198.51.100.20"), assigned("198.51.100.21"));
    let unassigned = PublicIpUnassigned {
        public_ip: released.public_ip.clone(),
        ..PublicIpUnassigned::default()
    };
    cnci.send_payload(&added);
    cnci.send_payload(&kept);
    cnci.send_payload(&released);
    cnci.send_payload(&unassigned);
    first.expect(Event::CONCENTRATOR_INSTANCE_ADDED);
    first.expect(Event::PUBLIC_IP_ASSIGNED);
    first.expect(Event::PUBLIC_IP_ASSIGNED);
    first.expect(Event::PUBLIC_IP_UNASSIGNED);

    let mut second = cluster.controller();
    second.expect(Event::NODE_CONNECTED);
    assert_eq!(second.expect_payload::<ConcentratorInstanceAdded>(), added);
    assert_eq!(second.expect_payload::<PublicIpAssigned>(), kept);
    second.expect_nothing();

    // Two concentrators with one address would both receive its packets.
    let mut other = cluster.connect(Role::CNCIAGENT);
    let assign = |public_ip: &str| AssignPublicIp {
        concentrator_uuid: other.uuid.into(),
        public_ip: public_ip.into(),
        ..AssignPublicIp::default()
    };
    let (taken, free) = (assign(&kept.public_ip), assign(&released.public_ip));
    second.send_payload(&taken);
    let failure: AssignPublicIpFailure = second.expect_payload();
    assert_eq!(
        failure.detail,
        format!("{}: concentrator {} has it", kept.public_ip, cnci.uuid)
    );
    second.send_payload(&free);
    assert_eq!(other.expect_payload::<AssignPublicIp>(), free);
    first.expect(ErrorCode::ASSIGN_PUBLIC_IP_FAILURE);

    drop(cnci);
    first.expect(Event::NODE_DISCONNECTED);
    cluster.controller().expect_nothing();
}

#[test]
fn oversized_events_are_forwarded_and_not_kept() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut agent = cluster.agent(Role::AGENT, &mut [&mut controller]);
    let mut cnci = cluster.connect(Role::CNCIAGENT);
    let long = format!("what: {{x: {}}}\n", "x".repeat(5000));
    for (sender, kind) in [
        (&mut agent, Event::INSTANCE_DELETED),
        (&mut cnci, Event::CONCENTRATOR_INSTANCE_ADDED),
    ] {
        sender.send_text(kind, &long);
        assert_eq!(controller.expect(kind).payload_bytes(), long.as_bytes());
    }
    let mut new = cluster.controller();
    new.expect(Event::NODE_CONNECTED);
    new.expect_nothing();
}

#[test]
fn a_large_snapshot_is_sent_in_parts() {
    let cluster = Cluster::strict();
    let mut first = cluster.controller();
    let padding = "x".repeat(900_000);
    let mut nodes = Vec::new();
    for _ in 0..12 {
        let mut node = cluster.agent(Role::AGENT, &mut [&mut first]);
        node.send_text(
            Command::STATS,
            &format!("node_uuid: {}\npadding: {padding}\n", node.uuid),
        );
        first.expect(Command::STATS);
        nodes.push(node);
    }
    let mut second = cluster.controller();
    for _ in 0..12 {
        second.expect(Event::NODE_CONNECTED);
    }
    for _ in 0..12 {
        assert_eq!(second.recv_any().kind(), Command::STATS);
    }
    let complete: SnapshotComplete = second.recv_any().payload().unwrap();
    assert_eq!((complete.nodes, complete.reporting), (12, 12));
    second.expect_nothing();
}
