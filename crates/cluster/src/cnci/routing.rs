//! The data plane that moves packets: VXLAN tunnels to nodes and to the tenant's other
//! concentrators, routing between instances, public addresses, leases of machines.
//!
//! ```text
//!  each call ── changes ──▶ what is wanted ── difference ──▶ the kernel of this namespace
//!                                ▲     │
//!                  taken back ───┘     └── fails
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use log::warn;
use serde::Deserialize;

use super::leases::Leases;
use super::mesh::Mesh;
use super::plane::DataPlane;
use super::tables::{PublicIp, Tables, Tunnel};
use crate::network::links::{GROUP, Link, TUNNEL, Underlay, delete, links, tunnel_name};
use crate::network::tools::elements;
use crate::network::{MAX_KEY, TunnelConfig, gateway, mac_of, subnet, tools};
use ssntp::payload::{CnciPeer, Id};

/// The entry of a tunnel's table that gets broadcasts: one for each node.
const ALL: &str = "00:00:00:00:00:00";

/// Routes between the nodes of a tenant, in the network namespace of this process, which
/// must belong to the concentrator alone.
#[derive(Debug)]
pub struct Routing {
    underlay: Underlay,
    config: TunnelConfig,
    wanted: Wanted,
    leases: Leases,
}

/// The tunnels, public addresses and peers that the kernel is to have.
#[derive(Clone, Debug, Default)]
struct Wanted {
    /// By node and subnet, as in the tables.
    tunnels: BTreeMap<(Id, String), Way>,
    public: BTreeMap<Ipv4Addr, Ipv4Addr>,
    peers: Option<Mesh>,
}

/// A tunnel that was read from the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    node: Ipv4Addr,
    key: u32,
    subnet: Ipv4Net,
}

#[derive(Debug, Deserialize)]
struct Entry {
    mac: String,
    #[serde(default)]
    ifname: String,
    #[serde(default)]
    dst: Option<Ipv4Addr>,
}

impl Way {
    fn of(tunnel: &Tunnel) -> Result<Self, String> {
        let Tunnel { agent_ip, key, .. } = tunnel;
        if !(1..=MAX_KEY).contains(key) {
            return Err(format!("the key {key} of a tunnel is not from 1 to {MAX_KEY}"));
        }
        Ok(Self {
            node: agent_ip
                .parse()
                .map_err(|_| format!("{agent_ip:?} is no IPv4 address of a node"))?,
            key: *key,
            subnet: subnet(&tunnel.subnet)?,
        })
    }
}

impl Wanted {
    /// The subnet of each key.
    ///
    /// # Errors
    /// A key or a subnet is there twice.
    fn subnets(&self) -> Result<BTreeMap<u32, Ipv4Net>, String> {
        let mut subnets = BTreeMap::new();
        for Way { key, subnet, .. } in self.tunnels.values() {
            let there = subnets.insert(*key, *subnet);
            if let Some(there) = there.filter(|there| there != subnet) {
                return Err(format!("the key {key} belongs to {there}, not to {subnet}"));
            }
        }
        let mut keys = BTreeMap::new();
        for (key, subnet) in &subnets {
            if let Some(other) = keys.insert(*subnet, *key) {
                return Err(format!("{subnet} has two keys, {other} and {key}"));
            }
        }
        match &self.peers {
            Some(peers) => peers.check(&subnets).map(|()| subnets),
            None => Ok(subnets),
        }
    }
}

impl Routing {
    /// Looks for the interface with the concentrator's address.
    ///
    /// # Errors
    /// There is none, or `ip` is missing.
    pub fn open(ip: IpAddr, config: TunnelConfig) -> Result<Self, String> {
        Ok(Self {
            underlay: Underlay::find(&ip.to_string())?,
            config,
            wanted: Wanted::default(),
            leases: Leases::default(),
        })
    }

    /// Changes what is wanted, and the kernel. If that fails, all is as it was.
    fn change(&mut self, change: impl FnOnce(&mut Wanted) -> Result<(), String>) -> Result<(), String> {
        let before = self.wanted.clone();
        let changed = change(&mut self.wanted).and_then(|()| self.settle());
        if changed.is_err() {
            self.wanted = before;
            let _ = self.settle();
        }
        changed
    }

    /// Makes the kernel have what is wanted, and nothing else. Tunnels and addresses that are
    /// there and right are not touched, so packets of others go on.
    fn settle(&mut self) -> Result<(), String> {
        let subnets = self.wanted.subnets()?;
        // The filter comes before tunnels and forwarding, so that no packet passes without it.
        tools::nft(&self.table()).map_err(|why| format!("nft, which needs CAP_NET_ADMIN: {why}"))?;
        set("ipv4/ip_forward", "1")?;
        set("ipv4/conf/all/send_redirects", "0")?;
        let links: Vec<Link> = links()?;
        let (local, TunnelConfig { mtu, port, .. }) = (self.underlay.ip, &self.config);
        let mesh = self.wanted.peers.as_ref();
        let keys: Vec<_> = subnets.keys().copied().chain(mesh.map(|mesh| mesh.id)).collect();
        let is_right = |link: &&Link| keys.iter().any(|key| link.is_tunnel(*key, local, *port));
        let (right, wrong): (Vec<_>, Vec<_>) = links.iter().partition(is_right);
        delete(&wrong.iter().map(|link| link.ifname.clone()).collect::<Vec<_>>());
        let has = |name: &str| right.iter().any(|link| link.ifname == name);
        let (mut batch, mut entries) = (String::new(), String::new());
        let mut device = |key, own: Ipv4Net, learns: &str| {
            let (name, mac, ip) = (tunnel_name(key), mac_of(own.addr()), own);
            if !has(&name) {
                let _ = write!(
                    batch,
                    "link add name {name} group {GROUP} address {mac} mtu {mtu} type vxlan id {key} \
                     local {local} dstport {port} {learns}\n\
                     link set {name} addrgenmode none\n"
                );
            }
            let _ = write!(batch, "addr replace {ip} dev {name}\nlink set {name} up\n");
            name
        };
        for (key, subnet) in &subnets {
            let own = Ipv4Net::new_assert(gateway(*subnet), subnet.prefix_len());
            device(*key, own, "learning");
        }
        if let Some(mesh) = mesh {
            let name = device(mesh.id, mesh.own.into(), "nolearning");
            mesh.write(&name, &mut batch, &mut entries);
        }
        let (there, device) = (self.addresses()?, &self.underlay.device);
        let wanted: BTreeSet<_> = self.wanted.public.keys().copied().collect();
        for public in wanted.difference(&there) {
            let _ = writeln!(batch, "addr add {public}/32 dev {device}");
        }
        for public in there.difference(&wanted) {
            let _ = writeln!(batch, "addr del {public}/32 dev {device}");
        }
        tools::ip(&batch)?;
        for name in subnets.keys().map(|key| tunnel_name(*key)) {
            // It answers ARP for all addresses of its subnet but its own, and sends a packet back
            // out where it came from, without telling the sender of a shorter way.
            set(&format!("ipv4/conf/{name}/proxy_arp_pvlan"), "1")?;
            set(&format!("ipv4/conf/{name}/send_redirects"), "0")?;
            // The default delays the first packet to each instance by up to 0.8 s.
            set(&format!("ipv4/neigh/{name}/proxy_delay"), "0")?;
        }
        let there: Vec<Entry> = tools::json("bridge", &["fdb", "show"])?;
        let there = there
            .iter()
            .filter(|entry| entry.mac == ALL && entry.ifname.starts_with(TUNNEL));
        let there: BTreeSet<_> = there
            .filter_map(|entry| Some((entry.ifname.clone(), entry.dst?)))
            .collect();
        let ways = self.wanted.tunnels.values();
        let wanted: BTreeSet<_> = ways.map(|way| (tunnel_name(way.key), way.node)).collect();
        for (name, node) in wanted.difference(&there) {
            let _ = writeln!(entries, "fdb append {ALL} dev {name} dst {node}");
        }
        for (name, node) in there.difference(&wanted) {
            let _ = writeln!(entries, "fdb del {ALL} dev {name} dst {node}");
        }
        tools::bridge(&entries)?;
        self.leases.serve(subnets.into_iter(), &self.config);
        Ok(())
    }

    /// The whole filter and the address maps, which nft replaces in one step. Counters stay.
    fn table(&self) -> String {
        // Sets are named twice, because nft fails to flush one that does not exist.
        // Packets of the tunnels are not tracked: they are neither translated nor judged by
        // their connection, so tracking would only cost. An instance may not send such packets
        // itself, nor reach the nodes: it could reach into the tunnels of others. Instances
        // without a public address leave with the address of the concentrator.
        let Wanted {
            tunnels,
            public,
            peers,
        } = &self.wanted;
        let nodes = tunnels.values().map(|way| way.node);
        let nodes = nodes.chain(peers.iter().flat_map(Mesh::addresses));
        let nodes: BTreeSet<_> = nodes.map(|ip| ip.to_string()).collect();
        let nodes = elements(nodes.into_iter());
        let inward = elements(
            public
                .iter()
                .map(|(public, private)| format!("{public} : {private}")),
        );
        let outward = elements(
            public
                .iter()
                .map(|(public, private)| format!("{private} : {public}")),
        );
        let (port, device) = (self.config.port, &self.underlay.device);
        format!(
            r#"
table ip ssntp {{
  set nodes {{ type ipv4_addr; }}
  map inward {{ type ipv4_addr : ipv4_addr; }}
  map outward {{ type ipv4_addr : ipv4_addr; }}
}}
flush table ip ssntp
flush set ip ssntp nodes
flush map ip ssntp inward
flush map ip ssntp outward
table ip ssntp {{
  set nodes {{ type ipv4_addr; {nodes} }}
  map inward {{ type ipv4_addr : ipv4_addr; {inward} }}
  map outward {{ type ipv4_addr : ipv4_addr; {outward} }}
  counter foreign {{ }}
  counter dropped {{ }}
  chain raw_in {{
    type filter hook prerouting priority raw; policy accept;
    udp dport {port} notrack
  }}
  chain raw_out {{
    type filter hook output priority raw; policy accept;
    udp dport {port} notrack
  }}
  chain to_private {{
    type nat hook prerouting priority dstnat; policy accept;
    dnat to ip daddr map @inward
  }}
  chain to_public {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname != "{device}" return
    snat to ip saddr map @outward
    fib saddr type != local masquerade
  }}
  chain input {{
    type filter hook input priority filter; policy accept;
    iifname "lo" accept
    iifname "{TUNNEL}*" icmp type echo-request accept
    iifname "{TUNNEL}*" udp sport 68 udp dport 67 accept
    iifname "{TUNNEL}*" counter name dropped drop
    udp dport {port} ip saddr @nodes accept
    udp dport {port} counter name foreign drop
    ct state established,related accept
    icmp type echo-request accept
    counter name dropped drop
  }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname "{TUNNEL}*" oifname "{TUNNEL}*" accept
    iifname "{TUNNEL}*" udp dport {port} counter name dropped drop
    iifname "{TUNNEL}*" ip daddr @nodes counter name dropped drop
    iifname "{TUNNEL}*" oifname "{device}" accept
    oifname "{TUNNEL}*" ct state established,related accept
    oifname "{TUNNEL}*" ct status dnat accept
    counter name dropped drop
  }}
}}
"#
        )
    }

    /// The public addresses that the interface has.
    fn addresses(&self) -> Result<BTreeSet<Ipv4Addr>, String> {
        let underlay = &self.underlay;
        let all = Underlay::addresses()?;
        let of_device = all.into_iter().filter(|link| link.ifname == underlay.device);
        let addresses = of_device.flat_map(|link| link.addr_info);
        // Public addresses are added with this prefix; the address of the interface itself has
        // the prefix of its network.
        let single = addresses.filter(|address| address.prefixlen == 32);
        let all = single.map(|address| address.local);
        Ok(all.filter(|ip| *ip != underlay.ip).collect())
    }
}

impl DataPlane for Routing {
    fn name(&self) -> &'static str {
        "VXLAN and nftables"
    }

    fn restore(&mut self, tables: &Tables) -> Result<(), String> {
        for tunnel in &tables.tunnels {
            // A tunnel that was never possible is in the tables all the same.
            let name = name_of(tunnel);
            let wanted = Way::of(tunnel).and_then(|way| {
                self.wanted.tunnels.insert(name.clone(), way);
                self.wanted.subnets()
            });
            if let Err(why) = wanted {
                warn!("node {}: {why}", tunnel.agent_uuid);
                self.wanted.tunnels.remove(&name);
            }
        }
        for ip in &tables.public_ips {
            // A concentrator that only kept tables has assigned addresses that lead nowhere.
            match pair(ip) {
                Ok((public, private)) => drop(self.wanted.public.insert(public, private)),
                Err(why) => warn!("public address {:?}: {why}", ip.public_ip),
            }
        }
        self.settle()?;
        if let Err(why) = self.set_peers(&tables.peers) {
            warn!("peers: {why}");
        }
        Ok(())
    }

    fn add_tunnel(&mut self, tunnel: &Tunnel) -> Result<(), String> {
        let way = Way::of(tunnel)?;
        // The node may have another address or key than before.
        self.change(|wanted| {
            wanted.tunnels.insert(name_of(tunnel), way);
            Ok(())
        })
    }

    fn remove_tunnel(&mut self, tunnel: &Tunnel) -> Result<(), String> {
        self.wanted.tunnels.remove(&name_of(tunnel));
        self.settle()
    }

    fn set_peers(&mut self, peers: &[CnciPeer]) -> Result<(), String> {
        let mesh = Mesh::of(peers, self.underlay.ip)?;
        if let Some(former) = self.wanted.peers.as_ref().filter(|_| self.wanted.peers != mesh) {
            // Its routes go with it.
            delete(&[tunnel_name(former.id)]);
        }
        self.change(|wanted| {
            wanted.peers = mesh;
            Ok(())
        })
    }

    fn assign(&mut self, ip: &PublicIp) -> Result<(), String> {
        let (public, private) = pair(ip)?;
        if public == self.underlay.ip {
            return Err(format!("{public} is the concentrator's own address"));
        }
        self.change(|wanted| {
            if !wanted.tunnels.values().any(|way| way.subnet.contains(&private)) {
                return Err(format!("{private} is in no subnet of this concentrator"));
            }
            wanted.public.insert(public, private);
            Ok(())
        })
    }

    fn release(&mut self, ip: &PublicIp) -> Result<(), String> {
        let public: Ipv4Addr = parse(&ip.public_ip)?;
        self.change(|wanted| {
            wanted.public.remove(&public);
            Ok(())
        })
    }

    fn look(&mut self) -> Result<(), String> {
        self.settle()
    }
}

fn name_of(tunnel: &Tunnel) -> (Id, String) {
    (tunnel.agent_uuid.clone(), tunnel.subnet.clone())
}

fn pair(ip: &PublicIp) -> Result<(Ipv4Addr, Ipv4Addr), String> {
    Ok((parse(&ip.public_ip)?, parse(&ip.private_ip)?))
}

fn parse(ip: &str) -> Result<Ipv4Addr, String> {
    ip.parse().map_err(|_| format!("{ip:?} is no IPv4 address"))
}

/// Sets a network setting of this namespace.
fn set(name: &str, value: &str) -> Result<(), String> {
    let path = format!("/proc/sys/net/{name}");
    fs::write(&path, value).map_err(|e| format!("{path}: {e}"))
}

#[cfg(test)]
mod tests;
