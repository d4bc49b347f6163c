//! Why we end a connection.

use std::fmt;

use crate::message::{ErrorResponse, Method};

/// Why we end a connection. The peer is told only where there is a request to
/// answer; this is for the log and for who watches connections.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer sent a request before the identities were exchanged. It was
    /// answered with ESTATE.
    RequestBeforeIdentity(Option<Method>),
    /// The peer answered something before the identities were exchanged.
    ResponseBeforeIdentity(Method),
    /// The identities were not exchanged in time.
    IdentityTimeout,
    /// The peer said nothing for too long.
    Silent,
    /// Somebody with the same name connected.
    Replaced,
    /// The server refused our identity.
    IdentityRefused(ErrorResponse),
    /// The server's identity can't be used.
    BadIdentity(String),
    /// The server is not in its own list of servers; the others are.
    NotInItsList,
    /// No server names this one any more.
    NotListed,
    /// The user wants to begin again, or to end.
    Asked,
    /// The connection could not be made, or ended by itself: the system or TLS
    /// says why.
    Failed(String),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RequestBeforeIdentity(Some(method)) => write!(f, "{method} before the identity"),
            Self::RequestBeforeIdentity(None) => f.write_str("an unknown method before the identity"),
            Self::ResponseBeforeIdentity(method) => write!(f, "an answer to {method} before the identity"),
            Self::IdentityTimeout => f.write_str("no identity in time"),
            Self::Silent => f.write_str("silent for too long"),
            Self::Replaced => f.write_str("another connection has the same name"),
            Self::IdentityRefused(error) => write!(f, "our identity was refused: {error}"),
            Self::BadIdentity(fault) => write!(f, "unusable identity: {fault}"),
            Self::NotInItsList => f.write_str("the server names only others"),
            Self::NotListed => f.write_str("no server names it any more"),
            Self::Asked => f.write_str("asked for"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}
