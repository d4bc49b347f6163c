//! The sessions of a server: who is connected, by UUID and by role.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use uuid::Uuid;

use super::admission::Place;
use super::at_once::{AtOnce, Step};
use crate::Role;
use crate::pki::{CertificateInfo, KeptCertificate};
use crate::transport::{Link, Outbox, Outgoing, PeerAddress, PushError};

/// Names one session; never used again once it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub(super) u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// The facts of a session that never change while it lasts. Shown in logs as
/// `UUID (roles) at ADDRESS`.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    pub(super) id: SessionId,
    pub(super) uuid: Uuid,
    pub(super) role: Role,
    pub(super) address: PeerAddress,
    pub(super) certificate: KeptCertificate,
    pub(super) tracing: bool,
}

impl SessionInfo {
    /// The session's own name.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The client's UUID.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The roles that the client advertised, all of them certified.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Where the client connected from.
    pub fn address(&self) -> PeerAddress {
        self.address
    }

    /// What the client's certificate says. It is read when it is first asked
    /// for, since most sessions are never asked.
    pub fn certificate(&self) -> &CertificateInfo {
        self.certificate.info()
    }

    /// Whether the session agreed on trace blocks.
    pub fn tracing(&self) -> bool {
        self.tracing
    }
}

impl fmt::Display for SessionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) at {}", self.uuid, self.role, self.address)
    }
}

/// What a session has carried so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Frames received, those that were filtered or not supported included.
    pub frames_received: u64,
    /// Bytes received, headers included, after TLS.
    pub bytes_received: u64,
    /// Frames that the system has taken for this peer.
    pub frames_sent: u64,
    /// Bytes that the system has taken for this peer, before TLS.
    pub bytes_sent: u64,
    /// Frames that wait in this peer's queue.
    pub frames_waiting: u64,
    /// Bytes that wait in this peer's queue.
    pub bytes_waiting: u64,
    /// Frames dropped because this peer's queue was full.
    pub frames_dropped: u64,
    /// Frames of this peer that the role filter discarded.
    pub frames_filtered: u64,
    /// Frames of this peer of an unsupported type or operand.
    pub frames_unsupported: u64,
    /// Malformed trace blocks of this peer.
    pub bad_traces: u64,
}

/// One session as the dispatcher holds it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) info: Arc<SessionInfo>,
    pub(super) place: Place,
    pub(super) outbox: Outbox,
    pub(super) gate: Arc<Gate>,
    /// Known once its threads run.
    pub(super) link: Option<Link>,
    pub(super) counters: Counters,
    /// When the dispatcher last sent past its writer.
    pub(super) last: Cell<Step>,
}

impl Session {
    /// Queues an item, or sends it at once where that is better. Never blocks.
    pub(super) fn push(&self, item: Outgoing, at_once: &AtOnce) -> Result<(), PushError> {
        match at_once.step(self.last.get()) {
            Some(step) => {
                self.last.set(step);
                self.outbox.push_now(item)
            }
            None => self.outbox.push(item),
        }
    }

    pub(super) fn counters(&self) -> Counters {
        let (frames_sent, bytes_sent) = self.outbox.written();
        let (frames_waiting, bytes_waiting) = self.outbox.waiting();
        let bad_traces = self.gate.bad_traces.load(Ordering::Relaxed);
        Counters {
            frames_sent,
            bytes_sent,
            frames_waiting,
            bytes_waiting,
            bad_traces,
            ..self.counters
        }
    }
}

/// Established sessions with their indexes: each look-up takes the same time
/// however many there are.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// Boxed: a table has up to twice the room that it needs.
    by_id: HashMap<SessionId, Box<Session>>,
    by_uuid: HashMap<Uuid, SessionId>,
    by_role: [Vec<SessionId>; ROLES],
    next: u64,
}

const ROLES: usize = Role::ALL.bits().count_ones() as usize;

impl Sessions {
    pub(super) fn next_id(&mut self) -> SessionId {
        self.next += 1;
        SessionId(self.next)
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn insert(&mut self, session: Session) {
        let (id, uuid, role) = (session.info.id, session.info.uuid, session.info.role);
        self.by_uuid.insert(uuid, id);
        for bit in bits(role) {
            self.by_role[bit].push(id);
        }
        self.by_id.insert(id, Box::new(session));
    }

    pub(super) fn remove(&mut self, id: SessionId) -> Option<Session> {
        let session = self.by_id.remove(&id)?;
        if self.by_uuid.get(&session.info.uuid) == Some(&id) {
            self.by_uuid.remove(&session.info.uuid);
        }
        for bit in bits(session.info.role) {
            // Ids only grow, and are pushed in order: the list is sorted.
            if let Ok(at) = self.by_role[bit].binary_search(&id) {
                self.by_role[bit].remove(at);
            }
        }
        Some(*session)
    }

    pub(super) fn get(&self, id: SessionId) -> Option<&Session> {
        self.by_id.get(&id).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.by_id.get_mut(&id).map(Box::as_mut)
    }

    pub(super) fn id_of(&self, uuid: Uuid) -> Option<SessionId> {
        self.by_uuid.get(&uuid).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.by_id.values().map(Box::as_ref)
    }

    pub(super) fn ids(&self) -> Vec<SessionId> {
        let mut ids: Vec<_> = self.by_id.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Every session with at least one of the roles, each once.
    pub(super) fn with_role(&self, role: Role) -> impl Iterator<Item = &Session> {
        bits(role).flat_map(move |bit| {
            let earlier = role.bits() & ((1 << bit) - 1);
            self.by_role[bit]
                .iter()
                .filter_map(|id| self.get(*id))
                .filter(move |session| session.info.role.bits() & earlier == 0)
        })
    }
}

fn bits(role: Role) -> impl Iterator<Item = usize> {
    (0..ROLES).filter(move |bit| role.bits() & (1 << bit) != 0)
}

/// Who is connected, as a routing function sees it.
#[derive(Debug)]
pub struct Directory<'a> {
    pub(super) sessions: &'a Sessions,
}

impl Directory<'_> {
    /// The session of `uuid`.
    pub fn session(&self, uuid: Uuid) -> Option<&SessionInfo> {
        let id = self.sessions.id_of(uuid)?;
        self.sessions.get(id).map(|session| &*session.info)
    }

    /// Every session with at least one of the roles, each once.
    pub fn with_role(&self, role: Role) -> impl Iterator<Item = &SessionInfo> {
        self.sessions.with_role(role).map(|session| &*session.info)
    }

    /// Every session.
    pub fn sessions(&self) -> impl Iterator<Item = &SessionInfo> {
        self.sessions.iter().map(|session| &*session.info)
    }

    /// How many sessions there are.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether nobody is connected.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Paces the reader of one session: bounds what it has handed to the
/// dispatcher, and holds it back for a consumer that is busy but not stuck.
#[derive(Debug, Default)]
pub(super) struct Gate {
    in_flight: AtomicU64,
    waiting: AtomicBool,
    slow: Mutex<Option<Outbox>>,
    has_slow: AtomicBool,
    opened: Condvar,
    pub(super) bad_traces: AtomicU64,
}

/// Bytes that a session may have on the way to the dispatcher before its
/// reader waits; one batch may always be under way.
const IN_FLIGHT: u64 = 1024 * 1024;

impl Gate {
    /// The reader hands `bytes` over.
    pub(super) fn enter(&self, bytes: u64) {
        self.in_flight.fetch_add(bytes, Ordering::AcqRel);
    }

    /// The dispatcher is done with `bytes`.
    pub(super) fn leave(&self, bytes: u64) {
        // Sequentially consistent with `pass`: one of the two sees the other.
        self.in_flight.fetch_sub(bytes, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) {
            drop(self.slow.lock().unwrap_or_else(PoisonError::into_inner));
            self.opened.notify_all();
        }
    }

    /// The dispatcher found `consumer` more than half full.
    pub(super) fn slow_down_for(&self, consumer: &Outbox) {
        *self.slow.lock().unwrap_or_else(PoisonError::into_inner) = Some(consumer.clone());
        self.has_slow.store(true, Ordering::Release);
    }

    /// The reader waits until it may read on. The dispatcher never waits for
    /// a peer, so the first wait is short; the second is bounded by the
    /// consumer's progress.
    pub(super) fn pass(&self) {
        if self.in_flight.load(Ordering::SeqCst) > IN_FLIGHT {
            let mut guard = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
            self.waiting.store(true, Ordering::SeqCst);
            while self.in_flight.load(Ordering::SeqCst) > IN_FLIGHT {
                guard = self.opened.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.waiting.store(false, Ordering::SeqCst);
        }
        if self.has_slow.swap(false, Ordering::AcqRel) {
            let consumer = self.slow.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(consumer) = consumer {
                consumer.hold_back();
            }
        }
    }
}
