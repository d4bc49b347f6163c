//! Buffers that links borrow while they are busy.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;

/// Size of a read buffer: four full TLS records with their overhead, and room
/// for one more that is not complete yet.
pub(crate) const BUFFER_LEN: usize = 5 * (16 * 1024 + 256);

/// How many idle buffers are kept; further ones are freed.
const KEEP: usize = 32;

/// Memory for items that is longer than this is not kept for later. It holds a
/// frame of 64 KiB that is not complete yet, and one more read behind it.
const LENT: usize = 2 * BUFFER_LEN;

/// A pool of buffers. An idle link holds none, so that its memory does not
/// depend on what it once carried.
///
/// It lends two kinds: plain buffers, which come back when a link is done
/// with them, and the memory that received items are cut from. That is shared
/// by the items, wherever they go; it is lent again once all of them are gone.
///
/// A clone is another handle of the same pool; taking and giving back hold a
/// lock for a few instructions.
#[derive(Clone, Default)]
pub struct BufferPool {
    shared: Arc<Pooled>,
}

#[derive(Default)]
struct Pooled {
    free: Mutex<Vec<Box<[u8]>>>,
    /// Memory that items were cut from and its length, the latest at the end.
    cut: Mutex<Vec<(BytesMut, usize)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BufferPool {
    /// An empty pool.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn take(&self) -> Box<[u8]> {
        let pooled = lock(&self.shared.free).pop();
        pooled.unwrap_or_else(|| vec![0; BUFFER_LEN].into())
    }

    pub(crate) fn give(&self, buffer: Box<[u8]>) {
        let mut free = lock(&self.shared.free);
        if free.len() < KEEP {
            free.push(buffer);
        }
    }

    /// Empty memory of at least `len` bytes. The lengths that busy links ask for
    /// come from the pool, in whole read buffers; what is shorter or longer is
    /// made for the caller and has just that length.
    pub(crate) fn memory(&self, len: usize) -> BytesMut {
        if !(BUFFER_LEN / 2..=LENT).contains(&len) {
            return BytesMut::with_capacity(len);
        }
        let whole = len.next_multiple_of(BUFFER_LEN);
        let mut cut = lock(&self.shared.cut);
        // From the end: what came back last is likely to be in the
        // processor's cache still.
        for at in (0..cut.len()).rev() {
            if cut[at].1 == whole && cut[at].0.try_reclaim(whole) {
                return cut.remove(at).0;
            }
        }
        drop(cut);
        BytesMut::with_capacity(whole)
    }

    /// Takes memory of `len` bytes back, whose items may still be under way.
    /// Only what [`memory`](Self::memory) would lend again is kept.
    pub(crate) fn recycle(&self, mut memory: BytesMut, len: usize) {
        if len > LENT || len == 0 || !len.is_multiple_of(BUFFER_LEN) {
            return;
        }
        memory.clear();
        let mut cut = lock(&self.shared.cut);
        // The oldest gives way: somebody still holds items of it, and there is
        // no telling for how long.
        let oldest = (cut.len() == KEEP).then(|| cut.remove(0));
        cut.push((memory, len));
        drop(cut);
        drop(oldest);
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let idle = lock(&self.shared.free).len();
        f.debug_struct("BufferPool").field("idle", &idle).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_lent_again_once_its_items_are_gone() {
        let pool = BufferPool::new();
        let mut memory = pool.memory(BUFFER_LEN);
        memory.extend_from_slice(b"item");
        let at = memory.as_ptr();
        let item = memory.split_to(4).freeze();
        pool.recycle(memory, BUFFER_LEN);
        let other = pool.memory(BUFFER_LEN);
        assert_ne!(other.as_ptr(), at, "the item is still there");
        assert_eq!(item[..], *b"item");
        drop(item);
        let again = pool.memory(BUFFER_LEN - 1);
        assert_eq!(again.as_ptr(), at);
        assert_eq!((again.len(), again.capacity()), (0, BUFFER_LEN));
    }

    #[test]
    fn short_and_very_long_memory_is_of_its_own_length() {
        let pool = BufferPool::new();
        for len in [1, 100, BUFFER_LEN / 2 - 1, LENT + 1] {
            let memory = pool.memory(len);
            assert_eq!(memory.capacity(), len);
            pool.recycle(memory, len);
        }
        assert!(lock(&pool.shared.cut).is_empty());
        assert_eq!(pool.memory(BUFFER_LEN + 1).capacity(), LENT);
    }

    #[test]
    fn memory_that_stays_in_use_makes_room_in_the_pool() {
        let pool = BufferPool::new();
        let mut items = Vec::new();
        for _ in 0..KEEP + 5 {
            let mut memory = pool.memory(BUFFER_LEN);
            memory.extend_from_slice(b"kept");
            items.push(memory.split_to(4).freeze());
            pool.recycle(memory, BUFFER_LEN);
        }
        assert_eq!(lock(&pool.shared.cut).len(), KEEP);
        assert!(items[0].is_unique(), "the pool has let go of the oldest");
    }
}
