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
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct SchedulerFigures {
    /// Connected nodes by status.
    pub nodes: NodeFigures,
    /// Known instances by state.
    pub instances: InstanceFigures,
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
    /// Reports of agents about nodes or instances that are not their own.
    pub foreign_reports: u64,
    /// Received InvalidFrameType.
    pub invalid_frames: u64,
}

/// Nodes by status: each is in one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NodeFigures {
    /// They have not said a status yet.
    pub waiting: usize,
    /// READY.
    pub ready: usize,
    /// FULL.
    pub full: usize,
    /// OFFLINE.
    pub offline: usize,
    /// MAINTENANCE.
    pub maintenance: usize,
    /// They have sent no STATS for too long, whatever their status was.
    pub stale: usize,
}

impl NodeFigures {
    /// Each number with the word for its status.
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
    /// The START waits for a node.
    pub held: usize,
    /// The START was given to a node.
    pub starting: usize,
    /// The node says that it is being started again.
    pub pending: usize,
    /// It runs.
    pub running: usize,
    /// It has ended, and its node keeps it.
    pub ended: usize,
    /// Its START was answered with a failure, but it may still turn up.
    pub given_up: usize,
}

impl InstanceFigures {
    /// Each number with the word for its state.
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

/// STARTs and their outcomes. A START of an instance that is moved counts again.
#[derive(Clone, Debug, Default, Serialize)]
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
    #[serde(skip)]
    pub start_time: Histogram,
    /// For failed STARTs: the time from their arrival to the answer.
    #[serde(skip)]
    pub failure_time: Histogram,
    /// STARTs that wait for a READY.
    pub held: usize,
    /// The bytes of the held STARTs.
    pub held_bytes: usize,
    /// The most STARTs that may be held.
    pub max_held: usize,
    /// STARTs that wait for the answer of their node.
    pub in_flight: usize,
    /// The most STARTs that may be in flight.
    pub max_in_flight: usize,
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
        let (held, held_bytes, max_held) = self.held.counted();
        let (in_flight, max_in_flight) = self.instances.in_flight();
        SchedulerFigures {
            nodes: self.nodes.figures(),
            instances: self.instances.figures(),
            starts: StartFigures {
                held,
                held_bytes,
                max_held,
                in_flight,
                max_in_flight,
                ..self.starts.clone()
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
