//! Several schedulers that share an engine: one leads, and the others pass the frames of their clients
//! on to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ssntp::Role;
use ssntp::payload::{InvalidFrameType, Payload};
use ssntp::pki::{JoinToken, SigningRequest, StoredToken, node_key, signing_request};
use ssntp::proto::{Command, ErrorCode, Event, Frame, FrameKind};
use ssntp::server::{Dialler, Enrolment, EnrolmentStore, Federation, PeerState, Server, ServerConfig};
use ssntp::transport::memory::MemoryListener;
use ssntp::transport::{Address, Target};
use ssntp_engine::{Answer, Engine, EngineError, Request, When};
use ssntp_payload::{
    EnrolmentAction, EnrolmentList, EnrolmentRefusal, InstanceState, InstanceStopped, ManageEnrolment,
    NewLeader, NodeConnected, NodeDisconnected, Reason, StartFailure, Stats, StopFailure, Tenant,
    TenantAction, TenantEntry, Tenants, TokenEntry,
};
use ssntp_scheduler::{Enrolments, JoinError, JoinedScheduler, Scheduler, SchedulerConfig};
use ssntp_test_support::LIMIT;
use ssntp_test_support::memory_engine::MemoryEngine;
use ssntp_test_support::wait::wait_for;
use ssntp_transport::{BufferPool, Halves, Outgoing, wall_clock};
use uuid::Uuid;

use super::client::{self, Client};
use super::{command, expect_failure, expect_start, ready, start, stats};

const YAML: &str = "configure:\n  launcher:\n    child_user: first\n";
const OTHER: &str = "configure:\n  launcher:\n    child_user: second\n";

/// An engine whose connection to one process can be cut, or can lose the answers to written documents.
#[derive(Clone, Debug)]
struct Line {
    engine: MemoryEngine,
    is_cut: Arc<AtomicBool>,
    loses_answers: Arc<AtomicBool>,
}

impl Engine for Line {
    fn ask(&mut self, request: &Request) -> Result<Answer, EngineError> {
        let away = || Err(EngineError::Away("cut".to_owned()));
        if self.is_cut.load(Ordering::Relaxed) {
            return away();
        }
        let answer = self.engine.ask(request);
        let is_document = matches!(request, Request::Put { lease: None, .. });
        if is_document && self.loses_answers.load(Ordering::Relaxed) {
            return away();
        }
        answer
    }
}

struct One {
    listener: MemoryListener,
    joined: JoinedScheduler,
    is_cut: Arc<AtomicBool>,
    loses_answers: Arc<AtomicBool>,
}

impl One {
    fn start(engine: &MemoryEngine, config: SchedulerConfig, others: &[One]) -> Result<Self, JoinError> {
        Self::with(engine, config, others, |server| server)
    }

    fn with(
        engine: &MemoryEngine,
        config: SchedulerConfig,
        others: &[One],
        change: impl FnOnce(ServerConfig) -> ServerConfig,
    ) -> Result<Self, JoinError> {
        let listener = MemoryListener::new();
        let server = ServerConfig::new(client::identity(Role::SCHEDULER), ssntp_test_support::trust())
            .listen_in_memory(&listener);
        let server = change(server);
        let links = Federation::new().peers(others.iter().map(|other| &other.listener));
        let [is_cut, loses_answers] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let engine = Line {
            engine: engine.clone(),
            is_cut: Arc::clone(&is_cut),
            loses_answers: Arc::clone(&loses_answers),
        };
        let scheduler = Scheduler::new(config).unwrap();
        let joined = JoinedScheduler::start(scheduler, server, links, Box::new(engine), Vec::new())?;
        Ok(Self {
            listener,
            joined,
            is_cut,
            loses_answers,
        })
    }

    fn uuid(&self) -> Uuid {
        self.joined.server.uuid()
    }

    /// Connects a client. A controller's session begins with NewLeader.
    fn connect(&self, role: Role) -> Client {
        let mut client = Client::connect(&self.listener, role);
        if role == Role::CONTROLLER {
            client.expect(Event::NEW_LEADER);
        }
        client
    }

    fn leads(&self) -> bool {
        let leader = self.joined.membership.view().leader;
        leader.is_some_and(|leader| leader.uuid == self.uuid())
    }

    /// Ends the process: its clients disconnect, and another scheduler leads.
    fn end(self) {
        self.joined.server.stop();
        drop(self.joined.membership);
    }
}

/// Schedulers that are linked; the first one leads.
fn several(count: usize) -> (MemoryEngine, Vec<One>) {
    several_with(count, SchedulerConfig::new)
}

fn several_with(count: usize, config: impl Fn() -> SchedulerConfig) -> (MemoryEngine, Vec<One>) {
    let (engine, mut all) = (MemoryEngine::new(), Vec::new());
    for _ in 0..count {
        let one = One::start(&engine, config(), &all).unwrap();
        await_that("it leads, or follows", || {
            one.joined.membership.view().leader.is_some()
        });
        all.push(one);
    }
    await_links(&all);
    (engine, all)
}

fn await_links(all: &[One]) {
    for one in all {
        await_that("all are linked", || {
            let links = one.joined.server.handle().figures().unwrap().links;
            links.iter().filter(|link| link.linked).count() == all.len() - 1
        });
    }
}

#[track_caller]
fn await_that(condition: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {condition}");
        std::thread::yield_now();
    }
}

/// The next frame of this kind. Earlier frames are skipped, because STATS and events of other servers
/// have no order with the frames of the controller's own server.
#[track_caller]
fn until(client: &mut Client, kind: impl Into<FrameKind>) -> Frame {
    let kind = kind.into();
    loop {
        let frame = client.recv_any();
        if frame.kind() == kind {
            return frame;
        }
    }
}

#[track_caller]
fn failure(client: &mut Client) -> StartFailure {
    until(client, ErrorCode::START_FAILURE).payload().unwrap()
}

/// Sends STATS that list this instance, and waits until the controller has them.
fn send_state(agent: &mut Client, controller: &mut Client, instance: Uuid, state: InstanceState) {
    let mut stats = stats(agent.uuid, &[instance]);
    stats.instances[0].state = state.clone();
    agent.send_payload(&stats);
    loop {
        let report: Stats = until(controller, Command::STATS).payload().unwrap();
        let is_it =
            |listed: &ssntp_payload::InstanceStats| listed.instance_uuid == instance && listed.state == state;
        if report.instances.iter().any(is_it) {
            return;
        }
    }
}

/// Sends a START to a node that has sent READY.
fn starts(controller: &mut Client, agent: &mut Client) -> Uuid {
    let start = start(100);
    agent.send_payload(&ready(agent.uuid, 1000));
    // STATS follow the READY, also over a link, so they show that the leader knows the node. Otherwise it
    // would refuse the START.
    agent.send_payload(&stats(agent.uuid, &[]));
    loop {
        let report: Stats = until(controller, Command::STATS).payload().unwrap();
        if report.node_uuid == agent.uuid {
            break;
        }
    }
    controller.send_payload(&start);
    expect_start(agent, &start);
    start.instance_uuid
}

fn configure(yaml: &str) -> Frame {
    Frame::with_payload(Command::CONFIGURE, yaml.to_owned())
}

fn tenant(action: TenantAction) -> Tenant {
    Tenant {
        id: "1".into(),
        action,
        name: "blue".into(),
        entry: TenantEntry {
            tenant_uuid: Uuid::from_u128(1).into(),
            subnet: "10.1.0.0/24".into(),
            concentrator_uuid: Uuid::from_u128(2).into(),
            concentrator_ip: "192.0.2.1/24".into(),
            key: 7,
            ..TenantEntry::default()
        },
        ..Tenant::default()
    }
}

#[test]
fn clients_of_all_schedulers_are_those_of_one_cluster() {
    let (_engine, all) = several(3);
    let mut controller = all[2].connect(Role::CONTROLLER);
    until(&mut controller, Event::SNAPSHOT_COMPLETE);
    let mut agent = all[1].connect(Role::AGENT);
    let connected: NodeConnected = controller.expect_payload();
    assert_eq!(connected.node_uuid, agent.uuid);
    let instance = starts(&mut controller, &mut agent);
    send_state(&mut agent, &mut controller, instance, InstanceState::Active);

    // A STOP, its failure, and the end of an instance reach their receivers.
    controller.send(&command(Command::STOP, "stop", agent.uuid, instance));
    assert_eq!(agent.recv().kind(), Command::STOP);
    agent.send_payload(&StopFailure {
        instance_uuid: instance.into(),
        reason: Reason::AlreadyStopped,
        ..StopFailure::default()
    });
    controller.expect(ErrorCode::STOP_FAILURE);
    agent.send_payload(&InstanceStopped {
        instance_uuid: instance.into(),
        ..Default::default()
    });
    controller.expect(Event::INSTANCE_STOPPED);

    // A configuration reaches the present and the future sessions.
    controller.send(&configure(YAML));
    assert_eq!(until(&mut controller, Command::CONFIGURE), configure(YAML));
    assert_eq!(agent.expect(Command::CONFIGURE), configure(YAML));
    let mut late = all[1].connect(Role::CONTROLLER);
    assert_eq!(late.connected.payload, YAML);
    // A new controller receives the node's last STATS and the later end, as from a single scheduler.
    let connected: NodeConnected = late.expect_payload();
    assert_eq!(connected.node_uuid, agent.uuid);
    late.expect(Command::STATS);
    late.expect(Event::INSTANCE_STOPPED);
    assert_eq!(late.recv_any().kind(), Event::SNAPSHOT_COMPLETE);

    // The agent moves to another server. It is still one node, and keeps its instance.
    let uuid = agent.uuid;
    let again = Client::connect_as(&all[0].listener, Role::AGENT, uuid);
    let event: NodeDisconnected = until(&mut late, Event::NODE_DISCONNECTED).payload().unwrap();
    assert_eq!(event.node_uuid, uuid);
    late.expect(Event::NODE_CONNECTED);
    let mut same = start(10);
    same.instance_uuid = instance;
    controller.send_payload(&same);
    assert_eq!(failure(&mut controller).node_uuid, uuid);
    again.close();
    late.expect(Event::NODE_DISCONNECTED);
}

#[test]
fn the_next_leader_has_the_starts_in_flight_and_starts_no_instance_twice() {
    let (_engine, mut all) = several(3);
    let mut controller = all[2].connect(Role::CONTROLLER);
    until(&mut controller, Event::SNAPSHOT_COMPLETE);
    let mut away = all[0].connect(Role::AGENT);
    let mine = starts(&mut controller, &mut away);
    send_state(&mut away, &mut controller, mine, InstanceState::Active);
    away.send_payload(&ready(away.uuid, 0));
    let mut agent = all[1].connect(Role::AGENT);
    let fails = starts(&mut controller, &mut agent);
    let runs = starts(&mut controller, &mut agent);

    // The leader ends, and with it the session of one node.
    all.remove(0).end();
    let event: NewLeader = until(&mut controller, Event::NEW_LEADER).payload().unwrap();
    let next = all.iter().find(|one| event.server_uuid == one.uuid());
    assert!(next.is_some_and(One::leads), "{event:?}");
    until(&mut controller, Event::SNAPSHOT_COMPLETE);
    // The UUIDs of the instance of the disconnected node and of the STARTs under way are in use.
    for (instance, node) in [(mine, away.uuid), (fails, agent.uuid), (runs, agent.uuid)] {
        let mut same = start(10);
        same.instance_uuid = instance;
        controller.send_payload(&same);
        let failure = expect_failure(&mut controller, &same, Reason::AlreadyRunning);
        assert_eq!(failure.node_uuid, node);
    }
    // One START fails once, and the instance of the other one runs.
    agent.send_payload(&StartFailure {
        node_uuid: agent.uuid.into(),
        instance_uuid: fails.into(),
        reason: Reason::ImageFailure,
        ..StartFailure::default()
    });
    assert_eq!(failure(&mut controller).instance_uuid, fails);
    send_state(&mut agent, &mut controller, runs, InstanceState::Active);
    let more = starts(&mut controller, &mut agent);
    send_state(&mut agent, &mut controller, more, InstanceState::Active);
}

#[test]
fn a_leader_that_has_lost_its_lease_follows_and_no_session_ends() {
    let (_engine, all) = several(2);
    let mut controller = all[0].connect(Role::CONTROLLER);
    let mut agent = all[0].connect(Role::AGENT);
    let before = starts(&mut controller, &mut agent);
    send_state(&mut agent, &mut controller, before, InstanceState::Active);
    agent.send_payload(&ready(agent.uuid, 1000));
    all[0].is_cut.store(true, Ordering::Relaxed);
    // Commands of the time without a leader wait for the next one.
    await_that("it leads no more", || {
        all[0].joined.membership.view().acts(Instant::now()).is_none()
    });
    let start = start(100);
    controller.send_payload(&start);
    let event: NewLeader = until(&mut controller, Event::NEW_LEADER).payload().unwrap();
    assert_eq!(event.server_uuid, all[1].uuid());
    expect_start(&mut agent, &start);
    let mut stats = stats(agent.uuid, &[before, start.instance_uuid]);
    stats.instances[1].state = InstanceState::Active;
    agent.send_payload(&stats);
    loop {
        let report: Stats = until(&mut controller, Command::STATS).payload().unwrap();
        if report.instances.len() == 2 {
            break;
        }
    }
    // The former leader may lead again later.
    all[0].is_cut.store(false, Ordering::Relaxed);
    let mut all = all.into_iter();
    let (first, second) = (all.next().unwrap(), all.next().unwrap());
    second.end();
    let event: NewLeader = until(&mut controller, Event::NEW_LEADER).payload().unwrap();
    assert_eq!(event.server_uuid, first.uuid());
    until(&mut controller, Event::SNAPSHOT_COMPLETE);
    let mut same = super::start(10);
    same.instance_uuid = start.instance_uuid;
    controller.send_payload(&same);
    assert_eq!(failure(&mut controller).node_uuid, agent.uuid);
}

#[test]
fn a_leader_that_leads_again_itself_knows_its_starts_and_takes_the_commands_of_the_meantime() {
    let (_engine, all) = several(1);
    let mut controller = all[0].connect(Role::CONTROLLER);
    let mut agent = all[0].connect(Role::AGENT);
    let instance = starts(&mut controller, &mut agent);
    agent.send_payload(&ready(agent.uuid, 1000));
    let token = |one: &One| one.joined.membership.view().acts(Instant::now());
    let before = token(&all[0]);
    all[0].is_cut.store(true, Ordering::Relaxed);
    await_that("it leads no more", || token(&all[0]).is_none());
    // These wait for the leader, and the first START is still in flight.
    let mut same = start(10);
    same.instance_uuid = instance;
    let other = start(100);
    controller.send_payload(&same);
    controller.send_payload(&other);
    all[0].is_cut.store(false, Ordering::Relaxed);
    // Often with the same lease, and so with the same token.
    await_that("it leads again", || token(&all[0]) >= before);
    let refused = failure(&mut controller);
    assert_eq!(
        (refused.instance_uuid.uuid(), refused.reason),
        (Some(instance), Reason::AlreadyRunning)
    );
    expect_start(&mut agent, &other);
}

#[test]
fn a_controller_is_told_at_its_beginning_who_leads() {
    let (_engine, all) = several(2);
    let leads = all[0].joined.membership.view().leader.unwrap();
    for one in &all {
        let mut controller = Client::connect(&one.listener, Role::CONTROLLER);
        let mut first: NewLeader = controller.expect_payload();
        if first == NewLeader::default() {
            // The second server did not know the leader yet.
            first = controller.expect_payload();
        }
        assert_eq!(
            (first.server_uuid.uuid(), first.token),
            (Some(leads.uuid), leads.token)
        );
        until(&mut controller, Event::SNAPSHOT_COMPLETE);
    }
    all.iter()
        .for_each(|one| one.is_cut.store(true, Ordering::Relaxed));
    await_that("none leads", || {
        let acts = |one: &One| one.joined.membership.view().acts(Instant::now()).is_some();
        !all.iter().any(acts)
    });
    let mut controller = Client::connect(&all[0].listener, Role::CONTROLLER);
    assert_eq!(controller.expect_payload::<NewLeader>(), NewLeader::default());
}

#[test]
fn the_next_leader_has_the_configuration_and_the_tenants_of_the_former_leader() {
    let (engine, dir) = (MemoryEngine::new(), tempfile::tempdir().unwrap());
    let copy = dir.path().join("cluster.yaml");
    std::fs::write(&copy, OTHER).unwrap();
    let config = SchedulerConfig::new().configuration_file(&copy);
    let first = One::start(&engine, config, &[]).unwrap();
    await_that("it leads", || first.leads());
    let mut controller = first.connect(Role::CONTROLLER);
    assert_eq!(controller.connected.payload, OTHER);
    await_that("it has put its file into the engine", || {
        let view = first.joined.membership.view();
        view.documents.contains_key("configuration")
    });
    for yaml in [OTHER, YAML] {
        controller.send(&configure(yaml));
        assert_eq!(controller.recv(), configure(yaml));
    }
    assert_eq!(std::fs::read_to_string(&copy).unwrap(), YAML, "the copy");
    controller.send_payload(&tenant(TenantAction::Add));
    let added: Tenants = controller.expect_payload();
    assert_eq!(added.entries.len(), 1, "{added:?}");

    let second = One::start(&engine, SchedulerConfig::new().configuration(OTHER), &[]).unwrap();
    let token = first.joined.membership.view().leader.unwrap().token;
    first.end();
    await_that("the other one leads", || second.leads());
    let mut controller = second.connect(Role::CONTROLLER);
    controller.send_payload(&tenant(TenantAction::Show));
    let listed: Tenants = until(&mut controller, Event::TENANTS).payload().unwrap();
    assert_eq!(listed.entries[0].name, "blue");
    assert_eq!(second.connect(Role::AGENT).connected.payload, YAML);
    assert!(second.joined.membership.view().leader.unwrap().token > token);

    // An engine that refuses to write does not have the CONFIGURE.
    engine.fail(Some(EngineError::Full("full".to_owned())));
    controller.send(&configure(OTHER));
    let refused = until(&mut controller, ErrorCode::INVALID_CONFIGURATION);
    assert_eq!(refused.payload_bytes(), OTHER);
}

#[test]
fn a_leader_configures_again_after_the_engine_was_emptied() {
    let (engine, all) = several(1);
    let mut controller = all[0].connect(Role::CONTROLLER);
    for yaml in [YAML, OTHER, YAML] {
        controller.send(&configure(yaml));
        while until(&mut controller, Command::CONFIGURE) != configure(yaml) {}
    }
    let token = |one: &One| one.joined.membership.view().acts(Instant::now());
    let before = token(&all[0]);
    engine.lose();
    await_that("it leads again", || {
        token(&all[0]).is_some_and(|token| Some(token) > before)
    });
    let is_written = |yaml: &str| {
        let view = all[0].joined.membership.view();
        let document = view.documents.get("configuration");
        document.is_some_and(|document| document.text == yaml.as_bytes())
    };
    await_that("the engine has the configuration again", || is_written(YAML));
    controller.send(&configure(OTHER));
    while until(&mut controller, Command::CONFIGURE) != configure(OTHER) {}
}

#[test]
fn a_configure_with_an_unknown_outcome_is_taken_back() {
    let (engine, all) = several(2);
    let mut controller = all[0].connect(Role::CONTROLLER);
    controller.send(&configure(YAML));
    while until(&mut controller, Command::CONFIGURE) != configure(YAML) {}
    all[0].loses_answers.store(true, Ordering::Relaxed);
    controller.send(&configure(OTHER));
    let answer: InvalidFrameType = until(&mut controller, ErrorCode::INVALID_FRAME_TYPE)
        .payload()
        .unwrap();
    assert_eq!(answer.refused(), Command::CONFIGURE);
    assert_eq!(answer.reason.as_str(), "unknown");
    // The engine has it nevertheless, and the next leader would distribute it.
    all[0].loses_answers.store(false, Ordering::Relaxed);
    await_that("the engine has the current one again", || {
        let Ok(Answer::Kept(kept)) = engine.clone().ask(&Request::Read) else {
            panic!("it answers");
        };
        kept.entries["documents/configuration"].value == YAML.as_bytes()
    });
    let mut all = all.into_iter();
    let (first, second) = (all.next().unwrap(), all.next().unwrap());
    first.end();
    await_that("the other one leads", || second.leads());
    assert_eq!(second.connect(Role::AGENT).connected.payload, YAML);
}

#[test]
fn an_address_that_was_freed_without_the_engine_is_free_for_the_next_leader() {
    let (_engine, all) = several(2);
    let mut controller = all[1].connect(Role::CONTROLLER);
    let mut agent = all[1].connect(Role::AGENT);
    let instance = starts(&mut controller, &mut agent);
    send_state(&mut agent, &mut controller, instance, InstanceState::Active);
    let ask = |controller: &mut Client, action| {
        controller.send_payload(&Tenant {
            instance_uuid: instance.into(),
            ..tenant(action)
        });
        let answer: Tenants = until(controller, Event::TENANTS).payload().unwrap();
        answer.entries[0].addresses.len()
    };
    ask(&mut controller, TenantAction::Add);
    assert_eq!(ask(&mut controller, TenantAction::Lease), 1);
    // The leader cannot write the table any more. While its lease lasts, it frees the address.
    all[0].is_cut.store(true, Ordering::Relaxed);
    agent.send_payload(&stats(agent.uuid, &[]));
    loop {
        let report: Stats = until(&mut controller, Command::STATS).payload().unwrap();
        if report.instances.is_empty() {
            break;
        }
    }
    let event: NewLeader = until(&mut controller, Event::NEW_LEADER).payload().unwrap();
    assert_eq!(event.server_uuid, all[1].uuid());
    until(&mut controller, Event::SNAPSHOT_COMPLETE);
    assert_eq!(ask(&mut controller, TenantAction::Show), 0);
    // The instance gets an address again, which the first leader must not free when it leads again.
    assert_eq!(ask(&mut controller, TenantAction::Lease), 1);
    all[0].is_cut.store(false, Ordering::Relaxed);
    all[1].is_cut.store(true, Ordering::Relaxed);
    let is_of_first = |event: &NewLeader| event.server_uuid == all[0].uuid();
    while !is_of_first(&until(&mut controller, Event::NEW_LEADER).payload().unwrap()) {}
    until(&mut controller, Event::SNAPSHOT_COMPLETE);
    assert_eq!(ask(&mut controller, TenantAction::Show), 1);
}

/// A server with the certificate of a scheduler that does not run a scheduler.
fn stranger() -> (Server, MemoryListener) {
    let listener = MemoryListener::new();
    let config = ServerConfig::new(client::identity(Role::SCHEDULER), ssntp_test_support::trust());
    let config = config.listen_in_memory(&listener).federate(Federation::new());
    (Server::start(config, ()).unwrap(), listener)
}

fn dial(server: &Server, one: &One) -> Dialler {
    let dialler = server.dialler().unwrap();
    assert!(dialler.dial(Target::from(&one.listener)).unwrap());
    dialler
}

#[test]
fn a_false_greatest_token_ends_no_term() {
    let (_engine, mut all) = several(2);
    let mut controller = all[1].connect(Role::CONTROLLER);
    let (wrong, _listener) = stranger();
    wrong.handle().with(|cx| cx.note_token(u64::MAX)).unwrap();
    for one in &all {
        let dialler = dial(&wrong, one);
        await_that("it has tried", || {
            let is_new = |state: &PeerState| matches!(state, PeerState::Trying(why) if why.is_empty());
            dialler.peers().iter().all(|(_, state)| !is_new(state))
        });
    }
    let before = all[1].joined.membership.view().leader.unwrap().token;
    all.remove(0).end();
    // The first leader may be announced as well, if the second server learns of it late.
    let event = loop {
        let event: NewLeader = until(&mut controller, Event::NEW_LEADER).payload().unwrap();
        if event.server_uuid == all[0].uuid() {
            break event;
        }
    };
    // Higher tokens remain for all later terms.
    assert!(
        event.token > before && event.token < 1 << 62,
        "{before}, {}",
        event.token
    );
}

#[test]
fn intents_are_accepted_only_from_the_leader() {
    let (_engine, mut all) = several(2);
    let mut controller = all[1].connect(Role::CONTROLLER);
    let mut agent = all[1].connect(Role::AGENT);
    let start = start(100);
    let ((other, listener), next) = (stranger(), all[1].uuid());
    let _dialler = dial(&other, &all[1]);
    await_that("it is linked", || {
        other.handle().with(|cx| cx.servers().count()) == Ok(1)
    });
    // The frame of docs/links.md which says that the START of this instance is answered.
    let mut intent = vec![3];
    intent.extend(start.instance_uuid.as_bytes());
    intent.extend(agent.uuid.as_bytes());
    intent.push(0);
    other
        .handle()
        .with(move |cx| cx.send_to_server(next, intent.into()))
        .unwrap()
        .unwrap();
    // A later frame of the same link has arrived.
    let client = Client::connect(&listener, Role::NETAGENT);
    let (handle, uuid) = (all[1].joined.server.handle(), client.uuid);
    await_that("it is there", || {
        handle.with(move |cx| cx.directory().session(uuid).is_some()) == Ok(true)
    });
    all.remove(0).end();
    let event: NewLeader = until(&mut controller, Event::NEW_LEADER).payload().unwrap();
    assert_eq!(event.server_uuid, next);
    agent.send_payload(&ready(agent.uuid, 1000));
    controller.send_payload(&start);
    expect_start(&mut agent, &start);
}

#[test]
fn behind_a_lost_link_each_start_gets_one_answer_in_its_time() {
    let time = Duration::from_secs(5);
    let (_engine, all) = several_with(2, || SchedulerConfig::new().start_time(time, time));
    let mut mine = all[0].connect(Role::CONTROLLER);
    let mut theirs = all[1].connect(Role::CONTROLLER);
    until(&mut theirs, Event::SNAPSHOT_COMPLETE);
    let mut agent = all[1].connect(Role::AGENT);
    let given = starts(&mut mine, &mut agent);
    // From now on no bytes pass between the two, and no new link can be made.
    all[0].listener.stall(true);
    all[0].listener.cut();
    await_that("the link is lost", || {
        all.iter()
            .all(|one| one.joined.server.handle().figures().unwrap().links.is_empty())
    });
    let start = start(100);
    theirs.send_payload(&start);
    // The node does not answer the first command, and no leader accepts the second.
    let failed = failure(&mut mine);
    assert_eq!(
        (failed.instance_uuid, failed.reason),
        (given.into(), Reason::LaunchFailure)
    );
    let refused = loop {
        let failed = failure(&mut theirs);
        if failed.instance_uuid == start.instance_uuid {
            break failed;
        }
    };
    assert_eq!(refused.detail, "none has led for 10 s");
    // The next link causes no second answer, and the node gets neither command.
    all[0].listener.stall(false);
    await_that("they are linked again", || {
        all.iter().all(|one| {
            one.joined
                .server
                .handle()
                .figures()
                .unwrap()
                .links
                .iter()
                .any(|link| link.linked)
        })
    });
    let more = starts(&mut theirs, &mut agent);
    send_state(&mut agent, &mut mine, more, InstanceState::Active);
    let again = [mine.drain(), theirs.drain()].concat();
    assert!(
        again.iter().all(|frame| frame.kind() != ErrorCode::START_FAILURE),
        "{again:?}"
    );
}

/// A frame of a link, encoded as in docs/links.md.
fn link_frame(operand: u8, fields: &[&[u8]]) -> Outgoing {
    let fields = fields.concat();
    let length = u32::try_from(fields.len()).unwrap().to_be_bytes();
    Outgoing::whole([&[0, 1, 0x4c, operand], &length[..], &fields].concat().into(), 1)
}

/// The link of another scheduler, whose first sessions are of these nodes. Each is its session 1, of the lowest rank.
fn link(one: &One, nodes: &[Uuid]) -> Halves {
    let stream = one.listener.connect(Default::default(), Default::default());
    let connector = ssntp_test_support::trust().connector(&client::identity(Role::SCHEDULER));
    let connector = connector.unwrap().protocol(b"ssntp-link/1");
    let end = Instant::now() + LIMIT;
    let secured = connector.connect(Arc::new(stream.unwrap()), "localhost", &BufferPool::new(), end);
    let mut halves = secured.unwrap().halves;
    let (server, roles) = (Uuid::from_u128(5), Role::SCHEDULER.bits().to_be_bytes());
    let longest = ssntp::proto::DEFAULT_MAX_PAYLOAD.to_be_bytes();
    let hello: [&[u8]; 7] = [
        &[0, 1],
        server.as_bytes(),
        &SESSION,
        &roles,
        &[0; 8],
        &longest,
        &[0, 0],
    ];
    let agent = Role::AGENT.bits().to_be_bytes();
    let row = |node: &Uuid| [node.as_bytes(), &SESSION[..], &[0; 16], &agent, &[0, 0, 0]].concat();
    let rows: Vec<_> = nodes.iter().flat_map(row).collect();
    let frames = [link_frame(0, &hello), link_frame(1, &[&[0; 8], &[1], &rows])];
    halves.transmit.transmit(&frames).unwrap();
    halves
}

/// The number of each session of another server.
const SESSION: [u8; 8] = 1_u64.to_be_bytes();

/// A frame of a session of another server, for the leader.
fn passed(node: Uuid, frame: &Frame) -> Outgoing {
    link_frame(4, &[&[0; 8], &SESSION, node.as_bytes(), &[0, 2], &frame.encode()])
}

/// The servers agree that the session of the higher rank stays, whichever is reported last.
#[test]
fn a_session_that_is_outranked_counts_only_once_the_other_one_has_ended() {
    let (_engine, all) = several(1);
    let mut controller = all[0].connect(Role::CONTROLLER);
    let mut node = all[0].connect(Role::AGENT);
    let mut next = |kind: FrameKind| {
        let kinds = [Event::NODE_CONNECTED, Event::NODE_DISCONNECTED].map(FrameKind::from);
        let is_of_nodes = |kind| kinds.contains(&kind) || kind == Command::STATS;
        let frame = loop {
            let frame = controller.recv_any();
            if is_of_nodes(frame.kind()) {
                break frame;
            }
        };
        assert_eq!(frame.kind(), kind, "{frame:?}");
        frame
    };
    next(Event::NODE_CONNECTED.into());
    // The node had moved here while the other server was cut off, which still lists its former session.
    let (uuid, other) = (node.uuid, Uuid::from_u128(6));
    let mut halves = link(&all[0], &[uuid, other]);
    let event = next(Event::NODE_CONNECTED.into());
    assert_eq!(event.payload::<NodeConnected>().unwrap().node_uuid, other);
    node.send_payload(&stats(uuid, &[]));
    next(Command::STATS.into());
    drop(node);
    next(Event::NODE_DISCONNECTED.into());
    next(Event::NODE_CONNECTED.into());
    let frame = passed(uuid, &Frame::of(&stats(uuid, &[])));
    halves.transmit.transmit(&[frame]).unwrap();
    next(Command::STATS.into());
}

#[test]
fn an_intent_is_sent_before_its_start() {
    let (_engine, all) = several(1);
    let mut controller = all[0].connect(Role::CONTROLLER);
    // Another scheduler with one node, which is ready.
    let node = Uuid::from_u128(6);
    let mut halves = link(&all[0], &[node]);
    let ready = passed(node, &Frame::of(&ready(node, 1000)));
    halves.transmit.transmit(&[ready]).unwrap();
    until(&mut controller, Event::NODE_CONNECTED);
    let start = start(100);
    controller.send_payload(&start);
    // Both frames name the instance, the intent as 16 bytes and the START as text.
    let (intent, text) = (start.instance_uuid.as_bytes(), start.instance_uuid.to_string());
    let (mut is_told, end) = (false, Instant::now() + LIMIT);
    loop {
        let input = halves.inbox.bytes_mut();
        let header = input
            .get(..8)
            .map(|header| (header[3], u32::from_be_bytes(header[4..].try_into().unwrap())));
        let Some((operand, length)) = header.filter(|(_, length)| input.len() >= 8 + *length as usize) else {
            halves.receive_until(end).unwrap();
            continue;
        };
        let frame = input.split_to(8 + length as usize);
        let names = |bytes: &[u8]| frame.windows(bytes.len()).any(|window| window == bytes);
        match operand {
            7 => is_told |= names(intent),
            4 if names(text.as_bytes()) => break,
            _ => {}
        }
    }
    assert!(is_told, "the START came first");
}

#[test]
fn no_node_connects_while_it_is_not_known_which_certificates_are_revoked() {
    let engine = MemoryEngine::new();
    let write = |text: &str| {
        let put = Request::Put {
            key: "documents/enrolment".to_owned(),
            value: text.into(),
            lease: None,
            when: When::Always,
        };
        engine.clone().ask(&put).unwrap();
    };
    write("{");
    let records = Enrolments::default();
    let config = || SchedulerConfig::new().enrolments(records.clone());
    let one = One::start(&engine, config(), &[]).unwrap();
    assert!(Client::try_connect(&one.listener, Role::AGENT).is_none());
    let why = records.fault().unwrap();
    assert!(why.contains("enrolment cannot be read"), "{why}");
    // An issuer of nodes cannot have issued the certificate of an operator, who has to mend this.
    let _operator = one.connect(Role::CONTROLLER);
    write("{}");
    wait_for(|| records.fault().map_or(Ok(()), Err));
    assert!(Client::try_connect(&one.listener, Role::AGENT).is_some());
    // What was known counts until the document can be read again.
    write("[");
    wait_for(|| records.fault().ok_or("no fault"));
    assert_eq!(records.unknown(), None);
    assert!(Client::try_connect(&one.listener, Role::AGENT).is_some());
}

#[test]
fn the_health_of_a_leader_says_that_it_cannot_read_the_tenants() {
    let engine = MemoryEngine::new();
    let put = Request::Put {
        key: "documents/tenants".to_owned(),
        value: "damaged".into(),
        lease: None,
        when: When::Always,
    };
    engine.clone().ask(&put).unwrap();
    let one = One::start(&engine, SchedulerConfig::new(), &[]).unwrap();
    let faults = wait_for(|| {
        let figures = Scheduler::figures(&one.joined.server.handle()).unwrap();
        Some(figures.faults)
            .filter(|faults| !faults.is_empty())
            .ok_or("no fault")
    });
    assert!(faults[0].contains("tenants cannot be read"), "{faults:?}");
}

#[test]
fn a_token_names_the_operator_of_a_follower_and_a_node_that_has_just_joined_there_is_revoked() {
    let engine = MemoryEngine::new();
    let authority = ssntp_test_support::authority();
    let issuer = |name| authority.issuer(name, Role::AGENT, 10).unwrap();
    let records = [(); 2].map(|()| Enrolments::default());
    let mut all = Vec::new();
    for (name, records) in [("one", &records[0]), ("two", &records[1])] {
        let config = SchedulerConfig::new().enrolments(records.clone());
        let enrolment = Enrolment::new(issuer(name), records.clone());
        let one = One::with(&engine, config, &all, |server| server.enrol(enrolment)).unwrap();
        await_that("it leads, or follows", || {
            one.joined.membership.view().leader.is_some()
        });
        all.push(one);
    }
    await_links(&all);
    assert!(all[0].leads());
    // The audit log is kept from now on.
    ssntp_test_support::audited();
    let mut operator = all[1].connect(Role::CONTROLLER);
    let mut ask = |action, token: TokenEntry, uuid: &str| -> EnrolmentList {
        operator.send_payload(&ManageEnrolment {
            id: "q".into(),
            action,
            token,
            uuid: uuid.into(),
            ..ManageEnrolment::default()
        });
        until(&mut operator, EnrolmentList::KIND).payload().unwrap()
    };
    let (life, issuer) = (Duration::from_secs(3600), issuer("two"));
    let signing = signing_request(&node_key().unwrap(), "key").unwrap();
    let signing = SigningRequest::from_pem(&signing).unwrap();
    // More than once, because the leader may have read the engine a moment ago.
    for _ in 0..5 {
        let token = JoinToken::new(Address::tcp("localhost", 1), authority.info()).unwrap();
        let stored = StoredToken::new(&token, Role::AGENT, None, 1, wall_clock() + life, "");
        let entry = TokenEntry {
            id: stored.id,
            secret_sha256: stored.secret_sha256,
            roles: "agent".to_owned(),
            uses_left: 1,
            ends: stored.ends,
            made_by: "somebody else".to_owned(),
            ..TokenEntry::default()
        };
        let added = ask(EnrolmentAction::AddToken, entry, "");
        assert_eq!(added.reason, EnrolmentRefusal::NotRefused, "{}", added.detail);
        let subject = client::identity(Role::CONTROLLER).info().subject.clone();
        let by = &added.tokens[0].made_by;
        assert!(by.starts_with(&format!("{subject}, ")), "{by}");
        let request = token.request(Role::AGENT, String::new());
        let joined = records[1].update(Some(token.id()), &mut |records| {
            records.join(&request, &signing, (&issuer, life, wall_clock()))
        });
        let revoked = ask(
            EnrolmentAction::Revoke,
            TokenEntry::default(),
            &joined.unwrap().uuid.to_string(),
        );
        assert_eq!(revoked.reason, EnrolmentRefusal::NotRefused, "{}", revoked.detail);
        let by = format!(", {subject}");
        let lines = ssntp_test_support::audited();
        assert!(
            lines
                .iter()
                .any(|line| line.contains("revoked: UUID") && line.contains(&by)),
            "{lines:?}"
        );
    }
}

#[test]
fn with_an_empty_engine_no_certificate_is_revoked() {
    let records = Enrolments::default();
    let config = SchedulerConfig::new().enrolments(records.clone());
    let one = One::start(&MemoryEngine::new(), config, &[]).unwrap();
    assert_eq!([records.unknown(), records.fault()], [None, None]);
    assert!(Client::try_connect(&one.listener, Role::AGENT).is_some());
}

#[test]
fn an_engine_that_refuses_is_an_error_at_the_start() {
    let engine = MemoryEngine::new();
    engine.fail(Some(EngineError::Credentials("wrong".to_owned())));
    let refused = One::start(&engine, SchedulerConfig::new(), &[]).err().unwrap();
    assert!(
        matches!(refused, JoinError::Engine(EngineError::Credentials(_))),
        "{refused}"
    );
}
