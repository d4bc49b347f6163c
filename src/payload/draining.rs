//! Draining (EVENT 0x48): a server is about to stop.

use serde::{Deserialize, Serialize};

use super::payload;

/// A server asks its clients to leave before it stops.
///
/// The payload of Draining (EVENT 0x48), made by the server:
///
/// ```yaml
/// draining:
///   within_s: 30
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Draining {
    /// The time in seconds within which a client ends its session, at a random moment; default: 0,
    /// at once.
    pub within_s: u64,
}

payload!(Draining = Event::DRAINING, under "draining");
