//! The core of a server: hands each event to its owner, and collects actions.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use log::{Level, debug};

use super::agents::AgentInfo;
use super::clients::Clients;
use super::counters::RequestCounters;
use super::observer::Observer;
use super::ownership::{Declared, Ownership};
use super::push;
use super::resolves::{Resolvable, Unsent};
use super::session::{Answer, Client, Session, SessionInfo};
use super::settings::ServerSettings;
use crate::message::{
    ErrorCode, ErrorResponse, Identity, Incoming, Method, Peer, PerStore, Reply, Request, Resolve, Store,
    Update,
};
use crate::model::{
    Changes, Cursor, Edit, ManagedObject, ModelError, Name, ObjectRef, Piece, Schema, Target, Tree, Uri,
};
use crate::peer::{Action, Actions, CloseReason, ConnectionId, Due};
use crate::rpc::{Frame, Id};
use ssntp_transport::excerpt;

/// A server of OpFlex without its threads.
///
/// Threads: plain data for one owner. No call blocks.
#[derive(Debug)]
pub struct ServerCore {
    settings: ServerSettings,
    clients: Clients,
    /// Policy and endpoints.
    stores: PerStore<Resolvable>,
    /// The elements that the endpoints belong to.
    ownership: Ownership,
    observer: Observer,
    policy_revision: u64,
    /// The number of the last request of ours. All connections share it, so
    /// that one update has one id and is one sequence of bytes.
    last_xid: u64,
    actions: Actions,
}

impl ServerCore {
    /// A server without policy that takes objects of any class.
    pub fn new(settings: ServerSettings, now: Instant) -> Self {
        Self::with_schema(settings, None, now)
    }

    /// A server that takes only objects that a model file allows, as policy,
    /// as endpoints and as state reports. Without a model file, it takes any.
    pub fn with_schema(settings: ServerSettings, schema: Option<&Arc<Schema>>, now: Instant) -> Self {
        let store = || Resolvable {
            tree: schema.cloned().map_or_else(Tree::new, Tree::with_schema),
            ..Resolvable::default()
        };
        Self {
            observer: Observer::new(&settings, schema.cloned(), now),
            settings,
            clients: Clients::default(),
            stores: PerStore([store(), store()]),
            ownership: Ownership::default(),
            policy_revision: 0,
            last_xid: 0,
            actions: Actions::new(now),
        }
    }

    /// Takes the actions that the calls since the last one have added, in their order.
    /// Call it after each of the other calls, or after several.
    pub fn take_actions(&mut self) -> Vec<Action> {
        self.actions.take()
    }

    /// Begins the session of a client.
    pub fn handle_connected(&mut self, now: Instant, connection: ConnectionId, client: Client) {
        let session = Session::new(client, &self.settings, now);
        self.clients.add(connection, session);
        self.clients
            .log(now, connection, Level::Info, "connected", "connected");
        // libopflex expects an echo at once.
        self.actions.echo(connection, 0, now);
    }

    /// A connection has ended. `level` and `why` are for the log. Has no effect if the connection is
    /// unknown or was closed by the server.
    pub fn handle_disconnected(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        level: Level,
        why: impl fmt::Display,
    ) {
        if self.clients.get(connection).is_some() {
            self.clients.log(now, connection, level, "ended", excerpt(why));
            self.remove(now, connection);
        }
    }

    fn remove(&mut self, now: Instant, connection: ConnectionId) {
        if !self.clients.remove(connection, &self.settings) {
            return;
        }
        // Resolves end with the connection, because libopflex resolves again on the next one.
        for store in &mut self.stores.0 {
            store.watchers.leave(&connection);
        }
        let tree = &mut self.stores[Store::Endpoints].tree;
        let on_leave = self.settings.on_leave;
        let changes = self
            .ownership
            .handle_disconnected(now, tree, connection, on_leave);
        self.send_updates(now, Store::Endpoints, &changes);
    }

    /// Bytes of a client arrived, perhaps only a part of a message. They are counted, and show that
    /// the client is alive.
    pub fn handle_bytes(&mut self, now: Instant, connection: ConnectionId, bytes: u64) {
        if let Some(session) = self.clients.get_mut(connection) {
            session.keepalive.received(now);
            session.counters.bytes_received += bytes;
        }
    }

    /// Counts bytes that are sent to a client.
    pub fn count_sent(&mut self, connection: ConnectionId, bytes: u64) {
        self.clients
            .count(connection, |counters| counters.bytes_sent += bytes);
    }

    /// Handles a received message.
    pub fn handle_message(&mut self, now: Instant, connection: ConnectionId, message: Incoming) {
        let Some(session) = self.clients.get_mut(connection) else {
            return;
        };
        // Any message shows that the client is alive, also one that is refused.
        session.keepalive.received(now);
        let identified = session.element.is_some();
        // Answers are sent in the order of their requests.
        while self.continue_answer(connection) {}
        match message.answers() {
            Some(Method::Echo) => return,
            Some(method) if !identified => {
                return self.close(now, connection, CloseReason::ResponseBeforeIdentity(method));
            }
            _ => {}
        }
        match message {
            Incoming::Request { id, request } => {
                let method = request.method();
                // Counted before it is checked, because `requests` includes refused requests.
                self.clients.count(connection, |counters| counters.count(method));
                if !identified && !method.needs_no_identity() {
                    return self.refuse_early(now, connection, &id, Some(method));
                }
                self.handle_request(now, connection, id, request);
            }
            Incoming::Refused { id, method, error } => {
                self.clients.count(connection, |counters| match method {
                    Some(method) => counters.count(method),
                    None => counters.unknown += 1,
                });
                if !identified && !method.is_some_and(Method::needs_no_identity) {
                    return self.refuse_early(now, connection, &id, method);
                }
                self.refuse(now, connection, &id, method, &error);
            }
            // Answers to updates are ignored. The draft requires them, and libopflex sends none.
            Incoming::Result { .. } | Incoming::BadResult { .. } | Incoming::Stray { .. } => {}
            Incoming::Failure { method, error, .. } => {
                self.clients
                    .count(connection, |counters| counters.update_errors += 1);
                let text = format_args!("the client answered {method} with an error: {}", excerpt(&error));
                self.clients
                    .log(now, connection, Level::Warn, "update error", text);
            }
        }
    }

    /// True if an answer to a client is unfinished.
    pub fn is_answering(&self, connection: ConnectionId) -> bool {
        let session = self.clients.get(connection);
        session.is_some_and(|session| session.answer.is_some())
    }

    /// Sends the next piece of an unfinished answer: updates first, and the result as the last
    /// piece. Call it whenever the client's queue has room, while
    /// [`is_answering`](Self::is_answering) is true. The next message of the client sends all
    /// remaining pieces at once. Returns false if no answer is unfinished.
    pub fn continue_answer(&mut self, connection: ConnectionId) -> bool {
        let session = self.clients.get_mut(connection);
        let Some(mut answer) = session.and_then(|session| session.answer.take()) else {
            return false;
        };
        let (of, unsent) = (answer.of, &mut answer.unsent);
        let tree = &self.stores[of].tree;
        // Objects are looked up for each piece, so no copy of a large answer is kept in memory.
        let objects = unsent.next(tree, self.settings.limits.message_bytes);
        let is_over = unsent.is_empty();
        let is_nothing = is_over && objects.is_empty();
        let frame = if is_over {
            Reply::resolved(of, &answer.id, &objects)
        } else {
            let method = of.update();
            // Each piece is an update and needs an id of its own.
            let id = Id::call(method.name(), self.last_xid + 1);
            Frame::request(&id, method.name(), &[Update::created(of, objects)])
        };
        self.last_xid += u64::from(!is_over);
        if let Some(session) = self.clients.get_mut(connection) {
            session.counters.updates += u64::from(!is_over);
            session.counters.unavailable += u64::from(is_nothing && !answer.is_begun);
            answer.is_begun = true;
            session.answer = (!is_over).then_some(answer);
        }
        self.actions.send(connection, frame);
        true
    }

    /// The time at which [`handle_deadline`](Self::handle_deadline) has to be called.
    pub fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [
            self.clients.next_deadline(),
            self.ownership.next_deadline(),
            self.observer.next_deadline(),
        ];
        let of_watchers = self.stores.0.iter().map(|store| store.watchers.next_deadline());
        deadlines.into_iter().chain(of_watchers).flatten().min()
    }

    /// Does everything that is due at `now`.
    pub fn handle_deadline(&mut self, now: Instant) {
        while let Some((connection, due)) = self.clients.due(now) {
            match due {
                Due::Echo(number) => self.actions.echo(connection, number, now),
                Due::Close(reason) => self.close(now, connection, reason),
            }
        }
        // No message is sent, because the client knows its refresh rate.
        for store in &mut self.stores.0 {
            while store.watchers.expired(now).is_some() {}
        }
        self.observer.handle_deadline(now);
        let tree = &mut self.stores[Store::Endpoints].tree;
        let changes = self.ownership.handle_deadline(now, tree);
        self.send_updates(now, Store::Endpoints, &changes);
    }

    /// All policy.
    pub fn policy(&self) -> &Tree {
        &self.stores[Store::Policy].tree
    }

    /// All endpoints.
    pub fn endpoints(&self) -> &Tree {
        &self.stores[Store::Endpoints].tree
    }

    /// The objects at and below a URI, parents before children: as many as fit into the piece, and
    /// only those behind `after` in the order of the URIs. So a caller can copy a large tree in short
    /// steps. The tree may change between two steps; see [`policy_revision`](Self::policy_revision).
    pub(crate) fn page(
        &self,
        store: Store,
        below: Uri,
        after: Option<Uri>,
        piece: &mut Piece,
    ) -> Vec<ObjectRef<'_>> {
        let mut cursor = Cursor::below(below);
        after.into_iter().for_each(|uri| cursor.pass(uri));
        cursor.take(&self.stores[store].tree, piece)
    }

    /// The declaration of an endpoint, by its topmost object.
    pub fn declaration(&self, uri: &Uri) -> Option<Declared> {
        self.ownership.declaration(uri)
    }

    /// All state reports.
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Changes policy, and sends updates to the clients that resolve the changed objects.
    ///
    /// # Errors
    /// The objects are malformed, or do not fit the model. The policy is unchanged.
    pub fn edit(&mut self, edit: Edit, now: Instant) -> Result<Changes, ModelError> {
        let changes = self.stores[Store::Policy].tree.edit(edit)?;
        self.send_updates(now, Store::Policy, &changes);
        Ok(changes)
    }

    /// Sets the list of servers for elements that send their identity from now on.
    pub fn set_peers(&mut self, peers: Vec<Peer>) {
        self.settings.peers = peers;
    }

    /// The revision of policy. It grows with each edit that changes policy.
    pub fn policy_revision(&self) -> u64 {
        self.policy_revision
    }

    /// Sets the revision of the present policy.
    pub fn begin_at_revision(&mut self, revision: u64) {
        self.policy_revision = revision;
    }

    /// The clients, in the order in which they connected.
    pub fn sessions(&self, now: Instant) -> Vec<SessionInfo> {
        let info = |(connection, session): (&ConnectionId, &Session)| {
            let element = session.element.as_ref();
            SessionInfo {
                connection: *connection,
                address: session.client.address.clone(),
                name: element.map(|element| element.name.clone()),
                roles: element.map_or_else(Vec::new, |element| element.roles.clone()),
                location: element.and_then(|element| element.location.clone()),
                seconds: now.saturating_duration_since(session.since).as_secs(),
                policies: self.stores[Store::Policy].watchers.count(connection),
                endpoint_resolves: self.stores[Store::Endpoints].watchers.count(connection),
                endpoints: self.ownership.count(*connection),
                counters: session.counters,
            }
        };
        let mut sessions: Vec<_> = self.clients.iter().map(info).collect();
        sessions.sort_by_key(|session| session.connection);
        sessions
    }

    /// Agents that have sent their name, including those that have left, in the order of
    /// their names: at most `most`, and only those after `name`.
    pub fn agents_after(&self, name: Option<&Name>, most: usize, now: Instant) -> Vec<AgentInfo> {
        self.clients.agents_after(now, name, most)
    }

    /// The sum of the counters of all agents since the server started. It includes removed agents and
    /// never falls.
    pub fn requests(&self) -> RequestCounters {
        self.clients.counters()
    }

    /// The number of connected clients.
    pub fn session_count(&self) -> usize {
        self.clients.len()
    }

    /// Carries out a request in one step, for which all other clients wait. The limit for the memory of a
    /// message's values keeps it below 100,000 objects; 20,000 endpoints took 0.6 s in a debug build on a
    /// machine that had much else to do.
    fn handle_request(&mut self, now: Instant, connection: ConnectionId, id: Id, request: Request) {
        let method = request.method();
        let done = || Reply::done(method).to_frame(&id);
        let session = self.clients.get(connection);
        let element = session.and_then(|session| session.element.as_ref());
        // Without an element, the method is one that needs no identity and does not use the name.
        let element = element.map_or_else(|| Name::from(""), |element| element.name.clone());
        let answer = match request {
            Request::Echo(echo) => Ok(Frame::result(&id, &echo.answer())),
            Request::SendIdentity(identity) => self.handle_identity(now, connection, &id, *identity),
            _ if !self.settings.roles.contains(&method.role()) => Err(ErrorResponse::boxed(
                ErrorCode::EUNSUPPORTED,
                format_args!("this server does not take {method}"),
            )),
            Request::Resolve(of, resolves) => {
                self.log_other_classes(now, connection, of, &resolves);
                match self.stores[of].resolve(connection, resolves, &self.settings, now) {
                    Ok(unsent) => return self.begin_answer(connection, id, of, unsent),
                    Err(refusal) => Err(refusal),
                }
            }
            Request::Unresolve(of, unresolves) => {
                // An unresolve without a resolve succeeds, too: libopflex never repeats an unresolve.
                for Resolve { subject, target, .. } in &unresolves {
                    self.stores[of].watchers.unwatch(&connection, subject, target);
                }
                Ok(done())
            }
            Request::EndpointDeclare(mut declares) => {
                let objects = declares.iter_mut().map(|declare| &mut declare.endpoint);
                // As libopflex. A refusal would stop an agent with a newer model.
                self.leave_out_unknown(now, connection, method, objects);
                let tree = &mut self.stores[Store::Endpoints].tree;
                let from = (&element, connection);
                let changes = self
                    .ownership
                    .handle_declare(now, tree, from, declares, &self.settings);
                changes.map(|changes| {
                    self.send_updates(now, Store::Endpoints, &changes);
                    done()
                })
            }
            Request::EndpointUndeclare(undeclares) => {
                let tree = &mut self.stores[Store::Endpoints].tree;
                let changes = self.ownership.handle_undeclare(tree, &element, &undeclares);
                self.send_updates(now, Store::Endpoints, &changes);
                Ok(done())
            }
            Request::StateReport(mut reports) => {
                let objects = reports.iter_mut().map(|report| &mut report.observable);
                self.leave_out_unknown(now, connection, method, objects);
                self.observer
                    .handle_report(now, &element, reports)
                    .map(|()| done())
            }
            // Only a server sends updates.
            Request::Update(..) | Request::Custom(_) => Err(ErrorResponse::boxed(
                ErrorCode::EUNSUPPORTED,
                format_args!("a server does not take {method}"),
            )),
        };
        match answer {
            Ok(frame) => self.actions.send(connection, frame),
            Err(refusal) => self.refuse(now, connection, &id, Some(method), &refusal),
        }
    }

    /// Removes objects and properties that the model does not define, as libopflex does, and logs
    /// and counts them.
    fn leave_out_unknown<'a>(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        method: Method,
        objects: impl Iterator<Item = &'a mut Vec<ManagedObject>>,
    ) {
        let unknown: usize = match self.policy().schema() {
            Some(schema) => objects.map(|objects| schema.leave_out_unknown(objects)).sum(),
            None => 0,
        };
        if unknown > 0 {
            self.clients
                .count(connection, |counters| counters.left_out += unknown as u64);
            let text =
                format_args!("{method}: {unknown} objects and properties unknown to the model are left out");
            self.clients
                .log(now, connection, Level::Warn, "unknown to the model", text);
        }
    }

    /// Logs resolves whose class is not the class of the object. They are answered without the
    /// object and without an error: agent-ovs resolves `GbpSubnets` with the URI of a
    /// `GbpSubnet`, and would repeat a refused resolve for ever.
    fn log_other_classes(&mut self, now: Instant, connection: ConnectionId, of: Store, resolves: &[Resolve]) {
        for Resolve { subject, target, .. } in resolves {
            if let Target::Uri(uri) = target
                && let Some(there) = self.stores[of].tree.get(uri)
                && there.subject() != subject
            {
                let there = there.subject();
                let text = format_args!("{uri} is a {there}, not a {subject}: the answer has no object");
                self.clients
                    .log(now, connection, Level::Warn, "other class", excerpt(text));
            }
        }
    }

    fn begin_answer(&mut self, connection: ConnectionId, id: Id, of: Store, unsent: Unsent) {
        if let Some(session) = self.clients.get_mut(connection) {
            session.answer = Some(Answer {
                id,
                of,
                unsent,
                is_begun: false,
            });
            self.continue_answer(connection);
        }
    }

    fn handle_identity(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        id: &Id,
        identity: Identity,
    ) -> Result<Bytes, Box<ErrorResponse>> {
        let identified = self
            .clients
            .handle_identity(now, connection, identity, &self.settings);
        let (result, replaced) = identified?;
        self.actions.push(Action::Identified { connection });
        if let Some(other) = replaced {
            self.close(now, other, CloseReason::Replaced);
        }
        Ok(Frame::result(id, &result))
    }

    fn refuse_early(&mut self, now: Instant, connection: ConnectionId, id: &Id, method: Option<Method>) {
        let error = ErrorResponse::new(ErrorCode::ESTATE, "the identity must be sent first");
        // The answer is sent before the connection ends, so that the peer gets the reason.
        self.refuse(now, connection, id, method, &error);
        self.close(now, connection, CloseReason::RequestBeforeIdentity(method));
    }

    fn refuse(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        id: &Id,
        method: Option<Method>,
        error: &ErrorResponse,
    ) {
        if method == Some(Method::SendIdentity) {
            // A warning: no other line shows why an element is missing.
            let why = excerpt(error);
            let text = format_args!("its identity is refused: {why}");
            self.clients
                .log(now, connection, Level::Warn, "identity refused", text);
        } else {
            debug!("{connection}: refused: {}", excerpt(error));
        }
        if let Some(method) = method {
            self.clients
                .count(connection, |counters| counters.count_refused(method));
        }
        self.actions.send(connection, Frame::failure(id, error));
    }

    fn close(&mut self, now: Instant, connection: ConnectionId, reason: CloseReason) {
        let Some(session) = self.clients.get(connection) else {
            return;
        };
        // A warning before the identity: no other line shows why an element is missing.
        let level = match session.element {
            None => Level::Warn,
            Some(_) => Level::Info,
        };
        let why = excerpt(&reason);
        let text = format_args!("closed: {why}");
        self.clients.log(now, connection, level, "closed", text);
        self.actions.push(Action::Close { connection, reason });
        self.remove(now, connection);
    }

    /// Sends the updates for changes. An update is built once for all its receivers.
    fn send_updates(&mut self, now: Instant, of: Store, changes: &Changes) {
        // An edit without changes keeps the revision, so that --if-revision does not fail for it.
        self.policy_revision += u64::from(of == Store::Policy && !changes.is_empty());
        let method = of.update();
        for (receivers, pieces) in push::updates(of, &self.stores[of], changes, &self.settings.limits, now) {
            for update in pieces {
                self.last_xid += 1;
                let id = Id::call(method.name(), self.last_xid);
                let frame = Frame::request(&id, method.name(), &[update]);
                for connection in &receivers {
                    let (connection, frame) = (*connection, frame.clone());
                    self.clients.count(connection, |counters| counters.updates += 1);
                    self.actions.send(connection, frame);
                }
            }
        }
    }
}
