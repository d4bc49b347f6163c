//! Where a frame to be sent goes at this moment.
//!
//! ```text
//!           up(): what waits goes into the session's outbox first
//!  ┌──────┐ ────────────────────────────────────▶ ┌────┐
//!  │ Down │                                       │ Up │
//!  └──┬───┘ ◀──────────────────────────────────── └─┬──┘
//!     │      down(), or a sender that finds          │
//!     │      the outbox closed                       │
//!     └───────────────▶ Ended(reason) ◀──────────────┘   for good
//! ```
//!
//! Where a session is replaced by another one as planned, `part()` leads from Up
//! to Down as well. Until the next session stands there is a *gap*: frames wait for
//! that session even with `Offline::Fail`, which refuses frames at any other time
//! without a session. `give_up()` ends a gap that lasts too long.
//!
//! Senders take the lock for reading, for one push, so that several threads
//! send side by side. A change of state takes it for writing: while what waited
//! moves into the outbox of a new session nobody sends, so a later frame of a
//! thread cannot overtake an earlier one. Threads that wait for such a change
//! sleep in `Changes`.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::handle::now;
use super::{ClientError, Offline, SendFault, ServerInfo};
use crate::proto::Frame;
use crate::wire::{outgoing, unix_nanos};
use ssntp_transport::Role;
use ssntp_transport::{Limits, Load, Outbox, Outgoing, PushError};

#[derive(Debug)]
pub(super) struct Uplink {
    uuid: Uuid,
    role: Role,
    offline: Offline,
    queue: Limits,
    state: RwLock<State>,
    changes: Changes,
}

#[derive(Debug)]
enum State {
    Down(Waiting),
    Up(Up),
    Ended(ClientError),
}

/// Frames that wait for a session. They are not encoded yet, because whether
/// it takes their traces is not known yet.
#[derive(Debug, Default)]
struct Waiting {
    frames: VecDeque<Frame>,
    bytes: u64,
    /// In a gap, the outbox of the session that is being replaced. It may still be
    /// sending. None if this is no gap.
    gap: Option<Outbox>,
}

#[derive(Debug)]
struct Up {
    outbox: Outbox,
    server: ServerInfo,
}

/// Why a frame was not taken.
pub(super) enum Obstacle {
    /// The frame cannot be sent, and waiting would not help.
    Fault(SendFault),
    /// The session's outbox is full.
    Session(Outbox),
    /// No session stands, and the queue for the next one is full. `rung` is how often
    /// `Changes` had rung when that was seen, so that a wait which begins later
    /// misses no change.
    QueueFull { rung: u64 },
}

/// The state of an uplink when it was ended.
pub(super) struct UplinkEnd {
    /// Whether a session stood, or still sent its last frames in a gap.
    pub(super) connected: bool,
    /// How many frames waited for the next session. They are lost.
    pub(super) lost: u64,
}

impl Uplink {
    pub(super) fn new(uuid: Uuid, role: Role, offline: Offline, queue: Limits) -> Self {
        Self {
            uuid,
            role,
            offline,
            queue,
            state: RwLock::new(State::Down(Waiting::default())),
            changes: Changes::default(),
        }
    }

    /// Puts a frame into the session's outbox, or into the queue for the next session
    /// (see [`Offline`]). Never waits: the error says what is in the way.
    pub(super) fn offer(&self, frame: &Frame) -> Result<(), Obstacle> {
        match self.offline {
            Offline::Queue(limits) => self.take(frame, Some(limits)),
            Offline::Fail => self.take(frame, None),
        }
    }

    /// As [`offer`](Self::offer), but if no session stands, the frame is only taken in a
    /// gap. Otherwise it is refused, whatever `Offline` says.
    pub(super) fn offer_to_session(&self, frame: &Frame) -> Result<(), Obstacle> {
        // A request is not worth a wait for a session that may come much later: its asker waits
        // meanwhile.
        self.take(frame, None)
    }

    /// While no session stands, a frame waits within the limits in `offline`. If there are
    /// none, a gap has the limits of a session's outbox, and at any other time the frame is
    /// refused.
    fn take(&self, frame: &Frame, offline: Option<Limits>) -> Result<(), Obstacle> {
        // The common case takes the lock for reading, so that many threads send at the same time.
        if let State::Up(up) = &*self.read()
            && let Some(result) = self.push(up, frame)
        {
            return result;
        }
        let mut state = self.write();
        // The supervisor learns later than the link that a session is over.
        state.see_closed_outbox();
        match &mut *state {
            State::Down(waiting) => {
                let Some(limits) = offline.or(waiting.gap.as_ref().map(|_| self.queue)) else {
                    return Err(Obstacle::Fault(SendFault::NotConnected));
                };
                let len = frame.encoded_len() as u64;
                let frames = waiting.frames.len() as u64;
                let fits = frames < limits.frames && waiting.bytes + len <= limits.bytes;
                // One frame fits in any case, as in an outbox: else one that is
                // longer than the limit could never be sent.
                if !fits && frames > 0 {
                    return Err(Obstacle::QueueFull {
                        rung: self.changes.rung(),
                    });
                }
                waiting.bytes += len;
                waiting.frames.push_back(frame.clone());
                Ok(())
            }
            // A session began after the first look at the state. If it is over already, a
            // wait for its outbox ends at once, and the frame is offered again.
            State::Up(up) => {
                let over = || Err(Obstacle::Session(up.outbox.clone()));
                self.push(up, frame).unwrap_or_else(over)
            }
            State::Ended(reason) => Err(Obstacle::Fault(SendFault::Ended(reason.clone()))),
        }
    }

    /// `None` if the session is over, which the supervisor may not have seen yet.
    fn push(&self, up: &Up, frame: &Frame) -> Option<Result<(), Obstacle>> {
        match up.outbox.push(self.item(frame, up.server.tracing())) {
            Ok(()) => Some(Ok(())),
            Err(PushError::Full(_)) => Some(Err(Obstacle::Session(up.outbox.clone()))),
            Err(PushError::Closed(_)) => None,
        }
    }

    /// Waits until an obstacle may be gone. Returns false if it is still there at the
    /// deadline, or will never go.
    pub(super) fn wait(&self, obstacle: Obstacle, len: usize, deadline: Option<Instant>) -> bool {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(now()));
        if left.is_some_and(|left| left.is_zero()) {
            return false;
        }
        match obstacle {
            Obstacle::Fault(_) => false,
            // True as well when the session is over: the frame is then offered
            // again, to the next session or the queue.
            Obstacle::Session(outbox) => outbox.wait_for_room(len, left) || outbox.is_closed(),
            Obstacle::QueueFull { rung } => self.changes.wait(rung, left),
        }
    }

    /// How much waits now, in the session's outbox or in the queue for the next session.
    /// In a gap, what the old session still sends is not included.
    pub(super) fn waiting(&self) -> Load {
        match &*self.read() {
            State::Up(up) => up.outbox.waiting(),
            State::Down(waiting) => Load {
                frames: waiting.frames.len() as u64,
                bytes: waiting.bytes,
                ..Load::default()
            },
            State::Ended(_) => Load::default(),
        }
    }

    /// Begins a session: makes its outbox, moves the frames that waited for it there, and
    /// returns the outbox. Returns `None` unless the state was Down, as after the end of
    /// the client.
    pub(super) fn up(&self, server: &ServerInfo) -> Option<Outbox> {
        let mut state = self.write();
        let State::Down(waiting) = &mut *state else {
            return None;
        };
        let frames = std::mem::take(waiting).frames;
        let items: Vec<Outgoing> = frames.iter().map(|f| self.item(f, server.tracing())).collect();
        // What was taken while no session stood is sent in any case, so the
        // outbox has room for all of it even where its own limit is lower.
        let outbox = Outbox::new(Limits {
            frames: self.queue.frames.max(items.len() as u64),
            bytes: self
                .queue
                .bytes
                .max(items.iter().map(|item| item.load().memory()).sum()),
        });
        for item in items {
            let taken = outbox.push(item);
            debug_assert!(taken.is_ok(), "it was made large enough");
        }
        // Only now, so that no frame of another thread overtakes those that have waited.
        *state = State::Up(Up {
            outbox: outbox.clone(),
            server: server.clone(),
        });
        drop(state);
        self.changes.ring();
        Some(outbox)
    }

    /// Notes that the session is over. In a gap this changes nothing: the frames for the
    /// next session go on waiting.
    pub(super) fn down(&self) {
        let mut state = self.write();
        if let State::Up(_) = *state {
            *state = State::Down(Waiting::default());
        }
        drop(state);
        self.changes.ring();
    }

    /// Begins a gap, because the session is to be replaced. Its outbox is closed, but sends
    /// what waits there. Later frames wait for the next session.
    pub(super) fn part(&self) {
        let mut state = self.write();
        if let State::Up(up) = &*state {
            let outbox = up.outbox.clone();
            // Under the lock for writing, so nothing is between the last frame
            // in the outbox and the first that waits.
            outbox.close();
            *state = State::Down(Waiting {
                gap: Some(outbox),
                ..Waiting::default()
            });
        }
    }

    /// Ends a gap that has lasted too long: from now on `Offline` decides about frames.
    /// With `Offline::Fail` the frames that waited are lost. Returns how many those are.
    pub(super) fn give_up(&self) -> u64 {
        let mut state = self.write();
        let State::Down(waiting) = &mut *state else {
            return 0;
        };
        let mut lost = 0;
        if waiting.gap.take().is_some() && self.offline == Offline::Fail {
            lost = std::mem::take(waiting).frames.len() as u64;
        }
        drop(state);
        self.changes.ring();
        lost
    }

    /// Ends the uplink for good. It takes no more frames, but the outbox of a session
    /// still sends what waits there. Returns `None` if the uplink had ended before.
    pub(super) fn end(&self, reason: ClientError) -> Option<UplinkEnd> {
        let mut state = self.write();
        let end = match &*state {
            State::Ended(_) => return None,
            State::Up(up) => {
                up.outbox.close();
                UplinkEnd {
                    connected: true,
                    lost: 0,
                }
            }
            State::Down(waiting) => UplinkEnd {
                connected: waiting.gap.as_ref().is_some_and(|outbox| !outbox.is_over()),
                lost: waiting.frames.len() as u64,
            },
        };
        *state = State::Ended(reason);
        drop(state);
        self.changes.ring();
        Some(end)
    }

    /// Why the uplink has ended. `None` if it has not.
    pub(super) fn ended(&self) -> Option<ClientError> {
        match &*self.read() {
            State::Ended(reason) => Some(reason.clone()),
            _ => None,
        }
    }

    /// The server of the session that stands. `None` if no session stands.
    pub(super) fn server(&self) -> Option<ServerInfo> {
        match &*self.read() {
            State::Up(up) if !up.outbox.is_closed() => Some(up.server.clone()),
            _ => None,
        }
    }

    /// Waits until a session stands. Returns false if none does at the deadline, and an
    /// error if the uplink has ended.
    pub(super) fn wait_up(&self, deadline: Option<Instant>) -> Result<bool, ClientError> {
        loop {
            let rung = self.changes.rung();
            match &*self.read() {
                State::Up(up) if !up.outbox.is_closed() => return Ok(true),
                State::Ended(reason) => return Err(reason.clone()),
                _ => {}
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now()));
            if !self.changes.wait(rung, left) {
                return Ok(false);
            }
        }
    }

    /// How many changes of the state there have been, for
    /// [`wait_for_change`](Self::wait_for_change).
    pub(super) fn rung(&self) -> u64 {
        self.changes.rung()
    }

    /// Waits until there have been more changes than `rung`. Returns false if there is no
    /// further one before the deadline.
    pub(super) fn wait_for_change(&self, rung: u64, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(now());
        self.changes.wait(rung, Some(left))
    }

    /// Waits until no frame waits to be sent. Returns false if some still wait at the
    /// deadline, or if the uplink has ended.
    pub(super) fn flush(&self, deadline: Instant) -> bool {
        loop {
            let rung = self.changes.rung();
            let outbox = match &*self.read() {
                State::Up(up) => Some(up.outbox.clone()),
                State::Down(waiting) => {
                    let is_parting = |outbox: &Outbox| outbox.waiting().items > 0;
                    if waiting.frames.is_empty() && !waiting.gap.as_ref().is_some_and(is_parting) {
                        return true;
                    }
                    None
                }
                State::Ended(_) => return false,
            };
            let left = deadline.saturating_duration_since(now());
            if left.is_zero() {
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
            let left = deadline.saturating_duration_since(now());
            if !self.changes.wait(rung, Some(left)) {
                return false;
            }
        }
    }

    /// A frame as it leaves: with its trace stamped, or without.
    fn item(&self, frame: &Frame, tracing: bool) -> Outgoing {
        if !tracing || frame.trace().is_none() {
            return outgoing(frame, false);
        }
        let mut stamped = frame.clone();
        if let Some(trace) = stamped.trace_mut() {
            trace.stamp_sent(self.uuid, self.role, unix_nanos());
        }
        outgoing(&stamped, true)
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Treats a session whose outbox is closed as over, before the supervisor
    /// comes to say so.
    fn see_closed_outbox(&mut self) {
        if matches!(self, Self::Up(up) if up.outbox.is_closed()) {
            *self = Self::Down(Waiting::default());
        }
    }
}

/// Wakes the threads that wait for a change.
#[derive(Debug, Default)]
struct Changes {
    rung: Mutex<u64>,
    changed: Condvar,
}

impl Changes {
    fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    fn rung(&self) -> u64 {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it has rung since `heard` was read; false when it has not
    /// within the limit.
    fn wait(&self, heard: u64, limit: Option<Duration>) -> bool {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        match limit {
            None => {
                let waited = self.changed.wait_while(rung, |rung| *rung == heard);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                true
            }
            Some(limit) => {
                let waited = self
                    .changed
                    .wait_timeout_while(rung, limit, |rung| *rung == heard);
                !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
            }
        }
    }
}
