//! The sessions of the scheduler, if this controller may list them.

use std::time::Duration;

use super::html::{Html, html, piece};
use super::scene::{Missing, Scene, facts};
use super::table::{Cell, Column, Table, badge, bytes, number, text};
use super::words::{Badge, Bytes, Grade, Link, Span};
use ssntp::payload::SessionEntry;

/// The time in seconds after which a session counts as silent. Agents send STATS every 30 s.
const SILENT: u64 = 120;

fn state(session: &SessionEntry) -> Badge {
    match session {
        one if one.frames_dropped > 0 => Badge(Grade::Warn, "dropped"),
        one if one.bytes_waiting > 0 => Badge(Grade::Warn, "backlog"),
        one if one.idle_s > SILENT => Badge(Grade::Wait, "silent"),
        _ => Badge(Grade::Good, "flowing"),
    }
}

pub(super) fn list(scene: &Scene<'_>, main: &mut Html) -> Result<(), Missing> {
    let certificates = scene.picture.certificates.iter();
    let name = |whose: &str| format!("Certificate of {whose}");
    let ends = certificates.map(|(whose, end)| (name(whose), piece!("ends " {scene.age(*end)})));
    facts(main, ends);
    match &scene.source.sessions() {
        Ok(sessions) => table(scene, main, sessions),
        Err(why) => html!(main; "<p>The scheduler does not list its sessions: " {why} "</p>"),
    }
    Ok(())
}

fn seconds(seconds: u64) -> Cell {
    number(seconds).showing(&Span(Duration::from_secs(seconds)))
}

fn table(scene: &Scene<'_>, out: &mut Html, sessions: &[SessionEntry]) {
    struct SessionRow<'a> {
        session: &'a SessionEntry,
        name: &'a str,
        node: Option<Link<'a>>,
    }
    #[rustfmt::skip] // A table: one entry a column.
    let columns = [
        Column("client", "Client", "name", |row: &SessionRow<'_>| match row.node {
            Some(node) => text(row.name).showing(&node),
            None => text(row.name),
        }),
        Column("roles", "Roles", "opt", |row| text(&row.session.roles)),
        Column("state", "State", "", |row| badge(state(row.session))),
        Column("waiting", "Backlog", "n", |row| number(row.session.bytes_waiting).showing(
            &piece!({Bytes(row.session.bytes_waiting)} "<small> in " {row.session.frames_waiting} "</small>"))),
        Column("dropped", "Dropped", "n", |row| number(row.session.frames_dropped)),
        Column("received", "Received", "n opt", |row| bytes(row.session.bytes_received)),
        Column("sent", "Sent", "n opt", |row| bytes(row.session.bytes_sent)),
        Column("idle", "Silent for", "n", |row| seconds(row.session.idle_s)),
        Column("age", "Age", "n opt", |row| seconds(row.session.age_s)),
        Column("address", "Address", "opt", |row| text(&row.session.address)),
        Column("certificate", "Certificate", "opt", |row| text(&row.session.subject)),
    ];
    let table = Table {
        caption: "Sessions",
        columns: &columns,
        id: |row| format!("s{:08}", row.session.number),
        find: |row| {
            let one = row.session;
            format!(
                "{} {} {} {} {}",
                row.name, one.uuid, one.roles, one.address, one.subject
            )
        },
        state: |row| Some(state(row.session)),
        sort: "-waiting",
        empty: "There is no session.",
    };
    let rows = sessions.iter().map(|session| {
        let known = session.uuid.uuid().and_then(|uuid| scene.picture.view.node(uuid));
        let name = known
            .map(|node| node.stats.hostname.as_str())
            .filter(|name| !name.is_empty());
        SessionRow {
            session,
            name: name.unwrap_or(session.uuid.as_str()),
            node: known.map(|node| scene.node(node.uuid)),
        }
    });
    table.show(out, scene.params, rows.collect());
}
