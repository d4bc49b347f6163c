//! The delay before a request is repeated.

use std::time::Duration;

use super::Random;
use ssntp_transport::NEVER;

/// Delays that double, with a random part. The first is [`base`](Self::base), and each further
/// one is twice as long. Each is up to [`spread`](Self::spread) per cent longer or shorter,
/// and at most the cap of the caller: the time until the request is renewed anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The delay after the first attempt. Default 10 s.
    pub base: Duration,
    /// The random part of a delay: up to this many per cent longer or shorter. Default 10.
    pub spread: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(10),
            spread: 10,
        }
    }
}

impl RetryPolicy {
    /// The shortest delay, so that no policy repeats a request without a pause.
    const SHORTEST: Duration = Duration::from_millis(1);

    /// The delay after attempt number `attempt`, which counts from 0.
    pub fn delay(&self, attempt: u32, cap: Duration, random: &mut Random) -> Duration {
        let doubled = self
            .base
            // A shift by 32 or more would wrap around to a short delay.
            .saturating_mul(1_u32.checked_shl(attempt).unwrap_or(u32::MAX));
        let middle = doubled.min(cap).min(NEVER);
        let spread = middle / 100 * self.spread.min(100);
        let delay = random.between(middle - spread, (middle + spread).min(cap));
        delay.max(Self::SHORTEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_within_their_spread() {
        let policy = RetryPolicy {
            base: Duration::from_secs(1),
            ..RetryPolicy::default()
        };
        let cap = Duration::from_secs(3600);
        let mut random = Random::new(3);
        for (attempt, middle) in [(0, 1.0), (1, 2.0), (2, 4.0), (3, 8.0), (4, 16.0), (5, 32.0)] {
            for _ in 0..100 {
                let delay = policy.delay(attempt, cap, &mut random).as_secs_f64();
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
            assert!(RetryPolicy::default().delay(attempt, cap, &mut random) <= cap);
        }
    }
}
