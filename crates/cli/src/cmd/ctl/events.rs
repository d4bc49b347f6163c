//! `ssntp ctl events`: what happens, as it happens.

use ssntp_cluster::controller::Change;

use super::follow::follow;
use super::json;
use super::options::Options;
use crate::clock::wall_clock;
use crate::failure::Failure;
use crate::output::{Output, printable, printable_json};
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
    follow(options, stop, |_, changes| {
        let mut output = Output::new();
        for change in changes {
            match change {
                Change::NodeStats { .. } if !args.stats => {}
                _ => output.line(line(change, options.json))?,
            }
        }
        // A reader at the other end of a pipe waits for each line.
        output.flush()
    })
}

fn line(change: &Change, json: bool) -> String {
    let at = wall_clock();
    match json {
        true => printable_json(&json::change(change, at).to_string()),
        false => format!("{} {}", json::time(at), printable(&change.to_string())),
    }
}
