//! JSON-RPC 1.0 as OpFlex uses it, without I/O and without a clock.
//!
//! ```text
//!  bytes read ──> Deframer ──> Message ──┬─ Request  { id, method, params }
//!                   │                   └─ Response { id, result | error }
//!                   └─ Error: the connection is closed without an answer
//!
//!  Frame::request / result / failure ──> one JSON text + one NUL, ready to send
//! ```
//!
//! This module does not interpret messages: params, results and errors stay JSON text
//! ([`Payload`]) until the caller reads them as a type. An [`Id`] is the received text, so
//! any JSON value returns to its sender unchanged.
//!
//! | file | contents |
//! |---|---|
//! | `id` | request identifiers, and the `[method, number]` form of libopflex |
//! | `message` | requests and responses |
//! | `scanner` | the end, the depth and the memory of a text, byte by byte |
//! | `limits` | the limits of a message |
//! | `decoder` | bytes to messages |
//! | `frame` | messages to bytes |
//! | `error` | the faults for which a connection is closed |
//! | `random` | random delays from a seed |

mod decoder;
mod error;
mod frame;
mod id;
mod limits;
mod message;
mod random;
mod scanner;

pub use self::decoder::Deframer;
pub use self::error::Error;
pub use self::frame::Frame;
pub use self::id::Id;
pub use self::limits::Limits;
pub use self::message::{Message, Payload};
pub use self::random::Random;
