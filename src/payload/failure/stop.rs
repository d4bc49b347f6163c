//! StopFailure: an instance was not stopped (ERROR 0x2).

use serde::{Deserialize, Serialize};

use super::super::names::names;
use super::super::{Id, payload};
use super::{command_failure, reason_of_error};

/// An instance was not stopped.
///
/// The payload of StopFailure (ERROR 0x2):
///
/// ```yaml
/// node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
/// instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
/// reason: already_stopped
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StopFailure {
    /// The node; default: empty.
    pub node_uuid: Id,
    /// The instance; default: empty.
    pub instance_uuid: Id,
    /// Why; default: empty.
    pub reason: StopFailureReason,
}

payload!(StopFailure = ErrorCode::STOP_FAILURE);
command_failure!(StopFailure of STOP with StopFailureReason: node_uuid, instance_uuid);

names! {
    /// Why an instance was not stopped.
    StopFailureReason {
        /// The node has no such instance, or isn't connected.
        NoInstance = "no_instance";
        /// The payload is no document.
        InvalidPayload = "invalid_payload";
        /// The payload isn't what its schema says.
        InvalidData = "invalid_data";
        /// It was stopped before.
        AlreadyStopped = "already_stopped";
    }
}

reason_of_error!(StopFailureReason);
