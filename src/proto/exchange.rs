//! How requests and their answers are told apart and find each other
//! (docs/protocol.md, "Requests and replies").

use bytes::{Bytes, BytesMut};
use uuid::Uuid;

use super::Frame;

/// Length of an [`Exchange`] in bytes.
pub const EXCHANGE_LEN: usize = 32;

/// What the payload of a request, and of an answer to one, begins with:
///
/// | bytes | what |
/// |---|---|
/// | 0 | 0 a request, 1 a reply, 2 a refusal |
/// | 1 to 7 | 0; not looked at |
/// | 8 to 15 | the asker's number for it, which its answer repeats |
/// | 16 to 31 | the UUID of the other end |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// What it is.
    pub step: Step,
    /// The asker's number for the request.
    pub id: u64,
    /// From a client to its server: who is asked (nil: the server, or whom its
    /// rules choose), or whose request is answered. From a server to a client:
    /// who asks, or who answers.
    pub peer: Uuid,
}

/// What a frame of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It asks.
    Request,
    /// It answers.
    Reply,
    /// It says that there will be no answer, and why, as text.
    Refusal,
}

impl Exchange {
    /// Reads what a payload begins with; `None` where it is shorter, or what it
    /// is is not known.
    pub fn read(payload: &[u8]) -> Option<Self> {
        let bytes: &[u8; EXCHANGE_LEN] = payload.first_chunk()?;
        let step = match bytes[0] {
            0 => Step::Request,
            1 => Step::Reply,
            2 => Step::Refusal,
            // A step of a later version cannot be passed on, because nobody knows whether it
            // asks or answers.
            _ => return None,
        };
        Some(Self {
            step,
            id: u64::from_be_bytes(*bytes[8..].first_chunk()?),
            peer: Uuid::from_slice(&bytes[16..]).ok()?,
        })
    }

    /// The 32 bytes.
    pub fn encode(&self) -> [u8; EXCHANGE_LEN] {
        let mut bytes = [0; EXCHANGE_LEN];
        bytes[0] = match self.step {
            Step::Request => 0,
            Step::Reply => 1,
            Step::Refusal => 2,
        };
        bytes[8..16].copy_from_slice(&self.id.to_be_bytes());
        bytes[16..].copy_from_slice(self.peer.as_bytes());
        bytes
    }

    /// The frame that says this with a content of the application.
    pub(crate) fn frame(&self, content: &Frame) -> Frame {
        self.carry(content, content.payload_bytes())
    }

    /// The same frame, as the other end is to see it.
    pub(crate) fn readdress(&self, frame: &Frame) -> Frame {
        self.carry(frame, &content(frame))
    }

    fn carry(&self, frame: &Frame, content: &[u8]) -> Frame {
        let mut payload = BytesMut::with_capacity(EXCHANGE_LEN + content.len());
        payload.extend_from_slice(&self.encode());
        payload.extend_from_slice(content);
        let carried = Frame::with_payload(frame.kind(), payload.freeze());
        match frame.trace() {
            Some(trace) => carried.traced(trace.clone()),
            None => carried,
        }
    }
}

/// What follows the [`Exchange`] of a payload.
pub(crate) fn content(frame: &Frame) -> Bytes {
    let payload = frame.payload_bytes();
    payload.slice(EXCHANGE_LEN.min(payload.len())..)
}
