//! `ssntp demo` confirms every step, and leaves nothing behind.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use ssntp_test_support::wait::wait_for;
use tempfile::TempDir;

use crate::cluster::processes::{Done, LIMIT, Process, end_of, processes_inside, ssntp, until};

/// A demo with its own directory for temporary files.
fn demo(place: &TempDir, words: &[&str]) -> Process {
    Process::of(command(place, words), place.path(), "demo")
}

fn command(place: &TempDir, words: &[&str]) -> Command {
    let mut command = ssntp(place.path(), &[&["demo"], words].concat());
    command.env("TMPDIR", temporary(place));
    // Settings of the user for other servers do not apply to the demo's.
    for name in ["SSNTP_CONTEXT", "SSNTP_CRL", "SSNTP_KEY", "SSNTP_NAME_SERVER"] {
        command.env(name, "nowhere");
    }
    command
}

fn temporary(place: &TempDir) -> std::path::PathBuf {
    let path = place.path().join("with blanks");
    fs::create_dir_all(&path).unwrap();
    path
}

#[track_caller]
fn nothing_is_left(place: &TempDir) {
    let left: Vec<_> = fs::read_dir(temporary(place)).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(processes_inside(&temporary(place)), []);
}

#[test]
fn the_demo_sees_every_step_and_leaves_nothing_behind() {
    let place = tempfile::tempdir().unwrap();
    let mut demo = demo(&place, &["--agents", "3"]);
    for step in [
        "a scheduler listens at 127.0.0.1:",
        "a controller shows the cluster at http://127.0.0.1:",
        "3 agents and a network agent have joined with tokens",
        "the cluster has a configuration",
        "workload web runs",
        "instance ",
        "workload database runs",
        "workload batch runs",
        "a concentrator runs on the network node and has connected",
        "the concentrator has assigned 198.51.100.20 to web",
        "web was stopped, and its node keeps it",
        "web was restarted",
        "the last line of web's log, from its node:",
        "hello from process ",
        "web's node was evacuated, and is in maintenance",
        "web's node was restored",
        "web was restarted there",
        "fragile, failed, and its node has started it again",
        "the job has ended by itself",
        "exited 3",
        "a program that is not there does not start:",
        "/no/such/program",
        "a START that needs 1000000 MB fails, as it should:",
        "no node in service has enough room (full_cloud)",
        "the way of a START, hop by hop:",
        "Controller ",
        "Scheduler ",
        "CNAgent ",
        "networks of tenants",
        "198.51.100.20 was released",
        "all instances were deleted",
        "no process and no file is left",
    ] {
        demo.line_with(step);
    }
    assert_eq!(demo.end(), Some(0), "{}", demo.log());
    assert_eq!(demo.log(), "");
    nothing_is_left(&place);
}

#[test]
fn the_demo_lasts_for_the_given_time_and_shows_no_log_lines_of_its_commands() {
    let place = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let mut command = command(&place, &["--seconds", "8"]);
    command.env("RUST_LOG", "info");
    let mut demo = Process::of(command, place.path(), "demo");
    demo.line_with("fails, as it should:");
    let why = demo.line();
    assert!(why.contains("no node in service has enough room"), "{why}");
    demo.line_with("no process and no file is left");
    assert_eq!(demo.end(), Some(0), "{}", demo.log());
    assert!(began.elapsed() >= Duration::from_secs(8));
}

#[test]
fn a_held_demo_carries_out_commands_until_a_signal_ends_it() {
    let place = tempfile::tempdir().unwrap();
    let mut demo = demo(&place, &["--hold"]);
    let shown = demo.line_with("a controller shows the cluster at ");
    let (site, token) = shown.split_once(" at ").unwrap().1.split_once("/login#").unwrap();
    let token = token.split(' ').next().unwrap();
    assert!(page(site, "").starts_with("HTTP/1.1 303 "));
    let bearer = format!("Authorization: Bearer {token}\r\n");
    assert!(page(site, &bearer).starts_with("HTTP/1.1 200 "));
    let ctl = commander(&demo);
    assert_eq!(ctl(&["nodes"]).matches("READY").count(), 3);
    // The printed commands can be executed.
    ctl(&["start", "--count", "2", "--persistent", "--", "sleep", "1000"]);
    let stop = demo.line_with(" ctl stop ");
    ctl(&["stop", stop.rsplit(' ').next().unwrap()]);
    assert!(ctl(&["cncis"]).contains("198.51.100.20"));
    // Instances of the controller daemon are deleted as well, and so are instances of another user.
    let kept = place.path().join("kept.yaml");
    fs::write(&kept, "name: kept\nstart: {command: [sleep, \"1000\"]}\n").unwrap();
    ctl(&["apply", "-f", kept.to_str().unwrap()]);
    until("kept-1 is listed", || {
        if ctl(&["instances"]).contains("kept-1") {
            Ok(())
        } else {
            Err(ctl(&["get", "kept"]))
        }
    });
    demo.signal(Signal::INT);
    demo.line_with("all instances were deleted");
    assert_eq!(demo.end(), Some(0), "{}", demo.log());
    nothing_is_left(&place);
}

/// Runs `ssntp ctl` in a held demo, with the environment that the demo prints.
fn commander(demo: &Process) -> impl Fn(&[&str]) -> String + use<> {
    let connect = variable(&demo.line_with("export SSNTP_CONNECT="), "SSNTP_CONNECT=");
    let line = demo.line_with("export SSNTP_CA=");
    let (ca, cert) = (variable(&line, "SSNTP_CA="), variable(&line, "SSNTP_CERT="));
    let line = demo.line_with("export SSNTP_HTTP=");
    let (http, token) = (
        variable(&line, "SSNTP_HTTP="),
        variable(&line, "SSNTP_TOKEN_FILE="),
    );
    move |words| {
        let mut command = ssntp(Path::new("/"), &[&["ctl"], words].concat());
        command
            .env("SSNTP_CONNECT", &connect)
            .env("SSNTP_CA", &ca)
            .env("SSNTP_CERT", &cert)
            .env("SSNTP_HTTP", &http)
            .env("SSNTP_TOKEN_FILE", &token);
        let done = Done::of(command);
        assert_eq!(done.code, Some(0), "{words:?}: {}", done.stderr);
        done.stdout
    }
}

/// The answer that a client with these headers gets at the address of a page.
fn page(url: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn variable(line: &str, name: &str) -> String {
    let value = line.split_once(name).unwrap().1;
    let value = match value.strip_prefix('\'') {
        Some(quoted) => quoted.split('\'').next(),
        None => value.split_whitespace().next(),
    };
    value.unwrap().to_owned()
}

#[test]
fn the_demo_of_several_schedulers_loses_the_leader_and_goes_on() {
    if Command::new("etcd").arg("--version").output().is_err() {
        println!("skipped: there is no etcd on the PATH");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mut demo = demo(&place, &["--servers", "3"]);
    for line in [
        "an etcd answers at 127.0.0.1:",
        "scheduler-3 listens at 127.0.0.1:",
        "2 agents have joined with tokens",
        "workload before runs",
        " leads:",
        "was killed with SIGKILL",
        "workload after runs",
        " leads:",
        "all agents are back, and 2 instances run, each once",
        "all instances were deleted",
        "no process and no file is left",
    ] {
        demo.line_with(line);
    }
    assert_eq!(demo.end(), Some(0), "{}", demo.log());
    nothing_is_left(&place);
}

#[test]
fn a_demo_of_several_schedulers_without_an_etcd_says_what_is_missing() {
    let (place, empty) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // The process that removes the directory needs these programs, and etcd may be in the same directory.
    for program in ["sh", "cat", "seq", "grep", "sed", "rm", "sleep"] {
        let found = std::env::var_os("PATH").unwrap();
        let found = std::env::split_paths(&found).map(|directory| directory.join(program));
        let found = found.into_iter().find(|path| path.exists()).unwrap();
        std::os::unix::fs::symlink(found, empty.path().join(program)).unwrap();
    }
    let mut command = command(&place, &["--servers", "3"]);
    command.env("PATH", empty.path());
    let mut demo = Process::of(command, place.path(), "demo");
    assert_eq!(demo.end(), Some(1), "{}", demo.log());
    assert!(
        demo.log().contains("etcd, which must be on the PATH"),
        "{}",
        demo.log()
    );
    nothing_is_left(&place);
}

/// The process that removes the directory of a demo, once it ignores signals.
fn caretaker(place: &TempDir) -> Pid {
    let is_caretaker = |pid: &Pid| {
        let read = |name: &str| fs::read_to_string(format!("/proc/{}/{name}", pid.as_raw_nonzero()));
        let is_named = read("cmdline").is_ok_and(|line| line.contains("caretaker"));
        let status = read("status").unwrap_or_default();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = ignored.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap());
        is_named && ignored & 1 << (Signal::TERM.as_raw() - 1) != 0
    };
    wait_for(|| {
        let inside = processes_inside(&temporary(place));
        let found = inside.iter().copied().find(is_caretaker);
        found.ok_or(inside)
    })
}

#[test]
fn a_signal_at_any_time_leaves_nothing_behind() {
    for (step, signal) in [
        ("a scheduler listens", Signal::TERM),
        ("have joined with tokens", Signal::INT),
        ("workload batch runs", Signal::HUP),
        ("was evacuated", Signal::TERM),
    ] {
        let place = tempfile::tempdir().unwrap();
        // It is held, because it must not end by itself before the signal comes.
        let mut demo = demo(&place, &["--hold"]);
        demo.line_with(step);
        // A service manager sends the signal to the process that removes the directory as well.
        kill_process(caretaker(&place), signal).unwrap();
        demo.signal(signal);
        let (code, log) = (demo.end(), demo.log());
        let is_interrupted =
            code == Some(128 + signal.as_raw()) && log.contains("interrupted before every step was seen");
        // The rest of the last step may be over before this test gets a processor again.
        let was_last = step == "was evacuated" && code == Some(0);
        assert!(is_interrupted || was_last, "{step}: {code:?} {log}");
        nothing_is_left(&place);
    }
}

#[test]
fn a_demo_that_is_killed_leaves_nothing_behind() {
    for held in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let mut demo = demo(&place, &["--hold"]);
        if held {
            // A workload that has another directory and no open files of the demo.
            let named = temporary(&place).join("workload").display().to_string();
            let quiet = "exec >/dev/null 2>&1; sleep 1000; true";
            commander(&demo)(&["start", "--dir", "/", "--", "sh", "-c", quiet, &named]);
        } else {
            demo.line_with("listens at ");
        }
        demo.signal(Signal::KILL);
        assert_eq!(demo.end(), None, "{}", demo.log());
        until("nothing is left", || {
            let files: Vec<_> = fs::read_dir(temporary(&place)).unwrap().flatten().collect();
            let processes = processes_inside(&temporary(&place));
            let is_clean = files.is_empty() && processes.is_empty();
            is_clean
                .then_some(())
                .ok_or(format!("{files:?} {processes:?}, held: {held}"))
        });
    }
}

#[test]
fn a_demo_fails_if_its_output_is_closed_before_its_last_step() {
    let place = tempfile::tempdir().unwrap();
    let mut command = ssntp(place.path(), &["demo"]);
    command.env("TMPDIR", temporary(&place));
    let log = place.path().join("log");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(end_of(&mut child).code(), Some(1));
    assert_eq!(
        fs::read_to_string(&log).unwrap(),
        "ssntp: the standard output was closed before every step was seen\n"
    );
    nothing_is_left(&place);
}

#[test]
fn a_demo_whose_agent_dies_fails_with_the_reason_and_leaves_nothing_behind() {
    let place = tempfile::tempdir().unwrap();
    let mut demo = demo(&place, &["--hold"]);
    let ready = demo.line_with("have joined with tokens (processes ");
    let pid = ready
        .split("(processes ")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap();
    demo.line_with(" ctl events ");
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    assert_eq!(demo.end(), Some(1), "{}", demo.log());
    assert!(
        demo.log().contains("ssntp: the agent-1 has ended"),
        "{}",
        demo.log()
    );
    nothing_is_left(&place);
}
