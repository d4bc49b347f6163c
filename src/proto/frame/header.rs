//! The 8-byte header, and the meaning of its type and operand bytes
//! (docs/protocol.md, "Header").

use std::fmt;
use std::str::FromStr;

use byteorder::{BigEndian, ByteOrder};

use super::fields::{Fields, Notes};
use super::{Command, ErrorCode, Event, Status};
use ssntp_pki::Role;

/// The minor version this crate writes; any is accepted.
pub(crate) const MINOR: u8 = 1;

crate::named! {
    /// The type byte of a header. Unknown values survive and print as hex.
    FrameType after "" => {
        /// Asks the receiver to do something.
        0x0 COMMAND = "COMMAND";
        /// Reports the state of a node.
        0x1 STATUS = "STATUS";
        /// Reports an event.
        0x3 EVENT = "EVENT";
        /// Reports a failure.
        0x4 ERROR = "ERROR";
    }
}

impl FrameType {
    /// True if the protocol defines the type.
    pub const fn is_known(self) -> bool {
        self.name().is_some()
    }
}

impl FromStr for FrameType {
    type Err = ParseKindError;

    /// Reads one of the four names in any case.
    fn from_str(text: &str) -> Result<Self, ParseKindError> {
        let mut all = Self::ALL.iter().copied();
        all.find(|t| t.name().is_some_and(|n| n.eq_ignore_ascii_case(text)))
            .ok_or_else(|| {
                ParseKindError(format!(
                    "{text:?} is not a frame type (COMMAND, STATUS, EVENT, ERROR)"
                ))
            })
    }
}

/// The type and the operand of a frame: the key of routing rules, role filters and payload schemas.
///
/// ```
/// use ssntp::proto::{Command, FrameKind, FrameType};
///
/// let kind = FrameKind::from(Command::STATS);
/// assert_eq!(kind.frame_type, FrameType::COMMAND);
/// assert_eq!(kind.to_string(), "STATS");
/// assert_eq!("stats".parse(), Ok(kind));
/// assert_eq!(FrameKind::new(FrameType::COMMAND, 0x77).to_string(), "COMMAND/0x77");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameKind {
    /// The type byte.
    pub frame_type: FrameType,
    /// The operand byte, whose meaning depends on the type.
    pub operand: u8,
}

impl FrameKind {
    /// A kind from its two numbers.
    pub const fn new(frame_type: FrameType, operand: u8) -> Self {
        Self { frame_type, operand }
    }

    /// The operand's name. `None` if the protocol does not define the type or the operand.
    pub const fn name(self) -> Option<&'static str> {
        match self.frame_type {
            FrameType::COMMAND => Command(self.operand).name(),
            FrameType::STATUS => Status(self.operand).name(),
            FrameType::EVENT => Event(self.operand).name(),
            FrameType::ERROR => ErrorCode(self.operand).name(),
            _ => None,
        }
    }

    /// The roles that may send the frame in a cluster, and those to which a server that reads no payloads
    /// forwards it.
    pub(crate) fn cluster_roles(self) -> (Role, Role) {
        match self.frame_type {
            FrameType::COMMAND => Command(self.operand).roles(),
            FrameType::STATUS => Status(self.operand).roles(),
            FrameType::EVENT => Event(self.operand).roles(),
            FrameType::ERROR => ErrorCode(self.operand).roles(),
            _ => (Role::NONE, Role::NONE),
        }
    }

    /// True if the protocol defines the type and this operand of it.
    pub const fn is_known(self) -> bool {
        self.name().is_some()
    }

    /// True for CONNECT and CONNECTED. They occur only in the handshake, and their headers hold the
    /// role in place of the length.
    pub const fn is_handshake(self) -> bool {
        matches!(
            (self.frame_type, self.operand),
            (FrameType::COMMAND | FrameType::STATUS, 0)
        )
    }

    /// True if the operand belongs to applications: 0x80 to 0xfe, see [`Operands`](crate::proto::Operands).
    pub const fn is_application(self) -> bool {
        self.frame_type.is_known() && self.operand >= 0x80 && self.operand != 0xff
    }

    /// True for commands of operators, which list and end sessions, and for their answers.
    pub const fn is_of_operators(self) -> bool {
        // Without 0x47, Tenant, which goes to the application.
        match self.frame_type {
            FrameType::COMMAND => matches!(self.operand, 0x43..=0x46 | 0x48..=0x4a),
            FrameType::EVENT => matches!(self.operand, 0x43..=0x46 | 0x4a | 0x4b),
            _ => false,
        }
    }

    /// True for the frames of streams, which carry the output of instances.
    pub fn is_of_streams(self) -> bool {
        self.is_known() && matches!(self.operand, 0x40..=0x42)
    }

    /// All kinds that the protocol defines, by type, then operand.
    pub fn all() -> impl Iterator<Item = FrameKind> {
        FrameType::ALL.iter().flat_map(|t| {
            (0..=u8::MAX)
                .map(move |operand| FrameKind::new(*t, operand))
                .filter(|kind| kind.is_known())
        })
    }
}

impl fmt::Display for FrameKind {
    /// The operand's name, or `TYPE/0xNN` if it has none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{}/{:#04x}", self.frame_type, self.operand),
        }
    }
}

impl fmt::Debug for FrameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for FrameKind {
    type Err = ParseKindError;

    /// Reads an operand's name in upper or lower case (the names are unique over all types), or the
    /// type and number of an application's operand, as in `COMMAND/0x80`.
    fn from_str(text: &str) -> Result<Self, ParseKindError> {
        if let Some(kind) = by_number(text) {
            return Ok(kind);
        }
        Self::all()
            .find(|kind| kind.name().is_some_and(|n| n.eq_ignore_ascii_case(text)))
            .ok_or_else(|| ParseKindError(format!("{text:?} is not an operand of SSNTP")))
    }
}

fn by_number(text: &str) -> Option<FrameKind> {
    let (frame_type, operand) = text.split_once('/')?;
    let operand = u8::from_str_radix(operand.strip_prefix("0x")?, 16).ok()?;
    let kind = FrameKind::new(frame_type.parse().ok()?, operand);
    // An operand of the protocol is given by its name, and a number that the protocol has not assigned would
    // be refused by every peer.
    kind.is_application().then_some(kind)
}

/// A text that is not the name of a frame type or operand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseKindError(String);

/// The first eight bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Major version with the trace flag in bit 7.
    pub major: u8,
    /// Minor version.
    pub minor: u8,
    /// Type and operand.
    pub kind: FrameKind,
    /// Payload length in bytes, or the role mask in CONNECT and CONNECTED.
    pub word: u32,
}

impl Header {
    /// The length of a header in bytes.
    pub const LEN: usize = 8;
    /// The major version that this crate speaks.
    pub const MAJOR: u8 = 0;
    /// The bit of the major byte that announces a trace block.
    pub const TRACE_FLAG: u8 = 0x80;

    /// A header of this crate's version without trace block.
    pub const fn new(kind: FrameKind, word: u32) -> Self {
        Self {
            major: Self::MAJOR,
            minor: MINOR,
            kind,
            word,
        }
    }

    /// Reads a header; `None` if there are fewer than eight bytes. Any eight bytes are a header, so
    /// the values are not checked here.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Header::LEN] = bytes.first_chunk()?;
        Self::read(&mut Fields::new(bytes))
    }

    #[inline]
    pub(super) fn read(fields: &mut Fields<'_, impl Notes>) -> Option<Self> {
        let major = fields.u8("major")?;
        fields.meaning(|| {
            let flag = if major & Header::TRACE_FLAG == 0 {
                ""
            } else {
                ", trace flag"
            };
            format!("{}{flag}", major & !Header::TRACE_FLAG)
        });
        let minor = fields.u8("minor")?;
        let frame_type = FrameType(fields.u8("type")?);
        fields.meaning(|| format!("{:#x} {frame_type}", frame_type.0));
        let operand = fields.u8("operand")?;
        let kind = FrameKind::new(frame_type, operand);
        fields.meaning(|| format!("{operand:#x} {kind}"));
        let word = if kind.is_handshake() {
            fields.role("role")?.bits()
        } else {
            fields.u32("payload length")?
        };
        Some(Self {
            major,
            minor,
            kind,
            word,
        })
    }

    /// The eight bytes.
    pub fn encode(&self) -> [u8; Header::LEN] {
        let (frame_type, operand) = (self.kind.frame_type.0, self.kind.operand);
        let mut bytes = [self.major, self.minor, frame_type, operand, 0, 0, 0, 0];
        BigEndian::write_u32(&mut bytes[4..], self.word);
        bytes
    }

    /// The major version without the trace flag.
    pub const fn version(&self) -> u8 {
        self.major & !Header::TRACE_FLAG
    }

    /// True if the trace flag is set.
    pub const fn traced(&self) -> bool {
        self.major & Header::TRACE_FLAG != 0
    }
}
