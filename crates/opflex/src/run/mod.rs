//! Server and policy element on threads: this module runs [`ServerCore`] and [`ElementCore`]
//! over sockets.
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
//! A [`Server`] or [`PolicyElement`] owns its threads and joins them. The dispatcher, the
//! connections and the flow control are those of `ssntp-transport`, as in SSNTP; `machine` adapts
//! them to OpFlex. A dispatcher never waits for a peer, for a disk or for the receiver of its
//! events.
//!
//! | queue or resource | limit | when full |
//! |---|---|---|
//! | events for the dispatcher | 256 | readers wait, and so their peers have to wait |
//! | received bytes that the dispatcher has not handled | 1 MiB or one read | the reader waits, and so its peer has to wait |
//! | answers in the queue of a peer | 1 MiB or a quarter of its queue, and a piece of an answer | the peer is not read from; the write timeout ends its connection |
//! | updates for a slow peer | half of its queue, then its line | the peer that causes them is paused, for a second at most |
//! | frames for one connection | [`Limits`](ssntp_transport::Limits) | the connection ends |
//! | handshakes under way | [`ServerConfig::max_handshakes`] | the handshake that has waited longest is cut |
//! | connections of an inspector | 8 | the connection that has waited longest for its client is cut, or the newcomer waits |
//! | control connections | 64 | as for an inspector |
//! | readers of an element's feed | 16, and [`ElementConfig::serve_queue`] for all of them | the newcomer is refused; the slowest reader is disconnected |
//! | clients | [`ServerConfig::max_connections`] | the newcomer is refused |
//! | clients of one host | 64; beyond that, at most as many as stay free | the newcomer is refused |
//! | memory of the queues of one host, and of its unfinished messages | half of that of all hosts | as for all hosts together |
//! | a message before the identity is accepted | 256 KiB, and 1 MiB of memory for all of them | the connection ends |
//! | events of an element | [`ElementConfig::events`], and 256 MiB of objects | new events are dropped and counted |
//! | writes of the kept policy | one | the next write has all changes |
//! | edits that have to be written | 10,000 objects | all policy is written |
//!
//! | file | contents; each file uses only files above it |
//! |---|---|
//! | `config` | the configuration of both, the targets of log lines, [`LocalSocket`], and the errors |
//! | `local` | Unix sockets for programs on the same host: a thread for each connection |
//! | `journal`, `keeper` | the file that policy is kept in, and the journal of later edits |
//! | `connection` | the codec, and the table of connections |
//! | `machine` | the adapter between a core and the dispatcher |
//! | `server_side` | the machine's part for a server |
//! | `own_copy` | this server's own copy of the policy: reading and editing it |
//! | `cluster` | a policy that several servers share |
//! | `handle` | [`ServerHandle`]: calls and edits by any thread, and the figures for pages |
//! | `control` | [`Control`] and the control socket, for programs on the same host |
//! | `inspector` | the socket for `gbp_inspect` of agent-ovs |
//! | `server` | [`Server`], handshakes |
//! | `dial` | an attempt to connect to a server |
//! | `feed` | the objects of an element and their changes, for programs on the same host |
//! | `element_side` | the machine's part for an element |
//! | `feed_server` | the threads of the feed's readers |
//! | `element` | [`PolicyElement`], [`ElementHandle`], [`Reference`] |
//!
//! [`ServerCore`]: super::server::ServerCore
//! [`ElementCore`]: super::policy_element::ElementCore

mod cluster;
mod config;
mod connection;
mod control;
mod dial;
mod element;
mod element_side;
mod feed;
mod feed_server;
mod handle;
mod inspector;
mod journal;
mod keeper;
mod local;
mod machine;
mod own_copy;
mod server;
mod server_side;

pub use self::config::{CallError, ElementConfig, LocalSocket, ServerConfig, StartError};
pub use self::control::{Control, ControlError, EndpointEntry};
pub use self::element::{ElementHandle, PolicyElement, Reference};
pub use self::handle::{ServerFigures, ServerHandle};
pub use self::own_copy::Edited;
pub use self::server::Server;
pub use ssntp_transport::default_max_handshakes;
