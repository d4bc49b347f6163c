//! The failures of commands.

use ssntp::payload::*;
use ssntp::proto::{Command, Frame};
use ssntp_payload::*;

use super::*;

#[test]
fn start_failure_is_read_in_both_forms_and_written_back() {
    let decoded: StartFailure = current(&fixture("StartFailure"));
    let expected = StartFailure {
        node_uuid: NODE.into(),
        instance_uuid: INSTANCE.into(),
        reason: Reason::FullCn,
        restart: true,
        ..StartFailure::default()
    };
    assert_eq!(decoded, expected);

    let decoded: StartFailure = older(&fixture("old2017_StartFailure"));
    assert!(decoded.node_uuid.is_empty(), "made by the scheduler");
    assert_eq!(decoded.instance_uuid, INSTANCE);
    assert_eq!(decoded.reason, Reason::FullCloud);
    assert!(!decoded.restart);
}

/// A key of this project, which others ignore.
#[test]
fn a_start_failure_may_have_details() {
    let failure = StartFailure {
        detail: "sleep: not found".to_owned(),
        ..StartFailure::default()
    };
    survives(&failure);
    assert!(!text(&StartFailure::default().encode()).contains("detail"));
    survives(&RestartFailure {
        detail: failure.detail,
        ..RestartFailure::default()
    });
}

#[test]
fn only_two_reasons_mean_that_the_node_has_the_instance() {
    let reasons: Vec<_> = Reason::ALL.iter().filter(|r| r.node_has_instance()).collect();
    assert_eq!(reasons, [&Reason::AlreadyRunning, &Reason::InstanceExists]);
    assert!(!Reason::Other("gone".to_owned()).node_has_instance());
}

#[test]
fn stop_failure_is_read_in_both_forms_and_written_back() {
    let decoded: StopFailure = older(&fixture("old2017_StopFailure"));
    assert!(decoded.node_uuid.is_empty());
    assert_eq!(decoded.instance_uuid, INSTANCE);
    assert_eq!(decoded.reason, Reason::AlreadyStopped);
    let document = format!("node_uuid: {NODE}\ninstance_uuid: {INSTANCE}\nreason: no_instance\n");
    let decoded: StopFailure = current(document.as_bytes());
    assert_eq!(
        (decoded.node_uuid, decoded.reason),
        (NODE.into(), Reason::NoInstance)
    );
}

#[test]
fn restart_failure_is_read_in_both_forms_and_written_back() {
    let decoded: RestartFailure = older(&fixture("old2017_RestartFailure"));
    assert!(decoded.node_uuid.is_empty());
    assert_eq!(decoded.instance_uuid, INSTANCE);
    assert_eq!(decoded.reason, Reason::InstanceCorrupt);
    let document = format!("node_uuid: {NODE}\ninstance_uuid: {INSTANCE}\nreason: launch_failure\n");
    let decoded: RestartFailure = current(document.as_bytes());
    assert_eq!(decoded.reason, Reason::LaunchFailure);
}

#[test]
fn delete_failure_is_read_and_written_back() {
    let decoded: DeleteFailure = current(&fixture("DeleteFailure"));
    let expected = DeleteFailure {
        node_uuid: NODE.into(),
        instance_uuid: INSTANCE.into(),
        reason: Reason::NoInstance,
        ..DeleteFailure::default()
    };
    assert_eq!(decoded, expected);
}

#[test]
fn volume_failures_are_read_and_written_back() {
    let attach: AttachVolumeFailure = current(&fixture("AttachVolumeFailure"));
    let expected = AttachVolumeFailure {
        node_uuid: NODE.into(),
        instance_uuid: INSTANCE.into(),
        volume_uuid: VOLUME.into(),
        reason: Reason::AlreadyAttached,
        ..AttachVolumeFailure::default()
    };
    assert_eq!(attach, expected);
    let detach: DetachVolumeFailure = older(&fixture("old2017_DetachVolumeFailure"));
    let expected = DetachVolumeFailure {
        node_uuid: Id::default(),
        instance_uuid: INSTANCE.into(),
        volume_uuid: VOLUME.into(),
        reason: Reason::NotAttached,
        ..DetachVolumeFailure::default()
    };
    assert_eq!(detach, expected);
}

#[test]
fn public_ip_failures_repeat_the_command() {
    let failure: AssignPublicIpFailure = current(&fixture("AssignPublicIPFailure"));
    let command = Frame::with_payload(Command::ASSIGN_PUBLIC_IP, fixture("AssignPublicIP"));
    let subject = CommandSubject::of(&command);
    let expected = AssignPublicIpFailure::of(subject, Reason::AssignFailure);
    assert_eq!(failure, expected);

    let failure: UnassignPublicIpFailure = current(&fixture("UnassignPublicIPFailure"));
    let command = Frame::with_payload(Command::RELEASE_PUBLIC_IP, fixture("ReleasePublicIP"));
    let subject = CommandSubject::of(&command);
    let expected = UnassignPublicIpFailure::of(subject, Reason::ReleaseFailure);
    assert_eq!(failure, expected);
    assert_eq!(failure.concentrator_uuid, CNCI);
}

#[test]
fn a_wrong_value_hides_no_other_key_of_a_command() {
    let keys = format!("{{instance_uuid: {INSTANCE}, command_id: c-7, restart: on-failure, public_ip: [1]}}");
    for document in [
        format!("start: {keys}\n"),
        format!("version: 1\nlater: [1]\nstart: {keys}\n"),
    ] {
        let subject = CommandSubject::of(&Frame::with_payload(Command::START, document));
        let expected = CommandSubject {
            instance_uuid: INSTANCE.into(),
            command_id: "c-7".to_owned(),
            ..CommandSubject::default()
        };
        assert_eq!(subject, expected);
    }
}

#[test]
fn reasons_are_those_of_the_protocol() {
    fn words<'a, T>(all: &'a [T], text: fn(&'a T) -> &'a str) -> String {
        all.iter().map(text).collect::<Vec<_>>().join(" ")
    }
    assert_eq!(
        words(Reason::OF_START, Reason::as_str),
        "full_cloud full_cn node_maintenance no_cn no_net_cn already_running instance_exists image_failure \
         launch_failure network_failure not_moved_persistent not_moved_storage not_moved_bound \
         not_moved_unknown invalid_payload invalid_data"
    );
    let of_others = "no_instance already_stopped already_running instance_corrupt launch_failure network_failure \
         attach_failure already_attached state_failure instance_failure not_supported detach_failure not_attached \
         assign_failure release_failure invalid_payload invalid_data";
    for word in of_others.split(' ') {
        assert!(Reason::from(word).is_known(), "{word}");
    }
    assert_eq!(
        words(InvalidFrameTypeReason::ALL, |r| r.as_str()),
        "unsupported_type unsupported_operand role_not_allowed bad_exchange"
    );
    assert_eq!(
        words(InstanceState::ALL, |s| s.as_str()),
        "pending active exited stopping exit_failed exit_paused deleted hung missing"
    );
}

#[test]
fn a_refused_payload_is_invalid_payload_or_invalid_data() {
    let cases = [
        ("start: [", Reason::InvalidPayload),
        ("start: a: b", Reason::InvalidPayload),
        ("start:\n  a: 1\n  a: 2", Reason::InvalidPayload),
        ("stop:\n  a: 1", Reason::InvalidData),
        ("", Reason::InvalidData),
        ("start:", Reason::InvalidData),
        ("start:\n  restart: 5", Reason::InvalidData),
        ("hello", Reason::InvalidData),
    ];
    for (payload, reason) in cases {
        let error = Start::decode(payload.as_bytes()).unwrap_err();
        assert_eq!(Reason::from(&error), reason, "{payload:?}: {error}");
    }
    let error = Stop::decode(b"stop:").unwrap_err();
    assert_eq!(Reason::from(&error), Reason::InvalidData);
}
