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

mod budget;
pub mod dispatch;
mod end;
pub mod flow;
mod histogram;
mod host;
mod link;
mod log_limit;
mod newcomers;
pub mod outbox;
pub mod pki;
mod printable;
mod replace;
mod role;
mod setters;
mod socket;
mod stream;
mod table;
pub mod tls;

pub use self::budget::{Budget, BudgetFigures};
pub use self::dispatch::DispatcherFigures;
pub use self::end::EndReason;
pub use self::flow::{Credit, PATIENCE};
pub use self::histogram::Histogram;
pub use self::host::available_memory::memory_for_queues;
pub use self::host::capacity::{Room, descriptors};
pub use self::host::deadline::{after, deadline, left};
pub use self::host::process::ProcessFigures;
pub use self::host::threads;
pub use self::link::{Link, LinkConfig, Sink};
pub use self::log_limit::{LogLimit, More};
pub use self::newcomers::{Acceptance, Newcomer, Occupancy, default_max_handshakes};
pub use self::outbox::{Gauge, Limits, Outbox, PushError};
pub use self::printable::{Excerpt, excerpt, excerpt_bytes, printable, printable_json};
pub use self::replace::{directory, replace};
pub use self::role::{ParseRoleError, Role};
pub use self::socket::address::{Address, AddressError, DEFAULT_PORT};
pub use self::socket::cancel::Cancel;
pub use self::socket::duplex::{Duplex, PeerAddress, is_timeout};
pub use self::socket::listener::Listener;
pub use self::socket::memory;
pub use self::socket::target::Target;
pub use self::socket::tcp::{KeepAlive, TcpOptions, connect_tcp, connect_unless};
pub use self::socket::unix::connect_unix;
pub use self::stream::buffers::BufferPool;
pub use self::stream::codec::{Decode, Inbox};
pub use self::stream::halves::{Halves, Receive, Received, Transmit, Tried, drain, plain, refuse};
pub use self::stream::outgoing::{Load, Outgoing};
pub use self::table::{ConnectionId, Numbers, Table};

/// The TLS library, whose types stand in signatures here.
pub use rustls;
