//! The figures of a server, as one snapshot, for its pages.

use super::super::server::{AgentInfo, RequestCounters, SessionInfo};
use ssntp_transport::{BudgetFigures, DispatcherFigures};

/// A snapshot of an OpFlex server, see
/// [`ServerHandle::figures`](super::ServerHandle::figures).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerFigures {
    /// The clients, in the order in which they connected: what each resolves, has
    /// declared and has asked for.
    pub sessions: Vec<SessionInfo>,
    /// The agents that have sent a name, including those that have left, with the counters of
    /// all their sessions.
    pub agents: Vec<AgentInfo>,
    /// The number of these agents.
    pub known_agents: usize,
    /// The same of all agents together, those included that are forgotten.
    pub requests: RequestCounters,
    /// The most clients.
    pub max_sessions: usize,
    /// Handshakes under way.
    pub handshakes: usize,
    /// The most of them.
    pub max_handshakes: usize,
    /// Objects of policy.
    pub policy_objects: usize,
    /// The number of the last change of policy.
    pub policy_revision: u64,
    /// Objects of endpoints.
    pub endpoint_objects: usize,
    /// Objects that have a state report.
    pub reports: usize,
    /// Numbers of these that are followed over time.
    pub series: usize,
    /// The thread that does everything.
    pub dispatcher: DispatcherFigures,
    /// The memory of all queues to clients.
    pub queues: BudgetFigures,
    /// The memory of all that was received and is not dealt with.
    pub received: BudgetFigures,
}
