//! The line of controllers, and the snapshots that are being sent to new controllers.

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::nodes::Nodes;
use super::{ControllerMode, Scheduler, answers, limited};
use ssntp::proto::Frame;
use ssntp::server::{Context, SessionInfo, SessionKey};
use ssntp_transport::LogLimit;

/// The maximum number of frames and bytes in the queue of a new controller while its snapshot is being
/// sent. The STATS of all nodes together may be more than the queue can hold.
const MAX_QUEUED_FRAMES: u64 = 4096;
const MAX_QUEUED_BYTES: u64 = 4 << 20;
/// The pause between two parts of a snapshot, in which the controller can read.
const PAUSE: Duration = Duration::from_millis(10);

/// The controllers in the order in which they connected.
#[derive(Debug, Default)]
pub(super) struct Controllers {
    line: Vec<SessionInfo>,
    snapshots: Vec<Snapshot>,
    /// The time of the next part of all snapshots.
    pub(super) send_at: Option<Instant>,
}

/// The part of a controller's snapshot that has not been sent yet.
#[derive(Debug)]
struct Snapshot {
    to: SessionInfo,
    /// The nodes whose STATS have not been sent yet, in no particular order.
    nodes: Vec<Uuid>,
}

impl Controllers {
    /// Puts a controller at the end of the line, also one that reconnects.
    pub(super) fn join(&mut self, session: &SessionInfo) {
        self.line.push(session.clone());
    }

    pub(super) fn leave(&mut self, cx: &Context<'_>, session: &SessionInfo, log: &mut LogLimit<Uuid>) {
        let was_master = self.is_master(session.key());
        self.line.retain(|controller| controller.key() != session.key());
        self.snapshots
            .retain(|snapshot| snapshot.to.key() != session.key());
        if was_master && let Some(first) = self.line.first() {
            let uuid = first.uuid();
            limited!(info, log, cx, uuid, "first in line"; "controller {uuid} is first in line now");
        }
    }

    /// True if this is the controller that has been connected longest.
    pub(super) fn is_master(&self, session: SessionKey) -> bool {
        self.line.first().is_some_and(|first| first.key() == session)
    }

    /// The number of controllers, and the one that has been connected longest.
    pub(super) fn counted(&self) -> (usize, Option<Uuid>) {
        (self.line.len(), self.line.first().map(SessionInfo::uuid))
    }

    /// Sends the next part of each snapshot if it is due.
    pub(super) fn continue_snapshots(&mut self, cx: &mut Context<'_>, nodes: &Nodes, is_syncing: bool) {
        let now = cx.now();
        if self.send_at.is_none_or(|at| at > now) {
            return;
        }
        self.snapshots
            .retain_mut(|snapshot| snapshot.send_part(cx, nodes, is_syncing));
        self.send_at = (!self.snapshots.is_empty()).then(|| now + PAUSE);
    }

    /// Sends SnapshotComplete to all controllers, except those whose snapshot is still being sent.
    pub(super) fn complete_snapshots(&self, cx: &mut Context<'_>, nodes: &Nodes) {
        let complete = Frame::of(&nodes.snapshot_complete());
        for controller in &self.line {
            let mut snapshots = self.snapshots.iter();
            if !snapshots.any(|snapshot| snapshot.to.key() == controller.key()) {
                answers::send(cx, controller.uuid(), &complete);
            }
        }
    }
}

impl Snapshot {
    /// Sends until the controller's queue holds enough; true if there is more to send. SnapshotComplete
    /// is left out while the leader synchronizes, because it follows at the end of that.
    fn send_part(&mut self, cx: &mut Context<'_>, nodes: &Nodes, is_syncing: bool) -> bool {
        let to = self.to.uuid();
        // The controller may have disconnected meanwhile.
        let Some(mut waiting) = cx.waiting(to) else {
            return false;
        };
        loop {
            if waiting.frames > MAX_QUEUED_FRAMES || waiting.bytes > MAX_QUEUED_BYTES {
                return true;
            }
            let Some(node) = self.nodes.pop() else {
                if !is_syncing {
                    answers::send(cx, to, &Frame::of(&nodes.snapshot_complete()));
                }
                return false;
            };
            // The node may have disconnected meanwhile, and has no frames then.
            for frame in nodes.stats(node) {
                // A frame enters the queue only after this call, so it is counted here.
                waiting.frames += 1;
                waiting.bytes += frame.encoded_len() as u64;
                if cx.send(to, frame).is_err() {
                    return false;
                }
            }
        }
    }
}

impl Scheduler {
    /// Begins the snapshot of a new controller: announces every node and every concentrator, then
    /// sends the last STATS of each node with the events of its instances since, and
    /// SnapshotComplete at the end.
    pub(super) fn begin_snapshot(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let to = session.uuid();
        if self.config.controllers == ControllerMode::Master {
            let place = match self.controllers.is_master(session.key()) {
                true => "the master",
                false => "a backup",
            };
            limited!(info, self.log, cx, to, "place in line"; "{session}: it is {place}");
        }
        for announced in self.nodes.announced().chain(self.cncis.frames()) {
            if cx.send(to, announced).is_err() {
                return;
            }
        }
        let mut snapshot = Snapshot {
            to: session.clone(),
            nodes: self.nodes.with_stats().collect(),
        };
        if snapshot.send_part(cx, &self.nodes, self.is_syncing()) {
            self.controllers.snapshots.push(snapshot);
            self.controllers.send_at.get_or_insert_with(|| cx.now() + PAUSE);
        }
    }
}
