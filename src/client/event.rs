//! What a client tells its application.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use super::{ClientError, DisconnectReason};
use crate::proto::Frame;
use crate::request::Request;
use ssntp_transport::PeerAddress;
use ssntp_transport::Role;
use ssntp_transport::pki::CertificateInfo;

/// What happened, in the order in which it did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ClientEvent {
    /// A session stands. The frames that follow are its.
    Connected(ServerInfo),
    /// The server sent a frame. Its payload is a slice of the memory that it
    /// was received into, up to 80 KiB for small frames: copy what is to be
    /// kept for long.
    Frame(Frame),
    /// Somebody asks this client, by a frame that is registered as a request:
    /// answer with [`ClientHandle::reply`](super::ClientHandle::reply) or
    /// [`refuse`](super::ClientHandle::refuse), from whatever thread, or the
    /// asker waits for as long as it likes. Drop it then: a client that is to end its
    /// session in order waits, for at most 5 s, until no request is left.
    Request(Request),
    /// The session is over.
    Disconnected {
        /// Why.
        reason: DisconnectReason,
        /// Whether the client goes on to connect again. If not,
        /// [`ClientEvent::Closed`] follows.
        retrying: bool,
    },
    /// The client has ended; no event follows. (If the application closed it
    /// while the channel of events was full, it ends without this.)
    Closed(ClientError),
}

impl ClientEvent {
    /// The frame, where it is one.
    pub fn into_frame(self) -> Option<Frame> {
        match self {
            Self::Frame(frame) => Some(frame),
            _ => None,
        }
    }
}

/// The server of a session: facts that do not change while it lasts. Shown
/// as `UUID (roles) at ADDRESS`.
///
/// A clone shares everything.
#[derive(Clone, Debug)]
pub struct ServerInfo(Arc<Facts>);

/// What [`ServerInfo`] tells. Each field is what its method there says.
#[derive(Debug)]
#[expect(missing_docs, reason = "the methods of `ServerInfo` say it")]
pub struct Facts {
    pub uuid: Uuid,
    pub role: Role,
    pub name: String,
    pub address: PeerAddress,
    pub certificate: CertificateInfo,
    pub tracing: bool,
    pub tls: &'static str,
    pub resumed: bool,
}

impl ServerInfo {
    /// Of these facts. A client learns them from the handshake.
    pub fn new(facts: Facts) -> Self {
        Self(Arc::new(facts))
    }

    /// Its UUID.
    pub fn uuid(&self) -> Uuid {
        self.0.uuid
    }

    /// The roles that it advertised, all of them certified.
    pub fn role(&self) -> Role {
        self.0.role
    }

    /// Where it was dialled, as it was configured: `node7:8888`,
    /// `unix:/run/ssntp`, `memory`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The address that answered there.
    pub fn address(&self) -> PeerAddress {
        self.0.address
    }

    /// What its certificate says.
    pub fn certificate(&self) -> &CertificateInfo {
        &self.0.certificate
    }

    /// Whether the session agreed on trace blocks.
    pub fn tracing(&self) -> bool {
        self.0.tracing
    }

    /// The TLS version, `TLSv1.3` or `TLSv1.2`.
    pub fn tls(&self) -> &'static str {
        self.0.tls
    }

    /// Whether TLS resumed an earlier session with it.
    pub fn resumed(&self) -> bool {
        self.0.resumed
    }
}

impl fmt::Display for ServerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) at {}", self.0.uuid, self.0.role, self.0.name)
    }
}

/// What a client has carried, over all its sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientCounters {
    /// Sessions that stood.
    pub sessions: u64,
    /// Attempts at a server that failed.
    pub failed_attempts: u64,
    /// Frames received, those that are not supported included.
    pub received_frames: u64,
    /// Bytes of frames received.
    pub received_bytes: u64,
    /// Frames that the system has taken.
    pub sent_frames: u64,
    /// Bytes of them.
    pub sent_bytes: u64,
    /// Frames that were accepted for sending and lost: they waited when their
    /// session was lost, or offline when the client ended.
    pub lost_frames: u64,
    /// Frames received whose type or operand is not supported.
    pub unsupported: u64,
    /// Trace blocks that were malformed and dropped.
    pub bad_traces: u64,
    /// Answers that came too late, or from a client that was not asked.
    pub late_replies: u64,
}
