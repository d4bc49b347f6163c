//! The receivers of changes.

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use crate::change::Change;
use ssntp::client::ClientError;

/// The maximum number of changes that may wait for a subscriber: one STATS of a node with some thousand
/// instances can cause as many.
pub(crate) const MAX_CHANGES: usize = 16_384;

/// The subscribers.
#[derive(Debug, Default)]
pub(crate) struct Subscribers(Vec<Subscriber>);

#[derive(Debug)]
struct Subscriber {
    changes: Sender<Change>,
    missed: u64,
}

impl Subscribers {
    /// Adds a subscriber, which receives the changes from now on.
    pub(crate) fn add(&mut self) -> Receiver<Change> {
        let (changes, receiver) = bounded(MAX_CHANGES);
        self.0.push(Subscriber { changes, missed: 0 });
        receiver
    }

    /// Sends a change to all subscribers, and forgets those whose receiver was dropped.
    pub(crate) fn publish(&mut self, change: &Change) {
        self.0.retain_mut(|subscriber| subscriber.send(change.clone()));
    }

    /// Sends the last change, and closes the channels.
    pub(crate) fn end(&mut self, reason: &ClientError) {
        let reason = reason.to_string();
        self.publish(&Change::Ended { reason });
        self.0.clear();
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Subscriber {
    /// Sends a change without waiting; false once the receiver was dropped.
    fn send(&mut self, change: Change) -> bool {
        // `Missed` is sent first, at the position of the gap.
        let unsent = match self.missed {
            0 => None,
            count => self.changes.try_send(Change::Missed { count }).err(),
        };
        let unsent = unsent.or_else(|| {
            self.missed = 0;
            self.changes.try_send(change).err()
        });
        self.missed += u64::from(unsent.as_ref().is_some_and(TrySendError::is_full));
        !unsent.is_some_and(|e| e.is_disconnected())
    }
}
