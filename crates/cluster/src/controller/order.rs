//! A command that was sent, and waiting for what becomes of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::feed::Shared;
use super::goal::Goal;
use super::{Failure, Shown};
use ssntp::client::ClientError;

/// A command that has been accepted: it was sent, and what becomes of it is
/// watched for. It settles once. Dropping it ends the watching, not the
/// command.
///
/// The loss of the session with the scheduler settles nothing: the command
/// may or may not have gone out before, and the STATS of the next session
/// still show what it did. A START of which they show nothing for 90 s is lost.
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
    /// What the command is about: an instance's or a node's UUID, nothing for
    /// CONFIGURE.
    pub fn subject(&self) -> &str {
        self.goal.subject()
    }

    /// The label of its trace, where the controller traces.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Waits until the command is shown to be carried out.
    ///
    /// # Errors
    /// [`OrderError`]: it failed, nothing was heard of it in time, or the
    /// controller has ended.
    pub fn wait(&self, limit: Duration) -> Result<Shown, OrderError> {
        match self.settled.recv_timeout(limit) {
            Ok(settled) => settled,
            Err(RecvTimeoutError::Timeout) => Err(self.timed_out(limit)),
            // It has been received before.
            Err(RecvTimeoutError::Disconnected) => Err(OrderError::Settled),
        }
    }

    /// What has become of it, if that has shown; given once.
    pub fn poll(&self) -> Option<Result<Shown, OrderError>> {
        self.settled.try_recv().ok()
    }

    /// What comes of it, once: for `select!`.
    pub fn settled(&self) -> &Receiver<Result<Shown, OrderError>> {
        &self.settled
    }

    /// Whether its instance is being started, by a node that still reports: then
    /// it is worth while to wait for longer, since the scheduler will answer.
    pub fn is_progressing(&self) -> bool {
        self.shared.look(|view| self.goal.is_progressing(view))
    }

    /// How far it has come, in words.
    pub fn progress(&self) -> String {
        self.shared.look(|view| self.goal.progress(view))
    }

    /// The error of a wait of that length, for who waits by
    /// [`settled`](Self::settled).
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

/// Why an order was not shown to be carried out.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum OrderError {
    /// It failed, and this is why.
    Failed(Box<Failure>),
    /// Nothing was heard of it in time; it may still come.
    TimedOut {
        /// The command.
        command: ssntp::proto::Command,
        /// How long was waited.
        limit: Duration,
        /// How far it has come, in words.
        progress: String,
    },
    /// The session with the scheduler was lost before it answered, and no node
    /// has shown the instance in the next one.
    Lost(ssntp::proto::Command),
    /// The controller has ended.
    Ended(ClientError),
    /// What became of it was received before.
    Settled,
}

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => failure.fmt(f),
            Self::TimedOut {
                command,
                limit,
                progress,
            } => {
                let seconds = limit.as_secs_f64();
                write!(f, "{command} was not shown to be done in {seconds} s: {progress}")
            }
            Self::Lost(command) => {
                write!(
                    f,
                    "{command} was lost with the scheduler: no node has the instance"
                )
            }
            Self::Ended(reason) => reason.fmt(f),
            Self::Settled => f.write_str("what became of the command was received before"),
        }
    }
}

impl std::error::Error for OrderError {}

/// Why a command was not sent.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CommandError {
    /// No node is known to have the instance. Name the node with
    /// [`Controller::order`](super::Controller::order) to send it anyway.
    UnknownInstance(uuid::Uuid),
    /// So many orders are being waited for already: drop some.
    TooManyOrders(usize),
    /// The client did not take the frame.
    Send(ssntp::client::SendFault),
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownInstance(uuid) => write!(f, "no node is known to have instance {uuid}"),
            Self::TooManyOrders(orders) => write!(f, "{orders} commands are waited for already"),
            Self::Send(fault) => write!(f, "the command is not sent: {fault}"),
        }
    }
}

impl std::error::Error for CommandError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Send(fault) => Some(fault),
            _ => None,
        }
    }
}
