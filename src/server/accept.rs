//! Newcomers: each has a thread that takes it through TLS and its [`Entry`] under one deadline, until
//! the reader and the writer of its connection run.
//!
//! ```text
//!  Acceptance ─▶ TLS ─▶ EntryRunner: the steps of an Entry ─▶ Link::start ─▶ Started
//!  Dialler    ─▶ TLS ─▶    └─▶ Admit ─▶ dispatcher
//! ```

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::{Level, info, log};

use super::admission::Grant;
use super::core::{CoreEvents, ServerCore};
use super::entry::{Entry, EntryStep, NoEntry};
use super::environment::Environment;
#[cfg(feature = "issue")]
use super::joining;
use super::links::{CLAIM, LINK_PROTOCOL};
use super::log::AUDIT;
#[cfg(feature = "issue")]
use crate::wire::JOIN_PROTOCOL;
use ssntp_pki::CertificateInfo;
use ssntp_transport::dispatch::{Admission, Admitted, DispatchEvent, Feed};
use ssntp_transport::slots::PATIENCE;
use ssntp_transport::tls::TlsError;
use ssntp_transport::{
    Acceptance, Duplex, Halves, Link, LinkConfig, Listener, Newcomer, Outgoing, after, drain, excerpt, left,
    locked, now, refuse, wall_clock,
};

/// The time for which the peer may read after a refusal, before the socket is closed.
const LINGER: Duration = Duration::from_secs(1);

/// Starts to accept clients at the listeners.
pub(super) fn start(
    listeners: Vec<Listener>,
    environment: Arc<Environment>,
    max_handshakes: usize,
    events: CoreEvents,
) -> io::Result<Acceptance> {
    let serve = Box::new(move |newcomer: &Arc<Newcomer>| serve(&environment, &events, newcomer));
    let target = "ssntp::server";
    Acceptance::start(listeners, "ssntp", target, max_handshakes, PATIENCE, serve)
}

/// Takes one newcomer through its handshake, or refuses it.
fn serve(environment: &Arc<Environment>, events: &CoreEvents, newcomer: &Arc<Newcomer>) {
    let deadline = after(newcomer.accepted(), environment.handshake_timeout);
    let stream = newcomer.stream();
    let active = environment.active();
    let secured = match active
        .acceptor
        .accept(Arc::clone(&stream), &environment.pool, deadline)
    {
        Ok(secured) => secured,
        Err(e) => {
            environment.refused(newcomer, e.word());
            // A client that goes away or sends nothing is not an attempt to get in, so it is no warning.
            let level = match e.word() {
                "lost" | "timeout" => Level::Info,
                _ => Level::Warn,
            };
            environment.log_newcomer(newcomer, level, "no TLS", "", &e);
            if matches!(e, TlsError::Tls(_)) {
                // Closing a socket with unread input would destroy the TLS alert on its way to the
                // peer, so the input is read first.
                let _ = stream.shutdown(Shutdown::Write);
                drain(&*stream, LINGER);
            }
            return;
        }
    };
    let runner = EntryRunner {
        environment,
        events,
        newcomer: Some(newcomer),
        stream,
        deadline,
    };
    #[cfg(feature = "issue")]
    if secured.alpn.as_deref() == Some(JOIN_PROTOCOL)
        && let Some(enrolment) = &environment.enrolment
    {
        return joining::serve(enrolment, environment, newcomer, secured.halves, deadline);
    }
    // The verifier refuses a client without a certificate, so this never returns.
    let Some(leaf) = secured.peer.first() else { return };
    let certificate = match CertificateInfo::from_der(leaf) {
        Ok(certificate) => certificate,
        Err(fault) => return runner.refuse(secured.halves, &NoEntry::Unreadable(fault), ""),
    };
    let entry = if secured.alpn.as_deref() == Some(LINK_PROTOCOL) {
        Entry::server(environment, certificate, secured.peer, newcomer.peer(), None)
    } else {
        Entry::client(environment, certificate, secured.peer, newcomer.peer())
    };
    let mut entry = entry.verified_by(&active);
    // A failure was counted and logged.
    if runner.run(&mut entry, secured.halves).is_ok() {
        environment.handshakes.finished(secured.resumed);
    }
}

/// Takes the steps of an [`Entry`] on this thread.
pub(super) struct EntryRunner<'a> {
    pub(super) environment: &'a Environment,
    pub(super) events: &'a CoreEvents,
    /// `None` if this server has dialled.
    pub(super) newcomer: Option<&'a Arc<Newcomer>>,
    pub(super) stream: Arc<dyn Duplex>,
    pub(super) deadline: Instant,
}

impl EntryRunner<'_> {
    /// Blocks until the threads of the connection run.
    ///
    /// # Errors
    /// The newcomer is refused or lost, or the server stops. This was counted, logged, and sent to the
    /// newcomer if possible.
    pub(super) fn run(&self, entry: &mut Entry, mut halves: Halves) -> Result<(), NoEntry> {
        let mut admitted: Option<(Admitted<Grant>, Admission<ServerCore>)> = None;
        let mut step = entry.begin(halves.inbox.bytes_mut(), wall_clock());
        loop {
            // From here on others may send to the newcomer's session, so a stop must end the session
            // and not this handshake. It fails if the handshake was cut or stopped before.
            let has_first_frame = matches!(step, EntryStep::Claim(..) | EntryStep::Admit(_));
            if has_first_frame && self.newcomer.is_some_and(|newcomer| !newcomer.input_complete()) {
                step = entry.stopping();
            }
            step = match step {
                EntryStep::Receive => match halves.receive_until(self.deadline) {
                    Ok(received) => entry.received(halves.inbox.bytes_mut(), received.end, wall_clock()),
                    Err(_) if self.newcomer.is_some_and(|newcomer| newcomer.is_stopping()) => {
                        entry.stopping()
                    }
                    Err(e) => entry.lost(e),
                },
                EntryStep::Claim(call, verdict) => {
                    let sent = self.events.send(DispatchEvent::Call(call)).is_ok();
                    entry.claimed(sent.then(|| verdict.recv_timeout(CLAIM).ok()).flatten())
                }
                EntryStep::Admit(request) => match self.events.admit(*request, Arc::clone(&self.stream)) {
                    Some(Ok(granted)) => {
                        // If this thread panics or returns, dropping this reports to the dispatcher.
                        let admission = Admission::new(granted.id, self.events.clone());
                        let (granted, _) = admitted.insert((granted, admission));
                        entry.decided(Ok(&granted.grant))
                    }
                    Some(Err(refusal)) => entry.decided(Err(refusal)),
                    None => entry.stopping(),
                },
                EntryStep::Send(item) => match send(&mut halves, item, self.deadline) {
                    Ok(()) => entry.sent(),
                    Err(e) => {
                        if let Some((_, admission)) = &mut admitted {
                            admission.started(Err(io::Error::new(e.kind(), e.to_string())));
                        }
                        entry.lost(e)
                    }
                },
                EntryStep::Start => break,
                EntryStep::End(why) => {
                    match admitted {
                        // CONNECTED may be on its way, so no refusal can follow.
                        Some(_) => self.count(&why),
                        None => self.refuse(halves, &why, &entry.named()),
                    }
                    return Err(why);
                }
            };
        }
        let Some((admitted, mut admission)) = admitted else {
            return Ok(());
        };
        // False if the server has begun to stop. The dispatcher then ends the admitted session.
        if self.newcomer.is_some_and(|newcomer| !newcomer.admitted()) {
            admission.started(Err(io::ErrorKind::TimedOut.into()));
            let why = NoEntry::Stopping;
            self.count(&why);
            return Err(why);
        }
        let feed = Feed::new(&admitted, self.events.clone());
        let config = LinkConfig {
            name: entry.name(admitted.id),
            write_timeout: Some(self.environment.write_timeout),
            ..LinkConfig::default()
        };
        let started = Link::start(halves, admitted.grant.decoder, admitted.outbox, feed, config);
        admission.started(started);
        Ok(())
    }

    fn count(&self, why: &NoEntry) {
        if let Some(newcomer) = self.newcomer {
            self.environment.refused(newcomer, why.word());
        }
    }

    /// Counts and logs a refusal, sends the answer to the peer, and gives it [`LINGER`] to read it.
    fn refuse(&self, mut halves: Halves, why: &NoEntry, certificate: &str) {
        self.count(why);
        if let Some((level, what)) = why.log()
            && let Some(newcomer) = self.newcomer
        {
            self.environment
                .log_newcomer(newcomer, level, what, certificate, why);
        }
        refuse(&mut halves, why.answer(self.environment), LINGER);
    }
}

impl Environment {
    /// Counts a newcomer that was not admitted. A handshake that was cut, or that ended because the
    /// server stops, may fail with any error, so these two are checked first.
    pub(super) fn refused(&self, newcomer: &Newcomer, word: &'static str) {
        self.handshakes.refused(if newcomer.was_cut() {
            "cut"
        } else if newcomer.is_stopping() {
            "stopping"
        } else {
            word
        });
    }

    /// Writes a line about a newcomer to the audit log, and to the log if the limit for its address
    /// allows that. `certificate` is empty if it is not known.
    pub(super) fn log_newcomer(
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
        let mut log = locked(&self.newcomers);
        let more = log.admit(peer.host(), what, now());
        drop(log);
        if let Some(more) = more {
            log!(target: "ssntp::server", level, "{peer}: {what}: {why}{more}");
        }
    }
}

fn send(halves: &mut Halves, item: Outgoing, deadline: Instant) -> io::Result<()> {
    // A socket takes a limit of zero as no limit, so the limit at the deadline is a millisecond. CONNECTED
    // with a long configuration needs several writes, and each has the limit anew: a peer that reads a
    // little at a time stays here for longer, until another newcomer needs its slot.
    let limit = left(deadline).unwrap_or(Duration::from_millis(1));
    halves.stream.set_write_timeout(Some(limit))?;
    halves.transmit.transmit(&[item])?;
    halves.transmit.idle();
    Ok(())
}
