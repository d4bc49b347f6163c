//! `policy_update` (draft 4.2.6).

use serde::{Deserialize, Serialize};

use crate::opflex::json;
use crate::opflex::model::{ManagedObject, Name, Uri};

/// What changed in policy that the receiver resolved. All three members are
/// always written, as libopflex does, and may be missing when read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyUpdate {
    /// Objects that take the place of those with their URI; children that are
    /// not in an object's list any more are gone.
    #[serde(default, deserialize_with = "json::list")]
    pub replace: Vec<ManagedObject>,
    /// Objects whose properties take the place of all properties of those with
    /// their URI; children are added to those that are there.
    #[serde(default, deserialize_with = "json::list")]
    pub merge_children: Vec<ManagedObject>,
    /// Objects that are gone.
    #[serde(default, deserialize_with = "json::objects")]
    pub delete: Vec<Deletion>,
}

/// An object that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// Its class.
    pub subject: Name,
    /// Where it was.
    pub uri: Uri,
}
