//! EVACUATE: empty a node of its instances (COMMAND 0x4).

use serde::{Deserialize, Serialize};

use super::names::names;
use super::workload::is_default;
use super::{Id, payload};

/// Empty a node, and what it does afterwards.
///
/// The payload of EVACUATE (COMMAND 0x4):
///
/// ```yaml
/// evacuate:
///   workload_agent_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
///   next_state: reboot
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evacuate {
    /// The node; required.
    pub workload_agent_uuid: Id,
    /// What the node does afterwards; default: maintenance, and then left out.
    #[serde(skip_serializing_if = "is_default")]
    pub next_state: NextState,
    /// After how many seconds instances that have not ended are killed; default:
    /// 0, after the time that the node gives them, and then left out. A key of
    /// this project.
    #[serde(skip_serializing_if = "is_default")]
    pub deadline: u32,
    /// Whether the scheduler starts what can run elsewhere on other nodes once it
    /// has ended here; default: false, and then left out. Written as `move`. A key
    /// of this project.
    #[serde(rename = "move", skip_serializing_if = "is_default")]
    pub moves: bool,
}

payload!(Evacuate = Command::EVACUATE, under "evacuate", requires workload_agent_uuid);

names! {
    /// What a node does once it is empty. The default is `Maintenance`.
    NextState {
        /// It shuts down.
        Shutdown = "shutdown";
        /// It updates its software.
        Update = "update";
        /// It boots again.
        Reboot = "reboot";
        /// It waits in maintenance until it is restored.
        Maintenance = "maintenance" | "";
    }
    default Maintenance
}
