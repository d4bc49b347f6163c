//! The way in of one newcomer, step by step: what was received and decided goes in, and what
//! is to be done next comes out.
//!
//! ```text
//!  client:                CONNECT ─▶ Claim ─▶ Admit ─▶ Send CONNECTED ─▶ Start
//!  server that dials:       HELLO ──────────▶ Admit ─▶ Send HELLO ─────▶ Start
//!  server that was dialled: Send HELLO, HELLO ─▶ Admit ────────────────▶ Start
//!                             └──────────┴─────────┴──▶ End, with the reason
//! ```
//!
//! An [`Entry`] begins behind TLS. It has no stream, no thread and no clock: a thread takes its
//! steps in [`Server`](super::Server) (see `accept`), and a simulation takes them in virtual
//! time. What is sent to a session that is admitted and not told yet waits in its queue, whose
//! writer has not begun. So nothing comes before CONNECTED.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use crossbeam_channel::Receiver;
use log::Level;
use uuid::Uuid;

use super::audit::Named;
use super::config::Environment;
use super::core::{AdmissionRequest, Arrival, Grant, ServerCore};
use super::credentials::InForce;
use super::federation::{Joining, NoLink, SLACK, refusal};
use super::handler::Newcomer;
use super::sessions::SessionId;
use crate::proto::{Connect, ErrorCode, Frame, Refusal, ServerHandshake};
use crate::wire::{Decoder, outgoing};
use ssntp_transport::dispatch::{Admitted, Call};
use ssntp_transport::pki::{CertificateDer, CertificateInfo, Fault};
use ssntp_transport::{Budget, ConnectionId, Outgoing, PeerAddress, Role};

/// How long a newcomer waits for the server that has a session of its UUID.
pub const CLAIM: Duration = Duration::from_secs(2);

/// What is to be done next for a newcomer.
pub enum Step {
    /// Receive more, and call [`Entry::received`] or [`Entry::lost`].
    Receive,
    /// Have the dispatcher make this call, wait for the word for [`CLAIM`] at most, and call
    /// [`Entry::claimed`].
    Claim(Box<Call<ServerCore>>, Receiver<u8>),
    /// Ask the dispatcher to admit it, and call [`Entry::decided`].
    Admit(Box<Arrival>),
    /// Send this, and call [`Entry::sent`] or [`Entry::lost`].
    Send(Outgoing),
    /// Start the threads of its connection.
    Start,
    /// It does not come in. Unless it was admitted before, it is told [`NoEntry::answer`].
    End(NoEntry),
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Receive => "Receive",
            Self::Claim(..) => "Claim",
            Self::Admit(_) => "Admit",
            Self::Send(_) => "Send",
            Self::Start => "Start",
            Self::End(_) => "End",
        })
    }
}

/// Why a newcomer does not come in.
#[derive(Debug)]
pub struct NoEntry(pub(super) Why);

#[derive(Debug)]
pub(super) enum Why {
    /// The protocol or the rules refuse this client.
    Refused(Option<(Uuid, Role)>, Refusal),
    /// Its certificate counts no longer.
    Outdated(String),
    Unreadable(Fault),
    /// The server stops.
    Stopping,
    Lost(io::Error),
    Link(NoLink),
}

impl fmt::Display for NoEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Why::Refused(Some((uuid, role)), refusal) => write!(f, "{uuid} ({role}): {refusal}"),
            Why::Refused(None, refusal) => refusal.fmt(f),
            Why::Outdated(why) => f.write_str(why),
            Why::Unreadable(fault) => fault.fmt(f),
            Why::Stopping => f.write_str("the server is shutting down"),
            Why::Lost(e) => e.fmt(f),
            Why::Link(why) => why.fmt(f),
        }
    }
}

impl NoEntry {
    /// What to send, if anything.
    pub fn answer(&self, environment: &Environment) -> Option<Outgoing> {
        let code = match &self.0 {
            Why::Refused(_, refusal) => refusal.answer()?,
            Why::Outdated(_) | Why::Stopping => ErrorCode::CONNECTION_FAILURE,
            Why::Unreadable(_) => ErrorCode::CONNECTION_ABORTED,
            Why::Lost(_) => return None,
            Why::Link(why) => return why.answer(environment.uuid),
        };
        Some(outgoing(&Frame::new(code), false))
    }

    /// The word under which it is counted.
    pub(super) fn word(&self) -> &'static str {
        match &self.0 {
            Why::Refused(_, refusal) => refusal.word(),
            Why::Outdated(_) | Why::Unreadable(_) => "certificate",
            Why::Stopping => "stopping",
            Why::Lost(_) => "lost",
            Why::Link(_) => "link",
        }
    }

    /// How the log says it, if it does.
    pub(super) fn log(&self) -> Option<(Level, &'static str)> {
        Some(match &self.0 {
            Why::Refused(..) | Why::Outdated(_) | Why::Unreadable(_) => (Level::Warn, "refused"),
            Why::Stopping | Why::Link(NoLink::Own) => return None,
            Why::Lost(_) => (Level::Info, "lost before CONNECT"),
            Why::Link(NoLink::Refused(_)) => (Level::Warn, "no link"),
            Why::Link(_) => (Level::Info, "no link"),
        })
    }
}

/// A newcomer behind TLS.
#[derive(Debug)]
pub struct Entry {
    facts: Facts,
    kind: Kind,
    is_admitted: bool,
}

/// Where a newcomer comes, and what it has shown.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) environment: Arc<Environment>,
    /// What its handshake was made with.
    pub(super) in_force: Arc<InForce>,
    pub(super) certificate: CertificateInfo,
    /// All that it showed, its own certificate first.
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) address: PeerAddress,
}

impl Facts {
    pub(super) fn intermediates(&self) -> Vec<CertificateDer<'static>> {
        self.chain.iter().skip(1).cloned().collect()
    }

    /// When its connection ends with its certificate, where it does. The second that `not_after`
    /// names belongs to the lifetime.
    pub(super) fn ends(&self) -> Option<SystemTime> {
        (!self.in_force.outlive).then(|| self.certificate.not_after + Duration::from_secs(1))
    }
}

#[derive(Debug)]
enum Kind {
    Client {
        connect: Option<Connect>,
        tracing: bool,
        bad_traces: Arc<AtomicU64>,
    },
    Server(Joining),
}

impl Entry {
    fn new(
        environment: &Arc<Environment>,
        certificate: CertificateInfo,
        chain: Vec<CertificateDer<'static>>,
        address: PeerAddress,
        kind: Kind,
    ) -> Self {
        let facts = Facts {
            environment: Arc::clone(environment),
            in_force: environment.in_force(),
            certificate,
            chain,
            address,
        };
        Self {
            facts,
            kind,
            is_admitted: false,
        }
    }

    /// The handshake was made with these credentials, which may have been replaced since.
    pub(super) fn verified_by(mut self, in_force: &Arc<InForce>) -> Self {
        self.facts.in_force = Arc::clone(in_force);
        self
    }

    /// A client that has shown these certificates, the first of which is `certificate`.
    pub fn client(
        environment: &Arc<Environment>,
        certificate: CertificateInfo,
        chain: Vec<CertificateDer<'static>>,
        address: PeerAddress,
    ) -> Self {
        let kind = Kind::Client {
            connect: None,
            tracing: false,
            bad_traces: Arc::default(),
        };
        Self::new(environment, certificate, chain, address, kind)
    }

    /// Another server. `hello` is what to say first to one that was dialled:
    /// [`ServerCore::hello`].
    pub fn server(
        environment: &Arc<Environment>,
        certificate: CertificateInfo,
        chain: Vec<CertificateDer<'static>>,
        address: PeerAddress,
        hello: Option<Bytes>,
    ) -> Self {
        let kind = Kind::Server(Joining::new(hello));
        Self::new(environment, certificate, chain, address, kind)
    }

    /// The first step.
    pub fn begin(&mut self, input: &mut BytesMut, wall: SystemTime) -> Step {
        match &mut self.kind {
            Kind::Server(joining) => match joining.first() {
                Some(hello) => Step::Send(Outgoing::whole(hello, 1)),
                None => self.received(input, false, wall),
            },
            Kind::Client { .. } => self.received(input, false, wall),
        }
    }

    /// `input` is all that has been received and not used; with `end` no more will come.
    /// `wall` is the time of day.
    pub fn received(&mut self, input: &mut BytesMut, end: bool, wall: SystemTime) -> Step {
        match &mut self.kind {
            Kind::Client { .. } => {
                let certificate = &self.facts.certificate;
                match ServerHandshake::new(certificate.roles, certificate.uuid).receive(input) {
                    Ok(Some(connect)) => return self.connects(connect, wall),
                    Ok(None) => {}
                    Err(refusal) => return Step::End(NoEntry(Why::Refused(None, refusal))),
                }
            }
            Kind::Server(joining) => match joining.receive(&self.facts, input) {
                Ok(Some(request)) => return Step::Admit(Box::new(Arrival::Link(request))),
                Ok(None) => {}
                Err(why) => return Step::End(NoEntry(Why::Link(why))),
            },
        }
        match end {
            true => self.lost(io::ErrorKind::UnexpectedEof.into()),
            false => Step::Receive,
        }
    }

    fn connects(&mut self, new: Connect, wall: SystemTime) -> Step {
        // The handshake may have taken ten seconds, in which its credentials were replaced. What
        // was put in force since it began decides.
        let newest = self.facts.environment.in_force();
        let is_old = newest.generation() != self.facts.in_force.generation();
        self.facts.in_force = newest;
        let Facts {
            in_force,
            certificate,
            chain,
            ..
        } = &self.facts;
        if let Some(why) = is_old
            .then(|| in_force.objection(chain, certificate, wall))
            .flatten()
        {
            return Step::End(NoEntry(Why::Outdated(why)));
        }
        if let Kind::Client { connect, .. } = &mut self.kind {
            *connect = Some(new);
        }
        if self.facts.environment.joins.is_none() {
            return self.asks(new);
        }
        let (word, answer) = crossbeam_channel::bounded(1);
        let (address, certificate) = (self.facts.address, self.facts.certificate.clone());
        let call = move |core: &mut ServerCore, now, actions: &mut Vec<_>| {
            let newcomer = Newcomer {
                uuid: new.source,
                role: new.role,
                address,
                certificate: &certificate,
            };
            core.claim(now, actions, &newcomer, word);
        };
        Step::Claim(Box::new(call), answer)
    }

    /// The word of the server that has a session of its UUID; `None` if none has come.
    pub fn claimed(&mut self, word: Option<u8>) -> Step {
        let Kind::Client {
            connect: Some(connect),
            ..
        } = &self.kind
        else {
            return Step::End(NoEntry(Why::Stopping));
        };
        let connect = *connect;
        match word.and_then(|word| refusal(word, connect.source)) {
            Some(refusal) => Step::End(NoEntry(Why::Refused(None, refusal))),
            None => self.asks(connect),
        }
    }

    fn asks(&self, connect: Connect) -> Step {
        let Kind::Client { bad_traces, .. } = &self.kind else {
            return Step::End(NoEntry(Why::Stopping));
        };
        Step::Admit(Box::new(Arrival::Session(AdmissionRequest {
            connect,
            certificate: self.facts.certificate.clone(),
            intermediates: self.facts.intermediates(),
            ends: self.facts.ends(),
            generation: self.facts.in_force.generation(),
            address: self.facts.address,
            bad_traces: Arc::clone(bad_traces),
        })))
    }

    /// The dispatcher's verdict.
    pub fn decided(&mut self, verdict: Result<&Grant, Refusal>) -> Step {
        let grant = match verdict {
            Ok(grant) => grant,
            Err(refusal) => {
                return Step::End(NoEntry(match &self.kind {
                    Kind::Client { connect, .. } => {
                        let who = connect.map(|connect| (connect.source, connect.role));
                        Why::Refused(who, refusal)
                    }
                    Kind::Server(joining) => Why::Link(joining.refused(&refusal)),
                }));
            }
        };
        self.is_admitted = true;
        match &mut self.kind {
            Kind::Client { tracing, .. } => *tracing = grant.info.tracing(),
            Kind::Server(joining) => {
                joining.stand(&self.facts.environment);
                if joining.is_dialled() {
                    return Step::Start;
                }
            }
        }
        Step::Send(Outgoing::whole(grant.answer.clone(), 1))
    }

    /// What was to be sent has been sent.
    pub fn sent(&mut self) -> Step {
        match self.is_admitted {
            true => Step::Start,
            false => Step::Receive,
        }
    }

    /// Receiving or sending has failed, or took too long.
    pub fn lost(&mut self, e: io::Error) -> Step {
        Step::End(NoEntry(match self.kind {
            Kind::Server(_) => Why::Link(NoLink::Lost(e)),
            Kind::Client { .. } if !self.is_admitted && e.kind() == io::ErrorKind::TimedOut => {
                Why::Refused(None, Refusal::Deadline)
            }
            Kind::Client { .. } => Why::Lost(e),
        }))
    }

    /// The server stops.
    pub fn stopping(&mut self) -> Step {
        Step::End(NoEntry(match self.kind {
            Kind::Server(_) => Why::Link(NoLink::Refused("the server is shutting down".into())),
            Kind::Client { .. } => Why::Stopping,
        }))
    }

    /// The server at the other end, if it is one that has said HELLO.
    pub fn peer(&self) -> Option<Uuid> {
        match &self.kind {
            Kind::Server(joining) => joining.peer(),
            Kind::Client { .. } => None,
        }
    }

    /// The codec of the reader of its connection.
    pub fn decoder(&self) -> Decoder {
        let environment = &self.facts.environment;
        match &self.kind {
            Kind::Client {
                tracing, bad_traces, ..
            } => Decoder::new(
                environment.max_payload,
                *tracing,
                environment.operands.clone(),
                Arc::clone(bad_traces),
                (environment.uuid, environment.role),
            ),
            Kind::Server(_) => Decoder::of_links(environment.max_payload.saturating_add(SLACK)),
        }
    }

    /// The name of its threads.
    pub(super) fn name(&self, id: ConnectionId) -> String {
        match &self.kind {
            Kind::Client { .. } => SessionId(id).to_string(),
            Kind::Server(_) => format!("l{id}"),
        }
    }

    /// The budget in which its connection's unfinished input counts.
    pub fn memory(&self, admitted: &Admitted<Grant>) -> Budget {
        let whole = admitted.credit.budget();
        match &self.kind {
            Kind::Client { .. } => whole.of(self.facts.certificate.fingerprint.as_bytes()),
            Kind::Server(_) => whole.clone(),
        }
    }

    /// How the log names its certificate.
    pub(super) fn named(&self) -> String {
        Named(&self.facts.certificate).to_string()
    }
}
