//! One connection in the flow: as a sender, and as a receiver.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::line::Line;
use super::turns::Turn;
use super::{ANSWERS, BYTE, Credit, FIRST_RUN, STEP};
use crate::end::EndReason;
use crate::outbox::{Limits, Outbox, PushError};
use crate::stream::{Load, Outgoing};
use crate::table::ConnectionId;

/// One connection: its input, and what waits for it.
#[derive(Debug)]
pub(super) struct Way<I> {
    pub(super) credit: Arc<Credit>,
    pub(super) input: VecDeque<Batch<I>>,
    pub(super) end: Option<EndReason>,
    pub(super) turn: Turn,
    /// How many frames its next run has, and how many runs it has had.
    pub(super) run: u32,
    pub(super) runs: u64,
    /// How many of its items wait in lines, and hold it.
    pub(super) waiting: usize,
    /// How often other dispatchers hold it. These count in `waiting`, too.
    pub(super) held_elsewhere: usize,
    /// It has taken too little of its own answers, which holds it as well.
    pub(super) is_behind: bool,
    /// Since when it is held.
    pub(super) held_since: Option<Instant>,

    pub(super) outbox: Outbox,
    pub(super) limits: Limits,
    pub(super) line: Line,
    /// The memory of all items that went into its queue.
    pub(super) queued: u64,
    /// At most so much of its queue are its own answers, and the last of them is in its
    /// place when so much in all has left the queue.
    pub(super) answers: u64,
    pub(super) last_answer: u64,
    pub(super) pace: Option<Pace>,
    pub(super) is_slow: bool,
    /// It ends as soon as its line is empty.
    pub(super) is_ending: bool,
    /// When the last item for it came from the core.
    pub(super) last_item_at: Option<Instant>,
}

/// The measure of a receiver's pace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) since: Instant,
    /// What it had received then.
    pub(super) before: Load,
    /// When it is looked at.
    pub(super) look: Instant,
}

#[derive(Debug)]
pub(super) struct Batch<I> {
    pub(super) items: VecDeque<I>,
    /// The credit that the reader gets back when the batch is dealt with.
    pub(super) bytes: u64,
}

impl<I> Drop for Way<I> {
    /// Gives the memory of its line back: a connection ends, or the whole dispatcher does.
    fn drop(&mut self) {
        self.outbox.budget().give(self.line.memory());
    }
}

impl<I> Way<I> {
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

    /// How many bytes of its queue's memory are filled from its line.
    pub(super) fn mark(&self) -> u64 {
        (self.limits.bytes / 2).min(self.outbox.budget().share())
    }

    pub(super) fn is_held(&self) -> bool {
        self.waiting > 0 || self.is_behind
    }

    pub(super) fn has_input(&self) -> bool {
        !self.input.is_empty() || self.end.is_some()
    }

    /// Ends the first batch, which is dealt with.
    pub(super) fn finish_batch(&mut self) {
        if let Some(batch) = self.input.pop_front() {
            self.credit.grant(batch.bytes);
            self.turn.charge(batch.bytes.saturating_mul(BYTE));
        }
    }

    /// Puts an item into the queue if that is below its mark.
    pub(super) fn push(&mut self, item: Outgoing, is_own: bool, at_once: bool) -> Result<(), PushError> {
        let memory = item.load().memory();
        let mark = self.mark();
        self.outbox.push_below(item, mark, at_once)?;
        self.queued += memory;
        if is_own {
            self.answers += memory;
            self.last_answer = self.queued;
        }
        Ok(())
    }

    /// How much of its own answers it may leave in its queue.
    pub(super) fn most_answers(&self) -> u64 {
        // Half of the mark: others find room beside its answers.
        ANSWERS.min(self.mark() / 2)
    }

    /// At most so much of its queue are its own answers. Items of others that came between
    /// them may be counted as well, until they have left.
    pub(super) fn answers(&mut self) -> u64 {
        let before_the_last = self.last_answer.saturating_sub(self.outbox.left().0);
        // What has left the queue since cannot be answers. An exact count would need a mark on
        // each item in the queue, which the writer would have to read.
        self.answers = self.answers.min(before_the_last);
        self.answers
    }

    /// Whether its pace is to be measured.
    pub(super) fn is_awaited(&self) -> bool {
        !self.is_ending && (self.is_slow || self.line.has_others())
    }

    /// Has the writer tell when there is something to do for this receiver. False if there is
    /// something already.
    pub(super) fn ask(&self) -> bool {
        let mut at = None;
        if !self.line.is_empty() {
            let (left, waiting) = self.outbox.left();
            let mark = self.mark();
            let of_memory = waiting.memory().saturating_sub(mark - STEP.min(mark / 2));
            // If frames are what is short, any batch that leaves may be enough.
            let of_frames = u64::from(waiting.frames > self.limits.frames / 4);
            at = Some(left.saturating_add(of_memory.max(of_frames)));
        // It is asked only whether everything has left.
        } else if self.is_slow {
            at = Some(u64::MAX);
        }
        if self.is_behind {
            let of_answers = self.last_answer.saturating_sub(self.most_answers() / 2);
            at = Some(at.map_or(of_answers, |at| at.min(of_answers)));
        }
        at.is_none_or(|at| self.outbox.ask(at))
    }
}
