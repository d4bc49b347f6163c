//! Everything that can go wrong with a client, by who has to mend it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::AlertDescription;
use uuid::Uuid;

use crate::payload;
use crate::proto::{ErrorCode, Frame, FrameKind, Refusal};
use ssntp_transport::Role;
use ssntp_transport::pki::Fault;
use ssntp_transport::tls::TlsError;

/// Why a client did not start, or why it ended. A clone is cheap.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The application closed the client, or dropped it.
    #[error("the client was closed")]
    Closed,
    /// The roles to advertise are not the certificate's: advertise some of
    /// those, or issue another certificate.
    #[error("the certificate holds the roles {certified}, not {advertised}")]
    Role {
        /// What is to be advertised.
        advertised: Role,
        /// What the certificate holds.
        certified: Role,
    },
    /// The certificate is bound to another UUID than the one that was given:
    /// give that one, or none.
    #[error("the certificate is bound to the UUID {bound}, not {given}")]
    BorrowedUuid {
        /// The UUID that was given.
        given: Uuid,
        /// The UUID that the certificate is bound to.
        bound: Uuid,
    },
    /// The nil UUID was given, which is not a client's.
    #[error("the nil UUID names nobody")]
    NilUuid,
    /// The directory of persistent UUIDs cannot be used.
    #[error("{}: {error}", .path.display())]
    UuidFile {
        /// The file at fault.
        path: PathBuf,
        /// What the system says.
        #[source]
        error: Arc<io::Error>,
    },
    /// A file of the directory holds something other than a UUID. It is not
    /// replaced, because its UUID is this host's name in the cluster: restore
    /// it, or remove it to get a new one.
    #[error("{}: not a UUID; restore the file, or remove it to get a new UUID", .path.display())]
    UuidCorrupt {
        /// The file at fault.
        path: PathBuf,
    },
    /// Every UUID of the role in the directory is in use by a running client.
    #[error("{}: all {slots} UUIDs are in use", .directory.display())]
    UuidsInUse {
        /// The directory.
        directory: PathBuf,
        /// How many there are.
        slots: u32,
    },
    /// Identity and trust do not make a TLS configuration.
    #[error(transparent)]
    Tls(#[from] Arc<TlsError>),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] Arc<io::Error>),
    /// The server sent ConnectionAborted, which has no room for a reason; the server's log
    /// has it. The certificate or the UUID has to be mended, unless the server's
    /// application does not want this client.
    #[error(
        "{server} refuses this client for good (ConnectionAborted): its certificate does not hold its role, is \
         bound to another UUID or to none, or the server's application does not want it; the server's log says which"
    )]
    Aborted {
        /// Where the server was dialled.
        server: String,
    },
    /// Every server is ruled out for good: none of these faults mends itself.
    #[error("no server is left to try: {}", list(.0))]
    NoServerLeft(Vec<DialError>),
    /// As many rounds of attempts as the configuration allows have failed.
    #[error("cannot connect{}: {}", gave_up(*.attempts), list(.last))]
    GaveUp {
        /// How many rounds there were.
        attempts: u32,
        /// What went wrong in the last round, and earlier at the servers that
        /// were ruled out.
        last: Vec<DialError>,
    },
    /// The session was lost, and reconnecting is turned off.
    #[error("disconnected: {0}")]
    Disconnected(DisconnectReason),
}

fn list(errors: &[DialError]) -> String {
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

fn gave_up(attempts: u32) -> String {
    match attempts {
        1 => String::new(),
        _ => format!(", gave up after {attempts} attempts"),
    }
}

/// What a server ends a session for. The frame has no room for the reason.
fn reasons(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::CONNECTION_FAILURE => {
            ": an operator or its application did, or the client's certificate no longer counts"
        }
        _ => "",
    }
}

fn lost(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the server closed the connection during the handshake".into(),
        _ => format!("the connection was lost during the handshake: {error}"),
    }
}

/// Why one attempt at one server gave no session.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{server}: {fault}")]
pub struct DialError {
    /// Where it was dialled, as in [`ServerInfo::name`](super::ServerInfo::name).
    pub server: String,
    /// What went wrong there.
    #[source]
    pub fault: DialFault,
}

/// What can go wrong in one attempt.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialFault {
    /// No server answers at that address, or the name has no address. Tried again.
    #[error(transparent)]
    Connect(Arc<io::Error>),
    /// The connection was lost before the session stood. Tried again.
    #[error("{}", lost(.0))]
    Lost(#[source] Arc<io::Error>),
    /// TLS failed for another reason than a certificate. Tried again.
    #[error(transparent)]
    Tls(Arc<TlsError>),
    /// The server's certificate is not trusted, does not hold the name that
    /// was dialled, or cannot be read. The server is ruled out, unless there has
    /// been a session with it before: then its certificate is being replaced, or
    /// ours, and it is tried again.
    #[error("the server's certificate is refused: {0}")]
    ServerCertificate(String),
    /// The server's name cannot be checked: it is neither a DNS name nor an
    /// IP address. The server is ruled out.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    ServerName(String),
    /// The server refused our certificate, and this is what its alert says, whose
    /// name stands at the end: it trusts another authority, or the certificate is
    /// of the wrong kind. The server is ruled out, unless it has taken this client
    /// before. (One that calls the certificate expired is tried again, since its
    /// clock or ours may be wrong.)
    #[error("the server refuses our certificate: {0}")]
    OwnCertificate(String),
    /// The server says that our certificate is revoked. The server is ruled out,
    /// until the client is [renewed](super::ClientHandle::renew).
    #[error("the server refuses our certificate: it is revoked (CertificateRevoked)")]
    Revoked,
    /// TLS stands and the protocol's handshake failed.
    #[error(transparent)]
    Refused(Refusal),
}

impl DialFault {
    /// Whether a later attempt at the same server can succeed.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Lost(_) | Self::Tls(_) => true,
            Self::ServerCertificate(_) | Self::ServerName(_) | Self::OwnCertificate(_) | Self::Revoked => {
                false
            }
            Self::Refused(refusal) => refusal.may_retry(),
        }
    }

    /// Whether a server that has been connected before may be mended without
    /// this client: an authority is replaced on one side first.
    pub(super) fn may_be_mended(&self) -> bool {
        matches!(self, Self::ServerCertificate(_) | Self::OwnCertificate(_))
    }

    /// Whether the identity that was shown may be at fault: the server has
    /// answered, and nothing is wrong with its own certificate.
    pub(super) fn may_be_of_identity(&self) -> bool {
        match self {
            Self::Connect(_) | Self::ServerCertificate(_) | Self::ServerName(_) => false,
            Self::Tls(e) => !matches!(**e, TlsError::Deadline),
            Self::Refused(refusal) => *refusal != Refusal::Deadline,
            Self::Lost(_) | Self::OwnCertificate(_) | Self::Revoked => true,
        }
    }

    /// A word for it, out of a list that is fixed: `connect`, `lost`,
    /// `server_certificate`, `server_name`, `own_certificate`, and those of
    /// [`TlsError::word`] and [`Refusal::word`].
    pub fn word(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Lost(_) => "lost",
            Self::Tls(e) => e.word(),
            Self::ServerCertificate(_) => "server_certificate",
            Self::ServerName(_) => "server_name",
            Self::OwnCertificate(_) => "own_certificate",
            Self::Revoked => "revoked",
            Self::Refused(refusal) => refusal.word(),
        }
    }

    /// What a TLS handshake failed with.
    pub(super) fn of_tls(error: TlsError) -> Self {
        match error {
            TlsError::Tls(e) => Self::of_rustls(&e).unwrap_or_else(|| Self::Tls(Arc::new(TlsError::Tls(e)))),
            TlsError::Io(e) => Self::of_io(e),
            TlsError::Name(name) => Self::ServerName(name),
            other => Self::Tls(Arc::new(other)),
        }
    }

    /// What reading failed with once TLS stood: in TLS 1.3 that is where a
    /// server's judgement of our certificate arrives.
    pub(super) fn of_io(error: io::Error) -> Self {
        let of_tls = error.get_ref().and_then(|e| e.downcast_ref());
        of_tls
            .and_then(Self::of_rustls)
            .unwrap_or_else(|| Self::Lost(Arc::new(error)))
    }

    fn of_rustls(error: &rustls::Error) -> Option<Self> {
        use AlertDescription as A;
        use rustls::CertificateError as C;
        match error {
            // A clock that is wrong, here or there, may be set right.
            // So may a revocation list, which says nothing once it is too old.
            rustls::Error::InvalidCertificate(
                C::Expired
                | C::ExpiredContext { .. }
                | C::NotValidYet
                | C::NotValidYetContext { .. }
                | C::UnknownRevocationStatus
                | C::ExpiredRevocationList
                | C::ExpiredRevocationListContext { .. },
            ) => None,
            rustls::Error::InvalidCertificate(C::Other(e)) => Some(Self::ServerCertificate(e.to_string())),
            // The same in our words, as checking it by hand would tell it.
            rustls::Error::InvalidCertificate(C::UnknownIssuer) => Some(Self::ServerCertificate(
                "it was issued by an authority that is not trusted".into(),
            )),
            rustls::Error::InvalidCertificate(C::Revoked) => {
                Some(Self::ServerCertificate("it is revoked".into()))
            }
            rustls::Error::InvalidCertificate(C::BadSignature) => {
                Some(Self::ServerCertificate(Fault::BadSignature.to_string()))
            }
            rustls::Error::InvalidCertificate(e) => Some(Self::ServerCertificate(e.to_string())),
            rustls::Error::NoCertificatesPresented => Some(Self::ServerCertificate("there is none".into())),
            // `CertificateExpired` and `BadCertificate` are not among these: a
            // server tells with them that our certificate is not valid yet or
            // not any more by its clock, rustls and Go with the first, OpenSSL
            // with the second where it is not valid yet. With the same two OpenSSL
            // tells that its revocation list is too old, or of the future.
            rustls::Error::AlertReceived(A::CertificateRevoked) => Some(Self::Revoked),
            rustls::Error::AlertReceived(
                alert @ (A::NoCertificate
                | A::UnsupportedCertificate
                | A::CertificateUnknown
                | A::UnknownCA
                | A::AccessDenied
                | A::CertificateRequired
                // An authority of the same name with another key.
                | A::DecryptError),
            ) => Some(Self::OwnCertificate(verdict(*alert))),
            _ => None,
        }
    }
}

/// What an alert says of our certificate.
fn verdict(alert: AlertDescription) -> String {
    use AlertDescription as A;
    let words = match alert {
        A::UnknownCA => "it was issued by an authority that the server does not trust",
        A::DecryptError => {
            "its signature is not that of the authority that the server trusts (another one of that name?)"
        }
        A::UnsupportedCertificate => "its usages do not let it be a client's",
        A::NoCertificate | A::CertificateRequired => "there is none",
        A::AccessDenied => "its holder may not connect",
        _ => "the server does not say why",
    };
    format!("{words} ({alert:?})")
}

impl From<Fault> for DialFault {
    fn from(fault: Fault) -> Self {
        Self::ServerCertificate(fault.to_string())
    }
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// The application closed the client.
    #[error("the client was closed")]
    Closed,
    /// The server closed it in order.
    #[error("closed by the server")]
    PeerClosed,
    /// The server sent ConnectionFailure, or ConnectionAborted, after which
    /// the client does not connect again.
    #[error("the server ended the session ({code}){}", reasons(*.0), code = .0)]
    PeerRefused(ErrorCode),
    /// Reading or writing failed, or the connection was cut.
    #[error("{0}")]
    Lost(String),
    /// The server broke the protocol.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The client was [renewed](super::ClientHandle::renew), and ended the session
    /// in order to begin another one with its new certificate. What is sent
    /// meanwhile waits for that.
    #[error("the certificate was renewed, and is shown in another session")]
    Renewed,
    /// The server is about to stop and has asked its clients to leave, and this client
    /// ended the session in order. It connects to another server, or to this one when it
    /// is there again. What is sent meanwhile waits for that.
    #[error("the server is about to stop")]
    Draining,
    /// The client was renewed, and does not trust the server's certificate any
    /// more. This is why.
    #[error("the server is not trusted any more: {0}")]
    Certificate(String),
}

/// Why a frame was not taken for sending. It gives the frame back.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} is not sent: {}", .0.frame.kind(), .0.fault)]
pub struct SendError(Box<Unsent>);

#[derive(Clone, Debug)]
struct Unsent {
    frame: Frame,
    fault: SendFault,
}

impl SendError {
    pub(super) fn new(frame: Frame, fault: SendFault) -> Self {
        Self(Box::new(Unsent { frame, fault }))
    }

    /// What stands in the way.
    pub fn fault(&self) -> &SendFault {
        &self.0.fault
    }

    /// The frame that was not sent.
    pub fn into_frame(self) -> Frame {
        self.0.frame
    }
}

/// What stands in the way of sending a frame.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendFault {
    /// No session stands, and frames are not queued meanwhile: wait for
    /// [`ClientEvent::Connected`](super::ClientEvent::Connected), or configure
    /// [`Offline::Queue`](super::Offline::Queue).
    #[error("no session stands at present")]
    NotConnected,
    /// The queue was full for as long as the call could wait.
    #[error("the queue is full")]
    Full,
    /// CONNECT, CONNECTED, a kind that neither the protocol defines nor the
    /// application has registered, or a request, which is asked or answered.
    #[error("{0} cannot be sent on an established session")]
    Kind(FrameKind),
    /// A payload of an application's own type cannot be written. The frame that
    /// is given back has none.
    #[error("its payload cannot be written: {0}")]
    Payload(#[source] payload::Error),
    /// The payload is longer than the configured maximum.
    #[error("its payload has {len} bytes, the maximum is {limit}")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The maximum in bytes.
        limit: u32,
    },
    /// The client has ended.
    #[error("the client has ended: {0}")]
    Ended(#[source] ClientError),
}

/// Why no event was received.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// None is there, or none came in time.
    #[error("nothing was received in time")]
    Empty,
    /// The client has ended, and every event has been received.
    #[error("the client has ended: {0}")]
    Ended(#[source] ClientError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_that_a_wrong_clock_can_cause_is_tried_again_and_a_verdict_is_not() {
        use AlertDescription as A;
        for (alert, retried) in [
            (A::CertificateExpired, true),
            (A::BadCertificate, true),
            (A::InternalError, true),
            // What a server of this crate says whose revocation list is overdue.
            (A::HandshakeFailure, true),
            (A::UnknownCA, false),
            (A::CertificateRevoked, false),
            (A::UnsupportedCertificate, false),
        ] {
            let error = rustls::Error::AlertReceived(alert);
            let read = io::Error::new(io::ErrorKind::InvalidData, error.clone());
            assert_eq!(DialFault::of_io(read).may_retry(), retried, "{alert:?}");
            let fault = DialFault::of_tls(TlsError::Tls(error));
            assert_eq!(fault.may_retry(), retried, "{alert:?}");
        }
    }

    #[test]
    fn a_list_that_is_too_old_is_no_verdict_on_the_server_and_a_revocation_is() {
        use rustls::CertificateError as C;
        for (fault, retried) in [
            (C::Expired, true),
            (C::NotValidYet, true),
            (C::UnknownRevocationStatus, true),
            (C::ExpiredRevocationList, true),
            (C::Revoked, false),
            (C::UnknownIssuer, false),
        ] {
            let error = rustls::Error::InvalidCertificate(fault.clone());
            let of = DialFault::of_tls(TlsError::Tls(error));
            assert_eq!(of.may_retry(), retried, "{fault:?}");
        }
        assert!(!DialFault::Revoked.may_be_mended(), "not even where it was known");
    }
}
