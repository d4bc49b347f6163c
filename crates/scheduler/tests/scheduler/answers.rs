//! The answers of the scheduler itself.

use std::time::Duration;

use ssntp::Role;
use ssntp::payload::InvalidFrameType;
use ssntp::proto::{Command, ErrorCode, FrameKind};
use ssntp_payload::{
    AssignPublicIpFailure, AttachVolumeFailure, DeleteFailure, DetachVolumeFailure, InstanceState, Reason,
    RestartFailure, StopFailure, UnassignPublicIpFailure,
};
use ssntp_scheduler::SchedulerConfig;
use uuid::Uuid;

use super::{Cluster, command, expect_no_frames, stats};
use crate::client::Client;

const INSTANCE: Uuid = Uuid::from_u128(0x1a5);

#[test]
fn a_command_for_an_agent_that_is_not_connected_has_no_instance() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut other = cluster.controller();
    let cnci = cluster.connect(Role::CNCIAGENT);
    // An unknown UUID, and UUIDs of entities of another kind.
    for nobody in [Uuid::from_u128(9), other.uuid, cnci.uuid] {
        let ask = |controller: &mut Client, kind, root| {
            controller.send(&command(kind, root, nobody, INSTANCE));
        };
        macro_rules! answered {
            ($kind:expr, $root:literal, $failure:ident, $reason:expr) => {
                ask(&mut controller, $kind, $root);
                for controller in [&mut controller, &mut other] {
                    let failure: $failure = controller.expect_payload();
                    assert_eq!(failure.reason, $reason);
                    assert_eq!(failure.node_uuid, nobody);
                    assert_eq!(failure.instance_uuid, INSTANCE);
                }
            };
        }
        answered!(Command::STOP, "stop", StopFailure, Reason::NoInstance);
        answered!(Command::DELETE, "delete", DeleteFailure, Reason::NoInstance);
        answered!(Command::RESTART, "restart", RestartFailure, Reason::NoInstance);
        answered!(
            Command::ATTACH_VOLUME,
            "attach_volume",
            AttachVolumeFailure,
            Reason::NoInstance
        );
        answered!(
            Command::DETACH_VOLUME,
            "detach_volume",
            DetachVolumeFailure,
            Reason::NoInstance
        );
    }
}

#[test]
fn volume_failures_name_the_volume() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    controller.send(&command(
        Command::ATTACH_VOLUME,
        "attach_volume",
        Uuid::nil(),
        INSTANCE,
    ));
    let failure: AttachVolumeFailure = controller.expect_payload();
    assert_eq!(failure.volume_uuid, Uuid::from_u128(0x70));
}

#[test]
fn a_public_ip_for_a_cnci_that_is_not_connected_has_no_instance() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let agent = cluster.agent(Role::AGENT, &mut [&mut controller]);
    for nobody in [Uuid::from_u128(9), agent.uuid] {
        let body = format!(
            "concentrator_uuid: {nobody}, tenant_uuid: t, instance_uuid: {INSTANCE}, \
             public_ip: 198.51.100.20, private_ip: 172.16.0.5, vnic_mac: m"
        );
        controller.send_text(
            Command::ASSIGN_PUBLIC_IP,
            &format!("assign_public_ip: {{{body}}}\n"),
        );
        let failure: AssignPublicIpFailure = controller.expect_payload();
        assert_eq!(failure.reason, Reason::NoInstance);
        assert_eq!(failure.concentrator_uuid, nobody);
        assert_eq!(failure.instance_uuid, INSTANCE);
        assert_eq!(
            (failure.public_ip, failure.private_ip),
            ("198.51.100.20".into(), "172.16.0.5".into())
        );
        controller.send_text(
            Command::RELEASE_PUBLIC_IP,
            &format!("release_public_ip: {{{body}}}\n"),
        );
        let failure: UnassignPublicIpFailure = controller.expect_payload();
        assert_eq!(failure.reason, Reason::NoInstance);
        assert_eq!(
            (failure.tenant_uuid, failure.vnic_mac),
            ("t".into(), "m".to_owned())
        );
    }
}

#[test]
fn a_failure_repeats_all_fields_of_the_command_with_or_without_an_instance() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let nobody = Uuid::from_u128(9);
    controller.send_text(
        Command::ASSIGN_PUBLIC_IP,
        &format!("assign_public_ip: {{concentrator_uuid: {nobody}, public_ip: 198.51.100.20}}\n"),
    );
    let failure: AssignPublicIpFailure = controller.expect_payload();
    assert_eq!(failure.reason, Reason::NoInstance);
    assert_eq!(failure.concentrator_uuid, nobody);
    assert_eq!(failure.public_ip, "198.51.100.20");
    controller.send_text(
        Command::STOP,
        &format!("stop: {{workload_agent_uuid: {nobody}}}\n"),
    );
    let failure: StopFailure = controller.expect_payload();
    assert_eq!(failure.reason, Reason::InvalidData);
    assert_eq!(failure.node_uuid, nobody);
}

#[test]
fn commands_without_a_failure_of_their_own_come_back_as_not_connected() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut other = cluster.controller();
    let nobody = Uuid::from_u128(9);
    for (kind, payload) in [
        (
            Command::EVACUATE,
            format!("evacuate: {{workload_agent_uuid: {nobody}}}\n"),
        ),
        (
            Command::RESTORE,
            format!("restore: {{workload_agent_uuid: {nobody}}}\n"),
        ),
        (
            Command::REFRESH_CNCI,
            format!("cnci_refresh: {{cnci_uuid: {nobody}}}\n"),
        ),
    ] {
        controller.send_text(kind, &payload);
        let answer: InvalidFrameType = controller.expect_payload();
        assert_eq!(answer.refused(), FrameKind::from(kind));
        assert_eq!(answer.reason.as_str(), "not_connected");
    }
    other.expect_nothing();
}

const VOLUME: Uuid = Uuid::from_u128(0x70);

/// Each command for an instance of a node, with an id, and the failure that answers it.
fn commands(node: Uuid) -> [(Command, String, ErrorCode, String); 5] {
    [
        (Command::STOP, "stop", ErrorCode::STOP_FAILURE),
        (Command::DELETE, "delete", ErrorCode::DELETE_FAILURE),
        (Command::RESTART, "restart", ErrorCode::RESTART_FAILURE),
        (
            Command::ATTACH_VOLUME,
            "attach_volume",
            ErrorCode::ATTACH_VOLUME_FAILURE,
        ),
        (
            Command::DETACH_VOLUME,
            "detach_volume",
            ErrorCode::DETACH_VOLUME_FAILURE,
        ),
    ]
    .map(|(command, root, error)| {
        let about = format!("instance_uuid: {INSTANCE}, volume_uuid: {VOLUME}");
        let asked = format!("{root}: {{{about}, workload_agent_uuid: {node}, command_id: mine}}\n");
        let failed = format!("{{node_uuid: {node}, {about}, reason: no_instance}}\n");
        (command, asked, error, failed)
    })
}

#[test]
fn a_command_has_one_answer_with_its_id_and_other_failures_are_dropped() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut other = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller, &mut other]);
    for (command, asked, error, failed) in commands(node.uuid) {
        // A scheduler that has just started does not know the command, and the node may never have
        // received one.
        node.send_text(error, &failed);
        expect_no_frames(&mut node, &mut [&mut controller, &mut other]);
        controller.send_text(command, &asked);
        node.expect(command);
        for _ in 0..2 {
            node.send_text(error, &failed);
        }
        for controller in [&mut controller, &mut other] {
            let frame = controller.expect(error);
            let text = String::from_utf8(frame.payload_bytes().to_vec()).unwrap();
            assert!(
                text.contains("command_id: mine\n") && text.contains("no_instance"),
                "{text}"
            );
        }
        expect_no_frames(&mut node, &mut [&mut controller, &mut other]);
    }
}

#[test]
fn a_failure_with_an_id_answers_that_command_and_not_an_older_one() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    for (command, asked, error, failed) in commands(node.uuid) {
        for id in ["older", "newer"] {
            controller.send_text(command, &asked.replace("mine", id));
            node.expect(command);
        }
        for id in ["newer", "older"] {
            node.send_text(error, &failed.replace('}', &format!(", command_id: {id}}}")));
            let frame = controller.expect(error);
            let text = String::from_utf8(frame.payload_bytes().to_vec()).unwrap();
            assert!(text.contains(&format!("command_id: {id}")), "{text}");
        }
        expect_no_frames(&mut node, &mut [&mut controller]);
    }
}

#[test]
fn stop_of_an_ended_instance_is_answered_by_its_node_and_not_by_stats() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let [(stop, asked, error, failed), ..] = commands(node.uuid);
    let mut report = stats(node.uuid, &[INSTANCE]);
    report.instances[0].state = InstanceState::Exited;
    node.send_payload(&report);
    controller.expect(Command::STATS);
    controller.send_text(stop, &asked);
    node.expect(stop);
    // The node may have written these before it received the STOP.
    node.send_payload(&report);
    controller.expect(Command::STATS);
    node.send_text(error, &failed);
    controller.expect(error);
}

#[test]
fn stats_or_an_event_answer_a_command() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    for (command, asked, error, failed) in commands(node.uuid) {
        let listed = |state, volumes: &[Uuid]| {
            let mut report = stats(node.uuid, &[INSTANCE]);
            report.instances[0].state = state;
            report.instances[0].volumes = volumes.iter().map(|volume| (*volume).into()).collect();
            report
        };
        let (before, after) = match command {
            Command::STOP => (
                listed(InstanceState::Stopping, &[]),
                listed(InstanceState::Exited, &[]),
            ),
            Command::DELETE => (listed(InstanceState::Exited, &[]), stats(node.uuid, &[])),
            Command::RESTART => (
                listed(InstanceState::Exited, &[]),
                listed(InstanceState::Active, &[]),
            ),
            Command::ATTACH_VOLUME => (
                listed(InstanceState::Active, &[]),
                listed(InstanceState::Active, &[VOLUME]),
            ),
            _ => (
                listed(InstanceState::Active, &[VOLUME]),
                listed(InstanceState::Active, &[]),
            ),
        };
        for (shown, is_answered) in [(before, false), (after, true)] {
            controller.send_text(command, &asked);
            node.expect(command);
            node.send_payload(&shown);
            controller.expect(Command::STATS);
            node.send_text(error, &failed);
            if !is_answered {
                controller.expect(error);
            }
            expect_no_frames(&mut node, &mut [&mut controller]);
        }
    }
}

#[test]
fn a_command_for_what_is_so_already_is_answered_by_its_node_although_stats_show_it() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    for (command, asked, error, failed) in commands(node.uuid) {
        let mut report = stats(node.uuid, &[INSTANCE]);
        match command {
            Command::STOP | Command::DELETE => continue,
            Command::ATTACH_VOLUME => report.instances[0].volumes = vec![VOLUME.into()],
            _ => {}
        }
        node.send_payload(&report);
        controller.expect(Command::STATS);
        controller.send_text(command, &asked);
        node.expect(command);
        // The node may have written these before it received the command.
        node.send_payload(&report);
        controller.expect(Command::STATS);
        for _ in 0..2 {
            node.send_text(error, &failed.replace('}', ", command_id: mine}"));
        }
        controller.expect(error);
        expect_no_frames(&mut node, &mut [&mut controller]);
    }
}

#[test]
fn stats_from_before_a_command_for_an_instance_that_is_gone_do_not_answer_it() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    for (command, asked, error, failed) in commands(node.uuid) {
        if !matches!(command, Command::STOP | Command::DELETE) {
            continue;
        }
        controller.send_text(command, &asked);
        node.expect(command);
        // The node has sent these before it received the command.
        node.send_payload(&stats(node.uuid, &[]));
        controller.expect(Command::STATS);
        node.send_text(error, &failed);
        let frame = controller.expect(error);
        let text = String::from_utf8(frame.payload_bytes().to_vec()).unwrap();
        assert!(text.contains("no_instance"), "{text}");
    }
}

#[test]
fn a_command_that_its_node_does_not_answer_is_answered_at_its_deadline() {
    let quiet = Duration::from_millis(100);
    let cluster = Cluster::new(SchedulerConfig::new().start_time(quiet, quiet * 2));
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    for (command, asked, error, failed) in commands(node.uuid) {
        controller.send_text(command, &asked);
        node.expect(command);
        let frame = controller.expect(error);
        let text = String::from_utf8(frame.payload_bytes().to_vec()).unwrap();
        let reason = match command {
            Command::STOP | Command::DELETE => "no_answer",
            Command::RESTART => "launch_failure",
            Command::ATTACH_VOLUME => "attach_failure",
            _ => "detach_failure",
        };
        assert!(text.contains(&format!("reason: {reason}\n")), "{text}");
        assert!(text.contains("command_id: mine\n"), "{text}");
        // The node's answer arrives too late.
        node.send_text(error, &failed);
        expect_no_frames(&mut node, &mut [&mut controller]);
    }
}
