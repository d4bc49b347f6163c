//! The errors of sending, and of calls that wait for the dispatcher.

use uuid::Uuid;

use crate::proto::FrameKind;

/// The reason for which a call of a [`ServerHandle`](super::ServerHandle) was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server has stopped.
    #[error("the server has stopped")]
    Stopped,
    /// A call that waits for a dispatcher was made on a dispatcher thread, of this or another server. Two
    /// dispatchers could wait for each other. Use the [`Context`](super::Context), or
    /// [`ServerHandle::post`](super::ServerHandle::post).
    #[error("a handler has to use its context, or to post, and not to wait for a dispatcher")]
    OnDispatcher,
    /// The channel to the dispatcher is full. Try again.
    #[error("the dispatcher is busy")]
    Busy,
    /// The server's handler is not of the type that was named in
    /// [`ServerHandle::with_handler`](super::ServerHandle::with_handler).
    #[error("the server's handler is of another type")]
    OtherHandler,
}

/// The reason for which a server has not queued a frame for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// No session has that UUID.
    #[error("{0} is not connected")]
    NotConnected(Uuid),
    /// The frame would be forwarded to the session that it came from.
    #[error("the frame came from {0} and is not sent back to it")]
    ToSender(Uuid),
    /// The kind cannot be sent: CONNECT, CONNECTED, a kind that is neither defined by the protocol nor
    /// registered, or a request. Requests are sent by
    /// [`ServerHandle::request`](super::ServerHandle::request).
    #[error("{0} cannot be sent on an established session")]
    Kind(FrameKind),
    /// A payload of an application's own type cannot be encoded. [`Frame::try_of`](crate::Frame::try_of)
    /// returns the reason.
    #[error("the payload of {0} cannot be written")]
    Payload(FrameKind),
    /// The payload is longer than the server's `max_payload`. Peers are expected to have the same limit.
    #[error("the payload has {len} bytes, the maximum is {limit}")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The maximum in bytes.
        limit: u32,
    },
    /// The call was not made.
    #[error(transparent)]
    Call(#[from] CallError),
}
