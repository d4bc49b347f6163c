//! The history, page by page.

use super::html::{Html, html};
use super::scene::{Missing, Scene};
use super::table::{ROWS, choice, neighbour, search_form};
use crate::clock::time;
use crate::model::Row;
use crate::store::Query;

const KINDS: [&str; 16] = [
    "applied", "deleted", "rollout", "starting", "running", "ended", "gone", "lost", "failed", "adopted",
    "state", "node", "session", "tenant", "trace", "refused",
];
/// The maximum number of rows that one search reads, so that it does not read the history of a whole year.
const MOST_SEARCHED: usize = 20_000;
/// The number of rows that are read at a time.
const CHUNK: usize = 1000;

/// | parameter | means |
/// |---|---|
/// | `q` | only rows that contain all of these words |
/// | `kind`, `workload`, `instance`, `node` | only rows of this kind, or about this one |
/// | `before`, `after` | the rows next to the row of this number |
/// | `sort` | `-id`: the newest first, which is the default; `id`: the oldest first |
pub(super) fn list(scene: &Scene<'_>, main: &mut Html) -> Result<(), Missing> {
    let params = scene.params;
    let text = |name| Some(params.get(name).to_owned()).filter(|text| !text.is_empty());
    let oldest_first = params.get("sort") == "id";
    let query = Query {
        after: params.number("after"),
        before: params.number("before"),
        workload: text("workload"),
        instance: params.number("instance"),
        node: params.number("node"),
        kind: text("kind"),
        // The rows next to a certain one are read in the direction away from that row, whichever
        // order they are shown in.
        newest_first: match (params.number::<i64>("before"), params.number::<i64>("after")) {
            (None, None) => !oldest_first,
            (before, _) => before.is_some(),
        },
        limit: CHUNK,
        tenant: None,
    };
    let (mut rows, next) = search(scene, query.clone())?;
    if query.newest_first == oldest_first {
        rows.reverse();
    }
    search_form(main, params);
    html!(main; "<nav class='states' aria-label='Kinds'>");
    for kind in std::iter::once("").chain(KINDS) {
        let query = params.query(&[("kind", kind), ("before", ""), ("after", "")]);
        let word = if kind.is_empty() { "all" } else { kind };
        choice(main, &query, kind == params.get("kind"), &word);
    }
    html!(main; "</nav></div>");
    for about in ["workload", "instance", "node"] {
        if !params.get(about).is_empty() {
            html!(main; "<p>Only about " {about} " " {params.get(about)} ": <a href='"
                {params.query(&[(about, "")])} "'>show all</a></p>");
        }
    }
    match (rows.is_empty(), next) {
        (false, _) => table(scene, main, &rows, oldest_first),
        (true, None) => html!(main; "<p class='empty'>The history has no such row.</p>"),
        (true, Some(_)) => html!(main; "<p class='empty'>There is no such row among the " {MOST_SEARCHED}
            " that were searched.</p>"),
    }
    pager(scene, main, &rows, next, &query);
    Ok(())
}

/// The first rows that contain the words, and the number of the row after which the next page begins, if
/// there are more rows to search.
fn search(scene: &Scene<'_>, mut query: Query) -> Result<(Vec<Row>, Option<i64>), Missing> {
    let words = scene.params.get("q").to_lowercase();
    let (mut found, mut searched) = (Vec::new(), None);
    for _ in 0..MOST_SEARCHED / CHUNK {
        let rows = scene.found(&query)?;
        let is_last = rows.len() < CHUNK;
        searched = rows.last().map(|row| row.id);
        for row in rows {
            let workload = row.workload.as_deref().unwrap_or_default();
            let text = format!("{} {} {workload}", row.kind, row.text).to_lowercase();
            if words.split_whitespace().all(|word| text.contains(word)) {
                // One more row than a page holds shows that there is a next page.
                if found.len() == ROWS {
                    let last = found.last().map(|row: &Row| row.id);
                    return Ok((found, last));
                }
                found.push(row);
            }
        }
        if is_last {
            return Ok((found, None));
        }
        let from = if query.newest_first {
            &mut query.before
        } else {
            &mut query.after
        };
        *from = searched;
    }
    Ok((found, searched))
}

fn table(scene: &Scene<'_>, out: &mut Html, rows: &[Row], oldest_first: bool) {
    let (sign, heard, next) = if oldest_first {
        ("▲", "ascending", "")
    } else {
        ("▼", "descending", "id")
    };
    let query = scene
        .params
        .query(&[("sort", next), ("before", ""), ("after", "")]);
    html!(out; "<div class='scroll' tabindex='0' role='region' aria-label='Events'><table><thead><tr>"
        "<th scope='col' class='n opt'>Row</th><th scope='col' aria-sort='" {heard} "'><a href='" {query}
        "'>When<span class='sign' aria-hidden='true'>" {sign} "</span></a></th><th scope='col'>Kind</th>"
        "<th scope='col'>What</th></tr></thead><tbody>");
    for row in rows {
        html!(out; "<tr id='e" {row.id} "'><td class='n opt'>" {row.id} "</td><td class='when'>"
            {scene.age(time(row.at))} "</td><td><b class='kind'>" {row.kind} "</b></td><td class='text'>");
        scene.text(out, row);
        html!(out; "</td></tr>");
    }
    html!(out; "</tbody></table></div>");
}

fn pager(scene: &Scene<'_>, out: &mut Html, rows: &[Row], next: Option<i64>, query: &Query) {
    let ids = || rows.iter().map(|row| row.id);
    // A page without rows links back to the row that it was asked for.
    let (older, newer) = if query.newest_first {
        let back = |before: i64| ids().max().unwrap_or(before.saturating_sub(1));
        (next, query.before.map(back))
    } else {
        let back = |after: i64| ids().min().unwrap_or(after.saturating_add(1));
        (query.after.map(back), next)
    };
    if rows.is_empty() && older.or(newer).is_none() {
        return;
    }
    let to = |id: Option<i64>, set: &str, unset: &str| {
        id.map(|id| scene.params.query(&[(set, &id.to_string()), (unset, "")]))
    };
    html!(out; "<nav class='pager' aria-label='Pages'>");
    neighbour(out, to(newer, "after", "before"), "← Newer", "prev");
    neighbour(out, to(older, "before", "after"), "Older →", "next");
    html!(out; "</nav>");
}
