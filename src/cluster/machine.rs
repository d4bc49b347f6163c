//! The facts of this machine, as READY and STATS tell them.
//!
//! ```text
//!  /proc/meminfo ─ memory      statvfs ─ disk           /proc/net/fib_trie  ─ IPv4 addresses
//!  /proc/loadavg ─ load        uname ─── hostname       /proc/net/route     ─ their interfaces
//!  /proc/stat ──── CPUs                                 /proc/net/if_inet6  ─ IPv6 addresses
//!                                                       /sys/class/net      ─ MAC addresses
//! ```
//!
//! Whatever can't be read, or isn't what it was expected to be, is unknown:
//! -1 for a number, nothing for a text or an address. Nothing here fails.
//!
//! ```
//! use ssntp::cluster::machine::Facts;
//! use ssntp::payload::NodeStatus;
//! use uuid::Uuid;
//!
//! let facts = Facts::read("/".as_ref());
//! let stats = facts.stats(Uuid::from_u128(1), NodeStatus::Ready);
//! println!("{} of {} MB are free", stats.mem_available_mb, stats.mem_total_mb);
//! ```

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::{fs, io};

use uuid::Uuid;

use crate::payload::{NodeNetwork, NodeStatus, Ready, Stats};

const MB: u64 = 1024 * 1024;

/// What a machine has, at one moment. Memory and disk are in MB of 2^20
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Memory; -1 unknown.
    pub mem_total_mb: i64,
    /// Memory that programs can have without swapping; -1 unknown.
    pub mem_available_mb: i64,
    /// The file system that was asked for; -1 unknown.
    pub disk_total_mb: i64,
    /// What is free there for users other than root; -1 unknown.
    pub disk_available_mb: i64,
    /// Load average over one minute, rounded; -1 unknown.
    pub load: i64,
    /// CPUs that the operating system uses; -1 unknown.
    pub cpus_online: i64,
    /// The machine's name; empty where unknown.
    pub hostname: String,
    /// Its addresses, those of the loopback and link-local ones left out:
    /// first IPv4, then IPv6.
    pub networks: Vec<NodeNetwork>,
}

impl Default for Facts {
    /// Nothing is known.
    fn default() -> Self {
        Self {
            mem_total_mb: -1,
            mem_available_mb: -1,
            disk_total_mb: -1,
            disk_available_mb: -1,
            load: -1,
            cpus_online: -1,
            hostname: String::new(),
            networks: Vec::new(),
        }
    }
}

impl Facts {
    /// Reads everything; the disk is the file system that `path`, or its
    /// nearest parent that exists, lies on.
    ///
    /// Reading takes well under a millisecond, except where `path` is on a
    /// network file system that doesn't answer.
    pub fn read(path: &Path) -> Self {
        let mut facts = Self::default();
        if let Some(meminfo) = text("/proc/meminfo") {
            facts.mem_total_mb = meminfo_mb(&meminfo, "MemTotal").unwrap_or(-1);
            // Kernels before 3.14 don't estimate what is available.
            facts.mem_available_mb = meminfo_mb(&meminfo, "MemAvailable")
                .or_else(|| meminfo_mb(&meminfo, "MemFree"))
                .unwrap_or(-1);
        }
        if let Some((total, available)) = disk_mb(path) {
            facts.disk_total_mb = total;
            facts.disk_available_mb = available;
        }
        facts.load = text("/proc/loadavg").and_then(|t| load(&t)).unwrap_or(-1);
        facts.cpus_online = text("/proc/stat").and_then(|t| cpus(&t)).unwrap_or(-1);
        facts.hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
        facts.networks = networks();
        facts
    }

    /// READY of a node that has this and nothing else to count.
    pub fn ready(&self, node: Uuid) -> Ready {
        Ready {
            node_uuid: node.into(),
            mem_total_mb: self.mem_total_mb,
            mem_available_mb: self.mem_available_mb,
            disk_total_mb: self.disk_total_mb,
            disk_available_mb: self.disk_available_mb,
            load: self.load,
            cpus_online: self.cpus_online,
            networks: self.networks.clone(),
            hostname: self.hostname.clone(),
        }
    }

    /// STATS of a node that runs no instances.
    pub fn stats(&self, node: Uuid, status: NodeStatus) -> Stats {
        Stats {
            node_uuid: node.into(),
            status,
            mem_total_mb: self.mem_total_mb,
            mem_available_mb: self.mem_available_mb,
            disk_total_mb: self.disk_total_mb,
            disk_available_mb: self.disk_available_mb,
            load: self.load,
            cpus_online: self.cpus_online,
            hostname: self.hostname.clone(),
            networks: self.networks.clone(),
            ..Stats::default()
        }
    }
}

/// A file of the kernel, read as far as anything sane goes.
fn text(path: impl AsRef<Path>) -> Option<String> {
    use std::io::Read;

    let file = fs::File::open(path).ok()?;
    let mut bytes = Vec::new();
    // A router may have a great many addresses.
    file.take(4 * MB).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn meminfo_mb(meminfo: &str, key: &str) -> Option<i64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kb: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    (kb >= 0).then_some(kb / 1024)
}

fn load(loadavg: &str) -> Option<i64> {
    let load: f64 = loadavg.split_whitespace().next()?.parse().ok()?;
    #[expect(clippy::cast_possible_truncation, reason = "checked on the spot")]
    (0.0..1e9).contains(&load).then(|| load.round() as i64)
}

fn cpus(stat: &str) -> Option<i64> {
    let numbered = |line: &&str| {
        let rest = line.strip_prefix("cpu");
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let count = stat.lines().filter(numbered).count();
    i64::try_from(count).ok().filter(|count| *count > 0)
}

/// Total and available.
fn disk_mb(path: &Path) -> Option<(i64, i64)> {
    for path in path.ancestors() {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        match rustix::fs::statvfs(path) {
            Ok(disk) => {
                let mb = |blocks: u64| i64::try_from(blocks.checked_mul(disk.f_frsize)? / MB).ok();
                return Some((mb(disk.f_blocks)?, mb(disk.f_bavail)?));
            }
            Err(e) if io::Error::from(e).kind() == io::ErrorKind::NotFound => {}
            Err(_) => return None,
        }
    }
    None
}

fn networks() -> Vec<NodeNetwork> {
    let routes = text("/proc/net/route").map_or_else(Vec::new, |t| routes(&t));
    let v4 = text("/proc/net/fib_trie").map_or_else(BTreeSet::new, |t| local_v4(&t));
    let v6 = text("/proc/net/if_inet6").map_or_else(Vec::new, |t| global_v6(&t));
    let v4 = v4
        .into_iter()
        .map(|ip| (IpAddr::V4(ip), interface_of(ip, &routes)));
    let v6 = v6
        .into_iter()
        .map(|(ip, interface)| (IpAddr::V6(ip), Some(interface)));
    v4.chain(v6)
        .map(|(ip, interface)| NodeNetwork {
            ip: ip.to_string(),
            mac: interface.and_then(mac).unwrap_or_default(),
        })
        .collect()
}

/// The addresses that are this host's own: a leaf of the trie is an address
/// on one line, and what it is on the next ones.
fn local_v4(fib_trie: &str) -> BTreeSet<Ipv4Addr> {
    let mut addresses = BTreeSet::new();
    let mut leaf = None;
    for line in fib_trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL" {
            addresses.extend(leaf.filter(|ip| !ip.is_loopback() && !ip.is_link_local()));
        }
    }
    addresses
}

#[derive(Debug, PartialEq, Eq)]
struct Route {
    interface: String,
    destination: u32,
    mask: u32,
}

/// The routing table; its addresses are hexadecimal, in the byte order of
/// this machine's memory.
fn routes(table: &str) -> Vec<Route> {
    let address = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::from_be);
    let route = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        Some(Route {
            interface: (*fields.first()?).to_owned(),
            destination: address(fields.get(1)?)?,
            mask: address(fields.get(7)?)?,
        })
    };
    table.lines().skip(1).filter_map(route).collect()
}

/// The interface that an address of this host belongs to: that of the
/// narrowest route over it.
fn interface_of(ip: Ipv4Addr, routes: &[Route]) -> Option<String> {
    let ip = u32::from(ip);
    routes
        .iter()
        .filter(|route| ip & route.mask == route.destination)
        .max_by_key(|route| route.mask)
        .map(|route| route.interface.clone())
}

/// Addresses whose scope is the whole net, and their interfaces.
fn global_v6(if_inet6: &str) -> Vec<(Ipv6Addr, String)> {
    let address = |line: &str| {
        let mut fields = line.split_whitespace();
        let bits = u128::from_str_radix(fields.next()?, 16).ok()?;
        let scope = fields.nth(2)?;
        let interface = fields.nth(1)?;
        (scope == "00").then(|| (Ipv6Addr::from(bits), interface.to_owned()))
    };
    let mut addresses: Vec<_> = if_inet6.lines().filter_map(address).collect();
    addresses.sort();
    addresses
}

fn mac(interface: String) -> Option<String> {
    let path: PathBuf = ["/sys/class/net", &interface, "address"].iter().collect();
    let mac = text(path)?.trim().to_owned();
    // Tunnels and the loopback have none.
    (!mac.is_empty() && mac.chars().any(|c| c.is_ascii_hexdigit() && c != '0')).then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory_disk_and_cpus() {
        let facts = Facts::read(Path::new("/no/such/place"));
        assert!(facts.mem_total_mb > 0, "{facts:?}");
        assert!(
            (0..=facts.mem_total_mb).contains(&facts.mem_available_mb),
            "{facts:?}"
        );
        assert!(facts.disk_total_mb > 0, "{facts:?}");
        assert!(
            (0..=facts.disk_total_mb).contains(&facts.disk_available_mb),
            "{facts:?}"
        );
        assert!(facts.cpus_online > 0 && facts.load >= 0, "{facts:?}");
        assert!(!facts.hostname.is_empty());
    }

    #[test]
    fn ready_and_stats_say_the_same() {
        use crate::payload::Payload;

        let facts = Facts::read(Path::new("."));
        let node = Uuid::from_u128(7);
        let ready = facts.ready(node);
        let stats = facts.stats(node, NodeStatus::Full);
        assert_eq!(Ready::decode(&ready.encode()).as_ref(), Ok(&ready));
        assert_eq!(Stats::decode(&stats.encode()).as_ref(), Ok(&stats));
        assert_eq!(
            (ready.node_uuid, ready.mem_total_mb),
            (stats.node_uuid, stats.mem_total_mb)
        );
        assert_eq!((ready.networks, stats.status), (stats.networks, NodeStatus::Full));
    }

    #[test]
    fn odd_files_of_the_kernel_are_unknown() {
        let meminfo = "MemTotal:       24684084 kB\nMemAvailableX: 3 kB\nMemFree: -3 kB\nSwapTotal: 3\n";
        assert_eq!(meminfo_mb(meminfo, "MemTotal"), Some(24105));
        for key in ["MemAvailable", "MemFree", "SwapTotal", "Other"] {
            assert_eq!(meminfo_mb(meminfo, key), None, "{key}");
        }
        for (text, expected) in [
            ("2.5 1 1", Some(3)),
            ("0.49", Some(0)),
            ("", None),
            ("nan", None),
            ("-1", None),
        ] {
            assert_eq!(load(text), expected, "{text:?}");
        }
        assert_eq!(cpus("cpu  1 2\ncpu0 1\ncpu1 2\ncpufreq 3\nctxt 3\n"), Some(2));
        assert_eq!(cpus("intr 3\n"), None);
        for junk in [
            "",
            "\n\n",
            "|-- \n/32 host LOCAL",
            "|-- 300.1.2.3\n  /32 host LOCAL\n",
            "a b c d e f g h i",
        ] {
            assert_eq!(local_v4(junk), BTreeSet::new(), "{junk:?}");
            assert_eq!(routes(junk), [], "{junk:?}");
            assert_eq!(global_v6(junk), [], "{junk:?}");
        }
    }

    #[test]
    fn addresses_are_matched_with_their_interfaces() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.1.2.3\n        /32 host LOCAL\n     |-- 10.1.2.0\n        \
                    /24 link UNICAST\nLocal:\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 10.1.2.3\n        \
                    /32 host LOCAL\n     |-- 172.17.0.1\n        /32 host LOCAL\n     |-- 10.1.2.255\n        /32 link BROADCAST\n";
        let (ten, docker) = (Ipv4Addr::new(10, 1, 2, 3), Ipv4Addr::new(172, 17, 0, 1));
        assert_eq!(local_v4(trie), BTreeSet::from([ten, docker]));
        let hex = |ip: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(ip));
        let table = format!(
            "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
             eth0 {} {} 0003 0 0 0 {} 0 0 0\neth0 {} 0 0001 0 0 0 {} 0 0 0\ndocker0 {} 0 0001 0 0 0 {} 0 0 0\n",
            hex([0; 4]),
            hex([10, 1, 2, 1]),
            hex([0; 4]),
            hex([10, 1, 2, 0]),
            hex([255, 255, 255, 0]),
            hex([172, 17, 0, 0]),
            hex([255, 255, 0, 0]),
        );
        let routes = routes(&table);
        assert_eq!(interface_of(ten, &routes).as_deref(), Some("eth0"));
        assert_eq!(interface_of(docker, &routes).as_deref(), Some("docker0"));
        // An address that stands alone belongs to the default route.
        assert_eq!(
            interface_of(Ipv4Addr::new(192, 0, 2, 9), &routes).as_deref(),
            Some("eth0")
        );
        let v6 = "00000000000000000000000000000001 01 80 10 80       lo\n\
                  fd000000000000000000000000000002 04 40 00 82     eth0\n\
                  fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n";
        assert_eq!(global_v6(v6), [("fd00::2".parse().unwrap(), "eth0".to_owned())]);
    }
}
