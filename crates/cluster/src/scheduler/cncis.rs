//! The reports of connected concentrators, for controllers that connect later: otherwise these
//! could not show the concentrators, nor find the one that serves an address.
//!
//! The tenants that agents report to concentrators, too. A concentrator that was away is told
//! what it missed when it returns: each agent's tenants are remembered as long as the agent is
//! connected, and a TenantRemoved until the concentrator has got it.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use super::nodes::detached;
use super::{Scheduler, answers, relay};
use crate::subnet::{Subnet, removed};
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
/// The most tenants of all agents together, at some 300 bytes each. Beyond that a
/// concentrator that was away learns of a tenant when its agent reports it again.
const MOST_TENANTS: usize = 65_536;
/// A tenant's UUID and an address are shorter, in bytes.
const MAX_WORD: usize = 64;

/// A subnet of a tenant, and the concentrator that serves it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tenant {
    cnci: Uuid,
    tenant: Id,
    subnet: Subnet,
}

/// The last report of an agent about a tenant.
#[derive(Debug)]
struct Told {
    is_added: bool,
    agent_ip: String,
    concentrator_ip: String,
    subnet_key: u32,
}

/// The connected concentrators that have reported something, by UUID.
#[derive(Debug, Default)]
pub(super) struct Cncis {
    by_uuid: HashMap<Uuid, Cnci>,
    /// By agent, the tenants that it has reported; some concentrators may not have got the
    /// reports.
    tenants: HashMap<Uuid, BTreeMap<Tenant, Told>>,
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

    /// Remembers what an agent has told a concentrator, if it is what it should be, and there
    /// is room.
    fn remember(&mut self, tenant: &TenantAdded, agent: Uuid, is_added: bool) {
        let words = [
            tenant.tenant_uuid.as_str(),
            &tenant.agent_ip,
            &tenant.concentrator_ip,
        ];
        // Agents choose these texts, and they are kept for as long as the session lasts.
        if words.iter().any(|word| word.len() > MAX_WORD) {
            return;
        }
        let (Some(key), tenants) = (key(tenant), self.tenants.entry(agent).or_default()) else {
            return;
        };
        let is_new = !tenants.contains_key(&key);
        if is_new && (tenants.len() >= MOST_OF_AGENT || self.tenant_count >= MOST_TENANTS) {
            return;
        }
        self.tenant_count += usize::from(is_new);
        // The newest event counts: a TenantRemoved replaces the TenantAdded before it.
        let told = Told {
            is_added,
            agent_ip: tenant.agent_ip.clone(),
            concentrator_ip: tenant.concentrator_ip.clone(),
            subnet_key: tenant.subnet_key,
        };
        tenants.insert(key, told);
    }

    fn forget(&mut self, tenant: &TenantAdded, agent: Uuid) {
        let tenants = self.tenants.get_mut(&agent);
        let removed = tenants
            .zip(key(tenant))
            .and_then(|(tenants, key)| tenants.remove(&key));
        self.tenant_count -= usize::from(removed.is_some());
    }

    /// The frames for a new controller.
    pub(super) fn told(&self) -> impl Iterator<Item = &Frame> {
        let each = self.by_uuid.values();
        each.flat_map(|cnci| cnci.announced.iter().chain(cnci.assigned.values()))
    }
}

fn key(tenant: &TenantAdded) -> Option<Tenant> {
    Some(Tenant {
        cnci: tenant.concentrator_uuid.uuid()?,
        tenant: tenant.tenant_uuid.clone(),
        subnet: tenant.tenant_subnet.parse().ok()?,
    })
}

/// TenantAdded or TenantRemoved, which have the same fields.
fn read(frame: &Frame) -> Result<TenantAdded, Error> {
    if frame.kind() == Event::TENANT_ADDED {
        return frame.payload();
    }
    let told: TenantRemoved = frame.payload()?;
    Ok(TenantAdded {
        agent_uuid: told.agent_uuid,
        agent_ip: told.agent_ip,
        tenant_uuid: told.tenant_uuid,
        tenant_subnet: told.tenant_subnet,
        concentrator_uuid: told.concentrator_uuid,
        concentrator_ip: told.concentrator_ip,
        subnet_key: told.subnet_key,
    })
}

impl Tenant {
    /// The frame that told it.
    fn frame(&self, agent: Uuid, told: &Told) -> Frame {
        let added = TenantAdded {
            agent_uuid: agent.into(),
            agent_ip: told.agent_ip.clone(),
            tenant_uuid: self.tenant.clone(),
            tenant_subnet: self.subnet.to_string(),
            concentrator_uuid: self.cnci.into(),
            concentrator_ip: told.concentrator_ip.clone(),
            subnet_key: told.subnet_key,
        };
        match told.is_added {
            true => Frame::of(&added),
            false => Frame::of(&removed(&added)),
        }
    }
}

impl Scheduler {
    /// Takes in TenantAdded or TenantRemoved of an agent, for the concentrator that it names.
    pub(super) fn tenant_event(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let is_added = frame.kind() == Event::TENANT_ADDED;
        let tenant = match read(frame) {
            Ok(tenant) => tenant,
            Err(e) => return answers::refuse(cx, from, frame, &e.into()),
        };
        if !tenant.agent_uuid.is_empty() && tenant.agent_uuid != from.uuid() {
            return self.reject_report(cx, from, frame, &format_args!("of agent {}", tenant.agent_uuid));
        }
        let to = (tenant.concentrator_uuid.clone(), Role::CNCIAGENT);
        // If the concentrator is away, this fails, and the event is told when it returns.
        let is_heard = relay::forward(cx, &mut self.log, from, frame, Ok(to)).is_ok();
        // A concentrator that has got TenantRemoved needs nothing more.
        if !is_added && is_heard {
            self.cncis.forget(&tenant, from.uuid());
        } else {
            self.cncis.remember(&tenant, from.uuid(), is_added);
        }
    }

    /// Tells a concentrator that has connected which tenants it serves.
    pub(super) fn tell_of_tenants(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let Cncis {
            tenants,
            tenant_count,
            ..
        } = &mut self.cncis;
        for (agent, tenants) in tenants {
            tenants.retain(|key, told| {
                let is_its = key.cnci == session.uuid();
                // A TenantRemoved is remembered only until the concentrator has got it.
                let is_done =
                    is_its && cx.send(session.uuid(), &key.frame(*agent, told)).is_ok() && !told.is_added;
                *tenant_count -= usize::from(is_done);
                !is_done
            });
        }
    }
}
