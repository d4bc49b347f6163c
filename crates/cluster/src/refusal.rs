//! The refusal of a command, and its frame: one table for the scheduler, the agents, the
//! concentrators and the controllers.

use std::{fmt, io};

use serde::{Deserialize, Serialize};
use ssntp::payload::{Error, Id, InvalidFrameType};
use ssntp::proto::{Command, Frame, FrameKind, FrameType};
pub use ssntp_payload::Reason;
use ssntp_payload::{
    AssignPublicIpFailure, AttachVolumeFailure, CommandFailure, CommandSubject, DeleteFailure,
    DetachVolumeFailure, RestartFailure, StartFailure, StopFailure, UnassignPublicIpFailure,
};
use ssntp_transport::excerpt;

/// The length limit of a command's id in its failure, in bytes.
const MAX_COMMAND_ID: usize = 64;

/// The reason why a command is not carried out, and an explanation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{reason}{}{why}", if why.is_empty() { "" } else { ": " })]
pub struct Refused {
    /// The reason.
    pub reason: Reason,
    /// The explanation, in one line; may be empty.
    pub why: String,
}

impl Refused {
    /// A refusal with this reason and explanation.
    pub fn new(reason: Reason, why: impl Into<String>) -> Self {
        Self {
            reason,
            why: why.into(),
        }
    }

    /// A refusal of what the payload says.
    pub fn invalid(why: impl Into<String>) -> Self {
        Self::new(Reason::InvalidData, why)
    }

    /// A refusal with [`Reason::LaunchFailure`].
    pub fn launch(why: impl Into<String>) -> Self {
        Self::new(Reason::LaunchFailure, why)
    }

    /// An error of the system at a launch, about `what`. For a full disk it is [`Reason::FullCn`].
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        let reason = match error.kind() {
            // For `full_cn` the scheduler tries other nodes.
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Reason::FullCn,
            _ => Reason::LaunchFailure,
        };
        Self::new(reason, format!("{what}: {error}"))
    }
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self::invalid(why)
    }
}

impl From<Reason> for Refused {
    fn from(reason: Reason) -> Self {
        Self::new(reason, "")
    }
}

impl From<&Error> for Refused {
    fn from(error: &Error) -> Self {
        Self::new(error.into(), error.to_string())
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

/// The functions that write and read the failure of one command.
struct Kind {
    command: Command,
    error: FrameKind,
    write: fn(CommandSubject, Reason) -> Frame,
    read: fn(&Frame) -> Result<(CommandSubject, Reason), Error>,
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
            write: |subject, reason| Frame::of(&F::of(subject, reason)),
            read: |frame| Ok(frame.payload::<F>()?.into_parts()),
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
    let reason = match (command, &refused.reason) {
        (Command::RESTART, Reason::ImageFailure | Reason::FullCn | Reason::NoAnswer) => Reason::LaunchFailure,
        (Command::ATTACH_VOLUME, Reason::NoAnswer) => Reason::AttachFailure,
        (Command::DETACH_VOLUME, Reason::NoAnswer | Reason::AttachFailure) => Reason::DetachFailure,
        (Command::DETACH_VOLUME, Reason::AlreadyAttached) => Reason::NotAttached,
        (_, Reason::NotConnected) => Reason::NoInstance,
        (_, reason) => reason.clone(),
    };
    written(command, subject, reason)
}

/// The failure of a command, with any reason; `None` if the command has no failure.
pub fn written(command: Command, subject: CommandSubject, reason: Reason) -> Option<Frame> {
    let kind = KINDS.iter().find(|kind| kind.command == command)?;
    Some((kind.write)(subject, reason))
}

/// Reads a failure: its command, its subject, and the reason. `None` if the frame is not the
/// failure of a command.
pub fn read(frame: &Frame) -> Option<Result<(Command, CommandSubject, Reason), Error>> {
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
pub fn invalid_frame(kind: FrameKind, reason: &Reason) -> Frame {
    Frame::of(&InvalidFrameType::new(kind, reason.as_str().into()))
}

/// True if two ids of a command and of its failure name the same entity. A UUID may be in upper or
/// lower case.
pub fn same(one: &Id, other: &Id) -> bool {
    one == other || one.uuid().is_some_and(|uuid| *other == uuid)
}
