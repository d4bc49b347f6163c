//! One connection as a receiver: its queue, its line, and its own answers.

use std::time::Instant;

use super::accounts::Origin;
use super::line::{Line, Waiting};
use super::mark::Mark;
use super::pace::Pace;
use crate::outbox::{Limits, Outbox, PushError};
use crate::stream::{Load, Outgoing};
use crate::table::ConnectionId;

/// The queue and the line of one connection.
#[derive(Debug)]
pub(super) struct Receiver {
    id: ConnectionId,
    pub(super) outbox: Outbox,
    limits: Limits,
    mark: Mark,
    pub(super) line: Line,
    /// The memory of all items that went into its queue so far.
    queued: u64,
    /// An upper bound for the memory of its own answers in its queue.
    answers: u64,
    /// The value of `queued` after its last answer: when this much has left the queue, no answer
    /// is in it.
    last_answer: u64,
    /// True while too many of its own answers are in its queue, for which it is paused.
    pub(super) is_behind: bool,
    pub(super) pace: Option<Pace>,
    pub(super) is_slow: bool,
    /// True if it ends as soon as its line is empty.
    pub(super) is_ending: bool,
    /// The time of the last item that the core sent to it.
    pub(super) last_item_at: Option<Instant>,
}

impl Receiver {
    pub(super) fn new(id: ConnectionId, outbox: Outbox, limits: Limits, mark: Mark) -> Self {
        Self {
            id,
            outbox,
            limits,
            mark,
            line: Line::new(id),
            queued: 0,
            answers: 0,
            last_answer: 0,
            is_behind: false,
            pace: None,
            is_slow: false,
            is_ending: false,
            last_item_at: None,
        }
    }

    pub(super) fn is_own(&self, origin: Origin) -> bool {
        origin == Origin::Connection(self.id)
    }

    /// The memory in its queue above which items join its line.
    fn mark(&self) -> u64 {
        self.mark
            .bytes()
            .min(self.limits.bytes / 2)
            .min(self.outbox.budget().share())
    }

    /// The memory of loose items in its line above which the core's policy decides: what its queue leaves
    /// of its limit.
    fn most_loose(&self) -> u64 {
        (self.limits.bytes - self.mark()).min(self.outbox.budget().share())
    }

    /// Puts an item into the queue if that is below its mark.
    pub(super) fn push(&mut self, item: Outgoing, is_own: bool, at_once: bool) -> Result<(), PushError> {
        let memory = item.load().memory();
        // Computed for each item, because the share of the budget changes all the time.
        let mark = Limits {
            bytes: self.mark(),
            frames: (self.limits.frames / 2).max(1),
        };
        self.outbox.push(item, mark, at_once)?;
        self.queued += memory;
        if is_own {
            self.answers += memory;
            self.last_answer = self.queued;
        }
        Ok(())
    }

    /// As [`push`](Self::push), for an item that comes while the line is empty. If the queue is full, its mark
    /// is measured first. It does not rise while items are in the line, because these wait for a
    /// report of the writer that was asked for with the former mark.
    pub(super) fn push_first(
        &mut self,
        item: Outgoing,
        is_own: bool,
        at_once: bool,
        now: Instant,
    ) -> Result<(), PushError> {
        match self.push(item, is_own, at_once) {
            Err(PushError::Full(item)) if self.mark.full(now, self.outbox.left().0) => {
                self.outbox.allow_unsent(self.mark.unsent());
                self.push(item, is_own, at_once)
            }
            other => other,
        }
    }

    /// Moves the first item of the line into the queue. `None` if there is no item or no room. Otherwise
    /// returns the item's origin, if it was charged to that, and its memory. An item that comes after the
    /// close is lost.
    pub(super) fn advance(&mut self) -> Option<Option<(Origin, u64)>> {
        let Waiting {
            item,
            origin,
            is_charged,
            memory,
        } = self.line.pop_front()?;
        let load = item.load();
        match self.push(item, self.is_own(origin), false) {
            Ok(()) => {}
            Err(PushError::Full(item)) => {
                self.line.push_front(Waiting {
                    item,
                    origin,
                    is_charged,
                    memory,
                });
                return None;
            }
            Err(PushError::Closed(_)) => self.outbox.count_late(load),
        }
        Some(is_charged.then(|| (origin, load.memory())))
    }

    /// The memory of its own answers in its queue above which it is paused.
    fn max_answers(&self) -> u64 {
        // Half of the mark: others find room beside its answers.
        self.mark() / 2
    }

    /// An upper bound for the memory of its own answers in its queue. Items of others that came
    /// between two answers may be counted until they have left.
    fn answers(&mut self) -> u64 {
        let before_the_last = self.last_answer.saturating_sub(self.outbox.left().0);
        // An exact count would need a mark on each item in the queue, which the writer would have
        // to read.
        self.answers = self.answers.min(before_the_last);
        self.answers
    }

    /// True if it has too many of its own answers in its queue.
    pub(super) fn has_many_answers(&mut self) -> bool {
        let most = self.max_answers();
        self.answers > most && self.answers() > most
    }

    /// True if half of the answers that it may have are in its queue, or fewer, or the queue is closed.
    pub(super) fn has_few_answers(&mut self) -> bool {
        self.answers() <= self.max_answers() / 2 || self.outbox.is_closed()
    }

    /// True if its pace is to be measured.
    pub(super) fn needs_pace_check(&self) -> bool {
        !self.is_ending && (self.is_slow || self.line.pauses_others())
    }

    /// The memory in its queue at which its line moves. It is a batch of the writer below the mark, or
    /// more, so that the dispatcher gets one event for all of it, and a thousand paused senders go on in
    /// groups. If it is half of the mark, eight senders to one receiver are slower by some 7 %, because they stop
    /// for longer.
    fn low_mark(&self) -> u64 {
        self.mark() / 4 * 3
    }

    /// Has the writer report when there is something to do for this receiver. False if there is
    /// something to do already.
    pub(super) fn request_room(&self) -> bool {
        let mut at = None;
        if !self.line.is_empty() {
            let (left, waiting) = self.outbox.left();
            let of_memory = waiting.memory().saturating_sub(self.low_mark());
            // If only the limit of frames is reached, any batch that leaves may be enough.
            let of_frames = u64::from(waiting.frames > self.limits.frames / 4);
            at = Some(left.saturating_add(of_memory.max(of_frames)));
        // A slow receiver with an empty line recovers when everything has left.
        } else if self.is_slow {
            at = Some(u64::MAX);
        }
        if self.is_behind {
            let of_answers = self.last_answer.saturating_sub(self.max_answers() / 2);
            at = Some(at.map_or(of_answers, |at| at.min(of_answers)));
        }
        at.is_none_or(|at| self.outbox.request_room(at))
    }

    /// The newest loose item, if the loose items exceed what the queue leaves of its limit. One such item
    /// may always wait.
    pub(super) fn overflow(&self) -> Option<Load> {
        let loose = self.line.loose();
        let is_over = loose.memory() > self.most_loose() || loose.frames > self.limits.frames / 2;
        // Asked first, because the newest one may be behind thousands that are charged to their origin.
        (is_over && loose.items > 1).then(|| self.line.newest_loose())?
    }

    /// Drops the oldest or the newest loose item.
    pub(super) fn drop_one(&mut self, oldest: bool) {
        if let Some(load) = self.line.drop_loose(oldest) {
            self.outbox.count_refused(load);
        }
    }

    /// Closes its queue. Items in its line are lost.
    pub(super) fn close(&self) {
        for waiting in self.line.iter() {
            // Never in the queue, so the writer cannot count it.
            self.outbox.count_late(waiting.item.load());
        }
        self.outbox.close();
    }

    /// A fault in the bookkeeping: see [`Flow::fault`](super::Flow::fault).
    pub(super) fn fault(&self) -> Option<String> {
        let id = self.id;
        let pauses_others = |waiting: &Waiting| waiting.is_charged && !self.is_own(waiting.origin);
        let pauses_others = self.line.iter().any(pauses_others);
        if self.line.pauses_others() != pauses_others {
            return Some(format!(
                "{id} pauses others: {pauses_others}, and believes the opposite"
            ));
        }
        if self.pace.is_some() != self.needs_pace_check() {
            return Some(format!("the pace of {id} is measured: {}", self.pace.is_some()));
        }
        let waiting = self.outbox.waiting();
        let is_low = waiting.memory() <= self.low_mark() && waiting.frames <= self.limits.frames / 4;
        (is_low && !self.line.is_empty() && !self.outbox.is_closed())
            .then(|| format!("others wait for {id}, whose queue is at its low mark: {waiting:?}"))
    }
}
