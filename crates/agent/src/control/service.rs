//! Whether the node is in service: OFFLINE, evacuated, in maintenance; and the next state of the machine
//! after an evacuation.
//!
//! ```text
//!            EVACUATE               no instance runs
//!  Normal ───────────▶ Evacuating ───────────────────▶ Maintenance
//!    ▲                     │                               │
//!    └────── Restore ──────┴───────────────────────────────┘
//! ```
//!
//! A node that is drained, or whose record can't be read, is Closed, which Restore and EVACUATE end.
//!
//! OFFLINE is a switch of the node's owner, and independent of it.

use ssntp_payload::NextState;

use super::events::{Action, Job};
use super::outputs::Outputs;
use crate::store::NodeRecord;

/// The service of a node.
#[derive(Debug)]
pub(super) struct Service {
    offline: bool,
    mode: Mode,
    /// The next state of the machine, from the last EVACUATE.
    next_state: NextState,
    /// The next state that is reported to the agent's owner once the node's record is saved. A further
    /// EVACUATE or a Restore clears it.
    reached: Option<NextState>,
    /// True if the node's record could not be saved.
    is_unsaved: bool,
}

/// The mode of the node. Only a node in [`Mode::Normal`] accepts STARTs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Normal,
    /// The node is drained: its instances run on, and it takes no START until an operator restores it.
    /// So does a node whose record could not be read, because it may have been in maintenance, or not.
    Closed,
    /// An EVACUATE stops the instances.
    Evacuating,
    /// The evacuation is complete.
    Maintenance,
}

impl Service {
    pub(super) fn new() -> Self {
        Self {
            offline: false,
            mode: Mode::Normal,
            next_state: NextState::Maintenance,
            reached: None,
            is_unsaved: false,
        }
    }

    pub(super) fn is_offline(&self) -> bool {
        self.offline
    }

    /// True from EVACUATE to Restore, and on a node that is closed.
    pub(super) fn is_evacuated(&self) -> bool {
        self.mode != Mode::Normal
    }

    /// True if instances may be started.
    pub(super) fn is_open(&self) -> bool {
        !self.offline && !self.is_evacuated()
    }

    /// False during an evacuation, in which the node sends no status: MAINTENANCE follows at the
    /// end.
    pub(super) fn has_status(&self) -> bool {
        self.mode != Mode::Evacuating || self.offline
    }

    pub(super) fn is_unsaved(&self) -> bool {
        self.is_unsaved
    }

    /// The next state that waits until the node's record is saved.
    pub(super) fn reached(&self) -> Option<&NextState> {
        self.reached.as_ref()
    }

    /// Has the node's record saved, and then the next state of the machine reported that waits for it, if there
    /// is one.
    pub(super) fn save(&self, out: &mut Outputs) {
        let record = NodeRecord {
            // An evacuation under way counts as maintenance, so the next agent continues it.
            maintenance: matches!(self.mode, Mode::Evacuating | Mode::Maintenance),
            next_state: self.next_state.clone(),
            offline: self.offline,
            closed: self.mode == Mode::Closed,
        };
        out.job(Job::SaveNode(record, self.reached.clone()));
    }

    /// Continues the service of a former agent. True if instances are to be stopped: the mode becomes
    /// Maintenance once all of them have ended.
    pub(super) fn handle_adopted(&mut self, node: NodeRecord) -> bool {
        self.offline = node.offline;
        if node.closed {
            self.mode = Mode::Closed;
        }
        if node.maintenance {
            self.next_state = node.next_state;
            self.mode = Mode::Evacuating;
        }
        node.maintenance
    }

    /// Takes the node out of service, or back into service.
    pub(super) fn handle_toggle(&mut self) {
        self.offline = !self.offline;
    }

    /// Begins an evacuation; false if one is complete. A later EVACUATE wins, even while an earlier one
    /// is under way, or its next state waits for the node's record to be saved.
    pub(super) fn handle_evacuate(&mut self, next: NextState) -> bool {
        self.next_state = next;
        self.reached = None;
        let begins = self.mode != Mode::Maintenance;
        if begins {
            self.mode = Mode::Evacuating;
        }
        begins
    }

    /// Begins to drain the node, unless it is evacuated or drained.
    pub(super) fn handle_drain(&mut self) {
        if self.mode == Mode::Normal {
            self.mode = Mode::Closed;
        }
    }

    /// Ends an evacuation; false if there is none, or the node is OFFLINE.
    pub(super) fn handle_restore(&mut self) -> bool {
        let ends = !self.offline && self.is_evacuated();
        if ends {
            self.mode = Mode::Normal;
            self.next_state = NextState::Maintenance;
            self.reached = None;
        }
        ends
    }

    /// Completes an evacuation, now that no instance runs; false if none is under way.
    pub(super) fn handle_empty(&mut self) -> bool {
        let completes = self.mode == Mode::Evacuating;
        if completes {
            self.mode = Mode::Maintenance;
        }
        completes
    }

    /// Reports the next state of the machine to the agent's owner. That it was reported is recorded
    /// first, because otherwise the next agent of a machine that was rebooted would report `reboot`
    /// again.
    pub(super) fn reach_next_state(&mut self, out: &mut Outputs) {
        let next = std::mem::take(&mut self.next_state);
        if next != NextState::Maintenance {
            self.reached = Some(next);
            self.save(out);
        }
    }

    /// The record is on the disk: reports this next state. A state that a further EVACUATE or a Restore has
    /// replaced is not reported, and none is reported twice.
    pub(super) fn handle_saved(&mut self, next: NextState, out: &mut Outputs) {
        if self.reached.take_if(|reached| *reached == next).is_some() {
            out.act(Action::Evacuated(next));
        }
    }

    /// The record could not be saved.
    pub(super) fn handle_unsaved(&mut self) {
        self.is_unsaved = true;
    }

    /// Has the record saved again, if it could not be saved.
    pub(super) fn save_again(&mut self, out: &mut Outputs) {
        if std::mem::take(&mut self.is_unsaved) {
            self.save(out);
        }
    }
}
