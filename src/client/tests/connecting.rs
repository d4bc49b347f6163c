//! The order of servers, the faults that are tried again, and the faults that end a client.

use std::collections::BTreeMap;

use super::renewing::{another_authority, of};
use super::*;
use crate::client::config::ClientConfig;
use crate::client::dial::Dialer;
use crate::proto::{ErrorCode, Refusal, Status};
use ssntp_pki::{Authority, AuthorityRequest, CertificateRequest, Host, Role};
use ssntp_transport::memory::MemoryListener;
use ssntp_transport::{Address, Cancel, PeerAddress, Target};

/// An address at which no server listens.
fn unused_address() -> Address {
    TestServer::tcp().address()
}

#[test]
fn connect_carries_uuid_and_roles() {
    let server = TestServer::tcp();
    let uuid = Uuid::from_u128(7);
    let client = Client::start(agent().address(server.address()).uuid(uuid)).unwrap();
    let hello = server.session_with(b"configure: {}\n").hello();
    assert_eq!(
        (hello.source, hello.role, hello.trace),
        (uuid, Role::AGENT, false)
    );
    let info = connected(&client);
    assert_eq!(
        (info.uuid, info.role, info.tracing),
        (SERVER, Role::SERVER, false)
    );
    assert_eq!(info.name, server.address().to_string());
    assert!(matches!(info.address, PeerAddress::Ip(_)));
    assert_eq!((info.certificate.roles, info.tls), (Role::SERVER, "TLSv1.3"));
    assert_eq!(client.configuration().unwrap()[..], *b"configure: {}\n");
    assert_eq!((client.uuid(), client.role()), (uuid, Role::AGENT));
}

#[test]
fn figures_have_the_start_of_the_session_and_the_failed_attempts() {
    let server = TestServer::tcp();
    let addresses = [unused_address(), server.address()];
    let limits = ssntp_transport::Limits::default();
    let client = Client::start(agent().addresses(addresses).offline(Offline::Queue(limits))).unwrap();
    client.send(stats(1)).unwrap();
    let before = client.handle().figures();
    assert!(before.server.is_none());
    assert_eq!((before.frames_waiting, before.bytes_waiting), (1, 12));
    let peer = server.session();
    connected(&client);
    let figures = client.handle().figures();
    assert_eq!(figures.server.unwrap().uuid, SERVER);
    assert_eq!(figures.failures, BTreeMap::from([("connect", 1)]));
    assert_eq!(
        (figures.counters.sessions, figures.counters.failed_attempts),
        (1, 1)
    );
    assert!(figures.since > before.since);
    peer.cut();
    disconnected(&client);
    let deadline = Instant::now() + LIMIT;
    loop {
        // The threads of the session end a moment later.
        let over = client.handle().figures();
        if over.server.is_none() && over.since > figures.since {
            break;
        }
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
}

#[test]
fn connect_returns_once_the_session_is_established() {
    let (server, listener) = TestServer::memory();
    let thread = threads::spawn("t", move || Client::connect(agent().connect_in_memory(&listener)));
    let _peer = server.session();
    let client = thread.unwrap().join().unwrap().unwrap();
    assert!(client.is_connected());
    assert_eq!(connected(&client).uuid, SERVER);
}

#[test]
fn the_first_server_that_answers_is_taken() {
    let (second, third) = (TestServer::tcp(), TestServer::tcp());
    let config = agent().addresses([unused_address(), second.address(), third.address()]);
    let client = Client::start(config).unwrap();
    let peer = second.session();
    assert_eq!(connected(&client).name, second.address().to_string());
    assert_eq!(client.counters().failed_attempts, 1);
    drop(second);
    peer.cut();
    disconnected(&client);
    let _peer = third.session();
    assert_eq!(connected(&client).name, third.address().to_string());
}

#[test]
fn a_server_that_fails_the_connection_is_tried_again() {
    let (server, listener) = TestServer::memory();
    let client = Client::start(agent().connect_in_memory(&listener)).unwrap();
    server.connection().shutdown(std::net::Shutdown::Both).unwrap();
    for _ in 0..2 {
        let mut peer = server.connect();
        peer.send_kind(ErrorCode::CONNECTION_FAILURE);
        peer.close();
    }
    server.tls().unwrap().cut();
    let _peer = server.session();
    connected(&client);
    let counters = client.counters();
    assert_eq!((counters.failed_attempts, counters.sessions), (4, 1));
}

#[test]
fn attempts_run_out() {
    let config = agent()
        .addresses([unused_address(), unused_address()])
        .attempts(3);
    let error = Client::connect(config).unwrap_err();
    match &error {
        ClientError::GaveUp { attempts: 3, last } => assert_eq!(last.len(), 2),
        other => panic!("{other}"),
    }
    assert!(error.to_string().contains("refused"), "{error}");
    let client = Client::start(agent().address(unused_address()).attempts(1)).unwrap();
    assert!(matches!(closed(&client), ClientError::GaveUp { attempts: 1, .. }));
    assert!(client.send(stats(0)).is_err());
}

#[test]
fn first_attempts_has_a_limit_of_its_own() {
    let client = Client::start(agent().address(unused_address()).first_attempts(1)).unwrap();
    assert!(matches!(closed(&client), ClientError::GaveUp { attempts: 1, .. }));

    let (client, peer, server) = pair(|config| config.first_attempts(1));
    peer.cut();
    disconnected(&client);
    for _ in 0..3 {
        server.tls().unwrap().cut();
    }
    let _peer = server.session();
    connected(&client);
}

#[test]
fn a_lost_session_is_replaced_and_events_keep_their_order() {
    let (client, mut peer, server) = pair(|config| config);
    for round in 0..3 {
        peer.send(&stats(round));
        if round == 1 {
            peer.close();
        } else {
            peer.cut();
        }
        peer = server.session();
        assert_eq!(number(&next_frame(&client)), round);
        let (reason, retrying) = disconnected(&client);
        assert!(retrying);
        assert_eq!(reason == SessionEnd::PeerClosed, round == 1, "{reason}");
        connected(&client);
    }
    assert_eq!(client.counters().sessions, 4);
}

#[test]
fn a_lost_session_makes_no_pause_before_the_next_server_and_one_after_a_whole_round() {
    let servers = [(); 3].map(|()| TestServer::memory());
    let hour = Duration::from_secs(3600);
    let rare = Backoff {
        initial: hour,
        cap: hour,
    };
    let config = servers
        .iter()
        .fold(agent().backoff(rare), |config, (_, listener)| {
            config.connect_in_memory(listener)
        });
    let client = Client::start(config).unwrap();
    for (server, _) in &servers {
        let peer = server.session();
        connected(&client);
        peer.cut();
        disconnected(&client);
    }
    // Short sessions do not lead to rounds without a pause.
    assert!(!client.handle().wait_connected(Some(Duration::ZERO)).unwrap());
    assert!(servers[0].0.has_no_connection());
}

#[test]
fn without_reconnecting_a_lost_session_ends_the_client() {
    let (client, peer, _server) = pair(|config| config.reconnect(false));
    peer.close();
    assert_eq!(disconnected(&client), (SessionEnd::PeerClosed, false));
    let reason = closed(&client);
    assert!(
        matches!(reason, ClientError::Disconnected(SessionEnd::PeerClosed)),
        "{reason}"
    );
}

#[test]
fn aborted_is_final_even_if_other_servers_are_left() {
    let (server, listener) = TestServer::memory();
    let other = TestServer::tcp();
    let config = agent().connect_in_memory(&listener).address(other.address());
    let client = Client::start(config).unwrap();
    let mut peer = server.connect();
    peer.send_kind(ErrorCode::CONNECTION_ABORTED);
    peer.close();
    let reason = closed(&client);
    assert!(
        matches!(&reason, ClientError::Aborted { server, .. } if server.starts_with("memory-") && server.len() < 12),
        "{reason}"
    );
    assert!(other.has_no_connection());
    let unsent = client.send(stats(1)).unwrap_err();
    assert!(matches!(
        unsent.fault(),
        SendFault::Ended(ClientError::Aborted { .. })
    ));
    assert_eq!(unsent.into_frame(), stats(1));
}

#[test]
fn aborted_on_a_session_is_final_and_failure_is_not() {
    let (client, mut peer, server) = pair(|config| config);
    peer.send_kind(ErrorCode::CONNECTION_FAILURE);
    let mut second = server.session();
    let failed = SessionEnd::PeerRefused(ErrorCode::CONNECTION_FAILURE);
    assert_eq!(disconnected(&client), (failed, true));
    connected(&client);
    second.send(&stats(5));
    second.send_kind(ErrorCode::CONNECTION_ABORTED);
    assert_eq!(number(&next_frame(&client)), 5);
    let aborted = SessionEnd::PeerRefused(ErrorCode::CONNECTION_ABORTED);
    assert_eq!(disconnected(&client), (aborted, false));
    assert!(matches!(closed(&client), ClientError::Aborted { .. }));
    assert!(server.has_no_connection());
}

#[test]
fn a_server_whose_role_does_not_match_receives_an_error_and_is_ruled_out() {
    let (server, listener) = TestServer::memory();
    let good = TestServer::tcp();
    let config = agent().connect_in_memory(&listener).address(good.address());
    let client = Client::start(config).unwrap();
    let mut liar = server.connect();
    let reply = liar.connected(Role::SCHEDULER, b"");
    liar.send_raw(reply);
    assert_eq!(liar.recv().kind(), ErrorCode::CONNECTION_FAILURE);
    liar.expect_end();
    drop(liar);
    let peer = good.session();
    connected(&client);
    peer.cut();
    disconnected(&client);
    let _peer = good.session();
    connected(&client);
    assert!(server.has_no_connection(), "the server is not tried again");
}

#[test]
fn a_role_that_does_not_match_is_final_when_no_server_is_left() {
    for role in [Role::SCHEDULER, Role::AGENT, Role::NONE] {
        let (server, listener) = TestServer::memory();
        let client = Client::start(agent().connect_in_memory(&listener)).unwrap();
        let mut peer = server.connect();
        let reply = peer.connected(role, b"");
        peer.send_raw(reply);
        peer.close();
        match closed(&client) {
            ClientError::NoServerLeft(errors) => assert!(matches!(
                errors[..],
                [DialError {
                    fault: DialFault::Refused(Refusal::Role { .. } | Refusal::NotAServer(_)),
                    ..
                }]
            )),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_server_of_another_authority_is_ruled_out() {
    let foreign = Authority::new(&AuthorityRequest::default()).unwrap();
    let identity = foreign
        .issue(&CertificateRequest::new(Role::SERVER))
        .unwrap()
        .identity();
    let server = TestServer::tcp_as(&identity, &trust());
    let client = Client::start(agent().address(server.address())).unwrap();
    assert!(server.tls().is_err());
    match closed(&client) {
        ClientError::NoServerLeft(errors) => {
            assert!(
                matches!(errors[0].fault, DialFault::ServerCertificate(_)),
                "{errors:?}"
            );
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_server_that_refuses_our_certificate_is_ruled_out() {
    // An authority of the same name, and one of another name.
    let request = AuthorityRequest::default();
    for (over_tcp, request) in [(false, request.clone()), (true, request.name("other"))] {
        let foreign = Authority::new(&request).unwrap();
        let listener = MemoryListener::new();
        let (server, config) = if over_tcp {
            let server = TestServer::tcp_as(&identity(Role::SERVER), &foreign.trust());
            let config = agent().address(server.address());
            (server, config)
        } else {
            let server = TestServer::memory_as(&listener, &identity(Role::SERVER), &foreign.trust());
            (server, agent().connect_in_memory(&listener))
        };
        let client = Client::start(config).unwrap();
        assert!(server.tls().is_err());
        match closed(&client) {
            ClientError::NoServerLeft(errors) => {
                assert!(
                    matches!(errors[0].fault, DialFault::OwnCertificate(_)),
                    "{errors:?}"
                );
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_server_that_refuses_our_certificate_as_expired_is_tried_again() {
    let day = Duration::from_secs(24 * 60 * 60);
    let tomorrow = authority().info().not_before + 2 * day;
    let request = CertificateRequest::new(Role::AGENT).valid_from(tomorrow);
    let early = authority().issue(&request).unwrap().identity();
    let (server, listener) = TestServer::memory();
    let client = Client::start(agent_as(early).connect_in_memory(&listener)).unwrap();
    for _ in 0..3 {
        assert!(server.tls().is_err());
    }
    client.close();
}

#[test]
fn a_server_has_to_prove_the_name_that_is_dialled_or_wanted() {
    let host: Host = "scheduler.example".parse().unwrap();
    let request = CertificateRequest::new(Role::SERVER).host(host);
    let identity = authority().issue(&request).unwrap().identity();
    let server = TestServer::tcp_as(&identity, &trust());
    let client = Client::start(agent().address(server.address())).unwrap();
    assert!(server.tls().is_err());
    let reason = closed(&client);
    assert!(matches!(reason, ClientError::NoServerLeft(_)), "{reason}");

    let config = agent().address(server.address()).server_name("scheduler.example");
    let client = Client::start(config).unwrap();
    let _peer = server.session();
    connected(&client);

    let config = agent().address(server.address()).server_name("not a name");
    match Client::connect(config).unwrap_err() {
        ClientError::NoServerLeft(errors) => {
            assert!(matches!(errors[0].fault, DialFault::ServerName(_)), "{errors:?}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn garbage_instead_of_connected_is_tried_again() {
    let (server, listener) = TestServer::memory();
    let client = Client::start(agent().connect_in_memory(&listener)).unwrap();
    let mut peer = server.connect();
    peer.send_kind(Status::READY);
    peer.close();
    let mut peer = server.connect();
    peer.send_raw(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    peer.close();
    let _peer = server.session();
    connected(&client);
}

#[test]
fn an_attempt_at_a_silent_server_ends_at_the_deadline() {
    let (server, listener) = TestServer::memory();
    let config = agent()
        .connect_in_memory(&listener)
        .handshake_timeout(Duration::from_millis(50));
    let client = Client::start(config.clone()).unwrap();
    // The server is silent before TLS, so that the next attempt is another connection.
    let _silent = server.connection();
    let _later = server.connection();
    client.close();

    let client = Client::start(config.handshake_timeout(Duration::from_millis(500)).attempts(1)).unwrap();
    let _silent = loop {
        // Connections of the previous client may still wait here.
        if let Ok(peer) = server.tls() {
            break peer;
        }
    };
    match closed(&client) {
        ClientError::GaveUp { last, .. } => {
            assert!(
                matches!(last[0].fault, DialFault::Refused(Refusal::Deadline)),
                "{last:?}"
            );
        }
        other => panic!("{other}"),
    }
}

#[test]
fn unix_sockets_carry_sessions() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let server = TestServer::unix(&path);
    let client = Client::start(agent().address(Address::Unix(path))).unwrap();
    let mut peer = server.session();
    assert_eq!(connected(&client).address, PeerAddress::Unix);
    client.send(stats(1)).unwrap();
    assert_eq!(number(&peer.recv()), 1);
}

#[test]
fn without_addresses_the_authority_names_the_servers() {
    let servers = |authority: &Authority| {
        let identity = authority
            .issue(&CertificateRequest::new(Role::AGENT))
            .unwrap()
            .identity();
        let config = ClientConfig::new(identity, authority.trust());
        config
            .servers()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let mut request = AuthorityRequest::default();
    for host in ["s1.example", "*.example", "10.0.0.7", "::7"] {
        request = request.host(host);
    }
    assert_eq!(
        servers(&Authority::new(&request).unwrap()),
        ["s1.example:8888", "10.0.0.7:8888", "[::7]:8888"]
    );
    assert_eq!(servers(authority()), ["localhost:8888"]);
}

#[test]
fn a_role_that_the_certificate_does_not_hold_is_refused_before_anything_runs() {
    for role in [Role::CONTROLLER, Role::AGENT | Role::NETAGENT, Role::NONE] {
        let error = Client::start(agent().role(role)).unwrap_err();
        assert!(matches!(error, ClientError::Role { .. }), "{error}");
    }
    let config = ClientConfig::new(identity(Role::AGENT | Role::NETAGENT), trust());
    assert_eq!(config.role, Role::AGENT | Role::NETAGENT);
    assert!(config.role(Role::NETAGENT).claim_uuid().is_ok());
}

#[test]
fn a_bound_certificate_decides_the_uuid() {
    let bound = Uuid::from_u128(0xb0);
    let request = CertificateRequest::new(Role::AGENT).uuid(bound);
    let identity = authority().issue(&request).unwrap().identity();
    let config = ClientConfig::new(identity, trust());
    let uuid = |config: ClientConfig| config.claim_uuid().map(|claimed| claimed.uuid);
    assert_eq!(uuid(config.clone()).unwrap(), bound);
    assert_eq!(uuid(config.clone().uuid(bound)).unwrap(), bound);
    let directory = std::path::PathBuf::from("/nonexistent");
    assert_eq!(
        uuid(config.clone().uuid(UuidSource::Persistent(directory))).unwrap(),
        bound
    );
    let error = uuid(config.uuid(Uuid::from_u128(1))).unwrap_err();
    assert!(matches!(error, ClientError::BorrowedUuid { .. }), "{error}");
    let error = uuid(agent().uuid(Uuid::nil())).unwrap_err();
    assert!(matches!(error, ClientError::NilUuid), "{error}");
    assert_ne!(uuid(agent()).unwrap(), uuid(agent()).unwrap());
}

#[test]
fn clients_of_one_directory_never_share_a_uuid_and_keep_theirs() {
    let directory = tempfile::tempdir().unwrap();
    let config = || {
        agent()
            .address(unused_address())
            .uuid(UuidSource::Persistent(directory.path().into()))
    };
    let first = Client::start(config()).unwrap();
    let second = Client::start(config()).unwrap();
    let (one, two) = (first.uuid(), second.uuid());
    assert_ne!(one, two);
    first.close();
    let again = Client::start(config()).unwrap();
    assert_eq!(again.uuid(), one);
    drop((second, again));
    let again = Client::start(config()).unwrap();
    assert_eq!(again.uuid(), one);
}

#[test]
fn an_address_that_hangs_or_shows_a_wrong_certificate_passes_on_to_the_next_of_its_name() {
    let other = another_authority();
    let wrong = TestServer::tcp_as(&of(&other, Role::SERVER), &other.trust());
    let [hangs, good, decides, untried] = [(); 4].map(|()| TestServer::tcp());
    let config = Arc::new(agent().handshake_timeout(Duration::from_secs(2)));
    let connector = trust().connector(&identity(Role::AGENT)).unwrap();
    let dialer = Dialer::new(config, Uuid::new_v4(), Cancel::new());
    let name = Target::Address(Address::tcp("localhost", 1));
    let dial = |servers: &[&TestServer]| {
        let address = |server: &&TestServer| (Target::Address(server.address()), LIMIT);
        dialer.dial_each(&name, servers.iter().map(address).collect(), &connector)
    };
    std::thread::scope(|scope| {
        let admits = scope.spawn(|| (wrong.tls().is_err(), good.session()));
        let dialled = dial(&[&hangs, &wrong, &good]);
        assert!(dialled.is_ok(), "{:?}", dialled.err());
        assert!(admits.join().unwrap().0);
        // If no address serves, the name is not ruled out for one of them.
        let refuses = scope.spawn(|| wrong.tls().is_err());
        let fault = dial(&[&hangs, &wrong]).unwrap_err();
        assert!(fault.may_retry(), "{fault}");
        let words: Vec<_> = fault.each().iter().map(DialFault::word).collect();
        assert_eq!(words, ["timeout", "server_certificate"]);
        assert!(refuses.join().unwrap());
        // The servers behind a name belong together, so one that refuses for good speaks for all.
        let refuses = &decides;
        scope.spawn(move || {
            let mut peer = refuses.connect();
            peer.send_kind(ErrorCode::CONNECTION_ABORTED);
            peer.close();
        });
        let fault = dial(&[refuses, &untried]).unwrap_err();
        assert!(
            matches!(fault, DialFault::Refused(Refusal::PeerAborted)),
            "{fault}"
        );
        assert!(untried.has_no_connection());
    });
}
