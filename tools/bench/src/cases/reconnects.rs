//! All clients reconnect at the same time.

use std::time::Duration;

use ssntp::client::{Client, ClientEvent, DialFault};
use ssntp::transport::Limits;

use super::{Bench, Figures, raise_descriptors};
use crate::child::Server;
use crate::failure::Failure;
use crate::raw::{Side, now};

/// The number of clients that connect at a time before the restart.
const AT_A_TIME: usize = 50;
/// The time limit for all clients together to reconnect.
const PATIENCE: Duration = Duration::from_secs(120);
/// The time for which clients are connected before the restart. This is longer than the first pause,
/// after which a client counts a session as stable and begins with short pauses again.
const SETTLED: Duration = Duration::from_secs(2);

/// One client and its history since the restart.
struct Returning {
    client: Client,
    failed: u64,
    back: Option<Duration>,
}

/// Connects this number of clients, starts the server again at the same address, and measures
/// how the clients reconnect. A `killed` server does not end its sessions in order.
pub(crate) fn after_restart(bench: &Bench<'_>, count: usize, killed: bool) -> Result<Figures, Failure> {
    raise_descriptors(count)?;
    // All clients show one certificate, and a certificate may have three quarters of the sessions.
    let sessions = (count.saturating_add(count / 3).saturating_add(2)).to_string();
    let more = ["--max-sessions", &sessions];
    let server = bench.ssntp(&more)?;
    let address = server.address.clone();
    let config = bench.pki.client(Side::Sender, &address).attempts(u32::MAX);
    let config = config.inbound(Limits {
        frames: 8,
        bytes: 1 << 20,
    });
    let mut returning = Vec::with_capacity(count);
    while returning.len() < count {
        let some = AT_A_TIME.min(count - returning.len());
        let clients: Result<Vec<_>, _> = (0..some).map(|_| Client::start(config.clone())).collect();
        for client in clients? {
            let connected = client.handle().wait_connected(Some(PATIENCE));
            if !connected? {
                return Err(Failure::new("a client did not connect"));
            }
            while client.try_recv().is_ok() {}
            returning.push(Returning {
                failed: client.counters().failed_attempts,
                client,
                back: None,
            });
        }
    }
    bench.wait(SETTLED);

    let lost = now();
    if killed {
        server.kill()
    } else {
        drop(server)
    }
    let server = bench.limited(Server::ssntp_at(
        &address,
        bench.pki,
        &bench.programs.ssntp,
        &more,
    )?);
    let (down, began, cpu) = (lost.elapsed(), now(), server.cpu());
    let mut refused = Refused::default();
    let (mut resumed, mut left) = (0_u32, count);
    let all_back = bench.wait_until(PATIENCE, || {
        for one in returning.iter_mut().filter(|one| one.back.is_none()) {
            refused.look(one);
            while let Ok(event) = one.client.try_recv() {
                if let ClientEvent::Connected(server) = event {
                    one.back = Some(began.elapsed());
                    resumed += u32::from(server.resumed);
                    left -= 1;
                }
            }
        }
        left == 0
    });
    let cpu = server.cpu().saturating_sub(cpu);
    if !all_back {
        return Err(Failure::new(format!(
            "{left} of {count} clients did not reconnect"
        )));
    }
    let mut back: Vec<_> = returning.iter().filter_map(|one| one.back).collect();
    back.sort_unstable();
    let at = |share: f64| {
        let index = super::whole(back.len() as f64 * share).min(back.len().saturating_sub(1));
        back.get(index).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    let figures = vec![
        ("down_ms", down.as_secs_f64() * 1e3),
        ("back_p50_ms", at(0.5)),
        ("back_p99_ms", at(0.99)),
        ("back_all_ms", at(1.0)),
        ("attempts_failed", refused.all as f64),
        ("nobody_listened", refused.nobody as f64),
        ("cut_in_handshake", refused.cut as f64),
        ("refused_by_server", refused.server as f64),
        ("with_ticket", f64::from(resumed) / count.max(1) as f64),
        (
            "server_cpu_us_per_session",
            cpu.as_secs_f64() * 1e6 / count.max(1) as f64,
        ),
    ];
    // All at the same time: one after the other, each would wait for the answer to its close.
    for one in &returning {
        one.client.handle().close();
    }
    Ok(figures)
}

/// Counts failed attempts by reason, as far as the reason was seen.
#[derive(Default)]
struct Refused {
    all: u64,
    nobody: u64,
    cut: u64,
    server: u64,
}

impl Refused {
    fn look(&mut self, one: &mut Returning) {
        let failed = one.client.counters().failed_attempts;
        let more = failed - std::mem::replace(&mut one.failed, failed);
        if more == 0 {
            return;
        }
        self.all += more;
        match one.client.handle().failures().pop().map(|error| error.fault) {
            Some(DialFault::Connect(_)) => self.nobody += more,
            Some(DialFault::Refused(_)) => self.server += more,
            Some(_) => self.cut += more,
            // It has reconnected since, which clears its failures.
            None => {}
        }
    }
}
