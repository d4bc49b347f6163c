//! Listening sockets. Another thread can end a blocked accept.

use std::io;
use std::net::{Ipv4Addr, Shutdown};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::Socket;

use super::address::Address;
use super::duplex::{Duplex, PeerAddress};
use super::tcp::TcpOptions;
use super::{tcp, unix};
use crate::socket::memory::MemoryListener;

/// A bound listening socket.
///
/// # Threads
/// [`accept`](Self::accept) blocks; [`close`](Self::close) ends it from another thread. Closing or
/// dropping the listener of a Unix socket removes the socket's file.
#[derive(Debug)]
pub struct Listener {
    bound: Bound,
    options: TcpOptions,
    closed: AtomicBool,
}

#[derive(Debug)]
enum Bound {
    Tcp(Socket),
    /// With the socket's file, and the device and the inode of that.
    Unix(Socket, PathBuf, Option<(u64, u64)>),
    Memory(MemoryListener),
}

impl Listener {
    /// Binds `address`. A host name with several addresses results in a listener for each of them, all on
    /// one port. The socket file of a Unix server that has ended is replaced.
    ///
    /// # Errors
    /// The system's error: address in use, no permission, no such host.
    pub fn bind(address: &Address, options: TcpOptions) -> io::Result<Vec<Self>> {
        Self::bind_with_mode(address, options, None)
    }

    /// As [`bind`](Self::bind). If a `mode` is given, the file of a Unix socket is made with it, so it never
    /// has a wider one.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_with_mode(
        address: &Address,
        options: TcpOptions,
        mode: Option<u32>,
    ) -> io::Result<Vec<Self>> {
        let bound = match address {
            Address::Tcp { host, port } => tcp::listen(host, *port)?.into_iter().map(Bound::Tcp).collect(),
            Address::Unix(path) => {
                let socket = unix::listen(path, mode)?;
                vec![Bound::Unix(socket, path.clone(), file_id(path))]
            }
        };
        Ok(bound.into_iter().map(|bound| Self::new(bound, options)).collect())
    }

    /// A listener for in-memory connections.
    pub fn memory(listener: MemoryListener) -> Self {
        Self::new(Bound::Memory(listener), TcpOptions::default())
    }

    fn new(bound: Bound, options: TcpOptions) -> Self {
        Self {
            bound,
            options,
            closed: AtomicBool::new(false),
        }
    }

    /// The address that the listener is bound to, with the port that the system chose. `None` for memory.
    pub fn local_address(&self) -> Option<Address> {
        match &self.bound {
            Bound::Tcp(socket) => socket.local().map(Address::of),
            Bound::Unix(_, path, _) => Some(Address::Unix(path.clone())),
            Bound::Memory(_) => None,
        }
    }

    /// Blocks until a peer connects, and returns its stream and its address. Returns `None` once the listener is closed.
    ///
    /// # Errors
    /// The system's error: no descriptors left, or a connection that ended before it was accepted.
    /// The listener can accept again.
    pub fn accept(&self) -> io::Result<Option<(Arc<dyn Duplex>, PeerAddress)>> {
        let accepted: io::Result<(Arc<dyn Duplex>, PeerAddress)> = match &self.bound {
            Bound::Tcp(socket) => socket.accept().and_then(|(stream, peer)| {
                let peer = peer.as_socket().unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into());
                self.options.apply(&stream)?;
                Ok((Arc::new(stream) as _, PeerAddress::Ip(peer)))
            }),
            Bound::Unix(socket, ..) => socket
                .accept()
                .map(|(stream, _)| (Arc::new(stream) as _, PeerAddress::Unix)),
            Bound::Memory(listener) => listener
                .accept()
                .map(|stream| (Arc::new(stream) as _, PeerAddress::Memory)),
        };
        // After the accept, because `close` makes it return with an error or one last stream.
        if self.closed.load(Ordering::Acquire) {
            return Ok(None);
        }
        accepted.map(Some)
    }

    /// Ends [`accept`](Self::accept), which returns `None` from now on.
    pub fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Bound::Unix(_, path, file) = &self.bound {
            // First, because the next server may use the path once this one does not listen, and its file
            // must not be removed; nor that of a server that has begun after somebody removed this one's.
            if file.is_some() && file_id(path) == *file {
                let _ = std::fs::remove_file(path);
            }
        }
        match &self.bound {
            // On Linux, accept returns at once if its socket is shut down.
            Bound::Tcp(socket) | Bound::Unix(socket, ..) => drop(socket.shutdown(Shutdown::Both)),
            Bound::Memory(listener) => listener.close(),
        }
    }
}

/// The device and the inode of a file.
fn file_id(path: &Path) -> Option<(u64, u64)> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

impl Drop for Listener {
    fn drop(&mut self) {
        if matches!(self.bound, Bound::Unix(..)) {
            self.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_removes_its_own_file_and_not_that_of_another_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listen = || Listener::bind(&Address::Unix(path.clone()), TcpOptions::default()).unwrap();
        let first = listen();
        std::fs::remove_file(&path).unwrap();
        let second = listen();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }
}
