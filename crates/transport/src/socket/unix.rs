//! Unix domain sockets: connecting, listening.
#![expect(clippy::disallowed_types, reason = "this module owns the Unix sockets")]

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

use super::cancel::{Cancel, cancelled_error};
use crate::host::{deadline, left};

/// Connects to the socket at `path`.
///
/// # Errors
/// The system's error: no such file, no listener, no permission.
pub fn connect_unix(path: &Path) -> io::Result<Socket> {
    UnixStream::connect(path).map(Socket::from)
}

/// As [`connect_unix`], within `limit`, and ends at once when it is
/// cancelled.
pub(crate) fn connect_unless(path: &Path, limit: Duration, cancel: &Cancel) -> io::Result<Socket> {
    let deadline = deadline(limit);
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    let address = SockAddr::unix(path)?;
    socket.set_nonblocking(true)?;
    let mut pause = Duration::from_millis(1);
    loop {
        match socket.connect(&address) {
            Ok(()) => break,
            // The listener's queue is full. The system has no notice for when it has room,
            // so this polls.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        left(deadline)?;
        if !cancel.pause(pause) {
            return Err(cancelled_error());
        }
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// Listens at `path`. A socket file without a listener, as a killed server leaves it, is
/// replaced. Any other file is left alone.
pub(crate) fn listen(path: &Path) -> io::Result<Socket> {
    let listener = match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        other => other?,
    };
    Ok(listener.into())
}

fn is_stale(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    is_socket && UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}
