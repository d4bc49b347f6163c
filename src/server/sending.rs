//! The way out of the core: what it sends to sessions of this server, and the counters of frames by kind.

use super::actions::Actions;
use super::figures::{Figures, KindFigures};
use super::kinds::KindTable;
use super::sessions::SessionId;
use crate::proto::{ErrorCode, Frame, FrameKind, Run};
use crate::wire::outgoing;
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
    pub(super) actions: Actions,
    kinds: KindTable<KindCounters>,
    /// InvalidFrameType frames that the server has answered with.
    answered: u64,
    /// Frames for which a rule found no receiver.
    unreceived: u64,
}

impl Sending {
    pub(super) fn new() -> Self {
        Self {
            actions: Actions::new(),
            kinds: KindTable::default(),
            answered: 0,
            unreceived: 0,
        }
    }

    pub(super) fn push(&mut self, id: SessionId, kind: FrameKind, item: Outgoing) {
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

    pub(super) fn count_sent(&mut self, kind: FrameKind, load: Load) {
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
