//! The books of one way out: what waits, what has left, and whether it is
//! still open. Plain data without locks or clocks.
//!
//! ```text
//!            close()               drained()
//!   Open ───────────────▶ Closing ───────────▶ Drained
//!     │                      │                    │
//!     ├── fail(error) ───────┼──▶ Failed          │   nothing leaves any more
//!     └── abort() ───────────┴──▶ Closed ◀────────┘
//! ```
//!
//! | phase | items are taken | the writer |
//! |---|---|---|
//! | Open | yes | sends |
//! | Closing | no | sends what waits, then tells the peer |
//! | Drained | no | has told the peer, and waits until the peer ends its side |
//! | Closed, Failed | no | ends |
//!
//! An item counts as waiting from the moment it is taken until the system has
//! all of it, it is dropped, or the connection ends. Then it counts as either
//! sent, dropped or lost.

use std::io;

use super::Limits;
use crate::stream::Load;

/// How far a queue drains below its mark before waiting senders are told: several
/// batches of its writer. So they are not told for every batch, and a thousand senders
/// in line wake up by the dozen, not all at once.
const STEP: u64 = 1 << 20;

/// The phase in the life of a way out.
#[derive(Debug, Default)]
pub(super) enum Phase {
    #[default]
    Open,
    Closing,
    Drained,
    Closed,
    /// Writing failed, for this reason.
    Failed(io::Error),
}

/// Why an item is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    Closed,
}

/// Who has to be told of a change of the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(super) struct Tell {
    /// Threads that wait for room or for the end.
    pub sleepers: bool,
    /// The dispatcher, which asked by [`Ledger::watch`] or [`Ledger::ask_for_room`].
    pub watcher: bool,
    /// The writer, which now has to tell the peer of the end.
    pub writer: bool,
}

/// The level to which the queue has to drain before the watcher is told.
#[derive(Clone, Copy, Debug)]
struct Level {
    memory: u64,
    frames: u64,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    limits: Limits,
    phase: Phase,
    waiting: Load,
    sent: Load,
    dropped: u64,
    lost: u64,
    /// How many threads wait for a change of the ledger.
    pub(super) sleepers: u32,
    /// The level at which the dispatcher is told, if it asked.
    watch: Option<Level>,
    /// The reader has left bytes for the socket.
    flush: bool,
    /// A nudge is on its way to the writer. One nudge is enough.
    nudged: bool,
}

impl Ledger {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    pub(super) fn phase(&self) -> &Phase {
        &self.phase
    }

    /// The items that were taken and are not sent, dropped or lost.
    pub(super) fn waiting(&self) -> Load {
        self.waiting
    }

    /// The items that the system has taken.
    pub(super) fn sent(&self) -> Load {
        self.sent
    }

    /// Frames that were dropped for lack of room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Frames that were taken and will never be sent. Final at the end.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Whether no further item will be sent.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Closed | Phase::Failed(_))
    }

    /// Whether the way out is closing and everything that it accepted has been sent, so that
    /// the peer can be told of the end now. After that the phase is Drained, and this is
    /// false.
    pub(super) fn may_finish(&self) -> bool {
        matches!(self.phase, Phase::Closing) && self.waiting.items == 0
    }

    /// Whether an item fits. A single item always fits, however long it is.
    pub(super) fn fits(&self, item: Load) -> bool {
        self.waiting.items == 0 || self.fits_more(item)
    }

    /// Whether items fit beside those that wait.
    pub(super) fn fits_more(&self, items: Load) -> bool {
        let mut all = self.waiting;
        all += items;
        all.frames <= self.limits.frames && all.memory() <= self.limits.bytes
    }

    /// Whether at most half of each limit is used.
    pub(super) fn is_roomy(&self) -> bool {
        self.waiting.items == 0
            || (self.waiting.frames <= self.limits.frames / 2
                && self.waiting.memory() <= self.limits.bytes / 2)
    }

    /// Takes an item. True if no item waited before it.
    pub(super) fn take(&mut self, item: Load) -> Result<bool, Refused> {
        if !self.is_open() {
            return Err(Refused::Closed);
        }
        if !self.fits(item) {
            return Err(Refused::Full);
        }
        let first = self.waiting.items == 0;
        self.waiting += item;
        Ok(first)
    }

    /// Counts items that the system has taken.
    pub(super) fn count_sent(&mut self, items: Load) -> Tell {
        self.sent += items;
        self.leave(items)
    }

    /// Counts items that were dropped to make room for another one. That one is queued
    /// next, so the watcher is not told before it is sent.
    pub(super) fn count_dropped(&mut self, items: Load) -> Tell {
        self.dropped += items.frames;
        let watch = self.watch.take();
        let tell = self.leave(items);
        self.watch = watch;
        tell
    }

    /// Counts an item that was not taken because there was no room for it.
    pub(super) fn count_refused(&mut self, item: Load) {
        self.dropped += item.frames;
    }

    /// Counts an item that came after the way out was closed.
    pub(super) fn count_late(&mut self, item: Load) {
        self.lost += item.frames;
    }

    /// Counts items that will not be sent because the connection is over.
    pub(super) fn count_lost(&mut self, items: Load) -> Tell {
        self.lost += items.frames;
        self.leave(items)
    }

    /// Takes items out of the count of waiting ones. Sleepers are told when the queue
    /// drains to half of its limits and when it becomes empty, not for every batch.
    fn leave(&mut self, items: Load) -> Tell {
        let was_roomy = self.is_roomy();
        self.waiting -= items;
        let empty = self.waiting.items == 0;
        let reached = self.watch.is_some_and(|level| self.is_within(level));
        Tell {
            sleepers: self.sleepers > 0 && (empty || (!was_roomy && self.is_roomy())),
            watcher: self.watch.take_if(|_| reached).is_some(),
            writer: self.may_finish(),
        }
    }

    fn is_within(&self, level: Level) -> bool {
        self.waiting.items == 0
            || (self.waiting.memory() <= level.memory && self.waiting.frames <= level.frames)
    }

    /// Asks to be told once when the queue takes at most `memory` bytes and half of
    /// the allowed frames, or is empty. False if that is so already.
    pub(super) fn watch(&mut self, memory: u64) -> bool {
        let level = Level {
            memory,
            frames: self.limits.frames / 2,
        };
        let reached = self.is_within(level);
        self.watch = (!reached).then_some(level);
        !reached
    }

    /// Whether an item fits and all items together take at most `mark` bytes of
    /// memory. A single item always fits. A closed way out has room, since it
    /// refuses each item at once and no sender needs to wait.
    pub(super) fn has_room(&self, item: Load, mark: u64) -> bool {
        let fits = self.fits_more(item) && self.waiting.memory() + item.memory() <= mark;
        self.waiting.items == 0 || fits || !self.is_open()
    }

    /// As [`has_room`](Self::has_room). If there is no room, the watcher is told when
    /// the queue is some way below the mark, and not for each batch.
    pub(super) fn ask_for_room(&mut self, item: Load, mark: u64) -> bool {
        let room = self.has_room(item, mark);
        if !room {
            // This level is not reached yet: without room, more waits than this.
            let (memory, frames) = (mark.min(self.limits.bytes), self.limits.frames);
            let low = memory - STEP.min(memory / 2);
            self.watch = Some(Level {
                memory: low.min(memory.saturating_sub(item.memory())),
                frames: (frames / 2).min(frames.saturating_sub(item.frames)),
            });
        }
        room
    }

    /// Takes no further items.
    pub(super) fn close(&mut self) {
        if self.is_open() {
            self.phase = Phase::Closing;
        }
    }

    /// Notes that the peer has been told of the end.
    pub(super) fn drained(&mut self) {
        if matches!(self.phase, Phase::Closing) {
            self.phase = Phase::Drained;
        }
    }

    /// Ends everything at once.
    pub(super) fn abort(&mut self) {
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

    /// Notes that the writer has bytes of the reader to send. True if the writer has
    /// to be nudged for that.
    pub(super) fn ask_to_flush(&mut self) -> bool {
        self.flush = true;
        self.nudge()
    }

    /// True if no nudge is on its way to the writer yet.
    pub(super) fn nudge(&mut self) -> bool {
        !std::mem::replace(&mut self.nudged, true)
    }

    /// A nudge has arrived.
    pub(super) fn heard_nudge(&mut self) {
        self.nudged = false;
    }

    /// Whether the reader left bytes for the socket since the last call.
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
        Ledger::new(Limits { frames, bytes })
    }

    #[test]
    fn frames_and_memory_are_bounded_and_one_item_may_always_wait_alone() {
        let mut books = ledger(3, 1000);
        assert_eq!(books.take(item(5000)), Ok(true));
        assert_eq!(books.take(item(0)), Err(Refused::Full));
        assert!(books.count_sent(item(5000)) == Tell::default());
        for n in 0..3 {
            assert_eq!(books.take(item(1)), Ok(n == 0));
        }
        assert_eq!(books.take(item(1)), Err(Refused::Full), "three frames wait");
        assert_eq!(books.waiting().frames, 3);
        assert_eq!(books.sent(), item(5000));
    }

    #[test]
    fn short_items_count_with_the_memory_that_they_take() {
        let mut books = ledger(u64::MAX, 10_000);
        let mut taken = 0;
        while books.take(item(8)).is_ok() {
            taken += 1;
        }
        assert!((50..100).contains(&taken), "{taken} items of 8 bytes in 10,000");
    }

    #[test]
    fn sleepers_are_told_at_half_and_at_nothing_and_the_watcher_once() {
        let mut books = ledger(u64::MAX, 8000);
        for _ in 0..7 {
            books.take(item(872)).unwrap();
        }
        books.sleepers = 1;
        assert!(books.watch(3000));
        let mut told = Vec::new();
        for _ in 0..7 {
            let tell = books.count_sent(item(872));
            told.push((tell.sleepers, tell.watcher));
        }
        assert_eq!(
            told,
            [
                (false, false),
                (false, false),
                (true, false),
                (false, true),
                (false, false),
                (false, false),
                (true, false)
            ]
        );
        assert!(!books.watch(0), "nothing waits");
    }

    #[test]
    fn who_finds_no_room_is_told_when_there_is() {
        // Less than half of the mark is taken, and the item is longer than the
        // rest; or the frames are what is short.
        for (mut books, next) in [(ledger(u64::MAX, 8000), item(3000)), (ledger(2, 8000), item(1))] {
            books.take(item(872)).unwrap();
            books.take(item(372)).unwrap();
            assert!(!books.ask_for_room(next, 4000));
            assert!(books.count_sent(item(872)).watcher);
            assert!(books.ask_for_room(next, 4000));
        }
    }

    #[test]
    fn every_item_is_waiting_sent_dropped_or_lost() {
        let mut books = ledger(100, u64::MAX);
        for _ in 0..4 {
            books.take(item(10)).unwrap();
        }
        let _ = books.count_sent(item(10));
        let _ = books.count_dropped(item(10));
        books.abort();
        let _ = books.count_lost(item(10));
        assert_eq!(
            (books.waiting(), books.sent(), books.lost()),
            (item(10), item(10), 1)
        );
        assert_eq!(books.take(item(1)), Err(Refused::Closed));
    }

    #[test]
    fn a_close_waits_for_what_was_taken_and_an_end_is_final() {
        let mut books = ledger(100, 1000);
        books.take(item(1)).unwrap();
        books.close();
        assert!(!books.may_finish());
        let _ = books.count_sent(item(1));
        assert!(books.may_finish());
        books.drained();
        assert!(matches!(books.phase(), Phase::Drained));
        books.abort();
        books.fail(io::ErrorKind::BrokenPipe.into());
        assert!(matches!(books.phase(), Phase::Closed), "an abort is no failure");
        let mut books = ledger(1, 1);
        books.fail(io::ErrorKind::BrokenPipe.into());
        books.abort();
        books.close();
        assert!(matches!(books.phase(), Phase::Failed(_)));
    }

    #[test]
    fn one_nudge_at_a_time() {
        let mut books = ledger(1, 1);
        assert!(books.ask_to_flush());
        assert!(!books.nudge());
        books.heard_nudge();
        assert!(books.take_flush() && !books.take_flush());
        assert!(books.nudge());
    }

    #[test]
    fn a_level_is_reached_by_memory_and_by_frames() {
        let mut books = ledger(10, 100_000);
        for _ in 0..10 {
            books.take(item(0)).unwrap();
        }
        assert!(!books.has_room(item(0), u64::MAX));
        assert!(books.watch(u64::MAX), "more than half of the frames wait");
        let told: Vec<_> = (0..10).map(|_| books.count_sent(item(0)).watcher).collect();
        assert_eq!(told.iter().position(|told| *told), Some(4));
        assert_eq!(told.iter().filter(|told| **told).count(), 1);
    }

    #[test]
    fn who_asked_for_room_is_told_once_its_item_fits_and_half_of_the_mark_is_free() {
        // Of ten items of 1000 each, so many are sent before the watcher is told.
        let told_after = |books: &mut Ledger, wanted: Load, mark: u64| {
            for _ in 0..10 {
                books.take(item(872)).unwrap();
            }
            assert!(!books.ask_for_room(wanted, mark));
            let told = (1..=10).find(|_| books.count_sent(item(872)).watcher);
            assert!(books.has_room(wanted, mark), "it has room when it is told");
            told
        };
        let (short, long) = (item(872), item(7872));
        assert_eq!(told_after(&mut ledger(100, 20_000), short, 10_000), Some(5));
        assert_eq!(told_after(&mut ledger(100, 20_000), long, 10_000), Some(8));
        assert_eq!(told_after(&mut ledger(100, 20_000), long, 5000), Some(10));
        assert_eq!(told_after(&mut ledger(100, 10_000), short, u64::MAX), Some(5));
        assert_eq!(told_after(&mut ledger(10, 20_000), short, u64::MAX), Some(5));
        let many = Load { frames: 8, ..short };
        assert_eq!(told_after(&mut ledger(10, 20_000), many, u64::MAX), Some(8));
    }

    #[test]
    fn a_drop_leaves_the_watcher_to_the_next_item_that_is_sent() {
        let mut books = ledger(100, 1000);
        books.take(item(100)).unwrap();
        books.take(item(100)).unwrap();
        assert!(books.watch(300));
        assert!(!books.count_dropped(item(100)).watcher);
        assert!(books.count_sent(item(100)).watcher);
        assert_eq!(books.dropped(), 1);
        books.count_refused(item(1));
        assert_eq!(books.dropped(), 2);
    }

    #[test]
    fn the_writer_is_told_when_the_last_item_of_a_close_has_left() {
        let mut books = ledger(100, 1000);
        books.take(item(1)).unwrap();
        books.take(item(1)).unwrap();
        books.close();
        assert!(!books.count_sent(item(1)).writer && books.count_sent(item(1)).writer);
    }
}
