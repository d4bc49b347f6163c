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
//!   Codec, a plan)        Outbox: the real ones)                   Flow, and the scheduler)
//! ```
//!
//! There are no threads, sockets or clocks. What serves for real is real: the
//! dispatcher's core and runner, outboxes, credit, budget, codec, handshakes, and
//! the steps of readers and writers. What blocks in a thread is suspended here
//! until it can go on. Writers also move between two looks of the dispatcher
//! at a ledger (`transport::outbox::interleaving`), as other threads do.
//!
//! | invariant | says |
//! |---|---|
//! | order, twice | for each sender and receiver, frames arrive once, in the order sent; a handler is one sender, whatever makes it send |
//! | lost | a frame that does not arrive was counted as dropped or lost, or its stream was cut |
//! | zero | when all is over, nothing is counted any more |
//! | memory | the queues take no more than the budget and what each may have beyond |
//! | end | every connection ends within the grace, every newcomer gets a verdict |
//! | healthy | no peer that reads at full speed counts as slow, or loses a frame for want of room |
//! | lines | what is counted as waiting waits, and nobody waits for a receiver whose queue is below its mark |
//! | progress | whoever reads at full speed gets what waits, and whoever may take a turn gets one, within a bound |
//! | grace | a peer that reads to the end of a connection that ends in order has everything |
//! | limit | where every peer behaves, nothing ends by a time limit |
//! | told once | the application hears of each session's begin and end once, in order |
//! | standstill | nothing waits that could move |
//! | requests | a question is answered once, by the one who was asked |
//! | happened | in some world each kind of end has happened, a question was answered, and so on |
//!
//! `SSNTP_SEED=n` replays one seed and tells what happens; `SSNTP_SEEDS=n` runs so
//! many; `make simulate` runs 100,000.
//!
//! | file | holds |
//! |---|---|
//! | `world` | what is drawn from the seed, and the loop |
//! | `peers` | the other ends of the connections |
//! | `threads` | the server's threads of a connection, as machines |
//! | `network` | streams |
//! | `application` | the server's application, and the log of what it was told |
//! | `checks` | the invariants |
//! | `random` | random numbers |

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a seed that fails is to end the test"
)]

mod application;
mod checks;
mod network;
mod peers;
mod random;
mod threads;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use self::world::World;

/// The number of seeds in a plain `cargo test`.
const SEEDS: u64 = 1000;

/// What has to happen in some of the worlds: how sessions end, and what peers do.
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
];

#[test]
fn every_seed_keeps_the_invariants() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("SSNTP_SEED") {
        let (steps, frames) = run(seed, true, &mut BTreeMap::new()).unwrap();
        eprintln!("seed {seed}: {steps} steps, {frames} frames have arrived");
        return;
    }
    let seeds = number("SSNTP_SEEDS").unwrap_or(SEEDS);
    let from = number("SSNTP_FROM").unwrap_or(0);
    let (mut steps, mut frames) = (0, 0);
    let (mut faults, mut happened) = (Vec::new(), BTreeMap::new());
    for seed in from..from + seeds {
        match run(seed, false, &mut happened) {
            Ok((taken, arrived)) => (steps, frames) = (steps + taken, frames + arrived),
            Err(fault) => faults.push(fault),
        }
        if faults.len() >= 5 {
            break;
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // A server that does nothing breaks no invariant. A few worlds may be quiet.
    assert!(
        frames > seeds || seeds < 20,
        "{seeds} seeds, {frames} frames have arrived"
    );
    // Nor does a server to which nothing happens.
    let missing = |what: &&&str| !happened.contains_key(**what);
    let missing: Vec<_> = MUST_HAPPEN.iter().filter(missing).collect();
    assert!(missing.is_empty() || seeds < SEEDS, "no world has {missing:?}");
    eprintln!("{seeds} seeds, {steps} steps, {frames} frames have arrived; {happened:?}");
}

/// How many steps it took, and how many frames arrived at peers.
fn run(seed: u64, trace: bool, happened: &mut BTreeMap<&'static str, u64>) -> Result<(u64, u64), String> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed, trace);
        let steps = world.run()?;
        world.tell_what_happened(|what| *happened.entry(what).or_default() += 1);
        Ok((steps, world.arrived()))
    }));
    ssntp_transport::outbox::interleaving::set(None);
    let result = result.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        Err(said
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "it panics".into()))
    });
    result.map_err(|fault| format!("SSNTP_SEED={seed}: {fault}"))
}
