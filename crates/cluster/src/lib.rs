//! The roles of a cluster on top of the protocol.
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
//! The scheduler (the crate `ssntp-scheduler`) is the server, and all others are its clients. It
//! forwards payloads byte for byte.
//!
//! | module | holds |
//! |---|---|
//! | [`machine`] | the facts of this machine, as READY and STATS hold them |
//! | [`Needs`] | the resources and the node that a START requires |
//! | [`phase`] | the phase of an instance: pending, running, ended |
//! | [`refusal`] | the reason why a command is refused, and its failure |
//! | [`client_loop`] | the thread between a client and an agent or a concentrator |
//! | [`summed`] | files with a checksum |
//! | [`subnet`] | networks in CIDR form, tenants' subnets, addresses |
//!
//! The agent is `ssntp-agent`, tenants' networks and the concentrator are `ssntp-network`, and virtual
//! machines are `ssntp-qemu`.

#![deny(missing_docs)]

pub mod client_loop;
pub mod machine;
mod needs;
pub mod phase;
pub mod refusal;
pub mod subnet;
pub mod summed;

pub use self::needs::{Labels, Lacking, Needs};
