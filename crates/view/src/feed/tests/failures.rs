//! Every failure settles its command, and has words.

use super::*;

#[test]
fn every_failure_settles_its_command_with_the_reason_in_words() {
    let rig = Rig::with(InstanceState::Active);
    let (node_uuid, instance_uuid) = (Id::from(NODE), Id::from(INSTANCE));

    let order = rig.order(&start());
    rig.frame(&StartFailure {
        instance_uuid: VOLUME.into(),
        reason: Reason::FullCloud,
        ..StartFailure::default()
    });
    open(&order);
    rig.frame(&StartFailure {
        instance_uuid: instance_uuid.clone(),
        reason: Reason::FullCloud,
        ..StartFailure::default()
    });
    assert_eq!(
        failed(&order),
        format!("instance {INSTANCE} was not started: no node in service has enough room (full_cloud)")
    );

    let order = rig.order(&stop());
    rig.frame(&StopFailure {
        node_uuid: node_uuid.clone(),
        instance_uuid: instance_uuid.clone(),
        reason: Reason::AlreadyStopped,
        ..StopFailure::default()
    });
    assert!(failed(&order).ends_with("was not stopped: it has stopped already (already_stopped)"));

    let order = rig.order(&restart());
    rig.frame(&RestartFailure {
        node_uuid: node_uuid.clone(),
        instance_uuid: instance_uuid.clone(),
        reason: Reason::AlreadyRunning,
        ..RestartFailure::default()
    });
    assert!(failed(&order).ends_with("was not restarted: it runs already (already_running)"));

    let order = rig.order(&delete());
    rig.frame(&DeleteFailure {
        node_uuid: node_uuid.clone(),
        instance_uuid: instance_uuid.clone(),
        reason: "quota".into(),
        ..DeleteFailure::default()
    });
    assert!(failed(&order).ends_with("was not deleted: the reason is not one of the protocol's (quota)"));

    // An instance that the node does not have is gone, if the node itself reports that.
    let order = rig.order(&delete());
    let delete_failure = DeleteFailure {
        node_uuid: node_uuid.clone(),
        instance_uuid: instance_uuid.clone(),
        reason: Reason::NoInstance,
        ..DeleteFailure::default()
    };
    rig.frame(&delete_failure);
    assert_eq!(
        order.try_recv().unwrap().unwrap(),
        Shown::Gone {
            instance: INSTANCE,
            ending: None
        }
    );
    let order = rig.order(&delete());
    rig.frame(&DeleteFailure {
        node_uuid: VOLUME.into(),
        ..delete_failure
    });
    assert!(failed(&order).ends_with("(no_instance)"));

    let attach = AttachVolume {
        instance_uuid: instance_uuid.clone(),
        volume_uuid: VOLUME.into(),
        workload_agent_uuid: node_uuid.clone(),
    };
    let order = rig.order(&attach);
    let other_volume = AttachVolumeFailure {
        node_uuid: node_uuid.clone(),
        instance_uuid: instance_uuid.clone(),
        volume_uuid: NODE.into(),
        reason: Reason::AttachFailure,
        ..AttachVolumeFailure::default()
    };
    rig.frame(&other_volume);
    open(&order);
    rig.frame(&AttachVolumeFailure {
        volume_uuid: VOLUME.into(),
        ..other_volume
    });
    assert!(failed(&order).ends_with("attaching failed (attach_failure)"));

    let assign = AssignPublicIp {
        concentrator_uuid: NODE.into(),
        instance_uuid,
        public_ip: "198.51.100.20".into(),
        ..AssignPublicIp::default()
    };
    let order = rig.order(&assign);
    rig.frame(&AssignPublicIpFailure::of(
        CommandSubject::of(&Frame::of(&assign)),
        Reason::NoInstance,
    ));
    assert!(
        failed(&order)
            .ends_with("there is no such instance, or its concentrator is not connected (no_instance)")
    );
}

/// Each reason in the tables of docs/cluster.md has its own text.
#[test]
fn every_reason_has_words() {
    fn words<R: ToString>(error: ErrorCode, reasons: &[R]) {
        for reason in reasons {
            let (payload, reason) = (format!("reason: {}\n", reason.to_string()), reason.to_string());
            let frame = Frame::with_payload(error, payload);
            let failure = crate::Failure::read(&frame).unwrap().unwrap();
            let text = failure.to_string();
            assert!(!text.contains("not one of the protocol's"), "{text}");
            assert!(text.ends_with(&format!(" ({reason})")), "{text}");
        }
    }
    // The failure of a command has the word `no_instance` for a receiver that is not connected.
    let is_of_command = |reason: &&Reason| !matches!(reason, Reason::NotConnected | Reason::RoleNotAllowed);
    let of_commands: Vec<_> = Reason::ALL.iter().filter(is_of_command).collect();
    for error in [
        ErrorCode::START_FAILURE,
        ErrorCode::STOP_FAILURE,
        ErrorCode::RESTART_FAILURE,
        ErrorCode::DELETE_FAILURE,
        ErrorCode::ATTACH_VOLUME_FAILURE,
        ErrorCode::DETACH_VOLUME_FAILURE,
        ErrorCode::ASSIGN_PUBLIC_IP_FAILURE,
        ErrorCode::UNASSIGN_PUBLIC_IP_FAILURE,
    ] {
        words(error, &of_commands);
    }
    words(ErrorCode::INVALID_FRAME_TYPE, InvalidFrameTypeReason::ALL);
    words(
        ErrorCode::INVALID_FRAME_TYPE,
        &["not_connected", "invalid_data", "invalid_payload"],
    );
}
