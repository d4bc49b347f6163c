//! Frames that are forwarded, answered, rejected and held.

use super::*;

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
    // A first frame that was sent back or sent twice would arrive before this one.
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
fn the_order_of_a_hundred_thousand_frames_is_kept() {
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
fn bytes_may_arrive_one_at_a_time() {
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
    // The CONFIGURE of an agent does not change the configuration.
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

#[test]
fn unknown_types_and_operands_are_answered_and_the_session_stays() {
    let server = TestServer::start((), stats_to_controllers);
    let mut controller = server.connect(Role::CONTROLLER);
    let mut agent = server.connect(Role::AGENT);
    // An unknown ERROR is not answered, so the next answer is to a later frame.
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
fn protocol_errors_end_the_session_and_earlier_frames_are_routed() {
    let cases: [&[u8]; 6] = [
        &[1, 1, 1, 1, 0, 0, 0, 0],
        &[0, 1, 0, 3, 0xff, 0xff, 0xff, 0xff],
        &[0, 1, 0, 3, 0, 0x10, 0, 1],
        &[0x80, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0],
        &Connect::new(Role::AGENT, Uuid::new_v4(), false).encode(),
        &[0, 1, 1, 0, 0, 0, 0, 1],
    ];
    for bytes in cases {
        let (handler, received_notes) = notes();
        let server = TestServer::start(handler, |c| stats_to_controllers(c).max_payload(1 << 20));
        let mut controller = server.connect(Role::CONTROLLER);
        let mut agent = server.connect(Role::AGENT);
        let both = [&stats("before").encode()[..], bytes].concat();
        agent.send_bytes(&both);
        agent.end();
        assert_eq!(controller.frame(), stats("before"));
        assert!(
            matches!(disconnected(&received_notes), DisconnectReason::Protocol(_)),
            "{bytes:?}"
        );
    }
}

#[test]
fn the_filter_rejects_or_drops_frames_that_a_role_may_not_send() {
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
fn a_routing_function_forwards_and_discards() {
    let (handler, received_notes) = notes();
    let server = TestServer::start(handler, |c| {
        c.rules(Rules::new().route(
            Command::STOP,
            |frame, _from, directory| match &frame.payload_bytes()[..] {
                b"discard" => Vec::new(),
                // Addressed to all sessions; the sender is left out.
                _ => directory.sessions().map(SessionInfo::uuid).collect(),
            },
        ))
    });
    let mut controller = server.connect(Role::CONTROLLER);
    let mut agent = server.connect(Role::AGENT);
    for payload in ["discard", "forward"] {
        controller.send(&Frame::with_payload(Command::STOP, payload));
    }
    assert_eq!(agent.frame().payload_bytes()[..], *b"forward");
    while !matches!(note(&received_notes), Note::Frame(from, frame)
        if from == controller.uuid && frame.payload_bytes()[..] == *b"forward")
    {}
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
    // A malformed block is removed and counted; the frame is forwarded.
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
    assert_eq!(
        handle.multicast(Role::ALL, stats(vec![0; 11])).map(|_| ()),
        too_long
    );
    handle.send(agent.uuid, stats(vec![0; 10])).unwrap();
    assert_eq!(agent.frame(), stats(vec![0; 10]));
}
