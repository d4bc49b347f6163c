//! All decisions of a client, step by step: the server to dial, the pauses, the end and the
//! replacement of a session, and the events for the application.
//!
//! ```text
//!  round: each server that is not ruled out, in order
//!    ├ a server answers ──▶ session ──▶ lost ─┬─▶ a new round at once, from the next server on
//!    │                                        ├─▶ the rest of this round, if the session was short
//!    │                                        └─▶ pause, if there is no other server or no rest
//!    ├ no server answers ──▶ pause ──▶ next round
//!    ├ ConnectionAborted ──▶ the end
//!    └ the last server is ruled out ──▶ the end
//! ```
//!
//! A client that was renewed replaces its session at a time that it has chosen:
//!
//! ```text
//!  requests under way are answered, new ones wait          5 s at most
//!  the queue is sent, close_notify       frames wait       30 s at most (write_timeout)
//!  the server handles all of it, sends the rest of its queue, and ends its side
//!  Disconnected { Renewed }
//!  attempts with the new certificate, else the old one     10 s, then frames no longer wait
//!  Connected                             the frames that waited are sent first
//! ```
//!
//! If a draining server asks the client to leave, the client does the same at a random moment, with
//! Disconnected { Draining }, and goes on as after a lost session, beginning with the next server.
//!
//! A client never has two sessions at a time. A server lets a second session replace the first
//! only if both certificates are bound to the UUID by one authority, and it
//! would drop the frames of the first session that it has not handled. Ending the first session
//! before the second begins loses no frame, whatever the certificates are.
//!
//! Simulations use it by the hidden module `simulation`. A [`ClientCore`] has
//! no threads, no sockets and no clock. Its owner calls [`ClientCore::step`] with the time, carries
//! out the [`Next`] that it returns, and steps again after an event or at the time that it names.
//! [`Client`](super::Client) runs it on the client's thread.

mod life;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use std::{io, mem};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Select};
use log::{debug, info, warn};
use uuid::Uuid;

use self::life::{CurrentSession, Phase};
use super::config::ClientConfig;
use super::credentials::{self, ClientCredentials};
use super::error::{ClientError, DialError, DialFault, SendFault, SessionEnd};
use super::event::{ClientEvent, LOG, ServerInfo};
use super::handle::{ClientHandle, ClientState, Counts};
use super::inbound::Inbound;
pub use super::session::SessionSink;
pub use super::time::At;
use super::uplink::{Obstacle, Uplink};
use super::uuid_file::Claimed;
use crate::proto::{Frame, Refusal};
use crate::request::{Awaited, Outstanding, RequestError};
use crate::silence::LOOKS;
use crate::wire::Decoder;
use ssntp_pki::{CertificateDer, Identity};
use ssntp_transport::{Cancel, LinkConfig, Outbox, Target, after, deadline, locked, nap};

/// The next thing that the owner of a [`ClientCore`] has to do.
#[derive(Debug)]
pub enum Next {
    /// Dial a server, and pass the result to [`ClientCore::dialled`].
    Dial(Trial),
    /// Wait until this time (`None`: no limit), until the session ends, until the application
    /// renews or closes the client, or until the server asks the client to leave.
    Wait(Option<Instant>),
    /// Shut the session's stream down. Frames that wait in its queue are lost.
    Abort,
    /// Wait until reader and writer of the session have ended.
    Join,
    /// The client has ended.
    End,
}

/// One attempt at one server.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The index of the server in the configuration.
    pub server: usize,
    /// The address of the server.
    pub target: Target,
    pub(super) credentials: ClientCredentials,
}

impl Trial {
    /// The identity to show to the server.
    pub fn identity(&self) -> &Identity {
        &self.credentials.identity
    }
}

/// The facts of a server that has confirmed a session with CONNECTED.
#[derive(Debug)]
pub struct Standing {
    /// The facts.
    pub server: Arc<ServerInfo>,
    /// The payload of CONNECTED.
    pub configuration: Bytes,
    /// The server's certificates, its own first.
    pub chain: Vec<CertificateDer<'static>>,
    /// The name that the certificates were verified for.
    pub name: String,
}

/// The parts of a session's reader and writer, for [`ClientCore::begin`].
#[derive(Debug)]
pub struct Up {
    server: Arc<ServerInfo>,
    decoder: Decoder,
    outbox: Outbox,
    sink: SessionSink,
}

/// The state of a client that decides what it does next.
#[derive(Debug)]
pub struct ClientCore {
    state: Arc<ClientState>,
    servers: Vec<Candidate>,
    stage: Stage,
    /// The index of the server to try next.
    next: usize,
    /// The number of servers to try before the next pause.
    untried: usize,
    /// True if this round began with all servers.
    is_full_round: bool,
    /// The number of full rounds since the last session.
    rounds: u32,
    /// The maximum of `rounds`; `None`: no limit.
    attempts: Option<u32>,
    /// The credentials of the next attempt.
    credentials: ClientCredentials,
    /// The identity of the last session.
    proven: Option<Identity>,
    /// Ready if the application has replaced the credentials.
    renewed: Receiver<()>,
    /// The time at which the session is to be replaced.
    replace_at: Option<Instant>,
    /// True if the log already has the warning that our own certificate is not valid.
    warned_invalid: bool,
    /// The number of failed rounds and short sessions in a row.
    setbacks: u32,
    /// True if the last step has seen that the client is closed.
    is_closed: bool,
    /// Holds the lock on the UUID until the client ends.
    _uuid: Claimed,
}

#[derive(Debug)]
struct Candidate {
    target: Target,
    /// The failure of the last attempt, if it was after the last session.
    failed: Option<DialError>,
    /// True if this server is not tried again, because of that failure.
    ruled_out: bool,
    /// True if the client has had a session with this server.
    known: bool,
}

#[derive(Debug)]
enum Stage {
    /// The next server of the round is to be tried.
    NextServer,
    /// An attempt is under way. If it uses an older identity, this is the error with the newest.
    Dialing(Box<Trial>, Option<DialError>),
    Pausing(Instant),
    Session(Box<CurrentSession>),
    Ended,
}

impl ClientCore {
    /// A client before its first step, and the channel of its events. The channel is bounded: a
    /// step that has an event for the application blocks until there is room.
    ///
    /// # Errors
    /// As [`Client::start`](super::Client::start).
    pub fn new(config: ClientConfig) -> Result<(Self, Receiver<ClientEvent>), ClientError> {
        let uuid = config.claim_uuid()?;
        let (config, cancel) = (Arc::new(config), Cancel::new());
        let credentials = ClientCredentials::new(&config.identity, &config.trust, config.resumption)?;
        // One signal is enough: the core reads the latest credentials when it sees it.
        let (renewal, renewed) = crossbeam_channel::bounded(1);
        let (inbound, events) = Inbound::new(config.inbound, cancel.done().clone());
        let state = Arc::new(ClientState {
            config: Arc::clone(&config),
            uuid: uuid.uuid,
            requests: Mutex::new(Outstanding::new(config.max_requests)),
            open_requests: Arc::default(),
            uplink: Uplink::new(uuid.uuid, config.role, config.offline, config.queue),
            credentials: Mutex::new(credentials.clone()),
            in_use: Mutex::new(None),
            renewal,
            inbound: Mutex::new(Some(inbound)),
            configuration: Mutex::new(None),
            failures: Mutex::new(Vec::new()),
            counts: Mutex::new(Counts::new()),
            bad_traces: Arc::default(),
            cancel,
        });
        let servers = config.servers().into_iter().map(|target| Candidate {
            target,
            failed: None,
            ruled_out: false,
            known: false,
        });
        let servers: Vec<_> = servers.collect();
        let core = Self {
            state,
            untried: servers.len(),
            servers,
            stage: Stage::NextServer,
            next: 0,
            is_full_round: true,
            rounds: 0,
            attempts: config.first_attempts.or(config.attempts),
            credentials,
            proven: None,
            renewed,
            replace_at: None,
            warned_invalid: false,
            setbacks: 0,
            is_closed: false,
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

    /// As [`ClientHandle::request_to`], but does not wait for the answer.
    /// `None` while new requests wait for the next session.
    pub fn ask(&self, whom: Uuid, frame: &Frame) -> Option<Result<Awaited, RequestError>> {
        match self.state.try_ask(whom, frame) {
            Err(Obstacle::State(_, SendFault::NotConnected)) => None,
            Err(obstacle) => {
                let fault = self.state.uplink.wait(obstacle, Some(deadline(Duration::ZERO)));
                fault.err().map(|fault| Err(fault.into()))
            }
            Ok(asked) => Some(asked),
        }
    }

    /// The name and the time limits of the session's reader and writer.
    pub fn link(&self) -> LinkConfig {
        LinkConfig {
            name: "ssntp-client".into(),
            write_timeout: Some(self.state.config.write_timeout),
            // The time that the server has to handle all frames if the session is replaced. Every
            // other end of a session has a shorter limit in `life`.
            linger: self.state.config.write_timeout,
        }
    }

    /// Advances the client, and returns what its owner has to do next.
    pub fn step(&mut self, at: At) -> Next {
        loop {
            // Read once, so that all decisions of the step and the wait after it agree.
            self.is_closed = self.state.cancel.is_cancelled();
            let stage = mem::replace(&mut self.stage, Stage::Ended);
            let (stage, next) = self.step_stage(stage, at);
            self.stage = stage;
            if let Some(next) = next {
                return next;
            }
        }
    }

    fn step_stage(&mut self, stage: Stage, at: At) -> (Stage, Option<Next>) {
        locked(&self.state.counts).counters.lost_frames += self.state.uplink.give_up(at.now);
        match stage {
            Stage::Ended => (Stage::Ended, Some(Next::End)),
            Stage::Session(session) => self.step_session(session, at),
            _ if self.is_closed => (self.end(ClientError::Closed), None),
            // Any server may accept the new credentials, so all are tried again.
            Stage::NextServer if self.adopt_renewal() => {
                self.untried = 0;
                (self.new_round(), None)
            }
            Stage::NextServer => (self.try_next(at), None),
            Stage::Dialing(trial, refused) => {
                (Stage::Dialing(trial.clone(), refused), Some(Next::Dial(*trial)))
            }
            Stage::Pausing(until) if self.adopt_renewal() || at.now >= until => (self.new_round(), None),
            Stage::Pausing(until) => {
                let gap_ends_at = self.state.uplink.gap_ends_at();
                let until = gap_ends_at.map_or(until, |end| end.min(until));
                (stage, Some(Next::Wait(Some(until))))
            }
        }
    }

    /// Begins a round: of the servers that are left from the last one, or else of all servers.
    fn new_round(&mut self) -> Stage {
        if self.untried == 0 {
            self.untried = self.servers.len();
        }
        self.is_full_round = self.untried == self.servers.len();
        Stage::NextServer
    }

    /// Blocks as [`Next::Wait`] describes.
    pub(super) fn wait(&self, until: Option<Instant>) {
        let mut select = Select::new();
        select.recv(&self.renewed);
        // A disconnected channel is always ready, so a client that has seen its end would never wait.
        if !self.is_closed {
            select.recv(self.state.cancel.done());
        }
        if let Stage::Session(session) = &self.stage {
            select.recv(&session.end);
            select.recv(&session.drain_requests);
        }
        match until {
            Some(until) => drop(select.ready_timeout(nap(until))),
            None => drop(select.ready()),
        }
    }

    fn end(&self, reason: ClientError) -> Stage {
        match &reason {
            ClientError::Closed => info!(target: LOG, "{}: closed", self.name()),
            reason => warn!(target: LOG, "{}: ended: {reason}", self.name()),
        }
        // `ClientHandle::close` has sent the last event already if the client was closed.
        if !self.state.cancel.is_cancelled() {
            self.state.end(reason);
        }
        Stage::Ended
    }

    fn try_next(&mut self, at: At) -> Stage {
        while self.untried > 0 {
            let server = self.next % self.servers.len();
            (self.next, self.untried) = (server + 1, self.untried - 1);
            if self.servers[server].ruled_out {
                continue;
            }
            let trial = Trial {
                server,
                target: self.servers[server].target.clone(),
                credentials: self.credentials.clone(),
            };
            return Stage::Dialing(Box::new(trial), None);
        }
        if self.servers.iter().all(|server| server.ruled_out) {
            return self.end(ClientError::NoServerLeft(self.failures()));
        }
        // The rest of a round after a short session does not count as a failed round.
        self.rounds += u32::from(self.is_full_round);
        if self
            .attempts
            .is_some_and(|attempts| self.rounds >= attempts.max(1))
        {
            return self.end(ClientError::GaveUp {
                attempts: self.rounds,
                last: self.failures(),
            });
        }
        self.pause(at)
    }

    /// Begins the pause before the next round. It ends early if the credentials are renewed.
    fn pause(&mut self, at: At) -> Stage {
        let pause = self.state.config.backoff.ceiling(self.setbacks).mul_f64(at.share);
        self.setbacks = self.setbacks.saturating_add(1);
        debug!(target: LOG, "{}: next attempt in {pause:?}", self.name());
        Stage::Pausing(after(at.now, pause))
    }

    /// Takes the result of an attempt. If there is a session, returns the parts for
    /// [`begin`](Self::begin). `None` if the attempt failed or the client was closed meanwhile.
    pub fn dialled(&mut self, result: Result<Standing, DialFault>, at: At) -> Option<Up> {
        let Stage::Dialing(trial, refused) = mem::replace(&mut self.stage, Stage::NextServer) else {
            return None;
        };
        match result {
            Ok(standing) => return self.established(&trial, refused.as_ref(), standing, at),
            // The next step ends the client.
            Err(_) if self.state.cancel.is_cancelled() => {}
            Err(fault) => {
                let server = trial.target.to_string();
                let older = self.credentials.older(self.proven.as_ref(), &fault, at.wall);
                let older = older.filter(|_| refused.is_none());
                let fault = match refused {
                    Some(refused) => refused.fault.and(fault),
                    None => fault,
                };
                let error = DialError { server, fault };
                self.stage = match older {
                    // The server refused the newest identity, so a second attempt uses the identity
                    // of the last session.
                    Some(credentials) => Stage::Dialing(
                        Box::new(Trial {
                            credentials,
                            ..*trial
                        }),
                        Some(error),
                    ),
                    None => self.attempt_failed(trial.server, error, at),
                };
            }
        }
        None
    }

    /// The end after ConnectionAborted of this server.
    fn aborted(&mut self, server: String) -> Stage {
        let is_bound = self.credentials.identity.uuid().is_some();
        self.end(ClientError::Aborted { server, is_bound })
    }

    /// Records a failed attempt, and decides whether its server is tried again.
    fn attempt_failed(&mut self, server: usize, error: DialError, at: At) -> Stage {
        locked(&self.state.counts).failed(&error.fault);
        // The first fault is that of the newest certificate, with which a later attempt would begin again.
        let is_aborted = matches!(error.fault.each(), [DialFault::Refused(Refusal::PeerAborted), ..]);
        if is_aborted && !error.fault.may_retry() {
            return self.aborted(error.server);
        }
        self.warn_if_invalid(at.wall);
        // A server that has accepted this client before can be repaired, for example by renewing an
        // expired certificate. The address of a server that never has may be a mistake in our
        // settings.
        if error.fault.may_retry() || self.servers[server].known && error.fault.may_be_mended() {
            warn!(target: LOG, "{}: cannot connect to {error}", self.name());
        } else {
            warn!(target: LOG, "{}: this server is not tried again: {error}", self.name());
            self.servers[server].ruled_out = true;
        }
        self.servers[server].failed = Some(error);
        *locked(&self.state.failures) = self.failures();
        Stage::NextServer
    }

    /// The last failure at each server.
    fn failures(&self) -> Vec<DialError> {
        let failed = self.servers.iter().filter_map(|server| server.failed.clone());
        failed.collect()
    }

    /// A server has confirmed a session. `refused` is its refusal of the newest identity, if the
    /// session uses an older one.
    fn established(
        &mut self,
        trial: &Trial,
        refused: Option<&DialError>,
        standing: Standing,
        at: At,
    ) -> Option<Up> {
        let identity = trial.credentials.identity.clone();
        if let Some(error) = refused {
            let until = identity.info().not_after_text();
            locked(&self.state.counts).failed(&error.fault);
            warn!(
                target: LOG,
                "{}: the server refuses the new certificate ({error}); the old certificate is used until {until}",
                self.name()
            );
        }
        self.replace_at = None;
        if !self.credentials.has(&identity) {
            // A server that has only no room at present is tried again soon with the new certificate.
            let is_for_now = |fault: &DialFault| matches!(fault, DialFault::Refused(why) if why.may_retry());
            let for_now = refused.is_some_and(|error| error.fault.each().iter().any(is_for_now));
            self.replace_at = Some(credentials::retry_time(&identity, for_now, at));
        }
        locked(&self.state.in_use).clone_from(&Some(identity.clone()));
        self.proven = Some(identity);
        locked(&self.state.failures).clear();
        for server in self.servers.iter_mut().filter(|server| !server.ruled_out) {
            server.failed = None;
        }
        self.servers[trial.server].known = true;
        (self.rounds, self.attempts) = (0, self.state.config.attempts);
        self.state.configure(&standing.configuration);
        let Some(outbox) = self.state.uplink.up(&standing.server) else {
            self.stage = self.end(ClientError::Closed);
            return None;
        };
        locked(&self.state.counts).begin(&outbox, at.now);
        info!(target: LOG, "{}: connected to {}", self.name(), standing.server);
        let (end_sender, end) = crossbeam_channel::bounded(1);
        let (drain, drain_requests) = crossbeam_channel::bounded(1);
        let (state, server) = (&self.state, standing.server.clone());
        let up = Up {
            sink: SessionSink {
                state: Arc::clone(state),
                outbox: outbox.clone(),
                end: end_sender,
                drain_requests: drain,
                refused: None,
            },
            decoder: Decoder::new(
                self.state.config.max_payload,
                server.tracing,
                self.state.config.operands.clone(),
                Arc::clone(&state.bad_traces),
                (state.uuid, self.state.config.role),
            ),
            outbox: outbox.clone(),
            server,
        };
        self.stage = Stage::Session(Box::new(CurrentSession {
            server: trial.server,
            began: at.now,
            outbox,
            standing,
            end,
            peer_reason: None,
            threads_ended: false,
            drain_requests,
            leave_at: None,
            taken: 0,
            look_at: self.idle_limit().map(|limit| at.now + limit / LOOKS),
            is_revoked: false,
            reason: SessionEnd::Closed,
            phase: Phase::Established,
        }));
        Some(up)
    }

    /// Begins a session: `start` starts its reader and writer, and the application receives
    /// [`ClientEvent::Connected`].
    pub fn begin<L>(
        &mut self,
        up: Up,
        start: impl FnOnce(Decoder, Outbox, SessionSink) -> io::Result<L>,
    ) -> Option<L> {
        // The reader blocks at this lock with its first frame, so that `Connected` is the first
        // event of the session.
        let mut inbound = locked(&self.state.inbound);
        let started = start(up.decoder, up.outbox, up.sink);
        if let Some(inbound) = &mut *inbound {
            inbound.deliver(ClientEvent::Connected(up.server), 0);
        }
        if let (Err(e), Stage::Session(session)) = (&started, &mut self.stage) {
            let why = format!("cannot start a thread: {e}");
            session.peer_reason = Some(SessionEnd::Lost(why));
        }
        started.ok()
    }

    /// Adopts the credentials if the application has replaced them. Returns false if it has not.
    fn adopt_renewal(&mut self) -> bool {
        if self.renewed.try_recv().is_err() {
            return false;
        }
        self.credentials = locked(&self.state.credentials).clone();
        self.warned_invalid = false;
        let not_after = self.credentials.identity.info().not_after_text();
        info!(target: LOG, "{}: renewed: the certificate is valid until {not_after}", self.name());
        for server in &mut self.servers {
            // The server refused the former credentials, and may accept these.
            server.ruled_out = false;
        }
        true
    }

    /// Logs once that our own certificate is not valid. Servers refuse it without this reason; our
    /// clock may be wrong.
    fn warn_if_invalid(&mut self, wall: SystemTime) {
        if let Err(why) = self.credentials.identity.info().check_validity(wall)
            && !mem::replace(&mut self.warned_invalid, true)
        {
            warn!(target: LOG, "{}: our own certificate is not valid: {why}; no server accepts it, and a node needs a new token", self.name());
        }
    }

    /// Sets the time at which the session is replaced, if it does not use the newest identity. A
    /// replacement that was planned before is not postponed.
    fn plan_replacement(&mut self, at: At) {
        let older = self
            .proven
            .as_ref()
            .filter(|proven| !self.credentials.has(proven));
        self.replace_at = older.map(|older| {
            let time = credentials::replacement_time(older, self.state.config.renewal_spread, at);
            self.replace_at.map_or(time, |planned| planned.min(time))
        });
    }

    fn name(&self) -> String {
        format!("{} ({})", self.state.uuid, self.state.config.role)
    }
}
