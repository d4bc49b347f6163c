//! Sockets: addresses, listeners, and the raw byte stream of a connection.
//!
//! ```text
//!  Address ─▶ Listener ─ accept ──┐
//!                                 ├──▶ dyn Duplex: read by one thread, written by another
//!  Target ── connect ─────────────┘
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `address` | [`Address`]: to listen at or to connect to |
//! | `target` | [`Target`]: an address, or a listener in memory |
//! | `lookup` | host names to addresses, on a thread that can be left alone |
//! | `duplex` | [`Duplex`]: the raw, blocking byte stream |
//! | `system` | the system's sockets as `Duplex` |
//! | `tcp`, `unix` | connecting and listening with them |
//! | `listener` | [`Listener`]: a bound socket |
//! | `memory` | streams and listeners in memory, for tests |
//! | `cancel` | [`Cancel`]: ends a wait from another thread |

mod address;
mod cancel;
mod duplex;
mod listener;
mod lookup;
pub mod memory;
mod system;
mod target;
mod tcp;
mod unix;

pub use self::address::{Address, AddressError};
pub use self::cancel::Cancel;
pub use self::duplex::{Duplex, PeerAddress, is_timeout};
pub(crate) use self::duplex::{WriteHalf, write_all};
pub use self::listener::Listener;
pub use self::target::Target;
pub use self::tcp::{TcpOptions, connect_tcp, connect_unless};
pub use self::unix::connect_unix;
