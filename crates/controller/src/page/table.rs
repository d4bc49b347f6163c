//! Tables that sort and filter. The query of the address has the filter, the order and the page.
//!
//! | parameter | means |
//! |---|---|
//! | `q` | only rows that contain all of these words |
//! | `state` | only rows of this state |
//! | `sort` | the column to sort by; with `-` before it, in descending order |
//! | `page` | from 1 |

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::time::SystemTime;

use super::html::{Html, Show, html, piece};
use super::params::Params;
use super::words::{Age, Badge, Bytes, Grade};

/// The maximum number of rows of a page: enough for an overview, and few enough for a phone.
pub(crate) const ROWS: usize = 200;

/// The value by which a row is sorted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Number(i64),
    Text(String),
}

impl From<String> for Key {
    /// Texts are sorted without regard to case, and numbers in them by value: `web-2` comes before
    /// `web-10`.
    fn from(text: String) -> Self {
        let mut sorted = String::with_capacity(text.len());
        let mut digits = String::new();
        for c in text.to_lowercase().chars().chain(['\0']) {
            if c.is_ascii_digit() {
                digits.push(c);
                continue;
            }
            if !digits.is_empty() {
                let _ = write!(sorted, "{:0>20}", digits.trim_start_matches('0'));
                digits.clear();
            }
            sorted.push(c);
        }
        Self::Text(sorted)
    }
}

/// A cell: the value to sort by, and its content.
pub(crate) struct Cell(Key, Html);

impl Cell {
    /// The cell with this content in place of its value.
    pub(crate) fn showing(self, content: &(impl Show + ?Sized)) -> Self {
        Self(self.0, piece!({ *content }))
    }
}

pub(crate) fn number(value: impl TryInto<i64> + Display + Copy) -> Cell {
    Cell(
        Key::Number(value.try_into().unwrap_or(i64::MAX)),
        piece!({ value }),
    )
}

pub(crate) fn text(value: &str) -> Cell {
    Cell(value.to_owned().into(), piece!({ value }))
}

pub(crate) fn badge(badge: Badge) -> Cell {
    number(badge.0 as i64).showing(&badge)
}

pub(crate) fn bytes(count: u64) -> Cell {
    number(count).showing(&Bytes(count))
}

/// A time, by its distance from now.
pub(crate) fn age(at: SystemTime, now: SystemTime) -> Cell {
    let past = now.duration_since(at).unwrap_or_default();
    number(past.as_secs()).showing(&Age { at, now })
}

/// A column: its key in the address, its title, the classes of its cells (`n` for numbers, `opt` for
/// columns that a narrow screen leaves out), and the cell of a row.
pub(crate) struct Column<T>(
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) fn(&T) -> Cell,
);

pub(crate) struct Table<'a, T> {
    /// The name of the table, for screen readers.
    pub(crate) caption: &'static str,
    pub(crate) columns: &'a [Column<T>],
    /// The id of a row's element. It must stay the same for the same thing, because the script of
    /// the page finds the row by it.
    pub(crate) id: fn(&T) -> String,
    /// The text that the filter searches.
    pub(crate) find: fn(&T) -> String,
    /// The state of a row, if rows have one.
    pub(crate) state: fn(&T) -> Option<Badge>,
    /// The default of the parameter `sort`.
    pub(crate) sort: &'static str,
    /// The sentence that is shown if there are no rows at all.
    pub(crate) empty: &'static str,
}

impl<T> Table<'_, T> {
    pub(crate) fn show(&self, out: &mut Html, params: &Params, mut rows: Vec<T>) {
        if rows.is_empty() {
            return html!(out; "<p class='empty'>" {self.empty} "</p>");
        }
        let all = rows.len();
        let words = params.get("q").to_lowercase();
        if !words.is_empty() {
            rows.retain(|row| {
                let text = (self.find)(row).to_lowercase();
                words.split_whitespace().all(|word| text.contains(word))
            });
        }
        // The counts of the states are those of the rows that contain the words, so this comes before
        // the filter by state.
        self.tools(out, params, &rows, all);
        let state = params.get("state");
        if !state.is_empty() {
            rows.retain(|row| (self.state)(row).is_some_and(|Badge(_, word)| word == state));
        }
        self.order(params, &mut rows);
        let found = rows.len();
        let pages = found.div_ceil(ROWS).max(1);
        let page = params.number("page").unwrap_or(1).clamp(1, pages);
        let shown = rows.into_iter().skip((page - 1) * ROWS).take(ROWS);
        self.body(out, params, shown);
        if found == 0 {
            html!(out; "<p class='empty'>No row contains these words and has this state.</p>");
        }
        pager(out, params, page, pages, found);
    }

    fn order(&self, params: &Params, rows: &mut [T]) {
        let Some((Column(.., cell), falls)) = self.sorted_by(params) else {
            return;
        };
        // The id decides between equal rows, so that the order is the same on each page.
        rows.sort_by_cached_key(|row| (self.id)(row));
        if falls {
            rows.sort_by_cached_key(|row| Reverse(cell(row).0));
        } else {
            rows.sort_by_cached_key(|row| cell(row).0);
        }
    }

    /// The column to sort by, and true for descending order.
    fn sorted_by(&self, params: &Params) -> Option<(&Column<T>, bool)> {
        [params.get("sort"), self.sort].into_iter().find_map(|asked| {
            let name = asked.strip_prefix('-').unwrap_or(asked);
            let column = self.columns.iter().find(|column| column.0 == name)?;
            Some((column, name != asked))
        })
    }

    /// The search field, and a link for each state with the number of its rows.
    fn tools(&self, out: &mut Html, params: &Params, rows: &[T], all: usize) {
        search_form(out, params);
        let mut states = BTreeMap::<&str, usize>::new();
        for Badge(_, word) in rows.iter().filter_map(self.state) {
            *states.entry(word).or_default() += 1;
        }
        if !states.is_empty() {
            html!(out; "<nav class='states' aria-label='States'>");
            for (state, count) in std::iter::once(("", rows.len())).chain(states) {
                let words = piece!({if state.is_empty() { "all" } else { state }} " <b>" {count} "</b>");
                let query = params.query(&[("state", state), ("page", "")]);
                choice(out, &query, state == params.get("state"), &words);
            }
            html!(out; "</nav>");
        }
        if rows.len() != all {
            html!(out; "<p class='count'>" {rows.len()} " of " {all} "</p>");
        }
        html!(out; "</div>");
    }

    fn body(&self, out: &mut Html, params: &Params, rows: impl Iterator<Item = T>) {
        let sorted = self.sorted_by(params);
        let (sorted, falls) = sorted.map_or(("", false), |(Column(key, ..), falls)| (*key, falls));
        html!(out; "<div class='scroll' tabindex='0' role='region' aria-label='" {self.caption}
            "'><table><caption class='only-heard'>" {self.caption} "</caption><thead><tr>");
        for Column(key, title, class, ..) in self.columns {
            let (sign, heard, next) = match (*key == sorted, falls) {
                (true, false) => ("▲", "ascending", format!("-{key}")),
                (true, true) => ("▼", "descending", (*key).to_owned()),
                (false, _) => ("", "none", (*key).to_owned()),
            };
            let query = params.query(&[("sort", &next), ("page", "")]);
            html!(out; "<th scope='col' class='" {class} "' aria-sort='" {heard} "'><a href='"
                {query} "'>" {title} "<span class='sign' aria-hidden='true'>" {sign} "</span></a></th>");
        }
        html!(out; "</tr></thead><tbody>");
        for row in rows {
            let is_past = (self.state)(&row).is_some_and(|Badge(grade, _)| grade == Grade::Past);
            let class = if is_past { "over" } else { "" };
            html!(out; "<tr id='" {(self.id)(&row)} "' class='" {class} "'>");
            for Column(_, _, class, cell) in self.columns {
                html!(out; "<td class='" {class} "'>" {cell(&row).1} "</td>");
            }
            html!(out; "</tr>");
        }
        html!(out; "</tbody></table></div>");
    }
}

/// Begins the tools of a table with the search field. A search begins at the first page, so the
/// form leaves the page out.
pub(crate) fn search_form(out: &mut Html, params: &Params) {
    html!(out; "<div class='tools'><form role='search'>"
        "<label><span class='only-heard'>Rows that contain these words</span>"
        "<input type='search' name='q' id='q' placeholder='Filter' value='" {params.get("q")} "'></label>");
    for (name, value) in params.without(&["q", "page", "before", "after"]) {
        html!(out; "<input type='hidden' name='" {name} "' value='" {value} "'>");
    }
    html!(out; "<button>Filter</button></form>");
}

/// A link to another selection of rows. `is_current` marks the present selection.
pub(crate) fn choice(out: &mut Html, query: &str, is_current: bool, words: &impl Show) {
    html!(out; "<a href='" {query} "' aria-current='" {is_current} "'>");
    out.show(words);
    out.raw("</a>");
}

fn pager(out: &mut Html, params: &Params, page: usize, pages: usize, found: usize) {
    if pages < 2 {
        return;
    }
    html!(out; "<nav class='pager' aria-label='Pages'>");
    let query = |to: usize| {
        let is_there = (1..=pages).contains(&to);
        is_there.then(|| params.query(&[("page", &to.to_string())]))
    };
    neighbour(out, query(page - 1), "← Back", "prev");
    neighbour(out, query(page + 1), "Next →", "next");
    html!(out; "<p>Page " {page} " of " {pages} ", " {found} " rows</p></nav>");
}

/// A link to a neighbouring page, or its word alone if there is no such page.
pub(crate) fn neighbour(out: &mut Html, query: Option<String>, word: &str, rel: &str) {
    match query {
        Some(query) => html!(out; "<a rel='" {rel} "' href='" {query} "'>" {word} "</a>"),
        None => html!(out; "<span>" {word} "</span>"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(query: &str, count: u32) -> String {
        let columns = [
            Column("n", "Number", "n", |n: &u32| number(*n)),
            Column("t", "Text", "", |n| {
                text(&format!("{}", n % 3)).showing(&piece!("<i>" {n % 3} "</i>"))
            }),
        ];
        let table = Table {
            caption: "Numbers",
            columns: &columns,
            id: |n| format!("r{n:05}"),
            find: |n| format!("number {n}"),
            state: |n| Some(Badge(Grade::Good, if n % 2 == 0 { "even" } else { "odd" })),
            sort: "n",
            empty: "There are no numbers.",
        };
        let mut out = Html::default();
        table.show(&mut out, &Params::of_form(query.as_bytes()), (0..count).collect());
        out.into_string()
    }

    fn ids(page: &str) -> Vec<u32> {
        let rows = page.split("<tr id='r").skip(1);
        rows.map(|row| row[..5].parse().unwrap()).collect()
    }

    #[test]
    fn rows_are_filtered_then_sorted_then_paged() {
        assert_eq!(ids(&table("q=NUMBER+1&sort=-n", 20))[..3], [19, 18, 17]);
        assert_eq!(ids(&table("state=even", 9)), [0, 2, 4, 6, 8]);
        // Equal rows are in the order of their ids, in both directions of the column.
        assert_eq!(ids(&table("sort=t", 6)), [0, 3, 1, 4, 2, 5]);
        assert_eq!(ids(&table("sort=-t", 6)), [2, 5, 1, 4, 0, 3]);
        let page = table("page=3", 1000);
        assert_eq!((ids(&page)[0], ids(&page).len()), (400, ROWS));
        assert!(page.contains("Page 3 of 5, 1000 rows"), "{page}");
        assert!(page.contains("href='?page=4'"), "{page}");
        // An address with any parameters has a page.
        assert_eq!(ids(&table("page=99999&sort=nothing", 300)).len(), 100);
        assert_eq!(ids(&table("page=0", 300))[0], 0);
        assert!(table("q=nothing", 5).contains("No row contains these words"));
        assert!(table("", 0).contains("There are no numbers."));
    }

    #[test]
    fn numbers_in_names_count_by_their_value() {
        let mut names = ["web-10", "Web-9", "web-2b", "web-2", "app"].map(|name| (text(name).0, name));
        names.sort();
        assert_eq!(
            names.map(|(_, name)| name),
            ["app", "web-2", "web-2b", "Web-9", "web-10"]
        );
    }

    #[test]
    fn links_keep_the_state_of_the_table() {
        let page = table("q=1&sort=-n&state=odd", 1000);
        assert!(
            page.contains("aria-sort='descending'><a href='?q=1&amp;state=odd&amp;sort=n'"),
            "{page}"
        );
        assert!(page.contains("<input type='hidden' name='state' value='odd'>"));
        assert!(page.contains("href='?q=1&amp;sort=-n&amp;state=even'"));
    }
}
