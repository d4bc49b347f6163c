//! The clocks. All other files of the program read them through this file.

#![expect(
    clippy::disallowed_methods,
    reason = "waits have limits, and output has timestamps"
)]

use std::time::{Duration, Instant, SystemTime};

/// The monotonic time, for time limits.
pub fn now() -> Instant {
    Instant::now()
}

/// The time of day.
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// The time from 1970 to `at`; zero for an earlier time.
pub fn since_1970(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The nanoseconds from 1970 to `at`, as payloads and traces carry times.
pub fn nanoseconds(at: SystemTime) -> u64 {
    u64::try_from(since_1970(at).as_nanos()).unwrap_or(u64::MAX)
}
