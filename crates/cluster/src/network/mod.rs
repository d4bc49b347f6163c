//! Tenants' networks that carry packets: the node's side. The concentrator's side is
//! [`cnci`](crate::cnci).
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
//! There is one tunnel from a node to the concentrator for each subnet of a tenant, and none
//! between nodes. Ports are isolated from each other, so every packet between two instances
//! passes through the concentrator, on one node as well. Nothing is flooded, and nothing is
//! learned from a tunnel.
//!
//! A process instance has a network namespace that lives exactly as long as its supervisor.
//! Its interface goes with the namespace, whatever happens to the agent; the agent removes
//! the bridge, the tunnel and the filter's entry. An agent that starts makes the difference
//! between what its instances need and what the kernel has.
//!
//! | isolated from | by |
//! |---|---|
//! | other tenants | a bridge and a tunnel with a key of their own |
//! | neighbours on the node | isolated ports |
//! | the host | no packet of an instance is delivered to the host's own addresses |
//! | another instance's identity | a filter for MAC and IP address on each port |
//!
//! Packets are not encrypted: the underlay is trusted.
//!
//! | file | holds |
//! |---|---|
//! | `attachment` | what a START asks for |
//! | `config` | [`NetworkConfig`], [`TunnelConfig`] |
//! | `made` | what the instances of the node need of the kernel |
//! | `filter` | what ports and tunnels let through |
//! | `links` | links of the kernel |
//! | `node` | makes what is needed, and makes again what is missing |
//! | `wire` | [`Wire`]: the network of an instance that is being launched |
//! | `tools` | `ip` and `nft` as child processes |

#[cfg(test)]
pub(crate) mod alone;
mod attachment;
mod config;
mod filter;
pub(crate) mod links;
mod made;
mod node;
pub(crate) mod tools;
mod wire;

pub use self::attachment::MAX_KEY;
pub(crate) use self::attachment::{Attachment, gateway, ipv4, mac_of, subnet};
pub use self::config::{DEFAULT_MTU, DEFAULT_PORT, NetworkConfig, TunnelConfig};
pub(crate) use self::made::Namespace;
pub(crate) use self::node::Networks;
pub(crate) use self::wire::RESOLVER;
pub use self::wire::{Tap, Wire};
