//! The bytes on the wire: the header, the operands of the four frame types, the two frames of the
//! handshake, and the trace block.
//!
//! ```text
//!  0       1       2      3         4          8
//!  +-------+-------+------+---------+----------+ - - - - - - - - +---------+
//!  | major | minor | type | operand |  length  | trace (if flag) | payload |
//!  +-------+-------+------+---------+----------+ - - - - - - - - +---------+
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `header` | [`Header`], [`FrameType`], [`FrameKind`] |
//! | `command`, `status`, `event`, `error` | the operands of each type |
//! | `operand` | macros for numbers with names |
//! | `connect` | [`Connect`], [`Connected`] |
//! | `trace` | [`Trace`] and its hops |
//! | `traceparent` | [`TraceParent`]: the W3C trace context in a label |
//! | `fields`, `annotate` | each field with its place, as the decoders read it |
//!
//! All integers are big-endian; a UUID is its 16 raw bytes.

mod annotate;
mod command;
mod connect;
mod error;
mod event;
#[doc(hidden)]
pub mod fields;
mod header;
mod operand;
mod status;
mod trace;
mod traceparent;

use bytes::Bytes;

pub use self::command::Command;
pub use self::connect::{Connect, Connected};
pub use self::error::ErrorCode;
pub use self::event::Event;
pub(crate) use self::fields::Fields;
pub use self::header::{FrameKind, FrameType, Header, ParseKindError};
pub use self::status::Status;
pub use self::trace::{BadTrace, Hop, Trace, TraceNode};
pub use self::traceparent::{BadTraceParent, TraceParent};

/// A frame of an established session: its kind, its payload, and perhaps a trace. A clone shares
/// the payload's bytes.
///
/// ```
/// use ssntp::proto::{Frame, Status};
///
/// let frame = Frame::new(Status::FULL);
/// assert_eq!(frame.encode()[..], [0, 1, 1, 2, 0, 0, 0, 0]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    kind: FrameKind,
    payload: Bytes,
    // Boxed, because frames wait in queues, and nearly all of them have no trace.
    trace: Option<Box<Trace>>,
}

impl Frame {
    /// A frame without payload.
    pub fn new(kind: impl Into<FrameKind>) -> Self {
        Self::with_payload(kind, Bytes::new())
    }

    /// A frame with a payload.
    pub fn with_payload(kind: impl Into<FrameKind>, payload: impl Into<Bytes>) -> Self {
        Self {
            kind: kind.into(),
            payload: payload.into(),
            trace: None,
        }
    }

    /// The same frame with this trace.
    #[must_use]
    pub fn traced(mut self, trace: Trace) -> Self {
        self.trace = Some(Box::new(trace));
        self
    }

    /// A frame with another payload and the same kind and trace.
    pub(crate) fn carrying(&self, payload: Bytes) -> Self {
        Self {
            kind: self.kind,
            payload,
            trace: self.trace.clone(),
        }
    }

    /// The type and the operand.
    pub fn kind(&self) -> FrameKind {
        self.kind
    }

    /// The payload's bytes; empty if there is no payload.
    pub fn payload_bytes(&self) -> &Bytes {
        &self.payload
    }

    /// The trace. `None` if the frame has none.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_deref()
    }

    /// The trace, to stamp it.
    pub fn trace_mut(&mut self) -> Option<&mut Trace> {
        self.trace.as_deref_mut()
    }

    /// Removes the trace.
    pub fn take_trace(&mut self) -> Option<Trace> {
        self.trace.take().map(|trace| *trace)
    }

    /// The length on the wire in bytes.
    pub fn encoded_len(&self) -> usize {
        Header::LEN + self.trace.as_ref().map_or(0, |t| 4 + t.encoded_len()) + self.payload.len()
    }

    /// The header, with the trace flag if there is a trace. Senders refuse payloads that are far
    /// shorter than the 4 GiB that the header can announce.
    pub fn header(&self) -> Header {
        let mut header = Header::new(self.kind, u32::try_from(self.payload.len()).unwrap_or(u32::MAX));
        // The length in the header does not include the trace block.
        if self.trace.is_some() {
            header.major |= Header::TRACE_FLAG;
        }
        header
    }

    /// The frame's bytes in one piece.
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(self.encoded_len());
        bytes.extend(self.header().encode());
        if let Some(trace) = &self.trace {
            // The length fits: a label of 255 bytes and 32 hops have fewer than 4096 bytes.
            let length = u32::try_from(trace.encoded_len()).unwrap_or(u32::MAX);
            bytes.extend(length.to_be_bytes());
            trace.encode(&mut bytes);
        }
        bytes.extend(&self.payload);
        bytes.into()
    }
}
