//! Why a connection ended.

use std::io;

/// Why a link ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndReason {
    /// The peer ended the stream in order.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The peer ended the stream inside an item.
    #[error("the peer closed the connection in the middle of a frame")]
    Truncated,
    /// This side closed or aborted it.
    #[error("closed by this side")]
    Local,
    /// Reading or writing failed.
    #[error("{}", shown(.0))]
    Io(io::Error),
    /// There is no memory for what the peer sends, for the reason in the text.
    #[error("{0}")]
    Memory(String),
    /// The peer broke the protocol.
    #[error("protocol error: {0}")]
    Protocol(Box<dyn std::error::Error + Send + Sync>),
}

impl EndReason {
    /// Whether nothing can be sent any more. If TLS refused a record, there is still an alert
    /// to send.
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
