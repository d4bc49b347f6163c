//! The peers: their properties, their frames, and their ends.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use uuid::Uuid;

use super::application::{Mark, QUERY, SharedLog, operands, uuid};
use super::cluster::Program;
use super::network::Stream;
use super::threads::Step;
use ssntp::Role;
use ssntp::payload::Kick;
use ssntp::proto::{
    ClientHandshake, Codec, Command, Connect, ErrorCode, Event, Exchange, Frame, FrameKind, FrameType,
    Header, Item, Refusal, Status, Step as ExchangeStep,
};
use ssntp::server::SessionId;
use ssntp_payload::{Delete, Stop};
use ssntp_test_support::random::Random;

/// The reading speed of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// All bytes that have arrived, as soon as it can.
    Full,
    /// This number of bytes at a time, with this time in between.
    Slow(usize, Duration),
    /// No byte after CONNECTED.
    Stuck,
    /// No byte, not even CONNECTED.
    Deaf,
}

/// The end of a peer once it has sent everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The peer does not end by itself.
    Stays,
    /// It ends its side, and reads to the end.
    HalfCloses,
    /// It ends its side in the middle of a frame.
    Truncates,
    /// It disappears after this number of bytes.
    Cut(usize),
    /// It breaks the protocol.
    Junk,
    ConnectsTwice,
    /// It reports that it has failed.
    Refuses,
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) number: u32,
    pub(super) entity: u32,
    pub(super) role: Role,
    pub(super) certificate: usize,
    pub(super) begins: Duration,
    pub(super) pace: Pace,
    pub(super) ending: Ending,
    pub(super) frames: usize,
    pub(super) longest: usize,
    /// Time between its frames.
    pub(super) pause: Duration,
    /// It sends frames that the server does not understand, or does not allow.
    pub(super) rude: bool,
    /// It connects and never sends its CONNECT.
    pub(super) silent: bool,
    /// It does not wait for CONNECTED.
    pub(super) eager: bool,
    pub(super) entities: u32,
    pub(super) scheduler: bool,
    /// It is a real agent, or keeps the view of a real controller.
    pub(super) real: bool,
    pub(super) tracing: bool,
    /// It sends questions to others, and answers questions.
    pub(super) asks: bool,
    /// It kicks and bans clients.
    pub(super) kicks: bool,
    /// The time from the beginning of the world to the expiry of its certificate.
    pub(super) expires: Option<Duration>,
}

impl Plan {
    pub(super) fn is_healthy(&self) -> bool {
        self.pace == Pace::Full && !self.silent
    }

    /// True if input never wakes it.
    fn is_stuck(&self) -> bool {
        matches!(self.pace, Pace::Stuck | Pace::Deaf)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waits,
    Shakes,
    Open,
    Over,
}

pub(super) struct Peer {
    pub(super) plan: Plan,
    pub(super) stream: Stream,
    handshake: ClientHandshake,
    codec: Codec,
    input: BytesMut,
    output: Vec<u8>,
    written: usize,
    stage: Stage,
    left: usize,
    number: u64,
    /// The numbers of the frames that the application is to see.
    pub(super) allowed: Vec<u64>,
    /// The number of its frames that the server itself answers.
    pub(super) answerable: u64,
    next_read: Option<Instant>,
    next_frame: Option<Instant>,
    ended: bool,
    /// True if it has sent all its frames, and ended its side in order.
    pub(super) closed_in_order: bool,
    /// True if it has read to the end.
    pub(super) read_to_end: bool,
    pub(super) connected: bool,
    pub(super) received: u64,
    /// The bytes that it has read.
    pub(super) taken: u64,
    pub(super) session: Option<SessionId>,
    /// The scheduler's STARTs that it has to answer.
    answers: Vec<Frame>,
    /// The receivers of its requests without an answer, by request number.
    asked: HashMap<u64, Uuid>,
    /// The number of its questions that were answered.
    pub(super) answered: u64,
    /// The longest payload that it has received.
    pub(super) longest: usize,
    /// Its answers to requests, and the frames of its program.
    replies: Vec<Frame>,
    pub(super) program: Option<Program>,
}

impl Peer {
    pub(super) fn new(plan: Plan, stream: Stream, max_payload: u32) -> Self {
        let connect = Connect::new(plan.role, uuid(plan.entity), plan.tracing);
        let handshake = ClientHandshake::new(connect, Role::ALL, None, max_payload);
        Self {
            left: plan.frames,
            stream,
            handshake,
            codec: Codec::new(max_payload, plan.tracing).operands(operands()),
            input: BytesMut::new(),
            output: Vec::new(),
            written: 0,
            stage: Stage::Waits,
            number: 0,
            allowed: Vec::new(),
            answerable: 0,
            next_read: None,
            next_frame: None,
            ended: false,
            closed_in_order: false,
            read_to_end: false,
            connected: false,
            received: 0,
            taken: 0,
            session: None,
            answers: Vec::new(),
            asked: HashMap::new(),
            answered: 0,
            longest: 0,
            replies: Vec::new(),
            program: None,
            plan,
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.stage != Stage::Waits
    }

    /// It stops connecting.
    pub(super) fn give_up(&mut self) {
        self.stage = Stage::Over;
    }

    /// True if it would read input.
    pub(super) fn reads(&self) -> bool {
        self.plan.is_healthy() && matches!(self.stage, Stage::Open | Stage::Shakes)
    }

    pub(super) fn step(
        &mut self,
        begin: Instant,
        now: Instant,
        random: &mut Random,
        log: &SharedLog,
    ) -> Step {
        match self.stage {
            Stage::Over => Step::Over,
            Stage::Waits => {
                let at = begin + self.plan.begins;
                if now < at {
                    return Step::Waits(Some(at));
                }
                let connect = self.handshake.connect();
                self.output.extend(connect.iter().filter(|_| !self.plan.silent));
                if self.plan.real {
                    let program = Program::new(self.plan.role, uuid(self.plan.entity), now, log);
                    self.program = Some(program);
                }
                self.stage = Stage::Shakes;
                Step::Moved
            }
            Stage::Shakes | Stage::Open => {
                let first = random.chance(50);
                let step = self.half(first, now, random, log);
                match step {
                    Step::Waits(one) => match self.half(!first, now, random, log) {
                        Step::Waits(other) => Step::Waits([one, other].into_iter().flatten().min()),
                        step => step,
                    },
                    step => step,
                }
            }
        }
    }

    fn half(&mut self, read: bool, now: Instant, random: &mut Random, log: &SharedLog) -> Step {
        if read {
            self.read(now, random, log)
        } else {
            self.write(now, random)
        }
    }

    fn read(&mut self, now: Instant, random: &mut Random, log: &SharedLog) -> Step {
        let most = match self.plan.pace {
            Pace::Stuck if self.connected => return Step::Waits(None),
            Pace::Deaf => return Step::Waits(None),
            Pace::Slow(most, every) => {
                if let Some(at) = self.next_read
                    && now < at
                {
                    return Step::Waits(Some(at));
                }
                if self.stream.holds() > 0 {
                    self.next_read = Some(now + every);
                }
                random.between(1, most)
            }
            _ => usize::MAX,
        };
        match self.stream.receive(most) {
            Ok(bytes) if bytes.is_empty() => {
                self.read_to_end = true;
                self.stream.end();
                self.stage = Stage::Over;
            }
            Ok(bytes) => {
                self.taken += bytes.len() as u64;
                self.input.extend_from_slice(&bytes);
                self.take(now, log);
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Step::Waits(None),
            Err(_) => self.stage = Stage::Over,
        }
        Step::Moved
    }

    fn take(&mut self, now: Instant, log: &SharedLog) {
        if self.stage == Stage::Shakes {
            match self.handshake.receive(&mut self.input) {
                Ok(Some(connected)) => {
                    self.connected = true;
                    self.stage = Stage::Open;
                    if let Some(program) = &mut self.program {
                        self.replies.extend(program.connected(connected.payload, now));
                    }
                }
                Ok(None) => return,
                // A connection that was refused ends when the server ends.
                Err(refusal) => {
                    if refusal != Refusal::PeerFailed && refusal != Refusal::PeerAborted {
                        let fault = format!("order: the first frame to {}: {refusal}", self.plan.number);
                        log.lock().unwrap().faults.push(fault);
                    }
                    self.input.clear();
                    self.left = 0;
                    if !self.ended {
                        self.ended = true;
                        self.stream.end();
                    }
                    return;
                }
            }
        }
        let mut items = Vec::new();
        if let Err(e) = self.codec.decode(&mut self.input, &mut items) {
            log.lock()
                .unwrap()
                .faults
                .push(format!("the server sends to {}: {e}", self.plan.number));
            self.stage = Stage::Over;
        }
        for item in items {
            match item {
                Item::Run(run) => run.frames().for_each(|frame| self.receive(&frame, now, log)),
                Item::Traced(frame) => self.receive(&frame, now, log),
                Item::Unsupported(kind) => {
                    log.lock()
                        .unwrap()
                        .faults
                        .push(format!("the server sends {kind}"));
                }
            }
        }
    }

    fn receive(&mut self, frame: &Frame, now: Instant, log: &SharedLog) {
        self.received += 1;
        self.longest = self.longest.max(frame.payload_bytes().len());
        if frame.kind() == QUERY {
            if let Err(fault) = self.exchange(frame) {
                log.lock().unwrap().faults.push(fault);
            }
            return;
        }
        if let (Some(mark), Some(session)) = (Mark::of(frame.payload_bytes()), self.session)
            && !(self.plan.scheduler && frame.kind() == Command::START)
        {
            log.lock().unwrap().arrives(session, mark);
        }
        if let Some(program) = &mut self.program {
            self.replies.extend(program.receive(frame, now));
        } else if self.plan.scheduler && frame.kind() == Command::START && self.answers.len() < 20 {
            self.answers.push(frame.clone());
        }
    }

    /// A request is answered once, by its receiver.
    fn exchange(&mut self, frame: &Frame) -> Result<(), String> {
        let (payload, number) = (frame.payload_bytes(), self.plan.number);
        let exchange = Exchange::read(payload).ok_or("requests: it is no exchange")?;
        if exchange.step == ExchangeStep::Request {
            let reply = Exchange {
                step: ExchangeStep::Reply,
                ..exchange
            };
            let content = &payload[Exchange::LEN..];
            let reply = [&reply.encode(), content].concat();
            self.replies.push(Frame::with_payload(QUERY, reply));
            return Ok(());
        }
        // The request may be of another peer with its UUID, whose session this one has replaced.
        if exchange.id >> 32 != u64::from(number) {
            return Ok(());
        }
        let Some(whom) = self.asked.remove(&exchange.id) else {
            return Err(format!(
                "requests: {number} gets an answer that it does not wait for"
            ));
        };
        let is_refused = exchange.step == ExchangeStep::Refusal;
        // The server itself answers.
        let is_server = (0..self.plan.entities).all(|entity| exchange.peer != uuid(entity));
        if exchange.peer != whom && !((is_refused || whom.is_nil()) && is_server) {
            return Err(format!(
                "requests: {number} has asked {whom}, and {} answers",
                exchange.peer
            ));
        }
        if !is_refused && payload[Exchange::LEN..] != exchange.id.to_le_bytes() {
            return Err(format!("requests: {number} gets the answer to another request"));
        }
        self.answered += u64::from(!is_refused);
        Ok(())
    }

    /// A question to another entity, or to the server.
    fn ask(&mut self, whom: u32) -> Frame {
        let whom = if whom == 0 { Uuid::nil() } else { uuid(whom) };
        let id = u64::from(self.plan.number) << 32 | self.number;
        let question = Exchange {
            step: ExchangeStep::Request,
            id,
            peer: whom,
        };
        self.asked.insert(id, whom);
        let content = id.to_le_bytes();
        Frame::with_payload(QUERY, [&question.encode()[..], &content].concat())
    }

    fn write(&mut self, now: Instant, random: &mut Random) -> Step {
        if let Ending::Cut(at) = self.plan.ending
            && (self.written >= at || self.ended && self.output.is_empty())
        {
            self.stream.cut(random.chance(50));
            self.stage = Stage::Over;
            return Step::Moved;
        }
        let mut due = None;
        if let Some(program) = self.program.as_mut().filter(|_| self.stage == Stage::Open) {
            self.replies.extend(program.tick(now));
            due = program.deadline();
        }
        if self.output.is_empty() && !self.ended {
            let replies = self.replies.drain(..).flat_map(|reply| reply.encode());
            self.output.extend(replies);
        }
        if self.output.is_empty() {
            if self.ended || self.stage == Stage::Shakes && !self.plan.eager {
                return Step::Waits(None);
            }
            if let Some(at) = self.next_frame
                && now < at
            {
                return Step::Waits([Some(at), due].into_iter().flatten().min());
            }
            if self.left == 0 {
                return match self.end(random) {
                    Step::Waits(_) => Step::Waits(due),
                    step => step,
                };
            }
            for _ in 0..random.between(1, 30).min(self.left) {
                self.left -= 1;
                self.compose(random);
            }
            if !self.plan.pause.is_zero() {
                self.next_frame = Some(now + self.plan.pause);
            }
        }
        let pieces: &[usize] = match self.output.len() {
            0..=100_000 => &[1, 9, 100, 5000, 1 << 20],
            _ => &[50_000, 1 << 20],
        };
        let piece = random.pick(pieces).min(self.output.len());
        let piece = match self.plan.ending {
            Ending::Cut(at) => piece.min(at.saturating_sub(self.written).max(1)),
            _ => piece,
        };
        match self.stream.send(&self.output[..piece]) {
            Ok(taken) => {
                self.written += taken;
                self.output.drain(..taken);
                Step::Moved
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Step::Waits(None),
            // It notices its end by reading.
            Err(_) => {
                self.output.clear();
                self.left = 0;
                self.ended = true;
                if self.plan.is_stuck() {
                    self.stage = Stage::Over;
                }
                Step::Moved
            }
        }
    }

    fn compose(&mut self, random: &mut Random) {
        // An agent sends only when it has news.
        if self
            .program
            .as_ref()
            .is_some_and(|program| program.running().is_some())
        {
            return;
        }
        self.number += 1;
        let mark = Mark {
            sender: self.plan.number,
            number: self.number,
            to: u32::try_from(random.below(self.plan.entities as usize)).unwrap(),
        };
        let is_long = self.plan.longest > 1 << 20;
        let padding = match random.below(10) + usize::from(is_long) * 4 {
            0..5 => random.below(40),
            5..9 => random.below(self.plan.longest / 8 + 1),
            _ => random.below(self.plan.longest + 1),
        };
        if self.plan.rude && random.chance(30) {
            return self.compose_rudely(mark, padding, random);
        }
        let controller = self.plan.role.intersects(Role::CONTROLLER);
        if self.plan.asks && random.chance(20) {
            let question = self.ask(mark.to);
            self.output.extend(question.encode());
            return;
        }
        if self.plan.kicks && controller && random.chance(5) {
            let kick = Kick {
                id: self.number.to_string().into(),
                uuid: uuid(mark.to).into(),
                ban_s: random.below(2) as u64,
            };
            self.output.extend(Frame::of(&kick).encode());
            return;
        }
        let (kind, rest): (FrameKind, String) = if self.plan.scheduler {
            self.of_cluster(controller, random)
        } else {
            let kinds: &[FrameKind] = &[
                Command::STATS.into(),
                Command::STATS.into(),
                Command::STATS.into(),
                Event::TENANT_ADDED.into(),
                Command::STOP.into(),
                Command::DELETE.into(),
                Status::READY.into(),
            ];
            let kind = match random.below(200) {
                0 => Command::RESTART.into(),
                1..4 => Command::EVACUATE.into(),
                4..6 => Event::TENANT_REMOVED.into(),
                _ => random.pick(kinds),
            };
            (kind, String::new())
        };
        self.allowed.push(self.number);
        let payload = mark.payload(&rest, padding);
        self.output.extend(Frame::with_payload(kind, payload).encode());
    }

    /// The frames of an agent or a controller of a cluster.
    fn of_cluster(&mut self, controller: bool, random: &mut Random) -> (FrameKind, String) {
        let entity = uuid(self.plan.entity);
        if controller {
            let known = self.program.as_ref().and_then(|program| program.pick(random));
            if let Some((instance_uuid, workload_agent_uuid)) = known.filter(|_| random.chance(40)) {
                let (instance_uuid, workload_agent_uuid) = (instance_uuid.into(), workload_agent_uuid.into());
                let stop = random.chance(30);
                let frame = if random.chance(50) {
                    Frame::of(&Stop {
                        instance_uuid,
                        workload_agent_uuid,
                        stop,
                    })
                } else {
                    Frame::of(&Delete {
                        instance_uuid,
                        workload_agent_uuid,
                        stop,
                    })
                };
                let text = String::from_utf8_lossy(frame.payload_bytes()).into_owned();
                return (frame.kind(), text);
            }
            let instance = Uuid::from_u128(u128::from(random.next()) | 1 << 100);
            return (
                Command::START.into(),
                START.replace("INSTANCE", &instance.to_string()),
            );
        }
        if let Some(start) = self.answers.pop() {
            let text = String::from_utf8_lossy(start.payload_bytes()).into_owned();
            let instance = text
                .split("instance_uuid: ")
                .nth(1)
                .and_then(|rest| rest.split('\n').next());
            let instance = instance.unwrap_or_default();
            return if random.chance(70) {
                let stats = STATS.replace("NODE", &entity.to_string());
                (Command::STATS.into(), stats.replace("INSTANCE", instance))
            } else {
                let failure = format!("instance_uuid: {instance}\nreason: full_cn\n");
                (ErrorCode::START_FAILURE.into(), failure)
            };
        }
        if random.chance(50) {
            let ready = READY.replace("NODE", &entity.to_string());
            (Status::READY.into(), ready)
        } else {
            (Command::STATS.into(), format!("node_uuid: {entity}\n"))
        }
    }

    fn compose_rudely(&mut self, mark: Mark, padding: usize, random: &mut Random) {
        let payload = mark.payload("", padding);
        let kind = match random.below(4) {
            0 => FrameKind::new(FrameType::COMMAND, 0x77),
            1 => FrameKind::new(FrameType(9), 1),
            2 => FrameKind::new(FrameType::ERROR, 0x70),
            _ if self.plan.role.intersects(Role::CONTROLLER) || self.plan.scheduler => {
                FrameKind::new(FrameType(8), 2)
            }
            // The filter refuses it.
            _ => Command::RESTORE.into(),
        };
        self.answerable += 1;
        self.output
            .extend(Header::new(kind, u32::try_from(payload.len()).unwrap()).encode());
        self.output.extend(payload);
    }

    fn end(&mut self, random: &mut Random) -> Step {
        match self.plan.ending {
            // The peer has no further frames to send.
            Ending::Stays => return Step::Waits(None),
            Ending::Cut(_) => {}
            Ending::HalfCloses => {
                self.closed_in_order = true;
                self.stream.end();
                if self.plan.is_stuck() {
                    self.stage = Stage::Over;
                }
            }
            Ending::Truncates => {
                let whole = Header::new(Command::STATS.into(), 50).encode();
                let part = random.between(1, 7);
                // If the rest does not fit, the peer ends in order.
                match self.stream.send(&whole[..part]) {
                    Ok(_) => {}
                    Err(_) => self.closed_in_order = true,
                }
                self.stream.end();
            }
            Ending::Junk => {
                let junk: Vec<u8> = (0..random.between(8, 200))
                    .map(|_| random.next().to_le_bytes()[0] | 0x40)
                    .collect();
                self.output.extend(junk);
            }
            Ending::ConnectsTwice => self.output.extend(self.handshake.connect()),
            Ending::Refuses => {
                self.output
                    .extend(Frame::new(ErrorCode::CONNECTION_FAILURE).encode());
            }
        }
        self.ended = true;
        Step::Moved
    }
}

const START: &str = "start:
  requirements:
    vm_type: qemu
    vcpus: 1
    mem_mb: 64
  instance_uuid: INSTANCE
  tenant_uuid: 0a1b2c3d-0000-4000-8000-000000000001
  image_uuid: 0a1b2c3d-0000-4000-8000-000000000002
";

const STATS: &str = "node_uuid: NODE
instances:
- instance_uuid: INSTANCE
  state: active
";

const READY: &str = "node_uuid: NODE
mem_total_mb: 64000
mem_available_mb: 60000
disk_total_mb: 500000
disk_available_mb: 400000
load: 0
cpus_online: 8
";
