//! The running controller: a thread that runs the reconciler between the database and the scheduler.
//!
//! ```text
//!  Handle::request ── calls, 64 ──▶┌──────────────────┐── commit, waits ──▶ ssntp-store
//!                                  │ ssntp-controller │
//!  cluster's Controller ─ changes ▶│      (Core)      │── START, DELETE ──▶ cluster's Controller
//!                                  └───┬──────────────┘
//!                                      │ Snapshot
//!                                      ▼
//!                                   Handle
//! ```
//!
//! The thread owns the reconciler. It waits for calls, changes, timers and commits, but never for the
//! scheduler or a node.
//!
//! | file | holds |
//! |---|---|
//! | `run` | the thread |
//! | `handle` | [`Handle`], [`UserRequest`], [`Snapshot`], [`Health`] |
//! | `seen` | converts the cluster's view for the reconciler and for the history |

mod handle;
mod run;
mod seen;

use std::collections::BTreeMap;
use std::path::PathBuf;

use crossbeam_channel::{Receiver, bounded};
use thiserror::Error;

pub use self::handle::{Handle, Health, Outcome, Snapshot, UserRequest};
use self::run::Run;
use crate::store::{Limits, Store, StoreError};
use ssntp::client::{ClientConfig, ClientError};
use ssntp_transport::threads::{self, Joined};
use ssntp_view::{Controller, ControllerConfig};

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

/// A running controller. Dropping it ends its threads; instances continue to run.
#[derive(Debug)]
pub struct RunningController {
    handle: Handle,
    _thread: Joined,
    ended: Receiver<()>,
}

impl RunningController {
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
            store: None,
        };
        let snapshot = Snapshot {
            revision: store.progress().last,
            state: state.clone(),
            status: BTreeMap::new(),
            health,
        };
        let (handle, received) = Handle::new(controller, store.reading(), snapshot);
        // Nothing is sent over this channel: the end of one side wakes the other.
        let (alive, ended) = bounded(0);
        let run = Run::new(store, state, handle.clone(), changes);
        let _thread = threads::joined("ssntp-controller", move || {
            run.run(&received);
            drop(alive);
        })?;
        Ok(Self {
            handle,
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

impl Drop for RunningController {
    fn drop(&mut self) {
        // The end of the client ends the thread, also if it waits for room in the session's queue.
        self.handle.controller().close();
    }
}
