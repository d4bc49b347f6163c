//! Several linked servers in one process: real TLS, real threads, a network in memory that can be cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use ssntp::proto::{Command, Frame, FrameKind, FrameType, Operands, Refusal, Run, Status};
use ssntp::server::{
    ClusterHandler, Context, DisconnectReason, Federation, Handler, LinkFigures, Newcomer, PeerState, Rules,
    SendError, ServerConfig, ServerLink, SessionInfo,
};
use ssntp::transport::memory::MemoryListener;
use ssntp::transport::{Limits, Target};
use ssntp::{Bytes, RequestError, Role};
use ssntp_test_support::*;
use uuid::Uuid;

/// The longest wait of a test. It is long because the threads of several servers share a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum News {
    Linked(Uuid),
    Unlinked(Uuid),
    Remote(Uuid),
    RemoteGone(Uuid),
    Ended(Uuid, DisconnectReason),
    Frame(Uuid, Uuid, FrameKind),
    Told(Uuid, Bytes),
}

struct Watch {
    news: Sender<News>,
    is_closed: Arc<AtomicBool>,
}

impl Watch {
    fn note(&self, news: News) {
        let _ = self.news.send(news);
    }
}

impl Handler for Watch {
    fn admit(&mut self, _: &mut Context<'_>, _: &Newcomer<'_>) -> Result<(), Refusal> {
        if self.is_closed.load(Ordering::Relaxed) {
            Err(Refusal::postpone("the application is closed"))
        } else {
            Ok(())
        }
    }
    fn disconnected(&mut self, _: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        self.note(News::Ended(session.uuid(), reason.clone()));
    }
    fn run(&mut self, _: &mut Context<'_>, from: &SessionInfo, run: &Run) {
        // Floods are of STATS, which would fill the channel.
        if run.kind() != Command::STATS {
            self.note(News::Frame(from.uuid(), from.server(), run.kind()));
        }
    }

    fn cluster(&mut self) -> Option<&mut dyn ClusterHandler> {
        Some(self)
    }
}

impl ClusterHandler for Watch {
    fn server_linked(&mut self, cx: &mut Context<'_>, server: &ServerLink) {
        assert!(cx.servers().any(|link| link.uuid == server.uuid));
        self.note(News::Linked(server.uuid));
    }

    fn server_unlinked(&mut self, _: &mut Context<'_>, server: &ServerLink) {
        self.note(News::Unlinked(server.uuid));
    }

    fn remote_connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        assert_ne!(session.server(), cx.uuid());
        self.note(News::Remote(session.uuid()));
    }

    fn remote_disconnected(&mut self, _: &mut Context<'_>, session: &SessionInfo) {
        self.note(News::RemoteGone(session.uuid()));
    }

    fn server_message(&mut self, _: &mut Context<'_>, server: Uuid, message: Bytes) {
        self.note(News::Told(server, message));
    }
}

/// A server, its listener, and the events of its application.
pub(crate) struct Node {
    pub(crate) server: TestServer,
    pub(crate) links: MemoryListener,
    news: Receiver<News>,
    /// True if its application refuses every client.
    pub(crate) is_closed: Arc<AtomicBool>,
}

fn rules() -> Rules {
    Rules::new()
        .multicast(Command::STATS, Role::CONTROLLER)
        .multicast(Command::STOP, Role::AGENT)
}

impl Node {
    pub(crate) fn start(peers: &[&Node]) -> Self {
        Self::start_with(peers, |config| config)
    }

    pub(crate) fn start_with(peers: &[&Node], configure: impl FnOnce(ServerConfig) -> ServerConfig) -> Self {
        let links = MemoryListener::new();
        let (news, received_news) = unbounded();
        let federation = Federation::new().peers(peers.iter().map(|peer| &peer.links));
        let is_closed = Arc::new(AtomicBool::new(false));
        let watch = Watch {
            news,
            is_closed: Arc::clone(&is_closed),
        };
        let server = TestServer::start(watch, |config| {
            configure(
                config
                    .listen_in_memory(&links)
                    .rules(rules())
                    .handshake_timeout(LONG)
                    .federate(federation),
            )
        });
        let node = Self {
            server,
            links,
            news: received_news,
            is_closed,
        };
        let mut linked: Vec<_> = peers.iter().map(|peer| peer.uuid()).collect();
        while !linked.is_empty() {
            let news = node.news.recv_timeout(LONG).unwrap();
            linked.retain(|uuid| news != News::Linked(*uuid));
        }
        for peer in peers {
            peer.await_news(&News::Linked(node.uuid()));
        }
        node
    }

    pub(crate) fn uuid(&self) -> Uuid {
        self.server.server.as_ref().unwrap().uuid()
    }

    /// The events so far.
    pub(crate) fn news(&self) -> Vec<News> {
        self.news.try_iter().collect()
    }

    /// Waits for this event, and returns the events before it.
    pub(crate) fn await_news(&self, wanted: &News) -> Vec<News> {
        let mut before = Vec::new();
        loop {
            let news = self.news.recv_timeout(LONG);
            let news = news.unwrap_or_else(|_| panic!("no {wanted:?} after {before:?}"));
            if news == *wanted {
                return before;
            }
            before.push(news);
        }
    }

    /// Connects a client, and waits until the other servers know its session.
    pub(crate) fn connect(&self, role: Role, others: &[&Node]) -> Peer {
        let peer = self.server.connect(role);
        others
            .iter()
            .for_each(|node| drop(node.await_news(&News::Remote(peer.uuid))));
        peer
    }

    pub(crate) fn with<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Context<'_>) -> T + Send + 'static,
    ) -> T {
        self.server.handle().with(call).unwrap()
    }

    fn link_to(&self, other: &Node) -> LinkFigures {
        let links = self.server.handle().figures().unwrap().links;
        links
            .into_iter()
            .find(|link| link.server.uuid == other.uuid())
            .unwrap()
    }

    /// Waits for a link to a server, which the test itself may play.
    pub(crate) fn await_link_of(&self, server: Uuid) {
        let deadline = Instant::now() + LONG;
        let is_linked = |link: &LinkFigures| link.server.uuid == server;
        while !self
            .server
            .handle()
            .figures()
            .unwrap()
            .links
            .iter()
            .any(is_linked)
        {
            assert!(Instant::now() < deadline, "no link to {server}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn await_link(&self, other: &Node, is_so: impl Fn(&LinkFigures) -> bool) {
        let deadline = Instant::now() + LONG;
        while !is_so(&self.link_to(other)) {
            assert!(Instant::now() < deadline, "{:?}", self.link_to(other));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn numbered(kind: impl Into<FrameKind>, number: u32, len: usize) -> Frame {
    let mut payload = vec![0; len.max(4)];
    payload[..4].copy_from_slice(&number.to_be_bytes());
    Frame::with_payload(kind, payload)
}

fn number(frame: &Frame) -> u32 {
    u32::from_be_bytes(frame.payload_bytes()[..4].try_into().unwrap())
}

/// Sends `count` numbered frames on a thread that returns the peer.
fn flood(mut peer: Peer, kind: Command, frames: u32, len: usize) -> std::thread::JoinHandle<Peer> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        for at in 0..frames {
            bytes.extend(numbered(kind, at, len).encode());
            if bytes.len() > 60_000 || at + 1 == frames {
                peer.send_bytes(&std::mem::take(&mut bytes));
            }
        }
        peer
    })
}

fn receive(peer: &mut Peer, frames: u32) {
    for at in 0..frames {
        assert_eq!(number(&peer.frame()), at);
    }
}

#[test]
fn frames_cross_both_ways_in_order() {
    const FRAMES: u32 = 100_000;
    let one = Node::start(&[]);
    let two = Node::start(&[&one]);
    let agent = one.connect(Role::AGENT, &[&two]);
    let controller = two.connect(Role::CONTROLLER, &[&one]);
    // A second pair whose frames go in the other direction.
    let mut other_agent = one.connect(Role::AGENT, &[&two]);
    let mut other_controller = two.connect(Role::CONTROLLER, &[&one]);
    let agent = flood(agent, Command::STATS, FRAMES, 20);
    let controller = flood(controller, Command::STOP, FRAMES, 20);
    let reading = std::thread::spawn(move || receive(&mut other_controller, FRAMES));
    receive(&mut other_agent, FRAMES);
    reading.join().unwrap();
    // The frames to both have arrived as well.
    receive(&mut controller.join().unwrap(), FRAMES);
    receive(&mut agent.join().unwrap(), FRAMES);
    // A multicast crosses the link once, for any number of receivers.
    let figures = two.link_to(&one);
    assert_eq!(
        (figures.frames_received, figures.frames_astray),
        (u64::from(FRAMES), 0)
    );
}

#[test]
fn an_application_sees_and_reaches_sessions_of_other_servers() {
    let one = Node::start(&[]);
    let two = Node::start(&[&one]);
    let three = Node::start(&[&one, &two]);
    let mut agent = one.connect(Role::AGENT, &[&two, &three]);
    let mut controller = two.connect(Role::CONTROLLER, &[&one, &three]);
    let (agent_uuid, first) = (agent.uuid, one.uuid());
    let sessions_seen = three.with(move |cx| {
        let directory = cx.directory();
        let roles = [Role::AGENT, Role::CONTROLLER, Role::NETAGENT];
        let counts = roles.map(|role| directory.with_role(role).count());
        let server = directory.session(agent_uuid).map(SessionInfo::server);
        (directory.len(), counts, server, cx.counters(agent_uuid).is_some())
    });
    assert_eq!(sessions_seen, (2, [1, 1, 0], Some(first), false));
    // By UUID, by role, and to all.
    let frame = Frame::with_payload(Command::STOP, "x");
    let sent = three.with(move |cx| {
        let frame = &Frame::with_payload(Command::STOP, "x");
        cx.send(agent_uuid, frame).unwrap();
        let nobody = cx.send(Uuid::nil(), frame);
        assert_eq!(nobody, Err(SendError::NotConnected(Uuid::nil())));
        (
            cx.multicast(Role::AGENT | Role::CONTROLLER, frame),
            cx.multicast(Role::ALL, frame),
        )
    });
    assert_eq!(sent, (Ok(2), Ok(2)));
    for _ in 0..3 {
        assert_eq!(agent.frame(), frame);
    }
    for _ in 0..2 {
        assert_eq!(controller.frame(), frame);
    }
    // A frame that came over a link goes to no other link, so each server has it once.
    assert_eq!(agent.arrived(), []);
    assert_eq!(controller.arrived(), []);
    // A message goes from application to application.
    let second = two.uuid();
    three.with(move |cx| {
        cx.send_to_server(second, Bytes::from_static(b"an intent"))
            .unwrap();
        assert_eq!(cx.send_to_servers(&Bytes::from_static(b"all")), 2);
        assert!(cx.send_to_server(Uuid::nil(), Bytes::new()).is_err());
    });
    two.await_news(&News::Told(three.uuid(), Bytes::from_static(b"an intent")));
    two.await_news(&News::Told(three.uuid(), Bytes::from_static(b"all")));
    one.await_news(&News::Told(three.uuid(), Bytes::from_static(b"all")));
    // All servers know the end of a session.
    drop(agent);
    two.await_news(&News::RemoteGone(agent_uuid));
    three.await_news(&News::RemoteGone(agent_uuid));
    let refused = three.with(move |cx| cx.send(agent_uuid, &Frame::new(Status::READY)));
    assert_eq!(refused, Err(SendError::NotConnected(agent_uuid)));
}

#[test]
fn links_do_not_count_as_sessions() {
    let one = Node::start(&[]);
    let two = Node::start(&[&one]);
    let _client = two.connect(Role::AGENT, &[&one]);
    assert_eq!(two.server.handle().figures().unwrap().standing, 1);
}

#[test]
fn a_listener_in_memory_is_dialled_once_until_it_is_undialled() {
    let node = Node::start(&[]);
    let dialler = node.server.server.as_ref().unwrap().dialler().unwrap();
    let [one, other] = [(); 2].map(|()| Target::from(&MemoryListener::new()));
    assert!(dialler.dial(one.clone()).unwrap() && dialler.dial(other).unwrap());
    assert!(!dialler.dial(one.clone()).unwrap());
    assert!(dialler.undial(&one) && !dialler.undial(&one));
    assert_eq!(dialler.peers().len(), 1);
}

#[test]
fn a_server_sends_requests_only_to_its_own_clients() {
    let query = FrameKind::new(FrameType::COMMAND, 0x90);
    let configure = |config: ServerConfig| config.operands(Operands::new().request(query, "QUERY").unwrap());
    let one = Node::start_with(&[], configure);
    let two = Node::start_with(&[&one], configure);
    let client = two.connect(Role::AGENT, &[&one]);
    // Its answer would not reach the first server, so the call must not wait for it.
    let refused = one.server.handle().request(client.uuid, Frame::new(query), LONG);
    assert_eq!(refused, Err(RequestError::NotConnected));
}

#[test]
fn a_traced_frame_gets_a_hop_of_each_server() {
    let one = Node::start(&[]);
    let two = Node::start(&[&one]);
    let traced = |node: &Node, role: Role, other: &Node| {
        let mut peer = node.server.dial(&identity(role));
        assert!(peer.handshake(role, Uuid::new_v4(), true).trace);
        other.await_news(&News::Remote(peer.uuid));
        peer
    };
    let mut agent = traced(&one, Role::AGENT, &two);
    let mut controller = traced(&two, Role::CONTROLLER, &one);
    let mut trace = ssntp::proto::Trace::new("across");
    trace.stamp_sent(agent.uuid, Role::AGENT, 1);
    agent.send(&Frame::with_payload(Command::STATS, "load: 1\n").traced(trace));
    let frame = controller.frame();
    let nodes = frame.trace().unwrap().nodes();
    let hops: Vec<_> = nodes.iter().map(|node| node.uuid).collect();
    assert_eq!(hops, [agent.uuid, one.uuid(), two.uuid()]);
}

/// Passes received frames to the application of another server.
struct Passes(Uuid);

impl Handler for Passes {
    fn run(&mut self, cx: &mut Context<'_>, from: &SessionInfo, run: &Run) {
        cx.pass_to_server(self.0, from, run).unwrap();
    }
}

#[test]
fn frames_are_passed_to_the_application_of_another_server() {
    let leader = Node::start(&[]);
    let federation = Federation::new().peers([&leader.links]);
    let follower = TestServer::start(Passes(leader.uuid()), |config| config.federate(federation));
    let second = follower.server.as_ref().unwrap().uuid();
    leader.await_news(&News::Linked(second));
    let mut agent = follower.connect(Role::AGENT);
    leader.await_news(&News::Remote(agent.uuid));
    agent.send(&Frame::new(Status::READY));
    leader.await_news(&News::Frame(agent.uuid, second, Status::READY.into()));
    // A leader's frames are accepted until a higher token is known.
    let uuid = agent.uuid;
    let order = move |cx: &mut Context<'_>, token, text: &'static str| {
        cx.set_leader_token(Some(token));
        cx.send(uuid, &Frame::with_payload(Command::STOP, text)).unwrap();
    };
    leader.with(move |cx| order(cx, 7, "first"));
    assert_eq!(agent.frame().payload_bytes()[..], *b"first");
    let token_seen = follower.handle().with(|cx| {
        let token_seen = cx.token();
        cx.note_token(9);
        token_seen
    });
    assert_eq!(token_seen, Ok(7));
    leader.with(move |cx| order(cx, 8, "old"));
    leader.with(move |cx| order(cx, 9, "new"));
    assert_eq!(agent.frame().payload_bytes()[..], *b"new");
    let figures = follower.handle().figures().unwrap().links;
    assert_eq!(figures[0].frames_stale, 1);
}

#[test]
fn a_server_that_sends_the_greatest_token_is_refused_and_fences_off_no_leader() {
    let leader = Node::start(&[]);
    let follower = Node::start(&[&leader]);
    let mut agent = follower.connect(Role::AGENT, &[&leader]);
    let wrong = Node::start(&[]);
    wrong.with(|cx| cx.note_token(u64::MAX));
    let dialler = follower.server.server.as_ref().unwrap().dialler().unwrap();
    dialler.dial(Target::from(&wrong.links)).unwrap();
    let is_refused = |(_, state): &(_, PeerState)| match state {
        PeerState::Trying(why) => why.contains("a token that no leader can have"),
        _ => false,
    };
    let deadline = Instant::now() + LONG;
    while !dialler.peers().iter().any(is_refused) {
        assert!(Instant::now() < deadline, "{:?}", dialler.peers());
        std::thread::sleep(Duration::from_millis(5));
    }
    // The leader's frames are accepted, and frames with the greatest token are dropped.
    let uuid = agent.uuid;
    for (token, text) in [(7, "first"), (u64::MAX, "wrong"), (8, "second")] {
        leader.with(move |cx| {
            // The application of the second server does not know the engine's token.
            cx.set_leader_token(Some(token));
            let _ = cx.send(uuid, &Frame::with_payload(Command::STOP, text));
        });
    }
    for text in ["first", "second"] {
        assert_eq!(agent.frame().payload_bytes()[..], *text.as_bytes());
    }
    assert_eq!(follower.with(|cx| cx.token()), 8);
    assert_eq!(follower.link_to(&leader).frames_stale, 1);
    // A token that is much higher than the known one is accepted.
    leader.with(|cx| cx.set_leader_token(Some(1 << 62)));
    leader
        .with(move |cx| cx.send(uuid, &Frame::new(Command::STOP)))
        .unwrap();
    agent.frame();
    assert_eq!(follower.with(|cx| cx.token()), 1 << 62);
}

fn small_queue(config: ServerConfig) -> ServerConfig {
    config.patience(4 * LONG).write_timeout(4 * LONG).queue(Limits {
        frames: 1 << 20,
        bytes: 1 << 20,
    })
}

#[test]
fn a_stuck_receiver_behind_a_link_holds_only_its_senders() {
    const FRAMES: u32 = 2000;
    const LEN: usize = 16 * 1024;
    let to = |config: ServerConfig| {
        // The first bytes of a frame's payload after its number name the receiver.
        small_queue(config).rules(Rules::new().route(Command::STATS, |frame, _, _| {
            let uuid = frame.payload_bytes().get(4..20).map(Uuid::from_slice);
            vec![uuid.unwrap().unwrap()]
        }))
    };
    let one = Node::start_with(&[], to);
    let two = Node::start_with(&[&one], to);
    let mut stuck = two.connect(Role::CONTROLLER, &[&one]);
    let mut reader = two.connect(Role::CONTROLLER, &[&one]);
    let send = |mut from: Peer, to: Uuid| {
        std::thread::spawn(move || {
            for at in 0..FRAMES {
                let mut payload = vec![0; LEN];
                payload[..4].copy_from_slice(&at.to_be_bytes());
                payload[4..20].copy_from_slice(to.as_bytes());
                from.send(&Frame::with_payload(Command::STATS, payload));
            }
            from
        })
    };
    let slow = send(one.connect(Role::AGENT, &[&two]), stuck.uuid);
    one.await_link(&two, |link| link.held == 1);
    // 32 MB pass while the sender to the stuck receiver stays held.
    let fast = send(one.connect(Role::AGENT, &[&two]), reader.uuid);
    receive(&mut reader, FRAMES);
    fast.join().unwrap();
    // The other server may have held the fast sender for a while, and sends GO later.
    one.await_link(&two, |link| link.held == 1);
    assert!(!slow.is_finished(), "the sender is held back");
    // When the receiver reads, it gets all frames in order, and its sender continues.
    receive(&mut stuck, FRAMES);
    slow.join().unwrap();
    one.await_link(&two, |link| link.held == 0);
}

#[test]
fn a_link_that_was_cut_comes_back_with_a_snapshot() {
    let one = Node::start(&[]);
    let two = Node::start(&[&one]);
    let stays = one.connect(Role::AGENT, &[&two]);
    one.links.cut();
    two.await_news(&News::RemoteGone(stays.uuid));
    two.await_news(&News::Unlinked(one.uuid()));
    let new = one.server.connect(Role::AGENT);
    let news = two.await_news(&News::Linked(one.uuid()));
    assert!(!news.contains(&News::Unlinked(one.uuid())), "{news:?}");
    two.await_news(&News::Remote(new.uuid));
    let agents = two.with(|cx| cx.directory().with_role(Role::AGENT).count());
    assert_eq!(agents, 2);
    let mut controller = two.connect(Role::CONTROLLER, &[]);
    controller.send(&Frame::new(Command::STOP));
    for mut agent in [stays, new] {
        assert_eq!(agent.frame().kind(), Command::STOP);
    }
}

#[test]
fn a_stopped_server_leaves_no_rows_and_no_links() {
    let one = Node::start(&[]);
    let two = Node::start(&[&one]);
    let three = Node::start(&[&one, &two]);
    let agent = one.connect(Role::AGENT, &[&two, &three]);
    let uuid = one.uuid();
    drop(one);
    for node in [&two, &three] {
        node.await_news(&News::RemoteGone(agent.uuid));
        node.await_news(&News::Unlinked(uuid));
        assert_eq!(
            node.with(|cx| (cx.directory().len(), cx.servers().count())),
            (0, 1)
        );
    }
}

#[test]
fn servers_that_dial_each_other_and_themselves_keep_one_link() {
    let one = Node::start(&[]);
    let two = Node::start(&[&one]);
    let dialler = one.server.server.as_ref().unwrap().dialler().unwrap();
    assert!(dialler.dial(Target::from(&two.links)).unwrap());
    assert!(dialler.dial(Target::from(&one.links)).unwrap());
    let deadline = Instant::now() + LONG;
    let is_done = |states: &[PeerState]| {
        states.contains(&PeerState::Own) && states.contains(&PeerState::Linked(two.uuid()))
    };
    loop {
        let states: Vec<_> = dialler.peers().into_iter().map(|(_, state)| state).collect();
        if is_done(&states) {
            break;
        }
        assert!(Instant::now() < deadline, "{states:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let dialled_by_smaller = one.uuid() < two.uuid();
    one.await_link(&two, |link| link.linked);
    two.await_link(&one, |link| link.linked);
    // The second server has dialled the first link, which stays if that server's UUID is smaller.
    one.await_link(&two, |link| link.server.dialled == dialled_by_smaller);
    two.await_link(&one, |link| link.server.dialled != dialled_by_smaller);
}

#[test]
fn a_client_that_takes_its_own_session_over_again_and_again_ends_no_link_and_no_receiver_behind_it() {
    const LONG_FRAME: usize = 4 << 20;
    let small = |config| small_queue(config).patience(LONG);
    let one = Node::start_with(&[], small);
    let two = Node::start_with(&[&one], small);
    let mut receiver = two.server.connect(Role::CONTROLLER);
    let controller = receiver.uuid;
    one.await_news(&News::Remote(controller));
    let uuid = Uuid::new_v4();
    let own = bound_identity(Role::AGENT, uuid);
    let mut agent = one.server.connect_as(&own, Role::AGENT, uuid);
    for _ in 0..20 {
        agent.send(&Frame::with_payload(Command::STATS, vec![7; LONG_FRAME]));
        while one.with(move |cx| cx.counters(uuid).unwrap().bytes_received) < LONG_FRAME as u64 {
            std::thread::yield_now();
        }
        agent = crate::flow::take_over(&one.server, &own, uuid);
    }
    assert!(
        one.with(move |cx| cx.directory().session(controller).is_some()),
        "the link stands"
    );
    agent.send(&Frame::with_payload(Command::STATS, vec![1]));
    while receiver.frame().payload_bytes().len() > 1 {}
    let counters = two.with(move |cx| cx.counters(controller)).unwrap();
    assert_eq!(counters.frames_dropped, 0);
}
