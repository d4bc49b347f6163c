//! The memory of items that have begun to arrive.

use std::time::{Duration, Instant};

use super::Credit;
use crate::budget::Budget;

/// How long a reader rests before it looks for memory again. Memory becomes free in many
/// places, so polling is simpler than a notice; waiting is rare, and not urgent.
const REST: Duration = Duration::from_millis(20);

/// The memory that one connection holds for an item that is not complete yet.
///
/// It counts in the budget of received bytes. If the budget is used up, the connection is
/// not read until there is memory again, but at most for `limit` since the item began. So
/// peers that begin long items and never finish them cannot block others forever.
#[derive(Debug)]
pub struct Unfinished {
    budget: Budget,
    counted: u64,
    since: Option<Instant>,
    limit: Duration,
}

impl Unfinished {
    /// For one connection: `limit` is how long an item may wait for memory.
    pub fn new(budget: Budget, limit: Duration) -> Self {
        Self {
            budget,
            counted: 0,
            since: None,
            limit,
        }
    }

    /// Counts the bytes of an item that have arrived, or 0 when it is complete. Waits for
    /// memory. False if there was none in time, or the connection has ended.
    pub fn hold(&mut self, bytes: u64, credit: &Credit, clock: impl Fn() -> Instant) -> bool {
        let before = std::mem::replace(&mut self.counted, bytes);
        self.budget.take(bytes.saturating_sub(before));
        self.budget.give(before.saturating_sub(bytes));
        if bytes == 0 {
            self.since = None;
            return true;
        }
        let since = *self.since.get_or_insert_with(&clock);
        while self.budget.is_used_up() {
            let waited = clock().saturating_duration_since(since);
            if waited >= self.limit || !credit.rest(REST) {
                return false;
            }
        }
        true
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.budget.give(self.counted);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any time will do")]
    fn start() -> Instant {
        Instant::now()
    }

    #[test]
    fn what_is_unfinished_counts_until_it_is_whole_or_gone() {
        let budget = Budget::new(1 << 20);
        let credit = Credit::new(budget.clone());
        let mut unfinished = Unfinished::new(budget.clone(), Duration::from_secs(1));
        for (bytes, used) in [(1000, 1000), (5000, 5000), (200, 200), (0, 0), (70, 70)] {
            assert!(unfinished.hold(bytes, &credit, start));
            assert_eq!(budget.used(), used);
        }
        drop(unfinished);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn without_memory_it_is_waited_for_until_the_limit_since_the_item_began() {
        let budget = Budget::new(1 << 20);
        let credit = Credit::new(budget.clone());
        let limit = Duration::from_millis(900);
        let mut unfinished = Unfinished::new(budget.clone(), limit);
        let (began, looks) = (start(), Cell::new(0));
        // Each look at the clock finds it a third of a second later.
        let clock = || {
            looks.set(looks.get() + 1);
            began + limit / 3 * looks.get()
        };
        assert!(unfinished.hold(1000, &credit, clock));
        budget.take(1 << 20);
        assert!(!unfinished.hold(2000, &credit, clock));
        assert_eq!(looks.get(), 4, "it began at the first look");
        budget.give(1 << 20);
        assert!(unfinished.hold(3000, &credit, clock), "there is memory again");
        credit.end();
        budget.take(1 << 20);
        let mut other = Unfinished::new(budget.clone(), limit);
        assert!(!other.hold(1, &credit, start), "the connection is over");
        budget.give(1 << 20);
    }
}
