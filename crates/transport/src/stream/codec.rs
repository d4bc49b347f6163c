//! Decoding received bytes into items.

use bytes::BytesMut;

use super::buffers::{BUFFER_LEN, BufferPool, RECORD_LEN};

/// An incremental decoder: the codec of one protocol.
pub trait Decode: Send + 'static {
    /// A decoded piece of the stream.
    type Item: Send + 'static;
    /// A fault of the peer against the protocol.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Takes all complete items off the front of `input` and appends them to `items`. An incomplete
    /// item stays; too few bytes are not an error.
    ///
    /// # Errors
    /// The peer broke the protocol. The items before the fault are in `items`.
    fn decode(&mut self, input: &mut BytesMut, items: &mut Vec<Self::Item>) -> Result<(), Self::Error>;

    /// The whole length of the item at the front, or 0 if that is not known yet. So much memory is
    /// reserved and then allocated before more of the item is read.
    fn wanted(&self) -> usize;

    /// True in the middle of an item whose bytes are dropped as they arrive. Default: false.
    fn skips(&self) -> bool {
        false
    }
}

/// Received bytes that wait to be decoded.
///
/// An item for which memory is reserved gets all of it at once, so that it is never copied to
/// grow. Decoded items never share memory with later bytes. The memory comes from a [`BufferPool`]
/// while a link is busy.
#[derive(Debug)]
pub struct Inbox {
    pub(crate) bytes: BytesMut,
    /// The length for which memory is reserved.
    pub(crate) wanted: usize,
    /// The maximum number of bytes that one read may take off the socket.
    pub(crate) most: usize,
    /// The capacity of `bytes` when it was allocated. If its capacity is less now, items have been
    /// cut off its front.
    made: usize,
    pool: BufferPool,
}

impl Inbox {
    /// An empty inbox that borrows its memory from `pool` while it is busy.
    pub(crate) fn new(pool: BufferPool) -> Self {
        Self {
            bytes: BytesMut::new(),
            wanted: 0,
            most: usize::MAX,
            made: 0,
            pool,
        }
    }

    /// Appends `data`. `expected` is the number of bytes that the current read appends in all,
    /// including these.
    pub fn append(&mut self, data: &[u8], expected: usize) {
        let held = self.bytes.len();
        let cut = self.bytes.capacity() < self.made;
        if cut || self.bytes.capacity() - held < data.len() {
            let due = held + expected.max(data.len());
            // Just the right size, because frames that are cut from it keep all of it alive.
            let mut grown = self.pool.memory(due.max(self.wanted));
            grown.extend_from_slice(&self.bytes);
            self.replace(grown);
        }
        self.bytes.extend_from_slice(data);
    }

    /// The maximum number of bytes that one read may bring so that an item that nearly fills a buffer, and
    /// the bytes after it, need no second buffer: the rest of a buffer, less a record in part.
    pub(crate) fn room(&self) -> usize {
        const MOST: usize = BUFFER_LEN - RECORD_LEN;
        if (BUFFER_LEN / 2..=MOST).contains(&self.wanted) {
            MOST.saturating_sub(self.bytes.len()).max(RECORD_LEN)
        } else {
            usize::MAX
        }
    }

    /// The bytes, for a handshake that precedes the codec.
    pub fn bytes_mut(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Gives memory back that the bytes do not need, because the stream has to wait for its peer.
    pub(crate) fn release(&mut self) {
        if self.made > 2 * self.bytes.len().max(self.wanted) {
            self.replace(BytesMut::from(&self.bytes[..]));
        }
    }

    fn replace(&mut self, bytes: BytesMut) {
        let made = std::mem::replace(&mut self.made, bytes.capacity());
        let spent = std::mem::replace(&mut self.bytes, bytes);
        // Its items may still be in use; the pool lends it again when they are dropped.
        self.pool.recycle(spent, made);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_length_is_allocated_once() {
        let mut inbox = Inbox::new(BufferPool::new());
        inbox.append(&[0; 8], 8);
        inbox.wanted = 1 << 20;
        inbox.append(&[0; 16 * 1024], 16 * 1024);
        let at = inbox.bytes.as_ptr();
        for _ in 1..63 {
            inbox.append(&[0; 16 * 1024], 16 * 1024);
        }
        assert_eq!((inbox.bytes.as_ptr(), inbox.bytes.capacity()), (at, 1 << 20));
    }

    #[test]
    fn a_waiting_stream_keeps_little_more_memory_than_its_bytes() {
        let mut inbox = Inbox::new(BufferPool::new());
        inbox.append(&[7; 60_000], 60_000);
        let item = inbox.bytes.split_to(59_000).freeze();
        inbox.release();
        assert!(inbox.bytes.capacity() < 2000 && item.len() == 59_000);
        assert_eq!(inbox.bytes[..], [7; 1000]);
        // Reserved memory stays.
        inbox.wanted = 50_000;
        inbox.append(&[7; 10], 10);
        let at = inbox.bytes.as_ptr();
        inbox.release();
        assert_eq!(inbox.bytes.as_ptr(), at);
    }

    #[test]
    fn long_items_need_one_buffer_each() {
        let mut inbox = Inbox::new(BufferPool::new());
        // Each item has four records, and a read ends in the middle of a record.
        let (item, part) = (4 * 16 * 1024 + 8, 10_000);
        inbox.append(&[7; BUFFER_LEN - RECORD_LEN], BUFFER_LEN - RECORD_LEN);
        for _ in 0..10 {
            if inbox.bytes.len() >= item {
                drop(inbox.bytes.split_to(item));
            }
            inbox.wanted = item;
            let read = part + inbox.room();
            inbox.append(&vec![7; read - part], read);
            assert_eq!(inbox.made, BUFFER_LEN);
        }
        // Short items, and those that need more than a buffer, are read as much as there is.
        for wanted in [0, 1000, BUFFER_LEN] {
            inbox.wanted = wanted;
            assert_eq!(inbox.room(), usize::MAX);
        }
    }

    #[test]
    fn a_lone_frame_takes_no_more_than_it_needs() {
        let mut inbox = Inbox::new(BufferPool::new());
        inbox.append(&[7; 100], 120);
        assert_eq!(inbox.bytes.capacity(), 120);
    }

    #[test]
    fn decoded_items_share_no_memory_with_later_bytes() {
        let mut inbox = Inbox::new(BufferPool::new());
        inbox.append(&[7; 100], 1000);
        let item = inbox.bytes.split_to(90).freeze();
        inbox.append(&[8], 1);
        assert!(item.is_unique(), "the rest has moved");
        assert_eq!(inbox.bytes[..], [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8]);
    }
}
