//! The properties of a link and of the server at its other end.

use std::fmt;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::frames::Hello;
use ssntp_pki::Role;
use ssntp_transport::PeerAddress;

/// The request of another server for a link, or of a server that this one has dialled.
#[derive(Debug)]
pub struct LinkRequest {
    pub(super) hello: Hello,
    /// True if this server has dialled.
    pub(super) dialled: bool,
}

/// A server that this one is linked to. Logs show it as `server UUID (roles) at ADDRESS`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerLink {
    /// The UUID of the other server.
    pub uuid: Uuid,
    /// A random number that the other server chose when it started.
    pub incarnation: u64,
    /// The roles that the other server advertises.
    pub role: Role,
    /// The address of the other end of the connection.
    pub address: PeerAddress,
    /// The address at which other servers reach that server; empty if it advertises none.
    pub advertised: String,
    /// True if this server has dialled.
    pub dialled: bool,
    /// The time at which the link was admitted.
    pub since: Instant,
}

impl fmt::Display for ServerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server {} ({}) at {}", self.uuid, self.role, self.address)
    }
}

/// The state of one link, and its counters since it was admitted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkFigures {
    /// The server at the other end.
    pub server: ServerLink,
    /// The time since the link was admitted.
    pub age: Duration,
    /// True once the snapshot of that server's sessions is complete, so that frames can be sent to them.
    pub linked: bool,
    /// The number of sessions of that server.
    pub sessions: usize,
    /// The number of this server's sessions that are not read because a receiver there has no room.
    pub held: usize,
    /// Frames that wait in the queue of the link.
    pub frames_waiting: u64,
    /// Bytes that wait in the queue of the link.
    pub bytes_waiting: u64,
    /// Frames that were sent over the link.
    pub frames_sent: u64,
    /// Frames that arrived for sessions or for the application of this server.
    pub frames_received: u64,
    /// Received frames without a receiver: the session is gone, or this server does not know the kind.
    pub frames_astray: u64,
    /// Received frames that were dropped because their token is not that of the newest leader.
    pub frames_stale: u64,
}
