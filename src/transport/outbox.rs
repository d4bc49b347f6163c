//! The bounded queue towards a link's writer.
//!
//! A bounded channel would take memory for every slot of every idle session.
//! So the queue itself knows no bound: frames and bytes are counted at the
//! entrance, and what leaves is subtracted once the system has taken it. When full, [`Outbox::push`] gives the item back and the
//! owner decides: wait, drop, or end the session.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::halves::Tried;
use super::line::Line;
use super::queue::Queue;

/// What waits for the writer: up to eight bytes of its own, then shared ones.
/// A clone shares the body.
#[derive(Clone, Debug)]
pub struct Outgoing {
    head: [u8; 8],
    head_len: u8,
    frames: u32,
    body: Bytes,
}

impl Outgoing {
    /// Whole frames, encoded, in one piece.
    pub fn whole(body: Bytes, frames: u32) -> Self {
        Self {
            head: [0; 8],
            head_len: 0,
            frames,
            body,
        }
    }

    /// One frame with a fixed header of its own before a shared payload.
    pub fn framed(head: [u8; 8], body: Bytes) -> Self {
        Self {
            head,
            head_len: 8,
            frames: 1,
            body,
        }
    }

    /// How many frames it holds.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        usize::from(self.head_len) + self.body.len()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces to send, in order, empty ones left out.
    pub(super) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let head = &self.head[..usize::from(self.head_len)];
        [head, &self.body[..]].into_iter().filter(|part| !part.is_empty())
    }
}

/// How much may wait for one writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Frames. Default: 8,388,608, which is 64 MiB of frames without payload.
    pub frames: u64,
    /// Bytes. Default: 64 MiB. One item may always wait alone, however long.
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

/// Why [`Outbox::push`] did not take an item; it comes back.
#[derive(Debug)]
pub enum PushError {
    /// A limit is reached.
    Full(Outgoing),
    /// The link is closed or closing.
    Closed(Outgoing),
}

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "the queue is full",
            Self::Closed(_) => "the connection is closed",
        })
    }
}

impl std::error::Error for PushError {}

/// The most items that wait, whatever the limits: each takes some 64 bytes
/// beside its own, and holds one frame or many.
const MOST_ITEMS: u64 = 1 << 20;

/// The sending side of a link's queue.
///
/// # Threads
/// A clone is another handle. `push` never blocks and may be called from any
/// thread; frames of one thread keep their order.
#[derive(Clone, Debug)]
pub struct Outbox {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Queue,
    limits: Limits,
    items: AtomicU64,
    frames: AtomicU64,
    bytes: AtomicU64,
    written_frames: AtomicU64,
    written_bytes: AtomicU64,
    discarded: AtomicU64,
    /// The writer is handing something to the system.
    writing: AtomicBool,
    closed: AtomicBool,
    aborted: AtomicBool,
    /// The writer has sent its last byte.
    done: AtomicBool,
    failure: OnceLock<std::io::Error>,
    /// What the writer sends with, and who goes past it.
    line: Line,
    waiters: AtomicU32,
    /// What had been written, plus one, when a producer last gave up holding
    /// back; 0 for never. Written under the gate.
    given_up_frames: AtomicU64,
    given_up_bytes: AtomicU64,
    gate: Mutex<()>,
    room: Condvar,
}

/// How long a consumer that makes no progress may hold a producer back.
const PATIENCE: Duration = Duration::from_millis(50);
/// And a writer that has not even begun.
const MOST_PATIENCE: Duration = Duration::from_secs(1);
/// The pace of a consumer that is worth waiting for, each second: one of the
/// two suffices.
const PACE_BYTES: u64 = 4 << 20;
const PACE_FRAMES: u64 = 20_000;

impl Shared {
    fn begin_wait(&self) {
        self.waiters.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    fn given_up_at(&self) -> Option<(u64, u64)> {
        let frames = self.given_up_frames.load(Ordering::Relaxed).checked_sub(1)?;
        Some((frames, self.given_up_bytes.load(Ordering::Relaxed)))
    }

    fn give_up(&self, (frames, bytes): (u64, u64)) {
        self.given_up_frames.store(frames + 1, Ordering::Relaxed);
        self.given_up_bytes.store(bytes, Ordering::Relaxed);
    }
}

impl Outbox {
    /// An empty queue.
    pub fn new(limits: Limits) -> Self {
        Self {
            shared: Arc::new(Shared {
                queue: Queue::default(),
                limits,
                items: AtomicU64::new(0),
                frames: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                written_frames: AtomicU64::new(0),
                written_bytes: AtomicU64::new(0),
                discarded: AtomicU64::new(0),
                writing: AtomicBool::new(false),
                closed: AtomicBool::new(false),
                aborted: AtomicBool::new(false),
                done: AtomicBool::new(false),
                failure: OnceLock::new(),
                line: Line::default(),
                waiters: AtomicU32::new(0),
                given_up_frames: AtomicU64::new(0),
                given_up_bytes: AtomicU64::new(0),
                gate: Mutex::new(()),
                room: Condvar::new(),
            }),
        }
    }

    /// Queues an item. Never blocks.
    ///
    /// # Errors
    /// [`PushError`] with the item when a limit is reached or the link ends.
    pub fn push(&self, item: Outgoing) -> Result<(), PushError> {
        let (item, _) = self.count(item)?;
        self.shared.queue.push(item);
        Ok(())
    }

    /// As [`push`](Self::push), but where nothing waits and nothing is being
    /// written, this thread sends what the system takes at once, and the writer
    /// is woken for the rest only. For who has one item now and no more soon.
    /// Long items are queued.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_now(&self, item: Outgoing) -> Result<(), PushError> {
        let (item, waited) = self.count(item)?;
        let tried = if waited {
            Tried::Not
        } else {
            self.shared.line.try_send(&item)
        };
        match tried {
            Tried::Sent => self.count_sent(1, u64::from(item.frames), item.len() as u64),
            Tried::Begun => self.shared.queue.flush(),
            Tried::Not | Tried::Failed => self.shared.queue.push(item),
        }
        Ok(())
    }

    /// Counts an item in. Says whether something waited before it.
    fn count(&self, item: Outgoing) -> Result<(Outgoing, bool), PushError> {
        let shared = &*self.shared;
        if shared.closed.load(Ordering::Acquire) {
            return Err(PushError::Closed(item));
        }
        let (frames, bytes) = (u64::from(item.frames), item.len() as u64);
        let items_before = shared.items.fetch_add(1, Ordering::AcqRel);
        let frames_before = shared.frames.fetch_add(frames, Ordering::AcqRel);
        let bytes_before = shared.bytes.fetch_add(bytes, Ordering::AcqRel);
        let over = items_before >= MOST_ITEMS
            || frames_before + frames > shared.limits.frames
            || bytes_before + bytes > shared.limits.bytes;
        if over && frames_before > 0 {
            self.subtract(1, frames, bytes);
            return Err(PushError::Full(item));
        }
        Ok((item, frames_before > 0))
    }

    /// What the writer sends with.
    pub(super) fn line(&self) -> &Line {
        &self.shared.line
    }

    /// Waits until a push of `len` bytes may succeed, or the limit passes;
    /// false when it passed or the link ended.
    pub fn wait_for_room(&self, len: usize, limit: Option<Duration>) -> bool {
        let shared = &*self.shared;
        let deadline = limit.map(super::deadline);
        let mut guard = shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
        shared.begin_wait();
        let found = loop {
            if shared.closed.load(Ordering::Acquire) {
                break false;
            }
            let (frames, bytes) = self.waiting();
            let items = shared.items.load(Ordering::Acquire);
            let fits = items < MOST_ITEMS
                && frames < shared.limits.frames
                && bytes + len as u64 <= shared.limits.bytes;
            if fits || frames == 0 {
                break true;
            }
            guard = match deadline {
                None => shared.room.wait(guard).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(now());
                    if left.is_zero() {
                        break false;
                    }
                    shared
                        .room
                        .wait_timeout(guard, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        };
        shared.waiters.fetch_sub(1, Ordering::AcqRel);
        found
    }

    /// Holds a producer back while this queue is more than half full and its
    /// writer makes good progress. A consumer that is stuck, or takes less
    /// than 4 MiB and 20,000 frames each second, holds producers
    /// back for 50 ms once, and then no more until it has taken a
    /// second's worth. Only time in which the system takes nothing counts: a
    /// writer that has not got a processor is not its consumer's fault, and
    /// is waited for up to a second.
    pub fn hold_back(&self) {
        let shared = &*self.shared;
        let mut guard = shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let began = self.written();
        let given_up = shared.given_up_at();
        let distrusted =
            given_up.is_some_and(|at| began.0 - at.0 < PACE_FRAMES && began.1 - at.1 < PACE_BYTES);
        if distrusted {
            return;
        }
        shared.begin_wait();
        let start = now();
        let (mut looked, mut blocked) = (start, Duration::ZERO);
        while self.is_half_full() && !shared.closed.load(Ordering::Acquire) {
            let done = self.written();
            let due = blocked.saturating_sub(PATIENCE).as_secs_f64();
            let kept_up = (done.0 - began.0) as f64 >= due * PACE_FRAMES as f64
                || (done.1 - began.1) as f64 >= due * PACE_BYTES as f64;
            let stuck = (blocked >= PATIENCE || start.elapsed() >= MOST_PATIENCE) && done == began;
            if !kept_up || stuck {
                shared.give_up(done);
                break;
            }
            let writing = shared.writing.load(Ordering::Acquire);
            guard = shared
                .room
                .wait_timeout(guard, PATIENCE / 4)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            let now = now();
            if writing && shared.writing.load(Ordering::Acquire) {
                blocked += now.saturating_duration_since(looked);
            }
            looked = now;
        }
        shared.waiters.fetch_sub(1, Ordering::AcqRel);
    }

    /// Waits until the link is closed or closing, for at most `limit`; false
    /// when that has passed.
    pub fn wait_until_closed(&self, limit: Duration) -> bool {
        self.wait_for(&self.shared.closed, limit)
    }

    fn wait_for(&self, flag: &AtomicBool, limit: Duration) -> bool {
        let shared = &*self.shared;
        let guard = shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let unset = |_: &mut ()| !flag.load(Ordering::Acquire);
        let waited = shared.room.wait_timeout_while(guard, limit, unset);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Whether more than half of a limit is used.
    pub fn is_half_full(&self) -> bool {
        let (frames, bytes) = self.waiting();
        let items = self.shared.items.load(Ordering::Acquire);
        items > MOST_ITEMS / 2
            || frames > self.shared.limits.frames / 2
            || bytes > self.shared.limits.bytes / 2
    }

    /// Frames and bytes that the system has not taken yet.
    pub fn waiting(&self) -> (u64, u64) {
        (
            self.shared.frames.load(Ordering::Acquire),
            self.shared.bytes.load(Ordering::Acquire),
        )
    }

    /// Frames and bytes that the system has taken so far.
    pub fn written(&self) -> (u64, u64) {
        let shared = &*self.shared;
        (
            shared.written_frames.load(Ordering::Relaxed),
            shared.written_bytes.load(Ordering::Relaxed),
        )
    }

    /// Frames that were taken and that nobody will send any more. Final once
    /// the link has ended; what its owner dropped is not among them.
    pub(crate) fn lost(&self) -> u64 {
        // What still counts as waiting then was being written when it failed.
        let waiting = self.shared.frames.load(Ordering::Acquire);
        waiting + self.shared.discarded.load(Ordering::Acquire)
    }

    /// Takes the oldest waiting item back and says how many frames it held;
    /// 0 when none waits.
    pub fn drop_oldest(&self) -> u32 {
        let Some(item) = self.shared.queue.pop() else {
            return 0;
        };
        self.subtract(1, u64::from(item.frames), item.len() as u64);
        item.frames
    }

    /// Lets the writer send what waits and then end the stream. Later pushes
    /// are refused.
    pub fn close(&self) {
        if !self.shared.closed.swap(true, Ordering::AcqRel) {
            self.shared.queue.close();
        }
        self.wake_waiters();
    }

    /// Whether the link is closed or closing.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Makes the writer end at once.
    pub(super) fn abort(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.aborted.store(true, Ordering::Release);
        self.shared.queue.abort();
        self.wake_waiters();
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.shared.aborted.load(Ordering::Acquire)
    }

    /// Makes the writer send what the reader left for the socket.
    pub(super) fn flush(&self) {
        self.shared.queue.flush();
    }

    /// Where the writer takes from.
    pub(super) fn queue(&self) -> &Queue {
        &self.shared.queue
    }

    /// The writer has sent its last byte.
    pub(super) fn done(&self) {
        self.shared.done.store(true, Ordering::Release);
        self.wake_waiters();
    }

    /// Waits until the writer has sent its last byte, for at most `limit`;
    /// false when that has passed.
    pub(super) fn wait_until_done(&self, limit: Duration) -> bool {
        self.wait_for(&self.shared.done, limit)
    }

    /// The writer is about to hand something to the system.
    pub(super) fn begin_writing(&self) {
        self.shared.writing.store(true, Ordering::Release);
    }

    /// The system has taken so much from the writer.
    pub(super) fn sent(&self, items: u64, frames: u64, bytes: u64) {
        self.shared.writing.store(false, Ordering::Release);
        self.count_sent(items, frames, bytes);
    }

    fn count_sent(&self, items: u64, frames: u64, bytes: u64) {
        self.shared.written_frames.fetch_add(frames, Ordering::Relaxed);
        self.shared.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.subtract(items, frames, bytes);
    }

    /// The writer failed: nothing will leave any more.
    pub(super) fn fail(&self, error: std::io::Error) {
        let _ = self.shared.failure.set(error);
        self.shared.closed.store(true, Ordering::Release);
        self.wake_waiters();
    }

    /// Why the writer failed, as text and kind.
    pub(super) fn failure(&self) -> Option<std::io::Error> {
        let error = self.shared.failure.get()?;
        Some(std::io::Error::new(error.kind(), error.to_string()))
    }

    /// Drops everything that waits, so that a dead session holds no payload.
    pub(super) fn discard(&self) {
        while let Some(item) = self.shared.queue.pop() {
            let frames = u64::from(item.frames);
            self.shared.discarded.fetch_add(frames, Ordering::AcqRel);
            self.subtract(1, frames, item.len() as u64);
        }
    }

    fn subtract(&self, items: u64, frames: u64, bytes: u64) {
        self.shared.items.fetch_sub(items, Ordering::AcqRel);
        self.shared.frames.fetch_sub(frames, Ordering::AcqRel);
        self.shared.bytes.fetch_sub(bytes, Ordering::AcqRel);
        // Pairs with the one in `begin_wait`: of a waiter and this, one sees
        // what the other wrote.
        fence(Ordering::SeqCst);
        if self.shared.waiters.load(Ordering::Acquire) > 0 {
            self.wake_waiters();
        }
    }

    fn wake_waiters(&self) {
        // The lock orders this after a waiter's look at the counters.
        drop(self.shared.gate.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.room.notify_all();
    }
}

#[expect(clippy::disallowed_methods, reason = "time limits of waits")]
pub(super) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(len: usize) -> Outgoing {
        Outgoing::whole(vec![0; len].into(), 1)
    }

    fn small() -> Outbox {
        Outbox::new(Limits {
            frames: 3,
            bytes: 100,
        })
    }

    #[test]
    fn frames_and_bytes_are_bounded_and_the_item_comes_back() {
        let outbox = small();
        outbox.push(item(60)).unwrap();
        assert!(matches!(outbox.push(item(41)), Err(PushError::Full(back)) if back.len() == 41));
        outbox.push(item(40)).unwrap();
        assert_eq!(outbox.waiting(), (2, 100));
        while outbox.queue().pop().is_some() {}
        outbox.sent(2, 2, 100);
        for _ in 0..3 {
            outbox.push(item(1)).unwrap();
        }
        assert!(matches!(outbox.push(item(1)), Err(PushError::Full(_))));
        assert_eq!(outbox.drop_oldest(), 1);
        outbox.push(item(1)).unwrap();
    }

    #[test]
    fn an_item_longer_than_the_limit_may_wait_alone() {
        let outbox = small();
        outbox.push(item(1000)).unwrap();
        assert!(matches!(outbox.push(item(0)), Err(PushError::Full(_))));
    }

    #[test]
    fn a_waiter_is_woken_by_room_and_by_the_end() {
        for end in [false, true] {
            let outbox = small();
            outbox.push(item(100)).unwrap();
            let waiter = outbox.clone();
            let thread =
                crate::transport::threads::spawn("t", move || waiter.wait_for_room(50, None)).unwrap();
            if end {
                outbox.close()
            } else {
                outbox.sent(1, 1, 100)
            }
            assert_eq!(thread.join().unwrap(), !end);
        }
        let outbox = small();
        outbox.push(item(100)).unwrap();
        assert!(!outbox.wait_for_room(1, Some(Duration::from_millis(1))));
    }

    #[test]
    fn a_stuck_consumer_holds_nobody_back() {
        let outbox = small();
        outbox.push(item(100)).unwrap();
        assert!(outbox.is_half_full());
        outbox.begin_writing();
        let began = now();
        for _ in 0..100 {
            outbox.hold_back();
        }
        assert!(began.elapsed() < 20 * PATIENCE, "it is waited for once");
    }

    #[test]
    fn a_writer_that_has_not_begun_is_waited_for() {
        let outbox = small();
        outbox.push(item(100)).unwrap();
        let (held, done) = (outbox.clone(), Arc::new(AtomicBool::new(false)));
        let seen = Arc::clone(&done);
        let producer = crate::transport::threads::spawn("t", move || {
            held.hold_back();
            seen.load(Ordering::Acquire)
        });
        // Nothing is sent here: this is the time that a writer is late.
        let (_never, late) = crossbeam_channel::bounded::<()>(0);
        let _ = late.recv_timeout(3 * PATIENCE);
        outbox.begin_writing();
        done.store(true, Ordering::Release);
        outbox.sent(1, 1, 100);
        assert!(producer.unwrap().join().unwrap(), "it has given up too early");
    }

    #[test]
    fn a_writer_that_never_begins_is_given_up() {
        let outbox = small();
        outbox.push(item(100)).unwrap();
        outbox.hold_back();
        assert!(outbox.is_half_full());
    }

    #[test]
    fn a_closed_outbox_takes_nothing() {
        let outbox = small();
        outbox.close();
        assert!(matches!(outbox.push(item(1)), Err(PushError::Closed(_))));
    }
}
