//! DELETE: remove an instance (COMMAND 0x5).

use serde::{Deserialize, Serialize};

use super::{Id, payload};

/// Remove an instance, for good or from its node.
///
/// The payload of DELETE (COMMAND 0x5):
///
/// ```yaml
/// delete:
///   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
///   workload_agent_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
///   stop: false
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Delete {
    /// The instance; required.
    pub instance_uuid: Id,
    /// The node it is on; required.
    pub workload_agent_uuid: Id,
    /// Whether it is only taken off this node, which answers with
    /// InstanceStopped instead of InstanceDeleted; default: false.
    pub stop: bool,
}

payload!(Delete = Command::DELETE, under "delete", requires instance_uuid, workload_agent_uuid);
