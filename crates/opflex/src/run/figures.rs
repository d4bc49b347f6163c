//! Figures of an OpFlex server at one moment, for its HTTP pages.

use super::super::server::{AgentInfo, RequestCounters, SessionInfo};
use ssntp_transport::{BudgetFigures, DispatcherFigures};

/// The figures of an OpFlex server, from
/// [`ServerHandle::figures`](super::ServerHandle::figures).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerFigures {
    /// The sessions of the connected clients, oldest first.
    pub sessions: Vec<SessionInfo>,
    /// The agents that the server knows by name, connected or not, with the sums of the counters of
    /// all their sessions.
    pub agents: Vec<AgentInfo>,
    /// The number of these agents.
    pub known_agents: usize,
    /// The counters of all agents together, including agents that the server has forgotten.
    pub requests: RequestCounters,
    /// The maximum number of clients.
    pub max_sessions: usize,
    /// The number of handshakes in progress.
    pub handshakes: usize,
    /// The maximum number of handshakes in progress.
    pub max_handshakes: usize,
    /// The faults of the policy: it could not be written to its file, or that of the cluster is not in force here.
    pub policy_faults: Vec<String>,
    /// The number of policy objects.
    pub policy_objects: usize,
    /// The revision of the policy, which grows with each change.
    pub policy_revision: u64,
    /// The number of endpoint objects.
    pub endpoint_objects: usize,
    /// The number of objects for which an agent has reported a state.
    pub reports: usize,
    /// The number of series: a series is the sum over time of one number in reports.
    pub series: usize,
    /// The load of the dispatcher.
    pub dispatcher: DispatcherFigures,
    /// The memory of all queues to clients, and its limit.
    pub queues: BudgetFigures,
    /// The memory of the received messages that wait for the dispatcher, and its limit.
    pub received: BudgetFigures,
}
