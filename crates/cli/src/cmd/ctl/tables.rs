//! The columns of the tables that `ssntp ctl` prints for people.

use std::collections::BTreeMap;

use ssntp::payload::{BanEntry, Id, ServerEntry, Servers, SessionEntry};
use ssntp_payload::{InstanceState, NodeStatus, TenantAddress, TenantEntry, TunnelStats};
use ssntp_view::{Cnci, Instance, Node, View};
use uuid::Uuid;

use crate::cmd::table::{Columns, list};

#[rustfmt::skip] // A table: one row a column.
pub(super) const NODES: Columns<View, Node> = &[
    ("node", |_, node| node.uuid.to_string()),
    ("type", |_, node| or_dash(node.kind().to_owned())),
    ("status", |_, node| node_status(node)),
    ("host", |_, node| host(&node.stats.hostname)),
    ("cpus", |_, node| with_unit(node.stats.cpus_online, "")),
    ("load", |_, node| with_unit(node.stats.load, "")),
    ("memory free", |_, node| share(node.stats.mem_available_mb, node.stats.mem_total_mb)),
    ("disk free", |_, node| share(node.stats.disk_available_mb, node.stats.disk_total_mb)),
    ("instances", |view, node| format!("{} of {} run", running(view, node), node.instances.len())),
];

/// The lines of `describe` about a node, before its instances.
#[rustfmt::skip]
pub(super) const NODE: Columns<View, Node> = &[
    ("host", |_, node| node.stats.hostname.clone()),
    ("labels", |_, node| labels(&node.stats.labels)),
    ("type", |_, node| or_dash(node.kind().to_owned())),
    ("status", |_, node| node_status(node)),
    ("cpus", |_, node| with_unit(node.stats.cpus_online, "")),
    ("load", |_, node| with_unit(node.stats.load, "")),
    ("memory free", |_, node| share(node.stats.mem_available_mb, node.stats.mem_total_mb)),
    ("disk free", |_, node| share(node.stats.disk_available_mb, node.stats.disk_total_mb)),
    ("addresses", |_, node| joined(node.stats.networks.iter().map(|network| network.ip.as_str()))),
];

#[rustfmt::skip]
pub(super) const INSTANCES: Columns<View, Instance> = &[
    ("instance", |_, instance| instance.uuid.to_string()),
    ("name", |_, instance| or_dash(instance.stats.name.to_string())),
    ("state", instance_state),
    ("end", |_, instance| or_dash(end(instance))),
    ("node", |view, instance| view.beginning(instance.node)),
    ("host", |view, instance| host(view.node(instance.node).map_or("", |node| &node.stats.hostname))),
    ("cpu", |_, instance| with_unit(instance.stats.cpu_usage, "%")),
    ("memory", |_, instance| with_unit(instance.stats.memory_usage_mb, " MB")),
    ("disk", |_, instance| with_unit(instance.stats.disk_usage_mb, " MB")),
    ("volumes", |_, instance| joined(instance.stats.volumes.iter().map(|volume| short(volume.as_str())))),
];

/// The lines of `describe` about an instance.
#[rustfmt::skip]
pub(super) const INSTANCE: Columns<View, Instance> = &[
    ("name", |_, instance| instance.stats.name.to_string()),
    ("labels", |_, instance| labels(&instance.stats.labels)),
    ("state", instance_state),
    ("end", |_, instance| end(instance)),
    ("detail", |_, instance| instance.stats.detail.to_string()),
    ("last lines", |_, instance| instance.stats.last_lines.to_string()),
    ("started", |_, instance| instance.stats.started.to_string()),
    ("ended", |_, instance| instance.stats.ended.to_string()),
    ("node", |view, instance| called(view, instance.node)),
    ("cpu", |_, instance| with_unit(instance.stats.cpu_usage, "%")),
    ("memory", |_, instance| with_unit(instance.stats.memory_usage_mb, " MB")),
    ("disk", |_, instance| with_unit(instance.stats.disk_usage_mb, " MB")),
    ("address", |_, instance| instance.stats.private_ip.map(|ip| ip.to_string()).unwrap_or_default()),
    ("ssh", |_, instance| ssh(instance)),
    ("health", |_, instance| instance.stats.health_text()),
    ("volumes", |_, instance| joined(instance.stats.volumes.iter().map(|volume| volume.as_str()))),
];

#[rustfmt::skip]
pub(super) const CNCIS: Columns<View, Cnci> = &[
    ("CNCI", |_, cnci| cnci.uuid.to_string()),
    ("tenant", |_, cnci| cnci.tenant.to_string()),
    ("address", |_, cnci| cnci.ip.clone()),
    ("MAC", |_, cnci| cnci.mac.clone()),
    ("state", |view, cnci| view.instance(cnci.uuid).map_or("-".into(), |own| instance_state(view, own))),
    ("public addresses", |_, cnci| public_ips(cnci)),
];

#[rustfmt::skip]
pub(super) const SESSIONS: Columns<(), SessionEntry> = &[
    ("uuid", |(), session| session.uuid.to_string()),
    ("roles", |(), session| session.roles.clone()),
    ("address", |(), session| session.address.clone()),
    ("connected", |(), session| span(session.age_s)),
    ("idle", |(), session| span(session.idle_s)),
    ("UUID bound", |(), session| if session.bound { "yes" } else { "no" }.into()),
    ("serial", |(), session| or_dash(session.serial.clone())),
    ("subject", |(), session| session.subject.clone()),
    ("frames in", |(), session| session.frames_received.to_string()),
    ("frames out", |(), session| session.frames_sent.to_string()),
    ("frames queued", |(), session| session.frames_waiting.to_string()),
];

#[rustfmt::skip]
pub(super) const SERVERS: Columns<Id, ServerEntry> = &[
    ("server", |_, server| or_dash(server.uuid.to_string())),
    ("address", |_, server| or_dash(server.address.clone())),
    ("roles", |_, server| or_dash(server.roles.clone())),
    ("version", |_, server| or_dash(server.version.clone())),
    ("state", server_state),
    ("for", |_, server| span(server.age_s)),
    ("sessions", |_, server| server.sessions.to_string()),
];

fn server_state(leader: &Id, server: &ServerEntry) -> String {
    let leads = !leader.is_empty() && *leader == server.uuid;
    let state = format!("{}{}", server.state, if leads { ", leader" } else { "" });
    match server.detail.as_str() {
        "" => state,
        detail => format!("{state}: {detail}"),
    }
}

/// The leader, the lease and the engine of the cluster, in one line.
pub(super) fn cluster(servers: &Servers) -> Option<String> {
    if servers.engine.is_empty() {
        return None;
    }
    let leader = match servers.leader.as_str() {
        "" => "no leader".to_owned(),
        leader => format!("leader {leader}, fencing token {}", servers.token),
    };
    let lease = match servers.lease_age_ms {
        0 => String::new(),
        age => format!(", lease renewed {age} ms ago"),
    };
    let engine = match servers.engine.as_str() {
        "answers" => "the engine answers".to_owned(),
        problem => problem.to_owned(),
    };
    Some(format!("{leader}{lease}; {engine}"))
}

#[rustfmt::skip]
pub(super) const BANS: Columns<(), BanEntry> = &[
    ("uuid", |(), ban| ban.uuid.to_string()),
    ("remaining", |(), ban| span(ban.left_s)),
    ("banned by", |(), ban| short(ban.by.as_str())),
    ("banned", |(), ban| format!("{} ago", span(ban.age_s))),
];

#[rustfmt::skip]
pub(super) const TENANTS: Columns<(), TenantEntry> = &[
    ("tenant", |(), entry| entry.name.clone()),
    ("key", |(), entry| entry.key.to_string()),
    ("subnet", |(), entry| entry.subnet.clone()),
    ("concentrator address", |(), entry| entry.concentrator_ip.clone()),
    ("concentrator instance", |(), entry| short(entry.concentrator_uuid.as_str())),
    ("UUID", |(), entry| entry.tenant_uuid.to_string()),
];

#[rustfmt::skip]
const ADDRESSES: Columns<View, TenantAddress> = &[
    ("address", |_, address| address.ip.clone()),
    ("instance", |view, address| called_id(view, &address.instance_uuid)),
    ("state", |view, address| holder_state(view, address)),
    ("node", |view, address| called_id(view, &address.node_uuid)),
];

#[rustfmt::skip]
const TUNNELS: Columns<View, (Uuid, TunnelStats)> = &[
    ("node", |view, (node, _)| called(view, *node)),
    ("tunnel", |_, (_, tunnel)| if tunnel.up { "up" } else { "down" }.into()),
    ("bytes in", |_, (_, tunnel)| tunnel.rx_bytes.to_string()),
    ("bytes out", |_, (_, tunnel)| tunnel.tx_bytes.to_string()),
    ("packets dropped", |_, (_, tunnel)| tunnel.drops.to_string()),
];

/// A tenant, with its instances and tunnels.
pub(super) fn tenant(view: &View, entry: &TenantEntry) -> String {
    let cnci = entry.concentrator_uuid.uuid();
    let state = match cnci.and_then(|uuid| view.cnci(uuid)) {
        Some(cnci) if cnci.since.is_some() => "connected",
        _ if cnci.is_some_and(|uuid| view.instance(uuid).is_some()) => "not connected",
        _ => "not known; `ssntp ctl tenant add` with the same values starts it again",
    };
    format!(
        "{}\nconcentrator: {state}\n{}\n{}",
        list(TENANTS, &(), std::iter::once(entry)),
        list(ADDRESSES, view, entry.addresses.iter()),
        list(TUNNELS, view, tunnels(view, entry).iter())
    )
}

/// The tunnels of a tenant, each with its node.
pub(super) fn tunnels(view: &View, entry: &TenantEntry) -> Vec<(Uuid, TunnelStats)> {
    let all = view.nodes().flat_map(|node| {
        let tunnels = node.stats.tunnels.iter();
        tunnels.map(|tunnel| (node.uuid, tunnel.clone()))
    });
    all.filter(|(_, tunnel)| tunnel.key == entry.key).collect()
}

/// The state of the instance that holds this address.
fn holder_state(view: &View, address: &TenantAddress) -> String {
    let holder = address.instance_uuid.uuid().and_then(|uuid| view.instance(uuid));
    match holder {
        Some(holder) if address.state.is_empty() => holder.state.to_string(),
        _ if !address.state.is_empty() => address.state.clone(),
        _ => "not known".to_owned(),
    }
}

/// A time that the user gave, in the form that `--ban` takes.
pub(super) fn exact(seconds: u64) -> String {
    let units = [(86_400, 'd'), (3600, 'h'), (60, 'm')];
    let mut units = units.into_iter();
    let unit = units.find(|(unit, _)| seconds >= *unit && seconds.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or((1, 's'));
    format!("{}{name}", seconds / unit)
}

/// A time in its largest unit, rounded down.
fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn joined(texts: impl Iterator<Item = impl Into<String>>) -> String {
    texts.map(Into::into).collect::<Vec<_>>().join(" ")
}

fn public_ips(cnci: &Cnci) -> String {
    let each = cnci.public_ips.iter();
    let each = each.map(|(public_ip, to)| format!("{public_ip} → {}", short(to.instance_uuid.as_str())));
    each.collect::<Vec<_>>().join(", ")
}

fn labels(labels: &BTreeMap<String, String>) -> String {
    joined(labels.iter().map(|(key, value)| format!("{key}={value}")))
}

fn ssh(instance: &Instance) -> String {
    match &*instance.stats.ssh_ip {
        "" => String::new(),
        ip => format!("{ip} port {}", instance.stats.ssh_port),
    }
}

pub(super) fn node_status(node: &Node) -> String {
    match &node.status {
        _ if !node.connected => "gone".into(),
        NodeStatus::Other(text) if text.is_empty() => "-".into(),
        status => status.as_str().to_owned(),
    }
}

/// The state of an instance. A question mark shows that it may be out of date, because its node is
/// not connected or does not report.
pub(super) fn instance_state(view: &View, instance: &Instance) -> String {
    let state = instance.state.as_str();
    match view.node(instance.node) {
        Some(node) if node.is_current() => state.to_owned(),
        _ => format!("{state}?"),
    }
}

pub(super) fn short(uuid: &str) -> String {
    // The first group of a UUID. Commands accept it instead of the whole UUID.
    uuid.chars().take(8).collect()
}

/// The name of a node or an instance, with the beginning of its UUID; the beginning alone if it is not known.
pub(super) fn called(view: &View, uuid: Uuid) -> String {
    view.called(uuid).unwrap_or_else(|| short(&uuid.to_string()))
}

fn called_id(view: &View, id: &Id) -> String {
    id.uuid()
        .map_or_else(|| id.to_string(), |uuid| called(view, uuid))
}

fn host(name: &str) -> String {
    // A long name would push the columns after it off the screen.
    name.chars().take(20).collect()
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".into() } else { text }
}

/// The number of instances of a node that run.
fn running(view: &View, node: &Node) -> usize {
    let instances = view.instances_of(node.uuid);
    instances.filter(|i| i.state == InstanceState::Active).count()
}

/// The way in which an instance ended; empty while it has not ended.
pub(super) fn end(instance: &Instance) -> String {
    instance.ending().map(|end| end.to_string()).unwrap_or_default()
}

/// A number from a STATS frame. A negative number means that it is unknown.
fn with_unit(number: i64, unit: &str) -> String {
    match number {
        ..0 => "-".into(),
        _ => format!("{number}{unit}"),
    }
}

/// The free and the total amount, given in MB (of 2^20 bytes), as a text in GiB.
fn share(free: i64, total: i64) -> String {
    if free < 0 || total <= 0 {
        return "-".into();
    }
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let gb = |mb: i64| mb as f64 / 1024.0;
    format!("{:.1} of {:.1} GiB", gb(free), gb(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_the_user_gave_is_not_rounded() {
        for (seconds, shown) in [
            (0, "0s"),
            (90, "90s"),
            (120, "2m"),
            (129_600, "36h"),
            (604_800, "7d"),
        ] {
            assert_eq!(exact(seconds), shown);
        }
        assert_eq!(span(129_600), "1d");
    }
}
