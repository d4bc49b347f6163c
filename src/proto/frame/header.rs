//! The 8-byte header and what its type and operand bytes mean
//! (docs/protocol.md, "Header").

use std::fmt;
use std::str::FromStr;

use byteorder::{BigEndian, ByteOrder};

use super::{Command, ErrorCode, Event, Status};

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 8;
/// The major version this crate speaks.
pub const MAJOR: u8 = 0;
/// The minor version this crate writes; any is accepted.
pub const MINOR: u8 = 1;
/// The bit of the major byte that announces a trace block.
pub const TRACE_FLAG: u8 = 0x80;

super::operand::named! {
    /// The type byte of a header. Unknown values survive and print as hex.
    FrameType after "" => {
        /// Asks the receiver to do something.
        0x0 COMMAND = "COMMAND";
        /// Tells the state of a node.
        0x1 STATUS = "STATUS";
        /// Tells that something happened.
        0x3 EVENT = "EVENT";
        /// Tells that something failed.
        0x4 ERROR = "ERROR";
    }
}

impl FrameType {
    /// Whether the protocol defines the type.
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

/// What a frame is: its type and its operand together.
///
/// This is the key of routing rules, role filters and payload schemas.
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

    /// The operand's name, where type and operand are defined.
    pub const fn name(self) -> Option<&'static str> {
        match self.frame_type {
            FrameType::COMMAND => Command(self.operand).name(),
            FrameType::STATUS => Status(self.operand).name(),
            FrameType::EVENT => Event(self.operand).name(),
            FrameType::ERROR => ErrorCode(self.operand).name(),
            _ => None,
        }
    }

    /// Whether the protocol defines the type and this operand of it.
    pub const fn is_known(self) -> bool {
        self.name().is_some()
    }

    /// Whether this is CONNECT or CONNECTED. Only the handshake has them, and their headers hold the
    /// role where other headers hold the length.
    pub const fn is_handshake(self) -> bool {
        matches!(
            (self.frame_type, self.operand),
            (FrameType::COMMAND | FrameType::STATUS, 0)
        )
    }

    /// Whether the operand is one of those that are an application's own, see
    /// [`Operands`](crate::proto::Operands).
    pub const fn is_application(self) -> bool {
        self.frame_type.is_known() && self.operand >= 0x80 && self.operand != 0xff
    }

    /// Whether it is a command of operators, who list and end sessions, or the
    /// answer to one (docs/admission.md, "Operators").
    pub const fn is_of_operators(self) -> bool {
        match self.frame_type {
            FrameType::COMMAND => matches!(self.operand, 0x43..=0x46 | 0x48..=0x4a),
            FrameType::EVENT => matches!(self.operand, 0x43..=0x46 | 0x4a | 0x4b),
            _ => false,
        }
    }

    /// Every kind the protocol defines, by type, then operand.
    pub fn all() -> impl Iterator<Item = FrameKind> {
        FrameType::ALL.iter().flat_map(|t| {
            (0..=u8::MAX)
                .map(move |operand| FrameKind::new(*t, operand))
                .filter(|kind| kind.is_known())
        })
    }
}

impl fmt::Display for FrameKind {
    /// The operand's name; `TYPE/0xNN` where it has none.
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

    /// Reads an operand's name in any case: they are unique over all types; or,
    /// for one of an application, its type and number, as in `COMMAND/0x80`.
    fn from_str(text: &str) -> Result<Self, ParseKindError> {
        if let Some(kind) = by_number(text) {
            return Ok(kind);
        }
        Self::all()
            .find(|kind| kind.name().is_some_and(|n| n.eq_ignore_ascii_case(text)))
            .ok_or_else(|| {
                let near = nearest(text).map(|kind| format!("; did you mean {kind}?"));
                ParseKindError(format!(
                    "{text:?} is not an operand of SSNTP{}",
                    near.unwrap_or_default()
                ))
            })
    }
}

fn by_number(text: &str) -> Option<FrameKind> {
    let (frame_type, operand) = text.split_once('/')?;
    let operand = u8::from_str_radix(operand.strip_prefix("0x")?, 16).ok()?;
    let kind = FrameKind::new(frame_type.parse().ok()?, operand);
    // The protocol's own have names. One of its numbers without a name would be refused by
    // every peer.
    kind.is_application().then_some(kind)
}

/// The operand whose name a text misspells, if it is near enough to one: at most
/// a third of its letters are wrong.
fn nearest(text: &str) -> Option<FrameKind> {
    let text = text.to_ascii_lowercase();
    // No name is that long, and the comparison takes time by the square of it.
    if text.len() > 40 {
        return None;
    }
    // Names differ in case between tables and programs, and case is no mistake.
    let distance = |kind: FrameKind| edits(&text, &kind.name()?.to_ascii_lowercase());
    let best = FrameKind::all().filter_map(|kind| Some((distance(kind)?, kind)));
    let (edits, kind) = best.min_by_key(|(edits, _)| *edits)?;
    (edits * 3 <= text.len().max(3)).then_some(kind)
}

/// How many letters have to be put in, left out or replaced to make one text of
/// the other.
fn edits(one: &str, other: &str) -> Option<usize> {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.bytes().enumerate() {
        let mut diagonal = at;
        row[0] = at + 1;
        for (to, same) in other.bytes().map(|o| o == letter).enumerate() {
            let replaced = diagonal + usize::from(!same);
            diagonal = row[to + 1];
            row[to + 1] = replaced.min(row[to] + 1).min(diagonal + 1);
        }
    }
    row.last().copied()
}

/// A text that names no frame type or operand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseKindError(String);

/// The eight bytes every frame begins with.
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
    /// A header of this crate's version without trace block.
    pub const fn new(kind: FrameKind, word: u32) -> Self {
        Self {
            major: MAJOR,
            minor: MINOR,
            kind,
            word,
        }
    }

    /// Reads a header; `None` when there are fewer than eight bytes.
    /// Nothing is checked here, because any eight bytes are a header.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..HEADER_LEN)?;
        Some(Self {
            major: bytes[0],
            minor: bytes[1],
            kind: FrameKind::new(FrameType(bytes[2]), bytes[3]),
            word: BigEndian::read_u32(&bytes[4..]),
        })
    }

    /// The eight bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let (frame_type, operand) = (self.kind.frame_type.0, self.kind.operand);
        let mut bytes = [self.major, self.minor, frame_type, operand, 0, 0, 0, 0];
        BigEndian::write_u32(&mut bytes[4..], self.word);
        bytes
    }

    /// The major version without the trace flag.
    pub const fn version(&self) -> u8 {
        self.major & !TRACE_FLAG
    }

    /// Whether the trace flag is set.
    pub const fn traced(&self) -> bool {
        self.major & TRACE_FLAG != 0
    }
}
