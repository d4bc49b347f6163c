//! The audit log: one line, in a log target of its own, for each client that connects, leaves, is refused,
//! kicked or banned.
//!
//! These lines are not limited, and every client can cause some, so they have the level info, which logs
//! show only if configured. Refusals, kicks and bans are also warnings in the server's own target, with a
//! limit.

use std::fmt;

use ssntp_pki::CertificateInfo;
use ssntp_transport::excerpt;

/// The target of the audit log.
pub(super) const AUDIT: &str = "ssntp::audit";

/// Shows a certificate by its serial number and its subject.
pub(super) struct Named<'a>(pub(super) &'a CertificateInfo);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "serial {}, {}", self.0.serial, excerpt(&self.0.subject))
    }
}
