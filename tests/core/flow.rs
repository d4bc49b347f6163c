//! Flow control over whole servers: the senders that are held, and those that are not.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use ssntp::Role;
use ssntp::proto::{Command, ErrorCode, Event, Frame, Status};
use ssntp::server::{
    CallError, Context, DisconnectReason, Handler, Rules, ServerConfig, ServerEvent, SessionInfo,
    SlowConsumer,
};
use ssntp::transport::Limits;
use ssntp_test_support::*;
use uuid::Uuid;

const SENDERS: u32 = 12;
const FRAMES: u32 = 150;
const LEN: usize = 16 * 1024;

/// A queue that the load of these tests passes many times over.
fn small_queue(config: ServerConfig) -> ServerConfig {
    config.queue(Limits {
        frames: 1 << 20,
        bytes: 1 << 20,
    })
}

fn numbered(kind: Command, number: u32) -> Frame {
    let mut payload = vec![7; LEN];
    payload[..4].copy_from_slice(&number.to_be_bytes());
    Frame::with_payload(kind, payload)
}

/// Many senders at full speed, each on a thread, each frame with the sender's
/// UUID and a number; they give their peers back at the end.
fn flood(server: &TestServer, kind: Command) -> Vec<std::thread::JoinHandle<Peer>> {
    (0..SENDERS)
        .map(|_| {
            let mut agent = server.connect(Role::AGENT);
            std::thread::spawn(move || {
                for number in 0..FRAMES {
                    let mut payload = vec![7; LEN];
                    payload[..4].copy_from_slice(&number.to_be_bytes());
                    payload[4..20].copy_from_slice(agent.uuid.as_bytes());
                    agent.send(&Frame::with_payload(kind, payload));
                }
                agent
            })
        })
        .collect()
}

/// Receives all of a flood, and asserts that each sender's frames are in order.
fn receive_flood(receiver: &mut Peer) {
    let mut next: HashMap<Uuid, u32> = HashMap::new();
    for _ in 0..SENDERS * FRAMES {
        let frame = receiver.frame();
        let payload = frame.payload_bytes();
        let number = u32::from_be_bytes(payload[..4].try_into().unwrap());
        let expected = next
            .entry(Uuid::from_slice(&payload[4..20]).unwrap())
            .or_default();
        assert_eq!(number, *expected);
        *expected += 1;
    }
}

/// Forwards by one of the methods of a handler.
struct Forwards(fn(&mut Context<'_>, &SessionInfo, Frame));

impl Handler for Forwards {
    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        (self.0)(cx, from, frame);
    }
}

fn controller(cx: &Context<'_>) -> Uuid {
    cx.directory().with_role(Role::CONTROLLER).next().unwrap().uuid()
}

#[test]
fn many_senders_end_no_receiver_that_reads() {
    let ways: [(&str, Option<Rules>, Forwards); 5] = [
        (
            "a rule",
            Some(Rules::new().multicast(Command::STATS, Role::CONTROLLER)),
            Forwards(|_, _, _| {}),
        ),
        (
            "a routing function",
            Some(Rules::new().route(Command::STATS, |_, _, directory| {
                let to = directory.with_role(Role::CONTROLLER).map(SessionInfo::uuid);
                to.collect()
            })),
            Forwards(|_, _, _| {}),
        ),
        (
            "forward",
            None,
            Forwards(|cx, from, frame| cx.forward(from, controller(cx), &frame).unwrap()),
        ),
        (
            "forward_all",
            None,
            Forwards(|cx, from, frame| {
                assert_eq!(cx.forward_all(from, Role::CONTROLLER, &frame), Ok(1));
            }),
        ),
        (
            "send",
            None,
            Forwards(|cx, _, frame| cx.send(controller(cx), &frame).unwrap()),
        ),
    ];
    for (way, rules, handler) in ways {
        let server = TestServer::start(handler, |c| {
            small_queue(c).rules(rules.unwrap_or_default()).patience(LIMIT)
        });
        let mut receiver = server.connect(Role::CONTROLLER);
        let senders = flood(&server, Command::STATS);
        receive_flood(&mut receiver);
        let uuid = receiver.uuid;
        let counters = server.handle().with(move |cx| cx.counters(uuid)).unwrap();
        let counters = counters.unwrap_or_else(|| panic!("{way}: the receiver was ended"));
        assert_eq!(counters.frames_dropped, 0, "{way}");
        for sender in senders {
            sender.join().unwrap();
        }
    }
}

/// Takes the session of this UUID over. The server refuses that while two former connections still end.
pub(crate) fn take_over(server: &TestServer, own: &ssntp_pki::Identity, uuid: Uuid) -> Peer {
    loop {
        let mut peer = server.dial(own);
        if peer.try_handshake(Role::AGENT, uuid, false, Default::default()) {
            return peer;
        }
    }
}

#[test]
fn a_client_that_takes_its_own_session_over_again_and_again_ends_no_receiver() {
    const LONG: usize = 4 << 20;
    let server = TestServer::start(Forwards(|_, _, _| {}), |c| {
        small_queue(c)
            .rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER))
            .patience(LIMIT)
    });
    let mut receiver = server.connect(Role::CONTROLLER);
    let uuid = Uuid::new_v4();
    let own = bound_identity(Role::AGENT, uuid);
    let mut agent = server.connect_as(&own, Role::AGENT, uuid);
    let frame = || Frame::with_payload(Command::STATS, vec![7; LONG]);
    // The first frame is in the receiver's queue, and the second one in its line.
    agent.send(&frame());
    for _ in 0..12 {
        agent.send(&frame());
        let all_arrived =
            move |cx: &mut Context<'_>| cx.counters(uuid).unwrap().bytes_received >= LONG as u64;
        while !server.handle().with(all_arrived).unwrap() {
            std::thread::yield_now();
        }
        agent = take_over(&server, &own, uuid);
    }
    agent.send(&numbered(Command::STATS, 1));
    // Later sessions sent nothing, until the second frame had left.
    let lengths = [(); 3].map(|()| receiver.frame().payload_bytes().len());
    assert_eq!(lengths, [LONG, LONG, LEN]);
    let uuid = receiver.uuid;
    let counters = server.handle().with(move |cx| cx.counters(uuid)).unwrap();
    assert_eq!(counters.map(|counters| counters.frames_dropped), Some(0));
}

#[test]
fn a_client_that_is_paused_for_longer_than_its_system_waits_keeps_its_session() {
    // The server reads a little three times within this; within the default of 30 s, five times. Linux counts the
    // time anew only if the window opens by its whole next segment, which one of fifty times it did not.
    const UNACKNOWLEDGED: Duration = Duration::from_secs(19);
    let server = TestServer::start(Forwards(|_, _, _| {}), |c| {
        small_queue(c)
            .rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER))
            .patience(LIMIT)
            .listen("127.0.0.1:0".parse().unwrap())
    });
    let mut receiver = server.connect(Role::CONTROLLER);
    let address = server.server.as_ref().unwrap().addresses()[0].clone();
    let config = ssntp::ClientConfig::new(identity(Role::AGENT), trust())
        .address(address)
        .tcp(ssntp::transport::TcpOptions {
            unacknowledged: Some(UNACKNOWLEDGED),
        });
    let client = ssntp::Client::connect(config).unwrap();
    assert!(matches!(
        client.recv(),
        Ok(ssntp::client::ClientEvent::Connected(_))
    ));
    let mut sent = 0;
    while client.try_send(numbered(Command::STATS, sent)).is_ok() {
        sent += 1;
    }
    // The end of the session would be an event.
    // In less than the 30 s after which the server gives up the receiver, which reads nothing meanwhile.
    let waited = client.recv_timeout(UNACKNOWLEDGED + Duration::from_secs(5));
    assert!(
        matches!(waited, Err(ssntp::client::RecvError::Empty)),
        "{waited:?}"
    );
    for number in 0..sent {
        let frame = receiver.frame();
        assert_eq!(frame.payload_bytes()[..4], number.to_be_bytes());
    }
}

#[test]
fn a_stuck_receiver_is_waited_for_once_and_meets_the_policy() {
    let (handler, events) = ssntp::server::channel(1 << 16);
    let server = TestServer::start(handler, |c| {
        small_queue(c)
            .rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER))
            .patience(Duration::from_secs(2))
    });
    let stuck = server.connect(Role::CONTROLLER);
    let mut reader = server.connect(Role::CONTROLLER);
    let senders = flood(&server, Command::STATS);
    receive_flood(&mut reader);
    for sender in senders {
        sender.join().unwrap();
    }
    loop {
        if let ServerEvent::Disconnected(who, why) = events.recv_timeout(LIMIT).unwrap() {
            assert_eq!((who.uuid(), why), (stuck.uuid, DisconnectReason::SlowConsumer));
            break;
        }
    }
}

#[test]
fn a_session_that_does_not_take_its_answers_is_not_read() {
    let server = TestServer::start((), |c| c);
    let mut peer = server.connect(Role::AGENT);
    // 8 bytes of an unknown operand cause an answer of 8 bytes.
    let unknown = [0, 1, 0, 0x77, 0, 0, 0, 0].repeat(8192);
    let mut other = server.connect(Role::AGENT);
    let uuid = peer.uuid;
    let sending = std::thread::spawn(move || {
        // The held session ends when the server stops.
        while peer.try_send_bytes(&unknown).is_ok() {}
    });
    let waiting = || {
        let counters = server
            .handle()
            .with(move |cx| cx.counters(uuid))
            .unwrap()
            .unwrap();
        (counters.frames_waiting, counters.frames_received)
    };
    // The server reads from the session until a mebibyte of answers waits, and then no more. Two equal
    // observations show this.
    let deadline = Instant::now() + LIMIT;
    let mut before = waiting();
    loop {
        // Another session is served all the while.
        other.send_bytes(&[0, 1, 0, 0x77, 0, 0, 0, 0]);
        assert_eq!(other.frame().kind(), ErrorCode::INVALID_FRAME_TYPE);
        let now = waiting();
        assert!(now.0 * 136 <= 1 << 20, "{now:?}");
        if now == before && now.0 > 1000 {
            break;
        }
        before = now;
        assert!(
            Instant::now() < deadline,
            "the server reads without a limit: {now:?}"
        );
    }
    drop(server);
    sending.join().unwrap();
}

#[test]
fn connected_is_neither_overtaken_nor_dropped() {
    let server = TestServer::start((), |c| {
        c.rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER))
            .slow_consumer(SlowConsumer::DropOldest)
            .patience(Duration::ZERO)
            .queue(Limits {
                frames: 2,
                bytes: 1 << 20,
            })
    });
    let mut agent = server.connect(Role::AGENT);
    let (stop, stopped) = crossbeam_channel::bounded::<()>(0);
    let sending = std::thread::spawn(move || {
        let burst: Vec<u8> = (0..64)
            .flat_map(|n| numbered(Command::STATS, n).encode())
            .collect();
        while stopped.try_recv() == Err(crossbeam_channel::TryRecvError::Empty) {
            agent.send_bytes(&burst);
        }
    });
    for _ in 0..20 {
        // The handshake asserts that CONNECTED comes first, whole.
        let mut controller = server.connect(Role::CONTROLLER);
        assert_eq!(controller.frame().kind(), Command::STATS);
    }
    drop(stop);
    sending.join().unwrap();
}

/// A server with the memory of a control group of 64 MiB, of which 4 MiB are for received bytes, and
/// the log of its sessions' ends.
fn small_server() -> (TestServer, Receiver<ServerEvent>) {
    let (handler, events) = ssntp::server::channel(1 << 10);
    let server = TestServer::start(handler, |c| {
        c.queue_budget(16 << 20)
            .write_timeout(Duration::from_millis(500))
            // On a busy machine a healthy receiver may take less than the pace.
            .patience(LIMIT)
            .rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER))
    });
    (server, events)
}

fn long(len: usize) -> Frame {
    Frame::with_payload(Command::STATS, vec![7; len])
}

/// The reason for the end of the next session.
fn next_end(events: &Receiver<ServerEvent>) -> DisconnectReason {
    loop {
        if let ServerEvent::Disconnected(_, why) = events.recv_timeout(LIMIT).unwrap() {
            return why;
        }
    }
}

#[test]
fn a_frame_longer_than_the_budget_of_received_bytes_arrives() {
    let (server, _events) = small_server();
    let mut controller = server.connect(Role::CONTROLLER);
    let mut agent = server.connect(Role::AGENT);
    agent.send(&long(8 << 20));
    assert!(controller.frame() == long(8 << 20));
}

#[test]
fn long_frames_of_many_senders_arrive_one_after_the_other() {
    let (server, _events) = small_server();
    let mut controller = server.connect(Role::CONTROLLER);
    let senders: Vec<_> = (0..10)
        .map(|_| {
            let mut agent = server.connect(Role::AGENT);
            std::thread::spawn(move || {
                agent.send(&long(3_000_000));
                agent
            })
        })
        .collect();
    for _ in 0..senders.len() {
        assert!(controller.frame() == long(3_000_000));
    }
    for sender in senders {
        sender.join().unwrap();
    }
}

#[test]
fn frames_without_their_last_byte_stop_no_session_and_are_given_up() {
    let (server, events) = small_server();
    let mut controller = server.connect(Role::CONTROLLER);
    let holders: Vec<_> = [1_300_000, 1_300_000, 1_300_000, 16 << 20]
        .into_iter()
        .map(|len| {
            let mut agent = server.connect(Role::AGENT);
            std::thread::spawn(move || {
                let _ = agent.try_send_bytes(&long(len).encode()[..8 + len - 1]);
                agent
            })
        })
        .collect();
    let mut agent = server.connect(Role::AGENT);
    for len in [600_000, 3_000_000] {
        agent.send(&long(len));
        assert!(controller.frame() == long(len));
    }
    for _ in 0..holders.len() {
        let reason = next_end(&events).to_string();
        let silent = reason.contains("did not come to its end");
        assert!(silent || reason.contains("others wait for memory"), "{reason}");
    }
    drop(holders);
    // A reader gives its memory back when its threads end.
    let deadline = Instant::now() + LIMIT;
    loop {
        let figures = server.handle().figures().unwrap().received;
        if (figures.used, figures.waiting, figures.refused) == (0, 0, 0) {
            break;
        }
        assert!(Instant::now() < deadline, "{figures:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_frame_for_which_there_will_never_be_memory_is_refused_at_its_header() {
    let (handler, events) = ssntp::server::channel(1 << 10);
    let server = TestServer::start(handler, |c| c.queue_budget(4 << 20));
    let mut agent = server.connect(Role::AGENT);
    // Its header announces 16 MiB, and nothing follows.
    agent.send_bytes(&[0, 1, 0, 3, 1, 0, 0, 0]);
    let reason = next_end(&events).to_string();
    assert!(
        reason.contains("16777224 bytes") && reason.contains("4194304"),
        "{reason}"
    );
    assert_eq!(server.handle().figures().unwrap().received.refused, 1);
}

/// Handles STATS slowly, and answers READY.
struct Slow {
    dealt_with: Arc<AtomicU32>,
}

impl Handler for Slow {
    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        if frame.kind() == Command::STATS {
            let until = Instant::now() + Duration::from_micros(200);
            while Instant::now() < until {}
            self.dealt_with.fetch_add(1, Ordering::Relaxed);
        } else {
            cx.send(from.uuid(), &Frame::new(Status::READY)).unwrap();
        }
    }
}

#[test]
fn a_lone_frame_passes_the_backlog_of_others() {
    const EACH: u32 = 2000;
    let dealt_with = Arc::new(AtomicU32::new(0));
    let handler = Slow {
        dealt_with: Arc::clone(&dealt_with),
    };
    let server = TestServer::start(handler, |c| c);
    let mut lone = server.connect(Role::AGENT);
    let backlog: Vec<u8> = Frame::new(Command::STATS).encode().repeat(EACH as usize);
    let mut busy: Vec<Peer> = (0..8).map(|_| server.connect(Role::AGENT)).collect();
    for peer in &mut busy {
        peer.send_bytes(&backlog);
    }
    while dealt_with.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    let before = dealt_with.load(Ordering::Relaxed);
    lone.send(&Frame::new(Status::READY));
    assert_eq!(lone.frame().kind(), Status::READY);
    let passed = dealt_with.load(Ordering::Relaxed) - before;
    // In the order of arrival all of these frames would have come first.
    assert!(passed < 8 * EACH / 2, "{passed} frames came before it");
}

/// Calls the handle of another server for each frame.
struct Calls {
    other: Receiver<ssntp::server::ServerHandle>,
    found: Sender<(Result<(), CallError>, Result<(), CallError>)>,
}

impl Handler for Calls {
    fn frame(&mut self, _: &mut Context<'_>, _: &SessionInfo, _: Frame) {
        let other = self.other.recv_timeout(LIMIT).unwrap();
        let waits = other.with(|_| ());
        let posts = other.post(|_| ());
        let _ = self.found.send((waits, posts));
    }
}

#[test]
fn handlers_of_two_servers_that_call_each_other_do_not_wait_for_ever() {
    let (found, finds) = unbounded();
    let (to_first, first) = unbounded();
    let (to_second, second) = unbounded();
    let start = |other, found: &Sender<_>| {
        let handler = Calls {
            other,
            found: found.clone(),
        };
        TestServer::start(handler, |c| c)
    };
    let (a, b) = (start(first, &found), start(second, &found));
    let mut clients = [a.connect(Role::AGENT), b.connect(Role::AGENT)];
    for client in &mut clients {
        client.send(&Frame::new(Event::TENANT_ADDED));
    }
    to_first.send(b.handle()).unwrap();
    to_second.send(a.handle()).unwrap();
    for _ in 0..2 {
        let found = finds.recv_timeout(LIMIT).unwrap();
        assert_eq!(found, (Err(CallError::OnDispatcher), Ok(())));
    }
}

/// Stops its server on a frame.
struct Stops;

impl Handler for Stops {
    fn frame(&mut self, cx: &mut Context<'_>, _: &SessionInfo, _: Frame) {
        cx.stop();
    }
}

#[test]
fn a_server_is_stopped_by_its_handler_and_by_its_handle_and_wait_returns() {
    for by_handler in [true, false] {
        let mut server = TestServer::start(Stops, |c| c);
        let mut agent = server.connect(Role::AGENT);
        if by_handler {
            agent.send(&Frame::new(Command::STOP));
        } else {
            server.handle().stop();
        }
        server.server.take().unwrap().wait();
        agent.end();
    }
}

#[test]
fn a_channel_of_events_states_the_number_of_missed_events() {
    let (handler, events) = ssntp::server::channel(4);
    let server = TestServer::start(handler, |c| c);
    let mut agent = server.connect(Role::AGENT);
    for _ in 0..10 {
        agent.send(&Frame::new(Status::READY));
    }
    // Its answer comes once all earlier frames have been handled.
    agent.send_bytes(&[0, 1, 0, 0x77, 0, 0, 0, 0]);
    assert_eq!(agent.frame().kind(), ErrorCode::INVALID_FRAME_TYPE);
    let mut received: Vec<ServerEvent> = events.try_iter().collect();
    assert!(matches!(&received[0], ServerEvent::Connected(who) if who.uuid() == agent.uuid));
    agent.send(&Frame::new(Status::FULL));
    agent.send_bytes(&[0, 1, 0, 0x77, 0, 0, 0, 0]);
    assert_eq!(agent.frame().kind(), ErrorCode::INVALID_FRAME_TYPE);
    received.extend(events.try_iter());
    let missed = received.iter().find_map(|event| match event {
        ServerEvent::Missed(count) => Some(*count),
        _ => None,
    });
    let frames = received
        .iter()
        .filter(|event| matches!(event, ServerEvent::Frame(..)));
    assert_eq!(missed.unwrap() + frames.count() as u64, 11);
}
