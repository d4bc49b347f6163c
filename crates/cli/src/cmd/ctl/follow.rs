//! The loop of commands that run until a signal comes: `events`, and the lists with `--watch`.

use std::time::Duration;

use ssntp::client::ClientError;
use ssntp_cluster::controller::{Change, Controller};

use super::options::Options;
use crate::connection::{self, Complaint};
use crate::failure::Failure;
use crate::output::reader_is_gone;
use crate::signals::Stop;

/// Between two looks at a list that changes, and at whether the output is still read.
const PACE: Duration = Duration::from_millis(500);

/// Connects, and again whenever it has to. Calls `each` with the changes that have come, and
/// every half second without any. Returns once a signal comes, or nobody reads the standard
/// output any more.
///
/// # Errors
/// The controller has ended for good, or `each` failed.
pub(super) fn follow(
    options: &Options,
    stop: &Stop,
    mut each: impl FnMut(&Controller, &[Change]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (config, mut renewal) = options.config_going_on(stop)?;
    let controller = Controller::start(config)?;
    let ended = || Failure::new(controller.client().ended().unwrap_or(ClientError::Closed));
    let changes = controller.subscribe();
    let (pace, looks) = (crossbeam_channel::tick(PACE), connection::looks());
    let mut complaint = Complaint::default();
    loop {
        let first = crossbeam_channel::select! {
            recv(stop.channel()) -> _ => return Ok(()),
            recv(looks) -> _ => {
                renewal.look(&controller.client());
                continue;
            }
            recv(pace) -> _ => {
                complaint.tell(&controller.client());
                None
            }
            recv(changes) -> change => Some(change.map_err(|_| ended())?),
        };
        // A program that prints only when something changes would otherwise outlive its reader for
        // hours.
        if reader_is_gone() {
            return Ok(());
        }
        let mut come: Vec<_> = first.into_iter().chain(changes.try_iter()).collect();
        let is_over = come.pop_if(|last| matches!(last, Change::Ended { .. })).is_some();
        each(&controller, &come)?;
        if is_over {
            return Err(ended());
        }
    }
}
