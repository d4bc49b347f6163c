//! Bounded queues of frames that are parked: STARTs that wait for the READY of a node, commands
//! that wait for a leader.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ssntp::proto::Frame;

/// A queue that is bounded in number, bytes and time. All items may wait for the same time, so the
/// first one is the next to expire.
#[derive(Debug)]
pub(crate) struct ParkingQueue<T> {
    queue: VecDeque<Parked<T>>,
    bytes: usize,
    max_items: usize,
    max_bytes: usize,
    time: Duration,
}

#[derive(Debug)]
struct Parked<T> {
    item: T,
    bytes: usize,
    until: Instant,
}

impl<T> ParkingQueue<T> {
    pub(crate) fn new(max_items: usize, max_bytes: usize, time: Duration) -> Self {
        Self {
            queue: VecDeque::new(),
            bytes: 0,
            max_items,
            max_bytes,
            time,
        }
    }

    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.queue.len() < self.max_items && self.bytes + bytes <= self.max_bytes
    }

    /// Adds an item for which there [is room](Self::has_room).
    pub(crate) fn push(&mut self, item: T, bytes: usize, now: Instant) {
        self.bytes += bytes;
        let until = now + self.time;
        self.queue.push_back(Parked { item, bytes, until });
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Removes the first item from this position on for which `decide` returns a value, and returns both. The
    /// position moves behind the other items.
    pub(crate) fn take_next<R>(
        &mut self,
        at: &mut usize,
        mut decide: impl FnMut(&mut T) -> Option<R>,
    ) -> Option<(T, R)> {
        while let Some(parked) = self.queue.get_mut(*at) {
            if let Some(decided) = decide(&mut parked.item) {
                return Some((self.take(*at)?, decided));
            }
            *at += 1;
        }
        None
    }

    /// Removes the item at this position, which may be anywhere in the queue: a READY may fit
    /// only a later START.
    pub(crate) fn take(&mut self, at: usize) -> Option<T> {
        let parked = self.queue.remove(at)?;
        self.bytes -= parked.bytes;
        Some(parked.item)
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.queue.front().map(|parked| parked.until)
    }

    /// Removes the first item if its time is over.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<T> {
        (self.next_deadline()? <= now).then(|| self.take(0))?
    }
}

/// A copy of a frame that owns its payload, without the trace. The payload of a received frame is a
/// part of a longer read, and would keep all of that in memory.
pub(crate) fn detached(frame: &Frame) -> Frame {
    Frame::with_payload(frame.kind(), Bytes::copy_from_slice(frame.payload_bytes()))
}

pub(crate) fn with_trace_of(original: &Frame, frame: Frame) -> Frame {
    match original.trace() {
        Some(trace) => frame.traced(trace.clone()),
        None => frame,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssntp_transport::now;

    #[test]
    fn queue_is_bounded_in_number_and_bytes_and_expires_in_order() {
        let (now, time) = (now(), Duration::from_secs(60));
        let mut parked = ParkingQueue::new(2, 100, time);
        let mut keep = |bytes, at| {
            let has_room = parked.has_room(bytes);
            if has_room {
                parked.push(bytes, bytes, at);
            }
            has_room
        };
        assert!(!keep(101, now), "101 bytes");
        assert!(keep(50, now));
        assert!(keep(40, now + time / 2));
        assert!(!keep(8, now), "the limit is two frames");
        assert_eq!(parked.next_deadline(), Some(now + time));
        assert_eq!(parked.expire(now + time / 2), None);
        assert_eq!(parked.expire(now + time), Some(50));
        assert_eq!(parked.expire(now + time), None, "the second frame expires later");
        assert!(parked.has_room(60) && !parked.has_room(61));
        parked.push(60, 60, now + time);
        assert_eq!((parked.take(1), parked.take(0)), (Some(60), Some(40)));
        assert_eq!((parked.bytes(), parked.next_deadline()), (0, None));
    }
}
