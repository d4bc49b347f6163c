//! Many sessions at once.

use std::time::Duration;

use super::pace::{Pace, drive};
use super::{Bench, Figures, raise_descriptors};
use crate::failure::Failure;
use crate::raw::{Side, Subject, System, now};

/// The length of an agent's STATS, about.
const PAYLOAD: usize = 512;
/// Frames each second of the curve: far from what goes at most, so that what
/// is measured is the cost of a frame.
const SINGLES: f64 = 4_000.0;
const BATCHES: f64 = 500.0;

/// Connects so many agents, and lets each send STATS each second.
pub(crate) fn many(bench: &Bench<'_>, count: usize) -> Result<Figures, Failure> {
    raise_descriptors(count)?;
    // All agents show one certificate, which may have three quarters of the
    // sessions; one is the controller's.
    let sessions = (count.saturating_add(count / 3).saturating_add(2)).to_string();
    let server = bench.ssntp(&["--max-sessions", &sessions])?;
    let base = server.rss();
    let began = now();
    let agents = bench
        .pki
        .dialer(System::Ssntp, Side::Sender)?
        .connect_many(&server.address, count)?;
    let connected = began.elapsed().as_secs_f64();
    // At least some whole rounds.
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

/// What a frame costs the server while so many sessions take turns: each
/// frame alone, and in batches of 16 KiB.
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
        // The threads of their handshakes end first.
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
