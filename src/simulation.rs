//! The parts of servers and clients for programs that bring their own threads, network and time: the code
//! that [`Server`](crate::Server) and [`Client`](crate::Client) run, step by step. Hidden, because it may change
//! in each version: the simulations of this repository use it.
//!
//! | type | what it is |
//! |---|---|
//! | [`ServerCore`] | all state of a server, and its application |
//! | [`Environment`] | the part of a server that threads share: credentials, limits, counters of newcomers |
//! | [`Entry`] | the admission of one newcomer, client or server |
//! | [`AdmissionRequest`], [`Grant`] | a newcomer that asks to be admitted, and the answer |
//! | [`Redial`] | the schedule by which another server is dialled |
//! | `read_join` | reads a node's request to join, for a fuzz target |
//! | [`ClientCore`] | all decisions of a client |

pub use crate::client::core::{At, ClientCore, Next, SessionSink, Standing, Trial, Up};
#[cfg(feature = "issue")]
pub use crate::join::read as read_join;
pub use crate::request::Awaited;
pub use crate::server::admission::{AdmissionRequest, Grant, Peer, RequestKind};
pub use crate::server::core::ServerCore;
pub use crate::server::dial::{Attempt, Redial};
pub use crate::server::entry::{CLAIM, Entry, EntryStep, NoEntry};
pub use crate::server::environment::Environment;
pub use crate::server::links::{LinkFailure, LinkRequest};
pub use crate::wire::Decoder;
