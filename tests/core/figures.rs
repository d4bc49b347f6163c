//! The figures of a server.

use std::time::{Duration, Instant, SystemTime};

use ssntp::Role;
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest};
use ssntp::proto::{Command, Connect, ErrorCode, Event, Frame, FrameKind, FrameType, Refusal};
use ssntp::server::{
    CallError, Context, DisconnectReason, Figures, Filter, FilterAction, Handler, HeldBack, Newcomer, Pace,
    Rules, SessionInfo, SlowConsumer,
};
use ssntp::transport::Limits;
use ssntp_test_support::*;
use uuid::Uuid;

/// Waits until the figures fulfil a condition, and returns them.
fn figures_when(server: &TestServer, what: &str, are: impl Fn(&Figures) -> bool) -> Figures {
    let deadline = Instant::now() + LIMIT;
    loop {
        let figures = server.handle().figures().unwrap();
        if are(&figures) {
            return figures;
        }
        assert!(Instant::now() < deadline, "{what}: {figures:?}");
        std::thread::yield_now();
    }
}

/// Frames and bytes of a kind, received and sent.
fn of(figures: &Figures, kind: impl Into<FrameKind>) -> [u64; 4] {
    let kind = kind.into();
    let found = figures.frames.iter().find(|frames| frames.kind == kind);
    found.map_or([0; 4], |frames| {
        assert_eq!(frames.name, kind.to_string());
        [
            frames.frames_received,
            frames.bytes_received,
            frames.frames_sent,
            frames.bytes_sent,
        ]
    })
}

#[test]
fn frames_are_counted_by_kind_and_result_and_stay_counted_after_their_session() {
    let server = TestServer::start((), |c| {
        let rules = Rules::new().multicast(Command::STATS, Role::CONTROLLER);
        c.rules(rules.multicast(Event::TRACE_REPORT, Role::SCHEDULER))
            .filter(Filter::spec().action(FilterAction::Reject))
    });
    let mut controllers = [(); 2].map(|()| server.connect(Role::CONTROLLER));
    let mut agent = server.connect(Role::AGENT);
    for _ in 0..3 {
        agent.send(&Frame::with_payload(Command::STATS, "a: b\n"));
    }
    agent.send(&Frame::new(Command::START));
    agent.send(&Frame::new(FrameKind::new(FrameType::COMMAND, 0x7f)));
    agent.send(&Frame::new(Event::TRACE_REPORT));
    for controller in &mut controllers {
        for _ in 0..3 {
            assert_eq!(controller.frame().kind(), Command::STATS);
        }
    }
    for _ in 0..2 {
        assert_eq!(agent.frame().kind(), ErrorCode::INVALID_FRAME_TYPE);
    }
    let is_right = |figures: &Figures| {
        assert_eq!(of(figures, Command::STATS), [3, 39, 6, 78]);
        assert_eq!(of(figures, Command::START), [1, 8, 0, 0]);
        let [received, _, sent, _] = of(figures, ErrorCode::INVALID_FRAME_TYPE);
        assert_eq!((received, sent), (0, 2));
        let Figures {
            filtered,
            unsupported,
            answered,
            dropped,
            unreceived,
            ..
        } = figures;
        assert_eq!([*filtered, *unsupported, *answered, *dropped], [1, 1, 2, 0]);
        assert_eq!(*unreceived, 1, "no session has the role for the report");
        assert!(figures.frames.is_sorted_by_key(|frames| frames.kind));
    };
    let figures = figures_when(&server, "the last frame", |figures| {
        of(figures, Event::TRACE_REPORT)[0] == 1
    });
    is_right(&figures);
    agent.finish();
    agent.end();
    let figures = figures_when(&server, "its end", |figures| !figures.closed.is_empty());
    is_right(&figures);
    assert_eq!(figures.closed[0].counters.frames_received, 6);
}

#[test]
fn a_frame_for_which_a_routing_function_finds_nobody_is_counted() {
    let server = TestServer::start((), |c| {
        c.rules(Rules::new().route(Command::STATS, |_, _, directory| {
            directory
                .with_role(Role::CONTROLLER)
                .map(SessionInfo::uuid)
                .collect()
        }))
    });
    let mut agent = server.connect(Role::AGENT);
    agent.send(&Frame::with_payload(Command::STATS, "a: b\n"));
    let figures = figures_when(&server, "the frame", |figures| {
        of(figures, Command::STATS)[0] == 1
    });
    assert_eq!((figures.unreceived, figures.dropped), (1, 0));
}

#[test]
fn a_session_is_in_the_figures_before_and_after_its_end() {
    let began = SystemTime::now();
    let server = TestServer::start((), |c| c.max_sessions(8));
    let identity = identity(Role::AGENT | Role::NETAGENT);
    let mut agents = [(); 2].map(|()| {
        let mut peer = server.dial(&identity);
        peer.handshake(Role::AGENT | Role::NETAGENT, Uuid::new_v4(), false);
        peer
    });
    let _controller = server.connect(Role::CONTROLLER);
    agents[0].send(&Frame::new(Event::TRACE_REPORT));
    let uuid = agents[0].uuid;
    let session = |figures: &Figures| {
        figures
            .sessions
            .iter()
            .find(|session| session.info.uuid() == uuid)
            .cloned()
    };
    let received =
        |figures: &Figures| session(figures).is_some_and(|session| session.counters.frames_received == 1);
    let figures = figures_when(&server, "its frame", received);
    let shown = session(&figures).unwrap();
    assert_eq!(shown.info.certificate().serial, identity.info().serial);
    assert!(began <= figures.started && figures.started <= shown.since);
    assert!(shown.since <= shown.last_received.unwrap() && shown.last_received.unwrap() <= figures.taken);
    assert_eq!(
        (shown.last_queued, shown.held_back, shown.pace),
        (None, None, Pace::Keeps)
    );
    assert_eq!((figures.standing, figures.max_sessions), (3, 8));
    assert_eq!(
        (
            figures.certificates,
            figures.most_of_certificate,
            figures.max_of_certificate
        ),
        (2, 2, 6)
    );
    let by_role = figures.by_role.iter().filter(|(_, sessions)| *sessions > 0);
    let by_role: Vec<_> = by_role.map(|(role, sessions)| (*role, *sessions)).collect();
    assert_eq!(
        by_role,
        [(Role::CONTROLLER, 1), (Role::AGENT, 2), (Role::NETAGENT, 2)]
    );
    server.handle().send(uuid, Frame::new(Command::STATS)).unwrap();
    let queued = |figures: &Figures| session(figures).is_some_and(|session| session.last_queued.is_some());
    figures_when(&server, "what was sent to it", queued);

    assert_eq!(server.handle().disconnect(uuid), Ok(true));
    agents[1].finish();
    agents[1].end();
    let figures = figures_when(&server, "two ends", |figures| figures.closed.len() == 2);
    let [first, second] = &figures.closed[..] else {
        panic!()
    };
    assert_eq!(first.info.uuid(), uuid);
    assert_eq!(first.reason, DisconnectReason::Application);
    assert_eq!(
        (first.since <= first.until, first.counters.frames_received),
        (true, 1)
    );
    assert_eq!(second.reason, DisconnectReason::PeerClosed);
    assert_eq!((figures.admitted, figures.sessions.len()), (3, 1));
    let ended: Vec<_> = figures.ended.into_iter().collect();
    assert_eq!(ended, [("application", 1), ("closed", 1)]);
}

/// Refuses every client.
struct Alone;

impl Handler for Alone {
    fn admit(&mut self, _: &mut Context<'_>, _: &Newcomer<'_>) -> Result<(), Refusal> {
        Err(Refusal::postpone("it is late"))
    }
}

#[test]
fn newcomers_are_counted_by_result() {
    let server = TestServer::start((), |c| c.max_sessions(4).handshake_timeout(LIMIT));
    let agent = trust().connector(&identity(Role::AGENT)).unwrap();
    let agent = agent.resumption(true);
    let mut first = server.dial_with(&agent);
    let connected = first.handshake(Role::AGENT, Uuid::new_v4(), false);
    let mut second = server.dial_with(&agent);
    assert!(second.resumed && !first.resumed);
    second.handshake(Role::AGENT, Uuid::new_v4(), false);
    let _full = [(); 2].map(|()| server.connect(Role::AGENT));
    let refused = |role, uuid| {
        let mut peer = server.dial(&identity(Role::AGENT));
        peer.send_bytes(&Connect::new(role, uuid, false).encode());
        peer.refusal();
    };
    refused(Role::AGENT, Uuid::new_v4());
    refused(Role::CONTROLLER, Uuid::new_v4());
    refused(Role::AGENT, connected.server);
    // An untrusted client, and a client that sends no bytes.
    let stranger = Authority::new(&AuthorityRequest::default()).unwrap();
    let stranger = stranger.issue(&CertificateRequest::new(Role::AGENT)).unwrap();
    let stranger = trust().connector(&stranger.identity()).unwrap();
    server.dial_with(&stranger).refusal();
    drop(server.stream());
    let figures = figures_when(&server, "all of them", |figures| {
        figures.handshakes.refused.values().sum::<u64>() == 5 && figures.handshakes.running == 0
    });
    let refused: Vec<_> = figures.handshakes.refused.into_iter().collect();
    let words = ["certificate", "limit", "lost", "role", "uuid"];
    assert_eq!(refused, words.map(|word| (word, 1)));
    assert_eq!((figures.handshakes.full, figures.handshakes.resumed), (3, 1));

    let server = TestServer::start(Alone, |c| {
        c.handshake_timeout(Duration::from_millis(200)).max_handshakes(3)
    });
    let mut peer = server.dial(&identity(Role::AGENT));
    peer.send_bytes(&Connect::new(Role::AGENT, Uuid::new_v4(), false).encode());
    peer.refusal();
    let silent = server.stream();
    let words = |figures: &Figures| {
        let refused = &figures.handshakes.refused;
        refused.contains_key("application") && refused.contains_key("timeout")
    };
    let figures = figures_when(&server, "the deadline", words);
    assert_eq!(figures.handshakes.limit, 3);
    drop(silent);
}

/// A server that sends all STATS to controllers, with short queues.
fn narrow(policy: SlowConsumer, patience: Duration) -> TestServer {
    TestServer::start((), |c| {
        c.rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER))
            .slow_consumer(policy)
            .patience(patience)
            .queue(Limits {
                frames: 1 << 20,
                bytes: 1 << 20,
            })
    })
}

/// An agent that sends until its server is gone.
fn flood(server: &TestServer) -> (Uuid, std::thread::JoinHandle<()>) {
    let mut agent = server.connect(Role::AGENT);
    let uuid = agent.uuid;
    let frame = Frame::with_payload(Command::STATS, vec![b' '; 16 << 10]).encode();
    let thread = std::thread::spawn(move || while agent.try_send_bytes(&frame).is_ok() {});
    (uuid, thread)
}

#[test]
fn slow_receivers_and_held_senders_are_in_the_figures() {
    let server = narrow(SlowConsumer::Disconnect, Duration::from_secs(3600));
    let stuck = server.connect(Role::CONTROLLER);
    let (sender, sending) = flood(&server);
    let is_shown = |figures: &Figures| {
        let session = |uuid| {
            figures
                .sessions
                .iter()
                .find(|session| session.info.uuid() == uuid)
                .unwrap()
        };
        let (sender, stuck) = (session(sender), session(stuck.uuid));
        let held_back = matches!(sender.held_back, Some((HeldBack::Line, _)));
        held_back && matches!(stuck.pace, Pace::Awaited(_)) && stuck.counters.bytes_waiting > 0
    };
    let figures = figures_when(&server, "both", is_shown);
    assert!(figures.queues.used > 0 && figures.queues.used <= figures.queues.limit);
    drop(server);
    sending.join().unwrap();
}

#[test]
fn a_slow_consumer_is_in_the_figures_with_its_drops_or_its_end() {
    let server = narrow(SlowConsumer::DropNewest, Duration::ZERO);
    let stuck = server.connect(Role::CONTROLLER);
    let (_, sending) = flood(&server);
    let is_slow = |figures: &Figures| {
        let session = figures
            .sessions
            .iter()
            .find(|session| session.info.uuid() == stuck.uuid);
        session.unwrap().pace == Pace::Slow && figures.dropped > 0
    };
    let before = figures_when(&server, "a slow consumer", is_slow).dropped;
    assert_eq!(server.handle().disconnect(stuck.uuid), Ok(true));
    assert!(server.handle().figures().unwrap().dropped >= before);
    drop(server);
    sending.join().unwrap();

    let server = narrow(SlowConsumer::Disconnect, Duration::ZERO);
    let stuck = server.connect(Role::CONTROLLER);
    let (_, sending) = flood(&server);
    let figures = figures_when(&server, "its end", |figures| !figures.closed.is_empty());
    assert_eq!(figures.closed[0].info.uuid(), stuck.uuid);
    assert_eq!(figures.closed[0].reason, DisconnectReason::SlowConsumer);
    assert_eq!(figures.ended["slow_consumer"], 1);
    // The reason for the end.
    assert!(figures.dropped > figures.closed[0].counters.frames_dropped);
    drop(server);
    sending.join().unwrap();
}

#[test]
fn times_of_events_and_turns_are_recorded() {
    let server = TestServer::start((), |c| c);
    let mut agent = server.connect(Role::AGENT);
    let deadline = Instant::now() + LIMIT;
    loop {
        agent.send(&Frame::new(Event::TRACE_REPORT));
        let dispatcher = server.handle().figures().unwrap().dispatcher;
        assert!(dispatcher.events <= dispatcher.max_events);
        if dispatcher.waits.count() > 3 && dispatcher.turns.count() > 3 {
            return;
        }
        assert!(Instant::now() < deadline, "{dispatcher:?}");
    }
}

/// Counts frames, and makes a call that waits for its own dispatcher.
#[derive(Default)]
struct Counts {
    frames: u32,
    server: Option<ssntp::server::ServerHandle>,
    refused: Option<CallError>,
}

impl Handler for Counts {
    fn frame(&mut self, _: &mut Context<'_>, _: &SessionInfo, _: Frame) {
        self.frames += 1;
        self.refused = self.server.as_ref().and_then(|server| server.figures().err());
    }
}

#[test]
fn a_handler_is_reached_by_its_type_and_figures_are_refused_on_a_dispatcher() {
    let server = TestServer::start(Counts::default(), |c| c);
    let handle = server.handle();
    let given = handle.clone();
    let set = handle.with_handler(|counts: &mut Counts, _| counts.server = Some(given));
    assert_eq!(set, Ok(()));
    server.connect(Role::AGENT).send(&Frame::new(Event::TRACE_REPORT));
    let deadline = Instant::now() + LIMIT;
    let counted = loop {
        let counted = handle.with_handler(|counts: &mut Counts, _| (counts.frames, counts.refused));
        if counted != Ok((0, None)) {
            break counted;
        }
        assert!(Instant::now() < deadline);
    };
    assert_eq!(counted, Ok((1, Some(CallError::OnDispatcher))));
    let other = handle.with_handler(|(): &mut (), _| ());
    assert_eq!(other, Err(CallError::OtherHandler));
    // The handler must not keep a handle of its own server.
    let taken = handle.with_handler(|counts: &mut Counts, _| drop(counts.server.take()));
    assert_eq!(taken, Ok(()));
    drop(server);
    assert_eq!(handle.figures().err(), Some(CallError::Stopped));
}
