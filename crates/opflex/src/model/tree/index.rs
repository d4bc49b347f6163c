//! The index of identifiers, and shared copies of names.

use std::collections::{HashMap, HashSet};

use super::super::ident::Ident;
use super::super::managed_object::ManagedObject;
use super::super::name::Name;
use super::super::schema::Schema;
use super::super::uri::Uri;
use crate::one_or_many::{OneOrMany, add, remove};

/// The objects by identifier.
#[derive(Debug, Default)]
pub(super) struct Index(pub(super) HashMap<Ident, OneOrMany<Uri>>);

impl Index {
    pub(super) fn add(&mut self, object: &ManagedObject, schema: Option<&Schema>) {
        for ident in idents(object, schema) {
            add(&mut self.0, ident, object.uri.clone());
        }
    }

    pub(super) fn remove(&mut self, object: &ManagedObject, schema: Option<&Schema>) {
        for ident in idents(object, schema) {
            remove(&mut self.0, &ident, &object.uri);
        }
    }
}

pub(super) fn idents(object: &ManagedObject, schema: Option<&Schema>) -> Vec<Ident> {
    Ident::of(object, schema.and_then(|schema| schema.naming(&object.subject)))
}

/// One copy of each name, which all objects share.
#[derive(Debug, Default)]
pub(super) struct Names(HashSet<Name>);

impl Names {
    /// The maximum number of names. A model has some thousand. If a peer sends more, its objects have
    /// copies of their own.
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
