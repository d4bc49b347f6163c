//! Snapshots of a concentrator for metrics and pages.

use ssntp::client::ClientFigures;

/// A snapshot of a concentrator, see [`Cnci::figures`](super::Cnci::figures).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CnciFigures {
    /// The figures of its client.
    pub client: ClientFigures,
    /// The number of tunnels to nodes.
    pub tunnels: usize,
    /// The number of the tenant's other concentrators.
    pub peers: usize,
    /// The number of public addresses that are assigned.
    pub public_ips: usize,
    /// The number of answers that wait for a session, or for room in the client's queue.
    pub frames_held: usize,
}
