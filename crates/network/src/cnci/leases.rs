//! The addresses of machines, by dnsmasq, which is a child process of the concentrator.
//!
//! The MAC address of each address in a subnet is computed from it. So the leases are fixed, no file
//! stores them, and a dnsmasq that is started again has the same leases.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::process::{Child, Command, Stdio};

use ipnet::Ipv4Net;
use log::{info, warn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::TunnelConfig;
use crate::links::tunnel_name;
use crate::made::Namespace;
use ssntp_cluster::subnet::{gateway, mac_of};

/// The command line of dnsmasq. A dnsmasq that is not the concentrator's has another one.
const COMMAND: [&str; 3] = ["dnsmasq", "--keep-in-foreground", "--conf-file=-"];
/// The time limit for the end of a killed process. Without a limit, a process that hangs in the
/// kernel would block the concentrator.
const END: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// The DHCP server for machines. Dropping it ends dnsmasq.
#[derive(Debug, Default)]
pub(super) struct Leases {
    config: String,
    server: Option<Child>,
    /// The reason why dnsmasq does not run; empty if there is none. Each reason is logged once.
    trouble: String,
}

impl Leases {
    /// Serves these subnets, and no others. Starts dnsmasq again if it has ended. A failure is only
    /// logged, because processes need no leases.
    pub(super) fn serve(&mut self, subnets: &BTreeMap<u32, Ipv4Net>, tunnels: &TunnelConfig) {
        let config = config(subnets, tunnels);
        let runs = |server: &mut Child| matches!(server.try_wait(), Ok(None));
        if self.config == config && self.server.as_mut().is_none_or(runs) && self.trouble.is_empty() {
            return;
        }
        self.stop();
        self.config = config;
        if self.config.is_empty() {
            return;
        }
        end_former();
        let trouble = match start(&self.config) {
            Ok(server) => {
                info!("dnsmasq gives machines their addresses (process {})", server.id());
                self.server = Some(server);
                String::new()
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => "the program dnsmasq is not installed".into(),
            Err(e) => format!("dnsmasq: {e}"),
        };
        if trouble != self.trouble && !trouble.is_empty() {
            warn!("machines of this tenant get no addresses: {trouble}");
        }
        self.trouble = trouble;
    }

    fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The settings of dnsmasq; empty without a subnet.
fn config(subnets: &BTreeMap<u32, Ipv4Net>, tunnels: &TunnelConfig) -> String {
    let mut config = String::new();
    for (key, subnet) in subnets {
        let (network, mask) = (subnet.network(), subnet.netmask());
        let _ = write!(
            config,
            "interface={}\ndhcp-range={network},static,{mask},1h\n",
            tunnel_name(*key)
        );
        for ip in subnet.hosts().filter(|ip| *ip != gateway(*subnet)) {
            let _ = writeln!(config, "dhcp-host={},{ip}", mac_of(ip));
        }
    }
    if config.is_empty() {
        return config;
    }
    let servers = tunnels.name_servers.iter().filter(|ip| ip.is_ipv4());
    let servers: Vec<_> = servers.map(ToString::to_string).collect();
    if !servers.is_empty() {
        let _ = writeln!(config, "dhcp-option=option:dns-server,{}", servers.join(","));
    }
    let hosts = config.lines().count();
    let _ = write!(
        config,
        "port=0\npid-file=\nlog-facility=-\nquiet-dhcp\nleasefile-ro\nno-ping\n\
         dhcp-authoritative\ndhcp-lease-max={hosts}\ndhcp-option=option:mtu,{}\n",
        tunnels.mtu
    );
    config
}

fn start(config: &str) -> io::Result<Child> {
    // A file in memory, because a pipe has too little room for the settings of 4,000 addresses.
    let mut file = File::from(memfd_create("dnsmasq", MemfdFlags::CLOEXEC)?);
    file.write_all(config.as_bytes())?;
    file.rewind()?;
    let mut command = Command::new(COMMAND[0]);
    command.args(&COMMAND[1..]);
    command.stdin(Stdio::from(file)).stdout(Stdio::null()).spawn()
}

/// [`COMMAND`] as `/proc` shows it.
fn own_words() -> Vec<u8> {
    COMMAND.map(|word| format!("{word}\0")).concat().into()
}

/// Kills the dnsmasq of a former concentrator in this network namespace that was killed itself. The
/// dnsmasq would go on with the former settings, and occupy the port.
fn end_former() {
    let own = own_words();
    let is_former = |pid: &i32| {
        let said = fs::read(format!("/proc/{pid}/cmdline"));
        said.is_ok_and(|said| said == own) && Namespace::of(*pid).is_ok_and(|namespace| namespace.is_own())
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for pid in pids.filter(is_former) {
        let former = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
        // The check is repeated, because another process may have got the number before the
        // descriptor was open.
        if let Some(Ok(former)) = former
            && is_former(&pid)
            && pidfd_send_signal(&former, Signal::KILL).is_ok()
        {
            info!("the dnsmasq of a former concentrator is ended (process {pid})");
            let _ = poll(&mut [PollFd::new(&former, PollFlags::IN)], Some(&END));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_dnsmasq_is_started_again_and_a_former_one_is_ended() {
        crate::alone::alone(|| {
            let serve = |leases: &mut Leases, subnet: &str| {
                let subnet = subnet.parse().unwrap();
                leases.serve(&[(7, subnet)].into(), &TunnelConfig::default());
                leases.server.as_ref().map(Child::id)
            };
            let mut leases = Leases::default();
            let Some(first) = serve(&mut leases, "172.16.0.0/24") else {
                return eprintln!("skipped: dnsmasq is not installed");
            };
            assert_eq!(
                serve(&mut leases, "172.16.0.0/24"),
                Some(first),
                "the former dnsmasq runs on"
            );
            // A dnsmasq that is killed is started again.
            let mut killed = leases.server.take().unwrap();
            killed.kill().unwrap();
            killed.wait().unwrap();
            leases.server = Some(killed);
            assert_ne!(serve(&mut leases, "172.16.0.0/24"), Some(first));
            let mut former = leases.server.take().unwrap();
            // The arguments of a process are empty for a moment after its start.
            while fs::read(format!("/proc/{}/cmdline", former.id())).unwrap() != own_words() {
                assert!(former.try_wait().unwrap().is_none(), "dnsmasq has ended");
                std::thread::yield_now();
            }
            let other = ["sleep", "1000"];
            let mut other = Command::new(other[0]).args(&other[1..]).spawn().unwrap();
            serve(&mut leases, "172.16.1.0/24");
            let mut next = leases.server.take().unwrap();
            let ended = former.try_wait().unwrap();
            let [next_runs, other_runs] = [&mut next, &mut other].map(|child| {
                let runs = child.try_wait().unwrap().is_none();
                let _ = child.kill();
                child.wait().unwrap();
                runs
            });
            assert!(ended.is_some(), "the former dnsmasq still runs");
            assert!(next_runs && other_runs);
        });
    }

    #[test]
    fn each_address_has_its_own_mac_address() {
        let subnet = "172.16.0.8/29".parse().unwrap();
        let tunnels = TunnelConfig {
            name_servers: vec!["192.0.2.53".parse().unwrap()],
            ..TunnelConfig::default()
        };
        let config = config(&[(7, subnet)].into(), &tunnels);
        for line in [
            "interface=ssx7",
            "dhcp-range=172.16.0.8,static,255.255.255.248,1h",
            "dhcp-host=02:00:ac:10:00:0e,172.16.0.14",
            "dhcp-option=option:dns-server,192.0.2.53",
            "dhcp-option=option:mtu,1450",
        ] {
            assert!(config.lines().any(|present| present == line), "{line}: {config}");
        }
        assert_eq!(config.matches("dhcp-host").count(), 5, "the gateway has no lease");
        assert_eq!(super::config(&BTreeMap::new(), &tunnels), "");
    }
}
