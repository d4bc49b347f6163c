//! The reports of connected concentrators. They are kept for controllers that connect later, which
//! otherwise could not show the concentrators or find the one that serves an address.
//!
//! The tenants that agents report to concentrators, to which the addresses of instances are added, so that
//! concentrators learn nothing from packets. When a concentrator reconnects, it receives the reports that it
//! has missed. An agent's tenants are kept as long as the agent is connected, and the ends of its tunnels until their
//! concentrators have been told.
//!
//! A tunnel lets its node send packets into the network of the tenant. So TenantAdded for a network whose
//! addresses the scheduler leases is told only while the node has an instance with such an address. After a
//! restart of the scheduler it waits for the STATS that list the instance; if they list none, the tunnel ends. What
//! START says of another network is known to the agent alone.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};
use uuid::Uuid;

use super::out::Out;
use super::parking::{detached, with_trace_of};
use super::relay;
use ssntp::Role;
use ssntp::payload::{Error, Id};
use ssntp::proto::{Event, Frame};
use ssntp::server::SessionInfo;
use ssntp_cluster::subnet;
use ssntp_payload::{PublicIpAssigned, PublicIpUnassigned, ReleasePublicIp, TenantAdded, TenantRemoved};

/// The maximum number of public addresses that are kept of a concentrator.
const MAX_ADDRESSES: usize = 4096;
/// The maximum number of public addresses of all concentrators together.
const MAX_ADDRESSES_OF_ALL: usize = 65_536;
/// The length limit of an event that is kept, in bytes: events hold a few UUIDs and addresses.
const MAX_EVENT: usize = 512;
/// The maximum number of tenants that are kept of an agent: one for each of its instances.
const MAX_TENANTS: usize = 4096;
/// The maximum number of tenants of all agents together, at some 500 bytes each. Beyond that, a concentrator
/// that reconnects learns of a tenant when its agent reports it again.
const MAX_TENANTS_OF_ALL: usize = 65_536;
/// A concentrator, a tenant, and the subnet of that tenant that the concentrator serves.
type Served = (Uuid, Id, IpNet);
/// The subnet of a concentrator in which the scheduler leases addresses, and those that lead to a node; `None` if it
/// leases none there.
pub(super) type Addresses<'a> = dyn Fn(Uuid, Uuid) -> Option<(Ipv4Net, Vec<Ipv4Addr>)> + 'a;

/// The connected concentrators that have reported something, by UUID.
#[derive(Debug, Default)]
pub(super) struct Cncis {
    by_uuid: HashMap<Uuid, Cnci>,
    /// By agent, its last report of each tenant: TenantAdded, or a TenantRemoved that the
    /// concentrator has not received yet.
    tenants: HashMap<Uuid, BTreeMap<Served, Report>>,
    /// The number of reports in `tenants`.
    tenant_count: usize,
}

#[derive(Debug, Default)]
struct Cnci {
    /// ConcentratorInstanceAdded.
    announced: Option<Frame>,
    /// The instance and PublicIPAssigned of each address that has not been released since.
    assigned: BTreeMap<String, (Option<Uuid>, Frame)>,
}

/// The last report of an agent about a tenant.
#[derive(Debug)]
struct Report {
    frame: Frame,
    /// True if the concentrator was told of a tunnel to the node, and not of its end since.
    is_told: bool,
    /// True if only an earlier scheduler may have told it of one, and the node has not listed its instances since.
    is_unproven: bool,
}

impl Report {
    /// Tells the concentrator whether it has a tunnel to the node, and which addresses lead there; false if there is
    /// nothing to tell, or the concentrator is away.
    fn tell(
        &mut self,
        out: &mut Out<'_, '_>,
        served: &Served,
        node: Uuid,
        addresses: &Addresses<'_>,
    ) -> bool {
        let placed = placed(&self.frame, served, node, addresses);
        let has_tunnel = placed.is_some() && self.frame.kind() == Event::TENANT_ADDED;
        // The node may say nothing when its last instance has left.
        let removed = || read(&self.frame).ok().map(|removed| Frame::of(&removed));
        let frame = placed.or_else(|| removed().filter(|_| self.is_told));
        let is_sent = frame.is_some_and(|frame| tell(out, served.0, &frame));
        if is_sent {
            self.is_told = has_tunnel;
        }
        is_sent
    }
}

impl Cncis {
    /// Keeps an event of a concentrator, which was forwarded before.
    pub(super) fn handle_event(&mut self, from: &SessionInfo, frame: &Frame) {
        if !from.role().contains(Role::CNCIAGENT) || frame.payload_bytes().len() > MAX_EVENT {
            return;
        }
        let assigned: usize = self.by_uuid.values().map(|cnci| cnci.assigned.len()).sum();
        let cnci = self.by_uuid.entry(from.uuid()).or_default();
        let has_room = cnci.assigned.len() < MAX_ADDRESSES && assigned < MAX_ADDRESSES_OF_ALL;
        match Event(frame.kind().operand) {
            Event::CONCENTRATOR_INSTANCE_ADDED => cnci.announced = Some(detached(frame)),
            Event::PUBLIC_IP_ASSIGNED => {
                if let Ok(assigned) = frame.payload::<PublicIpAssigned>()
                    && (has_room || cnci.assigned.contains_key(&assigned.public_ip))
                {
                    let kept = (assigned.instance_uuid.uuid(), detached(frame));
                    cnci.assigned.insert(assigned.public_ip, kept);
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
        let cncis = self.by_uuid.values();
        cncis.filter(|cnci| cnci.announced.is_some()).count()
    }

    /// True if this concentrator runs and has announced itself.
    pub(super) fn is_announced(&self, cnci: Uuid) -> bool {
        self.by_uuid
            .get(&cnci)
            .is_some_and(|cnci| cnci.announced.is_some())
    }

    /// A session has ended. An agent reports its tenants again in the next one. Only the ends of its tunnels stay of which
    /// their concentrators could not be told.
    pub(super) fn handle_disconnected(&mut self, session: &SessionInfo, addresses: &Addresses<'_>) {
        let node = session.uuid();
        self.by_uuid.remove(&node);
        let mut tenants = self.tenants.remove(&node).unwrap_or_default();
        self.tenant_count -= tenants.len();
        tenants.retain(|served, report| {
            let is_removed = report.frame.kind() == Event::TENANT_REMOVED;
            let is_over = report.is_told && (is_removed || has_none(served, node, addresses));
            if let Some(removed) = read(&report.frame).ok().filter(|_| is_over) {
                report.frame = Frame::of(&removed);
            }
            is_over
        });
        self.tenant_count += tenants.len();
        if !tenants.is_empty() {
            self.tenants.insert(node, tenants);
        }
    }

    /// Keeps an agent's report for a concentrator, if there is room. Only the newest report is
    /// kept: a TenantRemoved replaces the TenantAdded before it.
    fn remember(&mut self, served: Served, agent: Uuid, frame: &Frame, is_told: bool) {
        // An agent chooses the length, and the frame is kept as long as the session lasts. An older report
        // is not true any more.
        if frame.payload_bytes().len() > MAX_EVENT {
            return self.forget(&served, agent);
        }
        let tenants = self.tenants.entry(agent).or_default();
        let before = tenants.get(&served);
        let (is_new, is_told) = (before.is_none(), is_told || before.is_some_and(|it| it.is_told));
        if !is_new || (tenants.len() < MAX_TENANTS && self.tenant_count < MAX_TENANTS_OF_ALL) {
            self.tenant_count += usize::from(is_new);
            let report = Report {
                frame: detached(frame),
                is_told,
                is_unproven: !is_told,
            };
            tenants.insert(served, report);
        }
    }

    fn forget(&mut self, served: &Served, agent: Uuid) {
        let tenants = self.tenants.get_mut(&agent);
        let removed = tenants.and_then(|tenants| tenants.remove(served));
        self.tenant_count -= usize::from(removed.is_some());
    }

    /// The frames for a new controller.
    pub(super) fn frames(&self) -> impl Iterator<Item = &Frame> {
        let each = self.by_uuid.values();
        each.flat_map(|cnci| {
            let assigned = cnci.assigned.values().map(|(_, frame)| frame);
            cnci.announced.iter().chain(assigned)
        })
    }

    /// The connected concentrator other than `cnci` that has a public address.
    pub(super) fn other_holder(&self, cnci: &Id, public_ip: &str) -> Option<Uuid> {
        let others = self.by_uuid.iter().filter(|(uuid, _)| *cnci != **uuid);
        let mut holders = others.filter(|(_, other)| other.assigned.contains_key(public_ip));
        holders.next().map(|(uuid, _)| *uuid)
    }

    /// Handles TenantAdded or TenantRemoved of an agent, for the concentrator that it names, to which
    /// `addresses` go as well. The error is the other agent that it names.
    pub(super) fn handle_tenant(
        &mut self,
        out: &mut Out<'_, '_>,
        from: &SessionInfo,
        frame: &Frame,
        addresses: &Addresses<'_>,
    ) -> Result<(), Id> {
        let event = match read(frame) {
            Ok(event) => event,
            Err(e) => {
                out.refuse(from, frame, &e.into());
                return Ok(());
            }
        };
        let (agent, cnci) = (event.agent_uuid, event.concentrator_uuid);
        if !agent.is_empty() && agent != from.uuid() {
            return Err(agent);
        }
        let subnet = subnet::network(&event.tenant_subnet).ok();
        let served = cnci.uuid().zip(subnet);
        let served = served.map(|(cnci, subnet)| (cnci, event.tenant_uuid, subnet));
        let placed = match &served {
            Some(served) => placed(frame, served, from.uuid(), addresses),
            None => Some(frame.clone()),
        };
        // If the concentrator is away, this fails, and the event is sent when it reconnects.
        let is_forwarded =
            placed.is_some_and(|placed| relay::forward(out, from, &placed, (&cnci, Role::CNCIAGENT)).is_ok());
        if let Some(served) = served {
            // A TenantRemoved that the concentrator has received is not needed any more.
            if is_forwarded && frame.kind() == Event::TENANT_REMOVED {
                self.forget(&served, from.uuid());
            } else {
                self.remember(served, from.uuid(), frame, is_forwarded);
            }
        }
        Ok(())
    }

    /// Takes back the public addresses of an instance, or of all, that are outdated, as another instance may get
    /// the same private address.
    pub(super) fn release_public_ips(
        &self,
        out: &mut Out<'_, '_>,
        instance: Option<Uuid>,
        is_outdated: impl Fn(&PublicIpAssigned) -> bool,
    ) {
        let all = self.by_uuid.values().flat_map(|cnci| cnci.assigned.values());
        let of_instances = all.filter(|(of, _)| instance.is_none() || *of == instance);
        let assigned = of_instances.filter_map(|(_, frame)| frame.payload().ok());
        for ip in assigned.filter(is_outdated) {
            let release = ReleasePublicIp {
                concentrator_uuid: ip.concentrator_uuid,
                instance_uuid: ip.instance_uuid,
                public_ip: ip.public_ip,
                private_ip: ip.private_ip,
                ..ReleasePublicIp::default()
            };
            if let Some(cnci) = release.concentrator_uuid.uuid() {
                out.send(cnci, &Frame::of(&release));
            }
        }
    }

    /// Tells concentrators which addresses lead to a node now, after an instance has come to it or left it. If none
    /// does, the tunnel to the node ends, whatever the node has reported in this session.
    pub(super) fn handle_moved(
        &mut self,
        out: &mut Out<'_, '_>,
        moved: &BTreeMap<(Uuid, Uuid), TenantRemoved>,
        addresses: &Addresses<'_>,
    ) {
        for ((cnci, node), tunnel) in moved {
            let leased = addresses(*cnci, *node).filter(|(_, there)| there.is_empty());
            let ends = leased.map(|(subnet, _)| IpNet::from(subnet));
            // The tunnels of a node that is lost were closed before.
            let mut is_told = ends.is_none() || out.cx.directory().session(*node).is_none();
            let tenants = self.tenants.get_mut(node).into_iter().flatten();
            let is_of = |(of, ..): &Served| of == cnci;
            for (served, report) in tenants.filter(|(served, _)| is_of(served)) {
                if report.frame.kind() == Event::TENANT_ADDED {
                    let is_it = ends == Some(served.2);
                    report.is_told |= is_it;
                    is_told |= is_it;
                    // One that is away is told when it connects.
                    report.tell(out, served, *node, addresses);
                }
            }
            if !is_told && !self.close_tunnel(out, tunnel) {
                self.keep_removed(*cnci, *node, tunnel);
            }
        }
    }

    /// A node has listed its instances. If it has none of a tenant that it has reported, the tunnel ends of which an
    /// earlier scheduler may have told the concentrator.
    pub(super) fn handle_stats(&mut self, out: &mut Out<'_, '_>, node: Uuid, addresses: &Addresses<'_>) {
        for (served, report) in self.tenants.get_mut(&node).into_iter().flatten() {
            if std::mem::take(&mut report.is_unproven) && has_none(served, node, addresses) {
                report.is_told = true;
                report.tell(out, served, node, addresses);
            }
        }
    }

    /// Keeps the end of a tunnel for a concentrator that is away.
    fn keep_removed(&mut self, cnci: Uuid, node: Uuid, tunnel: &TenantRemoved) {
        if let Ok(subnet) = subnet::network(&tunnel.tenant_subnet) {
            let served = (cnci, tunnel.tenant_uuid.clone(), subnet);
            self.remember(served, node, &Frame::of(tunnel), true);
        }
    }

    /// Tells a concentrator that a node is lost, so that it closes its tunnel to it; false if the concentrator
    /// is away.
    pub(super) fn close_tunnel(&mut self, out: &mut Out<'_, '_>, tunnel: &TenantRemoved) -> bool {
        let cnci = tunnel.concentrator_uuid.uuid();
        cnci.is_some_and(|cnci| tell(out, cnci, &Frame::of(tunnel)))
    }

    /// Sends a concentrator that has connected the reports about the tenants that it serves.
    pub(super) fn handle_connected(&mut self, out: &mut Out<'_, '_>, cnci: Uuid, addresses: &Addresses<'_>) {
        self.tell_of(out, |of, _| of == cnci, addresses);
    }

    /// The table of tenants could not be read before. Tells concentrators what agents have reported since.
    pub(super) fn handle_mended(&mut self, out: &mut Out<'_, '_>, addresses: &Addresses<'_>) {
        self.tell_of(out, |_, report| !report.is_told, addresses);
    }

    fn tell_of(
        &mut self,
        out: &mut Out<'_, '_>,
        is_it: impl Fn(Uuid, &Report) -> bool,
        addresses: &Addresses<'_>,
    ) {
        for (node, tenants) in &mut self.tenants {
            tenants.retain(|served, report| {
                let is_sent = is_it(served.0, report) && report.tell(out, served, *node, addresses);
                // A TenantRemoved is kept only until the concentrator has received it.
                let is_done = is_sent && report.frame.kind() == Event::TENANT_REMOVED;
                self.tenant_count -= usize::from(is_done);
                !is_done
            });
        }
    }
}

/// Sends a frame to a concentrator; false if it is away.
fn tell(out: &mut Out<'_, '_>, cnci: Uuid, frame: &Frame) -> bool {
    let directory = out.cx.directory();
    let session = directory.session(cnci);
    let is_there = session.is_some_and(|session| session.role().intersects(Role::CNCIAGENT));
    is_there && out.cx.send(cnci, frame).is_ok()
}

/// The report of an agent with the addresses that lead to it; `None` if the network's addresses are leased, and
/// none of them leads to it.
fn placed(report: &Frame, served: &Served, node: Uuid, addresses: &Addresses<'_>) -> Option<Frame> {
    let added = (report.kind() == Event::TENANT_ADDED).then(|| report.payload::<TenantAdded>());
    let Some(Ok(added)) = added else {
        return Some(report.clone());
    };
    let addresses = match addresses(served.0, node) {
        // The node would keep the tunnel of another subnet, whose end is told for the leased one.
        Some((subnet, there)) if there.is_empty() || served.2 != IpNet::from(subnet) => return None,
        Some((_, there)) => there,
        None => Vec::new(),
    };
    if addresses == added.addresses {
        return Some(report.clone());
    }
    let placed = Frame::of(&TenantAdded { addresses, ..added });
    Some(with_trace_of(report, placed))
}

/// True if the addresses of a network are leased, and none of them leads to the node.
fn has_none(served: &Served, node: Uuid, addresses: &Addresses<'_>) -> bool {
    let leased = addresses(served.0, node);
    leased.is_some_and(|(subnet, there)| there.is_empty() && served.2 == subnet.into())
}

fn read(frame: &Frame) -> Result<TenantRemoved, Error> {
    if frame.kind() == Event::TENANT_ADDED {
        Ok(subnet::removed(&frame.payload()?))
    } else {
        frame.payload()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_tenants_are_bounded_for_each_agent_and_in_all() {
        let mut cncis = Cncis::default();
        let subnet = subnet::network("172.16.0.0/24").unwrap();
        let mut remember = |agent: u128, tenant: usize, len: usize| {
            let served = (Uuid::nil(), Id::from(tenant.to_string().as_str()), subnet);
            let frame = Frame::with_payload(Event::TENANT_ADDED, vec![b' '; len]);
            cncis.remember(served, Uuid::from_u128(agent), &frame, false);
            cncis.tenant_count
        };
        assert_eq!(remember(0, 0, MAX_EVENT), 1);
        let kept = remember(0, 0, MAX_EVENT + 1);
        assert_eq!(
            kept, 0,
            "the bytes exceed the limit, and the older report is outdated"
        );
        for agent in 0..17 {
            let before = usize::try_from(agent).unwrap() * MAX_TENANTS;
            for tenant in 0..=MAX_TENANTS {
                let kept = remember(agent, tenant, 10);
                let expected = before + MAX_TENANTS.min(tenant + 1);
                assert_eq!(kept, expected.min(MAX_TENANTS_OF_ALL));
            }
        }
    }
}
