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
//!                            │ hold, go                        ▼ { origin, to, item }
//!                            └─────────────── line of the receiver
//!                                                              │ below its mark
//!                                                              ▼
//!                                               queue (Outbox) ──▶ writer ──▶ socket
//! ```
//!
//! # Owners of the parts
//!
//! | part | owner | decision |
//! |---|---|---|
//! | [`Credit`] | shared by a reader and the flow | how far the reader may be ahead |
//! | `turns` | the dispatcher | which connection's input is next, and how much of it |
//! | `line` | the dispatcher | which items wait for a receiver, and which origins they hold |
//! | [`Outbox`] | shared by the dispatcher and a writer | what the writer sends; only the writer takes items out |
//!
//! # Origins
//!
//! The [`Origin`] of an item is the connection or application that caused it. An item in a line
//! holds its origin: a held connection gets no turn and its reader stops after one batch. The
//! origin is released when none of its items is in a line. A receiver whose queue is below its
//! mark holds no origin, except for the moment until its writer has reported room.
//!
//! The application cannot be held. Its items may take half of the receiver's limit in the line;
//! beyond that the core's policy ends the receiver or drops items. Items that hold an origin do
//! not count for that, so a receiver never meets the policy because of connections that it holds.
//! Only items in the line are dropped, so the writer needs no notice.
//!
//! Answers to a receiver's own frames hold only the receiver: if more than 1 MiB of them is in its
//! queue, it is not read until half of them has left.
//!
//! # Slow receivers
//!
//! A receiver that takes at least 4 MiB or 20,000 frames a second while it holds others may hold
//! them without limit. Bytes of a frame that the system has accepted in part count. A receiver
//! that takes less for the *patience* is slow: it releases the origins in its line and holds no
//! more, and its line counts against its limit. So a stuck peer delays its senders once, by the
//! patience. Receivers that hold others at the same time share the pace, because they share the
//! processors and the network of this host: each of ten has to take a tenth of it. A receiver stops
//! being slow when it has kept the pace for the patience, or has taken everything.
//!
//! # Ends
//!
//! A connection that ends with grace holds no origin any more, and its line is sent before its
//! queue is closed. A connection that ends at once loses its line.
//!
//! | bound | limit | when full |
//! |---|---|---|
//! | input of a connection | its credit: 1 MiB, less if memory is short, but always one batch | its reader waits, so its peer has to wait |
//! | an unfinished item | 16 KiB of each connection's own; more is reserved in the budget of received bytes, half of it for each certificate | the connection is not read until the memory is granted, in order of arrival; the first in line always gets it. While others wait, a connection that holds a reservation and makes no progress is ended |
//! | a receiver's queue | its mark: half of the receiver's limit, or its share of the budget, and one item | items join the line |
//! | answers to itself in a receiver's queue | 1 MiB, or half of the mark | the connection is not read |
//! | items in a line that hold their origin | one turn of each connection; of all distant origins, and of connections that have ended, 16 MiB, or the receiver's limit if that is more | the origins are held; later items of distant origins do not hold, and neither do those of connections that end then |
//! | items in a line that hold no origin: of the application, or for a slow receiver | the other half of the receiver's limit, or its share of the budget; one item may always wait | the core's policy |

mod connection;
mod credit;
mod line;
mod pace;
mod state;
#[cfg(test)]
mod tests;
mod turns;
mod unfinished;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::connection::{Batch, FlowConnection};
pub use self::credit::Credit;
use self::line::Waiting;
use self::pace::PaceChecks;
pub use self::state::FlowState;
use self::turns::Turns;
pub(crate) use self::unfinished::UNRESERVED;
pub use self::unfinished::{NextRead, Unfinished};
use crate::end::EndReason;
use crate::outbox::{Limits, Outbox, PushError};
use crate::stream::{Load, Outgoing};
use crate::table::{ConnectionId, Table};

/// The default patience: the time for which a receiver below the pace may hold others. A healthy
/// process on a busy machine gets a processor sooner.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// The bytes of its own answers that may wait for a connection before it is held.
const MOST_ANSWERS: u64 = 1 << 20;

/// A line is long if it takes more memory than the receiver's limit, and more than this, which is the
/// most that can be on a link: 8 MiB in its queue, the socket buffers, and what its reader is ahead.
///
/// Items of a distant origin that are on their way when the HOLD is sent still arrive. They hold their
/// origin until the line is long. Otherwise a receiver with a small limit would be ended for frames that
/// were sent before the HOLD.
const LONG_LINE: u64 = 16 << 20;

/// The bytes by which a queue drains below its mark before its line moves: several batches of its writer.
/// So the dispatcher gets one event for several batches, and a thousand held senders are released
/// in groups.
const ROOM_STEP: u64 = 1 << 20;

/// The time that the core should take for one run of frames. A turn can end only between runs.
const RUN_TARGET: Duration = Duration::from_millis(1);
/// The nanoseconds that each received byte takes of a connection's share. The dispatcher
/// spends no time on a byte, but other threads receive, decrypt, encrypt and send it on the
/// same processors.
const BYTE_COST: u64 = 4;
/// The nanoseconds that each action of a run takes of the share, after the first: putting an item
/// into a queue, and perhaps waking its writer. The first action is free, because waking a writer
/// takes as long for a lone frame as for a batch of thousands. Otherwise a connection that
/// sends a thousand single frames a second would use up its share with that alone.
const ACTION_COST: u64 = 1_000;
/// The number of frames in a connection's first run. If each takes a third of a millisecond, the
/// run takes a few milliseconds.
const FIRST_RUN: u32 = 8;
/// The maximum number of frames of a run: a batch of frames without payload.
const LONGEST_RUN: u32 = 1 << 20;

/// The cause of an item. An item that waits in a line holds its origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The frames of a connection.
    Connection(ConnectionId),
    /// The frames of a connection of another dispatcher, which arrived through this dispatcher's
    /// connection `link`. To hold it, a HOLD is sent to that dispatcher, see
    /// [`Flow::take_distant`]; the link itself is not held.
    Distant {
        /// The connection between the two dispatchers.
        link: ConnectionId,
        /// The number of the origin at the other dispatcher.
        number: u64,
    },
    /// The application by itself: a timer, or a call of another thread. It is never held.
    #[default]
    Application,
}

/// The result of [`Flow::deliver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The item is in the receiver's queue or in its line.
    Taken,
    /// As `Taken`, but the line exceeds the receiver's limit: see [`Flow::overflow`].
    Overflows,
    /// The receiver is closed or unknown, and the item is dropped.
    Gone,
}

/// The next input of a connection.
#[derive(Debug)]
pub enum Input<I> {
    /// An item, of which the core should handle at most this many frames.
    Item(I, u32),
    /// The reader has ended, and all items before its end are handled.
    End(EndReason),
}

/// The flow between all connections of one dispatcher. `I` is the type of received items.
#[derive(Debug)]
pub struct Flow<I> {
    rows: Table<FlowConnection<I>>,
    patience: Duration,
    turns: Turns,
    pace_checks: PaceChecks,
    /// The number of items in lines that hold each distant origin.
    distant: HashMap<(ConnectionId, u64), usize>,
    /// The distant origins to hold or release, in order.
    distant_changes: Vec<DistantChange>,
}

/// A distant origin is to be held, or released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DistantChange {
    /// The connection through which its frames arrive.
    pub link: ConnectionId,
    /// Its number at the other dispatcher.
    pub number: u64,
    /// True to hold it, false to release it.
    pub waits: bool,
}

impl<I> Flow<I> {
    /// A flow without connections.
    pub fn new(patience: Duration) -> Self {
        Self {
            rows: Table::default(),
            patience,
            turns: Turns::default(),
            pace_checks: PaceChecks::default(),
            distant: HashMap::new(),
            distant_changes: Vec::new(),
        }
    }

    /// Adds a connection. `limits` bound its queue and its line. Both count in the budget of
    /// `outbox`.
    pub fn insert(&mut self, id: ConnectionId, outbox: Outbox, limits: Limits, credit: Arc<Credit>) {
        let row = FlowConnection::new(id, outbox, limits, credit);
        self.rows.insert(id, row);
    }

    /// The number of connections that wait for a turn.
    pub fn with_input(&self) -> usize {
        self.turns.list.len()
    }

    /// Ends a connection with grace: its line holds no origin any more, and is sent before its
    /// queue is closed. Returns its input that was not handled. Its items in the lines of other
    /// connections are still delivered.
    pub fn end(&mut self, id: ConnectionId, now: Instant) -> Vec<I> {
        let rest = self.end_input(id);
        if let Some(row) = self.rows.get_mut(id) {
            row.is_ending = true;
            let held = row.line.release(|_| true);
            self.release(held);
            self.move_line(id);
            self.update_pace_check(id, now);
        }
        rest
    }

    /// Removes a connection at once and drops its line. Otherwise as [`end`](Self::end).
    pub fn remove(&mut self, id: ConnectionId) -> Vec<I> {
        let rest = self.end_input(id);
        let Some(mut row) = self.rows.remove(id) else {
            return rest;
        };
        if let Some(pace) = row.pace {
            self.pace_checks.remove(id, pace);
        }
        let held = row.line.release(|_| true);
        for waiting in row.line.items.iter() {
            // Never in the queue, so the writer cannot count it.
            row.outbox.count_late(waiting.item.load());
        }
        row.outbox.close();
        self.release(held);
        rest
    }

    fn end_input(&mut self, id: ConnectionId) -> Vec<I> {
        let Some(row) = self.rows.get_mut(id) else {
            return Vec::new();
        };
        row.end = None;
        let mut rest = Vec::new();
        for batch in row.input.drain(..) {
            row.credit.grant(batch.bytes);
            rest.extend(batch.items);
        }
        row.credit.end();
        if row.waiting > 0 {
            self.let_go(id);
        }
        rest
    }

    /// Lets items of a connection that ends hold nobody in lines that are long. There they count against the
    /// receiver's limit from now on. Otherwise clients that send and then replace their own session again and
    /// again could lengthen the line of a receiver without end.
    fn let_go(&mut self, id: ConnectionId) {
        // The pace of each receiver that holds others is measured, so there are no others.
        for to in self.pace_checks.receivers() {
            if self
                .rows
                .get(id)
                .is_none_or(|row| row.waiting <= row.held_elsewhere)
            {
                break;
            }
            if let Some(row) = self.rows.get_mut(to)
                && row.has_long_line()
            {
                let items = row.line.release(|origin| origin == Origin::Connection(id));
                self.release(items);
                self.end_pace_check(to);
            }
        }
    }

    /// Adds items for which a reader spent `credit` bytes of credit. Returns the items if the
    /// connection has ended.
    pub fn arrived(&mut self, id: ConnectionId, items: Vec<I>, credit: u64) -> Vec<I> {
        let row = self.rows.get_mut(id).filter(|row| !row.is_ending);
        let Some(row) = row else {
            return items;
        };
        row.input.push_back(Batch {
            bytes: credit,
            items: items.into(),
        });
        self.list(id);
        Vec::new()
    }

    /// Notes that a reader has ended. Its earlier items are handled first.
    pub fn ended(&mut self, id: ConnectionId, reason: EndReason) {
        if let Some(row) = self.rows.get_mut(id).filter(|row| !row.is_ending) {
            row.end = Some(reason);
            self.list(id);
        }
    }

    /// Lists a connection for a turn, if it may take one.
    fn list(&mut self, id: ConnectionId) {
        if let Some(row) = self.rows.get_mut(id)
            && !row.is_held()
            && row.has_input()
        {
            self.turns.list(id, &mut row.turn);
        }
    }

    /// True if no connection can take a turn.
    pub fn is_idle(&self) -> bool {
        self.turns.list.is_empty()
    }

    /// Begins the next turn, and returns its connection.
    pub fn next_turn(&mut self) -> Option<ConnectionId> {
        self.turns.next(&mut self.rows)
    }

    /// The next input of the connection that has the turn. `None` if the turn is over: there is no
    /// input, the share is used up, or the connection is held or has ended.
    pub fn take(&mut self, id: ConnectionId) -> Option<Input<I>> {
        let row = self.rows.get_mut(id)?;
        if row.is_held() || !row.turn.has_share() {
            return None;
        }
        while let Some(batch) = row.input.front_mut() {
            if let Some(item) = batch.items.pop_front() {
                return Some(Input::Item(item, row.run));
            }
            row.finish_batch();
        }
        row.end.take().map(Input::End)
    }

    /// True if the end of a connection's reader waits for a turn.
    pub fn has_end(&self, id: ConnectionId) -> bool {
        self.rows.get(id).is_some_and(|row| row.end.is_some())
    }

    /// True if a connection has input left.
    pub fn has_input(&self, id: ConnectionId) -> bool {
        let Some(row) = self.rows.get(id) else {
            return false;
        };
        row.end.is_some() || row.input.iter().any(|batch| !batch.items.is_empty())
    }

    /// Puts back the rest of an item, for a further run.
    pub fn put_back(&mut self, id: ConnectionId, rest: I) {
        if let Some(batch) = self.rows.get_mut(id).and_then(|row| row.input.front_mut()) {
            batch.items.push_front(rest);
        }
    }

    /// Charges a connection for a run of `frames` frames, for which the core took `dealing` and
    /// caused `actions` actions.
    pub fn charge(&mut self, id: ConnectionId, frames: u32, dealing: Duration, actions: u64) {
        let Some(row) = self.rows.get_mut(id) else {
            return;
        };
        // A run with one action costs the same however few frames it has, so runs that are
        // shorter than necessary would only repeat that cost.
        if dealing > RUN_TARGET && frames > 1 {
            let fits = f64::from(frames) * RUN_TARGET.as_secs_f64() / dealing.as_secs_f64();
            // It is between 0 and `frames`.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let fits = fits as u32;
            row.run = fits.max(1);
        } else if frames >= row.run && dealing < RUN_TARGET / 4 {
            row.run = row.run.saturating_mul(2).min(LONGEST_RUN);
        }
        row.runs += 1;
        let took = u64::try_from(dealing.as_nanos()).unwrap_or(u64::MAX);
        let further = actions.saturating_sub(1).saturating_mul(ACTION_COST);
        // A nanosecond for each frame, because many frames may take no measurable time.
        let used = took.saturating_add(further).saturating_add(frames.into());
        row.turn.charge(used);
    }

    /// Ends a turn.
    pub fn end_turn(&mut self, id: ConnectionId) {
        let Some(row) = self.rows.get_mut(id) else {
            return;
        };
        // A batch without items is handled: its credit is granted now, not in the next turn.
        while row.input.front().is_some_and(|batch| batch.items.is_empty()) {
            row.finish_batch();
        }
        let goes_on = row.has_input() && !row.is_held();
        self.turns.end(id, &mut row.turn, goes_on);
    }

    /// Sends an item: into the receiver's queue, or into its line, where the item holds `origin`.
    /// If `at_once` is set and the queue is empty, this thread itself writes to the socket.
    pub fn deliver(
        &mut self,
        origin: Origin,
        to: ConnectionId,
        item: Outgoing,
        at_once: bool,
        now: Instant,
    ) -> Delivery {
        let row = self.rows.get_mut(to).filter(|row| !row.is_ending);
        let Some(row) = row else {
            return Delivery::Gone;
        };
        row.last_item_at = Some(now);
        let is_own = origin == Origin::Connection(to);
        let item = match row.line.items.is_empty() {
            true => match row.push(item, is_own, at_once) {
                Ok(()) => {
                    if is_own {
                        self.hold_for_answers(to, now);
                    }
                    return Delivery::Taken;
                }
                Err(PushError::Closed(_)) => return Delivery::Gone,
                Err(PushError::Full(item)) => item,
            },
            false => item,
        };
        // A connection that has ended sends no more anyway.
        let can_be_held = matches!(origin, Origin::Connection(from)
            if self.rows.get(from).is_some_and(|row| !row.is_ending));
        let Some(row) = self.rows.get_mut(to) else {
            return Delivery::Gone;
        };
        // The line counts in the same budget as the queue, which bounds the memory of both.
        row.outbox.budget().take(item.load().memory());
        // In a long line, items of distant origins and of connections that have ended do not hold, so that
        // the policy bounds them.
        let is_bounded = can_be_held || !row.has_long_line();
        // A slow receiver holds only itself.
        let holds = origin != Origin::Application && (is_own || !row.is_slow) && is_bounded;
        let is_first = row.line.items.is_empty();
        row.line.push_back(Waiting { item, origin, holds });
        if holds {
            self.hold(origin, now);
        }
        if is_first {
            // The writer may have sent the whole queue since it was full.
            self.move_line(to);
        }
        self.update_pace_check(to, now);
        match self.overflow(to) {
            Some(_) => Delivery::Overflows,
            None => Delivery::Taken,
        }
    }

    /// Holds a connection that has too many of its own answers in its queue.
    fn hold_for_answers(&mut self, id: ConnectionId, now: Instant) {
        let Some(row) = self.rows.get_mut(id) else {
            return;
        };
        let most = row.most_answers();
        if row.answers > most && row.answers() > most {
            row.is_behind = true;
            row.held_since.get_or_insert(now);
            row.credit.hold(true);
            self.room(id, now);
        }
    }

    /// Counts one more item in a line that holds this origin.
    fn hold(&mut self, origin: Origin, now: Instant) {
        match origin {
            Origin::Connection(id) => {
                if let Some(row) = self.rows.get_mut(id) {
                    row.waiting += 1;
                    row.held_since.get_or_insert(now);
                    row.credit.hold(true);
                }
            }
            Origin::Distant { link, number } => {
                let waiting = self.distant.entry((link, number)).or_default();
                *waiting += 1;
                if *waiting == 1 {
                    let waits = true;
                    self.distant_changes.push(DistantChange { link, number, waits });
                }
            }
            Origin::Application => {}
        }
    }

    /// Holds a connection, or releases it, as another dispatcher demands. Each hold has one
    /// release.
    pub fn hold_for_another(&mut self, id: ConnectionId, held: bool, now: Instant) {
        let Some(row) = self.rows.get_mut(id) else {
            return;
        };
        match held {
            true => {
                row.held_elsewhere += 1;
                self.hold(Origin::Connection(id), now);
            }
            false if row.held_elsewhere > 0 => {
                row.held_elsewhere -= 1;
                self.release(vec![Origin::Connection(id)]);
            }
            false => {}
        }
    }

    /// The distant origins to hold or release since the last call, in order.
    pub fn take_distant(&mut self) -> Vec<DistantChange> {
        std::mem::take(&mut self.distant_changes)
    }

    /// Counts that for each of these origins one item holds it no longer. An origin that no
    /// item holds goes on.
    fn release(&mut self, held: Vec<Origin>) {
        for origin in held {
            match origin {
                Origin::Connection(id) => {
                    if let Some(row) = self.rows.get_mut(id) {
                        row.waiting = row.waiting.saturating_sub(1);
                        self.resume(id);
                    }
                }
                Origin::Distant { link, number } => {
                    if let Some(waiting) = self.distant.get_mut(&(link, number)) {
                        *waiting -= 1;
                        if *waiting == 0 {
                            self.distant.remove(&(link, number));
                            let waits = false;
                            self.distant_changes.push(DistantChange { link, number, waits });
                        }
                    }
                }
                Origin::Application => {}
            }
        }
    }

    fn resume(&mut self, id: ConnectionId) {
        if let Some(row) = self.rows.get_mut(id)
            && !row.is_held()
        {
            row.held_since = None;
            row.credit.hold(false);
            self.list(id);
        }
    }

    /// Handles the report of a receiver's writer that the queue has room.
    pub fn room(&mut self, to: ConnectionId, now: Instant) {
        self.move_line(to);
        self.update_pace_check(to, now);
    }

    /// Fills a receiver's queue from its line, and updates all that depends on its queue.
    fn move_line(&mut self, to: ConnectionId) {
        loop {
            while let Some(row) = self.rows.get_mut(to)
                && let Some(Waiting { item, origin, holds }) = row.line.pop_front()
            {
                let load = item.load();
                let is_own = origin == Origin::Connection(to);
                match row.push(item, is_own, false) {
                    Ok(()) => {}
                    Err(PushError::Full(item)) => {
                        row.line.push_front(Waiting { item, origin, holds });
                        break;
                    }
                    Err(PushError::Closed(_)) => row.outbox.count_late(load),
                }
                row.outbox.budget().give(load.memory());
                if holds {
                    self.release(vec![origin]);
                }
            }
            let Some(row) = self.rows.get_mut(to) else {
                return;
            };
            if row.is_ending && row.line.items.is_empty() {
                self.remove(to);
                return;
            }
            if row.line.items.is_empty() && row.outbox.waiting().items == 0 {
                // It has taken everything.
                row.is_slow = false;
            }
            let low = row.most_answers() / 2;
            if row.is_behind && (row.answers() <= low || row.outbox.is_closed()) {
                row.is_behind = false;
                self.resume(to);
            }
            // Repeats if the writer has already sent so much that it will not report room.
            if self.rows.get(to).is_none_or(|row| row.request_room()) {
                return;
            }
        }
    }

    /// The newest item for a receiver that holds no origin, if such items take more than the other
    /// half of the receiver's limit. One such item may always wait.
    pub fn overflow(&self, to: ConnectionId) -> Option<Load> {
        let row = self.rows.get(to)?;
        let loose = row.line.loose;
        let is_over = loose.memory() > row.mark() || loose.frames > row.limits.frames / 2;
        // Asked first, because the newest one may be behind thousands that hold their origin.
        (is_over && loose.items > 1).then(|| row.line.newest_loose())?
    }

    /// Drops the oldest or the newest item of a receiver's line that holds no origin.
    pub fn drop_one(&mut self, to: ConnectionId, oldest: bool) {
        if let Some(row) = self.rows.get_mut(to)
            && let Some(load) = row.line.drop_loose(oldest)
        {
            row.outbox.budget().give(load.memory());
            row.outbox.count_refused(load);
        }
    }
}
