//! Networks in CIDR form, tenants' subnets and MAC addresses, as payloads write them.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::{AddrParseError, IpNet, Ipv4Net};
use ssntp_payload::{TenantAdded, TenantRemoved};

/// The largest key: a VXLAN network identifier has 24 bits.
pub const MAX_KEY: u32 = (1 << 24) - 1;
/// The prefix lengths of subnets. The smallest subnet has a gateway and 5 instances, the largest
/// 4094 addresses.
const PREFIXES: std::ops::RangeInclusive<u8> = 20..=29;

/// Reads a network such as `172.16.0.0/24`. Address bits after the prefix are cleared, because
/// some senders write a node's own address there.
pub fn network(text: &str) -> Result<IpNet, AddrParseError> {
    text.parse().map(|net: IpNet| net.trunc())
}

/// The TenantRemoved that reverses a TenantAdded.
pub fn removed(tenant: &TenantAdded) -> TenantRemoved {
    let tenant = tenant.clone();
    TenantRemoved {
        agent_uuid: tenant.agent_uuid,
        agent_ip: tenant.agent_ip,
        tenant_uuid: tenant.tenant_uuid,
        tenant_subnet: tenant.tenant_subnet,
        concentrator_uuid: tenant.concentrator_uuid,
        concentrator_ip: tenant.concentrator_ip,
        subnet_key: tenant.subnet_key,
        addresses: Vec::new(),
    }
}

/// True if a text is a MAC address: six bytes in hexadecimal, separated by colons.
pub fn is_mac(text: &str) -> bool {
    let parts: Vec<_> = text.split(':').collect();
    let hex = |part: &&str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
    parts.len() == 6 && parts.iter().all(hex)
}

/// The gateway of a subnet, which is its first address and belongs to the concentrator.
pub fn gateway(subnet: Ipv4Net) -> Ipv4Addr {
    Ipv4Addr::from_bits(subnet.network().to_bits() + 1)
}

/// The MAC address of an interface whose START names none. It is made of the IP address, so the
/// concentrator can compute it.
pub fn mac_of(ip: Ipv4Addr) -> String {
    let [a, b, c, d] = ip.octets();
    format!("02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// Reads the IPv4 address in the field of this name.
///
/// # Errors
/// A sentence that names the field.
pub fn ipv4(field: &str, text: &str) -> Result<Ipv4Addr, String> {
    match text.parse() {
        Ok(IpAddr::V4(ip)) => Ok(ip),
        Ok(IpAddr::V6(_)) => Err(format!("{field} {text}: tenants' networks have no IPv6 yet")),
        Err(_) => Err(format!("{field} {text:?} is not an IPv4 address")),
    }
}

/// Reads a tenant's subnet. The error is a sentence that names the text.
pub fn subnet(text: &str) -> Result<Ipv4Net, String> {
    let net: Ipv4Net = match text.parse::<IpNet>() {
        Ok(IpNet::V4(net)) => net.trunc(),
        Ok(IpNet::V6(_)) => return Err(format!("{text}: tenants' networks have no IPv6 yet")),
        Err(_) => return Err(format!("{text:?} is not a subnet")),
    };
    if PREFIXES.contains(&net.prefix_len()) && is_unicast(net.network()) {
        Ok(net)
    } else {
        Err(format!(
            "{net}: a tenant's subnet needs a prefix of {} to {} bits and unicast addresses",
            PREFIXES.start(),
            PREFIXES.end()
        ))
    }
}

/// True for an address that a host may have, other than a loopback address.
pub fn is_unicast(ip: Ipv4Addr) -> bool {
    matches!(ip.octets(), [1..=126 | 128..=223, ..])
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
