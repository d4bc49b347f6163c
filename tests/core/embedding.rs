//! The parts for programs that embed this crate: frames of the application, requests, admission by the
//! application, and the testkit.
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ssntp::client::{Client, ClientError, ClientEvent, SendFault};
use ssntp::crossbeam_channel::{Receiver, Sender, unbounded};
use ssntp::payload::{Content, InvalidFrameType, InvalidFrameTypeReason};
use ssntp::proto::{Exchange, FrameKind, FrameType, OperandError, Operands, Refusal, Run, Step, Trace};
use ssntp::server::{
    Context, DisconnectReason, Filter, Handler, Newcomer, RuleError, Rules, Server, ServerError, SessionInfo,
};
use ssntp::testkit::{HandlerTest, Testkit};
use ssntp::{Bytes, Command, Frame, Request, RequestError, Role, Status, Uuid};

const DRAIN: FrameKind = FrameKind::new(FrameType::COMMAND, 0x80);
const SCALED: FrameKind = FrameKind::new(FrameType::EVENT, 0xfe);
const QUERY: FrameKind = FrameKind::new(FrameType::COMMAND, 0x81);

/// The longest wait of a test.
const LIMIT: Duration = Duration::from_secs(60);

fn operands() -> Operands {
    let operands = Operands::new().application(DRAIN, "DRAIN").unwrap();
    let operands = operands.application(SCALED, "Scaled").unwrap();
    operands.request(QUERY, "QUERY").unwrap()
}

fn client(kit: &Testkit, role: Role, operands: Operands) -> Client {
    Client::connect(kit.client_config(role).unwrap().operands(operands)).unwrap()
}

fn refusal(frame: &Frame) -> (FrameKind, InvalidFrameTypeReason) {
    let refusal: InvalidFrameType = frame.payload().unwrap();
    (refusal.refused(), refusal.reason)
}

/// Waits until a condition is true. Fails after a time limit.
fn until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "the condition is never true");
        std::thread::yield_now();
    }
}

/// Sends its events to a channel, and answers no request.
struct Channels(Sender<(Uuid, Frame)>, Sender<Request>);

type Received = (Receiver<(Uuid, Frame)>, Receiver<Request>);

fn channels() -> (Channels, Received) {
    let ((frames, received_frames), (requests, asked)) = (unbounded(), unbounded());
    (Channels(frames, requests), (received_frames, asked))
}

impl Handler for Channels {
    fn frame(&mut self, _: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        let _ = self.0.send((from.uuid(), frame));
    }
    fn request(&mut self, _: &mut Context<'_>, _: &SessionInfo, request: Request) {
        let _ = self.1.send(request);
    }
}

#[test]
fn operands_of_an_application_have_their_range_and_names_of_their_own() {
    let add = |kind, name: &str| Operands::new().application(kind, name).map(drop);
    for operand in [0x00, 0x0d, 0x7f, 0xff] {
        let kind = FrameKind::new(FrameType::COMMAND, operand);
        assert_eq!(add(kind, "X"), Err(OperandError::Range(kind)), "{kind}");
    }
    let other_type = FrameKind::new(FrameType(2), 0x80);
    assert_eq!(add(other_type, "X"), Err(OperandError::Range(other_type)));
    let error = FrameKind::new(FrameType::ERROR, 0x80);
    assert_eq!(add(error, "X"), Ok(()));
    let asking = Operands::new().request(error, "X").map(drop);
    assert_eq!(asking, Err(OperandError::Range(error)));
    let long = "X".repeat(33);
    for name in ["", "two words", "a\nline", "ä", &long] {
        assert_eq!(add(DRAIN, name), Err(OperandError::Name(name.into())));
    }
    for name in ["Stats", "DRAIN", "query"] {
        let kind = FrameKind::new(FrameType::STATUS, 0x90);
        let twice = operands().application(kind, name).map(drop);
        assert_eq!(twice, Err(OperandError::NameTwice(name.into())));
    }
    let again = operands().application(DRAIN, "Other").map(drop);
    assert_eq!(again, Err(OperandError::Twice(DRAIN)));

    let operands = operands();
    assert_eq!(operands.kind("drain"), Ok(DRAIN));
    assert_eq!(operands.kind("COMMAND/0x80"), Ok(DRAIN));
    assert_eq!(operands.kind("STATS"), Ok(Command::STATS.into()));
    assert!(operands.kind("NOTHING").is_err());
    assert_eq!(operands.show(SCALED).to_string(), "Scaled");
    assert_eq!(Operands::new().show(SCALED).to_string(), "EVENT/0xfe");
    assert_eq!(operands.applications().count(), 3);
    // A clone that is extended leaves the original unchanged.
    let more = operands
        .clone()
        .application(FrameKind::new(FrameType::STATUS, 0x80), "More")
        .unwrap();
    assert_eq!(
        (more.applications().count(), operands.applications().count()),
        (4, 3)
    );
}

#[test]
fn a_frame_of_the_application_is_routed_with_its_bytes_unchanged() {
    let kit = Testkit::new().unwrap();
    let (handler, (received_frames, _)) = channels();
    let rules = Rules::new().multicast(SCALED, Role::CONTROLLER);
    let config = kit.server_config().unwrap().operands(operands()).rules(rules);
    let server = Server::start(config, handler).unwrap();
    let config = kit.client_config(Role::CONTROLLER).unwrap().tracing(true);
    let controller = Client::connect(config.operands(operands())).unwrap();
    let config = kit.client_config(Role::AGENT).unwrap().tracing(true);
    let agent = Client::connect(config.operands(operands())).unwrap();

    let opaque = Frame::with_payload(SCALED, vec![0, 0xff, b'\n', 7]);
    agent.send(opaque.clone()).unwrap();
    agent.send(opaque.clone().traced(Trace::new("t"))).unwrap();
    assert_eq!(controller.recv_frame_timeout(LIMIT).unwrap(), opaque);
    let traced = controller.recv_frame_timeout(LIMIT).unwrap();
    assert_eq!(
        (traced.payload_bytes(), traced.trace().map(|t| t.nodes().len())),
        (opaque.payload_bytes(), Some(3))
    );
    assert_eq!(received_frames.recv_timeout(LIMIT).unwrap().1, opaque);
    server
        .handle()
        .send(agent.uuid(), Frame::with_payload(DRAIN, "now"))
        .unwrap();
    assert_eq!(
        agent.recv_frame_timeout(LIMIT).unwrap(),
        Frame::with_payload(DRAIN, "now")
    );
}

#[test]
fn an_unregistered_operand_is_answered_as_unknown_and_the_session_continues() {
    let kit = Testkit::new().unwrap();
    let (handler, (received_frames, _)) = channels();
    let only = Operands::new().application(DRAIN, "DRAIN").unwrap();
    let server = Server::start(kit.server_config().unwrap().operands(only), handler).unwrap();
    let (knows, does_not) = (
        client(&kit, Role::AGENT, operands()),
        client(&kit, Role::AGENT, Operands::new()),
    );

    knows.send(Frame::with_payload(SCALED, "x")).unwrap();
    let answer = knows.recv_frame_timeout(LIMIT).unwrap();
    assert_eq!(
        refusal(&answer),
        (SCALED, InvalidFrameTypeReason::UnsupportedOperand)
    );
    server
        .handle()
        .send(does_not.uuid(), Frame::with_payload(DRAIN, "x"))
        .unwrap();
    let (from, answer) = received_frames.recv_timeout(LIMIT).unwrap();
    assert_eq!(
        (from, refusal(&answer)),
        (
            does_not.uuid(),
            (DRAIN, InvalidFrameTypeReason::UnsupportedOperand)
        )
    );
    does_not.send(Frame::new(Status::FULL)).unwrap();
    assert_eq!(
        received_frames.recv_timeout(LIMIT).unwrap(),
        (does_not.uuid(), Frame::new(Status::FULL))
    );

    // It cannot send such a frame, and a server cannot have a rule for it.
    let unsent = does_not.send(Frame::new(DRAIN)).unwrap_err();
    assert!(matches!(unsent.fault(), SendFault::Kind(DRAIN)));
    assert!(server.handle().send(knows.uuid(), Frame::new(SCALED)).is_err());
    let rules = Rules::new().multicast(SCALED, Role::CONTROLLER);
    let unregistered = Server::start(kit.server_config().unwrap().rules(rules), ());
    assert!(matches!(
        unregistered,
        Err(ServerError::Rules(RuleError::Unknown(SCALED)))
    ));
}

#[test]
fn the_role_filter_decides_about_frames_of_the_application() {
    let kit = Testkit::new().unwrap();
    let (handler, (received_frames, _)) = channels();
    let filter = Filter::spec().allow(SCALED, Role::AGENT);
    let config = kit.server_config().unwrap().operands(operands()).filter(filter);
    let mut test = HandlerTest::new(config, handler).unwrap();
    let agent = test.connect(&kit.identity(Role::AGENT).unwrap()).unwrap().uuid();
    test.receive(agent, &Frame::new(SCALED));
    assert_eq!(received_frames.try_recv().unwrap().1, Frame::new(SCALED));
    test.receive(agent, &Frame::new(DRAIN));
    assert!(received_frames.try_recv().is_err());
    let sent = test.sent_to(agent);
    assert_eq!(refusal(&sent[0]), (DRAIN, InvalidFrameTypeReason::RoleNotAllowed));
    assert_eq!(sent.len(), 1);
}

/// The value of a panic, which panics again whenever it is dropped.
struct Again;

impl Drop for Again {
    fn drop(&mut self) {
        std::panic::panic_any(Self);
    }
}

/// Answers with the payload of the request, refuses an empty one, and panics if it is `panic`.
struct Echo;

impl Handler for Echo {
    fn request(&mut self, cx: &mut Context<'_>, from: &SessionInfo, request: Request) {
        assert_eq!(from.uuid(), request.from());
        let answered = match &request.payload()[..] {
            b"" => cx.refuse(&request, "empty"),
            b"panic" => std::panic::panic_any(Again),
            question => cx.reply(&request, question.to_vec()),
        };
        answered.unwrap();
    }
}

#[test]
fn a_server_answers_each_request_of_each_client() {
    let kit = Testkit::new().unwrap();
    let server = Server::start(kit.server_config().unwrap().operands(operands()), Echo).unwrap();
    let client = client(&kit, Role::AGENT, operands());
    let askers: Vec<JoinHandle<()>> = (0..8)
        .map(|n| {
            let client = client.handle();
            std::thread::spawn(move || {
                for m in 0..50 {
                    let question = Frame::with_payload(QUERY, format!("{n} {m}"));
                    assert_eq!(client.request(question.clone(), LIMIT).unwrap(), question);
                }
            })
        })
        .collect();
    askers.into_iter().for_each(|asker| asker.join().unwrap());
    let refused = client.request(Frame::new(QUERY), LIMIT);
    assert_eq!(refused, Err(RequestError::Refused("empty".into())));
    let refused = client.request(Frame::with_payload(QUERY, "panic"), LIMIT);
    assert_eq!(refused, Err(RequestError::Refused("not_answered".into())));
    let question = Frame::with_payload(QUERY, "after the panic");
    assert_eq!(client.request(question.clone(), LIMIT).unwrap(), question);
    let (one_way, asking) = (
        client.request(Frame::new(DRAIN), LIMIT),
        client.send(Frame::new(QUERY)),
    );
    assert_eq!(one_way, Err(RequestError::Kind(DRAIN)));
    assert!(matches!(asking.unwrap_err().fault(), SendFault::Kind(QUERY)));
    server.stop();
    until(|| !client.is_connected());
    assert_eq!(
        client.request(Frame::new(QUERY), LIMIT),
        Err(RequestError::NotConnected)
    );
    client.close();
    assert_eq!(client.request(Frame::new(QUERY), LIMIT), Err(RequestError::Ended));
}

/// A client that answers each request with its own name until it is closed.
fn answering(client: Client) -> JoinHandle<()> {
    std::thread::spawn(move || {
        while let Ok(event) = client.recv() {
            if let ClientEvent::Request(request) = event {
                client.reply(&request, client.uuid().to_string()).unwrap();
            }
        }
    })
}

/// The payload of a QUERY.
#[derive(Debug, PartialEq)]
struct Words(String);

impl Content for Words {
    const FRAME: FrameKind = QUERY;

    fn read(payload: &[u8]) -> Result<Self, ssntp::payload::Error> {
        let words = String::from_utf8(payload.to_vec());
        words.map(Self).map_err(ssntp::payload::Error::content)
    }

    fn write(&self) -> Result<Bytes, ssntp::payload::Error> {
        Ok(self.0.clone().into())
    }
}

/// Answers with capitals, or with bytes that are no text.
struct Capitals;

impl Handler for Capitals {
    fn request(&mut self, cx: &mut Context<'_>, _: &SessionInfo, request: Request) {
        let Words(words) = request.frame().payload().unwrap();
        let sent = match words.as_str() {
            "" => cx.reply(&request, vec![0xff]),
            words => cx.reply_payload(&request, &Words(words.to_uppercase())),
        };
        sent.unwrap();
    }
}

#[test]
fn requests_and_answers_are_types_of_the_application() {
    let kit = Testkit::new().unwrap();
    let config = kit.server_config().unwrap().operands(operands());
    let server = Server::start(config, Capitals).unwrap();
    let asker = client(&kit, Role::CONTROLLER, operands());
    let ask = |words: &str| asker.request_payload::<Words>(&Words(words.into()), LIMIT);
    assert_eq!(ask("who?"), Ok(Words("WHO?".into())));
    assert!(matches!(ask(""), Err(RequestError::Payload(_))));

    let (uuid, handle) = (asker.uuid(), server.handle());
    let asks =
        std::thread::spawn(move || handle.request_payload::<Words>(uuid, &Words("you?".into()), LIMIT));
    let request = loop {
        if let ClientEvent::Request(request) = asker.recv_timeout(LIMIT).unwrap() {
            break request;
        }
    };
    asker.reply_payload(&request, &Words("me".into())).unwrap();
    assert_eq!(asks.join().unwrap(), Ok(Words("me".into())));
}

#[test]
fn a_handler_stops_its_server_also_while_the_channel_to_the_dispatcher_is_full() {
    let kit = Testkit::new().unwrap();
    let server = Server::start(kit.server_config().unwrap(), ()).unwrap();
    let handle = server.handle();
    let fill = move |_: &mut Context<'_>| {
        while handle.post(|_| {}).is_ok() {}
        handle.stop();
    };
    server.handle().with(fill).unwrap();
    let stopping = server.stopping().recv_timeout(LIMIT);
    assert!(stopping.is_err_and(|e| e.is_disconnected()));
}

#[test]
fn a_request_goes_to_its_addressee_or_by_the_rules() {
    let kit = Testkit::new().unwrap();
    let rules = Rules::new().multicast(QUERY, Role::NETAGENT);
    let config = kit.server_config().unwrap().operands(operands()).rules(rules);
    let server = Server::start(config, Echo).unwrap();
    let asker = client(&kit, Role::CONTROLLER, operands());
    let ask = |whom| asker.request_to(whom, Frame::with_payload(QUERY, "who?"), LIMIT);

    // No client with the role of the rule is connected.
    let nobody = Err(RequestError::Refused("not_connected".into()));
    assert_eq!(asker.request(Frame::new(QUERY), LIMIT), nobody);
    assert_eq!(ask(Uuid::from_u128(7)), nobody);
    let itself = Err(RequestError::Refused("to_sender".into()));
    assert_eq!(ask(asker.uuid()), itself);

    let (agent, netagent) = (
        client(&kit, Role::AGENT, operands()),
        client(&kit, Role::NETAGENT, operands()),
    );
    let (names, handles) = (
        [agent.uuid(), netagent.uuid()],
        [agent.handle(), netagent.handle()],
    );
    let threads = [answering(agent), answering(netagent)];
    for name in names {
        assert_eq!(
            ask(name).unwrap().payload_bytes()[..],
            *name.to_string().as_bytes()
        );
    }
    let chosen = asker.request(Frame::new(QUERY), LIMIT).unwrap();
    assert_eq!(chosen.payload_bytes()[..], *names[1].to_string().as_bytes());
    // The server itself sends a request.
    let asked = server
        .handle()
        .request(names[0], Frame::new(QUERY), LIMIT)
        .unwrap();
    assert_eq!(asked.payload_bytes()[..], *names[0].to_string().as_bytes());
    let unanswered = server
        .handle()
        .request(Uuid::from_u128(7), Frame::new(QUERY), LIMIT);
    assert_eq!(unanswered, Err(RequestError::NotConnected));
    handles.iter().for_each(|handle| handle.close());
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn requests_are_bounded_end_with_their_session_and_late_answers_are_dropped() {
    let kit = Testkit::new().unwrap();
    let (handler, (_, asked)) = channels();
    let server = Server::start(kit.server_config().unwrap().operands(operands()), handler).unwrap();
    let config = kit
        .client_config(Role::AGENT)
        .unwrap()
        .operands(operands())
        .max_requests(2);
    let client = Client::connect(config).unwrap();
    let ask = |limit| client.request(Frame::new(QUERY), limit);

    let short = Duration::from_millis(1);
    assert_eq!(ask(short), Err(RequestError::TimedOut(short)));
    let late = asked.recv_timeout(LIMIT).unwrap();
    server.handle().reply(&late, "late").unwrap();
    until(|| client.counters().late_replies == 1);

    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let client = client.handle();
            std::thread::spawn(move || client.request(Frame::new(QUERY), LIMIT))
        })
        .collect();
    let old = [(); 2].map(|()| asked.recv_timeout(LIMIT).unwrap());
    assert_eq!(ask(LIMIT), Err(RequestError::TooMany(2)));
    kit.network().cut();
    for asker in waiting {
        assert_eq!(asker.join().unwrap(), Err(RequestError::Disconnected));
    }
    // Its next session has the same UUID. An answer to a request of the session before must not be taken
    // for one of the present session.
    client.handle().wait_connected(Some(LIMIT)).unwrap();
    until(|| server.handle().reply(&old[0], "old").is_ok());
    until(|| client.counters().late_replies == 2);
    // The end of a session also ends the server's wait for its answer.
    let uuid = client.uuid();
    let handle = server.handle();
    let asking = std::thread::spawn(move || handle.request(uuid, Frame::new(QUERY), LIMIT));
    while !matches!(client.recv().unwrap(), ClientEvent::Request(_)) {}
    client.close();
    assert_eq!(asking.join().unwrap(), Err(RequestError::Disconnected));
}

#[test]
fn a_server_that_does_not_know_a_request_refuses_it_at_once() {
    let kit = Testkit::new().unwrap();
    let _server = Server::start(kit.server_config().unwrap(), ()).unwrap();
    let client = client(&kit, Role::AGENT, operands());
    let refused = client.request(Frame::new(QUERY), LIMIT);
    assert_eq!(refused, Err(RequestError::Refused("unsupported".into())));
}

#[test]
fn a_request_for_which_the_channel_has_no_room_is_refused() {
    let kit = Testkit::new().unwrap();
    let (handler, events) = ssntp::server::channel(2);
    let config = kit.server_config().unwrap().operands(operands());
    let mut test = HandlerTest::new(config, handler).unwrap();
    let agent = test.connect(&kit.identity(Role::AGENT).unwrap()).unwrap().uuid();
    let mut ask = || test.request(agent, &Frame::new(QUERY));
    assert_eq!(
        ask(),
        None,
        "it waits for the application, behind the event of the session"
    );
    assert_eq!(ask(), Some(Err("queue_full".into())));
    assert_eq!(events.len(), 2);
}

#[test]
fn a_client_that_may_not_ask_gets_no_answers() {
    let kit = Testkit::new().unwrap();
    let (handler, (_, asked)) = channels();
    let filter = Filter::deny_all().allow(QUERY, Role::CONTROLLER);
    let config = kit.server_config().unwrap().operands(operands()).filter(filter);
    let mut test = HandlerTest::new(config, handler).unwrap();
    let identities = [Role::CONTROLLER, Role::AGENT].map(|role| kit.identity(role).unwrap());
    let [controller, agent] = identities.map(|identity| test.connect(&identity).unwrap().uuid());

    assert_eq!(
        test.request(agent, &Frame::new(QUERY)),
        Some(Err("not_allowed".into()))
    );
    assert!(asked.try_recv().is_err());
    assert_eq!(
        test.request(controller, &Frame::with_payload(QUERY, "x")),
        None,
        "the request is not answered yet"
    );
    let request = asked.try_recv().unwrap();
    assert_eq!((request.from(), &request.payload()[..]), (controller, &b"x"[..]));

    // The server writes the real sender into an answer, and sends none to a client that may not ask.
    let answer = |to, id| {
        let exchange = Exchange {
            step: Step::Reply,
            id,
            peer: to,
        };
        Frame::with_payload(QUERY, exchange.encode().to_vec())
    };
    test.sent_to(controller);
    test.receive(agent, &answer(controller, 9));
    let passed = test.sent_to(controller);
    let exchange = Exchange::read(passed[0].payload_bytes()).unwrap();
    assert_eq!(
        exchange,
        Exchange {
            step: Step::Reply,
            id: 9,
            peer: agent
        }
    );
    test.receive(controller, &answer(agent, 9));
    assert!(test.sent_to(agent).iter().all(|frame| frame.kind() != QUERY));
    // A payload that does not begin as a request is refused.
    test.receive(controller, &Frame::with_payload(QUERY, vec![0; 31]));
    test.receive(controller, &Frame::with_payload(QUERY, vec![3; 32]));
    let refused = test.sent_to(controller);
    assert_eq!(refused.len(), 2);
    for frame in &refused {
        assert_eq!(refusal(frame), (QUERY, InvalidFrameTypeReason::BadExchange));
    }
}

/// Admits clients whose certificates have a name of a list.
struct Listed(Vec<Uuid>, Sender<DisconnectReason>);

impl Handler for Listed {
    fn admit(&mut self, cx: &mut Context<'_>, newcomer: &Newcomer<'_>) -> Result<(), Refusal> {
        assert!(cx.directory().len() < 3);
        match newcomer.certificate.uuid {
            _ if newcomer.role == Role::NETAGENT => Err(Refusal::postpone("later")),
            _ if newcomer.role == Role::CNCIAGENT => panic!("on purpose: the test wants it"),
            Some(uuid) if self.0.contains(&uuid) => Ok(()),
            _ => Err(Refusal::forbid("not on the list")),
        }
    }
    fn disconnected(&mut self, _: &mut Context<'_>, _: &SessionInfo, reason: &DisconnectReason) {
        let _ = self.1.send(reason.clone());
    }
}

#[test]
fn an_application_refuses_a_client_before_it_has_a_session() {
    let kit = Testkit::new().unwrap();
    let (sender, ended) = unbounded();
    let uuid = Uuid::from_u128(7);
    let request = ssntp::pki::CertificateRequest::new(Role::AGENT).uuid(uuid);
    let issue = || kit.authority().issue(&request).unwrap().identity();
    let server = Server::start(kit.server_config().unwrap(), Listed(vec![uuid], sender)).unwrap();
    let connect = |identity| {
        let config = ssntp::ClientConfig::new(identity, kit.trust()).connect_in_memory(kit.network());
        Client::connect(config.attempts(1))
    };
    let first = connect(issue()).unwrap();
    // The client tells what may be the reason, which ConnectionAborted has no room for.
    let stranger = ssntp::pki::CertificateRequest::new(Role::AGENT).uuid(Uuid::from_u128(8));
    let stranger = kit.authority().issue(&stranger).unwrap().identity();
    for (identity, may_be_unbound) in [(kit.identity(Role::AGENT).unwrap(), true), (stranger, false)] {
        let refused = connect(identity).unwrap_err();
        let ClientError::Aborted { is_bound, .. } = &refused else {
            panic!("{refused}")
        };
        assert_eq!(*is_bound, !may_be_unbound);
        assert_eq!(refused.to_string().contains("bound to no UUID"), may_be_unbound);
    }
    for role in [Role::NETAGENT, Role::CNCIAGENT] {
        let postponed = connect(kit.identity(role).unwrap());
        assert!(
            matches!(postponed, Err(ClientError::GaveUp { .. })),
            "{postponed:?}"
        );
    }
    // A refused client replaces no session.
    server
        .handle()
        .with(|cx| assert_eq!(cx.directory().len(), 1))
        .unwrap();
    assert!(first.is_connected() && ended.try_recv().is_err());
    let _second = connect(issue()).unwrap();
    assert_eq!(ended.recv_timeout(LIMIT), Ok(DisconnectReason::Replaced));
}

/// Sends a heartbeat every minute to each agent.
#[derive(Default)]
struct Heart(Option<Instant>);

impl Handler for Heart {
    fn connected(&mut self, cx: &mut Context<'_>, _: &SessionInfo) {
        self.0.get_or_insert(cx.now() + Duration::from_secs(60));
    }
    fn run(&mut self, _: &mut Context<'_>, _: &SessionInfo, _: &Run) {}
    fn next_timer(&self) -> Option<Instant> {
        self.0
    }
    fn timer(&mut self, cx: &mut Context<'_>) {
        self.0 = Some(cx.now() + Duration::from_secs(60));
        let _ = cx.multicast(Role::AGENT, &Frame::new(Status::READY));
    }
}

#[test]
fn a_handler_is_tested_in_virtual_time() {
    let kit = Testkit::new().unwrap();
    let mut test = HandlerTest::new(kit.server_config().unwrap(), Heart::default()).unwrap();
    let agent = test.connect(&kit.identity(Role::AGENT).unwrap()).unwrap().uuid();
    test.advance(Duration::from_secs(59));
    assert!(test.sent_to(agent).is_empty());
    test.advance(Duration::from_secs(24 * 3600));
    assert_eq!(test.sent_to(agent).len(), 24 * 60);
    test.lose(agent);
    assert!(!test.is_connected(agent) && !test.is_stopped());
    test.with(|cx| cx.stop()).unwrap();
    assert!(test.is_stopped());
}

#[test]
fn a_stalled_network_delivers_its_bytes_once_it_continues() {
    let kit = Testkit::new().unwrap();
    let (handler, (received_frames, _)) = channels();
    let _server = Server::start(kit.server_config().unwrap(), handler).unwrap();
    let agent = client(&kit, Role::AGENT, Operands::new());
    kit.network().stall(true);
    agent.send(Frame::new(Status::FULL)).unwrap();
    assert!(agent.flush(LIMIT), "the stalled network accepts the bytes");
    assert!(received_frames.is_empty());
    kit.network().stall(false);
    assert_eq!(
        received_frames.recv_timeout(LIMIT).unwrap().1,
        Frame::new(Status::FULL)
    );
}

#[test]
fn an_answer_from_the_wrong_client_is_ignored() {
    use ssntp_test_support::{TestServer, identity, trust};

    let server = TestServer::start((), |config| config.operands(operands()));
    let config = ssntp::ClientConfig::new(identity(Role::CONTROLLER), trust());
    let config = config.connect_in_memory(&server.listener).operands(operands());
    let asker = Client::connect(config).unwrap();
    let [mut asked, mut stranger] = [Role::AGENT; 2].map(|role| server.connect(role));

    let (handle, whom) = (asker.handle(), asked.uuid);
    let asking = std::thread::spawn(move || handle.request_to(whom, Frame::new(QUERY), LIMIT));
    asked.takes(operands());
    let request = Exchange::read(asked.frame().payload_bytes()).unwrap();
    assert_eq!((request.step, request.peer), (Step::Request, asker.uuid()));
    for (peer, payload) in [(&mut stranger, &b"forged"[..]), (&mut asked, b"true")] {
        let mut reply = Exchange {
            step: Step::Reply,
            ..request
        }
        .encode()
        .to_vec();
        reply.extend(payload);
        peer.send(&Frame::with_payload(QUERY, reply));
        until(|| asker.counters().late_replies == 1);
    }
    let answer = asking.join().unwrap().unwrap();
    assert_eq!(answer.payload_bytes()[..], *b"true");
}
