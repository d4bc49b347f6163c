//! The reasons for which this side ends a connection.

use crate::message::{ErrorResponse, Method};

/// The reason for which this side ends a connection, for the log and for events. The peer is sent
/// a reason only as the answer to a request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer sent a request before the identities were exchanged. It was
    /// answered with ESTATE.
    #[error("the peer sent {} before its identity", .0.map_or("an unknown method", Method::name))]
    RequestBeforeIdentity(Option<Method>),
    /// The peer sent a response before the identities were exchanged.
    #[error("the peer answered {0} before the identities were exchanged")]
    ResponseBeforeIdentity(Method),
    /// The time limit of connecting or of the exchange of identities has passed.
    #[error("the connection was not made, or the peer did not send its identity, in time")]
    IdentityTimeout,
    /// The peer has been silent for longer than
    /// [`KeepaliveSettings::silence`](super::KeepaliveSettings::silence).
    #[error("the peer has been silent for too long")]
    Silent,
    /// Another connection sent an identity with the same name, and the server requires unique names.
    #[error("a newer connection uses the same name")]
    Replaced,
    /// The certificate of the peer has ended.
    #[error("the peer's certificate has expired")]
    Expired,
    /// The server refused the identity of this element.
    #[error("the server refused our identity: {0}")]
    IdentityRefused(ErrorResponse),
    /// The server's identity can't be used.
    #[error("the server's identity can't be used: {0}")]
    BadIdentity(String),
    /// The list of servers that the server sent does not include the address that was dialled.
    #[error("the server lists only other servers")]
    NotInItsList,
    /// The server was learned from the list of another server, and no server lists it any more.
    #[error("no server lists this server any more")]
    NotListed,
    /// The application has reset or stopped the element.
    #[error("the element was reset or stopped")]
    Asked,
    /// The connection could not be made, or it failed. The text is the error of the system or of
    /// TLS.
    #[error("{0}")]
    Failed(String),
}
