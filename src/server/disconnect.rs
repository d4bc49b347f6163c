//! The reasons for the end of a session.

use uuid::Uuid;

use crate::proto::ErrorCode;

/// The reason for the end of a session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// The client has closed its connection in order.
    #[error("closed by the client")]
    PeerClosed,
    /// The client has sent ConnectionFailure or ConnectionAborted.
    #[error("the client sent {0}")]
    PeerRefused(ErrorCode),
    /// Reading or writing has failed, or the connection was cut.
    #[error("{0}")]
    Lost(String),
    /// The client has violated the protocol.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// A newer session of the same UUID has taken over.
    #[error("the client connected again")]
    Replaced,
    /// The session's queue was full.
    #[error("slow consumer: its queue is full")]
    SlowConsumer,
    /// The client's certificate is revoked, has expired, or comes from an authority that is no longer
    /// trusted. The text has the reason.
    #[error("{0}")]
    Certificate(String),
    /// An operator has ended the session, see
    /// [`ServerConfig::operators`](super::ServerConfig::operators).
    #[error("ended by the operator {by}")]
    Kicked {
        /// The UUID of the operator.
        by: Uuid,
    },
    /// The application has ended the session.
    #[error("ended by the application")]
    Application,
    /// The server stops.
    #[error("the server stops")]
    Stopped,
}

impl DisconnectReason {
    /// A word for the reason, from a fixed list.
    pub fn word(&self) -> &'static str {
        match self {
            Self::PeerClosed => "closed",
            Self::PeerRefused(_) => "refused",
            Self::Lost(_) => "lost",
            Self::Protocol(_) => "protocol",
            Self::Replaced => "replaced",
            Self::SlowConsumer => "slow_consumer",
            Self::Certificate(_) => "certificate",
            Self::Kicked { .. } => "kicked",
            Self::Application => "application",
            Self::Stopped => "stopped",
        }
    }
}
