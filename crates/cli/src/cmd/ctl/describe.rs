//! `ssntp ctl describe`: all that is known of one instance or node.

use std::fmt::Write;

use ssntp_cluster::controller::{FindError, Instance, Node, View};

use super::options::Options;
use super::session::Session;
use super::{json, tables};
use crate::failure::Failure;
use crate::output::{Output, printable};
use crate::signals::Stop;

/// Show all that is known of an instance or a node
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The instance or the node
    #[arg(value_name = "INSTANCE|NODE")]
    what: String,
}

pub(super) fn run(options: &Options, stop: &Stop, args: &Args) -> Result<(), Failure> {
    let session = Session::open_told(options, stop)?;
    let said = session.controller.look(|view| {
        Ok(match (find(view, &args.what)?, options.json) {
            (Found::Instance(found), true) => json::instance(view, found).to_string(),
            (Found::Instance(found), false) => instance(view, found),
            (Found::Node(found), true) => json::node(found).to_string(),
            (Found::Node(found), false) => node(view, found),
        })
    });
    let said: String = said.map_err(|e: Failure| e)?;
    let mut output = Output::new();
    match options.json {
        true => output.json(said)?,
        false => output.text(&said)?,
    }
    output.flush()
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
    let stats = &instance.stats;
    let node = view.node(instance.node);
    let volumes: Vec<_> = stats.volumes.iter().map(|volume| volume.as_str()).collect();
    let mut sheet = Sheet::new(format_args!("instance {}", instance.uuid));
    sheet.line("name", &stats.name);
    sheet.line("labels", labels(instance));
    sheet.line("state", tables::instance_state(view, instance));
    sheet.line("end", tables::end(instance));
    sheet.line("detail", &stats.detail);
    sheet.line("started", &stats.started);
    sheet.line("ended", &stats.ended);
    let hostname = node.map_or("", |node| &node.stats.hostname);
    sheet.line("node", format_args!("{} {hostname}", instance.node));
    sheet.line("cpu", tables::with_unit(stats.cpu_usage, "%"));
    sheet.line("memory", tables::with_unit(stats.memory_usage_mb, " MB"));
    sheet.line("disk", tables::with_unit(stats.disk_usage_mb, " MB"));
    if !stats.ssh_ip.is_empty() {
        sheet.line("ssh", format_args!("{} port {}", stats.ssh_ip, stats.ssh_port));
    }
    sheet.line("volumes", volumes.join(" "));
    sheet.0
}

fn node(view: &View, node: &Node) -> String {
    let stats = &node.stats;
    let addresses: Vec<_> = stats.networks.iter().map(|network| network.ip.as_str()).collect();
    let mut sheet = Sheet::new(format_args!("node {}", node.uuid));
    sheet.line("host", &stats.hostname);
    sheet.line("type", tables::node_type(node));
    sheet.line("status", tables::node_status(node));
    sheet.line("cpus", tables::with_unit(stats.cpus_online, ""));
    sheet.line("load", tables::with_unit(stats.load, ""));
    sheet.line(
        "memory",
        tables::share(stats.mem_available_mb, stats.mem_total_mb),
    );
    sheet.line(
        "disk",
        tables::share(stats.disk_available_mb, stats.disk_total_mb),
    );
    sheet.line("addresses", addresses.join(" "));
    for instance in view.instances_of(node.uuid) {
        let (state, name) = (tables::instance_state(view, instance), &instance.stats.name);
        let end = tables::end(instance);
        sheet.line("instance", format_args!("{} {state} {end} {name}", instance.uuid));
    }
    sheet.0
}

pub(super) fn labels(instance: &Instance) -> String {
    let labels = instance.stats.labels.iter();
    let each: Vec<_> = labels.map(|(key, value)| format!("{key}={value}")).collect();
    each.join(" ")
}

/// Lines of a name and a value; `-` stands for an unknown value.
struct Sheet(String);

impl Sheet {
    fn new(title: impl std::fmt::Display) -> Self {
        Self(format!("{title}\n"))
    }

    fn line(&mut self, what: &str, value: impl std::fmt::Display) {
        let value = printable(&value.to_string());
        // Writing to a string does not fail.
        let _ = match value.trim_end() {
            "" => writeln!(self.0, "  {what:<11} -"),
            value => writeln!(self.0, "  {what:<11} {value}"),
        };
    }
}
