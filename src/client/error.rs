//! The errors of a client. Each variant says what has to be corrected.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::AlertDescription;
use uuid::Uuid;

use crate::payload;
use crate::proto::{ErrorCode, Frame, FrameKind, Refusal};
use crate::request::RequestError;
use ssntp_pki::{Fault, Role};
use ssntp_transport::tls::TlsError;

/// The reason why a client did not start, or why it ended. A clone is cheap.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The application closed the client, or dropped it.
    #[error("the client was closed")]
    Closed,
    /// The certificate does not hold the roles to advertise: advertise only roles of the certificate,
    /// or issue another certificate.
    #[error("the certificate holds the roles {certified}, not {advertised}")]
    Role {
        /// The roles to advertise.
        advertised: Role,
        /// The roles that the certificate holds.
        certified: Role,
    },
    /// The certificate is bound to another UUID than the configured one: configure that UUID, or
    /// none.
    #[error("the certificate is bound to the UUID {bound}, not {given}")]
    BorrowedUuid {
        /// The configured UUID.
        given: Uuid,
        /// The UUID that the certificate is bound to.
        bound: Uuid,
    },
    /// The configured UUID is the nil UUID, which no client may have.
    #[error("the nil UUID cannot be the UUID of a client")]
    NilUuid,
    /// The directory of persistent UUIDs cannot be used.
    #[error("{}: {error}", .path.display())]
    UuidFile {
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        error: Arc<io::Error>,
    },
    /// A file of the directory does not hold a UUID. It is not replaced, because the cluster knows
    /// this host by its UUID: restore the file, or remove it to get a new UUID.
    #[error("{}: not a UUID; restore the file, or remove it to get a new UUID", .path.display())]
    UuidCorrupt {
        /// The file.
        path: PathBuf,
    },
    /// Every UUID of the role in the directory is in use by a running client.
    #[error("{}: running clients use all {slots} UUIDs of the role", .directory.display())]
    UuidsInUse {
        /// The directory.
        directory: PathBuf,
        /// The number of UUIDs.
        slots: u32,
    },
    /// TLS does not accept the identity or the trust.
    #[error(transparent)]
    Tls(#[from] Arc<TlsError>),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] Arc<io::Error>),
    /// The server sent ConnectionAborted. The frame has no room for a reason; the server's log has
    /// it. Use a certificate that is bound to a UUID if this one is not. Otherwise the server's
    /// application refuses this client.
    #[error(
        "{server} refuses this client for good (ConnectionAborted): {}; the server's log has the reason",
        refusals(*.is_bound)
    )]
    Aborted {
        /// The address of the server.
        server: String,
        /// True if the client's certificate is bound to its UUID, so this is not the reason.
        is_bound: bool,
    },
    /// Every server is ruled out: another attempt would fail with the same fault.
    #[error("no server is left to try: {}", list(.0))]
    NoServerLeft(Vec<DialError>),
    /// All rounds of attempts that the configuration allows have failed.
    #[error("cannot connect{}: {}", gave_up(*.attempts), list(.last))]
    GaveUp {
        /// The number of rounds.
        attempts: u32,
        /// The failures of the last round, and the earlier failures of servers that were ruled out.
        last: Vec<DialError>,
    },
    /// The session was lost, and reconnecting is turned off.
    #[error("disconnected: {0}")]
    Disconnected(SessionEnd),
}

fn list<E: ToString>(errors: &[E]) -> String {
    let texts: Vec<_> = errors.iter().map(E::to_string).collect();
    texts.join("; ")
}

fn gave_up(attempts: u32) -> String {
    match attempts {
        1 => String::new(),
        _ => format!(", gave up after {attempts} attempts"),
    }
}

/// The possible reasons of ConnectionAborted. A client does not start with a role that its certificate does
/// not hold, or with a UUID that another certificate is bound to.
fn refusals(is_bound: bool) -> &'static str {
    if is_bound {
        "the server's application refuses it, or its UUID is that of the server"
    } else {
        "its certificate is bound to no UUID, which the server may require, or the server's application refuses it"
    }
}

/// The possible reasons of an error frame that ends a session, which has no room for one.
fn reasons(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::CONNECTION_FAILURE => {
            ": an operator or the server's application ended it, or the client's certificate is no longer valid"
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

/// The failure of one attempt at one server.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{server}: {fault}")]
pub struct DialError {
    /// The address of the server, as in [`ServerInfo::name`](super::ServerInfo::name).
    pub server: String,
    /// The fault.
    #[source]
    pub fault: DialFault,
}

/// The fault of one attempt, and whether the server is tried again.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialFault {
    /// No server answers at that address, or the name has no address. Tried again.
    #[error(transparent)]
    Connect(Arc<io::Error>),
    /// The connection was lost during the handshake. Tried again.
    #[error("{}", lost(.0))]
    Lost(#[source] Arc<io::Error>),
    /// TLS failed, but not because of a certificate. Tried again.
    #[error(transparent)]
    Tls(Arc<TlsError>),
    /// The server's certificate is not trusted, does not hold the name that was dialled, or cannot
    /// be read. The server is ruled out, unless the client has had a session with it: then a
    /// certificate is probably being replaced on one side, and the server is tried again.
    #[error("the server's certificate is refused: {0}")]
    ServerCertificate(String),
    /// The server's name is neither a DNS name nor an IP address, so no certificate can hold it. The
    /// server is ruled out.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    ServerName(String),
    /// The server refused our certificate: it trusts another authority, or the certificate is of the
    /// wrong kind. The text explains the server's TLS alert and ends with its name. The server is
    /// ruled out, unless it has accepted this client before. (After an alert that the certificate
    /// has expired, the server is tried again, because its clock or ours may be wrong.)
    #[error("the server refuses our certificate: {0}")]
    OwnCertificate(String),
    /// The server reports that our certificate is revoked. The server is ruled out until the client
    /// is [renewed](super::ClientHandle::renew).
    #[error("the server refuses our certificate: it is revoked (CertificateRevoked)")]
    Revoked,
    /// TLS succeeded and the protocol's handshake failed.
    #[error(transparent)]
    Refused(Refusal),
    /// Two or more of the faults above, each kind once: the addresses of the server's name failed in different
    /// ways, or the attempts with the new and with the old certificate. The server is tried again if it is after
    /// one of them.
    #[error("{}", list(.0))]
    Several(Vec<DialFault>),
}

impl DialFault {
    /// True if a later attempt at the same server can succeed.
    pub fn may_retry(&self) -> bool {
        self.facts().1
    }

    /// The faults of which this one consists.
    pub(super) fn each(&self) -> &[Self] {
        match self {
            Self::Several(faults) => faults,
            one => std::slice::from_ref(one),
        }
    }

    /// This fault and that of a further attempt.
    pub(super) fn and(self, further: Self) -> Self {
        let new = further.each().iter();
        let new: Vec<_> = new
            .filter(|new| self.each().iter().all(|known| known.word() != new.word()))
            .cloned()
            .collect();
        if new.is_empty() {
            return self;
        }
        Self::Several([self.each(), &new].concat())
    }

    /// True if the fault can end without a change on this client, at a server that has accepted it
    /// before: authorities are replaced on one side first.
    pub(super) fn may_be_mended(&self) -> bool {
        let is_of_authorities =
            |fault: &Self| matches!(fault, Self::ServerCertificate(_) | Self::OwnCertificate(_));
        self.each().iter().any(is_of_authorities)
    }

    /// True if the client's identity may be the cause: the server has answered, and its own
    /// certificate is accepted.
    pub(super) fn may_be_of_identity(&self) -> bool {
        self.facts().2
    }

    /// The fault in one word, for metrics and logs: `connect`, `lost`,
    /// `server_certificate`, `server_name`, `own_certificate`, and those of
    /// [`TlsError::word`] and [`Refusal::word`]. The metrics count each of several faults.
    pub fn word(&self) -> &'static str {
        self.facts().0
    }

    /// The word, and the answers of `may_retry` and of `may_be_of_identity`.
    fn facts(&self) -> (&'static str, bool, bool) {
        match self {
            Self::Connect(_) => ("connect", true, false),
            Self::Lost(_) => ("lost", true, true),
            Self::Tls(e) => (e.word(), true, !matches!(**e, TlsError::Deadline)),
            Self::ServerCertificate(_) => ("server_certificate", false, false),
            Self::ServerName(_) => ("server_name", false, false),
            Self::OwnCertificate(_) => ("own_certificate", false, true),
            Self::Revoked => ("revoked", false, true),
            Self::Refused(refusal) => (refusal.word(), refusal.may_retry(), *refusal != Refusal::Deadline),
            Self::Several(faults) => {
                let any = |is: fn(&Self) -> bool| faults.iter().any(is);
                ("several", any(Self::may_retry), any(Self::may_be_of_identity))
            }
        }
    }

    /// The fault of a TLS handshake.
    pub(super) fn of_tls(error: TlsError) -> Self {
        match error {
            TlsError::Tls(e) => Self::of_rustls(&e).unwrap_or_else(|| Self::Tls(Arc::new(TlsError::Tls(e)))),
            TlsError::Io(e) => Self::of_io(e),
            TlsError::Name(name) => Self::ServerName(name),
            other => Self::Tls(Arc::new(other)),
        }
    }

    /// The fault of a read or write after the TLS handshake. In TLS 1.3 a server's alert about our
    /// certificate arrives only then.
    pub(super) fn of_io(error: io::Error) -> Self {
        let of_tls = error.get_ref().and_then(|e| e.downcast_ref());
        of_tls
            .and_then(Self::of_rustls)
            .unwrap_or_else(|| Self::Lost(Arc::new(error)))
    }

    fn of_rustls(error: &rustls::Error) -> Option<Self> {
        use AlertDescription as A;
        use rustls::CertificateError as C;
        let refused = match error {
            // These can end without a new certificate: a clock, here or there, may be wrong, and a
            // revocation list that is too old may be replaced.
            rustls::Error::InvalidCertificate(
                C::Expired
                | C::ExpiredContext { .. }
                | C::NotValidYet
                | C::NotValidYetContext { .. }
                | C::UnknownRevocationStatus
                | C::ExpiredRevocationList
                | C::ExpiredRevocationListContext { .. },
            ) => return None,
            // The same words as our own checks of a certificate use.
            rustls::Error::InvalidCertificate(C::UnknownIssuer) => {
                "it was issued by an authority that is not trusted".into()
            }
            rustls::Error::InvalidCertificate(C::Revoked) => "it is revoked".into(),
            rustls::Error::InvalidCertificate(C::BadSignature) => Fault::BadSignature.to_string(),
            rustls::Error::InvalidCertificate(C::Other(e)) => e.to_string(),
            rustls::Error::InvalidCertificate(e) => e.to_string(),
            rustls::Error::NoCertificatesPresented => "there is none".into(),
            // `CertificateExpired` and `BadCertificate` are not among the next alerts: servers send
            // them if our certificate has expired or is not valid yet by their clock (rustls and Go
            // the first, OpenSSL the second if it is not valid yet). OpenSSL also sends both if its
            // revocation list is too old or not valid yet.
            rustls::Error::AlertReceived(A::CertificateRevoked) => return Some(Self::Revoked),
            rustls::Error::AlertReceived(
                alert @ (A::NoCertificate
                | A::UnsupportedCertificate
                | A::CertificateUnknown
                | A::UnknownCA
                | A::AccessDenied
                | A::CertificateRequired
                // The server trusts an authority of the same name with another key.
                | A::DecryptError),
            ) => return Some(Self::OwnCertificate(verdict(*alert))),
            _ => return None,
        };
        Some(Self::ServerCertificate(refused))
    }
}

/// The meaning of an alert about our certificate.
fn verdict(alert: AlertDescription) -> String {
    use AlertDescription as A;
    let words = match alert {
        A::UnknownCA => "it was issued by an authority that the server does not trust",
        A::DecryptError => {
            "its signature is not that of the authority that the server trusts (another one of that name?)"
        }
        A::UnsupportedCertificate => "its key usages do not allow it for a client",
        A::NoCertificate | A::CertificateRequired => "there is none",
        A::AccessDenied => "its holder may not connect",
        _ => "the server gives no reason",
    };
    format!("{words} ({alert:?})")
}

impl From<Fault> for DialFault {
    fn from(fault: Fault) -> Self {
        Self::ServerCertificate(fault.to_string())
    }
}

/// The reason why a session has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionEnd {
    /// The application closed the client.
    #[error("the client was closed")]
    Closed,
    /// The server ended the session with close_notify.
    #[error("closed by the server")]
    PeerClosed,
    /// The server sent ConnectionFailure or ConnectionAborted. After ConnectionAborted the client
    /// does not connect again.
    #[error("the server ended the session ({code}){}", reasons(*.0), code = .0)]
    PeerRefused(ErrorCode),
    /// Reading or writing failed, or the connection was cut.
    #[error("{0}")]
    Lost(String),
    /// The server broke the protocol.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The client was [renewed](super::ClientHandle::renew), and ended the session to begin another
    /// one with its new certificate. Frames that are sent meanwhile wait for that session.
    #[error("the certificate was renewed, and another session begins with it")]
    Renewed,
    /// The server is about to stop and has asked its clients to leave, so this client ended the
    /// session without loss. It connects to another server, or to this one once it runs again.
    /// Frames that are sent meanwhile wait for the next session.
    #[error("the server is about to stop")]
    Draining,
    /// The client was renewed, and no longer trusts the server's certificate. The text is the reason.
    #[error("the server is no longer trusted: {0}")]
    Certificate(String),
}

/// A frame that was not accepted for sending, and the reason.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} is not sent: {}", .0.frame.kind(), .0.fault)]
pub struct UnsentError(Box<Unsent>);

#[derive(Clone, Debug)]
struct Unsent {
    frame: Frame,
    fault: SendFault,
}

impl UnsentError {
    pub(super) fn new(frame: Frame, fault: SendFault) -> Self {
        Self(Box::new(Unsent { frame, fault }))
    }

    /// The reason.
    pub fn fault(&self) -> &SendFault {
        &self.0.fault
    }

    /// The frame that was not sent.
    pub fn into_frame(self) -> Frame {
        self.0.frame
    }
}

/// The reason why a frame was not accepted for sending.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendFault {
    /// There is no session, and frames are not queued without one: wait for
    /// [`ClientEvent::Connected`](super::ClientEvent::Connected), or configure
    /// [`Offline::Queue`](super::Offline::Queue).
    #[error("no session is established")]
    NotConnected,
    /// The queue was full for as long as the call could wait.
    #[error("the queue is full")]
    Full,
    /// The kind is CONNECT or CONNECTED, is unknown to the protocol and not registered by the
    /// application, or is registered as a request, which needs
    /// [`request`](super::ClientHandle::request) or [`reply`](super::ClientHandle::reply).
    #[error("{0} cannot be sent on an established session")]
    Kind(FrameKind),
    /// A payload of an application's own type cannot be encoded. The frame in the error has no
    /// payload.
    #[error("its payload cannot be written: {0}")]
    Payload(#[source] payload::Error),
    /// The payload is longer than the configured maximum.
    #[error("its payload has {len} bytes, the maximum is {limit}")]
    TooLong {
        /// The length in bytes.
        len: usize,
        /// The maximum in bytes.
        limit: u32,
    },
    /// The client has ended.
    #[error("the client has ended: {0}")]
    Ended(#[source] ClientError),
}

/// The reason why a request or an answer was not sent.
impl From<SendFault> for RequestError {
    fn from(fault: SendFault) -> Self {
        match fault {
            SendFault::TooLong { len, limit } => Self::TooLong { len, limit },
            SendFault::Full => Self::QueueFull,
            SendFault::Ended(_) => Self::Ended,
            _ => Self::NotConnected,
        }
    }
}

/// The reason why no event was received.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// No event is waiting, or none arrived in time.
    #[error("no event was received in time")]
    Empty,
    /// The client has ended, and every event has been received.
    #[error("the client has ended: {0}")]
    Ended(#[source] ClientError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_alerts_that_a_wrong_clock_can_cause_are_tried_again() {
        use AlertDescription as A;
        for (alert, retried) in [
            (A::CertificateExpired, true),
            (A::BadCertificate, true),
            (A::InternalError, true),
            // A server of this crate sends this one if its revocation list is overdue.
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
    fn an_old_revocation_list_is_tried_again_and_a_revocation_is_not() {
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
        assert!(
            !DialFault::Revoked.may_be_mended(),
            "a server that has accepted the client before may send this as well"
        );
    }
}
