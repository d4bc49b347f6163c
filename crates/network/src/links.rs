//! The links of the kernel: reading them with `ip`, and deleting many of them at once.

use std::fmt::Write;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use log::warn;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::tools;
use ssntp_cluster::summed::fnv1a;

/// The group of all links of the agent. The group and the prefix of the name distinguish them from
/// the host's own links.
pub(crate) const GROUP: u32 = 21_331;
/// The group of links that are being deleted. One command deletes a whole group, and the kernel waits
/// once for the group instead of once for each link.
const DOOMED: u32 = 21_332;
const BRIDGE: &str = "ssb";
pub(crate) const TUNNEL: &str = "ssx";
pub(super) const PORT: &str = "ssp";
/// The port of a concentrator on an underlay that is a bridge. Its prefix differs from that of instances' ports,
/// so that their filters do not apply to it.
const CONCENTRATOR: &str = "ssc";

/// The interface that tunnels use.
#[derive(Clone, Debug)]
pub(crate) struct Underlay {
    pub(crate) device: String,
    pub(crate) is_bridge: bool,
    pub(crate) ip: Ipv4Addr,
    pub(crate) net: Ipv4Net,
    /// The gateway of the default route, if the route uses this interface.
    pub(crate) gateway: Option<Ipv4Addr>,
}

/// A link in the output of `ip -j -d link show` or `ip -j -d addr show`. A missing field is empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Link {
    /// The name. It is empty for a link of another group than the requested one.
    pub(crate) ifname: String,
    /// The MAC address.
    pub(crate) address: String,
    pub(crate) mtu: u32,
    pub(crate) operstate: String,
    pub(crate) flags: Vec<String>,
    /// The bridge of which the link is a port.
    pub(crate) master: String,
    /// The attributes of links of this kind.
    pub(crate) linkinfo: Value,
    /// The statistics, if they were requested.
    pub(crate) stats64: Value,
    /// The IP addresses, if they were requested.
    pub(crate) addr_info: Vec<Address>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Address {
    pub(crate) local: Ipv4Addr,
    pub(crate) prefixlen: u8,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Route {
    /// A subnet, an address alone, or `default`.
    pub(crate) dst: String,
    pub(crate) dev: String,
    pub(crate) gateway: Option<Ipv4Addr>,
}

impl Underlay {
    /// Finds the interface with this name or address. An empty name stands for the interface of the
    /// default route.
    pub(crate) fn find(named: &str) -> Result<Self, String> {
        let routes: Vec<Route> = tools::json("ip", &["-4", "route", "show", "default"])?;
        let named = match named {
            "" => routes.first().map_or("", |route| route.dev.as_str()),
            named => named,
        };
        let all = addresses()?;
        let (link, address) = all
            .iter()
            .flat_map(|link| link.addr_info.iter().map(move |address| (link, address)))
            .find(|(link, address)| link.ifname == named || address.local.to_string() == named)
            .ok_or_else(|| format!("underlay {named:?}: no interface has this name or address and is up"))?;
        let net = Ipv4Net::new(address.local, address.prefixlen).map_err(|e| e.to_string())?;
        let route = routes.iter().find(|route| route.dev == link.ifname);
        Ok(Self {
            is_bridge: link.linkinfo["info_kind"] == "bridge",
            device: link.ifname.clone(),
            ip: address.local,
            net: net.trunc(),
            gateway: route.and_then(|route| route.gateway),
        })
    }
}

/// All links with their IPv4 addresses.
pub(crate) fn addresses() -> Result<Vec<Link>, String> {
    tools::json("ip", &["-4", "-d", "addr", "show"])
}

impl Address {
    /// The subnet of the address.
    pub(crate) fn net(&self) -> Option<Ipv4Net> {
        Ipv4Net::new(self.local, self.prefixlen)
            .ok()
            .map(|net| net.trunc())
    }
}

impl Link {
    pub(crate) fn is_up(&self) -> bool {
        self.flags.iter().any(|flag| flag == "UP")
    }

    /// True if the link is the tunnel with this key, local address and UDP port, and learns no addresses from
    /// packets.
    pub(crate) fn is_tunnel(&self, key: u32, local: Ipv4Addr, port: u16) -> bool {
        let data = &self.linkinfo["info_data"];
        self.ifname == tunnel_name(key)
            && data["id"] == key
            && data["port"] == port
            && data["local"] == local.to_string()
            && data["learning"] != true
    }
}

/// The links that an agent or a concentrator has made in this namespace.
pub(crate) fn links() -> Result<Vec<Link>, String> {
    let links: Vec<Link> = tools::json("ip", &["-d", "-s", "link", "show", "group", &GROUP.to_string()])?;
    let is_ours = |link: &Link| {
        [BRIDGE, TUNNEL, PORT, CONCENTRATOR]
            .iter()
            .any(|p| link.ifname.starts_with(p))
    };
    Ok(links.into_iter().filter(is_ours).collect())
}

/// True if this namespace has a link with this name, or if the system does not answer.
pub(super) fn exists(name: &str) -> bool {
    if_nametoindex(name) != Err(Errno::ENODEV)
}

/// Deletes links, with as few commands as possible.
pub(crate) fn delete(names: &[String]) {
    // The kernel may need 20 ms for each bridge, and a command has a time limit.
    for names in names.chunks(500) {
        let mut batch = String::new();
        for name in names {
            let _ = writeln!(batch, "link set {name} group {DOOMED}");
        }
        let _ = writeln!(batch, "link del group {DOOMED}");
        if let Err(why) = tools::anyway("ip", &batch) {
            warn!("tenants' networks: links that are no longer needed cannot be deleted: {why}");
        }
    }
}

pub(crate) fn tunnel_name(key: u32) -> String {
    format!("{TUNNEL}{key}")
}

pub(super) fn bridge_name(key: u32) -> String {
    format!("{BRIDGE}{key}")
}

pub(super) fn port_name(instance: Uuid) -> String {
    named(PORT, instance)
}

pub(super) fn concentrator_name(concentrator: Uuid) -> String {
    named(CONCENTRATOR, concentrator)
}

/// The name of a link of an instance. A name has at most 15 bytes, so it has a hash of the UUID.
fn named(prefix: &str, instance: Uuid) -> String {
    format!("{prefix}{:012x}", fnv1a(instance.as_bytes()) & 0xffff_ffff_ffff)
}
