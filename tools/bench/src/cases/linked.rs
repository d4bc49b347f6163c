//! Two servers that are linked, beside one server in the same run.
//!
//! ```text
//!  senders ──▶ first server ══ link ══▶ second server ──▶ receivers
//!                    └──▶ receivers: of several, every other one
//! ```

use std::fmt;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use ssntp::transport::Address;

use super::pace::{Pace, drive_to};
use super::throughput::{TOLD, routed, routed_by};
use super::{Bench, Figures, whole};
use crate::child::{Server, free_port};
use crate::failure::Failure;
use crate::raw::{Session, Side, Stamped, Subject, System, now, stamp};

const PAYLOAD: usize = 256;
/// Frames a second of the latency case.
const LEISURE: u32 = 1_000;
/// The frames whose order is looked at.
const ORDERED: u64 = 10_000_000;
/// The time limit for two servers to link.
const LINKING: Duration = Duration::from_secs(30);
/// The time without a frame after which no further frames are expected.
const QUIET: Duration = Duration::from_secs(10);
/// The bytes for the receiver that does not read: more than a server accepts before it holds the
/// sender, and less than the 64 MiB at which it ends the receiver.
const STUCK: usize = 40 << 20;

/// One case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linked {
    /// One sender sends as fast as it can to so many receivers.
    Throughput(usize),
    /// One-way latency at leisure.
    Latency,
    /// A check that frames arrive in the order in which they were sent.
    Order,
    /// The throughput of a pair whose link has a stuck receiver as well.
    Stuck,
}

impl Linked {
    pub(super) const ALL: [Self; 5] = [
        Self::Throughput(1),
        Self::Throughput(8),
        Self::Latency,
        Self::Order,
        Self::Stuck,
    ];

    pub(super) fn measure(self, bench: &Bench<'_>) -> Result<Figures, Failure> {
        match self {
            Self::Throughput(receivers) => throughput(bench, receivers),
            Self::Latency => latency(bench),
            Self::Order => order(bench),
            Self::Stuck => stuck(bench),
        }
    }
}

impl fmt::Display for Linked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Throughput(receivers) => write!(f, "1-{receivers}/{PAYLOAD}"),
            Self::Latency => write!(f, "latency/{LEISURE}"),
            Self::Order => write!(f, "order/{ORDERED}"),
            Self::Stuck => f.write_str("stuck"),
        }
    }
}

/// Starts two servers, and waits until a frame has crossed their link.
fn pair(bench: &Bench<'_>) -> Result<[Server; 2], Failure> {
    let [first, second] = [free_port()?, free_port()?].map(|port| Address::tcp("127.0.0.1", port));
    let peers = format!("{first},{second}");
    let start = |address| {
        let more = ["--peers", peers.as_str()];
        Server::ssntp_at(address, bench.pki, &bench.programs.ssntp, &more).map(|server| bench.limited(server))
    };
    let servers = [start(&first)?, start(&second)?];
    let (mut sender, mut receiver) = across(bench, &servers, Subject::Load)?;
    let one = Stamped::new(System::Ssntp, Subject::Load, PAYLOAD, 1).fill(0);
    let (arrived, stream) = (AtomicBool::new(false), receiver.stream());
    let linked = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut goes_on = true;
            while goes_on && !arrived.load(Relaxed) {
                goes_on = receiver.receive(&mut |_| arrived.store(true, Relaxed));
            }
        });
        let linked = bench.wait_until(LINKING, || !sender.send_once(&one) || arrived.load(Relaxed));
        let _ = stream.shutdown(Shutdown::Both);
        let _ = reader.join();
        linked && arrived.load(Relaxed)
    });
    if linked {
        Ok(servers)
    } else {
        Err(Failure::new("no frame came across the link"))
    }
}

/// A sender at the first server, and a receiver at the last.
fn across(bench: &Bench<'_>, servers: &[Server], subject: Subject) -> Result<(Session, Session), Failure> {
    let [first, .., last] = servers else {
        return Err(Failure::new("there is no link"));
    };
    let connect = |side, server: &Server| bench.pki.dialer(System::Ssntp, side)?.connect(&server.address);
    let receiver = connect(subject.receiver(), last)?;
    Ok((connect(Side::Sender, first)?, receiver))
}

/// A figure of two servers, the same of one, and the first in relation to the second.
fn beside(found: &[Figures; 2], [key, of_one, ratio]: [&'static str; 3]) -> Result<Figures, Failure> {
    let value = |figures: &Figures| {
        let found = figures.iter().find(|(name, _)| *name == key);
        found.map(|(_, value)| *value).filter(|value| *value > 0.0)
    };
    match found.each_ref().map(value) {
        [Some(one), Some(two)] => Ok(vec![(key, two), (of_one, one), (ratio, two / one)]),
        _ => Err(Failure::new(format!("there is no {key}; use more --seconds"))),
    }
}

fn throughput(bench: &Bench<'_>, receivers: usize) -> Result<Figures, Failure> {
    let one = routed(bench, System::Ssntp, 1, receivers, PAYLOAD)?;
    let two = routed_by(bench, &pair(bench)?, System::Ssntp, 1, receivers, PAYLOAD)?;
    let lost = two.iter().copied().filter(|(name, _)| *name == "frames_lost");
    let lost: Vec<_> = lost.collect();
    let keys = [
        "frames_per_second",
        "one_server_frames_per_second",
        "of_one_server",
    ];
    Ok([beside(&[one, two], keys)?, lost].concat())
}

fn latency(bench: &Bench<'_>) -> Result<Figures, Failure> {
    let rate = f64::from(LEISURE);
    let pace = Pace {
        system: System::Ssntp,
        subject: Subject::Load,
        payload: PAYLOAD,
        rate,
        // Ten windows, as in the case of one server.
        sends: (whole(bench.window.as_secs_f64() * rate * 10.0) as u64).max(100),
        most: 1,
    };
    let server = bench.start(System::Ssntp)?;
    let sender = bench
        .pki
        .dialer(System::Ssntp, Side::Sender)?
        .connect(&server.address)?;
    let receiver = pace.receiver(bench, &server)?;
    let one = drive_to(receiver, bench, &server, vec![sender], &pace).figures();
    drop(server);
    let servers = pair(bench)?;
    let (sender, receiver) = across(bench, &servers, Subject::Load)?;
    bench.wait(TOLD);
    let two = drive_to(receiver, bench, &servers[0], vec![sender], &pace).figures();
    let found = [one, two];
    let p50 = beside(&found, ["p50_us", "one_server_p50_us", "p50_of_one_server"])?;
    let p99 = beside(&found, ["p99_us", "one_server_p99_us", "p99_of_one_server"])?;
    Ok([p50, p99].concat())
}

/// Sends numbered frames as fast as the servers take them.
fn order(bench: &Bench<'_>) -> Result<Figures, Failure> {
    let servers = pair(bench)?;
    let (mut sender, mut receiver) = across(bench, &servers, Subject::Load)?;
    bench.wait(TOLD);
    receiver.limit_receive(Some(QUIET));
    let began = now();
    let (count, wrong) = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let (mut count, mut last, mut wrong) = (0, 0, 0_u64);
            while count < ORDERED
                && receiver.receive(&mut |payload| {
                    let number = stamp(payload).unwrap_or(0);
                    wrong += u64::from(number <= last);
                    last = number;
                    count += 1;
                })
            {}
            (count, wrong)
        });
        let mut batch = Stamped::new(System::Ssntp, Subject::Load, PAYLOAD, usize::MAX);
        let mut next = 1;
        while next <= ORDERED && !bench.stop.requested() {
            let numbered = batch.number(next);
            if !sender.send(&numbered) {
                break;
            }
            next += u64::from(numbered.frames());
        }
        reader.join().map_err(|_| Failure::new("the receiver panicked"))
    })?;
    Ok(vec![
        ("frames", count as f64),
        ("frames_per_second", count as f64 / began.elapsed().as_secs_f64()),
        ("out_of_order", wrong as f64),
        ("frames_lost", ORDERED.saturating_sub(count) as f64),
    ])
}

/// The throughput of a pair, before and while another receiver on the same link reads nothing of
/// what it is sent.
fn stuck(bench: &Bench<'_>) -> Result<Figures, Failure> {
    let servers = pair(bench)?;
    let (mut sender, mut receiver) = across(bench, &servers, Subject::Bystander)?;
    let (mut other, reads_nothing) = across(bench, &servers, Subject::Load)?;
    bench.wait(TOLD);
    let ends = [&sender, &receiver, &other, &reads_nothing].map(Session::stream);
    let [batch, load] = [Subject::Bystander, Subject::Load]
        .map(|subject| Stamped::new(System::Ssntp, subject, PAYLOAD, usize::MAX).fill(0));
    let (delivered, held, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let [before, beside] = std::thread::scope(|scope| {
        let (delivered, held, stop) = (&delivered, &held, &stop);
        scope.spawn(move || {
            let mut each = |_: &[u8]| {
                delivered.fetch_add(1, Relaxed);
            };
            while receiver.receive(&mut each) {}
        });
        scope.spawn(move || while !stop.load(Relaxed) && sender.send(&batch) {});
        let rate = || {
            bench.wait(TOLD);
            let (began, before) = (now(), delivered.load(Relaxed));
            bench.wait(bench.window);
            (delivered.load(Relaxed) - before) as f64 / began.elapsed().as_secs_f64()
        };
        let before = rate();
        scope.spawn(move || {
            for _ in 0..STUCK / load.len() {
                if !other.send(&load) {
                    break;
                }
                held.fetch_add(load.len() as u64, Relaxed);
            }
        });
        let beside = rate();
        stop.store(true, Relaxed);
        for end in ends {
            let _ = end.shutdown(Shutdown::Both);
        }
        [before, beside]
    });
    drop(reads_nothing);
    Ok(vec![
        ("frames_per_second", beside),
        ("frames_per_second_before", before),
        ("of_before", beside / before.max(1.0)),
        ("megabytes_to_the_stuck_one", held.into_inner() as f64 / 1e6),
    ])
}
