//! A client of the world: the client of the product, stepped. It connects to one of the servers,
//! sends frames, asks questions and reads, and connects again after each end of its session.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::BytesMut;
use crossbeam_channel::{Receiver, TryRecvError};

use super::super::application::{Mark, QUERY, operands};
use super::super::network::Stream;
use super::super::threads::Step;
use super::log::{SharedLog, client_uuid};
use super::session::Session;
use super::world::made;
use ssntp::client::{
    Backoff, ClientConfig, ClientEvent, ClientHandle, DialFault, SendFault, ServerInfo, SessionEnd,
};
use ssntp::pki::CertificateInfo;
use ssntp::proto::{ClientHandshake, Command, Connect, Event, Frame, FrameKind, Refusal, Status};
use ssntp::simulation::{At, Awaited, ClientCore, Next, Standing, Trial};
use ssntp::transport::{Limits, PeerAddress};
use ssntp::{RequestError, Role};
use ssntp_test_support::random::Random;

pub(super) const MAX_PAYLOAD: u32 = 1 << 20;
/// The time limits of a handshake, of a write, and of sending the queue of a client that is closed.
const HANDSHAKE: Duration = Duration::from_secs(2);
const WRITE: Duration = Duration::from_secs(3);
const GRACE: Duration = Duration::from_secs(1);
/// The least time for which frames wait for the session that replaces another.
const GAP: Duration = Duration::from_secs(9);
/// The time for which a session that is replaced stays until its questions are answered.
const ANSWERS: Duration = Duration::from_secs(5);
/// The maximum number of questions that wait for answers.
const QUESTIONS: usize = 8;
/// The frame of a client while its session is replaced, if it has no other frame.
const IN_A_GAP: usize = 6;
/// A client that makes more attempts in a second has no back-off.
const ATTEMPTS: usize = 60;

/// The state of a client.
pub(super) enum Stage {
    /// The client does not run, and is started at this time.
    Away(Instant),
    /// The core of the client is stepped.
    Runs,
    /// The client dials, and the world sets the result of the attempt.
    Dials(Trial),
    Fails(Instant),
    Shakes(Box<Shaking>),
    /// The core waits for the threads of its session.
    Joins,
    Over,
}

pub(super) struct Shaking {
    stream: Stream,
    handshake: ClientHandshake,
    target: String,
    certificate: CertificateInfo,
    input: BytesMut,
    output: BytesMut,
    until: Instant,
}

/// The parts of a client from one start to the next.
struct Running {
    core: ClientCore,
    handle: ClientHandle,
    events: Receiver<ClientEvent>,
    session: Option<Session>,
    /// The time until which the core waits if there is no event.
    sleeps: Option<Option<Instant>>,
    /// The number of frames that the client has accepted from its application.
    accepted: u64,
    /// The application has received the begin of the session, and not yet its end.
    knows_session: bool,
    /// The time since which the present session accepts no frames, because another will replace it.
    parts: Option<Instant>,
    /// The number of frames lost before this session, and true if its core has cut it off.
    lost: u64,
    is_cut_off: bool,
    /// The begin of the gap between a session and the one that replaces it.
    gap: Option<Instant>,
    /// The server of the last attempt, and true if the client showed its newest certificate there.
    server: usize,
    shows_newest: bool,
    /// The reason why the last session was replaced, until the client dials again.
    replaces: Option<SessionEnd>,
    /// The times of the attempts within the last second.
    dialled: VecDeque<Instant>,
    /// The open questions: the receiver, the number, the time, and the channel of the answer.
    asked: Vec<(usize, u64, Instant, Awaited)>,
}

pub(super) struct Client {
    pub(super) at: usize,
    pub(super) role: Role,
    /// The application takes no frame after CONNECTED, until the session is over.
    pub(super) is_stuck: bool,
    pub(super) stage: Stage,
    running: Option<Running>,
    /// The number of sessions. Each session is an origin of its own.
    tries: u32,
    number: u64,
    /// The number of frames to send before the world is quiet, and the pause before each of them.
    left: usize,
    pause: Duration,
    next: Option<Instant>,
    asks: bool,
    /// The number of renewals, which selects the newest certificate.
    renewals: usize,
    /// The number of questions that were answered, and of sessions that were replaced in order.
    pub(super) answered: u64,
    pub(super) replaced: [u64; 2],
}

impl Client {
    pub(super) fn new(at: usize, random: &mut Random, begin: Instant) -> Self {
        Self {
            at,
            role: random.pick(&[Role::AGENT, Role::AGENT, Role::CONTROLLER]),
            is_stuck: false,
            stage: Stage::Away(begin + Duration::from_millis(random.below(1000) as u64)),
            running: None,
            tries: 0,
            number: 0,
            left: random.pick(&[0, 20, 60]),
            pause: Duration::from_millis(random.pick(&[10, 200, 500])),
            next: None,
            asks: random.chance(30),
            renewals: 0,
            answered: 0,
            replaced: [0; 2],
        }
    }

    /// Starts the process of the client: a new client with the same UUID.
    pub(super) fn start(&mut self, servers: usize) {
        let (identity, trust) = made(|made| made.client(self.at, self.renewals));
        let target = |server| format!("localhost:{}", 9000 + server).parse().unwrap();
        let config = ClientConfig::new(identity, trust)
            .addresses((0..servers).map(target))
            .role(self.role)
            .max_payload(MAX_PAYLOAD)
            .operands(operands())
            .send_timeout(Duration::ZERO)
            .inbound(Limits {
                frames: 4096,
                bytes: 64 << 20,
            })
            .backoff(Backoff {
                initial: Duration::from_millis(50),
                cap: Duration::from_secs(1),
            })
            .write_timeout(WRITE)
            .grace(GRACE)
            .max_requests(QUESTIONS)
            .renewal_spread(Duration::from_secs(1));
        let (core, events) = ClientCore::new(config).unwrap();
        self.running = Some(Running {
            handle: core.handle(),
            core,
            events,
            session: None,
            sleeps: None,
            accepted: 0,
            knows_session: false,
            parts: None,
            lost: 0,
            is_cut_off: false,
            gap: None,
            server: 0,
            shows_newest: true,
            replaces: None,
            dialled: VecDeque::new(),
            asked: Vec::new(),
        });
        self.stage = Stage::Runs;
    }

    fn name(&self) -> String {
        format!("client {} ({})", self.at, self.tries)
    }

    pub(super) fn is_open(&self) -> bool {
        self.running.as_ref().is_some_and(|it| it.handle.is_connected())
    }

    /// True if the session is being replaced by another one, in order.
    fn is_replaced(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|it| it.parts.is_some() || it.gap.is_some())
    }

    fn stream(&self) -> Option<&Stream> {
        match &self.stage {
            Stage::Shakes(shaking) => Some(&shaking.stream),
            _ => Some(&self.running.as_ref()?.session.as_ref()?.stream),
        }
    }

    /// The host of the client crashes, and no peer notices. The client is started again at this time.
    pub(super) fn vanish(&mut self, until: Instant) {
        if let Some(stream) = self.stream() {
            stream.stall(true);
        }
        self.away(until);
    }

    /// The application closes the client.
    pub(super) fn close(&mut self) {
        match (&self.stage, &mut self.running) {
            (Stage::Away(_), _) | (_, None) => self.stage = Stage::Over,
            (_, Some(running)) => {
                running.sleeps = None;
                running.handle.close();
            }
        }
    }

    /// The application renews the certificate. Two certificates are used in turn.
    pub(super) fn renew(&mut self) {
        self.renewals += 1;
        if let Some(running) = &mut self.running {
            running.sleeps = None;
            let (identity, trust) = made(|made| made.client(self.at, self.renewals));
            // The client may have been closed before.
            let _ = running.handle.renew(&identity, &trust);
        }
    }

    /// Sets the result of an attempt: it fails at this time.
    pub(super) fn fails(&mut self, until: Instant) {
        self.stage = Stage::Fails(until);
    }

    pub(super) fn shakes(
        &mut self,
        trial: &Trial,
        stream: Stream,
        certificate: CertificateInfo,
        now: Instant,
    ) {
        let connect = Connect::new(self.role, client_uuid(self.at), false);
        let handshake = ClientHandshake::new(connect, certificate.roles, certificate.uuid, MAX_PAYLOAD);
        self.stage = Stage::Shakes(Box::new(Shaking {
            output: handshake.connect()[..].into(),
            stream,
            handshake,
            target: trial.target.to_string(),
            certificate,
            input: BytesMut::new(),
            until: now + HANDSHAKE,
        }));
    }

    /// The application sends a frame to another client or to all. Returns the origin and the number of
    /// the frame if the client accepts it.
    pub(super) fn send(
        &mut self,
        kind: FrameKind,
        to: usize,
        length: usize,
        now: Instant,
        log: &SharedLog,
    ) -> Option<(u32, u64)> {
        let running = self.running.as_mut()?;
        // In a gap the frame waits for the next session.
        let session = self.tries + u32::from(running.handle.server().is_none());
        let mark = Mark {
            sender: u32::try_from(self.at).unwrap() * 1000 + session,
            number: self.number + 1,
            to: u32::try_from(to).unwrap(),
        };
        match running
            .handle
            .try_send(Frame::with_payload(kind, mark.payload("", length)))
        {
            Ok(()) => {
                (self.number, running.accepted) = (mark.number, running.accepted + 1);
                Some((mark.sender, mark.number))
            }
            Err(e) => {
                let ends = running.parts.filter(|_| running.knows_session);
                let waits = ends.or(running.gap).is_some_and(|since| now < since + GAP);
                if waits && matches!(e.fault(), SendFault::NotConnected) {
                    let fault = format!("gap: {} refuses a frame: {e}", self.name());
                    log.lock().unwrap().faults.push(fault);
                }
                None
            }
        }
    }

    /// The application asks another client a question. If it `must` be accepted, no fault of the world
    /// excuses a refusal.
    pub(super) fn ask(&mut self, receiver: usize, must: bool, now: Instant, log: &SharedLog) {
        let name = self.name();
        let Some(running) = &mut self.running else { return };
        self.number += 1;
        let question = Frame::with_payload(QUERY, format!("{} {}", self.at, self.number));
        let fault = match running.core.ask(client_uuid(receiver), &question) {
            Some(Ok(answer)) => {
                running.accepted += 1;
                running.asked.push((receiver, self.number, now, answer));
                return;
            }
            Some(Err(RequestError::TooMany(_))) if running.asked.len() < QUESTIONS => {
                format!("requests: {name} has more than {} that wait", running.asked.len())
            }
            None if must && running.shows_newest => format!("requests: {name} takes no more"),
            _ => return,
        };
        log.lock().unwrap().faults.push(fault);
    }

    /// The receivers of the questions from this period that are not answered.
    pub(super) fn waits_for(&self, first: Instant, last: Instant) -> impl Iterator<Item = usize> {
        let asked = self.running.iter().flat_map(|running| &running.asked);
        let late = asked.filter(move |(_, _, since, _)| (first..=last).contains(since));
        late.map(|(receiver, ..)| *receiver)
    }

    /// In a quiet world the session has the newest certificate of the client.
    pub(super) fn check_renewed(&self) -> Result<(), String> {
        let newest = made(|made| made.client(self.at, self.renewals)).0;
        match &self.running {
            Some(running) if running.shows_newest && running.handle.identity().chain() != newest.chain() => {
                Err(format!(
                    "renewed: {} goes on with an old certificate",
                    self.name()
                ))
            }
            _ => Ok(()),
        }
    }

    /// Ends the client and drops its state. It is started again at this time.
    pub(super) fn away(&mut self, until: Instant) {
        self.running = None;
        self.stage = Stage::Away(until);
    }

    /// Each accepted frame waits, was sent, or is counted as lost.
    pub(super) fn check_books(&self) -> Result<(), String> {
        let Some(running) = &self.running else {
            return Ok(());
        };
        if running.session.is_some() && !running.handle.is_connected() {
            return Ok(());
        }
        let (counted, waits) = (running.handle.counters(), running.handle.figures().frames_waiting);
        let accounted = counted.sent_frames + counted.lost_frames + waits;
        if accounted == running.accepted {
            return Ok(());
        }
        Err(format!(
            "books: {} has taken {} frames, {} are sent, {} lost, and {waits} wait",
            self.name(),
            running.accepted,
            counted.sent_frames,
            counted.lost_frames
        ))
    }

    pub(super) fn step(
        &mut self,
        (clients, servers): (usize, usize),
        is_over: bool,
        now: Instant,
        wall: SystemTime,
        random: &mut Random,
        log: &SharedLog,
    ) -> Step {
        let at = At {
            now,
            wall,
            share: random.below(1000) as f64 / 1000.0,
        };
        // Once the server has ended, only this call advances the stream.
        let mut wake = self.stream().and_then(|stream| stream.advance(now));
        if let Stage::Shakes(shaking) = &mut self.stage {
            let Some(result) = shaking.step(now) else {
                let until = [wake, Some(shaking.until)].into_iter().flatten().min();
                return Step::Waits(until);
            };
            return self.dialled(result, at);
        }
        if let Stage::Fails(until) = self.stage {
            if now < until {
                return Step::Waits(Some(until));
            }
            let refused = std::io::ErrorKind::ConnectionRefused.into();
            return self.dialled(Err(DialFault::Connect(Arc::new(refused))), at);
        }
        let is_open = self.is_open();
        if let Some(running) = &mut self.running
            && let Some(session) = &mut running.session
        {
            let is_stuck = self.is_stuck && is_open && !session.stream.is_gone();
            match session.step(is_stuck, now, random) {
                Step::Moved => {
                    running.sleeps = None;
                    self.take(now, random, log);
                    return Step::Moved;
                }
                Step::Waits(until) => wake = [wake, until].into_iter().flatten().min(),
                Step::Over => {}
            }
        }
        self.take(now, random, log);
        match self.run(servers, at, log) {
            Step::Waits(until) => wake = [wake, until].into_iter().flatten().min(),
            step => return step,
        }
        let is_replaced = self.is_replaced();
        if !self.is_open() && !is_replaced || self.left == 0 || is_over {
            return Step::Waits(wake);
        }
        if let Some(next) = self.next.filter(|next| now < *next) {
            return Step::Waits([wake, Some(next)].into_iter().flatten().min());
        }
        self.next = Some(if is_replaced {
            now + Duration::from_millis(10)
        } else {
            now + self.pause
        });
        for _ in 0..random.between(1, 4).min(self.left) {
            self.left -= 1;
            let kinds: &[FrameKind] = &[
                Command::STATS.into(),
                Status::READY.into(),
                Event::TENANT_ADDED.into(),
                Event::TENANT_ADDED.into(),
            ];
            let length = random.pick(&[10, 100, 4000]);
            self.send(random.pick(kinds), random.below(clients), length, now, log);
        }
        if self.asks {
            self.ask(random.below(clients), false, now, log);
        }
        Step::Moved
    }

    /// Carries out the actions of the core.
    fn run(&mut self, servers: usize, at: At, log: &SharedLog) -> Step {
        let Some(running) = &mut self.running else {
            return Step::Over;
        };
        let mut is_whole = false;
        if matches!(self.stage, Stage::Joins) {
            if running.session.as_ref().is_some_and(|session| !session.is_over()) {
                return Step::Waits(None);
            }
            let session = running.session.take();
            is_whole = running.gap.is_some()
                && !running.is_cut_off
                && session.is_some_and(|session| session.stream.is_whole());
            running.sleeps = None;
            self.stage = Stage::Runs;
        }
        if let Some(until) = running.sleeps
            && until.is_none_or(|until| at.now < until)
        {
            return Step::Waits(until);
        }
        running.sleeps = None;
        let takes = |running: &Running| {
            let session = running.session.as_ref();
            session.is_some_and(|session| !session.outbox.is_closed())
        };
        let has_taken = takes(running);
        let next = running.core.step(at);
        let lost = running.handle.counters().lost_frames - running.lost;
        if is_whole && lost > 0 {
            let fault = format!(
                "replaced: client {} has lost {lost} frames of a session that ended in order",
                self.at
            );
            log.lock().unwrap().faults.push(fault);
        }
        if has_taken && !takes(running) && running.handle.ended().is_none() {
            (running.parts, self.next) = (Some(at.now), None);
            self.left = self.left.max(IN_A_GAP);
        }
        match next {
            Next::Wait(until) => {
                running.sleeps = Some(until);
                return Step::Waits(until);
            }
            Next::Abort => {
                running.is_cut_off = true;
                running.session.iter().for_each(Session::cut_off);
                if running.parts.is_some_and(|since| at.now < since + WRITE) && running.knows_session {
                    let fault = format!("replaced: client {} does not wait for its queue", self.at);
                    log.lock().unwrap().faults.push(fault);
                }
            }
            Next::Join => self.stage = Stage::Joins,
            Next::End if matches!(self.stage, Stage::Over) => return Step::Over,
            Next::End => self.stage = Stage::Over,
            Next::Dial(trial) => {
                let second = at.now.checked_sub(Duration::from_secs(1));
                running.dialled.push_back(at.now);
                while running.dialled.front().copied() < second {
                    running.dialled.pop_front();
                }
                let newest = made(|made| made.client(self.at, self.renewals)).0;
                let is_newest = trial.identity().chain() == newest.chain();
                // A server that refused the newest certificate is dialled again with the former one.
                let again = running.shows_newest && running.server == trial.server;
                let is_other = (servers > 1).then_some(running.server != trial.server);
                let faults = &mut log.lock().unwrap().faults;
                if running.dialled.len() > ATTEMPTS {
                    faults.push(format!("back-off: client {} dials without a pause", self.at));
                }
                if !is_newest && !again {
                    faults.push(format!("renewed: client {} shows an old certificate", self.at));
                }
                match (running.replaces.take(), is_other) {
                    (Some(SessionEnd::Renewed), Some(true)) => {
                        faults.push(format!("replaced: client {} renews with another server", self.at));
                    }
                    (Some(SessionEnd::Draining), Some(false)) => {
                        faults.push(format!(
                            "replaced: client {} returns to the server that it left",
                            self.at
                        ));
                    }
                    _ => {}
                }
                (running.server, running.shows_newest) = (trial.server, is_newest);
                self.stage = Stage::Dials(trial);
            }
        }
        Step::Moved
    }

    /// Passes the result of an attempt to the core.
    fn dialled(&mut self, result: Result<Standing, DialFault>, at: At) -> Step {
        let stage = std::mem::replace(&mut self.stage, Stage::Runs);
        let Some(running) = &mut self.running else {
            return Step::Moved;
        };
        let is_failed = result.is_err();
        let up = running.core.dialled(result, at);
        if let Stage::Shakes(shaking) = stage {
            let (Some(up), false) = (up, is_failed) else {
                shaking.stream.end();
                shaking.stream.shut_down();
                return Step::Moved;
            };
            let config = running.core.link();
            self.tries += 1;
            (running.parts, running.is_cut_off) = (None, false);
            running.lost = running.handle.counters().lost_frames;
            running.session = running.core.begin(up, |decoder, outbox, sink| {
                let parts = (decoder, outbox, sink);
                Ok(Session::new(shaking.stream, shaking.input, parts, &config))
            });
        }
        Step::Moved
    }

    /// The application takes the received events.
    fn take(&mut self, now: Instant, random: &mut Random, log: &SharedLog) {
        let (name, at) = (self.name(), u32::try_from(self.at).unwrap());
        let Some(running) = &mut self.running else { return };
        let mut log = log.lock().unwrap();
        let (mut is_over, mut in_order) = (false, false);
        while let Ok(event) = running.events.try_recv() {
            let knows_session = match event {
                ClientEvent::Connected(_) => !running.knows_session,
                ClientEvent::Closed(_) => true,
                _ => running.knows_session,
            };
            if !knows_session {
                log.faults.push(format!("told in turn: {name} hears {event:?}"));
            }
            match event {
                ClientEvent::Connected(_) => (running.gap, running.knows_session) = (None, true),
                ClientEvent::Disconnected { reason, .. } => {
                    (running.knows_session, is_over) = (false, true);
                    let orders = [SessionEnd::Renewed, SessionEnd::Draining];
                    if let Some(which) = orders.iter().position(|order| *order == reason) {
                        self.replaced[which] += 1;
                        (running.gap, running.replaces, in_order) = (Some(now), Some(reason), true);
                        self.left = self.left.max(IN_A_GAP);
                    }
                }
                ClientEvent::Frame(frame) => {
                    if let Some(mark) = log.client_receives(&name, &frame) {
                        log.probes.remove(&(mark.sender, at, mark.number));
                    }
                }
                ClientEvent::Request(request) => {
                    let answer = [&at.to_string().into_bytes()[..], b" answers ", request.payload()].concat();
                    let answered = if random.chance(20) {
                        running.handle.refuse(&request, "busy")
                    } else {
                        running.handle.reply(&request, answer)
                    };
                    running.accepted += u64::from(answered.is_ok());
                }
                _ => {}
            }
        }
        let (answered, own) = (&mut self.answered, self.at);
        running.asked.retain(|(receiver, number, since, answer)| {
            match answer.try_answer() {
                Err(TryRecvError::Empty) if is_over => log.faults.push(format!(
                    "requests: {number} of {name} waits for a session that is over"
                )),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => log
                    .faults
                    .push(format!("requests: {number} of {name} is forgotten")),
                Ok(Ok(frame)) => {
                    *answered += 1;
                    let expected = format!("{receiver} answers {own} {number}");
                    if frame.payload_bytes()[..] != *expected.as_bytes() {
                        log.faults.push(format!(
                            "requests: {name} awaits {expected:?}, and gets {frame:?}"
                        ));
                    }
                }
                Ok(Err(RequestError::Disconnected)) if in_order && now < *since + ANSWERS => log.faults.push(
                    format!("requests: {name} does not wait for the answer to {number}"),
                ),
                Ok(Err(_)) => {}
            }
            false
        });
    }
}

impl Shaking {
    /// The result of the handshake, once it has one.
    fn step(&mut self, now: Instant) -> Option<Result<Standing, DialFault>> {
        if let Ok(taken) = self.stream.send(&self.output) {
            drop(self.output.split_to(taken));
        }
        let lost = match self.stream.receive(usize::MAX) {
            Ok(bytes) if bytes.is_empty() => Some(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => {
                self.input.extend_from_slice(&bytes);
                None
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => None,
            Err(e) => Some(e),
        };
        match self.handshake.receive(&mut self.input) {
            Ok(Some(connected)) => Some(Ok(Standing {
                server: Arc::new(ServerInfo {
                    uuid: connected.server,
                    role: connected.role,
                    name: self.target.clone(),
                    address: PeerAddress::Memory,
                    certificate: self.certificate.clone(),
                    tracing: connected.trace,
                    tls: "TLSv1.3",
                    resumed: false,
                }),
                configuration: connected.payload,
                chain: vec![self.certificate.der.clone()],
                name: "localhost".to_owned(),
            })),
            Err(refusal) => Some(Err(DialFault::Refused(refusal))),
            Ok(None) if lost.is_some() => lost.map(|e| Err(DialFault::Lost(Arc::new(e)))),
            Ok(None) => (now >= self.until).then_some(Err(DialFault::Refused(Refusal::Deadline))),
        }
    }
}
