//! One connection as a sender: its input that is not handled yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::credit::Credit;
use super::turns::Turn;
use crate::end::EndReason;

/// The time that the core should take for one run of frames. A turn can end only between runs.
pub(super) const RUN_TARGET: Duration = Duration::from_millis(1);
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
pub(super) const FIRST_RUN: u32 = 8;
/// The maximum number of frames of a run: a batch of frames without payload.
pub(super) const LONGEST_RUN: u32 = 1 << 20;

/// The next input of a connection.
#[derive(Debug)]
pub enum Input<I> {
    /// An item, of which the core should handle at most this many frames.
    Item(I, u32),
    /// The reader has ended, and all items before its end are handled.
    End(EndReason),
}

/// The input of one connection.
#[derive(Debug)]
pub(super) struct Sender<I> {
    credit: Arc<Credit>,
    batches: VecDeque<Batch<I>>,
    /// The bytes of the batches.
    input: u64,
    end: Option<EndReason>,
    pub(super) turn: Turn,
    /// The number of frames in its next run, and the number of its runs so far.
    run: u32,
    runs: u64,
}

#[derive(Debug)]
struct Batch<I> {
    items: VecDeque<I>,
    arrived: Instant,
    /// The credit that the reader gets back when the batch is handled.
    bytes: u64,
}

impl<I> Sender<I> {
    pub(super) fn new(credit: Arc<Credit>) -> Self {
        Self {
            credit,
            batches: VecDeque::new(),
            input: 0,
            end: None,
            turn: Turn::default(),
            run: FIRST_RUN,
            runs: 0,
        }
    }

    pub(super) fn arrived(&mut self, items: Vec<I>, credit: u64, now: Instant) {
        self.input += credit;
        self.batches.push_back(Batch {
            bytes: credit,
            items: items.into(),
            arrived: now,
        });
    }

    pub(super) fn ended(&mut self, reason: EndReason) {
        self.end = Some(reason);
    }

    /// The time at which the oldest of its input arrived.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.batches.front().map(|batch| batch.arrived)
    }

    /// The bytes of its input. A batch counts until all of it is handled.
    pub(super) fn input(&self) -> u64 {
        self.input
    }

    /// True if there is a batch, perhaps an empty one, or the end.
    pub(super) fn has_input(&self) -> bool {
        !self.batches.is_empty() || self.end.is_some()
    }

    /// True if there is an item or the end.
    pub(super) fn has_items(&self) -> bool {
        self.end.is_some() || self.batches.iter().any(|batch| !batch.items.is_empty())
    }

    pub(super) fn has_end(&self) -> bool {
        self.end.is_some()
    }

    /// The time since which its reader waits for credit.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        self.credit.waits_since()
    }

    pub(super) fn take(&mut self) -> Option<Input<I>> {
        while let Some(batch) = self.batches.front_mut() {
            if let Some(item) = batch.items.pop_front() {
                return Some(Input::Item(item, self.run));
            }
            self.finish_batch();
        }
        self.end.take().map(Input::End)
    }

    pub(super) fn put_back(&mut self, rest: I) {
        if let Some(batch) = self.batches.front_mut() {
            batch.items.push_front(rest);
        }
    }

    /// Finishes batches without items, so that their credit is granted now and not in the next turn.
    pub(super) fn finish_batches(&mut self) {
        while self.batches.front().is_some_and(|batch| batch.items.is_empty()) {
            self.finish_batch();
        }
    }

    fn finish_batch(&mut self) {
        if let Some(batch) = self.batches.pop_front() {
            self.input -= batch.bytes;
            self.credit.grant(batch.bytes);
            self.turn.charge(batch.bytes.saturating_mul(BYTE_COST));
        }
    }

    /// Charges a run of `frames` frames, for which the core took `dealing` and caused `actions` actions.
    pub(super) fn charge(&mut self, frames: u32, dealing: Duration, actions: u64) {
        // A run with one action costs the same however few frames it has, so runs that are
        // shorter than necessary would only repeat that cost.
        if dealing > RUN_TARGET && frames > 1 {
            let fits = f64::from(frames) * RUN_TARGET.as_secs_f64() / dealing.as_secs_f64();
            // It is between 0 and `frames`.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let fits = fits as u32;
            self.run = fits.max(1);
        } else if frames >= self.run && dealing < RUN_TARGET / 4 {
            self.run = self.run.saturating_mul(2).min(LONGEST_RUN);
        }
        self.runs += 1;
        let took = u64::try_from(dealing.as_nanos()).unwrap_or(u64::MAX);
        let further = actions.saturating_sub(1).saturating_mul(ACTION_COST);
        // A nanosecond for each frame, because many frames may take no measurable time.
        let used = took.saturating_add(further).saturating_add(frames.into());
        self.turn.charge(used);
    }

    /// The number of frames in its next run.
    #[cfg(test)]
    pub(super) fn run(&self) -> u32 {
        self.run
    }

    pub(super) fn runs(&self) -> u64 {
        self.runs
    }

    /// Ends the input: the reader has to end. Returns the items that were not handled.
    pub(super) fn close(self) -> Vec<I> {
        let mut rest = Vec::new();
        for batch in self.batches {
            self.credit.grant(batch.bytes);
            rest.extend(batch.items);
        }
        self.credit.end();
        rest
    }
}
