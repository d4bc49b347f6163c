//! What a server knows about itself: one snapshot, for pages that show it.
//!
//! ```text
//!  handshake threads ── HandshakeTally ───────┐
//!                                             ▼
//!  ServerHandle::figures ── Look ──▶ dispatcher: core, flow, Tally ──▶ Figures
//!                                     (copies numbers, clones `Arc`s)
//! ```
//!
//! Nothing is formatted, read from a certificate or asked of the system while
//! the dispatcher is at it. What changes with every frame is counted where it is
//! looked at anyway, a run of frames at a time, and without a clock: times are
//! those that the dispatcher tells its core.
//!
//! Words that say why something happened, as `refused` and `ended` have them, are
//! from fixed lists, so that as many series come of them at most.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use uuid::Uuid;

use super::core::{ServerCore, State};
use super::disconnect::DisconnectReason;
use super::federation::{LinkFigures, PeerState};
use super::sessions::{Session, SessionCounters, SessionInfo};
use super::tally::{Closed, HandshakeTally, KindTally};
use crate::proto::{FrameKind, Item, Operands};
use ssntp_transport::Role;
use ssntp_transport::dispatch::View;
use ssntp_transport::{BudgetFigures, DispatcherFigures, Occupancy};

/// A snapshot of a server, see
/// [`ServerHandle::figures`](super::ServerHandle::figures).
///
/// What counts, counts from the server's start. Wall-clock times are those of the
/// moment of the snapshot: where the clock is set, later snapshots say other times
/// of the same moments.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Figures {
    /// The server's UUID.
    pub uuid: Uuid,
    /// The roles that it advertises.
    pub role: Role,
    /// When this was taken.
    pub taken: SystemTime,
    /// When the server began.
    pub started: SystemTime,
    /// Whether it is stopping, and refuses newcomers.
    pub stopping: bool,

    /// Every session that stands, in no order.
    pub sessions: Vec<SessionFigures>,
    /// The last 256 sessions that ended, the latest last. Those that were ended
    /// as slow consumers are among them, with that reason.
    pub closed: Vec<ClosedSession>,
    /// How many sessions have each role, for each role of the protocol. One with
    /// two roles is in both.
    pub by_role: Vec<(Role, usize)>,
    /// Sessions, those included whose threads still end: what
    /// [`max_sessions`](Self::max_sessions) is compared with.
    pub standing: usize,
    /// The most of them.
    pub max_sessions: usize,
    /// How many different certificates the sessions have.
    pub certificates: usize,
    /// The most sessions that any certificate has.
    pub most_of_certificate: usize,
    /// The most that one may have.
    pub max_of_certificate: usize,
    /// Sessions that began.
    pub admitted: u64,
    /// Sessions that ended, by the word for the reason
    /// ([`DisconnectReason::word`]).
    pub ended: BTreeMap<&'static str, u64>,

    /// The links to other servers, by the servers' UUIDs.
    pub links: Vec<LinkFigures>,
    /// The servers that are dialled, by address, and what has become of each.
    pub peers: Vec<(String, PeerState)>,

    /// Newcomers.
    pub handshakes: HandshakeFigures,
    /// Frames of each kind that was ever seen, by type, then operand.
    pub frames: Vec<KindFigures>,
    /// Frames received of types or operands that are not supported. Each is
    /// answered with InvalidFrameType, but for ERRORs.
    pub unsupported: u64,
    /// Frames that the role filter discarded.
    pub filtered: u64,
    /// Frames that a forwarding rule sent to no session, because none had the role or the UUID.
    pub unreceived: u64,
    /// InvalidFrameType frames that the server itself has answered with.
    pub answered: u64,
    /// Frames dropped because a queue was full.
    pub dropped: u64,
    /// Frames that sessions which are gone have lost, see
    /// [`Context::frames_lost`](super::Context::frames_lost).
    pub lost: u64,
    /// Frames that routing functions have queued for later, now.
    pub held: usize,
    /// Held frames that expired, or found no room.
    pub expired: u64,

    /// The thread that does everything.
    pub dispatcher: DispatcherFigures,
    /// The memory of all queues to clients.
    pub queues: BudgetFigures,
    /// The memory of all that was received and is not dealt with.
    pub received: BudgetFigures,
}

/// One session that stands.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionFigures {
    /// Who it is; [`SessionInfo::certificate`] has serial, issuer and end.
    pub info: Arc<SessionInfo>,
    /// When it began.
    pub since: SystemTime,
    /// What it has carried, and what waits in its queue.
    pub counters: SessionCounters,
    /// When bytes were last received from it, as the dispatcher took them.
    pub last_received: Option<SystemTime>,
    /// When a frame was last queued for it. With nothing that waits it has been
    /// sent as well, then or a moment later.
    pub last_queued: Option<SystemTime>,
    /// Why, and for how long, nothing more is read from it.
    pub held_back: Option<(HeldBack, Duration)>,
    /// Whether it takes what is sent to it.
    pub pace: Pace,
}

/// Why a session is not read from, and its client so held back by its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldBack {
    /// What it sent waits for room in another session's queue.
    Line,
    /// The dispatcher has yet to deal with what it sent. A busy session is in
    /// this state now and then, for some milliseconds.
    Credit,
}

/// How a session takes what is sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pace {
    /// No session waits for it.
    Keeps,
    /// Its queue is at its mark, and others wait for it for so long, or since it
    /// was last seen to take enough.
    Awaited(Duration),
    /// It took too little for as long as the configured patience. Its senders are not
    /// held back any more, and its queue fills up.
    Slow,
}

impl Pace {
    /// Whether it is a slow consumer, or becomes one unless it takes more.
    pub fn is_slow(self) -> bool {
        self != Self::Keeps
    }
}

/// One session that has ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClosedSession {
    /// Who it was.
    pub info: Arc<SessionInfo>,
    /// Why it ended.
    pub reason: DisconnectReason,
    /// When it began.
    pub since: SystemTime,
    /// When it ended.
    pub until: SystemTime,
    /// What it had carried by then, and what waited in its queue.
    pub counters: SessionCounters,
}

/// What newcomers have come to.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HandshakeFigures {
    /// Under way.
    pub running: usize,
    /// The most of them.
    pub limit: usize,
    /// That led to a session, with a full TLS handshake.
    pub full: u64,
    /// That led to a session, with a TLS session that was resumed.
    pub resumed: u64,
    /// That did not, by the word for the reason: `tls`, `certificate`, `revoked`,
    /// `expired`, `timeout`, `lost`, `cut` (for another newcomer, as it was slow),
    /// `stopping`, `thread` (none could be started), or one of
    /// [`Refusal::word`](crate::proto::Refusal::word).
    pub refused: BTreeMap<&'static str, u64>,
}

/// The frames of one kind.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KindFigures {
    /// The kind, of the protocol or of the application: frames of unknown kinds
    /// are in [`Figures::unsupported`].
    pub kind: FrameKind,
    /// Its name, as logs show it.
    pub name: String,
    /// Frames received.
    pub frames_received: u64,
    /// Their bytes, headers included.
    pub bytes_received: u64,
    /// Frames that were forwarded, that the server answered with, or that the
    /// application sent, one for each receiver; those included that its queue had
    /// no room for, or that it did not live to get.
    pub frames_sent: u64,
    /// Their bytes, headers included.
    pub bytes_sent: u64,
}

impl Figures {
    /// Done on the thread that asked.
    pub(super) fn name_kinds(&mut self, operands: &Operands) {
        for frames in &mut self.frames {
            frames.name = operands.show(frames.kind).to_string();
        }
    }
}

impl State {
    /// The snapshot, but for what the dispatcher does not know.
    pub(super) fn figures(&self, view: &View<'_, Item>) -> Figures {
        // Both of the same turn: who asks may wait for the dispatcher.
        let clock = Clock {
            now: view.now,
            wall: self.wall,
        };
        let sessions: Vec<_> = self
            .sessions
            .iter()
            .filter(|session| session.told)
            .map(|session| session.figures(view, clock))
            .collect();
        let sum = |count: fn(&SessionCounters) -> u64| -> u64 {
            sessions.iter().map(|session| count(&session.counters)).sum()
        };
        let tally = &self.tally;
        let (certificates, most_of_certificate) = self.certificates.counted();
        Figures {
            uuid: self.environment.uuid,
            role: self.environment.role,
            taken: self.wall,
            started: clock.at(tally.started),
            stopping: self.open.is_none(),
            closed: tally
                .closed
                .iter()
                .map(|closed| ClosedSession::of(closed, clock))
                .collect(),
            by_role: self.sessions.by_role(),
            standing: view.connections,
            max_sessions: self.max_sessions,
            certificates,
            most_of_certificate,
            max_of_certificate: self.admission.share(self.max_sessions),
            admitted: tally.admitted,
            ended: tally.ended.clone(),
            links: self.links.figures(view.now),
            peers: Vec::new(),
            handshakes: HandshakeFigures::default(),
            frames: tally
                .kinds()
                .map(|(kind, tally)| KindFigures::of(kind, tally))
                .collect(),
            unsupported: tally.unsupported + sum(|counters| counters.frames_unsupported),
            filtered: tally.filtered + sum(|counters| counters.frames_filtered),
            unreceived: tally.unreceived,
            answered: tally.answered,
            dropped: tally.dropped + sum(|counters| counters.frames_dropped),
            lost: self.frames_lost,
            held: self.held.len(),
            expired: tally.expired,
            dispatcher: view.dispatcher,
            queues: view.queues,
            received: view.received,
            sessions,
        }
    }
}

impl Session {
    fn figures(&self, view: &View<'_, Item>, clock: Clock) -> SessionFigures {
        let flow = view.flow.state(self.info.id.0);
        let passed = |since: Instant| clock.now.saturating_duration_since(since);
        let in_line = flow.held_since.map(|since| (HeldBack::Line, passed(since)));
        let without_credit = flow.without_credit_since;
        SessionFigures {
            info: Arc::clone(&self.info),
            since: clock.at(self.since),
            counters: self.counters(),
            last_received: self.received.map(|at| clock.at(at)),
            last_queued: flow.last_item_at.map(|at| clock.at(at)),
            held_back: in_line.or(without_credit.map(|since| (HeldBack::Credit, passed(since)))),
            pace: match flow.awaited_since {
                _ if flow.is_slow => Pace::Slow,
                Some(since) => Pace::Awaited(passed(since)),
                None => Pace::Keeps,
            },
        }
    }
}

/// One moment by both clocks.
#[derive(Clone, Copy, Debug)]
struct Clock {
    now: Instant,
    wall: SystemTime,
}

impl Clock {
    /// What the wall clock would have said at a moment that has been.
    fn at(self, moment: Instant) -> SystemTime {
        let ago = self.now.saturating_duration_since(moment);
        self.wall.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

impl ServerCore {
    /// Frames dropped by sessions that are gone.
    pub fn dropped_by_gone(&self) -> u64 {
        self.state.tally.dropped
    }
}

impl KindFigures {
    fn of(kind: FrameKind, tally: &KindTally) -> Self {
        let [frames_received, bytes_received] = tally.received;
        let [frames_sent, bytes_sent] = tally.sent;
        Self {
            kind,
            name: String::new(),
            frames_received,
            bytes_received,
            frames_sent,
            bytes_sent,
        }
    }
}

impl ClosedSession {
    fn of(closed: &Closed, clock: Clock) -> Self {
        Self {
            info: Arc::clone(&closed.info),
            reason: closed.reason.clone(),
            since: clock.at(closed.since),
            until: clock.at(closed.until),
            counters: closed.counters,
        }
    }
}

impl HandshakeFigures {
    pub(super) fn of(tally: &HandshakeTally, occupancy: Option<&Occupancy>) -> Self {
        let (full, resumed, mut refused) = tally.counts();
        let without_thread = occupancy.map_or(0, Occupancy::without_thread);
        if without_thread > 0 {
            refused.insert("thread", without_thread);
        }
        Self {
            running: occupancy.map_or(0, Occupancy::running),
            limit: occupancy.map_or(0, Occupancy::max),
            full,
            resumed,
            refused,
        }
    }
}
