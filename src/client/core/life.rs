//! The phases of a client's session, from CONNECTED until its threads have ended.
//!
//! ```text
//!  Established ── lost, or the client is closed ──────────────────────────┐
//!    │ is to be replaced                                                  ▼
//!    └─▶ Answers ─▶ Flushing ─ too late ─▶ Aborted ─ has ended ──────▶ Closing ─▶ Join ─▶ Joined
//!                      └────── the server has ended its side ─────────────┘
//! ```

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError, never};
use log::{Level, log};

use super::super::error::{ClientError, SessionEnd};
use super::super::event::{ClientEvent, LOG};
use super::{At, ClientCore, Next, Stage, Standing};
use crate::proto::{ErrorCode, Frame, PROBE};
use crate::silence::{LOOKS, Look, SHORTEST, SILENT};
use crate::wire::outgoing;
use ssntp_transport::{Outbox, after, locked};

/// The time that the server has to end its side after the last byte that it was sent.
const LINGER: Duration = Duration::from_secs(1);

/// The time that a session which is to be replaced waits for the answers to its requests. Most
/// requests have a time limit of about this length.
const ANSWERS: Duration = Duration::from_secs(5);
/// The interval at which the core polls for these answers. A signal would cost time with every
/// answer, and sessions are rarely replaced.
const ANSWERS_POLL: Duration = Duration::from_millis(5);

/// The time that frames wait for the session that replaces another: longer than a server takes
/// that restarts at the same time. Attempts that are under way then are still awaited.
const GAP: Duration = Duration::from_secs(10);

/// A session, from CONNECTED until its threads have ended.
#[derive(Debug)]
pub(super) struct CurrentSession {
    /// The index of the server in the configuration.
    pub(super) server: usize,
    pub(super) began: Instant,
    pub(super) outbox: Outbox,
    pub(super) standing: Standing,
    /// Receives the reason for which the reader ended; disconnected once the threads have ended.
    pub(super) end: Receiver<SessionEnd>,
    /// The reason that the reader has reported.
    pub(super) peer_reason: Option<SessionEnd>,
    pub(super) threads_ended: bool,
    /// Receives the time within which the server asks this client to leave.
    pub(super) drain_requests: Receiver<Duration>,
    pub(super) leave_at: Option<Instant>,
    /// The time of the next look at a silent server.
    pub(super) look_at: Option<Instant>,
    /// The number of bytes that the server had taken at the last look.
    pub(super) taken: u64,
    /// True if the server is no longer trusted because its certificate is revoked.
    pub(super) is_revoked: bool,
    /// The reason for the application. Only meaningful after `Established`.
    pub(super) reason: SessionEnd,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    Established,
    /// The session awaits the answers to its requests, until this time.
    Answers(Instant),
    /// The queue is sent and the server handles it, until this time.
    Flushing(Instant),
    /// The stream was shut down, because flushing took too long.
    Aborted,
    /// The application has the event `Disconnected`. The threads may run until this time.
    Closing(Instant),
    Join,
    Joined,
}

impl ClientCore {
    pub(super) fn step_session(&mut self, mut session: Box<CurrentSession>, at: At) -> (Stage, Option<Next>) {
        let closed = self.is_closed;
        match session.end.try_recv() {
            Ok(reason) => session.peer_reason = Some(reason),
            Err(TryRecvError::Disconnected) => {
                session.threads_ended = true;
                let ended = || SessionEnd::Lost("its reader ended".into());
                session.peer_reason.get_or_insert_with(ended);
            }
            Err(TryRecvError::Empty) => {}
        }
        let drain = session.drain_requests.try_recv();
        if drain != Err(TryRecvError::Empty) {
            // Only the first request counts, and a disconnected channel would always be ready.
            session.drain_requests = never();
            // A client that does not reconnect stays until the server ends the session. The others leave at a random
            // time, so that not all connect to another server at once.
            let within = drain.ok().filter(|_| self.state.config.reconnect);
            session.leave_at = within.map(|within| at.now + within.mul_f64(at.share));
        }
        let is_silent = matches!(session.phase, Phase::Established) && self.is_silent(&mut session, at);
        let is_over = closed || session.peer_reason.is_some();
        if self.adopt_renewal() && !is_over {
            self.check_trust(&mut session, at);
        }
        let (phase, next) = match session.phase {
            // Its stream is shut down, so that its reader ends and delivers nothing after `Disconnected`.
            Phase::Established if is_silent && !is_over => {
                session.reason = SessionEnd::Lost(SILENT.into());
                (Phase::Flushing(at.now), None)
            }
            Phase::Established => match self.end_reason(&session, at) {
                None => {
                    let due = [self.replacement_due(), session.leave_at, session.look_at]
                        .into_iter()
                        .flatten()
                        .min();
                    (Phase::Established, Some(Next::Wait(due)))
                }
                Some(reason) => {
                    session.reason = reason;
                    let phase = if is_replaced(&session.reason) {
                        self.state.uplink.leave();
                        Phase::Answers(at.now + ANSWERS)
                    } else {
                        self.begin_flush(&session, at)
                    };
                    (phase, None)
                }
            },
            Phase::Answers(until) => {
                // Each open request of a peer holds a clone of this counter.
                let is_idle = locked(&self.state.requests).is_idle()
                    && Arc::strong_count(&self.state.open_requests) == 1;
                if is_over {
                    session.reason = session.peer_reason.clone().unwrap_or(SessionEnd::Closed);
                }
                if is_over || is_idle || at.now >= until {
                    (self.begin_flush(&session, at), None)
                } else {
                    let look = until.min(at.now + ANSWERS_POLL);
                    (session.phase, Some(Next::Wait(Some(look))))
                }
            }
            // The reader reports its end after it has delivered the server's last frames.
            Phase::Flushing(_) | Phase::Aborted if is_over => (self.disconnect(&mut session, at), None),
            Phase::Flushing(until) if at.now < until => (session.phase, Some(Next::Wait(Some(until)))),
            Phase::Flushing(_) => (Phase::Aborted, Some(Next::Abort)),
            // Without a limit: the threads end soon after their stream was shut down.
            Phase::Aborted => (session.phase, Some(Next::Wait(None))),
            Phase::Closing(_) if session.threads_ended => (Phase::Join, None),
            // A client that is closed now does not wait for the server of a session that has ended.
            Phase::Closing(until) if at.now >= until || closed && session.reason != SessionEnd::Closed => {
                (Phase::Join, Some(Next::Abort))
            }
            Phase::Closing(until) => (session.phase, Some(Next::Wait(Some(until)))),
            Phase::Join => (Phase::Joined, Some(Next::Join)),
            Phase::Joined => {
                locked(&self.state.counts).finish(at.now);
                return (self.next_stage(*session, at), None);
            }
        };
        session.phase = phase;
        (Stage::Session(session), next)
    }

    /// The reason for which an established session has to end now. `None` if there is none.
    fn end_reason(&self, session: &CurrentSession, at: At) -> Option<SessionEnd> {
        let is_due = |when: Option<Instant>| when.is_some_and(|when| at.now >= when);
        if session.peer_reason.is_some() {
            return session.peer_reason.clone();
        }
        if self.is_closed {
            return Some(SessionEnd::Closed);
        }
        if is_due(self.replacement_due()) {
            return Some(SessionEnd::Renewed);
        }
        is_due(session.leave_at).then_some(SessionEnd::Draining)
    }

    /// The longest silence of a server.
    pub(super) fn idle_limit(&self) -> Option<Duration> {
        self.state.config.idle_limit.map(|limit| limit.max(SHORTEST))
    }

    /// Asks a silent server for a sign of life. True if it has given none.
    fn is_silent(&self, session: &mut CurrentSession, at: At) -> bool {
        let Some(limit) = self.idle_limit() else {
            return false;
        };
        if session.look_at.take_if(|look_at| *look_at <= at.now).is_none() {
            return false;
        }
        session.look_at = Some(at.now + limit / LOOKS);
        let silence = &mut locked(&self.state.counts).silence;
        let taken = session.outbox.progress().bytes;
        let takes = taken > mem::replace(&mut session.taken, taken) && session.outbox.waiting().items > 0;
        // The reader waits for the application, so it is this side that does not read. Or the server reads now and
        // then while it makes this client wait: the question is behind what it has not read.
        if takes || self.state.inbound.try_lock().is_err() {
            silence.hear(at.now);
        }
        let look = silence.look(at.now, limit);
        if look == Look::Ask {
            silence.ask();
            // If there is no room, the server has not read for as long as it has sent nothing.
            let question = outgoing(&Frame::new(PROBE), false);
            let _ = session.outbox.push(question, self.state.config.queue, false);
        }
        look == Look::End
    }

    /// Ends the session if the new credentials no longer trust its server, also while the session is
    /// being replaced. Otherwise plans its replacement.
    fn check_trust(&mut self, session: &mut CurrentSession, at: At) {
        let (chain, name) = (&session.standing.chain, &session.standing.name);
        let objection = self.credentials.connector.objection(chain, name);
        let is_in_use = !matches!(
            session.phase,
            Phase::Aborted | Phase::Closing(_) | Phase::Join | Phase::Joined
        );
        match objection.filter(|_| is_in_use) {
            Some((why, revoked)) => {
                session.is_revoked = revoked;
                session.reason = SessionEnd::Certificate(why);
                session.phase = self.begin_flush(session, at);
            }
            None => self.plan_replacement(at),
        }
    }

    /// The time at which the session is to be replaced.
    fn replacement_due(&self) -> Option<Instant> {
        self.replace_at.filter(|_| self.state.config.reconnect)
    }

    /// Closes the session's queue and lets it be sent, if the reason for the end leaves time.
    fn begin_flush(&self, session: &CurrentSession, at: At) -> Phase {
        // The time that the server has to handle the queue and to end its side. A server that is no
        // longer trusted has one second, and none if its certificate is revoked.
        let limit = match &session.reason {
            reason if is_replaced(reason) => self.state.config.write_timeout,
            SessionEnd::Certificate(_) if session.is_revoked => Duration::ZERO,
            SessionEnd::Certificate(_) => LINGER,
            // The session is over, so `disconnect` follows at once.
            _ => return Phase::Aborted,
        };
        self.state.uplink.part();
        Phase::Flushing(after(at.now, limit))
    }

    /// Reports the end of the session to the application. The threads may still send the queue.
    fn disconnect(&self, session: &mut CurrentSession, at: At) -> Phase {
        self.state.uplink.down();
        self.state.cancel_requests();
        *locked(&self.state.in_use) = None;
        // A close ends the session's queue before this core hears of it.
        if self.is_closed || session.reason == SessionEnd::Closed {
            // The queue is still sent: a close does not lose frames that `send` has accepted.
            session.reason = SessionEnd::Closed;
            session.outbox.close();
            return Phase::Closing(after(at.now, self.state.config.grace));
        }
        let reason = &session.reason;
        let aborted = *reason == SessionEnd::PeerRefused(ErrorCode::CONNECTION_ABORTED);
        let level = if is_replaced(reason) {
            Level::Info
        } else {
            Level::Warn
        };
        log!(target: LOG, level, "{}: disconnected: {reason}", self.name());
        self.state.deliver(ClientEvent::Disconnected {
            reason: reason.clone(),
            retrying: self.state.config.reconnect && !aborted,
        });
        // A server that has ended only its own side may still receive the rest of the queue.
        let may_receive = *reason == SessionEnd::PeerClosed || is_replaced(reason);
        let limit = if may_receive {
            self.state.config.write_timeout
        } else {
            LINGER
        };
        Phase::Closing(after(at.now, limit))
    }

    /// The stage that follows a session whose threads have ended.
    fn next_stage(&mut self, session: CurrentSession, at: At) -> Stage {
        self.state.uplink.limit_gap(at.now + GAP);
        match session.reason {
            SessionEnd::Closed => return self.end(ClientError::Closed),
            SessionEnd::PeerRefused(ErrorCode::CONNECTION_ABORTED) => {
                return self.aborted(session.standing.server.name.clone());
            }
            reason if !self.state.config.reconnect => return self.end(ClientError::Disconnected(reason)),
            SessionEnd::Renewed => {
                (self.next, self.untried) = (session.server, 0);
                return self.new_round();
            }
            SessionEnd::PeerRefused(_) => self.warn_if_invalid(at.wall),
            _ => {}
        }
        // The pauses begin again at the shortest only after a session that lasted. Otherwise a
        // server that admits clients and ends their sessions at once would be dialled without pause.
        let lasted = at.now.saturating_duration_since(session.began);
        if lasted > self.state.config.backoff.ceiling(self.setbacks) {
            self.setbacks = 0;
            let in_use = self.servers.iter().filter(|server| !server.ruled_out);
            if in_use.count() > 1 {
                self.untried = self.servers.len();
            }
        }
        if self.untried == 0 {
            self.pause(at)
        } else {
            self.new_round()
        }
    }
}

/// True if the client replaces the session itself, so that no frame may be lost.
fn is_replaced(reason: &SessionEnd) -> bool {
    matches!(reason, SessionEnd::Renewed | SessionEnd::Draining)
}
