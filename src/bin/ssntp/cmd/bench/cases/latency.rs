//! How long one frame takes from one session to another.

use super::super::child::Server;
use super::super::raw::{Side, Stamped, System};
use super::pace::{Pace, drive};
use super::{Bench, Figures, throughput, whole};
use crate::failure::Failure;

const PAYLOAD: usize = 256;
/// Up to this rate each frame is a write of its own; beyond, a write holds
/// 16 KiB.
const SINGLE: f64 = 5_000.0;

/// Sends so many frames each second, each with its time of departure.
pub(super) fn paced(bench: &Bench<'_>, system: System, rate: f64) -> Result<Figures, Failure> {
    let server = Server::start(system, bench.pki)?;
    on(bench, &server, system, rate)
}

/// Finds out how much goes at most, and sends half of that.
pub(super) fn at_half(bench: &Bench<'_>, system: System) -> Result<Figures, Failure> {
    let server = Server::start(system, bench.pki)?;
    let found = throughput::on(bench, &server, system, 1, 1, PAYLOAD)?;
    let most = found.iter().find(|(name, _)| *name == "frames_per_second");
    let most = most.map_or(0.0, |(_, rate)| *rate);
    on(bench, &server, system, most / 2.0)
}

fn on(bench: &Bench<'_>, server: &Server, system: System, rate: f64) -> Result<Figures, Failure> {
    let sender = bench.pki.dialer(system, Side::Sender)?.connect(&server.address)?;
    let (most, frames) = if rate <= SINGLE {
        (1, 1)
    } else {
        (usize::MAX, Stamped::new(system, PAYLOAD, usize::MAX).frames())
    };
    let rate = rate / frames as f64;
    let pace = Pace {
        system,
        payload: PAYLOAD,
        rate,
        sends: (whole(bench.window.as_secs_f64() * rate) as u64).max(100),
        most,
    };
    Ok(drive(bench, server, vec![sender], &pace)?.figures())
}
