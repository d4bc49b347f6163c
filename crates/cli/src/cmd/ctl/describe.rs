//! `ssntp ctl describe`: everything that is known about one instance or node.

use ssntp_cluster::controller::{FindError, Instance, Node, View};

use super::options::Options;
use super::session::Session;
use super::{json, tables};
use crate::cmd::table::{sheet, sheet_line};
use crate::failure::Failure;
use crate::output::print_either;
use crate::signals::Stop;

/// Show everything that is known about an instance or a node
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The instance or the node
    #[arg(value_name = "INSTANCE|NODE")]
    what: String,
}

pub(super) fn run(options: &Options, stop: &Stop, args: &Args) -> Result<(), Failure> {
    let session = Session::open_complete(options, stop)?;
    let found: Result<_, Failure> = session.controller.look(|view| {
        Ok(match find(view, &args.what)? {
            Found::Instance(found) => (json::instance(view, found), instance(view, found)),
            Found::Node(found) => (json::node(found), node(view, found)),
        })
    });
    let (value, text) = found?;
    print_either(options.json, value, text.trim_end())
}

enum Found<'a> {
    Instance(&'a Instance),
    Node(&'a Node),
}

fn find<'a>(view: &'a View, text: &str) -> Result<Found<'a>, Failure> {
    let (instance, node) = (view.find_instance(text), view.find_node(text));
    let known = |found: &Result<_, FindError>| found.as_ref().ok().copied();
    let an_instance = known(&instance).and_then(|uuid| view.instance(uuid));
    let a_node = known(&node).and_then(|uuid| view.node(uuid));
    match (an_instance, a_node) {
        (Some(instance), None) => Ok(Found::Instance(instance)),
        (None, Some(node)) => Ok(Found::Node(node)),
        (Some(instance), Some(node)) => Err(Failure::new(format!(
            "{text} is the beginning of instance {} and of node {}",
            instance.uuid, node.uuid
        ))),
        (None, None) => {
            let several = |e: &FindError| matches!(e, FindError::Several { .. } | FindError::SameName { .. });
            let errors = [instance.err(), node.err()];
            Err(match errors.into_iter().flatten().find(several) {
                Some(several) => Failure::new(several),
                None => Failure::new(format!("no instance and no node is known as {text:?}")),
            })
        }
    }
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
