//! `endpoint_update` (draft 4.2.11).

use serde::{Deserialize, Serialize};

use super::Deletion;
use crate::opflex::json;
use crate::opflex::model::ManagedObject;

/// What changed in endpoints that the receiver resolved. Both members are
/// always written and may be missing when read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndpointUpdate {
    /// Objects that take the place of those with their URI; children that are
    /// not in an object's list any more are gone.
    #[serde(default, deserialize_with = "json::list")]
    pub replace: Vec<ManagedObject>,
    /// Objects that are gone.
    #[serde(default, deserialize_with = "json::objects")]
    pub delete: Vec<Deletion>,
}
