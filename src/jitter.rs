//! The random part of pauses, so that clients that lost the same server do not return all at once.

use uuid::Uuid;

/// A random number from 0 to 1, without 1.
pub(crate) fn random_share() -> f64 {
    // The random bits of a new UUID serve as a source of randomness.
    let random = Uuid::new_v4().as_u128() >> 80;
    #[expect(clippy::cast_precision_loss, reason = "48 bits fit a double")]
    let share = random as f64 / (1u64 << 48) as f64;
    share
}
