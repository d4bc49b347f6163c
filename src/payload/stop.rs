//! STOP: shut an instance down (COMMAND 0x2).

use serde::{Deserialize, Serialize};

use super::{Id, payload};

/// Shut an instance down. One that is persistent is kept and can be restarted.
///
/// The payload of STOP (COMMAND 0x2):
///
/// ```yaml
/// stop:
///   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
///   workload_agent_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
///   stop: false
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stop {
    /// The instance; required.
    pub instance_uuid: Id,
    /// The node it runs on; required.
    pub workload_agent_uuid: Id,
    /// Shared with DELETE, and without meaning here; default: false.
    pub stop: bool,
}

payload!(Stop = Command::STOP, under "stop", requires instance_uuid, workload_agent_uuid);
