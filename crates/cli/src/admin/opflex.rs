//! The pages of an OpFlex server.

use std::collections::BTreeSet;
use std::sync::{Mutex, Weak};

use serde_json::json;
use ssntp::Role;
use ssntp_admin::{Labels, Metric, Row, Samples, Snapshot, by, counter, gauge, one};
use ssntp_engine::Membership;
use ssntp_opflex::message::Method;
use ssntp_opflex::run::{ServerFigures, ServerHandle};
use ssntp_opflex::server::{AgentInfo, SessionInfo};
use ssntp_transport::locked;

use super::{Figures, members};

/// The maximum number of agents with their own series since the start: agents choose their names, and a
/// database of series keeps every name.
const AGENTS: usize = 256;
/// The methods that are counted for each agent.
const OF_AGENT: [Method; 3] = [
    Method::PolicyResolve,
    Method::EndpointDeclare,
    Method::StateReport,
];

/// The pages of an OpFlex server.
pub(crate) fn of_opflex(server: ServerHandle, membership: Weak<Membership>) -> Figures {
    let named = Mutex::new(BTreeSet::new());
    Box::new(move || {
        let mut figures = server.figures().map_err(|e| e.to_string())?;
        let mut named = locked(&named);
        figures
            .agents
            .retain(|agent| has_series(&mut named, agent.name.as_str()));
        drop(named);
        let mut snapshot = Snapshot::default();
        if figures.sessions.len() >= figures.max_sessions {
            snapshot.not_ready = Some("it has the most clients that it admits".into());
        }
        snapshot.degraded.append(&mut figures.policy_faults);
        snapshot.metrics.add(OPFLEX, &figures);
        let (queues, received) = (figures.queues, figures.received);
        snapshot
            .metrics
            .add_dispatcher(&figures.dispatcher, queues, received);
        let limits = json!({
            "sessions": figures.max_sessions,
            "handshakes": figures.max_handshakes,
            "queue_bytes": queues.limit,
            "received_bytes": received.limit,
        });
        snapshot.show("limits", limits);
        members::show(&mut snapshot, &membership);
        snapshot.show("policy_revision", figures.policy_revision);
        snapshot.sessions = figures.sessions.into_iter().map(row).collect();
        snapshot.sessions.sort_unstable_by_key(|row| row.key);
        Ok(snapshot)
    })
}

/// A session on the pages. OpFlex has other roles than SSNTP, and no UUIDs.
fn row(session: SessionInfo) -> Row {
    let key = session.connection.0;
    let show = move || serde_json::to_value(&session).unwrap_or_default();
    Row::new(key, None, Role::NONE, show)
}

#[rustfmt::skip] // A table: one row a metric.
const OPFLEX: &[Metric<ServerFigures>] = &[
    gauge("ssntp_opflex_sessions", "Clients that are connected.", |f| one(f.sessions.len())),
    gauge("ssntp_opflex_sessions_limit", "The maximum number of clients.", |f| one(f.max_sessions)),
    gauge("ssntp_opflex_handshakes", "Handshakes under way.", |f| one(f.handshakes)),
    gauge("ssntp_opflex_handshakes_limit", "The maximum number of handshakes under way.", |f| one(f.max_handshakes)),
    gauge("ssntp_opflex_policy_objects", "Objects of policy.", |f| one(f.policy_objects)),
    gauge("ssntp_opflex_endpoint_objects", "Objects of endpoints.", |f| one(f.endpoint_objects)),
    gauge("ssntp_opflex_reports", "Objects that have a state report.", |f| one(f.reports)),
    gauge("ssntp_opflex_report_series", "Numbers of state reports that are kept over time.", |f| one(f.series)),
    gauge("ssntp_opflex_agents", "Agents that were connected since the start.", |f| one(f.known_agents)),
    gauge("ssntp_opflex_resolves", "Policy resolves in force.",
        |f| one(f.sessions.iter().map(|session| session.policies).sum::<usize>())),
    gauge("ssntp_opflex_endpoints", "Endpoints that are declared.",
        |f| one(f.sessions.iter().map(|session| session.endpoints).sum::<usize>())),
    counter("ssntp_opflex_requests_total", "Requests of all agents, by method, including refused ones.",
        |f| by("method", Method::ALL.map(|(method, name)| (name, f.requests.requests(method))))),
    counter("ssntp_opflex_requests_refused_total",
        "Requests of all agents that were answered with an error, by method.",
        |f| by("method", Method::ALL.map(|(method, name)| (name, f.requests.refused(method))))),
    counter("ssntp_opflex_updates_total", "Updates sent.", |f| one(f.requests.updates)),
    counter("ssntp_opflex_update_errors_total", "Updates that were answered with an error.",
        |f| one(f.requests.update_errors)),
    counter("ssntp_opflex_received_bytes_total", "Bytes received of agents.", |f| one(f.requests.bytes_received)),
    counter("ssntp_opflex_sent_bytes_total", "Bytes sent to agents.", |f| one(f.requests.bytes_sent)),
    counter("ssntp_opflex_agent_requests_total",
        "Resolves, declares and reports of an agent, for the first 256 agents since the start.", by_agent),
];

/// True if an agent is among the first that have series.
fn has_series(named: &mut BTreeSet<String>, name: &str) -> bool {
    named.contains(name) || named.len() < AGENTS && named.insert(name.to_owned())
}

fn by_agent(figures: &ServerFigures) -> Samples {
    let sample = |agent: &AgentInfo, method: Method| {
        let labels = Labels::from([
            ("agent", agent.name.as_str().to_owned()),
            ("method", method.name().to_owned()),
        ]);
        (labels, agent.counters.requests(method).into())
    };
    let samples = |agent| OF_AGENT.map(|method| sample(agent, method));
    figures.agents.iter().flat_map(samples).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_that_change_their_names_add_no_series() {
        let mut named = BTreeSet::new();
        let shown = (0..10_000).filter(|n| has_series(&mut named, &format!("agent-{n}")));
        assert_eq!(shown.count(), AGENTS);
        assert!(has_series(&mut named, "agent-0") && !has_series(&mut named, "agent-9999"));
    }
}
