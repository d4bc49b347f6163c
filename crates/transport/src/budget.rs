//! The memory that all queues of a server may take together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How much every queue may take, however much the others have.
const LEAST_SHARE: u64 = 64 * 1024;

/// A bound for many queues together, with a fair share for each: no queue grows beyond the
/// free part. So one greedy queue gets half of the budget, and `n` greedy ones get an
/// `n + 1`th each; the last part stays free for queues that have nothing yet.
///
/// It is a measure for decisions, not a lock: a queue looks at its share before it takes
/// more, and two that look at the same time may exceed the share by an item each. A clone
/// counts in the same budget.
#[derive(Clone, Debug)]
pub struct Budget(Option<Arc<Counted>>);

#[derive(Debug)]
struct Counted {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(limit: u64) -> Self {
        Self(Some(Arc::new(Counted {
            limit,
            used: AtomicU64::new(0),
        })))
    }

    /// The two budgets of a server that may take so many bytes: three quarters for frames
    /// that wait to be sent, and a quarter for received frames that are not dealt with. So
    /// a thousand senders that are far ahead leave room for their receiver's queue.
    pub fn for_queues_and_received(limit: u64) -> (Self, Self) {
        (Self::new(limit - limit / 4), Self::new(limit / 4))
    }

    /// A budget without a bound, in which nothing is counted.
    pub fn unlimited() -> Self {
        Self(None)
    }

    /// The bytes in use.
    pub fn used(&self) -> u64 {
        // Relaxed, here and below: no other memory depends on this number.
        self.0
            .as_ref()
            .map_or(0, |counted| counted.used.load(Ordering::Relaxed))
    }

    /// The bytes in use, and the bound.
    pub fn figures(&self) -> BudgetFigures {
        BudgetFigures {
            used: self.used(),
            limit: self.0.as_ref().map_or(u64::MAX, |counted| counted.limit),
        }
    }

    /// Whether nothing is left.
    pub fn is_used_up(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|counted| counted.used.load(Ordering::Relaxed) >= counted.limit)
    }

    /// How far one queue may grow now, in bytes.
    pub fn share(&self) -> u64 {
        match &self.0 {
            None => u64::MAX,
            Some(counted) => {
                let used = counted.used.load(Ordering::Relaxed);
                counted.limit.saturating_sub(used).max(LEAST_SHARE)
            }
        }
    }

    /// Counts bytes as used.
    pub fn take(&self, bytes: u64) {
        if let Some(counted) = &self.0 {
            counted.used.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Counts bytes as free again.
    pub fn give(&self, bytes: u64) {
        if let Some(counted) = &self.0 {
            let before = counted.used.fetch_sub(bytes, Ordering::Relaxed);
            debug_assert!(before >= bytes, "more is given back than was taken");
        }
    }
}

/// A bound for the memory of many queues together, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetFigures {
    /// The bytes in use.
    pub used: u64,
    /// The bound.
    pub limit: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_shrinks_with_what_others_take_and_something_is_left_for_each() {
        let budget = Budget::new(1 << 30);
        assert_eq!(budget.share(), 1 << 30);
        budget.take(1 << 29);
        assert_eq!(budget.share(), 1 << 29);
        budget.clone().take(1 << 30);
        assert_eq!(budget.share(), LEAST_SHARE);
        budget.give(3 << 29);
        assert_eq!((budget.used(), budget.share()), (0, 1 << 30));
        assert_eq!(Budget::unlimited().share(), u64::MAX);
    }
}
