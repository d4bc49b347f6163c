//! Tenant and Tenants (COMMAND and EVENT 0x47): the scheduler's list of tenants, with their networks,
//! their keys, and the addresses of their instances.

use crate::workload::is_default;
use ssntp::names;
use ssntp::payload::Id;
use ssntp::schema;

schema! {
    /// A controller lists the tenants, or changes one of them.
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
    Tenant = Command::TENANT, under "tenant", requires id {
        /// Chosen by the controller and repeated in the answer; required, 64 bytes at most.
        id: Id,
        /// The action; default: `list`.
        action: TenantAction,
        /// The tenant's name. With `list`, only tenants after this name are listed; default: empty, from
        /// the first.
        name: String,
        /// The tenant to add. Its `name` is ignored, and a key of 0 is replaced by a free key.
        entry: TenantEntry,
        /// The instance whose address is leased or released.
        instance_uuid: Id,
        /// The address to lease; default: empty, the first free one.
        ip: String,
        /// With `release`, true if the instance's node is lost for good; default: false. Left out when false.
        #[serde(skip_serializing_if = "is_default")]
        lost: bool,
    }

    /// The answer to a [`Tenant`]: the tenants that it selects, in their present state.
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
    Tenants = Event::TENANTS, under "tenants", up to ssntp::payload::yaml::MAX_DOCUMENT_LEN {
        /// The `id` of the command.
        id: Id,
        /// The reason why the command was refused; empty after success.
        reason: TenantRefusal,
        /// Details of the reason.
        detail: String,
        /// After `list`: the `name` for the next page; empty on the last page.
        next: String,
        /// The tenants. After `list`, they have no addresses.
        entries: Vec<TenantEntry>,
    }

    /// A tenant and its network.
    TenantEntry {
        /// The name.
        name: String,
        /// The UUID.
        tenant_uuid: Id,
        /// The subnet, in CIDR form.
        subnet: String,
        /// The key of its tunnels, 1 to 16777215, which no other tenant has.
        key: u32,
        /// The concentrator.
        concentrator_uuid: Id,
        /// The concentrator's address in the cluster's network, with the length of its prefix.
        concentrator_ip: String,
        /// The addresses of its instances.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        addresses: Vec<TenantAddress>,
    }

    /// An address of a tenant's subnet, and the instance that has it.
    TenantAddress {
        /// The address.
        ip: String,
        /// The instance.
        instance_uuid: Id,
        /// Its node; default: empty, no node has it. Left out then.
        #[serde(skip_serializing_if = "Id::is_empty")]
        node_uuid: Id,
        /// `unknown` while its node is away, `unclaimed` if neither a node nor a START has the instance;
        /// default: empty, its node's STATS have its state. Left out then.
        #[serde(skip_serializing_if = "String::is_empty")]
        state: String,
    }
}

names! {
    /// The action of a [`Tenant`] command.
    TenantAction {
        /// List the tenants, a page at a time.
        List = "list";
        /// Show one tenant with its addresses.
        Show = "show";
        /// Add a tenant.
        Add = "add";
        /// Delete a tenant. No instance may have an address.
        Delete = "delete";
        /// Lease an address for an instance.
        Lease = "lease";
        /// Release the address of an instance.
        Release = "release";
    }
    default List
}

names! {
    /// The reason why a scheduler refuses a [`Tenant`] command.
    TenantRefusal {
        /// It does not refuse it: the command was carried out.
        NotRefused = "";
        /// There is no tenant of that name.
        NoTenant = "no_tenant";
        /// The name, the key, the concentrator or the address is already in use.
        Taken = "taken";
        /// Instances have addresses of the tenant, or a node still has the instance.
        InUse = "in_use";
        /// The limit of tenants is reached, or no address is free.
        AtLimit = "full";
        /// A value is missing or not valid.
        InvalidData = "invalid_data";
        /// The scheduler cannot write its file of tenants.
        NotSaved = "not_saved";
    }
    default NotRefused
}
