//! Decodes bytes to typed messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::BytesMut;

use super::incoming::Incoming;
use crate::rpc::{self, Error, Limits};

/// The decoder of one connection: an [`rpc::Deframer`] that also reads the parameters and results
/// of each message.
///
/// It runs on the reader thread of the connection, so that parsing JSON takes no time of the
/// dispatcher.
#[derive(Debug)]
pub struct Decoder {
    messages: rpc::Deframer,
    /// Until the identity of the peer is accepted: the flag, and the limits from then on.
    before: Option<(Identified, Limits)>,
}

/// A flag for a [`Decoder`]: the identity of its peer is accepted. The dispatcher has a clone and
/// sets it.
#[derive(Clone, Debug, Default)]
pub struct Identified(Arc<AtomicBool>);

impl Identified {
    /// Sets the flag. Call it before the identity is answered, because the peer may send a long
    /// message as soon as it has the answer.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Decoder {
    /// The maximum length of a message before the identity is accepted, in bytes. The messages of
    /// libopflex until then have a few hundred bytes each, including lists of servers.
    pub const BEFORE_IDENTITY: usize = 256 * 1024;

    /// The approximate memory that all messages before the identity may take together, in bytes.
    /// It is enough for a list of some hundred servers.
    pub const MEMORY_BEFORE_IDENTITY: usize = 1 << 20;

    /// A decoder for one stream. Until [`identified`](Self::identified) is set, a message may
    /// be no longer than [`Decoder::BEFORE_IDENTITY`], and all of them together may take no
    /// more memory than [`Decoder::MEMORY_BEFORE_IDENTITY`].
    pub fn new(limits: Limits) -> Self {
        let before = Limits {
            message: limits.message.min(Self::BEFORE_IDENTITY),
            memory: limits.memory.min(Self::MEMORY_BEFORE_IDENTITY),
            ..limits
        };
        Self {
            messages: rpc::Deframer::new(before),
            before: Some((Identified::default(), limits)),
        }
    }

    /// A decoder for a stream on which no identity is sent, such as the control socket. The limits
    /// apply from the first message on.
    pub fn without_identity(limits: Limits) -> Self {
        Self {
            messages: rpc::Deframer::new(limits),
            before: None,
        }
    }

    /// The flag that has to be set when the identity of the peer is accepted.
    pub fn identified(&self) -> Identified {
        let before = self.before.as_ref();
        before.map_or_else(Identified::default, |(identified, _)| identified.clone())
    }

    /// Removes the complete messages from the front of `buffer` and appends them to `out`; see
    /// [`rpc::Deframer::decode`].
    pub fn decode(&mut self, buffer: &mut BytesMut, out: &mut Vec<Incoming>) -> Result<(), Error> {
        loop {
            if let Some((_, after)) = self
                .before
                .take_if(|(identified, _)| identified.0.load(Ordering::Acquire))
            {
                self.messages.set_limits(after);
            }
            let Some(message) = self.messages.decode_one(buffer)? else {
                return Ok(());
            };
            if self.before.is_some() {
                // The limit falls by the memory of each message and does not rise again when the
                // message is handled. A peer needs few messages before its identity, and counting
                // handled messages would need a signal from the dispatcher.
                let mut limits = self.messages.limits();
                limits.memory = limits.memory.saturating_sub(self.messages.memory());
                self.messages.set_limits(limits);
            }
            out.push(Incoming::read(message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(decoder: &mut Decoder, text: &str) -> Result<usize, Error> {
        let mut out = Vec::new();
        let mut buffer = BytesMut::from(text.as_bytes());
        decoder.decode(&mut buffer, &mut out).map(|()| out.len())
    }

    fn echo(params: &str) -> String {
        format!("{{\"id\":1,\"method\":\"echo\",\"params\":[{params}]}}\0")
    }

    const IDENTITY: &str = "{\"id\":1,\"method\":\"send_identity\",\"params\":[{}]}\0";

    #[test]
    fn long_messages_are_refused_until_the_identity_is_accepted() {
        let long = echo(&format!("\"{}\"", "x".repeat(300_000)));
        let new = || Decoder::new(Limits::default());
        let limit = Decoder::BEFORE_IDENTITY;
        assert_eq!(decode(&mut new(), &long), Err(Error::TooLong { limit }));
        // A received identity does not raise the limits, because the server may refuse it.
        let mut refused = new();
        assert_eq!(decode(&mut refused, IDENTITY), Ok(1));
        assert_eq!(decode(&mut refused, &long), Err(Error::TooLong { limit }));
        let mut accepted = new();
        assert_eq!(decode(&mut accepted, IDENTITY), Ok(1));
        accepted.identified().set();
        assert_eq!(decode(&mut accepted, &format!("{long}{long}")), Ok(2));
    }

    #[test]
    fn memory_before_the_identity_has_a_limit_of_its_own() {
        let mut decoder = Decoder::new(Limits::default());
        // A value takes half as much on a system of 32 bits.
        let values = "{\"\":0},".repeat(64_000 / usize::BITS as usize) + "0";
        // One message takes two thirds of the memory, so the second is not read.
        assert_eq!(decode(&mut decoder, &echo(&values)), Ok(1));
        let second = decode(&mut decoder, &echo(&values));
        assert!(matches!(second, Err(Error::TooMuch { .. })), "{second:?}");
        let mut decoder = Decoder::new(Limits::default());
        decoder.identified().set();
        assert_eq!(decode(&mut decoder, &echo(&values).repeat(100)), Ok(100));
        let many = "{\"\":0},".repeat(1_000_000) + "0";
        let limit = Limits::default().memory;
        assert_eq!(decode(&mut decoder, &echo(&many)), Err(Error::TooMuch { limit }));
    }
}
