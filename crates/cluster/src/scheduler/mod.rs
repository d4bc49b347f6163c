//! The scheduler: the server of a cluster, which takes the controllers'
//! commands, picks nodes, and forwards what its clients say.
//!
//! ```text
//!            the server's dispatcher thread
//!  frame ─▶ filter ─▶ Scheduler
//!             │        │ START ─────▶ is it there? ─▶ placement ─┬─▶ agent: STATS or a
//!             │        │                  │               ▲      │   failure answer it
//!             │        │              instances           │      └─▶ held until a READY
//!             │        │                  ▲               │
//!             │        │ STATS, failures ─┴─ its own? ────│──────────▶ all controllers
//!             │        │ READY, FULL … ───────────────────┘
//!             │        │ STOP, TenantAdded … ──▶ the client that the payload names
//!             │        └ CONFIGURE ────────────▶ file, then all agents
//!             └▶ InvalidFrameType if the role may not send it
//! ```
//!
//! All state is plain fields on the dispatcher thread, and the time comes from the server.
//! The scheduler never waits for a peer, and reads no payload of more than [`MAX_READ_LEN`]
//! as a whole: of longer STATS it skims which instances there are.
//! Writing the configuration file would block, so it has a thread of its own.
//!
//! # What the protocol leaves open
//! * **Answers.** A failure that the scheduler makes goes to every controller, as those of
//!   agents do. But `already_running` and `instance_exists` go only to the controller that
//!   asked, because a START of the same instance by another controller may be under way. A
//!   frame that cannot be read and has no failure (EVACUATE, Restore, RefreshCNCI, READY,
//!   TenantAdded …) goes back to its sender as InvalidFrameType with the reason
//!   `invalid_payload` or `invalid_data`; such a command for a client that is not connected
//!   goes back with `not_connected`.
//! * **Owners of instances.** An agent's reports about nodes and instances that are not its
//!   own are dropped: see `instances` and `reports`. A scheduler that has just started
//!   believes the first node that lists an instance, unless [`SchedulerConfig::state`] says
//!   which node has it.
//! * **Done.** A START is done when STATS of its node list the instance in any state but
//!   `pending`. `pending` is a sign of progress, which moves the deadline: see
//!   [`SchedulerConfig::start_time`].
//! * **One answer.** A failure of STOP, DELETE, RESTART, AttachVolume and DetachVolume is
//!   forwarded only if it answers such a command; see `commands`. The StartFailures that
//!   agents repeat after a reconnection are forwarded only if they answer a START, or if
//!   nothing is known of it.
//! * **Stale.** A node is stale if it has sent no STATS for three intervals. The scheduler
//!   sends its last STATS to all controllers with the status `STALE`.
//! * **Concentrators.** A new controller is told of the connected concentrators, too, and of
//!   the public addresses that they have assigned: after the nodes and before their STATS. A
//!   concentrator that connects is told of the tenants that agents reported meanwhile.
//! * **Master mode.** A backup's command goes back to it as InvalidFrameType with the reason
//!   `role_not_allowed`, because no failure has a reason that fits. A controller that
//!   reconnects stands at the end of the line.
//! * **A backup may read.** Streams of output are no commands, and neither are lists of
//!   sessions and bans. A backup ends no session and lifts no ban.
//! * **Identity of a node.** It is the session's UUID. The UUID in READY is ignored, and
//!   STATS with another UUID are dropped.
//! * **Held.** A node that has just connected counts as waiting for its READY, with either
//!   policy: a START that fits only such nodes is held. So does a node that has ended its
//!   session in order, for 3 s: a node whose certificate was renewed is back by then.
//! * **A failed START** took nothing of its node: the node's last READY holds again, unless
//!   the reason is `full_cn` or `node_maintenance`.
//! * **Too many STARTs.** If as many STARTs are in flight as the scheduler keeps track of,
//!   another one is answered with `full_cloud`.
//! * **Disk.** A START asks for the disk of its volumes that are `local`.
//! * **A CONFIGURE that is taken up** comes back to its sender, to tell it so.
//! * **Going back.** Only the refusal of the current configuration, byte for byte, makes the
//!   scheduler go back to the previous one, and only one step. The controller that had sent
//!   the refused one gets InvalidConfiguration. A CONFIGURE that cannot be written to the
//!   file is refused, and so is one that is replaced by a newer one before it was written.
//!
//! | file | holds |
//! |---|---|
//! | `config` | [`SchedulerConfig`], [`SchedulerError`] |
//! | [`placement`] | which node takes a START |
//! | `starts` | a START from its arrival to its answer |
//! | `waiting` | a START that has been read |
//! | `held` | STARTs that wait for a READY |
//! | `moves` | instances that are started elsewhere when their node is evacuated |
//! | `instances` | the owner and state of each instance, and STARTs in flight |
//! | `ledger` | the file that keeps the owners for the next scheduler |
//! | `reports` | what agents report, and whether they may |
//! | `commands` | commands that their node has not answered yet |
//! | `relay` | commands that name their receiver |
//! | `streams` | output of instances, forwarded to the controller that asked for it |
//! | `answers` | failures and InvalidFrameType that the scheduler makes |
//! | `nodes` | agents: their status, and what a new controller is told of them |
//! | `cncis` | what concentrators have reported, and what they are told of tenants |
//! | `controllers` | the line of controllers, and what they have not been told yet |
//! | `configuration` | the configuration of the cluster |
//! | `tenants` | the tenants whose networks the cluster has: keys, addresses |
//! | `keeper` | the threads that write the files of both |
//! | `term` | one of several: leading, and losing the lease |
//! | `following` | one of several that does not lead: passes on, and holds |
//! | `told` | what schedulers tell each other |
//! | `figures` | [`SchedulerFigures`]: a snapshot for metrics |

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
mod moves;
mod nodes;
pub mod placement;
mod relay;
mod reports;
mod starts;
mod streams;
mod tenants;
mod term;
mod told;
mod waiting;

use std::time::{Duration, Instant};

use bytes::Bytes;
use uuid::Uuid;

use self::cncis::Cncis;
use self::commands::Commands;
pub use self::config::{ControllerMode, SchedulerConfig, SchedulerError};
use self::configuration::Configuration;
use self::controllers::Controllers;
pub use self::figures::{SchedulerFigures, SchedulerLimits, StartFigures};
use self::held::HeldStarts;
use self::instances::Instances;
use self::ledger::Ledger;
use self::moves::Moves;
use self::nodes::Nodes;
use self::placement::Placement;
use self::streams::Streams;
use self::tenants::TenantTable;
use self::term::Term;
pub use self::term::{JoinError, JoinedScheduler, add_members};
use self::told::{Fate, Intent};
use ssntp::Role;
#[cfg(doc)]
use ssntp::payload::MAX_READ_LEN;
use ssntp::payload::Servers;
use ssntp::proto::{Command, ErrorCode, Event, Frame, FrameType, Run, Status};
use ssntp::server::{
    Context, DisconnectReason, Filter, Handler, Rules, Server, ServerConfig, ServerError, ServerLink,
    SessionInfo, SlowConsumer,
};
use ssntp_transport::LogLimit;
use ssntp_transport::excerpt_bytes;

/// If the scheduler looks at a time limit this long after it was over, it was paused meanwhile.
const LATE: Duration = Duration::from_secs(2);
/// How long after a pause the scheduler takes what its clients have sent, before time limits
/// count again.
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
/// use ssntp_cluster::scheduler::{Scheduler, SchedulerConfig};
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
    /// Its options, for when it begins anew.
    config: SchedulerConfig,
    mode: ControllerMode,
    placement: Placement,
    nodes: Nodes,
    cncis: Cncis,
    controllers: Controllers,
    held: HeldStarts,
    instances: Instances,
    streams: Streams,
    moves: Moves,
    commands: Commands,
    configuration: Configuration,
    tenants: TenantTable,
    /// Its part in the cluster, if it is one of several schedulers.
    term: Option<Term>,
    starts: StartFigures,
    invalid_frames: u64,
    /// When time limits count again after a pause of the scheduler.
    resumes: Option<Instant>,
    /// The number of reports about instances or nodes that are not their sender's.
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
                fate: Fate::Answered,
            });
            // No agent has connected yet.
            instances.adopt(owners, |_| false, at_once());
            instances.keep_in(ledger);
        }
        Ok(Self {
            mode: config.controllers,
            placement: Placement::new(config.policy),
            nodes: Nodes::new(config.stats_interval),
            cncis: Cncis::default(),
            controllers: Controllers::default(),
            held: HeldStarts::new(config.held_starts, config.held_bytes, config.held_time),
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

    /// Forgets all that it knows of the cluster, but not what it has counted.
    fn forget(&mut self) {
        let config = &self.config;
        self.placement = Placement::new(config.policy);
        self.nodes = Nodes::new(config.stats_interval);
        self.cncis = Cncis::default();
        self.controllers = Controllers::default();
        self.held = HeldStarts::new(config.held_starts, config.held_bytes, config.held_time);
        self.instances = Instances::new(config.in_flight, config.starts);
        self.streams = Streams::default();
        self.moves = Moves::default();
        self.commands = Commands::new(config.starts);
        self.resumes = None;
    }

    /// Starts the server of the cluster. Filter, rules and configuration of `server` are
    /// replaced by the scheduler's, and a slow consumer is disconnected, because a client
    /// that misses a frame would have a wrong picture.
    ///
    /// # Errors
    /// [`ServerError`]; nothing runs then.
    pub fn start(mut self, server: ServerConfig) -> Result<Server, ServerError> {
        let keeper = self.configuration.start().map_err(ServerError::Thread)?;
        let of_tenants = self.tenants.start().map_err(ServerError::Thread)?;
        let server = Server::start(self.serve_with(server), self)?;
        for keeper in keeper.into_iter().chain(of_tenants) {
            // The channel has room for the one handle, so this does not block.
            let _ = keeper.send(server.handle());
        }
        Ok(server)
    }

    /// The configuration of a server whose application is this scheduler.
    pub fn serve_with(&self, server: ServerConfig) -> ServerConfig {
        server
            .filter(Filter::spec())
            .rules(Rules::new().multicast(Status::OFFLINE, Role::CONTROLLER))
            // The scheduler checks and keeps a CONFIGURE before the server distributes it.
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
        self.mode == ControllerMode::Any || self.controllers.is_master(from.key())
    }

    /// When the first time limit of a node or a START is over.
    fn next_expiry(&self) -> Option<Instant> {
        let all = [
            self.held.next_expiry(),
            self.instances.next_due(),
            self.nodes.next_due(),
            self.commands.next_due(),
        ];
        all.into_iter().flatten().min()
    }

    /// Whether the scheduler did not run when a time limit was over: it was stopped, say, or
    /// had too much to do. What its clients have sent meanwhile comes first, so that no node
    /// that has reported is called stale.
    fn is_catching_up(&mut self, now: Instant) -> bool {
        let late = self.next_expiry().is_some_and(|at| now > at + LATE);
        self.resumes = match self.resumes {
            None if late => Some(now + CATCH_UP),
            // It goes on once what is late has expired.
            Some(resumes) if late || now < resumes => Some(resumes),
            _ => None,
        };
        self.resumes.is_some_and(|resumes| now < resumes)
    }

    fn status(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        if self.node_status(cx, from, frame) {
            self.node_changed(cx, from.uuid());
        }
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
                // It may be the answer of an old agent to OpenStream.
                self.streams_not_supported(cx, from, frame);
            }
            _ => self.node_failure(cx, from, frame),
        }
    }
}

impl Scheduler {
    /// A session has begun.
    fn take_in(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        if session.role().intersects(Role::CONTROLLER) {
            // It joins the line first, because it is told whether it is the master.
            self.controllers.join(session);
            // A new leader tells all controllers of each node as it hears of it.
            if !self.begins() {
                self.tell_of_nodes(cx, session);
            }
        }
        // After that, so that a controller which is a node, too, is told of itself once.
        self.node_connected(cx, session);
        if session.role().intersects(Role::CNCIAGENT) {
            self.tell_of_tenants(cx, session);
        }
    }

    /// A session is over.
    fn parted(&mut self, cx: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        self.controllers.leave(cx, session, &mut self.log);
        self.cncis.disconnected(session);
        self.streams_disconnected(cx, session);
        self.node_disconnected(cx, session, reason);
    }

    /// Deals with a frame, whichever server its sender is connected to.
    fn take(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        match frame.kind().frame_type {
            FrameType::COMMAND => self.command(cx, from, frame),
            FrameType::STATUS => self.status(cx, from, frame),
            FrameType::EVENT => self.event(cx, from, frame),
            _ => self.failure(cx, from, frame),
        }
        self.tell_intents(cx);
    }
}

impl Handler for Scheduler {
    fn connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        if self.leads(cx) {
            self.arrived(cx, session);
        }
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        // At a stop all sessions end at once, so there is no client left to tell.
        if *reason == DisconnectReason::Stopped {
            return;
        }
        if let Some(term) = &mut self.term {
            term.following.forget(session.uuid());
        }
        if self.leads(cx) {
            self.left(cx, session, reason);
            self.tell_intents(cx);
        }
    }

    fn server_linked(&mut self, cx: &mut Context<'_>, server: &ServerLink) {
        if self.leads(cx) {
            self.lead_server(cx, server.uuid);
        }
    }

    fn server_unlinked(&mut self, cx: &mut Context<'_>, server: &ServerLink) {
        match self.leads(cx) {
            true => self.is_told_by(cx, server.uuid),
            false => self.forget_leader(server.uuid),
        }
    }

    fn remote_connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        self.connected(cx, session);
    }

    fn remote_disconnected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        if self.leads(cx) {
            self.left_elsewhere(cx, session);
            self.tell_intents(cx);
        }
    }

    fn told(&mut self, cx: &mut Context<'_>, server: Uuid, message: Bytes) {
        self.hear(cx, server, &message);
    }

    fn run(&mut self, cx: &mut Context<'_>, from: &SessionInfo, run: &Run) {
        match self.leads(cx) {
            true => run.frames().for_each(|frame| self.frame(cx, from, frame)),
            false => self.follow(cx, from, run.frames(), |cx, leader| cx.pass(leader, from, run)),
        }
    }

    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        if !self.leads(cx) {
            let frames = std::iter::once(frame.clone());
            return self.follow(cx, from, frames, |cx, leader| cx.pass_frame(leader, from, &frame));
        }
        if let Some(term) = self.term.as_mut().filter(|_| from.server() == cx.uuid()) {
            term.following.note(from.uuid(), &frame);
        }
        let is_command = frame.kind().frame_type == FrameType::COMMAND && frame.kind() != Command::STATS;
        if is_command && self.is_being_told() {
            self.hold(cx, from, &frame);
        } else if self.counts(from) {
            self.take(cx, from, &frame);
        }
    }

    fn may_kick(&mut self, cx: &mut Context<'_>, from: &SessionInfo) -> bool {
        // Only the leader knows who is the master.
        match self.leads(cx) {
            true => self.may_command(from),
            false => self.mode == ControllerMode::Any,
        }
    }

    fn servers(&mut self, _: &mut Context<'_>, servers: &mut Servers) {
        self.show_servers(servers);
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
        // The keeper has only woken the dispatcher: the timer takes its result.
        let kept = (self.configuration.is_due() || self.tenants.is_due()).then(at_once);
        if self.term.as_ref().is_some_and(|term| !term.is_leading()) {
            return self.term_due(at_once).into_iter().chain(kept).min();
        }
        [
            // Nothing expires before the scheduler has taken what came during a pause.
            self.next_expiry()
                .map(|at| self.resumes.map_or(at, |resumes| at.max(resumes))),
            self.controllers.next_telling(),
            self.term_due(at_once),
            kept,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn timer(&mut self, cx: &mut Context<'_>) {
        let now = cx.now();
        let leads = self.leads(cx);
        self.go_on_telling(cx);
        // Also when it leads no more: what was being written then has an answer.
        self.proceed_with_configuration(cx);
        self.proceed_with_tenants(cx);
        if !leads {
            return self.expire_held(cx);
        }
        self.complete(cx);
        if !self.is_catching_up(now) {
            self.expire_nodes(cx, now);
            self.expire_starts(cx, now);
            self.expire_commands(cx, now);
        }
        self.controllers.tell(cx, &self.nodes, now);
        self.tell_intents(cx);
    }
}

#[expect(clippy::disallowed_methods, reason = "a timer that is due has some time")]
fn at_once() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssntp::payload::Start;

    #[test]
    fn after_a_pause_frames_come_before_time_limits() {
        let (start, time) = (Frame::of(&Start::default()), Duration::from_secs(60));
        let mut scheduler = Scheduler::new(SchedulerConfig::new().held(1, 1000, time)).unwrap();
        let now = at_once();
        let start = waiting::Waiting::read(Uuid::nil(), start, now).unwrap();
        assert!(scheduler.held.keep(start, Uuid::nil(), now).is_none());
        // It runs in time.
        assert!(!scheduler.is_catching_up(now + time));
        assert_eq!(scheduler.next_timer(), Some(now + time));
        // It was stopped for 18 s.
        let late = now + time + Duration::from_secs(18);
        assert!(scheduler.is_catching_up(late));
        assert_eq!(scheduler.next_timer(), Some(late + CATCH_UP));
        assert!(!scheduler.is_catching_up(late + CATCH_UP));
        assert!(scheduler.held.expire(late + CATCH_UP).is_some());
        assert!(!scheduler.is_catching_up(late + CATCH_UP * 2));
        assert_eq!(scheduler.resumes, None);
    }
}
