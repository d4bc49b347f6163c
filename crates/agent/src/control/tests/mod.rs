//! The state machine without threads: inputs in, frames and jobs out.
//!
//! | file | rules about |
//! |---|---|
//! | `commands` | each command in each state, and its failures |
//! | `instances` | an instance from START to DELETE |
//! | `node` | sessions, STATS, status, capacity, configuration, tenants |
//! | `streams` | streams of logs |
//! | `volumes` | AttachVolume and DetachVolume |
//! | `adoption` | instances that a former agent left |
//! | `life` | restarts by policy, retention |

mod adoption;
mod commands;
mod instances;
mod life;
mod node;
mod streams;
mod volumes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::time::UNIX_EPOCH;

use super::instance::HUNG;
use super::outputs::{MAX_PARKED, REPEATED, RETRY};
use super::reports::{PATIENCE, SETTLE, SETTLE_EACH};
use super::volumes::MAX_VOLUME_OPS;
use super::*;
use crate::driver::{
    Commit, Driver, Exit, Found, Health, InstanceDir, Launch, Measurable, NewsSink, Reason, Refused, RunId,
    Running, Volume,
};
use crate::policy::Policy;
use crate::store::{Record, RecordPhase};
use ssntp::payload::*;
use ssntp_payload::*;

const NODE: Uuid = Uuid::from_u128(0xa);
const OTHER: Uuid = Uuid::from_u128(0xb);
const ONE: Uuid = Uuid::from_u128(1);
const TWO: Uuid = Uuid::from_u128(2);
const VOLUME: Uuid = Uuid::from_u128(0xd15c);

/// A driver for processes that finds runs as a test sets them.
#[derive(Debug)]
struct Fake {
    /// A driver of another name than `fake` takes no instance.
    name: &'static str,
    found: Option<Exit>,
    never_ran: bool,
    unrecorded: Option<RunId>,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            name: "fake",
            found: None,
            never_ran: false,
            unrecorded: None,
        }
    }
}

impl Driver for Fake {
    fn name(&self) -> &'static str {
        self.name
    }

    fn check(&self, start: &Start) -> Result<(), Refused> {
        match start.vm_type {
            _ if self.name != "fake" => Err(Refused::launch("not for this driver")),
            VmType::Process if start.dir == "bad" => Err(Refused::new(Reason::InvalidData, "bad")),
            VmType::Process => Ok(()),
            _ => Err(Refused::launch("not a process")),
        }
    }

    fn find(&self, _: &Running) -> Found {
        if self.never_ran {
            return Found::NeverRan;
        }
        self.found.clone().map_or(Found::Running, Found::Ended)
    }

    fn find_unrecorded(&self, _: &InstanceDir) -> Option<RunId> {
        self.unrecorded.clone()
    }

    fn launch(&self, _: &Launch<'_>, _: &mut Commit<'_>) -> Result<RunId, Refused> {
        unreachable!("only workers launch instances")
    }
    fn watch(&self, _: &Running, _: &NewsSink) {
        unreachable!()
    }
    fn terminate(&self, _: &Running) -> io::Result<()> {
        unreachable!()
    }
    fn kill(&self, _: &Running) -> io::Result<()> {
        unreachable!()
    }
    fn measure(&self, _: &[Measurable]) -> Vec<Usage> {
        unreachable!()
    }
    fn forget(&self, _: &InstanceDir) {
        unreachable!()
    }
    fn attach(&self, _: &InstanceDir, _: Option<&RunId>, _: &Volume) -> Result<(), Refused> {
        unreachable!()
    }
    fn detach(&self, _: &InstanceDir, _: Option<&RunId>, _: &Volume) -> Result<(), Refused> {
        unreachable!()
    }
}

/// An agent, its clock, and the outputs that the test has not checked yet.
struct Stage {
    control: Control,
    now: Instant,
    sent: VecDeque<Frame>,
    jobs: VecDeque<Job>,
    evacuated: Vec<NextState>,
    streams: Vec<StreamOrder>,
    /// True if the workers are so busy that they send no signals.
    busy: bool,
}

fn settings() -> Settings {
    Settings {
        node: NODE,
        role: Role::AGENT,
        drivers: vec![Arc::new(Fake::default())],
        policy: Arc::default(),
        state: Some("/state".into()),
        has_volumes: true,
        mem_mb: Some(1000),
        disk_mb: Some(10 * 1024),
        max_instances: 3,
        labels: BTreeMap::new(),
        interval: Duration::from_secs(30),
        grace: Duration::from_secs(10),
        network: None,
    }
}

fn facts() -> Facts {
    Facts {
        mem_total_mb: 8000,
        mem_available_mb: 4000,
        disk_total_mb: 90_000,
        disk_available_mb: 50_000,
        load: 1,
        cpus_online: 2,
        hostname: "n1".into(),
        networks: vec![
            NodeNetwork {
                ip: "192.0.2.9".into(),
                mac: String::new(),
            },
            NodeNetwork {
                ip: "10.1.0.9".into(),
                mac: String::new(),
            },
        ],
        ..Facts::default()
    }
}

#[expect(clippy::disallowed_methods, reason = "any instant will do to begin with")]
fn control(settings: Settings) -> (Control, Instant) {
    let now = Instant::now();
    (Control::new(settings, facts(), now), now)
}

impl Stage {
    fn offline(settings: Settings) -> Self {
        let (control, now) = control(settings);
        Self {
            control,
            now,
            sent: VecDeque::new(),
            jobs: VecDeque::new(),
            evacuated: Vec::new(),
            streams: Vec::new(),
            busy: false,
        }
    }

    fn of(settings: Settings) -> Self {
        let mut stage = Self::offline(settings);
        stage.connect();
        stage.measure();
        stage.sent.clear();
        stage
    }

    fn new() -> Self {
        Self::of(settings())
    }

    fn connect(&mut self) {
        self.feed(Input::Connected { configuration: None });
    }

    fn feed(&mut self, input: Input) {
        let mut signalled = Vec::new();
        self.control.handle(self.now, input);
        for action in self.control.take_actions() {
            match action {
                Action::Send(frame) => self.sent.push_back(frame),
                Action::Job(job) => {
                    if let Job::Terminate(_, running) | Job::Kill(_, running) = &job
                        && !self.busy
                    {
                        signalled.push(running.place.instance());
                    }
                    self.jobs.push_back(job);
                }
                Action::Evacuated(next) => self.evacuated.push(next),
                Action::Stream(order) => self.streams.push(order),
            }
        }
        for instance in signalled {
            self.feed(Input::Done(Done::Signalled { instance }));
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.feed(Input::Tick);
    }

    fn send<T: Payload>(&mut self, payload: &T) {
        self.feed(Input::Frame(Frame::of(payload)));
    }

    fn raw(&mut self, command: Command, payload: &str) {
        self.feed(Input::Frame(Frame::with_payload(command, payload.to_owned())));
    }

    /// The payload of the next frame of this kind; the frames before it are dropped.
    #[track_caller]
    fn next<T: Payload>(&mut self) -> T {
        while let Some(frame) = self.sent.pop_front() {
            if frame.kind() == T::KIND {
                return frame.payload().unwrap();
            }
        }
        panic!("no {} was sent", T::KIND);
    }

    #[track_caller]
    fn nothing<T: Payload>(&self) {
        let found = self.sent.iter().find(|frame| frame.kind() == T::KIND);
        assert_eq!(found, None);
    }

    fn kinds(&mut self) -> Vec<String> {
        self.sent
            .drain(..)
            .map(|frame| frame.kind().to_string())
            .collect()
    }

    /// Completes the measurement under way, if there is one.
    fn measure(&mut self) {
        self.pass(SETTLE);
        self.jobs.retain(|job| !matches!(job, Job::Measure(..)));
        if self.control.reports.is_measuring() {
            self.feed(Input::Done(Done::Measured {
                facts: facts(),
                usages: Vec::new(),
                tunnels: Vec::new(),
            }));
        }
    }

    fn stats(&mut self) -> Stats {
        self.control.stats()
    }

    fn state(&mut self, id: Uuid) -> Option<InstanceState> {
        let stats = self.stats();
        let found = stats.instances.iter().find(|i| i.instance_uuid == id);
        found.map(|i| i.state.clone())
    }

    #[track_caller]
    fn job<T>(&mut self, pick: impl Fn(&Job) -> Option<T>) -> T {
        while let Some(job) = self.jobs.pop_front() {
            if let Some(found) = pick(&job) {
                return found;
            }
        }
        panic!("no such job");
    }

    fn launched(&mut self, id: Uuid) {
        self.launched_at(id, 0);
    }

    fn launched_at(&mut self, id: Uuid, began: u64) {
        self.job(|job| matches!(job, Job::Launch(job) if job.instance == id).then_some(()));
        self.feed(Input::Done(Done::Launched {
            instance: id,
            result: Ok((handle(id), began)),
        }));
    }

    fn run(&mut self, start: &Start) {
        self.send(start);
        self.launched(start.instance_uuid);
    }

    fn end(&mut self, id: Uuid, code: i32) {
        self.feed(Input::News(News::Ended(Ended {
            instance: id,
            handle: handle(id),
            exit: Exit::code(code),
        })));
    }

    fn removed(&mut self, id: Uuid) {
        self.job(|job| matches!(job, Job::Remove { instance, .. } if *instance == id).then_some(()));
        self.feed(Input::Done(Done::Removed {
            instance: id,
            result: Ok(()),
        }));
    }
}

fn handle(id: Uuid) -> RunId {
    RunId {
        pid: 77,
        start_time: id.as_u64_pair().1,
        boot_id: "boot".into(),
    }
}

fn start(id: Uuid) -> Start {
    Start {
        instance_uuid: id,
        tenant_uuid: "t".into(),
        vm_type: VmType::Process,
        command: vec!["true".into()],
        requirements: Requirements {
            mem_mb: 100,
            vcpus: 1,
            ..Requirements::default()
        },
        ..Start::default()
    }
}

fn persistent(id: Uuid) -> Start {
    Start {
        persistence: Persistence::Host,
        ..start(id)
    }
}

fn stop(id: Uuid) -> Stop {
    Stop {
        instance_uuid: id.into(),
        workload_agent_uuid: NODE.into(),
        stop: false,
    }
}

fn delete(id: Uuid, stop: bool) -> Delete {
    Delete {
        instance_uuid: id.into(),
        workload_agent_uuid: NODE.into(),
        stop,
    }
}

fn restart(id: Uuid) -> Restart {
    Restart {
        instance_uuid: id.into(),
        workload_agent_uuid: NODE.into(),
        ..Restart::default()
    }
}

fn evacuate() -> Evacuate {
    Evacuate {
        workload_agent_uuid: NODE.into(),
        ..Evacuate::default()
    }
}

fn restore() -> Restore {
    Restore {
        workload_agent_uuid: NODE.into(),
    }
}

fn attach(id: Uuid, volume: Uuid) -> AttachVolume {
    AttachVolume {
        instance_uuid: id.into(),
        volume_uuid: volume.into(),
        workload_agent_uuid: NODE.into(),
    }
}

fn detach(id: Uuid, volume: Uuid) -> DetachVolume {
    DetachVolume {
        instance_uuid: id.into(),
        volume_uuid: volume.into(),
        workload_agent_uuid: NODE.into(),
    }
}
