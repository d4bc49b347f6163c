//! Bounds how far a reader may be ahead of the dispatcher.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::budget::Budget;
use crate::host::{locked, locked_again, now};

/// The bytes that a reader may be ahead of the dispatcher. A mebibyte keeps both threads busy;
/// with a quarter of it the measured throughput was 10 % lower.
const MAX_AHEAD: u64 = 1 << 20;

/// If all readers together are further ahead than this, each of them may be ahead by one batch
/// only. A thousand readers that take each record as it arrives would keep the dispatcher from the
/// processors; a reader that waits finds several records at its next read. Memory that is reserved
/// for unfinished items does not count: some stalled peers would otherwise slow all readers down.
const MAX_ALL_AHEAD: u64 = 32 << 20;

/// The credit of one connection's reader. The reader spends it for each batch, and the dispatcher
/// grants it again when the batch is handled. A reader without credit waits, so the peer's socket
/// fills and the peer has to wait.
///
/// One batch may always be under way, however long it is. While the connection is paused, no more
/// than that one batch is.
#[derive(Debug)]
pub struct Credit {
    state: Mutex<CreditState>,
    granted: Condvar,
    budget: Budget,
    woken: std::sync::atomic::AtomicU64,
}

#[derive(Debug, Default)]
struct CreditState {
    in_flight: u64,
    paused: bool,
    over: bool,
    /// The time since which the reader waits, if it waits.
    waits_since: Option<Instant>,
}

impl Credit {
    /// Credit that counts in a budget.
    pub fn new(budget: Budget) -> Self {
        Self {
            state: Mutex::default(),
            granted: Condvar::new(),
            budget,
            woken: Default::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, CreditState> {
        locked(&self.state)
    }

    /// The budget in which this credit counts.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The memory of `items` items that arrived in `bytes` bytes. Many short items take much more
    /// memory than their bytes.
    pub fn memory_of<I>(items: usize, bytes: u64) -> u64 {
        bytes + (items * std::mem::size_of::<I>()) as u64
    }

    /// Spends credit for bytes that the reader is about to send to the dispatcher.
    pub fn spend(&self, bytes: u64) {
        self.state().in_flight += bytes;
        self.budget.take(bytes);
    }

    /// Grants the credit of bytes that the dispatcher has handled. Wakes a waiting reader only
    /// when half of its credit is free, because a wake-up for each batch is a system call each.
    pub fn grant(&self, bytes: u64) {
        let mut state = self.state();
        state.in_flight -= bytes;
        let wake = state.waits_since.is_some() && state.in_flight <= self.allowance(&state) / 2;
        drop(state);
        self.budget.give(bytes);
        if wake {
            self.wake();
        }
    }

    /// Limits the reader to one batch, or ends that limit.
    pub fn pause(&self, paused: bool) {
        let mut state = self.state();
        state.paused = paused;
        if state.waits_since.is_some() && !paused {
            drop(state);
            self.wake();
        }
    }

    /// Ends the credit and wakes the reader: the dispatcher takes no further items from it.
    pub fn end(&self) {
        self.state().over = true;
        self.wake();
    }

    /// As [`wait`](Self::wait), but does not block. Also returns [`woken`](Self::woken).
    pub fn try_wait(&self) -> (Option<bool>, u64) {
        (self.wait(Duration::ZERO), self.woken())
    }

    /// The number of times that the reader has been woken.
    pub fn woken(&self) -> u64 {
        self.woken.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn wake(&self) {
        self.woken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.granted.notify_one();
    }

    /// Blocks until the reader may read on, for at most `limit`. True if it may, false if the
    /// connection has ended, `None` if it still has to wait.
    pub fn wait(&self, limit: Duration) -> Option<bool> {
        let has_to_wait = |state: &mut CreditState| self.has_to_wait(state);
        let waited = self.granted.wait_timeout_while(self.state(), limit, has_to_wait);
        let (state, end) = locked_again(waited);
        (!end.timed_out()).then_some(!state.over)
    }

    /// Decides whether the reader has to wait, and notes since when it does.
    fn has_to_wait(&self, state: &mut CreditState) -> bool {
        let waits = !state.over && state.in_flight > self.allowance(state);
        state.waits_since = waits.then(|| state.waits_since.unwrap_or_else(now));
        waits
    }

    /// The time since which the reader waits, if it waits.
    pub(crate) fn waits_since(&self) -> Option<Instant> {
        self.state().waits_since
    }

    /// Blocks until `is_there` is true, for at most `limit`; [`nudge`](Self::nudge) has it evaluated
    /// again. False at once if the connection has ended.
    pub(crate) fn wait_for(&self, limit: Duration, mut is_there: impl FnMut() -> bool) -> bool {
        let waits = |state: &mut CreditState| !state.over && !is_there();
        let waited = self.granted.wait_timeout_while(self.state(), limit, waits);
        !locked_again(waited).0.over
    }

    /// Wakes the reader, which then evaluates its condition again.
    pub(crate) fn nudge(&self) {
        // The lock is taken so that a reader is not between its evaluation and its sleep.
        drop(self.state());
        self.wake();
    }

    fn allowance(&self, state: &CreditState) -> u64 {
        // 0 still allows one batch, because the reader sends it before it waits.
        if state.paused || self.budget.unreserved() > MAX_ALL_AHEAD {
            0
        } else {
            MAX_AHEAD.min(self.budget.share() / 4)
        }
    }
}

impl Drop for Credit {
    /// Returns the bytes that a connection that has ended left unhandled.
    fn drop(&mut self) {
        self.budget.give(locked_again(self.state.get_mut()).in_flight);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::host::threads;

    /// A reader that waits in another thread.
    fn asleep(credit: &Arc<Credit>) -> std::thread::JoinHandle<bool> {
        let reader = Arc::clone(credit);
        let thread = threads::spawn("reader", move || reader.wait(Duration::MAX) == Some(true)).unwrap();
        while credit.waits_since().is_none() {
            std::thread::yield_now();
        }
        thread
    }

    #[test]
    fn a_reader_waits_beyond_its_credit_and_until_half_of_it_is_back() {
        let credit = Arc::new(Credit::new(Budget::unlimited()));
        credit.spend(MAX_AHEAD);
        assert!(
            credit.wait(Duration::MAX).unwrap(),
            "the reader continues up to its credit"
        );
        credit.spend(10);
        let reader = asleep(&credit);
        credit.grant(10);
        assert_eq!(credit.woken(), 0, "the reader is not woken for each batch");
        assert!(credit.waits_since().is_some());
        credit.grant(MAX_AHEAD / 2);
        assert!(reader.join().unwrap());
        assert!(credit.waits_since().is_none());
        credit.grant(MAX_AHEAD / 2);
        assert_eq!(credit.woken(), 1, "the reader is not woken without need");
    }

    #[test]
    fn a_paused_reader_hands_over_one_batch() {
        let credit = Arc::new(Credit::new(Budget::unlimited()));
        credit.pause(true);
        assert!(credit.wait(Duration::MAX).unwrap(), "no bytes are under way");
        credit.spend(1);
        let reader = asleep(&credit);
        credit.grant(1);
        assert!(reader.join().unwrap());
        credit.spend(1);
        let reader = asleep(&credit);
        credit.pause(true);
        assert_eq!(credit.woken(), 1);
        credit.pause(false);
        assert!(reader.join().unwrap());
        credit.pause(false);
        assert_eq!(credit.woken(), 2, "the waiting reader is woken");
    }

    #[test]
    fn an_end_wakes_a_reader_and_returns_its_bytes() {
        let budget = Budget::new(1 << 40);
        let credit = Arc::new(Credit::new(budget.clone()));
        credit.pause(true);
        credit.spend(1);
        let reader = asleep(&credit);
        credit.end();
        assert!(!reader.join().unwrap());
        assert_eq!(credit.wait(Duration::MAX), Some(false));
        assert_eq!(budget.used(), 1);
        drop(credit);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_reader_waits_for_a_condition_until_a_nudge_or_the_end() {
        let credit = Arc::new(Credit::new(Budget::unlimited()));
        let [looks, there] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let (reader, looked, is_there) = (Arc::clone(&credit), Arc::clone(&looks), Arc::clone(&there));
        let wait = move || {
            reader.wait_for(Duration::MAX, || {
                // Counted after the look, so that the first look is one at a condition that is false.
                let holds = is_there.load(Ordering::SeqCst) > 0;
                looked.fetch_add(1, Ordering::SeqCst);
                holds
            })
        };
        let thread = threads::spawn("reader", wait).unwrap();
        while looks.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        there.store(1, Ordering::SeqCst);
        credit.nudge();
        assert!(thread.join().unwrap());
        assert!(looks.load(Ordering::SeqCst) > 1);
        assert!(credit.wait_for(Duration::ZERO, || false), "its connection stays");
        credit.end();
        assert!(!credit.wait_for(Duration::MAX, || false));
    }

    #[test]
    fn readers_that_are_far_ahead_together_have_a_batch_each() {
        let budget = Budget::new(1 << 40);
        let credit = Credit::new(budget.clone());
        budget.take(MAX_ALL_AHEAD - 1);
        credit.spend(1);
        assert_eq!(credit.try_wait().0, Some(true));
        budget.take(1);
        assert_eq!(credit.try_wait().0, None);
        let since = credit.waits_since();
        assert_eq!(credit.try_wait().0, None);
        assert_eq!(credit.waits_since(), since, "it is the same wait");
        credit.grant(1);
        assert_eq!(
            credit.try_wait().0,
            Some(true),
            "no bytes of the reader are under way"
        );
        budget.give(MAX_ALL_AHEAD);
    }

    #[test]
    fn credit_shrinks_with_the_budget_and_counts_in_it() {
        assert_eq!(Credit::memory_of::<u64>(3, 10), 34);
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
