//! TCP: options, connecting, listening.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use super::cancel::{Cancel, cancelled_error};
use super::duplex::Duplex;
use super::lookup;
use crate::host::{deadline, left};

/// Options of every TCP connection. TCP_NODELAY is always on, because frames are coalesced
/// before they reach the socket. After 30 s of silence the kernel probes the peer, which is dead after three probes
/// 10 s apart. The congestion control is the system's. Only what is dialled or listened at
/// by a loopback address has Linux's `reno`, which does not pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// The time that sent data may stay unacknowledged before the connection counts as dead
    /// (TCP_USER_TIMEOUT). Default: 30 s.
    pub unacknowledged: Option<Duration>,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            unacknowledged: Some(Duration::from_secs(30)),
        }
    }
}

impl TcpOptions {
    pub(crate) fn apply(&self, socket: &Socket) -> io::Result<()> {
        socket.set_tcp_nodelay(true)?;
        let probes = TcpKeepalive::new()
            .with_time(Duration::from_secs(30))
            .with_interval(Duration::from_secs(10))
            .with_retries(3);
        socket.set_tcp_keepalive(&probes)?;
        socket.set_tcp_user_timeout(self.unacknowledged)
    }
}

/// Turns pacing off at loopback addresses. Between two ends on one host no packet is lost and there
/// is no other traffic, so a congestion control that paces, such as BBR, would only wait for timers.
/// A connection that exists is paced until its end, whatever its congestion control is then. So this is for
/// a socket that is not connected yet, or for a listener, whose connections inherit the setting.
fn disable_pacing(socket: &Socket, address: SocketAddr) {
    if address.ip().to_canonical().is_loopback() {
        // Every Linux has reno. If setting it is not permitted, the system's default stays.
        let _ = socket.set_tcp_congestion(b"reno");
    }
}

/// The number of connections that may wait to be accepted. The standard library allows 128, which
/// makes a burst of newcomers wait until they send their SYN again.
const BACKLOG: i32 = 4096;

/// Connects to the first address of `host` that answers. `limit` is the time for the look-up of the
/// name and all addresses. Blocks.
///
/// # Errors
/// The last address's error, or `NotFound` if the name has no address.
pub fn connect_tcp(host: &str, port: u16, options: &TcpOptions, limit: Duration) -> io::Result<Socket> {
    connect_unless(host, port, options, limit, &Cancel::new())
}

/// As [`connect_tcp`], and ends at once when `cancel` is cancelled.
pub fn connect_unless(
    host: &str,
    port: u16,
    options: &TcpOptions,
    limit: Duration,
    cancel: &Cancel,
) -> io::Result<Socket> {
    let mut last = no_address(host);
    for (address, share) in addresses(host, port, limit, cancel)? {
        match connect_one(address, share, cancel) {
            Ok(stream) => {
                options.apply(&stream)?;
                return Ok(stream);
            }
            Err(e) => last = e,
        }
        if cancel.is_cancelled() {
            break;
        }
    }
    Err(last)
}

/// The addresses of a host, each with its time limit for connecting; an empty host is this one.
pub(super) fn addresses(
    host: &str,
    port: u16,
    limit: Duration,
    cancel: &Cancel,
) -> io::Result<Vec<(SocketAddr, Duration)>> {
    let host = if host.is_empty() { "localhost" } else { host };
    let deadline = deadline(limit);
    let found = lookup::addresses(host, port, deadline, cancel)?;
    if found.is_empty() {
        return Err(no_address(host));
    }
    // Each has its share of the time, so that one that drops packets leaves time for the others.
    let share = left(deadline)? / u32::try_from(found.len()).unwrap_or(u32::MAX);
    Ok(found.into_iter().map(|address| (address, share)).collect())
}

fn connect_one(address: SocketAddr, limit: Duration, cancel: &Cancel) -> io::Result<Socket> {
    let (pipe, _watch) = cancel.pipe()?;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    bound_buffers(&socket, MOST_UNSENT)?;
    disable_pacing(&socket, address);
    // Non-blocking, so that the wait ends at the limit or when it is cancelled.
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::from(address)) {
        Err(e) if e.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {
            wait_writable(&socket, &pipe, deadline(limit))?;
            if let Some(e) = socket.take_error()? {
                return Err(e);
            }
        }
        other => other?,
    }
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// Waits until the socket's connection attempt is over.
fn wait_writable(socket: &Socket, cancelled: &io::PipeReader, deadline: Instant) -> io::Result<()> {
    loop {
        // A time that does not fit is longer than any process runs, so `None`, which means no limit,
        // is right.
        let left = Timespec::try_from(left(deadline)?).ok();
        let mut polled = [
            PollFd::new(socket, PollFlags::OUT),
            PollFd::new(cancelled, PollFlags::IN),
        ];
        match poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        if !polled[1].revents().is_empty() {
            return Err(cancelled_error());
        }
        if !polled[0].revents().is_empty() {
            return Ok(());
        }
    }
}

fn no_address(host: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"))
}

/// The time limit for finding the addresses of a name at which to listen.
const LISTEN_LOOKUP: Duration = Duration::from_secs(10);

/// Listens at every address of `host`; an empty host is every interface, in both IP versions.
pub(crate) fn listen(host: &str, port: u16) -> io::Result<Vec<Socket>> {
    let addresses = if host.is_empty() {
        vec![([0u16; 8], port).into()]
    } else {
        lookup::addresses(host, port, deadline(LISTEN_LOOKUP), &Cancel::new())?
    };
    listen_at(host, addresses)
}

fn listen_at(host: &str, addresses: Vec<SocketAddr>) -> io::Result<Vec<Socket>> {
    let mut listeners: Vec<Socket> = Vec::new();
    let mut last = no_address(host);
    for mut address in addresses {
        let is_chosen = address.port() == 0;
        // A port chosen by the system is chosen once for all addresses.
        if is_chosen && let Some(first) = listeners.first().and_then(Duplex::local) {
            address.set_port(first.port());
        }
        match bind(address, host.is_empty()) {
            Ok(listener) => listeners.push(listener),
            // localhost resolves to ::1 also on hosts without IPv6, and a port that the system chose
            // at one address may be in use at another. But a requested port must be free at all
            // addresses.
            Err(e) if is_chosen || is_not_here(&e) => last = e,
            Err(e) => return Err(e),
        }
    }
    if listeners.is_empty() {
        Err(last)
    } else {
        Ok(listeners)
    }
}

/// True if this host does not have the address, or not its version of IP.
fn is_not_here(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error())
}

/// The maximum number of received bytes that the system keeps for a connection until they are read; they take
/// twice that memory. By default the buffer of each peer that has to wait would grow to megabytes. A
/// thousand of them reach the limit of all sockets together (`net.ipv4.tcp_mem`), and then the
/// system slows down every connection, also those that should drain. 256 KiB is enough for a gigabit
/// over 2 ms.
const RECEIVE_BUFFER: usize = 256 * 1024;

/// The maximum number of written bytes that the system keeps for a connection before it sends them. By
/// default it takes up to 4 MiB if segments are long, such as the 64 KiB of loopback. A thousand receivers
/// that are slower than their senders then reach the same limit of all sockets, segments are dropped, and
/// all connections wait for retransmissions. Bytes that the system has not taken are in the queue, where
/// they count against the budget and a policy may drop them. And a frame is as old when it arrives as the bytes
/// before it: with twice as much, frames to a thousand receivers are a tenth older.
const UNSENT: u32 = 512 * 1024;

/// The most for a peer that takes much, see [`allow_unsent`]: with [`UNSENT`] its writer waits so often that up to a
/// tenth of the throughput is lost. A connection that this process has dialled has it from the start. A server that
/// pauses a client reads a little now and then. Linux forgets how long it has probed the full window only if the
/// window opens by the whole next segment, and with a quarter of this it seldom did: the client's system ended
/// one of five such sessions after `TcpOptions::unacknowledged`, on a busy machine.
const MOST_UNSENT: u32 = 1024 * 1024;

/// Bounds what the system keeps for a connection. A socket is bounded before it is connected or listens, and
/// accepted sockets inherit the bounds. A system that allows less uses its maximum.
fn bound_buffers(socket: &Socket, unsent: u32) -> io::Result<()> {
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.set_tcp_notsent_lowat(unsent)
}

/// See [`Duplex::allow_unsent`]; at most [`MOST_UNSENT`]. No effect on a socket that is not TCP.
pub(super) fn allow_unsent(socket: &Socket, bytes: u64) {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(MOST_UNSENT);
    if socket.tcp_notsent_lowat().is_ok_and(|allowed| allowed < bytes) {
        let _ = socket.set_tcp_notsent_lowat(bytes);
    }
}

fn bind(address: SocketAddr, both_versions: bool) -> io::Result<Socket> {
    let socket = match Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP)) {
        Ok(socket) => socket,
        Err(_) if both_versions => {
            return bind((Ipv4Addr::UNSPECIFIED, address.port()).into(), false);
        }
        Err(e) => return Err(e),
    };
    // A restarted server can bind while connections of the former one are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    bound_buffers(&socket, UNSENT)?;
    disable_pacing(&socket, address);
    if address.is_ipv6() {
        socket.set_only_v6(!both_versions)?;
    }
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_connection_have_bounded_buffers_and_are_not_paced_on_one_host() {
        let listeners = listen("127.0.0.1", 0).unwrap();
        let address = listeners[0].local().unwrap();
        let limit = Duration::from_secs(20);
        let dialled = connect_one(address, limit, &Cancel::new()).unwrap();
        let (accepted, _) = listeners[0].accept().unwrap();
        for (end, unsent) in [(&dialled, MOST_UNSENT), (&accepted, UNSENT)] {
            assert_eq!(end.tcp_notsent_lowat().unwrap(), unsent);
            // The system counts its own overhead as well, and may allow less.
            let size = end.recv_buffer_size().unwrap();
            assert!((1..=2 * RECEIVE_BUFFER).contains(&size), "{size}");
            // Set before it was connected: afterwards it would be paced nevertheless.
            assert!(end.tcp_congestion().unwrap().starts_with(b"reno"));
            let kept = |allowed: u64| {
                end.allow_unsent(allowed);
                end.tcp_notsent_lowat().unwrap()
            };
            assert_eq!(kept(1), unsent, "what is allowed is not taken back");
            assert_eq!(kept(u64::from(UNSENT) + 1), unsent.max(UNSENT + 1));
            assert_eq!(kept(u64::MAX), MOST_UNSENT);
        }
    }

    #[test]
    fn a_listener_binds_every_address_of_this_host_or_none() {
        let taken = listen("127.0.0.1", 0).unwrap();
        let port = taken[0].local().unwrap().port();
        let at = |ip: [u8; 4]| SocketAddr::from((ip, port));
        let free = at([127, 0, 0, 2]);
        let error = listen_at("here", vec![free, at([127, 0, 0, 1])]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        // No host has an address of TEST-NET-1.
        let listeners = listen_at("here", vec![at([192, 0, 2, 1]), free]).unwrap();
        assert_eq!(listeners.len(), 1);
    }
}
