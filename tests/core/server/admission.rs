//! Admission, refusal and replacement of clients, and the limits of a handshake.

use super::*;

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
    let (handler, received_notes) = notes();
    let server = TestServer::start(handler, stats_to_controllers);
    let mut peer = server.dial(&identity(Role::AGENT));
    peer.send(&stats("x: y\n"));
    assert_eq!(peer.refusal(), None);
    drop(server);
    assert!(received_notes.try_recv().is_err(), "the application has no event");
}

#[test]
fn a_silent_client_is_failed_at_the_deadline() {
    // The time includes the TLS handshake, which may be slow on a busy machine.
    let server = TestServer::start((), |c| c.handshake_timeout(Duration::from_secs(3)));
    let mut peer = server.dial(&identity(Role::AGENT));
    peer.send_bytes(&[0, 1, 0]);
    assert_eq!(peer.refusal(), Some(ErrorCode::CONNECTION_FAILURE.into()));
}

#[test]
fn a_client_that_leaves_before_connect_gets_no_answer() {
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
fn the_threads_of_a_session_have_its_name() {
    let (handler, received_notes) = notes();
    let server = TestServer::start(handler, |c| c);
    let _agent = server.connect(Role::AGENT);
    let Note::Connected(info) = note(&received_notes) else {
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
fn a_peer_that_reads_no_data_is_cut_at_the_write_timeout() {
    let (handler, received_notes) = notes();
    let server = TestServer::start(handler, |c| c.write_timeout(Duration::from_millis(100)));
    let stuck = server.connect(Role::CONTROLLER);
    server.handle().send(stuck.uuid, stats(vec![0; 1 << 20])).unwrap();
    let reason = disconnected(&received_notes);
    assert!(matches!(reason, DisconnectReason::Lost(_)), "{reason:?}");
}

#[test]
fn the_session_limit_fails_newcomers_and_frees_with_a_session() {
    let (handler, received_notes) = notes();
    let server = TestServer::start(handler, |c| c.max_sessions(1));
    let mut first = server.connect(Role::AGENT);
    let mut second = server.dial(&identity(Role::AGENT));
    second.send_bytes(&Connect::new(Role::AGENT, Uuid::new_v4(), false).encode());
    assert_eq!(second.refusal(), Some(ErrorCode::CONNECTION_FAILURE.into()));
    first.finish();
    first.end();
    drop(first);
    assert_eq!(disconnected(&received_notes), DisconnectReason::PeerClosed);
    // Its threads end a moment later.
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut third = server.dial(&identity(Role::AGENT));
        third.send_bytes(&Connect::new(Role::AGENT, Uuid::new_v4(), false).encode());
        if third.next_is_connected() {
            break;
        }
        assert!(Instant::now() < deadline, "the place of the session is not freed");
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

/// The answer to a client with this certificate that asks for this UUID.
fn refused(server: &TestServer, identity: &Identity, uuid: Uuid) -> Option<FrameKind> {
    refused_as(server, identity, Role::AGENT, uuid)
}

fn refused_as(server: &TestServer, identity: &Identity, role: Role, uuid: Uuid) -> Option<FrameKind> {
    let mut peer = server.dial(identity);
    peer.send_bytes(&Connect::new(role, uuid, false).encode());
    let refusal = peer.refusal();
    assert!(peer.was_closed, "the connection ended without close_notify");
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

/// A newcomer that was admitted and reads only the header of CONNECTED. Tries again while its earlier
/// sessions have not ended.
fn reads_no_connected(server: &TestServer, identity: &Identity, uuid: Uuid) -> Peer {
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut peer = server.dial(identity);
        peer.send_bytes(&Connect::new(Role::AGENT, uuid, false).encode());
        if peer.next_is_connected() {
            return peer;
        }
        assert!(Instant::now() < deadline, "the client is not admitted");
    }
}

#[test]
fn a_bound_client_that_reconnects_without_reading_has_at_most_two_places() {
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
            // Only the grace period can end this wait before the test's own limit.
            .handshake_timeout(Duration::from_secs(3600))
            .write_timeout(Duration::from_secs(3600))
    });
    let stuck = reads_no_connected(&server, &identity(Role::AGENT), Uuid::new_v4());
    let (done, stopped) = crossbeam_channel::bounded(1);
    let server = server.server.take().unwrap();
    let stopping = std::thread::spawn(move || {
        server.stop();
        done.send(()).unwrap();
    });
    stopped.recv_timeout(LIMIT).expect("the server does not stop");
    stopping.join().unwrap();
    drop(stuck);
}

#[test]
fn the_same_certificate_takes_a_session_over_and_another_may_try_again() {
    let (handler, received_notes) = notes();
    let server = TestServer::start(handler, stats_to_controllers);
    let mut controller = server.connect(Role::CONTROLLER);
    let certificate = identity(Role::AGENT);
    let uuid = Uuid::new_v4();
    let mut old = server.connect_as(&certificate, Role::AGENT, uuid);
    assert_eq!(refused(&server, &identity(Role::AGENT), uuid), FAILED);
    let mut new = server.connect_as(&certificate, Role::AGENT, uuid);
    old.end();
    assert_eq!(disconnected(&received_notes), DisconnectReason::Replaced);
    new.send(&stats("new"));
    assert_eq!(controller.frame(), stats("new"));
    assert_eq!(server.handle().sessions().unwrap().len(), 2);
}

#[test]
fn the_owner_of_a_uuid_takes_it_from_a_client_that_only_claims_it() {
    let (handler, received_notes) = notes();
    let server = TestServer::start(handler, stats_to_controllers);
    let mut controller = server.connect(Role::CONTROLLER);
    let uuid = Uuid::new_v4();
    let mut claimant = server.connect_as(&identity(Role::AGENT), Role::AGENT, uuid);
    let mut owner = server.connect_as(&bound_identity(Role::AGENT, uuid), Role::AGENT, uuid);
    claimant.end();
    assert_eq!(disconnected(&received_notes), DisconnectReason::Replaced);
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
fn a_client_that_only_claims_a_uuid_reconnects_when_the_owner_has_left() {
    let server = TestServer::start((), |c| c);
    let uuid = Uuid::new_v4();
    let mut owner = server.connect_as(&bound_identity(Role::AGENT, uuid), Role::AGENT, uuid);
    let config = ClientConfig::new(identity(Role::AGENT), trust()).connect_in_memory(&server.listener);
    let client = Client::start(config.uuid(uuid)).unwrap();
    while client.failures().is_empty() {
        assert!(client.ended().is_none(), "{:?}", client.ended());
        std::thread::yield_now();
    }
    let error = client.failures()[0].to_string();
    assert!(error.contains("connected with another certificate"), "{error}");
    owner.finish();
    owner.end();
    assert!(client.wait_connected(Some(LIMIT)).unwrap());
}

#[test]
fn an_owner_of_another_authority_waits_for_the_end_of_the_session() {
    let other = Authority::new(&AuthorityRequest::default()).unwrap();
    let both = [authority().certificate_pem(), other.certificate_pem()].concat();
    let trust = Trust::from_pem(both.as_bytes(), "both").unwrap();
    let listener = MemoryListener::new();
    let config = ServerConfig::new(identity(Role::SERVER), trust).listen_in_memory(&listener);
    let (handler, received_notes) = notes();
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
    assert_eq!(disconnected(&received_notes), DisconnectReason::PeerClosed);
    server.connect_as(&second, Role::AGENT, uuid);
}

#[test]
fn no_client_may_have_the_uuid_of_the_server() {
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

    // A certificate of two roles is exempt for one of them.
    let server = TestServer::start((), |c| c.admission(policy.unbound_roles(Role::CONTROLLER)));
    let certificate = identity(Role::CONTROLLER | Role::AGENT);
    assert_eq!(refused_as(&server, &certificate, Role::AGENT, uuid), ABORTED);
    let both = Role::CONTROLLER | Role::AGENT;
    assert_eq!(refused_as(&server, &certificate, both, uuid), ABORTED);
    let sessions: Vec<_> = (0..2)
        .map(|_| server.connect_as(&certificate, Role::CONTROLLER, Uuid::new_v4()))
        .collect();
    assert_eq!(sessions.len(), 2);
}

#[test]
fn one_certificate_leaves_places_for_others() {
    for (setting, share) in [(None, 6), (Some(2), 2)] {
        let (handler, received_notes) = notes();
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
        // It may take over its own session, which frees a place.
        let taken = sessions[1].uuid;
        sessions[1] = server.connect_as(&certificate, Role::AGENT, taken);
        sessions.remove(0).finish();
        while disconnected(&received_notes) != DisconnectReason::PeerClosed {}
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut next = server.dial(&certificate);
            next.send_bytes(&Connect::new(Role::AGENT, Uuid::new_v4(), false).encode());
            if next.next_is_connected() {
                break;
            }
            assert!(Instant::now() < deadline, "the place of the session is not freed");
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
