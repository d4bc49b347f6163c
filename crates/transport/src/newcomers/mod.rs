//! Newcomers: accepted on one thread for each listener, and each brought in on
//! a thread that it has for itself, where a TLS handshake may take its time.
//!
//! ```text
//!  backlog ─▶ accept thread ─▶ takes a slot ─▶ handshake thread: serve(newcomer)
//!  (kernel)        ▲           all taken: the handshake      │
//!                  │           that waited longest for       ▼
//!                  │           its peer is cut            a link, or nothing
//!                  └────────── the slot is given back ◀──────┘
//! ```
//!
//! The slots that are taken are the entries of one table; a [`Slot`] removes
//! its entry when it is dropped, whether its thread served, panicked or was
//! never started. So there is no count that could drift from the truth. A
//! thread that cannot be started costs that newcomer its connection, at once,
//! and nobody else anything.
//!
//! A thread that has served waits a moment for another newcomer: the first
//! handshake of a thread costs half as much again, mostly for what the
//! cryptography sets up in each thread. A slot goes to such a thread through a
//! channel without room, so only where one waits for it at that moment.
//!
//! While all slots are taken, each listener has one newcomer at hand, and the
//! others wait in the kernel's backlog.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, available_parallelism};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, select};
use log::{error, warn};

use crate::host::deadline::now;
use crate::host::threads;
use crate::log_limit::LogLimit;
use crate::socket::cancel::Cancel;
use crate::socket::duplex::{Duplex, PeerAddress};
use crate::socket::listener::Listener;

/// How long a handshake may wait for its peer before it may be cut for a
/// newcomer. Only time in which the peer has to do something counts, so a
/// slow host of ours never makes an honest peer look slow.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// In one wait, without a byte.
    silent: Duration,
    /// In all its waits together, so that bytes that drip in do not help.
    in_sum: Duration,
}

/// An honest peer answers within a round trip and some milliseconds, three
/// times in a handshake.
const PATIENCE: Patience = Patience {
    silent: Duration::from_millis(250),
    in_sum: Duration::from_secs(2),
};
/// How often an accept thread looks for a handshake that may be cut, while
/// all slots are taken.
const LOOK: Duration = Duration::from_millis(25);
/// How long a thread that has served waits for another newcomer.
const IDLE: Duration = Duration::from_secs(2);
/// Pause of an accept thread after an error such as no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many handshakes a server has under way at a time, where its
/// configuration does not say: 64 for each core, and 512 at most.
///
/// A handshake takes about a millisecond of a core and several round trips.
/// With 64 of them a core is busy at round trips of up to some 20 ms, and
/// still serves each within a tenth of a second when all become ready at
/// once: far below any time limit. More would wait for each other on a small
/// host; further newcomers wait in the kernel's backlog instead.
pub fn default_max_handshakes() -> usize {
    let cores = available_parallelism().map_or(1, usize::from);
    cores.saturating_mul(64).min(512)
}

/// Brings one newcomer in, or refuses it. Blocks for as long as that takes.
pub(crate) type Serve = dyn Fn(&Arc<Newcomer>) + Send + Sync;

/// What a handshake thread runs.
type Body = Box<dyn FnOnce() + Send>;
/// Starts a handshake thread; tests make it fail.
type Spawn = dyn Fn(String, Body) -> io::Result<JoinHandle<()>> + Send + Sync;

/// Everything that brings newcomers in.
#[derive(Debug)]
pub struct Acceptance {
    handshakes: Arc<Handshakes>,
    threads: Vec<JoinHandle<()>>,
    listeners: Vec<Arc<Listener>>,
}

impl Acceptance {
    /// Starts to accept. `serve` brings one newcomer in, on a thread of its
    /// own; at most `max` are at it at a time. Threads are named
    /// `NAME-accept` and `NAME-shake`; `target` is where their log lines go.
    pub fn start(
        listeners: Vec<Listener>,
        name: &'static str,
        target: &'static str,
        max: usize,
        serve: Box<Serve>,
    ) -> io::Result<Self> {
        Self::start_with(listeners, Handshakes::new(name, target, max, serve))
    }

    fn start_with(listeners: Vec<Listener>, handshakes: Handshakes) -> io::Result<Self> {
        let mut acceptance = Self {
            handshakes: Arc::new(handshakes),
            threads: Vec::new(),
            listeners: Vec::new(),
        };
        for (index, listener) in listeners.into_iter().enumerate() {
            let handshakes = Arc::clone(&acceptance.handshakes);
            let listener = Arc::new(listener);
            acceptance.listeners.push(Arc::clone(&listener));
            let name = format!("{}-accept", handshakes.name);
            match threads::spawn(name, move || accept(index, &listener, &handshakes)) {
                Ok(thread) => acceptance.threads.push(thread),
                Err(e) => {
                    acceptance.stop();
                    return Err(e);
                }
            }
        }
        Ok(acceptance)
    }

    /// How many handshakes are under way, now and later.
    pub fn occupancy(&self) -> Arc<Occupancy> {
        Arc::clone(&self.handshakes.occupancy)
    }

    /// Accepts nobody any more, ends the input of the handshakes under way,
    /// and joins every thread: those of handshakes through the accept thread
    /// that started them.
    pub fn stop(self) {
        self.handshakes.close();
        for listener in &self.listeners {
            listener.close();
        }
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// Accepts at one listener, and owns the handshake threads of those who came
/// there.
fn accept(index: usize, listener: &Listener, handshakes: &Arc<Handshakes>) {
    let mut threads = Vec::new();
    loop {
        match listener.accept() {
            Ok(Some(stream)) => threads.extend(handshakes.begin(index, stream)),
            Ok(None) => break,
            Err(e) if handshakes.cannot_accept(&e) => break,
            Err(_) => {}
        }
        for finished in threads.extract_if(.., |thread| thread.is_finished()) {
            let _ = finished.join();
        }
    }
    for thread in threads {
        let _ = thread.join();
    }
}

/// How many handshakes are under way, for whoever looks.
#[derive(Debug)]
pub struct Occupancy {
    running: AtomicUsize,
    max: usize,
    without_thread: AtomicU64,
}

// Only figures: nothing is decided by them.
impl Occupancy {
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// How many there may be.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Newcomers for whom no thread could be started.
    pub fn without_thread(&self) -> u64 {
        self.without_thread.load(Ordering::Relaxed)
    }
}

/// The handshakes under way.
struct Handshakes {
    name: &'static str,
    target: &'static str,
    max: usize,
    occupancy: Arc<Occupancy>,
    serve: Box<Serve>,
    spawn: Box<Spawn>,
    patience: Patience,
    /// How long a thread that has served waits for another newcomer.
    idle: Duration,
    /// Threads that serve or wait, never more than `max`.
    threads: AtomicUsize,
    state: Mutex<State>,
    /// A slot was given back, or this was closed.
    changed: Condvar,
    closed: Cancel,
    /// From an accept thread to one that has served.
    hand_over: Sender<Slot>,
    handed_over: Receiver<Slot>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// One entry for each slot that is taken, put in and removed by [`Slot`].
    taken: HashMap<u64, Arc<Newcomer>>,
    /// What newcomers may cause in the log, all of them together: they prove
    /// nothing yet.
    log: LogLimit<()>,
}

impl fmt::Debug for Handshakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshakes")
            .field("max", &self.max)
            .finish_non_exhaustive()
    }
}

impl Handshakes {
    fn new(name: &'static str, target: &'static str, max: usize, serve: Box<Serve>) -> Self {
        let (hand_over, handed_over) = crossbeam_channel::bounded(0);
        let max = max.max(1);
        Self {
            name,
            target,
            max,
            occupancy: Arc::new(Occupancy {
                running: AtomicUsize::new(0),
                max,
                without_thread: AtomicU64::new(0),
            }),
            serve,
            spawn: Box::new(threads::spawn),
            patience: PATIENCE,
            idle: IDLE,
            threads: AtomicUsize::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
            closed: Cancel::new(),
            hand_over,
            handed_over,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a newcomer to a thread, once there is a slot for it; the thread
    /// where it is a new one.
    fn begin(self: &Arc<Self>, listener: usize, stream: Arc<dyn Duplex>) -> Option<JoinHandle<()>> {
        let slot = self.take_slot(listener, stream)?;
        let (slot, place) = self.hand_over(slot)?;
        let peer = slot.newcomer.peer();
        // Where no thread is started, the slot is dropped with the closure,
        // and the socket with the slot.
        match (self.spawn)(
            format!("{}-shake", self.name),
            Box::new(move || work(slot, &place)),
        ) {
            Ok(thread) => Some(thread),
            Err(e) => {
                self.occupancy.without_thread.fetch_add(1, Ordering::Relaxed);
                if let Some(more) = self.lock().log.admit((), "refused", now()) {
                    warn!(target: self.target, "{peer}: refused, cannot start a thread: {e}{more}");
                }
                None
            }
        }
    }

    /// Gives a slot to a thread that has served, or back with the place of a thread
    /// that is to be started. Where there are as many threads as slots, one of them is
    /// about to wait for a slot or to end, so this does not wait for long.
    fn hand_over(self: &Arc<Self>, slot: Slot) -> Option<(Slot, Place)> {
        let mut slot = self.hand_over.try_send(slot).err()?.into_inner();
        loop {
            // Counted from here on, so that two accept threads do not exceed it.
            if self.threads.fetch_add(1, Ordering::Relaxed) < self.max {
                return Some((slot, Place(Arc::clone(self))));
            }
            self.threads.fetch_sub(1, Ordering::Relaxed);
            slot = self.hand_over.send_timeout(slot, LOOK).err()?.into_inner();
            if self.closed.is_cancelled() {
                return None;
            }
        }
    }

    /// Waits for a slot, and cuts handshakes whose peers are slow meanwhile;
    /// none once this is closed.
    fn take_slot(self: &Arc<Self>, listener: usize, stream: Arc<dyn Duplex>) -> Option<Slot> {
        let mut state = self.lock();
        while state.taken.len() >= self.max && !self.closed.is_cancelled() {
            self.cut_slowest(&mut state);
            // The thread of the one that was cut wakes, fails and gives its
            // slot back, which ends this wait.
            state = self
                .changed
                .wait_timeout(state, LOOK)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        if self.closed.is_cancelled() {
            return None;
        }
        state.next += 1;
        let id = state.next;
        let newcomer = Arc::new(Newcomer {
            listener,
            accepted: now(),
            progress: Mutex::default(),
            unwatched: AtomicBool::new(false),
            stream,
        });
        state.taken.insert(id, Arc::clone(&newcomer));
        self.occupancy.running.store(state.taken.len(), Ordering::Relaxed);
        Some(Slot {
            handshakes: Arc::clone(self),
            id,
            newcomer,
        })
    }

    /// Cuts the handshake that has waited longest for its peer in sum, of
    /// those that have waited too long.
    fn cut_slowest(&self, state: &mut State) {
        let now = now();
        let waited = |newcomer: &Newcomer| newcomer.progress().waited_too_long(now, self.patience);
        let newcomers = state.taken.values();
        let mut slow: Vec<_> = newcomers.filter_map(|one| Some((waited(one)?, one))).collect();
        slow.sort_unstable_by_key(|(waited, _)| Reverse(*waited));
        let mut slow = slow.into_iter();
        let cut = slow.find(|(_, newcomer)| newcomer.cut(now, self.patience));
        let Some((_, newcomer)) = cut else { return };
        if let Some(more) = state.log.admit((), "cut", now) {
            warn!(target: self.target,
                "{}: cut: {} handshakes are under way, and it is slow{more}",
                newcomer.peer(), self.max
            );
        }
    }

    /// Says that accepting failed, and waits a moment; true once this is
    /// closed.
    fn cannot_accept(&self, error: &io::Error) -> bool {
        use io::ErrorKind::{ConnectionAborted, Interrupted};

        // That one newcomer is gone; the system lacks nothing.
        if matches!(error.kind(), ConnectionAborted | Interrupted) {
            return false;
        }
        if let Some(more) = self.lock().log.admit((), "cannot accept", now()) {
            warn!(target: self.target, "cannot accept: {error}{more}");
        }
        !self.closed.pause(ACCEPT_PAUSE)
    }

    fn close(&self) {
        self.closed.cancel();
        for newcomer in self.lock().taken.values() {
            newcomer.stop();
        }
        self.changed.notify_all();
    }
}

/// A handshake thread.
fn work(first: Slot, place: &Place) {
    let handshakes = &place.0;
    first.serve();
    loop {
        select! {
            recv(handshakes.handed_over) -> slot => match slot {
                Ok(slot) => slot.serve(),
                Err(_) => return,
            },
            recv(handshakes.closed.done()) -> _ => return,
            default(handshakes.idle) => return,
        }
    }
}

/// A thread's place among those that there may be; dropping it gives it back.
struct Place(Arc<Handshakes>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A handshake's place among those under way; dropping it gives it back.
struct Slot {
    handshakes: Arc<Handshakes>,
    id: u64,
    newcomer: Arc<Newcomer>,
}

impl Slot {
    fn serve(self) {
        let Handshakes { serve, target, .. } = &*self.handshakes;
        // A fault of ours in one handshake costs that newcomer alone.
        if catch_unwind(AssertUnwindSafe(|| serve(&self.newcomer))).is_err() {
            error!(target: target, "{}: its handshake panicked", self.newcomer.peer());
            let _ = self.newcomer.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.handshakes.lock();
        state.taken.remove(&self.id);
        let running = state.taken.len();
        self.handshakes
            .occupancy
            .running
            .store(running, Ordering::Relaxed);
        drop(state);
        self.handshakes.changed.notify_all();
    }
}

/// How far a handshake is, and how long it has waited for its peer.
#[derive(Debug, Default)]
struct Progress {
    fate: Fate,
    /// Since when the reader and the writer wait for the peer.
    since: [Option<Instant>; 2],
    /// In all waits that are over.
    waited: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    #[default]
    UnderWay,
    /// Its input is over, since the server stops; it is told so.
    Stopping,
    /// Its part is done, and what it is answered is on its way.
    Heard,
    Cut,
    Admitted,
}

impl Fate {
    fn is_under_way(self) -> bool {
        matches!(self, Self::UnderWay | Self::Heard)
    }
}

const READ: usize = 0;
const WRITE: usize = 1;

impl Progress {
    fn end(&mut self, direction: usize, now: Instant) {
        if let Some(since) = self.since[direction].take() {
            self.waited += now.saturating_duration_since(since);
        }
    }

    /// How long it has waited in sum, where it waits and that is too long.
    fn waited_too_long(&self, now: Instant, patience: Patience) -> Option<Duration> {
        if !self.fate.is_under_way() {
            return None;
        }
        let waits = self.since.iter().flatten();
        let silent = waits.map(|since| now.saturating_duration_since(*since)).max()?;
        let in_sum = self.waited + silent;
        (silent >= patience.silent || in_sum >= patience.in_sum).then_some(in_sum)
    }
}

/// Somebody who has connected: a stream that knows how long its handshake waits
/// for the peer, and that the handshake, and then its session, reads through.
#[derive(Debug)]
pub struct Newcomer {
    listener: usize,
    accepted: Instant,
    progress: Mutex<Progress>,
    /// Set with [`Fate::Admitted`]: a session's reads look here alone. To see
    /// it late does no harm, since the fate decides.
    unwatched: AtomicBool,
    stream: Arc<dyn Duplex>,
}

impl Newcomer {
    /// Which of the listeners it came to.
    pub fn listener(&self) -> usize {
        self.listener
    }

    /// When its handshake began: time in the backlog is not its own.
    pub fn accepted(&self) -> Instant {
        self.accepted
    }

    /// What its handshake, and then its session, reads through.
    pub fn stream(self: &Arc<Self>) -> Arc<dyn Duplex> {
        Arc::clone(self) as Arc<dyn Duplex>
    }

    /// Whether the server stops, which ends the newcomer's input.
    pub fn is_stopping(&self) -> bool {
        self.progress().fate == Fate::Stopping
    }

    /// Whether it was cut, to make room for another one.
    pub fn was_cut(&self) -> bool {
        self.progress().fate == Fate::Cut
    }

    /// All that it has to say has been received. A session may stand for it
    /// from here on, and things may be sent to that, so a stop ends the session
    /// and not the newcomer's input. False where it was cut or stopped before
    /// this.
    pub fn heard(&self) -> bool {
        let mut progress = self.progress();
        if progress.fate == Fate::UnderWay {
            progress.fate = Fate::Heard;
        }
        progress.fate == Fate::Heard
    }

    /// The handshake is over: from here on its reads may wait, and it is
    /// neither cut nor stopped. False where it was before this.
    pub fn admitted(&self) -> bool {
        let mut progress = self.progress();
        if progress.fate.is_under_way() {
            progress.fate = Fate::Admitted;
        }
        self.unwatched.store(true, Ordering::Relaxed);
        progress.fate == Fate::Admitted
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts it, unless it goes on. Decided under the lock that
    /// [`Newcomer::admitted`] takes: nobody admitted is cut.
    fn cut(&self, now: Instant, patience: Patience) -> bool {
        let mut progress = self.progress();
        let too_long = progress.waited_too_long(now, patience).is_some();
        // Bytes are there already, and its thread has yet to get a core: what
        // it waits for is this host. That is no excuse where it writes.
        let ours = progress.since[WRITE].is_none() && self.stream.is_readable();
        if !too_long || ours {
            return false;
        }
        progress.fate = Fate::Cut;
        let _ = self.stream.shutdown(Shutdown::Both);
        true
    }

    /// Ends its input, unless all of it was heard: then it is its session that
    /// ends. It can still be told why.
    fn stop(&self) {
        let mut progress = self.progress();
        if progress.fate == Fate::UnderWay {
            progress.fate = Fate::Stopping;
            let _ = self.stream.shutdown(Shutdown::Read);
        }
    }

    fn watch<T>(&self, direction: usize, wait: impl FnOnce() -> T) -> T {
        if self.unwatched.load(Ordering::Relaxed) {
            return wait();
        }
        self.progress().since[direction] = Some(now());
        let result = wait();
        self.progress().end(direction, now());
        result
    }
}

impl Duplex for Newcomer {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.watch(READ, || self.stream.read(buffer))
    }
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.try_read(buffer)
    }
    fn wait_readable(&self) -> io::Result<()> {
        self.watch(READ, || self.stream.wait_readable())
    }
    fn is_readable(&self) -> bool {
        self.stream.is_readable()
    }
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.watch(WRITE, || self.stream.write(bytes))
    }
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.try_write(bytes)
    }
    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.stream.shutdown(how)
    }
    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(limit)
    }
    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.stream.set_write_timeout(limit)
    }
    fn peer(&self) -> PeerAddress {
        self.stream.peer()
    }
    fn local(&self) -> Option<SocketAddr> {
        self.stream.local()
    }
}
