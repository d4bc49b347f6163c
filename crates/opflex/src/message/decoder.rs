//! Bytes to typed messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::BytesMut;

use super::Incoming;
use crate::rpc::{self, Error, Limits};

/// The decoder of one connection: [`rpc::Decoder`], and each message read as
/// its method asks.
///
/// It runs on the thread that reads the bytes of the connection, so that parsing JSON does
/// not take time of the dispatcher.
#[derive(Debug)]
pub struct Decoder {
    messages: rpc::Decoder,
    /// Until the identity of the peer is accepted.
    before: Option<BeforeIdentity>,
}

/// The limits until the identity of the peer is accepted.
#[derive(Debug)]
struct BeforeIdentity {
    identified: Identified,
    /// The limits from then on.
    after: Limits,
}

/// Tells a [`Decoder`] that the identity of its peer is accepted. The thread that judges
/// identities has a clone.
#[derive(Clone, Debug, Default)]
pub struct Identified(Arc<AtomicBool>);

impl Identified {
    /// The identity is accepted. To be called before the peer is told so, which may send a
    /// long message then.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Decoder {
    /// The longest message that is taken before the identity, in bytes. Those
    /// of libopflex have some hundred, lists of servers included.
    pub const BEFORE_IDENTITY: usize = 256 * 1024;

    /// About how many bytes of memory all messages before the identity may take together:
    /// a list of some hundred servers. A peer without identity gets no more of the memory.
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
            messages: rpc::Decoder::new(before),
            before: Some(BeforeIdentity {
                identified: Identified::default(),
                after: limits,
            }),
        }
    }

    /// A decoder for a stream on which no identity is sent.
    pub fn trusting(limits: Limits) -> Self {
        Self {
            messages: rpc::Decoder::new(limits),
            before: None,
        }
    }

    /// The flag to set when the identity of the peer is accepted.
    pub fn identified(&self) -> Identified {
        let before = self.before.as_ref();
        before.map_or_else(Identified::default, |before| before.identified.clone())
    }

    /// Takes the complete messages off the front of `buffer` and appends them
    /// to `out`; see [`rpc::Decoder::decode`].
    pub fn decode(&mut self, buffer: &mut BytesMut, out: &mut Vec<Incoming>) -> Result<(), Error> {
        loop {
            if let Some(before) = self
                .before
                .take_if(|before| before.identified.0.load(Ordering::Acquire))
            {
                self.messages.set_limits(before.after);
            }
            let Some(message) = self.messages.decode_one(buffer)? else {
                return Ok(());
            };
            if self.before.is_some() {
                // Counted until the identity, and never given back: messages may wait for the
                // dispatcher, and a peer needs few of them.
                let mut limits = self.messages.limits();
                limits.memory = limits.memory.saturating_sub(self.messages.memory());
                self.messages.set_limits(limits);
            }
            out.push(Incoming::read(message));
        }
    }

    /// To be called at the end of the stream: an error if a message is unfinished.
    pub fn end(&self, buffer: &BytesMut) -> Result<(), Error> {
        self.messages.end(buffer)
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
    fn long_messages_are_for_those_whose_identity_is_accepted() {
        let long = echo(&format!("\"{}\"", "x".repeat(300_000)));
        let new = || Decoder::new(Limits::default());
        let limit = Decoder::BEFORE_IDENTITY;
        assert_eq!(decode(&mut new(), &long), Err(Error::TooLong { limit }));
        // An identity alone changes nothing: the server may refuse it.
        let mut refused = new();
        assert_eq!(decode(&mut refused, IDENTITY), Ok(1));
        assert_eq!(decode(&mut refused, &long), Err(Error::TooLong { limit }));
        let mut accepted = new();
        assert_eq!(decode(&mut accepted, IDENTITY), Ok(1));
        accepted.identified().set();
        assert_eq!(decode(&mut accepted, &format!("{long}{long}")), Ok(2));
    }

    #[test]
    fn a_peer_without_identity_gets_little_memory_however_short_its_text() {
        let mut decoder = Decoder::new(Limits::default());
        let values = "{\"\":0},".repeat(1000) + "0";
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
