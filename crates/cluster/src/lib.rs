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
//! The scheduler is the only server, and all others are its clients. It forwards payloads
//! byte for byte.
//!
//! | module | holds |
//! |---|---|
//! | [`scheduler`] | the scheduler: takes commands, picks nodes, forwards reports |
//! | [`agent`] | the agent of a node: runs instances, reports on the node and on them |
//! | [`controller`] | a live view of the cluster, and commands whose outcome is watched for |
//! | [`cnci`] | the agent inside a concentrator instance: the tables of a tenant's network |
//! | [`network`] | tenants' networks that carry packets: the node's side |
//! | [`machine`] | the facts of this machine, as READY and STATS hold them |
//! | [`Peers`] | the members of a cluster, which a server links with |
//! | `phase` | how far an instance has come |
//! | `refusal` | why a command is refused, and the failure that says so |
//! | `client_loop` | the thread between a client and an agent or a concentrator |
//! | `summed` | files with a checksum |
//! | `subnet` | networks in CIDR form, MAC addresses |

pub mod agent;
mod client_loop;
pub mod cnci;
pub mod controller;
pub mod machine;
pub mod network;
mod peers;
mod phase;
mod refusal;
pub mod scheduler;
mod subnet;
mod summed;

pub use self::peers::Peers;
