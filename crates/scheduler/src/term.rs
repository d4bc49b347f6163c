//! A scheduler leads alone, or it is one of several: then one of them leads, and the others follow it.
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
//! schedulers then send it the last reports of their clients. It parks commands until all of them
//! have done so. When a scheduler loses the lease, it drops the state that it built up as leader
//! and becomes a follower. The thread `ssntp-engine` queries the engine and stores each new view
//! in [`Shared`], where the dispatcher reads it.
//!
//! This room owns the lease, the leader that is followed, the sessions of all schedulers and what
//! a new leader waits for. What a scheduler does when a term begins or ends is the scheduler's.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::info;
use uuid::Uuid;

use super::following::Following;
use super::messages::{Intent, MAX_INTENTS};
use super::shared::Shared;
use ssntp::Role;
use ssntp::payload::Id;
use ssntp::server::{Context, SessionInfo};
use ssntp_engine::{Acting, View};
use ssntp_payload::NewLeader;
use ssntp_transport::now;

/// The time for which a new leader waits for the reports of the other schedulers before it takes commands.
const SYNC_TIME: Duration = Duration::from_secs(5);

/// The term of a scheduler, which is alone or one of several.
#[derive(Debug, Default)]
pub(super) struct Term {
    shared: Arc<Shared>,
    /// True for the only scheduler of its cluster, which always leads, without a lease and a token.
    is_alone: bool,
    /// The lease of this scheduler; `None` while it does not lead.
    acting: Option<Acting>,
    /// The other scheduler that leads, and its fencing token.
    leader: Option<(Uuid, u64)>,
    /// By instance, the intents that the leader has sent.
    intents: HashMap<Uuid, Intent>,
    /// The leader's table of the current session of each client of all schedulers. A client that moves from one server
    /// to another may have two sessions for a while; only the one counts that the directory has.
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

/// A new view of the engine, or the end of the lease.
#[derive(Debug)]
pub(super) struct TermChange {
    pub(super) view: View,
    /// True if a term of this scheduler is over.
    pub(super) ends: bool,
    /// The term of this scheduler that begins now.
    pub(super) begins: Option<Acting>,
}

impl Term {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            ..Self::default()
        }
    }

    /// The term of the only scheduler of a cluster.
    pub(super) fn alone() -> Self {
        Self {
            is_alone: true,
            ..Self::default()
        }
    }

    pub(super) fn is_alone(&self) -> bool {
        self.is_alone
    }

    pub(super) fn is_leading(&self) -> bool {
        self.is_alone || self.acting.is_some()
    }

    /// The fencing token of this scheduler, if it leads.
    pub(super) fn token(&self) -> Option<u64> {
        self.acting.map(|acting| acting.token)
    }

    /// The scheduler to which this one passes frames, if another one leads.
    pub(super) fn leader(&self, cx: &Context<'_>) -> Option<Uuid> {
        let (server, token) = self.leader?;
        (token == cx.token()).then_some(server)
    }

    /// The last view of the engine.
    pub(super) fn view(&self) -> View {
        self.shared.view()
    }

    /// True if this is the client's current session. Frames of a client that has moved to another
    /// server may still arrive from its former server; they are ignored.
    pub(super) fn is_current(&self, session: &SessionInfo) -> bool {
        let current = self.sessions.get(&session.uuid());
        current.is_some_and(|current| current.key() == session.key())
    }

    /// True if this leader parks commands until the other schedulers have sent the last reports of
    /// their clients.
    pub(super) fn is_syncing(&self) -> bool {
        self.sync_until.is_some()
    }

    /// The time at which the server must call the timer for the term.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        if self.shared.is_new() {
            return Some(now());
        }
        let ends = self.acting.map(|acting| acting.until);
        [ends, self.sync_until].into_iter().flatten().min()
    }

    /// NewLeader with the scheduler that leads, as this one knows it.
    pub(super) fn introduction(&self, cx: &Context<'_>) -> NewLeader {
        let own = self.is_leading().then_some(cx.uuid());
        let leader = own.or_else(|| self.leader(cx));
        NewLeader {
            server_uuid: leader.map_or_else(Id::default, Id::from),
            token: leader.map_or(0, |_| cx.token()),
        }
    }

    /// Takes a new view of the engine or the end of the lease; `None` if there is neither.
    pub(super) fn take_change(&mut self, cx: &mut Context<'_>) -> Option<TermChange> {
        let is_new = self.shared.take_new();
        let token = cx.token();
        let is_over = |acting: Acting| acting.until <= cx.now() || acting.token < token;
        if !is_new && !self.acting.is_some_and(is_over) {
            return None;
        }
        let view = self.shared.view();
        cx.note_token(view.leader.map_or(0, |leader| leader.token));
        let token = cx.token();
        self.shared.documents()?.saw(token);
        let acts = |acting: &Acting| cx.now() < acting.until && acting.token >= token;
        let acting = view.acting.filter(acts);
        let is_same = self
            .acting
            .zip(acting)
            .is_some_and(|(before, acting)| before.token == acting.token);
        let (ends, begins) = if is_same {
            self.acting = acting;
            (false, None)
        } else {
            (self.acting.is_some(), acting)
        };
        Some(TermChange { view, ends, begins })
    }

    /// Releases the lease, so that another scheduler can lead at once.
    pub(super) fn resign(&self) {
        if let Some(documents) = self.shared.documents() {
            documents.resign();
        }
    }

    /// Begins a term of this scheduler. Returns the intents of the previous leader.
    pub(super) fn begin(&mut self, acting: Acting, now: Instant) -> Vec<Intent> {
        info!(target: "ssntp::scheduler", "this scheduler leads, with the token {}", acting.token);
        self.acting = Some(acting);
        self.leader = None;
        self.sync_until = Some(now + SYNC_TIME);
        std::mem::take(&mut self.intents).into_values().collect()
    }

    /// Ends the term of this scheduler, which keeps its own intents for the next leader.
    pub(super) fn end(&mut self, intents: Vec<Intent>) {
        *self = Self::new(&self.shared);
        self.store_intents(intents);
    }

    /// A leader waits for the reports of this scheduler before it takes commands.
    pub(super) fn await_reports(&mut self, server: Uuid) {
        self.unsynced.insert(server);
    }

    /// Follows a scheduler that leads; false if this one follows it already.
    pub(super) fn follow(&mut self, server: Uuid, token: u64) -> bool {
        let leader = Some((server, token));
        let is_new = std::mem::replace(&mut self.leader, leader) != leader;
        if is_new {
            info!(target: "ssntp::scheduler", "{server} leads, with the token {token}");
            self.intents.clear();
        }
        is_new
    }

    /// A scheduler has ceased to lead, or its link has ended; true if this one followed it.
    pub(super) fn unfollow(&mut self, server: Uuid) -> bool {
        self.leader.take_if(|(leader, _)| *leader == server).is_some()
    }

    /// Keeps the intents of the leader.
    pub(super) fn store_intents(&mut self, intents: Vec<Intent>) {
        for intent in intents {
            match intent.node {
                None => drop(self.intents.remove(&intent.instance)),
                Some(_) => {
                    // The limit is for new instances: an outdated intent would settle a START wrongly.
                    let is_known = self.intents.contains_key(&intent.instance);
                    if is_known || self.intents.len() < MAX_INTENTS {
                        self.intents.insert(intent.instance, intent);
                    }
                }
            }
        }
    }

    /// Enters a session of any scheduler. Returns the other session of that client that it replaces.
    pub(super) fn enter_session(&mut self, session: &SessionInfo) -> Option<SessionInfo> {
        let before = self.sessions.insert(session.uuid(), session.clone());
        before.filter(|before| before.key() != session.key())
    }

    /// Removes a session that has ended; false if another one of the client counts.
    pub(super) fn remove_session(&mut self, session: &SessionInfo) -> bool {
        let is_current = self.is_current(session);
        if is_current {
            self.sessions.remove(&session.uuid());
        }
        is_current
    }

    /// A session of a node has ended only because the link to its server has. The node does not count
    /// as away.
    pub(super) fn note_unreachable(&mut self, session: &SessionInfo) {
        let nodes = self.unreachable.entry(session.server()).or_default();
        nodes.insert(session.uuid());
    }

    /// Takes the unreachable nodes of a server that have no session elsewhere.
    pub(super) fn take_unreachable(&mut self, server: Uuid) -> Vec<Uuid> {
        let nodes = self.unreachable.remove(&server).unwrap_or_default().into_iter();
        nodes.filter(|node| !self.sessions.contains_key(node)).collect()
    }

    /// The servers without a link that are no members any more. While the engine is away, that is not known.
    pub(super) fn departed(&self, view: &View) -> Vec<Uuid> {
        let is_member = |server: &Uuid| view.members.iter().any(|member| member.uuid == *server);
        let servers = self.unreachable.keys().copied();
        servers
            .filter(|server| view.away.is_none() && !is_member(server))
            .collect()
    }

    /// Another scheduler has sent the last reports of all its clients, or its link has ended.
    pub(super) fn handle_synced(&mut self, server: Uuid) {
        self.unsynced.remove(&server);
    }

    /// Ends the wait for the reports of all schedulers, if they are there or the time is over. True
    /// if it ends now.
    pub(super) fn end_sync(&mut self, following: &Following, now: Instant) -> bool {
        let is_done = self.unsynced.is_empty() && !following.is_transferring();
        let ended = self.sync_until.take_if(|until| is_done || *until <= now);
        ended.is_some()
    }
}

/// True if this server has a link to that one, or is it.
pub(super) fn is_linked(cx: &Context<'_>, server: Uuid) -> bool {
    server == cx.uuid() || cx.servers().any(|link| link.uuid == server)
}

/// The controllers whose sessions are this server's.
pub(super) fn own_controllers(cx: &Context<'_>) -> Vec<Uuid> {
    let directory = cx.directory();
    let all = directory.with_role(Role::CONTROLLER);
    let own = all.filter(|session| session.server() == cx.uuid());
    own.map(SessionInfo::uuid).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::messages::StartState;
    use crate::{Scheduler, SchedulerConfig};
    use ssntp::proto::{Event, Frame, FrameKind};
    use ssntp::testkit::{HandlerTest, Testkit};
    use ssntp_engine::{Join, Member, Membership};
    use ssntp_test_support::memory_engine::MemoryEngine;
    use ssntp_transport::deadline;

    #[test]
    fn a_term_leaves_its_intents_to_the_next_one_and_waits_for_all_reports_with_its_own() {
        let (mut term, mut following, now) = (Term::default(), Following::default(), now());
        let [instance, node, server] = [1, 2, 3].map(Uuid::from_u128);
        let intent = Intent {
            instance,
            node: Some(node),
            state: StartState::GivenUp,
        };
        let acting = |token| Acting {
            token,
            until: now + SYNC_TIME,
        };
        assert_eq!(term.begin(acting(1), now), []);
        term.await_reports(server);
        assert!(
            !term.end_sync(&following, now),
            "those of another server are missing"
        );
        following.begin_transfer(Uuid::nil(), now);
        assert!(!term.end_sync(&following, now));
        term.handle_synced(server);
        assert!(!term.end_sync(&following, now), "its own reports are missing");
        following.end_transfer();
        assert!(term.end_sync(&following, now) && !term.is_syncing());
        assert!(!term.end_sync(&following, now), "it has ended before");

        term.end(vec![intent.clone()]);
        assert_eq!((term.is_leading(), term.token()), (false, None));
        assert_eq!(term.begin(acting(2), now), [intent]);
        following.begin_transfer(Uuid::nil(), now);
        assert!(term.end_sync(&following, now + SYNC_TIME), "it waits no longer");
    }

    #[test]
    fn another_leader_tells_its_own_intents_and_a_new_one_has_no_leader_before_it() {
        let (mut term, now) = (Term::default(), now());
        let [instance, node, server] = [1, 2, 3].map(Uuid::from_u128);
        let intent = Intent {
            instance,
            node: Some(node),
            state: StartState::GivenUp,
        };
        assert!(term.follow(server, 1));
        term.store_intents(vec![intent.clone()]);
        assert!(!term.follow(server, 1), "the leader is the same");
        assert!(term.follow(server, 2));
        let acting = Acting {
            token: 3,
            until: now + SYNC_TIME,
        };
        assert_eq!(term.begin(acting, now), [], "they were those of an earlier term");
        assert!(!term.unfollow(server), "the loss of its link changes nothing");
    }

    #[test]
    fn a_full_table_of_intents_takes_the_changes_of_those_that_it_has() {
        let (mut term, node) = (Term::default(), Uuid::from_u128(1));
        let intent = |instance: usize, state| Intent {
            instance: Uuid::from_u128(instance as u128),
            node: Some(node),
            state,
        };
        term.store_intents(
            (0..MAX_INTENTS)
                .map(|at| intent(at, StartState::GivenUp))
                .collect(),
        );
        term.store_intents(vec![intent(MAX_INTENTS, StartState::Answered)]);
        assert_eq!(term.intents.len(), MAX_INTENTS);
        term.store_intents(vec![intent(7, StartState::Answered)]);
        assert_eq!(term.intents[&Uuid::from_u128(7)].state, StartState::Answered);
    }

    #[test]
    fn the_end_of_an_earlier_session_of_a_node_is_not_that_of_its_present_one() {
        let (kit, mut term) = (Testkit::new().unwrap(), Term::default());
        let mut test = HandlerTest::new(kit.server_config().unwrap(), ()).unwrap();
        let identity = kit.identity(Role::AGENT).unwrap();
        let uuid = Uuid::from_u128(7);
        let [first, second] = [(); 2].map(|()| test.connect_as(&identity, uuid).unwrap());
        assert_ne!(first.key(), second.key());
        assert!(term.enter_session(&first).is_none());
        assert!(term.enter_session(&second).is_some());
        assert!(!term.remove_session(&first) && term.is_current(&second));
        // A node behind a lost link that has come back at another server is not lost.
        term.note_unreachable(&first);
        assert!(term.take_unreachable(first.server()).is_empty());
        assert!(term.remove_session(&second));
        term.note_unreachable(&second);
        assert_eq!(term.take_unreachable(second.server()), [uuid]);
    }

    /// A scheduler that acts with this token, in a cluster without others.
    pub(crate) fn acts(shared: &Shared, token: u64, until: Instant) -> (Membership, Acting) {
        let member = Member {
            uuid: Uuid::from_u128(1),
            incarnation: 1,
            addresses: Vec::new(),
            version: String::new(),
            token: 0,
        };
        let join = Join { member, leads: true };
        let membership = Membership::start(Box::new(MemoryEngine::new()), join, |_| ()).unwrap();
        shared.set_documents(membership.documents());
        let acting = Acting { token, until };
        shared.set_view(&View {
            acting: Some(acting),
            ..View::default()
        });
        (membership, acting)
    }

    #[test]
    fn a_term_that_begins_as_a_controller_connects_shows_it_the_cluster_once() {
        let (kit, shared) = (Testkit::new().unwrap(), Arc::new(Shared::default()));
        let mut scheduler = Scheduler::new(SchedulerConfig::new()).unwrap();
        scheduler.begin_following(&shared);
        let config = scheduler.serve_with(kit.server_config().unwrap());
        let mut test = HandlerTest::new(config, scheduler).unwrap();
        test.connect(&kit.identity(Role::AGENT).unwrap()).unwrap();
        let (_membership, _) = acts(&shared, 1, test.now() + SYNC_TIME);
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

    #[test]
    fn a_higher_token_that_a_link_has_brought_ends_a_term_before_its_lease() {
        let kit = Testkit::new().unwrap();
        let shared = Arc::new(Shared::default());
        let mut test = HandlerTest::new(kit.server_config().unwrap(), ()).unwrap();
        let (membership, acting) = acts(&shared, 7, test.now() + SYNC_TIME);
        let mut term = Term::new(&shared);
        let mut change = |term: &mut Term, token| {
            let change = test.with(|cx| {
                cx.note_token(token);
                term.take_change(cx)
            });
            let change = change.unwrap();
            change.map(|change| (change.ends, change.begins.map(|acting| acting.token)))
        };
        assert_eq!(change(&mut term, 0), Some((false, Some(7))));
        term.begin(acting, now());
        assert_eq!(change(&mut term, 7), None);
        // It has lost the lease and won it again since the last look.
        let again = Acting { token: 9, ..acting };
        shared.set_view(&View {
            acting: Some(again),
            ..View::default()
        });
        assert_eq!(change(&mut term, 7), Some((true, Some(9))));
        term.begin(again, now());
        // Another scheduler leads, although the engine has told this one nothing of it.
        assert_eq!(change(&mut term, 1 << 50), Some((true, None)));
        // The thread of the engine is told, or this server would keep the lease and never act.
        let end = deadline(SYNC_TIME * 12);
        while membership
            .view()
            .acting
            .is_none_or(|acting| acting.token < 1 << 50)
        {
            assert!(now() < end, "{:?}", membership.view());
            std::thread::yield_now();
        }
    }
}
