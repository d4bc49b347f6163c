//! Flow control: who may send to whom, and who has to wait.
//!
//! Everything that goes to a receiver joins that receiver's one line, whatever caused it:
//! forwarded frames, answers, and what the application sends from a frame, a timer or a
//! call. The queue of the receiver's writer is filled from the front of the line, and only
//! while the queue is below its mark. So what is sent to a receiver leaves in the order in
//! which it was sent.
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
//! # Who owns what
//!
//! | part | owner | what it decides |
//! |---|---|---|
//! | [`Credit`] | shared by a reader and the flow | how far the reader may be ahead |
//! | `turns` | the dispatcher | whose input is dealt with next, and how much of it |
//! | `line` | the dispatcher | what waits for a receiver, and who waits with it |
//! | [`Outbox`] | shared by the dispatcher and a writer | what the writer sends; only the writer takes items out |
//!
//! # Origins
//!
//! An [`Origin`] is who caused an item. While an item waits in a line, its origin waits with
//! it: a connection gets no turn and is not read beyond a batch. It goes on when none of its
//! items wait in any line. Nobody waits for a receiver whose queue is below its mark, except
//! for the moment until the writer has told the dispatcher so.
//!
//! The application cannot wait. What it sends may take half of the receiver's limit while it
//! waits in the line, and beyond that the core's policy decides: it ends the receiver, or has
//! items dropped. What others wait with does not count, so no receiver meets the policy for
//! what they hoard. Only items in the line are dropped, so the writer needs no notice.
//!
//! Answers to a receiver itself are its own affair: beyond 1 MiB in its queue it is not
//! read until it has taken half of them. They do not hold others.
//!
//! # Slow receivers
//!
//! A receiver that takes at least 4 MiB or 20,000 frames a second while others wait for it
//! may take as long as it needs. If the system has accepted only a part of a frame, the
//! bytes of that part count. A receiver that takes less for as long as the *patience* is
//! slow: nobody waits for it any more, and what its line holds counts against its limit. So
//! one stuck peer delays its senders once, by the patience, and no other connection. It
//! stays slow until it has kept the pace for as long, or has taken everything.
//!
//! # Ends
//!
//! A connection that ends with grace gets what waits in its line before its queue is closed,
//! and nobody waits for it any more. One that ends at once loses its line.
//!
//! | bound | how much | when full |
//! |---|---|---|
//! | input of a connection | its credit: 1 MiB, less if memory is short, but always one batch | its reader waits, and with it its peer |
//! | an unfinished item | 16 KiB of each connection's own; its announced length beyond that is reserved in the budget of received bytes, half of it for each certificate | the connection is not read until there is memory, in the order of arrival. The first in line always gets it. Whoever has memory that others wait for is ended if it does not go on |
//! | a receiver's queue | its mark: half of the receiver's limit, or its share of the budget, and one item | items join the line |
//! | answers to itself in a receiver's queue | 1 MiB, or half of the mark | the connection is not read |
//! | what others wait with in a line | one turn of each connection; of all distant origins 16 MiB, or the receiver's limit if that is more | those connections wait; beyond it nobody waits with what comes late |
//! | what nobody waits with in a line: of the application, or for a slow receiver | the other half of the receiver's limit, or its share of the budget; one item may always wait | the core's policy |

mod credit;
mod line;
mod state;
#[cfg(test)]
mod tests;
mod turns;
mod unfinished;
mod way;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use self::credit::Credit;
use self::line::Waiting;
pub use self::state::FlowState;
use self::turns::Turns;
pub(crate) use self::unfinished::OWN;
pub use self::unfinished::{Look, Unfinished};
use self::way::{Batch, Pace, Way};
use crate::end::EndReason;
use crate::host::after;
use crate::outbox::{Limits, Outbox, PushError};
use crate::stream::{Load, Outgoing};
use crate::table::{ConnectionId, Table};

/// How long others wait for a receiver that does not keep the pace, by default. A healthy
/// process on a busy machine gets a processor sooner than that.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// The pace, for each second, at which a receiver is worth waiting for. One of the two is
/// enough.
const PACE_BYTES: f64 = (4 << 20) as f64;
const PACE_FRAMES: f64 = 20_000.0;
/// How often, at most, the pace of a slow receiver is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// How many bytes of its own answers may wait for a connection that is still read.
const ANSWERS: u64 = 1 << 20;

/// What a distant origin has under way when it is told to wait still arrives. A line takes as
/// much of that as the receiver may have in all, but at least what may be on a link: its queue
/// at the other dispatcher, 8 MiB there, what the sockets hold, and what its reader is ahead.
/// A receiver with a small limit would otherwise be ended for what others had sent already.
const UNDER_WAY: u64 = 16 << 20;

/// How far a queue drains below its mark before its line moves on: several batches of its
/// writer. So the dispatcher is not told for every batch, and a thousand senders in line
/// wake up by the dozen, not all at once.
const STEP: u64 = 1 << 20;

/// How long the core should take for one run of frames. Turns are looked at between runs.
const RUN: Duration = Duration::from_millis(1);
/// What each received byte costs of a connection's share, in nanoseconds. The dispatcher
/// spends no such time on it, but other threads receive, decrypt, encrypt and send the byte
/// on the same processors.
const BYTE: u64 = 4;
/// What each action of a run costs beyond the first, in nanoseconds: to put an item into a
/// queue, and perhaps to wake its writer. The first is free and none is measured, because to
/// wake a writer takes as long for a lone frame as for a batch of thousands. A connection that
/// sends a thousand single frames a second would have used up its share with that alone.
const ACTION: u64 = 1_000;
/// The frames of a connection's first run. Frames that take a third of a millisecond each
/// are a first run of a few milliseconds.
const FIRST_RUN: u32 = 8;
/// The most frames of a run: a batch of frames without payload.
const LONGEST_RUN: u32 = 1 << 20;

/// Who causes an item. What holds an item back holds its origin back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The frames of a connection.
    Connection(ConnectionId),
    /// The frames of a connection of another dispatcher, which came through this one's
    /// connection `link`. That dispatcher is told to hold its connection, see
    /// [`Flow::take_distant`]; everything else of the link goes on.
    Distant {
        /// The connection between the two dispatchers.
        link: ConnectionId,
        /// The number of the origin at the other dispatcher.
        number: u64,
    },
    /// The application by itself: a timer, a call of another thread. It cannot wait.
    #[default]
    Application,
}

/// The result of [`Flow::deliver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The item is in the receiver's queue, or waits in its line.
    Taken,
    /// As `Taken`, but more waits than the receiver may have: see [`Flow::overflow`].
    Overflows,
    /// The receiver is closed or gone, and the item is dropped.
    Gone,
}

/// The next input of a connection.
#[derive(Debug)]
pub enum Input<I> {
    /// An item that the reader found, of which this many frames should be dealt with.
    Item(I, u32),
    /// The reader has come to an end, and all items before it are dealt with.
    End(EndReason),
}

/// The flow between all connections of one dispatcher. Readers find items of type `I`.
#[derive(Debug)]
pub struct Flow<I> {
    ways: Table<Way<I>>,
    patience: Duration,
    turns: Turns,
    /// When the pace of which receiver is looked at, in the order of time.
    looks: BTreeSet<(Instant, ConnectionId)>,
    /// How many items of each distant origin wait in lines, and hold it.
    distant: HashMap<(ConnectionId, u64), usize>,
    /// The distant origins that have begun to wait, or may go on, in order.
    distant_changes: Vec<DistantChange>,
}

/// A distant origin has to wait now, or may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DistantChange {
    /// The connection through which its frames come.
    pub link: ConnectionId,
    /// Its number at the other dispatcher.
    pub number: u64,
    /// Whether it has to wait.
    pub waits: bool,
}

impl<I> Flow<I> {
    /// A flow without connections.
    pub fn new(patience: Duration) -> Self {
        Self {
            ways: Table::default(),
            patience,
            turns: Turns::default(),
            looks: BTreeSet::new(),
            distant: HashMap::new(),
            distant_changes: Vec::new(),
        }
    }

    /// A connection begins. `limits` are for what may wait for it. Its line counts in the budget
    /// of its queue.
    pub fn insert(&mut self, id: ConnectionId, outbox: Outbox, limits: Limits, credit: Arc<Credit>) {
        let way = Way::new(id, outbox, limits, credit);
        self.ways.insert(id, way);
    }

    /// How many connections wait for a turn.
    pub fn with_input(&self) -> usize {
        self.turns.len()
    }

    /// Ends a connection with grace: what waits in its line is sent before its queue is
    /// closed, and nobody waits for that. Returns its input that was not dealt with. Its
    /// items in the lines of others are still delivered.
    pub fn end(&mut self, id: ConnectionId, now: Instant) -> Vec<I> {
        let rest = self.end_input(id);
        if let Some(way) = self.ways.get_mut(id) {
            way.is_ending = true;
            let held = way.line.let_go(true);
            self.let_go(held);
            self.move_line(id);
            self.mind_pace(id, now);
        }
        rest
    }

    /// Removes a connection at once, and drops what waits in its line. Otherwise as
    /// [`end`](Self::end).
    pub fn remove(&mut self, id: ConnectionId) -> Vec<I> {
        let rest = self.end_input(id);
        let Some(mut way) = self.ways.remove(id) else {
            return rest;
        };
        if let Some(pace) = way.pace {
            self.looks.remove(&(pace.look, id));
        }
        let held = way.line.let_go(true);
        for waiting in way.line.iter() {
            way.outbox.count_late(waiting.item.load());
        }
        way.outbox.close();
        self.let_go(held);
        rest
    }

    fn end_input(&mut self, id: ConnectionId) -> Vec<I> {
        let Some(way) = self.ways.get_mut(id) else {
            return Vec::new();
        };
        way.end = None;
        let mut rest = Vec::new();
        for batch in way.input.drain(..) {
            way.credit.grant(batch.bytes);
            rest.extend(batch.items);
        }
        way.credit.end();
        rest
    }

    /// Adds items that a reader found, and for which it spent so much credit. Returns them
    /// if the connection has ended.
    pub fn arrived(&mut self, id: ConnectionId, items: Vec<I>, credit: u64) -> Vec<I> {
        let way = self.ways.get_mut(id).filter(|way| !way.is_ending);
        let Some(way) = way else { return items };
        way.input.push_back(Batch {
            bytes: credit,
            items: items.into(),
        });
        self.list(id);
        Vec::new()
    }

    /// Notes that a reader has come to an end. Its earlier items come first.
    pub fn ended(&mut self, id: ConnectionId, reason: EndReason) {
        if let Some(way) = self.ways.get_mut(id).filter(|way| !way.is_ending) {
            way.end = Some(reason);
            self.list(id);
        }
    }

    /// Lists a connection for a turn, if it may take one.
    fn list(&mut self, id: ConnectionId) {
        if let Some(way) = self.ways.get_mut(id)
            && !way.is_held()
            && way.has_input()
        {
            self.turns.list(id, &mut way.turn);
        }
    }

    /// Whether no connection can take a turn.
    pub fn is_idle(&self) -> bool {
        self.turns.is_empty()
    }

    /// The connection that takes the next turn.
    pub fn next_turn(&mut self) -> Option<ConnectionId> {
        self.turns.next(&mut self.ways)
    }

    /// The next input of the connection that takes a turn. `None` if its turn is over: it has
    /// no input, has used up its share, has to wait for a receiver, or has left.
    pub fn take(&mut self, id: ConnectionId) -> Option<Input<I>> {
        let way = self.ways.get_mut(id)?;
        if way.is_held() || !way.turn.has_share() {
            return None;
        }
        while let Some(batch) = way.input.front_mut() {
            if let Some(item) = batch.items.pop_front() {
                return Some(Input::Item(item, way.run));
            }
            way.finish_batch();
        }
        way.end.take().map(Input::End)
    }

    /// Whether the end of a connection's reader still waits for its turn.
    pub fn has_end(&self, id: ConnectionId) -> bool {
        self.ways.get(id).is_some_and(|way| way.end.is_some())
    }

    /// Whether a connection has input left.
    pub fn has_input(&self, id: ConnectionId) -> bool {
        let Some(way) = self.ways.get(id) else {
            return false;
        };
        way.end.is_some() || way.input.iter().any(|batch| !batch.items.is_empty())
    }

    /// Puts back the rest of an item, which needs another run.
    pub fn put_back(&mut self, id: ConnectionId, rest: I) {
        if let Some(batch) = self.ways.get_mut(id).and_then(|way| way.input.front_mut()) {
            batch.items.push_front(rest);
        }
    }

    /// Charges a connection for a run of so many frames: the core took `dealing` for them, and
    /// they caused so many actions.
    pub fn charge(&mut self, id: ConnectionId, frames: u32, dealing: Duration, actions: u64) {
        let Some(way) = self.ways.get_mut(id) else { return };
        // The actions of a run cost the same however many frames it has, so shorter runs
        // would only repeat them.
        if dealing > RUN && frames > 1 {
            let fits = f64::from(frames) * RUN.as_secs_f64() / dealing.as_secs_f64();
            // It is between 0 and `frames`.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let fits = fits as u32;
            way.run = fits.max(1);
        } else if frames >= way.run && dealing < RUN / 4 {
            way.run = way.run.saturating_mul(2).min(LONGEST_RUN);
        }
        way.runs += 1;
        let took = u64::try_from(dealing.as_nanos()).unwrap_or(u64::MAX);
        let further = actions.saturating_sub(1).saturating_mul(ACTION);
        let used = took.saturating_add(further).saturating_add(frames.into());
        way.turn.charge(used);
    }

    /// Ends a turn.
    pub fn end_turn(&mut self, id: ConnectionId) {
        let Some(way) = self.ways.get_mut(id) else { return };
        // Empty batches are dealt with: their credit goes back now, not with the next
        // turn.
        while way.input.front().is_some_and(|batch| batch.items.is_empty()) {
            way.finish_batch();
        }
        let goes_on = way.has_input() && !way.is_held();
        self.turns.end(id, &mut way.turn, goes_on);
    }

    /// Sends an item: into the receiver's queue, or into its line, where `origin` waits with
    /// it. With `at_once` this thread itself sends the item if the queue is empty.
    pub fn deliver(
        &mut self,
        origin: Origin,
        to: ConnectionId,
        item: Outgoing,
        at_once: bool,
        now: Instant,
    ) -> Delivery {
        let way = self.ways.get_mut(to).filter(|way| !way.is_ending);
        let Some(way) = way else { return Delivery::Gone };
        way.last_item_at = Some(now);
        let is_own = origin == Origin::Connection(to);
        let item = match way.line.is_empty() {
            true => match way.push(item, is_own, at_once) {
                Ok(()) => {
                    if is_own {
                        self.mind_answers(to, now);
                    }
                    return Delivery::Taken;
                }
                Err(PushError::Closed(_)) => return Delivery::Gone,
                Err(PushError::Full(item)) => item,
            },
            false => item,
        };
        way.outbox.budget().take(item.load().memory());
        let most_late = way.limits.bytes.max(UNDER_WAY);
        let is_bounded = !matches!(origin, Origin::Distant { .. }) || way.line.memory() <= most_late;
        let holds = origin != Origin::Application && (is_own || !way.is_slow) && is_bounded;
        let is_first = way.line.is_empty();
        way.line.push_back(Waiting { item, origin, holds });
        if holds {
            self.hold(origin, now);
        }
        if is_first {
            // The writer may have sent the whole queue since it was full.
            self.move_line(to);
        }
        self.mind_pace(to, now);
        match self.overflow(to) {
            Some(_) => Delivery::Overflows,
            None => Delivery::Taken,
        }
    }

    /// Holds a connection if too many of its own answers are in its queue.
    fn mind_answers(&mut self, id: ConnectionId, now: Instant) {
        let Some(way) = self.ways.get_mut(id) else { return };
        let most = way.most_answers();
        if way.answers > most && way.answers() > most {
            way.is_behind = true;
            way.held_since.get_or_insert(now);
            way.credit.hold(true);
            self.move_line(id);
        }
    }

    /// Has an origin wait with one more item.
    fn hold(&mut self, origin: Origin, now: Instant) {
        match origin {
            Origin::Connection(id) => {
                if let Some(way) = self.ways.get_mut(id) {
                    way.waiting += 1;
                    way.held_since.get_or_insert(now);
                    way.credit.hold(true);
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

    /// Holds a connection, or lets it go on, because another dispatcher says so. Each hold is
    /// let go once.
    pub fn hold_for_another(&mut self, id: ConnectionId, held: bool, now: Instant) {
        let Some(way) = self.ways.get_mut(id) else { return };
        match held {
            true => {
                way.held_elsewhere += 1;
                self.hold(Origin::Connection(id), now);
            }
            false if way.held_elsewhere > 0 => {
                way.held_elsewhere -= 1;
                self.let_go(vec![Origin::Connection(id)]);
            }
            false => {}
        }
    }

    /// The changes of distant origins since the last call, in order.
    pub fn take_distant(&mut self) -> Vec<DistantChange> {
        std::mem::take(&mut self.distant_changes)
    }

    /// Notes that these items wait no more, or hold nobody any more. Origins without other
    /// items that wait go on.
    fn let_go(&mut self, held: Vec<Origin>) {
        for origin in held {
            match origin {
                Origin::Connection(id) => {
                    if let Some(way) = self.ways.get_mut(id) {
                        way.waiting = way.waiting.saturating_sub(1);
                        self.go_on(id);
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

    fn go_on(&mut self, id: ConnectionId) {
        if let Some(way) = self.ways.get_mut(id)
            && !way.is_held()
        {
            way.held_since = None;
            way.credit.hold(false);
            self.list(id);
        }
    }

    /// Notes that a receiver's writer has sent something.
    pub fn room(&mut self, to: ConnectionId, now: Instant) {
        self.move_line(to);
        self.mind_pace(to, now);
    }

    /// Fills a receiver's queue from its line, and does what else was waited for.
    fn move_line(&mut self, to: ConnectionId) {
        loop {
            while let Some(way) = self.ways.get_mut(to)
                && let Some(Waiting { item, origin, holds }) = way.line.pop_front()
            {
                let load = item.load();
                let is_own = origin == Origin::Connection(to);
                match way.push(item, is_own, false) {
                    Ok(()) => {}
                    Err(PushError::Full(item)) => {
                        way.line.push_front(Waiting { item, origin, holds });
                        break;
                    }
                    Err(PushError::Closed(_)) => way.outbox.count_late(load),
                }
                way.outbox.budget().give(load.memory());
                if holds {
                    self.let_go(vec![origin]);
                }
            }
            let Some(way) = self.ways.get_mut(to) else { return };
            if way.is_ending && way.line.is_empty() {
                self.remove(to);
                return;
            }
            if way.line.is_empty() && way.outbox.waiting().items == 0 {
                way.is_slow = false;
            }
            let low = way.most_answers() / 2;
            if way.is_behind && (way.answers() <= low || way.outbox.is_closed()) {
                way.is_behind = false;
                self.go_on(to);
            }
            // If the writer has got on meanwhile, some of this is to be done again.
            if self.ways.get(to).is_none_or(|way| way.ask()) {
                return;
            }
        }
    }

    /// Begins or ends the measure of a receiver's pace.
    fn mind_pace(&mut self, to: ConnectionId, now: Instant) {
        let Some(way) = self.ways.get_mut(to) else { return };
        match (way.is_awaited(), way.pace) {
            (true, None) => {
                // A slow receiver is looked at again and again, so not without a pause.
                let least = if way.is_slow {
                    LOOK
                } else {
                    Duration::from_millis(1)
                };
                let look = after(now, self.patience.max(least));
                way.pace = Some(Pace {
                    since: now,
                    before: way.outbox.progress(),
                    look,
                });
                self.looks.insert((look, to));
            }
            (false, Some(pace)) => {
                way.pace = None;
                self.looks.remove(&(pace.look, to));
            }
            _ => {}
        }
    }

    /// When [`tick`](Self::tick) is to be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.looks.first().map(|(at, _)| *at)
    }

    /// Looks at the pace of receivers that have been waited for as long as the patience.
    /// Returns those that are slow: more may wait for them than they may have, see
    /// [`overflow`](Self::overflow).
    pub fn tick(&mut self, now: Instant) -> Vec<ConnectionId> {
        let mut slow = Vec::new();
        let mut due = std::mem::take(&mut self.looks);
        self.looks = due.split_off(&(now, ConnectionId(u64::MAX)));
        for (_, to) in due {
            let Some(way) = self.ways.get_mut(to) else {
                continue;
            };
            let Some(pace) = way.pace.take() else { continue };
            let seconds = now.saturating_duration_since(pace.since).as_secs_f64();
            let mut done = way.outbox.progress();
            done -= pace.before;
            #[expect(clippy::cast_precision_loss, reason = "a pace")]
            let kept_up =
                done.bytes as f64 >= PACE_BYTES * seconds || done.frames as f64 >= PACE_FRAMES * seconds;
            way.is_slow = !kept_up;
            if !kept_up {
                let held = way.line.let_go(false);
                self.let_go(held);
                slow.push(to);
            }
            self.room(to, now);
        }
        slow
    }

    /// The newest item for a receiver that nobody waits with, if they take more than the
    /// receiver's line may: the other half of its limit. One such item may always wait.
    pub fn overflow(&self, to: ConnectionId) -> Option<Load> {
        let way = self.ways.get(to)?;
        let loose = way.line.loose();
        let is_over = loose.memory() > way.mark() || loose.frames > way.limits.frames / 2;
        way.line.newest_loose().filter(|_| is_over && loose.items > 1)
    }

    /// Drops the oldest or the newest item in a receiver's line that nobody waits with.
    pub fn drop_one(&mut self, to: ConnectionId, oldest: bool) {
        if let Some(way) = self.ways.get_mut(to)
            && let Some(load) = way.line.drop_loose(oldest)
        {
            way.outbox.budget().give(load.memory());
            way.outbox.count_refused(load);
        }
    }
}
