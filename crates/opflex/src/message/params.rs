//! The parameters of methods: `echo` (draft 4.2.3), `policy_update` and `endpoint_update` (4.2.6,
//! 4.2.11), `endpoint_declare` (4.2.7), `endpoint_undeclare` (4.2.8), `state_report` (4.2.12), and `custom`,
//! which is not in the draft.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::store::Store;
use crate::json;
use crate::model::{ManagedObject, Name, Uri};

/// The parameters of an echo, which checks that the other side is alive.
///
/// In the draft an echo has no parameters and is answered with an empty object. libopflex sends its
/// clock in milliseconds and answers with the parameters. Both sides send an echo as soon as they
/// are connected, before their identities.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Echo(pub Vec<Value>);

impl Echo {
    /// The answer: the parameters, as libopflex expects, or the empty object of the draft if there
    /// are no parameters.
    pub fn answer(self) -> Value {
        if self.0.is_empty() {
            Value::Object(serde_json::Map::new())
        } else {
            Value::Array(self.0)
        }
    }
}

/// Endpoints that are attached, or changed. A request can have several of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndpointDeclare {
    /// The endpoints with everything below them.
    pub endpoint: Vec<ManagedObject>,
    /// The refresh rate in seconds: the declaration is valid for this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prr: Option<i64>,
}

/// An endpoint that is not attached any more. A request can have several of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointUndeclare {
    /// The class of the endpoint.
    pub subject: Name,
    /// The URI of the endpoint.
    pub endpoint_uri: Uri,
}

/// Statistics, faults, events and health. A request can have several of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateReport {
    /// Objects. Each replaces the reported object with its URI.
    pub observable: Vec<ManagedObject>,
}

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

/// A call of an inner method. libopflex supports it on its inspection socket only. Here the
/// inspector and the control socket use it; on other connections it is answered EUNSUPPORTED.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Custom {
    /// The inner method.
    pub method: String,
    /// Its parameters.
    #[serde(default)]
    pub params: Value,
}

/// The answer to [`Custom`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CustomResult<T = Value> {
    /// The inner method.
    pub method: String,
    /// Its result.
    #[serde(default)]
    pub result: T,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_are_returned_and_missing_ones_as_an_object() {
        assert_eq!(Echo(vec![json!(1_383_103)]).answer(), json!([1_383_103]));
        assert_eq!(Echo(vec![]).answer(), json!({}));
    }
}
