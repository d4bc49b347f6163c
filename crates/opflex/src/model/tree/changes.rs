//! The objects that an edit changed.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::super::managed_object::ManagedObject;
use super::super::name::Name;
use super::super::uri::Uri;
use super::store::Tree;

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// The object is new.
    Created,
    /// The class, the properties or the parent of the object changed, or it announces other children.
    Modified,
    /// The object was removed.
    Deleted,
}

/// One object that an edit changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The object.
    pub uri: Uri,
    /// The class after the edit; of a deleted object, before the edit.
    pub subject: Name,
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The object before the edit, without children. `None` if it was created.
    pub before: Option<Box<ManagedObject>>,
}

impl Change {
    /// True if the edit has changed the class of the object.
    pub(crate) fn has_other_class(&self) -> bool {
        let before = self.before.as_ref();
        self.kind == ChangeKind::Modified && before.is_some_and(|before| before.subject != self.subject)
    }
}

/// All objects that one edit changed, in the order of their URIs, so parents are
/// before children. Empty if the edit changed nothing.
pub type Changes = Vec<Change>;

/// The former states of what an edit touches. They are compared at the end, so an
/// object that the edit adds and removes again does not count as changed.
#[derive(Debug, Default)]
pub(super) struct Before {
    objects: BTreeMap<Uri, Option<ManagedObject>>,
    /// The object that announced each child.
    announced: BTreeMap<Uri, Option<Uri>>,
}

impl Before {
    /// Records the former state of an object. Only the first call for an object has an effect.
    pub(super) fn record(&mut self, uri: &Uri, object: Option<ManagedObject>) {
        self.objects.entry(uri.clone()).or_insert(object);
    }

    /// Records the object that announced a child. Only the first call for a child has an effect.
    pub(super) fn record_announced(&mut self, child: &Uri, by: Option<Uri>) {
        self.announced.entry(child.clone()).or_insert(by);
    }

    /// Compares with the present states.
    pub(super) fn compare(mut self, tree: &Tree) -> Changes {
        let mut announce_others = BTreeSet::new();
        for (child, former) in self.announced {
            let now = tree.announced.get(&child);
            // A child that has arrived is a change of its own.
            if former.as_ref() != now && !tree.objects.contains_key(&child) {
                announce_others.extend(former.into_iter().chain(now.cloned()));
            }
        }
        for uri in &announce_others {
            let now = || tree.objects.get(uri).cloned();
            self.objects.entry(uri.clone()).or_insert_with(now);
        }
        let change = |(uri, before): (Uri, Option<ManagedObject>)| {
            let (subject, kind) = match (&before, tree.objects.get(&uri)) {
                (None, None) => return None,
                (None, Some(now)) => (now.subject.clone(), ChangeKind::Created),
                (Some(before), None) => (before.subject.clone(), ChangeKind::Deleted),
                (Some(before), Some(now)) if same(before, now) && !announce_others.contains(&uri) => {
                    return None;
                }
                (Some(_), Some(now)) => (now.subject.clone(), ChangeKind::Modified),
            };
            Some(Change {
                uri,
                subject,
                kind,
                before: before.map(Box::new),
            })
        };
        self.objects.into_iter().filter_map(change).collect()
    }
}

/// True if two states of an object are equal, apart from their children. The order of
/// properties does not matter, because libopflex writes them in the order of a hash table.
pub(super) fn same(a: &ManagedObject, b: &ManagedObject) -> bool {
    let by_name = |object: &ManagedObject| {
        let mut properties: Vec<_> = object
            .properties
            .iter()
            .map(|p| (p.name.clone(), p.data.clone()))
            .collect();
        properties.sort_by(|(a, _), (b, _)| a.cmp(b));
        properties
    };
    a.subject == b.subject
        && a.parent_uri == b.parent_uri
        && a.parent_subject == b.parent_subject
        && a.parent_relation == b.parent_relation
        && a.extra == b.extra
        && a.properties.len() == b.properties.len()
        // Sorting is rarely needed: most peers keep the order.
        && (a.properties == b.properties || by_name(a) == by_name(b))
}
