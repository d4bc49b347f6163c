//! Flow control: which connections may go on, and which wait for which receiver. One
//! place for rules, forwarded frames, answers, and the frames that handlers send.
//!
//! ```text
//!  reader ── Credit ──▶ input of its connection ── a turn at a time ──▶ core
//!                             ▲                                          │ Send
//!                             │ no turns while it is in a waiting line   ▼
//!                             └──────────── waiting line of ◀── deliver: room?
//!                                             the receiver         │ yes
//!                                                                  ▼
//!                                                      Outbox ──▶ writer
//! ```
//!
//! # Room and lines
//!
//! The *mark* of a queue is how much of its memory the frames of other connections may
//! fill: half of the queue's limit, or its share of the [`Budget`] if that is less. A
//! frame is put into a receiver's queue only if the queue then stays within its mark, or
//! is empty. Otherwise the frame waits in the receiver's line, and its sender gets no
//! further turn until all its frames in lines are delivered. So however many senders a
//! receiver has, its queue does not grow beyond the mark, and its line holds at most one
//! turn of each sender, which counts in the budget as well. When a queue has drained
//! some way below its mark, its line moves in order as far as there is room. No other
//! line is touched.
//!
//! # Patience
//!
//! A receiver that takes at least 4 MiB or 20,000 frames a second while others wait
//! for it may take as long as it needs. If the system has accepted only a part of a frame,
//! the bytes of that part count. A receiver that takes less for as long as the
//! *patience* is slow: its line is delivered up to the limit of its queue or its share
//! of the budget, and the policy of the core decides about frames that do not fit.
//! Senders wait for it again only after its queue has drained to half of its mark. So
//! one stuck peer delays its senders once, by the patience, and no other connection.
//!
//! A sender whose own answers pile up waits for itself. That harms no other
//! connection, and the write timeout ends a peer that never reads.
//!
//! # Turns
//!
//! Connections with input take turns. A turn is as many frames as the core can
//! deal with in about a millisecond, as measured in earlier turns. So a connection
//! with expensive frames delays others no longer than one with cheap frames. The next
//! turn goes to the connection that has used the least of the dispatcher (start-time
//! fair queueing, with some credit for quiet connections). So a connection that sends
//! less than its fair share passes a thousand busy ones.
//!
//! | bound | how much | when full |
//! |---|---|---|
//! | input of a connection | its credit: 1 MiB, less if memory is short, but always one batch | its reader waits, and with it its peer |
//! | an unfinished item | 16 KiB of each connection's own; its announced length beyond that is reserved in the budget of received bytes, half of it for each certificate | the connection is not read until there is memory, in the order of arrival. The first in line always gets it. Whoever has memory that others wait for is ended if it does not go on |
//! | a receiver's queue, for frames of others | half of its limit, or its share of the budget | senders wait in its line |
//! | a receiver's queue, for answers to itself | 1 MiB | the connection is not read |
//! | a receiver's line | one turn of each sender | – |
//! | a receiver's queue, if no sender waits: the receiver is slow, or the application sends by itself | its limit, or its share of the budget | the core's policy |

mod credit;
#[cfg(test)]
mod tests;
mod unfinished;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use self::credit::Credit;
pub(crate) use self::unfinished::OWN;
pub use self::unfinished::{Look, Unfinished};
use crate::budget::Budget;
use crate::end::EndReason;
use crate::outbox::{Outbox, PushError};
use crate::stream::{Load, Outgoing};
use crate::table::{ConnectionId, Table};

/// How long others wait for a receiver that does not keep the pace, by default. A healthy
/// process on a busy machine gets a processor sooner than that.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// The pace, for each second, at which a receiver is worth waiting for. One of the two is
/// enough.
const PACE_BYTES: f64 = (4 << 20) as f64;
const PACE_FRAMES: f64 = 20_000.0;

/// How many bytes of its own answers may wait for a connection that is still read.
const ANSWERS: u64 = 1 << 20;

/// How long a turn should take. Ten connections with a backlog of the most expensive
/// frames delay an eleventh by ten turns.
const TURN: Duration = Duration::from_millis(1);
/// What each received byte adds to a connection's use of the server ([`Way::had`]), in
/// nanoseconds. The dispatcher spends no such time on it, but other threads receive,
/// decrypt, encrypt and send the byte on the same processors.
const BYTE: u64 = 4;
/// How far a connection's use of the server may be behind that of the others, in the
/// units of [`Way::had`]. A connection that sends less than its fair share is always
/// first with its occasional frames. One that was quiet for long and then sends much
/// keeps the others waiting for a millisecond only.
const BEHIND: u64 = 1 << 20;
/// The frames of a connection's first turn.
const FIRST_TURN: u32 = 256;
/// The most frames of a turn: a batch of frames without payload.
const LONGEST_TURN: u32 = 1 << 20;

/// The result of [`Flow::deliver`].
#[derive(Debug)]
pub enum Delivery {
    /// The item is in the receiver's queue, or waits in its line.
    Taken,
    /// There is no room, and the sender does not wait. The item comes back.
    Full(Outgoing),
    /// The receiver is closed or gone.
    Gone,
}

/// The next input of a connection.
#[derive(Debug)]
pub enum Input<I> {
    /// An item that the reader found.
    Item(I),
    /// The reader has come to an end, and all items before it are dealt with.
    End(EndReason),
}

/// The flow between all connections of one dispatcher. Readers find items of type `I`.
#[derive(Debug)]
pub struct Flow<I> {
    ways: Table<Way<I>>,
    budget: Budget,
    patience: Duration,
    /// Connections with input, and how much of the dispatcher each has used.
    turns: BinaryHeap<Reverse<(u64, ConnectionId)>>,
    /// How much the connection of the last turn had used ([`Way::had`]) before that turn. The
    /// others have used at least about as much, so [`list`](Self::list) compares with this.
    served: u64,
    /// Receivers that others wait for.
    awaited: Vec<ConnectionId>,
}

/// One connection: its input, and the line of items for it.
#[derive(Debug)]
struct Way<I> {
    credit: Arc<Credit>,
    input: VecDeque<Batch<I>>,
    end: Option<EndReason>,
    /// Whether it is in `Flow::turns`.
    listed: bool,
    /// How much of the server it has used: nanoseconds of the dispatcher, frames,
    /// and [`BYTE`] for each byte.
    had: u64,
    /// How many frames its next turn has.
    turn: u32,
    /// In the lines of how many receivers its own items wait. It gets no turn unless this
    /// is 0.
    lines: usize,
    /// Since when its items wait in some line.
    in_line_since: Option<Instant>,

    outbox: Outbox,
    limit: u64,
    /// The items for it that wait for room in its queue.
    line: VecDeque<Waiting>,
    /// Since when its pace is measured, because others wait for it, and how much it had
    /// received then.
    paced: Option<(Instant, Load)>,
    /// Whether it is slow, so that no sender waits for it.
    slow: bool,
    /// When the last item for it came from the core.
    last_item_at: Option<Instant>,
}

/// The state of the flow from and to one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Since when it waits for room in the queues of others.
    pub in_line_since: Option<Instant>,
    /// Since when its reader waits until the dispatcher has dealt with its items.
    pub without_credit_since: Option<Instant>,
    /// Since when others wait for it, or since it was last seen to keep the pace.
    pub awaited_since: Option<Instant>,
    /// It is slow, so no sender waits for it.
    pub is_slow: bool,
    /// When the last item for its queue came.
    pub last_item_at: Option<Instant>,
}

#[derive(Debug)]
struct Batch<I> {
    items: VecDeque<I>,
    /// The credit that the reader gets back when the batch is dealt with.
    bytes: u64,
}

/// The items of one sender in the line of a receiver.
#[derive(Debug)]
struct Waiting {
    sender: ConnectionId,
    items: VecDeque<Outgoing>,
}

impl<I> Way<I> {
    /// How many bytes of its queue's memory others may fill.
    fn mark(&self, budget: &Budget) -> u64 {
        (self.limit / 2).min(budget.share())
    }

    /// The mark for items of one sender. It is lower for the receiver's `own` items, which
    /// are answers to it.
    fn mark_for(&self, own: bool, budget: &Budget) -> u64 {
        let mark = self.mark(budget);
        if own { mark.min(ANSWERS) } else { mark }
    }

    /// How many bytes its queue may hold if no sender waits for it.
    fn ceiling(&self, budget: &Budget) -> u64 {
        self.limit.min(budget.share())
    }

    /// Ends the first batch, which is dealt with.
    fn finish_batch(&mut self) {
        if let Some(batch) = self.input.pop_front() {
            self.credit.grant(batch.bytes);
            self.had = self.had.saturating_add(batch.bytes.saturating_mul(BYTE));
        }
    }

    fn has_input(&self) -> bool {
        !self.input.is_empty() || self.end.is_some()
    }
}

impl<I> Flow<I> {
    /// A flow without connections. Items in lines count in `budget`.
    pub fn new(budget: Budget, patience: Duration) -> Self {
        Self {
            ways: Table::default(),
            budget,
            patience,
            turns: BinaryHeap::new(),
            served: 0,
            awaited: Vec::new(),
        }
    }

    /// A connection begins. `limit` is the memory that its queue may take.
    pub fn insert(&mut self, id: ConnectionId, outbox: Outbox, limit: u64, credit: Arc<Credit>) {
        let way = Way {
            credit,
            input: VecDeque::new(),
            end: None,
            listed: false,
            had: 0,
            turn: FIRST_TURN,
            lines: 0,
            in_line_since: None,
            outbox,
            limit,
            line: VecDeque::new(),
            paced: None,
            slow: false,
            last_item_at: None,
        };
        self.ways.insert(id, way);
    }

    /// The state of one connection. A connection that has left counts as idle.
    pub fn standing(&self, id: ConnectionId) -> Standing {
        self.ways.get(id).map_or_else(Standing::default, |way| Standing {
            in_line_since: way.in_line_since,
            without_credit_since: way.credit.waits_since(),
            awaited_since: way.paced.map(|(since, _)| since),
            is_slow: way.slow,
            last_item_at: way.last_item_at,
        })
    }

    /// How many connections wait for a turn.
    pub fn with_input(&self) -> usize {
        self.turns.len()
    }

    /// Removes a connection. Senders that wait for it go on, and their items for it are
    /// dropped. Returns its input that was not dealt with. Its items in the lines of
    /// others are still delivered.
    pub fn remove(&mut self, id: ConnectionId) -> Vec<I> {
        let Some(way) = self.ways.remove(id) else {
            return Vec::new();
        };
        self.awaited.retain(|awaited| *awaited != id);
        for waiting in way.line {
            for item in &waiting.items {
                self.budget.give(item.load().memory());
                way.outbox.count_late(item.load());
            }
            self.release(waiting.sender);
        }
        let mut rest = Vec::new();
        for batch in way.input {
            way.credit.grant(batch.bytes);
            rest.extend(batch.items);
        }
        way.credit.end();
        rest
    }

    /// Adds items that a reader found, and for which it spent so much credit.
    pub fn arrived(&mut self, id: ConnectionId, items: Vec<I>, credit: u64) {
        if let Some(way) = self.ways.get_mut(id) {
            way.input.push_back(Batch {
                bytes: credit,
                items: items.into(),
            });
            self.list(id);
        }
    }

    /// Notes that a reader has come to an end. Its earlier items come first.
    pub fn ended(&mut self, id: ConnectionId, reason: EndReason) {
        if let Some(way) = self.ways.get_mut(id) {
            way.end = Some(reason);
            self.list(id);
        }
    }

    /// Puts a connection that may take a turn into the list once. However long it was
    /// quiet, it is not far behind the others.
    fn list(&mut self, id: ConnectionId) {
        let Some(way) = self.ways.get_mut(id) else { return };
        if way.lines == 0 && way.has_input() && !std::mem::replace(&mut way.listed, true) {
            way.had = way.had.max(self.served.saturating_sub(BEHIND));
            self.turns.push(Reverse((way.had, id)));
        }
    }

    /// Whether no connection can take a turn.
    pub fn is_idle(&self) -> bool {
        self.turns.is_empty()
    }

    /// The connection that takes the next turn, and how many frames the turn has.
    pub fn next_turn(&mut self) -> Option<(ConnectionId, u32)> {
        loop {
            let Reverse((had, id)) = self.turns.pop()?;
            // It may have left meanwhile.
            if let Some(way) = self.ways.get(id) {
                self.served = had;
                return Some((id, way.turn));
            }
        }
    }

    /// The next input of the connection that takes a turn. `None` if it has none, has
    /// to wait for a receiver, or has left.
    pub fn take(&mut self, id: ConnectionId) -> Option<Input<I>> {
        let way = self.ways.get_mut(id)?;
        if way.lines > 0 {
            return None;
        }
        while let Some(batch) = way.input.front_mut() {
            if let Some(item) = batch.items.pop_front() {
                return Some(Input::Item(item));
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

    /// Puts back the rest of an item, which needs another turn.
    pub fn put_back(&mut self, id: ConnectionId, rest: I) {
        if let Some(batch) = self.ways.get_mut(id).and_then(|way| way.input.front_mut()) {
            batch.items.push_front(rest);
        }
    }

    /// Ends a turn in which so many frames took so long.
    pub fn end_turn(&mut self, id: ConnectionId, frames: u32, took: Duration) {
        let Some(way) = self.ways.get_mut(id) else { return };
        if took > TURN && frames > 1 {
            let fits = f64::from(frames) * TURN.as_secs_f64() / took.as_secs_f64();
            // It is between 0 and `frames`.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let fits = fits as u32;
            way.turn = fits.max(1);
        } else if frames >= way.turn && took < TURN / 4 {
            way.turn = way.turn.saturating_mul(2).min(LONGEST_TURN);
        }
        // Empty batches are dealt with: their credit goes back now, not with the next
        // turn.
        while way.input.front().is_some_and(|batch| batch.items.is_empty()) {
            way.finish_batch();
        }
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        way.had = way.had.saturating_add(took).saturating_add(frames.into());
        way.listed = false;
        self.list(id);
    }

    /// Puts an item into a receiver's queue. If the queue has no room, the item waits in
    /// the receiver's line, and with it `sender`, which is the connection that has the turn.
    /// An item without a sender does not wait, and neither does one for a slow receiver:
    /// without room it comes back. With `at_once` this thread itself sends the item if the
    /// queue is empty.
    pub fn deliver(
        &mut self,
        sender: Option<ConnectionId>,
        to: ConnectionId,
        item: Outgoing,
        at_once: bool,
        now: Instant,
    ) -> Delivery {
        let Some(way) = self.ways.get_mut(to) else {
            return Delivery::Gone;
        };
        let load = item.load();
        way.last_item_at = Some(now);
        let own = sender == Some(to);
        let waits = sender.filter(|_| own || !way.slow);
        let room = match waits {
            Some(_) => {
                let mark = way.mark_for(own, &self.budget);
                way.line.is_empty() && way.outbox.ask_for_room(load, mark)
            }
            None => way.outbox.has_room(load, way.ceiling(&self.budget)),
        };
        if !room {
            if way.outbox.is_closed() {
                return Delivery::Gone;
            }
            let Some(sender) = waits else {
                return Delivery::Full(item);
            };
            self.budget.take(load.memory());
            self.wait_in_line(sender, to, item, now);
            return Delivery::Taken;
        }
        let pushed = if at_once {
            way.outbox.push_now(item)
        } else {
            way.outbox.push(item)
        };
        match pushed {
            Ok(()) => Delivery::Taken,
            Err(PushError::Full(item)) => Delivery::Full(item),
            Err(PushError::Closed(_)) => Delivery::Gone,
        }
    }

    fn wait_in_line(&mut self, sender: ConnectionId, to: ConnectionId, item: Outgoing, now: Instant) {
        let Some(way) = self.ways.get_mut(to) else { return };
        // During its turn no other sender joins a line. So if the sender is in this
        // line, it is the last one.
        match way.line.back_mut() {
            Some(last) if last.sender == sender => {
                last.items.push_back(item);
                return;
            }
            _ => way.line.push_back(Waiting {
                sender,
                items: [item].into(),
            }),
        }
        if sender != to && way.paced.is_none() {
            way.paced = Some((now, way.outbox.progress()));
            self.awaited.push(to);
        }
        if let Some(sender) = self.ways.get_mut(sender) {
            sender.lines += 1;
            sender.in_line_since.get_or_insert(now);
            sender.credit.hold(true);
        }
    }

    /// Notes that a receiver has room again. Returns the items that do not fit.
    pub fn room(&mut self, to: ConnectionId) -> Vec<Outgoing> {
        if let Some(way) = self.ways.get_mut(to)
            && way.slow
        {
            let half = way.mark(&self.budget) / 2;
            way.slow = way.outbox.watch(half);
        }
        self.move_line(to, false)
    }

    /// Delivers the line of a receiver as far as there is room: below its mark, or up to
    /// its limit if it is `slow`. Then the items that do not fit come back, with all
    /// later items of the same sender, so that no item overtakes another.
    fn move_line(&mut self, to: ConnectionId, slow: bool) -> Vec<Outgoing> {
        let mut full = Vec::new();
        while let Some(way) = self.ways.get_mut(to) {
            let Some(sender) = way.line.front().map(|first| first.sender) else {
                break;
            };
            let before = full.len();
            while let Some(item) = way.line.front_mut().and_then(|first| first.items.pop_front()) {
                let load = item.load();
                let room = if slow {
                    full.len() == before && way.outbox.has_room(load, way.ceiling(&self.budget))
                } else {
                    let mark = way.mark_for(sender == to, &self.budget);
                    way.outbox.ask_for_room(load, mark)
                };
                if !room && !slow {
                    if let Some(first) = way.line.front_mut() {
                        first.items.push_front(item);
                    }
                    self.mind_who_waits(to);
                    return full;
                }
                self.budget.give(load.memory());
                if !room {
                    full.push(item);
                    continue;
                }
                match way.outbox.push(item) {
                    Ok(()) => {}
                    Err(PushError::Full(item)) => full.push(item),
                    Err(PushError::Closed(item)) => way.outbox.count_late(item.load()),
                }
            }
            way.line.pop_front();
            self.release(sender);
        }
        self.mind_who_waits(to);
        full
    }

    /// Stops the clock of the patience if no other connection is in the line of a
    /// receiver. A receiver that waits only for itself has no time limit here.
    fn mind_who_waits(&mut self, to: ConnectionId) {
        let Some(way) = self.ways.get_mut(to) else { return };
        // Each sender is in a line at most once.
        let others = way.line.len() > 1 || way.line.front().is_some_and(|first| first.sender != to);
        if !others && way.paced.take().is_some() {
            self.awaited.retain(|awaited| *awaited != to);
        }
    }

    /// Notes that a sender has left one line.
    fn release(&mut self, sender: ConnectionId) {
        if let Some(way) = self.ways.get_mut(sender) {
            way.lines -= 1;
            if way.lines == 0 {
                way.in_line_since = None;
                way.credit.hold(false);
                self.list(sender);
            }
        }
    }

    /// When [`tick`](Self::tick) is to be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let since = |id: &ConnectionId| Some(self.ways.get(*id)?.paced?.0);
        let first = self.awaited.iter().filter_map(since).min()?;
        Some(crate::host::after(first, self.patience))
    }

    /// Checks the receivers for which others have waited as long as the patience.
    /// Returns the items that do not fit into the queues of those that are slow.
    pub fn tick(&mut self, now: Instant) -> Vec<(ConnectionId, Vec<Outgoing>)> {
        let mut overflow = Vec::new();
        for to in self.awaited.clone() {
            let Some(way) = self.ways.get_mut(to) else {
                continue;
            };
            let Some((since, before)) = way.paced else {
                continue;
            };
            let waited = now.saturating_duration_since(since);
            if waited < self.patience {
                continue;
            }
            let mut done = way.outbox.progress();
            done -= before;
            let seconds = waited.as_secs_f64();
            #[expect(clippy::cast_precision_loss, reason = "a pace")]
            let kept_up =
                done.bytes as f64 >= PACE_BYTES * seconds || done.frames as f64 >= PACE_FRAMES * seconds;
            if kept_up {
                way.paced = Some((now, way.outbox.progress()));
                continue;
            }
            let half = way.mark(&self.budget) / 2;
            let full = self.move_line(to, true);
            if let Some(way) = self.ways.get_mut(to) {
                way.slow = way.outbox.watch(half);
            }
            overflow.push((to, full));
        }
        overflow
    }
}

impl<I> Flow<I> {
    /// How many connections take part.
    pub fn connections(&self) -> usize {
        self.ways.len()
    }

    /// A connection whose count of lines is wrong: it would wait forever, or its items
    /// would overtake each other.
    pub fn miscounted(&self) -> Option<ConnectionId> {
        let stands = |id| {
            let lines = self.ways.iter().flat_map(|(_, way)| &way.line);
            lines.filter(|waiting| waiting.sender == id).count()
        };
        let mut ways = self.ways.iter();
        ways.find_map(|(id, way)| (way.lines != stands(id)).then_some(id))
    }

    /// How many senders are in the line of a receiver. The receiver itself counts if it is
    /// one of them.
    pub fn waiting_for(&self, to: ConnectionId) -> usize {
        self.ways.get(to).map_or(0, |way| way.line.len())
    }

    /// Whether items of a connection wait in a line, which may be its own.
    pub fn waits_in_a_line(&self, id: ConnectionId) -> bool {
        self.ways.get(id).is_some_and(|way| way.lines > 0)
    }

    /// Whether a connection has input, has no items in any line, and nobody waits in its own
    /// line.
    pub fn may_take_a_turn(&self, id: ConnectionId) -> bool {
        self.ways
            .get(id)
            .is_some_and(|way| way.has_input() && way.line.is_empty() && way.lines == 0)
    }
}
