//! Networks in CIDR form, and MAC addresses, as payloads write them.

use ipnet::{AddrParseError, IpNet};
use ssntp::payload::{TenantAdded, TenantRemoved};

/// Reads a network such as `172.16.0.0/24`. Address bits after the prefix are cleared, because
/// some senders write a node's own address there.
pub(crate) fn network(text: &str) -> Result<IpNet, AddrParseError> {
    text.parse().map(|net: IpNet| net.trunc())
}

/// The TenantRemoved that reverses a TenantAdded.
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

/// True if a text is a MAC address: six bytes in hexadecimal, separated by colons.
pub(crate) fn is_mac(text: &str) -> bool {
    let parts: Vec<_> = text.split(':').collect();
    let hex = |part: &&str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
    parts.len() == 6 && parts.iter().all(hex)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

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
            let subnet = network(text).unwrap();
            let holds = |ip: &str| subnet.contains(&ip.parse::<IpAddr>().unwrap());
            assert_eq!(subnet.to_string(), printed);
            assert!(holds(inside) && !holds(outside), "{text}");
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
            assert!(network(text).is_err(), "{text:?}");
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
