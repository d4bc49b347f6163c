//! The clocks. Only the threads of servers and clients read them, and pass the time on to what they run.

use std::time::{Instant, SystemTime};

#[expect(
    clippy::disallowed_methods,
    reason = "the cores get the time from their owners"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "for stamps, log lines and the validity of certificates"
)]
pub(crate) fn wall_clock() -> SystemTime {
    SystemTime::now()
}
