//! `ssntp ctl nodes`, `instances` and `cncis`, and the filters by label, node and state.

use std::io::IsTerminal;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ssntp::payload::Id;
use ssntp_daemon::{Failure, note, print_line, print_text};
use ssntp_payload::{InstanceState, NodeStatus};
use ssntp_view::{Change, Instance, Node, View};
use uuid::Uuid;

use super::follow::follow;
use super::{Invocation, Session, json, tables};
use crate::cmd::table::text;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Show the list again whenever it changes, until a signal comes
    #[arg(long)]
    watch: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct NodesArgs {
    #[command(flatten)]
    list: Args,
    /// Only nodes with this status, for example READY or gone
    #[arg(long, value_parser = PossibleValuesParser::new(statuses()), ignore_case = true)]
    state: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct ListedInstances {
    #[command(flatten)]
    list: Args,
    #[command(flatten)]
    selection: Selection,
    /// Only instances in this state, for example active or exited
    #[arg(long, value_parser = PossibleValuesParser::new(states()).map(InstanceState::from))]
    state: Option<InstanceState>,
}

fn statuses() -> impl Iterator<Item = &'static str> {
    NodeStatus::ALL.iter().map(NodeStatus::as_str).chain(["gone"])
}

fn states() -> impl Iterator<Item = &'static str> {
    InstanceState::ALL.iter().map(InstanceState::as_str)
}

pub(super) fn nodes(cx: &Invocation, args: &NodesArgs) -> Result<(), Failure> {
    let has_state = |node: &&Node| {
        let state = args.state.as_ref();
        state.is_none_or(|state| tables::node_status(node).eq_ignore_ascii_case(state))
    };
    let text = |view: &View| {
        let nodes = view.nodes().filter(has_state);
        Ok(text(cx.options.json, tables::NODES, view, nodes, json::node))
    };
    run(cx, args.list.watch, text, |_| Vec::new())
}

pub(super) fn instances(cx: &Invocation, args: &ListedInstances) -> Result<(), Failure> {
    let has_state = |i: &&Instance| args.state.as_ref().is_none_or(|state| i.state == *state);
    let text = |view: &View| {
        let instances = args.selection.of(view)?.filter(has_state);
        let value = |instance: &Instance| json::instance(view, instance);
        Ok(text(cx.options.json, tables::INSTANCES, view, instances, value))
    };
    run(cx, args.list.watch, text, doubled)
}

pub(super) fn cncis(cx: &Invocation, args: &Args) -> Result<(), Failure> {
    let text = |view: &View| {
        Ok(text(
            cx.options.json,
            tables::CNCIS,
            view,
            view.cncis(),
            json::cnci,
        ))
    };
    run(cx, args.watch, text, |_| Vec::new())
}

/// Prints a list, once or whenever it changes. A list that is printed once is followed by the notes
/// that `notes` makes.
fn run(
    cx: &Invocation,
    again: bool,
    text: impl Fn(&View) -> Result<String, Failure>,
    notes: impl FnOnce(&View) -> Vec<String>,
) -> Result<(), Failure> {
    if again {
        return watch(cx, text);
    }
    let session = Session::open_complete(cx)?;
    let (text, notes) = session.controller.look(|view| (text(view), notes(view)));
    print_line(text?)?;
    notes.iter().for_each(note);
    Ok(())
}

/// A note for each instance that two nodes have.
fn doubled(view: &View) -> Vec<String> {
    let foreign = |node: &Node| {
        let node_uuid = node.uuid;
        let instances = node.stats.foreign.iter().filter_map(Id::uuid);
        let line = |instance| {
            let [node, named] = [node_uuid, instance].map(|uuid| tables::called(view, uuid));
            format!(
                "node {node} has instance {named} too, which belongs to another node; \
                 remove it there with: ssntp ctl delete --node {node_uuid} {instance}"
            )
        };
        instances.map(line).collect::<Vec<_>>()
    };
    let connected = view.nodes().filter(|node| node.connected);
    connected.flat_map(foreign).collect()
}

/// Prints a list whenever it has changed, until a signal comes.
fn watch(cx: &Invocation, list: impl Fn(&View) -> Result<String, Failure>) -> Result<(), Failure> {
    let over_itself = !cx.options.json && std::io::stdout().is_terminal();
    let mut shown = String::new();
    // The first list is printed once the scheduler has reported all nodes.
    let mut is_complete = false;
    follow(cx, |controller, changes| {
        for change in changes {
            if !over_itself && matches!(change, Change::Online { .. } | Change::Offline { .. }) {
                note(change);
            }
        }
        is_complete |= controller.wait_complete(Duration::ZERO);
        // While changes come fast, the list is printed at the pace of the calls without changes.
        if !is_complete || !changes.is_empty() {
            return Ok(());
        }
        let (text, online) = controller.look(|view| (list(view), view.is_online()));
        let mut text = text?;
        if over_itself && !online {
            text.push_str("\nnot connected to the scheduler: this is the last known state");
        }
        // Without this check, a file or a pipe would grow twice a second.
        if text == shown {
            return Ok(());
        }
        shown.clone_from(&text);
        if over_itself {
            print_text(over(&text))
        } else {
            print_line(text)
        }
    })
}

/// The control sequences that show the text at the top of an otherwise empty screen.
pub(super) fn over(text: &str) -> String {
    let mut screen = String::from("\x1b[H");
    for line in text.lines() {
        screen.push_str(line);
        // Each line clears only the rest of its row. Clearing the whole screen first would make the
        // screen flicker.
        screen.push_str("\x1b[K\n");
    }
    screen.push_str("\x1b[J");
    screen
}

/// Filters for instances; by default, all instances match.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Selection {
    /// Only instances with this label, or with any label of this key; may be given
    /// several times
    #[arg(long = "label", value_name = "KEY[=VALUE]")]
    labels: Vec<String>,
    /// Only instances on this node
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
