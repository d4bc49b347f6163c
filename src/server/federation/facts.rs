//! What is known of a link and of the server at its other end.

use std::convert::Infallible;
use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::Sender;
use uuid::Uuid;

use super::frames::Hello;
use ssntp_transport::pki::{CertificateDer, CertificateInfo};
use ssntp_transport::{PeerAddress, Role};

/// A server that asks for a link, or that was dialled.
#[derive(Debug)]
pub struct LinkRequest {
    pub(super) hello: Hello,
    pub(super) certificate: CertificateInfo,
    pub(super) intermediates: Vec<CertificateDer<'static>>,
    /// When the link ends with the certificate, where it does.
    pub(super) ends: Option<SystemTime>,
    pub(in crate::server) generation: u64,
    pub(super) address: PeerAddress,
    /// Whether this server has dialled.
    pub(super) dialled: bool,
    /// Dropped when the link ends.
    pub(super) standing: Sender<Infallible>,
}

/// A server that there is a link to. Shown in logs as `server UUID (roles) at ADDRESS`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerLink {
    /// Its UUID.
    pub uuid: Uuid,
    /// The random number of its start.
    pub incarnation: u64,
    /// Its roles.
    pub role: Role,
    /// The address of the other end of the link.
    pub address: PeerAddress,
    /// Where it says that others reach it. Empty if it does not say.
    pub advertised: String,
    /// Whether this server has dialled.
    pub dialled: bool,
    /// Since when the link stands.
    pub since: Instant,
}

impl fmt::Display for ServerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server {} ({}) at {}", self.uuid, self.role, self.address)
    }
}

/// What a server knows about one of its links.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkFigures {
    /// The server at the other end.
    pub server: ServerLink,
    /// How long the link stands.
    pub age: Duration,
    /// Whether that server's sessions are known, so that frames for them are taken.
    pub linked: bool,
    /// Its sessions.
    pub sessions: usize,
    /// Sessions of this server that are not read, since a receiver there has no room.
    pub held: usize,
    /// Frames and bytes that wait for the link, and how many frames it has carried there.
    pub frames_waiting: u64,
    /// See [`frames_waiting`](Self::frames_waiting).
    pub bytes_waiting: u64,
    /// See [`frames_waiting`](Self::frames_waiting).
    pub frames_sent: u64,
    /// Frames that came for sessions of this server, or for its application.
    pub frames_received: u64,
    /// Those of them that found no receiver.
    pub frames_astray: u64,
    /// Those of them that came under another token than the newest leader's, and were dropped.
    pub frames_stale: u64,
}

/// Counts of one link.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::server) struct LinkCounters {
    /// Frames that came for sessions or for the application.
    pub(in crate::server) received: u64,
    /// Frames for sessions that are gone, or of kinds that this server does not know.
    pub(in crate::server) astray: u64,
    /// Frames under a token that is older than another one seen.
    pub(in crate::server) stale: u64,
}
