//! A host that has one percent of a processor, and a hundred clients that connect at once, in virtual time.
//!
//! ```text
//!  client: connects ─▶ backlog ─▶ slot: computes ─ asks the client ─ computes ─▶ admitted
//!             ▲          │ 10 s after it has connected, it is gone:
//!             └─ pause ──┘ its slot or its place in the backlog stays until a thread reads
//! ```
//!
//! All handshakes that compute share the processor. One whose client is gone costs as much as another until then.

use std::collections::{BTreeMap, VecDeque};

use super::*;

const STEP: Duration = Duration::from_millis(10);
/// The part of a step that the processor works for this server.
const WORK: Duration = Duration::from_micros(100);
/// The processor time of a handshake before and after the answer of its client.
const COST: [Duration; 2] = [Duration::from_micros(1000), Duration::from_micros(700)];
/// The time limit of a client for a handshake.
const GIVES_UP: Duration = Duration::from_secs(10);
const CLIENTS: usize = 100;
const END: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq)]
enum Client {
    /// Since this time it waits to be admitted.
    Connected(Instant),
    /// It connects again at this time, after so many attempts.
    Pauses(Instant),
    Admitted,
}

struct Handshake {
    client: usize,
    /// The connection that it serves; a client that has connected again has a later one.
    began: Instant,
    part: usize,
    left: Duration,
}

/// The number of clients that are admitted within [`END`].
fn admitted(patience: Patience) -> usize {
    let start = crate::host::now();
    let (mut now, mut random) = (start, 7_u64);
    let mut slots = Slots::new(128, patience);
    let mut clients = [(Client::Pauses(start), 0_u32); CLIENTS];
    let mut backlog: VecDeque<(usize, Instant)> = VecDeque::new();
    let mut threads: BTreeMap<u64, Handshake> = BTreeMap::new();
    while now < start + END {
        for (index, (client, attempts)) in clients.iter_mut().enumerate() {
            match *client {
                Client::Pauses(at) if at <= now => {
                    *client = Client::Connected(now);
                    backlog.push_back((index, now));
                }
                Client::Connected(since) if now >= since + GIVES_UP => {
                    // As the client of this project: exponential, capped, and fully jittered.
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    let longest = (100 << (*attempts).min(9)).min(30_000);
                    let pause = Duration::from_millis((random >> 33) % longest);
                    (*client, *attempts) = (Client::Pauses(now + pause), *attempts + 1);
                }
                _ => {}
            }
        }
        while let Some((client, began)) = backlog.front().copied() {
            let Some(slot) = slots.take((), now) else { break };
            backlog.pop_front();
            let (part, left) = (0, COST[0]);
            threads.insert(
                slot,
                Handshake {
                    client,
                    began,
                    part,
                    left,
                },
            );
        }
        let share = WORK / u32::try_from(threads.len().max(1)).unwrap();
        now += STEP;
        threads.retain(|slot, thread| {
            thread.left = thread.left.saturating_sub(share);
            if !thread.left.is_zero() {
                return true;
            }
            let (client, attempts) = &mut clients[thread.client];
            let is_there = *client == Client::Connected(thread.began);
            if thread.part == 0 && is_there {
                // The answer is there at once, compared with the time of a step.
                slots.waits(*slot, Wait::Read, now);
                slots.goes_on(*slot, Wait::Read, now);
                (thread.part, thread.left) = (1, COST[1]);
                return true;
            }
            if thread.part == 1 && slots.input_complete(*slot, now) {
                slots.admitted(*slot);
            }
            if thread.part == 1 && is_there {
                (*client, *attempts) = (Client::Admitted, 0);
            }
            slots.give_back(*slot, now);
            false
        });
    }
    let admitted = clients.iter().filter(|(client, _)| *client == Client::Admitted);
    admitted.count()
}

#[test]
fn a_hundred_newcomers_get_in_at_one_percent_of_a_processor() {
    assert_eq!(admitted(PATIENCE), CLIENTS);
    // With a fixed number of slots they only take the processor from each other.
    let fixed = Patience {
        too_long: None,
        ..PATIENCE
    };
    assert!(admitted(fixed) < CLIENTS);
}
