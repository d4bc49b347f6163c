//! Echoes, and the end of a peer that is silent.
//!
//! ```text
//!  connect     +10 s      +25 s      +40 s  …
//!     │ echo      │ echo      │ echo      │ echo
//!     └───────────┴───────────┴───────────┴── silent longer than 120 s here: dead
//! ```

use std::time::{Duration, Instant};

use ssntp_transport::after;

/// The times of echoes, and the longest silence of a peer. Servers and elements use them alike.
/// The defaults are those of libopflex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepaliveSettings {
    /// The time from the connection to the second echo; the first is sent at once.
    /// Default 10 s.
    pub first: Duration,
    /// The time between further echoes. Default 15 s.
    pub interval: Duration,
    /// If neither a message nor 16 KiB of a longer one has arrived from the peer for longer than this, its
    /// connection is closed. This is checked when an echo is due. Default 120 s.
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

/// The action that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beat {
    /// No action is due yet.
    Wait,
    /// Send the echo with this number.
    Echo(u64),
    /// Close the connection: the peer has been silent for too long.
    Dead,
}

/// The keep-alive state of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Keepalive {
    last_received: Instant,
    next: Instant,
    sent: u64,
}

impl Keepalive {
    /// The shortest time between echoes, so that a setting of zero does not send them in a loop.
    const SHORTEST: Duration = Duration::from_millis(1);

    /// The state of a new connection, on which the caller sends echo number 0 now.
    pub(crate) fn new(settings: &KeepaliveSettings, now: Instant) -> Self {
        Self {
            last_received: now,
            next: after(now, settings.first),
            // The echo that is sent on connecting has number 0.
            sent: 1,
        }
    }

    /// Records that bytes of the peer have arrived.
    pub(crate) fn received(&mut self, now: Instant) {
        self.last_received = now;
    }

    /// The time at which [`beat`](Self::beat) has an action.
    pub(crate) fn next_deadline(&self) -> Instant {
        self.next
    }

    /// The action that is due at `now`.
    pub(crate) fn beat(&mut self, settings: &KeepaliveSettings, now: Instant) -> Beat {
        if now < self.next {
            return Beat::Wait;
        }
        // Checked only when an echo is due, as in libopflex. So a peer may be silent for `silence`
        // and one interval. Counted to the time at which the echo was due: after a pause of the whole
        // process, the bytes of the peer wait to be read.
        if self.next.saturating_duration_since(self.last_received) > settings.silence {
            return Beat::Dead;
        }
        // Counted from now, so that a process that was suspended sends one echo and not a series.
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
        assert_eq!(keepalive.next_deadline(), at(25));
        keepalive.received(at(20));
        for (n, seconds) in (2..).zip((25..=130).step_by(15)) {
            assert_eq!(keepalive.beat(&settings, at(seconds)), Beat::Echo(n), "{seconds}");
        }
        assert_eq!(keepalive.beat(&settings, at(145)), Beat::Dead);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "some instant to count from")]
    fn a_pause_of_the_process_is_no_silence_of_the_peer() {
        let settings = KeepaliveSettings::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut keepalive = Keepalive::new(&settings, start);
        assert_eq!(keepalive.beat(&settings, at(1000)), Beat::Echo(1));
        // The peer has sent nothing before the pause and after it.
        assert_eq!(keepalive.beat(&settings, at(1015)), Beat::Dead);
    }
}
