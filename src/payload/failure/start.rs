//! StartFailure: a workload did not start (ERROR 0x1).

use serde::{Deserialize, Serialize};

use super::super::names::names;
use super::super::{Id, payload};
use super::{command_failure, reason_of_error};

/// A workload did not start, or was there already.
///
/// The payload of StartFailure (ERROR 0x1):
///
/// ```yaml
/// node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
/// instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
/// reason: full_cn
/// restart: true
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartFailure {
    /// The node; empty where the scheduler found none. Default: empty.
    pub node_uuid: Id,
    /// The instance; default: empty.
    pub instance_uuid: Id,
    /// Why; default: empty.
    pub reason: StartFailureReason,
    /// Whether the START was to start an instance again; default: false.
    pub restart: bool,
    /// Why in full, for people, in one line of at most 200 characters. A key of this
    /// project, which others ignore; default: empty. Left out when empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

payload!(StartFailure = ErrorCode::START_FAILURE);
command_failure!(StartFailure of START with StartFailureReason: node_uuid, instance_uuid, restart, detail);

names! {
    /// Why a workload did not start.
    StartFailureReason {
        /// No node has the room.
        FullCloud = "full_cloud";
        /// The node has no room any more.
        FullCn = "full_cn";
        /// The node is in maintenance.
        NodeMaintenance = "node_maintenance";
        /// No compute node is connected.
        NoCn = "no_cn";
        /// No network node is connected.
        NoNetCn = "no_net_cn";
        /// The payload is no document.
        InvalidPayload = "invalid_payload";
        /// The payload isn't what its schema says.
        InvalidData = "invalid_data";
        /// The instance runs.
        AlreadyRunning = "already_running";
        /// The instance is there, and stopped.
        InstanceExists = "instance_exists";
        /// Its image couldn't be had.
        ImageFailure = "image_failure";
        /// It couldn't be launched.
        LaunchFailure = "launch_failure";
        /// It couldn't be wired.
        NetworkFailure = "network_failure";
    }
}

reason_of_error!(StartFailureReason);

impl StartFailureReason {
    /// Whether the instance is on the node all the same. With every other
    /// reason it did not start.
    pub fn instance_is_there(&self) -> bool {
        matches!(self, Self::AlreadyRunning | Self::InstanceExists)
    }

    /// The text of a reason that is known, and else `other`: a peer may say any.
    pub fn word(&self) -> &'static str {
        let known = Self::ALL.iter().find(|known| *known == self);
        known.map_or("other", Self::as_str)
    }
}
