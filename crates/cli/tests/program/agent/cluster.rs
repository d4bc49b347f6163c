//! A scheduler, a controller that reads its frames in order, and agents.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ssntp::Role;
use ssntp::client::{Client, ClientConfig};
use ssntp::payload::Payload;
use ssntp::proto::{Command, Frame};
use ssntp::server::{Server, ServerConfig};
use ssntp::transport::memory::MemoryListener;
use ssntp_agent::driver::{Confinement, ProcessDriver};
use ssntp_agent::{Agent, AgentConfig, AgentError};
use ssntp_payload::{
    AttachVolume, Delete, DetachVolume, Evacuate, InstanceState, InstanceStats, NodeConnected,
    NodeDisconnected, Persistence, Requirements, Restart, Restore, Start, Stats, Stop, VmType,
};
use ssntp_scheduler::{Scheduler, SchedulerConfig};
use tempfile::TempDir;
use uuid::Uuid;

use ssntp_test_support::{LIMIT, identity, trust};

pub use crate::processes::wait_for;

pub const NODE: Uuid = Uuid::from_u128(0xa);

pub struct Cluster {
    pub dir: TempDir,
    listener: MemoryListener,
    controller: Client,
    /// Frames that were received and not yet requested by the test.
    waiting: VecDeque<Frame>,
    agent: Option<Agent>,
    _server: Server,
}

impl Cluster {
    /// A cluster without an agent.
    pub fn empty() -> Self {
        let listener = MemoryListener::new();
        let server = ServerConfig::new(identity(Role::SCHEDULER), trust()).listen_in_memory(&listener);
        let server = Scheduler::new(SchedulerConfig::new())
            .unwrap()
            .start(server)
            .unwrap();
        let config = ClientConfig::new(identity(Role::CONTROLLER), trust()).connect_in_memory(&listener);
        Self {
            dir: place(),
            controller: Client::connect(config).unwrap(),
            listener,
            waiting: VecDeque::new(),
            agent: None,
            _server: server,
        }
    }

    /// A cluster with an agent for processes.
    pub fn new() -> Self {
        let mut cluster = Self::empty();
        cluster.agent(|config| config);
        cluster
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub fn client(&self) -> ClientConfig {
        ClientConfig::new(identity(Role::AGENT | Role::NETAGENT), trust())
            .connect_in_memory(&self.listener)
            .renewal_spread(Duration::ZERO)
            .uuid(NODE)
    }

    pub fn try_agent(&mut self, change: impl FnOnce(AgentConfig) -> AgentConfig) -> Result<(), AgentError> {
        assert!(self.agent.is_none());
        let config = AgentConfig::new(self.client())
            .state(self.path("state"))
            .volumes(self.path("volumes"))
            .driver(driver());
        self.agent = Some(Agent::start(change(config))?);
        // The agent is announced twice: as a compute node and as a network node.
        for _role in 0..2 {
            self.next::<NodeConnected>(|_| true);
        }
        Ok(())
    }

    /// Starts the agent, and waits until the controller has received its NodeConnected.
    pub fn agent(&mut self, change: impl FnOnce(AgentConfig) -> AgentConfig) {
        self.try_agent(change).unwrap();
    }

    /// Ends the agent, as SIGTERM would. Frames of this agent that the test has not requested are dropped:
    /// those that follow are of the next agent.
    #[track_caller]
    pub fn end_agent(&mut self) {
        self.agent.take().unwrap().stop();
        // Once as a compute node and once as a network node.
        for _role in 0..2 {
            self.next::<NodeDisconnected>(|_| true);
        }
        self.waiting.clear();
    }

    /// Gives the agent another certificate, with which it reconnects at once.
    pub fn renew_agent(&self) {
        let agent = self.agent.as_ref().unwrap();
        let newer = identity(Role::AGENT | Role::NETAGENT);
        agent.renew(&newer, &trust()).unwrap();
    }

    pub fn toggle_offline(&self) {
        assert!(self.agent.as_ref().unwrap().toggle_offline());
    }

    pub fn send<T: Payload>(&self, payload: &T) {
        self.controller.send(Frame::of(payload)).unwrap();
    }

    pub fn send_raw(&self, command: Command, payload: &str) {
        let frame = Frame::with_payload(command, payload.to_owned());
        self.controller.send(frame).unwrap();
    }

    /// The next payload of that kind that satisfies the condition. Earlier payloads of that kind
    /// are dropped.
    #[track_caller]
    pub fn next<T: Payload>(&mut self, mut will_do: impl FnMut(&T) -> bool) -> T {
        let deadline = Instant::now() + LIMIT;
        let mut others = VecDeque::new();
        let mut frames = Vec::new();
        loop {
            let frame = match self.waiting.pop_front() {
                Some(frame) => frame,
                None => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    self.controller
                        .recv_frame_timeout(left)
                        .unwrap_or_else(|e| panic!("no such {}: {e}; {frames:?}", T::KIND))
                }
            };
            if frame.kind() != T::KIND {
                frames.push(String::from_utf8_lossy(frame.payload_bytes()).into_owned());
                others.push_back(frame);
                continue;
            }
            let payload: T = frame.payload().unwrap();
            if will_do(&payload) {
                others.append(&mut self.waiting);
                self.waiting = others;
                return payload;
            }
            frames.push(String::from_utf8_lossy(frame.payload_bytes()).into_owned());
        }
    }

    /// Waits for STATS in which an instance is in that state.
    #[track_caller]
    pub fn wait_state(&mut self, id: Uuid, state: InstanceState) -> InstanceStats {
        let of = |stats: &Stats| stats.instances.iter().find(|i| i.instance_uuid == id).cloned();
        let stats = self.next(|stats: &Stats| of(stats).is_some_and(|i| i.state == state));
        of(&stats).unwrap()
    }

    /// A shell script as an instance.
    pub fn script(&self, text: &str) -> Start {
        Start {
            instance_uuid: Uuid::new_v4(),
            vm_type: VmType::Process,
            persistence: Persistence::Host,
            command: ["sh", "-c", text].map(String::from).to_vec(),
            requirements: Requirements {
                vcpus: 1,
                ..Requirements::default()
            },
            ..Start::default()
        }
    }

    /// Starts a script and waits until it runs.
    #[track_caller]
    pub fn run(&mut self, text: &str) -> Uuid {
        let start = self.script(text);
        self.send(&start);
        self.wait_state(start.instance_uuid, InstanceState::Active);
        start.instance_uuid
    }

    pub fn instance_dir(&self, id: Uuid) -> PathBuf {
        self.path("state/instances").join(id.to_string())
    }

    /// The output of an instance, once it has that many lines.
    #[track_caller]
    pub fn output(&self, id: Uuid, lines: usize) -> String {
        let path = self.instance_dir(id).join("stdout.log");
        wait_for(|| match fs::read_to_string(&path).unwrap_or_default() {
            text if text.lines().count() >= lines => Ok(text),
            text => Err(text),
        })
    }

    /// Waits until the record of an instance has its end, with this line.
    #[track_caller]
    pub fn records(&self, id: Uuid, line: &str) {
        let path = self.instance_dir(id).join("instance.yaml");
        wait_for(|| match fs::read_to_string(&path) {
            Ok(record) if record.contains("phase: stopped") && record.contains(line) => Ok(()),
            other => Err(other),
        });
    }

    /// The process that supervises an instance.
    pub fn pid(&self, id: Uuid) -> i32 {
        let record = fs::read_to_string(self.instance_dir(id).join("instance.yaml")).unwrap();
        let pid = record.lines().find_map(|line| line.strip_prefix("pid: "));
        pid.unwrap().parse().unwrap()
    }
}

impl Drop for Cluster {
    /// Leaves no process behind, even if the test has failed. A process whose supervisor is killed
    /// is killed as well.
    fn drop(&mut self) {
        drop(self.agent.take());
        for pid in leaders(self.dir.path()) {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }
}

/// A directory that the users of instances may enter.
fn place() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    dir
}

/// A driver of processes. Its supervisors are the program `ssntp`, not this test program.
pub fn driver() -> ProcessDriver {
    let driver = ProcessDriver::new(Confinement::ResourceLimits).unwrap();
    driver.supervisor(env!("CARGO_BIN_EXE_ssntp"))
}

/// The processes whose arguments name a file in this directory.
fn leaders(dir: &Path) -> Vec<rustix::process::Pid> {
    let dir = fs::canonicalize(dir).unwrap();
    let dir = dir.to_str().unwrap().to_owned();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(&dir)
    })
    .filter_map(rustix::process::Pid::from_raw)
    .collect()
}

pub fn stop(id: Uuid) -> Stop {
    Stop {
        instance_uuid: id.into(),
        workload_agent_uuid: NODE.into(),
        stop: false,
    }
}

pub fn delete(id: Uuid) -> Delete {
    Delete {
        instance_uuid: id.into(),
        workload_agent_uuid: NODE.into(),
        stop: false,
    }
}

pub fn restart(id: Uuid) -> Restart {
    Restart {
        instance_uuid: id.into(),
        workload_agent_uuid: NODE.into(),
        ..Restart::default()
    }
}

pub fn evacuate() -> Evacuate {
    Evacuate {
        workload_agent_uuid: NODE.into(),
        ..Evacuate::default()
    }
}

pub fn restore() -> Restore {
    Restore {
        workload_agent_uuid: NODE.into(),
    }
}

pub fn attach(id: Uuid, volume: Uuid) -> AttachVolume {
    AttachVolume {
        instance_uuid: id.into(),
        volume_uuid: volume.into(),
        workload_agent_uuid: NODE.into(),
    }
}

pub fn detach(id: Uuid, volume: Uuid) -> DetachVolume {
    DetachVolume {
        instance_uuid: id.into(),
        volume_uuid: volume.into(),
        workload_agent_uuid: NODE.into(),
    }
}
