//! Connects a reader to the dispatcher.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Admitted, Core, DispatchEvent, Events};
use crate::budget::Budget;
use crate::end::EndReason;
use crate::flow::{Credit, Look, Unfinished};
use crate::link::Sink;
use crate::outbox::Outbox;
use crate::table::ConnectionId;

/// Hands the items of a reader to the dispatcher, as far ahead as the reader's credit
/// allows.
pub struct Feed<C: Core> {
    id: ConnectionId,
    events: Events<DispatchEvent<C>>,
    credit: Arc<Credit>,
    outbox: Outbox,
    unfinished: Unfinished,
}

impl<C: Core> Feed<C> {
    /// For a connection that was just admitted. What it holds of unfinished items counts in
    /// `memory`: the budget of its credit, or the part of its certificate there.
    pub fn new(admitted: &Admitted<C::Grant>, events: Events<DispatchEvent<C>>, memory: &Budget) -> Self {
        Self {
            id: admitted.id,
            events,
            credit: Arc::clone(&admitted.credit),
            outbox: admitted.outbox.clone(),
            unfinished: Unfinished::new(memory),
        }
    }
}

impl<C: Core> fmt::Debug for Feed<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Feed").field(&self.id).finish()
    }
}

impl<C: Core> Sink<C::Item> for Feed<C> {
    fn items(&mut self, items: &mut Vec<C::Item>, bytes: usize) -> bool {
        let bytes = bytes as u64;
        // Their memory is counted with the credit now.
        self.unfinished.done();
        self.credit
            .spend(Credit::memory_of::<C::Item>(items.len(), bytes));
        let event = DispatchEvent::Items(self.id, std::mem::take(items), bytes);
        // The batch first: the reader may always have one under way.
        self.events.send(event).is_ok() && self.credit.wait()
    }

    fn unfinished(&mut self, held: usize, wanted: usize) -> Result<usize, EndReason> {
        loop {
            let credit = Arc::clone(&self.credit);
            let look = self
                .unfinished
                .look(held, wanted, super::clock, move || credit.nudge());
            match look {
                Look::Read(most) => return Ok(most),
                Look::Wait if self.credit.wait_for(|| self.unfinished.is_granted()) => {}
                Look::Wait => return Err(EndReason::Local),
                Look::End(why) => return Err(EndReason::Memory(why)),
            }
        }
    }

    fn ended(&mut self, reason: EndReason) {
        // Input from before the peer's end may still wait for its turn and be answered.
        // So the link ends only after the dispatcher has dealt with all of it and closed
        // the queue. This needs no time limit: the dispatcher gets to it, or it ends the
        // connection, or its own end aborts all connections.
        if self.events.send(DispatchEvent::Ended(self.id, reason)).is_ok() {
            self.outbox.wait_until_closed(Duration::MAX);
        }
    }

    fn finished(&mut self) {
        let _ = self.events.send(DispatchEvent::Finished(self.id));
    }

    fn room(&self) -> Box<dyn Fn() + Send> {
        let (events, id) = (self.events.clone(), self.id);
        Box::new(move || {
            let _ = events.send(DispatchEvent::Room(id));
        })
    }
}
