//! Memory that many parts of a server take together: how much of it each may have, and who
//! is next where it is short.
//!
//! A [`Budget`] is a bound for many. [`Budget::of`] is the part of it that belongs to one
//! owner, such as a certificate: what that owner takes counts in both. [`Reserved`] is
//! memory that its holder has, and gives back when it is dropped.
//!
//! Who reserves more than is free waits in one line, in the order of arrival:
//!
//! ```text
//!  Reserved::ask ─▶ line ─┬─ it fits, in the whole and in its owner's part ──▶ counted
//!                         └─ nobody is ahead of the line: the next one ──────▶ beside the bound
//! ```
//!
//! So one reservation at a time may exceed the bound, and the line moves on however much
//! others hold and keep. An owner that has more than its part waits behind the others.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// How much every queue may take, however much the others have.
const LEAST_SHARE: u64 = 64 * 1024;

/// A bound for many queues together, with a fair share for each: no queue grows beyond the
/// free part. So one greedy queue gets half of the budget, and `n` greedy ones get an
/// `n + 1`th each; the last part stays free for queues that have nothing yet.
///
/// [`share`](Self::share) and [`take`](Self::take) are a measure for decisions and no lock:
/// two queues that look at the same time may exceed the share by an item each. A
/// [`reserve`](Self::reserve)d amount is exact. A clone counts in the same budget.
#[derive(Clone)]
pub struct Budget(Option<Arc<Counted>>);

struct Counted {
    limit: u64,
    /// The most that one reservation may have.
    longest: u64,
    used: AtomicU64,
    /// The budget that this is a part of.
    whole: Option<Arc<Counted>>,
    /// How many reservations wait.
    waiting: AtomicUsize,
    /// How many were refused because they could never fit.
    refused: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The parts of owners. Those that nobody holds any more are removed once there are
    /// more than `most_parts`.
    parts: HashMap<Box<[u8]>, Weak<Counted>>,
    most_parts: usize,
    line: VecDeque<Waiter>,
    /// What one reservation has beside the bound, because it was its turn.
    ahead: u64,
}

struct Waiter {
    part: Arc<Counted>,
    /// How much more it asks for.
    bytes: u64,
    ticket: Arc<AtomicU8>,
    wake: Box<dyn Fn() + Send>,
}

const WAITS: u8 = 0;
const COUNTED: u8 = 1;
const AHEAD: u8 = 2;

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Budget").field(&self.figures()).finish()
    }
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(limit: u64) -> Self {
        Self::with(limit, limit, None)
    }

    fn with(limit: u64, longest: u64, whole: Option<Arc<Counted>>) -> Self {
        Self(Some(Arc::new(Counted {
            limit,
            longest,
            used: AtomicU64::new(0),
            whole,
            waiting: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            state: Mutex::default(),
        })))
    }

    /// The two budgets of a server that may take so many bytes: three quarters for frames
    /// that wait to be sent, and a quarter for received frames that are not dealt with. So
    /// a thousand senders that are far ahead leave room for their receiver's queue. One
    /// received frame may take as much as both.
    pub fn for_queues_and_received(limit: u64) -> (Self, Self) {
        let received = Self::with(limit / 4, limit.max(LEAST_SHARE), None);
        (Self::new(limit - limit / 4), received)
    }

    /// A budget without a bound, in which nothing is counted.
    pub fn unlimited() -> Self {
        Self(None)
    }

    /// The part of one owner: half of the bound at most. What it takes counts in the whole
    /// as well. Everybody who asks for the same owner gets the same part.
    #[must_use]
    pub fn of(&self, owner: &[u8]) -> Self {
        let Some(whole) = &self.0 else {
            return Self::unlimited();
        };
        let mut state = whole.lock();
        if let Some(part) = state.parts.get(owner).and_then(Weak::upgrade) {
            return Self(Some(part));
        }
        if state.parts.len() >= state.most_parts {
            state.parts.retain(|_, part| part.strong_count() > 0);
            state.most_parts = 2 * state.parts.len() + 16;
        }
        let part = Self::with(whole.limit / 2, whole.longest, Some(Arc::clone(whole)));
        if let Some(counted) = &part.0 {
            state.parts.insert(owner.into(), Arc::downgrade(counted));
        }
        part
    }

    /// A reservation of nothing yet.
    pub fn reserve(&self) -> Reserved {
        Reserved {
            budget: self.clone(),
            bytes: 0,
            ahead: 0,
            asked: None,
        }
    }

    /// The most bytes that one reservation may ever have.
    pub fn longest(&self) -> u64 {
        self.0.as_ref().map_or(u64::MAX, |counted| counted.longest)
    }

    /// The bytes in use.
    pub fn used(&self) -> u64 {
        self.0.as_ref().map_or(0, |counted| counted.used())
    }

    /// The bytes in use, and the bound.
    pub fn figures(&self) -> BudgetFigures {
        let Some(counted) = &self.0 else {
            return BudgetFigures {
                limit: u64::MAX,
                ..BudgetFigures::default()
            };
        };
        BudgetFigures {
            used: counted.used() + counted.lock().ahead,
            limit: counted.limit,
            waiting: counted.waiting.load(Ordering::Relaxed),
            refused: counted.refused.load(Ordering::Relaxed),
        }
    }

    /// How far one queue may grow now, in bytes.
    pub fn share(&self) -> u64 {
        let Some(counted) = &self.0 else { return u64::MAX };
        counted.free().min(counted.whole().free()).max(LEAST_SHARE)
    }

    /// Counts bytes as used.
    pub fn take(&self, bytes: u64) {
        if let Some(counted) = &self.0 {
            counted.take(bytes);
        }
    }

    /// Counts bytes as free again.
    pub fn give(&self, bytes: u64) {
        if let Some(counted) = &self.0 {
            counted.give(bytes);
        }
    }
}

impl Counted {
    // SeqCst, here and in `give`: whoever gives looks at `waiting` afterwards, and whoever
    // waits looks at `used` afterwards. One of the two has to see the other.
    fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    fn free(&self) -> u64 {
        self.limit.saturating_sub(self.used())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn whole(&self) -> &Self {
        self.whole.as_deref().unwrap_or(self)
    }

    fn take(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::SeqCst);
        if let Some(whole) = &self.whole {
            whole.take(bytes);
        }
    }

    fn give(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let given = |used: u64| {
            debug_assert!(used >= bytes, "more is given back than was taken");
            Some(used.saturating_sub(bytes))
        };
        let _ = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, given);
        match &self.whole {
            Some(whole) => whole.give(bytes),
            None if self.waiting.load(Ordering::SeqCst) > 0 => self.serve(&mut self.lock()),
            None => {}
        }
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.used().saturating_add(bytes) <= self.limit
    }

    /// Lets those in who fit, in order. Whoever has more than its part is passed over, and
    /// nobody else, so that a long reservation does not wait for ever for short ones.
    fn serve(&self, state: &mut State) {
        let State { line, ahead, .. } = state;
        let mut at = 0;
        while let Some(waiter) = line.get(at) {
            if !std::ptr::eq(&*waiter.part, self) && !waiter.part.has_room(waiter.bytes) {
                at += 1;
            } else if self.has_room(waiter.bytes) {
                waiter.part.take(waiter.bytes);
                self.let_in(line.remove(at), COUNTED);
            } else {
                break;
            }
        }
        if *ahead == 0 && !line.is_empty() {
            let modest = line.iter().position(|waiter| waiter.part.has_room(waiter.bytes));
            let next = line.remove(modest.unwrap_or(0));
            *ahead = next.as_ref().map_or(0, |waiter| waiter.bytes);
            self.let_in(next, AHEAD);
        }
    }

    fn let_in(&self, waiter: Option<Waiter>, how: u8) {
        let Some(waiter) = waiter else { return };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        waiter.ticket.store(how, Ordering::Release);
        (waiter.wake)();
    }
}

/// Memory that its holder has reserved. Dropping it gives the memory back.
#[derive(Debug)]
pub struct Reserved {
    budget: Budget,
    bytes: u64,
    /// What it has beside the bound.
    ahead: u64,
    /// It waits in line for so many more bytes.
    asked: Option<(u64, Arc<AtomicU8>)>,
}

/// The answer to [`Reserved::ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The memory is there.
    Granted,
    /// It is not there yet.
    Waits,
    /// It will never be there: no reservation may have more than so many bytes.
    Never(u64),
}

impl Reserved {
    /// Reserves exactly so many bytes at once, also where they are not free, for memory that
    /// is in use already. Gives the others back.
    pub fn set(&mut self, bytes: u64) {
        self.leave();
        self.budget.take(bytes.saturating_sub(self.bytes));
        self.budget.give(self.bytes.saturating_sub(bytes));
        self.bytes = bytes;
    }

    /// Reserves at least so many bytes at once, as [`set`](Self::set) does, and keeps what
    /// else was reserved or asked for.
    pub fn at_least(&mut self, bytes: u64) {
        self.collect();
        let more = bytes.saturating_sub(self.bytes + self.ahead);
        if more > 0 {
            self.budget.take(more);
            self.bytes += more;
        }
    }

    /// As [`set`](Self::set), but false, and nothing is changed, if so much is not free in
    /// the whole or in the owner's part. Does not wait.
    pub fn try_set(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let fits = self.budget.0.as_ref().is_none_or(|part| {
            // Under the lock, so that two at a time do not both get the last of it.
            let state = part.whole().lock();
            let fits =
                more == 0 || state.line.is_empty() && part.has_room(more) && part.whole().has_room(more);
            if fits {
                part.take(more);
            }
            fits
        });
        if fits {
            self.bytes += more;
            self.set(bytes);
        }
        fits
    }

    /// Asks for so many bytes in all. Does not wait: if the memory is not there, `wake` is
    /// called once it is, and this is to be called again with the same number.
    pub fn ask(&mut self, bytes: u64, wake: impl Fn() + Send + 'static) -> Asked {
        let Some(part) = self.budget.0.clone() else {
            return Asked::Granted;
        };
        self.collect();
        if self.asked.is_some() {
            return Asked::Waits;
        }
        let more = bytes.saturating_sub(self.bytes + self.ahead);
        if more == 0 {
            return Asked::Granted;
        }
        let whole = part.whole();
        if bytes > whole.longest {
            whole.refused.fetch_add(1, Ordering::Relaxed);
            return Asked::Never(whole.longest);
        }
        let mut state = whole.lock();
        if self.ahead > 0 {
            // Nobody else can be ahead, so waiting for more would have no end.
            self.ahead += more;
            state.ahead += more;
            return Asked::Granted;
        }
        let ticket = Arc::new(AtomicU8::new(WAITS));
        self.asked = Some((more, Arc::clone(&ticket)));
        state.line.push_back(Waiter {
            part: Arc::clone(&part),
            bytes: more,
            ticket,
            wake: Box::new(wake),
        });
        whole.waiting.fetch_add(1, Ordering::SeqCst);
        whole.serve(&mut state);
        drop(state);
        self.collect();
        match self.asked {
            Some(_) => Asked::Waits,
            None => Asked::Granted,
        }
    }

    /// Whether what was asked for is there.
    pub fn is_granted(&self) -> bool {
        let granted = |(_, ticket): &(u64, Arc<AtomicU8>)| ticket.load(Ordering::Acquire) != WAITS;
        self.asked.as_ref().is_none_or(granted)
    }

    /// Whether three quarters of the budget are used, or somebody waits for memory.
    pub fn is_short(&self) -> bool {
        let short = |part: &Arc<Counted>| part.whole().used() >= part.whole().limit / 4 * 3;
        self.is_wanted() || self.budget.0.as_ref().is_some_and(short)
    }

    /// Whether somebody waits for memory.
    pub fn is_wanted(&self) -> bool {
        let waiting = |part: &Arc<Counted>| part.whole().waiting.load(Ordering::Relaxed) > 0;
        self.budget.0.as_ref().is_some_and(waiting)
    }

    /// Takes what was granted since the last look.
    fn collect(&mut self) {
        let Some((more, ticket)) = self.asked.take() else {
            return;
        };
        match ticket.load(Ordering::Acquire) {
            COUNTED => self.bytes += more,
            AHEAD => self.ahead = more,
            _ => self.asked = Some((more, ticket)),
        }
    }

    /// Leaves the line, or the place ahead of it.
    fn leave(&mut self) {
        let Some(part) = self.budget.0.clone() else { return };
        if self.ahead == 0 && self.asked.is_none() {
            return;
        }
        let whole = part.whole();
        let mut state = whole.lock();
        self.collect();
        if let Some((_, ticket)) = self.asked.take() {
            state.line.retain(|waiter| !Arc::ptr_eq(&waiter.ticket, &ticket));
            whole.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        if std::mem::take(&mut self.ahead) > 0 {
            state.ahead = 0;
        }
        whole.serve(&mut state);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A bound for the memory of many queues together, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetFigures {
    /// The bytes in use.
    pub used: u64,
    /// The bound.
    pub limit: u64,
    /// How many frames wait for memory.
    pub waiting: usize,
    /// How many frames were refused because they could never fit.
    pub refused: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_shrinks_with_what_others_take_and_something_is_left_for_each() {
        let budget = Budget::new(1 << 30);
        assert_eq!(budget.share(), 1 << 30);
        budget.take(1 << 29);
        assert_eq!(budget.share(), 1 << 29);
        budget.clone().take(1 << 30);
        assert_eq!(budget.share(), LEAST_SHARE);
        budget.give(3 << 29);
        assert_eq!((budget.used(), budget.share()), (0, 1 << 30));
        assert_eq!(Budget::unlimited().share(), u64::MAX);
    }

    #[test]
    #[cfg(not(debug_assertions))]
    fn what_is_given_back_twice_leaves_the_budget_free() {
        let budget = Budget::new(1 << 20);
        budget.take(5);
        budget.give(7);
        assert_eq!((budget.used(), budget.share()), (0, 1 << 20));
    }

    /// A reservation of an owner, and how often it was woken.
    fn asked(budget: &Budget, owner: &str, bytes: u64) -> (Reserved, Asked, Arc<AtomicUsize>) {
        let mut reserved = budget.of(owner.as_bytes()).reserve();
        let woken = Arc::new(AtomicUsize::new(0));
        let wake = Arc::clone(&woken);
        let answer = reserved.ask(bytes, move || {
            wake.fetch_add(1, Ordering::Relaxed);
        });
        (reserved, answer, woken)
    }

    fn again(reserved: &mut Reserved, bytes: u64) -> Asked {
        reserved.ask(bytes, || ())
    }

    #[test]
    fn what_is_reserved_counts_in_the_part_and_in_the_whole_until_it_is_dropped() {
        let budget = Budget::new(1000);
        let (mut a, granted, _) = asked(&budget, "a", 300);
        assert_eq!(granted, Asked::Granted);
        let (mut b, granted, _) = asked(&budget, "b", 200);
        assert_eq!(granted, Asked::Granted);
        assert_eq!((budget.used(), budget.of(b"a").used()), (500, 300));
        a.set(400);
        b.set(150);
        assert_eq!((budget.used(), budget.of(b"b").used()), (550, 150));
        assert!(!a.try_set(501), "it is more than the owner's part");
        assert!(a.try_set(500) && !b.try_set(501) && a.try_set(1));
        assert_eq!(budget.used(), 151);
        drop((a, b));
        assert_eq!(budget.figures().used, 0);
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
        assert!(budget.0.as_ref().unwrap().lock().parts.len() < 100);
    }

    #[test]
    fn one_reservation_beyond_the_bound_always_proceeds() {
        let budget = Budget::with(1000, 4000, None);
        let (mut long, granted, _) = asked(&budget, "a", 4000);
        assert_eq!(granted, Asked::Granted);
        let figures = budget.figures();
        assert_eq!((figures.used, figures.waiting), (4000, 0));
        // It does not stop those who fit.
        let (_short, granted, _) = asked(&budget, "b", 400);
        assert_eq!(granted, Asked::Granted);
        let (mut next, waits, woken) = asked(&budget, "c", 3000);
        assert_eq!(waits, Asked::Waits);
        assert!(long.is_wanted() && !next.is_granted());
        long.set(0);
        assert!(next.is_granted() && woken.load(Ordering::Relaxed) == 1);
        assert_eq!(again(&mut next, 3000), Asked::Granted);
        assert!(!long.is_wanted());
    }

    #[test]
    fn what_can_never_fit_is_refused_at_once_and_counted() {
        let budget = Budget::with(1000, 4000, None);
        assert_eq!(asked(&budget, "a", 4001).1, Asked::Never(4000));
        assert_eq!((budget.figures().refused, budget.used()), (1, 0));
    }

    #[test]
    fn the_line_is_served_in_order_and_who_has_its_part_comes_last() {
        let budget = Budget::new(1000);
        // They hold all of it, and one is ahead.
        let held = [("a", 500), ("b", 500), ("a", 900)].map(|(owner, bytes)| asked(&budget, owner, bytes));
        assert!(held.iter().all(|(_, answer, _)| *answer == Asked::Granted));
        let [(_a, ..), (mut b, ..), (mut ahead, ..)] = held;
        let waits = [("a", 100), ("c", 300), ("d", 10), ("c", 150)];
        let [mut greedy, mut first, mut second, mut third] =
            waits.map(|(owner, bytes)| asked(&budget, owner, bytes).0);
        assert!(!greedy.is_granted() && !first.is_granted() && !second.is_granted());
        ahead.set(0);
        assert!(
            first.is_granted(),
            "the first that has less than its part is ahead now"
        );
        assert!(!greedy.is_granted() && !second.is_granted());
        b.set(350);
        assert!(
            second.is_granted() && !third.is_granted(),
            "150 do not fit beside 860"
        );
        // Somebody who arrives now does not overtake.
        let (late, waits, _) = asked(&budget, "e", 1);
        assert_eq!(waits, Asked::Waits);
        drop(late);
        second.set(0);
        assert!(third.is_granted());
        assert_eq!(again(&mut third, 150), Asked::Granted);
        assert_eq!(again(&mut first, 300), Asked::Granted);
        drop(first);
        assert_eq!(
            again(&mut greedy, 100),
            Asked::Granted,
            "alone in line it is next"
        );
        drop((third, greedy, b));
        assert_eq!((budget.used(), budget.figures().waiting), (500, 0));
    }

    #[test]
    fn who_gives_up_waiting_leaves_the_line_to_the_next() {
        let budget = Budget::new(100);
        let (ahead, ..) = asked(&budget, "a", 100);
        let (_held, ..) = asked(&budget, "b", 50);
        let (waiting, waits, _) = asked(&budget, "c", 80);
        let (mut next, waits_too, _) = asked(&budget, "d", 60);
        assert_eq!((waits, waits_too), (Asked::Waits, Asked::Waits));
        drop(waiting);
        drop(ahead);
        assert_eq!(again(&mut next, 60), Asked::Granted);
        // What was granted but never looked at is given back as well.
        let (unseen, waits, _) = asked(&budget, "e", 70);
        assert_eq!(waits, Asked::Waits);
        drop(next);
        assert!(unseen.is_granted());
        drop(unseen);
        assert_eq!(budget.figures().used, 50);
    }

    #[test]
    fn a_budget_without_a_bound_grants_everything() {
        let (mut reserved, granted, _) = asked(&Budget::unlimited(), "a", u64::MAX);
        assert_eq!(granted, Asked::Granted);
        assert!(reserved.try_set(5) && !reserved.is_short());
    }
}
