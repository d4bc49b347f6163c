//! The host of a server: a DNS name or an IP address.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use rustls::pki_types::DnsName;

/// A DNS name or an IP address in a certificate's SAN.
///
/// ```
/// use ssntp_pki::Host;
///
/// let host: Host = "[::1]".parse()?;
/// assert_eq!(host.to_string(), "::1");
/// assert_eq!("Scheduler.Example.".parse(), Ok(Host::Name("scheduler.example".into())));
/// # Ok::<(), ssntp_pki::ParseHostError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A DNS name in lower case, perhaps with `*` as its first label.
    Name(String),
    /// An address.
    Address(IpAddr),
}

impl fmt::Display for Host {
    /// The name, or the address without brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl FromStr for Host {
    type Err = ParseHostError;

    /// Reads a name or an address. IPv6 addresses may be in brackets. A zone after `%` is
    /// left out, because it has a meaning on one machine only, and so is a dot at the end
    /// of a name. Names in other scripts are read in their `xn--` form.
    fn from_str(text: &str) -> Result<Self, ParseHostError> {
        let bad = || ParseHostError(text.to_owned());
        let bracketed = text.strip_prefix('[').map(|rest| rest.strip_suffix(']'));
        if let Some(inner) = bracketed {
            return ipv6(inner.ok_or_else(bad)?).ok_or_else(bad);
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        if let Some(host) = ipv6(text) {
            return Ok(host);
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if is_name(name) {
            return Ok(Self::Name(name.to_ascii_lowercase()));
        }
        Err(bad())
    }
}

/// As [`parse`](str::parse). A text that is neither a name nor an address becomes a name, with which no
/// certificate is issued.
impl From<&str> for Host {
    fn from(text: &str) -> Self {
        text.parse().unwrap_or_else(|_| Self::Name(text.to_owned()))
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        Self::Address(address)
    }
}

fn ipv6(text: &str) -> Option<Host> {
    let address: Ipv6Addr = match text.split_once('%') {
        Some((_, "")) => return None,
        Some((address, _zone)) => address.parse().ok()?,
        None => text.parse().ok()?,
    };
    Some(Host::Address(address.into()))
}

/// True if it is a DNS name, perhaps with `*` as its first label, and without a dot at its end.
fn is_name(name: &str) -> bool {
    // rustls refuses a last label of digits alone, which is a mistyped address.
    let is_dns = |name| DnsName::try_from_str(name).is_ok();
    name.len() <= 253 && !name.ends_with('.') && is_dns(name.strip_prefix("*.").unwrap_or(name))
}

/// The text is neither a DNS name nor an IP address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a DNS name or IP address (and takes no port)")]
pub struct ParseHostError(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_read() {
        for (text, shown) in [
            ("localhost", "localhost"),
            ("Node-7.rack_2.Example.", "node-7.rack_2.example"),
            ("*.example.org", "*.example.org"),
            ("127.0.0.1", "127.0.0.1"),
            ("::1", "::1"),
            ("[2001:DB8::7]", "2001:db8::7"),
            ("fe80::1%eth0", "fe80::1"),
            ("[fe80::1%2]", "fe80::1"),
        ] {
            assert_eq!(text.parse::<Host>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let long = "a.".repeat(127) + "a";
        for text in [
            "",
            ".",
            "7",
            "1.2.3",
            "1.2.3.4.5",
            "256.1.1.1",
            "a..b",
            "-a",
            "a-",
            "host:8888",
            "[::1]:8888",
            "[::1",
            "[127.0.0.1]",
            "[host]",
            "fe80::1%",
            "a b",
            "b\u{fc}ro",
            "*",
            "a.*.b",
            "a/b",
            &long,
        ] {
            assert_eq!(text.parse::<Host>(), Err(ParseHostError(text.to_owned())));
        }
    }
}
