//! Who takes the next turn: whoever has had least of the server, by start-time fair queueing.
//!
//! ```text
//!  begins to send ─▶ at most a share behind the others ─▶ list, by what it has had ─▶ turn ─┐
//!                                                            ▲   with input left            │
//!                                                            └── a share more ◀─────────────┘
//! ```
//!
//! What a connection has had is counted in nanoseconds of the dispatcher, from which bytes and
//! frames take their part. A turn ends after one share, or when the input is used up. So
//! whoever sends less than its fair part is never further on than the busy ones, and a lone
//! frame of it waits for one turn of another, however many are busy.
//!
//! A connection that was quiet begins one share behind the turn that was last, and no
//! further: many that begin to send delay the busy ones by two shares each, however often
//! they stop and begin. What was had last never decreases, so nobody begins still further
//! behind because others have begun.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::way::Way;
use crate::table::{ConnectionId, Table};

/// The length of a turn, in nanoseconds of the dispatcher. Busy connections differ by at most
/// so much, and by one run, in what they have had.
pub(super) const SHARE: u64 = 1_000_000;

/// One connection's part in the turns.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// What it has had, in nanoseconds, or as much as if it had not been quiet.
    had: u64,
    /// Where its turn ends.
    until: u64,
    /// Whether it is in the list, or has its turn.
    is_listed: bool,
}

impl Turn {
    /// Whether it may go on with its turn.
    pub(super) fn has_share(&self) -> bool {
        self.had < self.until
    }

    /// Counts what it has had, in nanoseconds.
    pub(super) fn charge(&mut self, used: u64) {
        self.had = self.had.saturating_add(used);
    }
}

/// The list. A connection that has left stays in it until its turn would come.
#[derive(Debug, Default)]
pub(super) struct Turns {
    list: BinaryHeap<Reverse<(u64, ConnectionId)>>,
    /// The most that a connection had had when its turn came.
    served: u64,
}

impl Turns {
    /// How many connections wait for a turn.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Puts a connection that has input into the list, if it is not there.
    pub(super) fn list(&mut self, id: ConnectionId, turn: &mut Turn) {
        if !std::mem::replace(&mut turn.is_listed, true) {
            turn.had = turn.had.max(self.served.saturating_sub(SHARE));
            self.list.push(Reverse((turn.had, id)));
        }
    }

    /// Takes the connection out of the list whose turn it is.
    pub(super) fn next<I>(&mut self, ways: &mut Table<Way<I>>) -> Option<ConnectionId> {
        loop {
            let Reverse((had, id)) = self.list.pop()?;
            if let Some(way) = ways.get_mut(id) {
                self.served = self.served.max(had);
                way.turn.until = had.saturating_add(SHARE);
                return Some(id);
            }
        }
    }

    /// Ends the turn of a connection.
    pub(super) fn end(&mut self, id: ConnectionId, turn: &mut Turn, has_input: bool) {
        turn.is_listed = false;
        if has_input {
            self.list(id, turn);
        }
    }
}
