//! Byte streams, the two threads that serve each of them, and the dispatcher that serves all
//! connections. This crate knows no protocol, no role and no port; SSNTP and OpFlex are built on it.
//! TLS takes an identity and a check of peers' certificates from its caller.
//!
//! ```text
//!             ┌────────────── link ──────────────────────────────────────────────┐
//!  socket ───▶│ reader thread: Receive ─▶ Inbox ─▶ Decode ─▶ Sink::items         ├──▶ dispatch:
//!  (Duplex)   │      │ flush                                                     │    Runner, Flow,
//!  socket ◀───│ writer thread: Transmit ◀─ batch ◀─ Outbox                       │◀── a protocol's Core
//!             └──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Each row uses only the rows below it:
//!
//! | module | holds |
//! |---|---|
//! | [`dispatch`] | the dispatcher, and the life of a connection |
//! | [`flow`] | flow control: connections that may send, and connections that are paused |
//! | `link` | the reader thread and the writer thread of a connection |
//! | [`outbox`] | the queue of a connection and its end |
//! | [`tls`], `newcomers` | both directions as TLS; the threads that accept and make handshakes |
//! | `stream` | both directions in clear; buffers, and decoding |
//! | `socket` | addresses, the system's sockets, and streams in memory |
//! | `host` | the system's limits, this process, threads and deadlines |
//! | `budget`, `deadlines`, `end`, `table`, … | small types that all rows use |
//!
//! An embedder of `ssntp` needs only a part of it: [`Address`], [`TcpOptions`],
//! [`Limits`], [`tls`], [`ProcessFigures`], and [`memory`] for tests. The root
//! package re-exports that part.
//!
//! # Features
//!
//! `aws-lc-rs` (default) and `ring` choose the cryptography; with both, aws-lc-rs is used.
//!
//! # Threads
//!
//! A link has a reader `NAME.r` and a writer `NAME.w`. [`Acceptance`] has one or two threads
//! that accept at each listener, and a thread for each handshake. The dispatcher runs on its caller's
//! thread. A look-up of a name runs on `ssntp-lookup`. Each type says in its section
//! "Threads" which calls block.

#![deny(missing_docs)]

#[cfg(not(any(feature = "aws-lc-rs", feature = "ring")))]
compile_error!("one of the features aws-lc-rs and ring is needed");

mod budget;
mod crypto;
mod deadlines;
pub mod dispatch;
mod end;
pub mod flow;
mod guard;
mod histogram;
mod host;
mod link;
mod lock;
mod log_limit;
mod newcomers;
pub mod outbox;
mod printable;
mod replace;
mod setters;
mod socket;
mod stream;
mod table;
pub mod tls;

pub use self::budget::{Budget, BudgetFigures};
pub use self::crypto::{provider, sha256};
pub use self::deadlines::Deadlines;
pub use self::dispatch::DispatcherFigures;
pub use self::end::EndReason;
pub use self::flow::{Credit, PATIENCE};
pub use self::guard::guard;
pub use self::histogram::Histogram;
pub use self::host::{
    NEVER, ProcessFigures, Room, after, deadline, descriptors, elapsed, left, locked, locked_again,
    memory_for_queues, nanoseconds, nap, now, remaining, since_1970, threads, wall_clock,
};
pub use self::link::{
    Incoming, LastWrites, Link, LinkConfig, Next, Sink, Writing, Wrote, end_reason, silent_peer,
};
pub use self::lock::{lock, lock_within};
pub use self::log_limit::{LogLimit, More};
pub use self::newcomers::{Acceptance, Newcomer, Occupancy, default_max_handshakes, slots};
pub use self::outbox::{Limits, Outbox, OutboxCounters, PushError};
pub use self::printable::{Excerpt, cut, excerpt, excerpt_bytes, printable, printable_json};
pub use self::replace::{directory, replace, replace_with_mode};
pub use self::socket::{
    Address, AddressError, Cancel, Duplex, Listener, PeerAddress, Target, TcpOptions, connect_tcp,
    connect_unix, connect_unless, is_timeout, memory,
};
pub use self::stream::{
    BufferPool, Decode, Halves, Inbox, Load, Outgoing, Receive, Received, Transmit, Tried, drain, plain,
    refuse,
};
pub use self::table::{ConnectionId, Numbers, Table};

/// The TLS library, whose types are in signatures here.
pub use rustls;
