//! The name of a connection.

use std::fmt;

use serde::Serialize;

/// One connection, from its first byte to its last. A number is never used for
/// a second one, so that a late event of the first cannot be mistaken for one of the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ConnectionId(pub u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}
