//! AttachVolumeFailure and DetachVolumeFailure (ERROR 0x8, 0x9).

use serde::{Deserialize, Serialize};

use super::super::names::names;
use super::super::{Id, payload};
use super::{command_failure, reason_of_error};

/// A volume was not attached.
///
/// The payload of AttachVolumeFailure (ERROR 0x8):
///
/// ```yaml
/// node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
/// instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
/// volume_uuid: 7c9e6679-7425-40de-944b-e07fc1f90ae7
/// reason: already_attached
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AttachVolumeFailure {
    /// The node; default: empty.
    pub node_uuid: Id,
    /// The instance; default: empty.
    pub instance_uuid: Id,
    /// The volume; default: empty.
    pub volume_uuid: Id,
    /// Why; default: empty.
    pub reason: AttachVolumeFailureReason,
}

payload!(AttachVolumeFailure = ErrorCode::ATTACH_VOLUME_FAILURE);
command_failure!(AttachVolumeFailure of ATTACH_VOLUME with AttachVolumeFailureReason: node_uuid, instance_uuid, volume_uuid);

/// A volume was not detached.
///
/// The payload of DetachVolumeFailure (ERROR 0x9):
///
/// ```yaml
/// node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
/// instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
/// volume_uuid: 7c9e6679-7425-40de-944b-e07fc1f90ae7
/// reason: not_attached
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DetachVolumeFailure {
    /// The node; default: empty.
    pub node_uuid: Id,
    /// The instance; default: empty.
    pub instance_uuid: Id,
    /// The volume; default: empty.
    pub volume_uuid: Id,
    /// Why; default: empty.
    pub reason: DetachVolumeFailureReason,
}

payload!(DetachVolumeFailure = ErrorCode::DETACH_VOLUME_FAILURE);
command_failure!(DetachVolumeFailure of DETACH_VOLUME with DetachVolumeFailureReason: node_uuid, instance_uuid, volume_uuid);

names! {
    /// Why a volume was not attached.
    AttachVolumeFailureReason {
        /// The node has no such instance, or isn't connected.
        NoInstance = "no_instance";
        /// The payload is no document.
        InvalidPayload = "invalid_payload";
        /// The payload isn't what its schema says.
        InvalidData = "invalid_data";
        /// Attaching failed.
        AttachFailure = "attach_failure";
        /// It is attached.
        AlreadyAttached = "already_attached";
        /// What the node knows of the instance couldn't be saved.
        StateFailure = "state_failure";
        /// The instance failed.
        InstanceFailure = "instance_failure";
        /// Instances of that kind take no volumes.
        NotSupported = "not_supported";
    }
}

reason_of_error!(AttachVolumeFailureReason);

names! {
    /// Why a volume was not detached.
    DetachVolumeFailureReason {
        /// The node has no such instance, or isn't connected.
        NoInstance = "no_instance";
        /// The payload is no document.
        InvalidPayload = "invalid_payload";
        /// The payload isn't what its schema says.
        InvalidData = "invalid_data";
        /// Detaching failed.
        DetachFailure = "detach_failure";
        /// It is not attached.
        NotAttached = "not_attached";
        /// What the node knows of the instance couldn't be saved.
        StateFailure = "state_failure";
        /// The instance failed.
        InstanceFailure = "instance_failure";
        /// Instances of that kind take no volumes.
        NotSupported = "not_supported";
    }
}

reason_of_error!(DetachVolumeFailureReason);
