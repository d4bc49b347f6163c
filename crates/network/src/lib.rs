//! Tenants' networks that carry packets: the node's side, [`Networks`], which an agent takes, and the
//! concentrator's side, [`cnci`].
//!
//! ```text
//!        node                                          network node
//!  ┌──────────────────────────────┐            ┌──────────────────────────────────┐
//!  │ instance   instance          │            │  concentrator of the tenant, in  │
//!  │ namespace  namespace         │            │  a network namespace of its own  │
//!  │   eth0       eth0            │            │                                  │
//!  │    │          │   filters:   │            │  answers ARP, routes, filters,   │
//!  │   sspA       sspB own MAC    │   VXLAN    │  maps public addresses           │
//!  │    └── ssbK ──┘   and own IP │  (key K)   │                                  │
//!  │         │                    │            │                                  │
//!  │        ssxK ─────────────────┼─ underlay ─┼─ ssxK ── routing ── eth0 ──▶ out │
//!  └──────────────────────────────┘            └──────────────────────────────────┘
//! ```
//!
//! A node has one tunnel to the concentrator for each subnet of a tenant, and no tunnels to other
//! nodes. Ports are isolated from each other, so every packet between two instances passes through
//! the concentrator, even if both are on one node. The bridges of a node do not flood packets, and
//! learn no addresses from a tunnel.
//!
//! The network namespace of a process instance exists as long as its supervisor. The interface is
//! removed with the namespace, even if the agent is gone. The agent removes the bridge, the tunnel
//! and the filter's entry. When an agent starts, it adds and removes links until the kernel has those
//! that the instances need.
//!
//! | isolated from | by |
//! |---|---|
//! | other tenants | a bridge and a tunnel with a key of its own for each subnet |
//! | instances on the same node | isolated ports |
//! | the host | packets of instances to the host's own addresses are dropped |
//! | the addresses of other instances | a filter for MAC and IP address on each port |
//!
//! Packets are not encrypted, because the underlay is trusted.
//!
//! | file | holds |
//! |---|---|
//! | `config` | [`NetworkConfig`], [`TunnelConfig`] |
//! | `made` | the links that the instances of the node need |
//! | `filter` | the filters of ports and tunnels |
//! | `links` | the links that the kernel has |
//! | `node` | makes the links and filters that are needed, and repairs them; connects an instance that is being launched |
//! | `files` | the copies of files that concentrators get |
//! | [`cnci`] | the concentrator |
//! | `tools` | `ip` and `nft` as child processes |
//! | `alone` | a network namespace for a test |

#![deny(missing_docs)]

#[cfg(test)]
mod alone;
pub mod cnci;
mod config;
mod files;
mod filter;
mod links;
mod made;
mod node;
mod tools;

pub use self::config::{DEFAULT_MTU, DEFAULT_PORT, NetworkConfig, TunnelConfig};
pub use self::node::Networks;
