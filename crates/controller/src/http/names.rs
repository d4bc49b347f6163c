//! What the spec of a workload requires, and the cluster does not have: nodes of its kind, a tenant. It is refused
//! before a START could fail for it.

use std::collections::BTreeMap;

use ssntp_cluster::Needs;
use ssntp_http::Refused;
use ssntp_payload::Start;
use ssntp_view::{Node, View};

use super::sight::unavailable;
use crate::model::Spec;
use crate::source::Source;

/// Checks new templates. Nodes that are away count, because they may return.
pub(super) fn check(source: &dyn Source, specs: &[Spec]) -> Result<(), Refused> {
    let (kept, view) = (source.kept(), source.picture().map_err(unavailable)?.view);
    let mut tenants = BTreeMap::new();
    // Until all nodes have reported, it is not known what they have.
    for spec in specs.iter().filter(|_| view.is_complete()) {
        let known = kept.state.workloads.get(&spec.name);
        let mut templates = known.into_iter().flat_map(|known| &known.versions);
        if templates.any(|version| version.template == spec.template()) {
            continue;
        }
        let is_ignored =
            !spec.start.requirements.labels.is_empty() && view.heeds_constraints() == Some(false);
        let ignored = || ("constraint", "the scheduler is older and ignores it".to_owned());
        // A spec whose numbers are invalid is refused for them.
        let lacking = Needs::of(&spec.start)
            .ok()
            .and_then(|needs| lacking(&view, &needs));
        let lacking = lacking.or_else(|| is_ignored.then(ignored));
        let lacking = lacking.or_else(|| no_tenant(source, &mut tenants, &spec.start));
        if let Some((key, why)) = lacking {
            let of = if specs.len() > 1 {
                format!("{}.", spec.name)
            } else {
                String::new()
            };
            return Err(Refused::at(400, format!("{of}start.{key}"), why));
        }
    }
    Ok(())
}

/// The key of a tenant in whose network the scheduler would lease an address, and that it does not have; and the
/// reason. If the scheduler does not say, the START may still fail. `told` has the answers of the scheduler.
fn no_tenant(
    source: &dyn Source,
    told: &mut BTreeMap<String, Result<bool, String>>,
    start: &Start,
) -> Option<(&'static str, String)> {
    let (id, networking) = (&start.tenant_uuid, &start.networking);
    let is_leased = networking.concentrator_uuid.is_empty() && networking.subnet.is_empty();
    let is_named = !id.is_empty() && id.uuid().is_none() && is_leased;
    // A question without an answer takes five seconds, so no further one is asked.
    if !is_named || told.values().any(Result::is_err) {
        return None;
    }
    let name = id.as_str();
    let is_there = told
        .entry(name.to_owned())
        .or_insert_with(|| source.has_tenant(name));
    (*is_there == Ok(false)).then(|| ("tenant", format!("there is no tenant {id:?}")))
}

/// The first key that no node can satisfy, and the reason.
fn lacking(view: &View, needs: &Needs) -> Option<(&'static str, String)> {
    let id = &needs.node_id;
    let is_of_role = |node: &&Node| {
        if needs.network_node {
            node.network
        } else {
            node.compute
        }
    };
    let named = view.nodes().filter(|node| id.is_empty() || *id == node.uuid);
    if !id.is_empty() && named.clone().next().is_none() {
        return Some(("node", format!("there is no node with the UUID {id}")));
    }
    let nodes = named.filter(is_of_role).map(|node| &node.stats);
    if let Some(lacking) = needs.lacking(nodes.clone().map(|node| (node.hostname.as_str(), &node.labels))) {
        let key = if lacking.is_label {
            "constraint"
        } else {
            "hostname"
        };
        return Some((key, format!("no node has {}", lacking.what)));
    }
    // A node that does not know its memory tells -1.
    let most = nodes
        .map(|node| node.mem_total_mb)
        .min_by_key(|mb| (*mb >= 0, -mb))?;
    (0..needs.mem_mb).contains(&most).then(|| {
        let why = format!(
            "no node has {} MB of memory: the largest has {most} MB",
            needs.mem_mb
        );
        ("mem_mb", why)
    })
}
