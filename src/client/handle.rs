//! What any thread may do with a client, and the state that all of its
//! threads share.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use uuid::Uuid;

use super::credentials::Credentials;
use super::inbound::Inbound;
use super::uplink::{Obstacle, Uplink};
use super::{
    ClientConfig, ClientCounters, ClientError, ClientEvent, ClientFigures, DialError, DialFault,
    DisconnectReason, SendError, SendFault, ServerInfo,
};
use crate::payload::Content;
use crate::proto::{Frame, FrameKind};
use crate::request::{Answer, Outstanding, Request, RequestError};
use ssntp_transport::Role;
use ssntp_transport::pki::{Identity, Trust};
use ssntp_transport::{Cancel, Outbox, deadline, dispatch};

/// Sends, tells how things stand, and closes. Receiving is for the
/// [`Client`](super::Client) alone.
///
/// # Threads
/// A clone is cheap and another handle of the same client; `Send` and `Sync`.
/// Frames that one thread sends keep their order. `send`, `send_timeout`,
/// `flush` and `wait_connected` block, and end at once when the client is
/// closed; nothing else does. Dropping a handle does nothing, and a handle
/// does not keep its client alive.
#[derive(Clone)]
pub struct ClientHandle {
    state: Arc<ClientState>,
}

impl fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientHandle")
            .field("uuid", &self.uuid())
            .field("role", &self.role())
            .field("server", &self.server())
            .finish_non_exhaustive()
    }
}

impl ClientHandle {
    pub(super) fn new(state: Arc<ClientState>) -> Self {
        Self { state }
    }

    #[cfg(test)]
    pub(super) fn state(&self) -> &Arc<ClientState> {
        &self.state
    }

    /// Sends a frame: it waits in the session's queue when this returns, and
    /// goes out at once, together with whatever else waits there. When the
    /// queue is full, this blocks until there is room, for at most the
    /// configured time. A trace is stamped and sent where the session agreed
    /// on tracing, and left out elsewhere.
    ///
    /// # Errors
    /// [`SendError`], which gives the frame back: no session stands, no room
    /// in time, a kind that cannot be sent, too long, or the client ended.
    pub fn send(&self, frame: Frame) -> Result<(), SendError> {
        self.state.send(frame, self.state.config.send_timeout)
    }

    /// Sends the frame that carries `payload`, of the kind that its schema
    /// belongs to. As [`send`](Self::send) otherwise.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_payload<T: Content>(&self, payload: &T) -> Result<(), SendError> {
        match Frame::try_of(payload) {
            Ok(frame) => self.send(frame),
            Err(e) => Err(SendError::new(Frame::new(T::FRAME), SendFault::Payload(e))),
        }
    }

    /// As [`send`](Self::send), but fails at once when the queue is full.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn try_send(&self, frame: Frame) -> Result<(), SendError> {
        self.send_timeout(frame, Duration::ZERO)
    }

    /// As [`send`](Self::send), but blocks for at most `limit`.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_timeout(&self, frame: Frame, limit: Duration) -> Result<(), SendError> {
        self.state.send(frame, Some(limit))
    }

    /// Asks the server: sends a frame of a kind that is registered as a request
    /// ([`ClientConfig::operands`](super::ClientConfig::operands)) and blocks
    /// until its answer has come, for at most `limit`. Who answers is for the
    /// server to say: its rules for the kind, or else its handler. The answer's
    /// payload is what the application there replied with.
    ///
    /// Answers come past the channel of events, in any order, but not past the
    /// limit of that channel: while the application does not receive and it is full, nothing is
    /// read from the session.
    ///
    /// # Errors
    /// [`RequestError`]. It is never sent twice, nor on a later session.
    pub fn request(&self, frame: Frame, limit: Duration) -> Result<Frame, RequestError> {
        self.state.request(Uuid::nil(), &frame, limit)
    }

    /// As [`request`](Self::request), to an entity that is connected to the same
    /// server, which passes the request on to it and the answer back.
    ///
    /// # Errors
    /// As there.
    pub fn request_to(&self, whom: Uuid, frame: Frame, limit: Duration) -> Result<Frame, RequestError> {
        self.state.request(whom, &frame, limit)
    }

    /// Answers a request. One whose asker has gone, or waits no more, is dropped
    /// on its way.
    ///
    /// # Errors
    /// [`RequestError`]; nothing was sent.
    pub fn reply(&self, request: &Request, payload: impl Into<Bytes>) -> Result<(), RequestError> {
        self.state.answer(&request.reply(payload.into()))
    }

    /// Says that there will be no answer, and why, in at most 256 bytes.
    ///
    /// # Errors
    /// [`RequestError`]; nothing was sent.
    pub fn refuse(&self, request: &Request, why: &str) -> Result<(), RequestError> {
        self.state.answer(&request.refusal(why))
    }

    /// Replaces what this client shows and whom it trusts. Does not wait.
    ///
    /// Later handshakes use the new ones, and tickets of former sessions are
    /// forgotten. Servers that were ruled out are tried again, and a pause between
    /// attempts ends now. Of a session that stands:
    ///
    /// * Where the server's certificate is not trusted any more, it ends at once,
    ///   with [`DisconnectReason::Certificate`], and the client connects again. The
    ///   server has a second for what was sent before, and nothing where its
    ///   certificate is revoked.
    /// * Otherwise, where the identity is another one, the session is replaced
    ///   within [`ClientConfig::renewal_spread`](super::ClientConfig::renewal_spread),
    ///   before the old certificate ends, with [`DisconnectReason::Renewed`]. A
    ///   client that does not [reconnect](super::ClientConfig::reconnect) keeps it.
    /// * Otherwise nothing happens to it.
    ///
    /// A server may not take the new certificate yet, where its authority is new
    /// as well. Then the old one is used again until it ends, and the new one is
    /// tried first in every later attempt, and now and then.
    ///
    /// # Errors
    /// [`ClientError::Role`]: the certificate does not hold the roles that this
    /// client advertises; [`ClientError::BorrowedUuid`]: it is bound to another
    /// UUID; [`ClientError::Tls`]; and why the client has ended, if it has. Nothing
    /// has changed then.
    pub fn renew(&self, identity: &Identity, trust: &Trust) -> Result<(), ClientError> {
        self.state.renew(identity, trust)
    }

    /// What this client shows: in the session that stands, else in the next
    /// attempt. [`Identity::info`] says until when it is valid.
    pub fn identity(&self) -> Identity {
        let in_use = lock(&self.state.in_use).clone();
        in_use.unwrap_or_else(|| lock(&self.state.credentials).identity.clone())
    }

    /// Blocks until no sent frame waits any more: the system has taken each,
    /// or its session was lost. False when `limit` has passed before, or the
    /// client has ended.
    pub fn flush(&self, limit: Duration) -> bool {
        self.state.uplink.flush(deadline(limit))
    }

    /// Blocks until a session stands, for at most `limit` (`None`: as long
    /// as it takes); false when none does by then.
    ///
    /// # Errors
    /// Why the client ended instead.
    pub fn wait_connected(&self, limit: Option<Duration>) -> Result<bool, ClientError> {
        self.state.uplink.wait_up(limit.map(deadline))
    }

    /// The client's UUID.
    pub fn uuid(&self) -> Uuid {
        self.state.uuid
    }

    /// The roles that it advertises.
    pub fn role(&self) -> Role {
        self.state.config.role
    }

    /// Whether a session stands at present.
    pub fn is_connected(&self) -> bool {
        self.server().is_some()
    }

    /// The server of the present session, if one stands.
    pub fn server(&self) -> Option<ServerInfo> {
        self.state.uplink.server()
    }

    /// The latest cluster configuration as YAML: what CONNECTED carried,
    /// replaced by each CONFIGURE since. It is kept while no session stands.
    /// `None` before the first session, and where the server has none.
    pub fn configuration(&self) -> Option<Bytes> {
        lock(&self.state.configuration).clone()
    }

    /// What has been carried so far.
    pub fn counters(&self) -> ClientCounters {
        ClientCounters {
            late_replies: lock(&self.state.requests).late(),
            ..self.state.counts.read()
        }
    }

    /// What the client knows about itself, at one moment. Does not wait.
    pub fn figures(&self) -> ClientFigures {
        let counts = &self.state.counts;
        let waiting = self.state.uplink.waiting();
        let (since, failures) = {
            let counted = lock(&counts.counted);
            (counted.since, counted.failures.clone())
        };
        let passed = now().saturating_duration_since(since);
        let now = wall_clock();
        ClientFigures {
            server: self.server(),
            since: now.checked_sub(passed).unwrap_or(now),
            counters: self.counters(),
            failures,
            frames_waiting: waiting.frames,
            bytes_waiting: waiting.bytes,
        }
    }

    /// Why no session stands: what went wrong at each server in the latest
    /// round of attempts. Empty before the first round is over, and once a
    /// session stands.
    pub fn failures(&self) -> Vec<DialError> {
        lock(&self.state.failures).clone()
    }

    /// Why the client ended, once it has.
    pub fn ended(&self) -> Option<ClientError> {
        self.state.uplink.ended()
    }

    /// Closes the client, as [`Client::close`](super::Client::close) does,
    /// without waiting for its threads: for signal handlers and the like.
    pub fn close(&self) {
        self.state.close();
    }
}

/// What all threads of a client see.
#[derive(Debug)]
pub(super) struct ClientState {
    pub(super) config: Arc<ClientConfig>,
    pub(super) uuid: Uuid,
    pub(super) requests: Mutex<Outstanding>,
    /// Held by each request that this client has received and not yet dropped.
    pub(super) asked: Arc<()>,
    pub(super) uplink: Uplink,
    /// Of the next attempt.
    pub(super) credentials: Mutex<Credentials>,
    /// Of the session that stands.
    pub(super) in_use: Mutex<Option<Identity>>,
    /// Tells the supervisor that the credentials were replaced.
    pub(super) news: Sender<()>,
    /// `None` once the client has ended.
    pub(super) inbound: Mutex<Option<Inbound>>,
    pub(super) configuration: Mutex<Option<Bytes>>,
    /// Of the latest round of attempts.
    pub(super) failures: Mutex<Vec<DialError>>,
    pub(super) counts: Counts,
    pub(super) cancel: Cancel,
}

impl ClientState {
    fn send(&self, frame: Frame, limit: Option<Duration>) -> Result<(), SendError> {
        let (kind, len, max) = (frame.kind(), frame.payload_bytes().len(), self.config.max_payload);
        if !self.config.operands.may_be_sent(kind) {
            return Err(SendError::new(frame, SendFault::Kind(kind)));
        }
        // The server would end the session for it, so it is refused here, where the caller
        // learns why.
        if u32::try_from(len).map_or(true, |len| len > max) {
            return Err(SendError::new(frame, SendFault::TooLong { len, limit: max }));
        }
        // Set when there is something to wait for, so that sending without a
        // wait does not read the clock.
        let mut until = None;
        loop {
            let obstacle = match self.uplink.offer(&frame) {
                Ok(()) => return Ok(()),
                Err(Obstacle::Fault(fault)) => return Err(SendError::new(frame, fault)),
                Err(obstacle) => obstacle,
            };
            let until = *until.get_or_insert_with(|| limit.map(deadline));
            if !self.uplink.wait(obstacle, frame.encoded_len(), until) {
                return Err(SendError::new(frame, SendFault::Full));
            }
        }
    }

    fn request(&self, whom: Uuid, frame: &Frame, limit: Duration) -> Result<Frame, RequestError> {
        // The answer may have to come through this very thread.
        if dispatch::is_dispatcher() {
            return Err(RequestError::OnDispatcher);
        }
        if !self.config.operands.is_request(frame.kind()) {
            return Err(RequestError::Kind(frame.kind()));
        }
        let deadline = deadline(limit);
        let (id, answered) = loop {
            // The number that was rung comes first, so that a change between the two looks is not
            // missed.
            let rung = self.uplink.rung();
            if let Some(asked) = self.ask(whom, frame, deadline) {
                break asked?;
            }
            if self.uplink.ended().is_some() {
                return Err(RequestError::Ended);
            }
            if !self.uplink.wait_for_change(rung, deadline) {
                return Err(RequestError::NotConnected);
            }
        };
        answered.recv_deadline(deadline).unwrap_or_else(|_| {
            lock(&self.requests).forget(id);
            Err(RequestError::TimedOut(limit))
        })
    }

    /// Sends a request, for whose place in the queue it waits until then. `None` while
    /// new ones wait for the next session.
    pub(super) fn ask(
        &self,
        whom: Uuid,
        frame: &Frame,
        until: Instant,
    ) -> Option<Result<(u64, Receiver<Answer>), RequestError>> {
        let mut requests = lock(&self.requests);
        if requests.is_held() {
            return None;
        }
        let asked = requests.ask(whom, frame);
        drop(requests);
        Some(asked.and_then(|(id, asking, answered)| {
            let sent = self.exchange(&asking, Some(until));
            if sent.is_err() {
                lock(&self.requests).forget(id);
            }
            sent.map(|()| (id, answered))
        }))
    }

    fn renew(&self, identity: &Identity, trust: &Trust) -> Result<(), ClientError> {
        if let Some(reason) = self.uplink.ended() {
            return Err(reason);
        }
        let (advertised, certified) = (self.config.role, identity.roles());
        if !advertised.may_be_advertised_with(certified) {
            return Err(ClientError::Role {
                advertised,
                certified,
            });
        }
        if let Some(bound) = identity.uuid().filter(|bound| *bound != self.uuid) {
            return Err(ClientError::BorrowedUuid {
                given: self.uuid,
                bound,
            });
        }
        let renewed = Credentials::new(identity, trust, self.config.resumption)?;
        let mut credentials = lock(&self.credentials);
        let follows = renewed.connector.check_follows(&credentials.connector);
        follows.map_err(Arc::new)?;
        *credentials = renewed;
        drop(credentials);
        // One that waits to be taken tells of these as well.
        let _ = self.news.try_send(());
        Ok(())
    }

    fn answer(&self, frame: &Frame) -> Result<(), RequestError> {
        self.exchange(frame, self.config.send_timeout.map(deadline))
    }

    /// Sends a request or an answer on the session that stands, where it has a place until then.
    fn exchange(&self, frame: &Frame, until: Option<Instant>) -> Result<(), RequestError> {
        let (len, max) = (frame.payload_bytes().len(), self.config.max_payload);
        if u32::try_from(len).map_or(true, |len| len > max) {
            return Err(RequestError::TooLong { len, limit: max });
        }
        loop {
            let obstacle = match self.uplink.offer_to_session(frame) {
                Ok(()) => return Ok(()),
                Err(Obstacle::Fault(SendFault::Ended(_))) => return Err(RequestError::Ended),
                Err(Obstacle::Fault(_)) => return Err(RequestError::NotConnected),
                Err(obstacle) => obstacle,
            };
            if !self.uplink.wait(obstacle, frame.encoded_len(), until) {
                return Err(RequestError::QueueFull);
            }
        }
    }

    /// The server takes no frames of that kind.
    pub(super) fn refused_kind(&self, kind: FrameKind) {
        lock(&self.requests).unsupported(kind);
    }

    /// Whether new requests are to wait for the next session.
    pub(super) fn hold_requests(&self, held: bool) {
        lock(&self.requests).hold(held);
    }

    /// The session is over: nothing that was asked on it is answered any more.
    pub(super) fn cancel_requests(&self) {
        lock(&self.requests).cancel(None);
    }

    /// Ends the client from outside: every wait ends at once, the supervisor
    /// sees to the rest.
    pub(super) fn close(&self) {
        // The order: no further frame is taken, then everybody who waits is woken, then the
        // application is told.
        let end = self.uplink.end(ClientError::Closed);
        self.cancel.cancel();
        self.cancel_requests();
        // A reader that waits for the application holds this lock; the cancel
        // above has ended its wait.
        let inbound = lock(&self.inbound).take();
        if let (Some(mut inbound), Some(reason)) = (inbound, self.uplink.ended()) {
            if end.as_ref().is_some_and(|end| end.connected) {
                inbound.offer(ClientEvent::Disconnected {
                    reason: DisconnectReason::Closed,
                    retrying: false,
                });
            }
            inbound.offer(ClientEvent::Closed(reason));
        }
        if let Some(end) = end {
            self.counts.lose(end.lost);
        }
    }

    /// Ends the client from inside.
    pub(super) fn end(&self, reason: ClientError) {
        if let Some(end) = self.uplink.end(reason.clone()) {
            self.counts.lose(end.lost);
        }
        self.cancel_requests();
        let inbound = lock(&self.inbound).take();
        if let Some(mut inbound) = inbound {
            inbound.deliver(ClientEvent::Closed(reason), 0);
        }
    }

    /// Puts an event into the channel; waits for room.
    pub(super) fn deliver(&self, event: ClientEvent) {
        if let Some(inbound) = &mut *lock(&self.inbound) {
            inbound.deliver(event, 0);
        }
    }

    /// Keeps a configuration. It is copied, so that it does not keep the
    /// whole buffer alive in which it was received.
    pub(super) fn configure(&self, yaml: &Bytes) {
        // A copy, because the payload is a piece of a longer read.
        let kept = (!yaml.is_empty()).then(|| Bytes::copy_from_slice(yaml));
        *lock(&self.configuration) = kept;
    }
}

/// What is counted, over all sessions.
#[derive(Debug)]
pub(super) struct Counts {
    counted: Mutex<Counted>,
    /// The reader of the session counts these itself.
    pub(super) bad_traces: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Counted {
    /// Since when a session stands, or none.
    since: Instant,
    /// Without what the outbox of the present session has sent.
    counters: ClientCounters,
    /// Attempts that failed, by the word for the reason.
    failures: BTreeMap<&'static str, u64>,
    /// The outbox of the present session counts for itself.
    present: Option<Outbox>,
}

impl Counts {
    pub(super) fn new() -> Self {
        Self {
            counted: Mutex::new(Counted {
                since: now(),
                counters: ClientCounters::default(),
                failures: BTreeMap::new(),
                present: None,
            }),
            bad_traces: Arc::default(),
        }
    }

    /// Counts something. The reader does that once for all that one read brings, so the
    /// lock costs a frame nothing.
    pub(super) fn add(&self, add: impl FnOnce(&mut ClientCounters)) {
        add(&mut lock(&self.counted).counters);
    }

    /// An attempt has failed.
    pub(super) fn failed(&self, fault: &DialFault) {
        let mut counted = lock(&self.counted);
        counted.counters.failed_attempts += 1;
        *counted.failures.entry(fault.word()).or_default() += 1;
    }

    pub(super) fn begin(&self, outbox: &Outbox, now: Instant) {
        let mut counted = lock(&self.counted);
        counted.since = now;
        counted.counters.sessions += 1;
        counted.present = Some(outbox.clone());
    }

    /// The present session's threads have ended.
    pub(super) fn finish(&self, now: Instant) {
        let mut counted = lock(&self.counted);
        if let Some(outbox) = counted.present.take() {
            counted.since = now;
            let (sent, counters) = (outbox.sent(), &mut counted.counters);
            counters.sent_frames += sent.frames;
            counters.sent_bytes += sent.bytes;
            counters.lost_frames += outbox.lost();
        }
    }

    pub(super) fn lose(&self, frames: u64) {
        self.add(|counters| counters.lost_frames += frames);
    }

    fn read(&self) -> ClientCounters {
        let counted = lock(&self.counted);
        // What the present session has sent is asked of its queue, so that no counter is touched
        // for each frame.
        let sent = counted.present.as_ref().map(Outbox::sent).unwrap_or_default();
        ClientCounters {
            sent_frames: counted.counters.sent_frames + sent.frames,
            sent_bytes: counted.counters.sent_bytes + sent.bytes,
            bad_traces: self.bad_traces.load(Ordering::Relaxed),
            ..counted.counters
        }
    }
}

/// What a panicking thread left behind is still whole: every change under
/// these locks is one assignment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "time limits of waits")]
pub(super) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "when something was, for people")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
