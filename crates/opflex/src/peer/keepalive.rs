//! Echoes, and the end of a peer that is silent.
//!
//! ```text
//!  connect     +10 s      +25 s      +40 s  …
//!     │ echo      │ echo      │ echo      │ echo
//!     └───────────┴───────────┴───────────┴── silent longer than 120 s here: dead
//! ```

use std::time::{Duration, Instant};

use super::close::CloseReason;
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

/// What is due for a connection.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Due {
    /// Send the echo with this number.
    Echo(u64),
    /// Close the connection.
    Close(CloseReason),
}

/// The times of one connection: its echoes, the silence of its peer, and the identity and the end of the
/// certificate of its peer.
#[derive(Clone, Debug)]
pub(crate) struct Keepalive {
    settings: KeepaliveSettings,
    last_received: Instant,
    next: Instant,
    sent: u64,
    /// The time at which the identity of the peer is late. `None` once it was accepted.
    identity_by: Option<Instant>,
    expires: Option<Instant>,
}

impl Keepalive {
    /// The shortest time between echoes, so that a setting of zero does not send them in a loop.
    const SHORTEST: Duration = Duration::from_millis(1);

    /// The state of a new connection, on which the caller sends echo number 0 now. `identity` is the
    /// time limit of the peer's identity, and `expires` the end of the peer's certificate.
    pub(crate) fn new(
        settings: &KeepaliveSettings,
        identity: Duration,
        expires: Option<Instant>,
        now: Instant,
    ) -> Self {
        Self {
            settings: *settings,
            last_received: now,
            next: after(now, settings.first),
            // The echo that is sent on connecting has number 0.
            sent: 1,
            identity_by: Some(after(now, identity)),
            expires,
        }
    }

    /// Records that bytes of the peer have arrived.
    pub(crate) fn received(&mut self, now: Instant) {
        self.last_received = now;
    }

    /// Records that the identity of the peer is accepted.
    pub(crate) fn identified(&mut self) {
        self.identity_by = None;
    }

    /// The time at which [`due`](Self::due) has an action.
    pub(crate) fn next_deadline(&self) -> Instant {
        let others = [self.identity_by, self.expires].into_iter().flatten();
        others.fold(self.next, Instant::min)
    }

    /// The action that is due at `now`, if any.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Due> {
        if self.expires.is_some_and(|at| at <= now) {
            return Some(Due::Close(CloseReason::Expired));
        }
        if self.identity_by.is_some_and(|at| at <= now) {
            return Some(Due::Close(CloseReason::IdentityTimeout));
        }
        if now < self.next {
            return None;
        }
        // Checked only when an echo is due, as in libopflex. So a peer may be silent for `silence`
        // and one interval. Counted to the time at which the echo was due: after a pause of the whole
        // process, the bytes of the peer wait to be read.
        if self.next.saturating_duration_since(self.last_received) > self.settings.silence {
            return Some(Due::Close(CloseReason::Silent));
        }
        // Counted from now, so that a process that was suspended sends one echo and not a series.
        self.next = after(now, self.settings.interval.max(Self::SHORTEST));
        self.sent += 1;
        Some(Due::Echo(self.sent - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection whose peer has sent its identity.
    fn new(start: Instant) -> Keepalive {
        let mut keepalive = Keepalive::new(&KeepaliveSettings::default(), Duration::ZERO, None, start);
        keepalive.identified();
        keepalive
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "some instant to count from")]
    fn echoes_come_at_ten_seconds_and_every_fifteen_until_the_peer_is_silent() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut keepalive = new(start);
        assert_eq!(keepalive.due(at(9)), None);
        assert_eq!(keepalive.due(at(10)), Some(Due::Echo(1)));
        assert_eq!(keepalive.next_deadline(), at(25));
        keepalive.received(at(20));
        for (n, seconds) in (2..).zip((25..=130).step_by(15)) {
            assert_eq!(keepalive.due(at(seconds)), Some(Due::Echo(n)), "{seconds}");
        }
        assert_eq!(keepalive.due(at(145)), Some(Due::Close(CloseReason::Silent)));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "some instant to count from")]
    fn a_pause_of_the_process_is_no_silence_of_the_peer() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut keepalive = new(start);
        assert_eq!(keepalive.due(at(1000)), Some(Due::Echo(1)));
        // The peer has sent nothing before the pause and after it.
        assert_eq!(keepalive.due(at(1015)), Some(Due::Close(CloseReason::Silent)));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "some instant to count from")]
    fn an_identity_is_due_at_its_time_whatever_else_the_peer_sends() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut keepalive = Keepalive::new(
            &KeepaliveSettings::default(),
            Duration::from_secs(12),
            None,
            start,
        );
        assert_eq!(keepalive.due(at(10)), Some(Due::Echo(1)));
        keepalive.received(at(11));
        assert_eq!(keepalive.next_deadline(), at(12));
        assert_eq!(
            keepalive.due(at(12)),
            Some(Due::Close(CloseReason::IdentityTimeout))
        );
    }
}
