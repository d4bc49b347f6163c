//! The protocol without I/O: frames, codec, handshake, session rules.

mod frame;

pub use self::frame::*;
