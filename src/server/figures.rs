//! The figures of a server: one snapshot of its sessions and counters, for metrics and pages.
//!
//! ```text
//!  handshake threads ── HandshakeCounters ───────┐
//!                                             ▼
//!  ServerHandle::figures ── Look ──▶ dispatcher: core, flow, Counters──▶ Figures
//!                                     (copies numbers, clones `Arc`s)
//! ```
//!
//! The dispatcher formats nothing for a snapshot, parses no certificate and makes no system call.
//! Counters that change with every frame are updated once for each run of frames, without a clock:
//! times are those of the core's inputs.
//!
//! The keys of `refused` and `ended` are words from fixed lists, which bounds the number of series
//! that a metrics system makes of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use uuid::Uuid;

use super::disconnect::DisconnectReason;
use super::kinds::KindFigures;
use super::links::{LinkFigures, PeerState};
use super::sessions::{Session, SessionCounters, SessionInfo};
use super::time::Moment;
use crate::proto::{Item, Operands};
use ssntp_pki::Role;
use ssntp_transport::dispatch::View;
use ssntp_transport::{BudgetFigures, DispatcherFigures};

/// A snapshot of a server, see
/// [`ServerHandle::figures`](super::ServerHandle::figures).
///
/// All counters begin at the server's start. Times of existing sessions are computed from the wall clock
/// at the snapshot, so if the clock is set, later snapshots show other times for the same moments.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Figures {
    /// The server's UUID.
    pub uuid: Uuid,
    /// The roles that it advertises.
    pub role: Role,
    /// The time of the snapshot.
    pub taken: SystemTime,
    /// The time at which the server started.
    pub started: SystemTime,
    /// True if the server is stopping and refuses newcomers.
    pub stopping: bool,

    /// Every session, in no order.
    pub sessions: Vec<SessionFigures>,
    /// The last 256 sessions that ended, the latest last. They include those that ended as slow
    /// consumers.
    pub closed: Vec<ClosedSession>,
    /// The number of sessions with each role of the protocol. A session with two roles counts for both.
    pub by_role: Vec<(Role, usize)>,
    /// The number of sessions, including those whose threads still end.
    /// [`max_sessions`](Self::max_sessions) limits it.
    pub standing: usize,
    /// The maximum number of sessions that the server admits.
    pub max_sessions: usize,
    /// The number of different certificates of the connections.
    pub certificates: usize,
    /// The largest number of sessions with one certificate.
    pub most_of_certificate: usize,
    /// The maximum number of sessions that one certificate may have.
    pub max_of_certificate: usize,
    /// Sessions that began.
    pub admitted: u64,
    /// Sessions that ended, by the word for the reason
    /// ([`DisconnectReason::word`]).
    pub ended: BTreeMap<&'static str, u64>,

    /// The links to other servers, by the servers' UUIDs.
    pub links: Vec<LinkFigures>,
    /// The servers that are dialled, by address, with the state of each.
    pub peers: Vec<(String, PeerState)>,

    /// The handshakes of newcomers.
    pub handshakes: HandshakeFigures,
    /// The counters of each kind that was received or sent, by type, then operand.
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
    /// Frames lost by sessions that are gone, see
    /// [`Context::frames_lost`](super::Context::frames_lost).
    pub lost: u64,

    /// The load of the dispatcher thread.
    pub dispatcher: DispatcherFigures,
    /// The memory of all queues to clients.
    pub queues: BudgetFigures,
    /// The memory of frames that were received and are not handled yet.
    pub received: BudgetFigures,
}

/// One session that is connected.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionFigures {
    /// The properties of the session. [`SessionInfo::certificate`] has serial number, issuer and expiry.
    pub info: Arc<SessionInfo>,
    /// The time at which it was admitted.
    pub since: SystemTime,
    /// Its counters.
    pub counters: SessionCounters,
    /// The time at which the dispatcher last got bytes from it, or heard that its bytes wait for memory.
    pub last_received: Option<SystemTime>,
    /// The time at which a frame was last queued for it. If no frame waits, that frame was sent then or
    /// a moment later.
    pub last_queued: Option<SystemTime>,
    /// The reason for which the session is not read, and since how long; `None` if it is read.
    pub held_back: Option<(HeldBack, Duration)>,
    /// The pace at which it reads what is sent to it.
    pub pace: Pace,
}

/// The reason for which a session is not read, so that its socket fills and its client has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldBack {
    /// A frame of it waits in another session's line.
    Line,
    /// The dispatcher has not yet handled what was read. A busy session is in this state now and then,
    /// for some milliseconds.
    Credit,
}

/// The pace at which a session reads what is sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pace {
    /// No sender is paused for this session.
    Keeps,
    /// Its queue is at its mark, and senders have been paused for this long, or for this long since it
    /// last kept the pace.
    Awaited(Duration),
    /// It was too slow for the whole patience. Its senders are no longer paused, and its queue fills up.
    Slow,
}

impl Pace {
    /// True if the session is a slow consumer, or becomes one if it does not read faster.
    pub fn is_slow(self) -> bool {
        self != Self::Keeps
    }
}

/// One session that has ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClosedSession {
    /// The properties of the session.
    pub info: Arc<SessionInfo>,
    /// The reason for its end.
    pub reason: DisconnectReason,
    /// The time at which it was admitted, by the wall clock at its end.
    pub since: SystemTime,
    /// The time at which it ended.
    pub until: SystemTime,
    /// Its counters at that time.
    pub counters: SessionCounters,
}

/// The handshakes of newcomers, by their result.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HandshakeFigures {
    /// Handshakes under way.
    pub running: usize,
    /// The maximum number of handshakes at a time.
    pub limit: usize,
    /// Full TLS handshakes that led to a session.
    pub full: u64,
    /// Resumed TLS sessions that led to a session.
    pub resumed: u64,
    /// Handshakes that failed or were refused, by the word for the reason: `tls`, `certificate`, `revoked`,
    /// `expired`, `timeout`, `lost`, `cut` (for another newcomer, as it was slow),
    /// `stopping`, `thread` (none could be started), or one of
    /// [`Refusal::word`](crate::proto::Refusal::word).
    pub refused: BTreeMap<&'static str, u64>,
    /// Nodes that have `joined` with a token, certificates that were `renewed` over a session, and refusals of both
    /// by the word of [`JoinRefusal`](https://docs.rs/ssntp-pki): `proof`, `ended`, `used`, `roles`, `request`,
    /// `not_renewable`, `issuer`, `busy`, `unavailable`.
    pub enrolments: BTreeMap<&'static str, u64>,
}

impl Figures {
    /// Sets the names. Runs on the caller's thread, to spare the dispatcher.
    pub(super) fn name_kinds(&mut self, operands: &Operands) {
        for frames in &mut self.frames {
            frames.name = operands.show(frames.kind).to_string();
        }
    }
}

impl SessionFigures {
    pub(super) fn new(session: &Session, view: &View<'_, Item>, time: Moment) -> Self {
        let flow = view.flow.state(session.info.id.0);
        let at = |earlier: Instant| time.time_of_day(earlier);
        let passed = |since: Instant| view.now.saturating_duration_since(since);
        let in_line = flow.paused_since.map(|since| (HeldBack::Line, passed(since)));
        let without_credit = flow.without_credit_since;
        Self {
            info: Arc::clone(&session.info),
            since: at(session.since),
            counters: session.counters(),
            last_received: session.silence.heard().map(at),
            last_queued: flow.last_item_at.map(at),
            held_back: in_line.or(without_credit.map(|since| (HeldBack::Credit, passed(since)))),
            pace: match flow.awaited_since {
                _ if flow.is_slow => Pace::Slow,
                Some(since) => Pace::Awaited(passed(since)),
                None => Pace::Keeps,
            },
        }
    }
}
