//! Looks host names up within a time limit.
//!
//! The system's look-up cannot be cancelled, and a resolver that does not answer blocks it for
//! many seconds. So it runs on a thread of its own, and the caller can stop waiting.
//!
//! ```text
//!  addresses()                      thread ssntp-lookup
//!    │ spawn ─────────────────────────▶ the system's look-up
//!    │ wait: answer, limit, cancel            │
//!    │◀───────────────────────────────────────┘ answer: joined
//!    └ given up ─ the thread is left alone, and ends when the system answers
//! ```
//!
//! A thread that is left alone holds a name and its stack, and no object of the caller. It is the
//! only kind of thread in this crate that is not joined. A process has at most [`MOST`] of them at
//! a time; further look-ups fail at once. An IP address needs no thread.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crossbeam_channel::{after, select};

use super::cancel::{Cancel, cancelled_error};
use crate::host::{now, threads};

/// The maximum number of look-ups at a time in a process: enough for an agent's reconnects, and few enough
/// that a dead resolver cannot use up the threads.
const MOST: usize = 64;

static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// Counts one look-up for as long as it runs.
struct LookupPlace;

impl LookupPlace {
    fn new() -> Option<Self> {
        let counted = Self;
        (UNDER_WAY.fetch_add(1, Ordering::AcqRel) < MOST).then_some(counted)
    }
}

impl Drop for LookupPlace {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The addresses of a host. Blocks until the system answers, the deadline passes, or `cancel` is
/// cancelled.
///
/// # Errors
/// The system's error; `TimedOut`; `Interrupted`; `WouldBlock` if too many look-ups are
/// under way.
pub(crate) fn addresses(
    host: &str,
    port: u16,
    deadline: Instant,
    cancel: &Cancel,
) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let host = host.to_owned();
    look_up(deadline, cancel, move || {
        let found = (host.as_str(), port).to_socket_addrs();
        // Only an address has a zone, so no name was looked up, as the system's error would say.
        found
            .map(Iterator::collect)
            .map_err(|e| match host.split_once('%') {
                Some((_, zone)) => io::Error::new(e.kind(), format!("this host has no interface {zone}")),
                None => e,
            })
    })
}

fn look_up<T: Send + 'static>(
    deadline: Instant,
    cancel: &Cancel,
    ask: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let Some(counted) = LookupPlace::new() else {
        let text = "too many name look-ups are under way";
        return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
    };
    let (sender, answer) = crossbeam_channel::bounded(1);
    let thread = threads::spawn("ssntp-lookup", move || {
        let found = ask();
        drop(counted);
        // The caller may have stopped waiting; then the answer is not needed.
        let _ = sender.send(found);
    })?;
    let left = deadline.saturating_duration_since(now());
    let found = select! {
        recv(answer) -> found => found,
        recv(cancel.done()) -> _ => return Err(cancelled_error()),
        recv(after(left)) -> _ => return Err(io::Error::new(io::ErrorKind::TimedOut, "the name look-up takes too long")),
    };
    // A panic has been logged by the panic hook.
    let _ = thread.join();
    found.unwrap_or_else(|_| Err(io::Error::other("the name look-up panicked")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn in_time(limit: Duration) -> Instant {
        crate::host::deadline(limit)
    }

    #[test]
    fn a_zone_that_is_no_interface_is_named() {
        let found = addresses("fe80::1%none", 1, in_time(LONG), &Cancel::new());
        assert_eq!(found.unwrap_err().to_string(), "this host has no interface none");
    }

    #[test]
    fn an_ip_address_needs_no_look_up() {
        for host in ["127.0.0.1", "::1", "fe80::1"] {
            let found = addresses(host, 7, in_time(Duration::ZERO), &Cancel::new()).unwrap();
            assert_eq!(found, [SocketAddr::new(host.parse().unwrap(), 7)]);
        }
    }

    #[test]
    fn a_name_has_addresses() {
        let found = addresses("localhost", 7, in_time(LONG), &Cancel::new()).unwrap();
        assert!(
            found
                .iter()
                .all(|address| address.ip().is_loopback() && address.port() == 7)
        );
        assert!(!found.is_empty());
    }

    #[test]
    fn a_look_up_that_hangs_is_given_up_at_its_limit_and_when_cancelled() {
        // Two resolvers that answer when the test is over.
        let (end, ended) = crossbeam_channel::bounded::<()>(0);
        let hang = || {
            let ended = ended.clone();
            move || -> io::Result<()> {
                let _ = ended.recv();
                Ok(())
            }
        };
        let limited = look_up(in_time(Duration::from_millis(20)), &Cancel::new(), hang());
        assert_eq!(limited.unwrap_err().kind(), io::ErrorKind::TimedOut);

        let cancel = Cancel::new();
        let (cancelled, ask) = (cancel.clone(), hang());
        let thread = threads::spawn("t", move || look_up(in_time(LONG), &cancelled, ask)).unwrap();
        cancel.cancel();
        let result = thread.join().unwrap();
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::Interrupted);
        drop(end);
    }

    #[test]
    fn a_look_up_that_panics_is_an_error() {
        let result = look_up(in_time(LONG), &Cancel::new(), || -> io::Result<()> {
            panic!("on purpose")
        });
        assert!(result.is_err());
    }
}
