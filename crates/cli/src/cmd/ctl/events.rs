//! `ssntp ctl events`: what happens, as it happens.

use std::time::Duration;

use ssntp_cluster::controller::{Change, Controller};

use super::json;
use super::list::ended;
use super::options::Options;
use crate::clock::wall_clock;
use crate::connection::{self, Complaint};
use crate::failure::Failure;
use crate::output::{Output, printable, printable_json, reader_is_gone};
use crate::signals::Stop;

/// Print what happens in the cluster, until a signal comes
///
/// Begins with the nodes and instances that the scheduler knows already. Reconnects
/// whenever the connection is lost.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print a line also for STATS that change nothing
    #[arg(long)]
    stats: bool,
}

pub(super) fn run(options: &Options, stop: &Stop, args: &Args) -> Result<(), Failure> {
    let (config, mut renewal) = options.config_going_on(stop)?;
    let controller = Controller::start(config)?;
    let changes = controller.subscribe();
    let look = crossbeam_channel::tick(Duration::from_millis(500));
    let looks = connection::looks();
    let mut complaint = Complaint::default();
    loop {
        let first = crossbeam_channel::select! {
            recv(stop.channel()) -> _ => return Ok(()),
            recv(look) -> _ => {
                if reader_is_gone() {
                    return Ok(());
                }
                complaint.tell(&controller.client());
                continue;
            }
            recv(looks) -> _ => {
                renewal.look(&controller.client());
                continue;
            }
            recv(changes) -> change => change,
        };
        let Ok(first) = first else {
            return Err(ended(&controller));
        };
        let mut output = Output::new();
        for change in std::iter::once(first).chain(changes.try_iter()) {
            match &change {
                Change::Ended { .. } => return Err(ended(&controller)),
                Change::NodeStats { .. } if !args.stats => {}
                _ => output.line(line(&change, options.json))?,
            }
        }
        // A reader at the other end of a pipe waits for each line.
        output.flush()?;
    }
}

fn line(change: &Change, json: bool) -> String {
    let at = wall_clock();
    match json {
        true => printable_json(&json::change(change, at).to_string()),
        false => format!("{} {}", json::time(at), printable(&change.to_string())),
    }
}
