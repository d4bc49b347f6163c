//! Counters of agents by name, including agents that have left.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Instant;

use serde::Serialize;

use super::counters::RequestCounters;
use crate::model::Name;

/// An agent, over all its sessions since the server started. Its counters never fall, because
/// metrics need that, until the agent is removed.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct AgentInfo {
    /// The name in its identity.
    pub name: Name,
    /// The number of its present sessions.
    pub connected: usize,
    /// The number of all its sessions.
    pub sessions: u64,
    /// The time since it connected first, in seconds.
    pub seconds: u64,
    /// Counters of its requests and of the updates to it.
    #[serde(flatten)]
    pub counters: RequestCounters,
}

/// The agents that have connected since the server started, each with the counters of its ended
/// sessions. If there are too many, the agent that left first is removed. Connected agents are
/// never removed.
#[derive(Debug, Default)]
pub(super) struct Agents {
    agents: BTreeMap<Name, Agent>,
    /// The agents that are not connected, in the order in which they left.
    left: BTreeMap<u64, Name>,
    last_left: u64,
    /// The sum over all ended sessions, including those of removed agents.
    ended: RequestCounters,
}

#[derive(Debug)]
struct Agent {
    connected: usize,
    sessions: u64,
    since: Instant,
    /// The sum over its ended sessions.
    counters: RequestCounters,
    /// Its position in the order of agents that left.
    left: u64,
}

impl Agents {
    /// A session of an agent has begun.
    pub(super) fn session_began(&mut self, name: &Name, now: Instant) {
        let agent = self.agents.entry(name.clone()).or_insert_with(|| Agent {
            connected: 0,
            sessions: 0,
            since: now,
            counters: RequestCounters::default(),
            left: 0,
        });
        agent.connected += 1;
        agent.sessions += 1;
        self.left.remove(&agent.left);
    }

    /// A session of an agent has ended, with these counters.
    pub(super) fn session_ended(&mut self, name: &Name, counters: &RequestCounters, most: usize) {
        let Some(agent) = self.agents.get_mut(name) else {
            return;
        };
        // Separate from the agents, so that the sum does not fall when an agent is removed.
        self.ended.add(counters);
        agent.counters.add(counters);
        // Several connections may use a name at the same time.
        agent.connected = agent.connected.saturating_sub(1);
        if agent.connected == 0 {
            self.last_left += 1;
            agent.left = self.last_left;
            self.left.insert(agent.left, name.clone());
        }
        while self.left.len() > most {
            if let Some((_, name)) = self.left.pop_first() {
                self.agents.remove(&name);
            }
        }
    }

    /// The sum over all ended sessions. It never falls.
    pub(super) fn ended(&self) -> RequestCounters {
        self.ended
    }

    /// At most `most` agents after a name, in the order of their names. `live` has the counters of
    /// present sessions.
    pub(super) fn after(
        &self,
        name: Option<&Name>,
        most: usize,
        live: impl Iterator<Item = (Name, RequestCounters)>,
        now: Instant,
    ) -> Vec<AgentInfo> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        let agents = self.agents.range::<Name, _>((from, Bound::Unbounded)).take(most);
        let info = |(name, agent): (&Name, &Agent)| AgentInfo {
            name: name.clone(),
            connected: agent.connected,
            sessions: agent.sessions,
            seconds: now.saturating_duration_since(agent.since).as_secs(),
            counters: agent.counters,
        };
        let mut found: Vec<AgentInfo> = agents.map(info).collect();
        for (name, counters) in live {
            if let Ok(at) = found.binary_search_by(|info| info.name.cmp(&name)) {
                found[at].counters.add(&counters);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_all_agents_includes_removed_agents() {
        #[expect(clippy::disallowed_methods, reason = "a moment")]
        let now = Instant::now();
        let mut agents = Agents::default();
        let mut asked = RequestCounters::default();
        asked.updates = 3;
        for number in 1..=5_u64 {
            let name = Name::from(&*format!("agent-{number}"));
            agents.session_began(&name, now);
            agents.session_ended(&name, &asked, 2);
            assert_eq!(agents.ended().updates, 3 * number);
        }
        assert_eq!(agents.agents.len(), 2, "the other agents are removed");
    }
}
