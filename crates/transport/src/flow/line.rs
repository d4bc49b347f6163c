//! The line of one receiver: items for which its queue has no room yet.

use std::collections::VecDeque;

use super::accounts::Origin;
use crate::budget::{Budget, Charge};
use crate::stream::{Load, Outgoing};
use crate::table::ConnectionId;

/// An item in a line.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) item: Outgoing,
    pub(super) origin: Origin,
    /// True if the item is charged to its origin, which is paused. If not, it is *loose*: it counts
    /// against the receiver's limit.
    pub(super) is_charged: bool,
    /// Counts its memory for as long as it waits.
    pub(super) memory: Charge,
}

/// The items that wait for one receiver, oldest first.
#[derive(Debug)]
pub(super) struct Line {
    receiver: ConnectionId,
    items: VecDeque<Waiting>,
    /// The number of items that are charged to others than the receiver itself.
    of_others: usize,
    loose: Load,
}

impl Line {
    pub(super) fn new(receiver: ConnectionId) -> Self {
        Self {
            receiver,
            items: VecDeque::new(),
            of_others: 0,
            loose: Load::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.items.iter()
    }

    /// True if the receiver pauses others. Items of the application pause nobody, and neither do those
    /// of others behind a slow receiver.
    pub(super) fn pauses_others(&self) -> bool {
        self.of_others > 0
    }

    /// All loose items.
    pub(super) fn loose(&self) -> Load {
        self.loose
    }

    pub(super) fn push_back(&mut self, waiting: Waiting) {
        self.count(&waiting);
        self.items.push_back(waiting);
    }

    pub(super) fn push_front(&mut self, waiting: Waiting) {
        self.count(&waiting);
        self.items.push_front(waiting);
    }

    pub(super) fn pop_front(&mut self) -> Option<Waiting> {
        self.remove(0)
    }

    /// The newest loose item.
    pub(super) fn newest_loose(&self) -> Option<Load> {
        let newest = self.items.iter().rev().find(|waiting| !waiting.is_charged)?;
        Some(newest.item.load())
    }

    /// Removes the oldest or the newest loose item.
    pub(super) fn drop_loose(&mut self, oldest: bool) -> Option<Load> {
        let is_loose = |waiting: &Waiting| !waiting.is_charged;
        let at = if oldest {
            self.items.iter().position(is_loose)
        } else {
            self.items.iter().rposition(is_loose)
        };
        self.remove(at?).map(|waiting| waiting.item.load())
    }

    /// Makes the items of these origins loose, so that their memory counts in `budget`. Returns the origin
    /// and the memory of each.
    pub(super) fn loosen(&mut self, budget: &Budget, which: impl Fn(Origin) -> bool) -> Vec<(Origin, u64)> {
        let mut discharged = Vec::new();
        for waiting in &mut self.items {
            if waiting.is_charged && which(waiting.origin) {
                let load = waiting.item.load();
                waiting.is_charged = false;
                waiting.memory = budget.charge(load.memory());
                self.loose += load;
                self.of_others -= usize::from(waiting.origin != Origin::Connection(self.receiver));
                discharged.push((waiting.origin, load.memory()));
            }
        }
        discharged
    }

    fn count(&mut self, waiting: &Waiting) {
        if waiting.is_charged {
            self.of_others += usize::from(waiting.origin != Origin::Connection(self.receiver));
        } else {
            self.loose += waiting.item.load();
        }
    }

    fn remove(&mut self, at: usize) -> Option<Waiting> {
        let waiting = self.items.remove(at)?;
        if waiting.is_charged {
            self.of_others -= usize::from(waiting.origin != Origin::Connection(self.receiver));
        } else {
            self.loose -= waiting.item.load();
        }
        Some(waiting)
    }
}
