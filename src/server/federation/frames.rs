//! What goes over a link, byte by byte (docs/links.md, "Link frames").
//!
//! ```text
//!  0       1       2      3         4          8
//!  +-------+-------+------+---------+----------+ - - - - - +
//!  | major | minor | 0x4c | operand |  length  |  fields   |
//!  +-------+-------+------+---------+----------+ - - - - - +
//! ```
//!
//! A link frame has the header of every SSNTP frame, with a type of its own, so that the
//! codec of sessions cuts links, too. All integers are big-endian, a UUID is its 16 bytes, a
//! text has a length of 16 bits before it. Nothing here does I/O. A frame with too few
//! bytes, too many, or a value that is not defined is a [`LinkFault`], which ends the link.

mod fields;

use bytes::Bytes;
use uuid::Uuid;

use self::fields::{Fields, put_forward, put_row, put_text};
use super::roster::Row;
use crate::proto::{FrameKind, FrameType, HEADER_LEN, Header};
use ssntp_transport::Role;

/// The version that HELLO names. Servers of different versions do not link.
pub(super) const VERSION: u16 = 1;

/// The type byte of link frames.
pub(crate) const LINK: FrameType = FrameType(0x4c);

/// What a FORWARD may be longer than the longest payload of a session: its own fields, and the
/// short frames that came in one read with a long one.
pub(crate) const SLACK: u32 = 1 << 20;

/// The sessions that one FORWARD names at most.
pub(super) const MAX_TARGETS: usize = 1024;
/// The rows of one SNAPSHOT. A row has some 60 bytes, so a frame has about 64 KiB.
pub(super) const ROWS: usize = 1000;

/// Why a link ends that its peer has broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LinkFault {
    /// The frame ends before its last field.
    #[error("{0} is too short")]
    Short(&'static str),
    /// Bytes follow the last field.
    #[error("{0} has {1} bytes too many")]
    Long(&'static str, usize),
    /// A field has a value that is not defined.
    #[error("{0}: the value of its {1} is not defined")]
    Value(&'static str, &'static str),
    /// A frame that is not one of a link.
    #[error("a frame {0} does not belong on a link")]
    Kind(FrameKind),
    /// A link frame at a time when it may not come.
    #[error("{0} came out of its turn")]
    Turn(&'static str),
    /// A change of sessions is missing.
    #[error("change {got} of its sessions came after change {before}")]
    Gap {
        /// The number of the change before.
        before: u64,
        /// The number that came.
        got: u64,
    },
    /// It tells of more sessions than a server has.
    #[error("it told of more than {0} sessions")]
    Sessions(usize),
}

/// Who a server is, as it says when a link starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) version: u16,
    pub(super) uuid: Uuid,
    /// A random number of this start of the server.
    pub(super) incarnation: u64,
    pub(super) role: Role,
    /// The highest token that it has seen.
    pub(super) token: u64,
    /// The longest payload of its sessions, which servers that link have in common.
    pub(super) max_payload: u32,
    /// Where others reach it, if it says so.
    pub(super) advertised: String,
}

/// To whom a FORWARD goes at the server that gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum To {
    /// To these sessions.
    Sessions(Vec<Uuid>),
    /// To every session with one of these roles.
    Role(Role),
    /// To the application.
    Application,
}

/// Frames on their way to sessions of another server, or to its application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Forward {
    /// The leader's token if the application caused it, otherwise 0.
    pub(super) token: u64,
    /// The number of the session whose frames caused it, or 0. The receiver says `hold` for
    /// this number.
    pub(super) number: u64,
    /// The client that the frames come from, or nil. It gets none of them back.
    pub(super) from: Uuid,
    pub(super) to: To,
    /// Whether it is one frame with a trace.
    pub(super) traced: bool,
    /// Whole SSNTP frames of one kind.
    pub(super) frames: Bytes,
}

/// A frame of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LinkFrame {
    Hello(Hello),
    /// A part of all sessions at the time of change `sequence`.
    Snapshot {
        sequence: u64,
        is_last: bool,
        rows: Vec<Row>,
    },
    Connected {
        sequence: u64,
        row: Row,
    },
    Gone {
        sequence: u64,
        number: u64,
        uuid: Uuid,
    },
    Forward(Forward),
    /// The receiver of what this session sends has no room: it is not to be read.
    Hold(u64),
    /// The session may be read again.
    Go(u64),
    /// Something between the applications of the servers.
    Tell {
        token: u64,
        message: Bytes,
    },
    /// A client with this certificate has come: may it have the UUID of a session there?
    Claim {
        id: u64,
        uuid: Uuid,
        certificate: Bytes,
    },
    /// The answer: 0, or why it may not.
    Claimed {
        id: u64,
        verdict: u8,
    },
    /// Nothing has happened for a while.
    Alive,
    /// The link ends, or does not begin, for this reason.
    End {
        end: End,
        /// The server that says so.
        server: Uuid,
        reason: String,
    },
}

/// Why a server ends a link, for the program at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum End {
    /// The server stops, or something else is wrong at its side.
    Closing = 0,
    /// There is a link between the two already.
    Duplicate = 1,
    /// The certificate, the version or a setting does not fit.
    Refused = 2,
    /// A frame of the peer was wrong.
    Fault = 3,
    /// The two are the same server.
    Own = 4,
}

/// The operands and the names in messages.
const NAMES: [&str; 12] = [
    "HELLO",
    "SNAPSHOT",
    "CONNECTED",
    "GONE",
    "FORWARD",
    "HOLD",
    "GO",
    "TELL",
    "CLAIM",
    "CLAIMED",
    "ALIVE",
    "END",
];

impl LinkFrame {
    fn operand(&self) -> u8 {
        match self {
            Self::Hello(_) => 0,
            Self::Snapshot { .. } => 1,
            Self::Connected { .. } => 2,
            Self::Gone { .. } => 3,
            Self::Forward(_) => 4,
            Self::Hold(_) => 5,
            Self::Go(_) => 6,
            Self::Tell { .. } => 7,
            Self::Claim { .. } => 8,
            Self::Claimed { .. } => 9,
            Self::Alive => 10,
            Self::End { .. } => 11,
        }
    }

    /// Its name in messages.
    pub(super) fn name(&self) -> &'static str {
        NAMES.get(usize::from(self.operand())).copied().unwrap_or("frame")
    }

    /// The frame with its header.
    pub(super) fn encode(&self) -> Bytes {
        let mut out = vec![0; HEADER_LEN];
        match self {
            Self::Hello(hello) => {
                out.extend(hello.version.to_be_bytes());
                out.extend(hello.uuid.as_bytes());
                out.extend(hello.incarnation.to_be_bytes());
                out.extend(hello.role.bits().to_be_bytes());
                out.extend(hello.token.to_be_bytes());
                out.extend(hello.max_payload.to_be_bytes());
                put_text(&mut out, &hello.advertised);
            }
            Self::Snapshot {
                sequence,
                is_last,
                rows,
            } => {
                out.extend(sequence.to_be_bytes());
                out.push(u8::from(*is_last));
                for row in rows {
                    put_row(&mut out, row);
                }
            }
            Self::Connected { sequence, row } => {
                out.extend(sequence.to_be_bytes());
                put_row(&mut out, row);
            }
            Self::Gone {
                sequence,
                number,
                uuid,
            } => {
                out.extend(sequence.to_be_bytes());
                out.extend(number.to_be_bytes());
                out.extend(uuid.as_bytes());
            }
            Self::Forward(forward) => put_forward(&mut out, forward),
            Self::Hold(number) | Self::Go(number) => out.extend(number.to_be_bytes()),
            Self::Tell { token, message } => {
                out.extend(token.to_be_bytes());
                out.extend(message);
            }
            Self::Claim {
                id,
                uuid,
                certificate,
            } => {
                out.extend(id.to_be_bytes());
                out.extend(uuid.as_bytes());
                out.extend(certificate);
            }
            Self::Claimed { id, verdict } => {
                out.extend(id.to_be_bytes());
                out.push(*verdict);
            }
            Self::Alive => {}
            Self::End { end, server, reason } => {
                out.push(*end as u8);
                out.extend(server.as_bytes());
                put_text(&mut out, reason);
            }
        }
        let length = u32::try_from(out.len() - HEADER_LEN).unwrap_or(u32::MAX);
        let header = Header::new(FrameKind::new(LINK, self.operand()), length).encode();
        for (to, from) in out.iter_mut().zip(header) {
            *to = from;
        }
        out.into()
    }

    /// Reads the frame of this kind from what follows its header.
    ///
    /// # Errors
    /// [`LinkFault`].
    pub(super) fn decode(kind: FrameKind, payload: Bytes) -> Result<Self, LinkFault> {
        let name = NAMES.get(usize::from(kind.operand));
        let Some(name) = name.copied().filter(|_| kind.frame_type == LINK) else {
            return Err(LinkFault::Kind(kind));
        };
        let mut fields = Fields { name, bytes: payload };
        let frame = match kind.operand {
            0 => {
                let hello = Hello {
                    version: fields.u16()?,
                    uuid: fields.uuid()?,
                    incarnation: fields.u64()?,
                    role: Role::from_bits(fields.u32()?),
                    token: fields.u64()?,
                    max_payload: fields.u32()?,
                    advertised: fields.text()?,
                };
                // A later version may add fields; that it is another one is said by name.
                if hello.version != VERSION {
                    fields.rest();
                }
                Self::Hello(hello)
            }
            1 => Self::Snapshot {
                sequence: fields.u64()?,
                is_last: fields.flag("last")?,
                rows: fields.rows()?,
            },
            2 => Self::Connected {
                sequence: fields.u64()?,
                row: fields.row()?,
            },
            3 => Self::Gone {
                sequence: fields.u64()?,
                number: fields.u64()?,
                uuid: fields.uuid()?,
            },
            4 => Self::Forward(fields.forward()?),
            5 => Self::Hold(fields.u64()?),
            6 => Self::Go(fields.u64()?),
            7 => Self::Tell {
                token: fields.u64()?,
                message: fields.rest(),
            },
            8 => Self::Claim {
                id: fields.u64()?,
                uuid: fields.uuid()?,
                certificate: fields.rest(),
            },
            9 => Self::Claimed {
                id: fields.u64()?,
                verdict: fields.u8()?,
            },
            10 => Self::Alive,
            _ => Self::End {
                end: fields.end()?,
                server: fields.uuid()?,
                reason: fields.text()?,
            },
        };
        match fields.bytes.len() {
            0 => Ok(frame),
            more => Err(LinkFault::Long(name, more)),
        }
    }
}

#[cfg(test)]
mod tests;
