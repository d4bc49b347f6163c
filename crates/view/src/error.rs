//! The errors of commands: not sent, or not shown to be carried out.

use std::time::Duration;

use thiserror::Error;
use uuid::Uuid;

use crate::failure::Failure;
use ssntp::client::{ClientError, SendFault};
use ssntp::proto::Command;

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
    /// payload and use [`Controller::order`](crate::Controller::order).
    #[error("no connected node has instance {0}; a node that is away may have it")]
    UnknownInstance(Uuid),
    /// The limit of orders that wait for their outcome is reached. Drop some of them.
    #[error("{0} commands wait for their outcome already")]
    TooManyOrders(usize),
    /// The client did not accept the frame.
    #[error("the command is not sent: {0}")]
    Send(#[source] SendFault),
}
