//! Buffers that links borrow while they are busy.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Size of a read buffer: four full TLS records with their overhead, and room
/// for one more that is not complete yet.
pub(super) const BUFFER_LEN: usize = 5 * (16 * 1024 + 256);

/// How many idle buffers are kept; further ones are freed.
const KEEP: usize = 32;

/// A pool of equal buffers. An idle link holds none, so that its memory does
/// not depend on what it once carried.
///
/// A clone is another handle of the same pool; taking and giving back hold
/// its lock for a push or a pop.
#[derive(Clone, Default)]
pub struct BufferPool {
    free: Arc<Mutex<Vec<Box<[u8]>>>>,
}

impl BufferPool {
    /// An empty pool.
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn take(&self) -> Box<[u8]> {
        let pooled = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        pooled.unwrap_or_else(|| vec![0; BUFFER_LEN].into())
    }

    pub(super) fn give(&self, buffer: Box<[u8]>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEEP {
            free.push(buffer);
        }
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let idle = self.free.lock().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_struct("BufferPool").field("idle", &idle).finish()
    }
}
