//! The destination of frames to be sent: the session's outbox, or the queue for the next session.
//!
//! ```text
//!           up(): frames that wait go into the session's outbox first
//!  ┌──────┐ ────────────────────────────────────▶ ┌────┐
//!  │ Down │                                       │ Up │
//!  └──┬───┘ ◀──────────────────────────────────── └─┬──┘
//!     │      down(), or a sender that finds          │
//!     │      the outbox closed                       │
//!     └───────────────▶ Ended(reason) ◀──────────────┘   for good
//! ```
//!
//! If a session is replaced as planned, `leave()` makes new requests wait for the next session, and `part()`
//! leads from Up to Down. Until the next session begins there is a *gap*: frames wait for that session even
//! with `Offline::Fail`, which refuses frames at any other time without a session. `give_up()` ends a gap
//! that lasts too long. The gap is known here only: each end of a session and each begin of one ends it.
//!
//! A sender holds the lock for reading during one push, so several threads can send at the same
//! time. A change of state holds it for writing. So no thread sends while frames that waited move
//! into the outbox of a new session, and a later frame of a thread cannot overtake an earlier one.
//! Threads that wait for a change of state sleep in `Changes`.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::config::Offline;
use super::error::{ClientError, SendFault};
use super::event::ServerInfo;
use crate::proto::Frame;
use crate::wire::outgoing;
use ssntp_pki::Role;
use ssntp_transport::{
    Limits, Load, Outbox, Outgoing, PushError, locked, locked_again, nanoseconds, now, remaining, wall_clock,
};

#[derive(Debug)]
pub(super) struct Uplink {
    uuid: Uuid,
    role: Role,
    offline: Offline,
    queue: Limits,
    state: RwLock<UplinkState>,
    pub(super) changes: Changes,
}

#[derive(Debug)]
enum UplinkState {
    Down(Waiting),
    Up(UplinkSession),
    Ended(ClientError),
}

/// Frames that wait for a session. They are not encoded yet, because only the session decides
/// whether they keep their traces.
#[derive(Debug, Default)]
struct Waiting {
    frames: VecDeque<Frame>,
    bytes: u64,
    gap: Gap,
}

#[derive(Debug, Default)]
enum Gap {
    #[default]
    No,
    /// The session that is being replaced is not over. Its outbox may still be sending.
    Parting(Outbox),
    /// The session is over, and the next one has not begun. The gap ends at this time, once that is known.
    Open(Option<Instant>),
}

#[derive(Debug)]
struct UplinkSession {
    outbox: Outbox,
    server: Arc<ServerInfo>,
    /// True once it is to be replaced, so that new requests wait for the next session.
    is_leaving: bool,
}

/// The reason why a frame was not accepted.
pub(super) enum Obstacle {
    /// The frame cannot be sent, and waiting would not help.
    Fault(SendFault),
    /// The session's outbox has no room below this mark.
    Session(Outbox, Limits),
    /// The state must change first: there is no session, and the queue for the next one is full; or it is a request,
    /// and the session is being replaced. This is the number of changes until then, so that a wait that begins later
    /// misses no change; and the fault if none comes.
    State(u64, SendFault),
}

/// The state of an uplink when it was ended.
pub(super) struct UplinkEnd {
    /// True if there was a session, or one that still sent its last frames in a gap.
    pub(super) connected: bool,
    /// The number of frames that waited for the next session. They are lost.
    pub(super) lost: u64,
}

impl Uplink {
    pub(super) fn new(uuid: Uuid, role: Role, offline: Offline, queue: Limits) -> Self {
        Self {
            uuid,
            role,
            offline,
            queue,
            state: RwLock::new(UplinkState::Down(Waiting::default())),
            changes: Changes::default(),
        }
    }

    /// Puts a frame into the session's outbox, or into the queue for the next session. With
    /// `Offline::Fail` that queue is only open in a gap, within the limits of an outbox. Without an
    /// `Offline` the frame is a request, which is never moved to another session. Never waits.
    pub(super) fn offer(&self, frame: &Frame, offline: Option<Offline>) -> Result<(), Obstacle> {
        // The common case holds the lock for reading, so that many threads send at the same time.
        if let UplinkState::Up(up) = &*self.read()
            && (offline.is_some() || !up.is_leaving)
            && let Some(result) = self.push(up, frame)
        {
            return result;
        }
        let mut state = self.write();
        // The link closes the outbox before the client's thread learns that the session is over.
        if matches!(&*state, UplinkState::Up(up) if up.outbox.is_closed()) {
            *state = UplinkState::Down(Waiting::default());
        }
        let seen = self.changes.number();
        match &mut *state {
            UplinkState::Down(waiting) => {
                let limits = match (offline, &waiting.gap) {
                    (Some(Offline::Queue(limits)), _) => limits,
                    (_, Gap::No) => return Err(Obstacle::Fault(SendFault::NotConnected)),
                    (Some(Offline::Fail), _) => self.queue,
                    (None, _) => return Err(Obstacle::State(seen, SendFault::NotConnected)),
                };
                let len = frame.encoded_len() as u64;
                let frames = waiting.frames.len() as u64;
                let fits = frames < limits.frames && waiting.bytes + len <= limits.bytes;
                // An empty queue accepts any frame, as an outbox does: otherwise a frame that is
                // longer than the limit could never be sent.
                if !fits && frames > 0 {
                    return Err(Obstacle::State(seen, SendFault::Full));
                }
                waiting.bytes += len;
                waiting.frames.push_back(frame.clone());
                Ok(())
            }
            UplinkState::Up(up) if offline.is_none() && up.is_leaving => {
                Err(Obstacle::State(seen, SendFault::NotConnected))
            }
            // A session began after the first check of the state. If it is over already, a wait
            // for its outbox ends at once, and the frame is offered again.
            UplinkState::Up(up) => {
                let over = || Err(Obstacle::Session(up.outbox.clone(), self.queue));
                self.push(up, frame).unwrap_or_else(over)
            }
            UplinkState::Ended(reason) => Err(Obstacle::Fault(SendFault::Ended(reason.clone()))),
        }
    }

    /// Puts a frame into the outbox of a session. `None` if the session is over.
    fn push(&self, up: &UplinkSession, frame: &Frame) -> Option<Result<(), Obstacle>> {
        let item = self.item(frame, up.server.tracing);
        // The memory of the item and not of the frame: a trace gets a stamp, or is left out.
        let mark = Limits {
            bytes: self
                .queue
                .bytes
                .saturating_add(1)
                .saturating_sub(item.load().memory()),
            ..self.queue
        };
        match up.outbox.push(item, mark, false) {
            Ok(()) => Some(Ok(())),
            Err(PushError::Full(_)) => Some(Err(Obstacle::Session(up.outbox.clone(), mark))),
            Err(PushError::Closed(_)) => None,
        }
    }

    /// Waits until an obstacle may have gone.
    ///
    /// # Errors
    /// It never will, or has not gone at the deadline.
    pub(super) fn wait(&self, obstacle: Obstacle, deadline: Option<Instant>) -> Result<(), SendFault> {
        let left = deadline.map(remaining);
        let is_late = left.is_some_and(|left| left.is_zero());
        let (may_have_gone, fault) = match obstacle {
            Obstacle::Fault(fault) => (false, fault),
            Obstacle::State(seen, fault) => (!is_late && self.changes.wait(seen, deadline), fault),
            _ if is_late => (false, SendFault::Full),
            // If the session is over, the frame is offered to the next session or the queue.
            Obstacle::Session(outbox, mark) => (
                outbox.wait_for_room(mark, left) || outbox.is_closed(),
                SendFault::Full,
            ),
        };
        may_have_gone.then_some(()).ok_or(fault)
    }

    /// The load of the session's outbox, or of the queue for the next session. In a gap, frames
    /// that the old session still sends are not included.
    pub(super) fn waiting(&self) -> Load {
        match &*self.read() {
            UplinkState::Up(up) => up.outbox.waiting(),
            UplinkState::Down(waiting) => Load {
                frames: waiting.frames.len() as u64,
                bytes: waiting.bytes,
                ..Load::default()
            },
            UplinkState::Ended(_) => Load::default(),
        }
    }

    /// Begins a session: makes its outbox, moves the frames that waited for it there, and
    /// returns the outbox. Returns `None` unless the state was Down, as after the end of
    /// the client.
    pub(super) fn up(&self, server: &Arc<ServerInfo>) -> Option<Outbox> {
        let mut state = self.write();
        let UplinkState::Down(waiting) = &mut *state else {
            return None;
        };
        let frames = std::mem::take(waiting).frames;
        let items: Vec<Outgoing> = frames.iter().map(|f| self.item(f, server.tracing)).collect();
        let outbox = Outbox::new(self.queue);
        for item in items {
            // All frames that were accepted are sent, also beyond the limit of a session.
            let taken = outbox.push(item, Limits::NONE, false);
            debug_assert!(taken.is_ok(), "the outbox is open");
        }
        // Only now, so that no frame of another thread overtakes the frames that have waited.
        *state = UplinkState::Up(UplinkSession {
            outbox: outbox.clone(),
            server: server.clone(),
            is_leaving: false,
        });
        drop(state);
        self.changes.add();
        Some(outbox)
    }

    /// Notes that the session is over. In a gap, the frames for the next session go on waiting.
    pub(super) fn down(&self) {
        let mut state = self.write();
        match &mut *state {
            UplinkState::Up(_) => *state = UplinkState::Down(Waiting::default()),
            UplinkState::Down(waiting) if matches!(waiting.gap, Gap::Parting(_)) => {
                waiting.gap = Gap::Open(None)
            }
            _ => {}
        }
        drop(state);
        self.changes.add();
    }

    /// Notes that the session is to be replaced: new requests wait for the next one.
    pub(super) fn leave(&self) {
        if let UplinkState::Up(up) = &mut *self.write() {
            up.is_leaving = true;
        }
    }

    /// True if new requests wait for the next session.
    #[cfg(test)]
    pub(super) fn defers_requests(&self) -> bool {
        match &*self.read() {
            UplinkState::Up(up) => up.is_leaving,
            UplinkState::Down(waiting) => !matches!(waiting.gap, Gap::No),
            UplinkState::Ended(_) => false,
        }
    }

    /// Begins a gap, because the session is to be replaced. Its outbox is closed, and the frames in
    /// it are still sent. Later frames wait for the next session.
    pub(super) fn part(&self) {
        let mut state = self.write();
        if let UplinkState::Up(up) = &*state {
            let outbox = up.outbox.clone();
            // Under the lock for writing, so that each frame is either in the outbox or waits.
            outbox.close();
            *state = UplinkState::Down(Waiting {
                gap: Gap::Parting(outbox),
                ..Waiting::default()
            });
        }
    }

    /// Sets the end of a gap, if the session that was replaced is over.
    pub(super) fn limit_gap(&self, at: Instant) {
        if let UplinkState::Down(Waiting {
            gap: Gap::Open(ends @ None),
            ..
        }) = &mut *self.write()
        {
            *ends = Some(at);
        }
    }

    /// The time at which [`give_up`](Self::give_up) is due.
    pub(super) fn gap_ends_at(&self) -> Option<Instant> {
        match &*self.read() {
            UplinkState::Down(Waiting {
                gap: Gap::Open(ends), ..
            }) => *ends,
            _ => None,
        }
    }

    /// Ends a gap that has lasted too long: from now on `Offline` decides about frames.
    /// With `Offline::Fail` the frames that waited are lost. Returns their number.
    pub(super) fn give_up(&self, now: Instant) -> u64 {
        if self.gap_ends_at().is_none_or(|at| at > now) {
            return 0;
        }
        let mut state = self.write();
        let UplinkState::Down(waiting) = &mut *state else {
            return 0;
        };
        waiting.gap = Gap::No;
        let mut lost = 0;
        if self.offline == Offline::Fail {
            lost = std::mem::take(waiting).frames.len() as u64;
        }
        drop(state);
        self.changes.add();
        lost
    }

    /// Ends the uplink for good. It accepts no more frames, but the frames in the outbox of a session
    /// are still sent. Returns `None` if the uplink had ended before.
    pub(super) fn end(&self, reason: ClientError) -> Option<UplinkEnd> {
        let mut state = self.write();
        let end = match &*state {
            UplinkState::Ended(_) => return None,
            UplinkState::Up(up) => {
                up.outbox.close();
                UplinkEnd {
                    connected: true,
                    lost: 0,
                }
            }
            UplinkState::Down(waiting) => UplinkEnd {
                connected: matches!(waiting.gap, Gap::Parting(_)),
                lost: waiting.frames.len() as u64,
            },
        };
        *state = UplinkState::Ended(reason);
        drop(state);
        self.changes.add();
        Some(end)
    }

    /// The reason why the uplink has ended. `None` if it has not.
    pub(super) fn ended(&self) -> Option<ClientError> {
        match &*self.read() {
            UplinkState::Ended(reason) => Some(reason.clone()),
            _ => None,
        }
    }

    /// The server of the present session. `None` if there is no session.
    pub(super) fn server(&self) -> Option<Arc<ServerInfo>> {
        match &*self.read() {
            UplinkState::Up(up) if !up.outbox.is_closed() => Some(up.server.clone()),
            _ => None,
        }
    }

    /// Waits until there is a session. Returns false if there is none at the deadline, and an error
    /// if the uplink has ended.
    pub(super) fn wait_up(&self, deadline: Option<Instant>) -> Result<bool, ClientError> {
        loop {
            let seen = self.changes.number();
            match &*self.read() {
                UplinkState::Up(up) if !up.outbox.is_closed() => return Ok(true),
                UplinkState::Ended(reason) => return Err(reason.clone()),
                _ => {}
            }
            if !self.changes.wait(seen, deadline) {
                return Ok(false);
            }
        }
    }

    /// Waits until no frame waits to be sent. Returns false if a frame still waits at the deadline,
    /// or if the uplink has ended.
    pub(super) fn flush(&self, deadline: Instant) -> bool {
        loop {
            let seen = self.changes.number();
            let outbox = match &*self.read() {
                UplinkState::Up(up) => Some(up.outbox.clone()),
                UplinkState::Down(waiting) => {
                    let is_sending =
                        matches!(&waiting.gap, Gap::Parting(outbox) if outbox.waiting().items > 0);
                    if waiting.frames.is_empty() && !is_sending {
                        return true;
                    }
                    None
                }
                UplinkState::Ended(_) => return false,
            };
            if now() >= deadline {
                return false;
            }
            if let Some(outbox) = outbox {
                if outbox.wait_until_empty(deadline) {
                    return true;
                }
                if !outbox.is_closed() {
                    return false;
                }
            }
            if !self.changes.wait(seen, Some(deadline)) {
                return false;
            }
        }
    }

    /// Encodes a frame: with its trace, stamped now, if the session has tracing, else without.
    fn item(&self, frame: &Frame, tracing: bool) -> Outgoing {
        if !tracing || frame.trace().is_none() {
            return outgoing(frame, false);
        }
        let mut stamped = frame.clone();
        if let Some(trace) = stamped.trace_mut() {
            trace.stamp_sent(self.uuid, self.role, nanoseconds(wall_clock()));
        }
        outgoing(&stamped, true)
    }

    fn read(&self) -> RwLockReadGuard<'_, UplinkState> {
        locked_again(self.state.read())
    }

    fn write(&self) -> RwLockWriteGuard<'_, UplinkState> {
        locked_again(self.state.write())
    }
}

/// Counts changes of the state, and wakes the threads that wait for one.
#[derive(Debug, Default)]
pub(super) struct Changes {
    number: Mutex<u64>,
    changed: Condvar,
}

impl Changes {
    pub(super) fn add(&self) {
        *locked(&self.number) += 1;
        self.changed.notify_all();
    }

    pub(super) fn number(&self) -> u64 {
        *locked(&self.number)
    }

    /// Waits until the number is no longer `seen`. Returns false if it still is at the deadline.
    pub(super) fn wait(&self, seen: u64, deadline: Option<Instant>) -> bool {
        let limit = deadline.map_or(Duration::MAX, remaining);
        let number = locked(&self.number);
        let waited = self
            .changed
            .wait_timeout_while(number, limit, |number| *number == seen);
        !locked_again(waited).1.timed_out()
    }
}
