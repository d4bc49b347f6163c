//! The connected agents: the frames for the snapshot of a new controller, and whether the agents
//! still report.
//!
//! The STATS of a node announce their interval. A node that sends none for three intervals is
//! STALE: controllers receive its last STATS once more, with that status, and the node receives no
//! START until it reports again.
//!
//! A node that ends its session in order may reconnect at once with a renewed certificate. For 3 s
//! it counts as a node that has connected and not sent READY, so a START that fits no other node
//! is held instead of being refused.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::answers;
use super::figures::tally;
use super::held::detached;
use super::placement::Suspension;
use super::{Scheduler, limited};
use ssntp::Role;
use ssntp::payload::Payload;
use ssntp::proto::{Command, Frame, Status};
use ssntp::server::{Context, DisconnectReason, SessionInfo};
use ssntp_payload::{
    Maintenance, NodeConnected, NodeDisconnected, NodeStatus, NodeType, Ready, SnapshotComplete, Stats,
    StatsSummary,
};
use ssntp_transport::{Deadlines, excerpt};

/// The maximum number of events between two STATS of a node that are kept for new controllers. Further events
/// are not kept, because the next STATS show the same.
const MAX_EVENTS: usize = 1024;
/// The length limit of these events, in bytes: they hold one UUID.
const MAX_EVENT: usize = 1024;
/// The time for which STARTs wait for a node that ended its session in order: longer than a client with a
/// renewed certificate takes to reconnect, and short enough for the answer to a START.
const RETURN_TIME: Duration = Duration::from_secs(3);
/// The longest interval between STATS that a node may announce, in seconds.
const MAX_INTERVAL: u64 = 3600;
/// The number of intervals without STATS after which a node is stale.
const MISSED: u32 = 3;

/// Every connected agent.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    by_uuid: HashMap<Uuid, Node>,
    /// The time at which each node becomes stale if it does not report before. A stale node has no
    /// entry.
    due: Deadlines<Uuid>,
    /// The nodes that ended their session in order, with the time until which STARTs wait for them.
    returning: VecDeque<(Instant, Uuid)>,
    /// The interval of nodes that do not announce one.
    interval: Duration,
}

#[derive(Debug)]
pub(super) struct Node {
    /// NodeConnected for each type that the node has, ready to be sent to every new controller.
    announced: Vec<Frame>,
    last_stats: Option<Frame>,
    /// The number of instances that `last_stats` list.
    instances: usize,
    /// InstanceDeleted and InstanceStopped since `last_stats`, at most [`MAX_EVENTS`].
    events: Vec<Frame>,
    status: Option<Status>,
    interval: Duration,
}

impl Nodes {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            interval,
            ..Self::default()
        }
    }

    /// The number of nodes in each status.
    pub(super) fn figures(&self) -> BTreeMap<&'static str, usize> {
        let words = ["waiting", "ready", "full", "offline", "maintenance", "stale"];
        let word = |(uuid, node): (&Uuid, &Node)| match node.status {
            _ if self.due.of(uuid).is_none() => "stale",
            Some(Status::READY) => "ready",
            Some(Status::FULL) => "full",
            Some(Status::OFFLINE) => "offline",
            Some(Status::MAINTENANCE) => "maintenance",
            _ => "waiting",
        };
        tally(words, self.by_uuid.iter().map(word))
    }

    /// NodeConnected of every node.
    pub(super) fn announced(&self) -> impl Iterator<Item = &Frame> {
        self.by_uuid.values().flat_map(|node| &node.announced)
    }

    /// The nodes that have sent STATS.
    pub(super) fn with_stats(&self) -> impl Iterator<Item = Uuid> {
        let known = |(uuid, node): (&Uuid, &Node)| node.last_stats.is_some().then_some(*uuid);
        self.by_uuid.iter().filter_map(known)
    }

    /// The frames of a node for a snapshot: its last STATS, and the events since.
    pub(super) fn stats(&self, uuid: Uuid) -> impl Iterator<Item = &Frame> {
        let node = self.by_uuid.get(&uuid).into_iter();
        node.flat_map(|node| node.last_stats.iter().chain(&node.events))
    }

    /// The end of a snapshot of all nodes.
    pub(super) fn snapshot_complete(&self) -> SnapshotComplete {
        let reporting = self.by_uuid.values().filter(|node| node.last_stats.is_some());
        SnapshotComplete {
            nodes: self.count() as u64,
            reporting: reporting.clone().count() as u64,
            instances: reporting.map(|node| node.instances as u64).sum(),
        }
    }

    pub(super) fn is_connected(&self, node: Uuid) -> bool {
        self.by_uuid.contains_key(&node)
    }

    /// The number of connected nodes.
    pub(super) fn count(&self) -> usize {
        self.by_uuid.len()
    }

    /// Keeps an event of an instance for new controllers.
    pub(super) fn instance_event(&mut self, uuid: Uuid, event: &Frame) {
        if let Some(node) = self.by_uuid.get_mut(&uuid)
            && node.events.len() < MAX_EVENTS
            && event.payload_bytes().len() <= MAX_EVENT
        {
            node.events.push(detached(event));
        }
    }

    /// The interval between STATS of a node.
    pub(super) fn interval(&self, uuid: Uuid) -> Duration {
        self.by_uuid
            .get(&uuid)
            .map_or(self.interval, |node| node.interval)
    }

    /// Handles STATS that announce this interval in seconds. Returns true if the node was stale.
    pub(super) fn reported(&mut self, uuid: Uuid, interval: i64, now: Instant) -> bool {
        let Some(node) = self.by_uuid.get_mut(&uuid) else {
            return false;
        };
        node.interval = match u64::try_from(interval) {
            // Without this bound a node could avoid ever becoming stale.
            Ok(seconds @ 1..) => Duration::from_secs(seconds.min(MAX_INTERVAL)),
            _ => self.interval,
        };
        let was_stale = self.due.of(&uuid).is_none();
        self.due.set(uuid, now + node.interval * MISSED);
        was_stale
    }

    /// Keeps the last STATS of a node for new controllers.
    pub(super) fn keep_stats(&mut self, uuid: Uuid, stats: &Frame, instances: usize) {
        if let Some(node) = self.by_uuid.get_mut(&uuid) {
            node.instances = instances;
            node.last_stats = Some(detached(stats));
            // These STATS are newer than the events.
            node.events.clear();
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let expected = self.returning.front().map(|(until, _)| *until);
        [self.due.next(), expected].into_iter().flatten().min()
    }

    fn take_departed(&mut self, now: Instant) -> Option<Uuid> {
        let (_, node) = *self.returning.front().filter(|(until, _)| *until <= now)?;
        self.returning.pop_front();
        Some(node)
    }

    /// Takes a node that has become stale, with its last STATS and the status STALE.
    fn take_stale(&mut self, now: Instant) -> Option<(Uuid, Frame)> {
        let uuid = self.due.pop(now)?;
        let node = self.by_uuid.get_mut(&uuid)?;
        let last = node.last_stats.as_ref();
        let stale =
            last.and_then(|last| StatsSummary::with_status(last.payload_bytes(), NodeStatus::Stale).ok());
        // A node that has never sent STATS becomes stale, too. Then only its UUID is known.
        let of_uuid = || Stats {
            node_uuid: uuid.into(),
            status: NodeStatus::Stale,
            ..Stats::default()
        };
        let payload = stale.unwrap_or_else(|| of_uuid().encode());
        let frame = Frame::with_payload(Command::STATS, payload);
        // New controllers receive the same STATS.
        node.last_stats = Some(frame.clone());
        Some((uuid, frame))
    }
}

impl Scheduler {
    pub(super) fn node_connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let types = node_types(session.role());
        if types.is_empty() {
            return;
        }
        let node_uuid = session.uuid();
        self.nodes
            .returning
            .retain(|(_, expected)| *expected != node_uuid);
        self.placement.connect(node_uuid, session.role());
        let announce = |node_type| {
            Frame::of(&NodeConnected {
                node_uuid: node_uuid.into(),
                node_type,
            })
        };
        let interval = self.nodes.interval;
        let node = Node {
            announced: types.into_iter().map(announce).collect(),
            last_stats: None,
            instances: 0,
            events: Vec::new(),
            status: None,
            interval,
        };
        for frame in &node.announced {
            answers::send_to_controllers(cx, frame);
        }
        self.nodes.by_uuid.insert(node_uuid, node);
        // A node that never sends STATS becomes stale, too.
        self.nodes.due.set(node_uuid, cx.now() + interval * MISSED);
        self.instances
            .node_returned(node_uuid, session.server() == cx.uuid());
    }

    pub(super) fn node_disconnected(
        &mut self,
        cx: &mut Context<'_>,
        session: &SessionInfo,
        reason: &DisconnectReason,
    ) {
        let node_uuid = session.uuid();
        if self.nodes.by_uuid.remove(&node_uuid).is_none() {
            return;
        }
        self.nodes.due.clear(&node_uuid);
        // Only a node that ended its session in order is expected to return. If the connection was
        // lost, the node may be dead.
        if *reason == DisconnectReason::PeerClosed && self.placement.await_ready(node_uuid) {
            self.nodes
                .returning
                .push_back((cx.now() + RETURN_TIME, node_uuid));
        } else {
            self.placement.disconnect(node_uuid);
        }
        for node_type in node_types(session.role()) {
            let gone = NodeDisconnected {
                node_uuid: node_uuid.into(),
                node_type,
            };
            answers::to_controllers(cx, &gone);
        }
        if !self.is_behind_lost_link(cx, session) {
            self.instances.node_left(node_uuid, cx.now());
        }
        self.node_changed(cx, node_uuid);
    }

    /// Handles READY, FULL, OFFLINE or MAINTENANCE; false if it cannot be read and is ignored.
    pub(super) fn node_status(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) -> bool {
        let uuid = from.uuid();
        let status = Status(frame.kind().operand);
        let read = match status {
            Status::READY => frame
                .payload()
                .map(|ready: Ready| self.placement.ready(uuid, &ready)),
            Status::MAINTENANCE => {
                self.placement.close(uuid);
                // Its evacuation is done, so that its next READY counts.
                self.placement.resume(uuid, Suspension::Evacuating);
                frame.payload().map(|maintenance: Maintenance| {
                    if let Some(ready) = maintenance.ready {
                        self.placement.hostname(uuid, &ready.hostname);
                    }
                })
            }
            _ => {
                self.placement.close(uuid);
                // A node that goes offline ends its evacuation.
                if status == Status::OFFLINE {
                    self.placement.resume(uuid, Suspension::Evacuating);
                    self.moves.end(uuid);
                }
                Ok(())
            }
        };
        if let Err(e) = read {
            limited!(warn, self.log, cx, uuid, "status unreadable";
                "{from}: {status} cannot be read: {}", excerpt(&e));
            answers::refuse(cx, from, frame, &e.into());
            // An unreadable READY has no information about the node's room, so the last status
            // remains. The other statuses do not need their payload.
            if status == Status::READY {
                return false;
            }
        }
        if let Some(node) = self.nodes.by_uuid.get_mut(&uuid)
            && node.status.replace(status) != Some(status)
        {
            limited!(info, self.log, cx, uuid, "status"; "{from}: {status}");
        }
        true
    }

    /// Handles nodes that have not reconnected in time, and nodes that have become stale.
    pub(super) fn expire_nodes(&mut self, cx: &mut Context<'_>, now: Instant) {
        while let Some(node) = self.nodes.take_departed(now) {
            self.placement.disconnect(node);
            self.node_changed(cx, node);
        }
        while let Some((node, stats)) = self.nodes.take_stale(now) {
            // Only stale nodes have no entry in `due`.
            let count = self.nodes.count() - self.nodes.due.count();
            limited!(warn, self.log, cx, node, "stale";
                "node {node} is STALE: it has sent no STATS for {MISSED} intervals; {count} nodes are");
            self.placement.suspend(node, Suspension::Stale);
            answers::send_to_controllers(cx, &stats);
            self.node_changed(cx, node);
        }
    }
}

/// The types of a node: an agent may have both.
fn node_types(role: Role) -> Vec<NodeType> {
    let kinds = [
        (Role::AGENT, NodeType::ComputeNode),
        (Role::NETAGENT, NodeType::NetworkNode),
    ];
    let held = kinds.into_iter().filter(|(kind, _)| role.contains(*kind));
    held.map(|(_, node_type)| node_type).collect()
}
