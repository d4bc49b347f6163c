//! How a link begins: HELLO in both directions, on the thread of its handshake.
//!
//! ```text
//!  dialler: TLS ─▶ HELLO ─────────▶ acceptor: is it a server, does it fit? ─▶ Admit
//!  Admit ◀─ does it fit? ◀────────── HELLO, or END with the reason ◀─────────┘
//!    └─▶ Link::start                                          Link::start ◀──┘
//! ```

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{Receiver, TryRecvError};
use log::Level;
use uuid::Uuid;

use super::SLACK;
use super::frames::{End, Hello, LinkFrame, VERSION};
use super::links::{CLAIM, DUPLICATE, LinkRequest, refusal};
use crate::proto::{FrameKind, HEADER_LEN, Header, MAJOR, Refusal};
use crate::server::accept::CoreEvents;
use crate::server::audit::Named;
use crate::server::config::Environment;
use crate::server::core::{Arrival, Grant};
use crate::server::credentials::InForce;
use crate::wire::Decoder;
use ssntp_transport::dispatch::{Action, Admission, Admitted, DispatchEvent, Feed};
use ssntp_transport::pki::{CertificateDer, CertificateInfo};
use ssntp_transport::tls::Secured;
use ssntp_transport::{Halves, Link, LinkConfig, Newcomer, Outgoing, Role, refuse};

/// How long the peer may take to read why there is no link.
const LINGER: Duration = Duration::from_secs(1);
/// The longest first frame: a HELLO has less than 400 bytes.
const MAX_FIRST: usize = 1024;

/// What the threads of a server that federates share.
#[derive(Debug)]
pub(in crate::server) struct Joins {
    pub(in crate::server) advertised: String,
    /// A channel for each server, which is disconnected when the link to it ends.
    standing: Mutex<HashMap<Uuid, Receiver<Infallible>>>,
}

impl Joins {
    pub(in crate::server) fn new(advertised: String) -> Self {
        Self {
            advertised,
            standing: Mutex::default(),
        }
    }

    /// A channel that is disconnected when the link to a server ends, if there is one.
    pub(super) fn standing(&self, server: Uuid) -> Option<Receiver<Infallible>> {
        let standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        standing.get(&server).filter(|link| stands(link)).cloned()
    }

    fn stand(&self, server: Uuid, link: Receiver<Infallible>) {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        standing.retain(|_, link| stands(link));
        standing.insert(server, link);
    }
}

fn stands(link: &Receiver<Infallible>) -> bool {
    link.try_recv() == Err(TryRecvError::Empty)
}

/// Why there is no link.
#[derive(Debug)]
pub(super) enum NoLink {
    /// It is this server itself.
    Own,
    /// There is one already.
    Duplicate(Uuid),
    /// The connection is lost, or was never made.
    Lost(io::Error),
    /// The two do not fit, or one of them stops.
    Refused(String),
}

impl NoLink {
    fn end(&self) -> Option<(End, String)> {
        Some(match self {
            Self::Own => (End::Own, "it is the same server".into()),
            Self::Duplicate(_) => (End::Duplicate, DUPLICATE.into()),
            Self::Refused(why) => (End::Refused, why.clone()),
            Self::Lost(_) => return None,
        })
    }
}

impl std::fmt::Display for NoLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Own => f.write_str("it is this server itself"),
            Self::Duplicate(_) => f.write_str(DUPLICATE),
            Self::Lost(e) => e.fmt(f),
            Self::Refused(why) => f.write_str(why),
        }
    }
}

/// Tells the peer why there is no link, and gives it time to read that.
pub(super) fn part(halves: &mut Halves, server: Uuid, why: &NoLink) {
    let end = why.end();
    let end = end.map(|(end, reason)| LinkFrame::End { end, server, reason }.encode());
    refuse(halves, end.map(|end| Outgoing::whole(end, 1)), LINGER);
}

/// Brings a server in that has asked for a link, or refuses it.
pub(in crate::server) fn serve(
    environment: &Arc<Environment>,
    events: &CoreEvents,
    newcomer: &Arc<Newcomer>,
    mut secured: Secured,
    in_force: &InForce,
    deadline: Instant,
) {
    let joined = join(environment, &secured.peer, in_force).and_then(|peer| {
        let hello = receive_hello(&mut secured.halves, deadline)?;
        peer.check(environment, &hello)?;
        if !newcomer.heard() {
            return Err(NoLink::Refused("the server is shutting down".into()));
        }
        let admitted = peer.admit(events, hello, newcomer.stream(), newcomer.stream().peer(), false)?;
        Ok((peer, admitted))
    });
    let (peer, admitted) = match joined {
        Ok(joined) => joined,
        Err(why) => {
            let level = match why {
                NoLink::Refused(_) => Level::Warn,
                _ => Level::Info,
            };
            environment.refused(newcomer, "link");
            let named = secured.peer.first().map(CertificateInfo::from_der);
            match named {
                Some(Ok(certificate)) => {
                    environment.say(newcomer, level, "no link", &Named(&certificate), &why);
                }
                _ => environment.say(newcomer, level, "no link", &"", &why),
            }
            return part(&mut secured.halves, environment.uuid, &why);
        }
    };
    let mut admission = Admission::new(admitted.id, events.clone());
    let answer = Outgoing::whole(admitted.grant.answer.clone(), 1);
    if let Err(e) = secured.halves.transmit.transmit(&[answer]) {
        return admission.started(Err(e));
    }
    if !newcomer.admitted() {
        return admission.started(Err(io::ErrorKind::TimedOut.into()));
    }
    environment.handshakes.finished(secured.resumed);
    peer.start(environment, events, admitted, &mut admission, secured.halves);
}

/// A server at the other end, whose certificate says that it is one.
#[derive(Debug)]
pub(super) struct Peer {
    certificate: CertificateInfo,
    intermediates: Vec<CertificateDer<'static>>,
    outlive: bool,
    generation: u64,
    joins: Arc<Joins>,
}

/// Looks at the certificate of a server.
pub(super) fn join(
    environment: &Environment,
    chain: &[CertificateDer<'static>],
    in_force: &InForce,
) -> Result<Peer, NoLink> {
    let refused = |why: &dyn std::fmt::Display| NoLink::Refused(why.to_string());
    let joins = environment.joins.clone();
    let joins = joins.ok_or_else(|| refused(&"this server links with no other one"))?;
    let mut chain = chain.to_vec();
    let intermediates = chain.split_off(chain.len().min(1));
    let leaf = chain.first().ok_or_else(|| refused(&"it shows no certificate"))?;
    let certificate = CertificateInfo::from_der(leaf).map_err(|e| refused(&e))?;
    if !certificate.roles.intersects(Role::SERVER | Role::SCHEDULER) {
        let roles = certificate.roles;
        let why = format!("its certificate has the roles {roles}, and a link needs server or scheduler");
        return Err(NoLink::Refused(why));
    }
    Ok(Peer {
        certificate,
        intermediates,
        outlive: in_force.outlive,
        generation: in_force.generation(),
        joins,
    })
}

impl Peer {
    /// Whether this server and the one that said HELLO can be linked.
    pub(super) fn check(&self, environment: &Environment, hello: &Hello) -> Result<(), NoLink> {
        let why = if hello.version != VERSION {
            format!("version {} of links, this server has {VERSION}", hello.version)
        } else if hello.uuid == environment.uuid && hello.incarnation == environment.incarnation {
            return Err(NoLink::Own);
        } else if hello.uuid == environment.uuid {
            format!("two servers have the UUID {}", hello.uuid)
        } else if let Some(bound) = self.certificate.uuid.filter(|bound| *bound != hello.uuid) {
            format!("its certificate is bound to {bound}, and it says {}", hello.uuid)
        } else if !hello.role.may_be_advertised_with(self.certificate.roles) {
            format!(
                "its certificate has the roles {}, and it says {}",
                self.certificate.roles, hello.role
            )
        } else if hello.max_payload != environment.max_payload {
            let (theirs, own) = (hello.max_payload, environment.max_payload);
            format!("its longest payload is {theirs} bytes, this server's {own}: they have to be the same")
        } else {
            return Ok(());
        };
        Err(NoLink::Refused(why))
    }

    pub(super) fn admit(
        &self,
        events: &CoreEvents,
        hello: Hello,
        stream: Arc<dyn ssntp_transport::Duplex>,
        address: ssntp_transport::PeerAddress,
        dialled: bool,
    ) -> Result<Admitted<Grant>, NoLink> {
        let (standing, link) = crossbeam_channel::bounded(0);
        let server = hello.uuid;
        let request = LinkRequest {
            hello,
            certificate: self.certificate.clone(),
            intermediates: self.intermediates.clone(),
            ends: (!self.outlive).then(|| self.certificate.not_after + Duration::from_secs(1)),
            generation: self.generation,
            address,
            dialled,
            standing,
        };
        match events.admit(Arrival::Link(request), stream) {
            Some(Ok(admitted)) => {
                self.joins.stand(server, link);
                Ok(admitted)
            }
            Some(Err(Refusal::Busy(DUPLICATE))) => Err(NoLink::Duplicate(server)),
            Some(Err(refusal)) => Err(NoLink::Refused(refusal.to_string())),
            None => Err(NoLink::Refused("the server is shutting down".into())),
        }
    }

    /// Starts the threads of an admitted link.
    pub(super) fn start(
        &self,
        environment: &Environment,
        events: &CoreEvents,
        admitted: Admitted<Grant>,
        admission: &mut Admission<crate::server::core::ServerCore>,
        halves: Halves,
    ) {
        let decoder = Decoder::of_links(environment.max_payload.saturating_add(SLACK));
        let feed = Feed::new(&admitted, events.clone(), admitted.credit.budget());
        let config = LinkConfig {
            name: format!("l{}", admitted.id),
            write_timeout: Some(environment.write_timeout),
            ..LinkConfig::default()
        };
        admission.started(Link::start(halves, decoder, admitted.outbox, feed, config));
    }
}

/// Waits for the first frame: HELLO, or END with the reason why there will be none.
pub(super) fn receive_hello(halves: &mut Halves, deadline: Instant) -> Result<Hello, NoLink> {
    loop {
        let input = halves.inbox.bytes_mut();
        if let Some(header) = Header::decode(input) {
            let (kind, length) = (header.kind, header.word as usize);
            // The length first: memory is taken for a first frame that may be one.
            if kind.frame_type != super::LINK || header.major != MAJOR || length > MAX_FIRST {
                return Err(NoLink::Refused(format!("the first frame is {kind}, not HELLO")));
            }
            if input.len() >= HEADER_LEN + length {
                let frame = input.split_to(HEADER_LEN + length).freeze();
                return first(kind, frame.slice(HEADER_LEN..));
            }
        }
        let received = halves.receive_until(deadline).map_err(NoLink::Lost)?;
        if received.end && halves.inbox.bytes_mut().len() < HEADER_LEN {
            return Err(NoLink::Lost(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

fn first(kind: FrameKind, payload: Bytes) -> Result<Hello, NoLink> {
    match LinkFrame::decode(kind, payload) {
        Ok(LinkFrame::Hello(hello)) => Ok(hello),
        Ok(LinkFrame::End { end, server, reason }) => Err(match end {
            End::Duplicate => NoLink::Duplicate(server),
            End::Own => NoLink::Own,
            _ => NoLink::Refused(format!("the other server says: {reason}")),
        }),
        Ok(other) => Err(NoLink::Refused(format!(
            "the first frame is {}, not HELLO",
            other.name()
        ))),
        Err(fault) => Err(NoLink::Refused(fault.to_string())),
    }
}

/// Asks the server that has a session of a newcomer's UUID to give it up. Blocks until it
/// answers, for two seconds at most. `Some` if the newcomer may not have the UUID.
pub(in crate::server) fn claim(
    environment: &Environment,
    events: &CoreEvents,
    uuid: Uuid,
    leaf: &CertificateDer<'_>,
) -> Option<Refusal> {
    environment.joins.as_ref()?;
    let (reply, asked) = crossbeam_channel::bounded(1);
    let certificate = Bytes::copy_from_slice(leaf);
    let call = move |core: &mut crate::server::core::ServerCore, now, actions: &mut Vec<Action>| {
        let _ = reply.send(core.claim(now, actions, uuid, certificate));
    };
    events.send(DispatchEvent::Call(Box::new(call))).ok()?;
    let verdict = events.answer(&asked)?.recv_timeout(CLAIM);
    refusal(verdict.ok()?, uuid)
}
