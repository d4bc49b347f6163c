//! Both ends of a connection after its handshake, for tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::handshake::agree;
use super::receive::Incoming;
use super::split::{self, Opener, Sealer};
use super::{Acceptor, Connector};
use crate::host::threads;
use crate::pki::{Authority, AuthorityRequest, CertificateRequest};
use crate::role::Role;
use crate::socket::{Duplex, memory};
use crate::stream::{BufferPool, Halves, Inbox};

/// A server's end in its parts, and its peer.
pub(super) struct Ends {
    pub(super) here: Arc<dyn Duplex>,
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
    pub(super) incoming: Incoming,
    pub(super) inbox: Inbox,
    /// The peer's raw stream.
    pub(super) there: Arc<dyn Duplex>,
    pub(super) peer: Halves,
}

/// A server's end whose handshake has not begun.
pub(super) fn server() -> (Sealer, Opener) {
    let authority = Authority::new(&AuthorityRequest::default()).unwrap();
    let identity = authority.issue(&CertificateRequest::new(Role::SERVER)).unwrap();
    let acceptor = Acceptor::mutual(&identity.identity(), &authority.trust()).unwrap();
    split::server(acceptor.config).unwrap()
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
    let (local, remote) = memory::pair();
    let there: Arc<dyn Duplex> = Arc::new(remote);
    let far = Arc::clone(&there);
    let peer = threads::spawn("peer", move || {
        connector.connect(far, "localhost", &BufferPool::new(), deadline)
    });
    let (mut sealer, mut opener) = split::server(acceptor.config).unwrap();
    let mut incoming = Incoming::new(BufferPool::new());
    let mut inbox = Inbox::new(BufferPool::new());
    agree(
        &local,
        &mut sealer,
        &mut opener,
        &mut incoming,
        &mut inbox,
        deadline,
    )
    .unwrap();
    Ends {
        here: Arc::new(local),
        sealer,
        opener,
        incoming,
        inbox,
        there,
        peer: peer.unwrap().join().unwrap().unwrap().halves,
    }
}
