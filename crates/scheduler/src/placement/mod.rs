//! Finds the node for a START: a table of nodes and their free resources, without clock or I/O.
//!
//! ```text
//!   nodes by UUID   ▪  ·  ▪  ◦  ▪  ·  ▪      ▪ ready   ◦ waits for its READY   · closed
//!                         ▲  ╰──╯
//!        the node that was │   the search begins after it, wraps round, and takes
//!        used last ────────╯   the first ready node that fits: here the second one
//! ```
//!
//! Each type of node (compute, network) has its own node that was used last, so that STARTs are
//! distributed over all nodes. A search visits nodes until one fits, so it is short while there is room.
//! If no node fits, it visits all of them, which takes some nanoseconds each: less than reading the
//! START, up to thousands of nodes. `benches/placement.rs` measures it.
//!
//! A START may name siblings, from which it is kept apart: of the nodes that fit, the one with the fewest
//! siblings is taken, even if it is not ready yet. Such a search visits all nodes.
//!
//! If a node does not know a value (-1 in READY), the node is not excluded. Its agent can still
//! refuse a START with `full_cn`.
//!
//! | file | holds |
//! |---|---|
//! | `room` | memory, disk and CPUs of a node, or for a START |

mod room;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use uuid::Uuid;

use self::room::Room;
use ssntp::Role;
use ssntp_cluster::{Labels, Needs};
use ssntp_payload::Ready;
use ssntp_transport::excerpt;

/// The length limit of a host name on Linux, in bytes.
const MAX_HOSTNAME: usize = 255;

/// The number of STARTs that a node receives for one READY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// One START. The next one waits until the node has reported its free resources in READY.
    #[default]
    Strict,
    /// All STARTs that fit into the memory and disk of the last READY, minus the needs of the
    /// STARTs since. CPUs are shared and never used up.
    Opportunistic,
}

/// The number of siblings of an instance on each node that has some.
pub type Siblings = BTreeMap<Uuid, usize>;

/// The result of a search for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The START fits this node now, and the allocation is subtracted from the node's room.
    Placed(Allocation),
    /// It fits this node, which waits for its READY. No node accepts the START now, or only one with more
    /// siblings.
    Wait(Uuid),
    /// No node has the room, the host name, the labels or the UUID.
    NoRoom,
    /// No node of the type is connected.
    NoNode,
}

/// The reason why a node receives no START, whatever its status is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suspension {
    /// It is stale.
    Stale,
    /// It was sent EVACUATE. A READY that it sent before it received EVACUATE may arrive later.
    Evacuating,
    /// It has just refused the START that is being placed.
    Refusing,
}

/// Memory and disk of a node for a START. They are released if the START fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The node.
    pub node: Uuid,
    /// The number of the node's READY at that time. A later READY already includes the START.
    report: u64,
    taken: Room,
}

impl Allocation {
    /// The allocation of a START that an earlier scheduler placed. Its size is unknown, so it is
    /// empty.
    pub fn earlier(node: Uuid) -> Self {
        let (report, taken) = (0, Room([0; 3]));
        Self { node, report, taken }
    }
}

/// The nodes, and those after which the next searches begin.
#[derive(Debug, Default)]
pub struct Placement {
    policy: Policy,
    nodes: BTreeMap<Uuid, Candidate>,
    /// The compute node and the network node that were used last.
    last: [Uuid; 2],
    reports: u64,
}

/// Whether a node takes STARTs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Availability {
    /// It accepts a START now.
    Ready,
    /// It sends READY when it can accept the next START.
    Waiting,
    /// It is full, offline, in maintenance or suspended.
    Closed,
}

#[derive(Debug)]
struct Candidate {
    roles: Role,
    hostname: String,
    labels: Labels,
    state: Availability,
    /// The reasons why it receives no START, whatever its state is.
    suspended: BTreeSet<Suspension>,
    /// The room of its last READY, minus the allocations since if the policy is opportunistic.
    room: Room,
    /// The number of its last READY.
    report: u64,
}

impl Placement {
    /// A table without nodes.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            ..Self::default()
        }
    }

    /// Adds a node that has connected with the roles AGENT, NETAGENT or both. It waits for its
    /// READY.
    pub fn connect(&mut self, uuid: Uuid, roles: Role) {
        let node = Candidate {
            roles,
            hostname: String::new(),
            labels: Labels::new(),
            // Its room is unknown, so a START that fits no other node waits for its READY.
            state: Availability::Waiting,
            suspended: BTreeSet::new(),
            room: Room::UNKNOWN,
            report: 0,
        };
        // The same UUID replaces the node, because its old session is about to end.
        self.nodes.insert(uuid, node);
    }

    /// Removes a node that has disconnected.
    pub fn disconnect(&mut self, uuid: Uuid) {
        self.nodes.remove(&uuid);
    }

    /// Makes a node wait for its next READY: it has disconnected and may reconnect soon, or has
    /// less room than in its last READY. False, and without a change, if the node is full, offline,
    /// in maintenance or suspended.
    pub fn await_ready(&mut self, uuid: Uuid) -> bool {
        let open = self
            .nodes
            .get_mut(&uuid)
            .filter(|node| node.state() != Availability::Closed);
        open.map(|node| node.state = Availability::Waiting).is_some()
    }

    /// Handles READY of a node.
    pub fn ready(&mut self, uuid: Uuid, ready: &Ready) {
        // By this number `take_back` recognises an allocation from before this READY.
        self.reports += 1;
        if let Some(node) = self.nodes.get_mut(&uuid) {
            node.state = Availability::Ready;
            node.room = Room::of(ready);
            node.report = self.reports;
        }
        self.describe(uuid, ready);
    }

    /// Handles FULL, OFFLINE or MAINTENANCE of a node: it receives no START until its next READY.
    pub fn close(&mut self, uuid: Uuid) {
        if let Some(node) = self.nodes.get_mut(&uuid) {
            node.state = Availability::Closed;
        }
    }

    /// Excludes a node from placement. Its state is kept up to date meanwhile, and applies again
    /// after [`resume`](Self::resume) was called for each reason.
    pub fn suspend(&mut self, uuid: Uuid, why: Suspension) {
        if let Some(node) = self.nodes.get_mut(&uuid) {
            node.suspended.insert(why);
        }
    }

    /// Ends a suspension of a node.
    pub fn resume(&mut self, uuid: Uuid, why: Suspension) {
        if let Some(node) = self.nodes.get_mut(&uuid) {
            node.suspended.remove(&why);
        }
    }

    /// Sets the host name and the labels of a node. A name of more than 255 bytes counts as none.
    pub fn describe(&mut self, uuid: Uuid, ready: &Ready) {
        if let Some(node) = self.nodes.get_mut(&uuid) {
            let known = Some(ready.hostname.as_str()).filter(|name| name.len() <= MAX_HOSTNAME);
            known.unwrap_or_default().clone_into(&mut node.hostname);
            node.labels.clone_from(&ready.labels);
        }
    }

    /// Finds the first node that fits and has the fewest siblings, beginning after the node that was used
    /// last. `except`, the sender of the START, is neither chosen nor counted.
    pub fn place(&mut self, needs: &Needs, except: Option<Uuid>, siblings: &Siblings) -> Verdict {
        let last = self.last[usize::from(needs.network_node)];
        let later = self.nodes.range((Bound::Excluded(last), Bound::Unbounded));
        let all = later.chain(self.nodes.range(..=last));
        let role = needs.role();
        let of_type = all.filter(|(uuid, node)| Some(**uuid) != except && node.roles.contains(role));
        let (mut none, mut best) = (Verdict::NoNode, None);
        for (uuid, node) in of_type {
            none = Verdict::NoRoom;
            let waits = node.state() == Availability::Waiting;
            let rank = (siblings.get(uuid).copied().unwrap_or(0), waits);
            let is_better = best.is_none_or(|(known, _)| rank < known);
            if is_better && node.state() != Availability::Closed && node.suits(*uuid, needs) {
                best = Some((rank, *uuid));
                if rank == (0, false) {
                    break;
                }
            }
        }
        match best {
            Some(((_, true), uuid)) => Verdict::Wait(uuid),
            Some((_, uuid)) => self.place_on(uuid, needs).map_or(none, Verdict::Placed),
            None => none,
        }
    }

    /// What a START requires of its node beside room, if no connected node has it: a sentence.
    pub fn missing(&self, needs: &Needs) -> Option<String> {
        let id = &needs.node_id;
        let is_there = |uuid| self.nodes.contains_key(&uuid);
        if !id.is_empty() && !id.uuid().is_some_and(is_there) {
            return Some(format!("no node {} is connected", excerpt(id)));
        }
        let suits = |(uuid, node): &(&Uuid, &Candidate)| {
            if id.is_empty() {
                node.roles.contains(needs.role())
            } else {
                *id == **uuid
            }
        };
        let named = self.nodes.iter().filter(suits);
        let what = needs
            .lacking(named.map(|(_, node)| (node.hostname.as_str(), &node.labels)))?
            .what;
        Some(if id.is_empty() {
            format!("no connected node has {what}")
        } else {
            format!("node {} does not have {what}", excerpt(id))
        })
    }

    /// Makes an allocation on this node, if it accepts a START now and this one fits.
    pub fn place_on(&mut self, uuid: Uuid, needs: &Needs) -> Option<Allocation> {
        let node = self.nodes.get_mut(&uuid)?;
        if node.state() != Availability::Ready || !node.suits(uuid, needs) {
            return None;
        }
        // The next search begins after this node, so that STARTs are distributed over all nodes.
        self.last[usize::from(needs.network_node)] = uuid;
        let mut allocation = Allocation {
            report: node.report,
            ..Allocation::earlier(uuid)
        };
        match self.policy {
            Policy::Strict => node.state = Availability::Waiting,
            Policy::Opportunistic => {
                allocation.taken = Room([needs.mem_mb, needs.disk_mb, 0]);
                node.room = node.room.minus(allocation.taken);
            }
        }
        Some(allocation)
    }

    /// Releases the allocation of a START that has failed. Returns true if the node has more room
    /// now.
    pub fn take_back(&mut self, allocation: &Allocation) -> bool {
        let node = self.nodes.get_mut(&allocation.node);
        // A later READY already includes the release, and a closed node remains closed.
        let is_present =
            |node: &&mut Candidate| node.report == allocation.report && node.state != Availability::Closed;
        let Some(node) = node.filter(is_present) else {
            return false;
        };
        node.state = Availability::Ready;
        // With the strict policy the allocation is 0, and only the state is restored: the START
        // had made the node wait for its next READY.
        node.room = node.room.plus(allocation.taken);
        true
    }

    /// True if a node accepts a START now.
    pub fn is_ready(&self, uuid: Uuid) -> bool {
        self.nodes
            .get(&uuid)
            .is_some_and(|node| node.state() == Availability::Ready)
    }

    /// True if this node waits for its READY and a START fits it.
    pub fn would_fit(&self, uuid: Uuid, needs: &Needs) -> bool {
        let node = self.nodes.get(&uuid);
        node.is_some_and(|node| node.state() == Availability::Waiting && node.suits(uuid, needs))
    }
}

impl Candidate {
    fn state(&self) -> Availability {
        if self.suspended.is_empty() {
            self.state
        } else {
            Availability::Closed
        }
    }

    /// True if the node has the UUID, host name, labels, type and room that a START requires.
    fn suits(&self, uuid: Uuid, needs: &Needs) -> bool {
        (needs.node_id.is_empty() || needs.node_id == uuid)
            && needs.admit(&self.hostname, &self.labels)
            && self.roles.contains(needs.role())
            && self.room.holds(Room::needed(needs))
    }
}

#[cfg(test)]
mod tests;
