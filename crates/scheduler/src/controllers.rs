//! The line of controllers, and the snapshots that are being sent to new controllers.

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::config::ControllerMode;
use super::nodes::Nodes;
use super::out::{Out, limited};
use ssntp::proto::Frame;
use ssntp::server::{SessionInfo, SessionKey};

/// The maximum number of frames in the queue of a new controller while its snapshot is being sent. The STATS of
/// all nodes together may be more than the queue can hold.
const MAX_QUEUED_FRAMES: u64 = 4096;
/// The maximum number of bytes in that queue.
const MAX_QUEUED_BYTES: u64 = 4 << 20;
/// The pause between two parts of a snapshot, in which the controller can read.
const PAUSE: Duration = Duration::from_millis(10);

/// The controllers in the order in which they connected.
#[derive(Debug, Default)]
pub(super) struct Controllers {
    mode: ControllerMode,
    line: Vec<SessionInfo>,
    snapshots: Vec<Snapshot>,
    /// The time of the next part of all snapshots.
    send_at: Option<Instant>,
}

/// The part of a controller's snapshot that has not been sent yet.
#[derive(Debug)]
struct Snapshot {
    to: SessionInfo,
    /// The nodes whose STATS have not been sent yet, in no particular order.
    nodes: Vec<Uuid>,
}

impl Controllers {
    pub(super) fn new(mode: ControllerMode) -> Self {
        Self {
            mode,
            ..Self::default()
        }
    }

    /// True if this controller may send commands.
    pub(super) fn may_command(&self, session: SessionKey) -> bool {
        self.mode == ControllerMode::Any || self.is_master(session)
    }

    /// The time of the next part of all snapshots.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.send_at
    }

    /// Puts a controller at the end of the line, also one that reconnects.
    pub(super) fn join(&mut self, session: &SessionInfo) {
        self.line.push(session.clone());
    }

    /// A session has ended, which may be a controller's.
    pub(super) fn handle_disconnected(&mut self, out: &mut Out<'_, '_>, session: &SessionInfo) {
        let was_master = self.is_master(session.key());
        self.line.retain(|controller| controller.key() != session.key());
        self.snapshots
            .retain(|snapshot| snapshot.to.key() != session.key());
        if was_master && let Some(first) = self.line.first() {
            let uuid = first.uuid();
            limited!(info, out, uuid, "first in line"; "controller {uuid} is first in line now");
        }
    }

    /// True if this is the controller that has been connected longest.
    fn is_master(&self, session: SessionKey) -> bool {
        self.line.first().is_some_and(|first| first.key() == session)
    }

    /// The number of controllers, and in master mode the one that may command.
    pub(super) fn counted(&self) -> (usize, Option<Uuid>) {
        let master = self.line.first().filter(|_| self.mode == ControllerMode::Master);
        (self.line.len(), master.map(SessionInfo::uuid))
    }

    /// Begins the snapshot of a new controller: `announced` has NodeConnected of every node and the
    /// reports of every concentrator. The last STATS of each node follow, with the events of its
    /// instances since, and SnapshotComplete at the end.
    pub(super) fn begin_snapshot<'a>(
        &mut self,
        out: &mut Out<'_, '_>,
        session: &SessionInfo,
        announced: impl Iterator<Item = &'a Frame>,
        nodes: &Nodes,
        is_syncing: bool,
    ) {
        let to = session.uuid();
        if self.mode == ControllerMode::Master {
            let is_master = self.is_master(session.key());
            let place = if is_master { "the master" } else { "a backup" };
            limited!(info, out, to, "place in line"; "{session}: it is {place}");
        }
        for announced in announced {
            if out.cx.send(to, announced).is_err() {
                return;
            }
        }
        let mut snapshot = Snapshot {
            to: session.clone(),
            nodes: nodes.with_stats().collect(),
        };
        if snapshot.send_part(out, nodes, is_syncing) {
            self.snapshots.push(snapshot);
            self.send_at.get_or_insert_with(|| out.now() + PAUSE);
        }
    }

    /// Sends the next part of each snapshot if it is due.
    pub(super) fn continue_snapshots(&mut self, out: &mut Out<'_, '_>, nodes: &Nodes, is_syncing: bool) {
        let now = out.now();
        if self.send_at.is_none_or(|at| at > now) {
            return;
        }
        self.snapshots
            .retain_mut(|snapshot| snapshot.send_part(out, nodes, is_syncing));
        self.send_at = (!self.snapshots.is_empty()).then(|| now + PAUSE);
    }

    /// Sends SnapshotComplete to all controllers, except those whose snapshot is still being sent.
    pub(super) fn complete_snapshots(&self, out: &mut Out<'_, '_>, nodes: &Nodes) {
        let complete = Frame::of(&nodes.snapshot_complete());
        for controller in &self.line {
            let mut snapshots = self.snapshots.iter();
            if !snapshots.any(|snapshot| snapshot.to.key() == controller.key()) {
                out.send(controller.uuid(), &complete);
            }
        }
    }
}

impl Snapshot {
    /// Sends until the controller's queue holds enough; true if there is more to send. SnapshotComplete
    /// is left out while the leader synchronizes, because it follows at the end of that.
    fn send_part(&mut self, out: &mut Out<'_, '_>, nodes: &Nodes, is_syncing: bool) -> bool {
        let to = self.to.uuid();
        // The controller may have disconnected meanwhile.
        let Some(mut waiting) = out.cx.waiting(to) else {
            return false;
        };
        loop {
            if waiting.frames > MAX_QUEUED_FRAMES || waiting.bytes > MAX_QUEUED_BYTES {
                return true;
            }
            let Some(node) = self.nodes.pop() else {
                if !is_syncing {
                    out.send(to, &Frame::of(&nodes.snapshot_complete()));
                }
                return false;
            };
            // The node may have disconnected meanwhile, and has no frames then.
            for frame in nodes.stats(node) {
                // A frame enters the queue only after this call, so it is counted here.
                waiting.frames += 1;
                waiting.bytes += frame.encoded_len() as u64;
                if out.cx.send(to, frame).is_err() {
                    return false;
                }
            }
        }
    }
}
