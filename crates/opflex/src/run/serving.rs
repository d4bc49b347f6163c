//! What owns a [`ServerCore`]: the state of a server's dispatcher, control
//! connections included.

use std::collections::HashMap;
use std::time::Instant;

use bytes::Bytes;
use crossbeam_channel::Sender;
use log::{Level, debug, info, log, warn};

use super::connection::{Messages, Peers, Shown, deal};
use super::editing::Job;
use super::figures::ServerFigures;
use super::journal::Line;
use super::{SERVER_LOG as LOG, control, guard, keeper};
use crate::message::Incoming;
use crate::model::{Changes, Edit, ManagedObject, ModelError, Uri};
use crate::peer::{ConnectionId, host};
use crate::server::{self, ServerCore, Store, WalkId};
use ssntp_transport::LogLimit;
use ssntp_transport::dispatch::{Action, Core, DispatchEvent, Events, View};
use ssntp_transport::excerpt;
use ssntp_transport::{self, EndReason, Gauge, Outgoing};

/// The way into a server's dispatcher.
pub(super) type ServingEvents = Events<DispatchEvent<Serving>>;

/// The server, for a call on its dispatcher.
#[derive(Debug)]
pub struct ServerContext<'a> {
    core: &'a mut ServerCore,
    now: Instant,
    actions: &'a mut Vec<server::Action>,
    /// What was edited, for the file that policy is kept in.
    edits: Option<Vec<Line>>,
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

    /// See [`ServerCore::edit`].
    ///
    /// # Errors
    /// The objects are malformed or not what the model allows.
    pub fn edit(&mut self, edit: Edit) -> Result<Changes, ModelError> {
        let changes = self.core.edit(edit, self.now, self.actions)?;
        if let Some(edits) = self.edits.as_mut().filter(|_| !changes.is_empty()) {
            edits.push(Line::of(&changes, self.core.policy()));
        }
        Ok(changes)
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
    events: &ServingEvents,
    call: impl FnOnce(&mut ServerContext<'_>) -> T + Send + 'static,
) -> Option<T> {
    let (reply, result) = crossbeam_channel::bounded(1);
    let call = DispatchEvent::Call(Box::new(move |serving: &mut Serving, now, actions| {
        guard(LOG, || {
            let _ = reply.send(serving.call(now, call));
        });
        serving.hand_on(actions);
    }));
    events.send(call).ok()?;
    events.answer(&result)
}

/// All policy as it is now, copied in steps between which the dispatcher does
/// other things. `None` where the server has stopped.
pub(super) fn copy_policy(events: &ServingEvents) -> Option<Vec<ManagedObject>> {
    let walk = call(events, |cx| cx.begin_walk(Store::Policy, Uri::root()))?;
    let mut objects = Vec::new();
    while let Some((_, next)) = call(events, move |cx| cx.walk(walk, STEP))? {
        objects.extend(next);
    }
    Some(objects)
}

/// Newcomers whose TLS handshake was with an acceptor from before this one are not
/// admitted any more. Those who are there, and what they have shown. `None` where the
/// server has stopped.
pub(super) fn tls_replaced(events: &ServingEvents, generation: u64) -> Option<Vec<(ConnectionId, Shown)>> {
    let (reply, result) = crossbeam_channel::bounded(1);
    let call = move |serving: &mut Serving, _, _: &mut Vec<Action>| {
        serving.generation = serving.generation.max(generation);
        let clients = serving.peers.shown();
        let clients = clients.filter(|(connection, _)| !serving.controls.contains_key(connection));
        let clients = clients.map(|(connection, shown)| (connection, Shown::clone(shown)));
        let _ = reply.send(clients.collect());
    };
    events.send(DispatchEvent::Call(Box::new(call))).ok()?;
    events.answer(&result)
}

/// Ends the connections of clients that are not trusted any more, each for its
/// reason.
pub(super) fn end_untrusted(events: &ServingEvents, untrusted: Vec<(ConnectionId, String)>) {
    let call = move |serving: &mut Serving, now, actions: &mut Vec<Action>| {
        for (connection, why) in untrusted {
            let name = serving.peers.name(connection).map(str::to_owned);
            let Some(name) = name else { continue };
            if let Some(more) = serving.log.admit(host(&name), "not trusted", now) {
                warn!(target: LOG, "{name} ({connection}) is not trusted any more, it is disconnected: {why}{more}");
            }
            serving.peers.end(connection, actions);
            serving.gone(connection, now);
        }
        serving.hand_on(actions);
    };
    let _ = events.send(DispatchEvent::Call(Box::new(call)));
}

/// Control connections beyond the most clients at a time.
const CONTROLS: usize = 16;

/// A newcomer.
#[derive(Debug)]
pub(super) struct Request {
    /// The address of ours that it reached, where there is one.
    pub(super) dialled: Option<String>,
    pub(super) is_control: bool,
    /// Who it is, for the log.
    pub(super) peer: String,
    pub(super) shown: Shown,
    /// Which acceptor it had its handshake with: they are counted.
    pub(super) generation: u64,
}

/// All state of a server.
pub(super) struct Serving {
    core: ServerCore,
    peers: Peers,
    /// The connections for control, each with the walk that it has begun.
    controls: HashMap<ConnectionId, Option<WalkId>>,
    /// What the core wants done and nobody has been told yet.
    wanted: Vec<server::Action>,
    events: ServingEvents,
    keeper: Option<keeper::Ask>,
    editor: Option<Sender<Job>>,
    max: usize,
    stopping: bool,
    /// The acceptor that newcomers have to have had their handshake with.
    generation: u64,
    /// What clients may cause in the log, by host.
    log: LogLimit<String>,
}

impl Serving {
    /// A server with at most so many clients.
    pub(super) fn new(
        core: ServerCore,
        events: ServingEvents,
        keeper: Option<keeper::Ask>,
        editor: Option<Sender<Job>>,
        max: usize,
    ) -> Self {
        Self {
            core,
            peers: Peers::default(),
            controls: HashMap::new(),
            wanted: Vec::new(),
            events,
            keeper,
            editor,
            max,
            stopping: false,
            generation: 0,
            log: LogLimit::default(),
        }
    }

    fn call<T>(&mut self, now: Instant, call: impl FnOnce(&mut ServerContext<'_>) -> T) -> T {
        let mut cx = ServerContext {
            core: &mut self.core,
            now,
            actions: &mut self.wanted,
            edits: self.keeper.is_some().then(Vec::new),
        };
        let result = call(&mut cx);
        let edits = cx.edits.unwrap_or_default();
        if let Some(keeper) = self.keeper.as_ref().filter(|_| !edits.is_empty()) {
            keeper.changed(edits);
        }
        result
    }

    /// What it knows, but for what only others know.
    pub(super) fn figures(&self, view: &View<'_, Messages>) -> ServerFigures {
        let core = &self.core;
        ServerFigures {
            sessions: core.sessions(view.now),
            agents: Vec::new(),
            requests: core.requests(),
            max_sessions: self.max,
            handshakes: 0,
            max_handshakes: 0,
            policy_objects: core.policy().len(),
            policy_revision: core.policy_revision(),
            endpoint_objects: core.endpoints().len(),
            reports: core.observer().len(),
            series: core.observer().series(),
            dispatcher: view.dispatcher,
            queues: view.queues,
            received: view.received,
        }
    }

    fn send(&mut self, connection: ConnectionId, frame: Bytes) {
        self.wanted.push(server::Action::Send { connection, frame });
    }

    /// A message on a connection for control. An edit is answered when it is
    /// made and kept.
    fn control(&mut self, id: ConnectionId, message: Incoming, now: Instant) {
        let (request_id, request) = match message {
            Incoming::Request { id, request } => (id, request),
            Incoming::Refused {
                id: refused, error, ..
            } => {
                return self.send(id, control::failure(&refused, &error));
            }
            _ => return,
        };
        let mut walk = self.controls.get(&id).copied().flatten();
        let answer = self.call(now, |cx| control::carry_out(cx, &mut walk, request_id, request));
        self.controls.insert(id, walk);
        let edit = match answer {
            control::Answer::Now(frame) => return self.send(id, frame),
            control::Answer::Later(edit) => edit,
        };
        let Some(editor) = &self.editor else { return };
        let (busy, events) = (edit.busy(), self.events.clone());
        let job: Job = Box::new(move |keeper| {
            let frame = edit.make(&events, keeper);
            let answer = move |serving: &mut Self, _, actions: &mut Vec<Action>| {
                serving.send(id, frame);
                serving.hand_on(actions);
            };
            let _ = events.send(DispatchEvent::Call(Box::new(answer)));
        });
        if editor.try_send(job).is_err() {
            self.send(id, busy);
        }
    }

    /// Hands on what the core wants done; frames may still be joined by more.
    fn join(&mut self, actions: &mut Vec<Action>) {
        for action in self.wanted.drain(..) {
            match action {
                server::Action::Send { connection, frame } => {
                    self.core.count_sent(connection, frame.len() as u64);
                    self.peers.send(connection, frame, actions);
                }
                server::Action::Close { connection, .. } => self.peers.end(connection, actions),
            }
        }
    }

    fn hand_on(&mut self, actions: &mut Vec<Action>) {
        self.join(actions);
        self.peers.flush(actions);
    }

    fn gone(&mut self, connection: ConnectionId, now: Instant) {
        match self.controls.remove(&connection) {
            Some(walk) => walk.into_iter().for_each(|walk| self.core.end_walk(walk)),
            None => self.core.disconnected(connection, now, &mut self.wanted),
        }
    }
}

impl Core for Serving {
    type Item = Messages;
    type Request = Request;
    type Grant = ConnectionId;
    type Place = ();
    type Refusal = String;

    fn admit(
        &mut self,
        id: ssntp_transport::ConnectionId,
        request: Request,
        _: Gauge,
        standing: usize,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(ConnectionId, ()), String> {
        // Whoever looks after a server that is full is let in.
        let beyond = if request.is_control { CONTROLS } else { 0 };
        let max = self.max.saturating_add(beyond);
        if self.stopping {
            return Err("the server is shutting down".to_owned());
        }
        if request.generation < self.generation {
            return Err("the certificates of the server were replaced during its handshake".to_owned());
        }
        if standing >= max {
            return Err(format!("{max} clients are connected"));
        }
        let connection = ConnectionId(id.sequence());
        if let Some(more) = self.log.admit(host(&request.peer), "connected", now) {
            info!(target: LOG, "{} ({connection}) is connected{more}", request.peer);
        }
        self.peers.add(id, connection, request.peer.clone());
        self.peers.has_shown(connection, request.shown);
        if request.is_control {
            self.controls.insert(connection, None);
        } else {
            let dialled = request.dialled;
            self.core
                .connected(connection, request.peer, dialled, now, &mut self.wanted);
        }
        self.hand_on(actions);
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
        let is_control = self.controls.contains_key(&connection);
        let dealt = deal(messages, most, actions, |messages, actions| {
            // An answer that is not over comes first, piece by piece.
            let did = self.core.go_on(connection, &mut self.wanted)
                || messages.next().is_some_and(|message| {
                    if is_control {
                        self.control(connection, message, now);
                    } else {
                        self.core.message(connection, message, now, &mut self.wanted);
                    }
                    true
                });
            self.join(actions);
            did.then(|| self.core.is_answering(connection))
        });
        self.peers.flush(actions);
        dealt
    }

    fn received(&mut self, id: ssntp_transport::ConnectionId, bytes: u64, now: Instant) {
        if let Some(connection) = self.peers.connection(id) {
            self.core.heard(connection, now);
            self.core.count_received(connection, bytes);
        }
    }

    fn ended(
        &mut self,
        id: ssntp_transport::ConnectionId,
        reason: EndReason,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        if let Some((connection, peer)) = self.peers.remove(id) {
            if let Some(more) = self.log.admit(host(&peer), "ended", now) {
                // Who broke the protocol has been refused.
                let level = match reason {
                    EndReason::Protocol(_) => Level::Warn,
                    _ => Level::Info,
                };
                log!(target: LOG, level, "{peer} ({connection}) ended: {}{more}", excerpt(&reason));
            }
            self.gone(connection, now);
            self.hand_on(actions);
        }
    }

    fn left(&mut self, id: ssntp_transport::ConnectionId, items: Vec<Messages>) {
        let messages: usize = items.iter().map(Messages::len).sum();
        debug!(target: LOG, "{}: {messages} messages of it were not dealt with", ConnectionId(id.sequence()));
    }

    fn full(
        &mut self,
        to: ssntp_transport::ConnectionId,
        _: Outgoing,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> bool {
        if let Some((connection, peer)) = self.peers.remove(to) {
            if let Some(more) = self.log.admit(host(&peer), "too slow", now) {
                warn!(target: LOG, "{peer} ({connection}) is too slow: its queue is full, it is disconnected{more}");
            }
            actions.push(Action::End { id: to, abort: true });
            self.gone(connection, now);
            self.hand_on(actions);
        }
        false
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        self.core.next_deadline()
    }

    fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.core.tick(now, &mut self.wanted);
        self.hand_on(actions);
    }

    fn stop(&mut self, _: Instant, actions: &mut Vec<Action>) {
        self.stopping = true;
        self.peers.end_all(actions);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use bytes::BytesMut;

    use super::*;
    use crate::message::Decoder;
    use crate::rpc::{Framing, Limits};
    use crate::run::now as clock;
    use crate::server::Settings;
    use ssntp_transport::Tried;
    use ssntp_transport::dispatch::{EVENTS, Runner, Settings as Running, events};
    use ssntp_transport::{Budget, Credit, Limits as Queue, Outbox, PATIENCE, Transmit};

    /// A server without threads.
    struct Bench {
        runner: Runner<Serving>,
        now: Instant,
        credits: HashMap<ssntp_transport::ConnectionId, Arc<Credit>>,
    }

    impl Bench {
        fn new(core: ServerCore, max: usize, now: Instant) -> Self {
            let (events, _) = events::channel(EVENTS);
            let settings = Running {
                queue: Queue {
                    frames: 10_000,
                    bytes: 1 << 20,
                },
                budget: Budget::unlimited(),
                received: Budget::unlimited(),
                patience: PATIENCE,
                parting: PATIENCE,
                grace: PATIENCE,
            };
            let serving = Serving::new(core, events, None, None, max);
            Self {
                runner: Runner::new(serving, settings, || false),
                credits: HashMap::new(),
                now,
            }
        }

        fn connect(&mut self, is_control: bool) -> Result<(ssntp_transport::ConnectionId, Outbox), String> {
            let (reply, verdict) = crossbeam_channel::bounded(1);
            let request = Request {
                dialled: None,
                is_control,
                peer: "peer".to_owned(),
                shown: Shown::default(),
                generation: 0,
            };
            self.runner
                .handle(DispatchEvent::Admit(Box::new(request), reply), self.now);
            verdict.recv().unwrap().map(|admitted| {
                self.credits.insert(admitted.id, admitted.credit);
                (admitted.id, admitted.outbox)
            })
        }

        fn say(&mut self, id: ssntp_transport::ConnectionId, text: &str) {
            let mut messages = Vec::new();
            let mut decoder = Decoder::new(Framing::Concatenated, Limits::default());
            decoder.decode(&mut BytesMut::from(text), &mut messages).unwrap();
            self.credits[&id].spend(Credit::memory_of::<Messages>(1, 0));
            self.runner
                .handle(DispatchEvent::Items(id, vec![messages.into_iter()], 0), self.now);
            while !self.runner.is_idle() {
                self.runner.turn(self.now, || Duration::ZERO);
            }
        }

        fn core(&self) -> &ServerCore {
            &self.runner.core().core
        }
    }

    /// What has been sent.
    #[derive(Clone, Debug, Default)]
    struct Wire(Arc<Mutex<Vec<u8>>>);

    impl Transmit for Wire {
        fn transmit(&mut self, batch: &[Outgoing]) -> std::io::Result<()> {
            let parts = batch.iter().flat_map(Outgoing::parts);
            parts.for_each(|part| self.0.lock().unwrap().extend_from_slice(part));
            Ok(())
        }

        fn try_transmit(&mut self, _: &Outgoing) -> Tried {
            Tried::Not
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }

        fn finish(&mut self) -> std::io::Result<()> {
            Ok(())
        }

        fn idle(&mut self) {}
    }

    const IDENTITY: &str = r#"{"id":["send_identity",1],"method":"send_identity","params":[{"proto_version":"1.0","name":"pe","domain":"test","my_role":["policy_element"]}]}"#;

    #[test]
    fn who_takes_no_answers_is_dealt_with_no_further() {
        let now = clock();
        let mut core = ServerCore::new(Settings::new("pr1", "test"), now);
        let long = ManagedObject::new("A", "/a/".parse().unwrap()).with("name", "x".repeat(10_000));
        core.edit(Edit::Merge(vec![long]), now, &mut Vec::new()).unwrap();
        let mut bench = Bench::new(core, 10, now);
        let (id, outbox) = bench.connect(false).unwrap();
        let resolve =
            r#"{"id":2,"method":"policy_resolve","params":[{"subject":"A","policy_uri":"/a/","prr":3600}]}"#;
        bench.say(id, &format!("{IDENTITY}{}", resolve.repeat(1000)));
        let asked = bench.core().sessions(bench.now)[0]
            .counters
            .requests(crate::message::Method::PolicyResolve);
        let waiting = outbox.waiting().bytes;
        assert!(waiting <= 512 * 1024, "half of its queue: {waiting}");
        // What the queue holds, and one turn.
        assert!((30..70).contains(&asked), "{asked}");
        assert_eq!(bench.core().session_count(), 1, "it may still listen");
    }

    #[test]
    fn a_long_answer_waits_for_who_takes_it_slowly_and_arrives_whole() {
        let now = clock();
        let mut core = ServerCore::new(Settings::new("pr1", "test"), now);
        let object =
            |uri: String| ManagedObject::new("A", uri.parse().unwrap()).with("name", "x".repeat(10_000));
        let below = (0..1000).map(|n| object(format!("/a/{n}/")));
        let policy = std::iter::once(object("/a/".to_owned())).chain(below).collect();
        core.edit(Edit::Merge(policy), now, &mut Vec::new()).unwrap();
        let mut bench = Bench::new(core, 10, now);
        let (id, outbox) = bench.connect(false).unwrap();
        let resolve = r#"{"id":["policy_resolve",2],"method":"policy_resolve","params":[{"subject":"A","policy_uri":"/a/","prr":3600}]}"#;
        bench.say(id, &format!("{IDENTITY}{resolve}"));
        let mut decoder = Decoder::trusting(Framing::Nul, Limits::default());
        let (mut input, mut messages) = (BytesMut::new(), Vec::new());
        let wire = Wire::default();
        outbox.open(Box::new(wire.clone()));
        let (mut batch, mut most) = (Vec::new(), 0);
        let is_result = |message: &Incoming| {
            matches!(
                message,
                Incoming::Result {
                    reply: crate::message::Reply::Resolve(..),
                    ..
                }
            )
        };
        while !messages.iter().any(is_result) {
            most = most.max(outbox.waiting().bytes);
            let due = outbox.try_next(&mut batch).expect("there is more");
            outbox.send(due, &mut batch, &|| ()).unwrap();
            input.extend_from_slice(&std::mem::take(&mut *wire.0.lock().unwrap()));
            decoder.decode(&mut input, &mut messages).unwrap();
            bench.runner.handle(DispatchEvent::Room(id), now);
            while !bench.runner.is_idle() {
                bench.runner.turn(now, || Duration::ZERO);
            }
        }
        assert!(most < 3 << 20, "of ten megabytes, {most} waited");
        assert_eq!(bench.core().session_count(), 1);
    }

    #[test]
    fn a_long_message_on_its_way_keeps_its_session() {
        let begin = clock();
        let core = ServerCore::new(Settings::new("pr1", "test"), begin);
        let mut bench = Bench::new(core, 10, begin);
        let (silent, _) = bench.connect(false).unwrap();
        let (sends, _) = bench.connect(false).unwrap();
        for id in [silent, sends] {
            bench.say(id, IDENTITY);
        }
        for seconds in (10..300).step_by(5) {
            bench.now = begin + Duration::from_secs(seconds);
            bench
                .runner
                .handle(DispatchEvent::Items(sends, Vec::new(), 0), bench.now);
            bench.runner.next_deadline();
            bench.runner.tick(bench.now);
        }
        let sessions = bench.core().sessions(bench.now);
        assert_eq!(sessions.len(), 1);
        assert_eq!(sessions[0].connection, ConnectionId(sends.sequence()));
    }

    #[test]
    fn a_full_server_lets_in_some_who_look_after_it() {
        let now = clock();
        let core = ServerCore::new(Settings::new("pr1", "test"), now);
        let mut bench = Bench::new(core, 1, now);
        let _client = bench.connect(false).unwrap();
        assert_eq!(bench.connect(false).unwrap_err(), "1 clients are connected");
        for _ in 0..CONTROLS {
            bench.connect(true).unwrap();
        }
        assert!(bench.connect(true).is_err());
        bench.runner.handle(DispatchEvent::Stop, now);
        assert_eq!(bench.connect(false).unwrap_err(), "the server is shutting down");
    }
}
