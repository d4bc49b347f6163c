//! The faults for which a connection is closed.

/// The peer does not speak this protocol, or exceeds a limit. Each of these errors ends the
/// connection. None is answered, because there is no valid request to answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A message is longer than the limit. It is refused at the first byte beyond the limit.
    #[error("a message is longer than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// The values of a message would take more memory than the limit. It is refused before it is
    /// parsed.
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
    /// A text does not begin with a brace: it is of another protocol, or a JSON value that is not
    /// an object.
    #[error("a message begins with {:?} instead of a brace{}", char::from(*first), hint(*first))]
    NotAnObject {
        /// The first byte.
        first: u8,
    },
    /// Invalid JSON, two texts in one frame, or an envelope with a member twice. Has the message of
    /// the JSON parser.
    #[error("a message is not one JSON object: {0}")]
    Syntax(String),
    /// A message has no `id`, so it can neither be answered nor matched with a request.
    #[error("a message has no id")]
    NoId,
    /// The `method` is not a string.
    #[error("the method of a request is not a string")]
    MethodNotString,
    /// The `id` of a response is not an array. All ids of this crate and of libopflex are arrays.
    #[error("the id of a response is not an array")]
    ResponseId,
    /// A message has neither `method`, nor `result`, nor `error`.
    #[error("a message has neither method, result nor error")]
    NoOutcome,
    /// The `error` of a response is not an object.
    #[error("the error of a response is not an object")]
    ErrorNotObject,
    /// A response has a `result` and an `error` that is not null.
    #[error("a response has a result and an error")]
    ResultAndError,
}

/// The likely meaning of a first byte that is not a brace.
fn hint(first: u8) -> &'static str {
    match first {
        // The first byte of a TLS alert or handshake: only the peer uses TLS.
        0x15 | 0x16 => ": the peer speaks TLS, which is not used here",
        b'G' | b'P' | b'H' => ": the peer may speak HTTP",
        _ => "",
    }
}
