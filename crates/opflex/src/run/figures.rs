//! A snapshot of a server, for its pages.

use super::super::server::{AgentInfo, RequestCounters, SessionInfo};
use ssntp_transport::{BudgetFigures, DispatcherFigures};

/// A snapshot of an OpFlex server, see
/// [`ServerHandle::figures`](super::ServerHandle::figures).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerFigures {
    /// The clients, in the order in which they connected.
    pub sessions: Vec<SessionInfo>,
    /// The agents that have sent a name, including those that have left, with the counters of
    /// all their sessions.
    pub agents: Vec<AgentInfo>,
    /// The number of these agents.
    pub known_agents: usize,
    /// The counters of all agents together, including agents that the server has removed.
    pub requests: RequestCounters,
    /// The most clients.
    pub max_sessions: usize,
    /// The number of handshakes under way.
    pub handshakes: usize,
    /// The most handshakes at a time.
    pub max_handshakes: usize,
    /// The number of policy objects.
    pub policy_objects: usize,
    /// The revision of policy.
    pub policy_revision: u64,
    /// The number of endpoint objects.
    pub endpoint_objects: usize,
    /// The number of objects that have a state report.
    pub reports: usize,
    /// The number of series: numbers in reports that are summed up over time.
    pub series: usize,
    /// The load of the dispatcher.
    pub dispatcher: DispatcherFigures,
    /// The memory of all queues to clients.
    pub queues: BudgetFigures,
    /// The memory of all received messages that the dispatcher has not handled.
    pub received: BudgetFigures,
}
