//! Server and policy element on threads: what runs [`ServerCore`] and
//! [`ElementCore`] over sockets.
//!
//! ```text
//!  server                                     policy element
//!  accept threads ─▶ handshake workers        Action::Dial ─▶ a dial thread each
//!                        │ Admit, Started          │ Admit, Started, Call: dialled
//!  readers ─ Items ──────┤                         ├── Items ─ readers
//!  ServerHandle ─ Call ──┤                         ├── Call ─ ElementHandle
//!  keeper, editor ─ Call ┤                         │
//!  Server ─ Stop, Exit ──▼                         ▼── Stop, Exit ─ PolicyElement
//!               Runner: ServerSide          Runner: ElementSide ─▶ events
//!                  │ ServerCore                │ ElementCore
//!                  ▼                           ▼
//!               outboxes                    outboxes
//! ```
//!
//! One [`Server`] or [`PolicyElement`] owns its threads and joins them. The
//! dispatcher, the lives of connections and the flow between them are the
//! transport's, the same as under SSNTP; `machine` is what is OpFlex in it. No dispatcher waits for a peer, a disk or whoever takes events.
//!
//! | what | bound | when full |
//! |---|---|---|
//! | events for the dispatcher | 256 | readers wait, and so do their peers |
//! | what a reader is ahead of the dispatcher | 1 MiB or one read | it waits, and so does its peer |
//! | answers that a peer does not take | 1 MiB or a quarter of its queue, and a piece of an answer | it is not read from; the write timeout ends it |
//! | updates caused by a peer, for one that does not take them | half of its queue, then its line | the one that causes them waits, a second at most |
//! | frames for one connection | [`Limits`](ssntp_transport::Limits) | the connection ends |
//! | handshakes under way | [`ServerConfig::max_handshakes`] | the one that waits longest is cut |
//! | connections of an inspector | 8 | the slowest is cut, or who comes waits |
//! | readers of an element's feed | 16, and [`ElementConfig::serve_queue`] for all of them | who comes is refused; the slowest is let go |
//! | clients | [`ServerConfig::max_connections`], and 16 for control | who comes is refused |
//! | clients of one host | 64, and beyond that what they leave free | who comes is refused |
//! | a message until the identity is accepted | 256 KiB, and 1 MiB of memory for all of them | the connection ends |
//! | events of an element | [`ElementConfig::events`] | new ones are dropped and counted |
//! | writes of the kept policy | one | the next one has all changes |
//! | edits that wait to be written | 10,000 objects | all policy is written |
//! | edits from control connections | 16 | who asks for more is told that it is busy |
//! | copies of a tree under way | one for each control connection, keeper and caller | – |
//!
//! | file | what, each using files above it alone |
//! |---|---|
//! | `config` | the settings of both, [`LocalSocket`], and why they don't start |
//! | `figures` | [`ServerFigures`]: what a server knows about itself |
//! | `local` | writing to programs on the same host |
//! | `journal`, `keeper` | edits behind the file that policy is kept in, and that file |
//! | `context` | what a call on a dispatcher can do |
//! | `connection` | codec, coming in, the numbers of connections |
//! | `machine` | what both dispatchers run around their cores |
//! | `control` | [`Control`]: how programs on the same host change policy |
//! | `server_side` | what is the server's in that |
//! | `editing` | changes of policy, large ones in steps |
//! | `cluster` | a policy that several servers share |
//! | `inspector` | what `gbp_inspect` of agent-ovs sees a server or an element through |
//! | `server` | [`Server`], [`ServerHandle`], newcomers |
//! | `dial` | one attempt at one server |
//! | `feed` | what an element has, and its changes, for programs on the same host |
//! | `element_side` | what is the element's in the machine |
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
