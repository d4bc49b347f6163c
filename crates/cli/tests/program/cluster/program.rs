//! `ssntp ctl`: flags, environment, file, exit codes, signals.

use std::fs;

use rustix::process::Signal;
use ssntp::client::Client;
use ssntp_test_support::port::HeldPort;

use super::logs::client;
use crate::cluster::processes::{Cluster, Done, Process, end_of, ssntp, until};

#[test]
fn the_scheduler_is_found_by_flags_environment_or_file() {
    let cluster = Cluster::with_agents(1);
    let directory = cluster.path("");
    let run = |words: &[&str]| Done::of(ssntp(&directory, words));
    let (address, nodes) = (cluster.address(), ["ctl", "nodes"]);

    let missing = run(&nodes);
    assert_eq!(missing.code, Some(2), "{}", missing.stderr);
    assert!(
        missing
            .stderr
            .contains("--ca is needed: on the command line, as SSNTP_CA, or by a context")
    );

    // Common flags may stand anywhere on the line.
    for line in [
        format!("--connect {address} --ca ca.pem --cert controller.pem ctl nodes"),
        format!("ctl --connect {address} --ca ca.pem nodes --cert controller.pem"),
        format!("ctl nodes --connect={address} --ca ca.pem --cert controller.pem"),
    ] {
        let done = run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(done.code, Some(0), "{line}: {}", done.stderr);
        assert!(done.stdout.contains("READY"), "{line}: {}", done.stdout);
    }

    for (name, connect) in [(".config", address.to_owned()), ("xdg", format!("[{address:?}]"))] {
        let config = cluster.path(name).join("ssntp");
        fs::create_dir_all(&config).unwrap();
        let text = format!(
            "current: a\ncontexts:\n  a: {{connect: {connect}, ca: ../../ca.pem, cert: ../../controller.pem}}\n"
        );
        fs::write(config.join("contexts.yaml"), text).unwrap();
        let mut command = ssntp(&directory, &nodes);
        if name == "xdg" {
            command.env("XDG_CONFIG_HOME", cluster.path(name));
        }
        let done = Done::of(command);
        assert_eq!(done.code, Some(0), "{name}: {}", done.stderr);
        // The environment overrides the file.
        let mut command = ssntp(&directory, &nodes);
        command.env("SSNTP_CA", "controller.pem");
        assert_eq!(Done::of(command).code, Some(1), "the file is not an authority");
    }
    let file = cluster.path(".config/ssntp/contexts.yaml");
    fs::write(file, "contexts: {a: {conect: x}}\n").unwrap();
    let typo = run(&nodes);
    assert_eq!(typo.code, Some(2));
    assert!(
        typo.stderr.contains("contexts.yaml") && typo.stderr.contains("conect"),
        "{}",
        typo.stderr
    );
}

#[test]
fn a_command_that_cannot_connect_fails_with_the_reason() {
    let cluster = Cluster::new("");
    let error = cluster.fails("nodes --connect 127.0.0.1:1");
    assert!(
        error.contains("127.0.0.1:1") && error.contains("refused"),
        "{error}"
    );
    let error = cluster.fails("nodes --cert agent.pem");
    assert_eq!(error, "the certificate holds the roles agent, not controller");
    let error = cluster.fails("nodes --ca missing.pem");
    assert!(error.contains("missing.pem"), "{error}");
}

#[test]
fn a_signal_ends_a_following_command_with_0_and_other_commands_with_its_code() {
    let cluster = Cluster::new("");
    let agentless = [
        "ctl",
        "evacuate",
        "0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001",
        "--connect",
        "127.0.0.1:1",
    ];
    let lines: [&[&str]; 5] = [
        &["ctl", "events"],
        &["ctl", "nodes", "--watch"],
        &["ctl", "events", "--connect", "127.0.0.1:1"],
        &["ctl", "nodes", "--watch", "--connect", "127.0.0.1:1"],
        &agentless,
    ];
    for words in lines {
        for (signal, interrupted) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let goes_on = words.contains(&"events") || words.contains(&"--watch");
            let mut process = Process::of(cluster.command(words), &cluster.path(""), "ctl");
            // Before the program handles signals, a signal ends it by the default action.
            process.handles_signals();
            process.signal(signal);
            // Without the signal each of these commands would run for longer than this test waits.
            assert_eq!(
                process.end(),
                Some(if goes_on { 0 } else { interrupted }),
                "{words:?}: {}",
                process.log()
            );
        }
    }
}

#[test]
fn a_signal_ends_the_wait_for_an_instance() {
    let mut cluster = Cluster::new("");
    // The agent has connected, and sends no READY while it is stopped.
    let node = cluster.agent("");
    cluster.controller_sees(1);
    cluster.signal_node(node, Signal::STOP);
    let mut process = Process::of(
        cluster.command(&["ctl", "start", "--count", "2", "--", "sleep", "1000"]),
        &cluster.path(""),
        "ctl",
    );
    process.handles_signals();
    until("both STARTs are sent", || {
        let sessions = cluster.done("sessions --role controller --json");
        let sessions: Vec<serde_json::Value> = serde_json::from_str(&sessions).unwrap();
        let has_sent = |one: &serde_json::Value| one["frames_received"].as_u64() >= Some(2);
        sessions
            .iter()
            .any(has_sent)
            .then_some(())
            .ok_or(format!("{sessions:?}"))
    });
    process.signal(Signal::INT);
    let ended = process.end();
    assert_eq!(
        ended,
        Some(130),
        "the outcome of the command is not known: {}",
        process.log()
    );
    // They may run later, so the user gets their names.
    for _ in 0..2 {
        process.line().parse::<uuid::Uuid>().unwrap();
    }
    cluster.signal_node(node, Signal::CONT);
}

#[test]
fn a_signal_ends_a_command_that_reads_the_standard_input() {
    let cluster = Cluster::new("");
    let mut command = cluster.command(&["ctl", "start", "-f", "-"]);
    command.stdin(std::process::Stdio::piped());
    let mut process = Process::of(command, &cluster.path(""), "ctl");
    process.handles_signals();
    process.signal(Signal::TERM);
    assert_eq!(process.end(), Some(143), "{}", process.log());
}

#[test]
fn a_command_that_is_not_confirmed_in_time_fails_with_the_present_state() {
    let mut cluster = Cluster::new("");
    let node = cluster.agent("");
    cluster.controller_sees(1);
    let instance = cluster.start("");
    cluster.signal_node(node, Signal::STOP);
    cluster.is_over(&format!("stop {instance}"), |error, seconds| {
        error.starts_with(&format!(
            "STOP was not shown to be done in {seconds} s: the instance is active on node "
        ))
    });
    cluster.signal_node(node, Signal::CONT);
}

#[test]
fn the_first_line_of_each_program_is_json_if_a_flag_says_so() {
    let cluster = Cluster::new("");
    let (address, uuid) = (cluster.address().to_owned(), uuid::Uuid::new_v4().to_string());
    let first = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let mut process = Process::of(cluster.command(&words), &cluster.path(""), "json");
        let result: serde_json::Value = serde_json::from_str(&process.line()).unwrap();
        process.signal(Signal::TERM);
        assert_eq!(process.end(), Some(0), "{}", process.log());
        result
    };
    let first_line =
        first("--json scheduler --listen 127.0.0.1:0 --ca ca.pem --cert scheduler.pem --allow-unbound");
    let listening = first_line["listening"][0].as_str().unwrap();
    assert!(listening.starts_with("127.0.0.1:"), "{first_line}");
    let connect = format!("--connect {address} --ca ca.pem");
    let first_line = first(&format!("agent {connect} --cert agent.pem --state json --json"));
    assert!(
        first_line["agent"]
            .as_str()
            .unwrap()
            .parse::<uuid::Uuid>()
            .is_ok()
    );
    let first_line = first(&format!(
        "cnci {connect} --cert cnciagent.pem --json --uuid {uuid} --tenant {uuid} --ip 10.0.0.33 --state tables"
    ));
    assert_eq!(first_line["cnci"], uuid);

    // `cnci show` prints the stored tables without running the concentrator.
    let show = |words: &[&str]| Done::of(ssntp(&cluster.path(""), words));
    let tables = show(&["cnci", "show", "--state", "tables", "--json"]);
    assert_eq!(tables.stdout.lines().count(), 1);
    let tables: serde_json::Value = serde_json::from_str(&tables.stdout).unwrap();
    assert_eq!(
        (&tables["ip"], &tables["tenant_uuid"]),
        (&"10.0.0.33".into(), &uuid.as_str().into())
    );
    assert!(
        show(&["cnci", "show", "--state", "tables"])
            .stdout
            .contains("no tunnels")
    );
    for words in [
        &["cnci"][..],
        &["cnci", "show"],
        &["cnci", "--state", "tables"],
        &["cnci", "--state", "tables", "--tenant", &uuid],
    ] {
        let usage = show(words);
        assert_eq!(usage.code, Some(2), "{words:?}: {}", usage.stderr);
    }
}

#[test]
fn a_scheduler_admits_nodes_with_bound_certificates_only_unless_a_flag_says_otherwise() {
    let cluster = Cluster::new("");
    let admits = |flags: &str| {
        let line = format!("scheduler --listen 127.0.0.1:0 --ca ca.pem --cert scheduler.pem {flags}");
        let words: Vec<_> = line.split_whitespace().collect();
        let mut process = Process::of(cluster.command(&words), &cluster.path(""), "bound");
        let address = process
            .line()
            .trim()
            .strip_prefix("listening at ")
            .unwrap()
            .to_owned();
        for cert in ["bound.pem", "controller.pem"] {
            let done = cluster.ctl(&format!("nodes --connect {address} --cert {cert}"));
            assert_eq!(done.code, Some(0), "{cert}: {}", done.stderr);
        }
        let config = client(&cluster.path(""), "agent.pem").address(address.parse().unwrap());
        let admitted = Client::connect(config).map(drop);
        process.signal(Signal::TERM);
        assert_eq!(process.end(), Some(0), "{}", process.log());
        admitted
    };
    let refused = admits("").unwrap_err();
    assert!(refused.to_string().contains("bound to no UUID"), "{refused}");
    admits("--allow-unbound").unwrap();
}

#[test]
fn an_agent_whose_instances_could_not_reach_their_directory_does_not_start() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root runs instances as other users");
    }
    let cluster = Cluster::new("");
    let nobody_else = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(cluster.path(""), nobody_else).unwrap();
    let line = format!(
        "agent --connect {} --ca ca.pem --cert agent.pem --state closed",
        cluster.address()
    );
    let words: Vec<_> = line.split_whitespace().collect();
    let done = Done::of(cluster.command(&words));
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(
        done.stderr.contains("users of instances can't pass it"),
        "{}",
        done.stderr
    );
}

#[test]
fn a_command_waits_for_a_silent_scheduler_until_its_timeout() {
    let cluster = Cluster::new("");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let refuses = HeldPort::new();
    let both = format!("{},{address}", refuses.address());
    let error = cluster.fails(&format!("stop 5f --connect {both} --timeout 0.5"));
    let (refused, silent) = error.split_once("; ").unwrap();
    let begin = format!(
        "cannot connect: no server has answered in 0.5 s: {}: ",
        refuses.address()
    );
    assert!(
        refused.starts_with(&begin) && refused.contains("refused"),
        "{error}"
    );
    assert_eq!(silent, format!("{address}: no answer"));
}

/// A scheduler that its service manager starts again takes more time than a few attempts.
#[test]
fn a_command_tries_to_connect_until_its_timeout() {
    let cluster = Cluster::new("");
    let refuses = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = refuses.local_addr().unwrap().to_string();
    let command = cluster.command(&["ctl", "nodes", "--connect", &address, "--timeout", "600"]);
    let _command = Process::of(command, &cluster.path(""), "waits");
    refuses.set_nonblocking(true).unwrap();
    let mut attempts = 0;
    until("it tries twelve times", || {
        attempts += usize::from(refuses.accept().is_ok());
        match attempts {
            12 => Ok(()),
            _ => Err(format!("{attempts} attempts")),
        }
    });
}

#[test]
fn a_following_command_ends_once_its_output_is_closed() {
    let cluster = Cluster::with_agents(1);
    for words in [
        &["ctl", "events", "--json"][..],
        &["ctl", "instances", "--watch"],
        &["ctl", "nodes", "--watch", "--json"],
    ] {
        let mut child = cluster.command(words);
        let mut child = child
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut first = String::new();
        let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut stdout, &mut first).unwrap();
        assert!(!first.is_empty(), "{words:?}");
        // There is no further change to print, so no write fails.
        drop(stdout);
        let status = end_of(&mut child);
        assert_eq!(status.code(), Some(0), "{words:?}");
    }
}

#[test]
fn a_command_whose_reader_closes_the_output_succeeds() {
    let cluster = Cluster::with_agents(1);
    let mut child = cluster.command(&["ctl", "events"]);
    let mut child = child
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    cluster.start("");
    let status = end_of(&mut child);
    assert_eq!(status.code(), Some(0));
}
