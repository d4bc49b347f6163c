//! The events of a client.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use super::error::{ClientError, SessionEnd};
use crate::proto::Frame;
use crate::request::Request;
use ssntp_pki::{CertificateInfo, Role};
use ssntp_transport::PeerAddress;

/// The log target of all lines about a client.
pub(super) const LOG: &str = "ssntp::client";

/// An event of a client. Events arrive in the order in which they happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ClientEvent {
    /// A session is established. The frames that follow belong to it.
    Connected(Arc<ServerInfo>),
    /// The server sent a frame. Its payload is a slice of the buffer that it was received into,
    /// which has up to 80 KiB for small frames: copy a payload that you keep for long.
    Frame(Frame),
    /// The server or another client sent a request, which is a frame of a kind that is registered as
    /// one. Answer with [`ClientHandle::reply`](super::ClientHandle::reply) or
    /// [`refuse`](super::ClientHandle::refuse), from any thread; otherwise the sender waits until
    /// its own time limit. Drop the request after the answer: a client that replaces its session
    /// waits, for at most 5 s, until no request is left.
    Request(Request),
    /// The session is over.
    Disconnected {
        /// The reason.
        reason: SessionEnd,
        /// True if the client connects again. Otherwise [`ClientEvent::Closed`] follows.
        retrying: bool,
    },
    /// The client has ended; this is the last event. It is left out if the application closed the
    /// client while the channel of events was full.
    Closed(ClientError),
}

impl ClientEvent {
    /// The frame of [`ClientEvent::Frame`]; `None` for other events.
    pub fn into_frame(self) -> Option<Frame> {
        match self {
            Self::Frame(frame) => Some(frame),
            _ => None,
        }
    }
}

/// The server of a session: facts that do not change during the session. Displayed as
/// `UUID (roles) at ADDRESS`.
#[derive(Debug)]
pub struct ServerInfo {
    /// The server's UUID.
    pub uuid: Uuid,
    /// The roles that the server advertised. Its certificate holds all of them.
    pub role: Role,
    /// The address that was dialled, as it was configured: `node7:8888`, `unix:/run/ssntp`,
    /// `memory-1`.
    pub name: String,
    /// The resolved address of the connection.
    pub address: PeerAddress,
    /// The content of the server's certificate.
    pub certificate: CertificateInfo,
    /// True if the session agreed on trace blocks.
    pub tracing: bool,
    /// The TLS version, `TLSv1.3` or `TLSv1.2`.
    pub tls: &'static str,
    /// True if TLS resumed an earlier session with this server.
    pub resumed: bool,
}

impl fmt::Display for ServerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) at {}", self.uuid, self.role, self.name)
    }
}

/// The counters of a client, over all its sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientCounters {
    /// Sessions that were established.
    pub sessions: u64,
    /// Attempts at a server that failed.
    pub failed_attempts: u64,
    /// Frames received, including unsupported ones.
    pub received_frames: u64,
    /// Bytes of frames received.
    pub received_bytes: u64,
    /// Frames sent: those that the operating system has taken.
    pub sent_frames: u64,
    /// Bytes of frames sent.
    pub sent_bytes: u64,
    /// Frames that `send` accepted and that were lost: they waited in a queue when their session
    /// was lost or the client ended.
    pub lost_frames: u64,
    /// Frames received whose type or operand is not supported.
    pub unsupported: u64,
    /// Trace blocks that were malformed and dropped.
    pub bad_traces: u64,
    /// Answers that came too late, or from another client than the one that was asked.
    pub late_replies: u64,
}
