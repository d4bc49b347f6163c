//! The clocks, and deadlines of time limits. `Duration::MAX` is no limit, and adding it to an `Instant`
//! would panic.

use std::time::{Duration, Instant, SystemTime};

/// Longer than any process runs, and a few times this time still fits into an `Instant`.
pub const NEVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The end of a time limit that begins now.
pub fn deadline(limit: Duration) -> Instant {
    after(now(), limit)
}

/// The end of a time limit that begins at `start`.
pub fn after(start: Instant, limit: Duration) -> Instant {
    start + limit.min(NEVER)
}

/// The time until a deadline.
///
/// # Errors
/// `TimedOut` once it has passed.
pub fn left(deadline: Instant) -> std::io::Result<Duration> {
    let left = deadline.saturating_duration_since(now());
    if left.is_zero() {
        Err(std::io::ErrorKind::TimedOut.into())
    } else {
        Ok(left)
    }
}

/// The time from 1970 to `at`; zero for an earlier time.
pub fn since_1970(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The nanoseconds from 1970 to `at`, as payloads and traces carry times.
pub fn nanoseconds(at: SystemTime) -> u64 {
    u64::try_from(since_1970(at).as_nanos()).unwrap_or(u64::MAX)
}

/// The present time. State machines get it from their owners and do not call this.
#[expect(clippy::disallowed_methods, reason = "the one clock of all crates")]
pub fn now() -> Instant {
    Instant::now()
}

/// The time of day, which differs from clock to clock and may jump.
#[expect(
    clippy::disallowed_methods,
    reason = "certificates are valid at a time of day, and people read one"
)]
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}
