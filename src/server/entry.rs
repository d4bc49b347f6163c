//! The admission of one newcomer behind TLS, as a state machine: received bytes and decisions go in,
//! the next [`EntryStep`] comes out.
//!
//! ```text
//!  client:                CONNECT ─▶ Claim ─▶ Admit ─▶ Send CONNECTED ─▶ Start
//!  server that dials:       HELLO ──────────▶ Admit ─▶ Send HELLO ─────▶ Start
//!  server that was dialled: Send HELLO, HELLO ─▶ Admit ────────────────▶ Start
//!                             └──────────┴─────────┴──▶ End with the reason
//! ```
//!
//! An [`Entry`] has no stream, no thread and no clock. [`Server`](super::Server) takes its steps on a
//! thread (see `accept`), and a simulation takes them in virtual time. Frames for a session that is
//! admitted wait in its queue until its writer starts, which is after CONNECTED was sent. So no frame
//! overtakes CONNECTED.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use crossbeam_channel::Receiver;
use log::Level;
use uuid::Uuid;

use super::admission::{AdmissionRequest, Grant, Peer, RequestKind};
use super::core::ServerCore;
use super::credentials::ActiveCredentials;
use super::environment::Environment;
pub use super::links::CLAIM;
use super::links::{LinkFailure, LinkHandshake, refusal};
use super::log::Named;
use super::sessions::SessionId;
use crate::proto::{Connect, ErrorCode, Frame, Refusal, ServerHandshake};
use crate::wire::outgoing;
use ssntp_pki::{CertificateDer, CertificateInfo, Fault};
use ssntp_transport::dispatch::Call;
use ssntp_transport::{ConnectionId, Outgoing, PeerAddress};

/// The next thing to do for a newcomer.
pub enum EntryStep {
    /// Receive more bytes, then call [`Entry::received`] or [`Entry::lost`].
    Receive,
    /// Run this call on the dispatcher, wait for the verdict for at most [`CLAIM`], then call
    /// [`Entry::claimed`].
    Claim(Box<Call<ServerCore>>, Receiver<u8>),
    /// Ask the dispatcher to admit the newcomer, then call [`Entry::decided`].
    Admit(Box<AdmissionRequest>),
    /// Send this, then call [`Entry::sent`] or [`Entry::lost`].
    Send(Outgoing),
    /// Start the threads of its connection.
    Start,
    /// The newcomer is refused or gone. If it was not admitted before, send [`NoEntry::answer`].
    End(NoEntry),
}

impl fmt::Debug for EntryStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntryStep").finish_non_exhaustive()
    }
}

/// The reason for which a newcomer is not connected.
#[derive(Debug, thiserror::Error)]
pub enum NoEntry {
    /// The protocol or the rules refuse the client. The text before the refusal names the client, if
    /// its CONNECT was read.
    #[error("{0}{1}")]
    Refused(String, Refusal),
    /// The certificate was valid when the handshake began, but is refused by newer credentials.
    #[error("{0}")]
    Outdated(String),
    /// The certificate cannot be read.
    #[error("{0}")]
    Unreadable(Fault),
    /// The server stops.
    #[error("the server is shutting down")]
    Stopping,
    /// The connection failed.
    #[error("{0}")]
    Lost(io::Error),
    /// There is no link to the other server.
    #[error("{0}")]
    Link(LinkFailure),
}

impl NoEntry {
    /// The frame to send to the newcomer, if any.
    pub fn answer(&self, environment: &Environment) -> Option<Outgoing> {
        let code = match self {
            NoEntry::Refused(_, refusal) => refusal.answer()?,
            NoEntry::Outdated(_) | NoEntry::Stopping => ErrorCode::CONNECTION_FAILURE,
            NoEntry::Unreadable(_) => ErrorCode::CONNECTION_ABORTED,
            NoEntry::Lost(_) => return None,
            NoEntry::Link(why) => return why.answer(environment.own.uuid),
        };
        Some(outgoing(&Frame::new(code), false))
    }

    /// The word for metrics, from a fixed list.
    pub(super) fn word(&self) -> &'static str {
        match self {
            NoEntry::Refused(_, refusal) => refusal.word(),
            NoEntry::Outdated(_) | NoEntry::Unreadable(_) => "certificate",
            NoEntry::Stopping => "stopping",
            NoEntry::Lost(_) => "lost",
            NoEntry::Link(_) => "link",
        }
    }

    /// The level and the first words of the log line; `None` if it is not logged.
    pub(super) fn log(&self) -> Option<(Level, &'static str)> {
        Some(match self {
            NoEntry::Refused(..) | NoEntry::Outdated(_) | NoEntry::Unreadable(_) => (Level::Warn, "refused"),
            NoEntry::Stopping | NoEntry::Link(LinkFailure::Own) => return None,
            NoEntry::Lost(_) => (Level::Info, "lost before CONNECT"),
            NoEntry::Link(LinkFailure::Refused(_)) => (Level::Warn, "no link"),
            NoEntry::Link(_) => (Level::Info, "no link"),
        })
    }
}

/// A newcomer behind TLS.
#[derive(Debug)]
pub struct Entry {
    environment: Arc<Environment>,
    /// The credentials of the server that verified the newcomer.
    active: Arc<ActiveCredentials>,
    certificate: CertificateInfo,
    /// All certificates that the newcomer sent, its own one first.
    chain: Vec<CertificateDer<'static>>,
    address: PeerAddress,
    kind: Kind,
    is_admitted: bool,
}

#[derive(Debug)]
enum Kind {
    /// A client, with its CONNECT once that has arrived.
    Client(Option<Connect>),
    Server(LinkHandshake),
}

impl Entry {
    fn new(
        environment: &Arc<Environment>,
        certificate: CertificateInfo,
        chain: Vec<CertificateDer<'static>>,
        address: PeerAddress,
        kind: Kind,
    ) -> Self {
        Self {
            environment: Arc::clone(environment),
            active: environment.active(),
            certificate,
            chain,
            address,
            kind,
            is_admitted: false,
        }
    }

    /// Sets the credentials of the server with which the handshake was made. They may have been
    /// replaced since.
    pub(super) fn verified_by(mut self, active: &Arc<ActiveCredentials>) -> Self {
        self.active = Arc::clone(active);
        self
    }

    /// The entry of a client. `chain` is all certificates that it sent, `certificate` the first of
    /// them.
    pub fn client(
        environment: &Arc<Environment>,
        certificate: CertificateInfo,
        chain: Vec<CertificateDer<'static>>,
        address: PeerAddress,
    ) -> Self {
        Self::new(environment, certificate, chain, address, Kind::Client(None))
    }

    /// The entry of another server. `hello` is the frame to send first to a server that was dialled:
    /// [`ServerCore::hello`].
    pub fn server(
        environment: &Arc<Environment>,
        certificate: CertificateInfo,
        chain: Vec<CertificateDer<'static>>,
        address: PeerAddress,
        hello: Option<Bytes>,
    ) -> Self {
        let kind = Kind::Server(LinkHandshake::new(hello));
        Self::new(environment, certificate, chain, address, kind)
    }

    /// The first step.
    pub fn begin(&mut self, input: &mut BytesMut, wall: SystemTime) -> EntryStep {
        if let Kind::Server(handshake) = &self.kind
            && let Some(hello) = &handshake.hello
        {
            return EntryStep::Send(Outgoing::whole(hello.clone(), 1));
        }
        self.received(input, false, wall)
    }

    /// Handles received bytes. `input` is all bytes that were received and not used; `end` is true if
    /// the peer has ended its side. `wall` is the time of day.
    pub fn received(&mut self, input: &mut BytesMut, end: bool, wall: SystemTime) -> EntryStep {
        match &mut self.kind {
            Kind::Client(_) => {
                let certificate = &self.certificate;
                match ServerHandshake::new(certificate.roles, certificate.uuid).receive(input) {
                    Ok(Some(connect)) => return self.handle_connect(connect, wall),
                    Ok(None) => {}
                    Err(refusal) => return EntryStep::End(NoEntry::Refused(String::new(), refusal)),
                }
            }
            Kind::Server(handshake) => {
                match handshake.receive(&self.environment.own, &self.certificate, input) {
                    Ok(Some(request)) => return self.request_admission(RequestKind::Server(request)),
                    Ok(None) => {}
                    Err(why) => return EntryStep::End(NoEntry::Link(why)),
                }
            }
        }
        if end {
            self.lost(io::ErrorKind::UnexpectedEof.into())
        } else {
            EntryStep::Receive
        }
    }

    fn handle_connect(&mut self, new: Connect, wall: SystemTime) -> EntryStep {
        // The handshake may have taken ten seconds, in which the server's credentials were replaced.
        // The present ones decide.
        let newest = self.environment.active();
        let is_old = newest.generation() != self.active.generation();
        self.active = newest;
        let objection = || self.active.objection(&self.chain, &self.certificate, wall);
        if let Some(why) = is_old.then(objection).flatten() {
            return EntryStep::End(NoEntry::Outdated(why));
        }
        self.kind = Kind::Client(Some(new));
        // Without links no other server can have a session of the UUID.
        if !self.environment.tls.links {
            return self.claimed(None);
        }
        let (verdict, answer) = crossbeam_channel::bounded(1);
        let peer = self.proven();
        let call = move |core: &mut ServerCore, now, actions: &mut Vec<_>| {
            core.claim(now, actions, &peer.newcomer(&new), verdict);
        };
        EntryStep::Claim(Box::new(call), answer)
    }

    /// Handles the verdict of the server that has a session of the newcomer's UUID; `None` if none
    /// has come in time.
    pub fn claimed(&mut self, verdict: Option<u8>) -> EntryStep {
        let Kind::Client(Some(connect)) = self.kind else {
            return EntryStep::End(NoEntry::Stopping);
        };
        match verdict.and_then(|verdict| refusal(verdict, connect.source)) {
            Some(refusal) => EntryStep::End(NoEntry::Refused(String::new(), refusal)),
            None => self.request_admission(RequestKind::Client(connect)),
        }
    }

    fn request_admission(&self, kind: RequestKind) -> EntryStep {
        let peer = self.proven();
        EntryStep::Admit(Box::new(AdmissionRequest { peer, kind }))
    }

    /// What TLS has proven of the newcomer.
    fn proven(&self) -> Peer {
        // The certificate is still valid during the second that `not_after` names.
        let expires = self.certificate.not_after + Duration::from_secs(1);
        Peer {
            certificate: self.certificate.clone(),
            intermediates: self.chain.iter().skip(1).cloned().collect(),
            expires: (!self.active.outlive).then_some(expires),
            generation: self.active.generation(),
            address: self.address,
        }
    }

    /// Handles the verdict of the dispatcher.
    pub fn decided(&mut self, verdict: Result<&Grant, Refusal>) -> EntryStep {
        let grant = match verdict {
            Ok(grant) => grant,
            Err(refusal) => {
                return EntryStep::End(match &self.kind {
                    Kind::Client(connect) => {
                        let name = |connect: &Connect| format!("{} ({}): ", connect.source, connect.role);
                        NoEntry::Refused(connect.as_ref().map(name).unwrap_or_default(), refusal)
                    }
                    Kind::Server(handshake) => NoEntry::Link(handshake.refused(&refusal)),
                });
            }
        };
        self.is_admitted = true;
        if let Kind::Server(handshake) = &self.kind
            && handshake.hello.is_some()
        {
            // This server's HELLO was sent first.
            return EntryStep::Start;
        }
        EntryStep::Send(Outgoing::whole(grant.answer.clone(), 1))
    }

    /// Notes that the bytes of [`EntryStep::Send`] were sent.
    pub fn sent(&mut self) -> EntryStep {
        if self.is_admitted {
            EntryStep::Start
        } else {
            EntryStep::Receive
        }
    }

    /// Handles a failure to receive or to send, or the deadline.
    pub fn lost(&mut self, e: io::Error) -> EntryStep {
        EntryStep::End(match self.kind {
            Kind::Server(_) => NoEntry::Link(LinkFailure::Lost(e)),
            Kind::Client(_) if !self.is_admitted && e.kind() == io::ErrorKind::TimedOut => {
                NoEntry::Refused(String::new(), Refusal::Deadline)
            }
            Kind::Client(_) => NoEntry::Lost(e),
        })
    }

    /// Ends the entry because the server stops.
    pub fn stopping(&mut self) -> EntryStep {
        EntryStep::End(match self.kind {
            Kind::Server(_) => NoEntry::Link(LinkFailure::Refused("the server is shutting down".into())),
            Kind::Client(_) => NoEntry::Stopping,
        })
    }

    /// The UUID of the peer, if it is a server whose HELLO has arrived.
    pub fn peer(&self) -> Option<Uuid> {
        match &self.kind {
            Kind::Server(handshake) => handshake.peer,
            Kind::Client(_) => None,
        }
    }

    /// The name of the connection's threads.
    pub(super) fn name(&self, id: ConnectionId) -> String {
        match &self.kind {
            Kind::Client(_) => SessionId(id).to_string(),
            Kind::Server(_) => format!("l{id}"),
        }
    }

    /// The certificate as log lines name it.
    pub(super) fn named(&self) -> String {
        Named(&self.certificate).to_string()
    }
}
