//! Lists as people read them. Every subcommand that prints one names its columns in a constant
//! and leaves the rest to this file.

use std::io::IsTerminal;

use comfy_table::{Row, Table, presets};
use serde_json::Value;
use ssntp_daemon::{Failure, print_json_lines, print_line, printable, printable_json, terminal_size};

/// The columns of a list of `T`: the heading of each, and its text in a row. `X` is what the
/// texts need in addition to the row.
pub(crate) type Columns<X, T> = &'static [(&'static str, fn(&X, &T) -> String)];

/// A table, with lines around its cells or without. Characters that do not show are escaped.
pub(crate) fn table<'a, X, T: 'a>(
    has_lines: bool,
    columns: Columns<X, T>,
    x: &X,
    rows: impl Iterator<Item = &'a T>,
) -> Table {
    let mut table = Table::new();
    table.load_style(if has_lines {
        presets::UTF8_FULL_CONDENSED
    } else {
        presets::NOTHING
    });
    table.set_header(columns.iter().map(|(heading, _)| *heading));
    table.add_rows(rows.map(|row| columns.iter().map(|(_, text)| printable(&text(x, row)))));
    if !has_lines {
        // Two blanks between columns, and none before the first one.
        table.column_iter_mut().for_each(|column| {
            column.set_padding((0, 2));
        });
    }
    table
}

/// A list as text: with lines on a terminal, without them elsewhere, because other programs
/// cut it into columns. On a terminal that is too narrow, each row becomes lines of its own.
pub(crate) fn list<'a, X, T: 'a>(columns: Columns<X, T>, x: &X, rows: impl Iterator<Item = &'a T>) -> String {
    let table = table(std::io::stdout().is_terminal(), columns, x, rows);
    let text = table.trim_fmt();
    let widest = text.lines().map(|line| line.chars().count()).max();
    if terminal_size().is_none_or(|(width, _)| widest.unwrap_or(0) <= width) {
        text
    } else {
        records(&table)
    }
}

/// Rows as text: one array of JSON for a program, a [`list`] for people.
pub(crate) fn text<'a, X, T: 'a>(
    json: bool,
    columns: Columns<X, T>,
    x: &X,
    rows: impl Iterator<Item = &'a T>,
    value: impl Fn(&T) -> Value,
) -> String {
    if json {
        printable_json(&rows.map(value).collect::<Value>().to_string())
    } else {
        list(columns, x, rows)
    }
}

/// Prints rows as [`text`].
pub(crate) fn print<X, T>(
    json: bool,
    columns: Columns<X, T>,
    x: &X,
    rows: &[T],
    value: impl Fn(&T) -> Value,
) -> Result<(), Failure> {
    print_line(text(json, columns, x, rows.iter(), value))
}

/// Prints rows that came as JSON: a line each for a program, a [`list`] for people.
pub(crate) fn print_values(json: bool, columns: Columns<(), Value>, rows: &[Value]) -> Result<(), Failure> {
    if json {
        print_json_lines(rows)
    } else {
        print_line(list(columns, &(), rows.iter()))
    }
}

/// Rows as blocks of `heading: value` lines. Empty values are left out.
fn records(table: &Table) -> String {
    let headings: Vec<_> = table.header().into_iter().flat_map(Row::cell_iter).collect();
    let block = |row: &Row| {
        let cells = headings.iter().zip(row.cell_iter());
        let filled = cells.map(|(heading, cell)| (heading.content(), cell.content()));
        let filled = filled.filter(|(_, text)| !text.is_empty());
        let lines = filled.map(|(heading, text)| match heading.as_str() {
            "" => text,
            heading => format!("{heading}: {text}"),
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    table.row_iter().map(block).collect::<Vec<_>>().join("\n\n")
}

/// All that is known of one thing, as a title and lines of a name and a value; `-` stands for
/// an unknown value.
pub(crate) fn sheet<X, T>(title: &str, columns: Columns<X, T>, x: &X, of: &T) -> String {
    let lines = columns.iter().map(|(name, text)| sheet_line(name, &text(x, of)));
    format!("{title}\n{}", lines.collect::<String>())
}

/// One line of a [`sheet`].
pub(crate) fn sheet_line(name: &str, text: &str) -> String {
    let text = printable(text);
    let text = match text.trim_end() {
        "" => "-",
        text => text,
    };
    format!("  {name:<11} {text}\n")
}

/// A text in lines of at most `width` characters, behind `first` in the first line and `rest` in all others.
pub(crate) fn wrapped(first: &str, rest: &str, text: &str, width: usize) -> String {
    let (mut lines, mut line) = (String::new(), first.to_owned());
    for word in text.split_whitespace() {
        if line.len() > rest.len() && line.len() + 1 + word.len() > width {
            lines.push_str(&format!("{}\n", line.trim_end()));
            line = rest.to_owned();
        }
        line.extend([" ", word]);
    }
    format!("{lines}{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_columns_if_there_is_room_and_else_blocks_of_lines() {
        const COLUMNS: Columns<(), [&str; 3]> = &[
            ("", |(), row| row[0].to_owned()),
            ("name", |(), row| row[1].to_owned()),
            ("at", |(), row| row[2].to_owned()),
        ];
        let rows = [["*", "one", "a"], ["", "three\n", ""]];
        // The output of a test is not a terminal, so its width is not limited.
        let text = list(COLUMNS, &(), rows.iter());
        assert_eq!(text, "   name     at\n*  one      a\n   three\\n");
        let blocks = records(&table(false, COLUMNS, &(), rows.iter()));
        assert_eq!(blocks, "*\nname: one\nat: a\n\nname: three\\n");
    }
}
