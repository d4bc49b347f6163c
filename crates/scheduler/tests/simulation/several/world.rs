//! One world: the values drawn from the seed, the loop that steps the machines, and the faults.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use super::super::application::operands;
use super::super::network::Stream;
use super::super::threads::{Fails, Newcomer, Reader, Step, View, Writer};
use super::client::{Client, MAX_PAYLOAD, Stage};
use super::faults::Event;
use super::log::{SharedLog, Start, client_uuid, server_uuid};
use super::server::{Dialling, Server};
use ssntp::Role;
use ssntp::pki::{Authority, AuthorityRequest, CertificateInfo, CertificateRequest, Identity, Trust};
use ssntp::server::{Federation, ServerConfig};
use ssntp::simulation::Trial;
use ssntp::simulation::{Attempt, Entry, Environment};
use ssntp_engine::{EngineError, Next};
use ssntp_test_support::memory_engine::MemoryEngine;
use ssntp_test_support::random::Random;
use ssntp_transport::dispatch::Settings;
use ssntp_transport::{Budget, BufferPool, Limits, PeerAddress};

/// The number of rounds after which a world counts as one that never ends.
const MOST_ROUNDS: u64 = 200_000;
/// The steps of virtual time. Events that are due in the same step are handled in one round.
const GRAIN: Duration = Duration::from_millis(4);
/// The time limit of a dialler for a server that cannot be reached.
const UNREACHABLE: Duration = Duration::from_secs(5);
/// The maximum number of bytes of one write.
pub(super) const PIECES: &[usize] = &[1000, 100_000];
/// The room of a client's connection, and of a link.
const ROOMS: [usize; 2] = [64 << 10, 4 << 20];

/// The certificates and environments that all worlds share, because they take time to make.
pub(super) struct Made {
    identity: Identity,
    trust: Trust,
    server: CertificateInfo,
    /// Makes the two certificates of each client when they are needed.
    authority: Authority,
    clients: HashMap<(usize, usize), Identity>,
    environments: HashMap<Start, Arc<Environment>>,
}

impl Made {
    fn new() -> Self {
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        let server = authority
            .issue(&CertificateRequest::new(Role::SCHEDULER))
            .unwrap();
        Self {
            identity: server.identity().clone(),
            trust: authority.trust().clone(),
            server: server.identity().info().clone(),
            authority,
            clients: HashMap::new(),
            environments: HashMap::new(),
        }
    }

    /// The identity of a client after this number of renewals, and its trust.
    pub(super) fn client(&mut self, at: usize, renewals: usize) -> (Identity, Trust) {
        let made = self.clients.entry((at, renewals % 2));
        let request = CertificateRequest::new(Role::AGENT | Role::CONTROLLER).uuid(client_uuid(at));
        let identity = made.or_insert_with(|| self.authority.issue(&request).unwrap().identity());
        (identity.clone(), self.trust.clone())
    }

    pub(super) fn config(&self, start: Start) -> ServerConfig {
        ServerConfig::new(self.identity.clone(), self.trust.clone())
            .uuid(server_uuid(start.0))
            .role(Role::SCHEDULER)
            .max_payload(MAX_PAYLOAD)
            .operands(operands())
            .outlive_certificates(true)
            .federate(Federation::new())
    }

    /// The environment of a start of a server. All worlds of a thread use it one after the other.
    pub(super) fn environment(&mut self, start: Start) -> Arc<Environment> {
        let config = self.config(start);
        let made = self.environments.entry(start);
        Arc::clone(made.or_insert_with(|| Environment::new(&config).unwrap()))
    }
}

thread_local! {
    static MADE: RefCell<Made> = RefCell::new(Made::new());
}

pub(super) fn made<T>(with: impl FnOnce(&mut Made) -> T) -> T {
    MADE.with_borrow_mut(with)
}

/// One end of a connection at a server.
struct End {
    start: Start,
    newcomer: Newcomer,
    reader: Option<Reader>,
    writer: Option<Writer>,
}

impl End {
    fn is_over(&self) -> bool {
        self.newcomer.is_over() && self.reader.as_ref().is_none_or(Reader::is_over)
    }
}

pub(super) struct Connection {
    pub(super) streams: [Stream; 2],
    ends: [Option<End>; 2],
    /// The two servers of a link. For the connection of a client both are the same.
    pub(super) between: [usize; 2],
}

pub(in super::super) struct World {
    pub(super) random: Random,
    pub(super) trace: bool,
    pub(super) begin: Instant,
    /// The time of day at which the world began, a day after the begin of each certificate.
    wall: SystemTime,
    pub(super) now: Instant,
    pub(super) agenda: BTreeMap<(Instant, u64), Event>,
    pub(super) made: u64,
    /// `None` while the server is down.
    pub(super) servers: Vec<Option<Server>>,
    pub(super) starts: Vec<u64>,
    pub(super) rates: Vec<u32>,
    pub(super) paused: Vec<Option<Instant>>,
    pub(super) parted: Vec<(usize, usize)>,
    pub(super) connections: BTreeMap<usize, Connection>,
    pub(super) clients: Vec<Client>,
    pub(super) engine: MemoryEngine,
    pub(super) has_engine: bool,
    pub(super) log: SharedLog,
    pub(super) settings: Settings,
    pub(super) delay: Duration,
    pub(super) lost: usize,
    /// The longest time of a message to or from the engine, in milliseconds.
    engine_delay: usize,
    pub(super) quiet_at: Instant,
    pub(super) is_quiet: bool,
    pub(super) is_ending: bool,
    pub(super) is_over: bool,
    pub(super) blurred: Instant,
    pool: BufferPool,
    pub(super) rounds: u64,
}

impl World {
    pub(in super::super) fn new(seed: u64, trace: bool) -> Self {
        let mut random = Random::new(seed ^ 0xfeed_0000_0000);
        #[expect(
            clippy::disallowed_methods,
            reason = "the origin of virtual time; only differences count"
        )]
        let begin = Instant::now();
        let millis = |n| Duration::from_millis(n);
        // Worlds with an engine last longer than its leases.
        let has_engine = random.chance(15);
        let count = random.between(2, 4);
        let settings = Settings {
            queue: Limits {
                frames: random.pick(&[1000, 1 << 20]),
                bytes: random.pick(&[64 << 10, 256 << 10, 1 << 20]),
            },
            budget: Budget::new(256 << 20),
            received: Budget::new(256 << 20),
            patience: millis(random.pick(&[20, 1000, 3000])),
            parting: millis(2000),
            grace: millis(1000),
        };
        let log: SharedLog = Arc::new(Mutex::default());
        let (faults, longest, settles): (u64, u64, u64) = if has_engine {
            (12_000, 12_000, 18_000)
        } else {
            (2000, 2000, 9000)
        };
        let quiet_at = begin + millis(faults + longest + settles);
        let rates: Vec<_> = (0..count)
            .map(|_| u32::try_from(random.between(960, 1040)).unwrap())
            .collect();
        let clients = random.between(3, 6);
        let mut clients: Vec<_> = (0..clients)
            .map(|at| Client::new(at, &mut random, begin))
            .collect();
        clients[0].is_stuck = random.chance(50);
        let mut world = Self {
            trace,
            begin,
            wall: made(|made| made.server.not_before) + Duration::from_secs(86_400),
            now: begin,
            agenda: BTreeMap::new(),
            made: 0,
            servers: Vec::new(),
            starts: vec![0; count],
            rates,
            paused: vec![None; count],
            parted: Vec::new(),
            connections: BTreeMap::new(),
            clients,
            engine: MemoryEngine::new(),
            has_engine,
            log,
            settings,
            delay: millis(random.pick(&[0, 1, 20, 150])),
            lost: random.pick(&[0, 0, 5]),
            engine_delay: random.pick(&[5, 50, 400, 950]),
            quiet_at,
            is_quiet: false,
            is_ending: false,
            is_over: false,
            blurred: begin,
            pool: BufferPool::new(),
            rounds: 0,
            random,
        };
        for at in 0..count {
            let server = world.server(at);
            world.servers.push(Some(server));
        }
        world.draw_faults(faults, longest);
        if has_engine {
            let at = Duration::from_millis(world.random.between(4000, 11_000) as u64);
            world.plan(begin + at, Event::Strand);
        }
        world.plan(quiet_at, Event::Quiet);
        world
    }

    pub(super) fn server(&mut self, at: usize) -> Server {
        let start = (at, self.starts[at]);
        let settings = (self.settings.clone(), self.rates[at], self.begin);
        Server::new(start, self.starts.len(), settings, &self.log, self.now)
    }

    pub(super) fn plan(&mut self, at: Instant, event: Event) {
        self.made += 1;
        self.agenda.insert((at, self.made), event);
    }

    pub(super) fn after(&mut self, delay: Duration, event: Event) {
        self.plan(self.now + delay, event);
    }

    pub(super) fn trace_step(&self, text: impl FnOnce() -> String) {
        if self.trace {
            let at = self.now.duration_since(self.begin);
            eprintln!("{:>10.3} ms  {}", at.as_secs_f64() * 1e3, text());
        }
    }

    /// Lets the world run to its end. Returns the number of rounds.
    pub(in super::super) fn run(&mut self) -> Result<(u64, u64), String> {
        self.trace_step(|| {
            format!(
                "{} servers, {} clients, engine: {}, delay {:?}, {:?}",
                self.starts.len(),
                self.clients.len(),
                self.has_engine,
                self.delay,
                self.settings
            )
        });
        while !self.is_over {
            self.rounds += 1;
            if self.rounds > MOST_ROUNDS {
                return Err("it never ends".into());
            }
            self.take_due()?;
            if self.is_over {
                break;
            }
            let (moved, wake) = self.round()?;
            if let Some(fault) = self.log.lock().unwrap().faults.pop() {
                return Err(fault);
            }
            self.check_leaders()?;
            if moved {
                self.now += Duration::from_micros(self.random.below(300) as u64);
                continue;
            }
            self.check_books()?;
            let next = self.agenda.first_key_value().map(|((at, _), _)| *at);
            match [wake, next].into_iter().flatten().min() {
                Some(at) => self.now = self.now.max(at) + GRAIN,
                None => return Err("standstill".into()),
            }
        }
        self.check_the_end()?;
        let log = self.log.lock().unwrap();
        Ok((self.rounds, log.arrived))
    }

    /// The numbers of leaders, of sessions that were replaced after a renewal and because a
    /// server drained, and questions that were answered.
    pub(in super::super) fn happened(&self) -> [u64; 4] {
        let terms = self.log.lock().unwrap().terms.len() as u64;
        self.clients
            .iter()
            .fold([terms, 0, 0, 0], |[terms, renewed, drained, answered], client| {
                let [by_renewal, by_draining] = client.replaced;
                [
                    terms,
                    renewed + by_renewal,
                    drained + by_draining,
                    answered + client.answered,
                ]
            })
    }

    pub(super) fn is_up(&self, at: usize) -> bool {
        self.servers[at].is_some() && self.paused[at].is_none()
    }

    pub(super) fn is_parted(&self, one: usize, other: usize) -> bool {
        self.parted.contains(&(one.min(other), one.max(other)))
    }

    /// Steps each machine that can move. Returns true if one has moved, and the time at which the next
    /// one can.
    fn round(&mut self) -> Result<(bool, Option<Instant>), String> {
        let (mut moved, mut wake) = (false, None);
        let mut note = |step: Step, now: Instant| match step {
            Step::Moved => moved = true,
            Step::Waits(Some(at)) if at > now => wake = [wake, Some(at)].into_iter().flatten().min(),
            // These events are due once the time advances.
            Step::Waits(Some(_)) => wake = Some(now),
            _ => {}
        };
        let first = self.random.below(self.servers.len());
        for offset in 0..self.servers.len() {
            let at = (first + offset) % self.servers.len();
            if !self.is_up(at) {
                continue;
            }
            let now = self.now;
            if let Some(server) = &mut self.servers[at] {
                for _ in 0..self.random.between(1, 8) {
                    let step = server.dispatch(now, &mut self.random);
                    note(step, now);
                    if step != Step::Moved {
                        break;
                    }
                }
            }
            note(self.dial(at), now);
            if self.has_engine && !self.is_ending {
                note(self.ask(at), now);
                note(self.act(at), now);
            }
        }
        let ids: Vec<_> = self.connections.keys().copied().collect();
        for id in ids {
            note(self.connection(id), self.now);
        }
        let clients = self.clients.len();
        for at in 0..clients {
            let now = self.now;
            match &self.clients[at].stage {
                Stage::Away(until) if now < *until => {
                    note(Step::Waits(Some(*until)), now);
                    continue;
                }
                Stage::Away(_) => self.clients[at].start(self.starts.len()),
                Stage::Over if !self.is_ending => {
                    self.clients[at].check_books()?;
                    self.clients[at].away(now + Duration::from_millis(100));
                }
                Stage::Dials(trial) => {
                    let trial = trial.clone();
                    self.connect(at, &trial);
                }
                _ => {}
            }
            // A sender may wait for a stuck receiver for the time of the patience, and so may a probe.
            let is_over = now + self.settings.patience + Duration::from_secs(1) > self.quiet_at;
            let wall = self.wall + now.duration_since(self.begin);
            let step = self.clients[at].step(
                (clients, self.starts.len()),
                is_over,
                now,
                wall,
                &mut self.random,
                &self.log,
            );
            note(step, now);
        }
        Ok((moved, wake))
    }

    /// A client dials a server. Each client begins with another server.
    fn connect(&mut self, client: usize, trial: &Trial) {
        let server = (trial.server + client) % self.servers.len();
        let up = match &self.servers[server] {
            Some(up) if self.paused[server].is_none() => up,
            Some(_) => return self.clients[client].fails(self.now + Duration::from_millis(300)),
            None => return self.clients[client].fails(self.now),
        };
        let (certificate, own) = (trial.identity().info().clone(), made(|made| made.server.clone()));
        let chain = vec![certificate.der.clone()];
        let entry = Entry::client(&up.environment, certificate, chain, PeerAddress::Memory);
        let streams = Stream::new([ROOMS[0]; 2]);
        let (start, environment) = (up.start, Arc::clone(&up.environment));
        self.clients[client].shakes(trial, streams[0].clone(), own, self.now);
        let end = self.end(&streams[1], start, &environment, entry);
        self.insert(streams, [None, Some(end)], [server; 2]);
        self.trace_step(|| format!("client {client} connects to server {start:?}"));
    }

    fn end(&self, stream: &Stream, start: Start, environment: &Arc<Environment>, entry: Entry) -> End {
        let newcomer = Newcomer::new(stream.clone(), environment, entry, Fails::Not, 0, self.now);
        End {
            start,
            newcomer,
            reader: None,
            writer: None,
        }
    }

    fn insert(&mut self, streams: [Stream; 2], ends: [Option<End>; 2], between: [usize; 2]) -> usize {
        streams[0].delay(self.delay);
        streams[0].advance(self.now);
        self.made += 1;
        let connection = Connection {
            streams,
            ends,
            between,
        };
        self.connections
            .insert(usize::try_from(self.made).unwrap(), connection);
        usize::try_from(self.made).unwrap()
    }

    /// A server dials the servers to which it has no link.
    fn dial(&mut self, at: usize) -> Step {
        let mut wake = None;
        let targets: Vec<usize> = match &self.servers[at] {
            Some(server) if !server.stopping => server.dials.keys().copied().collect(),
            _ => return Step::Over,
        };
        for target in targets {
            let now = self.now;
            let share = self.random.below(1000) as f64 / 1000.0;
            let Some(server) = &mut self.servers[at] else {
                continue;
            };
            let clock = server.clock(now);
            let Some((redial, dialling)) = server.dials.get_mut(&target) else {
                continue;
            };
            match *dialling {
                Dialling::Fails(until) if now < until => {
                    wake = [wake, Some(until)].into_iter().flatten().min();
                }
                Dialling::Fails(_) => {
                    redial.attempted(None, None, clock, share);
                    *dialling = Dialling::Idle;
                    return Step::Moved;
                }
                Dialling::Runs(id) => {
                    let end = self.connections.get(&id).and_then(|one| one.ends[0].as_ref());
                    let newcomer = end.map(|end| &end.newcomer);
                    if newcomer.is_none_or(Newcomer::is_over) {
                        let (peer, refusal) = (
                            newcomer.and_then(Newcomer::peer),
                            newcomer.and_then(|one| one.turned.as_ref()),
                        );
                        redial.attempted(peer, refusal, clock, share);
                        *dialling = Dialling::Idle;
                        return Step::Moved;
                    }
                }
                Dialling::Idle => {
                    let core = server.runner.core();
                    match redial.next(clock, share, |uuid| core.link_to(uuid).is_some()) {
                        Attempt::Now => {
                            self.reach(at, target);
                            return Step::Moved;
                        }
                        Attempt::Wait(until) => {
                            let until = server.when(until);
                            wake = [wake, Some(until)].into_iter().flatten().min();
                        }
                        Attempt::Linked(_) => {}
                    }
                }
            }
        }
        Step::Waits(wake)
    }

    /// A server dials another server.
    fn reach(&mut self, at: usize, target: usize) {
        let now = self.now;
        let is_parted = self.is_parted(at, target);
        let (peer, certificate) = (
            self.servers[target]
                .as_ref()
                .map(|peer| (peer.start, Arc::clone(&peer.environment))),
            made(|made| made.server.clone()),
        );
        let chain = vec![certificate.der.clone()];
        let Some(server) = &mut self.servers[at] else {
            return;
        };
        let dialling = match peer {
            Some((start, environment)) if !is_parted => {
                let hello = server.runner.core().hello();
                let own = (server.start, Arc::clone(&server.environment));
                let streams = Stream::new([ROOMS[1]; 2]);
                let dials = Entry::server(
                    &own.1,
                    certificate.clone(),
                    chain.clone(),
                    PeerAddress::Memory,
                    Some(hello),
                );
                let takes = Entry::server(&environment, certificate, chain, PeerAddress::Memory, None);
                let ends = [
                    Some(self.end(&streams[0], own.0, &own.1, dials)),
                    Some(self.end(&streams[1], start, &environment, takes)),
                ];
                Dialling::Runs(self.insert(streams, ends, [at, target]))
            }
            Some(_) => Dialling::Fails(now + UNREACHABLE),
            None => Dialling::Fails(now),
        };
        if let Some(server) = &mut self.servers[at]
            && let Some((_, place)) = server.dials.get_mut(&target)
        {
            *place = dialling;
        }
    }

    /// Steps the ends of a connection.
    fn connection(&mut self, id: usize) -> Step {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else {
            return Step::Over;
        };
        let mut moved = false;
        let mut wake = connection.streams[0].advance(now);
        for side in 0..2 {
            let Some(end) = &mut connection.ends[side] else {
                continue;
            };
            let at = end.start.0;
            if self.paused[at].is_some() {
                continue;
            }
            let server = self.servers[at]
                .as_ref()
                .filter(|server| server.start == end.start);
            let Some(server) = server else {
                // The server has crashed.
                connection.ends[side] = None;
                // Bytes in the buffers of its host may still arrive.
                connection.streams[side].cut(self.random.chance(70));
                moved = true;
                continue;
            };
            let watch = &server.watch;
            let full = || watch.is_full();
            let mut view = View {
                now,
                random: &mut self.random,
                events: &server.events,
                full: &full,
                write_timeout: Duration::from_secs(30),
                pool: &self.pool,
                pieces: PIECES,
                wall: server.wall + now.duration_since(self.begin),
            };
            for which in 0..3 {
                for _ in 0..8 {
                    let step = match (which, &mut end.reader, &mut end.writer) {
                        (0, None, _) => {
                            let (step, threads) = end.newcomer.step(server.stopping, &mut view);
                            if let Some((reader, writer)) = threads {
                                (end.reader, end.writer) = (Some(reader), Some(writer));
                            }
                            step
                        }
                        (0, ..) => end.newcomer.step(server.stopping, &mut view).0,
                        (1, Some(reader), Some(writer)) => reader.step(writer, &mut view),
                        (2, _, Some(writer)) => writer.step(&mut view),
                        _ => Step::Over,
                    };
                    match step {
                        Step::Moved => moved = true,
                        Step::Waits(until) => {
                            wake = [wake, until].into_iter().flatten().min();
                            break;
                        }
                        Step::Over => break,
                    }
                }
            }
        }
        let is_over = connection.ends.iter().flatten().all(End::is_over);
        if is_over && connection.between[0] == connection.between[1]
            || connection.ends.iter().all(Option::is_none)
        {
            connection.streams.iter().for_each(Stream::end);
            self.connections.remove(&id);
        } else if is_over {
            // The dialling server must see the end of the connection first.
            let is_looked_at = |end: &Option<End>| {
                end.as_ref().is_none_or(|end| {
                    let server = self.servers[end.start.0].as_ref();
                    let other = connection.between[1];
                    server.is_none_or(|server| {
                        server
                            .dials
                            .get(&other)
                            .is_none_or(|(_, dialling)| *dialling != Dialling::Runs(id))
                    })
                })
            };
            if is_looked_at(&connection.ends[0]) {
                self.connections.remove(&id);
            }
        }
        if moved { Step::Moved } else { Step::Waits(wake) }
    }

    /// The machine of a server sends a request to the engine.
    fn ask(&mut self, at: usize) -> Step {
        let now = self.now;
        let Some(server) = &mut self.servers[at] else {
            return Step::Over;
        };
        if server.waits_for.is_some() {
            return Step::Waits(None);
        }
        let clock = server.clock(now);
        match server.machine.next(clock) {
            Next::Ask(request) => {
                let (id, start) = (self.made, server.start);
                server.waits_for = Some(id);
                if let Some(way) = self.way() {
                    self.after(way, Event::Arrive(start, id, request.clone(), clock));
                }
                let away = Err(EngineError::Away("no answer".to_owned()));
                self.after(
                    Duration::from_secs(1),
                    Event::Answer(start, id, request, clock, away),
                );
                Step::Moved
            }
            Next::At(time) => Step::Waits(Some(server.when(time))),
            Next::Left => Step::Over,
        }
    }

    /// The time of a message to or from the engine; `None` if it is lost.
    pub(super) fn way(&mut self) -> Option<Duration> {
        let is_calm = self.now + Duration::from_secs(15) > self.quiet_at;
        let most = if is_calm { 30 } else { self.engine_delay };
        let is_lost = !is_calm && self.random.chance(self.lost);
        (!is_lost).then(|| Duration::from_millis(self.random.below(most) as u64))
    }

    fn act(&mut self, at: usize) -> Step {
        let now = self.now;
        let pause = Duration::from_millis(self.random.between(100, 900) as u64);
        let Some(server) = &mut self.servers[at] else {
            return Step::Over;
        };
        if let Some(next) = server.next_act.filter(|next| now < *next) {
            return Step::Waits(Some(next));
        }
        server.next_act = Some(now + pause);
        let (_, token) = server.links(now);
        server.machine.saw(token);
        server.act(now, &self.log);
        Step::Moved
    }

    pub(super) fn is_blurred(&self) -> bool {
        self.now < self.blurred
    }

    /// Drops all connections and servers, so that only the budgets remain to be checked.
    pub(super) fn let_go(&mut self) -> Settings {
        self.connections.clear();
        self.servers.clear();
        self.settings.clone()
    }
}
