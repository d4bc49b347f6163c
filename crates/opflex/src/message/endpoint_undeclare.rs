//! `endpoint_undeclare` (draft 4.2.8).

use serde::{Deserialize, Serialize};

use crate::model::{Name, Uri};

/// An endpoint that is not attached any more. A request can have several of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointUndeclare {
    /// The class of the endpoint.
    pub subject: Name,
    /// The URI of the endpoint.
    pub endpoint_uri: Uri,
}
