//! A client that resumes its TLS session skips only the signatures: its CONNECT is checked against its
//! certificate as in a full handshake.

use std::time::{Duration, SystemTime};

use ssntp::Role;
use ssntp::pki::{CertificateRequest, Identity};
use ssntp::proto::{Command, Connect, ErrorCode, Frame};
use ssntp::server::{Filter, Rules};
use ssntp_test_support::*;
use ssntp_transport::tls::Connector;
use uuid::Uuid;

/// A client that keeps tickets.
fn connector(identity: &Identity) -> Connector {
    trust().connector(identity).unwrap().resumption(true)
}

/// Makes a first session, whose ticket the connector holds when this returns.
fn first(server: &TestServer, connector: &Connector, role: Role, uuid: Uuid) -> Peer {
    let mut peer = server.dial_with(connector);
    assert!(!peer.resumed);
    peer.handshake(role, uuid, false);
    peer
}

/// Makes a further session, which resumes the first one.
fn again(server: &TestServer, connector: &Connector) -> Peer {
    let peer = server.dial_with(connector);
    assert!(peer.resumed);
    peer
}

fn refusal(mut peer: Peer, role: Role, uuid: Uuid) {
    peer.send_bytes(&Connect::new(role, uuid, false).encode());
    assert_eq!(peer.refusal(), Some(ErrorCode::CONNECTION_ABORTED.into()));
}

#[test]
fn a_role_that_the_certificate_lacks_is_refused() {
    let server = TestServer::start((), |c| c);
    let agent = connector(&identity(Role::AGENT));
    let uuid = Uuid::new_v4();
    drop(first(&server, &agent, Role::AGENT, uuid));
    // A ticket is used once; a refused client has got a new one.
    for role in [
        Role::CONTROLLER,
        Role::AGENT | Role::CONTROLLER,
        Role::SERVER,
        Role::from_bits(0),
    ] {
        refusal(again(&server, &agent), role, Uuid::new_v4());
    }
    let mut agent = again(&server, &agent);
    agent.handshake(Role::AGENT, Uuid::new_v4(), false);
}

#[test]
fn the_filter_knows_the_roles_of_a_resumed_session() {
    let server = TestServer::start((), |c| {
        c.filter(Filter::spec())
            .rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER))
    });
    let mut controller = server.connect(Role::CONTROLLER);
    let agent = connector(&identity(Role::AGENT));
    drop(first(&server, &agent, Role::AGENT, Uuid::new_v4()));
    let mut agent = again(&server, &agent);
    agent.handshake(Role::AGENT, Uuid::new_v4(), false);
    agent.send(&Frame::new(Command::START));
    let answer = agent.frame();
    assert_eq!(answer.kind(), ErrorCode::INVALID_FRAME_TYPE);
    agent.send(&Frame::with_payload(Command::STATS, "load: 1\n"));
    assert_eq!(controller.frame().kind(), Command::STATS);
}

#[test]
fn the_uuid_in_the_certificate_is_the_only_one() {
    let server = TestServer::start((), |c| c);
    let bound = Uuid::new_v4();
    let agent = connector(&bound_identity(Role::AGENT, bound));
    drop(first(&server, &agent, Role::AGENT, bound));
    refusal(again(&server, &agent), Role::AGENT, Uuid::new_v4());
    let mut agent = again(&server, &agent);
    agent.handshake(Role::AGENT, bound, false);
}

#[test]
fn the_same_certificate_takes_its_session_over_and_another_does_not() {
    let server = TestServer::start((), |c| c);
    let (agent, other) = (
        connector(&identity(Role::AGENT)),
        connector(&identity(Role::AGENT)),
    );
    let uuid = Uuid::new_v4();
    let mut old = first(&server, &agent, Role::AGENT, uuid);
    drop(first(&server, &other, Role::AGENT, Uuid::new_v4()));
    // Neither is bound to the UUID: the other may try again.
    let mut newcomer = again(&server, &other);
    newcomer.send_bytes(&Connect::new(Role::AGENT, uuid, false).encode());
    assert_eq!(newcomer.refusal(), Some(ErrorCode::CONNECTION_FAILURE.into()));
    let mut new = again(&server, &agent);
    new.handshake(Role::AGENT, uuid, false);
    old.end();
    drop(new);
}

/// A certificate that is valid for this time.
fn short_lived(valid: Duration) -> Identity {
    let day = Duration::from_secs(24 * 60 * 60);
    let from = SystemTime::now() + valid - day;
    let request = CertificateRequest::new(Role::AGENT).valid_from(from).days(1);
    authority().issue(&request).unwrap().identity()
}

#[test]
fn a_certificate_that_has_expired_meanwhile_is_refused() {
    let server = TestServer::start((), |c| c);
    // On a busy machine the certificate may expire before the first session.
    let mut valid = Duration::from_secs(2);
    let (agent, over) = loop {
        let over = SystemTime::now() + valid;
        let agent = connector(&short_lived(valid));
        let mut peer = server.dial_with(&agent);
        let connect = Connect::new(Role::AGENT, Uuid::new_v4(), false).encode();
        if peer.try_send_bytes(&connect).is_ok() && peer.next_is_connected() {
            break (agent, over);
        }
        valid *= 2;
        assert!(valid < LIMIT, "no session before the certificate expires");
    };
    while let Ok(left) = over.duration_since(SystemTime::now()) {
        std::thread::sleep(left + Duration::from_secs(1));
    }
    // The client counted it as resumed: the server has verified the certificate again.
    let mut late = again(&server, &agent);
    let connect = Connect::new(Role::AGENT, Uuid::new_v4(), false).encode();
    let _ = late.try_send_bytes(&connect);
    assert_eq!(late.refusal(), None);
}

#[test]
fn a_server_without_resumption_gives_no_tickets() {
    let server = TestServer::start((), |c| c.resumption(false));
    let agent = connector(&identity(Role::AGENT));
    for _ in 0..2 {
        drop(first(&server, &agent, Role::AGENT, Uuid::new_v4()));
    }
}
