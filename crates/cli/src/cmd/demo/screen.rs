//! What the demo shows: on a terminal a live table under the steps that have
//! been seen; elsewhere a line for each step and each change.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Instant;

use comfy_table::{Table, presets};
use ssntp::payload::InstanceState;
use ssntp_cluster::controller::{Change, View};
use uuid::Uuid;

use crate::cmd::ctl::tables::{host, instance_state, node_status, node_type, share, short, with_unit};
use crate::failure::Failure;
use crate::output::{Output, printable};

/// How many rows of each table are shown: more than a terminal is high cannot
/// be drawn over.
const MOST_ROWS: usize = 12;

pub(super) struct Screen {
    live: bool,
    began: Instant,
    /// How many lines of table stand below the steps.
    drawn: usize,
    names: BTreeMap<Uuid, &'static str>,
}

impl Screen {
    pub(super) fn new(began: Instant) -> Self {
        Self {
            live: std::io::stdout().is_terminal(),
            began,
            drawn: 0,
            names: BTreeMap::new(),
        }
    }

    /// Whether there is a table.
    pub(super) fn is_live(&self) -> bool {
        self.live
    }

    /// An instance is shown under a name.
    pub(super) fn name(&mut self, instance: Uuid, name: &'static str) {
        self.names.insert(instance, name);
    }

    /// An instance, or a node, for a sentence.
    pub(super) fn called(&self, uuid: Uuid) -> String {
        let text = short(&uuid.to_string());
        match self.names.get(&uuid) {
            Some(name) => format!("{name} ({text})"),
            None => text,
        }
    }

    /// A step that has been seen.
    pub(super) fn step(&mut self, text: impl std::fmt::Display) -> Result<(), Failure> {
        let time = self.began.elapsed().as_secs_f64();
        self.line(format!("{time:5.1} s  {}", printable(&text.to_string())))
    }

    /// A line that belongs to the step before.
    pub(super) fn detail(&mut self, text: impl std::fmt::Display) -> Result<(), Failure> {
        self.line(format!("         {}", printable(&text.to_string())))
    }

    fn line(&mut self, text: String) -> Result<(), Failure> {
        let mut output = Output::new();
        output.text(&self.erase())?;
        output.line(text)?;
        output.flush()
    }

    /// A change, where there is no table that shows it.
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
            true => self.detail(format!("· {change}")),
            false => Ok(()),
        }
    }

    /// Draws the table anew.
    pub(super) fn draw(&mut self, view: &View) -> Result<(), Failure> {
        if !self.live {
            return Ok(());
        }
        let mut text = self.erase();
        let table = format!("{}\n{}\n", nodes(view), self.instances(view));
        text.push_str(&table);
        self.drawn = table.lines().count();
        let mut output = Output::new();
        output.text(&text)?;
        output.flush()
    }

    /// Takes the table away.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        let mut output = Output::new();
        output.text(&self.erase())?;
        output.flush()
    }

    /// Back to the first line of the table, with all below it cleared.
    fn erase(&mut self) -> String {
        match std::mem::take(&mut self.drawn) {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\x1b[J"),
        }
    }

    fn instances(&self, view: &View) -> Table {
        let mut table = table(["instance", "what", "state", "node", "cpu", "memory"]);
        for instance in view.instances().take(MOST_ROWS) {
            let name = self.names.get(&instance.uuid);
            table.add_row([
                short(&instance.uuid.to_string()),
                name.map_or("-".into(), |name| (*name).into()),
                instance_state(view, instance),
                short(&instance.node.to_string()),
                with_unit(instance.stats.cpu_usage, "%"),
                with_unit(instance.stats.memory_usage_mb, " MB"),
            ]);
        }
        more(&mut table, view.instances().count());
        table
    }
}

fn nodes(view: &View) -> Table {
    let mut table = table([
        "node",
        "type",
        "host",
        "status",
        "load",
        "memory free",
        "instances",
    ]);
    for node in view.nodes().take(MOST_ROWS) {
        let running = view
            .instances_of(node.uuid)
            .filter(|i| i.state == InstanceState::Active)
            .count();
        table.add_row([
            short(&node.uuid.to_string()),
            node_type(node).into(),
            host(&node.stats.hostname),
            node_status(node),
            node.stats.load.to_string(),
            share(node.stats.mem_available_mb, node.stats.mem_total_mb),
            format!("{running} run"),
        ]);
    }
    more(&mut table, view.nodes().count());
    table
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header);
    table
}

fn more(table: &mut Table, rows: usize) {
    if rows > MOST_ROWS {
        table.add_row([format!("{} more", rows - MOST_ROWS)]);
    }
}
