//! The running controller: the reconciler on a thread of its own, between the database and the
//! scheduler.
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
//! The thread owns the reconciler. It waits for calls, changes, outcomes of checks and the time,
//! and for a commit, but never for the scheduler or a node.
//!
//! | file | holds |
//! |---|---|
//! | `run` | the thread |
//! | `seen` | the cluster's view as the reconciler sees it, and what of it is history |
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

use crate::model::{Spec, State};
use crate::reconcile::{Applied, Refused, RolloutOrder, Status};
use crate::store::{Follow, History, Limits, Reading, Store, StoreError};
use ssntp::client::{ClientConfig, ClientError};
use ssntp_cluster::controller::{Controller, ControllerConfig};
use ssntp_transport::threads::{self, Joined};

/// The most calls that wait for the thread.
const MOST_CALLS: usize = 64;
/// How long a call may take: a commit of a busy disk.
const CALL: Duration = Duration::from_secs(10);

/// How a controller connects, and where it keeps what it knows.
#[derive(Debug)]
pub struct Config {
    /// The connection to the scheduler.
    pub client: ClientConfig,
    /// The directory of the database.
    pub store: PathBuf,
    /// The bounds of the database.
    pub limits: Limits,
}

/// Why a controller did not start.
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

/// How the controller itself does.
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// Whether a session with the scheduler is up.
    pub online: bool,
    /// Whether the scheduler has told this session all that it knows. Nothing is decided before.
    pub told: bool,
    /// Whether this controller may command, as far as is known.
    pub leads: bool,
    /// Whether the last change was written down. If not, nothing is started.
    pub store: Result<(), String>,
}

/// What should be, and how it stands, at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The last row of the history that belongs to it.
    pub revision: i64,
    /// What should be.
    pub state: State,
    /// How each workload does.
    pub status: BTreeMap<String, Status>,
    /// How the controller does.
    pub health: Health,
}

/// A running controller. Dropping it ends its threads; instances go on.
#[derive(Debug)]
pub struct Daemon {
    handle: Handle,
    stop: Option<Sender<()>>,
    _thread: Joined,
    ended: Receiver<()>,
}

impl Daemon {
    /// Opens the database, and connects in the background. Blocks on the disk.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: Config) -> Result<Self, StartError> {
        let (store, state) = Store::open(&config.store, config.limits)?;
        let controller = Arc::new(Controller::start(ControllerConfig::new(config.client))?);
        let health = Health {
            online: false,
            told: false,
            leads: true,
            store: Ok(()),
        };
        let snapshot = Snapshot {
            revision: store.reading().history()?.last_id()?,
            state: state.clone(),
            status: BTreeMap::new(),
            health,
        };
        let (calls, received) = bounded(MOST_CALLS);
        let (stop, stopped) = bounded(0);
        let (alive, ended) = bounded(0);
        let handle = Handle {
            controller,
            reading: store.reading(),
            snapshot: Arc::new(RwLock::new(Arc::new(snapshot))),
            calls,
        };
        let run = run::Run::new(store, state, &handle)?;
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

    /// What may be used by several threads.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Is disconnected when the controller has ended by itself.
    pub fn ended(&self) -> &Receiver<()> {
        &self.ended
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A send that waits for room in the session's queue ends with the client.
        self.handle.controller.close();
    }
}

/// A call of a user.
#[derive(Debug)]
struct Call {
    order: Order,
    reply: Sender<Outcome>,
}

/// The row of the history with the change, and what `apply` has to tell.
type Outcome = Result<(i64, Vec<Applied>), Refused>;

#[derive(Debug)]
enum Order {
    Apply { specs: Vec<Spec>, dry_run: bool },
    Delete(String),
    Rollout(String, RolloutOrder),
}

/// A running controller for its users, from any thread. A clone is cheap.
#[derive(Clone, Debug)]
pub struct Handle {
    controller: Arc<Controller>,
    reading: Reading,
    snapshot: Arc<RwLock<Arc<Snapshot>>>,
    calls: Sender<Call>,
}

impl Handle {
    /// What should be, and how it stands. It is made anew after each change.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The view of the cluster, and the connection to it.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// A connection to the database that reads.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn history(&self) -> Result<History, StoreError> {
        self.reading.history()
    }

    /// The rows of the history behind the one of this number as they come, or those from now on.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn follow(&self, after: Option<i64>) -> Result<Follow, StoreError> {
        self.reading.follow(after)
    }

    /// Workloads are to be as their specs say, all or none. With `dry_run` nothing changes. Waits
    /// until they are on the disk, for 10 s at most.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn apply(&self, specs: Vec<Spec>, dry_run: bool) -> Result<Vec<Applied>, Refused> {
        Ok(self.call(Order::Apply { specs, dry_run })?.1)
    }

    /// A workload and its instances are to go. Waits until that is on the disk, for 10 s at most,
    /// and gives the row of the history.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn delete(&self, name: &str) -> Result<i64, Refused> {
        Ok(self.call(Order::Delete(name.to_owned()))?.0)
    }

    /// A roll-out is to go back, to stop or to go on. Waits until that is on the disk, for 10 s at
    /// most, and gives the row of the history.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn rollout(&self, name: &str, order: RolloutOrder) -> Result<i64, Refused> {
        Ok(self.call(Order::Rollout(name.to_owned(), order))?.0)
    }

    fn call(&self, order: Order) -> Outcome {
        let missing = |is_late| match is_late {
            true => Refused::Busy,
            false => StoreError::Closed.into(),
        };
        let (reply, answer) = bounded(1);
        let sent = self.calls.send_timeout(Call { order, reply }, CALL);
        sent.map_err(|e| missing(e.is_timeout()))?;
        answer.recv_timeout(CALL).map_err(|e| missing(e.is_timeout()))?
    }
}
