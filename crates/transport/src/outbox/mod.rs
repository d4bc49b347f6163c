//! The way out of one connection: what waits, who sends it, and when it ends.
//!
//! ```text
//!  push ──▶ Ledger: accepted, or Full, or Closed
//!             │ accepted
//!             ├──────────────────────▶ channel ──▶ writer thread ─┐ next, sent
//!             │                                                   ▼
//!             └ at once: nothing waited before it ──▶ Sending (Transmit) ──▶ socket
//! ```
//!
//! Three parts, each with one job:
//!
//! * The `Ledger`, under a lock, counts exactly what waits and knows the phase
//!   of the way out. Every item passes it twice: when the queue accepts it, and
//!   when it is written to the system (or is dropped, or lost).
//! * A channel carries items from the senders to the writer thread. Its entries
//!   are pointers, so that the block of entries that an empty channel keeps
//!   takes half a kibibyte at most. The channel
//!   is unbounded, because the ledger refuses items beyond the limits. An empty
//!   entry (`None`) is a nudge: the writer looks at the ledger.
//! * `Sending`, under a second lock, puts bytes on the socket. The writer holds
//!   the lock while it writes, which may block. Other threads only try the lock.
//!
//! # Why order holds
//!
//! The items of one thread leave in the order in which it pushed them:
//!
//! 1. Items in the channel are sent by one thread, the writer, in order.
//! 2. An item bypasses the channel only if the ledger counted nothing as
//!    waiting when it accepted the item. All earlier items of the same thread have
//!    then left the count, so the system has all of them.
//! 3. If the system takes only a part of such an item, its rest stays with
//!    `Sending`, and the item stays in the count. So later items go through
//!    the channel, and the writer sends a rest before anything else.
//!
//! The order of items that two threads push at the same time is not defined.
//!
//! # Words
//!
//! An item is *accepted* by the queue (or refused), *picked up* from the channel by the
//! writer, and *written* once the system has all of it. It waits from the first of these
//! until the last.

mod gauge;
mod ledger;
#[cfg(test)]
pub(super) mod tests;
mod waits;

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};

pub use self::gauge::{Books, Gauge};
use self::ledger::{Ledger, Phase, Refused, Tell};
use crate::budget::Budget;
use crate::stream::{Load, Outgoing, Transmit, Tried};

/// How much may wait for one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Frames. Default: 8,388,608, which is 64 MiB of frames without payload.
    pub frames: u64,
    /// Bytes of memory: the length of the frames, and 128 more for each item in the
    /// queue, which is one frame or several that were sent together. Default: 64 MiB.
    /// An item may always wait alone, however long it is.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            frames: 1 << 23,
            bytes: 64 << 20,
        }
    }
}

/// Why [`Outbox::push`] refused an item. The item comes back.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// A limit is reached.
    #[error("the queue is full")]
    Full(Outgoing),
    /// The connection is closed or closing.
    #[error("the connection is closed")]
    Closed(Outgoing),
}

/// A batch ends once it holds so many bytes: some sixteen TLS records, which
/// go to the system four at a time, with no short ones between.
const BATCH_BYTES: u64 = 256 * 1024;
/// And so many items, which bounds the memory of batches of tiny frames.
const BATCH_ITEMS: usize = 2048;

/// The way out of one connection.
///
/// # Threads
/// A clone is another handle. `push` never blocks and may be called from any
/// thread; what one thread pushes keeps its order.
#[derive(Clone)]
pub struct Outbox {
    shared: Arc<OutboxState>,
}

struct OutboxState {
    ledger: Mutex<Ledger>,
    /// Rung for the ledger's sleepers.
    changed: Condvar,
    entrance: Sender<Place>,
    exit: Receiver<Place>,
    sending: Mutex<Option<Sending>>,
    /// How many bytes were written to the system, including those of an item of which only
    /// a part was written.
    written: Arc<AtomicU64>,
    budget: Budget,
}

/// An entry of the channel: an item, or a nudge.
type Place = Option<Box<Outgoing>>;

/// The sending direction, which puts bytes on the socket.
#[derive(Debug)]
struct Sending {
    transmit: Box<dyn Transmit>,
    /// An item of which only a part was written; `transmit` keeps the rest.
    begun: Option<Load>,
}

/// What the writer has to do next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// The size of the batch.
    pub(super) batch: Load,
    /// The reader has produced bytes that the peer must get, such as answers of TLS. They
    /// are to be written to the socket.
    pub(super) flush: bool,
    /// The way out was aborted or has failed, so the writer ends at once.
    pub over: bool,
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("ledger", &*self.ledger()).finish()
    }
}

impl Outbox {
    /// An empty way out with a limit of its own.
    pub fn new(limits: Limits) -> Self {
        Self::within(limits, Budget::unlimited())
    }

    /// An empty way out whose memory counts in a budget.
    pub fn within(limits: Limits, budget: Budget) -> Self {
        let (entrance, exit) = crossbeam_channel::unbounded();
        Self {
            shared: Arc::new(OutboxState {
                ledger: Mutex::new(Ledger::new(limits)),
                changed: Condvar::new(),
                entrance,
                exit,
                sending: Mutex::new(None),
                written: Arc::default(),
                budget,
            }),
        }
    }

    /// Queues an item. Never blocks.
    ///
    /// # Errors
    /// [`PushError`] with the item when a limit is reached or the connection
    /// ends.
    pub fn push(&self, item: Outgoing) -> Result<(), PushError> {
        match self.take(&item, Ledger::take) {
            Ok(_) => {
                self.enqueue(item);
                Ok(())
            }
            Err(refused) => Err(refused.with(item)),
        }
    }

    /// As [`push`](Self::push), but takes the item only if less than `mark` bytes of memory
    /// wait and less than half of the allowed frames. One item may exceed the mark.
    ///
    /// With `at_once`, and if nothing waits, this thread itself sends as much as the system
    /// takes without blocking, and wakes the writer only for the rest. Waking a thread takes
    /// longer than sealing and writing a short item, so this is for callers that have nothing
    /// else to do. Long items are queued.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_below(&self, item: Outgoing, mark: u64, at_once: bool) -> Result<(), PushError> {
        match self.take(&item, |ledger, load| ledger.take_below(load, mark)) {
            Ok(is_first) if at_once => self.send_now(item, is_first),
            Ok(_) => self.enqueue(item),
            Err(refused) => return Err(refused.with(item)),
        }
        Ok(())
    }

    fn send_now(&self, item: Outgoing, is_first: bool) {
        // Rule 2 of the module: only if nothing waited.
        let tried = if is_first {
            self.try_send(&item)
        } else {
            Tried::Not
        };
        match tried {
            Tried::Sent => {}
            // Rule 3: the item stays in the count.
            Tried::Begun => self.nudge(),
            // After a failure the writer finds nothing to send with, and ends.
            Tried::Not | Tried::Failed => self.enqueue(item),
        }
    }

    /// Counts an item as waiting. True if no item waited before it.
    fn take(
        &self,
        item: &Outgoing,
        take: impl FnOnce(&mut Ledger, Load) -> Result<bool, Refused>,
    ) -> Result<bool, Refused> {
        interleave();
        let load = item.load();
        let mut ledger = self.ledger();
        let first = take(&mut ledger, load)?;
        // Under the ledger's lock, so that the budget is never given back before it
        // was taken.
        self.shared.budget.take(load.memory());
        Ok(first)
    }

    fn enqueue(&self, item: Outgoing) {
        // This outbox holds both ends, so the channel is never disconnected.
        let _ = self.shared.entrance.send(Some(Box::new(item)));
    }

    fn nudge(&self) {
        if self.ledger().nudge() {
            let _ = self.shared.entrance.send(None);
        }
    }

    /// Sends as much as possible without blocking.
    fn try_send(&self, item: &Outgoing) -> Tried {
        let mut sending = match self.shared.sending.try_lock() {
            Ok(sending) => sending,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // The writer is just sending.
            Err(TryLockError::WouldBlock) => return Tried::Not,
        };
        let Some(Sending {
            transmit,
            begun: begun @ None,
        }) = &mut *sending
        else {
            return Tried::Not;
        };
        // A fault in one connection must not end the thread that serves all.
        let tried = catch_unwind(AssertUnwindSafe(|| transmit.try_transmit(item)));
        match tried {
            Ok(Tried::Begun) => *begun = Some(item.load()),
            // Counted before the lock is released: the end of a connection first
            // takes `sending` away and then counts the remaining items as lost, so
            // no item is counted twice. Nothing waited, so no caller has asked to be
            // told of room.
            Ok(Tried::Sent) => {
                self.count_sent(item.load());
            }
            Ok(Tried::Not) => {}
            Ok(Tried::Failed) | Err(_) => *sending = None,
        }
        tried.unwrap_or(Tried::Failed)
    }

    /// Asks the writer to tell the dispatcher once, by the `room` of [`send`](Self::send),
    /// when so much memory in all has [`left`](Self::left) the queue, or nothing waits. Only
    /// the last request counts. Returns false if that is so already: then nothing is told.
    pub fn ask(&self, left: u64) -> bool {
        interleave();
        self.ledger().ask(left)
    }

    /// The budget in which its memory counts.
    pub(super) fn budget(&self) -> &Budget {
        &self.shared.budget
    }

    /// The memory of all items that were accepted and do not wait any more, and the items
    /// that wait.
    pub fn left(&self) -> (u64, Load) {
        let ledger = self.ledger();
        (ledger.left(), ledger.waiting())
    }

    /// Counts an item that was not accepted for lack of room as dropped, see [`Books`].
    pub fn count_refused(&self, item: Load) {
        self.ledger().count_refused(item);
    }

    /// Counts an item that came after the connection was closed as lost, see [`Books`].
    pub fn count_late(&self, item: Load) {
        self.ledger().count_late(item);
    }

    /// A handle for a core that shows the figures of this way out.
    pub fn gauge(&self) -> Gauge {
        Gauge(self.clone())
    }

    /// The items that were accepted and are not completely written yet.
    pub fn waiting(&self) -> Load {
        self.ledger().waiting()
    }

    /// The items that were written to the system.
    pub fn sent(&self) -> Load {
        self.ledger().sent()
    }

    /// As [`sent`](Self::sent), but the bytes include those of an item of
    /// which only a part was written.
    pub fn progress(&self) -> Load {
        let sent = self.sent();
        Load {
            bytes: sent.bytes.max(self.shared.written.load(Ordering::Relaxed)),
            ..sent
        }
    }

    /// Frames that will never be sent because the connection has ended, see [`Books`].
    /// Final once the connection has ended. Dropped frames are not included.
    pub fn lost(&self) -> u64 {
        self.ledger().lost()
    }

    /// Makes the writer send all waiting items and then end the stream. Later pushes
    /// are refused.
    pub fn close(&self) {
        self.change(Ledger::close);
    }

    /// Whether it is closed or closing.
    pub fn is_closed(&self) -> bool {
        !self.ledger().is_open()
    }

    /// Makes the writer end at once. Waiting items are lost.
    pub fn abort(&self) {
        self.change(Ledger::abort);
    }

    /// Ends the way out because writing failed.
    pub fn fail(&self, error: io::Error) {
        self.change(|ledger| ledger.fail(error));
    }

    /// Notes that everything was sent and the peer has been told of the end.
    pub fn drained(&self) {
        self.change(Ledger::drained);
    }

    /// Changes the phase and wakes all waiting threads, the writer included.
    fn change(&self, change: impl FnOnce(&mut Ledger)) {
        let _ = self.tell(|ledger| {
            change(ledger);
            Tell {
                sleepers: ledger.sleepers > 0,
                ..Tell::default()
            }
        });
        self.nudge();
    }

    /// Whether it was aborted or has failed.
    pub fn is_over(&self) -> bool {
        self.ledger().is_over()
    }

    /// Why writing failed, if it failed.
    pub fn failure(&self) -> Option<io::Error> {
        match self.ledger().phase() {
            Phase::Failed(error) => Some(io::Error::new(error.kind(), error.to_string())),
            _ => None,
        }
    }

    /// Makes the writer send bytes that the reader has produced, such as answers of TLS.
    pub(super) fn flush(&self) {
        if self.ledger().ask_to_flush() {
            let _ = self.shared.entrance.send(None);
        }
    }

    /// Begins to send with `transmit`.
    pub fn open(&self, mut transmit: Box<dyn Transmit>) {
        transmit.count_in(Arc::clone(&self.shared.written));
        *self.sending() = Some(Sending {
            transmit,
            begun: None,
        });
    }

    /// Gives buffers and TLS keys back, because nothing will be sent any more.
    pub fn shut(&self) {
        // Dropped after the lock is released.
        let _sending = self.sending().take();
    }

    /// Drops all waiting items, so that a dead connection holds no memory. Items
    /// that were being written at the end are lost as well.
    pub fn discard(&self) {
        while self.shared.exit.try_recv().is_ok() {}
        let mut unsent = Load::default();
        let _ = self.tell(|ledger| {
            unsent = ledger.waiting();
            ledger.count_lost(unsent)
        });
        self.shared.budget.give(unsent.memory());
    }

    /// Waits until there is something to do, and moves a batch's worth of
    /// items into `batch`.
    pub(super) fn next(&self, batch: &mut Vec<Outgoing>) -> Due {
        // This outbox holds both ends, so the channel is never disconnected.
        self.gather(self.shared.exit.recv().ok(), batch)
    }

    /// As `next`, but does not wait. `None` if there is nothing to do.
    pub fn try_next(&self, batch: &mut Vec<Outgoing>) -> Option<Due> {
        let first = self.shared.exit.try_recv().ok()?;
        Some(self.gather(Some(first), batch))
    }

    fn gather(&self, first: Option<Place>, batch: &mut Vec<Outgoing>) -> Due {
        let (mut due, mut place) = (Due::default(), first);
        while let Some(entry) = place {
            if let Some(item) = entry {
                due.batch += item.load();
                batch.push(*item);
            }
            if due.batch.bytes >= BATCH_BYTES || batch.len() >= BATCH_ITEMS {
                break;
            }
            place = self.shared.exit.try_recv().ok();
        }
        let mut ledger = self.ledger();
        // Also while a nudge is still on its way: the writer looks at the ledger now.
        ledger.heard_nudge();
        due.flush = ledger.take_flush();
        due.over = ledger.is_over();
        due
    }

    /// Sends what is due. True once the peer has been told of the end. Calls `room`
    /// if the dispatcher asked to be told of room and there is room now.
    pub fn send(&self, due: Due, batch: &mut Vec<Outgoing>, room: &dyn Fn()) -> io::Result<bool> {
        let mut sending = self.sending();
        let Some(Sending { transmit, begun }) = &mut *sending else {
            return Err(io::Error::other("sending failed on another thread"));
        };
        if let Some(load) = *begun {
            transmit.flush()?;
            *begun = None;
            self.sent_by_writer(load, room);
        }
        if !batch.is_empty() {
            transmit.transmit(batch)?;
            batch.clear();
            self.sent_by_writer(due.batch, room);
        }
        if due.flush {
            transmit.flush()?;
        }
        if self.ledger().may_finish() {
            transmit.finish()?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Gives buffers back, because nothing is to be sent for now.
    pub fn idle(&self) {
        if let Some(sending) = &mut *self.sending() {
            sending.transmit.idle();
        }
    }

    fn sent_by_writer(&self, items: Load, room: &dyn Fn()) {
        if self.count_sent(items) {
            room();
        }
    }

    /// True if the dispatcher is to be told.
    fn count_sent(&self, items: Load) -> bool {
        let tell = self.tell(|ledger| ledger.count_sent(items));
        self.shared.budget.give(items.memory());
        tell.dispatcher
    }

    fn tell(&self, change: impl FnOnce(&mut Ledger) -> Tell) -> Tell {
        let tell = change(&mut self.ledger());
        if tell.sleepers {
            self.shared.changed.notify_all();
        }
        // An item that bypassed the writer may be the last one of a closing way out.
        // The writer saw the close while that item still waited, so it looks again.
        if tell.writer {
            self.nudge();
        }
        tell
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.shared.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sending(&self) -> MutexGuard<'_, Option<Sending>> {
        self.shared.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OutboxState {
    /// Gives the memory of waiting items back to the budget. If the threads of the
    /// connection never started, nobody has discarded those items.
    fn drop(&mut self) {
        let ledger = self.ledger.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.budget.give(ledger.waiting().memory());
    }
}

impl Refused {
    fn with(self, item: Outgoing) -> PushError {
        match self {
            Self::Full => PushError::Full(item),
            Self::Closed => PushError::Closed(item),
        }
    }
}

/// A point at which a simulation lets other threads act: in reality they may act between
/// any two looks at the ledger.
#[cfg(not(debug_assertions))]
fn interleave() {}
#[cfg(debug_assertions)]
use self::interleaving::interleave;
#[cfg(debug_assertions)]
pub mod interleaving;

#[expect(clippy::disallowed_methods, reason = "time limits of waits")]
pub(super) fn now() -> Instant {
    Instant::now()
}
