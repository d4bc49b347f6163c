//! What was asked for, and how often.

use crate::opflex::message::Method;

/// Counts of one connection since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounters {
    requests: [u64; Method::ALL.len()],
    refused: [u64; Method::ALL.len()],
    /// Requests of methods that nobody knows.
    pub unknown: u64,
    /// Resolves that were answered with nothing.
    pub unavailable: u64,
    /// Updates sent.
    pub updates: u64,
    /// Updates that the client answered with an error.
    pub update_errors: u64,
}

impl RequestCounters {
    /// Requests of a method, those that were refused included.
    pub fn requests(&self, method: Method) -> u64 {
        self.requests[method as usize]
    }

    /// Requests of a method that were answered with an error.
    pub fn refused(&self, method: Method) -> u64 {
        self.refused[method as usize]
    }

    pub(super) fn count(&mut self, method: Method) {
        self.requests[method as usize] += 1;
    }

    pub(super) fn count_refused(&mut self, method: Method) {
        self.refused[method as usize] += 1;
    }
}
