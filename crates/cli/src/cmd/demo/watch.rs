//! The waits of the demo: until something is seen, or a signal, or a time;
//! meanwhile the screen shows what changes.

use std::time::{Duration, Instant};

use ssntp::payload::InstanceState;
use ssntp_cluster::controller::{Change, Controller, Order, OrderError, Shown, View};
use uuid::Uuid;

use super::now;
use super::screen::Screen;
use super::steps::{Demo, Interrupt};
use crate::failure::Failure;

/// How long one thing may take to be seen.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
/// How long the table stands between two drawings.
const REDRAW: Duration = Duration::from_millis(250);

/// What a step comes to.
pub(super) type Seen<T = ()> = Result<T, Interrupt>;

impl Demo<'_> {
    /// Waits until an order is shown to be carried out.
    pub(super) fn done(&mut self, order: &Order) -> Seen<Shown> {
        self.settled(order)?.map_err(|e| Failure::new(e).into())
    }

    /// As `done`, but on the way out no signal changes anything.
    pub(super) fn still_done(&mut self, order: &Order) -> Seen<Shown> {
        let deadline = now() + LIMIT;
        let settled = self.unstoppable(deadline, |_| order.poll())?;
        settled
            .unwrap_or_else(|| Err(order.timed_out(LIMIT)))
            .map_err(|e| Failure::new(e).into())
    }

    pub(super) fn settled(&mut self, order: &Order) -> Seen<Result<Shown, OrderError>> {
        let settled = self.wait(Some(now() + LIMIT), |_| order.poll())?;
        Ok(settled.unwrap_or_else(|| Err(order.timed_out(LIMIT))))
    }

    pub(super) fn see_state(&mut self, instances: &[Uuid], state: &InstanceState) -> Seen {
        let what = format!("instances are {state}");
        let reached = |view: &View| {
            let mut states = instances
                .iter()
                .map(|uuid| view.instance(*uuid).map(|i| &i.state));
            states.all(|known| known == Some(state)).then_some(())
        };
        self.see(&what, reached)
    }

    pub(super) fn see<T>(&mut self, what: &str, look: impl FnMut(&View) -> Option<T>) -> Seen<T> {
        match self.wait(Some(now() + LIMIT), look)? {
            Some(seen) => Ok(seen),
            None => Err(Failure::new(format!("not seen in {} s: {what}", LIMIT.as_secs())).into()),
        }
    }

    /// Waits until something is seen, or a time; meanwhile shows what changes.
    pub(super) fn wait<T>(
        &mut self,
        until: Option<Instant>,
        look: impl FnMut(&View) -> Option<T>,
    ) -> Seen<Option<T>> {
        self.watch(until, true, look)
    }

    pub(super) fn unstoppable<T>(
        &mut self,
        until: Instant,
        look: impl FnMut(&View) -> Option<T>,
    ) -> Seen<Option<T>> {
        self.watch(Some(until), false, look)
    }

    fn watch<T>(
        &mut self,
        until: Option<Instant>,
        stoppable: bool,
        mut look: impl FnMut(&View) -> Option<T>,
    ) -> Seen<Option<T>> {
        let over = until.map_or_else(crossbeam_channel::never, crossbeam_channel::at);
        let redraw = crossbeam_channel::tick(REDRAW);
        let never = crossbeam_channel::never();
        let stop = if stoppable { self.stop.channel() } else { &never };
        loop {
            if let Some(seen) = self.controller.look(&mut look) {
                return Ok(Some(seen));
            }
            crossbeam_channel::select! {
                recv(self.changes) -> change => match change {
                    Ok(Change::Ended { reason }) => return Err(Failure::new(reason).into()),
                    Ok(change) => self.screen.change(&change)?,
                    Err(_) => return Err(Failure::new("the controller has ended").into()),
                },
                recv(redraw) -> _ => {
                    if let Some(name) = self.processes.missing() {
                        return Err(Failure::new(format!("the {name} has ended")).into());
                    }
                    self.screen.draw_from(&self.controller)?;
                }
                recv(stop) -> _ => return Err(Interrupt::Stopped),
                recv(over) -> _ => return Ok(None),
            }
        }
    }
}

impl Screen {
    pub(super) fn draw_from(&mut self, controller: &Controller) -> Result<(), Failure> {
        controller.look(|view| self.draw(view))
    }
}
