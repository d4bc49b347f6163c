//! The life of an instance from START to DELETE.

use super::*;

#[test]
fn an_instance_starts_and_is_reported() {
    let mut stage = Stage::new();
    stage.send(&start(ONE));
    let ready: Ready = stage.next();
    assert_eq!(ready.mem_available_mb, 900, "the memory is reserved at once");
    assert_eq!(stage.state(ONE), Some(InstanceState::Pending));
    stage.launched(ONE);
    assert_eq!(stage.state(ONE), Some(InstanceState::Active));
    stage.measure();
    let stats: Stats = stage.next();
    assert_eq!(stats.instances.len(), 1);
    stage.sent.clear();

    stage.end(ONE, 3);
    let ready: Ready = stage.next();
    assert_eq!(ready.mem_available_mb, 1000);
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
    let record = stage.job(|job| match job {
        Job::Save { record, .. } => Some(record.clone()),
        _ => None,
    });
    assert_eq!((record.phase, record.exit_code), (RecordPhase::Stopped, 3));
}

#[test]
fn stats_that_would_be_too_long_leave_labels_out() {
    let mut stage = Stage::of(Settings {
        max_instances: 1000,
        mem_mb: Some(1 << 30),
        disk_mb: Some(1 << 30),
        ..settings()
    });
    let labels = |n: usize| (format!("{n:063}"), "v".repeat(MAX_LABEL));
    for id in 0..300 {
        let mut start = start(Uuid::from_u128(1000 + id));
        start.name = format!("job-{id}");
        start.labels = (0..MAX_LABELS).map(labels).collect();
        stage.send(&start);
    }
    stage.sent.clear();
    stage.measure();
    let stats: Stats = stage.next();
    assert_eq!(
        (stats.instances.len(), &*stats.instances[299].name),
        (300, "job-299")
    );
    assert!(stats.instances.iter().all(|instance| instance.labels.is_empty()));
}

#[test]
fn the_end_of_a_run_is_reported_until_the_next_run() {
    let mut stage = Stage::new();
    let mut named = start(ONE);
    named.name = "web".into();
    named.labels.insert("tier".into(), "front".into());
    stage.send(&named);
    stage.launched(ONE);
    let reported = |stage: &Stage| stage.control.stats().instances.remove(0);
    assert_eq!((reported(&stage).exit_code, &*reported(&stage).name), (-1, "web"));
    for (pid, why) in [(0, "its directory is\ntoo large"), (1, "of an earlier run")] {
        let mut handle = handle(ONE);
        handle.pid += pid;
        stage.feed(Input::Done(Done::Condemned {
            instance: ONE,
            handle,
            why: why.into(),
        }));
    }
    let kills = stage.jobs.iter().filter(|job| matches!(job, Job::Kill(..)));
    assert_eq!(kills.count(), 1, "the later run is not killed");
    stage.end(ONE, 137);
    let ended = reported(&stage);
    assert_eq!((ended.exit_code, ended.labels["tier"].as_str()), (137, "front"));
    assert_eq!(&*ended.detail, "its directory is\\ntoo large");

    stage.send(&restart(ONE));
    assert_eq!((reported(&stage).exit_code, &*reported(&stage).detail), (-1, ""));
    stage.feed(Input::Done(Done::Launched {
        instance: ONE,
        result: Err(Refused::launch("its program is gone")),
    }));
    let failed = reported(&stage);
    assert_eq!(failed.exit_code, 137, "the code of the former run");
    assert_eq!(&*failed.detail, "it was not started again: its program is gone");
    let failure: RestartFailure = stage.next();
    assert_eq!(failure.detail, "its program is gone");

    stage.send(&restart(ONE));
    stage.launched_at(ONE, 1_769_000_000_123);
    let runs = reported(&stage);
    assert_eq!((&*runs.detail, &*runs.started), ("", "2026-01-21T12:53:20.123Z"));
}

#[test]
fn a_failed_launch_leaves_no_instance() {
    for (fault, reason) in [
        (Reason::InvalidData, Reason::InvalidData),
        (Reason::ImageFailure, Reason::ImageFailure),
        (Reason::FullCn, Reason::FullCn),
        (Reason::NetworkFailure, Reason::NetworkFailure),
        (Reason::LaunchFailure, Reason::LaunchFailure),
    ] {
        let mut stage = Stage::new();
        let text = String::from_utf8(Frame::of(&start(ONE)).payload_bytes().to_vec()).unwrap();
        stage.raw(
            Command::START,
            &text.replacen("start:\n", "start:\n  command_id: mine\n", 1),
        );
        stage.sent.clear();
        stage.feed(Input::Done(Done::Launched {
            instance: ONE,
            result: Err(Refused::new(fault, "no")),
        }));
        let failure: StartFailure = stage.next();
        assert_eq!((failure.reason, &failure.command_id[..]), (reason, "mine"));
        assert_eq!(stage.next::<Ready>().mem_available_mb, 1000);
        assert_eq!(stage.control.instances.iter().count(), 0);
        // The START can be repeated.
        stage.run(&start(ONE));
        assert_eq!(stage.state(ONE), Some(InstanceState::Active));
    }
}

#[test]
fn stop_keeps_persistent_instances_and_deletes_others() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.run(&start(TWO));
    stage.sent.clear();
    for id in [ONE, TWO] {
        stage.send(&stop(id));
        assert_eq!(stage.state(id), Some(InstanceState::Stopping));
        // The record is written before the instance is asked to end.
        stage.job(|job| matches!(job, Job::Save { .. }).then_some(()));
        stage.job(|job| matches!(job, Job::Terminate(..)).then_some(()));
        stage.end(id, 143);
    }
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
    stage.nothing::<InstanceDeleted>();
    stage.removed(TWO);
    let deleted: InstanceDeleted = stage.next();
    assert_eq!((deleted.instance_uuid, deleted.end.exit_code), (TWO.into(), 143));
    assert_eq!(stage.control.instances.iter().count(), 1);

    stage.send(&restart(ONE));
    assert_eq!(stage.state(ONE), Some(InstanceState::Pending));
    stage.launched(ONE);
    assert_eq!(stage.state(ONE), Some(InstanceState::Active));
    // A late report of the end of a former run is ignored.
    stage.feed(Input::News(News::Ended(Ended {
        instance: ONE,
        handle: handle(TWO),
        exit: Exit::code(0),
    })));
    assert_eq!(stage.state(ONE), Some(InstanceState::Active));
}

#[test]
fn an_instance_that_does_not_end_is_killed_and_then_hung() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.send(&stop(ONE));
    stage.measure();
    stage.jobs.clear();
    assert!(stage.control.next_deadline() <= stage.now + settings().grace);
    stage.pass(settings().grace - SETTLE - SETTLE);
    assert!(stage.jobs.is_empty());
    stage.pass(SETTLE * 2);
    stage.job(|job| matches!(job, Job::Kill(..)).then_some(()));
    assert_eq!(stage.state(ONE), Some(InstanceState::Stopping));
    stage.pass(HUNG);
    stage.job(|job| matches!(job, Job::Kill(..)).then_some(()));
    assert_eq!(stage.state(ONE), Some(InstanceState::Hung));
    stage.end(ONE, 137);
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
}

#[test]
fn delete_removes_an_instance_and_reports_its_end() {
    for (stop_only, running) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut stage = Stage::new();
        stage.run(&persistent(ONE));
        if !running {
            stage.end(ONE, 0);
        }
        stage.jobs.clear();
        stage.send(&delete(ONE, stop_only));
        if running {
            stage.end(ONE, 143);
        }
        stage.removed(ONE);
        if stop_only {
            assert_eq!(stage.next::<InstanceStopped>().instance_uuid, ONE)
        } else {
            assert_eq!(stage.next::<InstanceDeleted>().instance_uuid, ONE)
        }
        assert_eq!(stage.control.instances.iter().count(), 0);
    }
    // A DELETE overrides a STOP that is under way, but a STOP does not override a DELETE.
    for delete_first in [false, true] {
        let mut stage = Stage::new();
        stage.run(&persistent(ONE));
        if delete_first {
            stage.send(&delete(ONE, false));
        }
        stage.send(&stop(ONE));
        stage.send(&delete(ONE, false));
        stage.send(&stop(ONE));
        stage.end(ONE, 143);
        stage.removed(ONE);
        assert_eq!(stage.next::<InstanceDeleted>().instance_uuid, ONE);
        stage.nothing::<InstanceDeleted>();
    }
}

#[test]
fn a_delete_that_fails_is_answered_and_can_be_repeated() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.end(ONE, 0);
    stage.send(&delete(ONE, false));
    stage.feed(Input::Done(Done::Removed {
        instance: ONE,
        result: Err("read-only".into()),
    }));
    assert_eq!(stage.next::<DeleteFailure>().reason, Reason::InvalidData);
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
    stage.jobs.clear();
    stage.send(&delete(ONE, false));
    stage.removed(ONE);
    stage.next::<InstanceDeleted>();
}

#[test]
fn a_delete_that_fails_is_not_continued_by_the_next_agent() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.send(&delete(ONE, false));
    stage.end(ONE, 143);
    stage.feed(Input::Done(Done::Removed {
        instance: ONE,
        result: Err("read-only".into()),
    }));
    let saved = stage.jobs.iter().rev().find_map(|job| match job {
        Job::Save { record, .. } => Some((record.phase, record.after)),
        _ => None,
    });
    assert_eq!(saved, Some((RecordPhase::Stopped, RecordAfter::Nothing)));
}

#[test]
fn commands_during_a_launch_are_carried_out_afterwards() {
    let mut stage = Stage::new();
    stage.send(&start(ONE));
    stage.send(&stop(ONE));
    assert_eq!(stage.state(ONE), Some(InstanceState::Pending));
    stage.launched(ONE);
    stage.job(|job| matches!(job, Job::Terminate(..)).then_some(()));
    stage.end(ONE, 143);
    stage.removed(ONE);
    stage.next::<InstanceDeleted>();

    // The launch of an instance that will be removed is cancelled.
    stage.send(&persistent(TWO));
    let cancel = stage.job(|job| match job {
        Job::Launch(job) => Some(job.cancel.clone()),
        _ => None,
    });
    stage.send(&stop(TWO));
    assert!(!cancel.is_cancelled());
    stage.send(&delete(TWO, false));
    assert!(cancel.is_cancelled());
    stage.feed(Input::Done(Done::Launched {
        instance: TWO,
        result: Err(Refused::launch("no")),
    }));
    assert_eq!(stage.next::<StartFailure>().instance_uuid, TWO);
    assert_eq!(stage.next::<InstanceDeleted>().instance_uuid, TWO);
}

#[test]
fn a_restarted_program_that_ends_at_once_is_reported_as_active_before() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.end(ONE, 0);
    stage.measure();
    stage.sent.clear();
    let reported_state = |stage: &mut Stage| stage.next::<Stats>().instances[0].state.clone();
    stage.send(&restart(ONE));
    stage.launched(ONE);
    stage.end(ONE, 0);
    stage.measure();
    assert_eq!(reported_state(&mut stage), InstanceState::Active);
    assert_eq!(reported_state(&mut stage), InstanceState::Exited);
    stage.nothing::<Stats>();

    // If STATS have reported the run already, no further STATS are sent.
    stage.send(&restart(ONE));
    stage.launched(ONE);
    stage.measure();
    stage.end(ONE, 0);
    stage.measure();
    assert_eq!(reported_state(&mut stage), InstanceState::Active);
    assert_eq!(reported_state(&mut stage), InstanceState::Exited);
    stage.nothing::<Stats>();
}

#[test]
fn a_failed_restart_keeps_the_instance() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.end(ONE, 0);
    let mut again = restart(ONE);
    again.requirements.mem_mb = 2000;
    stage.send(&again);
    assert_eq!(stage.next::<RestartFailure>().reason, Reason::LaunchFailure);
    again.requirements.mem_mb = 300;
    let text = String::from_utf8(Frame::of(&again).payload_bytes().to_vec()).unwrap();
    stage.raw(
        Command::RESTART,
        &text.replacen("restart:\n", "restart:\n  command_id: mine\n", 1),
    );
    let payload = stage.job(|job| match job {
        Job::Launch(job) => match &job.origin {
            Origin::Again(Some(changes)) => Some((Arc::clone(&job.payload), changes.requirements.mem_mb)),
            _ => None,
        },
        _ => None,
    });
    assert_eq!((payload.0.start.requirements.mem_mb, payload.1), (300, 300));
    stage.feed(Input::Done(Done::Launched {
        instance: ONE,
        result: Err(Refused::new(Reason::ImageFailure, "gone")),
    }));
    let failure: RestartFailure = stage.next();
    assert_eq!(
        (failure.reason, &failure.command_id[..]),
        (Reason::LaunchFailure, "mine")
    );
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
}

#[test]
fn no_interval_and_no_grace_period_is_too_long() {
    let (interval, grace) = (Duration::MAX, Duration::MAX);
    let mut stage = Stage::of(Settings {
        interval,
        grace,
        ..settings()
    });
    stage.run(&start(ONE));
    stage.send(&evacuate());
    stage.job(|job| matches!(job, Job::Terminate(..)).then_some(()));
    assert_eq!(stage.state(ONE), Some(InstanceState::Stopping));
}

/// The workers may have thousands of signals to send. An instance that has not got its signal yet is
/// neither killed nor hung.
#[test]
fn grace_and_hang_times_begin_when_the_signal_was_sent() {
    let mut stage = Stage::new();
    stage.run(&start(ONE));
    stage.busy = true;
    stage.send(&evacuate());
    let asked = |job: &Job| matches!(job, Job::Terminate(..)).then_some(());
    let killed = |job: &Job| matches!(job, Job::Kill(..)).then_some(());
    stage.job(asked);
    stage.pass(Duration::from_secs(100));
    assert!(
        stage.jobs.iter().all(|job| killed(job).is_none()),
        "the instance has not got its signal yet"
    );
    let signalled = || Input::Done(Done::Signalled { instance: ONE });
    stage.feed(signalled());
    stage.pass(Duration::from_secs(9));
    assert!(
        stage.jobs.iter().all(|job| killed(job).is_none()),
        "the grace of the instance is not over"
    );
    stage.pass(Duration::from_secs(1));
    stage.job(killed);
    stage.pass(Duration::from_secs(100));
    assert_eq!(
        stage.state(ONE),
        Some(InstanceState::Stopping),
        "the instance was not killed yet"
    );
    stage.nothing::<Maintenance>();
    stage.feed(signalled());
    stage.pass(HUNG);
    assert_eq!(stage.state(ONE), Some(InstanceState::Hung));
}

/// The scheduler may start the instance on another node.
#[test]
fn a_start_that_an_evacuation_cancels_fails_with_node_maintenance_only() {
    for made in [start(ONE), persistent(ONE)] {
        let mut stage = Stage::new();
        stage.send(&made);
        stage.send(&evacuate());
        stage.feed(Input::Done(Done::Launched {
            instance: ONE,
            result: Err(Refused::launch("the launch was cancelled")),
        }));
        let failure: StartFailure = stage.next();
        assert_eq!(failure.reason, Reason::NodeMaintenance);
        stage.nothing::<InstanceStopped>();
        stage.next::<Maintenance>();
    }
}

/// Otherwise the next agent would not know of the STOP, and start the instance again by its policy.
#[test]
fn a_record_that_could_not_be_saved_is_saved_again_with_the_next_measurement() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.send(&stop(ONE));
    stage.end(ONE, 0);
    let unsaved = |stage: &mut Stage| {
        let why = "no space".into();
        stage.feed(Input::Done(Done::Unsaved { instance: ONE, why }));
    };
    let measure = |stage: &mut Stage| {
        stage.jobs.clear();
        stage.pass(settings().interval);
        stage.measure();
    };
    let is_save = |job: &Job| matches!(job, Job::Save { instance: ONE, record } if record.exit_code == 0);
    unsaved(&mut stage);
    for saves in [true, false] {
        measure(&mut stage);
        assert_eq!(stage.jobs.iter().any(is_save), saves);
    }
    // The launch writes the record, and this one would be older.
    unsaved(&mut stage);
    stage.send(&restart(ONE));
    measure(&mut stage);
    assert!(!stage.jobs.iter().any(is_save));
}

/// Otherwise records that fail each time would keep the others from being saved.
#[test]
fn all_records_that_could_not_be_saved_are_tried_in_turn() {
    let mut stage = Stage::of(Settings {
        mem_mb: Some(1_000_000),
        max_instances: 1000,
        ..settings()
    });
    let all: BTreeSet<_> = (1..=300).map(Uuid::from_u128).collect();
    for id in &all {
        stage.run(&persistent(*id));
    }
    let mut tried = BTreeSet::new();
    let mut failed = all.clone();
    for _ in 0..3 {
        for instance in failed {
            let why = "no space".into();
            stage.feed(Input::Done(Done::Unsaved { instance, why }));
        }
        stage.jobs.clear();
        stage.pass(settings().interval);
        stage.measure();
        let saved = stage.jobs.iter().filter_map(|job| match job {
            Job::Save { instance, .. } => Some(*instance),
            _ => None,
        });
        failed = saved.collect();
        tried.extend(failed.iter().copied());
    }
    assert_eq!(tried, all);
}

/// The last EVACUATE or Restore wins, and its next state is reported once, even if the disk was full.
#[test]
fn a_next_state_waits_for_the_record_of_the_node() {
    let to = |next_state| Evacuate {
        next_state,
        ..evacuate()
    };
    let fail = |stage: &mut Stage| {
        let why = "no space".into();
        stage.feed(Input::Done(Done::NodeUnsaved { why }));
    };
    let measure = |stage: &mut Stage| {
        stage.jobs.clear();
        stage.pass(settings().interval);
        stage.measure();
        let saved = stage.jobs.iter().filter_map(|job| match job {
            Job::SaveNode(_, next) => Some(next.clone()),
            _ => None,
        });
        saved.collect::<Vec<_>>()
    };
    let done = |stage: &mut Stage, next| stage.feed(Input::Done(Done::Evacuated(next)));
    let reboot = || {
        let mut stage = Stage::new();
        stage.send(&to(NextState::Reboot));
        fail(&mut stage);
        stage
    };

    let mut stage = reboot();
    assert_eq!(measure(&mut stage), [Some(NextState::Reboot)]);
    fail(&mut stage);
    // A further record that could not be saved does not replace the next state, nor does a success
    // that is reported twice repeat it.
    stage.feed(Input::ToggleOffline);
    fail(&mut stage);
    assert_eq!(measure(&mut stage), [Some(NextState::Reboot)]);
    done(&mut stage, NextState::Reboot);
    done(&mut stage, NextState::Reboot);
    assert_eq!(stage.evacuated, [NextState::Reboot]);
    fail(&mut stage);
    assert_eq!(measure(&mut stage), [None]);

    // The failure, or the success, of the earlier job may arrive after the later command.
    for late in [false, true] {
        let mut stage = reboot();
        stage.send(&to(NextState::Maintenance));
        if late {
            fail(&mut stage);
            done(&mut stage, NextState::Reboot);
        }
        assert_eq!(measure(&mut stage), [None]);

        let mut stage = reboot();
        stage.send(&to(NextState::Shutdown));
        if late {
            fail(&mut stage);
            done(&mut stage, NextState::Reboot);
        }
        assert_eq!(measure(&mut stage), [Some(NextState::Shutdown)]);
        assert!(stage.evacuated.is_empty());

        let mut stage = reboot();
        stage.send(&restore());
        stage.send(&evacuate());
        if late {
            fail(&mut stage);
            done(&mut stage, NextState::Reboot);
        }
        assert_eq!(measure(&mut stage), [None]);
        assert!(stage.evacuated.is_empty());
    }
}

#[test]
fn the_health_of_the_present_run_is_told_at_once_and_that_of_another_never() {
    let mut stage = Stage::new();
    let start = start(ONE);
    stage.send(&start);
    let told = |pid: i32, state: HealthState, why: &str| {
        Input::News(News::Health {
            instance: ONE,
            handle: RunId { pid, ..handle(ONE) },
            health: Health {
                state,
                since: UNIX_EPOCH + Duration::from_millis(1_769_000_000_123),
                why: why.into(),
            },
        })
    };
    let pid = handle(ONE).pid;
    // The first news of a run may come before the outcome of its launch.
    stage.feed(told(pid, HealthState::Starting, ""));
    let health = |stage: &mut Stage| {
        let told = stage.stats().instances.remove(0);
        (told.health, told.health_since, told.health_detail)
    };
    assert_eq!(health(&mut stage).0, HealthState::Unset, "it does not run");
    stage.launched(ONE);
    assert_eq!(health(&mut stage).0, HealthState::Starting);
    stage.pass(SETTLE);
    stage.sent.clear();
    stage.feed(told(pid, HealthState::Unhealthy, "port 80: refused"));
    stage.pass(SETTLE);
    let sent = stage.sent.iter().filter(|frame| frame.kind() == Command::STATS);
    assert_eq!(sent.count(), 1, "a change is reported before the next interval");
    let (state, since, why) = health(&mut stage);
    assert_eq!(
        (state, &*since, &*why),
        (
            HealthState::Unhealthy,
            "2026-01-21T12:53:20.123Z",
            "port 80: refused"
        )
    );
    stage.feed(told(pid + 1, HealthState::Healthy, ""));
    assert_eq!(health(&mut stage).0, HealthState::Unset);
}
