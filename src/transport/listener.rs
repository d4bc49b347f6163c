//! Listening sockets, and how to wake whoever waits in one.
#![expect(
    clippy::disallowed_types,
    reason = "accepting hands sockets to the rest of the crate as Duplex"
)]

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::memory::MemoryListener;
use super::{Address, Duplex, TcpOptions, tcp, unix};

/// A bound listening socket.
///
/// # Threads
/// [`accept`](Self::accept) blocks; a [`Waker`] ends it from another thread.
/// Dropping the listener of a Unix socket removes its file.
#[derive(Debug)]
pub struct Listener {
    socket: Arc<Socket>,
    options: TcpOptions,
    closed: Arc<AtomicBool>,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
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
        let sockets = match address {
            Address::Tcp { host, port } => tcp::listen(host, *port)?.into_iter().map(Socket::Tcp).collect(),
            Address::Unix(path) => vec![Socket::Unix(unix::listen(path)?, path.clone())],
        };
        Ok(sockets
            .into_iter()
            .map(|socket| Self::new(socket, options))
            .collect())
    }

    /// A listener for in-memory connections.
    pub fn memory(listener: MemoryListener) -> Self {
        Self::new(Socket::Memory(listener), TcpOptions::default())
    }

    fn new(socket: Socket, options: TcpOptions) -> Self {
        Self {
            socket: Arc::new(socket),
            options,
            closed: Arc::default(),
        }
    }

    /// The address it is bound to, with the port that the system chose;
    /// `None` for memory.
    pub fn local_address(&self) -> Option<Address> {
        match &*self.socket {
            Socket::Tcp(listener) => {
                let address = listener.local_addr().ok()?;
                Some(Address::tcp(address.ip().to_string(), address.port()))
            }
            Socket::Unix(_, path) => Some(Address::Unix(path.clone())),
            Socket::Memory(_) => None,
        }
    }

    /// Blocks until somebody connects; `None` once it was woken.
    ///
    /// # Errors
    /// What the system says: out of descriptors, or a connection that ended
    /// before it was accepted. The listener goes on.
    pub fn accept(&self) -> io::Result<Option<Arc<dyn Duplex>>> {
        let accepted: io::Result<Arc<dyn Duplex>> = match &*self.socket {
            Socket::Tcp(listener) => listener.accept().and_then(|(stream, _)| {
                self.options.apply(&stream)?;
                Ok(Arc::new(stream) as _)
            }),
            Socket::Unix(listener, _) => listener.accept().map(|(stream, _)| Arc::new(stream) as _),
            Socket::Memory(listener) => listener.accept().map(|stream| Arc::new(stream) as _),
        };
        if self.closed.load(Ordering::Acquire) {
            return Ok(None);
        }
        accepted.map(Some)
    }

    /// What ends [`accept`](Self::accept) from another thread.
    pub fn waker(&self) -> Waker {
        Waker {
            socket: Arc::clone(&self.socket),
            closed: Arc::clone(&self.closed),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // It may be gone, or somebody else's by now: nothing to be done.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(listener) => listener.fmt(f),
            Self::Unix(_, path) => write!(f, "UnixListener({})", path.display()),
            Self::Memory(_) => f.write_str("MemoryListener"),
        }
    }
}

/// Ends the [`Listener::accept`] of another thread.
#[derive(Clone, Debug)]
pub struct Waker {
    socket: Arc<Socket>,
    closed: Arc<AtomicBool>,
}

impl Waker {
    /// Ends it for good: `accept` answers `None` from now on.
    pub fn wake(&self) {
        self.closed.store(true, Ordering::Release);
        // A listening socket that is shut down makes accept return at once.
        let both = rustix::net::Shutdown::Both;
        let _ = match &*self.socket {
            Socket::Tcp(listener) => rustix::net::shutdown(listener, both),
            Socket::Unix(listener, _) => rustix::net::shutdown(listener, both),
            Socket::Memory(listener) => {
                listener.close();
                Ok(())
            }
        };
    }
}
