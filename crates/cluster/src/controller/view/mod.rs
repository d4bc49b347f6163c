//! A controller's knowledge of the cluster, as a value: frames in, changes out. No I/O, no
//! clock.
//!
//! ```text
//!  NodeConnected ─▶ nodes ◀─ STATS ─▶ instances ◀─ InstanceStopped, InstanceDeleted
//!  ConcentratorInstanceAdded, PublicIPAssigned, PublicIPUnassigned ─▶ CNCIs
//!  StartFailure and the other failures, InvalidConfiguration, InvalidFrameType ─▶ failures
//!  TraceReport ─▶ traces
//! ```
//!
//! | frame | meaning |
//! |---|---|
//! | STATS | the node is connected, and has these instances and no others |
//! | NodeDisconnected, or the end of the session | the node and its instances were last seen like this; their present state is unknown |
//! | InstanceStopped | the instance has exited; the next STATS say whether the node keeps it |
//! | InstanceDeleted | the instance is gone |
//!
//! All of it is bounded: failures, traces and disconnected nodes by the length of the history;
//! nodes, instances, concentrators and their public addresses by a number; and all texts by a
//! length.
//!
//! | file | holds |
//! |---|---|
//! | `bounds` | how much of a frame is kept |
//! | `ending` | [`Ending`]: how an instance ended |
//! | `entities` | [`Node`], [`Instance`], [`Cnci`], [`PublicIp`] |
//! | `find` | looks up entities by name, or by the beginning of their UUID |

mod bounds;
mod ending;
mod entities;
mod find;
#[cfg(test)]
pub(super) mod tests;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::SystemTime;

use bytes::Bytes;
use uuid::Uuid;

pub use self::ending::Ending;
pub use self::entities::{Cnci, Instance, Node, PublicIp};
pub use self::find::FindError;
use super::{Change, Failure};
use ssntp::payload::{
    ConcentratorInstanceAdded, Error, FrameTrace, Id, InstanceDeleted, InstanceStats, InstanceStopped,
    NodeConnected, NodeDisconnected, NodeStatus, NodeType, PublicIpAssigned, PublicIpUnassigned,
    SnapshotComplete, Stats, TraceReport,
};
use ssntp::proto::{Command, Event, Frame, FrameType, Status};

/// The most concentrators, and the most public addresses of each.
const MOST_CNCIS: usize = 65_536;
const MOST_ADDRESSES: usize = 4096;
/// The most nodes: more than a scheduler has sessions. STATS of further ones are ignored.
const MOST_NODES: usize = 65_536;
/// The most instances: a hundred on each of ten thousand nodes. Each takes six kilobytes at
/// most, and half a kilobyte without labels and volumes.
const MOST_INSTANCES: usize = 1 << 20;

/// A controller's knowledge of the cluster.
///
/// ```
/// use std::time::UNIX_EPOCH;
/// use ssntp_cluster::controller::{Change, View};
/// use ssntp::payload::{InstanceState, NodeStatus};
/// use ssntp::proto::{Command, Frame};
///
/// let mut view = View::default();
/// let stats = "\
/// node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
/// status: READY
/// instances:
/// - instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
///   state: active
/// ";
/// let changes = view.apply(&Frame::with_payload(Command::STATS, stats), UNIX_EPOCH);
/// assert!(changes.iter().any(|change| matches!(change, Change::InstanceAdded { .. })));
/// let node = view.node(view.find_node("5be1").unwrap()).unwrap();
/// assert_eq!(node.status, NodeStatus::Ready);
/// let instance = view.instances().next().unwrap();
/// assert_eq!((instance.node, &instance.state), (node.uuid, &InstanceState::Active));
/// ```
#[derive(Clone, Debug)]
pub struct View {
    online: bool,
    /// Whether SnapshotComplete has come in this session.
    told: bool,
    configuration: Option<Bytes>,
    history: usize,
    nodes: BTreeMap<Uuid, Node>,
    /// The number of connected nodes that have not sent STATS since they connected. They are
    /// counted here so that [`View::is_complete`] visits no node.
    unheard: usize,
    /// Disconnected nodes, the one that left first in front.
    gone: VecDeque<Uuid>,
    instances: BTreeMap<Uuid, Instance>,
    cncis: BTreeMap<Uuid, Cnci>,
    failures: VecDeque<Failure>,
    traces: VecDeque<FrameTrace>,
}

impl Default for View {
    /// An empty view with a history of 1024.
    fn default() -> Self {
        Self::new(1024)
    }
}

impl View {
    /// An empty view. It remembers the latest `history` failures, traces and disconnected
    /// nodes.
    pub fn new(history: usize) -> Self {
        Self {
            online: false,
            told: false,
            configuration: None,
            history,
            nodes: BTreeMap::new(),
            unheard: 0,
            gone: VecDeque::new(),
            instances: BTreeMap::new(),
            cncis: BTreeMap::new(),
            failures: VecDeque::new(),
            traces: VecDeque::new(),
        }
    }

    /// Whether a session with the scheduler is up.
    pub fn is_online(&self) -> bool {
        self.online
    }

    /// The configuration of the cluster, as the scheduler has last sent it.
    pub fn configuration(&self) -> Option<&Bytes> {
        self.configuration.as_ref()
    }

    /// Whether the scheduler has said in this session that it has told all that it knows. An
    /// instance that is not in the view then is not known to the scheduler either.
    pub fn is_told(&self) -> bool {
        self.told
    }

    /// Whether all [is told](Self::is_told), and each connected node has sent STATS.
    pub fn is_complete(&self) -> bool {
        self.told && self.unheard == 0
    }

    /// Every node in the order of the UUIDs, including disconnected ones.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// The node of this UUID.
    pub fn node(&self, uuid: Uuid) -> Option<&Node> {
        self.nodes.get(&uuid)
    }

    /// Every instance in the order of the UUIDs.
    pub fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.instances.values()
    }

    /// The instance of this UUID.
    pub fn instance(&self, uuid: Uuid) -> Option<&Instance> {
        self.instances.get(&uuid)
    }

    /// The instances of a node.
    pub fn instances_of(&self, node: Uuid) -> impl Iterator<Item = &Instance> {
        let node = self.nodes.get(&node);
        let uuids = node.into_iter().flat_map(|node| &node.instances);
        uuids.filter_map(|uuid| self.instances.get(uuid))
    }

    /// Every concentrator in the order of the UUIDs.
    pub fn cncis(&self) -> impl Iterator<Item = &Cnci> {
        self.cncis.values()
    }

    /// The concentrator of this UUID.
    pub fn cnci(&self, uuid: Uuid) -> Option<&Cnci> {
        self.cncis.get(&uuid)
    }

    /// The latest failures, oldest first.
    pub fn failures(&self) -> impl DoubleEndedIterator<Item = &Failure> {
        self.failures.iter()
    }

    /// The latest traces, oldest first.
    pub fn traces(&self) -> impl DoubleEndedIterator<Item = &FrameTrace> {
        self.traces.iter()
    }

    /// A session with the scheduler began, with this configuration in its CONNECTED: the
    /// scheduler will tell of every node again.
    pub fn connected(&mut self, configuration: Option<Bytes>) {
        self.online = true;
        self.told = false;
        self.configuration = configuration;
    }

    /// The session is lost: the present state of the nodes is unknown. Gives the changes: the
    /// instances of nodes that the history has no room for are gone.
    pub fn disconnected(&mut self, now: SystemTime) -> Vec<Change> {
        let mut changes = Vec::new();
        self.online = false;
        self.told = false;
        let connected: Vec<_> = self
            .nodes
            .values()
            // Collected first, because `node_left` changes the map.
            .filter(|n| n.connected)
            .map(|n| n.uuid)
            .collect();
        for node in connected {
            self.node_left(node, now, &mut changes);
        }
        changes
    }

    /// Takes in a frame, and gives the changes that it causes.
    pub fn apply(&mut self, frame: &Frame, now: SystemTime) -> Vec<Change> {
        let mut changes = Vec::new();
        if let Err(error) = self.take(frame, now, &mut changes) {
            let kind = frame.kind();
            changes.push(Change::Unreadable { kind, error });
        }
        changes
    }

    fn take(&mut self, frame: &Frame, now: SystemTime, changes: &mut Vec<Change>) -> Result<(), Error> {
        let kind = frame.kind();
        match kind.frame_type {
            FrameType::COMMAND if kind == Command::STATS => self.stats(frame.payload()?, now, changes),
            // The scheduler sends it back to tell that it has taken it up.
            FrameType::COMMAND if kind == Command::CONFIGURE => {
                let configuration = frame.payload_bytes().clone();
                self.configuration = Some(configuration.clone());
                changes.push(Change::Configured { configuration });
            }
            // The frame does not name the node; its STATS do.
            FrameType::STATUS if kind == Status::OFFLINE => changes.push(Change::NodeOffline),
            FrameType::EVENT => self.event(frame, now, changes)?,
            FrameType::ERROR => {
                if let Some(mut failure) = Failure::read(frame, now)? {
                    bounds::failure(&mut failure);
                    keep(&mut self.failures, self.history, failure.clone());
                    changes.push(Change::Failed(failure));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn event(&mut self, frame: &Frame, now: SystemTime, changes: &mut Vec<Change>) -> Result<(), Error> {
        // Checked before it is parsed: an event is short, so a long one is not worth the
        // memory.
        bounds::check(frame)?;
        match Event(frame.kind().operand) {
            Event::SNAPSHOT_COMPLETE => {
                let complete: SnapshotComplete = frame.payload()?;
                self.told = true;
                changes.push(Change::SnapshotComplete {
                    nodes: complete.nodes,
                    reporting: complete.reporting,
                    instances: complete.instances,
                });
            }
            Event::NODE_CONNECTED => self.node_connected(&frame.payload()?, now, changes),
            Event::NODE_DISCONNECTED => self.node_disconnected(&frame.payload()?, now, changes),
            Event::INSTANCE_DELETED => {
                let InstanceDeleted {
                    instance_uuid,
                    mut end,
                } = frame.payload()?;
                bounds::end(&mut end);
                if let Some(instance) = instance_uuid.uuid() {
                    // A concentrator is an instance, so both tables may have it.
                    let node = self.forget(instance);
                    changes.push(Change::InstanceDeleted {
                        instance,
                        node,
                        ending: end.into(),
                    });
                    self.forget_cnci(instance, changes);
                }
            }
            Event::INSTANCE_STOPPED => {
                let InstanceStopped {
                    instance_uuid,
                    mut end,
                } = frame.payload()?;
                bounds::end(&mut end);
                if let Some(instance) = instance_uuid.uuid() {
                    let known = self.instances.get_mut(&instance);
                    let node = known.map(|known| {
                        // The figures stay those of the last STATS: this event carries none.
                        known.ended(&end);
                        known.node
                    });
                    changes.push(Change::InstanceStopped {
                        instance,
                        node,
                        ending: end.into(),
                    });
                }
            }
            Event::CONCENTRATOR_INSTANCE_ADDED => self.cnci_added(frame.payload()?, now, changes),
            Event::PUBLIC_IP_ASSIGNED => self.public_ip_assigned(frame.payload()?, changes),
            Event::PUBLIC_IP_UNASSIGNED => self.public_ip_unassigned(frame.payload()?, changes),
            Event::TRACE_REPORT => {
                let report: TraceReport = frame.payload()?;
                for mut trace in report.frames {
                    bounds::trace(&mut trace);
                    keep(&mut self.traces, self.history, trace.clone());
                    changes.push(Change::Traced(trace));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn node_connected(&mut self, event: &NodeConnected, now: SystemTime, changes: &mut Vec<Change>) {
        let Some(uuid) = event.node_uuid.uuid() else {
            return;
        };
        let Some(node) = self.there(uuid, now) else {
            return;
        };
        match &event.node_type {
            NodeType::ComputeNode => node.compute = true,
            NodeType::NetworkNode => node.network = true,
            _ => {}
        }
        changes.push(Change::NodeConnected {
            node: uuid,
            node_type: event.node_type.clone(),
        });
    }

    fn node_disconnected(&mut self, event: &NodeDisconnected, now: SystemTime, changes: &mut Vec<Change>) {
        let Some(uuid) = event.node_uuid.uuid() else {
            return;
        };
        self.node_left(uuid, now, changes);
        changes.push(Change::NodeDisconnected {
            node: uuid,
            node_type: event.node_type.clone(),
        });
    }

    /// Marks the node as connected, and makes it if it is new; none if the view has no room for
    /// another one.
    fn there(&mut self, uuid: Uuid, now: SystemTime) -> Option<&mut Node> {
        if self.nodes.len() >= MOST_NODES && !self.nodes.contains_key(&uuid) {
            return None;
        }
        let node = self.nodes.entry(uuid).or_insert_with(|| Node::new(uuid, now));
        if !node.connected {
            node.connected = true;
            // A new session of the node: what it sent before does not count as its present
            // state.
            node.heard = false;
            node.since = now;
            self.unheard += 1;
            // It is back, so it must not be forgotten as one that left.
            self.gone.retain(|gone| *gone != uuid);
        }
        Some(node)
    }

    fn node_left(&mut self, uuid: Uuid, now: SystemTime, changes: &mut Vec<Change>) {
        let Some(node) = self.nodes.get_mut(&uuid) else {
            return;
        };
        // A node of both types disconnects as each.
        if !node.connected {
            return;
        }
        node.connected = false;
        // A node that left without STATS no longer keeps the picture incomplete.
        self.unheard -= usize::from(!node.heard);
        node.heard = false;
        node.since = now;
        self.gone.push_back(uuid);
        // Disconnected nodes are bounded, because an agent may connect under any number of UUIDs.
        if self.gone.len() > self.history
            && let Some(forgotten) = self.gone.pop_front()
            && let Some(node) = self.nodes.remove(&forgotten)
        {
            for instance in node.instances {
                self.instance_gone(instance, forgotten, changes);
            }
        }
    }

    fn stats(&mut self, mut stats: Stats, now: SystemTime, changes: &mut Vec<Change>) {
        let Some(uuid) = stats.node_uuid.uuid() else {
            return;
        };
        bounds::stats(&mut stats);
        // The instances are kept apart, so they need not be kept twice.
        let listed = std::mem::take(&mut stats.instances);
        let Some(node) = self.there(uuid, now) else {
            return;
        };
        let first = !std::mem::replace(&mut node.heard, true);
        // With STALE the scheduler repeats the last STATS, so these are not new.
        if stats.status != NodeStatus::Stale {
            node.seen = Some(now);
        }
        if node.status != stats.status {
            node.status = stats.status.clone();
            changes.push(Change::NodeStatus {
                node: uuid,
                status: stats.status.clone(),
            });
        }
        node.stats = stats;
        let before = std::mem::take(&mut node.instances);
        self.unheard -= usize::from(first);

        let mut after = BTreeSet::new();
        for stats in listed {
            // An instance without a UUID cannot be named in a command.
            if let Some(instance) = stats.instance_uuid.uuid()
                && (self.instances.len() < MOST_INSTANCES || self.instances.contains_key(&instance))
                // If STATS list an instance twice, the first entry counts.
                && after.insert(instance)
            {
                self.listed(instance, uuid, stats, now, changes);
            }
        }
        for instance in before.difference(&after) {
            self.instance_gone(*instance, uuid, changes);
        }
        if let Some(node) = self.nodes.get_mut(&uuid) {
            node.instances = after;
        }
        changes.push(Change::NodeStats { node: uuid, first });
    }

    /// Takes in an instance that STATS list.
    fn listed(
        &mut self,
        uuid: Uuid,
        node: Uuid,
        stats: InstanceStats,
        now: SystemTime,
        changes: &mut Vec<Change>,
    ) {
        let fresh = Instance {
            uuid,
            node,
            state: stats.state.clone(),
            since: now,
            stats,
        };
        let known = match self.instances.entry(uuid) {
            // An instance that moved here from another node is told as a new one, with its new
            // node.
            Entry::Occupied(known) if known.get().node == node => known.into_mut(),
            other => {
                changes.push(Change::InstanceAdded {
                    instance: uuid,
                    node,
                    state: fresh.state.clone(),
                });
                match other {
                    Entry::Occupied(mut known) => {
                        // An instance is in the set of one node only, so that it is not gone
                        // when the other node no longer lists it, or is forgotten.
                        let before = known.insert(fresh).node;
                        if let Some(before) = self.nodes.get_mut(&before) {
                            before.instances.remove(&uuid);
                        }
                    }
                    Entry::Vacant(place) => {
                        place.insert(fresh);
                    }
                }
                return;
            }
        };
        let attached = |volumes: &[Id], others: &[Id]| -> Vec<Id> {
            volumes.iter().filter(|v| !others.contains(v)).cloned().collect()
        };
        for volume in attached(&fresh.stats.volumes, &known.stats.volumes) {
            let instance = uuid;
            changes.push(Change::VolumeAttached { instance, volume });
        }
        for volume in attached(&known.stats.volumes, &fresh.stats.volumes) {
            let instance = uuid;
            changes.push(Change::VolumeDetached { instance, volume });
        }
        if known.state != fresh.state {
            changes.push(Change::InstanceState {
                instance: uuid,
                node,
                before: std::mem::replace(&mut known.state, fresh.state.clone()),
                ending: fresh.ending(),
                state: fresh.state,
            });
            // `since` is the time of the present state, so only a change moves it.
            known.since = now;
        }
        known.stats = fresh.stats;
    }

    /// Removes an instance that its node no longer lists, or that is forgotten with its node.
    fn instance_gone(&mut self, instance: Uuid, node: Uuid, changes: &mut Vec<Change>) {
        self.instances.remove(&instance);
        changes.push(Change::InstanceGone { instance, node });
        self.forget_cnci(instance, changes);
    }

    /// Removes an instance; gives the node that had it.
    fn forget(&mut self, instance: Uuid) -> Option<Uuid> {
        let node = self.instances.remove(&instance)?.node;
        if let Some(node) = self.nodes.get_mut(&node) {
            node.instances.remove(&instance);
        }
        Some(node)
    }

    fn cnci_added(
        &mut self,
        mut event: ConcentratorInstanceAdded,
        now: SystemTime,
        changes: &mut Vec<Change>,
    ) {
        bounds::cnci_added(&mut event);
        if let Some(uuid) = event.instance_uuid.uuid()
            && let Some(cnci) = self.cnci_mut(uuid)
        {
            cnci.tenant = event.tenant_uuid;
            cnci.ip = event.concentrator_ip;
            cnci.mac = event.concentrator_mac;
            cnci.since = Some(now);
            changes.push(Change::CnciAdded { cnci: uuid });
        }
    }

    fn public_ip_assigned(&mut self, mut event: PublicIpAssigned, changes: &mut Vec<Change>) {
        bounds::assigned(&mut event);
        if let Some(uuid) = event.concentrator_uuid.uuid()
            && let Some(cnci) = self.cnci_mut(uuid)
            && (cnci.public_ips.len() < MOST_ADDRESSES || cnci.public_ips.contains_key(&event.public_ip))
        {
            let public_ip = PublicIp {
                instance: event.instance_uuid.clone(),
                private_ip: event.private_ip,
            };
            cnci.public_ips.insert(event.public_ip.clone(), public_ip);
            changes.push(Change::PublicIpAssigned {
                cnci: uuid,
                instance: event.instance_uuid,
                public_ip: event.public_ip,
            });
        }
    }

    fn public_ip_unassigned(&mut self, mut event: PublicIpUnassigned, changes: &mut Vec<Change>) {
        bounds::unassigned(&mut event);
        if let Some(uuid) = event.concentrator_uuid.uuid() {
            // A concentrator that the view had no room for is told as well: the change is true.
            if let Some(cnci) = self.cncis.get_mut(&uuid) {
                cnci.public_ips.remove(&event.public_ip);
            }
            changes.push(Change::PublicIpUnassigned {
                cnci: uuid,
                instance: event.instance_uuid,
                public_ip: event.public_ip,
            });
        }
    }

    /// The concentrator; none if the view has no room for another one.
    fn cnci_mut(&mut self, uuid: Uuid) -> Option<&mut Cnci> {
        // Asked before `entry` borrows the map.
        let room = self.cncis.len() < MOST_CNCIS;
        match self.cncis.entry(uuid) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(vacant) if room => Some(vacant.insert(Cnci::new(uuid))),
            Entry::Vacant(_) => None,
        }
    }

    fn forget_cnci(&mut self, uuid: Uuid, changes: &mut Vec<Change>) {
        if self.cncis.remove(&uuid).is_some() {
            changes.push(Change::CnciGone { cnci: uuid });
        }
    }
}

/// Adds to a history of at most `limit`.
fn keep<T>(history: &mut VecDeque<T>, limit: usize, item: T) {
    // `limit` may be 0: then the history stays empty.
    while !history.is_empty() && history.len() >= limit {
        history.pop_front();
    }
    if limit > 0 {
        history.push_back(item);
    }
}
