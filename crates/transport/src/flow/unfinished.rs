//! The memory of items that have arrived in part.

use std::time::{Duration, Instant};

use crate::budget::{Asked, Budget, Reserved};

/// The memory of an item that each connection may hold without a reservation: one TLS record. The
/// memory that the server plans for a connection includes it, so short frames never wait.
pub(crate) const UNRESERVED: usize = 16 * 1024;

/// The maximum number of bytes of a read while memory is short and nothing is reserved for it. Together with
/// the rest of a record before it, it completes one record at most. Peers that keep their reservations without
/// need cause more system calls for others by this, and no more: they are ended only while another item waits,
/// because an honest peer may be slow.
const SHORT_READ: usize = UNRESERVED / 4;

/// While others wait for memory, an item may take this time, and a second for each [`PACE`] bytes.
const TIME_LIMIT: Duration = Duration::from_secs(1);
/// A fourth of the whole pace of receivers, because senders may be far away.
const PACE: u64 = 1 << 20;

/// The memory that one connection reserves for an item that is not complete.
///
/// The announced length is reserved before more of the item is read. A connection that waits for
/// memory is served in the order of arrival, and never ended for waiting. A connection that holds
/// memory while others wait is ended if its item takes too long.
#[derive(Debug)]
pub struct Unfinished {
    reserved: Reserved,
    /// The time at which the memory was granted.
    since: Option<Instant>,
}

/// The next step of a connection with an item that is not complete.
#[derive(Debug, PartialEq, Eq)]
pub enum NextRead {
    /// Read at most this number of bytes.
    Read(usize),
    /// Wait until the memory is granted.
    Wait,
    /// End the connection, for this reason.
    End(String),
}

impl Unfinished {
    /// For one connection, without a reservation.
    pub fn new(budget: &Budget) -> Self {
        Self {
            reserved: budget.reserve(),
            since: None,
        }
    }

    /// Ends the reservation: the item is complete, and its memory is counted elsewhere.
    pub fn done(&mut self) {
        self.since = None;
        self.reserved.clear();
    }

    /// Decides the next step for an item of which `held` bytes have arrived. `wanted` is its whole
    /// length, or 0 if that is unknown. If the answer is `Wait`, `wake` is called once the memory
    /// is granted.
    pub fn next_read(
        &mut self,
        held: usize,
        wanted: usize,
        clock: impl FnOnce() -> Instant,
        wake: impl Fn() + Send + 'static,
    ) -> NextRead {
        let needed = held.max(wanted);
        if needed <= UNRESERVED {
            self.done();
            let most = if self.reserved.is_short() {
                SHORT_READ
            } else {
                usize::MAX
            };
            return NextRead::Read(most);
        }
        self.reserved.at_least((held.saturating_sub(UNRESERVED)) as u64);
        match self.reserved.ask((needed - UNRESERVED) as u64, wake) {
            Asked::Never(limit) => NextRead::End(format!(
                "its frame of {needed} bytes exceeds the memory of this server, {limit} bytes"
            )),
            Asked::Waits => {
                self.since = None;
                NextRead::Wait
            }
            Asked::Granted => self.check_progress(held, needed, clock),
        }
    }

    fn check_progress(&mut self, held: usize, needed: usize, clock: impl FnOnce() -> Instant) -> NextRead {
        match self.since {
            None => self.since = Some(clock()),
            Some(since) if self.reserved.is_wanted() => {
                let took = clock().saturating_duration_since(since);
                if took > TIME_LIMIT + Duration::from_secs(needed as u64 / PACE) {
                    return NextRead::End(format!(
                        "others wait for memory, and after {} s only {held} of the {needed} bytes of its \
                         frame have arrived",
                        took.as_secs()
                    ));
                }
            }
            Some(_) => {}
        }
        NextRead::Read(usize::MAX)
    }

    /// True if no reservation is waiting.
    pub fn is_granted(&self) -> bool {
        self.reserved.is_granted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any time will do")]
    fn start() -> Instant {
        Instant::now()
    }

    fn next_read(unfinished: &mut Unfinished, held: usize, wanted: usize, now: Instant) -> NextRead {
        unfinished.next_read(held, wanted, || now, || ())
    }

    const ALL: NextRead = NextRead::Read(usize::MAX);

    #[test]
    fn the_announced_length_is_reserved_until_the_item_is_complete() {
        let budget = Budget::new(1 << 20);
        let mut unfinished = Unfinished::new(&budget);
        let now = start();
        for (held, wanted, used) in [
            (8, 0, 0),
            (8, UNRESERVED, 0),
            (8, 300_000, 300_000 - UNRESERVED),
            (200_000, 0, 300_000 - UNRESERVED),
        ] {
            assert_eq!(next_read(&mut unfinished, held, wanted, now), ALL);
            assert_eq!(budget.used(), used as u64);
        }
        unfinished.done();
        assert_eq!(budget.used(), 0);
        // If no length is announced, the bytes that have arrived count.
        assert_eq!(next_read(&mut unfinished, 50_000, 0, now), ALL);
        assert_eq!(budget.used(), 50_000 - UNRESERVED as u64);
        assert_eq!(next_read(&mut unfinished, 100, 0, now), ALL);
        assert_eq!(budget.used(), 0, "the next item is short");
    }

    #[test]
    fn hundreds_of_long_items_take_the_memory_of_one() {
        let (_, budget) = Budget::for_queues_and_received(16 << 20);
        let now = start();
        let part = budget.of(b"one certificate");
        let mut all: Vec<_> = (0..500).map(|_| Unfinished::new(&part)).collect();
        let looks = all
            .iter_mut()
            .map(|one| next_read(one, UNRESERVED, 15 << 20, now));
        let granted = looks.filter(|look| *look == ALL);
        assert_eq!(granted.count(), 1, "this item is ahead of the others");
        let used = budget.figures().used;
        assert!(used <= 15 << 20, "{used}");
        // Other connections are not stopped by that, and read a little at a time.
        let mut other = Unfinished::new(&budget.of(b"another one"));
        assert_eq!(next_read(&mut other, UNRESERVED, 1 << 20, now), ALL);
        assert_eq!(next_read(&mut other, 100, 0, now), NextRead::Read(SHORT_READ));
    }

    #[test]
    fn a_holder_of_wanted_memory_without_progress_is_ended() {
        let budget = Budget::new(1 << 20);
        let now = start();
        let mut holders: Vec<_> = (0..3u8).map(|n| Unfinished::new(&budget.of(&[n]))).collect();
        for holder in &mut holders {
            assert_eq!(next_read(holder, UNRESERVED, 500_000, now), ALL);
        }
        let late = now + TIME_LIMIT * 2;
        assert_eq!(
            next_read(&mut holders[0], 499_999, 500_000, late),
            ALL,
            "no other item waits"
        );
        let mut victim = Unfinished::new(&budget.of(b"victim"));
        let used = budget.used();
        assert_eq!(
            next_read(&mut victim, 3 * UNRESERVED, 400_000, late),
            NextRead::Wait
        );
        assert_eq!(
            budget.used(),
            used + 2 * UNRESERVED as u64,
            "the received bytes count"
        );
        assert!(!victim.is_granted());
        assert_eq!(
            next_read(&mut holders[1], UNRESERVED, 500_000, now + TIME_LIMIT),
            ALL
        );
        let NextRead::End(why) = next_read(&mut holders[0], 499_999, 500_000, late) else {
            panic!("the item may keep the memory");
        };
        assert!(why.contains("only 499999 of the 500000 bytes"), "{why}");
        holders.remove(0);
        assert!(victim.is_granted());
        assert_eq!(next_read(&mut victim, 3 * UNRESERVED, 400_000, late), ALL);
    }

    #[test]
    fn a_long_item_may_take_longer() {
        let budget = Budget::new(4 << 20);
        let begin = start();
        let mut all: Vec<_> = (0..3u8).map(|n| Unfinished::new(&budget.of(&[n]))).collect();
        let looks = all
            .iter_mut()
            .map(|one| next_read(one, UNRESERVED, 3 << 20, begin));
        assert_eq!(looks.collect::<Vec<_>>(), [ALL, NextRead::Wait, NextRead::Wait]);
        let after = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(next_read(&mut all[0], UNRESERVED, 3 << 20, after(4)), ALL);
        assert!(matches!(
            next_read(&mut all[0], UNRESERVED, 3 << 20, after(5)),
            NextRead::End(_)
        ));
    }

    #[test]
    fn an_item_that_can_never_fit_is_refused_and_one_that_grows_goes_on() {
        let budget = Budget::new(1 << 20);
        let now = start();
        let mut unfinished = Unfinished::new(&budget);
        let NextRead::End(why) = next_read(&mut unfinished, 100, 2 << 20, now) else {
            panic!("the item is longer than the budget");
        };
        assert!(
            why.contains("its frame of 2097152 bytes") && why.contains("1048576"),
            "{why}"
        );
        budget.take(1 << 20);
        for held in (UNRESERVED * 2..1 << 20).step_by(UNRESERVED) {
            assert_eq!(
                next_read(&mut unfinished, held, 2 * held.min(500_000), now),
                ALL,
                "{held}"
            );
        }
        budget.give(1 << 20);
    }
}
