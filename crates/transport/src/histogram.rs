//! A histogram of durations.

use std::time::Duration;

/// The number of buckets with an upper bound: from 1 µs to 2^29 µs, which are nine minutes.
const BOUNDS: usize = 30;

/// A histogram of durations. Each bucket is twice as wide as the one before: up to 1 µs, 2 µs, 4 µs …,
/// 9 minutes, and longer.
///
/// It is plain data without a lock: one thread records, and others get a copy.
///
/// ```
/// use std::time::Duration;
///
/// use ssntp_transport::Histogram;
///
/// let mut waits = Histogram::default();
/// waits.record(Duration::from_micros(3));
/// assert_eq!((waits.count(), waits.sum()), (1, Duration::from_micros(3)));
/// let bucket = waits.buckets().find(|(_, count)| *count > 0);
/// assert_eq!(bucket, Some((Some(Duration::from_micros(4)), 1)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// The last bucket counts durations beyond every bound.
    counts: [u64; BOUNDS + 1],
    sum: Duration,
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, took: Duration) {
        let micros = took.as_secs().saturating_mul(1_000_000);
        let micros = micros.saturating_add(took.subsec_nanos().div_ceil(1000).into());
        // The least power of two that is not below the duration.
        let bits = u64::BITS - micros.saturating_sub(1).leading_zeros();
        self.counts[(bits as usize).min(BOUNDS)] += 1;
        self.sum = self.sum.saturating_add(took);
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of the durations.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// Each bucket's upper bound, inclusive and `None` for the last one, and the number of durations in
    /// that bucket alone.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        self.counts.iter().enumerate().map(|(at, count)| {
            let bound = (at < BOUNDS).then(|| Duration::from_micros(1 << at));
            (bound, *count)
        })
    }

    /// The upper bound of the bucket that holds the quantile `part`, from 0 to 1: 0.5 is the median. `None`
    /// if there is no duration, or the quantile is beyond all bounds.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let count = self.count();
        #[expect(clippy::cast_precision_loss, reason = "a part of a count")]
        let wanted = (count as f64 * part.clamp(0.0, 1.0)).max(1.0);
        let mut below = 0;
        self.buckets().find_map(|(bound, count)| {
            below += count;
            #[expect(clippy::cast_precision_loss, reason = "a part of a count")]
            let is_it = below as f64 >= wanted;
            is_it.then_some(bound)
        })?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_the_first_bucket_whose_bound_is_not_below_it() {
        let nanos = [0, 1, 999, 1000, 1001, 2000, 2001, 1_000_000, 1 << 40];
        for nanos in nanos.into_iter().chain((0..400).map(|n| n * n * n * 7919)) {
            let took = Duration::from_nanos(nanos);
            let mut histogram = Histogram::default();
            histogram.record(took);
            let found: Vec<_> = histogram.buckets().filter(|(_, count)| *count > 0).collect();
            let bounds = histogram.buckets().map(|(bound, _)| bound);
            let first = bounds
                .into_iter()
                .find(|bound| bound.is_none_or(|bound| bound >= took));
            assert_eq!(found, [(first.unwrap(), 1)], "{took:?}");
            assert_eq!(histogram.sum(), took);
        }
        let mut histogram = Histogram::default();
        histogram.record(Duration::MAX);
        histogram.record(Duration::MAX);
        assert_eq!(histogram.buckets().last(), Some((None, 2)));
    }

    #[test]
    fn a_quantile_is_the_bound_of_the_bucket_that_it_falls_into() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        for micros in 1..=100 {
            histogram.record(Duration::from_micros(micros));
        }
        let micros = |part| histogram.quantile(part).map(|bound| bound.as_micros());
        assert_eq!(
            [0.0, 0.01, 0.5, 0.64, 0.65, 1.0].map(micros),
            [1, 1, 64, 64, 128, 128].map(Some)
        );
    }
}
