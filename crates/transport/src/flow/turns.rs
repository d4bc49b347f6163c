//! Turns: the next one goes to the connection that has used least, by start-time fair queueing.
//!
//! ```text
//!  begins to send ─▶ at most a share behind the others ─▶ list, by its use ─▶ turn ─┐
//!                                                            ▲   with input left    │
//!                                                            └── a share more ◀─────┘
//! ```
//!
//! A connection's use is counted in nanoseconds of the dispatcher; bytes and frames add to it.
//! A turn ends after one share, or when the input is used up. So a connection that sends less
//! than its fair part is never ahead of the busy ones, and its lone frame waits for one turn of
//! another connection, however many are busy.
//!
//! A connection that was quiet begins one share behind the last turn, and no further: connections
//! that begin to send delay the busy ones by two shares each, however often they stop and begin.
//! `served` never decreases, so other beginners do not let a connection begin still further
//! behind.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::table::ConnectionId;

/// The length of a turn, in nanoseconds of the dispatcher. The use of busy connections differs by
/// at most this and one run.
pub(super) const SHARE: u64 = 1_000_000;

/// The turns of one connection.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The nanoseconds that the connection has used. A connection that was idle starts at the level of
    /// the busy ones.
    used_ns: u64,
    /// The use at which its turn ends.
    ends_at_ns: u64,
    /// True if it is in the list or has the turn.
    is_listed: bool,
}

impl Turn {
    /// True if the share of its turn is not used up.
    pub(super) fn has_share(&self) -> bool {
        self.used_ns < self.ends_at_ns
    }

    /// Adds nanoseconds to its use.
    pub(super) fn charge(&mut self, used: u64) {
        self.used_ns = self.used_ns.saturating_add(used);
    }
}

/// The list of connections that wait for a turn. A connection that has ended remains in it until
/// its turn would come.
#[derive(Debug, Default)]
pub(super) struct Turns {
    list: BinaryHeap<Reverse<(u64, ConnectionId)>>,
    /// The highest use with which a connection began its turn.
    served: u64,
}

impl Turns {
    /// The number of connections that wait for a turn.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Puts a connection that has input into the list, unless it is there already.
    pub(super) fn list(&mut self, id: ConnectionId, turn: &mut Turn) {
        if !std::mem::replace(&mut turn.is_listed, true) {
            turn.used_ns = turn.used_ns.max(self.served.saturating_sub(SHARE));
            self.list.push(Reverse((turn.used_ns, id)));
        }
    }

    /// Removes the first connection of the list. It has the next turn, unless it has ended.
    pub(super) fn pop(&mut self) -> Option<(u64, ConnectionId)> {
        self.list.pop().map(|Reverse(first)| first)
    }

    /// Begins the turn of a connection that was listed with this use.
    pub(super) fn begin(&mut self, used_ns: u64, turn: &mut Turn) {
        self.served = self.served.max(used_ns);
        turn.ends_at_ns = used_ns.saturating_add(SHARE);
    }

    /// Ends the turn of a connection.
    pub(super) fn end(&mut self, id: ConnectionId, turn: &mut Turn, has_input: bool) {
        turn.is_listed = false;
        if has_input {
            self.list(id, turn);
        }
    }
}
