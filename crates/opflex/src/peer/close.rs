//! Why we end a connection.

use crate::message::{ErrorResponse, Method};

/// Why we end a connection. The peer is told only where there is a request to
/// answer; the reason is for the log and for events.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer sent a request before the identities were exchanged. It was
    /// answered with ESTATE.
    #[error("{} before the identity", .0.map_or("an unknown method", Method::name))]
    RequestBeforeIdentity(Option<Method>),
    /// The peer answered something before the identities were exchanged.
    #[error("an answer to {0} before the identity")]
    ResponseBeforeIdentity(Method),
    /// The identities were not exchanged in time.
    #[error("no identity in time")]
    IdentityTimeout,
    /// The peer said nothing for too long.
    #[error("silent for too long")]
    Silent,
    /// Somebody with the same name connected.
    #[error("another connection has the same name")]
    Replaced,
    /// The server refused our identity.
    #[error("our identity was refused: {0}")]
    IdentityRefused(ErrorResponse),
    /// The server's identity can't be used.
    #[error("unusable identity: {0}")]
    BadIdentity(String),
    /// The server is not in its own list of servers; the others are.
    #[error("the server names only others")]
    NotInItsList,
    /// No server names this one any more.
    #[error("no server names it any more")]
    NotListed,
    /// The user wants to begin again, or to end.
    #[error("asked for")]
    Asked,
    /// The connection could not be made, or ended by itself: the system or TLS
    /// says why.
    #[error("{0}")]
    Failed(String),
}
