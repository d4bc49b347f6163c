//! Bans: UUIDs that an operator has banned for some time.
//!
//! Each newcomer is compared with all bans, which for 1,024 bans takes some microseconds; a handshake
//! takes a millisecond. A ban that has ended has no effect, and is removed when the next one is added.
//! Bans are lost when the server ends. To keep a client out for good, revoke its certificate.

use std::time::{Duration, Instant};

use uuid::Uuid;

/// The maximum number of bans at a time. It bounds the memory, and the time for each newcomer.
pub(super) const MAX_BANS: usize = 1024;
/// The longest ban, a year. A ban is no replacement for a revocation, because a restart ends it.
pub(super) const MAX_BAN: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A ban.
#[derive(Debug)]
pub(super) struct Ban {
    pub(super) number: u64,
    /// The UUID of the client.
    pub(super) uuid: Uuid,
    /// The UUID of the operator.
    pub(super) by: Uuid,
    pub(super) since: Instant,
    pub(super) until: Instant,
}

/// All bans of a server, in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Bans {
    bans: Vec<Ban>,
    /// The number of the last ban that was added.
    last_number: u64,
}

impl Bans {
    /// Bans a UUID until the given time, in place of an earlier ban of that UUID. Returns false, and
    /// adds nothing, if [`MAX_BANS`] bans of other UUIDs have not ended.
    pub(super) fn add(&mut self, uuid: Uuid, by: Uuid, now: Instant, until: Instant) -> bool {
        self.bans.retain(|ban| ban.until > now && ban.uuid != uuid);
        if self.bans.len() >= MAX_BANS {
            return false;
        }
        self.last_number += 1;
        self.bans.push(Ban {
            number: self.last_number,
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

    /// The remaining time of the ban of a UUID, if it is banned.
    pub(super) fn remaining(&self, uuid: Uuid, now: Instant) -> Option<Duration> {
        let ban = self.standing(now).find(|ban| ban.uuid == uuid)?;
        Some(ban.until.saturating_duration_since(now))
    }

    /// Ends a ban before its time. False if there is none.
    pub(super) fn lift(&mut self, uuid: Uuid, now: Instant) -> bool {
        let is_banned = self.remaining(uuid, now).is_some();
        self.bans.retain(|ban| ban.uuid != uuid);
        is_banned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bans_are_bounded_and_ended_ones_make_room() {
        #[expect(clippy::disallowed_methods, reason = "any time will do")]
        let now = Instant::now();
        let later = |seconds| now + Duration::from_secs(seconds);
        let mut bans = Bans::default();
        let uuid = |number: usize| Uuid::from_u128(number as u128);
        for number in 0..MAX_BANS {
            let ends = if number == 7 { 10 } else { 20 };
            assert!(bans.add(uuid(number), Uuid::nil(), now, later(ends)));
        }
        let next = uuid(MAX_BANS);
        assert!(!bans.add(next, Uuid::nil(), later(9), later(30)));
        // A second ban of the same UUID replaces the first one.
        assert!(bans.add(uuid(8), Uuid::max(), now, later(15)));
        assert_eq!(bans.standing(later(9)).count(), MAX_BANS);
        assert_eq!(
            bans.standing(later(9)).last().map(|ban| ban.by),
            Some(Uuid::max())
        );
        assert!(bans.add(next, Uuid::nil(), later(10), later(30)));
        assert_eq!(bans.standing(later(20)).count(), 1);
    }
}
