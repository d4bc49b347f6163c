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
//!      │         DELETE, or retention over │                         │ to be removed
//!      └── Removing ◀──────────────────────┴─────────────────────────┘
//! ```
//!
//! Jobs for one instance are done in the order in which the state machine gives them. The outcome
//! of a job comes back as an input.
//!
//! | file | holds |
//! |---|---|
//! | `instance` | an instance and its state |
//! | `commands` | the effect of each command, and its failures |
//! | `volumes` | AttachVolume and DetachVolume |
//! | `lifecycle` | an instance from launch to removal, and the frames that report it |
//! | `restarts` | restarts of instances by their restart policy |
//! | `retention` | the deletion of ended instances |
//! | `adopt` | instances that a former agent left |
//! | `refusals` | reasons to refuse a START that do not depend on a driver |
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
use crate::network::Network;
use ssntp::Role;
use ssntp::client::ClientFigures;
use ssntp::payload::{Id, TraceReport};
use ssntp::proto::{Command, ErrorCode, Frame, FrameType, Status};
use ssntp_cluster::machine::Facts;
use ssntp_payload::{
    Configure, InvalidConfiguration, LauncherConfig, NextState, Restart, StartPayload, TenantAdded,
    TunnelStats,
};
use ssntp_transport::{LogLimit, NEVER, excerpt};

/// After a change of an instance, the agent waits for further changes before it sends STATS:
/// [`SETTLE_EACH`] for each instance in the STATS, but at most [`SETTLE`]. Encoding STATS takes
/// about half of that time, so even a node that changes all the time spends at most half of its
/// time on STATS.
const SETTLE_EACH: Duration = Duration::from_micros(50);
const SETTLE: Duration = Duration::from_millis(50);
/// The longest time after which STATS are sent with the last figures, if a measurement takes longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause before frames are sent again for which the client had no room.
const RETRY: Duration = Duration::from_millis(200);
/// The maximum number of frames that wait for a session. Each reports a single event. If there are more, the
/// oldest are dropped; STATS still report the present state.
const MAX_HELD: usize = 1024;
/// The maximum number of failed STARTs that are reported again in a new session.
const MAX_FAILED: usize = 256;
/// The age up to which a failed START is reported again. Within this time the loss of a session is
/// noticed and a new session is established.
const REPEATED: Duration = Duration::from_secs(60);
/// The maximum number of volume commands of one instance that wait or are under way.
const MAX_VOLUME_OPS: usize = 16;

/// The settings of an agent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) node: Uuid,
    pub(crate) role: Role,
    /// The first driver of this list that accepts a START runs it. Empty if the agent only
    /// reports.
    pub(crate) drivers: Vec<Arc<dyn Driver>>,
    /// Shared with the workers. Only the workers look up users in the system, because that can
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
    pub(crate) network: Option<Arc<dyn Network>>,
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
    /// A frame could not be sent: there is no session, or no room in the client's queue.
    Unsent(Frame),
    /// The outcome of a job.
    Done(Done),
    /// An instance ended.
    Ended(Ended),
    /// The agent's owner takes the node out of service, or back into service.
    ToggleOffline,
    /// Time has passed. It does no harm if the deadline has not been reached yet.
    Tick,
}

/// The outcome of a job.
#[derive(Debug)]
pub(crate) enum Done {
    /// The instance is about to be killed, because it breaks a rule of its node.
    Condemned {
        instance: Uuid,
        handle: RunId,
        why: String,
    },
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
    /// The record of the instance could not be saved.
    Unsaved { instance: Uuid, why: String },
    /// The node's record could not be saved.
    NodeUnsaved { why: String },
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
    /// Report to the agent's owner that the node is evacuated, with the next state of the machine.
    Evacuated(NextState),
}

/// Work that can block. A worker does it.
#[derive(Debug)]
pub(crate) enum Job {
    Launch(Box<LaunchJob>),
    /// Write an instance's record. The outcome is [`Done::Unsaved`] if that fails; otherwise there is
    /// none.
    Save {
        instance: Uuid,
        record: Record,
    },
    Terminate(Arc<dyn Driver>, Running),
    Kill(Arc<dyn Driver>, Running),
    /// Remove the network of an instance that has ended. This job has no outcome.
    Detach(Arc<dyn Network>, Uuid),
    Remove {
        instance: Uuid,
        driver: Option<Arc<dyn Driver>>,
        /// The volumes that are deleted with the instance.
        ephemeral: Vec<Uuid>,
    },
    Volume {
        instance: Uuid,
        driver: Arc<dyn Driver>,
        handle: Option<RunId>,
        op: VolumeOp,
    },
    /// Watch an instance of a former agent that was found running.
    Watch(Arc<dyn Driver>, Running),
    /// Measure the node, the tunnels of tenants' networks, and the instances of each driver.
    Measure(Option<Arc<dyn Network>>, Vec<(Arc<dyn Driver>, Vec<Measurable>)>),
    /// Write the node's record. With a next state of the machine, the outcome is
    /// [`Done::Evacuated`]; without one, this job has no outcome. If it fails, the outcome is
    /// [`Done::NodeUnsaved`].
    SaveNode(NodeRecord, Option<NextState>),
}

impl Job {
    /// The instance of the job. Jobs of one instance are done in their order.
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
            // These jobs concern no single instance. The workers have a queue for each of the two.
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
    /// The volumes to attach before the instance starts. The flag is true if the volume is made
    /// when it does not exist.
    pub(crate) volumes: Vec<(Uuid, bool)>,
    pub(crate) cancel: Cancel,
    /// The networks of the node.
    pub(crate) network: Option<Arc<dyn Network>>,
}

/// The command of a launch, as it is written to disk.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// A START, as it was received. If the launch fails, the files of the instance are removed.
    Start(Bytes),
    /// A further run of an instance that is on the disk, with the changes of a RESTART if there are
    /// any.
    Again(Option<Box<Restart>>),
}

/// A volume to attach or detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeOp {
    pub(crate) volume: Uuid,
    pub(crate) attach: bool,
}

/// The mode of the node. Only a node in [`Mode::Normal`] accepts STARTs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Normal,
    /// An EVACUATE stops the instances.
    Evacuating,
    /// The evacuation is complete.
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
    /// The next state of the machine, from the last EVACUATE.
    next_state: NextState,
    /// The next state that is reported to the agent's owner once the node's record is saved. A further
    /// EVACUATE or a Restore clears it.
    reached: Option<NextState>,
    offline: bool,
    connected: bool,
    /// Frames that wait for a session, or for room in the client's queue.
    held: VecDeque<Frame>,
    /// STARTs that failed during a session, the oldest first.
    failed: VecDeque<Failed>,
    /// The time at which held frames are sent again, after the client had no room.
    retry_due: Instant,
    /// The last status frame. `None` before the first one, and if the client had no room for it.
    announced: Option<Frame>,
    /// The tenants that concentrators know to have instances on this node.
    tenants: BTreeMap<TenantKey, TenantAdded>,
    /// Tenants whose removal was reported in the present session, and is reported again in the next one.
    left_tenants: BTreeMap<TenantKey, TenantAdded>,
    /// True if these tenants were not reported in the present session yet.
    repeats_tenants: bool,
    tunnels: Vec<TunnelStats>,
    /// The instances whose records could not be saved.
    unsaved: BTreeSet<Uuid>,
    /// The last of them that was saved again. The next attempt continues after it.
    saved_again: Uuid,
    /// True if the node's record could not be saved.
    unsaved_node: bool,
    /// Running instances that a stream follows, or followed before it was closed.
    followed: BTreeSet<Uuid>,
    /// The time at which STATS with the last figures report a change.
    report_due: Option<Instant>,
    /// The time of the next measurement. STATS with the new figures follow it.
    stats_due: Instant,
    /// The time at which the measurement under way began.
    measuring_since: Option<Instant>,
    /// The outputs that [`take_actions`](Self::take_actions) has not returned yet.
    actions: Vec<Action>,
    /// The time of the present input.
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
    /// STARTs whose instance was launched.
    starts: u64,
    /// STARTs that failed, by the reason.
    failures: BTreeMap<&'static str, u64>,
    /// Restarts by the restart policy of an instance.
    restarts: u64,
}

impl Control {
    pub(crate) fn new(settings: Settings, facts: Facts, now: Instant) -> Self {
        Self {
            settings: Settings {
                interval: settings.interval.min(NEVER),
                grace: settings.grace.min(NEVER),
                ..settings
            },
            launcher: LauncherConfig::default(),
            facts,
            instances: BTreeMap::new(),
            mode: Mode::Normal,
            next_state: NextState::Maintenance,
            reached: None,
            offline: false,
            connected: false,
            held: VecDeque::new(),
            failed: VecDeque::new(),
            retry_due: now,
            announced: None,
            tenants: BTreeMap::new(),
            left_tenants: BTreeMap::new(),
            repeats_tenants: false,
            tunnels: Vec::new(),
            unsaved: BTreeSet::new(),
            saved_again: Uuid::nil(),
            unsaved_node: false,
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
                let status = if self.offline {
                    "offline"
                } else {
                    "back in service"
                };
                info!("{}: {status}", self.settings.node);
                // Recorded, so that the next agent of this node is offline, too.
                self.save_node();
                self.announce(true);
                self.stats_soon();
            }
            Input::Tick => {}
        }
        // These report changes of the state, and any input can change the state. They compare the
        // state with the last report, so no handler has to call them.
        self.sync_tenants();
        self.tick();
        self.sync_streams();
    }

    /// The outputs since the last call, in order.
    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// The time at which the next [`Input::Tick`] is due.
    pub(crate) fn next_deadline(&self) -> Instant {
        let stats = match self.measuring_since {
            // A new measurement begins only after the one under way. If that one takes longer than
            // this, STATS are sent without it.
            Some(since) => since + self.patience(),
            None => self.stats_due,
        };
        // While restarts are not allowed, an overdue restart must not count. Its time has passed,
        // so the agent would wake up again and again without doing anything.
        let may_restart = self.may_restart();
        let deadline = |instance: &Instance| match instance.life {
            Life::Terminating(Ending::Asked(at) | Ending::Killed(at)) => Some(at),
            Life::Stopped(Next::StartAgain(at)) => Some(at).filter(|_| may_restart),
            Life::Stopped(Next::Delete(at)) => Some(at),
            _ => None,
        };
        let ends = self.instances.values().filter_map(deadline);
        // No frame can be sent without a session, so frames that wait must not wake the agent.
        let retry = self.has_unsent().then_some(self.retry_due);
        let report = self.report_due.filter(|_| self.connected);
        let all = ends.chain(retry).chain(report).chain([stats]);
        // The minimum always exists, because `stats` is a part of the iterator.
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
            unsaved: self.unsaved.len() + usize::from(self.unsaved_node),
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
        // The status comes first, because a scheduler sends STARTs to a node only after READY.
        self.announce(true);
        // These failures were sent in an earlier session, so they are older than the held frames.
        self.repeat_failures();
        self.send_held();
        // A concentrator that was restarted without a state directory has lost its tables.
        self.repeats_tenants = true;
        // The scheduler needs STATS for the STARTs whose outcome fell between two sessions.
        self.report_due = Some(self.now);
    }

    fn unsent(&mut self, frame: Frame) {
        self.retry_due = self.now + RETRY;
        if frame.kind().frame_type == FrameType::STATUS {
            // `tick` sends the present status at `retry_due`.
            self.announced = None;
            return;
        }
        // Unsent STATS are dropped, because the next STATS replace them.
        if frame.kind() == Command::STATS {
            return;
        }
        self.hold(frame);
    }

    fn frame(&mut self, frame: &Frame) {
        if frame.kind().frame_type == FrameType::COMMAND {
            self.command(frame);
            // A command that was refused is traced as well, because the trace records the way of
            // the frame and not its effect.
            if frame.trace().is_some() {
                self.report(Frame::of(&TraceReport::from_frames([frame])));
            }
        } else if frame.kind() != Status::CONNECTED {
            debug!("{}: {} is not for agents", self.settings.node, frame.kind());
        }
    }

    /// Applies a configuration. An invalid one is sent back with InvalidConfiguration.
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
                self.report(Frame::of(&InvalidConfiguration { refused }));
            }
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Condemned {
                instance,
                handle,
                why,
            } => {
                let instance = self.instances.get_mut(&instance);
                // The reason is not for a later run, which may have begun meanwhile.
                if let Some(instance) = instance.filter(|it| it.record.handle().as_ref() == Some(&handle)) {
                    // The end of the instance follows as `Input::Ended`, which keeps this reason.
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
            Done::Unsaved { instance, why } => {
                self.unsaved.insert(instance);
                let why = format_args!("instance {instance}: its record can't be saved: {why}");
                self.complain("record not saved", why);
            }
            Done::NodeUnsaved { why } => {
                self.unsaved_node = true;
                let next = match &self.reached {
                    Some(next) => format!(", and the next state, {next}, is not reported before it is"),
                    None => String::new(),
                };
                let why = format_args!("the node's record can't be saved{next}: {why}");
                self.complain("node not saved", why);
            }
            // A state that a further EVACUATE or a Restore has replaced is not reported, and none is
            // reported twice.
            Done::Evacuated(next) => {
                let reached = self.reached.take_if(|reached| *reached == next);
                self.actions.extend(reached.map(Action::Evacuated));
            }
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

    /// Sends a frame that must not be lost: now if there is a session, otherwise in the next one.
    fn report(&mut self, frame: Frame) {
        if self.connected {
            self.actions.push(Action::Send(frame));
        } else {
            self.hold(frame);
        }
    }

    fn hold(&mut self, frame: Frame) {
        // InvalidConfiguration answers a CONFIGURE of the session that ended; a new session begins
        // with a configuration of its own.
        if frame.kind() == ErrorCode::INVALID_CONFIGURATION {
            return;
        }
        if self.held.len() >= MAX_HELD {
            let dropped = self.held.pop_front();
            let kind = dropped.map(|frame| frame.kind().to_string()).unwrap_or_default();
            let dropped =
                format_args!("{MAX_HELD} frames wait for a session: the oldest, {kind}, is dropped");
            self.complain("dropped", dropped);
        }
        self.held.push_back(frame);
    }

    /// Logs a problem with a command. The number of lines of each kind is limited, because a
    /// controller could otherwise fill the log.
    fn complain(&mut self, kind: &'static str, what: impl fmt::Display) {
        if let Some(more) = self.log.admit((), kind, self.now) {
            warn!("{}: {}{more}", self.settings.node, excerpt(what));
        }
    }

    fn job(&mut self, job: Job) {
        self.actions.push(Action::Job(job));
    }
}
