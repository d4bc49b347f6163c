//! How frames get into the queues of sessions: by a rule, by a routing function,
//! or from the application; and what happens where there is no room.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use log::{debug, info, warn};
use uuid::Uuid;

use super::config::{Environment, SlowConsumer};
use super::core::{State, guard};
use super::disconnect::DisconnectReason;
use super::federation::Bundle;
use super::handler::SendError;
use super::routing::{Decision, Rule};
use super::sessions::{Directory, Session, SessionId, SessionInfo};
use crate::proto::{ErrorCode, Frame, FrameKind, MAX_WASTE, Run, answer_to_filtered};
use crate::wire::{outgoing, unix_nanos_at};
use ssntp_transport::Role;
use ssntp_transport::dispatch::{Action, Drops};
use ssntp_transport::excerpt;
use ssntp_transport::{Load, Outgoing};

/// One frame on its way to several sessions: encoded once with its trace and
/// once without, each only where somebody needs it.
pub(super) struct Fan<'a> {
    frame: &'a Frame,
    environment: Arc<Environment>,
    /// When it leaves.
    wall: SystemTime,
    plain: Option<Outgoing>,
    traced: Option<Outgoing>,
}

impl<'a> Fan<'a> {
    pub(super) fn new(frame: &'a Frame, state: &State) -> Self {
        Self {
            frame,
            environment: Arc::clone(&state.environment),
            wall: state.wall,
            plain: None,
            traced: None,
        }
    }

    pub(super) fn for_session(&mut self, session: &Session) -> Outgoing {
        if session.info.tracing && self.frame.trace().is_some() {
            let traced = self.traced.get_or_insert_with(|| {
                let mut stamped = self.frame.clone();
                if let Some(trace) = stamped.trace_mut() {
                    trace.stamp_sent(
                        self.environment.uuid,
                        self.environment.role,
                        unix_nanos_at(self.wall),
                    );
                }
                outgoing(&stamped, true)
            });
            return traced.clone();
        }
        self.plain
            .get_or_insert_with(|| outgoing(self.frame, false))
            .clone()
    }

    /// The frame for sessions of another server, with its trace.
    pub(super) fn for_link(&self) -> Bundle {
        let mut frame = self.frame.clone();
        let Some(trace) = frame.trace_mut() else {
            return Bundle::from(&Run::of(&frame));
        };
        trace.stamp_sent(
            self.environment.uuid,
            self.environment.role,
            unix_nanos_at(self.wall),
        );
        Bundle {
            bytes: frame.encode(),
            frames: 1,
            traced: true,
        }
    }
}

impl State {
    /// Sends frames of one session to every other session with a role. Returns how many frames
    /// that makes.
    pub(super) fn fan_out(
        &mut self,
        from: SessionId,
        to: Role,
        kind: FrameKind,
        mut item: impl FnMut(&Session) -> Outgoing,
    ) -> u64 {
        let sessions = self.sessions.with_role(to);
        let others = sessions.filter(|session| session.info.id != from);
        let (origin, mut sent) = (self.origin, Load::default());
        self.actions.extend(others.map(|session| {
            let item = item(session);
            sent += item.load();
            Action::Send {
                origin,
                to: session.info.id.0,
                item,
            }
        }));
        // Once for all receivers, because a look-up for each of a thousand would show.
        self.tally.sent(kind, sent);
        sent.frames
    }

    /// Calls the routing function for the frame's kind and does what it decides:
    /// discards the frame, holds it, or forwards it. `memory` is how many bytes the
    /// frame's payload keeps alive.
    pub(super) fn route_by_function(&mut self, info: &Arc<SessionInfo>, frame: &Frame, memory: usize) {
        let Some(Rule::Function(route)) = self.rules.get_mut(frame.kind()) else {
            return;
        };
        let directory = Directory {
            sessions: &self.sessions,
            roster: &self.links.roster,
        };
        // A function that panics discards its frame: any guess at a receiver could be wrong.
        let mut decision = Decision::Discard;
        let panic = guard(|| decision = route(frame, info.uuid, &directory));
        self.note_panic("a routing function", panic);
        match decision {
            Decision::Discard => {}
            Decision::Queue => {
                if let Err(held) = self.held.keep(info.uuid, apart(frame, memory), self.now) {
                    if let Some(more) = info.may_log(&mut self.log, "held frames", self.now) {
                        warn!(target: "ssntp::server",
                            "{info}: {} finds the queue of held frames full{more}",
                            self.environment.operands.show(frame.kind())
                        );
                    }
                    self.expired.push(held);
                }
            }
            Decision::Forward(targets) => {
                let frame = apart(frame, memory);
                let mut fan = Fan::new(&frame, self);
                let mut count = 0;
                for uuid in targets {
                    match self.send_fanned(Some(info.uuid), uuid, &mut fan) {
                        Ok(()) => count += 1,
                        Err(e) => {
                            let kind = self.environment.operands.show(frame.kind());
                            debug!(target: "ssntp::server", "{info}: {kind} is not forwarded: {e}");
                        }
                    }
                }
                if count == 0 {
                    self.tally.unreceived += 1;
                }
            }
        }
    }

    /// Sends a frame to a session. It is an error if that is the session of `from`, which
    /// the frame came from.
    fn send_fanned(&mut self, from: Option<Uuid>, to: Uuid, fan: &mut Fan<'_>) -> Result<(), SendError> {
        if Some(to) == from {
            return Err(SendError::ToSender(to));
        }
        let Some(id) = self.sessions.id_of(to) else {
            return self.send_to_remote(from, to, || fan.for_link());
        };
        let session = self.sessions.get(id).ok_or(SendError::NotConnected(to))?;
        let item = fan.for_session(session);
        self.push(id, fan.frame.kind(), item);
        Ok(())
    }

    pub(super) fn forward(&mut self, from: Uuid, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        if !self.environment.operands.may_be_sent(frame.kind()) {
            return Err(SendError::Kind(frame.kind()));
        }
        self.forward_any_kind(from, to, frame)
    }

    /// As [`forward`](Self::forward), but without the check of the kind, so that it also
    /// forwards requests and answers.
    pub(super) fn forward_any_kind(&mut self, from: Uuid, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        self.send_fanned(Some(from), to, &mut Fan::new(frame, self))
    }

    /// Sends an item to one session.
    pub(super) fn push(&mut self, id: SessionId, kind: FrameKind, item: Outgoing) {
        self.tally.sent(kind, item.load());
        self.actions.push(Action::Send {
            origin: self.origin,
            to: id.0,
            item,
        });
    }

    /// Applies the policy for slow consumers to a session for which more waits than it may
    /// have, and nobody can be made to wait: `newest` came last.
    pub(super) fn overflow(&mut self, id: SessionId, newest: Load) -> Drops {
        let Some(session) = self.sessions.get_mut(id) else {
            self.tally.dropped(newest);
            return Drops::Newest;
        };
        let first = session.counters().frames_dropped == 0;
        let (what, drops) = match self.slow_consumer {
            SlowConsumer::Disconnect => {
                let counters = session.counters();
                if let Some(more) = session.info.may_log(&mut self.log, "slow consumer", self.now) {
                    warn!(target: "ssntp::server",
                        "{}: it is a slow consumer: {} frames, {} bytes in all, wait for it, so it is disconnected{more}",
                        session.info, counters.frames_waiting, counters.bytes_waiting
                    );
                }
                // At once, because it does not take what waits for it.
                self.end(id, DisconnectReason::SlowConsumer, true);
                self.tally.dropped(newest);
                return Drops::Newest;
            }
            SlowConsumer::DropNewest => ("newest", Drops::Newest),
            SlowConsumer::DropOldest => ("oldest", Drops::Oldest),
        };
        // Once for each session: the policy applies to every further frame.
        if first {
            warn!(target: "ssntp::server", "{}: slow consumer: the {what} frames are dropped", session.info);
        }
        drops
    }

    /// Whether the application may send this at all.
    fn check(&self, frame: &Frame) -> Result<(), SendError> {
        if !self.environment.operands.may_be_sent(frame.kind()) {
            return Err(SendError::Kind(frame.kind()));
        }
        self.check_length(frame)
    }

    pub(super) fn check_length(&self, frame: &Frame) -> Result<(), SendError> {
        let (len, limit) = (frame.payload_bytes().len(), self.environment.max_payload);
        if u32::try_from(len).is_ok_and(|len| len <= limit) {
            Ok(())
        } else {
            Err(SendError::TooLong { len, limit })
        }
    }

    pub(super) fn send(&mut self, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        self.check(frame)?;
        self.send_checked(to, frame)
    }

    pub(super) fn send_checked(&mut self, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        self.send_fanned(None, to, &mut Fan::new(frame, self))
    }

    /// Sends a frame to every session with a role, except to `from`. Returns to how many
    /// sessions it was sent.
    pub(super) fn send_all(
        &mut self,
        from: Option<Uuid>,
        to: Role,
        frame: &Frame,
    ) -> Result<usize, SendError> {
        self.check(frame)?;
        let mut fan = Fan::new(frame, self);
        let sessions = self.sessions.with_role(to);
        let others = sessions.filter(|session| Some(session.info.uuid) != from);
        let items: Vec<_> = others
            .map(|session| (session.info.id, fan.for_session(session)))
            .collect();
        let count = items.len();
        for (id, item) in items {
            self.push(id, frame.kind(), item);
        }
        Ok(count + self.send_to_remote_role(from, to, || fan.for_link()))
    }

    /// Answers a session with a frame, which it is sent `times` times.
    pub(super) fn answer(&mut self, id: SessionId, frame: &Frame, times: u32) {
        let item = if times == 1 {
            outgoing(frame, false)
        } else {
            let run = Run::of(frame);
            Outgoing::whole(run.wire().repeat(times as usize).into(), times)
        };
        // Only InvalidFrameType counts, which answers frames that are not supported or were
        // filtered. The figure counts no other answers.
        if frame.kind() == ErrorCode::INVALID_FRAME_TYPE {
            self.tally.answered += u64::from(times);
        }
        self.push(id, frame.kind(), item);
    }

    /// Counts frames of a session that the role filter has discarded, and answers each of
    /// them if the filter is to do so.
    pub(super) fn filtered(&mut self, id: SessionId, kind: FrameKind, frames: u32) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.counters.frames_filtered += u64::from(frames);
        debug!(target: "ssntp::server",
            "{}: may not send {}",
            session.info,
            self.environment.operands.show(kind)
        );
        if !self.filter.rejects() {
            return;
        }
        if let Some(answer) = answer_to_filtered(kind) {
            self.answer(id, &answer, frames);
        }
    }

    /// Checks the CONFIGURE of a controller and keeps its configuration. Returns false if it
    /// was refused.
    pub(super) fn configure(&mut self, id: SessionId, frame: &Frame) -> bool {
        let payload = frame.payload_bytes();
        // A check that panics accepts nothing.
        let mut verdict = Err("its check panicked".to_owned());
        let panic = guard(|| verdict = (self.check)(payload));
        self.note_panic("the configuration check", panic);
        let Some(session) = self.sessions.get(id) else {
            return false;
        };
        let info = Arc::clone(&session.info);
        match verdict {
            Ok(()) => {
                if let Some(more) = info.may_log(&mut self.log, "new configuration", self.now) {
                    info!(target: "ssntp::server",
                        "{info}: new cluster configuration of {} bytes{more}",
                        payload.len()
                    );
                }
                // A copy of its own: the payload is a slice of a longer read.
                self.configuration = Bytes::copy_from_slice(payload);
                true
            }
            Err(why) => {
                if let Some(more) = info.may_log(&mut self.log, "CONFIGURE refused", self.now) {
                    warn!(target: "ssntp::server", "{info}: CONFIGURE refused: {}{more}", excerpt(&why));
                }
                let refused = Frame::with_payload(ErrorCode::INVALID_CONFIGURATION, payload.clone());
                self.answer(id, &refused, 1);
                false
            }
        }
    }
}

/// Returns the frame for a queue that counts only the frame's own length. If its payload is
/// a small part of the `memory` that it keeps alive, the payload is copied, so that a
/// short frame that waits does not hold much more memory than is counted.
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
