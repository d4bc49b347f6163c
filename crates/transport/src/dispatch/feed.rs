//! Connects a reader to the dispatcher.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Admitted, Core, DispatchEvent, Events};
use crate::budget::Budget;
use crate::end::EndReason;
use crate::flow::{Credit, NextRead, Unfinished};
use crate::host::now;
use crate::link::Sink;
use crate::outbox::Outbox;
use crate::table::ConnectionId;

/// Sends the items of a reader to the dispatcher, as far ahead as the reader's credit
/// allows.
#[derive(Debug)]
pub struct Feed<C: Core> {
    id: ConnectionId,
    events: Events<DispatchEvent<C>>,
    credit: Arc<Credit>,
    outbox: Outbox,
    unfinished: Unfinished,
    /// The number of bytes of the present item at the last report of progress, and its time.
    reported: (usize, Instant),
}

/// Progress of a long item is reported after this number of bytes, and not more often than this. A wait for
/// memory is reported as often.
const PROGRESS: usize = 16 * 1024;
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

impl<C: Core> Feed<C> {
    /// For a connection that was just admitted. Its unfinished items count in `memory`: the budget
    /// of its credit, or its certificate's part of that.
    pub fn new(admitted: &Admitted<C::Grant>, events: Events<DispatchEvent<C>>, memory: &Budget) -> Self {
        Self {
            id: admitted.id,
            events,
            credit: Arc::clone(&admitted.credit),
            outbox: admitted.outbox.clone(),
            unfinished: Unfinished::new(memory),
            reported: (0, now()),
        }
    }

    /// Reports that the peer is not silent, although no item of it is complete.
    fn report_progress(&mut self, held: usize) {
        let now = now();
        if now.saturating_duration_since(self.reported.1) >= PROGRESS_INTERVAL {
            self.reported = (held, now);
            let _ = self.events.send(DispatchEvent::Items(self.id, Vec::new(), 0));
        }
    }
}

impl<C: Core> Sink<C::Item> for Feed<C> {
    fn items(&mut self, items: &mut Vec<C::Item>, bytes: usize) -> bool {
        let bytes = bytes as u64;
        // The credit counts their memory from here on.
        self.unfinished.done();
        self.reported.0 = 0;
        self.credit
            .spend(Credit::memory_of::<C::Item>(items.len(), bytes));
        let event = DispatchEvent::Items(self.id, std::mem::take(items), bytes);
        // Sent before the wait: one batch may always be under way.
        self.events.send(event).is_ok() && self.credit.wait()
    }

    fn unfinished(&mut self, held: usize, wanted: usize) -> Result<usize, EndReason> {
        if held >= self.reported.0 + PROGRESS {
            self.report_progress(held);
        }
        loop {
            let credit = Arc::clone(&self.credit);
            let look = self
                .unfinished
                .next_read(held, wanted, now, move || credit.nudge());
            match look {
                NextRead::Read(most) => return Ok(most),
                NextRead::End(why) => return Err(EndReason::Memory(why)),
                NextRead::Wait => {}
            }
            if !self
                .credit
                .wait_for(PROGRESS_INTERVAL, || self.unfinished.is_granted())
            {
                return Err(EndReason::Local);
            }
            // The peer waits for this server, so it must not count as silent.
            self.report_progress(held);
        }
    }

    fn ended(&mut self, reason: EndReason) {
        // Input that arrived before the end may still wait for its turn and be answered. So this
        // waits until the dispatcher has handled all of it and closed the queue. No time limit is
        // needed: the dispatcher handles the end, ends the connection, or aborts all connections
        // when it ends itself.
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
