//! The roles of a cluster on top of the protocol: who sends what to whom.
//!
//! ```text
//!                        START, STOP, …                      START, STOP, …
//!  ┌────────────┐ ──────────────────────▶ ┌───────────┐ ──────────────────────▶ ┌────────────────┐
//!  │ controller │                         │ scheduler │                         │ agent          │
//!  └────────────┘ ◀────────────────────── │           │ ◀────────────────────── │ network agent  │
//!                 STATS, events, failures │ (server)  │ READY, STATS, events,   └────────────────┘
//!                 NodeConnected           │           │ failures, TenantAdded
//!                                         │           │
//!                                         │           │ AssignPublicIP, …       ┌────────────────┐
//!                                         │           │ ──────────────────────▶ │ CNCI agent     │
//!                                         └───────────┘ ◀────────────────────── └────────────────┘
//!                                            CONFIGURE     PublicIPAssigned, …
//!                                           to all of them
//! ```
//!
//! Everybody is a client of the scheduler, which is the only server. What it
//! forwards keeps its payload byte for byte.
//!
//! | module | the role |
//! |---|---|
//! | [`agent`] | runs instances on a node, and tells of both |
//! | [`scheduler`] | takes commands, picks nodes, passes everything on |
//!
//! and beside them [`machine`], the facts of this machine, and `replace`,
//! files that are whole whenever they are read.

pub mod agent;
pub mod machine;
mod replace;
pub mod scheduler;
mod subnet;
