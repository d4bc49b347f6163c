//! `ssntp ctl nodes`, `instances` and `cncis`.

use std::io::IsTerminal;
use std::time::Duration;

use comfy_table::Table;
use serde_json::Value;
use ssntp::client::ClientError;
use ssntp::payload::InstanceState;
use ssntp_cluster::controller::{Change, Controller, Instance, Node, View};

use super::options::Options;
use super::select::{self, Selection};
use super::session::Session;
use super::{json, tables};
use crate::connection::{self, Complaint};
use crate::failure::Failure;
use crate::output::{Output, note, printable_json, reader_is_gone};
use crate::signals::Stop;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Show it again whenever it changes, until a signal comes
    #[arg(long)]
    pub(super) watch: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct NodesArgs {
    #[command(flatten)]
    pub(super) list: Args,
    /// Only those of that status, as READY or gone
    #[arg(long, value_parser = select::status)]
    pub(super) state: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct InstancesArgs {
    #[command(flatten)]
    pub(super) list: Args,
    #[command(flatten)]
    pub(super) selection: Selection,
    /// Only those of that state, as active or exited
    #[arg(long, value_parser = select::instance_state)]
    pub(super) state: Option<InstanceState>,
}

/// What is listed, and which of it.
#[derive(Debug)]
pub(super) enum What {
    Nodes(Option<String>),
    Instances(Selection, Option<InstanceState>),
    Cncis,
}

/// Between two looks at a list that changes.
const PACE: Duration = Duration::from_millis(500);

pub(super) fn run(options: &Options, stop: &Stop, again: bool, what: &What) -> Result<(), Failure> {
    if again {
        return watch(options, stop, what);
    }
    let session = Session::open_told(options, stop)?;
    let text = session.controller.look(|view| what.text(view, options.json));
    let mut output = Output::new();
    output.line(text?)?;
    output.flush()
}

impl What {
    fn text(&self, view: &View, json: bool) -> Result<String, Failure> {
        Ok(match json {
            true => printable_json(&self.json(view)?.to_string()),
            false => tables::fitted(&self.table(view)?),
        })
    }

    fn table(&self, view: &View) -> Result<Table, Failure> {
        Ok(match self {
            Self::Nodes(status) => tables::nodes(view, nodes(view, status.as_ref())),
            Self::Instances(selection, state) => {
                tables::instances(view, instances(view, selection, state.as_ref())?)
            }
            Self::Cncis => tables::cncis(view),
        })
    }

    fn json(&self, view: &View) -> Result<Value, Failure> {
        Ok(match self {
            Self::Nodes(status) => nodes(view, status.as_ref()).map(json::node).collect(),
            Self::Instances(selection, state) => {
                let instances = instances(view, selection, state.as_ref())?;
                instances.map(|i| json::instance(view, i)).collect()
            }
            Self::Cncis => view.cncis().map(json::cnci).collect(),
        })
    }
}

fn nodes<'a>(view: &'a View, status: Option<&'a String>) -> impl Iterator<Item = &'a Node> {
    view.nodes()
        .filter(move |node| status.is_none_or(|status| tables::node_status(node) == *status))
}

fn instances<'a>(
    view: &'a View,
    selection: &'a Selection,
    state: Option<&'a InstanceState>,
) -> Result<impl Iterator<Item = &'a Instance>, Failure> {
    let selected = selection.of(view)?;
    Ok(selected.filter(move |instance| state.is_none_or(|state| instance.state == *state)))
}

fn watch(options: &Options, stop: &Stop, what: &What) -> Result<(), Failure> {
    let (config, mut renewal) = options.config_going_on(stop)?;
    let controller = Controller::start(config).map_err(Failure::new)?;
    let changes = controller.subscribe();
    let looks = connection::looks();
    let over_itself = !options.json && std::io::stdout().is_terminal();
    let mut shown = String::new();
    let pace = crossbeam_channel::tick(PACE);
    // The first list is to be right.
    let mut told = false;
    let mut complaint = Complaint::default();
    loop {
        crossbeam_channel::select! {
            recv(stop.channel()) -> _ => return Ok(()),
            recv(looks) -> _ => renewal.look(&controller.client()),
            recv(pace) -> _ => {}
        }
        if reader_is_gone() {
            return Ok(());
        }
        for change in changes.try_iter() {
            match change {
                Change::Ended { .. } => return Err(ended(&controller)),
                Change::Online { .. } | Change::Offline { .. } if !over_itself => note(change),
                _ => {}
            }
        }
        told |= controller.wait_complete(Duration::ZERO);
        if !told {
            complaint.tell(&controller.client());
            continue;
        }
        let (text, online) = controller.look(|view| (what.text(view, options.json), view.is_online()));
        let mut text = text?;
        if over_itself && !online {
            text.push_str("\nnot connected to the scheduler: this is how it was");
        }
        if text != shown {
            let mut output = Output::new();
            if over_itself {
                output.text(&over(&text))?;
            } else {
                output.line(&text)?;
            }
            output.flush()?;
            shown = text;
        }
    }
}

/// The text at the top of an otherwise empty screen.
fn over(text: &str) -> String {
    let mut screen = String::from("\x1b[H");
    for line in text.lines() {
        screen.push_str(line);
        screen.push_str("\x1b[K\n");
    }
    screen.push_str("\x1b[J");
    screen
}

/// Why a controller that was to go on has ended.
pub(super) fn ended(controller: &Controller) -> Failure {
    Failure::new(controller.client().ended().unwrap_or(ClientError::Closed))
}
