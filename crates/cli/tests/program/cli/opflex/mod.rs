//! `ssntp opflex`: its commands, files, errors and exit codes.

mod element;
mod files;
mod joined;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::processes::until;
use crate::processes::{Program, ended_in_order, words};

const WEB: &str = "/PolicyUniverse/PolicySpace/shop/GbpEpGroup/web/";

fn opflex(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = crate::program();
    command.current_dir(dir).arg("opflex").args(arguments);
    command
}

fn start(dir: &Path, arguments: &[&str]) -> (Program, BufReader<ChildStdout>) {
    let mut child = Program::start(&mut opflex(dir, arguments));
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

/// Ends a program with a signal; see [`ended_in_order`].
fn end(mut child: Program, signal: Signal) -> bool {
    let signalled_at = Instant::now();
    child.signal(signal);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    ended_in_order(signalled_at)
}

/// Reads events until an object changes, and returns its present name.
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
fn a_policy_is_served_watched_changed_and_reloaded() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let policy = include_str!("../../../../../../examples/policy.json");
    fs::write(dir.join("policy.json"), policy).unwrap();
    fs::write(
        dir.join("model.yaml"),
        include_str!("../../../../../../examples/model.yaml"),
    )
    .unwrap();
    let arguments = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--policy",
        "policy.json",
        "--model",
        "model.yaml",
        "--control",
        "control",
    ];
    let (server, mut output) = start(dir, &arguments);
    let listening = line(&mut output);
    let address = listening
        .strip_prefix("listening at ")
        .expect("the address of the server");

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
    let mut put = opflex(dir, &["policy", "put", "-", "--control", "control"]);
    let change = fs::File::open(dir.join("change.json")).unwrap();
    let put = put.stdin(change).output().unwrap();
    assert_eq!(String::from_utf8(put.stdout).unwrap(), "1 object changed\n");
    assert_eq!(changed(&mut events, WEB), "web2");
    let dump = run(dir, &["policy", "dump", WEB, "--control", "control"]);
    let dumped: Value = serde_json::from_slice(&dump.stdout).unwrap();
    assert_eq!(dumped[0]["properties"][0]["data"], "web2");
    let bare = run(
        dir,
        &[
            "policy",
            "dump",
            WEB.trim_end_matches('/'),
            "--control",
            "control",
        ],
    );
    assert_eq!(
        bare.stdout, dump.stdout,
        "the last slash of the topmost URI does not matter"
    );

    fs::write(
        dir.join("policy.json"),
        policy.replace("\"data\": \"web\"", "\"data\": \"web3\""),
    )
    .unwrap();
    server.signal(Signal::HUP);
    assert_eq!(changed(&mut events, WEB), "web3");
    end(element, Signal::INT);
    end(server, Signal::TERM);
    let failed_dump = run(dir, &["policy", "dump", "--control", "control"]);
    assert_eq!(failed_dump.status.code(), Some(1));
}

/// The lines of a program that is to succeed, as JSON.
fn lines(dir: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = run(dir, arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The standard error of a command, which has to fail.
fn failure(dir: &Path, arguments: &[&str]) -> String {
    let output = run(dir, arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
    text
}

#[test]
fn endpoints_reports_and_sessions_of_a_running_server_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let endpoint = r#"[{"subject": "EprL3Ep", "uri": "/EprL3Universe/EprL3Ep/10.0.0.1/",
        "properties": [{"name": "context", "data": "/t/"}, {"name": "ip", "data": "10.0.0.1"}]}]"#;
    let report =
        r#"[{"subject": "Counter", "uri": "/Counter/1/", "properties": [{"name": "packets", "data": 7}]}]"#;
    fs::write(dir.join("endpoint.json"), endpoint).unwrap();
    fs::write(dir.join("report.json"), report).unwrap();
    let (server, mut output) = start(
        dir,
        &[
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--control",
            "control",
            "--json",
            "--roll-up",
            "10x3",
            "--element-location",
            "pe1=rack 7",
            "--proxies",
            "192.0.2.1,192.0.2.2,192.0.2.3",
        ],
    );
    let listening: Value = serde_json::from_str(&line(&mut output)).unwrap();
    let address = listening["listening"][0].as_str().unwrap();
    let control = ["--control", "control", "--json"];
    let show = |subcommand: &'static str| lines(dir, &[&[subcommand][..], &control].concat());

    let (element, mut events) = start(
        dir,
        &words(&format!(
            "element --connect {address} --name pe1 --declare endpoint.json --report \
 report.json --watch --json"
        )),
    );
    let mut received = Vec::new();
    while received.len() < 2 {
        let event: Value = serde_json::from_str(&line(&mut events)).unwrap();
        if event["event"] == "location" {
            assert_eq!(event["location"], "rack 7");
            received.push(event);
        } else if event["event"] == "proxies" {
            assert_eq!(event["mac"], "192.0.2.3");
            received.push(event);
        }
    }
    let mut report = Value::Null;
    until("the report has arrived", || match &show("reports")[..] {
        [one] => {
            report = one.clone();
            Ok(())
        }
        other => Err(format!("{other:?}")),
    });
    assert_eq!(report["element"], "pe1");
    assert_eq!(report["object"]["uri"], "/Counter/1/");
    assert_eq!(report["numbers"]["packets"][0]["interval"], 10);
    let text = run(dir, &["reports", "--control", "control"]).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("packets over 10 s: 7.0 to 7.0 in 1 samples"),
        "{text}"
    );
    let endpoints = show("endpoints");
    assert_eq!(endpoints[0]["element"], "pe1");
    let text = run(dir, &["endpoints", "/EprL3Universe/", "--control", "control"]).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("EprL3Ep /EprL3Universe/EprL3Ep/10.0.0.1/ (pe1, for "),
        "{text}"
    );
    let sessions = show("sessions");
    assert_eq!(
        (&sessions[0]["name"], &sessions[0]["location"]),
        (&"pe1".into(), &"rack 7".into())
    );
    let text = run(dir, &["sessions", "--control", "control"]).stdout;
    assert!(String::from_utf8(text).unwrap().contains("rack 7"));

    // Another element finds the endpoint by its URI and by its address.
    let resolved = |arguments: &[&str]| {
        let element = ["element", "--connect", address, "--name", "pe2", "--json"];
        lines(dir, &[&element, arguments].concat())
    };
    let uri = "/EprL3Universe/EprL3Ep/10.0.0.1/";
    assert_eq!(resolved(&["--resolve-endpoint", "EprL3Ep", uri])[0]["uri"], uri);
    let by_address = resolved(&["--resolve-endpoint-ident", "EprL3Ep", "/t/", "10.0.0.1"]);
    assert_eq!(by_address[0]["uri"], uri);
    // An element that only declares ends when its declaration is answered.
    assert_eq!(resolved(&["--declare", "endpoint.json"]), [Value::Null; 0]);
    assert_eq!(show("endpoints")[0]["element"], "pe2");
    end(element, Signal::TERM);
    end(server, Signal::TERM);
}

#[test]
fn servers_and_elements_use_ordinary_certificates_and_encrypted_keys() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let pki = |name: &str| {
        format!(
            "{}/../../tests/fixtures/pki/plain/{name}",
            env!("CARGO_MANIFEST_DIR")
        )
    };
    fs::write(
        dir.join("policy.json"),
        include_str!("../../../../../../examples/policy.json"),
    )
    .unwrap();
    fs::write(dir.join("passphrase"), "secret\n").unwrap();
    let (cert, key, ca) = (pki("v1.crt"), pki("v1.sealed.key"), pki("ca.pem"));
    let own = [
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        "--tls-passphrase-file",
        "passphrase",
    ];
    let serve = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--policy",
        "policy.json",
        "--tls-ca",
        &ca,
    ];
    let (server, mut output) = start(dir, &[&serve[..], &own].concat());
    let listening = line(&mut output);
    let address = listening.strip_prefix("listening at ").unwrap();
    let element = [
        "element",
        "--connect",
        address,
        "--resolve",
        WEB,
        "--tls",
        "--tls-ca",
        &ca,
    ];
    let once = run(dir, &[&element[..], &own, &["--tls-any-name"]].concat());
    assert!(once.status.success(), "{once:?}");
    end(server, Signal::TERM);
}

#[test]
fn a_refused_client_is_logged_with_its_address_and_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    let mut command = opflex(dir.path(), &serve);
    let mut server = Program::start(command.stderr(Stdio::piped()));
    let listening = line(&mut BufReader::new(server.stdout.take().unwrap()));
    let address = listening.strip_prefix("listening at ").unwrap();
    let mut log = BufReader::new(server.stderr.take().unwrap());
    let mut warning = |part: &str| loop {
        let text = line(&mut log);
        if text.contains(part) {
            assert!(text.contains("WARN") && text.contains("127.0.0.1:"), "{text}");
            return;
        }
    };

    let element = [
        "element",
        "--connect",
        address,
        "--json",
        "--watch",
        "--domain",
        "elsewhere",
    ];
    let (element, mut events) = start(dir.path(), &element);
    warning("the domain is \"default\" here, and \"elsewhere\" there");
    let reason = loop {
        let event: Value = serde_json::from_str(&line(&mut events)).unwrap();
        if let Some(reason) = event["reason"].as_str() {
            break reason.to_owned();
        }
    };
    assert!(reason.contains("and \"elsewhere\" there"), "{reason}");
    element.kill();

    let mut raw = TcpStream::connect(address).unwrap();
    raw.write_all(b"{\"id\":1,\"method\":\"policy_resolve\",\"params\":[]}\0")
        .unwrap();
    warning("closed: the peer sent policy_resolve before its identity");
    raw = TcpStream::connect(address).unwrap();
    raw.write_all(b"GET / HTTP/1.1\r\n\r\n\0").unwrap();
    warning("ended: protocol error");
    end(server, Signal::TERM);
}

#[test]
fn wrong_usage_and_failures_have_their_exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("bad.json"), "{}").unwrap();
    let rows: [(&[&str], i32); 15] = [
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
        (&["reports"], 2),
        (&["serve", "--listen", "127.0.0.1:0", "--on-leave", "grace"], 2),
        (&["serve", "--listen", "127.0.0.1:0", "--roll-up", "10"], 2),
        (&["serve", "--listen", "127.0.0.1:0", "--proxies", "192.0.2.1"], 2),
        (&["serve", "--listen", "127.0.0.1:0", "--only-peers"], 2),
        (&words("element --connect 127.0.0.1:1 --resolve-ident a b c"), 2),
        (&words("element --connect 127.0.0.1:1 --resolve-ident a /b/"), 2),
        (&["sessions", "--control", "nowhere"], 1),
    ];
    for (arguments, code) in rows {
        let output = run(dir, arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(!text.is_empty());
    }
}
