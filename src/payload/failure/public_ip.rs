//! AssignPublicIPFailure and UnassignPublicIPFailure (ERROR 0xa, 0xb).

use serde::{Deserialize, Serialize};

use super::super::names::names;
use super::super::{AssignPublicIp, Id, ReleasePublicIp, payload};
use super::{command_failure, reason_of_error};

/// A public IP address was not assigned.
///
/// The payload of AssignPublicIPFailure (ERROR 0xa):
///
/// ```yaml
/// concentrator_uuid: c2a1f0e9-8d7c-4b6a-9584-736251403f2e
/// tenant_uuid: 93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50
/// instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
/// public_ip: 198.51.100.20
/// private_ip: 172.16.0.5
/// vnic_mac: 02:42:0a:00:00:21
/// reason: assign_failure
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AssignPublicIpFailure {
    /// The concentrator; default: empty.
    pub concentrator_uuid: Id,
    /// Whose instance it is; default: empty.
    pub tenant_uuid: Id,
    /// The instance; default: empty.
    pub instance_uuid: Id,
    /// The public address; default: empty.
    pub public_ip: String,
    /// The instance's address inside its subnet; default: empty.
    pub private_ip: String,
    /// The MAC address of the instance's interface; default: empty.
    pub vnic_mac: String,
    /// Why; default: empty.
    pub reason: PublicIpFailureReason,
}

payload!(AssignPublicIpFailure = ErrorCode::ASSIGN_PUBLIC_IP_FAILURE);
command_failure!(AssignPublicIpFailure of ASSIGN_PUBLIC_IP with PublicIpFailureReason: concentrator_uuid, tenant_uuid, instance_uuid, public_ip, private_ip, vnic_mac);

impl AssignPublicIpFailure {
    /// The failure of a command.
    pub fn new(failed: AssignPublicIp, reason: PublicIpFailureReason) -> Self {
        Self {
            concentrator_uuid: failed.concentrator_uuid,
            tenant_uuid: failed.tenant_uuid,
            instance_uuid: failed.instance_uuid,
            public_ip: failed.public_ip,
            private_ip: failed.private_ip,
            vnic_mac: failed.vnic_mac,
            reason,
        }
    }
}

/// A public IP address was not released.
///
/// The payload of UnassignPublicIPFailure (ERROR 0xb):
///
/// ```yaml
/// concentrator_uuid: c2a1f0e9-8d7c-4b6a-9584-736251403f2e
/// tenant_uuid: 93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50
/// instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
/// public_ip: 198.51.100.20
/// private_ip: 172.16.0.5
/// vnic_mac: 02:42:0a:00:00:21
/// reason: release_failure
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnassignPublicIpFailure {
    /// The concentrator; default: empty.
    pub concentrator_uuid: Id,
    /// Whose instance it is; default: empty.
    pub tenant_uuid: Id,
    /// The instance; default: empty.
    pub instance_uuid: Id,
    /// The public address; default: empty.
    pub public_ip: String,
    /// The instance's address inside its subnet; default: empty.
    pub private_ip: String,
    /// The MAC address of the instance's interface; default: empty.
    pub vnic_mac: String,
    /// Why; default: empty.
    pub reason: PublicIpFailureReason,
}

payload!(UnassignPublicIpFailure = ErrorCode::UNASSIGN_PUBLIC_IP_FAILURE);
command_failure!(UnassignPublicIpFailure of RELEASE_PUBLIC_IP with PublicIpFailureReason: concentrator_uuid, tenant_uuid, instance_uuid, public_ip, private_ip, vnic_mac);

impl UnassignPublicIpFailure {
    /// The failure of a command.
    pub fn new(failed: ReleasePublicIp, reason: PublicIpFailureReason) -> Self {
        Self {
            concentrator_uuid: failed.concentrator_uuid,
            tenant_uuid: failed.tenant_uuid,
            instance_uuid: failed.instance_uuid,
            public_ip: failed.public_ip,
            private_ip: failed.private_ip,
            vnic_mac: failed.vnic_mac,
            reason,
        }
    }
}

names! {
    /// Why a public IP address was not assigned or released.
    PublicIpFailureReason {
        /// There is no such instance, or its concentrator isn't connected.
        NoInstance = "no_instance";
        /// The payload is no document.
        InvalidPayload = "invalid_payload";
        /// The payload isn't what its schema says.
        InvalidData = "invalid_data";
        /// Assigning failed.
        AssignFailure = "assign_failure";
        /// Releasing failed.
        ReleaseFailure = "release_failure";
    }
}

reason_of_error!(PublicIpFailureReason);
