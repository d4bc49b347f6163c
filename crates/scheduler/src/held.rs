//! Bounded queues of frames that wait, such as STARTs that wait for the READY of a node.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use uuid::Uuid;

use super::unplaced::UnplacedStart;
use ssntp::proto::Frame;

#[derive(Debug)]
pub(super) struct HeldStart {
    pub(super) start: UnplacedStart,
    pub(super) node: Uuid,
}

/// A queue that is bounded in number, bytes and time. All items may wait for the same time, so the
/// first one is the next to expire.
#[derive(Debug)]
pub(super) struct HeldQueue<T> {
    queue: VecDeque<Held<T>>,
    bytes: usize,
    max_items: usize,
    max_bytes: usize,
    time: Duration,
}

#[derive(Debug)]
struct Held<T> {
    item: T,
    bytes: usize,
    until: Instant,
}

impl<T> HeldQueue<T> {
    pub(super) fn new(max_items: usize, max_bytes: usize, time: Duration) -> Self {
        Self {
            queue: VecDeque::new(),
            bytes: 0,
            max_items,
            max_bytes,
            time,
        }
    }

    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.queue.len() < self.max_items && self.bytes + bytes <= self.max_bytes
    }

    /// Adds an item for which there [is room](Self::has_room).
    pub(super) fn push(&mut self, item: T, bytes: usize, now: Instant) {
        self.bytes += bytes;
        let until = now + self.time;
        self.queue.push_back(Held { item, bytes, until });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn position(&self, is_it: impl Fn(&T) -> bool) -> Option<usize> {
        self.queue.iter().position(|held| is_it(&held.item))
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.queue.get_mut(at).map(|held| &mut held.item)
    }

    /// Removes the item at this position, which may be anywhere in the queue: a READY may fit
    /// only a later START.
    pub(super) fn take(&mut self, at: usize) -> Option<T> {
        let held = self.queue.remove(at)?;
        self.bytes -= held.bytes;
        Some(held.item)
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.queue.front().map(|held| held.until)
    }

    /// Removes the first item if its time is over.
    pub(super) fn expire(&mut self, now: Instant) -> Option<T> {
        (self.next_expiry()? <= now).then(|| self.take(0))?
    }
}

/// A copy of a frame that owns its payload, without the trace. The payload of a received frame is a
/// part of a longer read, and would keep all of that in memory.
pub(super) fn detached(frame: &Frame) -> Frame {
    Frame::with_payload(frame.kind(), Bytes::copy_from_slice(frame.payload_bytes()))
}

pub(super) fn with_trace_of(original: &Frame, frame: Frame) -> Frame {
    match original.trace() {
        Some(trace) => frame.traced(trace.clone()),
        None => frame,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssntp_cluster::clock::now;

    #[test]
    fn queue_is_bounded_in_number_and_bytes_and_expires_in_order() {
        let (now, time) = (now(), Duration::from_secs(60));
        let mut held = HeldQueue::new(2, 100, time);
        let mut keep = |bytes, at| {
            let has_room = held.has_room(bytes);
            if has_room {
                held.push(bytes, bytes, at);
            }
            has_room
        };
        assert!(!keep(101, now), "101 bytes");
        assert!(keep(50, now));
        assert!(keep(40, now + time / 2));
        assert!(!keep(8, now), "the limit is two frames");
        assert_eq!(held.next_expiry(), Some(now + time));
        assert_eq!(held.expire(now + time / 2), None);
        assert_eq!(held.expire(now + time), Some(50));
        assert_eq!(held.expire(now + time), None, "the second frame expires later");
        assert!(held.has_room(60) && !held.has_room(61));
        held.push(60, 60, now + time);
        assert_eq!((held.take(1), held.take(0)), (Some(60), Some(40)));
        assert_eq!((held.bytes(), held.next_expiry()), (0, None));
    }
}
