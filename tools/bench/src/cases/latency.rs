//! The time of one frame from one session to another.

use std::time::Duration;

use super::pace::{Pace, drive};
use super::{Bench, Figures, throughput, whole};
use crate::failure::Failure;
use crate::raw::{Side, Stamped, Subject, System};

const PAYLOAD: usize = 256;
/// Up to this rate each frame is a write of its own. At higher rates a write holds 16 KiB.
const SINGLE: f64 = 5_000.0;
/// The window of the slow case in relation to that of other cases. With a window of one
/// second this gives 10,000 frames, so that ten of them are beyond p99.9.
const LONG: u32 = 10;

/// Sends so few frames a second that none waits for another.
pub(crate) fn at_leisure(bench: &Bench<'_>, system: System, rate: f64) -> Result<Figures, Failure> {
    paced(bench, system, rate, bench.window * LONG)
}

/// Sends so many frames a second that the server is busy.
pub(crate) fn under_load(bench: &Bench<'_>, system: System, rate: f64) -> Result<Figures, Failure> {
    paced(bench, system, rate, bench.window)
}

/// Half of the rate that the slowest system reaches, so that all systems can carry it and are
/// compared at one rate.
pub(crate) fn half_of_slowest(bench: &Bench<'_>, systems: &[System]) -> Result<f64, Failure> {
    let mut slowest = f64::INFINITY;
    for system in systems {
        let found = throughput::routed(bench, *system, 1, 1, PAYLOAD)?;
        let most = found.iter().find(|(name, _)| *name == "frames_per_second");
        let most = most.map_or(0.0, |(_, rate)| *rate);
        if most <= 0.0 {
            let (name, window) = (system.name(), bench.window.as_secs_f64());
            return Err(Failure::new(format!(
                "{name}: nothing arrived within {window} s, so there is no rate to halve; use more --seconds"
            )));
        }
        slowest = slowest.min(most);
    }
    Ok(slowest / 2.0)
}

fn paced(bench: &Bench<'_>, system: System, rate: f64, window: Duration) -> Result<Figures, Failure> {
    let server = bench.start(system)?;
    let sender = bench.pki.dialer(system, Side::Sender)?.connect(&server.address)?;
    let (most, frames) = if rate <= SINGLE {
        (1, 1)
    } else {
        let whole = Stamped::new(system, Subject::Load, PAYLOAD, usize::MAX);
        (usize::MAX, whole.frames())
    };
    let writes = rate / frames as f64;
    let pace = Pace {
        system,
        subject: Subject::Load,
        payload: PAYLOAD,
        rate: writes,
        sends: (whole(window.as_secs_f64() * writes) as u64).max(100),
        most,
    };
    let mut figures = drive(bench, &server, vec![sender], &pace)?.figures();
    figures.push(("aimed_at_per_second", rate));
    Ok(figures)
}
