//! The credentials of a server, one generation after the other.

use std::sync::Arc;
use std::time::SystemTime;

use super::links::{LINK_PROTOCOL, SESSION_PROTOCOL};
use crate::wire::JOIN_PROTOCOL;
use ssntp_pki::{CertificateDer, CertificateInfo, Identity, Trust};
use ssntp_transport::tls::{Acceptor, TlsError};

/// The identity and the trust of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Credentials {
    /// The server's own certificate and key, see [`Identity::info`].
    pub identity: Identity,
    /// The trusted authorities and their revocation lists.
    pub trust: Trust,
    /// The number of renewals since the server started.
    pub renewals: u64,
}

/// The credentials of one generation, ready for handshakes.
#[derive(Debug)]
pub(super) struct ActiveCredentials {
    pub(super) acceptor: Acceptor,
    pub(super) credentials: Credentials,
    /// True if sessions continue after their certificates have expired.
    pub(super) outlive: bool,
}

/// How a server uses its credentials, whichever they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct TlsSettings {
    /// True if the server takes links.
    pub(super) links: bool,
    /// True if it lets nodes join.
    pub(super) joins: bool,
    pub(super) resumption: bool,
    pub(super) outlive: bool,
}

impl ActiveCredentials {
    /// Credentials of the first generation. A server without links uses no ALPN, so clients that offer any protocol
    /// can connect.
    pub(super) fn new(identity: &Identity, trust: &Trust, tls: TlsSettings) -> Result<Self, TlsError> {
        let mut acceptor = trust.acceptor(identity)?.resumption(tls.resumption)?;
        if tls.links {
            acceptor = acceptor.protocols(&[LINK_PROTOCOL, SESSION_PROTOCOL]);
        }
        if tls.joins {
            acceptor = acceptor.unproven(JOIN_PROTOCOL, Arc::new(trust.rooted(identity)))?;
        }
        Ok(Self {
            acceptor,
            credentials: Credentials {
                identity: identity.clone(),
                trust: trust.clone(),
                renewals: 0,
            },
            outlive: tls.outlive,
        })
    }

    pub(super) fn generation(&self) -> u64 {
        self.credentials.renewals
    }

    /// The reason for which a client with this chain would be refused now, or `None`. `leaf` is the
    /// client's own certificate. A certificate that is not valid *yet* is no reason: this host's clock
    /// was set back, or is not set yet.
    pub(super) fn objection(
        &self,
        chain: &[CertificateDer<'_>],
        leaf: &CertificateInfo,
        now: SystemTime,
    ) -> Option<String> {
        let at = now.max(leaf.not_before);
        let at = if self.outlive { at.min(leaf.not_after) } else { at };
        self.acceptor.objection(chain, at)
    }
}
