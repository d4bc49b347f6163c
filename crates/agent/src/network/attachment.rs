//! The network that a START asks for.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use ssntp::payload::Id;
use ssntp_payload::{Networking, Start};

use ssntp_cluster::subnet::{MAX_KEY, gateway, ipv4, is_mac, is_unicast, mac_of, subnet};

/// The network of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// An address in a tenant's subnet.
    Tenant(TenantPort),
    /// An address in the cluster's own network: a concentrator.
    Underlay(Interface),
}

/// The interface of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The address.
    pub ip: Ipv4Addr,
    /// The subnet of the address.
    pub subnet: Ipv4Net,
    /// The MAC address, in lower case.
    pub mac: String,
}

/// The interface of an instance in a tenant's subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantPort {
    /// The interface.
    pub interface: Interface,
    /// The subnet.
    pub net: TenantNet,
}

/// A subnet of a tenant, and its tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantNet {
    /// The tenant.
    pub tenant: Id,
    /// The subnet.
    pub subnet: Ipv4Net,
    /// The VXLAN network identifier of the tunnel.
    pub key: u32,
    /// The address of the concentrator in the cluster's network.
    pub concentrator: Ipv4Addr,
}

impl Attachment {
    /// The network that a START asks for; `None` if it names no subnet, and the instance uses the
    /// host's network.
    ///
    /// # Errors
    /// The reason of a `network_failure`.
    pub fn of(start: &Start) -> Result<Option<Self>, String> {
        let networking = &start.networking;
        if networking.subnet.is_empty() {
            return Ok(None);
        }
        if start.requirements.network_node && networking.concentrator_ip.is_empty() {
            let subnet = networking.subnet.parse::<Ipv4Net>();
            let subnet = subnet.map_err(|_| format!("{:?} is not an IPv4 subnet", networking.subnet))?;
            return Interface::of(networking, subnet.trunc())
                .map(|interface| Some(Self::Underlay(interface)));
        }
        let net = TenantNet {
            tenant: start.tenant_uuid.clone(),
            subnet: subnet(&networking.subnet)?,
            key: key(&networking.subnet_key)?,
            concentrator: ipv4("concentrator_ip", &networking.concentrator_ip)?,
        };
        if !is_unicast(net.concentrator) {
            return Err(format!(
                "concentrator_ip {} is not a host's address",
                net.concentrator
            ));
        }
        let interface = Interface::of(networking, net.subnet)?;
        if interface.ip == gateway(net.subnet) {
            return Err(format!("{} is the address of the gateway", interface.ip));
        }
        Ok(Some(Self::Tenant(TenantPort { interface, net })))
    }
}

impl Interface {
    fn of(networking: &Networking, subnet: Ipv4Net) -> Result<Self, String> {
        let ip = ipv4("private_ip", &networking.private_ip)?;
        if !subnet.contains(&ip) || ip == subnet.network() || ip == subnet.broadcast() {
            return Err(format!(
                "private_ip {ip} is not an address for an instance in {subnet}"
            ));
        }
        let mac = match networking.vnic_mac.to_ascii_lowercase() {
            mac if mac.is_empty() => mac_of(ip),
            mac if is_mac(&mac) && is_of_interface(&mac) => mac,
            mac => return Err(format!("vnic_mac {mac:?} is not the MAC address of an interface")),
        };
        Ok(Self { ip, subnet, mac })
    }
}

/// True if an interface can have this MAC address: the group bit is not set, and it is not all
/// zeros.
fn is_of_interface(mac: &str) -> bool {
    let first = u8::from_str_radix(mac.get(..2).unwrap_or_default(), 16);
    first.is_ok_and(|first| first & 1 == 0) && mac != "00:00:00:00:00:00"
}

fn key(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(key @ 1..=MAX_KEY) => Ok(key),
        _ => Err(format!("subnet_key {text:?} is not a number from 1 to {MAX_KEY}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(change: impl Fn(&mut Start)) -> Result<Option<Attachment>, String> {
        let mut start = Start {
            networking: Networking {
                subnet: "172.16.0.0/24".into(),
                subnet_key: "7".into(),
                private_ip: "172.16.0.5".into(),
                concentrator_ip: "10.0.0.33".into(),
                ..Networking::default()
            },
            ..Start::default()
        };
        change(&mut start);
        Attachment::of(&start)
    }

    #[test]
    fn a_start_without_a_subnet_has_the_hosts_network() {
        assert_eq!(start(|s| s.networking = Networking::default()), Ok(None));
    }

    #[test]
    fn an_interface_without_a_mac_address_gets_one_from_its_ip_address() {
        let Ok(Some(Attachment::Tenant(port))) = start(|_| {}) else {
            panic!("the START has a network");
        };
        assert_eq!(port.interface.mac, "02:00:ac:10:00:05");
        assert_eq!(
            (port.net.key, gateway(port.net.subnet)),
            (7, Ipv4Addr::new(172, 16, 0, 1))
        );
    }

    #[test]
    fn an_error_names_the_invalid_field() {
        type Row = (fn(&mut Networking), &'static str);
        let rows: [Row; 17] = [
            (|n| n.subnet_key = String::new(), "subnet_key"),
            (|n| n.subnet_key = "0".into(), "subnet_key"),
            (|n| n.subnet_key = "16777216".into(), "subnet_key"),
            (|n| n.private_ip = String::new(), "private_ip"),
            (|n| n.private_ip = "172.16.1.5".into(), "172.16.0.0/24"),
            (|n| n.private_ip = "172.16.0.255".into(), "172.16.0.0/24"),
            (|n| n.private_ip = "172.16.0.1".into(), "gateway"),
            (|n| n.private_ip = "fd00::5".into(), "IPv6"),
            (|n| n.subnet = "fd00::/64".into(), "IPv6"),
            (|n| n.subnet = "172.16.0.0/8".into(), "20 to 29"),
            (|n| n.subnet = "0.0.0.0/20".into(), "unicast"),
            (|n| n.subnet = "240.0.0.0/20".into(), "unicast"),
            (|n| n.concentrator_ip = String::new(), "concentrator_ip"),
            (|n| n.concentrator_ip = "0.0.0.0".into(), "concentrator_ip"),
            (
                |n| n.concentrator_ip = "255.255.255.255".into(),
                "concentrator_ip",
            ),
            (|n| n.vnic_mac = "01:00:5e:00:00:01".into(), "vnic_mac"),
            (|n| n.vnic_mac = "00:00:00:00:00:00".into(), "vnic_mac"),
        ];
        for (change, word) in rows {
            let error = start(|s| change(&mut s.networking)).unwrap_err();
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}
