//! Random delays from a seed.

use std::time::Duration;

use ssntp_transport::NEVER;

/// A sequence of pseudo-random numbers (splitmix64). The same seed gives the same sequence. It
/// spreads delays, so that many peers do not send at the same time. It is not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed. Each process should use a different seed; a test uses a constant.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        // The constants are those of splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A duration that is at least `low` and at most `high`.
    pub fn between(&mut self, low: Duration, high: Duration) -> Duration {
        let span = high.saturating_sub(low).min(NEVER);
        // 32 bits resolve a delay of a year to less than 10 ms.
        low + span.mul_f64(f64::from((self.bits() >> 32) as u32) / f64::from(u32::MAX))
    }

    /// The delay after attempt number `attempt`, which counts from 0: `first` doubled with each attempt, up
    /// to ten per cent longer or shorter, and at most `cap`. It is never zero.
    pub fn delay(&mut self, first: Duration, attempt: u32, cap: Duration) -> Duration {
        // A shift by 32 or more would wrap around to a short delay.
        let doubled = first.saturating_mul(1_u32.checked_shl(attempt).unwrap_or(u32::MAX));
        let middle = doubled.min(cap).min(NEVER);
        let spread = middle / 10;
        let delay = self.between(middle - spread, (middle + spread).min(cap));
        // Nothing is repeated without a pause.
        delay.max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_sequence() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            [random.bits(), random.bits(), random.bits()]
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn durations_stay_in_their_range_and_fill_it() {
        let (low, high) = (Duration::from_secs(2400), Duration::from_secs(3600));
        let mut random = Random::new(7);
        let drawn: Vec<_> = (0..1000).map(|_| random.between(low, high)).collect();
        assert!(drawn.iter().all(|d| *d >= low && *d <= high));
        assert!(drawn.iter().any(|d| *d < Duration::from_secs(2450)));
        assert!(drawn.iter().any(|d| *d > Duration::from_secs(3550)));
        assert_eq!(random.between(high, low), high);
    }

    #[test]
    fn delays_double_within_their_spread() {
        let cap = Duration::from_secs(3600);
        let mut random = Random::new(3);
        for (attempt, middle) in [(0, 1.0), (1, 2.0), (2, 4.0), (3, 8.0), (4, 16.0), (5, 32.0)] {
            for _ in 0..100 {
                let delay = random.delay(Duration::from_secs(1), attempt, cap).as_secs_f64();
                assert!(
                    (middle * 0.9..=middle * 1.1).contains(&delay),
                    "{attempt}: {delay}"
                );
            }
        }
    }

    #[test]
    fn no_delay_is_longer_than_the_cap() {
        let mut random = Random::new(3);
        let cap = Duration::from_secs(25);
        for attempt in [2, 3, 31, 32, 33, u32::MAX] {
            assert!(random.delay(Duration::from_secs(10), attempt, cap) <= cap);
        }
    }
}
