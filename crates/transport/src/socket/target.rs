//! The target of a client's connection.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::address::Address;
use super::cancel::Cancel;
use super::duplex::Duplex;
use super::tcp::TcpOptions;
use super::{tcp, unix};
use crate::socket::memory::MemoryListener;

/// The target of a client: an address, or a listener in this process.
#[derive(Clone, Debug)]
pub enum Target {
    /// An address.
    Address(Address),
    /// A listener in memory, for tests.
    Memory(MemoryListener),
}

impl Target {
    /// Connects. Blocks for at most `limit`, or until `cancel` is cancelled.
    pub fn connect(
        &self,
        options: &TcpOptions,
        limit: Duration,
        cancel: &Cancel,
    ) -> io::Result<Arc<dyn Duplex>> {
        Ok(match self {
            Self::Address(Address::Tcp { host, port }) => {
                Arc::new(tcp::connect_unless(host, *port, options, limit, cancel)?)
            }
            Self::Address(Address::Unix(path)) => Arc::new(unix::connect_unless(path, limit, cancel)?),
            Self::Memory(listener) => Arc::new(listener.connect_unless(limit, cancel)?),
        })
    }

    /// A target for each address of the name of this one, each with its time limit for
    /// [`connect`](Self::connect). A name with several addresses is several servers: a caller tries one after
    /// the other until one serves it. Blocks until the system has looked the name up, for at most `limit`, or
    /// until `cancel` is cancelled.
    pub fn addresses(&self, limit: Duration, cancel: &Cancel) -> io::Result<Vec<(Self, Duration)>> {
        let Self::Address(Address::Tcp { host, port }) = self else {
            return Ok(vec![(self.clone(), limit)]);
        };
        let found = tcp::addresses(host, *port, limit, cancel)?.into_iter();
        let target = |(address, limit)| (Self::Address(Address::of(address)), limit);
        Ok(found.map(target).collect())
    }

    /// The name that the server has to prove by default.
    pub fn server_name(&self) -> &str {
        match self {
            Self::Address(address) => address.server_name(),
            Self::Memory(_) => "localhost",
        }
    }
}

impl From<Address> for Target {
    fn from(address: Address) -> Self {
        Self::Address(address)
    }
}

impl From<&MemoryListener> for Target {
    fn from(listener: &MemoryListener) -> Self {
        Self::Memory(listener.clone())
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Memory(listener) => listener.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_types, reason = "a listener that never accepts")]
    use super::*;
    use crate::host::threads;

    const LONG: Duration = Duration::from_secs(60);

    /// Fills the queue of a listener that never accepts, so that the next
    /// attempt gets no answer.
    fn black_hole() -> (socket2::Socket, Vec<socket2::Socket>, Address) {
        let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let any: std::net::SocketAddr = ([127, 0, 0, 1], 0).into();
        listener.bind(&any.into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        loop {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            if socket
                .connect_timeout(&address, Duration::from_millis(200))
                .is_err()
            {
                break;
            }
            waiting.push(socket);
        }
        let port = address.as_socket().unwrap().port();
        (listener, waiting, Address::tcp("127.0.0.1", port))
    }

    #[test]
    fn an_attempt_without_answer_ends_at_its_limit_and_when_cancelled() {
        let (_listener, _waiting, address) = black_hole();
        let target = Target::Address(address);
        let options = TcpOptions::default();
        let limited = target.connect(&options, Duration::from_millis(20), &Cancel::new());
        assert_eq!(limited.unwrap_err().kind(), io::ErrorKind::TimedOut);

        let cancel = Cancel::new();
        let cancelled = cancel.clone();
        let thread = threads::spawn("t", move || target.connect(&options, LONG, &cancelled)).unwrap();
        cancel.cancel();
        assert_eq!(
            thread.join().unwrap().unwrap_err().kind(),
            io::ErrorKind::Interrupted
        );
    }

    #[test]
    fn a_full_unix_listener_is_waited_for_until_cancelled() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        let address = socket2::SockAddr::unix(&path).unwrap();
        listener.bind(&address).unwrap();
        listener.listen(0).unwrap();
        let _waiting = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let target = Target::Address(Address::Unix(path));
        let options = TcpOptions::default();
        let limited = target.connect(&options, Duration::from_millis(20), &Cancel::new());
        assert_eq!(limited.unwrap_err().kind(), io::ErrorKind::TimedOut);

        let cancel = Cancel::new();
        let cancelled = cancel.clone();
        let thread = threads::spawn("t", move || target.connect(&options, LONG, &cancelled)).unwrap();
        cancel.cancel();
        assert_eq!(
            thread.join().unwrap().unwrap_err().kind(),
            io::ErrorKind::Interrupted
        );
    }

    #[test]
    fn a_full_memory_listener_is_waited_for_until_cancelled() {
        let target = Target::Memory(MemoryListener::new());
        let options = TcpOptions::default();
        let mut waiting = Vec::new();
        for _ in 0..64 {
            waiting.push(target.connect(&options, LONG, &Cancel::new()).unwrap());
        }
        let limited = target.connect(&options, Duration::from_millis(20), &Cancel::new());
        assert_eq!(limited.unwrap_err().kind(), io::ErrorKind::TimedOut);

        let cancel = Cancel::new();
        let cancelled = cancel.clone();
        let thread = threads::spawn("t", move || target.connect(&options, LONG, &cancelled)).unwrap();
        cancel.cancel();
        assert_eq!(
            thread.join().unwrap().unwrap_err().kind(),
            io::ErrorKind::Interrupted
        );
    }

    #[test]
    fn a_port_without_a_listener_is_refused() {
        // It is bound, and does not listen, so no other program gets the port.
        let held = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        held.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into())
            .unwrap();
        let port = held.local_addr().unwrap().as_socket().unwrap().port();
        let target = Target::Address(Address::tcp("127.0.0.1", port));
        let refused = target.connect(&TcpOptions::default(), LONG, &Cancel::new());
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
