//! The faults of a peer on a session, and the refusals of a handshake.

use std::time::Duration;

use uuid::Uuid;

use super::{ErrorCode, FrameKind};
use ssntp_pki::Role;

/// The peer broke the protocol on an established session, which is closed without an answer
/// (docs/protocol.md, "Frames").
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A major version that this crate does not support.
    #[error("frame with major version {0}, not 0")]
    Version(u8),
    /// A payload length over the receiver's limit. None of it was buffered.
    #[error("{kind} announces a payload of {announced} bytes, the limit is {limit}")]
    PayloadTooLong {
        /// The kind of the frame.
        kind: FrameKind,
        /// The length in the header, in bytes.
        announced: u32,
        /// The receiver's limit, in bytes.
        limit: u32,
    },
    /// CONNECT or CONNECTED after the handshake.
    #[error("{0} on an established session")]
    HandshakeFrame(FrameKind),
    /// A trace block on a session that did not agree on tracing.
    #[error("{0} carries a trace block that was not agreed on")]
    TraceNotAgreed(FrameKind),
    /// A trace block that announces more bytes than a whole payload may have.
    #[error("trace block announces {0} bytes")]
    TraceTooLong(u32),
}

/// The reason why a handshake ended without a session: one row of the tables in docs/protocol.md,
/// "Handshake".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The first frame of a client is not CONNECT. The connection is closed without an answer.
    #[error("the first frame is {0}, not CONNECT")]
    NotConnect(FrameKind),
    /// A major version that this crate does not support.
    #[error("major version {0}, not 0")]
    Version(u8),
    /// A CONNECT with the nil UUID as its source.
    #[error("CONNECT from the nil UUID")]
    NilSource,
    /// A CONNECT whose destination is not the nil UUID.
    #[error("CONNECT to {0}, not to the nil UUID")]
    Destination(Uuid),
    /// Advertised roles that the certificate does not hold, or none, or
    /// unknown ones.
    #[error("role {advertised} is advertised, the certificate holds {certified}")]
    Role {
        /// The roles that the peer advertised.
        advertised: Role,
        /// The roles that its certificate holds.
        certified: Role,
    },
    /// The server has neither the role SERVER nor SCHEDULER.
    #[error("the peer's role is {0}, neither server nor scheduler")]
    NotAServer(Role),
    /// A certificate bound to another UUID.
    #[error("UUID {claimed} is claimed, the certificate is bound to {bound}")]
    BorrowedUuid {
        /// The UUID that the peer claims.
        claimed: Uuid,
        /// The UUID that its certificate is bound to.
        bound: Uuid,
    },
    /// The server's own UUID, which no client may have.
    #[error("UUID {0} is the server's own")]
    OwnUuid(Uuid),
    /// A certificate that is bound to no UUID, at a server that requires it.
    #[error("the certificate is bound to no UUID, and this server requires it")]
    UnboundCertificate,
    /// The UUID is connected with a certificate that is bound to it, and the newcomer's certificate
    /// is not: the newcomer may use the UUID only while its owner is not connected.
    #[error("UUID {0} is connected with a certificate that is bound to it, this one is not")]
    UuidOwned(Uuid),
    /// The UUID is connected with another certificate, and neither certificate is bound to it. The
    /// server cannot determine the owner, so the present session stays.
    #[error("UUID {0} is connected with another certificate, and neither is bound to it")]
    UuidInUse(Uuid),
    /// The UUID is connected with a certificate that is bound to it as the newcomer's is, but issued
    /// by another authority. The present session stays.
    #[error("UUID {0} is connected with a certificate bound to it by another authority")]
    OtherAuthority(Uuid),
    /// An operator has banned the client's UUID. The value is the time that is left.
    #[error("an operator has banned it, for another {} s", .0.as_secs())]
    Banned(Duration),
    /// The server has reached its limit of sessions.
    #[error("the server has {0} sessions, as many as it may (max_sessions)")]
    SessionLimit(usize),
    /// The certificate has reached the limit of sessions for one certificate.
    #[error("the certificate has {0} sessions, as many as one may (sessions_per_certificate)")]
    CertificateLimit(usize),
    /// The server is busy or is shutting down.
    #[error("{0}")]
    Busy(&'static str),
    /// The server's application refuses this client.
    #[error("the application refuses it: {reason}")]
    Unwanted {
        /// True if the client may try again.
        for_now: bool,
        /// The reason for the server's log. The peer only receives the code.
        reason: String,
    },
    /// The handshake was not complete at its deadline.
    #[error("the handshake was not complete in time")]
    Deadline,
    /// CONNECTED has another UUID than the client's, or the nil UUID for the server.
    #[error("CONNECTED with UUID {0} where another is due")]
    WrongUuid(Uuid),
    /// CONNECTED announces a configuration that is longer than the limit.
    #[error("CONNECTED announces a configuration of {announced} bytes, the limit is {limit}")]
    ConfigurationTooLong {
        /// The announced length in bytes.
        announced: u32,
        /// The limit in bytes.
        limit: u32,
    },
    /// The first frame of a server is neither CONNECTED nor a refusal.
    #[error("the server's first frame is {0}, not CONNECTED")]
    NotConnected(FrameKind),
    /// The server sent ConnectionFailure, which has no room for a reason: a later attempt
    /// may succeed.
    #[error(
        "the server refuses this client for now (ConnectionFailure): its UUID is connected with another \
         certificate or banned, or the server is full or stopping; the server's log has the reason"
    )]
    PeerFailed,
    /// The server sent ConnectionAborted, which has no room for a reason: no later attempt
    /// can succeed.
    #[error("the server refuses this client for good (ConnectionAborted)")]
    PeerAborted,
}

impl Refusal {
    /// A refusal by the application for good: the client receives ConnectionAborted and does not try
    /// again. The reason is for the server's log.
    pub fn forbid(reason: impl Into<String>) -> Self {
        Self::Unwanted {
            for_now: false,
            reason: reason.into(),
        }
    }

    /// A refusal by the application for now: the client receives ConnectionFailure and may try
    /// again. The reason is for the server's log.
    pub fn postpone(reason: impl Into<String>) -> Self {
        Self::Unwanted {
            for_now: true,
            reason: reason.into(),
        }
    }

    /// The refusal in one word, and true if a client must not come back.
    fn facts(&self) -> (&'static str, bool) {
        match self {
            Self::Role { .. } => ("role", true),
            Self::NotAServer(_) => ("role", false),
            Self::BorrowedUuid { .. } | Self::OwnUuid(_) | Self::UnboundCertificate => ("uuid", true),
            Self::UuidOwned(_) | Self::UuidInUse(_) | Self::OtherAuthority(_) | Self::WrongUuid(_) => {
                ("uuid", false)
            }
            Self::Banned(_) => ("banned", false),
            Self::SessionLimit(_) => ("limit", false),
            Self::CertificateLimit(_) => ("certificate_limit", false),
            Self::Busy(_) => ("stopping", false),
            Self::Unwanted { for_now, .. } => ("application", !for_now),
            Self::Deadline => ("timeout", false),
            Self::PeerFailed => ("failed", false),
            Self::PeerAborted => ("aborted", false),
            _ => ("connect", false),
        }
    }

    /// The server's error frame for the peer. `None` if the connection is closed without one.
    pub fn answer(&self) -> Option<ErrorCode> {
        match self {
            Self::NotConnect(_) | Self::PeerFailed | Self::PeerAborted => None,
            // A client answers each fault of a server with ConnectionFailure, see
            // `ClientHandshake::answer`.
            _ if self.facts().1 => Some(ErrorCode::CONNECTION_ABORTED),
            _ => Some(ErrorCode::CONNECTION_FAILURE),
        }
    }

    /// The refusal in one word, for metrics and logs. The set of words is fixed.
    pub fn word(&self) -> &'static str {
        self.facts().0
    }

    /// True if another attempt at the same server can succeed.
    pub fn may_retry(&self) -> bool {
        !self.facts().1 && !matches!(self, Self::PeerAborted | Self::NotAServer(_))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_client_may_try_again_after_failure_and_not_after_abort() {
        let uuid = Uuid::from_u128(1);
        let aborted = [
            Refusal::Role {
                advertised: Role::AGENT,
                certified: Role::NONE,
            },
            Refusal::BorrowedUuid {
                claimed: uuid,
                bound: Uuid::from_u128(2),
            },
            Refusal::OwnUuid(uuid),
            Refusal::UnboundCertificate,
            Refusal::forbid("not on the list"),
        ];
        let failed = [
            Refusal::UuidOwned(uuid),
            Refusal::UuidInUse(uuid),
            Refusal::OtherAuthority(uuid),
            Refusal::Banned(Duration::from_secs(60)),
            Refusal::SessionLimit(8),
            Refusal::CertificateLimit(6),
            Refusal::Busy("the server is shutting down"),
            Refusal::postpone("not before noon"),
            Refusal::Deadline,
        ];
        for refusal in aborted {
            assert_eq!(refusal.answer(), Some(ErrorCode::CONNECTION_ABORTED), "{refusal}");
            assert!(!refusal.may_retry(), "{refusal}");
        }
        for refusal in failed {
            assert_eq!(refusal.answer(), Some(ErrorCode::CONNECTION_FAILURE), "{refusal}");
            assert!(refusal.may_retry(), "{refusal}");
        }
    }

    #[test]
    fn each_fault_has_a_text_of_its_own() {
        let (uuid, bound, kind) = (
            Uuid::from_u128(1),
            Uuid::from_u128(2),
            FrameKind::from(ErrorCode(0)),
        );
        let (advertised, certified) = (Role::AGENT, Role::NONE);
        let (announced, limit) = (7, 5);
        let refusals = [
            Refusal::NotConnect(kind),
            Refusal::Version(9),
            Refusal::NilSource,
            Refusal::Destination(uuid),
            Refusal::Role {
                advertised,
                certified,
            },
            Refusal::NotAServer(advertised),
            Refusal::BorrowedUuid { claimed: uuid, bound },
            Refusal::OwnUuid(uuid),
            Refusal::UnboundCertificate,
            Refusal::UuidOwned(uuid),
            Refusal::UuidInUse(uuid),
            Refusal::OtherAuthority(uuid),
            Refusal::Banned(Duration::from_secs(60)),
            Refusal::SessionLimit(8),
            Refusal::CertificateLimit(6),
            Refusal::Busy("the server is shutting down"),
            Refusal::forbid("not on the list"),
            Refusal::Deadline,
            Refusal::WrongUuid(uuid),
            Refusal::ConfigurationTooLong { announced, limit },
            Refusal::NotConnected(kind),
            Refusal::PeerFailed,
            Refusal::PeerAborted,
        ];
        let faults = [
            ProtocolError::Version(9),
            ProtocolError::PayloadTooLong {
                kind,
                announced,
                limit,
            },
            ProtocolError::HandshakeFrame(kind),
            ProtocolError::TraceNotAgreed(kind),
            ProtocolError::TraceTooLong(announced),
        ];
        let texts = refusals.iter().map(ToString::to_string);
        let texts: HashSet<_> = texts.chain(faults.iter().map(ToString::to_string)).collect();
        assert_eq!(texts.len(), refusals.len() + faults.len());
        assert!(texts.iter().all(|text| text.len() > 10));
        let role = Refusal::Role {
            advertised,
            certified,
        };
        assert_eq!(
            role.to_string(),
            "role agent is advertised, the certificate holds none"
        );
    }
}
