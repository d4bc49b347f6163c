//! The number of a connection.

use std::fmt;

use serde::Serialize;

/// The number of a connection in a core. A number is never reused, so a late event of an ended
/// connection cannot be mistaken for an event of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ConnectionId(pub u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}
