//! How old frames are when they arrive.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::histogram::Histogram;
use crate::raw::now;

/// The ages of the frames that arrive while they are counted.
#[derive(Debug)]
pub(crate) struct Ages {
    began: Instant,
    counted: AtomicBool,
    all: Mutex<Histogram>,
}

impl Default for Ages {
    fn default() -> Self {
        Self {
            began: now(),
            counted: AtomicBool::new(false),
            all: Mutex::default(),
        }
    }
}

impl Ages {
    /// The time of sending that a frame carries: nanoseconds since the beginning.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Notes the age of a frame that was sent at this time and has just arrived.
    pub(crate) fn arrived(&self, sent: u64) {
        if self.counted.load(Relaxed) {
            let age = self.now().saturating_sub(sent);
            self.all.lock().unwrap_or_else(PoisonError::into_inner).add(age);
        }
    }

    /// Counts arrivals from now on until the result is dropped.
    pub(crate) fn count(&self) -> Counting<'_> {
        self.counted.store(true, Relaxed);
        Counting(self)
    }

    pub(crate) fn into_figures(self) -> Vec<(&'static str, f64)> {
        let all = self.all.into_inner().unwrap_or_else(PoisonError::into_inner);
        if all.total() == 0 {
            return Vec::new();
        }
        vec![
            ("age_p50_us", all.quantile(0.5)),
            ("age_p99_us", all.quantile(0.99)),
        ]
    }
}

/// Arrivals are counted while this lives.
#[derive(Debug)]
pub(crate) struct Counting<'a>(&'a Ages);

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.0.counted.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_counts_only_while_ages_are_counted() {
        let ages = Ages::default();
        ages.arrived(0);
        {
            let _counting = ages.count();
            ages.arrived(ages.now());
        }
        ages.arrived(0);
        assert_eq!(ages.all.lock().unwrap().total(), 1);
        let names: Vec<_> = ages.into_figures().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["age_p50_us", "age_p99_us"]);
    }
}
