//! `ssntp ctl events`, and the loop that it shares with lists with `--watch`. Both run until a
//! signal comes.

use std::time::Duration;

use ssntp_view::{Change, Controller};

use super::json;
use super::options::Options;
use crate::connection::{self, Complaint, ended};
use crate::failure::Failure;
use crate::output::{Output, printable, printable_json, reader_is_gone};
use crate::signals::Stop;
use ssntp_transport::wall_clock;

/// The time between two checks whether a list has changed, and whether the reader of the standard
/// output is gone.
const PACE: Duration = Duration::from_millis(500);

/// Connects, and reconnects whenever the connection is lost. Calls `each` with the changes that
/// have arrived, and every half second without changes. Blocks until a signal comes or the reader
/// of the standard output is gone.
///
/// # Errors
/// The controller has ended, or `each` failed.
pub(super) fn follow(
    options: &Options,
    stop: &Stop,
    mut each: impl FnMut(&Controller, &[Change]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (config, mut renewal) = options.lasting_config(stop)?;
    let (controller, arriving) = Controller::start_subscribed(config)?;
    let ended = || ended(&controller.client());
    let (pace, checks) = (crossbeam_channel::tick(PACE), connection::checks());
    let mut complaint = Complaint::default();
    loop {
        let first = crossbeam_channel::select! {
            recv(stop.channel()) -> _ => return Ok(()),
            recv(checks) -> _ => {
                renewal.check(&controller.client());
                continue;
            }
            recv(pace) -> _ => {
                complaint.note(&controller.client());
                None
            }
            recv(arriving) -> change => Some(change.map_err(|_| ended())?),
        };
        // Without this check, a program that prints only changes would outlive its reader for hours.
        if reader_is_gone() {
            return Ok(());
        }
        let mut changes: Vec<_> = first.into_iter().chain(arriving.try_iter()).collect();
        let has_ended = changes
            .pop_if(|last| matches!(last, Change::Ended { .. }))
            .is_some();
        each(&controller, &changes)?;
        if has_ended {
            return Err(ended());
        }
    }
}

/// Print what happens in the cluster, until a signal comes
///
/// Starts with the nodes and instances that the scheduler already knows. Reconnects
/// whenever the connection is lost.
#[derive(Debug, clap::Args)]
pub(super) struct EventsArgs {
    /// Also print a line for each STATS without a change
    #[arg(long)]
    stats: bool,
}

pub(super) fn events(options: &Options, stop: &Stop, args: &EventsArgs) -> Result<(), Failure> {
    follow(options, stop, |_, changes| {
        let mut output = Output::lock();
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
    if json {
        printable_json(&json::change(change, at).to_string())
    } else {
        format!("{} {}", json::time(at), printable(&change.to_string()))
    }
}
