//! An element on its dispatcher: the core, the attempts to connect to servers, and the receivers
//! of events.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::Sender;
use log::{debug, warn};

use super::connection::{Messages, Peers, Shown, enter};
use super::dial::{Dial, Dialer};
use super::feed::Feed;
use super::machine::{self, Contents, EndCause, Machine, Side, SideEvents};
use super::{CallError, ELEMENT_LOG as LOG, ElementContext};
use crate::message::{Decoder, Identified};
use crate::model::{ManagedObject, Tree};
use crate::peer::ConnectionId;
use crate::policy_element::{Action as CoreAction, ElementCore, ElementEvent, ReferenceId};
use ssntp_transport::dispatch::Action;
use ssntp_transport::{self, Halves};

/// Sends events to an element's dispatcher.
pub(super) type ElementEvents = SideEvents<ElementSide>;

/// The references that were dropped and have to be released. Its length is at most the number of
/// references.
pub(super) type Released = Arc<Mutex<Vec<ReferenceId>>>;

/// Runs `call` on the dispatcher and returns its result.
///
/// # Errors
/// As of [`machine::call`].
pub(super) fn call<T: Send + 'static>(
    events: &ElementEvents,
    call: impl FnOnce(&mut ElementContext<'_>) -> T + Send + 'static,
) -> Result<T, CallError> {
    machine::call(events, |machine, now, _| {
        let core = &mut machine.side.core;
        call(&mut ElementContext { core, now })
    })
}

/// All state of an element.
pub(super) struct ElementSide {
    pub(super) core: ElementCore,
    pub(super) feed: Feed,
    pub(super) dialer: Dialer,
    pub(super) events: ElementEvents,
    /// Attempts whose threads have not been joined.
    pub(super) dials: HashMap<ConnectionId, Dial>,
    pub(super) released: Released,
    pub(super) listener: Listener,
}

/// The channel to the application.
///
/// The channel itself is unbounded, because a bounded channel allocates all its slots at once. Only
/// this type sends, and it checks the length before.
pub(super) struct Listener {
    pub(super) channel: Sender<ElementEvent>,
    /// The maximum number of events in the channel.
    pub(super) most: usize,
    /// Events that were dropped and have not been reported.
    pub(super) missed: u64,
}

impl Listener {
    fn send(&mut self, event: ElementEvent) {
        if self.missed > 0 && self.channel.len() < self.most {
            // Sending fails only if the application has dropped the receiver.
            let count = std::mem::take(&mut self.missed);
            let _ = self.channel.send(ElementEvent::Missed { count });
        }
        if self.channel.len() < self.most {
            let _ = self.channel.send(event);
            return;
        }
        if self.missed == 0 {
            warn!(target: LOG, "the application receives no events: further events are dropped");
        }
        self.missed += 1;
    }
}

impl ElementSide {
    /// The threads of the attempts under way, which the caller joins after it has stopped the element.
    pub(super) fn take_dials(&mut self) -> Vec<JoinHandle<()>> {
        self.dials.drain().map(|(_, dial)| dial.thread).collect()
    }

    /// Starts an attempt to connect to a server.
    fn dial(&mut self, connection: ConnectionId, address: String, now: Instant) {
        let (events, write_timeout) = (self.events.clone(), self.dialer.config.write_timeout);
        let name = address.clone();
        let done = move |reached: Result<(Halves, Shown, Decoder), String>| {
            // The thread of the attempt also starts the threads of the connection.
            let entered = reached.and_then(|(halves, shown, decoder)| {
                let reached = Reached {
                    connection,
                    address: name,
                    shown,
                    identified: decoder.identified(),
                };
                let entered = enter(&events, reached, halves, decoder, "element", write_timeout);
                entered.map_err(|why| why.unwrap_or_default())
            });
            machine::post(&events, move |Machine { side, peers }, now, actions| {
                side.dialled(connection, entered.err(), now);
                side.hand_on(peers, now, actions);
                peers.flush(actions);
            });
        };
        match self.dialer.start(connection, address, done) {
            Ok(dial) => drop(self.dials.insert(connection, dial)),
            Err(e) => {
                warn!(target: LOG, "{connection}: cannot start a thread: {e}");
                self.core.disconnected(connection, now);
            }
        }
    }

    /// The connections whose certificates are not trusted any more, with the reasons.
    pub(super) fn untrusted(&self, peers: &Peers) -> Vec<(ConnectionId, String)> {
        let objection = |(connection, shown)| {
            let address = peers.name(connection)?;
            Some((connection, self.dialer.objection(address, shown)?))
        };
        peers.shown().filter_map(objection).collect()
    }

    /// Handles the end of an attempt.
    fn dialled(&mut self, connection: ConnectionId, failed: Option<String>, now: Instant) {
        // The thread has posted this call as its last step, so joining it does not block.
        if let Some(dial) = self.dials.remove(&connection) {
            // A panic has been logged by the panic hook.
            let _ = dial.thread.join();
        }
        if let Some(why) = failed {
            self.core.failed(connection, format!("not connected: {why}"), now);
        }
    }
}

/// A connection to a server that asks to be admitted.
#[derive(Debug)]
pub(super) struct Reached {
    connection: ConnectionId,
    address: String,
    shown: Shown,
    identified: Identified,
}

impl Side for ElementSide {
    type Core = ElementCore;
    type Newcomer = Reached;
    const LOG: &'static str = LOG;

    fn core(&self) -> &ElementCore {
        &self.core
    }

    fn admit(
        &mut self,
        id: ssntp_transport::ConnectionId,
        Reached {
            connection,
            address,
            shown,
            identified,
        }: Reached,
        _: usize,
        peers: &mut Peers,
        now: Instant,
    ) -> Result<ConnectionId, String> {
        let dial = self.dials.get(&connection);
        if dial.is_none_or(|dial| dial.cancel.is_cancelled()) {
            return Err("the element has given the connection up".to_owned());
        }
        if let Some(why) = self.dialer.objection(&address, &shown) {
            return Err(format!("not trusted any more: {why}"));
        }
        peers.add(id, connection, address, shown, identified);
        self.core.connected(connection, now);
        Ok(connection)
    }

    fn step(&mut self, connection: ConnectionId, messages: &mut Messages, now: Instant) -> Option<bool> {
        self.core.message(connection, messages.next()?, now);
        Some(false)
    }

    fn received(&mut self, connection: ConnectionId, _: u64, now: Instant) {
        self.core.received(connection, now);
    }

    fn ended(&mut self, connection: ConnectionId, address: &str, why: EndCause, now: Instant) {
        let why = match why {
            EndCause::Ended(reason) => {
                debug!(target: LOG, "{connection} ({address}) ended: {reason}");
                format!("the connection ended: {reason}")
            }
            EndCause::Full => {
                warn!(target: LOG, "{connection} ({address}) is too slow: its queue is full, it is disconnected");
                return self.core.disconnected(connection, now);
            }
            EndCause::Untrusted(why) => {
                warn!(target: LOG, "{connection} ({address}) is not trusted any more, it is disconnected: {why}");
                format!("not trusted any more: {why}")
            }
        };
        self.core.failed(connection, why, now);
    }

    fn hand_on(&mut self, peers: &mut Peers, now: Instant, actions: &mut Vec<Action>) {
        // A loop, because an attempt that cannot start makes the core add actions.
        loop {
            let wanted = self.core.take_actions();
            if wanted.is_empty() {
                return;
            }
            for action in wanted {
                match action {
                    CoreAction::Dial { connection, address } => self.dial(connection, address, now),
                    CoreAction::Send { connection, frame } => peers.send(connection, frame, actions),
                    CoreAction::Identified { connection } => peers.identified(connection),
                    CoreAction::Close { connection, .. } => {
                        if let Some(dial) = self.dials.get(&connection) {
                            dial.cancel.cancel();
                        }
                        peers.end(connection, actions);
                    }
                    CoreAction::Event(event) => {
                        self.feed.send_event(&event);
                        self.listener.send(event);
                    }
                }
            }
        }
    }

    /// Releases the references that were dropped.
    fn settle(&mut self, now: Instant) {
        // The lock is held only while the list is taken, so dropping a reference does not block.
        let released = std::mem::take(&mut *self.released.lock().unwrap_or_else(PoisonError::into_inner));
        for reference in released {
            self.core.release(reference, now);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.core.next_deadline()
    }

    fn tick(&mut self, now: Instant) {
        self.core.tick(now);
    }

    // The core closes its connections itself, after their queues are sent.
    fn stop(&mut self, now: Instant) {
        self.core.stop(now);
    }

    fn stopped(&mut self) {
        self.feed.end();
        for dial in self.dials.values() {
            dial.cancel.cancel();
        }
    }
}

impl Contents for ElementCore {
    fn trees(&self) -> [&Tree; 2] {
        [self.policy(), self.endpoints()]
    }

    fn others(&self, place: Option<u64>) -> Box<dyn Iterator<Item = (u64, &ManagedObject)> + '_> {
        Box::new(self.sent_objects_after(place))
    }
}
