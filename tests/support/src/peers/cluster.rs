//! The servers of [`cluster`](super::cluster): a scheduler, and a real agent whose instances do
//! nothing. The peers send frames about four instances, each other, and the agent.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use ssntp::Role;
use ssntp::client::{ClientConfig, UuidSource};
use ssntp::proto::{Command, ErrorCode, Event, Frame, FrameKind, Operands, Status};
use ssntp::server::ServerConfig;
use ssntp::transport::memory::MemoryListener;
use ssntp_agent::driver::{
    Commit, Driver, Ended, Exit, Found, InstanceDir, Launch, Measurable, NewsSink, Refused, RunId, Running,
    Usage, Volume,
};
use ssntp_agent::{Agent, AgentConfig, Policy, RunAs};
use ssntp_payload::{Ready, Restore, Start};
use ssntp_scheduler::{Scheduler, SchedulerConfig};
use tempfile::TempDir;
use uuid::Uuid;

use super::{MAX_PAYLOAD, ROLES, World, connect};
use crate::{TestServer, identity, trust};

/// The time within which the agent has to reconnect after its session was ended.
const LIMIT: Duration = Duration::from_secs(60);
/// More memory than any payload here requires, and more than the agent has.
const MUCH_MB: i64 = 1_000_000;

/// The agent, and the directory in which it keeps its instances.
pub(super) struct Node {
    agent: Agent,
    pub(super) uuid: Uuid,
    _state: TempDir,
}

/// A START that the agent accepts, because it needs no network.
const START: &str = "start:
  instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
  persistence: host
  requirements:
    mem_mb: 64
    vcpus: 1
";

/// Valid payloads by the kind of their frame.
fn sample_of(kind: FrameKind) -> Option<&'static str> {
    macro_rules! samples {
        ($($kind:path => $name:literal)*) => {
            [$((FrameKind::from($kind), include_str!(concat!("../../../../crates/payload/tests/fixtures/payloads/", $name, ".yaml")))),*]
        };
    }
    let samples = samples! {
        Status::READY => "READY"
        Command::STATS => "STATS"
        Command::STOP => "old2017_STOP"
        Command::RESTART => "old2017_RESTART"
        Command::DELETE => "DELETE"
        Command::EVACUATE => "EVACUATE"
        Command::RESTORE => "Restore"
        Command::CONFIGURE => "CONFIGURE_and_CONNECTED"
        Command::ATTACH_VOLUME => "AttachVolume"
        Command::DETACH_VOLUME => "old2017_DetachVolume"
        Command::ASSIGN_PUBLIC_IP => "AssignPublicIP"
        Command::RELEASE_PUBLIC_IP => "ReleasePublicIP"
        Command::REFRESH_CNCI => "RefreshCNCI"
        Command::TENANT => "ours_Tenant"
        Event::TENANT_ADDED => "TenantAdded"
        Event::TENANT_REMOVED => "TenantRemoved"
        Event::INSTANCE_DELETED => "InstanceDeleted"
        Event::INSTANCE_STOPPED => "InstanceStopped"
        Event::CONCENTRATOR_INSTANCE_ADDED => "ConcentratorInstanceAdded"
        Event::PUBLIC_IP_ASSIGNED => "PublicIPAssigned"
        Event::TRACE_REPORT => "TraceReport"
        ErrorCode::START_FAILURE => "StartFailure"
        ErrorCode::STOP_FAILURE => "old2017_StopFailure"
        ErrorCode::DELETE_FAILURE => "DeleteFailure"
        ErrorCode::RESTART_FAILURE => "old2017_RestartFailure"
        ErrorCode::ATTACH_VOLUME_FAILURE => "AttachVolumeFailure"
    };
    let mut samples = samples.into_iter().chain([(Command::START.into(), START)]);
    samples.find_map(|(of, text)| (of == kind).then_some(text))
}

/// Such a payload about `other`, and about one of four instances.
pub(super) fn sample(kind: FrameKind, other: Uuid) -> Option<Vec<u8>> {
    let instance = Uuid::from_u128(0x1000 + other.as_u128() % 4).to_string();
    let about = |line: &str| match line.split_once(": ") {
        Some((key, value)) if value.parse::<Uuid>().is_ok() => {
            if key.contains("instance") {
                format!("{key}: {instance}\n")
            } else {
                format!("{key}: {other}\n")
            }
        }
        _ => format!("{line}\n"),
    };
    // There is no user of that name.
    let lines = |text: &str| text.replace("ciao", "").lines().map(about).collect::<String>();
    sample_of(kind).map(|text| lines(text).into_bytes())
}

pub(super) fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let listener = MemoryListener::new();
        let config = ServerConfig::new(identity(Role::SCHEDULER), trust())
            .listen_in_memory(&listener)
            .operators(Role::CONTROLLER)
            .tracing(true)
            .max_payload(MAX_PAYLOAD);
        let scheduler = Scheduler::new(SchedulerConfig::new()).unwrap();
        let server = TestServer {
            server: Some(scheduler.start(config).unwrap()),
            listener,
        };
        let (uuid, state) = (Uuid::new_v4(), tempfile::tempdir().unwrap());
        let client = ClientConfig::new(identity(Role::AGENT), trust())
            .uuid(UuidSource::Given(uuid))
            .connect_in_memory(&server.listener);
        let mut policy = Policy::default();
        policy.users = vec![RunAs::Agent];
        let config = AgentConfig::new(client)
            .policy(policy)
            .state(state.path())
            .driver(Idle::default())
            .mem_mb(10_000)
            .disk_mb(10_000);
        let agent = Agent::start(config).unwrap();
        World {
            server,
            identities: ROLES.map(identity),
            operands: Operands::new(),
            kinds: FrameKind::all().collect(),
            node: Some(Node {
                agent,
                uuid,
                _state: state,
            }),
        }
    })
}

/// Checks that the agent is connected and accepts commands, and that a new node gets the START for
/// which no other node has room.
pub(super) fn serves_others(world: &World, node: &Node) {
    let deadline = Instant::now() + LIMIT;
    let is_there = || {
        world
            .server
            .handle()
            .sessions()
            .unwrap()
            .iter()
            .any(|(session, _)| session.uuid() == node.uuid)
    };
    while !is_there() {
        assert!(node.agent.ended().try_recv().is_err(), "the agent has ended");
        assert!(Instant::now() < deadline, "the agent does not reconnect");
        std::thread::yield_now();
    }
    let mut controller = connect(world, 1, Uuid::new_v4(), false).unwrap();
    controller.send(&Frame::of(&Restore {
        workload_agent_uuid: node.uuid.into(),
    }));
    let mut other = connect(world, 0, Uuid::new_v4(), false).unwrap();
    let ready = Frame::of(&Ready {
        node_uuid: other.uuid.into(),
        mem_total_mb: MUCH_MB,
        mem_available_mb: MUCH_MB,
        ..Ready::default()
    });
    other.send(&ready);
    let mut start = Start {
        instance_uuid: Uuid::new_v4(),
        ..Start::default()
    };
    start.requirements.mem_mb = MUCH_MB / 2;
    controller.send(&Frame::of(&start));
    let is_it = |frame: Frame| {
        frame
            .payload::<Start>()
            .is_ok_and(|got| got.instance_uuid == start.instance_uuid)
    };
    // A node gets one START for each READY, and STARTs that are held come first. A START that is sent
    // before the READY waits for it.
    loop {
        let frame = other.frame();
        if frame.kind() == Command::START {
            if is_it(frame) {
                break;
            }
            other.send(&ready);
        }
    }
}

/// A driver whose instances do nothing until they are stopped.
#[derive(Default)]
struct Idle(Mutex<HashMap<Uuid, Option<NewsSink>>>);

impl std::fmt::Debug for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Idle")
    }
}

impl Driver for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn check(&self, _: &ssntp_payload::Start) -> Result<(), Refused> {
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, commit: &mut Commit<'_>) -> Result<RunId, Refused> {
        let (_, run) = Uuid::new_v4().as_u64_pair();
        let handle = RunId {
            start_time: run,
            ..RunId::default()
        };
        commit(&handle).map_err(|e| Refused::io("its state cannot be saved", &e))?;
        self.0.lock().unwrap().insert(launch.place.instance(), None);
        Ok(handle)
    }

    fn watch(&self, running: &Running, sink: &NewsSink) {
        if let Some(watched) = self.0.lock().unwrap().get_mut(&running.place.instance()) {
            *watched = Some(NewsSink::clone(sink));
        }
    }

    fn terminate(&self, running: &Running) -> io::Result<()> {
        let instance = running.place.instance();
        let sink = self.0.lock().unwrap().remove(&instance).flatten();
        if let Some(sink) = sink {
            let ended = Ended {
                instance,
                handle: running.handle.clone(),
                exit: Exit::code(0),
            };
            sink(ended.into());
        }
        Ok(())
    }

    fn kill(&self, running: &Running) -> io::Result<()> {
        self.terminate(running)
    }

    fn find(&self, _: &Running) -> Found {
        Found::Ended(Exit::default())
    }

    fn find_unrecorded(&self, _: &InstanceDir) -> Option<RunId> {
        None
    }

    fn measure(&self, instances: &[Measurable]) -> Vec<Usage> {
        vec![Usage::default(); instances.len()]
    }

    fn forget(&self, place: &InstanceDir) {
        self.0.lock().unwrap().remove(&place.instance());
    }

    fn attach(&self, _: &InstanceDir, _: Option<&RunId>, _: &Volume) -> Result<(), Refused> {
        Ok(())
    }

    fn detach(&self, _: &InstanceDir, _: Option<&RunId>, _: &Volume) -> Result<(), Refused> {
        Ok(())
    }
}
