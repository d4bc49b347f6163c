//! The outbox of one connection: items that wait to be sent, the thread that sends them, and the
//! end of sending.
//!
//! ```text
//!  push ──▶ Ledger: accepted, or Full, or Closed
//!             │ accepted
//!             ├──────────────────────▶ channel ──▶ writer thread ─┐ next, sent
//!             │                                                   ▼
//!             └ at once: nothing waited before it ──▶ Sending (Transmit) ──▶ socket
//! ```
//!
//! It has three parts:
//!
//! * The `Ledger`, under a lock, counts exactly the items that wait, and has the phase of the
//!   outbox. Every item passes it twice: when the queue accepts it, and when it is written to the
//!   system (or dropped, or lost).
//! * A channel carries items from the senders to the writer thread. Its entries are pointers, so
//!   an empty channel keeps half a kibibyte at most. It is unbounded, because the ledger refuses
//!   items beyond the limits. An empty entry (`None`) is a nudge: the writer reads the ledger.
//! * `Sending`, under a second lock, writes to the socket. The writer holds the lock while it
//!   writes, which may block. Other threads only try the lock.
//!
//! # Why order holds
//!
//! The items of one thread leave in the order in which it pushed them:
//!
//! 1. Items in the channel are sent by one thread, the writer, in order.
//! 2. An item bypasses the channel only if the ledger counted no waiting item when it accepted
//!    it. The system has then taken all earlier items of the same thread.
//! 3. If the system takes only a part of such an item, `Sending` keeps the rest, and the item
//!    still counts as waiting. So later items go through the channel, and the writer sends the
//!    rest before them.
//!
//! The order of items that two threads push at the same time is not defined.
//!
//! # Words
//!
//! An item is *accepted* by the queue (or refused), *picked up* from the channel by the
//! writer, and *written* once the system has all of it. It waits from the first of these
//! until the last.

mod counters;
mod ledger;
#[cfg(test)]
pub(super) mod tests;
mod waits;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};

use crossbeam_channel::{Receiver, Sender};

pub use self::counters::{OutboxCounters, OutboxFigures};
use self::ledger::{Ledger, Notify, Phase, Refused};
use crate::budget::Budget;
use crate::guard::guard;
use crate::host::{locked, locked_again};
use crate::stream::{Load, Outgoing, Transmit, Tried};

/// The limits of one connection's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of frames. Default: 8,388,608, which is 64 MiB of frames without payload.
    pub frames: u64,
    /// Bytes of memory: the length of the frames, and 128 more for each item in the
    /// queue, which is one frame or several that were sent together. Default: 64 MiB.
    /// An item may always wait alone, however long it is.
    pub bytes: u64,
}

impl Limits {
    /// No limits.
    pub const NONE: Self = Self {
        frames: u64::MAX,
        bytes: u64::MAX,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            frames: 1 << 23,
            bytes: 64 << 20,
        }
    }
}

/// The reason why [`Outbox::push`] refused an item, with that item.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// A limit is reached.
    #[error("the queue is full")]
    Full(Outgoing),
    /// The connection is closed or closing.
    #[error("the connection is closed")]
    Closed(Outgoing),
}

/// A batch ends at this many bytes: some sixteen TLS records, which are written four at a time.
const BATCH_BYTES: u64 = 256 * 1024;
/// A batch ends at this many items, which bounds its memory if the frames are tiny.
const BATCH_ITEMS: usize = 2048;

/// The outbox of one connection.
///
/// # Threads
/// A clone is another handle. `push` never blocks and may be called from any thread; the items
/// of one thread keep their order.
#[derive(Clone, Debug)]
pub struct Outbox {
    shared: Arc<OutboxState>,
}

#[derive(Debug)]
struct OutboxState {
    ledger: Mutex<Ledger>,
    /// Notified when the ledger changes, if a thread sleeps on it.
    changed: Condvar,
    entrance: Sender<Place>,
    exit: Receiver<Place>,
    sending: Mutex<Option<Sending>>,
    /// The bytes that were written to the system, including those of an item that was written in
    /// part.
    written: Arc<AtomicU64>,
    budget: Budget,
}

/// An entry of the channel: an item, or a nudge.
type Place = Option<Box<Outgoing>>;

/// The sending direction, which writes to the socket.
#[derive(Debug)]
struct Sending {
    transmit: Box<dyn Transmit>,
    /// An item that was written in part; `transmit` keeps the rest.
    begun: Option<Load>,
}

/// The next work of the writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// The size of the batch.
    pub(super) batch: Load,
    /// The reader has left bytes, such as answers of TLS, that are to be written to the socket.
    pub(super) flush: bool,
    /// See [`Outbox::allow_unsent`].
    unsent: Option<u64>,
    /// The outbox was aborted or has failed, so the writer ends at once.
    pub over: bool,
}

impl Outbox {
    /// An empty outbox with a limit of its own.
    pub fn new(limits: Limits) -> Self {
        Self::within(limits, Budget::unlimited())
    }

    /// An empty outbox whose memory counts in a budget.
    pub fn within(limits: Limits, budget: Budget) -> Self {
        // Unbounded, because the ledger refuses items beyond the limits.
        let (entrance, exit) = crossbeam_channel::unbounded();
        Self {
            shared: Arc::new(OutboxState {
                ledger: Mutex::new(Ledger::new(limits, budget.clone())),
                changed: Condvar::new(),
                entrance,
                exit,
                sending: Mutex::new(None),
                written: Arc::default(),
                budget,
            }),
        }
    }

    /// Queues an item if the outbox is empty, or if less memory and fewer frames than `mark` wait. So one
    /// item may exceed the mark. Never blocks.
    ///
    /// If `at_once` is set and no item waits, this thread itself writes as much of a short item as
    /// the system takes without blocking, and wakes the writer only for the rest. Waking a thread
    /// takes longer than sealing and writing a short item, so this is for callers that have
    /// nothing else to do.
    ///
    /// # Errors
    /// [`PushError`] with the item if the mark is reached or the connection ends.
    pub fn push(&self, item: Outgoing, mark: Limits, at_once: bool) -> Result<(), PushError> {
        match self.accept(&item, mark) {
            Ok(is_first) if at_once => self.send_at_once(item, is_first),
            Ok(_) => self.enqueue(item),
            Err(Refused::Full) => return Err(PushError::Full(item)),
            Err(Refused::Closed) => return Err(PushError::Closed(item)),
        }
        Ok(())
    }

    fn send_at_once(&self, item: Outgoing, is_first: bool) {
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
    fn accept(&self, item: &Outgoing, mark: Limits) -> Result<bool, Refused> {
        interleave();
        self.ledger().accept(item.load(), mark)
    }

    fn enqueue(&self, item: Outgoing) {
        // Boxed, so that the blocks of an empty channel stay small.
        // This outbox holds both ends, so the channel is never disconnected.
        let _ = self.shared.entrance.send(Some(Box::new(item)));
    }

    fn nudge(&self) {
        if self.ledger().nudge() {
            let _ = self.shared.entrance.send(None);
        }
    }

    /// Writes as much of the item as possible without blocking.
    fn try_send(&self, item: &Outgoing) -> Tried {
        let mut sending = match self.shared.sending.try_lock() {
            Ok(sending) => sending,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // The writer is sending.
            Err(TryLockError::WouldBlock) => return Tried::Not,
        };
        let Some(Sending {
            transmit,
            begun: begun @ None,
        }) = &mut *sending
        else {
            return Tried::Not;
        };
        // A panic in one connection must not end the dispatcher, which serves all.
        let tried = guard(|| transmit.try_transmit(item));
        match tried {
            Ok(Tried::Begun) => *begun = Some(item.load()),
            // Counted before the lock is released: at the end of a connection `sending` is taken
            // away before the remaining items are counted as lost, so no item is counted twice.
            // No item waited, so no report of room can be due.
            Ok(Tried::Sent) => {
                self.count_sent(item.load());
            }
            Ok(Tried::Not) => {}
            Ok(Tried::Failed) | Err(_) => *sending = None,
        }
        tried.unwrap_or(Tried::Failed)
    }

    /// Has the writer report room once, by the `room` of [`send`](Self::send), when `left` bytes of
    /// memory in all have [`left`](Self::left) the queue, or no item waits. Only the last request counts.
    /// False if that is so already; then there is no report.
    pub fn request_room(&self, left: u64) -> bool {
        interleave();
        self.ledger().request_room(left)
    }

    /// Lets the system keep this many bytes unsent from the next batch of the writer on, see
    /// [`Duplex::allow_unsent`](crate::socket::Duplex::allow_unsent).
    pub(super) fn allow_unsent(&self, bytes: u64) {
        self.ledger().unsent = Some(bytes);
    }

    /// The budget in which the queue's memory counts.
    pub(super) fn budget(&self) -> &Budget {
        &self.shared.budget
    }

    /// The memory of all items that were accepted and wait no more, and the items that wait.
    pub fn left(&self) -> (u64, Load) {
        let ledger = self.ledger();
        (ledger.left, ledger.waiting)
    }

    /// Counts an item that was dropped for lack of room, see [`OutboxFigures`].
    pub fn count_refused(&self, item: Load) {
        self.ledger().count_refused(item);
    }

    /// Counts an item that is lost because it came after the close, see [`OutboxFigures`].
    pub fn count_late(&self, item: Load) {
        self.ledger().count_late(item);
    }

    /// A handle for a core that shows the counters of this outbox.
    pub fn counters(&self) -> OutboxCounters {
        OutboxCounters(self.clone())
    }

    /// The items that were accepted and are not completely written yet.
    pub fn waiting(&self) -> Load {
        self.ledger().waiting
    }

    /// The items that were written to the system.
    pub fn sent(&self) -> Load {
        self.ledger().sent
    }

    /// As [`sent`](Self::sent), but with the bytes of an item that was written in part.
    pub fn progress(&self) -> Load {
        let sent = self.sent();
        Load {
            bytes: sent.bytes.max(self.shared.written.load(Ordering::Relaxed)),
            ..sent
        }
    }

    /// The number of frames that will never be sent because the connection has ended, see
    /// [`OutboxFigures`]. Final once the connection has ended. Dropped frames are not included.
    pub fn lost(&self) -> u64 {
        self.ledger().lost
    }

    /// Makes the writer send all waiting items and then end the stream. Later pushes are refused.
    pub fn close(&self) {
        self.change(Ledger::close);
    }

    /// True if it is closed or closing.
    pub fn is_closed(&self) -> bool {
        !self.ledger().is_open()
    }

    /// Makes the writer end at once. Waiting items are lost.
    pub fn abort(&self) {
        self.change(Ledger::abort);
    }

    /// Ends the outbox because writing failed.
    pub fn fail(&self, error: io::Error) {
        self.change(|ledger| ledger.fail(error));
    }

    /// Notes that all items were sent and the end has been sent to the peer.
    pub fn drained(&self) {
        self.change(Ledger::drained);
    }

    /// Changes the phase and wakes all waiting threads, the writer included.
    fn change(&self, change: impl FnOnce(&mut Ledger)) {
        let _ = self.notify(|ledger| {
            change(ledger);
            Notify {
                sleepers: ledger.sleepers > 0,
                ..Notify::default()
            }
        });
        self.nudge();
    }

    /// True if it was aborted or has failed.
    pub fn is_over(&self) -> bool {
        self.ledger().is_over()
    }

    /// The error of writing, if writing failed.
    pub fn failure(&self) -> Option<io::Error> {
        match &self.ledger().phase {
            Phase::Failed(error) => Some(io::Error::new(error.kind(), error.to_string())),
            _ => None,
        }
    }

    /// Makes the writer send bytes that the reader has left, such as answers of TLS.
    pub(super) fn flush(&self) {
        if self.ledger().ask_to_flush() {
            let _ = self.shared.entrance.send(None);
        }
    }

    /// Sets the sending direction.
    pub fn open(&self, mut transmit: Box<dyn Transmit>) {
        transmit.count_in(Arc::clone(&self.shared.written));
        *self.sending() = Some(Sending {
            transmit,
            begun: None,
        });
    }

    /// Drops the sending direction with its buffers and TLS keys, because no more is sent.
    pub fn shut(&self) {
        // Dropped after the lock is released.
        let _sending = self.sending().take();
    }

    /// Drops all waiting items, so that an ended connection holds no memory. An item that was
    /// written in part is lost as well.
    pub fn discard(&self) {
        while self.shared.exit.try_recv().is_ok() {}
        // The ledger also counts an item whose sender has not put it into the channel yet.
        let mut unsent = Load::default();
        let _ = self.notify(|ledger| {
            unsent = ledger.waiting;
            ledger.count_lost(unsent)
        });
        self.shared.budget.give(unsent.memory());
    }

    /// Waits until there is work, and moves a batch of items into `batch`.
    pub(super) fn next(&self, batch: &mut Vec<Outgoing>) -> Due {
        // This outbox holds both ends, so the channel is never disconnected.
        self.gather(self.shared.exit.recv().ok(), batch)
    }

    /// As `next`, but does not wait. `None` if there is no work.
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
        // Reset even if a nudge is still in the channel: the writer reads the ledger now.
        ledger.reset_nudge();
        due.flush = ledger.take_flush();
        due.unsent = ledger.unsent.take();
        due.over = ledger.is_over();
        due
    }

    /// Sends a batch. True once the end has been sent to the peer. Calls `room` if a report of
    /// room was requested and is due.
    pub fn send(&self, due: Due, batch: &mut Vec<Outgoing>, room: &dyn Fn()) -> io::Result<bool> {
        let mut sending = self.sending();
        let Some(Sending { transmit, begun }) = &mut *sending else {
            return Err(io::Error::other("sending failed on another thread"));
        };
        // The rest of an item that bypassed the writer comes first: rule 3 of the module.
        if let Some(load) = *begun {
            transmit.flush()?;
            *begun = None;
            self.sent_by_writer(load, room);
        }
        if let Some(bytes) = due.unsent {
            transmit.allow_unsent(bytes);
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

    /// Gives buffers back, because there is nothing to send at present.
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

    /// True if a report of room is due.
    fn count_sent(&self, items: Load) -> bool {
        let notify = self.notify(|ledger| ledger.count_sent(items));
        self.shared.budget.give(items.memory());
        notify.dispatcher
    }

    fn notify(&self, change: impl FnOnce(&mut Ledger) -> Notify) -> Notify {
        let notify = change(&mut self.ledger());
        if notify.sleepers {
            self.shared.changed.notify_all();
        }
        // An item that bypassed the writer may be the last one of a closing outbox. The writer saw
        // the close while that item still waited, so it has to read the ledger again.
        if notify.writer {
            self.nudge();
        }
        notify
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        locked(&self.shared.ledger)
    }

    fn sending(&self) -> MutexGuard<'_, Option<Sending>> {
        locked(&self.shared.sending)
    }
}

impl Drop for OutboxState {
    /// Returns the memory of waiting items to the budget. If the threads of the connection never
    /// started, those items were not discarded.
    fn drop(&mut self) {
        let waiting = locked_again(self.ledger.get_mut()).waiting;
        self.budget.give(waiting.memory());
    }
}

/// A point at which a simulation runs other threads, because in a process they may run between any
/// two accesses to the ledger.
#[cfg(not(debug_assertions))]
fn interleave() {}
#[cfg(debug_assertions)]
use self::interleaving::interleave;
#[cfg(debug_assertions)]
pub mod interleaving;
