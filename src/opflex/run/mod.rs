//! Server and policy element on threads: what runs [`ServerCore`] and
//! [`ElementCore`] over sockets.
//!
//! ```text
//!  server                                        policy element
//!  accept threads ─▶ handshake workers           Action::Dial ─▶ a dial thread each
//!                        │ Opened, Started             │ Opened, Started, DialFailed
//!  readers ─ Messages ───┤                             ├─── Messages ─ readers
//!  ServerHandle ─ Call ──┤                             ├─── Call ─ ElementHandle
//!  Server ─ Stop, Exit ──▼                             ▼─── Stop ─ PolicyElement
//!              dispatcher: ServerCore          dispatcher: ElementCore ─▶ events
//!                        │                             │
//!            outboxes, keeper, editor                  outboxes
//! ```
//!
//! One [`Server`] or [`PolicyElement`] owns its threads and joins them. No
//! dispatcher waits for a peer, a disk or whoever takes events.
//!
//! | what | bound | when full |
//! |---|---|---|
//! | events for the dispatcher | 256 | readers wait, and so do their peers |
//! | batches of one connection among them | 4 | its reader waits |
//! | frames for one connection | [`Limits`](crate::transport::Limits) | the connection ends |
//! | a reader whose peer takes no answers | half of that | it waits, up to the write timeout |
//! | handshakes under way | [`ServerConfig::max_handshakes`] | the one that waits longest is cut |
//! | clients | [`ServerConfig::max_connections`], and 16 for control | who comes is refused |
//! | events of an element | [`ElementConfig::events`] | new ones are dropped and counted |
//! | writes of the kept policy | one | the next one has all changes |
//! | edits from control connections | 16 | who asks for more is told that it is busy |
//! | copies of a tree under way | one for each control connection, keeper and caller | – |
//!
//! | file | what |
//! |---|---|
//! | `config` | what both are told before they begin, and why they don't |
//! | `connection` | codec, delivery, the table of connections |
//! | `server` | [`Server`], [`ServerHandle`] |
//! | `serving` | the server's dispatcher: its state |
//! | `desk` | the server's dispatcher: its thread, and the readers that take its place |
//! | `editing` | changes of policy, large ones in steps |
//! | `keeper` | the file that policy is kept in |
//! | `control` | [`Control`]: how programs on the same host change policy |
//! | `element` | [`PolicyElement`], [`ElementHandle`], [`Reference`] |
//! | `engaging` | the element's dispatcher |
//! | `dial` | one attempt at one server |
//!
//! [`ServerCore`]: super::server::ServerCore
//! [`ElementCore`]: super::policy_element::ElementCore

mod config;
mod connection;
mod control;
mod desk;
mod dial;
mod editing;
mod element;
mod engaging;
mod keeper;
mod server;
mod serving;

use std::time::Instant;

pub use self::config::{CallError, ElementConfig, ServerConfig, StartError};
pub use self::control::{Control, ControlError, EndpointEntry};
pub use self::element::{ElementHandle, PolicyElement, Reference};
pub use self::engaging::ElementContext;
pub use self::server::{Server, ServerHandle};
pub use self::serving::ServerContext;
pub use crate::transport::default_max_handshakes;

#[expect(
    clippy::disallowed_methods,
    reason = "the dispatchers tell the cores the time"
)]
fn now() -> Instant {
    Instant::now()
}

/// Runs code of the application; a panic in it is logged and goes no further.
fn guard(target: &str, call: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err() {
        log::error!(target: target, "the application panicked in a call");
    }
}
