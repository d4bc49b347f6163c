//! Requests without an answer.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::random::Random;
use ssntp_transport::{Deadlines, after};

#[derive(Debug)]
struct Unanswered<V> {
    value: V,
    attempts: u32,
    cap: Duration,
}

/// The requests that have no answer, by their numbers, each with the time of its next attempt.
///
/// The caller passes the time, and the random part of the delays comes from a seed: the same
/// calls at the same times give the same deadlines. Numbers are never reused.
///
/// Threads: plain data for one owner.
#[derive(Debug)]
pub struct Pending<V> {
    /// The delay after the first attempt.
    delay: Duration,
    random: Random,
    next_xid: u64,
    calls: HashMap<u64, Unanswered<V>>,
    deadlines: Deadlines<u64>,
}

impl<V> Pending<V> {
    /// An empty table whose first request gets the number `first_xid`. `delay` is the first
    /// delay of each request: see [`Random::delay`].
    pub fn new(delay: Duration, first_xid: u64, random: Random) -> Self {
        Self {
            delay,
            random,
            next_xid: first_xid,
            calls: HashMap::new(),
            deadlines: Deadlines::default(),
        }
    }

    /// A number for a request whose answer does not matter.
    pub fn number(&mut self) -> u64 {
        let xid = self.next_xid;
        // At a million requests a second, 2^63 numbers last for 290,000 years.
        self.next_xid = self.next_xid.wrapping_add(1);
        xid
    }

    /// Adds a request that is sent at `now` for the first time, and returns its number. It is sent
    /// again after at most `cap` each time.
    pub fn begin(&mut self, value: V, cap: Duration, now: Instant) -> u64 {
        let xid = self.number();
        // The first delay is random as well, because many requests are sent at the same time.
        let delay = self.random.delay(self.delay, 0, cap);
        self.deadlines.set(xid, after(now, delay));
        self.calls.insert(
            xid,
            Unanswered {
                value,
                attempts: 1,
                cap,
            },
        );
        xid
    }

    /// Removes a request that is answered or obsolete, and returns its value. `None` if no request
    /// has this number.
    pub fn end(&mut self, xid: u64) -> Option<V> {
        self.deadlines.clear(&xid);
        self.calls.remove(&xid).map(|call| call.value)
    }

    /// The value of a request.
    pub fn value_mut(&mut self, xid: u64) -> Option<&mut V> {
        self.calls.get_mut(&xid).map(|call| &mut call.value)
    }

    /// Removes the requests for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(u64, &mut V) -> bool) {
        let deadlines = &mut self.deadlines;
        self.calls.retain(|xid, call| {
            let kept = keep(*xid, &mut call.value);
            if !kept {
                deadlines.clear(xid);
            }
            kept
        });
    }

    /// The next request that is due to be sent again: its number, the number of times that it has been
    /// sent, and its value. The time of its next attempt is set already. It is sent with the same number,
    /// so that an answer to any attempt counts. Call it until it returns `None`.
    pub fn due(&mut self, now: Instant) -> Option<(u64, u32, &mut V)> {
        let xid = self.deadlines.pop(now)?;
        let call = self.calls.get_mut(&xid)?;
        let attempts = call.attempts;
        let delay = self.random.delay(self.delay, attempts, call.cap);
        self.deadlines.set(xid, after(now, delay));
        // The delay reaches its cap long before the count saturates.
        call.attempts = attempts.saturating_add(1);
        Some((xid, attempts, &mut call.value))
    }

    /// The time at which [`due`](Self::due) returns the next request.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "some instant to count from")]
mod tests {
    use super::*;

    const CAP: Duration = Duration::from_secs(3600);

    fn table() -> Pending<&'static str> {
        Pending::new(Duration::from_secs(10), 1 << 63, Random::new(1))
    }

    #[test]
    fn numbers_begin_where_libopflex_begins_and_are_not_reused() {
        let mut table = table();
        let now = Instant::now();
        let first = table.begin("a", CAP, now);
        assert_eq!(first, 9_223_372_036_854_775_808);
        assert_eq!(table.end(first), Some("a"));
        assert_eq!(table.end(first), None);
        assert_eq!(table.number(), first + 1);
        assert_eq!(table.begin("b", CAP, now), first + 2);
    }

    #[test]
    fn an_unanswered_request_is_due_again_and_again() {
        let mut table = table();
        let start = Instant::now();
        let xid = table.begin("a", CAP, start);
        let mut now = start;
        for (attempts, middle) in [(1, 10.0), (2, 20.0), (3, 40.0)] {
            let deadline = table.next_deadline().unwrap();
            let waited = (deadline - now).as_secs_f64();
            assert!((middle * 0.9..=middle * 1.1).contains(&waited), "{waited}");
            assert!(table.due(deadline - Duration::from_millis(1)).is_none());
            let due = table.due(deadline).unwrap();
            assert_eq!(due, (xid, attempts, &mut "a"));
            assert!(table.due(deadline).is_none());
            now = deadline;
        }
    }

    #[test]
    fn an_answered_request_is_never_due() {
        let mut table = table();
        let now = Instant::now();
        let xid = table.begin("a", CAP, now);
        *table.value_mut(xid).unwrap() = "b";
        assert_eq!((table.calls.len(), table.end(xid)), (1, Some("b")));
        assert_eq!(table.next_deadline(), None);
        assert!(table.due(now + CAP).is_none());
        assert!(table.calls.is_empty());
    }

    #[test]
    fn retain_removes_requests_with_their_deadlines() {
        let mut table = table();
        let now = Instant::now();
        table.begin("a", CAP, now);
        let kept = table.begin("b", CAP, now);
        table.retain(|_, value| *value == "b");
        assert_eq!(
            (table.calls.len(), table.due(now + CAP).map(|(xid, ..)| xid)),
            (1, Some(kept))
        );
        assert!(table.due(now + CAP).is_none());
    }
}
