//! The real ends of a cluster: agents whose instances are entries of a table, and the view that
//! a controller keeps.
//!
//! An instance takes up to 20 ms to end when it is asked to, and every fourth ends by itself.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use uuid::Uuid;

use super::application::SharedLog;
use ssntp::Role;
use ssntp::proto::{Event, Frame};
use ssntp_agent::driver::{
    Commit, Driver, Ended, Exit, Found, InstanceDir, Launch, Measurable, NewsSink, Refused, RunId, Running,
    Usage, Volume,
};
use ssntp_cluster::machine::Facts;
use ssntp_payload::{InstanceDeleted, InstanceStopped, Start};
use ssntp_test_support::random::Random;
use ssntp_test_support::stepped::{Step, SteppedAgent, SteppedConfig};
use ssntp_view::View;

/// Agents send STATS after events only. Regular STATS would keep a world from its rest.
const NEVER: Duration = Duration::from_secs(10 * 86_400);

/// The program behind a connection.
pub(super) enum Program {
    Agent(Box<SteppedAgent>, Arc<Table>),
    Controller(Box<View>, SharedLog),
}

impl Program {
    /// The program of a peer with this role and UUID.
    pub(super) fn new(role: Role, node: Uuid, now: Instant, log: &SharedLog) -> Self {
        if role.intersects(Role::CONTROLLER) {
            return Self::Controller(Box::default(), Arc::clone(log));
        }
        let facts = Facts {
            node_uuid: node.into(),
            mem_total_mb: 1000,
            mem_available_mb: 1000,
            disk_total_mb: 10_000,
            disk_available_mb: 10_000,
            load: 0,
            cpus_online: 8,
            ..Facts::default()
        };
        let config = SteppedConfig {
            node,
            role,
            facts,
            max_instances: 20,
            interval: NEVER,
        };
        let table = Arc::new(Table {
            log: Arc::clone(log),
            state: Mutex::new((now, BTreeMap::new())),
        });
        let driver: Arc<dyn Driver> = Arc::clone(&table) as Arc<dyn Driver>;
        Self::Agent(Box::new(SteppedAgent::new(config, driver, now)), table)
    }

    /// Handles CONNECTED, and returns the frames to send.
    pub(super) fn connected(&mut self, payload: Bytes, now: Instant) -> Vec<Frame> {
        match self {
            Self::Agent(agent, _) => agent.step(now, Step::Connected(payload)),
            Self::Controller(view, _) => {
                view.connected(Some(payload));
                Vec::new()
            }
        }
    }

    /// Handles a frame, and returns the frames to send.
    pub(super) fn receive(&mut self, frame: &Frame, now: Instant) -> Vec<Frame> {
        match self {
            Self::Agent(agent, table) => {
                table.lock().0 = now;
                agent.step(now, Step::Frame(frame.clone()))
            }
            Self::Controller(view, log) => {
                view.apply(frame, SystemTime::UNIX_EPOCH);
                if let Some(fault) = disbelieves(view, frame) {
                    log.lock().unwrap().faults.push(fault);
                }
                Vec::new()
            }
        }
    }

    /// Takes the actions that are due, and returns the frames to send.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<Frame> {
        match self {
            Self::Agent(agent, table) if table.end_what_is_due(now) || agent.deadline() <= now => {
                agent.step(now, Step::Tick)
            }
            _ => Vec::new(),
        }
    }

    /// The time of its next action without input.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Agent(agent, table) => {
                let ends = table.lock().1.values().filter_map(|instance| instance.ends).min();
                Some(ends.map_or(agent.deadline(), |at| at.min(agent.deadline())))
            }
            Self::Controller(..) => None,
        }
    }

    /// The instances that run, for an agent.
    pub(super) fn running(&self) -> Option<Vec<Uuid>> {
        match self {
            Self::Agent(_, table) => Some(table.lock().1.keys().copied().collect()),
            Self::Controller(..) => None,
        }
    }

    /// Some instance and its node, as a controller sees it.
    pub(super) fn pick(&self, random: &mut Random) -> Option<(Uuid, Uuid)> {
        let Self::Controller(view, _) = self else {
            return None;
        };
        let all: Vec<_> = view.instances().collect();
        let one = all.get(random.below(all.len().max(1)))?;
        Some((one.uuid, one.node))
    }

    /// The instances that run on a node, as a controller sees it.
    pub(super) fn seen(&self, node: Uuid) -> Option<Vec<Uuid>> {
        match self {
            Self::Agent(..) => None,
            Self::Controller(view, _) => {
                let alive = view.instances_of(node).filter(|instance| instance.is_alive());
                Some(alive.map(|instance| instance.uuid).collect())
            }
        }
    }
}

/// The entry of an instance in a view, if the view still has it although the frame ends it.
fn disbelieves(view: &View, frame: &Frame) -> Option<String> {
    let kind = frame.kind();
    let (uuid, is_gone) = if kind == Event::INSTANCE_DELETED {
        (
            frame.payload::<InstanceDeleted>().ok()?.instance_uuid.uuid()?,
            true,
        )
    } else if kind == Event::INSTANCE_STOPPED {
        (
            frame.payload::<InstanceStopped>().ok()?.instance_uuid.uuid()?,
            false,
        )
    } else {
        return None;
    };
    let instance = view.instance(uuid)?;
    let state = &instance.state;
    (is_gone || instance.is_alive())
        .then(|| format!("cluster: after {kind} a controller sees {uuid} {state}"))
}

/// Instances that run until they are asked to end, or end by themselves.
pub(super) struct Table {
    log: SharedLog,
    /// The time, and the running instances.
    state: Mutex<(Instant, BTreeMap<Uuid, Instance>)>,
}

#[derive(Default)]
struct Instance {
    sink: Option<NewsSink>,
    ends: Option<Instant>,
    is_asked: bool,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, (Instant, BTreeMap<Uuid, Instance>)> {
        self.state.lock().unwrap()
    }

    fn ask(&self, running: &Running) -> io::Result<()> {
        let uuid = running.place.instance();
        let mut state = self.lock();
        let takes = Duration::from_millis(drawn(uuid) % 3 * 10);
        let ends = state.0 + takes;
        if let Some(instance) = state.1.get_mut(&uuid) {
            instance.is_asked = true;
            instance.ends = Some(instance.ends.map_or(ends, |before| before.min(ends)));
        }
        let now = state.0;
        drop(state);
        self.end_what_is_due(now);
        Ok(())
    }

    /// Sets the time, and ends the instances whose time is over. True if there are any.
    fn end_what_is_due(&self, now: Instant) -> bool {
        let mut state = self.lock();
        state.0 = now;
        let is_due = |(_, instance): &(&Uuid, &Instance)| instance.ends.is_some_and(|at| at <= now);
        let due: Vec<_> = state.1.iter().filter(is_due).map(|(uuid, _)| *uuid).collect();
        let ended: Vec<_> = due.iter().filter_map(|uuid| state.1.remove_entry(uuid)).collect();
        drop(state);
        for (uuid, instance) in &ended {
            self.log.lock().unwrap().ended_by_themselves += u64::from(!instance.is_asked);
            if let Some(sink) = &instance.sink {
                let ended = Ended {
                    instance: *uuid,
                    handle: RunId::default(),
                    exit: Exit::code(if instance.is_asked { 143 } else { 0 }),
                };
                sink(ended.into());
            }
        }
        !ended.is_empty()
    }
}

/// The drawn properties of an instance: its UUID is drawn from the seed.
fn drawn(instance: Uuid) -> u64 {
    instance.as_u64_pair().1 >> 8
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Table")
    }
}

impl Driver for Table {
    fn name(&self) -> &'static str {
        "table"
    }

    fn check(&self, _: &Start) -> Result<(), Refused> {
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, commit: &mut Commit<'_>) -> Result<RunId, Refused> {
        let (instance, run) = (launch.place.instance(), RunId::default());
        commit(&run).map_err(|e| Refused::io("its state cannot be saved", &e))?;
        let mut state = self.lock();
        let ends_by_itself = drawn(instance).is_multiple_of(4);
        let ends = ends_by_itself.then(|| state.0 + Duration::from_millis(drawn(instance) / 4 % 50));
        let begins = Instance {
            ends,
            ..Instance::default()
        };
        state.1.insert(instance, begins);
        drop(state);
        self.log.lock().unwrap().launches(instance);
        Ok(run)
    }

    fn watch(&self, running: &Running, sink: &NewsSink) {
        if let Some(known) = self.lock().1.get_mut(&running.place.instance()) {
            known.sink = Some(NewsSink::clone(sink));
        }
    }

    fn terminate(&self, running: &Running) -> io::Result<()> {
        self.ask(running)
    }

    fn kill(&self, running: &Running) -> io::Result<()> {
        self.ask(running)
    }

    fn find(&self, _: &Running) -> Found {
        Found::Ended(Exit::default())
    }

    fn find_unrecorded(&self, _: &InstanceDir) -> Option<RunId> {
        None
    }

    fn measure(&self, subjects: &[Measurable]) -> Vec<Usage> {
        subjects.iter().map(|_| Usage::default()).collect()
    }

    fn forget(&self, _: &InstanceDir) {}

    fn attach(&self, _: &InstanceDir, _: Option<&RunId>, _: &Volume) -> Result<(), Refused> {
        Ok(())
    }

    fn detach(&self, _: &InstanceDir, _: Option<&RunId>, _: &Volume) -> Result<(), Refused> {
        Ok(())
    }
}
