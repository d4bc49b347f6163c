//! The pages for people: HTML that works without a script, and one script that keeps an open page up
//! to date.
//!
//! ```text
//!  Picture ─┐                     ┌─▶ a whole page
//!  rows ────┼─▶ a view ─▶ Html ───┤
//!  address ─┘   (tables, charts)  └─▶ page.js loads the page again after an event of /api/v1/events,
//!                                     and replaces the elements that differ
//! ```
//!
//! So all HTML is made in one place. All text goes through [`html::Html`], which escapes it.
//!
//! | file | holds |
//! |---|---|
//! | `scene` | what each page is made from |
//! | `html` | the type for HTML, which escapes text |
//! | `params` | the query of an address |
//! | `table` | tables that sort and filter |
//! | `chart` | figures over time, waterfalls |
//! | `words` | short texts for times, sizes, states |
//! | `now` | the first page: problems, and the last changes |
//! | `nodes`, `instances`, `workloads` | the lists, and the pages of single ones |
//! | `events` | the history |
//! | `traces` | the hops of a traced frame |
//! | `sessions`, `tenants` | lists that the scheduler sends |

mod chart;
mod events;
pub(crate) mod html;
mod instances;
mod nodes;
mod now;
pub(crate) mod params;
pub(crate) mod scene;
mod sessions;
mod table;
mod tenants;
mod traces;
mod words;
mod workloads;

use std::time::SystemTime;

use uuid::Uuid;

use self::html::{Html, html};
use self::scene::{Missing, Scene};
use self::words::{Badge, Grade};
use crate::source::Picture;
use ssntp::pki::rfc3339;

pub(crate) const STYLE: &str = include_str!("../../assets/page.css");
pub(crate) const SCRIPT: &str = include_str!("../../assets/page.js");
pub(crate) const ICON: &str = include_str!("../../assets/icon.svg");

type Contents = fn(&Scene<'_>, &mut Html) -> Result<(), Missing>;

/// The pages in the menu: address, title, and the function that adds all but the title.
pub(crate) const MENU: [(&str, &str, Contents); 8] = [
    ("/", "Now", now::view),
    ("/nodes", "Nodes", nodes::list),
    ("/workloads", "Workloads", workloads::list),
    ("/instances", "Instances", instances::list),
    ("/events", "Events", events::list),
    ("/traces", "Traces", traces::list),
    ("/sessions", "Sessions", sessions::list),
    ("/tenants", "Tenants", tenants::list),
];

pub(crate) fn page(scene: &Scene<'_>, path: &str) -> Result<String, Missing> {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let uuid = |text: &str| text.parse::<Uuid>().map_err(|_| Missing::Unknown);
    let mut content = Html::default();
    let main = &mut content;
    if let Some((to, title, view)) = MENU.iter().find(|(to, ..)| *to == path) {
        // The first page begins with its tiles.
        let class = if *to == "/" { "only-heard" } else { "" };
        html!(main; "<h1 class='" {class} "'>" {title} "</h1>");
        view(scene, main)?;
        return Ok(frame(Some(scene.picture), path, title, &content));
    }
    let title = match parts[..] {
        ["nodes", node] => nodes::one(scene, main, uuid(node)?),
        ["workloads", name] => workloads::one(scene, main, &params::decode(name)),
        ["instances", instance] => instances::one(scene, main, uuid(instance)?),
        ["traces", row] => traces::one(scene, main, row.parse().map_err(|_| Missing::Unknown)?),
        _ => Err(Missing::Unknown),
    }?;
    Ok(frame(Some(scene.picture), path, &title, &content))
}

pub(crate) fn failure(path: &str, title: &str, why: &str) -> String {
    let mut main = Html::default();
    html!(&mut main; "<h1>" {title} "</h1><p>" {why} "</p><p><a href='/'>To the first page</a></p>");
    frame(None, path, title, &main)
}

/// The page on which a user enters a token, with the reason why the last token was refused, if any.
pub(crate) fn login(why: &str) -> String {
    let mut main = Html::default();
    html!(&mut main; "<h1>Log in</h1><form class='login' method='post' action='/login'>"
        "<label>Token <input type='password' name='token' autocomplete='off' required autofocus></label>"
        "<button>Log in</button></form>");
    if !why.is_empty() {
        html!(&mut main; "<p role='alert'>" {Badge(Grade::Bad, "refused")} ": " {why} "</p>");
    }
    html!(&mut main; "<p class='hint'><code>ssntp controller token add NAME</code> makes a token.</p>");
    frame(None, "/login", "Log in", &main)
}

/// A whole page: the head, the menu and the main part.
fn frame(picture: Option<&Picture>, path: &str, title: &str, main: &Html) -> String {
    let mut out = Html::default();
    html!(&mut out; "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<meta name='color-scheme' content='light dark'><title>" {title} " – ssntp</title>"
        "<link rel='icon' href='/icon.svg'><link rel='stylesheet' href='/page.css'>"
        "<script src='/page.js' defer></script></head>");
    // The script follows the events after this row, so it misses no change since the page was made.
    let after = picture.map(|picture| picture.kept.revision);
    html!(&mut out; "<body data-after='" {after.map(|id| id.to_string()).unwrap_or_default()}
        "'><a class='skip' href='#main'>To the content</a><header><a class='brand' href='/'>ssntp</a>"
        "<nav aria-label='Pages'><ul>");
    for (to, name, _) in MENU {
        let is_here = path == to || (to != "/" && path.starts_with(to));
        let current = if is_here { "page" } else { "false" };
        html!(&mut out; "<li><a href='" {to} "' aria-current='" {current} "'>" {name} "</a></li>");
    }
    html!(&mut out; "</ul></nav><p id='live' role='status'>");
    if let Some(picture) = picture {
        html!(&mut out; "as of <time datetime='" {rfc3339(picture.taken)} "'>" {clock(picture.taken)} "</time> UTC");
    }
    html!(&mut out; "</p></header><main id='main'>" {*main} "</main><noscript><p class='hint'>"
        "Without its script this page does not update itself; load it again.</p></noscript></body></html>");
    out.into_string()
}

/// The time of the day: `hh:mm:ss`.
fn clock(at: SystemTime) -> String {
    rfc3339(at).get(11..19).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
