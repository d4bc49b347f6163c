//! A byte stream with a deadline.

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ssntp_transport::{Duplex, PeerAddress, deadline, is_timeout, left, locked};

/// A stream with one deadline for all its blocking reads and writes together, so that a peer
/// cannot extend the time by sending or reading single bytes. `set_read_timeout` and
/// `set_write_timeout` have no effect.
pub(super) struct Limited {
    stream: Arc<dyn Duplex>,
    deadline: Mutex<Instant>,
    is_cancelled: Box<dyn Fn() -> bool + Send + Sync>,
}

/// The longest time for which a write blocks before it checks `is_cancelled`.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The shortest time limit of a read or write, because sockets treat zero as no limit.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);

impl Limited {
    /// A stream whose reads and writes fail after `limit`. Its owner can end a blocked read earlier by a
    /// shutdown, and a blocked write by letting `is_cancelled` return true.
    pub(super) fn new(
        stream: Arc<dyn Duplex>,
        limit: Duration,
        is_cancelled: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            stream,
            deadline: Mutex::new(deadline(limit)),
            is_cancelled: Box::new(is_cancelled),
        }
    }

    /// Sets the deadline for further reads and writes to `limit` from now.
    pub(super) fn restart(&self, limit: Duration) {
        *locked(&self.deadline) = deadline(limit);
    }

    pub(super) fn deadline(&self) -> Instant {
        *locked(&self.deadline)
    }

    fn left(&self) -> io::Result<Duration> {
        left(self.deadline()).map(|left| left.max(MIN_TIMEOUT))
    }

    /// The stream, whose read timeout is the time that is left.
    fn for_reading(&self) -> io::Result<&dyn Duplex> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        Ok(&*self.stream)
    }
}

impl fmt::Debug for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Limited").field(&self.stream).finish()
    }
}

impl Duplex for Limited {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.for_reading()?.read(buffer)
    }
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.try_read(buffer)
    }
    fn wait_readable(&self) -> io::Result<()> {
        self.for_reading()?.wait_readable()
    }
    fn is_readable(&self) -> bool {
        self.stream.is_readable()
    }
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.stream
                .set_write_timeout(Some(self.left()?.min(CHECK_INTERVAL)))?;
            match self.stream.write(bytes) {
                Err(e) if is_timeout(&e) && !(self.is_cancelled)() => {}
                written => return written,
            }
        }
    }
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.try_write(bytes)
    }
    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.stream.shutdown(how)
    }
    fn set_read_timeout(&self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }
    fn set_write_timeout(&self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }
    fn peer(&self) -> PeerAddress {
        self.stream.peer()
    }
    fn local(&self) -> Option<SocketAddr> {
        self.stream.local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssntp_transport::{memory, threads};

    #[test]
    fn single_bytes_do_not_extend_the_deadline() {
        let (ours, theirs) = memory::pair();
        let dripping = threads::spawn("t", move || {
            while theirs.write(b"x").is_ok() {
                std::thread::yield_now();
            }
        });
        let limited = Limited::new(Arc::new(ours), Duration::from_millis(50), || false);
        let error = loop {
            match limited.read(&mut [0; 1]) {
                Ok(_) => {}
                Err(e) => break e,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        limited.restart(Duration::from_secs(60));
        assert_eq!(limited.read(&mut [0; 1]).unwrap(), 1);
        drop(limited);
        dripping.unwrap().join().unwrap();
    }

    #[test]
    fn a_write_to_a_peer_that_does_not_read_can_be_given_up() {
        let (ours, _theirs) = memory::pair();
        let limited = Limited::new(Arc::new(ours), Duration::MAX, || true);
        let full = vec![0; 1 << 24];
        let error = loop {
            match limited.write(&full) {
                Ok(_) => {}
                Err(e) => break e,
            }
        };
        assert!(is_timeout(&error), "{error}");
    }
}
