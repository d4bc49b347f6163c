//! Joining a cluster of several schedulers that share an engine.

use ssntp::server::{CallError, Server};
use ssntp_engine::{EngineError, Membership};

/// A scheduler that has joined a cluster, and its server.
#[derive(Debug)]
pub struct JoinedScheduler {
    /// The server.
    pub server: Server,
    /// The membership. If it is dropped, this scheduler becomes a follower and another one can lead.
    pub membership: Membership,
}

/// The reason why a scheduler could not join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The server could not be started.
    #[error(transparent)]
    Server(#[from] ssntp::server::ServerError),
    /// The engine did not admit it as a member.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The server ended before the scheduler had joined.
    #[error(transparent)]
    Ended(#[from] CallError),
}
