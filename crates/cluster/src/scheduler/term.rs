//! A scheduler that is one of several: one leads, and the others follow it.
//!
//! ```text
//!            this one leads, says the engine
//!  following ───────────────────────────────▶ leading: told ─▶ complete
//!      ▲   sessions, filter, rules                │  sessions of all as if they were its own
//!      └──────────── its lease is over ───────────┘
//! ```
//!
//! All of them have sessions. A leader sees the sessions of the others as its own. A scheduler that
//! begins to lead has the intents that the leader before told; then all others tell it what
//! their nodes last said, and until then it holds commands. One that leads no more forgets all
//! that it has believed, and follows. The thread `ssntp-engine` asks the engine; the dispatcher
//! looks at the view that it has left here.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use log::{error, info, warn};
use uuid::Uuid;

use super::following::Following;
use super::instances::MOST_TOLD;
use super::told::{Fate, Intent, Message};
use super::{Scheduler, SchedulerError};
use crate::peers::Peers;
use ssntp::Role;
use ssntp::payload::{ServerEntry, ServerState, Servers, SnapshotComplete};
use ssntp::proto::{Command, Frame};
use ssntp::server::{Context, DisconnectReason, Federation, SendError, Server, ServerConfig, SessionInfo};
use ssntp_engine::{Acting, Documents, Engine, EngineError, Join, Member, Membership, View, When};

/// The documents in the engine.
pub(super) const CONFIGURATION: &str = "configuration";
pub(super) const TENANTS: &str = "tenants";
/// The longest document. etcd takes requests of 1.5 MiB.
const LONGEST: usize = 1 << 20;
/// How long a new leader waits for what the other schedulers know of their sessions.
const TELLING: Duration = Duration::from_secs(5);

/// The part in the cluster of a scheduler that is one of several.
#[derive(Debug)]
pub(super) struct Term {
    shared: Arc<Shared>,
    /// Set while this one leads.
    acting: Option<Acting>,
    /// Another scheduler that leads, and its token.
    leader: Option<(Uuid, u64)>,
    /// The intents that the leader has told: which instance it has placed on which node.
    intents: HashMap<Uuid, Intent>,
    pub(super) following: Following,
    /// The sessions of all schedulers that this leader has taken in. A client that goes from one
    /// server to another may have two for a moment.
    standing: HashMap<Uuid, SessionInfo>,
    /// The schedulers that have not told all about their sessions yet, and until when this
    /// leader waits for them.
    awaited: HashSet<Uuid>,
    /// It takes in the sessions that stood when it began.
    begins: bool,
    awaits: Option<Instant>,
    /// Nodes whose server this leader has no link to, by server. They do not become away while
    /// the server is a member of the cluster; deadlines of STARTs go on.
    cut_off: HashMap<Uuid, HashSet<Uuid>>,
}

impl Term {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            acting: None,
            leader: None,
            intents: HashMap::new(),
            following: Following::default(),
            standing: HashMap::new(),
            awaited: HashSet::new(),
            begins: false,
            awaits: None,
            cut_off: HashMap::new(),
        }
    }

    pub(super) fn is_leading(&self) -> bool {
        self.acting.is_some()
    }

    /// The scheduler to which frames go, if another one leads.
    pub(super) fn leader(&self, cx: &Context<'_>) -> Option<Uuid> {
        let (server, token) = self.leader?;
        (token == cx.token()).then_some(server)
    }

    fn stands(&self, session: &SessionInfo) -> bool {
        let standing = self.standing.get(&session.uuid());
        standing.is_some_and(|standing| standing.key() == session.key())
    }
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    view: Mutex<View>,
    /// The dispatcher has not looked at the view yet.
    is_new: AtomicBool,
    documents: OnceLock<Documents>,
}

impl Shared {
    fn tell(&self, view: &View) {
        self.lock().clone_from(view);
        self.is_new.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a document, for as long as this scheduler leads. `known` is the revision that the
    /// last writing made. Blocks, so only keepers call it.
    pub(super) fn write(&self, name: &str, text: &[u8], known: &mut Option<u64>) -> io::Result<()> {
        if text.len() > LONGEST {
            let len = text.len();
            return Err(io::Error::other(format!(
                "its {len} bytes are more than {LONGEST}"
            )));
        }
        let view = self.lock().clone();
        let is_leading = view.acts(now()).is_some();
        let (true, Some(documents)) = (is_leading, self.documents.get()) else {
            return Err(io::Error::other("this scheduler does not lead any more"));
        };
        // The view is a second old, and this scheduler may have written meanwhile.
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
    /// The membership. Dropping it lets another one lead; this one then follows.
    pub membership: Membership,
}

/// Why a scheduler could not join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The server could not be started.
    #[error(transparent)]
    Server(#[from] ssntp::server::ServerError),
    /// The engine did not take it in.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The server has ended at once.
    #[error(transparent)]
    Ended(#[from] SendError),
}

impl Scheduler {
    /// As [`start`](Self::start), as one of several schedulers that share an engine. All take
    /// clients, and link with each other: one leads, and the others pass on to it what their
    /// clients say. Configuration and tenants are in the engine, and a leader
    /// begins with them; what [`SchedulerConfig`](super::SchedulerConfig) says is used if the
    /// engine has none. `links` may name schedulers to link with besides the members of the
    /// cluster. `advertise` is where the others reach this one; with none, where it
    /// listens. Blocks until the engine has answered.
    ///
    /// # Errors
    /// [`JoinError`]; nothing runs then.
    pub fn start_joined(
        mut self,
        server: ServerConfig,
        links: Federation,
        engine: Box<dyn Engine>,
        advertise: Vec<String>,
    ) -> Result<JoinedScheduler, JoinError> {
        let shared = Arc::new(Shared::default());
        self.configuration.keep_in(&shared);
        self.tenants.keep_in(&shared);
        self.term = Some(Term::new(Arc::clone(&shared)));
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
        let told = Arc::clone(&shared);
        let join = Join { member, leads: true };
        let mut peers = Peers::of(&server);
        let membership = Membership::start(engine, join, move |view| {
            if let Some(peers) = &mut peers {
                peers.follow(view);
            }
            told.tell(view);
            // If the dispatcher is too busy to take a call, it looks anyway before it sleeps.
            let _ = handle.post(|_| ());
        })?;
        let _ = shared.documents.set(membership.documents());
        // A view that came before the documents could be written is looked at again.
        shared.is_new.store(true, Ordering::Release);
        let _ = server.handle().post(|_| ());
        Ok(JoinedScheduler { server, membership })
    }

    /// Whether it is the only scheduler, or leads. Looks at the term first, so each call of the
    /// server begins with this.
    pub(super) fn leads(&mut self, cx: &mut Context<'_>) -> bool {
        self.look_at_term(cx);
        self.term.as_ref().is_none_or(Term::is_leading)
    }

    /// When [`leads`](Self::leads) has something to do.
    pub(super) fn term_due(&self, at_once: fn() -> Instant) -> Option<Instant> {
        let term = self.term.as_ref()?;
        if term.shared.is_new.load(Ordering::Acquire) {
            return Some(at_once());
        }
        let ends = term.acting.map(|acting| acting.until);
        [ends, term.awaits, term.following.next_due(term.is_leading())]
            .into_iter()
            .flatten()
            .min()
    }

    /// Begins to lead, or ceases to.
    fn look_at_term(&mut self, cx: &mut Context<'_>) {
        let Some(term) = &mut self.term else { return };
        let is_new = term.shared.is_new.swap(false, Ordering::AcqRel);
        let token = cx.token();
        let is_over = |acting: Acting| acting.until <= cx.now() || acting.token < token;
        if !is_new && !term.acting.is_some_and(is_over) {
            return;
        }
        let view = term.shared.lock().clone();
        cx.see_token(view.leader.map_or(0, |leader| leader.token));
        let token = cx.token();
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

    /// Gives its lease back, so that another one leads at once.
    pub(super) fn resign(&self) {
        if let Some(documents) = self.term.as_ref().and_then(|term| term.shared.documents.get()) {
            documents.resign();
        }
    }

    /// Adds what the engine has of the schedulers.
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
        term.awaits = Some(cx.now() + TELLING);
        term.begins = true;
        cx.lead(Some(acting.token));
        let intents: Vec<_> = std::mem::take(&mut term.intents).into_values().collect();
        for intent in &intents {
            if let Fate::Given { command_id, .. } = &intent.fate {
                self.moves.adopt(intent.instance, command_id);
            }
        }
        let is_there = |node| cx.directory().session(node).is_some();
        self.instances.adopt(intents, is_there, cx.now());
        self.instances.tell_others();
        if let Err(e) = self.take_documents(cx, view) {
            error!(target: "ssntp::scheduler", "the engine has what cannot be used: {e}");
        }
        let servers: Vec<_> = cx.servers().map(|server| server.uuid).collect();
        servers
            .into_iter()
            .for_each(|server| self.lead_server(cx, server));
        self.announce_leader(cx, cx.uuid(), acting.token);
        let mut sessions: Vec<_> = cx.directory().sessions().cloned().collect();
        sessions.sort_unstable_by_key(SessionInfo::uuid);
        sessions.iter().for_each(|session| self.arrived(cx, session));
        if let Some(term) = &mut self.term {
            term.begins = false;
        }
        self.begin_telling(cx, cx.uuid());
    }

    /// What a leader does for another server: tells it of itself and of all intents.
    pub(super) fn lead_server(&mut self, cx: &mut Context<'_>, server: Uuid) {
        let Some(term) = &mut self.term else { return };
        let Some(acting) = term.acting else { return };
        term.awaited.insert(server);
        let leads = Message::Leads {
            token: acting.token,
            configuration: self.configuration.current().clone(),
        };
        let intents = self.instances.intents(|instance| self.moves.command_id(instance));
        for message in std::iter::once(leads.encode()).chain(Message::of(&intents)) {
            log_untold(server, cx.tell(server, message));
        }
    }

    /// Tells all other schedulers what has changed since the last call.
    pub(super) fn tell_intents(&mut self, cx: &mut Context<'_>) {
        let untold = self.instances.take_untold();
        for message in Message::of(&untold) {
            cx.tell_all(&message);
        }
    }

    /// A leader tells all schedulers of the configuration that CONNECTED is to carry.
    pub(super) fn tell_configuration(&mut self, cx: &mut Context<'_>) {
        let Some(acting) = self.term.as_ref().and_then(|term| term.acting) else {
            return;
        };
        let configuration = self.configuration.current().clone();
        let token = acting.token;
        cx.tell_all(&Message::Leads { token, configuration }.encode());
    }

    fn take_documents(&mut self, cx: &mut Context<'_>, view: &View) -> Result<(), SchedulerError> {
        match view.documents.get(CONFIGURATION) {
            Some(document) => {
                self.configuration.replace(Bytes::from(document.text.clone()))?;
                cx.set_configuration(self.configuration.current().clone());
            }
            None => self.configuration.keep_now(),
        }
        match view.documents.get(TENANTS) {
            Some(document) => self.tenants.replace(&document.text),
            None => Ok(()),
        }
    }

    /// Leads no more: forgets all that a leader knows, except for what the next one has to
    /// know.
    fn step_down(&mut self, cx: &mut Context<'_>) {
        warn!(target: "ssntp::scheduler", "this scheduler leads no more");
        cx.tell_all(&Message::LeadsNoMore.encode());
        cx.lead(None);
        let intents = self.instances.intents(|instance| self.moves.command_id(instance));
        let held = std::iter::from_fn(|| self.held.take(0)).collect::<Vec<_>>();
        self.forget();
        let Some(term) = &mut self.term else { return };
        let mut following = std::mem::take(&mut term.following);
        let mut waits = following.take_held();
        *term = Term::new(Arc::clone(&term.shared));
        term.following = following;
        term.following.end_telling();
        term.take_intents(intents);
        let session = |id| cx.directory().session(id).cloned();
        let starts = held.into_iter();
        waits.extend(starts.filter_map(|start| Some((session(start.from)?, start.frame))));
        for (from, frame) in waits {
            self.hold_or_refuse(cx, &from, &frame);
        }
    }

    /// The members of the cluster, and before anybody leads its configuration.
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
        let gone: Vec<_> = term
            .cut_off
            .keys()
            .copied()
            .filter(|server| !is_member(server))
            .collect();
        gone.into_iter()
            .for_each(|server| self.release_cut_off(cx, server));
    }

    /// The nodes that were cut off with a server, and have not come back, are away from now on.
    fn release_cut_off(&mut self, cx: &Context<'_>, server: Uuid) {
        let Some(term) = &mut self.term else { return };
        let nodes = term.cut_off.remove(&server).unwrap_or_default();
        for node in nodes.into_iter().filter(|node| !term.standing.contains_key(node)) {
            self.instances.left(node, cx.now());
        }
    }

    /// Whether a session has gone only because the link to its server has ended. Then its node
    /// does not become away.
    pub(super) fn is_behind_a_lost_link(&mut self, cx: &Context<'_>, session: &SessionInfo) -> bool {
        let Some(term) = &mut self.term else { return false };
        let server = session.server();
        let is_cut_off = !is_linked(cx, server);
        if is_cut_off {
            term.cut_off.entry(server).or_default().insert(session.uuid());
        }
        is_cut_off
    }

    /// A leader hears of a session, of its own or of another server.
    pub(super) fn arrived(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let before = self
            .term
            .as_mut()
            .and_then(|term| term.standing.insert(session.uuid(), session.clone()));
        if let Some(before) = before.filter(|before| before.key() != session.key()) {
            self.parted(cx, &before, &DisconnectReason::Replaced);
        }
        self.take_in(cx, session);
    }

    /// A leader hears that a session is over.
    pub(super) fn left(&mut self, cx: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        if let Some(term) = &mut self.term {
            // The client has another session already.
            if !term.stands(session) {
                return;
            }
            term.standing.remove(&session.uuid());
        }
        self.parted(cx, session, reason);
    }

    /// As [`left`](Self::left), of a session of another server.
    pub(super) fn left_elsewhere(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        // Servers do not tell why. A node that has ended in order may be back soon, so each is
        // waited for whose server is there.
        let reason = match is_linked(cx, session.server()) {
            true => DisconnectReason::PeerClosed,
            false => DisconnectReason::Lost("the link to its server has ended".to_owned()),
        };
        self.left(cx, session, &reason);
    }

    /// Whether what a session says counts: a client that has moved to another server may still
    /// be heard from the first.
    pub(super) fn counts(&self, session: &SessionInfo) -> bool {
        self.term.as_ref().is_none_or(|term| term.stands(session))
    }

    /// Whether all controllers are being told of each node as this leader hears of it.
    pub(super) fn begins(&self) -> bool {
        self.term.as_ref().is_some_and(|term| term.begins)
    }

    /// Whether commands wait until the other schedulers have told what they know.
    pub(super) fn is_being_told(&self) -> bool {
        self.term.as_ref().is_some_and(|term| term.awaits.is_some())
    }

    /// Another scheduler has told all about its sessions, or is gone.
    pub(super) fn is_told_by(&mut self, cx: &mut Context<'_>, server: Uuid) {
        let Some(term) = &mut self.term else { return };
        term.awaited.remove(&server);
        if is_linked(cx, server) {
            self.release_cut_off(cx, server);
        }
        self.complete(cx);
    }

    /// Once all is told: says so to all controllers, and takes up the commands that were held.
    pub(super) fn complete(&mut self, cx: &mut Context<'_>) {
        let Some(term) = &mut self.term else { return };
        let is_late = |until: &Instant| *until <= cx.now();
        let is_due = term.awaited.is_empty() && !term.following.is_telling();
        if term.awaits.take_if(|until| is_due || is_late(until)).is_none() {
            return;
        }
        let held = term.following.take_held();
        let (reporting, instances) = self.nodes.told();
        let complete = SnapshotComplete {
            nodes: self.nodes.count() as u64,
            reporting: reporting as u64,
            instances: instances as u64,
        };
        super::answers::to_controllers(cx, &complete);
        // It tells whoever has sent a CONFIGURE to the leader before whether that was taken up.
        let configuration = self.configuration.current().clone();
        if !configuration.is_empty() {
            let current = Frame::with_payload(Command::CONFIGURE, configuration);
            super::answers::send_to_controllers(cx, &current);
        }
        for (from, frame) in held {
            self.take(cx, &from, &frame);
        }
    }

    /// Takes in a message of another scheduler.
    pub(super) fn hear(&mut self, cx: &mut Context<'_>, server: Uuid, message: &Bytes) {
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
                    self.announce_leader(cx, server, token);
                    self.begin_telling(cx, server);
                }
            }
            Some(Message::LeadsNoMore) if !leads => self.forget_leader(server),
            Some(Message::Complete) if leads => self.is_told_by(cx, server),
            Some(Message::Intents(intents)) if term.leader(cx) == Some(server) => term.take_intents(intents),
            Some(_) => {}
            None => warn!(target: "ssntp::scheduler", "{server}: a message that cannot be read"),
        }
    }

    /// The leader cannot be reached any more, or leads no more.
    pub(super) fn forget_leader(&mut self, server: Uuid) {
        if let Some(term) = &mut self.term
            && term.leader.take_if(|(leader, _)| *leader == server).is_some()
        {
            term.following.end_telling();
        }
    }
}

impl Term {
    fn take_intents(&mut self, intents: Vec<Intent>) {
        for intent in intents {
            match intent.node {
                None => drop(self.intents.remove(&intent.instance)),
                Some(_) if self.intents.len() >= MOST_TOLD => {}
                Some(_) => drop(self.intents.insert(intent.instance, intent)),
            }
        }
    }
}

fn is_linked(cx: &Context<'_>, server: Uuid) -> bool {
    server == cx.uuid() || cx.servers().any(|link| link.uuid == server)
}

/// A link that has just ended takes nothing: the next one begins with all of it.
fn log_untold(server: Uuid, told: Result<(), SendError>) {
    if let Err(e) = told {
        warn!(target: "ssntp::scheduler", "{server} is not told that this scheduler leads: {e}");
    }
}

/// Adds members, leader and engine to a list of servers.
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
        let is_it = |entry: &&mut ServerEntry| {
            entry.uuid.uuid() == Some(member.uuid)
                || entry.uuid.is_empty() && member.addresses.contains(&entry.address)
        };
        let Some(entry) = servers.entries.iter_mut().find(is_it) else {
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

#[expect(
    clippy::disallowed_methods,
    reason = "a leader compares its lease with the clock"
)]
fn now() -> Instant {
    Instant::now()
}
