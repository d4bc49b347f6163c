//! The networks of tenants on a node: bridges, tunnels, the ports of instances, filters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ipnet::Ipv4Net;
use log::{info, warn};
use ssntp::payload::{Start, TunnelStats};
use uuid::Uuid;

use super::attachment::{Attachment, Interface, TenantNet, TenantPort, gateway};
use super::config::{NetworkConfig, TunnelConfig};
use super::filter::{Filter, table, way};
use super::links::{
    GROUP, Link, Underlay, bridge_name, concentrator_name, delete, links, port_name, tunnel_name,
};
use super::made::{End, Made, Namespace, Net, Part, Port};
use super::tools;
use super::wire::renew;

/// Whether packets that cross a bridge pass the filters for IP too, in this namespace.
const BRIDGED: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";

/// Whether a setting of the kernel is on; one that is not there is off.
fn is_on(setting: std::io::Result<Vec<u8>>) -> bool {
    setting.is_ok_and(|value| value.starts_with(b"1"))
}

/// What the kernel had when it was looked at.
#[derive(Default)]
struct Looked {
    /// The drops of each port.
    drops: BTreeMap<String, u64>,
    links: Vec<Link>,
    /// The names of the links that were wrong or missing.
    broken: BTreeSet<String>,
}

/// The networks of the tenants of a node.
///
/// # Threads
/// `Send` and `Sync`. Calls run `ip` and `nft` and wait for them, one call after the other.
#[derive(Debug)]
pub(crate) struct Networks {
    underlay: Underlay,
    config: NetworkConfig,
    made: Mutex<Made>,
}

impl Networks {
    /// Looks for the underlay, and makes sure that this process may change networks.
    ///
    /// # Errors
    /// What is missing: the interface, a program, or a right.
    pub(crate) fn open(config: NetworkConfig) -> Result<Self, String> {
        let network = Self {
            underlay: Underlay::find(&config.underlay)?,
            config,
            made: Mutex::default(),
        };
        let may = tools::nft_check(&network.table(&Made::default()));
        may.map_err(|why| format!("tenants' networks need CAP_NET_ADMIN, ip and nft: {why}"))?;
        // Only a kernel that has this filter has the setting, one in each namespace.
        if is_on(fs::read(BRIDGED)) {
            warn!(
                "tenants' networks: the IP filters of this host get the packets of its bridges as \
                 well, which is slow, and may drop them: {BRIDGED} is 1"
            );
        }
        info!(
            "tenants' networks: tunnels begin at {} ({})",
            network.underlay.ip, network.underlay.device
        );
        Ok(network)
    }

    /// The address at which tunnels begin.
    pub(crate) fn address(&self) -> Ipv4Addr {
        self.underlay.ip
    }

    pub(super) fn config(&self) -> &NetworkConfig {
        &self.config
    }

    /// What a START asks for; `None` if that is the host's network. Looks at the START alone.
    ///
    /// # Errors
    /// The reason of a `network_failure`.
    pub(crate) fn attachment(&self, start: &Start) -> Result<Option<Attachment>, String> {
        let attachment = Attachment::of(start)?;
        match &attachment {
            Some(Attachment::Tenant(port)) if overlaps(port.net.subnet, self.underlay.net) => Err(format!(
                "subnet {} overlaps the underlay {}",
                port.net.subnet, self.underlay.net
            )),
            Some(Attachment::Underlay(interface)) if !self.underlay.net.contains(&interface.ip) => Err(
                format!("{} is not in the underlay {}", interface.ip, self.underlay.net),
            ),
            _ => Ok(attachment),
        }
    }

    /// Gives an instance its port in the subnet of its tenant.
    ///
    /// # Errors
    /// The reason of a `network_failure`; the instance has no network then.
    pub(crate) fn attach(&self, instance: Uuid, to: &TenantPort, end: End) -> Result<(), String> {
        self.check_underlay()?;
        let mut made = self.made();
        let port = Port {
            interface: to.interface.clone(),
            end: end.clone(),
        };
        let is_new = made.add(instance, to, end)?;
        let wired = self.wire(instance, &port, &to.net, is_new);
        if wired.is_err() {
            self.remove(&mut made, instance);
        }
        wired
    }

    /// The filter comes first: it drops everything of a port that it does not know.
    fn wire(&self, instance: Uuid, port: &Port, net: &TenantNet, is_new: bool) -> Result<(), String> {
        tools::nft(&elements("add", instance, port, is_new.then_some(net)))?;
        let mut batch = String::new();
        if is_new {
            self.write(&mut batch, &bridge_name(net.key), &Part::Bridge, false);
            self.write(&mut batch, &tunnel_name(net.key), &Part::Tunnel(net), false);
        }
        self.write(&mut batch, &port_name(instance), &Part::Port(net, port), false);
        tools::ip(&batch)?;
        configure(port, net)
    }

    /// Gives a concentrator its interface: it is a neighbour of the node on its underlay.
    ///
    /// # Errors
    /// The reason of a `network_failure`.
    pub(crate) fn attach_underlay(
        &self,
        instance: Uuid,
        interface: &Interface,
        to: &Namespace,
    ) -> Result<(), String> {
        let Underlay { device, gateway, .. } = &self.underlay;
        let (name, mac, pid) = (concentrator_name(instance), &interface.mac, to.pid);
        let batch = match self.underlay.is_bridge {
            true => format!(
                "link add name {name} group {GROUP} type veth peer name eth0 netns {pid} address {mac}\n\
                 link set {name} master {device} up\n"
            ),
            false => format!(
                "link add link {device} name eth0 address {mac} netns {pid} type macvlan mode bridge\n"
            ),
        };
        let namespace = to.open()?;
        tools::ip(&batch)?;
        let configured = set_address(interface, *gateway, &namespace);
        self.made().concentrators.insert(instance, namespace);
        configured
    }

    /// Takes an instance's interface away. An instance that has none is no error.
    pub(crate) fn detach(&self, instance: Uuid) {
        self.remove(&mut self.made(), instance);
    }

    /// Deletes what only this instance needs. Its own end of the link is gone with its namespace.
    fn remove(&self, made: &mut Made, instance: Uuid) {
        if let Some(namespace) = made.concentrators.remove(&instance)
            && let Err(why) = tools::ip_within(&namespace, "link del eth0\n")
        {
            warn!("concentrator {instance}: its interface cannot be deleted: {why}");
        }
        let mut doomed = vec![port_name(instance)];
        if let Some((net, port, is_last)) = made.take(instance) {
            if is_last {
                doomed.extend([tunnel_name(net.key), bridge_name(net.key)]);
            }
            let commands = elements("delete", instance, &port, is_last.then_some(&net));
            if let Err(why) = tools::nft(&commands) {
                warn!("instance {instance}: its port cannot be taken out of the filter: {why}");
            }
        }
        delete(&doomed);
    }

    /// Makes the kernel have what these instances need, and nothing else. What is there and
    /// right is not touched, so connections go on. Each instance comes with its process.
    ///
    /// # Errors
    /// What could not be made.
    pub(crate) fn restore(&self, instances: &[(Uuid, Attachment, i32)]) -> Result<(), String> {
        let mut made = self.made();
        *made = Made::default();
        let links = links()?;
        for (instance, attachment, pid) in instances {
            if let Err(why) = adopt(&mut made, &links, *instance, attachment, *pid) {
                warn!("instance {instance}: {why}");
            }
        }
        // Replaced even if it is there, because another version may have made it.
        tools::nft(&self.table(&made))?;
        made.rules = Filter::read()?.rules;
        self.settle(&made, &links);
        Ok(())
    }

    /// Each tunnel: whether it can carry packets, and what it and its ports have counted. What
    /// somebody has deleted or changed is made again, and its tunnel counts as down this time. All
    /// are down if the kernel does not say, or the underlay is down or gone.
    pub(crate) fn tunnels(&self) -> Vec<TunnelStats> {
        let mut made = self.made();
        let mut looked = Looked::default();
        let whole = self.look(&mut made, &mut looked);
        if let Err(why) = &whole {
            warn!("tenants' networks: {why}");
        }
        let Looked { drops, links, broken } = looked;
        let of_net = |(key, net): (&u32, &Net)| {
            let tunnel = tunnel_name(*key);
            let stats = links.iter().find(|link| link.ifname == tunnel);
            let bytes = |way| {
                stats
                    .and_then(|link| link.stats64[way]["bytes"].as_u64())
                    .unwrap_or(0)
            };
            let ports: Vec<_> = net.ports.keys().map(|instance| port_name(*instance)).collect();
            let mut parts = ports.iter().chain([&tunnel]);
            TunnelStats {
                key: *key,
                drops: ports.iter().filter_map(|port| drops.get(port)).sum(),
                up: whole.is_ok()
                    && !broken.contains(&bridge_name(*key))
                    && !parts.any(|it| broken.contains(it)),
                rx_bytes: bytes("rx"),
                tx_bytes: bytes("tx"),
            }
        };
        made.nets.iter().map(of_net).collect()
    }

    /// What the kernel has. What is wrong or missing is made again.
    fn look(&self, made: &mut Made, looked: &mut Looked) -> Result<(), String> {
        looked.drops = self.keep_filter(made)?;
        looked.links = links()?;
        looked.broken = self.settle(made, &looked.links);
        self.check_underlay()
    }

    /// Whether tunnels can begin at the underlay.
    fn check_underlay(&self) -> Result<(), String> {
        let device = &self.underlay.device;
        let links: Vec<Link> = tools::json("ip", &["link", "show", "dev", device])
            .map_err(|why| format!("the underlay {device}: {why}"))?;
        let is_up = |link: &Link| link.is_up() && link.operstate != "DOWN";
        match links.iter().all(is_up) {
            true => Ok(()),
            false => Err(format!("the underlay {device} is down")),
        }
    }

    /// Brings the copies of certificates that concentrators of this node have up to date.
    pub(crate) fn renew_concentrators(&self, place: impl Fn(Uuid) -> PathBuf) {
        for concentrator in self.made().concentrators.keys() {
            renew(&self.config, *concentrator, &place(*concentrator));
        }
    }

    /// Makes the filter again if somebody has changed it, as a reload of the host's own rules
    /// does. Gives the drops of each port.
    fn keep_filter(&self, made: &mut Made) -> Result<BTreeMap<String, u64>, String> {
        let elements = made.elements().count() + made.nets.len();
        match Filter::read() {
            Ok(filter) if (filter.rules, filter.elements) == (made.rules, elements) => Ok(filter.drops),
            _ => {
                warn!("tenants' networks: the filters were changed, and are made again");
                tools::nft(&self.table(made))?;
                made.rules = Filter::read()?.rules;
                Ok(BTreeMap::new())
            }
        }
    }

    /// Deletes those links that are not needed or wrong, and makes what is missing. Gives the names
    /// of those that were missing or wrong.
    fn settle(&self, made: &Made, links: &[Link]) -> BTreeSet<String> {
        let mut parts = made.parts();
        let (mut wrong, mut there) = (Vec::new(), BTreeSet::new());
        for link in links {
            match parts.get(&link.ifname) {
                Some(Part::Tunnel(net)) if !self.leads_to(net, link) => wrong.push(link.ifname.clone()),
                Some(part) if part.is_sound(link) => drop(parts.remove(&link.ifname)),
                Some(_) => drop(there.insert(&link.ifname)),
                None => wrong.push(link.ifname.clone()),
            }
        }
        delete(&wrong);
        let (mut batch, mut new) = (String::new(), Vec::new());
        // Bridges come first in the order of names.
        for (name, part) in &parts {
            let is_there = there.contains(name);
            if is_there || part.can_be_made() {
                self.write(&mut batch, name, part, is_there);
            }
            match part {
                Part::Port(net, port) if !is_there => new.push((*port, *net)),
                _ => {}
            }
        }
        let broken: BTreeSet<_> = parts.into_keys().collect();
        if !broken.is_empty() {
            info!("tenants' networks: missing or wrong, and made again: {broken:?}");
        }
        // A process that ends meanwhile does not keep the others from getting their ports.
        let batched = tools::anyway("ip", &batch);
        let mut configured = new.into_iter().map(|(port, net)| configure(port, net));
        if let Err(why) = batched.and(configured.try_for_each(|configured| configured)) {
            warn!("tenants' networks: {why}");
        }
        broken
    }

    /// Whether a tunnel leads to the concentrator of a subnet.
    fn leads_to(&self, net: &TenantNet, link: &Link) -> bool {
        link.is_tunnel(net.key, self.underlay.ip, self.config.tunnels.port)
            && link.linkinfo["info_data"]["remote"] == net.concentrator.to_string()
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn table(&self, made: &Made) -> String {
        table(made, self.underlay.ip, self.config.tunnels.port)
    }

    /// Makes a link, unless it is there, and sets it up.
    fn write(&self, batch: &mut String, name: &str, part: &Part<'_>, is_there: bool) {
        let (TunnelConfig { mtu, port: udp, .. }, local) = (&self.config.tunnels, self.underlay.ip);
        let add = |kind: String| format!("link add name {name} mtu {mtu} group {GROUP} type {kind}");
        let added = match part {
            Part::Bridge | Part::Concentrator => add("bridge mcast_snooping 0".into()),
            // Nothing is learned from the tunnel: there is one way out of it, to the concentrator.
            Part::Tunnel(net) => add(format!(
                "vxlan id {} local {local} remote {} dstport {udp} nolearning",
                net.key, net.concentrator
            )),
            Part::Port(_, port) => match &port.end {
                End::Process(namespace) => add(format!(
                    "veth peer name eth0 mtu {mtu} address {} netns {}",
                    port.interface.mac, namespace.pid
                )),
                End::Machine(uid) => format!(
                    "tuntap add name {name} mode tap user {uid}\nlink set {name} group {GROUP}\n\
                     link set {name} mtu {mtu}"
                ),
            },
        };
        if !is_there {
            let _ = writeln!(batch, "{added}\nlink set {name} addrgenmode none");
        }
        if let Part::Tunnel(net) | Part::Port(net, _) = part {
            let _ = writeln!(batch, "link set {name} master {}", bridge_name(net.key));
        }
        // A port is isolated: it reaches the tunnel and no other port, so instances of one node
        // meet at the concentrator as well.
        if let Part::Port(..) = part {
            let _ = writeln!(batch, "link set {name} type bridge_slave isolated on");
        }
        let _ = writeln!(batch, "link set {name} up");
    }
}

/// Takes an instance of a former agent over.
fn adopt(made: &mut Made, links: &[Link], instance: Uuid, to: &Attachment, pid: i32) -> Result<(), String> {
    let namespace = Namespace::of(pid)?;
    let end = match namespace.is_own() {
        false => End::Process(namespace),
        // A machine. It, or a process that was started before the node had networks, does not get
        // an address that it has no port for.
        true if links.iter().any(|link| link.ifname == port_name(instance)) => End::Machine(0),
        true => return Err("it has no interface of its own until it is started again".into()),
    };
    match (to, end) {
        (Attachment::Underlay(_), End::Process(namespace)) => {
            made.concentrators.insert(instance, namespace.open()?);
        }
        (Attachment::Underlay(_), End::Machine(_)) => {}
        (Attachment::Tenant(port), end) => drop(made.add(instance, port, end)?),
    }
    Ok(())
}

/// Changes the elements that the filter has because of an instance, and of its subnet if it is
/// the only one there.
fn elements(how: &str, instance: Uuid, port: &Port, net: Option<&TenantNet>) -> String {
    let own = port.elements(instance).join(", ");
    let way = net.map(|net| format!("{how} element ip ssntp concentrators {{ {} }}\n", way(net)));
    format!(
        "{how} element bridge ssntp own {{ {own} }}\n{}",
        way.unwrap_or_default()
    )
}

/// Sets the address of a process. A machine asks its concentrator.
fn configure(port: &Port, net: &TenantNet) -> Result<(), String> {
    match &port.end {
        End::Process(namespace) => {
            set_address(&port.interface, Some(gateway(net.subnet)), &namespace.open()?)
        }
        End::Machine(_) => Ok(()),
    }
}

/// Sets the address and the route of `eth0` in an instance's namespace.
fn set_address(interface: &Interface, gateway: Option<Ipv4Addr>, namespace: &File) -> Result<(), String> {
    let Interface { ip, subnet, .. } = interface;
    let mut batch = format!(
        "link set lo up\naddr add {ip}/{} dev eth0\nlink set eth0 up\n",
        subnet.prefix_len()
    );
    if let Some(gateway) = gateway {
        let _ = writeln!(batch, "route add default via {gateway}");
    }
    tools::ip_within(namespace, &batch)
}

fn overlaps(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b) || b.contains(&a)
}

#[cfg(test)]
mod tests;
