//! Newcomers: one thread for each listener accepts them, and each has a thread of its own
//! for its handshake, which may take a while.
//!
//! ```text
//!  backlog ─▶ accept thread ─▶ takes a slot ─▶ handshake thread: serve(newcomer)
//!  (kernel)        ▲           all taken: the handshake      │
//!                  │           that waited longest for       ▼
//!                  │           its peer is cut            a link, or nothing
//!                  └────────── the slot is given back ◀──────┘
//! ```
//!
//! The slots in use are the entries of one table. A [`Slot`] removes its entry when it
//! is dropped, whether its thread served, panicked or was never started, so there is no
//! separate count that could become wrong. If a thread cannot be started, only that
//! newcomer loses its connection.
//!
//! A thread that has served waits a moment for another newcomer, because the first
//! handshake of a thread costs half as much again: the cryptography library sets up
//! state in each thread. A slot goes to such a thread through a channel without
//! capacity, so only if a thread waits for it at that moment.
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

use crate::host::{now, threads};
use crate::log_limit::LogLimit;
use crate::socket::{Cancel, Duplex, Listener, PeerAddress};

/// How long a handshake may wait for its peer before it may be cut to make room for a
/// newcomer. Only time in which the peer has to act counts, so a slow server never makes
/// an honest peer look slow.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// Before its first byte.
    first: Duration,
    /// In one later wait, without a byte.
    silent: Duration,
    /// In all its waits together, so that a peer gains nothing by sending single bytes.
    in_sum: Duration,
}

/// An honest peer answers within a round trip and some milliseconds, three
/// times in a handshake. Its first bytes follow its connection at once, and while all slots
/// are taken it has waited in the backlog meanwhile. So a client that sends nothing at all is
/// passed sooner: at three slots a thousand of them take some seconds.
const PATIENCE: Patience = Patience {
    first: Duration::from_millis(10),
    silent: Duration::from_millis(250),
    in_sum: Duration::from_secs(2),
};
/// That of a client whose whole request fits into a packet and comes with the connection. A
/// thousand clients that say nothing are so passed in about a second.
const BRIEF: Patience = Patience {
    first: Duration::from_millis(20),
    silent: Duration::from_millis(20),
    in_sum: Duration::from_millis(200),
};
/// How often an accept thread looks for a handshake that may be cut, while all slots are
/// taken.
const LOOK: Duration = Duration::from_millis(5);
/// How long a thread that has served waits for another newcomer.
const IDLE: Duration = Duration::from_secs(2);
/// The pause of an accept thread after an error, such as too few descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many handshakes a server has under way at a time, by default: 64 for each core, and
/// 512 at most.
///
/// A handshake takes about a millisecond of a core and several round trips.
/// With 64 of them a core is busy at round trips of up to some 20 ms, and still serves
/// each within a tenth of a second if all become ready at once: far below any time limit.
/// On a small host more handshakes would only wait for each other. Further newcomers wait
/// in the kernel's backlog.
pub fn default_max_handshakes() -> usize {
    let cores = available_parallelism().map_or(1, usize::from);
    cores.saturating_mul(64).min(512)
}

/// Makes the handshake of one newcomer, and blocks until it is admitted or refused.
pub(crate) type Serve = dyn Fn(&Arc<Newcomer>) + Send + Sync;

/// The function that a handshake thread runs.
type Body = Box<dyn FnOnce() + Send>;
/// Starts a handshake thread; tests make it fail.
type Spawn = dyn Fn(String, Body) -> io::Result<JoinHandle<()>> + Send + Sync;

/// Listeners, accept threads and handshakes of a server.
#[derive(Debug)]
pub struct Acceptance {
    handshakes: Arc<Handshakes>,
    threads: Vec<JoinHandle<()>>,
    listeners: Vec<Arc<Listener>>,
}

impl Acceptance {
    /// Starts to accept. `serve` makes the handshake of one newcomer on a thread of its
    /// own; at most `max` run at a time. Threads are named `NAME-accept` and
    /// `NAME-shake`; `target` is the target of their log lines.
    pub fn start(
        listeners: Vec<Listener>,
        name: &'static str,
        target: &'static str,
        max: usize,
        serve: Box<Serve>,
    ) -> io::Result<Self> {
        Self::start_with(listeners, Handshakes::new(name, target, max, serve))
    }

    /// As [`start`](Self::start), for brief exchanges: while all slots are taken, a client that
    /// has sent nothing for 20 ms is cut to make room.
    pub fn start_brief(
        listeners: Vec<Listener>,
        name: &'static str,
        target: &'static str,
        max: usize,
        serve: Box<Serve>,
    ) -> io::Result<Self> {
        let mut handshakes = Handshakes::new(name, target, max, serve);
        handshakes.patience = BRIEF;
        Self::start_with(listeners, handshakes)
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

    /// A handle that tells how many handshakes are under way.
    pub fn occupancy(&self) -> Arc<Occupancy> {
        Arc::clone(&self.handshakes.occupancy)
    }

    /// Stops accepting, ends the input of the handshakes under way, and joins every
    /// thread. Each accept thread joins the handshake threads that it started.
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

/// Accepts at one listener, and owns the handshake threads of its newcomers.
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

/// How many handshakes are under way, for figures.
#[derive(Debug)]
pub struct Occupancy {
    running: AtomicUsize,
    max: usize,
    without_thread: AtomicU64,
}

// Relaxed: these are only figures, and no decision depends on them.
impl Occupancy {
    /// How many handshakes are under way.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// How many may be under way at a time.
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
    /// Notified when a slot is given back, and at the end.
    changed: Condvar,
    closed: Cancel,
    /// From an accept thread to a handshake thread that has served.
    hand_over: Sender<Slot>,
    handed_over: Receiver<Slot>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// One entry for each slot in use, removed by [`Slot`].
    taken: HashMap<u64, Arc<Newcomer>>,
    /// The log lines that newcomers may cause. They share one allowance, because they
    /// have not proved any identity yet.
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

    /// Gives a newcomer to a thread once there is a slot for it. Returns the thread if it
    /// is a new one.
    fn begin(self: &Arc<Self>, listener: usize, stream: Arc<dyn Duplex>) -> Option<JoinHandle<()>> {
        let slot = self.take_slot(listener, stream)?;
        let (slot, permit) = self.hand_over(slot)?;
        let peer = slot.newcomer.peer();
        // If no thread can be started, the slot is dropped with the closure, and the
        // socket with the slot.
        match (self.spawn)(
            format!("{}-shake", self.name),
            Box::new(move || work(slot, &permit)),
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

    /// Gives a slot to a thread that has served. If none waits, the slot comes back with
    /// the permission to start another thread. If there are as many threads as slots, one
    /// of them is about to wait for a slot or to end, so this does not wait for long.
    fn hand_over(self: &Arc<Self>, slot: Slot) -> Option<(Slot, Permit)> {
        let mut slot = self.hand_over.try_send(slot).err()?.into_inner();
        loop {
            // Counted before the thread is started, so that two accept threads together
            // do not exceed the maximum.
            if self.threads.fetch_add(1, Ordering::Relaxed) < self.max {
                return Some((slot, Permit(Arc::clone(self))));
            }
            self.threads.fetch_sub(1, Ordering::Relaxed);
            slot = self.hand_over.send_timeout(slot, LOOK).err()?.into_inner();
            if self.closed.is_cancelled() {
                return None;
            }
        }
    }

    /// Waits for a slot, and meanwhile cuts handshakes with slow peers. `None` once this
    /// is closed.
    fn take_slot(self: &Arc<Self>, listener: usize, stream: Arc<dyn Duplex>) -> Option<Slot> {
        let mut state = self.lock();
        while state.taken.len() >= self.max && !self.closed.is_cancelled() {
            self.cut_slowest(&mut state, now());
            // The thread of the handshake that was cut wakes, fails and gives its slot
            // back, which ends this wait.
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

    /// Of the handshakes that have waited too long for their peers, cuts the one with the
    /// longest wait in all.
    fn cut_slowest(&self, state: &mut State, now: Instant) {
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

    /// Logs that accepting failed, and pauses. True once this is closed.
    fn cannot_accept(&self, error: &io::Error) -> bool {
        use io::ErrorKind::{ConnectionAborted, Interrupted};

        // Only that newcomer is gone; the system does not lack resources.
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
fn work(first: Slot, permit: &Permit) {
    let handshakes = &permit.0;
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

/// The permission to run one of the handshake threads. Dropping it gives it back.
struct Permit(Arc<Handshakes>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The slot of one handshake under way. Dropping it gives it back.
struct Slot {
    handshakes: Arc<Handshakes>,
    id: u64,
    newcomer: Arc<Newcomer>,
}

impl Slot {
    fn serve(self) {
        let Handshakes { serve, target, .. } = &*self.handshakes;
        // A panic in one handshake ends that newcomer's connection only.
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
    /// Whether it has sent something.
    has_spoken: bool,
    /// Since when the reader and the writer wait for the peer.
    since: [Option<Instant>; 2],
    /// The sum of all waits that are over.
    waited: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    #[default]
    UnderWay,
    /// Its input has ended because the server stops. The peer is told.
    Stopping,
    /// All of its input was received, and the answer is on its way.
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
        self.has_spoken |= direction == READ;
        if let Some(since) = self.since[direction].take() {
            self.waited += now.saturating_duration_since(since);
        }
    }

    /// The sum of all its waits, if it waits now and has waited too long.
    fn waited_too_long(&self, now: Instant, patience: Patience) -> Option<Duration> {
        if !self.fate.is_under_way() {
            return None;
        }
        let waits = self.since.iter().flatten();
        let silent = waits.map(|since| now.saturating_duration_since(*since)).max()?;
        let in_sum = self.waited + silent;
        let limit = match self.has_spoken {
            true => patience.silent,
            false => patience.first,
        };
        (silent >= limit || in_sum >= patience.in_sum).then_some(in_sum)
    }
}

/// A peer that has just connected: a stream that measures how long the handshake waits for
/// the peer. The handshake, and then the session, read through it.
#[derive(Debug)]
pub struct Newcomer {
    listener: usize,
    accepted: Instant,
    progress: Mutex<Progress>,
    /// Set with [`Fate::Admitted`], so that a session's reads take no lock. A thread that
    /// sees it late does no harm, because the fate decides.
    unwatched: AtomicBool,
    stream: Arc<dyn Duplex>,
}

impl Newcomer {
    /// The index of its listener.
    pub fn listener(&self) -> usize {
        self.listener
    }

    /// When its handshake began. Time in the backlog does not count.
    pub fn accepted(&self) -> Instant {
        self.accepted
    }

    /// The stream of its handshake and then of its session.
    pub fn stream(self: &Arc<Self>) -> Arc<dyn Duplex> {
        Arc::clone(self) as Arc<dyn Duplex>
    }

    /// Whether the server stops, which ends the newcomer's input.
    pub fn is_stopping(&self) -> bool {
        self.progress().fate == Fate::Stopping
    }

    /// Whether it was cut to make room for another newcomer.
    pub fn was_cut(&self) -> bool {
        self.progress().fate == Fate::Cut
    }

    /// Notes that all input of the handshake was received. From now on there may be a
    /// session to which others send, so a stop ends that session and not this input.
    /// False if it was cut or stopped before.
    pub fn heard(&self) -> bool {
        let mut progress = self.progress();
        if progress.fate == Fate::UnderWay {
            progress.fate = Fate::Heard;
        }
        progress.fate == Fate::Heard
    }

    /// Notes that the handshake is over. From now on reads may wait, and it is neither cut
    /// nor stopped. False if it was cut or stopped before.
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

    /// Cuts it if it has waited too long. This is decided under the lock that
    /// [`Newcomer::admitted`] takes, so an admitted newcomer is never cut.
    fn cut(&self, now: Instant, patience: Patience) -> bool {
        let mut progress = self.progress();
        let too_long = progress.waited_too_long(now, patience).is_some();
        // If bytes are there already, its thread waits for a processor of this host,
        // and not for the peer. That does not matter while it writes.
        let ours = progress.since[WRITE].is_none() && self.stream.is_readable();
        if !too_long || ours {
            return false;
        }
        progress.fate = Fate::Cut;
        let _ = self.stream.shutdown(Shutdown::Both);
        true
    }

    /// Ends its input, unless all of it was received: then the session ends instead. The
    /// peer can still be told why.
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
        let read = self.stream.try_read(buffer)?;
        if !self.unwatched.load(Ordering::Relaxed) {
            self.progress().has_spoken = true;
        }
        Ok(read)
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
