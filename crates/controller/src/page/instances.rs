//! The list of instances, and the page of an instance. An instance may be reported by the scheduler,
//! wanted by a workload, or both.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::html::{Html, html, piece};
use super::scene::{Made, Missing, Scene, facts};
use super::table::{Column, Table, age, badge, number, text};
use super::words::{Badge, Grade, Link, Span, WorkloadLink, known, labels, megabytes, named};
use crate::clock::time;
use crate::model::{self, InstanceState as Kept, ending_text, without_output};
use crate::source::{Picture, Written};
use ssntp_http::Answer;
use ssntp_payload::InstanceState;
use ssntp_payload::timestamp;
use ssntp_transport::{deadline, left};
use ssntp_view::Node;

/// The maximum number of bytes of output on a page: the last ones.
const OUTPUT: usize = 128 << 10;
/// The time in which the node of an instance has to send its output.
const SENDING: Duration = Duration::from_secs(2);
/// The maximum number of pages that wait for nodes at a time. Each keeps one of the connections, which
/// other clients need as well, and a node may send nothing.
const MOST_WAITING: usize = 8;

/// An instance: `seen` is its state on a node, `kept` the state that the reconciler has stored.
pub(super) struct InstanceRow<'a> {
    uuid: Uuid,
    /// The node of the instance, or the last one that it had.
    pub(super) node: Option<Uuid>,
    seen: Option<&'a ssntp_view::Instance>,
    kept: Option<&'a model::Instance>,
    on: Option<&'a Node>,
    place: Option<Link<'a>>,
    now: SystemTime,
    /// The reason why the instance ended, and what it wrote last, as far as the reader may see it; empty if it
    /// has not ended, or if the reason is unknown.
    ending: String,
}

impl<'a> InstanceRow<'a> {
    fn of(
        scene: &Scene<'a>,
        uuid: Uuid,
        seen: Option<&'a ssntp_view::Instance>,
        kept: Option<&'a Arc<model::Instance>>,
    ) -> Self {
        let kept = kept.map(Arc::as_ref);
        let node = seen.map(|seen| seen.node).or(kept.and_then(|kept| kept.node));
        let known = seen.and_then(ssntp_view::Instance::ending);
        let ending = match (known.filter(ssntp_view::Ending::is_known), kept) {
            (Some(ending), _) => ending_text(&ending),
            (None, kept) => kept.map_or_else(String::new, |kept| kept.ending.clone()),
        };
        Self {
            ending: scene.readable(&ending).to_owned(),
            uuid,
            node,
            seen,
            kept,
            on: node.and_then(|node| scene.picture.view.node(node)),
            place: node.map(|node| scene.node(node)),
            now: scene.now(),
        }
    }

    pub(super) fn workload(&self) -> &'a str {
        self.kept.map_or("", |kept| &kept.workload)
    }

    fn name(&self) -> &'a str {
        self.seen.map_or("", |seen| &seen.stats.name)
    }

    pub(super) fn state(&self) -> Badge {
        let is_wanted = self.kept.is_some_and(|kept| kept.wanted);
        let Some(seen) = self.seen else {
            return match self.kept.map(|kept| kept.state) {
                Some(Kept::Starting) => Badge(Grade::Wait, Kept::Starting.word()),
                Some(Kept::Failed) if is_wanted => Badge(Grade::Bad, Kept::Failed.word()),
                Some(Kept::Failed) => Badge(Grade::Past, Kept::Failed.word()),
                Some(Kept::Running | Kept::Lost) => Badge(Grade::Past, Kept::Lost.word()),
                Some(Kept::Done) => Badge(Grade::Past, Kept::Done.word()),
                None => Badge(Grade::Past, "gone"),
            };
        };
        let state = Kept::of(seen);
        // The state on a node that is gone or late is of the past.
        if !self.on.is_some_and(Node::is_current) {
            return Badge(
                Grade::Past,
                match state {
                    Kept::Running => "was running",
                    Kept::Starting => "was starting",
                    ended => ended.word(),
                },
            );
        }
        match (&seen.state, state) {
            (InstanceState::Stopping, _) => Badge(Grade::Wait, "stopping"),
            (InstanceState::ExitPaused, _) => Badge(Grade::Wait, "paused"),
            (InstanceState::Deleted, _) => Badge(Grade::Past, "deleted"),
            (InstanceState::ExitFailed, _) => Badge(Grade::Bad, "exit failed"),
            (InstanceState::Hung, _) => Badge(Grade::Bad, "hung"),
            (InstanceState::Missing, _) => Badge(Grade::Bad, "missing"),
            (InstanceState::Active, _) => Badge(Grade::Good, state.word()),
            (InstanceState::Pending, _) => Badge(Grade::Wait, state.word()),
            (_, Kept::Failed) if is_wanted => Badge(Grade::Bad, state.word()),
            (_, Kept::Failed | Kept::Done) => Badge(Grade::Past, state.word()),
            _ => Badge(Grade::Warn, "unknown"),
        }
    }

    fn since(&self) -> Option<SystemTime> {
        let seen = self.seen.map(|seen| seen.since);
        seen.or(self.kept.map(|kept| time(kept.since)))
    }

    pub(super) fn link(&self) -> Link<'a> {
        Link::instance(self.uuid, self.name())
    }
}

/// All instances: first those that the scheduler reports, then those that only the reconciler knows.
pub(super) fn all<'a>(scene: &Scene<'a>) -> Vec<InstanceRow<'a>> {
    let picture: &'a Picture = scene.picture;
    let kept = &picture.kept.state.instances;
    let seen = picture.view.instances();
    let seen = seen.map(|seen| InstanceRow::of(scene, seen.uuid, Some(seen), kept.get(&seen.uuid)));
    let unseen = kept
        .values()
        .filter(|kept| picture.view.instance(kept.uuid).is_none());
    let unseen = unseen.map(|kept| InstanceRow::of(scene, kept.uuid, None, Some(kept)));
    seen.chain(unseen).collect()
}

pub(super) fn list(scene: &Scene<'_>, main: &mut Html) -> Result<(), Missing> {
    table(scene, main, |_| true);
    Ok(())
}

pub(super) fn table(scene: &Scene<'_>, out: &mut Html, fits: impl Fn(&InstanceRow<'_>) -> bool) {
    #[rustfmt::skip] // A table: one entry a column.
    let columns = [
        Column("name", "Instance", "name", |row: &InstanceRow<'_>| text(row.name()).showing(&row.link())),
        Column("state", "State", "", |row| match row.ending.as_str() {
            "" => badge(row.state()),
            ending => badge(row.state()).showing(&piece!({row.state()} " <small>" {*ending} "</small>")),
        }),
        Column("workload", "Workload", "", |row| match row.workload() {
            "" => text(""),
            name => text(name).showing(&WorkloadLink(name)),
        }),
        Column("node", "Node", "", |row| match row.place.filter(|_| row.on.is_some()) {
            Some(place) => text(place.name).showing(&place),
            None => text(""),
        }),
        Column("cpu", "CPU", "n opt", |row| match row.seen.map_or(-1, |seen| seen.stats.cpu_usage) {
            percent @ 0.. => number(percent).showing(&piece!({percent} " %")),
            _ => number(-1).showing("–"),
        }),
        Column("memory", "Memory", "n opt", |row| {
            let used = row.seen.map_or(-1, |seen| seen.stats.memory_usage_mb);
            number(used).showing(&megabytes(used))
        }),
        Column("restarts", "Restarts", "n opt", |row| number(row.seen.map_or(0, |seen| seen.stats.restarts))),
        Column("since", "Since", "n", |row| match row.since() {
            Some(at) => age(at, row.now),
            None => number(0).showing(""),
        }),
    ];
    let table = Table {
        caption: "Instances",
        columns: &columns,
        id: |row| format!("i{}", row.uuid),
        find: |row| {
            let host = row.on.map_or("", |on| &on.stats.hostname);
            let mut text = format!(
                "{} {} {} {host} {}",
                row.name(),
                row.uuid,
                row.workload(),
                row.ending
            );
            for (label, value) in row.seen.iter().flat_map(|seen| &seen.stats.labels) {
                text += &format!(" {label}={value}");
            }
            text
        },
        state: |row| Some(row.state()),
        sort: "name",
        empty: "There is no instance here.",
    };
    let rows = all(scene).into_iter().filter(fits).collect();
    table.show(out, scene.params, rows);
}

pub(super) fn one(scene: &Scene<'_>, main: &mut Html, uuid: Uuid) -> Made {
    let history = scene.newest(100, |query| query.instance = Some(uuid.into()))?;
    let kept = scene.picture.kept.state.instances.get(&uuid);
    let found = InstanceRow::of(scene, uuid, scene.picture.view.instance(uuid), kept);
    // The history may have rows about an instance that was deleted.
    if found.seen.is_none() && kept.is_none() && history.is_empty() {
        return Err(Missing::Unknown);
    }
    let name = named(found.name(), uuid);
    html!(main; "<p class='way'><a href='/instances'>Instances</a></p><h1>" {name} " " {found.state()} "</h1>");
    if let (Some(on), Some(_)) = (found.on, found.seen)
        && !on.is_current()
    {
        html!(main; "<p class='was'>Its node was last heard " {scene.age(on.seen.unwrap_or(on.since))}
            ". The present state of the instance is unknown.</p>");
    }
    let (mut workload, mut node, mut since) = (Html::default(), Html::default(), Html::default());
    if let Some(kept) = found.kept {
        html!(&mut workload; {WorkloadLink(&kept.workload)} ", slot " {kept.slot} ", version " {kept.version});
    }
    if let Some(on) = found.node {
        html!(&mut node; {scene.node(on)});
    }
    if let Some(at) = found.since() {
        html!(&mut since; {scene.age(at)});
    }
    let stats = found.seen.map(|seen| &seen.stats);
    let of =
        |text: fn(&ssntp_payload::InstanceStats) -> String| piece!({ stats.map(text).unwrap_or_default() });
    #[rustfmt::skip] // A table: one entry a fact.
    let shown = [
        ("In this state since", since),
        ("How it ended", piece!({found.ending})),
        ("In detail", of(|stats| stats.detail.to_string())),
        ("Health", of(|stats| without_output(&stats.health_text()).to_owned())),
        ("Workload", workload),
        ("Node", node),
        ("Ran for", of(ran)),
        ("Restarts", of(|stats| stats.restarts.to_string())),
        ("CPU", of(|stats| format!("{} %", known(stats.cpu_usage)))),
        ("Memory", of(|stats| megabytes(stats.memory_usage_mb))),
        ("Disk", of(|stats| megabytes(stats.disk_usage_mb))),
        ("Address", of(|stats| stats.private_ip.map(|ip| ip.to_string()).unwrap_or_default())),
        ("SSH", of(|stats| match &*stats.ssh_ip {
            "" => String::new(),
            ip => format!("{ip}:{}", stats.ssh_port),
        })),
        ("Labels", of(|stats| labels(&stats.labels))),
        ("UUID", piece!({uuid})),
    ];
    facts(main, shown);
    match found.seen {
        Some(_) if scene.shows_output => output(scene, main, uuid),
        Some(_) => {
            html!(main; "<h2>Output</h2><p class='hint'><a href='/login'>Log in</a> to see the output.</p>")
        }
        None => {}
    }
    html!(main; "<h2>What happened</h2>");
    scene.rows(main, &history);
    Ok(name)
}

/// The duration of the last run; empty if it has not ended.
fn ran(stats: &ssntp_payload::InstanceStats) -> String {
    let [from, to] = [&stats.started, &stats.ended].map(|stamp| timestamp::parse(stamp).unwrap_or(0));
    if from > 0 && to >= from {
        Span(Duration::from_nanos(to - from)).to_string()
    } else {
        String::new()
    }
}

/// The last lines of output. The script of the page fills this element itself, so it stays empty if
/// the script reloads the page.
fn output(scene: &Scene<'_>, out: &mut Html, uuid: Uuid) {
    html!(out; "<h2>Output</h2><pre id='output' data-of='" {uuid} "' tabindex='0' role='region' aria-label='Output'>");
    let pieces = match Answer::permit(scene.waiting, MOST_WAITING) {
        _ if scene.is_followed => VecDeque::new(),
        Ok(_permit) => last_pieces(scene, uuid),
        Err(_) => [Written::End(Some(
            "too many pages wait for nodes; load this page again".into(),
        ))]
        .into(),
    };
    for piece in &pieces {
        match piece {
            Written::Out(text) => html!(out; "<span class='out'>" {text} "</span>"),
            Written::Err(text) => html!(out; "<span class='err'>" {text} "</span>"),
            Written::End(Some(why)) => html!(out; "<span class='end'>The output ends: " {why} "</span>"),
            Written::End(None) => {}
        }
    }
    html!(out; "</pre><p class='hint'><code>ssntp ctl logs " {uuid} "</code> shows the whole output.</p>");
}

/// The last pieces of the output, as far as the node sends them in time.
fn last_pieces(scene: &Scene<'_>, uuid: Uuid) -> VecDeque<Written> {
    let mut output = match scene.source.output(uuid, false) {
        Ok(output) => output,
        Err(why) => return [Written::End(Some(why))].into(),
    };
    let (mut pieces, mut bytes) = (VecDeque::new(), 0);
    let end = deadline(SENDING);
    while let Ok(limit) = left(end)
        && let Some(piece) = output(limit)
    {
        bytes += length(&piece);
        let is_over = matches!(piece, Written::End(_));
        pieces.push_back(piece);
        // The oldest pieces are dropped, because the last lines are the ones to show.
        while bytes > OUTPUT
            && let Some(first) = pieces.pop_front()
        {
            bytes -= length(&first);
        }
        if is_over {
            return pieces;
        }
    }
    let why = "the node has not sent the rest in time";
    pieces.push_back(Written::End(Some(why.into())));
    pieces
}

fn length(piece: &Written) -> usize {
    match piece {
        Written::Out(text) | Written::Err(text) => text.len(),
        Written::End(_) => 0,
    }
}
