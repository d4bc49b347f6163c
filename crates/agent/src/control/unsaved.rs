//! The instances whose records could not be saved, for example because the disk was full.

use std::collections::BTreeSet;
use std::ops::Bound;

use uuid::Uuid;

/// The maximum number of records that are saved again at a time. More would delay the other jobs of the
/// workers.
const SAVED_AGAIN: usize = 128;

/// The instances whose records could not be saved.
#[derive(Debug, Default)]
pub(super) struct Unsaved {
    instances: BTreeSet<Uuid>,
    /// The last of them that was saved again. The next attempt continues after it.
    last: Uuid,
}

impl Unsaved {
    pub(super) fn len(&self) -> usize {
        self.instances.len()
    }

    pub(super) fn handle_unsaved(&mut self, instance: Uuid) {
        self.instances.insert(instance);
    }

    /// The instances to save again now. Those after the last one come first, because records that fail
    /// each time would otherwise keep all later ones from being saved.
    pub(super) fn take(&mut self) -> Vec<Uuid> {
        let later = self
            .instances
            .range((Bound::Excluded(self.last), Bound::Unbounded));
        let all = later.chain(self.instances.range(..=self.last));
        let taken: Vec<_> = all.take(SAVED_AGAIN).copied().collect();
        for instance in &taken {
            self.instances.remove(instance);
            self.last = *instance;
        }
        taken
    }
}
