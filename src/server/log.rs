//! The log of a server: the audit log, and the lines that clients and other servers can cause.
//!
//! The audit log has one line, in a log target of its own, for each client that connects, leaves, is refused,
//! kicked or banned. These lines are not limited, and every client can cause some, so they have the level
//! info, which logs show only if configured. Refusals, kicks and bans are also warnings in the server's own
//! target, where each kind of line is limited for each UUID.

use std::fmt;
use std::time::Instant;

use log::{Level, log};
use uuid::Uuid;

use super::sessions::SessionInfo;
use ssntp_pki::CertificateInfo;
use ssntp_transport::{LogLimit, More, excerpt};

/// The target of the audit log.
pub(super) const AUDIT: &str = "ssntp::audit";

/// Shows a certificate by its serial number and its subject.
pub(super) struct Named<'a>(pub(super) &'a CertificateInfo);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "serial {}, {}", self.0.serial, excerpt(&self.0.subject))
    }
}

/// The log of a server, and the lines that each UUID has caused.
#[derive(Debug, Default)]
pub(super) struct Log(LogLimit<Uuid>);

impl Log {
    /// Writes a line that a session has caused, unless there were too many of its kind.
    pub(super) fn of_session(
        &mut self,
        level: Level,
        (session, kind): (&SessionInfo, &'static str),
        now: Instant,
        line: fmt::Arguments<'_>,
    ) {
        let more = self.0.admit_of(session.uuid, &session.certificate, kind, now);
        write(level, line, more);
    }

    /// Writes a line about a server, or about the application (nil), unless there were too many of its
    /// kind.
    pub(super) fn of_uuid(
        &mut self,
        level: Level,
        (uuid, kind): (Uuid, &'static str),
        now: Instant,
        line: fmt::Arguments<'_>,
    ) {
        let more = self.0.admit(uuid, kind, now);
        write(level, line, more);
    }
}

/// `more` counts the lines that were left out before.
fn write(level: Level, line: fmt::Arguments<'_>, more: Option<More>) {
    if let Some(more) = more {
        log!(target: "ssntp::server", level, "{line}{more}");
    }
}
