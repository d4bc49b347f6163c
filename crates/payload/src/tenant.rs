//! TenantAdded and TenantRemoved: a node runs its first workload of a tenant, or has ended the last
//! one (EVENT 0x0, 0x1). The tenant's concentrator opens or closes its tunnel to the node.

use std::net::Ipv4Addr;

use ssntp::payload::Id;

alike! {
    {
        /// The node; default: empty.
        agent_uuid: Id,
        /// The node's address; default: empty.
        agent_ip: String,
        /// The tenant; default: empty.
        tenant_uuid: Id,
        /// The tenant's subnet in CIDR form; default: empty.
        tenant_subnet: String,
        /// The tenant's concentrator, which receives the event; required.
        concentrator_uuid: Id,
        /// The concentrator's address; default: empty.
        concentrator_ip: String,
        /// The key of the tunnel, see [`subnet_key`]; default: 0.
        subnet_key: u32,
        /// In TenantAdded for a concentrator: the addresses that lead to the node, which the scheduler has
        /// leased to instances there. A key of this project, which others ignore; default: none. Left out then.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        addresses: Vec<Ipv4Addr>,
    }

    /// A node runs its first workload of a tenant.
    ///
    /// The payload of TenantAdded (EVENT 0x0):
    ///
    /// ```yaml
    /// tenant_added:
    ///   agent_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///   agent_ip: 10.0.0.7
    ///   tenant_uuid: 93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50
    ///   tenant_subnet: 172.16.0.0/24
    ///   concentrator_uuid: c2a1f0e9-8d7c-4b6a-9584-736251403f2e
    ///   concentrator_ip: 10.0.0.33
    ///   subnet_key: 4268
    /// ```
    TenantAdded = Event::TENANT_ADDED,
    under "tenant_added", requires concentrator_uuid;

    /// A node no longer runs a workload of a tenant.
    ///
    /// The payload of TenantRemoved (EVENT 0x1):
    ///
    /// ```yaml
    /// tenant_removed:
    ///   agent_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///   agent_ip: 10.0.0.7
    ///   tenant_uuid: 93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50
    ///   tenant_subnet: 172.16.0.0/24
    ///   concentrator_uuid: c2a1f0e9-8d7c-4b6a-9584-736251403f2e
    ///   concentrator_ip: 10.0.0.33
    ///   subnet_key: 4268
    /// ```
    TenantRemoved = Event::TENANT_REMOVED,
    under "tenant_removed", requires concentrator_uuid;
}

/// The key of a subnet's tunnel: its address read as a little-endian number.
///
/// ```
/// use std::net::Ipv4Addr;
///
/// assert_eq!(ssntp_payload::subnet_key(Ipv4Addr::new(172, 16, 0, 0)), 4268);
/// ```
pub const fn subnet_key(subnet: Ipv4Addr) -> u32 {
    u32::from_le_bytes(subnet.octets())
}
