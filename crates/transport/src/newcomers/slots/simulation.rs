//! The slots in virtual time: accept threads, handshake threads and peers are simulated here,
//! and [`Slots`] makes the decisions.
//!
//! ```text
//!  backlog ─▶ at hand (one a listener) ─▶ slot ─▶ reads, computes, writes … ─▶ admitted
//! ```
//!
//! Four invariants hold in every world. A peer that acts in time is never cut, and no peer is cut
//! while the host has to act. Each peer that acts in time is admitted within a bound. There are never
//! more handshakes than slots. A stop ends all handshakes.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::*;

const MS: Duration = Duration::from_millis(1);
/// The number of waits for the peer in a handshake.
const STEPS: u32 = 3;

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    match number("SSNTP_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SSNTP_SEEDS").unwrap_or(1000),
    }
}

/// Random numbers that depend only on the seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        u32::try_from((self.0 >> 33) % u64::from(end)).unwrap()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Answers within some milliseconds, and reads its input.
    Honest,
    /// Sends no bytes.
    Silent,
    /// Sends some bytes, and then no more.
    Half,
    /// Sends a byte now and then.
    Drips,
    /// Does not read its input.
    Deaf,
    /// Is refused, and frees its slot soon.
    Refused,
}

#[derive(Debug)]
struct Peer {
    name: usize,
    kind: Kind,
    /// True if bytes have arrived that no thread has read.
    has_input: Cell<bool>,
}

/// The state of a handshake thread until the time of its entry.
#[derive(Clone, Copy, Debug)]
enum Doing {
    /// The thread waits, and the peer acts at this time. `None` means never.
    Waits(Wait, Option<Instant>),
    /// The bytes have arrived, and the thread gets no processor before this time.
    Late(Instant),
    Computes(Instant),
}

struct Thread {
    peer: Rc<Peer>,
    steps: u32,
    doing: Doing,
}

struct World {
    chance: Chance,
    now: Instant,
    slots: Slots<Rc<Peer>>,
    threads: BTreeMap<u64, Thread>,
    /// The newcomers, with the time at which each of them became the next one.
    backlog: VecDeque<Rc<Peer>>,
    arrived: BTreeMap<usize, Instant>,
    admitted: usize,
    is_slow: bool,
}

impl World {
    fn ms(&mut self, most: u32) -> Duration {
        self.chance.below(most) * MS
    }

    fn arrive(&mut self, kind: Kind) {
        let name = self.arrived.len();
        self.arrived.insert(name, self.now);
        let has_input = Cell::new(false);
        self.backlog.push_back(Rc::new(Peer {
            name,
            kind,
            has_input,
        }));
    }

    /// The thread waits for its peer.
    fn wait(&mut self, slot: u64) {
        let Some(thread) = self.threads.get(&slot) else {
            return;
        };
        let (kind, steps) = (thread.peer.kind, thread.steps);
        let soon = self.now + self.chance.below(8) * MS;
        let drip = self.now + (100 + self.chance.below(140)) * MS;
        let (wait, then) = match kind {
            Kind::Honest | Kind::Refused => (Wait::Read, Some(soon)),
            Kind::Silent => (Wait::Read, None),
            Kind::Half if steps > 0 => (Wait::Read, None),
            Kind::Drips if steps > 0 => (Wait::Read, Some(drip)),
            Kind::Deaf if steps > 0 => (Wait::Write, None),
            Kind::Half | Kind::Drips | Kind::Deaf => (Wait::Read, Some(soon)),
        };
        self.slots.waits(slot, wait, self.now);
        self.threads.get_mut(&slot).unwrap().doing = Doing::Waits(wait, then);
    }

    fn leave(&mut self, slot: u64) {
        self.threads.remove(&slot);
        self.slots.give_back(slot, self.now);
    }

    /// The next step of a thread whose time has come.
    fn step(&mut self, slot: u64) {
        let Thread { doing, .. } = self.threads[&slot];
        let slow = self.is_slow && self.chance.below(4) == 0;
        let pause = self.ms(if slow { 400 } else { 3 });
        let thread = self.threads.get_mut(&slot).unwrap();
        match doing {
            Doing::Waits(wait, Some(_)) if wait == Wait::Read && slow => {
                thread.peer.has_input.set(true);
                thread.doing = Doing::Late(self.now + pause);
            }
            Doing::Waits(wait, _) => {
                self.slots.goes_on(slot, wait, self.now);
                thread.doing = Doing::Computes(self.now + pause);
            }
            Doing::Late(_) => {
                thread.peer.has_input.set(false);
                self.slots.goes_on(slot, Wait::Read, self.now);
                thread.doing = Doing::Computes(self.now + MS);
            }
            Doing::Computes(_) => {
                thread.steps += 1;
                let (kind, steps) = (thread.peer.kind, thread.steps);
                let is_over = steps >= STEPS && matches!(kind, Kind::Honest | Kind::Refused);
                if !is_over {
                    return self.wait(slot);
                }
                let is_heard = self.slots.input_complete(slot, self.now);
                if kind == Kind::Honest && is_heard {
                    assert!(self.slots.admitted(slot));
                    self.admitted += 1;
                    let waited = self.now - self.arrived[&self.threads[&slot].peer.name];
                    self.in_time(slot, waited);
                }
                self.leave(slot);
            }
        }
    }

    /// The bound for an honest peer. It waits for the peers before it, each of which has a slot for its
    /// longest time: its waits, the last check, and the pauses of its thread.
    fn in_time(&self, slot: u64, waited: Duration) {
        let pauses = if self.is_slow { 400 * MS } else { 3 * MS };
        let each = self.slots.patience.in_sum + self.slots.patience.silent + LOOK + 25 * pauses;
        let name = self.threads[&slot].peer.name;
        let turns = u32::try_from(name / self.slots.limit + 2).unwrap();
        assert!(waited <= turns * each, "peer {name} waited for {waited:?}");
    }

    /// The step of the accept thread: a slot for the next newcomer, or a check of the others.
    fn accept(&mut self) {
        while let Some(peer) = self.backlog.front() {
            let free = self.slots.running() < self.slots.limit;
            if let Some(slot) = self.slots.take(Rc::clone(peer), self.now) {
                assert!(free, "more handshakes than slots");
                let peer = self.backlog.pop_front().unwrap();
                let doing = Doing::Computes(self.now);
                self.threads.insert(
                    slot,
                    Thread {
                        peer,
                        steps: 0,
                        doing,
                    },
                );
                self.wait(slot);
                continue;
            }
            assert!(!free, "a slot is free, and a newcomer waits");
            self.look();
            return;
        }
    }

    fn look(&mut self) {
        let now = self.now;
        let cut = self.slots.cut(now, |peer| peer.has_input.get());
        let Some(name) = cut.map(|peer| peer.name) else {
            return;
        };
        let (&slot, thread) = self
            .threads
            .iter()
            .find(|(_, thread)| thread.peer.name == name)
            .unwrap();
        let kind = thread.peer.kind;
        assert!(!matches!(kind, Kind::Honest | Kind::Refused), "{kind:?} is cut");
        assert!(
            matches!(thread.doing, Doing::Waits(..)),
            "a handshake is cut while the host computes"
        );
        let waited = |slot: &u64| self.slots.taken[slot].1.waited_too_long(now, self.slots.patience);
        assert!(waited(&slot).is_none(), "the handshake is cut already");
        let (_, cut) = &self.slots.taken[&slot];
        let sum = |progress: &Progress| {
            let since = progress.since.iter().flatten().min().unwrap();
            progress.waited + (now - *since)
        };
        for other in self.threads.keys().filter(|other| waited(other).is_some()) {
            let (peer, progress) = &self.slots.taken[other];
            assert!(
                sum(progress) <= sum(cut) || peer.has_input.get(),
                "another handshake has waited longer"
            );
        }
        self.leave(slot);
    }

    /// Advances to the time of the next event.
    fn advance(&mut self) {
        let due = |doing: Doing| match doing {
            Doing::Waits(_, then) => then,
            Doing::Late(then) | Doing::Computes(then) => Some(then),
        };
        let all = self
            .threads
            .iter()
            .filter_map(|(slot, thread)| Some((due(thread.doing)?, *slot)));
        let next = all.min();
        let look = (!self.backlog.is_empty()).then_some(self.now + LOOK);
        match (next, look) {
            (Some((at, slot)), look) if look.is_none_or(|look| at <= look) => {
                self.now = self.now.max(at);
                self.step(slot);
            }
            (_, Some(look)) => self.now = look,
            (_, None) => {}
        }
    }
}

fn live(seed: u64, start: Instant) {
    let mut chance = Chance(seed ^ 0x9e37_79b9_7f4a_7c15);
    chance.below(2);
    let max = 1 + chance.below(8) as usize;
    // The time limit of pages is for clients that send a whole request at once.
    let slots = Slots::new(max, PATIENCE);
    let is_slow = chance.below(3) == 0;
    let mut world = World {
        chance,
        now: start,
        slots,
        threads: BTreeMap::new(),
        backlog: VecDeque::new(),
        arrived: BTreeMap::new(),
        admitted: 0,
        is_slow,
    };
    let (mut left, mut honest) = (20 + world.chance.below(60), 0);
    let stops_at = (world.chance.below(4) == 0).then(|| world.chance.below(60));
    let bad = 1 + world.chance.below(9);
    for _ in 0..100_000 {
        if left > 0 && world.chance.below(3) == 0 {
            let all = [Kind::Silent, Kind::Half, Kind::Drips, Kind::Deaf, Kind::Refused];
            let kind = if world.chance.below(10) < bad {
                all[world.chance.below(5) as usize]
            } else {
                Kind::Honest
            };
            honest += usize::from(kind == Kind::Honest);
            world.arrive(kind);
            left -= 1;
        }
        if stops_at.is_some_and(|at| left <= at) {
            return stop(world);
        }
        world.accept();
        world.advance();
        if left == 0 && world.admitted == honest && world.backlog.is_empty() {
            return;
        }
    }
    panic!(
        "{} of {honest} admitted, {} wait",
        world.admitted,
        world.backlog.len()
    );
}

/// Each peer whose input was not complete is stopped once; no further peer gets a slot.
fn stop(mut world: World) {
    let before: Vec<_> = world
        .threads
        .keys()
        .map(|slot| world.slots.state_of(*slot))
        .collect();
    let under_way = before
        .iter()
        .filter(|state| **state == Some(HandshakeState::UnderWay))
        .count();
    assert_eq!(world.slots.close().count(), under_way);
    assert_eq!(world.slots.close().count(), 0);
    for slot in world.threads.keys() {
        assert!(
            !world.slots.input_complete(*slot, world.now) && !world.slots.admitted(*slot),
            "the handshake is stopped"
        );
    }
    let running = world.slots.running();
    world.arrive(Kind::Honest);
    assert_eq!(world.slots.take(Rc::clone(&world.backlog[0]), world.now), None);
    assert_eq!(world.slots.running(), running);
    while let Some((&slot, _)) = world.threads.first_key_value() {
        world.leave(slot);
    }
    assert_eq!(world.slots.running(), 0);
    assert_eq!(world.slots.take(Rc::clone(&world.backlog[0]), world.now), None);
}

#[test]
fn honest_newcomers_get_a_slot_in_time_and_are_never_cut() {
    let start = crate::host::now();
    for seed in seeds() {
        let lived = crate::guard(|| live(seed, start));
        assert!(lived.is_ok(), "seed {seed}: SSNTP_SEED={seed} shows it again");
    }
}

#[test]
fn only_time_spent_waiting_for_the_peer_counts() {
    let start = crate::host::now();
    let at = |millis| start + Duration::from_millis(millis);
    let too_long = |progress: &Progress, millis| progress.waited_too_long(at(millis), PATIENCE).is_some();
    let mut slots = Slots::new(4, PATIENCE);
    let silent = slots.take((), start).unwrap();
    let of = |slots: &Slots<()>, slot, millis| too_long(&slots.taken[&slot].1, millis);
    assert!(!of(&slots, silent, 3_600_000), "the host computes");
    slots.waits(silent, Wait::Read, at(0));
    assert!(!of(&slots, silent, 9));
    assert!(of(&slots, silent, 10), "the peer has sent no bytes");
    slots.goes_on(silent, Wait::Read, at(40));
    slots.waits(silent, Wait::Read, at(100));
    assert!(!of(&slots, silent, 349));
    assert!(of(&slots, silent, 350));

    // A byte each 200 ms, and 800 ms of work of ours for it.
    let drips = slots.take((), start).unwrap();
    slots.sent_early(drips);
    for byte in 0..9 {
        slots.waits(drips, Wait::Read, at(byte * 1000));
        assert!(!of(&slots, drips, byte * 1000 + 199));
        slots.goes_on(drips, Wait::Read, at(byte * 1000 + 200));
        assert!(!of(&slots, drips, byte * 1000 + 999), "the host computes");
    }
    slots.waits(drips, Wait::Write, at(9_000));
    assert!(!of(&slots, drips, 9_199));
    assert!(of(&slots, drips, 9_200), "the waits are two seconds in sum");
    assert!(slots.admitted(drips));
    assert!(!of(&slots, drips, 10_000), "the time limit is over");

    // Of a read and a write at the same time, the longer wait counts.
    let both = slots.take((), start).unwrap();
    slots.sent_early(both);
    slots.waits(both, Wait::Read, at(0));
    slots.waits(both, Wait::Write, at(200));
    assert!(of(&slots, both, 250));

    // Half a request to the pages holds a slot for less than that.
    let mut brief = Slots::new(1, BRIEF);
    let half = brief.take((), start).unwrap();
    brief.sent_early(half);
    brief.waits(half, Wait::Read, at(0));
    assert!(brief.cut(at(19), |()| false).is_none());
    assert!(brief.cut(at(20), |()| false).is_some());
    assert!(brief.cut(at(21), |()| false).is_none(), "once");
}
