//! One connection in the flow, as a sender and as a receiver.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::line::Line;
use super::pace::Pace;
use super::turns::Turn;
use super::{BYTE_COST, Credit, FIRST_RUN, LONG_LINE, MOST_ANSWERS, ROOM_STEP};
use crate::end::EndReason;
use crate::outbox::{Limits, Outbox, PushError};
use crate::stream::Outgoing;
use crate::table::ConnectionId;

/// One connection: its input, and its line.
#[derive(Debug)]
pub(super) struct FlowConnection<I> {
    pub(super) credit: Arc<Credit>,
    pub(super) input: VecDeque<Batch<I>>,
    pub(super) end: Option<EndReason>,
    pub(super) turn: Turn,
    /// The number of frames in its next run, and the number of its runs so far.
    pub(super) run: u32,
    pub(super) runs: u64,
    /// The number of its items in lines that hold it, and of holds by other dispatchers.
    pub(super) waiting: usize,
    /// The number of holds by other dispatchers.
    pub(super) held_elsewhere: usize,
    /// True while too many of its own answers are in its queue, which holds it as well.
    pub(super) is_behind: bool,
    /// The time since which it is held.
    pub(super) held_since: Option<Instant>,

    pub(super) outbox: Outbox,
    pub(super) limits: Limits,
    pub(super) line: Line,
    /// The memory of all items that went into its queue so far.
    pub(super) queued: u64,
    /// An upper bound for the memory of its own answers in its queue.
    pub(super) answers: u64,
    /// The value of `queued` after its last answer: when this much has left the queue, no answer
    /// is in it.
    pub(super) last_answer: u64,
    pub(super) pace: Option<Pace>,
    pub(super) is_slow: bool,
    /// True if it ends as soon as its line is empty.
    pub(super) is_ending: bool,
    /// The time of the last item that the core sent to it.
    pub(super) last_item_at: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Batch<I> {
    pub(super) items: VecDeque<I>,
    /// The credit that the reader gets back when the batch is handled.
    pub(super) bytes: u64,
}

impl<I> Drop for FlowConnection<I> {
    /// Returns the memory of its line to the budget, also if the whole dispatcher is dropped.
    fn drop(&mut self) {
        self.outbox.budget().give(self.line.all.memory());
    }
}

impl<I> FlowConnection<I> {
    pub(super) fn new(id: ConnectionId, outbox: Outbox, limits: Limits, credit: Arc<Credit>) -> Self {
        Self {
            credit,
            input: VecDeque::new(),
            end: None,
            turn: Turn::default(),
            run: FIRST_RUN,
            runs: 0,
            waiting: 0,
            held_elsewhere: 0,
            is_behind: false,
            held_since: None,
            outbox,
            limits,
            line: Line::new(id),
            queued: 0,
            answers: 0,
            last_answer: 0,
            pace: None,
            is_slow: false,
            is_ending: false,
            last_item_at: None,
        }
    }

    /// The memory in its queue above which items join its line.
    pub(super) fn mark(&self) -> u64 {
        (self.limits.bytes / 2).min(self.outbox.budget().share())
    }

    /// True if its line is longer than its limit, and than what can be on a link.
    pub(super) fn has_long_line(&self) -> bool {
        self.line.all.memory() > self.limits.bytes.max(LONG_LINE)
    }

    pub(super) fn is_held(&self) -> bool {
        self.waiting > 0 || self.is_behind
    }

    pub(super) fn has_input(&self) -> bool {
        !self.input.is_empty() || self.end.is_some()
    }

    /// Removes the first batch, which is handled, and grants its credit.
    pub(super) fn finish_batch(&mut self) {
        if let Some(batch) = self.input.pop_front() {
            self.credit.grant(batch.bytes);
            self.turn.charge(batch.bytes.saturating_mul(BYTE_COST));
        }
    }

    /// Puts an item into the queue if that is below its mark.
    pub(super) fn push(&mut self, item: Outgoing, is_own: bool, at_once: bool) -> Result<(), PushError> {
        let memory = item.load().memory();
        // Computed for each item, because the share of the budget changes all the time.
        let mark = self.mark();
        self.outbox.push_below(item, mark, at_once)?;
        self.queued += memory;
        if is_own {
            self.answers += memory;
            self.last_answer = self.queued;
        }
        Ok(())
    }

    /// The memory of its own answers in its queue above which it is held.
    pub(super) fn most_answers(&self) -> u64 {
        // Half of the mark: others find room beside its answers.
        MOST_ANSWERS.min(self.mark() / 2)
    }

    /// An upper bound for the memory of its own answers in its queue. Items of others that came
    /// between two answers may be counted until they have left.
    pub(super) fn answers(&mut self) -> u64 {
        let before_the_last = self.last_answer.saturating_sub(self.outbox.left().0);
        // An exact count would need a mark on each item in the queue, which the writer would have
        // to read.
        self.answers = self.answers.min(before_the_last);
        self.answers
    }

    /// True if its pace is to be measured.
    pub(super) fn needs_pace_check(&self) -> bool {
        !self.is_ending && (self.is_slow || self.line.holds_others())
    }

    /// Has the writer report when there is something to do for this receiver. False if there is
    /// something to do already.
    pub(super) fn request_room(&self) -> bool {
        let mut at = None;
        if !self.line.items.is_empty() {
            let (left, waiting) = self.outbox.left();
            let mark = self.mark();
            let of_memory = waiting.memory().saturating_sub(mark - ROOM_STEP.min(mark / 2));
            // If only the limit of frames is reached, any batch that leaves may be enough.
            let of_frames = u64::from(waiting.frames > self.limits.frames / 4);
            at = Some(left.saturating_add(of_memory.max(of_frames)));
        // A slow receiver with an empty line recovers when everything has left.
        } else if self.is_slow {
            at = Some(u64::MAX);
        }
        if self.is_behind {
            let of_answers = self.last_answer.saturating_sub(self.most_answers() / 2);
            at = Some(at.map_or(of_answers, |at| at.min(of_answers)));
        }
        at.is_none_or(|at| self.outbox.request_room(at))
    }
}
