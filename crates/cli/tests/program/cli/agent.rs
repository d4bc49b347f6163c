//! `ssntp agent`: its processes, and signals.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::Signal;
use ssntp_payload::{
    Delete, Evacuate, InstanceDeleted, InstanceState, NextState, NodeStatus, Persistence, Start,
    StartFailure, Stats, Stop, VmType,
};
use ssntp_test_support::program::LIMIT;
use uuid::Uuid;

use crate::processes::{Cluster, Program, ended_in_order, ssntp, wait_for};

#[test]
fn an_agent_without_a_state_directory_reports_this_machine() {
    let cluster = Cluster::new();
    for (name, signal) in [("agent", Signal::INT), ("netagent", Signal::TERM)] {
        let mut agent = cluster.agent(name, &["--interval", "0.2"]);
        let uuid = agent.uuid();
        let mut count = 0;
        // On a busy machine a report comes late, and the scheduler calls the node stale meanwhile.
        let stats: Stats = cluster.next(|stats: &Stats| {
            count += usize::from(stats.node_uuid == uuid);
            count >= 3 && stats.node_uuid == uuid && stats.status == NodeStatus::Ready
        });
        assert!(stats.mem_total_mb > 0 && stats.cpus_online > 0 && !stats.hostname.is_empty());
        let mut start = Start {
            instance_uuid: Uuid::new_v4(),
            vm_type: VmType::Process,
            command: vec!["true".into()],
            ..Start::default()
        };
        start.requirements.network_node = name == "netagent";
        // The scheduler itself refuses a START if the node is stale just then.
        let reason = loop {
            cluster.send(&start);
            let failure: StartFailure = cluster.next(|_| true);
            if failure.reason.as_str() != "full_cloud" {
                break failure.reason;
            }
        };
        assert_eq!(reason.as_str(), "launch_failure");
        agent.end(signal);
    }
}

#[test]
fn the_loss_of_a_session_is_one_line_of_the_log() {
    let mut cluster = Cluster::new();
    let mut command = cluster.agent_command("agent", &[]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let agent = ssntp_test_support::program::Program::of(command);
    agent.line("agent ");
    cluster.next(|_: &Stats| true);
    cluster.lose_scheduler();
    let lines = std::iter::from_fn(|| agent.err.recv_timeout(LIMIT).ok());
    let lines: Vec<_> = lines
        .take_while(|line| !line.contains("cannot connect"))
        .collect();
    let losses = lines.iter().filter(|line| line.contains("disconnected"));
    assert_eq!(losses.count(), 1, "{lines:#?}");
}

#[test]
fn an_agent_that_was_killed_finds_its_running_instances_again() {
    let cluster = Cluster::new();
    let arguments = ["--state", "state", "--confinement", "rlimits", "--mem", "512"];
    let mut agent = cluster.agent("agent", &arguments);
    let node = agent.uuid();
    cluster.next(|_: &Stats| true);
    let start = Start {
        instance_uuid: Uuid::new_v4(),
        vm_type: VmType::Process,
        persistence: Persistence::Host,
        command: ["sleep", "1000"].map(String::from).to_vec(),
        ..Start::default()
    };
    cluster.send(&start);
    let state = |stats: &Stats| stats.instances.first().map(|instance| instance.state.clone());
    cluster.next(|stats: &Stats| state(stats) == Some(InstanceState::Active));

    agent.kill();
    let log = cluster.dir.path().join("agent.log");
    let mut command = cluster.agent_command("agent", &arguments);
    command
        .args(["--log", "info"])
        .stderr(fs::File::create(&log).unwrap());
    let mut agent = Program::start(&mut command);
    assert_eq!(agent.uuid(), node, "the UUID is stored with the state");
    let stats = cluster.next(|stats: &Stats| state(stats) == Some(InstanceState::Active));
    assert_eq!(stats.mem_total_mb, 512);

    for status in [NodeStatus::Offline, NodeStatus::Ready] {
        agent.signal(Signal::USR1);
        cluster.next(|stats: &Stats| stats.status == status);
    }

    // SIGTERM to the agent leaves the instance running as well, and the log says so.
    let signalled_at = Instant::now();
    agent.end(Signal::TERM);
    let in_order = ended_in_order(signalled_at);
    let log = fs::read_to_string(log).unwrap();
    let ends = "the agent ends; instances that keep running: 1, launches that are cancelled: 0";
    for line in [ends, "the agent has ended"] {
        let is_logged = log.contains(&format!("{node}: {line}"));
        assert!(is_logged || !in_order, "{line}: {log}");
    }
    let agent = cluster.agent("agent", &arguments);
    cluster.next(|stats: &Stats| state(stats) == Some(InstanceState::Active));
    let stop = Stop {
        instance_uuid: start.instance_uuid.into(),
        workload_agent_uuid: node.into(),
        stop: false,
    };
    cluster.send(&stop);
    cluster.next(|stats: &Stats| state(stats) == Some(InstanceState::Exited));
    cluster.send(&Delete {
        instance_uuid: stop.instance_uuid,
        workload_agent_uuid: stop.workload_agent_uuid,
        stop: false,
    });
    cluster.next(|_: &InstanceDeleted| true);
    agent.end(Signal::INT);
}

#[test]
fn an_agent_runs_the_given_program_after_an_evacuation() {
    let cluster = Cluster::new();
    let path = |name: &str| cluster.dir.path().join(name);
    fs::write(
        path("next"),
        "#!/bin/sh\necho \"$*\" >state.new; mv state.new state.txt\n",
    )
    .unwrap();
    fs::set_permissions(path("next"), fs::Permissions::from_mode(0o755)).unwrap();
    let program = path("next");
    let program = ["--after-evacuation", program.to_str().unwrap()];
    let mut agent = cluster.agent("agent", &[&["--state", "state"], &program[..]].concat());
    let node = agent.uuid();
    cluster.next(|_: &Stats| true);
    cluster.send(&Evacuate {
        workload_agent_uuid: node.into(),
        next_state: NextState::Reboot,
        ..Evacuate::default()
    });
    cluster.next(|stats: &Stats| stats.status == NodeStatus::Maintenance);
    let next_state = wait_for(|| fs::read_to_string(path("state.txt")));
    assert_eq!(next_state, "reboot\n");

    // The next agent is still in maintenance, and does not run the program again.
    agent.kill();
    fs::remove_file(path("state.txt")).unwrap();
    let agent = cluster.agent("agent", &[&["--state", "state"], &program[..]].concat());
    cluster.next(|stats: &Stats| stats.status == NodeStatus::Maintenance);
    agent.end(Signal::TERM);
    assert!(!path("state.txt").exists());
}

#[test]
fn an_agent_that_cannot_start_prints_the_reason_in_one_line() {
    let cluster = Cluster::new();
    fs::write(cluster.dir.path().join("file"), "").unwrap();
    let refused = |arguments: &[&str], code: i32| {
        let mut command = ssntp(
            cluster.dir.path(),
            &["agent", "--ca", "ca.pem", "--connect", &cluster.address],
        );
        let output = command.args(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        text
    };
    refused(&["--cert", "agent.pem", "--volumes", "volumes"], 2);
    refused(&["--cert", "agent.pem", "--state", "s", "--driver", "magic"], 2);
    refused(&["--cert", "agent.pem", "--interval", "0"], 2);
    let text = refused(&["--cert", "agent.pem", "--state", "file"], 1);
    assert!(text.contains("file") && text.lines().count() == 1, "{text}");
    refused(&["--cert", "agent.pem", "--users", "9-7"], 2);
    fs::write(cluster.dir.path().join("policy"), "pids: 7\nuser: nobody\n").unwrap();
    let text = refused(&["--cert", "agent.pem", "--policy", "policy"], 1);
    assert!(text.contains("policy: ") && text.lines().count() == 1, "{text}");
    assert!(
        text.contains("user") && text.contains("(line 2, column 1)"),
        "{text}"
    );
    // The certificate has another role.
    let text = refused(&["--cert", "controller.pem"], 1);
    assert!(text.contains("agent") && text.lines().count() == 1, "{text}");
}
