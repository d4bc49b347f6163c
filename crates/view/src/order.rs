//! An order: a command that was sent, and the wait for its outcome.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use thiserror::Error;
use uuid::Uuid;

use super::feed::Shared;
use super::goal::Goal;
use super::{Failure, Shown};
use ssntp::client::{ClientError, SendFault};
use ssntp::proto::Command;

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
    pub(super) id: u64,
    pub(super) goal: Goal,
    pub(super) settled: Receiver<Result<Shown, OrderError>>,
    pub(super) shared: Arc<Shared>,
}

impl Order {
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
            command: self.goal.command,
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

/// The reason why the view does not show that an order was carried out.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum OrderError {
    /// The command failed.
    #[error("{0}")]
    Failed(Box<Failure>),
    /// The view has not shown the outcome in time. The command may still be carried out.
    #[error("{command} was not shown to be done in {} s: {progress}", limit.as_secs_f64())]
    TimedOut {
        /// The command.
        command: Command,
        /// The length of the wait.
        limit: Duration,
        /// The progress of the command, in words.
        progress: String,
    },
    /// The session with the scheduler was lost before it answered, and no node has shown
    /// the instance since.
    #[error("{0} was lost with the scheduler: no node has the instance")]
    Lost(Command),
    /// The controller has ended.
    #[error("{0}")]
    Ended(ClientError),
    /// The outcome was received by an earlier call.
    #[error("the outcome of this command was received before")]
    Settled,
}

/// The reason why a command was not sent.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The view does not have the instance. To send the command anyway, name the node in the
    /// payload and use [`Controller::order`](super::Controller::order).
    #[error("no connected node has instance {0}; a node that is away may have it")]
    UnknownInstance(Uuid),
    /// The limit of orders that wait for their outcome is reached. Drop some of them.
    #[error("{0} commands wait for their outcome already")]
    TooManyOrders(usize),
    /// The client did not accept the frame.
    #[error("the command is not sent: {0}")]
    Send(#[source] SendFault),
}
