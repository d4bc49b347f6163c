//! Sessions that are set up and ended.

use super::{Bench, Figures};
use crate::failure::Failure;
use crate::raw::{Side, System, now};

/// The number of sessions a second that one client sets up and ends, one after the other. A
/// `returning` client keeps the tickets that the server gives, and uses them.
pub(crate) fn one_after_the_other(
    bench: &Bench<'_>,
    system: System,
    returning: bool,
) -> Result<Figures, Failure> {
    let server = bench.start(system)?;
    let (dialer, tickets) = if returning {
        let (dialer, tickets) = bench.pki.returning(system, Side::Sender)?;
        (dialer, Some(tickets))
    } else {
        (bench.pki.dialer(system, Side::Sender)?, None)
    };
    // The first session is not counted, because it finds all caches cold.
    dialer.connect(&server.address)?.finish();
    let (began, cpu) = (now(), server.cpu());
    let mut count = 0_u32;
    while began.elapsed() < bench.window && !bench.stop.requested() {
        dialer.connect(&server.address)?.finish();
        count += 1;
    }
    let (elapsed, cpu) = (began.elapsed(), server.cpu().saturating_sub(cpu));
    let count = f64::from(count.max(1));
    let mut figures = vec![
        ("sessions_per_second", count / elapsed.as_secs_f64()),
        ("server_cpu_us_per_session", cpu.as_secs_f64() * 1e6 / count),
    ];
    if let Some(tickets) = tickets {
        figures.push(("with_ticket", (tickets.used() as f64 / count).min(1.0)));
    }
    Ok(figures)
}
