//! An in-memory pair of byte streams, for tests without sockets.
//!
//! Each direction is a bounded buffer, like a socket's: a writer blocks while its reader does not
//! read. [`Faults`] simulate a bad network.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, select};

use super::cancel::{Cancel, cancelled_error};
use super::duplex::{Duplex, PeerAddress};
use crate::host::{after, deadline, left, locked, locked_again, now};

/// The number of bytes that one direction holds before its writer blocks.
pub const CAPACITY: usize = 64 * 1024;

/// Faults that the network adds to the bytes that one end receives. Default: none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The maximum number of bytes that a read returns.
    pub short_reads: Option<usize>,
    /// The time after which written bytes become readable.
    pub delay: Option<Duration>,
    /// The number of bytes after which the stream is cut: reads and writes fail with
    /// `ConnectionReset` on both ends.
    pub cut_after: Option<u64>,
}

/// Two ends of one stream without faults.
pub fn pair() -> (MemoryStream, MemoryStream) {
    pair_with(Faults::default(), Faults::default())
}

/// Two ends of one stream. `first` applies to the bytes that the first end receives, `second` to
/// those that the second end receives.
pub fn pair_with(first: Faults, second: Faults) -> (MemoryStream, MemoryStream) {
    let to_first = Arc::new(Pipe::new(first));
    let to_second = Arc::new(Pipe::new(second));
    let end = |incoming: &Arc<Pipe>, outgoing: &Arc<Pipe>| MemoryStream {
        incoming: Arc::clone(incoming),
        outgoing: Arc::clone(outgoing),
        limits: Mutex::default(),
    };
    (end(&to_first, &to_second), end(&to_second, &to_first))
}

/// One end of an in-memory stream. Dropping it ends both directions, like closing a socket.
#[derive(Debug)]
pub struct MemoryStream {
    incoming: Arc<Pipe>,
    outgoing: Arc<Pipe>,
    limits: Mutex<(Option<Duration>, Option<Duration>)>,
}

#[derive(Debug)]
struct Pipe {
    state: Mutex<MemoryState>,
    changed: Condvar,
    faults: Faults,
}

#[derive(Debug, Default)]
struct MemoryState {
    /// Pieces with the time at which they become readable.
    pieces: VecDeque<(Instant, Bytes)>,
    held: usize,
    passed: u64,
    /// The writer has ended: the reader gets the rest, then the end.
    finished: bool,
    /// The reader has ended: the writer gets `BrokenPipe`.
    abandoned: bool,
    cut: bool,
    /// Written bytes do not become readable at present.
    stalled: bool,
}

#[derive(Clone, Copy)]
enum WaitLimit {
    Never,
    Until(Option<Instant>),
}

impl Pipe {
    fn new(faults: Faults) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            faults,
        }
    }

    fn lock(&self) -> MutexGuard<'_, MemoryState> {
        locked(&self.state)
    }

    fn read(&self, buffer: &mut [u8], wait: WaitLimit, take: bool) -> io::Result<usize> {
        let mut state = self.lock();
        loop {
            let ready_at = match state.pieces.front() {
                Some((at, _)) if *at > now() => Some(*at),
                _ if state.stalled && !state.cut => None,
                Some(_) if take => return Ok(self.take(&mut state, buffer)),
                Some((_, piece)) => return Ok(piece.len()),
                None if state.cut => return Err(io::ErrorKind::ConnectionReset.into()),
                None if state.finished || state.abandoned => return Ok(0),
                None => None,
            };
            state = self.wait(state, wait, ready_at)?;
        }
    }

    fn take(&self, state: &mut MemoryState, buffer: &mut [u8]) -> usize {
        let Some((_, piece)) = state.pieces.front_mut() else {
            return 0;
        };
        let most = self.faults.short_reads.unwrap_or(usize::MAX).max(1);
        let n = buffer.len().min(piece.len()).min(most);
        buffer[..n].copy_from_slice(&piece.split_to(n));
        if piece.is_empty() {
            state.pieces.pop_front();
        }
        state.held -= n;
        self.changed.notify_all();
        n
    }

    fn write(&self, bytes: &[u8], wait: WaitLimit) -> io::Result<usize> {
        let mut state = self.lock();
        while !state.cut && !state.finished && !state.abandoned && state.held >= CAPACITY {
            state = self.wait(state, wait, None)?;
        }
        if !state.cut && (state.finished || state.abandoned) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut n = bytes.len().min(CAPACITY.saturating_sub(state.held));
        if let Some(limit) = self.faults.cut_after {
            let left = usize::try_from(limit - state.passed).unwrap_or(usize::MAX);
            state.cut |= n >= left;
            n = n.min(left);
        }
        if n > 0 {
            let ready_at = after(now(), self.faults.delay.unwrap_or_default());
            let piece = Bytes::copy_from_slice(&bytes[..n]);
            state.pieces.push_back((ready_at, piece));
            state.held += n;
            state.passed += n as u64;
        }
        self.changed.notify_all();
        match n {
            0 if state.cut => Err(io::ErrorKind::ConnectionReset.into()),
            n => Ok(n),
        }
    }

    /// Waits for a change, for `ready_at`, or for the time limit.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, MemoryState>,
        wait: WaitLimit,
        ready_at: Option<Instant>,
    ) -> io::Result<MutexGuard<'a, MemoryState>> {
        let WaitLimit::Until(limit) = wait else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        limit.map(left).transpose()?;
        let until = [limit, ready_at].into_iter().flatten().min();
        let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(now()));
        let waited = self.changed.wait_timeout(state, left);
        Ok(locked_again(waited).0)
    }

    fn end(&self, change: impl FnOnce(&mut MemoryState)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

impl MemoryStream {
    fn limits(&self) -> MutexGuard<'_, (Option<Duration>, Option<Duration>)> {
        locked(&self.limits)
    }

    fn read_limit(&self) -> WaitLimit {
        WaitLimit::Until(self.limits().0.map(deadline))
    }
}

impl Duplex for MemoryStream {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.incoming.read(buffer, self.read_limit(), true)
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.incoming.read(buffer, WaitLimit::Never, true)
    }

    fn wait_readable(&self) -> io::Result<()> {
        self.incoming.read(&mut [0], self.read_limit(), false).map(drop)
    }

    fn is_readable(&self) -> bool {
        self.incoming.read(&mut [0], WaitLimit::Never, false).is_ok()
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let limit = self.limits().1.map(deadline);
        self.outgoing.write(bytes, WaitLimit::Until(limit))
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.outgoing.write(bytes, WaitLimit::Never)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            self.outgoing.end(|state| state.finished = true);
        }
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.incoming.end(|state| state.abandoned = true);
        }
        Ok(())
    }

    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.limits().0 = limit;
        Ok(())
    }

    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.limits().1 = limit;
        Ok(())
    }

    fn peer(&self) -> PeerAddress {
        PeerAddress::Memory
    }
}

impl Drop for MemoryStream {
    fn drop(&mut self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// A listener in memory: clients connect to it and a server accepts them.
///
/// A clone is another handle of the same listener. At most 64 connections wait to be accepted; a
/// further [`connect`](Self::connect) waits for room.
#[derive(Clone, Debug)]
pub struct MemoryListener {
    sender: Sender<MemoryStream>,
    receiver: Receiver<MemoryStream>,
    closed: Cancel,
    network: Arc<Mutex<Network>>,
    number: usize,
}

/// The number of listeners that this process has made.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// The state that all connections of a listener share.
#[derive(Debug, Default)]
struct Network {
    /// The faults of the bytes that clients receive, and of those that the server receives.
    faults: (Faults, Faults),
    stalled: bool,
    /// Both directions of each connection, including some that have ended.
    pipes: Vec<Weak<Pipe>>,
}

impl Network {
    fn pair(&mut self) -> (MemoryStream, MemoryStream) {
        let (client, server) = pair_with(self.faults.0, self.faults.1);
        self.pipes.retain(|pipe| pipe.strong_count() > 0);
        for pipe in [&client.incoming, &client.outgoing] {
            pipe.end(|state| state.stalled = self.stalled);
            self.pipes.push(Arc::downgrade(pipe));
        }
        (client, server)
    }

    fn change(&self, change: impl Fn(&mut MemoryState)) {
        let pipes = self.pipes.iter().filter_map(Weak::upgrade);
        pipes.for_each(|pipe| pipe.end(&change));
    }
}

impl fmt::Display for MemoryListener {
    /// A name that no other listener of this process has.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory-{}", self.number)
    }
}

impl Default for MemoryListener {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryListener {
    /// A listener without connections.
    pub fn new() -> Self {
        let (sender, receiver) = crossbeam_channel::bounded(64);
        Self {
            sender,
            receiver,
            closed: Cancel::new(),
            network: Arc::default(),
            number: MADE.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    /// Sets the faults of the connections that clients make from now on: `first` for the bytes that
    /// the client receives, `second` for those that the server receives. They do not apply to
    /// [`connect`](Self::connect).
    pub fn set_faults(&self, first: Faults, second: Faults) {
        self.network().faults = (first, second);
    }

    /// Cuts every connection that clients have made: reads and writes fail with
    /// `ConnectionReset` on both ends.
    pub fn cut(&self) {
        self.network().change(|state| state.cut = true);
    }

    /// Stops all bytes on all present and later connections until it is called with false, like a
    /// network that drops every packet.
    pub fn stall(&self, stalled: bool) {
        let mut network = self.network();
        network.stalled = stalled;
        network.change(|state| state.stalled = stalled);
    }

    fn network(&self) -> MutexGuard<'_, Network> {
        locked(&self.network)
    }

    /// Connects to the server that accepts here. `first` applies to the bytes that the client
    /// receives, `second` to those that the server receives.
    ///
    /// # Errors
    /// `ConnectionRefused` once it is closed.
    pub fn connect(&self, first: Faults, second: Faults) -> io::Result<MemoryStream> {
        self.enter(pair_with(first, second), Duration::MAX, &Cancel::new())
    }

    /// As [`connect`](Self::connect) with the faults of the listener, but waits at most `limit` for room, and
    /// ends at once when `cancel` is cancelled.
    pub(crate) fn connect_unless(&self, limit: Duration, cancel: &Cancel) -> io::Result<MemoryStream> {
        let pair = self.network().pair();
        self.enter(pair, limit, cancel)
    }

    fn enter(
        &self,
        (client, server): (MemoryStream, MemoryStream),
        limit: Duration,
        cancel: &Cancel,
    ) -> io::Result<MemoryStream> {
        select! {
            send(self.sender, server) -> sent => sent.map_err(|_| io::ErrorKind::ConnectionRefused)?,
            recv(self.closed.done()) -> _ => return Err(io::ErrorKind::ConnectionRefused.into()),
            recv(cancel.done()) -> _ => return Err(cancelled_error()),
            default(limit) => return Err(io::ErrorKind::TimedOut.into()),
        }
        Ok(client)
    }

    pub(crate) fn accept(&self) -> io::Result<MemoryStream> {
        select! {
            recv(self.receiver) -> stream => stream.map_err(|_| io::ErrorKind::NotConnected.into()),
            recv(self.closed.done()) -> _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    pub(crate) fn close(&self) {
        self.closed.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_cross_and_the_end_is_seen() {
        let (a, b) = pair();
        assert_eq!(a.write(b"hello").unwrap(), 5);
        let mut buffer = [0; 16];
        b.wait_readable().unwrap();
        assert_eq!(b.read(&mut buffer).unwrap(), 5);
        assert_eq!(
            b.try_read(&mut buffer).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(a);
        assert_eq!(b.read(&mut buffer).unwrap(), 0);
        assert_eq!(b.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_full_direction_blocks_its_writer_until_the_limit() {
        let (a, _b) = pair();
        a.set_write_timeout(Some(Duration::from_millis(5))).unwrap();
        assert_eq!(a.write(&[0; 2 * CAPACITY]).unwrap(), CAPACITY);
        assert_eq!(a.write(&[0]).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn faults_of_a_memory_stream_take_effect() {
        let faults = Faults {
            short_reads: Some(2),
            delay: Some(Duration::from_millis(5)),
            cut_after: Some(5),
        };
        let (a, b) = pair_with(Faults::default(), faults);
        assert_eq!(a.write(b"hello world").unwrap(), 5);
        let mut buffer = [0; 16];
        assert!(b.try_read(&mut buffer).is_err(), "the bytes are delayed");
        for expected in [2, 2, 1] {
            assert_eq!(b.read(&mut buffer).unwrap(), expected);
        }
        assert_eq!(
            b.read(&mut buffer).unwrap_err().kind(),
            io::ErrorKind::ConnectionReset
        );
        assert_eq!(a.write(b"x").unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn shutdown_wakes_a_blocked_reader() {
        let (a, _b) = pair();
        let a = Arc::new(a);
        let reader = Arc::clone(&a);
        let thread = crate::host::threads::spawn("t", move || reader.read(&mut [0; 4])).unwrap();
        a.shutdown(Shutdown::Both).unwrap();
        assert_eq!(thread.join().unwrap().unwrap(), 0);
    }
}
