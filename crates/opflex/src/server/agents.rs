//! Counters of agents by name, also of agents that have left.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::time::Instant;

use serde::Serialize;

use super::RequestCounters;
use crate::model::Name;

/// An agent, over all its sessions since the server began. Its counters never fall, as
/// metrics need it, until the agent is forgotten.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct AgentInfo {
    /// The name that it sent.
    pub name: Name,
    /// How many sessions it has now.
    pub connected: usize,
    /// How many it began.
    pub sessions: u64,
    /// How many seconds ago it connected for the first time.
    pub seconds: u64,
    /// Counts of its requests and of the updates to it.
    pub counters: RequestCounters,
}

/// The agents that were connected since the server began, each with the counters of its
/// finished sessions. If there are too many, the agent that left first is forgotten; an
/// agent that is connected is kept.
#[derive(Debug, Default)]
pub(super) struct Agents {
    agents: BTreeMap<Name, Agent>,
    /// Those that are not connected, in the order in which they left.
    left: BTreeMap<u64, Name>,
    last_left: u64,
    /// The sum over all finished sessions, also those of forgotten agents.
    over: RequestCounters,
}

#[derive(Debug)]
struct Agent {
    connected: usize,
    sessions: u64,
    since: Instant,
    /// The sum over its finished sessions.
    counters: RequestCounters,
    /// Its place among those that left.
    left: u64,
}

impl Agents {
    /// A session of an agent has begun.
    pub(super) fn came(&mut self, name: &Name, now: Instant) {
        let agent = self.agents.entry(name.clone()).or_insert_with(|| Agent {
            connected: 0,
            sessions: 0,
            since: now,
            counters: RequestCounters::default(),
            left: 0,
        });
        agent.connected += 1;
        agent.sessions += 1;
        // An agent that is connected is never dropped to make room.
        self.left.remove(&agent.left);
    }

    /// A session of an agent has ended, with these counters.
    pub(super) fn left(&mut self, name: &Name, counters: &RequestCounters, most: usize) {
        let Some(agent) = self.agents.get_mut(name) else {
            return;
        };
        // Counted apart from the agents, so that the sum never falls when one is forgotten.
        self.over.add(counters);
        agent.counters.add(counters);
        // Several connections may share a name at a time.
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

    /// The sum over all finished sessions. It never falls.
    pub(super) fn over(&self) -> RequestCounters {
        self.over
    }

    /// At most `most` agents after a name, in the order of their names. `live` has the
    /// counters of the sessions that are connected.
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
        // Looked up by name: each session would otherwise be compared with each agent.
        let places: HashMap<Name, usize> = found
            .iter()
            .enumerate()
            .map(|(at, info)| (info.name.clone(), at))
            .collect();
        for (name, counters) in live {
            if let Some(at) = places.get(&name) {
                found[*at].counters.add(&counters);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_have_asked_for_grows_alone_also_where_agents_are_forgotten() {
        #[expect(clippy::disallowed_methods, reason = "a moment")]
        let now = Instant::now();
        let mut agents = Agents::default();
        let mut asked = RequestCounters::default();
        asked.updates = 3;
        for number in 1..=5_u64 {
            let name = Name::from(&*format!("agent-{number}"));
            agents.came(&name, now);
            agents.left(&name, &asked, 2);
            assert_eq!(agents.over().updates, 3 * number);
        }
        assert_eq!(agents.agents.len(), 2, "the others are forgotten");
    }
}
