//! How far a reader may be ahead of the dispatcher.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Unfinished;
use crate::budget::Budget;
use crate::host::deadline::now;

/// Bytes that a reader may have handed over and the dispatcher has not dealt
/// with yet. A mebibyte keeps both busy; a fourth of it was measured slower by
/// a tenth.
const AHEAD: u64 = 1 << 20;

/// How far all readers together may be ahead before each of them waits until
/// its batch is dealt with. A thousand readers that take each record from their
/// sockets as it arrives would keep the processors from the dispatcher; one that
/// waits finds several records at once the next time.
const ALL_AHEAD: u64 = 32 << 20;

/// The credit of one connection's reader. The reader spends it with each batch
/// that it hands to the dispatcher and waits when it is used up, so its peer is
/// held back by its own socket; the dispatcher gives it back.
///
/// One batch may always be under way, however long. While the connection is
/// held, because a receiver of its frames has no room, that is all.
#[derive(Debug)]
pub struct Credit {
    state: Mutex<State>,
    granted: Condvar,
    budget: Budget,
    woken: std::sync::atomic::AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    in_flight: u64,
    held: bool,
    over: bool,
    /// The reader waits.
    waiting: bool,
    /// And since when.
    since: Option<Instant>,
}

impl Credit {
    /// Credit whose use counts in a budget.
    pub fn new(budget: Budget) -> Self {
        Self {
            state: Mutex::default(),
            granted: Condvar::new(),
            budget,
            woken: Default::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the connection holds of an item whose end has not come counts in
    /// the same budget.
    pub fn unfinished(&self, limit: Duration) -> Unfinished {
        Unfinished::new(self.budget.clone(), limit)
    }

    /// What items that came in so many bytes take: many short ones take much
    /// more memory than they are long.
    pub fn memory_of<I>(items: usize, bytes: u64) -> u64 {
        bytes + (items * std::mem::size_of::<I>()) as u64
    }

    /// The reader is about to hand over so many bytes.
    pub fn spend(&self, bytes: u64) {
        self.state().in_flight += bytes;
        self.budget.take(bytes);
    }

    /// The dispatcher is done with so many bytes. The reader is woken when half
    /// of its credit is there, not for each batch.
    pub fn grant(&self, bytes: u64) {
        let mut state = self.state();
        state.in_flight -= bytes;
        let wake = state.waiting && state.in_flight <= self.allowance(&state) / 2;
        drop(state);
        self.budget.give(bytes);
        if wake {
            self.wake();
        }
    }

    /// Whether the reader is to hand over no more than one batch.
    pub fn hold(&self, held: bool) {
        let mut state = self.state();
        state.held = held;
        if state.waiting && !held {
            drop(state);
            self.wake();
        }
    }

    /// Nobody takes anything from the reader any more.
    pub fn end(&self) {
        self.state().over = true;
        self.wake();
    }

    /// As [`wait`](Self::wait) without waiting: whether the reader may read
    /// on, or `None` where it has to wait until it is woken. Gives back how
    /// often it has been woken as well.
    pub fn try_wait(&self) -> (Option<bool>, u64) {
        let mut state = self.state();
        state.waiting = !state.over && state.in_flight > self.allowance(&state);
        ((!state.waiting).then_some(!state.over), self.woken())
    }

    /// How often the reader has been woken.
    pub fn woken(&self) -> u64 {
        self.woken.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn wake(&self) {
        self.woken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.granted.notify_one();
    }

    /// The reader waits until it may read on; false when it need not any more.
    /// That needs no time limit: the dispatcher waits for nobody, nobody in a
    /// line is waited for longer than the patience or the write timeout allow,
    /// and the end of the connection ends this as well.
    pub fn wait(&self) -> bool {
        let mut state = self.state();
        while !state.over && state.in_flight > self.allowance(&state) {
            state.waiting = true;
            state.since.get_or_insert_with(now);
            state = self.granted.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting = false;
        state.since = None;
        !state.over
    }

    /// Since when the reader waits, where it does.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        self.state().since
    }

    /// Waits so long; false at once when nothing is taken from the reader any
    /// more.
    pub(super) fn rest(&self, time: Duration) -> bool {
        let state = self.state();
        let waited = self.granted.wait_timeout_while(state, time, |state| !state.over);
        !waited.unwrap_or_else(PoisonError::into_inner).0.over
    }

    fn allowance(&self, state: &State) -> u64 {
        if state.held || self.budget.used() > ALL_AHEAD {
            0
        } else {
            AHEAD.min(self.budget.share() / 4)
        }
    }
}

impl Drop for Credit {
    /// What was on its way to a connection that ended is not dealt with.
    fn drop(&mut self) {
        let left = self
            .state
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .in_flight;
        self.budget.give(left);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::host::threads;

    /// A reader that waits in another thread.
    fn asleep(credit: &Arc<Credit>) -> std::thread::JoinHandle<bool> {
        let reader = Arc::clone(credit);
        let thread = threads::spawn("reader", move || reader.wait()).unwrap();
        while !credit.state().waiting {
            std::thread::yield_now();
        }
        thread
    }

    #[test]
    fn a_reader_waits_beyond_its_credit_and_until_half_of_it_is_back() {
        let credit = Arc::new(Credit::new(Budget::unlimited()));
        credit.spend(AHEAD);
        assert!(credit.wait(), "up to its credit it goes on");
        credit.spend(10);
        let reader = asleep(&credit);
        credit.grant(10);
        assert!(credit.state().waiting, "it is not woken for each batch");
        assert!(credit.waits_since().is_some());
        credit.grant(AHEAD / 2);
        assert!(reader.join().unwrap());
        assert!(!credit.state().waiting && credit.waits_since().is_none());
    }

    #[test]
    fn a_held_reader_hands_over_one_batch() {
        let credit = Arc::new(Credit::new(Budget::unlimited()));
        credit.hold(true);
        assert!(credit.wait(), "nothing is under way");
        credit.spend(1);
        let reader = asleep(&credit);
        credit.grant(1);
        assert!(reader.join().unwrap());
        credit.spend(1);
        let reader = asleep(&credit);
        credit.hold(false);
        assert!(reader.join().unwrap());
    }

    #[test]
    fn an_end_wakes_a_reader_and_what_it_had_under_way_is_given_back() {
        let budget = Budget::new(1 << 40);
        let credit = Arc::new(Credit::new(budget.clone()));
        credit.hold(true);
        credit.spend(1);
        let reader = asleep(&credit);
        credit.end();
        assert!(!reader.join().unwrap() && !credit.wait());
        assert_eq!(budget.used(), 1);
        drop(credit);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn credit_shrinks_with_the_budget_and_counts_in_it() {
        let budget = Budget::new(1 << 20);
        let credit = Credit::new(budget.clone());
        credit.spend(1 << 18);
        assert_eq!(budget.used(), 1 << 18);
        let state = credit.state();
        assert_eq!(credit.allowance(&state), 3 << 16, "a fourth of what is free");
        drop(state);
        credit.grant(1 << 18);
        assert_eq!(budget.used(), 0);
    }
}
