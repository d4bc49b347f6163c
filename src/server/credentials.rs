//! The credentials of a server, one generation after the other.

use std::time::SystemTime;

use ssntp_pki::{CertificateDer, CertificateInfo, Identity, Trust};
use ssntp_transport::tls::Acceptor;

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

impl ActiveCredentials {
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
