//! Admission: the request of a newcomer, the policy, and the verdict.
//!
//! ```text
//!  UUID, certificate ─────────────┐
//!  Situation: state of the server ┼─▶ AdmissionPolicy::judge ─▶ Ok(session to replace) or Refusal
//!  AdmissionPolicy ───────────────┘
//! ```
//!
//! [`Admission`] has the facts that decide: limits, bans, the generation of the credentials, and whether
//! the server stops or drains. The verdict is a pure function. The first row that applies decides:
//!
//! | the newcomer | verdict |
//! |---|---|
//! | the server is shutting down | ConnectionFailure |
//! | its UUID is the server's own | ConnectionAborted |
//! | its certificate is bound to another UUID | ConnectionAborted |
//! | its certificate is unbound, and bound ones are required for its role | ConnectionAborted |
//! | an operator has banned its UUID, and the ban lasts | ConnectionFailure |
//! | its UUID is connected with the same certificate | it takes over |
//! | … its certificate is bound to the UUID, the old one is not | it takes over |
//! | … both are bound to the UUID, by the same authority, or by issuers of nodes below one | it takes over |
//! | … both are bound to the UUID, by different authorities | ConnectionFailure |
//! | … the old certificate is bound to the UUID, its own is not | ConnectionFailure |
//! | … neither is bound | ConnectionFailure |
//! | the server has its maximum of sessions | ConnectionFailure |
//! | its certificate has its maximum of sessions | ConnectionFailure |
//!
//! A session counts from its admission until its threads are joined;
//! [`Certificates`](super::certificates::Certificates) counts the sessions of each certificate. A
//! newcomer that takes a session over is admitted at once, although the old session's threads end a
//! moment later. So there is at most one session beyond each limit, and only while the old one ends.

use std::convert::Infallible;
use std::slice;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use crossbeam_channel::Sender;
use uuid::Uuid;

use super::bans::Bans;
use super::links::LinkRequest;
use super::sessions::SessionId;
use crate::proto::{Connect, Refusal};
use crate::wire::Decoder;
use ssntp_pki::Role;
use ssntp_pki::{CertificateDer, CertificateInfo, KeptCertificate, Trust};
use ssntp_transport::{PeerAddress, after, setters};

/// A client that asks to be admitted, see [`Handler::admit`](super::Handler::admit).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Newcomer<'a> {
    /// The UUID of the client. If its certificate is bound to a UUID, it is that one.
    pub uuid: Uuid,
    /// The roles that the client advertises. Its certificate holds all of them.
    pub role: Role,
    /// The address that the client connects from.
    pub address: PeerAddress,
    /// The content of the client's certificate.
    pub certificate: &'a CertificateInfo,
    /// The certificates that the client sent after its own.
    pub intermediates: &'a [CertificateDer<'static>],
}

/// The request of a newcomer to be admitted.
#[derive(Debug)]
pub struct AdmissionRequest {
    /// The newcomer as TLS has verified it.
    pub peer: Peer,
    /// The request in its first frame.
    pub kind: RequestKind,
}

/// A peer that TLS has verified.
#[derive(Debug)]
pub struct Peer {
    /// The peer's own certificate.
    pub certificate: CertificateInfo,
    /// The certificates that the peer sent after its own.
    pub intermediates: Vec<CertificateDer<'static>>,
    /// The time at which the certificate expires and the connection must end. `None` if expiry is not
    /// enforced.
    pub expires: Option<SystemTime>,
    /// The generation of the server's credentials that verified the peer.
    pub generation: u64,
    /// The address that the peer connects from.
    pub address: PeerAddress,
}

impl Peer {
    /// The client that has sent this CONNECT.
    pub(super) fn newcomer(&self, connect: &Connect) -> Newcomer<'_> {
        Newcomer {
            uuid: connect.source,
            role: connect.role,
            address: self.address,
            certificate: &self.certificate,
            intermediates: &self.intermediates,
        }
    }
}

/// The kind of newcomer.
#[derive(Debug)]
pub enum RequestKind {
    /// A client that asks for a session, by this CONNECT.
    Client(Connect),
    /// A server that asks for a link.
    Server(LinkRequest),
}

/// The answer to an admitted newcomer.
#[derive(Debug)]
pub struct Grant {
    /// The codec for the reader of the connection.
    pub decoder: Decoder,
    /// The frame to send first: CONNECTED, or the HELLO of a link.
    pub answer: Bytes,
}

/// The rules of a server for the admission of clients, in addition to those of the protocol.
///
/// ```
/// use ssntp::server::AdmissionPolicy;
///
/// let policy = AdmissionPolicy::default().require_bound_uuid(true).sessions_per_certificate(1);
/// assert!(policy.require_bound_uuid);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdmissionPolicy {
    /// True if a client's certificate must be bound to its UUID, by a `urn:uuid:` SAN. A client with an
    /// unbound certificate gets ConnectionAborted. If false, the holder of any certificate with the
    /// role can take the UUID of a client that is not connected, even if that client has a bound
    /// certificate. Default: false.
    pub require_bound_uuid: bool,
    /// The roles for which the certificate need not be bound nevertheless. So several programs of one person may share a
    /// certificate, each with a UUID of its own. Default: none.
    pub unbound_roles: Role,
    /// The maximum number of sessions of one certificate; further ones get ConnectionFailure. At least 1. A
    /// number above the default has no effect, so that one certificate never takes all places. A bound
    /// certificate always has one session at a time, and one more while the session before it ends.
    /// Default: three quarters of the server's maximum, at least 1.
    pub sessions_per_certificate: Option<usize>,
}

impl AdmissionPolicy {
    setters! {
        /// Sets the field of this name.
        require_bound_uuid: bool;

        /// Sets the field of this name.
        unbound_roles: Role;

        /// Sets the field of this name.
        sessions_per_certificate: usize;
    }

    /// Decides about a newcomer with this UUID in its CONNECT, whose certificate is `bound` to a UUID.
    /// Returns the session that it takes over, if any; that session must end first.
    ///
    /// # Errors
    /// The [`Refusal`] of the first row of the table that applies.
    pub(super) fn judge(
        &self,
        uuid: Uuid,
        bound: Option<Uuid>,
        situation: &Situation,
    ) -> Result<Option<SessionId>, Refusal> {
        // First, because some rows below make clients stay away for good, and these clients must come
        // back to the server that is started next.
        if situation.stopping {
            return Err(Refusal::Busy("the server is shutting down"));
        }
        if uuid == situation.server {
            return Err(Refusal::OwnUuid(uuid));
        }
        match bound {
            // The handshake has checked this as well. The rows below rely on it.
            Some(bound) if bound != uuid => return Err(Refusal::BorrowedUuid { claimed: uuid, bound }),
            None if situation.needs_bound => return Err(Refusal::UnboundCertificate),
            _ => {}
        }
        // A ban is of a UUID, so it comes after the rows that check the newcomer's right to the UUID.
        if let Some(left) = situation.banned {
            return Err(Refusal::Banned(left));
        }
        if let Some(holder) = &situation.holder {
            match (holder.relation, bound.is_some(), holder.bound) {
                (Relation::Same, ..) | (_, true, false) | (Relation::SameAuthority, true, true) => {}
                (Relation::Different, true, true) => return Err(Refusal::OtherAuthority(uuid)),
                // Otherwise any certificate with the role could end the session of the owner.
                (_, false, true) => return Err(Refusal::UuidOwned(uuid)),
                (_, false, false) => return Err(Refusal::UuidInUse(uuid)),
            }
        }
        // The place of the session that is taken over counts as free, though its threads end later.
        let freed = usize::from(situation.holder.is_some());
        if situation.sessions >= situation.maximum.saturating_add(freed) {
            return Err(Refusal::SessionLimit(situation.maximum));
        }
        let same = situation.holder.as_ref().map(|holder| holder.relation) == Some(Relation::Same);
        let (share, beyond) = match bound {
            // One session, and one more for the session before it while that ends.
            Some(_) => (1, 1),
            None => (self.share(situation.maximum), usize::from(same)),
        };
        if situation.of_certificate >= share + beyond {
            return Err(Refusal::CertificateLimit(share));
        }
        Ok(situation.holder.as_ref().map(|holder| holder.id))
    }

    /// True if a client of these roles needs a certificate that is bound to its UUID.
    fn needs_bound(&self, role: Role) -> bool {
        self.require_bound_uuid && !self.unbound_roles.contains(role)
    }

    /// The maximum number of sessions of one certificate, if the server has at most `maximum`.
    pub(super) fn share(&self, maximum: usize) -> usize {
        // A quarter remains for others, so that a leaked certificate cannot keep them all out.
        let most = maximum - maximum.div_ceil(4);
        self.sessions_per_certificate
            .map_or(most, |sessions| sessions.min(most))
            .max(1)
    }
}

/// The time that a draining server adds to the announced one. A client that leaves first awaits the
/// answers to its requests, for at most 5 s, and then sends its queue.
const LEAVING: Duration = Duration::from_secs(6);

/// The facts about a server that decide about newcomers, apart from its sessions.
#[derive(Debug)]
pub(super) struct Admission {
    server: Uuid,
    policy: AdmissionPolicy,
    max_sessions: usize,
    /// The generation of the credentials. A newcomer that an earlier one has verified is refused.
    generation: u64,
    pub(super) bans: Bans,
    /// Dropped when the server stops, which ends `Server::wait`.
    open: Option<Sender<Infallible>>,
    /// The time at which a draining server stops, if clients are still connected then.
    drains_until: Option<Instant>,
}

impl Admission {
    pub(super) fn new(
        server: Uuid,
        policy: AdmissionPolicy,
        max_sessions: usize,
        open: Sender<Infallible>,
    ) -> Self {
        Self {
            server,
            policy,
            max_sessions,
            generation: 0,
            bans: Bans::default(),
            open: Some(open),
            drains_until: None,
        }
    }

    /// What decides about a newcomer of this UUID, apart from its certificate, its role, and the sessions.
    pub(super) fn situation(&self, uuid: Uuid, now: Instant) -> Situation {
        Situation {
            server: self.server,
            needs_bound: false,
            stopping: !self.is_open() || self.is_draining(),
            maximum: self.max_sessions,
            sessions: 0,
            of_certificate: 0,
            banned: self.bans.remaining(uuid, now),
            holder: None,
        }
    }

    /// Refuses newcomers that earlier credentials have verified. When the credentials were replaced, all
    /// sessions were verified again. Such a newcomer had no session then, so it has to connect again.
    pub(super) fn check_generation(&self, generation: u64) -> Result<(), Refusal> {
        if generation < self.generation {
            return Err(Refusal::Busy("the server's certificates were replaced meanwhile"));
        }
        Ok(())
    }

    /// Notes that credentials of this generation are in force.
    pub(super) fn set_generation(&mut self, generation: u64) {
        self.generation = self.generation.max(generation);
    }

    /// The judgement of the server's own rules about a newcomer of this UUID. `bound` is the UUID in its certificate.
    pub(super) fn judge(
        &self,
        uuid: Uuid,
        bound: Option<Uuid>,
        situation: &Situation,
    ) -> Result<Option<SessionId>, Refusal> {
        self.policy.judge(uuid, bound, situation)
    }

    pub(super) fn needs_bound(&self, role: Role) -> bool {
        self.policy.needs_bound(role)
    }

    pub(super) fn max_sessions(&self) -> usize {
        self.max_sessions
    }

    /// The maximum number of sessions of one certificate.
    pub(super) fn share(&self) -> usize {
        self.policy.share(self.max_sessions)
    }

    /// False once the server stops.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    pub(super) fn close(&mut self) {
        self.open = None;
    }

    /// Begins to drain, or changes the time. The server stops when all have left, at the latest
    /// [`LEAVING`] after the time `within`. True if it begins.
    pub(super) fn drain(&mut self, within: Duration, now: Instant) -> bool {
        let until = after(now, within.saturating_add(LEAVING));
        self.drains_until.replace(until).is_none()
    }

    pub(super) fn is_draining(&self) -> bool {
        self.drains_until.is_some()
    }

    /// The time at which a draining server stops.
    pub(super) fn drains_until(&self) -> Option<Instant> {
        self.drains_until
    }

    /// Ends the drain, if there is one, after which the server stops; with `now`, only one whose time has come. True
    /// if it ends.
    pub(super) fn end_drain(&mut self, now: Option<Instant>) -> bool {
        let is_due = |until: &mut Instant| now.is_none_or(|now| *until <= now);
        self.drains_until.take_if(is_due).is_some()
    }
}

/// The state of the server when a newcomer arrives.
#[derive(Clone, Debug)]
pub(super) struct Situation {
    /// The server's own UUID.
    pub(super) server: Uuid,
    /// True if the newcomer's certificate must be bound to its UUID.
    pub(super) needs_bound: bool,
    pub(super) stopping: bool,
    pub(super) maximum: usize,
    /// The number of sessions, including those whose threads still end.
    pub(super) sessions: usize,
    /// The number of these with the newcomer's certificate.
    pub(super) of_certificate: usize,
    /// The time that is left of a ban of the newcomer's UUID.
    pub(super) banned: Option<Duration>,
    /// The session that has the newcomer's UUID.
    pub(super) holder: Option<Holder>,
}

/// The session that has the UUID of a newcomer.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) id: SessionId,
    /// True if its certificate is bound to the UUID.
    pub(super) bound: bool,
    pub(super) relation: Relation,
}

impl Holder {
    /// The session `id`, whose certificate is `old`; that of the newcomer is `new`, followed by the certificates
    /// that it has shown with it. The trust has verified both.
    pub(super) fn new(
        id: SessionId,
        old: &KeptCertificate,
        new: &CertificateInfo,
        shown: &[CertificateDer<'_>],
        trust: &Trust,
    ) -> Self {
        let chain = || [slice::from_ref(&new.der), shown].concat();
        let relation = if old.is(new) {
            Relation::Same
        } else if old.info().has_same_issuer(new) || trust.have_one_cluster(&old.chain(), &chain()) {
            Relation::SameAuthority
        } else {
            Relation::Different
        };
        Self {
            id,
            bound: match relation {
                Relation::Same => new.uuid.is_some(),
                _ => old.info().uuid.is_some(),
            },
            relation,
        }
    }
}

/// The relation between the certificates of a session and of a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// The two are the same certificate.
    Same,
    /// Two certificates of the same authority, or of issuers of nodes below the same one.
    SameAuthority,
    /// Two certificates of different authorities.
    Different,
}

#[cfg(test)]
mod tests;
