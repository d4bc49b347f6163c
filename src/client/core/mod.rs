//! What a client decides, step by step: whom it dials, when it pauses, when a session is over
//! or replaced, and what its application is told.
//!
//! ```text
//!  round: each server that is not ruled out, in order
//!    ├ one answers ──▶ session ──▶ lost ─┬─▶ a new round at once, from the next server on
//!    │                                   ├─▶ the rest of this round, if the session was short
//!    │                                   └─▶ pause, if there is no other server or no rest
//!    ├ none answers ──▶ pause ──▶ next round
//!    ├ ConnectionAborted ──▶ the end
//!    └ the last one is ruled out ──▶ the end
//! ```
//!
//! A client that was renewed replaces its session when the moment has come:
//!
//! ```text
//!  requests under way are answered, new ones wait          5 s at most
//!  the queue goes out, close_notify      frames wait       30 s at most (write_timeout)
//!  the server deals with all of it, sends its rest, ends
//!  Disconnected { Renewed }
//!  attempts with the new certificate, else the old one     10 s, then frames wait no more
//!  Connected                             what waited goes out first
//! ```
//!
//! A client that a draining server asks to leave does the same at a random moment, with
//! Disconnected { Draining }, and tries each of its servers, the next one first.
//!
//! Two sessions never stand side by side: a server can let the second take the
//! first over only where both certificates are bound to the UUID by one authority
//! (docs/admission.md), and it would leave what the first has sent and nobody has
//! dealt with. Ending the first in order is exact for all of them.
//!
//! This module is public for simulations, as [`crate::server::core`] is. A [`ClientCore`] has
//! no threads, no sockets and no clock. Its owner calls [`ClientCore::step`] with the time,
//! does what the [`Next`] says, and steps again when something has happened or the time has
//! come. [`Client`](super::Client) runs it on its supervisor thread.

mod life;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use std::{io, mem};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Select, never};
use log::{debug, info, warn};
use uuid::Uuid;

use self::life::{Phase, Session};
use super::credentials::{self, Credentials};
pub use super::event::Facts;
use super::handle::{ClientState, Counts, lock};
use super::inbound::Inbound;
pub use super::session::SessionSink;
use super::uplink::Uplink;
use super::uuid_file::Claimed;
use super::{
    ClientConfig, ClientError, ClientEvent, ClientHandle, DialError, DialFault, DisconnectReason, LOG,
    RequestError, ServerInfo,
};
use crate::proto::{Frame, Refusal};
use crate::request::{Answer, Outstanding};
use crate::wire::Decoder;
use ssntp_transport::pki::{CertificateDer, Identity};
use ssntp_transport::{Cancel, LinkConfig, Outbox, Target, deadline};

/// When a step is taken, and a random number for what it draws.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The time.
    pub now: Instant,
    /// The time of day, at which certificates are valid or not.
    pub wall: SystemTime,
    /// From 0 to 1, drawn anew for each step.
    pub share: f64,
}

/// What the owner of a [`ClientCore`] does next.
#[derive(Debug)]
pub enum Next {
    /// Dial a server, and call [`ClientCore::dialled`].
    Dial(Trial),
    /// Wait until then, or until something happens: the session ends, or the application or the
    /// server wants something.
    Wait(Option<Instant>),
    /// Shut the session's stream down. What waits is lost.
    Abort,
    /// Wait until reader and writer of the session have ended.
    Join,
    /// The client has ended.
    End,
}

/// An attempt at a server.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Which one of the configuration's.
    pub server: usize,
    /// Where it is.
    pub target: Target,
    pub(super) credentials: Credentials,
}

impl Trial {
    /// What to show there.
    pub fn identity(&self) -> &Identity {
        &self.credentials.identity
    }
}

/// The facts of a server that has confirmed a session with CONNECTED.
#[derive(Debug)]
pub struct Standing {
    /// The facts.
    pub server: ServerInfo,
    /// The payload of CONNECTED.
    pub configuration: Bytes,
    /// The server's certificates, its own first.
    pub chain: Vec<CertificateDer<'static>>,
    /// The name that they prove.
    pub name: String,
}

/// What a session's reader and writer are made of, for [`ClientCore::begin`].
#[derive(Debug)]
pub struct Up {
    server: ServerInfo,
    decoder: Decoder,
    outbox: Outbox,
    sink: SessionSink,
}

/// All that a client decides with.
#[derive(Debug)]
pub struct ClientCore {
    state: Arc<ClientState>,
    servers: Vec<Server>,
    stage: Stage,
    /// The server that is tried next, and how many are left to be tried until the next pause.
    next: usize,
    left: usize,
    /// What went wrong in this round, and whether it has begun with all servers.
    errors: Vec<DialError>,
    is_whole: bool,
    /// Whole rounds since the last session, and how many there may be.
    rounds: u32,
    attempts: Option<u32>,
    /// What attempts use, and the identity of the last session that stood.
    credentials: Credentials,
    proven: Option<Identity>,
    /// The application has replaced the credentials.
    news: Receiver<()>,
    /// When the session is to be replaced.
    move_at: Option<Instant>,
    /// In a gap, when frames wait no more.
    gap: Option<Instant>,
    /// Whether the log says that our certificate is not valid.
    told_invalid: bool,
    /// Rounds that failed, and sessions that did not last, in a row.
    setbacks: u32,
    /// Kept until the client ends: the UUID is in use as long.
    _uuid: Claimed,
}

#[derive(Debug)]
struct Server {
    target: Target,
    /// Why it is not tried again.
    ruled_out: Option<DialError>,
    /// Whether a session has stood with it.
    known: bool,
}

#[derive(Debug)]
enum Stage {
    /// A round begins.
    Round,
    /// The next server of the round.
    Tries,
    /// An attempt; what the server said to the newest identity, if it is with an older one.
    Dials(Box<Trial>, Option<DialError>),
    Pauses(Instant),
    Stands(Box<Session>),
    Over,
}

impl ClientCore {
    /// A client that has done nothing yet, and where its events arrive. The channel has a bound:
    /// a step that tells the application something waits for room.
    ///
    /// # Errors
    /// As [`Client::start`](super::Client::start).
    pub fn new(config: ClientConfig) -> Result<(Self, Receiver<ClientEvent>), ClientError> {
        let uuid = config.claim_uuid()?;
        let (config, cancel) = (Arc::new(config), Cancel::new());
        let credentials = Credentials::new(&config.identity, &config.trust, config.resumption)?;
        let (tell, news) = crossbeam_channel::bounded(1);
        let (inbound, events) = Inbound::new(config.inbound, cancel.done().clone());
        let state = Arc::new(ClientState {
            config: Arc::clone(&config),
            uuid: uuid.uuid,
            requests: Mutex::new(Outstanding::new(config.max_requests)),
            asked: Arc::default(),
            uplink: Uplink::new(uuid.uuid, config.role, config.offline, config.queue),
            credentials: Mutex::new(credentials.clone()),
            in_use: Mutex::new(None),
            news: tell,
            inbound: Mutex::new(Some(inbound)),
            configuration: Mutex::new(None),
            failures: Mutex::new(Vec::new()),
            counts: Counts::new(),
            cancel,
        });
        let servers = config.servers().into_iter().map(|target| Server {
            target,
            ruled_out: None,
            known: false,
        });
        let core = Self {
            state,
            servers: servers.collect(),
            stage: Stage::Round,
            next: 0,
            left: 0,
            errors: Vec::new(),
            is_whole: true,
            rounds: 0,
            attempts: config.first_attempts.or(config.attempts),
            credentials,
            proven: None,
            news,
            move_at: None,
            gap: None,
            told_invalid: false,
            setbacks: 0,
            _uuid: uuid,
        };
        Ok((core, events))
    }

    /// A handle of the client.
    pub fn handle(&self) -> ClientHandle {
        ClientHandle::new(Arc::clone(&self.state))
    }

    pub(super) fn state(&self) -> &ClientState {
        &self.state
    }

    /// As [`ClientHandle::request_to`], but does not wait: where the answer arrives. `None` while
    /// new requests wait for the next session.
    pub fn ask(&self, whom: Uuid, frame: &Frame) -> Option<Result<Receiver<Answer>, RequestError>> {
        let asked = self.state.ask(whom, frame, deadline(Duration::ZERO))?;
        Some(asked.map(|(_, answered)| answered))
    }

    /// The name and the time limits of the session's reader and writer.
    pub fn link(&self) -> LinkConfig {
        LinkConfig {
            name: "ssntp-client".into(),
            write_timeout: Some(self.state.config.write_timeout),
            // As long as a server may take to deal with all that it was sent, where
            // the session is to be replaced. Every other end has a limit below.
            linger: self.state.config.write_timeout,
        }
    }

    /// Does what is due, and says what comes next.
    pub fn step(&mut self, at: At) -> Next {
        loop {
            let stage = mem::replace(&mut self.stage, Stage::Over);
            let (stage, next) = self.go(stage, at);
            self.stage = stage;
            if let Some(next) = next {
                return next;
            }
        }
    }

    fn go(&mut self, stage: Stage, at: At) -> (Stage, Option<Next>) {
        match stage {
            Stage::Over => (Stage::Over, Some(Next::End)),
            Stage::Stands(session) => self.stand(session, at),
            _ if self.state.cancel.is_cancelled() => (self.end(ClientError::Closed), None),
            Stage::Round => {
                if self.left == 0 {
                    self.left = self.servers.len();
                }
                self.is_whole = self.left == self.servers.len();
                self.errors.clear();
                (Stage::Tries, None)
            }
            // They may mend what any server has refused before.
            Stage::Tries if self.adopt_news() => {
                self.left = 0;
                (Stage::Round, None)
            }
            Stage::Tries => (self.try_next(at), None),
            Stage::Dials(trial, refused) => (Stage::Dials(trial.clone(), refused), Some(Next::Dial(*trial))),
            Stage::Pauses(until) if self.adopt_news() || at.now >= until => (Stage::Round, None),
            Stage::Pauses(until) => (stage, Some(Next::Wait(Some(until)))),
        }
    }

    /// Waits as [`Next::Wait`] says.
    pub(super) fn wait(&self, until: Option<Instant>) {
        let mut select = Select::new();
        select.recv(&self.news);
        // A channel that has ended is always ready.
        if !self.state.cancel.is_cancelled() {
            select.recv(self.state.cancel.done());
        }
        if let Stage::Stands(session) = &self.stage {
            select.recv(&session.over);
            select.recv(&session.drains);
        }
        match until {
            Some(until) => drop(select.ready_deadline(until)),
            None => drop(select.ready()),
        }
    }

    fn end(&self, reason: ClientError) -> Stage {
        match &reason {
            ClientError::Closed => info!(target: LOG, "{}: closed", self.name()),
            reason => warn!(target: LOG, "{}: ended: {reason}", self.name()),
        }
        // Where the client was closed, `ClientState::close` has told the
        // application already.
        if !self.state.cancel.is_cancelled() {
            self.state.end(reason);
        }
        Stage::Over
    }

    fn try_next(&mut self, at: At) -> Stage {
        while self.left > 0 {
            let server = self.next % self.servers.len();
            (self.next, self.left) = (server + 1, self.left - 1);
            if let Some(error) = &self.servers[server].ruled_out {
                self.errors.push(error.clone());
                continue;
            }
            let trial = Trial {
                server,
                target: self.servers[server].target.clone(),
                credentials: self.credentials.clone(),
            };
            return Stage::Dials(Box::new(trial), None);
        }
        if self.servers.iter().all(|server| server.ruled_out.is_some()) {
            return self.end(ClientError::NoServerLeft(self.errors.clone()));
        }
        if self.gap.take_if(|until| at.now >= *until).is_some() {
            self.state.hold_requests(false);
            self.state.counts.lose(self.state.uplink.give_up());
        }
        lock(&self.state.failures).clone_from(&self.errors);
        self.rounds += u32::from(self.is_whole);
        if self.attempts.is_some_and(|attempts| self.rounds >= attempts) {
            return self.end(ClientError::GaveUp {
                attempts: self.rounds,
                last: self.errors.clone(),
            });
        }
        self.pause(at)
    }

    /// The pause before the next round, which ends when the credentials are renewed.
    fn pause(&mut self, at: At) -> Stage {
        let pause = self.state.config.backoff.ceiling(self.setbacks).mul_f64(at.share);
        self.setbacks = self.setbacks.saturating_add(1);
        debug!(target: LOG, "{}: next attempt in {pause:?}", self.name());
        Stage::Pauses(at.now + pause)
    }

    /// An attempt is over. Where a session stands, it is to [`begin`](Self::begin); `None` as
    /// well where the client was closed meanwhile.
    pub fn dialled(&mut self, result: Result<Standing, DialFault>, at: At) -> Option<Up> {
        let Stage::Dials(trial, refused) = mem::replace(&mut self.stage, Stage::Tries) else {
            return None;
        };
        match result {
            Ok(standing) => return self.stands(&trial, refused.as_ref(), standing, at),
            Err(_) if self.state.cancel.is_cancelled() => {}
            Err(fault) => {
                let server = trial.target.to_string();
                let first = refused.is_none();
                let error = refused.unwrap_or(DialError { server, fault });
                let older = self
                    .credentials
                    .older(self.proven.as_ref(), &error.fault, at.wall);
                self.stage = match older.filter(|_| first) {
                    // A second attempt with the identity of the last session, where the server
                    // does not take a newer one.
                    Some(credentials) => Stage::Dials(
                        Box::new(Trial {
                            credentials,
                            ..*trial
                        }),
                        Some(error),
                    ),
                    None => self.note(trial.server, error, at),
                };
            }
        }
        None
    }

    /// Notes a failed attempt, and whether its server is tried again.
    fn note(&mut self, server: usize, error: DialError, at: At) -> Stage {
        self.state.counts.failed(&error.fault);
        if matches!(error.fault, DialFault::Refused(Refusal::PeerAborted)) {
            return self.end(ClientError::Aborted { server: error.server });
        }
        self.tell_invalid(at.wall);
        // A server that was reached once is there: its fault is somebody's mistake of today, such
        // as an expired certificate. One that was never reached may be a mistake in our settings.
        if error.fault.may_retry() || self.servers[server].known && error.fault.may_be_mended() {
            warn!(target: LOG, "{}: cannot connect to {error}", self.name());
        } else {
            warn!(target: LOG, "{}: not tried again: {error}", self.name());
            self.servers[server].ruled_out = Some(error.clone());
        }
        self.errors.push(error);
        Stage::Tries
    }

    /// A server has confirmed a session; what it `refused` before, if it is with an older identity.
    fn stands(
        &mut self,
        trial: &Trial,
        refused: Option<&DialError>,
        standing: Standing,
        at: At,
    ) -> Option<Up> {
        let identity = trial.credentials.identity.clone();
        if let Some(error) = refused {
            let until = identity.info().not_after_text();
            self.state.counts.failed(&error.fault);
            warn!(target: LOG, "{}: the new certificate is not taken ({error}); the old one goes on until {until}", self.name());
        }
        self.move_at = None;
        if !self.credentials.has(&identity) {
            // The server has only no room at present, so the new certificate is tried again soon.
            let for_now = refused.is_some_and(|error| match &error.fault {
                DialFault::Refused(refusal) => refusal.may_retry(),
                _ => false,
            });
            self.move_at = Some(credentials::moment_after_refusal(&identity, for_now, at));
        }
        lock(&self.state.in_use).clone_from(&Some(identity.clone()));
        self.proven = Some(identity);
        lock(&self.state.failures).clear();
        self.servers[trial.server].known = true;
        (self.gap, self.rounds, self.attempts) = (None, 0, self.state.config.attempts);
        self.state.configure(&standing.configuration);
        self.state.hold_requests(false);
        let Some(outbox) = self.state.uplink.up(&standing.server) else {
            self.stage = self.end(ClientError::Closed);
            return None;
        };
        self.state.counts.begin(&outbox, at.now);
        info!(target: LOG, "{}: connected to {}", self.name(), standing.server);
        let (tell, over) = crossbeam_channel::bounded(1);
        let (drain, drains) = crossbeam_channel::bounded(1);
        let (state, server) = (&self.state, standing.server.clone());
        let up = Up {
            sink: SessionSink::new(Arc::clone(state), outbox.clone(), tell, drain),
            decoder: Decoder::new(
                self.state.config.max_payload,
                server.tracing(),
                self.state.config.operands.clone(),
                Arc::clone(&state.counts.bad_traces),
                (state.uuid, self.state.config.role),
            ),
            outbox: outbox.clone(),
            server,
        };
        self.stage = Stage::Stands(Box::new(Session {
            at: trial.server,
            began: at.now,
            outbox,
            standing,
            over,
            told: None,
            is_gone: false,
            // A client that does not connect again stays until the server ends.
            drains: if self.state.config.reconnect {
                drains
            } else {
                never()
            },
            leave: None,
            is_revoked: false,
            reason: DisconnectReason::Closed,
            phase: Phase::Stands,
        }));
        Some(up)
    }

    /// A session begins: `start` starts its reader and its writer, and the application is told.
    pub fn begin<L>(
        &mut self,
        up: Up,
        start: impl FnOnce(Decoder, Outbox, SessionSink) -> io::Result<L>,
    ) -> Option<L> {
        // The reader waits at this lock with its first frame until the
        // application has been told of the session.
        let mut inbound = lock(&self.state.inbound);
        let started = start(up.decoder, up.outbox, up.sink);
        if let Some(inbound) = &mut *inbound {
            inbound.deliver(ClientEvent::Connected(up.server), 0);
        }
        if let (Err(e), Stage::Stands(session)) = (&started, &mut self.stage) {
            let why = format!("cannot start a thread: {e}");
            session.told = Some(DisconnectReason::Lost(why));
        }
        started.ok()
    }

    /// Takes what the application has replaced the credentials with; false where
    /// it has not.
    fn adopt_news(&mut self) -> bool {
        if self.news.try_recv().is_err() {
            return false;
        }
        self.credentials = lock(&self.state.credentials).clone();
        self.told_invalid = false;
        let not_after = self.credentials.identity.info().not_after_text();
        info!(target: LOG, "{}: renewed: the certificate is valid until {not_after}", self.name());
        for server in &mut self.servers {
            // They were ruled out with the former credentials.
            server.ruled_out = None;
        }
        true
    }

    /// Says, once, what a server does not: that it is our own certificate, or our
    /// clock, that stands in the way.
    fn tell_invalid(&mut self, wall: SystemTime) {
        if let Err(why) = self.credentials.identity.info().check_validity(wall)
            && !mem::replace(&mut self.told_invalid, true)
        {
            warn!(target: LOG, "{}: our own certificate is not valid: {why}; no server takes it", self.name());
        }
    }

    /// Says when a session that stands with another identity than the newest one
    /// is to be replaced. What was planned before is not put off.
    fn plan(&mut self, at: At) {
        let older = self
            .proven
            .as_ref()
            .filter(|proven| !self.credentials.has(proven));
        self.move_at = older.map(|older| {
            let moment = credentials::moment(older, self.state.config.renewal_spread, at);
            self.move_at.map_or(moment, |planned| planned.min(moment))
        });
    }

    fn name(&self) -> String {
        format!("{} ({})", self.state.uuid, self.state.config.role)
    }
}
