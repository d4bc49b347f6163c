//! Bytes to typed messages.

use bytes::BytesMut;

use super::Incoming;
use crate::opflex::rpc::{self, Error, Framing, Limits};

/// The decoder of one connection: [`rpc::Decoder`], and each message read as
/// its method asks.
///
/// It runs where the bytes are read, so that the work of reading JSON is done
/// on the thread of the connection that sent it and not on the one that owns
/// all state.
#[derive(Debug)]
pub struct Decoder {
    messages: rpc::Decoder,
    /// Empty between calls; kept for its memory.
    raw: Vec<rpc::Message>,
}

impl Decoder {
    /// A decoder for one stream.
    pub fn new(framing: Framing, limits: Limits) -> Self {
        Self {
            messages: rpc::Decoder::new(framing, limits),
            raw: Vec::new(),
        }
    }

    /// Takes the complete messages off the front of `buffer` and appends them
    /// to `out`; see [`rpc::Decoder::decode`].
    pub fn decode(&mut self, buffer: &mut BytesMut, out: &mut Vec<Incoming>) -> Result<(), Error> {
        let result = self.messages.decode(buffer, &mut self.raw);
        out.extend(self.raw.drain(..).map(Incoming::read));
        result
    }

    /// What the end of the stream means: an error when a message is unfinished.
    pub fn end(&self, buffer: &BytesMut) -> Result<(), Error> {
        self.messages.end(buffer)
    }
}
