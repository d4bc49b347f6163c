//! Certificates, authorities and revocation lists that change while a server runs, and the effect on
//! existing sessions and newcomers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime};

use crate::revocation::{Lister, issued, issuing};
use ssntp::Role;
use ssntp::client::{Client, ClientConfig, ClientEvent};
use ssntp::pki::{Authority, AuthorityRequest, CertificateInfo, CertificateRequest, Identity, Trust};
use ssntp::proto::{Command, Connect, ErrorCode, Frame};
use ssntp::server::{
    Context, DisconnectReason, Handler, Rules, Server, ServerConfig, ServerError, SessionInfo,
};
use ssntp::transport::memory::MemoryListener;
use ssntp_test_support::*;
use uuid::Uuid;

/// Sends the reasons for the end of sessions to the test.
struct Ends(Sender<DisconnectReason>);

impl Handler for Ends {
    fn disconnected(&mut self, _: &mut Context<'_>, _: &SessionInfo, reason: &DisconnectReason) {
        let _ = self.0.send(reason.clone());
    }
}

fn ends() -> (Ends, Receiver<DisconnectReason>) {
    let (sender, receiver) = channel();
    (Ends(sender), receiver)
}

fn why(ends: &Receiver<DisconnectReason>) -> String {
    match ends.recv_timeout(LIMIT).expect("no session ended") {
        DisconnectReason::Certificate(why) => why,
        other => panic!("{other}"),
    }
}

/// A server with this trust that sends STATS to controllers.
fn server_of(trust: &Trust, handler: impl Handler) -> TestServer {
    let listener = MemoryListener::new();
    let config = ServerConfig::new(identity(Role::SERVER), trust.clone())
        .rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER))
        .listen_in_memory(&listener);
    TestServer {
        server: Some(Server::start(config, handler).unwrap()),
        listener,
    }
}

fn without(revoked: &[&Identity]) -> Trust {
    let revoked: Vec<&CertificateInfo> = revoked.iter().map(|identity| identity.info()).collect();
    let list = Lister::of(authority()).list(&revoked);
    trust().with_revocation_lists(&list).unwrap()
}

fn stats(payload: &'static str) -> Frame {
    Frame::with_payload(Command::STATS, payload)
}

/// Checks that a session ends with ConnectionFailure, after which a client tries again.
fn expect_connection_failure(peer: &mut Peer) {
    assert_eq!(peer.frame(), Frame::new(ErrorCode::CONNECTION_FAILURE));
    peer.end();
}

#[test]
fn a_revoked_certificate_ends_only_its_own_sessions() {
    let (handler, received_ends) = ends();
    let server = server_of(&trust(), handler);
    let mut controller = server.connect(Role::CONTROLLER);
    let [revoked, kept] = [(); 2].map(|()| identity(Role::AGENT));
    // One certificate may have several sessions.
    let mut out = [(); 2].map(|()| server.connect_as(&revoked, Role::AGENT, Uuid::new_v4()));
    let mut agent = server.connect_as(&kept, Role::AGENT, Uuid::new_v4());
    assert_eq!(server.renew(&without(&[])), (4, 0));
    server.handle().multicast(Role::AGENT, stats("before")).unwrap();
    assert_eq!(server.renew(&without(&[&revoked])), (4, 2));
    for peer in &mut out {
        assert_eq!(peer.frame(), stats("before"), "the waiting frames are sent");
        expect_connection_failure(peer);
        assert_eq!(why(&received_ends), "the certificate is revoked");
    }
    agent.send(&stats("after"));
    assert_eq!(controller.frame(), stats("after"));
    assert_eq!(agent.frame(), stats("before"));
    // The tests of handshakes check the alert that the client gets.
    let mut again = server.dial(&revoked);
    let _ = again.try_send_bytes(&Connect::new(Role::AGENT, Uuid::new_v4(), false).encode());
    assert_eq!(again.refusal(), None);
    assert_eq!(server.renew(&without(&[&revoked])), (2, 0));
}

#[test]
fn sessions_of_an_authority_that_is_no_longer_trusted_end() {
    let old = Authority::new(&AuthorityRequest::default().name("old")).unwrap();
    let both = [authority().certificate_pem(), old.certificate_pem()].concat();
    let (handler, received_ends) = ends();
    let server = server_of(&Trust::from_pem(both.as_bytes(), "both").unwrap(), handler);
    let of_old = old
        .issue(&CertificateRequest::new(Role::AGENT))
        .unwrap()
        .identity();
    let mut left = server.connect_as(&of_old, Role::AGENT, Uuid::new_v4());
    let mut moved = server.connect(Role::CONTROLLER);
    assert_eq!(server.renew(&trust()), (2, 1));
    expect_connection_failure(&mut left);
    assert_eq!(
        why(&received_ends),
        "the certificate comes from no authority that is trusted here"
    );
    server
        .handle()
        .multicast(Role::ALL, stats("still there"))
        .unwrap();
    assert_eq!(moved.frame(), stats("still there"));
}

#[test]
fn a_handshake_during_a_renewal_is_verified_by_the_new_trust() {
    let server = server_of(&trust(), ());
    let [revoked, kept] = [(); 2].map(|()| identity(Role::AGENT));
    // Their TLS handshakes are made, or under way, with the old trust.
    let mut peers = [&revoked, &kept].map(|identity| server.dial(identity));
    assert_eq!(server.renew(&without(&[&revoked])), (0, 0));
    let [out, in_time] = &mut peers;
    out.send_bytes(&Connect::new(Role::AGENT, Uuid::new_v4(), false).encode());
    assert_eq!(out.refusal(), Some(ErrorCode::CONNECTION_FAILURE.into()));
    in_time.handshake(Role::AGENT, Uuid::new_v4(), false);
}

#[test]
fn a_ticket_is_valid_only_under_the_trust_it_was_made_under() {
    let server = server_of(&trust(), ());
    let agent = trust()
        .connector(&identity(Role::AGENT))
        .unwrap()
        .resumption(true);
    let resumed = || {
        let mut peer = server.dial_with(&agent);
        peer.handshake(Role::AGENT, Uuid::new_v4(), false);
        peer.resumed
    };
    assert!(!resumed() && resumed());
    for trust in [trust(), without(&[]), without(&[&identity(Role::AGENT)])] {
        server.renew(&trust);
        assert!(!resumed(), "the handshake was made before");
        assert!(resumed());
    }
}

#[test]
fn a_chain_is_verified_with_the_intermediates_of_its_holder() {
    let root = issuing("root", None, &[]);
    let [between, other] = ["between", "other"].map(|name| issuing(name, Some(&root), &[]));
    let both = [root.der.clone(), authority().info().der.clone()];
    let trust = Trust::from_der(&both).unwrap();
    let (handler, received_ends) = ends();
    let server = server_of(&trust, handler);
    let mut peers = [&between, &between, &other]
        .map(|above| server.connect_as(&issued(above), Role::AGENT, Uuid::new_v4()));
    assert_eq!(server.renew(&trust), (3, 0));
    let info = CertificateInfo::from_der(&between.der).unwrap();
    let list = root.lister.list(&[&info]);
    assert_eq!(server.renew(&trust.with_revocation_lists(&list).unwrap()), (3, 2));
    for peer in &mut peers[..2] {
        expect_connection_failure(peer);
        assert_eq!(why(&received_ends), "the certificate is revoked");
    }
    server
        .handle()
        .multicast(Role::ALL, stats("still there"))
        .unwrap();
    assert_eq!(peers[2].frame(), stats("still there"));
}

/// A session with a certificate that is valid for some seconds, and the time of its expiry.
fn short_session(server: &TestServer) -> (Identity, Peer, SystemTime) {
    let mut valid = Duration::from_secs(3);
    loop {
        let over = SystemTime::now() + valid;
        let from = over - Duration::from_secs(86_400);
        let request = CertificateRequest::new(Role::AGENT).valid_from(from).days(1);
        let agent = authority().issue(&request).unwrap().identity();
        let mut peer = server.dial(&agent);
        let connect = Connect::new(Role::AGENT, Uuid::new_v4(), false).encode();
        if peer.try_send_bytes(&connect).is_ok() && peer.next_is_connected() {
            peer.connected();
            return (agent, peer, over);
        }
        // On a busy machine the certificate may expire first.
        valid *= 2;
        assert!(valid < LIMIT, "no session before the certificate expires");
    }
}

#[test]
fn a_session_ends_with_its_certificate_unless_it_may_outlive_it() {
    let (handler, received_ends) = ends();
    let strict = TestServer::start(handler, |c| c);
    let (handler, of_lenient) = ends();
    let lenient = TestServer::start(handler, |c| c.outlive_certificates(true));
    let (agent, mut long, over) = short_session(&lenient);
    let (_, mut short, _) = short_session(&strict);
    expect_connection_failure(&mut short);
    assert!(why(&received_ends).starts_with("the certificate expired at "));
    while let Ok(left) = over.duration_since(SystemTime::now()) {
        std::thread::sleep(left + Duration::from_secs(1));
    }
    assert_eq!(
        lenient.renew(&trust()),
        (1, 0),
        "the certificate has expired, and the session may outlive it"
    );
    lenient
        .handle()
        .multicast(Role::ALL, stats("still there"))
        .unwrap();
    assert_eq!(long.frame(), stats("still there"));
    assert_eq!(
        lenient.renew(&without(&[&agent])),
        (1, 1),
        "the certificate is revoked, and the session may not outlive that"
    );
    expect_connection_failure(&mut long);
    assert_eq!(why(&of_lenient), "the certificate is revoked");
}

#[test]
fn credentials_are_readable_and_an_invalid_renewal_changes_nothing() {
    let server = TestServer::start((), |c| c);
    let (handle, server) = (server.handle(), server.server.as_ref().unwrap());
    let mut before = server.credentials();
    assert_eq!(before.renewals, 0);
    let own = identity(Role::SERVER);
    server.renew(&own, &without(&[])).unwrap();
    let now = handle.credentials();
    assert_eq!((now.renewals, now.identity.info()), (1, own.info()));
    assert_eq!(now.trust.revocation_lists().len(), 1);
    assert!((360..=365).contains(&own.info().days_left(SystemTime::now())));
    let bound = bound_identity(Role::SERVER, Uuid::new_v4());
    for (wrong, refused) in [
        (identity(Role::AGENT), "role"),
        (bound, "the certificate is bound to the UUID"),
    ] {
        let error = server.renew(&wrong, &trust()).unwrap_err();
        assert!(error.to_string().contains(refused), "{error}");
    }
    before = server.credentials();
    assert_eq!((before.renewals, before.identity.info()), (1, own.info()));
}

#[test]
fn a_renewal_in_a_handler_is_refused() {
    let mut server = TestServer::start((), |c| c);
    let handle = server.handle();
    let shared = Arc::new(server.server.take().unwrap());
    let renewing = Arc::clone(&shared);
    let refused = handle.with(move |_| renewing.renew(&identity(Role::SERVER), &trust()).err());
    assert!(matches!(refused, Ok(Some(ServerError::OnDispatcher))));
    assert_eq!(shared.credentials().renewals, 0);
}

#[test]
fn a_client_with_a_revoked_certificate_stays_away() {
    let server = TestServer::start((), |c| c);
    let agent = identity(Role::AGENT);
    let config = ClientConfig::new(agent.clone(), trust()).connect_in_memory(&server.listener);
    let client = Client::connect(config).unwrap();
    assert_eq!(server.renew(&without(&[&agent])), (1, 1));
    let refusal = loop {
        match client.recv_timeout(LIMIT).unwrap() {
            ClientEvent::Disconnected { reason, retrying } => {
                let reason = reason.to_string();
                assert!(reason.contains("certificate is no longer valid"), "{reason}");
                assert!(
                    retrying,
                    "the client tries again, because it may have a new certificate"
                );
            }
            ClientEvent::Closed(why) => break why.to_string(),
            _ => {}
        }
    };
    assert!(
        refusal.contains("it is revoked (CertificateRevoked)"),
        "{refusal}"
    );
}

#[test]
fn a_renewal_with_an_older_list_is_refused_and_changes_nothing() {
    let server = TestServer::start((), |c| c);
    let agent = identity(Role::AGENT);
    server.renew(&without(&[&agent]));
    let older = Lister::of(authority()).numbered(6, 2019);
    let older = trust().with_revocation_lists(&older).unwrap();
    let own = server.server.as_ref().unwrap().credentials().identity;
    let refused = server.server.as_ref().unwrap().renew(&own, &older).unwrap_err();
    assert!(
        refused.to_string().contains("older than the one in force"),
        "{refused}"
    );
    assert_eq!(server.server.as_ref().unwrap().credentials().renewals, 1);

    let config = ClientConfig::new(identity(Role::AGENT), without(&[&agent]));
    let client = Client::start(config.connect_in_memory(&server.listener)).unwrap();
    let refused = client.renew(&identity(Role::AGENT), &older).unwrap_err();
    assert!(
        refused.to_string().contains("older than the one in force"),
        "{refused}"
    );
}

#[test]
fn no_client_that_reconnects_slips_through_a_renewal() {
    let server = TestServer::start((), |c| c);
    let revoked = identity(Role::AGENT);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let uuid = Uuid::new_v4();
                let connect = Connect::new(Role::AGENT, uuid, false).encode();
                while !over.load(Ordering::Relaxed) {
                    let mut peer = server.dial(&revoked);
                    let _ = peer.try_send_bytes(&connect);
                    peer.next_is_connected();
                }
            });
        }
        for _ in 0..20 {
            server.renew(&without(&[&revoked]));
            for _ in 0..20 {
                let sessions = server.handle().sessions().unwrap();
                if !sessions.is_empty() {
                    over.store(true, Ordering::Relaxed);
                }
                assert!(sessions.is_empty(), "{sessions:?}");
            }
            server.renew(&trust());
            while server.handle().sessions().unwrap().is_empty() {
                std::thread::yield_now();
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}
