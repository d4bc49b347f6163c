//! `state_report` (draft 4.2.12).

use serde::{Deserialize, Serialize};

use crate::model::ManagedObject;

/// Statistics, faults, events and health. A request can have several of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateReport {
    /// Objects. Each replaces the reported object with its URI.
    pub observable: Vec<ManagedObject>,
}
