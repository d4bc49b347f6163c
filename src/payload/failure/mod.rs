//! The failures: what became of a command that wasn't carried out.
//!
//! | file | frames |
//! |---|---|
//! | `start` | StartFailure |
//! | `stop` | StopFailure |
//! | `restart` | RestartFailure |
//! | `delete` | DeleteFailure |
//! | `volume` | AttachVolumeFailure, DetachVolumeFailure |
//! | `public_ip` | AssignPublicIPFailure, UnassignPublicIPFailure |
//!
//! Each says why with a reason of its own. Every reason can be made `From` the
//! error of a payload that was refused: `invalid_payload` where it is no
//! document at all, `invalid_data` where it isn't what its schema says.
//!
//! Whoever has to do with all kinds alike uses [`CommandFailure`].
//!
//! Their fields are all optional to read, so that a failure is never lost.

mod delete;
mod public_ip;
mod restart;
mod start;
mod stop;
mod volume;

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use super::{Error, Id, Payload, yaml};
use crate::proto::{Command, Frame};

pub use self::delete::{DeleteFailure, DeleteFailureReason};
pub use self::public_ip::{AssignPublicIpFailure, PublicIpFailureReason, UnassignPublicIpFailure};
pub use self::restart::{RestartFailure, RestartFailureReason};
pub use self::start::{StartFailure, StartFailureReason};
pub use self::stop::{StopFailure, StopFailureReason};
pub use self::volume::{
    AttachVolumeFailure, AttachVolumeFailureReason, DetachVolumeFailure, DetachVolumeFailureReason,
};

/// What all failures of commands have: what the command was about, and a reason.
pub trait CommandFailure: Payload {
    /// The command that was not carried out.
    const COMMAND: Command;
    /// Why.
    type Reason: fmt::Display + for<'a> From<&'a Error>;

    /// The failure of a command about this.
    fn of(subject: CommandSubject, reason: Self::Reason) -> Self;

    /// What the command was about, and why it was not carried out.
    fn into_parts(self) -> (CommandSubject, Self::Reason);
}

/// What a command and its failure are about: the keys that they share. What a
/// kind has no such key for is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CommandSubject {
    /// The node.
    #[serde(rename = "workload_agent_uuid")]
    pub node_uuid: Id,
    /// The instance.
    pub instance_uuid: Id,
    /// The volume.
    pub volume_uuid: Id,
    /// The concentrator.
    pub concentrator_uuid: Id,
    /// The tenant.
    pub tenant_uuid: Id,
    /// The public address.
    pub public_ip: String,
    /// The instance's address inside its subnet.
    pub private_ip: String,
    /// The MAC address of the instance's interface.
    pub vnic_mac: String,
    /// Whether a START was to start an instance again.
    pub restart: bool,
    /// Why in full, where a failure says so; no command has it.
    #[serde(skip_deserializing)]
    pub detail: String,
}

impl CommandSubject {
    /// What a command is about, as far as it can be read when the command as a
    /// whole cannot.
    pub fn of(command: &Frame) -> Self {
        // Only START has more than one document.
        let mut found: Vec<_> = yaml::documents(command.payload_bytes())
            .take(3)
            .filter_map(|document| yaml::decode::<BTreeMap<String, Self>>(document.bytes).ok())
            .flat_map(BTreeMap::into_values)
            .filter(|subject| *subject != Self::default())
            .collect();
        let names_instance = |subject: &Self| !subject.instance_uuid.is_empty();
        let best = found.iter().position(names_instance).unwrap_or(0);
        match found.is_empty() {
            true => Self::default(),
            false => found.swap_remove(best),
        }
    }
}

/// Makes a reason of the error of a refused payload.
macro_rules! reason_of_error {
    ($reason:ident) => {
        impl From<&$crate::payload::Error> for $reason {
            fn from(error: &$crate::payload::Error) -> Self {
                if error.is_malformed() {
                    Self::InvalidPayload
                } else {
                    Self::InvalidData
                }
            }
        }
    };
}

/// Implements [`CommandFailure`], and makes a failure's reason of the error of a
/// refused payload.
macro_rules! command_failure {
    ($failure:ident of $command:ident with $reason:ident: $($field:ident),+) => {
        impl $crate::payload::CommandFailure for $failure {
            const COMMAND: $crate::proto::Command = $crate::proto::Command::$command;
            type Reason = $reason;

            fn of(subject: $crate::payload::CommandSubject, reason: $reason) -> Self {
                Self {
                    $($field: subject.$field,)+
                    reason,
                }
            }

            fn into_parts(self) -> ($crate::payload::CommandSubject, $reason) {
                let subject = $crate::payload::CommandSubject {
                    $($field: self.$field,)+
                    ..$crate::payload::CommandSubject::default()
                };
                (subject, self.reason)
            }
        }
    };
}

use {command_failure, reason_of_error};
