//! One connection, from its TLS handshake to its end.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use log::{debug, info};

use super::limited::Limited;
use super::message::{Answer, Limits, Refused, Request};
use super::streams::{Stream, Streams};
use super::{AdminConfig, Reply, Service};
use crate::now;
use ssntp::Role;
use ssntp::pki::CertificateInfo;
use ssntp_transport::LogLimit;
use ssntp_transport::rustls::pki_types::CertificateDer;
use ssntp_transport::tls::{Acceptor, TlsError};
use ssntp_transport::{BufferPool, Duplex, Halves, Newcomer, Outgoing, PeerAddress, drain, plain};

/// How long a client may take to send its request, including its TLS handshake: an honest one
/// sends it at once.
const ASKING: Duration = Duration::from_secs(2);
/// How long it may then take to send the body of the request.
const SENDING: Duration = Duration::from_secs(10);
/// How long a client may take to read the answer.
const ANSWERING: Duration = Duration::from_secs(10);
/// How long the rest of the client's input is read after the answer: closing a socket
/// with unread input would destroy the answer on its way.
const LINGER: Duration = Duration::from_secs(1);

/// The state that all connections share.
pub(super) struct Door<S> {
    /// For each listener, whether only this host can connect to it.
    local: Vec<bool>,
    acceptor: Arc<Mutex<Option<Acceptor>>>,
    roles: Role,
    /// The host name of the address, if it has one.
    host: Option<String>,
    limits: Limits,
    service: Arc<S>,
    streams: Arc<Streams>,
    pool: BufferPool,
    target: &'static str,
    log: Mutex<LogLimit<()>>,
}

impl<S: Service> Door<S> {
    pub(super) fn new(
        config: &AdminConfig,
        local: Vec<bool>,
        acceptor: Arc<Mutex<Option<Acceptor>>>,
        target: &'static str,
        service: Arc<S>,
        streams: Arc<Streams>,
    ) -> Self {
        Self {
            local,
            acceptor,
            roles: config.roles,
            host: config.host(),
            limits: service.limits(),
            service,
            streams,
            pool: BufferPool::new(),
            target,
            log: Mutex::default(),
        }
    }

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
        // A listener that is not known counts as one that other hosts reach, which asks for TLS.
        let is_local = self.local.get(newcomer.listener()).copied().unwrap_or(false);
        let (mut halves, proved) = match is_local {
            true => (plain(Arc::clone(stream) as _, self.pool.clone()), Ok(Vec::new())),
            false => self.secure(stream).map_err(|e| self.say(newcomer, "no TLS", e))?,
        };
        let request = self.receive(&mut halves, stream)?;
        let is_head = matches!(&request, Ok(request) if request.is_head());
        let may_see = |mut request: Request| {
            request.chain = proved?;
            match newcomer.peer() {
                // Only a browser on this host could be misled: it cannot open a Unix socket, and
                // the other addresses ask for a certificate.
                PeerAddress::Ip(_) if is_local => self.check_host(&request)?,
                _ => {}
            }
            Ok(request)
        };
        let reply = match request.and_then(may_see) {
            Ok(request) => self.service.reply(&request),
            Err(refused) => {
                // The other refusals are mistakes of a client that may see the pages. They are not
                // worth a line.
                if refused.code == 403 {
                    let _ = self.say(newcomer, "refused", &refused.why);
                }
                Answer::from(refused).into()
            }
        };
        let (answer, body) = match reply {
            Reply::Whole(answer) => (answer, None),
            // HEAD has the head alone.
            Reply::Parts(answer, _) if is_head => (answer, None),
            Reply::Parts(answer, body) => match self.streams.place(Arc::clone(stream) as _) {
                Some(place) => (answer, Some((place, body))),
                None => {
                    let why = "as many streams as there may be are open; ask again";
                    (Answer::from(Refused::new(503, why)), None)
                }
            },
        };
        stream.begin(ANSWERING);
        let head = answer.head(&self.limits, body.is_some());
        let mut parts = vec![Outgoing::whole(Bytes::from(head), 1)];
        if !is_head && !answer.body.is_empty() {
            parts.push(Outgoing::whole(answer.body, 1));
        }
        halves.transmit.transmit(&parts)?;
        if let Some((place, body)) = body {
            // From now on the connection is not cut to make room, and the streams end it at a stop.
            return match newcomer.admitted() {
                true => place.run(Stream::new(Arc::clone(stream), halves), body),
                false => Err(io::ErrorKind::ConnectionAborted.into()),
            };
        }
        halves.transmit.finish()?;
        halves.transmit.idle();
        // The client has the answer, so its memory and its permit are free before the rest of the
        // input is awaited.
        drop((parts, answer.permit));
        stream.begin(LINGER);
        drain(&**stream, LINGER);
        Ok(())
    }

    /// Mutual TLS, and the client's certificates if its own has one of the roles.
    fn secure(&self, stream: &Arc<Limited>) -> Result<(Halves, Proved), TlsError> {
        let acceptor = self
            .acceptor
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let Some(acceptor) = acceptor else {
            return Err(TlsError::Configuration("there is no certificate".into()));
        };
        let secured = acceptor.accept(Arc::clone(stream) as _, &self.pool, stream.deadline())?;
        let certificate = secured.peer.first().map(CertificateInfo::from_der);
        let roles = match certificate {
            Some(Ok(certificate)) => certificate.roles,
            _ => Role::NONE,
        };
        let why = || format!("the certificate's role is {roles}, it must be {}", self.roles);
        // A wrong role does not fail the handshake, so that the client can read the reason in an
        // answer.
        let proved = match self.roles.is_empty() || roles.intersects(self.roles) {
            true => Ok(secured.peer),
            false => Err(Refused::new(403, why())),
        };
        Ok((secured.halves, proved))
    }

    /// Refuses requests of web pages that a browser shows: a foreign page has a foreign
    /// name as its `Host`, even if that name resolves to this host (DNS rebinding).
    fn check_host(&self, request: &Request) -> Result<(), Refused> {
        match &request.host {
            Some(host)
                if host != "localhost"
                    && host.parse::<IpAddr>().is_err()
                    && Some(host) != self.host.as_ref() =>
            {
                let why = "the Host must be an address or localhost";
                Err(Refused::new(403, why))
            }
            _ => Ok(()),
        }
    }

    /// Logs that a client was refused. A limit on such lines keeps clients from filling a disk.
    fn say(&self, newcomer: &Newcomer, what: &'static str, why: impl std::fmt::Display) -> io::Error {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let more = log.admit((), what, now());
        drop(log);
        if let Some(more) = more {
            info!(target: self.target, "{}: {what}: {why}{more}", newcomer.peer());
        }
        io::Error::other(what)
    }

    /// Receives a request.
    fn receive(&self, halves: &mut Halves, stream: &Limited) -> io::Result<Result<Request, Refused>> {
        let mut found: Option<(Request, usize)> = None;
        let mut is_over = false;
        loop {
            // The request may have arrived with the end of the TLS handshake.
            let arrived = halves.inbox.bytes_mut();
            if found.is_none() {
                match Request::parse(arrived, &self.limits) {
                    Ok(Some((request, head, body))) => {
                        let _ = arrived.split_to(head);
                        stream.begin(SENDING);
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

/// The certificates that a client proved, or why it is not let in.
type Proved = Result<Vec<CertificateDer<'static>>, Refused>;
