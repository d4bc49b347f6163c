//! Newcomers: accepted on one thread a listener, and brought in on a bounded
//! pool of workers, where a TLS handshake may take its time.
//!
//! ```text
//!  accept thread ─▶ Pool::submit ─▶ worker: serve(newcomer) ─▶ a link, or nothing
//!      ▲                │ full: the oldest handshake that
//!      │                ▼ waits for its peer is cut
//!      └── waits 250 ms at most
//! ```
//!
//! Workers are started as they are needed, up to the bound, and end after
//! some idle seconds, so that their stacks do not stay.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use log::{debug, error, warn};

use super::{Duplex, Listener, PeerAddress, Waker, threads};

/// A handshake may be cut for a newcomer once it has waited so long for its
/// peer without a byte.
const PATIENCE: Duration = Duration::from_millis(250);
/// A handshake that has taken so long may be cut for a newcomer even though
/// bytes drip in: an honest one takes some milliseconds.
const LONG: Duration = Duration::from_secs(2);
/// How long a worker waits for the next newcomer before it ends.
const IDLE: Duration = Duration::from_secs(2);
/// Pause of an accept thread after an error such as no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Brings one newcomer in, or refuses it. Blocks for as long as that takes.
pub(crate) type Serve = dyn Fn(&Newcomer) + Send + Sync;

/// Everything that brings newcomers in.
#[derive(Debug)]
pub(crate) struct Acceptance {
    pool: Arc<Pool>,
    threads: Vec<JoinHandle<()>>,
    wakers: Vec<Waker>,
}

impl Acceptance {
    /// Starts to accept. `serve` brings one newcomer in, on a worker; at most
    /// `max` are at it at a time. Threads are named `NAME-accept` and
    /// `NAME-shake`; `target` is where their log lines go.
    pub(crate) fn start(
        listeners: Vec<Listener>,
        name: &'static str,
        target: &'static str,
        max: usize,
        serve: Box<Serve>,
    ) -> io::Result<Self> {
        let pool = Arc::new(Pool::new(name, target, serve, max));
        let mut acceptance = Self {
            pool,
            threads: Vec::new(),
            wakers: Vec::new(),
        };
        for (index, listener) in listeners.into_iter().enumerate() {
            let pool = Arc::clone(&acceptance.pool);
            let waker = listener.waker();
            match threads::spawn(format!("{name}-accept"), move || accept(index, &listener, &pool)) {
                Ok(thread) => {
                    acceptance.threads.push(thread);
                    acceptance.wakers.push(waker);
                }
                Err(e) => {
                    acceptance.stop();
                    return Err(e);
                }
            }
        }
        Ok(acceptance)
    }

    /// Accepts nobody any more, ends the input of the handshakes under way,
    /// and joins every thread.
    pub(crate) fn stop(self) {
        self.pool.close();
        for waker in &self.wakers {
            waker.wake();
        }
        for thread in self.threads {
            let _ = thread.join();
        }
        self.pool.join();
    }
}

fn accept(index: usize, listener: &Listener, pool: &Arc<Pool>) {
    let mut failing = false;
    loop {
        match listener.accept() {
            Ok(Some(stream)) => {
                failing = false;
                pool.submit(index, stream);
            }
            Ok(None) => return,
            Err(e) => {
                // One line for each time it begins, not ten a second.
                if !std::mem::replace(&mut failing, true) {
                    warn!(target: pool.target, "cannot accept: {e}");
                }
                if pool.pause(ACCEPT_PAUSE) {
                    return;
                }
            }
        }
    }
}

/// The workers, and the handshakes they are at.
struct Pool {
    name: &'static str,
    target: &'static str,
    serve: Box<Serve>,
    jobs: (Sender<Newcomer>, Receiver<Newcomer>),
    /// Disconnected, which wakes idle workers, once the pool is closed.
    closed: Receiver<()>,
    max: usize,
    started: Instant,
    state: Mutex<PoolState>,
    freed: Condvar,
}

#[derive(Default)]
struct PoolState {
    closed: bool,
    /// Dropped to disconnect [`Pool::closed`].
    open: Option<Sender<()>>,
    next: u64,
    /// Every newcomer that is not admitted or gone yet.
    pending: HashMap<u64, Newcomer>,
    workers: Vec<JoinHandle<()>>,
    idle: usize,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("max", &self.max)
            .finish_non_exhaustive()
    }
}

impl Pool {
    fn new(name: &'static str, target: &'static str, serve: Box<Serve>, max: usize) -> Self {
        let (open, closed) = crossbeam_channel::bounded(0);
        Self {
            name,
            target,
            serve,
            closed,
            // At most one job for each pending handshake.
            jobs: crossbeam_channel::bounded(max),
            max,
            started: now(),
            state: Mutex::new(PoolState {
                open: Some(open),
                ..PoolState::default()
            }),
            freed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a newcomer to a worker; waits for room, for at most about
    /// [`PATIENCE`] while peers are silent.
    fn submit(self: &Arc<Self>, listener: usize, stream: Arc<dyn Duplex>) {
        let accepted = now();
        let mut state = self.lock();
        while state.pending.len() >= self.max && !state.closed {
            let now = self.clock();
            let waits = |p: &Watched| p.waited(now).is_some_and(|waited| waited >= PATIENCE);
            let dawdles = |p: &Watched| p.accepted.elapsed() >= LONG;
            let slow = state.pending.values().filter(|p| waits(&p.0) || dawdles(&p.0));
            if let Some(oldest) = slow.min_by_key(|p| p.0.id) {
                debug!(target: self.target, "{}: cut: {} handshakes are under way", oldest.peer(), self.max);
                // Its worker wakes, fails and makes room.
                oldest.0.cut();
            }
            state = self
                .freed
                .wait_timeout(state, PATIENCE / 10)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        if state.closed {
            return;
        }
        state.next += 1;
        let watched = Newcomer(Arc::new(Watched {
            id: state.next,
            listener,
            accepted,
            pool_started: self.started,
            waiting_since: AtomicU64::new(0),
            over: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            stream,
        }));
        state.pending.insert(watched.0.id, watched.clone());
        if state.idle == 0 {
            state.workers.retain(|worker| !worker.is_finished());
            let pool = Arc::clone(self);
            match threads::spawn(format!("{}-shake", self.name), move || pool.work()) {
                Ok(worker) => state.workers.push(worker),
                Err(e) if state.workers.is_empty() => {
                    warn!(target: self.target, "{}: refused: cannot start a thread: {e}", watched.peer());
                    state.pending.remove(&watched.0.id);
                    return;
                }
                Err(e) => debug!(target: self.target, "cannot start another handshake thread: {e}"),
            }
        } else {
            state.idle -= 1;
        }
        drop(state);
        // There is room for every pending handshake.
        let _ = self.jobs.0.send(watched);
    }

    fn work(&self) {
        loop {
            let job = crossbeam_channel::select! {
                recv(self.jobs.1) -> job => job.ok(),
                recv(self.closed) -> _ => None,
                default(IDLE) => None,
            };
            let job = match job {
                Some(job) => job,
                None => {
                    let mut state = self.lock();
                    // A job may have been promised to this worker meanwhile.
                    match self.jobs.1.try_recv() {
                        Ok(job) => job,
                        Err(_) if state.closed || state.idle > 0 => {
                            state.idle = state.idle.saturating_sub(1);
                            return;
                        }
                        Err(_) => continue,
                    }
                }
            };
            let id = job.0.id;
            // A fault of ours in one handshake costs that newcomer alone.
            let served = catch_unwind(AssertUnwindSafe(|| (self.serve)(&job)));
            if served.is_err() {
                error!(target: self.target, "{}: its handshake panicked", job.peer());
                job.0.cut();
            }
            let mut state = self.lock();
            state.pending.remove(&id);
            state.idle += 1;
            drop(state);
            self.freed.notify_all();
        }
    }

    /// Waits a moment; true once the pool is closed.
    fn pause(&self, limit: Duration) -> bool {
        let state = self.lock();
        let (state, _) = self
            .freed
            .wait_timeout_while(state, limit, |s| !s.closed)
            .unwrap_or_else(PoisonError::into_inner);
        state.closed
    }

    fn clock(&self) -> u64 {
        millis(self.started)
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.open = None;
        for pending in state.pending.values() {
            // Its input ends; it can still be told why.
            pending.0.stopping.store(true, Ordering::Release);
            let _ = pending.0.stream.shutdown(Shutdown::Read);
        }
        drop(state);
        self.freed.notify_all();
    }

    fn join(&self) {
        let workers = std::mem::take(&mut self.lock().workers);
        for worker in workers {
            let _ = worker.join();
        }
    }
}

/// A stream that knows since when its handshake waits for the peer: what a
/// handshake, and then its session, reads through.
#[derive(Debug)]
struct Watched {
    id: u64,
    listener: usize,
    accepted: Instant,
    pool_started: Instant,
    /// Milliseconds of the pool's clock, plus one; 0 while nobody waits.
    waiting_since: AtomicU64,
    /// Set once the handshake is over: the session's reads are not watched.
    over: AtomicBool,
    /// Set when the server stops.
    stopping: AtomicBool,
    stream: Arc<dyn Duplex>,
}

impl Watched {
    fn waited(&self, now: u64) -> Option<Duration> {
        match self.waiting_since.load(Ordering::Relaxed) {
            0 => None,
            since => Some(Duration::from_millis((now + 1).saturating_sub(since))),
        }
    }

    fn cut(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn watch<T>(&self, wait: impl FnOnce() -> T) -> T {
        if self.over.load(Ordering::Relaxed) {
            return wait();
        }
        self.waiting_since
            .store(millis(self.pool_started) + 1, Ordering::Relaxed);
        let result = wait();
        self.waiting_since.store(0, Ordering::Relaxed);
        result
    }
}

/// Somebody who has connected.
#[derive(Clone, Debug)]
pub(crate) struct Newcomer(Arc<Watched>);

impl Newcomer {
    /// Which of the listeners it came to.
    #[cfg_attr(
        not(feature = "opflex"),
        expect(dead_code, reason = "SSNTP does the same at each")
    )]
    pub(crate) fn listener(&self) -> usize {
        self.0.listener
    }

    /// When it was accepted.
    pub(crate) fn accepted(&self) -> Instant {
        self.0.accepted
    }

    /// Who it is.
    pub(crate) fn peer(&self) -> PeerAddress {
        self.0.stream.peer()
    }

    /// What its handshake, and then its session, reads through.
    pub(crate) fn stream(&self) -> Arc<dyn Duplex> {
        Arc::clone(&self.0) as Arc<dyn Duplex>
    }

    /// Whether the server stops, which ends the newcomer's input.
    pub(crate) fn is_stopping(&self) -> bool {
        self.0.stopping.load(Ordering::Acquire)
    }

    /// The handshake is over: from here on its reads may wait.
    pub(crate) fn admitted(&self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

impl Duplex for Watched {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.watch(|| self.stream.read(buffer))
    }
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.try_read(buffer)
    }
    fn wait_readable(&self) -> io::Result<()> {
        self.watch(|| self.stream.wait_readable())
    }
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.watch(|| self.stream.write(bytes))
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

fn millis(since: Instant) -> u64 {
    u64::try_from(now().saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX)
}

#[expect(clippy::disallowed_methods, reason = "a handshake has a deadline")]
fn now() -> Instant {
    Instant::now()
}
