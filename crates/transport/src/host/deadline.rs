//! The clocks, and deadlines of time limits. `Duration::MAX` is no limit, and adding it to an `Instant`
//! would panic.
//!
//! Time for which the host is suspended counts: a lease goes on at the engine meanwhile, and peers wait. On
//! Linux neither an `Instant` of the standard library nor a wait of the system counts it. So all instants come
//! from [`now`], and a thread waits for [`remaining`] or [`nap`], never until an instant.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::time::{ClockId, clock_gettime};

/// Longer than any process runs, and a few times this time still fits into an `Instant`.
pub const NEVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The longest time for which a thread sleeps before it looks at the clock again.
const NAP: Duration = Duration::from_secs(60);

/// The end of a time limit that begins now.
pub fn deadline(limit: Duration) -> Instant {
    after(now(), limit)
}

/// The end of a time limit that begins at `start`.
pub fn after(start: Instant, limit: Duration) -> Instant {
    start + limit.min(NEVER)
}

/// The time until a deadline; zero once it has passed.
pub fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(now())
}

/// The time until a deadline.
///
/// # Errors
/// `TimedOut` once it has passed.
pub fn left(deadline: Instant) -> std::io::Result<Duration> {
    let left = remaining(deadline);
    if left.is_zero() {
        Err(std::io::ErrorKind::TimedOut.into())
    } else {
        Ok(left)
    }
}

/// The time to sleep until a deadline, for a loop that compares it with [`now`] again: at most a minute, so that
/// a far deadline is not noticed late by the time for which the host was suspended.
pub fn nap(deadline: Instant) -> Duration {
    remaining(deadline).min(NAP)
}

/// The time since an earlier moment.
pub fn elapsed(since: Instant) -> Duration {
    now().saturating_duration_since(since)
}

/// The time from 1970 to `at`; zero for an earlier time.
pub fn since_1970(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The nanoseconds from 1970 to `at`, as payloads and traces carry times.
pub fn nanoseconds(at: SystemTime) -> u64 {
    u64::try_from(since_1970(at).as_nanos()).unwrap_or(u64::MAX)
}

/// The present time, which counts the time for which the host was suspended. State machines get it from their
/// owners and do not call this.
pub fn now() -> Instant {
    static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::new);
    CLOCK.at(system_clock())
}

/// A clock of the system that also counts while the host is suspended, from some moment.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn system_clock() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// Elsewhere the clock of the standard library is used, which may stand still meanwhile.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn system_clock() -> Duration {
    static BEGAN: LazyLock<Instant> = LazyLock::new(instant);
    instant().saturating_duration_since(*BEGAN)
}

/// Instants as the system's clock goes on. An `Instant` cannot be made from the time of another clock, so this
/// counts from the first one.
#[derive(Debug)]
struct Clock {
    began: Instant,
    /// The time of the system's clock then.
    at: Duration,
}

impl Clock {
    fn new() -> Self {
        Self {
            at: system_clock(),
            began: instant(),
        }
    }

    fn at(&self, time: Duration) -> Instant {
        self.began + time.saturating_sub(self.at)
    }
}

#[expect(clippy::disallowed_methods, reason = "the one clock of all crates")]
fn instant() -> Instant {
    Instant::now()
}

/// The time of day, which differs from clock to clock and may jump.
#[expect(
    clippy::disallowed_methods,
    reason = "certificates are valid at a time of day, and people read one"
)]
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn an_hour_for_which_the_host_is_suspended_counts() {
        let clock = Clock::new();
        let before = clock.at(clock.at);
        assert_eq!(clock.at(clock.at + HOUR), before + HOUR);
        // The clocks of a system differ by the time for which it was suspended before.
        let [earlier, present, later] = [instant(), now(), instant()];
        let slack = Duration::from_secs(5);
        assert!(earlier <= present + slack && present <= later + slack);
    }

    #[test]
    fn a_thread_looks_at_the_clock_again_within_a_minute() {
        let present = now();
        assert_eq!(nap(present + HOUR), NAP);
        assert!(remaining(present + HOUR) > HOUR - NAP && nap(present + NAP / 2) <= NAP / 2);
        assert_eq!([nap(present), remaining(present)], [Duration::ZERO; 2]);
    }
}
