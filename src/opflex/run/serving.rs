//! What owns a [`ServerCore`]: the state of a server's dispatcher.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use log::{info, warn};

use super::connection::{LinkEvent, Links, Opened};
use super::editing::Job;
use super::server::LOG;
use super::{control, guard, keeper};
use crate::opflex::message::Incoming;
use crate::opflex::model::{Changes, ManagedObject, ModelError, Uri};
use crate::opflex::peer::ConnectionId;
use crate::opflex::server::{Action, ServerCore, Store, WalkId};

/// The only way into the dispatcher.
pub(super) enum Event {
    /// A connection whose threads are about to start, what its client dialled,
    /// and whether it is one for control.
    Opened(Opened, Option<String>, bool),
    /// From the threads of a connection.
    Link(LinkEvent),
    /// Another thread has something to be done here.
    Call(Box<dyn FnOnce(&mut ServerContext<'_>) + Send>),
    /// Close every connection.
    Stop,
    /// Nobody will send anything more but the readers.
    Exit,
    /// See what is due.
    Look,
}

impl From<LinkEvent> for Event {
    fn from(event: LinkEvent) -> Self {
        Self::Link(event)
    }
}

/// The server, for a call on its dispatcher.
#[derive(Debug)]
pub struct ServerContext<'a> {
    core: &'a mut ServerCore,
    now: Instant,
    actions: &'a mut Vec<Action>,
    changed: bool,
}

impl ServerContext<'_> {
    /// All that can be asked for.
    pub fn core(&self) -> &ServerCore {
        self.core
    }

    /// The time of this call.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// See [`ServerCore::merge_policy`].
    ///
    /// # Errors
    /// The objects are malformed or not what the model allows.
    pub fn merge_policy(&mut self, objects: Vec<ManagedObject>) -> Result<Changes, ModelError> {
        let changes = self.core.merge_policy(objects, self.now, self.actions)?;
        self.changed |= !changes.is_empty();
        Ok(changes)
    }

    /// See [`ServerCore::replace_policy`].
    ///
    /// # Errors
    /// As [`merge_policy`](Self::merge_policy).
    pub fn replace_policy(&mut self, objects: Vec<ManagedObject>) -> Result<Changes, ModelError> {
        let changes = self.core.replace_policy(objects, self.now, self.actions)?;
        self.changed |= !changes.is_empty();
        Ok(changes)
    }

    /// See [`ServerCore::update_policy`].
    ///
    /// # Errors
    /// As [`merge_policy`](Self::merge_policy).
    pub fn update_policy(
        &mut self,
        delete: &[Uri],
        merge: Vec<ManagedObject>,
    ) -> Result<Changes, ModelError> {
        let changes = self.core.update_policy(delete, merge, self.now, self.actions)?;
        self.changed |= !changes.is_empty();
        Ok(changes)
    }

    /// See [`ServerCore::reload_policy`].
    ///
    /// # Errors
    /// As [`merge_policy`](Self::merge_policy).
    pub fn reload_policy(&mut self, objects: Vec<ManagedObject>) -> Result<Changes, ModelError> {
        let changes = self.core.reload_policy(objects, self.now, self.actions)?;
        self.changed |= !changes.is_empty();
        Ok(changes)
    }

    /// See [`ServerCore::delete_policy`].
    pub fn delete_policy(&mut self, uris: &[Uri]) -> Changes {
        let changes = self.core.delete_policy(uris, self.now, self.actions);
        self.changed |= !changes.is_empty();
        changes
    }

    /// See [`ServerCore::begin_walk`].
    pub fn begin_walk(&mut self, store: Store, uri: Uri) -> WalkId {
        self.core.begin_walk(store, uri)
    }

    /// See [`ServerCore::walk`].
    pub fn walk(&mut self, id: WalkId, most: usize) -> Option<(Store, Vec<ManagedObject>)> {
        self.core.walk(id, most)
    }

    /// See [`ServerCore::end_walk`].
    pub fn end_walk(&mut self, id: WalkId) {
        self.core.end_walk(id);
    }
}

/// Objects that are copied in one go.
const STEP: usize = 500;

/// Has something done on the dispatcher. `None` where it is not: the server has
/// stopped, or the call panicked.
pub(super) fn call<T: Send + 'static>(
    events: &Sender<Event>,
    call: impl FnOnce(&mut ServerContext<'_>) -> T + Send + 'static,
) -> Option<T> {
    let (reply, result) = crossbeam_channel::bounded(1);
    let call = Event::Call(Box::new(move |cx| {
        guard(LOG, || {
            let _ = reply.send(call(cx));
        })
    }));
    events.send(call).ok()?;
    result.recv().ok()
}

/// All policy as it is now, copied in steps between which the dispatcher does
/// other things. `None` where the server has stopped.
pub(super) fn copy_policy(events: &Sender<Event>) -> Option<Vec<ManagedObject>> {
    let walk = call(events, |cx| cx.begin_walk(Store::Policy, Uri::root()))?;
    let mut objects = Vec::new();
    while let Some((_, next)) = call(events, move |cx| cx.walk(walk, STEP))? {
        objects.extend(next);
    }
    Some(objects)
}

/// All state of a server.
pub(super) struct Dispatcher {
    core: ServerCore,
    links: Links,
    /// The connections for control, each with the walk that it has begun.
    controls: HashMap<ConnectionId, Option<WalkId>>,
    actions: Vec<Action>,
    /// Until when the dispatcher waits.
    waits_until: Option<Instant>,
    keeper: Option<keeper::Ask>,
    editor: Option<Sender<Job>>,
    connections: Arc<AtomicUsize>,
    grace: Duration,
    stopping: Option<Instant>,
    exiting: bool,
}

impl Dispatcher {
    pub(super) fn new(
        core: ServerCore,
        keeper: Option<keeper::Ask>,
        editor: Option<Sender<Job>>,
        connections: Arc<AtomicUsize>,
        grace: Duration,
    ) -> Self {
        Self {
            core,
            links: Links::default(),
            controls: HashMap::new(),
            actions: Vec::new(),
            waits_until: None,
            keeper,
            editor,
            connections,
            grace,
            stopping: None,
            exiting: false,
        }
    }

    /// Whether [`Event::Exit`] has come and every connection has ended.
    pub(super) fn is_over(&self) -> bool {
        self.exiting && self.links.is_empty()
    }

    /// Until when the dispatcher waits for an event.
    pub(super) fn wait(&mut self) -> Option<Instant> {
        self.waits_until = self.deadline();
        self.waits_until
    }

    /// Whether something is due before the dispatcher looks.
    pub(super) fn waits_too_long(&self) -> bool {
        let (due, until) = (self.deadline(), self.waits_until);
        due.is_some_and(|due| until.is_none_or(|until| due < until))
    }

    fn deadline(&self) -> Option<Instant> {
        [self.core.next_deadline(), self.stopping]
            .into_iter()
            .flatten()
            .min()
    }

    /// The dispatcher has waited: what came, and what is due.
    pub(super) fn turn(&mut self, event: Option<Event>, deadline: Option<Instant>, now: Instant) {
        if let Some(event) = event {
            self.step(event, now);
        }
        if deadline.is_some_and(|deadline| deadline <= now) {
            self.core.tick(now, &mut self.actions);
            if self.stopping.is_some_and(|end| end <= now) {
                self.stopping = None;
                self.links.abort_all();
            }
        }
        self.perform(now);
    }

    /// A reader deals with its messages in the dispatcher's place: says
    /// whether its connection goes on, or `None` where that is not for it.
    pub(super) fn deal(
        &mut self,
        id: ConnectionId,
        messages: &mut Vec<Incoming>,
        now: Instant,
    ) -> Option<bool> {
        let ends = self.stopping.is_some() || self.exiting;
        if ends || self.controls.contains_key(&id) || !self.links.is_open(id) {
            return None;
        }
        for message in messages.drain(..) {
            self.core.message(id, message, now, &mut self.actions);
        }
        self.perform(now);
        Some(self.links.is_open(id))
    }

    fn step(&mut self, event: Event, now: Instant) {
        match event {
            Event::Opened(opened, dialled, is_control) => {
                let id = opened.id;
                info!(target: LOG, "{id} is {}", opened.peer);
                self.links.add(opened);
                if self.stopping.is_some() || self.exiting {
                    self.links.close(id);
                } else if is_control {
                    self.controls.insert(id, None);
                } else {
                    self.core.connected(id, dialled, now, &mut self.actions);
                }
            }
            Event::Link(LinkEvent::Messages(id, messages)) => {
                let is_control = self.controls.contains_key(&id);
                for message in messages {
                    if is_control {
                        self.control(id, message, now);
                    } else {
                        self.core.message(id, message, now, &mut self.actions);
                    }
                }
                self.links.took_turn(id);
            }
            Event::Link(LinkEvent::Heard(id)) => self.core.heard(id, now),
            Event::Link(LinkEvent::Started(id, link)) => {
                if let Err(e) = self.links.started(id, link) {
                    warn!(target: LOG, "{id}: cannot start a thread: {e}");
                    self.ended(id, now);
                    self.gone();
                }
            }
            Event::Link(LinkEvent::Ended(id, reason)) => {
                info!(target: LOG, "{id} ({}) ended: {reason}", self.links.peer(id));
                self.ended(id, now);
            }
            Event::Link(LinkEvent::Finished(id)) => {
                self.links.finished(id);
                self.gone();
            }
            Event::Call(call) => self.call(now, call),
            Event::Stop => {
                self.stopping = Some(now + self.grace);
                self.links.close_all();
            }
            Event::Exit => self.exiting = true,
            // That is done after every event.
            Event::Look => {}
        }
    }

    fn call<T>(&mut self, now: Instant, call: impl FnOnce(&mut ServerContext<'_>) -> T) -> T {
        let mut cx = ServerContext {
            core: &mut self.core,
            now,
            actions: &mut self.actions,
            changed: false,
        };
        let result = call(&mut cx);
        if let Some(keeper) = self.keeper.as_ref().filter(|_| cx.changed) {
            keeper.soon();
        }
        result
    }

    /// A message on a connection for control. An edit is answered when it is
    /// made and kept.
    fn control(&mut self, id: ConnectionId, message: Incoming, now: Instant) {
        let Incoming::Request {
            id: request_id,
            request,
        } = message
        else {
            if let Incoming::Refused {
                id: request, error, ..
            } = message
            {
                self.send(id, control::failure(&request, &error));
            }
            return;
        };
        let mut walk = self.controls.get(&id).copied().flatten();
        let answer = self.call(now, |cx| control::carry_out(cx, &mut walk, request_id, request));
        self.controls.insert(id, walk);
        let edit = match answer {
            control::Answer::Now(frame) => return self.send(id, frame),
            control::Answer::Later(edit) => edit,
        };
        let Some((editor, outbox)) = self.editor.as_ref().zip(self.links.outbox(id)) else {
            return;
        };
        let busy = edit.busy();
        let job: Job = Box::new(move |events, keeper| {
            let frame = edit.make(events, keeper);
            // Who left before the answer needs none.
            let _ = outbox.push(crate::transport::Outgoing::whole(frame, 1));
        });
        if editor.try_send(job).is_err() {
            self.send(id, busy);
        }
    }

    fn send(&mut self, connection: ConnectionId, frame: bytes::Bytes) {
        self.actions.push(Action::Send { connection, frame });
    }

    fn too_slow(&mut self, id: ConnectionId, now: Instant) {
        warn!(target: LOG, "{id} ({}) is too slow: its queue is full, it is disconnected", self.links.peer(id));
        self.links.abort(id);
        self.core.disconnected(id, now, &mut self.actions);
    }

    /// Does what the core wants done; what comes of that, too.
    fn perform(&mut self, now: Instant) {
        let mut actions = std::mem::take(&mut self.actions);
        while !actions.is_empty() {
            for action in actions.drain(..) {
                match action {
                    Action::Send { connection, frame } => {
                        if let Err(slow) = self.links.send(connection, frame) {
                            self.too_slow(slow, now);
                        }
                    }
                    Action::Close { connection, .. } => self.links.close(connection),
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

    fn ended(&mut self, id: ConnectionId, now: Instant) {
        match self.controls.remove(&id) {
            Some(walk) => walk.into_iter().for_each(|walk| self.core.end_walk(walk)),
            None => self.core.disconnected(id, now, &mut self.actions),
        }
    }

    fn gone(&self) {
        self.connections.fetch_sub(1, Ordering::AcqRel);
    }
}
