//! Networks in CIDR form, and MAC addresses, as payloads write them.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{AddrParseError, IpNet};
use ssntp::payload::{TenantAdded, TenantRemoved};

/// A network such as `172.16.0.0/24`. Address bits after the prefix are dropped, because
/// senders write a node's own address there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Subnet(IpNet);

impl Subnet {
    /// Its first address.
    pub(crate) fn network(&self) -> IpAddr {
        self.0.network()
    }

    /// Whether an address lies in it.
    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        self.0.contains(&ip)
    }
}

impl FromStr for Subnet {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        text.parse().map(|net: IpNet| Self(net.trunc()))
    }
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The TenantRemoved that takes back a TenantAdded.
pub(crate) fn removed(tenant: &TenantAdded) -> TenantRemoved {
    let tenant = tenant.clone();
    TenantRemoved {
        agent_uuid: tenant.agent_uuid,
        agent_ip: tenant.agent_ip,
        tenant_uuid: tenant.tenant_uuid,
        tenant_subnet: tenant.tenant_subnet,
        concentrator_uuid: tenant.concentrator_uuid,
        concentrator_ip: tenant.concentrator_ip,
        subnet_key: tenant.subnet_key,
    }
}

/// Whether a text is a MAC address: six bytes in hexadecimal, separated by colons.
pub(crate) fn is_mac(text: &str) -> bool {
    let parts: Vec<_> = text.split(':').collect();
    let hex = |part: &&str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
    parts.len() == 6 && parts.iter().all(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_masked_and_printed() {
        for (text, printed, inside, outside) in [
            ("172.16.0.5/24", "172.16.0.0/24", "172.16.0.255", "172.16.1.0"),
            ("0.0.0.0/0", "0.0.0.0/0", "9.9.9.9", "::1"),
            ("10.0.0.1/32", "10.0.0.1/32", "10.0.0.1", "10.0.0.2"),
            ("fd00::1/8", "fd00::/8", "fdff::", "fe00::"),
            ("::/0", "::/0", "::1", "1.1.1.1"),
        ] {
            let subnet: Subnet = text.parse().unwrap();
            assert_eq!(subnet.to_string(), printed);
            assert!(subnet.contains(inside.parse().unwrap()), "{text}");
            assert!(!subnet.contains(outside.parse().unwrap()), "{text}");
            assert!(subnet.contains(subnet.network()));
        }
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0/8",
            "::/129",
            "10.0.0.0/+8",
            "10.0.0.0/256",
        ] {
            assert!(text.parse::<Subnet>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn mac_addresses_are_six_bytes() {
        assert!(is_mac("02:42:ac:10:00:05") && is_mac("FF:FF:FF:FF:FF:FF"));
        for text in [
            "",
            "02:42",
            "02:42:ac:10:00:0g",
            "2:42:ac:10:00:05",
            "02-42-ac-10-00-05",
            "02:42:ac:10:00:05:",
        ] {
            assert!(!is_mac(text), "{text:?}");
        }
    }
}
