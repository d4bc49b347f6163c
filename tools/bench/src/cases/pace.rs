//! Frames at a fixed rate, each with its time of departure.

use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::{Bench, Figures};
use crate::child::Server;
use crate::failure::Failure;
use crate::histogram::Histogram;
use crate::pause;
use crate::raw::{Session, Stamped, Subject, System, now, stamp};

/// The time limit for the arrival of the last frames.
const ENDING: Duration = Duration::from_secs(10);

/// The frames to send, and their rate.
#[derive(Debug)]
pub(crate) struct Pace {
    pub(crate) system: System,
    pub(crate) subject: Subject,
    pub(crate) payload: usize,
    /// Writes a second of all senders together.
    pub(crate) rate: f64,
    pub(crate) sends: u64,
    /// The largest number of frames in a write.
    pub(crate) most: usize,
}

impl Pace {
    /// Connects a session that receives the frames.
    pub(crate) fn receiver(&self, bench: &Bench<'_>, server: &Server) -> Result<Session, Failure> {
        let side = self.subject.receiver();
        bench.pki.dialer(self.system, side)?.connect(&server.address)
    }
}

/// The result.
#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) taken: Histogram,
    pub(crate) lost: u64,
    rate: f64,
    /// The server's CPU time for a frame, in microseconds.
    pub(crate) cpu_us: f64,
    /// The server's resident memory in KiB while all sessions are connected.
    pub(crate) rss: u64,
}

impl Driven {
    pub(crate) fn figures(&self) -> Figures {
        vec![
            ("frames_per_second", self.rate),
            ("p50_us", self.taken.quantile(0.5)),
            ("p99_us", self.taken.quantile(0.99)),
            ("p99_9_us", self.taken.quantile(0.999)),
            ("server_cpu_us_per_frame", self.cpu_us),
            ("frames_lost", self.lost as f64),
        ]
    }
}

/// Sends from one sender after the other, at an even rate.
pub(crate) fn drive(
    bench: &Bench<'_>,
    server: &Server,
    senders: Vec<Session>,
    pace: &Pace,
) -> Result<Driven, Failure> {
    let inbound = pace.receiver(bench, server)?;
    let driven = drive_to(inbound, bench, server, senders, pace);
    if driven.taken.total() == 0 {
        return Err(Failure::new("no paced frame was delivered"));
    }
    Ok(driven)
}

/// As [`drive`], with a receiver that is already connected. It is no error if nothing arrives.
pub(crate) fn drive_to(
    mut inbound: Session,
    bench: &Bench<'_>,
    server: &Server,
    mut senders: Vec<Session>,
    pace: &Pace,
) -> Driven {
    let stream = inbound.stream();
    let mut batch = Stamped::new(pace.system, pace.subject, pace.payload, pace.most);
    let expected = pace.sends * batch.frames() as u64;
    let (received, gone) = (AtomicU64::new(0), AtomicBool::new(false));
    let began = now();
    let cpu = server.cpu();
    let (taken, elapsed, rss) = std::thread::scope(|scope| {
        let (received, gone) = (&received, &gone);
        let receiver = scope.spawn(move || {
            let mut taken = Histogram::default();
            while taken.total() < expected {
                let before = taken.total();
                // Frames that arrived together have one time of arrival, because the clock is
                // read only at the first of them.
                let mut arrived = None;
                let more = inbound.receive(&mut |payload| {
                    let arrived = *arrived.get_or_insert_with(|| nanoseconds(began.elapsed()));
                    taken.add(arrived.saturating_sub(stamp(payload).unwrap_or(arrived)));
                });
                received.fetch_add(taken.total() - before, Relaxed);
                if !more {
                    break;
                }
            }
            gone.store(true, Relaxed);
            taken
        });
        // If a write is late because the write before it had to wait, its latency counts from
        // the time at which it was due: the server caused the delay. If it is late because
        // this thread woke up late, it counts from the waking.
        let first = began.elapsed();
        let interval = Duration::from_secs_f64(1.0 / pace.rate.max(1.0));
        let mut woke = first;
        let turns = (0..senders.len()).cycle();
        for (n, turn) in (1..=pace.sends).zip(turns) {
            let due = first + interval.mul_f64(n as f64);
            let early = due.saturating_sub(began.elapsed());
            if !early.is_zero() {
                pause(early);
                woke = began.elapsed();
            }
            if bench.stop.requested() || gone.load(Relaxed) {
                break;
            }
            let stamped = batch.fill(nanoseconds(due.max(woke)));
            if let Some(sender) = senders.get_mut(turn)
                && !sender.send_once(&stamped)
            {
                break;
            }
        }
        let elapsed = began.elapsed() - first;
        bench.wait_until(ENDING, || {
            received.load(Relaxed) >= expected || gone.load(Relaxed)
        });
        let rss = server.rss();
        let _ = stream.shutdown(Shutdown::Both);
        (receiver.join().unwrap_or_default(), elapsed, rss)
    });
    let cpu = server.cpu().saturating_sub(cpu);
    Driven {
        lost: expected.saturating_sub(taken.total()),
        rate: expected as f64 / elapsed.as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / taken.total().max(1) as f64,
        taken,
        rss,
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
