//! The life of a session of a client: it stands, parts from its server, and leaves.
//!
//! ```text
//!  Stands ── lost, or the client is closed ─────────────────────────┐
//!    │ is to be replaced                                            ▼
//!    └─▶ Answers ─▶ Parts ─ too late ─▶ Aborted ─ is over ──────▶ Leaves ─▶ Joins ─▶ Joined
//!                     └──── the server has ended its side ──────────┘
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError, never};
use log::{info, warn};

use super::super::handle::lock;
use super::super::{ClientError, ClientEvent, DisconnectReason, LOG};
use super::{At, ClientCore, Next, Stage, Standing};
use crate::proto::ErrorCode;
use ssntp_transport::Outbox;

/// How long after its last byte a session waits for the server to end its
/// side.
const LINGER: Duration = Duration::from_secs(1);

/// How long a session that is to be replaced stays for the answers to requests:
/// as long as most wait for one.
const ANSWERS: Duration = Duration::from_secs(5);
/// How often it is looked whether they have come. An answer is rare at such a moment, and a
/// signal for it would cost each other answer.
const LOOK: Duration = Duration::from_millis(5);

/// How long frames wait for the session that replaces another, and for the
/// attempts that are under way then: longer than a server that restarts
/// at the same time takes.
const GAP: Duration = Duration::from_secs(10);

/// A session, from CONNECTED until its threads have ended.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) at: usize,
    pub(super) began: Instant,
    pub(super) outbox: Outbox,
    pub(super) standing: Standing,
    /// Tells why the session is over; disconnected once its threads are.
    pub(super) over: Receiver<DisconnectReason>,
    pub(super) told: Option<DisconnectReason>,
    pub(super) is_gone: bool,
    /// Tells within what time the server asks this client to leave.
    pub(super) drains: Receiver<Duration>,
    pub(super) leave: Option<Instant>,
    /// Whether a server that is not trusted any more is that because its
    /// certificate is revoked.
    pub(super) is_revoked: bool,
    /// Why it ends, once it does.
    pub(super) reason: DisconnectReason,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    Stands,
    /// Requests under way are answered.
    Answers(Instant),
    /// The queue goes out, and the server deals with it.
    Parts(Instant),
    /// It took too long.
    Aborted,
    /// The application knows that it is over.
    Leaves(Instant),
    Joins,
    Joined,
}

impl ClientCore {
    pub(super) fn stand(&mut self, mut session: Box<Session>, at: At) -> (Stage, Option<Next>) {
        let closed = self.state.cancel.is_cancelled();
        match session.over.try_recv() {
            Ok(reason) => session.told = Some(reason),
            Err(TryRecvError::Disconnected) => {
                session.is_gone = true;
                session.told.get_or_insert_with(reader_ended);
            }
            Err(TryRecvError::Empty) => {}
        }
        let drains = session.drains.try_recv();
        if drains != Err(TryRecvError::Empty) {
            // It ends with the first message, or with the session's reader.
            session.drains = never();
            // At random, so that not all clients come to another server at once.
            session.leave = drains.ok().map(|within| at.now + within.mul_f64(at.share));
        }
        let is_new = self.adopt_news();
        let is_over = closed || session.told.is_some();
        let (phase, next) = match session.phase {
            Phase::Stands => match self.ends(&mut session, is_new, at) {
                None => {
                    let due = [self.due(), session.leave].into_iter().flatten().min();
                    (Phase::Stands, Some(Next::Wait(due)))
                }
                Some(reason) => {
                    session.reason = reason;
                    let phase = match is_in_order(&session.reason) {
                        true => {
                            self.state.hold_requests(true);
                            Phase::Answers(at.now + ANSWERS)
                        }
                        false => self.part(&session, at),
                    };
                    (phase, None)
                }
            },
            Phase::Answers(until) => {
                let is_idle =
                    lock(&self.state.requests).is_idle() && Arc::strong_count(&self.state.asked) == 1;
                if is_over {
                    self.state.hold_requests(false);
                    session.reason = session.told.clone().unwrap_or(DisconnectReason::Closed);
                }
                match is_over || is_idle || at.now >= until {
                    true => (self.part(&session, at), None),
                    false => (session.phase, Some(Next::Wait(Some(until.min(at.now + LOOK))))),
                }
            }
            // What the server has sent until its end is delivered before that.
            Phase::Parts(_) | Phase::Aborted if is_over => (self.down(&mut session, at), None),
            Phase::Parts(until) if at.now < until => (session.phase, Some(Next::Wait(Some(until)))),
            Phase::Parts(_) => (Phase::Aborted, Some(Next::Abort)),
            Phase::Aborted => (session.phase, Some(Next::Wait(None))),
            Phase::Leaves(_) if session.is_gone => (Phase::Joins, None),
            Phase::Leaves(until)
                if at.now >= until || closed && session.reason != DisconnectReason::Closed =>
            {
                (Phase::Joins, Some(Next::Abort))
            }
            Phase::Leaves(until) => (session.phase, Some(Next::Wait(Some(until)))),
            Phase::Joins => (Phase::Joined, Some(Next::Join)),
            Phase::Joined => {
                self.state.counts.finish(at.now);
                return (self.after(*session, at), None);
            }
        };
        session.phase = phase;
        (Stage::Stands(session), next)
    }

    /// Why a session that stands has to end now, if it does.
    fn ends(&mut self, session: &mut Session, is_new: bool, at: At) -> Option<DisconnectReason> {
        let is_due = |when: Option<Instant>| when.is_some_and(|when| at.now >= when);
        if session.told.is_some() {
            return session.told.clone();
        }
        if self.state.cancel.is_cancelled() {
            return Some(DisconnectReason::Closed);
        }
        if is_new {
            let (chain, name) = (&session.standing.chain, &session.standing.name);
            if let Some((why, revoked)) = self.credentials.connector.objection(chain, name) {
                session.is_revoked = revoked;
                return Some(DisconnectReason::Certificate(why));
            }
            self.plan(at);
        }
        if is_due(self.due()) {
            return Some(DisconnectReason::Renewed);
        }
        is_due(session.leave).then_some(DisconnectReason::Draining)
    }

    /// When the session is to be replaced.
    fn due(&self) -> Option<Instant> {
        self.move_at.filter(|_| self.state.config.reconnect)
    }

    /// Lets a session part from its server, if it has the time.
    fn part(&self, session: &Session, at: At) -> Phase {
        // How long the server may take to deal with what it was sent, and to end
        // its side. One that is a stranger now gets no new frame, and hardly time;
        // one whose certificate is revoked gets nothing at all.
        let limit = match &session.reason {
            reason if is_in_order(reason) => self.state.config.write_timeout,
            DisconnectReason::Certificate(_) if session.is_revoked => Duration::ZERO,
            DisconnectReason::Certificate(_) => LINGER,
            // `down` follows at once, because the session is over.
            _ => return Phase::Aborted,
        };
        self.state.hold_requests(true);
        self.state.uplink.part();
        Phase::Parts(at.now + limit)
    }

    /// The session is over, or the client is closed; the threads may still send what waits.
    fn down(&self, session: &mut Session, at: At) -> Phase {
        self.state.uplink.down();
        self.state.cancel_requests();
        *lock(&self.state.in_use) = None;
        if self.state.cancel.is_cancelled() {
            // The queue is sent first: what `send` has taken before a close is to arrive.
            session.reason = DisconnectReason::Closed;
            session.outbox.close();
            return Phase::Leaves(at.now + self.state.config.grace);
        }
        let reason = &session.reason;
        let aborted = *reason == DisconnectReason::PeerRefused(ErrorCode::CONNECTION_ABORTED);
        match is_in_order(reason) {
            true => info!(target: LOG, "{}: disconnected: {reason}", self.name()),
            false => warn!(target: LOG, "{}: disconnected: {reason}", self.name()),
        }
        self.state.deliver(ClientEvent::Disconnected {
            reason: reason.clone(),
            retrying: self.state.config.reconnect && !aborted,
        });
        // A server that ended its side may still receive; any other one that
        // this client has ended the session with does not deserve the wait.
        Phase::Leaves(match reason {
            DisconnectReason::PeerClosed => at.now + self.state.config.write_timeout,
            _ if is_in_order(reason) => at.now + self.state.config.write_timeout,
            _ => at.now + LINGER,
        })
    }

    /// What follows a session whose threads have ended.
    fn after(&mut self, session: Session, at: At) -> Stage {
        match session.reason {
            DisconnectReason::Closed => return self.end(ClientError::Closed),
            DisconnectReason::PeerRefused(ErrorCode::CONNECTION_ABORTED) => {
                let server = session.standing.server.name().to_owned();
                return self.end(ClientError::Aborted { server });
            }
            reason if !self.state.config.reconnect => return self.end(ClientError::Disconnected(reason)),
            reason @ (DisconnectReason::Renewed | DisconnectReason::Draining) => {
                if reason == DisconnectReason::Renewed {
                    self.next = session.at;
                }
                self.left = 0;
                // The old session ended in order, so what is sent meanwhile waits a little for
                // the next one, as if there were no gap.
                self.gap = Some(at.now + GAP);
                return Stage::Round;
            }
            DisconnectReason::Certificate(_) => self.gap = Some(at.now + GAP),
            DisconnectReason::PeerRefused(_) => self.tell_invalid(at.wall),
            _ => {}
        }
        // The pauses start over only after a session that lasted. A server
        // that admits a client and ends it at once would otherwise be dialled
        // again without a pause.
        let lasted = at.now.saturating_duration_since(session.began);
        if lasted > self.state.config.backoff.ceiling(self.setbacks) {
            self.setbacks = 0;
            let in_use = self.servers.iter().filter(|server| server.ruled_out.is_none());
            if in_use.count() > 1 {
                self.left = self.servers.len();
            }
        }
        match self.left {
            0 => self.pause(at),
            _ => Stage::Round,
        }
    }
}

/// Whether a session is replaced, so that nothing of it is to be lost.
fn is_in_order(reason: &DisconnectReason) -> bool {
    matches!(reason, DisconnectReason::Renewed | DisconnectReason::Draining)
}

fn reader_ended() -> DisconnectReason {
    DisconnectReason::Lost("its reader ended".into())
}
