//! The throughput of a tenant's network compared with the bare underlay, and the time for many
//! instances of many tenants. A person reads the figures: they depend on the machine, so they are
//! not asserted.
//!
//! `SSNTP_MEASURE=1 cargo test --release -p ssntp-cli --test program networks::measured -- --nocapture --test-threads 1`

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::rig::{Instance, Rig, until};

const PORT: u16 = 9;
/// The time for which each way is measured in each round.
const PERIOD: Duration = Duration::from_secs(2);
const ROUNDS: usize = 7;
/// True if the host's own IP filters also receive the packets of its bridges. Only a kernel with that
/// filter has this setting.
const BRIDGED: &str = "net.bridge.bridge-nf-call-iptables";
const TENANTS: usize = 20;
const INSTANCES: usize = 10;

/// A cluster, if the environment asks for the measurement.
fn rig() -> Option<Rig> {
    if std::env::var_os("SSNTP_MEASURE").is_none() {
        eprintln!("skipped: SSNTP_MEASURE is not set, and this measures for half a minute");
        return None;
    }
    Rig::new()
}

#[test]
fn measure_a_tenants_network_against_the_underlay() {
    let Some(rig) = rig() else { return };
    rig.tenant("blue", 33);
    let (a, b) = (rig.start("blue", "a"), rig.start("blue", "b"));
    a.reaches(&b);
    rig.at("b", drain);
    b.within(drain);
    let bridged = |on: u8| ["a", "b"].map(|host| rig.output(host, &format!("sysctl -w {BRIDGED}={on}")));
    let bare = || rig.at("a", || gigabits(Ipv4Addr::new(10, 77, 0, 12)));
    let tenant = |a: &Instance| {
        let to = b.ip;
        a.within(move || gigabits(to))
    };
    // Each round measures all ways, so that other work of the machine slows all of them.
    let round = || {
        let bare = bare();
        let with = [1, 0].map(|on| {
            bridged(on);
            tenant(&a) / bare
        });
        (bare, with)
    };
    let rounds: Vec<_> = (0..ROUNDS).map(|_| round()).collect();
    for (bare, [filtered, plain]) in &rounds {
        println!("underlay {bare:6.2} Gbit/s; tenant {filtered:.2} of it, and {plain:.2} with {BRIDGED}=0");
    }
    let medians = [0, 1].map(|which| {
        let mut ratios: Vec<_> = rounds.iter().map(|(_, with)| with[which]).collect();
        ratios.sort_by(f64::total_cmp);
        ratios[ROUNDS / 2]
    });
    println!("medians {:.2} and {:.2}", medians[0], medians[1]);
    assert!(medians.iter().all(|ratio| *ratio > 0.0));
}

#[test]
fn measure_many_instances_of_many_tenants() {
    let Some(rig) = rig() else { return };
    let names: Vec<_> = (0..TENANTS).map(|number| format!("tenant-{number}")).collect();
    let mut begun = Instant::now();
    let mut lap = |step: &str| {
        println!("{:6.2} s: {step}", begun.elapsed().as_secs_f64());
        begun = Instant::now();
    };
    for (name, host) in names.iter().zip(100..) {
        rig.tenant(name, host);
    }
    lap(&format!("{TENANTS} tenants with their concentrators"));
    for name in &names {
        rig.done(&format!(
            "start --tenant {name} --mem 8 --count {INSTANCES} -- sleep 1000"
        ));
    }
    lap(&format!("{INSTANCES} instances of each"));
    for name in &names {
        let is_up = |rig: &Rig| rig.done(&format!("tenant show {name}")).matches(" up ").count() == 2;
        until(|| is_up(&rig));
    }
    lap("all tunnels are up");
    rig.done("delete --all");
    until(|| {
        ["a", "b"]
            .iter()
            .all(|host| rig.output(host, "ip -o link show group 21331").is_empty())
    });
    lap("all instances and concentrators are deleted, and no link is left on the nodes");
}

/// Reads all bytes of connections in the namespace of this thread, until the test ends.
fn drain() {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut buffer = vec![0; 1 << 17];
            while stream.read(&mut buffer).is_ok_and(|read| read > 0) {}
            // The sender waits for this byte, which confirms that its data has arrived.
            let _ = stream.write_all(b".");
        }
    });
}

/// Sends for the measured time, and returns the throughput.
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
