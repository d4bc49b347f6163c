//! Traced frames: the list, and the hops of one frame.

use std::fmt::Write;
use std::time::Duration;

use super::chart::{Bar, waterfall};
use super::html::{Html, html, piece};
use super::scene::{Made, Missing, Scene, facts};
use super::table::{Column, Table, number, text};
use super::words::{Age, Span, short};
use crate::clock::time;
use crate::model::Row;
use crate::store::Query;
use ssntp_payload::{FrameTrace, timestamp};

/// The newest traces that are listed.
const LISTED: usize = 1000;

struct TraceRow {
    row: Row,
    trace: FrameTrace,
    took: Option<Span>,
    now: std::time::SystemTime,
}

fn read(row: &Row) -> Option<FrameTrace> {
    serde_json::from_str(&row.text).ok()
}

/// The known times of a trace, in nanoseconds since 1970.
fn times(trace: &FrameTrace) -> impl Iterator<Item = u64> + '_ {
    let stamps = trace
        .nodes
        .iter()
        .flat_map(|hop| [&hop.rx_timestamp, &hop.tx_timestamp]);
    stamps
        .filter_map(|stamp| timestamp::parse(stamp))
        .filter(|time| *time > 0)
}

/// The label of a trace, or the kind of its frame if it has none.
fn name(trace: &FrameTrace) -> &str {
    let FrameTrace { label, operand, .. } = trace;
    if label.is_empty() { operand } else { label }
}

fn took(trace: &FrameTrace) -> Option<Span> {
    let (first, last) = (times(trace).min()?, times(trace).max()?);
    Some(Span(Duration::from_nanos(last - first)))
}

pub(super) fn list(scene: &Scene<'_>, main: &mut Html) -> Result<(), Missing> {
    let rows = scene.newest(LISTED, |query| query.kind = Some("trace".to_owned()))?;
    let now = scene.now();
    let listed = rows.into_iter().filter_map(|row| {
        let trace = read(&row)?;
        let took = took(&trace);
        Some(TraceRow {
            row,
            trace,
            took,
            now,
        })
    });
    html!(main; "<p class='hint'>Each row is one frame. <code>ssntp ctl --trace</code> "
        "traces a command.</p>");
    #[rustfmt::skip] // A table: one entry a column.
    let columns = [
        Column("label", "Frame", "name", |one: &TraceRow| text(&one.trace.label)
            .showing(&piece!("<a href='/traces/" {one.row.id} "'>" {*name(&one.trace)} "</a>"))),
        Column("operand", "Kind", "", |one| text(&one.trace.operand)
            .showing(&piece!({one.trace.frame_type} " " {one.trace.operand}))),
        Column("hops", "Hops", "n", |one| number(one.trace.nodes.len())),
        Column("took", "Took", "n", |one| match &one.took {
            Some(span) => number(span.0.as_nanos()).showing(&precise(span)),
            None => number(0).showing(""),
        }),
        Column("at", "When", "n", |one| number(one.row.at).showing(&Age { at: time(one.row.at), now: one.now })),
    ];
    let table = Table {
        caption: "Traces",
        columns: &columns,
        id: |one| format!("t{}", one.row.id),
        find: |one| format!("{} {}", one.trace.label, one.trace.operand),
        state: |_| None,
        sort: "-at",
        empty: "No frame was traced.",
    };
    table.show(main, scene.params, listed.collect());
    Ok(())
}

/// A span with microseconds, because a hop takes a few of them.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn precise(span: &Span) -> String {
    let micros = span.0.as_nanos() as f64 / 1000.0;
    match micros {
        ..1000.0 => format!("{micros:.0} µs"),
        ..1_000_000.0 => format!("{:.2} ms", micros / 1000.0),
        _ => format!("{:.2} s", micros / 1_000_000.0),
    }
}

pub(super) fn one(scene: &Scene<'_>, main: &mut Html, row: i64) -> Made {
    let query = Query {
        after: Some(row.saturating_sub(1)),
        limit: 1,
        ..Query::default()
    };
    let rows = scene.source.rows(&query)?;
    let found = rows.first().filter(|found| found.id == row);
    let trace = found.and_then(read).ok_or(Missing::Unknown)?;
    let name = name(&trace);
    html!(main; "<p class='way'><a href='/traces'>Traces</a></p><h1>" {name} "</h1>");
    let took = took(&trace).as_ref().map(precise).unwrap_or_default();
    #[rustfmt::skip] // A table: one entry a fact.
    let shown = [
        ("Frame", piece!({trace.frame_type} " " {trace.operand})),
        ("Hops", piece!({trace.nodes.len()})),
        ("Took", piece!({took})),
        ("Began", piece!({trace.start_timestamp})),
    ];
    facts(main, shown);
    let begin = times(&trace).min().unwrap_or(0);
    let mut bars = Vec::new();
    let mut is_before = false;
    // The time at which the frame left the hop before.
    let mut left: Option<u64> = None;
    for hop in &trace.nodes {
        let stamp = |text: &str| {
            timestamp::parse(text)
                .filter(|time| *time > 0)
                .map(|time| time - begin)
        };
        let (received, sent) = (stamp(&hop.rx_timestamp), stamp(&hop.tx_timestamp));
        if let (Some(left), Some(received)) = (left, received) {
            is_before |= received < left;
            let span = Span(Duration::from_nanos(received.saturating_sub(left)));
            bars.push(Bar {
                title: "on its way".into(),
                class: "wire",
                from: left.min(received),
                to: received,
                words: precise(&span),
            });
        }
        let (from, to) = (received.or(sent).unwrap_or(0), sent.or(received).unwrap_or(0));
        is_before |= to < from;
        bars.push(Bar {
            title: format!("{} {}", hop.ssntp_role, host(scene, hop.ssntp_node_uuid.as_str())),
            class: "hop",
            from: from.min(to),
            to,
            words: match (received, sent) {
                (Some(_), Some(_)) => precise(&Span(Duration::from_nanos(to.saturating_sub(from)))),
                (None, _) => "sent the frame".into(),
                (Some(_), None) => "received the frame".into(),
            },
        });
        left = sent;
    }
    let mut sentence = format!("The {} hops of the frame:", trace.nodes.len());
    for bar in &bars {
        // Writing to a String cannot fail.
        let _ = write!(sentence, " {}, {};", bar.title, bar.words);
    }
    waterfall(main, &sentence, &bars);
    if is_before {
        html!(main; "<p class='was'>By these times a hop received the frame before it was sent. So the clocks "
            "of these hosts differ, and the times between hops are wrong by that difference.</p>");
    }
    html!(main; "<details><summary>The hops as a table</summary><div class='scroll'><table><thead><tr>"
        "<th scope='col'>Role</th><th scope='col'>Host</th><th scope='col'>Received</th><th scope='col'>Sent</th>"
        "</tr></thead><tbody>");
    for hop in &trace.nodes {
        html!(main; "<tr><td>" {hop.ssntp_role} "</td><td>");
        match hop.ssntp_node_uuid.uuid() {
            Some(uuid) if scene.picture.view.node(uuid).is_some() => main.show(&scene.node(uuid)),
            _ => html!(main; "<code>" {hop.ssntp_node_uuid} "</code>"),
        }
        html!(main; "</td><td>" {hop.rx_timestamp} "</td><td>" {hop.tx_timestamp} "</td></tr>");
    }
    html!(main; "</tbody></table></div></details>");
    Ok(name.to_owned())
}

/// The name of a hop's host, or the beginning of its UUID.
fn host(scene: &Scene<'_>, uuid: &str) -> String {
    let Ok(uuid) = uuid.parse() else {
        return uuid.chars().take(36).collect();
    };
    let node = scene.node(uuid);
    match (node.name, node.distinction) {
        ("", "") => short(uuid),
        (name, distinction) => format!("{name} {distinction}").trim().to_owned(),
    }
}
