//! The failure of a command, which may be in any of several frames, and its reason in words.

use std::borrow::Cow;
use std::fmt;
use std::hash::{DefaultHasher, Hasher};

use ssntp::payload::{Error, InvalidFrameType, Payload};
use ssntp::proto::{Command, ErrorCode, Frame, FrameKind};
use ssntp_cluster::refusal;
use ssntp_payload::CommandSubject;

/// The failure of a command. Displayed as a sentence:
/// `instance 0f7a… was not started: no node in service has enough room (full_cloud)`. The detail, if there
/// is one, comes before the protocol's word.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The kind of the command, or of the frame that was refused with InvalidFrameType.
    pub command: FrameKind,
    /// The operand of the error frame.
    pub error: ErrorCode,
    /// What the failure names, the id of its command, and the reason in full, in the words of the agent or the
    /// scheduler. A key that it does not have is empty.
    pub subject: CommandSubject,
    /// The reason, as the protocol's word.
    pub reason: String,
    /// The digest of the refused configuration, because InvalidConfiguration names no command.
    pub(crate) configuration: u64,
}

/// The digest of a configuration, by which it is recognised.
pub(crate) fn digest(configuration: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(configuration);
    hasher.finish()
}

impl Failure {
    /// Reads the failure from a frame; `None` if the frame is of another kind.
    pub(crate) fn read(frame: &Frame) -> Result<Option<Self>, Error> {
        let error = ErrorCode(frame.kind().operand);
        let (unnamed, mut configuration) = (CommandSubject::default(), digest(&[]));
        let (command, subject, reason): (FrameKind, _, _) = if let Some(read) = refusal::read(frame) {
            let (command, subject, reason) = read?;
            (command.into(), subject, reason.to_string())
        } else if error == ErrorCode::INVALID_CONFIGURATION {
            // The payload is the refused configuration. It may be long, so only its digest is kept.
            configuration = digest(frame.payload_bytes());
            (Command::CONFIGURE.into(), unnamed, String::new())
        } else if error == ErrorCode::INVALID_FRAME_TYPE {
            let failed = InvalidFrameType::decode(frame.payload_bytes())?;
            (failed.refused(), unnamed, failed.reason.to_string())
        } else {
            return Ok(None);
        };
        Ok(Some(Self {
            command,
            error,
            subject,
            reason,
            configuration,
        }))
    }

    /// The reason in words.
    pub fn words(&self) -> Cow<'static, str> {
        match self.known() {
            Some(words) => words.into(),
            None if self.reason.is_empty() => "the failure has no reason".into(),
            None => "the reason is not one of the protocol's".into(),
        }
    }

    /// The reason in words, with the detail if there is one, and the protocol's word.
    pub fn why(&self) -> String {
        let (words, detail) = (self.words(), &self.subject.detail);
        let colon = if detail.is_empty() { "" } else { ": " };
        match self.reason.as_str() {
            "" => format!("{words}{colon}{detail} ({})", self.error),
            reason => format!("{words}{colon}{detail} ({reason})"),
        }
    }

    fn known(&self) -> Option<&'static str> {
        let addressed = self.error != ErrorCode::INVALID_FRAME_TYPE;
        Some(match self.reason.as_str() {
            "full_cloud" => "no node in service has enough room",
            "full_cn" => "the node has no room left",
            "node_maintenance" => "the node is in maintenance",
            "no_cn" => "no compute node is connected",
            "no_net_cn" => "no network node is connected",
            "image_failure" => "its image is not available",
            "launch_failure" => "it cannot be launched",
            "network_failure" => "its network cannot be set up",
            "instance_corrupt" => "what is left of it cannot be used",
            "already_running" => "it runs already",
            "instance_exists" => "it is there already, and stopped",
            "not_moved_persistent" => "it is persistent, and its node keeps it",
            "not_moved_storage" => "it has volumes of its node",
            "not_moved_bound" => "its START requires its node",
            "not_moved_unknown" => "the scheduler does not know its START",
            "no_leader" => "no scheduler leads",
            "unknown" => "it may be stored or not, because the answer of the engine was lost",
            "no_answer" => "its node has not said what became of it",
            "already_stopped" => "it has stopped already",
            "already_attached" => "it is attached already",
            "not_attached" => "it is not attached",
            "attach_failure" => "attaching failed",
            "detach_failure" => "detaching failed",
            // For DELETE this word has another meaning than for other commands.
            "state_failure" if self.command == Command::DELETE => "its files cannot be removed",
            "state_failure" => "the node cannot save what it knows of the instance",
            "instance_failure" => "the instance has failed",
            "not_supported" => "instances of its kind take no volumes",
            "assign_failure" => "the concentrator cannot assign it",
            "release_failure" => "the concentrator cannot release it",
            "no_instance" if !self.subject.concentrator_uuid.is_empty() => {
                "there is no such instance, or its concentrator is not connected"
            }
            "no_instance" => "the node has no such instance, or is not connected",
            "invalid_payload" => "the payload is not a YAML document",
            "invalid_data" => "the payload is not what its schema says",
            "unsupported_type" | "unsupported_operand" if !addressed => {
                "the receiver does not know the frame"
            }
            "role_not_allowed" if !addressed => {
                "this controller may not command: its role does not allow it, or another one is the master"
            }
            "bad_exchange" if !addressed => "it is neither a request nor an answer to one",
            "not_connected" if !addressed => "the client that it names is not connected",
            _ if self.error == ErrorCode::INVALID_CONFIGURATION => {
                "the scheduler, or an agent that it is for, cannot use it"
            }
            _ => return None,
        })
    }

    /// Writes which command failed, for which subject.
    fn what(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CommandSubject {
            instance_uuid: instance,
            volume_uuid: volume,
            public_ip,
            ..
        } = &self.subject;
        if self.error == ErrorCode::INVALID_FRAME_TYPE {
            write!(f, "{}", self.command)?;
            if !self.subject.node_uuid.is_empty() {
                write!(f, " of node {}", self.subject.node_uuid)?;
            }
            return f.write_str(" was refused");
        }
        match Command(self.command.operand) {
            Command::START => write!(f, "instance {instance} was not started"),
            Command::STOP => write!(f, "instance {instance} was not stopped"),
            Command::RESTART => write!(f, "instance {instance} was not restarted"),
            Command::DELETE => write!(f, "instance {instance} was not deleted"),
            Command::ATTACH_VOLUME => write!(f, "volume {volume} was not attached to instance {instance}"),
            Command::DETACH_VOLUME => write!(f, "volume {volume} was not detached from instance {instance}"),
            Command::ASSIGN_PUBLIC_IP => write!(f, "{public_ip} was not assigned to instance {instance}"),
            Command::RELEASE_PUBLIC_IP => write!(f, "{public_ip} was not taken from instance {instance}"),
            _ => f.write_str("the configuration was refused"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.what(f)?;
        write!(f, ": {}", self.why())
    }
}
