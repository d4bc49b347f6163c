//! Networks in CIDR form, and MAC addresses, as payloads write them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// `172.16.0.0/24`. Bits of the address past the prefix are dropped: senders
/// write a node's own address there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Subnet {
    network: IpAddr,
    prefix: u8,
}

impl Subnet {
    /// Its first address.
    pub(crate) fn network(&self) -> IpAddr {
        self.network
    }

    /// Whether an address lies in it.
    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.network.is_ipv4() && masked(ip, self.prefix) == self.network
    }
}

fn masked(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from(u32::from(ip) & mask))
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(ip) & mask))
        }
    }
}

/// A text that is no network in CIDR form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoSubnet;

impl FromStr for Subnet {
    type Err = NoSubnet;

    fn from_str(text: &str) -> Result<Self, NoSubnet> {
        let (address, prefix) = text.split_once('/').ok_or(NoSubnet)?;
        let ip: IpAddr = address.parse().map_err(|_| NoSubnet)?;
        if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_digit()) {
            return Err(NoSubnet);
        }
        let prefix: u8 = prefix.parse().map_err(|_| NoSubnet)?;
        let width = if ip.is_ipv4() { 32 } else { 128 };
        if prefix > width {
            return Err(NoSubnet);
        }
        let network = masked(ip, prefix);
        Ok(Self { network, prefix })
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

/// Whether a text is a MAC address: six bytes in hexadecimal, colons between.
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
            assert_eq!(text.parse::<Subnet>(), Err(NoSubnet), "{text:?}");
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
