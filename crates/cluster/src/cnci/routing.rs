//! The data plane that moves packets: VXLAN tunnels to nodes, routing between instances,
//! public addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use log::warn;
use serde::Deserialize;

use super::plane::DataPlane;
use super::tables::{PublicIp, Tables, Tunnel};
use crate::network::links::{GROUP, Link, TUNNEL, Underlay, delete, links, tunnel_name};
use crate::network::tools::elements;
use crate::network::{DEFAULT_MTU, DEFAULT_PORT, MAX_KEY, gateway, mac_of, subnet, tools};
use ssntp::payload::{CnciPeer, Id};

/// The entry of a tunnel's table that gets broadcasts: one for each node.
const ALL: &str = "00:00:00:00:00:00";

/// Routes between the nodes of a tenant, in the network namespace of this process, which
/// must belong to the concentrator alone.
#[derive(Debug)]
pub struct Routing {
    underlay: Underlay,
    mtu: u16,
    port: u16,
    /// By node and subnet, as in the tables.
    tunnels: BTreeMap<(Id, String), Way>,
    public: BTreeMap<Ipv4Addr, Ipv4Addr>,
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

impl Routing {
    /// Looks for the interface with the concentrator's address.
    ///
    /// # Errors
    /// There is none, or `ip` is missing.
    pub fn open(ip: IpAddr) -> Result<Self, String> {
        Ok(Self {
            underlay: Underlay::find(&ip.to_string())?,
            mtu: DEFAULT_MTU,
            port: DEFAULT_PORT,
            tunnels: BTreeMap::new(),
            public: BTreeMap::new(),
        })
    }

    /// The largest packet of an instance. Default: [`DEFAULT_MTU`].
    #[must_use]
    pub fn mtu(mut self, mtu: u16) -> Self {
        self.mtu = mtu;
        self
    }

    /// The UDP port of the tunnels. Default: [`DEFAULT_PORT`].
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// A tunnel device answers ARP for all addresses of its subnet but its own, and sends a
    /// packet back out where it came from, without telling the sender of a shorter way.
    fn make(&self, way: Way) -> Result<(), String> {
        let Way { key, subnet, .. } = way;
        let (name, local, gateway) = (tunnel_name(key), self.underlay.ip, gateway(subnet));
        let (mtu, port, mac) = (self.mtu, self.port, mac_of(gateway));
        tools::ip(&format!(
            "link add name {name} group {GROUP} address {mac} mtu {mtu} type vxlan id {key} local {local} dstport {port}\n\
             link set {name} addrgenmode none\n\
             addr add {gateway}/{} dev {name}\n\
             link set {name} up\n",
            subnet.prefix_len()
        ))?;
        set(&format!("ipv4/conf/{name}/proxy_arp_pvlan"), "1")?;
        set(&format!("ipv4/conf/{name}/send_redirects"), "0")?;
        // The default delays the first packet to each instance by up to 0.8 s.
        set(&format!("ipv4/neigh/{name}/proxy_delay"), "0")
    }

    fn uses_key(&self, key: u32) -> bool {
        self.tunnels.values().any(|way| way.key == key)
    }

    fn uses_entry(&self, way: Way) -> bool {
        let mut ways = self.tunnels.values();
        ways.any(|other| (other.key, other.node) == (way.key, way.node))
    }

    fn uses_node(&self, node: Ipv4Addr) -> bool {
        self.tunnels.values().any(|way| way.node == node)
    }

    /// Makes what a new tunnel needs and the others have not made.
    fn wire(&self, way: Way) -> Result<(), String> {
        if !self.uses_key(way.key) {
            self.make(way)?;
        }
        tools::nft(&format!("add element ip ssntp nodes {{ {} }}", way.node))?;
        match self.uses_entry(way) {
            true => Ok(()),
            false => {
                let name = tunnel_name(way.key);
                tools::bridge(&format!("fdb append {ALL} dev {name} dst {}\n", way.node))
            }
        }
    }

    /// Removes what only this tunnel needs. The tunnel is not in the map, so the checks are
    /// about the other ones. A step that fails does not keep the others from being taken.
    fn cut(&self, way: Way) -> Result<(), String> {
        let name = tunnel_name(way.key);
        let node = match self.uses_node(way.node) {
            true => Ok(()),
            false => tools::nft(&format!("delete element ip ssntp nodes {{ {} }}", way.node)),
        };
        let entry = match (self.uses_key(way.key), self.uses_entry(way)) {
            (false, _) => {
                delete(&[name]);
                Ok(())
            }
            (true, true) => Ok(()),
            (true, false) => tools::bridge(&format!("fdb del {ALL} dev {name} dst {}\n", way.node)),
        };
        node.and(entry)
    }

    /// The whole filter and the address maps. nft replaces the table in one step.
    fn table(&self) -> String {
        // `add` comes before `delete`, because nft fails to delete a table that does not exist.
        // Packets of the tunnels are not tracked: they are neither translated nor judged by
        // their connection, so tracking would only cost. An instance may not send such packets
        // itself, nor reach the nodes: it could reach into the tunnels of others. Instances
        // without a public address leave with the address of the concentrator.
        let nodes: BTreeSet<_> = self.tunnels.values().map(|way| way.node.to_string()).collect();
        let nodes = elements(nodes.into_iter());
        let inward = elements(
            self.public
                .iter()
                .map(|(public, private)| format!("{public} : {private}")),
        );
        let outward = elements(
            self.public
                .iter()
                .map(|(public, private)| format!("{private} : {public}")),
        );
        let (port, device) = (self.port, &self.underlay.device);
        format!(
            r#"
add table ip ssntp
delete table ip ssntp
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
        let parsed = single.filter_map(|address| address.local.parse().ok());
        Ok(parsed.filter(|ip| *ip != underlay.ip).collect())
    }
}

impl DataPlane for Routing {
    fn name(&self) -> &'static str {
        "VXLAN and nftables"
    }

    /// Tunnels and addresses that are there and right are not touched, so packets of others go
    /// on.
    fn restore(&mut self, tables: &Tables) -> Result<(), String> {
        for tunnel in &tables.tunnels {
            // A tunnel that was never possible is in the tables all the same.
            match Way::of(tunnel) {
                Ok(way) => drop(self.tunnels.insert(name_of(tunnel), way)),
                Err(why) => warn!("node {}: {why}", tunnel.agent_uuid),
            }
        }
        for ip in &tables.public_ips {
            // A concentrator that only kept tables has assigned addresses that lead nowhere.
            match pair(ip) {
                Ok((public, private)) => drop(self.public.insert(public, private)),
                Err(why) => warn!("public address {:?}: {why}", ip.public_ip),
            }
        }
        // The filter comes before tunnels and forwarding, so that no packet passes without it.
        tools::nft(&self.table()).map_err(|why| format!("nft, which needs CAP_NET_ADMIN: {why}"))?;
        set("ipv4/ip_forward", "1")?;
        set("ipv4/conf/all/send_redirects", "0")?;
        let links: Vec<Link> = links()?;
        let is_right = |link: &&Link| {
            let data = &link.linkinfo.info_data;
            link.ifname == tunnel_name(data.id)
                && data.port == self.port
                && data.local == self.underlay.ip.to_string()
                && self.uses_key(data.id)
        };
        let (right, wrong): (Vec<_>, Vec<_>) = links.iter().partition(is_right);
        delete(&wrong.iter().map(|link| link.ifname.clone()).collect::<Vec<_>>());
        let by_key: BTreeMap<_, _> = self.tunnels.values().map(|way| (way.key, *way)).collect();
        let mut batch = String::new();
        for (key, way) in by_key {
            let name = tunnel_name(key);
            if !right.iter().any(|link| link.ifname == name) {
                self.make(way)?;
            }
            let there: Vec<Entry> = tools::bridge_json(&["fdb", "show", "dev", &name])?;
            let there = there.iter().filter(|entry| entry.mac == ALL);
            let there: BTreeSet<_> = there.filter_map(|entry| entry.dst).collect();
            let ways = self.tunnels.values().filter(|way| way.key == key);
            let wanted: BTreeSet<_> = ways.map(|way| way.node).collect();
            for node in wanted.difference(&there) {
                let _ = writeln!(batch, "fdb append {ALL} dev {name} dst {node}");
            }
            for node in there.difference(&wanted) {
                let _ = writeln!(batch, "fdb del {ALL} dev {name} dst {node}");
            }
        }
        tools::bridge(&batch)?;
        let (there, device) = (self.addresses()?, &self.underlay.device);
        let mut batch = String::new();
        for public in self.public.keys().filter(|public| !there.contains(public)) {
            let _ = writeln!(batch, "addr add {public}/32 dev {device}");
        }
        for public in there.iter().filter(|public| !self.public.contains_key(public)) {
            let _ = writeln!(batch, "addr del {public}/32 dev {device}");
        }
        tools::ip(&batch)
    }

    fn add_tunnel(&mut self, tunnel: &Tunnel) -> Result<(), String> {
        let way = Way::of(tunnel)?;
        let name = name_of(tunnel);
        match self.tunnels.get(&name) {
            Some(there) if *there == way => return Ok(()),
            // The node has another address or key now: the old entry would send packets to
            // nobody.
            Some(_) => self.remove_tunnel(tunnel)?,
            None => {}
        }
        let others = self.tunnels.values();
        if let Some(other) = others
            .clone()
            .find(|other| other.key == way.key && other.subnet != way.subnet)
        {
            return Err(format!(
                "key {} is that of {}, not of {}",
                way.key, other.subnet, way.subnet
            ));
        }
        if others
            .clone()
            .any(|other| other.key != way.key && other.subnet == way.subnet)
        {
            return Err(format!("{} has another key than {}", way.subnet, way.key));
        }
        if let Err(why) = self.wire(way) {
            // A half of a tunnel would be in the way of the next attempt.
            let _ = self.cut(way);
            return Err(why);
        }
        self.tunnels.insert(name, way);
        Ok(())
    }

    fn remove_tunnel(&mut self, tunnel: &Tunnel) -> Result<(), String> {
        match self.tunnels.remove(&name_of(tunnel)) {
            Some(way) => self.cut(way),
            None => Ok(()),
        }
    }

    fn set_peers(&mut self, peers: &[CnciPeer]) -> Result<(), String> {
        match peers.len() {
            0 => Ok(()),
            peers => Err(format!(
                "{peers} peers: concentrators have no tunnels to each other yet"
            )),
        }
    }

    fn assign(&mut self, ip: &PublicIp) -> Result<(), String> {
        let (public, private) = pair(ip)?;
        if !self.tunnels.values().any(|way| way.subnet.contains(&private)) {
            return Err(format!("{private} is in no subnet of this concentrator"));
        }
        if self.public.get(&public) == Some(&private) {
            return Ok(());
        }
        if public == self.underlay.ip {
            return Err(format!("{public} is the concentrator's own address"));
        }
        // "replace", because the address is there already if the rules failed last time, or if
        // it leads to another private address so far.
        tools::ip(&format!(
            "addr replace {public}/32 dev {}\n",
            self.underlay.device
        ))?;
        let former = self.public.get(&public);
        let former = former.map(|former| unmap(public, *former)).unwrap_or_default();
        tools::nft(&format!(
            "{former}\
             add element ip ssntp inward {{ {public} : {private} }}\n\
             add element ip ssntp outward {{ {private} : {public} }}\n"
        ))?;
        self.public.insert(public, private);
        Ok(())
    }

    fn release(&mut self, ip: &PublicIp) -> Result<(), String> {
        let public: Ipv4Addr = parse(&ip.public_ip)?;
        let Some(private) = self.public.get(&public).copied() else {
            return Ok(());
        };
        tools::nft(&unmap(public, private))?;
        tools::ip(&format!("addr del {public}/32 dev {}\n", self.underlay.device))?;
        self.public.remove(&public);
        Ok(())
    }
}

fn name_of(tunnel: &Tunnel) -> (Id, String) {
    (tunnel.agent_uuid.clone(), tunnel.subnet.clone())
}

/// The commands that take a public address from a private one.
fn unmap(public: Ipv4Addr, private: Ipv4Addr) -> String {
    format!(
        "delete element ip ssntp inward {{ {public} }}\n\
         delete element ip ssntp outward {{ {private} }}\n"
    )
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
mod tests {
    use super::*;
    use crate::network::alone::alone;

    fn routing() -> Routing {
        Routing::open("10.0.0.1".parse().unwrap()).unwrap()
    }

    fn tunnel(node: &str) -> Tunnel {
        Tunnel {
            agent_uuid: node.into(),
            agent_ip: node.into(),
            subnet: "172.16.0.0/24".into(),
            key: 1,
        }
    }

    fn public(private: &str) -> PublicIp {
        PublicIp {
            public_ip: "10.0.0.200".into(),
            private_ip: private.into(),
            ..PublicIp::default()
        }
    }

    fn listed(what: &str) -> String {
        let words: Vec<_> = what.split(' ').collect();
        let json: serde_json::Value = tools::nft_json(&words).unwrap();
        json.to_string()
    }

    #[test]
    fn a_tunnel_that_failed_halfway_is_made_at_the_next_attempt() {
        alone(|| {
            let mut routing = routing();
            routing.restore(&Tables::default()).unwrap();
            // Without the table, the node cannot be admitted once the device is made.
            tools::nft("delete table ip ssntp").unwrap();
            assert!(routing.add_tunnel(&tunnel("10.0.0.7")).is_err());
            assert_eq!(links().unwrap().len(), 0);
            tools::nft(&routing.table()).unwrap();
            routing.add_tunnel(&tunnel("10.0.0.7")).unwrap();
            routing.add_tunnel(&tunnel("10.0.0.8")).unwrap();
            assert!(listed("list set ip ssntp nodes").contains("10.0.0.8"));
            routing.remove_tunnel(&tunnel("10.0.0.7")).unwrap();
            assert_eq!(links().unwrap().len(), 1);
            routing.remove_tunnel(&tunnel("10.0.0.8")).unwrap();
            assert_eq!(links().unwrap().len(), 0);
        });
    }

    #[test]
    fn tables_of_a_concentrator_that_moved_no_packets_are_restored() {
        alone(|| {
            let tables = Tables {
                tunnels: vec![tunnel("10.0.0.7"), tunnel("nowhere")],
                public_ips: vec![public(""), public("172.16.0.5")],
                ..Tables::default()
            };
            routing().restore(&tables).unwrap();
            assert!(listed("list map ip ssntp outward").contains("172.16.0.5"));
        });
    }

    #[test]
    fn an_address_leads_to_another_instance_in_one_step() {
        alone(|| {
            let mut routing = routing();
            routing.restore(&Tables::default()).unwrap();
            routing.add_tunnel(&tunnel("10.0.0.7")).unwrap();
            for private in ["172.16.0.5", "172.16.0.6", "172.16.0.5"] {
                routing.assign(&public(private)).unwrap();
                let maps = listed("list map ip ssntp inward") + &listed("list map ip ssntp outward");
                assert_eq!(maps.matches(private).count(), 2, "{maps}");
                assert_eq!(maps.matches("172.16.0.").count(), 2, "{maps}");
            }
            routing.release(&public("")).unwrap();
            assert!(!listed("list map ip ssntp inward").contains("172.16"));
            assert_eq!(routing.addresses().unwrap(), BTreeSet::new());
        });
    }
}
