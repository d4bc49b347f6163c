//! Is the other side alive?
//!
//! ```text
//!  connect     +10 s      +25 s      +40 s  …
//!     │ echo      │ echo      │ echo      │ echo
//!     └───────────┴───────────┴───────────┴── silent longer than 120 s here: dead
//! ```

use std::time::{Duration, Instant};

use crate::deadlines::after;

/// When echoes are sent and how long a peer may be silent. Both sides do this;
/// the defaults are those of libopflex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepaliveSettings {
    /// From the connection to the second echo; the first is sent at once.
    /// Default 10 s.
    pub first: Duration,
    /// From each echo to the next. Default 15 s.
    pub interval: Duration,
    /// A peer from which nothing has arrived for longer is dead. This is checked when an echo is
    /// due. Default 120 s.
    pub silence: Duration,
}

impl Default for KeepaliveSettings {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(10),
            interval: Duration::from_secs(15),
            silence: Duration::from_secs(120),
        }
    }
}

/// The action that is due at the time of [`Keepalive::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beat {
    /// It is not yet time.
    Wait,
    /// Send the echo with this number.
    Echo(u64),
    /// The peer is dead.
    Dead,
}

/// The state of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Keepalive {
    heard: Instant,
    next: Instant,
    sent: u64,
}

impl Keepalive {
    /// The shortest time between echoes, so that no setting sends them without a pause.
    const SHORTEST: Duration = Duration::from_millis(1);

    /// A new connection, on which echo number 0 is sent now.
    pub(crate) fn new(settings: &KeepaliveSettings, now: Instant) -> Self {
        Self {
            heard: now,
            next: after(now, settings.first),
            // The echo that is sent on connecting has number 0.
            sent: 1,
        }
    }

    /// Something arrived.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard = now;
    }

    /// When [`beat`](Self::beat) has something to do.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    pub(crate) fn beat(&mut self, settings: &KeepaliveSettings, now: Instant) -> Beat {
        if now < self.next {
            return Beat::Wait;
        }
        // Looked at only when an echo is due, so that a peer may be silent for
        // `silence` and one interval more.
        if now.saturating_duration_since(self.heard) > settings.silence {
            return Beat::Dead;
        }
        // A program that was stopped for an hour owes one echo, not hundreds.
        self.next = after(now, settings.interval.max(Self::SHORTEST));
        self.sent += 1;
        Beat::Echo(self.sent - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "some instant to count from")]
    fn echoes_come_at_ten_seconds_and_every_fifteen_until_the_peer_is_silent() {
        let settings = KeepaliveSettings::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut keepalive = Keepalive::new(&settings, start);
        assert_eq!(keepalive.beat(&settings, at(9)), Beat::Wait);
        assert_eq!(keepalive.beat(&settings, at(10)), Beat::Echo(1));
        assert_eq!(keepalive.next(), at(25));
        keepalive.heard(at(20));
        for (n, seconds) in (2..).zip((25..=130).step_by(15)) {
            assert_eq!(keepalive.beat(&settings, at(seconds)), Beat::Echo(n), "{seconds}");
        }
        assert_eq!(keepalive.beat(&settings, at(145)), Beat::Dead);
    }
}
