//! How a session begins and ends, in the state of the server.
//!
//! ```text
//!  judge ─ refused
//!    │ admitted
//!    ▼
//!  admit ─▶ a row in every index ─ end: replaced, dismissed, asked to leave, stopped
//!                                   │
//!                                   ▼
//!                       no row, and the application hears of it
//! ```
//!
//! The core calls these functions on the dispatcher's thread. What a newcomer is asked before
//! is in `accept`, and the rules are in `admission`.

use std::sync::Arc;
use std::time::Duration;

use log::info;
use uuid::Uuid;

use super::admission::{Candidate, Holder, Standing};
use super::core::{AdmissionRequest, Grant, ServerCore, State};
use super::disconnect::DisconnectReason;
use super::federation::End;
use super::handler::Newcomer;
use super::sessions::{Session, SessionId, SessionInfo};
use crate::payload::Draining;
use crate::proto::{ErrorCode, Frame, Refusal, ServerHandshake};
use crate::wire::outgoing;
use ssntp_transport::dispatch::Action;
use ssntp_transport::pki::{CertificateInfo, Fault};
use ssntp_transport::{Gauge, after};

/// The shortest and the longest time between two looks at a certificate's end: a clock
/// that runs slow causes no busy waiting, and one that is set ahead is noticed within the
/// hour.
const LOOKS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];

/// How much longer than it says a draining server waits: a client that leaves first awaits the
/// answers to its requests, for at most 5 s, and then sends what waits.
const LEAVING: Duration = Duration::from_secs(6);

impl AdmissionRequest {
    pub(super) fn newcomer(&self) -> Newcomer<'_> {
        Newcomer {
            uuid: self.connect.source,
            role: self.connect.role,
            address: self.address,
            certificate: &self.certificate,
        }
    }
}

impl ServerCore {
    /// Whether the application wants a newcomer.
    pub(super) fn consent(&mut self, newcomer: &Newcomer<'_>) -> Result<(), Refusal> {
        // A panic must not let anybody in, and must not send anybody away for good.
        let mut verdict = Err(Refusal::postpone("it panicked"));
        self.guarded("admit", |handler, cx| verdict = handler.admit(cx, newcomer));
        verdict
    }
}

impl State {
    /// What the server's own rules say of a newcomer; where they admit it, which
    /// session it takes over. `standing` is the number of connections, links included.
    pub(super) fn judge(
        &self,
        uuid: Uuid,
        certificate: &CertificateInfo,
        standing: usize,
    ) -> Result<Option<SessionId>, Refusal> {
        let newcomer = Candidate {
            uuid,
            bound: certificate.uuid,
        };
        let holder = self.sessions.id_of(uuid).and_then(|id| self.sessions.get(id));
        let standing = Standing {
            server: self.environment.uuid,
            stopping: self.open.is_none() || self.draining.is_some(),
            maximum: self.max_sessions,
            sessions: standing.saturating_sub(self.links.table.len()),
            of_certificate: self.certificates.sessions_of(certificate),
            banned: self.bans.left(uuid, self.now),
            holder: holder.map(|old| Holder::new(old.info.id, &old.info.certificate, certificate)),
        };
        self.admission.judge(newcomer, &standing)
    }

    pub(super) fn admit(
        &mut self,
        id: SessionId,
        request: AdmissionRequest,
        gauge: Gauge,
        replaced: Option<SessionId>,
    ) -> Grant {
        let AdmissionRequest {
            connect,
            certificate,
            intermediates,
            ends,
            generation: _,
            address,
            bad_traces,
        } = request;
        if let Some(old) = replaced {
            // At once: a client that comes back has most likely lost that connection, and must not
            // wait until what is queued there is sent to nobody.
            self.end(old, DisconnectReason::Replaced, true);
        }
        let environment = &self.environment;
        let connected = ServerHandshake::connected(
            &connect,
            environment.uuid,
            environment.role,
            environment.tracing,
            self.configuration.clone(),
        );
        let certificate = self.certificates.take(&certificate, intermediates);
        let info = Arc::new(SessionInfo {
            id,
            server: environment.uuid,
            uuid: connect.source,
            role: connect.role,
            address,
            certificate: certificate.clone(),
            tracing: connected.trace,
        });
        self.connections.insert(id.0, (certificate, gauge.clone()));
        let mut session = Session::new(Arc::clone(&info), gauge, bad_traces, self.now);
        session.ends = ends;
        session.rank = self.links.next_rank();
        self.sessions.insert(session);
        self.await_end(id);
        Grant {
            info,
            answer: connected.encode().into(),
        }
    }

    /// Takes a session out of every index at once and lets its connection end:
    /// after its queue is flushed, or now.
    pub(super) fn end(&mut self, id: SessionId, reason: DisconnectReason, abort: bool) {
        let Some(session) = self.sessions.remove(id) else {
            return;
        };
        // Nobody else can answer what was asked of it.
        self.asking.cancel(Some(session.info.uuid));
        self.actions.push(Action::End { id: id.0, abort });
        // A session that ends before the application was told that it stands
        // is not mentioned to the application at all.
        let counters = session.counters();
        self.tally.gone(&counters);
        if session.told {
            self.tally.closed(&session, counters, &reason, self.now);
            self.announce_end(&session.info);
            self.departed.push((session.info, reason));
        }
    }

    /// Has a session's certificate looked at when it ends, by how far away that is
    /// at present. Gives back whether it has ended.
    pub(super) fn await_end(&mut self, id: SessionId) -> bool {
        let ends = self.sessions.get(id).and_then(|session| session.ends);
        let Some(ends) = ends else { return false };
        let left = ends.duration_since(self.wall);
        let left = left.unwrap_or_default();
        let [soonest, latest] = LOOKS;
        self.sessions.look_at(id, self.now + left.clamp(soonest, latest));
        left.is_zero()
    }

    /// Ends a session whose certificate has ended. By the time of day it may not
    /// have: the clock may have been set back since.
    pub(super) fn look_at_certificate(&mut self, id: SessionId) {
        if self.await_end(id)
            && let Some(session) = self.sessions.get(id)
        {
            let not_after = session.info.certificate().not_after_text();
            let why = Fault::Expired { not_after }.to_string();
            self.dismiss(id, DisconnectReason::Certificate(why));
        }
    }

    /// Ends a session with ConnectionFailure, after which its client may connect again: with
    /// a valid certificate, or after its ban. False if the session is over already.
    pub(super) fn dismiss(&mut self, id: SessionId, reason: DisconnectReason) -> bool {
        if self.sessions.get(id).is_none() {
            return self.end_link(id.0, End::Refused, &reason.to_string());
        }
        let item = outgoing(&Frame::new(ErrorCode::CONNECTION_FAILURE), false);
        // Before the end, after which nothing can be sent to it any more.
        self.push(id, ErrorCode::CONNECTION_FAILURE.into(), item);
        self.end(id, reason, false);
        true
    }

    /// Asks every client to leave, and stops the server when all have left or their time is over.
    pub(super) fn drain(&mut self, within: Duration) {
        info!(target: "ssntp::server", "draining: clients have {} s to leave", within.as_secs_f64());
        self.draining = Some(after(self.now, within.saturating_add(LEAVING)));
        self.begins_to_drain = true;
        let draining = Frame::of(&Draining {
            within_s: within.as_secs(),
        });
        for id in self.sessions.ids() {
            self.push(id, draining.kind(), outgoing(&draining, false));
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    pub(super) fn disconnect(&mut self, uuid: Uuid) -> bool {
        match self.sessions.id_of(uuid) {
            Some(id) => {
                self.end(id, DisconnectReason::Application, false);
                true
            }
            None => false,
        }
    }
}
