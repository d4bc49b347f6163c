//! Server and policy element on threads: what runs [`ServerCore`] and
//! [`ElementCore`] over sockets.
//!
//! ```text
//!  server                                     policy element
//!  accept threads ─▶ handshake workers        Action::Dial ─▶ a dial thread each
//!                        │ Admit, Started          │ Admit, Started, Call: dialled
//!  readers ─ Items ──────┤                         ├── Items ─ readers
//!  ServerHandle ─ Call ──┤                         ├── Call ─ ElementHandle
//!  keeper, local ─ Call ─┤                         ├── Call ─ local
//!  Server ─ Stop, Exit ──▼                         ▼── Stop, Exit ─ PolicyElement
//!               Runner: ServerSide          Runner: ElementSide ─▶ events
//!                  │ ServerCore                │ ElementCore
//!                  ▼                           ▼
//!               outboxes                    outboxes
//! ```
//!
//! One [`Server`] or [`PolicyElement`] owns its threads and joins them. The
//! dispatcher, the lives of connections and the flow between them are the
//! transport's, the same as under SSNTP; `machine` is the part of OpFlex in it.
//! A dispatcher never waits for a peer, for a disk or for the receiver of its events.
//!
//! | what | bound | when full |
//! |---|---|---|
//! | events for the dispatcher | 256 | readers wait, and so their peers are held back |
//! | bytes that a reader is ahead of the dispatcher | 1 MiB or one read | the reader waits, and so its peer is held back |
//! | answers that a peer does not receive | 1 MiB or a quarter of its queue, and a piece of an answer | the peer is not read from; the write timeout ends its connection |
//! | updates for a peer that does not receive them | half of its queue, then its line | the peer that causes them waits, for a second at most |
//! | frames for one connection | [`Limits`](ssntp_transport::Limits) | the connection ends |
//! | handshakes under way | [`ServerConfig::max_handshakes`] | the handshake that waits longest is cut |
//! | connections of an inspector | 8 | the one that waits longest for its client is cut, or the newcomer waits |
//! | control connections | 64 | the same |
//! | readers of an element's feed | 16, and [`ElementConfig::serve_queue`] for all of them | the newcomer is refused; the slowest is disconnected |
//! | clients | [`ServerConfig::max_connections`] | the newcomer is refused |
//! | clients of one host | 64, and beyond that no more than they leave free | the newcomer is refused |
//! | a message until the identity is accepted | 256 KiB, and 1 MiB of memory for all of them | the connection ends |
//! | events of an element | [`ElementConfig::events`] | new ones are dropped and counted |
//! | writes of the kept policy | one | the next write has all changes |
//! | edits that wait to be written | 10,000 objects | all policy is written |
//!
//! | file | what; each file uses only files above it |
//! |---|---|
//! | `config` | the configuration of both, [`LocalSocket`], and the errors |
//! | `figures` | [`ServerFigures`]: the figures of a server for its pages |
//! | `local` | Unix sockets for programs on the same host: a thread for each connection |
//! | `journal`, `keeper` | edits behind the file that policy is kept in, and that file |
//! | `context` | what a call on a dispatcher can do |
//! | `connection` | the codec, and the table of connections |
//! | `machine` | what both dispatchers run around their cores |
//! | `server_side` | the server's part of the machine |
//! | `editing` | changes of policy, large ones in steps |
//! | `control` | [`Control`]: how programs on the same host change policy |
//! | `cluster` | a policy that several servers share |
//! | `inspector` | the socket for `gbp_inspect` of agent-ovs |
//! | `server` | [`Server`], [`ServerHandle`], newcomers |
//! | `dial` | one attempt at one server |
//! | `feed` | the objects of an element and their changes, for programs on the same host |
//! | `element_side` | the element's part of the machine |
//! | `feed_server` | the threads of the feed's readers |
//! | `element` | [`PolicyElement`], [`ElementHandle`], [`Reference`] |
//!
//! [`ServerCore`]: super::server::ServerCore
//! [`ElementCore`]: super::policy_element::ElementCore

mod cluster;
mod config;
mod connection;
mod context;
mod control;
mod dial;
mod editing;
mod element;
mod element_side;
mod feed;
mod feed_server;
mod figures;
mod inspector;
mod journal;
mod keeper;
mod local;
mod machine;
mod server;
mod server_side;

use std::time::Instant;

pub use self::config::{CallError, ElementConfig, LocalSocket, ServerConfig, StartError};
pub use self::context::{ElementContext, ServerContext};
pub use self::control::{Control, ControlError, EndpointEntry};
pub use self::element::{ElementHandle, PolicyElement, Reference};
pub use self::figures::ServerFigures;
pub use self::server::{Server, ServerHandle};
pub use ssntp_transport::default_max_handshakes;

/// The target of the log lines of a server.
const SERVER_LOG: &str = "ssntp_opflex::server";
/// The target of the log lines of an element.
const ELEMENT_LOG: &str = "ssntp_opflex::policy_element";

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
