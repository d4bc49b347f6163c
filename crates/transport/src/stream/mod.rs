//! The two directions of a stream, in clear or under TLS, and what goes through them.
//!
//! ```text
//!  socket ─▶ Receive ─▶ Inbox ─▶ Decode ─▶ items
//!  socket ◀─ Transmit ◀───────── Outgoing
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `halves` | [`Receive`](halves::Receive) and [`Transmit`](halves::Transmit), and both in clear |
//! | `codec` | [`Inbox`](codec::Inbox) and [`Decode`](codec::Decode): from bytes to items |
//! | `outgoing` | [`Outgoing`](outgoing::Outgoing): whole frames that wait to be sent |
//! | `buffers` | [`BufferPool`](buffers::BufferPool): buffers of busy streams |

pub(crate) mod buffers;
pub(crate) mod codec;
pub(crate) mod halves;
pub(crate) mod outgoing;
