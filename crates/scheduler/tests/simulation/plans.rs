//! The properties of the peers of a world, drawn from its seed.

use std::time::Duration;

use super::certificates::{BOUND, UNBOUND};
use super::peers::{Ending, Pace, Plan};
use ssntp::Role;
use ssntp_test_support::random::Random;

pub(super) fn plans(random: &mut Random, scheduler: bool, is_long: bool) -> Vec<Plan> {
    let peers = random.between(2, 9);
    let entities = random.between(2, 6);
    let entities = u32::try_from(entities).unwrap();
    let longest = if is_long {
        (16 << 20) - 100
    } else {
        random.pick(&[100, 100, 2000, 8000, 30_000])
    };
    // Most worlds have few faults, so that many invariants apply.
    let trouble = random.pick(&[0, 30, 60]);
    let real = scheduler && random.chance(60);
    let asks = !scheduler && random.chance(15);
    let kicks = random.chance(15);
    let expires = random.chance(10);
    let mut plans = Vec::new();
    for number in 0..u32::try_from(peers).unwrap() {
        let entity = if random.chance(15) {
            u32::try_from(random.below(entities as usize)).unwrap()
        } else {
            number % (entities + 2)
        };
        let bound = (entity as usize) < BOUND && random.chance(50);
        let pace = match random.below(100) {
            n if n >= trouble => Pace::Full,
            n if n % 8 == 0 => Pace::Deaf,
            n if n % 2 == 0 => Pace::Stuck,
            // The smallest pieces of the longest frames would take too long.
            _ if is_long => Pace::Slow(1 << 18, Duration::from_millis(5)),
            _ => random.pick(&[
                Pace::Slow(50, Duration::from_micros(100)),
                Pace::Slow(1000, Duration::from_millis(5)),
            ]),
        };
        let most = match longest {
            0..=2000 => 150,
            2001..=30_000 => 20,
            _ => 2,
        };
        let frames = random.pick(&[0, most.min(10), most / 2, most]);
        let latest = if random.chance(70) { 300 } else { 20_000 };
        let role = if random.chance(35) {
            Role::CONTROLLER
        } else {
            Role::AGENT
        };
        let begins = Duration::from_micros(random.below(latest) as u64);
        let ending = match random.below(100) {
            n if n >= trouble + if real { 5 } else { 20 } => Ending::Stays,
            _ => match random.below(10) {
                0..4 => Ending::HalfCloses,
                4 => Ending::Truncates,
                5..7 => Ending::Cut(random.between(0, 40 + frames * 200)),
                7 => Ending::Junk,
                8 => Ending::ConnectsTwice,
                _ => Ending::Refuses,
            },
        };
        plans.push(Plan {
            number,
            entity,
            role,
            certificate: if bound {
                UNBOUND + entity as usize
            } else {
                random.below(UNBOUND)
            },
            // Most agents are connected when their controllers begin to start instances.
            begins: if real && role == Role::CONTROLLER {
                begins + Duration::from_millis(5)
            } else {
                begins
            },
            pace,
            ending,
            frames,
            longest,
            pause: Duration::from_micros(random.pick(&[0, 0, 0, 50, 3000])),
            rude: !real && random.chance(trouble / 2),
            silent: false,
            eager: random.chance(10),
            entities,
            scheduler,
            real,
            tracing: random.chance(20),
            asks,
            kicks,
            expires: (expires && random.chance(50))
                .then(|| Duration::from_millis(random.pick(&[0, 400, 1500, 4000]))),
        });
    }
    plans
}
