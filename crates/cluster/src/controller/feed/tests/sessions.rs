//! Refusals that name no order, and sessions that are lost, end, or are complete.

use super::*;
use crate::controller::view::tests::name;

#[test]
fn a_refusal_that_names_nobody_is_taken_for_the_command_that_it_fits_best() {
    let told = Told::with(InstanceState::Active);
    let evacuate = |node: Uuid| Evacuate {
        workload_agent_uuid: node.into(),
        ..Evacuate::default()
    };
    let unknown = told.order(&evacuate(VOLUME));
    let known = told.order(&evacuate(NODE));
    let refused = |reason: &str| InvalidFrameType::new(Command::EVACUATE.into(), reason.into());
    told.frame(&refused("not_connected"));
    open(&known);
    assert_eq!(
        failed(&unknown),
        format!(
            "EVACUATE of node {VOLUME} was refused: the client that it names is not connected (not_connected)"
        )
    );
    told.frame(&refused("role_not_allowed"));
    assert!(failed(&known).contains("may not command"));
    told.frame(&refused("role_not_allowed"));
}

#[test]
fn a_refused_configuration_fails_its_order() {
    let told = Told::with(InstanceState::Active);
    let order = told.shared.watch(configured("configure: {}")).unwrap().1;
    told.frame(&InvalidConfiguration {
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
    let told = Told::with(InstanceState::Active);
    let changes = told.shared.subscribe();
    let one = told.order(&stop());
    told.shared.offline("lost".into(), UNIX_EPOCH);
    open(&one);
    told.shared.online("scheduler".into(), None);
    told.stats(NodeStatus::Ready, &[]);
    assert_eq!(shown(&one), format!("instance {INSTANCE} is gone"));

    let two = told.order(&delete());
    told.shared.lock().end(ClientError::Closed);
    assert!(matches!(
        two.try_recv().unwrap(),
        Err(OrderError::Ended(ClientError::Closed))
    ));
    assert!(told.shared.watch(configured("configure: {}")).is_err());
    let names: Vec<_> = changes.iter().map(|change| name(&change)).collect();
    assert_eq!(
        names,
        ["offline", "online", "instance_gone", "node_stats", "ended"]
    );
    let late = told.shared.subscribe();
    let late: Vec<_> = late.iter().map(|change| name(&change)).collect();
    assert_eq!(late, ["ended"]);
}

#[test]
fn a_subscriber_that_receives_nothing_misses_changes_and_holds_nobody_up() {
    let told = Told::with(InstanceState::Active);
    let changes = told.shared.subscribe();
    let gone = told.shared.subscribe();
    drop(gone);
    for _ in 0..MOST_CHANGES + 5 {
        told.shared.lock().publish(&Change::NodeOffline);
    }
    assert_eq!(told.shared.lock().subscribers.len(), 1);
    assert_eq!(changes.try_iter().count(), MOST_CHANGES);
    told.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Active)]);
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
fn a_session_is_complete_when_all_have_been_heard_or_nothing_new_comes() {
    let told = Told {
        shared: Shared::new(View::default()),
    };
    let soon = || now() + Duration::from_millis(10);
    assert!(!told.shared.wait_complete(soon()), "no session");
    told.shared.online("scheduler".into(), None);
    assert!(!told.shared.wait_complete(soon()), "nobody has been told of");
    told.frame(&NodeConnected {
        node_uuid: NODE.into(),
        ..NodeConnected::default()
    });
    assert!(!told.shared.wait_complete(soon()), "no STATS yet");
    told.stats(NodeStatus::Ready, &[]);
    assert!(!told.shared.wait_complete(soon()), "events may follow");
    let changes = told.shared.subscribe();
    told.frame(&SnapshotComplete {
        nodes: 1,
        reporting: 1,
        instances: 0,
    });
    assert_eq!(
        changes.recv().unwrap().to_string(),
        "all is told: 1 nodes, of which 1 have sent STATS, with 0 instances"
    );
    assert!(told.shared.wait_complete(now()), "at once");
    told.frame(&NodeConnected {
        node_uuid: Uuid::from_u128(9).into(),
        ..NodeConnected::default()
    });
    assert!(
        !told.shared.wait_complete(now()),
        "another node has sent no STATS"
    );
    assert!(
        told.shared.wait_complete(now() + 100 * QUIET),
        "nothing new comes"
    );
    told.shared.offline("lost".into(), UNIX_EPOCH);
    told.shared.online("scheduler".into(), None);
    assert!(!told.shared.wait_complete(soon()), "a new session tells anew");
    assert!(
        told.shared.wait_complete(now() + 100 * LONG_QUIET),
        "a scheduler without this event"
    );
}

#[test]
fn a_new_leader_tells_anew_and_its_orders_wait_on() {
    let told = Told::with(InstanceState::Exited);
    told.frame(&SnapshotComplete::default());
    assert!(told.shared.look(View::is_told));
    let (changes, runs) = (told.shared.subscribe(), told.order(&restart()));
    told.frame(&NewLeader::default());
    told.shared.look(|view| {
        assert!(view.is_online() && !view.is_told());
        assert!(view.nodes().all(|node| !node.connected), "not heard of yet");
    });
    let said: Vec<_> = changes.try_iter().map(|change| change.to_string()).collect();
    assert!(said.concat().contains("another scheduler leads"), "{said:?}");
    open(&runs);
    told.stats(NodeStatus::Ready, &[(INSTANCE, InstanceState::Active)]);
    shown(&runs);
    // A START that the leader before has taken with it is lost like that of a former session.
    let mut lost = start();
    lost.instance_uuid = Uuid::from_u128(9);
    let lost = told.order(&lost);
    told.frame(&NewLeader::default());
    let at = told.shared.lock().look_at.unwrap();
    told.shared.lock().look_for_starts(at);
    assert!(matches!(
        lost.try_recv().unwrap(),
        Err(OrderError::Lost(Command::START))
    ));
}

#[test]
fn a_failure_of_another_controllers_command_for_the_same_instance_settles_nothing_here() {
    let told = Told::with(InstanceState::Exited);
    let fail = |command_id: &str| {
        told.frame(&RestartFailure {
            instance_uuid: INSTANCE.into(),
            node_uuid: NODE.into(),
            reason: RestartFailureReason::AlreadyRunning,
            command_id: command_id.into(),
            ..RestartFailure::default()
        });
    };
    let (id, mine) = told.identified(&restart());
    let (other, another) = told.identified(&restart());
    assert!(!id.is_empty() && id.len() <= 64 && id != other, "{id} {other}");
    fail("theirs");
    open(&mine);
    fail(&id);
    assert!(failed(&mine).ends_with("(already_running)"));
    open(&another);
    // A peer that does not repeat ids.
    fail("");
    failed(&another);
}

#[test]
fn what_another_controller_deletes_was_not_started_again() {
    let told = Told::with(InstanceState::Exited);
    let order = told.order(&restart());
    told.frame(&InstanceDeleted {
        instance_uuid: INSTANCE.into(),
        ..Default::default()
    });
    assert_eq!(shown(&order), format!("instance {INSTANCE} is gone"));
}

#[test]
fn every_command_that_has_a_failure_has_an_id_beside_what_it_names() {
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
fn the_end_of_an_instance_that_its_node_removes_at_once_is_told_with_its_exit_code() {
    let end = InstanceEnd {
        exit_code: 143,
        exit_signal: 15,
        detail: "x".repeat(2000),
        ..InstanceEnd::default()
    };
    let told = Told::with(InstanceState::Active);
    let (order, changes) = (told.order(&stop()), told.shared.subscribe());
    told.frame(&InstanceDeleted {
        instance_uuid: INSTANCE.into(),
        end: end.clone(),
    });
    assert_eq!(
        shown(&order),
        format!("instance {INSTANCE} is gone: killed SIGTERM")
    );
    let deleted = changes.try_recv().unwrap().to_string();
    assert_eq!(deleted, format!("instance {INSTANCE} is deleted: killed SIGTERM"));

    let told = Told::with(InstanceState::Active);
    let order = told.order(&stop());
    told.frame(&InstanceStopped {
        instance_uuid: INSTANCE.into(),
        end,
    });
    assert_eq!(
        shown(&order),
        format!("instance {INSTANCE} has stopped: killed SIGTERM")
    );
    let ending = told.shared.look(|view| view.instance(INSTANCE).unwrap().ending());
    let ending = ending.unwrap();
    assert_eq!((ending.code, ending.detail.as_str()), (Some(143), ""));
}
