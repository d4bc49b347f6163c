//! Byte streams, the two threads that serve one, and the dispatcher that
//! serves all. Knows no protocol.
//!
//! ```text
//!             ┌────────────── link ──────────────────────────────────────────────┐
//!  socket ───▶│ reader thread: Receive ─▶ Inbox ─▶ Decode ─▶ Sink::items         ├──▶ dispatch:
//!  (Duplex)   │      │ flush                                                     │    Runner, Flow,
//!  socket ◀───│ writer thread: Transmit ◀─ batch ◀─ Outbox                       │◀── a protocol's Core
//!             └──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! What an embedder needs of it is public: where to listen and connect
//! ([`Address`]), TCP's options ([`TcpOptions`]), what may wait for a peer
//! ([`Limits`]), TLS ([`tls`]), what the process uses ([`ProcessFigures`]), and
//! streams in memory for tests ([`memory`]).
//!
//! | file | holds |
//! |---|---|
//! | `address`, `target`, `lookup` | where to listen or connect, and names to addresses |
//! | `duplex` | a raw, blocking byte stream that two threads share |
//! | `socket`, `memory` | what implements it |
//! | `tcp`, `unix`, `listener` | how sockets connect, and are accepted |
//! | `halves` | its two directions, in clear |
//! | `tls` | both as TLS |
//! | `buffers` | read and write buffers of busy links |
//! | `codec` | what turns bytes into items |
//! | `newcomers` | accept threads, and a thread for each handshake |
//! | `capacity`, `available_memory`, `procfs` | what the system can carry |
//! | `process` | what this process uses of it |
//! | `outgoing`, `outbox` | the way out of a connection |
//! | `link` | the two threads |
//! | `flow` | who may go on, and who waits for whom |
//! | `dispatch` | the dispatcher, and the life of a connection |
//! | `table` | connections by number |
//! | `cancel`, `deadline`, `threads` | what ends a wait; names and stacks |

mod address;
mod available_memory;
mod buffers;
mod cancel;
mod capacity;
mod codec;
mod deadline;
pub(crate) mod dispatch;
mod duplex;
pub(crate) mod flow;
mod halves;
mod link;
mod listener;
mod lookup;
pub mod memory;
mod newcomers;
pub(crate) mod outbox;
mod outgoing;
mod process;
mod procfs;
mod socket;
mod table;
mod target;
mod tcp;
pub(crate) mod threads;
pub mod tls;
mod unix;

pub use self::address::{Address, AddressError, DEFAULT_PORT};
pub(crate) use self::available_memory::memory_for_queues;
pub(crate) use self::buffers::BufferPool;
pub(crate) use self::cancel::Cancel;
pub(crate) use self::capacity::Room;
#[cfg(feature = "cluster")]
pub(crate) use self::capacity::descriptors;
pub use self::capacity::more_without_signal_stacks;
pub(crate) use self::codec::{Decode, Inbox};
pub(crate) use self::deadline::{after, deadline, left};
pub use self::dispatch::{BudgetFigures, DispatcherFigures};
pub(crate) use self::duplex::Duplex;
pub use self::duplex::PeerAddress;
#[cfg(all(test, feature = "opflex"))]
pub(crate) use self::flow::Credit;
pub(crate) use self::flow::{Budget, PATIENCE};
#[cfg(feature = "opflex")]
pub(crate) use self::halves::plain;
pub(crate) use self::halves::{Halves, Receive, Received, Transmit, drain, refuse};
pub(crate) use self::link::{EndReason, Link, LinkConfig, Sink};
pub(crate) use self::listener::Listener;
pub use self::newcomers::default_max_handshakes;
pub(crate) use self::newcomers::{Acceptance, Newcomer, Occupancy};
pub use self::outbox::Limits;
pub(crate) use self::outbox::{Gauge, Outbox, PushError};
pub(crate) use self::outgoing::{Load, Outgoing};
pub use self::process::ProcessFigures;
#[cfg(feature = "testkit")]
pub(crate) use self::table::Numbers;
pub(crate) use self::table::{ConnectionId, Table};
pub(crate) use self::target::Target;
#[cfg(feature = "fleet")]
pub(crate) use self::tcp::connect_unless;
pub use self::tcp::{KeepAlive, TcpOptions};
#[cfg(feature = "opflex")]
pub(crate) use self::unix::connect_unix;

/// What this crate's own tests and benchmarks speak through, below the public
/// interface. It changes without notice.
#[doc(hidden)]
pub mod raw {
    pub use super::buffers::BufferPool;
    pub use super::codec::{Decode, Inbox};
    pub use super::duplex::Duplex;
    pub use super::halves::{Halves, Receive, Received, Transmit, Tried, plain};
    pub use super::link::{EndReason, Link, LinkConfig, Sink};
    pub use super::listener::Listener;
    pub use super::outbox::{Outbox, PushError};
    pub use super::outgoing::{Load, Outgoing};
    pub use super::tcp::connect_tcp;
    pub use super::unix::connect_unix;
}
