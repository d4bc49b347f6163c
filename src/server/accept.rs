//! Newcomers: brought through TLS and their [`Entry`] on a thread each, under one
//! deadline, until their connection's own threads run.
//!
//! ```text
//!  Acceptance ─▶ TLS ─▶ Passage: the steps of an Entry ─▶ Link::start ─▶ Started
//!  Dialler    ─▶ TLS ─▶    └─▶ Admit ─▶ dispatcher
//! ```

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use log::{Level, info, log};

use super::audit::AUDIT;
use super::config::Environment;
use super::core::{Grant, ServerCore};
use super::entry::{CLAIM, Entry, NoEntry, Step, Why};
use super::federation::LINK_PROTOCOL;
use super::{now, wall_clock};
use ssntp_transport::dispatch::{Admission, Admitted, DispatchEvent, Events, Feed};
use ssntp_transport::excerpt;
use ssntp_transport::pki::CertificateInfo;
use ssntp_transport::tls::TlsError;
use ssntp_transport::{
    Acceptance, Duplex, Halves, Link, LinkConfig, Listener, Newcomer, Outgoing, PeerAddress, after, drain,
    left, refuse,
};

/// How long after a refusal the peer may take to read it.
const LINGER: Duration = Duration::from_secs(1);

pub(super) type CoreEvents = Events<DispatchEvent<ServerCore>>;

/// Starts to accept clients at the listeners.
pub(super) fn start(
    listeners: Vec<Listener>,
    environment: Arc<Environment>,
    max_handshakes: usize,
    events: CoreEvents,
) -> io::Result<Acceptance> {
    let serve = Box::new(move |newcomer: &Arc<Newcomer>| serve(&environment, &events, newcomer));
    Acceptance::start(listeners, "ssntp", "ssntp::server", max_handshakes, serve)
}

/// Brings one newcomer in, or refuses it.
fn serve(environment: &Arc<Environment>, events: &CoreEvents, newcomer: &Arc<Newcomer>) {
    let deadline = after(newcomer.accepted(), environment.handshake_timeout);
    let stream = newcomer.stream();
    let in_force = environment.in_force();
    let secured = match in_force
        .acceptor
        .accept(Arc::clone(&stream), &environment.pool, deadline)
    {
        Ok(secured) => secured,
        Err(e) => {
            environment.refused(newcomer, e.word());
            // A client that goes away or says nothing is no attempt to get in.
            let level = match e.word() {
                "lost" | "timeout" => Level::Info,
                _ => Level::Warn,
            };
            environment.say(newcomer, level, "no TLS", "", &e);
            if matches!(e, TlsError::Tls(_)) {
                // The alert that was sent says why. Closing a socket with unread
                // input would destroy it on its way, so the input is read first.
                let _ = stream.shutdown(Shutdown::Write);
                drain(&*stream, LINGER);
            }
            return;
        }
    };
    let passage = Passage {
        environment,
        events,
        newcomer: Some(newcomer),
        stream,
        deadline,
    };
    // Always there: the verifier refuses who shows no certificate.
    let Some(leaf) = secured.peer.first() else { return };
    let certificate = match CertificateInfo::from_der(leaf) {
        Ok(certificate) => certificate,
        Err(fault) => return passage.refuse(secured.halves, &NoEntry(Why::Unreadable(fault)), ""),
    };
    let entry = match secured.alpn.as_deref() == Some(LINK_PROTOCOL) {
        true => Entry::server(environment, certificate, secured.peer, newcomer.peer(), None),
        false => Entry::client(environment, certificate, secured.peer, newcomer.peer()),
    };
    let mut entry = entry.verified_by(&in_force);
    match passage.take(&mut entry, secured.halves) {
        Ok(()) => environment.handshakes.finished(secured.resumed),
        Err(turned) => match *turned {
            (why, Some(halves)) => passage.refuse(halves, &why, &entry.named()),
            (why, None) => environment.refused(newcomer, why.word()),
        },
    }
}

/// Why somebody does not come in, and the halves if it can be told.
type Turned = (NoEntry, Option<Halves>);

/// Takes the steps of an [`Entry`] on this thread.
pub(super) struct Passage<'a> {
    pub(super) environment: &'a Environment,
    pub(super) events: &'a CoreEvents,
    /// Who came; none if this server has dialled.
    pub(super) newcomer: Option<&'a Arc<Newcomer>>,
    pub(super) stream: Arc<dyn Duplex>,
    pub(super) deadline: Instant,
}

impl Passage<'_> {
    /// Blocks until the threads of the connection run.
    ///
    /// # Errors
    /// It does not come in.
    pub(super) fn take(&self, entry: &mut Entry, mut halves: Halves) -> Result<(), Box<Turned>> {
        let mut admitted: Option<(Admitted<Grant>, Admission<ServerCore>)> = None;
        let mut step = entry.begin(halves.inbox.bytes_mut(), wall_clock());
        loop {
            let is_heard = matches!(step, Step::Claim(..) | Step::Admit(_));
            if is_heard && self.newcomer.is_some_and(|newcomer| !newcomer.heard()) {
                step = entry.stopping();
            }
            step = match step {
                Step::Receive => match halves.receive_until(self.deadline) {
                    Ok(received) => entry.received(halves.inbox.bytes_mut(), received.end, wall_clock()),
                    Err(_) if self.newcomer.is_some_and(|newcomer| newcomer.is_stopping()) => {
                        entry.stopping()
                    }
                    Err(e) => entry.lost(e),
                },
                Step::Claim(call, word) => {
                    let asked = self.events.send(DispatchEvent::Call(call)).is_ok();
                    entry.claimed(asked.then(|| word.recv_timeout(CLAIM).ok()).flatten())
                }
                Step::Admit(arrival) => match self.events.admit(*arrival, Arc::clone(&self.stream)) {
                    Some(Ok(granted)) => {
                        let step = entry.decided(Ok(&granted.grant));
                        let admission = Admission::new(granted.id, self.events.clone());
                        admitted = Some((granted, admission));
                        step
                    }
                    Some(Err(refusal)) => entry.decided(Err(refusal)),
                    None => entry.stopping(),
                },
                Step::Send(item) => match send(&mut halves, item, self.deadline) {
                    Ok(()) => entry.sent(),
                    Err(e) => {
                        if let Some((_, admission)) = &mut admitted {
                            admission.started(Err(io::Error::new(e.kind(), e.to_string())));
                        }
                        entry.lost(e)
                    }
                },
                Step::Start => break,
                // It was told of its admission, or cannot be told anything.
                Step::End(why) => return Err(Box::new((why, admitted.is_none().then_some(halves)))),
            };
        }
        let Some((admitted, mut admission)) = admitted else {
            return Ok(());
        };
        if self.newcomer.is_some_and(|newcomer| !newcomer.admitted()) {
            admission.started(Err(io::ErrorKind::TimedOut.into()));
            return Err(Box::new((NoEntry(Why::Stopping), None)));
        }
        let feed = Feed::new(&admitted, self.events.clone(), &entry.memory(&admitted));
        let config = LinkConfig {
            name: entry.name(admitted.id),
            write_timeout: Some(self.environment.write_timeout),
            ..LinkConfig::default()
        };
        let started = Link::start(halves, entry.decoder(), admitted.outbox, feed, config);
        admission.started(started);
        Ok(())
    }

    /// Says why somebody does not come in: in the log, and to the peer, who gets a second to read
    /// it.
    pub(super) fn refuse(&self, mut halves: Halves, why: &NoEntry, certificate: &str) {
        if let Some(newcomer) = self.newcomer {
            self.environment.refused(newcomer, why.word());
            if let Some((level, what)) = why.log() {
                self.environment.say(newcomer, level, what, certificate, why);
            }
        }
        refuse(&mut halves, why.answer(self.environment), LINGER);
    }
}

impl Environment {
    /// Counts a newcomer that was not admitted. A handshake that was cut, or that the
    /// end of the server ended, may fail with any error, so that is asked first.
    pub(super) fn refused(&self, newcomer: &Newcomer, word: &'static str) {
        self.handshakes.refused(match () {
            () if newcomer.was_cut() => "cut",
            () if newcomer.is_stopping() => "stopping",
            () => word,
        });
    }

    /// Says in the log what became of a newcomer, for each address no more than it may cause; and
    /// in the audit log, each time.
    pub(super) fn say(
        &self,
        newcomer: &Arc<Newcomer>,
        level: Level,
        what: &'static str,
        certificate: &str,
        why: &dyn fmt::Display,
    ) {
        let peer = newcomer.peer();
        let why = match certificate {
            "" => excerpt(why).to_string(),
            certificate => format!("({certificate}) {}", excerpt(why)),
        };
        info!(target: AUDIT, "{what}: {peer}: {why}");
        let host = match peer {
            PeerAddress::Ip(address) => Some(address.ip()),
            _ => None,
        };
        let mut log = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        let more = log.admit(host, what, now());
        drop(log);
        if let Some(more) = more {
            log!(target: "ssntp::server", level, "{peer}: {what}: {why}{more}");
        }
    }
}

fn send(halves: &mut Halves, item: Outgoing, deadline: Instant) -> io::Result<()> {
    // At the deadline no time is left, but a socket takes a limit of zero
    // for no limit at all, so it is a millisecond at least.
    let limit = left(deadline).unwrap_or(Duration::from_millis(1));
    halves.stream.set_write_timeout(Some(limit))?;
    halves.transmit.transmit(&[item])?;
    halves.transmit.idle();
    Ok(())
}
