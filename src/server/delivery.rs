//! Sending frames to sessions: by a rule, by a routing function, or from the application; and the
//! policy for sessions whose queue is full.

use std::sync::Arc;

use bytes::Bytes;
use log::{debug, info, warn};
use uuid::Uuid;

use super::config::SlowConsumer;
use super::core::{State, guard};
use super::disconnect::DisconnectReason;
use super::handler::SendError;
use super::routing::{Decision, Rule};
use super::sessions::{Directory, Session, SessionId, SessionInfo};
use crate::proto::{self, ErrorCode, Frame, FrameKind, Item, Run, answer_to_filtered};
use crate::wire::{outgoing, unix_nanos_at};
use ssntp_pki::Role;
use ssntp_transport::dispatch::{Action, Drops};
use ssntp_transport::{Load, Outgoing, excerpt};

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

    pub(super) fn frame(frame: &Frame, state: &State) -> Self {
        let mut traced = frame.trace().is_some().then(|| frame.clone());
        if let Some(trace) = traced.as_mut().and_then(Frame::trace_mut) {
            let environment = &state.environment;
            trace.stamp_sent(environment.uuid, environment.role, unix_nanos_at(state.wall));
        }
        Self {
            kind: frame.kind(),
            plain: outgoing(frame, false),
            traced,
            encoded: None,
        }
    }

    /// `None` if the item has no frames.
    pub(super) fn of(item: &Item, state: &State) -> Option<Self> {
        match item {
            Item::Run(run) => Some(Self::run(run)),
            Item::Traced(frame) => Some(Self::frame(frame, state)),
            Item::Unsupported(_) => None,
        }
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

    pub(super) fn frames(&self) -> u32 {
        self.plain.frames()
    }
}

impl State {
    /// Sends frames to every session of this server with a role, except to `from`. Returns the number of
    /// sessions.
    pub(super) fn fan_out(&mut self, from: Option<Uuid>, to: Role, parcel: &mut Parcel) -> usize {
        let sessions = self.sessions.with_role(to);
        let others = sessions.filter(|session| Some(session.info.uuid) != from);
        let (origin, mut sent) = (self.origin, Load::default());
        let before = self.actions.len();
        self.actions.extend(others.map(|session| {
            let item = parcel.for_session(session);
            sent += item.load();
            Action::Send {
                origin,
                to: session.info.id.0,
                item,
            }
        }));
        // Counted once for all receivers, because a thousand look-ups of the kind would take time.
        self.tally.sent(parcel.kind, sent);
        self.actions.len() - before
    }

    /// As [`fan_out`](Self::fan_out), and also to the sessions of other servers.
    pub(super) fn multicast(&mut self, from: Option<Uuid>, to: Role, parcel: &mut Parcel) -> usize {
        self.fan_out(from, to, parcel) + self.send_to_remote_role(from, to, parcel)
    }

    /// Queues frames for one session of this server. False if there is none of that UUID.
    pub(super) fn send_here(&mut self, to: Uuid, parcel: &mut Parcel) -> bool {
        let Some(session) = self.sessions.of(to) else {
            return false;
        };
        let (id, item) = (session.info.id, parcel.for_session(session));
        self.push(id, parcel.kind, item);
        true
    }

    /// Calls the routing function for the frame's kind and carries out its decision: discards or forwards
    /// the frame. `memory` is the number of bytes that the frame's payload keeps alive.
    pub(super) fn route_by_function(&mut self, info: &Arc<SessionInfo>, frame: &Frame, memory: usize) {
        let Some(Rule::Function(route)) = self.rules.get_mut(frame.kind()) else {
            return;
        };
        // Not by `directory`, because `route` borrows the rules.
        let directory = Directory {
            sessions: &self.sessions,
            roster: &self.links.roster,
        };
        // If the function panics, the frame is discarded, because its receiver is unknown.
        let mut decision = Decision::Discard;
        let panic = guard(|| decision = route(frame, info.uuid, &directory));
        self.log_panic("a routing function", panic);
        match decision {
            Decision::Discard => {}
            Decision::Forward(targets) => {
                let mut parcel = Parcel::frame(&apart(frame, memory), self);
                let mut count = 0;
                for uuid in targets {
                    match self.send_parcel(Some(info.uuid), uuid, &mut parcel) {
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

    /// Sends a frame to one session, of this server or of another one. `from` is the client that the
    /// frame came from; it is an error to send the frame back to it.
    fn send_parcel(&mut self, from: Option<Uuid>, to: Uuid, parcel: &mut Parcel) -> Result<(), SendError> {
        match Some(to) == from {
            true => Err(SendError::ToSender(to)),
            false if self.send_here(to, parcel) => Ok(()),
            false => self.send_to_remote(from, to, parcel),
        }
    }

    /// Sends a frame of the application to one session. `from` as of [`send_parcel`](Self::send_parcel).
    pub(super) fn send(&mut self, from: Option<Uuid>, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        self.check(frame)?;
        self.send_unchecked(from, to, frame)
    }

    /// As [`send`](Self::send), without the checks of kind and length, so that it also sends requests
    /// and answers.
    pub(super) fn send_unchecked(
        &mut self,
        from: Option<Uuid>,
        to: Uuid,
        frame: &Frame,
    ) -> Result<(), SendError> {
        self.send_parcel(from, to, &mut Parcel::frame(frame, self))
    }

    /// Queues an item for one session, and counts it.
    pub(super) fn push(&mut self, id: SessionId, kind: FrameKind, item: Outgoing) {
        self.tally.sent(kind, item.load());
        self.actions.push(Action::Send {
            origin: self.origin,
            to: id.0,
            item,
        });
    }

    /// Applies the policy for slow consumers to a session whose queue is full, if no sender can be held.
    /// `newest` is the item that found no room.
    pub(super) fn overflow(&mut self, id: SessionId, newest: Load) -> Drops {
        let Some(session) = self.sessions.get_mut(id) else {
            self.tally.dropped += newest.frames;
            return Drops::Newest;
        };
        let first = session.counters().frames_dropped == 0;
        let (what, drops) = match self.slow_consumer {
            SlowConsumer::Disconnect => {
                let counters = session.counters();
                if let Some(more) = session.info.may_log(&mut self.log, "slow consumer", self.now) {
                    warn!(target: "ssntp::server",
                        "{}: slow consumer: disconnected with {} frames, {} bytes in its queue{more}",
                        session.info, counters.frames_waiting, counters.bytes_waiting
                    );
                }
                // Without sending its queue, because the client does not read it.
                self.end(id, DisconnectReason::SlowConsumer, true);
                self.tally.dropped += newest.frames;
                return Drops::Newest;
            }
            SlowConsumer::DropNewest => ("newest", Drops::Newest),
            SlowConsumer::DropOldest => ("oldest", Drops::Oldest),
        };
        // Logged once for each session, because the policy applies to every further frame.
        if first {
            warn!(target: "ssntp::server", "{}: slow consumer: the {what} frames are dropped", session.info);
        }
        drops
    }

    /// Checks that the application may send this kind, and the length.
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

    /// Sends a frame to every session with a role, except to `from`. Returns the number of sessions.
    pub(super) fn send_all(
        &mut self,
        from: Option<Uuid>,
        to: Role,
        frame: &Frame,
    ) -> Result<usize, SendError> {
        self.check(frame)?;
        let mut parcel = Parcel::frame(frame, self);
        Ok(self.multicast(from, to, &mut parcel))
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
            self.tally.answered += u64::from(times);
        }
        self.push(id, frame.kind(), item);
    }

    /// Counts frames of a session that the role filter has discarded, and answers each of them if the
    /// filter's action is Reject.
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

    /// Checks the CONFIGURE of a controller and stores the configuration. False if it was refused.
    pub(super) fn configure(&mut self, id: SessionId, frame: &Frame) -> bool {
        let payload = frame.payload_bytes();
        // If the check panics, the configuration is refused.
        let mut verdict = Err("its check panicked".to_owned());
        let panic = guard(|| verdict = (self.check)(payload));
        self.log_panic("the configuration check", panic);
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
                // Copied, because the payload is a slice that keeps a longer read alive.
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

/// Returns the frame for a queue that counts only the frame's own length. If its payload is a small part
/// of the `memory` that it keeps alive, the payload is copied, so that a short frame in a queue does not
/// keep much more memory than is counted.
fn apart(frame: &Frame, memory: usize) -> Frame {
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
