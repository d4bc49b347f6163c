//! The changes that pass from one scheduler to the next: the node of each instance, and the STARTs
//! that are not answered.
//!
//! ```text
//!  Instances ─▶ keep, record ─┬─▶ file of the ledger, for the scheduler after a restart
//!                             └─▶ intents, for all other schedulers
//! ```

use std::collections::HashMap;

use uuid::Uuid;

use crate::messages::{Intent, LOST, StartState};
use crate::starts::ledger::Ledger;

/// The changes for the next scheduler.
#[derive(Debug, Default)]
pub(crate) struct Handover {
    /// The file in which the next scheduler finds the node of each instance; `None` without a
    /// state directory.
    ledger: Option<Ledger>,
    /// The intents that have not been sent to the other schedulers yet; `None` if this is the
    /// only scheduler.
    intents: Option<Vec<Intent>>,
    /// The instances that are gone or [`LOST`], which the other schedulers have not been told yet.
    gone: Vec<Uuid>,
}

impl Handover {
    /// From now on, changes are written to the ledger's file.
    pub(in crate::starts) fn keep_in(&mut self, ledger: Ledger) {
        self.ledger = Some(ledger);
    }

    /// The reason why changes are not in the ledger's file.
    pub(crate) fn fault(&self) -> Option<String> {
        self.ledger.as_ref().and_then(Ledger::fault)
    }

    /// From now on, changes are recorded for the other schedulers.
    pub(in crate::starts) fn record_intents(&mut self) {
        self.intents = Some(Vec::new());
    }

    pub(super) fn records_intents(&self) -> bool {
        self.intents.is_some()
    }

    /// Keeps the node of an instance; `None` once the instance is gone, [`LOST`] if it ended with its node.
    pub(super) fn keep(&mut self, instance: Uuid, node: Option<Uuid>) {
        if let Some(ledger) = &mut self.ledger {
            ledger.keep(instance, node);
        }
        self.record(instance, node, StartState::Answered);
    }

    /// True if the ledger has dropped changes, and has to take the nodes of all instances now.
    pub(super) fn can_catch_up(&self, ends: bool) -> bool {
        self.ledger
            .as_ref()
            .is_some_and(|ledger| ledger.can_catch_up(ends))
    }

    /// Hands the node of each instance over to the ledger.
    pub(super) fn catch_up(&mut self, owners: HashMap<Uuid, Uuid>) {
        if let Some(ledger) = &mut self.ledger {
            ledger.catch_up(owners);
        }
    }

    /// Records once more that an instance is gone.
    pub(crate) fn record_gone(&mut self, instance: Uuid) {
        self.record(instance, None, StartState::Answered);
    }

    pub(super) fn record(&mut self, instance: Uuid, node: Option<Uuid>, state: StartState) {
        match &mut self.intents {
            _ if node.is_none_or(|node| node == LOST) => self.gone.push(instance),
            None => {}
            Some(intents) => intents.push(Intent {
                instance,
                node,
                state,
            }),
        }
    }

    /// The intents that have changed since the last call, without the instances that are gone.
    pub(in crate::starts) fn take_intents(&mut self) -> Vec<Intent> {
        self.intents.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The instances that are gone since the last call.
    pub(super) fn take_gone(&mut self) -> Vec<Uuid> {
        std::mem::take(&mut self.gone)
    }
}
