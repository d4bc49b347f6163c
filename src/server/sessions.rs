//! The sessions of a server, with indexes by UUID and by role.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use uuid::Uuid;

use super::time::Moment;
use crate::silence::{LOOKS, Look, SHORTEST, Silence};
use ssntp_pki::Role;
use ssntp_pki::{CertificateInfo, KeptCertificate};
use ssntp_transport::{ConnectionId, OutboxCounters, PeerAddress, Table};

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

/// Decides which of two sessions of one UUID stays: the one with the higher rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// The highest token that the session's server knew when it admitted the session.
    pub(super) token: u64,
    /// A logical clock: a server counts its admissions, and continues from the highest stamp in the
    /// rows of others. So a session that was admitted after its server knew of another one has a
    /// greater stamp than that.
    pub(super) stamp: u64,
}

/// The shortest time between two checks for expired certificates. The time of day may advance more
/// slowly than the timer's clock, which must not cause busy waiting.
const SHORTEST_CHECK: Duration = Duration::from_secs(1);
/// The longest time between two checks, so that a clock that is set ahead is noticed within the hour.
const LONGEST_CHECK: Duration = Duration::from_secs(3600);
/// The maximum number of sessions that one check ends, so that frames of others are not delayed for long.
const MOST_EXPIRED: usize = 256;

/// A session as the core keeps it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) info: Arc<SessionInfo>,
    pub(super) outbox: OutboxCounters,
    pub(super) counters: SessionCounters,
    pub(super) since: Instant,
    /// Decides which session stays if another server has one of the same UUID.
    pub(super) rank: Rank,
    pub(super) silence: Silence,
    /// True once [`Handler::connected`](super::Handler::connected) was called for the session.
    pub(super) announced: bool,
    /// The time at which the certificate expires and the session must end. `None` if expiry is not
    /// enforced. It does not change while the session is in the index, which is ordered by it.
    pub(super) expires: Option<SystemTime>,
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
            silence: Silence::new(since),
            announced: false,
            expires: None,
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
    ids_by_role: [Vec<SessionId>; ROLES],
    by_expiry: BTreeSet<(SystemTime, SessionId)>,
    /// The time of the next check for expired certificates.
    next_expiry_check: Option<Instant>,
    /// The longest silence of a session, and the time of the next look.
    silence: Option<(Duration, Instant)>,
}

pub(super) const ROLES: usize = Role::ALL.bits().count_ones() as usize;

impl Sessions {
    /// No sessions. Each may be silent for `idle_limit`.
    pub(super) fn new(idle_limit: Option<Duration>, now: Instant) -> Self {
        Self {
            silence: idle_limit.map(|limit| (limit.max(SHORTEST), now)),
            ..Self::default()
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn insert(&mut self, session: Session, time: Moment) {
        let (id, uuid, role) = (session.info.id, session.info.uuid, session.info.role);
        self.by_uuid.insert(uuid, id);
        for bit in bits(role) {
            self.ids_by_role[bit].push(id);
        }
        self.by_expiry
            .extend(session.expires.map(|expires| (expires, id)));
        self.by_id.insert(id.0, session);
        self.schedule_expiry_check(0, SHORTEST_CHECK, time);
    }

    pub(super) fn remove(&mut self, id: SessionId) -> Option<Session> {
        let session = self.by_id.remove(id.0)?;
        // A newer session may have taken over the UUID.
        if self.by_uuid.get(&session.info.uuid) == Some(&id) {
            self.by_uuid.remove(&session.info.uuid);
        }
        for bit in bits(session.info.role) {
            // The list is sorted: ids grow in the order of admission, and so are sessions inserted.
            if let Ok(at) = self.ids_by_role[bit].binary_search(&id) {
                self.ids_by_role[bit].remove(at);
            }
        }
        if let Some(expires) = session.expires {
            self.by_expiry.remove(&(expires, id));
        }
        Some(session)
    }

    /// The time of the next call of [`expired`](Self::expired).
    pub(super) fn next_expiry_check(&self) -> Option<Instant> {
        self.next_expiry_check
    }

    /// The sessions whose certificates have expired by the time of day, if a check is due. The caller ends
    /// them. The clock may have been set back since the check was scheduled, so there may be none.
    pub(super) fn expired(&mut self, time: Moment) -> Vec<SessionId> {
        if self.next_expiry_check.take_if(|at| *at <= time.now).is_none() {
            return Vec::new();
        }
        let due = self.by_expiry.iter().take(MOST_EXPIRED);
        let due = due.take_while(|(expires, _)| *expires <= time.wall);
        let due: Vec<_> = due.map(|(_, id)| *id).collect();
        // The others follow after the events that have come meanwhile.
        let shortest = if due.len() == MOST_EXPIRED {
            Duration::ZERO
        } else {
            SHORTEST_CHECK
        };
        self.schedule_expiry_check(due.len(), shortest, time);
        due
    }

    /// The time of the next call of [`silent`](Self::silent).
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.silence.map(|(_, next)| next)
    }

    /// The sessions that are to be asked for a sign of life, and those that have given none, if a look is due.
    pub(super) fn silent(&mut self, now: Instant) -> Vec<(SessionId, Look)> {
        let Some((limit, _)) = self.silence.filter(|(_, next)| *next <= now) else {
            return Vec::new();
        };
        self.silence = Some((limit, now + limit / LOOKS));
        let sessions = self.ids().into_iter();
        let looks = sessions.filter_map(|id| Some((id, self.get_mut(id)?.silence.look(now, limit))));
        looks.filter(|(_, look)| *look != Look::Nothing).collect()
    }

    /// Moves the next check forward to the first expiry after the first `skipped` ones, if that is earlier.
    fn schedule_expiry_check(&mut self, skipped: usize, shortest: Duration, time: Moment) {
        if let Some((expires, _)) = self.by_expiry.iter().nth(skipped) {
            let remaining = expires.duration_since(time.wall).unwrap_or_default();
            let at = time.now + remaining.clamp(shortest, LONGEST_CHECK);
            self.next_expiry_check = Some(self.next_expiry_check.map_or(at, |before| before.min(at)));
        }
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
    pub(super) fn count_by_role(&self) -> Vec<(Role, usize)> {
        let each = self.ids_by_role.iter().enumerate();
        each.map(|(bit, sessions)| (Role::from_bits(1 << bit), sessions.len()))
            .collect()
    }

    /// Every session with at least one of the roles, each once.
    pub(super) fn with_role(&self, role: Role) -> impl Iterator<Item = &Session> {
        bits(role).flat_map(move |bit| {
            // A session with several of the roles is listed only under the lowest one.
            let earlier = role.bits() & ((1 << bit) - 1);
            self.ids_by_role[bit]
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
        Session::new(Arc::new(info), outbox, Arc::default(), now().now)
    }

    #[expect(clippy::disallowed_methods, reason = "any time will do")]
    fn now() -> Moment {
        Moment {
            now: Instant::now(),
            wall: SystemTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_session_is_found_by_uuid_and_each_role_until_it_is_removed() {
        let mut sessions = Sessions::default();
        let mut listed: Vec<(u64, u32)> = Vec::new();
        let agree = |sessions: &Sessions, listed: &[(u64, u32)]| {
            assert_eq!(sessions.len(), listed.len());
            let id = |info: &SessionInfo| info.id().0.0;
            assert_eq!(sessions.ids().len(), listed.len());
            assert!(
                sessions
                    .ids()
                    .iter()
                    .map(|id| id.0.0)
                    .eq(listed.iter().map(|one| one.0))
            );
            let mut all: Vec<_> = sessions.iter().map(|session| id(&session.info)).collect();
            all.sort_unstable();
            assert!(all.iter().eq(listed.iter().map(|(id, _)| id)));
            for number in 1..=128 {
                let uuid = Uuid::from_u128(number.into());
                let found = sessions.of(uuid).map(|session| &*session.info);
                let is_there = listed.iter().any(|(id, _)| *id == number);
                assert_eq!(found.map(id), is_there.then_some(number));
                assert!(found.is_none_or(|info| info.uuid() == uuid));
            }
            for roles in 0..=Role::ALL.bits() {
                let role = Role::from_bits(roles);
                let mut found: Vec<_> = sessions
                    .with_role(role)
                    .map(|session| id(&session.info))
                    .collect();
                found.sort_unstable();
                let expected = listed.iter().filter(|(_, has)| has & roles != 0);
                assert!(found.iter().eq(expected.map(|(id, _)| id)), "{role}: {found:?}");
                assert!(
                    sessions
                        .with_role(role)
                        .all(|session| session.info.role.intersects(role))
                );
            }
        };
        agree(&sessions, &listed);
        // Each set of roles has two sessions.
        for id in 1..=2 * Role::ALL.bits() {
            let roles = (id - 1) % Role::ALL.bits() + 1;
            sessions.insert(session(id.into(), id.into(), Role::from_bits(roles)), now());
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
        assert!(sessions.by_uuid.is_empty() && sessions.ids_by_role.iter().all(Vec::is_empty));
    }

    #[test]
    fn a_uuid_stays_with_the_session_that_took_it_over() {
        let mut sessions = Sessions::default();
        let (old, new) = (session(1, 7, Role::AGENT), session(2, 7, Role::AGENT));
        let [first, second] = [old.info.id, new.info.id];
        sessions.insert(old, now());
        sessions.insert(new, now());
        sessions.remove(first);
        let id = |sessions: &Sessions| sessions.of(Uuid::from_u128(7)).map(|session| session.info.id);
        assert_eq!(id(&sessions), Some(second));
        sessions.remove(second);
        assert_eq!(id(&sessions), None);
    }

    #[test]
    fn sessions_expire_in_the_order_of_their_certificates_unless_they_are_removed() {
        let mut sessions = Sessions::default();
        let mut time = now();
        let begin = time.wall;
        for (seconds, number) in [3, 1, 2].into_iter().zip(1..) {
            let mut session = session(number, number.into(), Role::AGENT);
            session.expires = Some(begin + Duration::from_secs(seconds));
            sessions.insert(session, time);
        }
        sessions.insert(session(4, 4, Role::AGENT), time);
        for (seconds, number) in [(1, 2), (2, 3), (3, 1)] {
            let due = sessions.next_expiry_check().expect("a session expires");
            assert_eq!(sessions.expired(time), [], "before the check is due");
            (time.now, time.wall) = (due, begin + Duration::from_secs(seconds));
            let expired = sessions.expired(time);
            assert_eq!(expired, [SessionId(ConnectionId(number))]);
            sessions.remove(expired[0]);
        }
        assert_eq!(sessions.next_expiry_check(), None);
    }

    #[test]
    fn a_session_is_shown_by_uuid_roles_and_address() {
        let info = session(9 << 24, 0xabc, Role::AGENT | Role::NETAGENT).info;
        assert_eq!(info.id().to_string(), "s9");
        let shown = format!("{} (agent,netagent) at {}", info.uuid(), PeerAddress::Memory);
        assert_eq!(info.to_string(), shown);
    }
}
