//! What a scheduler knows about itself: one snapshot, for pages that show it.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;
use uuid::Uuid;

use super::{ControllerMode, Scheduler};
use ssntp::payload::StartFailureReason;
use ssntp::server::{SendError, ServerHandle};
use ssntp_transport::Histogram;

/// A snapshot of a scheduler, see [`Scheduler::figures`](super::Scheduler::figures).
/// What counts, counts from its start.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct SchedulerFigures {
    /// Nodes that are connected, by what they are.
    pub nodes: NodeFigures,
    /// Instances that it knows of, by how far they are.
    pub instances: InstanceFigures,
    /// STARTs and what became of them.
    pub starts: StartFigures,
    /// Streams that are open.
    pub streams: usize,
    /// Streams that were opened.
    pub streams_opened: u64,
    /// Instances that are being moved: asked to end, to be started elsewhere.
    pub moving: usize,
    /// Instances whose START was given to another node since.
    pub moved: u64,
    /// Controllers that are connected.
    pub controllers: usize,
    /// The one that may command, in master mode.
    pub master: Option<Uuid>,
    /// Concentrators that have announced themselves.
    pub concentrators: usize,
    /// What agents have said of what is not theirs.
    pub foreign_reports: u64,
    /// InvalidFrameType that it was answered with.
    pub invalid_frames: u64,
}

/// Nodes by status: each is in one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NodeFigures {
    /// That have not said yet how they are.
    pub waiting: usize,
    /// READY.
    pub ready: usize,
    /// FULL.
    pub full: usize,
    /// OFFLINE.
    pub offline: usize,
    /// MAINTENANCE.
    pub maintenance: usize,
    /// That have sent no STATS for too long, whatever they said before.
    pub stale: usize,
}

impl NodeFigures {
    /// Each with the word for its status.
    pub fn by_status(&self) -> [(&'static str, usize); 6] {
        [
            ("waiting", self.waiting),
            ("ready", self.ready),
            ("full", self.full),
            ("offline", self.offline),
            ("maintenance", self.maintenance),
            ("stale", self.stale),
        ]
    }
}

/// Instances by state: each is in one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct InstanceFigures {
    /// Whose START waits for a node.
    pub held: usize,
    /// Whose START was given to a node.
    pub starting: usize,
    /// That start again, as their node says.
    pub pending: usize,
    /// That run.
    pub running: usize,
    /// That have ended, and are kept.
    pub ended: usize,
    /// Whose START was answered with a failure, and may turn up.
    pub given_up: usize,
}

impl InstanceFigures {
    /// Each with the word for its state.
    pub fn by_state(&self) -> [(&'static str, usize); 6] {
        [
            ("held", self.held),
            ("starting", self.starting),
            ("pending", self.pending),
            ("running", self.running),
            ("ended", self.ended),
            ("given_up", self.given_up),
        ]
    }
}

/// STARTs and what became of them. Those of instances that are moved are among
/// them, as if they had just come.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct StartFigures {
    /// That have come.
    pub received: u64,
    /// That were given to a node.
    pub given: u64,
    /// Whose instance was listed by its node.
    pub started: u64,
    /// That failed, by the reason of the StartFailure as the protocol knows it,
    /// `other` for what it does not; and `no_answer` where the node has not said
    /// what became of it.
    pub failed: BTreeMap<&'static str, u64>,
    /// How long those that were started took: from the START's arrival until
    /// STATS listed the instance.
    #[serde(skip)]
    pub start_time: Histogram,
    /// How long those that failed took until they were answered.
    #[serde(skip)]
    pub failure_time: Histogram,
    /// That wait for a READY.
    pub held: usize,
    /// The bytes of these.
    pub held_bytes: usize,
    /// The most of them.
    pub max_held: usize,
    /// That wait for the answer of their node.
    pub in_flight: usize,
    /// The most of them.
    pub max_in_flight: usize,
}

impl Scheduler {
    /// What the scheduler of a server knows about itself, at one moment. Its
    /// dispatcher looks at each instance once for it, which takes some
    /// nanoseconds.
    ///
    /// # Errors
    /// [`SendError::OtherHandler`] where the server's application is none;
    /// [`SendError::Stopped`], [`SendError::OnDispatcher`].
    pub fn figures(server: &ServerHandle) -> Result<SchedulerFigures, SendError> {
        server.with_handler(|scheduler: &mut Self, _| scheduler.taken())
    }

    fn taken(&self) -> SchedulerFigures {
        let (streams, streams_opened) = self.streams.counted();
        let (moving, moved) = self.moves.counted();
        let (controllers, first) = self.controllers.counted();
        let (held, held_bytes, max_held) = self.held.counted();
        let (in_flight, max_in_flight) = self.instances.in_flight();
        let tally = &self.starts;
        SchedulerFigures {
            nodes: self.nodes.figures(),
            instances: self.instances.figures(),
            starts: StartFigures {
                received: tally.received,
                given: tally.given,
                started: tally.start_time.count(),
                failed: tally.failed.clone(),
                start_time: tally.start_time,
                failure_time: tally.failure_time,
                held,
                held_bytes,
                max_held,
                in_flight,
                max_in_flight,
            },
            streams,
            streams_opened,
            moving,
            moved,
            controllers,
            master: first.filter(|_| self.mode == ControllerMode::Master),
            concentrators: self.cncis.announced(),
            foreign_reports: self.foreign,
            invalid_frames: self.invalid_frames,
        }
    }
}

/// What became of STARTs, as it is counted.
#[derive(Debug, Default)]
pub(super) struct StartTally {
    pub(super) received: u64,
    pub(super) given: u64,
    failed: BTreeMap<&'static str, u64>,
    start_time: Histogram,
    failure_time: Histogram,
}

impl StartTally {
    /// One that had come then is done.
    pub(super) fn started(&mut self, received: Instant, now: Instant) {
        self.start_time.record(now.saturating_duration_since(received));
    }

    /// It is answered with a failure.
    pub(super) fn failed(&mut self, reason: &StartFailureReason, received: Instant, now: Instant) {
        self.count(reason.word(), received, now);
    }

    /// Its node has not said what became of it.
    pub(super) fn not_answered(&mut self, received: Instant, now: Instant) {
        self.count("no_answer", received, now);
    }

    fn count(&mut self, word: &'static str, received: Instant, now: Instant) {
        *self.failed.entry(word).or_default() += 1;
        self.failure_time.record(now.saturating_duration_since(received));
    }
}
