//! What joins a reader to the dispatcher.

use std::sync::Arc;
use std::time::Duration;

use super::{Admitted, Core, DispatchEvent, Events};
use crate::end::EndReason;
use crate::flow::{Credit, Unfinished};
use crate::link::Sink;
use crate::outbox::Outbox;
use crate::table::ConnectionId;

/// Hands what a reader finds to the dispatcher, as far ahead of it as the
/// reader's credit allows.
pub struct Feed<C: Core> {
    id: ConnectionId,
    events: Events<DispatchEvent<C>>,
    credit: Arc<Credit>,
    outbox: Outbox,
    unfinished: Unfinished,
}

impl<C: Core> Feed<C> {
    /// For a connection that was just admitted. A long item may take so long
    /// while memory is short.
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
        // What the peer sent before its end may still wait for its turn, and
        // be answered: the link's own end waits until the dispatcher has dealt
        // with all of it and closed the queue. That needs no time limit: the
        // dispatcher comes to it, or it ends the connection, or its own end
        // aborts whatever it has.
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
