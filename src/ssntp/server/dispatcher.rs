//! The one thread that owns sessions, filter and routes.
//!
//! ```text
//!  handshake workers ─ Admit, Started ─┐
//!  readers ─ Soon, Items, Ended, …  ────┼─▶ bounded channel of Event ─▶ Dispatcher::step
//!  ServerHandle ─ Call ────────────────┤                                 │
//!  Server ─ Stop, Exit ────────────────┘        outboxes (never blocks) ◀┘
//! ```
//!
//! [`Event`] is the only way in. Pushing to an outbox never blocks: a full
//! one meets the slow-consumer policy. The channel holds [`EVENTS`] events;
//! when it is full, readers wait, and their peers are held back by their
//! sockets. What one session may have in it is bounded by its
//! [`Gate`](super::sessions::Gate).

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{RecvTimeoutError, Sender};
use log::{debug, error, info, warn};
use uuid::Uuid;

use super::at_once::{AtOnce, Step};
use super::config::{ConfigurationCheck, ServerConfig, Shared, SlowConsumer};
use super::events::Queue;
use super::filter::Filter;
use super::handler::{Context, DisconnectReason, Handler, HeldFrame, SendError};
use super::held::Held;
use super::routing::{Decision, Rule, RuleTable};
use super::sessions::{Counters, Directory, Gate, Session, SessionId, SessionInfo, Sessions};
use crate::Role;
use crate::pki::{CertificateInfo, KeptCertificate};
use crate::proto::{
    Command, Connect, ErrorCode, Frame, FrameKind, Item, MAX_WASTE, Refusal, Run, ServerHandshake,
    answer_to_filtered, answer_to_unsupported, may_be_sent,
};
use crate::ssntp::wire::{outgoing, unix_nanos};
use crate::transport::{EndReason, Limits, Link, Outbox, Outgoing, PeerAddress, PushError, deadline};

/// Room in the channel: enough that a burst of readers need not wait, and a
/// batch is mostly one TLS record.
pub(super) const EVENTS: usize = 256;

/// The only way into the dispatcher.
pub(super) enum Event {
    /// A handshake is complete but for the server's consent.
    Admit(Box<Admit>),
    /// The threads of an admitted session run, or could not be started.
    Started(SessionId, std::io::Result<Link>),
    /// A reader found items in so many bytes.
    Items(SessionId, Vec<Item>, usize, Arc<Gate>),
    /// A reader has come to an end.
    Ended(SessionId, EndReason),
    /// The threads of a session are about to end.
    Finished(SessionId),
    /// Another thread has something to be done here.
    Call(Box<dyn FnOnce(&mut Context<'_>) + Send>),
    /// Close every session, admit nobody.
    Stop,
    /// Nobody will send anything more but the readers.
    Exit,
    /// A reader that was silent has bytes: its items are about to come. The
    /// dispatcher wakes up while they are being opened.
    Soon,
}

/// A client that asks to be admitted.
pub(super) struct Admit {
    pub(super) connect: Connect,
    pub(super) certificate: CertificateInfo,
    pub(super) address: PeerAddress,
    pub(super) reply: Sender<Result<Admitted, Refusal>>,
}

/// A client that was admitted. Its outbox holds CONNECTED already.
pub(super) struct Admitted {
    pub(super) info: Arc<SessionInfo>,
    pub(super) outbox: Outbox,
    pub(super) gate: Arc<Gate>,
}

/// Everything the dispatcher owns but the handler.
pub(super) struct State {
    pub(super) shared: Arc<Shared>,
    pub(super) sessions: Sessions,
    pub(super) rules: RuleTable,
    pub(super) filter: Filter,
    pub(super) configuration: Bytes,
    pub(super) held: Held,
    check: Box<ConfigurationCheck>,
    takes_configure: bool,
    queue: Limits,
    slow_consumer: SlowConsumer,
    max_sessions: usize,
    grace: Duration,
    /// Sessions that are over while their threads still run.
    leaving: HashMap<SessionId, Leaving>,
    /// When they are cut off, in order: each has as long as a write.
    cut_off: VecDeque<(Instant, SessionId)>,
    parting: Duration,
    /// Sessions whose end the handler has not been told of.
    departed: Vec<(Arc<SessionInfo>, DisconnectReason)>,
    /// Frames that the handler is to be told have expired.
    overflowed: Vec<HeldFrame>,
    stopping: Option<Instant>,
    exiting: bool,
    at_once: AtOnce,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("sessions", &self.sessions.len())
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Leaving {
    link: Option<Link>,
    finished: bool,
    abort: bool,
}

/// State and application on the dispatcher thread.
pub(super) struct Dispatcher<H> {
    state: State,
    handler: H,
    /// What the handler said last.
    timer: Option<Instant>,
    events: Queue<Event>,
}

impl<H: Handler> Dispatcher<H> {
    pub(super) fn new(
        mut config: ServerConfig,
        shared: Arc<Shared>,
        max_sessions: usize,
        handler: H,
        events: Queue<Event>,
    ) -> Result<Self, super::RuleError> {
        let check = config.take_check();
        let state = State {
            shared,
            sessions: Sessions::default(),
            rules: RuleTable::try_from(config.rules)?,
            filter: config.filter,
            configuration: config.configuration,
            held: Held::new(config.held_frames, config.held_bytes, config.held_time),
            check,
            takes_configure: config.takes_configure,
            queue: config.queue,
            slow_consumer: config.slow_consumer,
            max_sessions,
            grace: config.grace,
            leaving: HashMap::new(),
            cut_off: VecDeque::new(),
            parting: config.write_timeout,
            departed: Vec::new(),
            overflowed: Vec::new(),
            stopping: None,
            exiting: false,
            at_once: AtOnce::new(events.watch()),
        };
        Ok(Self {
            state,
            handler,
            timer: None,
            events,
        })
    }

    /// Runs until [`Event::Exit`] has come and every session has ended.
    pub(super) fn run(mut self) {
        self.ask_timer();
        while !(self.state.exiting && self.state.leaving.is_empty() && self.state.sessions.len() == 0) {
            match self.events.next(self.next_deadline()) {
                Ok(event) => self.step(event),
                Err(RecvTimeoutError::Timeout) => {}
                // Every sender is gone, and with them every session.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.ask_timer();
            self.timers();
        }
    }

    fn ask_timer(&mut self) {
        let mut at = None;
        guard("next_timer", || at = self.handler.next_timer());
        self.timer = at;
    }

    fn next_deadline(&self) -> Option<Instant> {
        [
            self.state.held.next_expiry(),
            self.state.stopping,
            self.state.cut_off.front().map(|(at, _)| *at),
            self.timer,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn timers(&mut self) {
        // The clock is read only where something waits for it.
        let Some(next) = self.next_deadline() else {
            return;
        };
        let now = now();
        if now < next {
            return;
        }
        if self.state.stopping.is_some_and(|end| end <= now) {
            self.state.stopping = Some(deadline(Duration::MAX));
            self.state.abort_all();
        }
        self.state.cut_off(now);
        while let Some(held) = self.state.held.expire(now) {
            self.call("expired", |handler, cx| handler.expired(cx, held));
        }
        if self.timer.is_some_and(|at| at <= now) {
            self.call("timer", |handler, cx| handler.timer(cx));
        }
        self.notify();
        self.ask_timer();
    }

    /// Handles one event and tells the handler what came of it.
    fn step(&mut self, event: Event) {
        self.state.at_once.begin(false);
        match event {
            Event::Items(id, items, bytes, gate) => {
                if let Some(session) = self.state.sessions.get_mut(id) {
                    session.counters.bytes_received += bytes as u64;
                    let mut items = items.into_iter();
                    while let Some(item) = items.next() {
                        self.state.at_once.begin(items.len() > 0);
                        self.item(id, item);
                    }
                }
                gate.leave(bytes as u64);
            }
            Event::Admit(admit) => self.admit(*admit),
            Event::Started(id, link) => self.state.started(id, link),
            Event::Ended(id, reason) => self.state.reader_ended(id, reason),
            Event::Finished(id) => self.state.finished(id),
            Event::Call(call) => {
                let mut cx = Context {
                    state: &mut self.state,
                };
                guard("a call", || call(&mut cx));
            }
            Event::Stop => self.state.stop(),
            Event::Exit => self.state.exiting = true,
            Event::Soon => self.events.linger(),
        }
        self.notify();
    }

    /// Tells the handler of sessions that ended and frames that expired
    /// while something else was being done.
    fn notify(&mut self) {
        while !(self.state.departed.is_empty() && self.state.overflowed.is_empty()) {
            for (info, reason) in std::mem::take(&mut self.state.departed) {
                info!(target: "ssntp::server", "{info}: disconnected: {reason}");
                self.call("disconnected", |handler, cx| {
                    handler.disconnected(cx, &info, &reason)
                });
            }
            for held in std::mem::take(&mut self.state.overflowed) {
                self.call("expired", |handler, cx| handler.expired(cx, held));
            }
        }
    }

    fn call(&mut self, what: &str, call: impl FnOnce(&mut H, &mut Context<'_>)) {
        let mut cx = Context {
            state: &mut self.state,
        };
        guard(what, || call(&mut self.handler, &mut cx));
    }

    fn admit(&mut self, admit: Admit) {
        let verdict = self.state.admit(&admit);
        self.notify();
        let admitted = verdict
            .as_ref()
            .ok()
            .map(|admitted| (Arc::clone(&admitted.info), admitted.outbox.clone()));
        // A worker whose handshake was cut has stopped waiting; then its
        // session ends before it begins.
        if admit.reply.send(verdict).is_err() {
            if let Some((info, outbox)) = admitted {
                outbox.close();
                self.state.sessions.remove(info.id);
            }
            return;
        }
        if let Some((info, _)) = admitted {
            info!(target: "ssntp::server", "{info}: connected");
            self.call("connected", |handler, cx| handler.connected(cx, &info));
        }
    }

    fn item(&mut self, id: SessionId, item: Item) {
        // An item before it may have ended the session.
        let Some(session) = self.state.sessions.get_mut(id) else {
            return;
        };
        let info = Arc::clone(&session.info);
        let (kind, frames) = match &item {
            Item::Run(run) => (run.kind(), run.len()),
            Item::Traced(frame) => (frame.kind(), 1),
            Item::Unsupported(kind) => (*kind, 1),
        };
        session.counters.frames_received += u64::from(frames);
        if let Item::Unsupported(kind) = item {
            session.counters.frames_unsupported += 1;
            debug!(target: "ssntp::server", "{info}: unsupported frame {kind}");
            if let Some(answer) = answer_to_unsupported(kind) {
                self.state.answer(id, &answer);
            }
            return;
        }
        if kind == ErrorCode::CONNECTION_FAILURE || kind == ErrorCode::CONNECTION_ABORTED {
            self.state
                .end(id, DisconnectReason::PeerRefused(ErrorCode(kind.operand)), false);
            return;
        }
        if !self.state.filter.allows(info.role, kind) {
            self.state.filtered(id, kind, frames);
            return;
        }
        let configures = self.state.takes_configure
            && kind == Command::CONFIGURE
            && info.role.intersects(Role::CONTROLLER);
        match item {
            Item::Run(run) => {
                if configures {
                    // Rare, and each has to be looked at.
                    for frame in run.frames() {
                        if self.state.configure(id, &frame) {
                            self.route_run(&info, &Run::of(&frame));
                        }
                    }
                    return;
                }
                self.route_run(&info, &run);
            }
            Item::Traced(frame) => {
                if configures && !self.state.configure(id, &frame) {
                    return;
                }
                self.route_frame(&info, &frame);
                self.call("frame", |handler, cx| handler.frame(cx, &info, frame));
            }
            Item::Unsupported(_) => {}
        }
    }

    fn route_run(&mut self, info: &Arc<SessionInfo>, run: &Run) {
        match self.state.rules.get(run.kind()) {
            Some(Rule::Multicast(role)) => {
                let role = *role;
                let item = Outgoing::whole(run.wire().clone(), run.len());
                self.state.fan_out(info.id, role, |_| item.clone());
            }
            Some(Rule::Function(_)) => {
                for frame in run.frames() {
                    self.state.route_by_function(info, &frame, run.wire().len());
                }
            }
            None => {}
        }
        self.call("frame", |handler, cx| handler.run(cx, info, run));
    }

    fn route_frame(&mut self, info: &Arc<SessionInfo>, frame: &Frame) {
        match self.state.rules.get(frame.kind()) {
            Some(Rule::Multicast(role)) => {
                let role = *role;
                let shared = Arc::clone(&self.state.shared);
                let mut fan = Fan::new(frame, &shared);
                self.state
                    .fan_out(info.id, role, |session| fan.for_session(session));
            }
            Some(Rule::Function(_)) => self
                .state
                .route_by_function(info, frame, frame.payload_bytes().len()),
            None => {}
        }
    }
}

/// One frame on its way to several sessions: encoded once with its trace and
/// once without, each only where somebody needs it.
struct Fan<'a> {
    frame: &'a Frame,
    shared: &'a Arc<Shared>,
    plain: Option<Outgoing>,
    traced: Option<Outgoing>,
}

impl<'a> Fan<'a> {
    fn new(frame: &'a Frame, shared: &'a Arc<Shared>) -> Self {
        Self {
            frame,
            shared,
            plain: None,
            traced: None,
        }
    }

    fn for_session(&mut self, session: &Session) -> Outgoing {
        if session.info.tracing && self.frame.trace().is_some() {
            let traced = self.traced.get_or_insert_with(|| {
                let mut stamped = self.frame.clone();
                if let Some(trace) = stamped.trace_mut() {
                    trace.stamp_sent(self.shared.uuid, self.shared.role, unix_nanos());
                }
                outgoing(&stamped, true)
            });
            return traced.clone();
        }
        self.plain
            .get_or_insert_with(|| outgoing(self.frame, false))
            .clone()
    }
}

impl State {
    fn admit(&mut self, admit: &Admit) -> Result<Admitted, Refusal> {
        let uuid = admit.connect.source;
        if self.stopping.is_some() {
            return Err(Refusal::Busy("the server is shutting down"));
        }
        let old = self.sessions.id_of(uuid);
        if let Some(old) = old {
            let same = self
                .sessions
                .get(old)
                .is_some_and(|old| old.info.certificate.is(&admit.certificate));
            if !same {
                return Err(Refusal::UuidInUse(uuid));
            }
        }
        // Threads of sessions that are leaving count: they are still there.
        let most = self.max_sessions.saturating_add(usize::from(old.is_some()));
        if self.sessions.len() + self.leaving.len() >= most {
            return Err(Refusal::Busy("the server is at its session limit"));
        }
        if let Some(old) = old {
            self.end(old, DisconnectReason::Replaced, false);
        }
        let configuration = self.configuration.clone();
        let shared = &self.shared;
        let connected = ServerHandshake::connected(
            &admit.connect,
            shared.uuid,
            shared.role,
            shared.tracing,
            configuration,
        );
        let outbox = Outbox::new(self.queue);
        // The queue is empty and takes one item of any length.
        let _ = outbox.push(Outgoing::whole(connected.encode().into(), 1));
        let info = Arc::new(SessionInfo {
            id: self.sessions.next_id(),
            uuid,
            role: admit.connect.role,
            address: admit.address,
            certificate: KeptCertificate::new(&admit.certificate),
            tracing: connected.trace,
        });
        let gate = Arc::new(Gate::default());
        self.sessions.insert(Session {
            info: Arc::clone(&info),
            outbox: outbox.clone(),
            gate: Arc::clone(&gate),
            link: None,
            counters: Counters::default(),
            last: Step::default().into(),
        });
        Ok(Admitted { info, outbox, gate })
    }

    fn started(&mut self, id: SessionId, link: std::io::Result<Link>) {
        match link {
            Ok(link) => {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.link = Some(link);
                } else if let Some(leaving) = self.leaving.get_mut(&id) {
                    if leaving.abort {
                        link.abort();
                    }
                    leaving.link = Some(link);
                    self.reap(id);
                }
            }
            Err(e) => {
                self.end(
                    id,
                    DisconnectReason::Lost(format!("cannot start its threads: {e}")),
                    true,
                );
                self.leaving.remove(&id);
            }
        }
    }

    fn reader_ended(&mut self, id: SessionId, reason: EndReason) {
        let reason = match reason {
            EndReason::PeerClosed => DisconnectReason::PeerClosed,
            EndReason::Protocol(e) => DisconnectReason::Protocol(e.to_string()),
            other => DisconnectReason::Lost(other.to_string()),
        };
        self.end(id, reason, false);
    }

    fn finished(&mut self, id: SessionId) {
        // Its reader has said so with its last word.
        self.leaving.entry(id).or_default().finished = true;
        self.reap(id);
    }

    /// Joins the threads of a session whose last word has been heard.
    fn reap(&mut self, id: SessionId) {
        let over = self
            .leaving
            .get(&id)
            .is_some_and(|leaving| leaving.finished && leaving.link.is_some());
        if over && let Some(Leaving { link: Some(link), .. }) = self.leaving.remove(&id) {
            link.join();
            while let Some((_, id)) = self.cut_off.front()
                && !self.leaving.contains_key(id)
            {
                self.cut_off.pop_front();
            }
        }
    }

    /// Aborts the sessions that have had their time to send what waited: one
    /// whose peer takes a byte now and then would never come to an end.
    fn cut_off(&mut self, now: Instant) {
        while let Some((at, id)) = self.cut_off.front().copied()
            && at <= now
        {
            self.cut_off.pop_front();
            if let Some(leaving) = self.leaving.get_mut(&id) {
                leaving.abort = true;
                if let Some(link) = &leaving.link {
                    link.abort();
                }
            }
        }
    }

    /// Takes a session out of every index at once and lets its threads end:
    /// after its queue is flushed, or now.
    fn end(&mut self, id: SessionId, reason: DisconnectReason, abort: bool) {
        let Some(mut session) = self.sessions.remove(id) else {
            return;
        };
        session.outbox.close();
        let link = session.link.take();
        if abort && let Some(link) = &link {
            link.abort();
        }
        let leaving = self.leaving.entry(id).or_default();
        leaving.abort |= abort;
        leaving.link = link;
        self.cut_off.push_back((deadline(self.parting), id));
        self.departed.push((session.info, reason));
        self.reap(id);
    }

    fn stop(&mut self) {
        self.stopping = Some(deadline(self.grace));
        for id in self.sessions.ids() {
            self.end(id, DisconnectReason::Stopped, false);
        }
    }

    fn abort_all(&mut self) {
        for leaving in self.leaving.values_mut() {
            leaving.abort = true;
            if let Some(link) = &leaving.link {
                link.abort();
            }
        }
    }

    pub(super) fn disconnect(&mut self, uuid: Uuid) -> bool {
        match self.sessions.id_of(uuid) {
            Some(id) => {
                self.end(id, DisconnectReason::Application, false);
                true
            }
            None => false,
        }
    }

    /// Queues the same frames for every session with a role but the sender.
    fn fan_out(&mut self, from: SessionId, to: Role, mut item: impl FnMut(&Session) -> Outgoing) {
        let mut full = Vec::new();
        let mut slow = None;
        for session in self
            .sessions
            .with_role(to)
            .filter(|session| session.info.id != from)
        {
            match session.push(item(session), &self.at_once) {
                Ok(()) => {
                    if session.outbox.is_half_full() {
                        slow = Some(&session.outbox);
                    }
                }
                Err(PushError::Full(item)) => full.push((session.info.id, item)),
                Err(PushError::Closed(_)) => {}
            }
        }
        if let (Some(slow), Some(sender)) = (slow, self.sessions.get(from)) {
            sender.gate.slow_down_for(slow);
        }
        for (id, item) in full {
            self.overflow(id, item);
        }
    }

    /// `memory` is what the frame's payload keeps alive, in bytes.
    fn route_by_function(&mut self, info: &Arc<SessionInfo>, frame: &Frame, memory: usize) {
        let Some(Rule::Function(route)) = self.rules.get_mut(frame.kind()) else {
            return;
        };
        let directory = Directory {
            sessions: &self.sessions,
        };
        let mut decision = Decision::Discard;
        guard("a routing function", || {
            decision = route(frame, info.uuid, &directory)
        });
        let frame = &match decision {
            Decision::Discard => return,
            Decision::Queue | Decision::Forward(_) => apart(frame, memory),
        };
        match decision {
            Decision::Discard => {}
            Decision::Queue => {
                if let Err(held) = self.held.keep(info.uuid, frame.clone(), now()) {
                    warn!(target: "ssntp::server", "{info}: {} finds the queue of held frames full", frame.kind());
                    self.overflowed.push(held);
                }
            }
            Decision::Forward(targets) => {
                let shared = Arc::clone(&self.shared);
                let mut fan = Fan::new(frame, &shared);
                for uuid in targets {
                    if let Err(e) = self.forward_fanned(info.id, uuid, &mut fan) {
                        debug!(target: "ssntp::server", "{info}: {} is not forwarded: {e}", frame.kind());
                    }
                }
            }
        }
    }

    /// Queues a frame of one session for another, and holds the sender back
    /// while the receiver's queue is long.
    fn forward_fanned(&mut self, from: SessionId, to: Uuid, fan: &mut Fan<'_>) -> Result<(), SendError> {
        let id = self.sessions.id_of(to).ok_or(SendError::NotConnected(to))?;
        if id == from {
            return Err(SendError::ToSender(to));
        }
        let session = self.sessions.get(id).ok_or(SendError::NotConnected(to))?;
        let item = fan.for_session(session);
        if !self.push(id, item) {
            return Err(SendError::QueueFull(to));
        }
        if let (Some(sender), Some(receiver)) = (self.sessions.get(from), self.sessions.get(id))
            && receiver.outbox.is_half_full()
        {
            sender.gate.slow_down_for(&receiver.outbox);
        }
        Ok(())
    }

    pub(super) fn forward(&mut self, from: SessionId, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        if !may_be_sent(frame.kind()) {
            return Err(SendError::Kind(frame.kind()));
        }
        let shared = Arc::clone(&self.shared);
        self.forward_fanned(from, to, &mut Fan::new(frame, &shared))
    }

    /// Queues an item for one session; false where it was not.
    fn push(&mut self, id: SessionId, item: Outgoing) -> bool {
        let Some(session) = self.sessions.get(id) else {
            return false;
        };
        match session.push(item, &self.at_once) {
            Ok(()) => true,
            Err(PushError::Full(item)) => self.overflow(id, item),
            Err(PushError::Closed(_)) => false,
        }
    }

    /// Applies the policy for slow consumers; true where the item was queued
    /// after all.
    fn overflow(&mut self, id: SessionId, item: Outgoing) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let first = session.counters.frames_dropped == 0;
        match self.slow_consumer {
            SlowConsumer::Disconnect => {
                session.counters.frames_dropped += u64::from(item.frames());
                let (frames, bytes) = session.outbox.waiting();
                warn!(target: "ssntp::server",
                    "{}: slow consumer: {frames} frames of {bytes} bytes wait, it is disconnected",
                    session.info
                );
                self.end(id, DisconnectReason::SlowConsumer, true);
                false
            }
            SlowConsumer::DropNewest => {
                session.counters.frames_dropped += u64::from(item.frames());
                if first {
                    warn!(target: "ssntp::server", "{}: slow consumer: the newest frames are dropped", session.info);
                }
                false
            }
            SlowConsumer::DropOldest => {
                if first {
                    warn!(target: "ssntp::server", "{}: slow consumer: the oldest frames are dropped", session.info);
                }
                let mut item = item;
                loop {
                    let dropped = session.outbox.drop_oldest();
                    session.counters.frames_dropped += u64::from(dropped);
                    item = match session.outbox.push(item) {
                        Ok(()) => return true,
                        Err(PushError::Full(item)) if dropped > 0 => item,
                        // All that is left is on its way to the system.
                        Err(PushError::Full(item) | PushError::Closed(item)) => {
                            session.counters.frames_dropped += u64::from(item.frames());
                            return false;
                        }
                    };
                }
            }
        }
    }

    /// Whether the application may send this at all.
    fn check(&self, frame: &Frame) -> Result<(), SendError> {
        let (len, limit) = (frame.payload_bytes().len(), self.shared.max_payload);
        if !may_be_sent(frame.kind()) {
            Err(SendError::Kind(frame.kind()))
        } else if u32::try_from(len).is_ok_and(|len| len <= limit) {
            Ok(())
        } else {
            Err(SendError::TooLong { len, limit })
        }
    }

    pub(super) fn send(&mut self, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        self.check(frame)?;
        let id = self.sessions.id_of(to).ok_or(SendError::NotConnected(to))?;
        let shared = Arc::clone(&self.shared);
        let Some(session) = self.sessions.get(id) else {
            return Err(SendError::NotConnected(to));
        };
        let item = Fan::new(frame, &shared).for_session(session);
        if self.push(id, item) {
            Ok(())
        } else {
            Err(SendError::QueueFull(to))
        }
    }

    pub(super) fn send_where(
        &mut self,
        frame: &Frame,
        targets: impl FnOnce(&Sessions, &mut dyn FnMut(&Session)),
    ) -> Result<usize, SendError> {
        self.check(frame)?;
        let shared = Arc::clone(&self.shared);
        let mut fan = Fan::new(frame, &shared);
        let mut full = Vec::new();
        let mut queued = 0;
        targets(
            &self.sessions,
            &mut |session| match session.push(fan.for_session(session), &self.at_once) {
                Ok(()) => queued += 1,
                Err(PushError::Full(item)) => full.push((session.info.id, item)),
                Err(PushError::Closed(_)) => {}
            },
        );
        for (id, item) in full {
            queued += usize::from(self.overflow(id, item));
        }
        Ok(queued)
    }

    /// Sends a frame back to the session that caused it.
    fn answer(&mut self, id: SessionId, frame: &Frame) {
        self.push(id, outgoing(frame, false));
    }

    fn filtered(&mut self, id: SessionId, kind: FrameKind, frames: u32) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.counters.frames_filtered += u64::from(frames);
        debug!(target: "ssntp::server", "{}: may not send {kind}", session.info);
        if !self.filter.rejects() {
            return;
        }
        if let Some(answer) = answer_to_filtered(kind) {
            for _ in 0..frames {
                self.answer(id, &answer);
            }
        }
    }

    /// A CONFIGURE from a controller; false where it was refused.
    fn configure(&mut self, id: SessionId, frame: &Frame) -> bool {
        let payload = frame.payload_bytes();
        let mut verdict = Err("its check panicked".to_owned());
        guard("the configuration check", || verdict = (self.check)(payload));
        match verdict {
            Ok(()) => {
                if let Some(session) = self.sessions.get(id) {
                    info!(target: "ssntp::server",
                        "{}: new cluster configuration of {} bytes",
                        session.info,
                        payload.len()
                    );
                }
                // A copy of its own: the payload is a slice of a longer read.
                self.configuration = Bytes::copy_from_slice(payload);
                true
            }
            Err(why) => {
                if let Some(session) = self.sessions.get(id) {
                    warn!(target: "ssntp::server", "{}: CONFIGURE refused: {why}", session.info);
                }
                let refused = Frame::with_payload(ErrorCode::INVALID_CONFIGURATION, payload.clone());
                self.answer(id, &refused);
                false
            }
        }
    }
}

/// The frame as it may wait in a queue that counts its length alone: in memory
/// of its own where it is a small part of the run it was found in.
fn apart(frame: &Frame, memory: usize) -> Frame {
    let payload = frame.payload_bytes();
    if payload.len() >= memory / MAX_WASTE {
        return frame.clone();
    }
    let copy = Frame::with_payload(frame.kind(), Bytes::copy_from_slice(payload));
    match frame.trace() {
        Some(trace) => copy.traced(trace.clone()),
        None => copy,
    }
}

/// Runs code of the application; a panic in it is logged and goes no further.
fn guard(what: &str, call: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(call)) {
        let why = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        error!(target: "ssntp::server", "the application panicked in {what}: {why}");
    }
}

#[expect(clippy::disallowed_methods, reason = "expiry and grace are times")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_waits_keeps_no_long_run_alive() {
        let run = Bytes::from(vec![7; 100_000]);
        let found = |len| Frame::with_payload(Command::STATS, run.slice(..len));
        let small = apart(&found(10), run.len());
        assert!(small.payload_bytes().is_unique() && small == found(10));
        let most = apart(&found(90_000), run.len());
        assert_eq!(most.payload_bytes().as_ptr(), run.as_ptr(), "shared");
    }
}
