//! Links of the kernel: what `ip` tells of them, and how many are deleted at once.

use std::fmt::Write;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use log::warn;
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::tools;
use crate::summed::fnv1a;

/// The group of all links that are made here. It and the prefixes of their names tell them
/// from the host's own.
pub(crate) const GROUP: u32 = 21_331;
/// The group of links that are being deleted: one command deletes a group, and the kernel
/// waits once for all of it instead of once for each link.
const DOOMED: u32 = 21_332;
const BRIDGE: &str = "ssb";
pub(crate) const TUNNEL: &str = "ssx";
pub(super) const PORT: &str = "ssp";
/// The port of a concentrator on an underlay that is a bridge. The filters of instances are not
/// for it.
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

/// A link as `ip -j -d link show` or `ip -j -d addr show` tells it. A field that is missing is
/// empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Link {
    /// Empty for a link that is not of the group that was asked for.
    pub(crate) ifname: String,
    /// Its MAC address.
    pub(crate) address: String,
    pub(crate) operstate: String,
    pub(crate) flags: Vec<String>,
    /// The bridge that it is a port of.
    pub(crate) master: String,
    /// The attributes that only links of this kind have.
    pub(crate) linkinfo: Value,
    /// Only if statistics were asked for.
    pub(crate) stats64: Value,
    /// Only if addresses were asked for.
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
    /// The interface with this name or address; without one, that of the default route.
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

impl Link {
    pub(crate) fn is_up(&self) -> bool {
        self.flags.iter().any(|flag| flag == "UP")
    }

    /// Whether it is the tunnel of this key that begins at this address.
    pub(crate) fn is_tunnel(&self, key: u32, local: Ipv4Addr, port: u16) -> bool {
        let data = &self.linkinfo["info_data"];
        self.ifname == tunnel_name(key)
            && data["id"] == key
            && data["port"] == port
            && data["local"] == local.to_string()
    }
}

/// The links that an agent made in this namespace.
pub(crate) fn links() -> Result<Vec<Link>, String> {
    let links: Vec<Link> = tools::json("ip", &["-d", "-s", "link", "show", "group", &GROUP.to_string()])?;
    let is_ours = |link: &Link| {
        [BRIDGE, TUNNEL, PORT, CONCENTRATOR]
            .iter()
            .any(|p| link.ifname.starts_with(p))
    };
    Ok(links.into_iter().filter(is_ours).collect())
}

/// Deletes links, in as few steps as possible.
pub(crate) fn delete(names: &[String]) {
    // The kernel may take 20 ms for each bridge, and a step has a time limit.
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

/// The name of an interface has at most 15 bytes, so this is a hash of the UUID.
fn named(prefix: &str, instance: Uuid) -> String {
    format!("{prefix}{:012x}", fnv1a(instance.as_bytes()) & 0xffff_ffff_ffff)
}
