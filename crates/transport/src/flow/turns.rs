//! Turns: which connection's input is next, and for how long.
//!
//! ```text
//!  begins to send ─▶ at most a share behind the others ─▶ its list, by its use ─▶ turn ─┐
//!                                                            ▲   with input left       │
//!                                                            └───── a share more ◀─────┘
//!
//!  light: at most 4 KiB of input ──▶ list ──▶ first, until light is a share ahead of bulk
//!  bulk:  more ──▶ list ──▶ otherwise
//! ```
//!
//! Within a list the next turn goes to the connection that has used least, by start-time fair
//! queueing. A connection's use is counted in nanoseconds of the dispatcher; bytes and frames add to
//! it. A turn ends after one share, or when the input is used up.
//!
//! # Light and bulk
//!
//! A connection with little input is listed as light, and goes before those with much. Otherwise a
//! sender of a thousand lone frames a second would count as busy beside a thousand senders that send as
//! much as they can, and each of its frames would wait for a batch of every one of them.
//!
//! Nobody gains by this at the cost of bulk. While both lists have connections, light turns take half of
//! the dispatcher's time and one share more at most, whatever their number. A connection's uses as light and as
//! bulk are counted apart, so one that is light in one turn and bulk in the next one has no more of either
//! half than its fair part. Somebody who keeps little input to be light shares one half with everybody who does so.
//!
//! # Beginners
//!
//! A connection that was quiet begins one share behind the last turn of its list, and no further: connections
//! that begin to send delay the busy ones by two shares each, however often they stop and begin.
//! `served` never decreases, so other beginners do not let a connection begin still further
//! behind.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::table::ConnectionId;

/// The length of a turn, in nanoseconds of the dispatcher. The use of busy connections differs by
/// at most this and one run.
pub(super) const SHARE: u64 = 1_000_000;
/// The bytes of input up to which a connection is listed as light: some requests, and far less than
/// the batch that a busy reader finds.
pub(super) const LIGHT: u64 = 4 << 10;

/// The two lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Class {
    #[default]
    Light,
    Bulk,
}

/// The turns of one connection.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The nanoseconds that the connection has used in each class. A connection that was idle starts at
    /// the level of the busy ones.
    used_ns: [u64; 2],
    /// The use at which its turn ends.
    ends_at_ns: u64,
    /// The class of its place in the list, or of its turn.
    class: Class,
    /// True if it is in the list or has the turn.
    is_listed: bool,
}

impl Turn {
    /// True if the share of its turn is not used up.
    pub(super) fn has_share(&self) -> bool {
        self.used() < self.ends_at_ns
    }

    /// Adds nanoseconds to its use.
    pub(super) fn charge(&mut self, used: u64) {
        let sum = &mut self.used_ns[self.class as usize];
        *sum = sum.saturating_add(used);
    }

    fn used(&self) -> u64 {
        self.used_ns[self.class as usize]
    }
}

/// The list of one class. A connection that has ended remains in it until its turn would come.
#[derive(Debug, Default)]
struct List {
    waiting: BinaryHeap<Reverse<(u64, ConnectionId)>>,
    /// The highest use with which a connection began its turn.
    served: u64,
}

/// The connections that wait for a turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    lists: [List; 2],
    /// The nanoseconds by which light turns have used more than bulk ones while bulk waited.
    ahead_ns: u64,
}

impl Turns {
    /// The number of connections that wait for a turn.
    pub(super) fn len(&self) -> usize {
        self.lists.iter().map(|list| list.waiting.len()).sum()
    }

    /// Puts a connection with this many bytes of input into a list, unless it is in one already.
    pub(super) fn list(&mut self, id: ConnectionId, input: u64, turn: &mut Turn) {
        if !std::mem::replace(&mut turn.is_listed, true) {
            turn.class = if input > LIGHT { Class::Bulk } else { Class::Light };
            let list = &mut self.lists[turn.class as usize];
            let used = turn.used().max(list.served.saturating_sub(SHARE));
            turn.used_ns[turn.class as usize] = used;
            list.waiting.push(Reverse((used, id)));
        }
    }

    /// Removes the connection that is next. It has the next turn, unless it has ended.
    pub(super) fn pop(&mut self) -> Option<ConnectionId> {
        let [light, bulk] = &mut self.lists;
        let light_first = bulk.waiting.is_empty() || self.ahead_ns < SHARE;
        let list = if light_first && !light.waiting.is_empty() {
            light
        } else {
            bulk
        };
        list.waiting.pop().map(|Reverse((_, id))| id)
    }

    /// Begins the turn of a connection that was listed.
    pub(super) fn begin(&mut self, turn: &mut Turn) {
        let list = &mut self.lists[turn.class as usize];
        list.served = list.served.max(turn.used());
        turn.ends_at_ns = turn.used().saturating_add(SHARE);
    }

    /// Ends the turn of a connection, which has this many bytes of input left, if any input.
    pub(super) fn end(&mut self, id: ConnectionId, left: Option<u64>, turn: &mut Turn) {
        let began = turn.ends_at_ns.saturating_sub(SHARE);
        let used = turn.used().saturating_sub(began);
        let bulk_waits = !self.lists[Class::Bulk as usize].waiting.is_empty();
        match turn.class {
            Class::Light if bulk_waits => self.ahead_ns = self.ahead_ns.saturating_add(used),
            Class::Light => {}
            Class::Bulk => self.ahead_ns = self.ahead_ns.saturating_sub(used),
        }
        turn.is_listed = false;
        if let Some(left) = left {
            self.list(id, left, turn);
        }
    }
}
