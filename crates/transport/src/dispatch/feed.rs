//! Connects a reader to the dispatcher.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Admitted, Core, DispatchEvent, Events};
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
    reported_unread: Instant,
    /// The number of reads that are left of the present pulse.
    reads_left: u32,
    /// [`PULSE`]
    pub(super) pulse: Duration,
}

/// A reader that has waited for credit for this time reads [`READS`] times nevertheless, and again after each such
/// time. So the peer's system sees that its bytes are taken. Otherwise a peer whose write or sent bytes wait for
/// 30 s would take this server for dead, although a healthy receiver may need longer for what is before it.
const PULSE: Duration = Duration::from_secs(6);
/// So many reads take all that the system has received for a connection, so that it announces room again.
const READS: u32 = 4;

/// Progress of a long item is reported after this number of bytes.
const PROGRESS: usize = 16 * 1024;
/// Progress is reported at most this often. A wait for memory is reported as often.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

impl<C: Core> Feed<C> {
    /// For a connection that was just admitted.
    pub fn new(admitted: &Admitted<C::Grant>, events: Events<DispatchEvent<C>>) -> Self {
        Self {
            id: admitted.id,
            events,
            credit: Arc::clone(&admitted.credit),
            outbox: admitted.outbox.clone(),
            unfinished: Unfinished::new(admitted.credit.budget()),
            reported: (0, now()),
            reported_unread: now(),
            reads_left: 0,
            pulse: PULSE,
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

    /// Reports that the peer waits for this server, at most once in a pulse.
    fn report_unread(&mut self) {
        let now = now();
        if now.saturating_duration_since(self.reported_unread) >= self.pulse {
            self.reported_unread = now;
            let _ = self.events.send(DispatchEvent::Unread(self.id));
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
        // Without a wait: one batch may always be under way. The next read waits for credit.
        self.events.send(event).is_ok()
    }

    fn unfinished(&mut self, held: usize, wanted: usize) -> Result<usize, EndReason> {
        if held >= self.reported.0 + PROGRESS {
            self.report_progress(held);
        }
        let limit = if self.reads_left > 0 {
            Duration::ZERO
        } else {
            self.pulse
        };
        match self.credit.wait(limit) {
            Some(true) => self.reads_left = 0,
            Some(false) => return Err(EndReason::Local),
            None => {
                if self.reads_left == 0 {
                    self.reads_left = READS;
                    self.report_unread();
                }
                self.reads_left -= 1;
            }
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
            self.report_progress(held);
            self.report_unread();
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
