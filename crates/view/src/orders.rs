//! The commands whose outcome is awaited. Each change, failure and session is shown to all of them.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::change::Change;
use crate::error::{CommandError, OrderError};
use crate::failure::Failure;
use crate::goal::{Goal, Shown};
use crate::view::View;
use ssntp::client::ClientError;
use ssntp::proto::Command;

/// The maximum number of orders that may wait at a time: several STARTs for each node of the largest
/// cluster that one scheduler serves.
const MAX_ORDERS: usize = 65_536;
/// The time from the beginning of a new session until a START of a former session is lost if no
/// node shows it. The new session may be with the same scheduler, which parks a START for a minute;
/// then a node lists the instance soon. Later sessions do not extend the time. Otherwise a
/// scheduler that restarts repeatedly would delay the answer without limit.
const LOST: Duration = Duration::from_secs(90);
/// The pause until the next check of a START that could not be judged, because there was no session.
const RECHECK: Duration = Duration::from_secs(10);

/// The outcome of an order.
pub(crate) type Reply = Result<Shown, OrderError>;

/// The orders that wait.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    waiting: Vec<Pending>,
    next_id: u64,
    /// The number of sessions so far.
    session: u64,
    /// The earliest `check_at` of the orders.
    check_at: Option<Instant>,
}

#[derive(Debug)]
struct Pending {
    id: u64,
    /// The number of the session in which the command was sent.
    session: u64,
    /// For a START of a former session, the time at which it is lost if no node shows it.
    check_at: Option<Instant>,
    goal: Goal,
    reply: Sender<Reply>,
}

impl Orders {
    /// Adds an order. Returns its id and the channel for its outcome.
    pub(crate) fn watch(
        &mut self,
        goal: Goal,
        is_online: bool,
    ) -> Result<(u64, Receiver<Reply>), CommandError> {
        // Each change visits every order, so their number bounds the time of a change, too.
        if self.waiting.len() >= MAX_ORDERS {
            return Err(CommandError::TooManyOrders(MAX_ORDERS));
        }
        let (reply, settled) = bounded(1);
        let id = self.next_id;
        self.next_id += 1;
        self.waiting.push(Pending {
            id,
            // A client without a session may queue the frame and send it in the next session.
            session: self.session + u64::from(!is_online),
            check_at: None,
            goal,
            reply,
        });
        Ok((id, settled))
    }

    /// Drops an order whose outcome is no longer awaited.
    pub(crate) fn forget(&mut self, id: u64) {
        self.waiting.retain(|order| order.id != id);
    }

    /// The time at which [`handle_deadline`](Self::handle_deadline) is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.check_at
    }

    /// Handles the beginning of a session.
    pub(crate) fn handle_session(&mut self, now: Instant, view: &View) {
        self.session += 1;
        self.schedule_checks(now);
        // CONNECTED carries the configuration, so it shows the outcome of a CONFIGURE whose session
        // was lost.
        self.settle(|order| {
            let is_configure = order.goal.command() == Command::CONFIGURE;
            is_configure.then(|| order.goal.reached(view)).flatten().map(Ok)
        });
    }

    /// Handles a change of the view. A failure may settle orders as well.
    pub(crate) fn handle_change(&mut self, change: &Change, view: &View) {
        if let Change::Failed(failure) = change {
            self.handle_failure(failure, view);
        }
        self.settle(|order| order.goal.shown(change, view).map(Ok));
    }

    fn handle_failure(&mut self, failure: &Failure, view: &View) {
        let failed = |failure| Err(OrderError::Failed(Box::new(failure)));
        // A refused configuration has no id. Of equal configurations, the oldest is refused first.
        let mut oldest = self.waiting.iter().filter(|order| order.goal.failed(failure));
        let oldest = oldest.next().map(|order| order.id);
        let is_of_any = failure.command != Command::CONFIGURE;
        self.settle(|order| {
            let fits = (is_of_any || Some(order.id) == oldest) && order.goal.failed(failure);
            let shown = fits.then(|| order.goal.is_met_by(failure, view))?;
            Some(shown.map_or_else(|| failed(failure.clone()), Ok))
        });
        // InvalidFrameType names no command. It settles the latest order with the refused kind of
        // command. With the reason `not_connected`, orders whose node is connected come last.
        let refused = |order: &Pending| Some((order.goal.refused(failure, view)?, order.id));
        if let Some((_, id)) = self.waiting.iter().filter_map(refused).max() {
            self.settle(|order| (order.id == id).then(|| failed(order.goal.named(failure.clone()))));
        }
    }

    /// Settles the STARTs that were lost with their session and that no node has shown since.
    pub(crate) fn handle_deadline(&mut self, now: Instant, view: &View) {
        let is_due = |order: &Pending| order.check_at.is_some_and(|at| at <= now);
        self.settle(|order| {
            let is_lost = is_due(order) && view.is_online() && order.goal.is_lost(view);
            is_lost.then(|| Err(OrderError::Lost(order.goal.command())))
        });
        for order in self.waiting.iter_mut().filter(|order| is_due(order)) {
            order.check_at = Some(now + RECHECK);
        }
        self.schedule_checks(now);
    }

    /// Settles all orders, because the controller has ended.
    pub(crate) fn end(&mut self, reason: &ClientError) {
        self.settle(|_| Some(Err(OrderError::Ended(reason.clone()))));
    }

    /// Schedules the checks of STARTs of former sessions.
    fn schedule_checks(&mut self, now: Instant) {
        for order in &mut self.waiting {
            if order.session < self.session && order.goal.command() == Command::START {
                order.check_at.get_or_insert(now + LOST);
            }
        }
        self.check_at = self.waiting.iter().filter_map(|order| order.check_at).min();
    }

    /// Settles and removes the orders for which `reply` returns a reply.
    fn settle(&mut self, reply: impl Fn(&Pending) -> Option<Reply>) {
        self.waiting.retain(|order| {
            let Some(reply) = reply(order) else {
                return true;
            };
            // The channel has room for the only reply. If the order was dropped, the reply is dropped.
            let _ = order.reply.try_send(reply);
            false
        });
    }
}
