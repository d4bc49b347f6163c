//! The OpFlex control protocol (draft-smith-opflex-02), as libopflex speaks it.
//!
//! Policy elements resolve policy from a policy repository, declare endpoints
//! to an endpoint registry and report state to an observer, over JSON-RPC. The
//! other implementation is libopflex. This crate also does what libopflex does beyond the draft, so
//! that libopflex can be at either end of a connection.
//!
//! ```no_run
//! # #![allow(clippy::disallowed_methods)]
//! use std::time::Instant;
//! use ssntp_opflex::model::{Edit, Format, ManagedObject};
//! use ssntp_opflex::server::{ServerCore, Settings};
//!
//! let now = Instant::now();
//! let mut server = ServerCore::new(Settings::new("pr1", "openstack"), now);
//! let policy = ManagedObject::read_all(&std::fs::read("policy.json")?, Format::Json)?;
//! server.edit(Edit::Merge(policy), now)?;
//! let to_do = server.take_actions();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layers
//!
//! | module | what | knows of |
//! |---|---|---|
//! | [`rpc`] | JSON-RPC 1.0: framing, ids, requests that wait | nothing |
//! | [`model`] | managed objects: URIs, the tree store, watchers, files | nothing |
//! | [`message`] | the methods with typed parameters and results | `rpc`, `model` |
//! | [`peer`] | what both ends of a connection share | `message` |
//! | [`server`] | policy repository, endpoint registry, observer | all above |
//! | [`policy_element`] | the client of these | all above |
//! | [`run`] | both on threads, over sockets | all above, `transport` |
//!
//! All but [`run`] do no I/O, start no thread and read no clock:
//! [`server::ServerCore`] and [`policy_element::ElementCore`] are told what
//! happens and when, and answer with what is to be done.
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
//!              │    for each Action: queue a frame, close, dial, tell     │
//!              │  owns the ServerCore or the ElementCore; no lock         │
//!              └──────────────────────────────────────────────────────────┘
//! ```
//!
//! A codec and two threads a connection, one dispatcher that owns all state.
//! The reader turns bytes into typed messages, so that reading JSON costs the
//! connection that sent it and not the dispatcher. The dispatcher never waits
//! for a client: one that takes no answers is not read from, and an update that
//! finds the queue of its connection full ends that connection. An update is
//! built once; its bytes are shared by the queues of all who get it.
//!
//! Waking a thread costs more than most requests. So a dispatcher with nothing
//! else to do sends what is short itself, where nothing waits before it.
//!
//! # Limits
//!
//! Bounded are the length of a message, the memory of its values and their depth
//! ([`rpc::Limits`]), with much less before a peer's identity is accepted
//! ([`message::Decoder`]); the length and depth of a URI ([`model::Uri`]); and what is kept
//! for peers, in bytes as they are allocated and with a share for each
//! ([`server::ServerLimits`], [`policy_element::ElementLimits`]).
//!
//! Log targets are the module paths, `ssntp_opflex::server` and so on.

mod budget;
mod deadlines;
mod json;
pub mod message;
pub mod model;
mod one_or_many;
pub mod peer;
pub mod policy_element;
pub mod rpc;
pub mod run;
pub mod server;

pub use self::run::{PolicyElement, Server};
