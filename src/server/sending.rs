//! Sending: frames on their way to several receivers, and the actions that send them.
//!
//! The core collects all actions of one call here, in order, and its owner carries them out. Each item
//! has an *origin*: the connection that is not read while the item waits for room at its receiver.

use std::time::SystemTime;

use bytes::Bytes;

use super::error::SendError;
use super::own::OwnServer;
use super::sessions::Session;
use crate::proto::{self, Frame, FrameKind, Item, Run};
use crate::wire::{outgoing, unix_nanos_at};
use ssntp_transport::dispatch::{Action, Origin};
use ssntp_transport::{ConnectionId, Load, Outgoing};

/// Frames of one kind on their way to several receivers.
pub(super) struct Parcel {
    kind: FrameKind,
    /// For sessions that do not want traces.
    plain: Outgoing,
    /// One frame with the time at which it leaves in its trace, if it has one.
    traced: Option<Frame>,
    /// The encoding of `traced`, made when the first session needs it.
    encoded: Option<Outgoing>,
}

impl Parcel {
    /// All receivers share the received bytes, so nothing is encoded again.
    pub(super) fn run(run: &Run) -> Self {
        Self {
            kind: run.kind(),
            plain: Outgoing::whole(run.wire().clone(), run.len()),
            traced: None,
            encoded: None,
        }
    }

    /// `own` and `wall` stamp the frame's trace.
    pub(super) fn frame(frame: &Frame, own: &OwnServer, wall: SystemTime) -> Self {
        let mut traced = frame.trace().is_some().then(|| frame.clone());
        if let Some(trace) = traced.as_mut().and_then(Frame::trace_mut) {
            trace.stamp_sent(own.uuid, own.role, unix_nanos_at(wall));
        }
        Self {
            kind: frame.kind(),
            plain: outgoing(frame, false),
            traced,
            encoded: None,
        }
    }

    /// `None` if the item has no frames.
    pub(super) fn of(item: &Item, own: &OwnServer, wall: SystemTime) -> Option<Self> {
        match item {
            Item::Run(run) => Some(Self::run(run)),
            Item::Traced(frame) => Some(Self::frame(frame, own, wall)),
            Item::Unsupported(_) => None,
        }
    }

    pub(super) fn kind(&self) -> FrameKind {
        self.kind
    }

    pub(super) fn frames(&self) -> u32 {
        self.plain.frames()
    }

    fn for_session(&mut self, session: &Session) -> Outgoing {
        match &self.traced {
            Some(frame) if session.info.tracing => {
                self.encoded.get_or_insert_with(|| outgoing(frame, true)).clone()
            }
            _ => self.plain.clone(),
        }
    }

    /// True with a frame with its trace, false with frames of one kind, for sessions of another server.
    pub(super) fn for_link(&self) -> (bool, Bytes) {
        match &self.traced {
            Some(frame) => (true, frame.encode()),
            None => (false, self.plain.bytes()),
        }
    }
}

/// The actions of one call of the core.
#[derive(Debug)]
pub(super) struct Sending {
    actions: Vec<Action>,
    origin: Origin,
}

impl Sending {
    pub(super) fn new() -> Self {
        Self {
            actions: Vec::new(),
            origin: Origin::Application,
        }
    }

    /// Exchanges the collected actions with those of the core's owner.
    pub(super) fn swap(&mut self, actions: &mut Vec<Action>) {
        std::mem::swap(&mut self.actions, actions);
    }

    /// The number of collected actions.
    pub(super) fn len(&self) -> usize {
        self.actions.len()
    }

    /// The origin of items that are sent now.
    pub(super) fn origin(&self) -> Origin {
        self.origin
    }

    /// Sets the origin of the next items. Returns the one before.
    pub(super) fn set_origin(&mut self, origin: Origin) -> Origin {
        std::mem::replace(&mut self.origin, origin)
    }

    pub(super) fn send(&mut self, to: ConnectionId, item: Outgoing) {
        let origin = self.origin;
        self.actions.push(Action::Send { origin, to, item });
    }

    /// Sends an item of the server itself, for which no connection is paused.
    pub(super) fn send_own(&mut self, to: ConnectionId, item: Outgoing) {
        let origin = self.set_origin(Origin::Application);
        self.send(to, item);
        self.origin = origin;
    }

    /// Sends frames to each of the sessions. Returns what was sent: an item for each session.
    pub(super) fn send_to<'a>(
        &mut self,
        sessions: impl Iterator<Item = &'a Session>,
        parcel: &mut Parcel,
    ) -> Load {
        let (origin, mut sent) = (self.origin, Load::default());
        self.actions.extend(sessions.map(|session| {
            let item = parcel.for_session(session);
            sent += item.load();
            let to = session.info.id.0;
            Action::Send { origin, to, item }
        }));
        sent
    }

    /// Ends a connection: at once with `abort`, otherwise after its queue is sent.
    pub(super) fn end(&mut self, id: ConnectionId, abort: bool) {
        self.actions.push(Action::End { id, abort });
    }

    /// Pauses a connection for another server, or ends that pause.
    pub(super) fn pause(&mut self, id: ConnectionId, paused: bool) {
        self.actions.push(Action::Pause { id, paused });
    }

    /// Ends all connections.
    pub(super) fn stop(&mut self) {
        self.actions.push(Action::Stop);
    }
}

/// Checks that the application may send frames of this kind, and the length.
pub(super) fn check(frame: &Frame, own: &OwnServer) -> Result<(), SendError> {
    if !own.operands.may_be_sent(frame.kind()) {
        return Err(SendError::Kind(frame.kind()));
    }
    check_length(frame.payload_bytes().len(), own)
}

/// Checks the length of a payload.
pub(super) fn check_length(len: usize, own: &OwnServer) -> Result<(), SendError> {
    let limit = own.max_payload;
    if u32::try_from(len).is_ok_and(|len| len <= limit) {
        Ok(())
    } else {
        Err(SendError::TooLong { len, limit })
    }
}

/// Returns the frame for a queue that counts only the frame's own length. If its payload is a small part
/// of the `memory` that it keeps alive, the payload is copied, so that a short frame in a queue does not
/// keep much more memory than is counted.
pub(super) fn apart(frame: &Frame, memory: usize) -> Frame {
    frame.carrying(proto::apart(frame.payload_bytes().clone(), memory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Command;

    #[test]
    fn a_frame_that_waits_keeps_no_long_run_alive() {
        let run = Bytes::from(vec![7; 100_000]);
        let found = |len| Frame::with_payload(Command::STATS, run.slice(..len));
        let small = apart(&found(10), run.len());
        assert!(small.payload_bytes().is_unique() && small == found(10));
        let most = apart(&found(90_000), run.len());
        assert_eq!(most.payload_bytes().as_ptr(), run.as_ptr(), "shared");
    }
}
