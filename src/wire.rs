//! Frames on their way into the transport, and stamps on the way.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::BytesMut;

use crate::proto::{Codec, Frame, Item, ProtocolError, TRACE_FLAG};
use ssntp_transport::{Decode, Outgoing};

impl Decode for Codec {
    type Item = Item;
    type Error = ProtocolError;

    fn decode(&mut self, input: &mut BytesMut, items: &mut Vec<Item>) -> Result<(), ProtocolError> {
        Codec::decode(self, input, items)
    }

    fn wanted(&self) -> usize {
        Codec::wanted(self)
    }
}

/// A frame as it leaves: with its trace where the session agreed on tracing,
/// else without. The payload is shared; only a trace makes it be copied.
pub(super) fn outgoing(frame: &Frame, tracing: bool) -> Outgoing {
    if tracing && frame.trace().is_some() {
        return Outgoing::whole(frame.encode(), 1);
    }
    let mut header = frame.header();
    header.major &= !TRACE_FLAG;
    Outgoing::framed(header.encode(), frame.payload_bytes().clone())
}

/// The time of a stamp: nanoseconds since the Unix epoch.
#[expect(clippy::disallowed_methods, reason = "stamps are what the clock is for")]
pub(super) fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
