//! Memory that many parts of a server take together: the share of each, and the order of waiting if it
//! is short.
//!
//! A [`Budget`] is a bound for all of them. [`Budget::of`] is the part of one owner, such as a
//! certificate: the memory of that owner counts in both. [`Reserved`] is reserved memory, which is given
//! back when it is dropped.
//!
//! A reservation of more than is free waits in one line, in the order of arrival:
//!
//! ```text
//!  Reserved::ask ─▶ line ─┬─ it fits, in the whole and in its owner's part ──▶ counted
//!                         └─ no reservation is ahead: the next one ───────────▶ beside the bound
//! ```
//!
//! So one reservation at a time may exceed the bound, and the line moves on however long others keep
//! their memory. An owner that exceeds its part waits behind the other owners.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::host::locked;

/// The share that every queue may take, however much the others have.
const LEAST_SHARE: u64 = 64 * 1024;

/// A bound for many queues together, with a fair share for each: no queue grows beyond the free part.
/// So one greedy queue gets half of the budget, and `n` greedy ones get an `n + 1`th each; the last part
/// stays free for empty queues.
///
/// [`share`](Self::share) and [`take`](Self::take) are not atomic together: two queues at the same time
/// may exceed the share by an item each. A [`reserve`](Self::reserve)d amount is exact. A clone counts in
/// the same budget.
#[derive(Clone)]
pub struct Budget(Arc<Counted>);

#[derive(Default)]
struct Counted {
    limit: u64,
    /// The maximum that one reservation may have.
    longest: u64,
    used: AtomicU64,
    /// The bytes in `used`, of the whole, that reservations have.
    reserved: AtomicU64,
    /// The bytes in `used`, of the whole, that are counted by [`Charge`]s.
    charged: AtomicU64,
    /// The budget of which this is a part.
    whole: Option<Budget>,
    /// The number of waiting reservations.
    waiting: AtomicUsize,
    /// The number of reservations that were refused because they could never fit.
    refused: AtomicU64,
    state: Mutex<BudgetState>,
}

#[derive(Default)]
struct BudgetState {
    /// The parts of owners. Those without a handle are removed once there are more than `most_parts`.
    parts: HashMap<Box<[u8]>, Weak<Counted>>,
    most_parts: usize,
    line: VecDeque<Waiter>,
    /// The memory beside the bound of the one reservation that is ahead.
    ahead: u64,
}

struct Waiter {
    part: Budget,
    claim: Arc<Claim>,
    wake: Box<dyn Fn() + Send>,
}

/// The memory of a reservation.
#[derive(Debug, Default)]
struct Claim {
    counted: AtomicU64,
    /// The memory that it has beside the bound.
    ahead: AtomicU64,
    /// The further memory for which it waits.
    asks: AtomicU64,
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Budget").field(&self.figures()).finish()
    }
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self::with(limit, limit, None)
    }

    fn with(limit: u64, longest: u64, whole: Option<Self>) -> Self {
        Self(Arc::new(Counted {
            limit,
            longest,
            whole,
            ..Counted::default()
        }))
    }

    /// The two budgets of a server with `limit` bytes: three quarters for frames that wait to be sent, and
    /// a quarter for received frames that are not handled yet. So a thousand senders that are far ahead
    /// leave room for their receiver's queue. One received frame may take as much as both budgets.
    pub fn for_queues_and_received(limit: u64) -> (Self, Self) {
        let received = Self::with(limit / 4, limit.max(LEAST_SHARE), None);
        (Self::new(limit - limit / 4), received)
    }

    /// A budget without a bound.
    pub fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// The part of one owner: at most half of the bound. Its memory counts in the whole as well. All
    /// handles for the same owner share one part.
    #[must_use]
    pub fn of(&self, owner: &[u8]) -> Self {
        let mut state = self.lock();
        if let Some(part) = state.parts.get(owner).and_then(Weak::upgrade) {
            return Self(part);
        }
        // Unused parts are removed when the table has doubled, so the average cost is constant.
        if state.parts.len() >= state.most_parts {
            state.parts.retain(|_, part| part.strong_count() > 0);
            state.most_parts = 2 * state.parts.len() + 16;
        }
        // Half: one owner alone, which is the common case, still has most of it, and two greedy owners
        // do not starve a third.
        let part = Self::with(self.0.limit / 2, self.0.longest, Some(self.clone()));
        state.parts.insert(owner.into(), Arc::downgrade(&part.0));
        part
    }

    /// An empty reservation.
    pub fn reserve(&self) -> Reserved {
        Reserved {
            part: self.clone(),
            claim: Arc::default(),
        }
    }

    /// The longest reservation, in bytes.
    pub fn longest(&self) -> u64 {
        self.0.longest
    }

    /// The bytes in use.
    pub fn used(&self) -> u64 {
        // SeqCst, here and below: a thread that gives reads `waiting` afterwards, and a thread that waits
        // reads `used` afterwards. One of the two has to see the other's change.
        self.0.used.load(Ordering::SeqCst)
    }

    /// The bytes in use of the whole, without those of charges, which wait for receivers and not for their
    /// senders.
    fn uncharged(&self) -> u64 {
        let whole = self.whole();
        whole
            .used()
            .saturating_sub(whole.0.charged.load(Ordering::Relaxed))
    }

    /// As [`uncharged`](Self::uncharged), also without those of reservations.
    pub(crate) fn unreserved(&self) -> u64 {
        let reserved = self.whole().0.reserved.load(Ordering::Relaxed);
        self.uncharged().saturating_sub(reserved)
    }

    /// Counts bytes as used until the charge is dropped.
    pub(crate) fn charge(&self, bytes: u64) -> Charge {
        self.take(bytes);
        self.whole().0.charged.fetch_add(bytes, Ordering::Relaxed);
        Charge {
            budget: self.clone(),
            bytes,
        }
    }

    /// The bytes in use, and the bound.
    pub fn figures(&self) -> BudgetFigures {
        BudgetFigures {
            used: self.used() + self.lock().ahead,
            limit: self.0.limit,
            waiting: self.0.waiting.load(Ordering::Relaxed),
            refused: self.0.refused.load(Ordering::Relaxed),
        }
    }

    /// The bytes to which one queue may grow now.
    pub fn share(&self) -> u64 {
        self.free().min(self.whole().free()).max(LEAST_SHARE)
    }

    /// Counts bytes as used.
    pub fn take(&self, bytes: u64) {
        self.0.used.fetch_add(bytes, Ordering::SeqCst);
        // The part and its whole are two counters, so a reader may see one of them changed only.
        if let Some(whole) = &self.0.whole {
            whole.take(bytes);
        }
    }

    /// Counts bytes as free again.
    pub fn give(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let given = |used: u64| {
            // In a release it stops at 0: a number that wraps would leave all queues the least share for
            // good.
            debug_assert!(used >= bytes, "more is given back than was taken");
            Some(used.saturating_sub(bytes))
        };
        let used = &self.0.used;
        let _ = used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, given);
        match &self.0.whole {
            Some(whole) => whole.give(bytes),
            None if self.0.waiting.load(Ordering::SeqCst) > 0 => self.serve(self.lock()),
            None => {}
        }
    }

    fn free(&self) -> u64 {
        self.0.limit.saturating_sub(self.used())
    }

    fn whole(&self) -> &Self {
        self.0.whole.as_ref().unwrap_or(self)
    }

    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        locked(&self.0.state)
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.used().saturating_add(bytes) <= self.0.limit
    }

    /// Grants reservations that fit, in order. Owners that exceed their part are passed over. No other is,
    /// so that a long reservation does not wait forever for short ones.
    fn serve(&self, mut state: MutexGuard<'_, BudgetState>) {
        let (mut at, mut served) = (0, Vec::new());
        while let Some(waiter) = state.line.get(at) {
            let more = waiter.asks();
            if waiter.exceeds_its_part() {
                at += 1;
            } else if self.has_room(more) {
                waiter.claim.count(&waiter.part, more);
                waiter.claim.asks.store(0, Ordering::Release);
                served.extend(state.line.remove(at));
            } else {
                break;
            }
        }
        // Otherwise owners that each hold a part of a frame could wait for each other forever. The first
        // reservation gets all of its memory, beside the bound, and will end. If charges take more than
        // half of the bound, they will end as well. Otherwise one reservation after the other would go
        // beside the bound and become a charge.
        if state.ahead == 0 && self.0.charged.load(Ordering::SeqCst) <= self.0.limit / 2 {
            // An owner that has used up its part comes after those that have not.
            let next = state.line.iter().position(|waiter| !waiter.exceeds_its_part());
            let next = next.unwrap_or(0);
            if let Some(waiter) = state.line.remove(next) {
                state.ahead = waiter.asks();
                waiter.claim.ahead.store(state.ahead, Ordering::Relaxed);
                waiter.claim.asks.store(0, Ordering::Release);
                served.push(waiter);
            }
        }
        self.0.waiting.fetch_sub(served.len(), Ordering::SeqCst);
        // After the lock, because a waker may give memory back, which takes the lock.
        drop(state);
        for waiter in served {
            (waiter.wake)();
        }
    }
}

impl Waiter {
    fn asks(&self) -> u64 {
        self.claim.asks.load(Ordering::Relaxed)
    }

    /// True if its owner would exceed its part. A reservation in the whole has no owner.
    fn exceeds_its_part(&self) -> bool {
        self.part.0.whole.is_some() && !self.part.has_room(self.asks())
    }
}

impl Claim {
    /// Counts more bytes, which belong to a part.
    fn count(&self, part: &Budget, more: u64) {
        part.take(more);
        part.whole().0.reserved.fetch_add(more, Ordering::Relaxed);
        self.counted.fetch_add(more, Ordering::Relaxed);
    }
}

/// Bytes that are counted in a budget. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Budget,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        // Before the bytes are given back, which lets reservations go ahead.
        let charged = &self.budget.whole().0.charged;
        charged.fetch_sub(self.bytes, Ordering::SeqCst);
        self.budget.give(self.bytes);
    }
}

/// Reserved memory. Dropping it gives the memory back.
#[derive(Debug)]
pub struct Reserved {
    part: Budget,
    claim: Arc<Claim>,
}

/// The answer to [`Reserved::ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The memory is granted.
    Granted,
    /// The memory is not granted yet.
    Waits,
    /// The memory can never be granted: this is the length of the longest reservation.
    Never(u64),
}

impl Reserved {
    /// Counts at least `bytes` bytes at once, also beyond the bound, for memory that is in use already.
    pub fn at_least(&self, bytes: u64) {
        let more = bytes.saturating_sub(self.has());
        if more > 0 {
            self.claim.count(&self.part, more);
        }
    }

    /// Reserves `bytes` bytes in all. Does not block: if the memory is not free, `wake` is called once it is
    /// granted, and this has to be called again with the same number.
    pub fn ask(&self, bytes: u64, wake: impl Fn() + Send + 'static) -> Asked {
        if !self.is_granted() {
            return Asked::Waits;
        }
        let more = bytes.saturating_sub(self.has());
        if more == 0 {
            return Asked::Granted;
        }
        let whole = self.part.whole();
        if bytes > whole.0.longest {
            whole.0.refused.fetch_add(1, Ordering::Relaxed);
            return Asked::Never(whole.0.longest);
        }
        let mut state = whole.lock();
        if self.claim.ahead.load(Ordering::Relaxed) > 0 {
            // No other reservation can be ahead, so waiting for more would have no end.
            self.claim.ahead.fetch_add(more, Ordering::Relaxed);
            state.ahead += more;
            return Asked::Granted;
        }
        self.claim.asks.store(more, Ordering::Relaxed);
        state.line.push_back(Waiter {
            part: self.part.clone(),
            claim: Arc::clone(&self.claim),
            wake: Box::new(wake),
        });
        whole.0.waiting.fetch_add(1, Ordering::SeqCst);
        whole.serve(state);
        if self.is_granted() {
            Asked::Granted
        } else {
            Asked::Waits
        }
    }

    /// True if this reservation has all the memory for which it asked.
    pub fn is_granted(&self) -> bool {
        self.claim.asks.load(Ordering::Acquire) == 0
    }

    /// True if three quarters of the budget are used, or a reservation waits.
    pub fn is_short(&self) -> bool {
        let whole = self.part.whole();
        self.is_wanted() || whole.uncharged() >= whole.0.limit / 4 * 3
    }

    /// True if a reservation waits for memory.
    pub fn is_wanted(&self) -> bool {
        self.part.whole().0.waiting.load(Ordering::Relaxed) > 0
    }

    /// Gives all memory back, and stops waiting.
    pub fn clear(&self) {
        let Claim { counted, ahead, asks } = &*self.claim;
        // In this order: another thread grants a reservation by a store to `ahead` and then to `asks`. If
        // `ahead` were read first, a grant between the two reads would stay unseen, and the place ahead of
        // the line would be taken for ever.
        if asks.load(Ordering::Acquire) > 0 || ahead.load(Ordering::Relaxed) > 0 {
            let whole = self.part.whole();
            let mut state = whole.lock();
            let is_own = |waiter: &Waiter| Arc::ptr_eq(&waiter.claim, &self.claim);
            let place = state.line.iter().position(is_own);
            // Dropped after the lock is released, as in `serve`.
            let own = place.and_then(|at| state.line.remove(at));
            whole
                .0
                .waiting
                .fetch_sub(usize::from(own.is_some()), Ordering::SeqCst);
            asks.store(0, Ordering::Relaxed);
            if ahead.swap(0, Ordering::Relaxed) > 0 {
                state.ahead = 0;
            }
            whole.serve(state);
        }
        let counted = counted.swap(0, Ordering::Relaxed);
        if counted > 0 {
            let reserved = &self.part.whole().0.reserved;
            reserved.fetch_sub(counted, Ordering::Relaxed);
            self.part.give(counted);
        }
    }

    fn has(&self) -> u64 {
        self.claim.counted.load(Ordering::Relaxed) + self.claim.ahead.load(Ordering::Relaxed)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The figures of a [`Budget`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetFigures {
    /// The bytes in use.
    pub used: u64,
    /// The bound.
    pub limit: u64,
    /// The number of frames that wait for memory.
    pub waiting: usize,
    /// The number of frames that were refused because they could never fit.
    pub refused: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_shrinks_with_the_memory_of_others_and_each_owner_keeps_some() {
        let budget = Budget::new(1 << 30);
        assert_eq!(budget.share(), 1 << 30);
        budget.take(1 << 29);
        assert_eq!(budget.share(), 1 << 29);
        budget.clone().take(1 << 30);
        assert_eq!(budget.share(), LEAST_SHARE);
        let part = budget.of(b"an owner without memory");
        assert_eq!(part.share(), LEAST_SHARE, "the whole is used up");
        budget.give(3 << 29);
        assert_eq!((budget.used(), budget.share()), (0, 1 << 30));
        assert_eq!(Budget::unlimited().share(), u64::MAX);
    }

    #[test]
    #[cfg(not(debug_assertions))]
    fn giving_back_twice_leaves_the_budget_free() {
        let budget = Budget::new(1 << 20);
        budget.take(5);
        budget.give(7);
        assert_eq!((budget.used(), budget.share()), (0, 1 << 20));
    }

    /// A reservation of an owner, and the number of its wake-ups.
    fn asked(budget: &Budget, owner: &str, bytes: u64) -> (Reserved, Asked, Arc<AtomicUsize>) {
        let reserved = budget.of(owner.as_bytes()).reserve();
        let woken = Arc::new(AtomicUsize::new(0));
        let wake = Arc::clone(&woken);
        let answer = reserved.ask(bytes, move || {
            wake.fetch_add(1, Ordering::Relaxed);
        });
        (reserved, answer, woken)
    }

    fn again(reserved: &Reserved, bytes: u64) -> Asked {
        reserved.ask(bytes, || ())
    }

    #[test]
    fn a_reservation_counts_in_the_part_and_in_the_whole_until_its_drop() {
        let budget = Budget::new(1000);
        let (a, granted, _) = asked(&budget, "a", 300);
        assert_eq!(granted, Asked::Granted);
        let (b, granted, _) = asked(&budget, "b", 200);
        assert_eq!(granted, Asked::Granted);
        assert_eq!((budget.used(), budget.of(b"a").used()), (500, 300));
        a.at_least(400);
        b.at_least(150);
        assert_eq!((budget.used(), budget.of(b"b").used()), (600, 200));
        budget.take(50);
        assert_eq!(budget.unreserved(), 50);
        assert!(!a.is_short());
        budget.take(100);
        assert!(a.is_short(), "three quarters are used");
        budget.give(150);
        a.clear();
        assert_eq!((budget.used(), budget.of(b"a").used()), (200, 0));
        drop((a, b));
        assert_eq!((budget.figures().used, budget.unreserved()), (0, 0));
        budget.take(50);
        assert_eq!(budget.unreserved(), 50);
    }

    #[test]
    fn owners_that_have_gone_are_forgotten() {
        let budget = Budget::new(1000);
        let kept = budget.of(b"kept");
        for owner in 0..10_000u32 {
            let _ = budget.of(&owner.to_be_bytes());
        }
        kept.take(7);
        assert_eq!(budget.of(b"kept").used(), 7);
        assert!(budget.lock().parts.len() < 100);
    }

    #[test]
    fn one_reservation_beyond_the_bound_always_proceeds() {
        let budget = Budget::with(1000, 4000, None);
        let (long, granted, _) = asked(&budget, "a", 3000);
        assert_eq!((granted, again(&long, 4000)), (Asked::Granted, Asked::Granted));
        let figures = budget.figures();
        assert_eq!((figures.used, figures.waiting), (4000, 0));
        // A waiting reservation does not block reservations that fit.
        let (_short, granted, _) = asked(&budget, "b", 400);
        assert_eq!(granted, Asked::Granted);
        let (next, waits, woken) = asked(&budget, "c", 3000);
        assert_eq!(waits, Asked::Waits);
        assert!(long.is_wanted() && !next.is_granted());
        long.clear();
        assert!(next.is_granted() && woken.load(Ordering::Relaxed) == 1);
        assert_eq!(again(&next, 3000), Asked::Granted);
        assert!(!long.is_wanted());
    }

    #[test]
    fn charges_make_no_memory_short_and_no_reservation_goes_ahead_of_many() {
        let budget = Budget::with(1000, 4000, None);
        let charge = budget.of(b"a").charge(600);
        let used = [budget.used(), budget.of(b"a").used(), budget.unreserved()];
        assert_eq!(used, [600, 600, 0]);
        let (long, waits, _) = asked(&budget, "b", 3000);
        assert_eq!(waits, Asked::Waits, "the charges will end");
        drop(charge);
        assert!(long.is_granted());
        let _charge = budget.charge(900);
        assert!(!long.is_short());
        budget.take(750);
        assert!(long.is_short());
        budget.give(750);
    }

    #[test]
    fn a_reservation_that_can_never_fit_is_refused_at_once_and_counted() {
        let budget = Budget::with(1000, 4000, None);
        assert_eq!(asked(&budget, "a", 4001).1, Asked::Never(4000));
        assert_eq!((budget.figures().refused, budget.used()), (1, 0));
    }

    #[test]
    fn the_line_is_served_in_order_and_owners_beyond_their_part_come_last() {
        let budget = Budget::new(1000);
        // The reservations hold the whole budget, and one is ahead in the line.
        let held = [("a", 500), ("b", 350), ("b", 150), ("a", 900)];
        let held = held.map(|(owner, bytes)| asked(&budget, owner, bytes));
        assert!(held.iter().all(|(_, answer, _)| *answer == Asked::Granted));
        let [(_a, ..), (b, ..), (other, ..), (ahead, ..)] = held;
        let waits = [("a", 100), ("c", 300), ("d", 10), ("c", 150)];
        let [greedy, first, second, third] = waits.map(|(owner, bytes)| asked(&budget, owner, bytes).0);
        assert!(!greedy.is_granted() && !first.is_granted() && !second.is_granted());
        ahead.clear();
        assert!(
            first.is_granted(),
            "the first that has less than its part is ahead now"
        );
        assert!(!greedy.is_granted() && !second.is_granted());
        other.clear();
        assert!(
            second.is_granted() && !third.is_granted(),
            "150 bytes do not fit besides 860"
        );
        // A new reservation does not overtake the line.
        let (late, waits, _) = asked(&budget, "e", 1);
        assert_eq!(waits, Asked::Waits);
        drop(late);
        second.clear();
        assert!(third.is_granted());
        assert_eq!(again(&third, 150), Asked::Granted);
        assert_eq!(again(&first, 300), Asked::Granted);
        drop(first);
        assert_eq!(
            again(&greedy, 100),
            Asked::Granted,
            "the only waiting reservation is next"
        );
        drop((third, greedy, b));
        assert_eq!((budget.used(), budget.figures().waiting), (500, 0));
    }

    #[test]
    fn a_reservation_without_an_owner_is_not_passed_over() {
        let budget = Budget::new(1000);
        let (held, ..) = asked(&budget, "a", 500);
        let (other, ..) = asked(&budget, "b", 400);
        let (ahead, ..) = asked(&budget, "c", 300);
        let link = budget.reserve();
        assert_eq!(again(&link, 200), Asked::Waits);
        let (short, waits, _) = asked(&budget, "d", 50);
        assert_eq!(waits, Asked::Waits, "a longer one waits in front of it");
        ahead.clear();
        assert!(
            link.is_granted(),
            "it is the first in the line, so it is ahead now"
        );
        drop(other);
        assert!(short.is_granted());
        drop(held);
    }

    #[test]
    fn a_dropped_reservation_leaves_the_line_to_the_next() {
        let budget = Budget::new(100);
        let (ahead, ..) = asked(&budget, "a", 100);
        let (_held, ..) = asked(&budget, "b", 50);
        let (waiting, waits, _) = asked(&budget, "c", 80);
        let (next, waits_too, _) = asked(&budget, "d", 60);
        assert_eq!((waits, waits_too), (Asked::Waits, Asked::Waits));
        drop(waiting);
        drop(ahead);
        assert_eq!(again(&next, 60), Asked::Granted);
        // A grant that its owner has never seen is given back as well.
        let (unseen, waits, _) = asked(&budget, "e", 70);
        assert_eq!(waits, Asked::Waits);
        drop(next);
        assert!(unseen.is_granted());
        drop(unseen);
        assert_eq!(budget.figures().used, 50);
    }

    #[test]
    fn dropping_a_waker_may_give_memory_back() {
        struct Gives(Budget);
        impl Drop for Gives {
            fn drop(&mut self) {
                self.0.give(1);
            }
        }
        let budget = Budget::new(100);
        budget.take(2);
        let (ahead, ..) = asked(&budget, "a", 100);
        let waits = [b"b", b"c"].map(|owner| {
            let (reserved, gives) = (budget.of(owner).reserve(), Gives(budget.clone()));
            let _ = reserved.ask(100, move || {
                let _ = &gives;
            });
            reserved
        });
        let [gives_up, served] = waits;
        drop(gives_up);
        drop(ahead);
        assert!(served.is_granted());
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_budget_without_a_bound_grants_everything() {
        let (reserved, granted, _) = asked(&Budget::unlimited(), "a", u64::MAX / 2);
        assert_eq!(granted, Asked::Granted);
        assert!(!reserved.is_wanted());
    }
}
