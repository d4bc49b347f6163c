//! What each page is made from, and the parts that several pages have.

use std::fmt::Display;
use std::sync::Arc;
use std::time::SystemTime;

use uuid::Uuid;

use super::html::{Html, html};
use super::params::Params;
use super::words::{Age, Link, WorkloadLink};
use crate::clock::time;
use crate::model::{Row, without_output, without_output_of_check};
use crate::source::{Picture, Source};
use crate::store::Query;

pub(crate) struct Scene<'a> {
    pub(crate) picture: &'a Picture,
    pub(crate) source: &'a dyn Source,
    pub(crate) params: &'a Params,
    /// True if the script of the page reloads it. The script follows the output of an instance
    /// itself, so the page leaves the output out.
    pub(crate) is_followed: bool,
    /// True if the reader may see the output of instances.
    pub(crate) shows_output: bool,
    /// Each page that waits for a node holds a clone.
    pub(crate) waiting: &'a Arc<()>,
}

/// The reason why a page cannot be made.
pub(crate) enum Missing {
    /// No page has this path, or its node, instance or workload does not exist.
    Unknown,
    /// The data of the page cannot be read now.
    Unavailable(String),
}

impl From<String> for Missing {
    fn from(why: String) -> Self {
        Self::Unavailable(why)
    }
}

/// The title of a view. The view adds its content to the main part of the page.
pub(super) type Made = Result<String, Missing>;

impl<'a> Scene<'a> {
    pub(super) fn now(&self) -> SystemTime {
        self.picture.taken
    }

    pub(super) fn age(&self, at: SystemTime) -> Age {
        let now = self.now();
        Age { at, now }
    }

    pub(super) fn node(&self, uuid: Uuid) -> Link<'a> {
        let picture: &'a Picture = self.picture;
        let known = picture.view.node(uuid);
        Link {
            to: "nodes",
            uuid,
            name: known.map_or("", |node| &node.stats.hostname),
            distinction: picture.distinction(uuid),
        }
    }

    pub(super) fn instance(&self, uuid: Uuid) -> Link<'_> {
        let known = self.picture.view.instance(uuid);
        Link::instance(uuid, known.map_or("", |instance| &instance.stats.name))
    }

    /// The newest rows of the history. `only` adds conditions to the query.
    pub(super) fn newest(&self, limit: usize, only: impl FnOnce(&mut Query)) -> Result<Vec<Row>, String> {
        let mut query = Query {
            limit,
            newest_first: true,
            ..Query::default()
        };
        only(&mut query);
        self.found(&query)
    }

    /// The rows of the history that a query finds. A page shows no output of health checks, because it is
    /// for readers.
    pub(super) fn found(&self, query: &Query) -> Result<Vec<Row>, String> {
        let rows = self.source.rows(query)?.into_iter();
        Ok(rows.map(|row| row.cut(|text| self.readable(text))).collect())
    }

    /// As much of a text as the reader may see.
    pub(super) fn readable<'t>(&self, text: &'t str) -> &'t str {
        if self.shows_output {
            without_output_of_check(text)
        } else {
            without_output(text)
        }
    }

    pub(super) fn rows(&self, out: &mut Html, rows: &[Row]) {
        if rows.is_empty() {
            return html!(out; "<p class='empty'>The history has no rows about this.</p>");
        }
        html!(out; "<ol class='rows'>");
        for row in rows {
            html!(out; "<li id='e" {row.id} "'>" {self.age(time(row.at))} " <b class='kind'>" {row.kind} "</b> <span>");
            self.text(out, row);
            html!(out; "</span></li>");
        }
        html!(out; "</ol>");
    }

    /// The sentence of a row, with links to its workload, instance and node.
    pub(super) fn text(&self, out: &mut Html, row: &Row) {
        if row.kind == "trace" {
            html!(out; "<a href='/traces/" {row.id} "'>the hops of a frame</a>");
        } else {
            out.show(&row.text);
        }
        if let Some(actor) = &row.actor {
            html!(out; " (by " {actor} ")");
        }
        html!(out; "<span class='about'>");
        if let Some(name) = &row.workload {
            html!(out; {WorkloadLink(name)});
        }
        if let Some(instance) = row.instance {
            html!(out; {self.instance(instance)});
        }
        if let Some(node) = row.node {
            html!(out; {self.node(node)});
        }
        html!(out; "</span>");
    }
}

/// Shows names and values below each other; empty values are left out.
pub(super) fn facts<N: Display>(out: &mut Html, facts: impl IntoIterator<Item = (N, Html)>) {
    html!(out; "<dl class='facts'>");
    for (name, value) in facts.into_iter().filter(|(_, value)| !value.is_empty()) {
        html!(out; "<div><dt>" {name} "</dt><dd>" {value} "</dd></div>");
    }
    html!(out; "</dl>");
}
