//! The clocks of a controller. The reconciler itself reads none.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ssntp_transport::wall_clock;

/// The time of day: milliseconds since 1970, UTC.
pub(crate) fn unix_ms() -> i64 {
    ms(wall_clock())
}

/// Milliseconds since 1970 as a time. Negative numbers count as 0.
pub(crate) fn time(ms: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// A time since 1970 in milliseconds.
pub(crate) fn ms(at: SystemTime) -> i64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
