//! Connects a reader to the dispatcher.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Admitted, Core, DispatchEvent, Events};
use crate::end::EndReason;
use crate::flow::{Credit, Unfinished};
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
    /// For a connection that was just admitted. `limit` is how long an unfinished item may
    /// wait for memory.
    pub fn new(admitted: &Admitted<C::Grant>, events: Events<DispatchEvent<C>>, limit: Duration) -> Self {
        Self {
            id: admitted.id,
            events,
            credit: Arc::clone(&admitted.credit),
            outbox: admitted.outbox.clone(),
            unfinished: admitted.credit.unfinished(limit),
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
        self.credit
            .spend(Credit::memory_of::<C::Item>(items.len(), bytes));
        let event = DispatchEvent::Items(self.id, std::mem::take(items), bytes);
        self.events.send(event).is_ok() && self.credit.wait()
    }

    fn unfinished(&mut self, bytes: usize) -> bool {
        self.unfinished.hold(bytes as u64, &self.credit, super::clock)
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
