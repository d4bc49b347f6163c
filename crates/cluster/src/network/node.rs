//! The networks of tenants on a node: bridges, tunnels, the ports of instances, filters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ipnet::Ipv4Net;
use log::{info, warn};
use ssntp::payload::{Start, TunnelStats};
use uuid::Uuid;

use super::attachment::{Attachment, Interface, TenantNet, TenantPort, gateway};
use super::links::{BRIDGE, GROUP, Link, PORT, TUNNEL, TunnelData, Underlay, delete, links, tunnel_name};
use super::tools;
use super::tools::elements;
use crate::summed::fnv1a;

/// The default of [`NetworkConfig::mtu`]: VXLAN takes 50 bytes of the usual 1500.
pub const DEFAULT_MTU: u16 = 1450;
/// The default of [`NetworkConfig::port`], the registered port of VXLAN.
pub const DEFAULT_PORT: u16 = 4789;
/// The settings of the networks of a node.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    underlay: String,
    mtu: u16,
    port: u16,
    pub(super) name_servers: Vec<IpAddr>,
    pub(super) concentrator_env: Vec<(String, String)>,
    pub(super) concentrator_files: Vec<(String, PathBuf)>,
    pub(super) concentrator_certs: Option<(String, PathBuf)>,
}

impl NetworkConfig {
    /// Networks whose tunnels begin at this address of the node, or at the first IPv4 address
    /// of this interface.
    pub fn new(underlay: impl Into<String>) -> Self {
        Self {
            underlay: underlay.into(),
            mtu: DEFAULT_MTU,
            port: DEFAULT_PORT,
            name_servers: Vec::new(),
            concentrator_env: Vec::new(),
            concentrator_files: Vec::new(),
            concentrator_certs: None,
        }
    }

    /// The largest packet of an instance. Default: [`DEFAULT_MTU`].
    #[must_use]
    pub fn mtu(mut self, mtu: u16) -> Self {
        self.mtu = mtu;
        self
    }

    /// The UDP port of the tunnels, the same in the whole cluster. Default: [`DEFAULT_PORT`].
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Adds a name server for the instances. Default: none.
    #[must_use]
    pub fn name_server(mut self, ip: IpAddr) -> Self {
        self.name_servers.push(ip);
        self
    }

    /// Adds a variable to the environment of concentrators that this node runs.
    #[must_use]
    pub fn concentrator_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.concentrator_env.push((name.into(), value.into()));
        self
    }

    /// Adds a variable that names a file: each concentrator gets a copy of the file, which its
    /// user alone can read, and the variable names the copy.
    #[must_use]
    pub fn concentrator_file(mut self, name: impl Into<String>, file: impl Into<PathBuf>) -> Self {
        self.concentrator_files.push((name.into(), file.into()));
        self
    }

    /// As [`concentrator_file`](Self::concentrator_file), with a file for each concentrator:
    /// the one in this directory that is called UUID.pem.
    #[must_use]
    pub fn concentrator_certs(mut self, name: impl Into<String>, directory: impl Into<PathBuf>) -> Self {
        self.concentrator_certs = Some((name.into(), directory.into()));
        self
    }
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

/// What is there now.
#[derive(Debug, Default)]
struct Made {
    nets: BTreeMap<u32, Net>,
    /// The key of each instance with a port.
    instances: BTreeMap<Uuid, u32>,
    /// The namespaces of concentrators. An interface there that is a part of the underlay keeps
    /// its address taken for seconds after the end of its last process, so it is deleted
    /// before.
    concentrators: BTreeMap<Uuid, File>,
}

#[derive(Debug)]
struct Net {
    net: TenantNet,
    ports: BTreeMap<Uuid, Interface>,
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
        let may = tools::nft(&network.table(&Made::default(), Purpose::Trial));
        may.map_err(|why| format!("tenants' networks need CAP_NET_ADMIN, ip and nft: {why}"))?;
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

    /// Gives an instance its interface, in the network namespace of this process.
    ///
    /// # Errors
    /// The reason of a `network_failure`; the instance has no network then.
    pub(crate) fn attach(&self, instance: Uuid, to: &Attachment, pid: i32) -> Result<(), String> {
        match to {
            Attachment::Tenant(port) => self.attach_tenant(instance, port, pid),
            Attachment::Underlay(interface) => self.attach_underlay(instance, interface, pid),
        }
    }

    fn attach_tenant(&self, instance: Uuid, port: &TenantPort, pid: i32) -> Result<(), String> {
        let mut made = self.made();
        let is_new = made.add(instance, port)?;
        let wired = self.wire(instance, port, pid, is_new);
        if wired.is_err() {
            self.remove(&mut made, instance);
        }
        wired
    }

    /// The filter comes first: it drops everything of a port that it does not know.
    fn wire(&self, instance: Uuid, port: &TenantPort, pid: i32, is_new: bool) -> Result<(), String> {
        let mut commands = format!(
            "add element bridge ssntp own {{ {} }}\n",
            element(instance, &port.interface)
        );
        if is_new {
            let _ = writeln!(
                commands,
                "add element ip ssntp concentrators {{ {} }}",
                way(&port.net)
            );
        }
        tools::nft(&commands)?;
        let mut batch = String::new();
        if is_new {
            self.write_net(&mut batch, &port.net);
        }
        self.write_port(&mut batch, instance, port.net.key, &port.interface, pid);
        tools::ip(&batch)?;
        configure(&port.interface, Some(gateway(port.net.subnet)), &namespace(pid)?)
    }

    /// A concentrator is a neighbour of the node on its underlay.
    fn attach_underlay(&self, instance: Uuid, interface: &Interface, pid: i32) -> Result<(), String> {
        let Underlay { device, gateway, .. } = &self.underlay;
        let (name, mac) = (port_name(instance), &interface.mac);
        let batch = match self.underlay.is_bridge {
            true => format!(
                "link add name {name} group {GROUP} type veth peer name eth0 netns {pid} address {mac}\n\
                 link set {name} master {device} up\n"
            ),
            false => format!(
                "link add link {device} name eth0 address {mac} netns {pid} type macvlan mode bridge\n"
            ),
        };
        let namespace = namespace(pid)?;
        tools::ip(&batch)?;
        let configured = configure(interface, *gateway, &namespace);
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
            warn!("concentrator {instance}: its interface: {why}");
        }
        let mut doomed = vec![port_name(instance)];
        if let Some((net, interface, is_last)) = made.take(instance) {
            let mut commands = format!(
                "delete element bridge ssntp own {{ {} }}\n",
                element(instance, &interface)
            );
            if is_last {
                let _ = writeln!(
                    commands,
                    "delete element ip ssntp concentrators {{ {} }}",
                    way(&net)
                );
                doomed.extend([tunnel_name(net.key), bridge_name(net.key)]);
            }
            if let Err(why) = tools::nft(&commands) {
                warn!("instance {instance}: the filter of its port: {why}");
            }
        }
        delete(&doomed);
    }

    /// Makes the kernel have what these instances need, and nothing else. What is there and
    /// right is not touched, so connections go on. Each instance comes with a process in its
    /// namespace.
    ///
    /// # Errors
    /// What could not be made.
    pub(crate) fn restore(&self, instances: &[(Uuid, Attachment, i32)]) -> Result<(), String> {
        let mut made = self.made();
        *made = Made::default();
        let mut wanted = BTreeSet::new();
        // An instance that was started before the node had networks uses the host's, which must
        // not get its address.
        let instances = instances.iter().filter(|(instance, _, pid)| {
            let is_alone = !is_own_namespace(*pid);
            if !is_alone {
                warn!("instance {instance} uses the host's network until it is started again");
            }
            is_alone
        });
        let instances: Vec<_> = instances.collect();
        for (instance, attachment, _) in &instances {
            wanted.insert(port_name(*instance));
            if let Attachment::Tenant(port) = attachment {
                match made.add(*instance, port) {
                    Ok(_) => {
                        wanted.extend([bridge_name(port.net.key), tunnel_name(port.net.key)]);
                    }
                    Err(why) => warn!("instance {instance}: {why}"),
                }
            }
        }
        let links = links()?;
        let is_right = |link: &Link| match link.ifname.strip_prefix(TUNNEL).map(str::parse) {
            Some(Ok(key)) => made.nets.get(&key).is_some_and(|net| {
                let TunnelData {
                    id,
                    local,
                    remote,
                    port,
                } = &link.linkinfo.info_data;
                (*id, *port) == (key, self.config.port)
                    && *local == self.underlay.ip.to_string()
                    && *remote == net.net.concentrator.to_string()
            }),
            _ => wanted.contains(&link.ifname),
        };
        let (right, wrong): (Vec<_>, Vec<_>) = links.into_iter().partition(is_right);
        let wrong: Vec<_> = wrong.into_iter().map(|link| link.ifname).collect();
        delete(&wrong);
        tools::nft(&self.table(&made, Purpose::Use))?;
        let has = |name: &str| right.iter().any(|link| link.ifname == name);
        let mut batch = String::new();
        for net in made.nets.values().map(|net| &net.net) {
            if !has(&bridge_name(net.key)) {
                write_bridge(&mut batch, net.key);
            }
            if !has(&tunnel_name(net.key)) {
                self.write_tunnel(&mut batch, net);
            }
        }
        tools::ip(&batch)?;
        let mut last = Ok(());
        for (instance, attachment, pid) in instances {
            let name = port_name(*instance);
            let restored = match attachment {
                Attachment::Tenant(port) if !has(&name) => {
                    let mut batch = String::new();
                    self.write_port(&mut batch, *instance, port.net.key, &port.interface, *pid);
                    tools::ip(&batch)
                        .and_then(|()| namespace(*pid))
                        .and_then(|namespace| {
                            configure(&port.interface, Some(gateway(port.net.subnet)), &namespace)
                        })
                }
                // The bridge may be a new one.
                Attachment::Tenant(port) => {
                    let mut batch = String::new();
                    write_master(&mut batch, &name, port.net.key);
                    tools::ip(&batch)
                }
                Attachment::Underlay(_) => namespace(*pid).map(|namespace| {
                    made.concentrators.insert(*instance, namespace);
                }),
            };
            if let Err(why) = restored {
                last = Err(format!("instance {instance}: {why}"));
            }
        }
        last
    }

    /// Each tunnel: whether it can carry packets, and what it and its ports have counted. One
    /// whose links somebody has deleted is made again, and counts as down this time.
    ///
    /// # Errors
    /// The kernel does not say, or refuses.
    pub(crate) fn tunnels(&self) -> Result<Vec<TunnelStats>, String> {
        let made = self.made();
        if made.nets.is_empty() {
            return Ok(Vec::new());
        }
        let underlay: Vec<Link> = tools::ip_json(&["link", "show", "dev", &self.underlay.device])?;
        let is_cut = underlay
            .iter()
            .any(|link| link.operstate == "DOWN" || !link.is_up());
        let links = links()?;
        let by_name: BTreeMap<_, _> = links.iter().map(|link| (link.ifname.as_str(), link)).collect();
        let is_whole = |net: &&Net| {
            let names = [tunnel_name(net.net.key), bridge_name(net.net.key)];
            names.iter().all(|name| by_name.contains_key(name.as_str()))
        };
        for broken in made.nets.values().filter(|net| !is_whole(net)) {
            self.mend(broken)?;
        }
        let drops = drops()?;
        let of_net = |(key, net): (&u32, &Net)| {
            let tunnel = by_name.get(tunnel_name(*key).as_str());
            let pair = [tunnel, by_name.get(bridge_name(*key).as_str())];
            let counted = tunnel.map(|link| (link.stats64.rx.bytes, link.stats64.tx.bytes));
            let (rx_bytes, tx_bytes) = counted.unwrap_or_default();
            let ports = net.ports.keys().map(|instance| port_name(*instance));
            TunnelStats {
                key: *key,
                up: !is_cut && pair.iter().all(|link| link.is_some_and(|link| link.is_up())),
                rx_bytes,
                tx_bytes,
                drops: ports.filter_map(|port| drops.get(&port)).sum(),
            }
        };
        Ok(made.nets.iter().map(of_net).collect())
    }

    /// Makes the bridge and the tunnel of a subnet anew, and connects its ports.
    fn mend(&self, net: &Net) -> Result<(), String> {
        let (key, mut batch) = (net.net.key, String::new());
        warn!("tenants' networks: the tunnel of key {key} is made again");
        delete(&[tunnel_name(key), bridge_name(key)]);
        self.write_net(&mut batch, &net.net);
        for instance in net.ports.keys() {
            write_master(&mut batch, &port_name(*instance), key);
        }
        tools::ip(&batch)
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_net(&self, batch: &mut String, net: &TenantNet) {
        write_bridge(batch, net.key);
        self.write_tunnel(batch, net);
    }

    /// Nothing is learned from the tunnel: there is one way out of it, to the concentrator.
    fn write_tunnel(&self, batch: &mut String, net: &TenantNet) {
        let (key, remote) = (net.key, net.concentrator);
        let NetworkConfig { mtu, port, .. } = self.config;
        let (tunnel, bridge, local) = (tunnel_name(key), bridge_name(key), self.underlay.ip);
        let _ = write!(
            batch,
            "link add name {tunnel} group {GROUP} type vxlan id {key} local {local} remote {remote} dstport {port} nolearning\n\
             link set {tunnel} addrgenmode none\n\
             link set {tunnel} mtu {mtu} master {bridge} up\n"
        );
    }

    /// A port is isolated: it reaches the tunnel and no other port, so instances of one node
    /// meet at the concentrator as well.
    fn write_port(&self, batch: &mut String, instance: Uuid, key: u32, interface: &Interface, pid: i32) {
        let (name, mac, mtu) = (port_name(instance), &interface.mac, self.config.mtu);
        let _ = write!(
            batch,
            "link add name {name} mtu {mtu} group {GROUP} type veth peer name eth0 mtu {mtu} address {mac} netns {pid}\n\
             link set {name} addrgenmode none\n"
        );
        write_master(batch, &name, key);
    }

    /// The whole filter. nft replaces a table in one step, so no packet finds it half made.
    fn table(&self, made: &Made, purpose: Purpose) -> String {
        let table = match purpose {
            Purpose::Use => "ssntp",
            Purpose::Trial => "ssntp_trial",
        };
        let ports = made.nets.values().flat_map(|net| &net.ports);
        let own = elements(ports.map(|(instance, interface)| element(*instance, interface)));
        let concentrators = elements(made.nets.values().map(|net| way(&net.net)));
        let (local, udp) = (self.underlay.ip, self.config.port);
        let text = format!(
            r#"
add table ip {table}
delete table ip {table}
table ip {table} {{
  set concentrators {{
    comment "the address of a concentrator, and the key of its tunnel"
    typeof ip saddr . @th,96,24
    {concentrators}
  }}
  chain tunnels {{
    type filter hook input priority -10; policy accept;
    udp dport {udp} ip daddr {local} ip saddr . @th,96,24 @concentrators accept
    udp dport {udp} ip daddr {local} counter drop
  }}
}}
add table bridge {table}
delete table bridge {table}
table bridge {table} {{
  set own {{
    type ifname . ether_addr . ipv4_addr
    counter
    {own}
  }}
  set drops {{
    type ifname
    size 65535
    flags dynamic
    counter
  }}
  chain port {{
    ether type ip iifname . ether saddr . ip saddr @own accept
    ether type arp iifname . ether saddr . arp saddr ip @own arp saddr ether != ff:ff:ff:ff:ff:ff accept
    add @drops {{ iifname }}
    counter drop
  }}
  chain from_instances {{
    type filter hook prerouting priority -300; policy accept;
    iifname "{PORT}*" jump port
  }}
  chain to_this_host {{
    type filter hook input priority 0; policy accept;
    iifname "{PORT}*" counter drop
    iifname "{TUNNEL}*" counter drop
  }}
}}
"#
        );
        match purpose {
            Purpose::Use => text,
            Purpose::Trial => format!("{text}delete table bridge {table}\ndelete table ip {table}\n"),
        }
    }
}

/// What a table is for: filtering, or to find out whether it can be made.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Use,
    Trial,
}

impl Made {
    /// Adds an instance; true if it is the first of its subnet.
    fn add(&mut self, instance: Uuid, port: &TenantPort) -> Result<bool, String> {
        let TenantPort { interface, net } = port;
        let is_new = !self.nets.contains_key(&net.key);
        let there = self.nets.entry(net.key).or_insert_with(|| Net {
            net: net.clone(),
            ports: BTreeMap::new(),
        });
        if there.net != *net {
            return Err(format!(
                "subnet_key {} is taken: tenant {} has it for {} at {}",
                net.key, there.net.tenant, there.net.subnet, there.net.concentrator
            ));
        }
        let same = |(other, at): &(&Uuid, &Interface)| {
            **other != instance && (at.ip == interface.ip || at.mac == interface.mac)
        };
        if let Some((other, _)) = there.ports.iter().find(same) {
            return Err(format!("instance {other} has the address {}", interface.ip));
        }
        there.ports.insert(instance, interface.clone());
        self.instances.insert(instance, net.key);
        Ok(is_new)
    }

    /// Removes an instance: its subnet and interface, and whether it was the last of the subnet.
    fn take(&mut self, instance: Uuid) -> Option<(TenantNet, Interface, bool)> {
        let key = self.instances.remove(&instance)?;
        let there = self.nets.get_mut(&key)?;
        let (interface, net) = (there.ports.remove(&instance)?, there.net.clone());
        let is_last = there.ports.is_empty();
        if is_last {
            self.nets.remove(&key);
        }
        Some((net, interface, is_last))
    }
}

/// Sets the address and the route of `eth0` in an instance's namespace.
fn configure(interface: &Interface, gateway: Option<Ipv4Addr>, namespace: &File) -> Result<(), String> {
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

fn namespace(pid: i32) -> Result<File, String> {
    let path = format!("/proc/{pid}/ns/net");
    File::open(&path).map_err(|e| format!("{path}: {e}"))
}

/// Whether a process has the network namespace of this one.
fn is_own_namespace(pid: i32) -> bool {
    let inode = |process: &str| fs::metadata(format!("/proc/{process}/ns/net")).map(|found| found.ino());
    matches!((inode("self"), inode(&pid.to_string())), (Ok(own), Ok(its)) if own == its)
}

/// The packets that the filters dropped, by port.
fn drops() -> Result<BTreeMap<String, u64>, String> {
    let listed: serde_json::Value = tools::nft_json(&["list", "set", "bridge", "ssntp", "drops"])?;
    let objects = listed["nftables"].as_array().into_iter().flatten();
    let elements = objects.flat_map(|object| object["set"]["elem"].as_array().into_iter().flatten());
    let counted = elements.filter_map(|element| {
        let element = &element["elem"];
        let port = element["val"].as_str()?.to_owned();
        Some((port, element["counter"]["packets"].as_u64()?))
    });
    Ok(counted.collect())
}

/// Connects a port to the bridge of its subnet.
fn write_master(batch: &mut String, port: &str, key: u32) {
    let bridge = bridge_name(key);
    let _ = write!(
        batch,
        "link set {port} master {bridge}\nlink set {port} type bridge_slave isolated on\nlink set {port} up\n"
    );
}

fn write_bridge(batch: &mut String, key: u32) {
    let bridge = bridge_name(key);
    let _ = write!(
        batch,
        "link add name {bridge} group {GROUP} type bridge mcast_snooping 0\n\
         link set {bridge} addrgenmode none\n\
         link set {bridge} up\n"
    );
}

/// The way that packets of a subnet come to this node, as an element of its filter.
fn way(net: &TenantNet) -> String {
    format!("{} . {}", net.concentrator, net.key)
}

fn element(instance: Uuid, interface: &Interface) -> String {
    format!(
        "\"{}\" . {} . {}",
        port_name(instance),
        interface.mac,
        interface.ip
    )
}

fn bridge_name(key: u32) -> String {
    format!("{BRIDGE}{key}")
}

/// The name of an interface has at most 15 bytes, so this is a hash of the UUID.
fn port_name(instance: Uuid) -> String {
    format!("{PORT}{:012x}", fnv1a(instance.as_bytes()) & 0xffff_ffff_ffff)
}

fn overlaps(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b) || b.contains(&a)
}

#[cfg(test)]
mod tests {
    use ssntp::payload::Networking;

    use super::super::alone;
    use super::*;

    fn alone(act: impl FnOnce(Networks) + Send + 'static) {
        alone::alone(|| act(Networks::open(NetworkConfig::new("u0")).unwrap()));
    }

    fn attachment(networks: &Networks, key: u32, ip: &str) -> Result<Attachment, String> {
        let start = Start {
            tenant_uuid: Uuid::from_u128(key.into()).into(),
            networking: Networking {
                subnet: "172.16.0.0/24".into(),
                subnet_key: key.to_string(),
                private_ip: ip.into(),
                concentrator_ip: "10.0.0.33".into(),
                ..Networking::default()
            },
            ..Start::default()
        };
        networks.attachment(&start).map(Option::unwrap)
    }

    fn names() -> BTreeSet<String> {
        links().unwrap().into_iter().map(|link| link.ifname).collect()
    }

    #[test]
    fn restore_makes_the_difference_and_leaves_what_is_right() {
        alone(|networks| {
            // No process has this number, so ports are not made, and everything else is.
            let wanted = |keys: &[u32]| -> Vec<_> {
                let each = keys.iter().map(|key| {
                    let attachment = attachment(&networks, *key, "172.16.0.5").unwrap();
                    (Uuid::from_u128((*key).into()), attachment, i32::MAX)
                });
                each.collect()
            };
            assert!(networks.restore(&wanted(&[1, 2])).is_err());
            assert_eq!(names(), ["ssb1", "ssb2", "ssx1", "ssx2"].map(String::from).into());
            let index =
                || -> Vec<serde_json::Value> { tools::ip_json(&["link", "show", "dev", "ssx2"]).unwrap() };
            let before = index()[0]["ifindex"].clone();
            tools::ip("link add ssx9 group 21331 type bridge\nlink del ssb2\n").unwrap();
            assert!(networks.restore(&wanted(&[2, 3])).is_err());
            assert_eq!(names(), ["ssb2", "ssb3", "ssx2", "ssx3"].map(String::from).into());
            assert_eq!(index()[0]["ifindex"], before, "a tunnel that is right stays");
            let up: Vec<_> = networks
                .tunnels()
                .unwrap()
                .iter()
                .map(|t| (t.key, t.up))
                .collect();
            assert_eq!(up, [(2, true), (3, true)]);
            tools::ip("link set ssx3 down\n").unwrap();
            assert!(!networks.tunnels().unwrap()[1].up);
            networks.restore(&[]).unwrap();
            assert_eq!(names(), BTreeSet::new());
        });
    }

    #[test]
    fn a_thousand_tenants_are_made_and_removed() {
        alone(|networks| {
            let all: Vec<_> = (1..=1000)
                .map(|key| {
                    let attachment = attachment(&networks, key, "172.16.0.5").unwrap();
                    (Uuid::from_u128(key.into()), attachment, i32::MAX)
                })
                .collect();
            let mut made = networks.made();
            let mut batch = String::new();
            for (instance, attachment, _) in &all {
                let Attachment::Tenant(port) = attachment else {
                    unreachable!()
                };
                assert_eq!(made.add(*instance, port), Ok(true));
                networks.write_net(&mut batch, &port.net);
            }
            drop(made);
            tools::ip(&batch).unwrap();
            assert_eq!(names().len(), 2000);
            networks.restore(&[]).unwrap();
            assert_eq!(names(), BTreeSet::new());
        });
    }

    #[test]
    fn a_key_is_one_tenants_and_an_address_one_instances() {
        alone(|networks| {
            let port = |key, ip| match attachment(&networks, key, ip).unwrap() {
                Attachment::Tenant(port) => port,
                Attachment::Underlay(_) => unreachable!(),
            };
            let mut made = Made::default();
            let [one, two] = [1, 2].map(Uuid::from_u128);
            assert_eq!(made.add(one, &port(1, "172.16.0.5")), Ok(true));
            assert!(
                made.add(two, &port(1, "172.16.0.5"))
                    .unwrap_err()
                    .contains("has the address")
            );
            let mut other = port(1, "172.16.0.6");
            other.net.tenant = "another".into();
            assert!(
                made.add(two, &other)
                    .unwrap_err()
                    .contains("subnet_key 1 is taken")
            );
            assert_eq!(made.add(two, &port(1, "172.16.0.6")), Ok(false));
            assert!(!made.take(one).unwrap().2 && made.take(two).unwrap().2);
            assert!(made.take(one).is_none() && made.nets.is_empty());
            let start = Start {
                networking: Networking {
                    subnet: "10.0.0.0/24".into(),
                    subnet_key: "5".into(),
                    private_ip: "10.0.0.9".into(),
                    concentrator_ip: "10.0.0.33".into(),
                    ..Networking::default()
                },
                ..Start::default()
            };
            assert!(
                networks
                    .attachment(&start)
                    .unwrap_err()
                    .contains("overlaps the underlay")
            );
        });
    }

    #[test]
    fn what_is_missing_is_named() {
        alone(|_| {
            let why = Networks::open(NetworkConfig::new("nowhere")).unwrap_err();
            assert!(why.contains("nowhere"), "{why}");
        });
    }
}
