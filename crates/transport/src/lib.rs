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

#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(not(any(feature = "aws-lc-rs", feature = "ring")))]
compile_error!("one of the features aws-lc-rs and ring is needed");

mod address;
mod available_memory;
mod buffers;
mod cancel;
mod capacity;
mod codec;
mod deadline;
pub mod dispatch;
mod duplex;
pub mod flow;
mod halves;
mod histogram;
mod link;
mod listener;
mod log_limit;
mod lookup;
pub mod memory;
mod newcomers;
pub mod outbox;
mod outgoing;
pub mod pki;
mod printable;
mod process;
mod procfs;
mod replace;
mod role;
mod setters;
mod socket;
mod table;
mod target;
mod tcp;
pub mod threads;
pub mod tls;
mod unix;

pub use self::address::{Address, AddressError, DEFAULT_PORT};
pub use self::available_memory::memory_for_queues;
pub use self::buffers::BufferPool;
pub use self::cancel::Cancel;
pub use self::capacity::{Room, descriptors};
pub use self::codec::{Decode, Inbox};
pub use self::deadline::{after, deadline, left};
pub use self::dispatch::{BudgetFigures, DispatcherFigures};
pub use self::duplex::{Duplex, PeerAddress, is_timeout};
pub use self::flow::{Budget, Credit, PATIENCE};
pub use self::halves::{Halves, Receive, Received, Transmit, Tried, drain, plain, refuse};
pub use self::histogram::Histogram;
pub use self::link::{EndReason, Link, LinkConfig, Sink};
pub use self::listener::Listener;
pub use self::log_limit::{LogLimit, More};
pub use self::newcomers::{Acceptance, Newcomer, Occupancy, default_max_handshakes};
pub use self::outbox::{Gauge, Limits, Outbox, PushError};
pub use self::outgoing::{Load, Outgoing};
pub use self::printable::{Excerpt, excerpt, excerpt_bytes, printable, printable_json};
pub use self::process::ProcessFigures;
pub use self::replace::{directory, replace};
pub use self::role::{ParseRoleError, Role};
pub use self::table::{ConnectionId, Numbers, Table};
pub use self::target::Target;
pub use self::tcp::{KeepAlive, TcpOptions, connect_tcp, connect_unless};
pub use self::unix::connect_unix;

/// The TLS library, whose types stand in signatures here.
pub use rustls;
