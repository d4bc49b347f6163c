//! How fast the network of a tenant is beside the bare underlay, for a person who reads it: the
//! figures depend on the machine, so nothing is asserted about them.
//!
//! `SSNTP_MEASURE=1 cargo test --release -p ssntp-cli --test program networks::throughput -- --nocapture`

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::rig::{Instance, Rig};

const PORT: u16 = 9;
/// How long each of the two is measured in each round.
const PERIOD: Duration = Duration::from_secs(3);
const ROUNDS: usize = 5;

#[test]
fn a_tenants_network_beside_the_bare_underlay() {
    if std::env::var_os("SSNTP_MEASURE").is_none() {
        eprintln!("skipped: SSNTP_MEASURE is not set, and this measures for half a minute");
        return;
    }
    let Some(rig) = Rig::new() else { return };
    rig.tenant("blue", 33);
    let (a, b) = (rig.start("blue", "a"), rig.start("blue", "b"));
    a.reaches(&b);
    rig.at("b", drain);
    b.within(drain);
    let bare = || rig.at("a", || gigabits(Ipv4Addr::new(10, 77, 0, 12)));
    let tenant = |a: &Instance| {
        let to = b.ip;
        a.within(move || gigabits(to))
    };
    // One after the other in each round, so that what else the machine does slows both.
    let mut rounds: Vec<_> = (0..ROUNDS).map(|_| (bare(), tenant(&a))).collect();
    rounds.sort_by(|one, other| (one.1 / one.0).total_cmp(&(other.1 / other.0)));
    for (bare, tenant) in &rounds {
        println!(
            "underlay {bare:6.2} Gbit/s, tenant {tenant:6.2} Gbit/s, ratio {:.2}",
            tenant / bare
        );
    }
    let (bare, tenant) = rounds[ROUNDS / 2];
    println!("median ratio {:.2}", tenant / bare);
    assert!(rounds.iter().all(|(bare, tenant)| *bare > 0.0 && *tenant > 0.0));
}

/// Reads all that comes, from the namespace of this thread, until the test ends.
fn drain() {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut buffer = vec![0; 1 << 17];
            while stream.read(&mut buffer).is_ok_and(|read| read > 0) {}
            // The sender waits for this: what it has sent has arrived.
            let _ = stream.write_all(b".");
        }
    });
}

/// Sends for a while.
fn gigabits(to: Ipv4Addr) -> f64 {
    let mut stream = TcpStream::connect((to, PORT)).unwrap();
    let (begun, buffer) = (Instant::now(), vec![0; 1 << 17]);
    let mut sent = 0.0;
    while begun.elapsed() < PERIOD {
        stream.write_all(&buffer).unwrap();
        sent += buffer.len() as f64;
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    sent * 8.0 / begun.elapsed().as_secs_f64() / 1e9
}
