//! The raw byte stream that two threads share.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A blocking byte stream that one thread reads while another writes. Any thread may call
/// [`shutdown`](Self::shutdown), which wakes both.
pub trait Duplex: Send + Sync + fmt::Debug + 'static {
    /// Blocks until there are bytes. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` or `TimedOut` after the read timeout, else the stream's error.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// As [`read`](Self::read), but fails with `WouldBlock` at once if there are no
    /// bytes.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Blocks until [`read`](Self::read) would return, but takes no bytes. So an idle stream needs
    /// no buffer.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn wait_readable(&self) -> io::Result<()>;

    /// True if [`read`](Self::read) would return at once. Default: false.
    fn is_readable(&self) -> bool {
        false
    }

    /// Writes some of the bytes. Blocks until the system takes some.
    ///
    /// # Errors
    /// `WouldBlock` or `TimedOut` if no byte was written within the write timeout, else
    /// the stream's error.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// As [`write`](Self::write), but fails with `WouldBlock` at once if no byte fits. Default: it
    /// always fails so.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let _ = bytes;
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Lets the system keep this many written bytes that it has not sent yet, or as many as the stream's kind
    /// allows at most, if it keeps fewer so far. For a peer that takes much, because the writer is woken less often.
    /// Does not block. Default: no effect.
    fn allow_unsent(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Ends one direction or both, and wakes threads that wait in it.
    ///
    /// # Errors
    /// The stream's error. Ending a direction twice is not an error.
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;

    /// Limits each later read; `None` for no limit.
    ///
    /// # Errors
    /// The stream's error.
    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()>;

    /// Limits each later write; `None` for no limit.
    ///
    /// # Errors
    /// The stream's error.
    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()>;

    /// The address of the peer.
    fn peer(&self) -> PeerAddress;

    /// The address and port of this end, if it has one.
    fn local(&self) -> Option<SocketAddr> {
        None
    }
}

/// The peer of a [`Duplex`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeerAddress {
    /// An IP address and port.
    Ip(SocketAddr),
    /// A process on this host, over a Unix socket.
    Unix,
    /// The other end of an in-memory pair.
    Memory,
}

impl PeerAddress {
    /// The part of the IP address by which limits count: of IPv6 the first 64 bits, because a host may choose
    /// the others. `None` if there is no IP address.
    pub fn host(self) -> Option<IpAddr> {
        match self {
            Self::Ip(address) => Some(match address.ip().to_canonical() {
                IpAddr::V6(ip) => (ip & Ipv6Addr::from_bits(u128::MAX << 64)).into(),
                ip => ip,
            }),
            Self::Unix | Self::Memory => None,
        }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix => f.write_str("unix"),
            Self::Memory => f.write_str("memory"),
        }
    }
}

/// The writing end of a stream. It counts each byte that the system takes, to tell a peer that takes
/// one long frame slowly from one that takes no bytes.
#[derive(Debug)]
pub(crate) struct WriteHalf {
    stream: Arc<dyn Duplex>,
    written: Arc<AtomicU64>,
    /// The bytes of [`write_now`](Self::write_now) that the system has not taken yet. They precede
    /// all other bytes.
    rest: Vec<u8>,
}

impl WriteHalf {
    pub(crate) fn new(stream: Arc<dyn Duplex>) -> Self {
        Self {
            stream,
            written: Arc::default(),
            rest: Vec::new(),
        }
    }

    /// From now on, adds the number of written bytes to `written`.
    pub(crate) fn count_in(&mut self, written: Arc<AtomicU64>) {
        self.written = written;
    }

    /// Writes the rest. Has to precede [`write_all`](Self::write_all) and [`finish`](Self::finish).
    pub(crate) fn write_rest(&mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.rest);
        self.write_all(&rest)
    }

    /// True if bytes of [`write_now`](Self::write_now) are left.
    pub(crate) fn has_rest(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Writes all of the bytes.
    pub(crate) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        write_all(&*self.stream, bytes, |written| self.count(written))
    }

    /// Writes as much as the system takes without blocking, and keeps the rest. An error is not
    /// reported: it occurs again when the rest is written.
    pub(crate) fn write_now(&mut self, bytes: &[u8]) {
        let mut sent = 0;
        while sent < bytes.len() && self.rest.is_empty() {
            match self.stream.try_write(&bytes[sent..]) {
                Ok(written) if written > 0 => sent += written,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        self.count(sent);
        self.rest.extend_from_slice(&bytes[sent..]);
    }

    /// As [`Duplex::allow_unsent`].
    pub(crate) fn allow_unsent(&self, bytes: u64) {
        self.stream.allow_unsent(bytes);
    }

    /// Ends the writing direction.
    pub(crate) fn finish(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    fn count(&self, written: usize) {
        self.written.fetch_add(written as u64, Ordering::Relaxed);
    }
}

/// Writes all of the bytes, and calls `each` with the length of each part that the system has
/// taken.
pub(crate) fn write_all(
    stream: &dyn Duplex,
    mut bytes: &[u8],
    mut each: impl FnMut(usize),
) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                each(written);
                bytes = &bytes[written..];
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// True if an error is the read or write timeout of a stream. Systems use two kinds for it.
pub fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_changes_its_address_within_its_network_is_one_host() {
        let host = |address: &str| PeerAddress::Ip(address.parse().unwrap()).host();
        assert_eq!(host("[2001:db8::1:2:3:4]:5"), host("[2001:db8::9]:1"));
        assert_ne!(host("[2001:db8:0:1::1]:5"), host("[2001:db8::1]:5"));
        assert_ne!(host("[::ffff:192.0.2.1]:5"), host("[::ffff:192.0.2.2]:5"));
        assert_eq!(host("[::ffff:192.0.2.1]:5"), host("192.0.2.1:6"));
        assert_eq!(PeerAddress::Unix.host(), None);
    }
}
