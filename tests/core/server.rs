//! The server as its clients and its application see it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ssntp::Role;
use ssntp::client::{Client, ClientConfig};
use ssntp::payload::{Stop, StopFailure, StopFailureReason};
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Trust};
use ssntp::proto::{Command, Connect, ErrorCode, Event, Frame, FrameKind, FrameType, Header, Status, Trace};
use ssntp::server::{
    AdmissionPolicy, Context, Decision, DisconnectReason, Filter, FilterAction, Handler, HeldFrame,
    RuleError, Rules, SendError, Server, ServerConfig, ServerError, SessionInfo, SlowConsumer,
};
use ssntp::transport::Limits;
use ssntp::transport::memory::MemoryListener;
use ssntp_test_support::*;
use uuid::Uuid;

/// Tells the test what the application was told.
struct Notes(Sender<Note>);

#[derive(Debug)]
enum Note {
    Connected(SessionInfo),
    Disconnected(DisconnectReason),
    Frame(Uuid, Frame),
    Expired(HeldFrame),
}

fn notes() -> (Notes, Receiver<Note>) {
    let (sender, receiver) = channel();
    (Notes(sender), receiver)
}

impl Handler for Notes {
    fn connected(&mut self, _: &mut Context<'_>, session: &SessionInfo) {
        let _ = self.0.send(Note::Connected(session.clone()));
    }
    fn disconnected(&mut self, _: &mut Context<'_>, _: &SessionInfo, reason: &DisconnectReason) {
        let _ = self.0.send(Note::Disconnected(reason.clone()));
    }
    fn frame(&mut self, _: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        let _ = self.0.send(Note::Frame(from.uuid(), frame));
    }
    fn expired(&mut self, _: &mut Context<'_>, held: HeldFrame) {
        let _ = self.0.send(Note::Expired(held));
    }
}

fn note(notes: &Receiver<Note>) -> Note {
    notes.recv_timeout(LIMIT).expect("the application was not told")
}

/// Waits for a disconnection and says why it was.
fn disconnected(notes: &Receiver<Note>) -> DisconnectReason {
    loop {
        if let Note::Disconnected(reason) = note(notes) {
            return reason;
        }
    }
}

fn stats_to_controllers(config: ServerConfig) -> ServerConfig {
    config.rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER))
}

fn stats(payload: impl Into<bytes::Bytes>) -> Frame {
    Frame::with_payload(Command::STATS, payload)
}

#[test]
fn frames_are_multicast_by_role_and_never_sent_back() {
    let server = TestServer::start((), |c| {
        c.rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER | Role::AGENT))
    });
    let mut one = server.connect(Role::CONTROLLER);
    let mut both = server.connect(Role::CONTROLLER | Role::AGENT);
    let mut agent = server.connect(Role::AGENT);
    agent.send(&stats("a: 1\n"));
    assert_eq!(one.frame(), stats("a: 1\n"));
    assert_eq!(both.frame(), stats("a: 1\n"));
    both.send(&stats("b: 2\n"));
    // Had the first one been sent back or twice, it would come before this.
    assert_eq!(agent.frame(), stats("b: 2\n"));
    assert_eq!(one.frame(), stats("b: 2\n"));
}

#[test]
fn payloads_of_every_size_are_routed_intact() {
    let server = TestServer::start((), stats_to_controllers);
    let mut controller = server.connect(Role::CONTROLLER);
    let mut agent = server.connect(Role::AGENT);
    let sizes = [
        0,
        1,
        255,
        4096,
        16 * 1024 - 8,
        16 * 1024,
        65_535,
        65_536,
        1 << 20,
        16 << 20,
    ];
    let frame = |n: usize| stats((0..n).map(|i| (i % 251) as u8).collect::<Vec<_>>());
    let sender = std::thread::spawn(move || {
        for size in sizes {
            agent.send(&frame(size));
        }
        agent
    });
    for size in sizes {
        let received = controller.frame();
        assert!(
            received == frame(size),
            "{size} bytes arrived as {}",
            received.payload_bytes().len()
        );
    }
    sender.join().unwrap();
}

#[test]
fn order_holds_over_a_hundred_thousand_frames() {
    let server = TestServer::start((), stats_to_controllers);
    let mut controller = server.connect(Role::CONTROLLER);
    let mut agent = server.connect(Role::AGENT);
    const COUNT: u32 = 100_000;
    let sender = std::thread::spawn(move || {
        for chunk in (0..COUNT).collect::<Vec<_>>().chunks(997) {
            let bytes: Vec<u8> = chunk
                .iter()
                .flat_map(|n| stats(n.to_be_bytes().to_vec()).encode().to_vec())
                .collect();
            agent.send_bytes(&bytes);
        }
        agent
    });
    for n in 0..COUNT {
        assert_eq!(controller.frame(), stats(n.to_be_bytes().to_vec()));
    }
    sender.join().unwrap();
}

#[test]
fn bytes_may_come_one_at_a_time() {
    let server = TestServer::start((), stats_to_controllers);
    let mut controller = server.connect(Role::CONTROLLER);
    let mut agent = server.dial(&identity(Role::AGENT));
    let mut bytes = Connect::new(Role::AGENT, Uuid::new_v4(), false).encode().to_vec();
    bytes.extend(&stats("x: y\n").encode());
    for byte in bytes {
        agent.send_bytes(&[byte]);
    }
    assert_eq!(agent.connected().role, Role::SERVER);
    assert_eq!(controller.frame(), stats("x: y\n"));
}

#[test]
fn connected_carries_the_configuration_and_configure_from_a_controller_replaces_it() {
    let server = TestServer::start((), |c| {
        c.configuration("configure: {}\n")
            .configuration_check(|payload| match payload {
                b"bad" => Err("it is bad".into()),
                _ => Ok(()),
            })
    });
    let mut controller = server.dial(&identity(Role::CONTROLLER));
    let uuid = Uuid::new_v4();
    let connected = controller.handshake(Role::CONTROLLER, uuid, false);
    assert_eq!(
        (connected.client, &connected.payload[..]),
        (uuid, &b"configure: {}\n"[..])
    );
    assert_eq!(connected.server, server.handle().uuid());
    controller.send(&Frame::with_payload(Command::CONFIGURE, "bad"));
    assert_eq!(
        controller.frame(),
        Frame::with_payload(ErrorCode::INVALID_CONFIGURATION, "bad")
    );
    controller.send(&Frame::with_payload(Command::CONFIGURE, "new"));
    // An agent's is none.
    let mut agent = server.connect(Role::AGENT);
    agent.send(&Frame::with_payload(Command::CONFIGURE, "agent's"));
    agent.send_bytes(&[0, 1, 0, 0x7f, 0, 0, 0, 0]);
    assert_eq!(
        agent.frame().kind(),
        ErrorCode::INVALID_FRAME_TYPE,
        "both have been handled"
    );
    controller.send_bytes(&[0, 1, 0, 0x7f, 0, 0, 0, 0]);
    assert_eq!(controller.frame().kind(), ErrorCode::INVALID_FRAME_TYPE);
    let payload = server
        .dial(&identity(Role::AGENT))
        .handshake(Role::AGENT, Uuid::new_v4(), false)
        .payload;
    assert_eq!(payload[..], *b"new");
}

/// A raw first frame, and what comes back before the end.
fn first_frame(bytes: &[u8], certificate: Role) -> Option<FrameKind> {
    let server = TestServer::start((), |c| c);
    let mut peer = server.dial(&identity(certificate));
    peer.send_bytes(bytes);
    peer.refusal()
}

#[test]
fn role_mismatch_superset_and_unknown_bits_are_aborted() {
    let connect = |bits| Connect::new(Role::from_bits(bits), Uuid::new_v4(), false).encode();
    for (bits, certificate) in [
        (2, Role::AGENT),
        (6, Role::AGENT),
        (0, Role::AGENT),
        (0x44, Role::AGENT),
        (4, Role::NONE),
    ] {
        let answer = first_frame(&connect(bits), certificate);
        assert_eq!(
            answer,
            Some(ErrorCode::CONNECTION_ABORTED.into()),
            "role {bits:#x}"
        );
    }
}

#[test]
fn malformed_connects_fail() {
    let agent = Connect::new(Role::AGENT, Uuid::new_v4(), false);
    let mut wrong_major = agent.encode();
    wrong_major[0] = 1;
    for bytes in [
        Connect {
            source: Uuid::nil(),
            ..agent
        }
        .encode(),
        Connect {
            destination: Uuid::new_v4(),
            ..agent
        }
        .encode(),
        wrong_major,
    ] {
        assert_eq!(
            first_frame(&bytes, Role::AGENT),
            Some(ErrorCode::CONNECTION_FAILURE.into())
        );
    }
}

#[test]
fn a_first_frame_that_is_not_connect_is_neither_answered_nor_forwarded() {
    let (handler, told) = notes();
    let server = TestServer::start(handler, stats_to_controllers);
    let mut peer = server.dial(&identity(Role::AGENT));
    peer.send(&stats("x: y\n"));
    assert_eq!(peer.refusal(), None);
    drop(server);
    assert!(told.try_recv().is_err(), "the application was told of nothing");
}

#[test]
fn a_silent_client_is_failed_at_the_deadline() {
    let server = TestServer::start((), |c| c.handshake_timeout(Duration::from_millis(200)));
    let mut peer = server.dial(&identity(Role::AGENT));
    peer.send_bytes(&[0, 1, 0]);
    assert_eq!(peer.refusal(), Some(ErrorCode::CONNECTION_FAILURE.into()));
}

#[test]
fn who_leaves_before_connect_gets_no_answer() {
    for in_order in [true, false] {
        let server = TestServer::start((), |c| c);
        let mut peer = server.dial(&identity(Role::AGENT));
        peer.send_bytes(&[0, 1, 0]);
        if in_order {
            peer.finish();
        } else {
            peer.stream().shutdown(std::net::Shutdown::Write).unwrap();
        }
        assert_eq!(peer.refusal(), None, "{in_order}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_threads_of_a_session_bear_its_name() {
    let (handler, told) = notes();
    let server = TestServer::start(handler, |c| c);
    let _agent = server.connect(Role::AGENT);
    let Note::Connected(info) = note(&told) else {
        panic!("connected comes first")
    };
    let deadline = Instant::now() + LIMIT;
    for direction in ["r", "w"] {
        let name = format!("{}.{direction}", info.id());
        let is_there = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            let mut names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
            names.any(|found| found.trim_end() == name)
        };
        while !is_there() {
            assert!(Instant::now() < deadline, "no thread is named {name}");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_peer_that_takes_nothing_is_cut_off_at_the_write_timeout() {
    let (handler, told) = notes();
    let server = TestServer::start(handler, |c| c.write_timeout(Duration::from_millis(100)));
    let stuck = server.connect(Role::CONTROLLER);
    server.handle().send(stuck.uuid, stats(vec![0; 1 << 20])).unwrap();
    let reason = disconnected(&told);
    assert!(matches!(reason, DisconnectReason::Lost(_)), "{reason:?}");
}

#[test]
fn the_session_limit_fails_newcomers_and_frees_with_a_session() {
    let (handler, told) = notes();
    let server = TestServer::start(handler, |c| c.max_sessions(1));
    let mut first = server.connect(Role::AGENT);
    let mut second = server.dial(&identity(Role::AGENT));
    second.send_bytes(&Connect::new(Role::AGENT, Uuid::new_v4(), false).encode());
    assert_eq!(second.refusal(), Some(ErrorCode::CONNECTION_FAILURE.into()));
    first.finish();
    first.end();
    drop(first);
    assert_eq!(disconnected(&told), DisconnectReason::PeerClosed);
    // Its threads end a moment later.
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut third = server.dial(&identity(Role::AGENT));
        third.send_bytes(&Connect::new(Role::AGENT, Uuid::new_v4(), false).encode());
        if third.next_is_connected() {
            break;
        }
        assert!(Instant::now() < deadline, "the place is not freed");
    }
}

#[test]
fn a_certificate_bound_to_another_uuid_is_aborted() {
    let server = TestServer::start((), |c| c);
    let bound = Uuid::new_v4();
    let certificate = bound_identity(Role::AGENT, bound);
    let mut thief = server.dial(&certificate);
    thief.send_bytes(&Connect::new(Role::AGENT, Uuid::new_v4(), false).encode());
    assert_eq!(thief.refusal(), Some(ErrorCode::CONNECTION_ABORTED.into()));
    server.connect_as(&certificate, Role::AGENT, bound);
}

/// What a client with this certificate is told that asks for this UUID.
fn refused(server: &TestServer, identity: &Identity, uuid: Uuid) -> Option<FrameKind> {
    let mut peer = server.dial(identity);
    peer.send_bytes(&Connect::new(Role::AGENT, uuid, false).encode());
    let refusal = peer.refusal();
    assert!(peer.was_closed, "it ended without close_notify");
    refusal
}

const ABORTED: Option<FrameKind> = Some(FrameKind {
    frame_type: FrameType::ERROR,
    operand: ErrorCode::CONNECTION_ABORTED.0,
});
const FAILED: Option<FrameKind> = Some(FrameKind {
    frame_type: FrameType::ERROR,
    operand: ErrorCode::CONNECTION_FAILURE.0,
});

/// A newcomer that was admitted and reads no more of CONNECTED than its header. Tries
/// again where its earlier sessions have not ended yet.
fn reads_no_connected(server: &TestServer, identity: &Identity, uuid: Uuid) -> Peer {
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut peer = server.dial(identity);
        peer.send_bytes(&Connect::new(Role::AGENT, uuid, false).encode());
        if peer.next_is_connected() {
            return peer;
        }
        assert!(Instant::now() < deadline, "it is not admitted");
    }
}

#[test]
fn who_comes_again_and_again_and_reads_nothing_has_two_places_and_no_more() {
    let server = TestServer::start((), |c| {
        c.max_sessions(8)
            .configuration(vec![b'#'; 1 << 20])
            .handshake_timeout(Duration::from_secs(3600))
    });
    let mut stuck = Vec::new();
    let owners = [Uuid::new_v4(), Uuid::new_v4()].map(|uuid| (bound_identity(Role::AGENT, uuid), uuid));
    for _ in 0..5 {
        for (identity, uuid) in &owners {
            stuck.push(reads_no_connected(&server, identity, *uuid));
        }
    }
    server.connect(Role::CONTROLLER);
}

#[test]
fn a_stop_does_not_wait_for_a_newcomer_that_does_not_read() {
    let mut server = TestServer::start((), |c| {
        c.grace(Duration::from_millis(100))
            .configuration(vec![b'#'; 1 << 20])
            .handshake_timeout(Duration::from_secs(3600))
    });
    let stuck = reads_no_connected(&server, &identity(Role::AGENT), Uuid::new_v4());
    server.server.take().unwrap().stop();
    drop(stuck);
}

#[test]
fn the_same_certificate_takes_a_session_over_and_another_may_try_again() {
    let (handler, told) = notes();
    let server = TestServer::start(handler, stats_to_controllers);
    let mut controller = server.connect(Role::CONTROLLER);
    let certificate = identity(Role::AGENT);
    let uuid = Uuid::new_v4();
    let mut old = server.connect_as(&certificate, Role::AGENT, uuid);
    assert_eq!(refused(&server, &identity(Role::AGENT), uuid), FAILED);
    let mut new = server.connect_as(&certificate, Role::AGENT, uuid);
    old.end();
    assert_eq!(disconnected(&told), DisconnectReason::Replaced);
    new.send(&stats("new"));
    assert_eq!(controller.frame(), stats("new"));
    assert_eq!(server.handle().sessions().unwrap().len(), 2);
}

#[test]
fn the_owner_of_a_uuid_takes_it_from_who_only_claims_it() {
    let (handler, told) = notes();
    let server = TestServer::start(handler, stats_to_controllers);
    let mut controller = server.connect(Role::CONTROLLER);
    let uuid = Uuid::new_v4();
    let mut claimant = server.connect_as(&identity(Role::AGENT), Role::AGENT, uuid);
    let mut owner = server.connect_as(&bound_identity(Role::AGENT, uuid), Role::AGENT, uuid);
    claimant.end();
    assert_eq!(disconnected(&told), DisconnectReason::Replaced);
    assert_eq!(refused(&server, &identity(Role::AGENT), uuid), FAILED);
    owner.send(&stats("mine"));
    assert_eq!(controller.frame(), stats("mine"));
    // With a new certificate it is still the owner.
    let renewed = bound_identity(Role::AGENT, uuid);
    let mut new = server.connect_as(&renewed, Role::AGENT, uuid);
    owner.end();
    new.send(&stats("renewed"));
    assert_eq!(controller.frame(), stats("renewed"));
}

#[test]
fn a_client_that_only_claims_a_uuid_comes_back_when_the_owner_has_gone() {
    let server = TestServer::start((), |c| c);
    let uuid = Uuid::new_v4();
    let mut owner = server.connect_as(&bound_identity(Role::AGENT, uuid), Role::AGENT, uuid);
    let config = ClientConfig::new(identity(Role::AGENT), trust()).connect_in_memory(&server.listener);
    let client = Client::start(config.uuid(uuid)).unwrap();
    while client.failures().is_empty() {
        assert!(client.ended().is_none(), "{:?}", client.ended());
        std::thread::yield_now();
    }
    let told = client.failures()[0].to_string();
    assert!(told.contains("connected with another certificate"), "{told}");
    owner.finish();
    owner.end();
    assert!(client.wait_connected(Some(LIMIT)).unwrap());
}

#[test]
fn an_owner_by_another_authority_waits_for_the_one_that_is_there() {
    let other = Authority::new(&AuthorityRequest::default()).unwrap();
    let both = [authority().certificate_pem(), other.certificate_pem()].concat();
    let trust = Trust::from_pem(both.as_bytes(), "both").unwrap();
    let listener = MemoryListener::new();
    let config = ServerConfig::new(identity(Role::SERVER), trust).listen_in_memory(&listener);
    let (handler, told) = notes();
    let server = TestServer {
        server: Some(Server::start(config, handler).unwrap()),
        listener,
    };
    let uuid = Uuid::new_v4();
    let request = CertificateRequest::new(Role::AGENT).uuid(uuid);
    let second = other.issue(&request).unwrap().identity();
    let mut first = server.connect_as(&bound_identity(Role::AGENT, uuid), Role::AGENT, uuid);
    assert_eq!(refused(&server, &second, uuid), FAILED);
    first.finish();
    first.end();
    assert_eq!(disconnected(&told), DisconnectReason::PeerClosed);
    server.connect_as(&second, Role::AGENT, uuid);
}

#[test]
fn the_servers_own_uuid_is_nobodys() {
    let uuid = Uuid::new_v4();
    let server = TestServer::start((), |c| c.uuid(uuid));
    assert_eq!(refused(&server, &identity(Role::AGENT), uuid), ABORTED);
    let bound = bound_identity(Role::AGENT, uuid);
    assert_eq!(refused(&server, &bound, uuid), ABORTED);
}

#[test]
fn a_server_that_requires_bound_certificates_aborts_the_others() {
    let policy = AdmissionPolicy::default().require_bound_uuid(true);
    let server = TestServer::start((), |c| c.admission(policy));
    let uuid = Uuid::new_v4();
    assert_eq!(refused(&server, &identity(Role::AGENT), uuid), ABORTED);
    server.connect_as(&bound_identity(Role::AGENT, uuid), Role::AGENT, uuid);
}

#[test]
fn one_certificate_leaves_places_for_others() {
    for (setting, share) in [(None, 6), (Some(2), 2)] {
        let (handler, told) = notes();
        let server = TestServer::start(handler, |c| {
            let mut policy = AdmissionPolicy::default();
            policy.sessions_per_certificate = setting;
            c.max_sessions(8).admission(policy)
        });
        let certificate = identity(Role::AGENT);
        let connect = || server.connect_as(&certificate, Role::AGENT, Uuid::new_v4());
        let mut sessions: Vec<_> = (0..share).map(|_| connect()).collect();
        assert_eq!(
            refused(&server, &certificate, Uuid::new_v4()),
            FAILED,
            "{setting:?}"
        );
        server.connect(Role::AGENT);
        // A session of its own it may take over; another one frees a place.
        let taken = sessions[1].uuid;
        sessions[1] = server.connect_as(&certificate, Role::AGENT, taken);
        sessions.remove(0).finish();
        while disconnected(&told) != DisconnectReason::PeerClosed {}
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut next = server.dial(&certificate);
            next.send_bytes(&Connect::new(Role::AGENT, Uuid::new_v4(), false).encode());
            if next.next_is_connected() {
                break;
            }
            assert!(Instant::now() < deadline, "the place is not freed");
        }
    }
}

#[test]
fn unknown_types_and_operands_are_answered_and_the_session_stays() {
    let server = TestServer::start((), stats_to_controllers);
    let mut controller = server.connect(Role::CONTROLLER);
    let mut agent = server.connect(Role::AGENT);
    // An unknown ERROR is not answered: the next answer is another's.
    agent.send_bytes(&[0, 1, 4, 0x7f, 0, 0, 0, 1, 9]);
    for (frame_type, operand, reason) in [(2, 1, "unsupported_type"), (0, 0x3f, "unsupported_operand")] {
        agent.send_bytes(&[0, 1, frame_type, operand, 0, 0, 0, 3, 1, 2, 3]);
        let answer = agent.frame();
        assert_eq!(answer.kind(), ErrorCode::INVALID_FRAME_TYPE);
        let payload: ssntp::payload::InvalidFrameType = answer.payload().unwrap();
        assert_eq!((payload.frame_type, payload.operand), (frame_type, operand));
        assert_eq!(payload.reason.to_string(), reason);
    }
    agent.send(&stats("still here"));
    assert_eq!(controller.frame(), stats("still here"));
}

#[test]
fn protocol_errors_end_the_session_and_what_came_before_is_routed() {
    let cases: [&[u8]; 6] = [
        &[1, 1, 1, 1, 0, 0, 0, 0],
        &[0, 1, 0, 3, 0xff, 0xff, 0xff, 0xff],
        &[0, 1, 0, 3, 0, 0x10, 0, 1],
        &[0x80, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0],
        &Connect::new(Role::AGENT, Uuid::new_v4(), false).encode(),
        &[0, 1, 1, 0, 0, 0, 0, 1],
    ];
    for bytes in cases {
        let (handler, told) = notes();
        let server = TestServer::start(handler, |c| stats_to_controllers(c).max_payload(1 << 20));
        let mut controller = server.connect(Role::CONTROLLER);
        let mut agent = server.connect(Role::AGENT);
        let both = [&stats("before").encode()[..], bytes].concat();
        agent.send_bytes(&both);
        agent.end();
        assert_eq!(controller.frame(), stats("before"));
        assert!(
            matches!(disconnected(&told), DisconnectReason::Protocol(_)),
            "{bytes:?}"
        );
    }
}

#[test]
fn the_filter_rejects_or_drops_what_a_role_may_not_send() {
    for action in [FilterAction::Reject, FilterAction::Drop] {
        let server = TestServer::start((), |c| {
            c.filter(Filter::spec().action(action))
                .rules(Rules::new().multicast(Command::START, Role::AGENT))
        });
        let mut agent = server.connect(Role::AGENT);
        let mut thief = server.connect(Role::NETAGENT);
        thief.send(&Frame::with_payload(Command::START, "theirs"));
        thief.send(&Frame::new(ErrorCode::ASSIGN_PUBLIC_IP_FAILURE));
        thief.send_bytes(&[0, 1, 2, 0, 0, 0, 0, 0]);
        let answer = thief.frame();
        if action == FilterAction::Reject {
            assert_eq!(
                answer.payload_bytes()[..],
                *b"type: 0\noperand: 1\nreason: role_not_allowed\n"
            );
            assert_eq!(
                thief.frame().payload_bytes()[..7],
                *b"type: 2",
                "an ERROR is not answered"
            );
        } else {
            assert_eq!(answer.payload_bytes()[..7], *b"type: 2", "a drop is silent");
        }
        server
            .connect(Role::CONTROLLER)
            .send(&Frame::with_payload(Command::START, "ours"));
        assert_eq!(agent.frame().payload_bytes()[..], *b"ours");
        let counters = server.handle().sessions().unwrap();
        let (_, thief) = counters
            .iter()
            .find(|(info, _)| info.role() == Role::NETAGENT)
            .unwrap();
        assert_eq!(
            (
                thief.frames_received,
                thief.frames_filtered,
                thief.frames_unsupported
            ),
            (3, 2, 1)
        );
    }
}

#[test]
fn a_routing_function_forwards_discards_and_queues() {
    let (handler, told) = notes();
    let server = TestServer::start(handler, |c| {
        c.rules(Rules::new().route(
            Command::STOP,
            |frame, _from, directory| match &frame.payload_bytes()[..] {
                b"discard" => Decision::Discard,
                b"queue" => Decision::Queue,
                // To everybody: the sender itself is left out.
                _ => Decision::Forward(directory.sessions().map(SessionInfo::uuid).collect()),
            },
        ))
    });
    let mut controller = server.connect(Role::CONTROLLER);
    let mut agent = server.connect(Role::AGENT);
    for payload in ["discard", "queue", "forward"] {
        controller.send(&Frame::with_payload(Command::STOP, payload));
    }
    assert_eq!(agent.frame().payload_bytes()[..], *b"forward");
    while !matches!(note(&told), Note::Frame(from, frame)
        if from == controller.uuid && frame.payload_bytes()[..] == *b"forward")
    {}
    let to = agent.uuid;
    let released = server.handle().with(move |cx| {
        let held: Vec<_> = cx.held().cloned().collect();
        assert_eq!(held.len(), 1);
        (
            held[0].from,
            cx.release(held[0].id, &[to]),
            cx.release(held[0].id, &[to]),
        )
    });
    assert_eq!(released.unwrap(), (controller.uuid, Some(1), None));
    assert_eq!(agent.frame().payload_bytes()[..], *b"queue");
}

#[test]
fn queued_frames_are_bounded_and_expire() {
    let (handler, told) = notes();
    let server = TestServer::start(handler, |c| {
        c.held(1, 1 << 20, Duration::from_millis(50))
            .rules(Rules::new().route(Command::STOP, |_, _, _| Decision::Queue))
    });
    let mut controller = server.connect(Role::CONTROLLER);
    for payload in ["first", "second"] {
        controller.send(&Frame::with_payload(Command::STOP, payload));
    }
    let mut expired = Vec::new();
    while expired.len() < 2 {
        if let Note::Expired(held) = note(&told) {
            assert_eq!(held.from, controller.uuid);
            expired.push(held.frame.payload_bytes().to_vec());
        }
    }
    assert_eq!(
        expired,
        [b"second".to_vec(), b"first".to_vec()],
        "there was room for one"
    );
}

#[test]
fn rules_are_validated_and_replaced_at_run_time() {
    let twice = || {
        Rules::new()
            .multicast(Command::STATS, Role::AGENT)
            .multicast(Command::STATS, Role::AGENT)
    };
    let config = ServerConfig::new(identity(Role::SERVER), trust()).listen("127.0.0.1:0".parse().unwrap());
    let error = Server::start(config.rules(twice()), ()).unwrap_err();
    assert!(
        matches!(error, ServerError::Rules(RuleError::Duplicate(_))),
        "{error}"
    );

    let server = TestServer::start((), stats_to_controllers);
    let mut controller = server.connect(Role::CONTROLLER);
    let mut net = server.connect(Role::NETAGENT);
    let mut agent = server.connect(Role::AGENT);
    agent.send(&stats("old"));
    assert_eq!(controller.frame(), stats("old"));
    let refused = server.handle().with(move |cx| cx.set_rules(twice())).unwrap();
    assert!(matches!(refused, Err(RuleError::Duplicate(_))));
    let new = Rules::new().multicast(Command::STATS, Role::NETAGENT);
    server.handle().with(|cx| cx.set_rules(new)).unwrap().unwrap();
    agent.send(&stats("new"));
    assert_eq!(net.frame(), stats("new"));
}

#[test]
fn the_application_is_told_and_sends_to_uuid_role_and_all() {
    let (handler, told) = notes();
    let server = TestServer::start(handler, |c| c);
    let mut agent = server.connect(Role::AGENT);
    let mut net = server.connect(Role::NETAGENT);
    let Note::Connected(info) = note(&told) else {
        panic!("connected comes first")
    };
    assert_eq!((info.uuid(), info.role()), (agent.uuid, Role::AGENT));
    assert!(info.certificate().roles == Role::AGENT && !info.tracing());
    let handle = server.handle();
    handle.send(agent.uuid, Frame::new(Status::FULL)).unwrap();
    assert_eq!(
        handle.multicast(Role::AGENT | Role::NETAGENT, Frame::new(Status::READY)),
        Ok(2)
    );
    assert_eq!(handle.broadcast(Frame::new(Event::NODE_CONNECTED)), Ok(2));
    assert_eq!(agent.frame().kind(), Status::FULL);
    for peer in [&mut agent, &mut net] {
        assert_eq!(peer.frame().kind(), Status::READY);
        assert_eq!(peer.frame().kind(), Event::NODE_CONNECTED);
    }
    let nobody = Uuid::new_v4();
    assert_eq!(
        handle.send(nobody, Frame::new(Status::FULL)),
        Err(SendError::NotConnected(nobody))
    );
    let kind = Command::CONNECT.into();
    assert_eq!(
        handle.send(agent.uuid, Frame::new(kind)),
        Err(SendError::Kind(kind))
    );
    assert_eq!(handle.disconnect(agent.uuid), Ok(true));
    agent.end();
    assert_eq!(disconnected(&told), DisconnectReason::Application);
    drop(server);
    assert_eq!(
        handle.broadcast(Frame::new(Status::FULL)),
        Err(SendError::Stopped)
    );
}

/// Answers a STOP with the failure that names the same instance.
struct Stopped;

impl Handler for Stopped {
    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        let stop: Stop = frame.payload().unwrap();
        let failure = StopFailure {
            instance_uuid: stop.instance_uuid,
            reason: StopFailureReason::AlreadyStopped,
            ..StopFailure::default()
        };
        cx.send_payload(from.uuid(), &failure).unwrap();
    }
}

#[test]
fn an_application_reads_and_sends_payloads_as_types() {
    let server = TestServer::start(Stopped, |c| c);
    let mut controller = server.connect(Role::CONTROLLER);
    let stop = Stop {
        instance_uuid: Uuid::new_v4().into(),
        workload_agent_uuid: Uuid::new_v4().into(),
        stop: false,
    };
    controller.send(&Frame::of(&stop));
    let failure: StopFailure = controller.frame().payload().unwrap();
    assert_eq!(failure.instance_uuid, stop.instance_uuid);
    assert_eq!(failure.reason, StopFailureReason::AlreadyStopped);
    server.handle().send_payload(controller.uuid, &stop).unwrap();
    assert_eq!(controller.frame().payload::<Stop>().unwrap(), stop);
    let nobody = Uuid::new_v4();
    assert_eq!(
        server.handle().send_payload(nobody, &stop),
        Err(SendError::NotConnected(nobody))
    );
}

struct Careless(Arc<Mutex<u32>>);

impl Handler for Careless {
    fn frame(&mut self, _: &mut Context<'_>, _: &SessionInfo, _: Frame) {
        *self.0.lock().unwrap() += 1;
        panic!("on purpose: the test wants it");
    }
}

#[test]
fn a_panic_in_the_application_takes_nobody_down() {
    let count = Arc::new(Mutex::new(0));
    let server = TestServer::start(Careless(Arc::clone(&count)), stats_to_controllers);
    let mut controller = server.connect(Role::CONTROLLER);
    let mut agent = server.connect(Role::AGENT);
    for _ in 0..3 {
        agent.send(&stats("x"));
        assert_eq!(controller.frame(), stats("x"));
    }
    server.handle().with(|_| ()).unwrap();
    let panicked = server
        .handle()
        .with(|_| -> () { panic!("on purpose: the test wants it") });
    assert_eq!(panicked, Err(SendError::Stopped));
    drop(server);
    assert_eq!(count.lock().map(|n| *n).unwrap_or(3), 3);
}

#[test]
fn a_full_queue_meets_the_policy_of_that_session_alone() {
    for policy in [
        SlowConsumer::Disconnect,
        SlowConsumer::DropNewest,
        SlowConsumer::DropOldest,
    ] {
        let (handler, told) = notes();
        let server = TestServer::start(handler, |c| {
            stats_to_controllers(c).slow_consumer(policy).queue(Limits {
                frames: 1 << 20,
                bytes: 1 << 20,
            })
        });
        let mut stuck = server.connect(Role::CONTROLLER);
        let mut honest = server.connect(Role::CONTROLLER);
        let mut agent = server.connect(Role::AGENT);
        const COUNT: u32 = 200;
        for n in 0..COUNT {
            let mut payload = vec![7; 32 * 1024];
            payload[..4].copy_from_slice(&n.to_be_bytes());
            agent.send(&stats(payload));
            // The honest one keeps up and gets every frame.
            assert_eq!(honest.frame().payload_bytes()[..4], n.to_be_bytes());
        }
        let numbers = |peer: &mut Peer, count: usize| -> Vec<u32> {
            let number = |f: Frame| u32::from_be_bytes(f.payload_bytes()[..4].try_into().unwrap());
            (0..count).map(|_| number(peer.frame())).collect()
        };
        if policy == SlowConsumer::Disconnect {
            assert_eq!(disconnected(&told), DisconnectReason::SlowConsumer);
            // What waited for it is counted once its threads have ended.
            let handle = server.handle();
            let deadline = Instant::now() + LIMIT;
            while handle.frames_lost().unwrap() <= 10 {
                assert!(Instant::now() < deadline, "lost frames are not counted");
                std::thread::yield_now();
            }
            continue;
        }
        let uuid = stuck.uuid;
        let counters = server
            .handle()
            .with(move |cx| cx.counters(uuid))
            .unwrap()
            .unwrap();
        assert!(counters.frames_dropped > 100, "{counters:?}");
        let kept = COUNT as usize - counters.frames_dropped as usize;
        let received = numbers(&mut stuck, kept);
        assert!(received.is_sorted_by(|a, b| a < b), "in order, each once");
        let last = received.last() == Some(&(COUNT - 1));
        assert_eq!(
            last,
            policy == SlowConsumer::DropOldest,
            "{policy:?} keeps {received:?}"
        );
    }
}

#[test]
fn trace_blocks_are_agreed_stamped_and_stripped() {
    let server = TestServer::start((), stats_to_controllers);
    let mut plain = server.connect(Role::CONTROLLER);
    let mut traced = server.dial(&identity(Role::CONTROLLER));
    assert!(traced.handshake(Role::CONTROLLER, Uuid::new_v4(), true).trace);
    let mut agent = server.dial(&identity(Role::AGENT));
    assert!(agent.handshake(Role::AGENT, Uuid::new_v4(), true).trace);
    let mut trace = Trace::new("job");
    trace.stamp_sent(agent.uuid, Role::AGENT, 1);
    agent.send(&stats("t").traced(trace));
    assert_eq!(plain.frame(), stats("t"));
    let frame = traced.frame();
    let trace = frame.trace().unwrap();
    assert_eq!((trace.label().as_ref(), trace.nodes().len()), ("job", 2));
    let hop = trace.nodes()[1];
    assert_eq!((hop.uuid, hop.role), (server.handle().uuid(), Role::SERVER));
    assert!(hop.received_at > 1 && hop.sent_at >= hop.received_at);
    // A malformed block costs the block alone, and is counted.
    agent.send_bytes(&[0x80, 1, 0, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0xee, b'x']);
    assert_eq!(traced.frame(), stats("x"));
    assert_eq!(plain.frame(), stats("x"));
    let uuid = agent.uuid;
    let counters = server
        .handle()
        .with(move |cx| cx.counters(uuid))
        .unwrap()
        .unwrap();
    assert_eq!(counters.bad_traces, 1);
}

#[test]
fn a_server_without_tracing_does_not_agree_on_it() {
    let server = TestServer::start((), |c| c.tracing(false));
    let mut peer = server.dial(&identity(Role::AGENT));
    assert!(!peer.handshake(Role::AGENT, Uuid::new_v4(), true).trace);
}

#[test]
fn stopping_flushes_and_closes_every_session() {
    let server = TestServer::start((), |c| c.grace(LIMIT));
    let mut peers: Vec<_> = (0..8).map(|_| server.connect(Role::AGENT)).collect();
    server
        .handle()
        .broadcast(Frame::with_payload(Command::STATS, vec![1; 40_000]))
        .unwrap();
    drop(server);
    for peer in &mut peers {
        assert_eq!(peer.frame().payload_bytes().len(), 40_000);
        peer.end();
    }
}

#[test]
fn stopping_fails_a_handshake_that_is_under_way() {
    let server = TestServer::start((), |c| c);
    let mut peer = server.dial(&identity(Role::AGENT));
    peer.send_bytes(&[0, 1, 0]);
    // Its bytes have to be there before the stop: a session after it is up.
    server.connect(Role::AGENT);
    drop(server);
    assert_eq!(peer.refusal(), Some(ErrorCode::CONNECTION_FAILURE.into()));
}

#[test]
fn a_client_that_ends_its_side_still_gets_its_answers() {
    let server = TestServer::start((), |c| c.filter(Filter::spec()));
    for _ in 0..20 {
        let mut agent = server.connect(Role::AGENT);
        agent.send(&Frame::with_payload(Command::START, "x"));
        agent.finish();
        assert_eq!(agent.frame().kind(), ErrorCode::INVALID_FRAME_TYPE);
        agent.end();
    }
}

#[test]
fn both_peers_writing_without_reading_do_not_block_the_server() {
    let server = TestServer::start((), |c| {
        c.rules(Rules::new().multicast(Command::STATS, Role::AGENT))
            .queue(Limits {
                frames: 1 << 20,
                bytes: 32 << 20,
            })
    });
    let peers = [server.connect(Role::AGENT), server.connect(Role::AGENT)];
    let writers: Vec<_> = peers
        .into_iter()
        .map(|mut peer| {
            std::thread::spawn(move || {
                for _ in 0..128 {
                    peer.send(&stats(vec![3; 64 * 1024]));
                }
                peer
            })
        })
        .collect();
    for writer in writers {
        let mut peer = writer.join().unwrap();
        for _ in 0..128 {
            assert_eq!(peer.frame().payload_bytes().len(), 64 * 1024);
        }
    }
}

#[test]
fn a_server_needs_the_role_and_the_uuid_of_its_certificate() {
    let listen = |identity| ServerConfig::new(identity, trust()).listen("127.0.0.1:0".parse().unwrap());
    let error = Server::start(listen(identity(Role::AGENT)), ()).unwrap_err();
    assert!(matches!(error, ServerError::Role { .. }), "{error}");
    let error = Server::start(listen(identity(Role::SERVER)).role(Role::SCHEDULER), ()).unwrap_err();
    assert!(matches!(error, ServerError::Role { .. }), "{error}");
    let bound = Uuid::new_v4();
    let error = Server::start(
        listen(bound_identity(Role::SERVER, bound)).uuid(Uuid::new_v4()),
        (),
    )
    .unwrap_err();
    assert!(
        matches!(error, ServerError::BorrowedUuid(uuid) if uuid == bound),
        "{error}"
    );
    let error = Server::start(ServerConfig::new(identity(Role::SERVER), trust()), ()).unwrap_err();
    assert!(matches!(error, ServerError::NoAddress), "{error}");
    let error = Server::start(listen(identity(Role::SERVER)).max_sessions(usize::MAX), ()).unwrap_err();
    assert!(matches!(error, ServerError::TooManySessions(_)), "{error}");
}

#[test]
fn unknown_kinds_are_never_sent() {
    let server = TestServer::start((), |c| c);
    let agent = server.connect(Role::AGENT);
    let kind = FrameKind::new(FrameType(9), 1);
    assert_eq!(
        server.handle().send(agent.uuid, Frame::new(kind)),
        Err(SendError::Kind(kind))
    );
    let header = Header::new(kind, 0);
    assert_eq!(Header::decode(&header.encode()), Some(header));
}

#[test]
fn a_payload_that_no_peer_would_take_is_not_sent() {
    let server = TestServer::start((), |c| c.max_payload(10));
    let mut agent = server.connect(Role::AGENT);
    let too_long = Err(SendError::TooLong { len: 11, limit: 10 });
    let handle = server.handle();
    assert_eq!(handle.send(agent.uuid, stats(vec![0; 11])), too_long);
    assert_eq!(handle.broadcast(stats(vec![0; 11])).map(|_| ()), too_long);
    handle.send(agent.uuid, stats(vec![0; 10])).unwrap();
    assert_eq!(agent.frame(), stats(vec![0; 10]));
}

#[test]
fn a_session_that_ends_is_cut_off_even_if_its_peer_takes_a_little_at_a_time() {
    let (handler, told) = notes();
    let server = TestServer::start(handler, |c| {
        c.max_sessions(1).write_timeout(Duration::from_millis(500))
    });
    let slow = server.connect(Role::CONTROLLER);
    for _ in 0..100 {
        let frame = stats(vec![0; 100_000]);
        server.handle().send(slow.uuid, frame).unwrap();
    }
    let stream = Arc::clone(slow.stream());
    let reader = std::thread::spawn(move || {
        while stream.read(&mut [0; 1000]).is_ok_and(|n| n > 0) {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    assert_eq!(server.handle().disconnect(slow.uuid), Ok(true));
    assert_eq!(disconnected(&told), DisconnectReason::Application);
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut next = server.dial(&identity(Role::AGENT));
        next.send_bytes(&Connect::new(Role::AGENT, Uuid::new_v4(), false).encode());
        if next.next_is_connected() {
            break;
        }
        assert!(Instant::now() < deadline, "the place is not freed");
    }
    drop(slow);
    reader.join().unwrap();
}

/// Panics when it is asked for a time, and ends every session when it comes.
struct Timed(Sender<Note>, bool);

impl Handler for Timed {
    fn disconnected(&mut self, _: &mut Context<'_>, _: &SessionInfo, reason: &DisconnectReason) {
        let _ = self.0.send(Note::Disconnected(reason.clone()));
    }
    fn connected(&mut self, _: &mut Context<'_>, _: &SessionInfo) {
        self.1 = true;
    }
    fn next_timer(&self) -> Option<Instant> {
        assert!(self.1, "on purpose: the test wants it");
        Some(Instant::now())
    }
    fn timer(&mut self, cx: &mut Context<'_>) {
        let all: Vec<Uuid> = cx.directory().sessions().map(SessionInfo::uuid).collect();
        for uuid in all {
            cx.disconnect(uuid);
        }
    }
}

#[test]
fn a_panic_in_next_timer_is_caught_and_what_a_timer_does_is_told() {
    let (sender, told) = channel();
    let server = TestServer::start(Timed(sender, false), |c| c);
    server.handle().with(|_| ()).unwrap();
    server.connect(Role::AGENT).end();
    assert_eq!(disconnected(&told), DisconnectReason::Application);
}

#[test]
fn a_limit_of_time_may_be_endless() {
    let (handler, told) = notes();
    let server = TestServer::start(handler, |c| {
        c.held(1, 1 << 20, Duration::MAX)
            .handshake_timeout(Duration::MAX)
            .write_timeout(Duration::MAX)
            .grace(Duration::MAX)
            .rules(Rules::new().route(Command::STOP, |_, _, _| Decision::Queue))
    });
    let mut controller = server.connect(Role::CONTROLLER);
    controller.send(&Frame::new(Command::STOP));
    while !matches!(note(&told), Note::Frame(..)) {}
    let held = server.handle().with(|cx| cx.held().count());
    assert_eq!(held, Ok(1));
    controller.finish();
    assert_eq!(disconnected(&told), DisconnectReason::PeerClosed);
}
