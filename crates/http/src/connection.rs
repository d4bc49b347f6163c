//! One connection, from its TLS handshake to its end.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use log::{debug, info};

use super::limited::Limited;
use super::message::{Answer, Limits, Refused, Request};
use super::streams::{Stream, Streams};
use super::{Reply, Service};
use ssntp_pki::{CertificateInfo, Role};
use ssntp_transport::rustls::pki_types::CertificateDer;
use ssntp_transport::tls::{Acceptor, TlsError};
use ssntp_transport::{
    BufferPool, Duplex, Halves, LogLimit, Newcomer, Outgoing, PeerAddress, drain, locked, now, plain,
};

/// The time limit for the head of a request, including the TLS handshake. An honest client sends the
/// head at once.
const ASKING: Duration = Duration::from_secs(2);
/// The time limit for the body of a request.
const SENDING: Duration = Duration::from_secs(10);
/// The time limit for reading the answer.
const ANSWERING: Duration = Duration::from_secs(10);
/// The time for which further input is read after the answer. Closing a socket with unread input
/// would destroy the part of the answer that the client has not received.
const LINGER: Duration = Duration::from_secs(1);

/// The state that all connections share.
pub(super) struct Door<S> {
    /// For each listener, true if only this host can connect to it.
    pub(super) local: Vec<bool>,
    pub(super) acceptor: Arc<Mutex<Option<Acceptor>>>,
    pub(super) roles: Role,
    /// The host name of the address, if it has one.
    pub(super) hosts: Vec<String>,
    pub(super) limits: Limits,
    pub(super) service: Arc<S>,
    pub(super) streams: Arc<Streams>,
    pub(super) pool: BufferPool,
    pub(super) target: &'static str,
    pub(super) lines: Mutex<LogLimit<()>>,
}

impl<S: Service> Door<S> {
    /// Answers one request. Blocks until the client has the answer.
    pub(super) fn serve(&self, newcomer: &Arc<Newcomer>) {
        let stopping = {
            let newcomer = Arc::clone(newcomer);
            move || newcomer.is_stopping()
        };
        let stream = Arc::new(Limited::new(newcomer.stream(), ASKING, stopping));
        if let Err(e) = self.answer(&stream, newcomer) {
            debug!(target: self.target, "{}: {e}", newcomer.peer());
        }
    }

    fn answer(&self, stream: &Arc<Limited>, newcomer: &Newcomer) -> io::Result<()> {
        // An unknown listener counts as one that other hosts reach, so it requires TLS.
        let is_local = self.local.get(newcomer.listener()).copied().unwrap_or(false);
        let (mut halves, proved) = if is_local {
            (plain(Arc::clone(stream) as _, self.pool.clone()), Ok(Vec::new()))
        } else {
            self.secure(stream).map_err(|e| self.log(newcomer, "no TLS", e))?
        };
        let request = self.receive(&mut halves, stream)?;
        let is_head = matches!(&request, Ok(request) if request.is_head());
        let may_see = |mut request: Request| {
            request.chain = proved?;
            match newcomer.peer() {
                // This is needed for TCP on this host only: a browser cannot open a Unix socket,
                // and the other addresses require a certificate.
                PeerAddress::Ip(_) if is_local => self.check_host(&request)?,
                _ => {}
            }
            Ok(request)
        };
        let reply = match request.and_then(may_see) {
            Ok(request) => self.service.reply(&request),
            Err(refused) => {
                // Only a client without a right is logged. The other refusals are mistakes of
                // clients that may read the pages.
                if refused.code == 403 {
                    let _ = self.log(newcomer, "refused", &refused.why);
                }
                Answer::from(refused).into()
            }
        };
        let (answer, body) = match reply {
            Reply::Whole(answer) => (answer, None),
            // The answer to HEAD has no body.
            Reply::Parts(answer, _) if is_head => (answer, None),
            Reply::Parts(answer, body) => match self.streams.place(Arc::clone(stream) as _) {
                Some(place) => (answer, Some((place, body))),
                None => {
                    let why = "the most streams are open; try again later";
                    (Answer::from(Refused::new(503, why)), None)
                }
            },
        };
        // The deadline covers the whole answer, so a slow client cannot hold a place for longer.
        stream.restart(ANSWERING);
        let head = answer.head(&self.limits, body.is_some());
        let mut parts = vec![Outgoing::whole(Bytes::from(head), 1)];
        if !is_head && !answer.body.is_empty() {
            parts.push(Outgoing::whole(answer.body, 1));
        }
        halves.transmit.transmit(&parts)?;
        if let Some((place, body)) = body {
            // From now on the connection is not closed to make room, and a stop ends it as a stream.
            return if newcomer.admitted() {
                place.run(Stream::new(Arc::clone(stream), halves), body)
            } else {
                Err(io::ErrorKind::ConnectionAborted.into())
            };
        }
        halves.transmit.finish()?;
        halves.transmit.idle();
        // The system has taken the answer, so its memory and its permit are released before the wait
        // for the rest of the input.
        drop((parts, answer.permit));
        stream.restart(LINGER);
        drain(&**stream, LINGER);
        Ok(())
    }

    /// Makes the TLS handshake. Returns the client's certificate chain if its certificate has one of
    /// the roles.
    fn secure(&self, stream: &Arc<Limited>) -> Result<(Halves, Proved), TlsError> {
        let Some(acceptor) = locked(&self.acceptor).clone() else {
            return Err(TlsError::Configuration("there is no certificate".into()));
        };
        let secured = acceptor.accept(Arc::clone(stream) as _, &self.pool, stream.deadline())?;
        let certificate = secured.peer.first().map(CertificateInfo::from_der);
        let roles = match certificate {
            Some(Ok(certificate)) => certificate.roles,
            _ => Role::NONE,
        };
        let why = || format!("the certificate's role is {roles}, it must be {}", self.roles);
        // A wrong role does not fail the handshake, so that the client receives the reason as an
        // answer.
        let proved = if self.roles.is_empty() || roles.intersects(self.roles) {
            Ok(secured.peer)
        } else {
            Err(Refused::new(403, why()))
        };
        Ok((secured.halves, proved))
    }

    /// Refuses requests of foreign web pages in a browser: they have a foreign
    /// name as their `Host`, even if that name resolves to this host (DNS rebinding).
    fn check_host(&self, request: &Request) -> Result<(), Refused> {
        match &request.host {
            Some(host)
                if host != "localhost" && host.parse::<IpAddr>().is_err() && !self.hosts.contains(host) =>
            {
                let why = "the Host must be an address or localhost";
                Err(Refused::new(403, why))
            }
            _ => Ok(()),
        }
    }

    /// Logs that a client was refused. A limit on such lines keeps clients from filling a disk.
    fn log(&self, newcomer: &Newcomer, what: &'static str, why: impl std::fmt::Display) -> io::Error {
        let mut lines = locked(&self.lines);
        let more = lines.admit((), what, now());
        drop(lines);
        if let Some(more) = more {
            info!(target: self.target, "{}: {what}: {why}{more}", newcomer.peer());
        }
        io::Error::other(what)
    }

    /// Receives a request: the head, then the body.
    fn receive(&self, halves: &mut Halves, stream: &Limited) -> io::Result<Result<Request, Refused>> {
        let mut found: Option<(Request, usize)> = None;
        let mut is_over = false;
        loop {
            // The request may have arrived together with the end of the TLS handshake, so the buffer
            // is parsed before the first read.
            let arrived = halves.inbox.bytes_mut();
            if found.is_none() {
                match Request::parse(arrived, &self.limits) {
                    Ok(Some((request, head, body))) => {
                        // Each part of a request has a time limit of its own.
                        let _ = arrived.split_to(head);
                        stream.restart(SENDING);
                        found = Some((request, body));
                    }
                    Err(refused) => return Ok(Err(refused)),
                    Ok(None) => {}
                }
            }
            if let Some((request, body)) = found.as_mut().filter(|(_, body)| arrived.len() >= *body) {
                request.body = arrived.split_to(*body).freeze();
                return Ok(Ok(std::mem::take(request)));
            }
            if is_over {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            is_over = halves.receive_until(stream.deadline())?.end;
        }
    }
}

/// The certificate chain that a client proved, or the reason why it is refused.
type Proved = Result<Vec<CertificateDer<'static>>, Refused>;
