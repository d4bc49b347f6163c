//! Buffers that links borrow while they are busy.

use std::fmt;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;

use crate::host::locked;

/// A full TLS record with its overhead.
pub(crate) const RECORD_LEN: usize = 16 * 1024 + 256;

/// The size of a read buffer: four full TLS records, and room for a fifth that has arrived in
/// part.
pub(crate) const BUFFER_LEN: usize = 5 * RECORD_LEN;

/// The number of idle buffers of each kind that are kept, some 2.6 MiB. Further ones are freed.
const KEEP: usize = 32;

/// Longer memory for items is not kept. This length holds 64 KiB of an incomplete frame and one
/// more read.
const LENT: usize = 2 * BUFFER_LEN;

/// A pool of buffers. An idle link holds none, so its memory does not depend on the traffic that
/// it once carried.
///
/// There are two kinds: plain buffers, which come back when a link has used them, and memory from
/// which received items are cut. The items share that memory; it is lent again once all of them
/// are dropped.
///
/// A clone is another handle of the same pool. Taking and giving back hold a lock for a few
/// instructions.
#[derive(Clone, Default)]
pub struct BufferPool {
    shared: Arc<Pooled>,
}

#[derive(Default)]
struct Pooled {
    free: Mutex<Vec<Box<[u8]>>>,
    /// Memory from which items were cut, and its length; the latest is last.
    cut: Mutex<Vec<(BytesMut, usize)>>,
}

impl BufferPool {
    /// An empty pool.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn take(&self) -> Box<[u8]> {
        let pooled = locked(&self.shared.free).pop();
        pooled.unwrap_or_else(|| vec![0; BUFFER_LEN].into())
    }

    pub(crate) fn give(&self, buffer: Box<[u8]>) {
        let mut free = locked(&self.shared.free);
        if free.len() < KEEP {
            free.push(buffer);
        }
    }

    /// Empty memory of at least `len` bytes. The usual lengths of busy links come from the pool, in
    /// whole read buffers. Other lengths are allocated exactly.
    pub(crate) fn memory(&self, len: usize) -> BytesMut {
        if !(BUFFER_LEN / 2..=LENT).contains(&len) {
            return BytesMut::with_capacity(len);
        }
        let whole = len.next_multiple_of(BUFFER_LEN);
        let mut cut = locked(&self.shared.cut);
        // From the end: the latest memory is likely to be in the processor's cache.
        for at in (0..cut.len()).rev() {
            if cut[at].1 == whole && cut[at].0.try_reclaim(whole) {
                return cut.remove(at).0;
            }
        }
        drop(cut);
        BytesMut::with_capacity(whole)
    }

    /// Takes memory of `len` bytes back, while its items may still be in use. Only lengths that
    /// [`memory`](Self::memory) lends from the pool are kept.
    pub(crate) fn recycle(&self, mut memory: BytesMut, len: usize) {
        if len > LENT || len == 0 || !len.is_multiple_of(BUFFER_LEN) {
            return;
        }
        memory.clear();
        let mut cut = locked(&self.shared.cut);
        // The oldest is dropped. Its items are in use for an unknown time, because otherwise it
        // would have been lent again.
        let oldest = (cut.len() == KEEP).then(|| cut.remove(0));
        cut.push((memory, len));
        drop(cut);
        drop(oldest);
    }
}

/// A buffer that is borrowed from a pool while it is in use. Dropping this gives it back.
pub(crate) struct Borrowed {
    pool: BufferPool,
    buffer: Option<Box<[u8]>>,
}

impl Borrowed {
    /// Without a buffer yet.
    pub(crate) fn from(pool: BufferPool) -> Self {
        Self { pool, buffer: None }
    }

    /// The buffer, which is borrowed first if necessary.
    pub(crate) fn get(&mut self) -> &mut [u8] {
        self.buffer.get_or_insert_with(|| self.pool.take())
    }

    /// The buffer, if it is borrowed.
    pub(crate) fn held(&mut self) -> Option<&mut [u8]> {
        self.buffer.as_deref_mut()
    }

    /// Gives the buffer back.
    pub(crate) fn release(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.give(buffer);
        }
    }
}

impl fmt::Debug for Borrowed {
    /// Without the bytes, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Borrowed")
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.release();
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let idle = locked(&self.shared.free).len();
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
        assert_ne!(other.as_ptr(), at, "the item still uses the memory");
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
        assert!(locked(&pool.shared.cut).is_empty());
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
        assert_eq!(locked(&pool.shared.cut).len(), KEEP);
        assert!(items[0].is_unique(), "the pool has dropped the oldest memory");
    }
}
