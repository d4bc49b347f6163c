//! The running controller: a thread that runs the reconciler between the database and the scheduler.
//!
//! ```text
//!  Handle::apply … ── calls, 64 ──▶┌──────────────────┐── commit, waits ──▶ ssntp-store
//!                                  │ ssntp-controller │
//!  cluster's Controller ─ changes ▶│      (Core)      │── START, DELETE ──▶ cluster's Controller
//!                                  └───┬──────────▲───┘
//!                            Snapshot  │          │ outcomes, 1,024
//!                                      ▼          └──── ssntp-check × 4: TCP connections
//!                                   Handle
//! ```
//!
//! The thread owns the reconciler. It waits for calls, changes, outcomes of checks and timers, and
//! for commits, but never for the scheduler or a node.
//!
//! | file | holds |
//! |---|---|
//! | `run` | the thread |
//! | `seen` | converts the cluster's view for the reconciler and for the history |
//! | `checks` | health checks |

mod checks;
mod run;
mod seen;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use thiserror::Error;

use crate::model::{Spec, State, Write};
use crate::reconcile::{Applied, Core, Refused, RolloutOrder, Status};
use crate::store::{Follow, History, Limits, Reading, Store, StoreError};
use ssntp::client::{ClientConfig, ClientError};
use ssntp_transport::deadline;
use ssntp_transport::threads::{self, Joined};
use ssntp_view::{Controller, ControllerConfig};

/// The maximum number of calls that wait for the thread.
const MOST_CALLS: usize = 64;
/// The time limit of a call. A commit may take long if the disk is busy.
const CALL: Duration = Duration::from_secs(10);

/// The settings of a controller.
#[derive(Debug)]
pub struct Config {
    /// The connection to the scheduler.
    pub client: ClientConfig,
    /// The directory of the database.
    pub store: PathBuf,
    /// The bounds of the database.
    pub limits: Limits,
}

/// The reason why a controller did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The database cannot be opened.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The client cannot be started.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// The health of the controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// True while a session with the scheduler is up.
    pub online: bool,
    /// True once the scheduler has reported all that it knew when the session began. The reconciler
    /// decides nothing before.
    pub told: bool,
    /// True unless the scheduler has answered that another controller is the master.
    pub leads: bool,
    /// The error of the last commit, if it failed. Until a commit succeeds, no START is sent.
    pub store: Result<(), String>,
}

/// The desired state and the status at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The number of the last row of the history that this snapshot includes.
    pub revision: i64,
    /// The desired state.
    pub state: State,
    /// The status of each workload, by its name.
    pub status: BTreeMap<String, Status>,
    /// The health of the controller.
    pub health: Health,
}

/// A running controller. Dropping it ends its threads; instances continue to run.
#[derive(Debug)]
pub struct Daemon {
    handle: Handle,
    stop: Option<Sender<()>>,
    _thread: Joined,
    ended: Receiver<()>,
}

impl Daemon {
    /// Opens the database, and connects to the scheduler in the background. Blocks on the disk.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: Config) -> Result<Self, StartError> {
        let (store, state) = Store::open(&config.store, config.limits)?;
        let (controller, changes) = Controller::start_subscribed(ControllerConfig::new(config.client))?;
        let health = Health {
            online: false,
            told: false,
            leads: true,
            store: Ok(()),
        };
        let snapshot = Snapshot {
            revision: store.last_id(),
            state: state.clone(),
            status: BTreeMap::new(),
            health,
        };
        let (calls, received) = bounded(MOST_CALLS);
        // Nothing is sent over these two channels: the end of one side wakes the other.
        let (stop, stopped) = bounded(0);
        let (alive, ended) = bounded(0);
        let handle = Handle {
            controller: Arc::new(controller),
            reading: store.reading(),
            snapshot: Arc::new(RwLock::new(Arc::new(snapshot))),
            calls,
        };
        let run = run::Run::new(store, state, &handle, changes)?;
        let _thread = threads::joined("ssntp-controller", move || {
            run.run(&received, &stopped);
            drop(alive);
        })?;
        Ok(Self {
            handle,
            stop: Some(stop),
            _thread,
            ended,
        })
    }

    /// The handle, which several threads may use.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// A channel that is closed when the controller ends by itself.
    pub fn ended(&self) -> &Receiver<()> {
        &self.ended
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The thread may be waiting for room in the session's queue. Closing the client ends that.
        self.handle.controller.close();
    }
}

/// An order of a user, which waits for the thread.
struct Call {
    order: Order,
    reply: Sender<Outcome>,
}

/// Checks an order against the state. Returns the outcomes of `apply`, and the changes to write.
type Order = Box<dyn FnOnce(&Core) -> Result<(Vec<Applied>, Vec<Write>), Refused> + Send>;

/// The number of the row of the history with the change, and the outcomes of `apply`.
type Outcome = Result<(i64, Vec<Applied>), Refused>;

/// A handle of a running controller, for any thread. A clone is cheap.
#[derive(Clone, Debug)]
pub struct Handle {
    controller: Arc<Controller>,
    reading: Reading,
    snapshot: Arc<RwLock<Arc<Snapshot>>>,
    calls: Sender<Call>,
}

impl Handle {
    /// The desired state and the status, as of the last change. Does not block.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The view of the cluster, and the connection to it.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Opens a connection that reads the history.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn history(&self) -> Result<History, StoreError> {
        self.reading.history()
    }

    /// Follows the history after the row of this number, or from now on.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn follow(&self, after: Option<i64>) -> Result<Follow, StoreError> {
        self.reading.follow(after)
    }

    /// Creates or changes workloads, all of them or none. With `dry_run` it only reports what would
    /// change. Blocks until the change is on the disk, for at most 10 s.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn apply(&self, specs: Vec<Spec>, dry_run: bool) -> Result<Vec<Applied>, Refused> {
        let order = move |core: &Core| {
            let (applied, writes) = core.apply(specs)?;
            Ok((applied, if dry_run { Vec::new() } else { writes }))
        };
        Ok(self.call(Box::new(order))?.1)
    }

    /// Deletes a workload and its instances. Blocks until the order is on the disk, for at most 10 s,
    /// and returns the number of its row in the history.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn delete(&self, name: &str) -> Result<i64, Refused> {
        let name = name.to_owned();
        Ok(self
            .call(Box::new(move |core| Ok((Vec::new(), core.delete(&name)?))))?
            .0)
    }

    /// Reverts, pauses or resumes a roll-out. Blocks until the order is on the disk, for at most 10 s,
    /// and returns the number of its row in the history.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn rollout(&self, name: &str, order: RolloutOrder) -> Result<i64, Refused> {
        let name = name.to_owned();
        let order = move |core: &Core| Ok((Vec::new(), core.rollout(&name, order)?));
        Ok(self.call(Box::new(order))?.0)
    }

    fn call(&self, order: Order) -> Outcome {
        let missing = |is_late| match is_late {
            true => Refused::Busy,
            false => StoreError::Closed.into(),
        };
        let (reply, answer) = bounded(1);
        // One deadline for both waits, so that the whole call ends in time.
        let end = deadline(CALL);
        let sent = self.calls.send_deadline(Call { order, reply }, end);
        sent.map_err(|e| missing(e.is_timeout()))?;
        answer.recv_deadline(end).map_err(|e| missing(e.is_timeout()))?
    }
}
