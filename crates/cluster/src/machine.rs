//! The facts of this machine, as READY and STATS hold them.
//!
//! ```text
//!  /proc/meminfo ─ memory      statvfs ─ disk           getifaddrs ─ addresses, MAC addresses
//!  /proc/loadavg ─ load        uname ─── hostname
//!  /proc/stat ──── CPUs
//! ```
//!
//! A value that cannot be read, or is not in the expected form, is unknown: -1 for a number,
//! empty for a text or an address. No function here fails.
//!
//! ```
//! use ssntp_cluster::machine;
//! use ssntp_payload::NodeStatus;
//! use uuid::Uuid;
//!
//! let facts = machine::read("/".as_ref());
//! let stats = machine::stats(&facts, Uuid::from_u128(1), NodeStatus::Ready);
//! println!("{} of {} MB are free", stats.mem_available_mb, stats.mem_total_mb);
//! ```

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::Path;
use std::{fs, io};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::LinkAddr;
use uuid::Uuid;

use ssntp_payload::{NodeNetwork, NodeStatus, Ready, Stats};

const MB: u64 = 1024 * 1024;

/// The resources and addresses of a machine at one moment: READY of a node that has no UUID yet.
/// Memory and disk are in MB of 2^20 bytes.
pub type Facts = Ready;

/// Reads all facts. The disk is the file system of `path`, or of its nearest parent that exists.
///
/// This takes well under a millisecond, unless `path` is on a network file system that does not
/// answer.
pub fn read(path: &Path) -> Facts {
    let mut facts = Facts::default();
    if let Some(meminfo) = text("/proc/meminfo") {
        facts.mem_total_mb = meminfo_mb(&meminfo, "MemTotal").unwrap_or(-1);
        // Kernels before 3.14 do not report the available memory.
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

/// STATS of a node with these facts and no instances.
pub fn stats(facts: &Facts, node: Uuid, status: NodeStatus) -> Stats {
    Stats {
        node_uuid: node.into(),
        status,
        mem_total_mb: facts.mem_total_mb,
        mem_available_mb: facts.mem_available_mb,
        disk_total_mb: facts.disk_total_mb,
        disk_available_mb: facts.disk_available_mb,
        load: facts.load,
        cpus_online: facts.cpus_online,
        hostname: facts.hostname.clone(),
        networks: facts.networks.clone(),
        labels: facts.labels.clone(),
        ..Stats::default()
    }
}

/// The content of a file of the kernel, up to one MB.
fn text(path: impl AsRef<Path>) -> Option<String> {
    use std::io::Read;

    let file = fs::File::open(path).ok()?;
    let mut bytes = Vec::new();
    // Files in /proc have no size to reserve memory for, so the read is bounded instead.
    file.take(MB).read_to_end(&mut bytes).ok()?;
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

/// The size and the free space of the file system of `path`.
fn disk_mb(path: &Path) -> Option<(i64, i64)> {
    // The parents of a relative path end with an empty one.
    for path in std::path::absolute(path).ok()?.ancestors() {
        match rustix::fs::statvfs(path) {
            Ok(disk) => {
                let mb = |blocks: u64| i64::try_from(blocks.checked_mul(disk.f_frsize)? / MB).ok();
                return Some((mb(disk.f_blocks)?, mb(disk.f_bavail)?));
            }
            // The state directory may not exist before the first start.
            Err(e) if io::Error::from(e).kind() == io::ErrorKind::NotFound => {}
            Err(_) => return None,
        }
    }
    None
}

/// The addresses at which other hosts may reach this one, with the MAC addresses of their
/// interfaces. A tunnel has no MAC address.
fn networks() -> Vec<NodeNetwork> {
    // A sorted map, so that the order is the same at each call: IPv4 comes first.
    let (mut addresses, mut macs) = (BTreeMap::new(), HashMap::new());
    for found in getifaddrs().into_iter().flatten() {
        let interface = found.interface_name;
        let Some(address) = found.address else { continue };
        if let Some(ip) = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip())) {
            addresses.insert(ip, interface);
        } else if let Some(ip) = address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())) {
            addresses.insert(ip, interface);
        } else if let Some(mac) = address.as_link_addr().and_then(LinkAddr::addr) {
            macs.insert(interface, mac);
        }
    }
    let is_of_host_alone = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
    };
    let addresses = addresses.into_iter().filter(|(ip, _)| !is_of_host_alone(ip));
    addresses
        .map(|(ip, interface)| NodeNetwork {
            ip: ip.to_string(),
            mac: macs
                // The system returns the label of an IPv4 address, such as eth0:1 on eth0.
                .get(interface.split(':').next().unwrap_or(&interface))
                // The kernel reports zeros for an interface without a MAC address.
                .filter(|mac| **mac != [0; 6])
                .map_or_else(String::new, |mac| mac.map(|byte| format!("{byte:02x}")).join(":")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory_disk_and_cpus() {
        let facts = read(Path::new("/no/such/place"));
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
        use ssntp::payload::Payload;

        let facts = read(Path::new("."));
        let node = Uuid::from_u128(7);
        let ready = Ready {
            node_uuid: node.into(),
            ..facts.clone()
        };
        let stats = stats(&facts, node, NodeStatus::Full);
        assert_eq!(Ready::decode(&ready.encode()).as_ref(), Ok(&ready));
        assert_eq!(Stats::decode(&stats.encode()).as_ref(), Ok(&stats));
        assert_eq!(
            (ready.node_uuid, ready.mem_total_mb),
            (stats.node_uuid, stats.mem_total_mb)
        );
        assert_eq!((ready.networks, stats.status), (stats.networks, NodeStatus::Full));
    }

    #[test]
    fn unreadable_values_in_files_of_the_kernel_are_unknown() {
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
    }

    #[test]
    fn the_networks_of_a_machine_are_addresses_that_other_hosts_can_use() {
        for network in networks() {
            let ip: IpAddr = network.ip.parse().unwrap();
            assert!(!ip.is_loopback() && !ip.is_unspecified(), "{ip}");
            assert!(
                network.mac.is_empty() || crate::subnet::is_mac(&network.mac),
                "{network:?}"
            );
        }
    }
}
