//! What a writer is told: items in their order, and to flush or to end.
//!
//! ```text
//!  producers ──▶ ┌ deque under a lock ┐ ──▶ the writer takes a batch at a time
//!       └ asleep? ──▶ bell: a channel that is disconnected ──▶ wakes the writer
//! ```
//!
//! Items don't go through the channel, for two reasons: a batch is taken under
//! one lock, and an idle queue holds no memory but one item's room, where a
//! channel of items holds a block of them. There is one for each session, and
//! most of them are idle. The bell is a channel without room, hung up anew each
//! time that the writer goes to sleep, and rung by dropping its sender: one with
//! room for a ring would take five times the memory for as long as the session
//! lasts.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::outbox::Outgoing;

/// A batch ends once it holds so many bytes: some sixteen TLS records, which
/// go to the system four at a time, with no short ones between.
const BATCH_BYTES: usize = 256 * 1024;
/// And so many items, which bounds the memory of batches of tiny frames.
const BATCH_ITEMS: usize = 2048;
/// Room for items that an idle queue keeps: a lone frame's.
const KEPT_ITEMS: usize = 1;

/// What the writer has to do next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// Frames and bytes of the batch.
    pub(super) frames: u64,
    pub(super) bytes: u64,
    /// The reader left something for the socket.
    pub(super) flush: bool,
    /// Nothing comes after the batch: tell the peer, end.
    pub(super) close: bool,
    /// End at once.
    pub(super) abort: bool,
}

/// Many producers, one writer. Unbounded: the outbox counts at its entrance.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Outgoing>,
    flush: bool,
    close: bool,
    abort: bool,
    /// The writer listens for this bell, or is about to.
    asleep: Option<Bell>,
}

/// Rings when it is dropped.
type Bell = Sender<Infallible>;

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, what: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        what(&mut state);
        let bell = state.asleep.take();
        drop(state);
        drop(bell);
    }

    pub(super) fn push(&self, item: Outgoing) {
        self.tell(|state| state.items.push_back(item));
    }

    pub(super) fn flush(&self) {
        self.tell(|state| state.flush = true);
    }

    /// The writer ends once it has sent what waits.
    pub(super) fn close(&self) {
        self.tell(|state| state.close = true);
    }

    /// The writer ends at once.
    pub(super) fn abort(&self) {
        self.tell(|state| state.abort = true);
    }

    /// Takes the oldest item out.
    pub(super) fn pop(&self) -> Option<Outgoing> {
        self.lock().items.pop_front()
    }

    /// Waits until there is something to do, and moves a batch's worth of
    /// items into `batch`.
    pub(super) fn next(&self, batch: &mut Vec<Outgoing>) -> Due {
        loop {
            let mut state = self.lock();
            if let Some(due) = state.take(batch) {
                return due;
            }
            state.items.shrink_to(KEPT_ITEMS);
            let heard = state.sleep();
            drop(state);
            // Nothing comes but the end of it.
            let _ = heard.recv();
        }
    }

    /// As [`next`](Self::next), but does not wait.
    pub(super) fn try_next(&self, batch: &mut Vec<Outgoing>) -> Option<Due> {
        self.lock().take(batch)
    }

    /// Waits until the link is aborted, for as long as that.
    pub(super) fn wait_for_abort(&self, deadline: Instant) {
        loop {
            let mut state = self.lock();
            if state.abort {
                return;
            }
            let heard = state.sleep();
            drop(state);
            if matches!(heard.recv_deadline(deadline), Err(RecvTimeoutError::Timeout)) {
                return;
            }
        }
    }

    /// Gives an empty queue's memory back.
    pub(super) fn release(&self) {
        let mut state = self.lock();
        if state.items.is_empty() {
            state.items = VecDeque::new();
        }
    }
}

impl State {
    /// Hangs a bell up for a writer that goes to sleep.
    fn sleep(&mut self) -> Receiver<Infallible> {
        let (bell, heard) = crossbeam_channel::bounded(0);
        self.asleep = Some(bell);
        heard
    }

    fn take(&mut self, batch: &mut Vec<Outgoing>) -> Option<Due> {
        if self.abort {
            return Some(Due {
                abort: true,
                ..Due::default()
            });
        }
        let (mut frames, mut bytes) = (0, 0);
        while bytes < BATCH_BYTES && batch.len() < BATCH_ITEMS {
            let Some(item) = self.items.pop_front() else { break };
            frames += u64::from(item.frames());
            bytes += item.len();
            batch.push(item);
        }
        let due = Due {
            frames,
            bytes: bytes as u64,
            flush: std::mem::take(&mut self.flush),
            close: self.close && self.items.is_empty(),
            abort: false,
        };
        let anything = !batch.is_empty() || due.flush || due.close;
        anything.then_some(due)
    }
}

/// Gives back what a batch took beyond an item.
pub(super) fn release(batch: &mut Vec<Outgoing>) {
    batch.shrink_to(KEPT_ITEMS);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(len: usize) -> Outgoing {
        Outgoing::whole(vec![0; len].into(), 1)
    }

    #[test]
    fn a_batch_is_bounded_and_the_end_comes_with_the_last_one() {
        let (queue, mut batch) = (Queue::default(), Vec::new());
        for _ in 0..3 {
            queue.push(item(BATCH_BYTES / 2));
        }
        queue.flush();
        queue.close();
        let due = queue.next(&mut batch);
        assert_eq!((due.frames, due.flush, due.close), (2, true, false));
        batch.clear();
        let due = queue.next(&mut batch);
        assert_eq!((due.frames, due.flush, due.close), (1, false, true));
    }

    #[test]
    fn a_writer_that_listens_hears_every_producer() {
        const EACH: u64 = 2000;
        let queue = std::sync::Arc::new(Queue::default());
        let producers: Vec<_> = (0..4)
            .map(|_| {
                let queue = std::sync::Arc::clone(&queue);
                crate::transport::threads::spawn("producer", move || {
                    (0..EACH).for_each(|_| queue.push(item(1)));
                })
                .unwrap()
            })
            .collect();
        let (mut batch, mut taken) = (Vec::new(), 0);
        while taken < 4 * EACH {
            taken += queue.next(&mut batch).frames;
            batch.clear();
        }
        producers
            .into_iter()
            .for_each(|producer| producer.join().unwrap());
        queue.close();
        assert!(queue.next(&mut batch).close);
    }

    #[test]
    fn an_abort_comes_before_what_waits() {
        let (queue, mut batch) = (Queue::default(), Vec::new());
        queue.push(item(1));
        queue.abort();
        assert!(queue.next(&mut batch).abort);
        assert!(batch.is_empty());
    }

    #[test]
    fn an_idle_queue_keeps_room_for_an_item_at_most() {
        let (queue, mut batch) = (Queue::default(), Vec::new());
        for _ in 0..1000 {
            queue.push(item(1));
        }
        while queue.try_next(&mut batch).is_some() {
            batch.clear();
        }
        release(&mut batch);
        queue.release();
        assert_eq!(queue.lock().items.capacity(), 0);
        assert!(batch.capacity() <= KEPT_ITEMS);
    }
}
