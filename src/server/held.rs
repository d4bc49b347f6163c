//! Held frames: those that a routing function has queued for later. The queue is bounded, and every frame
//! in it expires.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::proto::Frame;
use ssntp_transport::after;

/// Identifies one held frame. An id is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HeldId(u64);

impl fmt::Display for HeldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h{}", self.0)
    }
}

/// A frame that a routing function has queued for later.
#[derive(Clone, Debug)]
pub struct HeldFrame {
    /// The id for [`Context::release`](super::Context::release).
    pub id: HeldId,
    /// The sender's UUID.
    pub from: Uuid,
    /// The frame.
    pub frame: Frame,
}

/// The held frames of a server. All are held for the same time, so the oldest expires next.
#[derive(Debug)]
pub(super) struct Held {
    queue: VecDeque<(Instant, HeldFrame)>,
    bytes: usize,
    /// The frames and bytes of each sender. To count them in the queue would take a time for each frame that
    /// grows with the limit.
    shares: HashMap<Uuid, (usize, usize)>,
    next: u64,
    max_frames: usize,
    max_bytes: usize,
    time: Duration,
}

impl Held {
    pub(super) fn new(max_frames: usize, max_bytes: usize, time: Duration) -> Self {
        Self {
            queue: VecDeque::new(),
            bytes: 0,
            shares: HashMap::new(),
            next: 0,
            max_frames,
            max_bytes,
            time,
        }
    }

    /// Holds a frame. Returns it as an error if there is no room, or if its sender holds more than is
    /// free: so one sender gets half of the room.
    pub(super) fn keep(&mut self, from: Uuid, frame: Frame, now: Instant) -> Result<HeldId, HeldFrame> {
        // A frame that finds no room gets an id as well, for `Handler::expired`.
        self.next += 1;
        let id = HeldId(self.next);
        let held = HeldFrame { id, from, frame };
        let bytes = held.frame.encoded_len();
        let (frames, taken) = self.shares.get(&from).copied().unwrap_or_default();
        let free = self.max_frames - self.queue.len();
        let left = self.max_bytes.checked_sub(self.bytes + bytes);
        if free < frames.max(1) || left.is_none_or(|left| left + bytes < taken) {
            return Err(held);
        }
        self.bytes += bytes;
        self.shares.insert(from, (frames + 1, taken + bytes));
        self.queue.push_back((after(now, self.time), held));
        Ok(id)
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &HeldFrame> {
        self.queue.iter().map(|(_, held)| held)
    }

    pub(super) fn take(&mut self, id: HeldId) -> Option<HeldFrame> {
        // The queue is sorted by id, because ids only grow.
        let at = self.queue.binary_search_by_key(&id, |(_, held)| held.id).ok()?;
        let (_, held) = self.queue.remove(at)?;
        let bytes = held.frame.encoded_len();
        self.bytes -= bytes;
        if let Some((frames, taken)) = self.shares.get_mut(&held.from) {
            (*frames, *taken) = (*frames - 1, *taken - bytes);
            if *frames == 0 {
                self.shares.remove(&held.from);
            }
        }
        Some(held)
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.queue.front().map(|(expiry, _)| *expiry)
    }

    /// Removes and returns the oldest frame, if it has expired.
    pub(super) fn expire(&mut self, now: Instant) -> Option<HeldFrame> {
        let (_, held) = self.queue.front().filter(|(expiry, _)| *expiry <= now)?;
        self.take(held.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Command;

    #[test]
    fn one_sender_leaves_room_for_others() {
        #[expect(clippy::disallowed_methods, reason = "any time will do")]
        let now = Instant::now();
        // The number of frames that each sender can hold, one sender after the other.
        let kept = |max_frames, payload| {
            let mut held = Held::new(max_frames, 8000, Duration::MAX);
            let frame = || Frame::with_payload(Command::START, vec![0; payload]);
            let mut keep = |from| held.keep(Uuid::from_u128(from), frame(), now).is_ok();
            [1, 2, 3].map(|from| (0..8).take_while(|_| keep(from)).count())
        };
        assert_eq!(kept(8, 0), [5, 2, 1]);
        assert_eq!(kept(100, 992), [5, 2, 1], "1000 bytes each");
    }

    #[test]
    fn held_frames_are_bounded_released_and_expire() {
        #[expect(clippy::disallowed_methods, reason = "any time will do")]
        let now = Instant::now();
        let time = Duration::from_secs(10);
        let mut held = Held::new(2, 100, time);
        let frame = || Frame::with_payload(Command::START, vec![0; 32]);
        let first = held.keep(Uuid::nil(), frame(), now).unwrap();
        let second = held.keep(Uuid::nil(), frame(), now + time / 2).unwrap();
        assert!(
            held.keep(Uuid::nil(), frame(), now).is_err(),
            "two frames are the limit"
        );
        assert_eq!(held.take(first).map(|h| h.id), Some(first));
        assert!(held.take(first).is_none());
        let long = Frame::with_payload(Command::START, vec![0; 60]);
        assert!(
            held.keep(Uuid::nil(), long, now).is_err(),
            "100 bytes are the limit"
        );
        assert_eq!(held.next_expiry(), Some(now + time / 2 + time));
        assert!(held.expire(now + time).is_none());
        assert_eq!(held.expire(now + 2 * time).map(|h| h.id), Some(second));
        assert!(held.next_expiry().is_none());
        assert!(held.shares.is_empty());
    }
}
