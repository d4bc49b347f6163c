//! What others see of the flow: figures, and what simulations check.

use std::time::Instant;

use super::line::Waiting;
use super::way::Way;
use super::{Flow, Origin, STEP};
use crate::table::ConnectionId;

/// How one connection fares, as a sender and as a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowState {
    /// Since when it waits for room in the queues of others, or for itself.
    pub held_since: Option<Instant>,
    /// Since when its reader waits until the dispatcher has dealt with its items.
    pub without_credit_since: Option<Instant>,
    /// Since when others wait for it, or since it was last seen to keep the pace.
    pub awaited_since: Option<Instant>,
    /// It is slow, so nobody waits for it.
    pub is_slow: bool,
    /// When the last item for it came.
    pub last_item_at: Option<Instant>,
}

impl<I> Flow<I> {
    /// The state of one connection. A connection that has left counts as idle.
    pub fn state(&self, id: ConnectionId) -> FlowState {
        self.ways
            .get(id)
            .map_or_else(FlowState::default, |way| FlowState {
                held_since: way.held_since,
                without_credit_since: way.credit.waits_since(),
                awaited_since: way.pace.map(|pace| pace.since),
                is_slow: way.is_slow,
                last_item_at: way.last_item_at,
            })
    }

    /// How many connections take part.
    pub fn connections(&self) -> usize {
        self.ways.len()
    }

    /// A fault in the books, for tests and simulations: an origin that is held by more or
    /// fewer items than wait, or a receiver that others wait for although its queue is below its
    /// mark.
    pub fn fault(&self) -> Option<String> {
        let held = |origin| {
            let waiting = self.ways.iter().flat_map(|(_, way)| way.line.iter());
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
        self.ways.iter().find_map(|(id, way)| {
            if way.waiting != held(Origin::Connection(id)) + way.held_elsewhere {
                return Some(format!("{id} believes that {} of its items wait", way.waiting));
            }
            let mark = way.mark();
            let waiting = way.outbox.waiting();
            let is_low =
                waiting.memory() <= mark - STEP.min(mark / 2) && waiting.frames <= way.limits.frames / 4;
            (is_low && !way.line.is_empty() && !way.outbox.is_closed())
                .then(|| format!("others wait for {id}, whose queue is below its mark: {waiting:?}"))
        })
    }

    /// Whether items wait in the line of a receiver.
    pub fn is_waited_for(&self, to: ConnectionId) -> bool {
        self.ways.get(to).is_some_and(|way| !way.line.is_empty())
    }

    /// Whether a connection is held, by its items in lines or by its own answers.
    pub fn is_held(&self, id: ConnectionId) -> bool {
        self.ways.get(id).is_some_and(Way::is_held)
    }

    /// How many runs of a connection have been dealt with.
    pub fn dealt_with(&self, id: ConnectionId) -> u64 {
        self.ways.get(id).map_or(0, |way| way.runs)
    }

    /// Whether a connection has input and is not held.
    pub fn may_take_a_turn(&self, id: ConnectionId) -> bool {
        self.ways
            .get(id)
            .is_some_and(|way| way.has_input() && !way.is_held())
    }
}
