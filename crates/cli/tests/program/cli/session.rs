//! `ssntp server`, `send` and `listen`: lines, exit codes, signals.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;
use ssntp::client::{Client, ClientConfig};
use ssntp::pki::{Identity, Trust};
use ssntp_test_support::port::HeldPort;
use ssntp_test_support::program::Program;

use crate::processes::ended_in_order;

use super::place::{Place, command, connect};

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap()
}

#[test]
fn a_server_prints_one_line_and_ends_at_a_signal() {
    let place = Place::new();
    for signal in [Signal::TERM, Signal::INT] {
        let (server, _) = place.server("");
        server.signal(signal);
        let ended = server.ended();
        assert_eq!((ended.code, ended.out.len(), ended.err.len()), (Some(0), 0, 0));
    }
}

#[test]
fn a_server_that_requires_bound_certificates_refuses_other_certificates() {
    let place = Place::new();
    let uuid = uuid::Uuid::new_v4();
    place.succeed(&format!(
        "cert issue --dir . --role agent --name bound --uuid {uuid}"
    ));
    let (server, at) = place.server("--require-bound --sessions-per-certificate 1");
    let line = place.send(&at, "", b"").fail(1);
    assert!(line.contains("ConnectionAborted"), "{line}");
    // The client takes its UUID from the certificate.
    let send = "--type COMMAND --operand STATS";
    place.succeed(&format!("send {} {send}", connect(&at, "bound")));
    let other = format!(
        "send {} {send} --uuid {}",
        connect(&at, "bound"),
        uuid::Uuid::new_v4()
    );
    place.fail(&other, 1);
    server.signal(Signal::TERM);
    server.succeed();
}

#[test]
fn a_listener_prints_each_frame_and_ends_after_its_count() {
    let place = Place::new();
    let (server, at) = place.server("");
    let text = place.listener(&at, "--count 2");
    let json_lines = place.listener(&at, "--count 4 --json");
    std::fs::write(place.path("stats.yaml"), "load: 7\n").unwrap();
    place.send(&at, "--count 3 --payload stats.yaml", b"").succeed();
    place.send(&at, "--payload -", b"\xff\x00").succeed();
    let text = text.succeed();
    let [first, payload, second, _] = &text[..] else {
        panic!("{text:?}");
    };
    // Only frames that ask for their number of receivers have a trace, which names the sender.
    let [time, description] = first
        .split_once(' ')
        .map(|(time, description)| [time, description])
        .unwrap();
    assert!(time.ends_with('Z') && time.matches(':').count() == 2, "{first}");
    assert!(
        description.starts_with("COMMAND STATS (8 bytes) from "),
        "{first}"
    );
    assert!(description.ends_with(" (agent)"), "{first}");
    assert!(second.ends_with(" COMMAND STATS (8 bytes)"), "{second}");
    assert_eq!(payload, "  load: 7");
    let frames: Vec<_> = json_lines.succeed().iter().map(|line| json(line)).collect();
    assert_eq!(frames.len(), 4);
    for frame in &frames[..3] {
        assert_eq!(
            (&frame["type"], &frame["operand"]),
            (&"COMMAND".into(), &"STATS".into())
        );
        assert_eq!(
            (&frame["length"], &frame["payload"]),
            (&8.into(), &"load: 7\n".into())
        );
    }
    assert_eq!(frames[3]["payload_hex"], "ff00");
    server.signal(Signal::TERM);
    server.succeed();
}

#[test]
fn frames_of_an_application_pass_if_their_operand_is_registered() {
    let place = Place::new();
    let own = "--application EVENT/0x80=Scaled --application 0x81=QUERY:request";
    let (_server, at) = place.server(&format!("{own} --forward EVENT/0x80=controller"));
    let listener = place.listener(&at, &format!("{own} --count 1 --json"));
    let send = |operand: &str, more: &str| {
        let (kind, _) = operand.split_once('/').unwrap();
        let to = connect(&at, "agent");
        let line = format!("send {to} --type {kind} --operand {operand} --payload - {more}");
        place.with_input(&line, b"\x00\xff")
    };
    send("EVENT/0x80", own).succeed();
    let frame = json(&listener.succeed()[0]);
    assert_eq!(
        (&frame["type_number"], &frame["operand_number"]),
        (&3.into(), &128.into())
    );
    assert_eq!(frame["payload_hex"], "00ff");

    // Refused: an operand that the sender or the server does not know, and an operand of requests.
    send("EVENT/0x80", "").fail(2);
    let refused = send("EVENT/0x90", "--application EVENT/0x90=Other").fail(1);
    assert!(refused.contains("does not know EVENT/0x90"), "{refused}");
    send("COMMAND/0x81", own).fail(2);
    for wrong in [
        "0x7f=X",
        "0x80=two words",
        "EVENT/128=X",
        "EVENT=X",
        "0x80=STATS",
        "ERROR/0x80=X:request",
    ] {
        let mut server = command(
            place.0.path(),
            "server --listen 127.0.0.1:0 --ca ca.pem --cert server.pem",
        );
        let ended = server.args(["--application", wrong]).output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{wrong}");
    }
}

#[test]
fn a_trace_has_the_nodes_from_sender_to_receiver() {
    let place = Place::new();
    let (_server, at) = place.server("");
    let traced = place.listener(&at, "--count 1 --json --trace");
    let text = place.listener(&at, "--count 1 --trace");
    let plain = place.listener(&at, "--count 1 --json");
    place.send(&at, "--trace job-7", b"").succeed();
    let frame = json(&traced.succeed()[0]);
    assert_eq!(frame["trace"]["label"], "job-7");
    let nodes = frame["trace"]["nodes"].as_array().unwrap();
    let roles: Vec<_> = nodes
        .iter()
        .map(|node| node["roles"][0].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["agent", "server", "controller"]);
    assert!(text.succeed()[1].starts_with("  trace \"job-7\""));
    assert_eq!(json(&plain.succeed()[0]).get("trace"), None);
}

#[test]
fn a_unix_socket_carries_sessions_and_is_removed_with_its_server() {
    let place = Place::new();
    let (server, _) = place.server("--listen unix:s.sock");
    let listener = place.listener("unix:s.sock", "--count 1");
    place.send("unix:s.sock", "", b"").succeed();
    assert!(listener.succeed()[0].contains(" COMMAND STATS (0 bytes) from "));
    let signalled_at = Instant::now();
    server.signal(Signal::TERM);
    server.succeed();
    assert!(!place.path("s.sock").exists() || !ended_in_order(signalled_at));
}

#[test]
fn the_first_of_several_addresses_that_answers_is_used() {
    let place = Place::new();
    let dead = HeldPort::new();
    let (_server, at) = place.server("");
    let addresses = format!("{},{at}", dead.address());
    let listener = place.listener(&addresses, "--count 1");
    place.send(&addresses, "", b"").succeed();
    listener.succeed();
}

#[test]
fn clients_receive_the_configuration_file_unchanged() {
    let place = Place::new();
    let configuration = "# ours\nconfigure:\n  scheduler:\n    storage_uri: /etc/ciao\n";
    std::fs::write(place.path("cluster.yaml"), configuration).unwrap();
    let (_server, at) = place.server("--config cluster.yaml");
    let identity = Identity::load(place.path("agent.pem")).unwrap();
    let trust = Trust::load(place.path("ca.pem")).unwrap();
    let client = Client::connect(ClientConfig::new(identity, trust).address(at.parse().unwrap())).unwrap();
    assert_eq!(client.configuration().unwrap(), configuration);
    for (bad, why) in [
        ("configure: [\n", ""),
        ("", "it is empty"),
        ("\u{feff}\n", "it is empty"),
    ] {
        std::fs::write(place.path("bad.yaml"), bad).unwrap();
        let line = place.fail(
            "server --listen 127.0.0.1:0 --ca ca.pem --cert server.pem --config bad.yaml",
            1,
        );
        assert!(line.contains("bad.yaml") && line.contains(why), "{line}");
    }
}

#[test]
fn wrong_usage_ends_with_2() {
    let place = Place::new();
    for flags in [
        "--forward STATS",
        "--forward NOPE=agent",
        "--forward STATS=nobody",
        "--forward STATS=agent --forward STATS=agent",
        "--forward CONNECT=agent",
        "--filter none",
        "--max-sessions 0",
        "--sessions-per-certificate 0",
        "--handshake-timeout -1",
        "--slow-consumer wait",
    ] {
        let line = format!("server --listen 127.0.0.1:0 --ca ca.pem --cert server.pem {flags}");
        let ended = place.start(&line).ended();
        assert_eq!(
            (ended.code, ended.out.len()),
            (Some(2), 0),
            "{flags}: {:?}",
            ended.err
        );
        assert!(!ended.err.is_empty(), "{flags}");
    }
    for flags in [
        "--type STATUS --operand STATS",
        "--type COMMAND --operand NOPE",
        "--type COMMAND --operand CONNECT",
        "--type COMMAND --operand STATS --count 0",
        "--type COMMAND",
    ] {
        let line = format!("send {} {flags}", connect("127.0.0.1:1", "agent"));
        let ended = place.start(&line).ended();
        assert_eq!(
            (ended.code, ended.out.len()),
            (Some(2), 0),
            "{flags}: {:?}",
            ended.err
        );
    }
    for line in ["", "nope", "listen --ca ca.pem", "server --listen 127.0.0.1:0"] {
        assert_eq!(place.start(line).ended().code, Some(2), "{line}");
    }
}

#[test]
fn each_failure_is_reported_in_one_line() {
    let place = Place::new();
    let (_server, at) = place.server("");
    for (line, part) in [
        (
            format!("listen --connect {at} --ca none.pem --cert agent.pem"),
            "none.pem",
        ),
        (
            format!("listen --connect {at} --ca ca.pem --cert ca.pem"),
            "no private key",
        ),
        (
            format!("listen {} --role controller", connect(&at, "agent")),
            "role",
        ),
        (
            format!(
                "send {} --type COMMAND --operand STATS --payload none.yaml",
                connect(&at, "agent")
            ),
            "none.yaml",
        ),
        (
            format!("server --listen {at} --ca ca.pem --cert server.pem"),
            "in use",
        ),
        (
            "server --listen 127.0.0.1:0 --ca ca.pem --cert agent.pem".into(),
            "role",
        ),
    ] {
        let error = place.fail(&line, 1);
        assert!(error.contains(part), "{line}: {error}");
    }
    let other = Place::new();
    for (ca, cert) in [(&place, &other), (&other, &place)] {
        let (ca, cert) = (ca.path("ca.pem"), cert.path("agent.pem"));
        let (ca, cert) = (ca.display(), cert.display());
        place.fail(&format!("listen --connect {at} --ca {ca} --cert {cert}"), 1);
    }
}

#[test]
fn a_signal_ends_a_client_in_any_state() {
    let place = Place::new();
    let (_server, at) = place.server("");
    // A server that accepts connections and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_at = silent.local_addr().unwrap().to_string();
    for (signal, interrupted) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let connected = place.listener(&at, "");
        let counting = place.listener(&at, "--count 1");
        let listening = place.start(&format!("listen {}", connect(&silent_at, "agent")));
        // A program that has connected handles signals.
        let _first = silent.accept().unwrap();
        let sending = place.send(&silent_at, "", b"");
        let _second = silent.accept().unwrap();
        // A command that runs until a signal comes ends with success, and every other one fails.
        for (program, code) in [
            (connected, 0),
            (listening, 0),
            (counting, interrupted),
            (sending, interrupted),
        ] {
            program.signal(signal);
            let ended = program.ended();
            assert_eq!((ended.code, ended.out.len()), (Some(code), 0), "{:?}", ended.err);
        }
    }
}

#[test]
fn a_listener_ends_with_success_when_its_output_is_closed() {
    let place = Place::new();
    let (_server, at) = place.server("");
    let line = format!("listen {} --json", connect(&at, "controller"));
    let mut child = command(place.0.path(), &line).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let listener = Program::around(child);
    listener.error_line("connected to ");
    place.send(&at, "", b"").succeed();
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    assert_eq!(json(&first)["operand"], "STATS");
    drop(out);
    place.send(&at, "", b"").succeed();
    let ended = listener.ended();
    assert_eq!((ended.code, ended.err.len()), (Some(0), 0), "{:?}", ended.err);
}

#[test]
fn a_listener_connects_again_when_its_server_is_back() {
    let (place, port) = (Place::new(), HeldPort::new());
    let (server, at) = place.server_at(&port.address(), "");
    let listener = place.listener(&at, "--count 1");
    // The server is killed, so it does not close its sessions.
    drop(server);
    listener.error_line("disconnected: ");
    let _server = place.server_at(&at, "");
    listener.error_line("connected to ");
    place.send(&at, "", b"").succeed();
    assert_eq!(listener.succeed().len(), 1);
}

#[test]
fn a_controller_lists_the_sessions_of_a_server_and_kicks_one() {
    let place = Place::new();
    let (_server, address) = place.server("");
    let listener = place.start(&format!("listen {}", connect(&address, "agent")));
    listener.error_line("connected to ");
    let ctl = |line: &str| place.succeed(&format!("ctl {line} {}", connect(&address, "controller")));
    let agents = || -> Vec<Value> {
        let listed = json(&ctl("sessions --role agent --json")[0]);
        listed.as_array().unwrap().clone()
    };
    let agent = agents().remove(0);
    let uuid = agent["uuid"].as_str().unwrap();
    assert_eq!(
        ctl(&format!("kick {uuid} --ban 1h")),
        [format!("{uuid}: 1 session was ended, banned for 1h")]
    );
    assert!(agents().is_empty());
    assert_eq!(ctl("bans").len(), 2);
    let line = format!("ctl sessions {}", connect(&address, "agent"));
    assert!(place.fail(&line, 1).contains("not controller"));
    let line = format!("ctl kick {uuid} {}", connect(&address, "controller"));
    assert!(place.fail(&line, 1).contains("no session has that UUID"));
}

/// An application that takes no frame once it has the first one.
struct Stuck(crossbeam_channel::Receiver<()>);

impl ssntp::server::Handler for Stuck {
    fn frame(&mut self, _: &mut ssntp::server::Context<'_>, _: &ssntp::server::SessionInfo, _: ssntp::Frame) {
        let _ = self.0.recv();
    }
}

/// A server of this process, and its address.
fn own_server(place: &Place, handler: impl ssntp::server::Handler) -> (ssntp::Server, String) {
    let identity = Identity::load(place.path("server.pem")).unwrap();
    let config = ssntp::ServerConfig::new(identity, Trust::load(place.path("ca.pem")).unwrap());
    let server = ssntp::Server::start(config.listen("127.0.0.1:0".parse().unwrap()), handler).unwrap();
    let at = server.addresses()[0].to_string();
    (server, at)
}

#[test]
fn a_frame_that_the_server_has_not_taken_is_not_reported_as_sent() {
    let place = Place::new();
    let (release, stuck) = crossbeam_channel::bounded(0);
    let (server, at) = own_server(&place, Stuck(stuck));
    // This moves the sender behind the server, so that a panic drops it first. The server waits for
    // its handler.
    let release = release;
    // The limit is also one for the session, for which a busy machine may need longer.
    let mut seconds = 4;
    loop {
        let error = place.send(&at, &format!("--timeout {seconds}"), b"").fail(1);
        if error.contains(&format!(
            "has not taken all frames in {seconds} s: up to 1 of 1 are lost"
        )) {
            break;
        }
        assert!(seconds < 64, "{error}");
        seconds *= 2;
    }
    drop(release);
    // This server does not count receivers, but a later answer shows that it has taken the frame.
    let output = place.send(&at, "", b"").succeed();
    assert_eq!(
        output,
        ["STATS was sent; the server has not said to whom it went"]
    );
    server.stop();
}

#[test]
fn lines_are_sent_after_a_restart_of_the_server_and_possible_losses_are_counted() {
    let (place, port) = (Place::new(), HeldPort::new());
    let (server, at) = place.server_at(&port.address(), "");
    let listener = place.listener(&at, "--json");
    let to = connect(&at, "agent");
    let mut sending = command(place.0.path(), &format!("send {to} STATS --lines"));
    sending.stdin(Stdio::piped());
    let mut program = Program::of(sending);
    let mut input = program.child.stdin.take().unwrap();
    input.write_all(b"one\n").unwrap();
    assert_eq!(json(&listener.line(""))["payload"], "one");
    server.signal(Signal::TERM);
    server.succeed();
    program.error_line("ssntp: the session has ended");
    let _server = place.server_at(&at, "");
    listener.error_line("connected to ");
    input.write_all(b"two\n").unwrap();
    assert_eq!(json(&listener.line(""))["payload"], "two");
    drop(input);
    let ended = program.ended();
    // The question for the receivers of the first line may be unanswered when the server ends.
    let doubt = ended
        .err
        .iter()
        .any(|line| line.contains("up to 1 of them are lost"));
    assert_eq!(ended.code, Some(doubt.into()), "{:?}", ended.err);
}

#[test]
fn operands_of_an_application_are_sent_by_name_and_filtered_by_role() {
    let place = Place::new();
    let own = "--application EVENT/0x80=Scaled";
    let flags = format!("server --listen 127.0.0.1:0 --ca ca.pem --cert server.pem --filter spec {own}");
    let error = place.fail(&flags, 2);
    assert!(
        error.contains("--filter allows no role to send Scaled") && error.contains("--allow Scaled=ROLE"),
        "{error}"
    );
    std::fs::write(
        place.path("server.yaml"),
        "filter: spec\napplication: EVENT/0x80=Scaled\n",
    )
    .unwrap();
    let more = "-- --listen :0 --ca ca.pem --cert server.pem";
    let ended = place
        .start(&format!("config check server server.yaml {more}"))
        .ended();
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.out[0].contains("--filter allows no role to send Scaled"),
        "{:?}",
        ended.out
    );

    let (_server, at) = place.server(&format!(
        "--filter spec {own} --allow scaled=agent --forward Scaled=controller"
    ));
    let listener = place.listener(&at, &format!("{own} --json"));
    let agent = connect(&at, "agent");
    // The flag takes one value, so the next word is the operand.
    let output = place.succeed(&format!("send {agent} {own} Scaled three"));
    assert_eq!(output, ["Scaled was sent, and went to 1 session"]);
    assert_eq!(json(&listener.line(""))["operand"], "Scaled");
    let controller = connect(&at, "controller");
    let error = place.fail(&format!("send {controller} {own} Scaled three"), 1);
    assert!(error.contains("does not let controllers send"), "{error}");
}

#[test]
fn a_payload_that_equals_a_file_name_is_sent_with_a_hint() {
    let place = Place::new();
    std::fs::write(place.path("load.yaml"), "load: 1\n").unwrap();
    let (_server, at) = place.server("");
    for payload in ["load.yaml", "@load.yaml"] {
        let sent = place
            .start(&format!("send {} STATS {payload}", connect(&at, "agent")))
            .ended();
        assert!(
            sent.err[0].contains("--payload load.yaml sends what is in that file"),
            "{:?}",
            sent.err
        );
    }
}

/// Other tools write the certificate and the key into two files.
#[test]
fn a_key_may_be_in_a_file_of_its_own() {
    let place = Place::new();
    for name in ["server", "agent"] {
        let whole = std::fs::read_to_string(place.path(&format!("{name}.pem"))).unwrap();
        let at = whole.find("-----BEGIN PRIVATE KEY").unwrap();
        let end = whole[at..].find("-----END PRIVATE KEY-----").unwrap() + at + 26;
        std::fs::write(place.path(&format!("{name}.key")), &whole[at..end]).unwrap();
        let certificate = format!("{}{}", &whole[..at], &whole[end..]);
        std::fs::write(place.path(&format!("{name}.pem")), certificate).unwrap();
    }
    let (_server, at) = place.server("--key server.key");
    let to = connect(&at, "agent");
    place.succeed(&format!("send {to} --key agent.key STATS"));
    let error = place.fail(&format!("send {to} STATS"), 1);
    assert!(error.contains("agent.pem"), "{error}");
    let error = place.fail(&format!("send {to} --key server.key STATS"), 1);
    assert!(error.contains("key"), "{error}");
}

#[test]
fn top_shows_the_traffic_of_each_session() {
    let place = Place::new();
    let (_server, at) = place.server("");
    let flags = format!("--interval 0.1 {}", connect(&at, "controller"));
    let listener = place.listener(&at, "--count 3");
    place.send(&at, "--repeat 3 --wait-for controller", b"").succeed();
    listener.succeed();
    let uuid = "11111111-2222-4333-8444-555555555555";
    let _one = place.listener(&at, &format!("--uuid {uuid}"));
    let lines = place.succeed(&format!("top --json --count 2 {flags}"));
    assert_eq!(lines.len(), 2);
    for line in lines {
        // The list may still have sessions of programs that have just ended.
        let sessions = json(&line);
        let sessions = sessions.as_array().unwrap();
        // `top` requests the list, so its own session sends and receives.
        assert!(
            sessions[0]["per_second"]["bytes_sent"].as_f64().unwrap() > 0.0,
            "{line}"
        );
        let silent = sessions.iter().find(|one| one["uuid"] == uuid).unwrap();
        assert_eq!(silent["per_second"]["frames_received"], 0.0, "{line}");
    }
    let table = place.succeed(&format!("top --count 1 --role controller {flags}"));
    assert!(table[0].contains("bytes out/s") && table.len() > 2, "{table:?}");
    // The end by a signal is the usual one, unless a number of tables was to come.
    for (count, code) in [("", 0), ("--count 1000000", 143)] {
        let top = place.start(&format!("top {count} {flags}"));
        assert!(top.line("").contains("bytes out/s"));
        top.signal(Signal::TERM);
        let ended = top.ended();
        assert_eq!((ended.code, ended.err.len()), (Some(code), 0), "{:?}", ended.err);
    }
}

#[test]
fn top_with_a_number_of_lists_ends_once_the_server_refuses_them() {
    let place = Place::new();
    let allow = |role| {
        let settings = format!("allow: [ListSessions={role}]\n");
        std::fs::write(place.path("server.yaml"), settings).unwrap();
    };
    allow("controller");
    let (server, at) = place.server("--config-file server.yaml");
    let flags = format!("--count 1000000 --interval 0.1 {}", connect(&at, "controller"));
    let top = place.start(&format!("top {flags}"));
    top.line("");
    allow("agent");
    server.signal(Signal::HUP);
    let ended = top.ended();
    let error = ended.err.concat();
    assert_eq!(ended.code, Some(1), "{error}");
    assert!(error.contains("does not allow ListSessions"), "{error}");
}

#[test]
fn watch_shows_senders_and_operands_and_no_payload() {
    let place = Place::new();
    let own = "--application COMMAND/0x80=Scaled";
    let (_server, at) = place.server(own);
    let (controller, agent) = (connect(&at, "controller"), connect(&at, "agent"));
    let watching = |flags: &str| {
        let program = place.start(&format!("watch {controller} {flags}"));
        program.error_line("watching");
        program
    };
    let uuid = "11111111-2222-4333-8444-555555555555";
    let of_one = watching(&format!("--json --kind STATS --from {uuid}"));
    let of_own = watching(&format!("{own} --kind Scaled"));
    place.succeed(&format!("send {agent} STATS secret"));
    place.succeed(&format!("send {agent} --uuid {uuid} STATS secret"));
    place.succeed(&format!("send {agent} {own} Scaled secret"));
    let shown = json(&of_one.line(""));
    assert_eq!(
        (&shown["from"]["uuid"], &shown["operand"], &shown["frames"]),
        (&uuid.into(), &"STATS".into(), &1.into()),
        "{shown}"
    );
    let line = of_own.line("");
    assert!(line.contains("(agent) Scaled: 1 frame, "), "{line}");
    assert!(!line.contains("secret") && !shown.to_string().contains("secret"));
    for program in [of_one, of_own] {
        program.signal(Signal::TERM);
        let ended = program.ended();
        assert_eq!(ended.code, Some(0), "{:?}", ended.err);
    }
    let error = place.fail(&format!("watch {agent}"), 1);
    assert!(error.contains("controller"), "{error}");
}
