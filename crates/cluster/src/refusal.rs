//! The refusal of a command, and its frame: one table for the scheduler, the agents, the
//! concentrators and the controllers.

use std::fmt;

use ssntp::payload::{Error, Id, InvalidFrameType};
use ssntp::proto::{Command, Frame, FrameKind, FrameType};
use ssntp_payload::{
    AssignPublicIpFailure, AttachVolumeFailure, CommandFailure, CommandSubject, DeleteFailure,
    DetachVolumeFailure, RestartFailure, StartFailure, StopFailure, UnassignPublicIpFailure,
};
use ssntp_transport::excerpt;

/// The length limit of a command's id in its failure, in bytes.
const MAX_COMMAND_ID: usize = 64;

/// The reason why a frame is refused: the protocol's word, and an explanation, which may be empty.
#[derive(Debug)]
pub struct Refused {
    /// The protocol's word.
    pub word: &'static str,
    /// The explanation; may be empty.
    pub why: String,
}

impl Refused {
    /// A refusal with this word and explanation.
    pub fn new(word: &'static str, why: impl Into<String>) -> Self {
        Self {
            word,
            why: why.into(),
        }
    }

    /// A refusal of what the payload says.
    pub fn invalid(why: impl Into<String>) -> Self {
        Self::new("invalid_data", why)
    }
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self::invalid(why)
    }
}

impl From<&'static str> for Refused {
    fn from(word: &'static str) -> Self {
        Self::new(word, "")
    }
}

impl From<&Error> for Refused {
    fn from(error: &Error) -> Self {
        let word = if error.is_malformed() {
            "invalid_payload"
        } else {
            "invalid_data"
        };
        Self::new(word, error.to_string())
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why.as_str() {
            "" => f.write_str(self.word),
            why => write!(f, "{}: {why}", self.word),
        }
    }
}

/// The functions that write and read the failure of one command.
struct Kind {
    command: Command,
    error: FrameKind,
    write: fn(CommandSubject, &str) -> Frame,
    read: fn(&Frame) -> Result<(CommandSubject, String), Error>,
}

const KINDS: [Kind; 8] = [
    Kind::of::<StartFailure>(),
    Kind::of::<StopFailure>(),
    Kind::of::<RestartFailure>(),
    Kind::of::<DeleteFailure>(),
    Kind::of::<AttachVolumeFailure>(),
    Kind::of::<DetachVolumeFailure>(),
    Kind::of::<AssignPublicIpFailure>(),
    Kind::of::<UnassignPublicIpFailure>(),
];

impl Kind {
    const fn of<F: CommandFailure>() -> Self {
        Self {
            command: F::COMMAND,
            error: F::KIND,
            write: |subject, reason| Frame::of(&F::of(subject, reason.into())),
            read: |frame| {
                let (subject, reason) = frame.payload::<F>()?.into_parts();
                Ok((subject, reason.to_string()))
            },
        }
    }
}

/// The failure of a command; `None` if the command has no failure.
pub fn failure(command: Command, mut subject: CommandSubject, refused: &Refused) -> Option<Frame> {
    subject.detail = excerpt(&refused.why).to_string();
    // The sender chose the id, so its length is not bounded.
    if subject.command_id.len() > MAX_COMMAND_ID {
        subject.command_id = String::new();
    }
    // Each failure has its own list of words in the protocol. If it has no such word, it gets its
    // own word for the same reason, or the nearest one.
    let word = match (command, refused.word) {
        (Command::RESTART, "image_failure" | "full_cn" | "no_answer") => "launch_failure",
        (Command::ATTACH_VOLUME, "no_answer") => "attach_failure",
        (Command::DETACH_VOLUME, "no_answer") => "detach_failure",
        (Command::DETACH_VOLUME, "attach_failure") => "detach_failure",
        (Command::DETACH_VOLUME, "already_attached") => "not_attached",
        (_, "not_connected") => "no_instance",
        (_, word) => word,
    };
    written(command, subject, word)
}

/// The failure of a command, with any reason; `None` if the command has no failure.
pub fn written(command: Command, subject: CommandSubject, reason: &str) -> Option<Frame> {
    let kind = KINDS.iter().find(|kind| kind.command == command)?;
    Some((kind.write)(subject, reason))
}

/// Reads a failure: its command, its subject, and the reason. `None` if the frame is not the
/// failure of a command.
pub fn read(frame: &Frame) -> Option<Result<(Command, CommandSubject, String), Error>> {
    let kind = KINDS.iter().find(|kind| kind.error == frame.kind())?;
    Some((kind.read)(frame).map(|(subject, reason)| (kind.command, subject, reason)))
}

/// The failure of a refused frame; `None` if it is not a command that has one.
pub fn failure_of(frame: &Frame, refused: &Refused) -> Option<Frame> {
    let is_command = frame.kind().frame_type == FrameType::COMMAND;
    let command = is_command.then_some(Command(frame.kind().operand))?;
    failure(command, CommandSubject::of(frame), refused)
}

/// InvalidFrameType for a refused frame of this kind.
pub fn invalid_frame(kind: FrameKind, word: &'static str) -> Frame {
    Frame::of(&InvalidFrameType::new(kind, word.into()))
}

/// True if two ids of a command and of its failure name the same entity. A UUID may be in upper or
/// lower case.
pub fn same(one: &Id, other: &Id) -> bool {
    one == other || one.uuid().is_some_and(|uuid| *other == uuid)
}
