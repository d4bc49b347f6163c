//! Counts millions of durations in little memory, with an error below one percent.

use std::time::Duration;

/// Buckets between a value and its double. 128 of them keep the error below one percent.
const STEPS: u32 = 128;

/// Counts durations from a nanosecond to hours.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Histogram {
    pub(crate) fn add(&mut self, nanoseconds: u64) {
        let bucket = bucket(nanoseconds);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The `q`-quantile in microseconds: a share `q` of all durations is not longer.
    pub(crate) fn quantile(&self, q: f64) -> f64 {
        let rank = self.total as f64 * q;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if *count > 0 && seen as f64 >= rank {
                return Duration::from_nanos(middle(bucket)).as_secs_f64() * 1e6;
            }
        }
        0.0
    }
}

/// Values below `STEPS` have a bucket each. Above, each doubling has `STEPS` buckets.
fn bucket(value: u64) -> usize {
    let doublings = value.checked_ilog2().unwrap_or(0).saturating_sub(STEPS.ilog2());
    let step = value >> doublings;
    usize::try_from(u64::from(doublings * STEPS) + step).unwrap_or(usize::MAX)
}

fn middle(bucket: usize) -> u64 {
    let steps = STEPS as usize;
    let doublings = (bucket / steps).saturating_sub(1);
    let step = (bucket - doublings * steps) as u64;
    (step << doublings) + (1 << doublings) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_values_that_differ_by_less_than_one_percent() {
        for value in [
            1,
            100,
            127,
            128,
            129,
            1_000,
            65_535,
            1_000_000,
            3_600_000_000_000_u64,
        ] {
            let found = middle(bucket(value));
            assert!(found.abs_diff(value) * 100 <= value, "{value} became {found}");
        }
    }

    #[test]
    fn quantiles_are_ranks() {
        let mut all = Histogram::default();
        for microseconds in 1..=1000 {
            all.add(microseconds * 1000);
        }
        assert_eq!(all.total(), 1000);
        for (q, expected) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = all.quantile(q);
            assert!((found - expected).abs() < expected / 100.0, "{q}: {found}");
        }
        assert_eq!(Histogram::default().quantile(0.5), 0.0);
    }
}
