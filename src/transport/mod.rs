//! Byte streams and the two threads that serve one. Knows no protocol.
//!
//! ```text
//!             ┌────────────── link ──────────────────────────────────────────────┐
//!  socket ───▶│ reader thread: Receive ─▶ Inbox ─▶ Decode ─▶ Sink::items         ├──▶ owner
//!  (Duplex)   │      │ flush                                                     │
//!  socket ◀───│ writer thread: Transmit ◀─ coalesce ◀─ Outbox (bounded queue)    │◀── owner
//!             └──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! * A [`Duplex`] is a raw, blocking byte stream that two threads share:
//!   TCP, a Unix socket, or memory.
//! * [`Halves`] are its two directions, in clear ([`plain`]) or as TLS
//!   ([`tls`]). The reader never holds anything that the writer needs while
//!   it waits. Only the writer puts bytes on the socket, or in its place, while
//!   it is idle, whoever has something short to send.
//! * [`Link`] runs one thread for each direction and is told when the stream
//!   ends; its [`Outbox`] is the bounded queue towards the writer.
//!
//! | file | holds |
//! |---|---|
//! | `address` | [`Address`]: where to listen or connect |
//! | `target` | a place to connect to, and how |
//! | `cancel` | what ends a wait from another thread |
//! | `deadline` | when a time limit ends, however long it is |
//! | `duplex` | the [`Duplex`] trait |
//! | `lookup` | names to addresses |
//! | `tcp`, `unix`, `memory` | what implements it, and [`Listener`] |
//! | `buffers` | [`BufferPool`]: read and write buffers of busy links |
//! | `halves` | [`Receive`], [`Transmit`], and both in clear |
//! | `tls` | both as TLS |
//! | `newcomers` | accept threads, and a thread for each handshake |
//! | `capacity` | how many links the system allows |
//! | `budget` | how much memory queues may hold |
//! | `cgroup` | where a process's control groups are |
//! | `codec` | [`Decode`]: what turns bytes into items |
//! | `outbox` | the bounded queue of a writer |
//! | `queue` | what waits in it |
//! | `line` | sending past a writer that has nothing to do |
//! | `link` | the two threads |
//! | `threads` | names, stack sizes |

mod address;
mod budget;
mod buffers;
mod cancel;
mod capacity;
mod cgroup;
mod codec;
mod deadline;
mod duplex;
mod halves;
mod line;
mod link;
mod listener;
mod lookup;
pub mod memory;
mod newcomers;
mod outbox;
mod queue;
mod target;
mod tcp;
pub(crate) mod threads;
pub mod tls;
mod unix;

pub use self::address::{Address, AddressError, DEFAULT_PORT};
pub use self::buffers::BufferPool;
pub(crate) use self::cancel::Cancel;
pub use self::capacity::more_without_signal_stacks;
pub(crate) use self::capacity::{Room, descriptors};
pub use self::codec::{Decode, Inbox};
pub(crate) use self::deadline::{after, deadline};
pub use self::duplex::{Duplex, PeerAddress};
pub use self::halves::{Halves, Receive, Received, Transmit, Tried, plain};
pub use self::link::{EndReason, Link, LinkConfig, Sink};
pub use self::listener::{Listener, Waker};
pub use self::newcomers::default_max_handshakes;
pub(crate) use self::newcomers::{Acceptance, Newcomer};
pub use self::outbox::{Limits, Outbox, Outgoing, PushError};
pub(crate) use self::target::Target;
pub(crate) use self::tcp::connect_unless;
pub use self::tcp::{KeepAlive, TcpOptions, connect_tcp};
pub use self::unix::connect_unix;
