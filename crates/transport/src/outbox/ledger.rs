//! The counters of one outbox: items that wait, and items that have left; and its phase. Plain
//! data without locks or clocks.
//!
//! ```text
//!            close()               drained()
//!   Open ───────────────▶ Closing ───────────▶ Drained
//!     ├── fail(error) ───────┼──▶ Failed          │   no more is sent
//!     └── abort() ───────────┴──▶ Closed ◀────────┘
//! ```
//!
//! | phase | accepts items | the writer |
//! |---|---|---|
//! | Open | yes | sends |
//! | Closing | no | sends the waiting items, then sends the end to the peer |
//! | Drained | no | has sent the end, and waits until the peer ends its side |
//! | Closed, Failed | no | ends |
//!
//! An item waits from its acceptance until the system has taken all of it, it is dropped, or the
//! connection ends. Then it counts as sent, dropped or lost.

use std::io;

use super::Limits;
use crate::budget::Budget;
use crate::stream::Load;

/// The phase of an outbox.
#[derive(Debug)]
pub(super) enum Phase {
    Open,
    Closing,
    Drained,
    Closed,
    /// Writing failed, for this reason.
    Failed(io::Error),
}

/// The reason for not accepting an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    Closed,
}

/// The threads that have to be notified of a change of the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(super) struct Notify {
    /// Threads that sleep until there is room or until the end.
    pub sleepers: bool,
    /// The dispatcher, by the report of [`Ledger::request_room`].
    pub dispatcher: bool,
    /// The writer, which now has to send the end to the peer.
    pub writer: bool,
}

#[derive(Debug)]
pub(super) struct Ledger {
    limits: Limits,
    /// Memory is taken from it with the count of the item. Otherwise another thread could give memory back
    /// that was not taken yet.
    budget: Budget,
    pub(super) phase: Phase,
    /// The items that were accepted and are not sent, dropped or lost.
    pub(super) waiting: Load,
    /// The items that the system has taken.
    pub(super) sent: Load,
    /// The number of frames that were dropped for lack of room.
    pub(super) dropped: u64,
    /// The number of frames that will never be sent. Final at the end.
    pub(super) lost: u64,
    /// The number of threads that sleep until the ledger changes.
    pub(super) sleepers: u32,
    /// The memory of all items that were accepted and wait no more.
    pub(super) left: u64,
    /// The value of `left` at which the dispatcher gets a report; also due when no item waits.
    report_at: Option<u64>,
    /// The bytes that the system may keep unsent from now on. `None` once the writer has told the stream.
    pub(super) unsent: Option<u64>,
    /// True if the reader has left bytes for the socket.
    flush: bool,
    /// True if a nudge is in the channel. One nudge is enough.
    nudged: bool,
}

impl Ledger {
    pub(super) fn new(limits: Limits, budget: Budget) -> Self {
        Self {
            limits,
            budget,
            phase: Phase::Open,
            waiting: Load::default(),
            sent: Load::default(),
            dropped: 0,
            lost: 0,
            sleepers: 0,
            left: 0,
            report_at: None,
            unsent: None,
            flush: false,
            nudged: false,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// True if no further item will be sent.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Closed | Phase::Failed(_))
    }

    /// True if the outbox is closing and all accepted items are sent, so that the end can be sent
    /// to the peer. Afterwards the phase is Drained, and this is false.
    pub(super) fn may_finish(&self) -> bool {
        matches!(self.phase, Phase::Closing) && self.waiting.items == 0
    }

    /// True if less memory and fewer frames than `mark` wait, or nothing.
    pub(super) fn is_below(&self, mark: Limits) -> bool {
        self.waiting.items == 0 || self.waiting.memory() < mark.bytes && self.waiting.frames < mark.frames
    }

    /// True if at most half of each limit is used.
    pub(super) fn is_roomy(&self) -> bool {
        self.waiting.frames <= self.limits.frames / 2 && self.waiting.memory() <= self.limits.bytes / 2
    }

    /// Accepts an item if less than `mark` waits. So one item may exceed the mark, and a long one needs no
    /// more room than a short one. True if no item waited before it.
    pub(super) fn accept(&mut self, item: Load, mark: Limits) -> Result<bool, Refused> {
        if !self.is_open() {
            return Err(Refused::Closed);
        }
        if !self.is_below(mark) {
            return Err(Refused::Full);
        }
        let is_first = self.waiting.items == 0;
        self.waiting += item;
        self.budget.take(item.memory());
        Ok(is_first)
    }

    /// Counts items that the system has taken.
    pub(super) fn count_sent(&mut self, items: Load) -> Notify {
        self.sent += items;
        self.leave(items)
    }

    /// Counts an item that was dropped because there was no room for it.
    pub(super) fn count_refused(&mut self, item: Load) {
        self.dropped += item.frames;
    }

    /// Counts an item that came after the close.
    pub(super) fn count_late(&mut self, item: Load) {
        self.lost += item.frames;
    }

    /// Counts items that will not be sent because the connection is over.
    pub(super) fn count_lost(&mut self, items: Load) -> Notify {
        self.lost += items.frames;
        self.leave(items)
    }

    /// Removes items from the waiting ones. Sleepers are notified when the queue drains to half of
    /// its limits and when it becomes empty: a wake-up for each batch would cost a system call each,
    /// and the woken thread would find room for one item.
    fn leave(&mut self, items: Load) -> Notify {
        let was_roomy = self.is_roomy();
        self.waiting -= items;
        self.left += items.memory();
        let empty = self.waiting.items == 0;
        let left = self.left;
        Notify {
            sleepers: self.sleepers > 0 && (empty || (!was_roomy && self.is_roomy())),
            dispatcher: self.report_at.take_if(|at| empty || left >= *at).is_some(),
            writer: self.may_finish(),
        }
    }

    /// Requests one report to the dispatcher, when `at` bytes of memory in all have left or no item waits.
    /// Only the last request counts. False if that is so already.
    pub(super) fn request_room(&mut self, at: u64) -> bool {
        let waits = self.waiting.items > 0 && self.left < at;
        self.report_at = waits.then_some(at);
        waits
    }

    /// Accepts no further items.
    pub(super) fn close(&mut self) {
        if self.is_open() {
            self.phase = Phase::Closing;
        }
    }

    /// Notes that the end has been sent to the peer.
    pub(super) fn drained(&mut self) {
        if matches!(self.phase, Phase::Closing) {
            self.phase = Phase::Drained;
        }
    }

    /// Ends everything at once.
    pub(super) fn abort(&mut self) {
        // An error says why the connection is over, so it stays.
        if !matches!(self.phase, Phase::Failed(_)) {
            self.phase = Phase::Closed;
        }
    }

    /// Notes that writing failed. An earlier end caused that failure, so it stays.
    pub(super) fn fail(&mut self, error: io::Error) {
        if !self.is_over() {
            self.phase = Phase::Failed(error);
        }
    }

    /// Notes that the reader has left bytes for the socket. True if the writer has to be nudged.
    pub(super) fn ask_to_flush(&mut self) -> bool {
        self.flush = true;
        self.nudge()
    }

    /// True if no nudge is in the channel yet.
    pub(super) fn nudge(&mut self) -> bool {
        !std::mem::replace(&mut self.nudged, true)
    }

    /// Notes that the writer reads the ledger.
    pub(super) fn reset_nudge(&mut self) {
        self.nudged = false;
    }

    /// True if the reader has left bytes for the socket since the last call.
    pub(super) fn take_flush(&mut self) -> bool {
        std::mem::take(&mut self.flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(bytes: u64) -> Load {
        Load {
            items: 1,
            frames: 1,
            bytes,
        }
    }

    fn ledger(frames: u64, bytes: u64) -> Ledger {
        Ledger::new(Limits { frames, bytes }, Budget::unlimited())
    }

    /// Takes an item if less than its limits waits.
    fn take(books: &mut Ledger, item: Load) -> Result<bool, Refused> {
        books.accept(item, books.limits)
    }

    #[test]
    fn frames_and_memory_are_bounded_and_one_item_may_always_wait_alone() {
        let mut books = ledger(3, 1000);
        assert_eq!(take(&mut books, item(5000)), Ok(true));
        assert_eq!(take(&mut books, item(0)), Err(Refused::Full));
        assert!(books.count_sent(item(5000)) == Notify::default());
        for n in 0..3 {
            assert_eq!(take(&mut books, item(1)), Ok(n == 0));
        }
        assert_eq!(take(&mut books, item(1)), Err(Refused::Full), "three frames wait");
        assert_eq!(books.waiting.frames, 3);
        assert_eq!(books.sent, item(5000));
        let mut books = ledger(u64::MAX, 2000);
        // Each item takes 1000 bytes with its overhead.
        let taken = [(); 3].map(|()| take(&mut books, item(872)).is_ok());
        assert_eq!(taken, [true, true, false], "the limit itself may be reached");
    }

    #[test]
    fn short_items_count_with_the_memory_that_they_take() {
        let mut books = ledger(u64::MAX, 10_000);
        let mut taken = 0;
        while take(&mut books, item(8)).is_ok() {
            taken += 1;
        }
        assert!((50..100).contains(&taken), "{taken} items of 8 bytes in 10,000");
    }

    #[test]
    fn sleepers_are_woken_at_half_of_the_queue_and_at_its_end() {
        let mut books = ledger(u64::MAX, 8000);
        for _ in 0..7 {
            take(&mut books, item(872)).unwrap();
        }
        books.sleepers = 1;
        let woken: Vec<_> = (0..7).map(|_| books.count_sent(item(872)).sleepers).collect();
        assert_eq!(woken, [false, false, true, false, false, false, true]);
        let mut books = ledger(4, u64::MAX);
        for _ in 0..4 {
            take(&mut books, item(1)).unwrap();
        }
        books.sleepers = 1;
        let woken = [(); 4].map(|()| books.count_sent(item(1)).sleepers);
        assert_eq!(woken, [false, true, false, true]);
    }

    #[test]
    fn every_item_is_waiting_sent_dropped_or_lost() {
        let mut books = ledger(100, u64::MAX);
        for _ in 0..3 {
            take(&mut books, item(10)).unwrap();
        }
        let _ = books.count_sent(item(10));
        books.count_refused(item(10));
        books.abort();
        let _ = books.count_lost(item(10));
        assert_eq!(
            (books.waiting, books.sent, books.lost, books.dropped),
            (item(10), item(10), 1, 1)
        );
        assert_eq!(take(&mut books, item(1)), Err(Refused::Closed));
    }

    #[test]
    fn a_close_waits_for_accepted_items_and_an_end_is_final() {
        let mut books = ledger(100, 1000);
        take(&mut books, item(1)).unwrap();
        books.close();
        assert!(!books.may_finish());
        let _ = books.count_sent(item(1));
        assert!(books.may_finish());
        books.drained();
        assert!(matches!(books.phase, Phase::Drained));
        books.abort();
        books.fail(io::ErrorKind::BrokenPipe.into());
        assert!(matches!(books.phase, Phase::Closed), "an abort is no failure");
        let mut books = ledger(1, 1);
        books.fail(io::ErrorKind::BrokenPipe.into());
        books.abort();
        books.close();
        assert!(matches!(books.phase, Phase::Failed(_)));
    }

    #[test]
    fn only_one_nudge_is_under_way_at_a_time() {
        let mut books = ledger(1, 1);
        assert!(books.ask_to_flush());
        assert!(!books.nudge());
        books.reset_nudge();
        assert!(books.take_flush() && !books.take_flush());
        assert!(books.nudge());
    }

    #[test]
    fn the_writer_is_notified_when_the_last_item_of_a_close_has_left() {
        let mut books = ledger(100, 1000);
        take(&mut books, item(1)).unwrap();
        take(&mut books, item(1)).unwrap();
        books.close();
        assert!(!books.count_sent(item(1)).writer && books.count_sent(item(1)).writer);
    }
}
