//! What the dispatcher owns, and the life of a session in it.
//!
//! ```text
//!  admit ─▶ session, no threads yet ─ started ─▶ session ─ end ─▶ leaving ─ finished ─▶ joined
//!                      └───────────────── end ──────────────────────▲
//! ```
//!
//! A session that is over is out of every index at once. Its threads may still
//! send what waits, for as long as a write may take, and count as a session
//! until they are joined.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use uuid::Uuid;

use super::admission::{AdmissionPolicy, Candidate, Holder, Place, Places, Standing};
use super::at_once::{AtOnce, Step};
use super::config::{ConfigurationCheck, ServerConfig, Shared, SlowConsumer};
use super::dispatcher::{Admit, Admitted, Event};
use super::events::Watch;
use super::filter::Filter;
use super::handler::{DisconnectReason, HeldFrame};
use super::held::Held;
use super::routing::RuleTable;
use super::sessions::{Counters, Gate, Session, SessionId, SessionInfo, Sessions};
use crate::proto::{Refusal, ServerHandshake};
use crate::transport::{EndReason, Limits, Link, Outbox, Outgoing, deadline};

/// Everything the dispatcher owns but the handler.
pub(super) struct State {
    pub(super) shared: Arc<Shared>,
    pub(super) sessions: Sessions,
    pub(super) rules: RuleTable,
    pub(super) filter: Filter,
    pub(super) configuration: Bytes,
    pub(super) held: Held,
    pub(super) check: Box<ConfigurationCheck>,
    pub(super) takes_configure: bool,
    pub(super) queue: Limits,
    pub(super) slow_consumer: SlowConsumer,
    pub(super) max_sessions: usize,
    pub(super) admission: AdmissionPolicy,
    pub(super) places: Places,
    pub(super) grace: Duration,
    /// Sessions that are over while their threads still run.
    pub(super) leaving: HashMap<SessionId, Leaving>,
    /// When they are cut off, in order: each has as long as a write.
    pub(super) cut_off: VecDeque<(Instant, SessionId)>,
    pub(super) parting: Duration,
    /// Sessions whose end the handler has not been told of.
    pub(super) departed: Vec<(Arc<SessionInfo>, DisconnectReason)>,
    /// Frames that the handler is to be told have expired.
    pub(super) overflowed: Vec<HeldFrame>,
    pub(super) stopping: Option<Instant>,
    pub(super) exiting: bool,
    pub(super) at_once: AtOnce,
}

impl State {
    pub(super) fn new(
        mut config: ServerConfig,
        shared: Arc<Shared>,
        max_sessions: usize,
        events: Watch<Event>,
    ) -> Result<Self, super::RuleError> {
        let check = config.take_check();
        Ok(Self {
            shared,
            sessions: Sessions::default(),
            rules: RuleTable::try_from(config.rules)?,
            filter: config.filter,
            configuration: config.configuration,
            held: Held::new(config.held_frames, config.held_bytes, config.held_time),
            check,
            takes_configure: config.takes_configure,
            queue: config.queue,
            slow_consumer: config.slow_consumer,
            max_sessions,
            admission: config.admission,
            places: Places::default(),
            grace: config.grace,
            leaving: HashMap::new(),
            cut_off: VecDeque::new(),
            parting: config.write_timeout,
            departed: Vec::new(),
            overflowed: Vec::new(),
            stopping: None,
            exiting: false,
            at_once: AtOnce::new(events),
        })
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("sessions", &self.sessions.len())
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
pub(super) struct Leaving {
    /// Given back once the threads are joined.
    place: Option<Place>,
    link: Option<Link>,
    finished: bool,
    abort: bool,
}

impl State {
    pub(super) fn admit(&mut self, admit: &Admit) -> Result<Admitted, Refusal> {
        let (uuid, certificate) = (admit.connect.source, &admit.certificate);
        let newcomer = Candidate {
            uuid,
            bound: certificate.uuid,
        };
        let holder = self.sessions.id_of(uuid).and_then(|id| self.sessions.get(id));
        let standing = Standing {
            server: self.shared.uuid,
            stopping: self.stopping.is_some(),
            maximum: self.max_sessions,
            sessions: self.places.taken(),
            of_certificate: self.places.taken_with(certificate),
            holder: holder.map(|old| Holder::new(old.info.id, &old.info.certificate, certificate)),
        };
        if let Some(old) = self.admission.judge(newcomer, &standing)?.replaces {
            self.end(old, DisconnectReason::Replaced, false);
        }
        let configuration = self.configuration.clone();
        let shared = &self.shared;
        let connected = ServerHandshake::connected(
            &admit.connect,
            shared.uuid,
            shared.role,
            shared.tracing,
            configuration,
        );
        let outbox = Outbox::new(self.queue);
        // The queue is empty and takes one item of any length.
        let _ = outbox.push(Outgoing::whole(connected.encode().into(), 1));
        let place = self.places.take(certificate);
        let info = Arc::new(SessionInfo {
            id: self.sessions.next_id(),
            uuid,
            role: admit.connect.role,
            address: admit.address,
            certificate: place.certificate().clone(),
            tracing: connected.trace,
        });
        let gate = Arc::new(Gate::default());
        self.sessions.insert(Session {
            info: Arc::clone(&info),
            place,
            outbox: outbox.clone(),
            gate: Arc::clone(&gate),
            link: None,
            counters: Counters::default(),
            last: Step::default().into(),
        });
        Ok(Admitted { info, outbox, gate })
    }

    pub(super) fn started(&mut self, id: SessionId, link: std::io::Result<Link>) {
        match link {
            Ok(link) => {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.link = Some(link);
                } else if let Some(leaving) = self.leaving.get_mut(&id) {
                    if leaving.abort {
                        link.abort();
                    }
                    leaving.link = Some(link);
                    self.reap(id);
                }
            }
            Err(e) => {
                self.end(
                    id,
                    DisconnectReason::Lost(format!("cannot start its threads: {e}")),
                    true,
                );
                self.leaving.remove(&id);
            }
        }
    }

    pub(super) fn reader_ended(&mut self, id: SessionId, reason: EndReason) {
        let reason = match reason {
            EndReason::PeerClosed => DisconnectReason::PeerClosed,
            EndReason::Protocol(e) => DisconnectReason::Protocol(e.to_string()),
            other => DisconnectReason::Lost(other.to_string()),
        };
        self.end(id, reason, false);
    }

    pub(super) fn finished(&mut self, id: SessionId) {
        // Its reader has said so with its last word.
        self.leaving.entry(id).or_default().finished = true;
        self.reap(id);
    }

    /// Joins the threads of a session whose last word has been heard.
    fn reap(&mut self, id: SessionId) {
        let over = self
            .leaving
            .get(&id)
            .is_some_and(|leaving| leaving.finished && leaving.link.is_some());
        if over && let Some(Leaving { link: Some(link), .. }) = self.leaving.remove(&id) {
            link.join();
            while let Some((_, id)) = self.cut_off.front()
                && !self.leaving.contains_key(id)
            {
                self.cut_off.pop_front();
            }
        }
    }

    /// Aborts the sessions that have had their time to send what waited: one
    /// whose peer takes a byte now and then would never come to an end.
    pub(super) fn cut_off(&mut self, now: Instant) {
        while let Some((at, id)) = self.cut_off.front().copied()
            && at <= now
        {
            self.cut_off.pop_front();
            if let Some(leaving) = self.leaving.get_mut(&id) {
                leaving.abort = true;
                if let Some(link) = &leaving.link {
                    link.abort();
                }
            }
        }
    }

    /// Takes a session out of every index at once and lets its threads end:
    /// after its queue is flushed, or now.
    pub(super) fn end(&mut self, id: SessionId, reason: DisconnectReason, abort: bool) {
        let Some(mut session) = self.sessions.remove(id) else {
            return;
        };
        session.outbox.close();
        let link = session.link.take();
        if abort && let Some(link) = &link {
            link.abort();
        }
        let leaving = self.leaving.entry(id).or_default();
        leaving.abort |= abort;
        leaving.link = link;
        leaving.place = Some(session.place);
        self.cut_off.push_back((deadline(self.parting), id));
        self.departed.push((session.info, reason));
        self.reap(id);
    }

    pub(super) fn stop(&mut self) {
        self.stopping = Some(deadline(self.grace));
        for id in self.sessions.ids() {
            self.end(id, DisconnectReason::Stopped, false);
        }
    }

    pub(super) fn abort_all(&mut self) {
        for leaving in self.leaving.values_mut() {
            leaving.abort = true;
            if let Some(link) = &leaving.link {
                link.abort();
            }
        }
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
