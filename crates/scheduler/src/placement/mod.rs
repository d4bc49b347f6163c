//! Finds the node for a START: a table of nodes and their free resources, without clock or I/O.
//!
//! ```text
//!                  slots: 0  1  2  3  4  5  6  7       a ring for each type of node
//!   room of ready nodes   ▪  ·  ·  ▪  ▪  ·  ·  ▪       the search begins after the
//!                          ╲╱    ╲╱    ╲╱    ╲╱        slot that was used last, and
//!   most room of two         ▪     ▪     ▪     ▪       wraps round
//!                             ╲   ╱       ╲   ╱
//!   most room of four           ▪           ▪          a subtree without enough room
//!                                 ╲       ╱            is skipped as a whole
//! ```
//!
//! Each type of node (compute, network) has two such trees: one for nodes that accept a START now,
//! and one for nodes that wait for their READY. Each host name has the same trees, for STARTs that
//! require a host name: names need not be unique, and many nodes may have the same one. The time
//! of a search, and of a change of a node, grows with the logarithm of the number of nodes, and
//! full nodes cost nothing. If some nodes have free memory and others free disk, but none has
//! both, the search visits all of them; `benches/placement.rs` also measures that case.
//!
//! If a node does not know a value (-1 in READY), the node is not excluded. Its agent can still
//! refuse a START with `full_cn`.
//!
//! | file | holds |
//! |---|---|
//! | `ring` | the trees, and the state and room of a node in them |

mod ring;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use uuid::Uuid;

use self::ring::{Rings, Room, State};
use ssntp::Role;
use ssntp_cluster::Needs;
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

/// The result of a search for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The START fits this node now, and the allocation is subtracted from the node's room.
    Placed(Allocation),
    /// No node accepts the START now, but it fits this one, which waits for its READY.
    Wait(Uuid),
    /// No node has the room, the host name or the UUID.
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

/// The nodes, and the positions at which the next searches begin.
#[derive(Debug, Default)]
pub struct Placement {
    policy: Policy,
    slots: Vec<Option<Node>>,
    /// The free slots. The lowest is used first, so that the trees stay small.
    free: BinaryHeap<Reverse<usize>>,
    by_uuid: HashMap<Uuid, usize>,
    /// By host name in lower case.
    by_hostname: HashMap<String, Host>,
    rings: Rings,
    reports: u64,
}

#[derive(Debug)]
struct Node {
    uuid: Uuid,
    roles: Role,
    hostname: String,
    /// The index in [`Host::seats`] of its host name; 0 without a name.
    seat: usize,
    state: State,
    /// The reasons why it receives no START, whatever its state is.
    suspended: BTreeSet<Suspension>,
    /// The room of its last READY, minus the allocations since if the policy is opportunistic.
    room: Room,
    /// The number of its last READY.
    report: u64,
}

/// The nodes of one host name.
#[derive(Debug, Default)]
struct Host {
    /// The slots of the nodes. An index here is the slot of the node in `rings`.
    seats: Vec<Option<usize>>,
    /// The free seats. The lowest is used first.
    free: BinaryHeap<Reverse<usize>>,
    rings: Rings,
}

impl Host {
    fn join(&mut self, slot: usize) -> usize {
        let seat = match self.free.pop() {
            Some(Reverse(seat)) => seat,
            None => {
                self.seats.push(None);
                self.seats.len() - 1
            }
        };
        self.seats[seat] = Some(slot);
        seat
    }

    /// Removes a node; true if none remains.
    fn leave(&mut self, seat: usize) -> bool {
        self.rings.clear(seat);
        self.seats[seat] = None;
        self.free.push(Reverse(seat));
        self.free.len() == self.seats.len()
    }
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
        // The same UUID replaces the node, because its old session is about to end.
        self.disconnect(uuid);
        let slot = match self.free.pop() {
            Some(Reverse(slot)) => slot,
            None => {
                self.slots.push(None);
                self.slots.len() - 1
            }
        };
        self.by_uuid.insert(uuid, slot);
        self.slots[slot] = Some(Node {
            uuid,
            roles,
            hostname: String::new(),
            seat: 0,
            // Its room is unknown, so a START that fits no other node waits for its READY.
            state: State::Waiting,
            suspended: BTreeSet::new(),
            room: Room::UNKNOWN,
            report: 0,
        });
        self.rings.of_roles(roles).for_each(|ring| ring.connected += 1);
        self.enter(slot);
    }

    /// Removes a node that has disconnected.
    pub fn disconnect(&mut self, uuid: Uuid) {
        let Some(slot) = self.by_uuid.remove(&uuid) else {
            return;
        };
        let Some(node) = self.slots[slot].take() else {
            return;
        };
        self.rings
            .of_roles(node.roles)
            .for_each(|ring| ring.connected -= 1);
        self.rings.clear(slot);
        self.leave_host(&node.hostname, node.seat);
        self.free.push(Reverse(slot));
    }

    /// Makes a node wait for its next READY: it has disconnected and may reconnect soon, or has
    /// less room than in its last READY. False, and without a change, if the node is full, offline,
    /// in maintenance or suspended.
    pub fn await_ready(&mut self, uuid: Uuid) -> bool {
        let is_open = self.find(uuid).is_some_and(|node| node.state() != State::Closed);
        if is_open {
            self.change(uuid, |node| node.state = State::Waiting);
        }
        is_open
    }

    /// Handles READY of a node.
    pub fn ready(&mut self, uuid: Uuid, ready: &Ready) {
        // By this number `take_back` recognises an allocation from before this READY.
        self.reports += 1;
        let report = self.reports;
        self.change(uuid, |node| {
            node.state = State::Ready;
            node.room = Room::of(ready);
            node.report = report;
        });
        self.hostname(uuid, &ready.hostname);
    }

    /// Handles FULL, OFFLINE or MAINTENANCE of a node: it receives no START until its next READY.
    pub fn close(&mut self, uuid: Uuid) {
        self.change(uuid, |node| node.state = State::Closed);
    }

    /// Excludes a node from placement. Its state is kept up to date meanwhile, and applies again
    /// after [`resume`](Self::resume) was called for each reason.
    pub fn suspend(&mut self, uuid: Uuid, why: Suspension) {
        self.change(uuid, |node| {
            node.suspended.insert(why);
        });
    }

    /// Ends a suspension of a node.
    pub fn resume(&mut self, uuid: Uuid, why: Suspension) {
        self.change(uuid, |node| {
            node.suspended.remove(&why);
        });
    }

    /// Sets the host name of a node. A name of more than 255 bytes counts as none.
    pub fn hostname(&mut self, uuid: Uuid, hostname: &str) {
        let Some(slot) = self.by_uuid.get(&uuid).copied() else {
            return;
        };
        // Host names are compared without regard to case.
        let hostname = if hostname.len() <= MAX_HOSTNAME {
            hostname.to_ascii_lowercase()
        } else {
            String::new()
        };
        // A READY usually repeats the name, and then the trees need no change.
        let Some(node) = self.slots[slot].as_mut().filter(|node| node.hostname != hostname) else {
            return;
        };
        let old = std::mem::replace(&mut node.hostname, hostname.clone());
        let old_seat = std::mem::take(&mut node.seat);
        if !hostname.is_empty() {
            node.seat = self.by_hostname.entry(hostname).or_default().join(slot);
        }
        self.leave_host(&old, old_seat);
        self.enter(slot);
    }

    /// Finds the first node that fits, beginning after the node that was used last. `except`, the
    /// sender of the START, is neither chosen nor counted.
    pub fn place(&mut self, needs: &Needs, except: Option<Uuid>) -> Verdict {
        let except = except.and_then(|uuid| self.by_uuid.get(&uuid)).copied();
        let role = needs.role();
        let of_kind = |slot: usize| self.node(slot).is_some_and(|node| node.roles.contains(role));
        let ring = self.rings.of(needs.network_node);
        if ring.connected == usize::from(except.is_some_and(of_kind)) {
            return Verdict::NoNode;
        }
        let found = |state| match (needs.node_id.is_empty(), needs.hostname.is_empty()) {
            (true, true) => ring.first(state, Room::needed(needs), except),
            (true, false) => self.called(needs, state, except),
            (false, _) => {
                let slot = *self.by_uuid.get(&needs.node_id.uuid()?)?;
                let node = self.node(slot)?;
                (Some(slot) != except && node.state() == state && node.suits(needs)).then_some(slot)
            }
        };
        if let Some(slot) = found(State::Ready) {
            return self
                .allocate(slot, needs)
                .map_or(Verdict::NoRoom, Verdict::Placed);
        }
        let waiting = found(State::Waiting).and_then(|slot| self.node(slot));
        waiting.map_or(Verdict::NoRoom, |node| Verdict::Wait(node.uuid))
    }

    /// The node that a START names, if none that is connected is called so: a sentence.
    pub fn missing(&self, needs: &Needs) -> Option<String> {
        let (id, hostname) = (&needs.node_id, &needs.hostname);
        let is_there = |uuid| self.by_uuid.contains_key(&uuid);
        if !id.is_empty() && !id.uuid().is_some_and(is_there) {
            return Some(format!("no node {} is connected", excerpt(id)));
        }
        let is_called = self.by_hostname.contains_key(&hostname.to_ascii_lowercase());
        let is_missing = !hostname.is_empty() && !is_called;
        is_missing.then(|| format!("no connected node has the host name {}", excerpt(hostname)))
    }

    /// Makes an allocation on this node, if it accepts a START now and this one fits.
    pub fn place_on(&mut self, uuid: Uuid, needs: &Needs) -> Option<Allocation> {
        let slot = *self.by_uuid.get(&uuid)?;
        let node = self.node(slot)?;
        (node.state() == State::Ready && node.suits(needs)).then(|| self.allocate(slot, needs))?
    }

    /// Releases the allocation of a START that has failed. Returns true if the node has more room
    /// now.
    pub fn take_back(&mut self, allocation: &Allocation) -> bool {
        let slot = self.by_uuid.get(&allocation.node).copied();
        let Some(node) = slot.and_then(|slot| self.node(slot)) else {
            return false;
        };
        // A later READY already includes the release, and a closed node remains closed.
        if node.report != allocation.report || node.state == State::Closed {
            return false;
        }
        self.change(allocation.node, |node| {
            node.state = State::Ready;
            // With the strict policy the allocation is 0, and only the state is restored: the START
            // had made the node wait for its next READY.
            node.room = node.room.plus(allocation.taken);
        });
        true
    }

    /// True if a node accepts a START now.
    pub fn is_ready(&self, uuid: Uuid) -> bool {
        self.find(uuid).is_some_and(|node| node.state() == State::Ready)
    }

    /// True if this node waits for its READY and a START fits it.
    pub fn would_fit(&self, uuid: Uuid, needs: &Needs) -> bool {
        self.find(uuid)
            .is_some_and(|node| node.state() == State::Waiting && node.suits(needs))
    }

    fn node(&self, slot: usize) -> Option<&Node> {
        self.slots.get(slot)?.as_ref()
    }

    fn find(&self, uuid: Uuid) -> Option<&Node> {
        self.node(*self.by_uuid.get(&uuid)?)
    }

    /// The slot of the first node that fits among those with the required host name.
    fn called(&self, needs: &Needs, state: State, except: Option<usize>) -> Option<usize> {
        let hostname = needs.hostname.to_ascii_lowercase();
        let host = self.by_hostname.get(&hostname)?;
        let except = except.and_then(|slot| self.node(slot));
        let except = except
            .filter(|node| node.hostname == hostname)
            .map(|node| node.seat);
        let ring = host.rings.of(needs.network_node);
        let seat = ring.first(state, Room::needed(needs), except)?;
        *host.seats.get(seat)?
    }

    /// Makes the allocation of a START on the node in `slot`.
    fn allocate(&mut self, slot: usize, needs: &Needs) -> Option<Allocation> {
        // The next search begins after this node, so that STARTs are distributed over all nodes.
        self.rings.of_mut(needs.network_node).last = slot;
        let policy = self.policy;
        let node = self.slots.get_mut(slot)?.as_mut()?;
        if let Some(host) = self.by_hostname.get_mut(&node.hostname) {
            host.rings.of_mut(needs.network_node).last = node.seat;
        }
        let mut allocation = Allocation {
            report: node.report,
            ..Allocation::earlier(node.uuid)
        };
        match policy {
            Policy::Strict => node.state = State::Waiting,
            Policy::Opportunistic => {
                allocation.taken = Room([needs.mem_mb, needs.disk_mb, 0]);
                node.room = node.room.minus(allocation.taken);
            }
        }
        self.enter(slot);
        Some(allocation)
    }

    fn change(&mut self, uuid: Uuid, change: impl FnOnce(&mut Node)) {
        let Some(slot) = self.by_uuid.get(&uuid).copied() else {
            return;
        };
        if let Some(node) = &mut self.slots[slot] {
            change(node);
        }
        self.enter(slot);
    }

    /// Updates the trees with the node in `slot`.
    fn enter(&mut self, slot: usize) {
        let Some(node) = self.slots.get(slot).and_then(Option::as_ref) else {
            return;
        };
        self.rings.set(node.roles, slot, node.state(), node.room);
        if let Some(host) = self.by_hostname.get_mut(&node.hostname) {
            host.rings.set(node.roles, node.seat, node.state(), node.room);
        }
    }

    fn leave_host(&mut self, hostname: &str, seat: usize) {
        // A node without a name has no entry here.
        let host = self.by_hostname.get_mut(hostname);
        if host.is_some_and(|host| host.leave(seat)) {
            self.by_hostname.remove(hostname);
        }
    }
}

impl Node {
    fn state(&self) -> State {
        if self.suspended.is_empty() {
            self.state
        } else {
            State::Closed
        }
    }

    /// True if the node has the UUID, host name, type and room that a START requires.
    fn suits(&self, needs: &Needs) -> bool {
        let named = needs.node_id.is_empty() || needs.node_id == self.uuid;
        let called = needs.hostname.is_empty() || needs.hostname.eq_ignore_ascii_case(&self.hostname);
        named && called && self.roles.contains(needs.role()) && self.room.holds(Room::needed(needs))
    }
}

#[cfg(test)]
mod tests;
