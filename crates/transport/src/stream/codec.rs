//! From received bytes to items.

use bytes::BytesMut;

use super::buffers::{BUFFER_LEN, BufferPool};

/// An incremental decoder: the codec of one protocol.
pub trait Decode: Send + 'static {
    /// A decoded piece of the stream.
    type Item: Send + 'static;
    /// The ways in which a peer can break the protocol.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Takes all complete items off the front of `input` and appends them to `items`. An
    /// incomplete item stays; too few bytes are not an error.
    ///
    /// # Errors
    /// The peer broke the protocol. The items before the fault are in `items`.
    fn decode(&mut self, input: &mut BytesMut, items: &mut Vec<Self::Item>) -> Result<(), Self::Error>;

    /// How many bytes the item at the front needs in all, or 0 if that is not known yet. A
    /// hint for the growth of the buffer.
    fn wanted(&self) -> usize;
}

/// Received bytes that wait to be decoded.
///
/// Memory follows the bytes that have arrived: an announced length is believed up to
/// 80 KiB, and beyond that the buffer doubles. Decoded items never share memory with later
/// bytes. Busy links borrow the memory from a [`BufferPool`].
#[derive(Debug, Default)]
pub struct Inbox {
    pub(crate) bytes: BytesMut,
    pub(crate) wanted: usize,
    /// The buffer's capacity when it was made. If less is left, items have been cut off its
    /// front.
    made: usize,
    pool: BufferPool,
}

/// How much memory an announced length alone can reserve. Without this bound, a peer could
/// reserve memory for a frame that it never sends.
const TRUST: usize = BUFFER_LEN;

impl Inbox {
    /// An empty one that borrows its memory from `pool` while it is busy.
    pub(crate) fn new(pool: BufferPool) -> Self {
        Self {
            pool,
            ..Self::default()
        }
    }

    /// Appends `data`. `expected` is how many bytes the current read is about to append,
    /// including these.
    pub fn append(&mut self, data: &[u8], expected: usize) {
        let held = self.bytes.len();
        let cut = self.bytes.capacity() < self.made;
        if cut || self.bytes.capacity() - held < data.len() {
            let due = held + expected.max(data.len());
            let believed = self.wanted.min(TRUST.max(2 * held));
            // A new buffer of just the right size, because frames that are cut from it keep
            // all of it alive.
            let mut grown = self.pool.memory(due.max(believed));
            grown.extend_from_slice(&self.bytes);
            self.replace(grown);
        }
        self.bytes.extend_from_slice(data);
    }

    /// The bytes, for a handshake that precedes the codec.
    pub fn bytes_mut(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Gives an empty buffer's memory back.
    pub(crate) fn release(&mut self) {
        if self.bytes.is_empty() {
            self.replace(BytesMut::new());
        }
    }

    fn replace(&mut self, bytes: BytesMut) {
        let made = std::mem::replace(&mut self.made, bytes.capacity());
        let spent = std::mem::replace(&mut self.bytes, bytes);
        self.pool.recycle(spent, made);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_follows_what_arrived_not_what_was_announced() {
        let mut inbox = Inbox {
            wanted: usize::MAX,
            ..Inbox::default()
        };
        inbox.append(&[0; 8], 8);
        assert!(inbox.bytes.capacity() <= TRUST);
        for _ in 0..64 {
            inbox.append(&[0; 16 * 1024], 16 * 1024);
            assert!(inbox.bytes.capacity() <= TRUST.max(3 * inbox.bytes.len()));
        }
    }

    #[test]
    fn a_lone_frame_takes_no_more_than_it_needs() {
        let mut inbox = Inbox::default();
        inbox.append(&[7; 100], 120);
        assert_eq!(inbox.bytes.capacity(), 120);
    }

    #[test]
    fn what_was_decoded_is_not_kept_alive_by_what_comes_later() {
        let mut inbox = Inbox::default();
        inbox.append(&[7; 100], 1000);
        let item = inbox.bytes.split_to(90).freeze();
        inbox.append(&[8], 1);
        assert!(item.is_unique(), "the rest has moved");
        assert_eq!(inbox.bytes[..], [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8]);
    }
}
