//! Operators that watch which client sends what.
//!
//! ```text
//!  Watch ─▶ a row for the operator ─▶ Watched, without frames
//!  a run that was received ─▶ row asks for it? ─ little waits for the operator ─▶ Watched
//!                                              └ else ─▶ counted, and told with the next one
//! ```
//!
//! A row ends with its operator's session. Nobody waits for an operator that watches: it is told
//! of a run only while its queue is nearly empty.

use uuid::Uuid;

use super::core::State;
use super::sessions::{SessionId, SessionInfo};
use crate::payload::{Id, Payload, Watch, Watched};
use crate::proto::{Frame, FrameKind};
use crate::wire::outgoing;
use ssntp_transport::dispatch::Origin;

/// How many operators may watch. Each received run is compared with all of them.
const MAX_WATCHERS: usize = 16;
/// How much may wait for an operator that is told of one more run. The queue of a session always
/// takes 64 KiB, so that no Watched ever waits in a line.
const MAX_WAITING: (u64, u64) = (128, 32 << 10);

/// An operator that watches, and what it asked for.
#[derive(Debug)]
pub(super) struct Watcher {
    to: SessionId,
    id: Id,
    from: Option<Uuid>,
    kind: Option<FrameKind>,
    missed: u64,
}

impl State {
    /// Notes what an operator wants to be told of. An error is the reason in InvalidFrameType.
    pub(super) fn watch(&mut self, by: &SessionInfo, asked: Watch) -> Result<(), &'static str> {
        let kind = match asked.kind.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| "invalid_data")?),
        };
        let from = match asked.uuid.is_empty() {
            true => None,
            false => Some(asked.uuid.uuid().ok_or("invalid_data")?),
        };
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

    /// Tells operators of frames that were received.
    pub(super) fn show_watchers(&mut self, from: &SessionInfo, kind: FrameKind, frames: u64, bytes: u64) {
        let origin = std::mem::replace(&mut self.origin, Origin::Application);
        let mut watchers = std::mem::take(&mut self.watchers);
        watchers.retain_mut(|watcher| {
            let Some(operator) = self.sessions.get(watcher.to) else {
                return false;
            };
            let is_meant = watcher.from.is_none_or(|uuid| uuid == from.uuid)
                && watcher.kind.is_none_or(|wanted| wanted == kind);
            if !is_meant {
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
