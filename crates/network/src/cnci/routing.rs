//! The data plane that moves packets: VXLAN tunnels to nodes and to the tenant's other
//! concentrators, routing between instances, public addresses, leases of machines.
//!
//! ```text
//!  tables ── read ──▶ Wanted ── difference ──▶ the kernel of this namespace
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::Ipv4Net;
use serde::Deserialize;

use super::leases::Leases;
use super::mesh::Mesh;
use super::plane::DataPlane;
use super::tables::{PublicIp, Tables, Tunnel};
use crate::links::{self, Address, GROUP, Link, Route, TUNNEL, Underlay, delete, links, tunnel_name};
use crate::tools::elements;
use crate::{TunnelConfig, tools};
use ssntp_cluster::subnet::{MAX_KEY, gateway, ipv4, is_unicast, mac_of, subnet};

/// The MAC address of the entries in a tunnel's table that receive broadcasts, one for each node.
const ALL: &str = "00:00:00:00:00:00";
/// The port of RFC 863, at which hosts accept no connections.
const DISCARD: u16 = 9;
/// Longer than the kernel asks for a MAC address: three times, for [`PROBE_MS`] each.
const PROBES: Duration = Duration::from_secs(2);
/// By default the kernel waits for a second.
const PROBE_MS: &str = "300";

/// A data plane that routes between the nodes of a tenant. It uses the network namespace of this
/// process, which must not have other users.
#[derive(Debug)]
pub struct Routing {
    underlay: Underlay,
    config: TunnelConfig,
    /// The entries that were left out the last time, with the reasons.
    left_out: Vec<String>,
    /// The node to which each address of an instance leads.
    forwarded: Forwarded,
    leases: Leases,
}

/// The nodes of addresses, each in the subnet of a key.
type Forwarded = BTreeMap<(u32, Ipv4Addr), Ipv4Addr>;

/// The tunnels, routes and addresses that the kernel should have, by the tables.
#[derive(Debug, Default)]
struct Wanted {
    /// The subnet of each key.
    subnets: BTreeMap<u32, Ipv4Net>,
    /// The nodes of each key.
    nodes: BTreeSet<(u32, Ipv4Addr)>,
    /// The nodes of the addresses of instances.
    forwarded: Forwarded,
    /// The private address of each public address.
    public: BTreeMap<Ipv4Addr, Ipv4Addr>,
    peers: Option<Mesh>,
    /// The entries of the tables that are left out, with the reasons.
    left_out: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    mac: String,
    #[serde(default)]
    ifname: String,
    #[serde(default)]
    dst: Option<Ipv4Addr>,
}

#[derive(Debug, Deserialize)]
struct KnownHost {
    dst: Ipv4Addr,
    dev: String,
    #[serde(default)]
    lladdr: String,
}

impl Wanted {
    /// Reads the tables of the concentrator with this address.
    fn of(tables: &Tables, own: Ipv4Addr) -> Self {
        let mut wanted = Self::default();
        for tunnel in &tables.tunnels {
            if let Err(why) = wanted.add_tunnel(tunnel) {
                wanted.left_out.push(format!("node {}: {why}", tunnel.agent_uuid));
            }
        }
        let peers = Mesh::of(&tables.peers, own);
        let checked = peers.and_then(|peers| match &peers {
            Some(mesh) => mesh.check(&wanted.subnets).map(|()| peers),
            None => Ok(None),
        });
        match checked {
            Ok(peers) => wanted.peers = peers,
            Err(why) => wanted.left_out.push(format!("peers: {why}")),
        }
        for ip in &tables.public_ips {
            if let Err(why) = wanted.add_public(ip, own) {
                let public = &ip.public_ip;
                wanted.left_out.push(format!("public address {public}: {why}"));
            }
        }
        wanted
    }

    fn add_tunnel(&mut self, tunnel: &Tunnel) -> Result<(), String> {
        let (node, subnet) = (ipv4("agent_ip", &tunnel.agent_ip)?, subnet(&tunnel.subnet)?);
        let key = tunnel.key;
        if !(1..=MAX_KEY).contains(&key) {
            return Err(format!("the key {key} of a tunnel is not from 1 to {MAX_KEY}"));
        }
        for (other, there) in &self.subnets {
            match (*other == key, *there == subnet) {
                (true, false) => return Err(format!("the key {key} belongs to {there}, not to {subnet}")),
                (false, true) => return Err(format!("{subnet} has two keys, {other} and {key}")),
                _ => {}
            }
        }
        self.subnets.insert(key, subnet);
        self.nodes.insert((key, node));
        let own = gateway(subnet);
        let of_instances = tunnel
            .addresses
            .iter()
            .filter(|ip| subnet.contains(*ip) && **ip != own);
        self.forwarded.extend(of_instances.map(|ip| ((key, *ip), node)));
        Ok(())
    }

    fn add_public(&mut self, ip: &PublicIp, own: Ipv4Addr) -> Result<(), String> {
        let public = ipv4("public_ip", &ip.public_ip)?;
        let private = ipv4("private_ip", &ip.private_ip)?;
        if public == own {
            return Err("it is the concentrator's own address".into());
        }
        if !is_unicast(public) {
            return Err("it is not a unicast address".into());
        }
        if !self.subnets.values().any(|subnet| subnet.contains(&private)) {
            return Err(format!("{private} is in no subnet of this concentrator"));
        }
        self.public.insert(public, private);
        Ok(())
    }
}

impl Routing {
    /// Finds the interface with the concentrator's address.
    ///
    /// # Errors
    /// No interface has this address, or the program `ip` is missing.
    pub fn open(ip: IpAddr, config: TunnelConfig) -> Result<Self, String> {
        Ok(Self {
            underlay: Underlay::find(&ip.to_string())?,
            config,
            left_out: Vec::new(),
            forwarded: Forwarded::new(),
            leases: Leases::default(),
        })
    }

    /// Makes the tunnels, routes and addresses that are wanted, and removes all others. Those that
    /// are right are not touched, so their packets are not interrupted.
    ///
    /// # Errors
    /// The first error. All other parts are made, unless the filter cannot be made.
    fn settle(&mut self, wanted: &Wanted) -> Result<(), String> {
        // The filter comes before tunnels and forwarding, so that no packet passes unfiltered.
        tools::nft(&self.table(wanted)).map_err(|why| format!("nft, which needs CAP_NET_ADMIN: {why}"))?;
        let made = set("ipv4/ip_forward", "1")
            .and(set("ipv4/conf/all/send_redirects", "0"))
            .and(self.settle_tunnels(wanted))
            .and(self.settle_public_addresses(wanted))
            .and(settle_entries(wanted));
        self.leases.serve(&wanted.subnets, &self.config);
        made
    }

    /// Makes the tunnels to nodes and to the other concentrators, and the routes to the latter.
    fn settle_tunnels(&self, wanted: &Wanted) -> Result<(), String> {
        let Wanted { subnets, peers, .. } = wanted;
        let (local, TunnelConfig { mtu, port, .. }) = (self.underlay.ip, &self.config);
        let own = |subnet: &Ipv4Net| Ipv4Net::new_assert(gateway(*subnet), subnet.prefix_len());
        let tunnels = subnets.iter().map(|(key, subnet)| (*key, own(subnet)));
        let mesh = peers.iter().map(|mesh| (mesh.id, mesh.own.into()));
        let tunnels: Vec<(u32, Ipv4Net)> = tunnels.chain(mesh).collect();
        // Peers and instances compute the MAC address of a tunnel from its IP address.
        let is_right = |link: &Link| {
            let is_it = |(key, own): &(u32, Ipv4Net)| {
                link.is_tunnel(*key, local, *port) && link.address == mac_of(own.addr())
            };
            tunnels.iter().any(is_it)
        };
        let (right, wrong): (Vec<_>, Vec<_>) = links()?.into_iter().partition(is_right);
        delete(&wrong.into_iter().map(|link| link.ifname).collect::<Vec<_>>());
        let there = links::addresses();
        let (mut batch, mut entries) = (String::new(), String::new());
        for (key, own) in &tunnels {
            let (name, mac) = (tunnel_name(*key), mac_of(own.addr()));
            if !right.iter().any(|link| link.ifname == name) {
                let _ = write!(
                    batch,
                    "link add name {name} group {GROUP} address {mac} mtu {mtu} type vxlan id {key} \
                     local {local} dstport {port} nolearning\n\
                     link set {name} addrgenmode none\n"
                );
            }
            // A subnet may have got another length, and kept the address of its gateway.
            let there = there.iter().flatten().filter(|link| link.ifname == name);
            for Address { local, prefixlen } in there.flat_map(|link| &link.addr_info) {
                if (*local, *prefixlen) != (own.addr(), own.prefix_len()) {
                    let _ = writeln!(batch, "addr del {local}/{prefixlen} dev {name}");
                }
            }
            let _ = write!(
                batch,
                "addr replace {own} dev {name}\nlink set {name} mtu {mtu} up\n"
            );
        }
        let is_wanted = |route: &Route| peers.iter().any(|mesh| mesh.has(route));
        let routes = peer_routes();
        for Route { dst, dev, .. } in routes.iter().flatten().filter(|it| !is_wanted(it)) {
            let _ = writeln!(batch, "route del {dst} dev {dev}");
        }
        if let Some(mesh) = peers {
            mesh.write(&mut batch, &mut entries);
        }
        // An error for one tunnel does not affect the others.
        let mut made = there.and(routes).and(tools::anyway("ip", &batch));
        for name in subnets.keys().map(|key| tunnel_name(*key)) {
            // The tunnel answers ARP for all addresses of its subnet except its own, and forwards
            // packets through the link on which they arrived, without ICMP redirects.
            made = made.and(set(&format!("ipv4/conf/{name}/proxy_arp_pvlan"), "1"));
            made = made.and(set(&format!("ipv4/conf/{name}/send_redirects"), "0"));
            // The default delays the first packet to each instance by up to 0.8 s.
            made = made.and(set(&format!("ipv4/neigh/{name}/proxy_delay"), "0"));
        }
        made.and(tools::anyway("bridge", &entries))
    }

    fn settle_public_addresses(&self, wanted: &Wanted) -> Result<(), String> {
        let device = &self.underlay.device;
        let mut batch = String::new();
        let (mac, there) = self.addresses()?;
        let public: BTreeSet<_> = wanted.public.keys().copied().collect();
        for public in public.difference(&there) {
            let _ = writeln!(batch, "addr add {public}/32 dev {device}");
        }
        let mut made = Ok(());
        if !public.is_subset(&there) {
            // The kernel announces all addresses of an interface when its MAC address is set, even to
            // the same one. Other hosts may still know the former holder of an address.
            made = set(&format!("ipv4/conf/{device}/arp_notify"), "1");
            let _ = writeln!(batch, "link set {device} address {mac}");
        }
        for public in there.difference(&public) {
            let _ = writeln!(batch, "addr del {public}/32 dev {device}");
        }
        made.and(tools::anyway("ip", &batch))
    }

    /// The whole filter and the address maps, which nft replaces in one step. Counters are kept.
    fn table(&self, wanted: &Wanted) -> String {
        // Sets are declared twice, because nft fails to flush a set that does not exist.
        // Packets of the tunnels are not tracked, because no rule needs their connection, and tracking
        // is slow. An instance may neither send such packets nor reach the nodes, because it could
        // send packets into the tunnels of others. The source address of instances without a public
        // address is replaced by that of the concentrator.
        let nodes = wanted.nodes.iter().map(|(_, node)| *node);
        let nodes = nodes.chain(wanted.peers.iter().flat_map(Mesh::addresses));
        let nodes: BTreeSet<_> = nodes.map(|ip| ip.to_string()).collect();
        let nodes = elements(nodes.into_iter());
        let public = || wanted.public.iter();
        let inward = elements(public().map(|(public, private)| format!("{public} : {private}")));
        let outward = elements(public().map(|(public, private)| format!("{private} : {public}")));
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

    /// The entries that are left out now and were not left out the last time.
    fn newly_left_out(&self, wanted: &Wanted) -> Vec<String> {
        let all = wanted.left_out.iter();
        all.filter(|it| !self.left_out.contains(it)).cloned().collect()
    }

    /// The MAC address of the interface, and its public addresses.
    fn addresses(&self) -> Result<(String, BTreeSet<Ipv4Addr>), String> {
        let Underlay { device, ip, .. } = &self.underlay;
        let mut links = links::addresses()?.into_iter();
        let link = links.find(|link| link.ifname == *device).unwrap_or_default();
        let addresses = link.addr_info.into_iter();
        // Public addresses are added with the prefix 32; the address of the interface itself has the
        // prefix of its network.
        let public = addresses.filter(|address| address.prefixlen == 32 && address.local != *ip);
        Ok((link.address, public.map(|address| address.local).collect()))
    }
}

impl DataPlane for Routing {
    fn name(&self) -> &'static str {
        "VXLAN and nftables"
    }

    fn check(&self, tables: &Tables) -> Result<(), String> {
        let mut new = self.newly_left_out(&Wanted::of(tables, self.underlay.ip));
        new.drain(..).next().map_or(Ok(()), Err)
    }

    fn check_free(&self, public: IpAddr) -> Result<(), String> {
        let IpAddr::V4(public) = public else { return Ok(()) };
        let links = links::addresses()?.into_iter();
        let tunnels = links.filter(|link| link.ifname.starts_with(TUNNEL));
        let mut subnets = tunnels.flat_map(|link| link.addr_info).flat_map(|it| it.net());
        if let Some(subnet) = subnets.find(|subnet| subnet.contains(&public)) {
            return Err(format!("it is in the tenant's subnet {subnet}"));
        }
        let Underlay { net, device, .. } = &self.underlay;
        set(&format!("ipv4/neigh/{device}/retrans_time_ms"), PROBE_MS)?;
        // A former holder may still be known.
        tools::ip(&format!("neigh flush to {public} dev {device}\n"))?;
        match net.contains(&public) {
            true if [net.network(), net.broadcast()].contains(&public) => {
                Err(format!("{net} has no such host"))
            }
            true if answers(public, device)? => Err("another host has it".into()),
            _ => Ok(()),
        }
    }

    fn apply(&mut self, tables: &Tables) -> Result<Vec<String>, String> {
        let wanted = Wanted::of(tables, self.underlay.ip);
        let new = self.newly_left_out(&wanted);
        self.settle(&wanted)?;
        (self.left_out, self.forwarded) = (wanted.left_out, wanted.forwarded);
        Ok(new)
    }

    fn forward(&mut self, tables: &Tables) -> Result<(), String> {
        let wanted = Wanted::of(tables, self.underlay.ip).forwarded;
        let changes = changes(&self.forwarded, &wanted);
        self.forwarded = wanted;
        changes.make()
    }
}

/// True if a host of the underlay has this address. The attempt to connect makes the kernel ask for its MAC
/// address. The error of the attempt says nothing, because a firewall may refuse it as if there were no host.
#[expect(
    clippy::disallowed_types,
    reason = "no connection is wanted, only the MAC address"
)]
fn answers(ip: Ipv4Addr, device: &str) -> Result<bool, String> {
    let _ = std::net::TcpStream::connect_timeout(&(ip, DISCARD).into(), PROBES);
    let ip = ip.to_string();
    let known: Vec<serde_json::Value> = tools::json("ip", &["neigh", "show", "to", &ip, "dev", device])?;
    Ok(known.iter().any(|host| host.get("lladdr").is_some()))
}

/// Commands that change where addresses of instances lead.
#[derive(Debug, Default)]
struct Changes {
    /// Commands of `bridge`.
    entries: String,
    /// Commands of `ip`.
    neighbours: String,
}

impl Changes {
    /// The MAC address of an address is at this node. It is known from the address, so nobody is asked for it.
    fn set(&mut self, (key, ip): (u32, Ipv4Addr), node: Ipv4Addr) {
        let (name, mac) = (tunnel_name(key), mac_of(ip));
        let _ = writeln!(self.entries, "fdb replace {mac} dev {name} dst {node}");
        let _ = writeln!(
            self.neighbours,
            "neigh replace {ip} lladdr {mac} dev {name} nud permanent"
        );
    }

    fn make(&self) -> Result<(), String> {
        tools::anyway("bridge", &self.entries).and(tools::anyway("ip", &self.neighbours))
    }
}

/// The commands that lead from the nodes of addresses to others.
fn changes(before: &Forwarded, wanted: &Forwarded) -> Changes {
    let mut changes = Changes::default();
    for ((key, ip), node) in before.iter().filter(|(at, _)| !wanted.contains_key(at)) {
        let (name, mac) = (tunnel_name(*key), mac_of(*ip));
        let _ = writeln!(changes.entries, "fdb del {mac} dev {name} dst {node}");
        let _ = writeln!(changes.neighbours, "neigh del {ip} dev {name}");
    }
    for (at, node) in wanted.iter().filter(|(at, node)| before.get(at) != Some(node)) {
        changes.set(*at, *node);
    }
    changes
}

/// Makes the entries by which packets reach the nodes: broadcasts all of them, and those for an instance its
/// own. A packet for an instance without an entry is sent to all nodes.
fn settle_entries(wanted: &Wanted) -> Result<(), String> {
    let all: Vec<Entry> = tools::json("bridge", &["fdb", "show"])?;
    let of_instances = settle_forwarded(wanted, &all);
    let there = all
        .into_iter()
        .filter(|entry| entry.mac == ALL && entry.ifname.starts_with(TUNNEL));
    let there: BTreeSet<_> = there
        .filter_map(|entry| Some((entry.ifname, entry.dst?)))
        .collect();
    let nodes = wanted.nodes.iter().map(|(key, node)| (tunnel_name(*key), *node));
    let nodes: BTreeSet<_> = nodes.collect();
    let mut entries = String::new();
    for (name, node) in nodes.difference(&there) {
        let _ = writeln!(entries, "fdb append {ALL} dev {name} dst {node}");
    }
    for (name, node) in there.difference(&nodes) {
        let _ = writeln!(entries, "fdb del {ALL} dev {name} dst {node}");
    }
    of_instances.and(tools::anyway("bridge", &entries))
}

/// Makes the entries for the addresses of instances, and deletes those of other addresses of their subnets.
fn settle_forwarded(wanted: &Wanted, there: &[Entry]) -> Result<(), String> {
    let keys: BTreeMap<_, _> = wanted
        .subnets
        .keys()
        .map(|key| (tunnel_name(*key), *key))
        .collect();
    let neighbours: Vec<KnownHost> = tools::json("ip", &["-4", "neigh", "show", "nud", "permanent"])?;
    let neighbours = neighbours.into_iter();
    let known: BTreeMap<_, _> = neighbours
        .filter_map(|it| Some(((*keys.get(&it.dev)?, it.dst), it.lladdr)))
        .collect();
    let mut entries: BTreeSet<_> = there
        .iter()
        .filter_map(|entry| Some((*keys.get(&entry.ifname)?, entry.mac.clone(), entry.dst?)))
        .filter(|(_, mac, _)| mac != ALL)
        .collect();
    let mut changes = Changes::default();
    for ((key, ip), node) in &wanted.forwarded {
        let mac = mac_of(*ip);
        let is_known = known.get(&(*key, *ip)) == Some(&mac);
        if !entries.remove(&(*key, mac, *node)) || !is_known {
            changes.set((*key, *ip), *node);
        }
    }
    // An entry with another node is replaced above.
    let is_wanted: BTreeSet<_> = wanted
        .forwarded
        .keys()
        .map(|(key, ip)| (*key, mac_of(*ip)))
        .collect();
    for (key, mac, node) in entries {
        if !is_wanted.contains(&(key, mac.clone())) {
            let name = tunnel_name(key);
            let _ = writeln!(changes.entries, "fdb del {mac} dev {name} dst {node}");
        }
    }
    for (key, ip) in known.keys().filter(|at| !wanted.forwarded.contains_key(at)) {
        let _ = writeln!(changes.neighbours, "neigh del {ip} dev {}", tunnel_name(*key));
    }
    changes.make()
}

/// The routes to peers that this namespace has.
fn peer_routes() -> Result<Vec<Route>, String> {
    let mut routes: Vec<Route> = tools::json("ip", &["-4", "route", "show"])?;
    routes.retain(|route| route.dev.starts_with(TUNNEL) && route.gateway.is_some());
    Ok(routes)
}

/// Sets a network setting of this namespace.
fn set(name: &str, value: &str) -> Result<(), String> {
    let path = format!("/proc/sys/net/{name}");
    fs::write(&path, value).map_err(|e| format!("{path}: {e}"))
}

#[cfg(test)]
mod tests;
