//! The frames of a link, byte by byte (docs/links.md, "Link frames").
//!
//! ```text
//!  0       1       2      3         4          8
//!  +-------+-------+------+---------+----------+ - - - - - +
//!  | major | minor | 0x4c | operand |  length  |  fields   |
//!  +-------+-------+------+---------+----------+ - - - - - +
//! ```
//!
//! A link frame has the header of every SSNTP frame and a type of its own, so the codec of
//! sessions also splits the bytes of a link into frames. The table [`LinkFrame`] has all frames with
//! their fields in wire order; `fields` encodes each type of field. Nothing here does I/O. A frame
//! with too few bytes, too many bytes, or an undefined value is a [`LinkFault`], which ends the link.

mod fields;

use bytes::Bytes;
use uuid::Uuid;

use self::fields::{LinkValue, Malformed};
use crate::proto::{FrameKind, Header, LINK};
use crate::server::sessions::Rank;
use ssntp_pki::Role;
use ssntp_transport::PeerAddress;

/// The version in HELLO. Servers of different versions do not link.
pub(super) const VERSION: u16 = 1;

/// The number of bytes by which a FORWARD may be longer than the longest payload of a session: its
/// own fields, and the short frames that were read together with a long one.
pub(crate) const SLACK: u32 = 1 << 20;

/// The maximum number of sessions that one FORWARD names.
const MAX_TARGETS: usize = 1024;
/// The rows of one SNAPSHOT. A row has some 60 bytes, so a frame has about 64 KiB.
pub(super) const ROWS: usize = 1000;

/// A violation of the link protocol by the peer. It ends the link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinkFault {
    /// The frame ends before its last field.
    #[error("{0} is too short")]
    Short(&'static str),
    /// Bytes follow the last field.
    #[error("{0} has {1} bytes too many")]
    Long(&'static str, usize),
    /// A field of the frame has a value that is not valid.
    #[error("{0}: the value of {1} is not valid")]
    Value(&'static str, &'static str),
    /// The frame is not a link frame, or its operand is unknown.
    #[error("a frame {0} does not belong on a link")]
    Kind(FrameKind),
    /// A link frame came when it is not allowed, such as a second HELLO.
    #[error("unexpected {0}")]
    Turn(&'static str),
    /// A change of sessions is missing.
    #[error("change {got} of the peer's sessions came after change {before}")]
    Gap {
        /// The number of the previous change.
        before: u64,
        /// The number that came.
        got: u64,
    },
    /// The peer reports more sessions than a server can have.
    #[error("the peer reported more than {0} sessions")]
    Sessions(usize),
}

/// The properties of a server, sent when a link starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) version: u16,
    pub(super) uuid: Uuid,
    /// A random number of this start of the server.
    pub(super) incarnation: u64,
    pub(super) role: Role,
    /// The highest token that the server has seen.
    pub(super) token: u64,
    /// The longest payload of its sessions, in bytes. Linked servers must have the same limit.
    pub(super) max_payload: u32,
    /// The address at which other servers reach it; empty if none is configured.
    pub(super) advertised: String,
}

/// One session, as it goes over a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) uuid: Uuid,
    /// The session's number at its server.
    pub(super) number: u64,
    pub(super) rank: Rank,
    pub(super) role: Role,
    pub(super) tracing: bool,
    pub(super) address: PeerAddress,
}

/// The receivers of a FORWARD at the server that gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Receivers {
    /// These sessions.
    Sessions(Vec<Uuid>),
    /// Every session with one of these roles.
    Role(Role),
    /// The application.
    Application,
}

/// Frames on their way to sessions of another server, or to its application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Forward {
    /// The leader's token if the application caused it, otherwise 0.
    pub(super) token: u64,
    /// The number of the session whose frames caused it, or 0. The receiving server sends HOLD for
    /// this number.
    pub(super) number: u64,
    /// The client that sent the frames, or nil. A multicast does not return them to this client.
    pub(super) from: Uuid,
    /// True for one frame with a trace.
    pub(super) traced: bool,
    pub(super) to: Receivers,
    /// Whole SSNTP frames of one kind.
    pub(super) frames: Bytes,
}

/// The reason for which a server ends a link, as a code for the program at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndCode {
    /// The server stops, or its side of the link failed.
    Closing = 0,
    /// The two servers are linked already.
    Duplicate = 1,
    /// The certificate, the version or a setting does not fit.
    Refused = 2,
    /// A frame of the peer was wrong.
    Fault = 3,
    /// Both ends are the same server.
    Own = 4,
}

/// Declares [`LinkFrame`] from one table: operand, name, and fields in wire order.
macro_rules! link_frames {
    ($($(#[$doc:meta])* $operand:literal $name:literal $frame:ident { $($field:ident: $value:ty),* })*) => {
        /// A frame of a link.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(super) enum LinkFrame {
            $($(#[$doc])* $frame { $($field: $value),* },)*
        }

        impl LinkFrame {
            /// The number of operands, which begin at 0.
            #[cfg(test)]
            const OPERANDS: usize = [$($operand),*].len();

            fn operand(&self) -> u8 {
                match self { $(Self::$frame { .. } => $operand,)* }
            }

            /// The name in log lines and errors.
            pub(super) fn name(&self) -> &'static str {
                match self { $(Self::$frame { .. } => $name,)* }
            }

            fn put(&self, out: &mut Vec<u8>) {
                match self { $(Self::$frame { $($field),* } => { $($field.put(out);)* })* }
            }

            /// `None` for an unknown operand.
            fn take(operand: u8, input: &mut Bytes) -> Result<Option<Self>, LinkFault> {
                Ok(Some(match operand {
                    $($operand => Self::$frame {
                        $($field: LinkValue::take(input).map_err(|malformed| match malformed {
                            Malformed::Short => LinkFault::Short($name),
                            Malformed::Value(field) => LinkFault::Value($name, field),
                        })?),*
                    },)*
                    _ => return Ok(None),
                }))
            }
        }
    };
}

link_frames! {
    /// The first frame in each direction.
    0 "HELLO" Hello { hello: Hello }
    /// A part of the list of all sessions, which includes every change up to `sequence`.
    1 "SNAPSHOT" Snapshot { sequence: u64, is_last: bool, rows: Vec<Row> }
    /// The server has a new session.
    2 "CONNECTED" Connected { sequence: u64, row: Row }
    /// The session with this number has ended.
    3 "GONE" Gone { sequence: u64, number: u64, uuid: Uuid }
    /// Frames of clients or of the application.
    4 "FORWARD" Forward { forward: Forward }
    /// A receiver has no room, so the session with this number is not read until GO.
    5 "HOLD" Hold { number: u64 }
    /// The session may be read again.
    6 "GO" Go { number: u64 }
    /// A message of the application to the application of the other server.
    7 "TELL" Tell { token: u64, message: Bytes }
    /// A client wants to connect with a UUID that has a session at the receiving server. May it replace that
    /// session? The certificates are all that it has shown, its own first.
    8 "CLAIM" Claim { id: u64, uuid: Uuid, certificates: Bytes }
    /// The answer to CLAIM: 0 to admit, otherwise the code of a refusal.
    9 "CLAIMED" Claimed { id: u64, verdict: u8 }
    /// Sent each second, so that the peer notices a server that hangs.
    10 "ALIVE" Alive {}
    /// The link ends, or does not begin. `server` is the UUID of the sender.
    11 "END" End { code: EndCode, server: Uuid, reason: String }
}

impl LinkFrame {
    /// Encodes the frame with its header.
    pub(super) fn encode(&self) -> Bytes {
        let frames = match self {
            Self::Forward { forward } => forward.frames.len(),
            _ => 0,
        };
        // One allocation for a FORWARD to one session or to a role: without its frames it has less than
        // 64 bytes.
        let mut out = Vec::with_capacity(Header::LEN + 64 + frames);
        out.resize(Header::LEN, 0);
        self.put(&mut out);
        let length = u32::try_from(out.len() - Header::LEN).unwrap_or(u32::MAX);
        let header = Header::new(FrameKind::new(LINK, self.operand()), length).encode();
        out[..Header::LEN].copy_from_slice(&header);
        out.into()
    }

    /// Decodes a frame of this kind. `payload` is the frame without its header.
    ///
    /// # Errors
    /// [`LinkFault`].
    pub(super) fn decode(kind: FrameKind, mut payload: Bytes) -> Result<Self, LinkFault> {
        if kind.frame_type != LINK {
            return Err(LinkFault::Kind(kind));
        }
        let frame = Self::take(kind.operand, &mut payload)?.ok_or(LinkFault::Kind(kind))?;
        // HELLO of another version may have more fields. It is decoded all the same, so that the refusal
        // can name both versions.
        let is_other_version = matches!(&frame, Self::Hello { hello } if hello.version != VERSION);
        match payload.len() {
            more if more > 0 && !is_other_version => Err(LinkFault::Long(frame.name(), more)),
            _ => Ok(frame),
        }
    }
}

#[cfg(test)]
mod tests;
