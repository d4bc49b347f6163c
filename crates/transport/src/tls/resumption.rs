//! Session resumption: a returning client skips signatures, but its certificate is verified again.
//!
//! ```text
//!  client                                          server
//!    full handshake ────────────────────────────▶  both chains are verified
//!    Kept: ticket, server's chain  ◀─ one ticket ─ the secret and the client's
//!                                                  chain, sealed
//!    handshake with the ticket ─────────────────▶  no signature, no certificate
//!    server's chain: verified again                client's chain: verified again
//! ```
//!
//! The server keeps no state for a session: its ticket holds everything, sealed under keys of this
//! acceptor, which rustls's ticketer changes every six hours. So another process, or a new acceptor
//! with another trust, accepts no ticket of this one, and the clients make a full handshake. A
//! client keeps its tickets in memory, in the connector that holds its identity, and uses each
//! once. There is no early data.

use std::sync::Arc;

use rustls::client::{ClientSessionMemoryCache, ClientSessionStore, Resumption, Tls12Resumption};
use rustls::pki_types::ServerName;

/// The number of servers for which a client keeps tickets. The oldest is dropped.
const SERVERS: usize = 8;

/// The tickets that a client holds.
#[derive(Clone, Debug)]
pub(super) struct TicketCache(Arc<ClientSessionMemoryCache>);

impl TicketCache {
    pub(super) fn new() -> Self {
        Self(Arc::new(ClientSessionMemoryCache::new(SERVERS)))
    }

    /// The setting that makes a client use them. Only in TLS 1.3: there each ticket is used once, and
    /// the secrets of later sessions cannot be derived from it.
    pub(super) fn resumption(&self) -> Resumption {
        let store: Arc<dyn ClientSessionStore> = Arc::<ClientSessionMemoryCache>::clone(&self.0);
        Resumption::store(store).tls12_resumption(Tls12Resumption::Disabled)
    }

    /// Drops the tickets of one server, so that the next handshake is a full one.
    pub(super) fn forget(&self, name: &ServerName<'_>) {
        // A server gives several tickets, and there is no other way to drop them.
        while self.0.take_tls13_ticket(&name.to_owned()).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustls::pki_types::UnixTime;
    use rustls::sign::CertifiedKey;

    use super::super::testing::Authority;
    use super::super::{Acceptor, Connector, Secured};
    use super::*;
    use crate::host::threads;
    use crate::socket::memory;
    use crate::stream::{BufferPool, Inbox};

    struct Cloud {
        authority: Authority,
        acceptor: Acceptor,
    }

    impl Cloud {
        fn new() -> Self {
            let authority = Authority::new();
            let acceptor = acceptor(&authority);
            Self { authority, acceptor }
        }

        fn connector(&self, identity: &Arc<CertifiedKey>) -> Connector {
            self.authority.connector(identity).resumption(true)
        }
    }

    fn acceptor(authority: &Authority) -> Acceptor {
        authority.acceptor().resumption(true).unwrap()
    }

    /// A handshake and one byte from the server, with which its ticket came:
    /// the server's view and the client's.
    fn session(acceptor: &Acceptor, connector: &Connector) -> (Secured, Secured) {
        let (local, remote) = memory::pair();
        #[expect(clippy::disallowed_methods, reason = "a deadline")]
        let deadline = Instant::now() + Duration::from_secs(20);
        let connector = connector.clone();
        let client = threads::spawn("client", move || {
            let mut secured = connector
                .connect(Arc::new(remote), "localhost", &BufferPool::new(), deadline)
                .unwrap();
            let mut inbox = Inbox::new(BufferPool::new());
            while inbox.is_empty() {
                secured.halves.receive.receive(&mut inbox).unwrap();
            }
            secured
        });
        let mut secured = acceptor
            .accept(Arc::new(local), &BufferPool::new(), deadline)
            .unwrap();
        let byte = crate::stream::Outgoing::whole(vec![1].into(), 1);
        secured.halves.transmit.transmit(&[byte]).unwrap();
        (secured, client.unwrap().join().unwrap())
    }

    #[test]
    fn a_resumed_session_has_the_same_certificates_as_the_first() {
        let cloud = Cloud::new();
        let connector = cloud.connector(&cloud.authority.identity());
        let (first, first_client) = session(&cloud.acceptor, &connector);
        assert!(!first.resumed && !first_client.resumed);
        for _ in 0..2 {
            let (again, client) = session(&cloud.acceptor, &connector);
            assert!(again.resumed && client.resumed);
            assert_eq!(again.peer, first.peer);
            assert_eq!(client.peer, first_client.peer);
        }
    }

    #[test]
    fn no_identity_resumes_the_session_of_another() {
        let cloud = Cloud::new();
        let [one, another] = [0; 2].map(|_| cloud.authority.identity());
        session(&cloud.acceptor, &cloud.connector(&one));
        let (other, _) = session(&cloud.acceptor, &cloud.connector(&another));
        assert!(!other.resumed);
        assert_eq!(other.peer, another.cert);
    }

    #[test]
    fn a_new_server_or_a_dropped_ticket_means_a_full_handshake() {
        let cloud = Cloud::new();
        let connector = cloud.connector(&cloud.authority.identity());
        session(&cloud.acceptor, &connector);
        assert!(!session(&acceptor(&cloud.authority), &connector).0.resumed);
        session(&cloud.acceptor, &connector);
        connector.forget("localhost");
        assert!(!session(&cloud.acceptor, &connector).0.resumed);
    }

    #[test]
    fn an_acceptor_without_resumption_gives_no_tickets() {
        let mut cloud = Cloud::new();
        cloud.acceptor = cloud.authority.acceptor().resumption(false).unwrap();
        let connector = cloud.connector(&cloud.authority.identity());
        session(&cloud.acceptor, &connector);
        assert!(!session(&cloud.acceptor, &connector).0.resumed);
    }

    #[test]
    fn a_chain_that_has_expired_or_lost_its_authority_does_not_resume() {
        let (cloud, other) = (Cloud::new(), Cloud::new());
        let chain = cloud.authority.identity().cert.clone();
        let check = |acceptor: &Acceptor, at| acceptor.check_again(&chain, at);
        let today = UnixTime::now();
        check(&cloud.acceptor, today).unwrap();
        assert!(
            check(&other.acceptor, today).is_err(),
            "the authority is not trusted any more"
        );
        let centuries = Duration::from_secs(today.as_secs()) + Duration::from_secs(9000 * 365 * 86_400);
        let expired = check(&cloud.acceptor, UnixTime::since_unix_epoch(centuries));
        assert!(
            matches!(expired, Err(rustls::Error::InvalidCertificate(_))),
            "{expired:?}"
        );
        let none = cloud.acceptor.check_again(&[], today);
        assert!(none.is_err(), "a ticket without a certificate");
    }
}
