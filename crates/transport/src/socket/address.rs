//! Addresses to listen at and to connect to.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// An address to listen at or to connect to.
///
/// Read from text as `HOST:PORT`, `IPV4:PORT`, `[IPV6]:PORT`, `:PORT` (every
/// interface when listening, this host when connecting), or `unix:PATH`. A link-local address may have a zone, the
/// name or the number of an interface: `[fe80::1%eth0]:9000`.
/// [`with_default_port`](Self::with_default_port) also reads an address without a port.
///
/// ```
/// use ssntp_transport::Address;
///
/// let address: Address = "[::1]:9000".parse()?;
/// assert_eq!(address, Address::tcp("::1", 9000));
/// assert_eq!(Address::with_default_port("node7", 8888)?, Address::tcp("node7", 8888));
/// assert_eq!("unix:/run/s.sock".parse::<Address>()?, Address::Unix("/run/s.sock".into()));
/// # Ok::<(), ssntp_transport::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// A host name or IP address, and a port. An empty host is every interface when listening and
    /// this host when connecting.
    Tcp {
        /// Name or IP address, without brackets.
        host: String,
        /// The port. When listening, 0 lets the system choose one.
        port: u16,
    },
    /// A Unix domain socket.
    Unix(PathBuf),
}

impl Address {
    /// A TCP address.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::Tcp {
            host: host.into(),
            port,
        }
    }

    /// The address of a socket.
    pub(super) fn of(address: SocketAddr) -> Self {
        let host = match address {
            SocketAddr::V6(v6) if v6.scope_id() > 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
            _ => address.ip().to_string(),
        };
        Self::tcp(host, address.port())
    }

    /// True if the address can only be on this host: a Unix socket, `localhost` or a loopback
    /// address. An empty host does not count, because it is every interface when listening.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp { host, .. } => {
                let is_loopback = |ip: IpAddr| ip.is_loopback();
                host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback)
            }
            Self::Unix(_) => true,
        }
    }

    /// The name that a server at this address has to prove: the host, or `localhost` for a Unix
    /// socket or an empty host.
    pub fn server_name(&self) -> &str {
        match self {
            // No certificate has a zone, which is a matter of this host.
            Self::Tcp { host, .. } if !host.is_empty() => host.split('%').next().unwrap_or(host),
            _ => "localhost",
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// Reads an address that may lack a port: also `HOST`, `[IPV6]` and a bare IPv6 address. These
    /// have the port `default`.
    ///
    /// # Errors
    /// The text is in none of these forms.
    pub fn with_default_port(text: &str, default: u16) -> Result<Self, AddressError> {
        Self::read(text, Some(default))
    }

    fn read(text: &str, default: Option<u16>) -> Result<Self, AddressError> {
        let bad = |why| AddressError {
            text: text.to_owned(),
            why,
        };
        let default = default.ok_or_else(|| bad("a port is needed, as in 127.0.0.1:9100"));
        match text.strip_prefix("unix:") {
            Some("") => return Err(bad("no path after unix:")),
            Some(path) => return Ok(Self::Unix(path.into())),
            // As a host it would print as unix:8888, which looks like the path of a socket.
            None if text == "unix" => return Err(bad("no path after unix:")),
            None if text.is_empty() => return Err(bad("it is empty")),
            None if text.contains(',') => return Err(bad("one address is expected here, without a comma")),
            None => {}
        }
        let zoned = text.trim_start_matches('[').split_once('%');
        if zoned.is_some_and(|(ip, _)| ip.parse().is_ok_and(|ip: Ipv6Addr| !ip.is_unicast_link_local())) {
            return Err(bad("only a link-local address, as fe80::1, has a zone"));
        }
        if let Some(ip) = ipv6(text) {
            return Ok(Self::tcp(ip.to_string(), default?));
        }
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let bracket = rest.split_once(']');
            let (ip, after) = bracket.ok_or_else(|| bad("the bracket is not closed"))?;
            let ip = ipv6(ip).ok_or_else(|| bad("no IPv6 address in the brackets"))?;
            let port = after.strip_prefix(':');
            if port.is_none() && !after.is_empty() {
                return Err(bad("no colon after the bracket"));
            }
            (ip, port)
        } else {
            let (host, port) = match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            };
            if !is_name(host) {
                return Err(bad("the host is neither a name nor an IP address"));
            }
            (host.to_owned(), port)
        };
        let not_a_port = || bad("the port is not a number from 0 to 65535");
        let number = |port: &str| port.parse().ok().filter(|_| !port.starts_with('+'));
        let port = port.map_or(default, |port| number(port).ok_or_else(not_a_port))?;
        Ok(Self::tcp(host, port))
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        Self::read(text, None)
    }
}

fn is_name(text: &str) -> bool {
    let is_of_a_name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.chars().all(is_of_a_name)
}

/// An IPv6 address, which may have a zone: the name or the number of an interface of this host.
fn ipv6(text: &str) -> Option<String> {
    let Some((ip, zone)) = text.split_once('%') else {
        return Some(text.parse::<Ipv6Addr>().ok()?.to_string());
    };
    let ip: Ipv6Addr = ip.parse().ok()?;
    (is_name(zone) && !zone.is_empty()).then(|| format!("{ip}%{zone}"))
}

/// The text is not an [`Address`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an address: {why}")]
pub struct AddressError {
    text: String,
    why: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_address_is_read() {
        for (text, host, port) in [
            ("node7", "node7", 8888),
            ("node-7.rack_1:1", "node-7.rack_1", 1),
            ("10.0.0.7:0", "10.0.0.7", 0),
            (":9000", "", 9000),
            ("::1", "::1", 8888),
            ("[::1]", "::1", 8888),
            ("[fe80::1]:65535", "fe80::1", 65535),
            ("[fe80::1%eth0.7]:1", "fe80::1%eth0.7", 1),
        ] {
            let address = Address::with_default_port(text, 8888).unwrap();
            assert_eq!(address, Address::tcp(host, port), "{text}");
            assert_eq!(address.to_string().parse(), Ok(address));
        }
        assert_eq!("unix:a b".parse(), Ok(Address::Unix("a b".into())));
    }

    #[test]
    fn bad_forms_of_an_address_are_refused_with_the_reason() {
        for (text, reason) in [
            ("", "empty"),
            ("host:", "port"),
            ("host:66000", "port"),
            ("host:+1", "port"),
            ("a:1,b:2", "without a comma"),
            ("[::1]:1,[::1]:2", "without a comma"),
            ("host:1:2", "port"),
            ("[::1", "bracket"),
            ("[host]:1", "IPv6"),
            ("[fe80::1%]:1", "IPv6"),
            ("[::1%lo]:1", "only a link-local address"),
            ("::1%lo", "only a link-local address"),
            ("[fe80::1%a b]:1", "IPv6"),
            ("[::1]1", "colon"),
            ("a b:1", "neither"),
            ("unix:", "path"),
            ("unix", "path"),
            ("node7", "a port is needed"),
            ("::1", "a port is needed"),
            ("[::1]", "a port is needed"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(
                error.contains(reason) && error.contains(&format!("{text:?}")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_link_local_address_is_dialled_with_its_zone_and_proved_without_it() {
        use crate::socket::{Cancel, Target, TcpOptions};

        let address: Address = "[fe80::1%lo]:0".parse().unwrap();
        assert_eq!(address.server_name(), "fe80::1");
        let zoned = Address::of("[fe80::1%7]:9".parse().unwrap());
        assert_eq!(zoned.to_string(), "[fe80::1%7]:9");
        let unknown = Target::Address("[fe80::1%none9]:9".parse().unwrap());
        let limit = std::time::Duration::from_secs(60);
        let refused = unknown.connect(&TcpOptions::default(), limit, &Cancel::new());
        assert!(refused.is_err(), "there is no such interface");
    }
}
