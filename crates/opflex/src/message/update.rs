//! `policy_update` and `endpoint_update` (draft 4.2.6, 4.2.11).

use serde::{Deserialize, Serialize};

use super::Store;
use crate::json;
use crate::model::{ManagedObject, Name, Uri};

/// Changes of objects that the receiver has resolved. A request can have several of these. All
/// members are always written, as libopflex does, and may be missing when read. `O` is the type of
/// the objects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "O: Deserialize<'de>"))]
pub struct Update<O = ManagedObject> {
    /// Objects that take the place of those with their URI; children that are
    /// not in an object's list any more are gone.
    #[serde(default = "Vec::new", deserialize_with = "json::list")]
    pub replace: Vec<O>,
    /// Objects whose properties take the place of all properties of those with
    /// their URI; children are added to those that are there. An update of
    /// endpoints has no such member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge_children: Option<Vec<O>>,
    /// Objects that are gone.
    #[serde(default, deserialize_with = "json::objects")]
    pub delete: Vec<Deletion>,
}

/// An object that is gone.
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
            // libopflex always writes the member for policy. The one for endpoints (draft
            // 4.2.11) has none.
            merge_children: (of == Store::Policy).then(Vec::new),
            delete: Vec::new(),
        }
    }
}
