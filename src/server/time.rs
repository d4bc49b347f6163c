//! The present time by both clocks, as the owner of the core passes it in.

use std::time::{Instant, SystemTime};

/// The time of one call of the core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: Instant,
    /// The time of day, which may jump.
    pub(super) wall: SystemTime,
}

impl Moment {
    /// The time of day of an earlier instant.
    pub(super) fn time_of_day(self, earlier: Instant) -> SystemTime {
        let ago = self.now.saturating_duration_since(earlier);
        self.wall.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}
