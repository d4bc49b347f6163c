//! The system's stream sockets, TCP and Unix, as [`Duplex`].

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::Socket;

use super::duplex::{Duplex, PeerAddress};
use super::tcp;

impl Duplex for Socket {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        received(self, buffer, RecvFlags::empty())
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        received(self, buffer, RecvFlags::DONTWAIT)
    }

    fn wait_readable(&self) -> io::Result<()> {
        received(self, &mut [0], RecvFlags::PEEK).map(drop)
    }

    fn is_readable(&self) -> bool {
        received(self, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok()
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        sent(self, bytes, SendFlags::empty())
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        sent(self, bytes, SendFlags::DONTWAIT)
    }

    fn allow_unsent(&self, bytes: u64) {
        tcp::allow_unsent(self, bytes);
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match Socket::shutdown(self, how) {
            // It is no error if the direction has ended before.
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(()),
            other => other,
        }
    }

    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        Socket::set_read_timeout(self, at_least_a_tick(limit))
    }

    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        Socket::set_write_timeout(self, at_least_a_tick(limit))
    }

    fn peer(&self) -> PeerAddress {
        if self.local_addr().is_ok_and(|address| address.is_unix()) {
            return PeerAddress::Unix;
        }
        // The address of a peer that has disconnected is unknown to the system.
        let address = self.peer_addr().ok().and_then(|address| address.as_socket());
        PeerAddress::Ip(address.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into()))
    }

    fn local(&self) -> Option<SocketAddr> {
        self.local_addr().ok()?.as_socket()
    }
}

/// Receives, again if a signal interrupts it.
fn received(socket: &Socket, buffer: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    let (_, len) = retry_on_intr(|| recv(socket, &mut *buffer, flags))?;
    Ok(len)
}

/// Sends, again if a signal interrupts it. If the peer has ended, the result is an error instead of
/// the signal SIGPIPE.
fn sent(socket: &Socket, bytes: &[u8], flags: SendFlags) -> io::Result<usize> {
    Ok(retry_on_intr(|| {
        send(socket, bytes, flags | SendFlags::NOSIGNAL)
    })?)
}

/// The limit, but at least a millisecond: for the system a timeout of zero is no timeout.
fn at_least_a_tick(limit: Option<Duration>) -> Option<Duration> {
    limit.map(|limit| limit.max(Duration::from_millis(1)))
}
