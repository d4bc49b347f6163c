//! The two directions of a stream, in clear or under TLS, and what goes through them.
//!
//! ```text
//!  socket ─▶ Receive ─▶ Inbox ─▶ Decode ─▶ items
//!  socket ◀─ Transmit ◀───────── Outgoing
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `halves` | [`Receive`] and [`Transmit`], and both in clear |
//! | `codec` | [`Inbox`] and [`Decode`]: from bytes to items |
//! | `outgoing` | [`Outgoing`]: whole frames that wait to be sent |
//! | `buffers` | [`BufferPool`]: buffers of busy streams |

mod buffers;
mod codec;
mod halves;
mod outgoing;

pub(crate) use self::buffers::Borrowed;
pub use self::buffers::BufferPool;
pub use self::codec::{Decode, Inbox};
pub(crate) use self::halves::AT_ONCE;
pub use self::halves::{Halves, Receive, Received, Transmit, Tried, drain, plain, refuse};
pub use self::outgoing::{Load, Outgoing};
