//! Snapshots of a concentrator for metrics and pages.

use ssntp::client::ClientFigures;

/// A snapshot of a concentrator, see [`Cnci::figures`](super::Cnci::figures).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CnciFigures {
    /// The figures of its client.
    pub client: ClientFigures,
    /// Tunnels to nodes.
    pub tunnels: usize,
    /// The tenant's other concentrators.
    pub peers: usize,
    /// Public addresses that are assigned.
    pub public_ips: usize,
    /// Answers that wait for a session, or for room in its queue.
    pub frames_held: usize,
}
