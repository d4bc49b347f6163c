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

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, available_parallelism};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, select};
use log::{error, warn};

use super::deadline::now;
use super::{Cancel, Duplex, Listener, PeerAddress, threads};
use crate::log_limit::LogLimit;

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
pub(crate) struct Acceptance {
    handshakes: Arc<Handshakes>,
    threads: Vec<JoinHandle<()>>,
    listeners: Vec<Arc<Listener>>,
}

impl Acceptance {
    /// Starts to accept. `serve` brings one newcomer in, on a thread of its
    /// own; at most `max` are at it at a time. Threads are named
    /// `NAME-accept` and `NAME-shake`; `target` is where their log lines go.
    pub(crate) fn start(
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

    /// Accepts nobody any more, ends the input of the handshakes under way,
    /// and joins every thread: those of handshakes through the accept thread
    /// that started them.
    pub(crate) fn stop(self) {
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

/// The handshakes under way.
struct Handshakes {
    name: &'static str,
    target: &'static str,
    max: usize,
    serve: Box<Serve>,
    spawn: Box<Spawn>,
    patience: Patience,
    /// How long a thread that has served waits for another newcomer.
    idle: Duration,
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
        Self {
            name,
            target,
            max: max.max(1),
            serve,
            spawn: Box::new(threads::spawn),
            patience: PATIENCE,
            idle: IDLE,
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
        let slot = self.hand_over.try_send(slot).err()?.into_inner();
        let peer = slot.newcomer.peer();
        // Where no thread is started, the slot is dropped with the closure,
        // and the socket with the slot.
        match (self.spawn)(format!("{}-shake", self.name), Box::new(move || work(slot))) {
            Ok(thread) => Some(thread),
            Err(e) => {
                if let Some(more) = self.lock().log.admit((), "refused", now()) {
                    warn!(target: self.target, "{peer}: refused, cannot start a thread: {e}{more}");
                }
                None
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
fn work(first: Slot) {
    let handshakes = Arc::clone(&first.handshakes);
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
        self.handshakes.lock().taken.remove(&self.id);
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
    Cut,
    Admitted,
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
        if self.fate != Fate::UnderWay {
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
pub(crate) struct Newcomer {
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
    #[cfg_attr(
        not(feature = "opflex"),
        expect(dead_code, reason = "SSNTP does the same at each")
    )]
    pub(crate) fn listener(&self) -> usize {
        self.listener
    }

    /// When its handshake began: time in the backlog is not its own.
    pub(crate) fn accepted(&self) -> Instant {
        self.accepted
    }

    /// What its handshake, and then its session, reads through.
    pub(crate) fn stream(self: &Arc<Self>) -> Arc<dyn Duplex> {
        Arc::clone(self) as Arc<dyn Duplex>
    }

    /// Whether the server stops, which ends the newcomer's input.
    pub(crate) fn is_stopping(&self) -> bool {
        self.progress().fate == Fate::Stopping
    }

    /// The handshake is over: from here on its reads may wait, and it is
    /// neither cut nor stopped. False where it was before this.
    pub(crate) fn admitted(&self) -> bool {
        let mut progress = self.progress();
        if progress.fate == Fate::UnderWay {
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

    /// Ends its input, unless it is admitted: then it is its session that
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use crossbeam_channel::{Sender, bounded, unbounded};

    use super::super::memory::{self, Faults, MemoryListener, MemoryStream};
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);
    const LONG: Duration = Duration::from_secs(3600);
    /// Whoever waits at all may be cut.
    const NONE: Patience = Patience {
        silent: Duration::ZERO,
        in_sum: LONG,
    };
    const ENDLESS: Patience = Patience {
        silent: LONG,
        in_sum: LONG,
    };

    fn handshakes(max: usize, serve: Box<Serve>, spawn: Box<Spawn>, patience: Patience) -> Handshakes {
        Handshakes {
            idle: LONG,
            spawn,
            patience,
            ..Handshakes::new("test", "test", max, serve)
        }
    }

    fn really() -> Box<Spawn> {
        Box::new(|name: String, body: Body| threads::spawn(name, body))
    }

    /// Answers the first byte with itself; `p` makes it panic.
    fn echo() -> Box<Serve> {
        Box::new(|newcomer: &Arc<Newcomer>| {
            let mut byte = [0];
            if let Ok(1) = newcomer.stream().read(&mut byte) {
                assert_ne!(byte[0], b'p', "as asked for");
                newcomer.admitted();
                let _ = newcomer.stream().write(&byte);
            }
        })
    }

    struct Running {
        place: MemoryListener,
        acceptance: Acceptance,
    }

    impl Running {
        fn start(handshakes: Handshakes) -> Self {
            let place = MemoryListener::new();
            let listeners = vec![Listener::memory(place.clone())];
            Self {
                place,
                acceptance: Acceptance::start_with(listeners, handshakes).unwrap(),
            }
        }

        fn connect(&self) -> MemoryStream {
            let client = self.place.connect(Faults::default(), Faults::default()).unwrap();
            client.set_read_timeout(Some(LIMIT)).unwrap();
            client
        }

        /// What a client that sends this byte receives.
        fn ask(&self, byte: u8) -> usize {
            let client = self.connect();
            let _ = client.write(&[byte]);
            client.read(&mut [0]).unwrap()
        }

        /// Waits until so many slots are taken.
        fn taken(&self, slots: usize) {
            let end = now() + LIMIT;
            while self.acceptance.handshakes.lock().taken.len() != slots {
                assert!(now() < end, "not {slots} slots");
                std::thread::yield_now();
            }
        }

        fn stop(self) {
            let (done, stopped) = bounded(1);
            let stopping = threads::spawn("stops", move || {
                self.acceptance.stop();
                done.send(()).unwrap();
            });
            stopped.recv_timeout(LIMIT).expect("it does not stop");
            stopping.unwrap().join().unwrap();
        }
    }

    #[test]
    fn a_thread_that_cannot_be_started_costs_one_newcomer_alone() {
        let left = Arc::new(AtomicUsize::new(5));
        let failures = Arc::clone(&left);
        let spawn = move |name: String, body: Body| {
            let fails =
                failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            match fails {
                Ok(_) => Err(io::ErrorKind::WouldBlock.into()),
                Err(_) => threads::spawn(name, body),
            }
        };
        let running = Running::start(handshakes(2, echo(), Box::new(spawn), ENDLESS));
        // One that is under way when it begins, and stays so: nobody is idle.
        left.store(0, Ordering::Relaxed);
        let before = running.connect();
        running.taken(1);
        left.store(5, Ordering::Relaxed);
        for _ in 0..5 {
            assert_eq!(running.ask(b'x'), 0, "refused at once");
        }
        for _ in 0..3 {
            assert_eq!(running.ask(b'x'), 1);
        }
        before.write(b"x").unwrap();
        assert_eq!(before.read(&mut [0]).unwrap(), 1);
        running.taken(0);
        running.stop();
    }

    #[test]
    fn a_handshake_that_panics_gives_its_slot_back() {
        let running = Running::start(handshakes(1, echo(), really(), ENDLESS));
        for _ in 0..3 {
            assert_eq!(running.ask(b'p'), 0);
            assert_eq!(running.ask(b'x'), 1);
        }
        running.taken(0);
        running.stop();
    }

    #[test]
    fn a_thread_that_has_served_serves_again_and_only_if_it_is_idle() {
        let started = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&started);
        let spawn = move |name: String, body: Body| {
            counts.fetch_add(1, Ordering::Relaxed);
            threads::spawn(name, body)
        };
        let running = Running::start(handshakes(3, echo(), Box::new(spawn), ENDLESS));
        // Until a newcomer finds a thread that is idle again.
        let end = now() + LIMIT;
        loop {
            let before = started.load(Ordering::Relaxed);
            assert_eq!(running.ask(b'x'), 1);
            if started.load(Ordering::Relaxed) == before {
                break;
            }
            assert!(now() < end, "each has a thread of its own");
        }
        // Each is served before those that came before it: none waits for another.
        let clients = [running.connect(), running.connect(), running.connect()];
        running.taken(3);
        for client in clients.into_iter().rev() {
            client.write(b"x").unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 1);
        }
        running.taken(0);
        running.stop();
    }

    #[test]
    fn silent_peers_in_every_slot_make_room_for_an_honest_one() {
        let running = Running::start(handshakes(3, echo(), really(), NONE));
        let oldest = [running.connect(), running.connect(), running.connect()];
        running.taken(3);
        // Only who waits for its peer is cut, not who waits for a core of this host.
        let all_wait = || {
            let state = running.acceptance.handshakes.lock();
            let mut newcomers = state.taken.values();
            newcomers.all(|newcomer| newcomer.progress().since[READ].is_some())
        };
        while !all_wait() {
            std::thread::yield_now();
        }
        let _silent: Vec<_> = (0..6).map(|_| running.connect()).collect();
        assert_eq!(running.ask(b'x'), 1);
        for client in oldest {
            assert_eq!(client.read(&mut [0]).unwrap(), 0, "the oldest are cut");
        }
        running.stop();
    }

    #[test]
    fn only_time_spent_waiting_for_the_peer_counts() {
        let start = now();
        let at = |millis| start + Duration::from_millis(millis);
        let too_long = |progress: &Progress, millis| progress.waited_too_long(at(millis), PATIENCE).is_some();
        let mut silent = Progress::default();
        assert!(!too_long(&silent, 3_600_000), "it computes");
        silent.since[READ] = Some(at(0));
        assert!(!too_long(&silent, 249));
        assert!(too_long(&silent, 250));

        // A byte each 200 ms, and 800 ms of work of ours for it.
        let mut drips = Progress::default();
        for byte in 0..9 {
            drips.since[READ] = Some(at(byte * 1000));
            assert!(!too_long(&drips, byte * 1000 + 199));
            drips.end(READ, at(byte * 1000 + 200));
            assert!(!too_long(&drips, byte * 1000 + 999), "it computes");
        }
        drips.since[WRITE] = Some(at(9_000));
        assert!(!too_long(&drips, 9_199));
        assert!(too_long(&drips, 9_200), "two seconds in sum");

        for fate in [Fate::Admitted, Fate::Cut, Fate::Stopping] {
            drips.fate = fate;
            assert!(!too_long(&drips, 10_000), "{fate:?}");
        }
    }

    #[test]
    fn one_that_waits_for_this_host_or_is_admitted_is_not_cut() {
        let handshakes = Arc::new(handshakes(4, echo(), really(), NONE));
        let slot = || {
            let (here, there) = memory::pair();
            (handshakes.take_slot(0, Arc::new(here)).unwrap(), there)
        };
        let fates = |slots: &[&Slot]| -> Vec<_> {
            handshakes.cut_slowest(&mut handshakes.lock());
            slots.iter().map(|slot| slot.newcomer.progress().fate).collect()
        };
        let (computes, _peer) = slot();
        let (answered, peer) = slot();
        peer.write(b"x").unwrap();
        answered.newcomer.progress().since[READ] = Some(now());
        let (admitted, _peer) = slot();
        admitted.newcomer.progress().since[READ] = Some(now());
        assert!(admitted.newcomer.admitted());
        let all = [&computes, &answered, &admitted];
        assert_eq!(fates(&all), [Fate::UnderWay, Fate::UnderWay, Fate::Admitted]);

        // What it sends is no excuse for one that does not read.
        answered.newcomer.progress().since[WRITE] = Some(now());
        assert_eq!(fates(&all), [Fate::UnderWay, Fate::Cut, Fate::Admitted]);
        assert!(!answered.newcomer.admitted());
    }

    #[test]
    fn waits_are_counted_around_reads_and_writes() {
        let (here, there) = memory::pair();
        let handshakes = Arc::new(handshakes(1, echo(), really(), ENDLESS));
        let slot = handshakes.take_slot(0, Arc::new(here)).unwrap();
        let (waiting, stream) = (Arc::clone(&slot.newcomer), slot.newcomer.stream());
        let reader = threads::spawn("reads", move || stream.read(&mut [0]).unwrap()).unwrap();
        while waiting.progress().since[READ].is_none() {
            std::thread::yield_now();
        }
        assert_eq!(waiting.progress().waited, Duration::ZERO);
        there.write(b"x").unwrap();
        reader.join().unwrap();
        assert_eq!(waiting.progress().since, [None, None]);
        assert!(waiting.progress().waited > Duration::ZERO);
    }

    #[test]
    fn a_stop_ends_and_joins_the_handshakes_under_way() {
        let (told, stopping) = unbounded();
        let told: Sender<(bool, bool)> = told;
        let serve = move |newcomer: &Arc<Newcomer>| {
            let ended = matches!(newcomer.stream().read(&mut [0]), Ok(0));
            told.send((ended, newcomer.is_stopping())).unwrap();
        };
        let running = Running::start(handshakes(3, Box::new(serve), really(), ENDLESS));
        // One more than there are slots waits at the accept thread.
        let _silent: Vec<_> = (0..4).map(|_| running.connect()).collect();
        running.taken(3);
        running.stop();
        let said: Vec<_> = stopping.try_iter().collect();
        assert_eq!(said, [(true, true); 3]);
    }

    #[test]
    fn a_stop_returns_once_the_last_handshake_thread_has_ended() {
        let token = Arc::new(());
        let held = Arc::clone(&token);
        let serve = move |newcomer: &_| {
            let _ended = Newcomer::stream(newcomer).read(&mut [0]);
            for _ in 0..1000 {
                std::thread::yield_now();
            }
            assert_eq!(Arc::strong_count(&held), 2, "it is held until the stop is over");
        };
        let running = Running::start(handshakes(3, Box::new(serve), really(), ENDLESS));
        let _silent = [running.connect(), running.connect()];
        running.taken(2);
        running.stop();
        assert_eq!(Arc::strong_count(&token), 1);
    }

    #[test]
    fn what_a_newcomer_reads_and_writes_through_is_its_stream() {
        let handshakes = Arc::new(handshakes(1, echo(), really(), ENDLESS));
        let (here, there) = memory::pair();
        let slot = handshakes.take_slot(3, Arc::new(here)).unwrap();
        assert_eq!(slot.newcomer.listener(), 3);
        assert!(!slot.newcomer.is_stopping());
        let stream = slot.newcomer.stream();
        let mut bytes = [0; 4];
        assert!(!stream.is_readable());
        assert!(stream.try_read(&mut bytes).is_err(), "nothing is there");
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        assert!(stream.wait_readable().is_err(), "and nothing comes");
        there.write(b"abc").unwrap();
        assert!(stream.is_readable());
        stream.wait_readable().unwrap();
        assert_eq!(stream.try_read(&mut bytes).unwrap(), 3);
        assert_eq!(&bytes[..3], b"abc");
        assert_eq!(stream.try_write(b"de").unwrap(), 2);
        assert_eq!(there.read(&mut bytes).unwrap(), 2);
        assert_eq!(&bytes[..2], b"de");
        stream.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
        while stream.write(&[0; 1024]).is_ok() {}
        stream.shutdown(Shutdown::Both).unwrap();
        assert!(there.write(b"f").is_err());
    }

    #[test]
    fn after_an_error_of_the_system_accepting_rests_and_ends_once_it_is_closed() {
        let handshakes = handshakes(1, echo(), really(), ENDLESS);
        let error = io::Error::other("no more descriptors");
        let before = now();
        assert!(!handshakes.cannot_accept(&error));
        assert!(before.elapsed() >= ACCEPT_PAUSE, "it would spin");
        handshakes.close();
        assert!(handshakes.cannot_accept(&error));
    }

    #[test]
    fn a_server_has_64_handshakes_for_each_core_and_512_at_most() {
        let default = default_max_handshakes();
        assert!((64..=512).contains(&default) && default.is_multiple_of(64));
    }
}
