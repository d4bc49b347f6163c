//! Why a connection has to be closed.

/// The peer does not speak this protocol, or goes beyond a limit. Every one of
/// these ends the connection, and none is answered: there is no message that
/// the answer could belong to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A message is longer than the limit. Known as soon as the byte too many
    /// has arrived; nothing of the message is read.
    #[error("a message is longer than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// The values of a message take more memory than the limit. Known before any of them is
    /// read.
    #[error("a message would take more than {limit} bytes of memory")]
    TooMuch {
        /// The limit in bytes.
        limit: usize,
    },
    /// A message nests deeper than the limit.
    #[error("a message nests deeper than {limit} levels")]
    TooDeep {
        /// The limit in brackets.
        limit: usize,
    },
    /// A text begins with something other than a brace, so it can't be an
    /// object: another protocol, or a JSON value that is no message.
    #[error("a message begins with {:?} instead of a brace{}", char::from(*first), hint(*first))]
    NotAnObject {
        /// The first byte.
        first: u8,
    },
    /// Not JSON, not UTF-8, two texts in one frame, or an envelope with a
    /// member twice. Has the message of the reader of JSON.
    #[error("a message is not one JSON object: {0}")]
    Syntax(String),
    /// The stream ended in the middle of a message.
    #[error("the stream ends inside a message")]
    Truncated,
    /// A message without `id` can't be answered and answers nothing.
    #[error("a message has no id")]
    NoId,
    /// The `method` is not a string.
    #[error("the method of a request is not a string")]
    MethodNotString,
    /// The `id` of a response is not an array, as all ids are that we and
    /// libopflex send.
    #[error("the id of a response is not an array")]
    ResponseId,
    /// Neither `method`, nor `result`, nor `error`.
    #[error("a message has neither method, result nor error")]
    NoOutcome,
    /// The `error` of a response is not an object.
    #[error("the error of a response is not an object")]
    ErrorNotObject,
    /// A response says both that the request succeeded and that it failed.
    #[error("a response has a result and an error")]
    ResultAndError,
}

/// The likely meaning of a first byte that is not a brace.
fn hint(first: u8) -> &'static str {
    match first {
        // The alerts and handshakes of TLS: one side has it and the other has not.
        0x15 | 0x16 => ": the peer speaks TLS, which is not used here",
        b'G' | b'P' | b'H' => ": the peer may speak HTTP",
        _ => "",
    }
}
