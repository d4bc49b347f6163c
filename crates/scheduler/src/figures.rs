//! The figures of a scheduler, for metrics and pages.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;
use uuid::Uuid;

use ssntp_transport::Histogram;

/// A snapshot of a scheduler, see [`Scheduler::figures`](super::Scheduler::figures).
/// Counters count from its start.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SchedulerFigures {
    /// The number of connected nodes by status: `ready`, `full`, `offline`, `maintenance`;
    /// `waiting` if a node has not sent a status yet; and `stale`, whatever the last status was,
    /// if a node has sent no STATS for three intervals.
    pub nodes: BTreeMap<&'static str, usize>,
    /// The number of known instances by state: `held` while the START waits for a node,
    /// `starting` after the START was sent to a node, `pending` if the node reports that it is
    /// starting the instance again, `running`, `ended`, and `given_up` if the START was answered
    /// with a failure but its node may still start the instance.
    pub instances: BTreeMap<&'static str, usize>,
    /// The limits.
    pub limits: SchedulerLimits,
    /// STARTs and their outcomes.
    pub starts: StartFigures,
    /// The number of open streams.
    pub streams: usize,
    /// The number of streams that were opened.
    pub streams_opened: u64,
    /// The number of instances that are being moved: they will be started on another node once
    /// they have ended.
    pub moving: usize,
    /// The number of instances that have ended for a move and whose START was placed again.
    pub moved: u64,
    /// The number of connected controllers.
    pub controllers: usize,
    /// In master mode, the controller that may command.
    pub master: Option<Uuid>,
    /// The number of concentrators that have announced themselves.
    pub concentrators: usize,
    /// The number of addresses of tenants whose instances no node and no START has. A START that was lost with
    /// its scheduler leaves its address so, and a node that is away may have the instance.
    pub unclaimed_addresses: usize,
    /// The bytes of the reports that are kept for the next leader, and of the commands that wait
    /// for a leader.
    pub kept_bytes: usize,
    /// The number of dropped reports: those about nodes or instances that are not the sender's
    /// own, and those that cannot be read.
    pub foreign_reports: u64,
    /// The number of received InvalidFrameType frames.
    pub invalid_frames: u64,
    /// What this scheduler cannot do, a line each: write the nodes of instances to the file of the state directory, or
    /// read the tenants of the engine.
    pub faults: Vec<String>,
}

/// The tokens and certificates of nodes that join, see [`Enrolments::figures`](super::Enrolments::figures).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct EnrolmentFigures {
    /// The number of tokens that have not ended.
    pub tokens: usize,
    /// The number of certificates that have not ended, by state: `valid` or `revoked`.
    pub certificates: BTreeMap<&'static str, usize>,
    /// The commands of operators to this scheduler, by action (`add` or `remove` a token, `revoke`) and result:
    /// `done`, or the reason of the refusal.
    pub commands: BTreeMap<(&'static str, String), u64>,
}

/// The limits of a scheduler.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct SchedulerLimits {
    /// The maximum number of STARTs that may be held.
    pub held_starts: usize,
    /// The maximum number of STARTs that may be in flight.
    pub starts_in_flight: usize,
}

/// STARTs and their outcomes. A START of an instance that is moved counts again.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StartFigures {
    /// The number of received STARTs.
    pub received: u64,
    /// The number of STARTs that were sent to a node.
    pub given: u64,
    /// The number of STARTs whose instance was listed by its node.
    pub started: u64,
    /// The number of failed STARTs by the reason of the StartFailure; `other` for a reason that
    /// this version does not know, and `no_answer` if the node did not answer.
    pub failed: BTreeMap<&'static str, u64>,
    /// For started STARTs: the time from their arrival until STATS listed the instance.
    pub start_time: Histogram,
    /// For failed STARTs: the time from their arrival to the answer.
    pub failure_time: Histogram,
    /// The number of STARTs that wait for a READY.
    pub held: usize,
    /// The bytes of the held STARTs.
    pub held_bytes: usize,
    /// The number of STARTs that wait for the answer of their node.
    pub in_flight: usize,
}

/// Counts each of these words in `found`. The result has all words, also those with a count of 0.
pub(crate) fn tally<const N: usize>(
    words: [&'static str; N],
    found: impl Iterator<Item = &'static str>,
) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::from(words.map(|word| (word, 0)));
    found.for_each(|word| *counts.entry(word).or_default() += 1);
    counts
}

impl StartFigures {
    /// Counts a START that arrived at `received` and is done.
    pub(crate) fn started(&mut self, received: Instant, now: Instant) {
        self.started += 1;
        self.start_time.record(now.saturating_duration_since(received));
    }

    /// Counts a START that arrived at `received` and is answered with a failure.
    pub(crate) fn failed(&mut self, word: &'static str, received: Instant, now: Instant) {
        *self.failed.entry(word).or_default() += 1;
        self.failure_time.record(now.saturating_duration_since(received));
    }
}
