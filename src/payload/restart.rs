//! RESTART: start a stopped persistent instance again (COMMAND 0x6).

use serde::{Deserialize, Serialize};

use super::workload::Older;
use super::{FwType, Id, Networking, Persistence, Requirements, payload};

/// Start a stopped instance again, on the node that has it.
///
/// `requested_resources` and `estimated_resources` are read in place of
/// `requirements`, and never written.
///
/// The payload of RESTART (COMMAND 0x6):
///
/// ```yaml
/// restart:
///   tenant_uuid: 93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50
///   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
///   workload_agent_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
///   fw_type: efi
///   persistence: host
///   networking:
///     vnic_mac: 02:42:ac:10:00:05
///     private_ip: 172.16.0.5
///   requirements:
///     mem_mb: 512
///     vcpus: 2
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Restart {
    /// Whose instance it is; default: empty.
    pub tenant_uuid: Id,
    /// The instance; required.
    pub instance_uuid: Id,
    /// The node it is on; required.
    pub workload_agent_uuid: Id,
    /// How a virtual machine boots; default: empty.
    pub fw_type: FwType,
    /// What outlives the instance's end; default: empty.
    pub persistence: Persistence,
    /// How it is wired; default: nothing said.
    pub networking: Networking,
    /// What it needs of its node; default: nothing.
    pub requirements: Requirements,
}

payload!(Restart = Command::RESTART, under "restart", requires instance_uuid, workload_agent_uuid; completed by |restart: &mut Self, older: Older| older.complete(&mut restart.requirements));
