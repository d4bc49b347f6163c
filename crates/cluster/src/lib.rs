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
//! | module | holds |
//! |---|---|
//! | [`scheduler`] | the scheduler: takes commands, picks nodes, passes everything on |
//! | [`agent`] | the agent of a node: runs instances, tells of the node and of them |
//! | [`controller`] | a live view of the cluster, commands whose end is watched for |
//! | [`cnci`] | the agent inside a concentrator instance: the tables of a tenant's network |
//! | [`machine`] | the facts of this machine, as READY and STATS tell them |
//! | `client_loop` | the thread between a client and an agent or a concentrator |
//! | `summed` | records on disk, with a checksum |
//! | `subnet` | networks in CIDR form, MAC addresses |

pub mod agent;
mod client_loop;
pub mod cnci;
pub mod controller;
pub mod machine;
pub mod scheduler;
mod subnet;
mod summed;
