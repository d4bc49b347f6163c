//! The spelling of addresses in lists of peers.
//!
//! libopflex splits `host:port` at the last colon and resolves the host without removing
//! brackets, so it needs an IPv6 address without them: `::1:8009`. The usual form is
//! `[::1]:8009`. Both forms are read, the form of libopflex is sent, and the usual form is
//! used inside the process.

use std::net::Ipv6Addr;

/// The address in the form of libopflex, without brackets.
pub(crate) fn bare(text: &str) -> String {
    match split(text) {
        Some((ip, port)) => format!("{ip}:{port}"),
        None => text.to_owned(),
    }
}

/// The address in the usual form, with brackets.
pub(crate) fn bracketed(text: &str) -> String {
    match split(text) {
        Some((ip, port)) => format!("[{ip}]:{port}"),
        None => text.to_owned(),
    }
}

/// The host of a peer's address. Log lines, connections and memory are limited by host, because each
/// connection has another port.
pub(crate) fn host(peer: &str) -> &str {
    peer.rsplit_once(':').map_or(peer, |(host, _)| host)
}

/// An IPv6 address in either spelling, and its port.
fn split(text: &str) -> Option<(Ipv6Addr, &str)> {
    let (host, port) = text.rsplit_once(':')?;
    // A host with a single bracket does not parse as an IPv6 address, so it stays unchanged.
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    Some((inner.unwrap_or(host).parse().ok()?, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ipv6_addresses_change_their_form() {
        for (text, there, here) in [
            ("[::1]:18031", "::1:18031", "[::1]:18031"),
            ("::1:18031", "::1:18031", "[::1]:18031"),
            ("2001:db8:0:0::7:8009", "2001:db8::7:8009", "[2001:db8::7]:8009"),
            ("10.0.0.1:8009", "10.0.0.1:8009", "10.0.0.1:8009"),
            ("localhost:8009", "localhost:8009", "localhost:8009"),
            ("unix:/run/[::1]:1", "unix:/run/[::1]:1", "unix:/run/[::1]:1"),
            ("x", "x", "x"),
        ] {
            assert_eq!(
                (bare(text).as_str(), bracketed(text).as_str()),
                (there, here),
                "{text}"
            );
        }
    }
}
