//! How frames get into the queues of sessions: by a rule, by a routing function,
//! or from the application; and what happens where there is no room.

use std::sync::Arc;

use bytes::Bytes;
use log::{debug, info, warn};
use uuid::Uuid;

use super::config::{Shared, SlowConsumer};
use super::dispatcher::{guard, now};
use super::handler::{DisconnectReason, SendError};
use super::routing::{Decision, Rule};
use super::sessions::{Directory, Session, SessionId, SessionInfo, Sessions};
use super::state::State;
use crate::Role;
use crate::proto::{ErrorCode, Frame, FrameKind, MAX_WASTE, answer_to_filtered, may_be_sent};
use crate::ssntp::wire::{outgoing, unix_nanos};
use crate::transport::{Outgoing, PushError};

/// One frame on its way to several sessions: encoded once with its trace and
/// once without, each only where somebody needs it.
pub(super) struct Fan<'a> {
    frame: &'a Frame,
    shared: &'a Arc<Shared>,
    plain: Option<Outgoing>,
    traced: Option<Outgoing>,
}

impl<'a> Fan<'a> {
    pub(super) fn new(frame: &'a Frame, shared: &'a Arc<Shared>) -> Self {
        Self {
            frame,
            shared,
            plain: None,
            traced: None,
        }
    }

    pub(super) fn for_session(&mut self, session: &Session) -> Outgoing {
        if session.info.tracing && self.frame.trace().is_some() {
            let traced = self.traced.get_or_insert_with(|| {
                let mut stamped = self.frame.clone();
                if let Some(trace) = stamped.trace_mut() {
                    trace.stamp_sent(self.shared.uuid, self.shared.role, unix_nanos());
                }
                outgoing(&stamped, true)
            });
            return traced.clone();
        }
        self.plain
            .get_or_insert_with(|| outgoing(self.frame, false))
            .clone()
    }
}

impl State {
    /// Queues the same frames for every session with a role but the sender.
    pub(super) fn fan_out(&mut self, from: SessionId, to: Role, mut item: impl FnMut(&Session) -> Outgoing) {
        let mut full = Vec::new();
        let mut slow = None;
        for session in self
            .sessions
            .with_role(to)
            .filter(|session| session.info.id != from)
        {
            match session.push(item(session), &self.at_once) {
                Ok(()) => {
                    if session.outbox.is_half_full() {
                        slow = Some(&session.outbox);
                    }
                }
                Err(PushError::Full(item)) => full.push((session.info.id, item)),
                Err(PushError::Closed(_)) => {}
            }
        }
        if let (Some(slow), Some(sender)) = (slow, self.sessions.get(from)) {
            sender.gate.slow_down_for(slow);
        }
        for (id, item) in full {
            self.overflow(id, item);
        }
    }

    /// `memory` is what the frame's payload keeps alive, in bytes.
    pub(super) fn route_by_function(&mut self, info: &Arc<SessionInfo>, frame: &Frame, memory: usize) {
        let Some(Rule::Function(route)) = self.rules.get_mut(frame.kind()) else {
            return;
        };
        let directory = Directory {
            sessions: &self.sessions,
        };
        let mut decision = Decision::Discard;
        guard("a routing function", || {
            decision = route(frame, info.uuid, &directory)
        });
        let frame = &match decision {
            Decision::Discard => return,
            Decision::Queue | Decision::Forward(_) => apart(frame, memory),
        };
        match decision {
            Decision::Discard => {}
            Decision::Queue => {
                if let Err(held) = self.held.keep(info.uuid, frame.clone(), now()) {
                    warn!(target: "ssntp::server", "{info}: {} finds the queue of held frames full", frame.kind());
                    self.overflowed.push(held);
                }
            }
            Decision::Forward(targets) => {
                let shared = Arc::clone(&self.shared);
                let mut fan = Fan::new(frame, &shared);
                for uuid in targets {
                    if let Err(e) = self.forward_fanned(info.id, uuid, &mut fan) {
                        debug!(target: "ssntp::server", "{info}: {} is not forwarded: {e}", frame.kind());
                    }
                }
            }
        }
    }

    /// Queues a frame of one session for another, and holds the sender back
    /// while the receiver's queue is long.
    fn forward_fanned(&mut self, from: SessionId, to: Uuid, fan: &mut Fan<'_>) -> Result<(), SendError> {
        let id = self.sessions.id_of(to).ok_or(SendError::NotConnected(to))?;
        if id == from {
            return Err(SendError::ToSender(to));
        }
        let session = self.sessions.get(id).ok_or(SendError::NotConnected(to))?;
        let item = fan.for_session(session);
        if !self.push(id, item) {
            return Err(SendError::QueueFull(to));
        }
        if let (Some(sender), Some(receiver)) = (self.sessions.get(from), self.sessions.get(id))
            && receiver.outbox.is_half_full()
        {
            sender.gate.slow_down_for(&receiver.outbox);
        }
        Ok(())
    }

    pub(super) fn forward(&mut self, from: SessionId, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        if !may_be_sent(frame.kind()) {
            return Err(SendError::Kind(frame.kind()));
        }
        let shared = Arc::clone(&self.shared);
        self.forward_fanned(from, to, &mut Fan::new(frame, &shared))
    }

    /// Queues an item for one session; false where it was not.
    fn push(&mut self, id: SessionId, item: Outgoing) -> bool {
        let Some(session) = self.sessions.get(id) else {
            return false;
        };
        match session.push(item, &self.at_once) {
            Ok(()) => true,
            Err(PushError::Full(item)) => self.overflow(id, item),
            Err(PushError::Closed(_)) => false,
        }
    }

    /// Applies the policy for slow consumers; true where the item was queued
    /// after all.
    fn overflow(&mut self, id: SessionId, item: Outgoing) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let first = session.counters.frames_dropped == 0;
        match self.slow_consumer {
            SlowConsumer::Disconnect => {
                session.counters.frames_dropped += u64::from(item.frames());
                let (frames, bytes) = session.outbox.waiting();
                warn!(target: "ssntp::server",
                    "{}: slow consumer: {frames} frames of {bytes} bytes wait, it is disconnected",
                    session.info
                );
                self.end(id, DisconnectReason::SlowConsumer, true);
                false
            }
            SlowConsumer::DropNewest => {
                session.counters.frames_dropped += u64::from(item.frames());
                if first {
                    warn!(target: "ssntp::server", "{}: slow consumer: the newest frames are dropped", session.info);
                }
                false
            }
            SlowConsumer::DropOldest => {
                if first {
                    warn!(target: "ssntp::server", "{}: slow consumer: the oldest frames are dropped", session.info);
                }
                let mut item = item;
                loop {
                    let dropped = session.outbox.drop_oldest();
                    session.counters.frames_dropped += u64::from(dropped);
                    item = match session.outbox.push(item) {
                        Ok(()) => return true,
                        Err(PushError::Full(item)) if dropped > 0 => item,
                        // All that is left is on its way to the system.
                        Err(PushError::Full(item) | PushError::Closed(item)) => {
                            session.counters.frames_dropped += u64::from(item.frames());
                            return false;
                        }
                    };
                }
            }
        }
    }

    /// Whether the application may send this at all.
    fn check(&self, frame: &Frame) -> Result<(), SendError> {
        let (len, limit) = (frame.payload_bytes().len(), self.shared.max_payload);
        if !may_be_sent(frame.kind()) {
            Err(SendError::Kind(frame.kind()))
        } else if u32::try_from(len).is_ok_and(|len| len <= limit) {
            Ok(())
        } else {
            Err(SendError::TooLong { len, limit })
        }
    }

    pub(super) fn send(&mut self, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        self.check(frame)?;
        let id = self.sessions.id_of(to).ok_or(SendError::NotConnected(to))?;
        let shared = Arc::clone(&self.shared);
        let Some(session) = self.sessions.get(id) else {
            return Err(SendError::NotConnected(to));
        };
        let item = Fan::new(frame, &shared).for_session(session);
        if self.push(id, item) {
            Ok(())
        } else {
            Err(SendError::QueueFull(to))
        }
    }

    pub(super) fn send_where(
        &mut self,
        frame: &Frame,
        targets: impl FnOnce(&Sessions, &mut dyn FnMut(&Session)),
    ) -> Result<usize, SendError> {
        self.check(frame)?;
        let shared = Arc::clone(&self.shared);
        let mut fan = Fan::new(frame, &shared);
        let mut full = Vec::new();
        let mut queued = 0;
        targets(
            &self.sessions,
            &mut |session| match session.push(fan.for_session(session), &self.at_once) {
                Ok(()) => queued += 1,
                Err(PushError::Full(item)) => full.push((session.info.id, item)),
                Err(PushError::Closed(_)) => {}
            },
        );
        for (id, item) in full {
            queued += usize::from(self.overflow(id, item));
        }
        Ok(queued)
    }

    /// Sends a frame back to the session that caused it.
    pub(super) fn answer(&mut self, id: SessionId, frame: &Frame) {
        self.push(id, outgoing(frame, false));
    }

    pub(super) fn filtered(&mut self, id: SessionId, kind: FrameKind, frames: u32) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.counters.frames_filtered += u64::from(frames);
        debug!(target: "ssntp::server", "{}: may not send {kind}", session.info);
        if !self.filter.rejects() {
            return;
        }
        if let Some(answer) = answer_to_filtered(kind) {
            for _ in 0..frames {
                self.answer(id, &answer);
            }
        }
    }

    /// A CONFIGURE from a controller; false where it was refused.
    pub(super) fn configure(&mut self, id: SessionId, frame: &Frame) -> bool {
        let payload = frame.payload_bytes();
        let mut verdict = Err("its check panicked".to_owned());
        guard("the configuration check", || verdict = (self.check)(payload));
        match verdict {
            Ok(()) => {
                if let Some(session) = self.sessions.get(id) {
                    info!(target: "ssntp::server",
                        "{}: new cluster configuration of {} bytes",
                        session.info,
                        payload.len()
                    );
                }
                // A copy of its own: the payload is a slice of a longer read.
                self.configuration = Bytes::copy_from_slice(payload);
                true
            }
            Err(why) => {
                if let Some(session) = self.sessions.get(id) {
                    warn!(target: "ssntp::server", "{}: CONFIGURE refused: {why}", session.info);
                }
                let refused = Frame::with_payload(ErrorCode::INVALID_CONFIGURATION, payload.clone());
                self.answer(id, &refused);
                false
            }
        }
    }
}

/// The frame as it may wait in a queue that counts its length alone: in memory
/// of its own where it is a small part of the run it was found in.
fn apart(frame: &Frame, memory: usize) -> Frame {
    let payload = frame.payload_bytes();
    if payload.len() >= memory / MAX_WASTE {
        return frame.clone();
    }
    let copy = Frame::with_payload(frame.kind(), Bytes::copy_from_slice(payload));
    match frame.trace() {
        Some(trace) => copy.traced(trace.clone()),
        None => copy,
    }
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
