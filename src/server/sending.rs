//! The way out of the core: the actions of one call, in order, which its owner carries out, and the counters of
//! frames by kind.
//!
//! Each item that is sent has an *origin*: the connection that is not read while the item waits for room at
//! its receiver.

use super::kinds::{KindFigures, KindTable};
use super::sessions::SessionId;
use crate::proto::{ErrorCode, Frame, FrameKind, Run, invalid_frame_type};
use crate::wire::outgoing;
use ssntp_transport::dispatch::{Action, Origin};
use ssntp_transport::{ConnectionId, Load, Outgoing};

/// The frames of one kind that were received and sent.
#[derive(Clone, Copy, Debug, Default)]
struct KindCounters {
    received: Load,
    sent: Load,
}

/// The way out of the core.
#[derive(Debug)]
pub(super) struct Sending {
    actions: Vec<Action>,
    origin: Origin,
    kinds: KindTable<KindCounters>,
    /// InvalidFrameType frames that the server has answered with.
    answered: u64,
    /// Frames for which a rule found no receiver.
    unreceived: u64,
}

impl Sending {
    pub(super) fn new() -> Self {
        Self {
            actions: Vec::new(),
            origin: Origin::Application,
            kinds: KindTable::default(),
            answered: 0,
            unreceived: 0,
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

    /// Sends an item without counting its frames.
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

    pub(super) fn push(&mut self, id: SessionId, kind: FrameKind, item: Outgoing) {
        self.count_sent(kind, item.load());
        self.send(id.0, item);
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

    /// Answers a frame, or `times` frames, of a session with InvalidFrameType. An ERROR is never answered.
    pub(super) fn refuse(&mut self, id: SessionId, kind: FrameKind, reason: &str, times: u32) {
        if let Some(answer) = invalid_frame_type(kind, reason) {
            self.answer(id, &answer, times);
        }
    }

    /// Counts received frames of a supported kind, and their bytes.
    pub(super) fn count_received(&mut self, kind: FrameKind, frames: u32, bytes: u64) {
        if let Some(counters) = self.kinds.get_or_default(kind) {
            let (items, frames) = (1, frames.into());
            counters.received += Load { items, frames, bytes };
        }
    }

    pub(super) fn count_sent(&mut self, kind: FrameKind, load: Load) {
        if let Some(counters) = self.kinds.get_or_default(kind) {
            counters.sent += load;
        }
    }

    /// Counts frames for which a rule found no receiver.
    pub(super) fn count_unreceived(&mut self, frames: u32) {
        self.unreceived += u64::from(frames);
    }

    /// The InvalidFrameType frames that were sent, and the frames for which a rule found no receiver.
    pub(super) fn counted(&self) -> (u64, u64) {
        (self.answered, self.unreceived)
    }

    /// The frames of each kind, without the names of kinds.
    pub(super) fn kinds(&self) -> Vec<KindFigures> {
        let kinds = self.kinds.iter().map(|(kind, counters)| KindFigures {
            kind,
            name: String::new(),
            frames_received: counters.received.frames,
            bytes_received: counters.received.bytes,
            frames_sent: counters.sent.frames,
            bytes_sent: counters.sent.bytes,
        });
        kinds.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::FrameType;

    #[test]
    fn frames_of_every_known_type_are_counted_by_kind() {
        let mut counted = Sending::new();
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
