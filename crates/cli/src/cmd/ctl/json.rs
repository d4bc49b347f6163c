//! The JSON of lists, commands and events: one value a line.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use ssntp::payload::{BanEntry, Servers, SessionEntry};
use ssntp_payload::{FrameTrace, timestamp};
use ssntp_transport::nanoseconds;
use ssntp_view::{Change, Cnci, Ending, Failure, Instance, Node, OrderError, Shown, View};

use crate::cmd::roles;

pub(super) fn time(at: SystemTime) -> String {
    timestamp::format(nanoseconds(at))
}

pub(super) fn node(node: &Node) -> Value {
    let stats = &node.stats;
    let types = [(node.compute, "compute_node"), (node.network, "network_node")];
    let types: Vec<_> = types.iter().filter(|(is, _)| *is).map(|(_, name)| name).collect();
    let networks = stats.networks.iter().map(|n| json!({"ip": n.ip, "mac": n.mac}));
    let networks: Vec<_> = networks.collect();
    json!({
        "uuid": node.uuid, "types": types, "connected": node.connected, "since": time(node.since),
        "status": node.status.as_str(), "seen": node.seen.map(time), "hostname": stats.hostname,
        "mem_total_mb": stats.mem_total_mb, "mem_available_mb": stats.mem_available_mb,
        "disk_total_mb": stats.disk_total_mb, "disk_available_mb": stats.disk_available_mb,
        "load": stats.load, "cpus_online": stats.cpus_online, "networks": networks, "labels": stats.labels,
        "instances": node.instances, "foreign": stats.foreign,
    })
}

pub(super) fn instance(view: &View, instance: &Instance) -> Value {
    let stats = &instance.stats;
    let node = view.node(instance.node);
    let volumes: Vec<_> = stats.volumes.iter().map(|volume| volume.as_str()).collect();
    json!({
        "uuid": instance.uuid, "state": instance.state.as_str(), "since": time(instance.since),
        "node": instance.node, "node_connected": node.is_some_and(|node| node.connected),
        "hostname": node.map(|node| &node.stats.hostname),
        "cpu_usage": stats.cpu_usage, "memory_usage_mb": stats.memory_usage_mb,
        "disk_usage_mb": stats.disk_usage_mb, "private_ip": stats.private_ip, "ssh_ip": stats.ssh_ip, "ssh_port": stats.ssh_port,
        "volumes": volumes, "name": stats.name, "labels": stats.labels,
        "started": known(&stats.started), "ended": known(&stats.ended),
        "health": known(stats.health.as_str()), "health_detail": known(&stats.health_detail),
        "end": instance.ending().as_ref().map(end),
    })
}

/// The end of an instance.
pub(super) fn end(ending: &Ending) -> Value {
    json!({
        "exit_code": ending.code, "signal": ending.signal, "signal_name": ending.signal_name(),
        "out_of_memory": ending.out_of_memory, "detail": ending.detail, "last_lines": ending.last_lines, "text": ending.to_string(),
    })
}

/// The text, or null if it is empty, which means that it is unknown.
pub(super) fn known(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

pub(super) fn cnci(cnci: &Cnci) -> Value {
    let public_ips = cnci.public_ips.iter().map(|(public_ip, to)| {
        json!({"public_ip": public_ip, "instance": to.instance_uuid, "private_ip": to.private_ip})
    });
    let public_ips: Vec<_> = public_ips.collect();
    json!({
        "uuid": cnci.uuid, "tenant": cnci.tenant.as_str(), "ip": cnci.ip, "mac": cnci.mac,
        "since": cnci.since.map(time), "public_ips": public_ips,
    })
}

/// A session; `at` is the time of the list.
pub(super) fn session(session: &SessionEntry, at: SystemTime) -> Value {
    json!({
        "number": session.number, "uuid": session.uuid.as_str(),
        "roles": roles(&session.roles), "address": session.address,
        "since": ago(at, session.age_s), "heard": ago(at, session.idle_s),
        "serial": session.serial, "subject": session.subject, "issuer": session.issuer,
        "bound": session.bound,
        "frames_received": session.frames_received, "bytes_received": session.bytes_received,
        "frames_sent": session.frames_sent, "bytes_sent": session.bytes_sent,
        "frames_waiting": session.frames_waiting, "bytes_waiting": session.bytes_waiting,
        "frames_dropped": session.frames_dropped,
    })
}

/// The servers; `at` is the time of the list.
pub(super) fn servers(servers: &Servers, at: SystemTime) -> Value {
    let entries = servers.entries.iter().map(|one| {
        json!({
            "uuid": known(one.uuid.as_str()), "address": known(&one.address),
            "roles": roles(&one.roles),
            "version": known(&one.version), "state": one.state.as_str(), "detail": known(&one.detail),
            "leads": !one.uuid.is_empty() && one.uuid == servers.leader,
            "since": ago(at, one.age_s), "sessions": one.sessions,
        })
    });
    json!({
        "leader": known(servers.leader.as_str()), "token": servers.token,
        "lease_age_ms": (servers.lease_age_ms > 0).then_some(servers.lease_age_ms),
        "engine": known(&servers.engine), "servers": entries.collect::<Vec<_>>(),
    })
}

/// A ban; `at` is the time of the list.
pub(super) fn ban(ban: &BanEntry, at: SystemTime) -> Value {
    json!({
        "number": ban.number, "uuid": ban.uuid.as_str(), "by": ban.by.as_str(), "since": ago(at, ban.age_s),
        "until": at.checked_add(Duration::from_secs(ban.left_s)).map(time),
    })
}

fn ago(at: SystemTime, seconds: u64) -> Option<String> {
    at.checked_sub(Duration::from_secs(seconds)).map(time)
}

/// A command with --no-wait that was sent.
pub(super) fn accepted(subject: &str) -> Value {
    json!({"subject": subject, "result": "accepted"})
}

pub(super) fn settled(subject: &str, settled: &Result<Shown, OrderError>) -> Value {
    let result = match settled {
        Ok(_) => "done",
        Err(OrderError::Failed(_)) => "failed",
        Err(OrderError::TimedOut { .. }) => "timed_out",
        Err(OrderError::Lost(_)) => "lost",
        Err(_) => "ended",
    };
    let text = settled
        .as_ref()
        .map_or_else(ToString::to_string, ToString::to_string);
    let mut value = json!({"subject": subject, "result": result, "text": text});
    match settled {
        Ok(Shown::Running { node, .. }) => value["node"] = node.to_string().into(),
        Ok(Shown::Ended { ending, .. } | Shown::Gone { ending, .. }) => {
            value["end"] = ending.as_ref().map(end).into()
        }
        Err(OrderError::Failed(failed)) => {
            value["reason"] = failed.reason.as_str().into();
            value["node"] = failed.subject.node_uuid.as_str().into();
            value["detail"] = failed.subject.detail.as_str().into();
        }
        _ => {}
    }
    value
}

fn failure(failed: &Failure) -> Value {
    let subject = &failed.subject;
    json!({
        "command": failed.command.to_string(), "error": failed.error.to_string(), "reason": failed.reason,
        "words": failed.words(), "node": subject.node_uuid, "instance": subject.instance_uuid,
        "detail": subject.detail, "volume": subject.volume_uuid, "cnci": subject.concentrator_uuid,
        "public_ip": subject.public_ip,
    })
}

fn trace(trace: &FrameTrace) -> Value {
    let nodes = trace.nodes.iter().map(|node| {
        json!({
            "uuid": node.ssntp_node_uuid.as_str(), "role": node.ssntp_role,
            "received_at": node.rx_timestamp, "sent_at": node.tx_timestamp,
        })
    });
    let nodes: Vec<_> = nodes.collect();
    let mut value =
        json!({"label": trace.label, "type": trace.frame_type, "operand": trace.operand, "nodes": nodes});
    if let Some(parent) = trace.traceparent() {
        value["trace_id"] = parent.trace_id().into();
        value["span_id"] = parent.span_id().into();
    }
    value
}

pub(super) fn change(change: &Change, at: SystemTime) -> Value {
    // A change consists of UUIDs and words, so serializing it cannot fail.
    let plain = serde_json::to_value(change).unwrap_or_default();
    let mut value = match change {
        Change::Failed(failed) => failure(failed),
        Change::Traced(traced) => trace(traced),
        _ => plain.clone(),
    };
    match change {
        Change::InstanceState { ending, .. } => value["end"] = ending.as_ref().map(end).into(),
        Change::InstanceStopped { ending, .. } | Change::InstanceDeleted { ending, .. } => {
            value["end"] = end(ending);
        }
        _ => {}
    }
    value["time"] = time(at).into();
    value["event"] = plain["event"].clone();
    value["text"] = change.to_string().into();
    value
}
