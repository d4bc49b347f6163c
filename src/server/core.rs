//! The state of a server: its sessions, its rules, and where each frame goes.
//!
//! ```text
//!  admit ─▶ Session ─ admitted(told) ─▶ items ─ filter ─ rules ─ handler ─▶ Action::Send
//!              │                                                     │
//!              └─ ended, replaced, refused, stop ─▶ departed ─▶ Handler::disconnected
//! ```
//!
//! This module is public for two kinds of programs: simulations, which step the code that
//! serves a cluster in virtual time, and programs that bring their own threads. Others use
//! [`Server`](super::Server), which runs a core on a dispatcher thread.
//!
//! A [`ServerCore`] has no sockets, no threads and no clock. Its owner implements
//! [`Core`]'s counterpart: it calls `admit`, `admitted`, `item`, `ended`, `gone`, `tick` and
//! `stop` with the time, calls `settle` after each, and carries out the [`Action`]s that come back.
//! `ssntp_transport::dispatch::Runner` does that for [`Server`](super::Server).
//!
//! | type | what it is |
//! |---|---|
//! | [`ServerCore`] | all state of a server, with its application |
//! | [`Environment`] | the part that threads share: credentials, limits, counts of newcomers |
//! | [`Entry`] | the way in of a newcomer, client or server, step by step |
//! | [`Redial`] | when another server is dialled |
//! | [`AdmissionRequest`], [`Grant`] | a client that asks to be admitted, and the answer |
//!
//! A session is in the index from its admission until its end, which takes it out of every
//! index at once; its threads may then still send what waits.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use crossbeam_channel::Sender;
use log::{debug, error, info, warn};
use uuid::Uuid;

use super::admission::AdmissionPolicy;
use super::audit::{AUDIT, Named};
use super::bans::Bans;
use super::certificates::Certificates;
pub use super::config::Environment;
use super::config::{ConfigurationCheck, ServerConfig, SlowConsumer};
use super::delivery::Fan;
use super::disconnect::DisconnectReason;
pub use super::entry::{CLAIM, Entry, NoEntry, Step};
pub use super::federation::{Attempt, LinkRequest, Redial};
use super::federation::{Bundle, Dialler, End, Links};
use super::filter::Filter;
use super::handler::{Context, Handler};
use super::held::{Held, HeldFrame};
use super::operators::is_of_operators;
use super::routing::{Rule, RuleTable};
use super::sessions::{SessionId, SessionInfo, Sessions};
use super::tally::Tally;
use super::watching::Watcher;
use crate::proto::{Command, Connect, ErrorCode, Frame, Item, Refusal, Run, answer_to_unsupported};
use crate::request::Outstanding;
pub use crate::wire::Decoder;
use ssntp_transport::LogLimit;
use ssntp_transport::Role;
use ssntp_transport::dispatch::{Action, Core, DistantChange, Drops, Origin};
use ssntp_transport::excerpt;
use ssntp_transport::pki::{CertificateDer, CertificateInfo, KeptCertificate};
use ssntp_transport::{ConnectionId, EndReason, Gauge, Limits, Load, Outgoing, PeerAddress, Table};

/// A client that asks to be admitted.
#[derive(Debug)]
pub struct AdmissionRequest {
    /// What its CONNECT says.
    pub connect: Connect,
    /// Its own certificate.
    pub certificate: CertificateInfo,
    /// What it showed with its certificate.
    pub intermediates: Vec<CertificateDer<'static>>,
    /// When its session ends with its certificate, where it does.
    pub ends: Option<SystemTime>,
    /// By which credentials of the server it was verified.
    pub generation: u64,
    /// Where it connects from.
    pub address: PeerAddress,
    /// Where its decoder counts malformed traces.
    pub bad_traces: Arc<AtomicU64>,
}

/// Who asks to be admitted.
#[derive(Debug)]
pub enum Arrival {
    /// A client.
    Session(AdmissionRequest),
    /// Another server.
    Link(LinkRequest),
}

/// The answer to an admitted client, and its session.
#[derive(Debug)]
pub struct Grant {
    /// Its session, or the facts of the other end of a link.
    pub info: Arc<SessionInfo>,
    /// What to send first: CONNECTED, or the HELLO of a link.
    pub answer: Bytes,
}

/// How many requests of a server may wait for answers at a time.
const MAX_ASKING: usize = 1024;

/// How much memory may wait for a link. Half of it is its mark, so the snapshot of 80,000
/// sessions fits into the other half.
const LINK_QUEUE: u64 = 16 << 20;

/// How many certificates are looked at before something else may be done.
const LOOKS_IN_A_ROW: usize = 256;

/// A server with its application.
pub struct ServerCore {
    pub(super) state: State,
    handler: Box<dyn Handler>,
    /// The handler's last answer to `next_timer`.
    timer: Option<Instant>,
}

/// Everything a server owns but the application.
pub(super) struct State {
    pub(super) environment: Arc<Environment>,
    pub(super) sessions: Sessions,
    pub(super) rules: RuleTable,
    pub(super) filter: Filter,
    pub(super) configuration: Bytes,
    pub(super) held: Held,
    /// What the server itself asks its clients.
    pub(super) asking: Outstanding,
    pub(super) check: Box<ConfigurationCheck>,
    pub(super) takes_configure: bool,
    pub(super) slow_consumer: SlowConsumer,
    pub(super) max_sessions: usize,
    pub(super) admission: AdmissionPolicy,
    pub(super) certificates: Certificates,
    /// The certificates and gauges of all connections, until their threads are joined.
    pub(super) connections: Table<(KeptCertificate, Gauge)>,
    pub(super) links: Links,
    /// Who dials the peers, if the server has links.
    pub(super) dialler: Option<Dialler>,
    /// The roles of those whose [`operators`](super::operators) commands are taken.
    pub(super) operators: Role,
    pub(super) bans: Bans,
    /// Operators that are told of the frames that arrive.
    pub(super) watchers: Vec<Watcher>,
    pub(super) tally: Tally,
    /// What sessions that are gone have lost.
    pub(super) frames_lost: u64,
    /// Sessions whose end the handler has not been told of.
    pub(super) departed: Vec<(Arc<SessionInfo>, DisconnectReason)>,
    /// Frames that the handler is to be told have expired.
    pub(super) expired: Vec<HeldFrame>,
    /// Dropped when the server stops, which ends `Server::wait`.
    pub(super) open: Option<Sender<Infallible>>,
    /// Until when clients may leave before the server stops.
    pub(super) draining: Option<Instant>,
    /// The handler has not been told of it yet.
    pub(super) begins_to_drain: bool,
    pub(super) now: Instant,
    /// The time of day, as it was told last.
    pub(super) wall: SystemTime,
    /// Newcomers must have been verified by these credentials or later ones.
    pub(super) generation: u64,
    /// What clients may cause in the log, by UUID.
    pub(super) log: LogLimit<Uuid>,
    /// What is to be done, in order.
    pub(super) actions: Vec<Action>,
    /// Who causes what is being done: the session whose frames are dealt with, or the
    /// application.
    pub(super) origin: Origin,
}

impl std::fmt::Debug for ServerCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state.fmt(f)
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("sessions", &self.sessions.len())
            .finish_non_exhaustive()
    }
}

impl ServerCore {
    /// A server before its first client; `open` is dropped when it stops.
    ///
    /// # Errors
    /// The forwarding rules cannot be used.
    pub fn new(
        config: ServerConfig,
        environment: Arc<Environment>,
        max_sessions: usize,
        handler: Box<dyn Handler>,
        open: Sender<Infallible>,
        now: Instant,
    ) -> Result<Self, super::RuleError> {
        let state = State {
            rules: RuleTable::of(config.rules, &environment.operands)?,
            environment,
            sessions: Sessions::default(),
            asking: Outstanding::new(MAX_ASKING),
            filter: config.filter,
            configuration: config.configuration,
            held: config.held,
            check: config.configuration_check,
            takes_configure: config.takes_configure,
            slow_consumer: config.slow_consumer,
            max_sessions,
            admission: config.admission,
            certificates: Certificates::default(),
            connections: Table::default(),
            links: Links::default(),
            dialler: None,
            operators: config.operators,
            bans: Bans::default(),
            watchers: Vec::new(),
            tally: Tally::new(now),
            frames_lost: 0,
            departed: Vec::new(),
            expired: Vec::new(),
            open: Some(open),
            draining: None,
            begins_to_drain: false,
            now,
            wall: SystemTime::UNIX_EPOCH,
            generation: 0,
            log: LogLimit::default(),
            actions: Vec::new(),
            origin: Origin::Application,
        };
        Ok(Self {
            state,
            handler,
            timer: None,
        })
    }

    /// Does something with the state at that time, and hands out what is to be
    /// done about it.
    pub(super) fn at<T>(
        &mut self,
        now: Instant,
        actions: &mut Vec<Action>,
        act: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.state.now = now;
        std::mem::swap(&mut self.state.actions, actions);
        self.state.beat();
        let result = act(self);
        std::mem::swap(&mut self.state.actions, actions);
        result
    }

    /// The HELLO by which this server opens a link that it has dialled.
    pub fn hello(&self) -> Bytes {
        self.state.links.hello(&self.state.environment)
    }

    /// Runs a closure of another thread with a context; what it does becomes actions.
    pub fn call(&mut self, now: Instant, actions: &mut Vec<Action>, call: impl FnOnce(&mut Context<'_>)) {
        self.at(now, actions, |core| core.guarded("a call", |_, cx| call(cx)));
    }

    /// The same, with the application.
    pub(super) fn call_handler(
        &mut self,
        now: Instant,
        actions: &mut Vec<Action>,
        call: impl FnOnce(&mut dyn Handler, &mut Context<'_>),
    ) {
        self.at(now, actions, |core| core.guarded("a call", call));
    }

    /// Runs code of the application; a panic in it is logged and goes no
    /// further.
    pub(super) fn guarded(
        &mut self,
        what: &'static str,
        call: impl FnOnce(&mut dyn Handler, &mut Context<'_>),
    ) {
        self.state.links.act(true);
        let mut cx = Context {
            state: &mut self.state,
        };
        let panic = guard(|| call(&mut *self.handler, &mut cx));
        self.state.links.act(false);
        self.state.note_panic(what, panic);
    }
}

impl Core for ServerCore {
    type Item = Item;
    type Request = Arrival;
    type Grant = Grant;
    type Refusal = Refusal;

    fn owner(request: &Arrival) -> Option<&[u8]> {
        match request {
            Arrival::Session(request) => Some(&request.certificate.der),
            Arrival::Link(_) => None,
        }
    }

    fn limits(request: &Arrival, default: Limits) -> Limits {
        match request {
            Arrival::Session(_) => default,
            // What waits for a link is what arrives late where a receiver has no room.
            Arrival::Link(_) => Limits {
                bytes: default.bytes.min(LINK_QUEUE),
                ..default
            },
        }
    }

    fn admit(
        &mut self,
        id: ConnectionId,
        request: Arrival,
        gauge: Gauge,
        standing: usize,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<Grant, Refusal> {
        self.at(now, actions, |core| {
            let generation = match &request {
                Arrival::Session(request) => request.generation,
                Arrival::Link(request) => request.generation,
            };
            // Sessions that stood when the credentials were replaced have been looked at. This one
            // would come too late for that look.
            if generation < core.state.generation {
                return Err(Refusal::Busy("the server's certificates were replaced meanwhile"));
            }
            let request = match request {
                Arrival::Session(request) => request,
                Arrival::Link(request) => return core.state.admit_link(id, request, gauge),
            };
            let (uuid, certificate) = (request.connect.source, &request.certificate);
            let replaced = core.state.judge(uuid, certificate, standing)?;
            // The application is asked last: it never sees a newcomer that the rules refuse.
            // Whoever is replaced still stands if it says no.
            core.consent(&request.newcomer())?;
            Ok(core.state.admit(SessionId(id), request, gauge, replaced))
        })
    }

    fn admitted(&mut self, id: ConnectionId, told: bool, now: Instant, actions: &mut Vec<Action>) {
        self.at(now, actions, |core| {
            if core.state.link_admitted(id, told) {
                return;
            }
            if !told {
                // The application has not heard of it, so it is not told of its end either.
                if let Some(session) = core.state.sessions.remove(SessionId(id)) {
                    core.state.tally.gone(&session.counters());
                }
                return;
            }
            let Some(session) = core.state.sessions.get_mut(SessionId(id)) else {
                return;
            };
            session.told = true;
            core.state.tally.admitted += 1;
            let info = Arc::clone(&session.info);
            core.state.announce_session(SessionId(id));
            if let Some(more) = info.may_log(&mut core.state.log, "connected", now) {
                info!(target: "ssntp::server", "{info}: connected{more}");
            }
            info!(target: AUDIT, "connected: {info}, {}", Named(info.certificate()));
            core.guarded("connected", |handler, cx| handler.connected(cx, &info));
        });
    }

    fn time_of_day(&mut self, wall: SystemTime) {
        self.state.wall = wall;
    }

    fn gone(&mut self, id: ConnectionId) {
        if let Some((certificate, gauge)) = self.state.connections.remove(id) {
            self.state.certificates.give(&certificate);
            // Frames are lost until the threads have ended.
            let lost = gauge.lost();
            self.state.frames_lost += lost;
            if let Some(server) = self.state.links.parted(id)
                && lost > 0
            {
                warn!(target: "ssntp::server", "{server}: {lost} frames were lost with the link");
            }
        }
    }

    fn received(&mut self, id: ConnectionId, bytes: u64, now: Instant) {
        if let Some(session) = self.state.sessions.get_mut(SessionId(id)) {
            session.counters.bytes_received += bytes;
            session.received = Some(now);
        } else {
            self.state.links.heard(id, now);
        }
    }

    fn item(
        &mut self,
        id: ConnectionId,
        mut item: Item,
        most: u32,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> (u32, Option<Item>) {
        let rest = match &mut item {
            // Each answer is delivered before the next one is made.
            Item::Run(run) if is_of_operators(run.kind()) => run.split_off(1).map(Item::Run),
            Item::Run(run) => run.split_off(most).map(Item::Run),
            _ => None,
        };
        let frames = item.frames();
        self.at(now, actions, |core| {
            // Whatever is sent until this call returns holds this session back, also what the
            // handler sends to others.
            core.state.origin = Origin::Connection(id);
            core.deal_with(SessionId(id), item);
            core.state.origin = Origin::Application;
        });
        (frames, rest)
    }

    fn ended(&mut self, id: ConnectionId, reason: EndReason, now: Instant, actions: &mut Vec<Action>) {
        let reason = match reason {
            EndReason::PeerClosed => DisconnectReason::PeerClosed,
            EndReason::Protocol(e) => DisconnectReason::Protocol(e.to_string()),
            other => DisconnectReason::Lost(other.to_string()),
        };
        self.at(now, actions, |core| {
            if !core.state.end_link(id, End::Closing, &reason.to_string()) {
                core.state.end(SessionId(id), reason, false);
            }
        });
    }

    fn distant(&mut self, change: DistantChange, now: Instant, actions: &mut Vec<Action>) {
        self.at(now, actions, |core| core.state.tell_origin(change));
    }

    fn left(&mut self, id: ConnectionId, items: Vec<Item>) {
        let frames: u64 = items.iter().map(|item| u64::from(item.frames())).sum();
        debug!(target: "ssntp::server", "{}: {frames} frames of it were not dealt with", SessionId(id));
    }

    fn full(&mut self, to: ConnectionId, newest: Load, now: Instant, actions: &mut Vec<Action>) -> Drops {
        self.at(now, actions, |core| {
            // Frames of a link depend on each other, so none is dropped.
            match core
                .state
                .end_link(to, End::Closing, "it takes too little of what waits for it")
            {
                true => Drops::Newest,
                false => core.state.overflow(SessionId(to), newest),
            }
        })
    }

    /// Tells the handler of sessions that ended and frames that expired while
    /// something else was being done.
    fn settle(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if std::mem::take(&mut self.state.begins_to_drain) {
            self.at(now, actions, |core| {
                core.guarded("draining", |handler, cx| handler.draining(cx));
            });
        }
        let links = |state: &State| state.links.has_news();
        while !(self.state.departed.is_empty() && self.state.expired.is_empty()) || links(&self.state) {
            self.at(now, actions, |core| {
                core.pass_on_news();
                for (info, reason) in std::mem::take(&mut core.state.departed) {
                    if let Some(more) = info.may_log(&mut core.state.log, "disconnected", now) {
                        info!(target: "ssntp::server", "{info}: disconnected: {}{more}", excerpt(&reason));
                    }
                    let certificate = Named(info.certificate());
                    info!(target: AUDIT, "ended: {info}, {certificate}: {}", excerpt(&reason));
                    core.guarded("disconnected", |handler, cx| {
                        handler.disconnected(cx, &info, &reason)
                    });
                }
                for held in std::mem::take(&mut core.state.expired) {
                    core.state.tally.expired += 1;
                    core.guarded("expired", |handler, cx| handler.expired(cx, held));
                }
            });
        }
        if self.state.draining.is_some() && self.state.sessions.len() == 0 {
            self.state.draining = None;
            actions.push(Action::Stop);
        }
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        self.timer = None;
        // Asked each time, because anything that the handler was told may have changed its answer.
        let panic = guard(|| self.timer = self.handler.next_timer());
        self.state.note_panic("next_timer", panic);
        let look = self.state.sessions.next_look().map(|(at, _)| at);
        let beat = self.state.links.next_beat;
        [
            self.state.held.next_expiry(),
            self.timer,
            look,
            self.state.draining,
            beat,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.at(now, actions, |core| {
            if core.state.draining.take_if(|at| *at <= now).is_some() {
                core.state.actions.push(Action::Stop);
            }
            while let Some(held) = core.state.held.expire(now) {
                core.state.tally.expired += 1;
                core.guarded("expired", |handler, cx| handler.expired(cx, held));
            }
            for _ in 0..LOOKS_IN_A_ROW {
                match core.state.sessions.next_look() {
                    Some((at, id)) if at <= now => core.state.look_at_certificate(id),
                    _ => break,
                }
            }
            // Taken, so that it is called once for each time that the handler has named.
            if core.timer.take_if(|at| *at <= now).is_some() {
                core.guarded("timer", |handler, cx| handler.timer(cx));
            }
        });
    }

    fn stop(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.at(now, actions, |core| {
            // First, so that what it sends joins the lines of sessions that still stand.
            core.guarded("stopping", |handler, cx| handler.stopping(cx));
            // From here on newcomers are refused, and nobody is left who could take a place.
            core.state.open = None;
            for id in core.state.links.table.ids() {
                core.state.end_link(id, End::Closing, "the server stops");
            }
            for id in core.state.sessions.ids() {
                core.state.end(id, DisconnectReason::Stopped, false);
            }
        });
    }
}

impl ServerCore {
    fn deal_with(&mut self, id: SessionId, item: Item) {
        // The session may be over already: items come in batches, and an
        // earlier one of its batch may have ended it.
        let Some(session) = self.state.sessions.get_mut(id) else {
            self.link_item(id.0, item);
            return;
        };
        let info = Arc::clone(&session.info);
        let (kind, frames) = (item.kind(), item.frames());
        session.counters.frames_received += u64::from(frames);
        if let Item::Unsupported(kind) = item {
            session.counters.frames_unsupported += 1;
            debug!(target: "ssntp::server", "{info}: unsupported frame {kind}");
            if let Some(answer) = answer_to_unsupported(kind) {
                self.state.answer(id, &answer, 1);
            }
            return;
        }
        let bytes = match &item {
            Item::Run(run) => run.wire().len(),
            Item::Traced(frame) => frame.encoded_len(),
            Item::Unsupported(_) => 0,
        };
        self.state.tally.received(kind, frames, bytes as u64);
        if !self.state.watchers.is_empty() {
            self.state.show_watchers(&info, kind, frames.into(), bytes as u64);
        }
        // Before the filter: a client that leaves needs no permission.
        if kind == ErrorCode::CONNECTION_FAILURE || kind == ErrorCode::CONNECTION_ABORTED {
            let reason = DisconnectReason::PeerRefused(ErrorCode(kind.operand));
            return self.state.end(id, reason, false);
        }
        // Before the filter, because a request that is refused needs an answer that names it.
        if self.state.environment.operands.is_request(kind) {
            return self.exchange(&info, item);
        }
        if is_of_operators(kind) {
            return self.operate(&info, &item);
        }
        if !self.state.filter.allows(info.role, kind) {
            return self.state.filtered(id, kind, frames);
        }
        let configures = self.state.takes_configure
            && kind == Command::CONFIGURE
            && info.role.intersects(Role::CONTROLLER);
        match item {
            Item::Run(run) if configures => {
                // Rare, and each has to be looked at.
                for frame in run.frames() {
                    if self.state.configure(id, &frame) {
                        self.route_run(&info, &Run::of(&frame));
                    }
                }
            }
            Item::Run(run) => self.route_run(&info, &run),
            Item::Traced(frame) => {
                if configures && !self.state.configure(id, &frame) {
                    return;
                }
                self.route_frame(&info, &frame);
                self.guarded("frame", |handler, cx| handler.frame(cx, &info, frame));
            }
            Item::Unsupported(_) => {}
        }
    }

    fn route_run(&mut self, info: &Arc<SessionInfo>, run: &Run) {
        match self.state.rules.get(run.kind()) {
            Some(Rule::Multicast(role)) => {
                let role = *role;
                // One item for all receivers. They share its bytes, and nothing is encoded again.
                let item = Outgoing::whole(run.wire().clone(), run.len());
                let here = self.state.fan_out(info.id, role, run.kind(), |_| item.clone());
                let state = &mut self.state;
                let elsewhere = state.send_to_remote_role(Some(info.uuid), role, || Bundle::from(run));
                if here == 0 && elsewhere == 0 {
                    state.tally.unreceived += u64::from(run.len());
                }
            }
            Some(Rule::Function(_)) => {
                for frame in run.frames() {
                    self.state.route_by_function(info, &frame, run.wire().len());
                }
            }
            None => {}
        }
        // After the rules, so that what the handler sends arrives behind the frame that it
        // answers.
        self.guarded("frame", |handler, cx| handler.run(cx, info, run));
    }

    pub(super) fn route_frame(&mut self, info: &Arc<SessionInfo>, frame: &Frame) {
        match self.state.rules.get(frame.kind()) {
            Some(Rule::Multicast(role)) => {
                let role = *role;
                let mut fan = Fan::new(frame, &self.state);
                let state = &mut self.state;
                let here = state.fan_out(info.id, role, frame.kind(), |session| fan.for_session(session));
                let elsewhere = state.send_to_remote_role(Some(info.uuid), role, || fan.for_link());
                if here == 0 && elsewhere == 0 {
                    state.tally.unreceived += 1;
                }
            }
            Some(Rule::Function(_)) => self
                .state
                .route_by_function(info, frame, frame.payload_bytes().len()),
            None => {}
        }
    }
}

impl State {
    /// Logs a panic of the application, which may come with each frame.
    pub(super) fn note_panic(&mut self, what: &'static str, panic: Option<String>) {
        if let Some(why) = panic
            && let Some(more) = self.log.admit(Uuid::nil(), what, self.now)
        {
            error!(target: "ssntp::server", "the application panicked in {what}: {why}{more}");
        }
    }
}

/// Runs code of the application. Gives back what it says where it panics.
pub(super) fn guard(call: impl FnOnce()) -> Option<String> {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).err()?;
    let why = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Some(why.unwrap_or("no message").to_owned())
}
