//! AttachVolume and DetachVolume (COMMAND 0xa, 0xb).

use ssntp::payload::Id;

alike! {
    {
        /// The instance; required.
        instance_uuid: Id,
        /// The volume; required.
        volume_uuid: Id,
        /// The node that the instance is on; required.
        workload_agent_uuid: Id,
    }

    /// Attach a volume to an instance.
    ///
    /// The payload of AttachVolume (COMMAND 0xa):
    ///
    /// ```yaml
    /// attach_volume:
    ///   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    ///   volume_uuid: 7c9e6679-7425-40de-944b-e07fc1f90ae7
    ///   workload_agent_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    /// ```
    AttachVolume = Command::ATTACH_VOLUME,
    under "attach_volume", requires instance_uuid, volume_uuid, workload_agent_uuid;

    /// Detach a volume from an instance.
    ///
    /// The payload of DetachVolume (COMMAND 0xb):
    ///
    /// ```yaml
    /// detach_volume:
    ///   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    ///   volume_uuid: 7c9e6679-7425-40de-944b-e07fc1f90ae7
    ///   workload_agent_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    /// ```
    DetachVolume = Command::DETACH_VOLUME,
    under "detach_volume", requires instance_uuid, volume_uuid, workload_agent_uuid;
}
