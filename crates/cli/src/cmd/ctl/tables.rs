//! What the lists print for people.

use std::io::IsTerminal;

use comfy_table::{Cell, Row, Table, presets};
use ssntp::payload::{BanEntry, InstanceState, NodeStatus, SessionEntry, TenantEntry};
use ssntp_cluster::controller::{Cnci, Instance, Node, View};

use crate::output::{printable, records, terminal_width};

/// A table, with lines around its cells or without.
pub(crate) fn table<const N: usize>(
    has_lines: bool,
    header: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> Table {
    let mut table = Table::new();
    table.load_style(match has_lines {
        true => presets::UTF8_FULL_CONDENSED,
        false => presets::NOTHING,
    });
    table.set_header(header);
    table.add_rows(rows);
    table
}

/// A list as text: with lines on a terminal, without them elsewhere, since other
/// programs cut it into columns. On a terminal that is too narrow, each row becomes
/// lines of its own.
fn list<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let table = table(std::io::stdout().is_terminal(), header, rows);
    let text = table.to_string();
    let widest = text.lines().map(|line| line.chars().count()).max();
    if terminal_width().is_none_or(|width| widest.unwrap_or(0) <= width) {
        return text;
    }
    let cells = |row: &Row| row.cell_iter().map(Cell::content).collect::<Vec<_>>();
    let rows = table.header().into_iter().chain(table.row_iter());
    let rows: Vec<_> = rows.map(cells).collect();
    records(rows.iter().map(Vec::as_slice)).trim_end().to_owned()
}

pub(super) fn tenants(entries: &[TenantEntry]) -> String {
    let rows = entries.iter().map(|entry| {
        [
            printable(&entry.name),
            entry.key.to_string(),
            printable(&entry.subnet),
            printable(&entry.concentrator_ip),
            printable(entry.concentrator_uuid.as_str()),
            printable(entry.tenant_uuid.as_str()),
        ]
    });
    let header = [
        "tenant",
        "key",
        "subnet",
        "concentrator",
        "concentrator's instance",
        "UUID",
    ];
    list(header, rows)
}

/// A tenant, and each of its instances.
pub(super) fn tenant(view: &View, entry: &TenantEntry) -> String {
    let cnci = entry.concentrator_uuid.uuid();
    let state = match cnci.and_then(|uuid| view.cnci(uuid)) {
        Some(cnci) if cnci.since.is_some() => "connected",
        _ => "not connected",
    };
    let rows = entry.addresses.iter().map(|address| {
        let instance = address.instance_uuid.uuid().and_then(|uuid| view.instance(uuid));
        [
            printable(&address.ip),
            printable(address.instance_uuid.as_str()),
            instance.map_or_else(
                || "not known".into(),
                |instance| printable(instance.state.as_str()),
            ),
            instance
                .map(|instance| instance.node.to_string())
                .unwrap_or_default(),
        ]
    });
    let tunnels = view.nodes().flat_map(|node| {
        let of_tenant = node.stats.tunnels.iter().filter(|tunnel| tunnel.key == entry.key);
        of_tenant.map(move |tunnel| {
            [
                node.uuid.to_string(),
                if tunnel.up { "up" } else { "down" }.into(),
                tunnel.rx_bytes.to_string(),
                tunnel.tx_bytes.to_string(),
                tunnel.drops.to_string(),
            ]
        })
    });
    format!(
        "{}\nconcentrator: {state}\n{}\n{}",
        tenants(std::slice::from_ref(entry)),
        list(["address", "instance", "state", "node"], rows),
        list(
            ["node", "tunnel", "bytes in", "bytes out", "packets dropped"],
            tunnels
        )
    )
}

pub(super) fn nodes<'a>(view: &View, nodes: impl Iterator<Item = &'a Node>) -> String {
    let rows = nodes.map(|node| {
        let stats = &node.stats;
        [
            node.uuid.to_string(),
            node_type(node).into(),
            node_status(node),
            host(&stats.hostname),
            with_unit(stats.cpus_online, ""),
            with_unit(stats.load, ""),
            share(stats.mem_available_mb, stats.mem_total_mb),
            share(stats.disk_available_mb, stats.disk_total_mb),
            format!("{} of {} run", running(view, node), node.instances.len()),
        ]
    });
    let header = [
        "node",
        "type",
        "status",
        "host",
        "cpus",
        "load",
        "memory free",
        "disk free",
        "instances",
    ];
    list(header, rows)
}

pub(super) fn instances<'a>(view: &View, instances: impl Iterator<Item = &'a Instance>) -> String {
    let rows = instances.map(|instance| {
        let stats = &instance.stats;
        let node = view.node(instance.node);
        let volumes = stats.volumes.iter().map(|volume| short(volume.as_str()));
        [
            instance.uuid.to_string(),
            or_dash(printable(&stats.name)),
            instance_state(view, instance),
            or_dash(end(instance)),
            short(&instance.node.to_string()),
            host(node.map_or("", |node| &node.stats.hostname)),
            with_unit(stats.cpu_usage, "%"),
            with_unit(stats.memory_usage_mb, " MB"),
            with_unit(stats.disk_usage_mb, " MB"),
            volumes.collect::<Vec<_>>().join(" "),
        ]
    });
    let header = [
        "instance", "name", "state", "end", "node", "host", "cpu", "memory", "disk", "volumes",
    ];
    list(header, rows)
}

pub(super) fn cncis(view: &View) -> String {
    let rows = view.cncis().map(|cnci| {
        let instance = view.instance(cnci.uuid);
        [
            cnci.uuid.to_string(),
            printable(cnci.tenant.as_str()),
            printable(&cnci.ip),
            printable(&cnci.mac),
            instance.map_or("-".into(), |instance| instance_state(view, instance)),
            public_ips(cnci),
        ]
    });
    let header = ["CNCI", "tenant", "address", "MAC", "state", "public addresses"];
    list(header, rows)
}

pub(super) fn sessions(sessions: &[SessionEntry]) -> String {
    let rows = sessions.iter().map(|session| {
        [
            printable(session.uuid.as_str()),
            printable(&session.roles),
            printable(&session.address),
            span(session.age_s),
            span(session.idle_s),
            if session.bound { "yes" } else { "no" }.into(),
            serial(&session.serial),
            printable(&session.subject),
            session.frames_received.to_string(),
            session.frames_sent.to_string(),
            session.frames_waiting.to_string(),
        ]
    });
    let header = [
        "uuid", "roles", "address", "for", "idle", "bound", "serial", "subject", "in", "out", "waiting",
    ];
    list(header, rows)
}

pub(super) fn bans(bans: &[BanEntry]) -> String {
    let rows = bans.iter().map(|ban| {
        [
            printable(ban.uuid.as_str()),
            span(ban.left_s),
            printable(ban.by.as_str()),
            format!("{} ago", span(ban.age_s)),
        ]
    });
    list(["uuid", "left", "by", "since"], rows)
}

/// A serial number without its colons.
fn serial(serial: &str) -> String {
    or_dash(printable(serial).replace(':', ""))
}

/// A time in its largest whole unit, as `--ban` takes it.
pub(crate) fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn public_ips(cnci: &Cnci) -> String {
    let each = cnci
        .public_ips
        .iter()
        .map(|(public_ip, to)| format!("{} → {}", printable(public_ip), short(to.instance.as_str())));
    each.collect::<Vec<_>>().join(", ")
}

pub(crate) fn node_type(node: &Node) -> &'static str {
    match (node.compute, node.network) {
        (true, true) => "compute, network",
        (true, false) => "compute",
        (false, true) => "network",
        (false, false) => "-",
    }
}

pub(crate) fn node_status(node: &Node) -> String {
    match &node.status {
        _ if !node.connected => "gone".into(),
        NodeStatus::Other(text) if text.is_empty() => "-".into(),
        status => printable(status.as_str()),
    }
}

/// The state of an instance; with a question mark if its node is gone or does not
/// report, so that the state may be out of date.
pub(crate) fn instance_state(view: &View, instance: &Instance) -> String {
    let state = printable(instance.state.as_str());
    match view.node(instance.node) {
        Some(node) if node.is_current() => state,
        _ => format!("{state}?"),
    }
}

pub(crate) fn short(uuid: &str) -> String {
    printable(uuid).chars().take(8).collect()
}

pub(crate) fn host(name: &str) -> String {
    printable(name).chars().take(20).collect()
}

pub(crate) fn or_dash(text: String) -> String {
    if text.is_empty() { "-".into() } else { text }
}

/// How many instances of a node run.
pub(crate) fn running(view: &View, node: &Node) -> usize {
    let instances = view.instances_of(node.uuid);
    instances.filter(|i| i.state == InstanceState::Active).count()
}

/// How an instance ended; empty while it has not.
pub(super) fn end(instance: &Instance) -> String {
    instance.ending().map(|end| end.to_string()).unwrap_or_default()
}

/// A number of STATS, of which negative ones are unknown.
pub(crate) fn with_unit(number: i64, unit: &str) -> String {
    match number {
        ..0 => "-".into(),
        _ => format!("{number}{unit}"),
    }
}

/// What is free, of how much.
pub(crate) fn share(free: i64, total: i64) -> String {
    if free < 0 || total <= 0 {
        return "-".into();
    }
    #[expect(clippy::cast_precision_loss, reason = "one decimal of GB is shown")]
    let gb = |mb: i64| mb as f64 / 1024.0;
    format!("{:.1} of {:.1} GB", gb(free), gb(total))
}
