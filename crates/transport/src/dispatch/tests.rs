use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::*;
use crate::PATIENCE;
use crate::budget::Budget;
use crate::outbox::Limits;
use crate::outbox::tests::{Wire, item, long};
use crate::socket::memory::{self, MemoryStream};

/// A core that does what its items say, and writes down what it is told.
#[derive(Debug, Default)]
struct Script {
    log: Vec<String>,
    gone: Vec<ConnectionId>,
    /// Names of the connections, as their requests gave them.
    names: HashMap<ConnectionId, String>,
    refuses: bool,
    /// Done when a newcomer is judged.
    at_admission: Vec<Action>,
    /// Done at a stop.
    at_stop: Vec<Action>,
    /// Done as soon as something has been dealt with.
    at_settling: Vec<Action>,
    /// Done when more waits for a connection than it may have.
    at_overflow: Vec<Action>,
    drops_oldest: bool,
    due: Option<Instant>,
}

/// What an item makes the core do.
enum Step {
    Note(&'static str),
    /// Of so many frames.
    Frames(u32),
    Do(Vec<Action>),
}

impl Script {
    fn note(&mut self, id: ConnectionId, what: &str) {
        let name = self.names.get(&id).map_or("nobody", |name| name);
        self.log.push(format!("{name}: {what}"));
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
        _: Gauge,
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

    fn ended(&mut self, id: ConnectionId, reason: EndReason, _: Instant, _: &mut Vec<Action>) {
        self.note(id, &reason.to_string());
    }

    fn gone(&mut self, id: ConnectionId) {
        self.gone.push(id);
    }

    fn left(&mut self, id: ConnectionId, items: Vec<Step>) {
        self.note(id, &format!("{} left", items.len()));
    }

    fn full(&mut self, to: ConnectionId, _: Load, _: Instant, actions: &mut Vec<Action>) -> Drops {
        self.note(to, "full");
        actions.append(&mut self.at_overflow);
        match self.drops_oldest {
            true => Drops::Oldest,
            false => Drops::Newest,
        }
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

/// Threads that write down what becomes of them.
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
            start: clock(),
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

    /// What was due at a time is done.
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

    /// So many items of 300 bytes of memory that frames of a peer cause.
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

    /// What it has been sent, the writer having done its work.
    fn log(&self) -> Vec<String> {
        Wire::write(&self.outbox);
        self.wire.log()
    }
}

const NOTHING: [&str; 0] = [];

#[test]
fn who_is_replaced_leaves_before_the_newcomer_is_told() {
    let mut world = World::new(Script::default());
    let old = world.run("old");
    world.runner.core_mut().at_admission = vec![old.end(false)];
    let (reply, verdict) = crossbeam_channel::bounded::<Verdict<Script>>(0);
    // Nobody takes the reply: the runner is where it tells the newcomer.
    let closed = old.outbox.clone();
    let newcomer = crate::host::threads::spawn("newcomer", move || {
        assert!(verdict.recv().unwrap().is_ok());
        assert!(closed.is_closed());
    })
    .unwrap();
    let stream = Arc::new(memory::pair().0);
    world.handle(DispatchEvent::Admit(Box::new("new".into()), stream, reply));
    newcomer.join().unwrap();
    assert_eq!(
        world.log(),
        ["old after 0", "old: told", "new after 1", "new: told"]
    );
}

#[test]
fn all_connections_of_one_owner_have_half_of_the_memory() {
    let mut world = World::new(Script::default());
    let [one, other, another] = [world.run("one"), world.run("one"), world.run("another")];
    world.busy.store(true, Ordering::SeqCst);
    world.call(vec![one.send("1"), other.send("2"), another.send("3")]);
    let used = |peer: &Peer| peer.outbox.budget().used();
    assert_eq!([used(&one), used(&other), used(&another)], [258, 258, 129]);
    assert_eq!(world.budget.used(), 3 * 129);
}

#[test]
fn who_is_refused_leaves_no_trace() {
    let mut world = World::new(Script::default());
    world.runner.core_mut().refuses = true;
    let verdict = world.ask("x", memory::pair().0);
    assert_eq!(verdict.try_recv().unwrap().err(), Some("refused"));
    world.handle(DispatchEvent::Exit);
    assert!(world.runner.is_over());
    world.runner.core_mut().refuses = false;
    let next = world.admit("y");
    assert_eq!(next.id.0 % (1 << 24), 0, "its slot is free again");
}

#[test]
fn a_newcomer_that_went_before_its_verdict_is_gone() {
    let mut world = World::new(Script::default());
    let (reply, verdict) = crossbeam_channel::bounded(1);
    drop(verdict);
    let stream = Arc::new(memory::pair().0);
    world.handle(DispatchEvent::Admit(Box::new("x".into()), stream, reply));
    assert_eq!(world.log(), ["x after 0", "x: not told"]);
    world.handle(DispatchEvent::Exit);
    assert!(world.runner.is_over());
    assert_eq!(world.admit("y").id.0 % (1 << 24), 0, "its slot is free again");
}

#[test]
fn threads_that_cannot_be_started_end_the_connection() {
    let mut world = World::new(Script::default());
    let [open, ending] = [world.admit("open"), world.admit("ending")];
    world.call(vec![ending.end(false)]);
    world.log();
    for peer in [&open, &ending] {
        world.handle(DispatchEvent::Started(
            peer.id,
            Err(io::Error::other("no threads")),
        ));
    }
    assert_eq!(world.log(), ["open: no threads"]);
    world.handle(DispatchEvent::Exit);
    assert!(world.runner.is_over());
    assert_eq!(world.runner.next_deadline(), None, "and nothing is to be cut off");
}

#[test]
fn a_connection_counts_until_its_threads_are_joined() {
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    world.call(vec![peer.end(false)]);
    assert!(peer.outbox.is_closed());
    world.admit("b");
    assert!(world.runner.core().gone.is_empty());
    world.handle(DispatchEvent::Finished(peer.id));
    assert_eq!(peer.threads(), ["join"]);
    assert_eq!(world.runner.core().gone, [peer.id]);
    world.admit("c");
    let log = world.log();
    assert!(log.contains(&"b after 1".into()) && log.contains(&"c after 1".into()));
}

#[test]
fn threads_that_finish_before_they_were_reported_are_joined_then() {
    let mut world = World::new(Script::default());
    let peer = world.admit("a");
    world.handle(DispatchEvent::Finished(peer.id));
    world.handle(DispatchEvent::Exit);
    assert!(!world.runner.is_over());
    world.handle(DispatchEvent::Started(
        peer.id,
        Ok(Fake(Arc::clone(&peer.threads))),
    ));
    assert_eq!(peer.threads(), ["join"]);
    assert!(world.runner.is_over());
    assert_eq!(world.log(), ["a after 0", "a: told", "a: closed by this side"]);
}

#[test]
fn an_end_at_once_cuts_off_who_is_still_being_told_of_its_admission() {
    let mut world = World::new(Script::default());
    let [gently, at_once] = [world.admit("a"), world.admit("b")];
    world.call(vec![gently.end(false), at_once.end(true)]);
    assert!(!gently.is_aborted() && at_once.is_aborted());
    assert!(at_once.outbox.is_over() && !gently.outbox.is_over());
}

#[test]
fn nobody_waits_for_a_dispatcher_that_has_gone() {
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    let credit = Arc::clone(&peer.credit);
    credit.hold(true);
    credit.spend(1);
    let reader = crate::host::threads::spawn("reader", move || credit.wait()).unwrap();
    while peer.credit.waits_since().is_none() {
        std::thread::yield_now();
    }
    drop(world);
    assert!(!reader.join().unwrap(), "its connection is over");
    assert!(peer.is_aborted() && peer.outbox.is_closed());
}

#[test]
fn an_end_at_once_after_a_gentle_one_cuts_off() {
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    world.call(vec![peer.end(false)]);
    assert!(!peer.is_aborted());
    world.call(vec![peer.end(true)]);
    assert!(peer.is_aborted());
}

#[test]
fn an_end_has_its_turn_after_what_came_before_it() {
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    world.read(&peer, vec![Step::Note("item")]);
    world.handle(DispatchEvent::Ended(peer.id, EndReason::PeerClosed));
    world.log();
    assert!(!world.runner.is_idle());
    world.turn();
    assert_eq!(world.log(), ["a: item", "a: the peer closed the connection"]);
    assert!(peer.outbox.is_closed());
    assert!(world.runner.is_idle());
    world.handle(DispatchEvent::Ended(peer.id, EndReason::PeerClosed));
    assert!(world.runner.is_idle(), "it has ended already");
}

#[test]
fn what_came_before_an_end_is_dealt_with_although_the_threads_have_finished() {
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    world.read(&peer, vec![Step::Note("item"), Step::Note("item")]);
    world.handle(DispatchEvent::Ended(peer.id, EndReason::Truncated));
    world.log();
    world.handle(DispatchEvent::Finished(peer.id));
    assert_eq!((world.log(), peer.threads()), (vec![], vec![]));
    while !world.runner.is_idle() {
        world.turn();
    }
    let truncated = format!("a: {}", EndReason::Truncated);
    assert_eq!(world.log(), ["a: item", "a: item", truncated.as_str()]);
    assert_eq!(peer.threads(), ["join"]);
    drop(peer);
    assert_eq!(world.budget.used(), 0);
}

#[test]
fn who_takes_its_time_to_part_is_cut_off_each_when_its_own_is_over() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    world.call(vec![a.end(false)]);
    world.start += Duration::from_secs(1);
    world.call(vec![b.end(false)]);
    world.start -= Duration::from_secs(1);
    assert_eq!(world.runner.next_deadline(), Some(world.at(5000)));
    world.tick(4999);
    assert!(!a.is_aborted());
    world.tick(5000);
    assert!(a.is_aborted() && !b.is_aborted());
    assert_eq!(world.runner.next_deadline(), Some(world.at(6000)));
    world.handle(DispatchEvent::Finished(b.id));
    assert_eq!(world.runner.next_deadline(), None, "it is gone");
}

#[test]
fn a_stop_is_told_once_and_cuts_off_who_is_left_when_grace_is_over() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.admit("b")];
    world.runner.core_mut().at_stop = vec![a.end(false), Action::Stop];
    world.log();
    world.handle(DispatchEvent::Stop);
    world.start += Duration::from_secs(1);
    world.handle(DispatchEvent::Stop);
    world.start -= Duration::from_secs(1);
    assert_eq!(world.log(), ["stop"]);
    assert_eq!(world.runner.next_deadline(), Some(world.at(3000)));
    world.tick(2999);
    assert!(!a.is_aborted() && !b.is_aborted());
    world.tick(3000);
    assert!(a.is_aborted() && b.is_aborted(), "also who has not begun");
    world.handle(DispatchEvent::Started(b.id, Ok(Fake(Arc::clone(&b.threads)))));
    world.handle(DispatchEvent::Stop);
    world.handle(DispatchEvent::Exit);
    assert!(!world.runner.is_over());
    world.log();
    for peer in [&a, &b] {
        world.handle(DispatchEvent::Finished(peer.id));
    }
    assert!(world.runner.is_over());
    assert_eq!(world.log(), ["b: closed by this side"]);
}

#[test]
fn a_timer_of_the_core_is_due_at_its_time_and_not_before() {
    let mut world = World::new(Script::default());
    assert_eq!(world.runner.next_deadline(), None);
    world.tick(1000);
    world.runner.core_mut().due = Some(world.at(100));
    world.tick(99);
    assert_eq!(world.log(), NOTHING);
    world.tick(100);
    world.tick(101);
    assert_eq!(world.log(), ["tick"]);
}

#[test]
fn a_run_ends_at_its_frames_and_a_rest_has_the_next_one() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    world.log();
    world.read(
        &a,
        vec![Step::Note("first"), Step::Frames(300), Step::Note("after")],
    );
    world.read(&b, vec![Step::Note("another")]);
    for _ in 0..2 {
        world.turn();
    }
    assert_eq!(
        world.log(),
        [
            "a: first",
            "a: 8 frames",
            "a: 16 frames",
            "a: 32 frames",
            "a: 64 frames",
            "a: 128 frames",
            "a: 52 frames",
            "a: after",
            "b: another",
        ]
    );
    assert!(world.runner.is_idle());
}

#[test]
fn a_turn_ends_when_its_time_is_used_up_and_that_is_looked_at_after_each_run() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    world.log();
    world.read(&a, vec![Step::Frames(8), Step::Frames(300)]);
    world.read(&b, vec![Step::Frames(2)]);
    let later = Cell::new(Duration::ZERO);
    for _ in 0..4 {
        world.runner.turn(world.start, || {
            later.set(later.get() + Duration::from_micros(800));
            later.get()
        });
    }
    // Each run takes 1.6 ms, in which the core has a half: it owes more than it has.
    assert_eq!(
        world.log(),
        ["a: 8 frames", "b: 2 frames", "a: 8 frames", "a: 8 frames"]
    );
}

#[test]
fn the_last_item_is_answered_past_the_writer_once_and_others_are_not() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    let answer = |text| Step::Do(vec![b.send(text)]);
    world.read(&a, vec![answer("1"), answer("2")]);
    world.turn();
    assert_eq!(b.log(), ["1", "2"], "more was to come, then more waited");
    world.read(&a, vec![Step::Do(vec![b.send("3"), a.send("4")])]);
    world.turn();
    assert_eq!(
        (b.log(), a.log()),
        (vec!["3 at once".to_owned()], vec!["4 at once".to_owned()])
    );
    world.read(&a, vec![Step::Do(vec![b.send("5"), b.send("6")])]);
    world.turn();
    assert_eq!(b.log(), ["5 at once", "6"]);
    world.read(&a, vec![answer("7")]);
    world.busy.store(true, Ordering::SeqCst);
    world.turn();
    assert_eq!(b.log(), ["7"], "an event waits");
    world.busy.store(false, Ordering::SeqCst);
    world.read(&a, vec![answer("8")]);
    world.read(&b, vec![Step::Note("input of another")]);
    world.turn();
    assert_eq!(b.log(), ["8"], "another is to take its turn");
}

#[test]
fn a_call_and_a_timer_send_past_the_writer_where_nobody_has_input() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    world.call(vec![b.send("1")]);
    world.call(vec![b.send("2")]);
    assert_eq!(b.log(), ["1 at once", "2 at once"]);
    world.runner.core_mut().due = Some(world.start);
    world.runner.core_mut().at_settling = vec![];
    world.read(&a, vec![Step::Note("input")]);
    world.call(vec![b.send("3")]);
    assert_eq!(b.log(), ["3"]);
    world.runner.core_mut().at_settling = vec![b.send("4")];
    world.tick(0);
    assert_eq!(b.log(), ["4"]);
    world.turn();
    world.runner.core_mut().due = Some(world.start);
    world.runner.core_mut().at_settling = vec![b.send("5")];
    world.tick(0);
    assert_eq!(b.log(), ["5 at once"]);
}

#[test]
fn what_a_turn_leads_to_waits_and_what_a_call_leads_to_meets_the_policy() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    world.busy.store(true, Ordering::SeqCst);
    // Half of the queue is 500, and each takes 300.
    world.read(&a, vec![Step::Do(b.send_from(&a, 3)), Step::Note("next")]);
    world.log();
    world.turn();
    assert_eq!(world.log(), NOTHING, "it waits in the line");
    let sends = |count: usize| (0..count).map(|_| b.send_item(long(172))).collect();
    world.call(sends(1));
    assert_eq!(world.log(), NOTHING);
    world.call(sends(2));
    assert_eq!(world.log(), ["b: full", "b: full"], "three and one wait already");
    while Wire::write(&b.outbox) {
        world.handle(DispatchEvent::Room(b.id));
    }
    world.turn();
    assert_eq!(world.log(), ["a: next"]);
    assert_eq!((b.outbox.sent().items, b.outbox.gauge().books().dropped), (4, 2));
}

#[test]
fn what_does_not_fit_goes_in_place_of_the_oldest_that_waits() {
    let mut world = World::new(Script {
        drops_oldest: true,
        ..Script::default()
    });
    let peer = world.run("a");
    world.busy.store(true, Ordering::SeqCst);
    let sends = [long(372), long(101), long(102), long(103), item("short")];
    world.call(sends.map(|item| peer.send_item(item)).into());
    while Wire::write(&peer.outbox) {
        world.handle(DispatchEvent::Room(peer.id));
    }
    assert_eq!(peer.log(), ["372", "103", "short"]);
}

#[test]
fn a_policy_that_ends_the_receiver_drops_one_item_and_loses_the_others() {
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    world.runner.core_mut().at_overflow = vec![peer.end(true)];
    world.busy.store(true, Ordering::SeqCst);
    world.call((0..9).map(|_| peer.send_item(long(300))).collect());
    assert!(peer.is_aborted());
    let books = peer.outbox.gauge().books();
    // Two are in the queue, one waits, and one is beyond the limit; others come too late.
    assert_eq!((books.waiting.items, books.dropped, books.lost), (2, 1, 6));
}

#[test]
fn a_slow_receiver_meets_the_policy_with_what_waits_for_it() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    world.busy.store(true, Ordering::SeqCst);
    world.read(&a, vec![Step::Do(b.send_from(&a, 5))]);
    world.turn();
    world.log();
    assert_eq!(world.runner.next_deadline(), Some(world.at(1000)));
    world.tick(999);
    assert_eq!(world.log(), NOTHING);
    world.tick(1000);
    assert_eq!(world.log(), ["b: full", "b: full", "tick"]);
}

#[test]
fn an_end_with_grace_sends_the_line_first_and_an_end_of_time_loses_it() {
    for in_time in [true, false] {
        let mut world = World::new(Script::default());
        let [a, b] = [world.run("a"), world.run("b")];
        world.busy.store(true, Ordering::SeqCst);
        world.read(&a, vec![Step::Do(b.send_from(&a, 5)), Step::Note("next")]);
        world.turn();
        world.log();
        world.call(vec![b.send("farewell"), b.end(false), b.send("late")]);
        world.turn();
        assert_eq!(world.log(), ["a: next"], "nobody waits for it any more");
        assert!(!b.outbox.is_closed());
        if in_time {
            while Wire::write(&b.outbox) {
                world.handle(DispatchEvent::Room(b.id));
            }
            let log = b.wire.log();
            assert_eq!(log[5..], ["farewell", "finish"]);
            assert_eq!(b.outbox.lost(), 1, "the late one");
        } else {
            world.tick(5000);
            assert!(b.is_aborted());
        }
        world.handle(DispatchEvent::Finished(b.id));
        assert_eq!(b.threads(), ["join"]);
        let waits = b.outbox.waiting().frames;
        assert_eq!(b.outbox.lost() + waits + b.outbox.sent().frames, 7);
        assert_eq!(world.budget.used(), b.outbox.waiting().memory());
    }
}

#[test]
fn a_connection_that_is_lost_loses_its_line_at_once() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    world.busy.store(true, Ordering::SeqCst);
    world.read(&a, vec![Step::Do(b.send_from(&a, 5))]);
    world.turn();
    world.handle(DispatchEvent::Ended(
        b.id,
        EndReason::Io(io::ErrorKind::ConnectionReset.into()),
    ));
    world.turn();
    assert!(b.outbox.is_closed() && b.is_aborted());
    assert_eq!(b.outbox.lost(), 3);
}

#[test]
fn what_settling_brings_is_done_as_well() {
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    world.runner.core_mut().at_settling = vec![peer.end(false)];
    world.call(vec![]);
    assert!(peer.outbox.is_closed());
}

#[test]
fn a_look_sees_who_is_there_who_has_input_and_how_long_all_took() {
    let mut world = World::new(Script::default());
    let seen = |world: &mut World| {
        let (reply, seen) = crossbeam_channel::bounded(1);
        world.handle(DispatchEvent::Look(Box::new(move |_, view| {
            let took = [view.dispatcher.waits, view.dispatcher.turns].map(|took| (took.count(), took.sum()));
            reply
                .send((view.connections, view.dispatcher.with_input, took))
                .unwrap();
        })));
        seen.try_recv().unwrap()
    };
    let nothing = (0, Duration::ZERO);
    assert_eq!(seen(&mut world), (0, 0, [nothing; 2]));
    let (peer, _idle) = (world.run("a"), world.run("b"));
    world.read(&peer, vec![Step::Frames(9)]);
    let long = Duration::from_micros(500);
    world.runner.waited(Some(long));
    world.runner.waited(None);
    assert_eq!(seen(&mut world), (2, 1, [(1, long), nothing]));
    let clock = Cell::new(Duration::ZERO);
    for _ in 0..2 {
        world
            .runner
            .turn(world.start, || clock.replace(clock.get() + long));
    }
    world.turn();
    assert_eq!(
        seen(&mut world),
        (2, 0, [(1, long), (2, 4 * long)]),
        "what a run caused counts, and nobody had the third"
    );
}

#[test]
fn whoever_drops_an_admission_says_so() {
    let (events, queue) = events::channel::<DispatchEvent<Script, Fake>>(2);
    let mut world = World::new(Script::default());
    let [a, b] = [world.admit("a"), world.admit("b")];
    drop(Admission::new(a.id, events.clone()));
    let mut admission = Admission::new(b.id, events);
    admission.started(Ok(Fake(Arc::clone(&b.threads))));
    drop(admission);
    assert!(matches!(queue.try_next(), Some(DispatchEvent::Started(id, Err(_))) if id == a.id));
    assert!(matches!(queue.try_next(), Some(DispatchEvent::Started(id, Ok(_))) if id == b.id));
}

#[test]
fn the_thread_runs_until_it_may_exit_and_everybody_has_gone() {
    let (events, queue) = events::channel::<DispatchEvent<Script, Fake>>(2);
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    let (runner, threads) = (world.runner, Arc::clone(&peer.threads));
    assert!(!is_dispatcher());
    let thread = crate::host::threads::spawn("dispatcher", move || {
        run(runner, &queue);
        assert!(is_dispatcher());
    })
    .unwrap();
    events.send(DispatchEvent::Exit).unwrap();
    events
        .send(DispatchEvent::Ended(peer.id, EndReason::PeerClosed))
        .unwrap();
    assert!(peer.outbox.wait_until_closed(Duration::from_secs(60)));
    events.send(DispatchEvent::Finished(peer.id)).unwrap();
    thread.join().unwrap();
    assert_eq!(*threads.lock().unwrap(), ["join"]);
}
