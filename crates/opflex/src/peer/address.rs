//! How lists of peers spell an address.
//!
//! libopflex splits `host:port` at the last colon and looks the rest up as it
//! is, so that an IPv6 address has to stand there bare: `::1:8009`. Everybody
//! else writes `[::1]:8009`. Both are read, the first is written, and inside the
//! process the second is used.

use std::net::Ipv6Addr;

/// The address as libopflex splits it.
pub(crate) fn bare(text: &str) -> String {
    match split(text) {
        Some((ip, port)) => format!("{ip}:{port}"),
        None => text.to_owned(),
    }
}

/// The address as everybody else writes it.
pub(crate) fn bracketed(text: &str) -> String {
    match split(text) {
        Some((ip, port)) => format!("[{ip}]:{port}"),
        None => text.to_owned(),
    }
}

/// The host of a peer's address. Limits of log lines and connections are counted by host:
/// each connection has a port of its own.
pub(crate) fn host(peer: &str) -> String {
    peer.rsplit_once(':').map_or(peer, |(host, _)| host).to_owned()
}

/// An IPv6 address in either spelling, and its port.
fn split(text: &str) -> Option<(Ipv6Addr, &str)> {
    let (host, port) = text.rsplit_once(':')?;
    // Brackets that do not match are left alone, and so are no IPv6 address.
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    Some((inner.unwrap_or(host).parse().ok()?, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_is_read_in_both_spellings_and_nothing_else_is_touched() {
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
