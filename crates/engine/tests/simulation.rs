//! Membership and leadership from one seed, in virtual time: several processes, one engine,
//! and faults drawn from the seed.
//!
//! ```text
//!  Machine ── request ── delay, or lost ──▶ MemoryEngine      faults: a process is paused,
//!     ▲                                        │              crashes, starts again; the
//!     └───── answer ──── delay, or lost ◀──────┘              engine is away, revokes a right,
//!  Machine leads ── frame with token ── delay ──▶ receivers   restores a snapshot, or loses all
//! ```
//!
//! | invariant | meaning |
//! |---|---|
//! | one holder | no two processes act under one token |
//! | one leader | no two processes may act at the same time, unless the engine has forgotten data |
//! | tokens | the tokens of the frames that a receiver takes never decrease |
//! | quiet | once all faults are over, one process leads, all have the same view, and all take its frames |
//!
//! `SSNTP_SEED=n` replays one seed and prints its events; `SSNTP_SEEDS=n` runs this number of seeds.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a seed that fails is to end the test"
)]

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use ssntp_engine::{Answer, EngineError, Join, Machine, Member, Next, Request, When};
use ssntp_test_support::memory_engine::MemoryEngine;
use ssntp_test_support::random::Random;
use ssntp_transport::guard;
use uuid::Uuid;

/// Faults begin before this, in milliseconds.
const FAULTS: usize = 20_000;
/// The time at which the longest fault, of 15 s, is over.
const CALM: u64 = 35_000;
/// From this time on there is a leader, because all earlier leases are over.
const QUIET: u64 = 44_000;
const END: u64 = 48_000;
/// The time for which two servers may lead after the engine has lost data: until both have read.
const BLURRED: u64 = 8_000;

#[derive(Debug)]
enum Event {
    Wake,
    Arrive(u64, Request, Instant),
    Answer(u64, Request, Instant, Result<Answer, EngineError>),
    Act,
    Frame {
        token: u64,
    },
    Pause(u64),
    Crash(u64),
    Away(u64),
    Back,
    /// The right to read, or to write, is revoked.
    Revoke(bool, u64),
    /// A snapshot of this age in seconds is restored.
    Forget(u64),
    Lose,
}

fn reads(request: &Request) -> bool {
    *request == Request::Read
}

fn writes(request: &Request) -> bool {
    matches!(request, Request::Put { .. } | Request::Grant(_))
}

struct Process {
    machine: Machine,
    /// The number of starts of the process.
    incarnation: u64,
    paused: u64,
    /// The speed of the clock, in thousandths.
    rate: u32,
    waits_for: Option<u64>,
    /// The highest token in the frames that it has taken.
    taken: u64,
    taken_at: u64,
}

struct World {
    random: Random,
    is_told: bool,
    begin: Instant,
    now: u64,
    /// The events by time, then in the order in which they were made. Each belongs to one incarnation of
    /// a process.
    events: BTreeMap<(u64, u64), (usize, u64, Event)>,
    made: u64,
    engine: MemoryEngine,
    processes: Vec<Process>,
    holders: HashMap<u64, (usize, u64)>,
    blurred: u64,
    /// The longest delay of a message, and the percentage of lost messages.
    delay: usize,
    lost: usize,
    terms: usize,
}

fn machine(at: usize, incarnation: u64) -> Machine {
    let member = Member {
        uuid: Uuid::from_u128(at as u128 + 1),
        incarnation,
        addresses: Vec::new(),
        version: "1".to_owned(),
        token: 0,
    };
    Machine::new(Join { member, leads: true })
}

impl World {
    #[expect(clippy::disallowed_methods, reason = "any time will do to begin with")]
    fn new(seed: u64, is_told: bool) -> Self {
        let mut random = Random::new(seed);
        let process = |at: usize, rate: usize| Process {
            machine: machine(at, 0),
            incarnation: 0,
            paused: 0,
            rate: u32::try_from(rate).unwrap(),
            waits_for: None,
            taken: 0,
            taken_at: 0,
        };
        let count = random.between(2, 4);
        let processes = (0..count)
            .map(|at| process(at, random.between(960, 1040)))
            .collect();
        let mut world = Self {
            is_told,
            begin: Instant::now(),
            now: 0,
            events: BTreeMap::new(),
            made: 0,
            engine: MemoryEngine::new(),
            processes,
            holders: HashMap::new(),
            blurred: 0,
            delay: random.pick(&[5, 50, 400, 900]),
            lost: random.pick(&[0, 0, 2, 20]),
            terms: 0,
            random,
        };
        for at in 0..count {
            world.after(0, at, Event::Wake);
            world.after(0, at, Event::Act);
        }
        for _ in 0..world.random.below(8) {
            let (start, length) = (
                world.random.below(FAULTS) as u64,
                world.random.between(100, 15_000) as u64,
            );
            let fault = match world.random.below(10) {
                0..=2 => Event::Pause(length),
                3 | 4 => Event::Crash(length),
                5 | 6 => Event::Away(length),
                7 | 8 => Event::Revoke(world.random.chance(50), length),
                _ => {
                    if world.random.chance(50) {
                        Event::Forget(world.random.pick(&[1, 4, 10]))
                    } else {
                        Event::Lose
                    }
                }
            };
            let at = world.random.below(count);
            // Faults apply to any incarnation.
            world.put(start, at, u64::MAX, fault);
        }
        world
    }

    fn put(&mut self, time: u64, at: usize, incarnation: u64, event: Event) {
        self.made += 1;
        self.events.insert((time, self.made), (at, incarnation, event));
    }

    fn after(&mut self, delay: u64, at: usize, event: Event) {
        self.put(self.now + delay, at, self.processes[at].incarnation, event);
    }

    /// The delay of a message; `None` if the message is lost.
    fn way(&mut self) -> Option<u64> {
        let is_calm = self.now > CALM;
        let delay = if is_calm { self.delay.min(50) } else { self.delay };
        let is_lost = !is_calm && self.random.chance(self.lost);
        (!is_lost).then(|| self.random.below(delay) as u64)
    }

    fn clock(&self) -> Instant {
        self.begin + Duration::from_millis(self.now)
    }

    /// The clock of a process. Its speed differs from the engine's.
    fn clock_of(&self, at: usize) -> Instant {
        self.begin + Duration::from_millis(self.now) * self.processes[at].rate / 1000
    }

    fn run(&mut self) {
        while let Some(((time, _), (at, incarnation, event))) = self.events.pop_first() {
            if time > END {
                break;
            }
            self.now = time;
            let process = &self.processes[at];
            let is_of_process = incarnation != u64::MAX && !matches!(event, Event::Arrive(..));
            if is_of_process && process.incarnation != incarnation {
                continue;
            }
            if is_of_process && process.paused > time {
                self.put(process.paused, at, incarnation, event);
                continue;
            }
            if self.is_told && !matches!(event, Event::Wake | Event::Act | Event::Frame { .. }) {
                println!("{time:6} {at}: {event:?}");
            }
            self.take(at, event);
            self.check();
        }
        self.check_quiet();
    }

    fn take(&mut self, at: usize, event: Event) {
        let clock = self.clock_of(at);
        match event {
            Event::Wake => self.step(at),
            Event::Arrive(id, request, sent) => {
                let answer = self.engine.ask_at(self.clock(), &request);
                if let Some(way) = self.way() {
                    self.after(way, at, Event::Answer(id, request, sent, answer));
                }
            }
            Event::Answer(id, request, sent, answer) => {
                if self.processes[at]
                    .waits_for
                    .take_if(|waits| *waits == id)
                    .is_some()
                {
                    self.processes[at]
                        .machine
                        .handle_answer(&request, sent, clock, answer);
                    self.step(at);
                }
            }
            Event::Act => {
                if let Some(token) = self.processes[at].machine.view().acts(clock) {
                    self.act(at, token);
                }
                let pause = self.random.between(100, 900) as u64;
                self.after(pause, at, Event::Act);
            }
            Event::Frame { token } => {
                let now = self.now;
                let process = &mut self.processes[at];
                if token >= process.taken {
                    process.taken_at = now;
                    self.take_frame(at, token);
                }
            }
            Event::Pause(length) => self.processes[at].paused = self.now + length,
            Event::Crash(length) => {
                let process = &mut self.processes[at];
                process.incarnation += 1;
                process.machine = machine(at, process.incarnation);
                (process.waits_for, process.taken) = (None, 0);
                process.paused = 0;
                self.after(length, at, Event::Wake);
                self.after(length, at, Event::Act);
            }
            Event::Away(length) => {
                self.engine.fail(Some(EngineError::Away("drawn".to_owned())));
                self.put(self.now + length, at, u64::MAX, Event::Back);
            }
            Event::Back => self.engine.fail(None),
            Event::Revoke(reading, length) => {
                self.engine.revoke(if reading { reads } else { writes });
                self.put(self.now + length, at, u64::MAX, Event::Back);
            }
            Event::Forget(age) => {
                self.engine.forget(self.clock(), Duration::from_secs(age));
                self.blurred = self.now + BLURRED;
            }
            Event::Lose => {
                self.engine.lose();
                self.blurred = self.now + BLURRED;
            }
        }
    }

    fn take_frame(&mut self, at: usize, token: u64) {
        let process = &mut self.processes[at];
        assert!(
            token >= process.taken,
            "{at} takes {token} after {}",
            process.taken
        );
        process.taken = token;
        process.machine.saw(token);
    }

    fn act(&mut self, at: usize, token: u64) {
        let holder = (at, self.processes[at].incarnation);
        let before = self.holders.insert(token, holder);
        self.terms += usize::from(before.is_none());
        assert!(
            before.is_none_or(|before| before == holder),
            "{before:?} and {holder:?} act under {token}"
        );
        for other in 0..self.processes.len() {
            // A frame may wait for a long time in a queue, or because its sender was paused after it had read
            // the clock.
            let most = self.random.pick(&[10, 100, 8000]);
            let delay = self.random.below(most) as u64;
            self.after(delay, other, Event::Frame { token });
        }
    }

    fn step(&mut self, at: usize) {
        let clock = self.clock_of(at);
        let process = &mut self.processes[at];
        if process.waits_for.is_some() {
            return;
        }
        match process.machine.next(clock) {
            Next::Ask(request) => {
                let id = self.made;
                process.waits_for = Some(id);
                if let Some(way) = self.way() {
                    self.after(way, at, Event::Arrive(id, request.clone(), clock));
                }
                let away = Err(EngineError::Away("no answer".to_owned()));
                self.after(1000, at, Event::Answer(id, request, clock, away));
            }
            Next::At(time) => {
                let wait = time.saturating_duration_since(clock) * 1000 / process.rate;
                self.after(u64::try_from(wait.as_millis()).unwrap() + 1, at, Event::Wake);
            }
            Next::Left => {}
        }
    }

    fn acting(&self) -> Vec<usize> {
        let acts = |at: &usize| {
            self.processes[*at]
                .machine
                .view()
                .acts(self.clock_of(*at))
                .is_some()
        };
        (0..self.processes.len()).filter(acts).collect()
    }

    fn check(&self) {
        let acting = self.acting();
        let is_blurred = self.now < self.blurred;
        assert!(acting.len() <= 1 || is_blurred, "{acting:?} act at {}", self.now);
    }

    fn check_quiet(&self) {
        assert_eq!(self.acting().len(), 1, "exactly one process leads");
        let first = self.processes[0].machine.view();
        assert_eq!(first.members.len(), self.processes.len(), "{:?}", first.members);
        for process in &self.processes {
            let view = process.machine.view();
            assert_eq!((&view.members, view.leader), (&first.members, first.leader));
            assert!(view.double.is_none());
            assert!(
                process.taken_at > QUIET,
                "no frame was taken since {}",
                process.taken_at
            );
            assert_eq!(Some(process.taken), first.leader.map(|leader| leader.token));
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn at_most_one_server_leads_under_all_faults() {
    let seeds = match variable("SSNTP_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("SSNTP_SEEDS").unwrap_or(1000),
    };
    let is_told = seeds.end - seeds.start == 1;
    let mut terms = 0;
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let mut world = World::new(seed, is_told);
        let run = guard(|| world.run());
        assert!(run.is_ok(), "SSNTP_SEED={seed} replays it");
        terms += world.terms;
    }
    println!("{count} seeds, {terms} terms of leaders");
    // Otherwise the faults would have no effect.
    assert!(count == 1 || terms as u64 > count);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "any time will do to begin with")]
fn a_leader_stays_a_member_however_long_its_calls_take_and_while_documents_are_written() {
    let calls = [20, 200, 499, 500, 600, 800, 999];
    for (millis, is_written) in calls
        .into_iter()
        .flat_map(|millis| [(millis, false), (millis, true)])
    {
        let (engine, mut machine, begin) = (MemoryEngine::new(), machine(0, 0), Instant::now());
        let (half, mut now) = (Duration::from_millis(millis) / 2, begin);
        while now < begin + Duration::from_secs(120) {
            match machine.next(now) {
                Next::Ask(request) => {
                    let sent = now;
                    let answer = engine.ask_at(now + half, &request);
                    now += 2 * half;
                    machine.handle_answer(&request, sent, now, answer);
                }
                Next::At(at) => now = at,
                Next::Left => panic!("it has left"),
            }
            if now > begin + Duration::from_secs(20) {
                if is_written {
                    machine.reread();
                }
                let view = machine.view();
                assert!(view.acts(now).is_some(), "with calls of {millis} ms");
                assert_eq!(view.members.len(), 1, "with calls of {millis} ms");
            }
        }
    }
}

/// Otherwise nobody would lead while the lease of the former term is kept alive.
#[test]
#[expect(clippy::disallowed_methods, reason = "any time will do to begin with")]
fn a_leader_whose_key_somebody_has_deleted_leads_again() {
    let (engine, mut machine, begin) = (MemoryEngine::new(), machine(0, 0), Instant::now());
    let (mut now, mut is_deleted, mut asks_again) = (begin, false, false);
    while !asks_again {
        assert!(now < begin + Duration::from_secs(60), "{:?}", machine.view());
        match machine.next(now) {
            Next::Ask(request) => {
                asks_again = is_deleted && writes(&request);
                let mut answer = engine.ask_at(now, &request);
                if let Ok(Answer::Kept(kept)) = &mut answer
                    && machine.view().acts(now).is_some()
                {
                    is_deleted |= kept.entries.remove("leader").is_some();
                }
                machine.handle_answer(&request, now, now, answer);
                assert!(!is_deleted || machine.view().acts(now).is_none());
            }
            Next::At(at) => now = at,
            Next::Left => panic!("it has left"),
        }
    }
}

/// Otherwise the two would replace each other's key for ever.
#[test]
#[expect(clippy::disallowed_methods, reason = "any time will do to begin with")]
fn a_process_leaves_the_key_of_a_member_to_another_process_with_its_uuid() {
    let (engine, mut machine, mut now) = (MemoryEngine::new(), machine(0, 0), Instant::now());
    let mut run = |machine: &mut Machine, seconds: u64| {
        let end = now + Duration::from_secs(seconds);
        let mut doubles = Vec::new();
        while now < end {
            match machine.next(now) {
                Next::Ask(request) => {
                    let answer = engine.ask_at(now, &request);
                    machine.handle_answer(&request, now, now, answer);
                }
                Next::At(at) => now = at,
                Next::Left => panic!("it has left"),
            }
            doubles.push(machine.view().double.as_ref().map(|other| other.incarnation));
        }
        (doubles, now)
    };
    let (before, at) = run(&mut machine, 10);
    assert!(before.iter().all(Option::is_none));
    let Member { uuid, .. } = machine.view().members[0];
    let other = Member {
        incarnation: 1,
        ..machine.view().members[0].clone()
    };
    let put = Request::Put {
        key: format!("members/{uuid}"),
        value: serde_json::to_vec(&other).unwrap(),
        lease: None,
        when: When::Always,
    };
    engine.ask_at(at, &put).unwrap();
    let (after, _) = run(&mut machine, 20);
    let seen = after.iter().position(Option::is_some).unwrap();
    assert!(after[seen..].iter().all(|double| *double == Some(1)), "{after:?}");
    assert_eq!(machine.view().members, [other]);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "any time will do to begin with")]
fn a_process_that_has_resigned_stays_a_member_and_leads_no_more() {
    let (engine, mut machine, begin) = (MemoryEngine::new(), machine(0, 0), Instant::now());
    let (mut now, mut resigned) = (begin, None);
    while now < begin + Duration::from_secs(60) {
        if resigned.is_none() && machine.view().acts(now).is_some() {
            machine.resign();
            resigned = Some(now);
        }
        match machine.next(now) {
            Next::Ask(request) => {
                let answer = engine.ask_at(now, &request);
                machine.handle_answer(&request, now, now, answer);
            }
            Next::At(at) => now = at,
            Next::Left => panic!("it has left"),
        }
        assert!(resigned.is_none() || machine.view().acts(now).is_none());
    }
    assert!(resigned.is_some() && machine.is_member());
    assert_eq!((machine.view().members.len(), machine.view().leader), (1, None));
}
