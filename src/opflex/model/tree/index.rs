//! Ways to an object other than its URI.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;

use super::super::{Ident, ManagedObject, Name, Reference, Schema, Uri};

/// The URIs behind one key. Nearly every key has one, and a set of its own for
/// each would be most of the memory of the index.
#[derive(Debug)]
pub(super) enum Holders {
    One(Uri),
    Many(BTreeSet<Uri>),
}

impl Holders {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Uri> {
        let (one, many) = match self {
            Self::One(uri) => (Some(uri), None),
            Self::Many(uris) => (None, Some(uris)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    fn add(&mut self, uri: &Uri) {
        match self {
            Self::One(one) if one == uri => {}
            Self::One(one) => *self = Self::Many(BTreeSet::from([one.clone(), uri.clone()])),
            Self::Many(uris) => {
                uris.insert(uri.clone());
            }
        }
    }

    /// True when nothing is left.
    fn remove(&mut self, uri: &Uri) -> bool {
        match self {
            Self::One(one) => one == uri,
            Self::Many(uris) => {
                uris.remove(uri);
                uris.is_empty()
            }
        }
    }
}

fn add<K: Eq + Hash>(index: &mut HashMap<K, Holders>, key: K, uri: &Uri) {
    match index.get_mut(&key) {
        Some(holders) => holders.add(uri),
        None => {
            index.insert(key, Holders::One(uri.clone()));
        }
    }
}

fn remove<K: Eq + Hash>(index: &mut HashMap<K, Holders>, key: &K, uri: &Uri) {
    if index.get_mut(key).is_some_and(|holders| holders.remove(uri)) {
        index.remove(key);
    }
}

/// The objects of each class, by identifier, and by what they refer to.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) classes: HashMap<Name, BTreeSet<Uri>>,
    pub(super) idents: HashMap<Ident, Holders>,
    pub(super) referrers: HashMap<Uri, Holders>,
}

impl Index {
    pub(super) fn add(&mut self, object: &ManagedObject, schema: Option<&Schema>) {
        let uri = &object.uri;
        self.classes
            .entry(object.subject.clone())
            .or_default()
            .insert(uri.clone());
        for ident in idents(object, schema) {
            add(&mut self.idents, ident, uri);
        }
        for reference in references(object) {
            add(&mut self.referrers, reference.uri, uri);
        }
    }

    pub(super) fn remove(&mut self, object: &ManagedObject, schema: Option<&Schema>) {
        let uri = &object.uri;
        if let Some(class) = self.classes.get_mut(&object.subject) {
            class.remove(uri);
            if class.is_empty() {
                self.classes.remove(&object.subject);
            }
        }
        for ident in idents(object, schema) {
            remove(&mut self.idents, &ident, uri);
        }
        for reference in references(object) {
            remove(&mut self.referrers, &reference.uri, uri);
        }
    }
}

pub(super) fn idents(object: &ManagedObject, schema: Option<&Schema>) -> Vec<Ident> {
    Ident::of(object, schema.and_then(|schema| schema.naming(&object.subject)))
}

pub(super) fn references(object: &ManagedObject) -> impl Iterator<Item = Reference> {
    object
        .properties
        .iter()
        .flat_map(|property| Reference::all(&property.data))
}

/// One copy of each name, however many objects have it.
#[derive(Debug, Default)]
pub(super) struct Names(HashSet<Name>);

impl Names {
    /// A model has some thousand names. A peer that makes up more of them gets
    /// no further room here; its objects keep their own copies.
    const MAX: usize = 16 * 1024;

    pub(super) fn share(&mut self, object: &mut ManagedObject) {
        self.one(&mut object.subject);
        for property in &mut object.properties {
            self.one(&mut property.name);
        }
        for name in [&mut object.parent_subject, &mut object.parent_relation]
            .into_iter()
            .flatten()
        {
            self.one(name);
        }
    }

    fn one(&mut self, name: &mut Name) {
        match self.0.get(name) {
            Some(known) => *name = known.clone(),
            None if self.0.len() < Self::MAX => {
                self.0.insert(name.clone());
            }
            None => {}
        }
    }
}
