//! `ssntp opflex` as a user meets it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
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
    let policy = include_str!("../../../../../examples/policy.json");
    fs::write(dir.join("policy.json"), policy).unwrap();
    fs::write(
        dir.join("model.yaml"),
        include_str!("../../../../../examples/model.yaml"),
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
    assert_eq!(String::from_utf8(put.stdout).unwrap(), "1 object changed\n");
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

/// What a program that is to fail says.
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
    let show = |what: &'static str| lines(dir, &[&[what][..], &control].concat());

    let (element, mut events) = start(
        dir,
        &[
            "element",
            "--connect",
            address,
            "--name",
            "pe1",
            "--declare",
            "endpoint.json",
            "--report",
            "report.json",
            "--watch",
            "--json",
        ],
    );
    let mut told = Vec::new();
    while told.len() < 2 {
        let event: Value = serde_json::from_str(&line(&mut events)).unwrap();
        if event["event"] == "location" {
            assert_eq!(event["location"], "rack 7");
            told.push(event);
        } else if event["event"] == "proxies" {
            assert_eq!(event["mac"], "192.0.2.3");
            told.push(event);
        }
    }
    let began = Instant::now();
    let report = loop {
        if let [report] = &show("reports")[..] {
            break report.clone();
        }
        assert!(began.elapsed() < Duration::from_secs(30));
    };
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
    let found = |arguments: &[&str]| {
        let element = ["element", "--connect", address, "--name", "pe2", "--json"];
        lines(dir, &[&element, arguments].concat())
    };
    let uri = "/EprL3Universe/EprL3Ep/10.0.0.1/";
    assert_eq!(found(&["--resolve-endpoint", "EprL3Ep", uri])[0]["uri"], uri);
    let by_address = found(&["--resolve-endpoint-ident", "EprL3Ep", "/t/", "10.0.0.1"]);
    assert_eq!(by_address[0]["uri"], uri);
    // One that only declares ends when that is answered.
    assert_eq!(found(&["--declare", "endpoint.json"]), [Value::Null; 0]);
    assert_eq!(show("endpoints")[0]["element"], "pe2");
    end(element, Signal::TERM);
    end(server, Signal::TERM);
}

#[test]
fn policy_is_found_by_name_reloaded_and_gone_as_the_flags_say() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(
        dir.join("policy.json"),
        include_str!("../../../../../examples/policy.json"),
    )
    .unwrap();
    fs::write(
        dir.join("endpoint.json"),
        r#"[{"subject": "EprL3Ep", "uri": "/EprL3Ep/1/"}]"#,
    )
    .unwrap();
    let (server, mut output) = start(
        dir,
        &[
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--control",
            "control",
            "--persist",
            "kept.json",
            "--on-leave",
            "remove",
            "--lenient",
        ],
    );
    let listening = line(&mut output);
    let address = listening.strip_prefix("listening at ").unwrap();
    let reload = run(dir, &["policy", "reload", "policy.json", "--control", "control"]);
    assert_eq!(String::from_utf8(reload.stdout).unwrap(), "5 objects changed\n");
    assert!(fs::read_to_string(dir.join("kept.json")).unwrap().contains(WEB));
    let element = ["element", "--connect", address, "--domain", "elsewhere", "--json"];
    let by_name = [
        "--resolve-ident",
        "GbpEpGroup",
        "/PolicyUniverse/PolicySpace/shop/",
        "web",
    ];
    let found = lines(dir, &[&element[..], &by_name].concat());
    assert_eq!(found[0]["uri"], WEB);
    // An endpoint does not outlive the connection here.
    lines(dir, &[&element[..], &["--declare", "endpoint.json"]].concat());
    let began = Instant::now();
    while !lines(dir, &["endpoints", "--control", "control", "--json"]).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(30));
    }
    end(server, Signal::TERM);
}

#[test]
fn what_the_model_does_not_allow_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let model = "classes:\n  Group: {properties: {encap: u64}}\n";
    let object =
        r#"[{"subject": "Group", "uri": "/Group/g/", "properties": [{"name": "encap", "data": 7}]}]"#;
    fs::write(dir.join("model.yaml"), model).unwrap();
    fs::write(dir.join("good.json"), object).unwrap();
    fs::write(dir.join("bad.json"), object.replace('7', "\"seven\"")).unwrap();
    let serve = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--model",
        "model.yaml",
        "--control",
        "control",
    ];
    let why = failure(dir, &[&serve[..], &["--policy", "bad.json"]].concat());
    assert!(why.contains("\"encap\" of /Group/g/ is not an integer"), "{why}");

    let (server, mut output) = start(dir, &[&serve[..], &["--policy", "good.json"]].concat());
    let listening = line(&mut output);
    let address = listening.strip_prefix("listening at ").unwrap();
    let why = failure(dir, &["policy", "put", "bad.json", "--control", "control"]);
    assert!(why.contains("\"encap\" of /Group/g/ is not an integer"), "{why}");
    let why = failure(dir, &["element", "--connect", address, "--declare", "bad.json"]);
    assert!(
        why.contains("endpoint_declare") && why.contains("\"encap\" of /Group/g/"),
        "{why}"
    );
    end(server, Signal::TERM);
    fs::write(dir.join("model.yaml"), "classes:\n  Group: {under: [Spaec]}\n").unwrap();
    let why = failure(dir, &serve);
    assert!(why.contains("class Group names the unknown class Spaec"), "{why}");
}

#[test]
fn what_policies_refer_to_is_printed_and_why_a_server_is_not_reached() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let policy = r#"[
        {"subject": "Group", "uri": "/Group/g/", "properties":
            [{"name": "contract", "data": {"subject": "Contract", "reference_uri": "/Contract/c/"}}]},
        {"subject": "Contract", "uri": "/Contract/c/"}, {}]"#;
    fs::write(dir.join("policy.json"), policy).unwrap();
    let (server, mut output) = start(
        dir,
        &["serve", "--listen", "127.0.0.1:0", "--policy", "policy.json"],
    );
    let listening = line(&mut output);
    let address = listening.strip_prefix("listening at ").unwrap();
    let element = ["element", "--connect", address, "--resolve", "/Group/g/"];
    let printed = |arguments: &[&str]| String::from_utf8(run(dir, arguments).stdout).unwrap();
    assert!(!printed(&element).contains("Contract /Contract/c/"));
    let followed = printed(&[&element[..], &["--follow"]].concat());
    assert!(followed.contains("Contract /Contract/c/"), "{followed}");
    end(server, Signal::TERM);
    let gone = [
        "element",
        "--connect",
        address,
        "--resolve",
        "/Group/g/",
        "--timeout",
        "0.5",
    ];
    let why = failure(dir, &gone);
    assert!(
        why.contains("not connected: ") && why.contains("refused"),
        "{why}"
    );
}

#[test]
fn an_ordinary_certificate_and_a_key_under_a_passphrase_serve_and_connect() {
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
        include_str!("../../../../../examples/policy.json"),
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
fn who_is_refused_stands_in_the_log_with_address_and_reason() {
    let dir = tempfile::tempdir().unwrap();
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    let mut command = opflex(dir.path(), &serve);
    let mut server = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
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
    let (mut element, mut events) = start(dir.path(), &element);
    warning("the domain is \"default\" here, and \"elsewhere\" there");
    let reason = loop {
        let event: Value = serde_json::from_str(&line(&mut events)).unwrap();
        if let Some(reason) = event["reason"].as_str() {
            break reason.to_owned();
        }
    };
    assert!(reason.contains("and \"elsewhere\" there"), "{reason}");
    element.kill().unwrap();
    element.wait().unwrap();

    let mut raw = TcpStream::connect(address).unwrap();
    raw.write_all(b"{\"id\":1,\"method\":\"policy_resolve\",\"params\":[]}\0")
        .unwrap();
    warning("closed: policy_resolve before the identity");
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
    let rows: [(&[&str], i32); 16] = [
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
        (&["serve", "--listen", "127.0.0.1:0", "--lenient", "--strict"], 2),
        (&["serve", "--listen", "127.0.0.1:0", "--only-peers"], 2),
        (
            &[
                "element",
                "--connect",
                "127.0.0.1:1",
                "--resolve-ident",
                "a",
                "b",
                "c",
            ],
            2,
        ),
        (
            &[
                "element",
                "--connect",
                "127.0.0.1:1",
                "--resolve-ident",
                "a",
                "/b/",
            ],
            2,
        ),
        (&["sessions", "--control", "nowhere"], 1),
    ];
    for (arguments, code) in rows {
        let output = run(dir, arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(!text.is_empty());
    }
}

/// Waits until a program has written something to a file.
fn until_written(path: &Path, what: &str) {
    let began = Instant::now();
    while !fs::read_to_string(path).unwrap_or_default().contains(what) {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{:?} is not in {:?}",
            what,
            fs::read_to_string(path)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_policy_that_changes_in_its_files_is_read_again_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("policy")).unwrap();
    let write = |file: &str, text: &str| {
        fs::write(dir.join(file), text).unwrap();
        fs::rename(dir.join(file), dir.join("policy").join(file)).unwrap();
    };
    let object = |uri: &str, name: &str| {
        format!(
            "[{{\"subject\": \"Group\", \"uri\": \"{uri}\", \"properties\": [{{\"name\": \"name\", \"data\": {name}}}]}}]"
        )
    };
    write("a.json", &object("/a/", "\"a\""));
    write(
        "b.yaml",
        "- {subject: Group, uri: /b/, properties: [{name: name, data: b}]}",
    );
    write("notes.txt", "no policy");
    write(".b.yaml.swp", "no policy");
    fs::write(
        dir.join("model.yaml"),
        "classes: {Group: {properties: {name: string}}}",
    )
    .unwrap();
    let (server, mut output) = {
        let errors = fs::File::create(dir.join("errors")).unwrap();
        let arguments = [
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--policy",
            "policy",
            "--model",
            "model.yaml",
            "--control",
            "control",
        ];
        let mut child = opflex(dir, &arguments)
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        (child, output)
    };
    let listening = line(&mut output);
    let address = listening.strip_prefix("listening at ").unwrap();
    let (element, mut events) = start(
        dir,
        &[
            "element",
            "--connect",
            address,
            "--resolve",
            "Group",
            "/a/",
            "--watch",
            "--json",
        ],
    );
    assert_eq!(changed(&mut events, "/a/"), "a");
    write("a.json", &object("/a/", "\"a2\""));
    assert_eq!(changed(&mut events, "/a/"), "a2");
    // What is there is what all files say, or what they said last.
    write("b.yaml", "- {subject: Group, uri: /b/,");
    until_written(&dir.join("errors"), "policy/b.yaml: YAML: ");
    write("a.json", &object("/a/", "\"a3\""));
    write(
        "b.yaml",
        "- {subject: Group, uri: /b/, properties: [{name: name, data: 7}]}",
    );
    until_written(
        &dir.join("errors"),
        "policy/b.yaml: property \"name\" of /b/ is not a string",
    );
    let status = run(dir, &["policy", "status", "--control", "control"]);
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.ends_with(", 2 objects\n"), "{status}");
    write(
        "b.yaml",
        "- {subject: Group, uri: /b/, properties: [{name: name, data: b2}]}",
    );
    assert_eq!(changed(&mut events, "/a/"), "a3");
    fs::remove_file(dir.join("policy/a.json")).unwrap();
    assert_eq!(changed(&mut events, "/a/"), Value::Null);
    end(element, Signal::INT);
    end(server, Signal::TERM);
}

#[test]
fn a_policy_that_was_put_outlives_reloads_and_files_that_are_only_touched() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let object = |name: &str| {
        format!(
            "[{{\"subject\": \"Group\", \"uri\": \"/a/\", \"properties\": [{{\"name\": \"name\", \"data\": \"{name}\"}}]}}]"
        )
    };
    let write = |name: &str, text: &str| {
        fs::write(dir.join("new"), text).unwrap();
        fs::rename(dir.join("new"), dir.join(name)).unwrap();
    };
    let shown = || {
        let dump = run(dir, &["policy", "dump", "--control", "control"]);
        let dumped: Value = serde_json::from_slice(&dump.stdout).unwrap();
        dumped[0]["properties"][0]["data"].clone()
    };
    let serve = || {
        let errors = fs::File::create(dir.join("errors")).unwrap();
        let mut arguments = vec!["serve", "--listen", "127.0.0.1:0", "--policy", "policy.json"];
        arguments.extend(["--persist", "kept.json", "--control", "control"]);
        let mut command = opflex(dir, &arguments);
        command.env("RUST_LOG", "info");
        let mut child = command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
        line(&mut BufReader::new(child.stdout.take().unwrap()));
        child
    };
    let hang_up = |server: &Child| kill_process(Pid::from_child(server), Signal::HUP).unwrap();

    write("policy.json", &object("filed"));
    write("put.json", &object("put"));
    let server = serve();
    assert_eq!(shown(), "filed");
    run(dir, &["policy", "put", "put.json", "--control", "control"]);
    hang_up(&server);
    until_written(&dir.join("errors"), "its contents are the same");
    fs::write(dir.join("errors"), "").unwrap();
    // The same contents in another file, and then a fault, which hinders nothing else.
    write("policy.json", &object("filed"));
    until_written(&dir.join("errors"), "its contents are the same");
    assert_eq!(shown(), "put");
    write("policy.json", "[{");
    fs::write(dir.join("errors"), "").unwrap();
    hang_up(&server);
    until_written(&dir.join("errors"), "read its files again");
    until_written(&dir.join("errors"), "the policy stays as it was");
    assert_eq!(shown(), "put");
    end(server, Signal::TERM);

    // Edited while the server was down: the kept policy is in force, and that is said. A file
    // system counts time in steps of some milliseconds, and the server wrote its file just now.
    write("policy.json", &object("edited"));
    let kept = fs::metadata(dir.join("kept.json")).unwrap().modified().unwrap();
    let edited = fs::File::options().write(true).open(dir.join("policy.json"));
    edited
        .unwrap()
        .set_modified(kept + Duration::from_secs(1))
        .unwrap();
    let server = serve();
    until_written(
        &dir.join("errors"),
        "policy.json is newer than the policy kept in kept.json",
    );
    assert_eq!(shown(), "put");
    write("policy.json", &object("again"));
    until_written(
        &dir.join("errors"),
        "replaces all policy, also what was changed otherwise",
    );
    until_written(&dir.join("errors"), "1 objects changed");
    assert_eq!(shown(), "again");
    end(server, Signal::TERM);
}

#[test]
fn a_change_for_another_revision_of_the_policy_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("one.json"), r#"[{"subject": "Group", "uri": "/a/"}]"#).unwrap();
    fs::write(dir.join("two.json"), r#"[{"subject": "Group", "uri": "/b/"}]"#).unwrap();
    let serve = || {
        let (server, mut output) = start(
            dir,
            &[
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--control",
                "control",
                "--persist",
                "kept.json",
            ],
        );
        line(&mut output);
        server
    };
    let server = serve();
    let policy = |arguments: &[&str]| {
        let all = [&["policy"][..], arguments, &["--control", "control", "--json"]].concat();
        lines(dir, &all).remove(0)
    };
    let at = |revision: &Value| revision.to_string();
    let first = policy(&["status"]);
    assert_eq!(first["objects"], 0);
    let put = policy(&["put", "one.json", "--if-revision", &at(&first["revision"])]);
    assert_eq!(put["changed"], 1);
    assert_eq!(policy(&["status"])["revision"], put["revision"]);
    for stale in [
        &["put", "two.json"][..],
        &["reload", "two.json"],
        &["delete", "/a/"],
    ] {
        let arguments = [
            &["policy"][..],
            stale,
            &["--control", "control", "--if-revision", &at(&first["revision"])],
        ];
        let error = failure(dir, &arguments.concat());
        assert!(error.contains("policy has changed: its revision is "), "{error}");
    }
    assert_eq!(policy(&["status"])["objects"], 1);
    // Nothing changes, and so does the revision.
    let same = policy(&["put", "one.json", "--if-revision", &at(&put["revision"])]);
    assert_eq!(
        (&same["changed"], &same["revision"]),
        (&0.into(), &put["revision"])
    );
    end(server, Signal::TERM);
    // The revisions of another process are others.
    let server = serve();
    let again = policy(&["status"]);
    assert_eq!(again["objects"], 1);
    assert!(
        again["revision"].as_u64() > put["revision"].as_u64(),
        "{again} {put}"
    );
    let deleted = policy(&["delete", "/a/", "--if-revision", &at(&again["revision"])]);
    assert_eq!(deleted["changed"], 1);
    end(server, Signal::TERM);
}

#[test]
fn an_element_tells_what_its_flags_say_and_serves_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(
        dir.join("start.json"),
        r#"[{"subject": "Group", "uri": "/a/", "properties": [{"name": "name", "data": "old"}]}]"#,
    )
    .unwrap();
    fs::write(
        dir.join("policy.json"),
        r#"[{"subject": "Group", "uri": "/a/", "properties": [{"name": "name", "data": "new"}]}]"#,
    )
    .unwrap();
    // One that says what it is asked is enough of a server.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (element, _output) = start(
        dir,
        &[
            "element",
            "--connect",
            &address,
            "--name",
            "pe1",
            "--location",
            "rack 7",
            "--mac",
            "0A:0b:0c:0d:0e:0f",
            "--require-proxies",
            "--start-policy",
            "start.json",
            "--resolve",
            "Group",
            "/a/",
            "--serve",
            "feed",
            "--inspector",
            "inspect",
        ],
    );
    let (mut connection, _) = listener.accept().unwrap();
    connection
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let mut said = Vec::new();
    let identity = loop {
        let mut bytes = [0; 4096];
        let read = connection.read(&mut bytes).unwrap();
        said.extend_from_slice(&bytes[..read]);
        let messages = said.split(|byte| *byte == 0);
        let messages = messages.filter_map(|text| serde_json::from_slice::<Value>(text).ok());
        if let Some(identity) = messages
            .into_iter()
            .find(|message| message["method"] == "send_identity")
        {
            break identity["params"][0].clone();
        }
    };
    assert_eq!(identity["my_location"], "rack 7");
    assert_eq!(identity["data"]["mac"], "0a:0b:0c:0d:0e:0f");
    drop((connection, listener));

    // Nobody has answered: what there was before is what there is.
    let feed = UnixStream::connect(dir.join("feed")).unwrap();
    feed.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut feed = BufReader::new(feed);
    assert_eq!(changed(&mut feed, "/a/"), "old");
    assert!(dir.join("inspect").exists());

    // A server that names proxies is one for it.
    let serve = |more: &[&str]| {
        let arguments = [
            &[
                "serve",
                "--listen",
                &address,
                "--policy",
                "policy.json",
                "--control",
                "control",
            ][..],
            more,
        ];
        let (server, mut output) = start(dir, &arguments.concat());
        line(&mut output);
        server
    };
    let server = serve(&["--proxies", "192.0.2.1,192.0.2.2,192.0.2.3"]);
    assert_eq!(changed(&mut feed, "/a/"), "new");
    let agents = lines(dir, &["agents", "--control", "control", "--json"]);
    assert_eq!(
        (&agents[0]["name"], &agents[0]["connected"]),
        (&"pe1".into(), &1.into())
    );
    let table = run(dir, &["agents", "--control", "control"]).stdout;
    assert!(String::from_utf8(table).unwrap().contains("bytes_received"));
    end(element, Signal::TERM);
    end(server, Signal::TERM);
    assert!(!dir.join("feed").exists() && !dir.join("inspect").exists());
    for bad in ["0a:0b:0c:0d:0e", "0a:0b:0c:0d:0e:0g", ""] {
        let refused = run(dir, &["element", "--connect", &address, "--mac", bad]);
        assert_eq!(refused.status.code(), Some(2), "{bad}");
    }
}

#[test]
fn a_model_checks_what_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let model = r#"{"classes": {"GbpGroup": {"properties": {"name": "string", "id": "u64"}}}}"#;
    fs::write(dir.join("model.json"), model).unwrap();
    fs::write(
        dir.join("bad.json"),
        r#"[{"subject": "GbpGroup", "uri": "/g/", "properties": [{"name": "id", "data": "seven"}]}]"#,
    )
    .unwrap();
    let arguments = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--model",
        "model.json",
        "--policy",
        "bad.json",
    ];
    let refused = failure(dir, &arguments);
    assert!(
        refused.contains("bad.json: property \"id\" of /g/ is not an integer"),
        "{refused}"
    );
}
