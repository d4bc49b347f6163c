//! The frames that an entity accepts: the protocol's and the application's
//! (docs/protocol.md, "Frames of an application").

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{Command, FrameKind, FrameType, ParseKindError};

/// A kind that is never assigned. Every entity answers it with InvalidFrameType. Frames are handled
/// in order, so a sender that receives this answer knows that all its earlier frames were handled.
pub(crate) const PROBE: FrameKind = FrameKind::new(FrameType::COMMAND, 0xff);

/// The longest name of an operand, in bytes.
const MAX_NAME: usize = 32;

/// The frames that an entity accepts, sends and forwards: those of the protocol, and those of an
/// application that are registered here. An entity answers an operand that it has not registered
/// with InvalidFrameType, as any unknown operand. A clone is cheap.
///
/// ```
/// use ssntp::proto::{FrameKind, FrameType, Operands};
///
/// /// A frame without an answer.
/// const DRAIN: FrameKind = FrameKind::new(FrameType::COMMAND, 0x80);
/// /// A request.
/// const QUERY: FrameKind = FrameKind::new(FrameType::COMMAND, 0x81);
///
/// let operands = Operands::new().application(DRAIN, "DRAIN")?.request(QUERY, "QUERY")?;
/// assert_eq!(operands.kind("drain"), Ok(DRAIN));
/// assert_eq!(operands.show(DRAIN).to_string(), "DRAIN");
/// assert!(operands.contains(QUERY) && operands.is_request(QUERY));
/// # Ok::<(), ssntp::proto::OperandError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Operands(Arc<BTreeMap<FrameKind, Registered>>);

#[derive(Clone, Debug)]
struct Registered {
    name: String,
    is_request: bool,
}

impl Operands {
    /// The operands of the protocol only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an operand of the application. Its payload is opaque, and its name is for logs and for
    /// [`kind`](Self::kind).
    ///
    /// # Errors
    /// [`OperandError`]: the type is not one of the protocol's four, the operand is not within
    /// 0x80 to 0xfe or was added before, or the name is not one word of at most 32
    /// letters, digits, `_` and `-`, or is the name of another operand.
    pub fn application(self, kind: FrameKind, name: impl Into<String>) -> Result<Self, OperandError> {
        self.register(kind, name.into(), false)
    }

    /// As [`application`](Self::application), for requests: the payload of these frames begins with
    /// an [`Exchange`](super::Exchange).
    ///
    /// # Errors
    /// As [`application`](Self::application). Also if the type is ERROR: an ERROR is never answered,
    /// so it cannot be a request.
    pub fn request(self, kind: FrameKind, name: impl Into<String>) -> Result<Self, OperandError> {
        if kind.frame_type == FrameType::ERROR {
            return Err(OperandError::Range(kind));
        }
        self.register(kind, name.into(), true)
    }

    fn register(mut self, kind: FrameKind, name: String, is_request: bool) -> Result<Self, OperandError> {
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
        // Copies the table if a clone of it is in use.
        Arc::make_mut(&mut self.0).insert(kind, Registered { name, is_request });
        Ok(self)
    }

    /// True if the application registered this kind.
    pub fn contains(&self, kind: FrameKind) -> bool {
        self.0.contains_key(&kind)
    }

    /// True if frames of this kind are requests and their answers: RenewCertificate, and what the application
    /// registered as requests.
    pub fn is_request(&self, kind: FrameKind) -> bool {
        kind == Command::RENEW_CERTIFICATE || self.0.get(&kind).is_some_and(|own| own.is_request)
    }

    /// True if a session may send a frame of this kind unchanged. A request may not be sent so,
    /// because the session writes the beginning of its payload.
    pub fn may_be_sent(&self, kind: FrameKind) -> bool {
        // CONNECT and CONNECTED belong to the handshake, and the peer would refuse unknown kinds.
        let is_of_protocol = kind.is_known() && !kind.is_handshake();
        !self.is_request(kind) && (is_of_protocol || kind == PROBE || self.contains(kind))
    }

    /// The name that the protocol or the application gives to a kind.
    pub fn name(&self, kind: FrameKind) -> Option<&str> {
        let own = || self.0.get(&kind).map(|own| own.name.as_str());
        kind.name().or_else(own)
    }

    /// The kind for logs: its name, or `TYPE/0xNN` if it has none.
    pub fn show(&self, kind: FrameKind) -> impl fmt::Display + '_ {
        self.name(kind)
            .map_or_else(|| Cow::Owned(kind.to_string()), Cow::Borrowed)
    }

    /// Finds an operand by its name, in upper or lower case.
    ///
    /// # Errors
    /// Neither the protocol nor the application has an operand of that name.
    pub fn kind(&self, name: &str) -> Result<FrameKind, ParseKindError> {
        let own = self
            .applications()
            .find(|(_, own)| own.eq_ignore_ascii_case(name));
        own.map_or_else(|| name.parse(), |(kind, _)| Ok(kind))
    }

    /// The operands that the application registered, by type, then number.
    pub fn applications(&self) -> impl Iterator<Item = (FrameKind, &str)> {
        self.0.iter().map(|(kind, own)| (*kind, own.name.as_str()))
    }
}

/// The reason why an operand cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperandError {
    /// The operand is not from 0x80 to 0xfe of COMMAND, STATUS, EVENT or ERROR, or it is a request of
    /// the type ERROR.
    #[error(
        "{0} is not an application's: its operands are 0x80 to 0xfe of COMMAND, STATUS, EVENT and, unless they are requests, ERROR"
    )]
    Range(FrameKind),
    /// The name is not one word of at most 32 letters, digits, `_` and `-`.
    #[error("{0:?} is not one word of at most {MAX_NAME} letters, digits, \"_\" and \"-\"")]
    Name(String),
    /// The kind was registered before.
    #[error("{0} is registered twice")]
    Twice(FrameKind),
    /// Another operand has the name, in upper or lower case.
    #[error("{0:?} is the name of another operand")]
    NameTwice(String),
}
