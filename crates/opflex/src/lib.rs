//! The OpFlex control protocol (draft-smith-opflex-02), as libopflex speaks it.
//!
//! Policy elements resolve policy from a policy repository, declare endpoints
//! to an endpoint registry and report state to an observer, over JSON-RPC. The
//! other implementation is libopflex. This crate also supports the additions of
//! libopflex to the draft, so that libopflex can be at either end of a connection.
//!
//! ```no_run
//! # #![allow(clippy::disallowed_methods)]
//! use std::time::Instant;
//! use ssntp_opflex::model::{Edit, Format, ManagedObject};
//! use ssntp_opflex::server::{ServerCore, ServerSettings};
//!
//! let now = Instant::now();
//! let mut server = ServerCore::new(ServerSettings::new("pr1", "openstack"), now);
//! let policy = ManagedObject::read_all(&std::fs::read("policy.json")?, Format::Json)?;
//! server.edit(Edit::Merge(policy), now)?;
//! let to_do = server.take_actions();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layers
//!
//! | module | contents | uses |
//! |---|---|---|
//! | [`rpc`] | JSON-RPC 1.0: framing, ids | – |
//! | [`model`] | managed objects: URIs, the tree store, watchers, files | – |
//! | [`message`] | the methods with typed parameters and results | `rpc`, `model` |
//! | [`peer`] | the code that servers and policy elements share | `rpc`, `message` |
//! | [`server`] | policy repository, endpoint registry, observer | all above |
//! | [`policy_element`] | the client of these servers | all above |
//! | [`run`] | server and policy element on threads, over sockets | all above, `transport` |
//!
//! All but [`run`] do no I/O, start no thread and read no clock:
//! the caller passes events and the time to [`server::ServerCore`] and
//! [`policy_element::ElementCore`], and carries out the actions that these return.
//!
//! # Threads
//!
//! ```text
//!   socket ──> reader thread                                       writer thread ──> socket
//!              message::Decoder ──> batches of Incoming      bounded queue of frames
//!                        │                                             ▲
//!                        ▼  one bounded channel                        │
//!              ┌──────────────────────── dispatcher thread ────────────┴──┐
//!              │  connections take turns; a turn is some messages         │
//!              │    connected | message… | disconnected | command | tick  │
//!              │    for each Action: queue a frame, close, dial, report   │
//!              │  owns the ServerCore or the ElementCore; no lock         │
//!              └──────────────────────────────────────────────────────────┘
//! ```
//!
//! Each connection has a codec, a reader thread and a writer thread. One dispatcher owns all
//! state. The reader parses the JSON of its connection, so a large message delays only that
//! connection. The dispatcher never waits for a client: a client that does not receive its
//! answers is not read from, and a connection whose queue is full when an update is sent is
//! closed. An update is built once; the queues of all its receivers share its bytes.
//!
//! Waking a thread costs more than most requests. So an idle dispatcher sends a short frame
//! itself if the queue of the connection is empty.
//!
//! # Limits
//!
//! The length of a message, the memory of its values and their depth have limits
//! ([`rpc::Limits`]), which are much lower until the peer's identity is accepted
//! ([`message::Decoder`]). The length and depth of a URI have limits ([`model::Uri`]). The
//! memory that is kept for peers has limits in allocated bytes, with a share for each peer
//! ([`server::ServerLimits`], [`policy_element::ElementLimits`]).
//!
//! Log targets are the module paths, `ssntp_opflex::server` and so on.

mod json;
pub mod message;
pub mod model;
mod one_or_many;
pub mod peer;
pub mod policy_element;
pub mod rpc;
pub mod run;
pub mod server;
mod shares;

pub use self::run::{PolicyElement, Server};
