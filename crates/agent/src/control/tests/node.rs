//! The node as a whole: sessions, STATS, status, capacity, configuration, tenants.

use super::*;

#[test]
fn a_new_session_gets_the_status_then_held_frames_then_stats() {
    let mut stage = Stage::offline(settings());
    stage.run(&start(ONE));
    stage.send(&stop(ONE));
    stage.end(ONE, 0);
    stage.removed(ONE);
    assert!(stage.sent.is_empty(), "there is no session");
    stage.connect();
    stage.measure();
    assert_eq!(
        stage.kinds(),
        ["READY", "InstanceDeleted", "STATS", "STATS"],
        "STATS are sent at once and after the measurement"
    );

    stage.feed(Input::Disconnected);
    stage.connect();
    stage.measure();
    assert_eq!(stage.kinds(), ["READY", "STATS"], "the status is sent once");
}

#[test]
fn events_and_the_status_that_found_no_room_are_sent_again() {
    let mut stage = Stage::new();
    stage.feed(Input::Unsent(vec![
        Frame::of(&InstanceDeleted {
            instance_uuid: ONE.into(),
            ..Default::default()
        }),
        Frame::new(Status::FULL),
        Frame::of(&Stats {
            node_uuid: NODE.into(),
            ..Stats::default()
        }),
    ]));
    assert!(stage.sent.is_empty(), "the queue has no room yet");
    assert!(stage.control.next_deadline() <= stage.now + RETRY);
    stage.pass(RETRY);
    assert_eq!(stage.kinds(), ["READY", "InstanceDeleted"]);
    assert_eq!(
        stage.control.next_deadline(),
        stage.control.reports.measurement_due()
    );
    // No status is due during an evacuation, so nothing wakes the agent again and again.
    stage.run(&start(ONE));
    stage.send(&evacuate());
    stage.feed(Input::Unsent(vec![Frame::new(Status::READY)]));
    stage.pass(RETRY);
    stage.sent.clear();
    stage.pass(RETRY);
    assert_eq!(stage.kinds(), [""; 0]);
    assert!(stage.control.next_deadline() > stage.now);

    stage.feed(Input::Disconnected);
    for _ in 0..MAX_PARKED + 10 {
        stage.send(&stop(TWO));
    }
    assert_eq!(stage.control.outputs.parked(), MAX_PARKED);
}

#[test]
fn a_frame_does_not_overtake_those_that_wait_for_room() {
    let mut stage = Stage::new();
    let stopped = Frame::of(&InstanceStopped {
        instance_uuid: TWO.into(),
        ..Default::default()
    });
    stage.feed(Input::Unsent(vec![stopped]));
    stage.run(&start(ONE));
    stage.send(&stop(ONE));
    stage.end(ONE, 0);
    stage.removed(ONE);
    stage.nothing::<InstanceDeleted>();
    stage.pass(RETRY);
    let kinds = stage.kinds();
    let place = |kind: &str| kinds.iter().position(|it| it == kind).unwrap();
    assert!(place("InstanceStopped") < place("InstanceDeleted"), "{kinds:?}");
}

#[test]
fn a_failed_start_that_found_no_room_is_reported_once_in_the_next_session() {
    let mut stage = Stage::new();
    let mut bad = start(ONE);
    bad.dir = "bad".into();
    stage.send(&bad);
    let failure = Frame::of(&stage.next::<StartFailure>());
    stage.feed(Input::Unsent(vec![failure.clone()]));
    stage.feed(Input::Disconnected);
    stage.sent.clear();
    stage.connect();
    assert_eq!(stage.sent.iter().filter(|frame| **frame == failure).count(), 1);
}

#[test]
fn the_refusal_of_a_configuration_ends_with_its_session() {
    let mut stage = Stage::new();
    stage.raw(Command::CONFIGURE, "configure: 7");
    let refusal = stage.sent.pop_back().unwrap();
    assert_eq!(refusal.kind(), ssntp::proto::ErrorCode::INVALID_CONFIGURATION);
    stage.feed(Input::Unsent(vec![refusal.clone()]));
    stage.pass(RETRY);
    assert_eq!(stage.sent.pop_back(), Some(refusal.clone()));
    stage.feed(Input::Unsent(vec![refusal]));
    stage.feed(Input::Disconnected);
    stage.connect();
    assert!(!stage.kinds().contains(&"InvalidConfiguration".to_owned()));
}

#[test]
fn stats_come_every_interval_and_soon_after_a_change_without_measuring() {
    let mut stage = Stage::new();
    assert_eq!(
        stage.control.next_deadline(),
        stage.control.reports.measurement_due()
    );
    stage.pass(Duration::from_secs(29));
    assert!(stage.jobs.is_empty());
    stage.pass(Duration::from_secs(1));
    assert!(matches!(stage.jobs.front(), Some(Job::Measure(..))));
    stage.measure();
    assert_eq!(stage.kinds(), ["STATS"]);

    stage.run(&start(ONE));
    // The delay of STATS grows with the number of instances that they list.
    assert_eq!(stage.control.next_deadline(), stage.now + SETTLE_EACH);
    stage.sent.clear();
    stage.pass(SETTLE_EACH);
    let report: Stats = stage.next();
    assert_eq!(report.instances[0].state, InstanceState::Active);
    assert!(!stage.jobs.iter().any(|job| matches!(job, Job::Measure(..))));
    stage.pass(Duration::from_secs(30));
    let subjects = stage.job(|job| match job {
        Job::Measure(by_driver) => Some(by_driver[0].1.clone()),
        _ => None,
    });
    assert_eq!(
        (subjects.len(), subjects[0].vcpus, subjects[0].mem_mb),
        (1, 1, 100)
    );
    assert_eq!(subjects[0].handle, Some(handle(ONE)));
    stage.sent.clear();
    let usage = Usage {
        memory_mb: 30,
        disk_mb: 4,
        cpu_percent: 5,
        ..Usage::default()
    };
    stage.feed(Input::Done(Done::Measured {
        facts: facts(),
        usages: vec![(ONE, Some(handle(ONE)), usage)],
        tunnels: Vec::new(),
    }));
    let stats: Stats = stage.next();
    assert_eq!((stats.node_uuid, stats.status), (NODE.into(), NodeStatus::Ready));
    assert_eq!(
        (stats.mem_total_mb, stats.mem_available_mb, stats.cpus_online),
        (1000, 900, 2)
    );
    let instance = &stats.instances[0];
    assert_eq!(
        (&instance.state, instance.memory_usage_mb),
        (&InstanceState::Active, 30)
    );
    assert_eq!((instance.disk_usage_mb, instance.cpu_usage), (4, 5));
}

#[test]
fn stats_are_sent_even_if_a_measurement_does_not_end() {
    let mut stage = Stage::new();
    stage.pass(Duration::from_secs(30));
    assert_eq!(stage.jobs.len(), 1);
    stage.pass(PATIENCE);
    assert_eq!(stage.kinds(), ["STATS"]);
    assert_eq!(stage.jobs.len(), 1, "a measurement is requested once");
}

/// The scheduler calls a node stale that has sent no STATS for three intervals.
#[test]
fn a_long_measurement_does_not_delay_the_stats_of_a_node_with_a_short_interval() {
    let interval = Duration::from_secs(1);
    let mut stage = Stage::of(Settings {
        interval,
        ..settings()
    });
    for _ in 0..3 {
        stage.pass(interval);
    }
    assert_eq!(stage.kinds(), ["STATS", "STATS"]);
}

#[test]
fn an_evacuated_node_is_in_maintenance_until_it_is_restored() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.run(&start(TWO));
    stage.sent.clear();
    stage.send(&evacuate());
    stage.job(|job| matches!(job, Job::SaveNode(node, None) if node.maintenance).then_some(()));
    stage.send(&start(OTHER));
    assert_eq!(stage.next::<StartFailure>().reason, Reason::NodeMaintenance);
    stage.end(ONE, 143);
    let stopped: InstanceStopped = stage.next();
    assert_eq!((stopped.instance_uuid, stopped.end.exit_code), (ONE.into(), 143));
    stage.end(TWO, 3);
    stage.nothing::<Maintenance>();
    stage.removed(TWO);
    let stopped: InstanceStopped = stage.next();
    assert_eq!((stopped.instance_uuid, stopped.end.exit_code), (TWO.into(), 3));
    assert_eq!(stage.next::<Maintenance>().ready.unwrap().node_uuid, NODE);
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
    assert_eq!(stage.stats().status, NodeStatus::Maintenance);

    stage.send(&restart(ONE));
    assert_eq!(stage.next::<RestartFailure>().reason, Reason::LaunchFailure);
    stage.send(&start(ONE));
    assert_eq!(stage.next::<StartFailure>().reason, Reason::NodeMaintenance);
    // A repeated EVACUATE is answered with the status and STATS again.
    stage.measure();
    stage.sent.clear();
    stage.send(&evacuate());
    stage.next::<Maintenance>();
    stage.measure();
    assert_eq!(stage.next::<Stats>().status, NodeStatus::Maintenance);

    stage.send(&restore());
    stage.job(|job| matches!(job, Job::SaveNode(node, None) if !node.maintenance).then_some(()));
    assert_eq!(stage.next::<Ready>().mem_available_mb, 1000);
    stage.send(&restart(ONE));
    stage.launched(ONE);
    assert_eq!(stage.state(ONE), Some(InstanceState::Active));

    // An empty node is evacuated at once.
    let mut stage = Stage::new();
    stage.send(&evacuate());
    stage.next::<Maintenance>();
}

#[test]
fn a_drained_node_keeps_its_instances_and_takes_no_start_until_it_is_restored() {
    let drain = Evacuate {
        drain: true,
        ..evacuate()
    };
    let mut stage = Stage::new();
    stage.run(&start(ONE));
    stage.sent.clear();
    stage.send(&drain);
    stage.next::<Maintenance>();
    let record = stage.job(|job| match job {
        Job::SaveNode(node, None) => Some(node.clone()),
        _ => None,
    });
    assert!(record.closed && !record.maintenance);
    assert_eq!(stage.state(ONE), Some(InstanceState::Active));
    stage.send(&start(TWO));
    assert_eq!(
        stage.next::<StartFailure>().reason,
        ssntp_payload::Reason::NodeMaintenance
    );
    // A repeated one is answered with the status again.
    stage.sent.clear();
    stage.send(&drain);
    stage.next::<Maintenance>();
    stage.send(&restore());
    stage.next::<Ready>();
    // EVACUATE of a drained node ends what still runs there, and it stays evacuated.
    stage.send(&drain);
    stage.send(&evacuate());
    stage.end(ONE, 143);
    stage.removed(ONE);
    stage.sent.clear();
    stage.send(&drain);
    stage.next::<Maintenance>();
    let record = stage.job(|job| match job {
        Job::SaveNode(node, None) => Some(node.clone()),
        _ => None,
    });
    assert!(record.maintenance || record.closed, "{record:?}");
    assert_eq!(stage.state(ONE), None);
}

/// The next state is reported after the record says that it was reported.
#[test]
fn the_next_state_after_an_evacuation_is_reported_once() {
    let evacuate_for = |next_state| Evacuate {
        next_state,
        ..evacuate()
    };
    let saved = |stage: &mut Stage| {
        stage.job(|job| match job {
            Job::SaveNode(node, then) => Some((node.clone(), then.clone())),
            _ => None,
        })
    };
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.send(&evacuate_for(NextState::Reboot));
    let (node, then) = saved(&mut stage);
    assert_eq!((node.next_state, then), (NextState::Reboot, None));
    stage.jobs.clear();
    stage.end(ONE, 143);
    stage.next::<Maintenance>();
    let (node, then) = saved(&mut stage);
    assert_eq!(
        (node.maintenance, node.next_state),
        (true, NextState::Maintenance)
    );
    assert!(stage.evacuated.is_empty());
    stage.feed(Input::Done(Done::Evacuated(then.unwrap())));
    assert_eq!(stage.evacuated, [NextState::Reboot]);

    // The node is evacuated already, and the next state is unknown.
    stage.send(&evacuate_for(NextState::Shutdown));
    assert_eq!(saved(&mut stage).1, None);
    assert_eq!(saved(&mut stage).1, Some(NextState::Shutdown));
    stage.send(&evacuate());
    assert_eq!(saved(&mut stage).1, None);
    assert!(!stage.jobs.iter().any(|job| matches!(job, Job::SaveNode(..))));

    // If the agent ends in between, the next agent reports the next state.
    let node = NodeRecord {
        maintenance: true,
        next_state: NextState::Update,
        ..NodeRecord::default()
    };
    let mut stage = Stage::offline(settings());
    stage.control.adopt(stage.now, node, vec![]);
    stage.connect();
    stage.next::<Maintenance>();
    assert_eq!(saved(&mut stage).1, None);
    assert_eq!(saved(&mut stage).1, Some(NextState::Update));
}

#[test]
fn an_offline_node_reports_its_status_and_stats() {
    let mut stage = Stage::new();
    stage.feed(Input::ToggleOffline);
    assert_eq!(stage.sent.pop_front().unwrap().kind(), Status::OFFLINE);
    stage.jobs.clear();
    assert_eq!(stage.next::<Stats>().status, NodeStatus::Offline);
    stage.send(&evacuate());
    stage.send(&restore());
    assert_eq!(stage.kinds(), ["OFFLINE", "STATS", "OFFLINE", "STATS"]);
    assert!(!stage.jobs.iter().any(|job| matches!(job, Job::SaveNode(..))));
    stage.feed(Input::ToggleOffline);
    assert_eq!(stage.kinds(), ["READY", "STATS"]);
}

#[test]
fn full_and_ready_follow_the_capacity() {
    let mut stage = Stage::new();
    let mut big = persistent(ONE);
    big.requirements.mem_mb = 1000;
    stage.run(&big);
    assert_eq!(stage.kinds(), ["FULL"]);
    assert_eq!(stage.stats().status, NodeStatus::Full);
    stage.end(ONE, 0);
    assert_eq!(stage.kinds(), ["READY"]);

    // The limit is three instances, stopped ones included.
    stage.run(&start(TWO));
    stage.run(&start(OTHER));
    assert_eq!(stage.kinds(), ["READY", "FULL"]);
    stage.send(&delete(ONE, false));
    stage.removed(ONE);
    assert_eq!(stage.kinds(), ["InstanceDeleted", "READY"]);

    // The configuration can turn off the limit of memory.
    let mut stage = Stage::new();
    let mut configure = Configure::default();
    configure.launcher.mem_limit = false;
    stage.send(&configure);
    big.requirements.mem_mb = 5000;
    stage.run(&big);
    stage.nothing::<StartFailure>();
    assert_eq!(stage.stats().status, NodeStatus::Ready);
    configure.launcher.mem_limit = true;
    stage.sent.clear();
    stage.send(&configure);
    assert_eq!(stage.kinds(), ["FULL"]);
}

#[test]
fn the_labels_of_the_node_are_in_its_status_and_in_stats() {
    let labels: BTreeMap<_, _> = [("zone".to_owned(), "a".to_owned())].into();
    let mut stage = Stage::of(Settings {
        labels: labels.clone(),
        ..settings()
    });
    assert_eq!(stage.stats().labels, labels);
    stage.send(&evacuate());
    let maintenance: Maintenance = stage.next();
    assert_eq!(maintenance.ready.unwrap().labels, labels);
    stage.send(&start(ONE));
    stage.send(&Restore {
        workload_agent_uuid: NODE.into(),
    });
    assert_eq!(stage.next::<Ready>().labels, labels);
}

#[test]
fn without_flags_the_machine_determines_the_capacity() {
    let mut stage = Stage::of(Settings {
        mem_mb: None,
        disk_mb: None,
        ..settings()
    });
    stage.run(&start(ONE));
    let ready: Ready = stage.next();
    // 100 MB are promised and not used yet.
    assert_eq!((ready.mem_total_mb, ready.mem_available_mb), (8000, 3900));
    let usage = Usage {
        memory_mb: 60,
        ..Usage::default()
    };
    let done = |available| {
        let facts = Facts {
            mem_available_mb: available,
            ..facts()
        };
        let usages = vec![(ONE, Some(handle(ONE)), usage)];
        Input::Done(Done::Measured {
            facts,
            usages,
            tunnels: Vec::new(),
        })
    };
    stage.sent.clear();
    stage.feed(done(3950));
    assert_eq!(stage.kinds(), ["STATS"], "no change: {:?}", stage.control.ready());
    stage.feed(done(RESERVE + 39));
    assert_eq!(stage.kinds(), ["FULL", "STATS"]);
    stage.feed(done(2000));
    assert_eq!(stage.next::<Ready>().mem_available_mb, 1960);
    stage.feed(done(-1));
    assert_eq!(
        stage.next::<Ready>().mem_available_mb,
        -1,
        "an unknown value stays unknown"
    );
    stage.run(&start(TWO));
    stage.nothing::<StartFailure>();
}

const RESERVE: i64 = 64;

#[test]
fn a_run_that_ends_while_it_is_measured_uses_no_memory_and_neither_does_the_next_one() {
    let mut stage = Stage::of(Settings {
        mem_mb: None,
        ..settings()
    });
    stage.run(&persistent(ONE));
    stage.end(ONE, 1);
    let usage = Usage {
        memory_mb: 60,
        ..Usage::default()
    };
    stage.feed(Input::Done(Done::Measured {
        facts: facts(),
        usages: vec![(ONE, Some(handle(ONE)), usage)],
        tunnels: Vec::new(),
    }));
    assert_eq!(stage.stats().instances[0].memory_usage_mb, -1);
    stage.send(&restart(ONE));
    // All that it was promised is still free.
    assert_eq!(stage.control.ready().mem_available_mb, 4000 - 100);
}

#[test]
fn a_configuration_is_applied_or_sent_back() {
    let mut stage = Stage::offline(settings());
    let mut configure = Configure::default();
    configure.launcher.mem_limit = false;
    stage.feed(Input::Connected {
        configuration: Some(configure.encode()),
    });
    assert!(!stage.control.capacity.launcher().mem_limit);
    stage.sent.clear();
    for refused in [
        "configure: [",
        "configure:\n  launcher:\n    compute_net: nonsense\n",
    ] {
        stage.raw(Command::CONFIGURE, refused);
        assert_eq!(stage.next::<InvalidConfiguration>().refused, refused);
        assert!(
            !stage.control.capacity.launcher().mem_limit,
            "the former configuration is in force"
        );
    }
}

#[test]
fn tenants_are_reported_to_their_concentrators() {
    let mut stage = Stage::new();
    let mut configure = Configure::default();
    configure.launcher.compute_net = vec!["10.1.0.0/16".into()];
    stage.send(&configure);
    let wired = |id| {
        let mut start = start(id);
        start.networking.concentrator_uuid = OTHER.into();
        start.networking.concentrator_ip = "10.1.0.1".into();
        start.networking.subnet = "172.16.0.5/24".into();
        start
    };
    stage.run(&wired(ONE));
    let added: TenantAdded = stage.next();
    assert_eq!(
        (added.concentrator_uuid, added.tenant_uuid),
        (OTHER.into(), "t".into())
    );
    assert_eq!(
        (added.agent_uuid, added.agent_ip.as_str()),
        (NODE.into(), "10.1.0.9")
    );
    assert_eq!(
        (added.tenant_subnet.as_str(), added.subnet_key),
        ("172.16.0.0/24", 4268)
    );
    stage.run(&wired(TWO));
    stage.nothing::<TenantAdded>();
    // The concentrator may have lost its tables.
    stage.feed(Input::Disconnected);
    stage.connect();
    stage.next::<TenantAdded>();
    stage.end(ONE, 0);
    stage.nothing::<TenantRemoved>();
    stage.end(TWO, 0);
    assert_eq!(stage.next::<TenantRemoved>().subnet_key, 4268);
    // The report may be lost with the session. An agent that did not see the end reports it as well.
    stage.feed(Input::Disconnected);
    stage.connect();
    assert_eq!(stage.next::<TenantRemoved>().subnet_key, 4268);
    for instance in [ONE, TWO] {
        stage.control.instances.all().remove(&instance);
    }
    stage.feed(Input::Disconnected);
    stage.connect();
    stage.nothing::<TenantRemoved>();
    // The session in which an end between two sessions is reported may be lost as well.
    stage.run(&wired(ONE));
    stage.next::<TenantAdded>();
    stage.feed(Input::Disconnected);
    stage.control.instances.all().remove(&ONE);
    for _ in 0..2 {
        stage.connect();
        assert_eq!(stage.next::<TenantRemoved>().subnet_key, 4268);
        stage.feed(Input::Disconnected);
    }
    stage.connect();
    stage.nothing::<TenantRemoved>();

    let mut stage = Stage::of(Settings {
        role: Role::NETAGENT,
        ..settings()
    });
    stage.run(&wired(ONE));
    stage.nothing::<TenantAdded>();
}

#[test]
fn a_node_without_tenants_networks_refuses_a_tenants_subnet() {
    let mut stage = Stage::new();
    let mut start = start(ONE);
    start.networking.concentrator_ip = "10.1.0.1".into();
    start.networking.subnet = "172.16.0.0/24".into();
    start.networking.subnet_key = "7".into();
    start.networking.private_ip = "172.16.0.5".into();
    stage.send(&start);
    let failure: StartFailure = stage.next();
    assert_eq!(failure.reason, Reason::NetworkFailure);
    assert!(failure.detail.contains("--network tenants"), "{}", failure.detail);
}

#[test]
fn a_traced_command_is_reported() {
    let mut stage = Stage::new();
    let trace = ssntp::proto::Trace::new("job-1");
    stage.feed(Input::Frame(Frame::of(&start(ONE)).traced(trace)));
    let report: TraceReport = stage.next();
    assert_eq!(
        (report.frames[0].label.as_str(), report.frames[0].operand.as_str()),
        ("job-1", "START")
    );
}

#[test]
fn stats_report_maintenance_from_the_evacuation_on() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.send(&evacuate());
    assert_eq!(stage.stats().status, NodeStatus::Maintenance);
    assert_eq!(stage.state(ONE), Some(InstanceState::Stopping));
    stage.nothing::<Maintenance>();
}

#[test]
fn an_instance_that_cannot_be_killed_does_not_delay_maintenance() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.run(&persistent(TWO));
    stage.send(&evacuate());
    stage.end(TWO, 143);
    stage.pass(settings().grace);
    stage.nothing::<Maintenance>();
    stage.pass(HUNG);
    stage.next::<Maintenance>();
    assert_eq!(stage.state(ONE), Some(InstanceState::Hung));
}

#[test]
fn stats_have_their_interval() {
    for (interval, seconds) in [(30_000, 30), (1500, 2), (10, 1)] {
        let interval = Duration::from_millis(interval);
        let mut stage = Stage::of(Settings {
            interval,
            ..settings()
        });
        assert_eq!(stage.stats().interval, seconds);
    }
}
