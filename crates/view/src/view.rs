//! A controller's view of the cluster, as a value: frames in, changes out. It has no I/O and no
//! clock.
//!
//! ```text
//!  NodeConnected ─▶ nodes ◀─ STATS ─▶ instances ◀─ InstanceStopped, InstanceDeleted
//!  ConcentratorInstanceAdded, PublicIPAssigned, PublicIPUnassigned ─▶ CNCIs
//!  TraceReport, StartFailure and the other failures, InvalidConfiguration, InvalidFrameType ─▶ changes alone
//! ```
//!
//! | frame | meaning |
//! |---|---|
//! | STATS | the node is connected, and has exactly these instances |
//! | NodeDisconnected, or the end of the session | the present state of the node and its instances is unknown; the view keeps their last state |
//! | InstanceStopped | the instance has exited; the next STATS show whether the node keeps it |
//! | InstanceDeleted | the instance is gone |
//!
//! A view is bounded: nodes, the disconnected ones among them, instances, concentrators and their public
//! addresses by a number; and all texts by a length.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::SystemTime;

use bytes::Bytes;
use uuid::Uuid;

use crate::bounds;
use crate::change::Change;
use crate::cncis::Cncis;
use crate::entities::{Cnci, Instance, Node};
use crate::failure::Failure;
use crate::find::{FindError, find};
use ssntp::payload::{Error, Id};
use ssntp::proto::{Command, Event, Frame, FrameType, Status};
use ssntp_payload::{
    InstanceDeleted, InstanceStats, InstanceStopped, NewLeader, NodeConnected, NodeDisconnected, NodeStatus,
    NodeType, SnapshotComplete, Stats, TraceReport,
};

/// The maximum number of nodes: more than a scheduler has sessions. STATS of further nodes are ignored.
const MAX_NODES: usize = 65_536;
/// The maximum number of instances: a hundred on each of ten thousand nodes. Each takes half a
/// kilobyte, and with all labels and volumes that are kept some thirty kilobytes.
const MAX_INSTANCES: usize = 1 << 20;

/// A controller's view of the cluster. It keeps 16,384 disconnected nodes.
///
/// ```
/// use std::time::UNIX_EPOCH;
/// use ssntp_view::{Change, View};
/// use ssntp_payload::{InstanceState, NodeStatus};
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
#[derive(Clone, Debug, Default)]
pub struct View {
    online: bool,
    /// The SnapshotComplete of this session.
    snapshot: Option<SnapshotComplete>,
    /// The last NewLeader of this session.
    leader: Option<NewLeader>,
    configuration: Option<Bytes>,
    history: History,
    nodes: BTreeMap<Uuid, Node>,
    /// The number of connected nodes that have not sent STATS since they connected. With this
    /// count [`View::is_complete`], which is called after each change, need not visit all nodes.
    unreported: usize,
    /// The disconnected nodes. The one that disconnected first is in front. After the end of a
    /// session, the nodes that were connected then are added when the next snapshot is complete.
    disconnected: VecDeque<Uuid>,
    instances: BTreeMap<Uuid, Instance>,
    cncis: Cncis,
}

/// The maximum number of disconnected nodes.
#[derive(Clone, Copy, Debug)]
struct History(usize);

impl Default for History {
    fn default() -> Self {
        Self(16_384)
    }
}

impl View {
    /// True while there is a session with the scheduler.
    pub fn is_online(&self) -> bool {
        self.online
    }

    /// The configuration of the cluster that the scheduler has sent last.
    pub fn configuration(&self) -> Option<&Bytes> {
        self.configuration.as_ref()
    }

    /// True if the scheduler has sent its whole snapshot in this session. An instance that is not
    /// in the view then is unknown to the scheduler, too.
    pub fn has_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// True if the scheduler places no START on a node that lacks the labels in its requirements. Older
    /// schedulers ignore them. `None` before the scheduler has sent its whole snapshot, which tells it.
    pub fn heeds_constraints(&self) -> Option<bool> {
        self.snapshot.as_ref().map(|snapshot| snapshot.constraints)
    }

    /// True if the scheduler has sent its whole snapshot, and each connected node has sent STATS.
    pub fn is_complete(&self) -> bool {
        self.has_snapshot() && self.unreported == 0
    }

    /// If there are several schedulers: the one that leads, as they have reported it in this session.
    /// Its `server_uuid` is empty if none leads.
    pub fn leader(&self) -> Option<&NewLeader> {
        self.leader.as_ref()
    }

    /// True if a scheduler has led in this session. Then this view is outdated at the next NewLeader,
    /// also at one of the same leader, whose link to the session's server was cut.
    pub(crate) fn had_leader(&self) -> bool {
        let led = |leader: &NewLeader| !leader.server_uuid.is_empty();
        self.leader.as_ref().map_or(self.has_snapshot(), led)
    }

    /// The view of a reader that may see these instances alone. Of their nodes it has whether they report, and of
    /// the cluster whether it has a session.
    #[must_use]
    pub fn of_instances(&self, is_seen: impl Fn(Uuid) -> bool) -> Self {
        let instances = self.instances.iter().filter(|(uuid, _)| is_seen(**uuid));
        let of_node = |node: &Node| {
            let instances: BTreeSet<_> = node
                .instances
                .iter()
                .copied()
                .filter(|uuid| is_seen(*uuid))
                .collect();
            let has_some = !instances.is_empty();
            has_some.then(|| Node {
                compute: node.compute,
                connected: node.connected,
                since: node.since,
                status: node.status.clone(),
                seen: node.seen,
                instances,
                reported: node.reported,
                ..Node::new(node.uuid, node.since)
            })
        };
        let nodes = self.nodes.values().filter_map(of_node);
        Self {
            online: self.online,
            snapshot: self.snapshot.clone(),
            instances: instances.map(|(uuid, one)| (*uuid, one.clone())).collect(),
            nodes: nodes.map(|node| (node.uuid, node)).collect(),
            ..Self::default()
        }
    }

    /// Removes a label from all instances, for readers who are not to see it.
    pub fn remove_label(&mut self, key: &str) {
        for instance in self.instances.values_mut() {
            instance.stats.labels.remove(key);
        }
    }

    /// Every node in the order of the UUIDs, including disconnected ones.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> + Clone {
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
        self.cncis.all()
    }

    /// The concentrator of this UUID.
    pub fn cnci(&self, uuid: Uuid) -> Option<&Cnci> {
        self.cncis.get(uuid)
    }

    /// True if the concentrator of this UUID has announced itself, or its instance runs or is about to run.
    pub fn has_concentrator(&self, uuid: Uuid) -> bool {
        self.cnci(uuid).is_some() || self.instance(uuid).is_some_and(Instance::is_alive)
    }

    /// The name of a node or an instance for people, with the beginning of its UUID: `web-3 (5f0c0000)`; the
    /// beginning alone if it has no name. `None` if the UUID is of neither.
    pub fn called(&self, uuid: Uuid) -> Option<String> {
        let name = match (self.instance(uuid), self.node(uuid)) {
            (Some(instance), _) => &*instance.stats.name,
            (None, Some(node)) => &node.stats.hostname,
            (None, None) => return None,
        };
        let beginning = self.beginning(uuid);
        Some(if name.is_empty() {
            beginning
        } else {
            format!("{name} ({beginning})")
        })
    }

    /// The first eight digits of a UUID, which commands accept as well; all of it if another node or instance
    /// has these digits, too.
    pub fn beginning(&self, uuid: Uuid) -> String {
        let digits = uuid.as_u128() >> 96;
        let of_same = Uuid::from_u128(digits << 96)..=Uuid::from_u128(digits << 96 | u128::MAX >> 32);
        let nodes = self.nodes.range(of_same.clone()).map(|(other, _)| *other);
        let mut all = nodes.chain(self.instances.range(of_same).map(|(other, _)| *other));
        let mut text = uuid.to_string();
        if all.all(|other| other == uuid) {
            text.truncate(8);
        }
        text
    }

    /// The node whose UUID begins with `text`. A whole UUID is also accepted if it is unknown.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn find_node(&self, text: &str) -> Result<Uuid, FindError> {
        self.of_kind("node", find("node", text, self.nodes.keys().copied())?)
    }

    /// The instance with the name `text`, of several the only one that runs, or else the one whose UUID begins with it. A whole UUID
    /// is also accepted if it is unknown.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn find_instance(&self, text: &str) -> Result<Uuid, FindError> {
        // Names have priority, because a name may look like the beginning of a UUID.
        let called = |instance: &&Instance| !text.is_empty() && *instance.stats.name == *text;
        let uuids = |is_listed: &dyn Fn(&Instance) -> bool| -> Vec<_> {
            let called = self.instances.values().filter(called);
            called.filter(|i| is_listed(i)).map(|i| i.uuid).collect()
        };
        // Failed instances stay for a while, under the name of the one that runs in their place.
        let mut matches = uuids(&Instance::is_alive);
        if matches.len() != 1 {
            matches = uuids(&|_| true);
        }
        let text = text.to_owned();
        match *matches.as_slice() {
            [] => {}
            [one] => return Ok(one),
            _ => return Err(FindError::SameName { text, matches }),
        }
        let found = find("instance", &text, self.instances.keys().copied())?;
        self.of_kind("instance", found)
    }

    /// As [`find_instance`](Self::find_instance), to look at an instance: of several with one name that have all
    /// ended, the one that ended last.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn find_latest_instance(&self, text: &str) -> Result<Uuid, FindError> {
        let found = self.find_instance(text);
        let Err(FindError::SameName { matches, .. }) = &found else {
            return found;
        };
        let named = || matches.iter().filter_map(|uuid| self.instance(*uuid));
        if named().any(Instance::is_alive) {
            return found;
        }
        let latest = named().max_by_key(|instance| (&*instance.stats.ended, instance.since));
        latest.map_or(found, |latest| Ok(latest.uuid))
    }

    /// The concentrator whose UUID begins with `text`. A whole UUID is also accepted if it is
    /// unknown.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn find_cnci(&self, text: &str) -> Result<Uuid, FindError> {
        self.of_kind(
            "CNCI",
            find("CNCI", text, self.cncis.all().map(|cnci| cnci.uuid))?,
        )
    }

    /// The attached volume whose name begins with `text`. A whole UUID is also accepted if it is
    /// unknown.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn find_volume(&self, text: &str) -> Result<Id, FindError> {
        let attached = self.instances.values().flat_map(|i| &i.stats.volumes);
        let attached: BTreeSet<&Id> = attached.collect();
        // The name of a volume may be no UUID. Such a volume is found only by its whole name.
        if let Some(whole) = attached.iter().find(|volume| **volume == text) {
            return Ok((*whole).clone());
        }
        let found = find("volume", text, attached.iter().filter_map(|volume| volume.uuid()))?;
        self.of_kind("volume", found).map(Id::from)
    }

    /// A whole UUID, unless it is known to belong to another kind of entity only.
    fn of_kind(&self, what: &'static str, uuid: Uuid) -> Result<Uuid, FindError> {
        let is = match (self.instances.contains_key(&uuid), self.nodes.contains_key(&uuid)) {
            _ if what == "CNCI" && self.cnci(uuid).is_some() => return Ok(uuid),
            // A concentrator runs in an instance of the same UUID.
            (true, _) if matches!(what, "instance" | "CNCI") => return Ok(uuid),
            (_, true) if what == "node" => return Ok(uuid),
            (true, _) => "an instance",
            (_, true) => "a node",
            _ => return Ok(uuid),
        };
        Err(FindError::Other { what, uuid, is })
    }

    /// Handles the beginning of a session, with the configuration in CONNECTED. A new snapshot
    /// follows.
    pub fn connected(&mut self, configuration: Option<Bytes>) {
        self.online = true;
        self.snapshot = None;
        self.leader = None;
        self.configuration = configuration;
    }

    /// Handles the end of the session: the present state of all nodes is unknown. The next snapshot
    /// shows which of them have left.
    pub fn disconnected(&mut self, now: SystemTime) {
        self.online = false;
        self.snapshot = None;
        self.unreported = 0;
        for node in self.nodes.values_mut().filter(|node| node.connected) {
            node.left(now);
        }
    }

    /// Handles a frame, and returns the changes that it causes.
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
            // The scheduler sends it to confirm a CONFIGURE of this controller.
            FrameType::COMMAND if kind == Command::CONFIGURE => {
                let configuration = frame.payload_bytes().clone();
                self.configuration = Some(configuration.clone());
                changes.push(Change::Configured { configuration });
            }
            // The frame does not name the node.
            FrameType::STATUS if kind == Status::OFFLINE => changes.push(Change::NodeOffline),
            FrameType::EVENT => self.event(frame, now, changes)?,
            FrameType::ERROR => {
                if let Some(mut failure) = Failure::read(frame)? {
                    bounds::failure(&mut failure);
                    changes.push(Change::Failed(failure));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn event(&mut self, frame: &Frame, now: SystemTime, changes: &mut Vec<Change>) -> Result<(), Error> {
        // Checked before it is decoded, because decoding a long event would need much memory.
        bounds::check(frame)?;
        match Event(frame.kind().operand) {
            Event::SNAPSHOT_COMPLETE => {
                let complete: SnapshotComplete = frame.payload()?;
                self.snapshot = Some(complete.clone());
                // These include the nodes that have left while there was no session.
                let left = self.nodes.values().filter(|node| !node.connected);
                let mut left: Vec<_> = left.map(|node| (node.since, node.uuid)).collect();
                left.sort_unstable();
                self.disconnected = left.into_iter().map(|(_, node)| node).collect();
                self.bound_history(changes);
                changes.push(Change::SnapshotComplete {
                    nodes: complete.nodes,
                    reporting: complete.reporting,
                    instances: complete.instances,
                });
            }
            Event::NEW_LEADER => self.leader = Some(frame.payload()?),
            Event::NODE_CONNECTED => self.node_connected(frame.payload()?, now, changes),
            Event::NODE_DISCONNECTED => self.node_disconnected(frame.payload()?, now, changes),
            Event::INSTANCE_DELETED => {
                let mut deleted: InstanceDeleted = frame.payload()?;
                bounds::end(&mut deleted.end);
                if let Some(instance) = deleted.instance_uuid.uuid() {
                    // A concentrator is an instance, so both tables may have it.
                    let node = self.forget(instance);
                    changes.push(Change::InstanceDeleted {
                        instance,
                        node,
                        ending: deleted.end.into(),
                    });
                    changes.extend(self.cncis.forget(instance));
                }
            }
            Event::INSTANCE_STOPPED => {
                let mut stopped: InstanceStopped = frame.payload()?;
                bounds::end(&mut stopped.end);
                if let Some(instance) = stopped.instance_uuid.uuid() {
                    let known = self.instances.get_mut(&instance);
                    let node = known.map(|known| {
                        // The figures remain those of the last STATS, because this event has none.
                        known.ended(&stopped.end, now);
                        known.node
                    });
                    changes.push(Change::InstanceStopped {
                        instance,
                        node,
                        ending: stopped.end.into(),
                    });
                }
            }
            Event::CONCENTRATOR_INSTANCE_ADDED => {
                changes.extend(self.cncis.handle_added(frame.payload()?, now));
            }
            Event::PUBLIC_IP_ASSIGNED => changes.extend(self.cncis.handle_assigned(frame.payload()?)),
            Event::PUBLIC_IP_UNASSIGNED => {
                changes.extend(self.cncis.handle_unassigned(frame.payload()?));
            }
            Event::TRACE_REPORT => {
                let report: TraceReport = frame.payload()?;
                for mut trace in report.frames {
                    bounds::trace(&mut trace);
                    changes.push(Change::Traced(trace));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn node_connected(&mut self, mut event: NodeConnected, now: SystemTime, changes: &mut Vec<Change>) {
        bounds::node_type(&mut event.node_type);
        let Some(uuid) = event.node_uuid.uuid() else {
            return;
        };
        let Some(node) = self.connected_node(uuid, now) else {
            return;
        };
        match &event.node_type {
            NodeType::ComputeNode => node.compute = true,
            NodeType::NetworkNode => node.network = true,
            _ => {}
        }
        changes.push(Change::NodeConnected {
            node: uuid,
            node_type: event.node_type,
        });
    }

    fn node_disconnected(&mut self, mut event: NodeDisconnected, now: SystemTime, changes: &mut Vec<Change>) {
        bounds::node_type(&mut event.node_type);
        let Some(uuid) = event.node_uuid.uuid() else {
            return;
        };
        // NodeDisconnected arrives once for each type of the node.
        if let Some(node) = self.nodes.get_mut(&uuid).filter(|node| node.connected) {
            // The view can be complete without the STATS of a disconnected node.
            self.unreported -= usize::from(!node.reported);
            node.left(now);
            self.disconnected.push_back(uuid);
            self.bound_history(changes);
        }
        changes.push(Change::NodeDisconnected {
            node: uuid,
            node_type: event.node_type,
        });
    }

    /// Marks a node as connected, and adds it if it is new; `None` if the view has no room for it.
    fn connected_node(&mut self, uuid: Uuid, now: SystemTime) -> Option<&mut Node> {
        if self.nodes.len() >= MAX_NODES && !self.nodes.contains_key(&uuid) {
            return None;
        }
        let node = self.nodes.entry(uuid).or_insert_with(|| Node::new(uuid, now));
        if !node.connected {
            node.connected = true;
            // NodeConnected arrives once for each type that the node has in its new session.
            (node.compute, node.network) = (false, false);
            node.since = now;
            self.unreported += 1;
            // A connected node must not be forgotten with the disconnected ones.
            self.disconnected.retain(|node| *node != uuid);
        }
        Some(node)
    }

    /// Forgets the nodes that disconnected first, with their instances, if the history has no room
    /// for them. Disconnected nodes are bounded, because an agent may connect under any number of
    /// UUIDs.
    fn bound_history(&mut self, changes: &mut Vec<Change>) {
        while self.disconnected.len() > self.history.0
            && let Some(forgotten) = self.disconnected.pop_front()
        {
            let node = self.nodes.remove(&forgotten);
            for instance in node.into_iter().flat_map(|node| node.instances) {
                self.instance_gone(instance, forgotten, changes);
            }
        }
    }

    fn stats(&mut self, mut stats: Stats, now: SystemTime, changes: &mut Vec<Change>) {
        let Some(uuid) = stats.node_uuid.uuid() else {
            return;
        };
        bounds::stats(&mut stats);
        // The instances have their own table, so `node.stats` does not keep them.
        let listed = std::mem::take(&mut stats.instances);
        let Some(node) = self.connected_node(uuid, now) else {
            return;
        };
        let first = !std::mem::replace(&mut node.reported, true);
        // STATS with the status STALE are a repetition of the last STATS, so later events have changed what
        // they say about instances.
        let is_repeated = stats.status == NodeStatus::Stale;
        if !is_repeated {
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
        if is_repeated && !first {
            changes.push(Change::NodeStats { node: uuid, first });
            return;
        }
        let before = std::mem::take(&mut node.instances);
        self.unreported -= usize::from(first);

        let mut after = BTreeSet::new();
        for stats in listed {
            // An instance without a UUID cannot be named in a command.
            if let Some(instance) = stats.instance_uuid.uuid()
                && (self.instances.len() < MAX_INSTANCES || self.instances.contains_key(&instance))
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

    /// Handles an instance that STATS list.
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
        // An instance that has moved here from another node is a new one of this node.
        let known = self.instances.get_mut(&uuid);
        let Some(known) = known.filter(|known| known.node == node) else {
            changes.push(Change::InstanceAdded {
                instance: uuid,
                node,
                state: fresh.state.clone(),
            });
            // An instance is in the set of only one node. Otherwise it would be removed when the other node no
            // longer lists it.
            let moved = self.instances.insert(uuid, fresh);
            if let Some(before) = moved.and_then(|moved| self.nodes.get_mut(&moved.node)) {
                before.instances.remove(&uuid);
            }
            return;
        };
        let beyond = |volumes: &[Id], others: &[Id]| -> Vec<Id> {
            volumes.iter().filter(|v| !others.contains(v)).cloned().collect()
        };
        let (before, after) = (&known.stats.volumes, &fresh.stats.volumes);
        let instance = uuid;
        let attached = |volume| Change::VolumeAttached { instance, volume };
        changes.extend(beyond(after, before).into_iter().map(attached));
        let detached = |volume| Change::VolumeDetached { instance, volume };
        changes.extend(beyond(before, after).into_iter().map(detached));
        if known.state != fresh.state {
            changes.push(Change::InstanceState {
                instance: uuid,
                node,
                before: std::mem::replace(&mut known.state, fresh.state.clone()),
                ending: fresh.ending(),
                state: fresh.state,
            });
            known.since = now;
        }
        known.stats = fresh.stats;
    }

    /// Removes an instance that its node no longer lists, or that is forgotten with its node.
    fn instance_gone(&mut self, instance: Uuid, node: Uuid, changes: &mut Vec<Change>) {
        self.instances.remove(&instance);
        changes.push(Change::InstanceGone { instance, node });
        changes.extend(self.cncis.forget(instance));
    }

    /// Removes an instance, and returns the node that had it.
    fn forget(&mut self, instance: Uuid) -> Option<Uuid> {
        let node = self.instances.remove(&instance)?.node;
        if let Some(node) = self.nodes.get_mut(&node) {
            node.instances.remove(&instance);
        }
        Some(node)
    }
}
