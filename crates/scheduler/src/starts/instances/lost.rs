//! The instances that an operator has ended with their node. That machine may come back, perhaps under another UUID,
//! and list one. It is deleted then, because another instance may have its address.

use std::collections::{HashSet, VecDeque};

use uuid::Uuid;

/// The maximum number of instances that are remembered.
const MAX: usize = 4096;

/// The instances that ended with their node and were not started again since.
#[derive(Debug, Default)]
pub(super) struct Lost {
    all: HashSet<Uuid>,
    /// The same ones, the oldest in front.
    in_order: VecDeque<Uuid>,
}

impl Lost {
    /// Remembers an instance. Returns the oldest one, if that is forgotten instead.
    pub(super) fn add(&mut self, instance: Uuid) -> Option<Uuid> {
        if !self.all.insert(instance) {
            return None;
        }
        self.in_order.push_back(instance);
        if self.all.len() <= MAX {
            return None;
        }
        let oldest = self.in_order.pop_front()?;
        self.all.remove(&oldest);
        Some(oldest)
    }

    /// Forgets an instance, because a node has started it again.
    pub(super) fn remove(&mut self, instance: Uuid) {
        if self.all.remove(&instance) {
            self.in_order.retain(|lost| *lost != instance);
        }
    }

    pub(super) fn contains(&self, instance: Uuid) -> bool {
        self.all.contains(&instance)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Uuid> {
        self.all.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_one_is_forgotten_first_and_each_counts_once() {
        let mut lost = Lost::default();
        let all: Vec<_> = (1..=MAX as u128).map(Uuid::from_u128).collect();
        for _ in 0..2 {
            assert!(all.iter().all(|instance| lost.add(*instance).is_none()));
        }
        lost.remove(all[0]);
        assert_eq!(lost.add(Uuid::max()), None);
        assert_eq!(lost.add(Uuid::nil()), Some(all[1]));
        assert!(!lost.contains(all[0]) && !lost.contains(all[1]) && lost.contains(all[2]));
        assert_eq!(lost.iter().count(), MAX);
    }
}
