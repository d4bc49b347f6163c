//! The pace of receivers: how much each has to take while it holds others.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{Flow, Origin};
use crate::host::after;
use crate::stream::Load;
use crate::table::ConnectionId;

/// The pace that a receiver has to keep while it holds others: so many bytes, or so many frames,
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
    /// True if it holds others. False if it was slow, and may be so no longer.
    holds_others: bool,
}

/// The receivers whose pace is measured.
#[derive(Debug, Default)]
pub(super) struct PaceChecks {
    /// The times of the checks, earliest first.
    due: BTreeSet<(Instant, ConnectionId)>,
    /// The number of receivers that hold others.
    holders: usize,
}

impl PaceChecks {
    fn add(&mut self, receiver: ConnectionId, pace: Pace) {
        self.due.insert((pace.check_at, receiver));
        self.holders += usize::from(pace.holds_others);
    }

    pub(super) fn remove(&mut self, receiver: ConnectionId, pace: Pace) {
        self.due.remove(&(pace.check_at, receiver));
        self.holders -= usize::from(pace.holds_others);
    }

    /// All receivers whose pace is measured: each that holds others, and each that is slow.
    pub(super) fn receivers(&self) -> Vec<ConnectionId> {
        self.due.iter().map(|(_, receiver)| *receiver).collect()
    }

    fn due(&self, now: Instant) -> Vec<ConnectionId> {
        let due = self.due.iter().take_while(|(at, _)| *at <= now);
        due.map(|(_, receiver)| *receiver).collect()
    }

    /// The number of receivers that share the pace. A slow receiver holds nobody, and shares nothing.
    #[expect(clippy::cast_precision_loss, reason = "at most 64")]
    fn shared_by(&self) -> f64 {
        self.holders.clamp(1, PACE_SHARED_BY) as f64
    }
}

impl<I> Flow<I> {
    /// Begins or ends the measurement of a receiver's pace.
    pub(super) fn update_pace_check(&mut self, to: ConnectionId, now: Instant) {
        let Some(row) = self.rows.get_mut(to) else {
            return;
        };
        if !row.needs_pace_check() {
            self.end_pace_check(to);
        } else if row.pace.is_none() {
            // The pause keeps the dispatcher from checking a slow receiver all the time.
            let least = match row.is_slow {
                true => PACE_CHECK,
                false => Duration::from_millis(1),
            };
            let pace = Pace {
                since: now,
                before: row.outbox.progress(),
                check_at: after(now, self.patience.max(least)),
                holds_others: !row.is_slow,
            };
            row.pace = Some(pace);
            self.pace_checks.add(to, pace);
        }
    }

    /// Ends the measurement of a receiver that neither holds others nor is slow.
    pub(super) fn end_pace_check(&mut self, to: ConnectionId) {
        if let Some(row) = self.rows.get_mut(to)
            && !row.needs_pace_check()
            && let Some(pace) = row.pace.take()
        {
            self.pace_checks.remove(to, pace);
        }
    }

    /// The time at which [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.pace_checks.due.first().map(|(at, _)| *at)
    }

    /// Checks the pace of receivers that have held others for the patience. Returns the slow
    /// ones: their lines may exceed their limits now, see [`overflow`](Self::overflow).
    pub fn tick(&mut self, now: Instant) -> Vec<ConnectionId> {
        let mut slow = Vec::new();
        let shared_by = self.pace_checks.shared_by();
        for to in self.pace_checks.due(now) {
            let Some(row) = self.rows.get_mut(to) else {
                continue;
            };
            let Some(pace) = row.pace.take() else {
                continue;
            };
            self.pace_checks.remove(to, pace);
            // Until the time of the check, and not until now: a server that lacks processor time, or was
            // paused, comes late, and its writers were as late. No receiver is to blame for that.
            let seconds = pace.check_at.saturating_duration_since(pace.since).as_secs_f64();
            let mut done = row.outbox.progress();
            done -= pace.before;
            #[expect(clippy::cast_precision_loss, reason = "a pace")]
            let kept_up = done.bytes as f64 * shared_by >= PACE_BYTES * seconds
                || done.frames as f64 * shared_by >= PACE_FRAMES * seconds;
            row.is_slow = !kept_up;
            if !kept_up {
                let held = row.line.release(|origin| origin != Origin::Connection(to));
                self.release(held);
                slow.push(to);
            }
            self.room(to, now);
        }
        slow
    }
}
