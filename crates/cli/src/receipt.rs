//! Receipts: `ssntp server` reports to a sender how many sessions received a frame. This is an
//! agreement between applications, by the labels of traces; the protocol does not define it.
//!
//! ```text
//!  sender                                            server
//!    │ STATS, traced, label "who-received"             │ forwards it by its rules
//!    │ ───────────────────────────────────────────────▶│
//!    │ TraceReport  frames: [{label, …, receivers: 2}] │
//!    │ ◀───────────────────────────────────────────────│
//!    │ TraceReport, traced, label "who-is:controller"  │ does not forward it
//!    │ ───────────────────────────────────────────────▶│
//!    │ TraceReport  frames: [{label, …, receivers: 1}] │
//!    │ ◀───────────────────────────────────────────────│
//! ```
//!
//! The number counts the other sessions to which the frame was forwarded, or that have the role.
//! The server does not report which sessions these are. Answers come in the order of the
//! questions. `docs/receipts.md` has the rules for implementers.

use serde::{Deserialize, Serialize};
use ssntp::payload::yaml;
use ssntp::proto::{Event, Frame, FrameKind, Trace, TraceParent};
use ssntp::{Bytes, Role};

const RECEIVED: &str = "who-received";
const WHO_IS: &str = "who-is:";

/// A question to the server, in the label of a traced frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// To how many sessions was the frame forwarded? The answer repeats the number of the question.
    Receivers(Option<u64>),
    /// How many sessions have one of these roles? The server does not forward the frame.
    Sessions(Role),
}

impl Question {
    /// The question in a frame, if there is one.
    pub(crate) fn of(frame: &Frame) -> Option<Self> {
        let label = frame.trace()?.label();
        match label.strip_prefix(WHO_IS) {
            Some(role) if frame.kind() == Event::TRACE_REPORT => role.parse().ok().map(Self::Sessions),
            // If the frame is part of a trace, the label names that trace after the word.
            _ => {
                let mut words = label.split_whitespace();
                let is_asking = words.next() == Some(RECEIVED);
                let number = words.next().and_then(|word| word.strip_prefix('#')?.parse().ok());
                is_asking.then_some(Self::Receivers(number))
            }
        }
    }

    /// A frame with a question for sessions. It has no payload.
    pub(crate) fn sessions(role: Role) -> Frame {
        Frame::new(Event::TRACE_REPORT).traced(Trace::new(&format!("{WHO_IS}{role}")))
    }

    /// Adds the question how many sessions received the frame; part of a trace if one is given.
    pub(crate) fn receivers(frame: Frame, parent: Option<&TraceParent>) -> Frame {
        frame.traced(match parent {
            Some(parent) => Trace::within(RECEIVED, parent),
            None => Trace::new(RECEIVED),
        })
    }

    /// Adds the question how many sessions received the frame, with a number that the answer repeats.
    pub(crate) fn numbered(frame: Frame, number: u64) -> Frame {
        frame.traced(Trace::new(&format!("{RECEIVED} #{number}")))
    }

    /// The answer to a question in a frame of kind `of`; `None` if it cannot be encoded.
    pub(crate) fn answer(self, of: FrameKind, receivers: usize) -> Option<Frame> {
        let (label, question) = match self {
            Self::Receivers(number) => (RECEIVED.to_owned(), number),
            Self::Sessions(role) => (format!("{WHO_IS}{role}"), None),
        };
        let answer = Answer {
            label,
            question,
            frame_type: of.frame_type.to_string(),
            operand: of.to_string(),
            receivers: Some(receivers as u64),
        };
        let payload: Bytes = yaml::encode(&Answers { frames: vec![answer] }).ok()?;
        Some(Frame::with_payload(Event::TRACE_REPORT, payload))
    }
}

/// The answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    /// The number of the question, if it has one and the server repeats it.
    pub(crate) question: Option<u64>,
    pub(crate) receivers: u64,
}

/// The answer in a frame; `None` for all other frames.
pub(crate) fn answered(frame: &Frame) -> Option<Answered> {
    if frame.kind() != Event::TRACE_REPORT {
        return None;
    }
    let answers: Answers = yaml::decode(frame.payload_bytes()).ok()?;
    let [answer] = answers.frames.as_slice() else {
        return None;
    };
    // A TraceReport may be about a trace of another program.
    let is_ours = answer.label == RECEIVED || answer.label.starts_with(WHO_IS);
    let (question, receivers) = (answer.question, answer.receivers.filter(|_| is_ours)?);
    Some(Answered { question, receivers })
}

/// A number of sessions, in words.
pub(crate) fn sessions(n: u64) -> String {
    match n {
        0 => "no session".into(),
        1 => "1 session".into(),
        n => format!("{n} sessions"),
    }
}

/// The part of a TraceReport that holds answers.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    question: Option<u64>,
    receivers: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssntp::Command;

    #[test]
    fn a_question_gets_the_number_of_receivers_and_other_frames_are_not_questions() {
        let plain = Frame::new(Command::STATS);
        assert_eq!(Question::of(&plain), None);
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent: TraceParent = parent.parse().unwrap();
        for parent in [None, Some(&parent)] {
            let asking = Question::receivers(plain.clone(), parent);
            assert_eq!(Question::of(&asking), Some(Question::Receivers(None)));
        }
        let role = Role::CONTROLLER | Role::AGENT;
        assert_eq!(
            Question::of(&Question::sessions(role)),
            Some(Question::Sessions(role))
        );
        let asking = Question::numbered(plain.clone(), 5);
        for (asking, question) in [
            (Question::receivers(plain.clone(), None), None),
            (asking, Some(5)),
        ] {
            let answer = Question::of(&asking).unwrap().answer(plain.kind(), 7).unwrap();
            assert_eq!(
                answered(&answer),
                Some(Answered {
                    question,
                    receivers: 7
                })
            );
        }
        let answer = Question::Receivers(None).answer(plain.kind(), 7).unwrap();
        assert_eq!(Question::of(&answer), None);
        for other in [
            plain,
            Frame::with_payload(Event::TRACE_REPORT, "frames: [{label: x, receivers: 1}]"),
        ] {
            assert_eq!(answered(&other), None);
        }
    }
}
