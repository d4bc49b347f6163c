//! The mark of a queue: how much of it may wait before items join the line.
//!
//! A frame is as old when it arrives as what was queued before it, so the queue of a receiver that takes
//! little is short. The queue of one that takes much is long: otherwise its senders would be stopped
//! and woken all the time. So the mark is what the receiver takes in a hundredth of a second, measured from
//! one time at which its queue was full to another that is a tenth of a second later or more: in a
//! shorter time, a receiver that has just been woken seems slow. The system may keep a quarter of the mark unsent.

use std::time::{Duration, Instant};

/// The time within which a receiver takes what its queue holds.
const WITHIN: Duration = Duration::from_millis(10);

/// The time over which the rate of a receiver is measured, at least.
const MEASURED: Duration = Duration::from_millis(100);

/// The mark of a receiver that takes little, in bytes of memory. With half of it, a thousand receivers of
/// one sender cost their server half again as much processor, and its frames were no younger.
pub(super) const LEAST: u64 = 1024 * 1024;

/// The mark of one queue, as far as the limits of the queue allow it.
#[derive(Debug)]
pub(super) struct Mark {
    least: u64,
    bytes: u64,
    /// The time at which the queue was full, and the memory that had left it by then.
    was_full: Option<(Instant, u64)>,
}

impl Mark {
    pub(super) fn new(least: u64) -> Self {
        Self {
            least,
            bytes: least,
            was_full: None,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes that the system may keep unsent for the receiver.
    pub(super) fn unsent(&self) -> u64 {
        self.bytes / 4
    }

    /// Notes that the queue is full, and that `left` bytes of memory have left it since it exists. True if
    /// the mark is higher for this reason.
    pub(super) fn full(&mut self, now: Instant, left: u64) -> bool {
        let Some((since, before)) = self.was_full else {
            self.was_full = Some((now, left));
            return false;
        };
        let took = now.saturating_duration_since(since);
        if took < MEASURED {
            return false;
        }
        let taken = u128::from(left.saturating_sub(before)) * WITHIN.as_nanos() / took.as_nanos();
        let former = self.bytes;
        self.bytes = u64::try_from(taken).unwrap_or(u64::MAX).max(self.least);
        self.was_full = Some((now, left));
        self.bytes > former
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_follows_what_the_receiver_takes_while_its_queue_is_full() {
        let mut mark = Mark::new(LEAST);
        let start = crate::host::now();
        let at = |millis| start + Duration::from_millis(millis);
        assert!(!mark.full(at(0), 1 << 30), "nothing is known of the receiver yet");
        assert!(!mark.full(at(99), 2 << 30), "too little time for a rate");
        assert_eq!(mark.bytes(), LEAST);
        // A gibibyte in two tenths of a second.
        assert!(mark.full(at(200), 2 << 30));
        assert_eq!(mark.bytes(), (1 << 30) / 20);
        assert!(!mark.full(at(300), (2 << 30) + (256 << 20)));
        assert_eq!(mark.bytes(), (256 << 20) / 10);
        // A receiver that takes nothing keeps a short queue.
        assert!(!mark.full(at(1000), (2 << 30) + (256 << 20)));
        assert_eq!(mark.bytes(), LEAST);
    }
}
