//! Unix domain sockets as [`Duplex`].
#![expect(clippy::disallowed_types, reason = "this module owns the Unix sockets")]

use std::io;
use std::net::Shutdown;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::{Domain, SockAddr, Socket, Type};

use super::tcp::{at_least_a_tick, cancelled_error, ended, received, sent};
use super::{Cancel, Duplex, PeerAddress};

/// Connects to the socket at `path`.
///
/// # Errors
/// What the system says: no such file, nobody listens, no permission.
pub fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path)
}

/// As [`connect_unix`], within `limit`, and ends at once when it is
/// cancelled.
pub(super) fn connect_unless(path: &Path, limit: Duration, cancel: &Cancel) -> io::Result<UnixStream> {
    #[expect(clippy::disallowed_methods, reason = "the attempt has a time limit")]
    let now = Instant::now;
    let deadline = super::deadline(limit);
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    let address = SockAddr::unix(path)?;
    socket.set_nonblocking(true)?;
    let mut pause = Duration::from_millis(1);
    loop {
        match socket.connect(&address) {
            Ok(()) => break,
            // The listener's queue is full, and nothing tells when it no
            // longer is.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        if now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if !cancel.pause(pause) {
            return Err(cancelled_error());
        }
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    socket.set_nonblocking(false)?;
    Ok(socket.into())
}

/// Listens at `path`. A socket file that nobody listens at any more, as a
/// killed server leaves it, is replaced; any other file is left alone.
pub(super) fn listen(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }
}

fn is_stale(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    is_socket && UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

impl Duplex for UnixStream {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        received(|| recv(self, &mut *buffer, RecvFlags::empty()))
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        received(|| recv(self, &mut *buffer, RecvFlags::DONTWAIT))
    }

    fn wait_readable(&self) -> io::Result<()> {
        let mut one = [0u8; 1];
        received(|| recv(self, &mut one, RecvFlags::PEEK)).map(drop)
    }

    fn is_readable(&self) -> bool {
        let mut one = [0u8; 1];
        received(|| recv(self, &mut one, RecvFlags::PEEK | RecvFlags::DONTWAIT)).is_ok()
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        io::Write::write(&mut &*self, bytes)
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        sent(|| send(self, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        ended(UnixStream::shutdown(self, how))
    }

    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        UnixStream::set_read_timeout(self, at_least_a_tick(limit))
    }

    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        UnixStream::set_write_timeout(self, at_least_a_tick(limit))
    }

    fn peer(&self) -> PeerAddress {
        PeerAddress::Unix
    }
}
