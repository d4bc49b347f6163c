//! The pace of receivers: how much each has to take while it pauses others.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::host::after;
use crate::stream::Load;
use crate::table::ConnectionId;

/// The pace that a receiver has to keep while it pauses others: so many bytes, or so many frames,
/// in each second.
const PACE_BYTES: f64 = (4 << 20) as f64;
const PACE_FRAMES: f64 = 20_000.0;
/// The maximum number of receivers that share the pace, so that each has to take 64 KiB or 312 frames
/// a second however many they are. With this, a thousand receivers of one sender at full speed keep
/// the pace over a network of a gigabit.
const PACE_SHARED_BY: usize = 64;
/// The shortest time between two checks of a slow receiver's pace.
pub(super) const PACE_CHECK: Duration = Duration::from_millis(100);

/// The measurement of a receiver's pace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) since: Instant,
    /// The items and bytes that it had received at that time.
    before: Load,
    /// The time of the check.
    check_at: Instant,
    /// True if it pauses others. False if it was slow, and may be so no longer.
    pauses_others: bool,
}

/// The receivers whose pace is measured.
#[derive(Debug)]
pub(super) struct PaceChecks {
    pub(super) patience: Duration,
    /// The times of the checks, earliest first.
    due: BTreeSet<(Instant, ConnectionId)>,
    /// The number of receivers that pause others.
    sharing: usize,
}

impl PaceChecks {
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            patience,
            due: BTreeSet::new(),
            sharing: 0,
        }
    }

    /// Begins the measurement of a receiver that has received `before`.
    pub(super) fn begin(
        &mut self,
        receiver: ConnectionId,
        is_slow: bool,
        before: Load,
        now: Instant,
    ) -> Pace {
        // The pause keeps the dispatcher from checking a slow receiver all the time.
        let least = if is_slow {
            PACE_CHECK
        } else {
            Duration::from_millis(1)
        };
        let pace = Pace {
            since: now,
            before,
            check_at: after(now, self.patience.max(least)),
            pauses_others: !is_slow,
        };
        self.due.insert((pace.check_at, receiver));
        self.sharing += usize::from(pace.pauses_others);
        pace
    }

    pub(super) fn end(&mut self, receiver: ConnectionId, pace: Pace) {
        self.due.remove(&(pace.check_at, receiver));
        self.sharing -= usize::from(pace.pauses_others);
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The receivers whose checks are due.
    pub(super) fn due(&self, now: Instant) -> Vec<ConnectionId> {
        let due = self.due.iter().take_while(|(at, _)| *at <= now);
        due.map(|(_, receiver)| *receiver).collect()
    }

    /// The number of receivers that share the pace. A slow receiver pauses nobody, and shares nothing.
    #[expect(clippy::cast_precision_loss, reason = "at most 64")]
    pub(super) fn shared_by(&self) -> f64 {
        self.sharing.clamp(1, PACE_SHARED_BY) as f64
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.due.len()
    }
}

impl Pace {
    /// True if a receiver that has received `progress` by now has kept its part of the pace.
    #[expect(clippy::cast_precision_loss, reason = "a pace")]
    pub(super) fn is_kept(&self, progress: Load, shared_by: f64) -> bool {
        // Until the time of the check, and not until now: a server that lacks processor time, or was
        // paused, comes late, and its writers were as late. No receiver is to blame for that.
        let seconds = self.check_at.saturating_duration_since(self.since).as_secs_f64();
        let mut done = progress;
        done -= self.before;
        done.bytes as f64 * shared_by >= PACE_BYTES * seconds
            || done.frames as f64 * shared_by >= PACE_FRAMES * seconds
    }
}
