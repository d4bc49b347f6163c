//! `ssntp scheduler`: its first line, signals, errors and exit codes.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use ssntp::Role;
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest};
use tempfile::TempDir;

/// A directory with ca.pem and scheduler.pem.
fn certificates() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(&AuthorityRequest::default()).unwrap();
    authority.save(dir.path(), false).unwrap();
    let issued = authority
        .issue(&CertificateRequest::new(Role::SCHEDULER))
        .unwrap();
    issued.save(dir.path().join("scheduler.pem")).unwrap();
    dir
}

fn scheduler(dir: &Path, arguments: &[&str]) -> Child {
    crate::program()
        .current_dir(dir)
        .args(["scheduler", "--ca", "ca.pem"])
        .args(arguments)
        .args(["--cert", "scheduler.pem"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The error of a scheduler that exits with this code.
fn refused(dir: &Path, arguments: &[&str], code: i32) -> String {
    let output = scheduler(dir, arguments).wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(output.stdout, b"");
    text
}

#[test]
fn a_scheduler_prints_its_addresses_and_ends_in_order_at_a_signal() {
    let dir = certificates();
    for signal in [Signal::INT, Signal::TERM] {
        let arguments = [
            "--placement",
            "opportunistic",
            "--listen",
            "127.0.0.1:0",
            "unix:sock",
            "--controllers",
            "master",
            "--config",
            "cluster.yaml",
        ];
        let mut child = scheduler(dir.path(), &arguments);
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert!(line.starts_with("listening at 127.0.0.1:"), "{line}");
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "the scheduler prints only one line");
    }
}

#[test]
fn an_unusable_configuration_is_reported_in_one_line() {
    let dir = certificates();
    fs::write(
        dir.path().join("bad.yaml"),
        "configure:\n  controller:\n    ciao_port: 0\n",
    )
    .unwrap();
    let arguments = ["--listen", "127.0.0.1:0", "--config", "bad.yaml"];
    let text = refused(dir.path(), &arguments, 1);
    assert!(
        text.contains("bad.yaml") && text.contains("ciao_port") && text.contains("line 3"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
    let arguments = ["--listen", "127.0.0.1:0", "--config", "missing/cluster.yaml"];
    refused(dir.path(), &arguments, 1);
}

#[test]
fn wrong_usage_exits_with_2() {
    let dir = certificates();
    refused(dir.path(), &[], 2);
    for (flag, value) in [
        ("--placement", "best"),
        ("--controllers", "none"),
        ("--listen", ""),
    ] {
        refused(dir.path(), &["--listen", "127.0.0.1:0", flag, value], 2);
    }
}
