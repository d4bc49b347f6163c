//! The thread that feeds the view, and the state that it shares with the controller's handles: the
//! view, the orders that wait, and the subscribers.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use log::{info, warn};

use super::goal::Goal;
use super::order::{CommandError, OrderError};
use super::question::Questions;
use super::stream::{StreamError, Streams};
use super::{Change, Failure, LOG, Shown, View};
use ssntp::client::{ClientError, ClientEvent, ClientHandle, SendFault};
use ssntp::payload::NewLeader;
use ssntp::proto::{Command, Event, Frame};
use ssntp_cluster::clock::{now, wall_clock};
use ssntp_transport::LogLimit;
use ssntp_transport::excerpt;

/// The maximum number of orders that may wait at a time: several STARTs for each node of the largest
/// cluster that one scheduler serves.
const MAX_ORDERS: usize = 65_536;
/// The maximum number of changes that may wait for a subscriber: one STATS of a node with some thousand
/// instances can cause as many.
const MAX_CHANGES: usize = 16_384;
/// After SnapshotComplete, the time without news after which the view counts as complete although
/// some nodes have not sent STATS.
const QUIET: Duration = Duration::from_millis(300);
/// The time without news after which the snapshot of a scheduler that sends neither NewLeader nor
/// SnapshotComplete counts as complete.
const LONG_QUIET: Duration = Duration::from_secs(2);

/// The time from the beginning of a new session until a START of a former session is lost if no
/// node shows it. The new session may be with the same scheduler, which holds a START for a minute;
/// then a node lists the instance soon. Later sessions do not extend the time. Otherwise a
/// scheduler that restarts repeatedly would delay the answer without limit.
const LOST: Duration = Duration::from_secs(90);
/// The pause until the next check of a START that could not be judged, because there was no session.
const RECHECK: Duration = Duration::from_secs(10);

type Reply = Result<Shown, OrderError>;

/// The state that the controller's threads share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The streams have their own lock, because output of instances does not change the state.
    pub(super) streams: Arc<Streams>,
    pub(super) questions: Arc<Questions>,
}

#[derive(Debug)]
struct State {
    view: View,
    orders: Vec<Pending>,
    next_order: u64,
    subscribers: Vec<Subscriber>,
    /// The number of sessions so far.
    session: u64,
    /// The earliest `check_at` of the orders.
    check_at: Option<Instant>,
    /// The time of the last news: the beginning of the session, a new node, its first STATS, or
    /// the end of an instance.
    last_news: Instant,
    ended: Option<ClientError>,
    /// One key is enough, because all frames come from one scheduler.
    log: LogLimit<()>,
}

#[derive(Debug)]
struct Pending {
    id: u64,
    /// The number of the session in which the command was sent.
    session: u64,
    /// For a START of a former session, the time at which it is lost if no node shows it.
    check_at: Option<Instant>,
    goal: Goal,
    reply: Sender<Reply>,
}

#[derive(Debug)]
struct Subscriber {
    changes: Sender<Change>,
    missed: u64,
}

impl Shared {
    pub(super) fn new(view: View) -> Self {
        Self {
            state: Mutex::new(State {
                view,
                orders: Vec::new(),
                next_order: 0,
                subscribers: Vec::new(),
                session: 0,
                check_at: None,
                last_news: now(),
                ended: None,
                log: LogLimit::default(),
            }),
            changed: Condvar::new(),
            streams: Arc::default(),
            questions: Arc::default(),
        }
    }

    /// Handles events until the client ends.
    pub(super) fn feed(&self, events: &Receiver<ClientEvent>, client: &ClientHandle) {
        loop {
            let check_at = self.lock().check_at;
            let event = match check_at {
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                // `recv_deadline` prefers an event, and there may always be one.
                Some(at) if at <= now() => Err(RecvTimeoutError::Timeout),
                Some(at) => events.recv_deadline(at),
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
                Err(RecvTimeoutError::Timeout) => self.lock().settle_lost_starts(now()),
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
        if frame.kind() == Event::NEW_LEADER && self.lock().is_outdated() {
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
            // Counted before `schedule_checks`, which compares the orders' sessions with it.
            state.session += 1;
            state.schedule_checks(now());
            let State { view, orders, .. } = state;
            // CONNECTED carries the configuration, so it shows the outcome of a CONFIGURE whose
            // session was lost.
            let is_configure = |order: &&Pending| order.goal.command == Command::CONFIGURE;
            settle(orders, |order| {
                let order = Some(order).filter(is_configure)?;
                order.goal.reached(view).map(Ok)
            });
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
        change(&mut self.lock());
        self.changed.notify_all();
    }

    pub(super) fn look<T>(&self, look: impl FnOnce(&View) -> T) -> T {
        look(&self.lock().view)
    }

    pub(super) fn subscribe(&self) -> Receiver<Change> {
        let (changes, receiver) = bounded(MAX_CHANGES);
        let mut state = self.lock();
        let mut subscriber = Subscriber { changes, missed: 0 };
        match &state.ended {
            Some(reason) => drop(subscriber.send(Change::Ended {
                reason: reason.to_string(),
            })),
            None => state.subscribers.push(subscriber),
        }
        receiver
    }

    /// Calls `look` after each change of the view until it returns `Ok`. Returns `None` at the
    /// deadline, or when the controller ends. The second argument of `look` is the time since the
    /// last news. If `look` returns an error, it is called again after the next change, or after the
    /// time in the error if there is no change until then.
    pub(super) fn wait<T>(
        &self,
        deadline: Instant,
        mut look: impl FnMut(&View, Duration) -> Result<T, Duration>,
    ) -> Option<T> {
        let mut state = self.lock();
        loop {
            let now = now();
            let quiet = now.saturating_duration_since(state.last_news);
            let again = match look(&state.view, quiet) {
                Ok(found) => return Some(found),
                Err(again) => again,
            };
            let left = deadline.saturating_duration_since(now);
            if left.is_zero() || state.ended.is_some() {
                return None;
            }
            let waited = self.changed.wait_timeout(state, left.min(again));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the snapshot of the session is complete; false at the deadline.
    pub(super) fn wait_complete(&self, deadline: Instant) -> bool {
        self.wait(deadline, complete).is_some()
    }

    /// Registers an order. Returns its id and the channel for its outcome.
    pub(super) fn watch(&self, goal: Goal) -> Result<(u64, Receiver<Reply>), CommandError> {
        let (reply, settled) = bounded(1);
        let mut state = self.lock();
        if let Some(reason) = &state.ended {
            return Err(CommandError::Send(SendFault::Ended(reason.clone())));
        }
        // Each change visits every order, so their number bounds the time of a change, too.
        if state.orders.len() >= MAX_ORDERS {
            return Err(CommandError::TooManyOrders(MAX_ORDERS));
        }
        let id = state.next_order;
        state.next_order += 1;
        // A client without a session may queue the frame and send it in the next session.
        let session = state.session + u64::from(!state.view.is_online());
        state.orders.push(Pending {
            id,
            session,
            check_at: None,
            goal,
            reply,
        });
        Ok((id, settled))
    }

    pub(super) fn forget(&self, id: u64) {
        self.lock().orders.retain(|order| order.id != id);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Schedules the checks of STARTs of former sessions.
    fn schedule_checks(&mut self, now: Instant) {
        for order in &mut self.orders {
            if order.session < self.session && order.goal.command == Command::START {
                order.check_at.get_or_insert(now + LOST);
            }
        }
        self.check_at = self.orders.iter().filter_map(|order| order.check_at).min();
    }

    /// Settles the STARTs that were lost with their session and that no node has shown since.
    fn settle_lost_starts(&mut self, now: Instant) {
        let Self { view, orders, .. } = self;
        let is_due = |order: &Pending| order.check_at.is_some_and(|at| at <= now);
        settle(orders, |order| {
            let is_lost = is_due(order) && view.is_online() && order.goal.is_lost(view);
            is_lost.then(|| Err(OrderError::Lost(order.goal.command)))
        });
        for order in orders.iter_mut().filter(|order| is_due(order)) {
            order.check_at = Some(now + RECHECK);
        }
        self.schedule_checks(now);
    }

    fn handle(&mut self, changes: Vec<Change>) {
        for change in changes {
            match &change {
                Change::NodeConnected { .. }
                | Change::NodeStats { first: true, .. }
                | Change::InstanceDeleted { .. }
                | Change::InstanceStopped { .. } => self.last_news = now(),
                Change::Failed(failure) => self.fail(failure),
                _ => {}
            }
            let Self { view, orders, .. } = self;
            // Orders settle first, so a subscriber that receives a change finds its order settled.
            settle(orders, |order| order.goal.shown(&change, view).map(Ok));
            self.publish(&change);
        }
    }

    fn fail(&mut self, failure: &Failure) {
        if let Some(more) = self.log.admit((), "failure", now()) {
            warn!(target: LOG, "{}{more}", excerpt(failure));
        }
        let Self { view, orders, .. } = self;
        let failed = |failure| Err(OrderError::Failed(Box::new(failure)));
        // A refused configuration has no id. Of equal configurations, the oldest is refused first.
        let oldest = orders
            .iter()
            .find(|order| order.goal.failed(failure))
            .map(|order| order.id);
        let is_of_any = failure.command != Command::CONFIGURE;
        settle(orders, |order| {
            let fits = (is_of_any || Some(order.id) == oldest) && order.goal.failed(failure);
            let shown = fits.then(|| order.goal.is_met_by(failure, view))?;
            Some(shown.map_or_else(|| failed(failure.clone()), Ok))
        });
        // InvalidFrameType names no command. It settles the latest order with the refused kind of
        // command. With the reason `not_connected`, orders whose node is connected come last.
        let refused = |order: &Pending| Some((order.goal.refused(failure, view)?, order.id));
        if let Some((_, id)) = orders.iter().filter_map(refused).max() {
            settle(orders, |order| {
                (order.id == id).then(|| failed(order.goal.named(failure.clone())))
            });
        }
    }

    fn publish(&mut self, change: &Change) {
        self.subscribers
            .retain_mut(|subscriber| subscriber.send(change.clone()));
    }

    fn end(&mut self, reason: ClientError) {
        settle(&mut self.orders, |_| Some(Err(OrderError::Ended(reason.clone()))));
        self.publish(&Change::Ended {
            reason: reason.to_string(),
        });
        self.subscribers.clear();
        self.ended = Some(reason);
    }
}

/// `Ok` if the snapshot of the session is complete after this time without news. The error is the
/// time after which it is complete if there is no news until then.
fn complete(view: &View, quiet: Duration) -> Result<(), Duration> {
    if view.is_complete() {
        return Ok(());
    }
    let enough = match view.has_snapshot() {
        true => QUIET,
        // The beginning of the next session is a change, and so is SnapshotComplete. One of several
        // schedulers always sends it, but before there is a leader, none sends anything.
        false if !view.is_online() || view.leader().is_some() => return Err(Duration::MAX),
        false => LONG_QUIET,
    };
    match enough.saturating_sub(quiet) {
        Duration::ZERO => Ok(()),
        left => Err(left),
    }
}

/// Settles and removes the orders for which `reply` returns a reply.
fn settle(orders: &mut Vec<Pending>, reply: impl Fn(&Pending) -> Option<Reply>) {
    orders.retain(|order| {
        let Some(reply) = reply(order) else {
            return true;
        };
        // The channel has room for the only reply. If the order was dropped, the reply is dropped.
        let _ = order.reply.try_send(reply);
        false
    });
}

impl Subscriber {
    /// Sends a change without waiting; false once the receiver is gone.
    fn send(&mut self, change: Change) -> bool {
        // `Missed` is sent first, at the position of the gap.
        let unsent = match self.missed {
            0 => None,
            count => self.changes.try_send(Change::Missed { count }).err(),
        };
        let unsent = unsent.or_else(|| {
            self.missed = 0;
            self.changes.try_send(change).err()
        });
        self.missed += u64::from(unsent.as_ref().is_some_and(TrySendError::is_full));
        !unsent.is_some_and(|e| e.is_disconnected())
    }
}

#[cfg(test)]
mod tests;
