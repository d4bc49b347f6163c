//! The codec for the transport, the encoding of outgoing frames, and the time stamps of traces.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::BytesMut;
use uuid::Uuid;

use crate::proto::{Codec, Frame, Header, Item, Operands, ProtocolError};
use ssntp_pki::Role;
use ssntp_transport::{Decode, Outgoing, nanoseconds, wall_clock};

/// The application protocol (ALPN) of a connection with which a node joins.
pub(crate) const JOIN_PROTOCOL: &[u8] = b"ssntp-join/1";

/// The codec of a connection's reader. It also stamps traced frames and counts malformed traces.
#[derive(Debug)]
pub struct Decoder {
    codec: Codec,
    bad_traces: Arc<AtomicU64>,
    /// The UUID and the roles of this end, for traces.
    receiver: (Uuid, Role),
}

impl Decoder {
    pub(super) fn new(
        max_payload: u32,
        tracing: bool,
        operands: Operands,
        bad_traces: Arc<AtomicU64>,
        receiver: (Uuid, Role),
    ) -> Self {
        Self {
            codec: Codec::new(max_payload, tracing).operands(operands),
            bad_traces,
            receiver,
        }
    }

    /// The codec of a link's reader.
    pub(super) fn of_links(max_payload: u32) -> Self {
        Self {
            codec: Codec::of_links(max_payload),
            bad_traces: Arc::default(),
            receiver: (Uuid::nil(), Role::NONE),
        }
    }
}

impl Decode for Decoder {
    type Item = Item;
    type Error = ProtocolError;

    fn decode(&mut self, input: &mut BytesMut, items: &mut Vec<Item>) -> Result<(), ProtocolError> {
        let (before, bad_traces) = (items.len(), self.codec.bad_traces());
        let result = self.codec.decode(input, items);
        for item in &mut items[before..] {
            if let Item::Traced(frame) = item
                && let Some(trace) = frame.trace_mut()
            {
                let (uuid, role) = self.receiver;
                trace.stamp_received(uuid, role, nanoseconds(wall_clock()));
            }
        }
        let more = self.codec.bad_traces() - bad_traces;
        if more > 0 {
            self.bad_traces.fetch_add(more, Ordering::Relaxed);
        }
        result
    }

    fn wanted(&self) -> usize {
        self.codec.wanted()
    }

    fn skips(&self) -> bool {
        self.codec.skips()
    }
}

/// Encodes a frame for sending: with its trace if the session agreed on tracing, otherwise without. The
/// payload is shared; it is copied only with a trace.
pub(super) fn outgoing(frame: &Frame, tracing: bool) -> Outgoing {
    if tracing && frame.trace().is_some() {
        return Outgoing::whole(frame.encode(), 1);
    }
    let mut header = frame.header();
    header.major &= !Header::TRACE_FLAG;
    Outgoing::framed(header.encode(), frame.payload_bytes().clone())
}
