//! The state of a connection in the flow, for figures and for the checks of simulations.

use std::time::Instant;

use super::connection::FlowConnection;
use super::line::Waiting;
use super::{Flow, Origin, ROOM_STEP};
use crate::table::ConnectionId;

/// The state of one connection, as a sender and as a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowState {
    /// The time since which the connection is held.
    pub held_since: Option<Instant>,
    /// The time since which its reader waits for credit.
    pub without_credit_since: Option<Instant>,
    /// The time since which it holds others, or since its pace was last found sufficient.
    pub awaited_since: Option<Instant>,
    /// True if it is slow, so that it holds no other connection.
    pub is_slow: bool,
    /// The time of the last item for it.
    pub last_item_at: Option<Instant>,
}

impl<I> Flow<I> {
    /// The state of one connection. The default if the connection is unknown.
    pub fn state(&self, id: ConnectionId) -> FlowState {
        self.rows
            .get(id)
            .map_or_else(FlowState::default, |row| FlowState {
                held_since: row.held_since,
                without_credit_since: row.credit.waits_since(),
                awaited_since: row.pace.map(|pace| pace.since),
                is_slow: row.is_slow,
                last_item_at: row.last_item_at,
            })
    }

    /// The number of connections.
    pub fn connections(&self) -> usize {
        self.rows.len()
    }

    /// A fault in the bookkeeping, for tests and simulations: an origin that is held by more or
    /// fewer items than wait, or a receiver with items in its line although its queue is below
    /// its mark.
    pub fn fault(&self) -> Option<String> {
        let held = |origin| {
            let waiting = self.rows.iter().flat_map(|(_, row)| row.line.items.iter());
            let holds = |waiting: &&Waiting| waiting.holds && waiting.origin == origin;
            waiting.filter(holds).count()
        };
        for ((link, number), waiting) in &self.distant {
            let (link, number) = (*link, *number);
            if *waiting == 0 || *waiting != held(Origin::Distant { link, number }) {
                return Some(format!(
                    "{waiting} items of {number} behind {link} are believed to wait"
                ));
            }
        }
        self.rows.iter().find_map(|(id, row)| {
            if row.waiting != held(Origin::Connection(id)) + row.held_elsewhere {
                return Some(format!("{id} believes that {} of its items wait", row.waiting));
            }
            let mut items = row.line.items.iter();
            let holds_others = items.any(|waiting| waiting.holds && waiting.origin != Origin::Connection(id));
            if row.line.holds_others() != holds_others {
                return Some(format!(
                    "{id} holds others: {holds_others}, and believes the opposite"
                ));
            }
            if row.pace.is_some() != row.needs_pace_check() {
                return Some(format!("the pace of {id} is measured: {}", row.pace.is_some()));
            }
            let mark = row.mark();
            let waiting = row.outbox.waiting();
            let is_low =
                waiting.memory() <= mark - ROOM_STEP.min(mark / 2) && waiting.frames <= row.limits.frames / 4;
            (is_low && !row.line.items.is_empty() && !row.outbox.is_closed())
                .then(|| format!("others wait for {id}, whose queue is below its mark: {waiting:?}"))
        })
    }

    /// True if items wait in the line of a receiver.
    pub fn is_waited_for(&self, to: ConnectionId) -> bool {
        self.rows.get(to).is_some_and(|row| !row.line.items.is_empty())
    }

    /// True if a connection is held, by its items in lines or by its own answers.
    pub fn is_held(&self, id: ConnectionId) -> bool {
        self.rows.get(id).is_some_and(FlowConnection::is_held)
    }

    /// The number of runs of a connection that were handled.
    pub fn handled_runs(&self, id: ConnectionId) -> u64 {
        self.rows.get(id).map_or(0, |row| row.runs)
    }

    /// True if a connection has input and is not held.
    pub fn may_take_a_turn(&self, id: ConnectionId) -> bool {
        self.rows
            .get(id)
            .is_some_and(|row| row.has_input() && !row.is_held())
    }
}
