//! The beginning and the end of a session in the state of the server.
//!
//! ```text
//!  judge ─ refused
//!    │ admitted
//!    ▼
//!  admit ─▶ a row in every index ─ end: replaced, dismissed, asked to leave, stopped
//!                                   │
//!                                   ▼
//!                       no row, and a Notice for the application
//! ```
//!
//! The core calls these functions on the dispatcher's thread. The handshake before is in `accept` and
//! `entry`, the rules are in `admission`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use log::info;
use uuid::Uuid;

use super::admission::{Holder, Situation};
use super::core::{Grant, Notice, Peer, ServerCore, State};
use super::disconnect::DisconnectReason;
use super::federation::EndCode;
use super::figures::{ClosedSession, time_of_day};
use super::handler::Newcomer;
use super::sessions::{Session, SessionId, SessionInfo};
use crate::payload::Draining;
use crate::proto::{Connect, ErrorCode, Frame, Refusal, ServerHandshake};
use crate::wire::outgoing;
use ssntp_pki::{CertificateInfo, Fault};
use ssntp_transport::dispatch::Action;
use ssntp_transport::{OutboxCounters, after};

/// The shortest time between two checks for expired certificates. The time of day may advance more
/// slowly than the timer's clock, which must not cause busy waiting.
const SHORTEST_CHECK: Duration = Duration::from_secs(1);
/// The longest time between two checks, so that a clock that is set ahead is noticed within the hour.
const LONGEST_CHECK: Duration = Duration::from_secs(3600);
/// The maximum number of sessions that one check ends, so that frames of others are not delayed for long.
const MOST_EXPIRED: usize = 256;

/// The time that a draining server adds to the announced one. A client that leaves first awaits the
/// answers to its requests, for at most 5 s, and then sends its queue.
const LEAVING: Duration = Duration::from_secs(6);

impl ServerCore {
    /// Asks the application whether it admits a newcomer.
    pub(super) fn consent(&mut self, newcomer: &Newcomer<'_>) -> Result<(), Refusal> {
        // If the application panics, the newcomer is refused, but may try again.
        let mut verdict = Err(Refusal::postpone("it panicked"));
        self.guarded("admit", |handler, cx| verdict = handler.admit(cx, newcomer));
        verdict
    }
}

impl State {
    /// Judges a newcomer by the server's own rules. Returns the session that it takes over, if any.
    /// `connections` is their number, including links.
    pub(super) fn judge(
        &self,
        uuid: Uuid,
        certificate: &CertificateInfo,
        connections: usize,
    ) -> Result<Option<SessionId>, Refusal> {
        let holder = self.sessions.of(uuid);
        let situation = Situation {
            server: self.environment.uuid,
            stopping: self.open.is_none() || self.draining.is_some(),
            maximum: self.max_sessions,
            sessions: connections.saturating_sub(self.links.connections),
            of_certificate: self.certificates.connections_of(certificate),
            banned: self.bans.left(uuid, self.now),
            holder: holder.map(|old| Holder::new(old.info.id, &old.info.certificate, certificate)),
        };
        self.admission.judge(uuid, certificate.uuid, &situation)
    }

    pub(super) fn admit(
        &mut self,
        id: SessionId,
        peer: Peer,
        connect: &Connect,
        bad_traces: Arc<AtomicU64>,
        outbox: OutboxCounters,
    ) -> Grant {
        let environment = &self.environment;
        let connected = ServerHandshake::connected(
            connect,
            environment.uuid,
            environment.role,
            environment.tracing,
            self.configuration.clone(),
        );
        let certificate = self.certificates.add(&peer.certificate, peer.intermediates);
        let info = Arc::new(SessionInfo {
            id,
            server: environment.uuid,
            uuid: connect.source,
            role: connect.role,
            address: peer.address,
            certificate: certificate.clone(),
            tracing: connected.trace,
        });
        self.connections.insert(id.0, (certificate, outbox.clone(), None));
        let mut session = Session::new(Arc::clone(&info), outbox, bad_traces, self.now);
        session.ends = peer.ends;
        session.rank = self.links.next_rank();
        self.sessions.insert(session);
        self.schedule_expiry_check(SHORTEST_CHECK);
        Grant {
            info,
            answer: connected.encode().into(),
        }
    }

    /// Removes a session from every index and ends its connection: after its queue is sent, or at once
    /// with `abort`.
    pub(super) fn end(&mut self, id: SessionId, reason: DisconnectReason, abort: bool) {
        // First, so that no frame is sent to the session by the calls below.
        let Some(session) = self.sessions.remove(id) else {
            return;
        };
        // Only this client could have answered the requests to it.
        self.asking.cancel(Some(session.info.uuid));
        self.actions.push(Action::End { id: id.0, abort });
        // If the application was not told of the session's beginning, it is not told of its end.
        let counters = session.counters();
        self.tally.gone(&counters);
        if session.announced {
            self.tally.closed(ClosedSession {
                info: Arc::clone(&session.info),
                reason: reason.clone(),
                since: time_of_day(session.since, self.now, self.wall),
                until: self.wall,
                counters,
            });
            self.announce_end(&session.info);
            self.notices.push(Notice::Disconnected(session.info, reason));
        }
    }

    /// Moves the next check for expired certificates forward to the first expiry, if that is earlier.
    fn schedule_expiry_check(&mut self, shortest: Duration) {
        if let Some((ends, _)) = self.sessions.first_expiry() {
            let left = ends.duration_since(self.wall).unwrap_or_default();
            let at = self.now + left.clamp(shortest, LONGEST_CHECK);
            self.next_expiry_check = Some(self.next_expiry_check.map_or(at, |before| before.min(at)));
        }
    }

    /// Ends sessions whose certificates have expired by the time of day. The clock may have been set
    /// back since the check was scheduled, so there may be none.
    pub(super) fn end_expired(&mut self) {
        let mut shortest = SHORTEST_CHECK;
        for count in 1..=MOST_EXPIRED {
            let Some((_, id)) = self
                .sessions
                .first_expiry()
                .filter(|(ends, _)| *ends <= self.wall)
            else {
                break;
            };
            if let Some(session) = self.sessions.get(id) {
                let not_after = session.info.certificate().not_after_text();
                let why = Fault::Expired { not_after }.to_string();
                self.dismiss(id, DisconnectReason::Certificate(why));
            }
            // The others follow after the events that have come meanwhile.
            if count == MOST_EXPIRED {
                shortest = Duration::ZERO;
            }
        }
        self.next_expiry_check = None;
        self.schedule_expiry_check(shortest);
    }

    /// Ends a session with ConnectionFailure, after which its client may connect again: with a valid
    /// certificate, or after its ban. Ends a link likewise. False if the session is over already.
    pub(super) fn dismiss(&mut self, id: SessionId, reason: DisconnectReason) -> bool {
        if self.sessions.get(id).is_none() {
            return self.end_link(id.0, EndCode::Refused, &reason.to_string());
        }
        let item = outgoing(&Frame::new(ErrorCode::CONNECTION_FAILURE), false);
        // Before the end, after which the session has no queue.
        self.push(id, ErrorCode::CONNECTION_FAILURE.into(), item);
        self.end(id, reason, false);
        true
    }

    /// Asks every client to leave. The server stops when all have left, at the latest [`LEAVING`] after
    /// the time `within`.
    pub(super) fn drain(&mut self, within: Duration) {
        info!(target: "ssntp::server", "draining: clients have {} s to leave", within.as_secs_f64());
        let stops = after(self.now, within.saturating_add(LEAVING));
        if self.draining.replace(stops).is_none() {
            self.notices.push(Notice::Draining);
        }
        let draining = Frame::of(&Draining {
            within_s: within.as_secs(),
        });
        for id in self.sessions.ids() {
            self.push(id, draining.kind(), outgoing(&draining, false));
        }
    }
}
