//! The agent's thread: between the client, the state machine and the workers.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use log::{info, warn};
use uuid::Uuid;

use super::control::{Action, Control, Input, Settings};
use super::driver::Driver;
use super::figures::AgentFigures;
use super::policy::Policy;
use super::store::{PASSABLE, Store, make_dirs};
use super::streams::Streams;
use super::worker::Workers;
use crate::network::Network;
use ssntp::Role;
use ssntp::client::{Client, ClientConfig, ClientError, ClientHandle};
use ssntp::pki::{Identity, Trust};
use ssntp::proto::Command;
use ssntp_cluster::client_loop::{ClientLoop, Event, Service, Uplink};
use ssntp_cluster::machine;
use ssntp_payload::NextState;
use ssntp_transport::{now, setters};

/// The default for the most instances of a node.
pub const DEFAULT_MAX_INSTANCES: usize = 4096;
/// The descriptors that an agent keeps for itself: files, the session, streams of logs, and launches
/// under way. Each instance that runs needs one for the connection to its supervisor.
const RESERVED_DESCRIPTORS: u64 = 256;
/// The capacity of the channel for outcomes of jobs and ends of instances. If it is full, workers
/// wait; the agent's thread never waits for workers.
const INPUTS: usize = 256;
/// The capacity of the channel for next states of the machine. If the agent's owner has not received
/// them and the channel is full, further ones are logged and dropped.
const EVACUATIONS: usize = 4;

/// The settings of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    client: ClientConfig,
    volumes: Option<PathBuf>,
    /// The node and the role are set when the client has started.
    settings: Settings,
}

impl AgentConfig {
    /// An agent that connects as this client. Without [`state`](Self::state) and a
    /// [`driver`](Self::driver) it only reports the machine, and refuses STARTs.
    ///
    /// The client's UUID identifies the node, so it has to be the same after a restart: that of the
    /// certificate, a given one, or [`Persistent`](ssntp::client::UuidSource::Persistent).
    pub fn new(client: ClientConfig) -> Self {
        Self {
            client,
            volumes: None,
            settings: Settings {
                max_instances: DEFAULT_MAX_INSTANCES,
                interval: Duration::from_secs(30),
                grace: Duration::from_secs(10),
                ..Settings::default()
            },
        }
    }

    setters! {
        /// The state directory, which contains the instances. Default: none.
        state in settings as Some: impl Into<PathBuf>;

        /// The directory of volumes. Each volume is a directory in it, named by the volume's UUID.
        /// Default: none, and this node has no volumes.
        volumes as Some: impl Into<PathBuf>;
    }

    /// Gives instances the networks of their tenants. Default: none; they use the host's network.
    #[must_use]
    pub fn network(mut self, network: impl Network + 'static) -> Self {
        self.settings.network = Some(Arc::new(network));
        self
    }

    /// Adds a driver. The first driver that accepts a START runs the instance. Default: none.
    #[must_use]
    pub fn driver(mut self, driver: impl Driver + 'static) -> Self {
        self.settings.drivers.push(Arc::new(driver));
        self
    }

    setters! {
        /// The memory for instances, in MB. Default: the free memory of the machine.
        mem_mb in settings as Some: u32;

        /// The disk for instances, in MB. Default: the free space on the file system of the state
        /// directory.
        disk_mb in settings as Some: u32;

        /// The limits of this node, which controllers can't change.
        /// Default: [`Policy::default`], in which nothing runs as root.
        policy in settings: Policy;

        /// The maximum number of instances, stopped ones included. Default: [`DEFAULT_MAX_INSTANCES`].
        max_instances in settings: usize;

        /// The labels of this node, by which STARTs may choose it. Default: none.
        labels in settings: BTreeMap<String, String>;

        /// The interval between STATS. They are also sent soon after an instance changed.
        /// Default: 30 s.
        interval in settings: Duration;

        /// The grace period, after which an instance that was asked to end is killed. Default: 10 s.
        grace in settings: Duration;
    }
}

/// An agent could not be started, or its client ended for good.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The state directory or the directory of volumes can't be used: another agent
    /// uses it, or the system refuses.
    #[error("{}: {_1}", _0.display())]
    State(PathBuf, #[source] io::Error),
    /// The users of instances can't pass this directory on the way to their own directories, so no
    /// instance could be started.
    #[error(
        "{}: users of instances can't pass it to their own directories: open it with chmod o+x, or use \
         another --state, or run instances as the agent's user (policy: users)",
        _0.display()
    )]
    Closed(PathBuf),
    /// The client can't start, or ended for good.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The client's roles are not the roles of an agent.
    #[error("{0} is not the role of an agent")]
    Role(Role),
    /// A thread can't be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// A running agent.
///
/// # Threads
/// An agent owns its thread, the workers, and its client's threads. It is `Send` and `Sync`.
/// [`stop`](Self::stop), or dropping it, ends all threads within two seconds, and logs the number
/// of instances that keep running. The next agent with the same state directory finds them.
#[derive(Debug)]
pub struct Agent {
    inner: ClientLoop<OwnerRequest>,
    evacuated: Receiver<NextState>,
}

/// A request of the agent's owner.
#[derive(Debug)]
enum OwnerRequest {
    ToggleOffline,
    Figures(Sender<AgentFigures>),
}

impl Agent {
    /// Opens the state directory, finds the instances that a former agent left, and connects in the
    /// background.
    ///
    /// # Errors
    /// [`AgentError`]; no thread runs then.
    pub fn start(config: AgentConfig) -> Result<Self, AgentError> {
        let (mut settings, volumes) = (config.settings, config.volumes.as_deref());
        let store = settings.state.as_deref().map(|root| open(root, volumes));
        let store = store.transpose()?.map(Arc::new);
        if let Some(store) = &store
            && !settings.drivers.is_empty()
            && let Some(closed) = settings.policy.closed(store.root())
        {
            // Each START would fail for this reason, so the agent does not start.
            return Err(AgentError::Closed(closed.to_owned()));
        }
        let client = Client::start(config.client)?;
        if !client.role().intersects(Role::AGENT | Role::NETAGENT) {
            return Err(AgentError::Role(client.role()));
        }
        let (evacuations, evacuated) = bounded(EVACUATIONS);
        let (inputs, outcomes) = bounded(INPUTS);
        let (policy, network) = (Arc::clone(&settings.policy), settings.network.clone());
        let workers = Workers::start(store.clone(), policy, network, inputs).map_err(AgentError::Thread)?;
        let streams = Streams::new(client.handle());
        if let Some(most) = ssntp_transport::descriptors() {
            let most = usize::try_from(most.saturating_sub(RESERVED_DESCRIPTORS)).unwrap_or(usize::MAX);
            if most < settings.max_instances {
                warn!("the limit of open files allows no more than {most} instances");
                settings.max_instances = most;
            }
        }
        settings.node = client.uuid();
        settings.role = client.role();
        settings.has_volumes = store.is_some() && volumes.is_some();
        // Instances get the path of the directory without links.
        settings.state = store.as_ref().map(|store| store.root().to_owned());
        let disk = store
            .as_ref()
            .map_or_else(|| PathBuf::from("/"), |store| store.root().to_owned());
        let mut control = Control::new(settings, machine::read(&disk), now());
        if let Some(store) = &store {
            let (node, stored) = store
                .load()
                .map_err(|e| AgentError::State(store.root().to_owned(), e))?;
            // This precedes the first frame, so that a START of an instance of this node is refused.
            control.adopt(now(), node, stored);
        }
        let runner = Runner {
            workers,
            streams,
            control,
            evacuations,
            reports: 0,
            _end: EndNotice(client.uuid()),
        };
        let inner = ClientLoop::start("ssntp-agent", client, runner, outcomes);
        Ok(Self {
            inner: inner.map_err(AgentError::Thread)?,
            evacuated,
        })
    }

    /// The node's UUID.
    pub fn uuid(&self) -> Uuid {
        self.inner.client.uuid()
    }

    /// The client: its counters, the server of the session, the validity of the certificate.
    pub fn client(&self) -> ClientHandle {
        self.inner.client.clone()
    }

    /// Replaces identity and trust, as [`ClientHandle::renew`] does. Instances go on; streams end if
    /// the session is replaced.
    ///
    /// # Errors
    /// Those of [`ClientHandle::renew`]; identity and trust are unchanged then.
    pub fn renew(&self, identity: &Identity, trust: &Trust) -> Result<(), ClientError> {
        self.inner.client.renew(identity, trust)
    }

    /// Takes the node out of service (OFFLINE), or back into service. Does not wait. False if 16
    /// requests wait already, or the agent has ended: then nothing changes.
    #[must_use]
    pub fn toggle_offline(&self) -> bool {
        self.inner.request(OwnerRequest::ToggleOffline)
    }

    /// The agent's figures at one moment; `None` if the agent has ended, 16 requests wait already, or it
    /// does not answer in 5 s.
    pub fn figures(&self) -> Option<AgentFigures> {
        self.inner.ask(OwnerRequest::Figures)
    }

    /// Receives the reason when the client, and the agent with it, has ended for good. The
    /// channel is disconnected afterwards. It is for `select!`.
    pub fn ended(&self) -> &Receiver<ClientError> {
        &self.inner.ended
    }

    /// Receives the next state of the machine from EVACUATE, once the node is evacuated and
    /// MAINTENANCE was sent: `shutdown`, `update`, `reboot`, or an unknown word. For `maintenance` no
    /// message is sent. The agent does not change the state of the machine.
    ///
    /// Each next state is sent once, also if the agent is restarted. Four are kept until they are
    /// received; further ones are logged and dropped.
    pub fn evacuated(&self) -> &Receiver<NextState> {
        &self.evacuated
    }

    /// Ends the agent and waits for its threads. Instances keep running.
    pub fn stop(self) {
        drop(self);
    }
}

fn open(root: &Path, volumes: Option<&Path>) -> Result<Store, AgentError> {
    let at_root = |e| AgentError::State(root.to_owned(), e);
    if let Some(volumes) = volumes {
        let at_volumes = |e| AgentError::State(volumes.to_owned(), e);
        make_dirs(volumes, PASSABLE).map_err(at_volumes)?;
    }
    let store = Store::open(root, volumes).map_err(at_root)?;
    // The agent starts nevertheless, because it has to report and end the instances that run.
    if let Err(e) = store.check_writable() {
        warn!("{}: {e}: no instance can be started", root.display());
    }
    Ok(store)
}

/// The fields are dropped in this order: the workers end before `control` drops the drivers, which
/// the workers use.
struct Runner {
    workers: Workers,
    streams: Streams,
    control: Control,
    evacuations: Sender<NextState>,
    /// The number of STATS that were handed to the client, including those for which it had no room.
    reports: u64,
    _end: EndNotice,
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.control.log_end();
    }
}

/// Logs the end of the agent when it is dropped. It is the last field of [`Runner`], so all workers
/// have ended by then.
struct EndNotice(Uuid);

impl Drop for EndNotice {
    fn drop(&mut self) {
        info!("{}: the agent has ended", self.0);
    }
}

impl Service for Runner {
    type Request = OwnerRequest;
    type Outcome = Input;

    fn handle(&mut self, uplink: &mut Uplink, event: Event<OwnerRequest, Input>) {
        let input = match event {
            Event::Begun => return self.act(uplink),
            Event::Connected => Input::Connected {
                configuration: uplink.client.configuration(),
            },
            Event::Disconnected => Input::Disconnected,
            Event::Frame(frame) => Input::Frame(frame),
            Event::Request(OwnerRequest::ToggleOffline) => Input::ToggleOffline,
            Event::Request(OwnerRequest::Figures(reply)) => {
                let client = uplink.client.handle().figures();
                let figures = self.control.figures(client, self.workers.figures(), self.reports);
                // The owner no longer waits if this took too long.
                let _ = reply.send(figures);
                return;
            }
            Event::Outcome(input) => input,
            Event::Due => Input::Tick,
        };
        self.control.handle(now(), input);
        self.act(uplink);
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.control.next_deadline())
    }
}

impl Runner {
    fn act(&mut self, uplink: &mut Uplink) {
        loop {
            // This is repeated, because a frame that cannot be sent is an input and may cause further
            // actions.
            let actions = self.control.take_actions();
            if actions.is_empty() {
                return;
            }
            let mut unsent = Vec::new();
            for action in actions {
                match action {
                    Action::Job(job) => self.workers.give(job),
                    Action::Stream(order) => {
                        let ended = self.streams.take(order);
                        unsent.extend(ended.and_then(|ended| uplink.send(ended).err()));
                    }
                    Action::Evacuated(next) => {
                        info!("{}: evacuated; next is {next}", uplink.client.uuid());
                        // The agent's thread must not wait for its owner.
                        if self.evacuations.try_send(next).is_err() {
                            warn!(
                                "{}: {EVACUATIONS} results of evacuations wait to be received; this one is dropped",
                                uplink.client.uuid()
                            );
                        }
                    }
                    // A frame must not overtake one before it.
                    Action::Send(frame) if !unsent.is_empty() => unsent.push(frame),
                    Action::Send(frame) => {
                        self.reports += u64::from(frame.kind() == Command::STATS);
                        unsent.extend(uplink.send(frame).err());
                    }
                }
            }
            if !unsent.is_empty() {
                self.control.handle(now(), Input::Unsent(unsent));
            }
        }
    }
}
