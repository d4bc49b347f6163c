//! STOP and DELETE: shut an instance down, and remove it (COMMAND 0x2, 0x5).

use ssntp::payload::Id;

alike! {
    {
        /// The instance; required.
        instance_uuid: Id,
        /// The node that the instance is on; required.
        workload_agent_uuid: Id,
        /// In DELETE: true if the instance is only removed from this node, which then answers with
        /// InstanceStopped in place of InstanceDeleted. Ignored in STOP. Default: false.
        stop: bool,
    }

    /// Shut an instance down. A persistent instance is kept and can be restarted.
    ///
    /// The payload of STOP (COMMAND 0x2):
    ///
    /// ```yaml
    /// stop:
    ///   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    ///   workload_agent_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///   stop: false
    /// ```
    Stop = Command::STOP,
    under "stop", requires instance_uuid, workload_agent_uuid;

    /// Remove an instance for good, or only from its node.
    ///
    /// The payload of DELETE (COMMAND 0x5):
    ///
    /// ```yaml
    /// delete:
    ///   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    ///   workload_agent_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///   stop: false
    /// ```
    Delete = Command::DELETE,
    under "delete", requires instance_uuid, workload_agent_uuid;
}
