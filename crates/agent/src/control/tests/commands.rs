//! Each command in each state, and its failures.

use super::*;

fn policy(text: &str) -> Arc<Policy> {
    Arc::new(yaml::decode(text.as_bytes()).unwrap())
}

#[test]
fn every_start_failure_has_its_reason() {
    type Prepare = fn(&mut Stage);
    type Change = fn(&mut Start);
    let nothing: Prepare = |_| {};
    let rows: &[(Prepare, Change, Reason)] = &[
        (nothing, |s| s.vm_type = VmType::Qemu, Reason::LaunchFailure),
        (nothing, |s| s.dir = "bad".into(), Reason::InvalidData),
        (nothing, |s| s.requirements.mem_mb = -1, Reason::InvalidData),
        (nothing, |s| s.requirements.vcpus = -1, Reason::InvalidData),
        (
            nothing,
            |s| {
                s.storage = vec![Storage {
                    id: "../up".into(),
                    ..Storage::default()
                }]
            },
            Reason::InvalidData,
        ),
        (
            nothing,
            |s| {
                let volume = Storage {
                    id: VOLUME.into(),
                    ..Storage::default()
                };
                s.storage = vec![volume.clone(), volume];
            },
            Reason::InvalidData,
        ),
        (
            |t| Arc::make_mut(&mut t.control.settings).policy = policy("drivers: [other]"),
            |_| {},
            Reason::LaunchFailure,
        ),
        (
            |t| Arc::make_mut(&mut t.control.settings).policy = policy("mem_mb: 9"),
            |s| s.requirements.mem_mb = 10,
            Reason::FullCn,
        ),
        (
            |t| Arc::make_mut(&mut t.control.settings).policy = policy("images: [a]"),
            |s| {
                s.storage = vec![Storage {
                    id: "b".into(),
                    boot: true,
                    ..Storage::default()
                }]
            },
            Reason::ImageFailure,
        ),
        (|t| t.feed(Input::ToggleOffline), |_| {}, Reason::LaunchFailure),
        (|t| t.send(&evacuate()), |_| {}, Reason::NodeMaintenance),
        (|t| t.run(&start(ONE)), |_| {}, Reason::AlreadyRunning),
        (|t| t.send(&start(ONE)), |_| {}, Reason::AlreadyRunning),
        (
            |t| {
                t.run(&start(ONE));
                t.end(ONE, 0);
            },
            |s| s.restart = true,
            Reason::InstanceExists,
        ),
        (
            nothing,
            |s| s.networking.subnet = "172.16.0.0".into(),
            Reason::NetworkFailure,
        ),
        (
            nothing,
            |s| s.networking.vnic_mac = "02:42".into(),
            Reason::NetworkFailure,
        ),
        (
            nothing,
            |s| s.networking.private_ip = "here".into(),
            Reason::NetworkFailure,
        ),
        (nothing, |s| s.requirements.mem_mb = 1001, Reason::FullCn),
        (
            nothing,
            |s| {
                s.storage = vec![Storage {
                    local: true,
                    size: 11,
                    ..Storage::default()
                }]
            },
            Reason::FullCn,
        ),
        (
            |t| (10..13).for_each(|n| t.run(&start(Uuid::from_u128(n)))),
            |s| s.requirements.mem_mb = 0,
            Reason::FullCn,
        ),
        (
            |t| Arc::make_mut(&mut t.control.settings).has_volumes = false,
            |s| {
                s.storage = vec![Storage {
                    id: VOLUME.into(),
                    ..Storage::default()
                }]
            },
            Reason::ImageFailure,
        ),
        (
            |t| Arc::make_mut(&mut t.control.settings).state = None,
            |_| {},
            Reason::LaunchFailure,
        ),
        (
            |t| Arc::make_mut(&mut t.control.settings).drivers.clear(),
            |_| {},
            Reason::LaunchFailure,
        ),
    ];
    for (row, (prepare, change, reason)) in rows.iter().enumerate() {
        let mut stage = Stage::new();
        prepare(&mut stage);
        stage.sent.clear();
        stage.jobs.clear();
        let mut start = start(ONE);
        change(&mut start);
        stage.send(&start);
        let failure: StartFailure = stage.next();
        assert_eq!(failure.reason, *reason, "row {row}");
        assert_eq!(
            (failure.node_uuid, failure.instance_uuid),
            (NODE.into(), ONE.into())
        );
        assert_eq!(failure.restart, start.restart);
        let kinds = stage.kinds();
        assert!(
            matches!(&*kinds[0], "READY" | "FULL" | "OFFLINE" | "MAINTENANCE"),
            "row {row}: {kinds:?}"
        );
        assert!(
            !stage.jobs.iter().any(|job| matches!(job, Job::Launch(_))),
            "row {row}"
        );
    }
}

#[test]
fn a_wrong_start_is_refused_in_the_words_of_the_driver_that_runs_its_kind() {
    let other = || Fake {
        name: "other",
        ..Fake::default()
    };
    for (kind, dir, detail) in [
        (VmType::Process, "bad", "bad"),
        (
            VmType::Qemu,
            "",
            "not for this driver; not a process; not for this driver",
        ),
    ] {
        let mut stage = Stage::new();
        let drivers: [Arc<dyn Driver>; 3] = [Arc::new(other()), Arc::new(Fake::default()), Arc::new(other())];
        Arc::make_mut(&mut stage.control.settings).drivers = drivers.into();
        stage.sent.clear();
        stage.send(&Start {
            vm_type: kind,
            dir: dir.into(),
            ..start(ONE)
        });
        assert_eq!(stage.next::<StartFailure>().detail, detail);
    }
}

#[test]
fn refused_payloads_are_answered_as_far_as_they_can_be_read() {
    let one = ONE.to_string();
    for (payload, reason, instance, restart) in [
        ("{", "invalid_payload", "", false),
        ("", "invalid_data", "", false),
        ("start:\n  vm_type: process\n", "invalid_data", "", false),
        (
            "start:\n  instance_uuid: nobody\n  restart: true\n",
            "invalid_data",
            "nobody",
            true,
        ),
        (
            "start:\n  instance_uuid: 00000000-0000-0000-0000-000000000001\n  vm_type: process\n",
            "invalid_data",
            &one,
            false,
        ),
    ] {
        let mut stage = Stage::new();
        stage.raw(Command::START, payload);
        let failure: StartFailure = stage.next();
        assert_eq!(failure.reason.as_str(), reason, "{payload:?}");
        assert_eq!(failure.instance_uuid.as_str(), instance, "{payload:?}");
        assert_eq!(failure.restart, restart, "{payload:?}");
    }
    for command in [
        Command::STOP,
        Command::DELETE,
        Command::RESTART,
        Command::ATTACH_VOLUME,
        Command::DETACH_VOLUME,
    ] {
        for (payload, reason) in [
            ("- [", "invalid_payload"),
            ("stop: {}", "invalid_data"),
            ("a: 1", "invalid_data"),
        ] {
            let mut stage = Stage::new();
            stage.raw(command, payload);
            let frame = stage.sent.pop_front().unwrap();
            assert_eq!(frame.kind().frame_type, FrameType::ERROR, "{command}");
            let text = String::from_utf8(frame.payload_bytes().to_vec()).unwrap();
            assert!(text.contains(&format!("reason: {reason}\n")), "{command}: {text}");
            assert!(text.contains(&NODE.to_string()), "{command}: {text}");
        }
    }
    for command in [Command::EVACUATE, Command::RESTORE] {
        for (payload, reason) in [
            ("[", "invalid_payload"),
            ("a: 1", "invalid_data"),
            ("evacuate:\n  workload_agent_uuid: x\n", "invalid_data"),
            ("restore:\n  workload_agent_uuid: x\n", "invalid_data"),
        ] {
            let mut stage = Stage::new();
            stage.raw(command, payload);
            let refusal: InvalidFrameType = stage.next();
            assert_eq!(
                (refusal.refused(), refusal.reason.as_str()),
                (command.into(), reason)
            );
        }
    }
}

/// The table has a column for each state of an instance, and a row for each command.
#[test]
fn every_command_has_its_answer_in_every_state() {
    type Prepare = fn(&mut Stage);
    let states: [(&str, Prepare); 8] = [
        ("absent", |_| {}),
        ("launching", |t| t.send(&persistent(ONE))),
        ("active", |t| t.run(&persistent(ONE))),
        ("terminating", |t| {
            t.run(&persistent(ONE));
            t.send(&stop(ONE));
        }),
        ("stopped", |t| {
            t.run(&persistent(ONE));
            t.end(ONE, 0);
        }),
        ("removing", |t| {
            t.run(&persistent(ONE));
            t.send(&delete(ONE, false));
            t.end(ONE, 0);
        }),
        ("corrupt", |t| {
            t.run(&persistent(ONE));
            t.end(ONE, 0);
            t.control.instances.all().get_mut(&ONE).unwrap().start = None;
        }),
        ("offline", |t| {
            t.run(&persistent(ONE));
            t.feed(Input::ToggleOffline);
        }),
    ];
    type Say = fn(&mut Stage, Uuid);
    // The reasons in the order of the states; "" stands for success.
    let rows: [(&str, Say, [&str; 8]); 5] = [
        (
            "STOP",
            |t, id| t.send(&stop(id)),
            [
                "no_instance",
                "",
                "",
                "",
                "already_stopped",
                "already_stopped",
                "already_stopped",
                "no_instance",
            ],
        ),
        (
            "RESTART",
            |t, id| t.send(&restart(id)),
            [
                "no_instance",
                "already_running",
                "already_running",
                "already_running",
                "",
                "no_instance",
                "instance_corrupt",
                "launch_failure",
            ],
        ),
        (
            "DELETE",
            |t, id| t.send(&delete(id, false)),
            ["no_instance", "", "", "", "", "", "", "no_instance"],
        ),
        (
            "AttachVolume",
            |t, id| t.send(&attach(id, VOLUME)),
            [
                "no_instance",
                "",
                "",
                "instance_failure",
                "",
                "instance_failure",
                "instance_failure",
                "attach_failure",
            ],
        ),
        (
            "DetachVolume",
            |t, id| t.send(&detach(id, VOLUME)),
            [
                "no_instance",
                "not_attached",
                "not_attached",
                "instance_failure",
                "not_attached",
                "instance_failure",
                "instance_failure",
                "detach_failure",
            ],
        ),
    ];
    for (command, say, reasons) in rows {
        for ((state, prepare), expected) in states.into_iter().zip(reasons) {
            let mut stage = Stage::new();
            prepare(&mut stage);
            stage.sent.clear();
            say(&mut stage, ONE);
            let errors: Vec<_> = stage
                .sent
                .iter()
                .filter(|frame| frame.kind().frame_type == FrameType::ERROR)
                .map(|frame| String::from_utf8(frame.payload_bytes().to_vec()).unwrap())
                .collect();
            match expected {
                "" => assert_eq!(errors, Vec::<String>::new(), "{command}, {state}"),
                reason => {
                    assert_eq!(errors.len(), 1, "{command}, {state}");
                    assert!(
                        errors[0].contains(&format!("reason: {reason}\n")),
                        "{command}, {state}: {}",
                        errors[0]
                    );
                    assert!(errors[0].contains(&ONE.to_string()), "{command}, {state}");
                }
            }
        }
    }
}

#[test]
fn commands_for_other_nodes_or_without_a_uuid_are_refused() {
    let rows: [(&str, &str, &str); 4] = [
        (
            "00000000-0000-0000-0000-00000000000b",
            "00000000-0000-0000-0000-000000000001",
            "no_instance",
        ),
        ("node", "00000000-0000-0000-0000-000000000001", "invalid_data"),
        ("00000000-0000-0000-0000-00000000000a", "one", "invalid_data"),
        (
            "00000000-0000-0000-0000-00000000000a",
            "../../etc",
            "invalid_data",
        ),
    ];
    for (node, instance, reason) in rows {
        for (command, root) in [
            (Command::STOP, "stop"),
            (Command::DELETE, "delete"),
            (Command::RESTART, "restart"),
            (Command::ATTACH_VOLUME, "attach_volume"),
            (Command::DETACH_VOLUME, "detach_volume"),
        ] {
            let mut stage = Stage::new();
            stage.run(&persistent(ONE));
            stage.sent.clear();
            let volume = VOLUME.to_string();
            stage.raw(
                command,
                &format!(
                    "{root}:\n  instance_uuid: {instance}\n  workload_agent_uuid: {node}\n  volume_uuid: {volume}\n"
                ),
            );
            let frame = stage.sent.pop_front().unwrap();
            let text = String::from_utf8(frame.payload_bytes().to_vec()).unwrap();
            assert!(
                text.contains(&format!("reason: {reason}\n")),
                "{command} {node} {instance}: {text}"
            );
            assert!(text.contains(&format!("instance_uuid: {instance}")), "{text}");
        }
    }
}
