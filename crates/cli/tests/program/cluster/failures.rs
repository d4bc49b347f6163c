//! Each failure in the tables of docs/cluster.md that a cluster of processes can show has a text.

use std::fs;

use rustix::process::Signal;
use ssntp::payload::Id;
use ssntp_payload::{
    AssignPublicIp, AttachVolume, Delete, DetachVolume, Evacuate, InstanceState, NodeStatus, ReleasePublicIp,
    Restart, Restore, Start, Stop, VmType,
};
use ssntp_view::{Controller, OrderError, Orderable, View};
use uuid::Uuid;

use crate::cluster::processes::{Cluster, LIMIT, Process, sees, until, wait_for};

/// The text of the failure of an order.
#[track_caller]
fn failed<C: Orderable>(controller: &Controller, command: &C) -> String {
    match controller.order(command).unwrap().wait(LIMIT) {
        Err(OrderError::Failed(failure)) => failure.to_string(),
        other => panic!("{other:?}"),
    }
}

fn process(command: &[&str]) -> Start {
    Start {
        instance_uuid: Uuid::new_v4(),
        vm_type: VmType::Process,
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        ..Start::default()
    }
}

#[test]
fn a_start_that_fits_no_node_fails_with_the_reason() {
    let mut cluster = Cluster::new("");
    for (line, reason) in [
        ("start -- sleep 1", "no compute node is connected (no_cn)"),
        (
            "start --network-node -- sleep 1",
            "no network node is connected (no_net_cn)",
        ),
    ] {
        let wanted = format!(" was not started: {reason}");
        cluster.is_over(line, |error, _| error.ends_with(&wanted));
    }
    cluster.agent("");
    cluster.controller_sees(1);
    let error = cluster.fails("start --mem 100000000 -- sleep 1");
    assert!(
        error.ends_with(" was not started: no node in service has enough room (full_cloud)"),
        "{error}"
    );
    let error = cluster.fails("start --node 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001 -- sleep 1");
    assert!(error.ends_with("(full_cloud)"), "{error}");
    // The failure of each of several instances is printed.
    let done = cluster.ctl("start --count 2 --mem 100000000 -- sleep 1");
    assert_eq!(done.code, Some(1));
    assert_eq!(done.stderr.matches("(full_cloud)").count(), 2, "{}", done.stderr);
    assert!(done.stderr.ends_with("ssntp: 2 of 2 failed\n"), "{}", done.stderr);
    let done = cluster.ctl("start --json --mem 100000000 -- sleep 1");
    assert_eq!(done.code, Some(1));
    let result: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(
        (&result["result"], &result["reason"]),
        (&"failed".into(), &"full_cloud".into())
    );
}

#[test]
fn a_start_that_its_node_refuses_fails_with_the_reason() {
    let cluster = Cluster::with_agents(1);
    let error = cluster.fails("start -- /nonexistent");
    let reason = "it cannot be launched: there is no program /nonexistent (launch_failure)";
    assert!(error.ends_with(reason), "{error}");
    let error = cluster.fails("start --dir /nonexistent -- sleep 1");
    assert!(
        error.ends_with("(launch_failure)") && error.contains("/nonexistent"),
        "{error}"
    );

    let running = cluster.start("");
    // The answer to the first START may be lost, so a script can repeat it.
    let again = cluster.done(&format!("start --uuid {running} -- sleep 1"));
    assert!(
        again.starts_with(&format!("instance {running} runs on node ")),
        "{again}"
    );
    cluster.done(&format!("stop {running}"));
    let error = cluster.fails(&format!("start --uuid {running} -- sleep 1"));
    assert!(
        error.ends_with("it is there already, and stopped (instance_exists)"),
        "{error}"
    );

    let nowhere = format!("command: [sleep, 1]\nvolumes: [{}]\n", Uuid::new_v4());
    fs::write(cluster.path("volume.yaml"), nowhere).unwrap();
    let error = cluster.fails("start -f volume.yaml");
    assert!(
        error.contains("its image is not available: there is no volume ")
            && error.ends_with("(image_failure)"),
        "{error}"
    );
    fs::write(
        cluster.path("network.yaml"),
        "command: [sleep, 1]\nnetworking: {subnet: everywhere}\n",
    )
    .unwrap();
    let error = cluster.fails("start -f network.yaml");
    assert!(
        error.ends_with("its network cannot be set up: \"everywhere\" is not a subnet (network_failure)"),
        "{error}"
    );
    fs::write(cluster.path("data.yaml"), "command: [sleep, 1]\nmem_mb: -5\n").unwrap();
    let error = cluster.fails("start -f data.yaml");
    assert!(
        error.ends_with("start.requirements.mem_mb is below zero"),
        "{error}"
    );
}

#[test]
fn a_start_of_a_program_that_ends_at_once_succeeds() {
    let cluster = Cluster::with_agents(1);
    // `start` succeeds whether it sees the instance run or only its end.
    let result: serde_json::Value = serde_json::from_str(&cluster.done("start --json -- false")).unwrap();
    assert_eq!(result["result"], "done");
    let instance = result["subject"].as_str().unwrap().parse().unwrap();
    wait_for(&cluster.controller_sees(1), instance, &InstanceState::Exited);
}

#[test]
fn a_restart_of_a_program_that_ends_at_once_succeeds() {
    let cluster = Cluster::with_agents(1);
    let result: serde_json::Value =
        serde_json::from_str(&cluster.done("start --persistent --json -- true")).unwrap();
    let instance: Uuid = result["subject"].as_str().unwrap().parse().unwrap();
    wait_for(&cluster.controller_sees(1), instance, &InstanceState::Exited);
    for _ in 0..5 {
        let output = cluster.done(&format!("restart {instance}"));
        assert!(
            output.contains("was started and has ended") || output.contains(" runs on node "),
            "{output}"
        );
        // A restart is refused until STATS show that the instance has ended.
        wait_for(&cluster.controller_sees(1), instance, &InstanceState::Exited);
    }
}

#[test]
fn commands_for_instances_in_the_wrong_state_fail_with_the_reason() {
    let cluster = Cluster::with_agents(1);
    let instance = cluster.start("");
    let error = cluster.fails(&format!("restart {instance}"));
    assert_eq!(
        error,
        format!("instance {instance} was not restarted: it runs already (already_running)")
    );
    cluster.done(&format!("stop {instance}"));
    let error = cluster.fails(&format!("stop {instance}"));
    assert_eq!(
        error,
        format!("instance {instance} was not stopped: it has stopped already (already_stopped)")
    );

    let volume = cluster.volume();
    cluster.done(&format!("attach {instance} {volume}"));
    let error = cluster.fails(&format!("attach {instance} {volume}"));
    assert_eq!(
        error,
        format!(
            "volume {volume} was not attached to instance {instance}: it is attached already (already_attached)"
        )
    );
    let other = Uuid::new_v4();
    let error = cluster.fails(&format!("detach {instance} {other}"));
    assert!(error.ends_with("it is not attached (not_attached)"), "{error}");
    let error = cluster.fails(&format!("attach {instance} {other}"));
    assert!(error.ends_with("attaching failed (attach_failure)"), "{error}");
}

#[test]
fn an_attach_on_a_node_without_volumes_fails_with_the_reason() {
    let mut cluster = Cluster::new("");
    cluster.agent("");
    cluster.controller_sees(1);
    let instance = cluster.start("");
    let error = cluster.fails(&format!("attach {instance} {}", Uuid::new_v4()));
    assert!(
        error.ends_with("instances of its kind take no volumes (not_supported)"),
        "{error}"
    );
}

#[test]
fn unknown_uuids_are_refused_before_any_command_is_sent() {
    let cluster = Cluster::with_agents(1);
    let unknown = Uuid::new_v4();
    for verb in ["stop", "restart", "delete"] {
        let error = cluster.fails(&format!("{verb} {unknown}"));
        assert_eq!(
            error,
            format!("no connected node has instance {unknown}; a node that is away may have it")
        );
    }
    let nil = format!("start --uuid {} -- true", Uuid::nil());
    let error = cluster.ctl(&nil).stderr;
    assert!(error.contains("the nil UUID names no instance"), "{error}");
    for verb in ["attach", "detach"] {
        let error = cluster.fails(&format!("{verb} {unknown} {unknown}"));
        assert_eq!(
            error,
            format!("no connected node has instance {unknown}; a node that is away may have it")
        );
    }
    assert_eq!(cluster.fails("stop zz"), "no instance is called \"zz\"");
    assert_eq!(
        cluster.fails("evacuate rack1"),
        "\"rack1\" names no node: it is not the beginning of a UUID"
    );
    assert_eq!(
        cluster.fails(&format!("assign-ip {unknown} 198.51.100.20")),
        "no CNCI is known; give --cnci"
    );
    // If one of several UUIDs is unknown, no command is sent.
    let instance = cluster.start("");
    cluster.fails(&format!("stop {instance} {unknown}"));
    cluster.fails(&format!("restart {instance}"));
}

#[test]
fn a_uuid_of_another_kind_of_object_is_refused_with_its_kind() {
    let cluster = Cluster::with_agents(1);
    let node = cluster
        .controller_sees(1)
        .look(|view| view.nodes().next().unwrap().uuid);
    let instance = cluster.start("");
    for (line, reason) in [
        (
            format!("stop {node}"),
            format!("{node} is the UUID of a node (expected: instance)"),
        ),
        (
            format!("attach {instance} {node}"),
            format!("{node} is the UUID of a node (expected: volume)"),
        ),
        (
            format!("attach {instance} {instance}"),
            format!("{instance} is the UUID of an instance (expected: volume)"),
        ),
        (
            format!("evacuate {instance}"),
            format!("{instance} is the UUID of an instance (expected: node)"),
        ),
        (
            format!("start --node {instance} -- true"),
            format!("{instance} is the UUID of an instance (expected: node)"),
        ),
        (
            format!("assign-ip {instance} 198.51.100.20 --cnci {node}"),
            format!("{node} is the UUID of a node (expected: CNCI)"),
        ),
    ] {
        assert_eq!(cluster.fails(&line), reason, "{line}");
    }
}

#[test]
fn an_ambiguous_beginning_of_a_uuid_lists_the_candidates() {
    let cluster = Cluster::with_agents(1);
    // Enough UUIDs that two of them have the same beginning.
    let output = cluster.done("start --count 17 --mem 1 --json -- sleep 1000");
    assert_eq!(output.lines().count(), 17);
    let instances = cluster.controller_sees(1).look(|view| {
        let uuids: Vec<_> = view.instances().map(|i| i.uuid.to_string()).collect();
        uuids
    });
    let alike = instances
        .windows(2)
        .find(|two| two[0][..1] == two[1][..1])
        .unwrap();
    let error = cluster.fails(&format!("stop {}", &alike[0][..1]));
    assert!(
        error.contains("is the beginning of") && error.contains(&alike[0]) && error.contains(&alike[1]),
        "{error}"
    );
}

/// These commands are sent although the view of the controller shows that they will fail.
#[test]
fn the_scheduler_and_the_agents_refuse_commands_with_the_reason() {
    let cluster = Cluster::with_agents(1);
    let controller = cluster.controller_sees(1);
    let node = controller.look(|view| view.nodes().next().unwrap().uuid);
    for (node, case) in [
        (node, "an instance that the node does not have"),
        (Uuid::new_v4(), "no such node"),
    ] {
        let (instance_uuid, workload_agent_uuid) = (Id::from(Uuid::new_v4()), Id::from(node));
        let stop = Stop {
            instance_uuid: instance_uuid.clone(),
            workload_agent_uuid: workload_agent_uuid.clone(),
            stop: false,
        };
        let delete = Delete {
            instance_uuid: instance_uuid.clone(),
            workload_agent_uuid: workload_agent_uuid.clone(),
            stop: false,
        };
        let restart = Restart {
            instance_uuid: instance_uuid.clone(),
            workload_agent_uuid: workload_agent_uuid.clone(),
            ..Restart::default()
        };
        let attach = AttachVolume {
            instance_uuid: instance_uuid.clone(),
            volume_uuid: Uuid::new_v4().into(),
            workload_agent_uuid: workload_agent_uuid.clone(),
        };
        let detach = DetachVolume {
            instance_uuid: instance_uuid.clone(),
            volume_uuid: Uuid::new_v4().into(),
            workload_agent_uuid,
        };
        for error in [
            failed(&controller, &stop),
            failed(&controller, &delete),
            failed(&controller, &restart),
            failed(&controller, &attach),
            failed(&controller, &detach),
        ] {
            let words = "the node has no such instance, or is not connected (no_instance)";
            assert!(error.ends_with(words), "{case}: {error}");
        }
    }
    let nobody = Uuid::new_v4();
    let assign = AssignPublicIp {
        concentrator_uuid: nobody.into(),
        instance_uuid: nobody.into(),
        public_ip: "198.51.100.20".into(),
        ..AssignPublicIp::default()
    };
    let words = "there is no such instance, or its concentrator is not connected (no_instance)";
    assert_eq!(
        failed(&controller, &assign),
        format!("198.51.100.20 was not assigned to instance {nobody}: {words}")
    );
    let release = ReleasePublicIp {
        concentrator_uuid: nobody.into(),
        instance_uuid: nobody.into(),
        public_ip: "198.51.100.20".into(),
        ..ReleasePublicIp::default()
    };
    assert!(failed(&controller, &release).ends_with(words));
    let evacuate = Evacuate {
        workload_agent_uuid: nobody.into(),
        ..Evacuate::default()
    };
    let restore = Restore {
        workload_agent_uuid: nobody.into(),
    };
    let words = "was refused: the client that it names is not connected (not_connected)";
    let refused = |command: &str, node: Uuid| format!("{command} of node {node} {words}");
    assert_eq!(failed(&controller, &evacuate), refused("EVACUATE", nobody));
    assert_eq!(failed(&controller, &restore), refused("Restore", nobody));
    // The UUID of a controller is not the UUID of a node.
    let own = controller.client().uuid();
    let evacuate = Evacuate {
        workload_agent_uuid: own.into(),
        ..Evacuate::default()
    };
    assert_eq!(failed(&controller, &evacuate), refused("EVACUATE", own));
}

#[test]
fn nodes_that_accept_no_commands_refuse_them_with_the_reason() {
    let mut cluster = Cluster::new("");
    let number = cluster.agent("--max-instances 1");
    let controller = cluster.controller_sees(1);
    let node = controller.look(|view| view.nodes().next().unwrap().uuid);
    let reaches = |status: NodeStatus| {
        let reached = |view: &View| (view.node(node)?.status == status).then_some(());
        sees(&controller, &format!("the node is {status}"), reached);
    };
    let instance = cluster.start("");
    reaches(NodeStatus::Full);
    assert!(cluster.fails("start -- sleep 1").ends_with("(full_cloud)"));
    // A FULL node accepts all commands except START.
    cluster.done(&format!("stop {instance}"));

    cluster.done(&format!("evacuate {node}"));
    assert!(cluster.fails("start -- sleep 1").ends_with("(full_cloud)"));
    let error = cluster.fails(&format!("restart {instance}"));
    assert!(
        error.contains("it cannot be launched: the node is OFFLINE or in maintenance"),
        "{error}"
    );
    cluster.done(&format!("restore {node}"));

    cluster.signal_node(number, Signal::USR1);
    reaches(NodeStatus::Offline);
    assert!(cluster.fails("start -- sleep 1").ends_with("(full_cloud)"));
    let error = cluster.fails(&format!("stop {instance}"));
    assert!(error.ends_with("(no_instance)"), "{error}");
    let error = cluster.fails(&format!("restart {instance}"));
    assert!(error.ends_with("(launch_failure)"), "{error}");
    cluster.signal_node(number, Signal::USR1);
    reaches(NodeStatus::Full);
    cluster.done(&format!("delete {instance}"));
    reaches(NodeStatus::Ready);
}

#[test]
fn an_unusable_configuration_is_refused_with_its_position() {
    let cluster = Cluster::with_agents(1);
    for (yaml, reason) in [
        ("configure: [", "bad.yaml: "),
        (
            "configure:\n  controller:\n    ciao_port: 99999\n",
            "configure.controller.ciao_port",
        ),
        (
            "configure:\n  launcher:\n    compute_net: [everywhere]\n",
            "configure.launcher.compute_net[0]",
        ),
    ] {
        fs::write(cluster.path("bad.yaml"), yaml).unwrap();
        let error = cluster.fails("configure bad.yaml");
        assert!(error.contains(reason), "{error}");
        // The scheduler refuses the configuration as well.
        let controller = cluster.controller_sees(1);
        let order = controller.configure(yaml).unwrap();
        match order.wait(LIMIT) {
            Err(OrderError::Failed(failure)) => {
                assert!(
                    failure.to_string().starts_with("the configuration was refused: "),
                    "{failure}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(!cluster.path("cluster.yaml").exists());
    // If another document were accepted, or the empty one of a program that has failed, it would reset the
    // whole configuration.
    for text in ["command: [sleep, 1000]\n", "", "# nothing\n"] {
        fs::write(cluster.path("other.yaml"), text).unwrap();
        assert_eq!(
            cluster.fails("configure other.yaml"),
            "other.yaml: the key configure is missing at the top level"
        );
    }
    assert!(!cluster.path("cluster.yaml").exists());
    fs::write(cluster.path("defaults.yaml"), "configure:\n").unwrap();
    assert_eq!(
        cluster.done("configure --no-wait defaults.yaml").trim(),
        "the configuration was sent"
    );
}

#[test]
fn a_backup_controller_may_not_command() {
    let mut cluster = Cluster::new("--controllers master");
    cluster.agent("");
    let master = cluster.controller_sees(1);
    // START is refused with InvalidFrameType, like all other commands.
    let error = cluster.fails("start -- sleep 1");
    assert!(
        error.starts_with("START was refused: this controller may not command"),
        "{error}"
    );
    assert!(error.ends_with("(role_not_allowed)"), "{error}");
    drop(master);
    // After the master has left, the backup is promoted, and its commands are accepted.
    starts(&cluster);
}

/// Starts workloads until one runs.
#[track_caller]
fn starts(cluster: &Cluster) {
    until("a START is done", || {
        let done = cluster.ctl("start -- sleep 1000");
        let seen = format!("{done:?}");
        (done.code == Some(0)).then_some(()).ok_or(seen)
    });
}

#[test]
fn a_start_fails_if_its_agent_vanishes() {
    let mut cluster = Cluster::new("");
    let number = cluster.agent("");
    let controller = cluster.controller_sees(1);
    cluster.signal_node(number, Signal::STOP);
    let order = controller.order(&process(&["sleep", "1000"])).unwrap();
    // The answer to a later command shows that the scheduler has forwarded the START.
    assert!(controller.flush(LIMIT));
    let probe = Stop {
        instance_uuid: Uuid::new_v4().into(),
        workload_agent_uuid: Uuid::new_v4().into(),
        stop: false,
    };
    failed(&controller, &probe);
    cluster.kill_node(number);
    match order.wait(LIMIT) {
        Err(OrderError::Failed(failure)) => assert_eq!(failure.reason, "launch_failure"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_frozen_node_is_stale_and_gets_no_starts_until_it_continues() {
    let mut cluster = Cluster::new("");
    let number = cluster.agent("--interval 3");
    let controller = cluster.controller_sees(1);
    let instance = cluster.start("");
    cluster.signal_node(number, Signal::STOP);
    let is = |status: NodeStatus| {
        let reached = |view: &View| (view.nodes().next()?.status == status).then_some(());
        sees(&controller, &format!("the node is {status}"), reached);
    };
    is(NodeStatus::Stale);
    assert!(cluster.done("nodes").contains("STALE"));
    let listed = cluster.done("instances");
    assert!(
        listed.contains(&instance.to_string()) && listed.contains("active?"),
        "{listed}"
    );
    assert!(cluster.fails("start -- sleep 1").ends_with("(full_cloud)"));
    cluster.signal_node(number, Signal::CONT);
    is(NodeStatus::Ready);
    // On a busy machine the node may be stale again meanwhile.
    starts(&cluster);
}

#[test]
fn a_uuid_that_runs_on_one_node_is_not_started_on_another() {
    let cluster = Cluster::with_agents(2);
    let instance = cluster.start("");
    for _ in 0..4 {
        cluster.done(&format!("start --uuid {instance} -- sleep 1000"));
    }
    let controller = cluster.controller_sees(2);
    assert_eq!(controller.look(|view| view.instances().count()), 1);
}

#[test]
fn a_start_that_takes_too_long_is_answered_and_ended() {
    let mut cluster = Cluster::new("--start-limit 0.5");
    let number = cluster.agent("");
    cluster.controller_sees(1);
    cluster.signal_node(number, Signal::STOP);
    let error = cluster.fails("start -- sleep 1000");
    cluster.signal_node(number, Signal::CONT);
    assert!(
        error.contains("it cannot be launched: its node has not said"),
        "{error}"
    );
    // The instance of the failed START does not run.
    let controller = cluster.controller_sees(1);
    let is_ended = |view: &View| (view.instances().count() == 0).then_some(());
    sees(&controller, "the instance is ended", is_ended);
    // The agent starts instances again. On a busy machine a START may take longer than that limit.
    cluster.kill_scheduler();
    cluster.start_scheduler_with("");
    starts(&cluster);
}

#[test]
fn a_node_without_descriptors_for_another_instance_is_full() {
    let cluster = Cluster::new("");
    // An agent reserves 256 descriptors for itself.
    let script = format!(
        "ulimit -n 258; exec {} agent --users agent --confinement rlimits --state state \
         --ca ca.pem --cert agent.pem --connect {}",
        env!("CARGO_BIN_EXE_ssntp"),
        cluster.address()
    );
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]).current_dir(cluster.path(""));
    let _node = Process::of(shell, &cluster.path(""), "agent");
    let controller = cluster.controller_sees(1);
    for _ in 0..2 {
        cluster.start("");
    }
    let full = |view: &View| {
        view.nodes()
            .any(|node| node.status == NodeStatus::Full)
            .then_some(())
    };
    sees(&controller, "the node is full", full);
    assert!(cluster.fails("start -- true").ends_with("(full_cloud)"));
}
