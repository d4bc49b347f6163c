//! Receipts: `ssntp server` answers a request of a sender how many sessions receive a frame. This is an
//! agreement of applications: the operand EVENT/0xfe, a [request](ssntp::proto::Exchange) to the server.
//!
//! ```text
//!  sender                                     server
//!    │ STATS                                    │ forwards it by its rules
//!    │ ────────────────────────────────────────▶│
//!    │ RECEIVERS, a request    operand: STATS   │
//!    │ ────────────────────────────────────────▶│
//!    │ a reply                 receivers: 2     │ has also taken all frames before the request
//!    │ ◀────────────────────────────────────────│
//! ```
//!
//! The number counts the other sessions to which the server forwards such frames, or that have a role. The
//! server does not report which sessions these are. A server without this agreement refuses the request,
//! which shows as well that it has taken all frames before. `docs/receipts.md` has the rules for implementers.

use serde::{Deserialize, Serialize};
use ssntp::RequestError;
use ssntp::payload::{InvalidFrameType, yaml};
use ssntp::proto::{Frame, FrameKind, FrameType, Operands};
use ssntp::{Bytes, Role};

/// The kind of the request.
pub(crate) const RECEIVERS: FrameKind = FrameKind::new(FrameType::EVENT, 0xfe);

/// The same operands with that of the request. If an application uses its number for something else, there
/// are no receipts.
pub(crate) fn with_receipts(operands: Operands) -> Operands {
    operands
        .clone()
        .request(RECEIVERS, "RECEIVERS")
        .unwrap_or(operands)
}

/// A question to the server: how many sessions receive frames with an operand, or have one of some roles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Question {
    #[serde(skip_serializing_if = "String::is_empty")]
    operand: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    role: String,
}

#[derive(Deserialize, Serialize)]
struct Answer {
    receivers: u64,
}

impl Question {
    /// The question for the sessions that receive frames of this kind.
    pub(crate) fn receivers(kind: FrameKind) -> Self {
        let (operand, role) = (kind.to_string(), String::new());
        Self { operand, role }
    }

    /// The question for the sessions with one of these roles.
    pub(crate) fn sessions(role: Role) -> Self {
        let (operand, role) = (String::new(), role.to_string());
        Self { operand, role }
    }

    pub(crate) fn frame(&self) -> Frame {
        Frame::with_payload(RECEIVERS, yaml::encode(self).unwrap_or_default())
    }

    /// The question in the payload of a request. `None` if it cannot be read.
    pub(crate) fn read(payload: &Bytes) -> Option<Self> {
        yaml::decode(payload).ok()
    }

    /// The operand that the question is about. `None` if it is about roles, or names no operand.
    pub(crate) fn kind(&self) -> Option<FrameKind> {
        self.operand.parse().ok()
    }

    /// The roles that the question is about. `None` if it is about an operand, or names no roles.
    pub(crate) fn role(&self) -> Option<Role> {
        self.role.parse().ok()
    }
}

/// The payload of the reply.
pub(crate) fn reply(receivers: usize) -> Bytes {
    let receivers = receivers as u64;
    yaml::encode(&Answer { receivers }).unwrap_or_default()
}

/// The refusal of a question about an operand that the roles of the asker may not send.
pub(crate) const NOT_ALLOWED: &str = "role_not_allowed";

/// The number that the server has replied with. `None` if the server answers no such question; every server
/// handles the frames of a session in order, so it has taken all frames that were sent before.
pub(crate) fn receivers(reply: Result<Frame, RequestError>) -> Result<Option<u64>, RequestError> {
    match reply {
        Ok(reply) => Ok(yaml::decode(reply.payload_bytes())
            .ok()
            .map(|Answer { receivers }| receivers)),
        Err(RequestError::Refused(why)) if why != NOT_ALLOWED => Ok(None),
        Err(error) => Err(error),
    }
}

/// True for the error frame of a server that does not know the request. The answer of the request says so, too.
pub(crate) fn is_refusal(frame: &Frame) -> bool {
    let refusal = frame.payload::<InvalidFrameType>();
    refusal.is_ok_and(|refusal| refusal.refused() == RECEIVERS)
}

/// A number of sessions, in words.
pub(crate) fn sessions(n: u64) -> String {
    match n {
        0 => "no session".into(),
        1 => "1 session".into(),
        n => format!("{n} sessions"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssntp::Command;

    #[test]
    fn a_question_is_about_the_receivers_of_a_frame_or_the_sessions_with_a_role() {
        let role = Role::CONTROLLER | Role::AGENT;
        for (question, kind, roles) in [
            (
                Question::receivers(Command::STATS.into()),
                Some(Command::STATS.into()),
                None,
            ),
            (Question::receivers(RECEIVERS), Some(RECEIVERS), None),
            (Question::sessions(role), None, Some(role)),
            (Question::default(), None, None),
        ] {
            let read = Question::read(question.frame().payload_bytes()).unwrap();
            assert_eq!((&read, read.kind(), read.role()), (&question, kind, roles));
        }
        assert_eq!(Question::read(&"[".into()), None);
    }

    #[test]
    fn a_refusal_tells_no_number_and_a_lost_session_is_an_error() {
        let replied = Frame::with_payload(RECEIVERS, reply(7));
        assert_eq!(receivers(Ok(replied)).unwrap(), Some(7));
        assert_eq!(
            receivers(Err(RequestError::Refused("not_answered".into()))).unwrap(),
            None
        );
        assert!(receivers(Err(RequestError::Refused(NOT_ALLOWED.into()))).is_err());
        assert!(receivers(Err(RequestError::Disconnected)).is_err());
    }
}
