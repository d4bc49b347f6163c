//! The first page: the present problems, and the last changes.

use std::time::Duration;

use super::html::{Html, Show, html, piece};
use super::instances::InstanceRow;
use super::params::encode;
use super::scene::{Missing, Scene};
use super::words::{Badge, Bytes, Grade};
use super::{instances, nodes, tenants, workloads};
use crate::clock::time;

/// The maximum number of nodes or instances that a problem names. The rest are counted.
const NAMED: usize = 8;
/// A certificate that expires within this time is a warning.
const SOON: Duration = Duration::from_secs(30 * 86_400);
/// A certificate that expires within this time is a fault.
const VERY_SOON: Duration = Duration::from_secs(3 * 86_400);
/// A queue of more bytes is a warning.
const BACKLOG: u64 = 1 << 20;

/// A problem, which may be that of several nodes, instances or sessions.
struct Trouble {
    grade: Grade,
    what: Html,
    /// The address of a page with more about it.
    to: String,
    named: Vec<Html>,
    /// What happened, a line each.
    lines: Vec<Html>,
    /// A command, and what it is for.
    command: Option<(&'static str, String)>,
}

const TO_LOOK: &str = "look";
const TO_END_IT: &str = "end it";

impl Trouble {
    fn new(grade: Grade, to: &str, what: &(impl Show + ?Sized)) -> Self {
        Self {
            grade,
            what: shown(what),
            to: to.to_owned(),
            named: Vec::new(),
            lines: Vec::new(),
            command: None,
        }
    }
}

fn shown(what: &(impl Show + ?Sized)) -> Html {
    piece!({ *what })
}

pub(super) fn view(scene: &Scene<'_>, main: &mut Html) -> Result<(), Missing> {
    let mut problems = problems(scene);
    problems.sort_by_key(|problem| problem.grade);
    tiles(scene, main);
    html!(main; "<section aria-labelledby='wrong'><h2 id='wrong'>What is wrong now</h2>");
    if problems.is_empty() {
        html!(main; "<p class='well'>" {Badge(Grade::Good, "Nothing is wrong.")} "</p>");
    } else {
        html!(main; "<ul class='problems'>");
        for problem in &problems {
            let state = match problem.grade {
                Grade::Bad => Badge(Grade::Bad, "wrong"),
                Grade::Warn => Badge(Grade::Warn, "warning"),
                grade => Badge(grade, "under way"),
            };
            html!(main; "<li>" {state} " <div><a href='" {problem.to} "'>" {problem.what} "</a>");
            if !problem.named.is_empty() {
                html!(main; "<p>");
                for (at, named) in problem.named.iter().take(NAMED).enumerate() {
                    if at > 0 {
                        html!(main; ", ");
                    }
                    main.show(named);
                }
                if problem.named.len() > NAMED {
                    html!(main; " and " {problem.named.len() - NAMED} " more");
                }
                html!(main; "</p>");
            }
            for line in &problem.lines {
                html!(main; "<p>" {*line} "</p>");
            }
            if let Some((purpose, command)) = &problem.command {
                html!(main; "<p>" {*purpose} ": <code>" {command} "</code></p>");
            }
            html!(main; "</div></li>");
        }
        html!(main; "</ul>");
    }
    html!(main; "</section><section aria-labelledby='last'><h2 id='last'>What changed last</h2>");
    // The problems are shown also if the database is the problem.
    match scene.newest(30, |_| {}) {
        Ok(rows) => scene.rows(main, &rows),
        Err(why) => html!(main; "<p>The history cannot be read: " {why} "</p>"),
    }
    html!(main; "<p><a href='/events'>All events</a></p></section>");
    Ok(())
}

/// The cluster in four numbers.
fn tiles(scene: &Scene<'_>, out: &mut Html) {
    let picture = scene.picture;
    let (mut running, mut wanted) = (0, 0);
    for status in picture.kept.status.values() {
        running += status.running;
        wanted += status.wanted.saturating_sub(status.done);
    }
    let connected = picture.view.nodes().filter(|node| node.connected).count();
    let all = instances::all(scene);
    let active = all
        .iter()
        .filter(|instance| instance.state().0 == Grade::Good)
        .count();
    #[rustfmt::skip] // A table: one row a tile.
    let tiles = [
        ("/workloads", "Wanted instances that run", u64::from(running), u64::from(wanted)),
        ("/nodes", "Nodes connected", connected as u64, picture.view.nodes().count() as u64),
        ("/instances", "Instances that run", active as u64, all.len() as u64),
    ];
    html!(out; "<ul class='tiles'>");
    for (to, name, some, all) in tiles {
        html!(out; "<li><a href='" {to} "'><b>" {some} "</b> of " {all} "<span>" {name} "</span></a></li>");
    }
    html!(out; "<li><a href='/workloads'><b>" {picture.kept.state.workloads.len()} "</b><span>Workloads</span></a></li></ul>");
}

fn problems(scene: &Scene<'_>) -> Vec<Trouble> {
    let mut problems = Vec::new();
    let health = &scene.picture.kept.health;
    if !health.online {
        let what = "There is no session with the scheduler: these pages show the last known state";
        problems.push(Trouble::new(Grade::Bad, "/events?kind=session", what));
    } else if !health.told {
        let what = "The scheduler is still reporting its nodes";
        problems.push(Trouble::new(Grade::Wait, "/nodes", what));
    }
    if let Some(why) = &health.store {
        let what = format!("The database cannot be written, so no instance is started: {why}");
        problems.push(Trouble::new(Grade::Bad, "/events", &what));
    }
    if health.online && !health.leads {
        let what = "Another controller is the master: this one starts and deletes no instance";
        problems.push(Trouble::new(Grade::Warn, "/events?kind=session", what));
    }
    of_workloads(scene, &mut problems);
    of_nodes(scene, &mut problems);
    of_instances(scene, &mut problems);
    of_tenants(scene, &mut problems);
    of_sessions(scene, &mut problems);
    of_certificates(scene, &mut problems);
    problems
}

fn of_workloads(scene: &Scene<'_>, problems: &mut Vec<Trouble>) {
    for listed in workloads::all(scene) {
        let Badge(grade, word) = listed.state();
        // A deletion is an order of a user, so it is not a problem.
        if grade == Grade::Good || word == "deleting" {
            continue;
        }
        let (status, why) = (&listed.status, &listed.why);
        let name = &listed.workload.name;
        let mut what =
            piece!("Workload " {name} " is " {word} ": " {status.running} " of " {status.wanted} " run");
        if !why.is_empty() {
            html!(&mut what; "; " {why});
        }
        let mut problem = Trouble::new(grade, &format!("/workloads/{}", encode(name)), &what);
        // Each costs a query.
        if problems.len() < NAMED {
            problem.lines = last_changes(scene, name);
        }
        problem.command = Some(match word {
            "paused" => (TO_END_IT, format!("ssntp ctl rollout {name} --resume")),
            _ => (TO_LOOK, format!("ssntp ctl get {name}")),
        });
        problems.push(problem);
    }
}

/// What happened to a workload last, and what a person did to it last.
fn last_changes(scene: &Scene<'_>, name: &str) -> Vec<Html> {
    // Without a history the problem is shown all the same.
    let rows = scene.newest(50, |query| query.workload = Some(name.to_owned()));
    let rows = rows.unwrap_or_default();
    let by_person = rows.iter().skip(1).find(|row| row.actor.is_some());
    let last = rows.first().into_iter().chain(by_person);
    let shown = last.map(|row| {
        let mut out = piece!({scene.age(time(row.at))} ": " {row.text});
        if let Some(actor) = &row.actor {
            html!(&mut out; " (by " {actor} ")");
        }
        out
    });
    shown.collect()
}

/// Adds one problem for all nodes, instances or sessions in the same state, if there are any.
fn together(
    problems: &mut Vec<Trouble>,
    grade: Grade,
    to: &str,
    (one, many): (&str, &str),
    named: Vec<Html>,
    command: Option<(&'static str, String)>,
) {
    let what = match named.len() {
        0 => return,
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    };
    let mut problem = Trouble::new(grade, to, &what);
    problem.named = named;
    problem.command = command;
    problems.push(problem);
}

#[rustfmt::skip] // Tables: one row a state.
const NODES: [(&str, Grade, (&str, &str)); 5] = [
    ("gone", Grade::Bad, ("node is gone", "nodes are gone")),
    ("offline", Grade::Bad, ("node takes no commands", "nodes take no commands")),
    ("late", Grade::Warn, ("node is late with its STATS", "nodes are late with their STATS")),
    ("full", Grade::Warn, ("node is full", "nodes are full")),
    ("maintenance", Grade::Wait, ("node is in maintenance", "nodes are in maintenance")),
];
#[rustfmt::skip]
const INSTANCES: [(&str, (&str, &str)); 4] = [
    ("failed", ("wanted instance has failed", "wanted instances have failed")),
    ("hung", ("instance hangs", "instances hang")),
    ("missing", ("instance is missing on its node", "instances are missing on their nodes")),
    ("exit failed", ("instance could not be stopped", "instances could not be stopped")),
];

fn of_nodes(scene: &Scene<'_>, problems: &mut Vec<Trouble>) {
    for (word, grade, words) in NODES {
        let nodes = scene.picture.view.nodes();
        let nodes: Vec<_> = nodes.filter(|node| nodes::state(node).1 == word).collect();
        let named = nodes.iter().map(|node| {
            let mut out = shown(&scene.node(node.uuid));
            match (word, node.seen) {
                ("gone", _) => html!(&mut out; " (" {scene.age(node.since)} ")"),
                ("late", Some(seen)) => {
                    html!(&mut out; " (heard " {scene.age(seen)} ", every " {node.stats.interval} " s)");
                }
                _ => {}
            }
            out
        });
        let (purpose, verb) = match word {
            "maintenance" => (TO_END_IT, "restore"),
            _ => (TO_LOOK, "describe"),
        };
        let first = nodes.first().map(|node| scene.picture.view.beginning(node.uuid));
        let command = first.map(|first| (purpose, format!("ssntp ctl {verb} {first}")));
        let to = format!("/nodes?state={word}");
        together(problems, grade, &to, words, named.collect(), command);
    }
}

fn of_instances(scene: &Scene<'_>, problems: &mut Vec<Trouble>) {
    let all = instances::all(scene);
    for (word, words) in INSTANCES {
        // A failed instance that is not wanted only stays for its output.
        let is_found =
            |instance: &&InstanceRow<'_>| matches!(instance.state(), Badge(Grade::Bad, its) if its == word);
        let found: Vec<_> = all.iter().filter(is_found).collect();
        let named = found.iter().map(|instance| shown(&instance.link())).collect();
        let verb = if word == "failed" { "logs" } else { "describe" };
        let first = found.first().map(|instance| instance.link().uuid);
        let first = first.map(|first| scene.picture.view.beginning(first));
        let command = first.map(|first| (TO_LOOK, format!("ssntp ctl {verb} {first}")));
        let to = format!("/instances?state={}", encode(word));
        together(problems, Grade::Bad, &to, words, named, command);
    }
}

fn of_tenants(scene: &Scene<'_>, problems: &mut Vec<Trouble>) {
    let Ok(tenants) = &scene.source.tenants() else {
        return;
    };
    let all = tenants::all(scene, tenants);
    let lost = all.iter().filter(|row| row.state().0 == Grade::Bad);
    let named = lost.map(|row| shown(&row.tenant.name)).collect();
    let words = ("tenant has no concentrator", "tenants have no concentrator");
    let command = Some((TO_LOOK, "ssntp ctl tenant list".to_owned()));
    together(problems, Grade::Bad, "/tenants", words, named, command);
}

fn of_sessions(scene: &Scene<'_>, problems: &mut Vec<Trouble>) {
    let Ok(sessions) = &scene.source.sessions() else {
        return;
    };
    let full = sessions.iter().filter(|session| session.bytes_waiting > BACKLOG);
    let named = full.map(|session| {
        let mut out = match session.uuid.uuid() {
            Some(uuid) if scene.picture.view.node(uuid).is_some() => shown(&scene.node(uuid)),
            Some(uuid) => piece!({session.roles} " " {uuid}),
            None => shown(&session.address),
        };
        html!(&mut out; " (" {Bytes(session.bytes_waiting)} ")");
        out
    });
    let (one, many) = (
        "session has more than 1 MiB waiting",
        "sessions have more than 1 MiB waiting",
    );
    let (named, command) = (named.collect(), Some((TO_LOOK, "ssntp ctl sessions".to_owned())));
    let to = "/sessions?sort=-waiting";
    together(problems, Grade::Warn, to, (one, many), named, command);
}

fn of_certificates(scene: &Scene<'_>, problems: &mut Vec<Trouble>) {
    for (whose, end) in &scene.picture.certificates {
        let left = end.duration_since(scene.now()).unwrap_or_default();
        if left < SOON {
            let grade = if left < VERY_SOON { Grade::Bad } else { Grade::Warn };
            let verb = if left.is_zero() { "ended" } else { "ends" };
            let what = piece!("The certificate of " {*whose} " " {verb} " " {scene.age(*end)});
            problems.push(Trouble::new(grade, "/sessions", &what));
        }
    }
}
