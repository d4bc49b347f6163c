//! The agent's state machine: without I/O, threads or a clock of its own.
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
//!      ▲ ▲                  │              │ ended by itself         │ ended; killed when
//!      │ └── launch failed ─┘              ▼                         │ the grace is over
//!      │                                Stopped ◀────────────────────┤ to be kept
//!      │            DELETE                 │                         │ to be removed
//!      └── Removing ◀──────────────────────┴─────────────────────────┘
//! ```
//!
//! Jobs for one instance are done in the order in which they are given; a job
//! that changes the state machine comes back as an input.
//!
//! | file | holds |
//! |---|---|
//! | `commands` | what each command does, and its failures |
//! | `node` | status, capacity, STATS, tenants |

mod commands;
mod node;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use log::{debug, info, warn};
use uuid::Uuid;

use self::node::Tenants;
use super::driver::{
    Driver, Ended, Exit, Found, Handle, LaunchError, Place, Running, Subject, Usage, VolumeError,
};
use super::store::{NodeRecord, Record, RecordAfter, RecordPhase, Stored};
use crate::Role;
use crate::cluster::machine::Facts;
use crate::payload::{
    Configure, DeleteFailure, InstanceDeleted, InstanceStopped, InvalidConfiguration, LauncherConfig,
    Payload, Persistence, RestartFailure, StartFailure, StartPayload, TraceReport,
};
use crate::proto::{Command, ErrorCode, Frame, FrameType, Status};

/// How long STATS wait for further changes after an instance changed.
const SETTLE: Duration = Duration::from_millis(50);
/// After how long a killed instance that is still there counts as hung.
const HUNG: Duration = Duration::from_secs(5);
/// How long STATS wait for figures before they go out with the last ones.
const PATIENCE: Duration = Duration::from_secs(5);
/// After how long frames are tried again that the client had no room for.
const RETRY: Duration = Duration::from_millis(200);
/// How many frames wait for a session. They tell of single events; when
/// there are more, the oldest are dropped, and STATS tell how things are.
const MAX_HELD: usize = 1024;
/// How many volume commands of one instance wait for the one before.
const MAX_VOLUME_OPS: usize = 16;

/// What an agent is told when it is made.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) node: Uuid,
    pub(crate) role: Role,
    /// Asked in this order; none where the agent only reports.
    pub(crate) drivers: Vec<Arc<dyn Driver>>,
    /// Where the state directory is; `None` where there is none.
    pub(crate) state: Option<std::path::PathBuf>,
    pub(crate) has_volumes: bool,
    pub(crate) mem_mb: Option<i64>,
    pub(crate) disk_mb: Option<i64>,
    pub(crate) max_instances: usize,
    pub(crate) interval: Duration,
    pub(crate) grace: Duration,
}

/// What can happen.
#[derive(Debug)]
pub(crate) enum Input {
    /// A session stands.
    Connected { configuration: Option<Bytes> },
    /// It doesn't any more.
    Disconnected,
    /// The scheduler says something.
    Frame(Frame),
    /// A frame that was to be sent could not be.
    Unsent(Frame),
    /// A job's outcome.
    Done(Done),
    /// An instance ended.
    Ended(Ended),
    /// Somebody at the node takes it out of service, or back into it.
    ToggleOffline,
    /// The time has come that `next_deadline` named, or has not.
    Tick,
}

/// What a job came to.
#[derive(Debug)]
pub(crate) enum Done {
    Launched {
        instance: Uuid,
        result: Result<Handle, LaunchError>,
    },
    Removed {
        instance: Uuid,
        result: Result<(), String>,
    },
    Volume {
        instance: Uuid,
        op: VolumeOp,
        result: Result<(), VolumeError>,
    },
    Measured {
        facts: Facts,
        usages: Vec<(Uuid, Usage)>,
    },
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Action {
    Send(Frame),
    Job(Job),
}

/// Work that may take a moment.
#[derive(Debug)]
pub(crate) enum Job {
    Launch(Box<LaunchJob>),
    /// Write an instance's record down; nobody waits for it.
    Save {
        instance: Uuid,
        record: Record,
    },
    Terminate(Arc<dyn Driver>, Running),
    Kill(Arc<dyn Driver>, Running),
    Remove {
        instance: Uuid,
        driver: Option<Arc<dyn Driver>>,
    },
    Volume {
        instance: Uuid,
        driver: Arc<dyn Driver>,
        handle: Option<Handle>,
        op: VolumeOp,
    },
    /// Watch instances that were found running.
    Watch(Arc<dyn Driver>, Running),
    Measure(Vec<(Arc<dyn Driver>, Vec<Subject>)>),
    SaveNode(NodeRecord),
}

impl Job {
    /// The instance it is about: jobs of one instance keep their order.
    pub(crate) fn instance(&self) -> Option<Uuid> {
        match self {
            Self::Launch(job) => Some(job.instance),
            Self::Save { instance, .. } | Self::Remove { instance, .. } | Self::Volume { instance, .. } => {
                Some(*instance)
            }
            Self::Terminate(_, running) | Self::Kill(_, running) | Self::Watch(_, running) => {
                Some(running.place.instance())
            }
            Self::Measure(_) | Self::SaveNode(_) => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct LaunchJob {
    pub(crate) instance: Uuid,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) payload: Arc<StartPayload>,
    pub(crate) record: Record,
    /// A START, whose remains are removed when it fails; not a RESTART.
    pub(crate) fresh: bool,
    pub(crate) user: String,
    /// To attach before it starts, and whether each may be made.
    pub(crate) volumes: Vec<(Uuid, bool)>,
}

/// A volume to attach or detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeOp {
    pub(crate) volume: Uuid,
    pub(crate) attach: bool,
}

#[derive(Debug)]
struct Instance {
    place: Place,
    /// `None` where it needs a driver that this agent doesn't have.
    driver: Option<Arc<dyn Driver>>,
    /// `None` where it was lost: then it can't be started again.
    start: Option<Arc<StartPayload>>,
    record: Record,
    phase: Phase,
    volumes: BTreeSet<Uuid>,
    /// The first one is being done.
    volume_ops: VecDeque<VolumeOp>,
    usage: Usage,
    /// It is started again, and the last STATS told that it had ended.
    restart_untold: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Launching {
        restart: bool,
    },
    Active,
    Terminating {
        /// When it is killed, or since it was: when it counts as hung.
        deadline: Instant,
        killed: bool,
        hung: bool,
    },
    Stopped,
    Removing,
}

impl Instance {
    /// Whether it uses memory and CPUs.
    fn is_running(&self) -> bool {
        matches!(
            self.phase,
            Phase::Launching { .. } | Phase::Active | Phase::Terminating { .. }
        )
    }

    fn is_persistent(&self) -> bool {
        // What is not known is kept.
        let persistence = self.start.as_ref().map(|start| &start.start.persistence);
        persistence != Some(&Persistence::Unset)
    }

    fn running(&self) -> Option<(Arc<dyn Driver>, Running)> {
        let handle = self.record.handle()?;
        let place = self.place.clone();
        Some((Arc::clone(self.driver.as_ref()?), Running { place, handle }))
    }
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
    offline: bool,
    connected: bool,
    held: VecDeque<Frame>,
    /// When what is held is tried again, after the client had no room for it.
    retry_due: Instant,
    /// The status that was sent last, with its payload.
    announced: Option<Frame>,
    tenants: Tenants,
    stats_due: Instant,
    measuring_since: Option<Instant>,
    actions: Vec<Action>,
}

impl Control {
    pub(crate) fn new(settings: Settings, facts: Facts, now: Instant) -> Self {
        Self {
            settings,
            launcher: LauncherConfig::default(),
            facts,
            instances: BTreeMap::new(),
            mode: Mode::Normal,
            offline: false,
            connected: false,
            held: VecDeque::new(),
            retry_due: now,
            announced: None,
            tenants: Tenants::default(),
            stats_due: now,
            measuring_since: None,
            actions: Vec::new(),
        }
    }

    /// Takes over what a former agent left. The drivers are asked what became
    /// of its instances, which may take a moment.
    pub(crate) fn adopt(&mut self, node: NodeRecord, stored: Vec<Stored>, now: Instant) {
        for stored in stored {
            self.adopt_instance(stored, now);
        }
        if node.maintenance {
            self.job(Job::SaveNode(node));
            self.mode = Mode::Evacuating;
            self.evacuate_all(now);
        }
    }

    fn adopt_instance(&mut self, stored: Stored, now: Instant) {
        let id = stored.instance;
        let Some(root) = &self.settings.state else { return };
        let place = super::store::place(root, id);
        let recorded = stored.record.is_some();
        let record = stored.record.unwrap_or_default();
        if recorded && record.phase == RecordPhase::Starting {
            // It never ran: the scheduler has answered the START since.
            info!(
                "{}: instance {id} was being started, and is removed",
                self.settings.node
            );
            self.job(Job::Remove {
                instance: id,
                driver: None,
            });
            return;
        }
        let start = stored.start.map(Arc::from);
        let mut instance = Instance {
            driver: self.driver_of(&record, start.as_deref()),
            place,
            start,
            record,
            phase: Phase::Stopped,
            volumes: stored.volumes,
            volume_ops: VecDeque::new(),
            usage: Usage::default(),
            restart_untold: false,
        };
        if !recorded {
            self.recover_record(&mut instance);
        }
        let found = instance
            .running()
            .map(|(driver, running)| (driver.find(&running), driver, running));
        let ended = match found {
            Some((Found::Running, driver, running)) => {
                info!("{}: instance {id} still runs", self.settings.node);
                instance.phase = Phase::Active;
                self.job(Job::Watch(driver, running));
                None
            }
            Some((Found::Ended(exit), _, running)) => Some((exit, running.handle)),
            // Without its driver nobody can tell.
            None => instance.record.handle().map(|handle| (Exit::default(), handle)),
        };
        let after = instance.record.after;
        if ended.is_some() {
            instance.phase = Phase::Active;
        }
        self.instances.insert(id, instance);
        match ended {
            Some((exit, handle)) => self.ended(Ended {
                instance: id,
                handle,
                exit,
            }),
            None if after != RecordAfter::Nothing => self.end(id, after, now),
            None => {}
        }
    }

    /// The record is lost: the START and the system have to tell.
    fn recover_record(&mut self, instance: &mut Instance) {
        let id = instance.place.instance();
        let drivers = self.settings.drivers.iter();
        let found = drivers
            .filter_map(|driver| Some((driver, driver.find_unrecorded(&instance.place)?)))
            .next();
        if let Some((driver, handle)) = found {
            instance.driver = Some(Arc::clone(driver));
            instance.record = Record::default().running(&handle);
        } else {
            instance.record = Record::default().stopped(Exit::default());
        }
        if let Some(driver) = &instance.driver {
            instance.record.driver = driver.name().to_owned();
        }
        warn!(
            "{}: the record of instance {id} was lost; it {}",
            self.settings.node,
            if instance.record.handle().is_some() {
                "runs"
            } else {
                "is stopped"
            }
        );
        let record = instance.record.clone();
        self.job(Job::Save { instance: id, record });
    }

    fn driver_of(&self, record: &Record, start: Option<&StartPayload>) -> Option<Arc<dyn Driver>> {
        let mut drivers = self.settings.drivers.iter();
        let takes = |driver: &&Arc<dyn Driver>| match (record.driver.as_str(), start) {
            ("", Some(start)) => driver.check(&start.start).is_ok(),
            (name, _) => driver.name() == name,
        };
        drivers.find(takes).cloned()
    }

    /// Takes an input. What comes of it is fetched by
    /// [`take_actions`](Self::take_actions).
    pub(crate) fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Connected { configuration } => self.connected(now, configuration),
            Input::Disconnected => self.connected = false,
            Input::Frame(frame) => self.frame(now, &frame),
            Input::Unsent(frame) => self.unsent(now, frame),
            Input::Done(done) => self.done(now, done),
            Input::Ended(ended) => {
                self.ended(ended);
                self.stats_soon(now);
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
                self.announce(true);
                self.stats_soon(now);
            }
            Input::Tick => {}
        }
        self.check_evacuated(now);
        self.sync_tenants();
        self.tick(now);
    }

    /// What is to be done since the last call, in this order.
    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// When the next [`Input::Tick`] is due.
    pub(crate) fn next_deadline(&self) -> Instant {
        let stats = match self.measuring_since {
            Some(since) => since + PATIENCE,
            None => self.stats_due,
        };
        let deadline = |instance: &Instance| match instance.phase {
            Phase::Terminating {
                deadline,
                hung: false,
                ..
            } => Some(deadline),
            _ => None,
        };
        let ends = self.instances.values().filter_map(deadline);
        let retry = (self.connected && !self.held.is_empty()).then_some(self.retry_due);
        ends.chain(retry).chain([stats]).min().unwrap_or(stats)
    }

    /// How many instances there are and run.
    #[cfg(test)]
    pub(crate) fn instances(&self) -> usize {
        self.instances.len()
    }

    fn connected(&mut self, now: Instant, configuration: Option<Bytes>) {
        self.connected = true;
        if let Some(configuration) = configuration {
            self.configure(&configuration);
        }
        self.announce(true);
        self.send_held();
        // A concentrator may have forgotten.
        self.tenants.forget();
        self.stats_due = now;
    }

    fn unsent(&mut self, now: Instant, frame: Frame) {
        self.retry_due = now + RETRY;
        if frame.kind().frame_type == FrameType::STATUS {
            // Sent anew with the next STATS, which know more.
            self.announced = None;
            return;
        }
        if frame.kind() == Command::STATS {
            return;
        }
        self.hold(frame);
    }

    fn frame(&mut self, now: Instant, frame: &Frame) {
        if frame.kind().frame_type == FrameType::COMMAND {
            self.command(now, frame);
            if frame.trace().is_some() {
                self.tell(&TraceReport::from_frames([frame]));
            }
        } else if frame.kind() != Status::CONNECTED {
            debug!("{}: {} is not for agents", self.settings.node, frame.kind());
        }
    }

    /// Applies a configuration, or sends it back.
    fn configure(&mut self, payload: &Bytes) {
        match Configure::decode_valid(payload) {
            Ok(configure) => {
                if configure.launcher != self.launcher {
                    info!(
                        "{}: new configuration: {:?}",
                        self.settings.node, configure.launcher
                    );
                }
                self.launcher = configure.launcher;
            }
            Err(e) => {
                warn!("{}: the configuration is refused: {e}", self.settings.node);
                self.tell(&InvalidConfiguration {
                    refused: payload.clone(),
                });
            }
        }
    }

    fn done(&mut self, now: Instant, done: Done) {
        match done {
            Done::Launched { instance, result } => {
                match result {
                    Ok(handle) => self.launched(now, instance, &handle),
                    Err(error) => self.not_launched(now, instance, &error),
                }
                self.stats_soon(now);
            }
            Done::Removed { instance, result } => {
                self.removed(instance, result);
                self.stats_soon(now);
            }
            Done::Volume { instance, op, result } => {
                self.volume_done(instance, op, result);
                self.stats_soon(now);
            }
            Done::Measured { facts, usages } => self.measured(facts, usages),
        }
    }

    fn launched(&mut self, now: Instant, id: Uuid, handle: &Handle) {
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        info!(
            "{}: instance {id} runs (process {})",
            self.settings.node, handle.pid
        );
        let after = instance.record.after;
        instance.record = instance.record.running(handle);
        instance.phase = Phase::Active;
        if after != RecordAfter::Nothing {
            self.end(id, after, now);
        }
        self.next_volume_op(id);
    }

    fn not_launched(&mut self, now: Instant, id: Uuid, error: &LaunchError) {
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        warn!("{}: instance {id} does not start: {error}", self.settings.node);
        let after = std::mem::take(&mut instance.record.after);
        let Phase::Launching { restart } = instance.phase else {
            return;
        };
        if restart {
            instance.phase = Phase::Stopped;
            let node_uuid = self.settings.node.into();
            self.tell(&RestartFailure {
                node_uuid,
                instance_uuid: id.into(),
                reason: error.fault.into(),
            });
            if removes(after) {
                self.end(id, after, now);
            }
            self.next_volume_op(id);
        } else {
            let restart = instance.start.as_ref().is_some_and(|start| start.start.restart);
            self.instances.remove(&id);
            self.tell(&StartFailure {
                node_uuid: self.settings.node.into(),
                instance_uuid: id.into(),
                reason: error.fault.into(),
                restart,
            });
            self.tell_after(id, after);
        }
        self.announce(true);
    }

    /// An instance is gone from its driver.
    fn ended(&mut self, ended: Ended) {
        let id = ended.instance;
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        if instance.record.handle().as_ref() != Some(&ended.handle) || !instance.is_running() {
            return;
        }
        info!("{}: instance {id} ended: {}", self.settings.node, ended.exit);
        // Otherwise the STATS before and after were the same, and nobody would
        // see that it was restarted.
        if instance.restart_untold {
            self.send_stats();
        }
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        let after = instance.record.after;
        instance.record = instance.record.stopped(ended.exit);
        instance.usage = Usage::default();
        if removes(after) {
            self.remove(id);
        } else {
            instance.phase = Phase::Stopped;
            instance.record.after = RecordAfter::Nothing;
            let record = instance.record.clone();
            self.job(Job::Save { instance: id, record });
            self.tell_after(id, after);
            self.next_volume_op(id);
        }
        self.announce(false);
    }

    /// Ends an instance, if it runs, and then does what is asked.
    fn end(&mut self, id: Uuid, after: RecordAfter, now: Instant) {
        let grace = self.settings.grace;
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        let before = instance.record.after;
        // A removal is not undone by a stop, a report not by silence.
        if removes(after) || (!removes(before) && before != RecordAfter::Evacuate) {
            instance.record.after = after;
        }
        match instance.phase {
            Phase::Active => {
                instance.phase = Phase::Terminating {
                    deadline: now + grace,
                    killed: false,
                    hung: false,
                };
                let (record, running) = (instance.record.clone(), instance.running());
                self.job(Job::Save { instance: id, record });
                if let Some((driver, running)) = running {
                    self.job(Job::Terminate(driver, running));
                }
            }
            Phase::Terminating { .. } => {
                let record = instance.record.clone();
                self.job(Job::Save { instance: id, record });
            }
            Phase::Stopped if removes(after) => self.remove(id),
            Phase::Launching { .. } | Phase::Stopped | Phase::Removing => {}
        }
        self.stats_soon(now);
    }

    fn remove(&mut self, id: Uuid) {
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.phase = Phase::Removing;
            let driver = instance.driver.clone();
            self.job(Job::Remove { instance: id, driver });
        }
    }

    fn removed(&mut self, id: Uuid, result: Result<(), String>) {
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        let after = instance.record.after;
        match result {
            Ok(()) => {
                self.instances.remove(&id);
                self.tell_after(id, after);
            }
            Err(why) => {
                warn!("{}: instance {id} can't be removed: {why}", self.settings.node);
                instance.phase = Phase::Stopped;
                instance.record.after = RecordAfter::Nothing;
                if after == RecordAfter::Delete {
                    // None of the protocol's reasons fits.
                    self.tell(&DeleteFailure {
                        node_uuid: self.settings.node.into(),
                        instance_uuid: id.into(),
                        reason: "state_failure".into(),
                    });
                } else {
                    // It is stopped at least.
                    self.tell_after(id, after);
                }
            }
        }
        self.announce(false);
    }

    /// The event that belongs to what was asked of an instance.
    fn tell_after(&mut self, id: Uuid, after: RecordAfter) {
        let instance_uuid = id.into();
        match after {
            RecordAfter::Nothing | RecordAfter::Keep => {}
            RecordAfter::Delete => self.tell(&InstanceDeleted { instance_uuid }),
            RecordAfter::Evacuate | RecordAfter::Release => self.tell(&InstanceStopped { instance_uuid }),
        }
    }

    /// What is due by the clock.
    fn tick(&mut self, now: Instant) {
        let mut kill = Vec::new();
        for (id, instance) in &mut self.instances {
            let Phase::Terminating {
                deadline,
                killed,
                hung,
            } = instance.phase
            else {
                continue;
            };
            if now < deadline || hung {
                continue;
            }
            warn!(
                "{}: instance {id} {}",
                self.settings.node,
                if killed {
                    "does not even end when killed"
                } else {
                    "does not end, and is killed"
                }
            );
            instance.phase = Phase::Terminating {
                deadline: now + HUNG,
                killed: true,
                hung: killed,
            };
            kill.extend(instance.running());
        }
        for (driver, running) in kill {
            self.job(Job::Kill(driver, running));
        }
        self.stats_tick(now);
        if self.connected && !self.held.is_empty() && now >= self.retry_due {
            self.send_held();
        }
    }

    fn send_held(&mut self) {
        self.actions.extend(self.held.drain(..).map(Action::Send));
    }

    /// Sends a payload that must not be lost, now or once a session stands.
    fn tell<T: Payload>(&mut self, payload: &T) {
        let frame = Frame::of(payload);
        if self.connected {
            self.actions.push(Action::Send(frame));
        } else {
            self.hold(frame);
        }
    }

    fn hold(&mut self, frame: Frame) {
        // Of no use to the next session.
        if frame.kind() == ErrorCode::INVALID_CONFIGURATION {
            return;
        }
        if self.held.len() >= MAX_HELD {
            let dropped = self.held.pop_front();
            let kind = dropped.map(|frame| frame.kind().to_string()).unwrap_or_default();
            warn!(
                "{}: too much waits for a session: {kind} is dropped",
                self.settings.node
            );
        }
        self.held.push_back(frame);
    }

    fn job(&mut self, job: Job) {
        self.actions.push(Action::Job(job));
    }
}

fn removes(after: RecordAfter) -> bool {
    matches!(after, RecordAfter::Delete | RecordAfter::Release)
}
