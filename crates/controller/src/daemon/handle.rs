//! The handle of a running controller, and what it tells: the health and a snapshot.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use serde::Serialize;

use crate::model::{Spec, State};
use crate::reconcile::{Applied, Refused, RolloutOrder, Status};
use crate::store::{Reading, StoreError};
use ssntp_transport::{deadline, remaining};
use ssntp_view::Controller;

/// The maximum number of calls that wait for the thread.
const MOST_CALLS: usize = 64;
/// The time limit of a call. A commit may take long if the disk is busy.
const CALL: Duration = Duration::from_secs(10);

/// The health of the controller.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Health {
    /// True while a session with the scheduler is up.
    pub online: bool,
    /// True once the scheduler has reported all that it knew when the session began. The reconciler
    /// decides nothing before.
    pub told: bool,
    /// True unless the scheduler has answered that another controller is the master.
    pub leads: bool,
    /// The error of the last commit, if it failed. Until a commit succeeds, no START is sent.
    pub store: Option<String>,
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

/// A request of a user.
#[derive(Clone, Debug)]
pub enum UserRequest {
    /// Create or change workloads, all of them or none. With `dry_run`, only report what would change.
    Apply {
        /// The new specs.
        specs: Vec<Spec>,
        /// True to write nothing.
        dry_run: bool,
    },
    /// Delete the workload with this name and its instances. A workload that is being deleted already
    /// gets no further row.
    Delete(String),
    /// Revert, pause or resume the roll-out of the workload with this name.
    Rollout(String, RolloutOrder),
    /// Only write into the history that an order was refused: the order, and the reason.
    NoteRefused(String),
}

/// A request that waits for the thread.
pub(super) struct Call {
    /// Who makes the request; empty if that is unknown.
    pub(super) actor: String,
    pub(super) request: UserRequest,
    pub(super) reply: Sender<Outcome>,
}

/// The number of the last row of the history after a request, and the outcomes of
/// [`UserRequest::Apply`], one for each spec.
pub type Outcome = Result<(i64, Vec<Applied>), Refused>;

/// A handle of a running controller, for any thread. A clone is cheap.
#[derive(Clone, Debug)]
pub struct Handle {
    controller: Arc<Controller>,
    reading: Reading,
    snapshot: Arc<RwLock<Arc<Snapshot>>>,
    calls: Sender<Call>,
}

impl Handle {
    /// A handle, and the calls that it sends.
    pub(super) fn new(
        controller: Controller,
        reading: Reading,
        snapshot: Snapshot,
    ) -> (Self, Receiver<Call>) {
        let (calls, received) = bounded(MOST_CALLS);
        let handle = Self {
            controller: Arc::new(controller),
            reading,
            snapshot: Arc::new(RwLock::new(Arc::new(snapshot))),
            calls,
        };
        (handle, received)
    }

    /// Replaces the snapshot.
    pub(super) fn publish(&self, snapshot: Snapshot) {
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }

    /// The desired state and the status, as of the last change. Does not block.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The view of the cluster, and the connection to it.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// A handle for reading the database.
    pub fn reading(&self) -> &Reading {
        &self.reading
    }

    /// Carries out a request. Blocks until the change is on the disk, for at most 10 s. The history
    /// and the log target `ssntp::audit` name `actor`; it is empty if it is unknown.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn request(&self, actor: &str, request: UserRequest) -> Outcome {
        let missing = |is_late| {
            if is_late {
                Refused::Busy
            } else {
                StoreError::Closed.into()
            }
        };
        let (reply, answer) = bounded(1);
        // One deadline for both waits, so that the whole call ends in time.
        let end = deadline(CALL);
        let call = Call {
            actor: actor.to_owned(),
            request,
            reply,
        };
        let sent = self.calls.send_timeout(call, remaining(end));
        sent.map_err(|e| missing(e.is_timeout()))?;
        answer
            .recv_timeout(remaining(end))
            .map_err(|e| missing(e.is_timeout()))?
    }
}
