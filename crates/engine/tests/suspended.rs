//! A leader whose host is suspended for an hour: its lease is over when it goes on.
//!
//! A time namespace moves the clock that also counts while a host is suspended, as a suspend does. A process
//! enters one only while it has a single thread, so this test is a program without the test harness. Only root
//! may do it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    deprecated,
    reason = "a test may fail; this process has one thread, for which `unshare` is sound"
)]

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;

use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces, unshare};
use ssntp_engine::{Join, LEADER_TIME, Machine, Member, Next};
use ssntp_test_support::memory_engine::MemoryEngine;
use ssntp_transport::{elapsed, now};
use uuid::Uuid;

const HOUR: u64 = 3600;

/// Moves the clock of this process by an hour that no `Instant` of the standard library shows.
fn suspend() -> io::Result<()> {
    unshare(UnshareFlags::NEWTIME)?;
    fs::write("/proc/self/timens_offsets", format!("boottime {HOUR} 0"))?;
    let namespace = File::open("/proc/self/ns/time_for_children")?;
    Ok(move_into_thread_name_spaces(
        namespace.as_fd(),
        ThreadNameSpaceType::TIME,
    )?)
}

fn leader() -> Machine {
    let member = Member {
        uuid: Uuid::from_u128(1),
        incarnation: 1,
        addresses: Vec::new(),
        version: String::new(),
        token: 0,
    };
    let (mut machine, engine) = (Machine::new(Join { member, leads: true }), MemoryEngine::new());
    let start = now();
    while machine.view().acts(now()).is_none() {
        assert!(elapsed(start) < LEADER_TIME, "it does not lead");
        if let Next::Ask(request) = machine.next(now()) {
            let sent = now();
            machine.handle_answer(&request, sent, now(), engine.ask_at(sent, &request));
        }
    }
    machine
}

fn main() {
    let (machine, before) = (leader(), now());
    if let Err(why) = suspend() {
        println!("skipped: no time namespace: {why}");
        return;
    }
    assert!(elapsed(before).as_secs() >= HOUR, "{:?}", elapsed(before));
    assert_eq!(machine.view().acts(now()), None);
    println!("a_lease_ends_while_the_host_is_suspended ... ok");
}
