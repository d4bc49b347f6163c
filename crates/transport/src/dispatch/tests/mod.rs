//! The dispatcher, stepped by hand, around a core that carries out its items.

mod connections;
mod feed;
mod sending;
mod turns;

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::*;
use crate::PATIENCE;
use crate::budget::{Asked, Budget};
use crate::outbox::Limits;
use crate::outbox::tests::{Wire, item, long};
use crate::socket::memory::{self, MemoryStream};

/// A core that carries out its items, and logs its calls.
#[derive(Debug, Default)]
struct Script {
    log: Vec<String>,
    gone: Vec<ConnectionId>,
    /// The names of the connections from their requests.
    names: HashMap<ConnectionId, String>,
    refuses: bool,
    /// Actions of an admission.
    at_admission: Vec<Action>,
    /// Actions of a stop.
    at_stop: Vec<Action>,
    /// Actions of the next settling.
    at_settling: Vec<Action>,
    /// Actions of an overflow.
    at_overflow: Vec<Action>,
    drops_oldest: bool,
    due: Option<Instant>,
}

/// An item: an order to the core.
enum Step {
    Note(&'static str),
    /// An item of this number of frames.
    Frames(u32),
    Do(Vec<Action>),
}

impl Script {
    fn note(&mut self, id: ConnectionId, text: &str) {
        let name = self.names.get(&id).map_or("nobody", |name| name);
        self.log.push(format!("{name}: {text}"));
    }
}

impl Core for Script {
    type Item = Step;
    type Request = String;
    type Grant = ();
    type Refusal = &'static str;

    fn owner(request: &String) -> Option<&[u8]> {
        Some(request.as_bytes())
    }

    fn admit(
        &mut self,
        id: ConnectionId,
        request: String,
        _: OutboxCounters,
        standing: usize,
        _: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), &'static str> {
        if self.refuses {
            return Err("refused");
        }
        self.log.push(format!("{request} after {standing}"));
        self.names.insert(id, request);
        actions.append(&mut self.at_admission);
        Ok(())
    }

    fn admitted(&mut self, id: ConnectionId, told: bool, _: Instant, _: &mut Vec<Action>) {
        self.note(id, if told { "told" } else { "not told" });
    }

    fn item(
        &mut self,
        id: ConnectionId,
        item: Step,
        most: u32,
        _: Instant,
        actions: &mut Vec<Action>,
    ) -> (u32, Option<Step>) {
        match item {
            Step::Note(what) => self.note(id, what),
            Step::Do(mut what) => actions.append(&mut what),
            Step::Frames(frames) => {
                let done = frames.min(most);
                self.note(id, &format!("{done} frames"));
                return (done, (frames > done).then(|| Step::Frames(frames - done)));
            }
        }
        (1, None)
    }

    fn received(&mut self, _: ConnectionId, _: u64, _: Instant) {}

    fn on_unread(&mut self, id: ConnectionId, _: Instant, actions: &mut Vec<Action>) {
        self.note(id, "unread");
        actions.append(&mut self.at_settling);
    }

    fn ended(&mut self, id: ConnectionId, reason: EndReason, _: Instant, _: &mut Vec<Action>) {
        self.note(id, &reason.to_string());
    }

    fn on_removed(&mut self, id: ConnectionId) {
        self.gone.push(id);
    }

    fn on_unhandled(&mut self, id: ConnectionId, items: Vec<Step>) {
        self.note(id, &format!("{} left", items.len()));
    }

    fn on_line_full(&mut self, to: ConnectionId, _: Load, _: Instant, actions: &mut Vec<Action>) -> Drops {
        self.note(to, "full");
        actions.append(&mut self.at_overflow);
        if self.drops_oldest {
            Drops::Oldest
        } else {
            Drops::Newest
        }
    }

    fn time_of_day(&mut self, _: SystemTime) {
        self.log.push("time".into());
    }

    fn on_remote_pause(&mut self, change: RemotePause, _: Instant, _: &mut Vec<Action>) {
        let number = change.number;
        self.note(change.link, &format!("{number} waits: {}", change.paused));
    }

    fn settle(&mut self, _: Instant, actions: &mut Vec<Action>) {
        actions.append(&mut self.at_settling);
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        self.due
    }

    fn tick(&mut self, _: Instant, _: &mut Vec<Action>) {
        self.due = None;
        self.log.push("tick".into());
    }

    fn stop(&mut self, _: Instant, actions: &mut Vec<Action>) {
        self.log.push("stop".into());
        actions.append(&mut self.at_stop);
    }
}

/// Threads that log that they are joined.
struct Fake(Arc<Mutex<Vec<&'static str>>>);

impl Threads for Fake {
    fn join(self) {
        self.0.lock().unwrap().push("join");
    }
}

struct World {
    runner: Runner<Script, Fake>,
    start: Instant,
    busy: Arc<AtomicBool>,
    budget: Budget,
}

/// A connection from outside.
struct Peer {
    id: ConnectionId,
    outbox: Outbox,
    credit: Arc<Credit>,
    wire: Wire,
    threads: Arc<Mutex<Vec<&'static str>>>,
    /// The other end of its stream.
    stream: MemoryStream,
}

const PARTING: Duration = Duration::from_secs(5);
const GRACE: Duration = Duration::from_secs(3);

impl World {
    fn new(core: Script) -> Self {
        let busy = Arc::new(AtomicBool::new(false));
        let budget = Budget::new(1 << 40);
        let settings = Settings {
            queue: Limits {
                frames: 1000,
                bytes: 1000,
            },
            budget: budget.clone(),
            received: budget.clone(),
            patience: PATIENCE,
            parting: PARTING,
            grace: GRACE,
        };
        let quiet = Arc::clone(&busy);
        Self {
            runner: Runner::new(core, settings, move || !quiet.load(Ordering::SeqCst)),
            start: now(),
            busy,
            budget,
        }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    fn handle(&mut self, event: DispatchEvent<Script, Fake>) {
        self.runner.handle(event, self.start);
    }

    fn ask(&mut self, name: &str, stream: MemoryStream) -> Receiver<Verdict<Script>> {
        let (reply, verdict) = crossbeam_channel::bounded(1);
        self.handle(DispatchEvent::Admit(
            Box::new(name.into()),
            Arc::new(stream),
            reply,
        ));
        verdict
    }

    fn admit(&mut self, name: &str) -> Peer {
        let (stream, own) = memory::pair();
        let verdict = self.ask(name, own);
        let admitted = verdict.try_recv().unwrap().unwrap();
        let wire = Wire::default();
        wire.open(&admitted.outbox);
        Peer {
            id: admitted.id,
            outbox: admitted.outbox,
            credit: admitted.credit,
            wire,
            threads: Arc::default(),
            stream,
        }
    }

    fn run(&mut self, name: &str) -> Peer {
        let peer = self.admit(name);
        self.handle(DispatchEvent::Started(
            peer.id,
            Ok(Fake(Arc::clone(&peer.threads))),
        ));
        peer
    }

    fn read(&mut self, peer: &Peer, items: Vec<Step>) {
        peer.credit.spend(Credit::memory_of::<Step>(items.len(), 10));
        self.handle(DispatchEvent::Items(peer.id, items, 10));
    }

    /// A turn that takes no time.
    fn turn(&mut self) {
        self.runner.turn(self.start, || Duration::ZERO);
    }

    fn call(&mut self, actions: Vec<Action>) {
        self.handle(DispatchEvent::Call(Box::new(|_, _, done| *done = actions)));
    }

    /// Carries out the work that is due at a time.
    fn tick(&mut self, millis: u64) {
        self.runner.next_deadline();
        let now = self.at(millis);
        self.runner.tick(now);
    }

    fn log(&mut self) -> Vec<String> {
        self.runner.core_mut().log.split_off(0)
    }
}

impl Peer {
    fn send(&self, text: &str) -> Action {
        self.send_item(item(text))
    }

    fn send_item(&self, item: Outgoing) -> Action {
        Action::Send {
            origin: Origin::Application,
            to: self.id,
            item,
        }
    }

    /// `items` items, each of 300 bytes of memory, with `from` as their origin.
    fn send_from(&self, from: &Self, items: usize) -> Vec<Action> {
        let send = |_| Action::Send {
            origin: Origin::Connection(from.id),
            to: self.id,
            item: long(172),
        };
        (0..items).map(send).collect()
    }

    fn end(&self, abort: bool) -> Action {
        Action::End { id: self.id, abort }
    }

    fn threads(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.threads.lock().unwrap())
    }

    fn is_aborted(&self) -> bool {
        self.stream.try_read(&mut [0]).is_ok_and(|n| n == 0)
    }

    /// The items that were sent to the peer, after the writer has written.
    fn log(&self) -> Vec<String> {
        Wire::write(&self.outbox);
        self.wire.log()
    }
}

const NOTHING: [&str; 0] = [];
