//! The state of a server: its sessions, its forwarding rules, and the routing of frames.
//!
//! ```text
//!  admit ─▶ Session ─ admitted ─▶ item ─ filter ─ rules ─ handler ─▶ Action::Send
//!              │
//!              └─ ended, replaced, dismissed, stop ─▶ Notice ─▶ Handler::disconnected
//! ```
//!
//! This module is public for two kinds of programs: simulations, which run the code
//! of a server in virtual time, and programs that bring their own threads. Other programs
//! use [`Server`](super::Server), which runs a core on a dispatcher thread.
//!
//! A [`ServerCore`] has no sockets, no threads and no clock. Its owner calls the methods of [`Core`]
//! with the time: `admit`, `admitted`, `item`, `ended`, `gone`, `tick` and `stop`, and `settle` after
//! each. It carries out the [`Action`]s that come back. `ssntp_transport::dispatch::Runner` does that
//! for [`Server`](super::Server).
//!
//! | type | what it is |
//! |---|---|
//! | [`ServerCore`] | all state of a server, and its application |
//! | [`Environment`] | the part that threads share: credentials, limits, counters of newcomers |
//! | [`Entry`] | the admission of one newcomer, client or server, step by step |
//! | [`Redial`] | the schedule by which another server is dialled |
//! | [`Arrival`], [`Grant`] | a newcomer that asks to be admitted, and the answer |
//!
//! A session can be found from its admission until its end. After its end, its connection may stay open
//! until its queue is sent.

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
use super::disconnect::DisconnectReason;
pub use super::entry::{CLAIM, Entry, NoEntry, Step};
pub use super::federation::{Attempt, LinkRequest, Redial};
use super::federation::{Dialler, EndCode, Links, Remote, ServerLink};
use super::filter::Filter;
use super::handler::{ClusterHandler, Context, Handler, Newcomer};
use super::operators::is_of_operators;
use super::routing::RuleTable;
use super::sessions::{Directory, SessionId, SessionInfo, Sessions};
use super::tally::Tally;
use super::watching::Watcher;
use crate::proto::{Connect, Item, Refusal};
use crate::request::Outstanding;
pub use crate::wire::Decoder;
use ssntp_pki::{CertificateDer, CertificateInfo, KeptCertificate, Role};
use ssntp_transport::LogLimit;
use ssntp_transport::dispatch::{Action, Core, Drops, Origin, RemotePause};
use ssntp_transport::{ConnectionId, EndReason, Limits, Load, OutboxCounters, PeerAddress, Table, excerpt};

/// A newcomer that asks to be admitted.
#[derive(Debug)]
pub struct Arrival {
    /// The newcomer as TLS has verified it.
    pub peer: Peer,
    /// The request in its first frame.
    pub kind: ArrivalKind,
}

/// A peer that TLS has verified.
#[derive(Debug)]
pub struct Peer {
    /// The peer's own certificate.
    pub certificate: CertificateInfo,
    /// The certificates that the peer sent after its own.
    pub intermediates: Vec<CertificateDer<'static>>,
    /// The time at which the certificate expires and the connection must end. `None` if expiry is not
    /// enforced.
    pub ends: Option<SystemTime>,
    /// The generation of the server's credentials that verified the peer.
    pub generation: u64,
    /// The address that the peer connects from.
    pub address: PeerAddress,
}

/// The kind of newcomer.
#[derive(Debug)]
pub enum ArrivalKind {
    /// A client that asks for a session.
    Client {
        /// The content of its CONNECT.
        connect: Connect,
        /// The counter of malformed traces, shared with the decoder.
        bad_traces: Arc<AtomicU64>,
    },
    /// A server that asks for a link.
    Server(LinkRequest),
}

/// The answer to an admitted newcomer.
#[derive(Debug)]
pub struct Grant {
    /// The session. For a link: the other server, described as a session.
    pub info: Arc<SessionInfo>,
    /// The frame to send first: CONNECTED, or the HELLO of a link.
    pub answer: Bytes,
}

/// An event that has not been delivered to the application yet.
#[derive(Debug)]
pub(super) enum Notice {
    /// A session has ended.
    Disconnected(Arc<SessionInfo>, DisconnectReason),
    /// The server has begun to drain.
    Draining,
    /// A link is ready: the sessions of the other server are known.
    Linked(Arc<ServerLink>),
    /// A link has ended.
    Unlinked(Arc<ServerLink>),
    /// A session of another server has begun.
    RemoteConnected(Arc<Remote>),
    /// A session of another server has ended.
    RemoteDisconnected(Arc<Remote>),
}

/// The maximum number of requests of the server itself that wait for answers.
const MAX_ASKING: usize = 1024;

/// The limit of the queue of a link, in bytes. Senders are held from half of it on. The other half has
/// room for the snapshot of 80,000 sessions.
const LINK_QUEUE: u64 = 16 << 20;

/// A server with its application.
pub struct ServerCore {
    pub(super) state: State,
    handler: Box<dyn Handler>,
    /// The last result of [`Handler::next_timer`].
    timer: Option<Instant>,
}

/// All state of a server except for the application.
pub(super) struct State {
    pub(super) environment: Arc<Environment>,
    pub(super) sessions: Sessions,
    pub(super) rules: RuleTable,
    pub(super) filter: Filter,
    pub(super) configuration: Bytes,
    /// The requests of the server itself that wait for answers.
    pub(super) asking: Outstanding,
    pub(super) check: Box<ConfigurationCheck>,
    pub(super) takes_configure: bool,
    pub(super) slow_consumer: SlowConsumer,
    pub(super) max_sessions: usize,
    pub(super) admission: AdmissionPolicy,
    pub(super) certificates: Certificates,
    /// For each connection, until its threads have ended: its certificate, the counters of its outbox and, if it is a link,
    /// the other server.
    pub(super) connections: Table<(KeptCertificate, OutboxCounters, Option<Arc<ServerLink>>)>,
    pub(super) links: Links,
    /// Dials the other servers. `None` if the server has no links.
    pub(super) dialler: Option<Dialler>,
    /// The roles that may send the commands of [`operators`](super::operators).
    pub(super) operators: Role,
    pub(super) bans: Bans,
    /// Operators that receive a Watched for frames that this server receives.
    pub(super) watchers: Vec<Watcher>,
    pub(super) started: Instant,
    pub(super) tally: Tally,
    /// The number of frames that were lost with connections that have ended.
    pub(super) frames_lost: u64,
    /// The events to deliver to the application, oldest first.
    pub(super) notices: Vec<Notice>,
    /// Dropped when the server stops, which ends `Server::wait`.
    pub(super) open: Option<Sender<Infallible>>,
    /// The time at which a draining server stops, if clients are still connected then.
    pub(super) draining: Option<Instant>,
    pub(super) now: Instant,
    /// The time of day, from the last call of [`Core::time_of_day`].
    pub(super) wall: SystemTime,
    /// The generation of the credentials. A newcomer that an earlier one has verified is refused.
    pub(super) generation: u64,
    /// The time of the next call of [`end_expired`](Self::end_expired).
    pub(super) next_expiry_check: Option<Instant>,
    /// Limits the log lines that each UUID can cause.
    pub(super) log: LogLimit<Uuid>,
    /// The actions for the owner of this core, in order.
    pub(super) actions: Vec<Action>,
    /// The connection whose frames are being handled, or the application. If a receiver of the frames that
    /// are sent now has no room, this connection is not read until it has.
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
    /// A server without sessions. `open` is dropped when it stops.
    ///
    /// # Errors
    /// [`RuleError`](super::RuleError) if the forwarding rules cannot be used.
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
            started: now,
            tally: Tally::default(),
            frames_lost: 0,
            notices: Vec::new(),
            open: Some(open),
            draining: None,
            now,
            wall: SystemTime::UNIX_EPOCH,
            generation: 0,
            next_expiry_check: None,
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

    /// Sets the time to `now`, sends the heartbeats that are due, runs `act`, and appends the actions that
    /// follow from both.
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

    /// The HELLO that this server sends first on a link that it has dialled.
    pub fn hello(&self) -> Bytes {
        self.state.links.hello(&self.state.environment)
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

    /// Runs code of the application. A panic in it is caught and logged.
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
        self.state.log_panic(what, panic);
    }

    /// As [`guarded`](Self::guarded), for an application that has a [`ClusterHandler`].
    pub(super) fn guarded_cluster(
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

    /// Calls the handler for each notice, in order, including those that these calls cause.
    pub(super) fn deliver_notices(&mut self) {
        while !self.state.notices.is_empty() {
            for notice in std::mem::take(&mut self.state.notices) {
                match notice {
                    Notice::Disconnected(info, reason) => self.deliver_end(&info, &reason),
                    Notice::Draining => self.guarded("draining", |handler, cx| handler.draining(cx)),
                    Notice::Linked(server) => {
                        self.guarded_cluster("server_linked", |handler, cx| {
                            handler.server_linked(cx, &server);
                        });
                    }
                    Notice::Unlinked(server) => {
                        self.guarded_cluster("server_unlinked", |handler, cx| {
                            handler.server_unlinked(cx, &server);
                        });
                    }
                    Notice::RemoteConnected(row) => {
                        self.guarded_cluster("remote_connected", |handler, cx| {
                            handler.remote_connected(cx, &row.info);
                        });
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
        if let Some(more) = info.may_log(&mut self.state.log, "disconnected", self.state.now) {
            info!(target: "ssntp::server", "{info}: disconnected: {}{more}", excerpt(reason));
        }
        let certificate = Named(info.certificate());
        info!(target: AUDIT, "ended: {info}, {certificate}: {}", excerpt(reason));
        self.guarded("disconnected", |handler, cx| {
            handler.disconnected(cx, info, reason)
        });
    }
}

impl Core for ServerCore {
    type Item = Item;
    type Request = Arrival;
    type Grant = Grant;
    type Refusal = Refusal;

    fn owner(request: &Arrival) -> Option<&[u8]> {
        // Clients with the same certificate share one part of the memory budget.
        match request.kind {
            ArrivalKind::Client { .. } => Some(&request.peer.certificate.der),
            ArrivalKind::Server(_) => None,
        }
    }

    fn sender(request: &Arrival) -> Option<u128> {
        match &request.kind {
            ArrivalKind::Client { connect, .. } => Some(connect.source.as_u128()),
            ArrivalKind::Server(_) => None,
        }
    }

    fn limits(request: &Arrival, default: Limits) -> Limits {
        match request.kind {
            ArrivalKind::Client { .. } => default,
            // HOLD waits behind the frames in this queue, so a long queue would delay back-pressure.
            ArrivalKind::Server(_) => Limits {
                bytes: default.bytes.min(LINK_QUEUE),
                ..default
            },
        }
    }

    fn admit(
        &mut self,
        id: ConnectionId,
        Arrival { peer, kind }: Arrival,
        outbox: OutboxCounters,
        standing: usize,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<Grant, Refusal> {
        self.at(now, actions, |core| {
            // When the credentials were replaced, all sessions were verified again. This newcomer had no
            // session then, so it has to connect again.
            if peer.generation < core.state.generation {
                return Err(Refusal::Busy("the server's certificates were replaced meanwhile"));
            }
            let (connect, bad_traces) = match kind {
                ArrivalKind::Client { connect, bad_traces } => (connect, bad_traces),
                ArrivalKind::Server(request) => return core.state.admit_link(id, peer, request, outbox),
            };
            let replaced = core.state.judge(connect.source, &peer.certificate, standing)?;
            // The application decides last, so it never sees a newcomer that the server refuses. If the
            // application refuses it, the session that would be replaced stays.
            core.consent(&Newcomer {
                uuid: connect.source,
                role: connect.role,
                address: peer.address,
                certificate: &peer.certificate,
            })?;
            if let Some(old) = replaced {
                // Its queue is not sent: a client that connects again has most likely lost the old
                // connection, and must not wait until sending fails.
                core.state.end(old, DisconnectReason::Replaced, true);
            }
            Ok(core
                .state
                .admit(SessionId(id), peer, &connect, bad_traces, outbox))
        })
    }

    fn admitted(&mut self, id: ConnectionId, started: bool, now: Instant, actions: &mut Vec<Action>) {
        self.at(now, actions, |core| {
            if core.state.link_admitted(id, started) {
                return;
            }
            if !started {
                // The application does not know the session, so it is not told of its end either.
                if let Some(session) = core.state.sessions.remove(SessionId(id)) {
                    core.state.tally.gone(&session.counters());
                }
                return;
            }
            let Some(session) = core.state.sessions.get_mut(SessionId(id)) else {
                return;
            };
            session.announced = true;
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

    fn on_removed(&mut self, id: ConnectionId) {
        if let Some((certificate, outbox, server)) = self.state.connections.remove(id) {
            self.state.certificates.remove(&certificate);
            // The number is final, because the connection's threads have ended.
            let lost = outbox.figures().lost;
            self.state.frames_lost += lost;
            if let Some(server) = server {
                self.state.links.connections -= 1;
                if lost > 0 {
                    warn!(target: "ssntp::server", "{server}: {lost} frames were lost with the link");
                }
            }
        }
    }

    fn received(&mut self, id: ConnectionId, bytes: u64, now: Instant) {
        if let Some(session) = self.state.sessions.get_mut(SessionId(id)) {
            session.counters.bytes_received += bytes;
            session.received = Some(now);
        } else if let Some(link) = self.state.links.table.get_mut(id) {
            link.last_received = now;
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
            // Operators' commands are handled one at a time, so that each answer is queued before the next
            // command is handled.
            Item::Run(run) if is_of_operators(run.kind()) => run.split_off(1).map(Item::Run),
            Item::Run(run) => run.split_off(most).map(Item::Run),
            _ => None,
        };
        let frames = item.frames();
        self.at(now, actions, |core| {
            // All frames that are sent until this call returns may pause this session, including those
            // that the handler sends.
            core.state.origin = Origin::Connection(id);
            core.handle_item(SessionId(id), item);
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
            if !core.state.end_link(id, EndCode::Closing, &reason.to_string()) {
                core.state.end(SessionId(id), reason, false);
            }
        });
    }

    fn on_remote_pause(&mut self, change: RemotePause, now: Instant, actions: &mut Vec<Action>) {
        self.at(now, actions, |core| core.state.pause_remote(change));
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
            match core.state.end_link(to, EndCode::Closing, why) {
                true => Drops::Newest,
                false => core.state.overflow(SessionId(to), newest),
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
        if self.state.draining.is_some() && self.state.sessions.len() == 0 {
            self.state.draining = None;
            actions.push(Action::Stop);
        }
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        self.timer = None;
        // Any call of the handler may have changed the result.
        let panic = guard(|| self.timer = self.handler.next_timer());
        self.state.log_panic("next_timer", panic);
        [
            self.timer,
            self.state.next_expiry_check,
            self.state.draining,
            self.state.links.next_beat,
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
            if core.state.next_expiry_check.is_some_and(|at| at <= now) {
                core.state.end_expired();
            }
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
            // This ends `Server::wait`, and newcomers are refused from now on.
            core.state.open = None;
            for id in core.state.links.table.ids() {
                core.state.end_link(id, EndCode::Closing, "the server stops");
            }
            for id in core.state.sessions.ids() {
                core.state.end(id, DisconnectReason::Stopped, false);
            }
        });
    }
}

impl State {
    pub(super) fn directory(&self) -> Directory<'_> {
        Directory {
            sessions: &self.sessions,
            roster: &self.links.roster,
        }
    }

    /// Logs a panic of the application, with a limit, because each frame may cause one.
    pub(super) fn log_panic(&mut self, what: &'static str, panic: Option<String>) {
        if let Some(why) = panic
            && let Some(more) = self.log.admit(Uuid::nil(), what, self.now)
        {
            error!(target: "ssntp::server", "the application panicked in {what}: {why}{more}");
        }
    }
}

/// Runs code of the application. Returns the message of a panic.
pub(super) fn guard(call: impl FnOnce()) -> Option<String> {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).err()?;
    let why = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Some(why.unwrap_or("no message").to_owned())
}
