//! The events of a world at a drawn time: faults, answers of the engine, and the end.

use std::time::{Duration, Instant};

use super::super::network::Stream;
use super::client::Client;
use super::log::Start;
use super::server::Server;
use super::world::{Connection, World};
use ssntp::payload::Draining;
use ssntp::proto::{Event as EventOperand, Frame};
use ssntp::server::SessionInfo;
use ssntp_engine::{Answer, EngineError, Request};
use ssntp_transport::dispatch::DispatchEvent;

/// The time after a loss in the engine in which two may lead: until both have read.
const BLURRED: Duration = Duration::from_secs(8);

#[derive(Clone, Debug)]
pub(super) enum Event {
    Arrive(Start, u64, Request, Instant),
    Answer(Start, u64, Request, Instant, Result<Answer, EngineError>),
    Pause(usize, Duration),
    Resume(usize),
    Crash(usize, Duration),
    Restart(usize),
    /// All links between two servers end.
    Cut(usize, usize),
    /// No byte passes between two servers for a while, in present or new links.
    Part(usize, usize, Duration),
    Heal(usize, usize),
    /// A client is restarted. Its server has noticed the end, or not.
    Move(usize, bool),
    Renew(usize),
    /// A server asks its clients to leave.
    Drain(usize),
    /// The frames of the leader to another server are stuck on their way, and meanwhile the leader
    /// is paused, or crashes.
    Strand,
    Jump(usize, i64),
    Away(Duration),
    Back,
    /// The user of the servers has lost the right to read the engine, or to write to it.
    Revoke(bool, Duration),
    /// A snapshot of this age is restored.
    Forget(Duration),
    Lose,
    Quiet,
    Probe,
    Check,
    End,
}

fn reads(request: &Request) -> bool {
    *request == Request::Read
}

fn writes(request: &Request) -> bool {
    matches!(request, Request::Put { .. } | Request::Grant(_))
}

impl World {
    /// Draws faults, which begin within and last at most these milliseconds.
    pub(super) fn draw_faults(&mut self, faults: u64, longest: u64) {
        let millis = Duration::from_millis;
        for _ in 0..self.random.below(7) {
            let start = self.begin + millis(self.random.below(usize::try_from(faults).unwrap()) as u64);
            let length = millis(self.random.between(50, usize::try_from(longest).unwrap()) as u64);
            let (one, step) = (
                self.random.below(self.starts.len()),
                self.random.between(1, self.starts.len() - 1),
            );
            let other = (one + step) % self.starts.len();
            let client = self.random.below(self.clients.len());
            let fault = match self.random.below(if self.has_engine { 20 } else { 14 }) {
                0 | 1 => Event::Pause(one, length),
                2 | 3 => Event::Crash(one, length),
                4 | 5 => Event::Cut(one, other),
                6..=8 => Event::Part(one, other, length),
                9 | 10 => Event::Move(client, self.random.chance(30)),
                11 => Event::Renew(client),
                12 => Event::Drain(one),
                13 => Event::Jump(one, self.random.between(0, 20_000) as i64 - 10_000),
                14 | 15 => Event::Away(length),
                16 | 17 => Event::Revoke(self.random.chance(50), length),
                18 => Event::Forget(Duration::from_secs(self.random.pick(&[1, 4, 10]))),
                _ => Event::Lose,
            };
            self.plan(start, fault);
        }
        // The drain begins while clients still send.
        for _ in 0..self.random.below(3) {
            let start = self.begin + millis(self.random.between(500, 2500) as u64);
            let fault = if self.random.chance(60) {
                Event::Renew(self.random.below(self.clients.len()))
            } else {
                Event::Drain(self.random.below(self.starts.len()))
            };
            self.plan(start, fault);
        }
    }

    /// Carries out the events of the agenda for this time.
    pub(super) fn take_due(&mut self) -> Result<(), String> {
        while let Some(((at, _), _)) = self.agenda.first_key_value()
            && *at <= self.now
        {
            let Some((_, event)) = self.agenda.pop_first() else {
                break;
            };
            if !matches!(event, Event::Arrive(..) | Event::Answer(..)) {
                self.trace_step(|| format!("{event:?}"));
            }
            self.take(event)?;
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Arrive(start, id, request, sent) => {
                let answer = self.engine.ask_at(self.now, &request);
                if let Some(way) = self.way() {
                    self.after(way, Event::Answer(start, id, request, sent, answer));
                }
            }
            Event::Answer(start, id, request, sent, answer) => {
                let now = self.now;
                if let Some(until) = self.paused[start.0] {
                    self.plan(until, Event::Answer(start, id, request, sent, answer));
                } else if let Some(server) = self.servers[start.0].as_mut()
                    && server.start == start
                    && server.waits_for.take_if(|waits| *waits == id).is_some()
                {
                    let clock = server.clock(now);
                    server.machine.handle_answer(&request, sent, clock, answer);
                }
            }
            Event::Pause(at, length) => {
                if self.is_up(at) {
                    self.paused[at] = Some(self.now + length);
                    self.after(length, Event::Resume(at));
                }
            }
            Event::Resume(at) => self.paused[at] = None,
            Event::Crash(at, length) => {
                if self.is_up(at) {
                    self.servers[at] = None;
                    self.starts[at] += 1;
                    self.after(length, Event::Restart(at));
                }
            }
            Event::Restart(at) => {
                let server = self.server(at);
                self.servers[at] = Some(server);
            }
            Event::Cut(one, other) => {
                for connection in self.links(one, other) {
                    let keep = self.random.chance(50);
                    connection.cut(keep);
                }
            }
            Event::Part(one, other, length) => {
                self.parted.push((one.min(other), one.max(other)));
                self.links(one, other).iter().for_each(|link| link.stall(true));
                self.after(length, Event::Heal(one, other));
            }
            Event::Heal(one, other) => {
                let pair = (one.min(other), one.max(other));
                if let Some(at) = self.parted.iter().position(|parted| *parted == pair) {
                    self.parted.remove(at);
                }
                if !self.is_parted(one, other) {
                    self.links(one, other).iter().for_each(|link| link.stall(false));
                }
            }
            Event::Move(client, is_told) => {
                let pause = Duration::from_millis(self.random.below(500) as u64);
                let client = &mut self.clients[client];
                if is_told {
                    client.close()
                } else {
                    client.vanish(self.now + pause)
                }
            }
            Event::Renew(client) => self.clients[client].renew(),
            Event::Drain(at) => {
                if let Some(server) = &self.servers[at] {
                    server.call(|cx| {
                        let (own, directory) = (cx.uuid(), cx.directory());
                        let here = directory.sessions().filter(|session| session.server() == own);
                        let all: Vec<_> = here.map(SessionInfo::uuid).collect();
                        let draining = Frame::of(&Draining { within_s: 1 });
                        for client in all {
                            let _ = cx.send(client, &draining);
                        }
                    });
                }
            }
            Event::Strand => {
                let now = self.now;
                let acts = |server: &&Server| server.machine.view().acts(server.clock(now)).is_some();
                let leader = self.servers.iter().flatten().find(acts);
                let Some(leader) = leader.map(|server| server.start.0) else {
                    return Ok(());
                };
                let step = self.random.between(1, self.servers.len() - 1);
                let other = (leader + step) % self.servers.len();
                let length = Duration::from_millis(self.random.between(7500, 9500) as u64);
                self.take(Event::Part(leader, other, length))?;
                let fault = if self.random.chance(50) {
                    Event::Pause(leader, length)
                } else {
                    Event::Crash(leader, length)
                };
                self.after(Duration::from_millis(1200), fault);
            }
            Event::Jump(at, seconds) => {
                if let Some(server) = &mut self.servers[at] {
                    let by = Duration::from_secs(seconds.unsigned_abs());
                    if seconds > 0 {
                        server.wall += by
                    } else {
                        server.wall -= by
                    }
                }
            }
            Event::Away(length) => {
                self.engine.fail(Some(EngineError::Away("drawn".to_owned())));
                self.after(length, Event::Back);
            }
            Event::Back => self.engine.fail(None),
            Event::Revoke(reading, length) => {
                self.engine.revoke(if reading { reads } else { writes });
                self.after(length, Event::Back);
            }
            Event::Forget(age) => {
                self.engine.forget(self.now, age);
                self.blurred = self.now + BLURRED;
            }
            Event::Lose => {
                self.engine.lose();
                self.blurred = self.now + BLURRED;
            }
            Event::Quiet => {
                self.is_quiet = true;
                // The other clients send a flood to the stuck one.
                let length = self.random.pick(&[1000, 20_000]);
                if self.clients[0].is_stuck && self.clients[1].is_open() {
                    let (flooder, now) = (&mut self.clients[1], self.now);
                    (0..400_000 / length).for_each(|_| {
                        flooder.send(EventOperand::TENANT_ADDED.into(), 0, length, now, &self.log);
                    });
                }
                self.after(Duration::ZERO, Event::Probe);
                self.after(Duration::from_secs(2), Event::Check);
            }
            Event::Probe => self.probe(),
            Event::Check => {
                let since = self.log.lock().unwrap().changed;
                let settled = since.is_none_or(|at| self.now > at + Duration::from_secs(2));
                // The server ends a stuck client, which reconnects. The world waits for that.
                if !settled && self.now < self.quiet_at + Duration::from_secs(20) {
                    self.after(Duration::from_millis(500), Event::Check);
                    return Ok(());
                }
                self.check_quiet()?;
                self.stop();
                self.after(Duration::from_secs(4), Event::End);
            }
            Event::End => self.is_over = true,
        }
        Ok(())
    }

    /// The links between two servers, each by the end of the dialling server.
    fn links(&self, one: usize, other: usize) -> Vec<Stream> {
        let is_it = |connection: &&Connection| {
            let [from, to] = connection.between;
            (from, to) == (one, other) || (from, to) == (other, one)
        };
        let links = self.connections.values().filter(is_it);
        links.map(|connection| connection.streams[0].clone()).collect()
    }

    /// Each client that reads sends a frame to each other client that reads.
    fn probe(&mut self) {
        let reads: Vec<_> = (0..self.clients.len())
            .filter(|at| self.clients[*at].is_open() && !self.clients[*at].is_stuck)
            .collect();
        for from in reads.clone() {
            // A client that sends to a stuck one waits as well.
            if from == 1 && self.clients[0].is_stuck {
                continue;
            }
            for to in reads.iter().copied().filter(|to| *to != from) {
                let kind = EventOperand::TENANT_ADDED.into();
                let sent = self.clients[from].send(kind, to, 50, self.now, &self.log);
                if let Some((origin, number)) = sent {
                    let probe = (origin, u32::try_from(to).unwrap(), number);
                    self.log.lock().unwrap().probes.insert(probe, self.now);
                }
            }
            let others = reads.iter().filter(|to| **to != from);
            if let Some(to) = others.max() {
                self.clients[from].ask(*to, true, self.now, &self.log);
            }
        }
        if self.now < self.quiet_at + Duration::from_millis(1200) {
            self.after(Duration::from_millis(400), Event::Probe);
        }
    }

    fn stop(&mut self) {
        self.is_ending = true;
        self.clients.iter_mut().for_each(Client::close);
        for server in self.servers.iter_mut().flatten() {
            server.stopping = true;
            let _ = server.events.try_send(DispatchEvent::Stop);
            let _ = server.events.try_send(DispatchEvent::Exit);
        }
    }
}
