//! `ssntp ctl logs`: the output of instances, with a real scheduler and real agents, and the errors
//! of older schedulers and agents.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{Sender, channel};

use rustix::process::Signal;
use serde_json::Value;
use ssntp::ClientConfig;
use ssntp::client::{Client, ClientEvent};
use ssntp::payload::{InvalidFrameType, InvalidFrameTypeReason};
use ssntp::pki::{Identity, Trust};
use ssntp::proto::{Command as Kind, Frame, FrameKind};
use ssntp::server::{Context, Handler, Server, ServerConfig, SessionInfo};
use ssntp_payload::{
    InstanceState, InstanceStats, MAX_STREAM_CHUNK, NodeConnected, NodeStatus, NodeType, Outputs, Ready,
    SnapshotComplete, Stats, StreamData, stream_of, stream_opened,
};
use ssntp_view::{Controller, ControllerConfig, StreamError, StreamEvent, StreamRequest};
use uuid::Uuid;

use crate::cluster::processes::{Cluster, LIMIT, Process, wait_for};

/// Starts a persistent instance that runs a script.
#[track_caller]
pub(super) fn script(cluster: &Cluster, script: &str) -> Uuid {
    let uuid = Uuid::new_v4();
    let named = uuid.to_string();
    let done = cluster.ctl_words(&[
        "start",
        "--persistent",
        "--uuid",
        &named,
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    uuid
}

/// `ssntp ctl logs` as a running process.
fn logs(cluster: &Cluster, words: &str) -> Process {
    let line = format!("ctl logs {words}");
    let words: Vec<_> = line.split_whitespace().collect();
    Process::of(cluster.command(&words), &cluster.path(""), "ctl")
}

#[test]
fn an_instance_that_has_ended_has_its_logs_as_long_as_it_is_kept() {
    let cluster = Cluster::with_agents(1);
    let instance = script(
        &cluster,
        "echo one; echo two; echo bad >&2; printf 'no end \\377'",
    );
    wait_for(&cluster.controller_sees(1), instance, &InstanceState::Exited);

    // The instance is selected by the beginning of its UUID, and both outputs are read.
    let mut command = cluster.command(&["ctl", "logs", &instance.to_string()[..8]]);
    let output = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"one\ntwo\nno end \xff");
    assert_eq!(output.stderr, b"bad\n");
    assert_eq!(output.status.code(), Some(0));
    // Following an ended instance ends at once.
    let done = cluster.ctl(&format!("logs -f --tail 1 --output stderr {instance}"));
    assert_eq!((done.code, &*done.stdout, &*done.stderr), (Some(0), "", "bad\n"));

    let lines = cluster.done(&format!("logs --json {instance}"));
    let mut lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(
        lines
            .iter()
            .all(|line| line["instance"] == instance.to_string() && line["missing"] == false)
    );
    lines.retain(|line| line["output"] == "stdout");
    let pieces: Vec<_> = lines
        .iter()
        .map(|line| {
            (
                line["text"].as_str().unwrap(),
                line["lossy"] == true,
                line["partial"] == true,
            )
        })
        .collect();
    assert_eq!(
        pieces,
        [
            ("one", false, false),
            ("two", false, false),
            ("no end \u{fffd}", true, true)
        ]
    );

    let last = cluster.done(&format!("logs --json --output stdout --tail 2 {instance}"));
    let last: Vec<Value> = last
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(last, lines[1..]);

    cluster.done(&format!("delete {instance}"));
    let error = cluster.fails(&format!("logs {instance}"));
    assert_eq!(error, format!("no node has instance {instance} (no_instance)"));
}

#[test]
fn following_loses_no_line_when_a_log_is_rotated_and_ends_with_the_instance() {
    let mut cluster = Cluster::new("");
    cluster.agent("--log-limit 1");
    cluster.controller_sees(1);
    // The instance writes 300 KB at a time. The node keeps between 512 KiB and 1 MiB.
    let instance = script(
        &cluster,
        "for burst in 1 2 3 4 5 6; do seq -f \"burst $burst line %06.0f of what is written to a long log\" 1 5000; \
         while [ ! -e go-$burst ]; do sleep 0.02; done; done; echo the end",
    );
    let mut follower = logs(&cluster, &format!("-f {instance}"));
    let work = cluster
        .path("state-0/instances")
        .join(instance.to_string())
        .join("work");
    for burst in 1..=6 {
        for number in 1..=5000 {
            let expected = format!("burst {burst} line {number:06} of what is written to a long log");
            assert_eq!(follower.line(), expected);
        }
        fs::write(work.join(format!("go-{burst}")), "").unwrap();
    }
    assert_eq!(follower.line(), "the end");
    assert_eq!(follower.end(), Some(0), "{}", follower.log());
    assert_eq!(follower.log(), "");
    let kept = cluster.done(&format!("logs {instance}"));
    assert!(
        kept.ends_with("the end\n") && kept.len() < 1024 * 1024,
        "{}",
        kept.len()
    );
}

#[test]
fn a_signal_ends_following_with_its_code() {
    let cluster = Cluster::with_agents(1);
    let instance = script(&cluster, "echo here; sleep 1000");
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut follower = logs(&cluster, &format!("-f {instance}"));
        assert_eq!(follower.line(), "here");
        follower.signal(signal);
        assert_eq!(follower.end(), Some(code), "{}", follower.log());
    }
    // Without `-f` the command ends although the instance runs.
    assert_eq!(cluster.done(&format!("logs {instance}")), "here\n");
}

#[test]
fn a_follower_whose_node_or_scheduler_disconnects_ends_with_the_reason() {
    let mut cluster = Cluster::with_agents(1);
    let instance = script(&cluster, "echo here; sleep 1000");
    let node = cluster
        .controller_sees(1)
        .look(|view| view.nodes().next().unwrap().uuid);
    let mut follower = logs(&cluster, &format!("-f {instance}"));
    assert_eq!(follower.line(), "here");
    cluster.kill_node(0);
    assert_eq!(follower.end(), Some(1));
    assert_eq!(
        follower.log(),
        format!("ssntp: its node {node} has left (not_connected)\n")
    );
    let error = cluster.fails(&format!("logs {instance}"));
    assert_eq!(error, format!("its node {node} is not connected (not_connected)"));

    // The next agent continues the log of the former one.
    cluster.start_node(0, "agent", "--volumes volumes");
    wait_for(&cluster.controller_sees(1), instance, &InstanceState::Active);
    let mut follower = logs(&cluster, &format!("-f {instance}"));
    assert_eq!(follower.line(), "here");
    cluster.kill_scheduler();
    assert_eq!(follower.end(), Some(1));
    assert_eq!(
        follower.log(),
        "ssntp: the connection to the scheduler was lost\n"
    );
}

#[test]
fn a_follower_that_does_not_read_delays_no_other() {
    let cluster = Cluster::with_agents(1);
    let loud = script(&cluster, "seq 1 400000");
    wait_for(&cluster.controller_sees(1), loud, &InstanceState::Exited);
    let mut slow = cluster.command(&["ctl", "logs", "-f", &loud.to_string()]);
    let mut slow = slow.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // The pipe of the follower holds 64 KiB, and its credit is 128 KiB more.
    let other = script(&cluster, "echo here");
    assert_eq!(cluster.done(&format!("logs -f {other}")), "here\n");
    let all = cluster.done(&format!("logs {loud} --tail 400000"));
    assert!(
        all.starts_with("1\n2\n") && all.ends_with("\n400000\n"),
        "{} bytes",
        all.len()
    );
    cluster.start("");
    slow.kill().unwrap();
    slow.wait().unwrap();
}

#[test]
fn a_log_that_is_not_a_regular_file_is_not_read() {
    let cluster = Cluster::with_agents(1);
    let instance = script(&cluster, "echo here; sleep 1000");
    let place = cluster.path("state-0/instances").join(instance.to_string());
    fs::write(cluster.path("secret"), "secret\n").unwrap();
    fs::rename(place.join("stdout.log"), place.join("aside")).unwrap();
    std::os::unix::fs::symlink(cluster.path("secret"), place.join("stdout.log")).unwrap();
    let error = cluster.fails(&format!("logs {instance}"));
    assert!(
        error.starts_with("its log cannot be read: ") && error.ends_with("(unreadable)"),
        "{error}"
    );
    fs::remove_file(place.join("stdout.log")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, place.join("stdout.log"), rustix::fs::Mode::RWXU).unwrap();
    let error = cluster.fails(&format!("logs -f {instance}"));
    assert_eq!(
        error,
        "its log cannot be read: stdout.log is not a regular file (unreadable)"
    );
}

pub(super) fn client(directory: &Path, cert: &str) -> ClientConfig {
    let identity = Identity::load(directory.join(cert)).unwrap();
    ClientConfig::new(identity, Trust::load(directory.join("ca.pem")).unwrap())
}

fn stats(node: Uuid, instance: Uuid) -> Stats {
    Stats {
        node_uuid: node.into(),
        status: NodeStatus::Ready,
        instances: vec![InstanceStats {
            instance_uuid: instance.into(),
            state: InstanceState::Active,
            ..InstanceStats::default()
        }],
        ..Stats::default()
    }
}

/// The answer of a peer that does not know OpenStream.
fn unknown() -> InvalidFrameType {
    InvalidFrameType::new(
        Kind::OPEN_STREAM.into(),
        InvalidFrameTypeReason::UnsupportedOperand,
    )
}

#[test]
fn an_agent_without_streams_is_reported_as_older() {
    let cluster = Cluster::new("");
    let config = client(&cluster.path(""), "agent.pem").address(cluster.address().parse().unwrap());
    let agent = Client::connect(config).unwrap();
    let (node, instance) = (agent.uuid(), Uuid::new_v4());
    let ready = Ready {
        node_uuid: node.into(),
        ..Ready::default()
    };
    agent.send_payload(&ready).unwrap();
    agent.send_payload(&stats(node, instance)).unwrap();
    let handle = agent.handle();
    let serving = std::thread::spawn(move || {
        for event in &agent {
            if matches!(&event, ClientEvent::Frame(frame) if frame.kind() == Kind::OPEN_STREAM) {
                agent.send_payload(&unknown()).unwrap();
            }
        }
    });
    cluster.controller_sees(1);
    let error = cluster.fails(&format!("logs {instance}"));
    assert_eq!(
        error,
        format!("its node {node} is of a version without streams (not_supported)")
    );
    handle.close();
    serving.join().unwrap();
}

/// A scheduler with one instance that does not know streams, or never answers.
struct Old {
    node: Uuid,
    instance: Uuid,
    answers: bool,
}

impl Handler for Old {
    fn connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let connected = NodeConnected {
            node_uuid: self.node.into(),
            node_type: NodeType::ComputeNode,
        };
        cx.send_payload(session.uuid(), &connected).unwrap();
        cx.send_payload(session.uuid(), &stats(self.node, self.instance))
            .unwrap();
        let snapshot = SnapshotComplete {
            nodes: 1,
            reporting: 1,
            instances: 1,
            ..SnapshotComplete::default()
        };
        cx.send_payload(session.uuid(), &snapshot).unwrap();
    }

    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        if self.answers && frame.kind() == Kind::OPEN_STREAM {
            cx.send_payload(from.uuid(), &unknown()).unwrap();
        }
    }
}

fn old(cluster: &Cluster, node: Uuid, instance: Uuid, answers: bool) -> Server {
    let directory = cluster.path("");
    let identity = Identity::load(directory.join("scheduler.pem")).unwrap();
    let config = ServerConfig::new(identity, Trust::load(directory.join("ca.pem")).unwrap())
        .listen("127.0.0.1:0".parse().unwrap());
    let old = Old {
        node,
        instance,
        answers,
    };
    Server::start(config, old).unwrap()
}

#[test]
fn a_constraint_that_an_older_scheduler_would_ignore_is_refused() {
    let cluster = Cluster::new("");
    let server = old(&cluster, Uuid::new_v4(), Uuid::new_v4(), true);
    let address = server.addresses()[0].to_string();
    let line = format!("start --no-wait --constraint zone=a --connect {address} -- sleep 1");
    assert_eq!(
        cluster.fails(&line),
        "the scheduler is older and ignores constraints"
    );
    server.stop();
}

#[test]
fn a_scheduler_without_streams_is_reported_as_older() {
    let cluster = Cluster::new("");
    for answers in [true, false] {
        let (node, instance) = (Uuid::new_v4(), Uuid::new_v4());
        let server = old(&cluster, node, instance, answers);
        let address = server.addresses()[0].to_string();
        let line = format!("logs {instance} --connect {address}");
        cluster.is_over(&line, |error, seconds| {
            if answers {
                error == "the scheduler is of a version without streams"
            } else {
                error == format!("the instance's node has sent nothing in {seconds} s")
            }
        });
        server.stop();
    }
}

/// A scheduler that sends this number of pieces without regard to the credit, and passes on the
/// kinds of the frames that it receives.
struct Loud {
    pieces: usize,
    kinds: Sender<FrameKind>,
}

impl Handler for Loud {
    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        let stream = stream_of(frame.payload_bytes()).unwrap();
        if frame.kind() == Kind::OPEN_STREAM {
            let data = StreamData {
                stream,
                output: Outputs::STDOUT,
                missing: false,
                data: vec![b'x'; MAX_STREAM_CHUNK].into(),
            };
            cx.send(from.uuid(), &stream_opened(stream)).unwrap();
            for _ in 0..self.pieces {
                cx.send(from.uuid(), &data.frame()).unwrap();
            }
        }
        let _ = self.kinds.send(frame.kind());
    }
}

#[test]
fn a_controller_keeps_no_more_than_its_credit_and_closes_dropped_streams() {
    let cluster = Cluster::new("");
    let directory = cluster.path("");
    let (kinds, received_kinds) = channel();
    for pieces in [3, 4] {
        let identity = Identity::load(directory.join("scheduler.pem")).unwrap();
        let config = ServerConfig::new(identity, Trust::load(directory.join("ca.pem")).unwrap())
            .listen("127.0.0.1:0".parse().unwrap());
        let kinds = kinds.clone();
        let server = Server::start(config, Loud { pieces, kinds }).unwrap();
        let client = client(&directory, "controller.pem").address(server.addresses()[0].clone());
        let controller = Controller::connect(ControllerConfig::new(client)).unwrap();
        let request = StreamRequest {
            outputs: Outputs::BOTH,
            tail: None,
            follow: false,
        };
        let stream = controller.stream(Uuid::new_v4(), request).unwrap();
        assert!(matches!(stream.recv_timeout(LIMIT), Some(StreamEvent::Opened)));
        // The stream grants no credit for these pieces, because the last one is not yet read.
        for _ in 0..3 {
            assert!(matches!(
                stream.recv_timeout(LIMIT),
                Some(StreamEvent::Data { .. })
            ));
        }
        assert_eq!(received_kinds.recv_timeout(LIMIT), Ok(Kind::OPEN_STREAM.into()));
        if pieces == 3 {
            drop(stream);
            assert_eq!(received_kinds.recv_timeout(LIMIT), Ok(Kind::CLOSE_STREAM.into()));
        } else {
            let end = stream.recv_timeout(LIMIT);
            assert!(
                matches!(end, Some(StreamEvent::Ended(Err(StreamError::Overrun)))),
                "{end:?}"
            );
        }
        controller.close();
        server.stop();
    }
}
