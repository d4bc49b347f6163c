//! The connected agents: what a new controller is told of them, and whether they still
//! report.
//!
//! A node says in STATS how often it sends them. If none have come for three intervals, it is
//! STALE: controllers get its last STATS once more, with that status, and it gets no START
//! until it reports again.
//!
//! A node that ends its session in order may reconnect at once with a renewed certificate.
//! For a moment it counts as a node that has connected and not said READY: a START that fits
//! no other node is held, and not refused.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use uuid::Uuid;

use super::answers;
use super::figures::tally;
use super::placement::Suspension;
use super::{Scheduler, limited};
use ssntp::Role;
use ssntp::payload::{
    Maintenance, NodeConnected, NodeDisconnected, NodeStatus, NodeType, Payload, Ready, Stats, StatsSummary,
};
use ssntp::proto::{Command, Frame, Status};
use ssntp::server::{Context, DisconnectReason, SessionInfo};
use ssntp_transport::excerpt;

/// The most events between two STATS of a node that are kept for new controllers. Its next
/// STATS tell the same.
const MAX_EVENTS: usize = 1024;
/// The longest of these events, in bytes: they hold one UUID.
const MAX_EVENT: usize = 1024;
/// How long a node that ended its session in order is waited for: longer than a renewed
/// client takes to reconnect, and short enough for the answer to a START.
const RETURN: Duration = Duration::from_secs(3);
/// The longest interval between STATS that a node may announce, in seconds.
const MAX_INTERVAL: u64 = 3600;
/// The number of intervals without STATS after which a node is stale.
const MISSED: u32 = 3;

/// Every connected agent.
#[derive(Debug)]
pub(super) struct Nodes {
    by_uuid: HashMap<Uuid, Node>,
    /// When each node becomes stale unless it reports before.
    due: BTreeSet<(Instant, Uuid)>,
    /// Nodes that ended their session in order, and until when they are waited for.
    expected: VecDeque<(Instant, Uuid)>,
    /// The interval of nodes that do not announce one.
    interval: Duration,
    stale: usize,
}

#[derive(Debug)]
pub(super) struct Node {
    /// NodeConnected for each kind of node that it is: encoded once, sent to every
    /// controller.
    announced: Vec<Frame>,
    last_stats: Option<Frame>,
    /// How many instances those STATS list.
    instances: usize,
    /// InstanceDeleted and InstanceStopped since those STATS, at most [`MAX_EVENTS`].
    since: Vec<Frame>,
    status: Option<Status>,
    interval: Duration,
    /// When it becomes stale; none once it is.
    due: Option<Instant>,
}

impl Nodes {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            by_uuid: HashMap::new(),
            due: BTreeSet::new(),
            expected: VecDeque::new(),
            interval,
            stale: 0,
        }
    }

    /// The number of nodes in each status.
    pub(super) fn figures(&self) -> BTreeMap<&'static str, usize> {
        let words = ["waiting", "ready", "full", "offline", "maintenance", "stale"];
        let word = |node: &Node| match node.status {
            _ if node.due.is_none() => "stale",
            Some(Status::READY) => "ready",
            Some(Status::FULL) => "full",
            Some(Status::OFFLINE) => "offline",
            Some(Status::MAINTENANCE) => "maintenance",
            _ => "waiting",
        };
        tally(words, self.by_uuid.values().map(word))
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

    /// The last STATS of a node, with the number of their instances, and the events of its
    /// instances since; none if it has left.
    pub(super) fn stats(&self, uuid: Uuid) -> Option<(usize, impl Iterator<Item = &Frame>)> {
        let node = self.by_uuid.get(&uuid)?;
        Some((node.instances, node.last_stats.iter().chain(&node.since)))
    }

    /// How many nodes have sent STATS, and how many instances these list.
    pub(super) fn told(&self) -> (usize, usize) {
        let known = self.by_uuid.values().filter(|node| node.last_stats.is_some());
        known.fold((0, 0), |(nodes, instances), node| {
            (nodes + 1, instances + node.instances)
        })
    }

    /// Whether a node is connected.
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
            // Beyond the bound nothing is lost for long: the next STATS tell the same.
            && node.since.len() < MAX_EVENTS
            && event.payload_bytes().len() <= MAX_EVENT
        {
            node.since.push(detached(event));
        }
    }

    /// The interval between STATS of a node.
    pub(super) fn interval(&self, uuid: Uuid) -> Duration {
        self.by_uuid
            .get(&uuid)
            .map_or(self.interval, |node| node.interval)
    }

    /// STATS have come, which announce this interval in seconds. Gives whether the node was
    /// stale.
    pub(super) fn heard(&mut self, uuid: Uuid, interval: i64, now: Instant) -> bool {
        let Some(node) = self.by_uuid.get_mut(&uuid) else {
            return false;
        };
        node.interval = match u64::try_from(interval) {
            // With an interval without a bound a node would never become stale.
            Ok(seconds @ 1..) => Duration::from_secs(seconds.min(MAX_INTERVAL)),
            _ => self.interval,
        };
        let due = now + node.interval * MISSED;
        let before = node.due.replace(due);
        if let Some(before) = before {
            self.due.remove(&(before, uuid));
        }
        self.due.insert((due, uuid));
        // `due` is none exactly while the node is stale.
        self.stale -= usize::from(before.is_none());
        before.is_none()
    }

    /// Remembers the last STATS of a node for new controllers.
    pub(super) fn keep_stats(&mut self, uuid: Uuid, stats: &Frame, instances: usize) {
        if let Some(node) = self.by_uuid.get_mut(&uuid) {
            node.instances = instances;
            node.last_stats = Some(detached(stats));
            // These STATS show what the events have told.
            node.since.clear();
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let stale = self.due.first().map(|(at, _)| *at);
        let expected = self.expected.front().map(|(until, _)| *until);
        [stale, expected].into_iter().flatten().min()
    }

    /// Takes a node that has not come back in time.
    fn take_departed(&mut self, now: Instant) -> Option<Uuid> {
        let (_, node) = self
            .expected
            .front()
            .copied()
            .filter(|(until, _)| *until <= now)?;
        self.expected.pop_front();
        Some(node)
    }

    /// Takes a node that has become stale, with its last STATS and that status.
    fn take_stale(&mut self, now: Instant) -> Option<(Uuid, Frame)> {
        let (_, uuid) = self.due.first().copied().filter(|(at, _)| *at <= now)?;
        self.due.pop_first();
        let node = self.by_uuid.get_mut(&uuid)?;
        node.due = None;
        self.stale += 1;
        let last = node.last_stats.as_ref();
        let told =
            last.and_then(|last| StatsSummary::with_status(last.payload_bytes(), NodeStatus::Stale).ok());
        // A node that has never sent STATS becomes stale, too; then only its UUID is known.
        let of_uuid = || Stats {
            node_uuid: uuid.into(),
            status: NodeStatus::Stale,
            ..Stats::default()
        };
        let payload = told.unwrap_or_else(|| of_uuid().encode());
        let frame = Frame::with_payload(Command::STATS, payload);
        // New controllers are told of the stale node in the same way.
        node.last_stats = Some(frame.clone());
        Some((uuid, frame))
    }
}

/// A copy of a frame to keep: the payload of the frame is a piece of a longer read, and would
/// keep all of that in memory.
pub(super) fn detached(frame: &Frame) -> Frame {
    Frame::with_payload(frame.kind(), Bytes::copy_from_slice(frame.payload_bytes()))
}

impl Scheduler {
    pub(super) fn node_connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let types = node_types(session.role());
        if types.is_empty() {
            return;
        }
        let node_uuid = session.uuid();
        self.nodes.expected.retain(|(_, expected)| *expected != node_uuid);
        self.placement.connect(node_uuid, session.role());
        let announce = |node_type| {
            Frame::of(&NodeConnected {
                node_uuid: node_uuid.into(),
                node_type,
            })
        };
        let interval = self.nodes.interval;
        let due = cx.now() + interval * MISSED;
        let node = Node {
            announced: types.into_iter().map(announce).collect(),
            last_stats: None,
            instances: 0,
            since: Vec::new(),
            status: None,
            interval,
            // A node that never sends STATS becomes stale, too.
            due: Some(due),
        };
        for frame in &node.announced {
            // It fails only for kinds that cannot be sent.
            let _ = cx.multicast(Role::CONTROLLER, frame);
        }
        self.nodes.by_uuid.insert(node_uuid, node);
        self.nodes.due.insert((due, node_uuid));
        self.instances.returned(node_uuid, session.server() == cx.uuid());
    }

    pub(super) fn node_disconnected(
        &mut self,
        cx: &mut Context<'_>,
        session: &SessionInfo,
        reason: &DisconnectReason,
    ) {
        let node_uuid = session.uuid();
        let Some(node) = self.nodes.by_uuid.remove(&node_uuid) else {
            return;
        };
        match node.due {
            Some(due) => drop(self.nodes.due.remove(&(due, node_uuid))),
            None => self.nodes.stale -= 1,
        }
        // Only an end in order promises a return: behind a lost connection the node may be dead.
        if *reason == DisconnectReason::PeerClosed && self.placement.await_ready(node_uuid) {
            self.nodes.expected.push_back((cx.now() + RETURN, node_uuid));
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
        if !self.is_behind_a_lost_link(cx, session) {
            self.instances.left(node_uuid, cx.now());
        }
        self.node_changed(cx, node_uuid);
    }

    /// Takes in READY, FULL, OFFLINE or MAINTENANCE; false if nothing has changed.
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
            // Such a READY says nothing about the node's room, so its last status stays. The
            // other statuses mean the same without their payload.
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

    /// Handles nodes that have not come back, and nodes that have become stale.
    pub(super) fn expire_nodes(&mut self, cx: &mut Context<'_>, now: Instant) {
        while let Some(node) = self.nodes.take_departed(now) {
            self.placement.disconnect(node);
            self.node_changed(cx, node);
        }
        while let Some((node, stats)) = self.nodes.take_stale(now) {
            let count = self.nodes.stale;
            limited!(warn, self.log, cx, node, "stale";
                "node {node} is STALE: it has sent no STATS for {MISSED} intervals; {count} nodes are");
            self.placement.suspend(node, Suspension::Stale);
            // It fails only for kinds that cannot be sent.
            let _ = cx.multicast(Role::CONTROLLER, &stats);
            self.node_changed(cx, node);
        }
    }
}

/// An agent of both kinds is announced as both.
fn node_types(role: Role) -> Vec<NodeType> {
    let kinds = [
        (Role::AGENT, NodeType::ComputeNode),
        (Role::NETAGENT, NodeType::NetworkNode),
    ];
    let held = kinds.into_iter().filter(|(kind, _)| role.contains(*kind));
    held.map(|(_, node_type)| node_type).collect()
}
