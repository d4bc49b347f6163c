//! Snapshots of the figures of an agent, for metrics and pages.

use std::collections::BTreeMap;

use serde::Serialize;
use ssntp::client::ClientFigures;

/// A snapshot of an agent, see [`Agent::figures`](super::Agent::figures). Counters start
/// at zero with the agent.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct AgentFigures {
    /// The figures of the client.
    #[serde(skip)]
    pub client: ClientFigures,
    /// The node's status that was announced last: `READY`, `FULL`, `OFFLINE` or
    /// `MAINTENANCE`; `None` before the first one.
    pub status: Option<&'static str>,
    /// Instances by state: `launching`, `active`, `terminating`, `hung` (killed,
    /// and still there), `exited`, `removing`.
    pub instances: BTreeMap<&'static str, usize>,
    /// The node's limits.
    pub limits: AgentLimits,
    /// Each crew of workers, by its name: `work`, `launch`, `remove`, `measure`.
    pub crews: Vec<CrewFigures>,
    /// The number of STATS that were handed to the client.
    pub reports: u64,
    /// The number of instances that were started by START.
    pub starts: u64,
    /// The number of STARTs that were answered with a failure, by the reason.
    pub failures: BTreeMap<&'static str, u64>,
    /// The number of restarts by the restart policy of an instance.
    pub restarts: u64,
    /// The number of records of instances, and of the node, that could not be written to the state directory.
    pub unsaved: usize,
    /// The number of frames that wait for a session, or for room in the client's queue.
    pub frames_held: usize,
    /// The number of tunnels of tenants' networks.
    pub tunnels: usize,
    /// The keys of the tunnels that are down.
    pub tunnels_down: Vec<u32>,
    /// The number of faults of tenants' networks that the last measurement has found. The log names them.
    pub network_faults: usize,
}

/// The limits of a node.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct AgentLimits {
    /// The maximum number of instances, all states together.
    pub instances: usize,
}

/// A crew of workers.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct CrewFigures {
    /// The name of the crew.
    pub name: &'static str,
    /// The number of threads.
    pub threads: usize,
    /// The number of jobs under way.
    pub busy: usize,
    /// The number of instances whose next job waits for a thread of this crew.
    pub waiting: usize,
}
