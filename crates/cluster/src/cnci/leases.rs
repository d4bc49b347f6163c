//! The addresses of machines: dnsmasq, a child process of the concentrator.
//!
//! Each address of a subnet has one MAC address, which is made of it. So the leases are fixed, no
//! file keeps them, and a dnsmasq that is started again goes on with the same ones.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};

use ipnet::Ipv4Net;
use log::{info, warn};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::network::links::tunnel_name;
use crate::network::{gateway, mac_of};

/// Gives machines their addresses. Dropping it ends dnsmasq.
#[derive(Debug, Default)]
pub(super) struct Leases {
    config: String,
    server: Option<Child>,
    /// Why there is none. It is logged once.
    trouble: String,
}

impl Leases {
    /// Serves these subnets, and no others. Starts dnsmasq again if it has ended. Processes need
    /// no leases, so a failure is only logged.
    pub(super) fn serve(
        &mut self,
        subnets: impl Iterator<Item = (u32, Ipv4Net)>,
        mtu: u16,
        name_servers: &[IpAddr],
    ) {
        let config = config(subnets, mtu, name_servers);
        let runs = |server: &mut Child| matches!(server.try_wait(), Ok(None));
        if self.config == config && self.server.as_mut().is_none_or(runs) && self.trouble.is_empty() {
            return;
        }
        self.stop();
        self.config = config;
        if self.config.is_empty() {
            return;
        }
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

/// The settings of dnsmasq; none without a subnet.
fn config(subnets: impl Iterator<Item = (u32, Ipv4Net)>, mtu: u16, name_servers: &[IpAddr]) -> String {
    let mut config = String::new();
    for (key, subnet) in subnets {
        let (network, mask) = (subnet.network(), subnet.netmask());
        let _ = write!(
            config,
            "interface={}\ndhcp-range={network},static,{mask},1h\n",
            tunnel_name(key)
        );
        for ip in subnet.hosts().filter(|ip| *ip != gateway(subnet)) {
            let _ = writeln!(config, "dhcp-host={},{ip}", mac_of(ip));
        }
    }
    if config.is_empty() {
        return config;
    }
    let servers = name_servers.iter().filter(|ip| ip.is_ipv4());
    let servers: Vec<_> = servers.map(ToString::to_string).collect();
    if !servers.is_empty() {
        let _ = writeln!(config, "dhcp-option=option:dns-server,{}", servers.join(","));
    }
    let hosts = config.lines().count();
    let _ = write!(
        config,
        "port=0\npid-file=\nlog-facility=-\nquiet-dhcp\nleasefile-ro\nno-ping\n\
         dhcp-authoritative\ndhcp-lease-max={hosts}\ndhcp-option=option:mtu,{mtu}\n"
    );
    config
}

fn start(config: &str) -> io::Result<Child> {
    // A file in memory, because a pipe has less room than 4,000 addresses take.
    let mut file = File::from(memfd_create("dnsmasq", MemfdFlags::CLOEXEC)?);
    file.write_all(config.as_bytes())?;
    file.rewind()?;
    let mut command = Command::new("dnsmasq");
    command.args(["--keep-in-foreground", "--conf-file=-"]);
    command.stdin(Stdio::from(file)).stdout(Stdio::null()).spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_own_mac_address() {
        let subnet = "172.16.0.8/29".parse().unwrap();
        let config = config([(7, subnet)].into_iter(), 1450, &["192.0.2.53".parse().unwrap()]);
        for line in [
            "interface=ssx7",
            "dhcp-range=172.16.0.8,static,255.255.255.248,1h",
            "dhcp-host=02:00:ac:10:00:0e,172.16.0.14",
            "dhcp-option=option:dns-server,192.0.2.53",
            "dhcp-option=option:mtu,1450",
        ] {
            assert!(config.lines().any(|there| there == line), "{line}: {config}");
        }
        assert_eq!(config.matches("dhcp-host").count(), 5, "the gateway has none");
        assert_eq!(super::config(std::iter::empty(), 1450, &[]), "");
    }
}
