//! The members of a cluster as a list of servers shows them.

use ssntp::payload::{ServerEntry, ServerState, Servers};
use ssntp_engine::View;
use ssntp_transport::now;

/// Adds the members of the cluster, the leader and the state of the engine to a list of servers.
pub fn add_members(servers: &mut Servers, view: &View) {
    let now = now();
    let age = |since| now.saturating_duration_since(since);
    if let Some(leader) = view.leader {
        servers.leader = leader.uuid.into();
        servers.token = servers.token.max(leader.token);
    }
    let lease = view.kept.map_or(0, |kept| age(kept).as_millis());
    servers.lease_age_ms = u64::try_from(lease).unwrap_or(u64::MAX);
    servers.engine = match &view.away {
        Some((since, why)) => format!("for {} s: {why}", age(*since).as_secs()),
        None => "answers".into(),
    };
    for member in &view.members {
        let address = member.addresses.first().cloned().unwrap_or_default();
        // An address that is being dialled has an entry without a UUID until its link is up.
        let is_of_member = |entry: &&mut ServerEntry| {
            entry.uuid.uuid() == Some(member.uuid)
                || entry.uuid.is_empty() && member.addresses.contains(&entry.address)
        };
        let Some(entry) = servers.entries.iter_mut().find(is_of_member) else {
            servers.entries.push(ServerEntry {
                uuid: member.uuid.into(),
                address,
                version: member.version.clone(),
                state: ServerState::Member,
                ..ServerEntry::default()
            });
            continue;
        };
        entry.uuid = member.uuid.into();
        entry.version.clone_from(&member.version);
        if entry.address.is_empty() {
            entry.address = address;
        }
    }
}
