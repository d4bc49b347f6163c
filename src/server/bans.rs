//! Bans: UUIDs that an operator keeps out for some time.
//!
//! All bans are compared with each newcomer, which for 1,024 takes some microseconds of a
//! handshake's millisecond. A ban that has ended has no effect, and is removed when the next
//! one is added. Bans are forgotten when the server ends; to keep a client out for good,
//! revoke its certificate.

use std::time::{Duration, Instant};

use uuid::Uuid;

/// The most bans at a time. It bounds the memory, and the time that each newcomer costs.
pub(super) const MAX_BANS: usize = 1024;
/// The longest ban. A longer one would be a revocation that a restart forgets.
pub(super) const MAX_BAN: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A ban.
#[derive(Debug)]
pub(super) struct Ban {
    pub(super) number: u64,
    /// The client.
    pub(super) uuid: Uuid,
    /// The operator.
    pub(super) by: Uuid,
    pub(super) since: Instant,
    pub(super) until: Instant,
}

/// All bans of a server, in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Bans {
    bans: Vec<Ban>,
    numbers: u64,
}

impl Bans {
    /// Keeps a client out until then, in place of an earlier ban of the same UUID; false if
    /// there are [`MAX_BANS`] already.
    pub(super) fn add(&mut self, uuid: Uuid, by: Uuid, now: Instant, until: Instant) -> bool {
        self.bans.retain(|ban| ban.until > now && ban.uuid != uuid);
        if self.bans.len() >= MAX_BANS {
            return false;
        }
        self.numbers += 1;
        self.bans.push(Ban {
            number: self.numbers,
            uuid,
            by,
            since: now,
            until,
        });
        true
    }

    /// The bans that have not ended.
    pub(super) fn standing(&self, now: Instant) -> impl Iterator<Item = &Ban> {
        self.bans.iter().filter(move |ban| ban.until > now)
    }

    /// For how long a newcomer is still kept out.
    pub(super) fn left(&self, uuid: Uuid, now: Instant) -> Option<Duration> {
        let ban = self.standing(now).find(|ban| ban.uuid == uuid)?;
        Some(ban.until.saturating_duration_since(now))
    }

    /// Ends a ban before its time; false if there is none.
    pub(super) fn lift(&mut self, uuid: Uuid, now: Instant) -> bool {
        let is_banned = self.left(uuid, now).is_some();
        self.bans.retain(|ban| ban.uuid != uuid);
        is_banned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bans_are_bounded_and_those_that_ended_make_room() {
        #[expect(clippy::disallowed_methods, reason = "any time will do")]
        let now = Instant::now();
        let later = |seconds| now + Duration::from_secs(seconds);
        let mut bans = Bans::default();
        let who = |number: usize| Uuid::from_u128(number as u128);
        for number in 0..MAX_BANS {
            let ends = if number == 7 { 10 } else { 20 };
            assert!(bans.add(who(number), Uuid::nil(), now, later(ends)));
        }
        let next = who(MAX_BANS);
        assert!(!bans.add(next, Uuid::nil(), later(9), later(30)));
        // One that is banned already takes no more room.
        assert!(bans.add(who(8), Uuid::max(), now, later(15)));
        assert_eq!(bans.standing(later(9)).count(), MAX_BANS);
        assert_eq!(
            bans.standing(later(9)).last().map(|ban| ban.by),
            Some(Uuid::max())
        );
        assert!(bans.add(next, Uuid::nil(), later(10), later(30)));
        assert_eq!(bans.standing(later(20)).count(), 1);
    }
}
