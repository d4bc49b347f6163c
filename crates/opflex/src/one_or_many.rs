//! Sets that mostly have one element.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// A sorted set that is never empty. Nearly every set of an index has a single
/// element, and a tree for each of them would be most of the index's memory.
#[derive(Clone, Debug)]
pub(crate) enum OneOrMany<T> {
    One(T),
    Many(BTreeSet<T>),
}

impl<T: Ord> OneOrMany<T> {
    /// The elements in their order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        let (one, many) = match self {
            Self::One(one) => (Some(one), None),
            Self::Many(many) => (None, Some(many)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// Adds an element to the set of a key.
pub(crate) fn add<K: Eq + Hash, T: Clone + Ord>(index: &mut HashMap<K, OneOrMany<T>>, key: K, element: T) {
    match index.get_mut(&key) {
        None => {
            index.insert(key, OneOrMany::One(element));
        }
        Some(OneOrMany::Many(many)) => {
            many.insert(element);
        }
        Some(OneOrMany::One(one)) if *one == element => {}
        Some(set) => {
            let both = set.iter().cloned().chain([element]).collect();
            *set = OneOrMany::Many(both);
        }
    }
}

/// Removes an element from the set of a key, and removes the key with its last element.
pub(crate) fn remove<K: Eq + Hash, T: Ord>(index: &mut HashMap<K, OneOrMany<T>>, key: &K, element: &T) {
    let is_empty = match index.get_mut(key) {
        None => false,
        // A different single element stays.
        Some(OneOrMany::One(one)) => one == element,
        Some(OneOrMany::Many(many)) => {
            many.remove(element);
            many.is_empty()
        }
    };
    if is_empty {
        index.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_the_last_element_removes_the_key() {
        let mut index = HashMap::new();
        for element in [2, 1, 2, 3] {
            add(&mut index, "key", element);
        }
        assert_eq!(index["key"].iter().copied().collect::<Vec<_>>(), [1, 2, 3]);
        for element in [9, 1, 3] {
            remove(&mut index, &"key", &element);
        }
        assert_eq!(index["key"].iter().count(), 1);
        remove(&mut index, &"key", &2);
        remove(&mut index, &"key", &2);
        assert!(index.is_empty());

        add(&mut index, "key", 1);
        remove(&mut index, &"key", &2);
        assert_eq!(index["key"].iter().count(), 1);
        remove(&mut index, &"key", &1);
        assert!(index.is_empty());
    }
}
