//! Watch: operators that get a report of each received frame.
//!
//! ```text
//!  Watch ─▶ a Watcher for the operator ─▶ Watched, without frames
//!  a received run ─▶ does the Watcher select it? ─ the operator's queue is short ─▶ Watched
//!                                                └ otherwise ─▶ counted, in the next Watched
//! ```
//!
//! A Watcher ends with its operator's session. No sender is held for an operator that watches, because
//! Watched is sent only while the operator's queue is nearly empty.

use uuid::Uuid;

use super::core::State;
use super::sessions::{SessionId, SessionInfo};
use crate::payload::{Id, Payload, Watch, Watched};
use crate::proto::{Frame, FrameKind};
use crate::wire::outgoing;
use ssntp_transport::dispatch::Origin;

/// The most operators that watch at a time. Each received run is compared with all of them.
const MAX_WATCHERS: usize = 16;
/// The frames and bytes in an operator's queue from which on runs are only counted. A queue always takes
/// 64 KiB, so no Watched ever waits in a line.
const MAX_WAITING: (u64, u64) = (128, 32 << 10);

/// An operator that watches, and the frames that it has selected.
#[derive(Debug)]
pub(super) struct Watcher {
    to: SessionId,
    id: Id,
    from: Option<Uuid>,
    kind: Option<FrameKind>,
    /// The number of frames since the last Watched that were not reported.
    missed: u64,
}

impl State {
    /// Begins to watch, in place of an earlier Watch of the operator. The error is the reason in
    /// InvalidFrameType.
    pub(super) fn watch(&mut self, by: &SessionInfo, asked: Watch) -> Result<(), &'static str> {
        let kind = match asked.kind.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| "invalid_data")?),
        };
        let from = match asked.uuid.is_empty() {
            true => None,
            false => Some(asked.uuid.uuid().ok_or("invalid_data")?),
        };
        // Watchers whose session has ended make room here, because an end does not touch this list.
        let sessions = &self.sessions;
        self.watchers
            .retain(|watcher| watcher.to != by.id && sessions.get(watcher.to).is_some());
        if self.watchers.len() >= MAX_WATCHERS {
            return Err("too_many");
        }
        let began = Watched {
            id: asked.id.clone(),
            ..Watched::default()
        };
        self.watchers.push(Watcher {
            to: by.id,
            id: asked.id,
            from,
            kind,
            missed: 0,
        });
        self.answer(by.id, &Frame::of(&began), 1);
        Ok(())
    }

    /// Reports received frames to the operators that watch.
    pub(super) fn notify_watchers(&mut self, from: &SessionInfo, kind: FrameKind, frames: u64, bytes: u64) {
        // The sender of the frames must not be held for a report about them.
        let origin = std::mem::replace(&mut self.origin, Origin::Application);
        // Taken out, because sending needs the whole state.
        let mut watchers = std::mem::take(&mut self.watchers);
        watchers.retain_mut(|watcher| {
            let Some(operator) = self.sessions.get(watcher.to) else {
                return false;
            };
            let is_selected = watcher.from.is_none_or(|uuid| uuid == from.uuid)
                && watcher.kind.is_none_or(|wanted| wanted == kind);
            if !is_selected {
                return true;
            }
            let waiting = operator.gauge.books().waiting;
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
            self.push(watcher.to, Watched::KIND, outgoing(&Frame::of(&watched), false));
            true
        });
        self.watchers = watchers;
        self.origin = origin;
    }
}
