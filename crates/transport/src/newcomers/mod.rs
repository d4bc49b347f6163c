//! Newcomers: the threads that accept them, and make the handshake of one newcomer each.
//!
//! ```text
//!  backlog ─▶ accept ─▶ take a slot ─▶ have another thread accept ─▶ serve(newcomer) ─▶ a link, or an end
//!  (kernel)     ▲       all in use: the handshake                          │
//!               │       that waited longest for                            │
//!               │       its peer is cut                                    │
//!               └───────────────── the slot is given back ◀────────────────┘
//! ```
//!
//! The used slots are the entries of one table. A [`Slot`] removes its entry when it is dropped,
//! whether its thread served or panicked, so there is no separate count. A thread that waits for something else
//! than its peer gives its slot back before ([`Newcomer::leave_slot`]). If no other thread can be
//! started, only that newcomer loses its connection.
//!
//! A thread that has served accepts again if no more than one thread does so, because the first handshake of
//! a thread costs half as much again: the cryptography library sets up state in each thread.
//!
//! While all slots are used, each listener has one or two accepted newcomers, and the others wait in the
//! kernel's backlog.

pub mod slots;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{JoinHandle, available_parallelism};
use std::time::{Duration, Instant};

use log::{error, warn};

use crate::guard::guard;
use crate::host::{locked, locked_again, now, threads};
use crate::log_limit::LogLimit;
use crate::socket::{Cancel, Duplex, Listener, PeerAddress};

use self::slots::{HandshakeState, LOOK, Patience, Slots, Wait};

/// The number of threads of a listener that accept although one is enough: one that has served.
const SPARE: usize = 1;
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

/// Listeners and handshakes of a server.
#[derive(Debug)]
pub struct Acceptance {
    handshakes: Arc<Handshakes>,
    listeners: Vec<Arc<Listening>>,
}

impl Acceptance {
    /// Starts to accept. `serve` makes the handshake of one newcomer on a thread of its own; at most
    /// `max` run at a time, and while so many run, `patience` decides which of them may be cut. Threads are
    /// named `NAME-shake`; `target` is the target of their log lines.
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
        let acceptance = Self {
            handshakes: Arc::new(handshakes),
            listeners: (0..).zip(listeners).map(Listening::new).map(Arc::new).collect(),
        };
        for listening in &acceptance.listeners {
            if let Err(e) = acceptance.handshakes.start(listening, &threads::spawn) {
                acceptance.stop();
                return Err(e);
            }
        }
        Ok(acceptance)
    }

    /// The number of handshakes, for figures.
    pub fn occupancy(&self) -> Arc<Occupancy> {
        Arc::new(Occupancy(Arc::clone(&self.handshakes.state)))
    }

    /// Stops accepting, ends the input of the present handshakes, and joins every thread. Blocks for
    /// that.
    pub fn stop(self) {
        self.handshakes.close();
        for listening in &self.listeners {
            listening.listener.close();
        }
        // A thread that is being started is in the list before its starter ends.
        while let Some(thread) = self.handshakes.next_thread() {
            let _ = thread.join();
        }
    }
}

/// A listener with the threads that accept at it.
#[derive(Debug)]
struct Listening {
    index: usize,
    listener: Listener,
    /// The number of threads that accept.
    accepting: AtomicUsize,
}

impl Listening {
    fn new((index, listener): (usize, Listener)) -> Self {
        Self {
            index,
            listener,
            accepting: AtomicUsize::new(0),
        }
    }
}

/// The number of handshakes, for figures.
#[derive(Debug)]
pub struct Occupancy(Arc<Mutex<State>>);

impl Occupancy {
    /// The number of present handshakes.
    pub fn running(&self) -> usize {
        locked(&self.0).slots.running()
    }

    /// The maximum number of handshakes.
    pub fn limit(&self) -> usize {
        locked(&self.0).slots.limit
    }

    /// The number of newcomers for which no thread could be started.
    pub fn without_thread(&self) -> u64 {
        locked(&self.0).without_thread
    }
}

/// The present handshakes.
struct Handshakes {
    name: &'static str,
    target: &'static str,
    serve: Box<Serve>,
    spawn: Box<Spawn>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    state: Arc<Mutex<State>>,
    /// Notified when a slot is given back, and when this is closed.
    changed: Condvar,
    closed: Cancel,
}

/// The state shared by accept threads, handshake threads and newcomers.
#[derive(Debug)]
struct State {
    slots: Slots<(Arc<dyn Duplex>, PeerAddress)>,
    /// The log lines that newcomers may cause. They share one allowance, because they have not proved
    /// an identity yet.
    log: LogLimit<()>,
    without_thread: u64,
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
        Self {
            name,
            target,
            serve,
            spawn: Box::new(threads::spawn),
            threads: Mutex::default(),
            state: Arc::new(Mutex::new(State {
                slots: Slots::new(max, patience),
                log: LogLimit::default(),
                without_thread: 0,
            })),
            changed: Condvar::new(),
            closed: Cancel::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Starts a thread that accepts.
    fn start(self: &Arc<Self>, listening: &Arc<Listening>, spawn: &Spawn) -> io::Result<()> {
        let (handshakes, at) = (Arc::clone(self), Arc::clone(listening));
        listening.accepting.fetch_add(1, Ordering::SeqCst);
        let thread = spawn(
            format!("{}-shake", self.name),
            Box::new(move || handshakes.work(&at)),
        );
        let mut threads = locked(&self.threads);
        // So that the handles of ended threads do not pile up until the stop.
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread.inspect_err(|_| {
            listening.accepting.fetch_sub(1, Ordering::SeqCst);
        })?);
        Ok(())
    }

    fn next_thread(&self) -> Option<JoinHandle<()>> {
        locked(&self.threads).pop()
    }

    /// Accepts newcomers and makes their handshakes, until enough other threads do.
    fn work(self: &Arc<Self>, at: &Arc<Listening>) {
        loop {
            let stream = match at.listener.accept() {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                Err(e) if self.cannot_accept(&e) => return,
                Err(_) => continue,
            };
            let Some(slot) = self.take_slot(at.index, stream) else {
                return;
            };
            if at.accepting.fetch_sub(1, Ordering::SeqCst) == 1
                && let Err(e) = self.start(at, &*self.spawn)
            {
                at.accepting.fetch_add(1, Ordering::SeqCst);
                self.without_thread(slot.newcomer.peer, &e);
                continue;
            }
            slot.serve();
            // Before the slot is given back, so that few more threads exist than slots.
            if at.accepting.fetch_add(1, Ordering::SeqCst) > SPARE {
                at.accepting.fetch_sub(1, Ordering::SeqCst);
                return;
            }
        }
    }

    fn without_thread(&self, peer: PeerAddress, error: &io::Error) {
        let mut state = self.lock();
        state.without_thread += 1;
        if let Some(more) = state.log.admit((), "refused", now()) {
            warn!(target: self.target, "{peer}: refused, cannot start a thread: {error}{more}");
        }
    }

    /// Waits for a slot, and meanwhile cuts handshakes with slow peers. `None` once this is closed.
    fn take_slot(
        self: &Arc<Self>,
        listener: usize,
        (stream, peer): (Arc<dyn Duplex>, PeerAddress),
    ) -> Option<Slot> {
        let mut state = self.lock();
        while state.slots.is_full() && !state.slots.is_closed {
            self.cut_slowest(&mut state, now());
            // The thread of the handshake that was cut wakes, fails and gives its slot back, which
            // ends this wait.
            state = locked_again(self.changed.wait_timeout(state, LOOK)).0;
        }
        let id = state.slots.take((Arc::clone(&stream), peer), now())?;
        let newcomer = Arc::new(Newcomer {
            listener,
            accepted: now(),
            slot: id,
            state: Arc::clone(&self.state),
            closed: self.closed.clone(),
            unwatched: AtomicBool::new(false),
            stream,
            peer,
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
        let running = state.slots.running();
        let Some((stream, peer)) = state.slots.cut(now, |(stream, _)| stream.is_readable()) else {
            return;
        };
        let _ = stream.shutdown(Shutdown::Both);
        if let Some(more) = state.log.admit((), "cut", now) {
            warn!(target: self.target,
                "{peer}: cut: it is slow, and all {running} handshake slots are in use{more}"
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
        for (stream, _) in self.lock().slots.close() {
            // Only the input ends, so that the handshake can still send the reason.
            let _ = stream.shutdown(Shutdown::Read);
        }
    }
}

/// The slot of one handshake. Dropping it gives it back.
struct Slot {
    handshakes: Arc<Handshakes>,
    newcomer: Arc<Newcomer>,
}

impl Slot {
    fn serve(&self) {
        let Handshakes { serve, target, .. } = &*self.handshakes;
        // A panic in one handshake ends that newcomer's connection only.
        if guard(|| serve(&self.newcomer)).is_err() {
            error!(target: target, "{}: its handshake panicked", self.newcomer.peer);
            let _ = self.newcomer.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.handshakes.lock().slots.give_back(self.newcomer.slot, now());
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
    state: Arc<Mutex<State>>,
    /// Cancelled when the server stops accepting.
    closed: Cancel,
    /// Set with [`HandshakeState::Admitted`], so that a session's reads take no lock. A thread may see it late
    /// without harm, because the fate decides.
    unwatched: AtomicBool,
    stream: Arc<dyn Duplex>,
    /// The address that the system gave when it accepted the peer. The system may not know it any more later.
    peer: PeerAddress,
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
        locked(&self.state).slots.state_of(self.slot) == Some(HandshakeState::Stopping)
    }

    /// True if it was cut to make room for another newcomer.
    pub fn was_cut(&self) -> bool {
        locked(&self.state).slots.state_of(self.slot) == Some(HandshakeState::Cut)
    }

    /// Notes that all input of the handshake was received. From now on there may be a session to
    /// which others send, so a stop ends that session instead of this input. False if it was cut or
    /// stopped before.
    pub fn input_complete(&self) -> bool {
        locked(&self.state).slots.input_complete(self.slot, now())
    }

    /// Notes that the handshake is over. From now on it is neither cut nor stopped, and reads may
    /// wait. False if it was cut or stopped before.
    pub fn admitted(&self) -> bool {
        let admitted = locked(&self.state).slots.admitted(self.slot);
        self.unwatched.store(true, Ordering::Relaxed);
        admitted
    }

    /// As [`admitted`](Self::admitted), and gives the slot back although this thread goes on to serve, because
    /// it will wait for others. The caller bounds the number of such threads.
    pub fn leave_slot(&self) -> bool {
        let admitted = self.admitted();
        if admitted {
            // A thread that waits for a slot looks for one every few milliseconds.
            locked(&self.state).slots.give_back(self.slot, now());
        }
        admitted
    }

    /// Waits for this time, or until the server stops.
    pub fn pause(&self, time: Duration) {
        self.closed.pause(time);
    }

    fn watch<T>(&self, kind: Wait, wait: impl FnOnce() -> T) -> T {
        if self.unwatched.load(Ordering::Relaxed) {
            return wait();
        }
        locked(&self.state).slots.waits(self.slot, kind, now());
        let result = wait();
        locked(&self.state).slots.goes_on(self.slot, kind, now());
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
            locked(&self.state).slots.sent_early(self.slot);
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
    fn allow_unsent(&self, bytes: u64) {
        self.stream.allow_unsent(bytes);
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
        self.peer
    }
    fn local(&self) -> Option<SocketAddr> {
        self.stream.local()
    }
}
