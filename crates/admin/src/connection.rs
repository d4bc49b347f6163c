//! One connection, from its TLS handshake to its end.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use log::{debug, info};

use super::http::{Answer, Refused, Request};
use super::limited::Limited;
use super::pages::Pages;
use super::{LOG, now};
use ssntp::Role;
use ssntp::pki::CertificateInfo;
use ssntp_transport::LogLimit;
use ssntp_transport::tls::{Acceptor, TlsError};
use ssntp_transport::{BufferPool, Duplex, Halves, Newcomer, Outgoing, PeerAddress, drain, plain};

/// How long a client may take to send its request, including its TLS handshake: an honest one
/// sends it at once.
const ASKING: Duration = Duration::from_secs(2);
/// How long a client may take to read the answer.
const ANSWERING: Duration = Duration::from_secs(10);
/// How long the rest of the client's input is read after the answer: closing a socket
/// with unread input would destroy the answer on its way.
const LINGER: Duration = Duration::from_secs(1);

/// What all connections share.
#[derive(Debug)]
pub(super) struct Door {
    /// For each listener, whether only this host can connect to it.
    local: Vec<bool>,
    acceptor: Arc<Mutex<Option<Acceptor>>>,
    roles: Role,
    /// The host name of the address, if it has one.
    host: Option<String>,
    pages: Arc<Pages>,
    pool: BufferPool,
    log: Mutex<LogLimit<()>>,
}

impl Door {
    pub(super) fn new(
        local: Vec<bool>,
        acceptor: Arc<Mutex<Option<Acceptor>>>,
        roles: Role,
        host: Option<String>,
        pages: Arc<Pages>,
    ) -> Self {
        Self {
            local,
            acceptor,
            roles,
            host,
            pages,
            pool: BufferPool::new(),
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
            debug!(target: LOG, "{}: {e}", newcomer.peer());
        }
    }

    fn answer(&self, stream: &Arc<Limited>, newcomer: &Newcomer) -> io::Result<()> {
        // A listener that is not known counts as one that other hosts reach, which asks for TLS.
        let is_local = self.local.get(newcomer.listener()).copied().unwrap_or(false);
        let (mut halves, is_let_in) = match is_local {
            true => (plain(Arc::clone(stream) as _, self.pool.clone()), Ok(())),
            false => self.secure(stream).map_err(|e| self.say(newcomer, "no TLS", e))?,
        };
        let request = receive(&mut halves, stream)?;
        let is_head = matches!(&request, Ok(request) if request.is_head);
        let may_see = |request: Request| {
            is_let_in?;
            match newcomer.peer() {
                // Only a browser on this host could be misled: it cannot open a Unix socket, and
                // the other addresses ask for a certificate.
                PeerAddress::Ip(_) if is_local => self.check_host(&request)?,
                _ => {}
            }
            Ok(request)
        };
        let answer = match request.and_then(may_see) {
            Ok(request) => self.pages.answer(&request),
            Err(refused) => {
                // The other refusals are mistakes of a client that may see the pages. They are not
                // worth a line.
                if refused.code == 403 {
                    let _ = self.say(newcomer, "refused", &refused.why);
                }
                Answer::from(refused)
            }
        };
        stream.begin(ANSWERING);
        let mut parts = vec![Outgoing::whole(Bytes::from(answer.head()), 1)];
        if !is_head && !answer.body.is_empty() {
            parts.push(Outgoing::whole(Bytes::from(answer.body), 1));
        }
        halves.transmit.transmit(&parts)?;
        halves.transmit.finish()?;
        halves.transmit.idle();
        // The client has the answer, so its memory and its permit are free before the rest of the
        // input is awaited.
        drop((parts, answer.permit));
        stream.begin(LINGER);
        drain(&**stream, LINGER);
        Ok(())
    }

    /// Mutual TLS, and whether the client's certificate has one of the roles.
    fn secure(&self, stream: &Arc<Limited>) -> Result<(Halves, Result<(), Refused>), TlsError> {
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
        let is_let_in = match self.roles.is_empty() || roles.intersects(self.roles) {
            true => Ok(()),
            false => Err(Refused::new(403, why())),
        };
        Ok((secured.halves, is_let_in))
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
            info!(target: LOG, "{}: {what}: {why}{more}", newcomer.peer());
        }
        io::Error::other(what)
    }
}

/// Receives the head of a request.
fn receive(halves: &mut Halves, stream: &Limited) -> io::Result<Result<Request, Refused>> {
    let mut is_over = false;
    loop {
        // The request may have arrived with the end of the TLS handshake.
        match Request::parse(halves.inbox.bytes_mut()) {
            Ok(Some(request)) => return Ok(Ok(request)),
            Err(refused) => return Ok(Err(refused)),
            Ok(None) if is_over => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(None) => is_over = halves.receive_until(stream.deadline())?.end,
        }
    }
}
