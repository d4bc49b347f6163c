//! Unreadable payloads: each has its answer, and the scheduler continues.

use ssntp::Role;
use ssntp::payload::InvalidFrameType;
use ssntp::proto::{Command, Event, Frame, FrameKind, Status};
use ssntp_payload::{Reason, StartFailure};
use uuid::Uuid;

use super::{Cluster, refused, send_ready, start};

const INSTANCE: Uuid = Uuid::from_u128(0x1a5);

#[test]
fn a_start_that_is_no_document_is_an_invalid_payload() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let bomb = format!("a: &a [{}]\n", "x,".repeat(100))
        + &(0..20)
            .map(|n| format!("b{n}: &b{n} [*a,*a]\n"))
            .collect::<String>()
        + "start: &s {x: *s}\n";
    let payloads = [
        "start: [".to_owned(),
        "\u{0}\u{1}\u{2}".to_owned(),
        "start:\n  instance_uuid: a\n  instance_uuid: b\n".to_owned(),
        format!("start:\n  x: {}{}\n", "[".repeat(100), "]".repeat(100)),
        format!("start:\n  x: \"{}\"\n", "x".repeat(1 << 20)),
        bomb,
    ];
    for payload in payloads {
        controller.send_text(Command::START, &payload);
        let failure: StartFailure = controller.expect_payload();
        assert_eq!(failure.reason, Reason::InvalidPayload, "{payload:.80}");
    }
    let not_utf8 = Frame::with_payload(Command::START, vec![0xff; 64]);
    controller.send(&not_utf8);
    let failure: StartFailure = controller.expect_payload();
    assert_eq!(failure.reason, Reason::InvalidPayload);
}

#[test]
fn a_start_that_is_incomplete_is_invalid_data_and_names_the_instance() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    for (payload, named) in [
        (String::new(), false),
        ("stop: {}\n".to_owned(), false),
        ("start: {}\n".to_owned(), false),
        ("start: 3\n".to_owned(), false),
        ("start: {instance_uuid: rack1}\n".to_owned(), false),
        (
            format!("start: {{instance_uuid: {INSTANCE}, vm_type: process}}\n"),
            true,
        ),
        (
            format!("start: {{instance_uuid: {INSTANCE}, requirements: {{mem_mb: lots}}}}\n"),
            true,
        ),
        (
            format!("start: {{instance_uuid: {INSTANCE}, requirements: {{mem_mb: -5}}}}\n"),
            true,
        ),
    ] {
        controller.send_text(Command::START, &payload);
        let failure: StartFailure = controller.expect_payload();
        assert_eq!(failure.reason, Reason::InvalidData, "{payload}");
        assert_eq!(failure.instance_uuid == INSTANCE, named, "{payload}");
    }
}

#[test]
fn every_unreadable_command_is_refused_with_its_reason() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let _agent = cluster.agent(Role::AGENT, &mut [&mut controller]);
    let commands = [
        (Command::STOP, "stop", "StopFailure"),
        (Command::DELETE, "delete", "DeleteFailure"),
        (Command::RESTART, "restart", "RestartFailure"),
        (Command::ATTACH_VOLUME, "attach_volume", "AttachVolumeFailure"),
        (Command::DETACH_VOLUME, "detach_volume", "DetachVolumeFailure"),
        (
            Command::ASSIGN_PUBLIC_IP,
            "assign_public_ip",
            "AssignPublicIPFailure",
        ),
        (
            Command::RELEASE_PUBLIC_IP,
            "release_public_ip",
            "UnassignPublicIPFailure",
        ),
        (Command::EVACUATE, "evacuate", "InvalidFrameType"),
        (Command::RESTORE, "restore", "InvalidFrameType"),
        (Command::REFRESH_CNCI, "cnci_refresh", "InvalidFrameType"),
    ];
    for (kind, root, answer) in commands {
        let answer: FrameKind = answer.parse().unwrap();
        for (payload, reason) in [
            (format!("{root}: ["), "invalid_payload"),
            ("\u{0}".to_owned(), "invalid_payload"),
            (String::new(), "invalid_data"),
            ("other: {}\n".to_owned(), "invalid_data"),
            (format!("{root}: 3\n"), "invalid_data"),
            (format!("{root}: {{workload_agent_uuid: [1]}}\n"), "invalid_data"),
            (format!("{root}: {{instance_uuid: {INSTANCE}}}\n"), "invalid_data"),
        ] {
            controller.send_text(kind, &payload);
            let frame = controller.expect(answer);
            let text = String::from_utf8_lossy(frame.payload_bytes()).into_owned();
            assert!(
                text.contains(&format!("reason: {reason}\n")),
                "{kind} {payload:?}: {text}"
            );
            let named = payload.contains("instance_uuid") && answer.to_string() != "InvalidFrameType";
            assert_eq!(text.contains(&INSTANCE.to_string()), named, "{text}");
        }
    }
}

#[test]
fn a_ready_that_cannot_be_read_comes_back_and_changes_nothing() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut agent = cluster.node(1000, &mut [&mut controller]);
    for (payload, reason) in [
        ("node_uuid: [", "invalid_payload"),
        ("", "invalid_data"),
        ("mem_available_mb: 1\n", "invalid_data"),
        ("node_uuid: x\nmem_available_mb: lots\n", "invalid_data"),
    ] {
        agent.send_text(Status::READY, payload);
        let answer: InvalidFrameType = agent.expect_payload();
        assert_eq!(
            (answer.refused(), answer.reason.as_str()),
            (Status::READY.into(), reason)
        );
    }
    super::start_on(&mut controller, &mut agent, &start(1000));
}

#[test]
fn a_maintenance_that_cannot_be_read_is_maintenance() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut agent = cluster.node(1000, &mut [&mut controller]);
    agent.send_text(Status::MAINTENANCE, "node_uuid: [");
    agent.expect_payload::<InvalidFrameType>();
    refused(&mut controller, &start(1), Reason::FullCloud);
}

#[test]
fn tenant_events_that_cannot_be_read_come_back() {
    let cluster = Cluster::strict();
    let mut agent = cluster.connect(Role::AGENT);
    for kind in [Event::TENANT_ADDED, Event::TENANT_REMOVED] {
        for (payload, reason) in [("x: [", "invalid_payload"), ("tenant_added: {}", "invalid_data")] {
            agent.send_text(kind, payload);
            let answer: InvalidFrameType = agent.expect_payload();
            assert_eq!((answer.refused(), answer.reason.as_str()), (kind.into(), reason));
        }
    }
}

#[test]
fn unreadable_reports_are_dropped() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut agent = cluster.node(1000, &mut [&mut controller]);
    super::start_on(&mut controller, &mut agent, &start(1));
    for kind in ["STATS", "StartFailure", "InstanceDeleted"] {
        for payload in ["[", "\u{0}", "- 1\n"] {
            agent.send_text(kind.parse::<FrameKind>().unwrap(), payload);
        }
    }
    agent.expect_nothing();
    controller.expect_nothing();
    // The report names no entity.
    let trace: FrameKind = "TraceReport".parse().unwrap();
    agent.send_text(trace, "[");
    assert_eq!(controller.expect(trace).payload_bytes(), "[");
    send_ready(&mut agent, 1000);
    super::start_on(&mut controller, &mut agent, &start(1));
}
