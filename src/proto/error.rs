//! What can be wrong with what a peer sent, and with a connection attempt.

use std::fmt;
use std::time::Duration;

use uuid::Uuid;

use super::{ErrorCode, FrameKind};
use ssntp_transport::Role;

/// The peer broke the protocol on an established session, which is closed
/// for it. Nothing is sent in answer (docs/protocol.md, "Frames").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A major version that this crate does not speak.
    Version(u8),
    /// A payload length over the receiver's limit. None of it was buffered.
    PayloadTooLong {
        /// What the frame is.
        kind: FrameKind,
        /// The length its header announces, in bytes.
        announced: u32,
        /// The receiver's limit, in bytes.
        limit: u32,
    },
    /// CONNECT or CONNECTED after the handshake.
    HandshakeFrame(FrameKind),
    /// A trace block on a session that did not agree on tracing.
    TraceNotAgreed(FrameKind),
    /// A trace block that announces more bytes than a whole payload may have.
    TraceTooLong(u32),
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(major) => write!(f, "frame with major version {major}, not 0"),
            Self::PayloadTooLong {
                kind,
                announced,
                limit,
            } => {
                write!(
                    f,
                    "{kind} announces a payload of {announced} bytes, the limit is {limit}"
                )
            }
            Self::HandshakeFrame(kind) => write!(f, "{kind} on an established session"),
            Self::TraceNotAgreed(kind) => write!(f, "{kind} carries a trace block that was not agreed on"),
            Self::TraceTooLong(len) => write!(f, "trace block announces {len} bytes"),
        }
    }
}

impl std::error::Error for ProtocolError {}

/// Why a handshake ended without a session: one row of docs/protocol.md's
/// "Handshake" table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The first frame of a client is another than CONNECT. It is discarded
    /// and the connection closed without an answer.
    NotConnect(FrameKind),
    /// A major version that this crate does not speak.
    Version(u8),
    /// A CONNECT with the nil UUID as its source.
    NilSource,
    /// A CONNECT whose destination is not the nil UUID.
    Destination(Uuid),
    /// Advertised roles that the certificate does not hold, or none, or
    /// unknown ones.
    Role {
        /// What the peer advertised.
        advertised: Role,
        /// What its certificate holds.
        certified: Role,
    },
    /// A server that is neither SERVER nor SCHEDULER.
    NotAServer(Role),
    /// A certificate bound to another UUID.
    BorrowedUuid {
        /// The UUID the peer claims.
        claimed: Uuid,
        /// The UUID its certificate is bound to.
        bound: Uuid,
    },
    /// The server's own UUID, which nobody else may have.
    OwnUuid(Uuid),
    /// A certificate that is bound to no UUID, at a server that requires it.
    UnboundCertificate,
    /// The UUID is connected with a certificate that is bound to it, and the
    /// newcomer's is not: it is not the owner.
    UuidOwned(Uuid),
    /// The UUID is connected with another certificate, and neither of the two
    /// is bound to it: who owns it cannot be told, so who came first stays.
    UuidInUse(Uuid),
    /// The UUID is connected with a certificate that is bound to it as the
    /// newcomer's is, but issued by another authority: who came first stays.
    OtherAuthority(Uuid),
    /// An operator has banned its UUID; the time that is left.
    Banned(Duration),
    /// The server has as many sessions as it may have.
    SessionLimit(usize),
    /// The certificate has as many sessions as one may have.
    CertificateLimit(usize),
    /// The server is busy or shutting down.
    Busy(&'static str),
    /// The server's application does not want this client, now or ever.
    Unwanted {
        /// Whether it may try again.
        for_now: bool,
        /// Why, for the server's log; the peer is told the code alone.
        reason: String,
    },
    /// The handshake was not complete at its deadline.
    Deadline,
    /// CONNECTED repeats another UUID than the client's, or names none for
    /// the server.
    WrongUuid(Uuid),
    /// CONNECTED announces a configuration over the limit.
    ConfigurationTooLong {
        /// The announced length in bytes.
        announced: u32,
        /// The limit in bytes.
        limit: u32,
    },
    /// The first frame of a server is neither CONNECTED nor a refusal.
    NotConnected(FrameKind),
    /// The peer sent ConnectionFailure: later it may succeed.
    PeerFailed,
    /// The peer sent ConnectionAborted: it never will.
    PeerAborted,
}

impl Refusal {
    /// An application's refusal for good: the client gets ConnectionAborted and
    /// does not come back. The reason is for the server's log.
    pub fn forbid(reason: impl Into<String>) -> Self {
        Self::Unwanted {
            for_now: false,
            reason: reason.into(),
        }
    }

    /// An application's refusal for now: the client gets ConnectionFailure and
    /// may try again. The reason is for the server's log.
    pub fn postpone(reason: impl Into<String>) -> Self {
        Self::Unwanted {
            for_now: true,
            reason: reason.into(),
        }
    }

    /// The error frame that tells the peer, where the table has one.
    pub fn answer(&self) -> Option<ErrorCode> {
        match self {
            Self::NotConnect(_) | Self::PeerFailed | Self::PeerAborted => None,
            // A server's wrong role is answered with ConnectionFailure by
            // the client, a client's with ConnectionAborted by the server:
            // the handshake of each side says which, see `handshake`.
            Self::Role { .. }
            | Self::BorrowedUuid { .. }
            | Self::OwnUuid(_)
            | Self::UnboundCertificate
            | Self::Unwanted { for_now: false, .. }
            | Self::UuidOwned(_) => Some(ErrorCode::CONNECTION_ABORTED),
            _ => Some(ErrorCode::CONNECTION_FAILURE),
        }
    }

    /// A word for it, out of a list that is fixed.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Role { .. } | Self::NotAServer(_) => "role",
            Self::BorrowedUuid { .. }
            | Self::OwnUuid(_)
            | Self::UnboundCertificate
            | Self::UuidOwned(_)
            | Self::UuidInUse(_)
            | Self::OtherAuthority(_)
            | Self::WrongUuid(_) => "uuid",
            Self::Banned(_) => "banned",
            Self::SessionLimit(_) => "limit",
            Self::CertificateLimit(_) => "certificate_limit",
            Self::Busy(_) => "stopping",
            Self::Unwanted { .. } => "application",
            Self::Deadline => "timeout",
            Self::PeerFailed => "failed",
            Self::PeerAborted => "aborted",
            _ => "connect",
        }
    }

    /// Whether another attempt at the same server can succeed.
    pub fn may_retry(&self) -> bool {
        !matches!(
            self,
            Self::PeerAborted
                | Self::Role { .. }
                | Self::NotAServer(_)
                | Self::BorrowedUuid { .. }
                | Self::OwnUuid(_)
                | Self::UnboundCertificate
                | Self::Unwanted { for_now: false, .. }
                | Self::UuidOwned(_)
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnect(kind) => write!(f, "the first frame is {kind}, not CONNECT"),
            Self::Version(major) => write!(f, "major version {major}, not 0"),
            Self::NilSource => f.write_str("CONNECT from the nil UUID"),
            Self::Destination(uuid) => write!(f, "CONNECT to {uuid}, not to the nil UUID"),
            Self::Role {
                advertised,
                certified,
            } => {
                write!(
                    f,
                    "role {advertised} is advertised, the certificate holds {certified}"
                )
            }
            Self::NotAServer(role) => write!(f, "the peer's role is {role}, neither server nor scheduler"),
            Self::BorrowedUuid { claimed, bound } => {
                write!(
                    f,
                    "UUID {claimed} is claimed, the certificate is bound to {bound}"
                )
            }
            Self::OwnUuid(uuid) => write!(f, "UUID {uuid} is the server's own"),
            Self::UnboundCertificate => {
                f.write_str("the certificate is bound to no UUID, and this server requires it")
            }
            Self::UuidOwned(uuid) => {
                write!(
                    f,
                    "UUID {uuid} is connected with a certificate that is bound to it, this one is not"
                )
            }
            Self::UuidInUse(uuid) => {
                write!(
                    f,
                    "UUID {uuid} is connected with another certificate, and neither is bound to it"
                )
            }
            Self::OtherAuthority(uuid) => {
                write!(
                    f,
                    "UUID {uuid} is connected with a certificate bound to it by another authority"
                )
            }
            Self::Banned(left) => write!(f, "an operator has banned it, for another {} s", left.as_secs()),
            Self::SessionLimit(limit) => {
                write!(
                    f,
                    "the server has {limit} sessions, as many as it may (max_sessions)"
                )
            }
            Self::CertificateLimit(limit) => {
                write!(
                    f,
                    "the certificate has {limit} sessions, as many as one may (sessions_per_certificate)"
                )
            }
            Self::Busy(why) => f.write_str(why),
            Self::Unwanted { reason, .. } => write!(f, "the application refuses it: {reason}"),
            Self::Deadline => f.write_str("the handshake was not complete in time"),
            Self::WrongUuid(uuid) => write!(f, "CONNECTED with UUID {uuid} where another is due"),
            Self::ConfigurationTooLong { announced, limit } => {
                write!(
                    f,
                    "CONNECTED announces a configuration of {announced} bytes, the limit is {limit}"
                )
            }
            Self::NotConnected(kind) => write!(f, "the server's first frame is {kind}, not CONNECTED"),
            Self::PeerFailed => f.write_str("the peer sent ConnectionFailure"),
            Self::PeerAborted => f.write_str("the peer sent ConnectionAborted"),
        }
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn who_is_aborted_never_succeeds_and_who_is_failed_may_try_again() {
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
            Refusal::UuidOwned(uuid),
            Refusal::forbid("not on the list"),
        ];
        let failed = [
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
    fn each_fault_says_what_it_is() {
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
