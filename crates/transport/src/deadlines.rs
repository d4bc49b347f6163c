//! Deadlines by key.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Instant;

/// One deadline for each key, sorted by time.
#[derive(Debug)]
pub struct Deadlines<K> {
    of: HashMap<K, Instant>,
    order: BTreeSet<(Instant, K)>,
}

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Self {
            of: HashMap::new(),
            order: BTreeSet::new(),
        }
    }
}

impl<K: Clone + Eq + Hash + Ord> Deadlines<K> {
    /// Sets the deadline of a key, which replaces its former one.
    pub fn set(&mut self, key: K, at: Instant) {
        if let Some(before) = self.of.insert(key.clone(), at) {
            // Without this, the earlier deadline of the key would still fire.
            self.order.remove(&(before, key.clone()));
        }
        self.order.insert((at, key));
    }

    /// Removes the deadline of a key.
    pub fn clear(&mut self, key: &K) {
        if let Some(before) = self.of.remove(key) {
            self.order.remove(&(before, key.clone()));
        }
    }

    /// The deadline of a key.
    pub fn of(&self, key: &K) -> Option<Instant> {
        self.of.get(key).copied()
    }

    /// The number of keys that have a deadline.
    pub fn count(&self) -> usize {
        self.order.len()
    }

    /// The earliest deadline.
    pub fn next(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Removes and returns the earliest key that is due at `now`.
    pub fn pop(&mut self, now: Instant) -> Option<K> {
        if self.next()? > now {
            return None;
        }
        let (_, key) = self.order.pop_first()?;
        self.of.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "some instant to count from")]
    fn keys_come_out_in_the_order_of_their_deadlines() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut deadlines = Deadlines::default();
        for (key, seconds) in [("a", 3), ("b", 1), ("c", 2), ("b", 4), ("d", 9)] {
            deadlines.set(key, at(seconds));
        }
        deadlines.clear(&"d");
        assert_eq!(deadlines.of(&"b"), Some(at(4)));
        assert_eq!(deadlines.next(), Some(at(2)));
        assert_eq!(deadlines.pop(at(1)), None);
        let due: Vec<_> = std::iter::from_fn(|| deadlines.pop(at(4))).collect();
        assert_eq!(due, ["c", "a", "b"]);
        assert_eq!(deadlines.next(), None);
    }
}
