//! EVACUATE: empty a node of its instances (COMMAND 0x4).

use crate::workload::is_default;
use ssntp::names;
use ssntp::payload::Id;
use ssntp::schema;

schema! {
    /// Stop all instances of a node, and put the node into another state; or only drain it.
    ///
    /// The payload of EVACUATE (COMMAND 0x4):
    ///
    /// ```yaml
    /// evacuate:
    ///   workload_agent_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///   next_state: reboot
    /// ```
    Evacuate = Command::EVACUATE, under "evacuate", requires workload_agent_uuid {
        /// The node; required.
        workload_agent_uuid: Id,
        /// The action of the node once it is empty; default: maintenance. Left out then.
        #[serde(skip_serializing_if = "is_default")]
        next_state: NextState,
        /// The time in seconds after which the node kills instances that have not ended; default: 0, the
        /// node's own time limit. Left out then. A key of this project.
        #[serde(skip_serializing_if = "is_default")]
        deadline: u32,
        /// True if the scheduler starts the instances on other nodes, if they can run there, once they
        /// have ended here; default: false. Left out then. Written as `move`. A key of this project.
        #[serde(rename = "move", skip_serializing_if = "is_default")]
        moves: bool,
        /// True if the node goes into maintenance at once and its instances continue to run, so that
        /// their controllers can move them; default: false. Left out then. A key of this project.
        #[serde(skip_serializing_if = "is_default")]
        drain: bool,
    }
}

names! {
    /// The action of a node once it is empty. The default is `Maintenance`.
    NextState {
        /// The node shuts down.
        Shutdown = "shutdown";
        /// The node updates its software.
        Update = "update";
        /// The node reboots.
        Reboot = "reboot";
        /// The node stays in maintenance until Restore.
        Maintenance = "maintenance" | "";
    }
    default Maintenance
}
