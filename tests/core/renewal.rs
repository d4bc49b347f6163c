//! Identities, trust and authorities are replaced while clients and a server work.
//!
//! A planned reconnection loses no frames: those that a client has sent arrive once and in order; those
//! that the server has queued for a session arrive before its end; and requests are answered. Frames for a
//! client that is not connected are lost, as always.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ssntp::client::{Client, ClientConfig, ClientEvent, ClientHandle, SessionEnd};
use ssntp::crossbeam_channel::{Receiver, Sender, unbounded};
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Trust};
use ssntp::proto::{FrameKind, FrameType, Operands};
use ssntp::server::{Context, Handler, Rules, Server, ServerHandle, SessionInfo};
use ssntp::testkit::Testkit;
use ssntp::transport::Limits;
use ssntp::{Command, Frame, Role, ServerConfig, Uuid};

const QUERY: FrameKind = FrameKind::new(FrameType::COMMAND, 0x81);

/// The longest wait of a test.
const LIMIT: Duration = Duration::from_secs(60);

fn numbered(kind: impl Into<FrameKind>, number: u64) -> Frame {
    Frame::with_payload(kind, number.to_be_bytes().to_vec())
}

fn number(frame: &Frame) -> u64 {
    u64::from_be_bytes(frame.payload_bytes()[..].try_into().unwrap())
}

/// Records received numbers, and answers requests.
struct Notes(Sender<(Uuid, u64)>);

impl Handler for Notes {
    fn frame(&mut self, _: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        let _ = self.0.send((from.uuid(), number(&frame)));
    }

    fn request(&mut self, cx: &mut Context<'_>, _: &SessionInfo, request: ssntp::Request) {
        cx.reply(&request, request.payload().clone()).unwrap();
    }
}

fn operands() -> Operands {
    Operands::new().request(QUERY, "QUERY").unwrap()
}

/// The threads of a test that use its clients until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Load {
    fn new() -> Self {
        Self {
            stop: Arc::default(),
            threads: Vec::new(),
        }
    }

    /// Calls a function with one number after the other.
    fn add(&mut self, mut next: impl FnMut(u64) + Send + 'static) {
        let stop = Arc::clone(&self.stop);
        self.threads.push(std::thread::spawn(move || {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                next(number);
                number += 1;
            }
            number
        }));
    }

    /// The last number of each thread.
    fn end(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|t| t.join().unwrap()).collect()
    }
}

/// Receives until the client is closed. Returns the numbers, and the reasons for ends of sessions.
fn receive(client: Client) -> JoinHandle<(Vec<u64>, Vec<SessionEnd>)> {
    std::thread::spawn(move || {
        let (mut numbers, mut ends) = (Vec::new(), Vec::new());
        while let Ok(event) = client.recv() {
            match event {
                ClientEvent::Frame(frame) if frame.kind() == Command::START => numbers.push(number(&frame)),
                ClientEvent::Disconnected { reason, .. } => ends.push(reason),
                _ => {}
            }
        }
        (numbers, ends)
    })
}

fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "the condition is never true");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a number to a client as soon as it is connected.
fn send_when_connected(server: &ServerHandle, to: Uuid, number: u64) {
    until(|| server.send(to, numbered(Command::START, number)).is_ok());
}

/// All numbers below `count`, once and in order.
fn assert_complete(numbers: impl IntoIterator<Item = u64>, count: u64) {
    let mut expected = 0;
    for number in numbers {
        assert_eq!(number, expected);
        expected += 1;
    }
    assert_eq!(expected, count);
}

#[test]
fn a_pair_that_is_renewed_under_load_loses_no_frame() {
    let kit = Testkit::new().unwrap();
    let (sender, notes) = unbounded();
    let config = kit.server_config().unwrap().operands(operands());
    let server = Server::start(config, Notes(sender)).unwrap();
    let start = |role| {
        let config = kit.client_config(role).unwrap().operands(operands());
        // Short queues, so that senders wait for room when the session ends.
        let queue = Limits {
            frames: 200,
            bytes: 1 << 20,
        };
        Client::connect(config.queue(queue).renewal_spread(Duration::from_millis(20))).unwrap()
    };
    let clients = [start(Role::AGENT), start(Role::CONTROLLER)];
    let handles = clients.each_ref().map(Client::handle);
    let receivers = clients.map(receive);

    let mut load = Load::new();
    for handle in &handles {
        let sending = handle.clone();
        load.add(move |number| sending.send(numbered(Command::STATS, number)).unwrap());
        let (to, server) = (handle.uuid(), server.handle());
        load.add(move |number| send_when_connected(&server, to, number));
        let asking = handle.clone();
        load.add(move |number| {
            let question = numbered(QUERY, number);
            assert_eq!(asking.request(question.clone(), LIMIT).unwrap(), question);
        });
    }
    for round in 1..=5 {
        for (handle, role) in handles.iter().zip([Role::AGENT, Role::CONTROLLER]) {
            handle.renew(&kit.identity(role).unwrap(), &kit.trust()).unwrap();
        }
        until(|| {
            handles
                .iter()
                .all(|h| h.counters().sessions > round && h.is_connected())
        });
        server
            .renew(&kit.identity(Role::SERVER).unwrap(), &kit.trust())
            .unwrap();
    }
    let counts = load.end();

    let mut of = std::collections::HashMap::<Uuid, Vec<u64>>::new();
    let expected = counts[0] + counts[3];
    for _ in 0..expected {
        let (from, number) = notes.recv_timeout(LIMIT).expect("all frames arrive");
        of.entry(from).or_default().push(number);
    }
    for (handle, counts) in handles.iter().zip(counts.chunks(3)) {
        assert_complete(of.remove(&handle.uuid()).unwrap(), counts[0]);
        assert!(counts[2] > 0, "requests were sent during the renewals");
        assert_eq!(handle.counters().lost_frames, 0);
    }
    // The queues of the sessions are sent before they end.
    server.stop();
    until(|| handles.iter().all(|h| !h.is_connected()));
    for ((receiver, handle), counts) in receivers.into_iter().zip(&handles).zip(counts.chunks(3)) {
        handle.close();
        let (numbers, ends) = receiver.join().unwrap();
        assert_complete(numbers, counts[1]);
        assert_eq!(ends[..5], [const { SessionEnd::Renewed }; 5]);
    }
}

/// An authority and its successor, a server of the first, and an agent that sends numbers.
struct RollOver {
    old: Testkit,
    new: Authority,
    server: Server,
    notes: Receiver<(Uuid, u64)>,
    agent: Client,
}

impl RollOver {
    fn new() -> Self {
        let old = Testkit::new().unwrap();
        let (sender, notes) = unbounded();
        let rules = |config: ServerConfig| config.rules(Rules::new());
        let server = Server::start(rules(old.server_config().unwrap()), Notes(sender)).unwrap();
        let config: ClientConfig = old.client_config(Role::AGENT).unwrap();
        Self {
            new: Authority::new(&AuthorityRequest::default().name("new")).unwrap(),
            agent: Client::connect(config.renewal_spread(Duration::ZERO)).unwrap(),
            server,
            notes,
            old,
        }
    }

    fn both(&self) -> Trust {
        let authorities = [self.old.authority().info(), self.new.info()];
        Trust::from_der(&authorities.map(|info| info.der.clone())).unwrap()
    }

    fn old(&self, role: Role) -> Identity {
        self.old.identity(role).unwrap()
    }

    fn new_of(&self, role: Role) -> Identity {
        self.new.issue(&CertificateRequest::new(role)).unwrap().identity()
    }

    fn next(&self) -> ClientEvent {
        self.agent.recv_timeout(LIMIT).unwrap()
    }

    fn connected(&self) {
        let event = self.next();
        assert!(matches!(event, ClientEvent::Connected(_)), "{event:?}");
    }

    /// Checks that the present session carries a frame.
    fn works(&self) {
        until(|| self.agent.send(numbered(Command::STATS, 7)).is_ok());
        assert_eq!(self.notes.recv_timeout(LIMIT).unwrap().1, 7);
    }
}

#[test]
fn an_authority_that_is_replaced_at_the_server_first_waits_for_the_client() {
    let all = RollOver::new();
    all.connected();
    all.server
        .renew(&all.new_of(Role::SERVER), &all.new.trust())
        .unwrap();
    all.old.network().cut();
    let event = all.next();
    assert!(
        matches!(event, ClientEvent::Disconnected { retrying: true, .. }),
        "{event:?}"
    );
    // It continues to try a server that it no longer trusts.
    let before = all.agent.counters().failed_attempts;
    until(|| all.agent.counters().failed_attempts > before + 1);
    all.agent
        .renew(&all.new_of(Role::AGENT), &all.new.trust())
        .unwrap();
    all.connected();
    all.works();
}

#[test]
fn an_authority_that_is_replaced_at_the_client_first_waits_for_the_server() {
    let all = RollOver::new();
    all.connected();
    all.agent
        .renew(&all.new_of(Role::AGENT), &all.new.trust())
        .unwrap();
    match all.next() {
        ClientEvent::Disconnected {
            reason: SessionEnd::Certificate(_),
            retrying: true,
        } => {}
        other => panic!("{other:?}"),
    }
    until(|| all.agent.counters().failed_attempts > 1);
    all.server
        .renew(&all.new_of(Role::SERVER), &all.new.trust())
        .unwrap();
    all.connected();
    all.works();
}

/// With a bundle of both authorities in between, in any order of hosts: all frames arrive, and no send
/// fails for lack of a session.
#[test]
fn a_replacement_of_an_authority_with_both_trusted_meanwhile_loses_no_frame() {
    #[derive(Clone, Copy)]
    enum Step {
        Server(bool, bool),
        Agent(bool, bool),
    }
    use Step::{Agent, Server as OfServer};
    // The columns: true if the identity is the new one, and true if the trust is in both.
    let orders = [
        [
            OfServer(false, true),
            Agent(false, true),
            OfServer(true, true),
            Agent(true, true),
            OfServer(true, false),
            Agent(true, false),
        ],
        [
            Agent(false, true),
            OfServer(false, true),
            Agent(true, true),
            OfServer(true, true),
            Agent(true, false),
            OfServer(true, false),
        ],
        // The agent gets its new certificate before the server trusts its issuer.
        [
            Agent(true, true),
            OfServer(false, true),
            OfServer(true, true),
            Agent(true, true),
            Agent(true, false),
            OfServer(true, false),
        ],
    ];
    for order in orders {
        let all = RollOver::new();
        let (old, new, both) = (
            [all.old(Role::SERVER), all.old(Role::AGENT)],
            [all.new_of(Role::SERVER), all.new_of(Role::AGENT)],
            all.both(),
        );
        let mut load = Load::new();
        let handle: ClientHandle = all.agent.handle();
        let sending = handle.clone();
        load.add(move |number| {
            sending.send(numbered(Command::STATS, number)).unwrap();
            std::thread::sleep(Duration::from_micros(50));
        });
        let trust = |both_of: bool| if both_of { both.clone() } else { all.new.trust() };
        for step in order {
            let before = handle.counters();
            match step {
                OfServer(renewed, is_both) => {
                    let identity = if renewed { &new[0] } else { &old[0] };
                    all.server.renew(identity, &trust(is_both)).unwrap();
                }
                Agent(renewed, is_both) => {
                    let identity = if renewed { &new[1] } else { &old[1] };
                    let moves = handle.identity().chain() != identity.chain();
                    handle.renew(identity, &trust(is_both)).unwrap();
                    // The agent reconnects, with either certificate.
                    until(|| !moves || handle.counters().sessions > before.sessions && handle.is_connected());
                }
            }
        }
        // The session may also have been replaced because the server was renewed.
        until(|| handle.is_connected() && handle.identity().chain() == new[1].chain());
        let count = load.end()[0];
        let arrived = (0..count).map(|_| all.notes.recv_timeout(LIMIT).expect("all frames arrive").1);
        assert_complete(arrived, count);
        assert_eq!(handle.counters().lost_frames, 0);
    }
}
