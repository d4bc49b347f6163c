//! Restore: take an evacuated node back into service (COMMAND 0xc).

use serde::{Deserialize, Serialize};

use super::{Id, payload};

/// Take an evacuated node back into service.
///
/// The payload of Restore (COMMAND 0xc):
///
/// ```yaml
/// restore:
///   workload_agent_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Restore {
    /// The node; required.
    pub workload_agent_uuid: Id,
}

payload!(Restore = Command::RESTORE, under "restore", requires workload_agent_uuid);
