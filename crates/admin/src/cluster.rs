//! What pages show of a scheduler, an agent and a concentrator.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Metrics, Snapshot};
use ssntp_cluster::agent::AgentFigures;
use ssntp_cluster::cnci::CnciFigures;
use ssntp_cluster::scheduler::SchedulerFigures;

impl Snapshot {
    /// What pages show of an agent.
    pub fn of_agent(figures: &AgentFigures) -> Self {
        let mut snapshot = Self::of_client(&figures.client);
        snapshot.info.insert("status".into(), json!(figures.status));
        snapshot.info.insert("limits".into(), json!(figures.limits));
        snapshot.metrics.add_agent(figures);
        snapshot
    }

    /// What pages show of a concentrator.
    pub fn of_cnci(figures: &CnciFigures) -> Self {
        let mut snapshot = Self::of_client(&figures.client);
        let gauges = [
            ("ssntp_cnci_tunnels", "Tunnels to nodes.", figures.tunnels),
            (
                "ssntp_cnci_peers",
                "The tenant's other concentrators.",
                figures.peers,
            ),
            (
                "ssntp_cnci_public_ips",
                "Public addresses that are assigned.",
                figures.public_ips,
            ),
            (
                "ssntp_cnci_held_frames",
                "Answers that wait for a session, or for room.",
                figures.frames_held,
            ),
        ];
        for (name, help, value) in gauges {
            snapshot.metrics.gauge(name, help).set(value);
        }
        snapshot
    }

    /// Adds what a scheduler knows to what pages show of its server.
    pub fn add_scheduler(&mut self, figures: &SchedulerFigures) {
        self.metrics.add_scheduler(figures);
        let scheduler = json!({ "master": figures.master, "limits": {
            "held_starts": figures.starts.max_held, "starts_in_flight": figures.starts.max_in_flight,
        }});
        self.info.insert("scheduler".into(), scheduler);
    }
}

impl Metrics {
    fn add_scheduler(&mut self, figures: &SchedulerFigures) {
        let starts = &figures.starts;
        let help = "Nodes that are connected, by status.";
        self.add_states(
            "ssntp_scheduler_nodes",
            help,
            "status",
            &figures.nodes.by_status(),
        );
        let help = "Instances, by how far they are.";
        self.add_states(
            "ssntp_scheduler_instances",
            help,
            "state",
            &figures.instances.by_state(),
        );
        let help = "STARTs that have come, those of instances that are moved among them.";
        self.counter("ssntp_scheduler_starts_received_total", help)
            .set(starts.received);
        let help = "STARTs that were given to a node.";
        self.counter("ssntp_scheduler_starts_given_total", help)
            .set(starts.given);
        let help = "STARTs by what became of them: started, or the reason of their failure.";
        let mut outcomes = self.counter("ssntp_scheduler_starts_total", help);
        outcomes.sample(&[("outcome", "started")], starts.started);
        for (reason, count) in &starts.failed {
            outcomes.sample(&[("outcome", reason)], *count);
        }
        let help = "How long STARTs took, from their arrival until STATS listed the instance or they failed.";
        self.histogram("ssntp_scheduler_start_seconds", help)
            .sample(&[("outcome", "started")], &starts.start_time)
            .sample(&[("outcome", "failed")], &starts.failure_time);
        let gauges = [
            (
                "ssntp_scheduler_held_starts",
                "STARTs that wait for a READY.",
                starts.held,
            ),
            (
                "ssntp_scheduler_held_starts_bytes",
                "Bytes of the STARTs that wait.",
                starts.held_bytes,
            ),
            (
                "ssntp_scheduler_held_starts_limit",
                "The most STARTs that wait.",
                starts.max_held,
            ),
            (
                "ssntp_scheduler_starts_in_flight",
                "STARTs that wait for the answer of their node.",
                starts.in_flight,
            ),
            (
                "ssntp_scheduler_starts_in_flight_limit",
                "The most STARTs that wait for the answer of their node.",
                starts.max_in_flight,
            ),
            (
                "ssntp_scheduler_streams",
                "Streams that are open.",
                figures.streams,
            ),
            (
                "ssntp_scheduler_moving_instances",
                "Instances that are being moved.",
                figures.moving,
            ),
            (
                "ssntp_scheduler_controllers",
                "Controllers that are connected.",
                figures.controllers,
            ),
            (
                "ssntp_scheduler_concentrators",
                "Concentrators that have announced themselves.",
                figures.concentrators,
            ),
        ];
        for (name, help, value) in gauges {
            self.gauge(name, help).set(value);
        }
        let counters = [
            (
                "ssntp_scheduler_streams_opened_total",
                "Streams that were opened.",
                figures.streams_opened,
            ),
            (
                "ssntp_scheduler_moved_instances_total",
                "Instances whose START was given to another node since.",
                figures.moved,
            ),
            (
                "ssntp_scheduler_foreign_reports_total",
                "What agents have said of what is not theirs.",
                figures.foreign_reports,
            ),
            (
                "ssntp_scheduler_invalid_frames_total",
                "InvalidFrameType that the scheduler was answered with.",
                figures.invalid_frames,
            ),
        ];
        for (name, help, value) in counters {
            self.counter(name, help).set(value);
        }
    }

    fn add_agent(&mut self, figures: &AgentFigures) {
        let help = "How the node is, as it was announced last: 1, and 0 for the others.";
        let mut status = self.gauge("ssntp_agent_status", help);
        for word in ["READY", "FULL", "OFFLINE", "MAINTENANCE"] {
            status.sample(&[("status", word)], figures.status == Some(word));
        }
        let help = "Instances by state.";
        let states = [
            "launching",
            "active",
            "terminating",
            "hung",
            "stopped",
            "removing",
        ];
        let instances = states.map(|state| (state, figures.instances.get(state).copied().unwrap_or(0)));
        self.add_states("ssntp_agent_instances", help, "state", &instances);
        let help = "The most instances, all states together.";
        self.gauge("ssntp_agent_instances_limit", help)
            .set(figures.limits.instances);
        let help = "Threads of a crew of workers.";
        let mut threads = self.gauge("ssntp_agent_worker_threads", help);
        for crew in &figures.crews {
            threads.sample(&[("crew", crew.name)], crew.threads);
        }
        let help = "Jobs under way, by crew.";
        let mut busy = self.gauge("ssntp_agent_jobs", help);
        for crew in &figures.crews {
            busy.sample(&[("crew", crew.name)], crew.busy);
        }
        let help = "Instances whose next job waits for a worker, by crew.";
        let mut waiting = self.gauge("ssntp_agent_waiting_jobs", help);
        for crew in &figures.crews {
            waiting.sample(&[("crew", crew.name)], crew.waiting);
        }
        let counters = [
            (
                "ssntp_agent_reports_total",
                "STATS that were sent.",
                figures.reports,
            ),
            (
                "ssntp_agent_restarts_total",
                "Instances that were started again.",
                figures.restarts,
            ),
        ];
        for (name, help, value) in counters {
            self.counter(name, help).set(value);
        }
        let help = "STARTs by what became of them: started, or the reason of their failure.";
        let mut outcomes: BTreeMap<_, _> = figures.failures.clone();
        outcomes.insert("started", figures.starts);
        self.add_by("ssntp_agent_starts_total", help, "outcome", &outcomes);
        let help = "Frames that wait for a session, or for room.";
        self.gauge("ssntp_agent_held_frames", help)
            .set(figures.frames_held);
    }

    fn add_states(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        counts: &[(&'static str, usize)],
    ) {
        let mut family = self.gauge(name, help);
        for (word, count) in counts {
            family.sample(&[(label, word)], *count);
        }
    }
}
