//! The sessions of a server, with indexes by UUID and by role.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use serde::Serialize;
use uuid::Uuid;

use super::federation::{Rank, Roster};
use ssntp_pki::{CertificateInfo, KeptCertificate, Role};
use ssntp_transport::{ConnectionId, LogLimit, More, OutboxCounters, PeerAddress, Table};

/// Identifies one session of a server. An id is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub(super) ConnectionId);

impl From<ConnectionId> for SessionId {
    fn from(id: ConnectionId) -> Self {
        Self(id)
    }
}

impl SessionId {
    /// The connection of the session.
    pub fn connection(self) -> ConnectionId {
        self.0
    }

    /// The number of the session. Later sessions have greater numbers.
    pub fn number(self) -> u64 {
        self.0.sequence()
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// Identifies a session among all sessions of the linked servers. A key is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey {
    server: Uuid,
    id: SessionId,
}

/// The properties of a session that never change. Logs show it as `UUID (roles) at ADDRESS`.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    pub(super) id: SessionId,
    pub(super) server: Uuid,
    pub(super) uuid: Uuid,
    pub(super) role: Role,
    pub(super) address: PeerAddress,
    pub(super) certificate: KeptCertificate,
    pub(super) tracing: bool,
}

impl SessionInfo {
    /// Returns the end of a log line of this kind, which counts the lines that were left out before, or
    /// `None` if this line must be left out as well.
    pub(super) fn may_log(&self, log: &mut LogLimit<Uuid>, kind: &'static str, now: Instant) -> Option<More> {
        log.admit_of(self.uuid, &self.certificate, kind, now)
    }

    /// The server that has the session: this one, or one that it is linked to
    /// ([`Federation`](super::Federation)).
    pub fn server(&self) -> Uuid {
        self.server
    }

    /// The id of the session at its server. Sessions of two servers may have the same id.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The key of the session among those of all linked servers.
    pub fn key(&self) -> SessionKey {
        SessionKey {
            server: self.server,
            id: self.id,
        }
    }

    /// The client's UUID.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The roles that the client advertised, all of them certified.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The address that the client connected from.
    pub fn address(&self) -> PeerAddress {
        self.address
    }

    /// The content of the client's certificate. It is parsed on the first call, because most sessions
    /// never need it. For a session of another server it is empty, without names and roles, because
    /// servers do not send each other the certificates of their clients.
    pub fn certificate(&self) -> &CertificateInfo {
        self.certificate.info()
    }

    /// True if the client and the server have agreed on trace blocks.
    pub fn tracing(&self) -> bool {
        self.tracing
    }
}

impl fmt::Display for SessionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) at {}", self.uuid, self.role, self.address)
    }
}

/// The counters of a session, from its admission on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SessionCounters {
    /// Frames received, including filtered and unsupported ones.
    pub frames_received: u64,
    /// Bytes received, including headers, without the overhead of TLS.
    pub bytes_received: u64,
    /// Frames sent: they were written to this peer's socket.
    pub frames_sent: u64,
    /// Bytes sent, without the overhead of TLS.
    pub bytes_sent: u64,
    /// Frames that wait in this peer's queue.
    pub frames_waiting: u64,
    /// Bytes that wait in this peer's queue.
    pub bytes_waiting: u64,
    /// Frames dropped because this peer's queue was full.
    pub frames_dropped: u64,
    /// Frames for this peer that will not be sent, because its connection is over. Most frames are lost
    /// after the session has ended: [`Context::frames_lost`](super::Context::frames_lost) has them.
    pub frames_lost: u64,
    /// Frames of this peer that the role filter discarded.
    pub frames_filtered: u64,
    /// Frames of this peer of an unsupported type or operand.
    pub frames_unsupported: u64,
    /// Malformed trace blocks of this peer.
    pub bad_traces: u64,
}

/// A session as the core keeps it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) info: Arc<SessionInfo>,
    pub(super) outbox: OutboxCounters,
    pub(super) counters: SessionCounters,
    pub(super) since: Instant,
    /// Decides which session stays if another server has one of the same UUID.
    pub(super) rank: Rank,
    /// The time at which bytes were last received, or waited for memory.
    pub(super) received: Option<Instant>,
    /// True once [`Handler::connected`](super::Handler::connected) was called for the session.
    pub(super) announced: bool,
    /// The time at which the certificate expires and the session must end. `None` if expiry is not
    /// enforced. It does not change while the session is in the index, which is ordered by it.
    pub(super) ends: Option<SystemTime>,
    bad_traces: Arc<AtomicU64>,
}

impl Session {
    pub(super) fn new(
        info: Arc<SessionInfo>,
        outbox: OutboxCounters,
        bad_traces: Arc<AtomicU64>,
        since: Instant,
    ) -> Self {
        Self {
            info,
            outbox,
            counters: SessionCounters::default(),
            since,
            rank: Rank::default(),
            received: None,
            announced: false,
            ends: None,
            bad_traces,
        }
    }

    pub(super) fn counters(&self) -> SessionCounters {
        let books = self.outbox.figures();
        SessionCounters {
            frames_sent: books.sent.frames,
            bytes_sent: books.sent.bytes,
            frames_waiting: books.waiting.frames,
            bytes_waiting: books.waiting.bytes,
            frames_dropped: books.dropped,
            frames_lost: books.lost,
            bad_traces: self.bad_traces.load(Ordering::Relaxed),
            ..self.counters
        }
    }
}

/// The sessions with their indexes. A look-up by id or UUID takes the same time for any number of sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    by_id: Table<Session>,
    by_uuid: HashMap<Uuid, SessionId>,
    by_role: [Vec<SessionId>; ROLES],
    by_expiry: BTreeSet<(SystemTime, SessionId)>,
}

pub(super) const ROLES: usize = Role::ALL.bits().count_ones() as usize;

impl Sessions {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn insert(&mut self, session: Session) {
        let (id, uuid, role) = (session.info.id, session.info.uuid, session.info.role);
        self.by_uuid.insert(uuid, id);
        for bit in bits(role) {
            self.by_role[bit].push(id);
        }
        self.by_expiry.extend(session.ends.map(|ends| (ends, id)));
        self.by_id.insert(id.0, session);
    }

    pub(super) fn remove(&mut self, id: SessionId) -> Option<Session> {
        let session = self.by_id.remove(id.0)?;
        // A newer session may have taken over the UUID.
        if self.by_uuid.get(&session.info.uuid) == Some(&id) {
            self.by_uuid.remove(&session.info.uuid);
        }
        for bit in bits(session.info.role) {
            // The list is sorted: ids grow in the order of admission, and so are sessions inserted.
            if let Ok(at) = self.by_role[bit].binary_search(&id) {
                self.by_role[bit].remove(at);
            }
        }
        if let Some(ends) = session.ends {
            self.by_expiry.remove(&(ends, id));
        }
        Some(session)
    }

    /// The earliest expiry of a certificate, and its session.
    pub(super) fn first_expiry(&self) -> Option<(SystemTime, SessionId)> {
        self.by_expiry.first().copied()
    }

    pub(super) fn get(&self, id: SessionId) -> Option<&Session> {
        self.by_id.get(id.0)
    }

    pub(super) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.by_id.get_mut(id.0)
    }

    pub(super) fn of(&self, uuid: Uuid) -> Option<&Session> {
        self.get(*self.by_uuid.get(&uuid)?)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.by_id.iter().map(|(_, session)| session)
    }

    /// The ids of all sessions, oldest first.
    pub(super) fn ids(&self) -> Vec<SessionId> {
        self.by_id.ids().into_iter().map(SessionId).collect()
    }

    /// The number of sessions with each role.
    pub(super) fn by_role(&self) -> Vec<(Role, usize)> {
        let each = self.by_role.iter().enumerate();
        each.map(|(bit, sessions)| (Role::from_bits(1 << bit), sessions.len()))
            .collect()
    }

    /// Every session with at least one of the roles, each once.
    pub(super) fn with_role(&self, role: Role) -> impl Iterator<Item = &Session> {
        bits(role).flat_map(move |bit| {
            // A session with several of the roles is listed only under the lowest one.
            let earlier = role.bits() & ((1 << bit) - 1);
            self.by_role[bit]
                .iter()
                .filter_map(|id| self.get(*id))
                .filter(move |session| session.info.role.bits() & earlier == 0)
        })
    }
}

/// The numbers of the bits of these roles.
pub(super) fn bits(role: Role) -> impl Iterator<Item = usize> {
    (0..ROLES).filter(move |bit| role.bits() & (1 << bit) != 0)
}

/// The connected sessions: those of this server and those of the linked servers
/// ([`SessionInfo::server`]).
#[derive(Debug)]
pub struct Directory<'a> {
    pub(super) sessions: &'a Sessions,
    pub(super) roster: &'a Roster,
}

impl Directory<'_> {
    /// The session of `uuid`.
    pub fn session(&self, uuid: Uuid) -> Option<&SessionInfo> {
        match self.sessions.of(uuid) {
            Some(session) => Some(&session.info),
            None => self.roster.get(uuid).map(|remote| &remote.info),
        }
    }

    /// True unless this server has a session of the same UUID, which then stands for both.
    fn is_listed(&self, remote: &SessionInfo) -> bool {
        self.sessions.of(remote.uuid).is_none()
    }

    /// Every session with at least one of the roles, each once.
    pub fn with_role(&self, role: Role) -> impl Iterator<Item = &SessionInfo> {
        let own = self.sessions.with_role(role).map(|session| &*session.info);
        let remote = self.roster.with_role(role).map(|remote| &remote.info);
        own.chain(remote.filter(|info| self.is_listed(info)))
    }

    /// Every session.
    pub fn sessions(&self) -> impl Iterator<Item = &SessionInfo> {
        let own = self.sessions.iter().map(|session| &*session.info);
        let remote = self.roster.iter().map(|remote| &remote.info);
        own.chain(remote.filter(|info| self.is_listed(info)))
    }

    /// The number of sessions. If two servers have a session of one UUID for a moment, both count.
    pub fn len(&self) -> usize {
        self.sessions.len() + self.roster.len()
    }

    /// True if there are no sessions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;

    use super::*;
    use ssntp_transport::{Limits, Outbox};

    fn session(id: u64, uuid: u128, role: Role) -> Session {
        let nothing = CertificateInfo::nothing(&CertificateDer::from(vec![1]));
        let info = SessionInfo {
            id: SessionId(ConnectionId(id)),
            server: Uuid::nil(),
            uuid: Uuid::from_u128(uuid),
            role,
            address: PeerAddress::Memory,
            certificate: KeptCertificate::new(&nothing, None),
            tracing: false,
        };
        let outbox = Outbox::new(Limits::default()).counters();
        #[expect(clippy::disallowed_methods, reason = "any time will do")]
        let now = Instant::now();
        Session::new(Arc::new(info), outbox, Arc::default(), now)
    }

    #[test]
    fn a_session_is_found_by_uuid_and_each_role_until_it_is_removed() {
        let mut sessions = Sessions::default();
        let mut listed: Vec<(u64, u32)> = Vec::new();
        let agree = |sessions: &Sessions, listed: &[(u64, u32)]| {
            let roster = Roster::default();
            let directory = Directory {
                sessions,
                roster: &roster,
            };
            assert_eq!(
                (directory.len(), directory.is_empty()),
                (listed.len(), listed.is_empty())
            );
            let id = |info: &SessionInfo| info.id().0.0;
            assert_eq!(sessions.ids().len(), listed.len());
            assert!(
                sessions
                    .ids()
                    .iter()
                    .map(|id| id.0.0)
                    .eq(listed.iter().map(|one| one.0))
            );
            let mut all: Vec<_> = directory.sessions().map(id).collect();
            all.sort_unstable();
            assert!(all.iter().eq(listed.iter().map(|(id, _)| id)));
            for number in 1..=128 {
                let uuid = Uuid::from_u128(number.into());
                let found = directory.session(uuid);
                let is_there = listed.iter().any(|(id, _)| *id == number);
                assert_eq!(found.map(id), is_there.then_some(number));
                assert!(found.is_none_or(|info| info.uuid() == uuid));
            }
            for roles in 0..=Role::ALL.bits() {
                let role = Role::from_bits(roles);
                let mut found: Vec<_> = directory.with_role(role).map(id).collect();
                found.sort_unstable();
                let expected = listed.iter().filter(|(_, has)| has & roles != 0);
                assert!(found.iter().eq(expected.map(|(id, _)| id)), "{role}: {found:?}");
                assert!(directory.with_role(role).all(|info| info.role().intersects(role)));
            }
        };
        agree(&sessions, &listed);
        // Each set of roles has two sessions.
        for id in 1..=2 * Role::ALL.bits() {
            let roles = (id - 1) % Role::ALL.bits() + 1;
            sessions.insert(session(id.into(), id.into(), Role::from_bits(roles)));
            listed.push((id.into(), roles));
        }
        agree(&sessions, &listed);
        for third in [0, 1, 2] {
            let removed = listed
                .extract_if(.., |(id, _)| *id % 3 == third)
                .collect::<Vec<_>>();
            for (id, _) in removed {
                let id = SessionId(ConnectionId(id));
                assert_eq!(sessions.remove(id).map(|session| session.info.id), Some(id));
                assert!(sessions.remove(id).is_none());
            }
            agree(&sessions, &listed);
        }
        // No index has any of them left.
        assert!(sessions.by_uuid.is_empty() && sessions.by_role.iter().all(Vec::is_empty));
    }

    #[test]
    fn a_uuid_stays_with_the_session_that_took_it_over() {
        let mut sessions = Sessions::default();
        let (old, new) = (session(1, 7, Role::AGENT), session(2, 7, Role::AGENT));
        let [first, second] = [old.info.id, new.info.id];
        sessions.insert(old);
        sessions.insert(new);
        sessions.remove(first);
        let id = |sessions: &Sessions| sessions.of(Uuid::from_u128(7)).map(|session| session.info.id);
        assert_eq!(id(&sessions), Some(second));
        sessions.remove(second);
        assert_eq!(id(&sessions), None);
    }

    #[test]
    fn sessions_are_indexed_by_expiry_until_they_are_removed() {
        let mut sessions = Sessions::default();
        let at = [3, 1, 2].map(|seconds| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds));
        let mut ids = Vec::new();
        for (ends, number) in at.into_iter().zip(1..) {
            let mut session = session(number, number.into(), Role::AGENT);
            session.ends = Some(ends);
            ids.push(session.info.id);
            sessions.insert(session);
        }
        sessions.insert(session(4, 4, Role::AGENT));
        for next in [1, 2, 0] {
            assert_eq!(sessions.first_expiry(), Some((at[next], ids[next])));
            sessions.remove(ids[next]);
        }
        assert_eq!(sessions.first_expiry(), None);
    }

    #[test]
    fn a_session_is_shown_by_uuid_roles_and_address() {
        let info = session(9 << 24, 0xabc, Role::AGENT | Role::NETAGENT).info;
        assert_eq!(info.id().to_string(), "s9");
        let shown = format!("{} (agent,netagent) at {}", info.uuid(), PeerAddress::Memory);
        assert_eq!(info.to_string(), shown);
    }
}
