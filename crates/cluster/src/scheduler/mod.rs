//! The scheduler: the server of a cluster, which takes the controllers'
//! commands, picks nodes, and passes on what everybody says.
//!
//! ```text
//!            the server's dispatcher thread
//!  frame ─▶ filter ─▶ Scheduler
//!             │        │ START ─────▶ is it there? ─▶ placement ─┬─▶ agent: STATS or a
//!             │        │                  │               ▲      │   failure answer it
//!             │        │              instances           │      └─▶ held until a READY
//!             │        │                  ▲               │
//!             │        │ STATS, failures ─┴─ whose? ──────│──────────▶ all controllers
//!             │        │ READY, FULL … ───────────────────┘
//!             │        │ STOP, TenantAdded … ──▶ whom the payload names
//!             │        └ CONFIGURE ────────────▶ file, then everybody
//!             └▶ InvalidFrameType to who may not send it
//! ```
//!
//! All state is plain fields on the dispatcher thread, and the time is what the
//! server says it is. Nothing in it waits for a peer. It reads YAML of at most
//! [`MAX_DOCUMENT_LEN`]. What would block, writing the configuration file, has a
//! thread of its own.
//!
//! # What the protocol leaves open
//! * **Who is answered.** A failure that the scheduler makes goes to every
//!   controller, as those of agents do. But `already_running` and
//!   `instance_exists` go to who asked alone: a START of the same instance by
//!   another controller may be under way. What it cannot read, and has no
//!   failure for (EVACUATE, Restore, RefreshCNCI, READY, TenantAdded …),
//!   goes back to its sender as InvalidFrameType with the reason
//!   `invalid_payload` or `invalid_data`; a command of these for who is not
//!   connected with `not_connected`.
//! * **Whose an instance is.** What an agent says of nodes and instances that
//!   are not its own goes nowhere: see `instances` and `reports`. A scheduler that
//!   was started anew believes whoever lists an instance first.
//! * **Done.** A START is done when STATS of its node list the instance as
//!   anything but `pending`. A `pending` there is the sign of progress that moves
//!   its deadline: see [`SchedulerConfig::start_time`].
//! * **One answer.** What agents say again after a reconnection is passed on
//!   where it is the answer to a START, or nothing is known of it.
//! * **Stale.** A node from which no STATS have come for three intervals. The
//!   scheduler sends its last STATS to all controllers with the status `STALE`.
//! * **Concentrators.** A new controller is told of those that are connected,
//!   too, as they announced themselves, and of the public addresses that they
//!   have assigned: all between the nodes and their STATS. A concentrator that
//!   connects is told of the tenants that agents have told it of meanwhile.
//! * **Master mode.** A backup's command goes back to it as InvalidFrameType
//!   with the reason `role_not_allowed`: no failure has a reason that fits.
//!   A controller that connects again stands at the end of the line.
//! * **A backup may read.** Streams of what instances write are no commands, and
//!   neither are lists of sessions and bans. It ends no session and lifts no ban.
//! * **Who a node is.** The session's UUID; the one in READY is not looked at,
//!   STATS with another one go nowhere.
//! * **Held.** A node that has just connected is waiting for its READY, too,
//!   with either policy: a START that finds only such nodes is held. So is one
//!   that has ended its session in order, for 3 s: a node whose certificate was
//!   renewed is back by then.
//! * **A failed START** took nothing of its node: the node's last READY holds
//!   again, unless the reason is `full_cn` or `node_maintenance`.
//! * **A START too many**, when so many are with their nodes that no more are
//!   kept track of, is answered with `full_cloud`.
//! * **Disk.** A START asks for the disk of its volumes that are `local`.
//! * **A CONFIGURE that is taken up** comes back to its sender, which is how it
//!   learns that.
//! * **Going back.** Only the refusal of the current configuration, byte for
//!   byte, makes the scheduler go back, and only one step. The controller that
//!   had sent it gets InvalidConfiguration. A CONFIGURE that cannot be kept in
//!   the file is refused, and so is one that another one follows before it
//!   began to be written.
//!
//! | file | holds |
//! |---|---|
//! | `config` | [`SchedulerConfig`], [`SchedulerError`] |
//! | [`placement`] | which node takes a START |
//! | `starts` | a START from its arrival to its answer |
//! | `waiting` | a START that has been read |
//! | `held` | STARTs that wait for a READY |
//! | `moves` | instances that are started elsewhere when their node is evacuated |
//! | `instances` | which instance is where, and STARTs that nodes were given |
//! | `reports` | what agents say, and whether it is theirs to say |
//! | `relay` | commands that name whom they are for |
//! | `streams` | what instances write, passed on to who asked for it |
//! | `answers` | what the scheduler answers itself |
//! | `nodes` | agents: their status, and what a new controller is told |
//! | `cncis` | what concentrators have told, and are to be told |
//! | `controllers` | the line of controllers, and what they have not been told yet |
//! | `configuration` | the configuration of the cluster |
//! | `keeper` | the thread that writes its file |
//! | `figures` | [`SchedulerFigures`]: what it knows about itself |

mod answers;
mod cncis;
mod config;
mod configuration;
mod controllers;
mod figures;
mod held;
mod instances;
mod keeper;
mod moves;
mod nodes;
pub mod placement;
mod relay;
mod reports;
mod starts;
mod streams;
mod waiting;

use std::time::Instant;

use uuid::Uuid;

use self::cncis::Cncis;
pub use self::config::{ControllerMode, SchedulerConfig, SchedulerError};
use self::configuration::Configuration;
use self::controllers::Controllers;
use self::figures::StartTally;
pub use self::figures::{InstanceFigures, NodeFigures, SchedulerFigures, StartFigures};
use self::held::HeldStarts;
use self::instances::{Instances, StartLimits};
use self::moves::Moves;
use self::nodes::Nodes;
use self::placement::Placement;
use self::streams::Streams;
use ssntp::Role;
#[cfg(doc)]
use ssntp::payload::yaml::MAX_DOCUMENT_LEN;
use ssntp::proto::{Command, ErrorCode, Event, Frame, FrameType, Status};
use ssntp::server::{
    Context, DisconnectReason, Filter, Handler, Rules, Server, ServerConfig, ServerError, SessionInfo,
    SlowConsumer,
};
use ssntp_transport::LogLimit;
use ssntp_transport::excerpt_bytes;

/// Writes a log line that a peer can cause, unless that peer has caused too many of its kind:
/// level, limit, context, peer, kind, and the line.
macro_rules! limited {
    ($level:ident, $log:expr, $cx:expr, $peer:expr, $kind:literal, $($line:tt)+) => {
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
/// Everything happens on the server's dispatcher thread, but for writing the
/// configuration file. Where the server ends while that is under way, its end
/// waits for the disk.
#[derive(Debug)]
pub struct Scheduler {
    mode: ControllerMode,
    placement: Placement,
    nodes: Nodes,
    cncis: Cncis,
    controllers: Controllers,
    held: HeldStarts,
    instances: Instances,
    streams: Streams,
    moves: Moves,
    configuration: Configuration,
    starts: StartTally,
    invalid_frames: u64,
    /// What agents have said of what is not theirs.
    foreign: u64,
    /// By the UUID, so that who connects again does not begin again.
    log: LogLimit<Uuid>,
}

impl Scheduler {
    /// A scheduler of an empty cluster. Blocks while it reads the
    /// configuration file.
    ///
    /// # Errors
    /// [`SchedulerError`], where there is a configuration file that cannot be
    /// used.
    pub fn new(config: SchedulerConfig) -> Result<Self, SchedulerError> {
        let configuration = match config.configuration_file {
            Some(path) => Configuration::load(path)?,
            None => Configuration::in_memory(config.configuration)?,
        };
        Ok(Self {
            mode: config.controllers,
            placement: Placement::new(config.policy),
            nodes: Nodes::new(config.stats_interval),
            cncis: Cncis::default(),
            controllers: Controllers::default(),
            held: HeldStarts::new(config.held_starts, config.held_bytes, config.held_time),
            instances: Instances::new(
                config.in_flight,
                StartLimits {
                    quiet: config.start_quiet,
                    most: config.start_most,
                    absence: config.absence,
                },
            ),
            streams: Streams::default(),
            moves: Moves::default(),
            configuration,
            starts: StartTally::default(),
            invalid_frames: 0,
            foreign: 0,
            log: LogLimit::default(),
        })
    }

    /// Starts the server of the cluster. Its filter, rules and configuration
    /// are the scheduler's, whatever `server` says of them, and a slow
    /// consumer is disconnected: every frame counts.
    ///
    /// # Errors
    /// [`ServerError`]; nothing runs then.
    pub fn start(mut self, server: ServerConfig) -> Result<Server, ServerError> {
        let keeper = self.configuration.start().map_err(ServerError::Thread)?;
        let server = Server::start(self.serve_with(server), self)?;
        if let Some(keeper) = keeper {
            let _ = keeper.send(server.handle());
        }
        Ok(server)
    }

    /// The configuration of a server whose application is this.
    pub fn serve_with(&self, server: ServerConfig) -> ServerConfig {
        server
            .filter(Filter::spec())
            .rules(Rules::new().multicast(Status::OFFLINE, Role::CONTROLLER))
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
        if !self.may_command(from) {
            limited!(
                info,
                self.log,
                cx,
                from.uuid(),
                "not the master",
                "{from}: {command} refused: it is not the master"
            );
            answers::role_not_allowed(cx, from, frame.kind());
            return;
        }
        match command {
            Command::START => self.start_command(cx, from, frame),
            Command::CONFIGURE => self.configure(cx, from, frame),
            _ => self.relay(cx, from, frame),
        }
    }

    fn may_command(&self, from: &SessionInfo) -> bool {
        self.mode == ControllerMode::Any || self.controllers.is_master(from.id())
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
                limited!(
                    warn,
                    self.log,
                    cx,
                    from.uuid(),
                    "InvalidFrameType",
                    "{from}: InvalidFrameType, {} so far: {}",
                    self.invalid_frames,
                    excerpt_bytes(frame.payload_bytes())
                );
                self.streams_not_supported(cx, from, frame);
            }
            _ => self.node_failure(cx, from, frame),
        }
    }
}

impl Handler for Scheduler {
    fn connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        if session.role().intersects(Role::CONTROLLER) {
            self.controllers.join(session);
            self.tell_of_nodes(cx, session);
        }
        self.node_connected(cx, session);
        if session.role().intersects(Role::CNCIAGENT) {
            self.tell_of_tenants(cx, session);
        }
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        // Then everybody goes at once, and nobody is there to be told.
        if *reason == DisconnectReason::Stopped {
            return;
        }
        self.controllers.leave(cx, session, &mut self.log);
        self.cncis.disconnected(session);
        self.streams_disconnected(cx, session);
        self.node_disconnected(cx, session, reason);
    }

    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        match frame.kind().frame_type {
            FrameType::COMMAND => self.command(cx, from, &frame),
            FrameType::STATUS => self.status(cx, from, &frame),
            FrameType::EVENT => self.event(cx, from, &frame),
            _ => self.failure(cx, from, &frame),
        }
    }

    fn may_kick(&mut self, _: &mut Context<'_>, from: &SessionInfo) -> bool {
        self.may_command(from)
    }

    fn stopping(&mut self, cx: &mut Context<'_>) {
        self.refuse_held(cx);
    }

    fn next_timer(&self) -> Option<Instant> {
        [
            self.held.next_expiry(),
            self.controllers.next_telling(),
            self.instances.next_due(),
            self.nodes.next_due(),
            self.configuration.is_due().then(at_once),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn timer(&mut self, cx: &mut Context<'_>) {
        let now = cx.now();
        self.proceed_with_configuration(cx);
        self.expire_nodes(cx, now);
        self.expire_starts(cx, now);
        self.controllers.tell(cx, &self.nodes, now);
    }
}

#[expect(clippy::disallowed_methods, reason = "a timer that is due has some time")]
fn at_once() -> Instant {
    Instant::now()
}
