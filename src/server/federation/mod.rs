//! Several servers that act as one: links between them, and the sessions of all of them.
//!
//! ```text
//!        server A                                   server B
//!  a ─▶ reader ─▶ dispatcher ─▶ writer ══ link ══▶ reader ─▶ dispatcher ─▶ writer ─▶ b
//!            ▲        │ filter, rules,                            │ b's line is full
//!            │        │ handler                                   │
//!            └─ hold ◀┴───────────── HOLD, GO for a ◀─────────────┘
//! ```
//!
//! A link is a connection of the same dispatcher as the sessions, with a reader, a writer, a
//! queue and a line like any other. It is mutual TLS with the ALPN protocol `ssntp-link/1` on
//! the listening port, between certificates with the role SERVER or SCHEDULER.
//!
//! * Every server reports its sessions over its links: all of them when a link starts, then each
//!   change. So a server has a row for each session of the others (`Roster`), and frames for these
//!   sessions take the link to their server. A multicast crosses each link once.
//! * The server that a client is connected to applies its filter, rules and handler. A frame from a
//!   link goes to sessions or to the application, never to a link, so there are no loops.
//! * If a receiver has no room, its server sends HOLD for the session that the frames come from,
//!   and only that session is not read until GO. Other frames of the link are still handled.
//! * Frames on a link that ends are lost, counted and logged. The next link starts with a snapshot.
//! * A client whose UUID has a session at another server takes that session over if the admission
//!   rules there allow it: see `claims`.
//!
//! | file | holds | thread |
//! |---|---|---|
//! | `frames` | the encoding of link frames | none |
//! | `roster` | the rows of other servers' sessions | dispatcher |
//! | `links`, `facts` | begin, heartbeat and end of links; their figures | dispatcher |
//! | `claims` | a UUID that has a session at two servers | dispatcher |
//! | `forward` | frames sent over links and received from them | dispatcher |
//! | `join` | HELLO: do the two servers fit? | a handshake's, or a dialler's |
//! | `dial` | [`Redial`]: the time of each attempt; [`Dialler`]: a thread that dials, for each peer | `ssntp-peer-N` |

mod claims;
mod dial;
mod facts;
mod forward;
mod frames;
mod join;
mod links;
mod roster;

pub(super) use self::claims::refusal;
pub use self::dial::{Attempt, Dialler, PeerState, Redial};
pub use self::facts::{LinkFigures, LinkRequest, ServerLink};
pub(super) use self::frames::EndCode;
pub(crate) use self::frames::{LINK, SLACK};
pub(super) use self::join::{LinkFailure, LinkHandshake, LinkRegistry};
pub(crate) use self::links::Links;
pub(crate) use self::roster::{Rank, Remote, Roster};
use ssntp_transport::Target;

/// The ALPN protocol of links.
pub(crate) const LINK_PROTOCOL: &[u8] = b"ssntp-link/1";
/// The ALPN protocol of sessions. Most clients offer no protocol.
pub(crate) const SESSION_PROTOCOL: &[u8] = b"ssntp/1";

/// The servers that a server links with.
///
/// ```no_run
/// use ssntp::server::Federation;
/// use ssntp::transport::Address;
///
/// let peers = ["one.example:8888", "two.example:8888"];
/// let peers: Result<Vec<Address>, _> = peers.iter().map(|peer| peer.parse()).collect();
/// let federation = Federation::new().peers(peers?).advertise("three.example:8888");
/// # Ok::<(), ssntp::transport::AddressError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Federation {
    pub(super) peers: Vec<Target>,
    pub(super) advertised: String,
}

impl Federation {
    /// A federation without peers: the server accepts links, and [`Dialler::dial`] can add peers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds addresses of servers to link with. The server recognises and skips its own address, so
    /// that all servers can have the same list.
    #[must_use]
    pub fn peers(mut self, peers: impl IntoIterator<Item = impl Into<Target>>) -> Self {
        self.peers.extend(peers.into_iter().map(Into::into));
        self
    }

    /// Sets the address at which others reach this server, at most 256 bytes. They show it to
    /// operators. Default: none.
    #[must_use]
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertised = address.into();
        self
    }
}
