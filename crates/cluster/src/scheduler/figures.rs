//! Snapshots of a scheduler for metrics and pages.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;
use uuid::Uuid;

use super::{ControllerMode, Scheduler};
use ssntp::server::{SendError, ServerHandle};
use ssntp_transport::Histogram;

/// A snapshot of a scheduler, see [`Scheduler::figures`](super::Scheduler::figures).
/// Counters count from its start.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SchedulerFigures {
    /// Connected nodes by status: `ready`, `full`, `offline`, `maintenance`; `waiting` if they
    /// have not said a status yet; and `stale` if they have sent no STATS for too long,
    /// whatever their status was.
    pub nodes: BTreeMap<&'static str, usize>,
    /// Known instances by state: `held` while the START waits for a node, `starting` after a
    /// node was given it, `pending` if the node says that it is being started again,
    /// `running`, `ended`, and `given_up` if the START was answered with a failure and the
    /// instance may still turn up.
    pub instances: BTreeMap<&'static str, usize>,
    /// The limits.
    pub limits: SchedulerLimits,
    /// STARTs and their outcomes.
    pub starts: StartFigures,
    /// Streams that are open.
    pub streams: usize,
    /// Streams that were opened.
    pub streams_opened: u64,
    /// Instances that are being moved: they are to end, and will be started elsewhere.
    pub moving: usize,
    /// Instances that have ended for a move, and whose START was placed again.
    pub moved: u64,
    /// Controllers that are connected.
    pub controllers: usize,
    /// In master mode, the controller that may command.
    pub master: Option<Uuid>,
    /// Concentrators that have announced themselves.
    pub concentrators: usize,
    /// Bytes of what is kept for the next leader, and of commands that wait for one.
    pub kept_bytes: usize,
    /// Reports of agents about nodes or instances that are not their own.
    pub foreign_reports: u64,
    /// Received InvalidFrameType.
    pub invalid_frames: u64,
}

/// The limits of a scheduler.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct SchedulerLimits {
    /// The most STARTs that may be held.
    pub held_starts: usize,
    /// The most STARTs that may be in flight.
    pub starts_in_flight: usize,
}

/// STARTs and their outcomes. A START of an instance that is moved counts again.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StartFigures {
    /// Received STARTs.
    pub received: u64,
    /// STARTs that were given to a node.
    pub given: u64,
    /// STARTs whose instance was listed by its node.
    pub started: u64,
    /// Failed STARTs by the reason of the StartFailure; `other` for a reason that this
    /// version does not know, and `no_answer` if the node gave no answer.
    pub failed: BTreeMap<&'static str, u64>,
    /// For started STARTs: the time from their arrival until STATS listed the instance.
    pub start_time: Histogram,
    /// For failed STARTs: the time from their arrival to the answer.
    pub failure_time: Histogram,
    /// STARTs that wait for a READY.
    pub held: usize,
    /// The bytes of the held STARTs.
    pub held_bytes: usize,
    /// STARTs that wait for the answer of their node.
    pub in_flight: usize,
}

impl Scheduler {
    /// A snapshot of the scheduler of a server. The dispatcher visits each instance for it,
    /// which takes some nanoseconds each.
    ///
    /// # Errors
    /// [`SendError::OtherHandler`] if the server's application is no scheduler;
    /// [`SendError::Stopped`], [`SendError::OnDispatcher`].
    pub fn figures(server: &ServerHandle) -> Result<SchedulerFigures, SendError> {
        server.with_handler(|scheduler: &mut Self, _| scheduler.taken())
    }

    fn taken(&self) -> SchedulerFigures {
        let (streams, streams_opened) = self.streams.counted();
        let (moving, moved) = self.moves.counted();
        let (controllers, first) = self.controllers.counted();
        let (held, held_bytes, held_starts) = self.held.counted();
        let (in_flight, starts_in_flight) = self.instances.in_flight();
        SchedulerFigures {
            nodes: self.nodes.figures(),
            instances: self.instances.figures(),
            starts: StartFigures {
                held,
                held_bytes,
                in_flight,
                ..self.starts.clone()
            },
            limits: SchedulerLimits {
                held_starts,
                starts_in_flight,
            },
            streams,
            streams_opened,
            moving,
            moved,
            controllers,
            master: first.filter(|_| self.mode == ControllerMode::Master),
            concentrators: self.cncis.announced(),
            kept_bytes: self.term.as_ref().map_or(0, |term| term.following.bytes()),
            foreign_reports: self.foreign,
            invalid_frames: self.invalid_frames,
        }
    }
}

/// Counts how often each of these words occurs; all of them are in the result.
pub(super) fn tally<const N: usize>(
    words: [&'static str; N],
    found: impl Iterator<Item = &'static str>,
) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::from(words.map(|word| (word, 0)));
    found.for_each(|word| *counts.entry(word).or_default() += 1);
    counts
}

impl StartFigures {
    /// A START that had come at `received` is done.
    pub(super) fn started(&mut self, received: Instant, now: Instant) {
        self.started += 1;
        self.start_time.record(now.saturating_duration_since(received));
    }

    /// A START that had come at `received` is answered with a failure.
    pub(super) fn failed(&mut self, word: &'static str, received: Instant, now: Instant) {
        *self.failed.entry(word).or_default() += 1;
        self.failure_time.record(now.saturating_duration_since(received));
    }
}
