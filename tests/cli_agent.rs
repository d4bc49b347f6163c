//! `ssntp agent` as a user meets it: processes of its own, and signals.

#![cfg(all(feature = "cli", any(feature = "aws-lc-rs", feature = "ring")))]
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
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use ssntp::Role;
use ssntp::client::{Client, ClientConfig};
use ssntp::payload::{
    InstanceDeleted, InstanceState, NodeStatus, Payload, Persistence, Start, StartFailure, Stats, Stop,
    VmType,
};
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Trust};
use ssntp::proto::Frame;
use tempfile::TempDir;
use uuid::Uuid;

const LIMIT: Duration = Duration::from_secs(30);

/// A scheduler in a process of its own, and a controller.
struct Cluster {
    dir: TempDir,
    scheduler: Child,
    address: String,
    controller: Client,
}

impl Cluster {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        authority.save(dir.path(), false).unwrap();
        for (name, roles) in [
            ("scheduler", Role::SCHEDULER),
            ("agent", Role::AGENT),
            ("controller", Role::CONTROLLER),
        ] {
            let issued = authority.issue(&CertificateRequest::new(roles)).unwrap();
            issued.save(dir.path().join(format!("{name}.pem"))).unwrap();
        }
        let mut scheduler = ssntp(
            dir.path(),
            &["scheduler", "--ca", "ca.pem", "--cert", "scheduler.pem"],
        )
        .args(["--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
        let line = first_line(&mut scheduler);
        let address = line.strip_prefix("listening at ").unwrap().to_owned();
        let load = |name: &str| dir.path().join(name);
        let config = ClientConfig::new(
            Identity::load(load("controller.pem")).unwrap(),
            Trust::load(load("ca.pem")).unwrap(),
        )
        .address(address.parse().unwrap());
        Self {
            controller: Client::connect(config).unwrap(),
            scheduler,
            address,
            dir,
        }
    }

    fn agent(&self, name: &str, arguments: &[&str]) -> Child {
        ssntp(self.dir.path(), &[name, "--ca", "ca.pem", "--cert", "agent.pem"])
            .args(["--connect", &self.address])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn send<T: Payload>(&self, payload: &T) {
        self.controller.send(Frame::of(payload)).unwrap();
    }

    #[track_caller]
    fn next<T: Payload>(&self, mut will_do: impl FnMut(&T) -> bool) -> T {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let frame = self.controller.recv_frame_timeout(left);
            let frame = frame.unwrap_or_else(|e| panic!("no such {}: {e}", T::KIND));
            match frame.payload::<T>() {
                Ok(payload) if will_do(&payload) => return payload,
                _ => {}
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.scheduler.kill();
        let _ = self.scheduler.wait();
        let instances = self.dir.path().join("state/instances");
        for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
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

fn ssntp(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ssntp"));
    command.current_dir(dir).args(arguments);
    command
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.as_mut().unwrap());
    stdout.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Asks it to end; it does in order, and soon.
fn end(mut child: Child, signal: Signal) {
    let asked = Instant::now();
    kill_process(Pid::from_child(&child), signal).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
}

#[test]
fn without_state_it_reports_this_machine() {
    let cluster = Cluster::new();
    for (name, signal) in [("agent", Signal::INT), ("netagent", Signal::TERM)] {
        let mut agent = cluster.agent(name, &["--interval", "0.2"]);
        let line = first_line(&mut agent);
        let uuid: Uuid = line.strip_prefix("agent ").unwrap().parse().unwrap();
        let mut count = 0;
        let stats: Stats = cluster.next(|stats: &Stats| {
            count += usize::from(stats.node_uuid == uuid);
            count == 3
        });
        assert!(stats.mem_total_mb > 0 && stats.cpus_online > 0 && !stats.hostname.is_empty());
        assert_eq!(stats.status, NodeStatus::Ready);
        let start = Start {
            instance_uuid: Uuid::new_v4(),
            vm_type: VmType::Process,
            command: vec!["true".into()],
            ..Start::default()
        };
        cluster.send(&start);
        let failure: StartFailure = cluster.next(|_| true);
        assert_eq!(failure.reason.as_str(), "launch_failure");
        end(agent, signal);
    }
}

#[test]
fn killed_it_comes_back_and_finds_what_runs() {
    let cluster = Cluster::new();
    let arguments = ["--state", "state", "--confinement", "rlimits", "--mem", "512"];
    let mut agent = cluster.agent("agent", &arguments);
    let uuid = first_line(&mut agent);
    let node = uuid.strip_prefix("agent ").unwrap();
    cluster.next(|_: &Stats| true);
    let start = Start {
        instance_uuid: Uuid::new_v4(),
        vm_type: VmType::Process,
        persistence: Persistence::Host,
        command: ["sleep", "1000"].map(String::from).to_vec(),
        ..Start::default()
    };
    cluster.send(&start);
    let state = |stats: &Stats| stats.instances.first().map(|instance| instance.state.clone());
    cluster.next(|stats: &Stats| state(stats) == Some(InstanceState::Active));

    agent.kill().unwrap();
    agent.wait().unwrap();
    let mut agent = cluster.agent("agent", &arguments);
    assert_eq!(first_line(&mut agent), uuid, "the UUID is kept with the state");
    let stats = cluster.next(|stats: &Stats| state(stats) == Some(InstanceState::Active));
    assert_eq!(stats.mem_total_mb, 512);

    for status in [NodeStatus::Offline, NodeStatus::Ready] {
        kill_process(Pid::from_child(&agent), Signal::USR1).unwrap();
        cluster.next(|stats: &Stats| stats.status == status);
    }

    // SIGTERM leaves it running, too.
    end(agent, Signal::TERM);
    let agent = cluster.agent("agent", &arguments);
    cluster.next(|stats: &Stats| state(stats) == Some(InstanceState::Active));
    let stop = Stop {
        instance_uuid: start.instance_uuid.into(),
        workload_agent_uuid: node.into(),
        stop: false,
    };
    cluster.send(&stop);
    cluster.next(|stats: &Stats| state(stats) == Some(InstanceState::Exited));
    cluster.send(&ssntp::payload::Delete {
        instance_uuid: stop.instance_uuid,
        workload_agent_uuid: stop.workload_agent_uuid,
        stop: false,
    });
    cluster.next(|_: &InstanceDeleted| true);
    end(agent, Signal::INT);
}

#[test]
fn what_cannot_work_is_told_in_one_line() {
    let cluster = Cluster::new();
    fs::write(cluster.dir.path().join("file"), "").unwrap();
    let refused = |arguments: &[&str], code: i32| {
        let mut command = ssntp(
            cluster.dir.path(),
            &["agent", "--ca", "ca.pem", "--connect", &cluster.address],
        );
        let output = command.args(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        text
    };
    refused(&["--cert", "agent.pem", "--volumes", "volumes"], 2);
    refused(&["--cert", "agent.pem", "--state", "s", "--driver", "magic"], 2);
    refused(&["--cert", "agent.pem", "--interval", "0"], 2);
    let text = refused(&["--cert", "agent.pem", "--state", "file"], 1);
    assert!(text.contains("file") && text.lines().count() == 1, "{text}");
    // Its certificate makes it something else.
    let text = refused(&["--cert", "controller.pem"], 1);
    assert!(text.contains("agent") && text.lines().count() == 1, "{text}");
}
