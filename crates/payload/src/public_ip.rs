//! AssignPublicIP and ReleasePublicIP (COMMAND 0x7, 0x8), and the events that
//! confirm them, PublicIPAssigned and PublicIPUnassigned (EVENT 0x4, 0x8).

use ssntp::payload::Id;

alike! {
    {
        /// The concentrator that carries the command out; required.
        concentrator_uuid: Id,
        /// The tenant that the instance belongs to; default: empty.
        tenant_uuid: Id,
        /// The instance; default: empty.
        instance_uuid: Id,
        /// The public address; default: empty.
        public_ip: String,
        /// The instance's address inside its subnet; default: empty.
        private_ip: String,
        /// The MAC address of the instance's interface; default: empty.
        vnic_mac: String,
    }

    /// Give a public IP address to an instance.
    ///
    /// The payload of AssignPublicIP (COMMAND 0x7):
    ///
    /// ```yaml
    /// assign_public_ip:
    ///   concentrator_uuid: c2a1f0e9-8d7c-4b6a-9584-736251403f2e
    ///   tenant_uuid: 93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50
    ///   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    ///   public_ip: 198.51.100.20
    ///   private_ip: 172.16.0.5
    ///   vnic_mac: 02:42:0a:00:00:21
    /// ```
    AssignPublicIp = Command::ASSIGN_PUBLIC_IP,
    under "assign_public_ip", requires concentrator_uuid;

    /// Take a public IP address back from an instance.
    ///
    /// The payload of ReleasePublicIP (COMMAND 0x8):
    ///
    /// ```yaml
    /// release_public_ip:
    ///   concentrator_uuid: c2a1f0e9-8d7c-4b6a-9584-736251403f2e
    ///   tenant_uuid: 93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50
    ///   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    ///   public_ip: 198.51.100.20
    ///   private_ip: 172.16.0.5
    ///   vnic_mac: 02:42:0a:00:00:21
    /// ```
    ReleasePublicIp = Command::RELEASE_PUBLIC_IP,
    under "release_public_ip", requires concentrator_uuid;
}

alike! {
    {
        /// The concentrator that carried the command out; default: empty.
        concentrator_uuid: Id,
        /// The instance; default: empty.
        instance_uuid: Id,
        /// The public address; default: empty.
        public_ip: String,
        /// The instance's address inside its subnet; default: empty.
        private_ip: String,
    }

    /// An instance has its public IP address.
    ///
    /// The payload of PublicIPAssigned (EVENT 0x4):
    ///
    /// ```yaml
    /// public_ip_assigned:
    ///   concentrator_uuid: c2a1f0e9-8d7c-4b6a-9584-736251403f2e
    ///   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    ///   public_ip: 198.51.100.20
    ///   private_ip: 172.16.0.5
    /// ```
    PublicIpAssigned = Event::PUBLIC_IP_ASSIGNED,
    under "public_ip_assigned";

    /// An instance lost its public IP address.
    ///
    /// The payload of PublicIPUnassigned (EVENT 0x8):
    ///
    /// ```yaml
    /// public_ip_unassigned:
    ///   concentrator_uuid: c2a1f0e9-8d7c-4b6a-9584-736251403f2e
    ///   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    ///   public_ip: 198.51.100.20
    ///   private_ip: 172.16.0.5
    /// ```
    PublicIpUnassigned = Event::PUBLIC_IP_UNASSIGNED,
    under "public_ip_unassigned";
}
