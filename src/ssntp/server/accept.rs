//! Newcomers: accepted on one thread a listener, brought through TLS and
//! CONNECT on a bounded pool of workers, under one deadline each.
//!
//! ```text
//!  accept thread ─▶ Pool::submit ─▶ worker: TLS ─▶ CONNECT ─▶ Event::Admit ─▶ dispatcher
//!      ▲                │ full: the handshake that has          │ Ok(Admitted)
//!      │                ▼ waited longest for its peer is cut    ▼
//!      └── waits 250 ms at most                       Link::start, Event::Started
//! ```
//!
//! Workers are started as they are needed, up to the bound, and end after
//! some idle seconds, so that their stacks do not stay.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use crossbeam_channel::{Receiver, Sender};
use log::{debug, error, info, warn};

use super::config::Shared;
use super::dispatcher::{Admit, Event};
use super::sessions::{Gate, SessionId};
use crate::Role;
use crate::pki::CertificateInfo;
use crate::proto::{Codec, Connect, ErrorCode, Frame, Item, ProtocolError, Refusal, ServerHandshake};
use crate::ssntp::wire::{outgoing, unix_nanos};
use crate::transport::tls::TlsError;
use crate::transport::{
    Decode, Duplex, EndReason, Halves, Link, LinkConfig, Listener, Outbox, PeerAddress, Sink, Waker, after,
    threads,
};

/// A handshake may be cut for a newcomer once it has waited so long for its
/// peer without a byte.
const PATIENCE: Duration = Duration::from_millis(250);
/// A handshake that has taken so long may be cut for a newcomer even though
/// bytes drip in: an honest one takes some milliseconds.
const LONG: Duration = Duration::from_secs(2);
/// How long a worker waits for the next newcomer before it ends.
const IDLE: Duration = Duration::from_secs(2);
/// How long after a refusal the peer may take to read it.
const LINGER: Duration = Duration::from_secs(1);
/// Pause of an accept thread after an error such as no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Everything that brings newcomers in.
#[derive(Debug)]
pub(super) struct Acceptance {
    pool: Arc<Pool>,
    threads: Vec<JoinHandle<()>>,
    wakers: Vec<Waker>,
}

impl Acceptance {
    pub(super) fn start(
        listeners: Vec<Listener>,
        shared: Arc<Shared>,
        max_handshakes: usize,
        events: Sender<Event>,
    ) -> io::Result<Self> {
        let pool = Arc::new(Pool::new(shared, max_handshakes, events));
        let mut acceptance = Self {
            pool,
            threads: Vec::new(),
            wakers: Vec::new(),
        };
        for listener in listeners {
            let pool = Arc::clone(&acceptance.pool);
            let waker = listener.waker();
            match threads::spawn("ssntp-accept", move || accept(&listener, &pool)) {
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

    /// Accepts nobody any more, cuts the handshakes under way, and joins
    /// every thread.
    pub(super) fn stop(self) {
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

fn accept(listener: &Listener, pool: &Arc<Pool>) {
    let mut failing = false;
    loop {
        match listener.accept() {
            Ok(Some(stream)) => {
                failing = false;
                pool.submit(stream);
            }
            Ok(None) => return,
            Err(e) => {
                // One line for each time it begins, not ten a second.
                if !std::mem::replace(&mut failing, true) {
                    warn!(target: "ssntp::server", "cannot accept: {e}");
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
    shared: Arc<Shared>,
    events: Sender<Event>,
    jobs: (Sender<Arc<Watched>>, Receiver<Arc<Watched>>),
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
    pending: HashMap<u64, Arc<Watched>>,
    workers: Vec<JoinHandle<()>>,
    idle: usize,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("max", &self.max)
            .finish_non_exhaustive()
    }
}

impl Pool {
    fn new(shared: Arc<Shared>, max: usize, events: Sender<Event>) -> Self {
        let (open, closed) = crossbeam_channel::bounded(0);
        Self {
            shared,
            events,
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
    fn submit(self: &Arc<Self>, stream: Arc<dyn Duplex>) {
        let accepted = now();
        let mut state = self.lock();
        while state.pending.len() >= self.max && !state.closed {
            let now = self.clock();
            let waits = |p: &Watched| p.waited(now).is_some_and(|waited| waited >= PATIENCE);
            let dawdles = |p: &Watched| p.accepted.elapsed() >= LONG;
            let oldest = state
                .pending
                .values()
                .filter(|p| waits(p) || dawdles(p))
                .min_by_key(|p| p.id);
            if let Some(oldest) = oldest {
                debug!(target: "ssntp::server", "{}: cut: {} handshakes are under way", oldest.peer(), self.max);
                // Its worker wakes, fails and makes room.
                oldest.cut();
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
        let watched = Arc::new(Watched {
            id: state.next,
            accepted,
            pool_started: self.started,
            waiting_since: AtomicU64::new(0),
            over: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            stream,
        });
        state.pending.insert(watched.id, Arc::clone(&watched));
        if state.idle == 0 {
            state.workers.retain(|worker| !worker.is_finished());
            let pool = Arc::clone(self);
            match threads::spawn("ssntp-shake", move || pool.work()) {
                Ok(worker) => state.workers.push(worker),
                Err(e) if state.workers.is_empty() => {
                    warn!(target: "ssntp::server", "{}: refused: cannot start a thread: {e}", watched.peer());
                    state.pending.remove(&watched.id);
                    return;
                }
                Err(e) => debug!(target: "ssntp::server", "cannot start another handshake thread: {e}"),
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
            let id = job.id;
            // A fault of ours in one handshake costs that newcomer alone.
            let served = catch_unwind(AssertUnwindSafe(|| serve(&self.shared, &self.events, &job)));
            if served.is_err() {
                error!(target: "ssntp::server", "{}: its handshake panicked", job.peer());
                job.cut();
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
            pending.stopping.store(true, Ordering::Release);
            let _ = pending.stream.shutdown(Shutdown::Read);
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

/// A stream that knows since when its handshake waits for the peer.
#[derive(Debug)]
struct Watched {
    id: u64,
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

/// What a handshake, and then its session, reads through.
#[derive(Debug)]
struct WatchedStream(Arc<Watched>);

impl Duplex for WatchedStream {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.watch(|| self.0.stream.read(buffer))
    }
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.stream.try_read(buffer)
    }
    fn wait_readable(&self) -> io::Result<()> {
        self.0.watch(|| self.0.stream.wait_readable())
    }
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.watch(|| self.0.stream.write(bytes))
    }
    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.stream.shutdown(how)
    }
    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.0.stream.set_read_timeout(limit)
    }
    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.0.stream.set_write_timeout(limit)
    }
    fn peer(&self) -> PeerAddress {
        self.0.stream.peer()
    }
}

impl Watched {
    fn peer(&self) -> PeerAddress {
        self.stream.peer()
    }
}

/// Brings one newcomer in, or refuses it.
fn serve(shared: &Arc<Shared>, events: &Sender<Event>, newcomer: &Arc<Watched>) {
    let deadline = after(newcomer.accepted, shared.handshake_timeout);
    let peer = newcomer.peer();
    let stream: Arc<dyn Duplex> = Arc::new(WatchedStream(Arc::clone(newcomer)));
    let secured = match shared
        .acceptor
        .accept(Arc::clone(&stream), &shared.pool, deadline)
    {
        Ok(secured) => secured,
        Err(e) => {
            info!(target: "ssntp::server", "{peer}: no TLS: {e}");
            if matches!(e, TlsError::Tls(_)) {
                // The alert says why; let the peer read it.
                let _ = stream.shutdown(Shutdown::Write);
                drain(&*stream);
            }
            return;
        }
    };
    let mut halves = secured.halves;
    // The verifier demands a certificate, so one is there.
    let Some(leaf) = secured.peer.first() else { return };
    let certificate = match CertificateInfo::from_der(leaf) {
        Ok(certificate) => certificate,
        Err(e) => {
            info!(target: "ssntp::server", "{peer}: refused: {e}");
            return refuse(&mut halves, Some(ErrorCode::CONNECTION_ABORTED));
        }
    };
    let connect = match receive_connect(&mut halves, &certificate, deadline) {
        Ok(connect) => connect,
        Err(Ended::Refused(refusal)) => {
            info!(target: "ssntp::server", "{peer} ({}): refused: {refusal}", certificate.subject);
            return refuse(&mut halves, refusal.answer());
        }
        Err(Ended::Lost(_)) if newcomer.stopping.load(Ordering::Acquire) => {
            return refuse(&mut halves, Some(ErrorCode::CONNECTION_FAILURE));
        }
        Err(Ended::Lost(e)) => {
            info!(target: "ssntp::server", "{peer} ({}): lost before CONNECT: {e}", certificate.subject);
            return;
        }
    };
    let (reply, verdict) = crossbeam_channel::bounded(1);
    let admit = Admit {
        connect,
        certificate,
        address: peer,
        reply,
    };
    if events.send(Event::Admit(Box::new(admit))).is_err() {
        return refuse(&mut halves, Some(ErrorCode::CONNECTION_FAILURE));
    }
    // The dispatcher answers every request, also while it stops.
    let admitted = match verdict.recv() {
        Ok(Ok(admitted)) => admitted,
        Ok(Err(refusal)) => {
            info!(target: "ssntp::server",
                "{} ({}) at {peer}: refused: {refusal}",
                connect.source, connect.role
            );
            return refuse(&mut halves, refusal.answer());
        }
        Err(_) => return refuse(&mut halves, Some(ErrorCode::CONNECTION_FAILURE)),
    };
    newcomer.over.store(true, Ordering::Relaxed);
    let id = admitted.info.id();
    let decoder = Decoder {
        codec: Codec::new(shared.max_payload, admitted.info.tracing()),
        gate: Arc::clone(&admitted.gate),
    };
    let sink = SessionSink {
        id,
        events: events.clone(),
        gate: admitted.gate,
        outbox: admitted.outbox.clone(),
        tracing: admitted.info.tracing().then(|| (shared.uuid, shared.role)),
    };
    let config = LinkConfig {
        name: id.to_string(),
        write_timeout: Some(shared.write_timeout),
        linger: LINGER,
    };
    let link = Link::start(halves, decoder, admitted.outbox, sink, config);
    let _ = events.send(Event::Started(id, link));
}

enum Ended {
    Refused(Refusal),
    Lost(io::Error),
}

fn receive_connect(
    halves: &mut Halves,
    certificate: &CertificateInfo,
    deadline: Instant,
) -> Result<Connect, Ended> {
    let handshake = ServerHandshake::new(certificate.roles, certificate.uuid);
    let mut end = false;
    loop {
        let input: &mut BytesMut = halves.inbox.bytes_mut();
        match handshake.receive(input) {
            Ok(Some(connect)) => return Ok(connect),
            Ok(None) => {}
            Err(refusal) => return Err(Ended::Refused(refusal)),
        }
        if end {
            return Err(Ended::Lost(io::ErrorKind::UnexpectedEof.into()));
        }
        let left = deadline.saturating_duration_since(now());
        if left.is_zero() {
            return Err(Ended::Refused(Refusal::Deadline));
        }
        let timed = halves.stream.set_read_timeout(Some(left));
        match timed.and_then(|()| halves.receive.receive(&mut halves.inbox)) {
            Ok(received) => {
                if received.flush {
                    halves.transmit.flush().map_err(Ended::Lost)?;
                }
                end = received.end;
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(Ended::Refused(Refusal::Deadline));
            }
            Err(e) => {
                // A TLS fault has an alert to send; the rest is best effort.
                let _ = halves.transmit.flush();
                return Err(Ended::Lost(e));
            }
        }
    }
}

/// Tells the peer, ends the stream, and lets the peer read what it was told.
fn refuse(halves: &mut Halves, answer: Option<ErrorCode>) {
    let _ = halves.stream.set_write_timeout(Some(LINGER));
    if let Some(code) = answer {
        let _ = halves.transmit.transmit(&[outgoing(&Frame::new(code), false)]);
    }
    let _ = halves.transmit.finish();
    drain(&*halves.stream);
}

/// Reads until the peer ends its side, for a moment at most: closing a
/// socket that holds unread input would destroy what is on its way.
fn drain(stream: &dyn Duplex) {
    let end = now() + LINGER;
    let mut scratch = [0; 4096];
    loop {
        let left = end.saturating_duration_since(now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return;
        }
        if !matches!(stream.read(&mut scratch), Ok(n) if n > 0) {
            return;
        }
    }
}

/// The codec, with its count of bad traces where the dispatcher sees it.
struct Decoder {
    codec: Codec,
    gate: Arc<Gate>,
}

impl Decode for Decoder {
    type Item = Item;
    type Error = ProtocolError;

    fn decode(&mut self, input: &mut BytesMut, items: &mut Vec<Item>) -> Result<(), ProtocolError> {
        let result = self.codec.decode(input, items);
        if self.codec.bad_traces() > 0 {
            self.gate
                .bad_traces
                .store(self.codec.bad_traces(), Ordering::Relaxed);
        }
        result
    }

    fn wanted(&self) -> usize {
        self.codec.wanted()
    }
}

/// Hands what a reader finds to the dispatcher.
struct SessionSink {
    id: SessionId,
    events: Sender<Event>,
    gate: Arc<Gate>,
    outbox: Outbox,
    /// Who stamps, where the session agreed on tracing.
    tracing: Option<(uuid::Uuid, Role)>,
}

impl Sink<Item> for SessionSink {
    fn items(&mut self, items: &mut Vec<Item>, bytes: usize) -> bool {
        if let Some((uuid, role)) = self.tracing {
            for item in items.iter_mut() {
                if let Item::Traced(frame) = item
                    && let Some(trace) = frame.trace_mut()
                {
                    trace.stamp_received(uuid, role, unix_nanos());
                }
            }
        }
        self.gate.enter(bytes as u64);
        let event = Event::Items(self.id, std::mem::take(items), bytes, Arc::clone(&self.gate));
        if self.events.send(event).is_err() {
            return false;
        }
        self.gate.pass();
        true
    }

    fn ended(&mut self, reason: EndReason) {
        // What the client sent before its end may still be on its way through
        // the dispatcher, and be answered: the link's own end waits until the
        // dispatcher has come to this event and closed the queue.
        if self.events.send(Event::Ended(self.id, reason)).is_ok() {
            self.outbox.wait_until_closed(LINGER);
        }
    }

    fn finished(&mut self) {
        let _ = self.events.send(Event::Finished(self.id));
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(now().saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX)
}

#[expect(clippy::disallowed_methods, reason = "a handshake has a deadline")]
fn now() -> Instant {
    Instant::now()
}
