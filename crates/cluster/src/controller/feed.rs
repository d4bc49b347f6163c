//! The thread that feeds the view, and what it shares with the controller's handles: the
//! view itself, the orders that wait, and the subscribers.

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
use ssntp_transport::LogLimit;
use ssntp_transport::excerpt;

/// The most orders that may wait at a time: several STARTs for each node of the largest
/// cluster that one scheduler serves.
const MOST_ORDERS: usize = 65_536;
/// The most changes that may wait for a subscriber: one STATS of a node with some thousand
/// instances can cause as many.
const MOST_CHANGES: usize = 16_384;
/// How long after the last news nodes are waited for that have connected and not sent STATS.
const QUIET: Duration = Duration::from_millis(300);
/// After this long without news, a scheduler that sends no SnapshotComplete counts as having
/// told everything.
const LONG_QUIET: Duration = Duration::from_secs(2);

/// How long after the end of its session a START that no node shows is lost. The new
/// session may be with the same scheduler, which holds a START for a minute; then a node
/// lists it soon. Later sessions do not extend the time: otherwise a scheduler that is
/// restarted again and again would put the answer off for ever.
const LOST: Duration = Duration::from_secs(90);
/// The pause before another look at a START that could not be judged at that time.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

type Reply = Result<Shown, OrderError>;

/// The state that the controller's threads share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The streams have their own lock, because output of instances changes nothing else.
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
    /// When STARTs of former sessions are looked for: the earliest `look_at` of the orders.
    look_at: Option<Instant>,
    /// When the session began, or the latest node was heard for the first time in it.
    news: Instant,
    ended: Option<ClientError>,
    /// One key is enough, because all frames come from one scheduler.
    log: LogLimit<()>,
}

#[derive(Debug)]
struct Pending {
    id: u64,
    /// The number of the session in which it was sent.
    session: u64,
    /// Only for a START whose session is over: when it is lost if no node shows it.
    look_at: Option<Instant>,
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
                look_at: None,
                news: now(),
                ended: None,
                log: LogLimit::default(),
            }),
            changed: Condvar::new(),
            streams: Arc::default(),
            questions: Arc::default(),
        }
    }

    /// Takes in events until the client ends.
    pub(super) fn feed(&self, events: &Receiver<ClientEvent>, client: &ClientHandle) {
        loop {
            let look_at = self.lock().look_at;
            let event = match look_at {
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => events.recv_deadline(at),
            };
            match event {
                Ok(ClientEvent::Frame(frame)) if frame.kind().is_of_streams() => self.streams.frame(&frame),
                Ok(ClientEvent::Frame(frame)) => self.frame(&frame, wall_clock()),
                Ok(ClientEvent::Connected(server)) => self.online(server.to_string(), client.configuration()),
                Ok(ClientEvent::Disconnected { reason, .. }) => {
                    self.offline(reason.to_string(), wall_clock());
                }
                // `Closed` is handled below. No requests come, because none are registered.
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => self.lock().look_for_starts(now()),
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
        // It knows nothing of what the one before was asked, and tells all that it knows.
        if frame.kind() == Event::NEW_LEADER {
            let leader = frame.payload().unwrap_or_else(|_| NewLeader::default());
            let configuration = self.look(|view| view.configuration().cloned());
            self.offline("another scheduler leads".to_owned(), at);
            return self.online(format!("scheduler {}", leader.server_uuid), configuration);
        }
        self.streams.refused(frame);
        self.questions.frame(frame);
        self.update(|state| {
            let changes = state.view.apply(frame, at);
            state.take(changes);
        });
    }

    fn online(&self, scheduler: String, configuration: Option<Bytes>) {
        self.update(|state| {
            state.view.connected(configuration);
            state.news = now();
            // Before `await_starts`: the STARTs of all sessions before this one are to be
            // looked for.
            state.session += 1;
            state.await_starts(now());
            let State { view, orders, .. } = state;
            // CONNECTED carries the configuration, so it shows what became of a CONFIGURE whose
            // session was lost.
            let is_configure = |order: &&Pending| order.goal.command == Command::CONFIGURE;
            settle(orders, |order| {
                let order = Some(order).filter(is_configure)?;
                order.goal.reached(view).map(Ok)
            });
            state.take(vec![Change::Online { scheduler }]);
        });
    }

    fn offline(&self, reason: String, at: SystemTime) {
        self.streams.end(&StreamError::Lost);
        self.questions.end();
        self.update(|state| {
            let mut changes = state.view.disconnected(at);
            changes.push(Change::Offline { reason });
            state.take(changes);
        });
    }

    /// Changes the state, and wakes the threads that wait for that.
    fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    pub(super) fn look<T>(&self, look: impl FnOnce(&View) -> T) -> T {
        look(&self.lock().view)
    }

    pub(super) fn subscribe(&self) -> Receiver<Change> {
        let (changes, receiver) = bounded(MOST_CHANGES);
        let mut state = self.lock();
        let mut subscriber = Subscriber { changes, missed: 0 };
        match &state.ended {
            Some(reason) => drop(subscriber.tell(Change::Ended {
                reason: reason.to_string(),
            })),
            None => state.subscribers.push(subscriber),
        }
        receiver
    }

    /// Waits until `look` finds something in the view; gives `None` at the deadline, or when
    /// the controller ends. `look` is given how long nothing new has come, and its error is
    /// when to look again even if nothing has changed.
    pub(super) fn wait<T>(
        &self,
        deadline: Instant,
        mut look: impl FnMut(&View, Duration) -> Result<T, Duration>,
    ) -> Option<T> {
        let mut state = self.lock();
        loop {
            let now = now();
            let quiet = now.saturating_duration_since(state.news);
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

    /// Waits until the scheduler has told a new session all that it knows.
    pub(super) fn wait_complete(&self, deadline: Instant) -> bool {
        let complete = |view: &View, quiet: Duration| {
            let enough = match view.is_told() {
                true => QUIET,
                false => LONG_QUIET,
            };
            if view.is_complete() || (view.is_online() && quiet >= enough) {
                return Ok(());
            }
            Err(enough.saturating_sub(quiet).max(Duration::from_millis(1)))
        };
        self.wait(deadline, complete).is_some()
    }

    /// Watches for the outcome of a command.
    pub(super) fn watch(&self, goal: Goal) -> Result<(u64, Receiver<Reply>), CommandError> {
        let (reply, settled) = bounded(1);
        let mut state = self.lock();
        if let Some(reason) = &state.ended {
            return Err(CommandError::Send(SendFault::Ended(reason.clone())));
        }
        // Each change visits every order, so their number bounds the time of a change, too.
        if state.orders.len() >= MOST_ORDERS {
            return Err(CommandError::TooManyOrders(MOST_ORDERS));
        }
        let id = state.next_order;
        state.next_order += 1;
        // A client without a session may queue the frame, and send it in the next session.
        let session = state.session + u64::from(!state.view.is_online());
        state.orders.push(Pending {
            id,
            session,
            look_at: None,
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
    /// Sets the time at which STARTs of former sessions are looked for.
    fn await_starts(&mut self, now: Instant) {
        for order in &mut self.orders {
            if order.session < self.session && order.goal.command == Command::START {
                order.look_at.get_or_insert(now + LOST);
            }
        }
        self.look_at = self.orders.iter().filter_map(|order| order.look_at).min();
    }

    /// Settles STARTs that were lost with their session: no node has shown them since.
    fn look_for_starts(&mut self, now: Instant) {
        let Self { view, orders, .. } = self;
        let is_due = |order: &Pending| order.look_at.is_some_and(|at| at <= now);
        settle(orders, |order| {
            let is_lost = is_due(order) && view.is_online() && order.goal.is_lost(view);
            is_lost.then(|| Err(OrderError::Lost(order.goal.command)))
        });
        for order in orders.iter_mut().filter(|order| is_due(order)) {
            order.look_at = Some(now + LOOK_AGAIN);
        }
        self.await_starts(now);
    }

    fn take(&mut self, changes: Vec<Change>) {
        for change in changes {
            match &change {
                Change::NodeConnected { .. }
                | Change::NodeStats { first: true, .. }
                | Change::InstanceDeleted { .. }
                | Change::InstanceStopped { .. } => self.news = now(),
                Change::Failed(failure) => self.fail(failure),
                _ => {}
            }
            let Self { view, orders, .. } = self;
            // Orders settle first, so a subscriber that hears of a change finds its order
            // settled.
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
        // A refused configuration has no id. Of equal ones the scheduler refuses the oldest first.
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
        // InvalidFrameType names no command: the best fit, and among equals the latest.
        let refused = |order: &Pending| Some((order.goal.refused(failure, view)?, order.id));
        if let Some((_, id)) = orders.iter().filter_map(refused).max() {
            settle(orders, |order| {
                (order.id == id).then(|| failed(order.goal.named(failure.clone())))
            });
        }
    }

    fn publish(&mut self, change: &Change) {
        self.subscribers
            .retain_mut(|subscriber| subscriber.tell(change.clone()));
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

/// Settles the orders that have a reply, which are then no longer watched.
fn settle(orders: &mut Vec<Pending>, reply: impl Fn(&Pending) -> Option<Reply>) {
    orders.retain(|order| {
        let reply = reply(order);
        let stays = reply.is_none();
        if let Some(reply) = reply {
            // The channel has room for the only reply. If the order was dropped, its reply
            // is of no use.
            let _ = order.reply.try_send(reply);
        }
        stays
    });
}

impl Subscriber {
    /// Sends a change without waiting; false once the receiver is gone.
    fn tell(&mut self, change: Change) -> bool {
        // `Missed` goes first, so that a subscriber learns where its gap is.
        let untold = match self.missed {
            0 => None,
            count => self.changes.try_send(Change::Missed { count }).err(),
        };
        let unsent = untold.or_else(|| {
            self.missed = 0;
            self.changes.try_send(change).err()
        });
        self.missed += u64::from(unsent.as_ref().is_some_and(TrySendError::is_full));
        !unsent.is_some_and(|e| e.is_disconnected())
    }
}

#[cfg(test)]
mod tests;

#[expect(clippy::disallowed_methods, reason = "time limits of waits")]
pub(super) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "the view says when it saw something")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
