//! The scheduler as the application of a server. It alone dispatches: the match of
//! [`handle`](Scheduler::handle) is the table of contents of the rooms.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use crossbeam_channel::Sender;
use log::{error, warn};
use uuid::Uuid;

use super::cluster::Cluster;
use super::config::{ControllerMode, SchedulerConfig, SchedulerError};
use super::configuration::Configuration;
use super::enrolment::{Clerk, Enrolments, no_issuer, with_operator};
use super::figures::SchedulerFigures;
use super::following::Following;
use super::members::add_members;
use super::messages::Message;
use super::out::{Out, limited};
use super::pause::Pause;
use super::shared::{CONFIGURATION, Shared, TENANTS};
use super::term::{Term, TermChange, is_linked, own_controllers};
use ssntp::Role;
use ssntp::payload::Servers;
use ssntp::proto::{Command, ErrorCode, Frame, FrameType, Refusal, Run, Status};
use ssntp::server::{
    CallError, ClusterHandler, Context, DisconnectReason, Filter, Handler, Newcomer, Rules, Server,
    ServerConfig, ServerError, ServerHandle, ServerLink, SessionInfo, SlowConsumer,
};
use ssntp_cluster::refusal::Reason;
use ssntp_engine::{Acting, View};
use ssntp_transport::{LogLimit, now};

/// The scheduler of a cluster, as the application of a [`Server`].
///
/// ```no_run
/// use ssntp_scheduler::{Scheduler, SchedulerConfig};
/// use ssntp::pki::{Identity, Trust};
/// use ssntp::server::ServerConfig;
///
/// let server = ServerConfig::new(Identity::load("scheduler.pem")?, Trust::load("ca.pem")?)
///     .listen("localhost:8888".parse()?);
/// let config = SchedulerConfig::new().configuration_file("cluster.yaml");
/// Scheduler::new(config)?.start(server)?.wait();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Threads
/// Everything happens on the server's dispatcher thread, except writing the configuration and the tenants, and the
/// commands about tokens and certificates. A server that ends meanwhile waits for the disk.
#[derive(Debug)]
pub struct Scheduler {
    /// The threads that wait for the server. They end when these are dropped, so these precede what joins the threads.
    awaiting: Vec<Sender<ServerHandle>>,
    config: SchedulerConfig,
    cluster: Cluster,
    configuration: Configuration,
    /// Carries out the commands about tokens and certificates; `None` if there are no records of them.
    clerk: Option<Clerk>,
    term: Term,
    /// The last reports of the clients of this one of several schedulers.
    following: Following,
    pause: Pause,
    /// By UUID, so that a peer that reconnects gets no new allowance.
    log: LogLimit<Uuid>,
}

impl Scheduler {
    /// A scheduler of an empty cluster. Blocks while it reads the configuration file.
    ///
    /// # Errors
    /// [`SchedulerError`] if the configuration file cannot be used.
    pub fn new(config: SchedulerConfig) -> Result<Self, SchedulerError> {
        let cluster = Cluster::load(&config, now())?;
        let configuration = match &config.configuration_file {
            Some(path) => Configuration::load(path.clone())?,
            None => Configuration::in_memory(config.configuration.clone())?,
        };
        Ok(Self {
            awaiting: Vec::new(),
            config,
            cluster,
            configuration,
            clerk: None,
            term: Term::alone(),
            following: Following::default(),
            pause: Pause::default(),
            log: LogLimit::default(),
        })
    }

    /// Starts the server of the cluster. The scheduler replaces the filter, the rules and the
    /// configuration of `server`. A slow consumer is disconnected, because a client that misses a
    /// frame would have an incorrect view.
    ///
    /// # Errors
    /// [`ServerError`]; all threads have ended then.
    pub fn start(mut self, server: ServerConfig) -> Result<Server, ServerError> {
        for keeper in [
            self.configuration.keeper(),
            &mut self.cluster.tenants.unwritten.keeper,
        ] {
            let started = keeper.start().map_err(ServerError::Thread)?;
            self.awaiting.extend(started);
        }
        let clerk = self.config.enrolments.clone().map(Clerk::start);
        let (clerk, serves) = clerk.transpose().map_err(ServerError::Thread)?.unzip();
        self.awaiting.extend(serves);
        self.clerk = clerk;
        let server = Server::start(self.serve_with(server), self)?;
        let take = |scheduler: &mut Self, _: &mut Context<'_>| std::mem::take(&mut scheduler.awaiting);
        let awaiting = server.handle().with_handler(take);
        for thread in awaiting.map_err(|_| ServerError::OnDispatcher)? {
            // The channel has room for the one handle, so this does not block.
            let _ = thread.send(server.handle());
        }
        Ok(server)
    }

    /// The configuration of a server whose application is this scheduler.
    pub fn serve_with(&self, server: ServerConfig) -> ServerConfig {
        server
            .filter(Filter::spec())
            .rules(Rules::new().multicast(Status::OFFLINE, Role::CONTROLLER))
            // The scheduler checks and writes a CONFIGURE before it distributes it.
            .takes_configure(false)
            .operators(Role::CONTROLLER)
            .configuration(self.configuration.current().clone())
            .slow_consumer(SlowConsumer::Disconnect)
    }

    /// A snapshot of the scheduler of a server. The dispatcher visits each instance for it,
    /// which takes some nanoseconds each.
    ///
    /// # Errors
    /// [`CallError::OtherHandler`] if the server's application is no scheduler;
    /// [`CallError::Stopped`], [`CallError::OnDispatcher`].
    pub fn figures(server: &ServerHandle) -> Result<SchedulerFigures, CallError> {
        server.with_handler(|scheduler: &mut Self, _| scheduler.present_figures())
    }

    fn present_figures(&self) -> SchedulerFigures {
        let (leads, kept_bytes) = (self.term.is_leading(), self.following.bytes());
        self.cluster.figures(&self.config, leads, kept_bytes)
    }

    /// Becomes one of several schedulers, which does not lead yet. Returns the records of nodes, if there are any, which
    /// the engine has from now on.
    pub(super) fn begin_following(&mut self, shared: &Arc<Shared>) -> Option<Enrolments> {
        self.configuration.keeper().keep_in(shared, CONFIGURATION);
        self.cluster.tenants.unwritten.keeper.keep_in(shared, TENANTS);
        self.term = Term::new(shared);
        let enrolments = self.config.enrolments.clone();
        enrolments.inspect(|enrolments| enrolments.keep_in(shared))
    }

    /// Handles a frame of a client of this server or of another one. This scheduler leads.
    fn handle(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let token = self.term.token();
        let out = &mut Out::new(cx, &mut self.log);
        let kind = frame.kind();
        match kind.frame_type {
            FrameType::COMMAND => match Command(kind.operand) {
                Command::STATS => self.cluster.handle_stats(out, from, frame),
                // A backup may report and read.
                command if !kind.is_of_streams() && !self.cluster.controllers.may_command(from.key()) => {
                    limited!(info, out, from.uuid(), "not the master";
                        "{from}: {command} refused: it is not the master");
                    out.invalid_frame(from, kind, &Reason::RoleNotAllowed);
                }
                Command::CONFIGURE => self.configuration.handle_configure(out, from, frame, token),
                Command::MANAGE_ENROLMENT => self.handle_enrolment(cx, from, frame),
                Command::TENANT => self.cluster.handle_tenant(out, from, frame),
                _ => self.cluster.handle_command(out, from, frame),
            },
            FrameType::STATUS => self.cluster.handle_status(out, from, frame),
            FrameType::EVENT => self.cluster.handle_event(out, from, frame),
            _ if kind == ErrorCode::INVALID_CONFIGURATION => {
                self.configuration.handle_refused(out, from, frame, token);
            }
            _ => self.cluster.handle_failure(out, from, frame),
        }
        self.finish(cx);
    }

    /// Hands a command about tokens or certificates over to its thread, or refuses it.
    fn handle_enrolment(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let answer = match &self.clerk {
            Some(clerk) => clerk.hand_over(from, frame),
            None => Some(no_issuer(frame)),
        };
        if let Some(answer) = answer {
            Out::new(cx, &mut self.log).send(from.uuid(), &answer);
        }
    }

    /// Frees addresses, and tells others what the event has changed. Called after each event.
    fn finish(&mut self, cx: &mut Context<'_>) {
        let out = &mut Out::new(cx, &mut self.log);
        self.cluster.finish(out, !self.term.is_alone());
    }

    /// A session has begun, of this server or of another one.
    fn add_session(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        // A term that has just begun includes the session already, and another session of the client may outrank it.
        let directory = cx.directory();
        let counts = directory.session(session.uuid()).unwrap_or(session);
        if self.term.is_current(counts) {
            return;
        }
        self.enter_session(cx, session);
        let out = &mut Out::new(cx, &mut self.log);
        // A controller that is also a node is announced to itself below, so its snapshot goes first.
        if Cluster::is_controller(session) {
            self.cluster
                .handle_controller(out, session, self.term.is_syncing());
        }
        self.cluster.handle_connected(out, session);
        if session.role().intersects(Role::CNCIAGENT) {
            self.finish(cx);
        }
    }

    /// Enters a session into the term's table of current sessions. Another session of the client that is there ends
    /// first.
    fn enter_session(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        if let Some(before) = self.term.enter_session(session) {
            self.session_ended(cx, &before, &DisconnectReason::Replaced);
        }
    }

    /// A session has ended, of this server or of another one.
    fn remove_session(&mut self, cx: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        // If this is not its current session, another one of the client counts.
        if self.term.remove_session(session) {
            self.session_ended(cx, session, reason);
            // The session of another server that was outranked until now.
            let next = cx.directory().session(session.uuid()).cloned();
            if let Some(next) = next.filter(|next| next.server() != cx.uuid()) {
                self.add_session(cx, &next);
            }
            self.finish(cx);
        }
    }

    /// Handles the end of a session that was its client's current one.
    fn session_ended(&mut self, cx: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        let is_node = session.role().intersects(Role::AGENT | Role::NETAGENT);
        let is_unreachable = is_node && !self.term.is_alone() && !is_linked(cx, session.server());
        if is_unreachable {
            self.term.note_unreachable(session);
        }
        let out = &mut Out::new(cx, &mut self.log);
        self.cluster
            .handle_disconnected(out, session, reason, is_unreachable);
    }

    /// The unreachable nodes of a server that have no session elsewhere count as away from now on.
    fn release_unreachable(&mut self, cx: &mut Context<'_>, server: Uuid) {
        let out = &mut Out::new(cx, &mut self.log);
        for node in self.term.take_unreachable(server) {
            self.cluster.handle_away(out, node);
        }
    }

    /// Takes up a new view of the engine or the end of the lease: this scheduler may begin to lead,
    /// or cease to. Every callback calls this before it asks whether this scheduler leads.
    fn follow_engine(&mut self, cx: &mut Context<'_>) {
        let Some(TermChange { view, ends, begins }) = self.term.take_change(cx) else {
            return;
        };
        if view.leader.is_some_and(|leader| leader.uuid != cx.uuid()) {
            self.cluster.tenants.unwritten.forget_freed();
        }
        if ends {
            self.step_down(cx);
        }
        if let Some(acting) = begins {
            self.begin(cx, acting, &view);
        }
        self.follow_view(cx, &view);
    }

    /// Begins to lead.
    fn begin(&mut self, cx: &mut Context<'_>, acting: Acting, view: &View) {
        let intents = self.term.begin(acting, cx.now());
        cx.set_leader_token(Some(acting.token));
        self.take_configuration(cx, view);
        self.cluster.tenants.take_view(view);
        let mut sessions: Vec<_> = cx.directory().sessions().cloned().collect();
        sessions.sort_unstable_by_key(SessionInfo::uuid);
        let is_there = |node| sessions.binary_search_by_key(&node, SessionInfo::uuid).is_ok();
        self.cluster.adopt(intents, is_there, cx.now());
        let servers: Vec<_> = cx.servers().map(|server| server.uuid).collect();
        for server in servers {
            self.announce_lead_to(cx, server);
        }
        self.announce_leader(cx);
        for controller in sessions.iter().filter(|session| Cluster::is_controller(session)) {
            // It gets no snapshot, because each node is announced to all controllers now.
            self.cluster.controllers.join(controller);
        }
        for session in &sessions {
            self.enter_session(cx, session);
            let out = &mut Out::new(cx, &mut self.log);
            self.cluster.handle_connected(out, session);
        }
        self.cluster.release_lost(&mut Out::new(cx, &mut self.log));
        self.begin_transfer(cx, cx.uuid());
    }

    /// Takes up the engine's configuration. If it cannot be used, the present one stays until a controller
    /// sends another one.
    fn take_configuration(&mut self, cx: &mut Context<'_>, view: &View) {
        let Some(document) = view.documents.get(CONFIGURATION) else {
            return self.configuration.write_current(cx.now());
        };
        match self.configuration.replace(Bytes::from(document.text.clone())) {
            Ok(()) => cx.set_configuration(self.configuration.current().clone()),
            Err(e) => {
                error!(target: "ssntp::scheduler", "the configuration of the engine cannot be used: {e}");
            }
        }
    }

    /// Ceases to lead: drops the state of a leader, except for the intents and the commands that
    /// the next leader needs.
    fn step_down(&mut self, cx: &mut Context<'_>) {
        warn!(target: "ssntp::scheduler", "this scheduler no longer leads");
        cx.send_to_servers(&Message::LeadsNoMore.encode());
        cx.set_leader_token(None);
        self.term.end(self.cluster.starts.intents());
        self.following.end_transfer();
        self.pause = Pause::default();
        let out = &mut Out::new(cx, &mut self.log);
        let mut commands = self.following.take_parked();
        commands.extend(self.cluster.end_term(out, &self.config));
        for (from, frame) in commands {
            self.following.park_or_refuse(out, &from, &frame);
        }
    }

    /// Takes up what else a view has: a table of tenants that can be read again, servers that are members no more, and
    /// the configuration while no scheduler leads.
    fn follow_view(&mut self, cx: &mut Context<'_>, view: &View) {
        if self.term.is_leading() {
            if self.cluster.tenants.take_mended(view) {
                self.cluster.handle_mended(&mut Out::new(cx, &mut self.log));
            }
            for server in self.term.departed(view) {
                self.release_unreachable(cx, server);
            }
        } else if self.term.leader(cx).is_none()
            && let Some(document) = view.documents.get(CONFIGURATION)
        {
            cx.set_configuration(document.text.clone());
        }
    }

    /// Informs another scheduler that this one leads, and sends it all intents.
    fn announce_lead_to(&mut self, cx: &mut Context<'_>, server: Uuid) {
        let Some(token) = self.term.token() else { return };
        self.term.await_reports(server);
        let configuration = self.configuration.current().clone();
        let leads = Message::Leads { token, configuration };
        let intents = self.cluster.starts.intents();
        for message in std::iter::once(leads.encode()).chain(Message::of(&intents)) {
            if let Err(e) = cx.send_to_server(server, message) {
                // The link has just ended. The next link to this server begins with all messages.
                warn!(target: "ssntp::scheduler", "{server} cannot be informed that this scheduler leads: {e}");
            }
        }
    }

    /// Sends NewLeader to the controllers of this server.
    fn announce_leader(&mut self, cx: &mut Context<'_>) {
        let event = Frame::of(&self.term.introduction(cx));
        let own = own_controllers(cx);
        let out = &mut Out::new(cx, &mut self.log);
        for controller in own {
            out.send(controller, &event);
        }
    }

    /// Begins to transfer the last reports of this server's clients to a leader, which may be this
    /// scheduler itself.
    fn begin_transfer(&mut self, cx: &mut Context<'_>, to: Uuid) {
        self.following.begin_transfer(to, cx.now());
        self.continue_transfer(cx);
    }

    /// Sends the next part of the transfer if it is due.
    fn continue_transfer(&mut self, cx: &mut Context<'_>) {
        let out = &mut Out::new(cx, &mut self.log);
        match self.following.continue_transfer(out) {
            Ok(frames) => {
                for (session, frame) in frames {
                    self.handle(cx, &session, &frame);
                }
                self.finish_sync(cx);
            }
            Err(leader) => self.forget_leader(leader),
        }
    }

    /// Another scheduler has sent the last reports of all its clients, or its link has ended.
    fn server_synced(&mut self, cx: &mut Context<'_>, server: Uuid) {
        self.term.handle_synced(server);
        if is_linked(cx, server) {
            self.release_unreachable(cx, server);
        }
        self.finish_sync(cx);
    }

    /// If all schedulers have sent their reports, or the time for that is over: sends
    /// SnapshotComplete to all controllers and takes up the parked commands.
    fn finish_sync(&mut self, cx: &mut Context<'_>) {
        if !self.term.end_sync(&self.following, cx.now()) {
            return;
        }
        let out = &mut Out::new(cx, &mut self.log);
        self.cluster
            .controllers
            .complete_snapshots(out, &self.cluster.nodes);
        // A controller that sent CONFIGURE to the previous leader learns from this whether the
        // configuration was adopted.
        if !self.configuration.current().is_empty() {
            out.send_to_controllers(&self.configuration.frame());
        }
        for (from, frame) in self.following.take_parked() {
            self.handle(cx, &from, &frame);
        }
    }

    /// Handles a message of another scheduler.
    fn handle_message(&mut self, cx: &mut Context<'_>, server: Uuid, message: &Bytes) {
        let leads = self.term.is_leading();
        let is_scheduler = cx
            .servers()
            .any(|link| link.uuid == server && link.role.contains(Role::SCHEDULER));
        if !is_scheduler || self.term.is_alone() {
            return;
        }
        match Message::decode(message) {
            Some(Message::Leads { token, configuration }) if !leads && token == cx.token() => {
                cx.set_configuration(configuration);
                if self.term.follow(server, token) {
                    // Also here, because the engine may be away for the whole term of that leader.
                    self.cluster.tenants.unwritten.forget_freed();
                    self.announce_leader(cx);
                    self.begin_transfer(cx, server);
                }
            }
            Some(Message::LeadsNoMore) if !leads => self.forget_leader(server),
            Some(Message::Complete) if leads => self.server_synced(cx, server),
            Some(Message::Intents(intents)) if self.term.leader(cx) == Some(server) => {
                self.term.store_intents(intents);
            }
            Some(_) => {}
            None => warn!(target: "ssntp::scheduler", "{server}: a message that cannot be read"),
        }
    }

    /// A scheduler has ceased to lead, or its link has ended: it is no longer this one's leader.
    fn forget_leader(&mut self, server: Uuid) {
        if self.term.unfollow(server) {
            self.following.end_transfer();
        }
    }

    /// Handles a frame of a client while this scheduler leads.
    fn lead_frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        if !self.term.is_alone() && from.server() == cx.uuid() {
            self.following.keep(from.uuid(), frame);
        }
        let is_command = frame.kind().frame_type == FrameType::COMMAND && frame.kind() != Command::STATS;
        if is_command && self.term.is_syncing() {
            let out = &mut Out::new(cx, &mut self.log);
            self.following.park(out, from, frame);
        } else if self.term.is_current(from) {
            self.handle(cx, from, frame);
        }
    }
}

impl Handler for Scheduler {
    fn admit(&mut self, _: &mut Context<'_>, newcomer: &Newcomer<'_>) -> Result<(), Refusal> {
        // Only certificates that an issuer has issued are revoked by these records.
        let may_be_revoked = Role::OF_NODES.contains(newcomer.certificate.roles);
        let records = self.config.enrolments.as_ref().filter(|_| may_be_revoked);
        records
            .and_then(Enrolments::unknown)
            .map_or(Ok(()), |why| Err(Refusal::postpone(why)))
    }

    fn connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        // First, because a term that begins now is announced to this controller as well. So it waits
        // for the snapshot of the leader, and does not take the silence until there is one for an empty
        // cluster.
        if !self.term.is_alone() && Cluster::is_controller(session) {
            let event = self.term.introduction(cx);
            Out::new(cx, &mut self.log).send(session.uuid(), &Frame::of(&event));
        }
        self.follow_engine(cx);
        if self.term.is_leading() {
            self.add_session(cx, session);
        }
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        // At a stop all sessions end at once, so no client can be informed.
        if *reason == DisconnectReason::Stopped {
            return;
        }
        self.following.forget(session.uuid());
        self.follow_engine(cx);
        if self.term.is_leading() {
            self.remove_session(cx, session, reason);
        }
    }

    fn run(&mut self, cx: &mut Context<'_>, from: &SessionInfo, run: &Run) {
        self.follow_engine(cx);
        if self.term.is_leading() || run.kind() == Command::MANAGE_ENROLMENT {
            run.frames().for_each(|frame| self.frame(cx, from, frame));
        } else {
            let leader = self.term.leader(cx);
            let out = &mut Out::new(cx, &mut self.log);
            self.following
                .pass_or_park(out, leader, from, run.frames(), |cx, leader| {
                    cx.pass_to_server(leader, from, run)
                });
        }
    }

    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, mut frame: Frame) {
        self.follow_engine(cx);
        if frame.kind() == Command::MANAGE_ENROLMENT && from.server() == cx.uuid() {
            frame = with_operator(from, &frame).unwrap_or(frame);
        }
        if self.term.is_leading() {
            return self.lead_frame(cx, from, &frame);
        }
        let (leader, frames) = (self.term.leader(cx), std::iter::once(frame.clone()));
        let out = &mut Out::new(cx, &mut self.log);
        self.following
            .pass_or_park(out, leader, from, frames, |cx, leader| {
                cx.pass_frame_to_server(leader, from, &frame)
            });
    }

    fn draining(&mut self, _: &mut Context<'_>) {
        self.term.resign();
    }

    fn stopping(&mut self, cx: &mut Context<'_>) {
        self.follow_engine(cx);
        if self.term.is_leading() {
            let out = &mut Out::new(cx, &mut self.log);
            self.cluster.refuse_waiting(out);
            // The addresses of these STARTs are free in the file as well.
            self.finish(cx);
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        // A keeper has only woken the dispatcher; the timer takes its result.
        let is_written = self.configuration.is_done() || self.cluster.tenants.unwritten.keeper.is_done();
        let has_lost = self.config.enrolments.as_ref().is_some_and(Enrolments::has_lost);
        let of_all = [
            (is_written || has_lost).then(now),
            self.configuration.next_deadline(),
            self.cluster.tenants.unwritten.next_deadline(),
            self.term.next_deadline(),
            self.following.next_deadline(self.term.is_leading()),
        ];
        let first = self.cluster.first_deadline();
        let of_leader = [
            // After a pause, time limits apply later.
            first.map(|first| self.pause.postponed(first)),
            self.cluster.controllers.next_deadline(),
        ];
        let of_leader = of_leader.into_iter().filter(|_| self.term.is_leading());
        of_all.into_iter().chain(of_leader).flatten().min()
    }

    fn timer(&mut self, cx: &mut Context<'_>) {
        self.follow_engine(cx);
        self.continue_transfer(cx);
        let token = self.term.token();
        let lost = self.config.enrolments.as_ref().and_then(Enrolments::take_lost);
        let has_lost = lost.map(|lost| self.cluster.handle_lost(lost)).is_some();
        let out = &mut Out::new(cx, &mut self.log);
        // Also done by a former leader, because its last write still needs an answer.
        self.configuration.proceed(out, token);
        self.cluster.handle_written(out);
        if !self.term.is_leading() {
            return self.following.expire(out);
        }
        if has_lost {
            self.cluster.release_lost(out);
        }
        self.finish_sync(cx);
        self.pause.handle_timer(cx.now(), self.cluster.first_deadline());
        let is_syncing = self.term.is_syncing();
        let out = &mut Out::new(cx, &mut self.log);
        if !self.pause.is_catching_up(out.now()) {
            self.cluster.expire(out);
        }
        let nodes = &self.cluster.nodes;
        self.cluster
            .controllers
            .continue_snapshots(out, nodes, is_syncing);
        self.finish(cx);
    }

    fn cluster(&mut self) -> Option<&mut dyn ClusterHandler> {
        Some(self)
    }
}

impl ClusterHandler for Scheduler {
    fn server_linked(&mut self, cx: &mut Context<'_>, server: &ServerLink) {
        self.follow_engine(cx);
        if self.term.is_leading() {
            self.announce_lead_to(cx, server.uuid);
        }
    }

    fn server_unlinked(&mut self, cx: &mut Context<'_>, server: &ServerLink) {
        self.follow_engine(cx);
        if self.term.is_leading() {
            self.server_synced(cx, server.uuid);
        } else {
            self.forget_leader(server.uuid);
        }
    }

    fn remote_connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        self.follow_engine(cx);
        if self.term.is_leading() {
            self.add_session(cx, session);
        }
    }

    fn remote_disconnected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        self.follow_engine(cx);
        if self.term.is_leading() {
            // Servers do not report the reason. A node that ended its session in order may be back
            // soon, so every node of a linked server is treated like that.
            let reason = if is_linked(cx, session.server()) {
                DisconnectReason::PeerClosed
            } else {
                DisconnectReason::Lost("the link to its server has ended".to_owned())
            };
            self.remove_session(cx, session, &reason);
        }
    }

    fn server_message(&mut self, cx: &mut Context<'_>, server: Uuid, message: Bytes) {
        self.follow_engine(cx);
        self.handle_message(cx, server, &message);
    }

    fn may_kick(&mut self, cx: &mut Context<'_>, from: &SessionInfo) -> bool {
        self.follow_engine(cx);
        // A follower does not know which controller is the master.
        if self.term.is_leading() {
            self.cluster.controllers.may_command(from.key())
        } else {
            self.config.controllers == ControllerMode::Any
        }
    }

    fn servers(&mut self, _: &mut Context<'_>, servers: &mut Servers) {
        if !self.term.is_alone() {
            add_members(servers, &self.term.view());
        }
    }
}

#[cfg(test)]
mod tests;
