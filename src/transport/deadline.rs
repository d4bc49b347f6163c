//! When a time limit ends. `Duration::MAX` is a good way to say "never", and
//! adding it to an `Instant` panics.

use std::time::{Duration, Instant};

/// Longer than any process runs.
const NEVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The end of a time limit that begins now.
#[expect(clippy::disallowed_methods, reason = "a time limit needs the clock")]
pub(crate) fn deadline(limit: Duration) -> Instant {
    after(Instant::now(), limit)
}

/// The end of a time limit that begins at `start`.
pub(crate) fn after(start: Instant, limit: Duration) -> Instant {
    start + limit.min(NEVER)
}
