//! An order: a command that was sent, and the wait for its outcome.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use crate::error::{CommandError, OrderError};
use crate::feed::Shared;
use crate::goal::{Goal, Shown};

/// A command that was sent and that the controller watches. It settles once. Dropping it ends the
/// watch, but not the command.
///
/// The loss of the session with the scheduler settles no order: the scheduler may have received
/// the command, and then the STATS of the next session show its effect. A START that they do not
/// show within 90 s is lost.
///
/// # Threads
/// `Send` and `Sync`. The waits end at once when the controller ends.
#[derive(Debug)]
pub struct Order {
    id: u64,
    goal: Goal,
    settled: Receiver<Result<Shown, OrderError>>,
    shared: Arc<Shared>,
}

impl Order {
    /// Registers an order. That comes before its frame is sent, so that no answer can arrive too
    /// early. Dropping the order removes its registration.
    pub(crate) fn register(goal: Goal, shared: &Arc<Shared>) -> Result<Self, CommandError> {
        let (id, settled) = shared.watch(goal.clone())?;
        let shared = Arc::clone(shared);
        Ok(Self {
            id,
            goal,
            settled,
            shared,
        })
    }

    /// The UUID of the instance or node of the command; empty for CONFIGURE.
    pub fn subject(&self) -> &str {
        self.goal.subject()
    }

    /// Waits until the view shows that the command was carried out, for at most `limit`.
    ///
    /// # Errors
    /// [`OrderError`]: the command failed, the view has not shown its outcome in time, or the
    /// controller has ended.
    pub fn wait(&self, limit: Duration) -> Result<Shown, OrderError> {
        match self.settled.recv_timeout(limit) {
            Ok(settled) => settled,
            Err(RecvTimeoutError::Timeout) => Err(self.timed_out(limit)),
            Err(RecvTimeoutError::Disconnected) => Err(OrderError::Settled),
        }
    }

    /// The outcome, if it is known; it is returned only once.
    pub fn poll(&self) -> Option<Result<Shown, OrderError>> {
        self.settled.try_recv().ok()
    }

    /// The channel that receives the one outcome, for `select!`.
    pub fn settled(&self) -> &Receiver<Result<Shown, OrderError>> {
        &self.settled
    }

    /// True if a node that still reports is starting the instance. Then a longer wait makes sense,
    /// because the scheduler will answer.
    pub fn is_progressing(&self) -> bool {
        self.shared.look(|view| self.goal.is_progressing(view))
    }

    /// The progress of the command, in words.
    pub fn progress(&self) -> String {
        self.shared.look(|view| self.goal.progress(view))
    }

    /// The error of a wait of length `limit`, for callers that wait on [`settled`](Self::settled).
    pub fn timed_out(&self, limit: Duration) -> OrderError {
        OrderError::TimedOut {
            command: self.goal.command(),
            limit,
            progress: self.progress(),
        }
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        self.shared.forget(self.id);
    }
}
