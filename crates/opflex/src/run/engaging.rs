//! What owns an [`ElementCore`]: the state of an element's dispatcher.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::Sender;
use log::{debug, warn};

use super::connection::{Messages, Peers, Shown, deal};
use super::dial::{Dial, DialError, Dialer};
use super::feed::Feed;
use super::{ELEMENT_LOG as LOG, guard};
use crate::model::{ManagedObject, ModelError, Name, Target, Uri};
use crate::peer::ConnectionId;
use crate::policy_element::{self as core, ElementCore, ReferenceId};
use ssntp_transport::dispatch::{Action, Core, DispatchEvent, Events};
use ssntp_transport::tls::Connector;
use ssntp_transport::{self, EndReason, Gauge, Outgoing};

/// The way into an element's dispatcher.
pub(super) type EngagingEvents = Events<DispatchEvent<Engaging>>;

/// The references that were dropped and are still to be released: no more
/// than there were references.
pub(super) type Released = Arc<Mutex<Vec<ReferenceId>>>;

/// The element, for a call on its dispatcher.
#[derive(Debug)]
pub struct ElementContext<'a> {
    core: &'a mut ElementCore,
    now: Instant,
    actions: &'a mut Vec<core::Action>,
}

impl ElementContext<'_> {
    /// All that can be asked for.
    pub fn core(&self) -> &ElementCore {
        self.core
    }

    /// See [`ElementCore::declare`].
    ///
    /// # Errors
    /// An object is malformed.
    pub fn declare(&mut self, endpoint: Vec<ManagedObject>) -> Result<(), ModelError> {
        self.core.declare(endpoint, self.now, self.actions)
    }

    /// See [`ElementCore::undeclare`].
    pub fn undeclare(&mut self, uri: &Uri) -> bool {
        self.core.undeclare(uri, self.actions)
    }

    /// See [`ElementCore::report`].
    ///
    /// # Errors
    /// The object is malformed.
    pub fn report(&mut self, object: ManagedObject) -> Result<(), ModelError> {
        self.core.report(object, self.now, self.actions)
    }

    /// See [`ElementCore::withdraw`].
    pub fn withdraw(&mut self, uri: &Uri) -> bool {
        self.core.withdraw(uri)
    }

    /// See [`ElementCore::reset`].
    pub fn reset(&mut self) {
        self.core.reset(self.now, self.actions);
    }

    pub(super) fn resolve_policy(&mut self, subject: Name, target: Target, follow: bool) -> ReferenceId {
        self.core
            .resolve_policy(subject, target, follow, self.now, self.actions)
    }

    pub(super) fn resolve_endpoint(&mut self, subject: Name, target: Target) -> ReferenceId {
        self.core
            .resolve_endpoint(subject, target, self.now, self.actions)
    }
}

/// Has something done on the dispatcher. `None` where it is not: the element has
/// stopped, or the call panicked.
pub(super) fn call<T: Send + 'static>(
    events: &EngagingEvents,
    call: impl FnOnce(&mut ElementContext<'_>) -> T + Send + 'static,
) -> Option<T> {
    let (reply, result) = crossbeam_channel::bounded(1);
    let call = DispatchEvent::Call(Box::new(move |engaging: &mut Engaging, now, actions| {
        guard(LOG, || {
            engaging.call(now, |cx| {
                let _ = reply.send(call(cx));
            });
        });
        engaging.hand_on(now, actions);
    }));
    events.send(call).ok()?;
    events.answer(&result)
}

/// Has something done with the feed on the dispatcher. `None` as with [`call`].
pub(super) fn feed<T: Send + 'static>(
    events: &EngagingEvents,
    call: impl FnOnce(&mut Feed, &ElementCore) -> T + Send + 'static,
) -> Option<T> {
    let (reply, result) = crossbeam_channel::bounded(1);
    let call = DispatchEvent::Call(Box::new(move |engaging: &mut Engaging, _, _| {
        let _ = reply.send(call(&mut engaging.feed, &engaging.core));
    }));
    events.send(call).ok()?;
    events.answer(&result)
}

/// All state of an element.
pub(super) struct Engaging {
    core: ElementCore,
    feed: Feed,
    peers: Peers,
    dialer: Dialer,
    /// Attempts whose threads have not been joined.
    dials: HashMap<ConnectionId, Dial>,
    /// What the core wants done and nobody has been told yet.
    wanted: Vec<core::Action>,
    released: Released,
    tell: Tell,
}

/// The way to whoever takes events.
///
/// The channel itself has no bound: one with a bound takes the memory of every
/// place in it from the beginning. Nobody else sends, so what is counted before
/// sending is the bound.
struct Tell {
    events: Sender<core::ElementEvent>,
    most: usize,
    missed: u64,
}

impl Tell {
    fn tell(&mut self, event: core::ElementEvent) {
        if self.missed > 0 && self.has_room() {
            let missed = std::mem::take(&mut self.missed);
            self.send(core::ElementEvent::Missed(missed));
        }
        if self.has_room() {
            return self.send(event);
        }
        if self.missed == 0 {
            warn!(target: LOG, "nobody takes events: they are dropped");
        }
        self.missed += 1;
    }

    fn has_room(&self) -> bool {
        self.events.len() < self.most
    }

    fn send(&self, event: core::ElementEvent) {
        // Without anybody to take it, it is nobody's loss.
        let _ = self.events.send(event);
    }
}

impl Engaging {
    /// An element that tells of at most so many events that nobody has taken.
    pub(super) fn new(
        core: ElementCore,
        feed: Feed,
        dialer: Dialer,
        released: Released,
        tell: Sender<core::ElementEvent>,
        most_events: usize,
    ) -> Self {
        Self {
            core,
            feed,
            peers: Peers::default(),
            dialer,
            dials: HashMap::new(),
            wanted: Vec::new(),
            released,
            tell: Tell {
                events: tell,
                most: most_events,
                missed: 0,
            },
        }
    }

    pub(super) fn call(&mut self, now: Instant, call: impl FnOnce(&mut ElementContext<'_>)) {
        call(&mut ElementContext {
            core: &mut self.core,
            now,
            actions: &mut self.wanted,
        });
    }

    /// An attempt is over, and its thread is about to end.
    pub(super) fn dialled(
        &mut self,
        connection: ConnectionId,
        failed: Option<DialError>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        if let Some(dial) = self.dials.remove(&connection) {
            // A panic has been logged by the panic hook.
            let _ = dial.thread.join();
        }
        if let Some(why) = failed {
            let why = format!("not connected: {why}");
            self.core.failed(connection, why, now, &mut self.wanted);
            self.hand_on(now, actions);
        }
    }

    /// Replaces TLS. Ends the connections of servers that are not trusted any more;
    /// how many those are.
    pub(super) fn renew(&mut self, connector: Connector, now: Instant, actions: &mut Vec<Action>) -> usize {
        self.dialer.renew(connector);
        let ended = self.end_untrusted(now, actions);
        self.hand_on(now, actions);
        ended
    }

    fn end_untrusted(&mut self, now: Instant, actions: &mut Vec<Action>) -> usize {
        let mut untrusted = Vec::new();
        for (connection, shown) in self.peers.shown() {
            let address = self.peers.name(connection).unwrap_or_default();
            if let Some(why) = self.dialer.objection(address, shown) {
                warn!(target: LOG, "{connection} ({address}) is not trusted any more, it is disconnected: {why}");
                untrusted.push((connection, why));
            }
        }
        let count = untrusted.len();
        for (connection, why) in untrusted {
            self.peers.end(connection, actions);
            let why = format!("not trusted any more: {why}");
            self.core.failed(connection, why, now, &mut self.wanted);
        }
        count
    }

    /// The threads of the attempts under way, once the element has stopped and
    /// has cancelled them: they still ask the dispatcher.
    pub(super) fn take_dials(&mut self) -> Vec<JoinHandle<()>> {
        self.dials.drain().map(|(_, dial)| dial.thread).collect()
    }

    /// Hands on what the core wants done; frames may still be joined by more.
    fn join(&mut self, now: Instant, actions: &mut Vec<Action>) {
        while !self.wanted.is_empty() {
            for action in std::mem::take(&mut self.wanted) {
                match action {
                    core::Action::Dial { connection, address } => self.dial(connection, address, now),
                    core::Action::Send { connection, frame } => self.peers.send(connection, frame, actions),
                    core::Action::Close { connection, .. } => {
                        if let Some(dial) = self.dials.get(&connection) {
                            dial.cancel.cancel();
                        }
                        self.peers.end(connection, actions);
                    }
                    core::Action::Tell(event) => {
                        self.feed.tell(&event);
                        self.tell.tell(event);
                    }
                }
            }
        }
    }

    pub(super) fn hand_on(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.join(now, actions);
        self.peers.flush(actions);
    }

    fn dial(&mut self, connection: ConnectionId, address: String, now: Instant) {
        match self.dialer.start(connection, address) {
            Ok(dial) => {
                self.dials.insert(connection, dial);
            }
            Err(e) => {
                warn!(target: LOG, "{connection}: cannot start a thread: {e}");
                self.core.disconnected(connection, now, &mut self.wanted);
            }
        }
    }
}

/// A server that was reached.
#[derive(Debug)]
pub(super) struct Reached {
    pub(super) connection: ConnectionId,
    pub(super) address: String,
    pub(super) shown: Shown,
}

impl Core for Engaging {
    type Item = Messages;
    type Request = Reached;
    type Grant = ConnectionId;
    /// Nobody waits for the connection any more.
    type Place = ();
    type Refusal = ();

    fn admit(
        &mut self,
        id: ssntp_transport::ConnectionId,
        reached: Reached,
        _: Gauge,
        _: usize,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(ConnectionId, ()), ()> {
        let Reached {
            connection,
            address,
            shown,
        } = reached;
        let dial = self.dials.get(&connection);
        if dial.is_none_or(|dial| dial.cancel.is_cancelled()) {
            return Err(());
        }
        self.peers.add(id, connection, address);
        self.peers.has_shown(connection, shown);
        self.core.connected(connection, now, &mut self.wanted);
        // TLS may have been replaced since the handshake. Servers are few.
        self.end_untrusted(now, actions);
        self.hand_on(now, actions);
        Ok((connection, ()))
    }

    fn item(
        &mut self,
        id: ssntp_transport::ConnectionId,
        messages: Messages,
        most: u32,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> (u32, Option<Messages>) {
        let Some(connection) = self.peers.connection(id) else {
            return (0, None);
        };
        let dealt = deal(messages, most, actions, |messages, actions| {
            let message = messages.next()?;
            self.core.message(connection, message, now, &mut self.wanted);
            self.join(now, actions);
            Some(false)
        });
        self.peers.flush(actions);
        dealt
    }

    fn received(&mut self, id: ssntp_transport::ConnectionId, _: u64, now: Instant) {
        if let Some(connection) = self.peers.connection(id) {
            self.core.heard(connection, now);
        }
    }

    fn ended(
        &mut self,
        id: ssntp_transport::ConnectionId,
        reason: EndReason,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        if let Some((connection, address)) = self.peers.remove(id) {
            debug!(target: LOG, "{connection} ({address}) ended: {reason}");
            let why = format!("the connection ended: {reason}");
            self.core.failed(connection, why, now, &mut self.wanted);
            self.hand_on(now, actions);
        }
    }

    fn left(&mut self, _: ssntp_transport::ConnectionId, items: Vec<Messages>) {
        let messages: usize = items.iter().map(Messages::len).sum();
        debug!(target: LOG, "{messages} messages of a connection that ended were not dealt with");
    }

    fn full(
        &mut self,
        to: ssntp_transport::ConnectionId,
        _: Outgoing,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> bool {
        if let Some((connection, address)) = self.peers.remove(to) {
            warn!(target: LOG, "{connection} ({address}) takes no data: its queue is full");
            actions.push(Action::End { id: to, abort: true });
            self.core.disconnected(connection, now, &mut self.wanted);
            self.hand_on(now, actions);
        }
        false
    }

    /// Releases what was dropped meanwhile.
    fn settle(&mut self, now: Instant, _: &mut Vec<Action>) {
        let released = std::mem::take(&mut *self.released.lock().unwrap_or_else(PoisonError::into_inner));
        for reference in released {
            self.core.release(reference, now);
        }
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        self.core.next_deadline()
    }

    fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.core.tick(now, &mut self.wanted);
        self.hand_on(now, actions);
    }

    fn stop(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.core.stop(now, &mut self.wanted);
        self.hand_on(now, actions);
        self.feed.end();
        for dial in self.dials.values() {
            dial.cancel.cancel();
        }
        self.peers.end_all(actions);
    }
}
