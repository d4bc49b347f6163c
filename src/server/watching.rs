//! Watch: operators that receive reports about the frames that the server receives.
//!
//! ```text
//!  Watch ─▶ a Watcher for the operator ─▶ Watched, without frames
//!  a received run ─▶ does the Watcher select it? ─ the operator's queue is short ─▶ Watched
//!                                                └ otherwise ─▶ counted, in the next Watched
//! ```
//!
//! A received run is one or more frames of one kind that arrived together. A Watcher ends with its
//! operator's session. An operator that watches never holds a sender, because Watched is sent only while
//! the operator's queue is nearly empty.

use uuid::Uuid;

use super::core::State;
use super::sessions::{SessionId, SessionInfo};
use crate::payload::{Id, Payload, Watch, Watched};
use crate::proto::{Frame, FrameKind};
use crate::wire::outgoing;
use ssntp_transport::dispatch::Origin;

/// The maximum number of operators that watch. Each received run is compared with all of them.
const MAX_WATCHERS: usize = 16;
/// If an operator's queue has this many frames or bytes, further runs are only counted. A queue always has
/// room for 64 KiB, so no Watched waits for room.
const MAX_WAITING: (u64, u64) = (128, 32 << 10);

/// An operator that watches, and the frames that it has selected.
#[derive(Debug)]
pub(super) struct Watcher {
    operator: SessionId,
    id: Id,
    sender: Option<Uuid>,
    kind: Option<FrameKind>,
    /// The number of frames since the last Watched that were not reported.
    missed: u64,
}

impl State {
    /// Begins a watch of the operator, which replaces an earlier one. The error is the reason for
    /// InvalidFrameType.
    pub(super) fn watch(&mut self, by: &SessionInfo, request: Watch) -> Result<(), &'static str> {
        let kind = match request.kind.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| "invalid_data")?),
        };
        let sender = match request.uuid.is_empty() {
            true => None,
            false => Some(request.uuid.uuid().ok_or("invalid_data")?),
        };
        // The end of a session does not remove its watcher, so that is done here.
        let sessions = &self.sessions;
        self.watchers
            .retain(|watcher| watcher.operator != by.id && sessions.get(watcher.operator).is_some());
        if self.watchers.len() >= MAX_WATCHERS {
            return Err("too_many");
        }
        // A Watched without frames confirms the watch.
        let confirmation = Watched {
            id: request.id.clone(),
            ..Watched::default()
        };
        self.watchers.push(Watcher {
            operator: by.id,
            id: request.id,
            sender,
            kind,
            missed: 0,
        });
        self.answer(by.id, &Frame::of(&confirmation), 1);
        Ok(())
    }

    /// Reports received frames to the operators that watch.
    pub(super) fn notify_watchers(&mut self, from: &SessionInfo, kind: FrameKind, frames: u64, bytes: u64) {
        // A report must not hold the sender of the frames, so it is sent in the name of the application.
        let origin = std::mem::replace(&mut self.origin, Origin::Application);
        // Taken out of the state, because sending borrows all of it.
        let mut watchers = std::mem::take(&mut self.watchers);
        watchers.retain_mut(|watcher| {
            let Some(operator) = self.sessions.get(watcher.operator) else {
                return false;
            };
            let is_selected = watcher.sender.is_none_or(|uuid| uuid == from.uuid)
                && watcher.kind.is_none_or(|wanted| wanted == kind);
            if !is_selected {
                return true;
            }
            let waiting = operator.outbox.figures().waiting;
            if waiting.frames >= MAX_WAITING.0 || waiting.bytes >= MAX_WAITING.1 {
                watcher.missed += frames;
                return true;
            }
            let watched = Watched {
                id: watcher.id.clone(),
                uuid: from.uuid.into(),
                roles: from.role.to_string(),
                kind: kind.to_string(),
                frames,
                bytes,
                missed: std::mem::take(&mut watcher.missed),
            };
            self.push(
                watcher.operator,
                Watched::KIND,
                outgoing(&Frame::of(&watched), false),
            );
            true
        });
        self.watchers = watchers;
        self.origin = origin;
    }
}
