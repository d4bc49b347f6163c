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

use super::figures::tally;
use super::out::{Out, limited};
use super::parking::detached;
use ssntp::Role;
use ssntp::payload::Payload;
use ssntp::proto::{Command, Frame, Status};
use ssntp::server::SessionInfo;
use ssntp_payload::{
    NodeConnected, NodeDisconnected, NodeStatus, NodeType, SnapshotComplete, Stats, StatsSummary,
};
use ssntp_transport::Deadlines;

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
    /// The interval between STATS of a node that announces none.
    interval: Duration,
}

#[derive(Debug)]
struct Node {
    /// NodeConnected for each type that the node has, ready to be sent to every new controller.
    announced: Vec<Frame>,
    last_stats: Option<Frame>,
    /// The number of instances that `last_stats` list.
    instances: usize,
    /// InstanceDeleted and InstanceStopped since `last_stats`, at most [`MAX_EVENTS`].
    events: Vec<Frame>,
    status: Option<Status>,
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

    /// The nodes of which STATS are kept: those that have sent some, and those that have become stale.
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
            nodes: self.by_uuid.len() as u64,
            reporting: reporting.clone().count() as u64,
            instances: reporting.map(|node| node.instances as u64).sum(),
            constraints: true,
        }
    }

    /// Keeps an event of an instance for new controllers.
    pub(super) fn keep_event(&mut self, uuid: Uuid, event: &Frame) {
        if let Some(node) = self.by_uuid.get_mut(&uuid)
            && node.events.len() < MAX_EVENTS
            && event.payload_bytes().len() <= MAX_EVENT
        {
            node.events.push(detached(event));
        }
    }

    /// Handles STATS that announce this interval in seconds. Returns the interval that counts, and
    /// true if the node was stale.
    pub(super) fn handle_stats(&mut self, uuid: Uuid, interval: i64, now: Instant) -> (Duration, bool) {
        let interval = match u64::try_from(interval) {
            // Without this bound a node could avoid ever becoming stale.
            Ok(seconds @ 1..) => Duration::from_secs(seconds.min(MAX_INTERVAL)),
            _ => self.interval,
        };
        if !self.by_uuid.contains_key(&uuid) {
            return (interval, false);
        }
        let was_stale = self.due.of(&uuid).is_none();
        self.due.set(uuid, now + interval * MISSED);
        (interval, was_stale)
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

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let expected = self.returning.front().map(|(until, _)| *until);
        [self.due.next(), expected].into_iter().flatten().min()
    }

    /// Announces a node whose session has begun to all controllers; false if it is none.
    pub(super) fn handle_connected(&mut self, out: &mut Out<'_, '_>, session: &SessionInfo) -> bool {
        let types = node_types(session.role());
        if types.is_empty() {
            return false;
        }
        let uuid = session.uuid();
        self.returning.retain(|(_, expected)| *expected != uuid);
        let announce = |node_type| {
            Frame::of(&NodeConnected {
                node_uuid: uuid.into(),
                node_type,
            })
        };
        let node = Node {
            announced: types.into_iter().map(announce).collect(),
            last_stats: None,
            instances: 0,
            events: Vec::new(),
            status: None,
        };
        for frame in &node.announced {
            out.send_to_controllers(frame);
        }
        self.by_uuid.insert(uuid, node);
        // A node that never sends STATS becomes stale, too.
        self.due.set(uuid, out.now() + self.interval * MISSED);
        true
    }

    /// Tells all controllers that the session of a node has ended; false if it is none. `returns` is
    /// true if STARTs wait for the node.
    pub(super) fn handle_disconnected(
        &mut self,
        out: &mut Out<'_, '_>,
        session: &SessionInfo,
        returns: impl FnOnce() -> bool,
    ) -> bool {
        let uuid = session.uuid();
        if self.by_uuid.remove(&uuid).is_none() {
            return false;
        }
        self.due.clear(&uuid);
        if returns() {
            self.returning.push_back((out.now() + RETURN_TIME, uuid));
        }
        for node_type in node_types(session.role()) {
            out.tell_controllers(&NodeDisconnected {
                node_uuid: uuid.into(),
                node_type,
            });
        }
        true
    }

    /// Notes the status of a node.
    pub(super) fn handle_status(&mut self, out: &mut Out<'_, '_>, from: &SessionInfo, status: Status) {
        if let Some(node) = self.by_uuid.get_mut(&from.uuid())
            && node.status.replace(status) != Some(status)
        {
            limited!(info, out, from.uuid(), "status"; "{from}: {status}");
        }
    }

    /// Takes a node that has not reconnected in time.
    pub(super) fn take_departed(&mut self, now: Instant) -> Option<Uuid> {
        let (_, node) = *self.returning.front().filter(|(until, _)| *until <= now)?;
        self.returning.pop_front();
        Some(node)
    }

    /// Takes a node that has become stale, and sends all controllers its last STATS with the status
    /// STALE.
    pub(super) fn expire(&mut self, out: &mut Out<'_, '_>) -> Option<Uuid> {
        let uuid = self.due.pop(out.now())?;
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
        out.send_to_controllers(&frame);
        // New controllers receive the same STATS.
        node.last_stats = Some(frame);
        // Only stale nodes have no entry in `due`.
        let count = self.by_uuid.len() - self.due.count();
        limited!(warn, out, uuid, "stale";
            "node {uuid} is STALE: it has sent no STATS for {MISSED} intervals; {count} nodes are");
        Some(uuid)
    }
}

/// The types of a node: an agent may have both.
fn node_types(role: Role) -> Vec<NodeType> {
    let kinds = [
        (Role::AGENT, NodeType::ComputeNode),
        (Role::NETAGENT, NodeType::NetworkNode),
    ];
    let own = kinds.into_iter().filter(|(kind, _)| role.contains(*kind));
    own.map(|(_, node_type)| node_type).collect()
}
