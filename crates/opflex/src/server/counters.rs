//! Counters of requests, updates and bytes.

use serde::{Serialize, Serializer};

use crate::message::Method;

/// The counters of a connection, or the sum over several connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestCounters {
    #[serde(serialize_with = "by_method")]
    requests: [u64; Method::ALL.len()],
    #[serde(serialize_with = "by_method")]
    refused: [u64; Method::ALL.len()],
    /// Requests of unknown methods.
    pub unknown: u64,
    /// Objects and properties that were left out because the model does not define them.
    pub left_out: u64,
    /// Resolves whose answer had no object.
    pub unavailable: u64,
    /// Updates sent.
    pub updates: u64,
    /// Updates that the client answered with an error.
    pub update_errors: u64,
    /// Bytes received from it.
    pub bytes_received: u64,
    /// Bytes sent to it, including those in its queue.
    pub bytes_sent: u64,
}

impl RequestCounters {
    /// Requests of a method, including refused requests.
    pub fn requests(&self, method: Method) -> u64 {
        self.requests[method as usize]
    }

    /// Requests of a method that were answered with an error.
    pub fn refused(&self, method: Method) -> u64 {
        self.refused[method as usize]
    }

    /// Adds the counters of another session.
    pub(super) fn add(&mut self, other: &Self) {
        let both = [
            (&mut self.requests, &other.requests),
            (&mut self.refused, &other.refused),
        ];
        for (all, others) in both {
            all.iter_mut().zip(others).for_each(|(all, other)| *all += other);
        }
        self.unknown += other.unknown;
        self.left_out += other.left_out;
        self.unavailable += other.unavailable;
        self.updates += other.updates;
        self.update_errors += other.update_errors;
        self.bytes_received += other.bytes_received;
        self.bytes_sent += other.bytes_sent;
    }

    pub(super) fn count(&mut self, method: Method) {
        self.requests[method as usize] += 1;
    }

    pub(super) fn count_refused(&mut self, method: Method) {
        self.refused[method as usize] += 1;
    }
}

/// The counters that are not zero, by the names of their methods.
fn by_method<S: Serializer>(counts: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
    let counts = Method::ALL.iter().map(|(_, name)| name).zip(counts);
    serializer.collect_map(counts.filter(|(_, count)| **count > 0))
}
