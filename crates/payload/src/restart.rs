//! RESTART: start a stopped persistent instance again (COMMAND 0x6).

use crate::workload::Older;
use crate::{FwType, Networking, Persistence, Requirements};
use ssntp::payload::Id;
use ssntp::{payload, schema};

schema! {
    /// Start a stopped instance again, on the node that has it.
    ///
    /// The older keys `requested_resources` and `estimated_resources` are read if there are no
    /// `requirements`. They are never written.
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
    Restart {
        /// The tenant that the instance belongs to; default: empty.
        tenant_uuid: Id,
        /// The instance; required.
        instance_uuid: Id,
        /// The node that the instance is on; required.
        workload_agent_uuid: Id,
        /// The firmware of a virtual machine; default: empty.
        fw_type: FwType,
        /// The parts of the instance that are kept after its end; default: empty.
        persistence: Persistence,
        /// Its addresses and networks; default: all empty.
        networking: Networking,
        /// The resources that it needs on its node; default: none.
        requirements: Requirements,
    }
}

payload!(Restart = Command::RESTART, under "restart", requires instance_uuid, workload_agent_uuid; completed by |restart: &mut Self, older: Older| older.complete(&mut restart.requirements));
