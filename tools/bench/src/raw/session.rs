//! One connection without the public client.

use std::fmt;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustls::NamedGroup;
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::pki_types::ServerName;
use ssntp::transport::{Address, TcpOptions};
use ssntp_transport::tls::Connector;
use ssntp_transport::{BufferPool, Duplex, Halves, Outgoing, Tried, connect_tcp, connect_unix};

use super::{LIMIT, Side, System, Wire, now};
use crate::failure::Failure;

/// The socket of a session, to poll it.
pub(crate) type Socket = Arc<dyn Pollable>;

pub(crate) trait Pollable: AsFd + Send + Sync + fmt::Debug {}

impl<T: AsFd + Send + Sync + fmt::Debug> Pollable for T {}

/// Connects to one system as one side.
#[derive(Debug)]
pub(crate) struct Dialer {
    connector: Connector,
    wire: &'static dyn Wire,
    side: Side,
    pool: BufferPool,
}

impl Dialer {
    pub(crate) fn new(system: System, side: Side, connector: Connector, pool: BufferPool) -> Self {
        Self {
            connector,
            wire: system.wire(),
            side,
            pool,
        }
    }

    /// A connection with TLS, before the greeting.
    pub(crate) fn tls(&self, address: &Address) -> Result<Session, Failure> {
        let (stream, socket) = match address {
            Address::Tcp { host, port } => shared(connect_tcp(host, *port, &TcpOptions::default(), LIMIT)?),
            Address::Unix(path) => shared(connect_unix(path, LIMIT)?),
            other => return Err(Failure::new(format!("{other} is not supported here"))),
        };
        stream.set_read_timeout(Some(LIMIT))?;
        self.wire.before_tls(&*stream)?;
        let secured = self
            .connector
            .connect(stream, address.server_name(), &self.pool, now() + LIMIT);
        Ok(Session {
            halves: secured?.halves,
            socket,
            wire: self.wire,
        })
    }

    /// A session that the server has accepted.
    pub(crate) fn connect(&self, address: &Address) -> Result<Session, Failure> {
        let mut session = self.tls(address)?;
        let stream = session.stream();
        stream.set_read_timeout(Some(LIMIT))?;
        self.wire.greet(&mut session.halves, self.side)?;
        stream.set_read_timeout(None)?;
        Ok(session)
    }

    /// This number of sessions, made by a few threads.
    pub(crate) fn connect_many(&self, address: &Address, count: usize) -> Result<Vec<Session>, Failure> {
        const THREADS: usize = 8;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS.min(count))
                .map(|thread| {
                    let share = (count - thread).div_ceil(THREADS);
                    scope.spawn(move || {
                        (0..share)
                            .map(|_| self.connect(address))
                            .collect::<Result<Vec<_>, _>>()
                    })
                })
                .collect();
            let mut sessions = Vec::with_capacity(count);
            for thread in threads {
                sessions.extend(thread.join().map_err(|_| Failure::new("a client panicked"))??);
            }
            Ok(sessions)
        })
    }
}

/// The stream for TLS, and the same stream to poll it.
fn shared<S: Duplex + AsFd>(stream: S) -> (Arc<dyn Duplex>, Socket) {
    let stream = Arc::new(stream);
    (Arc::clone(&stream) as _, stream)
}

/// One session. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Session {
    halves: Halves,
    socket: Socket,
    wire: &'static dyn Wire,
}

impl Session {
    /// The raw stream, so that another thread can shut it down.
    pub(crate) fn stream(&self) -> Arc<dyn Duplex> {
        Arc::clone(&self.halves.stream)
    }

    pub(crate) fn socket(&self) -> Socket {
        Arc::clone(&self.socket)
    }

    /// Sends encoded publications; returns false if the connection has ended.
    pub(crate) fn send(&mut self, batch: &Outgoing) -> bool {
        self.halves.transmit.transmit(std::slice::from_ref(batch)).is_ok()
    }

    /// As [`send`](Self::send), and returns the write buffer to the pool.
    pub(crate) fn send_once(&mut self, batch: &Outgoing) -> bool {
        let sent = self.send(batch);
        self.halves.transmit.idle();
        sent
    }

    /// Sends as much of a batch as the socket has room for. [`flush`](Self::flush) sends the
    /// rest.
    pub(crate) fn try_send(&mut self, batch: &Outgoing) -> Tried {
        self.halves.transmit.try_transmit(batch)
    }

    /// Sends the rest of a batch; returns false if the connection has ended.
    pub(crate) fn flush(&mut self) -> bool {
        self.halves.transmit.flush().is_ok()
    }

    /// Waits for bytes and hands over the payloads of complete deliveries; returns false if the
    /// connection has ended.
    pub(crate) fn receive(&mut self, each: &mut dyn FnMut(&[u8])) -> bool {
        match self.halves.receive.receive(&mut self.halves.inbox) {
            Ok(received) if !received.end => {}
            _ => return false,
        }
        let bytes = self.halves.inbox.bytes_mut();
        let Some(used) = self.wire.deliveries(bytes, each) else {
            return false;
        };
        // An incomplete delivery moves to the front, so that the same buffer can be used again.
        let left = bytes.len() - used;
        bytes.copy_within(used.., 0);
        bytes.truncate(left);
        true
    }

    /// Sets the time limit of each later [`receive`](Self::receive).
    pub(crate) fn limit_receive(&self, limit: Option<Duration>) {
        let _ = self.halves.stream.set_read_timeout(limit);
    }

    /// Ends the session in order.
    pub(crate) fn finish(mut self) {
        let _ = self.halves.transmit.finish();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.halves.stream.shutdown(Shutdown::Both);
    }
}

/// The tickets of a returning client, and the number of used ones.
#[derive(Debug)]
pub(crate) struct Tickets {
    kept: ClientSessionMemoryCache,
    used: AtomicU64,
}

impl Default for Tickets {
    fn default() -> Self {
        Self {
            kept: ClientSessionMemoryCache::new(32),
            used: AtomicU64::new(0),
        }
    }
}

impl Tickets {
    /// The number of handshakes that began with a ticket.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, server_name: ServerName<'static>, group: NamedGroup) {
        self.kept.set_kx_hint(server_name, group);
    }

    fn kx_hint(&self, server_name: &ServerName<'_>) -> Option<NamedGroup> {
        self.kept.kx_hint(server_name)
    }

    fn set_tls12_session(&self, server_name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.kept.set_tls12_session(server_name, value);
    }

    fn tls12_session(&self, server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.kept.tls12_session(server_name)
    }

    fn remove_tls12_session(&self, server_name: &ServerName<'static>) {
        self.kept.remove_tls12_session(server_name);
    }

    fn insert_tls13_ticket(&self, server_name: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.kept.insert_tls13_ticket(server_name, value);
    }

    fn take_tls13_ticket(&self, server_name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let ticket = self.kept.take_tls13_ticket(server_name);
        self.used
            .fetch_add(u64::from(ticket.is_some()), Ordering::Relaxed);
        ticket
    }
}
