//! A request that is answered with an error.

use std::fmt;

use crate::message::{ErrorCode, ErrorResponse};

/// The error of an answer, before it is one.
#[derive(Debug)]
pub(super) struct Refusal {
    code: ErrorCode,
    message: String,
}

impl Refusal {
    pub(super) fn new(code: ErrorCode, message: impl fmt::Display) -> Self {
        Self {
            code,
            message: message.to_string(),
        }
    }

    /// A generic error.
    pub(super) fn error(message: impl fmt::Display) -> Self {
        Self::new(ErrorCode::ERROR, message)
    }
}

impl From<Refusal> for ErrorResponse {
    fn from(Refusal { code, message }: Refusal) -> Self {
        Self::new(code, message)
    }
}
