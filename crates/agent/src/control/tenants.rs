//! The tenants that have instances on this node, as their concentrators know them. Only compute nodes
//! have tunnels to concentrators.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ssntp::payload::Id;
use ssntp::proto::Frame;
use ssntp_cluster::machine::Facts;
use ssntp_cluster::subnet::{self, removed};
use ssntp_payload::{Start, TenantAdded, subnet_key};
use uuid::Uuid;

/// The maximum number of tenants whose removal is reported twice.
const MAX_REMOVED: usize = 4096;

/// Tenants by their tunnels: the concentrator, the tenant and the subnet.
type ByTunnel = BTreeMap<(Id, Id, String), TenantAdded>;

/// The tenants that were reported.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    /// The tenants that concentrators know to have instances on this node.
    added: ByTunnel,
    /// Tenants whose removal was reported in the present session, and is reported again in the next one.
    removed: ByTunnel,
    /// True if these tenants were not reported in the present session yet.
    repeats: bool,
}

impl Tenants {
    /// A concentrator that was restarted without a state directory has lost its tables, so all tenants
    /// are reported in each session.
    pub(super) fn handle_connected(&mut self) {
        self.repeats = true;
    }

    /// Compares the tenants of the running instances with those that were reported. Returns the reports
    /// of tenants that were added or removed. `ended` has the tenants of instances that have ended.
    pub(super) fn handle_present(
        &mut self,
        present: impl Iterator<Item = TenantAdded>,
        ended: impl Iterator<Item = TenantAdded>,
    ) -> Vec<Frame> {
        let present = by_tunnel(present);
        let repeats = std::mem::take(&mut self.repeats);
        // This includes tenants that were reported in an earlier session, so that their removal is
        // reported, too.
        let mut before = std::mem::take(&mut self.added);
        let mut again = BTreeMap::new();
        if repeats {
            // The removal of the last instance may not have been reported: its report was lost with the
            // session, or no agent ran when it ended.
            again.append(&mut self.removed);
            again.extend(by_tunnel(ended));
        }
        let added = present
            .iter()
            .filter(|(key, _)| repeats || !before.contains_key(key));
        let mut frames: Vec<_> = added.map(|(_, tenant)| Frame::of(tenant)).collect();
        before.retain(|key, _| !present.contains_key(key));
        again.retain(|key, _| !present.contains_key(key) && !before.contains_key(key));
        let without = before.values().chain(again.values());
        frames.extend(without.map(|tenant| Frame::of(&removed(tenant))));
        self.removed.extend(before);
        while self.removed.len() > MAX_REMOVED {
            self.removed.pop_first();
        }
        self.added = present;
        frames
    }
}

fn by_tunnel(tenants: impl Iterator<Item = TenantAdded>) -> ByTunnel {
    let key = |tenant: &TenantAdded| {
        (
            tenant.concentrator_uuid.clone(),
            tenant.tenant_uuid.clone(),
            tenant.tenant_subnet.clone(),
        )
    };
    tenants.map(|tenant| (key(&tenant), tenant)).collect()
}

/// The tenant of an instance on this node; `None` if the instance has no tunnel.
pub(super) fn tenant_of(start: &Start, node: Uuid, tunnel_ip: &str) -> Option<TenantAdded> {
    let networking = &start.networking;
    if networking.concentrator_uuid.is_empty() {
        return None;
    }
    // Without a subnet the instance has no tunnel.
    let subnet = subnet::network(&networking.subnet).ok()?;
    let own_key = match subnet.network() {
        IpAddr::V4(network) => subnet_key(network),
        IpAddr::V6(_) => 0,
    };
    Some(TenantAdded {
        agent_uuid: node.into(),
        agent_ip: tunnel_ip.to_owned(),
        tenant_uuid: start.tenant_uuid.clone(),
        tenant_subnet: subnet.to_string(),
        concentrator_uuid: networking.concentrator_uuid.clone(),
        concentrator_ip: networking.concentrator_ip.clone(),
        subnet_key: networking.subnet_key.parse().unwrap_or(own_key),
        addresses: Vec::new(),
    })
}

/// The address at which the tunnels of a node without tenants' networks end: the first address in the
/// configured compute networks, otherwise the first address of the node.
pub(super) fn tunnel_ip(facts: &Facts, compute_net: &[String]) -> String {
    let nets: Vec<_> = compute_net
        .iter()
        .filter_map(|net| subnet::network(net).ok())
        .collect();
    let mut ips = facts.networks.iter().map(|network| &network.ip);
    let is_configured = |ip: &&String| {
        let ip = ip.parse::<IpAddr>();
        ip.is_ok_and(|ip| nets.iter().any(|net| net.contains(&ip)))
    };
    let first = ips.clone().next();
    ips.find(is_configured).or(first).cloned().unwrap_or_default()
}
