//! The thread that keeps a client connected.
//!
//! ```text
//!  round: each server that is not ruled out, in order
//!    ├ one answers ──▶ session ──▶ lost ──▶ pause ──▶ next round
//!    ├ none answers ─────────────────────▶ pause ──▶ next round
//!    ├ ConnectionAborted ──▶ the end
//!    └ the last one is ruled out ──▶ the end
//! ```

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::Receiver;
use log::{debug, info, warn};

use super::dial::{Dialer, Established, say_goodbye};
use super::handle::{ClientState, Counts, lock, now};
use super::inbound::Inbound;
use super::session::{Decoder, SessionSink};
use super::uplink::Uplink;
use super::uuid_file::Claimed;
use super::{Backoff, ClientConfig, ClientError, ClientEvent, DialError, DialFault, DisconnectReason, LOG};
use crate::proto::{ErrorCode, Refusal};
use crate::ssntp::request::Outstanding;
use crate::transport::{Cancel, Link, LinkConfig, Target, deadline};

/// How long after its last byte a session waits for the server to end its
/// side.
const LINGER: Duration = Duration::from_secs(1);

/// The thread's state.
#[derive(Debug)]
pub(super) struct Supervisor {
    state: Arc<ClientState>,
    dialer: Dialer,
    servers: Vec<Server>,
    backoff: Backoff,
    attempts: Option<u32>,
    /// The same until the first session stands.
    first_attempts: Option<u32>,
    reconnect: bool,
    write_timeout: Duration,
    grace: Duration,
    /// Rounds that failed, and sessions that did not last, in a row.
    setbacks: u32,
    /// Kept until the thread ends: the UUID is in use as long.
    _uuid: Claimed,
}

#[derive(Debug)]
struct Server {
    target: Target,
    /// Why it is never tried again.
    ruled_out: Option<DialError>,
}

impl Supervisor {
    /// A supervisor that a thread is to [`run`](Self::run), the state that it
    /// shares with the client's handles, and where its events arrive.
    pub(super) fn new(
        config: ClientConfig,
        uuid: Claimed,
    ) -> Result<(Self, Arc<ClientState>, Receiver<ClientEvent>), ClientError> {
        let cancel = Cancel::new();
        let dialer =
            Dialer::new(&config, uuid.uuid, cancel.clone()).map_err(|e| ClientError::Tls(Arc::new(e)))?;
        let (inbound, events) = Inbound::new(config.inbound, cancel.done().clone());
        let state = Arc::new(ClientState {
            uuid: uuid.uuid,
            role: config.role,
            max_payload: config.max_payload,
            operands: config.operands.clone(),
            requests: Mutex::new(Outstanding::new(config.max_requests)),
            send_timeout: config.send_timeout,
            uplink: Uplink::new(uuid.uuid, config.role, config.offline, config.queue),
            inbound: Mutex::new(Some(inbound)),
            configuration: Mutex::new(None),
            failures: Mutex::new(Vec::new()),
            counts: Counts::new(),
            cancel,
        });
        let servers = config.servers().into_iter().map(|target| Server {
            target,
            ruled_out: None,
        });
        let supervisor = Self {
            state: Arc::clone(&state),
            dialer,
            servers: servers.collect(),
            backoff: config.backoff,
            attempts: config.attempts,
            first_attempts: config.first_attempts.or(config.attempts),
            reconnect: config.reconnect,
            write_timeout: config.write_timeout,
            grace: config.grace,
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
        let mut attempts = self.first_attempts;
        loop {
            let established = match self.connect(attempts) {
                Ok(established) => established,
                Err(reason) => return reason,
            };
            attempts = self.attempts;
            let server = established.server.name().to_owned();
            let began = now();
            match self.session(established) {
                DisconnectReason::Closed => return ClientError::Closed,
                DisconnectReason::PeerRefused(ErrorCode::CONNECTION_ABORTED) => {
                    return ClientError::Aborted { server };
                }
                reason if !self.reconnect => return ClientError::Disconnected(reason),
                _ => {}
            }
            // The pauses start over only after a session that lasted. A server
            // that admits a client and ends it at once would otherwise be dialled
            // again without a pause.
            let lasted = now().saturating_duration_since(began);
            if lasted > self.backoff.ceiling(self.setbacks) {
                self.setbacks = 0;
            }
            if !self.pause() {
                return ClientError::Closed;
            }
        }
    }

    /// Rounds of attempts until a session stands.
    fn connect(&mut self, attempts: Option<u32>) -> Result<Established, ClientError> {
        let mut rounds = 0;
        loop {
            let mut errors = Vec::new();
            for at in 0..self.servers.len() {
                if let Some(error) = &self.servers[at].ruled_out {
                    errors.push(error.clone());
                    continue;
                }
                match self.dialer.dial(&self.servers[at].target) {
                    Ok(established) => {
                        lock(&self.state.failures).clear();
                        return Ok(established);
                    }
                    Err(_) if self.state.cancel.is_cancelled() => return Err(ClientError::Closed),
                    Err(error) => {
                        self.note(at, &error)?;
                        errors.push(error);
                    }
                }
            }
            if self.servers.iter().all(|server| server.ruled_out.is_some()) {
                return Err(ClientError::NoServerLeft(errors));
            }
            lock(&self.state.failures).clone_from(&errors);
            rounds += 1;
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

    /// What a failed attempt means for later ones.
    fn note(&mut self, at: usize, error: &DialError) -> Result<(), ClientError> {
        self.state.counts.failed(&error.fault);
        if matches!(error.fault, DialFault::Refused(Refusal::PeerAborted)) {
            return Err(ClientError::Aborted {
                server: error.server.clone(),
            });
        }
        if error.fault.may_retry() {
            warn!(target: LOG, "{}: cannot connect to {error}", self.name());
        } else {
            warn!(target: LOG, "{}: not tried again: {error}", self.name());
            self.servers[at].ruled_out = Some(error.clone());
        }
        Ok(())
    }

    /// Waits before the next round; false at once when the client is closed.
    fn pause(&mut self) -> bool {
        let pause = self.backoff.pause(self.setbacks);
        self.setbacks = self.setbacks.saturating_add(1);
        debug!(target: LOG, "{}: next attempt in {pause:?}", self.name());
        self.state.cancel.pause(pause)
    }

    /// Runs a session to its end, and says why it ended.
    fn session(&mut self, established: Established) -> DisconnectReason {
        let Established {
            mut halves,
            server,
            configuration,
        } = established;
        self.state.configure(&configuration);
        let Some(outbox) = self.state.uplink.up(&server) else {
            say_goodbye(&mut halves);
            return DisconnectReason::Closed;
        };
        self.state.counts.begin(&outbox);
        info!(target: LOG, "{}: connected to {server}", self.name());

        let (tell, over) = crossbeam_channel::bounded(1);
        let sink = SessionSink::new(Arc::clone(&self.state), outbox.clone(), tell);
        let decoder = Decoder::new(Arc::clone(&self.state), server.tracing());
        let config = LinkConfig {
            name: "ssntp-client".into(),
            write_timeout: Some(self.write_timeout),
            linger: LINGER.min(self.grace),
        };
        // The reader waits at this lock with its first frame until the
        // application has been told of the session.
        let mut inbound = lock(&self.state.inbound);
        let link = match Link::start(halves, decoder, outbox, sink, config) {
            Ok(link) => link,
            Err(e) => {
                drop(inbound);
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

        let reason = crossbeam_channel::select! {
            recv(over) -> reason => reason.unwrap_or(DisconnectReason::Lost("its reader ended".into())),
            recv(self.state.cancel.done()) -> _ => DisconnectReason::Closed,
        };
        self.state.uplink.down();
        self.state.cancel_requests();
        if self.state.cancel.is_cancelled() {
            self.part(link, &over);
            return DisconnectReason::Closed;
        }
        let aborted = reason == DisconnectReason::PeerRefused(ErrorCode::CONNECTION_ABORTED);
        let retrying = self.reconnect && !aborted;
        warn!(target: LOG, "{}: disconnected: {reason}", self.name());
        self.state.deliver(ClientEvent::Disconnected {
            reason: reason.clone(),
            retrying,
        });
        crossbeam_channel::select! {
            recv(over) -> _ => {}
            recv(self.state.cancel.done()) -> _ => link.abort(),
            default(self.write_timeout) => link.abort(),
        }
        link.join();
        self.state.counts.finish();
        reason
    }

    /// Lets a session that is closed send what waits, and part from the
    /// server, within the grace.
    fn part(&self, link: Link, over: &Receiver<DisconnectReason>) {
        link.close();
        let deadline = deadline(self.grace);
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
