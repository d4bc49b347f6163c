//! A cluster of processes: a scheduler, agents, and a controller that reads its frames in order.
//! Every receive has a time limit, and no process is left behind.
#![allow(
    dead_code,
    unreachable_pub,
    missing_debug_implementations,
    reason = "each test binary uses its own part"
)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use ssntp::Role;
use ssntp::client::{Client, ClientConfig};
use ssntp::payload::Payload;
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Trust};
use ssntp::proto::Frame;
use tempfile::TempDir;
use uuid::Uuid;

const LIMIT: Duration = Duration::from_secs(120);

/// A scheduler in a process of its own, and a controller.
pub struct Cluster {
    pub dir: TempDir,
    scheduler: Option<Program>,
    pub address: String,
    controller: Client,
}

impl Cluster {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        authority.save(dir.path(), false).unwrap();
        for (name, roles) in [
            ("scheduler", Role::SCHEDULER),
            ("agent", Role::AGENT),
            ("netagent", Role::NETAGENT),
            ("cnci", Role::CNCIAGENT),
            ("controller", Role::CONTROLLER),
        ] {
            let issued = authority.issue(&CertificateRequest::new(roles)).unwrap();
            issued.save(dir.path().join(format!("{name}.pem"))).unwrap();
        }
        let mut command = ssntp(
            dir.path(),
            &words("scheduler --ca ca.pem --cert scheduler.pem --allow-unbound"),
        );
        let mut scheduler = Program::start(command.args(["--listen", "127.0.0.1:0"]));
        let line = scheduler.first_line();
        let address = line.strip_prefix("listening at ").unwrap().to_owned();
        let load = |name: &str| dir.path().join(name);
        let config = ClientConfig::new(
            Identity::load(load("controller.pem")).unwrap(),
            Trust::load(load("ca.pem")).unwrap(),
        )
        .address(address.parse().unwrap());
        Self {
            controller: Client::connect(config).unwrap(),
            scheduler: Some(scheduler),
            address,
            dir,
        }
    }

    /// Ends the scheduler with SIGKILL.
    pub fn lose_scheduler(&mut self) {
        self.scheduler = None;
    }

    /// An agent with the certificate of that name.
    pub fn agent(&self, name: &str, arguments: &[&str]) -> Program {
        Program::start(&mut self.agent_command(name, arguments))
    }

    pub fn agent_command(&self, name: &str, arguments: &[&str]) -> Command {
        let certificate = format!("{name}.pem");
        let mut command = ssntp(self.dir.path(), &[name, "--ca", "ca.pem", "--cert", &certificate]);
        command.args(["--connect", &self.address]).args(arguments);
        // Other users cannot enter the temporary directory, so instances run as the agent's user.
        command.args(["--users", "agent"]);
        command
    }

    pub fn send<T: Payload>(&self, payload: &T) {
        self.controller.send(Frame::of(payload)).unwrap();
    }

    #[track_caller]
    pub fn next<T: Payload>(&self, mut will_do: impl FnMut(&T) -> bool) -> T {
        let deadline = Instant::now() + LIMIT;
        let mut others = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let frame = self.controller.recv_frame_timeout(left);
            let frame = frame.unwrap_or_else(|e| panic!("no such {}: {e}; {others:#?}", T::KIND));
            match frame.payload::<T>() {
                Ok(payload) if will_do(&payload) => return payload,
                _ => others.push((
                    frame.kind(),
                    String::from_utf8_lossy(frame.payload_bytes()).into_owned(),
                )),
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.scheduler.take());
        let instances = ["state", "state2"].map(|state| self.dir.path().join(state).join("instances"));
        for entry in instances.iter().flat_map(fs::read_dir).flatten().flatten() {
            let record = fs::read_to_string(entry.path().join("instance.yaml")).unwrap_or_default();
            let pid = record
                .lines()
                .find_map(|line| line.strip_prefix("pid: ")?.parse().ok());
            if let Some(pid) = pid.filter(|pid| *pid > 0).and_then(Pid::from_raw) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
        }
    }
}

/// The words of a command line, separated by blanks and line breaks.
pub fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

pub fn ssntp(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = crate::program();
    command.current_dir(dir).args(arguments);
    command
}

pub use ssntp_test_support::wait::wait_for;

/// True if a program that has ended after a signal has ended in order. A program that needs longer than 1.8 s,
/// as it may on a busy machine, ends by force: then its sockets and its last log lines may be missing.
pub fn ended_in_order(signalled_at: Instant) -> bool {
    signalled_at.elapsed() < Duration::from_millis(1800)
}

/// A child process that is killed when it is dropped, so that a failed test leaves none behind.
pub struct Program(Child);

impl Program {
    pub fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// The first line it prints.
    pub fn first_line(&mut self) -> String {
        let mut line = String::new();
        let mut stdout = BufReader::new(self.0.stdout.as_mut().unwrap());
        stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The number of its process, as a name in /proc.
    pub fn id(&self) -> String {
        self.0.id().to_string()
    }

    /// The UUID that it prints in its first line.
    pub fn uuid(&mut self) -> Uuid {
        let line = self.first_line();
        line.split_once(' ').unwrap().1.parse().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Kills it with SIGKILL, as a power cut would.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Sends a signal, and waits until the process has ended in order. The program ends by itself after two
    /// seconds, with another exit code, so this needs no time limit.
    pub fn end(mut self, signal: Signal) {
        self.signal(signal);
        assert_eq!(self.0.wait().unwrap().code(), Some(0));
    }
}

impl Deref for Program {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Program {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
