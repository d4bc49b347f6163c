//! InvalidFrameType: a frame that the receiver refused (ERROR 0x0).

use crate::names;
use crate::proto::{FrameKind, FrameType};
use crate::schema;

schema! {
    /// A frame was refused, with the reason.
    ///
    /// An ERROR frame is never answered with it, because two peers could answer each other forever.
    ///
    /// The payload of InvalidFrameType (ERROR 0x0):
    ///
    /// ```yaml
    /// type: 0
    /// operand: 119
    /// reason: unsupported_operand
    /// ```
    InvalidFrameType = ErrorCode::INVALID_FRAME_TYPE {
        /// The refused frame's type byte; default: 0.
        #[serde(rename = "type")]
        frame_type: u8,
        /// The refused frame's operand byte; default: 0.
        operand: u8,
        /// The reason; default: empty.
        reason: InvalidFrameTypeReason,
    }
}

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
    /// The reason why a frame was refused.
    InvalidFrameTypeReason {
        /// The protocol has no such type.
        UnsupportedType = "unsupported_type";
        /// The type has no such operand.
        UnsupportedOperand = "unsupported_operand";
        /// The sender's roles do not allow it.
        RoleNotAllowed = "role_not_allowed";
        /// The kind is registered as a request, and the payload does not begin as one.
        BadExchange = "bad_exchange";
    }
}
