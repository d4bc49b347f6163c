//! `ssntp ctl nodes`, `instances` and `cncis`, and the filters by label, node and state.

use std::io::IsTerminal;
use std::time::Duration;

use serde_json::Value;
use ssntp::payload::{Id, InstanceState, NodeStatus};
use ssntp_cluster::controller::{Change, Instance, Node, View};
use uuid::Uuid;

use super::follow::follow;
use super::options::Options;
use super::session::Session;
use super::{json, tables};
use crate::cmd::table::list;
use crate::failure::Failure;
use crate::output::{note, print_line, print_text, printable_json};
use crate::signals::Stop;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Show the list again whenever it changes, until a signal comes
    #[arg(long)]
    pub(super) watch: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct NodesArgs {
    #[command(flatten)]
    pub(super) list: Args,
    /// Only nodes with that status, for example READY or gone
    #[arg(long, value_parser = status)]
    pub(super) state: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct InstancesArgs {
    #[command(flatten)]
    pub(super) list: Args,
    #[command(flatten)]
    pub(super) selection: Selection,
    /// Only instances in that state, for example active or exited
    #[arg(long, value_parser = instance_state)]
    pub(super) state: Option<InstanceState>,
}

/// The list to show, with its filters.
#[derive(Debug)]
pub(super) enum What {
    Nodes(Option<String>),
    Instances(Selection, Option<InstanceState>),
    Cncis,
}

pub(super) fn run(options: &Options, stop: &Stop, again: bool, what: &What) -> Result<(), Failure> {
    if again {
        return watch(options, stop, what);
    }
    let session = Session::open_told(options, stop)?;
    let (text, doubled) = session.controller.look(|view| {
        let doubled = what.doubled(view);
        (what.text(view, options.json), doubled)
    });
    print_line(text?)?;
    doubled.iter().for_each(note);
    Ok(())
}

impl What {
    fn text(&self, view: &View, json: bool) -> Result<String, Failure> {
        let shown = |values: Value| printable_json(&values.to_string());
        Ok(match self {
            Self::Nodes(status) => {
                let meant = |node: &&Node| status.as_ref().is_none_or(|s| tables::node_status(node) == *s);
                let nodes = view.nodes().filter(meant);
                match json {
                    true => shown(nodes.map(json::node).collect()),
                    false => list(tables::NODES, view, nodes),
                }
            }
            Self::Instances(selection, state) => {
                let meant = |i: &&Instance| state.as_ref().is_none_or(|state| i.state == *state);
                let instances = selection.of(view)?.filter(meant);
                match json {
                    true => shown(instances.map(|i| json::instance(view, i)).collect()),
                    false => list(tables::INSTANCES, view, instances),
                }
            }
            Self::Cncis if json => shown(view.cncis().map(json::cnci).collect()),
            Self::Cncis => list(tables::CNCIS, view, view.cncis()),
        })
    }

    /// A line for each instance that two nodes have.
    fn doubled(&self, view: &View) -> Vec<String> {
        let foreign = |node: &Node| {
            let node_uuid = node.uuid;
            let instances = node.stats.foreign.iter().filter_map(Id::uuid);
            let line = |instance| {
                format!(
                    "node {node_uuid} has instance {instance} too, which belongs to another node; \
                     remove it there with: ssntp ctl delete --node {node_uuid} {instance}"
                )
            };
            instances.map(line).collect::<Vec<_>>()
        };
        let connected = view.nodes().filter(|node| node.connected);
        match self {
            Self::Instances(..) => connected.flat_map(foreign).collect(),
            Self::Nodes(_) | Self::Cncis => Vec::new(),
        }
    }
}

fn watch(options: &Options, stop: &Stop, what: &What) -> Result<(), Failure> {
    let over_itself = !options.json && std::io::stdout().is_terminal();
    let mut shown = String::new();
    // Nothing is printed before the scheduler has told of all nodes.
    let mut told = false;
    follow(options, stop, |controller, changes| {
        for change in changes {
            if !over_itself && matches!(change, Change::Online { .. } | Change::Offline { .. }) {
                note(change);
            }
        }
        told |= controller.wait_complete(Duration::ZERO);
        // While changes come fast, the list is shown at the pace of the calls without changes.
        if !told || !changes.is_empty() {
            return Ok(());
        }
        let (text, online) = controller.look(|view| (what.text(view, options.json), view.is_online()));
        let mut text = text?;
        if over_itself && !online {
            text.push_str("\nnot connected to the scheduler: this is how it was");
        }
        // Without this, a file or a pipe would grow twice a second.
        if text == shown {
            return Ok(());
        }
        shown.clone_from(&text);
        match over_itself {
            true => print_text(&over(&text)),
            false => print_line(text),
        }
    })
}

/// The text at the top of an otherwise empty screen.
pub(super) fn over(text: &str) -> String {
    let mut screen = String::from("\x1b[H");
    for line in text.lines() {
        screen.push_str(line);
        // Each line clears only its own rest. Clearing the whole screen first would make it
        // flicker.
        screen.push_str("\x1b[K\n");
    }
    screen.push_str("\x1b[J");
    screen
}

/// Which instances are meant; by default all.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Selection {
    /// Only instances with that label, or with any label of that key; may be given
    /// several times
    #[arg(long = "label", value_name = "KEY[=VALUE]")]
    labels: Vec<String>,
    /// Only instances on that node
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
}

impl Selection {
    /// The instances that match every filter.
    pub(super) fn of<'a>(
        &'a self,
        view: &'a View,
    ) -> Result<impl Iterator<Item = &'a Instance> + use<'a>, Failure> {
        let node = self.node.as_ref().map(|node| view.find_node(node)).transpose();
        let node: Option<Uuid> = node?;
        Ok(view.instances().filter(move |instance| {
            node.is_none_or(|node| instance.node == node) && self.has_labels(instance)
        }))
    }

    fn has_labels(&self, instance: &Instance) -> bool {
        let labels = &instance.stats.labels;
        self.labels.iter().all(|label| match label.split_once('=') {
            Some((key, value)) => labels.get(key).is_some_and(|own| own == value),
            None => labels.contains_key(label),
        })
    }
}

/// The state of an instance, by one of its known names.
pub(super) fn instance_state(text: &str) -> Result<InstanceState, String> {
    let state = InstanceState::from(text);
    match state.is_known() {
        true => Ok(state),
        false => Err(one_of(InstanceState::ALL.iter().map(InstanceState::as_str))),
    }
}

/// The status of a node as `ssntp ctl nodes` shows it, in small letters or large.
pub(super) fn status(text: &str) -> Result<String, String> {
    let known = || NodeStatus::ALL.iter().map(NodeStatus::as_str).chain(["gone"]);
    match known().find(|known| known.eq_ignore_ascii_case(text)) {
        Some(known) => Ok(known.to_owned()),
        None => Err(one_of(known())),
    }
}

fn one_of<'a>(known: impl Iterator<Item = &'a str>) -> String {
    format!("it is none of {}", known.collect::<Vec<_>>().join(", "))
}
