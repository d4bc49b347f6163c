//! The thread that keeps a client connected.
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

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, at, never};
use log::{debug, info, warn};

use super::config::random_share;
use super::credentials::{self, Credentials};
use super::dial::{Dialer, Established, say_goodbye};
use super::handle::{ClientState, Counts, lock, now};
use super::inbound::Inbound;
use super::session::SessionSink;
use super::uplink::Uplink;
use super::uuid_file::Claimed;
use super::{ClientConfig, ClientError, ClientEvent, DialError, DialFault, DisconnectReason, LOG};
use crate::proto::{ErrorCode, Refusal};
use crate::request::Outstanding;
use crate::wire::Decoder;
use ssntp_transport::pki::{CertificateDer, Identity};
use ssntp_transport::{Cancel, Link, LinkConfig, Target, deadline};

/// How long after its last byte a session waits for the server to end its
/// side.
const LINGER: Duration = Duration::from_secs(1);

/// How long a session that is to be replaced stays for the answers to requests:
/// as long as most wait for one.
const ANSWERS: Duration = Duration::from_secs(5);
/// How often it is looked whether they have come.
const LOOK: Duration = Duration::from_millis(5);

/// How long frames wait for the session that replaces another, and for the
/// attempts that are under way then: longer than a server that restarts
/// at the same time takes.
const GAP: Duration = Duration::from_secs(10);

/// The thread's state.
#[derive(Debug)]
pub(super) struct Supervisor {
    state: Arc<ClientState>,
    dialer: Dialer,
    servers: Vec<Server>,
    /// The server that is tried next, and how many are left to be tried until the next pause.
    next: usize,
    left: usize,
    config: Arc<ClientConfig>,
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
    /// Whether a server that is not trusted any more is that because its
    /// certificate is revoked.
    is_revoked: bool,
    /// Rounds that failed, and sessions that did not last, in a row.
    setbacks: u32,
    /// Kept until the thread ends: the UUID is in use as long.
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

impl Supervisor {
    /// A supervisor that a thread is to [`run`](Self::run), the state that it
    /// shares with the client's handles, and where its events arrive.
    pub(super) fn new(
        config: ClientConfig,
        uuid: Claimed,
    ) -> Result<(Self, Arc<ClientState>, Receiver<ClientEvent>), ClientError> {
        let (config, cancel) = (Arc::new(config), Cancel::new());
        let credentials = Credentials::new(&config.identity, &config.trust, config.resumption)?;
        let (tell, news) = crossbeam_channel::bounded(1);
        let (inbound, events) = Inbound::new(config.inbound, cancel.done().clone());
        let state = Arc::new(ClientState {
            uuid: uuid.uuid,
            role: config.role,
            max_payload: config.max_payload,
            operands: config.operands.clone(),
            requests: Mutex::new(Outstanding::new(config.max_requests)),
            asked: Arc::default(),
            send_timeout: config.send_timeout,
            uplink: Uplink::new(uuid.uuid, config.role, config.offline, config.queue),
            resumption: config.resumption,
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
        let supervisor = Self {
            state: Arc::clone(&state),
            dialer: Dialer::new(Arc::clone(&config), uuid.uuid, state.cancel.clone()),
            servers: servers.collect(),
            next: 0,
            left: 0,
            config,
            credentials,
            proven: None,
            news,
            move_at: None,
            gap: None,
            told_invalid: false,
            is_revoked: false,
            setbacks: 0,
            _uuid: uuid,
        };
        Ok((supervisor, state, events))
    }

    pub(super) fn run(mut self) {
        let reason = self.serve();
        match &reason {
            ClientError::Closed => info!(target: LOG, "{}: closed", self.name()),
            reason => warn!(target: LOG, "{}: ended: {reason}", self.name()),
        }
        // Where the client was closed, `ClientState::close` has told the
        // application already.
        if !self.state.cancel.is_cancelled() {
            self.state.end(reason);
        }
    }

    /// Connects again and again, and says why it does not any more.
    fn serve(&mut self) -> ClientError {
        let mut attempts = self.config.first_attempts.or(self.config.attempts);
        loop {
            let (at, established) = match self.connect(attempts) {
                Ok(connected) => connected,
                Err(reason) => return reason,
            };
            attempts = self.config.attempts;
            let server = established.server.name().to_owned();
            let began = now();
            match self.session(established) {
                DisconnectReason::Closed => return ClientError::Closed,
                DisconnectReason::PeerRefused(ErrorCode::CONNECTION_ABORTED) => {
                    return ClientError::Aborted { server };
                }
                reason if !self.config.reconnect => return ClientError::Disconnected(reason),
                reason @ (DisconnectReason::Renewed | DisconnectReason::Draining) => {
                    if reason == DisconnectReason::Renewed {
                        self.next = at;
                    }
                    self.left = 0;
                    // The old session ended in order, so what is sent meanwhile waits a little for
                    // the next one, as if there were no gap.
                    self.gap = Some(deadline(GAP));
                    continue;
                }
                DisconnectReason::Certificate(_) => self.gap = Some(deadline(GAP)),
                DisconnectReason::PeerRefused(_) => self.tell_invalid(),
                _ => {}
            }
            // The pauses start over only after a session that lasted. A server
            // that admits a client and ends it at once would otherwise be dialled
            // again without a pause.
            let lasted = now().saturating_duration_since(began);
            if lasted > self.config.backoff.ceiling(self.setbacks) {
                self.setbacks = 0;
                let in_use = self.servers.iter().filter(|server| server.ruled_out.is_none());
                if in_use.count() > 1 {
                    self.left = self.servers.len();
                }
            }
            if self.left == 0 && !self.pause() {
                return ClientError::Closed;
            }
        }
    }

    /// Rounds of attempts until a session stands.
    fn connect(&mut self, attempts: Option<u32>) -> Result<(usize, Established), ClientError> {
        let mut rounds = 0;
        loop {
            let mut errors = Vec::new();
            if self.left == 0 {
                self.left = self.servers.len();
            }
            let is_whole = self.left == self.servers.len();
            // Before each round, so that credentials that were renewed during the pause are used
            // at once.
            self.adopt_news();
            while self.left > 0 {
                let at = self.next % self.servers.len();
                (self.next, self.left) = (at + 1, self.left - 1);
                if let Some(error) = &self.servers[at].ruled_out {
                    errors.push(error.clone());
                    continue;
                }
                match self.dial(at) {
                    Ok(established) => {
                        lock(&self.state.failures).clear();
                        self.servers[at].known = true;
                        self.gap = None;
                        return Ok((at, established));
                    }
                    Err(_) if self.state.cancel.is_cancelled() => return Err(ClientError::Closed),
                    Err(error) => {
                        self.note(at, &error)?;
                        errors.push(error);
                    }
                }
            }
            // New credentials may mend what ruled a server out.
            if self.servers.iter().all(|server| server.ruled_out.is_some()) {
                if self.adopt_news() {
                    continue;
                }
                return Err(ClientError::NoServerLeft(errors));
            }
            if self.gap.is_some_and(|until| now() >= until) {
                self.gap = None;
                self.state.hold_requests(false);
                self.state.counts.lose(self.state.uplink.give_up());
            }
            lock(&self.state.failures).clone_from(&errors);
            rounds += u32::from(is_whole);
            if attempts.is_some_and(|attempts| rounds >= attempts) {
                return Err(ClientError::GaveUp {
                    attempts: rounds,
                    last: errors,
                });
            }
            if !self.pause() {
                return Err(ClientError::Closed);
            }
        }
    }

    /// One attempt, and a second one with the identity of the last session where
    /// the server does not take a newer one.
    fn dial(&mut self, at: usize) -> Result<Established, DialError> {
        let target = &self.servers[at].target;
        let newest = self.dialer.dial(target, &self.credentials.connector);
        // The server has only no room at present, so the new certificate is tried again soon.
        let for_now = matches!(&newest, Err(error) if matches!(&error.fault, DialFault::Refused(refusal) if refusal.may_retry()));
        let (established, identity) = match newest {
            Ok(established) => (established, self.credentials.identity.clone()),
            Err(error) => {
                let older = self.credentials.older(self.proven.as_ref(), &error.fault);
                let Some(older) = older.filter(|_| !self.state.cancel.is_cancelled()) else {
                    return Err(error);
                };
                let again = self.dialer.dial(target, &older.connector);
                let established = again.map_err(|_| error.clone())?;
                let until = older.identity.info().not_after_text();
                self.state.counts.failed(&error.fault);
                warn!(target: LOG, "{}: the new certificate is not taken ({error}); the old one goes on until {until}", self.name());
                (established, older.identity)
            }
        };
        self.move_at = None;
        if !self.credentials.has(&identity) {
            self.move_at = Some(credentials::moment_after_refusal(&identity, for_now));
        }
        self.proven = Some(identity);
        Ok(established)
    }

    /// Takes what the application has replaced the credentials with; false where
    /// it has not.
    fn adopt_news(&mut self) -> bool {
        let renewed = self.news.try_recv().is_ok();
        if renewed {
            self.adopt();
        }
        renewed
    }

    fn adopt(&mut self) {
        self.credentials = lock(&self.state.credentials).clone();
        self.told_invalid = false;
        let not_after = self.credentials.identity.info().not_after_text();
        info!(target: LOG, "{}: renewed: the certificate is valid until {not_after}", self.name());
        for server in &mut self.servers {
            // They were ruled out with the former credentials.
            server.ruled_out = None;
        }
    }

    /// Says, once, what a server does not: that it is our own certificate, or our
    /// clock, that stands in the way.
    fn tell_invalid(&mut self) {
        let valid = self
            .credentials
            .identity
            .info()
            .check_validity(credentials::today());
        if let Err(why) = valid
            && !std::mem::replace(&mut self.told_invalid, true)
        {
            warn!(target: LOG, "{}: our own certificate is not valid: {why}; no server takes it", self.name());
        }
    }

    /// What a failed attempt means for later ones.
    fn note(&mut self, at: usize, error: &DialError) -> Result<(), ClientError> {
        self.state.counts.failed(&error.fault);
        if matches!(error.fault, DialFault::Refused(Refusal::PeerAborted)) {
            return Err(ClientError::Aborted {
                server: error.server.clone(),
            });
        }
        self.tell_invalid();
        // A server that was reached once is there: its fault is somebody's mistake of today, such
        // as an expired certificate. One that was never reached may be a mistake in our settings.
        if error.fault.may_retry() || self.servers[at].known && error.fault.may_be_mended() {
            warn!(target: LOG, "{}: cannot connect to {error}", self.name());
        } else {
            warn!(target: LOG, "{}: not tried again: {error}", self.name());
            self.servers[at].ruled_out = Some(error.clone());
        }
        Ok(())
    }

    /// Waits before the next round, or until the credentials are renewed; false at
    /// once when the client is closed.
    fn pause(&mut self) -> bool {
        let pause = self.config.backoff.pause(self.setbacks);
        self.setbacks = self.setbacks.saturating_add(1);
        debug!(target: LOG, "{}: next attempt in {pause:?}", self.name());
        crossbeam_channel::select! {
            recv(self.news) -> _ => self.adopt(),
            recv(self.state.cancel.done()) -> _ => {}
            default(pause) => {}
        }
        !self.state.cancel.is_cancelled()
    }

    /// Runs a session to its end, and says why it ended.
    fn session(&mut self, established: Established) -> DisconnectReason {
        let Established {
            mut halves,
            server,
            configuration,
            chain,
            name,
        } = established;
        self.state.configure(&configuration);
        self.state.hold_requests(false);
        lock(&self.state.in_use).clone_from(&self.proven);
        let Some(outbox) = self.state.uplink.up(&server) else {
            say_goodbye(&mut halves);
            return DisconnectReason::Closed;
        };
        self.state.counts.begin(&outbox);
        info!(target: LOG, "{}: connected to {server}", self.name());

        let (tell, over) = crossbeam_channel::bounded(1);
        let (drain, drains) = crossbeam_channel::bounded(1);
        let sink = SessionSink::new(Arc::clone(&self.state), outbox.clone(), tell, drain);
        let decoder = Decoder::new(
            self.state.max_payload,
            server.tracing(),
            self.state.operands.clone(),
            Arc::clone(&self.state.counts.bad_traces),
            (self.state.uuid, self.state.role),
        );
        let config = LinkConfig {
            name: "ssntp-client".into(),
            write_timeout: Some(self.config.write_timeout),
            // As long as a server may take to deal with all that it was sent, where
            // the session is to be replaced. Every other end has a limit below.
            linger: self.config.write_timeout,
        };
        // The reader waits at this lock with its first frame until the
        // application has been told of the session.
        let mut inbound = lock(&self.state.inbound);
        let link = match Link::start(halves, decoder, outbox, sink, config) {
            Ok(link) => link,
            Err(e) => {
                drop(inbound);
                *lock(&self.state.in_use) = None;
                self.state.uplink.down();
                self.state.cancel_requests();
                self.state.counts.finish();
                let reason = DisconnectReason::Lost(format!("cannot start a thread: {e}"));
                warn!(target: LOG, "{}: {reason}", self.name());
                return reason;
            }
        };
        if let Some(inbound) = &mut *inbound {
            inbound.deliver(ClientEvent::Connected(server), 0);
        }
        drop(inbound);

        let is_in_order = |reason: &DisconnectReason| {
            matches!(reason, DisconnectReason::Renewed | DisconnectReason::Draining)
        };
        let mut reason = self.stand(&over, drains, &chain, &name);
        if is_in_order(&reason) {
            self.state.hold_requests(true);
            reason = self.await_answers(&over).unwrap_or(reason);
        }
        // How long the server may take to deal with what it was sent, and to end
        // its side. One that is a stranger now gets no new frame, and hardly time;
        // one whose certificate is revoked gets nothing at all.
        let ending = match &reason {
            reason if is_in_order(reason) => Some(self.config.write_timeout),
            DisconnectReason::Certificate(_) if self.is_revoked => Some(Duration::ZERO),
            DisconnectReason::Certificate(_) => Some(LINGER),
            _ => None,
        };
        if let Some(limit) = ending {
            self.state.hold_requests(true);
            self.state.uplink.part();
            // What it has sent until its end is delivered before that.
            crossbeam_channel::select! {
                recv(over) -> _ => {}
                recv(self.state.cancel.done()) -> _ => {}
                default(limit) => {
                    link.abort();
                    crossbeam_channel::select! {
                        recv(over) -> _ => {}
                        recv(self.state.cancel.done()) -> _ => {}
                    }
                }
            }
        }
        self.state.uplink.down();
        self.state.cancel_requests();
        *lock(&self.state.in_use) = None;
        if self.state.cancel.is_cancelled() {
            self.part(link, &over);
            return DisconnectReason::Closed;
        }
        let aborted = reason == DisconnectReason::PeerRefused(ErrorCode::CONNECTION_ABORTED);
        let retrying = self.config.reconnect && !aborted;
        match is_in_order(&reason) {
            true => info!(target: LOG, "{}: disconnected: {reason}", self.name()),
            false => warn!(target: LOG, "{}: disconnected: {reason}", self.name()),
        }
        self.state.deliver(ClientEvent::Disconnected {
            reason: reason.clone(),
            retrying,
        });
        // A server that ended its side may still receive; any other one that
        // this client has ended the session with does not deserve the wait.
        let limit = match reason {
            DisconnectReason::PeerClosed => self.config.write_timeout,
            _ if is_in_order(&reason) => self.config.write_timeout,
            _ => LINGER,
        };
        crossbeam_channel::select! {
            recv(over) -> _ => {}
            recv(self.state.cancel.done()) -> _ => link.abort(),
            default(limit) => link.abort(),
        }
        link.join();
        self.state.counts.finish();
        reason
    }

    /// Waits until the session is over or has to be, and says why.
    fn stand(
        &mut self,
        over: &Receiver<DisconnectReason>,
        mut drains: Receiver<Duration>,
        chain: &[CertificateDer<'static>],
        name: &str,
    ) -> DisconnectReason {
        // A client that does not connect again stays until the server ends.
        if !self.config.reconnect {
            drains = never();
        }
        let mut leave = never();
        loop {
            let due = self
                .move_at
                .filter(|_| self.config.reconnect)
                .map_or_else(never, at);
            crossbeam_channel::select! {
                recv(over) -> reason => return reason.unwrap_or_else(|_| reader_ended()),
                recv(self.state.cancel.done()) -> _ => return DisconnectReason::Closed,
                recv(due) -> _ => return DisconnectReason::Renewed,
                recv(leave) -> _ => return DisconnectReason::Draining,
                recv(drains) -> within => {
                    // Closed is what the channel is after the first message, and when the session's
                    // reader has ended.
                    drains = never();
                    // At random, so that not all clients come to another server at once.
                    leave = within.map_or_else(|_| never(), |within| at(deadline(within.mul_f64(random_share()))));
                }
                recv(self.news) -> _ => {
                    self.adopt();
                    if let Some((why, revoked)) = self.credentials.connector.objection(chain, name) {
                        self.is_revoked = revoked;
                        return DisconnectReason::Certificate(why);
                    }
                    self.plan();
                }
            }
        }
    }

    /// Says when a session that stands with another identity than the newest one
    /// is to be replaced. What was planned before is not put off.
    fn plan(&mut self) {
        let older = self
            .proven
            .as_ref()
            .filter(|proven| !self.credentials.has(proven));
        self.move_at = older.map(|older| {
            let moment = credentials::moment(older, self.config.renewal_spread);
            self.move_at.map_or(moment, |planned| planned.min(moment))
        });
    }

    /// Waits until the requests under way, in both directions, are answered. Some, where the
    /// session is over before.
    fn await_answers(&self, over: &Receiver<DisconnectReason>) -> Option<DisconnectReason> {
        let until = deadline(ANSWERS);
        let is_idle = || lock(&self.state.requests).is_idle() && Arc::strong_count(&self.state.asked) == 1;
        // It looks every few milliseconds, because an answer is rare at such a moment and a signal
        // for it would cost each other answer.
        while !is_idle() && now() < until {
            crossbeam_channel::select! {
                recv(over) -> reason => {
                    self.state.hold_requests(false);
                    return Some(reason.unwrap_or_else(|_| reader_ended()));
                }
                recv(self.state.cancel.done()) -> _ => return Some(DisconnectReason::Closed),
                default(LOOK) => {}
            }
        }
        None
    }

    /// Lets a session that is closed send what waits, and part from the
    /// server, within the grace.
    fn part(&self, link: Link, over: &Receiver<DisconnectReason>) {
        // The queue is sent first: what `send` has taken before a close is to arrive.
        link.close();
        let deadline = deadline(self.config.grace);
        // The channel gives the reason, where there is one, and then ends when
        // the session's threads have ended.
        while over.recv_deadline(deadline).is_ok() {}
        link.abort();
        link.join();
        self.state.counts.finish();
    }

    fn name(&self) -> String {
        format!("{} ({})", self.state.uuid, self.state.role)
    }
}

fn reader_ended() -> DisconnectReason {
    DisconnectReason::Lost("its reader ended".into())
}
