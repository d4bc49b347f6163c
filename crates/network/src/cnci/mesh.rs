//! The tunnel between the concentrators of a tenant that has several.
//!
//! All concentrators are in one VXLAN, whose number is that of the tunnel in RefreshCNCI. The tunnel
//! neither floods packets nor learns addresses: the MAC address of each concentrator is made of its
//! address in the tunnel, and each concentrator has a route to the subnets of the others.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::links::{Route, tunnel_name};
use ssntp_cluster::subnet::{MAX_KEY, ipv4, mac_of, subnet};
use ssntp_payload::CnciPeer;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mesh {
    /// The number of the tunnel.
    pub(super) id: u32,
    /// This concentrator's address in the tunnel.
    pub(super) own: Ipv4Addr,
    peers: Vec<Peer>,
}

/// Another concentrator of the tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Peer {
    address: Ipv4Addr,
    in_tunnel: Ipv4Addr,
    subnet: Ipv4Net,
}

impl Mesh {
    /// Reads a list of all concentrators of the tenant; `None` if there are no others.
    pub(super) fn of(list: &[CnciPeer], own: Ipv4Addr) -> Result<Option<Self>, String> {
        let (mut me, mut peers) = (None, Vec::new());
        for entry in list {
            let address = ipv4("physical_ip", &entry.physical_ip)?;
            let in_tunnel = ipv4("tunnel_ip", &entry.tunnel_ip)?;
            if !(1..=MAX_KEY).contains(&entry.tunnel_id) {
                let id = entry.tunnel_id;
                return Err(format!("tunnel_id {id} is not from 1 to {MAX_KEY}"));
            }
            if list.iter().any(|other| other.tunnel_id != entry.tunnel_id) {
                return Err("the concentrators have different tunnels".into());
            }
            if address == own {
                me = Some((entry.tunnel_id, in_tunnel))
            } else {
                peers.push(Peer {
                    address,
                    in_tunnel,
                    subnet: subnet(&entry.subnet)?,
                })
            }
        }
        match me {
            _ if peers.is_empty() => Ok(None),
            Some((id, own)) => Ok(Some(Self { id, own, peers })),
            None => Err(format!(
                "the list lacks this concentrator, {own}, and so its address in the tunnel"
            )),
        }
    }

    /// Checks that neither the number of the tunnel nor the subnets of the peers conflict with the
    /// concentrator's own subnets.
    pub(super) fn check(&self, own: &BTreeMap<u32, Ipv4Net>) -> Result<(), String> {
        if let Some(subnet) = own.get(&self.id) {
            return Err(format!(
                "tunnel_id {} is already the key of the subnet {subnet}",
                self.id
            ));
        }
        let is_own = |peer: &&Peer| {
            let mut own = own.values();
            own.any(|own| own.contains(&peer.subnet) || peer.subnet.contains(own))
        };
        match self.peers.iter().find(is_own) {
            Some(peer) => Err(format!(
                "the subnet {} of the peer {} overlaps a subnet of this concentrator",
                peer.subnet, peer.address
            )),
            None => Ok(()),
        }
    }

    /// The addresses of the peers in the cluster's network.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.peers.iter().map(|peer| peer.address)
    }

    /// True if this route leads to a peer.
    pub(super) fn has(&self, route: &Route) -> bool {
        let is_its =
            |peer: &Peer| route.dst.parse() == Ok(peer.subnet) && route.gateway == Some(peer.in_tunnel);
        route.dev == tunnel_name(self.id) && self.peers.iter().any(is_its)
    }

    /// Writes the commands of `ip` and of `bridge` that make the routes to the peers.
    pub(super) fn write(&self, ip: &mut String, bridge: &mut String) {
        let device = tunnel_name(self.id);
        for Peer {
            address,
            in_tunnel,
            subnet,
        } in &self.peers
        {
            let mac = mac_of(*in_tunnel);
            let _ = write!(
                ip,
                "neigh replace {in_tunnel} lladdr {mac} dev {device} nud permanent\n\
                 route replace {subnet} via {in_tunnel} dev {device} onlink\n"
            );
            let _ = writeln!(bridge, "fdb replace {mac} dev {device} dst {address}");
        }
    }
}
