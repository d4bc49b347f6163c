//! The memory of items that have begun to arrive.

use std::time::{Duration, Instant};

use crate::budget::{Asked, Budget, Reserved};

/// What each connection may hold of an item without asking: one TLS record. It is a part of
/// the memory that the server plans for a connection, so short frames never wait.
pub(crate) const OWN: usize = 16 * 1024;

/// How much a read may bring while memory is short and nothing is reserved for it. With the
/// rest of a record before it, it makes one record complete at most.
const LITTLE: usize = OWN / 4;

/// How long an item may take while others wait for memory: so long, and a second for each
/// [`PACE`] bytes of it.
const GRACE: Duration = Duration::from_secs(1);
/// A fourth of the pace that a receiver has to keep: senders may be far away.
const PACE: u64 = 1 << 20;

/// The memory that one connection holds for an item that is not complete yet.
///
/// The announced length is reserved before more of the item is read. Who does not get it
/// waits in the order of arrival, and is not ended for that. Who has it has to go on while
/// others wait for it, and is ended otherwise.
#[derive(Debug)]
pub struct Unfinished {
    reserved: Reserved,
    /// Since when the memory is there.
    since: Option<Instant>,
}

/// What a connection may do about an item that is not complete.
#[derive(Debug, PartialEq, Eq)]
pub enum Look {
    /// Read on, so many bytes at most.
    Read(usize),
    /// Wait until the memory is there.
    Wait,
    /// End, for this reason.
    End(String),
}

impl Unfinished {
    /// For one connection.
    pub fn new(budget: &Budget) -> Self {
        Self {
            reserved: budget.reserve(),
            since: None,
        }
    }

    /// The item is complete, and its memory is counted elsewhere now.
    pub fn done(&mut self) {
        self.since = None;
        self.reserved.clear();
    }

    /// Decides how an item goes on of which `held` bytes are here, and which has `wanted`
    /// bytes in all, or 0 if that is not known. `wake` is called when the memory is there
    /// for which it has to wait.
    pub fn look(
        &mut self,
        held: usize,
        wanted: usize,
        clock: impl FnOnce() -> Instant,
        wake: impl Fn() + Send + 'static,
    ) -> Look {
        let needed = held.max(wanted);
        if needed <= OWN {
            self.done();
            let most = match self.reserved.is_short() {
                true => LITTLE,
                false => usize::MAX,
            };
            return Look::Read(most);
        }
        self.reserved.at_least((held.saturating_sub(OWN)) as u64);
        match self.reserved.ask((needed - OWN) as u64, wake) {
            Asked::Never(limit) => Look::End(format!(
                "its frame of {needed} bytes is longer than this server has memory for, {limit} bytes"
            )),
            Asked::Waits => {
                self.since = None;
                Look::Wait
            }
            Asked::Granted => self.go_on(held, needed, clock),
        }
    }

    fn go_on(&mut self, held: usize, needed: usize, clock: impl FnOnce() -> Instant) -> Look {
        match self.since {
            None => self.since = Some(clock()),
            Some(since) if self.reserved.is_wanted() => {
                let took = clock().saturating_duration_since(since);
                if took > GRACE + Duration::from_secs(needed as u64 / PACE) {
                    return Look::End(format!(
                        "others wait for memory, and after {} s only {held} of the {needed} bytes of its \
                         frame are here",
                        took.as_secs()
                    ));
                }
            }
            Some(_) => {}
        }
        Look::Read(usize::MAX)
    }

    /// Whether the memory is there for which it had to wait.
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

    fn look(unfinished: &mut Unfinished, held: usize, wanted: usize, now: Instant) -> Look {
        unfinished.look(held, wanted, || now, || ())
    }

    const ALL: Look = Look::Read(usize::MAX);

    #[test]
    fn the_announced_length_is_reserved_until_the_item_is_complete() {
        let budget = Budget::new(1 << 20);
        let mut unfinished = Unfinished::new(&budget);
        let now = start();
        for (held, wanted, used) in [
            (8, 0, 0),
            (8, OWN, 0),
            (8, 300_000, 300_000 - OWN),
            (200_000, 0, 300_000 - OWN),
        ] {
            assert_eq!(look(&mut unfinished, held, wanted, now), ALL);
            assert_eq!(budget.used(), used as u64);
        }
        unfinished.done();
        assert_eq!(budget.used(), 0);
        // Where nobody announces a length, what is here counts.
        assert_eq!(look(&mut unfinished, 50_000, 0, now), ALL);
        assert_eq!(budget.used(), 50_000 - OWN as u64);
    }

    #[test]
    fn hundreds_that_begin_long_items_take_no_more_than_their_own_memory_and_one_item() {
        let (_, budget) = Budget::for_queues_and_received(16 << 20);
        let now = start();
        let part = budget.of(b"one certificate");
        let mut all: Vec<_> = (0..500).map(|_| Unfinished::new(&part)).collect();
        let looks = all.iter_mut().map(|one| look(one, OWN, 15 << 20, now));
        let granted = looks.filter(|look| *look == ALL);
        assert_eq!(granted.count(), 1, "it is ahead of the others");
        let used = budget.figures().used;
        assert!(used <= 15 << 20, "{used}");
        // Others are not stopped by that, and read little at a time.
        let mut other = Unfinished::new(&budget.of(b"another one"));
        assert_eq!(look(&mut other, OWN, 1 << 20, now), ALL);
        assert_eq!(look(&mut other, 100, 0, now), Look::Read(LITTLE));
    }

    #[test]
    fn who_keeps_memory_that_others_wait_for_is_ended_and_not_who_waits() {
        let budget = Budget::new(1 << 20);
        let now = start();
        let mut holders: Vec<_> = (0..3u8).map(|n| Unfinished::new(&budget.of(&[n]))).collect();
        for holder in &mut holders {
            assert_eq!(look(holder, OWN, 500_000, now), ALL);
        }
        let late = now + GRACE * 2;
        assert_eq!(look(&mut holders[0], 499_999, 500_000, late), ALL, "nobody waits");
        let mut victim = Unfinished::new(&budget.of(b"victim"));
        let used = budget.used();
        assert_eq!(look(&mut victim, 3 * OWN, 400_000, late), Look::Wait);
        assert_eq!(budget.used(), used + 2 * OWN as u64, "what is here counts");
        assert!(!victim.is_granted());
        assert_eq!(look(&mut holders[1], OWN, 500_000, now + GRACE), ALL);
        let Look::End(why) = look(&mut holders[0], 499_999, 500_000, late) else {
            panic!("it may keep the memory");
        };
        assert!(why.contains("only 499999 of the 500000 bytes"), "{why}");
        holders.remove(0);
        assert!(victim.is_granted());
        assert_eq!(look(&mut victim, 3 * OWN, 400_000, late), ALL);
    }

    #[test]
    fn a_long_item_may_take_longer() {
        let budget = Budget::new(4 << 20);
        let begin = start();
        let mut all: Vec<_> = (0..3u8).map(|n| Unfinished::new(&budget.of(&[n]))).collect();
        let looks = all.iter_mut().map(|one| look(one, OWN, 3 << 20, begin));
        assert_eq!(looks.collect::<Vec<_>>(), [ALL, Look::Wait, Look::Wait]);
        let after = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(look(&mut all[0], OWN, 3 << 20, after(4)), ALL);
        assert!(matches!(look(&mut all[0], OWN, 3 << 20, after(5)), Look::End(_)));
    }

    #[test]
    fn an_item_that_can_never_fit_is_refused_and_one_that_grows_goes_on() {
        let budget = Budget::new(1 << 20);
        let now = start();
        let mut unfinished = Unfinished::new(&budget);
        let Look::End(why) = look(&mut unfinished, 100, 2 << 20, now) else {
            panic!("it is longer than the budget");
        };
        assert!(
            why.contains("its frame of 2097152 bytes") && why.contains("1048576"),
            "{why}"
        );
        budget.take(1 << 20);
        for held in (OWN * 2..1 << 20).step_by(OWN) {
            assert_eq!(
                look(&mut unfinished, held, 2 * held.min(500_000), now),
                ALL,
                "{held}"
            );
        }
        budget.give(1 << 20);
    }
}
