//! What the lists print for people.

use std::io::IsTerminal;

use comfy_table::{Cell, Row, Table, presets};
use ssntp::payload::{BanEntry, InstanceState, NodeStatus, SessionEntry};
use ssntp_cluster::controller::{Cnci, Instance, Node, View};

use crate::output::{printable, records, terminal_width};

/// With lines on a terminal, without elsewhere, where other programs cut it
/// into columns.
fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    let preset = match std::io::stdout().is_terminal() {
        true => presets::UTF8_FULL_CONDENSED,
        false => presets::NOTHING,
    };
    table.load_style(preset);
    table.set_header(header);
    table
}

/// A table as text: on a terminal that is too narrow for it, each row as lines of
/// its own.
pub(crate) fn fitted(table: &Table) -> String {
    let text = table.to_string();
    let widest = text.lines().map(|line| line.chars().count()).max();
    if terminal_width().is_none_or(|width| widest.unwrap_or(0) <= width) {
        return text;
    }
    let cells = |row: &Row| row.cell_iter().map(Cell::content).collect::<Vec<_>>();
    let rows: Vec<_> = table
        .header()
        .into_iter()
        .chain(table.row_iter())
        .map(cells)
        .collect();
    records(rows.iter().map(Vec::as_slice)).trim_end().to_owned()
}

pub(crate) fn nodes<'a>(view: &View, nodes: impl Iterator<Item = &'a Node>) -> Table {
    let mut table = table([
        "node",
        "type",
        "status",
        "host",
        "cpus",
        "load",
        "memory free",
        "disk free",
        "instances",
    ]);
    for node in nodes {
        let stats = &node.stats;
        let running = view
            .instances_of(node.uuid)
            .filter(|i| i.state == InstanceState::Active)
            .count();
        table.add_row([
            node.uuid.to_string(),
            node_type(node).into(),
            node_status(node),
            host(&stats.hostname),
            number(stats.cpus_online),
            number(stats.load),
            share(stats.mem_available_mb, stats.mem_total_mb),
            share(stats.disk_available_mb, stats.disk_total_mb),
            format!("{running} of {} run", node.instances.len()),
        ]);
    }
    table
}

pub(crate) fn instances<'a>(view: &View, instances: impl Iterator<Item = &'a Instance>) -> Table {
    let mut table = table([
        "instance", "name", "state", "end", "node", "host", "cpu", "memory", "disk", "volumes",
    ]);
    for instance in instances {
        let stats = &instance.stats;
        let node = view.node(instance.node);
        let volumes: Vec<_> = stats
            .volumes
            .iter()
            .map(|volume| short(volume.as_str()))
            .collect();
        table.add_row([
            instance.uuid.to_string(),
            or_dash(printable(&stats.name)),
            instance_state(view, instance),
            or_dash(
                instance
                    .ending()
                    .map(|ending| ending.to_string())
                    .unwrap_or_default(),
            ),
            short(&instance.node.to_string()),
            host(node.map_or("", |node| &node.stats.hostname)),
            with_unit(stats.cpu_usage, "%"),
            with_unit(stats.memory_usage_mb, " MB"),
            with_unit(stats.disk_usage_mb, " MB"),
            volumes.join(" "),
        ]);
    }
    table
}

pub(crate) fn cncis(view: &View) -> Table {
    let mut table = table(["CNCI", "tenant", "address", "MAC", "state", "public addresses"]);
    for cnci in view.cncis() {
        table.add_row([
            cnci.uuid.to_string(),
            printable(cnci.tenant.as_str()),
            printable(&cnci.ip),
            printable(&cnci.mac),
            view.instance(cnci.uuid)
                .map_or("-".into(), |instance| instance_state(view, instance)),
            public_ips(cnci),
        ]);
    }
    table
}

pub(crate) fn sessions(sessions: &[SessionEntry]) -> Table {
    let mut table = table([
        "uuid", "roles", "address", "for", "idle", "bound", "serial", "subject", "in", "out", "waiting",
    ]);
    for session in sessions {
        table.add_row([
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
        ]);
    }
    table
}

pub(crate) fn bans(bans: &[BanEntry]) -> Table {
    let mut table = table(["uuid", "left", "by", "since"]);
    for ban in bans {
        table.add_row([
            printable(ban.uuid.as_str()),
            span(ban.left_s),
            printable(ban.by.as_str()),
            format!("{} ago", span(ban.age_s)),
        ]);
    }
    table
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

/// Of a node that is gone or does not report, what it was.
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

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".into() } else { text }
}

fn number(number: i64) -> String {
    if number < 0 {
        "-".into()
    } else {
        number.to_string()
    }
}

pub(crate) fn with_unit(number: i64, unit: &str) -> String {
    if number < 0 {
        "-".into()
    } else {
        format!("{number}{unit}")
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
