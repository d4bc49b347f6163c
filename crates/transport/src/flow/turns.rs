//! Who takes the next turn: two lists, after those of RFC 8290, section 4.
//!
//! ```text
//!  begins to send ─▶ fresh ── its share of the round is used up ──▶ busy ─┐
//!                      │                                             ▲    │ next round:
//!                      └─ its input is used up: in no list           └────┘ a new share
//! ```
//!
//! A connection has one share of the server in each round, and a round ends when every busy
//! connection has had its share. A connection with a part of its share left goes before the
//! busy ones whenever it has input. So a connection that sends less than its fair share
//! waits for one run of another, however many are busy; and connections that begin to send
//! delay the busy ones by one share each, however often they stop and begin.

use std::collections::VecDeque;

use super::way::Way;
use crate::table::{ConnectionId, Table};

/// A connection's share of each round, in nanoseconds of the dispatcher. A thousand busy
/// connections have a round in a second.
pub(super) const SHARE: i64 = 1_000_000;
/// How much more than its share a connection may owe, because a run took longer. It has no
/// turn in so many rounds. The bound limits the rounds in which nobody has a turn.
const DEBT: i64 = 100 * SHARE;

/// One connection's part in the turns.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// What is left of its share, in nanoseconds. Less than 0: it has had more.
    left: i64,
    /// The round of that share.
    round: u64,
    /// Whether it is in a list, or has its turn.
    is_listed: bool,
}

impl Turn {
    /// Whether it may go on with its turn.
    pub(super) fn has_share(&self) -> bool {
        self.left > 0
    }

    /// Takes what it has used from its share, in nanoseconds.
    pub(super) fn charge(&mut self, used: u64) {
        let used = i64::try_from(used).unwrap_or(i64::MAX);
        self.left = self.left.saturating_sub(used).max(-DEBT);
    }

    fn renew(&mut self, round: u64) {
        if self.round != round {
            self.round = round;
            self.left = self.left.min(0) + SHARE;
        }
    }
}

/// The lists. A connection that has left stays in its list until its turn would come.
#[derive(Debug)]
pub(super) struct Turns {
    /// Connections with input and a part of their share.
    fresh: VecDeque<ConnectionId>,
    /// Connections with input that have used their share up.
    busy: VecDeque<ConnectionId>,
    round: u64,
    /// How many of the busy ones, from the front, have not had their turn in this round.
    due: usize,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            fresh: VecDeque::new(),
            busy: VecDeque::new(),
            // A new connection has had no share of the first round.
            round: 1,
            due: 0,
        }
    }
}

impl Turns {
    /// How many connections wait for a turn.
    pub(super) fn len(&self) -> usize {
        self.fresh.len() + self.busy.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.busy.is_empty()
    }

    /// Puts a connection that has input into a list, if it is in none.
    pub(super) fn list(&mut self, id: ConnectionId, turn: &mut Turn) {
        if std::mem::replace(&mut turn.is_listed, true) {
            return;
        }
        turn.renew(self.round);
        match turn.has_share() {
            true => self.fresh.push_back(id),
            false => self.busy.push_back(id),
        }
    }

    /// Takes the connection out of its list whose turn it is.
    pub(super) fn next<I>(&mut self, ways: &mut Table<Way<I>>) -> Option<ConnectionId> {
        while let Some(id) = self.fresh.pop_front() {
            if ways.contains(id) {
                return Some(id);
            }
        }
        loop {
            if self.due == 0 {
                self.round += 1;
                self.due = self.busy.len();
            }
            let id = self.busy.pop_front()?;
            self.due -= 1;
            let Some(way) = ways.get_mut(id) else { continue };
            way.turn.renew(self.round);
            if way.turn.has_share() {
                return Some(id);
            }
            self.busy.push_back(id);
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
