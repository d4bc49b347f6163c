//! The first bytes of requests and their answers, by which an answer finds its request
//! (docs/protocol.md, "Requests and replies").

use bytes::{Bytes, BytesMut};
use uuid::Uuid;

use super::Frame;

/// The first bytes of the payload of a request and of its answer:
///
/// | bytes | content |
/// |---|---|
/// | 0 | 0 request, 1 reply, 2 refusal |
/// | 1 to 7 | sent as 0, ignored |
/// | 8 to 15 | the number that the sender of the request chose, and that the answer repeats |
/// | 16 to 31 | the UUID of the other end |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Request, reply or refusal.
    pub step: Step,
    /// The number of the request, chosen by its sender.
    pub id: u64,
    /// From a client to its server: the receiver of the request (nil: the server, or the session
    /// that its rules choose) or of the answer. From a server to a client: the sender of the request
    /// or of the answer.
    pub peer: Uuid,
}

/// The kind of an [`Exchange`], in the order of the numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A request.
    Request,
    /// An answer.
    Reply,
    /// The request is refused. The payload is the reason as text.
    Refusal,
}

impl Exchange {
    /// Its length in bytes.
    pub const LEN: usize = 32;

    /// Reads the beginning of a payload. `None` if the payload is too short or the step is unknown.
    pub fn read(payload: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = payload.first_chunk()?;
        let step = match bytes[0] {
            0 => Step::Request,
            1 => Step::Reply,
            2 => Step::Refusal,
            // An unknown step cannot be forwarded: it may be a request or an answer.
            _ => return None,
        };
        Some(Self {
            step,
            id: u64::from_be_bytes(*bytes[8..].first_chunk()?),
            peer: Uuid::from_slice(&bytes[16..]).ok()?,
        })
    }

    /// The 32 bytes.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.step as u8;
        bytes[8..16].copy_from_slice(&self.id.to_be_bytes());
        bytes[16..].copy_from_slice(self.peer.as_bytes());
        bytes
    }

    /// The frame of this exchange with a content of the application.
    pub(crate) fn frame(&self, content: &Frame) -> Frame {
        self.carry(content, content.payload_bytes())
    }

    /// The same frame with this exchange instead of its own.
    pub(crate) fn readdress(&self, frame: &Frame) -> Frame {
        self.carry(frame, &content(frame))
    }

    fn carry(&self, frame: &Frame, content: &[u8]) -> Frame {
        let mut payload = BytesMut::with_capacity(Self::LEN + content.len());
        payload.extend_from_slice(&self.encode());
        payload.extend_from_slice(content);
        frame.carrying(payload.freeze())
    }
}

/// The content of the application, which follows the [`Exchange`].
pub(crate) fn content(frame: &Frame) -> Bytes {
    let payload = frame.payload_bytes();
    payload.slice(Exchange::LEN.min(payload.len())..)
}
