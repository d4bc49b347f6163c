//! A START that waits for the READY of a node.

use uuid::Uuid;

use super::instances::Instances;
use super::unplaced::UnplacedStart;
use crate::placement::{Allocation, Placement, Verdict};

/// A START that waits for the READY of a node.
#[derive(Debug)]
pub(super) struct ParkedStart {
    pub(super) start: UnplacedStart,
    pub(super) node: Uuid,
}

impl ParkedStart {
    /// What becomes of it after a change of this node: it has an allocation, or no allocation if it has waited for this
    /// node and fits none any more. `None` if it goes on waiting.
    pub(super) fn decide(
        &mut self,
        node: Uuid,
        placement: &mut Placement,
        instances: &Instances,
    ) -> Option<Option<Allocation>> {
        let UnplacedStart { from, needs, .. } = &self.start;
        // A client that is both controller and agent does not receive its own STARTs.
        if *from != node && placement.is_ready(node) {
            let allocation = if instances.siblings(&needs.apart_from).contains_key(&node) {
                // Another node may have fewer siblings.
                self.place(placement, instances).flatten()
            } else {
                placement.place_on(node, needs)
            };
            if allocation.is_some() {
                return Some(allocation);
            }
        }
        let waits = self.node != node || placement.would_fit(node, &self.start.needs);
        (!waits).then(|| self.place(placement, instances))?
    }

    /// The allocation of any node, or no allocation if none fits it. `None` if it waits for another node from
    /// now on.
    fn place(&mut self, placement: &mut Placement, instances: &Instances) -> Option<Option<Allocation>> {
        let UnplacedStart { from, needs, .. } = &self.start;
        let siblings = instances.siblings(&needs.apart_from);
        // The sender is left out of the search, as for a START that has just arrived.
        match placement.place(needs, Some(*from), &siblings) {
            Verdict::Placed(allocation) => Some(Some(allocation)),
            Verdict::Wait(other) => {
                self.node = other;
                None
            }
            Verdict::NoRoom | Verdict::NoNode => Some(None),
        }
    }
}
