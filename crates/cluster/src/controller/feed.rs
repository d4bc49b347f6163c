//! The thread that feeds the view, and everything it feeds: the orders that
//! wait, the subscribers, whoever waits for the view to change.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use log::{info, warn};

use super::goal::Goal;
use super::order::{CommandError, OrderError};
use super::stream::{StreamError, Streams};
use super::{Change, LOG, Shown, View};
use ssntp::client::{ClientError, ClientEvent, ClientHandle};
use ssntp::proto::Frame;
use ssntp_transport::LogLimit;
use ssntp_transport::excerpt;

/// How many orders may wait at a time: a START each, in the largest cluster
/// that one scheduler serves, some times over.
const MOST_ORDERS: usize = 65_536;
/// How many changes may wait for a subscriber: those of one STATS of a node
/// with some thousand instances.
const MOST_CHANGES: usize = 16_384;
/// The scheduler has nothing more to tell a new controller when it has told
/// nothing new for so long.
const QUIET: Duration = Duration::from_millis(300);
/// Or, once all nodes have been heard, for so long: what the instances of the
/// last one have done since its STATS comes right after them.
const SHORT_QUIET: Duration = Duration::from_millis(20);

/// How long a START may show nowhere after its session before it is lost. It may be
/// the same scheduler, which holds one for a minute; then a node lists it soon.
/// Sessions that follow do not begin it anew: a scheduler that is started again
/// and again would put the answer off for ever.
const LOST: Duration = Duration::from_secs(90);
/// When one that is not known to be lost by then is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

type Reply = Result<Shown, OrderError>;

/// What the controller's threads share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// With a lock of their own: what instances write changes nothing else.
    pub(super) streams: Arc<Streams>,
}

#[derive(Debug)]
struct State {
    view: View,
    orders: Vec<Pending>,
    next_order: u64,
    subscribers: Vec<Subscriber>,
    /// How many sessions there have been.
    session: u64,
    /// When STARTs of former sessions are looked for: the first of all `look_at`.
    look_at: Option<Instant>,
    /// When the session began, or a node was heard for the first time in it.
    news: Instant,
    ended: Option<ClientError>,
    /// Everything comes from one server.
    log: LogLimit<()>,
}

#[derive(Debug)]
struct Pending {
    id: u64,
    /// The number of the session in which it was sent.
    session: u64,
    /// When it is lost, if nothing shows it: a START, once its session is over.
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
        }
    }

    /// Takes in events until there are no more.
    pub(super) fn feed(&self, events: &Receiver<ClientEvent>, client: &ClientHandle) {
        loop {
            let look_at = self.lock().look_at;
            let event = match look_at {
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => events.recv_deadline(at),
            };
            let event = match event {
                Ok(event) => event,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.lock().look_for_starts(now());
                    continue;
                }
            };
            match event {
                ClientEvent::Frame(frame) if frame.kind().is_of_streams() => self.streams.frame(&frame),
                ClientEvent::Frame(frame) => self.frame(&frame, wall_clock()),
                ClientEvent::Connected(server) => self.online(server.to_string(), client.configuration()),
                ClientEvent::Disconnected { reason, .. } => self.offline(reason.to_string(), wall_clock()),
                // `Closed` is told below; requests do not come, as none is registered.
                _ => {}
            }
        }
        let reason = client.ended().unwrap_or(ClientError::Closed);
        self.streams.end(&StreamError::Closed(reason.clone()));
        info!(target: LOG, "{}: the controller ends: {reason}", client.uuid());
        self.lock().end(reason);
        self.changed.notify_all();
    }

    fn frame(&self, frame: &Frame, at: SystemTime) {
        self.streams.refused(frame);
        let mut state = self.lock();
        let changes = state.view.apply(frame, at);
        state.take(changes);
        drop(state);
        self.changed.notify_all();
    }

    fn online(&self, scheduler: String, configuration: Option<Bytes>) {
        let mut state = self.lock();
        state.view.connected();
        state.news = now();
        state.session += 1;
        state.await_starts(now());
        let taken_up = |goal: &Goal| matches!(goal, Goal::Configured { configuration: own } if Some(own) == configuration.as_ref());
        settle_where(&mut state.orders, taken_up, |_| Ok(Shown::Configured));
        state.take(vec![Change::Online { scheduler }]);
        drop(state);
        self.changed.notify_all();
    }

    fn offline(&self, reason: String, at: SystemTime) {
        self.streams.end(&StreamError::Lost);
        let mut state = self.lock();
        state.view.disconnected(at);
        state.take(vec![Change::Offline { reason }]);
        drop(state);
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
            Some(reason) => subscriber.tell(Change::Ended {
                reason: reason.to_string(),
            }),
            None => {
                state.subscribers.push(subscriber);
                true
            }
        };
        receiver
    }

    /// Waits until `look` finds something; none where it has not by the
    /// deadline, or the controller ends.
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

    /// Waits until the scheduler has told a new session of all it knows.
    pub(super) fn wait_complete(&self, deadline: Instant) -> bool {
        let complete = |view: &View, quiet: Duration| {
            let enough = if view.is_complete() { SHORT_QUIET } else { QUIET };
            if view.is_online() && quiet >= enough {
                return Ok(());
            }
            Err(enough.saturating_sub(quiet).max(Duration::from_millis(1)))
        };
        self.wait(deadline, complete).is_some()
    }

    /// Watches for what becomes of a command.
    pub(super) fn watch(&self, goal: Goal) -> Result<(u64, Receiver<Reply>), CommandError> {
        let (reply, settled) = bounded(1);
        let mut state = self.lock();
        if let Some(reason) = &state.ended {
            let fault = ssntp::client::SendFault::Ended(reason.clone());
            return Err(CommandError::Send(fault));
        }
        if state.orders.len() >= MOST_ORDERS {
            return Err(CommandError::TooManyOrders(MOST_ORDERS));
        }
        let id = state.next_order;
        state.next_order += 1;
        // A client that queues frames sends it in the next one.
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
    /// Looks for STARTs of former sessions later, if there are any.
    fn await_starts(&mut self, now: Instant) {
        for order in &mut self.orders {
            if order.session < self.session && matches!(order.goal, Goal::Started { .. }) {
                order.look_at.get_or_insert(now + LOST);
            }
        }
        self.look_at = self.orders.iter().filter_map(|order| order.look_at).min();
    }

    /// Settles STARTs that were lost with a session: nothing has shown them since.
    fn look_for_starts(&mut self, now: Instant) {
        let view = &self.view;
        self.orders.retain_mut(|order| {
            if order.look_at.is_none_or(|at| at > now) {
                return true;
            }
            let is_lost = view.is_online() && order.goal.is_lost(view);
            if is_lost {
                let _ = order.reply.try_send(Err(OrderError::Lost(order.goal.command())));
            }
            order.look_at = Some(now + LOOK_AGAIN);
            !is_lost
        });
        self.await_starts(now);
    }

    fn take(&mut self, changes: Vec<Change>) {
        for change in changes {
            let Self {
                view, orders, log, ..
            } = self;
            match &change {
                Change::NodeConnected { .. }
                | Change::NodeStats { first: true, .. }
                | Change::InstanceDeleted { .. }
                | Change::InstanceStopped { .. } => self.news = now(),
                Change::Failed(failure) => {
                    if let Some(more) = log.admit((), "failure", now()) {
                        warn!(target: LOG, "{}{more}", excerpt(&failure));
                    }
                    settle_where(
                        orders,
                        |goal| goal.failed(failure),
                        |goal| match goal.is_met_by(failure, view) {
                            Some(shown) => Ok(shown),
                            None => Err(OrderError::Failed(Box::new(failure.clone()))),
                        },
                    );
                    // The best fit, and of these the last.
                    let fits = orders.iter().enumerate();
                    let fits = fits.filter_map(|(at, order)| Some((order.goal.refused(failure, view)?, at)));
                    if let Some((_, at)) = fits.max() {
                        let order = orders.remove(at);
                        let failure = order.goal.named(failure.clone());
                        order.settle(Err(OrderError::Failed(Box::new(failure))));
                    }
                }
                _ => {}
            }
            orders.retain(|order| match order.goal.shown(&change, view) {
                Some(shown) => {
                    let _ = order.reply.try_send(Ok(shown));
                    false
                }
                None => true,
            });
            self.publish(&change);
        }
    }

    fn publish(&mut self, change: &Change) {
        self.subscribers
            .retain_mut(|subscriber| subscriber.tell(change.clone()));
    }

    fn end(&mut self, reason: ClientError) {
        for order in self.orders.drain(..) {
            order.settle(Err(OrderError::Ended(reason.clone())));
        }
        self.publish(&Change::Ended {
            reason: reason.to_string(),
        });
        self.subscribers.clear();
        self.ended = Some(reason);
    }
}

fn settle_where(orders: &mut Vec<Pending>, which: impl Fn(&Goal) -> bool, reply: impl Fn(&Goal) -> Reply) {
    orders.retain(|order| {
        let settles = which(&order.goal);
        if settles {
            let _ = order.reply.try_send(reply(&order.goal));
        }
        !settles
    });
}

impl Pending {
    /// It has room for the one reply that there is.
    fn settle(self, reply: Reply) {
        let _ = self.reply.try_send(reply);
    }
}

impl Subscriber {
    /// Never waits; says whether anybody still listens.
    fn tell(&mut self, change: Change) -> bool {
        if self.missed > 0 {
            let missed = Change::Missed { count: self.missed };
            match self.changes.try_send(missed) {
                Ok(()) => self.missed = 0,
                Err(TrySendError::Full(_)) => {
                    self.missed += 1;
                    return true;
                }
                Err(TrySendError::Disconnected(_)) => return false,
            }
        }
        match self.changes.try_send(change) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.missed += 1;
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests;

#[expect(clippy::disallowed_methods, reason = "time limits of waits")]
pub(super) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "the view says when it saw what")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
