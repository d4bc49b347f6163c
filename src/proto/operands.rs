//! Which frames an entity takes: the protocol's, and the application's own
//! (docs/protocol.md, "Frames of an application").

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::{FrameKind, FrameType, ParseKindError, may_be_sent};

/// The operands of each frame type that are an application's own. 0xff is
/// left to the protocol.
pub const APPLICATION_OPERANDS: RangeInclusive<u8> = 0x80..=0xfe;

/// A kind that is never assigned. Every entity answers it with InvalidFrameType, in the order in
/// which it takes frames. So whoever sends it last, and hears that answer, knows that everything
/// before was taken.
pub const PROBE: FrameKind = FrameKind::new(FrameType::COMMAND, 0xff);

/// The longest name of an operand, in bytes.
const MAX_NAME: usize = 32;

/// The frames that an entity takes, sends and forwards: those of the protocol,
/// and those of an application that are registered here. Whoever has not
/// registered one answers it with InvalidFrameType, as any unknown operand.
///
/// A clone shares everything.
///
/// ```
/// use ssntp::proto::{FrameKind, FrameType, Operands};
///
/// /// Sent one way, as frames of the protocol are.
/// const DRAIN: FrameKind = FrameKind::new(FrameType::COMMAND, 0x80);
/// /// Asks for an answer.
/// const QUERY: FrameKind = FrameKind::new(FrameType::COMMAND, 0x81);
///
/// let operands = Operands::new().application(DRAIN, "DRAIN")?.request(QUERY, "QUERY")?;
/// assert_eq!(operands.kind("drain"), Ok(DRAIN));
/// assert_eq!(operands.show(DRAIN).to_string(), "DRAIN");
/// assert!(operands.contains(QUERY) && operands.is_request(QUERY));
/// # Ok::<(), ssntp::proto::OperandError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Operands(Option<Arc<Own>>);

/// What an application registered. The bits answer for each frame that is not
/// the protocol's, the names are for texts.
#[derive(Clone, Debug, Default)]
struct Own {
    registered: KindSet,
    requests: KindSet,
    names: BTreeMap<FrameKind, String>,
}

impl Operands {
    /// Those of the protocol alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an operand of the application, whose payload is opaque. The name
    /// is for logs and for [`kind`](Self::kind).
    ///
    /// # Errors
    /// [`OperandError`]: the type is not one of the protocol's four, the
    /// operand is not within [`APPLICATION_OPERANDS`] or was added before, or
    /// the name is not one word of at most 32 letters, digits, `_` and `-`, or
    /// is that of another operand.
    pub fn application(mut self, kind: FrameKind, name: impl Into<String>) -> Result<Self, OperandError> {
        let name = name.into();
        if !kind.is_application() {
            return Err(OperandError::Range(kind));
        }
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_word) {
            return Err(OperandError::Name(name));
        }
        if self.contains(kind) {
            return Err(OperandError::Twice(kind));
        }
        // A name that two kinds share could not be used on a command line.
        if self.kind(&name).is_ok() {
            return Err(OperandError::NameTwice(name));
        }
        let own = Arc::make_mut(self.0.get_or_insert_default());
        own.registered.insert(kind);
        own.names.insert(kind, name);
        Ok(self)
    }

    /// As [`application`](Self::application), for frames that ask for an
    /// answer: their payload begins with the
    /// [`Exchange`](super::Exchange) that says who asks whom.
    ///
    /// # Errors
    /// As there; ERROR frames are never answered, so none can ask.
    pub fn request(self, kind: FrameKind, name: impl Into<String>) -> Result<Self, OperandError> {
        // An ERROR is never answered, so that errors cannot go in circles.
        if kind.frame_type == FrameType::ERROR {
            return Err(OperandError::Range(kind));
        }
        let mut operands = self.application(kind, name)?;
        if let Some(own) = &mut operands.0 {
            Arc::make_mut(own).requests.insert(kind);
        }
        Ok(operands)
    }

    /// Whether the application registered this kind.
    pub fn contains(&self, kind: FrameKind) -> bool {
        self.0.as_ref().is_some_and(|own| own.registered.contains(kind))
    }

    /// Whether frames of this kind are requests and their answers.
    pub fn is_request(&self, kind: FrameKind) -> bool {
        self.0.as_ref().is_some_and(|own| own.requests.contains(kind))
    }

    /// Whether a frame of this kind may be handed to a session as it is. A
    /// request may not: the session writes its beginning.
    pub fn may_be_sent(&self, kind: FrameKind) -> bool {
        may_be_sent(kind) || kind == PROBE || self.contains(kind) && !self.is_request(kind)
    }

    /// The name of a kind, where the protocol or the application gives it one.
    pub fn name(&self, kind: FrameKind) -> Option<&str> {
        let own = || self.0.as_ref()?.names.get(&kind).map(String::as_str);
        kind.name().or_else(own)
    }

    /// The kind as logs show it: its name, `TYPE/0xNN` where it has none.
    pub fn show(&self, kind: FrameKind) -> impl fmt::Display + '_ {
        Shown(self, kind)
    }

    /// Finds an operand by its name in any case.
    ///
    /// # Errors
    /// Neither the protocol nor the application has one of that name.
    pub fn kind(&self, name: &str) -> Result<FrameKind, ParseKindError> {
        let mut own = self.0.iter().flat_map(|own| &own.names);
        own.find(|(_, own)| own.eq_ignore_ascii_case(name))
            .map_or_else(|| name.parse(), |(kind, _)| Ok(*kind))
    }

    /// What the application registered, by type, then operand.
    pub fn applications(&self) -> impl Iterator<Item = (FrameKind, &str)> {
        let own = self.0.iter().flat_map(|own| &own.names);
        own.map(|(kind, name)| (*kind, name.as_str()))
    }
}

struct Shown<'a>(&'a Operands, FrameKind);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.name(self.1) {
            Some(name) => f.write_str(name),
            None => self.1.fmt(f),
        }
    }
}

/// Kinds of an application: a bit for each operand from 0x80, of each type.
#[derive(Clone, Copy, Debug, Default)]
struct KindSet([u128; 5]);

impl KindSet {
    fn insert(&mut self, kind: FrameKind) {
        if let (Some(bit), Some(set)) = (bit(kind), self.0.get_mut(usize::from(kind.frame_type.0))) {
            *set |= bit;
        }
    }

    fn contains(&self, kind: FrameKind) -> bool {
        let set = self.0.get(usize::from(kind.frame_type.0));
        matches!((bit(kind), set), (Some(bit), Some(set)) if set & bit != 0)
    }
}

fn bit(kind: FrameKind) -> Option<u128> {
    let number = kind.operand.checked_sub(*APPLICATION_OPERANDS.start())?;
    Some(1 << number)
}

/// Why an operand cannot be an application's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperandError {
    /// Not an operand from 0x80 to 0xfe of COMMAND, STATUS, EVENT or ERROR, or
    /// a request that would be an ERROR.
    #[error(
        "{0} is not an application's: its operands are 0x80 to 0xfe of COMMAND, STATUS, EVENT and, unless they ask, ERROR"
    )]
    Range(FrameKind),
    /// Not one word of at most 32 letters, digits, `_` and `-`.
    #[error("{0:?} is not one word of at most {MAX_NAME} letters, digits, \"_\" and \"-\"")]
    Name(String),
    /// The kind was registered before.
    #[error("{0} is registered twice")]
    Twice(FrameKind),
    /// Another operand has the name, in any case of letters.
    #[error("{0:?} is the name of another operand")]
    NameTwice(String),
}
