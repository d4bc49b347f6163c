//! A limit of memory that several holders share.

use std::collections::HashMap;
use std::hash::Hash;

/// The memory that is kept for each of several holders, in bytes as they are allocated.
///
/// A holder may take bytes only if, afterwards, it has no more bytes than are free. So one greedy
/// holder gets half of the limit, and two greedy holders get a third each. Some bytes always stay
/// free for holders that have none yet.
#[derive(Debug)]
pub(crate) struct Shares<K> {
    used: usize,
    of: HashMap<K, usize>,
}

impl<K> Default for Shares<K> {
    fn default() -> Self {
        Self {
            used: 0,
            of: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash> Shares<K> {
    /// The memory of one holder.
    pub(crate) fn of(&self, holder: &K) -> usize {
        self.of.get(holder).copied().unwrap_or_default()
    }

    /// True if a holder may take `more` bytes of a limit. It may be false for zero bytes, so a caller
    /// that replaces an object by a smaller one does not ask.
    pub(crate) fn fits(&self, holder: &K, more: usize, limit: usize) -> bool {
        let used = self.used.saturating_add(more);
        self.of(holder).saturating_add(more) <= limit.saturating_sub(used)
    }

    /// Counts bytes that a holder takes.
    pub(crate) fn charge(&mut self, holder: K, bytes: usize) {
        self.used += bytes;
        *self.of.entry(holder).or_default() += bytes;
    }

    /// Counts bytes that a holder gives back.
    pub(crate) fn refund(&mut self, holder: &K, bytes: usize) {
        let Some(of) = self.of.get_mut(holder) else {
            return;
        };
        let bytes = bytes.min(*of);
        self.used -= bytes;
        *of -= bytes;
        // Peers choose the names of holders, so empty entries must not pile up.
        if *of == 0 {
            self.of.remove(holder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greedy_holder_leaves_memory_for_others() {
        let mut budget = Shares::default();
        assert!(budget.fits(&1, 50, 100) && !budget.fits(&1, 51, 100));
        budget.charge(1, 50);
        assert!(!budget.fits(&1, 1, 100));
        assert!(budget.fits(&2, 25, 100) && !budget.fits(&2, 26, 100));
        budget.charge(2, 25);
        assert!(budget.fits(&3, 12, 100) && !budget.fits(&3, usize::MAX, 100));
        budget.refund(&1, 50);
        assert_eq!((budget.of(&1), budget.of.len()), (0, 1));
        assert!(budget.fits(&2, 25, 100));
    }
}
