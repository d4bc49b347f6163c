//! A controller: a live view of the cluster, and commands whose end is
//! watched for.
//!
//! ```text
//!  start(), stop() … ─▶ order waits ─▶ client ─────────────▶ scheduler
//!                          │ ▲                                  │
//!              settled ◀───┘ │ shown done, failed               │
//!                            │                                  ▼
//!  look(), wait() ◀─── view ◀┴─ "ssntp-control" thread ◀── STATS, events, failures
//!                            │
//!  subscribe() ◀─────────────┘ changes
//! ```
//!
//! A command is accepted once its frame waits to go out; the [`Order`] that
//! it gives then settles when STATS or an event show that it was carried out,
//! or a failure says why not. What shows what is told in [`Orderable`]'s
//! module, `goal`.
//!
//! ```no_run
//! use std::time::Duration;
//! use ssntp::client::ClientConfig;
//! use ssntp_cluster::controller::{Controller, ControllerConfig};
//! use ssntp::payload::{Start, VmType};
//! use ssntp::pki::{Identity, Trust};
//! use uuid::Uuid;
//!
//! let client = ClientConfig::new(Identity::load("controller.pem")?, Trust::load("ca.pem")?)
//!     .address("scheduler.example".parse()?);
//! let controller = Controller::connect(ControllerConfig::new(client))?;
//! let start = Start {
//!     instance_uuid: Uuid::new_v4(),
//!     vm_type: VmType::Process,
//!     command: vec!["sleep".into(), "1000".into()],
//!     ..Start::default()
//! };
//! let order = controller.start_workload(&start.into())?;
//! println!("{}", order.wait(Duration::from_secs(60))?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A new session
//! At its beginning the scheduler tells of every node, and then passes on the
//! last STATS of each, and what its instances have done since; nothing marks
//! the end. [`Controller::wait_complete`] takes it for the end when every node
//! that was told of has sent STATS and nothing new has come for 20 ms, or for
//! 300 ms where some have not (they have only just connected), or there is
//! none at all.
//!
//! # Failures of others
//! Every controller hears of every failure. One that another controller's
//! command brought about settles an order about the same instance here, too.
//!
//! | file | holds |
//! |---|---|
//! | `view/` | [`View`], a value: frames in, changes out |
//! | `change` | [`Change`] |
//! | `failure` | [`Failure`]: why a command failed, in words |
//! | `goal` | what shows that a command was carried out: [`Orderable`], [`Shown`] |
//! | `order` | [`Order`], [`OrderError`], [`CommandError`] |
//! | `stream` | [`OutputStream`]: what an instance writes |
//! | `feed` | the thread, and what it shares with the others |

mod change;
mod failure;
mod feed;
mod goal;
mod order;
mod stream;
mod view;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::Receiver;
use uuid::Uuid;

pub use self::change::Change;
pub use self::failure::Failure;
use self::feed::Shared;
use self::goal::Goal;
pub use self::goal::{Orderable, Shown};
pub use self::order::{CommandError, Order, OrderError};
pub use self::stream::{OutputStream, StreamError, StreamEvent, StreamRequest};
pub use self::view::{Cnci, Ending, FindError, Instance, Node, PublicIp, View};
use ssntp::client::{Client, ClientConfig, ClientError, ClientHandle};
use ssntp::payload::{
    AssignPublicIp, AttachVolume, Delete, DetachVolume, Evacuate, Id, NextState, ReleasePublicIp, Restart,
    Restore, StartPayload, Stop,
};
use ssntp::pki::{Identity, Trust};
use ssntp::proto::{Command, Frame, Trace, TraceParent};
use ssntp_transport::threads;

/// The log target of this module and all below it.
const LOG: &str = "ssntp::controller";

/// What a [`Controller`] is built from.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    client: ClientConfig,
    tracing: bool,
    traceparent: Option<TraceParent>,
    history: usize,
}

impl ControllerConfig {
    /// The defaults for a controller that connects like this.
    pub fn new(client: ClientConfig) -> Self {
        Self {
            client,
            tracing: false,
            traceparent: None,
            history: 1024,
        }
    }

    /// Whether commands are traced, where the scheduler agrees. Default:
    /// false.
    #[must_use]
    pub fn tracing(mut self, tracing: bool) -> Self {
        self.tracing = tracing;
        self
    }

    /// The trace that commands are part of, which their labels say, so that they
    /// are [traced](Self::tracing). Default: none.
    #[must_use]
    pub fn traceparent(mut self, parent: TraceParent) -> Self {
        self.traceparent = Some(parent);
        self.tracing(true)
    }

    /// How many failures, traces and nodes that are gone are remembered.
    /// Default: 1024 of each.
    #[must_use]
    pub fn history(mut self, length: usize) -> Self {
        self.history = length;
        self
    }
}

/// A running controller.
///
/// # Threads
/// It owns a client with its threads, and one thread that feeds the view. `Send`
/// and `Sync`. Sending a command blocks only while the session's queue is full;
/// the waits end at once when the controller is closed. [`close`](Self::close),
/// or dropping it, ends all threads.
#[derive(Debug)]
pub struct Controller {
    client: Client,
    tracing: bool,
    traceparent: Option<TraceParent>,
    shared: Arc<Shared>,
    feeder: Mutex<Option<JoinHandle<()>>>,
}

impl Controller {
    /// Starts a controller and blocks until its first session stands.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect(config: ControllerConfig) -> Result<Self, ClientError> {
        let controller = Self::start(config)?;
        controller.client.handle().wait_connected(None)?;
        Ok(controller)
    }

    /// Starts a controller, which connects in the background.
    ///
    /// # Errors
    /// As [`Client::start`].
    pub fn start(config: ControllerConfig) -> Result<Self, ClientError> {
        let ControllerConfig {
            client,
            tracing,
            traceparent,
            history,
        } = config;
        let client = Client::start(client.tracing(tracing))?;
        let shared = Arc::new(Shared::new(View::new(history)));
        let (events, handle, fed) = (client.events().clone(), client.handle(), Arc::clone(&shared));
        let feeder = threads::spawn("ssntp-control", move || fed.feed(&events, &handle));
        Ok(Self {
            client,
            tracing,
            traceparent,
            shared,
            feeder: Mutex::new(Some(feeder.map_err(|e| ClientError::Thread(Arc::new(e)))?)),
        })
    }

    /// Looks at the view as it is now. Nothing is taken in meanwhile, so
    /// `look` should not take long; it must not use the controller.
    pub fn look<T>(&self, look: impl FnOnce(&View) -> T) -> T {
        self.shared.look(look)
    }

    /// Waits until `look` finds something in the view, for at most `limit`;
    /// it looks again after each change.
    pub fn wait<T>(&self, limit: Duration, mut look: impl FnMut(&View) -> Option<T>) -> Option<T> {
        let deadline = feed::now() + limit;
        self.shared
            .wait(deadline, |view, _| look(view).ok_or(Duration::MAX))
    }

    /// Waits until the scheduler has told a new session of all that it knows,
    /// for at most `limit`; false when it has not.
    pub fn wait_complete(&self, limit: Duration) -> bool {
        self.shared.wait_complete(feed::now() + limit)
    }

    /// Waits until a session stands, for at most `limit`; false when none
    /// does by then.
    ///
    /// # Errors
    /// Why the controller ended instead.
    pub fn wait_connected(&self, limit: Duration) -> Result<bool, ClientError> {
        self.client.handle().wait_connected(Some(limit))
    }

    /// Every change from now on. At most 16,384 wait to be received; those
    /// that come when so many do are left out, and a [`Change::Missed`] says
    /// how many. The channel is disconnected after [`Change::Ended`].
    pub fn subscribe(&self) -> Receiver<Change> {
        self.shared.subscribe()
    }

    /// Replaces identity and trust, as [`ClientHandle::renew`] does. Orders stay;
    /// streams end where the session is replaced.
    ///
    /// # Errors
    /// As there; nothing has changed then.
    pub fn renew(&self, identity: &Identity, trust: &Trust) -> Result<(), ClientError> {
        self.client.renew(identity, trust)
    }

    /// The client: its UUID, its counters, the server of the session.
    pub fn client(&self) -> ClientHandle {
        self.client.handle()
    }

    /// START: the scheduler picks a node. The documents after the command go
    /// along. Where the instance might be there already, wait for
    /// [`wait_complete`](Self::wait_complete) first: what the scheduler tells
    /// at the beginning of a session shows it as well.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn start_workload(&self, start: &StartPayload) -> Result<Order, CommandError> {
        self.order(start)
    }

    /// STOP an instance on the node that is known to have it.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn stop(&self, instance: Uuid) -> Result<Order, CommandError> {
        self.order(&Stop {
            instance_uuid: instance.into(),
            workload_agent_uuid: self.node_of(instance)?,
            ..Stop::default()
        })
    }

    /// RESTART an instance on the node that is known to have it.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn restart(&self, instance: Uuid) -> Result<Order, CommandError> {
        self.order(&Restart {
            instance_uuid: instance.into(),
            workload_agent_uuid: self.node_of(instance)?,
            ..Restart::default()
        })
    }

    /// DELETE an instance for good, on the node that is known to have it.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn delete(&self, instance: Uuid) -> Result<Order, CommandError> {
        self.order(&Delete {
            instance_uuid: instance.into(),
            workload_agent_uuid: self.node_of(instance)?,
            ..Delete::default()
        })
    }

    /// AttachVolume to an instance on the node that is known to have it.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn attach_volume(&self, instance: Uuid, volume: impl Into<Id>) -> Result<Order, CommandError> {
        self.order(&AttachVolume {
            instance_uuid: instance.into(),
            volume_uuid: volume.into(),
            workload_agent_uuid: self.node_of(instance)?,
        })
    }

    /// DetachVolume from an instance on the node that is known to have it.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn detach_volume(&self, instance: Uuid, volume: impl Into<Id>) -> Result<Order, CommandError> {
        self.order(&DetachVolume {
            instance_uuid: instance.into(),
            volume_uuid: volume.into(),
            workload_agent_uuid: self.node_of(instance)?,
        })
    }

    /// EVACUATE a node. What else [`Evacuate`] can say, [`order`](Self::order)
    /// takes.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn evacuate(&self, node: Uuid, next_state: NextState) -> Result<Order, CommandError> {
        self.order(&Evacuate {
            workload_agent_uuid: node.into(),
            next_state,
            ..Evacuate::default()
        })
    }

    /// Restore a node.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn restore(&self, node: Uuid) -> Result<Order, CommandError> {
        self.order(&Restore {
            workload_agent_uuid: node.into(),
        })
    }

    /// AssignPublicIP.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn assign_public_ip(&self, assign: &AssignPublicIp) -> Result<Order, CommandError> {
        self.order(assign)
    }

    /// ReleasePublicIP.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn release_public_ip(&self, release: &ReleasePublicIp) -> Result<Order, CommandError> {
        self.order(release)
    }

    /// CONFIGURE: replaces the configuration of the cluster, a CONFIGURE
    /// document.
    ///
    /// The scheduler sends a configuration that it has taken up back, and the
    /// order settles. One that does not, as an older one, shows it when the next
    /// session begins.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn configure(&self, configuration: impl Into<Bytes>) -> Result<Order, CommandError> {
        self.send(Frame::with_payload(Command::CONFIGURE, configuration))
    }

    /// Sends any command whose end can be watched for, to whomever it names.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn order<C: Orderable>(&self, command: &C) -> Result<Order, CommandError> {
        self.send(Frame::of(command))
    }

    /// The order waits before the frame goes out, so that no answer can come
    /// too early.
    fn send(&self, mut frame: Frame) -> Result<Order, CommandError> {
        let goal = Goal::of(&frame);
        let label = format!("{} {}", frame.kind(), goal.subject())
            .trim_end()
            .to_owned();
        let (id, settled) = self.shared.watch(goal.clone())?;
        let order = Order {
            id,
            goal,
            label,
            settled,
            shared: Arc::clone(&self.shared),
        };
        if self.tracing {
            frame = frame.traced(match &self.traceparent {
                Some(parent) => Trace::within(&order.label, parent),
                None => Trace::new(&order.label),
            });
        }
        let sent = self.client.send(frame);
        sent.map_err(|e| CommandError::Send(e.fault().clone()))?;
        Ok(order)
    }

    fn node_of(&self, instance: Uuid) -> Result<Id, CommandError> {
        let node = self.look(|view| view.instance(instance).map(|known| known.node));
        node.map(Id::from).ok_or(CommandError::UnknownInstance(instance))
    }

    /// Waits until every command that was sent has left, for at most `limit`;
    /// false where it has not.
    pub fn flush(&self, limit: Duration) -> bool {
        self.client.flush(limit)
    }

    /// Ends the controller and waits for its threads. Every order that still
    /// waits settles with [`OrderError::Ended`]. A second call does nothing.
    pub fn close(&self) {
        self.client.close();
        let mut feeder = self.feeder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(feeder) = feeder.take() {
            // A panic has been logged by the panic hook.
            let _ = feeder.join();
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.close();
    }
}
