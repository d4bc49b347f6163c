//! What connected concentrators have reported, for controllers that connect later: otherwise
//! these could not show the concentrators, nor find the one that serves an address.
//!
//! And what agents tell concentrators about tenants. A concentrator that was away is told
//! what it missed when it returns: each agent's tenants are remembered as long as the agent
//! is connected, and a TenantRemoved until the concentrator has got it.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use super::answers;
use super::nodes::detached;
use super::{Scheduler, relay};
use ssntp::Role;
use ssntp::payload::{Id, PublicIpAssigned, PublicIpUnassigned, TenantAdded, TenantRemoved};
use ssntp::proto::{Event, Frame};
use ssntp::server::{Context, SessionInfo};

/// The most public addresses of a concentrator that are remembered.
const MOST_ADDRESSES: usize = 4096;
/// The longest event that is remembered, in bytes: events hold a few UUIDs and addresses.
const MAX_EVENT: usize = 4096;
/// The most tenants of an agent that are remembered: one for each of its instances.
const MOST_TENANTS: usize = 4096;

/// A subnet of a tenant, and the concentrator that serves it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tenant {
    cnci: Uuid,
    tenant: Id,
    subnet: String,
}

/// The connected concentrators that have reported something, by UUID.
#[derive(Debug, Default)]
pub(super) struct Cncis {
    by_uuid: HashMap<Uuid, Cnci>,
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
        let cnci = self.by_uuid.entry(from.uuid()).or_default();
        match Event(frame.kind().operand) {
            Event::CONCENTRATOR_INSTANCE_ADDED => cnci.announced = Some(detached(frame)),
            Event::PUBLIC_IP_ASSIGNED => {
                if let Ok(PublicIpAssigned { public_ip, .. }) = frame.payload()
                    && (cnci.assigned.len() < MOST_ADDRESSES || cnci.assigned.contains_key(&public_ip))
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
    }

    /// The frames for a new controller.
    pub(super) fn told(&self) -> impl Iterator<Item = &Frame> {
        let each = self.by_uuid.values();
        each.flat_map(|cnci| cnci.announced.iter().chain(cnci.assigned.values()))
    }
}

impl Scheduler {
    /// Takes in TenantAdded or TenantRemoved of an agent, for the concentrator that it names.
    pub(super) fn tenant_event(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let is_added = frame.kind() == Event::TENANT_ADDED;
        let told = match is_added {
            true => frame.payload::<TenantAdded>().map(|told| {
                (
                    told.agent_uuid,
                    told.concentrator_uuid,
                    told.tenant_uuid,
                    told.tenant_subnet,
                )
            }),
            false => frame.payload::<TenantRemoved>().map(|told| {
                (
                    told.agent_uuid,
                    told.concentrator_uuid,
                    told.tenant_uuid,
                    told.tenant_subnet,
                )
            }),
        };
        let (agent, concentrator, tenant, subnet) = match told {
            Ok(told) => told,
            Err(e) => return answers::refuse(cx, from, frame, &e.into()),
        };
        if !agent.is_empty() && agent != from.uuid() {
            return self.reject_report(cx, from, frame, &format_args!("of agent {agent}"));
        }
        let cnci = concentrator.uuid();
        let to = (concentrator, Role::CNCIAGENT);
        let is_heard = relay::forward(cx, &mut self.log, from, frame, Ok(to)).is_ok();
        let Some((cnci, node)) = cnci.zip(self.nodes.get_mut(from.uuid())) else {
            return;
        };
        let key = Tenant { cnci, tenant, subnet };
        // The concentrator has got it, so nothing is left to remember.
        if !is_added && is_heard {
            node.tenants.remove(&key);
        } else if frame.payload_bytes().len() <= MAX_EVENT
            && (node.tenants.len() < MOST_TENANTS || node.tenants.contains_key(&key))
        {
            node.tenants.insert(key, detached(frame));
        }
    }

    /// Tells a concentrator that has connected which tenants it serves.
    pub(super) fn tell_of_tenants(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        for node in self.nodes.iter_mut() {
            node.tenants.retain(|key, told| {
                if key.cnci != session.uuid() || cx.send(session.uuid(), told).is_err() {
                    return true;
                }
                // A TenantRemoved is remembered only until the concentrator has got it.
                told.kind() == Event::TENANT_ADDED
            });
        }
    }
}
