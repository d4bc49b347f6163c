//! The scheduler: the server of a cluster. It receives the commands of controllers, places STARTs
//! on nodes, and forwards the reports of agents and concentrators.
//!
//! ```text
//!            the server's dispatcher thread
//!  frame ─▶ filter ─▶ Scheduler
//!             │        │ START ─────▶ does it exist? ─▶ placement ─┬─▶ agent: STATS or a
//!             │        │                  │               ▲        │   failure answer it
//!             │        │              instances           │        └─▶ held until a READY
//!             │        │                  ▲               │
//!             │        │ STATS, failures ─┴─ its own? ────│──────────▶ all controllers
//!             │        │ READY, FULL … ───────────────────┘
//!             │        │ STOP, TenantAdded … ──▶ the client that the payload names
//!             │        └ CONFIGURE ────────────▶ file, then all agents
//!             └▶ InvalidFrameType if the role may not send it
//! ```
//!
//! All state is plain fields on the dispatcher thread, and the time comes from the server. The
//! scheduler never waits for a peer. It decodes no payload of more than [`MAX_READ_LEN`] as a
//! whole: from longer STATS it extracts only the instances. Writing the configuration file would
//! block, so a separate thread does it.
//!
//! # Rules that the protocol does not define
//! * **Answers.** A failure of the scheduler goes to every controller, like the failures of
//!   agents. But `already_running` and `instance_exists` go only to the sender of the START,
//!   because a START of the same instance by another controller may be in progress. If a frame
//!   cannot be read and has no failure (EVACUATE, Restore, RefreshCNCI, READY, TenantAdded …), its
//!   sender gets InvalidFrameType with the reason `invalid_payload` or `invalid_data`. If the
//!   receiver of such a command is not connected, the reason is `not_connected`.
//! * **Owners of instances.** An agent's reports about nodes and instances that are not its
//!   own are dropped: see `instances` and `reports`. After a restart of the scheduler, an instance
//!   belongs to the first node that lists it, unless [`SchedulerConfig::state`] has its node.
//! * **Done.** A START is done when STATS of its node list the instance in any state but
//!   `pending`. `pending` is a sign of progress, which moves the deadline: see
//!   [`SchedulerConfig::start_time`].
//! * **One answer.** A failure of STOP, DELETE, RESTART, AttachVolume and DetachVolume is
//!   forwarded only if it answers such a command; see `commands`. A StartFailure that an agent
//!   repeats after a reconnection is forwarded only if it answers a START, or if its START is
//!   unknown and no other node can have got it.
//! * **Stale.** A node is stale if it has sent no STATS for three intervals. The scheduler
//!   sends its last STATS to all controllers with the status `STALE`.
//! * **Concentrators.** The snapshot of a new controller has the connected concentrators and the
//!   public addresses that they have assigned: after the nodes and before their STATS. A
//!   concentrator that connects receives the agents' reports about its tenants.
//! * **Master mode.** If a backup sends a command, it gets InvalidFrameType with the reason
//!   `role_not_allowed`, because no failure has a reason that fits. A controller that reconnects
//!   joins the end of the line.
//! * **A backup may read.** Streams of output and lists of sessions and bans are not commands. A
//!   backup can neither end a session nor lift a ban.
//! * **Identity of a node.** A node is identified by the UUID of its session. The UUID in READY is
//!   ignored, and STATS with another UUID are dropped.
//! * **Held.** A node that has just connected counts as waiting for its READY, with either
//!   policy: a START that fits only such nodes is held. The same is true for 3 s of a node that has
//!   ended its session in order, because a node with a renewed certificate reconnects by then.
//! * **A failed START** uses no room of its node: the node's last READY applies again, unless the
//!   reason is `full_cn` or `node_maintenance`.
//! * **Too many STARTs.** If [`SchedulerConfig::in_flight`] STARTs are in flight, a further one is
//!   answered with `full_cloud`.
//! * **Disk.** A START needs disk for its volumes that are `local`.
//! * **An adopted CONFIGURE** returns to its sender as the confirmation.
//! * **The previous configuration.** If a client refuses the current configuration, byte for byte,
//!   the scheduler restores the previous one, but none before that. The controller that sent the
//!   refused one gets InvalidConfiguration. A CONFIGURE is also refused if it cannot be written to
//!   the file, or if a newer one arrives before it is written.
//!
//! | file | holds |
//! |---|---|
//! | `config` | [`SchedulerConfig`], [`SchedulerError`] |
//! | [`placement`] | finds the node for a START |
//! | `starts` | a START from its arrival to its answer |
//! | `unplaced` | a START that has been read and not been sent to a node yet |
//! | `held` | a bounded queue: STARTs that wait for a READY, commands that wait for a leader |
//! | `moves` | instances that are started elsewhere when their node is evacuated |
//! | `instances` | the node and state of each instance, and STARTs in flight |
//! | `ledger` | the file that keeps the node of each instance for the next scheduler |
//! | `reports` | the reports of agents, and the check that an agent may make them |
//! | `commands` | commands that their node has not answered yet |
//! | `relay` | commands that name their receiver |
//! | `streams` | output of instances, forwarded to the controller that opened the stream |
//! | `answers` | failures and InvalidFrameType that the scheduler makes |
//! | `nodes` | agents: their status, and their frames for the snapshot of a new controller |
//! | `cncis` | concentrators: their reports, and the reports about their tenants |
//! | `controllers` | the line of controllers, and the snapshots for new controllers |
//! | `configuration` | the configuration of the cluster |
//! | `tenants` | the tenants whose networks the cluster has: keys, addresses |
//! | `keeper` | the threads that write the configuration and the tenants |
//! | `term` | several schedulers: beginning to lead, and losing the lease |
//! | `following` | several schedulers: one that does not lead passes frames on and holds commands |
//! | `messages` | several schedulers: the messages between them |
//! | `peers` | [`Peers`] links a server with the members of its cluster |
//! | `figures` | [`SchedulerFigures`]: the figures for metrics |

mod answers;
mod cncis;
mod commands;
mod config;
mod configuration;
mod controllers;
mod figures;
mod following;
mod held;
mod instances;
mod keeper;
mod ledger;
mod messages;
mod moves;
mod nodes;
mod peers;
pub mod placement;
mod relay;
mod reports;
mod starts;
mod streams;
mod tenants;
mod term;
mod unplaced;

use std::time::{Duration, Instant};

use bytes::Bytes;
use uuid::Uuid;

use self::cncis::Cncis;
use self::commands::Commands;
pub use self::config::{ControllerMode, SchedulerConfig, SchedulerError};
use self::configuration::Configuration;
use self::controllers::Controllers;
pub use self::figures::{SchedulerFigures, SchedulerLimits, StartFigures};
use self::held::{HeldQueue, HeldStart};
use self::instances::Instances;
use self::ledger::Ledger;
use self::messages::{Intent, StartState};
use self::moves::Moves;
use self::nodes::Nodes;
pub use self::peers::Peers;
use self::placement::Placement;
use self::streams::Streams;
use self::tenants::TenantTable;
use self::term::Term;
pub use self::term::{JoinError, JoinedScheduler, add_members};
use ssntp::Role;
#[cfg(doc)]
use ssntp::payload::MAX_READ_LEN;
use ssntp::payload::Servers;
use ssntp::proto::{Command, ErrorCode, Event, Frame, FrameType, Run, Status};
use ssntp::server::{
    ClusterHandler, Context, DisconnectReason, Filter, Handler, Rules, Server, ServerConfig, ServerError,
    ServerLink, SessionInfo, SlowConsumer,
};
use ssntp_cluster::clock::now;
use ssntp_transport::LogLimit;
use ssntp_transport::excerpt_bytes;

/// If the first time limit is over by more than this, the scheduler was paused.
const LATE: Duration = Duration::from_secs(2);
/// The time after a pause in which the scheduler handles the frames of its clients before time
/// limits apply again.
const CATCH_UP: Duration = Duration::from_secs(2);

/// Writes a log line that a peer can cause, unless that peer has caused too many of its kind:
/// level, limit, context, peer, kind, and the line.
macro_rules! limited {
    ($level:ident, $log:expr, $cx:expr, $peer:expr, $kind:literal; $($line:tt)+) => {
        if let Some(more) = $log.admit($peer, $kind, $cx.now()) {
            log::$level!(target: "ssntp::scheduler", "{}{more}", format_args!($($line)+));
        }
    };
}
use limited;

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
/// Everything happens on the server's dispatcher thread, except writing the configuration
/// file. A server that ends while the file is being written waits for the disk.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    placement: Placement,
    nodes: Nodes,
    cncis: Cncis,
    controllers: Controllers,
    held: HeldQueue<HeldStart>,
    instances: Instances,
    streams: Streams,
    moves: Moves,
    commands: Commands,
    configuration: Configuration,
    tenants: TenantTable,
    /// `Some` if this is one of several schedulers.
    term: Option<Term>,
    starts: StartFigures,
    invalid_frames: u64,
    /// The time at which time limits apply again after a pause of the scheduler.
    resumes: Option<Instant>,
    /// The number of dropped reports.
    foreign: u64,
    /// By UUID, so that a peer that reconnects gets no new allowance.
    log: LogLimit<Uuid>,
}

impl Scheduler {
    /// A scheduler of an empty cluster. Blocks while it reads the configuration file.
    ///
    /// # Errors
    /// [`SchedulerError`] if the configuration file cannot be used.
    pub fn new(config: SchedulerConfig) -> Result<Self, SchedulerError> {
        let tenants = config.configuration_file.as_deref().map(TenantTable::load);
        let tenants = tenants.transpose()?.unwrap_or_default();
        let configuration = match &config.configuration_file {
            Some(path) => Configuration::load(path.clone())?,
            None => Configuration::in_memory(config.configuration.clone())?,
        };
        let mut instances = Instances::new(config.in_flight, config.starts);
        if let Some(state) = &config.state {
            let opened = Ledger::open(state).map_err(|e| SchedulerError::Read(state.clone(), e));
            let (ledger, owners) = opened?;
            let owners = owners.into_iter().map(|(instance, node)| Intent {
                instance,
                node: Some(node),
                state: StartState::Answered,
            });
            // No agent has connected yet.
            instances.adopt(owners, |_| false, now());
            instances.keep_in(ledger);
        }
        Ok(Self {
            placement: Placement::new(config.policy),
            nodes: Nodes::new(config.stats_interval),
            cncis: Cncis::default(),
            controllers: Controllers::default(),
            held: HeldQueue::new(config.held_starts, config.held_bytes, config.held_time),
            instances,
            streams: Streams::default(),
            moves: Moves::default(),
            commands: Commands::new(config.starts),
            configuration,
            tenants,
            term: None,
            starts: StartFigures::default(),
            invalid_frames: 0,
            resumes: None,
            foreign: 0,
            log: LogLimit::default(),
            config,
        })
    }

    /// Drops all state of the cluster, but not the figures.
    fn forget(&mut self) {
        let config = &self.config;
        self.placement = Placement::new(config.policy);
        self.nodes = Nodes::new(config.stats_interval);
        self.cncis = Cncis::default();
        self.controllers = Controllers::default();
        self.held = HeldQueue::new(config.held_starts, config.held_bytes, config.held_time);
        self.instances = Instances::new(config.in_flight, config.starts);
        self.streams = Streams::default();
        self.moves = Moves::default();
        self.commands = Commands::new(config.starts);
        self.resumes = None;
    }

    /// Starts the server of the cluster. The scheduler replaces the filter, the rules and the
    /// configuration of `server`. A slow consumer is disconnected, because a client that misses a
    /// frame would have an incorrect view.
    ///
    /// # Errors
    /// [`ServerError`]; all threads have ended then.
    pub fn start(mut self, server: ServerConfig) -> Result<Server, ServerError> {
        let mut handles = Vec::new();
        for keeper in [&mut self.configuration.keeper, &mut self.tenants.keeper] {
            handles.extend(keeper.start().map_err(ServerError::Thread)?);
        }
        let server = Server::start(self.serve_with(server), self)?;
        for handle in handles {
            // The channel has room for the one handle, so this does not block.
            let _ = handle.send(server.handle());
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

    fn command(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let command = Command(frame.kind().operand);
        if command == Command::STATS {
            return self.stats(cx, from, frame);
        }
        if frame.kind().is_of_streams() {
            return self.stream_command(cx, from, frame);
        }
        // STATS and streams are handled above, because a backup may report and read.
        if !self.may_command(from) {
            limited!(info, self.log, cx, from.uuid(), "not the master";
                "{from}: {command} refused: it is not the master");
            answers::invalid_frame(cx, from, frame.kind(), "role_not_allowed");
            return;
        }
        match command {
            Command::START => self.start_command(cx, from, frame),
            Command::CONFIGURE => self.configure(cx, from, frame),
            Command::TENANT => self.tenant_command(cx, from, frame),
            _ => self.relay(cx, from, frame),
        }
    }

    fn may_command(&self, from: &SessionInfo) -> bool {
        self.config.controllers == ControllerMode::Any || self.controllers.is_master(from.key())
    }

    /// The time at which the first time limit of a node, a START or a command is over.
    fn next_expiry(&self) -> Option<Instant> {
        let all = [
            self.held.next_expiry(),
            self.instances.next_due(),
            self.nodes.next_due(),
            self.commands.next_due(),
        ];
        all.into_iter().flatten().min()
    }

    /// True if the scheduler was paused when a time limit was over: its process was stopped, or
    /// overloaded. It handles the frames that arrived meanwhile first, so that no node that has
    /// reported counts as stale.
    fn is_catching_up(&mut self, now: Instant) -> bool {
        let late = self.next_expiry().is_some_and(|at| now > at + LATE);
        self.resumes = match self.resumes {
            None if late => Some(now + CATCH_UP),
            // The pause ends only after all late time limits have expired.
            Some(resumes) if late || now < resumes => Some(resumes),
            _ => None,
        };
        self.resumes.is_some_and(|resumes| now < resumes)
    }

    fn event(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        match Event(frame.kind().operand) {
            Event::TENANT_ADDED | Event::TENANT_REMOVED => self.tenant_event(cx, from, frame),
            _ if frame.kind().is_of_streams() => self.stream_event(cx, from, frame),
            _ => self.node_event(cx, from, frame),
        }
    }

    fn failure(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        match ErrorCode(frame.kind().operand) {
            ErrorCode::INVALID_CONFIGURATION => self.configuration_refused(cx, from, frame),
            ErrorCode::INVALID_FRAME_TYPE => {
                self.invalid_frames += 1;
                limited!(warn, self.log, cx, from.uuid(), "InvalidFrameType";
                    "{from}: InvalidFrameType, {} so far: {}", self.invalid_frames, excerpt_bytes(frame.payload_bytes()));
                // An agent of an old version answers OpenStream with it.
                self.streams_not_supported(cx, from, frame);
            }
            _ => self.node_failure(cx, from, frame),
        }
    }
}

impl Scheduler {
    fn client_connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        self.node_connected(cx, session);
        if session.role().intersects(Role::CNCIAGENT) {
            self.send_tenants(cx, session);
        }
    }

    fn session_ended(&mut self, cx: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        self.controllers.leave(cx, session, &mut self.log);
        self.cncis.disconnected(session);
        self.streams_disconnected(cx, session);
        self.node_disconnected(cx, session, reason);
    }

    /// Handles a frame of a client of this server or of another one.
    fn handle(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        match frame.kind().frame_type {
            FrameType::COMMAND => self.command(cx, from, frame),
            FrameType::STATUS => {
                if self.node_status(cx, from, frame) {
                    self.node_changed(cx, from.uuid());
                }
            }
            FrameType::EVENT => self.event(cx, from, frame),
            _ => self.failure(cx, from, frame),
        }
        self.release_public_ips(cx);
        self.send_intents(cx);
    }
}

impl Handler for Scheduler {
    fn connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        // First, because `leads` may begin a term, and announce it to this controller as well.
        self.introduce_leader(cx, session);
        if self.leads(cx) {
            self.add_session(cx, session);
        }
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        // At a stop all sessions end at once, so no client can be informed.
        if *reason == DisconnectReason::Stopped {
            return;
        }
        if let Some(term) = &mut self.term {
            term.following.forget(session.uuid());
        }
        if self.leads(cx) {
            self.remove_session(cx, session, reason);
            self.send_intents(cx);
        }
    }

    fn run(&mut self, cx: &mut Context<'_>, from: &SessionInfo, run: &Run) {
        match self.leads(cx) {
            true => run.frames().for_each(|frame| self.frame(cx, from, frame)),
            false => self.pass_or_hold(cx, from, run.frames(), |cx, leader| {
                cx.pass_to_server(leader, from, run)
            }),
        }
    }

    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        if !self.leads(cx) {
            let frames = std::iter::once(frame.clone());
            return self.pass_or_hold(cx, from, frames, |cx, leader| {
                cx.pass_frame_to_server(leader, from, &frame)
            });
        }
        if let Some(term) = self.term.as_mut().filter(|_| from.server() == cx.uuid()) {
            term.following.keep(from.uuid(), &frame);
        }
        let is_command = frame.kind().frame_type == FrameType::COMMAND && frame.kind() != Command::STATS;
        if is_command && self.is_syncing() {
            self.hold(cx, from, &frame);
        } else if self.is_current(from) {
            self.handle(cx, from, &frame);
        }
    }

    fn draining(&mut self, _: &mut Context<'_>) {
        self.resign();
    }

    fn stopping(&mut self, cx: &mut Context<'_>) {
        if self.leads(cx) {
            self.refuse_held(cx);
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        // A keeper has only woken the dispatcher; the timer takes its result.
        let is_written = self.configuration.keeper.is_done() || self.tenants.keeper.is_done();
        let written = is_written.then(now);
        if self.term.as_ref().is_some_and(|term| !term.is_leading()) {
            return self.term_due().into_iter().chain(written).min();
        }
        [
            // After a pause, time limits apply only after `resumes`.
            self.next_expiry()
                .map(|at| self.resumes.map_or(at, |resumes| at.max(resumes))),
            self.controllers.send_at,
            self.term_due(),
            written,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn timer(&mut self, cx: &mut Context<'_>) {
        let now = cx.now();
        let leads = self.leads(cx);
        self.continue_transfer(cx);
        // Also done by a former leader, because its last write still needs an answer.
        self.proceed_with_configuration(cx);
        self.proceed_with_tenants(cx);
        if !leads {
            return self.expire_held(cx);
        }
        self.finish_sync(cx);
        if !self.is_catching_up(now) {
            self.expire_nodes(cx, now);
            self.expire_starts(cx, now);
            self.expire_commands(cx, now);
            self.release_public_ips(cx);
        }
        self.controllers
            .continue_snapshots(cx, &self.nodes, self.is_syncing());
        self.send_intents(cx);
    }

    fn cluster(&mut self) -> Option<&mut dyn ClusterHandler> {
        Some(self)
    }
}

impl ClusterHandler for Scheduler {
    fn server_linked(&mut self, cx: &mut Context<'_>, server: &ServerLink) {
        if self.leads(cx) {
            self.announce_lead_to(cx, server.uuid);
        }
    }

    fn server_unlinked(&mut self, cx: &mut Context<'_>, server: &ServerLink) {
        match self.leads(cx) {
            true => self.server_synced(cx, server.uuid),
            false => self.forget_leader(server.uuid),
        }
    }

    fn remote_connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        if self.leads(cx) {
            self.add_session(cx, session);
        }
    }

    fn remote_disconnected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        if self.leads(cx) {
            self.remove_distant_session(cx, session);
            self.send_intents(cx);
        }
    }

    fn server_message(&mut self, cx: &mut Context<'_>, server: Uuid, message: Bytes) {
        self.receive_message(cx, server, &message);
    }

    fn servers(&mut self, _: &mut Context<'_>, servers: &mut Servers) {
        self.show_servers(servers);
    }

    fn may_kick(&mut self, cx: &mut Context<'_>, from: &SessionInfo) -> bool {
        // A follower does not know which controller is the master.
        match self.leads(cx) {
            true => self.may_command(from),
            false => self.config.controllers == ControllerMode::Any,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssntp_payload::Start;

    #[test]
    fn after_a_pause_frames_are_handled_before_time_limits() {
        let (start, time) = (Frame::of(&Start::default()), Duration::from_secs(60));
        let mut scheduler = Scheduler::new(SchedulerConfig::new().held(1, 1000, time)).unwrap();
        let now = now();
        let start = unplaced::UnplacedStart::read(Uuid::nil(), start, now).unwrap();
        let node = Uuid::nil();
        scheduler.held.push(HeldStart { start, node }, 100, now);
        // The process was not paused.
        assert!(!scheduler.is_catching_up(now + time));
        assert_eq!(scheduler.next_timer(), Some(now + time));
        // The process was paused for 18 s.
        let late = now + time + Duration::from_secs(18);
        assert!(scheduler.is_catching_up(late));
        assert_eq!(scheduler.next_timer(), Some(late + CATCH_UP));
        assert!(!scheduler.is_catching_up(late + CATCH_UP));
        assert!(scheduler.held.expire(late + CATCH_UP).is_some());
        assert!(!scheduler.is_catching_up(late + CATCH_UP * 2));
        assert_eq!(scheduler.resumes, None);
    }
}
