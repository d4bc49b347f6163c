//! The waits of the demo: until a state is seen, a signal comes, or a time limit has passed. Meanwhile
//! the screen shows changes.

use std::time::{Duration, Instant};

use ssntp_view::{Change, View};

use super::steps::Demo;
use crate::clock::now;
use crate::failure::Failure;

/// The time limit for one state to be seen. A busy machine needs seconds for the start of a process.
const LIMIT: Duration = Duration::from_secs(60);
/// The time between two checks of a process, because its end makes no change in the cluster.
const POLL: Duration = Duration::from_millis(10);
/// The time between two drawings of the table.
const REDRAW: Duration = Duration::from_millis(250);

impl Demo<'_> {
    pub(super) fn see<T>(&mut self, what: &str, look: impl FnMut(&View) -> Option<T>) -> Result<T, Failure> {
        let seen = self.wait(Some(now() + LIMIT), look)?;
        seen.ok_or_else(|| Failure::new(format!("not seen in {} s: {what}", LIMIT.as_secs())))
    }

    /// Blocks until `look` returns something; `None` if the time is over first. A signal is a silent
    /// failure.
    pub(super) fn wait<T>(
        &mut self,
        until: Option<Instant>,
        mut look: impl FnMut(&View) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let over = until.map_or_else(crossbeam_channel::never, crossbeam_channel::at);
        let (redraw, look_again) = (crossbeam_channel::tick(REDRAW), crossbeam_channel::tick(POLL));
        let never = crossbeam_channel::never();
        // A signal during the wait for deletions would leave workloads running.
        let stop = match self.is_ending {
            true => &never,
            false => self.stop.channel(),
        };
        loop {
            if let Some(seen) = self.controller.look(&mut look) {
                return Ok(Some(seen));
            }
            crossbeam_channel::select! {
                recv(self.changes) -> change => match change {
                    Ok(Change::Ended { reason }) => return Err(Failure::new(reason)),
                    Ok(change) => self.screen.change(&change)?,
                    Err(_) => return Err(Failure::new("the controller has ended")),
                },
                recv(look_again) -> _ => {}
                recv(redraw) -> _ => {
                    if let Some(name) = self.processes.missing() {
                        return Err(Failure::new(format!("the {name} has ended")));
                    }
                    self.draw()?;
                }
                recv(stop) -> _ => return Err(self.stop.interrupted()),
                recv(over) -> _ => return Ok(None),
            }
        }
    }

    pub(super) fn draw(&mut self) -> Result<(), Failure> {
        self.controller.look(|view| self.screen.draw(view))
    }
}
