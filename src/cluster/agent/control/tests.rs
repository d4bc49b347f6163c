//! The state machine row by row, without threads: inputs in, frames and jobs
//! out.

use std::io;

use super::*;
use crate::cluster::agent::driver::{Commit, EndSink, Launch, LaunchFault, Volume, VolumeFault};
use crate::payload::*;

const NODE: Uuid = Uuid::from_u128(0xa);
const OTHER: Uuid = Uuid::from_u128(0xb);
const ONE: Uuid = Uuid::from_u128(1);
const TWO: Uuid = Uuid::from_u128(2);
const VOLUME: Uuid = Uuid::from_u128(0xd15c);

/// Takes processes, and finds what it is told to.
#[derive(Debug, Default)]
struct Fake {
    found: Option<Exit>,
    unrecorded: Option<Handle>,
}

impl Driver for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn check(&self, start: &Start) -> Result<(), LaunchError> {
        match start.vm_type {
            VmType::Process if start.dir == "bad" => Err(LaunchError::new(LaunchFault::Data, "bad")),
            VmType::Process => Ok(()),
            _ => Err(LaunchError::launch("not a process")),
        }
    }

    fn find(&self, _: &Running) -> Found {
        self.found.map_or(Found::Running, Found::Ended)
    }

    fn find_unrecorded(&self, _: &Place) -> Option<Handle> {
        self.unrecorded.clone()
    }

    fn launch(&self, _: &Launch<'_>, _: &mut Commit<'_>) -> Result<Handle, LaunchError> {
        unreachable!("the state machine does nothing itself")
    }
    fn watch(&self, _: &Running, _: &EndSink) {
        unreachable!()
    }
    fn terminate(&self, _: &Running) -> io::Result<()> {
        unreachable!()
    }
    fn kill(&self, _: &Running) -> io::Result<()> {
        unreachable!()
    }
    fn measure(&self, _: &[Subject]) -> Vec<Usage> {
        unreachable!()
    }
    fn forget(&self, _: &Place) {
        unreachable!()
    }
    fn attach(&self, _: &Place, _: Option<&Handle>, _: &Volume) -> Result<(), VolumeError> {
        unreachable!()
    }
    fn detach(&self, _: &Place, _: Option<&Handle>, _: &Volume) -> Result<(), VolumeError> {
        unreachable!()
    }
}

/// An agent, its clock, and what came out of it and was not looked at yet.
struct Stage {
    control: Control,
    now: Instant,
    sent: VecDeque<Frame>,
    jobs: VecDeque<Job>,
}

fn settings() -> Settings {
    Settings {
        node: NODE,
        role: Role::AGENT,
        drivers: vec![Arc::new(Fake::default())],
        state: Some("/state".into()),
        has_volumes: true,
        mem_mb: Some(1000),
        disk_mb: Some(10 * 1024),
        max_instances: 3,
        interval: Duration::from_secs(30),
        grace: Duration::from_secs(10),
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
        self.control.handle(self.now, input);
        for action in self.control.take_actions() {
            match action {
                Action::Send(frame) => self.sent.push_back(frame),
                Action::Job(job) => self.jobs.push_back(job),
            }
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

    /// What the next frame of that kind says; the frames before it are gone.
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

    /// Finishes a measurement, if one was asked for.
    fn measure(&mut self) {
        self.pass(SETTLE);
        self.jobs.retain(|job| !matches!(job, Job::Measure(_)));
        if self.control.measuring_since.is_some() {
            self.feed(Input::Done(Done::Measured {
                facts: facts(),
                usages: Vec::new(),
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
        self.job(|job| matches!(job, Job::Launch(job) if job.instance == id).then_some(()));
        self.feed(Input::Done(Done::Launched {
            instance: id,
            result: Ok(handle(id)),
        }));
    }

    fn run(&mut self, start: &Start) {
        self.send(start);
        self.launched(start.instance_uuid);
    }

    fn end(&mut self, id: Uuid, code: i32) {
        self.feed(Input::Ended(Ended {
            instance: id,
            handle: handle(id),
            exit: Exit::code(code),
        }));
    }

    fn removed(&mut self, id: Uuid) {
        self.job(|job| matches!(job, Job::Remove { instance, .. } if *instance == id).then_some(()));
        self.feed(Input::Done(Done::Removed {
            instance: id,
            result: Ok(()),
        }));
    }
}

fn handle(id: Uuid) -> Handle {
    Handle {
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

#[test]
fn a_new_session_hears_the_status_then_what_waited_then_stats() {
    let mut stage = Stage::offline(settings());
    stage.run(&start(ONE));
    stage.send(&stop(ONE));
    stage.end(ONE, 0);
    stage.removed(ONE);
    assert!(stage.sent.is_empty(), "no session stands");
    stage.connect();
    stage.measure();
    assert_eq!(stage.kinds(), ["READY", "InstanceDeleted", "STATS"]);

    stage.feed(Input::Disconnected);
    stage.connect();
    stage.measure();
    assert_eq!(stage.kinds(), ["READY", "STATS"], "told once");
}

#[test]
fn what_cannot_be_sent_is_tried_again_if_it_tells_of_an_event() {
    let mut stage = Stage::new();
    for frame in [
        Frame::of(&InstanceDeleted {
            instance_uuid: ONE.into(),
        }),
        Frame::new(Status::FULL),
        Frame::of(&Stats {
            node_uuid: NODE.into(),
            ..Stats::default()
        }),
    ] {
        stage.feed(Input::Unsent(frame));
    }
    assert!(stage.sent.is_empty(), "not at once: there was no room");
    assert!(stage.control.next_deadline() <= stage.now + RETRY);
    stage.pass(RETRY);
    assert_eq!(stage.kinds(), ["InstanceDeleted"]);

    stage.feed(Input::Disconnected);
    for _ in 0..MAX_HELD + 10 {
        stage.send(&stop(ONE));
    }
    assert_eq!(stage.control.held.len(), MAX_HELD);
}

#[test]
fn stats_come_every_interval_and_soon_after_a_change() {
    let mut stage = Stage::new();
    assert_eq!(stage.control.next_deadline(), stage.control.stats_due);
    stage.pass(Duration::from_secs(29));
    assert!(stage.jobs.is_empty());
    stage.pass(Duration::from_secs(1));
    assert!(matches!(stage.jobs.front(), Some(Job::Measure(_))));
    stage.measure();
    assert_eq!(stage.kinds(), ["STATS"]);

    stage.run(&start(ONE));
    assert_eq!(stage.control.next_deadline(), stage.now + SETTLE);
    stage.pass(SETTLE);
    let subjects = stage.job(|job| match job {
        Job::Measure(by_driver) => Some(by_driver[0].1.clone()),
        _ => None,
    });
    assert_eq!(
        (subjects.len(), subjects[0].vcpus, subjects[0].mem_mb),
        (1, 1, 100)
    );
    assert_eq!(subjects[0].handle, Some(handle(ONE)));
    stage.sent.clear();
    let usage = Usage {
        memory_mb: 30,
        disk_mb: 4,
        cpu_percent: 5,
    };
    stage.feed(Input::Done(Done::Measured {
        facts: facts(),
        usages: vec![(ONE, usage)],
    }));
    let stats: Stats = stage.next();
    assert_eq!((stats.node_uuid, stats.status), (NODE.into(), NodeStatus::Ready));
    assert_eq!(
        (stats.mem_total_mb, stats.mem_available_mb, stats.cpus_online),
        (1000, 900, 2)
    );
    let instance = &stats.instances[0];
    assert_eq!(
        (&instance.state, instance.memory_usage_mb),
        (&InstanceState::Active, 30)
    );
    assert_eq!((instance.disk_usage_mb, instance.cpu_usage), (4, 5));
}

#[test]
fn figures_that_do_not_come_do_not_hold_stats_back() {
    let mut stage = Stage::new();
    stage.pass(Duration::from_secs(30));
    assert_eq!(stage.jobs.len(), 1);
    stage.pass(PATIENCE);
    assert_eq!(stage.kinds(), ["STATS"]);
    assert_eq!(stage.jobs.len(), 1, "they are asked for once");
}

/// Every way in which a START fails, and that READY (or what is true) follows.
#[test]
fn every_start_failure_has_its_reason() {
    use StartFailureReason as Reason;

    type Prepare = fn(&mut Stage);
    type Change = fn(&mut Start);
    let nothing: Prepare = |_| {};
    let rows: &[(Prepare, Change, Reason)] = &[
        (nothing, |s| s.vm_type = VmType::Qemu, Reason::LaunchFailure),
        (nothing, |s| s.dir = "bad".into(), Reason::InvalidData),
        (nothing, |s| s.requirements.mem_mb = -1, Reason::InvalidData),
        (nothing, |s| s.requirements.vcpus = -1, Reason::InvalidData),
        (
            nothing,
            |s| {
                s.storage = vec![Storage {
                    id: "../up".into(),
                    ..Storage::default()
                }]
            },
            Reason::InvalidData,
        ),
        (|t| t.feed(Input::ToggleOffline), |_| {}, Reason::LaunchFailure),
        (|t| t.send(&evacuate()), |_| {}, Reason::NodeMaintenance),
        (|t| t.run(&start(ONE)), |_| {}, Reason::AlreadyRunning),
        (|t| t.send(&start(ONE)), |_| {}, Reason::AlreadyRunning),
        (
            |t| {
                t.run(&start(ONE));
                t.end(ONE, 0);
            },
            |s| s.restart = true,
            Reason::InstanceExists,
        ),
        (
            nothing,
            |s| s.networking.subnet = "172.16.0.0".into(),
            Reason::NetworkFailure,
        ),
        (
            nothing,
            |s| s.networking.vnic_mac = "02:42".into(),
            Reason::NetworkFailure,
        ),
        (
            nothing,
            |s| s.networking.private_ip = "here".into(),
            Reason::NetworkFailure,
        ),
        (nothing, |s| s.requirements.mem_mb = 1001, Reason::FullCn),
        (
            nothing,
            |s| {
                s.storage = vec![Storage {
                    local: true,
                    size: 11,
                    ..Storage::default()
                }]
            },
            Reason::FullCn,
        ),
        (
            |t| (10..13).for_each(|n| t.run(&start(Uuid::from_u128(n)))),
            |s| s.requirements.mem_mb = 0,
            Reason::FullCn,
        ),
        (
            |t| t.control.settings.has_volumes = false,
            |s| {
                s.storage = vec![Storage {
                    id: VOLUME.into(),
                    ..Storage::default()
                }]
            },
            Reason::ImageFailure,
        ),
        (|t| t.control.settings.state = None, |_| {}, Reason::LaunchFailure),
        (
            |t| t.control.settings.drivers.clear(),
            |_| {},
            Reason::LaunchFailure,
        ),
    ];
    for (row, (prepare, change, reason)) in rows.iter().enumerate() {
        let mut stage = Stage::new();
        prepare(&mut stage);
        stage.sent.clear();
        stage.jobs.clear();
        let mut start = start(ONE);
        change(&mut start);
        stage.send(&start);
        let failure: StartFailure = stage.next();
        assert_eq!(failure.reason, *reason, "row {row}");
        assert_eq!(
            (failure.node_uuid, failure.instance_uuid),
            (NODE.into(), ONE.into())
        );
        assert_eq!(failure.restart, start.restart);
        let kinds = stage.kinds();
        assert!(
            matches!(&*kinds[0], "READY" | "FULL" | "OFFLINE" | "MAINTENANCE"),
            "row {row}: {kinds:?}"
        );
        assert!(
            !stage.jobs.iter().any(|job| matches!(job, Job::Launch(_))),
            "row {row}"
        );
    }
}

#[test]
fn refused_payloads_are_answered_as_far_as_they_can_be_read() {
    let one = ONE.to_string();
    for (payload, reason, instance, restart) in [
        ("{", "invalid_payload", "", false),
        ("", "invalid_data", "", false),
        ("start:\n  vm_type: process\n", "invalid_data", "", false),
        (
            "start:\n  instance_uuid: nobody\n  restart: true\n",
            "invalid_data",
            "nobody",
            true,
        ),
        (
            "start:\n  instance_uuid: 00000000-0000-0000-0000-000000000001\n  vm_type: process\n",
            "invalid_data",
            &one,
            false,
        ),
    ] {
        let mut stage = Stage::new();
        stage.raw(Command::START, payload);
        let failure: StartFailure = stage.next();
        assert_eq!(failure.reason.as_str(), reason, "{payload:?}");
        assert_eq!(failure.instance_uuid.as_str(), instance, "{payload:?}");
        assert_eq!(failure.restart, restart, "{payload:?}");
    }
    for command in [
        Command::STOP,
        Command::DELETE,
        Command::RESTART,
        Command::ATTACH_VOLUME,
        Command::DETACH_VOLUME,
    ] {
        for (payload, reason) in [
            ("- [", "invalid_payload"),
            ("stop: {}", "invalid_data"),
            ("a: 1", "invalid_data"),
        ] {
            let mut stage = Stage::new();
            stage.raw(command, payload);
            let frame = stage.sent.pop_front().unwrap();
            assert_eq!(frame.kind().frame_type, FrameType::ERROR, "{command}");
            let text = String::from_utf8(frame.payload_bytes().to_vec()).unwrap();
            assert!(text.contains(&format!("reason: {reason}\n")), "{command}: {text}");
            assert!(text.contains(&NODE.to_string()), "{command}: {text}");
        }
    }
    for command in [Command::EVACUATE, Command::RESTORE] {
        for (payload, reason) in [
            ("[", "invalid_payload"),
            ("a: 1", "invalid_data"),
            ("evacuate:\n  workload_agent_uuid: x\n", "invalid_data"),
            ("restore:\n  workload_agent_uuid: x\n", "invalid_data"),
        ] {
            let mut stage = Stage::new();
            stage.raw(command, payload);
            let refusal: InvalidFrameType = stage.next();
            assert_eq!(
                (refusal.refused(), refusal.reason.as_str()),
                (command.into(), reason)
            );
        }
    }
}

/// A column for each state an instance can be in, a row for each command.
#[test]
fn every_command_has_its_answer_in_every_state() {
    type Prepare = fn(&mut Stage);
    let states: [(&str, Prepare); 8] = [
        ("absent", |_| {}),
        ("launching", |t| t.send(&persistent(ONE))),
        ("active", |t| t.run(&persistent(ONE))),
        ("terminating", |t| {
            t.run(&persistent(ONE));
            t.send(&stop(ONE));
        }),
        ("stopped", |t| {
            t.run(&persistent(ONE));
            t.end(ONE, 0);
        }),
        ("removing", |t| {
            t.run(&persistent(ONE));
            t.send(&delete(ONE, false));
            t.end(ONE, 0);
        }),
        ("corrupt", |t| {
            t.run(&persistent(ONE));
            t.end(ONE, 0);
            t.control.instances.get_mut(&ONE).unwrap().start = None;
        }),
        ("offline", |t| {
            t.run(&persistent(ONE));
            t.feed(Input::ToggleOffline);
        }),
    ];
    type Say = fn(&mut Stage, Uuid);
    // Reasons in the order of the states; "" is: none.
    let rows: [(&str, Say, [&str; 8]); 5] = [
        (
            "STOP",
            |t, id| t.send(&stop(id)),
            [
                "no_instance",
                "",
                "",
                "",
                "already_stopped",
                "already_stopped",
                "already_stopped",
                "no_instance",
            ],
        ),
        (
            "RESTART",
            |t, id| t.send(&restart(id)),
            [
                "no_instance",
                "already_running",
                "already_running",
                "already_running",
                "",
                "no_instance",
                "instance_corrupt",
                "launch_failure",
            ],
        ),
        (
            "DELETE",
            |t, id| t.send(&delete(id, false)),
            ["no_instance", "", "", "", "", "", "", "no_instance"],
        ),
        (
            "AttachVolume",
            |t, id| t.send(&attach(id, VOLUME)),
            [
                "no_instance",
                "",
                "",
                "instance_failure",
                "",
                "instance_failure",
                "instance_failure",
                "attach_failure",
            ],
        ),
        (
            "DetachVolume",
            |t, id| t.send(&detach(id, VOLUME)),
            [
                "no_instance",
                "not_attached",
                "not_attached",
                "instance_failure",
                "not_attached",
                "instance_failure",
                "instance_failure",
                "detach_failure",
            ],
        ),
    ];
    for (command, say, reasons) in rows {
        for ((state, prepare), expected) in states.into_iter().zip(reasons) {
            let mut stage = Stage::new();
            prepare(&mut stage);
            stage.sent.clear();
            say(&mut stage, ONE);
            let errors: Vec<_> = stage
                .sent
                .iter()
                .filter(|frame| frame.kind().frame_type == FrameType::ERROR)
                .map(|frame| String::from_utf8(frame.payload_bytes().to_vec()).unwrap())
                .collect();
            match expected {
                "" => assert_eq!(errors, Vec::<String>::new(), "{command}, {state}"),
                reason => {
                    assert_eq!(errors.len(), 1, "{command}, {state}");
                    assert!(
                        errors[0].contains(&format!("reason: {reason}\n")),
                        "{command}, {state}: {}",
                        errors[0]
                    );
                    assert!(errors[0].contains(&ONE.to_string()), "{command}, {state}");
                }
            }
        }
    }
}

#[test]
fn commands_for_other_nodes_or_of_no_uuid_are_refused() {
    let rows: [(&str, &str, &str); 4] = [
        (
            "00000000-0000-0000-0000-00000000000b",
            "00000000-0000-0000-0000-000000000001",
            "no_instance",
        ),
        ("node", "00000000-0000-0000-0000-000000000001", "invalid_data"),
        ("00000000-0000-0000-0000-00000000000a", "one", "invalid_data"),
        (
            "00000000-0000-0000-0000-00000000000a",
            "../../etc",
            "invalid_data",
        ),
    ];
    for (node, instance, reason) in rows {
        for (command, root) in [
            (Command::STOP, "stop"),
            (Command::DELETE, "delete"),
            (Command::RESTART, "restart"),
            (Command::ATTACH_VOLUME, "attach_volume"),
            (Command::DETACH_VOLUME, "detach_volume"),
        ] {
            let mut stage = Stage::new();
            stage.run(&persistent(ONE));
            stage.sent.clear();
            let volume = VOLUME.to_string();
            stage.raw(
                command,
                &format!(
                    "{root}:\n  instance_uuid: {instance}\n  workload_agent_uuid: {node}\n  volume_uuid: {volume}\n"
                ),
            );
            let frame = stage.sent.pop_front().unwrap();
            let text = String::from_utf8(frame.payload_bytes().to_vec()).unwrap();
            assert!(
                text.contains(&format!("reason: {reason}\n")),
                "{command} {node} {instance}: {text}"
            );
            assert!(text.contains(&format!("instance_uuid: {instance}")), "{text}");
        }
    }
}

#[test]
fn an_instance_starts_and_is_told_of() {
    let mut stage = Stage::new();
    stage.send(&start(ONE));
    let ready: Ready = stage.next();
    assert_eq!(ready.mem_available_mb, 900, "it is promised at once");
    assert_eq!(stage.state(ONE), Some(InstanceState::Pending));
    stage.launched(ONE);
    assert_eq!(stage.state(ONE), Some(InstanceState::Active));
    stage.measure();
    let stats: Stats = stage.next();
    assert_eq!(stats.instances.len(), 1);
    stage.sent.clear();

    stage.end(ONE, 3);
    let ready: Ready = stage.next();
    assert_eq!(ready.mem_available_mb, 1000);
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
    let record = stage.job(|job| match job {
        Job::Save { record, .. } => Some(record.clone()),
        _ => None,
    });
    assert_eq!((record.phase, record.exit_code), (RecordPhase::Stopped, 3));
}

#[test]
fn a_failed_launch_leaves_nothing() {
    for (fault, reason) in [
        (LaunchFault::Data, StartFailureReason::InvalidData),
        (LaunchFault::Image, StartFailureReason::ImageFailure),
        (LaunchFault::Full, StartFailureReason::FullCn),
        (LaunchFault::Network, StartFailureReason::NetworkFailure),
        (LaunchFault::Launch, StartFailureReason::LaunchFailure),
    ] {
        let mut stage = Stage::new();
        stage.send(&start(ONE));
        stage.sent.clear();
        stage.feed(Input::Done(Done::Launched {
            instance: ONE,
            result: Err(LaunchError::new(fault, "no")),
        }));
        assert_eq!(stage.next::<StartFailure>().reason, reason);
        assert_eq!(stage.next::<Ready>().mem_available_mb, 1000);
        assert_eq!(stage.control.instances(), 0);
        // It may be tried again.
        stage.run(&start(ONE));
        assert_eq!(stage.state(ONE), Some(InstanceState::Active));
    }
}

#[test]
fn stop_keeps_what_is_persistent_and_deletes_the_rest() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.run(&start(TWO));
    stage.sent.clear();
    for id in [ONE, TWO] {
        stage.send(&stop(id));
        assert_eq!(stage.state(id), Some(InstanceState::Stopping));
        // First it is written down what was asked, then it is asked.
        stage.job(|job| matches!(job, Job::Save { .. }).then_some(()));
        stage.job(|job| matches!(job, Job::Terminate(..)).then_some(()));
        stage.end(id, 143);
    }
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
    stage.nothing::<InstanceDeleted>();
    stage.removed(TWO);
    assert_eq!(stage.next::<InstanceDeleted>().instance_uuid, TWO);
    assert_eq!(stage.control.instances(), 1);

    stage.send(&restart(ONE));
    assert_eq!(stage.state(ONE), Some(InstanceState::Pending));
    stage.launched(ONE);
    assert_eq!(stage.state(ONE), Some(InstanceState::Active));
    // The end of a former run is news no more.
    stage.feed(Input::Ended(Ended {
        instance: ONE,
        handle: handle(TWO),
        exit: Exit::code(0),
    }));
    assert_eq!(stage.state(ONE), Some(InstanceState::Active));
}

#[test]
fn what_does_not_end_is_killed_and_then_called_hung() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.send(&stop(ONE));
    stage.measure();
    stage.jobs.clear();
    assert!(stage.control.next_deadline() <= stage.now + settings().grace);
    stage.pass(settings().grace - SETTLE - SETTLE);
    assert!(stage.jobs.is_empty());
    stage.pass(SETTLE * 2);
    stage.job(|job| matches!(job, Job::Kill(..)).then_some(()));
    assert_eq!(stage.state(ONE), Some(InstanceState::Stopping));
    stage.pass(HUNG);
    stage.job(|job| matches!(job, Job::Kill(..)).then_some(()));
    assert_eq!(stage.state(ONE), Some(InstanceState::Hung));
    stage.end(ONE, 137);
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
}

#[test]
fn delete_removes_and_says_how() {
    for (stop_only, running) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut stage = Stage::new();
        stage.run(&persistent(ONE));
        if !running {
            stage.end(ONE, 0);
        }
        stage.jobs.clear();
        stage.send(&delete(ONE, stop_only));
        if running {
            stage.end(ONE, 143);
        }
        stage.removed(ONE);
        match stop_only {
            true => assert_eq!(stage.next::<InstanceStopped>().instance_uuid, ONE),
            false => assert_eq!(stage.next::<InstanceDeleted>().instance_uuid, ONE),
        }
        assert_eq!(stage.control.instances(), 0);
    }
    // A DELETE overrides a STOP that is under way, and not the other way round.
    for delete_first in [false, true] {
        let mut stage = Stage::new();
        stage.run(&persistent(ONE));
        if delete_first {
            stage.send(&delete(ONE, false));
        }
        stage.send(&stop(ONE));
        stage.send(&delete(ONE, false));
        stage.send(&stop(ONE));
        stage.end(ONE, 143);
        stage.removed(ONE);
        assert_eq!(stage.next::<InstanceDeleted>().instance_uuid, ONE);
        stage.nothing::<InstanceDeleted>();
    }
}

#[test]
fn a_delete_that_fails_is_told_and_may_be_tried_again() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.end(ONE, 0);
    stage.send(&delete(ONE, false));
    stage.feed(Input::Done(Done::Removed {
        instance: ONE,
        result: Err("read-only".into()),
    }));
    assert_eq!(stage.next::<DeleteFailure>().reason.as_str(), "state_failure");
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
    stage.jobs.clear();
    stage.send(&delete(ONE, false));
    stage.removed(ONE);
    stage.next::<InstanceDeleted>();
}

#[test]
fn what_is_asked_while_it_launches_is_done_afterwards() {
    let mut stage = Stage::new();
    stage.send(&start(ONE));
    stage.send(&stop(ONE));
    assert_eq!(stage.state(ONE), Some(InstanceState::Pending));
    stage.launched(ONE);
    stage.job(|job| matches!(job, Job::Terminate(..)).then_some(()));
    stage.end(ONE, 143);
    stage.removed(ONE);
    stage.next::<InstanceDeleted>();

    stage.send(&persistent(TWO));
    stage.send(&delete(TWO, false));
    stage.feed(Input::Done(Done::Launched {
        instance: TWO,
        result: Err(LaunchError::launch("no")),
    }));
    assert_eq!(stage.next::<StartFailure>().instance_uuid, TWO);
    assert_eq!(stage.next::<InstanceDeleted>().instance_uuid, TWO);
}

#[test]
fn a_restarted_program_that_ends_at_once_is_told_of_as_active_before() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.end(ONE, 0);
    stage.measure();
    stage.sent.clear();
    let told = |stage: &mut Stage| stage.next::<Stats>().instances[0].state.clone();
    stage.send(&restart(ONE));
    stage.launched(ONE);
    stage.end(ONE, 0);
    stage.measure();
    assert_eq!(told(&mut stage), InstanceState::Active);
    assert_eq!(told(&mut stage), InstanceState::Exited);
    stage.nothing::<Stats>();

    // Where STATS have told of it meanwhile, no others are needed.
    stage.send(&restart(ONE));
    stage.launched(ONE);
    stage.measure();
    stage.end(ONE, 0);
    stage.measure();
    assert_eq!(told(&mut stage), InstanceState::Active);
    assert_eq!(told(&mut stage), InstanceState::Exited);
    stage.nothing::<Stats>();
}

#[test]
fn a_failed_restart_keeps_the_instance() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.end(ONE, 0);
    let mut again = restart(ONE);
    again.requirements.mem_mb = 2000;
    stage.send(&again);
    assert_eq!(
        stage.next::<RestartFailure>().reason,
        RestartFailureReason::LaunchFailure
    );
    again.requirements.mem_mb = 300;
    stage.send(&again);
    let payload = stage.job(|job| match job {
        Job::Launch(job) => Some((Arc::clone(&job.payload), job.fresh)),
        _ => None,
    });
    assert_eq!((payload.0.start.requirements.mem_mb, payload.1), (300, false));
    stage.feed(Input::Done(Done::Launched {
        instance: ONE,
        result: Err(LaunchError::new(LaunchFault::Image, "gone")),
    }));
    assert_eq!(
        stage.next::<RestartFailure>().reason,
        RestartFailureReason::LaunchFailure
    );
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
}

#[test]
fn an_evacuated_node_is_in_maintenance_until_it_is_restored() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.run(&start(TWO));
    stage.sent.clear();
    stage.send(&evacuate());
    stage.job(|job| matches!(job, Job::SaveNode(NodeRecord { maintenance: true })).then_some(()));
    stage.send(&start(OTHER));
    assert_eq!(
        stage.next::<StartFailure>().reason,
        StartFailureReason::NodeMaintenance
    );
    stage.end(ONE, 143);
    assert_eq!(stage.next::<InstanceStopped>().instance_uuid, ONE);
    stage.end(TWO, 143);
    stage.nothing::<Maintenance>();
    stage.removed(TWO);
    assert_eq!(stage.next::<InstanceStopped>().instance_uuid, TWO);
    assert_eq!(stage.next::<Maintenance>().ready.unwrap().node_uuid, NODE);
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
    assert_eq!(stage.stats().status, NodeStatus::Maintenance);

    stage.send(&restart(ONE));
    assert_eq!(
        stage.next::<RestartFailure>().reason,
        RestartFailureReason::LaunchFailure
    );
    stage.send(&start(ONE));
    assert_eq!(
        stage.next::<StartFailure>().reason,
        StartFailureReason::NodeMaintenance
    );
    // Asked again, it says so again, in STATS as well.
    stage.measure();
    stage.sent.clear();
    stage.send(&evacuate());
    stage.next::<Maintenance>();
    stage.measure();
    assert_eq!(stage.next::<Stats>().status, NodeStatus::Maintenance);

    stage.send(&restore());
    stage.job(|job| matches!(job, Job::SaveNode(NodeRecord { maintenance: false })).then_some(()));
    assert_eq!(stage.next::<Ready>().mem_available_mb, 1000);
    stage.send(&restart(ONE));
    stage.launched(ONE);
    assert_eq!(stage.state(ONE), Some(InstanceState::Active));

    // An empty node is evacuated at once.
    let mut stage = Stage::new();
    stage.send(&evacuate());
    stage.next::<Maintenance>();
}

#[test]
fn an_offline_node_says_so_and_keeps_reporting() {
    let mut stage = Stage::new();
    stage.feed(Input::ToggleOffline);
    assert_eq!(stage.kinds(), ["OFFLINE"]);
    stage.measure();
    assert_eq!(stage.next::<Stats>().status, NodeStatus::Offline);
    stage.send(&evacuate());
    stage.send(&restore());
    assert_eq!(stage.kinds(), ["OFFLINE", "OFFLINE"]);
    assert!(!stage.jobs.iter().any(|job| matches!(job, Job::SaveNode(_))));
    stage.feed(Input::ToggleOffline);
    assert_eq!(stage.kinds(), ["READY"]);
}

#[test]
fn full_and_ready_follow_the_capacity() {
    let mut stage = Stage::new();
    let mut big = persistent(ONE);
    big.requirements.mem_mb = 1000;
    stage.run(&big);
    assert_eq!(stage.kinds(), ["FULL"]);
    assert_eq!(stage.stats().status, NodeStatus::Full);
    stage.end(ONE, 0);
    assert_eq!(stage.kinds(), ["READY"]);

    // Three are all it holds, stopped ones included.
    stage.run(&start(TWO));
    stage.run(&start(OTHER));
    assert_eq!(stage.kinds(), ["READY", "FULL"]);
    stage.send(&delete(ONE, false));
    stage.removed(ONE);
    assert_eq!(stage.kinds(), ["InstanceDeleted", "READY"]);

    // The configuration may say that memory is not counted.
    let mut stage = Stage::new();
    let mut configure = Configure::default();
    configure.launcher.mem_limit = false;
    stage.send(&configure);
    big.requirements.mem_mb = 5000;
    stage.run(&big);
    stage.nothing::<StartFailure>();
    assert_eq!(stage.stats().status, NodeStatus::Ready);
    configure.launcher.mem_limit = true;
    stage.sent.clear();
    stage.send(&configure);
    assert_eq!(stage.kinds(), ["FULL"]);
}

#[test]
fn without_flags_the_machine_decides() {
    let mut stage = Stage::of(Settings {
        mem_mb: None,
        disk_mb: None,
        ..settings()
    });
    stage.run(&start(ONE));
    let ready: Ready = stage.next();
    // 100 promised, and not used yet.
    assert_eq!((ready.mem_total_mb, ready.mem_available_mb), (8000, 3900));
    let usage = Usage {
        memory_mb: 60,
        ..Usage::default()
    };
    let done = |available| {
        let facts = Facts {
            mem_available_mb: available,
            ..facts()
        };
        let usages = vec![(ONE, usage)];
        Input::Done(Done::Measured { facts, usages })
    };
    stage.sent.clear();
    stage.feed(done(3950));
    assert_eq!(
        stage.kinds(),
        ["STATS"],
        "no news: {:?}",
        stage.control.capacity()
    );
    stage.feed(done(RESERVE + 39));
    assert_eq!(stage.kinds(), ["FULL", "STATS"]);
    stage.feed(done(2000));
    assert_eq!(stage.next::<Ready>().mem_available_mb, 1960);
    stage.feed(done(-1));
    assert_eq!(
        stage.next::<Ready>().mem_available_mb,
        -1,
        "unknown stays unknown"
    );
    stage.run(&start(TWO));
    stage.nothing::<StartFailure>();
}

const RESERVE: i64 = 64;

#[test]
fn a_configuration_is_applied_or_sent_back() {
    let mut stage = Stage::offline(settings());
    let mut configure = Configure::default();
    configure.launcher.mem_limit = false;
    stage.feed(Input::Connected {
        configuration: Some(configure.encode()),
    });
    assert!(!stage.control.launcher.mem_limit);
    stage.sent.clear();
    for refused in [
        "configure: [",
        "configure:\n  launcher:\n    compute_net: nonsense\n",
    ] {
        stage.raw(Command::CONFIGURE, refused);
        assert_eq!(stage.next::<InvalidConfiguration>().refused, refused);
        assert!(!stage.control.launcher.mem_limit, "the former one holds");
    }
}

#[test]
fn volumes_come_and_go() {
    let mut stage = Stage::new();
    let op = |stage: &mut Stage| {
        stage.job(|job| match job {
            Job::Volume { op, .. } => Some(*op),
            _ => None,
        })
    };
    let done = |stage: &mut Stage, op, result| {
        stage.feed(Input::Done(Done::Volume {
            instance: ONE,
            op,
            result,
        }));
    };
    // While it launches, they wait; one is done after the other.
    stage.send(&persistent(ONE));
    stage.send(&attach(ONE, VOLUME));
    stage.send(&attach(ONE, TWO));
    stage.send(&attach(ONE, VOLUME));
    assert_eq!(
        stage.next::<AttachVolumeFailure>().reason,
        AttachVolumeFailureReason::AlreadyAttached
    );
    stage.launched(ONE);
    let first = op(&mut stage);
    assert_eq!((first.volume, first.attach), (VOLUME, true));
    assert!(stage.jobs.is_empty());
    done(&mut stage, first, Ok(()));
    let second = op(&mut stage);
    let error = VolumeError::new(VolumeFault::State, "full");
    done(&mut stage, second, Err(error));
    let failure: AttachVolumeFailure = stage.next();
    assert_eq!(
        (failure.reason, failure.volume_uuid),
        (AttachVolumeFailureReason::StateFailure, TWO.into())
    );
    assert_eq!(stage.stats().instances[0].volumes, [Id::from(VOLUME)]);

    stage.send(&detach(ONE, TWO));
    assert_eq!(
        stage.next::<DetachVolumeFailure>().reason,
        DetachVolumeFailureReason::NotAttached
    );
    stage.send(&detach(ONE, VOLUME));
    let third = op(&mut stage);
    // It ends meanwhile: what waits behind is refused.
    stage.send(&attach(ONE, OTHER));
    stage.send(&stop(ONE));
    done(&mut stage, third, Ok(()));
    assert_eq!(
        stage.next::<AttachVolumeFailure>().reason,
        AttachVolumeFailureReason::InstanceFailure
    );
    assert!(stage.stats().instances[0].volumes.is_empty());

    for _ in 0..=MAX_VOLUME_OPS {
        stage.send(&attach(ONE, Uuid::new_v4()));
    }
    assert_eq!(
        stage.next::<AttachVolumeFailure>().reason,
        AttachVolumeFailureReason::InstanceFailure
    );

    stage.control.settings.has_volumes = false;
    stage.send(&detach(ONE, VOLUME));
    assert_eq!(
        stage.next::<DetachVolumeFailure>().reason,
        DetachVolumeFailureReason::NotSupported
    );
}

#[test]
fn concentrators_hear_of_their_tenants() {
    let mut stage = Stage::new();
    let mut configure = Configure::default();
    configure.launcher.compute_net = vec!["10.1.0.0/16".into()];
    stage.send(&configure);
    let wired = |id| {
        let mut start = start(id);
        start.networking.concentrator_uuid = OTHER.into();
        start.networking.concentrator_ip = "10.1.0.1".into();
        start.networking.subnet = "172.16.0.5/24".into();
        start
    };
    stage.run(&wired(ONE));
    let added: TenantAdded = stage.next();
    assert_eq!(
        (added.concentrator_uuid, added.tenant_uuid),
        (OTHER.into(), "t".into())
    );
    assert_eq!(
        (added.agent_uuid, added.agent_ip.as_str()),
        (NODE.into(), "10.1.0.9")
    );
    assert_eq!(
        (added.tenant_subnet.as_str(), added.subnet_key),
        ("172.16.0.0/24", 4268)
    );
    stage.run(&wired(TWO));
    stage.nothing::<TenantAdded>();
    // It may have forgotten.
    stage.feed(Input::Disconnected);
    stage.connect();
    stage.next::<TenantAdded>();
    stage.end(ONE, 0);
    stage.nothing::<TenantRemoved>();
    stage.end(TWO, 0);
    assert_eq!(stage.next::<TenantRemoved>().subnet_key, 4268);

    let mut stage = Stage::of(Settings {
        role: Role::NETAGENT,
        ..settings()
    });
    stage.run(&wired(ONE));
    stage.nothing::<TenantAdded>();
}

#[test]
fn a_traced_command_is_reported() {
    let mut stage = Stage::new();
    let trace = crate::proto::Trace::new("job-1");
    stage.feed(Input::Frame(Frame::of(&start(ONE)).traced(trace)));
    let report: TraceReport = stage.next();
    assert_eq!(
        (report.frames[0].label.as_str(), report.frames[0].operand.as_str()),
        ("job-1", "START")
    );
}

fn stored(id: Uuid, record: Option<Record>, start: Option<Start>) -> Stored {
    Stored {
        instance: id,
        record,
        start: start.map(|start| Box::new(start.into())),
        volumes: BTreeSet::new(),
    }
}

fn record() -> Record {
    Record {
        driver: "fake".into(),
        ..Record::default()
    }
}

fn adopting(fake: Fake, maintenance: bool, stored: Vec<Stored>) -> Stage {
    let mut stage = Stage::offline(Settings {
        drivers: vec![Arc::new(fake)],
        ..settings()
    });
    stage.control.adopt(NodeRecord { maintenance }, stored, stage.now);
    stage.connect();
    stage
}

#[test]
fn a_restarted_agent_takes_over_what_it_finds() {
    let running = || record().running(&handle(ONE));
    let stopped = record().stopped(Exit::code(4));
    let mut stage = adopting(
        Fake::default(),
        false,
        vec![
            stored(ONE, Some(running()), Some(persistent(ONE))),
            stored(TWO, Some(stopped), Some(persistent(TWO))),
            stored(OTHER, Some(record()), Some(start(OTHER))),
        ],
    );
    assert_eq!(stage.state(ONE), Some(InstanceState::Active));
    assert_eq!(stage.state(TWO), Some(InstanceState::Exited));
    assert_eq!(stage.state(OTHER), None, "it never ran");
    stage.job(|job| matches!(job, Job::Watch(_, running) if running.handle == handle(ONE)).then_some(()));
    stage.job(|job| matches!(job, Job::Remove { instance: OTHER, .. }).then_some(()));
    assert_eq!(stage.next::<Ready>().mem_available_mb, 900);

    // What ended meanwhile.
    let fake = || Fake {
        found: Some(Exit::code(9)),
        unrecorded: None,
    };
    let mut stage = adopting(
        fake(),
        false,
        vec![stored(ONE, Some(running()), Some(persistent(ONE)))],
    );
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
    stage.job(|job| matches!(job, Job::Save { record, .. } if record.exit_code == 9).then_some(()));
    stage.send(&restart(ONE));
    stage.nothing::<RestartFailure>();

    // What a former agent was asked for is done.
    let asked = |after| {
        let record = Record { after, ..running() };
        vec![stored(ONE, Some(record), Some(start(ONE)))]
    };
    let mut stage = adopting(fake(), false, asked(RecordAfter::Delete));
    stage.removed(ONE);
    assert_eq!(stage.next::<InstanceDeleted>().instance_uuid, ONE);
    let mut stage = adopting(Fake::default(), false, asked(RecordAfter::Delete));
    stage.job(|job| matches!(job, Job::Terminate(..)).then_some(()));
    assert_eq!(stage.state(ONE), Some(InstanceState::Stopping));

    // A node that was being evacuated goes on with it.
    let mut stage = adopting(
        Fake::default(),
        true,
        vec![stored(ONE, Some(running()), Some(persistent(ONE)))],
    );
    stage.nothing::<Ready>();
    stage.end(ONE, 143);
    assert_eq!(stage.kinds(), ["InstanceStopped", "MAINTENANCE"]);
    let mut stage = adopting(Fake::default(), true, vec![]);
    assert_eq!(stage.kinds(), ["MAINTENANCE"]);
}

#[test]
fn what_was_lost_is_made_up_for() {
    // The record alone: the START and the system know.
    let fake = Fake {
        found: None,
        unrecorded: Some(handle(ONE)),
    };
    let mut stage = adopting(fake, false, vec![stored(ONE, None, Some(persistent(ONE)))]);
    assert_eq!(stage.state(ONE), Some(InstanceState::Active));
    stage.job(|job| {
        let Job::Save { record, .. } = job else {
            return None;
        };
        (record.handle() == Some(handle(ONE)) && record.driver == "fake").then_some(())
    });
    let mut stage = adopting(
        Fake::default(),
        false,
        vec![stored(ONE, None, Some(persistent(ONE)))],
    );
    assert_eq!(stage.state(ONE), Some(InstanceState::Exited));
    stage.send(&restart(ONE));
    stage.nothing::<RestartFailure>();

    // The START: it may run, stop and be deleted, but not start again.
    let running = record().running(&handle(ONE));
    let mut stage = adopting(Fake::default(), false, vec![stored(ONE, Some(running), None)]);
    assert_eq!(stage.state(ONE), Some(InstanceState::Active));
    stage.send(&stop(ONE));
    stage.end(ONE, 0);
    assert_eq!(stage.state(ONE), Some(InstanceState::Missing));
    stage.send(&restart(ONE));
    assert_eq!(
        stage.next::<RestartFailure>().reason,
        RestartFailureReason::InstanceCorrupt
    );
    stage.send(&start(ONE));
    assert_eq!(
        stage.next::<StartFailure>().reason,
        StartFailureReason::InstanceExists
    );
    stage.send(&delete(ONE, false));
    stage.removed(ONE);
    stage.next::<InstanceDeleted>();

    // Both.
    let mut stage = adopting(Fake::default(), false, vec![stored(ONE, None, None)]);
    assert_eq!(stage.state(ONE), Some(InstanceState::Missing));
    stage.send(&delete(ONE, false));
    stage.removed(ONE);

    // The driver.
    let record = Record {
        driver: "qemu".into(),
        ..record().running(&handle(ONE))
    };
    let mut stage = adopting(
        Fake::default(),
        false,
        vec![stored(ONE, Some(record), Some(persistent(ONE)))],
    );
    assert_eq!(stage.state(ONE), Some(InstanceState::Missing));
    stage.send(&restart(ONE));
    assert_eq!(
        stage.next::<RestartFailure>().reason,
        RestartFailureReason::LaunchFailure
    );
}
