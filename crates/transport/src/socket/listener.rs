//! Listening sockets, and how to wake whoever waits in one.

use std::io;
use std::net::Shutdown;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::Socket;

use crate::socket::address::Address;
use crate::socket::duplex::Duplex;
use crate::socket::memory::MemoryListener;
use crate::socket::tcp::TcpOptions;
use crate::socket::{tcp, unix};

/// A bound listening socket.
///
/// # Threads
/// [`accept`](Self::accept) blocks; [`close`](Self::close) ends it from another
/// thread. Dropping the listener of a Unix socket removes its file.
#[derive(Debug)]
pub struct Listener {
    place: Place,
    options: TcpOptions,
    closed: AtomicBool,
}

#[derive(Debug)]
enum Place {
    Tcp(Socket),
    Unix(Socket, PathBuf),
    Memory(MemoryListener),
}

impl Listener {
    /// Binds `address`; a host name with several addresses gives several
    /// listeners on one port.
    ///
    /// # Errors
    /// What the system says: in use, not permitted, no such host. A Unix
    /// socket file whose server is gone is replaced.
    pub fn bind(address: &Address, options: TcpOptions) -> io::Result<Vec<Self>> {
        let places = match address {
            Address::Tcp { host, port } => tcp::listen(host, *port)?.into_iter().map(Place::Tcp).collect(),
            Address::Unix(path) => vec![Place::Unix(unix::listen(path)?, path.clone())],
        };
        Ok(places
            .into_iter()
            .map(|place| Self::new(place, options))
            .collect())
    }

    /// A listener for in-memory connections.
    pub fn memory(listener: MemoryListener) -> Self {
        Self::new(Place::Memory(listener), TcpOptions::default())
    }

    fn new(place: Place, options: TcpOptions) -> Self {
        Self {
            place,
            options,
            closed: AtomicBool::new(false),
        }
    }

    /// The address it is bound to, with the port that the system chose;
    /// `None` for memory.
    pub fn local_address(&self) -> Option<Address> {
        match &self.place {
            Place::Tcp(socket) => {
                let address = socket.local()?;
                Some(Address::tcp(address.ip().to_string(), address.port()))
            }
            Place::Unix(_, path) => Some(Address::Unix(path.clone())),
            Place::Memory(_) => None,
        }
    }

    /// Blocks until somebody connects; `None` once it is closed.
    ///
    /// # Errors
    /// What the system says: out of descriptors, or a connection that ended
    /// before it was accepted. The listener goes on.
    pub fn accept(&self) -> io::Result<Option<Arc<dyn Duplex>>> {
        let accepted: io::Result<Arc<dyn Duplex>> = match &self.place {
            Place::Tcp(socket) => socket.accept().and_then(|(stream, _)| {
                self.options.apply(&stream)?;
                Ok(Arc::new(stream) as _)
            }),
            Place::Unix(socket, _) => socket.accept().map(|(stream, _)| Arc::new(stream) as _),
            Place::Memory(listener) => listener.accept().map(|stream| Arc::new(stream) as _),
        };
        if self.closed.load(Ordering::Acquire) {
            return Ok(None);
        }
        accepted.map(Some)
    }

    /// Ends [`accept`](Self::accept) for good: it answers `None` from now on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        match &self.place {
            // A listening socket that is shut down makes accept return at once.
            Place::Tcp(socket) | Place::Unix(socket, _) => drop(socket.shutdown(Shutdown::Both)),
            Place::Memory(listener) => listener.close(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Place::Unix(_, path) = &self.place {
            // It may be gone, or somebody else's by now: nothing to be done.
            let _ = std::fs::remove_file(path);
        }
    }
}
