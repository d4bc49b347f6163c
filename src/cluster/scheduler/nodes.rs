//! The agents that are connected: what a new controller is told of them.

use std::collections::HashMap;

use bytes::Bytes;
use log::{info, warn};
use uuid::Uuid;

use super::answers::{self, Why};
use super::{Scheduler, now};
use crate::Role;
use crate::payload::yaml::MAX_DOCUMENT_LEN;
use crate::payload::{Maintenance, NodeConnected, NodeDisconnected, NodeType, Ready};
use crate::printable::excerpt;
use crate::proto::{Command, Frame, Status};
use crate::server::{Context, SessionInfo};

/// More events than this between two STATS of a node are not kept for new
/// controllers; its next STATS tell the same.
const MAX_EVENTS: usize = 1024;
/// Nor are those that are longer, in bytes: they say one UUID.
const MAX_EVENT: usize = 1024;

/// Every connected agent.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    by_uuid: HashMap<Uuid, Node>,
}

#[derive(Debug)]
struct Node {
    /// NodeConnected, one for each kind of node it is: written once, sent to
    /// every controller.
    announced: Vec<Frame>,
    last_stats: Option<Frame>,
    /// What its instances did since, which those STATS do not tell:
    /// InstanceDeleted and InstanceStopped, at most [`MAX_EVENTS`].
    since: Vec<Frame>,
    status: Option<Status>,
}

impl Nodes {
    /// NodeConnected of every node.
    pub(super) fn announced(&self) -> impl Iterator<Item = &Frame> {
        self.by_uuid.values().flat_map(|node| &node.announced)
    }

    /// The nodes that have sent STATS.
    pub(super) fn with_stats(&self) -> impl Iterator<Item = Uuid> {
        let known = |(uuid, node): (&Uuid, &Node)| node.last_stats.is_some().then_some(*uuid);
        self.by_uuid.iter().filter_map(known)
    }

    /// The last STATS of a node, and the events of its instances since.
    pub(super) fn stats(&self, uuid: Uuid) -> impl Iterator<Item = &Frame> {
        let node = self.by_uuid.get(&uuid);
        node.into_iter()
            .flat_map(|node| node.last_stats.iter().chain(&node.since))
    }

    /// An instance of a node was deleted or has stopped.
    pub(super) fn instance_event(&mut self, uuid: Uuid, event: &Frame) {
        if let Some(node) = self.by_uuid.get_mut(&uuid)
            && node.since.len() < MAX_EVENTS
            && event.payload_bytes().len() <= MAX_EVENT
        {
            // A copy of its own: the payload is a piece of a longer read.
            let payload = Bytes::copy_from_slice(event.payload_bytes());
            node.since.push(Frame::with_payload(event.kind(), payload));
        }
    }
}

impl Scheduler {
    pub(super) fn node_connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let types = node_types(session.role());
        if types.is_empty() {
            return;
        }
        let node_uuid = session.uuid();
        self.placement.connect(node_uuid, session.role());
        let announce = |node_type| {
            Frame::of(&NodeConnected {
                node_uuid: node_uuid.into(),
                node_type,
            })
        };
        let node = Node {
            announced: types.into_iter().map(announce).collect(),
            last_stats: None,
            since: Vec::new(),
            status: None,
        };
        for frame in &node.announced {
            // Only a kind that cannot be sent is an error.
            let _ = cx.multicast(Role::CONTROLLER, frame);
        }
        self.nodes.by_uuid.insert(node_uuid, node);
    }

    pub(super) fn node_disconnected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let node_uuid = session.uuid();
        if self.nodes.by_uuid.remove(&node_uuid).is_none() {
            return;
        }
        self.placement.disconnect(node_uuid);
        for node_type in node_types(session.role()) {
            let gone = NodeDisconnected {
                node_uuid: node_uuid.into(),
                node_type,
            };
            answers::to_controllers(cx, &gone);
        }
        self.node_vanished(cx, node_uuid);
        self.node_changed(cx, node_uuid);
    }

    /// READY, FULL, OFFLINE and MAINTENANCE; says whether the node's place in
    /// the table changed.
    pub(super) fn node_status(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) -> bool {
        let uuid = from.uuid();
        let status = Status(frame.kind().operand);
        let unreadable = match status {
            Status::READY => match frame.payload::<Ready>() {
                Ok(ready) => {
                    self.placement.ready(uuid, &ready);
                    None
                }
                Err(e) => {
                    // What it has is not known: it stays what it was.
                    if let Some(more) = self.log.admit(uuid, "READY refused", now()) {
                        warn!(target: "ssntp::scheduler", "{from}: READY refused: {}{more}", excerpt(&e));
                    }
                    answers::refuse(cx, from, frame, Why::Unreadable(&e));
                    return false;
                }
            },
            Status::MAINTENANCE => {
                self.placement.close(uuid);
                match frame.payload::<Maintenance>() {
                    Ok(Maintenance { ready: Some(ready) }) => {
                        self.placement.hostname(uuid, &ready.hostname);
                        None
                    }
                    Ok(_) => None,
                    Err(e) => Some(e),
                }
            }
            _ => {
                self.placement.close(uuid);
                None
            }
        };
        if let Some(e) = unreadable {
            if let Some(more) = self.log.admit(uuid, "status unreadable", now()) {
                warn!(target: "ssntp::scheduler", "{from}: {status}: {}{more}", excerpt(&e));
            }
            answers::refuse(cx, from, frame, Why::Unreadable(&e));
        }
        if let Some(node) = self.nodes.by_uuid.get_mut(&uuid)
            && node.status.replace(status) != Some(status)
            && let Some(more) = self.log.admit(uuid, "status", now())
        {
            info!(target: "ssntp::scheduler", "{from}: {status}{more}");
        }
        true
    }

    /// STATS of a node; `text` is all that has come at once, and `last` the
    /// last frame of it. The rules have forwarded them.
    pub(super) fn stats(&mut self, from: &SessionInfo, text: &[u8], last: &Frame) {
        self.in_flight.confirm(from.uuid(), text);
        // Longer than anybody reads.
        if last.payload_bytes().len() > MAX_DOCUMENT_LEN {
            return;
        }
        if let Some(node) = self.nodes.by_uuid.get_mut(&from.uuid()) {
            // A copy of its own: the payload is a piece of a longer read.
            let payload = Bytes::copy_from_slice(last.payload_bytes());
            node.last_stats = Some(Frame::with_payload(Command::STATS, payload));
            node.since.clear();
        }
    }
}

/// An agent that is both is told of as both.
fn node_types(role: Role) -> Vec<NodeType> {
    let kinds = [
        (Role::AGENT, NodeType::ComputeNode),
        (Role::NETAGENT, NodeType::NetworkNode),
    ];
    let held = kinds.into_iter().filter(|(kind, _)| role.contains(*kind));
    held.map(|(_, node_type)| node_type).collect()
}
