//! The output of the demo: on a terminal, a live table below the steps that have been seen; otherwise a
//! line for each step and each change.

use std::io::IsTerminal;
use std::time::Instant;

use comfy_table::Table;
use ssntp_view::{Change, Instance, Node, View};

use crate::cmd::ctl::tables::{
    host, instance_state, node_status, node_type, or_dash, running, share, short, with_unit,
};
use crate::cmd::table::{Columns, table, terminal_size};
use crate::failure::Failure;
use crate::output::{print_line, print_text, printable};

pub(super) struct Screen {
    live: bool,
    began: Instant,
    /// The number of lines of the table below the steps.
    drawn: usize,
}

impl Screen {
    pub(super) fn new(began: Instant) -> Self {
        Self {
            live: std::io::stdout().is_terminal(),
            began,
            drawn: 0,
        }
    }

    /// True if there is a table.
    pub(super) fn is_live(&self) -> bool {
        self.live
    }

    /// Prints a step that has been seen. Lines after the first are its details.
    pub(super) fn step(&mut self, text: &str) -> Result<(), Failure> {
        let time = self.began.elapsed().as_secs_f64();
        let mut lines = text.lines().map(printable);
        let first = format!("{time:5.1} s  {}", lines.next().unwrap_or_default());
        let details = lines.map(|line| format!("\n         {line}"));
        self.line(first + &details.collect::<String>())
    }

    fn line(&mut self, text: String) -> Result<(), Failure> {
        let erased = self.erase();
        print_line(format_args!("{erased}{text}"))
    }

    /// Prints a change, unless there is a table that shows it.
    pub(super) fn change(&mut self, change: &Change) -> Result<(), Failure> {
        let shown = matches!(
            change,
            Change::NodeStatus { .. }
                | Change::NodeDisconnected { .. }
                | Change::InstanceAdded { .. }
                | Change::InstanceState { .. }
                | Change::InstanceGone { .. }
                | Change::InstanceStopped { .. }
                | Change::InstanceDeleted { .. }
                | Change::CnciAdded { .. }
                | Change::Offline { .. }
        );
        match shown && !self.live {
            true => self.line(format!("         · {}", printable(&change.to_string()))),
            false => Ok(()),
        }
    }

    /// Draws the table again.
    pub(super) fn draw(&mut self, view: &View) -> Result<(), Failure> {
        if !self.live {
            return Ok(());
        }
        let mut text = self.erase();
        // Lines that have scrolled off the top of a terminal cannot be drawn over.
        let (_, height) = terminal_size().unwrap_or((80, 24));
        let table = tables(view, height);
        text.push_str(&table);
        self.drawn = table.lines().count();
        print_text(&text)
    }

    /// Removes the table.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        let erased = self.erase();
        print_text(&erased)
    }

    /// The control sequences that move to the first line of the table and clear all lines below.
    fn erase(&mut self) -> String {
        match std::mem::take(&mut self.drawn) {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\x1b[J"),
        }
    }
}

#[rustfmt::skip] // A table: one row a column.
const NODES: Columns<View, Node> = &[
    ("node", |_, node| short(&node.uuid.to_string())),
    ("type", |_, node| node_type(node).into()),
    ("host", |_, node| host(&node.stats.hostname)),
    ("status", |_, node| node_status(node)),
    ("load", |_, node| node.stats.load.to_string()),
    ("memory free", |_, node| share(node.stats.mem_available_mb, node.stats.mem_total_mb)),
    ("instances", |view, node| format!("{} run", running(view, node))),
];

#[rustfmt::skip]
const INSTANCES: Columns<View, Instance> = &[
    ("instance", |_, instance| short(&instance.uuid.to_string())),
    ("what", |_, instance| or_dash(instance.stats.name.clone())),
    ("state", instance_state),
    ("node", |_, instance| short(&instance.node.to_string())),
    ("cpu", |_, instance| with_unit(instance.stats.cpu_usage, "%")),
    ("memory", |_, instance| with_unit(instance.stats.memory_usage_mb, " MB")),
];

/// Both tables, in fewer than `height` lines if there is room for a row of each.
fn tables(view: &View, height: usize) -> String {
    let (nodes, instances) = rows(height, view.nodes().count(), view.instances().count());
    let nodes = top(NODES, view, view.nodes(), nodes);
    format!("{nodes}\n{}\n", top(INSTANCES, view, view.instances(), instances))
}

/// The numbers of nodes and of instances that are shown. Instances get the room that nodes leave.
fn rows(height: usize, nodes: usize, instances: usize) -> (usize, usize) {
    // Each table has a heading, three lines around heading and rows, and a line with the number of rows
    // that are not shown. The cursor takes one more line.
    let room = height.saturating_sub(2 * 5 + 1);
    let half = room / 2;
    let nodes = nodes.min(half.max(room.saturating_sub(instances))).max(1);
    (nodes, room.saturating_sub(nodes).max(1))
}

/// A table of the first rows, and a line with the number of rows that are not shown.
fn top<'a, T: 'a>(
    columns: Columns<View, T>,
    view: &View,
    mut rows: impl Iterator<Item = &'a T>,
    most: usize,
) -> Table {
    let mut table = table(true, columns, view, rows.by_ref().take(most));
    let more = rows.count();
    if more > 0 {
        table.add_row([format!("{more} more")]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tables_fit_into_the_terminal() {
        for (height, nodes, instances, shown) in [
            (24, 40, 40, (6, 7)),
            (24, 3, 40, (3, 10)),
            (24, 40, 2, (11, 2)),
            (10, 40, 40, (1, 1)),
        ] {
            assert_eq!(rows(height, nodes, instances), shown);
        }
    }
}
