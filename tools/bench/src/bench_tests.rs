//! `ssntp bench` as a program: its cases, its exit codes and its JSON. What it
//! measures is no matter of tests.
#![cfg(all(feature = "cli", any(feature = "aws-lc-rs", feature = "ring")))]

use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ssntp"))
        .arg("bench")
        .args(arguments)
        .env("PATH", "")
        .output()
        .unwrap()
}

#[test]
fn cases_are_named_and_chosen_by_name_or_by_group() {
    let all = bench(&["--list"]);
    assert_eq!(all.status.code(), Some(0));
    let all = String::from_utf8(all.stdout).unwrap();
    for name in [
        "floor/256",
        "throughput/8-1/4096",
        "throughput/1-1000/256",
        "throughput/1000-1/256",
        "latency/half",
        "handshakes/full",
        "memory/500",
    ] {
        assert!(all.lines().any(|line| line == name), "{name} in {all}");
    }
    let compared = bench(&["--list", "--peers=nats-server", "--only", "throughput/100-1"]);
    assert_eq!(compared.stdout, b"throughput/100-1/256\n");
    let some = bench(&["--list", "--only", "latency,memory", "--sessions", "7"]);
    assert_eq!(some.stdout, b"latency/1000\nlatency/half\nmemory/7\n");
}

#[test]
fn a_case_that_does_not_exist_is_wrong_usage() {
    let output = bench(&["--only", "nothing"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("--only nothing")
    );
}

#[test]
fn a_comparison_without_peers_fails_and_names_them() {
    let output = bench(&["--peers"]);
    assert_eq!(output.status.code(), Some(1));
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(why.contains("nats-server") && why.contains("mosquitto"), "{why}");
    let output = bench(&["--peers=mosquitto"]);
    assert_eq!(output.status.code(), Some(1));
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(!why.contains("nats-server") && why.contains("mosquitto"), "{why}");
}

fn objects(arguments: &[&str]) -> Vec<Value> {
    let output = bench(arguments);
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
    let found = objects(&["--json", "--seconds", "0.05", "--only", cases]);
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
fn latency_at_half_is_measured_at_one_rate_for_all_systems() {
    let program = env!("CARGO_BIN_EXE_ssntp");
    // Long enough that something arrives within it on a busy machine.
    let case = ["--json", "--seconds", "0.5", "--only", "latency/half"];
    let found = objects(&[&case[..], &["--earlier", program]].concat());
    let systems: Vec<_> = found.iter().map(|object| &object["system"]).collect();
    assert_eq!(systems, ["ssntp", "earlier"]);
    let [own, other] = [0, 1].map(|n| found[n]["aimed_at_per_second"].as_f64().unwrap());
    assert!(own > 0.0 && own == other, "{own} and {other}");
}

#[test]
fn another_program_can_be_measured_in_the_place_of_this_one() {
    let output = bench(&["--only", "handshakes/full", "--server-program", "/nowhere/ssntp"]);
    assert_eq!(output.status.code(), Some(1));
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(why.contains("cannot start the server"), "{why}");
}

#[test]
fn each_case_is_one_json_object_with_the_median_and_every_run() {
    let cases = ["handshakes/full", "latency/1000"];
    let output = bench(&[
        "--json",
        "--runs",
        "2",
        "--seconds",
        "0.05",
        "--only",
        &cases.join(","),
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{:?}",
        String::from_utf8(output.stderr)
    );
    let found: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(found.len(), 2, "{text}");
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
