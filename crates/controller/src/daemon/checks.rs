//! Health checks: connections to TCP ports of instances, made by a few threads.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use uuid::Uuid;

use crate::model::HealthCheck;
use ssntp_transport::threads::{self, Joined};
use ssntp_transport::{Cancel, TcpOptions, connect_unless};

// Four checks that time out take three seconds by default, so this is some eighty checks a minute
// even if every port is dead.
const THREADS: usize = 4;
/// The maximum number of checks that wait for a thread, and the maximum number of outcomes that wait for
/// the reconciler.
const MOST_WAITING: usize = 1024;

struct Check {
    instance: Uuid,
    host: String,
    port: u16,
    limit: Duration,
}

/// The threads, and the time of the next check of each instance. Dropping it ends the checks under
/// way.
#[derive(Debug)]
pub(super) struct Checks {
    checks: Sender<Check>,
    /// Without this receiver, a thread that waits to report an outcome ends.
    outcomes: Receiver<(Uuid, bool)>,
    threads: Vec<(Cancel, Joined)>,
    due: BTreeMap<Uuid, Duration>,
}

impl Checks {
    pub(super) fn start() -> io::Result<Self> {
        let (checks, waiting) = bounded::<Check>(MOST_WAITING);
        let (reports, outcomes) = bounded(MOST_WAITING);
        // From here on, dropping `started` ends the threads.
        let mut started = Self {
            checks,
            outcomes,
            threads: Vec::new(),
            due: BTreeMap::new(),
        };
        for _ in 0..THREADS {
            let (waiting, reports) = (waiting.clone(), reports.clone());
            let cancel = Cancel::new();
            let cancelled = cancel.clone();
            let thread = threads::joined("ssntp-check", move || {
                for check in waiting {
                    let options = TcpOptions::default();
                    let connected =
                        connect_unless(&check.host, check.port, &options, check.limit, &cancelled);
                    // The receiver is gone because the controller has ended.
                    if reports.send((check.instance, connected.is_ok())).is_err() {
                        return;
                    }
                }
            })?;
            started.threads.push((cancel, thread));
        }
        Ok(started)
    }

    /// The outcomes of checks: the instance, and true if its port accepted a connection.
    pub(super) fn outcomes(&self) -> &Receiver<(Uuid, bool)> {
        &self.outcomes
    }

    /// Queues checks of the instances that are due. An instance for which the queue has no room stays
    /// due.
    pub(super) fn check<'a>(
        &mut self,
        now: Duration,
        instances: impl Iterator<Item = (Uuid, &'a HealthCheck, String)>,
    ) {
        let mut due = BTreeMap::new();
        for (instance, check, host) in instances {
            let interval = Duration::from_secs(check.interval_s.into());
            let mut at = self.due.get(&instance).copied().unwrap_or(now);
            let is_sent = at <= now && {
                let check = Check {
                    instance,
                    host,
                    port: check.tcp,
                    limit: Duration::from_secs(check.timeout_s.into()),
                };
                self.checks.try_send(check).is_ok()
            };
            // Without room in the queue the time stays in the past, so the next step tries again.
            if is_sent {
                at = now + interval;
            }
            due.insert(instance, at);
        }
        // Instances that are not in the list any more are dropped.
        self.due = due;
    }
}

impl Drop for Checks {
    fn drop(&mut self) {
        self.threads.iter().for_each(|(cancel, _)| cancel.cancel());
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rustix::net::{AddressFamily, SocketType, bind, connect, getsockname, listen, socket};

    use super::*;

    #[test]
    fn dropping_it_ends_a_check_that_has_no_answer() {
        // A port that answers no further connection, because nobody accepts those of its queue.
        let stream = || socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let listener = stream();
        let local = std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        bind(&listener, &local).unwrap();
        listen(&listener, 0).unwrap();
        let address = std::net::SocketAddr::try_from(getsockname(&listener).unwrap()).unwrap();
        let queued = stream();
        connect(&queued, &address).unwrap();

        let mut checks = Checks::start().unwrap();
        let check = HealthCheck {
            tcp: address.port(),
            interval_s: 1,
            timeout_s: 86_400,
            failures: 1,
        };
        let host = || "127.0.0.1".to_owned();
        let instances = (0..8).map(|number| (Uuid::from_u128(number), &check, host()));
        checks.check(Duration::ZERO, instances);
        while checks.checks.len() > 8 - THREADS {
            std::thread::yield_now();
        }
        let (dropped, is_dropped) = bounded(1);
        let thread = threads::spawn("drop", move || {
            drop(checks);
            dropped.send(()).unwrap();
        });
        is_dropped.recv_timeout(Duration::from_secs(10)).unwrap();
        thread.unwrap().join().unwrap();
    }
}
