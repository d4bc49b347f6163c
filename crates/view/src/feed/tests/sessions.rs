//! Refusals that name no command, and sessions that are lost, end, or are complete.

use super::*;
use crate::view::tests::name;
use ssntp_transport::deadline;

#[test]
fn invalid_frame_type_settles_the_order_that_fits_best() {
    let rig = Rig::with(InstanceState::Active);
    let evacuate = |node: Uuid| Evacuate {
        workload_agent_uuid: node.into(),
        ..Evacuate::default()
    };
    let unknown = rig.order(&evacuate(VOLUME));
    let known = rig.order(&evacuate(NODE));
    let refused = |reason: &str| InvalidFrameType::new(Command::EVACUATE.into(), reason.into());
    rig.frame(&refused("not_connected"));
    open(&known);
    assert_eq!(
        failed(&unknown),
        format!(
            "EVACUATE of node {VOLUME} was refused: the client that it names is not connected (not_connected)"
        )
    );
    rig.frame(&refused("role_not_allowed"));
    assert!(failed(&known).contains("may not command"));
    rig.frame(&refused("role_not_allowed"));
}

#[test]
fn a_refused_configuration_fails_its_order() {
    let rig = Rig::with(InstanceState::Active);
    let order = rig.shared.watch(configured("configure: {}")).unwrap().1;
    rig.frame(&InvalidConfiguration {
        refused: "configure: {}".into(),
    });
    assert_eq!(
        failed(&order),
        "the configuration was refused: the scheduler, or an agent that it is for, cannot use it \
         (InvalidConfiguration)"
    );
}

#[test]
fn a_lost_session_settles_nothing_and_the_end_settles_all() {
    let rig = Rig::with(InstanceState::Active);
    let changes = rig.shared.subscribe();
    let one = rig.order(&stop());
    rig.shared.offline("lost".into(), UNIX_EPOCH);
    open(&one);
    rig.shared.online("scheduler".into(), None);
    rig.stats(NodeStatus::Ready, &[]);
    assert_eq!(shown(&one), format!("instance {INSTANCE} is gone"));

    let two = rig.order(&delete());
    locked(&rig.shared.state).end(ClientError::Closed);
    assert!(matches!(
        two.try_recv().unwrap(),
        Err(OrderError::Ended(ClientError::Closed))
    ));
    assert!(rig.shared.watch(configured("configure: {}")).is_err());
    let names: Vec<_> = changes.iter().map(|change| name(&change)).collect();
    assert_eq!(
        names,
        ["offline", "online", "instance_gone", "node_stats", "ended"]
    );
    let late = rig.shared.subscribe();
    let late: Vec<_> = late.iter().map(|change| name(&change)).collect();
    assert_eq!(late, ["ended"]);
}

#[test]
fn a_slow_subscriber_misses_changes_and_blocks_no_thread() {
    let rig = Rig::with(InstanceState::Active);
    let changes = rig.shared.subscribe();
    let dropped = rig.shared.subscribe();
    drop(dropped);
    for _ in 0..MAX_CHANGES + 5 {
        locked(&rig.shared.state)
            .subscribers
            .publish(&Change::NodeOffline);
    }
    assert_eq!(locked(&rig.shared.state).subscribers.len(), 1);
    assert_eq!(changes.try_iter().count(), MAX_CHANGES);
    rig.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Active)]);
    let names: Vec<_> = changes.try_iter().map(|change| change.to_string()).collect();
    assert_eq!(
        names,
        [
            "5 changes were missed".to_owned(),
            format!("STATS of node {NODE}")
        ]
    );
}

#[test]
fn a_wait_of_any_length_has_a_deadline() {
    let view = Shared::new(View::default());
    let found = view.wait(deadline(Duration::MAX), |view, _| Ok(view.is_online()));
    assert_eq!(found, Some(false));
}

#[test]
fn a_session_is_complete_after_all_stats_or_a_time_without_news() {
    let rig = Rig {
        shared: Shared::new(View::default()),
    };
    let soon = || now() + Duration::from_millis(10);
    assert!(!rig.shared.wait_complete(soon()), "no session");
    // Only a change can end the wait, so it does not look again before one.
    let looked = rig.shared.look(|view| complete(view, 100 * LONG_QUIET));
    assert_eq!(looked, Err(Duration::MAX));
    rig.shared.online("scheduler".into(), None);
    assert!(!rig.shared.wait_complete(soon()), "no node is known yet");
    rig.frame(&NodeConnected {
        node_uuid: NODE.into(),
        ..NodeConnected::default()
    });
    assert!(!rig.shared.wait_complete(soon()), "no STATS yet");
    rig.stats(NodeStatus::Ready, &[]);
    assert!(!rig.shared.wait_complete(soon()), "events may follow");
    let changes = rig.shared.subscribe();
    rig.frame(&SnapshotComplete {
        nodes: 1,
        reporting: 1,
        instances: 0,
        ..SnapshotComplete::default()
    });
    assert_eq!(
        changes.recv().unwrap().to_string(),
        "snapshot complete: 1 nodes, of which 1 have sent STATS, with 0 instances"
    );
    assert!(
        rig.shared.wait_complete(now()),
        "the event completes the session at once"
    );
    rig.frame(&NodeConnected {
        node_uuid: Uuid::from_u128(9).into(),
        ..NodeConnected::default()
    });
    assert!(!rig.shared.wait_complete(now()), "another node has sent no STATS");
    assert!(
        rig.shared.wait_complete(now() + 100 * QUIET),
        "no further frame arrives"
    );
    rig.shared.offline("lost".into(), UNIX_EPOCH);
    rig.shared.online("scheduler".into(), None);
    assert!(
        !rig.shared.wait_complete(soon()),
        "a new session begins a new snapshot"
    );
    assert!(
        rig.shared.wait_complete(now() + 100 * LONG_QUIET),
        "a scheduler may not send this event"
    );
}

/// NewLeader of this token; 0 is for no leader.
fn leader(token: u64) -> NewLeader {
    NewLeader {
        server_uuid: match token {
            0 => Id::default(),
            _ => Uuid::from_u128(token.into()).into(),
        },
        token,
    }
}

#[test]
fn without_a_leader_of_several_schedulers_a_session_is_not_complete() {
    let rig = Rig {
        shared: Shared::new(View::default()),
    };
    let is_complete = || rig.shared.look(|view| complete(view, 100 * LONG_QUIET));
    rig.shared.online("scheduler".into(), None);
    assert_eq!(is_complete(), Ok(()), "a scheduler that sends no NewLeader");
    let changes = rig.shared.subscribe();
    rig.frame(&leader(0));
    assert_eq!(is_complete(), Err(Duration::MAX), "no scheduler leads");
    // Nothing of this session is lost when the first leader begins.
    rig.frame(&leader(1));
    rig.stats(NodeStatus::Ready, &[]);
    assert_eq!(
        is_complete(),
        Err(Duration::MAX),
        "the leader may not have all reports"
    );
    rig.frame(&SnapshotComplete::default());
    assert_eq!(is_complete(), Ok(()));
    let ends = || {
        changes
            .try_iter()
            .any(|change| matches!(change, Change::Offline { .. }))
    };
    assert!(!ends());
    // The link between its server and the leader was cut, so frames may be lost.
    rig.frame(&leader(1));
    assert!(ends());
    assert_eq!(is_complete(), Err(Duration::MAX));
}

#[test]
fn a_leader_after_a_silence_that_counted_as_complete_begins_a_new_session() {
    let rig = Rig {
        shared: Shared::new(View::default()),
    };
    rig.shared.online("scheduler".into(), None);
    locked(&rig.shared.state).last_news -= LONG_QUIET;
    assert!(rig.shared.wait_complete(now()));
    let changes = rig.shared.subscribe();
    // The server was slow, or is one of an old version that sends no NewLeader before there is a leader.
    rig.frame(&leader(1));
    let begins = || {
        changes
            .try_iter()
            .any(|change| matches!(change, Change::Online { .. }))
    };
    assert!(begins() && !rig.shared.wait_complete(now()));
    // What follows the news that none leads is of the next leader.
    rig.shared.online("scheduler".into(), None);
    rig.frame(&leader(0));
    rig.frame(&SnapshotComplete::default());
    assert!(begins());
    rig.frame(&leader(1));
    assert!(!begins() && rig.shared.wait_complete(now()));
}

#[test]
fn a_new_leader_sends_a_new_snapshot_and_orders_keep_waiting() {
    let rig = Rig::with(InstanceState::Exited);
    rig.frame(&SnapshotComplete::default());
    assert!(rig.shared.look(View::has_snapshot));
    let (changes, runs) = (rig.shared.subscribe(), rig.order(&restart()));
    rig.frame(&leader(1));
    rig.shared.look(|view| {
        assert!(view.is_online() && !view.has_snapshot());
        assert!(
            view.nodes().all(|node| !node.connected),
            "the new node is not known yet"
        );
    });
    let texts: Vec<_> = changes.try_iter().map(|change| change.to_string()).collect();
    assert!(texts.concat().contains("another scheduler leads"), "{texts:?}");
    open(&runs);
    rig.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Active)]);
    shown(&runs);
    // A START that was lost with the previous leader is settled like one of a former session.
    let mut lost = start();
    lost.instance_uuid = Uuid::from_u128(9);
    let lost = rig.order(&lost);
    rig.frame(&leader(2));
    let at = locked(&rig.shared.state).orders.next_deadline().unwrap();
    locked(&rig.shared.state).handle_deadline(at);
    assert!(matches!(
        lost.try_recv().unwrap(),
        Err(OrderError::Lost(Command::START))
    ));
}

#[test]
fn a_failure_of_another_controllers_command_for_the_same_instance_settles_no_order() {
    let rig = Rig::with(InstanceState::Exited);
    let fail = |command_id: &str| {
        rig.frame(&RestartFailure {
            instance_uuid: INSTANCE.into(),
            node_uuid: NODE.into(),
            reason: Reason::AlreadyRunning,
            command_id: command_id.into(),
            ..RestartFailure::default()
        });
    };
    let (id, mine) = rig.identified(&restart());
    let (other, another) = rig.identified(&restart());
    assert!(!id.is_empty() && id.len() <= 64 && id != other, "{id} {other}");
    fail("theirs");
    open(&mine);
    fail(&id);
    assert!(failed(&mine).ends_with("(already_running)"));
    open(&another);
    // This peer does not repeat ids in its failures.
    fail("");
    failed(&another);
}

#[test]
fn a_delete_by_another_controller_does_not_settle_a_restart_as_started() {
    let rig = Rig::with(InstanceState::Exited);
    let order = rig.order(&restart());
    rig.frame(&InstanceDeleted {
        instance_uuid: INSTANCE.into(),
        ..Default::default()
    });
    assert_eq!(shown(&order), format!("instance {INSTANCE} is gone"));
}

#[test]
fn every_command_that_has_a_failure_has_an_id_besides_its_target() {
    let named = Start {
        name: "a\u{2028}b".into(),
        ..start()
    };
    let payload = StartPayload {
        user_data: Some(RawDocument::new("start: {command_id: no}").unwrap()),
        ..start().into()
    };
    for frame in [
        goal::identified(&payload),
        goal::identified(&stop()),
        goal::identified(&delete()),
        goal::identified(&restart()),
    ] {
        let subject = CommandSubject::of(&frame);
        assert!(subject.command_id.starts_with("id-"), "{subject:?}");
        assert_eq!(subject.instance_uuid, INSTANCE);
    }
    assert_eq!(goal::identified(&named), Frame::of(&named));
}

#[test]
fn the_deletion_of_an_instance_settles_orders_with_its_exit_code() {
    let end = InstanceEnd {
        exit_code: 143,
        exit_signal: 15,
        detail: "x".repeat(2000),
        ..InstanceEnd::default()
    };
    let rig = Rig::with(InstanceState::Active);
    let (order, changes) = (rig.order(&stop()), rig.shared.subscribe());
    rig.frame(&InstanceDeleted {
        instance_uuid: INSTANCE.into(),
        end: end.clone(),
    });
    assert_eq!(
        shown(&order),
        format!("instance {INSTANCE} is gone: killed SIGTERM")
    );
    let deleted = changes.try_recv().unwrap().to_string();
    assert_eq!(deleted, format!("instance {INSTANCE} is deleted: killed SIGTERM"));

    let rig = Rig::with(InstanceState::Active);
    let order = rig.order(&stop());
    rig.frame(&InstanceStopped {
        instance_uuid: INSTANCE.into(),
        end,
    });
    assert_eq!(
        shown(&order),
        format!("instance {INSTANCE} has stopped: killed SIGTERM")
    );
    let ending = rig.shared.look(|view| view.instance(INSTANCE).unwrap().ending());
    let ending = ending.unwrap();
    assert_eq!((ending.code, ending.detail.as_str()), (Some(143), ""));
}
