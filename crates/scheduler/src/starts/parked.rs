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
    /// The allocation of this node, if the START fits it now.
    pub(super) fn fit(
        &mut self,
        node: Uuid,
        placement: &mut Placement,
        instances: &Instances,
    ) -> Option<Allocation> {
        let UnplacedStart { from, needs, .. } = &self.start;
        let siblings = instances.siblings(&needs.apart_from);
        match () {
            () if !placement.is_ready(node) => None,
            // A client that is both controller and agent does not receive its own STARTs.
            () if *from == node => None,
            // Another node may have fewer siblings.
            () if siblings.contains_key(&node) => self.place(placement, instances)?,
            () => placement.place_on(node, needs),
        }
    }

    /// If it has waited for this node and does not fit it any more: the allocation of another node, or no
    /// allocation if none fits it. `None` if it goes on waiting.
    pub(super) fn leave(
        &mut self,
        node: Uuid,
        placement: &mut Placement,
        instances: &Instances,
    ) -> Option<Option<Allocation>> {
        let waits = self.node != node || placement.would_fit(node, &self.start.needs);
        if waits {
            None
        } else {
            self.place(placement, instances)
        }
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
