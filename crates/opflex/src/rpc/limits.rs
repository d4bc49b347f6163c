//! The limits of a message.

/// The limits of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one message without its NUL. Default 64 MiB.
    pub message: usize,
    /// The approximate memory of the values of one message, in bytes. The values of a short text
    /// can take a hundred times its length: `[{"":0},{"":0}]`. Default 256 MiB.
    pub memory: usize,
    /// Brackets that may be open at once, at most 100. Default 64; the deepest
    /// message of libopflex has 8.
    pub nesting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message: 64 << 20,
            memory: 256 << 20,
            nesting: 64,
        }
    }
}
