//! Waiting for a way out: for room, for its end, or for everything to be sent.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::ledger::{Ledger, Phase};
use super::{Outbox, now};
use crate::host::deadline;
use crate::stream::Load;

impl Outbox {
    /// Waits until a push of `len` bytes may succeed. False if the time limit passed
    /// or the connection ends.
    pub fn wait_for_room(&self, len: usize, limit: Option<Duration>) -> bool {
        let item = Load {
            items: 1,
            frames: 1,
            bytes: len as u64,
        };
        self.sleep_until(limit.map(deadline), |ledger| {
            ledger.fits(item) || !ledger.is_open()
        }) && self.ledger().is_open()
    }

    /// Waits until nothing waits to be sent, or the connection ends, or the
    /// deadline passes; true when nothing waits.
    pub fn wait_until_empty(&self, deadline: Instant) -> bool {
        self.sleep_until(Some(deadline), |ledger| {
            ledger.waiting().items == 0 || !ledger.is_open()
        }) && self.ledger().waiting().items == 0
    }

    /// Waits until it is closed or closing, for at most `limit`; false when
    /// that has passed.
    pub fn wait_until_closed(&self, limit: Duration) -> bool {
        self.sleep_until(Some(deadline(limit)), |ledger| !ledger.is_open())
    }

    /// Waits until the writer has sent everything and has told the peer of the end, or the
    /// way out was aborted or has failed. Returns false if that takes longer than `limit`.
    pub(crate) fn wait_until_drained(&self, limit: Duration) -> bool {
        self.sleep_until(Some(deadline(limit)), |ledger| {
            ledger.is_over() || matches!(ledger.phase(), Phase::Drained)
        })
    }

    /// Waits until the way out was aborted or has failed, for at most `limit`.
    pub(crate) fn wait_until_over(&self, limit: Duration) {
        self.sleep_until(Some(deadline(limit)), Ledger::is_over);
    }

    fn sleep_until(&self, deadline: Option<Instant>, mut done: impl FnMut(&Ledger) -> bool) -> bool {
        let mut ledger = self.ledger();
        ledger.sleepers += 1;
        let found = loop {
            if done(&ledger) {
                break true;
            }
            let changed = &self.shared.changed;
            ledger = match deadline {
                None => changed.wait(ledger).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(now());
                    if left.is_zero() {
                        break false;
                    }
                    let waited = changed.wait_timeout(ledger, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        };
        ledger.sleepers -= 1;
        found
    }
}
