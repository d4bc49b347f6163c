//! The agent's state machine, without I/O, threads or a clock of its own.
//!
//! ```text
//!  frames, connection ─┐                       ┌─▶ frames to send
//!  outcomes of jobs ───┼─▶ Control::handle ────┤
//!  ends of instances ──┤   (the time is given) └─▶ jobs: launch, stop, remove, measure …
//!  the clock ──────────┘
//! ```
//!
//! ```text
//!            START, RESTART      launched              STOP, DELETE, EVACUATE
//!  (nothing) ─────────▶ Launching ─────▶ Active ──────────────▶ Terminating
//!      ▲ ▲                  │ ▲            │ ended by itself         │ ended; killed when
//!      │ └── launch failed ─┘ └ by policy ┐▼                         │ the grace is over
//!      │                                Stopped ◀────────────────────┤ to be kept
//!      │            DELETE, or kept enough │                         │ to be removed
//!      └── Removing ◀──────────────────────┴─────────────────────────┘
//! ```
//!
//! Jobs for one instance are done in the order in which they are given; a job
//! that changes the state machine comes back as an input.
//!
//! | file | holds |
//! |---|---|
//! | `instance` | an instance, and how far it has come |
//! | `commands` | what each command does, and its failures |
//! | `volumes` | AttachVolume and DetachVolume |
//! | `lifecycle` | from launch to removal, and the frames that report it |
//! | `restarts` | instances that are started again by their node |
//! | `retention` | how long ended instances are kept |
//! | `adopt` | instances that a former agent left |
//! | `refusals` | the reasons why commands are refused |
//! | `streams` | streams of the logs of instances |
//! | `node` | status, capacity, STATS, tenants |

mod adopt;
mod commands;
mod instance;
mod lifecycle;
mod node;
mod refusals;
mod restarts;
mod retention;
mod streams;
#[cfg(test)]
mod tests;
mod volumes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use log::{debug, info, warn};
use uuid::Uuid;

use self::instance::{Cause, Ending, Instance, Life, Next};
use self::node::TenantKey;
pub(crate) use self::streams::StreamOrder;
pub(crate) use self::volumes::ephemeral;
use super::driver::{Cancel, Driver, Ended, LaunchError, Measurable, RunId, Running, Usage, VolumeError};
use super::figures::{AgentFigures, AgentLimits, CrewFigures};
use super::policy::Policy;
use super::store::{NodeRecord, Record};
use crate::machine::Facts;
use crate::network::Networks;
use ssntp::Role;
use ssntp::client::ClientFigures;
use ssntp::payload::{
    Configure, Id, InvalidConfiguration, LauncherConfig, NextState, Restart, StartPayload, TenantAdded,
    TraceReport, TunnelStats,
};
use ssntp::proto::{Command, ErrorCode, Frame, FrameType, Status};
use ssntp_transport::LogLimit;
use ssntp_transport::excerpt;

/// How long STATS wait for further changes after an instance changed: [`SETTLE_EACH`] for each
/// instance that they list, but at most [`SETTLE`]. Encoding STATS takes about half of that
/// time, so even a node that changes all the time spends at most half of its time on STATS.
const SETTLE_EACH: Duration = Duration::from_micros(50);
const SETTLE: Duration = Duration::from_millis(50);
/// How long STATS wait for figures before they go out with the last ones.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the agent waits before it sends frames again that the client had no room for.
const RETRY: Duration = Duration::from_millis(200);
/// How many frames wait for a session. Each reports a single event. If there are more, the
/// oldest are dropped, and STATS still report the present state.
const MAX_HELD: usize = 1024;
/// How many failed STARTs are reported again in a new session, and for how long: in that
/// time the loss of a session is noticed and a new one established.
const MAX_FAILED: usize = 256;
const REPEATED: Duration = Duration::from_secs(60);
/// The most volume commands of one instance that are not done yet, with the one under way.
const MAX_VOLUME_OPS: usize = 16;

/// The settings of an agent.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) node: Uuid,
    pub(crate) role: Role,
    /// The agent asks them in this order which one runs a START. Empty if the agent only
    /// reports.
    pub(crate) drivers: Vec<Arc<dyn Driver>>,
    /// The workers have it, too. Only they may look up users in the system, because that can
    /// block.
    pub(crate) policy: Arc<Policy>,
    /// The state directory.
    pub(crate) state: Option<std::path::PathBuf>,
    pub(crate) has_volumes: bool,
    pub(crate) mem_mb: Option<i64>,
    pub(crate) disk_mb: Option<i64>,
    pub(crate) max_instances: usize,
    pub(crate) interval: Duration,
    pub(crate) grace: Duration,
    /// Tenants' networks; `None` if instances use the host's network.
    pub(crate) network: Option<Arc<Networks>>,
}

/// An input of the state machine.
#[derive(Debug)]
pub(crate) enum Input {
    /// A session was established.
    Connected { configuration: Option<Bytes> },
    /// The session has ended.
    Disconnected,
    /// A frame of the scheduler.
    Frame(Frame),
    /// A frame that was to be sent could not be.
    Unsent(Frame),
    /// A job's outcome.
    Done(Done),
    /// An instance ended.
    Ended(Ended),
    /// The agent's owner takes the node out of service, or back into it.
    ToggleOffline,
    /// Time has passed; the deadline may or may not have come.
    Tick,
}

/// The outcome of a job.
#[derive(Debug)]
pub(crate) enum Done {
    /// The instance is about to be killed, because it breaks a rule of its node.
    Condemned { instance: Uuid, why: String },
    /// The launch is over. On success, the number is the time at which the run began, in
    /// milliseconds since 1970.
    Launched {
        instance: Uuid,
        result: Result<(RunId, u64), LaunchError>,
    },
    /// The instance was sent the signal to end, or was killed.
    Signalled { instance: Uuid },
    Removed {
        instance: Uuid,
        result: Result<(), String>,
    },
    Volume {
        instance: Uuid,
        op: VolumeOp,
        result: Result<(), VolumeError>,
    },
    /// The evacuation was recorded on disk.
    Evacuated(NextState),
    Measured {
        facts: Facts,
        usages: Vec<(Uuid, Usage)>,
        /// The tunnels of tenants' networks.
        tunnels: Vec<TunnelStats>,
    },
}

/// An output of the state machine.
#[derive(Debug)]
pub(crate) enum Action {
    Send(Frame),
    Job(Job),
    Stream(StreamOrder),
    /// Tell the agent's owner what comes next for the machine.
    Evacuated(NextState),
}

/// Work that can block, and is done by a worker.
#[derive(Debug)]
pub(crate) enum Job {
    Launch(Box<LaunchJob>),
    /// Write an instance's record; it has no outcome.
    Save {
        instance: Uuid,
        record: Record,
    },
    Terminate(Arc<dyn Driver>, Running),
    Kill(Arc<dyn Driver>, Running),
    /// Remove the network of an instance that has ended; it has no outcome.
    Detach(Arc<Networks>, Uuid),
    Remove {
        instance: Uuid,
        driver: Option<Arc<dyn Driver>>,
        /// The volumes that go with it.
        ephemeral: Vec<Uuid>,
    },
    Volume {
        instance: Uuid,
        driver: Arc<dyn Driver>,
        handle: Option<RunId>,
        op: VolumeOp,
    },
    /// Watch instances that were found running.
    Watch(Arc<dyn Driver>, Running),
    /// Measure the node, the tunnels of tenants' networks, and the instances of each driver.
    Measure(Option<Arc<Networks>>, Vec<(Arc<dyn Driver>, Vec<Measurable>)>),
    /// Write the node's record. If something comes next, the outcome is
    /// [`Done::Evacuated`].
    SaveNode(NodeRecord, Option<NextState>),
}

impl Job {
    /// The instance it is about: jobs of one instance keep their order.
    pub(crate) fn instance(&self) -> Option<Uuid> {
        match self {
            Self::Launch(job) => Some(job.instance),
            Self::Detach(_, instance) => Some(*instance),
            Self::Save { instance, .. } | Self::Remove { instance, .. } | Self::Volume { instance, .. } => {
                Some(*instance)
            }
            Self::Terminate(_, running) | Self::Kill(_, running) | Self::Watch(_, running) => {
                Some(running.place.instance())
            }
            // These concern no single instance. The workers keep their order by keys of their own.
            Self::Measure(..) | Self::SaveNode(..) => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct LaunchJob {
    pub(crate) instance: Uuid,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) payload: Arc<StartPayload>,
    pub(crate) record: Record,
    pub(crate) origin: Origin,
    pub(crate) user: String,
    /// To attach before it starts, and whether each may be made.
    pub(crate) volumes: Vec<(Uuid, bool)>,
    pub(crate) cancel: Cancel,
    /// The networks of the node.
    pub(crate) network: Option<Arc<Networks>>,
}

/// The cause of a launch, as far as it has to be written to disk.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// A START, as it was received; its remains are removed when it fails.
    Start(Bytes),
    /// An instance that was here before, with the changes of a RESTART if it has any.
    Again(Option<Box<Restart>>),
}

/// A volume to attach or detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeOp {
    pub(crate) volume: Uuid,
    pub(crate) attach: bool,
}

/// Whether the node takes STARTs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Normal,
    /// Instances are being stopped.
    Evacuating,
    Maintenance,
}

/// The state machine.
#[derive(Debug)]
pub(crate) struct Control {
    settings: Settings,
    launcher: LauncherConfig,
    facts: Facts,
    instances: BTreeMap<Uuid, Instance>,
    mode: Mode,
    /// The next state that EVACUATE asked for.
    next_state: NextState,
    offline: bool,
    connected: bool,
    held: VecDeque<Frame>,
    /// STARTs that failed in a session.
    failed: VecDeque<Failed>,
    /// When held frames are sent again, after the client had no room for them.
    retry_due: Instant,
    /// The status that was sent last, with its payload.
    announced: Option<Frame>,
    /// The tenants that concentrators know to have instances on this node.
    tenants: BTreeMap<TenantKey, TenantAdded>,
    /// True if these tenants were not reported in the present session yet.
    repeats_tenants: bool,
    tunnels: Vec<TunnelStats>,
    /// Running instances with a stream that follows them, or did.
    followed: BTreeSet<Uuid>,
    /// When STATS are due that report a change, with the figures of the last measurement.
    report_due: Option<Instant>,
    /// When the next measurement is due. STATS follow it with the new figures.
    stats_due: Instant,
    measuring_since: Option<Instant>,
    actions: Vec<Action>,
    /// The time of the input that is being handled.
    now: Instant,
    /// One key is enough, because all frames come from one scheduler.
    log: LogLimit<()>,
    tally: Tally,
}

/// A START that failed.
#[derive(Debug)]
struct Failed {
    at: Instant,
    instance: Id,
    failure: Frame,
}

/// Counters for the agent's figures.
#[derive(Debug, Default)]
struct Tally {
    /// STARTs whose instance was started, and those that failed, by the reason.
    starts: u64,
    failures: BTreeMap<&'static str, u64>,
    /// Restarts by the restart policy of an instance.
    restarts: u64,
}

impl Control {
    pub(crate) fn new(settings: Settings, facts: Facts, now: Instant) -> Self {
        Self {
            settings,
            launcher: LauncherConfig::default(),
            facts,
            instances: BTreeMap::new(),
            mode: Mode::Normal,
            next_state: NextState::Maintenance,
            offline: false,
            connected: false,
            held: VecDeque::new(),
            failed: VecDeque::new(),
            retry_due: now,
            announced: None,
            tenants: BTreeMap::new(),
            repeats_tenants: false,
            tunnels: Vec::new(),
            followed: BTreeSet::new(),
            report_due: None,
            stats_due: now,
            measuring_since: None,
            actions: Vec::new(),
            now,
            log: LogLimit::default(),
            tally: Tally::default(),
        }
    }

    /// Handles an input. [`take_actions`](Self::take_actions) returns the outputs.
    pub(crate) fn handle(&mut self, now: Instant, input: Input) {
        self.now = now;
        match input {
            Input::Connected { configuration } => self.connected(configuration),
            Input::Disconnected => {
                self.connected = false;
                self.actions.push(Action::Stream(StreamOrder::CloseAll));
            }
            Input::Frame(frame) => self.frame(&frame),
            Input::Unsent(frame) => self.unsent(frame),
            Input::Done(done) => self.done(done),
            Input::Ended(ended) => {
                self.ended(ended);
                self.stats_soon();
            }
            Input::ToggleOffline => {
                self.offline = !self.offline;
                info!(
                    "{}: {}",
                    self.settings.node,
                    if self.offline {
                        "offline"
                    } else {
                        "back in service"
                    }
                );
                // Recorded, so that the next agent of this node is offline, too.
                self.save_node(None);
                self.announce(true);
                self.stats_soon();
            }
            Input::Tick => {}
        }
        // Any input can change what these report. They compare the present state with what
        // was reported last, so no handler has to remember to call them.
        self.check_evacuated();
        self.sync_tenants();
        self.tick();
        self.sync_streams();
    }

    /// The outputs since the last call, in order.
    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// When the next [`Input::Tick`] is due.
    pub(crate) fn next_deadline(&self) -> Instant {
        let stats = match self.measuring_since {
            // A new measurement begins only after the one under way, which must not last
            // longer.
            Some(since) => since + PATIENCE,
            None => self.stats_due,
        };
        // While restarts are not allowed, an overdue one must not count: its time has passed,
        // so the agent would wake up again and again without doing anything.
        let may_restart = self.may_restart();
        let deadline = |instance: &Instance| match instance.life {
            Life::Terminating(Ending::Asked(at) | Ending::Killed(at)) => Some(at),
            Life::Stopped(Next::StartAgain(at)) => Some(at).filter(|_| may_restart),
            Life::Stopped(Next::Delete(at)) => Some(at),
            _ => None,
        };
        let ends = self.instances.values().filter_map(deadline);
        // Without a session nothing can be sent, so waiting frames must not wake the agent.
        let retry = self.has_unsent().then_some(self.retry_due);
        let report = self.report_due.filter(|_| self.connected);
        let all = ends.chain(retry).chain(report).chain([stats]);
        // The iterator is never empty, because `stats` is a part of it.
        all.min().unwrap_or(stats)
    }

    /// The agent's figures, together with those of its client and its workers.
    pub(crate) fn figures(
        &self,
        client: ClientFigures,
        crews: Vec<CrewFigures>,
        reports: u64,
    ) -> AgentFigures {
        let mut instances = BTreeMap::new();
        for instance in self.instances.values() {
            let state = match instance.life {
                Life::Launching(_) => "launching",
                Life::Active => "active",
                Life::Terminating(Ending::Hung) => "hung",
                Life::Terminating(_) => "terminating",
                Life::Stopped(_) => "exited",
                Life::Removing(_) => "removing",
            };
            *instances.entry(state).or_default() += 1;
        }
        AgentFigures {
            client,
            status: self.announced.as_ref().and_then(|frame| frame.kind().name()),
            instances,
            limits: AgentLimits {
                instances: self.settings.max_instances,
            },
            crews,
            reports,
            starts: self.tally.starts,
            failures: self.tally.failures.clone(),
            restarts: self.tally.restarts,
            frames_held: self.held.len(),
            tunnels: self.tunnels.len(),
            tunnels_down: self.tunnels.iter().filter(|t| !t.up).map(|t| t.key).collect(),
        }
    }

    /// Logs that the agent ends, and the number of instances that outlive it. Launches do not: the
    /// workers cancel them, and the next agent answers their STARTs.
    pub(crate) fn log_end(&self) {
        let count = |lives: fn(Life) -> bool| self.instances.values().filter(|i| lives(i.life)).count();
        info!(
            "{}: the agent ends; instances that keep running: {}, launches that are cancelled: {}",
            self.settings.node,
            count(|life| matches!(life, Life::Active | Life::Terminating(_))),
            count(|life| matches!(life, Life::Launching(_)))
        );
    }

    /// The number of instances, in any state.
    #[cfg(test)]
    pub(crate) fn instances(&self) -> usize {
        self.instances.len()
    }

    fn connected(&mut self, configuration: Option<Bytes>) {
        self.connected = true;
        if let Some(configuration) = configuration {
            // The configuration comes before the status, because its limits decide between
            // READY and FULL.
            self.configure(&configuration);
        }
        // The status comes first: a scheduler gives STARTs to a node only after READY.
        self.announce(true);
        // These were sent in an earlier session, so they are older than what was held since.
        self.repeat_failures();
        self.send_held();
        // A concentrator that was restarted without a state directory has lost its tables.
        self.repeats_tenants = true;
        // The scheduler needs STATS to find out what became of STARTs while there was no
        // session.
        self.report_due = Some(self.now);
    }

    fn unsent(&mut self, frame: Frame) {
        self.retry_due = self.now + RETRY;
        if frame.kind().frame_type == FrameType::STATUS {
            // `tick` sends the present status at `retry_due`.
            self.announced = None;
            return;
        }
        // The next STATS replace these.
        if frame.kind() == Command::STATS {
            return;
        }
        self.hold(frame);
    }

    fn frame(&mut self, frame: &Frame) {
        if frame.kind().frame_type == FrameType::COMMAND {
            self.command(frame);
            // Also for a command that was refused: the trace tells how far the frame came.
            if frame.trace().is_some() {
                self.tell(Frame::of(&TraceReport::from_frames([frame])));
            }
        } else if frame.kind() != Status::CONNECTED {
            debug!("{}: {} is not for agents", self.settings.node, frame.kind());
        }
    }

    /// Applies a configuration, or sends it back.
    fn configure(&mut self, payload: &Bytes) {
        match Configure::decode_valid(payload) {
            Ok(configure) => {
                if configure.launcher != self.launcher
                    && let Some(more) = self.log.admit((), "new configuration", self.now)
                {
                    let launcher = format!("{:?}", configure.launcher);
                    info!(
                        "{}: new configuration: {}{more}",
                        self.settings.node,
                        excerpt(launcher)
                    );
                }
                self.launcher = configure.launcher;
            }
            Err(e) => {
                self.complain("CONFIGURE", format_args!("the configuration is refused: {e}"));
                let refused = payload.clone();
                self.tell(Frame::of(&InvalidConfiguration { refused }));
            }
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Condemned { instance, why } => {
                if let Some(instance) = self.instances.get_mut(&instance) {
                    // The end follows as an input of its own. The reason is kept here until
                    // then.
                    instance.record.detail = excerpt(why).to_string();
                }
            }
            Done::Launched { instance, result } => {
                match result {
                    Ok((handle, began)) => self.launched(instance, &handle, began),
                    Err(error) => self.not_launched(instance, error),
                }
                self.stats_soon();
            }
            Done::Signalled { instance } => self.signalled(instance),
            Done::Removed { instance, result } => {
                self.removed(instance, result);
                self.stats_soon();
            }
            Done::Volume { instance, op, result } => {
                self.volume_done(instance, op, result);
                self.stats_soon();
            }
            Done::Evacuated(next) => self.actions.push(Action::Evacuated(next)),
            Done::Measured {
                facts,
                usages,
                tunnels,
            } => {
                self.tunnels = tunnels;
                self.measured(facts, usages);
            }
        }
    }

    /// True if a frame or the status of the node waits for room in the client's queue.
    fn has_unsent(&self) -> bool {
        let lacks_status = self.announced.is_none() && self.has_status();
        self.connected && (lacks_status || !self.held.is_empty())
    }

    fn send_held(&mut self) {
        self.actions.extend(self.held.drain(..).map(Action::Send));
    }

    /// Sends a frame that must not be lost, now or in the next session.
    fn tell(&mut self, frame: Frame) {
        if self.connected {
            self.actions.push(Action::Send(frame));
        } else {
            self.hold(frame);
        }
    }

    fn hold(&mut self, frame: Frame) {
        // It answers a CONFIGURE of the session that ended.
        if frame.kind() == ErrorCode::INVALID_CONFIGURATION {
            return;
        }
        if self.held.len() >= MAX_HELD {
            let dropped = self.held.pop_front();
            let kind = dropped.map(|frame| frame.kind().to_string()).unwrap_or_default();
            let dropped = format_args!("too much waits for a session: {kind} is dropped");
            self.complain("dropped", dropped);
        }
        self.held.push_back(frame);
    }

    /// Logs a problem with a command, unless there are too many of its kind: a controller
    /// could otherwise fill the log.
    fn complain(&mut self, kind: &'static str, what: impl fmt::Display) {
        if let Some(more) = self.log.admit((), kind, self.now) {
            warn!("{}: {}{more}", self.settings.node, excerpt(what));
        }
    }

    fn job(&mut self, job: Job) {
        self.actions.push(Action::Job(job));
    }
}
