//! The error of the program, or of one measurement.

use std::fmt::{self, Display, Formatter};

/// One line of text for the user. Every error becomes one with `?`, so this type does not
/// implement `std::error::Error` itself.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(message: impl Display) -> Self {
        Self(message.to_string())
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error)
    }
}
