//! The scheduler: the server of a cluster, which takes the controllers'
//! commands, picks nodes, and passes on what everybody says.
//!
//! ```text
//!            the server's dispatcher thread
//!  frame ─▶ filter ─▶ rules ─▶ Scheduler
//!             │         │        │ START ─────▶ placement ─┬─▶ agent ─▶ in flight until STATS
//!             │         │        │                 ▲       │            or a failure
//!             │         │        │                 │       └─▶ held until a READY
//!             │         │        │ READY, FULL … ──┘
//!             │         │        │ STOP, TenantAdded … ──▶ whom the payload names
//!             │         │        │ CONFIGURE ────────────▶ file, then everybody
//!             │         └▶ STATS, events, failures ──▶ all controllers, unread
//!             └▶ InvalidFrameType to who may not send it
//! ```
//!
//! All state is plain fields on the dispatcher thread. Nothing in it waits
//! for a peer. It reads YAML of at most [`MAX_DOCUMENT_LEN`] from READY and
//! from commands; STATS are forwarded as they are, and only looked through
//! for the UUIDs of instances that were just started. What would block, writing
//! the configuration file, has a thread of its own.
//!
//! # What the protocol leaves open
//! * **Who is answered.** A failure that the scheduler makes goes to every
//!   controller, as those of agents do. What it cannot read, and has no
//!   failure for (EVACUATE, Restore, RefreshCNCI, READY, TenantAdded …),
//!   goes back to its sender as InvalidFrameType with the reason
//!   `invalid_payload` or `invalid_data`; a command of these for who is not
//!   connected with `not_connected`.
//! * **Concentrators.** A new controller is told of those that are connected,
//!   too, as they announced themselves, and of the public addresses that they
//!   have assigned: all between the nodes and their STATS.
//! * **Master mode.** A backup's command goes back to it as InvalidFrameType
//!   with the reason `role_not_allowed`: no failure has a reason that fits.
//!   A controller that connects again stands at the end of the line.
//! * **Who a node is.** The session's UUID; the one in READY is not looked at.
//! * **Held.** A node that has just connected is waiting for its READY, too,
//!   with either policy: a START that finds only such nodes is held.
//! * **A failed START** took nothing of its node: the node's last READY holds
//!   again, unless the reason is `full_cn` or `node_maintenance`.
//! * **A START of an instance that is in flight** goes to the node that has
//!   it already, which knows what to answer.
//! * **A START too many**, when so many are in flight that no more are kept
//!   track of, is answered with `full_cloud`.
//! * **Disk.** A START asks for the disk of its volumes that are `local`.
//! * **An agent that vanishes** is one whose session ends for any reason, be
//!   it that the same agent connects again.
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
//! | `starts` | a START from its arrival to its confirmation |
//! | `held` | STARTs that wait for a READY |
//! | `in_flight` | STARTs that were handed to an agent |
//! | `relay` | commands and events that name whom they are for |
//! | `answers` | what the scheduler answers itself |
//! | `nodes` | agents: their status, and what a new controller is told |
//! | `cncis` | what concentrators have told, for controllers that come later |
//! | `controllers` | the line of controllers, and what they have not been told yet |
//! | `configuration` | the configuration of the cluster |
//! | `keeper` | the thread that writes its file |

mod answers;
mod cncis;
mod config;
mod configuration;
mod controllers;
mod held;
mod in_flight;
mod keeper;
mod nodes;
pub mod placement;
mod relay;
mod starts;

use std::time::Instant;

use log::{info, warn};
use uuid::Uuid;

use self::cncis::Cncis;
pub use self::config::{ControllerMode, SchedulerConfig, SchedulerError};
use self::configuration::Configuration;
use self::controllers::Controllers;
use self::held::Held;
use self::in_flight::InFlight;
use self::nodes::Nodes;
use self::placement::Placement;
use crate::Role;
use crate::log_limit::LogLimit;
#[cfg(doc)]
use crate::payload::yaml::MAX_DOCUMENT_LEN;
use crate::printable::excerpt_bytes;
use crate::proto::{Command, ErrorCode, Event, Frame, FrameKind, FrameType, Run, Status};
use crate::server::{
    Context, DisconnectReason, Filter, Handler, Rules, Server, ServerConfig, ServerError, SessionInfo,
    SlowConsumer,
};

/// The scheduler of a cluster, as the application of a [`Server`].
///
/// ```no_run
/// use ssntp::cluster::scheduler::{Scheduler, SchedulerConfig};
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
    held: Held,
    in_flight: InFlight,
    configuration: Configuration,
    invalid_frames: u64,
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
            nodes: Nodes::default(),
            cncis: Cncis::default(),
            controllers: Controllers::default(),
            held: Held::new(config.held_starts, config.held_bytes, config.held_time),
            in_flight: InFlight::new(config.in_flight),
            configuration,
            invalid_frames: 0,
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
    pub(crate) fn serve_with(&self, server: ServerConfig) -> ServerConfig {
        server
            .filter(Filter::spec())
            .rules(rules())
            .takes_configure(false)
            .configuration(self.configuration.current().clone())
            .slow_consumer(SlowConsumer::Disconnect)
    }

    fn command(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let command = Command(frame.kind().operand);
        if command == Command::STATS {
            self.stats(from, frame.payload_bytes(), frame);
            return;
        }
        if self.mode == ControllerMode::Master && !self.controllers.is_master(from.id()) {
            if let Some(more) = self.log.admit(from.uuid(), "not the master", now()) {
                info!(target: "ssntp::scheduler",
                    "{from}: {command} refused: it is not the master{more}");
            }
            answers::role_not_allowed(cx, from, frame.kind());
            return;
        }
        match command {
            Command::START => self.start_command(cx, from, frame),
            Command::CONFIGURE => self.configure(cx, from, frame),
            _ => relay::command(cx, &mut self.log, from, frame),
        }
    }

    fn status(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        if self.node_status(cx, from, frame) {
            self.node_changed(cx, from.uuid());
        }
    }

    fn event(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        match Event(frame.kind().operand) {
            Event::TENANT_ADDED | Event::TENANT_REMOVED => {
                relay::event(cx, &mut self.log, from, frame);
            }
            Event::INSTANCE_DELETED | Event::INSTANCE_STOPPED => {
                // It was there: its START is answered.
                self.in_flight.confirm(from.uuid(), frame.payload_bytes());
                self.nodes.instance_event(from.uuid(), frame);
            }
            _ => self.cncis.event(from, frame),
        }
    }

    fn failure(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        match ErrorCode(frame.kind().operand) {
            ErrorCode::START_FAILURE => self.start_failed(cx, from, frame),
            ErrorCode::INVALID_CONFIGURATION => self.configuration_refused(cx, from, frame),
            ErrorCode::INVALID_FRAME_TYPE => {
                self.invalid_frames += 1;
                if let Some(more) = self.log.admit(from.uuid(), "InvalidFrameType", now()) {
                    warn!(target: "ssntp::scheduler",
                        "{from}: InvalidFrameType, {} so far: {}{more}",
                        self.invalid_frames,
                        excerpt_bytes(frame.payload_bytes())
                    );
                }
            }
            _ => {}
        }
    }
}

/// What goes to all controllers unread.
fn rules() -> Rules {
    let kinds: [FrameKind; 16] = [
        Command::STATS.into(),
        Status::OFFLINE.into(),
        Event::INSTANCE_DELETED.into(),
        Event::INSTANCE_STOPPED.into(),
        Event::CONCENTRATOR_INSTANCE_ADDED.into(),
        Event::PUBLIC_IP_ASSIGNED.into(),
        Event::PUBLIC_IP_UNASSIGNED.into(),
        Event::TRACE_REPORT.into(),
        ErrorCode::START_FAILURE.into(),
        ErrorCode::STOP_FAILURE.into(),
        ErrorCode::DELETE_FAILURE.into(),
        ErrorCode::RESTART_FAILURE.into(),
        ErrorCode::ATTACH_VOLUME_FAILURE.into(),
        ErrorCode::DETACH_VOLUME_FAILURE.into(),
        ErrorCode::ASSIGN_PUBLIC_IP_FAILURE.into(),
        ErrorCode::UNASSIGN_PUBLIC_IP_FAILURE.into(),
    ];
    kinds.into_iter().fold(Rules::new(), |rules, kind| {
        rules.multicast(kind, Role::CONTROLLER)
    })
}

impl Handler for Scheduler {
    fn connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        if session.role().intersects(Role::CONTROLLER) {
            self.controllers.join(session);
            self.tell_of_nodes(cx, session);
        }
        self.node_connected(cx, session);
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        // Then everybody goes at once, and nobody is there to be told.
        if *reason == DisconnectReason::Stopped {
            return;
        }
        self.controllers.leave(session, &mut self.log);
        self.cncis.disconnected(session);
        self.node_disconnected(cx, session);
    }

    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        match frame.kind().frame_type {
            FrameType::COMMAND => self.command(cx, from, &frame),
            FrameType::STATUS => self.status(cx, from, &frame),
            FrameType::EVENT => self.event(cx, from, &frame),
            _ => self.failure(cx, from, &frame),
        }
    }

    fn run(&mut self, cx: &mut Context<'_>, from: &SessionInfo, run: &Run) {
        // The most frequent frame by far, and the longest.
        if run.kind() == Command::STATS {
            if let Some(last) = run.frames().last() {
                self.stats(from, run.wire(), &last);
            }
            return;
        }
        for frame in run.frames() {
            self.frame(cx, from, frame);
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        let timers = [
            self.held.next_expiry(),
            self.controllers.next_telling(),
            self.configuration.is_due().then(now),
        ];
        timers.into_iter().flatten().min()
    }

    fn timer(&mut self, cx: &mut Context<'_>) {
        let now = now();
        self.proceed_with_configuration(cx);
        self.expire(cx, now);
        self.controllers.tell(cx, &self.nodes, now);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "held STARTs expire, and log lines are limited"
)]
fn now() -> Instant {
    #[cfg(test)]
    if let Some(now) = SIMULATED.get() {
        return now;
    }
    Instant::now()
}

#[cfg(test)]
thread_local! {
    static SIMULATED: std::cell::Cell<Option<Instant>> = const { std::cell::Cell::new(None) };
}

/// What time a simulated scheduler on this thread takes it to be.
#[cfg(test)]
pub(crate) fn simulate_now(now: Option<Instant>) {
    SIMULATED.set(now);
}
