//! What the scheduler answers itself.

use ssntp::Role;
use ssntp::payload::{
    AssignPublicIpFailure, AttachVolumeFailure, AttachVolumeFailureReason, DeleteFailure,
    DeleteFailureReason, DetachVolumeFailure, DetachVolumeFailureReason, InvalidFrameType,
    PublicIpFailureReason, RestartFailure, RestartFailureReason, StopFailure, StopFailureReason,
    UnassignPublicIpFailure,
};
use ssntp::proto::{Command, FrameKind};
use uuid::Uuid;

use super::{Cluster, command};
use crate::client::Client;

const INSTANCE: Uuid = Uuid::from_u128(0x1a5);

#[test]
fn a_command_for_an_agent_that_is_not_connected_has_no_instance() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut other = cluster.controller();
    let cnci = cluster.connect(Role::CNCIAGENT);
    // A UUID of nobody, and those of entities of another kind.
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
        answered!(Command::STOP, "stop", StopFailure, StopFailureReason::NoInstance);
        answered!(
            Command::DELETE,
            "delete",
            DeleteFailure,
            DeleteFailureReason::NoInstance
        );
        answered!(
            Command::RESTART,
            "restart",
            RestartFailure,
            RestartFailureReason::NoInstance
        );
        answered!(
            Command::ATTACH_VOLUME,
            "attach_volume",
            AttachVolumeFailure,
            AttachVolumeFailureReason::NoInstance
        );
        answered!(
            Command::DETACH_VOLUME,
            "detach_volume",
            DetachVolumeFailure,
            DetachVolumeFailureReason::NoInstance
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
        assert_eq!(failure.reason, PublicIpFailureReason::NoInstance);
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
        assert_eq!(failure.reason, PublicIpFailureReason::NoInstance);
        assert_eq!(
            (failure.tenant_uuid, failure.vnic_mac),
            ("t".into(), "m".to_owned())
        );
    }
}

#[test]
fn a_failure_names_all_that_the_command_did_with_or_without_an_instance() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let nobody = Uuid::from_u128(9);
    controller.send_text(
        Command::ASSIGN_PUBLIC_IP,
        &format!("assign_public_ip: {{concentrator_uuid: {nobody}, public_ip: 198.51.100.20}}\n"),
    );
    let failure: AssignPublicIpFailure = controller.expect_payload();
    assert_eq!(failure.reason, PublicIpFailureReason::NoInstance);
    assert_eq!(failure.concentrator_uuid, nobody);
    assert_eq!(failure.public_ip, "198.51.100.20");
    controller.send_text(
        Command::STOP,
        &format!("stop: {{workload_agent_uuid: {nobody}}}\n"),
    );
    let failure: StopFailure = controller.expect_payload();
    assert_eq!(failure.reason, StopFailureReason::InvalidData);
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
