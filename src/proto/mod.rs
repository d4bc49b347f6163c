//! The protocol without I/O, threads or clocks: frames, codec, handshake.
//!
//! ```text
//!            CONNECT / CONNECTED            frames, either way
//!  ┌───────────┐   ┌───────────────┐   ┌───────────────────────┐   ┌────────┐
//!  │ TLS is up ├──▶│ handshake     ├──▶│ established session   ├──▶│ closed │
//!  └───────────┘   │ Client-,      │   │ Codec                 │   └────────┘
//!                  │ ServerHandshake   │                       │      ▲
//!                  └───────┬───────┘   └───────────┬───────────┘      │
//!                          │ Refusal               │ ProtocolError    │
//!                          └───────────────────────┴──────────────────┘
//! ```
//!
//! A session by hand, client and server in one place:
//!
//! ```
//! use bytes::{Bytes, BytesMut};
//! use ssntp::proto::{ClientHandshake, Codec, Connect, Frame, Item, ServerHandshake, Status, DEFAULT_MAX_PAYLOAD};
//! use ssntp::Role;
//! use uuid::Uuid;
//!
//! // The roles come from the peers' certificates.
//! let server = ServerHandshake::new(Role::AGENT, None);
//! let client = ClientHandshake::new(
//!     Connect::new(Role::AGENT, Uuid::from_u128(1), false), Role::SERVER, None, DEFAULT_MAX_PAYLOAD);
//!
//! let mut to_server = BytesMut::from(&client.connect()[..]);
//! let connect = server.receive(&mut to_server)?.expect("40 bytes are a whole CONNECT");
//! let connected = ServerHandshake::connected(
//!     &connect, Uuid::from_u128(2), Role::SERVER, false, Bytes::new());
//!
//! let mut to_client = BytesMut::from(&connected.encode()[..]);
//! assert!(client.receive(&mut to_client)?.is_some());
//!
//! to_server.extend_from_slice(&Frame::new(Status::FULL).encode());
//! let mut items = Vec::new();
//! Codec::new(DEFAULT_MAX_PAYLOAD, false).decode(&mut to_server, &mut items).expect("well-formed");
//! assert!(matches!(&items[..], [Item::Run(run)] if run.kind() == Status::FULL));
//! # Ok::<(), ssntp::proto::Refusal>(())
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `frame` | the bytes of each frame |
//! | `codec` | [`Codec`]: bytes in any pieces to [`Run`]s of frames |
//! | `handshake` | [`ClientHandshake`], [`ServerHandshake`]: every row of the table |
//! | `operands` | [`Operands`]: the frames of an application |
//! | `exchange` | [`Exchange`]: the first 32 bytes of requests and their answers |
//! | `error` | [`ProtocolError`], [`Refusal`] |

mod codec;
mod error;
mod exchange;
mod frame;
mod handshake;
mod operands;
#[cfg(test)]
mod tests;

/// The default port of a server (docs/protocol.md, "Underneath").
pub const DEFAULT_PORT: u16 = 8888;

pub use self::codec::{Codec, DEFAULT_MAX_PAYLOAD, Item, Run};
pub(crate) use self::codec::{LINK, apart, invalid_frame_type};
pub use self::error::{ProtocolError, Refusal};
pub(crate) use self::exchange::content;
pub use self::exchange::{Exchange, Step};
pub use self::frame::*;
pub use self::handshake::{ClientHandshake, ServerHandshake};
pub(crate) use self::operands::PROBE;
pub use self::operands::{OperandError, Operands};
