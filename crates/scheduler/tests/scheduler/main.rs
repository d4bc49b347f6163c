//! The scheduler with clients over TLS in memory: every row of the scheduler's tables in
//! docs/cluster.md.
//!
//! | file | rules |
//! |---|---|
//! | `routing` | the frames that each role may send, and their receivers |
//! | `nodes` | NodeConnected, NodeDisconnected, and the snapshot of a new controller |
//! | `starts` | placement, held and lost STARTs |
//! | `moves` | instances that are started elsewhere when their node is evacuated |
//! | `truth` | the reports that a peer may send, and the reports that settle a START |
//! | `answers` | the answers of the scheduler itself |
//! | `controllers` | any and master |
//! | `questions` | the questions of a controller to the scheduler |
//! | `configuration` | CONFIGURE, its file, and the previous configuration |
//! | `enrolment` | tokens, and the certificates of nodes that join |
//! | `engine` | the requests to the engine, with few and with many sessions |
//! | `streams` | the output of instances |
//! | `tenants` | the addresses of tenants' instances |
//! | `term` | several schedulers, of which one leads |
//! | `figures` | the figures of the scheduler |
//! | `bad_input` | unreadable payloads |
//! | `client` | a client that the test controls |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test may fail, and has time limits"
)]
#![allow(
    missing_debug_implementations,
    unreachable_pub,
    reason = "nothing here is public"
)]

mod answers;
mod bad_input;
mod client;
mod configuration;
mod controllers;
mod engine;
mod enrolment;
mod figures;
mod moves;
mod nodes;
mod questions;
mod routing;
mod starts;
mod streams;
mod tenants;
mod term;
mod truth;

use std::time::Instant;

use ssntp::Role;
use ssntp::proto::{Command, Frame};
use ssntp::server::{Context, Server, ServerConfig};
use ssntp::transport::memory::MemoryListener;
use ssntp_payload::{InstanceState, InstanceStats, NodeConnected, Ready, Reason, Start, StartFailure, Stats};
use ssntp_scheduler::placement::Policy;
use ssntp_scheduler::{Scheduler, SchedulerConfig};
use ssntp_test_support::LIMIT;
use uuid::Uuid;

use self::client::Client;

/// A scheduler without sessions.
pub struct Cluster {
    listener: MemoryListener,
    server: Server,
}

impl Cluster {
    pub fn new(config: SchedulerConfig) -> Self {
        Self::with(config, |server| server)
    }

    pub fn with(config: SchedulerConfig, change: impl FnOnce(ServerConfig) -> ServerConfig) -> Self {
        let listener = MemoryListener::new();
        let server = ServerConfig::new(client::identity(Role::SCHEDULER), ssntp_test_support::trust())
            .listen_in_memory(&listener);
        let server = Scheduler::new(config).unwrap().start(change(server)).unwrap();
        Self { listener, server }
    }

    pub fn strict() -> Self {
        Self::new(SchedulerConfig::new())
    }

    pub fn opportunistic() -> Self {
        Self::new(SchedulerConfig::new().policy(Policy::Opportunistic))
    }

    /// Stops the scheduler.
    pub fn stop(self) {
        self.server.stop();
    }

    /// Waits until the session of `uuid` is over.
    pub fn wait_disconnected(&self, uuid: Uuid) {
        let is_listed = move |cx: &mut Context<'_>| cx.directory().session(uuid).is_some();
        let began = Instant::now();
        while self.server.handle().with(is_listed).unwrap() {
            assert!(began.elapsed() < LIMIT, "{uuid} is still connected");
            std::thread::yield_now();
        }
    }

    pub fn connect(&self, role: Role) -> Client {
        Client::connect(&self.listener, role)
    }

    pub fn controller(&self) -> Client {
        self.connect(Role::CONTROLLER)
    }

    /// An agent that has sent no frame yet. `controllers` are all that are
    /// connected.
    pub fn agent(&self, role: Role, controllers: &mut [&mut Client]) -> Client {
        let agent = self.connect(role);
        for controller in controllers {
            let kinds = (role & (Role::AGENT | Role::NETAGENT)).iter().count();
            for _ in 0..kinds {
                let connected: NodeConnected = controller.expect_payload();
                assert_eq!(connected.node_uuid, agent.uuid);
            }
        }
        agent
    }

    /// A compute node that may have been connected before; it has sent no frame in this session.
    pub fn agent_as(&self, uuid: Uuid) -> Client {
        Client::connect_as(&self.listener, Role::AGENT, uuid)
    }

    /// A compute node with this memory, 100,000 MB of disk, and 8 CPUs.
    pub fn node(&self, mem_mb: i64, controllers: &mut [&mut Client]) -> Client {
        let mut agent = self.agent(Role::AGENT, controllers);
        send_ready(&mut agent, mem_mb);
        agent
    }
}

/// Waits until the scheduler has handled all frames of `sender`, and checks that it has sent none to
/// the sender or to `others`.
///
/// Frames of two sessions have no common order. So `others` are checked only after the frames of
/// `sender` were handled.
#[track_caller]
pub fn expect_no_frames(sender: &mut Client, others: &mut [&mut Client]) {
    sender.expect_nothing();
    for other in others {
        other.expect_nothing();
    }
}

/// Sends READY, and waits until the scheduler has handled it.
#[track_caller]
pub fn send_ready(agent: &mut Client, mem_mb: i64) {
    agent.send_payload(&ready(agent.uuid, mem_mb));
    agent.expect_nothing();
}

pub fn ready(node: Uuid, mem_mb: i64) -> Ready {
    Ready {
        node_uuid: node.into(),
        mem_total_mb: mem_mb,
        mem_available_mb: mem_mb,
        disk_total_mb: 100_000,
        disk_available_mb: 100_000,
        load: 0,
        cpus_online: 8,
        networks: Vec::new(),
        hostname: format!("host-{node}"),
        ..Ready::default()
    }
}

pub fn stats(node: Uuid, instances: &[Uuid]) -> Stats {
    let instance = |uuid: &Uuid| InstanceStats {
        instance_uuid: (*uuid).into(),
        state: InstanceState::Pending,
        ..InstanceStats::default()
    };
    Stats {
        node_uuid: node.into(),
        instances: instances.iter().map(instance).collect(),
        ..Stats::default()
    }
}

/// A START of a new instance that needs this memory.
pub fn start(mem_mb: i64) -> Start {
    let mut start = Start {
        instance_uuid: Uuid::new_v4(),
        ..Start::default()
    };
    start.requirements.mem_mb = mem_mb;
    start.requirements.vcpus = 1;
    start
}

/// Sends a START, and expects it at this agent.
#[track_caller]
pub fn start_on(controller: &mut Client, agent: &mut Client, start: &Start) {
    controller.send_payload(start);
    expect_start(agent, start);
}

#[track_caller]
pub fn expect_start(agent: &mut Client, start: &Start) {
    let got: Start = agent.expect_payload();
    assert_eq!(got.instance_uuid, start.instance_uuid);
}

/// Expects the StartFailure as the next frame.
#[track_caller]
pub fn expect_failure(controller: &mut Client, start: &Start, reason: Reason) -> StartFailure {
    let failure: StartFailure = controller.expect_payload();
    assert_eq!(failure.instance_uuid, start.instance_uuid);
    assert_eq!(failure.reason, reason);
    failure
}

/// Sends a START, and returns the reason of its failure.
#[track_caller]
pub fn refused(controller: &mut Client, start: &Start, reason: Reason) {
    controller.send_payload(start);
    expect_failure(controller, start, reason);
}

/// The payload of STOP, DELETE or a similar command, as text.
pub fn command(kind: Command, root: &str, agent: Uuid, instance: Uuid) -> Frame {
    let volume = Uuid::from_u128(0x70);
    let payload = format!(
        "{root}:\n  instance_uuid: {instance}\n  volume_uuid: {volume}\n  workload_agent_uuid: {agent}\n"
    );
    Frame::with_payload(kind, payload)
}
