//! The real ends of a cluster: agents whose instances are entries of a table, and the view that
//! a controller keeps.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use uuid::Uuid;

use super::application::SharedLog;
use ssntp::Role;
use ssntp::payload::Start;
use ssntp::proto::Frame;
use ssntp_cluster::agent::driver::{
    Commit, Driver, EndSink, Ended, Exit, Found, InstanceDir, Launch, LaunchError, Measurable, RunId,
    Running, Usage, Volume, VolumeError,
};
use ssntp_cluster::agent::{Step, SteppedAgent, SteppedConfig};
use ssntp_cluster::controller::View;
use ssntp_cluster::machine::Facts;
use ssntp_test_support::random::Random;

/// STATS follow what happens. Those that come by the clock would keep a world from its rest.
const NEVER: Duration = Duration::from_secs(10 * 86_400);

/// The program behind a connection.
pub(super) enum Program {
    Agent(Box<SteppedAgent>, Arc<Table>),
    Controller(Box<View>),
}

impl Program {
    /// The program of a peer with this role and UUID.
    pub(super) fn new(role: Role, node: Uuid, now: Instant, log: &SharedLog) -> Self {
        if role.intersects(Role::CONTROLLER) {
            return Self::Controller(Box::default());
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
            running: Mutex::default(),
        });
        let driver: Arc<dyn Driver> = Arc::clone(&table) as Arc<dyn Driver>;
        Self::Agent(Box::new(SteppedAgent::new(config, driver, now)), table)
    }

    /// CONNECTED has come. Returns what it sends.
    pub(super) fn connected(&mut self, payload: Bytes, now: Instant) -> Vec<Frame> {
        match self {
            Self::Agent(agent, _) => agent.step(now, Step::Connected(payload)),
            Self::Controller(view) => {
                view.connected(Some(payload));
                Vec::new()
            }
        }
    }

    /// A frame has come. Returns what it sends.
    pub(super) fn receive(&mut self, frame: &Frame, now: Instant) -> Vec<Frame> {
        match self {
            Self::Agent(agent, _) => agent.step(now, Step::Frame(frame.clone())),
            Self::Controller(view) => {
                view.apply(frame, SystemTime::UNIX_EPOCH);
                Vec::new()
            }
        }
    }

    /// Does what is due. Returns what it sends.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<Frame> {
        match self {
            Self::Agent(agent, _) if agent.deadline() <= now => agent.step(now, Step::Tick),
            _ => Vec::new(),
        }
    }

    /// When it has something to do by itself.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Agent(agent, _) => Some(agent.deadline()),
            Self::Controller(_) => None,
        }
    }

    /// The instances that run, for an agent.
    pub(super) fn running(&self) -> Option<Vec<Uuid>> {
        match self {
            Self::Agent(_, table) => Some(table.lock().keys().copied().collect()),
            Self::Controller(_) => None,
        }
    }

    /// Some instance and its node, as a controller sees it.
    pub(super) fn pick(&self, random: &mut Random) -> Option<(Uuid, Uuid)> {
        let Self::Controller(view) = self else { return None };
        let all: Vec<_> = view.instances().collect();
        let one = all.get(random.below(all.len().max(1)))?;
        Some((one.uuid, one.node))
    }

    /// The instances that run on a node, as a controller sees it.
    pub(super) fn seen(&self, node: Uuid) -> Option<Vec<Uuid>> {
        match self {
            Self::Agent(..) => None,
            Self::Controller(view) => {
                let alive = view.instances_of(node).filter(|instance| instance.is_alive());
                Some(alive.map(|instance| instance.uuid).collect())
            }
        }
    }
}

/// Instances that run until they are asked to end.
pub(super) struct Table {
    log: SharedLog,
    running: Mutex<BTreeMap<Uuid, Option<EndSink>>>,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Uuid, Option<EndSink>>> {
        self.running.lock().unwrap()
    }

    fn end(&self, running: &Running) -> io::Result<()> {
        let instance = running.place.instance();
        let sink = self.lock().remove(&instance).flatten();
        if let Some(sink) = sink {
            sink(Ended {
                instance,
                handle: running.handle.clone(),
                exit: Exit::code(143),
            });
        }
        Ok(())
    }
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

    fn check(&self, _: &Start) -> Result<(), LaunchError> {
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, commit: &mut Commit<'_>) -> Result<RunId, LaunchError> {
        let (instance, run) = (launch.place.instance(), RunId::default());
        commit(&run).map_err(|e| LaunchError::io("its state cannot be saved", &e))?;
        self.lock().insert(instance, None);
        self.log.lock().unwrap().launches(instance);
        Ok(run)
    }

    fn watch(&self, running: &Running, sink: &EndSink) {
        if let Some(known) = self.lock().get_mut(&running.place.instance()) {
            *known = Some(EndSink::clone(sink));
        }
    }

    fn terminate(&self, running: &Running) -> io::Result<()> {
        self.end(running)
    }

    fn kill(&self, running: &Running) -> io::Result<()> {
        self.end(running)
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

    fn attach(&self, _: &InstanceDir, _: Option<&RunId>, _: &Volume) -> Result<(), VolumeError> {
        Ok(())
    }

    fn detach(&self, _: &InstanceDir, _: Option<&RunId>, _: &Volume) -> Result<(), VolumeError> {
        Ok(())
    }
}
