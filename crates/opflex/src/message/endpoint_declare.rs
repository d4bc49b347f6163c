//! `endpoint_declare` (draft 4.2.7).

use serde::{Deserialize, Serialize};

use crate::model::ManagedObject;

/// Endpoints that are attached, or changed. A request can have several of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndpointDeclare {
    /// The endpoints with everything below them.
    pub endpoint: Vec<ManagedObject>,
    /// The refresh rate in seconds: the declaration is valid for this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prr: Option<i64>,
}
