//! Unix domain sockets: connecting and listening.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use socket2::{Domain, SockAddr, Socket, Type};

use super::cancel::{Cancel, cancelled_error};
use crate::host::{deadline, left};

/// The number of connections that may wait to be accepted, as in the standard library.
const BACKLOG: i32 = 128;

/// Connects to the socket at `path`. Blocks for at most `limit` while the server has no room for another
/// connection.
///
/// # Errors
/// The system's error: no such file, no listener, no permission. [`TimedOut`](io::ErrorKind::TimedOut) after the
/// limit.
pub fn connect_unix(path: &Path, limit: Duration) -> io::Result<Socket> {
    connect_unless(path, limit, &Cancel::new())
}

/// As [`connect_unix`], and ends at once when `cancel` is cancelled.
pub(crate) fn connect_unless(path: &Path, limit: Duration, cancel: &Cancel) -> io::Result<Socket> {
    let deadline = deadline(limit);
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    let address = SockAddr::unix(path)?;
    socket.set_nonblocking(true)?;
    let mut pause = Duration::from_millis(1);
    loop {
        match socket.connect(&address) {
            Ok(()) => break,
            // The listener's queue is full. The system gives no notice when there is room, so this
            // polls.
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

/// Listens at `path`. A socket file without a listener, which a killed server leaves, is replaced;
/// any other file is left alone. If a `mode` is given, the file never has a wider one.
pub(crate) fn listen(path: &Path, mode: Option<u32>) -> io::Result<Socket> {
    let address = SockAddr::unix(path)?;
    let bind = || -> io::Result<Socket> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        if let Some(mode) = mode {
            // The file gets the mode of the socket, so it is set before the bind creates the file.
            fchmod(&socket, Mode::from_raw_mode(mode))?;
        }
        socket.bind(&address)?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    };
    let socket = match bind() {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
            std::fs::remove_file(path)?;
            bind()?
        }
        Err(_) if path.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && !is_socket(path) => {
            let why = "there is a file of this name that is not a socket";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        other => other?,
    };
    if let Some(mode) = mode {
        // Because the umask has removed bits at the bind.
        std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    Ok(socket)
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket())
}

fn is_stale(path: &Path) -> bool {
    // A refused connection means that no process listens at the file any more. One that has a full queue is in use.
    let limit = Duration::from_secs(1);
    is_socket(path)
        && connect_unless(path, limit, &Cancel::new())
            .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn listening_at_a_directory_fails() {
        let dir = tempfile::tempdir().unwrap();
        let error = listen(dir.path(), None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
        assert!(dir.path().is_dir());
    }

    #[test]
    fn listening_at_another_file_fails_and_leaves_it_alone() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "text").unwrap();
        let error = listen(file.path(), None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&file).unwrap(), b"text");
    }

    #[test]
    fn listening_where_a_process_listens_that_accepts_nobody_fails_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _listener = listen(&path, None).unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match connect_unless(&path, Duration::ZERO, &Cancel::new()) {
                Ok(stream) => waiting.push(stream),
                Err(full) => break full,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::TimedOut);
        let full = connect_unix(&path, Duration::from_millis(1)).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::TimedOut);
        let (told, listened) = crossbeam_channel::bounded(1);
        let of_thread = path.clone();
        crate::host::threads::spawn("listen", move || told.send(listen(&of_thread, None))).unwrap();
        let listened = listened.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(listened.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists());
    }

    /// Another user who watches the directory never finds a file that it may use.
    #[test]
    fn a_socket_file_with_a_mode_never_has_a_wider_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut widest = 0;
                while !done.load(Ordering::Relaxed) {
                    widest |= std::fs::metadata(&path).map_or(0, |file| file.mode() & 0o777);
                }
                widest
            });
            for _ in 0..1000 {
                drop(listen(&path, Some(0o600)).unwrap());
            }
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
            done.store(true, Ordering::Relaxed);
            assert_eq!(watch.join().unwrap() & !0o600, 0);
        });
        drop(listen(&path, Some(0o660)).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
    }
}
