//! A scheduler that is one of several. One of them leads, and the others follow it.
//!
//! ```text
//!                the engine grants the lease
//!  following ───────────────────────────────▶ leading: synchronizes ─▶ takes commands
//!      ▲   sessions, filter, rules                │  the sessions of all schedulers
//!      └────────────── the lease ends ────────────┘
//! ```
//!
//! Clients connect to every scheduler. The leader handles the sessions of the other schedulers
//! like its own. A new leader already has the intents that the previous leader sent. The other
//! schedulers then send it the last reports of their clients. It holds commands until all of them
//! have done so. When a scheduler loses the lease, it drops the state that it built up as leader
//! and becomes a follower. The thread `ssntp-engine` queries the engine and stores each new view
//! in [`Shared`], where the dispatcher reads it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use log::{error, info, warn};
use uuid::Uuid;

use super::following::Following;
use super::instances::MAX_INTENTS;
use super::messages::{Intent, Message, StartState};
use super::{Scheduler, SchedulerError, answers};
use crate::peers::Peers;
use ssntp::Role;
use ssntp::payload::{ServerEntry, ServerState, Servers};
use ssntp::proto::{Command, Frame};
use ssntp::server::{Context, DisconnectReason, Federation, SendError, Server, ServerConfig, SessionInfo};
use ssntp_cluster::clock::now;
use ssntp_engine::{Acting, Documents, Engine, EngineError, Join, Member, Membership, View, When};

/// The name of the engine's document with the configuration of the cluster.
pub(super) const CONFIGURATION: &str = "configuration";
/// The name of the engine's document with the table of tenants.
pub(super) const TENANTS: &str = "tenants";
/// The length limit of a document, in bytes. etcd takes requests of up to 1.5 MiB.
const MAX_DOCUMENT: usize = 1 << 20;
/// The time for which a new leader waits for the reports of the other schedulers before it takes commands.
const SYNC_TIME: Duration = Duration::from_secs(5);

/// The state of a scheduler that is one of several.
#[derive(Debug, Default)]
pub(super) struct Term {
    pub(super) shared: Arc<Shared>,
    /// The lease of this scheduler; `None` while it does not lead.
    acting: Option<Acting>,
    /// The other scheduler that leads, and its fencing token.
    leader: Option<(Uuid, u64)>,
    /// By instance, the intents that the leader has sent.
    intents: HashMap<Uuid, Intent>,
    pub(super) following: Following,
    /// The leader's table of the current session of each client of all schedulers. A client that
    /// moves from one server to another may have two sessions for a moment; only the newer counts.
    sessions: HashMap<Uuid, SessionInfo>,
    /// The schedulers that have not yet sent the last reports of all their clients.
    unsynced: HashSet<Uuid>,
    /// The time until which a new leader waits for `unsynced`; `None` once it takes commands.
    sync_until: Option<Instant>,
    /// By server, the nodes that are connected to a server to which this leader has no link. They
    /// do not count as away while that server is a member of the cluster, but the deadlines of
    /// their STARTs still apply.
    unreachable: HashMap<Uuid, HashSet<Uuid>>,
}

impl Term {
    pub(super) fn is_leading(&self) -> bool {
        self.acting.is_some()
    }

    /// The scheduler to which this one passes frames, if another one leads.
    pub(super) fn leader(&self, cx: &Context<'_>) -> Option<Uuid> {
        let (server, token) = self.leader?;
        (token == cx.token()).then_some(server)
    }

    fn has_session(&self, session: &SessionInfo) -> bool {
        let current = self.sessions.get(&session.uuid());
        current.is_some_and(|current| current.key() == session.key())
    }
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    view: Mutex<View>,
    /// True until the dispatcher has read the current view.
    is_new: AtomicBool,
    documents: OnceLock<Documents>,
}

impl Shared {
    fn set_view(&self, view: &View) {
        self.lock().clone_from(view);
        self.is_new.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a document. Fails if this scheduler does not lead. `known` is the revision of the
    /// document after the caller's last write. Blocks until the engine has answered, so only
    /// keepers call it.
    pub(super) fn write(&self, name: &str, text: &[u8], known: &mut Option<u64>) -> io::Result<()> {
        if text.len() > MAX_DOCUMENT {
            let len = text.len();
            return Err(io::Error::other(format!(
                "its {len} bytes are more than {MAX_DOCUMENT}"
            )));
        }
        let view = self.lock().clone();
        let is_leading = view.acts(now()).is_some();
        let (true, Some(documents)) = (is_leading, self.documents.get()) else {
            return Err(io::Error::other("this scheduler does not lead any more"));
        };
        // The view may be a second old, and this scheduler may have written the document since.
        let revision = view
            .documents
            .get(name)
            .map(|document| document.revision)
            .max(*known);
        let when = revision.map_or(When::Absent, When::At);
        *known = Some(documents.write(name, text, when).map_err(io::Error::other)?);
        Ok(())
    }
}

/// A scheduler that has joined a cluster, and its server.
#[derive(Debug)]
pub struct JoinedScheduler {
    /// The server.
    pub server: Server,
    /// The membership. If it is dropped, this scheduler becomes a follower and another one can lead.
    pub membership: Membership,
}

/// The reason why a scheduler could not join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The server could not be started.
    #[error(transparent)]
    Server(#[from] ssntp::server::ServerError),
    /// The engine did not admit it as a member.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The server ended before the scheduler had joined.
    #[error(transparent)]
    Ended(#[from] SendError),
}

impl Scheduler {
    /// Starts the scheduler as one of several that share an engine; otherwise like
    /// [`start`](Self::start). All schedulers accept clients and link with each other. One leads,
    /// and the others pass the frames of their clients on to it. The engine keeps the
    /// configuration and the tenants, and a new leader reads them there. Those of
    /// [`SchedulerConfig`](super::SchedulerConfig) are used if the engine has none. `links` may
    /// name schedulers to link with besides the members of the cluster. `advertise` has the
    /// addresses at which the other schedulers reach this one; if it is empty, they are the
    /// addresses at which the server listens. Blocks until the engine has answered.
    ///
    /// # Errors
    /// [`JoinError`]; the server and all threads have ended then.
    pub fn start_joined(
        mut self,
        server: ServerConfig,
        links: Federation,
        engine: Box<dyn Engine>,
        advertise: Vec<String>,
    ) -> Result<JoinedScheduler, JoinError> {
        let shared = Arc::new(Shared::default());
        self.configuration.keeper.keep_in(&shared, CONFIGURATION);
        self.tenants.keeper.keep_in(&shared, TENANTS);
        self.term = Some(Term {
            shared: Arc::clone(&shared),
            ..Term::default()
        });
        let server = self.start(server.federate(links))?;
        let handle = server.handle();
        let addresses = match advertise.is_empty() {
            true => Peers::reachable(server.addresses()),
            false => advertise,
        };
        let member = Member {
            uuid: server.uuid(),
            incarnation: handle.with(|cx| cx.incarnation())?,
            addresses,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            token: 0,
        };
        let viewed = Arc::clone(&shared);
        let join = Join { member, leads: true };
        let mut peers = Peers::of(&server);
        let membership = Membership::start(engine, join, move |view| {
            if let Some(peers) = &mut peers {
                peers.follow(view);
            }
            viewed.set_view(view);
            // A busy dispatcher may refuse the call. It reads the view before it sleeps anyway.
            let _ = handle.post(|_| ());
        })?;
        let _ = shared.documents.set(membership.documents());
        // The dispatcher ignores views until `documents` is set, so it must read the last one again.
        shared.is_new.store(true, Ordering::Release);
        let _ = server.handle().post(|_| ());
        Ok(JoinedScheduler { server, membership })
    }

    /// True if this is the only scheduler, or leads. Takes up a new view or an expired lease
    /// first, so every callback of the server begins with this call.
    pub(super) fn leads(&mut self, cx: &mut Context<'_>) -> bool {
        self.update_term(cx);
        self.term.as_ref().is_none_or(Term::is_leading)
    }

    /// The time at which the server must call the timer for the term.
    pub(super) fn term_due(&self) -> Option<Instant> {
        let term = self.term.as_ref()?;
        if term.shared.is_new.load(Ordering::Acquire) {
            return Some(now());
        }
        let ends = term.acting.map(|acting| acting.until);
        [ends, term.sync_until, term.following.next_due(term.is_leading())]
            .into_iter()
            .flatten()
            .min()
    }

    /// Takes up a new view of the engine or the end of the lease: this scheduler may begin to lead,
    /// or cease to.
    fn update_term(&mut self, cx: &mut Context<'_>) {
        let Some(term) = &mut self.term else { return };
        let is_new = term.shared.is_new.swap(false, Ordering::AcqRel);
        let token = cx.token();
        let is_over = |acting: Acting| acting.until <= cx.now() || acting.token < token;
        if !is_new && !term.acting.is_some_and(is_over) {
            return;
        }
        let view = term.shared.lock().clone();
        cx.note_token(view.leader.map_or(0, |leader| leader.token));
        let token = cx.token();
        if view.leader.is_some_and(|leader| leader.uuid != cx.uuid()) {
            self.tenants.forget_freed();
        }
        let Some(documents) = term.shared.documents.get() else {
            return;
        };
        documents.saw(token);
        let acts = |acting: &Acting| cx.now() < acting.until && acting.token >= token;
        let acting = view.acting.filter(acts);
        match (term.acting, acting) {
            (Some(before), Some(acting)) if before.token == acting.token => term.acting = Some(acting),
            (before, acting) => {
                if before.is_some() {
                    self.step_down(cx);
                }
                if let Some(acting) = acting {
                    self.begin(cx, acting, &view);
                }
            }
        }
        self.follow_view(cx, &view);
    }

    /// Releases the lease, so that another scheduler can lead at once.
    pub(super) fn resign(&self) {
        if let Some(documents) = self.term.as_ref().and_then(|term| term.shared.documents.get()) {
            documents.resign();
        }
    }

    /// Adds the members of the cluster, the leader and the engine to a list of servers.
    pub(super) fn show_servers(&self, servers: &mut Servers) {
        if let Some(term) = &self.term {
            add_members(servers, &term.shared.lock());
        }
    }

    /// Begins to lead.
    fn begin(&mut self, cx: &mut Context<'_>, acting: Acting, view: &View) {
        let Some(term) = &mut self.term else { return };
        info!(target: "ssntp::scheduler", "this scheduler leads, with the token {}", acting.token);
        term.acting = Some(acting);
        term.leader = None;
        term.sync_until = Some(cx.now() + SYNC_TIME);
        cx.set_leader_token(Some(acting.token));
        let intents: Vec<_> = std::mem::take(&mut term.intents).into_values().collect();
        for intent in &intents {
            if let StartState::InFlight { command_id, .. } = &intent.state {
                self.moves.adopt(intent.instance, command_id);
            }
        }
        let is_there = |node| cx.directory().session(node).is_some();
        self.instances.adopt(intents, is_there, cx.now());
        self.instances.record_intents();
        if let Err(e) = self.take_documents(cx, view) {
            error!(target: "ssntp::scheduler", "a document of the engine cannot be used: {e}");
        }
        self.free_addresses_again();
        let servers: Vec<_> = cx.servers().map(|server| server.uuid).collect();
        servers
            .into_iter()
            .for_each(|server| self.announce_lead_to(cx, server));
        self.announce_leader(cx, cx.uuid(), acting.token);
        let mut sessions: Vec<_> = cx.directory().sessions().cloned().collect();
        sessions.sort_unstable_by_key(SessionInfo::uuid);
        // No controller gets a snapshot here: each node is announced to all controllers below.
        for controller in sessions.iter().filter(|session| is_controller(session)) {
            self.controllers.join(controller);
        }
        for session in &sessions {
            self.replace_session(cx, session);
            self.client_connected(cx, session);
        }
        self.begin_transfer(cx, cx.uuid());
    }

    /// Informs another scheduler that this one leads, and sends it all intents.
    pub(super) fn announce_lead_to(&mut self, cx: &mut Context<'_>, server: Uuid) {
        let Some(term) = &mut self.term else { return };
        let Some(acting) = term.acting else { return };
        term.unsynced.insert(server);
        let leads = Message::Leads {
            token: acting.token,
            configuration: self.configuration.current().clone(),
        };
        let intents = self.instances.intents(|instance| self.moves.command_id(instance));
        for message in std::iter::once(leads.encode()).chain(Message::of(&intents)) {
            if let Err(e) = cx.send_to_server(server, message) {
                // The link has just ended. The next link to this server begins with all messages.
                warn!(target: "ssntp::scheduler", "{server} cannot be informed that this scheduler leads: {e}");
            }
        }
    }

    /// Sends the other schedulers the intents that have changed since the last call.
    pub(super) fn send_intents(&mut self, cx: &mut Context<'_>) {
        let mut new_intents = self.instances.take_new_intents();
        // Until the engine has the table without its address, the others keep the intent of an instance
        // that is gone. If this leader ends before that, the next one finds that the instance is gone, and
        // frees the address.
        new_intents.retain(|intent| intent.node.is_some() || !self.tenants.is_freeing(intent.instance));
        for message in Message::of(&new_intents) {
            cx.send_to_servers(&message);
        }
    }

    pub(super) fn send_configuration(&mut self, cx: &mut Context<'_>) {
        let Some(acting) = self.term.as_ref().and_then(|term| term.acting) else {
            return;
        };
        let configuration = self.configuration.current().clone();
        let token = acting.token;
        cx.send_to_servers(&Message::Leads { token, configuration }.encode());
    }

    fn take_documents(&mut self, cx: &mut Context<'_>, view: &View) -> Result<(), SchedulerError> {
        match view.documents.get(CONFIGURATION) {
            Some(document) => {
                self.configuration.replace(Bytes::from(document.text.clone()))?;
                cx.set_configuration(self.configuration.current().clone());
            }
            None => self.configuration.write_current(),
        }
        match view.documents.get(TENANTS) {
            Some(document) => self.tenants.replace(&document.text),
            None => Ok(()),
        }
    }

    /// Ceases to lead: drops the state of a leader, except for the intents and the commands that
    /// the next leader needs.
    fn step_down(&mut self, cx: &mut Context<'_>) {
        warn!(target: "ssntp::scheduler", "this scheduler no longer leads");
        cx.send_to_servers(&Message::LeadsNoMore.encode());
        cx.set_leader_token(None);
        let intents = self.instances.intents(|instance| self.moves.command_id(instance));
        let held = std::iter::from_fn(|| self.held.take(0)).collect::<Vec<_>>();
        self.forget();
        let Some(term) = &mut self.term else { return };
        let mut commands = term.following.take_held();
        *term = Term {
            shared: Arc::clone(&term.shared),
            following: std::mem::take(&mut term.following),
            ..Term::default()
        };
        term.following.end_transfer();
        term.store_intents(intents);
        let session = |id| cx.directory().session(id).cloned();
        let starts = held.into_iter().map(|held| held.start);
        commands.extend(starts.filter_map(|start| Some((session(start.from)?, start.frame))));
        for (from, frame) in commands {
            self.hold_or_refuse(cx, &from, &frame);
        }
    }

    /// Takes up the members of the cluster, and the configuration while no scheduler leads.
    fn follow_view(&mut self, cx: &mut Context<'_>, view: &View) {
        let Some(term) = &mut self.term else { return };
        if !term.is_leading() {
            if term.leader(cx).is_none()
                && let Some(document) = view.documents.get(CONFIGURATION)
            {
                cx.set_configuration(document.text.clone());
            }
            return;
        }
        if view.away.is_some() {
            return;
        }
        let is_member = |server: &Uuid| view.members.iter().any(|member| member.uuid == *server);
        let servers = term.unreachable.keys().copied();
        let gone: Vec<_> = servers.filter(|server| !is_member(server)).collect();
        gone.into_iter()
            .for_each(|server| self.release_unreachable(cx, server));
    }

    /// The unreachable nodes of a server that have no session elsewhere count as away from now on.
    fn release_unreachable(&mut self, cx: &Context<'_>, server: Uuid) {
        let Some(term) = &mut self.term else { return };
        let nodes = term.unreachable.remove(&server).unwrap_or_default();
        for node in nodes.into_iter().filter(|node| !term.sessions.contains_key(node)) {
            self.instances.node_left(node, cx.now());
        }
    }

    /// True if a session has ended only because the link to its server has ended. Its node is
    /// recorded as unreachable and does not count as away.
    pub(super) fn is_behind_lost_link(&mut self, cx: &Context<'_>, session: &SessionInfo) -> bool {
        let Some(term) = &mut self.term else { return false };
        let server = session.server();
        let is_lost = !is_linked(cx, server);
        if is_lost {
            term.unreachable.entry(server).or_default().insert(session.uuid());
        }
        is_lost
    }

    /// A session has begun, of this server or of another one.
    pub(super) fn add_session(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        // A term that has just begun includes the session already.
        if self.term.as_ref().is_some_and(|term| term.has_session(session)) {
            return;
        }
        self.replace_session(cx, session);
        if is_controller(session) {
            // It joins the line first, because the snapshot logs whether it is the master.
            self.controllers.join(session);
            self.begin_snapshot(cx, session);
        }
        // A controller that is also a node is announced to itself here, so its snapshot goes first.
        self.client_connected(cx, session);
    }

    /// Enters a session into the table of sessions. If the client has another session there, that
    /// one ends first.
    fn replace_session(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let before = self
            .term
            .as_mut()
            .and_then(|term| term.sessions.insert(session.uuid(), session.clone()));
        if let Some(before) = before.filter(|before| before.key() != session.key()) {
            self.session_ended(cx, &before, &DisconnectReason::Replaced);
        }
    }

    /// A session has ended, of this server or of another one.
    pub(super) fn remove_session(
        &mut self,
        cx: &mut Context<'_>,
        session: &SessionInfo,
        reason: &DisconnectReason,
    ) {
        if let Some(term) = &mut self.term {
            // If this is not its current session, the client has a newer one already.
            if !term.has_session(session) {
                return;
            }
            term.sessions.remove(&session.uuid());
        }
        self.session_ended(cx, session, reason);
    }

    /// A session of another server has ended.
    pub(super) fn remove_distant_session(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        // Servers do not report the reason. A node that ended its session in order may be back
        // soon, so every node of a linked server is treated like that.
        let reason = match is_linked(cx, session.server()) {
            true => DisconnectReason::PeerClosed,
            false => DisconnectReason::Lost("the link to its server has ended".to_owned()),
        };
        self.remove_session(cx, session, &reason);
    }

    /// True if this is the client's current session. Frames of a client that has moved to another
    /// server may still arrive from its former server; they are ignored.
    pub(super) fn is_current(&self, session: &SessionInfo) -> bool {
        self.term.as_ref().is_none_or(|term| term.has_session(session))
    }

    /// True if this leader holds commands until the other schedulers have sent the last reports
    /// of their clients.
    pub(super) fn is_syncing(&self) -> bool {
        self.term.as_ref().is_some_and(|term| term.sync_until.is_some())
    }

    /// Another scheduler has sent the last reports of all its clients, or its link has ended.
    pub(super) fn server_synced(&mut self, cx: &mut Context<'_>, server: Uuid) {
        let Some(term) = &mut self.term else { return };
        term.unsynced.remove(&server);
        if is_linked(cx, server) {
            self.release_unreachable(cx, server);
        }
        self.finish_sync(cx);
    }

    /// If all schedulers have sent their reports, or the time for that is over: sends
    /// SnapshotComplete to all controllers and takes up the held commands.
    pub(super) fn finish_sync(&mut self, cx: &mut Context<'_>) {
        let Some(term) = &mut self.term else { return };
        let is_late = |until: &Instant| *until <= cx.now();
        let is_due = term.unsynced.is_empty() && !term.following.is_transferring();
        if term
            .sync_until
            .take_if(|until| is_due || is_late(until))
            .is_none()
        {
            return;
        }
        let held = term.following.take_held();
        self.controllers.complete_snapshots(cx, &self.nodes);
        // A controller that sent CONFIGURE to the previous leader learns from this whether the
        // configuration was adopted.
        let configuration = self.configuration.current().clone();
        if !configuration.is_empty() {
            let current = Frame::with_payload(Command::CONFIGURE, configuration);
            answers::send_to_controllers(cx, &current);
        }
        for (from, frame) in held {
            self.handle(cx, &from, &frame);
        }
    }

    /// Handles a message of another scheduler.
    pub(super) fn receive_message(&mut self, cx: &mut Context<'_>, server: Uuid, message: &Bytes) {
        let leads = self.leads(cx);
        let is_scheduler = cx
            .servers()
            .any(|link| link.uuid == server && link.role.contains(Role::SCHEDULER));
        let Some(term) = self.term.as_mut().filter(|_| is_scheduler) else {
            return;
        };
        match Message::decode(message) {
            Some(Message::Leads { token, configuration }) if !leads && token == cx.token() => {
                cx.set_configuration(configuration);
                let is_new = term.leader.replace((server, token)) != Some((server, token));
                if is_new {
                    info!(target: "ssntp::scheduler", "{server} leads, with the token {token}");
                    term.intents.clear();
                    // Also here, because the engine may be away for the whole term of that leader.
                    self.tenants.forget_freed();
                    self.announce_leader(cx, server, token);
                    self.begin_transfer(cx, server);
                }
            }
            Some(Message::LeadsNoMore) if !leads => self.forget_leader(server),
            Some(Message::Complete) if leads => self.server_synced(cx, server),
            Some(Message::Intents(intents)) if term.leader(cx) == Some(server) => term.store_intents(intents),
            Some(_) => {}
            None => warn!(target: "ssntp::scheduler", "{server}: a message that cannot be read"),
        }
    }

    /// A scheduler has ceased to lead, or its link has ended: it is no longer this one's leader.
    pub(super) fn forget_leader(&mut self, server: Uuid) {
        if let Some(term) = &mut self.term
            && term.leader.take_if(|(leader, _)| *leader == server).is_some()
        {
            term.following.end_transfer();
        }
    }
}

impl Term {
    fn store_intents(&mut self, intents: Vec<Intent>) {
        for intent in intents {
            match intent.node {
                None => drop(self.intents.remove(&intent.instance)),
                Some(_) if self.intents.len() >= MAX_INTENTS => {}
                Some(_) => drop(self.intents.insert(intent.instance, intent)),
            }
        }
    }
}

fn is_linked(cx: &Context<'_>, server: Uuid) -> bool {
    server == cx.uuid() || cx.servers().any(|link| link.uuid == server)
}

fn is_controller(session: &SessionInfo) -> bool {
    session.role().intersects(Role::CONTROLLER)
}

/// Adds the members of the cluster, the leader and the state of the engine to a list of servers.
pub fn add_members(servers: &mut Servers, view: &View) {
    let now = now();
    let age = |since| now.saturating_duration_since(since);
    if let Some(leader) = view.leader {
        servers.leader = leader.uuid.into();
        servers.token = servers.token.max(leader.token);
    }
    let lease = view.kept.map_or(0, |kept| age(kept).as_millis());
    servers.lease_age_ms = u64::try_from(lease).unwrap_or(u64::MAX);
    servers.engine = match &view.away {
        Some((since, why)) => format!("for {} s: {why}", age(*since).as_secs()),
        None => "answers".into(),
    };
    for member in &view.members {
        let address = member.addresses.first().cloned().unwrap_or_default();
        // An address that is being dialled has an entry without a UUID until its link is up.
        let is_of_member = |entry: &&mut ServerEntry| {
            entry.uuid.uuid() == Some(member.uuid)
                || entry.uuid.is_empty() && member.addresses.contains(&entry.address)
        };
        let Some(entry) = servers.entries.iter_mut().find(is_of_member) else {
            servers.entries.push(ServerEntry {
                uuid: member.uuid.into(),
                address,
                version: member.version.clone(),
                state: ServerState::Member,
                ..ServerEntry::default()
            });
            continue;
        };
        entry.uuid = member.uuid.into();
        entry.version.clone_from(&member.version);
        if entry.address.is_empty() {
            entry.address = address;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SchedulerConfig;
    use ssntp::proto::{Event, FrameKind};
    use ssntp::testkit::{HandlerTest, Testkit};
    use ssntp_engine::MemoryEngine;

    #[test]
    fn a_term_that_begins_as_a_controller_connects_shows_it_the_cluster_once() {
        let (kit, shared) = (Testkit::new().unwrap(), Arc::new(Shared::default()));
        let mut scheduler = Scheduler::new(SchedulerConfig::new()).unwrap();
        scheduler.term = Some(Term {
            shared: Arc::clone(&shared),
            ..Term::default()
        });
        let config = scheduler.serve_with(kit.server_config().unwrap());
        let mut test = HandlerTest::new(config, scheduler).unwrap();
        test.connect(&kit.identity(Role::AGENT).unwrap()).unwrap();
        let member = Member {
            uuid: Uuid::from_u128(1),
            incarnation: 1,
            addresses: Vec::new(),
            version: String::new(),
            token: 0,
        };
        let join = Join { member, leads: true };
        let membership = Membership::start(Box::new(MemoryEngine::new()), join, |_| ()).unwrap();
        shared.documents.set(membership.documents()).unwrap();
        let acting = Acting {
            token: 1,
            until: test.now() + SYNC_TIME,
        };
        shared.set_view(&View {
            acting: Some(acting),
            ..View::default()
        });
        let controller = test.connect(&kit.identity(Role::CONTROLLER).unwrap()).unwrap();
        let kinds: Vec<_> = test.sent_to(controller.uuid()).iter().map(Frame::kind).collect();
        // The first says that none leads.
        let expected = [
            Event::NEW_LEADER,
            Event::NEW_LEADER,
            Event::NODE_CONNECTED,
            Event::SNAPSHOT_COMPLETE,
        ];
        assert_eq!(kinds, expected.map(FrameKind::from));
    }
}
