//! Limits the log lines that peers can cause.
//!
//! A peer that may send one frame may send a million. So each peer has an allowance for each kind of
//! line that peers can cause: five lines at once, then one a minute, which states the number of omitted
//! lines. Peers may connect under any number of names, so the table is bounded. If it is full, an owner
//! of names, such as a certificate, has one allowance for all its further names, and peers without an
//! owner share one allowance.
//!
//! ```text
//! if let Some(more) = self.log.admit(from.uuid(), "READY refused", now) {
//!     warn!("{from}: READY refused: {e}{more}");
//! }
//! ```

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::time::{Duration, Instant};

/// The number of lines that a peer may cause at once: enough to see the fault.
const FIRST: u32 = 5;
/// The time after which it may cause another line.
const PERIOD: Duration = Duration::from_secs(60);
/// The number of peers with their own allowance for each kind. An entry has some 50 bytes, so a kind takes
/// a few KiB, and there are at most four lines a second.
const PEERS: usize = 256;

/// The allowances of peers with names of type `K`, for each kind of line.
///
/// # Threads
/// Plain data for one owner. Put it behind a mutex if several threads log.
#[derive(Debug)]
pub struct LogLimit<K> {
    /// A kind is a literal at a call site, so there are few.
    kinds: HashMap<&'static str, Peers<K>>,
}

impl<K> Default for LogLimit<K> {
    fn default() -> Self {
        Self {
            kinds: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash> LogLimit<K> {
    /// The text for the end of the line, if `peer` may cause a line of this kind. `None` otherwise.
    pub fn admit(&mut self, peer: K, kind: &'static str, now: Instant) -> Option<More> {
        self.lines(kind, now).allowance(peer, None::<&()>, now).take(now)
    }

    /// As [`admit`](Self::admit), for a peer that may have further names, all of the same `owner`.
    pub fn admit_of(&mut self, peer: K, owner: &impl Hash, kind: &'static str, now: Instant) -> Option<More> {
        self.lines(kind, now).allowance(peer, Some(owner), now).take(now)
    }

    fn lines(&mut self, kind: &'static str, now: Instant) -> &mut Peers<K> {
        self.kinds.entry(kind).or_insert_with(|| Peers::new(now))
    }
}

/// The number of lines of this kind that were omitted since the last one. Prints as an empty text if there
/// were none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the line has to end with it"]
pub struct More(u64);

impl fmt::Display for More {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(f, " (and {count} more like it since)"),
        }
    }
}

#[derive(Debug)]
struct Peers<K> {
    known: HashMap<K, Allowance>,
    /// The allowances of owners with names that found the table full, by their hashes.
    owners: HashMap<u64, Allowance>,
    /// The allowance of all peers that found both tables full, or have no owner.
    others: Allowance,
    /// The time before which no entry can be removed, so that the table is not searched for each line of
    /// a flood.
    full_until: Instant,
}

impl<K: Eq + Hash> Peers<K> {
    fn new(now: Instant) -> Self {
        Self {
            known: HashMap::new(),
            owners: HashMap::new(),
            others: Allowance::new(now),
            full_until: now,
        }
    }

    fn allowance(&mut self, peer: K, owner: Option<&impl Hash>, now: Instant) -> &mut Allowance {
        let full = self.known.len() >= PEERS && !self.known.contains_key(&peer);
        if full && self.full_until <= now {
            self.forget(now);
        }
        if self.known.len() < PEERS || self.known.contains_key(&peer) {
            return self.known.entry(peer).or_insert_with(|| Allowance::new(now));
        }
        // By the random keys of the table, so that peers cannot choose owners with equal hashes.
        let owner = owner.map(|owner| self.known.hasher().hash_one(owner));
        match owner.filter(|owner| self.owners.len() < PEERS || self.owners.contains_key(owner)) {
            // An owner with many names, such as a certificate that is bound to no UUID, shares one
            // allowance, so it silences no other owner.
            Some(owner) => self.owners.entry(owner).or_insert_with(|| Allowance::new(now)),
            None => &mut self.others,
        }
    }

    /// Removes the peers that have their whole allowance again, because a new entry would be equal. Their
    /// number of omitted lines is added to the shared allowance.
    fn forget(&mut self, now: Instant) {
        let others = &mut self.others;
        let mut is_used = |allowance: &Allowance| {
            let used = allowance.whole_at > now;
            if !used {
                others.left_out = others.left_out.saturating_add(allowance.left_out);
            }
            used
        };
        self.known.retain(|_, allowance| is_used(allowance));
        self.owners.retain(|_, allowance| is_used(allowance));
        let soonest = self.known.values().map(|allowance| allowance.whole_at).min();
        self.full_until = soonest.unwrap_or(now);
    }
}

/// [`FIRST`] lines, of which one comes back in each [`PERIOD`].
#[derive(Debug)]
struct Allowance {
    /// The time at which the whole allowance is free again. Each line moves it by a period.
    whole_at: Instant,
    left_out: u64,
}

impl Allowance {
    fn new(now: Instant) -> Self {
        Self {
            whole_at: now,
            left_out: 0,
        }
    }

    fn take(&mut self, now: Instant) -> Option<More> {
        // Each line has moved `whole_at` by a period, so the distance is the number of recent lines.
        if self.whole_at.saturating_duration_since(now) > PERIOD * (FIRST - 1) {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.whole_at = self.whole_at.max(now) + PERIOD;
        Some(More(std::mem::take(&mut self.left_out)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any time will do")]
    fn now() -> Instant {
        Instant::now()
    }

    fn admitted(limit: &mut LogLimit<u32>, peer: u32, now: Instant) -> Option<String> {
        limit
            .admit(peer, "READY refused", now)
            .map(|more| more.to_string())
    }

    #[test]
    fn the_first_lines_are_written_then_one_a_minute_with_the_count() {
        let (mut limit, start) = (LogLimit::default(), now());
        for _ in 0..FIRST {
            assert_eq!(admitted(&mut limit, 1, start).as_deref(), Some(""));
        }
        for _ in 0..1234 {
            assert_eq!(admitted(&mut limit, 1, start + PERIOD / 2), None);
        }
        let next = start + PERIOD;
        let line = admitted(&mut limit, 1, next);
        assert_eq!(line.as_deref(), Some(" (and 1234 more like it since)"));
        assert_eq!(admitted(&mut limit, 1, next), None);
        let line = admitted(&mut limit, 1, next + PERIOD);
        assert_eq!(line.as_deref(), Some(" (and 1 more like it since)"));
    }

    #[test]
    fn a_quiet_peer_gets_its_first_lines_again() {
        let (mut limit, start) = (LogLimit::default(), now());
        let later = start + PERIOD * FIRST;
        for at in [start, later] {
            let lines = (0..100).filter_map(|_| admitted(&mut limit, 1, at)).count();
            assert_eq!(lines, FIRST as usize);
        }
    }

    #[test]
    fn peers_and_kinds_have_an_allowance_each() {
        let (mut limit, now) = (LogLimit::default(), now());
        while admitted(&mut limit, 1, now).is_some() {}
        assert!(admitted(&mut limit, 2, now).is_some());
        assert_eq!(limit.admit(1, "START refused", now), Some(More(0)));
        assert_eq!(admitted(&mut limit, 1, now), None);
    }

    #[test]
    fn peers_under_ever_new_names_share_one_allowance_and_the_table_stays_small() {
        let (mut limit, start) = (LogLimit::default(), now());
        let flood = |limit: &mut LogLimit<u32>, names: std::ops::Range<u32>, at| -> Vec<String> {
            names.filter_map(|peer| admitted(limit, peer, at)).collect()
        };
        let lines = flood(&mut limit, 0..100_000, start);
        assert_eq!(lines.len(), PEERS + FIRST as usize);
        assert_eq!(limit.kinds["READY refused"].known.len(), PEERS);
        // A known peer keeps the rest of its own allowance.
        assert!(admitted(&mut limit, 0, start).is_some());
        let left_out = 100_000 - PEERS as u64 - u64::from(FIRST);
        let lines = flood(&mut limit, 100_000..100_001, start + PERIOD / 2);
        assert!(lines.is_empty(), "no peer can be forgotten yet");
        // All peers except peer 0 are forgotten, and return under other names.
        let lines = flood(&mut limit, 200_000..300_000, start + PERIOD);
        assert_eq!(
            lines.len(),
            PEERS - 1 + 1,
            "the other peers may log one line again"
        );
        let suffix = format!(" (and {} more like it since)", left_out + 1);
        assert_eq!(lines.last(), Some(&suffix));
        assert_eq!(limit.kinds["READY refused"].known.len(), PEERS);
    }

    #[test]
    fn an_owner_of_many_names_leaves_other_owners_their_lines() {
        let (mut limit, now) = (LogLimit::default(), now());
        let mut lines = |names: std::ops::Range<u32>, owner: &str| {
            let admitted_lines = names.filter_map(|name| limit.admit_of(name, &owner, "connected", now));
            admitted_lines.count()
        };
        assert_eq!(lines(0..100_000, "greedy"), PEERS + FIRST as usize);
        assert_eq!(lines(100_000..100_001, "other"), 1);
        assert_eq!(lines(200_000..300_000, "greedy"), 0);
        assert_eq!(
            lines(300_000..300_010, "other"),
            FIRST as usize - 1,
            "the owner has one allowance for all its names"
        );
    }

    #[test]
    fn the_shared_allowance_states_the_omitted_lines_of_a_removed_peer() {
        let (mut limit, start) = (LogLimit::default(), now());
        let lines: Vec<_> = (0..10).filter_map(|_| admitted(&mut limit, 0, start)).collect();
        assert_eq!(lines.len(), FIRST as usize);
        let later = start + PERIOD * FIRST;
        for peer in (1..).take(PEERS - 1) {
            assert!(admitted(&mut limit, peer, later).is_some());
        }
        assert_eq!(
            admitted(&mut limit, 1000, later).as_deref(),
            Some(""),
            "a line of a new peer"
        );
        let line = admitted(&mut limit, 1001, later);
        assert_eq!(
            line.as_deref(),
            Some(" (and 5 more like it since)"),
            "a line of another peer"
        );
    }
}
