//! The admin pages of a scheduler, an agent and a concentrator: figures in JSON, and metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use serde_json::json;
use ssntp::client::{ClientFigures, ClientHandle};
use ssntp::server::ServerHandle;
use ssntp_admin::{Metric, Samples, Snapshot, by, counter, gauge, histogram, one};
use ssntp_agent::{Agent, AgentFigures, CrewFigures};
use ssntp_controller::Handle;
use ssntp_controller::model::RolloutState;
use ssntp_controller::reconcile::Status;
use ssntp_engine::Membership;
use ssntp_network::cnci::{Cnci, CnciFigures};
use ssntp_payload::Reason;
use ssntp_scheduler::{EnrolmentFigures, Enrolments, Scheduler, SchedulerFigures};

use super::{Figures, members};

/// The pages of a scheduler. `records` are those of the nodes that have joined, if it has some.
pub(crate) fn of_scheduler(
    server: ServerHandle,
    membership: Weak<Membership>,
    records: Option<Enrolments>,
) -> Figures {
    Box::new(move || {
        let figures = server.figures().map_err(|e| e.to_string())?;
        let mut snapshot = Snapshot::of_server(&figures);
        let figures = Scheduler::figures(&server).map_err(|e| e.to_string())?;
        snapshot.metrics.add(SCHEDULER, &figures);
        snapshot.degraded.extend(figures.faults.clone());
        if let Some(records) = &records {
            snapshot.metrics.add(ENROLMENT, &records.figures());
            snapshot.degraded.extend(records.fault());
        }
        let scheduler = json!({ "master": figures.master, "limits": figures.limits });
        snapshot.show("scheduler", scheduler);
        members::show(&mut snapshot, &membership);
        Ok(snapshot)
    })
}

/// The pages of an agent. They hold a weak reference, so that they do not keep the agent alive.
pub(crate) fn of_agent(agent: &Arc<Agent>) -> Figures {
    let agent = Arc::downgrade(agent);
    Box::new(move || {
        let agent = agent.upgrade().ok_or("the agent is stopping")?;
        let figures = agent.figures().ok_or("the agent does not answer")?;
        let mut snapshot = snapshot_of(&figures.client, &agent.client());
        snapshot.show("status", figures.status);
        snapshot.show("limits", figures.limits);
        let down = figures.tunnels_down.iter();
        snapshot
            .degraded
            .extend(down.map(|key| format!("the tunnel of key {key} is down")));
        if figures.unsaved > 0 {
            snapshot.degraded.push(format!(
                "{} of its records cannot be written: a restart of the agent may undo the last STOP or EVACUATE",
                figures.unsaved
            ));
        }
        snapshot.metrics.add(AGENT, &figures);
        Ok(snapshot)
    })
}

/// The pages of a concentrator (CNCI). They hold a weak reference, so that they do not keep it alive.
pub(crate) fn of_cnci(cnci: &Arc<Cnci>) -> Figures {
    let cnci = Arc::downgrade(cnci);
    Box::new(move || {
        let cnci = cnci.upgrade().ok_or("the concentrator is stopping")?;
        let figures = cnci.figures().ok_or("the concentrator does not answer")?;
        let mut snapshot = snapshot_of(&figures.client, &cnci.client());
        snapshot.metrics.add(CNCI, &figures);
        Ok(snapshot)
    })
}

/// The pages of a controller with a database.
pub(crate) fn of_controller(handle: Handle) -> Figures {
    Box::new(move || {
        let client = handle.controller().client();
        let mut snapshot = snapshot_of(&client.figures(), &client);
        snapshot.metrics.add(CONTROLLER, &handle);
        Ok(snapshot)
    })
}

fn snapshot_of(figures: &ClientFigures, client: &ClientHandle) -> Snapshot {
    let mut snapshot = Snapshot::of_client(figures);
    snapshot.show("uuid", client.uuid());
    snapshot.show("roles", client.role().names());
    snapshot
}

#[rustfmt::skip] // A table: one row a metric.
const SCHEDULER: &[Metric<SchedulerFigures>] = &[
    gauge("ssntp_scheduler_nodes", "Connected nodes by status.", |f| by("status", f.nodes.clone())),
    gauge("ssntp_scheduler_instances", "Instances by state.", |f| by("state", f.instances.clone())),
    counter("ssntp_scheduler_starts_received_total", "STARTs received, and those that moves of instances cause.",
        |f| one(f.starts.received)),
    counter("ssntp_scheduler_starts_given_total", "STARTs that were sent to a node.", |f| one(f.starts.given)),
    counter("ssntp_scheduler_starts_total", "STARTs by outcome, started or failed, and by the reason of the failure.",
        |f| outcomes(f.starts.started, &f.starts.failed)),
    histogram("ssntp_scheduler_start_seconds",
        "Time of STARTs from their arrival until STATS listed the instance, or until they failed.",
        |f| by("outcome", [("started", f.starts.start_time), ("failed", f.starts.failure_time)])),
    gauge("ssntp_scheduler_held_starts", "STARTs that wait for a READY.", |f| one(f.starts.held)),
    gauge("ssntp_scheduler_held_starts_bytes", "Bytes of the STARTs that wait.", |f| one(f.starts.held_bytes)),
    gauge("ssntp_scheduler_held_starts_limit", "The maximum number of STARTs that wait.", |f| one(f.limits.held_starts)),
    gauge("ssntp_scheduler_starts_in_flight", "STARTs that wait for the answer of their node.",
        |f| one(f.starts.in_flight)),
    gauge("ssntp_scheduler_starts_in_flight_limit", "The maximum number of STARTs that wait for the answer of their node.",
        |f| one(f.limits.starts_in_flight)),
    gauge("ssntp_scheduler_kept_bytes", "Bytes of frames that are kept for the next leader, or wait until there is a leader.",
        |f| one(f.kept_bytes)),
    gauge("ssntp_scheduler_streams", "Log streams that are open.", |f| one(f.streams)),
    gauge("ssntp_scheduler_moving_instances", "Instances that are being moved.", |f| one(f.moving)),
    gauge("ssntp_scheduler_controllers", "Controllers that are connected.", |f| one(f.controllers)),
    gauge("ssntp_scheduler_unclaimed_addresses", "Addresses of tenants whose instances neither a node nor a START has.",
        |f| one(f.unclaimed_addresses)),
    gauge("ssntp_scheduler_concentrators", "Concentrators that have announced themselves.", |f| one(f.concentrators)),
    counter("ssntp_scheduler_streams_opened_total", "Log streams that were opened.", |f| one(f.streams_opened)),
    counter("ssntp_scheduler_moved_instances_total", "Instances whose START was sent to another node.",
        |f| one(f.moved)),
    counter("ssntp_scheduler_foreign_reports_total",
        "Reports of agents about nodes or instances of other agents.", |f| one(f.foreign_reports)),
    counter("ssntp_scheduler_invalid_frames_total", "InvalidFrameType frames that the scheduler has received.",
        |f| one(f.invalid_frames)),
];

#[rustfmt::skip]
const ENROLMENT: &[Metric<EnrolmentFigures>] = &[
    gauge("ssntp_tokens", "Tokens to join with that have not ended.", |f| one(f.tokens)),
    gauge("ssntp_node_certificates", "Certificates of nodes that have joined, by state.",
        |f| by("state", f.certificates.clone())),
    counter("ssntp_token_commands_total",
        "Tokens that operators have added or removed, nodes that they have revoked, and refusals of these, by result.",
        commands),
];

/// Each action has a series from the start, because `increase()` of Prometheus does not count the first event of a
/// series that begins with it.
fn commands(figures: &EnrolmentFigures) -> Samples {
    let mut all: BTreeMap<_, _> = ["add", "remove", "revoke"]
        .map(|action| ((action, "done".to_owned()), 0))
        .into();
    all.extend(figures.commands.clone());
    let labels = |(action, result): (&str, String)| vec![("action", action.to_owned()), ("result", result)];
    all.into_iter()
        .map(|(key, count)| (labels(key), count.into()))
        .collect()
}

// The agent has a series for each status and each state at all times, because Prometheus does not take an
// absent series for 0.
const STATUSES: [&str; 4] = ["READY", "FULL", "OFFLINE", "MAINTENANCE"];
const STATES: [&str; 6] = ["launching", "active", "terminating", "hung", "exited", "removing"];

#[rustfmt::skip]
const AGENT: &[Metric<AgentFigures>] = &[
    gauge("ssntp_agent_status", "1 for the status that the node announced last, and 0 for each other status.",
        |f| by("status", STATUSES.map(|status| (status, f.status == Some(status))))),
    gauge("ssntp_agent_instances", "Instances by state.",
        |f| by("state", STATES.map(|state| (state, f.instances.get(state).copied().unwrap_or(0))))),
    gauge("ssntp_agent_instances_limit", "The maximum number of instances of all states together.", |f| one(f.limits.instances)),
    gauge("ssntp_agent_worker_threads", "Threads by crew. A crew is a pool of workers.", |f| by_crew(f, |crew| crew.threads)),
    gauge("ssntp_agent_jobs", "Jobs in progress by crew.", |f| by_crew(f, |crew| crew.busy)),
    gauge("ssntp_agent_waiting_jobs", "Instances whose next job waits for a free worker, by crew.",
        |f| by_crew(f, |crew| crew.waiting)),
    counter("ssntp_agent_reports_total", "STATS frames that were sent.", |f| one(f.reports)),
    counter("ssntp_agent_restarts_total", "Instances that were started again.", |f| one(f.restarts)),
    counter("ssntp_agent_starts_total", "STARTs by outcome, started or failed, and by the reason of the failure.",
        |f| outcomes(f.starts, &f.failures)),
    gauge("ssntp_agent_tunnels", "Tunnels of tenants' networks.", |f| one(f.tunnels)),
    gauge("ssntp_agent_tunnels_down", "Tunnels of tenants' networks that carry no packets.", |f| one(f.tunnels_down.len())),
    gauge("ssntp_agent_network_faults", "Faults of tenants' networks at the last measurement.", |f| one(f.network_faults)),
    gauge("ssntp_agent_unsaved_records", "Records of instances and of the node that could not be written.", |f| one(f.unsaved)),
    gauge("ssntp_agent_held_frames", "Frames that wait for a session or for room in its queue.", |f| one(f.frames_held)),
];

#[rustfmt::skip]
const CONTROLLER: &[Metric<Handle>] = &[
    gauge("ssntp_workload_wanted", "Instances that are to run.",
        |f| by_workload(f, |status| status.wanted.saturating_sub(status.done))),
    gauge("ssntp_workload_running", "Instances that run.", |f| by_workload(f, |status| status.running)),
    gauge("ssntp_workload_healthy", "Instances that run and are healthy.", |f| by_workload(f, |status| status.healthy)),
    gauge("ssntp_workload_restarts", "Restarts, by their nodes, of the instances that are there now.", restarts),
    gauge("ssntp_workload_rollout", "1 for the present state of the roll-out, and 0 for each other state.", rollouts),
];

fn by_workload(handle: &Handle, count: fn(&Status) -> u32) -> Samples {
    let kept = handle.snapshot();
    by(
        "workload",
        kept.status
            .iter()
            .map(|(name, status)| (name, u64::from(count(status)))),
    )
}

fn restarts(handle: &Handle) -> Samples {
    let kept = handle.snapshot();
    let mut restarts: BTreeMap<&str, u64> = kept
        .state
        .workloads
        .keys()
        .map(|name| (name.as_str(), 0))
        .collect();
    handle.controller().look(|view| {
        for instance in kept.state.instances.values() {
            let seen = view.instance(instance.uuid).map_or(0, |seen| seen.stats.restarts);
            if let Some(sum) = restarts.get_mut(instance.workload.as_str()) {
                *sum += u64::try_from(seen).unwrap_or(0);
            }
        }
    });
    by("workload", restarts)
}

fn rollouts(handle: &Handle) -> Samples {
    const STATES: [(&str, RolloutState); 4] = [
        ("steady", RolloutState::Steady),
        ("rolling", RolloutState::Rolling),
        ("paused", RolloutState::Paused),
        ("back", RolloutState::Back),
    ];
    let kept = handle.snapshot();
    let each = kept.state.workloads.values().flat_map(|workload| {
        STATES.map(|(word, state)| {
            let labels = vec![("workload", workload.name.clone()), ("state", word.to_owned())];
            (labels, (workload.rollout.state == state).into())
        })
    });
    each.collect()
}

#[rustfmt::skip]
const CNCI: &[Metric<CnciFigures>] = &[
    gauge("ssntp_cnci_tunnels", "Tunnels to nodes.", |f| one(f.tunnels)),
    gauge("ssntp_cnci_peers", "The other concentrators of the tenant.", |f| one(f.peers)),
    gauge("ssntp_cnci_public_ips", "Public addresses that are assigned.", |f| one(f.public_ips)),
    gauge("ssntp_cnci_held_frames", "Answers that wait for a session or for room in its queue.", |f| one(f.frames_held)),
];

/// The number of STARTs that succeeded, and of those that failed by each reason. Each reason of the
/// protocol has a series from the start, because `increase()` does not count the event with which
/// a series begins.
fn outcomes(started: u64, failed: &BTreeMap<&'static str, u64>) -> Samples {
    let zeros = Reason::OF_START.iter().map(|reason| (reason.as_str(), 0));
    let mut all: BTreeMap<_, _> = zeros.collect();
    all.extend(failed);
    let labels = |outcome: &str, reason: &str| vec![("outcome", outcome.into()), ("reason", reason.into())];
    let failed = all
        .into_iter()
        .map(|(reason, count)| (labels("failed", reason), count.into()));
    std::iter::once((labels("started", ""), started.into()))
        .chain(failed)
        .collect()
}

fn by_crew(figures: &AgentFigures, count: fn(&CrewFigures) -> usize) -> Samples {
    by("crew", figures.crews.iter().map(|crew| (crew.name, count(crew))))
}
