//! An element on its dispatcher: the core, the attempts to connect to servers, and the receivers
//! of events.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::Sender;
use log::warn;

use super::config::ELEMENT_LOG as LOG;
use super::connection::{Entrant, Messages, Peers, enter};
use super::dial::{Dial, Dialer};
use super::feed::Feed;
use super::machine::{self, EndCause, Machine, Side, SideEvents};
use crate::message::Decoder;
use crate::model::{ManagedObject, Tree};
use crate::peer::ConnectionId;
use crate::policy_element::{ElementAction as CoreAction, ElementCore, ElementEvent, Key, ResolveReference};
use ssntp_transport::dispatch::Action;
use ssntp_transport::{Cancel, locked, threads};

/// Sends events to an element's dispatcher.
pub(super) type ElementEvents = SideEvents<ElementSide>;

/// The references that were dropped and have to be released. Its length is at most the number of
/// references.
pub(super) type Released = Arc<Mutex<Vec<ResolveReference>>>;

/// All state of an element.
pub(super) struct ElementSide {
    pub(super) core: ElementCore,
    pub(super) feed: Feed,
    pub(super) dialer: Dialer,
    pub(super) events: ElementEvents,
    /// Attempts whose threads have not been joined.
    pub(super) dials: HashMap<ConnectionId, Dial>,
    pub(super) released: Released,
    pub(super) event_queue: EventQueue,
}

/// The maximum memory of the objects of the events that wait for the application, in bytes.
const EVENT_BYTES: usize = 256 << 20;

/// The channel to the application.
///
/// The channel itself is unbounded, because a bounded channel allocates all its slots at once. Only
/// this type sends, and it checks the length before.
pub(super) struct EventQueue {
    channel: Sender<ElementEvent>,
    /// The maximum number of events in the channel, without `Missed`.
    most: usize,
    /// The maximum memory of the objects of queued events, in bytes. A single event may have more.
    most_bytes: usize,
    /// The memory of each event in the channel, and of those that were received since the last event.
    queued: VecDeque<usize>,
    /// The sum of this memory.
    bytes: usize,
    /// Events that were dropped and have not been reported.
    missed: u64,
}

impl EventQueue {
    pub(super) fn new(channel: Sender<ElementEvent>, most: usize) -> Self {
        Self {
            channel,
            most: most.max(1),
            most_bytes: EVENT_BYTES,
            queued: VecDeque::new(),
            bytes: 0,
            missed: 0,
        }
    }

    fn send(&mut self, event: ElementEvent) {
        // The application receives events in their order.
        let received = self.queued.len().saturating_sub(self.channel.len());
        self.bytes -= self.queued.drain(..received).sum::<usize>();
        let bytes = memory(&event);
        let is_too_much = self.bytes > 0 && self.bytes + bytes > self.most_bytes;
        if self.channel.len() >= self.most || is_too_much {
            if self.missed == 0 {
                warn!(target: LOG, "the application receives no events: further events are dropped");
            }
            self.missed += 1;
            return;
        }
        // It takes no place of an event. Otherwise an application that is too slow would only be told
        // of dropped events.
        if self.missed > 0 {
            let count = std::mem::take(&mut self.missed);
            self.push(ElementEvent::Missed { count }, 0);
        }
        self.push(event, bytes);
    }

    fn push(&mut self, event: ElementEvent, bytes: usize) {
        self.queued.push_back(bytes);
        self.bytes += bytes;
        // Sending fails only if the application has dropped the receiver.
        let _ = self.channel.send(event);
    }
}

/// The approximate memory of the objects of an event.
fn memory(event: &ElementEvent) -> usize {
    match event {
        ElementEvent::Changed { objects, .. } => {
            let objects = objects.iter().filter_map(|change| change.object.as_ref());
            objects.map(ManagedObject::memory).sum()
        }
        _ => 0,
    }
}

impl ElementSide {
    /// The threads of the attempts under way, which the caller joins after it has stopped the element.
    pub(super) fn take_dials(&mut self) -> Vec<JoinHandle<()>> {
        self.dials.drain().map(|(_, dial)| dial.thread).collect()
    }

    /// Starts an attempt to connect to a server.
    fn dial(&mut self, connection: ConnectionId, address: String, now: Instant) {
        // The core may close the connection while the attempt is under way.
        let cancel = Cancel::new();
        let (dialer, events, cancelled) = (self.dialer.clone(), self.events.clone(), cancel.clone());
        let thread = threads::spawn(format!("opflex-dial{connection}"), move || {
            let reached = dialer.attempt(connection, &address, &cancelled);
            // The thread of the attempt also starts the threads of the connection.
            let entered = reached.map_err(|e| e.to_string()).and_then(|(halves, shown)| {
                let decoder = Decoder::new(dialer.config.limits);
                let peer = Entrant {
                    name: address,
                    shown,
                    identified: decoder.identified(),
                };
                let (request, limit) = ((connection, peer), dialer.config.write_timeout);
                let entered = enter(&events, request, halves, decoder, "element", limit);
                entered.map_err(Option::unwrap_or_default)
            });
            machine::post(&events, move |Machine { side, peers }, now, actions| {
                side.dialled(connection, entered.err(), now);
                side.carry_out(peers, now, actions);
                peers.flush(actions);
            });
        });
        match thread {
            Ok(thread) => drop(self.dials.insert(connection, Dial { cancel, thread })),
            Err(e) => {
                let why = format!("cannot start a thread: {e}");
                self.core.handle_disconnected(now, connection, why);
            }
        }
    }

    /// The connections whose certificates are not trusted any more, with the reasons.
    pub(super) fn untrusted(&self, peers: &Peers) -> Vec<(ConnectionId, String)> {
        let objection = |(connection, peer): (_, &Entrant)| {
            Some((connection, self.dialer.objection(&peer.name, &peer.shown)?))
        };
        peers.iter().filter_map(objection).collect()
    }

    /// Handles the end of an attempt.
    fn dialled(&mut self, connection: ConnectionId, failed: Option<String>, now: Instant) {
        // The thread has posted this call as its last step, so joining it does not block.
        if let Some(dial) = self.dials.remove(&connection) {
            // A panic has been logged by the panic hook.
            let _ = dial.thread.join();
        }
        if let Some(why) = failed {
            self.core
                .handle_disconnected(now, connection, format!("not connected: {why}"));
        }
    }
}

impl Side for ElementSide {
    /// The server, and the number of the attempt at it.
    type Newcomer = (ConnectionId, Entrant);
    type Place = Key;
    const LOG: &'static str = LOG;

    fn trees(&self) -> [&Tree; 2] {
        [self.core.policy(), self.core.endpoints()]
    }

    fn others(&self, place: Option<Key>) -> impl Iterator<Item = (Key, &ManagedObject)> {
        self.core.sent_objects_after(place)
    }

    fn admit(
        &mut self,
        id: ssntp_transport::ConnectionId,
        (connection, peer): Self::Newcomer,
        _: usize,
        peers: &mut Peers,
        now: Instant,
    ) -> Result<ConnectionId, String> {
        let dial = self.dials.get(&connection);
        if dial.is_none_or(|dial| dial.cancel.is_cancelled()) {
            return Err("the element has given the connection up".to_owned());
        }
        if let Some(why) = self.dialer.objection(&peer.name, &peer.shown) {
            return Err(format!("not trusted any more: {why}"));
        }
        peers.add(id, connection, peer);
        self.core.handle_connected(now, connection);
        Ok(connection)
    }

    fn handle_next(
        &mut self,
        connection: ConnectionId,
        messages: &mut Messages,
        now: Instant,
    ) -> Option<bool> {
        self.core.handle_message(now, connection, messages.next()?);
        Some(false)
    }

    fn received(&mut self, connection: ConnectionId, _: u64, now: Instant) {
        self.core.handle_bytes(now, connection);
    }

    fn ended(&mut self, connection: ConnectionId, why: EndCause, now: Instant) {
        self.core.handle_disconnected(now, connection, why.to_string());
    }

    fn carry_out(&mut self, peers: &mut Peers, now: Instant, actions: &mut Vec<Action>) {
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
                        self.event_queue.send(event);
                    }
                }
            }
        }
    }

    /// Releases the references that were dropped.
    fn settle(&mut self, now: Instant) {
        // The lock is held only while the list is taken, so dropping a reference does not block.
        let released = std::mem::take(&mut *locked(&self.released));
        for reference in released {
            self.core.release(reference, now);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.core.next_deadline()
    }

    fn tick(&mut self, now: Instant) {
        self.core.handle_deadline(now);
    }

    // The core closes its connections itself, after their queues are sent, and its attempts.
    fn stop(&mut self, peers: &mut Peers, now: Instant, actions: &mut Vec<Action>) {
        self.core.stop(now);
        self.carry_out(peers, now, actions);
        self.feed.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ChangeKind;
    use crate::policy_element::{Health, ObjectChange, Store};

    #[test]
    fn events_are_dropped_beyond_their_number_and_the_memory_of_their_objects() {
        let health = || ElementEvent::Health { health: Health::Down };
        let changed = || {
            let object = ManagedObject::new("A", "/a/".parse().unwrap()).with("p", "x".repeat(100 << 10));
            let objects = vec![ObjectChange {
                kind: ChangeKind::Created,
                subject: object.subject.clone(),
                uri: object.uri.clone(),
                object: Some(object),
            }];
            let what = Store::Policy;
            ElementEvent::Changed { what, objects }
        };
        let (channel, events) = crossbeam_channel::unbounded();
        let mut event_queue = EventQueue::new(channel, 3);
        event_queue.most_bytes = 256 << 10;
        for _ in 0..5 {
            event_queue.send(health());
        }
        assert_eq!(events.len(), 3);
        events.try_recv().unwrap();
        event_queue.send(health());
        let queued: Vec<_> = events.try_iter().skip(2).collect();
        assert_eq!(queued, [ElementEvent::Missed { count: 2 }, health()]);
        // A hundred kibibytes each.
        for _ in 0..3 {
            event_queue.send(changed());
        }
        assert_eq!(events.len(), 2);
        events.try_recv().unwrap();
        event_queue.send(changed());
        assert_eq!(events.len(), 3);
    }
}
