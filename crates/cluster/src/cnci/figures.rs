//! What a concentrator knows about itself: one snapshot, for pages that show it.

use serde::Serialize;
use ssntp::client::ClientFigures;

/// A snapshot of a concentrator, see [`Cnci::figures`](super::Cnci::figures).
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CnciFigures {
    /// Its connection.
    #[serde(skip)]
    pub client: ClientFigures,
    /// Tunnels to nodes.
    pub tunnels: usize,
    /// The tenant's other concentrators.
    pub peers: usize,
    /// Public addresses that are assigned.
    pub public_ips: usize,
    /// Answers that wait for a session, or for room.
    pub frames_held: usize,
}
