//! The thread that feeds the view, and the state that it shares with the controller's handles: the
//! view, the orders that wait, and the subscribers.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use log::{info, warn};

use crate::change::Change;
use crate::error::CommandError;
use crate::failure::Failure;
use crate::goal::Goal;
use crate::orders::{Orders, Reply};
use crate::question::Questions;
use crate::stream::{StreamError, Streams};
use crate::subscribers::Subscribers;
use crate::view::View;
use ssntp::client::{ClientError, ClientEvent, ClientHandle, SendFault};
use ssntp::proto::{Event, Frame};
use ssntp_payload::NewLeader;
use ssntp_transport::{LogLimit, excerpt, locked, locked_again, nap, now, wall_clock};

/// The log target of this crate.
const LOG: &str = "ssntp::controller";
/// After SnapshotComplete, the time without news after which the view counts as complete although
/// some nodes have not sent STATS.
const QUIET: Duration = Duration::from_millis(300);
/// The time without news after which the snapshot of a scheduler that sends neither NewLeader nor
/// SnapshotComplete counts as complete.
const LONG_QUIET: Duration = Duration::from_secs(2);

/// The state that the controller's threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The streams have their own lock, because output of instances does not change the state.
    pub(crate) streams: Arc<Streams>,
    pub(crate) questions: Questions,
}

#[derive(Debug)]
struct State {
    view: View,
    orders: Orders,
    subscribers: Subscribers,
    /// The time of the last news: the beginning of the session, a new node, its first STATS, or
    /// the end of an instance.
    last_news: Instant,
    ended: Option<ClientError>,
    /// One key is enough, because all frames come from one scheduler.
    log: LogLimit<()>,
}

impl Shared {
    pub(crate) fn new(view: View) -> Self {
        Self {
            state: Mutex::new(State {
                view,
                orders: Orders::default(),
                subscribers: Subscribers::default(),
                last_news: now(),
                ended: None,
                log: LogLimit::default(),
            }),
            changed: Condvar::new(),
            streams: Arc::default(),
            questions: Questions::default(),
        }
    }

    /// Handles events until the client ends.
    pub(crate) fn feed(&self, events: &Receiver<ClientEvent>, client: &ClientHandle) {
        loop {
            let check_at = locked(&self.state).orders.next_deadline();
            let event = match check_at {
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                // A wait prefers an event, and there may always be one.
                Some(at) if at <= now() => Err(RecvTimeoutError::Timeout),
                Some(at) => events.recv_timeout(nap(at)),
            };
            match event {
                Ok(ClientEvent::Frame(frame)) if frame.kind().is_of_streams() => self.streams.frame(&frame),
                Ok(ClientEvent::Frame(frame)) => self.frame(&frame, wall_clock()),
                Ok(ClientEvent::Connected(server)) => self.online(server.to_string(), client.configuration()),
                Ok(ClientEvent::Disconnected { reason, .. }) => {
                    self.offline(reason.to_string(), wall_clock());
                }
                // `Closed` is handled below. There are no requests, because none are registered.
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => locked(&self.state).handle_deadline(now()),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let reason = client.ended().unwrap_or(ClientError::Closed);
        self.streams.end(&StreamError::Closed(reason.clone()));
        self.questions.end();
        info!(target: LOG, "{}: the controller ends: {reason}", client.uuid());
        self.update(|state| state.end(reason));
    }

    fn frame(&self, frame: &Frame, at: SystemTime) {
        // A new leader does not know the questions and streams of the previous one, and sends a new
        // snapshot. So this is handled like a new session.
        if frame.kind() == Event::NEW_LEADER && locked(&self.state).is_outdated() {
            let leader = frame.payload().unwrap_or_else(|_| NewLeader::default());
            let configuration = self.look(|view| view.configuration().cloned());
            self.offline("another scheduler leads".to_owned(), at);
            self.online(format!("scheduler {}", leader.server_uuid), configuration);
        }
        self.streams.refused(frame);
        self.questions.frame(frame);
        self.update(|state| {
            let changes = state.view.apply(frame, at);
            state.handle(changes);
        });
    }

    fn online(&self, scheduler: String, configuration: Option<Bytes>) {
        self.update(|state| {
            state.view.connected(configuration);
            state.last_news = now();
            state.orders.handle_session(now(), &state.view);
            state.handle(vec![Change::Online { scheduler }]);
        });
    }

    fn offline(&self, reason: String, at: SystemTime) {
        self.streams.end(&StreamError::Lost);
        self.questions.end();
        self.update(|state| {
            state.view.disconnected(at);
            state.handle(vec![Change::Offline { reason }]);
        });
    }

    /// Changes the state, and wakes the threads that wait for a change.
    fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut locked(&self.state));
        self.changed.notify_all();
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&View) -> T) -> T {
        look(&locked(&self.state).view)
    }

    pub(crate) fn subscribe(&self) -> Receiver<Change> {
        let mut state = locked(&self.state);
        let changes = state.subscribers.add();
        if let Some(reason) = state.ended.clone() {
            state.subscribers.end(&reason);
        }
        changes
    }

    /// Calls `look` after each change of the view until it returns `Ok`. Returns `None` at the
    /// deadline, or when the controller ends. The second argument of `look` is the time since the
    /// last news. If `look` returns an error, it is called again after the next change, or after the
    /// time in the error if there is no change until then.
    pub(crate) fn wait<T>(
        &self,
        deadline: Instant,
        mut look: impl FnMut(&View, Duration) -> Result<T, Duration>,
    ) -> Option<T> {
        let mut state = locked(&self.state);
        loop {
            let now = now();
            let quiet = now.saturating_duration_since(state.last_news);
            let again = match look(&state.view, quiet) {
                Ok(found) => return Some(found),
                Err(again) => again,
            };
            let remaining = deadline.saturating_duration_since(now);
            if remaining.is_zero() || state.ended.is_some() {
                return None;
            }
            let waited = self.changed.wait_timeout(state, remaining.min(again));
            state = locked_again(waited).0;
        }
    }

    /// Waits until the snapshot of the session is complete; false at the deadline.
    pub(crate) fn wait_complete(&self, deadline: Instant) -> bool {
        self.wait(deadline, complete).is_some()
    }

    /// Registers an order. Returns its id and the channel for its outcome.
    pub(crate) fn watch(&self, goal: Goal) -> Result<(u64, Receiver<Reply>), CommandError> {
        let mut state = locked(&self.state);
        if let Some(reason) = &state.ended {
            return Err(CommandError::Send(SendFault::Ended(reason.clone())));
        }
        let is_online = state.view.is_online();
        state.orders.watch(goal, is_online)
    }

    pub(crate) fn forget(&self, id: u64) {
        locked(&self.state).orders.forget(id);
    }
}

impl State {
    /// True if NewLeader begins a new view: a scheduler has led in this session, or the silence until now
    /// counted as the snapshot of an empty cluster.
    fn is_outdated(&self) -> bool {
        let quiet = now().saturating_duration_since(self.last_news);
        // Once a scheduler has said that none leads, no silence counts.
        let counted = self.view.leader().is_none() && complete(&self.view, quiet).is_ok();
        self.view.had_leader() || counted
    }

    fn handle_deadline(&mut self, now: Instant) {
        self.orders.handle_deadline(now, &self.view);
    }

    fn handle(&mut self, changes: Vec<Change>) {
        for change in changes {
            match &change {
                Change::NodeConnected { .. }
                | Change::NodeStats { first: true, .. }
                | Change::InstanceDeleted { .. }
                | Change::InstanceStopped { .. } => self.last_news = now(),
                Change::Failed(failure) => {
                    if let Some(more) = self.log.admit((), "failure", now()) {
                        warn!(target: LOG, "{}{more}", excerpt(named(&self.view, failure)));
                    }
                }
                _ => {}
            }
            // Orders settle first, so a subscriber that receives a change finds its order settled.
            self.orders.handle_change(&change, &self.view);
            self.subscribers.publish(&change);
        }
    }

    fn end(&mut self, reason: ClientError) {
        self.orders.end(&reason);
        self.subscribers.end(&reason);
        self.ended = Some(reason);
    }
}

/// The text of a failure, with names for the UUIDs of its instance and its node.
fn named(view: &View, failure: &Failure) -> String {
    let of = [&failure.subject.instance_uuid, &failure.subject.node_uuid].into_iter();
    of.filter_map(|id| id.uuid())
        .fold(failure.to_string(), |text, uuid| {
            let name = view.called(uuid).unwrap_or_else(|| view.beginning(uuid));
            text.replace(&uuid.to_string(), &name)
        })
}

/// `Ok` if the snapshot of the session is complete after this time without news. The error is the
/// time after which it is complete if there is no news until then.
fn complete(view: &View, quiet: Duration) -> Result<(), Duration> {
    if view.is_complete() {
        return Ok(());
    }
    let enough = if view.has_snapshot() {
        QUIET
    } else if !view.is_online() || view.leader().is_some() {
        // The beginning of the next session is a change, and so is SnapshotComplete. One of several
        // schedulers always sends it, but before there is a leader, none sends anything.
        return Err(Duration::MAX);
    } else {
        LONG_QUIET
    };
    match enough.saturating_sub(quiet) {
        Duration::ZERO => Ok(()),
        remaining => Err(remaining),
    }
}

#[cfg(test)]
mod tests;
