//! Bytes to typed messages.

use bytes::BytesMut;

use super::{Incoming, Reply, Request};
use crate::rpc::{self, Error, Framing, Limits};

/// The decoder of one connection: [`rpc::Decoder`], and each message read as
/// its method asks.
///
/// It runs where the bytes are read, so that the work of reading JSON is done
/// on the thread of the connection that sent it and not on the one that owns
/// all state.
#[derive(Debug)]
pub struct Decoder {
    messages: rpc::Decoder,
    /// The limits from the identity on, as long as it has not been seen.
    after_identity: Option<Limits>,
}

impl Decoder {
    /// The longest message that is taken before the identity, in bytes. Those
    /// of libopflex have some hundred, lists of servers included.
    pub const BEFORE_IDENTITY: usize = 256 * 1024;

    /// A decoder for one stream. Until the peer has told its identity, a
    /// message may be no longer than [`Decoder::BEFORE_IDENTITY`]: who is
    /// nobody yet gets no memory to speak of.
    pub fn new(framing: Framing, limits: Limits) -> Self {
        let before = Limits {
            message: limits.message.min(Self::BEFORE_IDENTITY),
            ..limits
        };
        Self {
            messages: rpc::Decoder::new(framing, before),
            after_identity: Some(limits),
        }
    }

    /// A decoder for a stream from somebody who need not tell who he is.
    pub fn trusting(framing: Framing, limits: Limits) -> Self {
        Self {
            messages: rpc::Decoder::new(framing, limits),
            after_identity: None,
        }
    }

    /// Takes the complete messages off the front of `buffer` and appends them
    /// to `out`; see [`rpc::Decoder::decode`].
    pub fn decode(&mut self, buffer: &mut BytesMut, out: &mut Vec<Incoming>) -> Result<(), Error> {
        while let Some(message) = self.messages.decode_one(buffer)? {
            let message = Incoming::read(message);
            // Raised on the reader's own thread: the next message may already be in the buffer.
            if let Some(limits) = self.after_identity.take_if(|_| is_identity(&message)) {
                self.messages.set_limits(limits);
            }
            out.push(message);
        }
        Ok(())
    }

    /// What the end of the stream means: an error when a message is unfinished.
    pub fn end(&self, buffer: &BytesMut) -> Result<(), Error> {
        self.messages.end(buffer)
    }
}

fn is_identity(message: &Incoming) -> bool {
    matches!(
        message,
        Incoming::Request {
            request: Request::SendIdentity(_),
            ..
        } | Incoming::Result {
            reply: Reply::SendIdentity(_),
            ..
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_for_those_who_have_a_name() {
        let echo = format!(
            "{{\"id\":1,\"method\":\"echo\",\"params\":[\"{}\"]}}\0",
            "x".repeat(300_000)
        );
        let identity = "{\"id\":1,\"method\":\"send_identity\",\"params\":[{}]}\0";
        let result = "{\"id\":[\"send_identity\",1],\"result\":{}}\0";
        let decode = |text: String| {
            let mut out = Vec::new();
            let mut decoder = Decoder::new(Framing::Nul, Limits::default());
            decoder
                .decode(&mut BytesMut::from(text.as_bytes()), &mut out)
                .map(|()| out.len())
        };
        let limit = Decoder::BEFORE_IDENTITY;
        assert_eq!(decode(echo.clone()), Err(Error::TooLong { limit }));
        assert_eq!(decode(format!("{identity}{echo}")), Ok(2));
        assert_eq!(decode(format!("{result}{echo}{echo}")), Ok(3));
    }
}
