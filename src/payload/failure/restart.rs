//! RestartFailure: an instance was not restarted (ERROR 0x5).

use serde::{Deserialize, Serialize};

use super::super::names::names;
use super::super::{Id, payload};
use super::{command_failure, reason_of_error};

/// An instance was not restarted.
///
/// The payload of RestartFailure (ERROR 0x5):
///
/// ```yaml
/// node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
/// instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
/// reason: instance_corrupt
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RestartFailure {
    /// The node; default: empty.
    pub node_uuid: Id,
    /// The instance; default: empty.
    pub instance_uuid: Id,
    /// Why; default: empty.
    pub reason: RestartFailureReason,
    /// Why in full, for people, in one line of at most 200 characters. A key of this
    /// project, which others ignore; default: empty. Left out when empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

payload!(RestartFailure = ErrorCode::RESTART_FAILURE);
command_failure!(RestartFailure of RESTART with RestartFailureReason: node_uuid, instance_uuid, detail);

names! {
    /// Why an instance was not restarted.
    RestartFailureReason {
        /// The node has no such instance, or isn't connected.
        NoInstance = "no_instance";
        /// The payload is no document.
        InvalidPayload = "invalid_payload";
        /// The payload isn't what its schema says.
        InvalidData = "invalid_data";
        /// It runs.
        AlreadyRunning = "already_running";
        /// What is left of it can't be used.
        InstanceCorrupt = "instance_corrupt";
        /// It couldn't be launched.
        LaunchFailure = "launch_failure";
        /// It couldn't be wired.
        NetworkFailure = "network_failure";
    }
}

reason_of_error!(RestartFailureReason);
