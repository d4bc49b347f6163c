//! The memory of idle sessions.

use std::time::Duration;

use super::{Bench, Figures};
use crate::child::Server;
use crate::failure::Failure;
use crate::raw::{Session, Side, System, batch, broadcast, now};

/// The payload that each session carries in each direction before it is idle again.
const CARRIED: usize = 65_536;
/// The number of sessions that come and go before anything is measured.
const WARMING: usize = 32;
/// Memory is read when it has not changed for `SETTLED`, because handshake threads end some
/// seconds after their last work; but after `SETTLING` at the latest.
const SETTLING: Duration = Duration::from_secs(10);
const SETTLED: Duration = Duration::from_secs(3);

/// Opens sessions that stay idle. With our own server, each then carries a large frame in both
/// directions and is idle again.
pub(crate) fn idle(bench: &Bench<'_>, system: System, count: usize) -> Result<Figures, Failure> {
    super::raise_descriptors(count)?;
    let server = bench.start(system)?;
    let dialer = bench.pki.dialer(system, Side::Sender)?;
    // Some sessions come and go first, so that memory of the first use is not counted.
    for session in dialer.connect_many(&server.address, WARMING)? {
        session.finish();
    }
    let base = settle(bench, &server);
    let mut sessions = dialer.connect_many(&server.address, count)?;
    let rss = settle(bench, &server);
    let per_session = |rss: u64| (rss as f64 - base as f64) / count.max(1) as f64;
    let mut figures = vec![("rss_kib", rss as f64), ("kib_per_session", per_session(rss))];
    if system.is_ssntp() && count > 0 {
        carry(bench, &server, &mut sessions)?;
        let rss = settle(bench, &server);
        figures.extend([
            ("rss_kib_after_64_kib", rss as f64),
            ("kib_per_session_after_64_kib", per_session(rss)),
        ]);
    }
    Ok(figures)
}

/// Sends one large frame from each session and one to each session.
fn carry(bench: &Bench<'_>, server: &Server, sessions: &mut [Session]) -> Result<(), Failure> {
    let mut controller = bench
        .pki
        .dialer(System::Ssntp, Side::Receiver)?
        .connect(&server.address)?;
    let frame = batch(System::Ssntp, CARRIED);
    let lost = || Failure::new("memory: a session ended");
    for session in &mut *sessions {
        if !session.send_once(&frame) {
            return Err(lost());
        }
        large(&mut controller).ok_or_else(lost)?;
    }
    if !controller.send_once(&broadcast(CARRIED)) {
        return Err(lost());
    }
    for session in sessions {
        large(session).ok_or_else(lost)?;
    }
    Ok(())
}

/// Waits for one large frame.
fn large(session: &mut Session) -> Option<()> {
    session.limit_receive(Some(SETTLING));
    let mut arrived = false;
    while !arrived {
        if !session.receive(&mut |payload| arrived |= payload.len() == CARRIED) {
            return None;
        }
    }
    session.limit_receive(None);
    Some(())
}

/// Waits until the server's memory stays the same.
fn settle(bench: &Bench<'_>, server: &Server) -> u64 {
    let mut last = (server.rss(), now());
    bench.wait_until(SETTLING, || {
        let rss = server.rss();
        if rss != last.0 {
            last = (rss, now());
        }
        last.1.elapsed() >= SETTLED
    });
    last.0
}
