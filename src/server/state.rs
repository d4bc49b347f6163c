//! All state of a server except for its application: the rooms, and what concerns several of them.
//!
//! A session that begins or ends changes its index, the counters, the limits, the links and the
//! notices for the application. A frame that is sent goes to sessions of this server and over links. Such
//! operations are here; each fact has its owner in another file.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use log::{Level, debug, info, warn};
use uuid::Uuid;

use super::admission::{Admission, Grant, Holder, Newcomer, Peer, Situation};
use super::config::{ServerConfig, SlowConsumer};
use super::configuration::Configuration;
use super::connections::Connections;
use super::counters::Counters;
use super::delivery::Delivery;
use super::disconnect::DisconnectReason;
use super::environment::Environment;
use super::error::SendError;
use super::figures::{ClosedSession, Figures, HandshakeFigures, SessionFigures};
use super::links::{EndCode, LinkRequest, Remote, RosterChanges, SLACK, ServerLink, verdict};
use super::log::{AUDIT, Log, Named};
use super::operators::{self, Operators, kick, lists, read_drain};
use super::parcel::Parcel;
use super::renewals::Renewals;
use super::routing::{Routing, RuleError};
use super::sessions::{Session, SessionId, SessionInfo};
use super::time::Moment;
use crate::payload::{
    DrainServer, Draining, Kick, Kicked, OperatorRefusal, Payload, ServerEntry, ServerState, Servers,
};
use crate::proto::{Connect, ErrorCode, Frame, FrameKind, Item, PROBE, Refusal, Run, ServerHandshake};
use crate::request::Request;
use crate::silence::{Look, SILENT};
use crate::wire::Decoder;
use ssntp_pki::{CertificateDer, CertificateInfo, Fault, KeptCertificate, chain_from_der, rfc3339};
use ssntp_transport::dispatch::{Drops, View};
use ssntp_transport::{ConnectionId, Load, OutboxCounters, excerpt};

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

/// All state of a server except for the application.
pub(super) struct State {
    pub(super) environment: Arc<Environment>,
    /// The sessions, the links, and the way out.
    pub(super) delivery: Delivery,
    pub(super) renewals: Renewals,
    pub(super) admission: Admission,
    pub(super) routing: Routing,
    pub(super) configuration: Configuration,
    pub(super) operators: Operators,
    pub(super) counters: Counters,
    pub(super) log: Log,
    pub(super) connections: Connections,
    slow_consumer: SlowConsumer,
    started: Instant,
    /// The events to deliver to the application, oldest first.
    pub(super) notices: Vec<Notice>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("sessions", &self.delivery.sessions.len())
            .finish_non_exhaustive()
    }
}

impl State {
    pub(super) fn new(
        config: ServerConfig,
        environment: Arc<Environment>,
        max_sessions: usize,
        open: Sender<Infallible>,
        now: Instant,
    ) -> Result<Self, RuleError> {
        let own = &environment.own;
        Ok(Self {
            delivery: Delivery::new(own, config.idle_limit, now),
            renewals: Renewals::new(config.renewals),
            admission: Admission::new(own.uuid, config.admission, max_sessions, open),
            routing: Routing::new(config.filter, config.rules, &own.operands)?,
            configuration: Configuration::new(
                config.configuration,
                config.configuration_check,
                config.takes_configure,
            ),
            operators: Operators::new(config.operators),
            counters: Counters::default(),
            log: Log::default(),
            connections: Connections::default(),
            slow_consumer: config.slow_consumer,
            started: now,
            notices: Vec::new(),
            environment,
        })
    }

    /// Logs a panic of the application, with a limit, because each frame may cause one.
    pub(super) fn log_panic(&mut self, what: &'static str, panic: Option<String>) {
        if let Some(why) = panic {
            let line = format_args!("the application panicked in {what}: {why}");
            self.log
                .of_uuid(Level::Error, (Uuid::nil(), what), self.delivery.time.now, line);
        }
    }

    /// The snapshot, without the parts that the dispatcher does not have: names, peers, handshakes.
    pub(super) fn figures(&self, view: &View<'_, Item>) -> Figures {
        let own = &self.environment.own;
        let time = Moment {
            now: view.now,
            ..self.delivery.time
        };
        let announced = self.delivery.sessions.iter().filter(|session| session.announced);
        let (certificates, most_of_certificate) = self.connections.certificates().counted();
        let out = &self.delivery.out;
        let (answered, unreceived) = out.counted();
        let mut figures = Figures {
            uuid: own.uuid,
            role: own.role,
            taken: time.wall,
            started: time.time_of_day(self.started),
            stopping: !self.admission.is_open(),
            by_role: self.delivery.sessions.count_by_role(),
            standing: view.connections.saturating_sub(self.connections.links()),
            max_sessions: self.admission.max_sessions(),
            certificates,
            most_of_certificate,
            max_of_certificate: self.admission.share(),
            links: self.delivery.links.figures(time.now),
            lost: self.connections.frames_lost(),
            dispatcher: view.dispatcher,
            queues: view.queues,
            received: view.received,
            closed: Vec::new(),
            admitted: 0,
            ended: Default::default(),
            peers: Vec::new(),
            handshakes: HandshakeFigures::default(),
            frames: out.kinds(),
            unsupported: 0,
            filtered: 0,
            dropped: 0,
            unreceived,
            answered,
            sessions: announced
                .map(|session| SessionFigures::new(session, view, time))
                .collect(),
        };
        self.counters.show(&mut figures);
        figures
    }
}

/// The beginning and the end of sessions.
impl State {
    /// Judges a newcomer by the server's own rules. Returns the session that it takes over, if any.
    /// `connections` is their number, including links.
    pub(super) fn judge(
        &self,
        newcomer: &Newcomer<'_>,
        connections: usize,
    ) -> Result<Option<SessionId>, Refusal> {
        let (admission, certificates) = (&self.admission, self.connections.certificates());
        let situation = Situation {
            needs_bound: admission.needs_bound(newcomer.role),
            sessions: connections.saturating_sub(self.connections.links()),
            of_certificate: certificates.connections_of(newcomer.certificate),
            holder: self.holder(newcomer.uuid, newcomer.certificate, newcomer.intermediates),
            ..admission.situation(newcomer.uuid, self.delivery.time.now)
        };
        let bound = newcomer.certificate.uuid;
        admission.judge(newcomer.uuid, bound, &situation)
    }

    /// The session that has the UUID of a newcomer with this certificate, which has shown these others.
    fn holder(&self, uuid: Uuid, new: &CertificateInfo, shown: &[CertificateDer<'_>]) -> Option<Holder> {
        let old = &self.delivery.sessions.of(uuid)?.info;
        let trust = &self.environment.active().credentials.trust;
        Some(Holder::new(old.id, &old.certificate, new, shown, trust))
    }

    /// True if a session of the newcomer's UUID is at another server, which must be asked before this server
    /// admits the newcomer.
    pub(super) fn must_claim(&self, newcomer: &Newcomer<'_>) -> bool {
        // If the UUID has a session here as well, the servers resolve that by rank, without a claim.
        self.delivery.links.roster().get(newcomer.uuid).is_some()
            && self.judge(newcomer, self.connections.len()) == Ok(None)
    }

    /// Judges a newcomer of another server, and ends this server's session if the newcomer may take
    /// it over. `certificates` are the newcomer's own and those that it has shown with it. Returns the verdict for
    /// CLAIMED.
    pub(super) fn judge_claim(&mut self, uuid: Uuid, certificates: &[u8]) -> u8 {
        if self.delivery.sessions.of(uuid).is_none() {
            return 0;
        }
        let chain = chain_from_der(certificates).unwrap_or_default();
        let Some((Ok(certificate), shown)) = chain
            .split_first()
            .map(|(first, shown)| (CertificateInfo::from_der(first), shown))
        else {
            // A certificate that cannot be read proves nothing, so the session stays.
            return u8::MAX;
        };
        // The other server applies its own rules and limits, so none applies here.
        let situation = Situation {
            stopping: false,
            maximum: usize::MAX,
            holder: self.holder(uuid, &certificate, shown),
            ..self.admission.situation(uuid, self.delivery.time.now)
        };
        let judged = self.admission.judge(uuid, certificate.uuid, &situation);
        if let Ok(Some(old)) = judged {
            self.end(old, DisconnectReason::Replaced, true);
        }
        verdict(&judged)
    }

    /// Adds the session of a client that was judged.
    pub(super) fn admit(
        &mut self,
        id: SessionId,
        peer: Peer,
        connect: &Connect,
        outbox: OutboxCounters,
    ) -> Grant {
        let environment = &self.environment;
        let own = &environment.own;
        let connected = ServerHandshake::connected(
            connect,
            own.uuid,
            own.role,
            environment.tracing,
            self.configuration.content().clone(),
        );
        let certificate = self
            .connections
            .add(id.0, &peer.certificate, peer.intermediates, outbox.clone());
        let info = Arc::new(SessionInfo {
            id,
            server: own.uuid,
            uuid: connect.source,
            role: connect.role,
            address: peer.address,
            certificate,
            tracing: connected.trace,
        });
        let bad_traces = Arc::default();
        let decoder = Decoder::new(
            own.max_payload,
            connected.trace,
            own.operands.clone(),
            Arc::clone(&bad_traces),
            (own.uuid, own.role),
        );
        let mut session = Session::new(info, outbox, bad_traces, self.delivery.time.now);
        session.expires = peer.expires;
        session.rank = self.delivery.links.next_rank();
        self.delivery.sessions.insert(session, self.delivery.time);
        Grant {
            decoder,
            answer: connected.encode().into(),
        }
    }

    /// Begins a session whose threads run. `None` if it has ended meanwhile.
    pub(super) fn begin(&mut self, id: SessionId) -> Option<Arc<SessionInfo>> {
        let delivery = &mut self.delivery;
        let session = delivery.sessions.get_mut(id)?;
        session.announced = true;
        self.counters.admitted();
        delivery.links.announce_session(session, &mut delivery.out);
        let info = Arc::clone(&session.info);
        let line = format_args!("{info}: connected");
        self.log
            .of_session(Level::Info, (&info, "connected"), self.delivery.time.now, line);
        info!(target: AUDIT, "connected: {info}, {}", Named(info.certificate()));
        Some(info)
    }

    /// Removes a session whose threads could not be started. The application does not know it, so it is not
    /// told of its end either.
    pub(super) fn remove(&mut self, id: SessionId) {
        if let Some(session) = self.delivery.sessions.remove(id) {
            self.counters.removed(&session.counters());
        }
    }

    /// Removes a session from every index and ends its connection: after its queue is sent, or at once
    /// with `abort`.
    pub(super) fn end(&mut self, id: SessionId, reason: DisconnectReason, abort: bool) {
        let delivery = &mut self.delivery;
        // First, so that no frame is sent to the session by the calls below.
        let Some(session) = delivery.sessions.remove(id) else {
            return;
        };
        // Only this client could have answered the requests to it.
        delivery.asked.cancel(Some(session.info.uuid));
        delivery.out.end(id.0, abort);
        // If the application was not told of the session's beginning, it is not told of its end.
        let counters = session.counters();
        self.counters.removed(&counters);
        if session.announced {
            self.counters.closed(ClosedSession {
                info: Arc::clone(&session.info),
                reason: reason.clone(),
                since: delivery.time.time_of_day(session.since),
                until: delivery.time.wall,
                counters,
            });
            delivery.links.announce_end(&session.info, &mut delivery.out);
            self.notices.push(Notice::Disconnected(session.info, reason));
        }
    }

    /// Ends a session with ConnectionFailure, after which its client may connect again: with a valid
    /// certificate, or after its ban. Ends a link likewise. False if the session is over already.
    pub(super) fn dismiss(&mut self, id: SessionId, reason: DisconnectReason) -> bool {
        if self.delivery.sessions.get(id).is_none() {
            return self.end_link(id.0, EndCode::Refused, &reason.to_string());
        }
        // Before the end, after which the session has no queue.
        let failure = Frame::new(ErrorCode::CONNECTION_FAILURE);
        self.delivery.out.own(id, &failure);
        self.end(id, reason, false);
        true
    }

    /// Ends sessions whose certificates have expired.
    pub(super) fn end_expired(&mut self) {
        for id in self.delivery.sessions.expired(self.delivery.time) {
            if let Some(session) = self.delivery.sessions.get(id) {
                let not_after = session.info.certificate().not_after_text();
                let clock = rfc3339(self.delivery.time.wall);
                let why = Fault::Expired { not_after, clock }.to_string();
                self.dismiss(id, DisconnectReason::Certificate(why));
            }
        }
    }

    /// Asks silent sessions for a sign of life, and ends those that have given none.
    pub(super) fn end_silent(&mut self) {
        for (id, look) in self.delivery.sessions.silent(self.delivery.time.now) {
            if look == Look::Ask {
                self.ask(id);
            } else {
                // Without sending its queue, because the client does not read it.
                self.end(id, DisconnectReason::Lost(SILENT.into()), true);
            }
        }
    }

    /// Asks a client for a sign of life. To a client that is not read, whose own question is not answered, it is the
    /// sign of life of this server.
    pub(super) fn ask(&mut self, id: SessionId) {
        if let Some(session) = self.delivery.sessions.get_mut(id) {
            session.silence.ask();
            self.delivery.out.own(id, &Frame::new(PROBE));
        }
    }

    /// Notes that credentials of this generation are in force. Returns the certificates of all sessions
    /// and links.
    pub(super) fn begin_generation(&mut self, generation: u64) -> Vec<(KeptCertificate, SessionId)> {
        self.admission.set_generation(generation);
        let sessions = self.delivery.sessions.iter();
        let sessions = sessions.map(|session| (session.info.certificate.clone(), session.info.id));
        let links = self.delivery.links.certificates();
        let links = links.map(|(certificate, id)| (certificate.clone(), id.into()));
        sessions.chain(links).collect()
    }

    /// Asks every client to leave. The server stops when all have left, at the latest some seconds after
    /// the time `within`.
    pub(super) fn drain(&mut self, within: Duration) {
        info!(target: "ssntp::server", "draining: clients have {} s to leave", within.as_secs_f64());
        if self.admission.drain(within, self.delivery.time.now) {
            self.notices.push(Notice::Draining);
        }
        let draining = Frame::of(&Draining {
            within_s: within.as_secs(),
        });
        for id in self.delivery.sessions.ids() {
            self.delivery.out.own(id, &draining);
        }
    }

    /// Ends all links and sessions, and admits no newcomers from now on.
    pub(super) fn stop(&mut self) {
        self.admission.close();
        for id in self.delivery.links.ids() {
            self.end_link(id, EndCode::Closing, "the server stops");
        }
        for id in self.delivery.sessions.ids() {
            self.end(id, DisconnectReason::Stopped, false);
        }
    }

    /// Forgets a connection whose threads have ended.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        if let (lost, Some(server)) = self.connections.remove(id)
            && lost > 0
        {
            warn!(target: "ssntp::server", "{server}: {lost} frames were lost with the link");
        }
    }

    /// Applies the policy for slow consumers to a session whose queue is full, if no sender can be paused.
    /// `newest` is the item that found no room.
    pub(super) fn overflow(&mut self, id: SessionId, newest: Load) -> Drops {
        let Some(session) = self.delivery.sessions.get(id) else {
            self.counters.dropped(newest.frames);
            return Drops::Newest;
        };
        let counters = session.counters();
        let (what, drops) = match self.slow_consumer {
            SlowConsumer::Disconnect => {
                let (info, waiting) = (&session.info, counters.frames_waiting);
                let line = format_args!(
                    "{info}: slow consumer: disconnected with {waiting} frames, {} bytes in its queue",
                    counters.bytes_waiting
                );
                self.log
                    .of_session(Level::Warn, (info, "slow consumer"), self.delivery.time.now, line);
                // Without sending its queue, because the client does not read it.
                self.end(id, DisconnectReason::SlowConsumer, true);
                self.counters.dropped(newest.frames);
                return Drops::Newest;
            }
            SlowConsumer::DropNewest => ("newest", Drops::Newest),
            SlowConsumer::DropOldest => ("oldest", Drops::Oldest),
        };
        // Logged once for each session, because the policy applies to every further frame.
        if counters.frames_dropped == 0 {
            warn!(target: "ssntp::server", "{}: slow consumer: the {what} frames are dropped", session.info);
        }
        drops
    }
}

/// Routing and sending.
impl State {
    /// Forwards frames of a session by the rule for their kind.
    pub(super) fn route(&mut self, info: &SessionInfo, item: &Item) {
        for panic in self.routing.forward(&mut self.delivery, info, item) {
            self.log_panic("a routing function", Some(panic));
        }
    }

    /// Checks the CONFIGURE of a controller and replaces the configuration. False if it was refused.
    pub(super) fn configure(&mut self, info: &SessionInfo, frame: &Frame) -> bool {
        let payload = frame.payload_bytes();
        let (verdict, panic) = self.configuration.replace(payload);
        self.log_panic("the configuration check", panic);
        let now = self.delivery.time.now;
        if let Err(why) = &verdict {
            let line = format_args!("{info}: CONFIGURE refused: {}", excerpt(why));
            self.log
                .of_session(Level::Warn, (info, "CONFIGURE refused"), now, line);
            let refused = Frame::with_payload(ErrorCode::INVALID_CONFIGURATION, payload.clone());
            self.delivery.out.answer(info.id, &refused, 1);
        } else {
            let line = format_args!("{info}: new cluster configuration of {} bytes", payload.len());
            self.log
                .of_session(Level::Info, (info, "new configuration"), now, line);
        }
        verdict.is_ok()
    }

    /// Counts frames of a session that the role filter has discarded, and answers each of them if the
    /// filter's action is Reject.
    pub(super) fn filtered(&mut self, id: SessionId, kind: FrameKind, frames: u32) {
        let Some(session) = self.delivery.sessions.get_mut(id) else {
            return;
        };
        session.counters.frames_filtered += u64::from(frames);
        debug!(target: "ssntp::server",
            "{}: may not send {}",
            session.info,
            self.environment.own.operands.show(kind)
        );
        if self.routing.filter().rejects() {
            self.delivery.out.refuse(id, kind, "role_not_allowed", frames);
        }
    }
}

/// Requests and their answers.
impl State {
    /// Refuses a request that the role filter does not allow. Such a refusal needs an answer that names
    /// the request.
    pub(super) fn filter_request(&mut self, info: &SessionInfo, request: &Request, addressee: Option<Uuid>) {
        if let Some(session) = self.delivery.sessions.get_mut(info.id) {
            session.counters.frames_filtered += 1;
        }
        if self.routing.filter().rejects() {
            self.delivery.refuse(request, addressee, "not_allowed");
        }
    }

    /// Sends an answer to the client that asked, if that client may send such requests. Otherwise
    /// answers would be a way around the filter.
    pub(super) fn pass_back(&mut self, info: &SessionInfo, asker: Uuid, answer: &Frame) {
        let Some(role) = self.delivery.directory().session(asker).map(SessionInfo::role) else {
            debug!(target: "ssntp::server", "{info}: its answer is dropped: {asker} has gone");
            return;
        };
        if !self.routing.filter().allows(role, answer.kind()) {
            if let Some(session) = self.delivery.sessions.get_mut(info.id) {
                session.counters.frames_filtered += 1;
            }
        } else if let Err(e) = self.send(Some(info.uuid), asker, answer) {
            debug!(target: "ssntp::server", "{info}: its answer is dropped: {e}");
        }
    }

    /// Sends a frame of a client or of the server to one session.
    pub(super) fn send(&mut self, from: Option<Uuid>, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        let mut parcel = self.delivery.parcel(frame);
        self.delivery.send(from, to, &mut parcel)
    }
}

/// The commands of operators.
impl State {
    pub(super) fn kick(&mut self, by: &SessionInfo, asked: &Kick) -> Kicked {
        let session = asked.uuid.uuid().and_then(|uuid| self.delivery.sessions.of(uuid));
        let session = session.map(|session| Arc::clone(&session.info));
        let owners = (&mut self.admission.bans, &mut self.log);
        let kicked = kick(asked, by, session.as_deref(), owners, self.delivery.time.now);
        if let Some(info) = session.filter(|_| kicked.count > 0) {
            self.dismiss(info.id, DisconnectReason::Kicked { by: by.uuid });
        }
        kicked
    }

    /// This server, the linked servers, and the peers without a link.
    pub(super) fn servers(&self) -> Servers {
        let links = self.delivery.links.figures(self.delivery.time.now);
        let mut servers = lists::servers(self.own_entry(), &links, self.environment.peers.list());
        servers.token = self.delivery.links.token();
        if self.delivery.links.leads() {
            servers.leader = self.environment.own.uuid.into();
        }
        servers
    }

    fn own_entry(&self) -> ServerEntry {
        let own = &self.environment.own;
        let age = self.delivery.time.now.saturating_duration_since(self.started);
        ServerEntry {
            uuid: own.uuid.into(),
            address: own.advertised.clone(),
            roles: own.role.to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            state: if self.admission.is_draining() {
                ServerState::Draining
            } else {
                ServerState::Own
            },
            age_s: age.as_secs(),
            sessions: self.delivery.sessions.len() as u64,
            ..ServerEntry::default()
        }
    }

    /// Drains this server for an operator, or passes the command on to the server that it names, as the
    /// frame `pass`.
    pub(super) fn drain_by(&mut self, by: &SessionInfo, asked: &DrainServer, pass: Option<&Frame>) {
        let own = self.environment.own.uuid;
        // The application of the operator's own server has allowed a command that was passed on.
        let is_allowed =
            self.operators.include(by.role) && self.routing.filter().allows(by.role, DrainServer::KIND);
        let done = read_drain(asked, own, is_allowed).and_then(|uuid| {
            if uuid == own {
                return Ok(true);
            }
            let passed = pass.map(|frame| self.delivery.pass_to(uuid, by, &Parcel::run(&Run::of(frame))));
            passed.and_then(Result::ok).map(|()| false).ok_or_else(|| {
                let text = format!("there is no link to a server {uuid}; connect to it to drain it");
                (OperatorRefusal::NotConnected, text)
            })
        });
        let mut answer = Servers {
            id: asked.id.clone(),
            ..Servers::default()
        };
        match &done {
            Ok(false) => {
                // The other server does not know the operator's certificate.
                let (other, operator) = (&asked.uuid, Named(by.certificate()));
                info!(target: AUDIT, "drain of server {other} within {} s passed on: by {by}, {operator}", asked.within_s);
                return;
            }
            Ok(true) => {
                let (now, operator) = (self.delivery.time.now, Named(by.certificate()));
                let line = format_args!("{by} ({operator}): drains this server");
                self.log.of_session(Level::Warn, (by, "drain"), now, line);
                info!(target: AUDIT, "drained within {} s: by {by}, {operator}", asked.within_s);
                answer.entries = vec![ServerEntry {
                    state: ServerState::Draining,
                    ..self.own_entry()
                }];
            }
            Err((reason, detail)) => (answer.reason, answer.detail) = (reason.clone(), detail.clone()),
        }
        let answer = Ok(Frame::of(&answer));
        operators::answer(&mut self.delivery, by, DrainServer::KIND, answer);
        // After the answer, because the operator is a client and may leave at once.
        if done.is_ok() {
            self.drain(Duration::from_secs(asked.within_s));
        }
    }
}

/// Links to other servers.
impl State {
    /// Admits a link.
    pub(super) fn admit_link(
        &mut self,
        id: ConnectionId,
        peer: Peer,
        request: LinkRequest,
        outbox: OutboxCounters,
    ) -> Result<Grant, Refusal> {
        if !self.admission.is_open() {
            return Err(Refusal::Busy("the server is shutting down"));
        }
        if let Some(old) = self.delivery.links.judge(&request, &peer.certificate)? {
            self.end_link(old, EndCode::Duplicate, "a newer link takes its place");
        }
        let certificate = self
            .connections
            .add(id, &peer.certificate, peer.intermediates, outbox.clone());
        let (proof, now) = ((certificate, peer.expires), self.delivery.time.now);
        let links = &mut self.delivery.links;
        let server = links.add(id, request, proof, (peer.address, outbox), now);
        self.connections.set_link(id, server);
        Ok(Grant {
            // A FORWARD is longer than the frames in it.
            decoder: Decoder::of_links(self.environment.own.max_payload.saturating_add(SLACK)),
            answer: links.hello(),
        })
    }

    /// Begins a link whose threads run. False if the connection is not a link.
    pub(super) fn begin_link(&mut self, id: ConnectionId) -> bool {
        let delivery = &mut self.delivery;
        let link = delivery.links.begin(id, &delivery.sessions, &mut delivery.out);
        if let Some(server) = link {
            info!(target: "ssntp::server", "{server}: link begins");
        }
        link.is_some()
    }

    /// Ends a link: sends its queue and END with the reason. A peer that is gone or does not read,
    /// which is `Closing` while this server runs, gets neither. False if the connection is not a
    /// link.
    pub(super) fn end_link(&mut self, id: ConnectionId, code: EndCode, why: &str) -> bool {
        let is_open = self.admission.is_open();
        let abort = code == EndCode::Closing && is_open;
        let delivery = &mut self.delivery;
        let Some(link) = delivery.links.end(id, code, why, abort, &mut delivery.out) else {
            return false;
        };
        let server = link.server;
        let is_expected = code == EndCode::Duplicate || !is_open;
        let level = if is_expected { Level::Info } else { Level::Warn };
        let line = format_args!("{server}: link ends: {}", excerpt(&why));
        self.log
            .of_uuid(level, (server.uuid, "link ends"), self.delivery.time.now, line);
        if let Some(removed) = link.removed {
            let removed = removed.into_iter().map(Notice::RemoteDisconnected);
            self.notices.extend(removed);
            self.notices.push(Notice::Unlinked(server));
        }
        true
    }

    /// Sends the heartbeats of links that are due.
    pub(super) fn beat(&mut self) {
        let delivery = &mut self.delivery;
        for (id, code, why) in delivery.links.beat(delivery.time, &mut delivery.out) {
            self.end_link(id, code, why);
        }
    }

    /// Applies changes of another server's sessions, which are now known if it is `linked`. Ends the own
    /// session of a UUID if the other server's session outranks it.
    pub(super) fn apply(&mut self, linked: Option<Arc<ServerLink>>, changes: RosterChanges) {
        self.notices.extend(linked.map(Notice::Linked));
        let removed = changes.removed.into_iter().map(Notice::RemoteDisconnected);
        self.notices.extend(removed);
        for row in changes.connected {
            self.delivery.links.note_rank(&row);
            if let Some(own) = self.delivery.sessions.of(row.info.uuid)
                && (row.rank, row.info.server) > (own.rank, self.environment.own.uuid)
            {
                self.end(own.info.id, DisconnectReason::Replaced, true);
            }
            self.notices.push(Notice::RemoteConnected(row));
        }
    }
}
