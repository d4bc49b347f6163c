//! The raw byte stream that two threads share.

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A blocking byte stream, read by one thread while another writes.
///
/// Every call takes `&self`: one thread reads, one writes, and any thread may
/// [`shutdown`](Self::shutdown), which wakes both.
pub trait Duplex: Send + Sync + fmt::Debug + 'static {
    /// Blocks until there are bytes; 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` or `TimedOut` after the read timeout, else what the
    /// stream says.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// As [`read`](Self::read), but answers `WouldBlock` at once where
    /// nothing is there.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Blocks until [`read`](Self::read) would not, and takes nothing, so
    /// that an idle stream needs no buffer.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn wait_readable(&self) -> io::Result<()>;

    /// Whether [`read`](Self::read) would answer at once. A stream that
    /// cannot tell says no.
    fn is_readable(&self) -> bool {
        false
    }

    /// Writes some of the bytes; blocks until it can.
    ///
    /// # Errors
    /// `WouldBlock` or `TimedOut` when not one byte went out within the write
    /// timeout, else what the stream says.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// As [`write`](Self::write), but answers `WouldBlock` at once where not
    /// one byte fits. A stream that can't do so always answers that.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let _ = bytes;
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Ends one direction or both; wakes whoever waits in it.
    ///
    /// # Errors
    /// What the stream says. To end a direction that has ended is no error.
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;

    /// Limits each later read; `None` for no limit.
    ///
    /// # Errors
    /// What the stream says.
    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()>;

    /// Limits each later write; `None` for no limit.
    ///
    /// # Errors
    /// What the stream says.
    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()>;

    /// Who is at the other end.
    fn peer(&self) -> PeerAddress;

    /// The address and port of this end, where it has one.
    fn local(&self) -> Option<SocketAddr> {
        None
    }
}

/// Who is at the other end of a [`Duplex`].
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

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix => f.write_str("unix"),
            Self::Memory => f.write_str("memory"),
        }
    }
}

/// The writing end of a stream. It counts each byte as the system takes it, so
/// that a peer that takes one long frame slowly is told from one that takes
/// nothing.
#[derive(Debug)]
pub(crate) struct WriteHalf {
    stream: Arc<dyn Duplex>,
    written: Arc<AtomicU64>,
}

impl WriteHalf {
    pub(crate) fn new(stream: Arc<dyn Duplex>) -> Self {
        Self {
            stream,
            written: Arc::default(),
        }
    }

    /// What is written from now on counts here.
    pub(crate) fn count_in(&mut self, written: Arc<AtomicU64>) {
        self.written = written;
    }

    /// Writes all of the bytes.
    pub(crate) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        write_all(&*self.stream, bytes, |written| self.count(written))
    }

    /// Writes what the system takes without waiting, and says how much that
    /// was. An error is not told here: it comes up again when the rest is
    /// written.
    pub(crate) fn try_write_all(&self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.try_write(&bytes[sent..]) {
                Ok(written) if written > 0 => sent += written,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        self.count(sent);
        sent
    }

    /// Nothing more will be written.
    pub(crate) fn finish(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    fn count(&self, written: usize) {
        self.written.fetch_add(written as u64, Ordering::Relaxed);
    }
}

/// Writes all of the bytes, and tells of each part that the system has taken.
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

/// Whether an error is the read or write timeout of a stream: the kind
/// depends on the system.
pub fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
