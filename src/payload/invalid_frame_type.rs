//! InvalidFrameType: a frame that the receiver didn't take (ERROR 0x0).

use serde::{Deserialize, Serialize};

use super::names::names;
use super::payload;
use crate::proto::{FrameKind, FrameType};

/// A frame wasn't taken, and why.
///
/// Never sent in answer to an ERROR frame, so that errors don't go in circles.
///
/// The payload of InvalidFrameType (ERROR 0x0):
///
/// ```yaml
/// type: 0
/// operand: 119
/// reason: unsupported_operand
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InvalidFrameType {
    /// The refused frame's type byte; default: 0.
    #[serde(rename = "type")]
    pub frame_type: u8,
    /// Its operand byte; default: 0.
    pub operand: u8,
    /// Why; default: empty.
    pub reason: InvalidFrameTypeReason,
}

payload!(InvalidFrameType = ErrorCode::INVALID_FRAME_TYPE);

impl InvalidFrameType {
    /// The refusal of a frame of kind `refused`.
    pub fn new(refused: FrameKind, reason: InvalidFrameTypeReason) -> Self {
        Self {
            frame_type: refused.frame_type.0,
            operand: refused.operand,
            reason,
        }
    }

    /// The refused frame's kind.
    pub fn refused(&self) -> FrameKind {
        FrameKind::new(FrameType(self.frame_type), self.operand)
    }
}

names! {
    /// Why a frame wasn't taken.
    InvalidFrameTypeReason {
        /// Its type isn't one of the protocol's.
        UnsupportedType = "unsupported_type";
        /// Its type has no such operand.
        UnsupportedOperand = "unsupported_operand";
        /// The sender's role may not send it.
        RoleNotAllowed = "role_not_allowed";
        /// It is registered as a request and does not begin as one.
        BadExchange = "bad_exchange";
    }
}
