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

use bytes::{Buf, Bytes};
use uuid::Uuid;

use super::roster::{Rank, Row};
use crate::proto::{FrameKind, FrameType, HEADER_LEN, Header};
use ssntp_transport::{PeerAddress, Role};

/// The version that HELLO names. Servers of different versions do not link.
pub(super) const VERSION: u16 = 1;

/// The type byte of link frames.
pub(crate) const LINK: FrameType = FrameType(0x4c);

/// What a FORWARD may be longer than the longest payload of a session: its own fields, and the
/// short frames that came in one read with a long one.
pub(crate) const SLACK: u32 = 1 << 20;

/// The longest text, such as an address or a reason.
const MAX_TEXT: usize = 256;
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
            0 => Self::Hello(Hello {
                version: fields.u16()?,
                uuid: fields.uuid()?,
                incarnation: fields.u64()?,
                role: Role::from_bits(fields.u32()?),
                token: fields.u64()?,
                max_payload: fields.u32()?,
                advertised: fields.text()?,
            }),
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

fn put_text(out: &mut Vec<u8>, text: &str) {
    let whole = text.char_indices().map(|(at, one)| at + one.len_utf8());
    let end = whole
        .take_while(|end| *end <= MAX_TEXT)
        .last()
        .unwrap_or_default();
    let text = text.get(..end).unwrap_or_default();
    out.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend(text.as_bytes());
}

fn put_row(out: &mut Vec<u8>, row: &Row) {
    out.extend(row.uuid.as_bytes());
    out.extend(row.number.to_be_bytes());
    out.extend(row.rank.token.to_be_bytes());
    out.extend(row.rank.stamp.to_be_bytes());
    out.extend(row.role.bits().to_be_bytes());
    out.push(u8::from(row.tracing));
    let address = match row.address {
        PeerAddress::Ip(address) => address.to_string(),
        PeerAddress::Unix => "unix".into(),
        _ => String::new(),
    };
    put_text(out, &address);
}

fn put_forward(out: &mut Vec<u8>, forward: &Forward) {
    out.reserve_exact(64 + forward.frames.len());
    out.extend(forward.token.to_be_bytes());
    out.extend(forward.number.to_be_bytes());
    out.extend(forward.from.as_bytes());
    out.push(u8::from(forward.traced));
    match &forward.to {
        To::Sessions(uuids) => {
            out.push(0);
            out.extend(u16::try_from(uuids.len()).unwrap_or(u16::MAX).to_be_bytes());
            for uuid in uuids {
                out.extend(uuid.as_bytes());
            }
        }
        To::Role(role) => {
            out.push(1);
            out.extend(role.bits().to_be_bytes());
        }
        To::Application => out.push(2),
    }
    out.extend(&forward.frames);
}

/// The fields of one frame that are not read yet.
struct Fields {
    name: &'static str,
    bytes: Bytes,
}

impl Fields {
    fn short<T, E>(&self, read: Result<T, E>) -> Result<T, LinkFault> {
        read.map_err(|_| LinkFault::Short(self.name))
    }

    fn u8(&mut self) -> Result<u8, LinkFault> {
        let read = self.bytes.try_get_u8();
        self.short(read)
    }

    fn u16(&mut self) -> Result<u16, LinkFault> {
        let read = self.bytes.try_get_u16();
        self.short(read)
    }

    fn u32(&mut self) -> Result<u32, LinkFault> {
        let read = self.bytes.try_get_u32();
        self.short(read)
    }

    fn u64(&mut self) -> Result<u64, LinkFault> {
        let read = self.bytes.try_get_u64();
        self.short(read)
    }

    fn uuid(&mut self) -> Result<Uuid, LinkFault> {
        let read = self.bytes.try_get_u128();
        self.short(read).map(Uuid::from_u128)
    }

    fn flag(&mut self, field: &'static str) -> Result<bool, LinkFault> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(LinkFault::Value(self.name, field)),
        }
    }

    fn text(&mut self) -> Result<String, LinkFault> {
        let length = usize::from(self.u16()?);
        if length > MAX_TEXT {
            return Err(LinkFault::Value(self.name, "text"));
        }
        if self.bytes.len() < length {
            return Err(LinkFault::Short(self.name));
        }
        let text = self.bytes.split_to(length);
        String::from_utf8(text.into()).map_err(|_| LinkFault::Value(self.name, "text"))
    }

    fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes)
    }

    fn end(&mut self) -> Result<End, LinkFault> {
        Ok(match self.u8()? {
            0 => End::Closing,
            1 => End::Duplicate,
            2 => End::Refused,
            3 => End::Fault,
            4 => End::Own,
            _ => return Err(LinkFault::Value(self.name, "code")),
        })
    }

    fn row(&mut self) -> Result<Row, LinkFault> {
        Ok(Row {
            uuid: self.uuid()?,
            number: self.u64()?,
            rank: Rank {
                token: self.u64()?,
                stamp: self.u64()?,
            },
            role: Role::from_bits(self.u32()?),
            tracing: self.flag("trace flag")?,
            address: match self.text()?.as_str() {
                "" => PeerAddress::Memory,
                "unix" => PeerAddress::Unix,
                address => {
                    let address = address.parse();
                    PeerAddress::Ip(address.map_err(|_| LinkFault::Value(self.name, "address"))?)
                }
            },
        })
    }

    fn rows(&mut self) -> Result<Vec<Row>, LinkFault> {
        let mut rows = Vec::new();
        while !self.bytes.is_empty() {
            rows.push(self.row()?);
        }
        Ok(rows)
    }

    fn forward(&mut self) -> Result<Forward, LinkFault> {
        Ok(Forward {
            token: self.u64()?,
            number: self.u64()?,
            from: self.uuid()?,
            traced: self.flag("trace flag")?,
            to: match self.u8()? {
                0 => {
                    let count = usize::from(self.u16()?);
                    if count > MAX_TARGETS {
                        return Err(LinkFault::Value(self.name, "number of sessions"));
                    }
                    To::Sessions((0..count).map(|_| self.uuid()).collect::<Result<_, _>>()?)
                }
                1 => To::Role(Role::from_bits(self.u32()?)),
                2 => To::Application,
                _ => return Err(LinkFault::Value(self.name, "target")),
            },
            frames: self.rest(),
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use proptest::prelude::*;

    use super::*;
    use crate::proto::{Codec, Item};

    fn uuid() -> impl Strategy<Value = Uuid> {
        any::<u128>().prop_map(Uuid::from_u128)
    }

    fn row() -> impl Strategy<Value = Row> {
        let address = prop_oneof![
            Just(PeerAddress::Memory),
            Just(PeerAddress::Unix),
            any::<std::net::SocketAddrV4>().prop_map(|a| PeerAddress::Ip(a.into())),
            any::<(std::net::Ipv6Addr, u16)>().prop_map(|a| PeerAddress::Ip(a.into())),
        ];
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>());
        (uuid(), numbers, 0..=Role::ALL.bits(), any::<bool>(), address).prop_map(
            |(uuid, (number, token, stamp), role, tracing, address)| Row {
                uuid,
                number,
                rank: Rank { token, stamp },
                role: Role::from_bits(role),
                tracing,
                address,
            },
        )
    }

    fn bytes() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from)
    }

    fn frame() -> impl Strategy<Value = LinkFrame> {
        let hello = (
            any::<u16>(),
            uuid(),
            any::<[u64; 2]>(),
            any::<u32>(),
            "[a-z:0-9]{0,30}",
        );
        let to = prop_oneof![
            proptest::collection::vec(uuid(), 0..5).prop_map(To::Sessions),
            (0..=Role::ALL.bits()).prop_map(|role| To::Role(Role::from_bits(role))),
            Just(To::Application),
        ];
        let forward = (any::<[u64; 2]>(), uuid(), to, any::<bool>(), bytes());
        let end = prop_oneof![
            Just(End::Closing),
            Just(End::Duplicate),
            Just(End::Refused),
            Just(End::Fault),
            Just(End::Own)
        ];
        prop_oneof![
            hello.prop_map(|(version, uuid, [incarnation, token], max_payload, advertised)| {
                LinkFrame::Hello(Hello {
                    version,
                    uuid,
                    incarnation,
                    role: Role::SERVER,
                    token,
                    max_payload,
                    advertised,
                })
            }),
            (
                any::<u64>(),
                any::<bool>(),
                proptest::collection::vec(row(), 0..4)
            )
                .prop_map(|(sequence, is_last, rows)| LinkFrame::Snapshot {
                    sequence,
                    is_last,
                    rows
                }),
            (any::<u64>(), row()).prop_map(|(sequence, row)| LinkFrame::Connected { sequence, row }),
            (any::<[u64; 2]>(), uuid()).prop_map(|([sequence, number], uuid)| LinkFrame::Gone {
                sequence,
                number,
                uuid
            }),
            forward.prop_map(|([token, number], from, to, traced, frames)| {
                LinkFrame::Forward(Forward {
                    token,
                    number,
                    from,
                    to,
                    traced,
                    frames,
                })
            }),
            any::<u64>().prop_map(LinkFrame::Hold),
            any::<u64>().prop_map(LinkFrame::Go),
            (any::<u64>(), bytes()).prop_map(|(token, message)| LinkFrame::Tell { token, message }),
            (any::<u64>(), uuid(), bytes()).prop_map(|(id, uuid, certificate)| LinkFrame::Claim {
                id,
                uuid,
                certificate
            }),
            (any::<u64>(), any::<u8>()).prop_map(|(id, verdict)| LinkFrame::Claimed { id, verdict }),
            Just(LinkFrame::Alive),
            (end, uuid(), "[ -~]{0,256}").prop_map(|(end, server, reason)| LinkFrame::End {
                end,
                server,
                reason
            }),
        ]
    }

    /// What the codec of a link and the decoder make of these bytes.
    fn decode(bytes: &[u8]) -> Vec<Result<LinkFrame, LinkFault>> {
        let mut items = Vec::new();
        let mut codec = Codec::of_links(1 << 16);
        codec.decode(&mut BytesMut::from(bytes), &mut items).unwrap();
        let mut found = Vec::new();
        for item in items {
            match item {
                Item::Run(run) => found.extend(
                    run.frames()
                        .map(|frame| LinkFrame::decode(frame.kind(), frame.payload_bytes().clone())),
                ),
                other => found.push(Err(LinkFault::Kind(other.kind()))),
            }
        }
        found
    }

    proptest! {
        #[test]
        fn every_frame_is_read_as_it_was_written(frames in proptest::collection::vec(frame(), 1..5)) {
            let bytes: Vec<u8> = frames.iter().flat_map(LinkFrame::encode).collect();
            let read: Result<Vec<_>, _> = decode(&bytes).into_iter().collect();
            prop_assert_eq!(read, Ok(frames));
        }

        #[test]
        fn a_frame_that_is_cut_or_too_long_is_never_read(frame in frame(), cut in 1usize..40) {
            let whole = frame.encode().slice(HEADER_LEN..);
            let kind = FrameKind::new(LINK, frame.operand());
            // A body of any length, and as many rows as there are, belong to these.
            let is_open = matches!(
                frame,
                LinkFrame::Forward(_) | LinkFrame::Tell { .. } | LinkFrame::Claim { .. } | LinkFrame::Snapshot { .. }
            );
            if !is_open {
                let longer = Bytes::from([&whole[..], &vec![0; cut]].concat());
                prop_assert!(LinkFrame::decode(kind, longer).is_err());
                if !whole.is_empty() {
                    let shorter = whole.slice(..whole.len() - cut.min(whole.len()));
                    prop_assert_eq!(LinkFrame::decode(kind, shorter), Err(LinkFault::Short(frame.name())));
                }
            }
        }

        #[test]
        fn garbage_is_read_or_refused_and_never_panics(operand: u8, garbage in bytes()) {
            let kind = FrameKind::new(LINK, operand);
            let known = usize::from(operand) < NAMES.len();
            match LinkFrame::decode(kind, garbage.clone()) {
                Ok(frame) => {
                    // Roles keep bits that are not defined, so what was read is what is written.
                    prop_assert_eq!(frame.encode().slice(HEADER_LEN..), garbage);
                }
                Err(fault) => prop_assert!(known || fault == LinkFault::Kind(kind)),
            }
        }
    }

    #[test]
    fn a_fault_names_the_frame_and_the_field() {
        let decode = |operand, bytes: &'static [u8]| {
            let read = LinkFrame::decode(FrameKind::new(LINK, operand), Bytes::from_static(bytes));
            read.unwrap_err().to_string()
        };
        assert_eq!(decode(5, &[0; 7]), "HOLD is too short");
        assert_eq!(decode(10, &[0; 7]), "ALIVE has 7 bytes too many");
        assert_eq!(
            decode(11, &[9, 0, 0]),
            "END: the value of its code is not defined"
        );
        assert_eq!(decode(200, &[]), "a frame 0x4c/0xc8 does not belong on a link");
    }
}
