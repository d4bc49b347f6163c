//! Items to be sent over a connection.

use bytes::Bytes;

/// Whole frames that wait to be sent: up to eight bytes of their own, then a shared body. A
/// clone shares the body.
#[derive(Clone, Debug)]
pub struct Outgoing {
    head: [u8; 8],
    head_len: u8,
    frames: u32,
    body: Bytes,
}

impl Outgoing {
    /// Whole encoded frames in one piece.
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

    /// The number of frames in it.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        usize::from(self.head_len) + self.body.len()
    }

    /// True if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The load that it adds to a queue.
    pub fn load(&self) -> Load {
        Load {
            items: 1,
            frames: u64::from(self.frames),
            bytes: self.len() as u64,
        }
    }

    /// All bytes in one piece, copied only if there are two parts.
    pub fn bytes(&self) -> Bytes {
        match self.head_len {
            0 => self.body.clone(),
            _ => self.parts().flatten().copied().collect(),
        }
    }

    /// The pieces to send, in order, without empty ones.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let head = &self.head[..usize::from(self.head_len)];
        [head, &self.body[..]].into_iter().filter(|part| !part.is_empty())
    }
}

/// The memory of a queued item beside its bytes: the item, its entry in the channel, and the
/// overhead of the allocator and of the shared body.
const ITEM_MEMORY: u64 = 128;

/// An amount of queued items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The number of items, each of one frame or several.
    pub items: u64,
    /// The number of frames.
    pub frames: u64,
    /// Bytes of the frames.
    pub bytes: u64,
}

impl Load {
    /// The memory in bytes. Many short items take much more memory than the bytes of their frames.
    pub fn memory(&self) -> u64 {
        self.bytes + self.items * ITEM_MEMORY
    }
}

impl std::ops::AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        self.items += other.items;
        self.frames += other.frames;
        self.bytes += other.bytes;
    }
}

impl std::ops::SubAssign for Load {
    fn sub_assign(&mut self, other: Self) {
        self.items -= other.items;
        self.frames -= other.frames;
        self.bytes -= other.bytes;
    }
}
