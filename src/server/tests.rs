//! The core, step by step: its actions for each input, and its counters.

mod certificates;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use rustls::pki_types::CertificateDer;
use uuid::Uuid;

use super::admission::{AdmissionRequest, Peer, RequestKind};
use super::core::ServerCore;
use super::environment::Environment;
use super::*;
use crate::Role;
use crate::proto::{
    Codec, Command, Connect, ErrorCode, Frame, FrameKind, FrameType, Item, PROBE, Refusal, Run, Trace,
};
use crate::wire::outgoing;
use ssntp_pki::{Authority, AuthorityRequest, CertificateInfo, CertificateRequest};
use ssntp_transport::dispatch::{Action, Core, Drops, Origin};
use ssntp_transport::{
    BufferPool, ConnectionId, EndReason, Limits, Outbox, Outgoing, PeerAddress, memory, plain,
};

/// The core with its application, at a fixed time.
pub(in crate::server) struct Rig {
    pub(in crate::server) core: ServerCore,
    pub(in crate::server) now: Instant,
    pub(in crate::server) wall: SystemTime,
    /// The expiry of the certificates of clients that connect.
    pub(in crate::server) expires: Option<SystemTime>,
    generation: u64,
    admitted: usize,
    stopping: Receiver<Infallible>,
}

/// A session with its outbox.
pub(in crate::server) struct Member {
    pub(in crate::server) id: ConnectionId,
    uuid: Uuid,
    outbox: Outbox,
}

const MINUTE: Duration = Duration::from_secs(60);

impl Rig {
    pub(in crate::server) fn new(
        handler: impl Handler,
        configure: impl FnOnce(ServerConfig) -> ServerConfig,
    ) -> Self {
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        let identity = authority.issue(&CertificateRequest::new(Role::SERVER)).unwrap();
        let config = ServerConfig::new(identity.identity().clone(), authority.trust().clone());
        let config = configure(config);
        let environment = Environment::new(&config).unwrap();
        let most = config.max_sessions.unwrap_or(8);
        let (open, stopping) = bounded(0);
        #[expect(clippy::disallowed_methods, reason = "any time will do")]
        let now = Instant::now();
        let mut rig = Self {
            core: ServerCore::new(config, environment, most, Box::new(handler), open, now).unwrap(),
            now,
            wall: UNIX_EPOCH,
            expires: None,
            generation: 0,
            admitted: 0,
            stopping,
        };
        rig.set_clock(UNIX_EPOCH + MINUTE * 1_000_000);
        rig
    }

    fn set_clock(&mut self, wall: SystemTime) {
        self.wall = wall;
        self.core.time_of_day(wall);
    }

    pub(in crate::server) fn admit(
        &mut self,
        role: Role,
        limits: Limits,
        actions: &mut Vec<Action>,
    ) -> Result<Member, Refusal> {
        let number = self.admitted as u64 + 1;
        let (id, uuid) = (ConnectionId(number), Uuid::from_u128(number.into()));
        let outbox = Outbox::new(limits);
        let request = AdmissionRequest {
            peer: Peer {
                certificate: CertificateInfo::nothing(&CertificateDer::from(number.to_be_bytes().to_vec())),
                intermediates: Vec::new(),
                expires: self.expires,
                generation: self.generation,
                address: PeerAddress::Memory,
            },
            kind: RequestKind::Client(Connect::new(role, uuid, true)),
        };
        let standing = self.admitted;
        self.core
            .admit(id, request, outbox.counters(), standing, self.now, actions)?;
        self.admitted += 1;
        Ok(Member { id, uuid, outbox })
    }

    fn connect_within(&mut self, role: Role, limits: Limits) -> Member {
        let mut actions = Vec::new();
        let member = self.admit(role, limits, &mut actions).unwrap();
        self.core.admitted(member.id, true, self.now, &mut actions);
        assert!(actions.is_empty(), "{actions:?}");
        member
    }

    /// The same time passes by both clocks.
    pub(in crate::server) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.set_clock(self.wall + time);
    }

    pub(in crate::server) fn tick(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        self.core.tick(self.now, &mut actions);
        self.core.settle(self.now, &mut actions);
        actions
    }

    pub(in crate::server) fn connect(&mut self, role: Role) -> Member {
        self.connect_within(role, Limits::default())
    }

    /// The core handles the whole item and delivers all notices.
    fn receive(&mut self, from: &Member, item: Item) -> Vec<Action> {
        let (frames, mut actions) = (item.frames(), Vec::new());
        let dealt_with = self.core.item(from.id, item, u32::MAX, self.now, &mut actions);
        assert!(dealt_with.0 == frames && dealt_with.1.is_none());
        self.core.settle(self.now, &mut actions);
        actions
    }

    /// Runs a call of another thread. Its actions are appended and not carried out.
    fn call<T>(&mut self, actions: &mut Vec<Action>, call: impl FnOnce(&mut Context<'_>) -> T) -> T {
        let mut result = None;
        self.core.call(self.now, actions, |cx| result = Some(call(cx)));
        result.unwrap()
    }

    fn counters(&mut self, of: &Member) -> SessionCounters {
        let uuid = of.uuid;
        self.call(&mut Vec::new(), |cx| cx.counters(uuid)).unwrap()
    }
}

/// A call of the application.
#[derive(Debug, PartialEq)]
enum Note {
    Connected,
    Disconnected(DisconnectReason),
    Frame(FrameKind),
}

struct Notes(Sender<Note>);

impl Handler for Notes {
    fn connected(&mut self, _: &mut Context<'_>, _: &SessionInfo) {
        self.0.send(Note::Connected).unwrap();
    }
    fn disconnected(&mut self, _: &mut Context<'_>, _: &SessionInfo, reason: &DisconnectReason) {
        self.0.send(Note::Disconnected(reason.clone())).unwrap();
    }
    fn frame(&mut self, _: &mut Context<'_>, _: &SessionInfo, frame: Frame) {
        self.0.send(Note::Frame(frame.kind())).unwrap();
    }
}

fn notes() -> (Notes, Receiver<Note>) {
    let (sender, receiver) = unbounded();
    (Notes(sender), receiver)
}

/// A run of this number of frames.
fn run(kind: impl Into<FrameKind>, frames: usize) -> Item {
    let bytes = Frame::with_payload(kind.into(), "x: y\n").encode().repeat(frames);
    let mut items = Vec::new();
    let mut input = BytesMut::from(&bytes[..]);
    Codec::new(1 << 20, false).decode(&mut input, &mut items).unwrap();
    assert_eq!(items.len(), 1);
    items.remove(0)
}

fn traced(kind: Command) -> Item {
    Item::Traced(Frame::with_payload(kind, "x: y\n").traced(Trace::new("t")))
}

/// The receivers of frames, with the number of frames for each.
fn sends(actions: &[Action]) -> Vec<(ConnectionId, u32)> {
    let send = |action: &Action| match action {
        Action::Send { to, item, .. } => Some((*to, item.frames())),
        _ => None,
    };
    actions.iter().filter_map(send).collect()
}

#[test]
fn a_turn_handles_the_given_number_of_frames_and_returns_the_rest() {
    let (handler, received_notes) = notes();
    let mut rig = Rig::new(handler, |c| {
        c.rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER))
    });
    let (agent, controller) = (rig.connect(Role::AGENT), rig.connect(Role::CONTROLLER));
    let mut actions = Vec::new();
    let item = run(Command::STATS, 5);
    let (taken, rest) = rig.core.item(agent.id, item, 2, rig.now, &mut actions);
    assert_eq!((taken, sends(&actions)), (2, vec![(controller.id, 2)]));
    assert_eq!(rig.counters(&agent).frames_received, 2);
    assert_eq!(received_notes.try_iter().count(), 2 + 2);
    let rest = rest.unwrap();
    assert_eq!(rest.frames(), 3);
    assert_eq!(sends(&rig.receive(&agent, rest)), [(controller.id, 3)]);
}

#[test]
fn commands_of_operators_are_handled_one_at_a_time() {
    let mut rig = Rig::new((), |c| c.operators(Role::CONTROLLER));
    let operator = rig.connect(Role::CONTROLLER);
    for (kind, taken) in [(Command::LIST_SESSIONS, 1), (Command::STATS, 5)] {
        let mut actions = Vec::new();
        let item = run(kind, 5);
        let (frames, rest) = rig.core.item(operator.id, item, 1000, rig.now, &mut actions);
        let left = rest.map_or(0, |rest| rest.frames());
        assert_eq!((frames, left), (taken, 5 - taken), "{kind}");
    }
}

#[test]
fn received_waiting_and_sent_frames_are_counted() {
    let mut rig = Rig::new((), |c| c.filter(Filter::spec().action(FilterAction::Drop)));
    let agent = rig.connect(Role::AGENT);
    let unsupported = Item::Unsupported(FrameKind::new(FrameType::COMMAND, 0x7f));
    for item in [run(Command::STATS, 3), run(Command::START, 2), unsupported] {
        for _ in 0..2 {
            rig.core.received(agent.id, 100, rig.now);
            rig.receive(&agent, item.clone());
        }
    }
    let counted = SessionCounters {
        frames_received: 12,
        bytes_received: 600,
        frames_filtered: 4,
        frames_unsupported: 2,
        ..SessionCounters::default()
    };
    assert_eq!(rig.counters(&agent), counted);
    for frames in [1, 2] {
        let body = Bytes::from_static(b"12345");
        agent
            .outbox
            .push(Outgoing::whole(body, frames), Limits::NONE, false)
            .unwrap();
    }
    let waits = SessionCounters {
        frames_waiting: 3,
        bytes_waiting: 10,
        ..counted
    };
    assert_eq!(rig.counters(&agent), waits);
    let (stream, _peer) = memory::pair();
    let mut batch = Vec::new();
    agent
        .outbox
        .open(plain(Arc::new(stream), BufferPool::new()).transmit);
    let due = agent.outbox.try_next(&mut batch).unwrap();
    agent.outbox.send(due, &mut batch, &|| {}).unwrap();
    let sent = SessionCounters {
        frames_sent: 3,
        bytes_sent: 10,
        ..counted
    };
    assert_eq!(rig.counters(&agent), sent);
}

#[test]
fn every_filtered_frame_is_answered() {
    for (action, answers) in [(FilterAction::Reject, 3), (FilterAction::Drop, 0)] {
        let mut rig = Rig::new((), |c| c.filter(Filter::spec().action(action)));
        let agent = rig.connect(Role::AGENT);
        let actions = rig.receive(&agent, run(Command::START, 3));
        let sent: u32 = sends(&actions).iter().map(|(_, frames)| frames).sum();
        assert_eq!(sent, answers, "{action:?}");
    }
}

/// Answers each frame, and sends a frame when a session ends.
struct Sends(Uuid);

impl Handler for Sends {
    fn frame(&mut self, cx: &mut Context<'_>, _: &SessionInfo, frame: Frame) {
        cx.send(self.0, &frame).unwrap();
    }
    fn disconnected(&mut self, cx: &mut Context<'_>, _: &SessionInfo, _: &DisconnectReason) {
        cx.send(self.0, &Frame::new(Command::STATS)).unwrap();
    }
}

#[test]
fn frames_caused_by_a_session_have_it_as_origin_and_others_the_application() {
    let to = Uuid::from_u128(2);
    let mut rig = Rig::new(Sends(to), |c| {
        c.rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER))
    });
    let (agent, controller) = (rig.connect(Role::AGENT), rig.connect(Role::CONTROLLER));
    let origins = |actions: &[Action]| -> Vec<Origin> {
        let origin = |action: &Action| match action {
            Action::Send { origin, to, .. } if *to == controller.id => Some(*origin),
            _ => None,
        };
        actions.iter().filter_map(origin).collect()
    };
    let frame = rig.receive(&agent, run(Command::STATS, 1));
    assert_eq!(
        origins(&frame),
        [Origin::Connection(agent.id); 2],
        "the counts by rules and by the handler"
    );
    let mut call = Vec::new();
    rig.call(&mut call, |cx| cx.send(to, &Frame::new(Command::STATS)))
        .unwrap();
    rig.call(&mut call, |cx| {
        cx.multicast(Role::ALL, &Frame::new(Command::STATS))
    })
    .unwrap();
    assert_eq!(origins(&call), [Origin::Application; 2]);
    // Frames that the end of a session causes have the application as their origin.
    let ends = rig.receive(&agent, run(ErrorCode::CONNECTION_FAILURE, 1));
    assert_eq!(origins(&ends), [Origin::Application]);
}

#[test]
fn each_policy_for_slow_consumers_has_its_action() {
    for policy in [
        SlowConsumer::Disconnect,
        SlowConsumer::DropNewest,
        SlowConsumer::DropOldest,
    ] {
        let (handler, received_notes) = notes();
        let mut rig = Rig::new(handler, |c| c.slow_consumer(policy));
        let agent = rig.connect(Role::AGENT);
        let (load, mut actions) = (Outgoing::whole(Bytes::from_static(b"x"), 1).load(), Vec::new());
        let drops = rig.core.on_line_full(agent.id, load, rig.now, &mut actions);
        rig.core.settle(rig.now, &mut actions);
        let ended = Note::Disconnected(DisconnectReason::SlowConsumer);
        assert_eq!(
            received_notes.try_iter().any(|note| note == ended),
            policy == SlowConsumer::Disconnect
        );
        let right = match (policy, &actions[..]) {
            (SlowConsumer::Disconnect, [Action::End { id, abort: true }]) => *id == agent.id,
            (SlowConsumer::DropNewest | SlowConsumer::DropOldest, []) => true,
            _ => false,
        };
        assert!(right, "{policy:?}: {actions:?}");
        let oldest = policy == SlowConsumer::DropOldest;
        assert_eq!(drops, if oldest { Drops::Oldest } else { Drops::Newest });
    }
}

/// True if the actions send ConnectionFailure and then end the session with its queue sent.
fn ends_with_connection_failure(actions: &[Action], id: ConnectionId) -> bool {
    let expected = outgoing(&Frame::new(ErrorCode::CONNECTION_FAILURE), false);
    match actions {
        [
            Action::Send { to, item, .. },
            Action::End {
                id: ended,
                abort: false,
            },
        ] => *to == id && *ended == id && format!("{item:?}") == format!("{expected:?}"),
        _ => false,
    }
}

#[test]
fn a_stop_ends_every_session_and_refuses_newcomers() {
    let (handler, received_notes) = notes();
    let mut rig = Rig::new(handler, |c| c);
    let ids = [(); 2].map(|()| rig.connect(Role::AGENT).id);
    let mut actions = Vec::new();
    rig.core.stop(rig.now, &mut actions);
    rig.core.settle(rig.now, &mut actions);
    let ended = actions.iter().map(|action| match action {
        Action::End { id, abort: false } => *id,
        other => panic!("{other:?}"),
    });
    assert_eq!(ended.collect::<Vec<_>>(), ids);
    let stopped = || Note::Disconnected(DisconnectReason::Stopped);
    let notes_so_far: Vec<_> = received_notes.try_iter().collect();
    assert_eq!(
        notes_so_far,
        [Note::Connected, Note::Connected, stopped(), stopped()]
    );
    assert!(rig.stopping.try_recv().is_err_and(|e| e.is_disconnected()));
    let refusal = rig.admit(Role::AGENT, Limits::default(), &mut actions).err();
    assert!(matches!(refusal, Some(Refusal::Busy(_))), "{refusal:?}");
}

#[test]
fn connection_errors_of_a_client_end_its_session_and_other_errors_are_frames() {
    for code in [
        ErrorCode::CONNECTION_FAILURE,
        ErrorCode::CONNECTION_ABORTED,
        ErrorCode::START_FAILURE,
    ] {
        let (handler, received_notes) = notes();
        let mut rig = Rig::new(handler, |c| c);
        let agent = rig.connect(Role::AGENT);
        let actions = rig.receive(&agent, run(code, 1));
        let second_note = received_notes.try_iter().nth(1).unwrap();
        if code == ErrorCode::START_FAILURE {
            assert!(actions.is_empty() && second_note == Note::Frame(code.into()));
        } else {
            assert!(matches!(actions[..], [Action::End { abort: false, .. }]));
            assert_eq!(
                second_note,
                Note::Disconnected(DisconnectReason::PeerRefused(code))
            );
        }
    }
}

#[test]
fn only_a_controllers_configure_replaces_the_configuration_if_the_server_takes_it() {
    // The columns: takes_configure, the sender's role, the kind, and true if the configuration changes.
    let rows = [
        (true, Role::CONTROLLER, Command::CONFIGURE, true),
        (true, Role::CONTROLLER | Role::AGENT, Command::CONFIGURE, true),
        (true, Role::AGENT, Command::CONFIGURE, false),
        (true, Role::CONTROLLER, Command::START, false),
        (false, Role::CONTROLLER, Command::CONFIGURE, false),
    ];
    for (takes, role, kind, taken) in rows {
        for (item, valid) in [
            (run(kind, 2), true),
            (traced(kind), true),
            (run(kind, 2), false),
            (traced(kind), false),
        ] {
            let (handler, received_notes) = notes();
            let mut rig = Rig::new(handler, |c| {
                c.takes_configure(takes)
                    .configuration("old")
                    .configuration_check(move |_| if valid { Ok(()) } else { Err("no".into()) })
                    .rules(Rules::new().multicast(kind, Role::NETAGENT))
            });
            let (from, to) = (rig.connect(role), rig.connect(Role::NETAGENT));
            let (frames, refused) = (item.frames(), taken && !valid);
            let case = format!("{takes} {role} {kind:?} {item:?} {valid}");
            let actions = rig.receive(&from, item);
            let configuration = rig.call(&mut Vec::new(), |cx| cx.configuration().clone());
            let expected: &[u8] = if taken && valid { b"x: y\n" } else { b"old" };
            assert_eq!(configuration, expected, "{case}");
            // A refused CONFIGURE goes only to its sender.
            let receiver = if refused { from.id } else { to.id };
            let sends = sends(&actions);
            assert!(sends.iter().all(|(to, _)| *to == receiver), "{case}");
            assert_eq!(sends.iter().map(|(_, n)| n).sum::<u32>(), frames, "{case}");
            let forwarded = received_notes
                .try_iter()
                .filter(|note| *note == Note::Frame(kind.into()));
            assert_eq!(
                forwarded.count(),
                if refused { 0 } else { frames as usize },
                "{case}"
            );
        }
    }
}

/// Sets a timer for this time, or panics in `next_timer` once the flag is set.
struct Timed(Instant, Arc<AtomicBool>, Sender<()>);

impl Handler for Timed {
    fn run(&mut self, _: &mut Context<'_>, _: &SessionInfo, _: &Run) {}
    fn next_timer(&self) -> Option<Instant> {
        assert!(!self.1.load(Ordering::Relaxed), "on purpose: the test wants it");
        Some(self.0)
    }
    fn timer(&mut self, _: &mut Context<'_>) {
        self.2.send(()).unwrap();
    }
}

#[test]
fn a_timer_is_called_once_when_due_and_never_if_next_timer_panics() {
    #[expect(clippy::disallowed_methods, reason = "any time will do")]
    let due = Instant::now() + MINUTE;
    let (panics, (sender, received_notes)) = (Arc::new(AtomicBool::new(false)), unbounded());
    let mut rig = Rig::new(Timed(due, Arc::clone(&panics), sender), |c| c);
    assert_eq!(rig.core.next_deadline(), Some(due));
    let before = due - Duration::from_nanos(1);
    for (at, times) in [(before, 0), (due, 1), (due, 0)] {
        rig.core.tick(at, &mut Vec::new());
        assert_eq!(received_notes.try_iter().count(), times);
    }
    assert_eq!(rig.core.next_deadline(), Some(due));
    panics.store(true, Ordering::Relaxed);
    assert_eq!(rig.core.next_deadline(), None);
    rig.core.tick(due, &mut Vec::new());
    assert!(received_notes.try_recv().is_err());
}

#[test]
fn the_application_gets_no_event_of_a_session_that_ended_before_it_began() {
    let (handler, received_notes) = notes();
    let mut rig = Rig::new(handler, |c| c);
    let (now, limits, mut actions) = (rig.now, Limits::default(), Vec::new());
    // A session whose threads could not be started, and one that ended before they were.
    let unstarted = rig.admit(Role::AGENT, limits, &mut actions).unwrap();
    rig.core.admitted(unstarted.id, false, now, &mut actions);
    let ended = rig.admit(Role::AGENT, limits, &mut actions).unwrap();
    rig.core.ended(ended.id, EndReason::PeerClosed, now, &mut actions);
    rig.core.admitted(ended.id, true, now, &mut actions);
    rig.core.settle(now, &mut actions);
    assert!(received_notes.try_recv().is_err());
    let there = rig.call(&mut actions, |cx| cx.directory().len());
    assert_eq!(there, 0);
    let one = rig.connect(Role::AGENT);
    rig.core.ended(one.id, EndReason::PeerClosed, now, &mut actions);
    rig.core.settle(now, &mut actions);
    let closed = Note::Disconnected(DisconnectReason::PeerClosed);
    assert_eq!(
        received_notes.try_iter().collect::<Vec<_>>(),
        [Note::Connected, closed]
    );
}

#[test]
fn an_application_forwards_only_frames_that_may_be_sent_and_never_to_the_sender() {
    let (handler, _told) = notes();
    let mut rig = Rig::new(handler, |c| c.max_payload(1024));
    let members = [(); 3].map(|()| rig.connect(Role::AGENT));
    let [from, to, other] = members.each_ref().map(|member| member.uuid);
    let (stats, unknown) = (Frame::new(Command::STATS), FrameKind::new(FrameType(9), 1));
    let (kind, nobody) = (FrameKind::from(Command::CONNECT), Uuid::from_u128(99));
    let mut actions = Vec::new();
    rig.call(&mut actions, |cx| {
        let info = cx.directory().session(from).cloned().unwrap();
        assert_eq!(cx.forward(&info, to, &stats), Ok(()));
        assert_eq!(cx.forward(&info, from, &stats), Err(SendError::ToSender(from)));
        assert_eq!(
            cx.forward(&info, nobody, &stats),
            Err(SendError::NotConnected(nobody))
        );
        for kind in [kind, unknown] {
            let frame = Frame::new(kind);
            assert_eq!(cx.forward(&info, to, &frame), Err(SendError::Kind(kind)));
            assert_eq!(
                cx.forward_all(&info, Role::AGENT, &frame),
                Err(SendError::Kind(kind))
            );
        }
        let long = Frame::with_payload(Command::STATS, vec![b'x'; 1025]);
        let too_long = SendError::TooLong {
            len: 1025,
            limit: 1024,
        };
        assert_eq!(cx.forward(&info, to, &long), Err(too_long));
        assert_eq!(cx.forward_all(&info, Role::AGENT, &long), Err(too_long));
        assert_eq!(cx.forward_all(&info, Role::AGENT, &stats), Ok(2));
        assert_eq!(cx.forward(&info, other, &stats), Ok(()));
    });
    let [_, to, other] = members.map(|member| (member.id, 1));
    assert_eq!(sends(&actions), [to, to, other, other]);
}

#[test]
fn a_draining_server_stops_when_all_clients_have_left_or_their_time_is_over() {
    for leave in [true, false] {
        let mut rig = Rig::new((), |c| c);
        let (agent, controller) = (rig.connect(Role::AGENT), rig.connect(Role::CONTROLLER));
        let mut actions = Vec::new();
        rig.call(&mut actions, |cx| cx.drain(Duration::from_secs(30)));
        rig.core.settle(rig.now, &mut actions);
        assert_eq!(sends(&actions), [(agent.id, 1), (controller.id, 1)]);
        let refused = rig.admit(Role::AGENT, Limits::default(), &mut Vec::new());
        assert!(matches!(refused, Err(Refusal::Busy(_))));
        rig.pass(Duration::from_secs(35));
        assert!(
            rig.tick().is_empty(),
            "clients have some more time to end in order"
        );
        if leave {
            for (member, stops) in [(&agent, false), (&controller, true)] {
                let mut actions = Vec::new();
                rig.core
                    .ended(member.id, EndReason::PeerClosed, rig.now, &mut actions);
                rig.core.settle(rig.now, &mut actions);
                let is_stop = |action: &Action| matches!(action, Action::Stop);
                assert_eq!(actions.iter().any(is_stop), stops);
            }
        } else {
            assert_eq!(rig.core.next_deadline(), Some(rig.now + Duration::from_secs(1)));
            rig.pass(Duration::from_secs(1));
            assert!(matches!(rig.tick()[..], [Action::Stop]));
        }
        assert!(rig.tick().is_empty());
    }
}

#[test]
fn a_silent_client_is_asked_for_a_sign_of_life_and_its_session_ends_without_one() {
    let (handler, received_notes) = notes();
    let mut rig = Rig::new(handler, |c| c.idle_limit(Duration::from_secs(80)));
    let (stopped, lives) = (rig.connect(Role::AGENT), rig.connect(Role::AGENT));
    let answer = Item::Unsupported(PROBE).answer().unwrap();
    for seconds in (10..=80).step_by(10) {
        rig.pass(Duration::from_secs(10));
        let actions = rig.tick();
        let expected = match seconds {
            40 => vec![(stopped.id, 1), (lives.id, 1)],
            // The other one is asked again, because it has only answered.
            80 => vec![(lives.id, 1)],
            _ => Vec::new(),
        };
        assert_eq!(sends(&actions), expected, "{seconds}");
        if seconds == 40 {
            rig.core.received(lives.id, 8, rig.now);
            assert!(rig.receive(&lives, Item::from(&answer)).is_empty());
        }
    }
    // The application gets neither the answer nor another end.
    let received: Vec<_> = received_notes.try_iter().skip(2).collect();
    let lost = DisconnectReason::Lost("the peer has sent nothing, and does not answer".into());
    assert_eq!(received, [Note::Disconnected(lost)]);
    // Without a question the answer is a frame as any other.
    rig.receive(&lives, Item::from(&answer));
    rig.receive(&lives, Item::from(&answer));
    assert_eq!(received_notes.try_iter().count(), 1);
}

#[test]
fn a_client_that_is_not_read_gets_a_sign_of_life_and_the_application_not_its_answer() {
    let (handler, received_notes) = notes();
    let mut rig = Rig::new(handler, |c| c);
    let (client, mut actions) = (rig.connect(Role::AGENT), Vec::new());
    assert_eq!(received_notes.try_iter().count(), 1);
    rig.core.on_unread(client.id, rig.now, &mut actions);
    assert_eq!(sends(&actions), [(client.id, 1)]);
    let answer = Item::Unsupported(PROBE).answer().unwrap();
    rig.receive(&client, Item::from(&answer));
    assert_eq!(received_notes.try_iter().count(), 0);
    rig.receive(&client, Item::from(&answer));
    assert_eq!(received_notes.try_iter().count(), 1);
}
