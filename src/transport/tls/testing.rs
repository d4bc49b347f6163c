//! For tests: both ends of a connection after its handshake.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::server::UnbufferedServerConnection;

use super::handshake::shake_hands;
use super::receive::Incoming;
use super::session::{Connection, Session};
use super::{Acceptor, Connector};
use crate::Role;
use crate::pki::{Authority, AuthorityRequest, CertificateRequest};
use crate::transport::{BufferPool, Duplex, Halves, Inbox, memory, threads};

/// A server's end in its parts, and its peer.
pub(super) struct Ends {
    pub(super) here: Arc<dyn Duplex>,
    pub(super) session: Session,
    pub(super) incoming: Incoming,
    pub(super) inbox: Inbox,
    /// The peer's raw stream.
    pub(super) there: Arc<dyn Duplex>,
    pub(super) peer: Halves,
}

pub(super) fn ends() -> Ends {
    let authority = Authority::new(&AuthorityRequest::default()).unwrap();
    let identity = |role| {
        authority
            .issue(&CertificateRequest::new(role))
            .unwrap()
            .identity()
    };
    let acceptor = Acceptor::mutual(&identity(Role::SERVER), &authority.trust()).unwrap();
    let connector = Connector::mutual(&identity(Role::AGENT), &authority.trust()).unwrap();
    #[expect(clippy::disallowed_methods, reason = "a deadline")]
    let deadline = Instant::now() + Duration::from_secs(20);
    let (here, there) = memory::pair();
    let there: Arc<dyn Duplex> = Arc::new(there);
    let far = Arc::clone(&there);
    let peer = threads::spawn("peer", move || {
        connector.connect(far, "localhost", &BufferPool::new(), deadline)
    });
    let connection = Connection::Server(UnbufferedServerConnection::new(acceptor.config).unwrap());
    let (session, incoming, inbox) = shake_hands(&here, connection, &BufferPool::new(), deadline).unwrap();
    Ends {
        here: Arc::new(here),
        session,
        incoming,
        inbox,
        there,
        peer: peer.unwrap().join().unwrap().unwrap().halves,
    }
}
