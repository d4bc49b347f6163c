//! `endpoint_undeclare` (draft 4.2.8).

use serde::{Deserialize, Serialize};

use crate::model::{Name, Uri};

/// Says that an endpoint is gone; a request can have several of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointUndeclare {
    /// The class of the endpoint.
    pub subject: Name,
    /// Which endpoint.
    pub endpoint_uri: Uri,
}
