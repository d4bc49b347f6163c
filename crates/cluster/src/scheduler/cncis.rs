//! The reports of connected concentrators, for controllers that connect later: otherwise these
//! could not show the concentrators, nor find the one that serves an address.
//!
//! The tenants that agents report to concentrators, too. A concentrator that was away is told
//! what it missed when it returns: each agent's tenants are remembered as long as the agent is
//! connected, and a TenantRemoved until the concentrator has got it.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;
use uuid::Uuid;

use super::nodes::detached;
use super::{Scheduler, answers, relay};
use crate::subnet;
use ssntp::Role;
use ssntp::payload::{Error, Id, PublicIpAssigned, PublicIpUnassigned, TenantAdded, TenantRemoved};
use ssntp::proto::{Event, Frame};
use ssntp::server::{Context, SessionInfo};

/// The most public addresses of a concentrator that are remembered.
const MOST_ADDRESSES: usize = 4096;
/// The most of all concentrators together.
const MOST_OF_ALL: usize = 65_536;
/// The longest event that is remembered, in bytes: events hold a few UUIDs and addresses.
const MAX_EVENT: usize = 512;
/// The most tenants of an agent that are remembered: one for each of its instances.
const MOST_OF_AGENT: usize = 4096;
/// The most tenants of all agents together, at some 500 bytes each. Beyond that a
/// concentrator that was away learns of a tenant when its agent reports it again.
const MOST_TENANTS: usize = 65_536;
/// A concentrator, a tenant, and the subnet of the tenant that it serves.
type Served = (Uuid, Id, IpNet);

/// The connected concentrators that have reported something, by UUID.
#[derive(Debug, Default)]
pub(super) struct Cncis {
    by_uuid: HashMap<Uuid, Cnci>,
    /// By agent, its last report of each tenant: TenantAdded, or a TenantRemoved that the
    /// concentrator has not got yet.
    tenants: HashMap<Uuid, BTreeMap<Served, Frame>>,
    /// How many these are in all.
    tenant_count: usize,
}

#[derive(Debug, Default)]
struct Cnci {
    /// ConcentratorInstanceAdded.
    announced: Option<Frame>,
    /// PublicIPAssigned of each address that was not released since.
    assigned: BTreeMap<String, Frame>,
}

impl Cncis {
    /// Takes in an event, which was forwarded before.
    pub(super) fn event(&mut self, from: &SessionInfo, frame: &Frame) {
        if !from.role().contains(Role::CNCIAGENT) || frame.payload_bytes().len() > MAX_EVENT {
            return;
        }
        let assigned: usize = self.by_uuid.values().map(|cnci| cnci.assigned.len()).sum();
        let cnci = self.by_uuid.entry(from.uuid()).or_default();
        let has_room = cnci.assigned.len() < MOST_ADDRESSES && assigned < MOST_OF_ALL;
        match Event(frame.kind().operand) {
            Event::CONCENTRATOR_INSTANCE_ADDED => cnci.announced = Some(detached(frame)),
            Event::PUBLIC_IP_ASSIGNED => {
                if let Ok(PublicIpAssigned { public_ip, .. }) = frame.payload()
                    && (has_room || cnci.assigned.contains_key(&public_ip))
                {
                    cnci.assigned.insert(public_ip, detached(frame));
                }
            }
            Event::PUBLIC_IP_UNASSIGNED => {
                if let Ok(PublicIpUnassigned { public_ip, .. }) = frame.payload() {
                    cnci.assigned.remove(&public_ip);
                }
            }
            _ => {}
        }
    }

    /// The number of concentrators that have announced themselves.
    pub(super) fn announced(&self) -> usize {
        self.by_uuid
            .values()
            .filter(|cnci| cnci.announced.is_some())
            .count()
    }

    pub(super) fn disconnected(&mut self, session: &SessionInfo) {
        self.by_uuid.remove(&session.uuid());
        // An agent reports its tenants again in each session.
        let tenants = self.tenants.remove(&session.uuid());
        self.tenant_count -= tenants.map_or(0, |tenants| tenants.len());
    }

    /// Remembers what an agent has told a concentrator, if there is room. The newest report counts:
    /// a TenantRemoved replaces the TenantAdded before it.
    fn remember(&mut self, served: Served, agent: Uuid, frame: &Frame) {
        // Agents choose what it says, and it is kept for as long as the session lasts.
        if frame.payload_bytes().len() > MAX_EVENT {
            return;
        }
        let tenants = self.tenants.entry(agent).or_default();
        let is_new = !tenants.contains_key(&served);
        if !is_new || (tenants.len() < MOST_OF_AGENT && self.tenant_count < MOST_TENANTS) {
            self.tenant_count += usize::from(is_new);
            tenants.insert(served, detached(frame));
        }
    }

    fn forget(&mut self, served: &Served, agent: Uuid) {
        let tenants = self.tenants.get_mut(&agent);
        let removed = tenants.and_then(|tenants| tenants.remove(served));
        self.tenant_count -= usize::from(removed.is_some());
    }

    /// The frames for a new controller.
    pub(super) fn told(&self) -> impl Iterator<Item = &Frame> {
        let each = self.by_uuid.values();
        each.flat_map(|cnci| cnci.announced.iter().chain(cnci.assigned.values()))
    }
}

/// The agent that a TenantAdded or TenantRemoved names, the concentrator, the tenant and the subnet.
fn read(frame: &Frame) -> Result<(Id, Id, Id, String), Error> {
    if frame.kind() == Event::TENANT_ADDED {
        let it: TenantAdded = frame.payload()?;
        return Ok((
            it.agent_uuid,
            it.concentrator_uuid,
            it.tenant_uuid,
            it.tenant_subnet,
        ));
    }
    let it: TenantRemoved = frame.payload()?;
    Ok((
        it.agent_uuid,
        it.concentrator_uuid,
        it.tenant_uuid,
        it.tenant_subnet,
    ))
}

impl Scheduler {
    /// Takes in TenantAdded or TenantRemoved of an agent, for the concentrator that it names.
    pub(super) fn tenant_event(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let (agent, cnci, tenant, net) = match read(frame) {
            Ok(read) => read,
            Err(e) => return answers::refuse(cx, from, frame, &e.into()),
        };
        if !agent.is_empty() && agent != from.uuid() {
            return self.reject_report(cx, from, frame, &format_args!("of agent {agent}"));
        }
        let served = cnci.uuid().zip(subnet::network(&net).ok());
        // If the concentrator is away, this fails, and the event is told when it returns.
        let is_heard = relay::forward(cx, &mut self.log, from, frame, Ok((cnci, Role::CNCIAGENT))).is_ok();
        let Some((cnci, subnet)) = served else { return };
        let served = (cnci, tenant, subnet);
        // A concentrator that has got TenantRemoved needs nothing more.
        match is_heard && frame.kind() == Event::TENANT_REMOVED {
            true => self.cncis.forget(&served, from.uuid()),
            false => self.cncis.remember(served, from.uuid(), frame),
        }
    }

    /// Tells a concentrator that has connected which tenants it serves.
    pub(super) fn tell_of_tenants(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let Cncis {
            tenants,
            tenant_count,
            ..
        } = &mut self.cncis;
        for tenants in tenants.values_mut() {
            tenants.retain(|(cnci, ..), told| {
                let is_its = *cnci == session.uuid();
                let is_told = is_its && cx.send(session.uuid(), told).is_ok();
                // A TenantRemoved is remembered only until the concentrator has got it.
                let is_done = is_told && told.kind() == Event::TENANT_REMOVED;
                *tenant_count -= usize::from(is_done);
                !is_done
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_agents_tell_of_tenants_has_a_bound_for_each_and_in_all() {
        let mut cncis = Cncis::default();
        let subnet = subnet::network("172.16.0.0/24").unwrap();
        let mut remember = |agent: u128, tenant: usize, len: usize| {
            let served = (Uuid::nil(), Id::from(tenant.to_string().as_str()), subnet);
            let frame = Frame::with_payload(Event::TENANT_ADDED, vec![b' '; len]);
            cncis.remember(served, Uuid::from_u128(agent), &frame);
            cncis.tenant_count
        };
        assert_eq!(remember(0, 0, MAX_EVENT + 1), 0, "longer than it can be");
        for agent in 0..17 {
            let before = usize::try_from(agent).unwrap() * MOST_OF_AGENT;
            for tenant in 0..=MOST_OF_AGENT {
                let kept = remember(agent, tenant, 10);
                assert_eq!(kept, (before + MOST_OF_AGENT.min(tenant + 1)).min(MOST_TENANTS));
            }
        }
    }
}
