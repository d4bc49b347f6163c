//! A client of the world: it connects to one of the servers, sends and reads, and connects again
//! whenever its connection has ended.

use std::time::{Duration, Instant};

use bytes::BytesMut;

use super::super::application::Mark;
use super::super::network::Stream;
use super::super::threads::Step;
use super::log::{SharedLog, client_uuid};
use ssntp::Role;
use ssntp::proto::{ClientHandshake, Codec, Command, Connect, Event, Frame, FrameKind, Item, Status};
use ssntp_test_support::random::Random;

const MAX_PAYLOAD: u32 = 1 << 20;

/// Where a client is.
pub(super) enum Stage {
    /// It connects then.
    Away(Instant),
    Shakes(Stream, Box<ClientHandshake>),
    Open(Stream),
}

pub(super) struct Client {
    pub(super) at: usize,
    pub(super) role: Role,
    /// It reads nothing after CONNECTED.
    pub(super) is_stuck: bool,
    pub(super) stage: Stage,
    /// Counts its connections. Each is an origin of its own.
    pub(super) tries: u32,
    codec: Codec,
    input: BytesMut,
    output: BytesMut,
    number: u64,
    /// What it sends before the world is quiet: frames, each after such a pause.
    pub(super) left: usize,
    pub(super) pause: Duration,
    next: Option<Instant>,
}

impl Client {
    pub(super) fn new(at: usize, random: &mut Random, begin: Instant) -> Self {
        Self {
            at,
            role: random.pick(&[Role::AGENT, Role::AGENT, Role::CONTROLLER]),
            is_stuck: false,
            stage: Stage::Away(begin + Duration::from_millis(random.below(1000) as u64)),
            tries: 0,
            codec: Codec::new(MAX_PAYLOAD, false),
            input: BytesMut::new(),
            output: BytesMut::new(),
            number: 0,
            left: random.pick(&[0, 20, 60]),
            pause: Duration::from_millis(random.pick(&[10, 200, 500])),
            next: None,
        }
    }

    /// Its origin: that of its present connection.
    pub(super) fn origin(&self) -> u32 {
        u32::try_from(self.at).unwrap() * 1000 + self.tries
    }

    fn name(&self) -> String {
        format!("client {} ({})", self.at, self.tries)
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open(_))
    }

    pub(super) fn stream(&self) -> Option<&Stream> {
        match &self.stage {
            Stage::Away(_) => None,
            Stage::Shakes(stream, _) | Stage::Open(stream) => Some(stream),
        }
    }

    /// Connects by a stream to some server.
    pub(super) fn connect(&mut self, stream: Stream) {
        self.tries += 1;
        self.codec = Codec::new(MAX_PAYLOAD, false);
        self.input.clear();
        self.output.clear();
        let connect = Connect::new(self.role, client_uuid(self.at), false);
        let handshake = ClientHandshake::new(connect, Role::ALL, None, MAX_PAYLOAD);
        self.output.extend_from_slice(&handshake.connect());
        self.stage = Stage::Shakes(stream, Box::new(handshake));
    }

    /// Gives its connection up: the server hears of that, or not.
    pub(super) fn leave(&mut self, until: Instant) {
        self.stage = Stage::Away(until);
    }

    /// Puts a frame for another client, or for everybody, behind what it has to send.
    pub(super) fn send(&mut self, kind: FrameKind, to: usize, length: usize) -> u64 {
        self.number += 1;
        let mark = Mark {
            sender: self.origin(),
            number: self.number,
            to: u32::try_from(to).unwrap(),
        };
        let frame = Frame::with_payload(kind, mark.payload("", length));
        self.output.extend_from_slice(&frame.encode());
        self.number
    }

    /// How much it has to send.
    pub(super) fn owes(&self) -> usize {
        self.output.len()
    }

    pub(super) fn step(
        &mut self,
        clients: usize,
        is_over: bool,
        now: Instant,
        random: &mut Random,
        log: &SharedLog,
    ) -> Step {
        let Some(stream) = self.stream().cloned() else {
            return Step::Waits(None);
        };
        // Nobody else does once the server has ended.
        let arrives = stream.advance(now);
        let mut moved = false;
        if !self.output.is_empty() {
            match stream.send(&self.output) {
                Ok(taken) => {
                    drop(self.output.split_to(taken));
                    moved = taken > 0;
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => self.output.clear(),
            }
        }
        if !(self.is_stuck && self.is_open()) {
            match stream.receive(usize::MAX) {
                Ok(bytes) if bytes.is_empty() => {
                    stream.end();
                    self.away(now, random);
                    return Step::Moved;
                }
                Ok(bytes) => {
                    self.input.extend_from_slice(&bytes);
                    moved = true;
                    if !self.take(log, now, random) {
                        return Step::Moved;
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    self.away(now, random);
                    return Step::Moved;
                }
            }
        } else if stream.is_gone() {
            self.away(now, random);
            return Step::Moved;
        }
        if moved {
            return Step::Moved;
        }
        if !self.is_open() || self.left == 0 || is_over || self.owes() > 0 {
            return Step::Waits(arrives);
        }
        if let Some(next) = self.next.filter(|next| now < *next) {
            return Step::Waits([arrives, Some(next)].into_iter().flatten().min());
        }
        self.next = Some(now + self.pause);
        for _ in 0..random.between(1, 4).min(self.left) {
            self.left -= 1;
            let kinds: &[FrameKind] = &[
                Command::STATS.into(),
                Status::READY.into(),
                Event::TENANT_ADDED.into(),
                Event::TENANT_ADDED.into(),
            ];
            let length = random.pick(&[10, 100, 4000]);
            self.send(random.pick(kinds), random.below(clients), length);
        }
        Step::Moved
    }

    fn away(&mut self, now: Instant, random: &mut Random) {
        let pause = Duration::from_millis(random.between(20, 1500) as u64);
        self.leave(now + pause);
    }

    /// False if it has no connection any more.
    fn take(&mut self, log: &SharedLog, now: Instant, random: &mut Random) -> bool {
        if let Stage::Shakes(stream, handshake) = &mut self.stage {
            match handshake.receive(&mut self.input) {
                Ok(Some(_)) => self.stage = Stage::Open(stream.clone()),
                Ok(None) => return true,
                // It may come back later.
                Err(_) => {
                    stream.end();
                    stream.shut_down();
                    self.away(now, random);
                    return false;
                }
            }
        }
        let mut items = Vec::new();
        let decoded = self.codec.decode(&mut self.input, &mut items);
        let (name, at) = (self.name(), u32::try_from(self.at).unwrap());
        let mut log = log.lock().unwrap();
        if let Err(e) = decoded {
            log.faults.push(format!("a server sends to {name}: {e}"));
        }
        for item in items {
            let Item::Run(run) = item else {
                log.faults
                    .push(format!("a server sends {:?} to {name}", item.kind()));
                continue;
            };
            for frame in run.frames() {
                if let Some(mark) = log.client_receives(&name, &frame) {
                    log.probes.remove(&(mark.sender, at, mark.number));
                }
            }
        }
        true
    }
}
