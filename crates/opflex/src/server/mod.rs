//! The server: policy repository, endpoint registry and observer, in any
//! combination, as one state machine without sockets, threads or clock.
//!
//! ```text
//!                 connected, message, disconnected, tick, edit …
//!                                      │
//!            ┌─────────────────────────▼─────────────────────────┐
//!            │ ServerCore  sessions ─ identity, echoes, counters │
//!            │             │                                     │
//!            │   ┌─────────┴──────┬───────────────────┐          │
//!            │   ▼                ▼                   ▼          │
//!            │ policy         endpoint             observer      │
//!            │ repository     registry               reports     │
//!            │   tree           tree, declarations   numbers     │
//!            │   watchers       watchers                         │
//!            │   └──── Changes ─┴──> push: updates               │
//!            └─────────────────────────┬─────────────────────────┘
//!                                      ▼
//!                      Action::Send(frame) | Action::Close
//! ```
//!
//! One dispatcher owns a [`ServerCore`]. The dispatcher calls the core for each event and
//! passes the time; each call appends [`Action`]s to a list, which the dispatcher carries
//! out. No call blocks. A slow client does not delay other clients, because each client
//! has a queue of its own. A session:
//!
//! ```text
//!  client                                   server
//!    │ connect ────────────────────────────────>│ connected
//!    │<──────────────────────── echo, at once ──│
//!    │ echo ───────────────────────────────────>│ answered, before any identity
//!    │ send_identity ──────────────────────────>│ EPROTO, EDOMAIN, ELOCATION, or
//!    │<──────────────── name, roles, location, ─│
//!    │                  peers with this server  │
//!    │ policy_resolve {uri, prr} ──────────────>│ watch uri until now + prr
//!    │<──────────────────── objects, or none ───│ many: policy_update first
//!    │<── policy_update ────────────────────────│ an edit at or below uri
//!    │ policy_unresolve {uri} ─────────────────>│ end the watch
//!    │ anything else, before send_identity ────>│ ESTATE, and the connection ends
//! ```
//!
//! A large policy is sent in pieces. Each piece is made when the client's queue has room for
//! it. All pieces but the last are updates, and the last piece is the result. So a client
//! has the whole policy when the result arrives.
//!
//! | file | contents |
//! |---|---|
//! | `settings` | the settings |
//! | `session` | one client: identity, keep-alive |
//! | `counters` | counts of a client's requests |
//! | `agents` | the same counts by name, over all sessions of an agent |
//! | `requests` | the methods |
//! | `resolves` | a tree with its resolves, and unfinished answers |
//! | `ownership` | the element that each endpoint belongs to |
//! | `endpoint_registry`, `observer` | two of the three roles; the policy repository is only a tree with resolves |
//! | `push` | makes updates of changes, and finds their receivers |
//! | `roll_up` | numbers over time |

mod agents;
mod counters;
mod endpoint_registry;
mod observer;
mod ownership;
mod push;
mod requests;
mod resolves;
mod roll_up;
mod session;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use log::{Level, error};

pub use self::agents::AgentInfo;
use self::agents::Agents;
pub use self::counters::RequestCounters;
pub use self::observer::{Exported, Observer, Report};
pub use self::ownership::Declared;
use self::ownership::Ownership;
use self::resolves::Resolvable;
pub use self::roll_up::{Interval, Row};
pub use self::session::SessionInfo;
use self::session::{Element, Session};
pub use self::settings::{OnLeave, RollUp, ServerLimits, Settings};
pub use super::message::Store;
use super::message::{Incoming, Method, Peer, PerStore, Reply, Update};
use super::model::{Changes, Cursor, Edit, ModelError, Name, ObjectRef, Piece, Schema, Tree, Uri};
pub use super::peer::Action;
use super::peer::{Actions, Beat, CloseReason, ConnectionId, host};
use super::rpc::{Frame, Id};
use ssntp_transport::{Deadlines, LogLimit, excerpt};

/// A server of OpFlex without its threads.
///
/// Threads: plain data for one owner. No call blocks.
#[derive(Debug)]
pub struct ServerCore {
    settings: Settings,
    sessions: HashMap<ConnectionId, Session>,
    timers: Deadlines<ConnectionId>,
    agents: Agents,
    /// Policy and endpoints.
    stores: PerStore<Resolvable>,
    /// The elements that the endpoints belong to.
    ownership: Ownership,
    observer: Observer,
    policy_revision: u64,
    /// The number of the last request of ours. All connections share it, so
    /// that one update has one id and is one sequence of bytes.
    last_xid: u64,
    /// Limits the log lines that clients cause, by host.
    log: LogLimit<String>,
    actions: Actions,
}

impl ServerCore {
    /// A server without policy that takes objects of any class.
    pub fn new(settings: Settings, now: Instant) -> Self {
        Self::with_schema(settings, None, now)
    }

    /// A server that takes only objects that a model file allows, as policy,
    /// as endpoints and as state reports. Without a model file, it takes any.
    pub fn with_schema(settings: Settings, schema: Option<&Arc<Schema>>, now: Instant) -> Self {
        let store = || Resolvable {
            tree: schema.cloned().map_or_else(Tree::new, Tree::with_schema),
            ..Resolvable::default()
        };
        Self {
            observer: Observer::new(&settings, schema.cloned(), now),
            settings,
            sessions: HashMap::new(),
            timers: Deadlines::default(),
            agents: Agents::default(),
            stores: PerStore([store(), store()]),
            ownership: Ownership::default(),
            policy_revision: 0,
            last_xid: 0,
            log: LogLimit::default(),
            actions: Actions::new(now),
        }
    }

    /// Takes the actions that the calls since the last one have added, in their order.
    /// Call it after each of the other calls, or after several.
    pub fn take_actions(&mut self) -> Vec<Action> {
        self.actions.take()
    }

    /// Begins the session of a client. `address` is the client's address, for the log and for
    /// [`sessions`](Self::sessions). `dialled` is the server's address that the client dialled,
    /// `host:port`, if it is known.
    pub fn connected(
        &mut self,
        connection: ConnectionId,
        address: String,
        dialled: Option<String>,
        now: Instant,
    ) {
        let session = Session::new(address, dialled, &self.settings, now);
        // From now on, so that a client that sends nothing is disconnected.
        self.timers.set(connection, session.deadline(&self.settings));
        // libopflex expects an echo at once.
        self.sessions.insert(connection, session);
        self.actions.echo(connection, 0, now);
    }

    /// Sets the common name of a client's verified certificate. Call it directly after
    /// [`connected`](Self::connected). The name is used only with
    /// [`name_from_certificate`](Settings::name_from_certificate).
    pub fn certify(&mut self, connection: ConnectionId, name: String) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.certified = Some(name);
        }
    }

    /// A connection has ended. Has no effect if the connection is unknown or was closed by the
    /// server.
    pub fn disconnected(&mut self, connection: ConnectionId, now: Instant) {
        let Some(session) = self.sessions.remove(&connection) else {
            return;
        };
        self.timers.clear(&connection);
        if let Some(Element { name, .. }) = session.element {
            let most = self.settings.limits.agents;
            self.agents.session_ended(&name, &session.counters, most);
        }
        // Resolves end with the connection, because libopflex resolves again on the next one.
        for store in &mut self.stores.0 {
            store.watchers.leave(&connection);
        }
        let tree = &mut self.stores[Store::Endpoints].tree;
        let changes = self
            .ownership
            .element_left(tree, connection, self.settings.on_leave, now);
        self.send_updates(Store::Endpoints, &changes, now);
    }

    /// Bytes of a client arrived, perhaps only a part of a message. They are counted, and show that
    /// the client is alive.
    pub fn received(&mut self, connection: ConnectionId, bytes: u64, now: Instant) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.keepalive.received(now);
            session.counters.bytes_received += bytes;
        }
    }

    /// Counts bytes that are sent to a client.
    pub fn count_sent(&mut self, connection: ConnectionId, bytes: u64) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.counters.bytes_sent += bytes;
        }
    }

    /// Handles a received message.
    pub fn message(&mut self, connection: ConnectionId, message: Incoming, now: Instant) {
        let Some(session) = self.sessions.get_mut(&connection) else {
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
                return self.close(connection, CloseReason::ResponseBeforeIdentity(method), now);
            }
            _ => {}
        }
        let Some(session) = self.sessions.get_mut(&connection) else {
            return;
        };
        match message {
            Incoming::Request { id, request } => {
                let method = request.method();
                // Counted before it is checked, because `requests` includes refused requests.
                session.counters.count(method);
                if !identified && !method.needs_no_identity() {
                    return self.too_early(connection, &id, Some(method), now);
                }
                self.request(connection, id, request, now);
            }
            Incoming::Refused { id, method, error } => {
                match method {
                    Some(method) => session.counters.count(method),
                    None => session.counters.unknown += 1,
                }
                if !identified && !method.is_some_and(Method::needs_no_identity) {
                    return self.too_early(connection, &id, method, now);
                }
                self.refuse(connection, &id, method, &error, now);
            }
            // Answers to updates are ignored. The draft requires them, and libopflex sends none.
            Incoming::Result { .. } | Incoming::BadResult { .. } | Incoming::Stray { .. } => {}
            Incoming::Failure { method, error, .. } => {
                session.counters.update_errors += 1;
                self.log(connection, Level::Warn, "update error", now, || {
                    format!("the client answered {method} with an error: {}", excerpt(&error))
                });
            }
        }
    }

    /// True if an answer to a client is unfinished.
    pub fn is_answering(&self, connection: ConnectionId) -> bool {
        self.sessions
            .get(&connection)
            .is_some_and(|session| session.answer.is_some())
    }

    /// Sends the next piece of an unfinished answer: updates first, and the result as the last
    /// piece. Call it whenever the client's queue has room, while
    /// [`is_answering`](Self::is_answering) is true. The next message of the client sends all
    /// remaining pieces at once. Returns false if no answer is unfinished.
    pub fn continue_answer(&mut self, connection: ConnectionId) -> bool {
        let session = self.sessions.get_mut(&connection);
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
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.counters.updates += u64::from(!is_over);
            session.counters.unavailable += u64::from(is_nothing && !answer.is_begun);
            answer.is_begun = true;
            session.answer = (!is_over).then_some(answer);
        }
        self.actions.send(connection, frame);
        true
    }

    /// The time at which [`tick`](Self::tick) has to be called.
    pub fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [
            self.timers.next(),
            self.ownership.next_expiry(),
            self.observer.next_expiry(),
        ];
        let of_watchers = self.stores.0.iter().map(|store| store.watchers.next_expiry());
        deadlines.into_iter().chain(of_watchers).flatten().min()
    }

    /// Does everything that is due at `now`.
    pub fn tick(&mut self, now: Instant) {
        while let Some(connection) = self.timers.pop(now) {
            self.session_due(connection, now);
        }
        // No message is sent, because the client knows its refresh rate.
        for store in &mut self.stores.0 {
            while store.watchers.expired(now).is_some() {}
        }
        self.observer.expire(now);
        let changes = self
            .ownership
            .expire(&mut self.stores[Store::Endpoints].tree, now);
        self.send_updates(Store::Endpoints, &changes, now);
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
        self.send_updates(Store::Policy, &changes, now);
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
                address: session.address.clone(),
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
        let mut sessions: Vec<_> = self.sessions.iter().map(info).collect();
        sessions.sort_by_key(|session| session.connection);
        sessions
    }

    /// Agents that have sent their name, including those that have left, in the order of
    /// their names: at most `most`, and only those after `name`.
    pub fn agents_after(&self, name: Option<&Name>, most: usize, now: Instant) -> Vec<AgentInfo> {
        let live = self.sessions.values().filter_map(|session| {
            let element = session.element.as_ref()?;
            Some((element.name.clone(), session.counters))
        });
        self.agents.after(name, most, live, now)
    }

    /// The sum of the counters of all agents since the server started. It includes removed agents and
    /// never falls.
    pub fn requests(&self) -> RequestCounters {
        let mut all = self.agents.ended();
        let live = self.sessions.values().filter(|session| session.element.is_some());
        live.for_each(|session| all.add(&session.counters));
        all
    }

    /// The number of connected clients.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    fn session_due(&mut self, connection: ConnectionId, now: Instant) {
        let Some(session) = self.sessions.get_mut(&connection) else {
            return;
        };
        if session.identity_is_late(&self.settings, now) {
            return self.close(connection, CloseReason::IdentityTimeout, now);
        }
        let beat = session.keepalive.beat(&self.settings.keepalive, now);
        // Set before the action is carried out, because closing the connection clears the deadline.
        self.timers.set(connection, session.deadline(&self.settings));
        match beat {
            Beat::Wait => {}
            Beat::Echo(number) => self.actions.echo(connection, number, now),
            Beat::Dead => self.close(connection, CloseReason::Silent, now),
        }
    }

    fn close(&mut self, connection: ConnectionId, reason: CloseReason, now: Instant) {
        let Some(session) = self.sessions.get(&connection) else {
            return;
        };
        // A warning before the identity: no other line shows why an element is missing.
        let level = match session.element {
            None => Level::Warn,
            Some(_) => Level::Info,
        };
        self.log(connection, level, "closed", now, || {
            format!("closed: {}", excerpt(&reason))
        });
        self.actions.push(Action::Close { connection, reason });
        self.disconnected(connection, now);
    }

    /// Logs a line that a client has caused, unless its host has caused too many lines.
    fn log(
        &mut self,
        connection: ConnectionId,
        level: Level,
        kind: &'static str,
        now: Instant,
        text: impl FnOnce() -> String,
    ) {
        let address = self.sessions.get(&connection);
        let address = address.map_or("", |session| session.address.as_str());
        if let Some(more) = self.log.admit(host(address).to_owned(), kind, now) {
            log::log!(level, "{address} ({connection}): {}{more}", text());
        }
    }

    /// Sends the updates for changes. An update is built once for all its receivers.
    fn send_updates(&mut self, of: Store, changes: &Changes, now: Instant) {
        // An edit without changes keeps the revision, so that --if-revision does not fail for it.
        self.policy_revision += u64::from(of == Store::Policy && !changes.is_empty());
        let method = of.update();
        for (receivers, pieces) in push::updates(of, &self.stores[of], changes, &self.settings.limits, now) {
            for update in pieces {
                self.last_xid += 1;
                let id = Id::call(method.name(), self.last_xid);
                let frame = match Frame::request(&id, method.name(), &[update]) {
                    Ok(frame) => frame,
                    Err(fault) => {
                        error!("an update was not sent: {fault}");
                        continue;
                    }
                };
                for connection in &receivers {
                    if let Some(session) = self.sessions.get_mut(connection) {
                        session.counters.updates += 1;
                    }
                    let (connection, frame) = (*connection, frame.clone());
                    self.actions.push(Action::Send { connection, frame });
                }
            }
        }
    }
}
