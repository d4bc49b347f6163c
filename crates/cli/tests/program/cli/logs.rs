//! The influence of peers on the log of a server, and of the log on the server's work, with the real
//! program.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use ssntp::client::{Client, ClientConfig};
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest};
use ssntp::proto::{Command as Kind, ErrorCode, Frame};
use ssntp::{Role, transport::Address};
use tempfile::TempDir;

/// The time limit after which a test fails.
const LIMIT: Duration = Duration::from_secs(60);

/// A running server whose standard error is a pipe. Dropping it kills it.
struct Server {
    child: Child,
    stderr: ChildStderr,
    address: Address,
    authority: Authority,
    _dir: TempDir,
}

impl Server {
    fn start(arguments: &[&str], level: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        authority.save(dir.path(), false).unwrap();
        let issued = authority.issue(&CertificateRequest::new(Role::SCHEDULER | Role::SERVER));
        issued.unwrap().save(dir.path().join("server.pem")).unwrap();
        let mut child = crate::program()
            .current_dir(dir.path())
            .args(arguments)
            .args([
                "--ca",
                "ca.pem",
                "--cert",
                "server.pem",
                "--listen",
                "127.0.0.1:0",
            ])
            .env("RUST_LOG", level)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening at ").unwrap();
        Self {
            stderr: child.stderr.take().unwrap(),
            address: address.parse().unwrap(),
            child,
            authority,
            _dir: dir,
        }
    }

    fn connect(&self, role: Role) -> Client {
        let issued = self.authority.issue(&CertificateRequest::new(role)).unwrap();
        let config = ClientConfig::new(issued.identity(), self.authority.trust());
        let client = Client::start(config.address(self.address.clone())).unwrap();
        let connected = client.handle().wait_connected(Some(LIMIT));
        assert!(connected.unwrap(), "the server hangs");
        client
    }

    /// Asks it to end; it does, in order.
    fn end(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_unread_standard_error_does_not_stop_a_server() {
    let mut server = Server::start(&["server", "--forward", "STATS=controller"], "trace");
    let controller = server.connect(Role::CONTROLLER);
    let agent = server.connect(Role::AGENT);
    // Each session logs some hundred lines, and a pipe holds about as many. If the log had no queue,
    // the first session would block.
    for _ in 0..20 {
        server.connect(Role::AGENT).close();
    }
    for n in 0..100 {
        let text = format!("load: {n}\n");
        agent
            .send(Frame::with_payload(Kind::STATS, text.clone()))
            .unwrap();
        let frame = controller.recv_frame_timeout(LIMIT).expect("the frame is routed");
        assert_eq!(frame.payload_bytes()[..], *text.as_bytes());
    }
    server.end();
}

#[test]
fn repeated_complaints_of_a_peer_are_limited_and_their_text_is_escaped() {
    let mut server = Server::start(&["scheduler", "--allow-unbound"], "warn");
    let agent = server.connect(Role::AGENT);
    let payload = format!("reason: \u{202e}\u{9b}31m\n{}", "x".repeat(2000));
    for _ in 0..5000 {
        agent
            .send(Frame::with_payload(
                ErrorCode::INVALID_FRAME_TYPE,
                payload.clone(),
            ))
            .unwrap();
        agent
            .send(Frame::with_payload(ErrorCode::START_FAILURE, "["))
            .unwrap();
    }
    assert!(agent.flush(LIMIT));
    // The answer shows that all earlier frames were handled.
    agent.send(Frame::with_payload(Kind::START, "")).unwrap();
    agent.recv_frame_timeout(LIMIT).expect("an agent sends no START");
    server.end();
    let mut log = String::new();
    server.stderr.read_to_string(&mut log).unwrap();
    let of = |part: &str| log.lines().filter(|line| line.contains(part)).count();
    // Five lines of each kind are logged, and another one for each minute of the test.
    for part in [": StartFailure dropped: ", ": InvalidFrameType, "] {
        assert!((5..20).contains(&of(part)), "{part}: {log}");
    }
    assert!(log.lines().count() < 40, "{log}");
    let first = log
        .lines()
        .find(|line| line.contains("InvalidFrameType"))
        .unwrap();
    assert!(
        first.contains(r"1 so far: reason: \u{202e}\u{9b}31m\nxxx"),
        "{first}"
    );
    assert!(first.ends_with("xxx…") && first.chars().count() < 400, "{first}");
}
