//! Many sessions at the same time.

use std::time::Duration;

use super::pace::{Pace, drive};
use super::{Bench, Figures, raise_descriptors};
use crate::failure::Failure;
use crate::raw::{Side, Subject, System, now};

/// About the length of an agent's STATS.
const PAYLOAD: usize = 512;
/// Frames and batches a second of the curve. This is far below the maximum, so that no frame
/// waits for another and the CPU time of a frame is its cost.
const SINGLES: f64 = 4_000.0;
const BATCHES: f64 = 500.0;

/// Connects this number of agents. Each sends STATS every second.
pub(crate) fn many(bench: &Bench<'_>, count: usize) -> Result<Figures, Failure> {
    raise_descriptors(count)?;
    // All agents show one certificate, and a certificate may have three quarters of the
    // sessions. One more session is the controller's.
    let sessions = (count.saturating_add(count / 3).saturating_add(2)).to_string();
    let server = bench.ssntp(&["--max-sessions", &sessions])?;
    let base = server.rss();
    let began = now();
    let agents = bench
        .pki
        .dialer(System::Ssntp, Side::Sender)?
        .connect_many(&server.address, count)?;
    let connected = began.elapsed().as_secs_f64();
    // At least three frames of each agent.
    let rounds = bench.window.as_secs().max(3);
    let found = drive(
        bench,
        &server,
        agents,
        &Pace {
            system: System::Ssntp,
            subject: Subject::Load,
            payload: PAYLOAD,
            rate: count as f64,
            sends: count as u64 * rounds,
            most: 1,
        },
    )?;
    let rss = found.rss;
    let mut figures = vec![
        ("connect_seconds", connected),
        ("sessions_per_second", count as f64 / connected),
        ("rss_kib", rss as f64),
        (
            "kib_per_session",
            (rss as f64 - base as f64) / count.max(1) as f64,
        ),
    ];
    figures.extend(found.figures());
    Ok(figures)
}

/// The server's CPU time for a frame while this number of sessions take turns: first with
/// single frames, then with batches of 16 KiB.
pub(crate) fn curve(bench: &Bench<'_>, count: usize) -> Result<Figures, Failure> {
    raise_descriptors(count)?;
    let mut figures = Vec::new();
    for (name, rate, most) in [
        ("server_cpu_us_per_frame", SINGLES, 1),
        ("server_cpu_us_per_batched_frame", BATCHES, usize::MAX),
    ] {
        let server = bench.start(System::Ssntp)?;
        let agents = bench
            .pki
            .dialer(System::Ssntp, Side::Sender)?
            .connect_many(&server.address, count)?;
        // Handshake threads end some seconds after their last work, and their end costs CPU time.
        bench.wait(Duration::from_secs(3));
        let sends = super::whole(bench.window.as_secs_f64() * rate) as u64;
        let pace = Pace {
            system: System::Ssntp,
            subject: Subject::Load,
            payload: PAYLOAD,
            rate,
            sends,
            most,
        };
        let found = drive(bench, &server, agents, &pace)?;
        figures.push((name, found.cpu_us));
    }
    Ok(figures)
}
