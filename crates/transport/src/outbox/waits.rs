//! Waiting for an outbox: for room, for its end, or for everything to be sent.

use std::time::{Duration, Instant};

use super::ledger::{Ledger, Phase};
use super::{Limits, Outbox};
use crate::host::{locked_again, now};

impl Outbox {
    /// Waits until less than `mark` waits, for at most `limit`. False if the time limit has passed or the
    /// connection ends.
    pub fn wait_for_room(&self, mark: Limits, limit: Option<Duration>) -> bool {
        self.sleep_until(limit.unwrap_or(Duration::MAX), |ledger| {
            ledger.is_below(mark) || !ledger.is_open()
        }) && self.ledger().is_open()
    }

    /// Waits until no item waits to be sent, the connection ends, or the deadline passes. True if
    /// no item waits.
    pub fn wait_until_empty(&self, deadline: Instant) -> bool {
        self.sleep_until(deadline.saturating_duration_since(now()), |ledger| {
            ledger.waiting.items == 0 || !ledger.is_open()
        }) && self.ledger().waiting.items == 0
    }

    /// Waits until it is closed or closing, for at most `limit`. False if that has passed.
    pub fn wait_until_closed(&self, limit: Duration) -> bool {
        self.sleep_until(limit, |ledger| !ledger.is_open())
    }

    /// Waits until the writer has sent everything and has sent the end to the peer, or the outbox
    /// was aborted or has failed. False if that takes longer than `limit`.
    pub(crate) fn wait_until_drained(&self, limit: Duration) -> bool {
        self.sleep_until(limit, |ledger| {
            ledger.is_over() || matches!(ledger.phase, Phase::Drained)
        })
    }

    /// Waits until the outbox was aborted or has failed, for at most `limit`.
    pub(crate) fn wait_until_over(&self, limit: Duration) {
        self.sleep_until(limit, Ledger::is_over);
    }

    /// Sleeps until `done`, for at most `limit`. True if `done`.
    fn sleep_until(&self, limit: Duration, done: impl Fn(&Ledger) -> bool) -> bool {
        let mut ledger = self.ledger();
        ledger.sleepers += 1;
        let changed = &self.shared.changed;
        let waited = changed.wait_timeout_while(ledger, limit, |ledger| !done(ledger));
        let (mut ledger, end) = locked_again(waited);
        ledger.sleepers -= 1;
        !end.timed_out()
    }
}
