//! `ssntp session --json` for programs in other languages: lines in both directions, and the
//! Python module that drives it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use ssntp::client::{Client, ClientConfig};
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Trust};
use ssntp::{Bytes, Frame, Role};
use tempfile::TempDir;

/// The time limit after which a test fails.
const LIMIT: Duration = Duration::from_secs(60);
const OWN: &str = "--application EVENT/0x80=Scaled --application 0x81=QUERY:request";

/// A directory with certificates, and the socket of a server.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        authority.save(dir.path(), false).unwrap();
        for (name, roles) in [
            ("server", Role::SERVER),
            ("agent", Role::AGENT),
            ("controller", Role::CONTROLLER),
        ] {
            let issued = authority.issue(&CertificateRequest::new(roles)).unwrap();
            issued.save(dir.path().join(format!("{name}.pem"))).unwrap();
        }
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn server(&self, more: &str) -> Running {
        let line = format!(
            "server --listen unix:socket --ca ca.pem --cert server.pem {OWN} \
             --forward STATS=controller EVENT/0x80=controller {more}"
        );
        let server = Running::start(self.path(), &line);
        assert!(server.text().starts_with("listening at "));
        server
    }

    /// A session that is established.
    fn session(&self, role: &str) -> Running {
        let session = self.start(role);
        assert_eq!(session.line()["event"], "connected");
        session
    }

    fn start(&self, role: &str) -> Running {
        let line = format!("session --json --connect unix:socket --ca ca.pem --cert {role}.pem {OWN}");
        Running::start(self.path(), &line)
    }
}

/// A running `ssntp`. Dropping it kills it.
struct Running {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Running {
    fn start(directory: &Path, line: &str) -> Self {
        let (mut running, output) = Self::unread(directory, line);
        running.read(output);
        running
    }

    /// A program whose output is not read yet.
    fn unread(directory: &Path, line: &str) -> (Self, ChildStdout) {
        let mut child = crate::program()
            .args(line.split_whitespace())
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        let lines = channel().1;
        (Self { child, input, lines }, output)
    }

    fn read(&mut self, output: ChildStdout) {
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                if sender.send(line.unwrap()).is_err() {
                    return;
                }
            }
        });
        self.lines = lines;
    }

    fn text(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("the program wrote no line")
    }

    fn line(&self) -> Value {
        serde_json::from_str(&self.text()).unwrap()
    }

    /// The next line with this event. Other lines are skipped.
    fn event(&self, event: &str) -> Value {
        loop {
            let line = self.line();
            if line["event"] == event {
                return line;
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().unwrap();
        input.write_all(bytes).unwrap();
        input.write_all(b"\n").unwrap();
    }

    /// Writes a line and returns its answer, with nothing before it.
    fn ask(&mut self, line: &Value) -> Value {
        self.write(line.to_string().as_bytes());
        let answer = self.line();
        assert_eq!(answer["event"], "answer");
        answer
    }

    /// Writes a line that must be refused, and returns the code of the error.
    fn refused(&mut self, line: &Value) -> String {
        let answer = self.ask(line);
        assert_eq!((&answer["ok"], &answer["id"]), (&false.into(), &line["id"]));
        answer["error"]["code"].as_str().unwrap().to_owned()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        if signal == Signal::STOP {
            // On a busy machine its threads run on for a moment.
            crate::processes::wait_for(|| self.is_stopped().then_some(()).ok_or("it runs"));
        }
    }

    /// True if a signal has stopped each of its threads.
    fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        threads.flatten().all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with('T'))
        })
    }

    /// Waits for its end, and returns the exit code and the remaining lines.
    fn end(mut self) -> (Option<i32>, Vec<Value>) {
        let mut rest = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(LIMIT) {
            rest.push(serde_json::from_str(&line).unwrap_or(Value::Null));
        }
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn frames_go_both_ways_as_text_or_base64_and_each_line_is_answered() {
    let place = Place::new();
    let _server = place.server("");
    let controller = place.session("controller");
    let mut agent = place.session("agent");
    for (id, payload, arrives) in [
        (
            json!(1),
            json!({ "payload": "gr\u{fc}n\n" }),
            ("payload", "gr\u{fc}n\n"),
        ),
        (
            json!("two"),
            json!({ "payload_base64": "AP8=" }),
            ("payload_base64", "AP8="),
        ),
        (json!(3), json!({ "payload_base64": "YWI=" }), ("payload", "ab")),
        (
            json!(null),
            json!({ "payload": "\u{0}" }),
            ("payload_base64", "AA=="),
        ),
        (json!(u64::MAX), json!({}), ("payload", "")),
    ] {
        let mut line = json!({ "do": "send", "id": id, "operand": "scaled" });
        line.as_object_mut()
            .unwrap()
            .extend(payload.as_object().unwrap().clone());
        assert_eq!(
            agent.ask(&line),
            json!({ "event": "answer", "id": id, "ok": true })
        );
        let frame = controller.line();
        assert_eq!(
            (&frame["event"], &frame["type"]),
            (&"frame".into(), &"EVENT".into())
        );
        assert_eq!(
            (&frame["operand"], &frame[arrives.0]),
            (&"Scaled".into(), &arrives.1.into())
        );
    }
}

#[test]
fn a_bad_line_gets_an_error_and_later_lines_are_carried_out() {
    let place = Place::new();
    let _server = place.server("");
    let controller = place.session("controller");
    let mut agent = place.session("agent");
    for (line, id) in [
        (&b"nonsense"[..], Value::Null),
        (b"{\"do\":\"send\",\"id\":7}", 7.into()),
        (b"{\"do\":\"dance\",\"id\":\"x\"}", "x".into()),
        (
            b"{\"do\":\"send\",\"id\":8,\"operand\":\"STATS\",\"more\":1}",
            8.into(),
        ),
        (b"{\"do\":\"send\",\"id\":[],\"operand\":\"STATS\"}", Value::Null),
        (b"\xff\xfe", Value::Null),
        (b"[1]", Value::Null),
    ] {
        agent.write(line);
        let answer = agent.line();
        assert_eq!((&answer["id"], &answer["ok"]), (&id, &false.into()), "{answer}");
        assert_eq!(answer["error"]["code"], "bad_line");
    }
    let line = |more: Value| {
        let mut line = json!({ "do": "send", "id": 1, "operand": "STATS" });
        line.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        line
    };
    assert_eq!(
        agent.refused(&line(json!({ "operand": "STAT" }))),
        "unknown_operand"
    );
    assert_eq!(
        agent.refused(&line(json!({ "operand": "CONNECT" }))),
        "bad_operand"
    );
    assert_eq!(agent.refused(&line(json!({ "operand": "QUERY" }))), "bad_operand");
    assert_eq!(agent.refused(&line(json!({ "payload_base64": "A" }))), "bad_line");
    assert_eq!(
        agent.refused(&line(json!({ "payload": "a", "payload_base64": "" }))),
        "bad_line"
    );
    assert_eq!(agent.refused(&line(json!({ "timeout": -1 }))), "bad_line");
    assert_eq!(
        agent.refused(&json!({ "do": "reply", "id": 2, "request": 1 })),
        "no_such_request"
    );
    // This line exceeds the limit.
    agent.write(&vec![b'x'; (32 << 20) + (64 << 10) + 1]);
    assert_eq!(agent.line()["error"]["code"], "long_line");
    // This line is blank.
    agent.write(b" ");
    assert_eq!(agent.ask(&line(json!({ "payload": "still here" })))["ok"], true);
    assert_eq!(controller.line()["payload"], "still here");
}

#[test]
fn a_request_is_answered_by_another_session_or_refused() {
    let place = Place::new();
    let _server = place.server("");
    let mut asker = place.session("controller");
    let mut asked = place.start("agent");
    let uuid = asked.line()["uuid"].clone();
    for number in 1..=3 {
        let line =
            json!({ "do": "request", "id": number, "operand": "QUERY", "to": uuid, "payload": "how?" });
        asker.write(line.to_string().as_bytes());
        let request = asked.line();
        assert_eq!(
            (&request["event"], &request["request"]),
            (&"request".into(), &number.into())
        );
        assert_eq!(
            (&request["operand"], &request["payload"]),
            (&"QUERY".into(), &"how?".into())
        );
    }
    // The replies have another order than the requests.
    let replies = [
        (
            json!({ "do": "reply", "request": 3, "payload_base64": "/w==" }),
            3,
        ),
        (json!({ "do": "refuse", "request": 1, "reason": "not today" }), 1),
        (json!({ "do": "reply", "request": 2, "payload": "so" }), 2),
    ];
    let answers = replies.map(|(reply, id)| {
        assert_eq!(asked.ask(&reply)["ok"], true);
        let answer = asker.line();
        assert_eq!(answer["id"], id);
        answer
    });
    assert_eq!(answers[0]["payload_base64"], "/w==");
    assert_eq!(
        answers[1]["error"],
        json!({ "code": "refused", "message": "not today" })
    );
    assert_eq!(
        (&answers[2]["ok"], &answers[2]["payload"]),
        (&true.into(), &"so".into())
    );
    let mut ask = |more: Value| {
        let mut line = json!({ "do": "request", "id": 9, "operand": "QUERY", "to": uuid });
        line.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        asker.refused(&line)
    };
    assert_eq!(ask(json!({ "timeout": 0.05 })), "timed_out");
    assert_eq!(ask(json!({ "operand": "Scaled" })), "bad_operand");
    assert_eq!(ask(json!({ "to": uuid::Uuid::new_v4() })), "refused");
}

#[test]
fn a_request_whose_reply_cannot_be_sent_can_be_answered_again() {
    let place = Place::new();
    let _server = place.server("");
    let mut asker = place.session("controller");
    let mut asked = place.start("agent");
    let uuid = asked.line()["uuid"].clone();
    let line = json!({ "do": "request", "id": 1, "operand": "QUERY", "to": uuid });
    asker.write(line.to_string().as_bytes());
    assert_eq!(asked.line()["request"], 1);
    // With the frame's own fields, this is longer than the longest payload.
    let reply = |payload: &str| json!({ "do": "reply", "request": 1, "payload": payload });
    assert_eq!(asked.refused(&reply(&"x".repeat(16 << 20))), "too_long");
    assert_eq!(asked.ask(&reply("so"))["ok"], true);
    assert_eq!(asker.line()["payload"], "so");
    assert_eq!(asked.refused(&reply("again")), "no_such_request");
}

#[test]
fn requests_that_wait_for_replies_have_a_bound_in_bytes_and_the_oldest_are_refused() {
    let place = Place::new();
    let _server = place.server("");
    let mut asker = place.session("controller");
    let mut asked = place.start("agent");
    let uuid = asked.line()["uuid"].clone();
    let payload = "x".repeat(13 << 20);
    // Five of them are more than 64 MiB.
    for number in 1..=5 {
        let line = json!({
            "do": "request", "id": number, "operand": "QUERY", "to": uuid, "payload": payload, "timeout": 600,
        });
        asker.write(line.to_string().as_bytes());
        assert_eq!(asked.line()["request"], number);
    }
    let refused = asker.line();
    assert_eq!(
        (&refused["id"], &refused["error"]["code"]),
        (&1.into(), &"refused".into())
    );
    let reply = |number: u64| json!({ "do": "reply", "request": number, "payload": "so" });
    assert_eq!(asked.refused(&reply(1)), "no_such_request");
    assert_eq!(asked.ask(&reply(2))["ok"], true);
    assert_eq!(asker.line()["id"], 2);
}

#[test]
fn a_session_connects_again_to_a_restarted_server() {
    let place = Place::new();
    let server = place.server("");
    let controller = place.session("controller");
    let mut agent = place.session("agent");
    server.signal(Signal::TERM);
    server.end();
    let lost = agent.line();
    assert_eq!(
        (&lost["event"], &lost["retrying"]),
        (&"disconnected".into(), &true.into())
    );
    agent.event("unreachable");
    let line = json!({ "do": "send", "id": 1, "operand": "STATS", "timeout": 0 });
    assert_eq!(agent.refused(&line), "not_connected");
    let _server = place.server("");
    controller.event("connected");
    // The frame waits for the session.
    agent.write(br#"{"do":"send","id":2,"operand":"STATS","payload":"again"}"#);
    let answer = agent.event("answer");
    assert_eq!((&answer["id"], &answer["ok"]), (&2.into(), &true.into()));
    assert_eq!(controller.event("frame")["payload"], "again");
}

#[test]
fn a_receipt_has_the_receivers_of_a_frame_or_says_that_it_may_be_lost() {
    let place = Place::new();
    let server = place.server("--filter spec --allow Scaled=agent --allow QUERY=agent");
    let mut agent = place.session("agent");
    let line =
        |id: u64, operand: &str| json!({ "do": "send", "id": id, "operand": operand, "receipt": true });
    let got = agent.ask(&line(1, "STATS"));
    assert_eq!(
        (&got["id"], &got["ok"], &got["receivers"]),
        (&1.into(), &true.into(), &0.into())
    );
    let controllers = [1, 2].map(|_| place.session("controller"));
    assert_eq!(agent.ask(&line(2, "STATS"))["receivers"], 2);
    assert!(
        controllers
            .iter()
            .all(|one| one.event("frame")["operand"] == "STATS")
    );
    // The error frame of the server is an event, and there is no order between events and answers.
    agent.write(line(3, "START").to_string().as_bytes());
    let mut refused = [agent.line(), agent.line()];
    refused.sort_by_key(|line| line["event"].as_str().map(str::to_owned));
    assert_eq!(
        (&refused[0]["error"]["code"], &refused[1]["operand"]),
        (&"refused".into(), &"InvalidFrameType".into())
    );
    assert_eq!(
        agent.ask(&line(4, "STATS"))["receivers"],
        2,
        "the next frame does not get this answer"
    );
    // A stopped server confirms nothing, so the frame may be lost.
    server.signal(Signal::STOP);
    let mut hasty = line(5, "STATS");
    hasty["timeout"] = json!(0.1);
    assert_eq!(agent.refused(&hasty), "timed_out");
    for id in [6, 7] {
        agent.write(line(id, "STATS").to_string().as_bytes());
    }
    // Frames are sent in the order of their lines, so both are sent.
    assert_eq!(
        agent.ask(&json!({ "do": "send", "id": 8, "operand": "STATS" }))["ok"],
        true
    );
    server.signal(Signal::KILL);
    // Answers have no order, neither among each other nor with events.
    let (mut lost, mut is_disconnected) = (Vec::new(), false);
    while lost.len() < 2 || !is_disconnected {
        let line = agent.line();
        if line["event"] == "answer" {
            assert_eq!(line["error"]["code"], "disconnected", "{line}");
            lost.push(line["id"].as_u64());
        } else if line["event"] == "disconnected" {
            assert_eq!(line["retrying"], true);
            is_disconnected = true;
        }
    }
    lost.sort_unstable();
    assert_eq!(lost, [Some(6), Some(7)]);
    server.end();
    let _server = place.server("");
    agent.event("connected");
    assert!(agent.ask(&line(9, "STATS"))["receivers"].is_u64());
    agent.write(line(10, "STATS").to_string().as_bytes());
    agent.input.take();
    let (code, rest) = agent.end();
    assert!(
        code == Some(0) && rest.iter().any(|line| line["id"] == 10 && line["ok"] == true),
        "{rest:?}"
    );
}

#[test]
fn a_frame_whose_receipt_cannot_be_awaited_is_not_sent() {
    let place = Place::new();
    let server = place.server("");
    let controller = place.session("controller");
    let mut agent = place.session("agent");
    let line = |id: u64| {
        json!({
            "do": "send", "id": id, "operand": "STATS", "payload": format!("n{id}"), "receipt": true, "timeout": 60,
        })
    };
    server.signal(Signal::STOP);
    for id in 0..32 {
        agent.write(line(id).to_string().as_bytes());
    }
    assert_eq!(agent.refused(&line(32)), "too_many");
    server.signal(Signal::CONT);
    for _ in 0..32 {
        let answer = agent.event("answer");
        assert_eq!(answer["receivers"], 1, "{answer}");
    }
    assert_eq!(agent.ask(&line(33))["receivers"], 1);
    for id in (0..32).chain([33]) {
        assert_eq!(controller.event("frame")["payload"], format!("n{id}"));
    }
}

#[test]
fn the_longest_payload_passes() {
    let place = Place::new();
    let _server = place.server("");
    let controller = place.session("controller");
    let mut agent = place.session("agent");
    // Three bytes 0xff are `////` in base64.
    let mut base64 = "/".repeat((16 << 20) / 3 * 4);
    base64.push_str("/w==");
    let line = json!({ "do": "send", "id": 1, "operand": "STATS", "payload_base64": base64 });
    assert_eq!(agent.ask(&line)["ok"], true);
    assert!(controller.line()["payload_base64"] == base64.as_str());
    base64.replace_range(base64.len() - 4.., "//8=");
    let line = json!({ "do": "send", "id": 2, "operand": "STATS", "payload_base64": base64 });
    assert_eq!(agent.refused(&line), "too_long");
}

#[test]
fn a_session_ends_after_its_input_once_all_lines_are_sent_and_answered() {
    let place = Place::new();
    let _server = place.server("");
    let controller = place.session("controller");
    // The lines are written before a session is established.
    let mut agent = place.start("agent");
    agent.write(br#"{"do":"send","id":1,"operand":"STATS","payload":"last words"}"#);
    agent.write(br#"{"do":"request","id":2,"operand":"QUERY","timeout":20}"#);
    agent.input.take();
    let (code, rest) = agent.end();
    let events: Vec<_> = rest.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(code, Some(0), "{rest:?}");
    assert_eq!(
        events.iter().filter(|event| **event == "answer").count(),
        2,
        "{rest:?}"
    );
    assert_eq!(events.last(), Some(&"closed"));
    assert_eq!(controller.line()["payload"], "last words");

    // The program runs until a signal arrives or its output is closed.
    let signalled = place.session("agent");
    signalled.signal(Signal::TERM);
    assert_eq!(signalled.end().0, Some(0));
    let line = "session --json --connect unix:socket --ca ca.pem --cert agent.pem";
    let (unread, output) = Running::unread(place.path(), line);
    drop(output);
    assert_eq!(unread.end().0, Some(0));

    // A start that fails is reported on the output and on the standard error.
    let (code, rest) = Running::start(place.path(), "session --json --ca none.pem --cert agent.pem").end();
    assert_eq!((code, &rest[0]["event"]), (Some(1), &"closed".into()));
    assert_eq!(Running::start(place.path(), "session").end().0, Some(2));
}

/// The server keeps 64 MiB for a session, and the session 64 MiB for its program. Without
/// back-pressure the rest of 300 MiB would be in unbounded memory.
#[test]
#[cfg(target_os = "linux")]
fn a_program_that_does_not_read_holds_the_server_back() {
    const FRAMES: u32 = 300;
    let place = Place::new();
    let _server = place.server("--slow-consumer drop-newest");
    let line = "session --json --connect unix:socket --ca ca.pem --cert controller.pem";
    let (mut unread, output) = Running::unread(place.path(), line);
    let mut output = BufReader::new(output);
    let mut connected = String::new();
    output.read_line(&mut connected).unwrap();
    let load = |name: &str| place.path().join(name);
    let config = ClientConfig::new(
        Identity::load(load("agent.pem")).unwrap(),
        Trust::load(load("ca.pem")).unwrap(),
    );
    let address = format!("unix:{}", load("socket").display()).parse().unwrap();
    let sender = Client::connect(config.address(address)).unwrap();
    for number in 0..FRAMES {
        let mut payload = vec![b'x'; 1 << 20];
        payload[..4].copy_from_slice(format!("{number:04}").as_bytes());
        sender
            .send(Frame::with_payload(ssntp::Command::STATS, Bytes::from(payload)))
            .unwrap();
    }
    // In a debug build this takes seconds even on an idle machine.
    assert!(sender.flush(10 * LIMIT), "the server does not take {FRAMES} MiB");
    let status = std::fs::read_to_string(format!("/proc/{}/status", unread.child.id())).unwrap();
    let most = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let most: u64 = most.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(most < 160 << 10, "{most} kB");
    // Waiting frames arrive in order.
    for number in 0..3 {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let frame: Value = serde_json::from_str(&line).unwrap();
        assert!(
            frame["payload"]
                .as_str()
                .unwrap()
                .starts_with(&format!("{number:04}"))
        );
    }
    unread.input.take();
}

/// Runs the tests of `clients/python` if Python is installed.
#[test]
fn the_python_module_drives_a_session() {
    let has_python = Command::new("python3")
        .args(["-c", "import sys; sys.exit(sys.version_info < (3, 8))"])
        .stderr(Stdio::null())
        .status();
    if !has_python.is_ok_and(|status| status.success()) {
        println!("no python3 of at least 3.8 here: clients/python is not tested");
        return;
    }
    let place = Place::new();
    let _server = place.server("");
    let tests = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("clients/python/test_ssntp.py");
    let ended = Command::new("python3")
        .args(["-B", "-W", "error"])
        .arg(tests)
        .current_dir(place.path())
        .env("SSNTP_PROGRAM", env!("CARGO_BIN_EXE_ssntp"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{errors}");
    assert!(errors.contains("\nOK"), "{errors}");
}
