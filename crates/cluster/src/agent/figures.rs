//! What an agent knows about itself: one snapshot, for pages that show it.

use std::collections::BTreeMap;

use ssntp::client::ClientFigures;

/// A snapshot of an agent, see [`Agent::figures`](super::Agent::figures). What
/// counts, counts from its start.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AgentFigures {
    /// Its connection.
    pub client: ClientFigures,
    /// How the node is, as it was announced last: `READY`, `FULL`, `OFFLINE`,
    /// `MAINTENANCE`; none before that.
    pub status: Option<&'static str>,
    /// Instances by state: `launching`, `active`, `terminating`, `hung` (killed,
    /// and still there), `stopped`, `removing`.
    pub instances: BTreeMap<&'static str, usize>,
    /// The most of them, all states together.
    pub max_instances: usize,
    /// Each crew of workers, by its name: `work`, `launch`, `remove`, `measure`.
    pub crews: Vec<CrewFigures>,
    /// STATS that were handed to the client.
    pub reports: u64,
    /// Instances that were started by START.
    pub starts: u64,
    /// STARTs that were answered with a failure, by the reason.
    pub failures: BTreeMap<&'static str, u64>,
    /// Instances that were started again by their restart policy.
    pub restarts: u64,
    /// Frames that wait for a session, or for room.
    pub frames_held: usize,
}

/// Some workers.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CrewFigures {
    /// Their name.
    pub name: &'static str,
    /// Threads.
    pub threads: usize,
    /// The most of them.
    pub max_threads: usize,
    /// Jobs under way.
    pub busy: usize,
    /// Instances whose next job waits for one of them.
    pub waiting: usize,
}
