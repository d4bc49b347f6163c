//! The line of controllers, and what a new controller has not been told yet.

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::nodes::Nodes;
use super::{ControllerMode, Scheduler, limited};
use ssntp::payload::SnapshotComplete;
use ssntp::proto::Frame;
use ssntp::server::{Context, SessionInfo, SessionKey};
use ssntp_transport::LogLimit;

/// A new controller is sent the last STATS of the nodes only while its queue holds no more than
/// this, because the STATS of all nodes may be more than the queue can hold.
const TELL_FRAMES: u64 = 4096;
const TELL_BYTES: u64 = 4 << 20;
/// How long a controller with a full queue gets to read before the next STATS are sent.
const TELL_AGAIN: Duration = Duration::from_millis(10);

/// The controllers in the order in which they connected.
#[derive(Debug, Default)]
pub(super) struct Controllers {
    line: Vec<(SessionKey, Uuid)>,
    telling: Vec<Telling>,
    tell_at: Option<Instant>,
}

/// The nodes of which a controller has not been told yet, and what it will be told at the end.
#[derive(Debug)]
struct Telling {
    session: SessionKey,
    to: Uuid,
    /// They are taken from the end; their order means nothing.
    nodes: Vec<Uuid>,
    complete: SnapshotComplete,
    /// More is told before that, and then to all controllers at once.
    goes_on: bool,
}

impl Controllers {
    pub(super) fn join(&mut self, session: &SessionInfo) {
        // The line is one of sessions: a controller that reconnects stands at its end.
        self.line.push((session.key(), session.uuid()));
    }

    pub(super) fn leave(&mut self, cx: &Context<'_>, session: &SessionInfo, log: &mut LogLimit<Uuid>) {
        // Remembered, so that a line is logged only if the first place changes hands.
        let master = self.line.first().copied();
        self.line.retain(|(id, _)| *id != session.key());
        self.telling.retain(|telling| telling.session != session.key());
        if let Some((id, uuid)) = self.line.first()
            && master.is_some_and(|(master, _)| master != *id)
        {
            limited!(info, log, cx, *uuid, "first in line"; "controller {uuid} is first in line now");
        }
    }

    /// Whether it is the controller that has been connected longest.
    pub(super) fn is_master(&self, session: SessionKey) -> bool {
        self.line.first().is_some_and(|(first, _)| *first == session)
    }

    /// The number of controllers, and the one that has been connected longest.
    pub(super) fn counted(&self) -> (usize, Option<Uuid>) {
        (self.line.len(), self.line.first().map(|(_, uuid)| *uuid))
    }

    pub(super) fn next_telling(&self) -> Option<Instant> {
        self.tell_at
    }

    /// Continues once it is time.
    pub(super) fn tell(&mut self, cx: &mut Context<'_>, nodes: &Nodes, now: Instant) {
        if self.tell_at.is_none_or(|at| at > now) {
            return;
        }
        self.telling.retain_mut(|telling| telling.some(cx, nodes));
        self.tell_at = (!self.telling.is_empty()).then(|| now + TELL_AGAIN);
    }
}

impl Telling {
    /// Sends until enough waits in the controller's queue; true if there is more to send.
    fn some(&mut self, cx: &mut Context<'_>, nodes: &Nodes) -> bool {
        // A controller that has left needs nothing more.
        let Some(mut waiting) = cx.waiting(self.to) else {
            return false;
        };
        loop {
            if waiting.frames > TELL_FRAMES || waiting.bytes > TELL_BYTES {
                return true;
            }
            let Some(node) = self.nodes.pop() else {
                if !self.goes_on {
                    // If it fails, the session has ended.
                    let _ = cx.send(self.to, &Frame::of(&self.complete));
                }
                return false;
            };
            // The node may have left meanwhile.
            let Some((instances, frames)) = nodes.stats(node) else {
                continue;
            };
            self.complete.reporting += 1;
            self.complete.instances += instances as u64;
            for frame in frames {
                // It joins the queue only once this call has returned.
                waiting.frames += 1;
                waiting.bytes += frame.encoded_len() as u64;
                if cx.send(self.to, frame).is_err() {
                    return false;
                }
            }
        }
    }
}

impl Scheduler {
    /// Tells a new controller of every node and every concentrator, and sends each node's last
    /// STATS with the events of its instances since. Then it says that this was all.
    pub(super) fn tell_of_nodes(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let to = session.uuid();
        if self.mode == ControllerMode::Master {
            let place = match self.controllers.is_master(session.key()) {
                true => "the master",
                false => "a backup",
            };
            limited!(info, self.log, cx, to, "place in line"; "{session}: it is {place}");
        }
        for announced in self.nodes.announced().chain(self.cncis.told()) {
            if cx.send(to, announced).is_err() {
                return;
            }
        }
        let mut telling = Telling {
            session: session.key(),
            to,
            nodes: self.nodes.with_stats().collect(),
            complete: SnapshotComplete {
                nodes: self.nodes.count() as u64,
                ..SnapshotComplete::default()
            },
            goes_on: self.is_being_told(),
        };
        if telling.some(cx, &self.nodes) {
            self.controllers.telling.push(telling);
            self.controllers
                .tell_at
                .get_or_insert_with(|| cx.now() + TELL_AGAIN);
        }
    }
}
