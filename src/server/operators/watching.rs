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

use crate::payload::{Id, Watch, Watched};
use crate::proto::{Frame, FrameKind};
use crate::server::delivery::Delivery;
use crate::server::sessions::{SessionId, SessionInfo, Sessions};
use ssntp_transport::dispatch::Origin;

/// The maximum number of operators that watch. Each received run is compared with all of them.
const MAX_WATCHERS: usize = 16;
/// If an operator's queue has this many frames or bytes, further runs are only counted. A queue always has
/// room for 64 KiB, so no Watched waits for room.
const MAX_WAITING: (u64, u64) = (128, 32 << 10);

/// An operator that watches, and the frames that it has selected.
#[derive(Debug)]
struct Watcher {
    operator: SessionId,
    id: Id,
    sender: Option<Uuid>,
    kind: Option<FrameKind>,
    /// The number of frames since the last Watched that were not reported.
    missed: u64,
}

/// The operators that watch.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Vec<Watcher>);

impl Watchers {
    /// Begins a watch of the operator, which replaces an earlier one. Returns the confirmation, a Watched
    /// without frames. The error is the reason for InvalidFrameType.
    pub(crate) fn add(
        &mut self,
        operator: SessionId,
        request: Watch,
        sessions: &Sessions,
    ) -> Result<Watched, &'static str> {
        let kind = match request.kind.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| "invalid_data")?),
        };
        let sender = if request.uuid.is_empty() {
            None
        } else {
            Some(request.uuid.uuid().ok_or("invalid_data")?)
        };
        // The end of a session does not remove its watcher, so that is done here.
        self.0
            .retain(|watcher| watcher.operator != operator && sessions.get(watcher.operator).is_some());
        if self.0.len() >= MAX_WATCHERS {
            return Err("too_many");
        }
        let confirmation = Watched {
            id: request.id.clone(),
            ..Watched::default()
        };
        self.0.push(Watcher {
            operator,
            id: request.id,
            sender,
            kind,
            missed: 0,
        });
        Ok(confirmation)
    }

    /// Reports received frames to the operators that watch.
    pub(in crate::server) fn notify(
        &mut self,
        delivery: &mut Delivery,
        from: &SessionInfo,
        kind: FrameKind,
        (frames, bytes): (u64, u64),
    ) {
        let (sessions, out) = (&delivery.sessions, &mut delivery.out);
        // A report must not hold the sender of the frames.
        let origin = out.set_origin(Origin::Application);
        self.0.retain_mut(|watcher| {
            let Some(operator) = sessions.get(watcher.operator) else {
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
            out.own(watcher.operator, &Frame::of(&watched));
            true
        });
        out.set_origin(origin);
    }
}
