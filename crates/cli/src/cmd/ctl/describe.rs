//! `ssntp ctl describe`: everything that is known about one instance or node.

use serde_json::Value;
use ssntp_daemon::{Failure, print_either};
use ssntp_view::{FindError, Instance, Node, View};

use super::{Invocation, Session, json, tables};
use crate::cmd::table::{sheet, sheet_line};

/// Show everything that is known about an instance or a node
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The instance or the node
    #[arg(value_name = "INSTANCE|NODE")]
    what: String,
}

pub(super) fn run(cx: &Invocation, args: &Args) -> Result<(), Failure> {
    let session = Session::open_complete(cx)?;
    let (value, text) = session.controller.look(|view| described(view, &args.what))?;
    print_either(cx.options.json, value, text.trim_end())
}

/// The instance or the node with this name or beginning of a UUID, as JSON and as text. A name counts
/// more than the beginning of a UUID.
fn described(view: &View, what: &str) -> Result<(Value, String), Failure> {
    let (found_instance, found_node) = (view.find_latest_instance(what), view.find_node(what));
    let known = |found: &Result<_, FindError>| found.as_ref().ok().copied();
    let mut of_instance = known(&found_instance).and_then(|uuid| view.instance(uuid));
    let mut of_node = known(&found_node).and_then(|uuid| view.node(uuid));
    if let (Some(instance), Some(node)) = (of_instance, of_node) {
        match (*instance.stats.name == *what, node.stats.hostname == what) {
            (true, false) => of_node = None,
            (false, true) => of_instance = None,
            _ => {}
        }
    }
    Err(match (of_instance, of_node) {
        (Some(found), None) => return Ok((json::instance(view, found), instance(view, found))),
        (None, Some(found)) => return Ok((json::node(found), node(view, found))),
        (Some(instance), Some(node)) => Failure::new(format!(
            "{what} is instance {} and node {}",
            instance.uuid, node.uuid
        )),
        (None, None) => {
            let several = |e: &FindError| matches!(e, FindError::Several { .. } | FindError::SameName { .. });
            let errors = [found_instance.err(), found_node.err()];
            match errors.into_iter().flatten().find(several) {
                Some(several) => Failure::new(several),
                None => Failure::new(format!("no instance and no node is known as {what:?}")),
            }
        }
    })
}

fn instance(view: &View, instance: &Instance) -> String {
    let title = format!("instance {}", instance.uuid);
    sheet(&title, tables::INSTANCE, view, instance)
}

fn node(view: &View, node: &Node) -> String {
    let mut text = sheet(&format!("node {}", node.uuid), tables::NODE, view, node);
    for instance in view.instances_of(node.uuid) {
        let (state, name) = (tables::instance_state(view, instance), &instance.stats.name);
        let end = tables::end(instance);
        let line = format!("{} {state} {end} {name}", instance.uuid);
        text.push_str(&sheet_line("instance", &line));
    }
    text
}
