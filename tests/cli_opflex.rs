//! `ssntp opflex` as a user meets it.

#![cfg(all(
    feature = "cli",
    feature = "opflex",
    any(feature = "aws-lc-rs", feature = "ring")
))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test may fail"
)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const WEB: &str = "/PolicyUniverse/PolicySpace/shop/GbpEpGroup/web/";

fn opflex(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ssntp"));
    command.current_dir(dir).arg("opflex").args(arguments);
    command
}

fn start(dir: &Path, arguments: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut child = opflex(dir, arguments).stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

fn run(dir: &Path, arguments: &[&str]) -> Output {
    opflex(dir, arguments).output().unwrap()
}

fn line(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    assert!(output.read_line(&mut line).unwrap() > 0, "the output ended");
    line.trim().to_owned()
}

/// Ends it with a signal, which takes two seconds at most.
fn end(mut child: Child, signal: Signal) {
    let begin = Instant::now();
    kill_process(Pid::from_child(&child), signal).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

/// Reads events until a change of an object, and says what it is called now.
fn changed(output: &mut impl BufRead, uri: &str) -> Value {
    loop {
        let event: Value = serde_json::from_str(&line(output)).unwrap();
        let objects = event["objects"].as_array().into_iter().flatten();
        if let Some(change) = objects.into_iter().find(|change| change["uri"] == uri) {
            return change["object"]["properties"][0]["data"].clone();
        }
    }
}

#[test]
fn policy_is_served_watched_changed_and_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let policy = include_str!("../examples/policy.json");
    fs::write(dir.join("policy.json"), policy).unwrap();
    let arguments = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--policy",
        "policy.json",
        "--control",
        "control",
    ];
    let (server, mut output) = start(dir, &arguments);
    let listening = line(&mut output);
    let address = listening.strip_prefix("listening at ").expect("where it listens");

    let once = run(
        dir,
        &["element", "--connect", address, "--resolve", "GbpEpGroup", WEB],
    );
    assert_eq!(once.status.code(), Some(0));
    let text = String::from_utf8(once.stdout).unwrap();
    assert!(
        text.starts_with(&format!("GbpEpGroup {WEB}\n  name = \"web\"\n")),
        "{text}"
    );
    let missing = run(
        dir,
        &["element", "--connect", address, "--resolve", "/missing/x/"],
    );
    assert_eq!(missing.status.code(), Some(1));

    let (element, mut events) = start(
        dir,
        &[
            "element",
            "--connect",
            address,
            "--resolve",
            WEB,
            "--watch",
            "--json",
            "--name",
            "pe2",
        ],
    );
    assert_eq!(changed(&mut events, WEB), "web");
    let object = format!(
        "[{{\"subject\": \"GbpEpGroup\", \"uri\": \"{WEB}\", \"properties\": [{{\"name\": \"name\", \"data\": \"web2\"}}]}}]"
    );
    fs::write(dir.join("change.json"), object).unwrap();
    let put = run(dir, &["policy", "put", "change.json", "--control", "control"]);
    assert_eq!(String::from_utf8(put.stdout).unwrap(), "1 objects changed\n");
    assert_eq!(changed(&mut events, WEB), "web2");
    let dump = run(dir, &["policy", "dump", WEB, "--control", "control"]);
    let dumped: Value = serde_json::from_slice(&dump.stdout).unwrap();
    assert_eq!(dumped[0]["properties"][0]["data"], "web2");

    fs::write(
        dir.join("policy.json"),
        policy.replace("\"data\": \"web\"", "\"data\": \"web3\""),
    )
    .unwrap();
    kill_process(Pid::from_child(&server), Signal::HUP).unwrap();
    assert_eq!(changed(&mut events, WEB), "web3");
    end(element, Signal::INT);
    end(server, Signal::TERM);
    let gone = run(dir, &["policy", "dump", "--control", "control"]);
    assert_eq!(gone.status.code(), Some(1));
}

#[test]
fn wrong_usage_and_failures_have_their_exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("bad.json"), "{}").unwrap();
    let rows: [(&[&str], i32); 7] = [
        (&["serve"], 2),
        (&["serve", "--listen", "127.0.0.1:0", "--roles", "king"], 2),
        (&["serve", "--listen", "127.0.0.1:0", "--peer", "registry"], 2),
        (&["serve", "--listen", "127.0.0.1:0", "--policy", "bad.json"], 1),
        (&["element", "--connect", "127.0.0.1:1", "--resolve", "no-uri"], 2),
        (
            &[
                "element",
                "--connect",
                "127.0.0.1:1",
                "--resolve",
                WEB,
                "--timeout",
                "0.1",
            ],
            1,
        ),
        (&["policy", "dump"], 2),
    ];
    for (arguments, code) in rows {
        let output = run(dir, arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(!text.is_empty());
    }
}
