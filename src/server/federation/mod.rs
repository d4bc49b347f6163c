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
//! * Every server tells its links who is connected: all of it when a link starts, and each change.
//!   So a server has a row for each session of the others (`Roster`), and frames for these
//!   sessions take the link to their server. A multicast crosses each link once.
//! * Filter, rules and handler are those of the server that a frame came from. What came from a
//!   link goes to sessions, or to the application, and never to a link: there are no loops.
//! * If a receiver has no room, its server says HOLD for the session that the frames come from,
//!   and that session alone is not read until GO. The rest of the link goes on.
//! * A link that ends loses what is on it; that is counted and logged. The next link starts with
//!   a snapshot.
//! * A client that connects here while another server has its UUID takes its session over, if
//!   that server's admission rules allow it: see `claims`.
//!
//! | file | holds | thread |
//! |---|---|---|
//! | `frames` | link frames, byte by byte | none |
//! | `roster` | the rows of other servers' sessions | dispatcher |
//! | `links`, `facts` | what the server's core does with links, and what it says of them | dispatcher |
//! | `claims` | a UUID that two servers have, or are to have | dispatcher |
//! | `forward` | frames on their way over links and from them | dispatcher |
//! | `join` | HELLO: whether two servers fit | a handshake's, or a dialler's |
//! | `dial` | [`Redial`]: when a peer is dialled; [`Dialler`]: a thread for each peer, which does so | `ssntp-peer-N` |

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
pub(super) use self::forward::Bundle;
pub(super) use self::frames::End;
pub(crate) use self::frames::{LINK, SLACK};
pub(super) use self::join::{Joining, Joins, NoLink};
pub(crate) use self::links::Links;
pub(crate) use self::roster::{Rank, Roster};
use ssntp_transport::Target;

/// The ALPN protocol of links.
pub(crate) const LINK_PROTOCOL: &[u8] = b"ssntp-link/1";
/// That of sessions, for clients that name one. Most offer none.
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
    /// No peers: the server takes links that others dial, and [`Dialler::dial`] adds peers later.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds addresses of servers to link with. The server's own may be among them: it is
    /// recognised and skipped.
    #[must_use]
    pub fn peers(mut self, peers: impl IntoIterator<Item = impl Into<Target>>) -> Self {
        self.peers.extend(peers.into_iter().map(Into::into));
        self
    }

    /// The address at which others reach this server, at most 256 bytes: they show it to
    /// operators. Default: none.
    #[must_use]
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertised = address.into();
        self
    }
}
