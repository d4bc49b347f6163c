//! Frames on their way to several receivers: [`Parcel`].

use std::time::SystemTime;

use bytes::Bytes;

use super::own::OwnServer;
use super::sessions::Session;
use crate::proto::{Frame, FrameKind, Item, Run};
use crate::wire::outgoing;
use ssntp_transport::{Outgoing, nanoseconds};

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
            trace.stamp_sent(own.uuid, own.role, nanoseconds(wall));
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

    pub(super) fn for_session(&mut self, session: &Session) -> Outgoing {
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
