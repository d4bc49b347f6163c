//! STARTs that wait for a node's READY: a bounded queue whose entries expire.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::waiting::Waiting;

/// A START in the queue.
#[derive(Debug)]
pub(super) struct HeldStart {
    pub(super) start: Waiting,
    /// The node whose READY is awaited.
    pub(super) node: Uuid,
    until: Instant,
}

/// All STARTs wait for the same time, so the oldest one is the next to expire.
#[derive(Debug)]
pub(super) struct HeldStarts {
    queue: VecDeque<HeldStart>,
    bytes: usize,
    max_starts: usize,
    max_bytes: usize,
    time: Duration,
}

impl HeldStarts {
    pub(super) fn new(max_starts: usize, max_bytes: usize, time: Duration) -> Self {
        Self {
            queue: VecDeque::new(),
            bytes: 0,
            max_starts,
            max_bytes,
            time,
        }
    }

    /// Keeps a START for a READY of `node`; gives it back if there is no room.
    pub(super) fn keep(&mut self, mut start: Waiting, node: Uuid, now: Instant) -> Option<Waiting> {
        let bytes = start.frame.encoded_len();
        if self.queue.len() >= self.max_starts || self.bytes + bytes > self.max_bytes {
            return Some(start);
        }
        // Copied only now, when it is sure that there is room.
        start.detach();
        self.bytes += bytes;
        self.queue.push_back(HeldStart {
            start,
            node,
            until: now + self.time,
        });
        None
    }

    /// The number of held STARTs, their bytes, and the most of them.
    pub(super) fn counted(&self) -> (usize, usize, usize) {
        (self.queue.len(), self.bytes, self.max_starts)
    }

    pub(super) fn get(&self, at: usize) -> Option<&HeldStart> {
        self.queue.get(at)
    }

    /// Lets the START at `at` wait for another node.
    pub(super) fn wait_for(&mut self, at: usize, node: Uuid) {
        if let Some(held) = self.queue.get_mut(at) {
            held.node = node;
        }
    }

    pub(super) fn take(&mut self, at: usize) -> Option<Waiting> {
        // From anywhere in the queue: a READY may fit a later START only.
        let held = self.queue.remove(at)?;
        self.bytes -= held.start.frame.encoded_len();
        Some(held.start)
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.queue.front().map(|held| held.until)
    }

    /// Takes the oldest START if its time is over.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Waiting> {
        (self.queue.front()?.until <= now).then(|| self.take(0))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::placement::Needs;
    use ssntp::proto::{Command, Frame};

    fn start(bytes: usize) -> Waiting {
        #[expect(clippy::disallowed_methods, reason = "any time will do")]
        let received = Instant::now();
        Waiting {
            received,
            frame: Frame::with_payload(Command::START, vec![b' '; bytes]),
            needs: Needs::default(),
            instance: Uuid::nil(),
            restart: false,
            from: Uuid::nil(),
            stays: None,
            nodes: 0,
            restarts: false,
        }
    }

    #[test]
    fn the_queue_is_bounded_in_number_and_bytes_and_expires_in_order() {
        #[expect(clippy::disallowed_methods, reason = "any time will do")]
        let now = Instant::now();
        let time = Duration::from_secs(60);
        let mut held = HeldStarts::new(2, 100, time);
        assert!(held.keep(start(93), Uuid::nil(), now).is_some(), "101 bytes");
        assert!(held.keep(start(42), Uuid::nil(), now).is_none());
        assert!(held.keep(start(32), Uuid::nil(), now + time / 2).is_none());
        assert!(
            held.keep(start(0), Uuid::nil(), now).is_some(),
            "two are the limit"
        );
        assert_eq!(held.next_expiry(), Some(now + time));
        assert!(held.expire(now + time / 2).is_none());
        assert!(held.expire(now + time).is_some());
        assert!(held.expire(now + time).is_none(), "the second came later");
        assert!(held.keep(start(52), Uuid::nil(), now + time).is_none());
        assert!(held.take(1).is_some() && held.take(0).is_some());
        assert_eq!((held.bytes, held.next_expiry()), (0, None));
    }
}
