//! The networks of tenants on a node: bridges, tunnels, the ports of instances, filters.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write;
use std::fs::{self, File, Permissions};
use std::iter;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ipnet::Ipv4Net;
use log::{debug, info, warn};
use rustix::process::geteuid;
use ssntp_agent::driver::{InstanceDir, Reason, Refused, User, give};
use ssntp_agent::network::{Attachment, Interface, Network, RESOLVER, Tap, TenantNet, TenantPort, Wire};
use ssntp_cluster::subnet::{gateway, mac_of};
use ssntp_payload::TunnelStats;
use uuid::Uuid;

use super::config::{NetworkConfig, TunnelConfig};
use super::files::{copy, renew};
use super::filter::{Filter, table, tunnel};
use super::links::{
    GROUP, Link, Underlay, addresses, bridge_name, concentrator_name, delete, exists, links, port_name,
    tunnel_name,
};
use super::made::{End, LocalConcentrator, Made, Namespace, Net, Part, Port};
use super::tools;
use ssntp_transport::locked;

/// The setting by which packets that cross a bridge pass the IP filters of this namespace as well.
const BRIDGED: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";

/// The link that holds the UDP port of tunnels. Its key, 0, is that of no tenant, so no packet passes it.
const HOLDER: &str = "ssv0";
/// The maximum number of MAC addresses that the kernel knows in all namespaces together, by default 1024.
const NEIGHBOURS: &str = "/proc/sys/net/ipv4/neigh/default/gc_thresh3";
/// Room for sixteen subnets of the largest size.
const MIN_NEIGHBOURS: u32 = 65_536;

/// True if the kernel's limit exists and is too low.
fn is_low(setting: std::io::Result<Vec<u8>>) -> bool {
    let limit = setting
        .ok()
        .and_then(|value| String::from_utf8(value).ok()?.trim().parse().ok());
    limit.is_some_and(|limit: u32| limit < MIN_NEIGHBOURS)
}

/// True if a setting of the kernel is on. A setting that does not exist is off.
fn is_on(setting: std::io::Result<Vec<u8>>) -> bool {
    setting.is_ok_and(|value| value.starts_with(b"1"))
}

/// The state of the kernel before a repair.
#[derive(Default)]
struct Inspection {
    /// The number of dropped packets of each port.
    drops: BTreeMap<String, u64>,
    links: Vec<Link>,
    /// The names of the links that were wrong or missing.
    broken: BTreeSet<String>,
    /// What was broken, for the log.
    faults: Vec<String>,
}

/// The networks of the tenants of a node.
///
/// # Threads
/// `Send` and `Sync`. Each call runs `ip` and `nft` and waits for them; other calls wait meanwhile.
#[derive(Debug)]
pub struct Networks {
    underlay: Underlay,
    config: NetworkConfig,
    made: Mutex<Made>,
    /// The number of faults that the last measurement has found.
    faults: AtomicUsize,
}

impl Networks {
    /// Finds the underlay, and checks that this process may change networks.
    ///
    /// # Errors
    /// The interface, a program, or a right is missing.
    pub fn open(config: NetworkConfig) -> Result<Self, String> {
        let network = Self {
            underlay: Underlay::find(&config.underlay)?,
            config,
            made: Mutex::default(),
            faults: AtomicUsize::new(0),
        };
        let may = tools::nft_check(&network.table(&Made::default()));
        may.map_err(|why| format!("tenants' networks need CAP_NET_ADMIN, ip and nft: {why}"))?;
        info!(
            "tenants' networks: tunnels begin at {} ({})",
            network.underlay.ip, network.underlay.device
        );
        Ok(network)
    }

    /// The settings of the kernel by which this host hinders tenants, with what to do.
    fn hindrances(&self) -> Vec<String> {
        let mut found = Vec::new();
        // Each namespace has this setting, if the kernel has this filter.
        if is_on(fs::read(BRIDGED)) {
            found.push(format!(
                "packets on the bridges also pass the IP filters of this host, which is slow and may drop \
                 them: set {BRIDGED} to 0"
            ));
        }
        // Only the first namespace has this setting.
        if self.config.concentrator_certs.is_some() && is_low(fs::read(NEIGHBOURS)) {
            found.push(format!(
                "one tenant may use up the MAC addresses that this host can know, and stop all others: set \
                 {NEIGHBOURS} to {MIN_NEIGHBOURS} or more"
            ));
        }
        found
    }

    pub(super) fn config(&self) -> &NetworkConfig {
        &self.config
    }

    /// Gives an instance its port in the subnet of its tenant.
    ///
    /// # Errors
    /// The reason of a `network_failure`; the instance has no network then.
    pub(crate) fn attach(&self, instance: Uuid, to: &TenantPort, end: End) -> Result<(), String> {
        self.check_underlay()?;
        let mut made = locked(&self.made);
        made.digest = None;
        let port = Port {
            interface: to.interface.clone(),
            end: end.clone(),
        };
        let is_new = made.add(instance, to, end)?;
        let wired = self.make_port(instance, &port, &to.net, is_new);
        if wired.is_err() {
            self.remove(&mut made, instance);
        }
        wired
    }

    /// Makes the links of an instance. The filter is changed first, because it drops all packets of
    /// an unknown port.
    fn make_port(&self, instance: Uuid, port: &Port, net: &TenantNet, is_new: bool) -> Result<(), String> {
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

    /// Gives a concentrator its interface on the underlay, beside that of the node.
    ///
    /// # Errors
    /// The reason of a `network_failure`.
    pub(crate) fn attach_underlay(
        &self,
        instance: Uuid,
        interface: &Interface,
        to: &Namespace,
    ) -> Result<(), String> {
        let concentrator = LocalConcentrator {
            interface: interface.clone(),
            namespace: to.open()?,
        };
        // The lock is held from here on, because a repair deletes links that it does not know.
        let mut made = locked(&self.made);
        let joined = self.join(instance, &concentrator);
        made.concentrators.insert(instance, concentrator);
        joined
    }

    /// Makes the interface of a concentrator.
    fn join(&self, instance: Uuid, to: &LocalConcentrator) -> Result<(), String> {
        let (name, mac, device) = (
            concentrator_name(instance),
            &to.interface.mac,
            &self.underlay.device,
        );
        let namespace = tools::path_of(&to.namespace);
        tools::ip(&if self.underlay.is_bridge {
            format!(
                "link add name {name} group {GROUP} type veth peer name eth0 netns {namespace} address {mac}\n\
                 link set {name} master {device} up\n"
            )
        } else {
            format!(
                "link add link {device} name eth0 address {mac} netns {namespace} type macvlan mode bridge\n"
            )
        })?;
        self.configure_concentrator(to)
    }

    fn configure_concentrator(&self, to: &LocalConcentrator) -> Result<(), String> {
        let prefix = to.interface.subnet.prefix_len();
        set_address(&to.interface, prefix, self.underlay.gateway, &to.namespace)
    }

    /// Sets the addresses and routes of the concentrators again, and makes interfaces again that are gone:
    /// the kernel removes them with the underlay's own interface.
    fn mend_concentrators(&self, made: &Made, faults: &mut Vec<String>) {
        for (instance, concentrator) in &made.concentrators {
            let Err(why) = self.configure_concentrator(concentrator) else {
                continue;
            };
            faults.push(format!("concentrator {instance} has lost its interface: {why}"));
            if let Err(why) = self.join(*instance, concentrator) {
                faults.push(format!(
                    "concentrator {instance}: its interface cannot be made again: {why}"
                ));
            }
        }
    }

    /// Deletes the links that only this instance needs.
    fn remove(&self, made: &mut Made, instance: Uuid) {
        if let Some(concentrator) = made.concentrators.remove(&instance)
            && let Err(why) = tools::ip_within(&concentrator.namespace, "link del eth0\n")
        {
            warn!("concentrator {instance}: its interface cannot be deleted: {why}");
        }
        let mut doomed = vec![port_name(instance)];
        if let Some((net, port, is_last)) = made.take(instance) {
            if is_last {
                doomed.extend([tunnel_name(net.key), bridge_name(net.key)]);
            }
            made.digest = None;
            let commands = elements("delete", instance, &port, is_last.then_some(&net));
            if let Err(why) = tools::nft(&commands) {
                warn!("instance {instance}: its port cannot be removed from the filter: {why}");
            }
        }
        delete(&doomed);
    }

    /// Holds the UDP port of tunnels, also while there are none: a program of this host that takes it would
    /// make each START of a tenant fail.
    fn hold_port(&self) -> Result<(), String> {
        let (local, port) = (self.underlay.ip, self.config.tunnels.port);
        let add = format!("link add name {HOLDER} type vxlan id 0 local {local} dstport {port} nolearning\n");
        let added = match tools::ip(&add) {
            Err(why) if !why.contains("File exists") => Err(why),
            // The port is free while the link is down.
            _ => tools::ip(&format!("link set {HOLDER} up\n")),
        };
        added.map_err(|why| format!("UDP port {port} of tunnels: {why}"))
    }

    /// Reads the state of the kernel, and makes again the filters and links that are wrong or
    /// missing. After an error, `found` has the part that was read.
    fn inspect(&self, made: &mut Made, found: &mut Inspection) -> Result<(), String> {
        found.drops = self.keep_filter(made, &mut found.faults)?;
        found.links = links()?;
        found.broken = self.settle(made, &found.links, &mut found.faults);
        for why in made.hindrances.note(self.hindrances()).0 {
            warn!("tenants' networks: {why}");
        }
        self.check_underlay()?;
        self.mend_concentrators(made, &mut found.faults);
        self.hold_port()
    }

    /// Checks that the underlay exists, is up, and has the address that the tunnels were made with.
    fn check_underlay(&self) -> Result<(), String> {
        let device = &self.underlay.device;
        let links: Vec<Link> = tools::json("ip", &["link", "show", "dev", device])
            .map_err(|why| format!("the underlay {device}: {why}"))?;
        let is_up = |link: &Link| link.is_up() && link.operstate != "DOWN";
        if !links.iter().all(is_up) {
            return Err(format!("the underlay {device} is down"));
        }
        let (ip, all) = (self.underlay.ip, addresses()?);
        let has_it =
            |link: &Link| link.ifname == *device && link.addr_info.iter().any(|address| address.local == ip);
        if all.iter().any(has_it) {
            Ok(())
        } else {
            Err(format!(
                "the underlay {device} has lost its address {ip}: tunnels work again with it, or with another one once \
                 the agent is started again"
            ))
        }
    }

    /// Makes the filter again if it was changed, as by a reload of the host's own rules. Returns the
    /// number of dropped packets of each port.
    fn keep_filter(
        &self,
        made: &mut Made,
        faults: &mut Vec<String>,
    ) -> Result<BTreeMap<String, u64>, String> {
        let elements = made.elements().count() + made.machines().count() + made.nets.len();
        match Filter::read() {
            Ok(filter)
                if (filter.rules, filter.elements) == (made.rules, elements)
                    && made.digest.is_none_or(|digest| digest == filter.digest) =>
            {
                made.digest = Some(filter.digest);
                Ok(filter.drops)
            }
            read => {
                let why = read.err().unwrap_or_else(|| "they were changed".into());
                faults.push(format!("the filters were wrong: {why}"));
                self.make_filter(made)?;
                Ok(BTreeMap::new())
            }
        }
    }

    /// Deletes links that are not needed or that are wrong, and makes missing links. Returns the
    /// names of the links that were missing or wrong.
    fn settle(&self, made: &Made, links: &[Link], faults: &mut Vec<String>) -> BTreeSet<String> {
        let mut parts = made.parts();
        // Concentrators with a macvlan interface have no port on this host.
        parts.retain(|_, part| self.underlay.is_bridge || !matches!(part, Part::Concentrator));
        let (mut wrong, mut there) = (Vec::new(), BTreeSet::new());
        for link in links {
            match parts.get(&link.ifname) {
                Some(Part::Tunnel(net)) if !self.leads_to(net, link) => wrong.push(link.ifname.clone()),
                Some(part) if part.is_sound(link, &self.underlay.device, self.config.tunnels.mtu.into()) => {
                    parts.remove(&link.ifname);
                }
                Some(_) => drop(there.insert(&link.ifname)),
                None => wrong.push(link.ifname.clone()),
            }
        }
        delete(&wrong);
        let (mut batch, mut broken_ports) = (String::new(), Vec::new());
        // Bridges come first in the order of names.
        for (name, part) in &parts {
            let is_there = there.contains(name);
            if is_there || part.can_be_made() {
                self.write(&mut batch, name, part, is_there);
            }
            if let Part::Port(net, port) = part {
                broken_ports.push((*port, *net));
            }
        }
        let broken: BTreeSet<_> = parts.into_keys().collect();
        // A link that cannot be made, as the tap of a running machine, stays missing at each repair.
        if !batch.is_empty() {
            faults.push(format!("these links are missing or wrong: {broken:?}"));
        }
        // An error for one link, as that of a process that ends just now, does not affect the others.
        let batched = tools::anyway("ip", &batch);
        let configured = broken_ports.into_iter().map(|(port, net)| configure(port, net));
        faults.extend(iter::once(batched).chain(configured).filter_map(Result::err));
        broken
    }

    /// True if a tunnel leads to the concentrator of a subnet.
    fn leads_to(&self, net: &TenantNet, link: &Link) -> bool {
        link.is_tunnel(net.key, self.underlay.ip, self.config.tunnels.port)
            && link.linkinfo["info_data"]["remote"] == net.concentrator.to_string()
    }

    /// Replaces the filter.
    fn make_filter(&self, made: &mut Made) -> Result<(), String> {
        tools::nft(&self.table(made))?;
        let filter = Filter::read()?;
        (made.rules, made.digest) = (filter.rules, Some(filter.digest));
        Ok(())
    }

    fn table(&self, made: &Made) -> String {
        table(made, self.config.tunnels.port)
    }

    /// Writes the commands of `ip` that make a link, unless it exists, and configure it.
    fn write(&self, batch: &mut String, name: &str, part: &Part<'_>, is_there: bool) {
        let (TunnelConfig { mtu, port: udp, .. }, local) = (&self.config.tunnels, self.underlay.ip);
        let add = |kind: String| format!("link add name {name} mtu {mtu} group {GROUP} type {kind}");
        let added = match part {
            Part::Bridge | Part::Concentrator => add("bridge".into()),
            // The tunnel learns no addresses, because it has only one peer, the concentrator.
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
        match part {
            Part::Bridge => {
                let _ = writeln!(batch, "link set {name} type bridge mcast_snooping 0");
            }
            Part::Concentrator => {
                let _ = writeln!(batch, "link set {name} master {}", self.underlay.device);
            }
            Part::Tunnel(net) | Part::Port(net, _) => {
                let _ = writeln!(batch, "link set {name} master {}", bridge_name(net.key));
            }
        }
        // A port is isolated: it reaches the tunnel but no other port. So packets between instances
        // of one node pass through the concentrator as well.
        if let Part::Port(..) = part {
            let _ = writeln!(batch, "link set {name} type bridge_slave isolated on");
        }
        let mtu = match part {
            Part::Concentrator => String::new(),
            _ => format!("mtu {mtu}"),
        };
        let _ = writeln!(batch, "link set {name} {mtu} up");
    }
}

impl Network for Networks {
    fn address(&self) -> Ipv4Addr {
        self.underlay.ip
    }

    fn check(&self, to: &Attachment) -> Result<(), String> {
        let Underlay { net, ip, gateway, .. } = &self.underlay;
        match to {
            Attachment::Tenant(port) if overlaps(port.net.subnet, *net) => {
                Err(format!("subnet {} overlaps the underlay {net}", port.net.subnet))
            }
            Attachment::Underlay(own) if !net.contains(&own.ip) => Err(format!(
                "private_ip {} is not an address of the underlay {net}",
                own.ip
            )),
            Attachment::Underlay(own) if own.ip == *ip || Some(own.ip) == *gateway => Err(format!(
                "private_ip {} belongs to this node or to its gateway",
                own.ip
            )),
            _ => Ok(()),
        }
    }

    fn wire<'a>(&'a self, instance: Uuid, to: Attachment) -> Box<dyn Wire + 'a> {
        Box::new(Cable {
            instance,
            network: self,
            to,
        })
    }

    /// Links that are right are not touched, so connections go on. The next repair makes what could not be made.
    fn restore(&self, instances: &[(Uuid, Attachment, i32)]) -> Result<(), String> {
        let mut made = locked(&self.made);
        *made = Made::default();
        // First, and without `ip`: what is not known here is deleted by the next repair.
        for (instance, attachment, pid) in instances {
            if let Err(why) = adopt(&mut made, *instance, attachment, *pid) {
                warn!("instance {instance}: {why}");
            }
        }
        // The filter is replaced even if it exists, because another version may have made it.
        self.make_filter(&mut made)?;
        // A former agent may have had another port.
        let _ = tools::ip(&format!("link del {HOLDER}\n"));
        if let Err(why) = self.hold_port() {
            warn!("tenants' networks: {why}");
        }
        let mut faults = Vec::new();
        self.settle(&made, &links()?, &mut faults);
        for why in faults {
            warn!("tenants' networks: {why}");
        }
        Ok(())
    }

    fn detach(&self, instance: Uuid) {
        self.remove(&mut locked(&self.made), instance);
    }

    /// Links and filters that were deleted or changed are made again. The tunnel of such a link counts as down
    /// this time. All tunnels are down if the kernel can't be read, or if the underlay is down or gone. A fault
    /// is logged when it begins and when it is mended.
    fn tunnels(&self, place: &dyn Fn(Uuid) -> PathBuf) -> Vec<TunnelStats> {
        let mut made = locked(&self.made);
        for concentrator in made.concentrators.keys() {
            renew(&self.config, *concentrator, &place(*concentrator));
        }
        let mut inspection = Inspection::default();
        let inspected = self.inspect(&mut made, &mut inspection);
        let Inspection {
            drops,
            links,
            broken,
            mut faults,
        } = inspection;
        faults.extend(inspected.as_ref().err().cloned());
        self.faults.store(faults.len(), Ordering::Relaxed);
        // After an error the rest was not inspected.
        let (begun, mended) = match &inspected {
            Ok(()) => made.faults.note(faults),
            Err(_) => (made.faults.note_some(faults), Vec::new()),
        };
        for why in begun {
            warn!("tenants' networks: {why}");
        }
        for what in mended {
            info!("tenants' networks: mended: {what}");
        }
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
                up: inspected.is_ok()
                    && !broken.contains(&bridge_name(*key))
                    && !parts.any(|it| broken.contains(it)),
                rx_bytes: bytes("rx"),
                tx_bytes: bytes("tx"),
            }
        };
        made.nets.iter().map(of_net).collect()
    }

    fn faults(&self) -> usize {
        self.faults.load(Ordering::Relaxed)
    }
}

/// Adds an instance that a former agent has launched.
fn adopt(made: &mut Made, instance: Uuid, to: &Attachment, pid: i32) -> Result<(), String> {
    let namespace = Namespace::of(pid)?;
    let end = if !namespace.is_own() {
        End::Process(namespace)
    } else if exists(&port_name(instance)) {
        // The process is in the host's namespace, and a port shows that it is a machine.
        End::Machine(0)
    } else {
        // A process without a port was started before the node had networks, and gets no address.
        return Err("it has no interface of its own until it is started again".into());
    };
    match (to, end) {
        (Attachment::Underlay(interface), End::Process(namespace)) => {
            let concentrator = LocalConcentrator {
                interface: interface.clone(),
                namespace: namespace.open()?,
            };
            made.concentrators.insert(instance, concentrator);
        }
        (Attachment::Underlay(_), End::Machine(_)) => {}
        (Attachment::Tenant(port), end) => drop(made.add(instance, port, end)?),
    }
    Ok(())
}

/// The commands of `nft` that add or delete the elements of an instance in the filter. `net` is
/// given for the first and the last instance of a subnet, which changes the tunnel as well.
fn elements(verb: &str, instance: Uuid, port: &Port, net: Option<&TenantNet>) -> String {
    let own = port.elements(instance).join(", ");
    let mut commands = format!("{verb} element bridge ssntp own {{ {own} }}\n");
    if let Some(machine) = port.machine(instance) {
        let _ = writeln!(commands, "{verb} element bridge ssntp machines {{ {machine} }}");
    }
    if let Some(net) = net {
        let _ = writeln!(
            commands,
            "{verb} element ip ssntp concentrators {{ {} }}",
            tunnel(net)
        );
    }
    commands
}

/// Sets the address of a process. A machine gets its address by DHCP.
fn configure(port: &Port, net: &TenantNet) -> Result<(), String> {
    match &port.end {
        // With a prefix of 32 bits the instance asks for the MAC address of the gateway only. The kernel
        // limits the known MAC addresses of all namespaces together, and a process could use up that limit.
        End::Process(namespace) => {
            let (namespace, gateway) = (namespace.open()?, gateway(net.subnet));
            set_address(&port.interface, 32, Some(gateway), &namespace)?;
            // From this request others see at once on which node the address is now. The kernel repeats
            // it until it is answered.
            let asked = tools::ip_within(&namespace, &format!("neigh replace {gateway} dev eth0 use\n"));
            asked.unwrap_or_else(|why| debug!("{}: its gateway is not asked for: {why}", port.interface.ip));
            Ok(())
        }
        End::Machine(_) => Ok(()),
    }
}

/// Sets the address and the route of `eth0` in an instance's namespace.
fn set_address(
    interface: &Interface,
    prefix: u8,
    gateway: Option<Ipv4Addr>,
    namespace: &File,
) -> Result<(), String> {
    let ip = interface.ip;
    let mut batch = format!("link set lo up\naddr replace {ip}/{prefix} dev eth0\nlink set eth0 up\n");
    if let Some(gateway) = gateway {
        let _ = writeln!(batch, "route replace default via {gateway} dev eth0 onlink");
    }
    tools::ip_within(namespace, &batch)
}

fn overlaps(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b) || b.contains(&a)
}

/// The network of an instance that is being launched.
#[derive(Debug)]
struct Cable<'a> {
    instance: Uuid,
    network: &'a Networks,
    to: Attachment,
}

impl Wire for Cable<'_> {
    fn connect(&self, pid: i32) -> Result<(), Refused> {
        let made = Namespace::of(pid).and_then(|namespace| match &self.to {
            Attachment::Tenant(port) => self.network.attach(self.instance, port, End::Process(namespace)),
            Attachment::Underlay(interface) => {
                self.network.attach_underlay(self.instance, interface, &namespace)
            }
        });
        made.map_err(failed)
    }

    fn tap(&self, user: Option<User>) -> Result<Tap, Refused> {
        let Attachment::Tenant(port) = &self.to else {
            return Err(failed("a concentrator is a process, not a machine".into()));
        };
        let Interface { ip, mac, .. } = &port.interface;
        if *mac != mac_of(*ip) {
            let own = mac_of(*ip);
            return Err(failed(format!(
                "vnic_mac {mac}: the concentrator gives {ip} to the machine with {own} only"
            )));
        }
        let uid = user.map_or_else(|| geteuid().as_raw(), |user| user.uid);
        let made = self.network.attach(self.instance, port, End::Machine(uid));
        made.map_err(failed)?;
        Ok(Tap {
            interface: port_name(self.instance),
            mac: mac.clone(),
            mtu: self.network.config().tunnels.mtu,
        })
    }

    fn is_concentrator(&self) -> bool {
        matches!(self.to, Attachment::Underlay(_))
    }

    fn prepare(&self, place: &InstanceDir, user: Option<User>) -> Result<Vec<(OsString, OsString)>, Refused> {
        let config = self.network.config();
        if !self.is_concentrator() {
            let servers = config
                .tunnels
                .name_servers
                .iter()
                .map(|ip| format!("nameserver {ip}\n"));
            let path = place.dir().join(RESOLVER);
            let written = fs::write(&path, servers.collect::<String>())
                .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o644)));
            written.map_err(|e| Refused::io(path.display(), &e))?;
            return Ok(Vec::new());
        }
        let mut env: Vec<_> = config
            .concentrator_env
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        for (name, from) in config.files_of(self.instance) {
            let copied = copy(&name, &from, place.dir());
            let to = copied.map_err(|e| Refused::io(&name, &e))?;
            let given = user.map_or(Ok(()), |user| give(&to, user));
            given.map_err(|e| Refused::io(to.display(), &e))?;
            env.push((name.into(), to.into()));
        }
        Ok(env)
    }
}

fn failed(why: String) -> Refused {
    Refused::new(Reason::NetworkFailure, why)
}

#[cfg(test)]
mod tests;
