//! Flow control: which connection may send to which, and which has to wait.
//!
//! Every item for a receiver joins that receiver's one line, whatever caused the item:
//! forwarded frames, answers, and what the application sends from a frame, a timer or a call.
//! The line fills the queue of the receiver's writer, and only while that queue is below its
//! mark. So items leave for a receiver in the order in which they were sent.
//!
//! ```text
//!  reader ── Credit ──▶ input of its connection ── a turn ──▶ core
//!                            ▲                                 │ Action::Send
//!                            │ pause                           ▼ { origin, to, item }
//!                         account ◀── charge ─── line of the receiver
//!                                                              │ below its mark
//!                                                              ▼
//!                                               queue (Outbox) ──▶ writer ──▶ socket
//! ```
//!
//! # Owners of the parts
//!
//! | part | owner of | decision |
//! |---|---|---|
//! | [`Credit`] | what a reader has sent to the dispatcher | how far the reader may be ahead |
//! | `sender`, `turns` | the input of a connection, its charge | which connection's input is next, and how much of it |
//! | `accounts` | who has caused what waits | which connection is paused |
//! | `receiver`, `line` | what waits for a connection | what moves into the queue, and when its writer reports room |
//! | `mark` | what a receiver took while its queue was full | how much its queue holds |
//! | `pace` | what a receiver takes | which receiver is slow |
//! | [`Outbox`] | the queue | what the writer sends; only the writer takes items out |
//!
//! [`Flow`] passes events to them, and what one of them returns to the others.
//!
//! # Origins
//!
//! The [`Origin`] of an item is the connection or application that caused it. An item in a line is
//! charged to its origin, which is paused: it gets no turn and its reader stops after one batch. The
//! origin goes on when none of its items is in a line. A receiver whose queue is below its
//! mark pauses no origin, except for the moment until its writer has reported room. No receiver
//! is charged for what others send to it, also if they end meanwhile: see `accounts`.
//!
//! The application cannot be paused. Its items may take in the line what the queue leaves of the receiver's limit;
//! beyond that the core's policy ends the receiver or drops items. Items that are charged to an origin do
//! not count for that, so a receiver never meets the policy because of connections that it pauses.
//! Only items in the line are dropped, so the writer needs no notice.
//!
//! Answers to a receiver's own frames pause only the receiver: if they take more than half of the mark,
//! it is not read until half of them has left.
//!
//! # Slow receivers
//!
//! A receiver that takes at least 4 MiB or 20,000 frames a second while it pauses others may pause
//! them without limit. Bytes of a frame that the system has accepted in part count. A receiver
//! that takes less for the *patience* is slow: the origins in its line go on, it pauses no
//! more, and its line counts against its limit. So a stuck peer delays its senders once, by the
//! patience. Receivers that pause others at the same time share the pace, because they share the
//! processors and the network of this host: each of ten has to take a tenth of it. A receiver stops
//! being slow when it has kept the pace for the patience, or has taken everything.
//!
//! # Ends
//!
//! A connection that ends with grace pauses no origin any more, and its line is sent before its
//! queue is closed. A connection that ends at once loses its line. Its items in the lines of others are
//! still delivered.
//!
//! | bound | limit | when full |
//! |---|---|---|
//! | input of a connection | its credit: 1 MiB, less if memory is short, but always one batch; while it is paused for long, four reads every six seconds more | its reader waits, so its peer has to wait |
//! | an unfinished item | 16 KiB of each connection's own; more is reserved in the budget of received bytes, half of it for each certificate | the connection is not read until the memory is granted, in order of arrival; the first in line gets it also beyond the bound. While others wait, a connection that holds a reservation and makes no progress is ended |
//! | a receiver's queue | its mark: what the receiver takes in 10 ms, at least 1 MiB, at most half of its limit, or its share of the budget; and one item | items join the line |
//! | answers to itself in a receiver's queue | half of the mark | the connection is not read |
//! | items in a line that are charged to a connection | one turn of each connection, and of each that has ended, which counts as a connection until then; their memory counts in the budget of received bytes | the connections are paused, and their successors |
//! | items in lines that are charged to remote origins | 16 MiB for each link, and what its reader is ahead | the link is paused |
//! | loose items in a line: of the application, or for a slow receiver | what the queue leaves of the receiver's limit, or its share of the budget; one item may always wait | the core's policy |

mod accounts;
mod credit;
mod line;
mod mark;
mod pace;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;
mod turns;
mod unfinished;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::accounts::Accounts;
pub use self::accounts::{Origin, RemotePause};
pub use self::credit::Credit;
use self::line::Waiting;
use self::mark::Mark;
use self::pace::PaceChecks;
use self::receiver::Receiver;
pub use self::sender::Input;
use self::sender::Sender;
use self::turns::Turns;
pub(crate) use self::unfinished::UNRESERVED;
pub use self::unfinished::{NextRead, Unfinished};
use crate::end::EndReason;
use crate::outbox::{Limits, Outbox, PushError};
use crate::stream::{Load, Outgoing};
use crate::table::{ConnectionId, Table};

/// The default patience: the time for which a receiver below the pace may pause others. A healthy
/// process on a busy machine gets a processor sooner.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// The result of [`Flow::deliver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The item is in the receiver's queue or in its line.
    Taken,
    /// As `Taken`, but the line exceeds the receiver's limit: see [`Flow::overflow`].
    Overflows,
    /// The receiver is closed or unknown, and the item is dropped.
    Closed,
}

/// The state of one connection, as a sender and as a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowState {
    /// The time since which the connection is paused.
    pub paused_since: Option<Instant>,
    /// The time since which its reader waits for credit.
    pub without_credit_since: Option<Instant>,
    /// The time since which it pauses others, or since its pace was last found sufficient.
    pub awaited_since: Option<Instant>,
    /// True if it is slow, so that it pauses no other connection.
    pub is_slow: bool,
    /// The time of the last item for it.
    pub last_item_at: Option<Instant>,
}

/// The flow between all connections of one dispatcher. `I` is the type of received items.
#[derive(Debug)]
pub struct Flow<I> {
    senders: Table<Sender<I>>,
    receivers: Table<Receiver>,
    accounts: Accounts,
    turns: Turns,
    pace_checks: PaceChecks,
    /// The lowest mark of a queue. Tests need longer queues.
    least_mark: u64,
}

impl<I> Flow<I> {
    /// A flow without connections.
    pub fn new(patience: Duration) -> Self {
        Self {
            senders: Table::default(),
            receivers: Table::default(),
            accounts: Accounts::default(),
            turns: Turns::default(),
            pace_checks: PaceChecks::new(patience),
            least_mark: mark::LEAST,
        }
    }

    /// Adds a connection. `sender` is the same for each connection of one peer, if it has a name. `limits`
    /// bound its queue and its line, which count in the budget of `outbox`.
    pub fn insert(
        &mut self,
        id: ConnectionId,
        sender: Option<u128>,
        outbox: Outbox,
        limits: Limits,
        credit: Arc<Credit>,
        now: Instant,
    ) {
        self.accounts.open(id, sender, Arc::clone(&credit), now);
        self.senders.insert(id, Sender::new(credit));
        self.receivers
            .insert(id, Receiver::new(id, outbox, limits, Mark::new(self.least_mark)));
    }

    /// Ends a connection with grace: its line pauses no origin any more, and is sent before its
    /// queue is closed. Returns its input that was not handled. Its items in the lines of other
    /// connections are still delivered.
    pub fn end(&mut self, id: ConnectionId, now: Instant) -> Vec<I> {
        let rest = self.end_input(id);
        if let Some(to) = self.receivers.get_mut(id) {
            to.is_ending = true;
            self.loosen(id, |_| true);
            self.move_line(id);
            self.update_pace_check(id, now);
        }
        rest
    }

    /// Removes a connection at once and drops its line. Otherwise as [`end`](Self::end).
    pub fn remove(&mut self, id: ConnectionId) -> Vec<I> {
        let rest = self.end_input(id);
        self.loosen(id, |_| true);
        if let Some(to) = self.receivers.remove(id) {
            if let Some(pace) = to.pace {
                self.pace_checks.end(id, pace);
            }
            to.close();
        }
        rest
    }

    fn end_input(&mut self, id: ConnectionId) -> Vec<I> {
        if let Some(to) = self.receivers.get_mut(id)
            && std::mem::take(&mut to.is_behind)
        {
            self.accounts.resume(id);
        }
        let resumed = self.accounts.close(id);
        self.list(resumed);
        self.senders.remove(id).map_or_else(Vec::new, Sender::close)
    }

    /// Adds items for which a reader spent `credit` bytes of credit. Returns the items if the
    /// connection has ended.
    pub fn arrived(&mut self, id: ConnectionId, items: Vec<I>, credit: u64, now: Instant) -> Vec<I> {
        let Some(sender) = self.senders.get_mut(id) else {
            return items;
        };
        sender.arrived(items, credit, now);
        self.list(Some(id));
        Vec::new()
    }

    /// Notes that a reader has ended. Its earlier items are handled first.
    pub fn ended(&mut self, id: ConnectionId, reason: EndReason) {
        if let Some(sender) = self.senders.get_mut(id) {
            sender.ended(reason);
            self.list(Some(id));
        }
    }

    /// Lists a connection for a turn, if it may take one.
    fn list(&mut self, id: Option<ConnectionId>) {
        if let Some(id) = id
            && !self.accounts.is_paused(id)
            && let Some(sender) = self.senders.get_mut(id)
            && sender.has_input()
        {
            self.turns.list(id, sender.input(), &mut sender.turn);
        }
    }

    /// Begins the next turn, and returns its connection.
    pub fn next_turn(&mut self) -> Option<ConnectionId> {
        loop {
            let id = self.turns.pop()?;
            if let Some(sender) = self.senders.get_mut(id) {
                self.turns.begin(&mut sender.turn);
                return Some(id);
            }
        }
    }

    /// How long the oldest input of a connection has waited.
    pub fn age(&self, id: ConnectionId, now: Instant) -> Option<Duration> {
        let oldest = self.senders.get(id).and_then(Sender::oldest)?;
        Some(now.saturating_duration_since(oldest))
    }

    /// The next input of the connection that has the turn. `None` if the turn is over: there is no
    /// input, the share is used up, or the connection is paused or has ended.
    pub fn take(&mut self, id: ConnectionId) -> Option<Input<I>> {
        let sender = self.senders.get_mut(id)?;
        if self.accounts.is_paused(id) || !sender.turn.has_share() {
            return None;
        }
        sender.take()
    }

    /// Puts back the rest of an item, for a further run.
    pub fn put_back(&mut self, id: ConnectionId, rest: I) {
        if let Some(sender) = self.senders.get_mut(id) {
            sender.put_back(rest);
        }
    }

    /// Charges a connection for a run of `frames` frames, for which the core took `dealing` and
    /// caused `actions` actions.
    pub fn charge(&mut self, id: ConnectionId, frames: u32, dealing: Duration, actions: u64) {
        if let Some(sender) = self.senders.get_mut(id) {
            sender.charge(frames, dealing, actions);
        }
    }

    /// Ends a turn.
    pub fn end_turn(&mut self, id: ConnectionId) {
        if let Some(sender) = self.senders.get_mut(id) {
            sender.finish_batches();
            let goes_on = sender.has_input() && !self.accounts.is_paused(id);
            let left = goes_on.then(|| sender.input());
            self.turns.end(id, left, &mut sender.turn);
        }
    }

    /// Sends an item: into the receiver's queue, or into its line, where the item is charged to `origin`.
    /// If `at_once` is set and the queue is empty, this thread itself writes to the socket.
    pub fn deliver(
        &mut self,
        origin: Origin,
        id: ConnectionId,
        item: Outgoing,
        at_once: bool,
        now: Instant,
    ) -> Delivery {
        let Some(to) = self.receivers.get_mut(id).filter(|to| !to.is_ending) else {
            return Delivery::Closed;
        };
        to.last_item_at = Some(now);
        let is_own = to.is_own(origin);
        let is_first = to.line.is_empty();
        let item = if is_first {
            match to.push_first(item, is_own, at_once, now) {
                Ok(()) => {
                    if is_own && !to.is_behind && to.has_many_answers() {
                        to.is_behind = true;
                        self.accounts.pause(id, now);
                        self.room(id, now);
                    }
                    return Delivery::Taken;
                }
                Err(PushError::Closed(_)) => return Delivery::Closed,
                Err(PushError::Full(item)) => item,
            }
        } else {
            item
        };
        let memory = item.load().memory();
        // A slow receiver pauses only itself.
        let charge = (is_own || !to.is_slow).then(|| self.accounts.charge(origin, memory, now));
        let charge = charge.flatten();
        to.line.push_back(Waiting {
            item,
            origin,
            is_charged: charge.is_some(),
            memory: charge.unwrap_or_else(|| to.outbox.budget().charge(memory)),
        });
        if is_first {
            // The writer may have sent the whole queue since it was full.
            self.move_line(id);
        }
        self.update_pace_check(id, now);
        match self.overflow(id) {
            Some(_) => Delivery::Overflows,
            None => Delivery::Taken,
        }
    }

    /// Pauses a connection, or ends a pause, as another dispatcher demands. Each pause has one end.
    pub fn pause(&mut self, id: ConnectionId, paused: bool, now: Instant) {
        if paused {
            self.accounts.pause(id, now);
        } else {
            self.resume(id);
        }
    }

    fn resume(&mut self, id: ConnectionId) {
        let resumed = self.accounts.resume(id);
        self.list(resumed);
    }

    /// The remote origins to pause, or to let go on, since the last call, in order.
    pub fn take_remote_pauses(&mut self) -> Vec<RemotePause> {
        self.accounts.take_remote_pauses()
    }

    /// Makes the items of these origins in a receiver's line loose.
    fn loosen(&mut self, id: ConnectionId, which: impl Fn(Origin) -> bool) {
        if let Some(to) = self.receivers.get_mut(id) {
            for (origin, memory) in to.line.loosen(to.outbox.budget(), which) {
                self.discharge(origin, memory);
            }
        }
    }

    fn discharge(&mut self, origin: Origin, memory: u64) {
        let resumed = self.accounts.discharge(origin, memory);
        self.list(resumed);
    }

    /// Handles the report of a receiver's writer that the queue has room.
    pub fn room(&mut self, id: ConnectionId, now: Instant) {
        self.move_line(id);
        self.update_pace_check(id, now);
    }

    /// Fills a receiver's queue from its line, and updates all that depends on its queue.
    fn move_line(&mut self, id: ConnectionId) {
        loop {
            while let Some(moved) = self.receivers.get_mut(id).and_then(Receiver::advance) {
                if let Some((origin, memory)) = moved {
                    self.discharge(origin, memory);
                }
            }
            let Some(to) = self.receivers.get_mut(id) else {
                return;
            };
            if to.is_ending && to.line.is_empty() {
                self.remove(id);
                return;
            }
            if to.line.is_empty() && to.outbox.waiting().items == 0 {
                // It has taken everything.
                to.is_slow = false;
            }
            if to.is_behind && to.has_few_answers() {
                to.is_behind = false;
                self.resume(id);
            }
            // Repeats if the writer has already sent so much that it will not report room.
            if self.receivers.get(id).is_none_or(Receiver::request_room) {
                return;
            }
        }
    }

    /// The newest loose item for a receiver, if such items take more than the other
    /// half of the receiver's limit. One such item may always wait.
    pub fn overflow(&self, id: ConnectionId) -> Option<Load> {
        self.receivers.get(id)?.overflow()
    }

    /// Drops the oldest or the newest loose item of a receiver's line.
    pub fn drop_one(&mut self, id: ConnectionId, oldest: bool) {
        if let Some(to) = self.receivers.get_mut(id) {
            to.drop_one(oldest);
        }
    }

    /// Begins or ends the measurement of a receiver's pace.
    fn update_pace_check(&mut self, id: ConnectionId, now: Instant) {
        let Some(to) = self.receivers.get_mut(id) else {
            return;
        };
        if to.needs_pace_check() {
            let checks = &mut self.pace_checks;
            to.pace
                .get_or_insert_with(|| checks.begin(id, to.is_slow, to.outbox.progress(), now));
        } else if let Some(pace) = to.pace.take() {
            self.pace_checks.end(id, pace);
        }
    }

    /// The time at which [`handle_deadline`](Self::handle_deadline) is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.pace_checks.next_deadline()
    }

    /// Checks the pace of receivers that have paused others for the patience. Returns the slow
    /// ones: their lines may exceed their limits now, see [`overflow`](Self::overflow).
    pub fn handle_deadline(&mut self, now: Instant) -> Vec<ConnectionId> {
        let mut slow = Vec::new();
        let shared_by = self.pace_checks.shared_by();
        for id in self.pace_checks.due(now) {
            let Some(to) = self.receivers.get_mut(id) else {
                continue;
            };
            let Some(pace) = to.pace.take() else {
                continue;
            };
            self.pace_checks.end(id, pace);
            to.is_slow = !pace.is_kept(to.outbox.progress(), shared_by);
            if to.is_slow {
                self.loosen(id, |origin| origin != Origin::Connection(id));
                slow.push(id);
            }
            self.room(id, now);
        }
        slow
    }

    /// True if no connection can take a turn.
    pub fn is_idle(&self) -> bool {
        self.turns.len() == 0
    }

    /// The number of connections that wait for a turn.
    pub fn with_input(&self) -> usize {
        self.turns.len()
    }

    /// True if the end of a connection's reader waits for a turn.
    pub fn has_end(&self, id: ConnectionId) -> bool {
        self.senders.get(id).is_some_and(Sender::has_end)
    }

    /// True if a connection has input left.
    pub fn has_input(&self, id: ConnectionId) -> bool {
        self.senders.get(id).is_some_and(Sender::has_items)
    }

    /// True if a connection is paused, by its items in lines or by its own answers.
    pub fn is_paused(&self, id: ConnectionId) -> bool {
        self.accounts.is_paused(id)
    }

    /// True if a connection has input and is not paused.
    pub fn may_take_a_turn(&self, id: ConnectionId) -> bool {
        let has_input = self.senders.get(id).is_some_and(Sender::has_input);
        has_input && !self.accounts.is_paused(id)
    }

    /// The number of runs of a connection that were handled.
    pub fn handled_runs(&self, id: ConnectionId) -> u64 {
        self.senders.get(id).map_or(0, Sender::runs)
    }

    /// True if items wait in the line of a receiver.
    pub fn is_waited_for(&self, id: ConnectionId) -> bool {
        self.receivers.get(id).is_some_and(|to| !to.line.is_empty())
    }

    /// The number of connections that have not sent all of their line.
    pub fn connections(&self) -> usize {
        self.receivers.len()
    }

    /// The number of connections that have ended while items that they have caused wait in lines.
    pub fn ended_in_lines(&self) -> usize {
        self.accounts.ended()
    }

    /// The state of one connection. The default if the connection is unknown.
    pub fn state(&self, id: ConnectionId) -> FlowState {
        self.receivers
            .get(id)
            .map_or_else(FlowState::default, |to| FlowState {
                paused_since: self.accounts.paused_since(id),
                without_credit_since: self.senders.get(id).and_then(Sender::waits_since),
                awaited_since: to.pace.map(|pace| pace.since),
                is_slow: to.is_slow,
                last_item_at: to.last_item_at,
            })
    }

    /// A fault in the bookkeeping, for tests and simulations: an origin that is paused for more or
    /// fewer items than wait, or a receiver with items in its line although its queue is below
    /// its mark.
    pub fn fault(&self) -> Option<String> {
        let charged = |which: &dyn Fn(Origin) -> bool| {
            let waiting = self.receivers.iter().flat_map(|(_, to)| to.line.iter());
            let waiting = waiting.filter(|waiting| waiting.is_charged && which(waiting.origin));
            waiting.fold((0, 0), |(items, memory), waiting| {
                (items + 1, memory + waiting.item.load().memory())
            })
        };
        let of_accounts = self.accounts.fault(charged);
        of_accounts.or_else(|| self.receivers.iter().find_map(|(_, to)| to.fault()))
    }
}
