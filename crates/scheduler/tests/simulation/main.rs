//! The simulation: a whole cluster from one seed, in virtual time.
//!
//! ```text
//!             a seed
//!               │ draws
//!               ▼
//!  World: a random one of the machines that can move takes a step; if none can, the time
//!  jumps to the next timer
//!
//!  Peer ◀──▶ Stream ◀──▶ Newcomer, Reader, Writer ──▶ Events ──▶ Runner<ServerCore<Application>>
//!  (ClientHandshake,     (Entry, Incoming, Writing, Credit,       (the real one, with its
//!   Codec, a plan; the    Outbox: the real ones)                   Flow, and the scheduler)
//!   cores of agents and
//!   controllers)
//! ```
//!
//! There are no threads, sockets or clocks. The serving code is real: the
//! dispatcher's core and runner, outboxes, credit, budget, codec, handshakes, and
//! the steps of readers and writers. A step that blocks in a thread is suspended here
//! until it can continue. Writers also move between two reads of a ledger by the dispatcher
//! (`transport::outbox::interleaving`), like other threads.
//!
//! | invariant | says |
//! |---|---|
//! | order, twice | for each sender and receiver, frames arrive once, in the order sent; a handler is one sender for all its frames |
//! | lost | a frame that does not arrive was counted as dropped or lost, or its stream was cut |
//! | zero | at the end, all counts are zero |
//! | memory | the queues take no more than the budget and the fixed allowance of each queue |
//! | end | every connection ends within the grace, every newcomer gets a verdict |
//! | healthy | no peer that reads at full speed counts as slow, or loses a frame for lack of room |
//! | lines | the count of waiting frames is exact, and no sender waits for a receiver whose queue is below its mark |
//! | progress | a peer that reads at full speed gets its frames, and a connection that may take a turn gets one, within a bound |
//! | slots | there are never more handshakes than slots, and no peer that answers at once is cut |
//! | places | a certificate that is bound to a UUID has at most one session and a former one that is ending |
//! | grace | a peer that reads to the end of a connection that ends in order has received every frame |
//! | limit | if every peer behaves, no connection ends by a time limit |
//! | told once | the application has one callback for the begin and one for the end of each session, in order |
//! | standstill | no machine that could move waits |
//! | cluster | no instance is launched twice, a controller sees the effect of an event at once, and at rest all running instances |
//! | requests | a question is answered once, by its receiver |
//! | happened | in some world each kind of end has happened, a question was answered, and so on |
//!
//! `SSNTP_SEED=n` replays one seed and prints each step; `SSNTP_SEEDS=n` runs this number of seeds;
//! `make simulate` runs 100,000.
//!
//! | file | holds |
//! |---|---|
//! | `world` | the properties that are drawn from the seed, and the loop |
//! | `peers`, `plans` | the other ends of the connections, and their properties |
//! | `threads` | the server's threads of a connection, as machines |
//! | `slots` | the slots for handshakes, and the accept thread that gives them out |
//! | `cluster` | agents and controllers: their real cores |
//! | `network` | streams |
//! | `application` | the server's application, and the log of its callbacks |
//! | `checks` | the invariants |
//! | `several` | several servers in one world, with invariants of its own |
//! | `certificates` | the certificates of all worlds, issued once |

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a seed that fails is to end the test"
)]

mod application;
mod certificates;
mod checks;
mod cluster;
mod network;
mod peers;
mod plans;
mod several;
mod slots;
mod threads;
mod world;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use self::world::World;

/// The number of seeds in a plain `cargo test`.
const SEEDS: u64 = 1000;

/// The events that must happen in some of the worlds: ends of sessions, and actions of peers.
const MUST_HAPPEN: &[&str] = &[
    "application",
    "certificate",
    "closed",
    "kicked",
    "lost",
    "protocol",
    "refused",
    "replaced",
    "slow_consumer",
    "stopped",
    "a question is answered",
    "CONNECTED is never read",
    "a frame of many MiB arrives",
    "an instance is launched",
    "an instance ends by itself",
    "a controller sees what runs",
    "a bound certificate has two places",
    "a newcomer is cut to make room",
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Runs each seed, on two threads, and ends the test at faults. Returns the result of each. One
/// single seed is printed step by step.
fn each_seed<T: Send>(world: impl Fn(u64, bool) -> Result<T, String> + Sync) -> Vec<T> {
    let first = number("SSNTP_SEED").or(number("SSNTP_FROM")).unwrap_or(0);
    let is_told = number("SSNTP_SEED").is_some();
    let count = if is_told {
        1
    } else {
        number("SSNTP_SEEDS").unwrap_or(SEEDS)
    };
    let (next, results) = (AtomicU64::new(first), Mutex::new((Vec::new(), Vec::new())));
    let work = || {
        while let seed = next.fetch_add(1, Ordering::Relaxed)
            && seed < first + count
        {
            let result = run(seed, || world(seed, is_told));
            let mut results = results.lock().unwrap();
            match result {
                Ok(result) => results.0.push(result),
                Err(fault) => results.1.push(fault),
            }
            if results.1.len() >= 5 {
                break;
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    let (results, faults) = results.into_inner().unwrap();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    results
}

#[test]
fn every_seed_keeps_the_invariants() {
    let all = each_seed(|seed, is_told| {
        let mut world = World::new(seed, is_told);
        let (steps, mut happened) = (world.run()?, Vec::new());
        world.report_events(|event| happened.push(event));
        Ok((steps, world.arrived(), happened))
    });
    let count = all.len() as u64;
    let (mut steps, mut frames, mut happened) = (0, 0, BTreeMap::<_, u64>::new());
    for (taken, arrived, events) in all {
        (steps, frames) = (steps + taken, frames + arrived);
        events
            .into_iter()
            .for_each(|event| *happened.entry(event).or_default() += 1);
    }
    // A server that does nothing breaks no invariant. A few worlds may be quiet.
    assert!(
        frames > count || count < 20,
        "{count} seeds, {frames} frames have arrived"
    );
    // A server without any events breaks no invariant either.
    let missing = |event: &&&str| !happened.contains_key(**event);
    let missing: Vec<_> = MUST_HAPPEN.iter().filter(missing).collect();
    assert!(missing.is_empty() || count < SEEDS, "no world has {missing:?}");
    eprintln!("{count} seeds, {steps} steps, {frames} frames have arrived; {happened:?}");
}

#[test]
fn several_servers_keep_the_invariants() {
    let all = each_seed(|seed, is_told| {
        let mut world = several::World::new(seed, is_told);
        let (rounds, arrived) = world.run()?;
        Ok((rounds, arrived, world.happened()))
    });
    let count = all.len() as u64;
    let rounds: u64 = all.iter().map(|(rounds, ..)| rounds).sum();
    let frames: u64 = all.iter().map(|(_, frames, _)| frames).sum();
    let happened = |event: usize| all.iter().map(|(.., happened)| happened[event]).sum::<u64>();
    let [terms, renewed, drained, answered] = [0, 1, 2, 3].map(happened);
    let summary = format!(
        "{count} seeds, {rounds} rounds, {frames} frames have arrived, {terms} terms of leaders, {renewed} \
         clients were renewed, {drained} left a server that drained, {answered} questions were answered"
    );
    let is_busy =
        frames > 20 * count && terms > count / 10 && renewed.min(drained) > count / 50 && answered > count;
    assert!(is_busy || count < 20, "{summary}");
    eprintln!("{summary}");
}

fn run<T>(seed: u64, world: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let result = ssntp_transport::guard(world);
    ssntp_transport::outbox::interleaving::set(None);
    result
        .unwrap_or_else(Err)
        .map_err(|fault| format!("SSNTP_SEED={seed}: {fault}"))
}
