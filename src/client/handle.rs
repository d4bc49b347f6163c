//! The handle of a client for any thread, and the state that the client's threads share.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::Sender;
use uuid::Uuid;

use super::config::{ClientConfig, Offline};
use super::credentials::ClientCredentials;
use super::error::{ClientError, DialError, DialFault, SendFault, SessionEnd, UnsentError};
use super::event::{ClientCounters, ClientEvent, ServerInfo};
use super::figures::ClientFigures;
use super::inbound::Inbound;
use super::uplink::{Obstacle, Uplink};
use crate::payload::Content;
use crate::proto::Frame;
use crate::request::{Awaited, Outstanding, Request, RequestError};
use crate::silence::Silence;
use ssntp_pki::{Identity, Role, Trust};
use ssntp_transport::{Cancel, Outbox, Target, deadline, dispatch, locked, now, wall_clock};

/// Sends frames and requests, reports the client's state, and closes it. Only the
/// [`Client`](super::Client) receives events.
///
/// # Threads
/// A clone is cheap and is another handle of the same client; `Send` and `Sync`. Frames that one
/// thread sends keep their order. Only the functions that send, request or answer, `flush` and
/// `wait_connected` block; they return at once when the client is closed. Dropping a handle does
/// nothing, and a handle does not keep its client alive.
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

    #[cfg(feature = "issue")]
    pub(super) fn state(&self) -> &Arc<ClientState> {
        &self.state
    }

    /// Sends a frame: puts it into the session's queue, which is sent at once. If the queue is full,
    /// blocks until there is room, for at most the configured time. If the session agreed on
    /// tracing, the frame's trace is stamped and sent, otherwise it is left out.
    ///
    /// # Errors
    /// [`UnsentError`], which contains the frame: there is no session, there was no room in time, the
    /// kind cannot be sent, the payload is too long, or the client has ended.
    pub fn send(&self, frame: Frame) -> Result<(), UnsentError> {
        self.state.send(frame, self.state.config.send_timeout)
    }

    /// As [`send`](Self::send), for a frame with this payload and the kind of its schema.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_payload<T: Content>(&self, payload: &T) -> Result<(), UnsentError> {
        match Frame::try_of(payload) {
            Ok(frame) => self.send(frame),
            Err(e) => Err(UnsentError::new(Frame::new(T::FRAME), SendFault::Payload(e))),
        }
    }

    /// As [`send`](Self::send), but fails at once if the queue is full.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn try_send(&self, frame: Frame) -> Result<(), UnsentError> {
        self.send_timeout(frame, Duration::ZERO)
    }

    /// As [`send`](Self::send), but blocks for at most `limit`.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_timeout(&self, frame: Frame, limit: Duration) -> Result<(), UnsentError> {
        self.state.send(frame, Some(limit))
    }

    /// Sends a request, which is a frame of a kind that is registered as one
    /// ([`ClientConfig::operands`](super::ClientConfig::operands)), and blocks until its answer
    /// arrives, for at most `limit`. The server's forwarding rules for the kind choose the session
    /// that answers; without a rule, the server's handler does. Returns the frame that the other
    /// application replied with.
    ///
    /// Answers arrive in any order and are not events. But while the channel of events is full,
    /// the client reads no answers either.
    ///
    /// # Errors
    /// [`RequestError`]. A request is never sent twice, and never on a later session.
    pub fn request(&self, frame: Frame, limit: Duration) -> Result<Frame, RequestError> {
        self.request_to(Uuid::nil(), frame, limit)
    }

    /// As [`request`](Self::request), to the client `whom` of the same server. The server forwards
    /// the request and the answer.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub fn request_to(&self, whom: Uuid, frame: Frame, limit: Duration) -> Result<Frame, RequestError> {
        // The dispatcher must not wait for an answer that only the dispatcher can deliver.
        if dispatch::is_dispatcher() {
            return Err(RequestError::OnDispatcher);
        }
        if !self.state.config.operands.is_request(frame.kind()) {
            return Err(RequestError::Kind(frame.kind()));
        }
        let deadline = deadline(limit);
        let awaited = loop {
            match self.state.try_ask(whom, &frame) {
                Ok(asked) => break asked?,
                Err(obstacle) => self.state.uplink.wait(obstacle, Some(deadline))?,
            }
        };
        awaited.wait(deadline, limit)
    }

    /// As [`request`](Self::request), with types of the application: sends `question`, and reads the answer
    /// as an `A`. Both types have the kind of the request.
    ///
    /// # Errors
    /// As [`request`](Self::request), and [`RequestError::Payload`].
    pub fn request_payload<A: Content>(
        &self,
        question: &impl Content,
        limit: Duration,
    ) -> Result<A, RequestError> {
        Ok(self.request(Frame::try_of(question)?, limit)?.payload()?)
    }

    /// Answers a request. If its sender has disconnected or no longer waits, the answer is dropped
    /// on the way.
    ///
    /// # Errors
    /// [`RequestError`]; then the answer was not sent.
    pub fn reply(&self, request: &Request, payload: impl Into<Bytes>) -> Result<(), RequestError> {
        self.state.answer(request, Ok(payload.into()))
    }

    /// As [`reply`](Self::reply), with a type of the application.
    ///
    /// # Errors
    /// As [`reply`](Self::reply), and [`RequestError::Payload`].
    pub fn reply_payload(&self, request: &Request, answer: &impl Content) -> Result<(), RequestError> {
        self.reply(request, answer.write()?)
    }

    /// Refuses a request with a reason, of which at most 256 bytes are sent.
    ///
    /// # Errors
    /// [`RequestError`]; then the refusal was not sent.
    pub fn refuse(&self, request: &Request, why: &str) -> Result<(), RequestError> {
        self.state.answer(request, Err(why))
    }

    /// Replaces the client's identity and trust. Does not wait.
    ///
    /// Later handshakes use the new ones, and the client drops its TLS tickets. It tries the servers
    /// again that were ruled out, and ends a pause between attempts. If there is a session:
    ///
    /// * If the server's certificate is no longer trusted, the session ends at once with
    ///   [`SessionEnd::Certificate`], and the client connects again. The frames in its queue
    ///   are sent for at most one second, and not at all if the server's certificate is revoked.
    /// * Otherwise, if the identity has changed, the session is replaced within
    ///   [`ClientConfig::renewal_spread`](super::ClientConfig::renewal_spread), before the old
    ///   certificate expires, with [`SessionEnd::Renewed`]. A client that does not
    ///   [reconnect](super::ClientConfig::reconnect) keeps its session.
    /// * Otherwise the session is not affected.
    ///
    /// A server may not accept the new certificate yet if its authority is new as well. Then the
    /// client uses the old certificate until it expires. Each later attempt tries the new
    /// certificate first, and a session with the old one is replaced from time to time to try it.
    ///
    /// # Errors
    /// [`ClientError::Role`] if the certificate does not hold the roles that this client advertises,
    /// [`ClientError::BorrowedUuid`] if it is bound to another UUID, [`ClientError::Tls`], or the
    /// reason why the client has ended. The client keeps its credentials then.
    pub fn renew(&self, identity: &Identity, trust: &Trust) -> Result<(), ClientError> {
        self.replace(identity, Some(trust))
    }

    /// As [`renew`](Self::renew); without a trust, with the newest one.
    pub(super) fn replace(&self, identity: &Identity, trust: Option<&Trust>) -> Result<(), ClientError> {
        if let Some(reason) = self.state.uplink.ended() {
            return Err(reason);
        }
        self.state.config.check_role(identity)?;
        if let Some(bound) = identity.uuid().filter(|bound| *bound != self.state.uuid) {
            return Err(ClientError::BorrowedUuid {
                given: self.state.uuid,
                bound,
            });
        }
        let mut credentials = locked(&self.state.credentials);
        let trust = trust.unwrap_or(&credentials.trust);
        let renewed = ClientCredentials::new(identity, trust, self.state.config.resumption)?;
        let follows = renewed.connector.check_follows(&credentials.connector);
        follows.map_err(Arc::new)?;
        *credentials = renewed;
        drop(credentials);
        // If the channel is full, the core has not read the earlier signal, and will see these
        // credentials with it.
        let _ = self.state.renewal.try_send(());
        Ok(())
    }

    /// The identity that the present session uses, else that of the next attempt.
    /// [`Identity::info`] has the time at which it expires.
    pub fn identity(&self) -> Identity {
        let in_use = locked(&self.state.in_use).clone();
        in_use.unwrap_or_else(|| locked(&self.state.credentials).identity.clone())
    }

    /// The identity and the trust of the next attempt.
    #[cfg(feature = "issue")]
    pub(super) fn newest(&self) -> (Identity, Trust) {
        let newest = locked(&self.state.credentials);
        (newest.identity.clone(), newest.trust.clone())
    }

    /// Blocks until no frame waits to be sent: the operating system has taken each of them, or its
    /// session was lost. Returns false if that takes longer than `limit`, or if the client has
    /// ended.
    pub fn flush(&self, limit: Duration) -> bool {
        self.state.uplink.flush(deadline(limit))
    }

    /// Blocks until there is a session, for at most `limit` (`None`: no limit). Returns false if
    /// there is none by then.
    ///
    /// # Errors
    /// The reason if the client ended instead.
    pub fn wait_connected(&self, limit: Option<Duration>) -> Result<bool, ClientError> {
        self.state.uplink.wait_up(limit.map(deadline))
    }

    /// The client's UUID.
    pub fn uuid(&self) -> Uuid {
        self.state.uuid
    }

    /// The roles that the client advertises.
    pub fn role(&self) -> Role {
        self.state.config.role
    }

    /// True if there is a session at present.
    pub fn is_connected(&self) -> bool {
        self.server().is_some()
    }

    /// The server of the present session. `None` if there is no session.
    pub fn server(&self) -> Option<Arc<ServerInfo>> {
        self.state.uplink.server()
    }

    /// The latest cluster configuration as YAML: the payload of CONNECTED or of the last CONFIGURE
    /// since. It is kept after the end of the session. `None` before the first session, and if the
    /// server has no configuration.
    pub fn configuration(&self) -> Option<Bytes> {
        locked(&self.state.configuration).clone()
    }

    /// The counters since the client was started.
    pub fn counters(&self) -> ClientCounters {
        let late_replies = locked(&self.state.requests).late;
        let counts = locked(&self.state.counts);
        let sent = counts.present.as_ref().map(Outbox::sent).unwrap_or_default();
        ClientCounters {
            sent_frames: counts.counters.sent_frames + sent.frames,
            sent_bytes: counts.counters.sent_bytes + sent.bytes,
            bad_traces: self.state.bad_traces.load(Ordering::Relaxed),
            late_replies,
            ..counts.counters
        }
    }

    /// A snapshot for monitoring. Does not wait.
    pub fn figures(&self) -> ClientFigures {
        let waiting = self.state.uplink.waiting();
        let (since, failures) = {
            let counts = locked(&self.state.counts);
            (counts.since, counts.failures.clone())
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

    /// The servers that the client tries: their addresses.
    pub fn servers(&self) -> Vec<String> {
        let servers = self.state.config.servers();
        servers.iter().map(Target::to_string).collect()
    }

    /// The reasons why there is no session: the last failure at each server since there was one. Lacks servers that
    /// have not been tried since, or have not answered yet. Empty during a session.
    pub fn failures(&self) -> Vec<DialError> {
        locked(&self.state.failures).clone()
    }

    /// The reason why the client has ended. `None` if it has not.
    pub fn ended(&self) -> Option<ClientError> {
        self.state.uplink.ended()
    }

    /// Closes the client as [`Client::close`](super::Client::close) does, but does not wait for its
    /// threads, for example in a signal handler.
    pub fn close(&self) {
        // The order matters: first no further frame is accepted, then all waiting threads are woken,
        // then the application receives the last events.
        let end = self.state.uplink.end(ClientError::Closed);
        self.state.cancel.cancel();
        self.state.cancel_requests();
        // A reader that waits for room in the channel holds this lock. The cancel above has ended
        // its wait.
        let inbound = locked(&self.state.inbound).take();
        if let (Some(mut inbound), Some(reason)) = (inbound, self.state.uplink.ended()) {
            if end.as_ref().is_some_and(|end| end.connected) {
                inbound.offer(ClientEvent::Disconnected {
                    reason: SessionEnd::Closed,
                    retrying: false,
                });
            }
            inbound.offer(ClientEvent::Closed(reason));
        }
        if let Some(end) = end {
            locked(&self.state.counts).counters.lost_frames += end.lost;
        }
    }
}

/// The state that the client's threads and handles share.
#[derive(Debug)]
pub(super) struct ClientState {
    pub(super) config: Arc<ClientConfig>,
    pub(super) uuid: Uuid,
    pub(super) requests: Mutex<Outstanding>,
    /// Cloned into each request that this client has received, so that the strong count tells
    /// whether the application still holds one.
    pub(super) open_requests: Arc<()>,
    pub(super) uplink: Uplink,
    /// The credentials of the next attempt.
    pub(super) credentials: Mutex<ClientCredentials>,
    /// The identity of the present session.
    pub(super) in_use: Mutex<Option<Identity>>,
    /// Signals the client's thread that the credentials were replaced.
    pub(super) renewal: Sender<()>,
    /// The sending side of the channel of events. `None` once the client has ended.
    pub(super) inbound: Mutex<Option<Inbound>>,
    pub(super) configuration: Mutex<Option<Bytes>>,
    /// The last failure at each server.
    pub(super) failures: Mutex<Vec<DialError>>,
    pub(super) counts: Mutex<Counts>,
    /// Malformed traces, which the decoder of the session counts itself.
    pub(super) bad_traces: Arc<AtomicU64>,
    pub(super) cancel: Cancel,
}

impl ClientState {
    fn send(&self, frame: Frame, limit: Option<Duration>) -> Result<(), UnsentError> {
        let kind = frame.kind();
        let sent = if self.config.operands.may_be_sent(kind) {
            self.enqueue(&frame, self.config.offline, || limit.map(deadline))
        } else {
            Err(SendFault::Kind(kind))
        };
        sent.map_err(|fault| UnsentError::new(frame, fault))
    }

    /// Puts a frame into a queue, and waits for room until `until`. That is only called if there is a
    /// wait, so that sending without a wait does not read the clock.
    fn enqueue(
        &self,
        frame: &Frame,
        offline: Offline,
        until: impl Fn() -> Option<Instant>,
    ) -> Result<(), SendFault> {
        let mut deadline = None;
        while let Err(obstacle) = self.offer(frame, Some(offline)) {
            let deadline = *deadline.get_or_insert_with(&until);
            self.uplink.wait(obstacle, deadline)?;
        }
        Ok(())
    }

    /// Puts a frame into a queue if there is room.
    fn offer(&self, frame: &Frame, offline: Option<Offline>) -> Result<(), Obstacle> {
        let (len, limit) = (frame.payload_bytes().len(), self.config.max_payload);
        // The server would end the session because of this frame. Here the caller gets the reason.
        if u32::try_from(len).map_or(true, |len| len > limit) {
            return Err(Obstacle::Fault(SendFault::TooLong { len, limit }));
        }
        self.uplink.offer(frame, offline)
    }

    /// Sends a request if there is room in the queue, and if the session is not being replaced.
    pub(super) fn try_ask(
        &self,
        whom: Uuid,
        frame: &Frame,
    ) -> Result<Result<Awaited, RequestError>, Obstacle> {
        // Held until the request is in a queue. So the end of a session cancels all requests that
        // were sent on it, and none that is sent on a later one.
        let mut requests = locked(&self.requests);
        let (asking, awaited) = match requests.ask(whom, whom, frame) {
            Ok(asked) => asked,
            Err(error) => return Ok(Err(error)),
        };
        // A request that is not sent gives its place up with `awaited`.
        self.offer(&asking, None)?;
        Ok(Ok(awaited))
    }

    fn answer(&self, request: &Request, answer: Result<Bytes, &str>) -> Result<(), RequestError> {
        // `Offline::Fail`: the next session may begin much later, and the sender of the request waits.
        let until = || self.config.send_timeout.map(deadline);
        let answer = request.answer(request.from(), answer);
        Ok(self.enqueue(&answer, Offline::Fail, until)?)
    }

    /// Ends the wait for all answers, because the session is over.
    pub(super) fn cancel_requests(&self) {
        locked(&self.requests).cancel(None);
    }

    /// Ends the client for a reason that the core has found.
    pub(super) fn end(&self, reason: ClientError) {
        if let Some(end) = self.uplink.end(reason.clone()) {
            locked(&self.counts).counters.lost_frames += end.lost;
        }
        self.cancel_requests();
        let inbound = locked(&self.inbound).take();
        if let Some(mut inbound) = inbound {
            inbound.deliver(ClientEvent::Closed(reason), 0);
        }
    }

    /// Puts an event into the channel. Waits for room.
    pub(super) fn deliver(&self, event: ClientEvent) {
        if let Some(inbound) = &mut *locked(&self.inbound) {
            inbound.deliver(event, 0);
        }
    }

    /// Stores a configuration for [`ClientHandle::configuration`].
    pub(super) fn configure(&self, yaml: &Bytes) {
        // A copy, because a slice would keep the whole buffer alive in which it was received.
        let kept = (!yaml.is_empty()).then(|| Bytes::copy_from_slice(yaml));
        *locked(&self.configuration) = kept;
    }
}

/// The counters over all sessions. The reader locks them once for all frames of one read.
#[derive(Debug)]
pub(super) struct Counts {
    /// The time at which the present session began, or the last one ended.
    since: Instant,
    /// Without the frames that the outbox of the present session has sent, and without malformed
    /// traces.
    pub(super) counters: ClientCounters,
    /// The number of failed attempts by [`DialFault::word`].
    failures: BTreeMap<&'static str, u64>,
    /// The outbox of the present session. It counts the frames that it has sent, so that sending a
    /// frame does not lock these counters.
    present: Option<Outbox>,
    /// The silence of the server of the present session.
    pub(super) silence: Silence,
}

impl Counts {
    pub(super) fn new() -> Self {
        Self {
            since: now(),
            counters: ClientCounters::default(),
            failures: BTreeMap::new(),
            present: None,
            silence: Silence::new(now()),
        }
    }

    /// Counts a failed attempt.
    pub(super) fn failed(&mut self, fault: &DialFault) {
        self.counters.failed_attempts += 1;
        for fault in fault.each() {
            *self.failures.entry(fault.word()).or_default() += 1;
        }
    }

    pub(super) fn begin(&mut self, outbox: &Outbox, now: Instant) {
        self.since = now;
        self.counters.sessions += 1;
        self.present = Some(outbox.clone());
        self.silence = Silence::new(now);
    }

    /// Adds the counters of the present session's outbox, after its threads have ended.
    pub(super) fn finish(&mut self, now: Instant) {
        if let Some(outbox) = self.present.take() {
            self.since = now;
            let sent = outbox.sent();
            self.counters.sent_frames += sent.frames;
            self.counters.sent_bytes += sent.bytes;
            self.counters.lost_frames += outbox.lost();
        }
    }
}
