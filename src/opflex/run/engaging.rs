//! The thread that owns an [`ElementCore`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use log::{info, warn};

use super::connection::{LinkEvent, Links, Opened};
use super::dial::{Dial, DialError, Dialer};
use super::element::LOG;
use super::now;
use crate::opflex::model::{ManagedObject, ModelError, Name, Target, Uri};
use crate::opflex::peer::ConnectionId;
use crate::opflex::policy_element::{self as core, Action, ElementCore, ReferenceId};

/// The only way into the dispatcher.
pub(super) enum Event {
    /// A server was reached; the threads of its connection are about to start.
    Opened(Opened),
    /// A server was not reached.
    DialFailed(ConnectionId, DialError),
    /// From the threads of a connection.
    Link(LinkEvent),
    /// References wait in the list of released ones.
    Released,
    /// Another thread has something to be done here.
    Call(Box<dyn FnOnce(&mut ElementContext<'_>) + Send>),
    /// Close every connection, and end.
    Stop,
}

impl From<LinkEvent> for Event {
    fn from(event: LinkEvent) -> Self {
        Self::Link(event)
    }
}

/// The references that were dropped and are still to be released: no more
/// than there were references.
pub(super) type Released = Arc<Mutex<Vec<ReferenceId>>>;

/// The element, for a call on its dispatcher.
#[derive(Debug)]
pub struct ElementContext<'a> {
    core: &'a mut ElementCore,
    now: Instant,
    actions: &'a mut Vec<Action>,
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

/// All state of an element.
pub(super) struct Dispatcher {
    core: ElementCore,
    links: Links,
    dialer: Dialer,
    dials: HashMap<ConnectionId, Dial>,
    actions: Vec<Action>,
    events: Receiver<Event>,
    released: Released,
    tell: Tell,
    grace: Duration,
    stopping: Option<Instant>,
    stopped: bool,
}

/// The way to whoever takes events.
///
/// The channel itself has no bound: one with a bound takes the memory of every
/// place in it from the beginning. Nobody else sends, so what is counted before
/// sending is the bound.
struct Tell {
    events: Sender<core::Event>,
    most: usize,
    missed: u64,
}

impl Tell {
    fn tell(&mut self, event: core::Event) {
        if self.missed > 0 && self.has_room() {
            let missed = std::mem::take(&mut self.missed);
            self.send(core::Event::Missed(missed));
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

    fn send(&self, event: core::Event) {
        // Without anybody to take it, it is nobody's loss.
        let _ = self.events.send(event);
    }
}

impl Dispatcher {
    pub(super) fn new(
        core: ElementCore,
        dialer: Dialer,
        events: Receiver<Event>,
        released: Released,
        tell: Sender<core::Event>,
        most_events: usize,
        grace: Duration,
    ) -> Self {
        Self {
            core,
            links: Links::default(),
            dialer,
            dials: HashMap::new(),
            actions: Vec::new(),
            events,
            released,
            tell: Tell {
                events: tell,
                most: most_events,
                missed: 0,
            },
            grace,
            stopping: None,
            stopped: false,
        }
    }

    /// Runs until [`Event::Stop`] has come and every connection and attempt
    /// has ended.
    pub(super) fn run(mut self) {
        while !(self.stopped && self.links.is_empty() && self.dials.is_empty()) {
            let deadline = [self.core.next_deadline(), self.stopping]
                .into_iter()
                .flatten()
                .min();
            let event = match deadline {
                Some(deadline) => self.events.recv_deadline(deadline),
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let now = now();
            match event {
                Ok(event) => self.step(event, now),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.release(now);
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.core.tick(now, &mut self.actions);
                if self.stopping.is_some_and(|end| end <= now) {
                    self.stopping = None;
                    self.links.abort_all();
                }
            }
            self.perform(now);
        }
    }

    fn step(&mut self, event: Event, now: Instant) {
        match event {
            Event::Opened(opened) => {
                let id = opened.id;
                let wanted = self
                    .dials
                    .get(&id)
                    .is_some_and(|dial| !dial.cancel.is_cancelled());
                self.links.add(opened);
                if wanted {
                    self.core.connected(id, now, &mut self.actions);
                } else {
                    self.links.abort(id);
                }
            }
            Event::DialFailed(id, why) => {
                info!(target: LOG, "{id}: not connected: {why}");
                self.dialled(id);
                self.core.disconnected(id, now, &mut self.actions);
            }
            Event::Link(LinkEvent::Messages(id, messages)) => {
                for message in messages {
                    self.core.message(id, message, now, &mut self.actions);
                }
                self.links.took_turn(id);
            }
            Event::Link(LinkEvent::Heard(id)) => self.core.heard(id, now),
            Event::Link(LinkEvent::Started(id, link)) => {
                self.dialled(id);
                if let Err(e) = self.links.started(id, link) {
                    warn!(target: LOG, "{id}: cannot start a thread: {e}");
                    self.core.disconnected(id, now, &mut self.actions);
                }
            }
            Event::Link(LinkEvent::Ended(id, reason)) => {
                info!(target: LOG, "{id} ({}) ended: {reason}", self.links.peer(id));
                self.core.disconnected(id, now, &mut self.actions);
            }
            Event::Link(LinkEvent::Finished(id)) => {
                self.links.finished(id);
            }
            // Done after every event.
            Event::Released => {}
            Event::Call(call) => call(&mut ElementContext {
                core: &mut self.core,
                now,
                actions: &mut self.actions,
            }),
            Event::Stop => {
                self.core.stop(now, &mut self.actions);
                self.perform(now);
                for dial in self.dials.values() {
                    dial.cancel.cancel();
                }
                self.links.close_all();
                self.stopping = Some(now + self.grace);
                self.stopped = true;
            }
        }
    }

    fn release(&mut self, now: Instant) {
        let released = std::mem::take(&mut *self.released.lock().unwrap_or_else(PoisonError::into_inner));
        for reference in released {
            self.core.release(reference, now);
        }
    }

    /// The thread of an attempt is about to end.
    fn dialled(&mut self, id: ConnectionId) {
        if let Some(dial) = self.dials.remove(&id) {
            // A panic has been logged by the panic hook.
            let _ = dial.thread.join();
        }
    }

    fn too_slow(&mut self, id: ConnectionId, now: Instant) {
        warn!(target: LOG, "{id} ({}) takes no data: its queue is full", self.links.peer(id));
        self.links.abort(id);
        self.core.disconnected(id, now, &mut self.actions);
    }

    /// Does what the core wants done; what comes of that, too.
    fn perform(&mut self, now: Instant) {
        let mut actions = std::mem::take(&mut self.actions);
        while !actions.is_empty() {
            for action in actions.drain(..) {
                match action {
                    Action::Dial { connection, address } => match self.dialer.start(connection, address) {
                        Ok(dial) => {
                            self.dials.insert(connection, dial);
                        }
                        Err(e) => {
                            warn!(target: LOG, "{connection}: cannot start a thread: {e}");
                            self.core.disconnected(connection, now, &mut self.actions);
                        }
                    },
                    Action::Send { connection, frame } => {
                        if let Err(slow) = self.links.send(connection, frame) {
                            self.too_slow(slow, now);
                        }
                    }
                    Action::Close { connection, .. } => {
                        if let Some(dial) = self.dials.get(&connection) {
                            dial.cancel.cancel();
                        }
                        self.links.close(connection);
                    }
                    Action::Tell(event) => self.tell.tell(event),
                }
            }
            if let Err(slow) = self.links.flush() {
                self.too_slow(slow, now);
            }
            std::mem::swap(&mut actions, &mut self.actions);
        }
        // The list keeps its memory for the next time, unless it was a flood.
        if actions.capacity() <= 4096 {
            self.actions = actions;
        }
    }
}
