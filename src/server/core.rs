//! The core of a server: every event comes in here, and is dispatched to the rooms and to the application.
//!
//! ```text
//!  Core::admit ─ AdmissionRequest ─▶ admission ─▶ Handler::admit ─▶ a session, or a link
//!  Core::item ─ a session's frames ─▶ watchers ─▶ filter ─▶ routing ─▶ sending ─▶ Handler::run
//!            │                          ├─▶ requests: an addressee, routing, or Handler::request
//!            │                          └─▶ operators
//!            └ a link's frames ─▶ links ─▶ LinkEvent ─▶ sending, ClusterHandler
//!  Core::ended, tick, stop ─▶ Notice ─▶ Handler::disconnected
//! ```
//!
//! A [`ServerCore`] has no sockets, no threads and no clock. Its owner calls the methods of [`Core`]
//! with the time: `admit`, `admitted`, `item`, `ended`, `gone`, `tick` and `stop`, and `settle` after
//! each. It carries out the [`Action`]s that come back. `ssntp_transport::dispatch::Runner` does that
//! for [`Server`](super::Server).
//!
//! A session can be found from its admission until its end. After its end, its connection may stay open
//! until its queue is sent.
//!
//! A [`Run`](crate::proto::Run) is one or more frames of one kind that arrived one after the other. They are
//! forwarded as the bytes that were received. A traced frame is handled alone, because each receiver gets it
//! with other timestamps.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use std::{iter, mem};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use log::{Level, debug, info};
use uuid::Uuid;

use super::admission::{AdmissionRequest, Grant, Newcomer, RequestKind};
use super::config::ServerConfig;
use super::context::Context;
use super::disconnect::DisconnectReason;
use super::environment::Environment;
use super::error::SendError;
use super::handler::{ClusterHandler, Handler};
use super::links::{EndCode, Forwarded, LinkEvent, LinkFault, Receivers};
use super::log::{AUDIT, Named};
use super::operators::{self, changes, lists, read, unban};
use super::routing::RuleError;
use super::sessions::{SessionId, SessionInfo};
use super::state::{Notice, State};
use crate::payload::{DrainServer, Kick, ListBans, ListServers, ListSessions, Servers, Unban, Watch};
use crate::proto::{Command, ErrorCode, Exchange, Frame, Item, Refusal, Run, Step};
use crate::request::Request;
use ssntp_transport::dispatch::{Action, Core, DispatchEvent, Drops, Events, Origin, RemotePause};
use ssntp_transport::{ConnectionId, EndReason, Limits, Load, OutboxCounters, excerpt, guard};

/// The limit of the queue of a link, in bytes. Senders are paused from the mark of its queue on. The rest has
/// room for the snapshot of 80,000 sessions.
const LINK_QUEUE: u64 = 16 << 20;

/// The way to the dispatcher that runs a core.
pub(super) type CoreEvents = Events<DispatchEvent<ServerCore>>;

/// A server with its application.
pub struct ServerCore {
    pub(super) state: State,
    handler: Box<dyn Handler>,
    /// The last result of [`Handler::next_timer`].
    timer: Option<Instant>,
}

impl std::fmt::Debug for ServerCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state.fmt(f)
    }
}

impl ServerCore {
    /// A server without sessions. `open` is dropped when it stops.
    ///
    /// # Errors
    /// [`RuleError`] if the forwarding rules cannot be used.
    pub fn new(
        config: ServerConfig,
        environment: Arc<Environment>,
        max_sessions: usize,
        handler: Box<dyn Handler>,
        open: Sender<Infallible>,
        now: Instant,
    ) -> Result<Self, RuleError> {
        Ok(Self {
            state: State::new(config, environment, max_sessions, open, now)?,
            handler,
            timer: None,
        })
    }

    /// The HELLO that this server sends first on a link that it has dialled.
    pub fn hello(&self) -> Bytes {
        self.state.delivery.links.hello()
    }

    /// A channel that is disconnected when the link to a server ends; `None` if there is no link.
    pub fn link_to(&self, server: Uuid) -> Option<Receiver<Infallible>> {
        self.state.delivery.links.end_of(server)
    }

    /// The number of frames that sessions which are gone have dropped.
    pub fn dropped_by_gone(&self) -> u64 {
        self.state.counters.dropped_by_past()
    }

    /// Runs a closure that another thread has sent, with a context.
    pub fn call(&mut self, now: Instant, actions: &mut Vec<Action>, call: impl FnOnce(&mut Context<'_>)) {
        self.call_handler(now, actions, |_, cx| call(cx));
    }

    /// As [`call`](Self::call), and also passes the application.
    pub(super) fn call_handler(
        &mut self,
        now: Instant,
        actions: &mut Vec<Action>,
        call: impl FnOnce(&mut dyn Handler, &mut Context<'_>),
    ) {
        self.at(now, actions, |core| core.guarded("a call", call));
    }

    /// Asks the server that has a session of the newcomer's UUID, if any, whether the newcomer may take it
    /// over. `verdict` is dropped if no server is asked, or if no answer will come.
    pub(super) fn claim(
        &mut self,
        now: Instant,
        actions: &mut Vec<Action>,
        newcomer: &Newcomer<'_>,
        verdict: Sender<u8>,
    ) {
        self.at(now, actions, |core| {
            // A session at another server must not end for a newcomer that is then refused here, by
            // this server's rules or by the application.
            if core.state.must_claim(newcomer) && core.consent(newcomer).is_ok() {
                let state = &mut core.state;
                let (links, out) = (&mut state.delivery.links, &mut state.delivery.out);
                let shown = iter::once(&newcomer.certificate.der).chain(newcomer.intermediates);
                let certificates = shown.flat_map(|der| der.iter().copied()).collect();
                links.claim(newcomer.uuid, certificates, verdict, now, out);
            }
        });
    }

    /// Sets the time to `now`, sends the heartbeats that are due, runs `act`, and appends the actions that
    /// follow from both.
    fn at<T>(&mut self, now: Instant, actions: &mut Vec<Action>, act: impl FnOnce(&mut Self) -> T) -> T {
        self.state.delivery.time.now = now;
        self.state.delivery.out.swap(actions);
        self.state.beat();
        let result = act(self);
        self.state.delivery.out.swap(actions);
        result
    }

    /// Runs code of the application. A panic in it is caught and logged.
    fn guarded(&mut self, what: &'static str, call: impl FnOnce(&mut dyn Handler, &mut Context<'_>)) {
        self.state.delivery.links.act(true);
        let mut cx = Context {
            state: &mut self.state,
        };
        let panic = guard(|| call(&mut *self.handler, &mut cx)).err();
        self.state.delivery.links.act(false);
        self.state.log_panic(what, panic);
    }

    /// As [`guarded`](Self::guarded), for an application that has a [`ClusterHandler`].
    fn guarded_cluster(
        &mut self,
        what: &'static str,
        call: impl FnOnce(&mut dyn ClusterHandler, &mut Context<'_>),
    ) {
        self.guarded(what, |handler, cx| {
            if let Some(cluster) = handler.cluster() {
                call(cluster, cx);
            }
        });
    }

    /// Asks the application whether it admits a newcomer.
    fn consent(&mut self, newcomer: &Newcomer<'_>) -> Result<(), Refusal> {
        // If the application panics, the newcomer is refused, but may try again.
        let mut verdict = Err(Refusal::postpone("it panicked"));
        self.guarded("admit", |handler, cx| verdict = handler.admit(cx, newcomer));
        verdict
    }

    /// Calls the handler for each notice, in order, including those that these calls cause.
    fn deliver_notices(&mut self) {
        while !self.state.notices.is_empty() {
            for notice in mem::take(&mut self.state.notices) {
                match notice {
                    Notice::Disconnected(info, reason) => self.deliver_end(&info, &reason),
                    Notice::Draining => self.guarded("draining", |handler, cx| handler.draining(cx)),
                    Notice::Linked(server) => self.guarded_cluster("server_linked", |handler, cx| {
                        handler.server_linked(cx, &server);
                    }),
                    Notice::Unlinked(server) => self.guarded_cluster("server_unlinked", |handler, cx| {
                        handler.server_unlinked(cx, &server);
                    }),
                    Notice::RemoteConnected(row) => {
                        self.guarded_cluster("remote_connected", |handler, cx| {
                            handler.remote_connected(cx, &row.info);
                        })
                    }
                    Notice::RemoteDisconnected(row) => {
                        self.guarded_cluster("remote_disconnected", |handler, cx| {
                            handler.remote_disconnected(cx, &row.info);
                        });
                    }
                }
            }
        }
    }

    fn deliver_end(&mut self, info: &SessionInfo, reason: &DisconnectReason) {
        let (now, why) = (self.state.delivery.time.now, excerpt(reason));
        let line = format_args!("{info}: disconnected: {why}");
        self.state
            .log
            .of_session(Level::Info, (info, "disconnected"), now, line);
        info!(target: AUDIT, "ended: {info}, {}: {why}", Named(info.certificate()));
        self.guarded("disconnected", |handler, cx| {
            handler.disconnected(cx, info, reason)
        });
    }

    /// Gives frames to the application.
    fn hand_over(&mut self, info: &SessionInfo, item: Item) {
        self.guarded("frame", |handler, cx| match item {
            Item::Run(run) => handler.run(cx, info, &run),
            Item::Traced(frame) => handler.frame(cx, info, frame),
            Item::Unsupported(_) => {}
        });
    }
}

/// The frames of sessions.
impl ServerCore {
    fn handle_item(&mut self, id: SessionId, item: Item) {
        // If there is no such session, an earlier item of the same batch has ended it.
        let Some(session) = self.state.delivery.sessions.get_mut(id) else {
            return;
        };
        let info = Arc::clone(&session.info);
        let (kind, frames) = (item.kind(), item.frames());
        session.counters.frames_received += u64::from(frames);
        let bytes = match &item {
            Item::Run(run) => run.wire().len(),
            Item::Traced(frame) => frame.encoded_len(),
            Item::Unsupported(kind) => {
                session.counters.frames_unsupported += 1;
                debug!(target: "ssntp::server", "{info}: unsupported frame {kind}");
                if let Some(answer) = item.answer() {
                    self.state.delivery.out.answer(id, &answer, 1);
                }
                return;
            }
        };
        if kind == ErrorCode::INVALID_FRAME_TYPE && item.each().any(|frame| session.silence.takes(&frame)) {
            return;
        }
        // Counted before the filter, so that the figures show attempts as well.
        let state = &mut self.state;
        let out = &mut state.delivery.out;
        out.count_received(kind, frames, bytes as u64);
        let (watchers, load) = (&mut state.operators.watchers, (frames.into(), bytes as u64));
        watchers.notify(&mut state.delivery, &info, kind, load);
        // Before the filter, because a client needs no permission to leave.
        if kind == ErrorCode::CONNECTION_FAILURE || kind == ErrorCode::CONNECTION_ABORTED {
            let reason = DisconnectReason::PeerRefused(ErrorCode(kind.operand));
            self.state.end(id, reason, false);
        // Before the filter, because a request that is refused needs an answer that names it.
        } else if self.state.environment.own.operands.is_request(kind) {
            item.each().for_each(|frame| self.handle_exchange(&info, &frame));
        } else if operators::is_command(kind) {
            item.each().for_each(|frame| self.handle_command(&info, &frame));
        } else if !self.state.routing.filter().allows(info.role, kind) {
            self.state.filtered(id, kind, frames);
        } else if self.state.configuration.is_replaced_by(kind, info.role) {
            // Each CONFIGURE is checked by itself. They are rare, so the cost does not matter.
            for frame in item.each() {
                if self.state.configure(&info, &frame) {
                    self.route(&info, Item::from(&frame));
                }
            }
        } else {
            self.route(&info, item);
        }
    }

    /// Forwards frames by the rules, and gives them to the application.
    fn route(&mut self, info: &SessionInfo, item: Item) {
        self.state.route(info, &item);
        // After the rules, so that frames that the handler sends arrive behind the frame that caused
        // them.
        self.hand_over(info, item);
    }

    /// Handles a frame of a kind that is registered as a request: a request, or an answer.
    fn handle_exchange(&mut self, info: &SessionInfo, frame: &Frame) {
        let state = &mut self.state;
        let Some(exchange) = Exchange::read(frame.payload_bytes()) else {
            let out = &mut state.delivery.out;
            return out.refuse(info.id, frame.kind(), "bad_exchange", 1);
        };
        // The server writes the sender's UUID, so no client can ask or answer in another one's name.
        let of_sender = Exchange {
            peer: info.uuid,
            ..exchange
        };
        let peer = exchange.peer;
        let to_server = peer.is_nil() || peer == state.environment.own.uuid;
        match exchange.step {
            Step::Request => self.handle_request(info, &of_sender, frame, (!to_server).then_some(peer)),
            Step::Reply | Step::Refusal if to_server => {
                state.delivery.asked.settle(info.uuid, &exchange, frame);
            }
            Step::Reply | Step::Refusal => state.pass_back(info, peer, &of_sender.readdress(frame)),
        }
    }

    /// Sends a request to its addressee, or by the rule for its kind, or gives it to the application.
    fn handle_request(
        &mut self,
        info: &SessionInfo,
        of_sender: &Exchange,
        frame: &Frame,
        addressee: Option<Uuid>,
    ) {
        let state = &mut self.state;
        let (request, asking) = (Request::new(of_sender, frame), of_sender.readdress(frame));
        if !state.routing.filter().allows(info.role, frame.kind()) {
            state.filter_request(info, &request, addressee);
        } else if frame.kind() == Command::RENEW_CERTIFICATE {
            if let Err(why) = state.renewals.hand_over(info, &request) {
                state.delivery.refuse(&request, None, why);
            }
        } else if let Some(to) = addressee {
            if let Err(why) = state.send(Some(info.uuid), to, &asking) {
                let is_own = matches!(why, SendError::ToSender(_));
                let word = if is_own { "to_sender" } else { "not_connected" };
                state.delivery.refuse(&request, addressee, word);
            }
        } else if state.routing.rule(frame.kind()).is_some() {
            // A rule does not report its receivers. If no action was added, the request has no receiver
            // that could answer.
            let before = state.delivery.out.len();
            state.route(info, &Item::from(&asking));
            if before == state.delivery.out.len() {
                state.delivery.refuse(&request, None, "not_connected");
            }
        } else {
            let mut panicked = true;
            self.guarded("request", |handler, cx| {
                handler.request(cx, info, request.clone());
                panicked = false;
            });
            if panicked {
                self.state.delivery.refuse(&request, None, "not_answered");
            }
        }
    }

    /// Carries out a command of operators.
    fn handle_command(&mut self, info: &SessionInfo, frame: &Frame) {
        let (kind, state) = (frame.kind(), &mut self.state);
        if !state.operators.include(info.role) || !state.routing.filter().allows(info.role, kind) {
            return state.filtered(info.id, kind, 1);
        }
        let command = Command(kind.operand);
        let is_refused = changes(command) && !self.may_kick(info);
        let (now, state) = (self.state.delivery.time.now, &mut self.state);
        if is_refused {
            let line = format_args!("{info}: {kind} refused: the application does not allow it");
            state
                .log
                .of_session(Level::Warn, (info, "may not kick"), now, line);
            let out = &mut state.delivery.out;
            return out.refuse(info.id, kind, "role_not_allowed", 1);
        }
        let answer = match command {
            Command::LIST_SESSIONS => read(frame, |asked: &ListSessions| &asked.id)
                .and_then(|asked| lists::sessions(&asked, &state.delivery.sessions, now))
                .map(|page| Frame::of(&page)),
            Command::LIST_BANS => read(frame, |asked: &ListBans| &asked.id)
                .map(|asked| Frame::of(&lists::bans(&asked, &state.admission.bans, now))),
            Command::LIST_SERVERS => read(frame, |asked: &ListServers| &asked.id)
                .map(|asked| Frame::of(&self.list_servers(&asked))),
            Command::KICK => {
                read(frame, |asked: &Kick| &asked.id).map(|asked| Frame::of(&state.kick(info, &asked)))
            }
            Command::DRAIN_SERVER => match read(frame, |asked: &DrainServer| &asked.id) {
                Ok(asked) => return state.drain_by(info, &asked, Some(frame)),
                Err(why) => Err(why),
            },
            Command::WATCH => read(frame, |asked: &Watch| &asked.id)
                .and_then(|asked| {
                    let watchers = &mut state.operators.watchers;
                    watchers.add(info.id, asked, &state.delivery.sessions)
                })
                .map(|watched| Frame::of(&watched)),
            _ => read(frame, |asked: &Unban| &asked.id).map(|asked| {
                let owners = (&mut state.admission.bans, &mut state.log);
                Frame::of(&unban(&asked, info, owners, now))
            }),
        };
        operators::answer(&mut self.state.delivery, info, kind, answer);
    }

    fn may_kick(&mut self, info: &SessionInfo) -> bool {
        let mut may = false;
        self.guarded("may_kick", |handler, cx| {
            may = handler.cluster().is_none_or(|cluster| cluster.may_kick(cx, info));
        });
        may
    }

    fn list_servers(&mut self, asked: &ListServers) -> Servers {
        let mut servers = self.state.servers();
        self.guarded_cluster("servers", |handler, cx| handler.servers(cx, &mut servers));
        lists::servers_page(asked, &mut servers);
        servers
    }
}

/// The frames of links.
impl ServerCore {
    /// Handles link frames. A fault in one of them ends the link.
    fn handle_link_item(&mut self, id: ConnectionId, item: Item) {
        let handled = match item {
            Item::Run(run) => run
                .frames()
                .try_for_each(|frame| self.handle_link_frame(id, &run, &frame)),
            other => Err(LinkFault::Kind(other.kind())),
        };
        if let Err(fault) = handled {
            self.state.end_link(id, EndCode::Fault, &fault.to_string());
        }
    }

    fn handle_link_frame(&mut self, id: ConnectionId, run: &Run, frame: &Frame) -> Result<(), LinkFault> {
        let state = &mut self.state;
        // What the application sends now must not pause the link, which carries the frames of all
        // sessions. The session that has sent a FORWARD is paused instead.
        state.delivery.out.set_origin(Origin::Application);
        let delivery = &mut state.delivery;
        let (sessions, wall, out) = (&delivery.sessions, delivery.time.wall, &mut delivery.out);
        match delivery.links.handle(id, run, frame, sessions, wall, out)? {
            LinkEvent::Done => {}
            LinkEvent::Changed(linked, changes) => state.apply(linked, changes),
            LinkEvent::Forwarded(forwarded) => self.deliver_forwarded(id, forwarded),
            LinkEvent::Told { server, message } => self.guarded_cluster("server_message", |handler, cx| {
                handler.server_message(cx, server, message);
            }),
            LinkEvent::Claim {
                id: claim,
                uuid,
                certificates,
            } => {
                let verdict = state.judge_claim(uuid, &certificates);
                let delivery = &mut state.delivery;
                let out = &mut delivery.out;
                delivery.links.answer_claim(id, claim, verdict, out);
            }
            LinkEvent::Ended(code, why) => {
                state.end_link(id, code, &why);
            }
        }
        // Before the next frame, which may come from a session that was just reported.
        self.deliver_notices();
        Ok(())
    }

    /// Delivers frames of another server's session to sessions of this server, or to the application.
    fn deliver_forwarded(&mut self, link: ConnectionId, forwarded: Forwarded) {
        let state = &mut self.state;
        let (kind, frames) = (forwarded.item.kind(), forwarded.item.frames());
        // If a receiver has no room, the flow control pauses this origin: HOLD goes to its server.
        state.delivery.out.set_origin(forwarded.origin);
        let operands = &state.environment.own.operands;
        // The other server may have registered kinds that this one has not.
        let is_received = if !operands.may_be_sent(kind) && !operands.is_request(kind) {
            false
        } else if forwarded.to != Receivers::Application {
            state.delivery.deliver(&forwarded) > 0
        } else if let Some(row) = forwarded.sender {
            match forwarded.item {
                Item::Run(run) if kind == Command::DRAIN_SERVER => {
                    // The operator's own server has decoded the frame before, so this does not fail.
                    let read = |frame| read(&frame, |asked: &DrainServer| &asked.id);
                    for asked in run.frames().filter_map(|frame| read(frame).ok()) {
                        state.drain_by(&row.info, &asked, None);
                    }
                }
                item => self.hand_over(&row.info, item),
            }
            true
        } else {
            false
        };
        let links = &mut self.state.delivery.links;
        links.count_forwarded(link, frames, is_received);
    }
}

impl Core for ServerCore {
    type Item = Item;
    type Request = AdmissionRequest;
    type Grant = Grant;
    type Refusal = Refusal;

    fn owner(request: &AdmissionRequest) -> Option<&[u8]> {
        // Clients with the same certificate share one part of the memory budget.
        match request.kind {
            RequestKind::Client(_) => Some(&request.peer.certificate.der),
            RequestKind::Server(_) => None,
        }
    }

    fn sender(request: &AdmissionRequest) -> Option<u128> {
        match &request.kind {
            RequestKind::Client(connect) => Some(connect.source.as_u128()),
            RequestKind::Server(_) => None,
        }
    }

    fn limits(request: &AdmissionRequest, default: Limits) -> Limits {
        match request.kind {
            RequestKind::Client(_) => default,
            // HOLD waits behind the frames in this queue, so a long queue would delay back-pressure.
            RequestKind::Server(_) => Limits {
                bytes: default.bytes.min(LINK_QUEUE),
                ..default
            },
        }
    }

    fn admit(
        &mut self,
        id: ConnectionId,
        AdmissionRequest { peer, kind }: AdmissionRequest,
        outbox: OutboxCounters,
        standing: usize,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<Grant, Refusal> {
        self.at(now, actions, |core| {
            core.state.admission.check_generation(peer.generation)?;
            let connect = match kind {
                RequestKind::Client(connect) => connect,
                RequestKind::Server(request) => return core.state.admit_link(id, peer, request, outbox),
            };
            let newcomer = peer.newcomer(&connect);
            let replaced = core.state.judge(&newcomer, standing)?;
            // The application decides last, so it never sees a newcomer that the server refuses. If the
            // application refuses it, the session that would be replaced stays.
            core.consent(&newcomer)?;
            if let Some(old) = replaced {
                // Its queue is not sent: a client that connects again has most likely lost the old
                // connection, and must not wait until sending fails.
                core.state.end(old, DisconnectReason::Replaced, true);
            }
            Ok(core.state.admit(SessionId(id), peer, &connect, outbox))
        })
    }

    fn admitted(&mut self, id: ConnectionId, started: bool, now: Instant, actions: &mut Vec<Action>) {
        self.at(now, actions, |core| {
            if !started {
                if !core
                    .state
                    .end_link(id, EndCode::Closing, "its handshake was given up")
                {
                    core.state.remove(SessionId(id));
                }
            } else if !core.state.begin_link(id)
                && let Some(info) = core.state.begin(SessionId(id))
            {
                core.guarded("connected", |handler, cx| handler.connected(cx, &info));
            }
        });
    }

    fn time_of_day(&mut self, wall: SystemTime) {
        self.state.delivery.time.wall = wall;
    }

    fn on_removed(&mut self, id: ConnectionId) {
        self.state.forget(id);
    }

    fn received(&mut self, id: ConnectionId, bytes: u64, now: Instant) {
        if let Some(session) = self.state.delivery.sessions.get_mut(SessionId(id)) {
            session.counters.bytes_received += bytes;
            session.silence.hear(now);
        } else {
            self.state.delivery.links.received(id, now);
        }
    }

    fn on_unread(&mut self, id: ConnectionId, now: Instant, actions: &mut Vec<Action>) {
        self.at(now, actions, |core| core.state.ask(SessionId(id)));
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
            // Operators' commands are handled one at a time, so that each answer is queued before the next
            // command is handled.
            // Answers to a question for a sign of life are taken out one at a time.
            Item::Run(run)
                if operators::is_command(run.kind()) || run.kind() == ErrorCode::INVALID_FRAME_TYPE =>
            {
                run.split_off(1).map(Item::Run)
            }
            Item::Run(run) => run.split_off(most).map(Item::Run),
            _ => None,
        };
        let frames = item.frames();
        self.at(now, actions, |core| {
            // All frames that are sent until this call returns may pause this session, including those
            // that the handler sends.
            core.state.delivery.out.set_origin(Origin::Connection(id));
            if core.state.delivery.links.contains(id) {
                core.handle_link_item(id, item);
            } else {
                core.handle_item(SessionId(id), item);
            }
            core.state.delivery.out.set_origin(Origin::Application);
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
            if !core.state.end_link(id, EndCode::Closing, &reason.to_string()) {
                core.state.end(SessionId(id), reason, false);
            }
        });
    }

    fn on_remote_pause(&mut self, change: RemotePause, now: Instant, actions: &mut Vec<Action>) {
        self.at(now, actions, |core| {
            let delivery = &mut core.state.delivery;
            delivery.links.pause_remote(change, &mut delivery.out);
        });
    }

    fn on_unhandled(&mut self, id: ConnectionId, items: Vec<Item>) {
        let frames: u64 = items.iter().map(|item| u64::from(item.frames())).sum();
        debug!(target: "ssntp::server", "{}: {frames} received frames were not handled", SessionId(id));
    }

    fn on_line_full(
        &mut self,
        to: ConnectionId,
        newest: Load,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Drops {
        self.at(now, actions, |core| {
            // Frames of a link depend on each other, so the link ends and no single frame is dropped.
            let why = "slow consumer: it reads too little of its queue";
            if core.state.end_link(to, EndCode::Closing, why) {
                Drops::Newest
            } else {
                core.state.overflow(SessionId(to), newest)
            }
        })
    }

    /// Delivers the notices that the last call has caused. They have waited until now because that call
    /// may have come from the handler, which must not be called within its own call.
    fn settle(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if !self.state.notices.is_empty() {
            self.at(now, actions, Self::deliver_notices);
        }
        // Checked here, because this is called after each end of a session.
        let is_empty = self.state.delivery.sessions.len() == 0;
        if is_empty && self.state.admission.end_drain(None) {
            actions.push(Action::Stop);
        }
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        self.timer = None;
        // Any call of the handler may have changed the result.
        let panic = guard(|| self.timer = self.handler.next_timer()).err();
        self.state.log_panic("next_timer", panic);
        [
            self.timer,
            self.state.delivery.sessions.next_expiry_check(),
            self.state.delivery.sessions.next_look(),
            self.state.admission.drains_until(),
            self.state.delivery.links.next_beat(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.at(now, actions, |core| {
            if core.state.admission.end_drain(Some(now)) {
                core.state.delivery.out.stop();
            }
            core.state.end_expired();
            core.state.end_silent();
            // Taken, so that the handler is called once for each time that `next_timer` has returned.
            if core.timer.take_if(|at| *at <= now).is_some() {
                core.guarded("timer", |handler, cx| handler.timer(cx));
            }
        });
    }

    fn stop(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.at(now, actions, |core| {
            // First, while the sessions are connected, so that the application can still send to them.
            core.guarded("stopping", |handler, cx| handler.stopping(cx));
            core.state.stop();
        });
    }
}
