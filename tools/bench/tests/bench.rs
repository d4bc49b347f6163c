//! The program: its cases, its exit codes and its JSON. Figures are not tested.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test may fail, and has time limits"
)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The program `ssntp`, whose servers are measured. Another package makes it, so it is built
/// here if it is missing or older than its sources. At the root, so that it is the program of
/// a plain `cargo build`.
static SSNTP: LazyLock<PathBuf> = LazyLock::new(|| {
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--locked", "--bin", "ssntp"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success(), "cannot build ssntp");
    Path::new(env!("CARGO_BIN_EXE_ssntp-bench")).with_file_name("ssntp")
});

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ssntp-bench"))
        .args(arguments)
        .env("PATH", "")
        .output()
        .unwrap()
}

fn listed(arguments: &[&str]) -> Vec<String> {
    let output = bench(&[&["--list"], arguments].concat());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn cases_are_named_and_chosen_by_name_or_by_group() {
    let all = listed(&[]);
    for name in [
        "floor/256",
        "throughput/8-1/4096",
        "throughput/1-1000/256",
        "throughput/1000-1/256",
        "latency/half",
        "handshakes/full",
        "memory/500",
        "linked/1-8/256",
        "linked/order/10000000",
    ] {
        assert!(all.iter().any(|case| case == name), "{name} in {all:?}");
    }
    let compared = listed(&["--peers=nats-server", "--only", "throughput/100-1"]);
    assert_eq!(compared, ["throughput/100-1/256"]);
    let some = listed(&["--only", "latency,memory", "--sessions", "7"]);
    assert_eq!(some, ["latency/1000", "latency/half", "memory/7"]);
}

#[test]
fn every_name_of_the_list_can_be_chosen_with_and_without_peers() {
    let all = listed(&[]);
    let chosen = all.join(",");
    for more in [&[][..], &["--peers"], &["--earlier", "ssntp"]] {
        assert_eq!(listed(&[&["--only", &chosen], more].concat()), all, "{more:?}");
        for name in listed(more) {
            assert_eq!(listed(&["--only", &name]), [name]);
        }
    }
}

#[test]
fn a_case_that_does_not_exist_is_wrong_usage() {
    let output = bench(&["--only", "nothing"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("--only nothing"), "{error}");
}

#[test]
fn a_comparison_without_peers_fails_and_names_them() {
    let output = bench(&["--peers"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("nats-server") && error.contains("mosquitto"),
        "{error}"
    );
    let output = bench(&["--peers=mosquitto"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        !error.contains("nats-server") && error.contains("mosquitto"),
        "{error}"
    );
}

fn objects(arguments: &[&str]) -> Vec<Value> {
    let program = SSNTP.to_str().unwrap();
    let output = bench(&[&["--json", "--program", program], arguments].concat());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_crowd_that_sends_is_measured_with_a_bystander_and_one_that_receives_is_not() {
    let cases = "throughput/1-100,throughput/100-1";
    let found = objects(&["--seconds", "0.05", "--only", cases]);
    assert_eq!(found.len(), 2);
    for object in &found {
        for key in ["frames_per_second", "frames_lost", "receivers_cut", "senders_cut"] {
            assert!(object[key].is_number(), "{key} in {object}");
        }
    }
    assert_eq!(found[0]["case"], "throughput/1-100/256");
    assert!(found[0]["bystander_lost"].is_null(), "{}", found[0]);
    assert_eq!(found[1]["case"], "throughput/100-1/256");
    for key in ["bystander_lost", "bystander_p50_us", "bystander_p99_us"] {
        assert!(found[1][key].is_number(), "{key} in {}", found[1]);
    }
}

#[test]
fn two_linked_servers_are_measured_beside_one() {
    let cases = "linked/1-1,linked/latency,linked/stuck";
    let found = objects(&["--seconds", "0.05", "--only", cases]);
    let named = |object: &Value, key: &str| assert!(object[key].is_number(), "{key} in {object}");
    let [throughput, latency, stuck] = &found[..] else {
        panic!("{found:?}")
    };
    for key in ["frames_per_second", "one_server_frames_per_second"] {
        named(throughput, key);
    }
    for key in ["p99_us", "one_server_p99_us"] {
        named(latency, key);
    }
    for key in ["frames_per_second", "frames_per_second_before"] {
        named(stuck, key);
    }
}

#[test]
fn latency_at_half_is_measured_at_one_rate_for_all_systems() {
    let program = SSNTP.to_str().unwrap();
    // Long enough for a frame to arrive within it on a busy machine.
    let case = ["--seconds", "0.5", "--only", "latency/half"];
    let found = objects(&[&case[..], &["--earlier", program]].concat());
    let systems: Vec<_> = found.iter().map(|object| &object["system"]).collect();
    assert_eq!(systems, ["ssntp", "earlier"]);
    let [own, other] = [0, 1].map(|n| found[n]["aimed_at_per_second"].as_f64().unwrap());
    assert!(own > 0.0 && own == other, "{own} and {other}");
}

#[test]
fn a_case_without_a_server_is_measured_once_in_a_comparison() {
    let program = SSNTP.to_str().unwrap();
    let case = ["--seconds", "0.05", "--only", "floor/256"];
    let found = objects(&[&case[..], &["--earlier", program]].concat());
    let systems: Vec<_> = found.iter().map(|object| &object["system"]).collect();
    assert_eq!(systems, ["ssntp"]);
}

#[test]
fn a_program_that_cannot_be_started_is_an_error() {
    for flag in ["--program", "--server-program"] {
        let output = bench(&["--only", "handshakes/full", flag, "/nowhere/ssntp"]);
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("cannot start the server"), "{error}");
    }
}

#[test]
fn a_missing_program_is_an_error_that_says_how_to_build_it() {
    // A copy whose directory does not have ssntp.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let alone = directory.path().join("ssntp-bench");
    std::fs::hard_link(env!("CARGO_BIN_EXE_ssntp-bench"), &alone).unwrap();
    let output = Command::new(alone)
        .args(["--only", "handshakes/full"])
        .env("PATH", "")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("cargo build --release") && error.contains("--program"),
        "{error}"
    );
}

#[test]
fn each_case_is_one_json_object_with_the_median_and_every_run() {
    let cases = ["handshakes/full", "latency/1000"];
    let found = objects(&["--runs", "2", "--seconds", "0.05", "--only", &cases.join(",")]);
    assert_eq!(found.len(), 2, "{found:?}");
    for (object, case, key) in [
        (&found[0], cases[1], "p99_us"),
        (&found[1], cases[0], "sessions_per_second"),
    ] {
        assert_eq!(object["case"], case);
        assert_eq!(object["system"], "ssntp");
        assert_eq!(object["runs"], 2);
        assert!(object[key].as_f64().unwrap() > 0.0, "{object}");
        assert_eq!(object["each"][key].as_array().unwrap().len(), 2);
    }
    assert_eq!(found[0]["frames_lost"], 0.0);
}

#[test]
fn a_measurement_that_takes_too_long_is_given_up_and_named() {
    let program = SSNTP.to_str().unwrap();
    let cases = "handshakes/full,floor/256";
    let arguments = [
        "--program",
        program,
        "--seconds",
        "0.5",
        "--limit",
        "0.1",
        "--runs",
        "2",
        "--only",
        cases,
    ];
    let output = bench(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    let given_up = "handshakes/full, ssntp: not done after 0.1 s";
    assert_eq!(errors.matches(given_up).count(), 1, "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().any(|line| line.starts_with("floor/256")), "{text}");
}

#[test]
fn an_interrupt_keeps_the_cases_that_are_done() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ssntp-bench"))
        .args([
            "--json",
            "--program",
            SSNTP.to_str().unwrap(),
            "--seconds",
            "0.05",
            "--runs",
            "2",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let first: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!((&first["case"], &first["runs"]), (&"floor/0".into(), &2.into()));
    for key in ["processor", "flags", "kernel", "load_before"] {
        assert!(!first["machine"][key].is_null(), "{key} in {first}");
    }
    assert!(first["used_by_others"].is_number(), "{first}");
    let pid = Pid::from_child(&program);
    kill_process(pid, Signal::INT).unwrap();
    for line in lines {
        let object: Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert!(object["case"].is_string(), "{object}");
    }
    assert!(!program.wait().unwrap().success());
}
