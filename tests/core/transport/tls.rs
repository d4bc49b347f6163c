//! Handshakes, alerts, key updates and versions of TLS.

use super::*;

#[test]
fn key_updates_of_the_peer_pass_while_the_writer_is_idle() {
    for and_side in [Raw::and_client, Raw::and_server] {
        let (mut raw, halves) = and_side(tcp);
        let mut side = Side::new(halves);
        for n in 0..50 {
            raw.send(&pattern(n * 100, 100));
            raw.tls.refresh_traffic_keys().unwrap();
        }
        raw.flush();
        side.expect(5000);
        // The peer receives the answers to its updates, then data under the newest keys.
        side.push(0, 1000, 10);
        raw.expect(0, 1000);
        raw.close();
        assert!(matches!(side.ended(), EndReason::PeerClosed));
        raw.expect_close();
        side.join();
    }
}

#[test]
fn key_updates_of_the_peer_pass_in_the_middle_of_a_write() {
    let (mut raw, halves) = Raw::and_server(tcp);
    let mut side = Side::new(halves);
    side.push(0, HEAVY, 1 << 20);
    const STEP: usize = 1 << 18;
    for n in 0..HEAVY / STEP {
        raw.tls.refresh_traffic_keys().unwrap();
        raw.send(&pattern(n * 10, 10));
        side.expect(10);
        raw.expect(n * STEP, STEP);
    }
    side.push(HEAVY, 10, 10);
    raw.expect(HEAVY, 10);
}

#[test]
fn key_updates_of_the_peer_precede_items_past_the_writer() {
    let (mut raw, halves) = Raw::and_server(tcp);
    let mut side = Side::new(halves);
    for n in 0..200 {
        raw.tls.refresh_traffic_keys().unwrap();
        raw.send(&pattern(n * 10, 10));
        side.expect(10);
        let item = Outgoing::whole(pattern(n * 20_000, 20_000), 1);
        side.outbox.push(item, Limits::NONE, true).unwrap();
        raw.expect(n * 20_000, 20_000);
    }
    raw.close();
    assert!(matches!(side.ended(), EndReason::PeerClosed));
}

#[test]
fn close_notify_is_an_end_in_order_and_is_answered() {
    for kind in KINDS {
        let (mut raw, halves) = Raw::and_client(kind);
        let mut side = Side::new(halves);
        raw.send(&pattern(0, 10));
        raw.close();
        side.expect(10);
        assert!(matches!(side.ended(), EndReason::PeerClosed));
        raw.expect_close();
        side.join();
    }
}

#[test]
fn a_cut_without_close_notify_is_an_error() {
    for kind in KINDS {
        let (raw, halves) = Raw::and_server(kind);
        let mut side = Side::new(halves);
        raw.tap.stream.shutdown(Shutdown::Write).unwrap();
        let reason = side.ended();
        assert!(
            matches!(&reason, EndReason::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof),
            "{reason}"
        );
        side.join();
    }
}

#[test]
fn one_flipped_byte_is_an_error_here_and_an_alert_there() {
    for and_side in [Raw::and_client, Raw::and_server] {
        let (mut raw, halves) = and_side(tcp);
        let mut side = Side::new(halves);
        raw.send(&pattern(0, 100));
        raw.seal(&pattern(100, 100));
        let mut wire = raw.taken();
        wire[50] ^= 1;
        raw.tap.write_all(&wire).unwrap();
        side.expect(100);
        let reason = side.ended();
        assert!(
            matches!(&reason, EndReason::Io(e) if e.kind() == io::ErrorKind::InvalidData),
            "{reason}"
        );
        let alert = loop {
            match raw.more() {
                Ok(0) => panic!("the connection ended without an alert"),
                Ok(_) => {}
                Err(e) => break e,
            }
        };
        assert_eq!(
            alert,
            rustls::Error::AlertReceived(AlertDescription::BadRecordMac)
        );
        // The peer's stream ends as well, so it need not time out.
        while raw.tap.read(&mut [0; 1024]).is_ok_and(|n| n > 0) {}
        drop(raw);
        side.join();
    }
}

#[test]
fn data_glued_to_the_last_flight_of_the_handshake_arrives_without_another_read() {
    for kind in KINDS {
        let (client, server) = kind();
        server.set_read_timeout(Some(LIMIT)).unwrap();
        let deadline = Instant::now() + LIMIT;
        let accepting = std::thread::spawn(move || acceptor().accept(server, &BufferPool::new(), deadline));
        let mut raw = Raw::client(client, &[&rustls::version::TLS13]);
        raw.flush();
        while raw.tls.is_handshaking() {
            raw.more().unwrap();
        }
        raw.seal(&pattern(0, 1000));
        let flight = raw.taken();
        raw.tap.write_all(&flight).unwrap();
        let mut halves = accepting.join().unwrap().unwrap().halves;
        // No more bytes come, so a further read would be useless.
        halves.stream.shutdown(Shutdown::Read).unwrap();
        while halves.inbox.bytes_mut().len() < 1000 {
            halves.receive.receive(&mut halves.inbox).unwrap();
        }
        assert!(is_pattern(0, halves.inbox.bytes_mut()));
    }
}

#[test]
fn a_cut_at_any_byte_ends_the_handshake_and_the_session() {
    for after in [0, 1, 5, 100, 500] {
        let cut = Faults {
            cut_after: Some(after),
            ..Faults::default()
        };
        let (client, server) = faulty(Faults::default(), cut);
        let deadline = Instant::now() + LIMIT;
        let accepting = std::thread::spawn(move || acceptor().accept(server, &BufferPool::new(), deadline));
        // In TLS 1.3 the client may be done before its own last flight is cut.
        let _ = connector().connect(client, "localhost", &BufferPool::new(), deadline);
        let error = accepting.join().unwrap().unwrap_err();
        assert!(matches!(error, TlsError::Io(_)), "{error}");
    }
    for after in [4000, 20_000, 20_001, 100_000] {
        let cut = Faults {
            cut_after: Some(after),
            ..Faults::default()
        };
        let (client, server) = secure(faulty(cut, Faults::default()));
        let (mut client, mut server) = (Side::new(client), Side::new(server));
        // The cut may strike while this is being queued.
        for start in (0..1 << 20).step_by(1000) {
            let item = Outgoing::whole(pattern(start, 1000), 1);
            if server.outbox.push(item, Limits::NONE, false).is_err() {
                break;
            }
        }
        for side in [&mut client, &mut server] {
            let reason = side.ended();
            assert!(
                matches!(reason, EndReason::Io(_) | EndReason::PeerClosed),
                "{reason}"
            );
        }
        client.join();
        server.join();
    }
}

/// Otherwise a server without time for its newcomers would sign for those that are gone.
#[test]
fn a_client_that_has_hung_up_gets_no_answer() {
    for kind in KINDS {
        let (client, server) = kind();
        // It waits for the answer to its first message, and gives up.
        let deadline = Instant::now() + Duration::from_millis(20);
        let stream = Arc::clone(&client);
        let given_up = connector().connect(stream, "localhost", &BufferPool::new(), deadline);
        assert!(matches!(given_up.unwrap_err(), TlsError::Deadline));
        client.shutdown(Shutdown::Write).unwrap();
        let error = acceptor().accept(server, &BufferPool::new(), Instant::now() + LIMIT);
        assert!(matches!(error.unwrap_err(), TlsError::Io(_)));
        assert_eq!(client.read(&mut [0; 64]).unwrap(), 0);
    }
}

#[test]
fn a_silent_peer_ends_the_handshake_at_its_deadline() {
    for kind in KINDS {
        let (client, server) = kind();
        let deadline = || Instant::now() + Duration::from_millis(20);
        let error = acceptor().accept(server, &BufferPool::new(), deadline());
        assert!(matches!(error.unwrap_err(), TlsError::Deadline));
        drop(client);
        let (client, _server) = kind();
        let error = connector().connect(client, "localhost", &BufferPool::new(), deadline());
        assert!(matches!(error.unwrap_err(), TlsError::Deadline));
    }
}

#[test]
fn a_peer_that_takes_nothing_ends_the_handshake_at_its_deadline() {
    let (client, _server) = in_memory();
    // The stream has no room for the first byte.
    assert_eq!(client.write(&[0; memory::CAPACITY]).unwrap(), memory::CAPACITY);
    let (done, ended) = channel();
    std::thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_millis(20);
        let secured = connector().connect(client, "localhost", &BufferPool::new(), deadline);
        done.send(secured.err())
    });
    let error = ended
        .recv_timeout(LIMIT)
        .expect("the handshake waits without a limit");
    assert!(matches!(error, Some(TlsError::Deadline)), "{error:?}");
}

#[test]
fn each_server_check_checks_exactly_what_it_states() {
    let (ours, other) = (trust(), Authority::new(&AuthorityRequest::default()).unwrap());
    let theirs = other.trust();
    // The check, the name, and true if the server is accepted.
    let cases = [
        (ServerCheck::Name(&ours), "localhost", true),
        (ServerCheck::Name(&ours), "elsewhere.example", false),
        (ServerCheck::Name(&theirs), "localhost", false),
        (ServerCheck::Authority(&ours), "localhost", true),
        (ServerCheck::Authority(&ours), "elsewhere.example", true),
        (ServerCheck::Authority(&theirs), "localhost", false),
        (ServerCheck::Nothing, "elsewhere.example", true),
    ];
    for (check, name, passes) in cases {
        let (client, server) = in_memory();
        let deadline = Instant::now() + LIMIT;
        let accepting = std::thread::spawn(move || acceptor().accept(server, &BufferPool::new(), deadline));
        let connector = check.connector(Some(&identity(Role::AGENT))).unwrap();
        let secured = connector.connect(client, name, &BufferPool::new(), deadline);
        assert_eq!(secured.is_ok(), passes, "{check:?} {name}: {:?}", secured.err());
        assert_eq!(accepting.join().unwrap().is_ok(), passes, "{check:?} {name}");
    }
}

/// Notes the authorities that a server names when it requests a certificate.
#[derive(Debug)]
struct Hints(Sender<Vec<Vec<u8>>>);

impl ResolvesClientCert for Hints {
    fn resolve(&self, hints: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let _ = self.0.send(hints.iter().map(|name| name.to_vec()).collect());
        None
    }
    fn has_certs(&self) -> bool {
        true
    }
}

#[test]
fn a_server_names_the_authorities_that_it_trusts() {
    let (client, server) = in_memory();
    let deadline = Instant::now() + LIMIT;
    let accepting = std::thread::spawn(move || acceptor().accept(server, &BufferPool::new(), deadline));
    let (sender, hints) = channel();
    let config = rustls::ClientConfig::builder_with_provider(pki::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(Arc::clone(trust().roots()))
        .with_client_cert_resolver(Arc::new(Hints(sender)));
    let connector = Connector::with_config(Arc::new(config));
    let _ = connector.connect(client, "localhost", &BufferPool::new(), deadline);
    let trust = trust();
    let subjects = trust.roots().subjects();
    let names: Vec<_> = subjects.iter().map(|name| name.as_ref().to_vec()).collect();
    assert_eq!(hints.recv_timeout(LIMIT).unwrap(), names);
    assert!(
        accepting.join().unwrap().is_err(),
        "the client has shown no certificate"
    );
}

#[test]
fn tls_1_2_carries_the_same_frames() {
    let (mut raw, halves) = Raw::and_server_with(tcp, &[&rustls::version::TLS12]);
    assert_eq!(raw.tls.protocol_version(), Some(ProtocolVersion::TLSv1_2));
    let mut side = Side::new(halves);
    side.push(0, 1 << 20, 10_000);
    raw.expect(0, 1 << 20);
    for n in 0..100 {
        raw.send(&pattern(n * 1000, 1000));
    }
    side.expect(100_000);
    raw.close();
    assert!(matches!(side.ended(), EndReason::PeerClosed));
    raw.expect_close();
    side.join();
}
