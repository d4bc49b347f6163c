//! Tenant and Tenants (COMMAND and EVENT 0x47): the tenants whose networks the scheduler
//! keeps, their keys, and the addresses of their instances.

use serde::{Deserialize, Serialize};

use super::names::names;
use super::{Id, payload};

/// A controller asks for the tenants, or changes one.
///
/// The payload of Tenant (COMMAND 0x47):
///
/// ```yaml
/// tenant:
///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b15
///   action: add
///   name: blue
///   entry:
///     tenant_uuid: 93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50
///     subnet: 172.16.0.0/24
///     key: 0
///     concentrator_uuid: c2a1f0e9-8d7c-4b6a-9584-736251403f2e
///     concentrator_ip: 10.0.0.33/24
///   instance_uuid: ""
///   ip: ""
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tenant {
    /// Chosen by the controller and repeated in the answer; required, 64 bytes at most.
    pub id: Id,
    /// What is to be done; default: `list`.
    pub action: TenantAction,
    /// The tenant's name. For `list` only tenants after this name; default: from the first.
    pub name: String,
    /// The tenant to add; its `name` is not read, and a key of 0 is replaced by a free one.
    pub entry: TenantEntry,
    /// The instance that gets an address, or gives it back.
    pub instance_uuid: Id,
    /// The address that it gets; default: empty, the first free one.
    pub ip: String,
}

payload!(Tenant = Command::TENANT, under "tenant", requires id);

/// The answer to a [`Tenant`]: the tenants that are meant, as they are now.
///
/// The payload of Tenants (EVENT 0x47), made by the scheduler:
///
/// ```yaml
/// tenants:
///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b15
///   reason: ""
///   detail: ""
///   next: ""
///   entries:
///   - name: blue
///     tenant_uuid: 93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50
///     subnet: 172.16.0.0/24
///     key: 1
///     concentrator_uuid: c2a1f0e9-8d7c-4b6a-9584-736251403f2e
///     concentrator_ip: 10.0.0.33/24
///     addresses:
///     - ip: 172.16.0.2
///       instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tenants {
    /// As in the question.
    pub id: Id,
    /// Why nothing was done; empty after success.
    pub reason: TenantRefusal,
    /// The reason in words.
    pub detail: String,
    /// For `list`: the `name` of the next page; empty on the last page.
    pub next: String,
    /// The tenants. A list has no addresses in it.
    pub entries: Vec<TenantEntry>,
}

payload!(Tenants = Event::TENANTS, under "tenants", up to super::yaml::MAX_DOCUMENT_LEN);

/// A tenant and its network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantEntry {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub tenant_uuid: Id,
    /// Its subnet, in CIDR form.
    pub subnet: String,
    /// The key of its tunnels, which no other tenant has: 1 to 16777215.
    pub key: u32,
    /// Its concentrator.
    pub concentrator_uuid: Id,
    /// The concentrator's address in the cluster's network, with the length of its prefix.
    pub concentrator_ip: String,
    /// The addresses of its instances.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<TenantAddress>,
}

/// An address of a tenant's subnet, and the instance that has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantAddress {
    /// The address.
    pub ip: String,
    /// The instance.
    pub instance_uuid: Id,
}

names! {
    /// What a controller wants of the tenants.
    TenantAction {
        /// All tenants, a page at a time.
        List = "list";
        /// One tenant, with its addresses.
        Show = "show";
        /// A new tenant.
        Add = "add";
        /// The tenant goes; no instance may have an address.
        Delete = "delete";
        /// An address for an instance.
        Lease = "lease";
        /// The instance's address is free again.
        Release = "release";
    }
    default List
}

names! {
    /// Why a scheduler does not do what a controller wants of the tenants.
    TenantRefusal {
        /// There is no tenant of that name.
        NoTenant = "no_tenant";
        /// The name, the key, the concentrator or the address is another one's.
        Taken = "taken";
        /// Instances have addresses of the tenant, or a node still has the instance.
        InUse = "in_use";
        /// There are as many tenants, or addresses, as there may be.
        Full = "full";
        /// A value is missing or makes no sense.
        InvalidData = "invalid_data";
        /// The file cannot be written.
        NotSaved = "not_saved";
    }
}
