//! What pages show of an OpFlex server.

use std::cmp::Reverse;

use serde_json::{Value, json};
use uuid::Uuid;

use super::{Metrics, Row, Snapshot};
use ssntp::Role;
use ssntp_opflex::message::Method;
use ssntp_opflex::run::ServerFigures;
use ssntp_opflex::server::{AgentInfo, RequestCounters, SessionInfo};

/// How many agents have series of their own: their names are their own choice.
const AGENTS: usize = 256;
/// What is counted for each of these.
const OF_AGENT: [Method; 3] = [
    Method::PolicyResolve,
    Method::EndpointDeclare,
    Method::StateReport,
];

impl Snapshot {
    /// What pages show of an OpFlex server.
    pub fn of_opflex(figures: &ServerFigures) -> Self {
        let mut snapshot = Self::default();
        if figures.sessions.len() >= figures.max_sessions {
            snapshot.not_ready = Some("it has as many clients as it admits".into());
        }
        snapshot.metrics.add_opflex(figures);
        let limits = json!({
            "sessions": figures.max_sessions,
            "handshakes": figures.max_handshakes,
            "queue_bytes": figures.queues.limit,
            "received_bytes": figures.received.limit,
        });
        snapshot.info.insert("limits".into(), limits);
        snapshot
            .info
            .insert("policy_revision".into(), figures.policy_revision.into());
        let rows = figures.sessions.iter().cloned().map(Shown);
        let mut rows: Vec<_> = rows.map(|row| Box::new(row) as Box<dyn Row>).collect();
        rows.sort_unstable_by_key(|row| row.key());
        snapshot.sessions = rows;
        snapshot
    }
}

#[derive(Debug)]
struct Shown(SessionInfo);

impl Row for Shown {
    fn key(&self) -> u64 {
        self.0.connection.0
    }

    fn uuid(&self) -> Option<Uuid> {
        None
    }

    /// OpFlex has roles of its own.
    fn role(&self) -> Role {
        Role::NONE
    }

    fn to_json(&self) -> Value {
        serde_json::to_value(&self.0).unwrap_or_default()
    }
}

impl Metrics {
    fn add_opflex(&mut self, figures: &ServerFigures) {
        let gauges = [
            (
                "ssntp_opflex_sessions",
                "Clients that are connected.",
                figures.sessions.len(),
            ),
            (
                "ssntp_opflex_sessions_limit",
                "The most clients.",
                figures.max_sessions,
            ),
            (
                "ssntp_opflex_handshakes",
                "Handshakes under way.",
                figures.handshakes,
            ),
            (
                "ssntp_opflex_handshakes_limit",
                "The most handshakes under way.",
                figures.max_handshakes,
            ),
            (
                "ssntp_opflex_policy_objects",
                "Objects of policy.",
                figures.policy_objects,
            ),
            (
                "ssntp_opflex_endpoint_objects",
                "Objects of endpoints.",
                figures.endpoint_objects,
            ),
            (
                "ssntp_opflex_reports",
                "Objects that have a state report.",
                figures.reports,
            ),
            (
                "ssntp_opflex_report_series",
                "Numbers of state reports that are followed over time.",
                figures.series,
            ),
            (
                "ssntp_opflex_agents",
                "Agents that were here, those that have left included.",
                figures.agents.len(),
            ),
            (
                "ssntp_opflex_resolves",
                "Policy resolves in force.",
                figures.sessions.iter().map(|session| session.policies).sum(),
            ),
            (
                "ssntp_opflex_endpoints",
                "Endpoints that are declared.",
                figures.sessions.iter().map(|session| session.endpoints).sum(),
            ),
        ];
        for (name, help, value) in gauges {
            self.gauge(name, help).set(value);
        }
        self.add_requests(&figures.requests, &figures.agents);
        self.add_dispatcher(&figures.dispatcher);
        self.add_budgets(figures.queues, figures.received);
    }

    fn add_requests(&mut self, all: &RequestCounters, agents: &[AgentInfo]) {
        let help = "Requests of all agents, by method, those that were refused included.";
        let mut requests = self.counter("ssntp_opflex_requests_total", help);
        for method in Method::ALL {
            requests.sample(&[("method", method.name())], all.requests(method));
        }
        let help = "Requests of all agents that were answered with an error, by method.";
        let mut refused = self.counter("ssntp_opflex_requests_refused_total", help);
        for method in Method::ALL {
            refused.sample(&[("method", method.name())], all.refused(method));
        }
        let counters = [
            ("ssntp_opflex_updates_total", "Updates sent.", all.updates),
            (
                "ssntp_opflex_update_errors_total",
                "Updates that were answered with an error.",
                all.update_errors,
            ),
            (
                "ssntp_opflex_received_bytes_total",
                "Bytes received of agents.",
                all.bytes_received,
            ),
            (
                "ssntp_opflex_sent_bytes_total",
                "Bytes sent to agents.",
                all.bytes_sent,
            ),
        ];
        for (name, help, value) in counters {
            self.counter(name, help).set(value);
        }
        let help =
            "Resolves, declares and reports of an agent, for 256 agents, those that are connected first.";
        let mut requests = self.counter("ssntp_opflex_agent_requests_total", help);
        let mut agents: Vec<_> = agents.iter().collect();
        agents.sort_by_key(|agent| Reverse(agent.connected > 0));
        for agent in agents.into_iter().take(AGENTS) {
            for method in OF_AGENT {
                let labels = [("agent", agent.name.as_str()), ("method", method.name())];
                requests.sample(&labels, agent.counters.requests(method));
            }
        }
    }
}
