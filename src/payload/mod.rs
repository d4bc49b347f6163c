//! The payloads of frames as types: those of a session, and those of an application.
//!
//! Each payload of the protocol is a type that implements [`Payload`]: it has the kind of its frame,
//! and reads and writes the frame's YAML. A type of your own implements [`Content`]. The payloads of
//! a cloud, such as START and STATS, are in the package `ssntp-payload`. This module does no I/O.
//!
//! ```
//! use ssntp::payload::Kick;
//! use ssntp::proto::{Command, Frame};
//!
//! let payload = "\
//! kick:
//!   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b16
//!   uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
//! ";
//! let frame = Frame::with_payload(Command::KICK, payload);
//! let kick: Kick = frame.payload()?;
//! assert_eq!(kick.ban_s, 0, "the default");
//!
//! let again = Frame::of(&kick);
//! assert_eq!(again.kind(), Command::KICK);
//! # Ok::<(), ssntp::payload::Error>(())
//! ```
//!
//! | file | frames |
//! |---|---|
//! | `servers` | ListServers, DrainServer, Servers |
//! | `sessions` | ListSessions, Sessions |
//! | `draining` | Draining |
//! | `kick` | Kick, Kicked, ListBans, Bans, Unban, Unbanned |
//! | `watch` | Watch, Watched |
//! | `invalid_frame_type` | InvalidFrameType |
//!
//! The other files:
//!
//! | file | holds |
//! |---|---|
//! | `content` | [`Content`]: the types of an application |
//! | `json` | JSON for these types |
//! | `id` | [`Id`], the text that identifies an entity |
//! | `names` | texts with known values, which keep unknown values |
//! | `schema` | the macros that define a schema |
//!
//! [`yaml`] is a package of its own: reading and writing, the limits, [`yaml::Error`].
//!
//! # Rules that all schemas share
//! A field may be missing unless its schema requires it, and then has its default. Unknown keys are
//! ignored. A text with known values keeps an unknown value. Numbers are integers. Sizes are in MB
//! (10^6 or 2^20 bytes, as the sender counts) unless the field says otherwise. [`yaml`] describes
//! how YAML is read, written and limited; most payloads have the shorter limit [`MAX_READ_LEN`].

mod content;
mod draining;
mod id;
mod invalid_frame_type;
pub mod json;
mod kick;
mod names;
#[doc(hidden)]
pub mod schema;
mod servers;
mod sessions;
mod watch;

use bytes::Bytes;
pub use ssntp_yaml as yaml;

pub use self::content::Content;
pub use self::draining::Draining;
pub use self::id::Id;
pub use self::invalid_frame_type::{InvalidFrameType, InvalidFrameTypeReason};
pub use self::kick::{BanEntry, Bans, Kick, Kicked, ListBans, OperatorRefusal, Unban, Unbanned};
pub use self::servers::{DrainServer, ListServers, ServerEntry, ServerState, Servers};
pub use self::sessions::{ListSessions, SessionEntry, Sessions};
pub use self::watch::{Watch, Watched};
use crate::proto::FrameKind;

/// The limit of most payloads of the protocol, in bytes (64 KiB). STATS, TraceReport and the
/// answers to operators hold lists, and may be as long as [`yaml::MAX_DOCUMENT_LEN`]. In a START
/// this is the limit of the command, not of the documents after it.
// A server reads most payloads on its dispatcher, which serves all sessions. Reading 1 MiB takes
// 35 ms and more, reading 64 KiB about two. Longer payloads are read on other threads, except
// STATS, of which `StatsSummary` reads only the part that a scheduler needs.
pub const MAX_READ_LEN: usize = 64 << 10;

/// A schema of the protocol: the payload of one kind of frame. Encoding it never fails. Types of an
/// application implement [`Content`].
pub trait Payload: Sized {
    /// The kind of frame that carries it.
    const KIND: FrameKind;

    /// Reads a payload.
    ///
    /// # Errors
    /// [`Error::Document`], with path and line, if it is not YAML within the limits of [`yaml`], or
    /// does not match the schema.
    fn decode(payload: &[u8]) -> Result<Self, Error>;

    /// Writes a payload that [`decode`](Self::decode) reads back equal.
    fn encode(&self) -> Bytes;
}

/// A payload that was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The frame has another kind than the schema: a mistake of the caller, not of the peer.
    #[error("cannot read a payload of {expected} from a {found} frame")]
    OtherKind {
        /// The kind of the schema.
        expected: FrameKind,
        /// The frame's kind.
        found: FrameKind,
    },
    /// The document does not match the schema: a mistake of the peer. Answer with the matching
    /// failure and the reason `invalid_payload` if the document
    /// [is malformed](yaml::Error::is_malformed), else `invalid_data`.
    #[error(transparent)]
    Document(#[from] yaml::Error),
    /// A payload of an application's own type cannot be read or written.
    #[error("{0}")]
    Content(String),
}

impl Error {
    /// The path in the document, as `start.storage[0].size`; empty for the whole document.
    pub fn path(&self) -> String {
        match self {
            Self::OtherKind { .. } | Self::Content(_) => String::new(),
            Self::Document(error) => error.path(),
        }
    }

    /// The line in the payload, counted from 1.
    pub fn line(&self) -> Option<usize> {
        match self {
            Self::OtherKind { .. } | Self::Content(_) => None,
            Self::Document(error) => error.line(),
        }
    }

    /// True if the payload is not a readable document: see [`yaml::Error::is_malformed`].
    pub fn is_malformed(&self) -> bool {
        matches!(self, Self::Document(error) if error.is_malformed())
    }
}
