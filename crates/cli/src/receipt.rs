//! How `ssntp server` tells a sender who received a frame: an application's
//! agreement on top of traces, which the protocol knows nothing of.
//!
//! ```text
//!  sender                                            server
//!    │ STATS, traced, label "who-received"             │ forwards it by its rules
//!    │ ───────────────────────────────────────────────▶│
//!    │ TraceReport  frames: [{label, …, receivers: 2}] │
//!    │ ◀───────────────────────────────────────────────│
//!    │ TraceReport, traced, label "who-is:controller"  │ forwards it to nobody
//!    │ ───────────────────────────────────────────────▶│
//!    │ TraceReport  frames: [{label, …, receivers: 1}] │
//!    │ ◀───────────────────────────────────────────────│
//! ```
//!
//! The number counts the other sessions that the frame was handed to, or that have
//! the role. The server does not tell which sessions these are. Answers come in the
//! order of the questions. `docs/receipts.md` has the rules for implementers.

use serde::{Deserialize, Serialize};
use ssntp::payload::yaml;
use ssntp::proto::{Event, Frame, FrameKind, Trace, TraceParent};
use ssntp::{Bytes, Role};

const RECEIVED: &str = "who-received";
const IS_THERE: &str = "who-is:";

/// What a traced frame asks its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// How many sessions the frame was handed to.
    Receivers,
    /// How many sessions have one of these roles. The frame is for the server
    /// alone.
    Sessions(Role),
}

impl Question {
    /// What a frame asks, if it does.
    pub(crate) fn of(frame: &Frame) -> Option<Self> {
        let label = frame.trace()?.label();
        match label.strip_prefix(IS_THERE) {
            Some(role) if frame.kind() == Event::TRACE_REPORT => role.parse().ok().map(Self::Sessions),
            // If the frame is part of a trace, the label names that trace behind the word.
            _ => (label.split_whitespace().next() == Some(RECEIVED)).then_some(Self::Receivers),
        }
    }

    /// The frame that asks for sessions, which carries nothing.
    pub(crate) fn sessions(role: Role) -> Frame {
        Frame::new(Event::TRACE_REPORT).traced(Trace::new(&format!("{IS_THERE}{role}")))
    }

    /// The frame, asking how many sessions received it; part of a trace if one is given.
    pub(crate) fn receivers(frame: Frame, parent: Option<&TraceParent>) -> Frame {
        frame.traced(match parent {
            Some(parent) => Trace::within(RECEIVED, parent),
            None => Trace::new(RECEIVED),
        })
    }

    /// The answer to a frame of kind `of`; none if it cannot be encoded.
    pub(crate) fn answer(self, of: FrameKind, receivers: usize) -> Option<Frame> {
        let label = match self {
            Self::Receivers => RECEIVED.to_owned(),
            Self::Sessions(role) => format!("{IS_THERE}{role}"),
        };
        let answer = Answer {
            label,
            frame_type: of.frame_type.to_string(),
            operand: of.to_string(),
            receivers: Some(receivers as u64),
        };
        let payload: Bytes = yaml::encode(&Answers { frames: vec![answer] }).ok()?;
        Some(Frame::with_payload(Event::TRACE_REPORT, payload))
    }
}

/// The number in a frame that answers a question; none in other frames.
pub(crate) fn answered(frame: &Frame) -> Option<u64> {
    if frame.kind() != Event::TRACE_REPORT {
        return None;
    }
    let answers: Answers = yaml::decode(frame.payload_bytes()).ok()?;
    let [answer] = answers.frames.as_slice() else {
        return None;
    };
    // A TraceReport may be about a trace of some other program.
    let is_ours = answer.label == RECEIVED || answer.label.starts_with(IS_THERE);
    answer.receivers.filter(|_| is_ours)
}

/// A TraceReport with what is told beside the trace.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Answers {
    frames: Vec<Answer>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Answer {
    label: String,
    #[serde(rename = "type")]
    frame_type: String,
    operand: String,
    receivers: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssntp::Command;

    #[test]
    fn a_question_is_answered_by_a_number_and_nothing_else_is_one() {
        let plain = Frame::new(Command::STATS);
        assert_eq!(Question::of(&plain), None);
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent: TraceParent = parent.parse().unwrap();
        for parent in [None, Some(&parent)] {
            let asking = Question::receivers(plain.clone(), parent);
            assert_eq!(Question::of(&asking), Some(Question::Receivers));
        }
        let role = Role::CONTROLLER | Role::AGENT;
        assert_eq!(
            Question::of(&Question::sessions(role)),
            Some(Question::Sessions(role))
        );
        let answer = Question::Receivers.answer(plain.kind(), 7).unwrap();
        assert_eq!(answered(&answer), Some(7));
        assert_eq!(Question::of(&answer), None);
        for other in [
            plain,
            Frame::with_payload(Event::TRACE_REPORT, "frames: [{label: x, receivers: 1}]"),
        ] {
            assert_eq!(answered(&other), None);
        }
    }
}
