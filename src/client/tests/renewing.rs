//! Identity and trust are replaced while the client runs.

use super::*;
use crate::proto::{Exchange, FrameKind, FrameType, Operands, Step, content};
use ssntp_pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Role, Trust};

const LONG: Duration = Duration::from_secs(600);
const SCALE: FrameKind = FrameKind::new(FrameType::COMMAND, 200);

pub(super) fn another_authority() -> Authority {
    Authority::new(&AuthorityRequest::default().name("another")).unwrap()
}

pub(super) fn of(authority: &Authority, role: Role) -> Identity {
    authority
        .issue(&CertificateRequest::new(role))
        .unwrap()
        .identity()
}

/// Trust in the tests' authority and another one.
fn both(other: &Authority) -> Trust {
    let authorities = [authority().info().der.clone(), other.info().der.clone()];
    Trust::from_der(&authorities).unwrap()
}

fn at_once_renewed(config: ClientConfig) -> ClientConfig {
    config.renewal_spread(Duration::ZERO)
}

#[test]
fn a_renewed_client_replaces_its_session_and_loses_nothing() {
    let (client, mut old, server) = pair(at_once_renewed);
    let newer = identity(Role::AGENT);
    (0..100).for_each(|n| client.send(stats(n)).unwrap());
    client.renew(&newer, &trust()).unwrap();
    for n in 0..100 {
        assert_eq!(number(&old.recv()), n);
    }
    old.expect_end();
    // Frames that the server still sends are received; frames that the client sends wait.
    client.try_send(stats(100)).unwrap();
    old.send(&stats(7));
    assert!(
        server.has_no_connection(),
        "the frame waits for the end of the old session"
    );
    old.close();
    assert_eq!(number(&next_frame(&client)), 7);
    assert_eq!(disconnected(&client), (SessionEnd::Renewed, true));
    client.send(stats(101)).unwrap();
    let mut new = server.session();
    assert_eq!(new.hello().source, client.uuid());
    connected(&client);
    client.send(stats(102)).unwrap();
    for n in 100..103 {
        assert_eq!(number(&new.recv()), n);
    }
    assert_eq!(client.handle().identity().chain(), newer.chain());
    let counters = client.counters();
    assert_eq!(
        (counters.sessions, counters.lost_frames, counters.failed_attempts),
        (2, 0, 0)
    );
}

#[test]
fn the_session_stays_until_the_time_of_its_replacement() {
    let (client, mut peer, server) = pair(|config| config.renewal_spread(LONG));
    let older = client.handle().identity();
    client.renew(&identity(Role::AGENT), &trust()).unwrap();
    client.send(stats(1)).unwrap();
    assert_eq!(number(&peer.recv()), 1);
    assert_eq!(
        client.handle().identity().chain(),
        older.chain(),
        "the first session is still in use"
    );
    // The session is lost before its replacement, and the next one has the new certificate.
    peer.cut();
    disconnected(&client);
    let _peer = server.session();
    connected(&client);
    assert_ne!(client.handle().identity().chain(), older.chain());
}

#[test]
fn a_session_is_replaced_before_the_old_certificate_expires() {
    let day = Duration::from_secs(86_400);
    let began = std::time::SystemTime::now() + Duration::from_secs(40) - day;
    let request = CertificateRequest::new(Role::AGENT).days(1).valid_from(began);
    let soon_over = authority().issue(&request).unwrap().identity();
    let (server, listener) = TestServer::memory();
    let config = agent_as(soon_over).connect_in_memory(&listener);
    let client = Client::start(config.renewal_spread(LONG)).unwrap();
    let mut peer = server.session();
    connected(&client);
    client.renew(&identity(Role::AGENT), &trust()).unwrap();
    peer.expect_end();
    peer.close();
    let _peer = server.session();
}

#[test]
fn a_session_stays_if_only_the_trust_changes_and_still_holds_the_server() {
    let (client, mut peer, server) = pair(at_once_renewed);
    let same = client.handle().identity();
    client.renew(&same, &both(&another_authority())).unwrap();
    for n in 0..3 {
        client.send(stats(n)).unwrap();
        assert_eq!(number(&peer.recv()), n);
        peer.send(&stats(n));
        assert_eq!(number(&next_frame(&client)), n);
    }
    assert!(server.has_no_connection());
}

#[test]
fn a_session_ends_at_once_if_its_server_is_no_longer_trusted() {
    let (client, peer, mut server) = pair(|config| config);
    let other = another_authority();
    client.renew(&of(&other, Role::AGENT), &other.trust()).unwrap();
    match disconnected(&client) {
        (SessionEnd::Certificate(why), true) => assert!(why.contains("no authority"), "{why}"),
        other => panic!("{other:?}"),
    }
    drop(peer);
    // The server is tried again, because it was accepted before.
    assert!(server.tls().is_err());
    assert!(server.tls().is_err());
    server.renew(&of(&other, Role::SERVER), &other.trust());
    let _peer = server.session();
    connected(&client);
}

#[test]
fn credentials_that_do_not_fit_change_nothing() {
    let bound = Uuid::from_u128(9);
    let request = CertificateRequest::new(Role::AGENT).uuid(bound);
    let borrowed = authority().issue(&request).unwrap().identity();
    let (client, mut peer, server) = pair(at_once_renewed);
    let before = client.handle().identity();
    let refused = client.renew(&identity(Role::CONTROLLER), &trust());
    assert!(matches!(refused, Err(ClientError::Role { .. })), "{refused:?}");
    let refused = client.renew(&borrowed, &trust());
    assert!(
        matches!(refused, Err(ClientError::BorrowedUuid { bound: of, .. }) if of == bound),
        "{refused:?}"
    );
    client.send(stats(1)).unwrap();
    assert_eq!(number(&peer.recv()), 1);
    assert_eq!(client.handle().identity().chain(), before.chain());
    assert!(server.has_no_connection());
    client.close();
    let refused = client.renew(&before, &trust());
    assert!(matches!(refused, Err(ClientError::Closed)), "{refused:?}");
}

#[test]
fn the_old_certificate_is_used_if_the_server_refuses_the_new_one() {
    let (client, mut peer, mut server) = pair(at_once_renewed);
    let older = client.handle().identity();
    let other = another_authority();
    let newer = of(&other, Role::AGENT);
    client.renew(&newer, &both(&other)).unwrap();
    peer.expect_end();
    client.send(stats(1)).unwrap();
    peer.close();
    assert_eq!(disconnected(&client).0, SessionEnd::Renewed);
    assert!(
        server.tls().is_err(),
        "the server does not trust the new authority"
    );
    let mut peer = server.session();
    connected(&client);
    assert_eq!(number(&peer.recv()), 1, "the frames that were sent meanwhile");
    assert_eq!(client.handle().identity().chain(), older.chain());
    // Once the server knows the authority, the next attempt has the new one.
    server.renew(&identity(Role::SERVER), &both(&other));
    peer.cut();
    disconnected(&client);
    let _peer = server.session();
    connected(&client);
    assert_eq!(client.handle().identity().chain(), newer.chain());
}

#[test]
fn a_renewal_cuts_a_pause_short_and_tries_servers_that_were_ruled_out() {
    let other = another_authority();
    let ruled_out = TestServer::tcp_as(&of(&other, Role::SERVER), &other.trust());
    let unused = TestServer::tcp().address();
    let backoff = Backoff {
        initial: LONG,
        cap: LONG,
    };
    let config = agent().backoff(backoff).addresses([ruled_out.address(), unused]);
    let client = Client::start(config).unwrap();
    assert!(ruled_out.tls().is_err());
    while client.counters().failed_attempts < 2 {
        std::thread::yield_now();
    }
    client.renew(&of(&other, Role::AGENT), &other.trust()).unwrap();
    let _peer = ruled_out.session();
    connected(&client);
}

#[test]
fn open_requests_are_answered_and_new_ones_wait_for_the_next_session() {
    let operands = Operands::new().request(SCALE, "SCALE").unwrap();
    let (client, mut old, server) = pair(|config| at_once_renewed(config).operands(operands.clone()));
    old.operands(&operands);
    let ask = |handle: ClientHandle, word: &'static str| {
        let ask = move || handle.request(Frame::with_payload(SCALE, word), LIMIT);
        threads::spawn("asks", ask).unwrap()
    };
    let answer = |peer: &mut Peer| {
        let asked = peer.recv();
        let exchange = Exchange::read(asked.payload_bytes()).unwrap();
        let reply = Exchange {
            step: Step::Reply,
            ..exchange
        };
        reply.frame(&Frame::with_payload(SCALE, content(&asked)))
    };
    let first = ask(client.handle(), "first");
    let reply = answer(&mut old);
    client.renew(&identity(Role::AGENT), &trust()).unwrap();
    while !client.handle().state().uplink.defers_requests() {
        std::thread::yield_now();
    }
    let second = ask(client.handle(), "second");
    client.send(stats(1)).unwrap();
    assert_eq!(number(&old.recv()), 1, "the session stays until the answer");
    old.send(&reply);
    assert_eq!(first.join().unwrap().unwrap().payload_bytes()[..], *b"first");
    old.expect_end();
    old.close();
    let mut new = server.session();
    new.operands(&operands);
    let reply = answer(&mut new);
    new.send(&reply);
    assert_eq!(second.join().unwrap().unwrap().payload_bytes()[..], *b"second");
}

#[test]
fn a_request_that_waits_for_room_is_sent_on_the_next_session_alone() {
    let operands = Operands::new().request(SCALE, "SCALE").unwrap();
    let few = ssntp_transport::Limits {
        frames: 2,
        bytes: u64::MAX,
    };
    let config = |config| at_once_renewed(config).operands(operands.clone()).queue(few);
    let (client, mut old, server) = pair(config);
    old.operands(&operands);
    let long = Frame::with_payload(Command::STATS, vec![0; 300_000]);
    let mut sent = 0;
    while client.try_send(long.clone()).is_ok() {
        sent += 1;
    }
    let handle = client.handle();
    let ask = move || handle.request(Frame::with_payload(SCALE, "?"), LIMIT);
    let asking = threads::spawn("asks", ask).unwrap();
    client.renew(&identity(Role::AGENT), &trust()).unwrap();
    while !client.handle().state().uplink.defers_requests() {
        std::thread::yield_now();
    }
    (0..sent).for_each(|_| assert_eq!(old.recv().kind(), Command::STATS));
    old.expect_end();
    old.close();
    let mut new = server.session();
    new.operands(&operands);
    let asked = new.recv();
    let reply = Exchange {
        step: Step::Reply,
        ..Exchange::read(asked.payload_bytes()).unwrap()
    };
    new.send(&reply.frame(&Frame::with_payload(SCALE, content(&asked))));
    assert_eq!(asking.join().unwrap().unwrap().payload_bytes()[..], *b"?");
}

#[test]
fn after_a_long_gap_frames_are_refused_as_without_a_session() {
    let server = TestServer::tcp();
    let config = agent().address(server.address()).attempts(1);
    let client = Client::start(at_once_renewed(config)).unwrap();
    let mut peer = server.session();
    connected(&client);
    client.renew(&identity(Role::AGENT), &trust()).unwrap();
    peer.expect_end();
    client.send(stats(1)).unwrap();
    // The server no longer listens.
    drop(server);
    peer.close();
    assert_eq!(disconnected(&client).0, SessionEnd::Renewed);
    assert!(matches!(closed(&client), ClientError::GaveUp { attempts: 1, .. }));
    assert_eq!(client.counters().lost_frames, 1);
}

#[test]
fn closing_does_not_wait_for_a_server_that_does_not_end_the_old_session() {
    let (client, mut peer, _server) = pair(at_once_renewed);
    client.renew(&identity(Role::AGENT), &trust()).unwrap();
    peer.expect_end();
    client.send(stats(1)).unwrap();
    at_once(|| client.close());
    assert_eq!(disconnected(&client), (SessionEnd::Closed, false));
    assert!(matches!(closed(&client), ClientError::Closed));
    assert_eq!(client.counters().lost_frames, 1);
}
