//! The tree and its look-ups.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};

use super::super::ident::{Ident, Target};
use super::super::managed_object::{ManagedObject, Property, find};
use super::super::name::Name;
use super::super::schema::Schema;
use super::super::uri::Uri;
use crate::json;
use crate::one_or_many::OneOrMany;

/// Managed objects by URI, with their containment.
///
/// ```
/// use ssntp_opflex::model::{ManagedObject, Tree};
///
/// let mut tree = Tree::new();
/// let space = ManagedObject::new("PolicySpace", "/PolicySpace/test/".parse()?);
/// let group = ManagedObject::new("GbpEpGroup", "/PolicySpace/test/GbpEpGroup/web/".parse()?)
///     .with("name", "web")
///     .under("PolicySpace", space.uri.clone());
/// tree.merge(vec![space.clone(), group])?;
///
/// let objects: Vec<_> = tree.subtree(&space.uri).collect();
/// assert_eq!(objects.len(), 2);
/// assert_eq!(objects[0].children().next(), Some(objects[1].uri()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Tree {
    /// The objects. Their lists of children are empty; the field `children` has them.
    pub(super) objects: HashMap<Uri, ManagedObject>,
    pub(super) order: BTreeSet<Uri>,
    pub(super) children: HashMap<Uri, OneOrMany<Uri>>,
    pub(super) announced: HashMap<Uri, Uri>,
    pub(super) index: HashMap<Ident, OneOrMany<Uri>>,
    /// One copy of each name, which all objects share.
    pub(super) names: HashSet<Name>,
    pub(super) schema: Option<Arc<Schema>>,
}

impl Tree {
    /// An empty tree that takes objects of any class.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty tree that takes only objects that the model file allows.
    pub fn with_schema(schema: Arc<Schema>) -> Self {
        Self {
            schema: Some(schema),
            ..Self::default()
        }
    }

    /// The model file that objects are checked against.
    pub fn schema(&self) -> Option<&Arc<Schema>> {
        self.schema.as_ref()
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// True if there are no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The number of objects and of announced children, which take memory as well.
    pub(crate) fn entries(&self) -> usize {
        self.objects.len() + self.announced.len()
    }

    /// True if the URI is that of an object or of an announced child.
    pub(crate) fn has_entry(&self, uri: &Uri) -> bool {
        self.objects.contains_key(uri) || self.announced.contains_key(uri)
    }

    /// The object with this URI.
    pub fn get(&self, uri: &Uri) -> Option<ObjectRef<'_>> {
        self.objects
            .get(uri)
            .map(|object| ObjectRef { object, tree: self })
    }

    /// The objects with this identifier, in the order of their URIs.
    pub fn find(&self, ident: &Ident) -> impl Iterator<Item = ObjectRef<'_>> {
        let holders = self.index.get(ident).into_iter();
        holders
            .flat_map(|holders| holders.iter())
            .filter_map(|uri| self.get(uri))
    }

    /// The objects of a target, in the order of their URIs.
    pub(crate) fn find_all(&self, target: &Target) -> Vec<ObjectRef<'_>> {
        match target {
            Target::Uri(uri) => self.get(uri).into_iter().collect(),
            Target::Ident(ident) => self.find(ident).collect(),
        }
    }

    /// The identifiers of an object that is in the tree.
    pub fn idents(&self, uri: &Uri) -> Vec<Ident> {
        self.objects
            .get(uri)
            .map_or_else(Vec::new, |object| self.idents_of(object))
    }

    /// The identifiers that an object has, or would have, in this tree.
    pub fn idents_of(&self, object: &ManagedObject) -> Vec<Ident> {
        let schema = self.schema.as_deref();
        Ident::of(object, schema.and_then(|schema| schema.naming(&object.subject)))
    }

    /// The object and everything below it, each parent before its children, as in messages. Empty
    /// if the object does not exist.
    pub fn subtree(&self, uri: &Uri) -> impl Iterator<Item = ObjectRef<'_>> {
        // Objects below may exist without this one; the result is empty then.
        let is_there = self.objects.contains_key(uri);
        self.covered(uri)
            .filter(move |_| is_there)
            .filter_map(|uri| self.get(uri))
    }

    /// The children of a URI, also if there is no object at the URI itself.
    pub fn children_of(&self, uri: &Uri) -> impl Iterator<Item = ObjectRef<'_>> {
        let children = self.children.get(uri).into_iter();
        children
            .flat_map(OneOrMany::iter)
            .filter_map(|child| self.get(child))
    }

    /// All objects in the order of their URIs, each parent before its children.
    pub fn iter(&self) -> impl Iterator<Item = ObjectRef<'_>> {
        self.order.iter().filter_map(|uri| self.get(uri))
    }

    /// The URIs of the object and of everything below it, in their order.
    pub(crate) fn covered<'a>(&'a self, uri: &Uri) -> impl Iterator<Item = &'a Uri> + use<'a> {
        self.covered_after(uri, None)
    }

    /// As [`covered`](Self::covered), but only the URIs after `last`.
    ///
    /// The search uses the path with and without a final slash, because URIs come in both forms.
    /// The slash excludes `/group10/` from the subtree of `/group1/`.
    pub(super) fn covered_after<'a>(
        &'a self,
        uri: &Uri,
        last: Option<&Uri>,
    ) -> impl Iterator<Item = &'a Uri> + use<'a> {
        let (root, below) = (uri.clone(), format!("{}/", uri.path()));
        let itself = Some(uri).filter(|uri| uri.as_str().len() < below.len() && last.is_none());
        let itself = itself.and_then(|uri| self.order.get(uri));
        // A position before the subtree means its beginning.
        let from = match last.filter(|last| last.as_str() >= below.as_str()) {
            Some(last) => Bound::Excluded(last.as_str()),
            None => Bound::Included(below.as_str()),
        };
        let behind = self.order.range::<str, _>((from, Bound::Unbounded));
        #[cfg(test)]
        let behind = behind.inspect(|_| super::tests::LOOKED_AT.set(super::tests::LOOKED_AT.get() + 1));
        let behind = behind.take_while(move |uri| uri.as_str().starts_with(&below));
        itself
            .into_iter()
            .chain(behind.filter(move |uri| root.covers(uri)))
    }

    /// All objects in the form of messages, for a dump.
    pub fn to_objects(&self) -> Vec<ManagedObject> {
        self.iter().map(|object| object.to_object()).collect()
    }
}

/// An object in a [`Tree`]. It is serialized as a [`ManagedObject`] is, with the
/// children and the parent that the tree knows.
#[derive(Clone, Copy, Debug)]
pub struct ObjectRef<'a> {
    object: &'a ManagedObject,
    tree: &'a Tree,
}

impl<'a> ObjectRef<'a> {
    /// The class.
    pub fn subject(&self) -> &'a Name {
        &self.object.subject
    }

    /// The place in the tree.
    pub fn uri(&self) -> &'a Uri {
        &self.object.uri
    }

    /// Named values, in no particular order.
    pub fn properties(&self) -> &'a [Property] {
        &self.object.properties
    }

    /// The approximate length in a message, in bytes.
    pub(crate) fn wire_len(&self) -> usize {
        let children: usize = self.children().map(|child| child.as_str().len() + 3).sum();
        let parent = self.parent_uri().map_or(0, |uri| uri.as_str().len());
        let properties = self.object.properties.iter();
        let properties = properties.map(|one| 24 + one.name.len() + json::text_len(&one.data));
        let extra = self
            .extra()
            .iter()
            .map(|(name, data)| 4 + name.len() + json::text_len(data));
        // The names of the members and the punctuation.
        let frame = 150 + self.uri().as_str().len() + self.subject().len();
        frame + children + parent + properties.chain(extra).sum::<usize>()
    }

    /// The value of a property.
    pub fn property(&self, name: &str) -> Option<&'a Value> {
        find(&self.object.properties, name)
    }

    /// The URIs of the children in their order, including announced children.
    pub fn children(&self) -> impl Iterator<Item = &'a Uri> + use<'a> {
        let children = self.tree.children.get(&self.object.uri).into_iter();
        children.flat_map(OneOrMany::iter)
    }

    /// The object that contains this one, if it is known.
    pub fn parent_uri(&self) -> Option<&'a Uri> {
        self.object.parent_uri.as_ref()
    }

    /// The class of the object that contains this one, if it is known.
    pub fn parent_subject(&self) -> Option<&'a Name> {
        self.object.parent_subject.as_ref().or_else(|| {
            let parent = self.tree.objects.get(self.parent_uri()?)?;
            Some(&parent.subject)
        })
    }

    /// The parent's name for the relation. It is the class of the object unless the
    /// object says otherwise. `None` for an object without a parent.
    pub fn parent_relation(&self) -> Option<&'a Name> {
        let relation = self.object.parent_relation.as_ref();
        relation.or_else(|| self.parent_uri().map(|_| &self.object.subject))
    }

    /// Members that are not in the draft.
    pub fn extra(&self) -> &'a Map<String, Value> {
        &self.object.extra
    }

    /// A copy in the form of messages.
    pub fn to_object(&self) -> ManagedObject {
        ManagedObject {
            children: self.children().cloned().collect(),
            parent_subject: self.parent_subject().cloned(),
            parent_relation: self.parent_relation().cloned(),
            ..self.object.clone()
        }
    }
}

impl Serialize for ObjectRef<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Not by a copy in the form of messages, because long answers are made of these objects.
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("subject", self.subject())?;
        map.serialize_entry("uri", self.uri())?;
        map.serialize_entry("properties", self.properties())?;
        map.serialize_entry("children", &self.children().collect::<Vec<_>>())?;
        for (name, value) in [
            ("parent_subject", self.parent_subject().map(Name::as_str)),
            ("parent_uri", self.parent_uri().map(Uri::as_str)),
            ("parent_relation", self.parent_relation().map(Name::as_str)),
        ] {
            if let Some(value) = value {
                map.serialize_entry(name, value)?;
            }
        }
        for (name, value) in self.extra() {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}
