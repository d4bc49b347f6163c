//! A command that was sent, and the wait for its outcome.

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

/// A command that was sent, and whose outcome is watched for. It settles once. Dropping it
/// ends the watching, not the command.
///
/// The loss of the session with the scheduler settles nothing: the command may have gone
/// out before, and the STATS of the next session show its effect. A START that they do not
/// show within 90 s is lost.
///
/// # Threads
/// `Send` and `Sync`. The waits end at once when the controller ends.
#[derive(Debug)]
pub struct Order {
    pub(super) id: u64,
    pub(super) goal: Goal,
    pub(super) label: String,
    pub(super) settled: Receiver<Result<Shown, OrderError>>,
    pub(super) shared: Arc<Shared>,
}

impl Order {
    /// The UUID of the instance or node that the command is about; empty for CONFIGURE.
    pub fn subject(&self) -> &str {
        self.goal.subject()
    }

    /// The label of its trace, if the controller traces.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Waits until the command is shown to be carried out.
    ///
    /// # Errors
    /// [`OrderError`]: it failed, its outcome has not shown in time, or the controller has
    /// ended.
    pub fn wait(&self, limit: Duration) -> Result<Shown, OrderError> {
        match self.settled.recv_timeout(limit) {
            Ok(settled) => settled,
            Err(RecvTimeoutError::Timeout) => Err(self.timed_out(limit)),
            // The outcome was received before.
            Err(RecvTimeoutError::Disconnected) => Err(OrderError::Settled),
        }
    }

    /// The outcome, if it has shown; given once.
    pub fn poll(&self) -> Option<Result<Shown, OrderError>> {
        self.settled.try_recv().ok()
    }

    /// The outcome, given once, for `select!`.
    pub fn settled(&self) -> &Receiver<Result<Shown, OrderError>> {
        &self.settled
    }

    /// Whether its instance is being started by a node that still reports. Then it is worth
    /// waiting longer, because the scheduler will answer.
    pub fn is_progressing(&self) -> bool {
        self.shared.look(|view| self.goal.is_progressing(view))
    }

    /// How far it has come, in words.
    pub fn progress(&self) -> String {
        self.shared.look(|view| self.goal.progress(view))
    }

    /// The error of a wait of that length, for callers that wait on
    /// [`settled`](Self::settled).
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

/// Why an order was not shown to be carried out.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum OrderError {
    /// The command failed.
    #[error("{0}")]
    Failed(Box<Failure>),
    /// The outcome has not shown in time; it may still come.
    #[error("{command} was not shown to be done in {} s: {progress}", limit.as_secs_f64())]
    TimedOut {
        /// The command.
        command: Command,
        /// The length of the wait.
        limit: Duration,
        /// How far it has come, in words.
        progress: String,
    },
    /// The session with the scheduler was lost before it answered, and no node has shown
    /// the instance since.
    #[error("{0} was lost with the scheduler: no node has the instance")]
    Lost(Command),
    /// The controller has ended.
    #[error("{0}")]
    Ended(ClientError),
    /// The outcome was received before.
    #[error("the outcome of this command was received before")]
    Settled,
}

/// Why a command was not sent.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CommandError {
    /// No node is known to have the instance. Name the node with
    /// [`Controller::order`](super::Controller::order) to send it anyway.
    #[error("no node is known to have instance {0}")]
    UnknownInstance(Uuid),
    /// As many orders are waited for as are allowed; drop some.
    #[error("{0} commands wait for their outcome already")]
    TooManyOrders(usize),
    /// The client did not take the frame.
    #[error("the command is not sent: {0}")]
    Send(#[source] SendFault),
}
