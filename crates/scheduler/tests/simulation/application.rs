//! The application of the server, which uses every method of routing or is the real scheduler, and the
//! log of its callbacks and its frames.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use uuid::Uuid;

use ssntp::Role;
use ssntp::proto::{Command, Event, Frame, FrameKind, FrameType, Operands, Run, Status};
use ssntp::server::{Context, DisconnectReason, Filter, Handler, Rules, SessionId, SessionInfo};
use ssntp_scheduler::Scheduler;
use ssntp_transport::guard;

/// The origin of a frame: a peer's number, or the handler.
pub(super) const HANDLER: u32 = 1_000_000;

/// The marks of a frame: its sender, its number, and its receiver. They are a YAML comment at the
/// begin of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) sender: u32,
    pub(super) number: u64,
    pub(super) to: u32,
}

impl Mark {
    pub(super) fn payload(self, rest: &str, padding: usize) -> Vec<u8> {
        let Self { sender, number, to } = self;
        let mut text = format!("# {sender} {number} {to}\n{rest}").into_bytes();
        if padding > 0 {
            text.extend(b"#");
            text.extend("x".repeat(padding).as_bytes());
        }
        text
    }

    pub(super) fn of(payload: &[u8]) -> Option<Self> {
        let line = payload.strip_prefix(b"# ")?;
        let end = line.iter().position(|byte| *byte == b'\n')?;
        let mut words = std::str::from_utf8(&line[..end]).ok()?.split(' ');
        Some(Self {
            sender: words.next()?.parse().ok()?,
            number: words.next()?.parse().ok()?,
            to: words.next()?.parse().ok()?,
        })
    }
}

/// A question to another entity or to the server, which begins with an exchange and has no
/// mark.
pub(super) const QUERY: FrameKind = FrameKind::new(FrameType::COMMAND, 0x90);

pub(super) fn operands() -> Operands {
    static MADE: OnceLock<Operands> = OnceLock::new();
    MADE.get_or_init(|| Operands::new().request(QUERY, "QUERY").unwrap())
        .clone()
}

/// The UUID of an entity of the simulation.
pub(super) fn uuid(number: u32) -> Uuid {
    Uuid::from_u128(0x5000 + u128::from(number))
}

/// The application's record of one session.
#[derive(Debug, Default)]
pub(super) struct SessionLog {
    pub(super) uuid: Uuid,
    pub(super) connected: u32,
    pub(super) disconnected: Option<DisconnectReason>,
    /// The numbers of its frames that have arrived at the server, in order.
    pub(super) seen: Vec<u64>,
    /// The frames to it that have not arrived, for each sender in order.
    expected: HashMap<u32, VecDeque<u64>>,
    last: HashMap<u32, u64>,
    pub(super) sent: u64,
    /// The number of frames that have arrived or were overtaken by later ones.
    pub(super) arrived: u64,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) sessions: BTreeMap<SessionId, SessionLog>,
    pub(super) faults: Vec<String>,
    pub(super) told: u64,
    /// The scheduler sends a new controller the last reports of agents again.
    pub(super) inexact: bool,
    /// The server sends frames without marks: questions, answers, and the end of a session.
    pub(super) unmarked: bool,
    panics: u32,
    /// The instances that agents have launched.
    pub(super) launched: BTreeSet<Uuid>,
    pub(super) ended_by_themselves: u64,
    /// The number of running instances in the views of controllers.
    pub(super) known: usize,
}

pub(super) type SharedLog = Arc<Mutex<Log>>;

impl Log {
    fn sends(&mut self, to: SessionId, sender: u32, number: u64) {
        let session = self.sessions.entry(to).or_default();
        session.sent += 1;
        session.expected.entry(sender).or_default().push_back(number);
    }

    /// An agent launches an instance. Each instance is started only once.
    pub(super) fn launches(&mut self, instance: Uuid) {
        if !self.launched.insert(instance) {
            self.faults.push(format!("cluster: {instance} is launched twice"));
        }
    }

    /// A peer has received a frame of its session.
    pub(super) fn arrives(&mut self, at: SessionId, mark: Mark) {
        let session = self.sessions.entry(at).or_default();
        let expected = session.expected.entry(mark.sender).or_default();
        let last = session.last.insert(mark.sender, mark.number);
        if self.inexact && !expected.contains(&mark.number) && last.is_none_or(|last| last < mark.number) {
            return;
        }
        while let Some(number) = expected.pop_front() {
            if number == mark.number {
                session.arrived += 1;
                return;
            }
        }
        self.faults.push(format!(
            "order, or twice: {} of {} arrives at {at} where it is not expected",
            mark.number, mark.sender
        ));
    }
}

/// The application of a simulated server.
pub(super) struct Application {
    pub(super) log: SharedLog,
    inner: Inner,
}

enum Inner {
    Router(Router),
    Scheduler(Box<Scheduler>),
}

/// Sends frames at random times.
pub(super) struct Router {
    pub(super) next: Option<Instant>,
    pub(super) every: Duration,
    pub(super) ticks: u32,
    pub(super) number: u64,
    pub(super) padding: usize,
}

impl Application {
    pub(super) fn router(log: SharedLog, router: Router) -> Self {
        Self {
            log,
            inner: Inner::Router(router),
        }
    }

    pub(super) fn scheduler(log: SharedLog, scheduler: Scheduler) -> Self {
        log.lock().unwrap().inexact = true;
        Self {
            log,
            inner: Inner::Scheduler(Box::new(scheduler)),
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap()
    }
}

/// The rules of the router: STATS to controllers, TenantAdded to the client that it names.
pub(super) fn rules(log: &SharedLog) -> Rules {
    let routes = Arc::clone(log);
    Rules::new()
        .multicast(Command::STATS, Role::CONTROLLER)
        .route(Event::TENANT_ADDED, move |frame, from, directory| {
            let Some(mark) = Mark::of(frame.payload_bytes()) else {
                return Vec::new();
            };
            let target = uuid(mark.to);
            if let Some(session) = directory.session(target)
                && target != from
            {
                routes
                    .lock()
                    .unwrap()
                    .sends(session.id(), mark.sender, mark.number);
            }
            vec![target]
        })
        .route(Event::TENANT_REMOVED, |_, _, _| Vec::new())
}

/// The frames that the router's filter refuses from agents.
pub(super) fn filter() -> Filter {
    Filter::allow_all().allow(Command::RESTORE, Role::CONTROLLER)
}

/// The frames that the scheduler forwards to every controller. Of a START it forwards only the
/// first failure.
fn goes_to_controllers(kind: FrameKind) -> bool {
    kind == Command::STATS || kind == Event::INSTANCE_STOPPED
}

impl Router {
    fn frame(&mut self, log: &SharedLog, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let Some(mark) = Mark::of(frame.payload_bytes()) else {
            return;
        };
        let lock = || log.lock().unwrap();
        let kind = frame.kind();
        let target = uuid(mark.to);
        let receiver = cx.directory().session(target).map(SessionInfo::id);
        if kind == Command::STATS {
            note_multicast(log, cx, from, Role::CONTROLLER, mark);
        } else if kind == Command::STOP || kind == Command::EVACUATE {
            if cx.forward(from, target, frame).is_ok()
                && let Some(receiver) = receiver
            {
                lock().sends(receiver, mark.sender, mark.number);
            }
            if kind == Command::EVACUATE {
                lock().panics += 1;
                // The panic hook, which writes to the terminal, is not called.
                std::panic::resume_unwind(Box::new("as asked"));
            }
        } else if kind == Command::DELETE {
            note_multicast(log, cx, from, Role::AGENT, mark);
            let _ = cx.forward_all(from, Role::AGENT, frame);
        } else if kind == Status::READY {
            // The handler answers the sender and another client in turn. A timer sends to all.
            let receivers = [Some((from.id(), from.uuid())), receiver.map(|id| (id, target))];
            for at in 0..mark.to as usize % 4 {
                let Some((id, to)) = receivers[at % 2] else {
                    continue;
                };
                self.number += 1;
                let number = self.number;
                let answer = Mark {
                    sender: HANDLER,
                    number,
                    to: 0,
                };
                let payload = answer.payload("", frame.payload_bytes().len());
                if cx.send(to, &Frame::with_payload(Status::FULL, payload)).is_ok() {
                    lock().sends(id, HANDLER, number);
                }
            }
        } else if kind == Command::RESTART {
            cx.disconnect(target);
        }
    }

    fn timer(&mut self, log: &SharedLog, cx: &mut Context<'_>) {
        self.ticks = self.ticks.saturating_sub(1);
        self.next = (self.ticks > 0).then(|| cx.now() + self.every);
        let everybody: Vec<_> = cx.directory().sessions().map(|s| (s.id(), s.uuid())).collect();
        for (id, to) in everybody {
            self.number += 1;
            let number = self.number;
            // A receiver that the policy ends counts as well.
            if cx
                .directory()
                .session(to)
                .is_none_or(|session| session.id() != id)
            {
                continue;
            }
            let mark = Mark {
                sender: HANDLER,
                number,
                to: 0,
            };
            log.lock().unwrap().sends(id, HANDLER, number);
            let payload = mark.payload("", self.padding);
            let _ = cx.send(to, &Frame::with_payload(Event::TRACE_REPORT, payload));
        }
    }
}

fn note_multicast(log: &SharedLog, cx: &Context<'_>, from: &SessionInfo, role: Role, mark: Mark) {
    let mut log = log.lock().unwrap();
    for session in cx.directory().with_role(role) {
        if session.id() != from.id() {
            log.sends(session.id(), mark.sender, mark.number);
        }
    }
}

impl Handler for Application {
    fn connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let mut log = self.log();
        log.told += 1;
        let same = log.sessions.values().any(|other| {
            other.uuid == session.uuid() && other.connected == 1 && other.disconnected.is_none()
        });
        if same {
            let fault = format!(
                "told once: {} is connected before its old session has gone",
                session.uuid()
            );
            log.faults.push(fault);
        }
        let entry = log.sessions.entry(session.id()).or_default();
        entry.connected += 1;
        entry.uuid = session.uuid();
        if entry.connected != 1 || entry.disconnected.is_some() {
            let fault = format!("told once: {} is connected again", session.id());
            log.faults.push(fault);
        }
        drop(log);
        if let Inner::Scheduler(scheduler) = &mut self.inner {
            scheduler.connected(cx, session);
        }
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        let mut log = self.log();
        log.told += 1;
        let entry = log.sessions.entry(session.id()).or_default();
        let before = entry.disconnected.replace(reason.clone());
        // A newcomer that was replaced before its callback has no connect.
        if entry.connected != 1 || before.is_some() {
            let fault = format!(
                "told once: {} is disconnected ({reason}) after {} connects, before it {before:?}",
                session.id(),
                entry.connected
            );
            log.faults.push(fault);
        }
        drop(log);
        if let Inner::Scheduler(scheduler) = &mut self.inner {
            scheduler.disconnected(cx, session, reason);
        }
    }

    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        if let Some(mark) = Mark::of(frame.payload_bytes()) {
            let mut log = self.log();
            let session = log.sessions.entry(from.id()).or_default();
            session.seen.push(mark.number);
            if session.disconnected.is_some() || session.connected != 1 {
                let fault = format!("told once: a frame of {} outside of its session", from.id());
                log.faults.push(fault);
            }
        }
        match &mut self.inner {
            Inner::Router(router) => router.frame(&self.log, cx, from, &frame),
            Inner::Scheduler(scheduler) => {
                if goes_to_controllers(frame.kind())
                    && let Some(mark) = Mark::of(frame.payload_bytes())
                {
                    note_multicast(&self.log, cx, from, Role::CONTROLLER, mark);
                }
                scheduler.frame(cx, from, frame);
            }
        }
    }

    fn run(&mut self, cx: &mut Context<'_>, from: &SessionInfo, run: &Run) {
        let mut panic = None;
        for frame in run.frames() {
            // An application that panics loses the frames of the same run. Here each frame must be seen.
            panic = panic.or(guard(|| self.frame(cx, from, frame)).err());
        }
        if let Some(why) = panic {
            std::panic::resume_unwind(Box::new(why));
        }
    }

    fn stopping(&mut self, cx: &mut Context<'_>) {
        if let Inner::Scheduler(scheduler) = &mut self.inner {
            scheduler.stopping(cx);
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        match &self.inner {
            Inner::Router(router) => router.next,
            Inner::Scheduler(scheduler) => scheduler.next_timer(),
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>) {
        match &mut self.inner {
            Inner::Router(router) => router.timer(&self.log, cx),
            Inner::Scheduler(scheduler) => scheduler.timer(cx),
        }
    }
}
