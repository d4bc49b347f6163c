//! Newcomers: brought through TLS and CONNECT on a thread each, under one
//! deadline, until their session's own threads run.
//!
//! ```text
//!  Acceptance ─▶ TLS ─▶ CONNECT ─▶ Admit ─▶ dispatcher
//!                                               │ Admitted
//!                                               ▼
//!                          CONNECTED goes out ─▶ Link::start ─▶ Started
//! ```
//!
//! CONNECTED is sent by this thread, still under the handshake's deadline and
//! outside of the session's queue: whatever is routed to the session meanwhile
//! waits in that queue, whose writer has not begun, so nothing can come before
//! CONNECTED or have it dropped.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::audit::{AUDIT, Named};
use super::config::Environment;
use super::core::{AdmissionRequest, Arrival, ServerCore};
use super::federation::{self, LINK_PROTOCOL};
use super::sessions::SessionId;
use super::{now, wall_clock};
use crate::proto::{Connect, ErrorCode, Frame, Refusal, ServerHandshake};
use crate::wire::{Decoder, outgoing};
use bytes::{Bytes, BytesMut};
use log::{Level, info, log};
use ssntp_transport::dispatch::{Admission, DispatchEvent, Events, Feed};
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
    let peer = newcomer.peer();
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
            environment.say(newcomer, level, "no TLS", &"", &e);
            if matches!(e, TlsError::Tls(_)) {
                // The alert that was sent says why. Closing a socket with unread
                // input would destroy it on its way, so the input is read first.
                let _ = stream.shutdown(Shutdown::Write);
                drain(&*stream, LINGER);
            }
            return;
        }
    };
    if secured.alpn.as_deref() == Some(LINK_PROTOCOL) {
        return federation::serve(environment, events, newcomer, secured, &in_force, deadline);
    }
    let mut halves = secured.halves;
    let refuse = |halves: &mut Halves, answer: Option<ErrorCode>| {
        let answer = answer.map(|code| outgoing(&Frame::new(code), false));
        refuse(halves, answer, LINGER);
    };
    // Always there: the verifier refuses who shows no certificate.
    let Some(leaf) = secured.peer.first() else { return };
    let certificate = match CertificateInfo::from_der(leaf) {
        Ok(certificate) => certificate,
        Err(e) => {
            environment.refused(newcomer, "certificate");
            environment.say(newcomer, Level::Warn, "refused", &"", &e);
            return refuse(&mut halves, Some(ErrorCode::CONNECTION_ABORTED));
        }
    };
    let connect = match receive_connect(&mut halves, &certificate, deadline) {
        Ok(connect) => connect,
        Err(Ended::Refused(refusal)) => {
            environment.refused(newcomer, refusal.word());
            let named = Named(&certificate);
            environment.say(newcomer, Level::Warn, "refused", &named, &refusal);
            return refuse(&mut halves, refusal.answer());
        }
        Err(Ended::Lost(_)) if newcomer.is_stopping() => {
            environment.refused(newcomer, "stopping");
            return refuse(&mut halves, Some(ErrorCode::CONNECTION_FAILURE));
        }
        Err(Ended::Lost(e)) => {
            environment.refused(newcomer, "lost");
            let named = Named(&certificate);
            environment.say(newcomer, Level::Info, "lost before CONNECT", &named, &e);
            return;
        }
    };
    if !newcomer.heard() {
        environment.refused(newcomer, "stopping");
        return refuse(&mut halves, Some(ErrorCode::CONNECTION_FAILURE));
    }
    // What was put in force since the handshake began decides.
    // The handshake may have taken ten seconds, in which its credentials were replaced.
    let newest = environment.in_force();
    let is_old = newest.generation() != in_force.generation();
    let objection = || newest.objection(&secured.peer, &certificate, wall_clock());
    if let Some(why) = is_old.then(objection).flatten() {
        environment.refused(newcomer, "certificate");
        environment.say(newcomer, Level::Warn, "refused", &Named(&certificate), &why);
        return refuse(&mut halves, Some(ErrorCode::CONNECTION_FAILURE));
    }
    if let Some(refusal) = federation::claim(environment, events, connect.source, &certificate.der) {
        environment.refused(newcomer, refusal.word());
        environment.say(newcomer, Level::Warn, "refused", &Named(&certificate), &refusal);
        return refuse(&mut halves, refusal.answer());
    }
    let bad_traces = Arc::new(AtomicU64::new(0));
    // Certificates without a fingerprint share one part.
    let owner = certificate.fingerprint.clone().unwrap_or_default();
    let mut chain = secured.peer;
    let named = Named(&certificate).to_string();
    let request = AdmissionRequest {
        connect,
        // The second that `not_after` names belongs to the lifetime.
        ends: (!newest.outlive).then(|| certificate.not_after + Duration::from_secs(1)),
        certificate,
        intermediates: chain.split_off(1),
        generation: newest.generation(),
        address: peer,
        bad_traces: Arc::clone(&bad_traces),
    };
    let admitted = match events.admit(Arrival::Session(request), newcomer.stream()) {
        Some(Ok(admitted)) => admitted,
        Some(Err(refusal)) => {
            environment.refused(newcomer, refusal.word());
            let (uuid, role) = (connect.source, connect.role);
            let why = format_args!("{uuid} ({role}): {refusal}");
            environment.say(newcomer, Level::Warn, "refused", &named, &why);
            return refuse(&mut halves, refusal.answer());
        }
        None => {
            environment.refused(newcomer, "stopping");
            return refuse(&mut halves, Some(ErrorCode::CONNECTION_FAILURE));
        }
    };
    let mut admission = Admission::new(admitted.id, events.clone());
    let info = Arc::clone(&admitted.grant.info);
    let connected = admitted.grant.answer.clone();
    if let Err(e) = send_connected(&mut halves, connected, deadline) {
        environment.refused(newcomer, "lost");
        return admission.started(Err(e));
    }
    let decoder = Decoder::new(
        environment.max_payload,
        info.tracing(),
        environment.operands.clone(),
        bad_traces,
        (environment.uuid, environment.role),
    );
    let memory = admitted.credit.budget().of(owner.as_bytes());
    let feed = Feed::new(&admitted, events.clone(), &memory);
    let config = LinkConfig {
        name: SessionId(admitted.id).to_string(),
        write_timeout: Some(environment.write_timeout),
        ..LinkConfig::default()
    };
    if !newcomer.admitted() {
        environment.refused(newcomer, "stopping");
        return admission.started(Err(io::ErrorKind::TimedOut.into()));
    }
    environment.handshakes.finished(secured.resumed);
    admission.started(Link::start(halves, decoder, admitted.outbox, feed, config));
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
        certificate: &dyn fmt::Display,
        why: &dyn fmt::Display,
    ) {
        let peer = newcomer.peer();
        let why = match certificate.to_string() {
            unread if unread.is_empty() => excerpt(why).to_string(),
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

fn send_connected(halves: &mut Halves, connected: Bytes, deadline: Instant) -> io::Result<()> {
    // At the deadline no time is left, but a socket takes a limit of zero
    // for no limit at all, so it is a millisecond at least.
    let limit = left(deadline).unwrap_or(Duration::from_millis(1));
    halves.stream.set_write_timeout(Some(limit))?;
    halves.transmit.transmit(&[Outgoing::whole(connected, 1)])?;
    halves.transmit.idle();
    Ok(())
}

enum Ended {
    Refused(Refusal),
    Lost(io::Error),
}

fn receive_connect(
    halves: &mut Halves,
    certificate: &CertificateInfo,
    deadline: Instant,
) -> Result<Connect, Ended> {
    let handshake = ServerHandshake::new(certificate.roles, certificate.uuid);
    let mut end = false;
    loop {
        let input: &mut BytesMut = halves.inbox.bytes_mut();
        match handshake.receive(input) {
            Ok(Some(connect)) => return Ok(connect),
            Ok(None) => {}
            Err(refusal) => return Err(Ended::Refused(refusal)),
        }
        if end {
            return Err(Ended::Lost(io::ErrorKind::UnexpectedEof.into()));
        }
        match halves.receive_until(deadline) {
            Ok(received) => end = received.end,
            Err(e) if e.kind() == io::ErrorKind::TimedOut => return Err(Ended::Refused(Refusal::Deadline)),
            Err(e) => return Err(Ended::Lost(e)),
        }
    }
}
