//! JSON-RPC 1.0 as OpFlex uses it, without I/O and without a clock.
//!
//! ```text
//!  bytes read ──> Decoder ──> Message ──┬─ Request  { id, method, params }
//!                   │                   └─ Response { id, result | error }
//!                   └─ Error: the connection is closed without an answer
//!
//!  Frame::request / result / failure ──> one JSON text + one NUL, ready to send
//!
//!  Pending: xid ──> what waits for the answer, its deadline, how often it was sent
//! ```
//!
//! The meaning of a message is not known here: params, results and errors stay
//! the JSON text that arrived ([`Payload`]) until somebody reads them as a
//! type. An [`Id`] is never taken apart on its way back, so that any JSON value
//! returns to its sender as the very same characters.
//!
//! | file | what |
//! |---|---|
//! | `id` | request identifiers, and the `[method, number]` form of libopflex |
//! | `message` | the two message shapes and their texts |
//! | `scanner` | where a text ends and how deep it nests, byte by byte |
//! | `decoder` | bytes to messages, over any split |
//! | `frame` | messages to bytes |
//! | `error` | why a connection has to be closed |
//! | `retry` | how long to wait before asking again |
//! | `pending` | requests that wait for their answer |
//! | `random` | spread for delays, from a seed |

mod decoder;
mod error;
mod frame;
mod id;
mod message;
mod pending;
mod random;
mod retry;
mod scanner;

pub use self::decoder::{Decoder, Limits};
pub use self::error::Error;
pub use self::frame::{EncodeError, Frame};
pub use self::id::Id;
pub use self::message::{Message, Payload, Request, Response};
pub use self::pending::{Due, Pending};
pub use self::random::Random;
pub use self::retry::RetryPolicy;
