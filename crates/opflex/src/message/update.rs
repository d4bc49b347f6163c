//! `policy_update` and `endpoint_update` (draft 4.2.6, 4.2.11).

use serde::{Deserialize, Serialize};

use super::store::Store;
use crate::json;
use crate::model::{ManagedObject, Name, Uri};

/// Changes of objects that the receiver has resolved. A request can have several of these. All
/// members are written, as libopflex does, and any may be missing in a received update. `O` is the
/// type of the objects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "O: Deserialize<'de>"))]
pub struct Update<O = ManagedObject> {
    /// Objects that replace those with their URIs. Children that an object does not list any more
    /// are deleted.
    #[serde(default = "Vec::new", deserialize_with = "json::list")]
    pub replace: Vec<O>,
    /// Objects whose properties replace all properties of those with their URIs. Their children are
    /// added. An update of endpoints does not have this member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge_children: Option<Vec<O>>,
    /// Objects that are deleted.
    #[serde(default, deserialize_with = "json::objects")]
    pub delete: Vec<Deletion>,
}

/// An object that is deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// Its class.
    pub subject: Name,
    /// Its URI.
    pub uri: Uri,
}

impl<O> Update<O> {
    /// An update without changes.
    pub fn empty(of: Store) -> Self {
        Self {
            replace: Vec::new(),
            // libopflex always writes the member for policy. An update of endpoints (draft 4.2.11)
            // does not have it.
            merge_children: (of == Store::Policy).then(Vec::new),
            delete: Vec::new(),
        }
    }
}
