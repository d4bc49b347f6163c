//! What the end of a session, a new one and a new leader mean for orders and for the view.

use super::*;

#[test]
fn a_start_of_a_former_session_that_nothing_shows_is_lost() {
    let told = Told::with(InstanceState::Active);
    let other = |instance_uuid| Start {
        instance_uuid,
        ..Start::default()
    };
    let (lost, pending) = (told.order(&other(VOLUME)), told.order(&other(NODE)));
    let look = || {
        let mut state = told.shared.lock();
        let at = state.look_at?;
        state.look_for_starts(at);
        Some(())
    };
    assert_eq!(look(), None, "its own session stands");
    told.shared.offline("lost".into(), UNIX_EPOCH);
    told.shared.online("scheduler".into(), None);
    told.stats(NodeStatus::Ready, &[(NODE, InstanceState::Pending)]);
    let of_this = told.order(&other(Uuid::nil()));
    look().expect("it looks");
    assert!(matches!(
        lost.try_recv().unwrap(),
        Err(OrderError::Lost(Command::START))
    ));
    open(&pending);
    open(&of_this);
    told.stats(NodeStatus::Ready, &[]);
    look().expect("it looks again while one waits");
    assert!(matches!(pending.try_recv().unwrap(), Err(OrderError::Lost(_))));
    assert_eq!(look(), None);
    open(&of_this);
}

#[test]
fn a_scheduler_that_is_started_again_and_again_does_not_put_off_that_a_start_is_lost() {
    let told = Told::with(InstanceState::Active);
    let lost = told.order(&Start {
        instance_uuid: VOLUME,
        ..Start::default()
    });
    let again = || {
        told.shared.offline("lost".into(), UNIX_EPOCH);
        told.shared.online("scheduler".into(), None);
        told.shared.lock().look_at
    };
    let at = again().expect("it will look");
    assert_eq!(again(), Some(at));
    told.shared.offline("lost".into(), UNIX_EPOCH);
    let look = |at| told.shared.lock().look_for_starts(at);
    look(at);
    open(&lost);
    told.shared.online("scheduler".into(), None);
    let at = told.shared.lock().look_at.expect("it looks again");
    look(at);
    assert!(matches!(lost.try_recv().unwrap(), Err(OrderError::Lost(_))));
    assert_eq!(told.shared.lock().look_at, None);
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
    let names: Vec<_> = changes.iter().map(|change| change.name()).collect();
    assert_eq!(
        names,
        ["offline", "online", "instance_gone", "node_stats", "ended"]
    );
    let late: Vec<_> = told
        .shared
        .subscribe()
        .iter()
        .map(|change| change.name())
        .collect();
    assert_eq!(late, ["ended"]);
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
    assert!(matches!(lost.try_recv().unwrap(), Err(OrderError::Lost(Command::START))));
}
