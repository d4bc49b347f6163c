//! The clock: the dispatchers pass the time to the cores, which have no clock.

use std::time::Instant;

#[expect(
    clippy::disallowed_methods,
    reason = "the dispatchers pass the time to the cores"
)]
pub(super) fn now() -> Instant {
    Instant::now()
}
