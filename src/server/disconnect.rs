//! Why a session is over.

use uuid::Uuid;

use crate::proto::ErrorCode;

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// The client closed it in order.
    #[error("closed by the client")]
    PeerClosed,
    /// The client sent ConnectionFailure or ConnectionAborted.
    #[error("the client sent {0}")]
    PeerRefused(ErrorCode),
    /// Reading or writing failed, or the connection was cut.
    #[error("{0}")]
    Lost(String),
    /// The client broke the protocol.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The same client connected again.
    #[error("the client connected again")]
    Replaced,
    /// Its queue was full.
    #[error("slow consumer: its queue is full")]
    SlowConsumer,
    /// Its certificate counts no longer: it is revoked, has expired, or comes from an
    /// authority that is no longer trusted. The text says which.
    #[error("{0}")]
    Certificate(String),
    /// An operator ended it, see
    /// [`ServerConfig::operators`](super::ServerConfig::operators).
    #[error("ended by the operator {by}")]
    Kicked {
        /// The operator.
        by: Uuid,
    },
    /// The application ended it.
    #[error("ended by the application")]
    Application,
    /// The server stops.
    #[error("the server stops")]
    Stopped,
}

impl DisconnectReason {
    /// A word for it, out of a list that is fixed.
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
