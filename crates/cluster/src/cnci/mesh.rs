//! The tunnel between the concentrators of a tenant that has several.
//!
//! All of them are in one VXLAN, which the number of the tunnel in RefreshCNCI names. Nothing is
//! flooded and nothing is learned: each concentrator has a MAC address made of its address in the
//! tunnel, and a route to the subnet of each other one.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::network::links::{Route, tunnel_name};
use crate::network::{MAX_KEY, ipv4, mac_of, subnet};
use ssntp::payload::CnciPeer;

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
            match address == own {
                true => me = Some((entry.tunnel_id, in_tunnel)),
                false => peers.push(Peer {
                    address,
                    in_tunnel,
                    subnet: subnet(&entry.subnet)?,
                }),
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

    /// Checks that it takes nothing from the concentrator's own subnets.
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
                "{}, of the peer {}, is this concentrator's own",
                peer.subnet, peer.address
            )),
            None => Ok(()),
        }
    }

    /// The addresses of the others in the cluster's network.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.peers.iter().map(|peer| peer.address)
    }

    /// Whether this route leads to one of the others.
    pub(super) fn has(&self, route: &Route) -> bool {
        let is_its =
            |peer: &Peer| route.dst.parse() == Ok(peer.subnet) && route.gateway == Some(peer.in_tunnel);
        route.dev == tunnel_name(self.id) && self.peers.iter().any(is_its)
    }

    /// The way to each of the others: commands of `ip` and of `bridge`.
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
