//! The clock of what owns threads or time limits. The state machines (`agent::control`, `View`,
//! `Concentrator`, `Scheduler`) get the time from their callers.

use std::time::{Instant, SystemTime};

/// The time for deadlines.
#[expect(clippy::disallowed_methods, reason = "the one clock of this crate")]
pub fn now() -> Instant {
    Instant::now()
}

/// The time of day, which views and records keep.
#[expect(clippy::disallowed_methods, reason = "the one clock of this crate")]
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}
