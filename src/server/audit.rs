//! Who connected, left, was refused, kicked or banned: a line each in a log target of its own.
//!
//! No limit cuts these lines, and every client can cause some, so they have the level info, which
//! logs do not show unless they are asked to. Refusals, kicks and bans are also in the server's own
//! target, as warnings, which are limited.

use std::fmt;

use ssntp_transport::excerpt;
use ssntp_transport::pki::CertificateInfo;

/// The target of these lines.
pub(super) const AUDIT: &str = "ssntp::audit";

/// A certificate as the lines name it: by its serial number and its subject.
pub(super) struct Named<'a>(pub(super) &'a CertificateInfo);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "serial {}, {}", self.0.serial, excerpt(&self.0.subject))
    }
}
