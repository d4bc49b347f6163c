//! One server of the world: its dispatcher, the machines that dial, and the machine that sends
//! requests to the engine.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use uuid::Uuid;

use super::super::threads::{Core, SimEvent, SimEvents, SimThreads, Step};
use super::log::{Acting, Application, SharedLog, Start, act, rules, server_uuid};
use super::world::made;
use ssntp::server::{Context, SessionInfo};
use ssntp::simulation::{Environment, Redial};
use ssntp_engine::{Join, Machine, Member};
use ssntp_test_support::random::Random;
use ssntp_transport::dispatch::events::{self, Watch};
use ssntp_transport::dispatch::{Core as _, DispatchEvent, EVENTS, Queue, Runner, Settings};

/// The result of an attempt to dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialling {
    Idle,
    /// No server answers, and the dialler notices this at the given time.
    Fails(Instant),
    /// The link runs over this connection.
    Runs(usize),
}

pub(super) struct Server {
    pub(super) start: Start,
    pub(super) environment: Arc<Environment>,
    pub(super) runner: Runner<Core, SimThreads>,
    pub(super) events: SimEvents,
    queue: Queue<SimEvent>,
    pub(super) watch: Rc<Watch<SimEvent>>,
    pub(super) dials: BTreeMap<usize, (Redial, Dialling)>,
    pub(super) machine: Machine,
    pub(super) waits_for: Option<u64>,
    pub(super) shared: Arc<Mutex<Acting>>,
    /// The speed of its clock, in thousandths, and the error of its time of day.
    rate: u32,
    pub(super) wall: SystemTime,
    begin: Instant,
    pub(super) next_act: Option<Instant>,
    pub(super) stopping: bool,
}

impl Server {
    pub(super) fn new(
        start: Start,
        servers: usize,
        (settings, rate, begin): (Settings, u32, Instant),
        log: &SharedLog,
        now: Instant,
    ) -> Self {
        let environment = made(|made| made.environment(start));
        let shared = Arc::new(Mutex::new(Acting::default()));
        let application = Application {
            start,
            log: Arc::clone(log),
            shared: Arc::clone(&shared),
        };
        let (open, _) = crossbeam_channel::bounded(0);
        let config = made(|made| made.config(start)).rules(rules());
        let local = local(begin, rate, now);
        let core = Core::new(
            config,
            Arc::clone(&environment),
            1000,
            Box::new(application),
            open,
            local,
        );
        let (events, queue) = events::channel(EVENTS);
        let quiet = queue.watch();
        let runner = Runner::new(core.unwrap(), settings, move || quiet.is_empty());
        let member = Member {
            uuid: server_uuid(start.0),
            incarnation: start.1,
            addresses: Vec::new(),
            version: "1".to_owned(),
            token: 0,
        };
        let others = (0..servers).filter(|other| *other != start.0);
        Self {
            start,
            environment,
            runner,
            events,
            watch: Rc::new(queue.watch()),
            queue,
            dials: others
                .map(|at| (at, (Redial::default(), Dialling::Idle)))
                .collect(),
            machine: Machine::new(Join { member, leads: true }),
            waits_for: None,
            shared,
            rate,
            wall: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
            begin,
            next_act: None,
            stopping: false,
        }
    }

    /// The clock of the server.
    pub(super) fn clock(&self, now: Instant) -> Instant {
        local(self.begin, self.rate, now)
    }

    /// The time at which the clock of the server will show the given time.
    pub(super) fn when(&self, clock: Instant) -> Instant {
        let since = clock.saturating_duration_since(self.begin);
        self.begin + since * 1000 / self.rate + Duration::from_micros(1)
    }

    /// One round of the loop of `dispatch::run`.
    pub(super) fn dispatch(&mut self, now: Instant, random: &mut Random) -> Step {
        if self.runner.is_over() {
            return Step::Over;
        }
        let clock = self.clock(now);
        let wall = self.wall + now.duration_since(self.begin);
        self.runner.core_mut().time_of_day(wall);
        let due = self.runner.next_deadline();
        if self.runner.is_idle() {
            match self.queue.try_next() {
                Some((event, _)) => self.runner.handle(event, clock),
                None if due.is_some_and(|due| due <= clock) => {}
                None => return Step::Waits(due.map(|due| self.when(due))),
            }
        }
        for _ in 0..random.below(EVENTS) {
            let Some((event, _)) = self.queue.try_next() else {
                break;
            };
            self.runner.handle(event, clock);
        }
        let cost = Duration::from_micros(random.below(20) as u64);
        let looked = Cell::new(Duration::ZERO);
        self.runner.turn(clock, || looked.replace(looked.get() + cost));
        self.runner.tick(clock);
        Step::Moved
    }

    /// A call of another thread.
    pub(super) fn call(&self, call: impl FnOnce(&mut Context<'_>) + Send + 'static) {
        let call = |core: &mut Core, now, actions: &mut Vec<_>| core.call(now, actions, call);
        let _ = self.events.try_send(DispatchEvent::Call(Box::new(call)));
    }

    /// The actions of a leader, if this server leads. No other server may send as the leader.
    pub(super) fn act(&mut self, now: Instant, log: &SharedLog) {
        let clock = self.clock(now);
        let view = self.machine.view();
        self.shared.lock().unwrap().leader = view.leader.map(|leader| leader.uuid);
        let leader_token = view.leader.map(|leader| leader.token).unwrap_or_default();
        let token = view.acts(clock);
        let (start, shared, log) = (self.start, Arc::clone(&self.shared), Arc::clone(log));
        self.call(move |cx| {
            cx.note_token(leader_token);
            // A token that was seen over a link since the last step counts as well.
            match token.filter(|token| *token >= cx.token()) {
                Some(token) => act(cx, start, token, &shared, &log),
                None => cx.set_leader_token(None),
            }
        });
    }

    /// The sessions that its directory has, by their servers.
    pub(super) fn directory(&mut self, now: Instant) -> Vec<(Uuid, Uuid, u64)> {
        let clock = self.clock(now);
        let mut all = Vec::new();
        self.runner.core_mut().call(clock, &mut Vec::new(), |cx| {
            let row = |s: &SessionInfo| (s.server(), s.uuid(), s.id().connection().0);
            all = cx.directory().sessions().map(row).collect();
        });
        all.sort_unstable();
        all
    }

    /// The number of linked servers, and the highest token that it has seen.
    pub(super) fn links(&mut self, now: Instant) -> (usize, u64) {
        let clock = self.clock(now);
        let mut counts = (0, 0);
        self.runner.core_mut().call(clock, &mut Vec::new(), |cx| {
            counts = (cx.servers().count(), cx.token());
        });
        counts
    }
}

fn local(begin: Instant, rate: u32, now: Instant) -> Instant {
    begin + now.saturating_duration_since(begin) * rate / 1000
}
