//! Cuts the bytes of a stream into messages. The bytes may arrive in pieces of any size.

use bytes::{Buf, BytesMut};

use super::error::Error;
use super::limits::Limits;
use super::message::Message;
use super::scanner::Scanner;

/// The JSON parser uses the stack for each level and fails at 128.
const MAX_NESTING: usize = 100;

/// Removes complete messages from the front of a buffer. Each ends with one NUL byte, as in
/// libopflex. Empty and blank frames are skipped.
///
/// The transport appends the bytes that it has read and calls [`decode`](Self::decode). The bytes
/// that stay in the buffer are the beginning of the next message. Each byte is scanned once, also
/// if the pieces are small. A message is refused as soon as it exceeds a limit.
///
/// ```
/// use bytes::BytesMut;
/// use ssntp_opflex::rpc::Deframer;
///
/// let mut decoder = Deframer::new(Default::default());
/// let mut buffer = BytesMut::from(&b"{\"id\":1,\"method\":\"echo\"}\0{\"id\":2,"[..]);
/// let mut messages = Vec::new();
/// decoder.decode(&mut buffer, &mut messages)?;
/// assert_eq!(messages.len(), 1);
/// assert_eq!(&buffer[..], b"{\"id\":2,");
/// # Ok::<(), ssntp_opflex::rpc::Error>(())
/// ```
#[derive(Debug)]
pub struct Deframer {
    limits: Limits,
    scanner: Scanner,
    /// The number of bytes of the buffer that are scanned.
    scanned: usize,
    /// The approximate memory of the last message, in bytes.
    memory: usize,
    /// The first error. It is final.
    failed: Option<Error>,
}

impl Deframer {
    /// A decoder for one stream.
    pub fn new(limits: Limits) -> Self {
        let mut decoder = Self {
            limits,
            scanner: Scanner::default(),
            scanned: 0,
            memory: 0,
            failed: None,
        };
        decoder.set_limits(limits);
        decoder
    }

    /// Removes the complete messages from the front of `buffer` and appends them to `out`. An
    /// incomplete message stays in the buffer.
    ///
    /// # Errors
    /// The connection has to be closed, and every further call returns the same error. `out` has
    /// the messages before the bad one.
    pub fn decode(&mut self, buffer: &mut BytesMut, out: &mut Vec<Message>) -> Result<(), Error> {
        while let Some(message) = self.decode_one(buffer)? {
            out.push(message);
        }
        Ok(())
    }

    /// Removes one message from the front of `buffer`. `None` if no complete message is there.
    pub fn decode_one(&mut self, buffer: &mut BytesMut) -> Result<Option<Message>, Error> {
        // After an error it is not known where the next message begins.
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.take(buffer);
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    /// Sets other limits. They apply from the next byte on, also to a message that has arrived in
    /// part.
    pub fn set_limits(&mut self, limits: Limits) {
        let nesting = limits.nesting.min(MAX_NESTING);
        self.limits = Limits { nesting, ..limits };
    }

    /// The limits in force.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// The approximate memory of the last message, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    fn take(&mut self, buffer: &mut BytesMut) -> Result<Option<Message>, Error> {
        if self.scanned == 0 && !skip_to_text(buffer)? {
            return Ok(None);
        }
        let Some(end) = self.find_end(buffer)? else {
            return Ok(None);
        };
        // Ids and payloads are slices of the received memory, so this copies nothing.
        let text = buffer.split_to(end).freeze();
        self.memory = self.scanner.memory() + text.len();
        self.scanner.restart();
        self.scanned = 0;
        Message::parse(&text).map(Some)
    }

    /// The length of the text at the front of the buffer. `None` until it is complete.
    fn find_end(&mut self, buffer: &BytesMut) -> Result<Option<usize>, Error> {
        let Limits { message, memory, .. } = self.limits;
        let end = self.scanner.scan(&buffer[self.scanned..], &self.limits)?;
        let end = end.map(|at| self.scanned + at);
        self.scanned = end.map_or(buffer.len(), |end| end + 1);
        // Checked with each piece that arrives, so that a message that is too long is refused
        // before its rest is stored.
        if end.unwrap_or(self.scanned) > message {
            return Err(Error::TooLong { limit: message });
        }
        if self.scanner.memory() + self.scanned > memory {
            return Err(Error::TooMuch { limit: memory });
        }
        Ok(end)
    }
}

/// Drops blanks and NUL bytes before a text. Returns true if a text begins.
fn skip_to_text(buffer: &mut BytesMut) -> Result<bool, Error> {
    let is_blank = |byte: &&u8| matches!(**byte, b' ' | b'\t' | b'\r' | b'\n' | 0);
    buffer.advance(buffer.iter().take_while(is_blank).count());
    match buffer.first() {
        None => Ok(false),
        Some(b'{') => Ok(true),
        Some(first) => Err(Error::NotAnObject { first: *first }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rpc::Id;

    fn decoder(message: usize) -> Deframer {
        Deframer::new(Limits {
            message,
            memory: usize::MAX,
            nesting: 8,
        })
    }

    /// Feeds the stream in pieces of the given sizes, the last one repeated.
    fn feed(decoder: &mut Deframer, stream: &[u8], sizes: &[usize]) -> (Vec<Message>, Result<(), Error>) {
        let mut buffer = BytesMut::new();
        let mut out = Vec::new();
        let mut rest = stream;
        let mut sizes = sizes
            .iter()
            .copied()
            .chain(std::iter::repeat(*sizes.last().unwrap()));
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(sizes.next().unwrap().clamp(1, rest.len()));
            buffer.extend_from_slice(piece);
            if let Err(error) = decoder.decode(&mut buffer, &mut out) {
                return (out, Err(error));
            }
            rest = after;
        }
        (out, Ok(()))
    }

    fn whole(stream: &[u8]) -> (Vec<Message>, Result<(), Error>) {
        feed(&mut decoder(1000), stream, &[stream.len()])
    }

    #[test]
    fn blank_frames_and_blanks_around_texts_are_skipped() {
        let stream = b"\0\0 \n\0 {\"id\":1,\"method\":\"a\"} \r\n\0{\"id\":[\"a\",1],\"result\":[]}\0";
        let (messages, result) = whole(stream);
        assert_eq!(result, Ok(()));
        assert_eq!(messages.len(), 2);
        assert!(matches!(&messages[1], Message::Response { id, .. } if *id == Id::call("a", 1)));
    }

    #[test]
    fn each_text_needs_its_own_nul() {
        let stream = br#"{"id":1,"method":"a"}{"id":2,"method":"b"} {"id":3,"method":"c"}"#;
        let (messages, result) = whole(stream);
        assert_eq!((messages.len(), result), (0, Ok(())));

        let closed = [&stream[..], b"\0"].concat();
        let (messages, result) = whole(&closed);
        assert_eq!(messages.len(), 0);
        assert!(matches!(result, Err(Error::Syntax(_))));
    }

    #[test]
    fn another_protocol_is_refused_at_its_first_byte() {
        for stream in [&b"GET / HTTP/1.1"[..], b"[1]\0", b"7\0", b"\x16\x03\x01"] {
            let (_, result) = whole(stream);
            assert_eq!(result, Err(Error::NotAnObject { first: stream[0] }));
        }
    }

    #[test]
    fn a_message_may_be_as_long_as_the_limit_and_no_longer() {
        let text = br#"{"id":1,"method":"a"}"#;
        let stream = [&text[..], b"\0"].concat();
        for size in [1, 5, 100] {
            let (messages, result) = feed(&mut decoder(text.len()), &stream, &[size]);
            assert_eq!((messages.len(), result), (1, Ok(())));
            let limit = text.len() - 1;
            let (messages, result) = feed(&mut decoder(limit), &stream, &[size]);
            assert_eq!((messages.len(), result), (0, Err(Error::TooLong { limit })));
        }
    }

    #[test]
    fn the_limit_does_not_wait_for_the_end_of_the_message() {
        let mut buffer = BytesMut::from(&b"{\"id\":\""[..]);
        let mut decoder = decoder(100);
        buffer.extend_from_slice(&[b'x'; 100]);
        let error = Err(Error::TooLong { limit: 100 });
        assert_eq!(decoder.decode(&mut buffer, &mut Vec::new()), error);
        assert_eq!(decoder.decode(&mut BytesMut::new(), &mut Vec::new()), error);
    }

    #[test]
    fn blanks_without_end_need_no_memory() {
        let mut decoder = decoder(100);
        let mut buffer = BytesMut::new();
        for _ in 0..1000 {
            buffer.extend_from_slice(&[b' '; 1000]);
            decoder.decode(&mut buffer, &mut Vec::new()).unwrap();
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn nesting_is_limited_while_it_arrives() {
        let mut stream = br#"{"id":1,"method":"a","params":"#.to_vec();
        stream.extend_from_slice(&[b'['; 8]);
        let (_, result) = feed(&mut decoder(1000), &stream, &[1]);
        assert_eq!(result, Err(Error::TooDeep { limit: 8 }));
    }

    #[test]
    fn messages_before_the_bad_one_are_delivered() {
        let stream = b"{\"id\":1,\"method\":\"a\"}\0{\"method\":\"a\"}\0";
        let (messages, result) = whole(stream);
        assert_eq!((messages.len(), result), (1, Err(Error::NoId)));
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_messages(
            texts in prop::collection::vec("[ -~é]{0,20}", 1..5),
            sizes in prop::collection::vec(1usize..30, 1..10),
        ) {
            let mut stream = Vec::new();
            for (n, text) in texts.iter().enumerate() {
                let message = serde_json::json!({"id": [text, n], "method": text, "params": [{"a": text}]});
                stream.extend_from_slice(message.to_string().as_bytes());
                stream.push(0);
            }
            let expected = whole(&stream);
            prop_assert_eq!(expected.0.len(), texts.len());
            prop_assert_eq!(feed(&mut decoder(1000), &stream, &sizes), expected);
        }

        #[test]
        fn random_bytes_never_panic(
            stream in prop::collection::vec(prop_oneof![
                any::<u8>(),
                prop::sample::select(&b"{}[]\"\\,:0ain\0 "[..]),
            ], 0..300),
            sizes in prop::collection::vec(1usize..30, 1..10),
        ) {
            let once = feed(&mut decoder(100), &stream, &[300]);
            let split = feed(&mut decoder(100), &stream, &sizes);
            prop_assert_eq!(once, split);
        }
    }
}
