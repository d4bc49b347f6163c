//! The end of sessions and of the server.

use super::*;

#[test]
fn stopping_flushes_and_closes_every_session() {
    let server = TestServer::start((), |c| c.grace(LIMIT));
    let mut peers: Vec<_> = (0..8).map(|_| server.connect(Role::AGENT)).collect();
    server
        .handle()
        .multicast(Role::ALL, Frame::with_payload(Command::STATS, vec![1; 40_000]))
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
    // Its bytes must arrive before the stop, so a later session has to be connected first.
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
fn a_session_that_ends_is_cut_off_even_if_its_peer_takes_a_little_at_a_time() {
    let (handler, received_notes) = notes();
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
    assert_eq!(disconnected(&received_notes), DisconnectReason::Application);
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut next = server.dial(&identity(Role::AGENT));
        next.send_bytes(&Connect::new(Role::AGENT, Uuid::new_v4(), false).encode());
        if next.next_is_connected() {
            break;
        }
        assert!(Instant::now() < deadline, "the place of the session is not freed");
    }
    drop(slow);
    reader.join().unwrap();
}

#[test]
fn a_time_limit_may_be_endless() {
    let (handler, received_notes) = notes();
    let server = TestServer::start(handler, |c| {
        c.handshake_timeout(Duration::MAX)
            .write_timeout(Duration::MAX)
            .grace(Duration::MAX)
    });
    let mut controller = server.connect(Role::CONTROLLER);
    controller.send(&Frame::new(Command::STOP));
    while !matches!(note(&received_notes), Note::Frame(..)) {}
    controller.finish();
    assert_eq!(disconnected(&received_notes), DisconnectReason::PeerClosed);
}
