//! Sending: frames to sessions of this server and over links, and the counters of frames by kind.

use std::sync::Arc;
use std::time::SystemTime;

use uuid::Uuid;

use super::actions::Actions;
use super::error::SendError;
use super::figures::{Figures, KindFigures};
use super::kinds::KindTable;
use super::links::Links;
use super::own::OwnServer;
use super::parcel::Parcel;
use super::sessions::{SessionId, Sessions};
use crate::proto::{ErrorCode, Frame, FrameKind, Run};
use crate::wire::outgoing;
use ssntp_pki::Role;
use ssntp_transport::{Load, Outgoing};

/// The frames of one kind that were received and sent.
#[derive(Clone, Copy, Debug, Default)]
struct KindCounters {
    received: Load,
    sent: Load,
}

/// The way out of the core.
#[derive(Debug)]
pub(super) struct Sending {
    own: Arc<OwnServer>,
    pub(super) actions: Actions,
    kinds: KindTable<KindCounters>,
    /// InvalidFrameType frames that the server has answered with.
    answered: u64,
    /// Frames for which a rule found no receiver.
    unreceived: u64,
}

impl Sending {
    pub(super) fn new(own: Arc<OwnServer>) -> Self {
        Self {
            own,
            actions: Actions::new(),
            kinds: KindTable::default(),
            answered: 0,
            unreceived: 0,
        }
    }

    /// Checks that the application may send frames of this kind, and the length.
    pub(super) fn check(&self, frame: &Frame) -> Result<(), SendError> {
        if !self.own.operands.may_be_sent(frame.kind()) {
            return Err(SendError::Kind(frame.kind()));
        }
        self.own.check_length(frame.payload_bytes().len())
    }

    /// A frame that leaves at the time `wall`, for several receivers.
    pub(super) fn parcel(&self, frame: &Frame, wall: SystemTime) -> Parcel {
        Parcel::frame(frame, &self.own, wall)
    }

    /// Sends frames to every session of this server with a role, except to `from`. Returns the number of
    /// sessions.
    pub(super) fn send_to_role_here(
        &mut self,
        from: Option<Uuid>,
        to: Role,
        parcel: &mut Parcel,
        sessions: &Sessions,
    ) -> usize {
        let (before, mut sent) = (self.actions.len(), Load::default());
        for session in sessions.with_role(to) {
            if Some(session.info.uuid) != from {
                let item = parcel.for_session(session);
                sent += item.load();
                self.actions.send(session.info.id.0, item);
            }
        }
        // Counted once for all receivers, because a thousand look-ups of the kind would take time.
        self.count_sent(parcel.kind(), sent);
        self.actions.len() - before
    }

    /// As [`send_to_role_here`](Self::send_to_role_here), and also to the sessions of other servers.
    pub(super) fn send_to_role(
        &mut self,
        from: Option<Uuid>,
        to: Role,
        parcel: &mut Parcel,
        (sessions, links): (&Sessions, &Links),
    ) -> usize {
        let here = self.send_to_role_here(from, to, parcel, sessions);
        here + links.send_to_role(to, from, parcel, &mut self.actions)
    }

    /// Sends frames to one session of this server. False if there is none of that UUID.
    pub(super) fn here(&mut self, to: Uuid, parcel: &mut Parcel, sessions: &Sessions) -> bool {
        let session = sessions.of(to);
        if let Some(session) = session {
            let item = parcel.for_session(session);
            self.push(session.info.id, parcel.kind(), item);
        }
        session.is_some()
    }

    /// Sends frames to one session, of this server or of another one. `from` is the client that the
    /// frames came from; it is an error to send them back to it.
    pub(super) fn send_to_one(
        &mut self,
        from: Option<Uuid>,
        to: Uuid,
        parcel: &mut Parcel,
        (sessions, links): (&Sessions, &Links),
    ) -> Result<(), SendError> {
        if Some(to) == from {
            Err(SendError::ToSender(to))
        } else if self.here(to, parcel, sessions) {
            Ok(())
        } else {
            links.send_to(to, from, parcel, &mut self.actions)
        }
    }

    fn push(&mut self, id: SessionId, kind: FrameKind, item: Outgoing) {
        self.count_sent(kind, item.load());
        self.actions.send(id.0, item);
    }

    /// Sends a frame of the server itself to a session.
    pub(super) fn own(&mut self, id: SessionId, frame: &Frame) {
        self.push(id, frame.kind(), outgoing(frame, false));
    }

    /// Sends a frame `times` times to a session, as the answer to its own frames.
    pub(super) fn answer(&mut self, id: SessionId, frame: &Frame, times: u32) {
        // One item for all answers to a run, so that a run of refused frames takes one place in a queue.
        let item = if times == 1 {
            outgoing(frame, false)
        } else {
            let run = Run::of(frame);
            Outgoing::whole(run.wire().repeat(times as usize).into(), times)
        };
        // The figure counts only InvalidFrameType, which answers unsupported and filtered frames.
        if frame.kind() == ErrorCode::INVALID_FRAME_TYPE {
            self.answered += u64::from(times);
        }
        self.push(id, frame.kind(), item);
    }

    /// Counts received frames of a supported kind, and their bytes.
    pub(super) fn count_received(&mut self, kind: FrameKind, frames: u32, bytes: u64) {
        if let Some(counters) = self.kinds.get_or_default(kind) {
            let (items, frames) = (1, frames.into());
            counters.received += Load { items, frames, bytes };
        }
    }

    fn count_sent(&mut self, kind: FrameKind, load: Load) {
        if let Some(counters) = self.kinds.get_or_default(kind) {
            counters.sent += load;
        }
    }

    /// Counts frames for which a rule found no receiver.
    pub(super) fn count_unreceived(&mut self, frames: u32) {
        self.unreceived += u64::from(frames);
    }

    /// Sets the figures that are counted here.
    pub(super) fn show(&self, figures: &mut Figures) {
        let kinds = self.kinds.iter().map(|(kind, counters)| KindFigures {
            kind,
            name: String::new(),
            frames_received: counters.received.frames,
            bytes_received: counters.received.bytes,
            frames_sent: counters.sent.frames,
            bytes_sent: counters.sent.bytes,
        });
        figures.frames = kinds.collect();
        figures.answered = self.answered;
        figures.unreceived = self.unreceived;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{FrameType, Operands};

    #[test]
    fn frames_of_every_known_type_are_counted_by_kind() {
        let own = OwnServer {
            uuid: Uuid::nil(),
            role: Role::SERVER,
            incarnation: 0,
            max_payload: 0,
            operands: Operands::new(),
            advertised: String::new(),
        };
        let mut counted = Sending::new(Arc::new(own));
        for frame_type in 0..=u8::MAX {
            for operand in 0..=u8::MAX {
                counted.count_received(FrameKind::new(FrameType(frame_type), operand), 2, 20);
            }
        }
        let kinds: Vec<_> = counted.kinds.iter().collect();
        let known = (0..=u8::MAX).filter(|byte| FrameType(*byte).is_known()).count();
        assert!(kinds.len() >= known * 256);
        assert!(
            kinds
                .iter()
                .all(|(_, counters)| (counters.received.frames, counters.received.bytes) == (2, 20))
        );
        assert!(kinds.is_sorted_by_key(|(kind, _)| *kind));
    }
}
