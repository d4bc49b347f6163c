//! Shared copies of names.

use std::collections::HashSet;

use super::super::managed_object::ManagedObject;
use super::super::name::Name;

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
