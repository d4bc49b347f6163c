//! The clocks: the dispatchers pass the time to the cores, which have no clock.

use std::time::{Instant, SystemTime};

#[expect(
    clippy::disallowed_methods,
    reason = "the dispatchers pass the time to the cores"
)]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// The time of day, for certificates, revisions and reports.
#[expect(clippy::disallowed_methods, reason = "the time of day")]
pub(super) fn time_of_day() -> SystemTime {
    SystemTime::now()
}
