//! What an [`Entry`](crate::server::entry::Entry) of another server does: HELLO in both directions, and whether the two fit.
//!
//! ```text
//!  dialler: TLS ─▶ HELLO ─────────▶ acceptor: is it a server, does it fit? ─▶ Admit
//!  Admit ◀─ does it fit? ◀────────── HELLO, or END with the reason ◀─────────┘
//! ```

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use crossbeam_channel::{Receiver, TryRecvError};
use uuid::Uuid;

use super::facts::LinkRequest;
use super::frames::{End, Hello, LinkFrame, VERSION};
use super::links::DUPLICATE;
use crate::proto::{FrameKind, HEADER_LEN, Header, MAJOR, Refusal};
use crate::server::config::Environment;
use crate::server::entry::Facts;
use ssntp_transport::{Outgoing, Role};

/// The longest first frame: a HELLO has less than 400 bytes.
const MAX_FIRST: usize = 1024;

/// What the threads of a server that federates share.
#[derive(Debug)]
pub(in crate::server) struct Joins {
    advertised: String,
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

impl Environment {
    /// Where others reach this server. Empty if it does not say.
    pub(in crate::server) fn advertised(&self) -> &str {
        self.joins.as_ref().map_or("", |joins| &joins.advertised)
    }

    /// Whether a link to a server stands.
    pub fn is_linked(&self, server: Uuid) -> bool {
        let joins = self.joins.as_ref();
        joins.is_some_and(|joins| joins.standing(server).is_some())
    }
}

/// Why there is no link.
#[derive(Debug)]
pub(in crate::server) enum NoLink {
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
    /// The END that tells the peer.
    pub(in crate::server) fn answer(&self, server: Uuid) -> Option<Outgoing> {
        let end = match self {
            Self::Own => End::Own,
            Self::Duplicate(_) => End::Duplicate,
            Self::Refused(_) => End::Refused,
            Self::Lost(_) => return None,
        };
        let reason = self.to_string();
        let end = LinkFrame::End { end, server, reason };
        Some(Outgoing::whole(end.encode(), 1))
    }
}

impl fmt::Display for NoLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("it is the same server"),
            Self::Duplicate(_) => f.write_str(DUPLICATE),
            Self::Lost(e) => e.fmt(f),
            Self::Refused(why) => f.write_str(why),
        }
    }
}

/// The part of an entry that is a server's.
#[derive(Debug)]
pub(in crate::server) struct Joining {
    /// What this server says first to one that it has dialled.
    hello: Option<Bytes>,
    peer: Option<Uuid>,
    /// Disconnected when the link ends.
    link: Option<Receiver<Infallible>>,
}

impl Joining {
    pub(in crate::server) fn new(hello: Option<Bytes>) -> Self {
        Self {
            hello,
            peer: None,
            link: None,
        }
    }

    pub(in crate::server) fn first(&self) -> Option<Bytes> {
        self.hello.clone()
    }

    pub(in crate::server) fn is_dialled(&self) -> bool {
        self.hello.is_some()
    }

    pub(in crate::server) fn peer(&self) -> Option<Uuid> {
        self.peer
    }

    /// Reads the first frame, HELLO, and makes of it what the dispatcher is asked.
    ///
    /// # Errors
    /// The peer is no server, says that there is no link, or does not fit.
    pub(in crate::server) fn receive(
        &mut self,
        facts: &Facts,
        input: &mut BytesMut,
    ) -> Result<Option<LinkRequest>, NoLink> {
        let roles = facts.certificate.roles;
        if !roles.intersects(Role::SERVER | Role::SCHEDULER) {
            let why = format!("its certificate has the roles {roles}, and a link needs server or scheduler");
            return Err(NoLink::Refused(why));
        }
        let Some(header) = Header::decode(input) else {
            return Ok(None);
        };
        let (kind, length) = (header.kind, header.word as usize);
        // The length first: memory is taken for a first frame that may be one.
        if kind.frame_type != super::LINK || header.major != MAJOR || length > MAX_FIRST {
            return Err(NoLink::Refused(format!("the first frame is {kind}, not HELLO")));
        }
        if input.len() < HEADER_LEN + length {
            return Ok(None);
        }
        let frame = input.split_to(HEADER_LEN + length).freeze();
        let hello = first(kind, frame.slice(HEADER_LEN..))?;
        check(facts, &hello)?;
        let (standing, link) = crossbeam_channel::bounded(0);
        self.peer = Some(hello.uuid);
        self.link = Some(link);
        Ok(Some(LinkRequest {
            certificate: facts.certificate.clone(),
            intermediates: facts.intermediates(),
            ends: facts.ends(),
            generation: facts.in_force.generation(),
            address: facts.address,
            dialled: self.is_dialled(),
            standing,
            hello,
        }))
    }

    /// The link stands: diallers wait for its end from now on.
    pub(in crate::server) fn stand(&mut self, environment: &Environment) {
        if let Some(joins) = &environment.joins
            && let (Some(peer), Some(link)) = (self.peer, self.link.take())
        {
            joins.stand(peer, link);
        }
    }

    /// What a refusal of the dispatcher means.
    pub(in crate::server) fn refused(&self, refusal: &Refusal) -> NoLink {
        match (refusal, self.peer) {
            (Refusal::Busy(DUPLICATE), Some(peer)) => NoLink::Duplicate(peer),
            (refusal, _) => NoLink::Refused(refusal.to_string()),
        }
    }
}

/// Whether this server and the one that said HELLO can be linked.
fn check(facts: &Facts, hello: &Hello) -> Result<(), NoLink> {
    let (environment, certificate) = (&facts.environment, &facts.certificate);
    let why = if hello.version != VERSION {
        format!("version {} of links, this server has {VERSION}", hello.version)
    } else if hello.uuid == environment.uuid && hello.incarnation == environment.incarnation {
        return Err(NoLink::Own);
    } else if hello.uuid == environment.uuid {
        format!("two servers have the UUID {}", hello.uuid)
    } else if environment.role.intersects(Role::SCHEDULER) && !certificate.roles.intersects(Role::SCHEDULER) {
        // What a linked server says of its clients and its token is believed, and a scheduler
        // commands a cluster. A certificate that is for a web page must not be enough.
        let roles = certificate.roles;
        format!("its certificate has the roles {roles}, and a scheduler links with schedulers only")
    } else if let Some(bound) = certificate.uuid.filter(|bound| *bound != hello.uuid) {
        format!("its certificate is bound to {bound}, and it says {}", hello.uuid)
    } else if !hello.role.may_be_advertised_with(certificate.roles) {
        format!(
            "its certificate has the roles {}, and it says {}",
            certificate.roles, hello.role
        )
    } else if hello.max_payload != environment.max_payload {
        let (theirs, own) = (hello.max_payload, environment.max_payload);
        format!("its longest payload is {theirs} bytes, this server's {own}: they have to be the same")
    } else {
        return Ok(());
    };
    Err(NoLink::Refused(why))
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
