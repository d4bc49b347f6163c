//! Newcomers: each listener has a thread that accepts them, and each newcomer has a thread for its
//! handshake, which may take a while.
//!
//! ```text
//!  backlog ─▶ accept thread ─▶ takes a slot ─▶ handshake thread: serve(newcomer)
//!  (kernel)        ▲           all in use: the handshake     │
//!                  │           that waited longest for       ▼
//!                  │           its peer is cut            a link, or an end
//!                  └────────── the slot is given back ◀──────┘
//! ```
//!
//! The used slots are the entries of one table. A [`Slot`] removes its entry when it is dropped,
//! whether its thread served, panicked or was never started, so there is no separate count. If a
//! thread cannot be started, only that newcomer loses its connection.
//!
//! A thread that has served waits a moment for another newcomer, because the first handshake of a
//! thread costs half as much again: the cryptography library sets up state in each thread. A slot
//! goes to such a thread through a channel without capacity, so only if a thread waits for it at
//! that moment.
//!
//! While all slots are used, each listener has one accepted newcomer, and the others wait in the
//! kernel's backlog.

pub mod slots;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, available_parallelism};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, select};
use log::{error, warn};

use crate::host::{now, threads};
use crate::log_limit::LogLimit;
use crate::socket::{Cancel, Duplex, Listener, PeerAddress};

use self::slots::{HandshakeState, LOOK, Patience, Slots, Wait};

/// The time that a thread that has served waits for another newcomer.
const IDLE: Duration = Duration::from_secs(2);
/// The pause of an accept thread after an error, such as too few descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The default number of handshakes at a time: 64 for each core, and 512 at most.
///
/// A handshake takes about a millisecond of a core and several round trips. With 64 of them a core
/// is busy at round trips of up to some 20 ms, and still serves each within a tenth of a second if
/// all become ready at once, which is far below any time limit. On a small host more handshakes
/// would only wait for each other. Further newcomers wait in the kernel's backlog.
pub fn default_max_handshakes() -> usize {
    let cores = available_parallelism().map_or(1, usize::from);
    cores.saturating_mul(64).min(512)
}

/// Makes the handshake of one newcomer. Blocks until it is admitted or refused.
pub(crate) type Serve = dyn Fn(&Arc<Newcomer>) + Send + Sync;

/// The function that a handshake thread runs.
type Body = Box<dyn FnOnce() + Send>;
/// Starts a handshake thread; a test may make it fail.
type Spawn = dyn Fn(String, Body) -> io::Result<JoinHandle<()>> + Send + Sync;

/// Listeners, accept threads and handshakes of a server.
#[derive(Debug)]
pub struct Acceptance {
    handshakes: Arc<Handshakes>,
    threads: Vec<JoinHandle<()>>,
    listeners: Vec<Arc<Listener>>,
}

impl Acceptance {
    /// Starts to accept. `serve` makes the handshake of one newcomer on a thread of its own; at most
    /// `max` run at a time, and while so many run, `patience` decides which of them may be cut. Threads are
    /// named `NAME-accept` and `NAME-shake`; `target` is the target of their log lines.
    pub fn start(
        listeners: Vec<Listener>,
        name: &'static str,
        target: &'static str,
        max: usize,
        patience: Patience,
        serve: Box<Serve>,
    ) -> io::Result<Self> {
        Self::start_with(listeners, Handshakes::new(name, target, max, patience, serve))
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

    /// The number of handshakes, for figures.
    pub fn occupancy(&self) -> Arc<Occupancy> {
        Arc::new(Occupancy(Arc::clone(&self.handshakes.state)))
    }

    /// Stops accepting, ends the input of the present handshakes, and joins every thread. Blocks for
    /// that. Each accept thread joins the handshake threads that it started.
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

/// Accepts at one listener, and joins the handshake threads of its newcomers.
fn accept(index: usize, listener: &Listener, handshakes: &Arc<Handshakes>) {
    let mut threads = Vec::new();
    loop {
        match listener.accept() {
            Ok(Some(stream)) => threads.extend(handshakes.begin(index, stream)),
            Ok(None) => break,
            Err(e) if handshakes.cannot_accept(&e) => break,
            Err(_) => {}
        }
        // Joined here, so that the handles of ended threads do not pile up until the stop.
        for finished in threads.extract_if(.., |thread| thread.is_finished()) {
            let _ = finished.join();
        }
    }
    for thread in threads {
        let _ = thread.join();
    }
}

/// The number of handshakes, for figures.
#[derive(Debug)]
pub struct Occupancy(Arc<Shared>);

impl Occupancy {
    /// The number of present handshakes.
    pub fn running(&self) -> usize {
        self.0.lock().slots.running()
    }

    /// The maximum number of handshakes.
    pub fn max(&self) -> usize {
        self.0.lock().slots.max
    }

    /// The number of newcomers for which no thread could be started.
    pub fn without_thread(&self) -> u64 {
        self.0.lock().without_thread
    }
}

/// The present handshakes.
struct Handshakes {
    name: &'static str,
    target: &'static str,
    max: usize,
    serve: Box<Serve>,
    spawn: Box<Spawn>,
    /// The time that a thread that has served waits for another newcomer.
    idle: Duration,
    /// The number of handshake threads, at most the number of slots.
    threads: AtomicUsize,
    state: Arc<Shared>,
    /// Notified when a slot is given back, and when this is closed.
    changed: Condvar,
    closed: Cancel,
    /// From an accept thread to a handshake thread that has served.
    hand_over: Sender<Slot>,
    handed_over: Receiver<Slot>,
}

/// The state shared by accept threads, handshake threads and newcomers.
#[derive(Debug)]
struct State {
    slots: Slots<Arc<dyn Duplex>>,
    /// The log lines that newcomers may cause. They share one allowance, because they have not proved
    /// an identity yet.
    log: LogLimit<()>,
    without_thread: u64,
}

#[derive(Debug)]
struct Shared(Mutex<State>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Handshakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshakes")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Handshakes {
    fn new(
        name: &'static str,
        target: &'static str,
        max: usize,
        patience: Patience,
        serve: Box<Serve>,
    ) -> Self {
        let (hand_over, handed_over) = crossbeam_channel::bounded(0);
        let slots = Slots::new(max, patience);
        Self {
            name,
            target,
            max: slots.max,
            serve,
            spawn: Box::new(threads::spawn),
            idle: IDLE,
            threads: AtomicUsize::new(0),
            state: Arc::new(Shared(Mutex::new(State {
                slots,
                log: LogLimit::default(),
                without_thread: 0,
            }))),
            changed: Condvar::new(),
            closed: Cancel::new(),
            hand_over,
            handed_over,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Gives a newcomer to a thread once there is a slot for it. Returns the thread if it is new.
    fn begin(self: &Arc<Self>, listener: usize, stream: Arc<dyn Duplex>) -> Option<JoinHandle<()>> {
        let slot = self.take_slot(listener, stream)?;
        let (slot, permit) = self.hand_over(slot)?;
        let peer = slot.newcomer.peer();
        // If the thread cannot be started, the slot is dropped with the closure, and the socket with
        // the slot.
        match (self.spawn)(
            format!("{}-shake", self.name),
            Box::new(move || work(slot, &permit)),
        ) {
            Ok(thread) => Some(thread),
            Err(e) => {
                let mut state = self.lock();
                state.without_thread += 1;
                if let Some(more) = state.log.admit((), "refused", now()) {
                    warn!(target: self.target, "{peer}: refused, cannot start a thread: {e}{more}");
                }
                None
            }
        }
    }

    /// Gives a slot to a thread that has served. If none waits, returns the slot with the permit to
    /// start another thread. If there are as many threads as slots, one of them is about to wait for
    /// a slot or to end, so this does not block for long.
    fn hand_over(self: &Arc<Self>, slot: Slot) -> Option<(Slot, Permit)> {
        let mut slot = self.hand_over.try_send(slot).err()?.into_inner();
        loop {
            // Counted before the thread is started, so that two accept threads together do not exceed
            // the maximum.
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

    /// Waits for a slot, and meanwhile cuts handshakes with slow peers. `None` once this is closed.
    fn take_slot(self: &Arc<Self>, listener: usize, stream: Arc<dyn Duplex>) -> Option<Slot> {
        let mut state = self.lock();
        while state.slots.is_full() && !state.slots.is_closed {
            self.cut_slowest(&mut state, now());
            // The thread of the handshake that was cut wakes, fails and gives its slot back, which
            // ends this wait.
            state = self
                .changed
                .wait_timeout(state, LOOK)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        let id = state.slots.take(Arc::clone(&stream))?;
        let newcomer = Arc::new(Newcomer {
            listener,
            accepted: now(),
            slot: id,
            state: Arc::clone(&self.state),
            unwatched: AtomicBool::new(false),
            stream,
        });
        Some(Slot {
            handshakes: Arc::clone(self),
            newcomer,
        })
    }

    /// Cuts the handshake that has waited longest for its peer, if it has waited too long. This is
    /// decided under the lock that [`Newcomer::admitted`] takes, so an admitted newcomer is never
    /// cut.
    fn cut_slowest(&self, state: &mut State, now: Instant) {
        let Some(cut) = state.slots.cut(now, |stream| stream.is_readable()) else {
            return;
        };
        let _ = cut.shutdown(Shutdown::Both);
        if let Some(more) = state.log.admit((), "cut", now) {
            warn!(target: self.target,
                "{}: cut: it is slow, and all {} handshake slots are in use{more}",
                cut.peer(), self.max
            );
        }
    }

    /// Logs that accepting failed, and pauses. True once this is closed.
    fn cannot_accept(&self, error: &io::Error) -> bool {
        use io::ErrorKind::{ConnectionAborted, Interrupted};

        // Only this newcomer has left; the system does not lack resources.
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
        for stream in self.lock().slots.close() {
            // Only the input ends, so that the handshake can still send the reason.
            let _ = stream.shutdown(Shutdown::Read);
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

/// The permit to run one handshake thread. Dropping it gives it back.
struct Permit(Arc<Handshakes>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The slot of one handshake. Dropping it gives it back.
struct Slot {
    handshakes: Arc<Handshakes>,
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
        self.handshakes.lock().slots.give_back(self.newcomer.slot);
        self.handshakes.changed.notify_all();
    }
}

/// A peer that has just connected: a stream that measures how long the handshake waits for the peer.
/// The handshake, and then the session, read through it.
#[derive(Debug)]
pub struct Newcomer {
    listener: usize,
    accepted: Instant,
    slot: u64,
    state: Arc<Shared>,
    /// Set with [`HandshakeState::Admitted`], so that a session's reads take no lock. A thread may see it late
    /// without harm, because the fate decides.
    unwatched: AtomicBool,
    stream: Arc<dyn Duplex>,
}

impl Newcomer {
    /// The index of its listener.
    pub fn listener(&self) -> usize {
        self.listener
    }

    /// The time at which its handshake began. Time in the backlog does not count.
    pub fn accepted(&self) -> Instant {
        self.accepted
    }

    /// The stream of its handshake and then of its session.
    pub fn stream(self: &Arc<Self>) -> Arc<dyn Duplex> {
        Arc::clone(self) as Arc<dyn Duplex>
    }

    /// True if the server stops, which ends the newcomer's input.
    pub fn is_stopping(&self) -> bool {
        self.state.lock().slots.state_of(self.slot) == Some(HandshakeState::Stopping)
    }

    /// True if it was cut to make room for another newcomer.
    pub fn was_cut(&self) -> bool {
        self.state.lock().slots.state_of(self.slot) == Some(HandshakeState::Cut)
    }

    /// Notes that all input of the handshake was received. From now on there may be a session to
    /// which others send, so a stop ends that session instead of this input. False if it was cut or
    /// stopped before.
    pub fn input_complete(&self) -> bool {
        self.state.lock().slots.input_complete(self.slot)
    }

    /// Notes that the handshake is over. From now on it is neither cut nor stopped, and reads may
    /// wait. False if it was cut or stopped before.
    pub fn admitted(&self) -> bool {
        let admitted = self.state.lock().slots.admitted(self.slot);
        self.unwatched.store(true, Ordering::Relaxed);
        admitted
    }

    fn watch<T>(&self, kind: Wait, wait: impl FnOnce() -> T) -> T {
        if self.unwatched.load(Ordering::Relaxed) {
            return wait();
        }
        self.state.lock().slots.waits(self.slot, kind, now());
        let result = wait();
        self.state.lock().slots.goes_on(self.slot, kind, now());
        result
    }
}

impl Duplex for Newcomer {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.watch(Wait::Read, || self.stream.read(buffer))
    }
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.try_read(buffer)?;
        if !self.unwatched.load(Ordering::Relaxed) {
            self.state.lock().slots.sent_early(self.slot);
        }
        Ok(read)
    }
    fn wait_readable(&self) -> io::Result<()> {
        self.watch(Wait::Read, || self.stream.wait_readable())
    }
    fn is_readable(&self) -> bool {
        self.stream.is_readable()
    }
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.watch(Wait::Write, || self.stream.write(bytes))
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
    fn set_unsent(&self, bytes: u32) -> io::Result<()> {
        self.stream.set_unsent(bytes)
    }
    fn peer(&self) -> PeerAddress {
        self.stream.peer()
    }
    fn local(&self) -> Option<SocketAddr> {
        self.stream.local()
    }
}
