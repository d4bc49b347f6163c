//! Settings files of daemons, the formats of their log, and traces of other programs.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;
use ssntp_test_support::program::Program;

use super::shell::User;
use crate::cluster::processes::until;
use crate::processes::words;

/// Each daemon with a file in packaging/etc, and its subcommand.
const DAEMONS: [(&str, &[&str]); 6] = [
    ("server", &["server"]),
    ("scheduler", &["scheduler"]),
    ("agent", &["agent"]),
    ("cnci", &["cnci"]),
    ("controller", &["controller"]),
    ("opflex", &["opflex", "serve"]),
];

/// A user with an authority and a certificate for each role, in `certs`.
fn user() -> User {
    let user = User::new();
    user.done(&["cert", "ca", "--dir", "certs"]);
    for (name, role) in [
        ("server", "server"),
        ("scheduler", "scheduler"),
        ("agent", "agent"),
        ("controller", "controller"),
    ] {
        user.done(&["cert", "issue", "--dir", "certs", "--role", role, "--name", name]);
    }
    user.done(&words(
        "cert issue --dir certs --role cnciagent --name cnci --bound",
    ));
    user
}

fn write(user: &User, name: &str, text: &str) {
    user.replace(name, text);
}

fn server_file(user: &User, more: &str) {
    let text = format!("listen: ['127.0.0.1:0']\nca: certs/ca.pem\ncert: certs/server.pem\n{more}");
    write(user, "server.yaml", &text);
}

fn json(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn each_packaged_file_has_every_flag_of_its_daemon_and_is_valid() {
    let user = user();
    for (name, words) in DAEMONS {
        let path = format!("{}/../../packaging/etc/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(path).unwrap();
        let written = user.done(&["config", "example", name]);
        assert!(
            text == written,
            "packaging/etc/{name}.yaml is to be what `ssntp config example {name}` prints:\n{written}"
        );
        let help = user.done(&[words, &["--help"]].concat());
        // Names of flags begin in the seventh column, descriptions in a later one.
        let flags = help.lines().filter_map(|line| line.strip_prefix("      --"));
        // The value of a flag follows a blank, or stands in brackets.
        let flags = flags.filter_map(|flag| flag.split([' ', '[']).next());
        let flags: Vec<_> = flags.filter(|flag| *flag != "config-file").collect();
        assert!(flags.len() > 5, "{flags:?}");
        for flag in flags {
            let key = format!("{flag}:");
            let is_key = |line: &str| line.trim_start_matches("# ").starts_with(&key);
            assert!(text.lines().any(is_key), "{name}: no {flag}");
        }
        let own = text
            .replace("/etc/ssntp", "certs")
            .replace("/var/lib/ssntp", "lib");
        write(&user, "own.yaml", &own);
        assert_eq!(
            user.done(&["config", "check", name, "own.yaml"]),
            "own.yaml: OK\n"
        );
    }
}

#[test]
fn every_error_of_a_file_is_reported_with_line_and_column() {
    let user = user();
    let wrong = "lissten: [':1']\n\
        max_sessions: 1\n\
        max-sessions: many\n\
        filter: specc\n\
        listen:\n\
        - ':0'\n\
        - {a: 1}\n\
        json: maybe\n\
        forward: STATS=controller\n\
        handshake-timeout: [1]\n\
        ca: certs/ca.pem\n\
        cert: certs/agent.pem\n\
        until-stdin-ends: true\n\
        config-file: x\n\
        uuid:\n\
        crl: [one.pem, 'two.pem,three.pem']\n";
    write(&user, "wrong.yaml", wrong);
    let expected = [
        "1:1: unknown key lissten; did you mean listen?",
        "2:1: unknown key max_sessions; did you mean max-sessions?",
        "3:15: max-sessions: \"many\": invalid digit found in string",
        "4:9: filter: \"specc\" is not one of allow-all, spec",
        "7:3: settings files do not support a map or list within another: a key has a value or a list of values",
        "8:7: json: the value must be true or false",
        "10:1: handshake-timeout: one value is expected, not a list",
        "12:1: cert: certs/agent.pem: the role is agent, it must be server or scheduler",
        "13:1: unknown key until-stdin-ends",
        "14:1: unknown key config-file",
        "15:1: uuid: a value is missing; leave the key out for the default",
        "16:16: crl: \"two.pem,three.pem\": each entry of a list is one value, without ','",
    ];
    let output = user.run(&["config", "check", "server", "wrong.yaml"]);
    let output_text = String::from_utf8(output.stdout).unwrap();
    let expected: Vec<_> = expected.iter().map(|line| format!("wrong.yaml:{line}")).collect();
    assert_eq!(output_text.lines().collect::<Vec<_>>(), expected);
    assert_eq!(output.status.code(), Some(1));
    // A daemon prints the first error, and does not start.
    let error = user.fails(&["server", "--config-file", "wrong.yaml"], 2);
    assert!(
        error.starts_with(&format!("ssntp: {}; and 10 more", expected[0])),
        "{error}"
    );
    let error = user.fails(&["server", "--json", "--config-file", "wrong.yaml"], 2);
    let error = json(&error);
    assert!(
        error["error"].as_str().unwrap().starts_with(&*expected[0]),
        "{error}"
    );
    let lines = user.run(&["config", "check", "server", "wrong.yaml", "--json"]);
    let first = json(String::from_utf8(lines.stdout).unwrap().lines().next().unwrap());
    assert_eq!((&first["line"], &first["column"]), (&1.into(), &1.into()));

    for (text, reason) in [
        ("a: 'b\n", "not YAML"),
        ("- a\n", "1:1: expected a map, found a list"),
        ("dev: true\ndev: true\n", "2:1: dev: duplicate key"),
        ("max-sessions: 0\n", "1:15: max-sessions: \"0\": 0 is not in 1.."),
        ("listen: []\n", "1:1: listen: the list is empty"),
        (
            "join: etcd://user:secret@host\n",
            "1:7: join: the value of --join must not hold a name and a password",
        ),
        (&"#".repeat(200_000), "it is longer than 131072 bytes"),
    ] {
        write(&user, "other.yaml", text);
        let output = user.run(&["config", "check", "server", "other.yaml"]);
        let output_text = String::from_utf8(output.stdout).unwrap();
        assert!(
            output_text.starts_with("other.yaml:")
                && output_text.contains(reason)
                && !output_text.contains("secret"),
            "{text:?}: {output_text}"
        );
    }
    let error = user.fails(&["server", "--config-file", "nowhere.yaml"], 2);
    assert!(error.starts_with("ssntp: nowhere.yaml: No such file"), "{error}");
    // --help is answered even if the file is missing.
    user.done(&["server", "--config-file", "nowhere.yaml", "--help"]);
}

/// Each of these files was valid for clap, and the daemon did not start, or started although the check
/// found a fault.
#[test]
fn a_check_finds_the_faults_with_which_the_daemon_does_not_start() {
    let user = user();
    user.done(&["cert", "issue", "--dir", "certs", "--role", "cnciagent"]);
    let cnci = "connect: localhost:1\nca: certs/ca.pem\ntenant: 00000000-0000-4000-8000-000000000000\n\
                ip: 192.0.2.1\n";
    let server = "listen: ['127.0.0.1:0']\nca: certs/ca.pem\ncert: certs/server.pem\n";
    let scheduler = "listen: ['127.0.0.1:0']\nca: certs/ca.pem\ncert: certs/scheduler.pem\n";
    for dir in ["certs", "others"] {
        user.run(&["cert", "ca", "--dir", dir]);
        user.done(&["cert", "issuer", "--dir", dir]);
    }
    let key = "A".repeat(43);
    let everywhere =
        "listen: [':0']\nca: certs/ca.pem\ncert: certs/scheduler.pem\njoin: etcd://localhost:1\n";
    let opflex = "listen: ['127.0.0.1:0']\ntls-cert: certs/server.pem\nadmin: '127.0.0.1:0'\n\
                  admin-ca: none.pem\n";
    let controller = "connect: localhost:1\nca: certs/ca.pem\ncert: certs/controller.pem\nstore: store\n";
    let agent = "connect: localhost:1\nca: certs/ca.pem\ncert: certs/agent.pem\nstate: state\n";
    for (daemon, text, problems) in [
        (
            "agent",
            format!("{agent}images: none\nusers: [agent, nobody-has-it]\nafter-evacuation: ./none\n"),
            &[
                "file:5:1: images: none: ",
                "file:6:1: users: there is no user \"nobody-has-it\"",
                "file:7:1: after-evacuation: ./none: it is not a program",
            ][..],
        ),
        (
            "agent",
            format!("{agent}users: [root]\nafter-evacuation: nothing-in-path\n"),
            &["file:6:1: after-evacuation: nothing-in-path: it is not a program"],
        ),
        (
            "agent",
            format!(
                "join: 'ssntp://localhost:1/?ca={key}&id=x&secret={key}'\nnetwork: none\nunderlay: eth1\n"
            ),
            &[
                "file:1:1: join: --join needs --state, where the certificate is kept",
                "file:2:1: network: --underlay needs --network tenants",
            ],
        ),
        (
            "agent",
            "connect: localhost:1\ncert: certs/agent.pem\n".into(),
            &["file: ca: --ca is needed: "],
        ),
        (
            "server",
            "dev: true\nlisten: [':0']\n".into(),
            &["file:2:1: listen: "],
        ),
        (
            "cnci",
            format!("{cnci}cert: certs/cnciagent.pem\n"),
            &["file: uuid: it is needed"],
        ),
        (
            "scheduler",
            everywhere.into(),
            &["file: advertise: --advertise is needed: "],
        ),
        (
            "server",
            everywhere.into(),
            &["file: advertise: --advertise is needed: "],
        ),
        (
            "server",
            format!("{server}admin: '127.0.0.1:0'\nadmin-ca: none.pem\n"),
            &["file:5:1: admin-ca: none.pem: "],
        ),
        (
            "server",
            format!("{server}application: 0x01=x\n"),
            &["file:4:1: application: --application: "],
        ),
        (
            "server",
            format!("{server}join: etcd://localhost:1\njoin-ca: certs/ca.pem\njoin-cert: none.pem\n"),
            &["file:6:1: join-cert: none.pem: "],
        ),
        (
            "controller",
            format!("{controller}http: '127.0.0.1:0'\nhttp-ca: none.pem\n"),
            &["file:6:1: http-ca: none.pem: "],
        ),
        (
            "opflex",
            "listen: [':0']\njoin: etcd://localhost:1\n".into(),
            &["file: advertise: --advertise is needed: "],
        ),
        (
            "opflex",
            format!("{opflex}tls-ca: certs/ca.pem\n"),
            &["file:4:1: admin-ca: none.pem: "],
        ),
        (
            "scheduler",
            format!("{scheduler}issuer: certs/issuer.pem\nnode-lifetime: 10s\n"),
            &[
                "file:4:1: issuer: --issuer needs --state, where the tokens are kept, or --join",
                "file:5:16: node-lifetime: \"10s\": a certificate lasts a minute or more",
            ],
        ),
        (
            "scheduler",
            format!("{scheduler}state: state\nissuer: others/issuer.pem\n"),
            &["file:5:1: issuer: others/issuer.pem: the issuer CN="],
        ),
        (
            "server",
            format!("{server}log: warning,ssntp::audit=info\nconfig: none.yaml\n"),
            &[
                "file:4:1: log: a part of the filter of the log is ignored, because it is neither LEVEL nor \
                 TARGET=LEVEL: warning",
                "file:5:1: config: none.yaml: ",
            ],
        ),
        // Without an authority for clients, the pages do not use theirs.
        ("opflex", opflex.into(), &[]),
        (
            "scheduler",
            format!("{scheduler}state: state\nissuer: none.pem\nno-join: true\n"),
            &[],
        ),
        ("server", server.replace("server.pem", "scheduler.pem"), &[]),
    ] {
        write(&user, "file", &text);
        let output = user.run(&["config", "check", daemon, "file"]);
        let found = String::from_utf8(output.stdout).unwrap();
        let command = match daemon {
            "opflex" => &["opflex", "serve"][..],
            _ => &[daemon],
        };
        let command = [command, &["--config-file", "file"]].concat();
        match problems {
            [] => {
                assert_eq!(found, "file: OK\n");
                let running = user.start(&command);
                running.line("listening at ");
                running.end_by(Signal::TERM);
            }
            problems => {
                assert_eq!(found.lines().count(), problems.len(), "{found}");
                let all = found.lines().zip(problems);
                all.for_each(|(line, begin)| assert!(line.starts_with(begin), "{line}"));
                let output = user.run(&command);
                assert_ne!(output.status.code(), Some(0), "{daemon}: {text}");
            }
        }
    }
}

#[test]
fn a_reloaded_configuration_must_fit_into_the_frames_of_the_running_server() {
    let user = user();
    let configuration =
        |length: usize| format!("configure:\n  # {}\n  scheduler: {{}}\n", "x".repeat(length));
    write(&user, "cluster.yaml", &configuration(10));
    server_file(&user, "config: cluster.yaml\nmax-payload: 4096\n");
    let server = user.start(&["server", "--config-file", "server.yaml"]);
    server.line("listening at ");
    write(&user, "cluster.yaml", &configuration(5000));
    // This setting needs a restart.
    server_file(&user, "config: cluster.yaml\nmax-payload: 100000\n");
    server.signal(Signal::HUP);
    let line = server.error_with("cluster.yaml: its ");
    assert!(line.contains("are more than --max-payload, 4096"), "{line}");
}

#[test]
fn an_empty_variable_counts_as_not_set() {
    let user = user();
    write(
        &user,
        "agent.yaml",
        "connect: one:1\nca: file.pem\ncert: file.pem\n",
    );
    let mut command = user.command(&["config", "show", "agent", "agent.yaml", "--json"]);
    let names = [
        "CERT",
        "KEY",
        "CRL",
        "CRL_STRICT",
        "CONNECT",
        "CONTEXT",
        "MTU",
        "NAME_SERVER",
        "LOG_FORMAT",
    ];
    command.envs(names.map(|name| (format!("SSNTP_{name}"), "")));
    let output = command.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &*errors), (Some(0), ""));
    let shown = json(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(shown["cert"]["origin"], "file:3:1");
    assert!(shown.get("crl").is_none(), "{shown}");
}

#[test]
fn a_flag_overrides_the_environment_and_both_override_the_file() {
    let user = user();
    let secret = "A".repeat(43);
    let token = format!("join: 'ssntp://localhost:1/?ca={secret}&id=x&secret={secret}'\n");
    let text = "connect: [one:1, two:2]\nca: file.pem\ncert: file.pem\nmem: 1\ndisk: 2\nemulation: true\njson: false\n";
    write(&user, "agent.yaml", &format!("{text}{token}"));
    let mut command = user.command(&["config", "show", "agent", "agent.yaml", "--json", "--"]);
    command.args(["--mem", "7"]).env("SSNTP_CERT", "environment.pem");
    let output = command.output().unwrap();
    let shown = json(&String::from_utf8(output.stdout).unwrap());
    for (key, values, origin) in [
        ("connect", &["one:1", "two:2"][..], "file:1:1"),
        ("ca", &["file.pem"], "file:2:1"),
        ("cert", &["environment.pem"], "environment"),
        ("mem", &["7"], "flag"),
        ("disk", &["2"], "file:5:1"),
        ("emulation", &["true"], "file:6:1"),
        ("json", &["false"], "default"),
        ("join", &["(set)"], "file:8:1"),
        ("interval", &["30"], "default"),
    ] {
        let setting = &shown[key];
        assert_eq!(setting["origin"], origin, "{key}: {setting}");
        assert_eq!(setting["values"], serde_json::json!(values), "{key}");
    }
    let people = user.done(&["config", "show", "agent", "agent.yaml"]);
    assert!(
        people
            .lines()
            .any(|line| line.split_whitespace().eq(["ca", "file.pem", "file:2:1"]))
            && !people.contains(&secret),
        "{people}"
    );
}

#[test]
fn settings_of_a_file_conflict_as_flags_do_and_errors_name_the_file() {
    let user = user();
    server_file(&user, "");
    let error = user.fails(&["server", "--dev", "--config-file", "server.yaml"], 2);
    assert!(
        error.starts_with("ssntp: server.yaml:2:1: ca: the argument '--dev' cannot be used with"),
        "{error}"
    );
    write(&user, "part.yaml", "listen: ':0'\nca: certs/ca.pem\n");
    let error = user.fails(&["server", "--config-file", "part.yaml"], 2);
    assert!(
        error.starts_with("ssntp: part.yaml: ") && error.contains("--cert <FILE>"),
        "{error}"
    );
    // A flag can supply a setting that the file lacks, and the file one that the flags lack.
    write(
        &user,
        "agent.yaml",
        "state: here\nca: certs/ca.pem\ncert: certs/agent.pem\n",
    );
    for flags in [&["--volumes", "there"][..], &[]] {
        let words = [&["config", "check", "agent", "agent.yaml", "--"], flags].concat();
        assert_eq!(user.done(&words), "agent.yaml: OK\n");
    }
    write(&user, "agent.yaml", "volumes: there\n");
    let output = user.run(&["config", "check", "agent", "agent.yaml"]);
    let output_text = String::from_utf8(output.stdout).unwrap();
    assert!(output_text.contains("--state <DIR>"), "{output_text}");
    // Settings of the file come before a bare `--`.
    let output = user.run(&["config", "check", "server", "server.yaml", "--", "--json", "--"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "server.yaml: OK\n");
    // A configuration that is too long for a frame is refused at the start.
    let fixture = "/crates/payload/tests/fixtures/payloads/CONFIGURE_and_CONNECTED.yaml";
    let fixture =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../").to_owned() + fixture).unwrap();
    write(
        &user,
        "cluster.yaml",
        &format!("{fixture}# {}\n", "x".repeat(5000)),
    );
    server_file(&user, "config: cluster.yaml\nmax-payload: 4096\n");
    let error = user.fails(&["server", "--config-file", "server.yaml"], 1);
    assert!(
        error.contains("cluster.yaml: its ") && error.contains("--max-payload"),
        "{error}"
    );
    server_file(&user, "");
    // Errors of flags have the same text with and without a file.
    let error = user.fails(
        &["server", "--config-file", "server.yaml", "--max-sessions", "x"],
        2,
    );
    assert!(
        error.starts_with("error: invalid value 'x' for '--max-sessions"),
        "{error}"
    );
}

#[test]
fn a_hang_up_reloads_rules_and_filter_and_logs_the_settings_that_need_a_restart() {
    let user = user();
    server_file(&user, "max-sessions: 10\n");
    let server = user.start(&["server", "--config-file", "server.yaml"]);
    let at = server.line("listening at ");
    let with = |words: &[&str], name: &str| {
        let cert = format!("certs/{name}.pem");
        let flags = ["--connect", &at, "--ca", "certs/ca.pem", "--cert", &cert];
        [words, &flags]
            .concat()
            .iter()
            .map(|word| (*word).to_owned())
            .collect::<Vec<_>>()
    };
    let done = |words: Vec<String>| user.done(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let listen = with(&["listen"], "controller");
    let listener = user.start(&listen.iter().map(String::as_str).collect::<Vec<_>>());
    listener.error_line("connected to ");
    let receivers = || json(&done(with(&["send", "STATS", "--json"], "agent")))["receivers"].clone();
    assert_eq!(receivers(), 0);

    server_file(&user, "max-sessions: many\nforward: STATS=controller\n");
    server.signal(Signal::HUP);
    server.error_with("SIGHUP: not reloaded: server.yaml:4:15: max-sessions: \"many\"");
    assert_eq!(receivers(), 0);

    server_file(&user, "max-sessions: 20\nforward: STATS=controller\n");
    server.signal(Signal::HUP);
    server.error_with("server.yaml: changed settings that need a restart: max-sessions");
    assert_eq!(receivers(), 1);

    // What a reload cannot change waits for a restart, and the rest applies: the line above is not there again.
    server_file(
        &user,
        "forward: [STATS=controller, Scaled=controller]\napplication: 0xe0=Scaled\n",
    );
    write(&user, "cluster.yaml", "configure: {}\n");
    server.signal(Signal::HUP);
    server.error_with("changed settings that need a restart: application, forward, max-sessions");
    server_file(&user, "forward: STATS=controller\nconfig: cluster.yaml\n");
    server.signal(Signal::HUP);
    server.error_with("config was not set, and is cluster.yaml from now on");
    server_file(&user, "forward: STATS=controller\n");
    server.signal(Signal::HUP);
    server.error_with("changed settings that need a restart: config, max-sessions");

    // A changed file is read without a signal, and its filter applies.
    server_file(&user, "forward: STATS=controller\nfilter: spec\n");
    let refused = with(&["send", "STATS"], "controller");
    let refused = || user.run(&refused.iter().map(String::as_str).collect::<Vec<_>>());
    until("the filter refuses", || {
        let output = refused();
        let error = String::from_utf8_lossy(&output.stderr);
        let is_refused = output.status.code() == Some(1) && error.contains("STATS");
        is_refused.then_some(()).ok_or(format!("{output:?}"))
    });
}

#[test]
fn each_line_of_the_standard_error_is_an_object_in_json() {
    let user = user();
    server_file(&user, "log-format: json\n");
    let mut command = user.command(&["server", "--config-file", "server.yaml"]);
    command.env("RUST_LOG", "info");
    let server = Program::of(command);
    server.line("listening at ");
    server_file(&user, "log-format: text\nlisten: x\n");
    server.signal(Signal::HUP);
    let line = json(&server.error_with("not reloaded"));
    assert_eq!(
        (&line["level"], &line["thread"]),
        (&"warn".into(), &"main".into())
    );
    assert!(
        line["message"]
            .as_str()
            .unwrap()
            .contains("server.yaml:5:1: listen: duplicate key"),
        "{line}"
    );
    // The final failure is an object as well, and so are the notes before it.
    let mut command = user.command(&["send", "STATS", "--connect", "127.0.0.1:1", "--timeout", "0.3"]);
    command.args(["--ca", "certs/ca.pem", "--cert", "certs/agent.pem"]);
    let output = command.env("SSNTP_LOG_FORMAT", "json").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<_> = errors.lines().map(json).collect();
    let last = lines.last().unwrap();
    assert!(
        last["message"].as_str().unwrap().starts_with("cannot connect"),
        "{errors}"
    );
    assert_eq!(last["level"], "error");
}

#[test]
fn the_journal_gets_priorities_in_place_of_times() {
    let user = user();
    server_file(&user, "");
    let log = File::create(user.path("log")).unwrap();
    let journal = |of: &fs::Metadata| format!("{}:{}", of.dev(), of.ino());
    let is = journal(&log.metadata().unwrap());
    let other = journal(&fs::metadata(user.path("certs")).unwrap());
    for (stream, begin) in [(is, "<6>ssntp::server: "), (other, "[20")] {
        log.set_len(0).unwrap();
        let mut command = user.command(&["server", "--config-file", "server.yaml", "--until-stdin-ends"]);
        command.env("RUST_LOG", "info").env("JOURNAL_STREAM", stream);
        command.stderr(Stdio::from(
            File::options().append(true).open(user.path("log")).unwrap(),
        ));
        assert!(command.status().unwrap().success());
        let text = fs::read_to_string(user.path("log")).unwrap();
        assert!(
            !text.is_empty() && text.lines().all(|line| line.starts_with(begin)),
            "{text}"
        );
    }
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[test]
fn a_frame_carries_the_trace_context_of_its_environment() {
    let user = User::new();
    let server = user.start(&["server", "--dev", "--listen", "127.0.0.1:0"]);
    server.line("listening at ");
    let listener = user.start(&["listen", "--json", "--trace"]);
    listener.error_line("connected to ");
    let sent = |words: &[&str], parent: Option<&str>| {
        let mut command = user.command(&[&["send", "STATS", "--wait-for", "controller"], words].concat());
        parent.into_iter().for_each(|value| {
            command.env("TRACEPARENT", value);
        });
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let output_text = String::from_utf8(output.stdout).unwrap();
        (
            output_text,
            String::from_utf8(output.stderr).unwrap(),
            json(&listener.line(""))["trace"].clone(),
        )
    };
    let (error, _, trace) = sent(&["--traceparent", PARENT], None);
    assert_eq!(trace["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(trace["span_id"], "b7ad6b7169203331");
    // The number of receivers is still reported.
    assert!(error.contains("went to 1 session"), "{error}");
    let (_, _, trace) = sent(&["--trace", "job-17"], Some(PARENT));
    assert_eq!(trace["label"], format!("job-17 traceparent={PARENT}"));
    assert_eq!(trace["span_id"], "b7ad6b7169203331");
    let (_, errors, trace) = sent(&[], Some("00-wrong"));
    assert!(errors.contains("ssntp: TRACEPARENT is ignored: "), "{errors}");
    assert!(trace.get("trace_id").is_none(), "{trace}");
    let upper = PARENT.to_uppercase();
    for wrong in [
        &*upper,
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "",
    ] {
        let error = user.fails(&["send", "STATS", "--traceparent", wrong], 2);
        assert!(error.contains("--traceparent"), "{error}");
    }
}

#[test]
fn a_trace_context_passes_the_scheduler_with_its_command_and_returns_in_the_report() {
    let user = user();
    let start = |words: &[&str]| user.start(words);
    let scheduler = start(&words(
        "scheduler --listen 127.0.0.1:0 --ca certs/ca.pem --cert certs/scheduler.pem \
 --allow-unbound",
    ));
    let at = scheduler.line("listening at ");
    let with = |words: &[&str], name: &str| {
        let mut command = user.command(words);
        let cert = format!("certs/{name}.pem");
        command.args(["--connect", &at, "--ca", "certs/ca.pem", "--cert", &cert]);
        command
    };
    let events = Program::of(with(&["ctl", "events", "--json"], "controller"));
    let agent = Program::of(with(&["agent", "--users", "agent"], "agent"));
    let node = agent.line("agent ");
    // Wait until the scheduler knows the node and the controller is connected.
    loop {
        if json(&events.line(""))["node"] == *node {
            break;
        }
    }
    let restore = format!("restore:\n  workload_agent_uuid: {node}\n");
    let sent = with(
        &["send", "Restore", &restore, "--traceparent", PARENT],
        "controller",
    )
    .output();
    assert!(sent.unwrap().status.success());
    let traced = loop {
        let event = json(&events.line(""));
        if event["event"] == "traced" {
            break event;
        }
    };
    assert_eq!(traced["trace_id"], "0af7651916cd43dd8448eb211c80319c", "{traced}");
    assert_eq!(traced["span_id"], "b7ad6b7169203331");
    assert!(traced["nodes"].as_array().unwrap().len() >= 3, "{traced}");
    // A command of `ssntp ctl` belongs to the trace of its caller.
    let mut restore = with(&["ctl", "restore", &node], "controller");
    restore.env("TRACEPARENT", PARENT.replace("0af7", "1bf8"));
    assert!(restore.output().unwrap().status.success());
    loop {
        let event = json(&events.line(""));
        if event["trace_id"] == "1bf8651916cd43dd8448eb211c80319c" {
            break;
        }
    }
}

/// At the log level of the packages a refused client is logged. After a reload with another level each
/// client is logged.
#[test]
fn the_log_names_refused_clients_and_a_reload_makes_it_an_audit_log() {
    let user = user();
    user.done(&["cert", "ca", "--dir", "others"]);
    user.done(&[
        "cert", "issue", "--dir", "others", "--role", "agent", "--name", "agent",
    ]);
    server_file(&user, "filter: spec\n");
    let server = user.start(&["server", "--config-file", "server.yaml"]);
    let at = server.line("listening at ");
    let send = |cert: &str| {
        user.run(&words(&format!(
            "send STATS --connect {at} --ca certs/ca.pem --cert {cert}"
        )))
    };
    assert_eq!(send("others/agent.pem").status.code(), Some(1));
    let refused = server.error_with("no TLS: ");
    assert!(refused.contains("WARN  ssntp::server] 127.0.0.1:"), "{refused}");

    server_file(&user, "log: warn,ssntp::audit=info\n");
    server.signal(Signal::HUP);
    let weaker = server.error_with("filter was spec, and is not set from now on");
    assert!(weaker.contains("may let in what was refused before"), "{weaker}");
    server.error_with("log was not set, and is warn,ssntp::audit=info from now on");
    assert_eq!(send("certs/agent.pem").status.code(), Some(0));
    for event in ["connected: ", "ended: "] {
        let line = server.error_with(&format!("INFO  ssntp::audit] {event}"));
        assert!(
            line.contains("(agent) at 127.0.0.1:") && line.contains("serial "),
            "{line}"
        );
        assert!(line.contains("CN=agent"), "{line}");
    }
    // Lines of the audit log have no limit, unlike other lines about a peer.
    for _ in 0..8 {
        assert_eq!(send("others/agent.pem").status.code(), Some(1));
    }
    for _ in 0..8 {
        server.error_with("INFO  ssntp::audit] no TLS: ");
    }
}

#[test]
fn a_server_whose_output_is_not_read_reads_its_files_again() {
    let user = user();
    server_file(&user, "show: true\n");
    let mut server = user
        .command(&["server", "--config-file", "server.yaml"])
        .spawn()
        .unwrap();
    let mut output = BufReader::new(server.stdout.take().unwrap());
    let server = Program::around(server);
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let at = line.trim().trim_start_matches("listening at ");
    // A pipe does not hold so many bytes, so the server waits for its reader from here on.
    let send = format!("send STATS --payload - --connect {at} --ca certs/ca.pem --cert certs/agent.pem");
    Program::with_input(user.command(&words(&send)), &[b'x'; 1 << 20]).succeed();
    line.clear();
    output.read_line(&mut line).unwrap();
    assert!(line.contains(" COMMAND STATS (1048576 bytes) from "), "{line}");
    server.signal(Signal::HUP);
    server.error_with("read its files again");
    server.end_by(Signal::TERM);
}

/// Without a warning each of these settings would seem to work.
#[test]
fn a_setting_that_is_probably_a_mistake_causes_a_warning() {
    let user = user();
    server_file(&user, "");
    let server = user.start(&["server", "--config-file", "server.yaml"]);
    let at = server.line("listening at ");
    let agent = format!("agent --connect {at} --ca certs/ca.pem --cert certs/agent.pem");
    let agent = user.start(&words(&agent));
    agent.error_with("is a server, not a scheduler: it starts no instances here");

    let open = user.start(&words("opflex serve --listen 0.0.0.0:0"));
    open.error_with("there is no TLS: every host that reaches this server gets its policy");
}
