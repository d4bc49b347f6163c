//! The bridges, tunnels and ports that the instances of a node need.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use uuid::Uuid;

use super::links::{Link, bridge_name, concentrator_name, port_name, tunnel_name};
use ssntp_agent::network::{Interface, TenantNet, TenantPort};
use ssntp_cluster::subnet::gateway;

/// The subnets, ports and concentrators of the instances.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// The subnets with instances, by the key of their tunnel.
    pub(super) nets: BTreeMap<u32, Net>,
    pub(super) concentrators: BTreeMap<Uuid, LocalConcentrator>,
    /// The number of rules of the filter; 0 before the filter exists.
    pub(super) rules: usize,
    /// The digest of the filter as the agent has made it; `None` if it has changed the filter since it has
    /// read it last.
    pub(super) digest: Option<u64>,
    /// The settings of the host that hinder tenants.
    pub(super) hindrances: Told,
    /// What was broken at the last measurement.
    pub(super) faults: Told,
}

/// The maximum number of texts that are kept while nobody can say whether they still hold.
const MOST_UNSEEN: usize = 64;

/// Texts that hold for some time. Each is told when it begins, and not again while it holds.
#[derive(Debug, Default)]
pub(super) struct Told(Vec<String>);

impl Told {
    /// Notes the texts that hold now. Returns those that did not before, and those that no longer do.
    pub(super) fn note(&mut self, now: Vec<String>) -> (Vec<String>, Vec<String>) {
        let before = std::mem::replace(&mut self.0, now);
        let begun = self.0.iter().filter(|it| !before.contains(it)).cloned();
        let begun = begun.collect();
        let is_over = |it: &String| !self.0.contains(it);
        (begun, before.into_iter().filter(is_over).collect())
    }

    /// Notes some of the texts that hold now: the inspection has ended early, so those from before may still hold.
    /// Returns those that did not before.
    pub(super) fn note_some(&mut self, now: Vec<String>) -> Vec<String> {
        let (begun, unseen) = self.note(now);
        self.0.extend(unseen.into_iter().take(MOST_UNSEEN));
        begun
    }
}

/// A concentrator on this node.
#[derive(Debug)]
pub(super) struct LocalConcentrator {
    pub(super) interface: Interface,
    /// Its namespace. A macvlan interface would occupy its address for seconds after the end of the last
    /// process, so the agent keeps the namespace open and deletes the interface itself.
    pub(super) namespace: File,
}

/// A subnet, and the ports of its instances.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) net: TenantNet,
    pub(super) ports: BTreeMap<Uuid, Port>,
}

/// The port of an instance on the bridge of its subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) interface: Interface,
    pub(super) end: End,
}

/// The peer of a port, on the side of the instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// `eth0` in the network namespace of this process.
    Process(Namespace),
    /// A tap, which QEMU opens as the user with this UID.
    Machine(u32),
}

/// A link that instances need.
#[derive(Debug)]
pub(super) enum Part<'a> {
    Bridge,
    Tunnel(&'a TenantNet),
    Port(&'a TenantNet, &'a Port),
    /// The port of a concentrator, on an underlay that is a bridge.
    Concentrator,
}

/// The network namespace of a process. It is not kept open, because it has to end with its last
/// process. The inode shows whether the process with this number still has the same namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Namespace {
    pub(super) pid: i32,
    inode: u64,
}

impl Namespace {
    pub(crate) fn of(pid: i32) -> Result<Self, String> {
        let path = path_of(pid);
        let found = fs::metadata(&path).map_err(|e| format!("{path}: {e}"))?;
        let inode = found.ino();
        Ok(Self { pid, inode })
    }

    /// True if it is the namespace of this thread.
    pub(crate) fn is_own(&self) -> bool {
        fs::metadata("/proc/thread-self/ns/net").is_ok_and(|own| own.ino() == self.inode)
    }

    pub(super) fn open(&self) -> Result<File, String> {
        let path = path_of(self.pid);
        File::open(&path).map_err(|e| format!("{path}: {e}"))
    }
}

fn path_of(pid: i32) -> String {
    format!("/proc/{pid}/ns/net")
}

impl Port {
    /// True if the process is gone. The kernel has removed the port with its namespace then.
    fn has_ended(&self) -> bool {
        match &self.end {
            End::Process(namespace) => Namespace::of(namespace.pid).as_ref() != Ok(namespace),
            End::Machine(_) => false,
        }
    }

    /// True if a process has its address, and the route to the gateway of its subnet.
    fn is_configured(&self, net: &TenantNet) -> bool {
        let End::Process(Namespace { pid, .. }) = &self.end else {
            // It asks for its address itself.
            return true;
        };
        let read = |file| fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
        let ip = format!("{}\n", self.interface.ip);
        let is_own = |entry: &str| entry.starts_with(&ip) && entry.contains("/32 host LOCAL");
        let via = u32::from_ne_bytes(gateway(net.subnet).octets());
        let route = format!("eth0\t00000000\t{via:08X}\t");
        read("fib_trie").split("|-- ").any(is_own) && read("route").lines().any(|it| it.starts_with(&route))
    }

    /// The elements of this port in the filter's set: (port, MAC address, IP address) triples that may
    /// send. A machine may also send with 0.0.0.0, to request its address.
    pub(super) fn elements(&self, instance: Uuid) -> Vec<String> {
        let Interface { mac, ip, .. } = &self.interface;
        let element = |ip: String| format!("\"{}\" . {mac} . {ip}", port_name(instance));
        match self.end {
            End::Process(_) => vec![element(ip.to_string())],
            End::Machine(_) => vec![element(ip.to_string()), element("0.0.0.0".into())],
        }
    }

    /// The element of a machine's port in the filter's set for DHCP: the port and its MAC address.
    pub(super) fn machine(&self, instance: Uuid) -> Option<String> {
        let mac = self.interface.mac.replace(':', "");
        matches!(self.end, End::Machine(_)).then(|| format!("\"{}\" . 0x{mac}", port_name(instance)))
    }
}

impl Made {
    /// Adds an instance. Returns true if it is the first instance of its subnet.
    ///
    /// # Errors
    /// The key belongs to another subnet, or the address to another instance.
    pub(super) fn add(&mut self, instance: Uuid, port: &TenantPort, end: End) -> Result<bool, String> {
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
        let same = |(other, Port { interface: at, .. }): &(&Uuid, &Port)| {
            **other != instance && (at.ip == interface.ip || at.mac == interface.mac)
        };
        if let Some((other, Port { interface: at, .. })) = there.ports.iter().find(same) {
            return Err(format!(
                "instance {other} has the addresses {} and {}",
                at.ip, at.mac
            ));
        }
        let interface = interface.clone();
        there.ports.insert(instance, Port { interface, end });
        Ok(is_new)
    }

    /// Removes an instance. Returns its subnet and its port, and true if it was the last instance of
    /// the subnet.
    pub(super) fn take(&mut self, instance: Uuid) -> Option<(TenantNet, Port, bool)> {
        let mut nets = self.nets.values_mut();
        let (port, there) = nets.find_map(|net| Some((net.ports.remove(&instance)?, net)))?;
        let (net, is_last) = (there.net.clone(), there.ports.is_empty());
        if is_last {
            self.nets.remove(&net.key);
        }
        Some((net, port, is_last))
    }

    /// The elements of the filter's set for all ports.
    pub(super) fn elements(&self) -> impl Iterator<Item = String> {
        let ports = self.nets.values().flat_map(|net| &net.ports);
        ports.flat_map(|(instance, port)| port.elements(*instance))
    }

    /// The elements of the filter's set for DHCP.
    pub(super) fn machines(&self) -> impl Iterator<Item = String> {
        let ports = self.nets.values().flat_map(|net| &net.ports);
        ports.filter_map(|(instance, port)| port.machine(*instance))
    }

    /// All links that are needed, by their names, without the ports of processes that have ended.
    pub(super) fn parts(&self) -> BTreeMap<String, Part<'_>> {
        let concentrators = self.concentrators.keys();
        let concentrators = concentrators.map(|it| (concentrator_name(*it), Part::Concentrator));
        let mut parts: BTreeMap<_, _> = concentrators.collect();
        for Net { net, ports } in self.nets.values() {
            parts.insert(bridge_name(net.key), Part::Bridge);
            parts.insert(tunnel_name(net.key), Part::Tunnel(net));
            let ports = ports.iter().filter(|(_, port)| !port.has_ended());
            parts.extend(ports.map(|(instance, port)| (port_name(*instance), Part::Port(net, port))));
        }
        parts
    }
}

impl Part<'_> {
    /// True if the link can be made while its instance runs. A machine does not open a new tap in
    /// place of a deleted one, and a concentrator gets its port only at its launch.
    pub(super) fn can_be_made(&self) -> bool {
        match self {
            Part::Bridge | Part::Tunnel(_) => true,
            Part::Port(_, port) => matches!(port.end, End::Process(_)),
            Part::Concentrator => false,
        }
    }

    /// True if the link can carry packets: it is up, and a port of the right bridge, and its process can use it.
    pub(super) fn is_sound(&self, link: &Link, underlay: &str, mtu: u32) -> bool {
        let is_on = |net: &TenantNet| link.master == bridge_name(net.key) && link.mtu == mtu;
        link.is_up()
            && match self {
                // A kernel without this setting does not snoop.
                Part::Bridge => link.mtu == mtu && link.linkinfo["info_data"]["mcast_snooping"] != 1,
                Part::Concentrator => link.master == underlay,
                Part::Tunnel(net) => is_on(net),
                Part::Port(net, port) => {
                    let is_isolated = link.linkinfo["info_slave_data"]["isolated"] == true;
                    is_on(net) && is_isolated && port.is_configured(net)
                }
            }
    }
}

#[cfg(test)]
mod tests {
    use ssntp_payload::{Networking, Start};

    use super::*;
    use ssntp_agent::network::Attachment;

    /// The programs of containers turn some settings on long after the agent has started.
    #[test]
    fn what_hinders_tenants_is_told_each_time_that_it_begins_and_once_when_it_is_over() {
        let texts = |all: &[&str]| -> Vec<String> { all.iter().map(|it| (*it).to_owned()).collect() };
        let mut told = Told::default();
        for (now, begun, over) in [
            (&[][..], &[][..], &[][..]),
            (&["a"], &["a"], &[]),
            (&["a", "b"], &["b"], &[]),
            (&["a"], &[], &["b"]),
            (&["a"], &[], &[]),
            (&[], &[], &["a"]),
            (&["a"], &["a"], &[]),
        ] {
            assert_eq!(told.note(texts(now)), (texts(begun), texts(over)), "{now:?}");
        }

        // An error has ended the inspection before it came to the first fault.
        assert_eq!(told.note_some(texts(&["b"])), texts(&["b"]));
        assert_eq!(told.note_some(texts(&["b"])), texts(&[]));
        assert_eq!(told.note(texts(&["a"])), (texts(&[]), texts(&["b"])));
        // Each error may have another text.
        for number in 0..1000 {
            told.note_some(vec![number.to_string()]);
        }
        assert_eq!(told.0.len(), 1 + MOST_UNSEEN);
    }

    #[test]
    fn a_bridge_that_does_not_snoop_is_sound_on_every_kernel() {
        let mut link = Link {
            mtu: 1450,
            flags: vec!["UP".into()],
            ..Link::default()
        };
        for (told, is_sound) in [
            ("{}", true),
            ("{\"mcast_snooping\":0}", true),
            ("{\"mcast_snooping\":1}", false),
        ] {
            link.linkinfo = serde_json::from_str(&format!("{{\"info_data\":{told}}}")).unwrap();
            assert_eq!(Part::Bridge.is_sound(&link, "u0", 1450), is_sound, "{told}");
        }
    }

    fn port(key: u32, ip: &str) -> TenantPort {
        let start = Start {
            networking: Networking {
                subnet: "172.16.0.0/24".into(),
                subnet_key: key.to_string(),
                private_ip: ip.into(),
                concentrator_ip: "10.0.0.33".into(),
                ..Networking::default()
            },
            ..Start::default()
        };
        match Attachment::of(&start) {
            Ok(Some(Attachment::Tenant(port))) => port,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_key_belongs_to_one_tenant_and_an_address_to_one_instance() {
        let mut made = Made::default();
        let [one, two] = [1, 2].map(Uuid::from_u128);
        let mut add = |instance, port: &TenantPort| made.add(instance, port, End::Machine(0));
        assert_eq!(add(one, &port(1, "172.16.0.5")), Ok(true));
        let mut same_mac = port(1, "172.16.0.6");
        same_mac.interface.mac = port(1, "172.16.0.5").interface.mac;
        for taken in [port(1, "172.16.0.5"), same_mac] {
            let why = add(two, &taken).unwrap_err();
            assert!(why.ends_with("172.16.0.5 and 02:00:ac:10:00:05"), "{why}");
        }
        let mut other = port(1, "172.16.0.6");
        other.net.tenant = "another".into();
        let error = add(two, &other).unwrap_err();
        assert!(error.contains("subnet_key 1 is taken"), "{error}");
        assert_eq!(add(two, &port(1, "172.16.0.6")), Ok(false));
        assert!(!made.take(one).unwrap().2 && made.take(two).unwrap().2);
        assert!(made.take(one).is_none() && made.nets.is_empty());
    }
}
