//! The one thread that owns sessions, filter and routes: what it is told, and what
//! it does about it. What it owns is in [`State`].
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

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender};
use log::{debug, error, info};

use super::config::{ServerConfig, Shared};
use super::delivery::Fan;
use super::events::Queue;
use super::handler::{Context, DisconnectReason, Handler};
use super::routing::Rule;
use super::sessions::{Gate, SessionId, SessionInfo};
use super::state::State;
use crate::Role;
use crate::pki::CertificateInfo;
use crate::proto::{Command, Connect, ErrorCode, Frame, Item, Refusal, Run, answer_to_unsupported};
use crate::transport::{EndReason, Link, Outbox, Outgoing, PeerAddress, deadline};

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
        config: ServerConfig,
        shared: Arc<Shared>,
        max_sessions: usize,
        handler: H,
        events: Queue<Event>,
    ) -> Result<Self, super::RuleError> {
        let state = State::new(config, shared, max_sessions, events.watch())?;
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
        self.state.at_once.begin(false);
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

/// Runs code of the application; a panic in it is logged and goes no further.
pub(super) fn guard(what: &str, call: impl FnOnce()) {
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
pub(super) fn now() -> Instant {
    Instant::now()
}
