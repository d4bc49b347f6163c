//! Numbers of connections, and tables with an entry for each connection.

use std::fmt;

/// The number of one connection of a dispatcher. No number is used twice.
///
/// The lower bits are the connection's slot in the tables, so that a look-up is one comparison. The upper
/// bits grow with each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// The number of bits for slots. Each connection has two threads, and Linux allows at most 2^22 threads,
/// so there are always enough slots.
const SLOT_BITS: u32 = 24;
const SLOTS: u64 = 1 << SLOT_BITS;

impl ConnectionId {
    /// The number of connections before this one.
    pub fn sequence(self) -> u64 {
        self.0 >> SLOT_BITS
    }

    fn slot(self) -> usize {
        usize::try_from(self.0 % SLOTS).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.sequence())
    }
}

/// Allocates numbers for connections. A slot is used again after its connection has ended; a number is
/// not.
#[derive(Debug, Default)]
pub struct Numbers {
    sequence: u64,
    slots: usize,
    free: Vec<usize>,
}

impl Numbers {
    /// Allocates a number for a new connection.
    pub fn take(&mut self) -> ConnectionId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        });
        debug_assert!((slot as u64) < SLOTS, "there are fewer threads than slots");
        self.sequence += 1;
        ConnectionId(self.sequence << SLOT_BITS | slot as u64)
    }

    /// Frees the slot of a connection that has ended and is in no table.
    pub fn give(&mut self, id: ConnectionId) {
        self.free.push(id.slot());
    }
}

/// A table with one entry for each connection.
#[derive(Debug)]
pub struct Table<T> {
    // Boxed, because a table never shrinks: an empty slot should be small.
    slots: Vec<Option<Box<(ConnectionId, T)>>>,
    len: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            len: 0,
        }
    }
}

impl<T> Table<T> {
    /// Adds an entry for a connection that has none.
    pub fn insert(&mut self, id: ConnectionId, entry: T) {
        let slot = id.slot();
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        let before = self.slots[slot].replace(Box::new((id, entry)));
        debug_assert!(before.is_none(), "a slot is free before it is given again");
        self.len += usize::from(before.is_none());
    }

    /// Removes the entry of a connection.
    pub fn remove(&mut self, id: ConnectionId) -> Option<T> {
        let slot = self.slots.get_mut(id.slot())?;
        let entry = slot.take_if(|entry| entry.0 == id)?;
        self.len -= 1;
        Some(entry.1)
    }

    /// The entry of a connection.
    pub fn get(&self, id: ConnectionId) -> Option<&T> {
        let entry = self.slots.get(id.slot())?.as_ref()?;
        (entry.0 == id).then_some(&entry.1)
    }

    /// The entry of a connection, to be changed.
    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut T> {
        let entry = self.slots.get_mut(id.slot())?.as_mut()?;
        (entry.0 == id).then_some(&mut entry.1)
    }

    /// True if a connection has an entry.
    pub fn contains(&self, id: ConnectionId) -> bool {
        self.get(id).is_some()
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Every entry, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (ConnectionId, &T)> {
        self.slots.iter().flatten().map(|entry| (entry.0, &entry.1))
    }

    /// The numbers of all entries, oldest first.
    pub fn ids(&self) -> Vec<ConnectionId> {
        let mut ids: Vec<_> = self.iter().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_used_again_and_a_number_is_not() {
        let (mut numbers, mut table) = (Numbers::default(), Table::default());
        let [first, second] = [numbers.take(), numbers.take()];
        table.insert(first, 'a');
        table.insert(second, 'b');
        assert_eq!(table.remove(first), Some('a'));
        numbers.give(first);
        let third = numbers.take();
        assert_eq!(third.slot(), first.slot());
        assert!(third > second && second > first, "numbers grow");
        table.insert(third, 'c');
        assert_eq!(table.get(first), None, "the former number names no other entry");
        assert_eq!(table.remove(first), None);
        assert_eq!((table.get(third), table.len()), (Some(&'c'), 2));
        assert_eq!(table.ids(), [second, third]);
        assert_eq!((first.to_string(), third.to_string()), ("1".into(), "3".into()));
    }
}
