//! Several servers that act as one, in one process: real TLS, real threads, a network in
//! memory that can be cut.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use ssntp::proto::{Command, Frame, FrameKind, FrameType, Run, Status};
use ssntp::server::{
    Context, Decision, DisconnectReason, Federation, Handler, LinkFigures, PeerState, Rules, SendError,
    ServerConfig, ServerLink, SessionInfo,
};
use ssntp::transport::memory::MemoryListener;
use ssntp::transport::tls::Connector;
use ssntp::transport::{Limits, Target};
use ssntp::{Bytes, Role};
use ssntp_test_support::*;
use ssntp_transport::{BufferPool, Outgoing};
use uuid::Uuid;

/// These tests wait for threads of two servers and more, on any machine.
const LONG: Duration = Duration::from_secs(60);

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

struct Watch(Sender<News>);

impl Watch {
    fn note(&self, news: News) {
        let _ = self.0.send(news);
    }
}

impl Handler for Watch {
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
    fn disconnected(&mut self, _: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        self.note(News::Ended(session.uuid(), reason.clone()));
    }
    fn run(&mut self, _: &mut Context<'_>, from: &SessionInfo, run: &Run) {
        // STATS are what floods.
        if run.kind() != Command::STATS {
            self.note(News::Frame(from.uuid(), from.server(), run.kind()));
        }
    }
    fn told(&mut self, _: &mut Context<'_>, server: Uuid, message: Bytes) {
        self.note(News::Told(server, message));
    }
}

/// A server, where others dial it, and what its application hears.
pub(crate) struct Node {
    pub(crate) server: TestServer,
    pub(crate) links: MemoryListener,
    news: Receiver<News>,
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
        let (news, heard) = unbounded();
        let federation = Federation::new().peers(peers.iter().map(|peer| &peer.links));
        let server = TestServer::start(Watch(news), |config| {
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
            news: heard,
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

    /// Waits for this news, and gives those before it.
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

    /// A client here, which the other nodes know of.
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
        let links = self.server.handle().links().unwrap();
        links
            .into_iter()
            .find(|link| link.server.uuid == other.uuid())
            .unwrap()
    }

    /// Waits until the figures of the link say so.
    /// Waits for a link to a server that may be a test itself.
    fn await_link_of(&self, server: Uuid) {
        let deadline = Instant::now() + LONG;
        let stands = |link: &LinkFigures| link.server.uuid == server;
        while !self.server.handle().links().unwrap().iter().any(stands) {
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

/// Sends so many numbered frames from a thread, and gives the peer back.
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
    // Another pair, whose frames go the other way.
    let mut other_agent = one.connect(Role::AGENT, &[&two]);
    let mut other_controller = two.connect(Role::CONTROLLER, &[&one]);
    let agent = flood(agent, Command::STATS, FRAMES, 20);
    let controller = flood(controller, Command::STOP, FRAMES, 20);
    let reading = std::thread::spawn(move || receive(&mut other_controller, FRAMES));
    receive(&mut other_agent, FRAMES);
    reading.join().unwrap();
    // What both were sent is there as well.
    receive(&mut controller.join().unwrap(), FRAMES);
    receive(&mut agent.join().unwrap(), FRAMES);
    // A multicast crosses once, whatever the number of its receivers.
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
    let seen = three.with(move |cx| {
        let directory = cx.directory();
        let roles = [Role::AGENT, Role::CONTROLLER, Role::NETAGENT];
        let counts = roles.map(|role| directory.with_role(role).count());
        let server = directory.session(agent_uuid).map(SessionInfo::server);
        (directory.len(), counts, server, cx.counters(agent_uuid).is_some())
    });
    assert_eq!(seen, (2, [1, 1, 0], Some(first), false));
    // By UUID, by role, and to all.
    let frame = Frame::with_payload(Command::STOP, "x");
    let sent = three.with(move |cx| {
        let frame = &Frame::with_payload(Command::STOP, "x");
        cx.send(agent_uuid, frame).unwrap();
        let nobody = cx.send(Uuid::nil(), frame);
        assert_eq!(nobody, Err(SendError::NotConnected(Uuid::nil())));
        (
            cx.multicast(Role::AGENT | Role::CONTROLLER, frame),
            cx.broadcast(frame),
        )
    });
    assert_eq!(sent, (Ok(2), Ok(2)));
    for _ in 0..3 {
        assert_eq!(agent.frame(), frame);
    }
    for _ in 0..2 {
        assert_eq!(controller.frame(), frame);
    }
    // What came over a link goes to no other link: each has it once.
    assert_eq!(agent.arrived(), []);
    assert_eq!(controller.arrived(), []);
    // From application to application.
    let second = two.uuid();
    three.with(move |cx| {
        cx.tell(second, Bytes::from_static(b"an intent")).unwrap();
        assert_eq!(cx.tell_all(&Bytes::from_static(b"all")), 2);
        assert!(cx.tell(Uuid::nil(), Bytes::new()).is_err());
    });
    two.await_news(&News::Told(three.uuid(), Bytes::from_static(b"an intent")));
    two.await_news(&News::Told(three.uuid(), Bytes::from_static(b"all")));
    one.await_news(&News::Told(three.uuid(), Bytes::from_static(b"all")));
    // A session's end is known everywhere.
    drop(agent);
    two.await_news(&News::RemoteGone(agent_uuid));
    three.await_news(&News::RemoteGone(agent_uuid));
    let gone = three.with(move |cx| cx.send(agent_uuid, &Frame::new(Status::READY)));
    assert_eq!(gone, Err(SendError::NotConnected(agent_uuid)));
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

/// Hands what it gets to another server's application.
struct Passes(Uuid);

impl Handler for Passes {
    fn run(&mut self, cx: &mut Context<'_>, from: &SessionInfo, run: &Run) {
        cx.pass(self.0, from, run).unwrap();
    }
}

#[test]
fn frames_are_handed_to_another_servers_application() {
    let leader = Node::start(&[]);
    let federation = Federation::new().peers([&leader.links]);
    let follower = TestServer::start(Passes(leader.uuid()), |config| config.federate(federation));
    let second = follower.server.as_ref().unwrap().uuid();
    leader.await_news(&News::Linked(second));
    let mut agent = follower.connect(Role::AGENT);
    leader.await_news(&News::Remote(agent.uuid));
    agent.send(&Frame::new(Status::READY));
    leader.await_news(&News::Frame(agent.uuid, second, Status::READY.into()));
    // What the leader says under its token is taken until a higher one is seen.
    let uuid = agent.uuid;
    let order = move |cx: &mut Context<'_>, token, text: &'static str| {
        cx.lead(Some(token));
        cx.send(uuid, &Frame::with_payload(Command::STOP, text)).unwrap();
    };
    leader.with(move |cx| order(cx, 7, "first"));
    assert_eq!(agent.frame().payload_bytes()[..], *b"first");
    let seen = follower.handle().with(|cx| {
        let seen = cx.token();
        cx.see_token(9);
        seen
    });
    assert_eq!(seen, Ok(7));
    leader.with(move |cx| order(cx, 8, "old"));
    leader.with(move |cx| order(cx, 9, "new"));
    assert_eq!(agent.frame().payload_bytes()[..], *b"new");
    let figures = follower.handle().links().unwrap();
    assert_eq!(figures[0].frames_stale, 1);
}

#[test]
fn a_server_that_says_the_greatest_token_is_refused_and_fences_nobody_off() {
    let leader = Node::start(&[]);
    let follower = Node::start(&[&leader]);
    let mut agent = follower.connect(Role::AGENT, &[&leader]);
    let wrong = Node::start(&[]);
    wrong.with(|cx| cx.see_token(u64::MAX));
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
    // What the leader says is taken, and under the greatest token nothing.
    let uuid = agent.uuid;
    for (token, text) in [(7, "first"), (u64::MAX, "wrong"), (8, "second")] {
        leader.with(move |cx| {
            // The application of the second one does not ask its engine.
            cx.lead(Some(token));
            let _ = cx.send(uuid, &Frame::with_payload(Command::STOP, text));
        });
    }
    for text in ["first", "second"] {
        assert_eq!(agent.frame().payload_bytes()[..], *text.as_bytes());
    }
    assert_eq!(follower.with(|cx| cx.token()), 8);
    assert_eq!(follower.link_to(&leader).frames_stale, 1);
    // An engine that is much further than this server knew is believed.
    leader.with(|cx| cx.lead(Some(1 << 62)));
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
fn a_stuck_receiver_behind_a_link_holds_those_who_send_to_it_and_nobody_else() {
    const FRAMES: u32 = 2000;
    const LEN: usize = 16 * 1024;
    let to = |config: ServerConfig| {
        // The first bytes of a frame's payload after its number name the receiver.
        small_queue(config).rules(Rules::new().route(Command::STATS, |frame, _, _| {
            let uuid = frame.payload_bytes().get(4..20).map(Uuid::from_slice);
            Decision::Forward(vec![uuid.unwrap().unwrap()])
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
    // 32 MB pass by the stuck one, whose sender stays held. Its receiver reads nothing yet.
    let fast = send(one.connect(Role::AGENT, &[&two]), reader.uuid);
    receive(&mut reader, FRAMES);
    fast.join().unwrap();
    // The other server may have held the fast one for a while, and says later that it goes on.
    one.await_link(&two, |link| link.held == 1);
    assert!(!slow.is_finished(), "its sender is held back");
    // It gets everything once it reads, in order, and its sender goes on.
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
fn a_server_that_stops_leaves_no_rows_and_its_links_end() {
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
fn a_session_is_taken_over_from_another_server_by_its_rules() {
    let one = Node::start(&[]);
    let two = Node::start(&[&one]);
    let uuid = Uuid::new_v4();
    let own = bound_identity(Role::AGENT, uuid);
    for (here, there) in [(&one, &two), (&two, &one), (&one, &two)] {
        let peer = here.server.connect_as(&own, Role::AGENT, uuid);
        there.await_news(&News::Remote(uuid));
        let counted = [here, there].map(|node| {
            let server = node.with(move |cx| {
                assert_eq!(cx.directory().with_role(Role::AGENT).count(), 1);
                cx.directory().session(uuid).map(SessionInfo::server)
            });
            server == Some(here.uuid())
        });
        assert_eq!(counted, [true; 2]);
        // The next one takes it over: this one ends as replaced.
        let mut next = there.server.connect_as(&own, Role::AGENT, uuid);
        here.await_news(&News::Ended(uuid, DisconnectReason::Replaced));
        next.finish();
        drop(peer);
        there.await_news(&News::Ended(uuid, DisconnectReason::PeerClosed));
        here.await_news(&News::RemoteGone(uuid));
    }
    // A stranger with the role does not get the UUID on any server.
    let _holder = one.server.connect_as(&own, Role::AGENT, uuid);
    two.await_news(&News::Remote(uuid));
    let mut stranger = two.server.dial(&identity(Role::AGENT));
    let got = stranger.try_handshake(Role::AGENT, uuid, false, Default::default());
    assert!(!got);
    assert_eq!(
        one.with(move |cx| cx.directory().session(uuid).map(SessionInfo::server)),
        Some(one.uuid())
    );
}

#[test]
fn who_is_refused_by_one_server_keeps_its_session_at_another_one() {
    let one = Node::start(&[]);
    let two = Node::start_with(&[&one], |config| config.max_sessions(1));
    let uuid = Uuid::new_v4();
    let own = bound_identity(Role::AGENT, uuid);
    let _session = one.server.connect_as(&own, Role::AGENT, uuid);
    two.await_news(&News::Remote(uuid));
    let comes_in_vain = || {
        let mut again = two.server.dial(&own);
        assert!(!again.try_handshake(Role::AGENT, uuid, false, Default::default()));
        for node in [&one, &two] {
            let server = node.with(move |cx| cx.directory().session(uuid).map(SessionInfo::server));
            assert_eq!(server, Some(one.uuid()));
        }
    };
    // The only place is taken.
    let _stays = two.server.connect(Role::CONTROLLER);
    comes_in_vain();
    // A server that drains takes nobody. It stays, because this client does not leave.
    two.server.handle().drain(60 * LONG).unwrap();
    comes_in_vain();
}

#[test]
fn after_a_partition_the_later_session_stays_and_the_other_is_replaced() {
    let one = Node::start(&[]);
    let two = Node::start(&[]);
    let uuid = Uuid::new_v4();
    let own = bound_identity(Role::AGENT, uuid);
    let _first = one.server.connect_as(&own, Role::AGENT, uuid);
    // So the second server's admission has the greater stamp.
    let _other = two.server.connect(Role::CONTROLLER);
    let _second = two.server.connect_as(&own, Role::AGENT, uuid);
    let dialler = one.server.server.as_ref().unwrap().dialler().unwrap();
    assert!(dialler.dial(Target::from(&two.links)).unwrap());
    one.await_news(&News::Ended(uuid, DisconnectReason::Replaced));
    two.await_news(&News::RemoteGone(uuid));
    for node in [&one, &two] {
        let server = node.with(move |cx| cx.directory().session(uuid).map(SessionInfo::server));
        assert_eq!(server, Some(two.uuid()));
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
    // The first link was the second server's: it stays if that is the smaller one.
    one.await_link(&two, |link| link.server.dialled == dialled_by_smaller);
    two.await_link(&one, |link| link.server.dialled != dialled_by_smaller);
}

/// A connection that offers the protocol of links.
fn link_stream(node: &Node, identity: &ssntp::pki::Identity) -> std::io::Result<ssntp_transport::Halves> {
    link_over(
        node.links.connect(Default::default(), Default::default())?,
        identity,
    )
}

fn link_over(
    stream: impl ssntp_transport::Duplex + 'static,
    identity: &ssntp::pki::Identity,
) -> std::io::Result<ssntp_transport::Halves> {
    let connector = Connector::mutual(identity, &trust())
        .unwrap()
        .protocol(b"ssntp-link/1");
    let deadline = Instant::now() + LONG;
    let secured = connector.connect(Arc::new(stream), "localhost", &BufferPool::new(), deadline);
    let secured = secured.map_err(std::io::Error::other)?;
    assert_eq!(secured.alpn.as_deref(), Some(&b"ssntp-link/1"[..]));
    Ok(secured.halves)
}

/// What the server says until the end.
fn last_words(mut halves: ssntp_transport::Halves) -> Vec<u8> {
    let deadline = Instant::now() + LONG;
    while let Ok(received) = halves.receive_until(deadline) {
        if received.end {
            break;
        }
    }
    halves.inbox.bytes_mut().to_vec()
}

#[test]
fn who_is_no_server_gets_no_link() {
    let node = Node::start(&[]);
    for role in [Role::AGENT, Role::CONTROLLER] {
        let words = last_words(link_stream(&node, &identity(role)).unwrap());
        let text = String::from_utf8_lossy(&words).into_owned();
        assert!(text.contains("and a link needs server or scheduler"), "{text:?}");
    }
    let stranger = ssntp::pki::Authority::new(&Default::default()).unwrap();
    let stranger = stranger
        .issue(&ssntp::pki::CertificateRequest::new(Role::SERVER))
        .unwrap();
    // TLS 1.3 may tell a client only afterwards.
    if let Ok(halves) = link_stream(&node, &stranger.identity()) {
        assert!(last_words(halves).is_empty());
    }
    assert!(node.server.handle().links().unwrap().is_empty());
    // A server without peers does not take links, and names the reason to those that ask.
    let alone = TestServer::start((), |config| config);
    let dialler = node.server.server.as_ref().unwrap().dialler().unwrap();
    dialler.dial(Target::from(&alone.listener)).unwrap();
    let deadline = Instant::now() + LONG;
    while !matches!(&dialler.peers()[0].1, PeerState::Trying(why) if why.contains("runs without peers")) {
        assert!(Instant::now() < deadline, "{:?}", dialler.peers());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_scheduler_links_with_schedulers_only() {
    let links = MemoryListener::new();
    let config = ServerConfig::new(identity(Role::SCHEDULER), trust());
    let config = config.listen_in_memory(&links).federate(Federation::new());
    let _server = ssntp::server::Server::start(config, ()).unwrap();
    for (role, refused) in [(Role::SERVER, true), (Role::SCHEDULER, false)] {
        let stream = links.connect(Default::default(), Default::default()).unwrap();
        let mut halves = link_over(stream, &identity(role)).unwrap();
        let hello = hello_as(role, 1, Uuid::from_u128(5), ssntp::proto::DEFAULT_MAX_PAYLOAD);
        // What follows HELLO ends the link that there is.
        for frame in [hello, link_frame(200, &[])] {
            let _ = halves.transmit.transmit(&[Outgoing::whole(frame.into(), 1)]);
        }
        let text = String::from_utf8_lossy(&last_words(halves)).into_owned();
        let is_refused = text.contains("a scheduler links with schedulers only");
        assert_eq!(is_refused, refused, "{role}: {text:?}");
    }
}

#[test]
fn a_link_that_stands_is_not_taken_by_another_certificate_that_claims_its_uuid() {
    let node = Node::start(&[]);
    let uuid = Uuid::from_u128(5);
    let begin = |identity: &ssntp::pki::Identity, incarnation: u64| {
        let mut halves = link_stream(&node, identity).unwrap();
        let mut hello = hello(1, uuid, ssntp::proto::DEFAULT_MAX_PAYLOAD);
        hello[26..34].copy_from_slice(&incarnation.to_be_bytes());
        halves
            .transmit
            .transmit(&[Outgoing::whole(hello.into(), 1)])
            .unwrap();
        halves
    };
    let own = identity(Role::SERVER);
    let first = begin(&own, 1);
    node.await_link_of(uuid);
    let other = last_words(begin(&identity(Role::SERVER), 2));
    let text = String::from_utf8_lossy(&other).into_owned();
    assert!(
        text.contains("another certificate has a link with that UUID"),
        "{text:?}"
    );
    // The same certificate may come again, as a server does that was started again.
    let _again = begin(&own, 3);
    let text = String::from_utf8_lossy(&last_words(first)).into_owned();
    assert!(text.contains("a newer link takes its place"), "{text:?}");
}

/// HELLO as docs/links.md has it.
fn hello(version: u16, uuid: Uuid, max_payload: u32) -> Vec<u8> {
    hello_as(Role::SERVER, version, uuid, max_payload)
}

fn hello_as(role: Role, version: u16, uuid: Uuid, max_payload: u32) -> Vec<u8> {
    let mut fields = version.to_be_bytes().to_vec();
    fields.extend(uuid.as_bytes());
    fields.extend(1u64.to_be_bytes());
    fields.extend(role.bits().to_be_bytes());
    fields.extend(0u64.to_be_bytes());
    fields.extend(max_payload.to_be_bytes());
    fields.extend([0, 0]);
    link_frame(0, &fields)
}

fn link_frame(operand: u8, fields: &[u8]) -> Vec<u8> {
    let mut frame = vec![0, 1, 0x4c, operand];
    frame.extend((fields.len() as u32).to_be_bytes());
    frame.extend(fields);
    frame
}

#[test]
fn a_wrong_frame_ends_the_link_and_its_reason_is_named() {
    let node = Node::start(&[]);
    let server = identity(Role::SERVER);
    let good = hello(1, Uuid::from_u128(5), ssntp::proto::DEFAULT_MAX_PAYLOAD);
    let snapshot = link_frame(1, &[0, 0, 0, 0, 0, 0, 0, 3, 1]);
    let gone = link_frame(3, &[&5u64.to_be_bytes()[..], &[0; 24]].concat());
    let forward = [&[0; 33][..], &[1, 0, 0, 0, 1], &[0, 1, 0, 1, 0, 0, 0, 9]].concat();
    let longer = |version| {
        let hello = hello(version, Uuid::from_u128(5), ssntp::proto::DEFAULT_MAX_PAYLOAD);
        link_frame(0, &[&hello[8..], &[0; 4]].concat())
    };
    let cases: [(&str, Vec<Vec<u8>>); 11] = [
        // A field that only a later version knows.
        ("version 2 of links, this server has 1", vec![longer(2)]),
        ("HELLO has 4 bytes too many", vec![longer(1)]),
        ("the first frame is", vec![vec![0xff; 40]]),
        (
            "version 2 of links, this server has 1",
            vec![hello(2, Uuid::from_u128(5), 1)],
        ),
        (
            "its longest payload is 1 bytes",
            vec![hello(1, Uuid::from_u128(5), 1)],
        ),
        ("HELLO came out of its turn", vec![good.clone(), good.clone()]),
        (
            "change 5 of its sessions came after change 3",
            vec![good.clone(), snapshot.clone(), gone],
        ),
        (
            "0x4c/0xc8 does not belong on a link",
            vec![good.clone(), link_frame(200, &[])],
        ),
        (
            "STATS does not belong on a link",
            vec![good.clone(), Frame::new(Command::STATS).encode().to_vec()],
        ),
        (
            "FORWARD: the value of its frames",
            vec![good.clone(), snapshot, link_frame(4, &forward)],
        ),
        ("HOLD is too short", vec![good, link_frame(5, &[1])]),
    ];
    for (reason, frames) in cases {
        let mut halves = link_stream(&node, &server).unwrap();
        for frame in frames {
            // The server may have ended it already.
            let _ = halves.transmit.transmit(&[Outgoing::whole(frame.into(), 1)]);
        }
        let words = last_words(halves);
        let text = String::from_utf8_lossy(&words).into_owned();
        assert!(text.contains(reason), "{reason}: {text:?}");
    }
    let unknown = FrameKind::new(FrameType(0x4c), 200);
    assert_eq!(unknown.to_string(), "0x4c/0xc8");
}
