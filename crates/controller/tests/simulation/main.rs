//! The simulation of a controller: a cluster that fails in every way, from one seed, in virtual
//! time.
//!
//! ```text
//!  a seed ─▶ World: users, faults, time
//!              │
//!              ├─▶ Core (the real one) ── writes ─▶ a disk ── what the next process finds
//!              │        ▲                 commands
//!              │        │ Seen, answers      ▼
//!              └─▶ Cluster: a scheduler and nodes, which lose what real ones may lose
//! ```
//!
//! | invariant | meaning |
//! |---|---|
//! | written down | no START is sent for an instance that is not in the database |
//! | one node | no UUID is ever given to two nodes |
//! | memory | the state of the reconciler equals the state in the database |
//! | rest | at each time the reconciler runs out of actions after some steps |
//! | once | while no node and no scheduler fails, no slot ever has two instances that run, however often the controller is killed |
//! | desired | once faults end, exactly the wanted instances run, with the right version, and stay |
//! | available | the controller removes a running instance, also one of the surge, only while at least the count less `max_unavailable` of the others run; beside slots that hang, one more of the count may be missing |
//! | surge | no slot beyond the count and the surge is filled, and none beyond the count while nothing is to be replaced |
//! | emptied | once faults end, no instance runs on a node in maintenance |
//! | back | a version that fails is rolled back to the last good one |
//!
//! `SSNTP_SEED=n` replays one seed and prints its events; `SSNTP_SEEDS=n` runs this number of seeds;
//! `make simulate` runs 100,000.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a seed that fails is to end the test"
)]
#![allow(clippy::cast_possible_truncation, reason = "all numbers are small")]

mod cluster;
mod random;
mod world;

use self::random::Random;
use self::world::{Faults, World};

/// The number of seeds in a plain `cargo test`.
const SEEDS: u64 = 1000;

#[test]
fn every_seed_keeps_the_invariants() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("SSNTP_SEED") {
        let (starts, kills) = run(seed, true).unwrap();
        eprintln!("seed {seed}: {starts} STARTs, {kills} kills");
        return;
    }
    let seeds = number("SSNTP_SEEDS").unwrap_or(SEEDS);
    let from = number("SSNTP_FROM").unwrap_or(0);
    let (mut starts, mut kills) = (0, 0);
    let mut faults = Vec::new();
    for seed in from..from + seeds {
        match run(seed, false) {
            Ok((more, killed)) => (starts, kills) = (starts + more, kills + killed),
            Err(fault) => faults.push(fault),
        }
        if faults.len() >= 5 {
            break;
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // A controller that starts nothing breaks no invariant.
    assert!(starts > seeds, "{seeds} seeds, {starts} STARTs");
    eprintln!("{seeds} seeds, {starts} STARTs, {kills} kills");
}

/// The number of STARTs that were sent, and the number of kills of the controller.
fn run(seed: u64, trace: bool) -> Result<(u64, u64), String> {
    let result = ssntp_transport::guard(|| {
        let mut random = Random::new(!seed);
        let faults = Faults {
            kills: random.happens(700),
            store: random.happens(300),
            nodes: random.happens(500),
            sessions: random.happens(500),
            ends: random.happens(500),
            database: random.happens(200),
            clock: random.happens(400),
            checks: random.happens(500),
            maintenance: random.happens(400),
        };
        let mut world = World::new(seed, faults, trace);
        world.run();
        (world.starts, world.kills)
    });
    result.map_err(|why| format!("SSNTP_SEED={seed}: {why}"))
}
