//! The reason for the end of a connection.

use std::io;

/// The reason for the end of a link.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndReason {
    /// The peer ended the stream properly.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The peer ended the stream inside an item.
    #[error("the peer closed the connection in the middle of a frame")]
    Truncated,
    /// This side closed or aborted the link.
    #[error("closed by this side")]
    Local,
    /// Reading or writing failed.
    #[error("{}", shown(.0))]
    Io(io::Error),
    /// There is no memory for the peer's data, as the text explains.
    #[error("{0}")]
    Memory(String),
    /// The peer broke the protocol.
    #[error("protocol error: {0}")]
    Protocol(Box<dyn std::error::Error + Send + Sync>),
}

impl EndReason {
    /// True if no bytes can be sent any more. If TLS refused a record, there is still an alert to send.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Io(e) if e.kind() != io::ErrorKind::InvalidData)
    }
}

fn shown(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the connection was cut without close_notify".to_owned(),
        _ => error.to_string(),
    }
}
