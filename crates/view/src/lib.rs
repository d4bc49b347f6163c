//! A controller: a live view of the cluster, and commands whose outcome the controller watches.
//!
//! ```text
//!  start(), stop() … ─▶ order waits ─▶ client ─────────────▶ scheduler
//!                          │ ▲                                  │
//!              settled ◀───┘ │ goal reached, or failed          │
//!                            │                                  ▼
//!  look(), wait() ◀─── view ◀┴─ "ssntp-control" thread ◀── STATS, events, failures
//!                            │
//!  subscribe() ◀─────────────┘ changes
//! ```
//!
//! A command is accepted once its frame is queued. Its [`Order`] settles when STATS or an event
//! show that its goal is reached, or when a failure answers it. The module `goal` has the table of
//! goals.
//!
//! ```no_run
//! use std::time::Duration;
//! use ssntp::client::ClientConfig;
//! use ssntp_view::{Controller, ControllerConfig};
//! use ssntp_payload::{Start, VmType};
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
//! At the beginning of a session the scheduler announces every node, and then sends the last
//! STATS of each and the events of its instances since. SnapshotComplete marks the end:
//! [`Change::SnapshotComplete`], and [`View::has_snapshot`]. [`Controller::wait_complete`] also waits
//! for the first STATS of nodes that have only just connected, until there is no news for 300 ms.
//! With a scheduler that sends no SnapshotComplete it waits for 2 s without news. Several schedulers
//! send NewLeader at the beginning of a session, and then a wait is over only after SnapshotComplete,
//! which there is once a scheduler leads. When another one leads, that is handled like the end of a
//! session and the beginning of another.
//!
//! # Failures of other controllers
//! Every controller receives every failure. Each order has an id, which its failure repeats, so a
//! failure of another controller's command settles no order here. If a peer does not repeat ids,
//! its failures also settle this controller's orders for the same instance.
//!
//! | file | holds |
//! |---|---|
//! | `feed` | the thread, and the state that it shares with the handles |
//! | `order` | [`Order`], a handle of a command that was sent |
//! | `orders` | the table of commands that wait, which settles them |
//! | `goal` | the state that a command brings about: [`Orderable`], [`Shown`] |
//! | `view` | [`View`], a value: frames in, changes out |
//! | `cncis` | the concentrators of a view |
//! | `entities`, `ending` | [`Node`], [`Instance`], [`Cnci`], and [`Ending`], the end of a run |
//! | `find` | finds entities by name, or by the beginning of their UUID |
//! | `bounds` | the bounds for the parts of a frame that are stored |
//! | `change` | [`Change`] |
//! | `failure` | [`Failure`]: the reason why a command failed, in words |
//! | `question` | questions that only the scheduler can answer: [`Controller::ask`] |
//! | `stream` | [`OutputStream`]: the output of an instance |
//! | `subscribers` | the receivers of changes |
//! | `error` | [`OrderError`], [`CommandError`] |

#![deny(missing_docs)]

mod bounds;
mod change;
mod cncis;
mod ending;
mod entities;
mod error;
mod failure;
mod feed;
mod find;
mod goal;
mod order;
mod orders;
mod question;
mod stream;
mod subscribers;
mod view;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::Receiver;
use uuid::Uuid;

pub use self::change::Change;
pub use self::ending::Ending;
pub use self::entities::{Cnci, Instance, Node};
pub use self::error::{CommandError, OrderError};
pub use self::failure::Failure;
use self::feed::Shared;
pub use self::find::FindError;
use self::goal::Goal;
pub use self::goal::{Orderable, Shown};
pub use self::order::Order;
pub use self::question::{AskError, all_pages};
pub use self::stream::{OutputStream, StreamError, StreamEvent, StreamRequest, incomplete};
pub use self::view::View;
use ssntp::client::{Client, ClientConfig, ClientError, ClientHandle};
use ssntp::payload::{Id, Payload};
use ssntp::pki::{Identity, Trust};
use ssntp::proto::{Command, Frame, Trace, TraceParent};
use ssntp_payload::{AttachVolume, Delete, DetachVolume, Restart, Restore, StartPayload, Stop};
use ssntp_transport::threads::{self, Joined};
use ssntp_transport::{deadline, locked, setters};

/// The options of a [`Controller`].
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    client: ClientConfig,
    tracing: bool,
    traceparent: Option<TraceParent>,
}

impl ControllerConfig {
    /// The defaults, for a controller with this client.
    pub fn new(client: ClientConfig) -> Self {
        Self {
            client,
            tracing: false,
            traceparent: None,
        }
    }

    setters! {
        /// True to trace commands, if the scheduler agrees. Default: false.
        tracing: bool;
    }

    /// The trace to which commands belong. It is in their labels, so this turns
    /// [tracing](Self::tracing) on. Default: none.
    #[must_use]
    pub fn traceparent(mut self, parent: TraceParent) -> Self {
        self.traceparent = Some(parent);
        self.tracing(true)
    }
}

/// A running controller.
///
/// # Threads
/// It owns a client with its threads, and one thread that feeds the view. `Send` and `Sync`.
/// Sending a command blocks only while the session's queue is full. All waits end at once when the
/// controller is closed. [`close`](Self::close), or dropping it, ends all threads.
#[derive(Debug)]
pub struct Controller {
    client: Client,
    tracing: bool,
    traceparent: Option<TraceParent>,
    shared: Arc<Shared>,
    feeder: Mutex<Joined>,
}

impl Controller {
    /// Starts a controller and blocks until its first session begins.
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
        Ok(Self::start_subscribed(config)?.0)
    }

    /// As [`start`](Self::start), with a channel as [`subscribe`](Self::subscribe) returns it, which
    /// has all changes from the first session on.
    ///
    /// # Errors
    /// As `start`.
    pub fn start_subscribed(config: ControllerConfig) -> Result<(Self, Receiver<Change>), ClientError> {
        let shared = Arc::new(Shared::new(View::default()));
        let changes = shared.subscribe();
        let client = Client::start(config.client.tracing(config.tracing))?;
        // The thread does not own the `Client`. So dropping the controller ends the client, which
        // ends the events and the thread.
        let (events, handle, fed) = (client.events().clone(), client.handle(), Arc::clone(&shared));
        let feeder = threads::joined("ssntp-control", move || fed.feed(&events, &handle));
        let controller = Self {
            client,
            tracing: config.tracing,
            traceparent: config.traceparent,
            shared,
            feeder: Mutex::new(feeder.map_err(|e| ClientError::Thread(Arc::new(e)))?),
        };
        Ok((controller, changes))
    }

    /// Calls `look` with the present view. It blocks the thread that handles frames, so it should
    /// be short. It must not use the controller, which would be a deadlock.
    pub fn look<T>(&self, look: impl FnOnce(&View) -> T) -> T {
        self.shared.look(look)
    }

    /// Calls `look` with the view now and after each change, until it returns `Some`. Returns `None`
    /// after `limit`.
    pub fn wait<T>(&self, limit: Duration, mut look: impl FnMut(&View) -> Option<T>) -> Option<T> {
        let deadline = deadline(limit);
        self.shared
            .wait(deadline, |view, _| look(view).ok_or(Duration::MAX))
    }

    /// Waits until the snapshot of the session is complete, and each node has sent STATS or there
    /// was no news for 300 ms. Returns false after `limit`.
    pub fn wait_complete(&self, limit: Duration) -> bool {
        self.shared.wait_complete(deadline(limit))
    }

    /// Waits until there is a session, for at most `limit`; false if there is none by then.
    ///
    /// # Errors
    /// The reason of the controller's end, if it has ended.
    pub fn wait_connected(&self, limit: Duration) -> Result<bool, ClientError> {
        self.client.handle().wait_connected(Some(limit))
    }

    /// A channel of all changes from now on. At most 16,384 changes wait in it. Further ones are
    /// dropped, and [`Change::Missed`] has their number. The channel is disconnected when the
    /// controller has ended, after [`Change::Ended`] unless that was dropped.
    pub fn subscribe(&self) -> Receiver<Change> {
        self.shared.subscribe()
    }

    /// Replaces identity and trust, as [`ClientHandle::renew`] does. Orders stay; streams end
    /// if the session is replaced.
    ///
    /// # Errors
    /// Those of [`ClientHandle::renew`]; nothing has changed then.
    pub fn renew(&self, identity: &Identity, trust: &Trust) -> Result<(), ClientError> {
        self.client.renew(identity, trust)
    }

    /// The client: its UUID, its counters, the server of the session.
    pub fn client(&self) -> ClientHandle {
        self.client.handle()
    }

    /// START: the scheduler picks a node. The documents after the command are sent with it. If the
    /// instance may exist already, call [`wait_complete`](Self::wait_complete) first. Otherwise the
    /// first STATS of the session would settle the order.
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

    /// Restore a node.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn restore(&self, node: Uuid) -> Result<Order, CommandError> {
        self.order(&Restore {
            workload_agent_uuid: node.into(),
        })
    }

    /// CONFIGURE: replaces the configuration of the cluster with this document.
    ///
    /// The order settles when the scheduler has adopted the configuration and sends it back. A
    /// scheduler of an older version does not send it back; then the order settles when the next
    /// session begins.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn configure(&self, configuration: impl Into<Bytes>) -> Result<Order, CommandError> {
        self.send(Frame::with_payload(Command::CONFIGURE, configuration))
    }

    /// Sends any command whose effect the view shows, such as EVACUATE or AssignPublicIP.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn order<C: Orderable>(&self, command: &C) -> Result<Order, CommandError> {
        self.send(goal::identified(command))
    }

    /// Opens a stream of an instance's output through the scheduler; see `docs/streams.md`. A
    /// stream ends with its session.
    ///
    /// # Errors
    /// [`CommandError::Send`]. Any other error is the last event of the stream.
    pub fn stream(&self, instance: Uuid, request: StreamRequest) -> Result<OutputStream, CommandError> {
        OutputStream::open(self.client(), &self.shared.streams, instance, request)
    }

    /// Sends a question to the scheduler, and waits for the answer for at most `limit`. `is_answer`
    /// returns false for the answer to another question; it compares the ids.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn ask<Q: Payload, A: Payload>(
        &self,
        question: &Q,
        is_answer: impl Fn(&A) -> bool,
        limit: Duration,
    ) -> Result<A, AskError> {
        question::ask(&self.client, &self.shared.questions, question, is_answer, limit)
    }

    fn send(&self, mut frame: Frame) -> Result<Order, CommandError> {
        let order = Order::register(Goal::of(&frame), &self.shared)?;
        if self.tracing {
            // CONFIGURE has no subject; its label is its name alone.
            let label = format!("{} {}", frame.kind(), order.subject());
            let label = label.trim_end();
            frame = frame.traced(match &self.traceparent {
                Some(parent) => Trace::within(label, parent),
                None => Trace::new(label),
            });
        }
        // If this fails, `order` is dropped, which removes its registration.
        let sent = self.client.send(frame);
        sent.map_err(|e| CommandError::Send(e.fault().clone()))?;
        Ok(order)
    }

    fn node_of(&self, instance: Uuid) -> Result<Id, CommandError> {
        let node = self.look(|view| view.instance(instance).map(|known| known.node));
        node.map(Id::from).ok_or(CommandError::UnknownInstance(instance))
    }

    /// Waits until every command has left the queue, for at most `limit`; false if some have not.
    pub fn flush(&self, limit: Duration) -> bool {
        self.client.flush(limit)
    }

    /// Ends the controller and waits for its threads. Every order that still waits settles with
    /// [`OrderError::Ended`]. A second call has no effect.
    pub fn close(&self) {
        // The end of the client disconnects the events, which ends the feeder.
        self.client.close();
        // Dropping the thread's handle joins it. A second caller waits for the lock until then.
        let mut feeder = locked(&self.feeder);
        drop(std::mem::take(&mut *feeder));
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.close();
    }
}
