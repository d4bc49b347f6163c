//! The data of a search: trees with the room of the nodes, and the node that was used last.

use ssntp::Role;
use ssntp_cluster::Needs;
use ssntp_payload::Ready;

/// The state of a node for placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It accepts a START now.
    Ready,
    /// It sends READY when it can accept the next START.
    Waiting,
    /// It is full, offline, in maintenance or suspended.
    Closed,
}

/// A ring for each type of node. A node with both types is in both rings.
#[derive(Debug, Default)]
pub(super) struct Rings {
    compute: Ring,
    network: Ring,
}

impl Rings {
    pub(super) fn of(&self, network: bool) -> &Ring {
        if network { &self.network } else { &self.compute }
    }

    pub(super) fn of_mut(&mut self, network: bool) -> &mut Ring {
        if network {
            &mut self.network
        } else {
            &mut self.compute
        }
    }

    pub(super) fn of_roles(&mut self, roles: Role) -> impl Iterator<Item = &mut Ring> {
        let compute = roles.contains(Role::AGENT).then_some(&mut self.compute);
        let network = roles.contains(Role::NETAGENT).then_some(&mut self.network);
        compute.into_iter().chain(network)
    }

    /// Sets the state and room of a node.
    pub(super) fn set(&mut self, roles: Role, at: usize, state: State, room: Room) {
        let room_as = |wanted| if state == wanted { room } else { Room::NONE };
        for ring in self.of_roles(roles) {
            // A node is in only one of the trees; its slot in the other tree is empty.
            ring.ready.set(at, room_as(State::Ready));
            ring.waiting.set(at, room_as(State::Waiting));
        }
    }

    /// Removes a node from the trees.
    pub(super) fn clear(&mut self, at: usize) {
        self.set(Role::AGENT | Role::NETAGENT, at, State::Closed, Room::NONE);
    }
}

/// The nodes of one type.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// The number of connected nodes.
    pub(super) connected: usize,
    /// The node that was used last.
    pub(super) last: usize,
    ready: Tree,
    waiting: Tree,
}

impl Ring {
    /// The first node in this state that fits, except `except`. The search begins after the
    /// node that was used last, and wraps round.
    pub(super) fn first(&self, state: State, wanted: Room, except: Option<usize>) -> Option<usize> {
        let tree = match state {
            State::Ready => &self.ready,
            State::Waiting => &self.waiting,
            State::Closed => return None,
        };
        tree.first_after(self.last, wanted, except)
    }
}

/// Memory in MB, disk in MB, and CPUs: of a node, or for a START.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room(pub(super) [i64; 3]);

impl Room {
    /// The room that a START takes.
    pub(super) fn needed(needs: &Needs) -> Self {
        Self([needs.mem_mb, needs.disk_mb, needs.vcpus])
    }

    /// The room of an empty slot. Not even a START without needs fits into it.
    const NONE: Self = Self([-1; 3]);
    /// The room of a node before its first READY. Any START fits into it.
    pub(super) const UNKNOWN: Self = Self([i64::MAX; 3]);

    pub(super) fn of(ready: &Ready) -> Self {
        let known = |value: i64| if value < 0 { i64::MAX } else { value };
        let values = [ready.mem_available_mb, ready.disk_available_mb, ready.cpus_online];
        Self(values.map(known))
    }

    pub(super) fn holds(self, wanted: Self) -> bool {
        let mut both = self.0.into_iter().zip(wanted.0);
        both.all(|(have, wanted)| have >= wanted)
    }

    fn most(mut self, other: Self) -> Self {
        for (most, other) in self.0.iter_mut().zip(other.0) {
            *most = other.max(*most);
        }
        self
    }

    /// The sum. An unknown value remains unknown.
    pub(super) fn plus(mut self, more: Self) -> Self {
        for (have, more) in self.0.iter_mut().zip(more.0) {
            *have += if *have == i64::MAX { 0 } else { more };
        }
        self
    }

    pub(super) fn minus(self, less: Self) -> Self {
        self.plus(Self(less.0.map(|value| -value)))
    }
}

/// A segment tree: the leaves, in the second half, are the room of each slot, and the parent
/// of the entries `2n` and `2n + 1` is entry `n` with the maximum of both.
#[derive(Debug, Default)]
struct Tree {
    most: Vec<Room>,
}

impl Tree {
    fn leaves(&self) -> usize {
        self.most.len() / 2
    }

    fn set(&mut self, slot: usize, room: Room) {
        if slot >= self.leaves() {
            // The tree need not grow for an empty slot.
            if room == Room::NONE {
                return;
            }
            self.grow(slot);
        }
        let mut at = self.leaves() + slot;
        self.most[at] = room;
        while at > 1 {
            at /= 2;
            let most = self.most[2 * at].most(self.most[2 * at + 1]);
            // If this maximum stays the same, no ancestor changes either.
            if self.most[at] == most {
                return;
            }
            self.most[at] = most;
        }
    }

    fn grow(&mut self, slot: usize) {
        let old = std::mem::take(&mut self.most);
        // A power of two makes all leaves equally deep, which `descend` relies on.
        let leaves = (slot + 1).next_power_of_two();
        self.most = vec![Room::NONE; 2 * leaves];
        let kept = &old[old.len() / 2..];
        self.most[leaves..leaves + kept.len()].copy_from_slice(kept);
        for at in (1..leaves).rev() {
            self.most[at] = self.most[2 * at].most(self.most[2 * at + 1]);
        }
    }

    /// The first slot that fits after `last`, wrapping round, except `except`.
    fn first_after(&self, last: usize, wanted: Room, except: Option<usize>) -> Option<usize> {
        let leaves = self.leaves();
        // The slot that was used last may be beyond the leaves of this tree, which is only as large
        // as its own nodes need.
        let start = (last + 1).min(leaves);
        self.first_within(start, leaves, wanted, except)
            .or_else(|| self.first_within(0, start, wanted, except))
    }

    fn first_within(&self, from: usize, to: usize, wanted: Room, except: Option<usize>) -> Option<usize> {
        // Entry 1 is the root.
        let found = self.descend(1, 0, self.leaves(), (from, to), wanted)?;
        match except {
            Some(except) if found == except => self.descend(1, 0, self.leaves(), (found + 1, to), wanted),
            _ => Some(found),
        }
    }

    /// The first slot in `range` that fits, in the subtree of entry `at`, which covers
    /// `count` slots from `first` on.
    fn descend(
        &self,
        at: usize,
        first: usize,
        count: usize,
        range: (usize, usize),
        wanted: Room,
    ) -> Option<usize> {
        if first >= range.1 || first + count <= range.0 || !self.most.get(at)?.holds(wanted) {
            return None;
        }
        if count == 1 {
            return Some(first);
        }
        let half = count / 2;
        self.descend(2 * at, first, half, range, wanted)
            .or_else(|| self.descend(2 * at + 1, first + half, half, range, wanted))
    }
}
