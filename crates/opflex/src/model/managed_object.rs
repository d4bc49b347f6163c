//! One object in the form of messages.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::error::ModelError;
use super::name::Name;
use super::uri::Uri;
use crate::json;

/// The properties that hold names, unless the model file sets others for the class.
pub(super) const NAMING: [&str; 5] = ["name", "identifier", "ip", "mac", "uuid"];

/// A managed object in the form of messages: flat, with the URIs of its children.
///
/// In a received object `subject` and `uri` are required; every other member may be missing
/// or null. Members that are not in the draft are kept and written behind the others.
///
/// ```
/// use ssntp_opflex::model::ManagedObject;
///
/// let group = ManagedObject::new("GbpEpGroup", "/GbpEpGroup/web/".parse()?).with("name", "web");
/// assert_eq!(
///     serde_json::to_string(&group)?,
///     r#"{"subject":"GbpEpGroup","uri":"/GbpEpGroup/web/","properties":[{"name":"name","data":"web"}],"children":[]}"#
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ManagedObject {
    /// The class.
    pub subject: Name,
    /// The URI, which is also its place in the tree.
    pub uri: Uri,
    /// Named values, in no particular order.
    #[serde(default, deserialize_with = "json::objects")]
    pub properties: Vec<Property>,
    /// The objects that this one contains.
    #[serde(default, deserialize_with = "json::list")]
    pub children: Vec<Uri>,
    /// The class of the object that contains this one.
    #[serde(
        default,
        deserialize_with = "empty_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub parent_subject: Option<Name>,
    /// The object that contains this one. `None` if it is not given.
    #[serde(
        default,
        deserialize_with = "empty_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub parent_uri: Option<Uri>,
    /// The name under which the parent contains this object. If it is not given, it is the class of
    /// this object.
    #[serde(
        default,
        deserialize_with = "empty_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub parent_relation: Option<Name>,
    /// Members that are not in the draft.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl ManagedObject {
    /// An object without properties, children and parent.
    pub fn new(subject: impl Into<Name>, uri: Uri) -> Self {
        Self {
            subject: subject.into(),
            uri,
            properties: Vec::new(),
            children: Vec::new(),
            parent_subject: None,
            parent_uri: None,
            parent_relation: None,
            extra: Map::new(),
        }
    }

    /// Adds a property.
    #[must_use]
    pub fn with(mut self, name: impl Into<Name>, data: impl Into<Value>) -> Self {
        self.properties.push(Property {
            name: name.into(),
            data: data.into(),
        });
        self
    }

    /// Sets the parent, with the class of the object as the name of the relation.
    #[must_use]
    pub fn under(mut self, subject: impl Into<Name>, uri: Uri) -> Self {
        self.parent_subject = Some(subject.into());
        self.parent_uri = Some(uri);
        self.parent_relation = Some(self.subject.clone());
        self
    }

    /// Checks that the URI of the parent is a prefix of the object's URI, and that this
    /// is a prefix of the URIs of its children.
    pub fn check(&self) -> Result<(), ModelError> {
        // This keeps cycles out of the tree.
        if let Some(parent) = self
            .parent_uri
            .as_ref()
            .filter(|parent| !parent.is_ancestor_of(&self.uri))
        {
            return Err(ModelError::NotBelowParent {
                uri: self.uri.clone(),
                parent: parent.clone(),
            });
        }
        match self.children.iter().find(|child| !self.uri.is_ancestor_of(child)) {
            None => Ok(()),
            Some(child) => Err(ModelError::NotBelowParent {
                uri: child.clone(),
                parent: self.uri.clone(),
            }),
        }
    }

    /// The approximate memory of the object, in bytes, including its entries in the tables of a tree. A
    /// text that objects of a tree share counts for each of them, because a peer can send a different
    /// one in each object.
    pub(crate) fn memory(&self) -> usize {
        // The entries of an object in all tables of a tree. A table is up to half empty.
        const OBJECT_ENTRIES: usize = 2 * size_of::<ManagedObject>() + 300;
        let of_property = |property: &Property| {
            let names = property
                .data
                .as_str()
                .filter(|_| NAMING.contains(&property.name.as_str()));
            let ident = names.map_or(0, |name| ENTRY + shared(name));
            shared(&property.name) + json::memory(&property.data) + ident
        };
        let properties: usize = self.properties.iter().map(of_property).sum();
        let children = self.children.iter().map(child_memory);
        let names = [&self.parent_subject, &self.parent_relation]
            .into_iter()
            .flatten();
        let parent = names
            .map(Name::as_str)
            .chain(self.parent_uri.as_ref().map(Uri::as_str));
        OBJECT_ENTRIES
            + shared(&self.subject)
            + shared(self.uri.as_str())
            + parent.map(shared).sum::<usize>()
            + json::allocated(self.properties.capacity() * size_of::<Property>())
            + properties
            + children.sum::<usize>()
            + json::map_memory(&self.extra)
    }

    /// The value of a property; the first value if there are several.
    pub fn property(&self, name: &str) -> Option<&Value> {
        find(&self.properties, name)
    }
}

/// The memory of the entry of one child in the table of children, or of one identifier in the index.
const ENTRY: usize = 160;

/// The memory of a shared text. Its allocation begins with two reference counters.
fn shared(text: &str) -> usize {
    json::allocated(16 + text.len())
}

/// The approximate memory of one child in the list of its parent, in bytes.
fn child_memory(child: &Uri) -> usize {
    ENTRY + shared(child.as_str())
}

/// A named value of an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Property {
    /// Its name.
    pub name: Name,
    /// Any JSON value: text, number, `{subject, reference_uri}`, or an array of these. Null if it
    /// is missing.
    #[serde(default)]
    pub data: Value,
}

/// A property value that refers to another object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyReference {
    /// The class of the object.
    pub subject: Name,
    /// The URI of the object.
    pub uri: Uri,
}

impl PropertyReference {
    /// The references in a property value: the value itself, or the elements
    /// of an array.
    pub fn all(data: &Value) -> impl Iterator<Item = Self> {
        let values = match data {
            Value::Array(values) => values.as_slice(),
            one => std::slice::from_ref(one),
        };
        values.iter().filter_map(Self::one)
    }

    fn one(data: &Value) -> Option<Self> {
        let members = data.as_object()?;
        Some(Self {
            subject: members.get("subject")?.as_str()?.into(),
            uri: members.get("reference_uri")?.as_str()?.parse().ok()?,
        })
    }
}

impl From<PropertyReference> for Value {
    fn from(reference: PropertyReference) -> Self {
        serde_json::json!({"subject": reference.subject.as_str(), "reference_uri": reference.uri.as_str()})
    }
}

pub(super) fn find<'a>(properties: &'a [Property], name: &str) -> Option<&'a Value> {
    properties.iter().find(|p| p.name == *name).map(|p| &p.data)
}

/// Reads an optional member. The draft allows an empty text for a member that is not set.
fn empty_as_none<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    match Option::<String>::deserialize(deserializer)? {
        Some(text) if !text.is_empty() => text.parse().map(Some).map_err(serde::de::Error::custom),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(value: Value) -> Result<ManagedObject, serde_json::Error> {
        serde_json::from_value(value)
    }

    #[test]
    fn subject_and_uri_are_enough() {
        let expected = ManagedObject::new("a", "/a/".parse().unwrap());
        for value in [
            json!({"subject": "a", "uri": "/a/"}),
            json!({"subject": "a", "uri": "/a/", "properties": null, "children": null, "parent_uri": null}),
            json!({"subject": "a", "uri": "/a/", "parent_uri": "", "parent_subject": "", "parent_relation": ""}),
        ] {
            assert_eq!(parse(value).unwrap(), expected);
        }
    }

    #[test]
    fn values_print_back_equal() {
        let value = json!({
            "subject": "a", "uri": "/a/x/", "children": ["/a/x/c/", "/a/x/b/"],
            "properties": [
                {"name": "u", "data": u64::MAX}, {"name": "i", "data": i64::MIN}, {"name": "f", "data": 0.1},
                {"name": "n", "data": null}, {"name": "v", "data": [1, "two", {"subject": "b", "reference_uri": "/b/"}]},
            ],
            "parent_subject": "r", "parent_uri": "/a/", "parent_relation": "x",
            "status": "created", "more": {"a": [1.5]},
        });
        let object = parse(value.clone()).unwrap();
        assert_eq!(object.extra.len(), 2);
        assert_eq!(serde_json::to_value(&object).unwrap(), value);
    }

    #[test]
    fn errors_name_the_fault() {
        for (value, member) in [
            (json!({"uri": "/a/"}), "subject"),
            (json!({"subject": "a"}), "uri"),
            (json!({"subject": 1, "uri": "/a/"}), "string"),
            (json!({"subject": "a", "uri": ""}), "empty"),
            (json!({"subject": "a", "uri": "/a/", "children": [1]}), "URI"),
            (json!({"subject": "a", "uri": "/a/", "children": {}}), "sequence"),
            (
                json!({"subject": "a", "uri": "/a/", "properties": [{"data": 1}]}),
                "name",
            ),
            (json!({"subject": "a", "uri": "/a/", "parent_uri": 7}), "string"),
            (
                json!({"subject": "a", "uri": "/a/", "properties": [["p", 1]]}),
                "object",
            ),
            (json!(["a", "/a/"]), "sequence"),
            (json!("a"), "string"),
        ] {
            let error = parse(value.clone()).unwrap_err().to_string();
            assert!(error.contains(member), "{value}: {error}");
        }
        let twice = r#"{"subject":"a","uri":"/a/","uri":"/b/"}"#;
        assert!(serde_json::from_str::<ManagedObject>(twice).is_err());
    }

    #[test]
    fn the_memory_of_each_text_counts() {
        let short = parse(json!({"subject": "a", "uri": "/a/b/"})).unwrap().memory();
        let long = [
            json!({"subject": "x".repeat(1000), "uri": "/a/b/"}),
            json!({"subject": "a", "uri": format!("/{}/", "x".repeat(1000))}),
            json!({"subject": "a", "uri": "/a/b/", "parent_subject": "x".repeat(1000)}),
            json!({"subject": "a", "uri": "/a/b/", "parent_uri": "x".repeat(1000)}),
            json!({"subject": "a", "uri": "/a/b/", "parent_relation": "x".repeat(1000)}),
            json!({"subject": "a", "uri": "/a/b/", "children": ["x".repeat(1000)]}),
            json!({"subject": "a", "uri": "/a/b/", "properties": [{"name": "x".repeat(1000)}]}),
            json!({"subject": "a", "uri": "/a/b/", "properties": [{"name": "p", "data": "x".repeat(1000)}]}),
            json!({"subject": "a", "uri": "/a/b/", "more": "x".repeat(1000)}),
        ];
        for value in long {
            let memory = parse(value.clone()).unwrap().memory();
            assert!(memory > short + 900, "{memory} for {value}");
        }
    }

    #[test]
    fn references_are_found_alone_and_in_arrays() {
        let one = json!({"subject": "b", "reference_uri": "/b/"});
        let all = |data: &Value| {
            PropertyReference::all(data)
                .map(|r| r.uri.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(all(&one), ["/b/"]);
        assert_eq!(all(&json!([one, "x", {"subject": "b"}, one])), ["/b/", "/b/"]);
        assert_eq!(all(&json!("/b/")), [""; 0]);
        assert_eq!(Value::from(PropertyReference::all(&one).next().unwrap()), one);
    }
}
