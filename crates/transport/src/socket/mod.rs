//! Sockets: where to listen and connect, and the raw byte stream of a connection.
//!
//! ```text
//!  Address ─▶ Listener ─ accept ──┐
//!                                 ├──▶ dyn Duplex: read by one thread, written by another
//!  Target ── connect ─────────────┘
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `address` | [`Address`](address::Address): where to listen or connect |
//! | `target` | [`Target`](target::Target): an address, or a listener in memory |
//! | `lookup` | names to addresses, on a thread that can be left behind |
//! | `duplex` | [`Duplex`](duplex::Duplex): the raw, blocking byte stream |
//! | `system` | the system's sockets as `Duplex` |
//! | `tcp`, `unix` | how they connect and listen |
//! | `listener` | [`Listener`](listener::Listener): a bound socket |
//! | `memory` | streams and listeners in memory, for tests |
//! | `cancel` | [`Cancel`](cancel::Cancel): ends a wait from another thread |

pub(crate) mod address;
pub(crate) mod cancel;
pub(crate) mod duplex;
pub(crate) mod listener;
mod lookup;
pub mod memory;
mod system;
pub(crate) mod target;
pub(crate) mod tcp;
pub(crate) mod unix;
