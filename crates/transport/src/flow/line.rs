//! The line of one receiver: items for which its queue has no room yet.

use std::collections::VecDeque;

use super::Origin;
use crate::stream::{Load, Outgoing};
use crate::table::ConnectionId;

/// An item in a line.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) item: Outgoing,
    pub(super) origin: Origin,
    /// True if the item holds its origin. If not, it counts against the receiver's limit.
    pub(super) holds: bool,
}

/// The items that wait for one receiver, oldest first.
#[derive(Debug)]
pub(super) struct Line {
    receiver: ConnectionId,
    pub(super) items: VecDeque<Waiting>,
    /// The number of items that hold another origin than the receiver itself.
    holding: usize,
    /// The loose items: those that hold no origin.
    pub(super) loose: Load,
    /// All items.
    pub(super) all: Load,
}

impl Line {
    pub(super) fn new(receiver: ConnectionId) -> Self {
        Self {
            receiver,
            items: VecDeque::new(),
            holding: 0,
            loose: Load::default(),
            all: Load::default(),
        }
    }

    /// True if the receiver holds others. Items of the application hold nobody, and neither do those of
    /// others behind a slow receiver.
    pub(super) fn holds_others(&self) -> bool {
        self.holding > 0
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

    /// The newest item that holds no origin.
    pub(super) fn newest_loose(&self) -> Option<Load> {
        let newest = self.items.iter().rev().find(|waiting| !waiting.holds)?;
        Some(newest.item.load())
    }

    /// Removes the oldest or the newest item that holds no origin.
    pub(super) fn drop_loose(&mut self, oldest: bool) -> Option<Load> {
        let is_loose = |waiting: &Waiting| !waiting.holds;
        let at = match oldest {
            true => self.items.iter().position(is_loose),
            false => self.items.iter().rposition(is_loose),
        };
        self.remove(at?).map(|waiting| waiting.item.load())
    }

    /// Makes all items of these origins hold no origin. Returns the origin of each item that held one.
    pub(super) fn release(&mut self, which: impl Fn(Origin) -> bool) -> Vec<Origin> {
        let mut gone = Vec::new();
        for waiting in &mut self.items {
            if waiting.holds && which(waiting.origin) {
                waiting.holds = false;
                self.loose += waiting.item.load();
                self.holding -= usize::from(waiting.origin != Origin::Connection(self.receiver));
                gone.push(waiting.origin);
            }
        }
        gone
    }

    fn count(&mut self, waiting: &Waiting) {
        self.all += waiting.item.load();
        match waiting.holds {
            true => self.holding += usize::from(waiting.origin != Origin::Connection(self.receiver)),
            false => self.loose += waiting.item.load(),
        }
    }

    fn remove(&mut self, at: usize) -> Option<Waiting> {
        let waiting = self.items.remove(at)?;
        self.all -= waiting.item.load();
        match waiting.holds {
            true => self.holding -= usize::from(waiting.origin != Origin::Connection(self.receiver)),
            false => self.loose -= waiting.item.load(),
        }
        Some(waiting)
    }
}
