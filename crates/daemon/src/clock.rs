//! Times since 1970.

use std::time::{Duration, SystemTime};

/// The time from 1970 to `at`; zero for an earlier time.
pub fn since_1970(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The nanoseconds from 1970 to `at`, as payloads and traces carry times.
pub fn nanoseconds(at: SystemTime) -> u64 {
    u64::try_from(since_1970(at).as_nanos()).unwrap_or(u64::MAX)
}
