//! `endpoint_declare` (draft 4.2.7).

use serde::{Deserialize, Serialize};

use crate::model::ManagedObject;

/// Says that endpoints are attached, or changed; a request can have several of
/// these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndpointDeclare {
    /// The endpoints with everything below them.
    pub endpoint: Vec<ManagedObject>,
    /// For how many seconds the declaration holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prr: Option<i64>,
}
