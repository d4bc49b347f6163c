//! Why a connection has to be closed.

use std::fmt;

/// The peer does not speak this protocol, or goes beyond a limit. Every one of
/// these ends the connection, and none is answered: there is no message that
/// the answer could belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A message is longer than the limit. Known as soon as the byte too many
    /// has arrived; nothing of the message is read.
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// A message nests deeper than the limit.
    TooDeep {
        /// The limit in brackets.
        limit: usize,
    },
    /// A text begins with something other than a brace, so it can't be an
    /// object: another protocol, or a JSON value that is no message.
    NotAnObject {
        /// The first byte.
        first: u8,
    },
    /// Not JSON, not UTF-8, two texts in one frame, or an envelope with a
    /// member twice. Holds what the reader of JSON said.
    Syntax(String),
    /// The stream ended in the middle of a message.
    Truncated,
    /// A message without `id` can't be answered and answers nothing.
    NoId,
    /// The `method` is not a string.
    MethodNotString,
    /// The `id` of a response is not an array, as all ids are that we and
    /// libopflex send.
    ResponseId,
    /// Neither `method`, nor `result`, nor `error`.
    NoOutcome,
    /// The `error` of a response is not an object.
    ErrorNotObject,
    /// A response says both that the request succeeded and that it failed.
    ResultAndError,
}

impl Error {
    pub(super) fn syntax(error: &serde_json::Error) -> Self {
        Self::Syntax(error.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { limit } => write!(f, "a message is longer than {limit} bytes"),
            Self::TooDeep { limit } => write!(f, "a message nests deeper than {limit} levels"),
            Self::NotAnObject { first } => {
                write!(
                    f,
                    "a message begins with {:?} instead of a brace",
                    char::from(*first)
                )
            }
            Self::Syntax(what) => write!(f, "a message is not one JSON object: {what}"),
            Self::Truncated => f.write_str("the stream ends inside a message"),
            Self::NoId => f.write_str("a message has no id"),
            Self::MethodNotString => f.write_str("the method of a request is not a string"),
            Self::ResponseId => f.write_str("the id of a response is not an array"),
            Self::NoOutcome => f.write_str("a message has neither method, result nor error"),
            Self::ErrorNotObject => f.write_str("the error of a response is not an object"),
            Self::ResultAndError => f.write_str("a response has a result and an error"),
        }
    }
}

impl std::error::Error for Error {}
