//! The list of nodes, and the page of a node.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::chart;
use super::html::{Html, html, piece};
use super::instances;
use super::scene::{Made, Missing, Scene, facts};
use super::table::{Cell, Column, Table, age, badge, choice, number, text};
use super::words::{Age, Badge, Bytes, Grade, Link, Span, Used, known, labels, megabytes, named};
use crate::clock::{ms, time};
use crate::model::Figures;
use ssntp::pki::rfc3339;
use ssntp_payload::NodeStatus;
use ssntp_view::Node;

/// The spans of time of the charts: the value of the parameter `span`, and the seconds.
const SPANS: [(&str, i64); 3] = [("1h", 3600), ("24h", 86_400), ("7d", 7 * 86_400)];

pub(super) fn state(node: &Node) -> Badge {
    if !node.connected {
        return Badge(Grade::Past, "gone");
    }
    match &node.status {
        NodeStatus::Ready => Badge(Grade::Good, "ready"),
        NodeStatus::Full => Badge(Grade::Warn, "full"),
        NodeStatus::Stale => Badge(Grade::Warn, "late"),
        NodeStatus::Maintenance => Badge(Grade::Wait, "maintenance"),
        NodeStatus::Offline => Badge(Grade::Bad, "offline"),
        status if status.as_str().is_empty() => Badge(Grade::Wait, "silent"),
        _ => Badge(Grade::Wait, "other"),
    }
}

struct NodeRow<'a> {
    node: &'a Node,
    link: Link<'a>,
    now: SystemTime,
}

fn memory(node: &Node) -> Used {
    let (free, total) = (node.stats.mem_available_mb, node.stats.mem_total_mb);
    Used { free, total }
}

fn disk(node: &Node) -> Used {
    let (free, total) = (node.stats.disk_available_mb, node.stats.disk_total_mb);
    Used { free, total }
}

fn used(used: &Used) -> Cell {
    number(used.percent().unwrap_or(-1)).showing(used)
}

pub(super) fn list(scene: &Scene<'_>, main: &mut Html) -> Result<(), Missing> {
    #[rustfmt::skip] // A table: one entry a column.
    let columns = [
        Column("name", "Node", "name", |row: &NodeRow<'_>| text(&row.node.stats.hostname).showing(&row.link)),
        Column("state", "State", "", |row| badge(state(row.node))),
        Column("kind", "Kind", "opt", |row| text(row.node.kind())),
        Column("instances", "Instances", "n", |row| number(row.node.instances.len())),
        Column("memory", "Memory", "used", |row| used(&memory(row.node))),
        Column("disk", "Disk", "used opt", |row| used(&disk(row.node))),
        Column("load", "Load", "n", |row| number(row.node.stats.load).showing(
            &piece!({known(row.node.stats.load)} "<small> / " {known(row.node.stats.cpus_online)} "</small>"))),
        Column("seen", "Heard", "n opt", |row| match row.node.seen {
            Some(at) => age(at, row.now),
            None => number(i64::MAX).showing("never"),
        }),
    ];
    let table = Table {
        caption: "Nodes",
        columns: &columns,
        id: |row| format!("n{}", row.node.uuid),
        find: |row| {
            let mut text = format!(
                "{} {} {}",
                row.node.stats.hostname,
                row.node.uuid,
                row.node.kind()
            );
            for network in &row.node.stats.networks {
                text.push(' ');
                text += &network.ip;
            }
            text
        },
        state: |row| Some(state(row.node)),
        sort: "name",
        empty: "The scheduler has reported no node.",
    };
    let now = scene.now();
    let rows = scene
        .picture
        .view
        .nodes()
        .map(|node| NodeRow {
            node,
            link: scene.node(node.uuid),
            now,
        })
        .collect();
    table.show(main, scene.params, rows);
    Ok(())
}

pub(super) fn one(scene: &Scene<'_>, main: &mut Html, uuid: Uuid) -> Made {
    let node = scene.picture.view.node(uuid).ok_or(Missing::Unknown)?;
    let (stats, now) = (&node.stats, scene.now());
    let name = named(&stats.hostname, uuid);
    html!(main; "<p class='way'><a href='/nodes'>Nodes</a></p><h1>" {name} " " {state(node)} "</h1>");
    if !node.is_current() {
        html!(main; "<p class='was'>The figures below are from " {scene.age(node.seen.unwrap_or(node.since))}
            ". The present state of the node is unknown.</p>");
    }
    let addresses: Vec<_> = stats.networks.iter().map(|n| n.ip.as_str()).collect();
    let mut heard = Html::default();
    if let Some(at) = node.seen {
        html!(&mut heard; {Age { at, now }});
        if let Ok(interval @ 1..) = u64::try_from(stats.interval) {
            html!(&mut heard; ", every " {Span(Duration::from_secs(interval))});
        }
    }
    let since = if node.connected {
        "Connected since"
    } else {
        "Gone since"
    };
    #[rustfmt::skip] // A table: one entry a fact.
    let shown = [
        (since, piece!({Age { at: node.since, now }})),
        ("Heard", heard),
        ("Kind", piece!({*node.kind()})),
        ("Memory", piece!({memory(node)})),
        ("Disk", piece!({disk(node)})),
        ("Load", piece!({known(stats.load)} " on " {known(stats.cpus_online)} " CPUs")),
        ("Addresses", piece!({addresses.join(", ")})),
        ("Labels", piece!({labels(&stats.labels)})),
        ("UUID", piece!({uuid})),
    ];
    facts(main, shown);
    session(scene, main, uuid);
    html!(main; "<h2>Figures</h2>");
    figures(scene, main, uuid)?;
    if !stats.tunnels.is_empty() {
        html!(main; "<h2>Tunnels of tenants</h2><ul class='rows'>");
        for tunnel in &stats.tunnels {
            let up = if tunnel.up {
                Badge(Grade::Good, "up")
            } else {
                Badge(Grade::Bad, "down")
            };
            html!(main; "<li>key " {tunnel.key} " " {up} " " {Bytes(tunnel.rx_bytes)} " in, "
                {Bytes(tunnel.tx_bytes)} " out, " {tunnel.drops} " packets dropped</li>");
        }
        html!(main; "</ul>");
    }
    html!(main; "<h2>Instances</h2>");
    instances::table(scene, main, |instance| instance.node == Some(uuid));
    html!(main; "<h2>What happened</h2>");
    scene.rows(main, &scene.newest(50, |query| query.node = Some(uuid.into()))?);
    Ok(name)
}

/// The session of a node with the scheduler, if this controller may list sessions.
fn session(scene: &Scene<'_>, out: &mut Html, uuid: Uuid) {
    let Ok(sessions) = &scene.source.sessions() else {
        return;
    };
    let frames = |bytes: u64, frames: u64| piece!({Bytes(bytes)} " in " {frames} " frames");
    let span = |seconds: u64| piece!({ Span(Duration::from_secs(seconds)) });
    for session in sessions
        .iter()
        .filter(|session| session.uuid.uuid() == Some(uuid))
    {
        html!(out; "<h2>Session</h2>");
        #[rustfmt::skip] // A table: one entry a fact.
        let shown = [
            ("Address", piece!({session.address})),
            ("Age", span(session.age_s)),
            ("Silent for", span(session.idle_s)),
            ("Received", frames(session.bytes_received, session.frames_received)),
            ("Sent", frames(session.bytes_sent, session.frames_sent)),
            ("Waiting", frames(session.bytes_waiting, session.frames_waiting)),
            ("Certificate", piece!({session.subject} ", serial number " {session.serial})),
            ("Issued by", piece!({session.issuer})),
        ];
        facts(out, shown);
    }
}

fn figures(scene: &Scene<'_>, out: &mut Html, uuid: Uuid) -> Result<(), Missing> {
    let asked = scene.params.get("span");
    let (asked, seconds) = SPANS
        .into_iter()
        .find(|(word, _)| *word == asked)
        .unwrap_or(SPANS[0]);
    html!(out; "<nav class='states' aria-label='Span of time'>");
    for (word, _) in SPANS {
        choice(out, &scene.params.query(&[("span", word)]), word == asked, &word);
    }
    html!(out; "</nav>");
    let figures = scene.source.figures(uuid, ms(scene.now()) - 1000 * seconds)?;
    let points = |figure: fn(&Figures) -> i64| figures.iter().map(|f| (f.at, figure(f))).collect::<Vec<_>>();
    fn used(free: i64, total: i64) -> i64 {
        if free.min(total) < 0 {
            -1
        } else {
            (total - free).max(0)
        }
    }
    let most = |total: fn(&Figures) -> i64| figures.last().map(total).filter(|total| *total > 0);
    html!(out; "<div class='charts'>");
    #[rustfmt::skip] // A table: one line a chart.
    let series = [
        ("Load", points(|f| f.load), None, known as fn(i64) -> String),
        ("Memory used", points(|f| used(f.mem_available_mb, f.mem_total_mb)), most(|f| f.mem_total_mb), megabytes),
        ("Disk used", points(|f| used(f.disk_available_mb, f.disk_total_mb)), most(|f| f.disk_total_mb), megabytes),
        ("Instances", points(|f| f.instances), None, known),
    ];
    for (title, points, most, words) in series {
        chart::series(out, title, &points, most, words);
    }
    html!(out; "</div>");
    if figures.is_empty() {
        return Ok(());
    }
    html!(out; "<details><summary>The figures as a table</summary><div class='scroll'><table><thead><tr>"
        "<th scope='col'>Time (UTC)</th><th scope='col' class='n'>Load</th><th scope='col' class='n'>Free memory</th>"
        "<th scope='col' class='n'>Free disk</th><th scope='col' class='n'>Instances</th></tr></thead><tbody>");
    for figure in figures.iter().rev().take(super::table::ROWS) {
        html!(out; "<tr><td>" {rfc3339(time(figure.at))} "</td><td class='n'>" {known(figure.load)}
            "</td><td class='n'>" {megabytes(figure.mem_available_mb)} "</td><td class='n'>"
            {megabytes(figure.disk_available_mb)} "</td><td class='n'>" {known(figure.instances)} "</td></tr>");
    }
    html!(out; "</tbody></table></div></details>");
    Ok(())
}
