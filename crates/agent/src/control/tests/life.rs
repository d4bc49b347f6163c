//! Restarts by policy, and the retention of ended instances.

use std::time::SystemTime;

use super::*;
use crate::policy::Policy;
use ssntp::client::ClientFigures;

fn restarting(policy: RestartPolicy) -> Start {
    Start {
        restart_policy: policy,
        ..start(ONE)
    }
}

/// Advances the time until the instance is started again, and returns the seconds.
fn wait_for_restart(stage: &mut Stage) -> u64 {
    stage.jobs.clear();
    for second in 0..=400 {
        if stage.jobs.iter().any(|job| matches!(job, Job::Launch(_))) {
            return second;
        }
        stage.pass(Duration::from_secs(1));
    }
    panic!("the instance is not started again");
}

#[track_caller]
fn stays_ended(stage: &mut Stage) {
    stage.jobs.clear();
    for _ in 0..400 {
        stage.pass(Duration::from_secs(1));
    }
    assert!(!stage.jobs.iter().any(|job| matches!(job, Job::Launch(_))));
}

fn restarts(stage: &mut Stage) -> i64 {
    stage.stats().instances[0].restarts
}

fn is_restart_due(stage: &mut Stage) -> bool {
    stage.stats().instances[0].restart_due
}

#[test]
fn an_instance_is_started_again_by_its_policy() {
    use RestartPolicy::{Always, Never, OnFailure};

    for (policy, code, again) in [
        (Never, 1, false),
        (OnFailure, 0, false),
        (OnFailure, 1, true),
        (Always, 0, true),
        (Always, 137, true),
    ] {
        let mut stage = Stage::new();
        stage.run(&restarting(policy.clone()));
        stage.sent.clear();
        stage.end(ONE, code);
        assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
        let record = stage.job(|job| match job {
            Job::Save { record, .. } => Some(record.clone()),
            _ => None,
        });
        assert_eq!(record.restart_due, again, "{policy} {code}");
        assert_eq!(is_restart_due(&mut stage), again, "{policy} {code}");
        if !again {
            stays_ended(&mut stage);
            continue;
        }
        assert_eq!(wait_for_restart(&mut stage), 1);
        assert_eq!(stage.state(ONE), Some(InstanceState::Pending));
        stage.launched(ONE);
        assert_eq!(
            (stage.state(ONE), restarts(&mut stage)),
            (Some(InstanceState::Active), 1)
        );
        assert!(!is_restart_due(&mut stage));
        stage.nothing::<RestartFailure>();
    }
}

#[test]
fn restarts_wait_longer_each_time_until_a_long_run() {
    let mut stage = Stage::new();
    stage.run(&restarting(RestartPolicy::Always));
    let mut waits = Vec::new();
    for _ in 0..11 {
        stage.end(ONE, 1);
        waits.push(wait_for_restart(&mut stage));
        stage.launched(ONE);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    stage.pass(Duration::from_secs(600));
    stage.end(ONE, 1);
    assert_eq!(wait_for_restart(&mut stage), 1);
    stage.launched(ONE);
    assert_eq!(restarts(&mut stage), 12);
}

#[test]
fn restarts_in_a_row_have_a_limit() {
    let mut stage = Stage::new();
    let mut start = restarting(RestartPolicy::OnFailure);
    start.restart_limit = 2;
    stage.run(&start);
    for _ in 0..2 {
        stage.end(ONE, 1);
        wait_for_restart(&mut stage);
        stage.launched(ONE);
    }
    stage.end(ONE, 1);
    assert!(!is_restart_due(&mut stage));
    stays_ended(&mut stage);
    assert_eq!(restarts(&mut stage), 2);
    // A RESTART begins a new count.
    stage.send(&restart(ONE));
    stage.launched(ONE);
    stage.end(ONE, 1);
    assert_eq!(wait_for_restart(&mut stage), 1);
}

#[test]
fn commands_to_end_an_instance_cancel_its_restart() {
    // The command arrives while the instance runs.
    for persistent in [false, true] {
        let mut start = restarting(RestartPolicy::Always);
        if persistent {
            start.persistence = Persistence::Host;
        }
        let mut stage = Stage::new();
        stage.run(&start);
        stage.send(&stop(ONE));
        stage.end(ONE, 143);
        if persistent {
            stays_ended(&mut stage)
        } else {
            stage.removed(ONE)
        }

        // The command arrives while the restart waits.
        let mut stage = Stage::new();
        stage.run(&start);
        stage.end(ONE, 1);
        stage.send(&stop(ONE));
        stage.nothing::<StopFailure>();
        if persistent {
            assert_eq!(stage.next::<InstanceStopped>().instance_uuid, ONE);
            assert!(!is_restart_due(&mut stage));
            stays_ended(&mut stage);
            stage.send(&stop(ONE));
            assert_eq!(stage.next::<StopFailure>().reason, Reason::AlreadyStopped);
        } else {
            stage.removed(ONE);
            stage.next::<InstanceDeleted>();
        }

        // The command arrives during the launch.
        let mut stage = Stage::new();
        stage.run(&start);
        stage.end(ONE, 1);
        wait_for_restart(&mut stage);
        stage.send(&stop(ONE));
        stage.launched(ONE);
        stage.job(|job| matches!(job, Job::Terminate(..)).then_some(()));
        stage.end(ONE, 143);
        if persistent {
            stays_ended(&mut stage)
        } else {
            stage.removed(ONE)
        }
    }
    let mut stage = Stage::new();
    stage.run(&restarting(RestartPolicy::Always));
    stage.end(ONE, 1);
    stage.send(&delete(ONE, false));
    stage.removed(ONE);
    stage.next::<InstanceDeleted>();

    let mut stage = Stage::new();
    stage.run(&restarting(RestartPolicy::Always));
    stage.end(ONE, 1);
    stage.sent.clear();
    stage.send(&evacuate());
    stage.removed(ONE);
    assert_eq!(stage.next::<InstanceStopped>().instance_uuid, ONE);
    stage.next::<Maintenance>();
}

#[test]
fn a_restart_by_policy_that_fails_is_tried_again_without_a_failure_frame() {
    let mut stage = Stage::new();
    stage.run(&restarting(RestartPolicy::Always));
    stage.end(ONE, 1);
    wait_for_restart(&mut stage);
    stage.jobs.clear();
    stage.feed(Input::Done(Done::Launched {
        instance: ONE,
        result: Err(Refused::launch("no such program")),
    }));
    let record = stage.job(|job| match job {
        Job::Save { record, .. } => Some(record.clone()),
        _ => None,
    });
    assert!(
        record.restart_due && record.detail.contains("no such program"),
        "{record:?}"
    );
    assert_eq!(wait_for_restart(&mut stage), 2);
    stage.nothing::<RestartFailure>();
}

#[test]
fn no_instance_is_started_again_while_the_node_is_offline() {
    let mut stage = Stage::new();
    stage.run(&restarting(RestartPolicy::Always));
    stage.feed(Input::ToggleOffline);
    stage.job(|job| matches!(job, Job::SaveNode(node, None) if node.offline).then_some(()));
    stage.end(ONE, 1);
    stays_ended(&mut stage);
    assert!(
        stage.control.next_deadline() > stage.now,
        "the agent does not wake again and again"
    );
    stage.feed(Input::ToggleOffline);
    stage.job(|job| matches!(job, Job::Launch(_)).then_some(()));
}

fn adopting(record: Record, start: Start, node: NodeRecord, rebooted: bool, exit: Exit) -> Stage {
    let fake = Fake {
        found: Some(exit),
        ..Fake::default()
    };
    let mut stage = Stage::offline(Settings {
        drivers: vec![Arc::new(fake)],
        ..settings()
    });
    let stored = Stored {
        instance: ONE,
        record: Some(record),
        start: Some(Box::new(start.into())),
        volumes: BTreeSet::new(),
        rebooted,
        age: Duration::from_secs(10),
    };
    stage.control.adopt(stage.now, node, vec![stored]);
    stage.connect();
    stage
}

fn record() -> Record {
    Record {
        driver: "fake".into(),
        ..Record::default()
    }
}

#[test]
fn an_instance_is_started_again_by_its_policy_after_a_reboot() {
    for (policy, exit, again) in [
        (RestartPolicy::Never, Exit::default(), false),
        (RestartPolicy::OnFailure, Exit::default(), true),
        (RestartPolicy::OnFailure, Exit::code(0), false),
        (RestartPolicy::Always, Exit::code(0), true),
    ] {
        let ran = Record {
            restarts_in_row: 7,
            ..record().running(&handle(ONE), 0)
        };
        let is_known = exit.code.is_some();
        let mut stage = adopting(ran, restarting(policy), NodeRecord::default(), true, exit);
        let record = stage.job(|job| match job {
            Job::Save { record, .. } => Some(record.clone()),
            _ => None,
        });
        assert_eq!(
            (record.restart_due, record.detail.contains("booted")),
            (again, !is_known)
        );
        if !again {
            stays_ended(&mut stage);
        } else if is_known {
            wait_for_restart(&mut stage);
        } else {
            assert_eq!(wait_for_restart(&mut stage), 1, "the instance had run until then");
        }
    }
    // A restart that was due is still due.
    let waits = Record {
        restart_due: true,
        restarts_in_row: 3,
        ..record().stopped(Exit::code(1))
    };
    let start = restarting(RestartPolicy::Always);
    let mut stage = adopting(waits, start, NodeRecord::default(), false, Exit::default());
    assert_eq!(wait_for_restart(&mut stage), 4);
}

#[test]
fn the_next_agent_of_an_offline_node_is_offline() {
    let node = NodeRecord {
        offline: true,
        ..NodeRecord::default()
    };
    let start = restarting(RestartPolicy::Always);
    let mut stage = adopting(
        record().running(&handle(ONE), 0),
        start,
        node,
        true,
        Exit::default(),
    );
    assert_eq!(stage.kinds(), ["OFFLINE", "STATS"]);
    stays_ended(&mut stage);
    // Restore changes nothing; only the owner puts the node back into service.
    stage.send(&restore());
    assert_eq!(stage.stats().status, NodeStatus::Offline);
    stage.feed(Input::ToggleOffline);
    stage.job(|job| matches!(job, Job::SaveNode(node, None) if !node.offline).then_some(()));
    stage.next::<Ready>();
}

fn kept(seconds: u32, count: u32) -> Settings {
    let mut policy = Policy::default();
    (policy.retention_s, policy.retention_count) = (seconds, count);
    Settings {
        policy: Arc::new(policy),
        ..settings()
    }
}

#[test]
fn an_ended_instance_is_deleted_after_its_retention_and_reported() {
    let mut stage = Stage::of(kept(60, 10));
    stage.run(&start(ONE));
    stage.end(ONE, 0);
    stage.run(&persistent(TWO));
    stage.end(TWO, 0);
    stage.pass(Duration::from_secs(59));
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
    assert!(stage.control.next_deadline() <= stage.now + Duration::from_secs(1));
    stage.pass(Duration::from_secs(1));
    stage.removed(ONE);
    assert_eq!(stage.next::<InstanceDeleted>().instance_uuid, ONE);
    stage.pass(Duration::from_secs(1000));
    assert_eq!(
        stage.state(TWO),
        Some(InstanceState::Exited),
        "only its owner may delete the instance"
    );

    // If the directory can't be removed, the removal is tried again, and no failure is sent.
    let mut stage = Stage::of(kept(0, 10));
    stage.run(&start(ONE));
    stage.end(ONE, 0);
    stage.job(|job| matches!(job, Job::Remove { .. }).then_some(()));
    stage.feed(Input::Done(Done::Removed {
        instance: ONE,
        result: Err("busy".into()),
    }));
    stage.nothing::<DeleteFailure>();
    stage.pass(Duration::from_secs(60));
    stage.removed(ONE);
    stage.next::<InstanceDeleted>();
}

#[test]
fn the_oldest_of_too_many_ended_instances_is_deleted_and_none_counts_for_the_limit() {
    let mut stage = Stage::of(kept(86400, 2));
    for n in 1..=10 {
        let id = Uuid::from_u128(n);
        stage.run(&start(id));
        stage.pass(Duration::from_secs(1));
        stage.end(id, 0);
        assert_eq!(stage.stats().status, NodeStatus::Ready, "{n}");
        if n > 2 {
            stage.removed(Uuid::from_u128(n - 2));
            assert_eq!(
                stage.next::<InstanceDeleted>().instance_uuid,
                Uuid::from_u128(n - 2)
            );
        }
    }
    assert_eq!(stage.control.instances.iter().count(), 2);
    // Persistent instances count towards the limit.
    for n in 11..=13 {
        let id = Uuid::from_u128(n);
        stage.run(&persistent(id));
        stage.end(id, 0);
    }
    assert_eq!(stage.stats().status, NodeStatus::Full);
}

#[test]
fn retention_continues_while_no_agent_runs() {
    let mut stage = Stage::offline(kept(12, 10));
    let stored = Stored {
        instance: ONE,
        record: Some(record().stopped(Exit::code(0))),
        start: Some(Box::new(start(ONE).into())),
        volumes: BTreeSet::new(),
        rebooted: false,
        age: Duration::from_secs(10),
    };
    stage
        .control
        .adopt(stage.now, NodeRecord::default(), vec![stored]);
    stage.connect();
    stage.pass(Duration::from_secs(1));
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
    stage.pass(Duration::from_secs(1));
    stage.removed(ONE);
}

#[test]
fn an_ended_instance_is_measured_once() {
    let mut stage = Stage::new();
    stage.run(&start(ONE));
    stage.run(&persistent(TWO));
    stage.end(ONE, 0);
    stage.end(TWO, 0);
    let measured = |stage: &mut Stage| {
        stage.jobs.clear();
        stage.pass(Duration::from_secs(30));
        let subjects = stage.job(|job| match job {
            Job::Measure(by_driver) => Some(
                by_driver
                    .iter()
                    .map(|(_, subjects)| subjects.len())
                    .sum::<usize>(),
            ),
            _ => None,
        });
        stage.feed(Input::Done(Done::Measured {
            facts: facts(),
            usages: Vec::new(),
            tunnels: Vec::new(),
        }));
        subjects
    };
    assert_eq!(measured(&mut stage), 2);
    assert_eq!(measured(&mut stage), 0);
    stage.send(&restart(TWO));
    stage.launched(TWO);
    assert_eq!(measured(&mut stage), 1);
}

#[test]
fn an_evacuation_kills_instances_at_its_deadline() {
    for (deadline, seconds) in [(3, 3), (25, 25), (0, 10)] {
        let mut stage = Stage::new();
        stage.run(&start(ONE));
        stage.send(&Evacuate {
            deadline,
            ..evacuate()
        });
        stage.job(|job| matches!(job, Job::Terminate(..)).then_some(()));
        stage.pass(Duration::from_secs(seconds - 1));
        assert!(!stage.jobs.iter().any(|job| matches!(job, Job::Kill(..))));
        stage.pass(Duration::from_secs(1));
        stage.job(|job| matches!(job, Job::Kill(..)).then_some(()));
    }
    // The evacuation does not wait until the image of a persistent instance is copied.
    let mut stage = Stage::new();
    stage.send(&persistent(ONE));
    let cancel = stage.job(|job| match job {
        Job::Launch(job) => Some(job.cancel.clone()),
        _ => None,
    });
    stage.send(&evacuate());
    assert!(cancel.is_cancelled());
    // An instance that is ending already gets no more time.
    let mut stage = Stage::new();
    stage.run(&start(ONE));
    stage.send(&stop(ONE));
    stage.send(&Evacuate {
        deadline: 2,
        ..evacuate()
    });
    stage.pass(Duration::from_secs(2));
    stage.job(|job| matches!(job, Job::Kill(..)).then_some(()));
}

#[test]
fn unsupported_settings_of_a_start_are_refused() {
    let rows: [fn(&mut Start); 3] = [
        |start| start.requirements.privileged = true,
        |start| {
            start.storage.push(Storage {
                id: VOLUME.into(),
                swap: true,
                ..Storage::default()
            });
        },
        |start| start.restart_policy = "sometimes".into(),
    ];
    for change in rows {
        let mut start = start(ONE);
        change(&mut start);
        let mut stage = Stage::new();
        stage.send(&start);
        assert_eq!(stage.next::<StartFailure>().reason, Reason::LaunchFailure);
    }
}

#[test]
fn a_volume_without_a_name_is_made_and_deleted_with_its_instance() {
    let mut start = start(ONE);
    start.storage = vec![
        Storage {
            id: VOLUME.into(),
            ..Storage::default()
        },
        Storage {
            local: true,
            size: 1,
            ..Storage::default()
        },
    ];
    let mut stage = Stage::new();
    stage.send(&start);
    let volumes = stage.job(|job| match job {
        Job::Launch(job) => Some(job.volumes.clone()),
        _ => None,
    });
    let (own, made) = volumes[1];
    assert_eq!((volumes[0], made), ((VOLUME, false), true));
    stage.feed(Input::Done(Done::Launched {
        instance: ONE,
        result: Ok((handle(ONE), 0)),
    }));
    stage.send(&delete(ONE, false));
    stage.end(ONE, 143);
    let removed = stage.job(|job| match job {
        Job::Remove { ephemeral, .. } => Some(ephemeral.clone()),
        _ => None,
    });
    assert_eq!(removed, [own]);
}

#[test]
fn starts_and_failures_are_counted_and_instances_by_state() {
    let figures = |stage: &Stage| {
        let client = ClientFigures::new(SystemTime::UNIX_EPOCH);
        stage.control.figures(client, Vec::new(), 0)
    };
    let mut stage = Stage::new();
    stage.run(&restarting(RestartPolicy::Always));
    stage.send(&start(TWO));
    stage.send(&Start {
        dir: "bad".into(),
        ..start(OTHER)
    });
    let now = figures(&stage);
    assert_eq!(now.instances, BTreeMap::from([("active", 1), ("launching", 1)]));
    assert_eq!(now.failures, BTreeMap::from([("invalid_data", 1)]));
    assert_eq!((now.starts, now.restarts, now.status), (1, 0, Some("READY")));
    stage.end(ONE, 0);
    assert_eq!(
        figures(&stage).instances,
        BTreeMap::from([("launching", 1), ("exited", 1)])
    );
    wait_for_restart(&mut stage);
    stage.launched(ONE);
    let now = figures(&stage);
    assert_eq!((now.starts, now.restarts), (1, 1), "a restart is not a START");
    let why = || "no space".to_owned();
    let of_instance = Done::Unsaved {
        instance: ONE,
        why: why(),
    };
    stage.feed(Input::Done(of_instance));
    stage.feed(Input::Done(Done::NodeUnsaved { why: why() }));
    assert_eq!((now.unsaved, figures(&stage).unsaved), (0, 2));
    stage.feed(Input::Disconnected);
    stage.feed(Input::Done(Done::Launched {
        instance: TWO,
        result: Err(Refused::launch("gone")),
    }));
    let now = figures(&stage);
    assert_eq!(now.failures["launch_failure"], 1);
    assert!(now.frames_held > 0, "the failure could not be sent");
}
