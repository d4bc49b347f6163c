//! No bytes make the library panic: runs the body of every fuzz target on its seeds, on damaged
//! seeds, and on random bytes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use proptest::prelude::*;
use ssntp_test_support::bodies::BODIES;
use ssntp_test_support::peers::{cluster, peers};

/// The seeds of a fuzz target with their names, in one order.
fn seeds(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/seeds")
        .join(target);
    let files = std::fs::read_dir(directory).unwrap();
    let mut seeds: Vec<_> = files
        .map(|file| {
            let path = file.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            (path, bytes)
        })
        .collect();
    seeds.sort();
    seeds
}

#[test]
fn every_seed_is_survived() {
    for (target, body) in BODIES {
        let seeds = seeds(target);
        assert!(!seeds.is_empty(), "{target} has no seed");
        for (path, seed) in seeds {
            println!("{}", path.display());
            body(&seed);
        }
    }
}

#[test]
fn every_beginning_of_a_seed_is_survived() {
    for (target, body) in BODIES {
        for (path, seed) in seeds(target) {
            println!("{}", path.display());
            let step = seed.len().div_ceil(200).max(1);
            (0..seed.len()).step_by(step).for_each(|len| body(&seed[..len]));
        }
    }
}

/// The damage of a seed: a position, a number of bytes, and the bytes that replace them.
type Damage = (prop::sample::Index, usize, Vec<u8>);

fn damages() -> impl Strategy<Value = Vec<Damage>> {
    let damage = (
        any::<prop::sample::Index>(),
        0..4_usize,
        prop::collection::vec(any::<u8>(), 0..4),
    );
    prop::collection::vec(damage, 1..4)
}

fn damaged(mut bytes: Vec<u8>, damages: Vec<Damage>) -> Vec<u8> {
    for (place, removed, new) in damages {
        let from = place.index(bytes.len() + 1);
        let to = bytes.len().min(from + removed);
        bytes.splice(from..to, new);
    }
    bytes
}

/// The number of damaged variants of the seeds of each target.
const CASES: u32 = 2000;

fn survives(target: &str) {
    let (_, body) = BODIES.into_iter().find(|(name, _)| *name == target).unwrap();
    let seeds: Vec<_> = seeds(target).into_iter().map(|(_, seed)| seed).collect();
    let config = ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let damaged_seeds = (prop::sample::select(seeds), damages()).prop_map(|(seed, how)| damaged(seed, how));
    let any_bytes = prop::collection::vec(any::<u8>(), 0..300);
    let inputs = prop_oneof![4 => damaged_seeds, 1 => any_bytes];
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(&inputs, |input| {
            body(&input);
            Ok(())
        })
        .unwrap();
}

macro_rules! each_survives_any_bytes {
    ($($target:ident)*) => {
        $(
            #[test]
            fn $target() {
                survives(stringify!($target));
            }
        )*

        #[test]
        fn no_target_is_left_out() {
            assert_eq!([$(stringify!($target)),*], BODIES.map(|(name, _)| name));
        }
    };
}

/// Plays the seeds of a target, and then `scripts` random scripts. The random numbers have a fixed
/// seed, so that a failure can be repeated.
fn plays(target: &str, play: fn(&[u8]), scripts: u32) {
    let mut state = 0x5eed_u64;
    let mut byte = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    for (path, seed) in seeds(target) {
        println!("{}", path.display());
        play(&seed);
    }
    for _ in 0..scripts {
        let script: Vec<u8> = (0..600).map(|_| byte()).collect();
        play(&script);
    }
}

#[test]
fn a_server_survives_peers_that_send_anything() {
    plays("peers", peers, 60);
}

#[test]
fn a_scheduler_and_an_agent_survive_peers_that_send_anything() {
    plays("cluster", cluster, 40);
}

mod any_bytes_are_survived_by {
    use super::*;

    each_survives_any_bytes! {
        codec server_handshake client_handshake trace stream payload_yaml start_documents stats certificate
        pem address opflex link join
    }
}
