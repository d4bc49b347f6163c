//! One world: the values drawn from the seed, and the loop that steps the machines.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use super::application::{Application, Router, SharedLog, filter, rules};
use super::certificates::{MAX_PAYLOAD, certificates};
use super::network::Stream;
use super::peers::{Pace, Peer, Plan};
use super::plans::plans;
use super::slots::Acceptance;
use super::threads::{
    Core, Fails, Newcomer, PIECES, Reader, SimEvent, SimEvents, SimThreads, Step, View, Writer,
};
use ssntp::Role;
use ssntp::server::{ServerConfig, SessionId, SlowConsumer};
use ssntp::simulation::{Entry, RequestKind};
use ssntp_scheduler::{Scheduler, SchedulerConfig};
use ssntp_test_support::random::Random;
use ssntp_transport::dispatch::events::{self, Watch};
use ssntp_transport::dispatch::{Core as _, DispatchEvent, EVENTS, Queue, Runner, Settings};
use ssntp_transport::outbox::{Outbox, interleaving};
use ssntp_transport::slots::{PATIENCE, Slots};
use ssntp_transport::{Budget, BufferPool, Limits, PeerAddress};

/// A world that has not ended after this number of steps never ends.
const MOST_STEPS: u64 = 200_000;
/// The maximum number of reads of ledgers by the dispatcher in one step.
const MOST_LOOKS: u64 = 20_000;
/// After this time without events no frame is on its way: senders wait less for a slow receiver, and
/// agents have reported every change.
const REST: Duration = Duration::from_secs(2);
/// No timer of a server is longer than this.
const FAR: Duration = Duration::from_secs(86_400);

/// The time of day at which each world begins.
const MORNING: SystemTime = SystemTime::UNIX_EPOCH;

/// One connection, both of its ends.
pub(super) struct Connection {
    pub(super) peer: Peer,
    pub(super) stream: Stream,
    pub(super) fails: Fails,
    pub(super) newcomer: Option<Newcomer>,
    pub(super) reader: Option<Reader>,
    /// The figures of its ledger at its end: sent, dropped, lost.
    pub(super) outbox: Option<Outbox>,
    /// True if its pipes are wide enough for the expected pace.
    pub(super) wide: bool,
    /// Its received frames, its handled input, and the time since when both are the same.
    pub(super) progress: [(u64, Option<Instant>); 2],
}

impl Connection {
    /// True if its handshake was cut to make room for another newcomer.
    pub(super) fn was_cut(&self) -> bool {
        self.newcomer.as_ref().is_some_and(Newcomer::was_cut)
    }

    /// True if it was admitted, and one of its threads still runs.
    pub(super) fn has_a_place(&self) -> bool {
        let newcomer = self.newcomer.as_ref();
        let is_reading = self.reader.as_ref().is_some_and(|reader| !reader.is_over());
        newcomer.is_some_and(|newcomer| newcomer.admitted.is_some() && (is_reading || !newcomer.is_over()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Runs,
    Stops,
    Joins,
    Exits,
    Waits,
}

pub(super) struct World {
    random: Random,
    begin: Instant,
    pub(super) now: Instant,
    clock: Rc<Cell<Instant>>,
    pub(super) runner: Runner<Core, SimThreads>,
    events: SimEvents,
    queue: Queue<SimEvent>,
    watch: Rc<Watch<SimEvent>>,
    pub(super) log: SharedLog,
    pub(super) connections: Vec<Connection>,
    writers: Rc<RefCell<Vec<Option<Writer>>>>,
    looks: Rc<Cell<u64>>,
    /// The slots for handshakes.
    acceptance: Rc<RefCell<Acceptance>>,
    owner: Owner,
    stop_at: Option<u64>,
    stopped: Option<Instant>,
    pub(super) settings: Settings,
    budget: u64,
    pub(super) policy: SlowConsumer,
    pub(super) scheduler: bool,
    /// The longest payload of a peer.
    pub(super) longest: u64,
    write_timeout: Duration,
    pool: BufferPool,
    /// The number of steps in a hundred in which the dispatcher goes first.
    eager: usize,
    steps: u64,
    pub(super) most_used: u64,
    /// The maximum number of connections that a bound certificate had at a time.
    pub(super) most_places: usize,
    trace: bool,
}

impl World {
    pub(super) fn new(seed: u64, trace: bool) -> Self {
        let mut random = Random::new(seed);
        let made = certificates();
        #[expect(
            clippy::disallowed_methods,
            reason = "the origin of virtual time; only differences count"
        )]
        let begin = Instant::now();
        let log: SharedLog = Arc::new(Mutex::default());
        let millis = |n| Duration::from_millis(n);
        let scheduler = random.chance(20);
        let policy = match random.below(3) {
            _ if scheduler => SlowConsumer::Disconnect,
            0 => SlowConsumer::Disconnect,
            1 => SlowConsumer::DropNewest,
            _ => SlowConsumer::DropOldest,
        };
        // The longest payload. A scheduler accepts only shorter ones.
        let is_long = !scheduler && random.below(150) == 0;
        let budget = if is_long {
            64 << 20
        } else {
            random.pick(&[64 << 10, 256 << 10, 1 << 20, 64 << 20])
        };
        let settings = Settings {
            // Half of the smallest limit holds the frames that the application sends by itself.
            queue: Limits {
                frames: random.pick(&[16, 100, 1000, 1 << 20]),
                bytes: if is_long {
                    random.pick(&[1 << 20, 16 << 20])
                } else {
                    random.pick(&[4 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 1 << 20])
                },
            },
            budget: Budget::new(budget),
            received: Budget::new(budget),
            patience: millis(random.pick(&[5, 20, 100, 1000])),
            parting: millis(random.pick(&[200, 2000, 30_000])),
            grace: millis(random.pick(&[50, 1000])),
        };
        let write_timeout = settings.parting;
        let config = ServerConfig::new(made.identity.clone(), made.trust.clone())
            .max_payload(MAX_PAYLOAD)
            .slow_consumer(policy)
            .operators(Role::CONTROLLER)
            // Some configurations do not fit into the narrow pipes, so CONNECTED waits to be read.
            .configuration(vec![b'#'; random.pick(&[0, 0, 0, 400, 5000])]);
        let ticks = random.pick(&[0, 0, 0, 0, 0, 0, 5, 5, 40]);
        let (config, application) = if scheduler {
            let scheduler = Scheduler::new(SchedulerConfig::new().held(5, 10_000, millis(100))).unwrap();
            let config = scheduler.serve_with(config);
            (config, Application::scheduler(Arc::clone(&log), scheduler))
        } else {
            let every = millis(random.pick(&[1, 10]));
            let router = Router {
                next: (ticks > 0).then(|| begin + every),
                every,
                ticks,
                number: 0,
                padding: random.below(100),
            };
            let config = config.rules(rules(&log)).filter(filter());
            (config, Application::router(Arc::clone(&log), router))
        };
        let max_sessions = random.between(3, 14);
        let (open, _) = crossbeam_channel::bounded(0);
        let core = Core::new(
            config,
            Arc::clone(&made.environment),
            max_sessions,
            Box::new(application),
            open,
            begin,
        )
        .unwrap();
        let (events, queue) = events::channel(random.pick(&[1, 2, 8, EVENTS]));
        let quiet = queue.watch();
        let runner = Runner::new(core, settings.clone(), move || quiet.is_empty());
        let watch = Rc::new(queue.watch());
        let mut plans = plans(&mut random, scheduler, is_long);
        // A world in sixteen has few slots and some silent peers. They have random numbers of
        // their own, so that the other worlds stay what they are.
        let slots = if seed % 16 == 11 {
            let mut random = Random::new(!seed);
            plans.iter_mut().for_each(|plan| plan.silent = random.chance(30));
            random.between(1, 3)
        } else {
            plans.len()
        };
        let is_unmarked = |plan: &Plan| plan.asks || plan.kicks || plan.expires.is_some();
        log.lock().unwrap().unmarked = plans.iter().any(is_unmarked);
        let longest = plans.iter().map(|plan| plan.longest).max().unwrap_or_default();
        let connections: Vec<_> = plans
            .into_iter()
            .map(|plan| connection(plan, &mut random))
            .collect();
        let writers = Rc::new(RefCell::new(connections.iter().map(|_| None).collect()));
        Self {
            begin,
            now: begin,
            clock: Rc::new(Cell::new(begin)),
            runner,
            events,
            queue,
            watch,
            log,
            connections,
            writers,
            looks: Rc::default(),
            acceptance: Rc::new(RefCell::new(Acceptance::new(Slots::new(slots, PATIENCE)))),
            owner: Owner::Runs,
            stop_at: (!is_long && random.chance(40)).then(|| random.below(3000) as u64),
            stopped: None,
            settings,
            budget,
            policy,
            scheduler,
            longest: longest as u64,
            write_timeout,
            pool: BufferPool::new(),
            eager: random.pick(&[0, 10, 50]),
            steps: 0,
            most_used: 0,
            most_places: 0,
            trace,
            random,
        }
    }

    fn trace_step(&self, text: impl FnOnce() -> String) {
        if self.trace {
            let at = self.now.duration_since(self.begin);
            eprintln!(
                "{:>8} {:>10.3} ms  {}",
                self.steps,
                at.as_secs_f64() * 1e3,
                text()
            );
        }
    }

    /// Lets the world run to its end.
    pub(super) fn run(&mut self) -> Result<u64, String> {
        self.trace_step(|| {
            format!(
                "{:?} {:?} scheduler: {}",
                self.settings, self.policy, self.scheduler
            )
        });
        for connection in &self.connections {
            self.trace_step(|| format!("{:?} {:?}", connection.peer.plan, connection.fails));
        }
        self.let_writers_interleave();
        let result = self.run_until_over();
        interleaving::set(None);
        result?;
        self.check_the_end()?;
        Ok(self.steps)
    }

    /// Calls `tell` for each kind of event that has happened.
    pub(super) fn report_events(&self, mut tell: impl FnMut(&'static str)) {
        let log = self.log.lock().unwrap();
        let ends = log
            .sessions
            .values()
            .filter_map(|session| session.disconnected.as_ref());
        ends.for_each(|reason| tell(reason.word()));
        log.launched.iter().for_each(|_| tell("an instance is launched"));
        if log.ended_by_themselves > 0 {
            tell("an instance ends by itself");
        }
        if log.known > 0 {
            tell("a controller sees what runs");
        }
        if self.most_places > 1 {
            tell("a bound certificate has two places");
        }
        if self.acceptance.borrow().cut > 0 {
            tell("a newcomer is cut to make room");
        }
        for connection in &self.connections {
            let (peer, admitted) = (&connection.peer, connection.peer.session.is_some());
            let happened = [
                (peer.answered > 0, "a question is answered"),
                (
                    admitted && peer.plan.pace == Pace::Deaf,
                    "CONNECTED is never read",
                ),
                (peer.longest > 4 << 20, "a frame of many MiB arrives"),
            ];
            happened
                .iter()
                .filter(|(has, _)| *has)
                .for_each(|(_, what)| tell(what));
        }
    }

    /// The number of frames that have arrived at peers.
    pub(super) fn arrived(&self) -> u64 {
        let log = self.log.lock().unwrap();
        log.sessions.values().map(|session| session.arrived).sum()
    }

    /// Between two reads of a ledger by the dispatcher any writer may write.
    fn let_writers_interleave(&mut self) {
        let (writers, looks, clock) = (
            Rc::clone(&self.writers),
            Rc::clone(&self.looks),
            Rc::clone(&self.clock),
        );
        let (events, watch) = (self.events.clone(), Rc::clone(&self.watch));
        let mut random = Random::new(self.random.next());
        let often = random.pick(&[0, 5, 30]);
        let (write_timeout, pool) = (self.write_timeout, self.pool.clone());
        interleaving::set(Some(Box::new(move || {
            looks.set(looks.get() + 1);
            assert!(looks.get() < MOST_LOOKS, "the dispatcher takes steps without end");
            while random.chance(often) {
                let mut writers = writers.borrow_mut();
                let at = random.below(writers.len());
                let full = || watch.is_full();
                let mut view = View {
                    now: clock.get(),
                    random: &mut random,
                    events: &events,
                    full: &full,
                    write_timeout,
                    pool: &pool,
                    pieces: PIECES,
                    wall: MORNING,
                };
                if let Some(writer) = &mut writers[at] {
                    writer.step(&mut view);
                }
            }
        })));
    }

    fn run_until_over(&mut self) -> Result<(), String> {
        // A dispatcher, an owner, and four for each connection.
        let processes = 2 + 4 * self.connections.len();
        while !(self.owner == Owner::Waits && self.runner.is_over()) {
            self.steps += 1;
            if self.steps > MOST_STEPS {
                return Err("it never ends".into());
            }
            self.now += Duration::from_micros(self.random.below(3) as u64);
            self.clock.set(self.now);
            let first = if self.random.chance(self.eager) {
                0
            } else {
                self.random.below(processes)
            };
            let mut wake: Option<Instant> = None;
            let mut moved = false;
            for offset in 0..processes {
                match self.step((first + offset) % processes)? {
                    Step::Moved => {
                        moved = true;
                        break;
                    }
                    Step::Waits(until) => wake = [wake, until].into_iter().flatten().min(),
                    Step::Over => {}
                }
            }
            self.check_each_step()?;
            if self.steps.is_multiple_of(32) || !moved {
                self.check_progress()?;
            }
            if moved {
                continue;
            }
            self.check_while_all_wait()?;
            match wake {
                Some(at) if at < self.now + FAR => {
                    if at > self.now + REST {
                        self.check_the_cluster()?;
                    }
                    self.now = self.now.max(at);
                }
                _ if self.owner == Owner::Runs => {
                    self.check_the_cluster()?;
                    self.trace_step(|| "nothing moves any more: the server is stopped".into());
                    self.owner = Owner::Stops;
                }
                _ => return Err(format!("standstill while it ends: the owner {:?}", self.owner)),
            }
        }
        Ok(())
    }

    fn step(&mut self, process: usize) -> Result<Step, String> {
        match process {
            0 => Ok(self.dispatch()),
            1 => Ok(self.own()),
            _ => Ok(self.step_connection((process - 2) / 4, (process - 2) % 4)),
        }
    }

    /// The body of the loop of `dispatch::run`.
    fn dispatch(&mut self) -> Step {
        if self.runner.is_over() {
            return Step::Over;
        }
        self.looks.set(0);
        let now = self.now;
        let time_of_day = MORNING + now.duration_since(self.begin);
        self.runner.core_mut().time_of_day(time_of_day);
        let due = self.runner.next_deadline();
        if self.runner.is_idle() {
            match self.queue.try_next() {
                Some((event, _)) => self.handle(event),
                None if due.is_some_and(|due| due <= now) => {}
                None => return Step::Waits(due),
            }
        }
        for _ in 0..self.random.below(EVENTS) {
            let Some((event, _)) = self.queue.try_next() else {
                break;
            };
            self.handle(event);
        }
        let cost = Duration::from_micros(match self.random.below(50) {
            0 => 2000,
            _ => self.random.below(20) as u64,
        });
        let looked = Cell::new(Duration::ZERO);
        self.runner.turn(now, || looked.replace(looked.get() + cost));
        self.runner.tick(now);
        self.now += cost;
        Step::Moved
    }

    fn handle(&mut self, event: SimEvent) {
        self.trace_step(|| match &event {
            DispatchEvent::Admit(arrival, ..) => match &arrival.kind {
                RequestKind::Client(connect) => format!("admit {}", connect.source),
                RequestKind::Server(_) => "admit a link".into(),
            },
            DispatchEvent::Started(id, threads) => format!("s{id} started: {}", threads.is_ok()),
            DispatchEvent::Items(id, items, bytes) => format!("s{id} {} items in {bytes} bytes", items.len()),
            DispatchEvent::Unread(id) => format!("s{id} unread"),
            DispatchEvent::Room(id) => format!("s{id} room"),
            DispatchEvent::Ended(id, reason) => format!("s{id} ended: {reason}"),
            DispatchEvent::Finished(id) => format!("s{id} finished"),
            DispatchEvent::Call(_) => "call".into(),
            DispatchEvent::Look(_) => "look".into(),
            DispatchEvent::Stop => "stop".into(),
            DispatchEvent::Exit => "exit".into(),
        });
        self.runner.handle(event, self.now);
    }

    /// The actions of `Server` when it is dropped.
    fn own(&mut self) -> Step {
        match self.owner {
            Owner::Runs if self.stop_at.is_some_and(|at| at <= self.steps) => self.owner = Owner::Stops,
            Owner::Runs => return Step::Waits(None),
            Owner::Stops | Owner::Exits if self.watch.is_full() => return Step::Waits(None),
            Owner::Stops => {
                let _ = self.events.try_send(DispatchEvent::Stop);
                self.acceptance.borrow_mut().slots.close().for_each(drop);
                self.stopped = Some(self.now);
                for connection in &mut self.connections {
                    if !connection.peer.has_begun() {
                        connection.peer.give_up();
                    }
                }
                self.owner = Owner::Joins;
            }
            Owner::Joins => {
                let under_way =
                    |c: &Connection| c.newcomer.as_ref().is_some_and(|newcomer| !newcomer.is_over());
                if self.connections.iter().any(under_way) {
                    return Step::Waits(None);
                }
                self.owner = Owner::Exits;
            }
            Owner::Exits => {
                let _ = self.events.try_send(DispatchEvent::Exit);
                self.owner = Owner::Waits;
            }
            Owner::Waits => return Step::Waits(None),
        }
        Step::Moved
    }

    fn step_connection(&mut self, at: usize, which: usize) -> Step {
        let connection = &mut self.connections[at];
        let mut writers = self.writers.borrow_mut();
        let watch = &self.watch;
        let full = || watch.is_full();
        let stopping = self.stopped.is_some();
        if which == 0 {
            let was_there = connection.peer.has_begun();
            let step = connection
                .peer
                .step(self.begin, self.now, &mut self.random, &self.log);
            if !was_there && connection.peer.has_begun() && !stopping {
                // Long frames in the smallest pieces would take too long.
                let least = connection.peer.plan.longest / 10;
                let piece = self.random.pick(&[0, 3 + least, 50 + least, 4000]);
                let made = certificates();
                let mut certificate = made.clients[connection.peer.plan.certificate].clone();
                let environment = match connection.peer.plan.expires {
                    Some(expires) => {
                        certificate.not_after = MORNING + expires;
                        &made.environment
                    }
                    None => &made.lasting,
                };
                let chain = vec![certificate.der.clone()];
                let entry = Entry::client(environment, certificate, chain, PeerAddress::Memory);
                let newcomer = Newcomer::new(
                    connection.stream.clone(),
                    environment,
                    entry,
                    connection.fails,
                    piece,
                    self.now,
                );
                connection.newcomer = Some(newcomer.with_slot_of(&self.acceptance));
            }
            return step;
        }
        let mut view = View {
            now: self.now,
            random: &mut self.random,
            events: &self.events,
            full: &full,
            write_timeout: self.write_timeout,
            pool: &self.pool,
            pieces: PIECES,
            wall: MORNING + self.now.duration_since(self.begin),
        };
        match which {
            1 => {
                let Some(newcomer) = &mut connection.newcomer else {
                    return Step::Over;
                };
                let (step, threads) = newcomer.step(stopping, &mut view);
                if let Some((id, outbox)) = &newcomer.admitted
                    && connection.outbox.is_none()
                {
                    connection.peer.session = Some(SessionId::from(*id));
                    connection.outbox = Some(outbox.clone());
                }
                if let Some((reader, writer)) = threads {
                    connection.reader = Some(reader);
                    writers[at] = Some(writer);
                }
                step
            }
            2 => match (&mut connection.reader, &mut writers[at]) {
                (Some(reader), Some(writer)) => reader.step(writer, &mut view),
                _ => Step::Over,
            },
            _ => match &mut writers[at] {
                Some(writer) => writer.step(&mut view),
                None => Step::Over,
            },
        }
    }

    /// The bound of all queues together.
    pub(super) fn budget(&self) -> u64 {
        self.budget
    }

    /// The most that one turn may leave in a line: the bytes that its reader may have handed over, once
    /// for each receiver, and the overhead of each item.
    pub(super) fn longest_turn(&self) -> u64 {
        let batch = 30_000 + self.longest + 100;
        let input = (1 << 20).min(self.budget / 4) + batch;
        3 * input * self.connections.len() as u64
    }

    /// Peers that read take the frames that were sent to them.
    pub(super) fn let_peers_read(&mut self) {
        let far = self.now + FAR;
        for connection in &mut self.connections {
            for _ in 0..1_000_000 {
                if connection.peer.step(self.begin, far, &mut self.random, &self.log) != Step::Moved {
                    break;
                }
            }
        }
    }

    /// The time from the stop to the end of the last connection.
    pub(super) fn stopping_took(&self) -> Duration {
        self.stopped
            .map_or(Duration::ZERO, |at| self.now.duration_since(at))
    }

    /// Drops everything except the log and the counts.
    pub(super) fn let_go(&mut self) {
        while self.queue.try_next().is_some() {}
        self.writers.borrow_mut().clear();
        for connection in &mut self.connections {
            connection.newcomer = None;
            connection.reader = None;
        }
    }
}

fn connection(plan: Plan, random: &mut Random) -> Connection {
    let wide = plan.longest > 1 << 20 || random.chance(70);
    let room = |random: &mut Random| {
        if wide {
            30_000.max(plan.longest / 8)
        } else {
            random.pick(&[50, 300, 3000]).max(plan.longest / 4)
        }
    };
    let [peers, stream] = Stream::new([room(random), room(random)]);
    let fails = match random.below(30) {
        0 => Fails::BeforeVerdict,
        1 => Fails::Connected,
        2 => Fails::Threads,
        _ => Fails::Not,
    };
    Connection {
        peer: Peer::new(plan, peers, MAX_PAYLOAD),
        stream,
        fails,
        newcomer: None,
        reader: None,
        outbox: None,
        wide,
        progress: Default::default(),
    }
}
